"""Streamed data read in this process: what ends up in which slot, whoever reads it and wherever it goes on from; and
what the parent finds out about a data set before anything starts."""

import collections
import itertools
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset, get_worker_info

import hogwild
from hogwild import host
from hogwild.config.load import Job, job_from_mapping
from hogwild.errors import CheckpointError, DataError, MemoryShortError, UsageError
from hogwild.feeds.ring import Ring, SlotWord
from hogwild.feeds.row_reader import RowSource
from hogwild.feeds.stream_reader import (
    Collator,
    Columns,
    Filler,
    Origin,
    Unreadable,
    copies_of,
    iterator_state,
    read_state,
)
from hogwild.host.limits import Memory
from hogwild.job.data import why_streamed
from hogwild.job.source import as_batch, has_nested, prepare, read_into_memory
from hogwild.planning.device_placement import planned
from hogwild.planning.job_plan import slots_of
from hogwild.scheduling.batch_plan import BatchPlan, StreamPlan, updates_planned
from hogwild.scheduling.stream_schedule import SlotRequest, StreamSchedule
from hogwild.scheduling.work_queue import Limits, WorkQueue
from hogwild.user_code import ComponentSpec
from hogwild.workers.session.ring_state import RingState

BATCH = 4


def job_with(**data: Any) -> Job:
    """A job whose section `data` has these fields."""
    train = {"class_path": "a.Train", "init_args": {}}
    return job_from_mapping({"model": {"class_path": "a.Model"}, "data": {"train": train, **data}}, "test")


class Draws(Dataset):
    """Every record draws from every generator there is."""

    def __init__(self, count: int = 10) -> None:
        self.count, self.epochs = count, []  # type: ignore[var-annotated]

    def __len__(self) -> int:
        return self.count

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return torch.tensor(index), torch.rand(()), random.random(), float(np.random.rand()), index


