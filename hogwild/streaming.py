"""Streamed data as the parent prepares it: whether a data set is streamed, what its batches are like, and how large
the ring must be. User code runs here only before workers start: the first records are read, collated and looked at.

    feed: auto     resident where the data set has a length, equal records, and fits into half of the free memory
    feed: stream   what the job says"""

import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset, Subset

from hogwild import host
from hogwild.batches import BatchPlan, EpochPlan
from hogwild.collating import NUMBERS, BadBatch, Collator, Padding
from hogwild.config import Job
from hogwild.errors import DataError, HogwildError, UsageError
from hogwild.feeds import Batch
from hogwild.free_ranges import LEASES_IN_HAND
from hogwild.placing import SHARED, is_on_device
from hogwild.registry import Spec, build_callable
from hogwild.ring import BatchForm, Ring, RingSpec
from hogwild.rows import Rows
from hogwild.samples import division, ready_tensors
from hogwild.stream import Origin, Stream, WatchedInfo, seed_all, set_worker_info, state_of, travels
from hogwild.stream_plan import StreamPlan
from hogwild.stream_schedule import REQUESTS_IN_HAND

SPARE_SLOTS = 2  # times what cannot do without: a loader that is slow for a while keeps nobody waiting
RESIDENT_SHARE = 0.5  # of the free memory: more, and a data set is streamed (feed: auto)
LOOK_RECORDS = 256  # whose sizes are looked at where they vary
LOOK_S = 2.0  # and no longer than this
MARGIN = 1.5  # of a slot over the largest batch that was seen, where sizes vary
STATE_ROOM = 4  # of a state's place over the first state
TRIAL_RECORDS = 3
LEAVES = (Tensor, np.ndarray, *NUMBERS)


