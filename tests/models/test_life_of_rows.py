"""The life of a row of `hogwild.nn.NamedEmbedding`: tables that grow, ids that expire; against a dictionary, with
processes that claim meanwhile, and killed at any moment."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.errors import UsageError
from hogwild.kernels import row_claims
from hogwild.kernels.signatures import FREE, GONE, HEAD
from hogwild.nn import NamedEmbedding, cut_to_use
from tests.helpers.row_claims import faults_of, forked, killed, writing
from tests.models.test_named_embedding import table

DIM, MOST = 3, 48
KILLS, POPULATION = 40, 4000
STEPS = st.one_of(
    st.lists(st.integers(-3, 70), min_size=1, max_size=12, unique=True), st.sampled_from(["expire", "resume"])
)


def initial(ours: NamedEmbedding, row: int) -> Tensor:
    made = np.zeros((row + 1, ours.embedding_dim), np.float32)
    row_claims.draw(made, np.array([row]), ours.seed, ours.std, 0)
    return torch.from_numpy(made[row])


@dataclass
class Reference:
    """A dictionary from ids to rows of an ordinary table, in which no row has a second owner."""

    lasts: int
    rows: nn.Embedding = field(default_factory=lambda: nn.Embedding(2000, DIM, sparse=True))
    places: dict[int, int] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    used: int = 1
    lookups: int = 0

    def look_up(self, ids: list[int], ours: NamedEmbedding) -> Tensor:
        """Return the rows of ids, made where they are new; their initial values are those of the row they got."""
        for key in ids:
            if key not in self.places and len(self.places) < MOST:
                self.places[key] = self.used
                row = int(ours.rows_of(torch.tensor([key])))
                with torch.no_grad():
                    self.rows.weight[self.used] = initial(ours, row)
                self.used += 1
            if key in self.places:
                self.seen[key] = self.lookups
        self.lookups += 1
        return torch.tensor([self.places.get(key, 0) for key in ids])

    def expire(self) -> int:
        gone = [key for key in self.places if self.seen[key] < self.lookups - self.lasts]
        for key in gone:
            del self.places[key]
        return len(gone)


@pytest.mark.filterwarnings("ignore:NamedEmbedding", "ignore:Sparse invariant checks")
@settings(deadline=None)
@given(st.lists(STEPS, max_size=25), st.integers(1, MOST), st.integers(1, 6), st.sampled_from([0.0, 0.25]))
def test_training_equals_a_dictionary_to_the_bit(
    steps: list[list[int] | str], capacity: int, lasts: int, begins: float
) -> None:
    make = partial(NamedEmbedding, DIM, capacity, max_capacity=MOST, expire_after=lasts)
    torch.manual_seed(1)
    ours, other = make(), Reference(lasts)
    rule = partial(torch.optim.Adagrad, lr=0.5, initial_accumulator_value=begins)
    optimizers = [rule([one.weight]) for one in (ours, other.rows)]
    other.rows.weight.data[0] = ours.weight[0].detach()
    for step in steps:
        if step == "expire":
            assert ours.expire(optimizers[0]) == other.expire()
        elif step == "resume":
            saved = ours.state_dict(), optimizers[0].state_dict()
            torch.manual_seed(1)  # the seed of the job
            ours = make()
            ours.load_state_dict(saved[0])
            optimizers[0] = rule([ours.weight])
            optimizers[0].load_state_dict(saved[1])
        else:
            assert isinstance(step, list)
            pulls = torch.randn(len(step), DIM)
            found = ours(torch.tensor(step))
            theirs = other.rows(other.look_up(step, ours))
            assert torch.equal(found, theirs)
            for rows, optimizer in zip((found, theirs), optimizers, strict=True):
                optimizer.zero_grad()
                ((rows - pulls) ** 2).sum().backward()
                optimizer.step()
    ids, vectors = ours.named()
    assert sorted(ids.tolist()) == sorted(other.places)
    assert torch.equal(vectors, other.rows.weight.detach()[[other.places[key] for key in ids.tolist()]])
    assert torch.equal(ours.weight[0], other.rows.weight[0])


@given(st.lists(st.lists(st.integers(0, 60), max_size=20), max_size=6), st.integers(0, 2**32))
@settings(deadline=None)
def test_every_search_finds_its_key_after_others_were_given_back(taken: list[list[int]], seed: int) -> None:
    """And a place stays GONE only where a search needs it: with all keys given back, all places are FREE."""
    ours, dice = table(1, 20, max_capacity=64), np.random.default_rng(seed)
    ours.grow()
    for ids in taken:
        ours.rows_of(torch.tensor(ids, dtype=torch.int64) * 7919, claim=True)
        arrays = ours._arrays()
        places = np.flatnonzero((arrays.keys > GONE) & (dice.random(len(arrays.keys)) < 0.5))
        row_claims.give_back(arrays.keys, places, ours.first, ours.max_capacity)
        kept, _ = ours.named()
        assert torch.equal(ours.keys[ours.rows_of(kept) - HEAD], kept) and len(kept.unique()) == len(kept)
    keys = ours._arrays().keys
    row_claims.give_back(keys, np.flatnonzero(keys > GONE), ours.first, ours.max_capacity)
    assert (keys == FREE).all()


def test_a_table_grows_when_most_rows_are_taken_and_moves_nothing() -> None:
    ours = table(2, 100, max_capacity=400)
    ours(torch.arange(69))
    before = ours.rows_of(torch.arange(69))
    assert ours.capacity == 100
    ours(torch.arange(75))
    assert ours.capacity == 200 and torch.equal(ours.rows_of(torch.arange(69)), before)
    with pytest.warns(RuntimeWarning, match="all 400 rows are taken"):
        ours(torch.arange(500))
    assert (ours.capacity, ours.taken) == (400, 400) and len(ours.state_dict()["weight"]) == 402


def test_ids_that_found_no_room_before_a_table_grew_are_no_sign_of_a_full_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process lets the table grow between the lookup and the look at its size; a warning would be an error."""
    ours, find = table(2, 4, max_capacity=8).share_memory(), row_claims.find
    ours.prepare(8)

    def find_and_grow(*given: object) -> bool:
        is_whole: bool = find(*given)
        ours.show(4, 8)
        return is_whole

    monkeypatch.setattr(row_claims, "find", find_and_grow)
    assert (ours.rows_of(torch.arange(10), claim=True) == 0).sum() == 6 and ours.capacity == 8


