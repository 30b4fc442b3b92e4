"""Models that carry a state: which ones they are, what is kept from batch to batch of a lane, and what becomes of it
when a worker dies, a batch is skipped, or a run goes on after a stop. One worker equals the plain loop of truncated
back-propagation bit for bit."""

import os
import signal
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

import hogwild
from hogwild.errors import BuildError, ConfigError, HogwildError, ModelError
from hogwild.feeds.sample_order import LaneOrder
from hogwild.models import CharRnn
from hogwild.planning.cpu_plan import plan_here
from hogwild.scheduling.batch_plan import batch_seed
from hogwild.training.model_steps import LaneState, detached, forward_of, takes_state
from tests.helpers.jobs import read_events
from tests.shared_model import one_thread  # noqa: F401 (a fixture for every test here)

pytestmark = pytest.mark.slow

WIDTH, COLUMNS, STEPS = 4, 3, 10
QUIET = {"log": {"tensorboard": False, "progress": False}, "checkpoint": {"every_s": None}, "seed": 11}


class Chain(nn.Module):
    """Knows from its state which row came before, and refuses any other. Rows are (number, …), a target each. `kills`:
    the row at which the process dies, once; `nans`: the row that makes the loss NaN."""

    def __init__(self, kills: int = -1, nans: int = -1, mark: str = "") -> None:
        super().__init__()
        self.out = nn.Linear(1, 1)
        self.kills, self.nans, self.mark = kills, nans, mark

    def forward(self, x: Tensor, state: dict[str, Any] | None = None) -> tuple[Tensor, dict[str, Any]]:
        """x (B, 1) float -> (B, 1) and the rows seen last."""
        if state is not None:
            assert not state["grown"][1].requires_grad, "the graph of the batch before is still there"
            assert torch.equal(x, state["row"] + 1), f"{x[:, 0].tolist()} after {state['row'][:, 0].tolist()}"
        if self.training and self.kills in x and not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        output = self.out(x / 100)
        if self.training and self.nans in x:
            output = output * float("nan")
        return output, {"row": x.clone(), "grown": [1, output.sum()]}


def rows(count: int = WIDTH * COLUMNS * STEPS) -> TensorDataset:
    x = torch.arange(float(count))[:, None]
    return TensorDataset(x, torch.zeros(count, 1))


def trained(model: nn.Module, folder: Path, data: TensorDataset | None = None, **settings: Any) -> Any:
    given = {"lanes": WIDTH, "batch_size": COLUMNS, "procs": 0, **QUIET, **settings}
    resume = given.pop("resume", None)
    where = {"resume": resume} if resume else {"run_dir": folder}
    rule = optim.SGD(model.parameters(), lr=0.01)
    return hogwild.train(model, data or rows(), nn.MSELoss(), rule, **where, **given)


# ---- which models, and what they answer ----------------------------------------------------------------------------


class Agent(nn.Module):
    def forward(self, state: Tensor) -> Tensor:
        return state