class Fixed(Dataset):
    """Every record is the same whenever it is read."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return torch.tensor(index), torch.tensor(0.5), 0.5, 0.5, index


class Random(Fixed):
    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return torch.rand(()), index


class Unsendable(Random):
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Many(Draws):
    """Gives a batch of records at once."""

    def __getitems__(self, indices: list[int]) -> list[tuple[Any, ...]]:
        return [(torch.tensor(index), index) for index in indices]


class Counted(IterableDataset):
    def __init__(self, count: int = 10, fails_at: int = -1) -> None:
        self.count, self.fails_at = count, fails_at

    def __iter__(self) -> Iterator[Any]:
        shuffled = torch.randperm(self.count).tolist()
        for position, number in enumerate(shuffled):
            if position == self.fails_at:
                raise ValueError("a broken line")
            yield torch.tensor(number), torch.rand(()), number


class Divided(Counted):
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter([(torch.tensor(number), number) for number in range(first, self.count, step)])


class Resumable:
    """An iterator that can say where it is."""

    def __init__(self, count: int) -> None:
        self.count, self.at, self.read = count, 0, 0

    def __iter__(self) -> "Resumable":
        fresh = Resumable(self.count)
        fresh.read = self.read
        return fresh

    def __next__(self) -> tuple[Any, int]:
        if self.at == self.count:
            raise StopIteration
        self.at += 1
        return torch.tensor(self.at - 1), self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Placed(IterableDataset):
    """Keeps its place in itself, as data sets of torchdata do."""

    def __init__(self, count: int = 10, *, resets: bool = True, fails_at: int = -1) -> None:
        self.count, self.resets, self.fails_at, self.at = count, resets, fails_at, 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.count:
            self.at += 1
            if self.at - 1 == self.fails_at:
                raise ValueError("a broken line")
            yield torch.tensor(self.at - 1), self.at - 1
        if self.resets:
            self.at = 0


class PlacedWithState(Placed):
    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Reading:
    """One loader over a data set, asked for batches one by one."""

    def __init__(
        self, dataset: Any, *, shards: int = 1, loader: int = 0, order: str = "full", spec: Any = None
    ) -> None:
        job = job_with(batch_size=BATCH, shuffle=order, feed="stream")
        self.streamed = prepare(job, dataset, spec, None, "a test", loaders=shards, channels_last=False, has_norm=False)
        self.ring = Ring.allocate("test", self.streamed.ring_spec(4, shards))
        self.filler = Filler(self.streamed.stream, self.ring, loader=loader, again=copies_of(self.streamed.stream))

    def fill(self, epoch: int, batch: int, *, slot: int = 0, begin: tuple[int, bytes] = (0, b"")) -> list[Any] | None:
        plan = self.streamed.stream.plan
        shards = plan.shards if isinstance(plan, StreamPlan) else 1
        row = self.ring.table[slot]
        row[SlotWord.EPOCH], row[SlotWord.BATCH], row[SlotWord.SHARD], row[SlotWord.PLACE] = (
            epoch,
            batch,
            batch % shards,
            batch // shards,
        )
        row[SlotWord.FROM], row[SlotWord.STATE_BYTES] = begin[0], len(begin[1])
        if begin[1]:
            self.ring.write_state(slot, begin[1], is_after=False)
        if not self.filler.fill(slot):
            return None
        return [leaf.tolist() for leaf in self.ring.leaves(slot)]


def test_a_batch_is_the_same_whoever_reads_it_and_whatever_he_read_before() -> None:
    one, other = Reading(Draws()), Reading(Draws())
    one.fill(0, 0)
    first = one.fill(0, 1)
    assert other.fill(0, 1) == first
    assert one.fill(1, 1) != first, "another epoch has another order and draws other numbers"
    assert one.fill(0, 1) == first


def test_every_record_of_an_epoch_comes_once_and_the_last_batch_is_shorter() -> None:
    reading = Reading(Draws())
    batches = [reading.fill(0, batch) for batch in range(3)]
    assert sorted(number for batch in batches for number in batch[0]) == [*range(10)]  # type: ignore[index]
    assert [len(batch[0]) for batch in batches] == [4, 4, 2]  # type: ignore[index]


def test_a_data_set_is_told_of_the_epoch_and_may_give_many_records_at_once() -> None:
    dataset = Many()
    reading = Reading(dataset, order="none")
    assert reading.fill(3, 1) == [[4, 5, 6, 7], [4, 5, 6, 7]]
    assert dataset.epochs == [3]


class ToldOnce:
    """Can be read once, and is made anew by its class path; its records are the epochs it was told of."""

    def __init__(self) -> None:
        self.left, self.epoch = 4, -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> "ToldOnce":
        return self

    def __next__(self) -> tuple[Any, int]:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return torch.tensor(self.epoch), self.epoch


def test_an_iterator_that_is_made_anew_is_told_of_the_epoch() -> None:
    class Told:
        class_path = f"{__name__}.ToldOnce"
        init_args: ClassVar[dict[str, Any]] = {}

    reading = Reading(ToldOnce(), spec=Told())
    assert [reading.fill(epoch, 0) for epoch in range(2)] == [[[0] * 4] * 2, [[1] * 4] * 2]


def test_an_iterable_goes_on_in_order_and_says_where_it_ends() -> None:
    reading = Reading(Counted())
    whole = [reading.fill(0, batch) for batch in range(4)]
    assert whole[3] is None
    assert sorted(number for batch in whole[:3] for number in batch[0]) == [*range(10)]  # type: ignore[index]
    assert [len(batch[0]) for batch in whole[:3]] == [4, 4, 2]  # type: ignore[index]
    again = Reading(Counted())
    assert again.fill(0, 2) == whole[2], "one that begins anew reads the records before, and passes over them"
    assert again.filler.has_passed_over and not reading.filler.has_passed_over
    assert again.fill(0, 1) == whole[1], "also backwards, after a rollback"
    assert again.fill(1, 0) != whole[0]


class Pairs(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter([(np.int64(number), np.float32(number / 2)) for number in range(10)])


class InColumns(Pairs):
    """Gives up to three records at once, until so many are given."""

    def __init__(self, until: int) -> None:
        self.until = until

    def __iter__(self) -> "ColumnIterator":
        return ColumnIterator(super().__iter__(), self.until)


class ColumnIterator(Iterator[Any]):
    def __init__(self, records: Iterator[Any], until: int) -> None:
        self.records, self.until, self.at = records, until, 0

    def __next__(self) -> Any:
        assert self.at >= self.until, "it gives columns"
        return next(self.records)

    def next_columns(self, most: int) -> Columns | None:
        if self.at >= self.until:
            return None
        if not (few := [*itertools.islice(self.records, min(most, 3))]):
            raise StopIteration
        self.at += len(few)
        return Columns(tuple(np.array(column) for column in zip(*few, strict=True)))


@pytest.mark.parametrize("until", [100, 6, 5, 4, 0])
def test_records_that_come_as_columns_make_the_same_batches(until: int) -> None:
    """The first records are read one by one, before the stream is read."""
    plain, dataset = Reading(Pairs()), InColumns(0)
    reading = Reading(dataset)
    reading.filler._dataset.until = until
    batches = [plain.fill(0, batch) for batch in range(4)]
    assert [len(batch[0]) for batch in batches[:3]] == [4, 4, 2] and batches[3] is None  # type: ignore[index]
    assert [reading.fill(0, batch) for batch in range(4)] == batches


def test_an_iterable_that_divides_its_records_is_read_in_shards() -> None:
    first, second = (Reading(Divided(), shards=2, loader=loader) for loader in range(2))
    assert first.streamed.stream.plan == StreamPlan(BATCH, 2)
    assert [first.fill(0, 0), first.fill(0, 2), first.fill(0, 4)] == [[[0, 2, 4, 6]] * 2, [[8]] * 2, None]
    assert [second.fill(0, 1), second.fill(0, 3)] == [[[1, 3, 5, 7]] * 2, [[9]] * 2]


def test_one_that_does_not_is_one_shard_for_one_loader_and_that_is_said() -> None:
    reading = Reading(Counted(), shards=3)
    plan = reading.streamed.stream.plan
    assert isinstance(plan, StreamPlan) and plan.shards == 1
    assert any("one loader reads it" in note for note in reading.streamed.notes)


@pytest.mark.parametrize(
    ("section", "has_norm", "is_said"),
    [({}, True, True), ({}, False, False), ({"drop_last": True}, True, False), ({"batch_size": 1}, True, False)],
)
def test_that_a_single_last_record_is_left_out_is_said_before(
    section: dict[str, Any], has_norm: bool, is_said: bool
) -> None:
    job = job_with(**section)
    streamed = prepare(job, Counted(), None, None, "a test", loaders=1, channels_last=False, has_norm=has_norm)
    said = [note for note in streamed.notes if "only one record, as BatchNorm cannot train on it" in note]
    assert len(said) == is_said


def test_an_iterator_with_a_state_goes_on_from_it() -> None:
    reading = Reading(Resumable(10))
    assert reading.fill(0, 0) == [[0, 1, 2, 3]] * 2
    state = reading.ring.read_state(0, is_after=True)
    assert state
    fresh = Reading(Resumable(10))
    assert fresh.fill(0, 1, begin=(1, state)) == [[4, 5, 6, 7]] * 2
    assert fresh.filler._shards[0].position == BATCH, "the records before were not read again"
    assert fresh.ring.read_state(0, is_after=False) == state


@pytest.mark.parametrize(
    "dataset", [Placed(), PlacedWithState(), PlacedWithState(resets=False), PlacedWithState(8, resets=False)]
)
def test_a_data_set_that_keeps_its_place_in_itself_begins_every_epoch_at_its_beginning(dataset: Placed) -> None:
    wanted = [[*range(dataset.count)[first : first + BATCH]] for first in range(0, dataset.count, BATCH)]
    reading = Reading(dataset)
    for epoch in range(3):
        found = [reading.fill(epoch, batch) for batch in range(len(wanted))]
        assert found == [[batch] * 2 for batch in wanted]
        assert reading.fill(epoch, len(wanted)) is None


@pytest.mark.parametrize("kind", [Placed, PlacedWithState])
def test_one_that_goes_back_begins_at_its_beginning(kind: type[Placed]) -> None:
    reading = Reading(kind(fails_at=6))
    for _ in range(2):
        assert reading.fill(0, 0) == [[0, 1, 2, 3]] * 2, "a rollback, or another attempt"
        with pytest.raises(Unreadable, match="a broken line"):
            reading.fill(0, 1)
    assert reading.fill(1, 0) == [[0, 1, 2, 3]] * 2


def test_a_state_behind_the_end_is_none_where_the_data_set_is_back_at_its_beginning() -> None:
    reading = Reading(PlacedWithState())
    state = b""
    for batch in range(3):
        reading.fill(0, batch)
        before, state = state, reading.ring.read_state(0, is_after=True)
    assert before and not state
    replacement = Reading(PlacedWithState())
    assert replacement.fill(0, 3) is None, "no record comes again"


STATE: dict[str, Any] = {
    "python": [None, True, 1 << 200, 2.5, "ä", b"x", bytearray(b"y"), (1, (2,)), {3}, frozenset([4]), {5: {}}],
    "ordered": collections.OrderedDict(b=1, a=2),
    "generators": (random.getstate(), np.random.default_rng(3).bit_generator.state),
    "numpy": [np.arange(6.0).reshape(2, 3).T, np.empty((0, 2), np.int8), np.array(3), np.array(["ab", "c"])],
    "scalars": [np.int64(5), np.float32(1.5), np.bool_(True), np.str_("word"), np.datetime64("2020-01-01")],
    "torch": [torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t(), torch.zeros(0, 3), torch.tensor(2.5)],
    "state": torch.Generator().get_state(),
}


class Stated(Resumable):
    def __init__(self, state: Any) -> None:
        super().__init__(4)
        self.state = state

    def state_dict(self) -> Any:
        return self.state


def test_a_state_of_plain_values_comes_back_as_it_was() -> None:
    found = read_state(iterator_state(Stated(STATE), None))
    assert repr(found) == repr(STATE)
    assert [one.dtype for one in found["numpy"]] == [one.dtype for one in STATE["numpy"]]


@pytest.mark.parametrize(
    "thing",
    [Resumable(1), Path("a"), collections.deque(), np.array([object()]), torch.eye(2).to_sparse(), print, Resumable],
    ids=lambda thing: getattr(thing, "__qualname__", type(thing).__qualname__),
)
def test_a_state_of_anything_else_is_refused_by_its_class(thing: Any) -> None:
    with pytest.raises(DataError, match=r"state_dict\(\) of Stated holds a \w+(\.\w+)+, but") as refused:
        iterator_state(Stated({"deep": [{"in": thing}]}), None)
    assert refused.value.code == "data/state-not-plain"
    with pytest.raises(CheckpointError, match="cannot be loaded safely: it names "):
        read_state(cloudpickle.dumps(thing))


def test_an_array_of_pointers_is_none_that_a_state_may_hold() -> None:
    state = iterator_state(Stated(np.zeros(1, "u8")), None)
    assert b"<u8" in state
    with pytest.raises(CheckpointError, match="OBJECT"):
        read_state(state.replace(b"\x8c\x03<u8", b"\x8c\x03<O8"))


def test_what_is_given_is_left_as_it_was_by_looking_at_its_first_records() -> None:
    dataset = PlacedWithState()
    prepare(job_with(), dataset, None, None, "a test", loaders=1, channels_last=False, has_norm=False)
    assert dataset.at == 0


def test_what_a_record_raises_is_told_with_its_place_and_the_next_batch_can_be_read() -> None:
    class Broken(Draws):
        def __getitem__(self, index: int) -> tuple[Any, ...]:
            if index == 6:
                raise KeyError("no such picture")
            return torch.tensor(index), index

    reading = Reading(Broken(), order="none")
    with pytest.raises(Unreadable, match=r"reading item 6 .*KeyError: 'no such picture'") as caught:
        reading.fill(0, 1)
    assert caught.value.kind == "KeyError" and "test_stream.py" in caught.value.place
    assert reading.fill(0, 2) == [[8, 9], [8, 9]]


def test_an_iterator_that_raises_is_begun_anew_the_next_time() -> None:
    reading = Reading(Counted(40, fails_at=17))
    for _ in range(2):
        assert all(reading.fill(0, batch) for batch in range(4))
        with pytest.raises(Unreadable, match="a broken line"):
            reading.fill(0, 4)


def test_reading_leaves_the_callers_random_state_as_it_was() -> None:
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    wanted = (torch.rand(()).item(), random.random(), np.random.rand())
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    job = job_with(feed="stream")
    prepare(job, Draws(), None, None, "a test", loaders=1, channels_last=False, has_norm=False)
    assert (torch.rand(()).item(), random.random(), np.random.rand()) == wanted
    assert get_worker_info() is None


# ---- what the parent decides -----------------------------------------------------------------------------------------


def test_a_data_set_that_fits_is_resident_and_the_numbers_are_said() -> None:
    why, note = why_streamed(job_with(), Fixed(), "data.train")
    assert why == ""
    assert "27 KiB loaded into memory" in note
    assert "free; data.feed: auto)" in note


def test_one_that_does_not_fit_is_streamed_and_the_numbers_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "available_memory", lambda: Memory(1000, "a test"))
    why, _ = why_streamed(job_with(), Fixed(), "data.train")
    assert why == "it needs 27 KiB, more than half of the free memory (1.0 KiB)"


@pytest.mark.parametrize(
    ("dataset", "section", "why"),
    [
        (TensorDataset(torch.zeros(3), torch.zeros(3)), {}, ""),
        (Counted(), {}, "Counted can only be read from start to end"),
        (iter([]), {}, "can only be read from start to end"),
        (Draws(), {"padding": {}}, "data.padding is set"),
        (Draws(), {"feed": "stream"}, "set by data.feed"),
        (Draws(), {"feed": "resident"}, ""),
        (Random(), {}, "item 0 of Random changes from reading to reading, so every epoch is drawn anew"),
        (Subset(Random(), [5, 6]), {}, "item 0 of Subset changes from reading to reading"),
        (Draws(), {}, "Draws has a set_epoch, so every epoch is drawn anew"),
        (Unsendable(), {}, ""),
    ],
    ids=[
        *("tensors", "iterable", "iterator", "padding", "stream", "resident", "random", "random subset", "set_epoch"),
        "cannot be sent",
    ],
)
def test_why_a_data_set_is_streamed(dataset: Any, section: dict[str, Any], why: str) -> None:
    assert why in why_streamed(job_with(**section), dataset, "data.train")[0]
    if not why:
        assert why_streamed(job_with(**section), dataset, "data.train")[0] == ""


@pytest.mark.parametrize(
    ("dataset", "section", "frozen"),
    [
        (Random(), {"feed": "resident"}, "changes from reading to reading; data.feed: resident trains on one reading"),
        (Unsendable(), {}, "trains on one reading, as loaders cannot be sent the data set (TypeError: cannot pickle"),
        (Fixed(), {"feed": "resident"}, ""),
    ],
    ids=["chosen", "cannot be sent", "fixed"],
)
def test_data_that_a_person_keeps_in_memory_stays_and_what_that_freezes_is_said(
    dataset: Any, section: dict[str, Any], frozen: str
) -> None:
    why, note = why_streamed(job_with(**section), dataset, "data.train")
    assert why == ""
    assert frozen in note and bool(note) == bool(frozen)


def test_the_size_of_a_slot_is_that_of_a_whole_batch_or_of_the_longest_there_can_be() -> None:
    class Ragged(Draws):
        def __getitem__(self, index: int) -> tuple[Any, ...]:
            return torch.zeros(1 + index % 5), index

    def size(**section: Any) -> int:
        job = job_with(batch_size=BATCH, feed="stream", **section)
        streamed = prepare(job, Ragged(100), None, None, "", loaders=1, channels_last=False, has_norm=False)
        return streamed.data_bytes

    lengths = labels = 64  # 4 x 8 bytes, a cache line each
    assert size(padding={"longest": 100}) == 4 * 100 * 4 + lengths + labels
    assert size(slot_bytes=12345, padding={}) == 12345
    assert 1.5 * (4 * 5 * 4) < size(padding={}) < 1000, "measured, with a margin"


def test_a_class_path_is_called_in_each_loader_where_its_object_does_not_travel() -> None:
    class Numbers:
        class_path = "hogwild.scheduling.batch_plan.mix"
        init_args: ClassVar[dict[str, Any]] = {}

    spec: ComponentSpec = Numbers()
    generator = (pair for pair in [(torch.tensor(1), 1)])
    streamed = prepare(job_with(), generator, spec, None, "", loaders=1, channels_last=False, has_norm=False)
    assert streamed.stream.source == Origin(None, spec, None)


def test_the_ring_holds_what_workers_and_loaders_have_in_hand() -> None:
    def slots_for(**data: Any) -> int:
        job = job_with(feed="stream", **data)
        return slots_of(planned(job.model_copy(update={"train": job.train.model_copy(update={"procs": 2})})))

    assert slots_for() == 2 * (2 * 2 + 2 * 2)
    with pytest.raises(UsageError, match=r"data\.slots: must be >= 8 for 2 workers, 2 loaders"):
        slots_for(slots=7)
    assert slots_for(slots=8) == 8


class Long(IterableDataset):
    """Fails where nobody stops reading it."""

    given = 0

    def __iter__(self) -> Iterator[Any]:
        for self.given in range(4000):
            yield torch.zeros(100), 0


def test_validation_data_that_does_not_come_to_an_end_is_an_error_before_memory_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def free() -> Memory:
        return Memory(200_000 - 400 * dataset.given, "a test")

    dataset = Long()
    monkeypatch.setattr(host, "available_memory", free)
    options = {"loaders": 1, "channels_last": False, "has_norm": False, "what": "data.val"}
    streamed = prepare(job_with(), dataset, None, None, "", **options)  # type: ignore[arg-type]
    with pytest.raises(MemoryShortError, match=r"data\.val: after \d+ records, which take .* free \(a test\)") as short:
        read_into_memory(streamed, BATCH, "data.val")
    assert short.value.code == "run/memory-short"
    assert 100 < dataset.given < 250, "what is free is used, up to the copy that is to come"


def test_a_stream_without_a_length_plans_as_many_updates_as_the_job_says() -> None:
    plan = StreamPlan(BATCH, 2)
    assert updates_planned(plan, epochs=3, accumulate=1, max_updates=None) == 0
    assert updates_planned(plan, epochs=3, accumulate=1, max_updates=70) == 70
    assert updates_planned(StreamPlan(BATCH, 2, length=10), epochs=2, accumulate=2, max_updates=None) == 4
    assert updates_planned(BatchPlan(10, BATCH), epochs=2, accumulate=2, max_updates=None) == 4


LARGE = 2**24 + 1  # no float32
SHAPES: dict[str, Any] = {
    "a tuple": lambda user, price: (user, price),
    "a list": lambda user, price: [user, price],
    "a dict": lambda user, price: {"user": user, "price": price},
    "deeper": lambda user, price: (user, {"price": (price,)}),
}


class Visits(Dataset[Any]):
    def __init__(self, shape: str) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> Any:
        return SHAPES[self.shape](LARGE + row, row / 4), float(row)


class Arriving(IterableDataset[Any]):
    def __init__(self, shape: str) -> None:
        self.visits = Visits(shape)

    def __iter__(self) -> Iterator[Any]:
        return (self.visits[row] for row in range(8))


class Model(nn.Module):
    """Refuses inputs of another structure or type than the samples'."""

    def __init__(self, shape: str) -> None:
        super().__init__()
        self.shape, self.scale = shape, nn.Parameter(torch.ones(1))

    def forward(self, visit: Any) -> Tensor:
        user, price = torch.utils._pytree.tree_leaves(visit)
        assert type(visit) is type(SHAPES[self.shape](0, 0))
        assert (user.dtype, price.dtype) == (torch.int64, torch.float32)
        rows = (user - LARGE).float()
        assert torch.equal(rows / 4, price)
        return self.scale * rows


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("feed", ["auto", "stream", "iterable"])
def test_numbers_in_a_tuple_are_inputs_of_their_own(shape: str, feed: str, tmp_path: Path) -> None:
    model = Model(shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = Arriving(shape) if feed == "iterable" else Visits(shape)
    given: dict[str, Any] = {"procs": 0, "batch_size": 3, "feed": "stream" if feed == "stream" else "auto"}
    result = hogwild.train(model, data, nn.MSELoss(), optimizer, val=data, run_dir=tmp_path / "run", **given)
    assert (result.samples, result.metrics["loss"]) == (8, 0.0)
    if feed == "auto":
        trained = hogwild.load(tmp_path / "run", model=Model(shape))
        assert trained.predict(Visits(shape)).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("role", ["train", "val"])
def test_data_in_memory_have_one_tensor_per_field_and_others_are_refused(shape: str, role: str, tmp_path: Path) -> None:
    model = Model(shape)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    flat = torch.utils.data.TensorDataset(torch.zeros(8), torch.zeros(8))
    train, val = (Visits(shape), None) if role == "train" else (flat, Visits(shape))
    with pytest.raises(
        DataError, match=rf"data.{role}: item 0 cannot be .* holds a (tuple|list|dict).*feed: stream"
    ) as failed:
        hogwild.train(
            model, train, nn.MSELoss(), optimizer, val=val, procs=0, feed="resident", run_dir=tmp_path / "run"
        )
    assert failed.value.code == "data/bad-item"
    assert not (tmp_path / "run").exists()


def test_a_list_of_numbers_of_one_type_is_an_array_on_every_feed() -> None:
    class Records(Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, _: int) -> Any:
            return [0.5, 1.5, 2.5], [[1, 2], [3, 4]], 1

    held, streamed = RowSource.of(Records(), "data.train", 0).read_here(0, 2), as_batch(Collator(), [Records()[0]] * 2)
    assert [(field.dtype, *field.shape) for field in held] == [
        (torch.float32, 2, 3), (torch.int64, 2, 2, 2), (torch.int64, 2)
    ]  # fmt: skip
    assert all(torch.equal(mine, its) and mine.dtype == its.dtype for mine, its in zip(held, streamed, strict=True))


LEAF = st.one_of(st.integers(-(2**40), 2**40), st.floats(-4, 4, width=32), st.booleans())
NESTS = st.recursive(LEAF, lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=5)


@settings(max_examples=60, deadline=None)
@given(NESTS, LEAF)
def test_a_sample_of_any_nesting_has_the_same_inputs_in_memory_and_in_a_stream(inputs: Any, target: Any) -> None:
    record = (inputs, target)
    streamed = as_batch(Collator(), [record, record])
    assert torch.utils._pytree.tree_structure(tuple(streamed)) == torch.utils._pytree.tree_structure(record)

    class Records(Dataset[Any]):
        def __len__(self) -> int:
            return 2

        def __getitem__(self, _: int) -> Any:
            return record

    if has_nested(Records()):
        with pytest.raises(DataError, match="one tensor per field"):
            RowSource.of(Records(), "data.train", 0)
        return
    held = RowSource.of(Records(), "data.train", 0).read_here(0, 2)
    assert [field.dtype for field in held] == [field.dtype for field in streamed]
    assert all(torch.equal(mine, its) for mine, its in zip(held, streamed, strict=True))


class Growing(Resumable):
    """The records of batch 1 are larger than a slot while `is_large`. `places`: those that were read."""

    is_large = False
    places: ClassVar[list[int]] = []

    def __iter__(self) -> "Growing":
        return Growing(self.count)

    def __next__(self) -> tuple[Any, int]:
        _, place = super().__next__()
        self.places.append(place)
        return torch.zeros(9000 if self.is_large and BATCH <= place < 2 * BATCH else 4), place


def test_a_batch_that_could_not_be_read_is_skipped_by_no_checkpoint_and_read_from_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Later ones have been filled meanwhile: a checkpoint began behind them, and the next try at the first record."""
    streamed = prepare(
        job_with(batch_size=BATCH, feed="stream"), Growing(1000), None, None, "a test",
        loaders=1, channels_last=False, has_norm=False,
    )  # fmt: skip
    stream = streamed.stream
    ring = Ring.allocate("test", streamed.ring_spec(64, 1))
    state = RingState(ring, StreamSchedule(stream.plan, 64, 1, 1, 1), stream)
    filler = Filler(stream, ring, loader=0, again=copies_of(stream))
    monkeypatch.setattr(Growing, "is_large", True)
    hand: list[SlotRequest] = []

    def turn(fills: int) -> None:
        while (request := state.schedule.request(0)) is not None:
            state.write(request)
            hand.append(request)
        for _ in range(fills):
            request = hand.pop(0)
            Growing.places.clear()
            try:
                filler.fill(request.slot)
            except Unreadable:
                assert request.batch == 1 and state.schedule.failed(0, request.slot) is not None
            else:
                assert state.filled(0, request.slot)

    turn(1)
    turn(2)  # batch 1 fails, 2 is filled
    epoch = state.schedule.free_of(0)
    epoch.filled.discard(0)
    epoch.mark_finished(0, 1)
    ((_, ((_, place, _),)),) = state.state()["epochs"]
    assert place == 1
    again = [*range(BATCH, 2 * BATCH)]
    turn(1)
    assert Growing.places == again, "the second try"
    monkeypatch.setattr(Growing, "is_large", False)
    while 1 not in epoch.filled:
        turn(1)
    assert Growing.places == again, "the third"


def test_what_was_asked_for_behind_the_end_of_an_epoch_is_forgotten_with_it() -> None:
    reading = Reading(Resumable(3 * BATCH))
    stream = reading.streamed.stream
    schedule = StreamSchedule(stream.plan, 16, 1, 1, 1000)
    queue = WorkQueue(stream.plan, Limits(1, epochs=1000), schedule=schedule)
    state = RingState(Ring.allocate("test", reading.streamed.ring_spec(16, 1)), schedule, stream)
    for _ in range(300):
        while (request := schedule.request(0)) is not None:
            state.write(request)
            if request.place < 3:
                assert state.filled(0, request.slot)
            elif schedule.ended(0, request.slot) is not None:
                queue.find_ends()
        while (item := queue.lease(0)) is not None:
            queue.ack(0, item.id, 0)
    assert len(schedule.open_epochs) < 4 and len(state._begun) < 10
