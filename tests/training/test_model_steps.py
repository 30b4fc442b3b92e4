"""A model's own training_step and evaluation_step, several losses and outputs; evaluations under inference_mode;
torch's errors of autograd in words that help."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

import hogwild
from hogwild.errors import HogwildError, ModelError
from hogwild.training.inference_mode import why_not
from tests.helpers.plain_loop import PlainLoop, differing_parameters
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(64) % 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.body, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.body(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Several(Net):
    """Two losses; one more number, which is infinite in some batches."""

    def training_step(self, batch: tuple[Tensor, ...], loss: Callable[..., Tensor]) -> dict[str, Any]:
        x, y = batch
        features = self.features(x)
        own, size = loss(self.head(features), y), features.square().mean()
        return {"loss": own + 0.1 * size, "size": size, "odd": float("inf") if x[:, 0].max() > 1.5 else 2}


class Twice(nn.Module):
    """Several outputs, one loss that takes them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"logits": self.first(x), "more": (self.second(x),)}


def of_several(output: dict[str, Any], target: Tensor) -> Tensor:
    more = output["more"][0].square().mean()
    return nn.functional.cross_entropy(output["logits"], target) + more


def call(net: nn.Module, folder: Path, loss: Any = None, **settings: Any) -> Any:
    common = {"procs": 0, "threads": 1, "batch_size": 8, "run_dir": folder / "run", "seed": 11}
    rule = optim.SGD(net.parameters(), lr=0.05)
    return hogwild.train(net, TensorDataset(X, Y), loss or nn.CrossEntropyLoss(), rule, **{**common, **settings})


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


# ---- training_step --------------------------------------------------------------------------------------------------


def test_a_training_step_trains_as_the_plain_loop_with_its_loss_and_its_numbers_are_recorded(tmp_path: Path) -> None:
    ours, plain, loop = Several(), Several(), PlainLoop(epochs=2)
    call(ours, tmp_path, epochs=2)
    sizes: list[float] = []

    class Stepping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = plain

        def forward(self, x: Tensor) -> Tensor:
            return x

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        answer = plain.training_step((x, y), nn.CrossEntropyLoss())
        sizes.append(float(answer["size"].detach()))
        return answer["loss"]

    loop.run(Stepping(), loss_of, optim.SGD(plain.parameters(), lr=0.05), (X, Y))
    assert differing_parameters(ours, plain) == []
    (record,) = records(tmp_path, "train")
    assert record["losses"]["size"] == pytest.approx(sum(sizes) / len(sizes), rel=1e-6)
    assert record["losses"]["odd"] == 2  # what is infinite is not in the mean


@pytest.mark.processes
def test_two_workers_and_accumulation_add_up_the_same_names(tmp_path: Path) -> None:
    call(Several(), tmp_path, procs=2, epochs=3, accumulate=2)
    found = records(tmp_path, "train")
    assert found and all({*record["losses"]} == {"size", "odd"} for record in found)
    assert {record["losses"]["odd"] for record in found} == {2}


class Counting(Net):
    """Its further loss is the number of the step."""

    steps = -1  # the trial is none

    def training_step(self, batch: tuple[Tensor, ...], loss: Any) -> dict[str, Any]:
        self.steps += 1
        return {"loss": loss(self(batch[0]), batch[1]), "steps": self.steps}


def test_a_record_has_the_mean_since_the_one_before(tmp_path: Path) -> None:
    call(Counting(), tmp_path, epochs=10, log={"every_s": 0.001})
    found, before = [record for record in records(tmp_path, "train") if record["loss"] is not None], 0
    assert len(found) > 1
    for record in found:
        assert record["losses"]["steps"] == (before + 1 + record["updates"]) / 2
        before = record["updates"]


def test_a_job_without_a_training_step_records_no_losses(tmp_path: Path) -> None:
    call(Net(), tmp_path)
    assert all("losses" not in record for record in records(tmp_path, "train"))


def test_several_outputs_go_to_a_loss_that_takes_them(tmp_path: Path) -> None:
    ours, plain = Twice(), Twice()
    result = call(ours, tmp_path, of_several, val=TensorDataset(X, Y), epochs=2)
    PlainLoop(epochs=2).run(plain, of_several, optim.SGD(plain.parameters(), lr=0.05), (X, Y))
    assert differing_parameters(ours, plain) == [] and {*result.metrics} == {"loss"}