def test_rows_that_a_table_has_not_grown_to_are_neither_saved_nor_copied() -> None:
    ours = table(2, 10, max_capacity=10**8)
    assert ours.state_dict()["weight"].untyped_storage().nbytes() == (10 + HEAD) * 8
    with cut_to_use(ours):
        optimizer = torch.optim.Adagrad([ours.weight])
    assert optimizer.state[ours.weight]["sum"].shape == (12, 2) and len(ours.weight) == 10**8 + HEAD


def test_counts_are_kept_when_a_table_grows() -> None:
    ours = table(2, 2000, max_capacity=9000, min_count=3)
    for _ in range(2):
        ours.rows_of(torch.arange(30), claim=True)
    while ours.grow():
        assert ours.taken == 0
    assert ours.rows_of(torch.arange(30), claim=True).min() >= HEAD, "seen for the third time"


def test_counts_begin_anew_when_ids_had_time_to_expire() -> None:
    ours = table(2, 50, min_count=2, expire_after=5)
    ours.rows_of(torch.tensor([1]), claim=True)
    for _ in range(5):
        ours.rows_of(torch.tensor([9]), claim=True)
    ours.expire()
    assert ours.rows_of(torch.tensor([1]), claim=True) == 0, "seen once in this while"


def test_the_ids_not_seen_for_longest_make_room_in_a_full_table() -> None:
    ours = table(2, 50, max_capacity=100, when_full="oldest")
    for turn in range(100):
        for _ in range(64):  # the unit of the clock
            ours.rows_of(torch.tensor([turn, 0]), claim=True)
        if turn == 90:
            assert ours.expire() == 0, "not full"
    assert ours.taken == 100 and ours.expire() == 10
    assert {*ours.named()[0].tolist()} == {0, *range(11, 100)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"when_full": "newest"}, "when_full must be default or oldest, got 'newest'"),
        ({"max_capacity": 9}, "max_capacity must be a whole number >= 10, got 9"),
        ({"max_capacity": 20, "sparse": False}, "needs sparse gradients"),
        ({"expire_after": 0}, "expire_after must be a whole number >= 1, got 0"),
        ({"expire_after": 1.5}, "expire_after must be a whole number >= 1, got 1.5"),
    ],
)
def test_a_wrong_argument_is_an_error(given: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        NamedEmbedding(2, 10, **given)  # type: ignore[arg-type]


# ---- several processes ---------------------------------------------------------------------------------------------


def check(ours: NamedEmbedding) -> None:
    assert faults_of(ours, POPULATION) == {"lost": 0, "doubled": 0, "mixed": 0}


@pytest.fixture
def alive() -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    killed(pids)


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until


@pytest.mark.processes
def test_a_table_grows_while_processes_claim(alive: list[int]) -> None:
    ours = table(DIM, 50, max_capacity=10_000).share_memory()
    ours.rows_of(torch.tensor([0]))  # compiles
    alive += [forked(partial(writing, ours, POPULATION, seed)) for seed in range(3)]
    for size in ours.sizes[:-1]:
        wait_for(lambda: ours.taken >= min(0.7 * ours.capacity, 0.9 * POPULATION))
        assert ours.capacity == size, "only this process grows it"
        assert ours.grow()
    wait_for(lambda: ours.taken == POPULATION - 1)
    killed(alive)
    check(ours)


@pytest.mark.processes
def test_kills_at_any_moment_lose_double_and_mix_nothing(alive: list[int]) -> None:
    """Of processes that claim, of one that grows the table, and of one that gives back rows, while nobody claims."""
    ours = table(DIM, 100, max_capacity=1600, expire_after=40).share_memory()
    ours.rows_of(torch.tensor([0]))
    dice = np.random.default_rng(1)
    for kill in range(KILLS):
        alive += [forked(partial(writing, ours, POPULATION, 10 * kill + n)) for n in range(2)]
        before = ours.capacity
        if kill % 3 == 0:
            alive.append(forked(ours.grow))
        lookups = ours.lookups + int(dice.integers(0, 100))
        wait_for(lambda: ours.lookups >= lookups)  # noqa: B023
        if kill % 9 == 0:  # a growth that is not killed
            wait_for(lambda: ours.capacity > before or before == ours.max_capacity)  # noqa: B023
        killed(alive)
        check(ours)
        pid, spent = forked(ours.expire), time.monotonic() + dice.exponential(0.002)
        while time.monotonic() < spent:
            pass
        alive.append(pid)
        killed(alive)
        check(ours)
    assert ours.capacity > 100 and ours.taken > 20
    ours.expire()
    check(ours)
