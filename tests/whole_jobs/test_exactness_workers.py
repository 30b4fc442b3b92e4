"""The exactness of the trainer (test_exactness.py) holds for a real worker process, for one that is killed and
replaced, and for what a checkpoint holds. A worker costs seconds to start, so each of these jobs does several things at
once."""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from hogwild.training.lr_schedule import Linear
from tests.helpers.jobs import JOBS, Ended, Job
from tests.helpers.plain_loop import (
    Curve,
    PlainLoop,
    Rule,
    Samples,
    by_factor,
    differing_parameters,
    differing_state,
    train_both,
)
from tests.helpers.processes import wait_for
from tests.shared_model import (
    Branches,
    ConvNet,
    one_thread,  # noqa: F401 (a fixture for every test here)
)


class Speller(nn.Module):
    """Tied weights, a recurrent module, dropout and a frozen part, in one."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.out = nn.Embedding(11, 7), nn.Linear(7, 11)
        self.memory = nn.GRU(7, 7, num_layers=2, dropout=0.2, batch_first=True)
        self.out.weight = self.letters.weight
        self.out.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.memory(self.letters(x))[0][:, -1])


def random_samples(*shape: int, classes: int, letters: int = 0) -> Samples:
    random = torch.Generator().manual_seed(3)
    x = (
        torch.randint(letters, (203, *shape), generator=random)
        if letters
        else torch.randn(203, *shape, generator=random)
    )
    return x * 2, torch.randint(classes, (203,), generator=random)


def decaying_weights(model: nn.Module) -> optim.Optimizer:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for name, p in named if "weight" in name], "weight_decay": 0.01},
        {"params": [p for name, p in named if "weight" not in name], "lr": 0.02, "weight_decay": 0.0},
    ]
    return optim.AdamW(groups, lr=0.01, fused=False)


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    rule: Rule
    data: Samples
    loop: PlainLoop
    settings: dict[str, Any]
    curve: Curve | None = None


UPDATES = 3 * 26
CASES = {
    "AdamW, groups, decay, accumulation, schedule, tied, recurrent, frozen": Case(
        Speller,
        decaying_weights,
        random_samples(5, classes=11, letters=6),
        PlainLoop(epochs=9, accumulate=3, grad_clip=1e6, shuffle="chunked"),
        {"lr_schedule": {"name": "linear", "final_factor": 0.1}},
        by_factor(Linear(9 * 9, 0.1)),
    ),
    "Nesterov, channels_last": Case(
        ConvNet,
        lambda model: optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
        random_samples(1, 12, 12, classes=4),
        PlainLoop(epochs=4, max_updates=UPDATES, channels_last=True),
        {},
    ),
    "Adagrad, unused parameters, shared state": Case(
        Branches,
        lambda model: optim.Adagrad(model.parameters(), lr=0.02, fused=False),
        random_samples(5, classes=2),
        PlainLoop(epochs=3, shuffle="none"),
        {"optimizer_state": "shared"},
    ),
}


@pytest.mark.processes
@pytest.mark.parametrize("case", CASES)
def test_a_worker_process_gives_the_bits_of_the_plain_loop(case: str, tmp_path: Path) -> None:
    asked = CASES[case]

    def make() -> nn.Module:
        torch.manual_seed(5)
        return asked.make()

    both = train_both(
        make, asked.rule, asked.data, asked.loop, tmp_path / "run", curve=asked.curve, procs=1, **asked.settings
    )
    assert both.result.updates == both.plain_updates >= UPDATES
    assert (both.result.exchange, both.result.restarts) == ("direct", 0), "chosen without a measurement"
    assert both.differing() == []


# ---- a worker that is killed -----------------------------------------------------------------------------------------

HELD = str(JOBS / "held.yaml")
KILLS = 2


def killed_between_updates(job: Job, diary: Path) -> None:
    """Kills the only worker, and then its replacement, where each waits before a batch; lets the next one go on."""
    for _ in range(KILLS):
        (victim,) = wait_for("a worker that waits", lambda: held(diary) & set(job.workers().values()))
        os.kill(victim, signal.SIGKILL)
        job.wait_for_exit_of(victim)
    (diary / "released").touch()


def held(diary: Path) -> set[int]:
    return {int(note.name.removeprefix("held-")) for note in diary.glob("held-*")}


@pytest.mark.processes
@pytest.mark.whole
def test_a_worker_killed_between_updates_and_replaced_changes_no_bit(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    """The same job twice: dropout, momentum and the schedule go on where the dead left them."""
    jobs = {name: start_held(start_job, tmp_path, name) for name in ("undisturbed", "killed")}
    (tmp_path / "diary-undisturbed" / "released").touch()
    killed_between_updates(jobs["killed"], tmp_path / "diary-killed")
    undisturbed, killed = jobs["undisturbed"].wait(), jobs["killed"].wait()
    assert (undisturbed.status, killed.status) == (0, 0), undisturbed.stderr + killed.stderr
    assert (undisturbed.summary["restarts"], killed.summary["restarts"]) == (0, KILLS)
    assert undisturbed.leases == killed.leases
    assert undisturbed.model_bytes() == killed.model_bytes()
    torch.testing.assert_close(state_of(undisturbed), state_of(killed), rtol=0, atol=0)


def start_held(start_job: Callable[..., Job], folder: Path, name: str) -> Job:
    diary = folder / f"diary-{name}"
    diary.mkdir()
    return start_job(folder / name, HELD, f"model.init_args.diary={diary}")


def state_of(ended: Ended) -> dict[str, Any]:
    saved = torch.load(ended.run_dir / "checkpoints" / "latest" / "state.pt", weights_only=True)
    return {key: saved[key] for key in ("optimizer", "optimizer_private")}


# ---- what a checkpoint holds -----------------------------------------------------------------------------------------


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(13, 17), nn.Tanh(), nn.Dropout(0.3), nn.Linear(17, 5))


@pytest.mark.parametrize("state", ["private", "shared"])
@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(lambda model: optim.SGD(model.parameters(), lr=0.05, momentum=0.9), id="momentum"),
        pytest.param(lambda model: optim.Adam(model.parameters(), lr=0.01, fused=False), id="Adam"),
    ],
)
def test_the_stock_optimizer_loads_a_checkpoints_entry_and_goes_on_to_the_same_bits(
    rule: Rule, state: str, tmp_path: Path
) -> None:
    """Two epochs of a job, then two of the plain loop from its checkpoint, are four of the plain loop."""
    data = random_samples(13, classes=5)
    first = train_both(network, rule, data, PlainLoop(epochs=2), tmp_path / "run", optimizer_state=state)
    assert first.result.checkpoint is not None
    saved = torch.load(tmp_path / "run" / "checkpoints" / first.result.checkpoint / "state.pt", weights_only=True)
    model = network()
    model.load_state_dict(saved["model"])
    optimizer = rule(model)
    optimizer.load_state_dict(saved["optimizer"])
    PlainLoop(epochs=4, first_epoch=2).run(model, nn.CrossEntropyLoss(), optimizer, data)
    whole = network()
    all_along = rule(whole)
    PlainLoop(epochs=4).run(whole, nn.CrossEntropyLoss(), all_along, data)
    assert differing_parameters(model, whole) == []
    assert differing_state(optimizer, all_along) == []