@dataclass(frozen=True, slots=True)
class Streamed:
    """A data set that is streamed: what loaders need, and what its slots must hold. `trial`: its first records."""

    stream: Stream
    form: BatchForm
    data_bytes: int
    state_bytes: int
    trial: tuple[Any, ...]
    notes: tuple[str, ...] = ()

    def ring_spec(self, slots: int, loaders: int) -> RingSpec:
        return RingSpec(self.form, slots, loaders, self.data_bytes, self.state_bytes)

    def typical(self) -> list[list[Any]]:
        """Batches of the sizes that training will see, of the first records again and again: for compilers, which look
        at shapes. Where sizes are not known before, two that differ, so that a compiler expects any."""
        collator, plan, records = self.stream.collator, self.stream.plan, self.trial
        if isinstance(plan, StreamPlan):
            sizes = [plan.batch_size, *([] if plan.drop_last else [plan.batch_size // 2 + 1])]
        else:
            sizes = [plan.samples_in(number, number + 1) for number in (0, plan.batches - 1)]
        batches = [as_batch(collator, [*islice(cycle(records), size)]) for size in dict.fromkeys(sizes)]
        if collator.collate is not None or collator.padding is not None:  # lengths vary as well
            batches += [as_batch(collator, [record] * sizes[0]) for record in records]
        return batches

    def head(self, records: int) -> list[Any]:
        """The first ones as a batch: the inputs, and the target; in memory of its own."""
        return as_batch(self.stream.collator, list(self.trial[:records]))


def slots_of(job: Job, procs: int, loaders: int) -> int:
    """Of the ring. Each worker must find what it has in hand, an exchange each, and each loader what it fills. Raises
    UsageError for too few. Where delta is not asked for and may come of it all the same, its exchanges are as long as
    the ring allows; on a device, where every one of them is a copy there and back, the ring is made for whole ones."""

    def needed(updates: int) -> int:
        return max(1, procs) * LEASES_IN_HAND * job.train.accumulate * updates + loaders * REQUESTS_IN_HAND

    updates = job.train.sync_every if job.train.exchange == "delta" else 1
    exchange, least = job.train.accumulate * updates, needed(updates)
    if job.data.slots == "auto":
        is_copied = procs > 1 and job.train.placement != SHARED and is_on_device(job)
        return max(SPARE_SLOTS * least, needed(job.train.sync_every) if is_copied else 0)
    if job.data.slots < least:
        raise UsageError(
            f"data.slots: must be >= {least} for {max(1, procs)} workers, {loaders} loaders and exchanges of "
            f"{exchange} "
            f"batches, got {job.data.slots}",
            code="config/contradiction",
        )
    return job.data.slots


def as_batch(collator: Collator, records: list[Any]) -> list[Any]:
    """[input, …, target]"""
    form, shapes = collator.form(records)
    ring = Ring.allocate("trial", RingSpec(form, 1, 0, form.nbytes(shapes)))
    rows, shapes = collator.put(records, ring, 0)
    ring.seal(0, rows, shapes)
    batch: Batch = form.batch([leaf.clone() for leaf in ring.leaves(0)], 0, rows)
    return [*batch.inputs, batch.target]


def is_iterable(dataset: Any) -> bool:
    """Read from its beginning to its end: an IterableDataset, an iterator, or whatever has no `dataset[i]`."""
    return isinstance(dataset, IterableDataset | Iterator) or not hasattr(type(dataset), "__getitem__")


def why_streamed(job: Job, dataset: Any, what: str) -> tuple[str, str]:
    """(why it is streamed, or "" where it is resident; a note for the log). Raises DataError where neither can be."""
    data = job.data
    if data.lanes is not None:
        return "", ""
    if data.feed == "resident":
        needs = next((name for name in ("collate", "padding") if getattr(data, name) is not None), "")
        if needs:
            raise DataError(f"data.{needs} needs data.feed: stream, and the job says resident", code="data/stream-only")
        return "", ""
    if data.feed == "stream":
        return "the job says so", ""
    if is_iterable(dataset):
        return f"{type(dataset).__name__} is read from its beginning to its end", ""
    for name in ("collate", "padding"):
        if getattr(data, name) is not None:
            return f"data.{name} is set", ""
    if ready_tensors(dataset, what) is not None:
        return "", ""
    try:
        rows = Rows.of(dataset, what, job.seed)
    except DataError as error:
        if error.code == "data/bad-item" and _is_nested(dataset):
            return f"the inputs of {type(dataset).__name__} are nested", ""
        raise
    needed, memory = rows.count * rows.row_bytes, host.available_memory()
    numbers = f"{rows.count:,} records of {rows.row_bytes:,} bytes are {needed:,} bytes, {memory.bytes:,} are free"
    if needed > RESIDENT_SHARE * memory.bytes:
        return f"it does not fit into memory: {numbers}", ""
    return "", f"{what}: resident: {numbers} (data.feed: auto)"


def _is_nested(dataset: Any) -> bool:
    """Whether its first record is a tuple with a tuple, list or dict of tensors in it. It has been read before."""
    with torch.random.fork_rng(devices=[]):
        record = dataset[0]
    if not isinstance(record, tuple | list) or len(record) < 2:
        return False
    leaves = tree_leaves(record)
    return len(leaves) != len(record) and all(isinstance(leaf, LEAVES) for leaf in leaves)


@contextmanager
def own_random_state() -> Iterator[None]:
    """What is drawn meanwhile leaves the process's generators as they were."""
    python, numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)
        set_worker_info(None)


def prepare(
    job: Job,
    dataset: Any,
    spec: Spec | None,
    generator: Tensor | None,
    why: str,
    *,
    loaders: int,
    channels_last: bool,
    has_norm: bool,
    what: str = "data.train",
) -> Streamed:
    """Reads the first records. `loaders` processes are to read it; `spec` and `generator`: the class path it was made
    of, and the state of torch's generator before. Raises DataError."""
    data = job.data
    padding = None if data.padding is None else Padding(data.padding.value, data.padding.longest)
    collate = None if data.collate is None else build_callable(data.collate)
    collator = Collator(collate, padding, channels_last=channels_last)
    with own_random_state():
        if is_iterable(dataset):
            records, divides, state = _first_of_iterable(dataset, spec, job, what)
            shards = loaders if divides else 1
            length = len(dataset) if hasattr(type(dataset), "__len__") else None
            plan: EpochPlan = StreamPlan(data.batch_size, shards, length, data.drop_last, drop_single=has_norm)
            notes = [_said_of_shards(dataset, what, shards, loaders)]
        else:
            records, state = _first_of_map(dataset, job, what), b""
            plan = BatchPlan(len(dataset), data.batch_size, data.drop_last, merge_single=has_norm)
            notes = []
        source = _travelling(dataset, spec, generator, collator, plan, what)
        try:
            collator = collator.settle(records)
            form, data_bytes, sizes = _measured(job, collator, records, plan.largest)
        except BadBatch as bad:
            which = f"record {bad.record}" if bad.record is not None else "its first batch"
            raise DataError(f"{what}: {which} {bad.words}", code=bad.code) from bad
        except HogwildError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(
                f"data.collate raised {type(error).__name__} on the first records: {error}", code="data/item-raised"
            ) from error
    stream = Stream(source, collator, plan, data.shuffle, job.seed, what)
    notes = [f"{what} is streamed: {why}", *notes, sizes]
    state_bytes = STATE_ROOM * len(state) + 1024 if state else 0
    return Streamed(stream, form, data_bytes, state_bytes, tuple(records[:TRIAL_RECORDS]), tuple(filter(None, notes)))


def _travelling(
    dataset: Any, spec: Spec | None, generator: Tensor | None, collator: Collator, plan: EpochPlan, what: str
) -> Origin:
    """The data set for the loaders: itself, or, where that cannot be, its class path."""
    if isinstance(dataset, Iterator):  # what was read from it here is gone
        if spec is not None:
            return Origin(None, spec, generator)
        raise DataError(
            f"{what}: a {type(dataset).__name__} can be read only once, and every epoch reads all of it; give "
            "something that begins anew with every iter(…): an IterableDataset, or a class with __iter__",
            code="data/read-once",
        )
    own = Origin(dataset)
    why_not = travels(Stream(own, collator, plan, "none", 0))
    if not why_not:
        return own
    if spec is not None and not travels(Stream(Origin(None, spec), collator, plan, "none", 0)):
        return Origin(None, spec, generator)
    raise DataError(
        f"{what}: {type(dataset).__name__} or data.collate cannot be given to loaders, which are other processes "
        f"({why_not}); open files, locks and connections when the first record is read, not in the constructor",
        code="data/not-picklable",
    )


def _said_of_shards(dataset: Any, what: str, shards: int, loaders: int) -> str:
    if shards > 1:
        return f"{what}: {shards} loaders, each with its own shard ({type(dataset).__name__} asks get_worker_info())"
    if loaders > 1:
        return (
            f"{what}: one loader reads it: {type(dataset).__name__} does not divide its records by get_worker_info(), "
            "so "
            "that every loader would read all of them"
        )
    return ""


def _first_of_map(dataset: Any, job: Job, what: str) -> list[Any]:
    try:
        count = len(dataset)
    except (Exception, SystemExit) as error:
        raise DataError(f"{what}: len() of {type(dataset).__name__} raised {error}", code="data/no-length") from error
    if count == 0:
        raise DataError(f"{what}: the data set is empty; there is nothing to train on", code="data/empty")
    records: list[Any] = []
    for index in _until_seen(range(count), job):
        seed_all(job.seed + index)
        try:
            records.append(dataset[index])
        except (Exception, SystemExit) as error:
            raise DataError(
                f"{what}: reading item {index} raised {type(error).__name__}: {error}", code="data/item-raised"
            ) from error
    return records


def _first_of_iterable(dataset: Any, spec: Spec | None, job: Job, what: str) -> tuple[list[Any], bool, bytes]:
    """(records, whether it divides them among its readers, its state before the first)."""
    info = WatchedInfo(dataset, 0, 1, job.seed)
    set_worker_info(info)
    seed_all(job.seed)
    try:
        iterator = iter(dataset)
        state = state_of(iterator, dataset)
        records = [record for record, _ in zip(iterator, _until_seen(range(1 << 40), job), strict=False)]
        state = max(state, state_of(iterator, dataset), key=len)
    except (Exception, SystemExit) as error:
        raise DataError(
            f"{what}: reading the first records of {type(dataset).__name__} raised {type(error).__name__}: {error}",
            code="data/item-raised",
        ) from error
    if not records:
        raise DataError(
            f"{what}: {type(dataset).__name__} gave no record; there is nothing to train on", code="data/empty"
        )
    return records, info.looked, state


def _until_seen(numbers: Iterable[int], job: Job) -> Iterator[int]:
    """So many records as say how large a batch is."""
    varies = job.data.collate is not None or job.data.padding is not None
    began_s, most = time.monotonic(), max(LOOK_RECORDS, job.data.batch_size) if varies else TRIAL_RECORDS
    for number in numbers:
        is_enough = number >= TRIAL_RECORDS and number >= min(job.data.batch_size, most)
        if number >= most or (is_enough and time.monotonic() - began_s > LOOK_S):
            return
        yield number


def _measured(job: Job, collator: Collator, records: list[Any], largest: int) -> tuple[BatchForm, int, str]:
    """(the form of a batch, bytes of a slot, what is to be said of it)."""
    data, padding = job.data, collator.padding
    form, shapes = collator.form(records[: min(largest, len(records))])
    if isinstance(data.slot_bytes, int):
        return form, data.slot_bytes, ""
    if collator.collate is None and padding is None:
        return form, form.nbytes(tuple((largest, *shape[1:]) for shape in shapes)), ""
    if padding is not None and padding.longest is not None:
        padded = {number + place for place, number in enumerate(padding.fields)}
        whole = tuple(
            (largest, padding.longest, *shape[2:]) if number in padded else (largest, *shape[1:])
            for number, shape in enumerate(shapes)
        )
        return form, form.nbytes(whole), ""
    cut = [records[start : start + largest] for start in range(0, len(records), largest)]
    found = [collator.form(part) for part in cut]
    sizes = {one.nbytes(shapes) * largest / len(part) for (one, shapes), part in zip(found, cut, strict=True)}
    needed = int(max(sizes)) if len(sizes) == 1 else int(MARGIN * max(sizes))
    times = "" if len(sizes) == 1 else f"{MARGIN} times "
    words = f"a slot has {needed:,} bytes, {times}the largest of {len(cut)} batches"
    return form, needed + 64 * len(form.leaves), f"{words} (data.slot_bytes)"


def split(dataset: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    """(what is trained on, what is held back) of a map-style data set. Raises DataError for an iterable."""
    if is_iterable(dataset):
        raise DataError(
            f"data.val.fraction: {type(dataset).__name__} is read from its beginning to its end; give data.val a data "
            "set",
            code="data/split",
        )
    trained, held = division(len(dataset), fraction, seed)
    return Subset(dataset, trained.tolist()), Subset(dataset, held.tolist())
