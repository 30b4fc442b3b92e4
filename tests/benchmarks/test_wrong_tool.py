"""The program that measures when another tool is better (`benchmarks/wrong_tool.py`)."""

import pytest
import torch
from torch import nn

from benchmarks import wrong_tool as suite
from benchmarks.baselines.dense_rivals import Answer, Sized, ddp, one_process
from benchmarks.baselines.networks import Settings, Shared

# ---- the program that measures it -----------------------------------------------------------------------------------

TINY = Sized("MLP", (), (8,))


def pictures(samples: int) -> Shared:
    random = torch.Generator().manual_seed(0)
    return Shared.of(torch.rand(samples, 1, 28, 28, generator=random), torch.randint(10, (samples,), generator=random))


@pytest.mark.processes
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
