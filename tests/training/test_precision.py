"""train.precision: forward and loss under torch's autocast; in fp16 a scale per worker, and overflows cost no batch.

One worker is torch's own loop with autocast and GradScaler, bit for bit, but for one thing: where GradScaler leaves a
batch out whose gradients overflow, it is tried again at the smaller scale."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

import hogwild
from hogwild.errors import ConfigError, HogwildError
from hogwild.scheduling.batch_plan import BatchPlan, batch_seed
from hogwild.shared_memory.scoreboard import Row, Scoreboard, Word
from hogwild.storage.checkpoint import load as load_checkpoint
from hogwild.training import loss_scaler
from hogwild.training.loss_scaler import FIRST, RowScaler, autocast, widened
from tests.helpers.plain_loop import PlainLoop, differing_parameters, differing_state, epoch_order, ulps
from tests.shared_model import (
    one_thread,  # noqa: F401 (a fixture for every test here)
)

SAMPLES, FEATURES, HIDDEN, CLASSES, SEED = 107, 13, 17, 5, 11
ULPS = 20  # where torch sums a norm in another order
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Linear(FEATURES, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Tanh(), nn.Dropout(0.3), nn.Linear(HIDDEN, CLASSES)
    )


class Words(nn.Module):
    """Sparse gradients for one parameter, dense ones for the others."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.last = nn.EmbeddingBag(30, 8, sparse=True), nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.embedding(ids))


def words() -> nn.Module:
    torch.manual_seed(5)
    return Words()


class Loud(nn.CrossEntropyLoss):
    """Gradients so large that float16 overflows at the first scale, and at some more."""

    factor = 512.0

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return super().forward(output, target) * self.factor


def samples() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(3)
    return torch.randn(SAMPLES, FEATURES, generator=random), torch.randint(CLASSES, (SAMPLES,), generator=random)


def texts() -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(3)
    ids = torch.randint(30, (SAMPLES, 6), generator=random)
    return ids, torch.randint(CLASSES, (SAMPLES,), generator=random)


@dataclass
class TorchLoop:
    """The documented loop of torch.amp, over the batches of a job; a batch that its scaler skips comes again."""

    precision: str
    loop: PlainLoop
    growth_interval: int = 2000
    skipped: int = 0
    ulps: float = 0.0  # between the two results, in the end

    def run(self, model: nn.Module, loss_of: nn.Module, rule: optim.Optimizer, data: tuple[Tensor, Tensor]) -> float:
        """The scale at the end."""
        grad_scaler = torch.amp.GradScaler(
            "cpu", enabled=self.precision == "fp16", growth_interval=self.growth_interval
        )
        plan = BatchPlan(len(data[0]), self.loop.batch_size)
        for epoch in range(self.loop.epochs):
            order = epoch_order(data, SEED, epoch, "full")
            for start in range(0, plan.batches, self.loop.accumulate):
                batches = range(start, min(start + self.loop.accumulate, plan.batches))
                kept = [buffer.clone() for buffer in model.buffers()]
                while not self._update(model, loss_of, rule, grad_scaler, data, epoch, order, plan, batches):
                    self.skipped += 1
                    for buffer, before in zip(model.buffers(), kept, strict=True):
                        buffer.copy_(before)
        return float(grad_scaler.get_scale())

    def _update(
        self,
        model: nn.Module,
        loss_of: nn.Module,
        rule: optim.Optimizer,
        grad_scaler: Any,
        data: tuple[Tensor, Tensor],
        epoch: int,
        order: Tensor,
        plan: BatchPlan,
        batches: range,
    ) -> bool:
        rule.zero_grad()
        for first, last in map(plan.positions, batches):
            inputs, target = (part[order[first:last]] for part in data)
            torch.default_generator.manual_seed(batch_seed(SEED, epoch, first))
            with torch.autocast("cpu", DTYPES[self.precision]):
                loss = loss_of(model(inputs), target)
            grad_scaler.scale(loss if len(batches) == 1 else loss * (1 / len(batches))).backward()
        if self.loop.grad_clip is not None:
            grad_scaler.unscale_(rule)
            nn.utils.clip_grad_norm_(list(model.parameters()), self.loop.grad_clip)
        before = grad_scaler.get_scale()
        grad_scaler.step(rule)
        grad_scaler.update()
        return bool(grad_scaler.get_scale() >= before)


