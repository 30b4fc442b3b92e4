"""Progressive validation: each batch of a stream is scored before it is learnt, and training is the same as without."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hogwild
from hogwild.errors import BuildError
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)

BATCH = 8


class Signs(torch.utils.data.IterableDataset):
    """Whether the sum of four numbers is above zero; without an end, if it has none."""

    def __init__(self, stop: int | None) -> None:
        self.stop = stop

    def __iter__(self) -> Iterator[Any]:
        random = torch.Generator().manual_seed(3)
        for _ in itertools.count() if self.stop is None else range(self.stop):
            x = torch.randn(4, generator=random)
            yield x, int(x.sum() > 0)


def model() -> nn.Sequential:
    """With layers that compute otherwise while they train."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def trained(run: Path, one: nn.Module, stop: int | None, **settings: Any) -> hogwild.TrainResult:
    rule = torch.optim.SGD(one.parameters(), lr=0.1)
    common = {"batch_size": BATCH, "evaluate": {"progressive": True}, "run_dir": run}
    return hogwild.train(one, Signs(stop), nn.CrossEntropyLoss(), rule, **(common | settings))


def windows(run: Path) -> list[dict[str, float]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["losses"] for record in records if record.get("losses")]


def by_hand(batches: int) -> tuple[dict[str, float], list[Tensor]]:
    """The plain loop: what was scored before each step, and the parameters at the end."""
    one, loss = model(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    total = right = 0.0
    stream = iter(Signs(None))
    for _ in range(batches):
        x, y = torch.utils.data.default_collate([next(stream) for _ in range(BATCH)])
        with torch.no_grad():
            output = one.eval()(x)
        total += float(loss(output, y)) / batches
        right += float((output.argmax(1) == y).double().mean()) / batches
        one.train()
        optimizer.zero_grad()
        loss(one(x), y).backward()
        optimizer.step()
    return {"progressive_loss": total, "progressive_accuracy": right}, [p.detach() for p in one.parameters()]


@pytest.mark.processes
@pytest.mark.whole
@pytest.mark.parametrize("procs", [0, 1])
def test_each_batch_is_scored_by_the_model_before_it_is_learnt(procs: int, tmp_path: Path) -> None:
    one = model()
    # One thread, as the plain loop.
    trained(tmp_path / "run", one, 20 * BATCH, procs=procs, threads=1, log={"every_s": 1000.0})
    wanted, parameters = by_hand(20)
    assert windows(tmp_path / "run") == [pytest.approx(wanted, rel=1e-4)]
    assert all(map(torch.equal, (p.detach() for p in one.parameters()), parameters)), "scoring changed the training"


@pytest.mark.processes
def test_an_endless_stream_has_windows_and_checkpoints_by_time_and_no_progress(tmp_path: Path) -> None:
    often: dict[str, Any] = {"log": {"every_s": 0.05}, "checkpoint": {"every_s": 0.3}}
    result = trained(tmp_path / "run", model(), None, procs=2, max_time_s=1.5, **often)
    found = windows(tmp_path / "run")
    assert (result.state, result.reason) == ("stopped", "max_time_s") and len(found) >= 2
    assert found[-1]["progressive_accuracy"] > 0.8
    assert len(list((tmp_path / "run" / "checkpoints").glob("update-*"))) >= 2
    assert json.loads((tmp_path / "run" / "status.json").read_text())["progress"] is None


def test_more_metrics_than_a_record_has_room_for_are_refused(tmp_path: Path) -> None:
    wanted = {"progressive": True, "metrics": [f"top{k}" for k in range(1, 9)]}
    with pytest.raises(BuildError, match="9 metrics with the loss, and 0 further losses"):
        trained(tmp_path / "run", nn.Linear(4, 10), 20 * BATCH, procs=0, evaluate=wanted)
