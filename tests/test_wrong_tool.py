"""What is said of a model that another tool may be better for, and the program that measures it."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn, optim
from torch.utils.data import TensorDataset

import hogwild
from benchmarks import wrong_tool as suite
from benchmarks.baselines.dense_rivals import Answer, Sized, ddp, one_process
from benchmarks.baselines.networks import Settings, Shared
from hogwild import device, wrong_tool
from hogwild.api import _job
from hogwild.job import _other_tool, from_objects
from hogwild.wrong_tool import LARGE, MEASURED, dense_parameters, for_dense, for_gpus, words


class Recommender(nn.Module):
    """Large, and an update writes few of its words."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(LARGE // 8, 8, sparse=sparse), nn.Linear(8, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(ids))


def test_a_sparse_embedding_is_not_counted_and_neither_is_what_is_frozen() -> None:
    assert dense_parameters(Recommender(sparse=True)) == 18
    model = Recommender(sparse=False)
    assert dense_parameters(model) == LARGE + 18
    model.table.weight.requires_grad_(False)
    assert dense_parameters(model) == 18
    assert words(Recommender(sparse=True), gpus=8) is None


def test_nothing_is_said_of_a_small_model() -> None:
    assert for_dense(LARGE - 1) is None and for_gpus(LARGE - 1, 8) is None and for_gpus(LARGE, 1) is None


@pytest.mark.parametrize("one", MEASURED, ids=lambda one: str(one.parameters))
def test_the_figures_are_those_of_the_nearest_size(one: wrong_tool.Measured) -> None:
    assert wrong_tool.nearest(one.parameters) is one
    assert wrong_tool.nearest(2 * one.parameters) is one
    if one.parameters >= LARGE:
        said = for_dense(one.parameters) or ""
        assert f"{one.over_one:.2g} x the samples/s of one process" in said and "\n" not in said
        assert f"{one.over_ddp:.2g} x those of DistributedDataParallel" in said


def test_with_several_gpus_the_sentence_says_that_it_was_not_measured() -> None:
    said = words(Recommender(sparse=False), gpus=4) or ""
    assert "4 GPUs: use DistributedDataParallel" in said and "on CPUs only" in said


def data() -> TensorDataset:
    return TensorDataset(torch.arange(64), torch.arange(64) % 2)


@pytest.mark.parametrize("sparse", [True, False])
def test_check_deep_says_it_of_a_large_dense_model_alone(sparse: bool) -> None:
    model, loss = Recommender(sparse), nn.CrossEntropyLoss()
    rule = optim.SGD(model.parameters(), lr=0.1)
    job = _job(model, data(), loss, rule, None, {"procs": 0})
    parts = from_objects(job, model, loss, rule, data(), None)
    assert (_other_tool(parts) is not None) is not sparse


def test_the_end_of_a_job_says_it_where_gpus_are_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.summary.visible_gpus", lambda: 2)
    model = Recommender(sparse=False)
    result = hogwild.train(
        model, data(), nn.CrossEntropyLoss(), optim.SGD(model.parameters(), lr=0.1), procs=0, run_dir=tmp_path / "run"
    )
    assert result.advice is not None and "2 GPUs: use DistributedDataParallel" in result.advice
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["advice"] == result.advice
    assert device.visible_gpus() < 2, "that of this machine is another"


# ---- the program that measures it -----------------------------------------------------------------------------------

TINY = Sized("MLP", (), (8,))


def pictures(samples: int) -> Shared:
    random = torch.Generator().manual_seed(0)
    return Shared.of(torch.rand(samples, 1, 28, 28, generator=random), torch.randint(10, (samples,), generator=random))


def test_every_rival_trains_the_same_network_and_answers_its_speed_and_its_loss() -> None:
    settings = Settings(updates=3, warm_up=1, batch_size=8)
    train, test = pictures(64), pictures(40)
    torch.manual_seed(1)
    untrained = nn.functional.cross_entropy(TINY.build()(test.x.permute(0, 3, 1, 2)), test.y).item()
    for answer in (ddp(TINY, train, test, 2, settings), one_process(TINY, train, test, 1, settings)):
        assert answer.samples_per_s > 0
        assert 0 < abs(answer.loss - untrained) < 1


@pytest.mark.parametrize("delta_loss", [0.5, 0.6])
def test_delta_counts_only_where_its_loss_is_as_good(delta_loss: float) -> None:
    found: dict[str, list[Answer]] = {
        suite.DIRECT: [Answer(100, 0.5)],
        suite.DELTA: [Answer(200, delta_loss)],
        suite.DDP: [Answer(50, 0.5)],
        suite.ONE: [Answer(25, 0.5)],
    }
    over_ddp, over_one, *losses = suite._rows(suite.SIZES[0], found)
    faster = 4.0 if delta_loss == 0.5 else 2.0
    assert (over_ddp.value, over_one.value) == (faster, 2 * faster)
    assert [row.value for row in losses] == [0.5, delta_loss, 0.5, 0.5]


def test_the_sizes_are_what_they_say() -> None:
    for size in suite.SIZES:
        assert sum(param.numel() for param in size.network.build().parameters()) == size.parameters
    assert [size.parameters for size in suite.SIZES] == [one.parameters for one in MEASURED]
