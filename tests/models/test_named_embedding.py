"""`hogwild.nn.NamedEmbedding`: against a dictionary; claimed by processes at once, killed at any moment."""

import copy
import os
import pickle
import signal
import time
from collections import Counter
from functools import partial
from typing import Any
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.errors import ModelError, UsageError
from hogwild.kernels.row_claims import find
from hogwild.kernels.signatures import FREE, HEAD
from hogwild.nn import NamedEmbedding
from tests.helpers.row_claims import forked

IDS = st.lists(st.one_of(st.integers(-5, 5), st.integers(-(2**63) + 2, 2**63 - 1)), max_size=30)
PROCESSES, KILLS, POPULATION = 3, 60, 5000
TURNS, PLACES = 20_000, 16
NOTHING, LIFE = np.zeros(0, np.int64), np.zeros(4, np.int64)
IDS_OF = np.arange(1, 5), np.arange(101, 105)  # claimed by each of two processes


def table(*given: int, **more: Any) -> NamedEmbedding:
    torch.manual_seed(1)
    return NamedEmbedding(*given, **more)


@pytest.mark.filterwarnings("ignore:NamedEmbedding")
@given(st.lists(IDS.filter(bool), max_size=8), st.integers(1, 40))
def test_training_equals_a_dictionary_of_rows(batches: list[list[int]], capacity: int) -> None:
    ours = table(3, capacity)
    rule = torch.optim.SGD([ours.weight], lr=0.5)
    initial, default = ours.weight.detach().clone(), ours.weight[0].detach().clone()
    rows = dict[int, Tensor]()
    for batch in map(torch.tensor, batches):
        rule.zero_grad()
        (ours(batch) ** 2).sum().backward()
        rule.step()
        for key in dict.fromkeys(batch.tolist()):
            if key not in rows and len(rows) < capacity:
                rows[key] = initial[int(ours.rows_of(torch.tensor([key])))]
        steps = Counter(key if key in rows else None for key in batch.tolist())
        for key, times in steps.items():
            old = default if key is None else rows[key]
            new = old - 0.5 * times * 2 * old
            default, rows = (new, rows) if key is None else (default, {**rows, key: new})
    ids, vectors = ours.named()
    assert sorted(ids.tolist()) == sorted(rows)
    wanted = torch.stack([*(rows[key] for key in ids.tolist()), default])
    assert torch.allclose(torch.cat([vectors, ours.weight[:1].detach()]), wanted, rtol=1e-4, equal_nan=True)


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(2, 4))
def test_no_id_waits_for_its_row_longer_than_asked(ids: list[int], least: int) -> None:
    """The sketch may count an id too often, never too rarely."""
    ours, seen = table(1, 31, min_count=least), Counter[int]()
    for key in ids:
        seen[key] += 1
        row = int(ours.rows_of(torch.tensor([key]), claim=True))
        assert row or seen[key] < least
        assert not row or int(ours.keys[row - HEAD]) == key


def test_an_id_that_is_seen_too_rarely_has_no_row() -> None:
    ours = table(2, 1000, min_count=3)
    rows = [int(ours.rows_of(torch.tensor([42]), claim=True)) for _ in range(4)]
    assert rows[:2] == [0, 0] and rows[2] == rows[3] >= HEAD


def test_nothing_is_claimed_outside_of_training() -> None:
    ours = table(2, 5)
    ours(torch.tensor([7]))
    ours.eval()
    known, unknown = ours(torch.tensor([7, 8]))
    assert ours.taken == 1 and torch.equal(unknown, ours.weight[0]) and not torch.equal(known, unknown)


def test_a_table_says_once_that_most_of_its_rows_are_taken() -> None:
    """By whomever: the first half is claimed through another module with the same tensors, as another process has."""
    ours, beside = table(2, 200), table(2, 200)
    beside.weight, beside.keys, beside.life = ours.weight, ours.keys, ours.life
    assert not claimed_by(beside, range(100))
    told = [claimed_by(ours, range(begin, begin + 10)) for begin in range(100, 200, 10)]
    assert [place for place, one in enumerate(told) if one] == [3]
    assert "70% of 200 rows are taken" in told[3][0] and "model.init_from" in told[3][0]


def claimed_by(ours: NamedEmbedding, ids: range) -> list[str]:
    """Return the warnings of a claim in `ours`."""
    with catch_warnings(record=True) as told:
        simplefilter("always")
        ours.rows_of(torch.tensor(ids), claim=True)
    return [str(one.message) for one in told]