Rule = Callable[[nn.Module], optim.Optimizer]
RULES: dict[str, Rule] = {
    "sgd": lambda model: optim.SGD(model.parameters(), lr=0.05),
    "momentum": lambda model: optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda model: optim.AdamW(model.parameters(), lr=0.01, fused=False),
}


def both(
    tmp_path: Path,
    precision: str,
    loop: PlainLoop,
    rule: Rule,
    make: Callable[[], nn.Module] = network,
    data: tuple[Tensor, Tensor] | None = None,
    loss: nn.Module | None = None,
    growth_interval: int = 2000,
    **settings: Any,
) -> tuple[list[str], TorchLoop, float, hogwild.TrainResult]:
    """(what differs in a bit, the loop, its scale at the end, the job)."""
    data, loss = data or samples(), loss or nn.CrossEntropyLoss()
    ours, plain = make(), make()
    our_rule, plain_rule = rule(ours), rule(plain)
    settings = {**loop.settings, "procs": 0, "threads": 1, "run_dir": tmp_path / "run", **settings}
    result = hogwild.train(ours, TensorDataset(*data), loss, our_rule, precision=precision, **settings)
    reference = TorchLoop(precision, loop, growth_interval)
    scale = reference.run(plain, loss, plain_rule, data)
    reference.ulps = ulps(ours, plain)
    return differing_parameters(ours, plain) + differing_state(our_rule, plain_rule), reference, scale, result


def scale_of(result: hogwild.TrainResult) -> list[list[float]]:
    assert result.checkpoint is not None
    scales: list[list[float]] = load_checkpoint(result.run_dir / "checkpoints" / result.checkpoint)["scales"]
    return scales


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("rule", RULES)
def test_one_worker_is_torchs_own_loop_with_autocast_bit_for_bit(tmp_path: Path, precision: str, rule: str) -> None:
    different, loop, _, result = both(tmp_path, precision, PlainLoop(epochs=2), RULES[rule])
    assert different == []
    assert loop.skipped == 0 and result.updates == 28


def test_it_is_another_result_than_that_of_fp32(tmp_path: Path) -> None:
    results = []
    for precision in ("fp32", "bf16", "fp16"):
        model = network()
        settings: dict[str, Any] = {"procs": 0, "threads": 1, "run_dir": tmp_path / precision, "batch_size": 8}
        rule = RULES["sgd"](model)
        hogwild.train(model, TensorDataset(*samples()), nn.CrossEntropyLoss(), rule, precision=precision, **settings)
        assert all(param.dtype == torch.float32 for param in model.parameters())
        results.append(torch.cat([param.detach().flatten() for param in model.parameters()]))
    fp32, bf16, fp16 = results
    assert 0 < float((fp16 - fp32).abs().max()) < float((bf16 - fp32).abs().max()) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    "loop",
    [PlainLoop(), PlainLoop(accumulate=3), PlainLoop(grad_clip=50.0), PlainLoop(accumulate=2, grad_clip=50.0)],
    ids=["plain", "accumulate", "clip", "accumulate-clip"],
)
def test_an_overflow_is_no_nan_batch_but_computed_again_at_a_smaller_scale(tmp_path: Path, loop: PlainLoop) -> None:
    different, reference, scale, result = both(
        tmp_path, "fp16", loop, lambda model: optim.SGD(model.parameters(), lr=1e-4), loss=Loud()
    )
    assert different == [] if loop.grad_clip is None else reference.ulps <= ULPS
    assert reference.skipped > 2, "the loss is not loud enough for this test"
    assert result.leases["skipped"] == 0
    assert scale_of(result)[0][0] == scale < FIRST
    assert hogwild_summary(result)["overflows"] == reference.skipped


def hogwild_summary(result: hogwild.TrainResult) -> dict[str, Any]:
    import json

    summary: dict[str, Any] = json.loads((result.run_dir / "summary.json").read_text())
    return summary


def test_the_scale_grows_after_many_finite_updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scaler, "GROW_AFTER", 3)
    different, reference, scale, result = both(
        tmp_path, "fp16", PlainLoop(), RULES["sgd"], loss=Loud(), growth_interval=3
    )
    assert different == []
    assert reference.skipped > 3, "it grows until it overflows, again and again"
    assert scale_of(result)[0][0] == scale


