"""Epochs as samplers draw them: the same whenever they are drawn, divided as torch divides them, and refused where they
cannot be trained on."""

from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

import hogwild
from hogwild.api import without_loaders
from hogwild.config.load import job_from_mapping
from hogwild.config.schema import Component
from hogwild.errors import ConfigError, HogwildError
from hogwild.feeds.drawn_order import DrawnEpoch, DrawnOrder, allocate_places, write_epoch
from hogwild.feeds.row_reader import InTurn
from hogwild.job import sampling as module
from hogwild.job.data import sources_of
from hogwild.job.parts import Functions
from hogwild.job.sampling import Sampling, build_sampler
from hogwild.planning.device_placement import planned
from hogwild.planning.job_plan import _check_cluster

SAMPLES = 40
DATA = TensorDataset(torch.arange(SAMPLES), torch.arange(SAMPLES))


def drawing(sampler: Any, **options: Any) -> Sampling:
    made = Sampling(sampler, SAMPLES, 7, **{"batch_size": 8, **options})
    made.begin(DATA)
    return made


class Counted(Sampler[int]):
    """Draws from numpy's own generator and counts its epochs: only who has drawn all before draws the next."""

    def __init__(self) -> None:
        self.dice, self.epoch = np.random.default_rng(3), 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter([*self.dice.integers(0, SAMPLES, 10 + self.epoch).tolist()])


class CountedAnyhow:
    """The same, but no Sampler: any iterable will do."""

    def __init__(self) -> None:
        self.counted = Counted()

    def __iter__(self) -> Iterator[int]:
        return iter(self.counted)


class Told(Sampler[int]):
    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter([self.epoch] * 9)