ANSWERS: dict[str, Any] = {
    "nothing": lambda loss: None,
    "no loss": lambda loss: {"kl": loss},
    "one per sample": lambda loss: {"loss": loss.expand(3)},
    "a number": lambda loss: loss.item(),
    "too many": lambda loss: {"loss": loss, **{f"l{k}": 0.0 for k in range(9)}},
    "a tensor of several": lambda loss: {"loss": loss, "kl": torch.ones(2)},
    "no name": lambda loss: {"loss": loss, "a b": 1.0},
}


@pytest.mark.parametrize("what", ANSWERS)
def test_another_answer_is_refused_before_anything_starts(what: str, tmp_path: Path) -> None:
    class Wrong(Net):
        def training_step(self, batch: tuple[Tensor, ...], loss: Any) -> Any:
            return ANSWERS[what](loss(self(batch[0]), batch[1]))

    with pytest.raises(ModelError, match=r"Wrong\.training_step") as raised:
        call(Wrong(), tmp_path)
    assert raised.value.code == "model/step" and not (tmp_path / "run").exists()


def test_names_that_change_while_training_are_an_error(tmp_path: Path) -> None:
    class Fickle(Net):
        def training_step(self, batch: tuple[Tensor, ...], loss: Any) -> Any:
            name = "few" if len(batch[0]) < 8 else "many"
            return {"loss": loss(self(batch[0]), batch[1]), name: 1.0}

    with pytest.raises(ModelError, match="returned many beside the loss, but few in its trial") as raised:
        call(Fickle(), tmp_path)
    assert raised.value.code == "model/step"


def test_the_trial_leaves_no_trace(tmp_path: Path) -> None:
    """One update of a job is one update of the plain loop: BatchNorm's averages, the modes and dropout included."""
    net = Several()
    net.norm.eval()
    call(net, tmp_path, max_updates=1)
    assert net.norm.num_batches_tracked == 0 and not net.norm.training and net.head.training


# ---- evaluation_step ------------------------------------------------------------------------------------------------


def test_an_evaluation_step_says_what_is_judged(tmp_path: Path) -> None:
    class Halved(Net):
        def evaluation_step(self, batch: tuple[Tensor, ...], loss: Any) -> tuple[Tensor, Tensor]:
            return self(batch[0])[::2], batch[1][::2]

    net = Halved()
    result = call(net, tmp_path, val=TensorDataset(X, Y), epochs=2)
    net.eval()
    with torch.no_grad():
        right = (net(X)[::2].argmax(1) == Y[::2]).double().mean()
    assert result.metrics["accuracy"] == pytest.approx(float(right))


def test_an_evaluation_step_of_another_answer_is_refused(tmp_path: Path) -> None:
    class Wrong(Net):
        def evaluation_step(self, batch: tuple[Tensor, ...], loss: Any) -> Tensor:
            return self(batch[0])

    with pytest.raises(HogwildError, match="evaluation_step returned a tensor"):
        call(Wrong(), tmp_path, val=TensorDataset(X, Y))


# ---- inference_mode -------------------------------------------------------------------------------------------------


class Seeing(Net):
    """Writes down whether evaluations run under inference_mode."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and len(x) > 3 and len(x) != 64:  # no trial
            with open(self.file, "a") as said:
                said.write(f"{torch.is_inference_mode_enabled()}\n")
        return super().forward(x)


VAL = TensorDataset(X[:30], Y[:30])


def said(file: Path) -> list[str]:
    return file.read_text().split()


def test_evaluations_run_under_inference_mode(tmp_path: Path) -> None:
    call(Seeing(tmp_path / "said"), tmp_path, val=VAL, epochs=2)
    assert {*said(tmp_path / "said")[-2:]} == {"True"}


class Caching(Seeing):
    """Keeps something of every evaluation."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.cache = {"scale": [torch.ones(6) * 2]}
        return super().forward(x * self.cache["scale"][0] if hasattr(self, "cache") else x * 2)


def test_a_model_that_keeps_a_tensor_of_an_evaluation_is_seen_in_the_trial(tmp_path: Path) -> None:
    assert "Caching.cache keeps a tensor" in (why_not(Caching(tmp_path / "said").eval(), lambda twin: twin(X)) or "")
    call(Caching(tmp_path / "said"), tmp_path, val=VAL, epochs=2)
    assert {*said(tmp_path / "said")} == {"False"}
    assert "evaluations run under torch.no_grad" in (tmp_path / "run" / "logs" / "supervisor.log").read_text()