@pytest.mark.slow
def test_sparse_gradients_are_unscaled_row_by_row(tmp_path: Path) -> None:
    _, reference, _, result = both(
        tmp_path, "fp16", PlainLoop(), lambda model: optim.SGD(model.parameters(), lr=1e-4), words, texts(), Loud()
    )
    assert reference.ulps <= ULPS  # torch adds up rows of one number in an order of its own
    assert result.leases["skipped"] == 0
    assert hogwild_summary(result)["overflows"] > 0


@pytest.mark.processes
def test_delta_exchanges_what_was_learnt_at_the_scale(tmp_path: Path) -> None:
    """By one worker delta is direct, but for the roundings of its sums."""
    direct, delta = network(), network()
    for name, model in (("direct", direct), ("delta", delta)):
        settings: dict[str, Any] = {"procs": 1, "threads": 1, "run_dir": tmp_path / name, "batch_size": 8}
        rule = optim.SGD(model.parameters(), lr=1e-4)
        result = hogwild.train(
            model, TensorDataset(*samples()), Loud(), rule, precision="fp16", exchange=name, sync_every=4, **settings
        )
        assert result.leases["done"] == 14
        assert hogwild_summary(result)["overflows"] > 0
    for one, other in zip(direct.parameters(), delta.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


# ---- what is not finite at any scale --------------------------------------------------------------------------------


class Poison(nn.Module):
    """Its gradient is infinite, and its loss is not, for a batch that holds the value 99."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        output = self.last(x.clamp(-3, 3))
        return output + (self.last.bias * 0).abs().sqrt() if (x == 99).any() else output


def test_a_batch_that_is_not_finite_at_any_scale_is_skipped_and_the_scale_is_what_it_was(tmp_path: Path) -> None:
    torch.manual_seed(5)
    model, (x, y) = Poison(), samples()
    x[17] = 99.0
    result = hogwild.train(
        model, TensorDataset(x, y), nn.CrossEntropyLoss(), optim.SGD(model.parameters(), lr=0.1),
        precision="fp16", procs=0, threads=1, batch_size=8, shuffle="none", run_dir=tmp_path / "run",
    )  # fmt: skip
    assert result.leases["skipped"] == 1 and result.leases["done"] == 14 - 1
    assert scale_of(result) == [[FIRST, 11.0]]  # batches 3 to 13 after it
    assert hogwild_summary(result)["overflows"] == 16
    assert all(bool(param.isfinite().all()) for param in model.parameters())


def test_a_loss_that_is_nan_is_not_tried_again(tmp_path: Path) -> None:
    model, (x, y) = network(), samples()
    x, y = x[:104], y[:104]  # whole batches: the gradient of a smaller one is larger
    x[17] = 1e30  # infinite in float16
    result = hogwild.train(
        model, TensorDataset(x, y), nn.CrossEntropyLoss(), optim.SGD(model.parameters(), lr=0.1),
        precision="fp16", procs=0, threads=1, batch_size=8, shuffle="none", run_dir=tmp_path / "run",
    )  # fmt: skip
    assert result.leases["skipped"] == 1
    assert hogwild_summary(result)["overflows"] == 0


# ---- the scale is the worker's, and outlives it ---------------------------------------------------------------------


def test_a_replacement_goes_on_with_the_scale_of_its_row() -> None:
    board = Scoreboard.allocate(2)
    first = RowScaler(Row(board, 1))
    assert first.scale == FIRST and first.lower() and first.lower()
    first.succeed()
    board.renew(1, 2)
    second = RowScaler(Row(board, 1))
    assert second.scale == FIRST / 4 and board.words[1, Word.GOOD] == 1
    assert RowScaler(Row(board, 0)).scale == FIRST
    assert loss_scaler.overflows(board) == 2


def test_a_resume_with_other_procs_deals_the_scales_out() -> None:
    board = Scoreboard.allocate(3)
    loss_scaler.restore(board, [[1024.0, 7.0], [0.0, 0.0]])
    assert loss_scaler.state(board) == [[1024.0, 7.0], [0.0, 0.0], [1024.0, 7.0]]
    assert RowScaler(Row(board, 1)).scale == FIRST, "it had trained nothing"
    empty = Scoreboard.allocate(2)
    loss_scaler.restore(empty, [])
    assert loss_scaler.state(empty) == []


@pytest.mark.parametrize("bad", [-1.0, 3.0, float("nan"), float("inf"), 2.0**99])
def test_a_scale_that_none_can_be_is_refused(bad: float) -> None:
    board = Scoreboard.allocate(1)
    with pytest.raises(ValueError, match="powers of two"):
        loss_scaler.restore(board, [[bad, 0.0]])
    assert not np.any(board.floats[0, Word.SCALE])


def test_a_resumed_run_ends_as_if_it_had_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scaler, "GROW_AFTER", 5)  # so that the counter matters, too
    rule: Rule = RULES["momentum"]
    data, loss = TensorDataset(*samples()), Loud()
    common: dict[str, Any] = {"precision": "fp16", "procs": 0, "threads": 1, "batch_size": 8, "epochs": 2}
    whole, halves = network(), network()
    straight = hogwild.train(whole, data, loss, rule(whole), run_dir=tmp_path / "whole", **common)
    first = rule(halves)
    hogwild.train(halves, data, loss, first, run_dir=tmp_path / "halves", max_updates=9, **common)
    again = network()
    resumed = hogwild.train(again, data, loss, rule(again), resume=tmp_path / "halves", max_updates=28, **common)
    assert differing_parameters(whole, again) == []
    assert scale_of(resumed) == scale_of(straight)
    assert scale_of(straight)[0][0] < FIRST


@pytest.mark.whole
@pytest.mark.processes
def test_two_workers_keep_their_own_scales_and_lose_no_batch(tmp_path: Path) -> None:
    model = network()
    result = hogwild.train(
        model, TensorDataset(*samples()), Loud(), optim.SGD(model.parameters(), lr=1e-4), val={"fraction": 0.2},
        precision="fp16", procs=2, threads=1, batch_size=4, epochs=4, exchange="direct", run_dir=tmp_path / "run",
    )  # fmt: skip
    assert result.leases["done"] == result.leases["total"] and result.leases["skipped"] == 0
    scales = [scale for scale, good in scale_of(result) if good]  # one may have come too late to train
    assert scales and max(scales) < FIRST
    assert np.isfinite(result.metrics["loss"])


# ---- evaluation, and what is refused --------------------------------------------------------------------------------


def test_an_evaluation_computes_as_training_does_and_metrics_see_float32(tmp_path: Path) -> None:
    model, seen = network(), []

    def largest(outputs: Tensor, targets: Tensor) -> float:
        seen.append(outputs.dtype)
        return float(outputs.double().sum())

    largest.higher_is_better = True  # type: ignore[attr-defined]
    x, y = samples()
    result = hogwild.train(
        model, TensorDataset(x, y), nn.CrossEntropyLoss(), optim.SGD(model.parameters(), lr=0.1),
        val=TensorDataset(x, y), precision="bf16", procs=0, threads=1, batch_size=8, run_dir=tmp_path / "run",
        evaluate={"metrics": ["accuracy", largest]},
    )  # fmt: skip
    model.eval()
    with torch.no_grad():
        exact = float(model(x).double().sum())
        with torch.autocast("cpu", torch.bfloat16):
            narrow = float(model(x).double().sum())
    assert set(seen) == {torch.float32}
    assert result.metrics["largest"] == pytest.approx(narrow, abs=1e-9) != pytest.approx(exact, abs=1e-9)


def test_fp32_needs_no_context_and_widens_nothing() -> None:
    with autocast("fp32", "cpu"):
        assert not torch.is_autocast_enabled("cpu")
    for dtype in DTYPES.values():
        assert widened(torch.ones(2, dtype=dtype)).dtype == torch.float32
    double, pair = torch.ones(2, dtype=torch.float64), (1, 2)
    assert widened(double) is double and widened(pair) is pair


def test_a_float16_parameter_is_refused_in_fp16(tmp_path: Path) -> None:
    model = network()
    model[4].half()
    with pytest.raises(HogwildError, match=r"parameter 4\.weight is float16") as caught:
        hogwild.train(
            model, TensorDataset(*samples()), nn.CrossEntropyLoss(), RULES["sgd"](model),
            precision="fp16", procs=0, run_dir=tmp_path / "run",
        )  # fmt: skip
    assert caught.value.code == "model/precision"


def test_an_unknown_precision_is_named_with_those_there_are(tmp_path: Path) -> None:
    model = network()
    with pytest.raises(ConfigError, match="precision"):
        hogwild.train(
            model, TensorDataset(*samples()), nn.CrossEntropyLoss(), RULES["sgd"](model),
            precision="fp8", run_dir=tmp_path / "run",
        )  # fmt: skip