class Wrapped(Sampler[list[int]]):
    """A sampler of batches around another one, with a generator that belongs to both."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.inner = RandomSampler(DATA, generator=self.generator)

    def __iter__(self) -> Iterator[Any]:
        rows = torch.tensor([*self.inner])
        yield from rows[:39].split(int(torch.randint(3, 9, (), generator=self.generator)))


SAMPLERS: dict[str, Callable[[], Any]] = {
    "weighted": lambda: WeightedRandomSampler(torch.rand(SAMPLES, generator=torch.Generator().manual_seed(1)), 55),
    "of numpy": lambda: WeightedRandomSampler(np.linspace(0.1, 1, SAMPLES).tolist(), 30, replacement=False),
    "a subset": lambda: SubsetRandomSampler(range(5, 25)),
    "with a generator": lambda: RandomSampler(DATA, replacement=True, generator=torch.Generator().manual_seed(9)),
    "one that counts": Counted,
    "told its epoch": Told,
    "torch's around one that counts": lambda: BatchSampler(CountedAnyhow(), 4, False),
    "batches": Wrapped,
    "a list": lambda: [3, 3, 1, 39],
    "a list of batches": lambda: [[3, 3], (1, 39, 2), range(4)],
    "an array": lambda: np.array([4, 4, 0]),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_epoch_is_the_same_whenever_it_is_drawn(name: str) -> None:
    given = SAMPLERS[name]()
    one, other = drawing(given), drawing(SAMPLERS[name]())
    torch.manual_seed(99)
    wanted = [one.draw(epoch).digest for epoch in range(4)]
    torch.rand(5)
    assert [other.draw(epoch).digest for epoch in (3, 0, 2, 2, 1)] == [wanted[epoch] for epoch in (3, 0, 2, 2, 1)]
    assert one.first.digest == wanted[0]
    if "a" not in name.split()[:1] and "an" not in name.split()[:1]:
        assert len({*wanted}) == 4
    assert drawing(given).first.digest == wanted[0], "the caller's own is as it was"


def test_the_random_state_of_the_process_is_kept() -> None:
    torch.manual_seed(5)
    before = torch.rand(1)
    torch.manual_seed(5)
    drawing(SAMPLERS["weighted"]()).draw(1)
    assert torch.equal(torch.rand(1), before)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("entries", [8, 9, 15, 16, 17, 40])
def test_entries_are_divided_into_batches_as_a_data_loader_divides_them(entries: int, drop_last: bool) -> None:
    numbers = [(7 * n) % SAMPLES for n in range(entries)]
    found = drawing(numbers, drop_last=drop_last).draw(3)
    wanted = [*BatchSampler(numbers, 8, drop_last)]
    assert [part.tolist() for part in np.split(found.rows, found.bounds[1:-1])] == wanted


def test_a_single_last_entry_joins_the_batch_before_where_the_model_needs_two() -> None:
    assert np.diff(drawing([*range(17)], merge_single=True).first.bounds).tolist() == [8, 9]


def test_the_plan_is_that_of_the_first_epoch_with_room_for_others() -> None:
    plan = drawing([[1, 2, 3, 4], [5], [6, 7]]).plan
    assert (plan.samples, plan.batches, plan.sizes, plan.largest) == (7, 3, (1, 2, 4), 6)
    assert drawing([*range(12)]).plan.largest == 8
    assert drawing([*range(3)]).plan.largest == 8, "a later epoch may have more entries"


class Raises(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("no weights today")


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return cycle(range(SAMPLES))


REFUSED: dict[str, tuple[Any, str]] = {
    "past the end": ([1, 2, 40], r"epoch 0: list drew 40 as entry 2; entries are numbers of samples, from 0 to 39"),
    "negative": ([1, -1], "drew -1 as entry 1"),
    "huge": ([2**70], "drew 1180591620717411303424 as entry 0"),
    "a fraction": ([1.0], "drew 1.0, a float, as entry 0"),
    "text": (["é" * 10_000], r"drew 'é{59}, a str, as entry 0"),
    "a mask": (torch.ones(SAMPLES, dtype=torch.bool), r"drew tensor\(True\), a Tensor, as entry 0"),
    "nothing": ([], "drew no entry"),
    "an empty batch": ([[1], []], "drew batch 1 without an entry"),
    "a batch, then not": ([[1], 2], "drew a int as batch 1, but batch 0 is a list"),
    "an entry, then not": ([1, [2]], r"drew \[2\], a list, as entry 1"),
    "a wrong one in a batch": ([[1], [2, 99]], "drew 99 as entry 2"),
    "an error": (Raises(), r"Raises raised when it drew epoch 0: RuntimeError: no weights today \(.*test_sampling.py:"),
    "endless": (Endless(), "has drawn .* entries of 40 samples, and goes on; an epoch must end"),
    "no sampler": (7, "'int' object is not iterable"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_on_is_refused_with_its_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENDLESS", 1000)
    sampler, words = REFUSED[name]
    with pytest.raises(HogwildError, match=words) as refused:
        drawing(sampler)
    assert refused.value.code == "data/sampler"


def test_what_can_be_read_only_once_is_refused_in_its_second_epoch() -> None:
    once = drawing(iter([1, 2, 3]))
    with pytest.raises(HogwildError, match="epoch 1: list_iterator drew no entry, but some for the first one"):
        once.draw(1)


def test_no_full_batch_is_an_error_in_any_epoch() -> None:
    with pytest.raises(HogwildError, match=r"drew 3 entries, fewer than data\.batch_size 8"):
        drawing([1, 2, 3], drop_last=True)


# ---- in shared memory


def test_what_is_written_is_read_also_where_an_epoch_is_longer_than_its_place_was() -> None:
    places = [*allocate_places().values()]
    order = DrawnOrder(places)
    epochs = [np.arange(entries) % SAMPLES for entries in (3, 50_000, 7, 400_000)]
    for number, rows in enumerate(epochs):
        write_epoch(places, number, DrawnEpoch(rows, np.array([0, 2, len(rows)])))
        assert order.indices(number, 0, 1).tolist() == [0, 1]
        assert np.array_equal(order.indices(number, 1, 2), rows[2:])
        if number:
            assert len(order.indices(number - 1, 0, 2)) == len(epochs[number - 1]), "the one before is still there"
    with pytest.raises(HogwildError, match="the entries of epoch 1 are no longer there"):
        order.indices(1, 0, 1)


# ---- a loader, taken apart

WEIGHTED = WeightedRandomSampler([1.0] * SAMPLES, 50)
OWN_BATCHES = Wrapped()


def weighted(dataset: Any, entries: int = 5) -> Sampler[int]:
    return WeightedRandomSampler([1.0] * len(dataset), entries)


def test_a_sampler_may_be_made_by_a_function_or_a_class_of_the_caller() -> None:
    for given, entries in ((weighted, 5), ({"class_path": weighted, "init_args": {"entries": 9}}, 9)):
        settings: dict[str, Any] = {"data": {"sampler": given}}
        *_, taken, _ = without_loaders(DATA, None, settings)
        assert settings["data"]["sampler"]["class_path"].endswith(".weighted")
        assert len([*build_sampler(taken["sampler"], DATA)]) == entries
    *_, taken, _ = without_loaders(DATA, None, {"sampler": SequentialSampler})
    assert [*build_sampler(taken["sampler"], DATA)] == [*range(SAMPLES)]


def as_words(batch: list[Any]) -> Any:
    return default_collate(batch)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, {"batch_size": 1, "shuffle": "none"}),
        ({"batch_size": 5, "shuffle": True}, {"batch_size": 5}),
        ({"batch_size": 5, "drop_last": True}, {"batch_size": 5, "drop_last": True, "shuffle": "none"}),
        ({"batch_size": 5, "sampler": WEIGHTED}, {"batch_size": 5, "sampler": WEIGHTED}),
        ({"batch_sampler": OWN_BATCHES}, {"sampler": OWN_BATCHES, "seed": 3}),
        ({"batch_sampler": BatchSampler(WEIGHTED, 6, True)}, {"batch_size": 6, "drop_last": True, "sampler": WEIGHTED}),
        ({"batch_sampler": BatchSampler(SequentialSampler(DATA), 6, False)}, {"batch_size": 6, "shuffle": "none"}),
        ({"num_workers": 2, "shuffle": True}, {"batch_size": 1, "loaders": 2}),
        ({"collate_fn": as_words, "shuffle": True}, {"batch_size": 1, "collate": as_words}),
        ({"generator": torch.Generator().manual_seed(11), "shuffle": True}, {"batch_size": 1, "seed": 11}),
    ],
)
def test_the_parts_of_a_loader_become_settings(options: dict[str, Any], wanted: dict[str, Any]) -> None:
    settings: dict[str, Any] = {}
    data, _, given, notes = without_loaders(DataLoader(DATA, **options), None, settings)
    assert data is DATA
    if "sampler" in settings:
        assert settings["sampler"] == {"class_path": hogwild.api.path_of(given["sampler"])}
        settings["sampler"] = given["sampler"]
    assert settings == wanted
    assert notes == []


def test_what_has_no_meaning_is_said_in_one_line() -> None:
    options: dict[str, Any] = {"num_workers": 2, "timeout": 9, "persistent_workers": True, "prefetch_factor": 5}
    loader = DataLoader(DATA, pin_memory=True, worker_init_fn=print, **options)
    *_, notes = without_loaders(loader, DataLoader(DATA, batch_size=9, drop_last=True), {})
    names = "persistent_workers, timeout, worker_init_fn, prefetch_factor, pin_memory"
    assert [note.partition(" of the")[0] for note in notes] == [
        f"dataset: without effect here: {names}",
        "val: without effect here: drop_last",
    ]


def test_the_sampler_of_validation_data_draws_once() -> None:
    data, val, given, notes = without_loaders(DATA, DataLoader(DATA, sampler=SubsetRandomSampler([5, 9, 30])), {})
    assert data is DATA and sorted(int(x) for x, _ in val) == [5, 9, 30]
    assert (given, notes) == ({"val_collate": None}, [])
    assert without_loaders(DATA, DataLoader(DATA, shuffle=True, collate_fn=as_words), {})[1:3] == (
        DATA,
        {"val_collate": as_words},
    )


class Moves(DataLoader[Any]):
    def __iter__(self) -> Any:
        return ((x.half(), y) for x, y in super().__iter__())


@pytest.mark.parametrize(
    ("loader", "settings", "words"),
    [
        (Moves(DATA), {}, "dataset: the DataLoader Moves has an __iter__ of its own, which no job would call"),
        (DataLoader(DATA, batch_size=None), {}, "has batch_size=None, so the data set itself makes the batches"),
        (DataLoader(DATA, 4), {"batch_size": 8}, "batch_size is given twice: 8 by keyword, 4 by the DataLoader"),
        (DataLoader(DATA, 4), {"data": {"batch_size": 8}}, "batch_size is given twice"),
        (DataLoader(DATA, 4, sampler=WEIGHTED), {"sampler": [1]}, r"sampler is given twice: \[1\] by keyword"),
    ],
)
def test_a_loader_that_cannot_be_taken_apart_is_refused(loader: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(HogwildError, match=words):
        without_loaders(loader, None, settings)


def test_a_keyword_that_says_the_same_or_only_how_is_no_contradiction() -> None:
    settings: dict[str, Any] = {"feed": "resident"}
    without_loaders(DataLoader(DATA, 4, num_workers=2), None, settings)
    assert settings == {"feed": "resident", "batch_size": 4, "shuffle": "none"}
    settings = {"batch_size": 4, "data": {"loaders": 1}, "seed": 8}
    loader = DataLoader(DATA, 4, shuffle=True, num_workers=2, generator=torch.Generator().manual_seed(3))
    without_loaders(loader, None, settings)
    assert settings == {"batch_size": 4, "data": {"loaders": 1}, "seed": 8}


# ---- jobs that cannot have one


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.ones(3), 1.0)] * 8)


LINEAR = TensorDataset(torch.randn(SAMPLES, 3), torch.randn(SAMPLES, 1))


@pytest.mark.parametrize(
    ("data", "settings", "words"),
    [
        (Stream(), {"sampler": [1, 2]}, "but Stream can only be read from start to end"),
        (LINEAR, {"sampler": [[1, 2]], "batch_size": 8}, "list makes the batches; leave out data.batch_size"),
        (LINEAR, {"sampler": [1], "lanes": 2}, "data.sampler"),
        (LINEAR, {"sampler": [1], "shuffle": "none"}, "data.shuffle"),
        (LINEAR, {"sampler": [1], "val": {"fraction": 0.5}}, "must be a separate data set with data.sampler"),
        (LINEAR, {"sampler": [1, 44]}, "drew 44 as entry 1"),
    ],
)
def test_a_job_that_cannot_have_a_sampler_is_refused_and_leaves_nothing(
    data: Any, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    model = nn.Linear(3, 1)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(HogwildError, match=words):
        hogwild.train(model, data, nn.MSELoss(), rule, procs=0, run_dir=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_the_nodes_of_a_cluster_have_no_sampler() -> None:
    with pytest.raises(HogwildError, match="each node of a cluster would draw epochs of its own") as refused:
        _check_cluster(drawing([1, 2, 3]).plan, 2)
    assert refused.value.code == "cluster/sampler"


def test_a_class_path_that_returns_a_loader_is_refused() -> None:
    path = {"class_path": "x.Y"}
    job = job_from_mapping({"version": 1, "model": path, "data": {"train": path}}, "test")
    given: Any = (planned(job), nn.Linear(3, 1), nn.MSELoss(), LINEAR, DataLoader(LINEAR))
    with pytest.raises(HogwildError, match=r"data\.val names a DataLoader, which only hogwild\.train takes") as refused:
        sources_of(*given, Functions(), InTurn(0), None)
    assert refused.value.code == "data/loader"


def test_a_job_files_sampler_is_told_the_data_if_it_asks() -> None:
    given = build_sampler(Component(class_path="torch.utils.data.RandomSampler", init_args={"num_samples": 3}), DATA)
    assert given.data_source is DATA
    weights = {"weights": [1.0, 2.0], "num_samples": 3}
    assert (
        build_sampler(
            Component(class_path="torch.utils.data.WeightedRandomSampler", init_args=weights), DATA
        ).num_samples
        == 3
    )
    with pytest.raises(ConfigError, match=r"num_samples.*is required"):
        build_sampler(
            Component(class_path="torch.utils.data.WeightedRandomSampler", init_args={"weights": [1.0]}), DATA
        )
    job = {"version": 1, "model": {"class_path": "x.Y"}, "data": {"train": {"class_path": "x.Y"}, "sampler": 7}}
    with pytest.raises(ConfigError, match=r"data\.sampler"):
        job_from_mapping(job, "test")