class Unpaired(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(1, 1)

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        return self.out(x)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_an_argument_state_with_a_default_makes_a_model_recurrent() -> None:
    assert takes_state(Chain()) and takes_state(CharRnn(5))
    assert takes_state(torch.jit.script(CharRnn(5, cell="custom").recurrent))
    assert not takes_state(Agent()), "a state without a default is an input"
    assert not takes_state(nn.Linear(2, 2)) and not takes_state(torch.jit.script(nn.Linear(2, 2)))


def test_a_model_without_state_is_called_as_it_is_and_that_of_another_is_dropped() -> None:
    plain, model = nn.Linear(2, 2), CharRnn(5, 3, 4)
    assert forward_of(plain) is plain
    x = torch.tensor([[1, 2, 3]])
    assert torch.equal(forward_of(model)(x), model(x)[0])
    with pytest.raises(ModelError, match=r"must return a pair \(output, state\), but returned a Tensor"):
        forward_of(Unpaired())(torch.zeros(1, 1))


def test_a_state_may_be_nested_however_deep() -> None:
    Pair = namedtuple("Pair", ["h", "c"])
    grown = torch.ones(2, requires_grad=True) * 2
    found = detached({"a": (grown, [grown, None]), "b": Pair(grown, 3)})
    assert isinstance(found["a"], tuple) and isinstance(found["a"][1], list) and found["a"][1][1] is None
    assert type(found["b"]) is Pair and found["b"].c == 3
    assert not any(one.requires_grad for one in (found["a"][0], found["a"][1][0], found["b"].h))
    assert torch.equal(found["b"].h, grown)


def test_a_lane_goes_on_only_where_the_batch_before_was_the_last_one_computed() -> None:
    model = Chain()
    state = LaneState(model, steps=4)
    restarts = []
    for epoch, batch, row in [(0, 0, 0), (0, 1, 1), (0, 3, 9), (0, 4, 20), (1, 5, 7), (1, 6, 8)]:
        restarts.append(state.start_batch(epoch, batch))
        state(torch.tensor([[float(row)]]))
    assert restarts == [False, False, True, False, True, False]
    state.drop()
    assert state.start_batch(1, 7), "what ended in NaN is not passed on"


# ---- whole jobs ----------------------------------------------------------------------------------------------------


def plain_loop(model: CharRnn, x: Tensor, y: Tensor, epochs: int) -> None:
    """Truncated back-propagation through time as anybody would write it, lane after lane."""
    rule, order = optim.Adam(model.parameters(), lr=0.01, fused=False), LaneOrder(WIDTH, COLUMNS, STEPS)
    for epoch in range(epochs):
        for lane in range(WIDTH):
            state: Any = None
            for t in range(STEPS):
                first = (lane * STEPS + t) * COLUMNS
                chosen = order.indices(epoch, first, first + COLUMNS)
                torch.default_generator.manual_seed(batch_seed(11, epoch, first))
                output, state = model(x[chosen], state)
                state = detached(state)
                rule.zero_grad()
                nn.CrossEntropyLoss()(output, y[chosen]).backward()
                rule.step()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("cell", "procs", "exchange"),
    [("lstm", 0, "direct"), ("gru", 0, "delta"), ("custom", 0, "direct"), ("lstm", 1, "direct")],
)
def test_one_worker_is_the_plain_loop_bit_for_bit(cell: str, procs: int, exchange: str, tmp_path: Path) -> None:
    text = torch.randint(7, (WIDTH * COLUMNS * STEPS * 5 + 1,), generator=torch.Generator().manual_seed(2))
    x, y = text[:-1].view(-1, 5), text[1:].view(-1, 5)

    def make() -> CharRnn:
        torch.manual_seed(5)
        return CharRnn(7, 4, 6, layers=2, cell=cell, dropout=0.2)

    ours, theirs = make(), make()
    plain_loop(theirs, x, y, epochs=2)
    rule = optim.Adam(ours.parameters(), lr=0.01, fused=False)
    settings = {"lanes": WIDTH, "batch_size": COLUMNS, "epochs": 2, "procs": procs, "exchange": exchange, **QUIET}
    result = hogwild.train(ours, TensorDataset(x, y), nn.CrossEntropyLoss(), rule, run_dir=tmp_path / "run", **settings)
    assert result.lane_restarts == 0 and result.updates == 2 * WIDTH * STEPS
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other), name


def test_a_recurrent_model_without_lanes_begins_every_batch_from_zero_state(tmp_path: Path) -> None:
    model = Chain()
    result = trained(model, tmp_path / "run", lanes=None, shuffle="full", val=rows(20))
    assert result.leases["done"] == WIDTH * STEPS and result.lane_restarts is None and "loss" in result.metrics


