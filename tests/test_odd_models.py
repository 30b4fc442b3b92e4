"""Models that do in forward what a constructor should, or keep something from it: trained as the plain loop would, or
refused in clear words. Through the library call, so through the whole job."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

import hogwild
from hogwild.api import TrainResult
from hogwild.errors import ModelError, TrainingError
from tests.shared_model import same_bits

FEATURES, CLASSES, BATCH = 4, 2, 8


def examples(batches: int) -> TensorDataset:
    """Batch k of `shuffle: none` holds the samples [8k, 8k + 8)."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(batches * BATCH, FEATURES, generator=random)
    return TensorDataset(x, (x[:, 0] > 0).long())


def train(model: nn.Module, run_dir: Path, data: TensorDataset | None = None, **settings: Any) -> TrainResult:
    settings = {"procs": 0, "batch_size": BATCH, "shuffle": "none", **settings}
    rule = optim.SGD(model.parameters(), lr=0.1)
    return hogwild.train(model, data or examples(4), nn.CrossEntropyLoss(), rule, run_dir=run_dir, **settings)


class CreatesInForward(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.late = nn.Parameter(torch.zeros(CLASSES))
        return super().forward(x) + self.late


class GrowsLater(nn.Linear):
    """A new parameter in the third batch of training, when nobody expects it any more."""

    batches = 0

    def forward(self, x: Tensor) -> Tensor:
        self.batches += self.training
        if self.batches == 3:
            self.late = nn.Parameter(torch.zeros(CLASSES))
        return super().forward(x)


class KeepsATensor(nn.Linear):
    """As a positional encoding does: made for the longest input so far, and used in every graph from then on."""

    kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None or len(self.kept) < len(x):
            self.kept = torch.ones(len(x), CLASSES)
        return super().forward(x) * self.kept[: len(x)]


class Normed(nn.Module):
    """What exceeds 1e3 in x comes out of the first layer as `spoilt`, and so into the running averages."""

    def __init__(self, spoilt: float) -> None:
        super().__init__()
        self.spoilt = spoilt
        self.first, self.norm, self.last = nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if bool((x > 1e3).any()) and self.training:
            hidden = torch.cat([torch.full_like(hidden[:1], self.spoilt), hidden[1:]])
        return self.last(self.norm(hidden))


def normed(spoilt: float) -> Normed:
    torch.manual_seed(0)
    return Normed(spoilt)


def test_a_parameter_created_in_forward_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="CreatesInForward creates parameter late in forward"):
        train(CreatesInForward(FEATURES, CLASSES), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("procs", [0, 1])
def test_a_parameter_that_comes_later_ends_the_job_and_no_worker_tries_again(tmp_path: Path, procs: int) -> None:
    with pytest.raises((ModelError, TrainingError), match="gained or lost parameters"):
        train(GrowsLater(FEATURES, CLASSES), tmp_path / "run", procs=procs, epochs=100)
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert '"restart"' not in events and events.count('"spawn"') == procs


@pytest.mark.parametrize("procs", [0, 1])
def test_what_a_model_keeps_from_an_evaluation_serves_in_training(tmp_path: Path, procs: int) -> None:
    result = train(
        KeepsATensor(FEATURES, CLASSES), tmp_path / "run", procs=procs, epochs=3, val=examples(32), batch_size=BATCH
    )
    assert (result.state, result.restarts, result.updates) == ("succeeded", 0, 12)


def test_a_skipped_batch_leaves_no_trace_in_running_averages(tmp_path: Path) -> None:
    whole = examples(6)
    x, y = whole.tensors
    x[2 * BATCH, 0] = 2e3
    rest = TensorDataset(torch.cat([x[: 2 * BATCH], x[3 * BATCH :]]), torch.cat([y[: 2 * BATCH], y[3 * BATCH :]]))
    skipping, innocent = normed(float("nan")), normed(0.0)
    result = train(skipping, tmp_path / "skipping", whole)
    train(innocent, tmp_path / "innocent", rest)
    assert result.leases["skipped"] == 1
    assert int(skipping.norm.num_batches_tracked) == 5
    assert same_bits(skipping, innocent)


@pytest.mark.parametrize("procs", [0, 1])
def test_with_one_worker_an_overflow_does_not_depend_on_when_training_pauses(tmp_path: Path, procs: int) -> None:
    """A finite loss, an infinite running variance: the plain loop keeps it, and so do we, paused or not."""
    data = examples(6)
    data.tensors[0][2 * BATCH, 0] = 2e3
    undisturbed, paused = normed(3e38), normed(3e38)
    assert train(undisturbed, tmp_path / "undisturbed", data, procs=procs).leases["skipped"] == 0
    train(paused, tmp_path / "paused", data, procs=procs, checkpoint={"every_updates": 1})
    assert torch.isinf(undisturbed.norm.running_var).any()
    assert same_bits(undisturbed, paused)