def test_a_full_table_says_so_once_and_uses_the_default_row() -> None:
    ours = table(2, 3)
    with pytest.warns(RuntimeWarning, match="all 3 rows are taken") as told:
        found = [ours.rows_of(torch.arange(10), claim=True).tolist() for _ in range(2)]
    assert len(told) == 1 and found[0] == found[1] and sorted(set(found[0])) == [0, 2, 3, 4] and ours.taken == 3


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (torch.tensor([1.0]), "ids must be int64, got float32"),
        (torch.tensor([1], dtype=torch.int32), "ids must be int64, got int32"),
        (torch.tensor([1, FREE]), "are reserved"),
        (torch.empty(1, dtype=torch.int64, device="meta"), "memory of the host, got meta"),
    ],
)
def test_a_wrong_id_is_an_error(ids: Tensor, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        table(2, 3)(ids)


@pytest.mark.parametrize("name", ["dim", "capacity", "min_count"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "5"])
def test_a_wrong_argument_is_an_error(name: str, value: object) -> None:
    given = {"dim": 2, "capacity": 3, name: value}
    with pytest.raises(UsageError, match=f"{name} must be a whole number >= 1, got {value!r}"):
        NamedEmbedding(**given)  # type: ignore[arg-type]


def learnt() -> NamedEmbedding:
    ours = table(4, 50)
    ours(torch.arange(1, 31) * 10**12)
    return ours


@pytest.mark.parametrize("capacity", [30, 50, 1000])
def test_a_saved_table_is_loaded_into_any_capacity(capacity: int) -> None:
    old, new = learnt(), table(4, capacity)
    new.load_state_dict(old.state_dict())
    ids, _ = old.named()
    assert torch.equal(new.eval()(ids), old.eval()(ids)) and new.taken == old.taken == 30
    assert torch.equal(new.weight[0], old.weight[0])


@pytest.mark.parametrize(
    ("other", "words"),
    [((4, 29), "30 saved ids do not fit into a capacity of 29"), ((3, 60), r"are \(52, 4\), not \(52, 3\)")],
)
def test_a_table_that_does_not_fit_is_refused(other: tuple[int, int], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        nn.Sequential(table(*other)).load_state_dict(nn.Sequential(learnt()).state_dict())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_has_a_table_of_its_own(copied) -> None:  # type: ignore[no-untyped-def]
    ours = learnt()
    other = copied(ours)
    other(torch.tensor([5]))
    assert (ours.taken, other.taken) == (30, 31)
    assert abs(len(pickle.dumps(ours)) - len(pickle.dumps(table(4, 50)))) < 50, "its arrays, too"


def claim_beside(keys: np.ndarray, found: np.ndarray, begun: np.ndarray, one: int) -> None:
    """Claim ids in table after table, each in the moment in which the other process does."""
    ids, table, counts = IDS_OF[one], np.zeros((PLACES + HEAD, 1), np.float32), np.zeros(0, np.int32)
    tally = np.zeros(2, np.int64)
    for turn in range(TURNS):
        begun[one] = turn + 1
        while begun[1 - one] <= turn:
            pass
        find(keys[turn], ids, found[one, turn], table, counts, 1, NOTHING, LIFE, 1, PLACES, PLACES, 1, tally)


def claiming(ours: NamedEmbedding, seed: int) -> None:
    """Claim ids at random for ever, as fast as possible."""
    draws = np.random.default_rng(seed)
    while True:
        ours.rows_of(torch.from_numpy(draws.integers(1, POPULATION, 256)), claim=True)


@pytest.fixture
def shared() -> NamedEmbedding:
    ours = table(1, 2 * POPULATION).share_memory()
    ours.rows_of(torch.tensor([0]), claim=True)  # compiles
    return ours


@pytest.mark.processes
def test_two_that_want_the_same_free_row_at_once_get_one_each() -> None:
    shapes = (TURNS, PLACES), (2, TURNS, len(IDS_OF[0])), (2,)
    keys, found, begun = (torch.full(shape, FREE).share_memory_().numpy() for shape in shapes)
    nothing = np.zeros((PLACES + HEAD, 1), np.float32), np.zeros(0, np.int32)
    rule = (1, NOTHING, LIFE, 1, PLACES, PLACES, 0)
    find(keys[0].copy(), IDS_OF[0], found[0, 0], *nothing, *rule, np.zeros(2, np.int64))
    children = [forked(partial(claim_beside, keys, found, begun, one)) for one in (0, 1)]
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0]
    for one in (0, 1):
        assert (np.take_along_axis(keys, found[one] - HEAD, axis=1) == IDS_OF[one]).all(), "two ids, one row"


@pytest.mark.processes
def test_processes_that_are_killed_while_they_claim_leave_each_id_with_one_row(shared: NamedEmbedding) -> None:
    dice, alive = np.random.default_rng(1), dict[int, int]()
    for kill in range(KILLS):
        while len(alive) < PROCESSES:
            alive[forked(partial(claiming, shared, 1000 * kill + len(alive)))] = kill
        before, until = shared.taken, time.monotonic() + 30
        wanted = min(before + int(dice.integers(0, 30)), POPULATION)
        while shared.taken < wanted:
            assert time.monotonic() < until, "nobody claims"
        victim = int(dice.choice([*alive]))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        del alive[victim]
        taken = shared.keys[shared.keys != FREE].tolist()
        assert len(taken) == len(set(taken)), "an id with two rows"
        assert set(taken) <= set(range(POPULATION)), "a key that nobody gave"
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    ids, _ = shared.named()
    assert torch.equal(shared.keys[shared.rows_of(ids) - HEAD], ids), "a row that a search does not reach"
    assert shared.taken > 100