def test_evaluations_read_windows_from_zero_state_in_any_order(tmp_path: Path) -> None:
    result = trained(Chain(), tmp_path / "run", val=rows(20), epochs=2)
    assert result.lane_restarts == 0 and "loss" in result.metrics


def test_a_skipped_batch_drops_the_state_of_its_lane(tmp_path: Path) -> None:
    result = trained(Chain(nans=13), tmp_path / "run")
    assert result.leases["skipped"] == 1 and result.lane_restarts == 1


def test_a_skipped_last_batch_of_a_lane_costs_no_state(tmp_path: Path) -> None:
    assert trained(Chain(nans=STEPS - 1), tmp_path / "run").lane_restarts == 0


def test_a_resumed_run_restarts_each_lane_it_had_begun_once(tmp_path: Path) -> None:
    model = Chain()
    first = trained(model, tmp_path / "run", max_updates=6)
    assert first.updates == 6 and first.lane_restarts == 0
    result = trained(model, tmp_path / "run", resume=tmp_path / "run")
    assert result.leases["done"] == WIDTH * STEPS and result.lane_restarts == 1


@pytest.mark.whole
@pytest.mark.processes
@pytest.mark.parametrize("exchange", ["direct", "delta"])
def test_a_worker_killed_in_the_middle_of_a_lane_costs_its_state_and_nothing_else(
    exchange: str, tmp_path: Path
) -> None:
    model = Chain(kills=14, mark=str(tmp_path / "killed"))
    settings = {"procs": 2, "exchange": exchange, "sync_every": 3, "epochs": 2}
    result = trained(model, tmp_path / "run", **settings)
    leases = result.leases
    assert leases["done"] == leases["total"] == 2 * WIDTH * STEPS and result.restarts == 1
    assert result.lane_restarts == 1, "batch 4 of its lane: of delta, batches 3 and 4 were not committed"
    (event,) = read_events(tmp_path / "run", "lane-restarts")
    assert event["fresh"] == event["lane_restarts"] == 1


# ---- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"shuffle": "full"}, "data.shuffle: must be auto or none with data.lanes"),
        ({"accumulate": 2}, "train.accumulate: must be 1 with data.lanes"),
        ({"procs": 5}, r"data.lanes: must be >= train.procs \(5\)"),
        ({"lanes": 0}, "data.lanes: must be >= 1"),
    ],
    ids=["shuffled", "accumulated", "more workers than lanes", "none"],
)
def test_what_lanes_cannot_be_combined_with(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        trained(Chain(), tmp_path / "run", **settings)


@pytest.mark.parametrize(
    ("model", "data", "settings", "words"),
    [
        (nn.Linear(1, 1), rows(), {}, "data.lanes: Linear.forward has no argument `state`"),
        (Unpaired(), rows(), {}, r"Unpaired.forward has an argument `state` .* returned a Tensor"),
        (
            Chain(),
            rows(11),
            {},
            r"4 lanes of 3 columns \(data.batch_size\) need at least 12 rows, but data.train has 11",
        ),
        (Chain(), rows(), {"val": {"fraction": 0.5}}, "data.val.* separate data set"),
    ],
    ids=["no state", "no pair", "few rows", "a part drawn at random"],
)
def test_what_cannot_be_read_in_lanes(
    model: nn.Module, data: TensorDataset, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(HogwildError, match=words) as found:
        trained(model, tmp_path / "run", data, **settings)
    assert isinstance(found.value, BuildError | ConfigError)


@pytest.mark.processes
def test_more_workers_than_lanes_are_refused_where_their_number_is_the_machines(tmp_path: Path) -> None:
    cores = plan_here("auto", "auto", pin=False).procs
    if cores == 1:
        pytest.skip("this machine has one usable core: as many workers as one lane")
    with pytest.raises(HogwildError, match=rf"data.lanes is 1, but there are {cores} workers"):
        trained(Chain(), tmp_path / "run", lanes=1, procs="auto")