class Later(Seeing):
    """Keeps a tensor only in the evaluation of all, which no trial makes so, and multiplies a parameter with it."""

    def __init__(self, file: Path) -> None:
        super().__init__(file)
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled() and len(x) == len(VAL):
            self.kept = torch.ones(3)
        output = super().forward(x)
        scale = self.weight * self.kept if hasattr(self, "kept") else self.weight
        return output * scale  # BatchNorm comes first: its averages have moved when this fails


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["direct", "delta"])
def test_a_model_that_keeps_one_later_is_forgiven_and_evaluates_otherwise(exchange: str, tmp_path: Path) -> None:
    ours, plain = Later(tmp_path / "said"), Later(tmp_path / "plain")
    result = call(ours, tmp_path, val=VAL, epochs=4, exchange=exchange, sync_every=3)
    assert result.updates == 32 and result.leases["done"] == 32
    assert said(tmp_path / "said") == ["False", "True", "False", "False", "False"]  # a trial; four evaluations
    call(plain, tmp_path / "plainly", epochs=4, exchange=exchange, sync_every=3)
    assert differing_parameters(ours, plain) == []  # the batch was not lost, nor its BatchNorm counted twice


@pytest.mark.processes
def test_workers_forgive_it_each_for_itself(tmp_path: Path) -> None:
    result = call(Later(tmp_path / "said"), tmp_path, val=VAL, epochs=4, procs=2)
    assert result.state == "succeeded" and result.leases["done"] == 32 and result.restarts == 0
    assert said(tmp_path / "said")[-2:] == ["False", "False"]


KEPT: list[Tensor] = []


class Elsewhere(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled() and not KEPT:
            KEPT.append(torch.ones(6))
        return super().forward(x * (self.scale * KEPT[0] if KEPT else self.scale))


def test_one_that_is_kept_outside_of_the_model_is_explained(tmp_path: Path) -> None:
    KEPT.clear()
    with pytest.raises(ModelError, match="it was kept outside the model, in a global or a closure") as raised:
        call(Elsewhere(), tmp_path, val=VAL, epochs=2)
    assert raised.value.code == "model/kept-inference"


# ---- errors ---------------------------------------------------------------------------------------------------------


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.exp()
        if self.training:
            y += 1
        return y


class WritesParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.weight += 0.1
        return x * self.weight


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.state = getattr(self, "state", 0.0) + (x * self.weight).sin().mean()
            return x * self.weight + self.state
        return x * self.weight


class Detaches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.detach() if self.training else x


CRIMES = {
    "in place": (InPlace, "model/inplace", "In module 1.0, "),
    "a parameter": (WritesParameter, "model/inplace", "In module 1.0 (WritesParameter)"),
    "a state": (Remembers, "model/backward-twice", "detach() what is carried from batch to batch"),
    "detached": (Detaches, "model/no-graph", "the loss does not depend on any parameter that is trained"),
}


def criminal(what: str) -> nn.Module:
    torch.manual_seed(0)
    last: nn.Module = nn.Identity() if what == "detached" else nn.Linear(6, 3)
    first: nn.Module = nn.Linear(6, 3) if what == "detached" else nn.Linear(6, 6)
    return nn.Sequential(first, nn.Sequential(CRIMES[what][0]()), last)


@pytest.mark.parametrize("what", CRIMES)
def test_an_error_of_autograd_says_what_it_means_here(what: str, tmp_path: Path) -> None:
    _, code, words = CRIMES[what]
    with pytest.raises(ModelError) as raised:
        call(criminal(what), tmp_path)
    assert raised.value.code == code and words in str(raised.value) and "\ntorch: " in str(raised.value)


@pytest.mark.whole
@pytest.mark.processes
def test_a_worker_says_it_too_and_the_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        HogwildError, match=r"In module 1\.0, .*test_model_steps.py:\d+, in forward: y = x.exp\(\)"
    ) as raised:
        call(criminal("in place"), tmp_path, procs=1)
    assert raised.value.code == "model/inplace"


def test_another_runtime_error_stays_as_it_is(tmp_path: Path) -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                raise RuntimeError("the oven is too hot")
            return x

    with pytest.raises(HogwildError, match="the oven is too hot") as raised:
        call(nn.Sequential(nn.Linear(6, 3), Own()), tmp_path)
    assert raised.value.code == "train/user-code"
