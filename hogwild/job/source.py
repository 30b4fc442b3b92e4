"""A data set of a job, wherever it is stored (`Source`): as tensors, in shared memory, packed, or in slots of a ring.

Streamed data is set up in the parent (`prepare`): the form of its batches and the size of the ring. User code runs here
only before workers start: the first records are read, collated and checked. Validation data that is kept in whole
batches (padded, collated, or from an iterable) is read once, into a ring that holds all of them
(`read_into_memory`)."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset

from hogwild import host
from hogwild.config.load import Job
from hogwild.config.schema import Data
from hogwild.data.rollout import Rollout
from hogwild.errors import DataError, HogwildError, MemoryShortError
from hogwild.feeds.batch import Batch
from hogwild.feeds.packed import Packed
from hogwild.feeds.resident import ResidentData
from hogwild.feeds.ring import BatchForm, Ring, RingSpec, SlotWord
from hogwild.feeds.row_reader import is_nested, number_of
from hogwild.feeds.stream_reader import (
    NUMBERS,
    BadBatch,
    Collator,
    Filler,
    Origin,
    PaddingRule,
    Stream,
    Unreadable,
    WatchedInfo,
    copies_of,
    iterator_state,
    own_random_state,
    seed_all,
    set_worker_info,
    travels,
)
from hogwild.formatting import size
from hogwild.job.sampling import Sampling
from hogwild.metrics.loss_sums import Labels
from hogwild.scheduling.batch_plan import OPEN, BatchPlan, EpochPlan, SampledPlan, StreamPlan
from hogwild.user_code import ComponentSpec, raised_text

LOOK_RECORDS = 256  # records whose sizes are measured if they vary
LOOK_S = 2.0  # time limit for that
MARGIN = 1.5  # slot size over the largest batch seen, if sizes vary
STATE_ROOM = 4  # space for a state over the size of the first state
TRIAL_RECORDS = 3
LEAVES = (Tensor, np.ndarray, *NUMBERS)
LOOKS = 8  # checks of memory while the free memory is filled: others use it, too


@dataclass(frozen=True, slots=True)
class Streamed:
    """A streamed data set: what loaders need, and what its slots must hold. `trial`: its first records."""

    stream: Stream
    form: BatchForm
    data_bytes: int
    state_bytes: int
    trial: tuple[Any, ...]
    notes: tuple[str, ...] = ()

    def ring_spec(self, slots: int, loaders: int) -> RingSpec:
        return RingSpec(self.form, slots, loaders, self.data_bytes, self.state_bytes)

    @property
    def padded(self) -> tuple[int, ...]:
        """The numbers of the fields that are padded."""
        padding = self.stream.collator.padding
        return () if padding is None else padding.fields

    def labelled(self, labels: Labels) -> "Streamed":
        """Return the same with a check of every batch's labels."""
        stream = replace(self.stream, collator=replace(self.stream.collator, labels=labels))
        return replace(self, stream=stream)

    def contiguous(self) -> "Streamed":
        """Return the same with images in contiguous format."""
        stream = replace(self.stream, collator=replace(self.stream.collator, channels_last=False))
        leaves = tuple(replace(leaf, channels_last=False) for leaf in self.form.leaves)
        return replace(self, stream=stream, form=replace(self.form, leaves=leaves))

    def typical(self) -> list[list[Any]]:
        """Return batches of the sizes that training will see, made of the first records: for compilers, which depend on
        shapes. If sizes are unknown, two different ones, so that a compiler expects any."""
        collator, plan, records = self.stream.collator, self.stream.plan, self.trial
        if isinstance(plan, StreamPlan):
            sizes = [plan.batch_size, *([] if plan.drop_last else [plan.batch_size // 2 + 1])]
        elif isinstance(plan, SampledPlan):
            sizes = [max(plan.sizes), min(plan.sizes)]
        else:
            sizes = [plan.samples_in(number, number + 1) for number in (0, plan.batches - 1)]
        batches = [as_batch(collator, [*islice(cycle(records), size)]) for size in dict.fromkeys(sizes)]
        if collator.collate is not None or collator.padding is not None:  # lengths vary as well
            batches += [as_batch(collator, [record] * sizes[0]) for record in records]
        return batches

    def head(self, records: int = TRIAL_RECORDS) -> list[Any]:
        """Return the first records as a batch: the inputs, and the target; in private memory."""
        return as_batch(self.stream.collator, list(self.trial[:records]))


def collator_of(
    data: Data, collate: Callable[..., Any] | None, *, channels_last: bool = False, padded: Sequence[int] = ()
) -> Collator:
    """Return how items become a batch of this job: in training, in an evaluation, and wherever its model is used.
    `collate`: the function of `data.collate`; `padded`: numbers of the fields to pad, if the training data has told."""
    asked = data.padding
    padding = None if asked is None else PaddingRule(asked.value, asked.longest, asked.target, tuple(padded))
    return Collator(collate, padding, channels_last=channels_last)


def as_batch(collator: Collator, records: list[Any]) -> list[Any]:
    """Return the batch [input, …, target]."""
    form, shapes = collator.form(records)
    ring = Ring.allocate("trial", RingSpec(form, 1, 0, form.nbytes(shapes)))
    rows, shapes = collator.put(records, ring, 0)
    ring.seal(0, rows, shapes)
    batch: Batch = form.batch([leaf.clone() for leaf in ring.leaves(0)], 0, rows)
    return [*batch.inputs, batch.target]


def is_iterable(dataset: Any) -> bool:
    """Return whether it is read from its beginning to its end: an IterableDataset, an iterator, or an object with
    `__iter__` but without `dataset[i]`."""
    kind = type(dataset)
    is_plain = hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__")
    return is_plain or isinstance(dataset, IterableDataset | Iterator)


def has_nested(dataset: Any) -> bool:
    """Return whether a field of its first record (read before) is nested, with tensors, arrays and numbers in it."""
    with torch.random.fork_rng(devices=[]):
        record = dataset[0]
    if not isinstance(record, tuple | list) or len(record) < 2:
        return False
    return any(map(is_nested, record)) and all(isinstance(leaf, LEAVES) for leaf in tree_leaves(record))


def prepare(
    job: Job,
    dataset: Any,
    spec: ComponentSpec | None,
    generator: Tensor | None,
    why: str,
    *,
    loaders: int,
    channels_last: bool,
    has_norm: bool,
    collate: Callable[..., Any] | None = None,
    padded: Sequence[int] = (),
    sampling: Sampling | None = None,
    what: str = "data.train",
) -> Streamed:
    """Read the first records and prepare the stream. `loaders` processes will read it; `spec` and `generator`: the
    class path it was made from, and torch's random state before. `sampling` draws its epochs. Raises DataError."""
    data = job.data
    collator = collator_of(data, collate, channels_last=channels_last, padded=padded)
    varies = collate is not None or data.padding is not None
    plan: EpochPlan
    if what == "data.val" and getattr(dataset, "is_endless", False):
        raise DataError(
            f"{what}: {type(dataset).__name__} never ends (until: stop), and validation data is kept in memory; set "
            "until: end, or leave data.val out and score the stream itself (evaluate.progressive)",
            code="data/endless",
        )
    with own_random_state():
        if is_iterable(dataset):
            records, divides, state = _first_of_iterable(_to_look_at(dataset), job, what, varies=varies)
            shards = loaders if divides else 1
            length = len(dataset) if hasattr(type(dataset), "__len__") else None
            plan = StreamPlan(data.batch_size, shards, length, data.drop_last, drop_single=has_norm)
            notes = [_said_of_shards(dataset, what, shards, loaders), _said_of_single(plan, what)]
        else:
            records, state = _first_of_map(dataset, job, what, varies=varies), b""
            plan = BatchPlan(len(dataset), data.batch_size, data.drop_last, merge_single=has_norm)
            plan = plan if sampling is None else sampling.plan
            notes = []
        source = _travelling(dataset, spec, generator, collator, plan, what)
        try:
            collator = collator.with_padding_of(records)
            form, data_bytes, sizes = _measured(job, collator, records, plan.largest)
        except BadBatch as bad:
            which = f"record {number_of(dataset, bad.record)}" if bad.record is not None else "its first batch"
            raise DataError(f"{what}: {which} {bad.words}", code=bad.code) from bad
        except HogwildError:
            raise
        except (Exception, SystemExit) as error:
            raise _raised("data.collate on the first records", error) from error
    stream = Stream(source, collator, plan, data.shuffle, job.seed, what, _row_bytes(collator, records))
    notes = [f"{what} is streamed: {why}", *notes, sizes]
    state_bytes = STATE_ROOM * len(state) + 1024 if state else 0
    return Streamed(stream, form, data_bytes, state_bytes, tuple(records[:TRIAL_RECORDS]), tuple(filter(None, notes)))


def _row_bytes(collator: Collator, records: list[Any]) -> int:
    if collator.collate is not None or collator.padding is not None:
        return 1
    _, columns = collator.columns(records[:1])
    return sum(math.prod(column.shape) * column.dtype.itemsize for column in columns)


def _travelling(
    dataset: Any, spec: ComponentSpec | None, generator: Tensor | None, collator: Collator, plan: EpochPlan, what: str
) -> Origin:
    """Return the data set for the loaders: the object itself or, if it cannot be sent, its class path."""
    if isinstance(dataset, Iterator) and iter(dataset) is dataset:  # the records read here are lost
        if spec is not None:
            return Origin(None, spec, generator)
        raise DataError(
            f"{what}: a {type(dataset).__name__} can be read only once, but every epoch reads all of it; use an "
            "IterableDataset, or a class whose __iter__ starts again",
            code="data/read-once",
        )
    own = Origin(dataset)
    why_not = travels(Stream(own, collator, plan, "none", 0))
    if not why_not:
        return own
    if spec is not None and not travels(Stream(Origin(None, spec), collator, plan, "none", 0)):
        return Origin(None, spec, generator)
    raise DataError(
        f"{what}: {type(dataset).__name__} or data.collate cannot be sent to loader processes ({why_not}); open "
        "files, locks and connections when the first record is read, not in the constructor",
        code="data/not-picklable",
    )


def _said_of_shards(dataset: Any, what: str, shards: int, loaders: int) -> str:
    if shards > 1:
        return f"{what}: {shards} loaders, each with its own shard ({type(dataset).__name__} asks get_worker_info())"
    if loaders > 1:
        return (
            f"{what}: only one loader reads it, as {type(dataset).__name__} does not use get_worker_info(): with more, "
            "every loader would read all records"
        )
    return ""


def _said_of_single(plan: StreamPlan, what: str) -> str:
    """Return a note: if the length is unknown, the batch before a last single record is already sent."""
    if not plan.drop_single or plan.drop_last or plan.batch_size == 1:
        return ""
    of_each = " of a loader's shard" if plan.shards > 1 else ""
    return (
        f"{what}: the last batch of an epoch{of_each} is left out if it has only one record, as BatchNorm cannot train "
        "on it"
    )


def _first_of_map(dataset: Any, job: Job, what: str, *, varies: bool) -> list[Any]:
    try:
        count = len(dataset)
    except (Exception, SystemExit) as error:
        words = f"{what}: len() of {type(dataset).__name__} raised {raised_text(error)}"
        raise DataError(words, code="data/no-length") from error
    if count == 0:
        raise DataError(f"{what}: the data set is empty; there is nothing to train on", code="data/empty")
    records: list[Any] = []
    get_all = getattr(dataset, "__getitems__", None)
    for index in _until_seen(range(count), job, varies=varies):
        seed_all(job.seed + index)
        try:
            records += get_all([index]) if callable(get_all) else [dataset[index]]
        except (Exception, SystemExit) as error:
            read = f"reading item {number_of(dataset, index)}"
            raise _raised(f"{what}: {read}", error) from error
    return records


def _to_look_at(dataset: Any) -> Any:
    """Return a copy of an iterable, as a loader gets it: reading its first records could otherwise change the place of
    the original. One that cannot be copied (not picklable) is built again in the loaders."""
    if isinstance(dataset, Iterator):
        return dataset
    try:
        return copies_of(dataset)()
    except (Exception, SystemExit):
        return dataset


def _first_of_iterable(dataset: Any, job: Job, what: str, *, varies: bool) -> tuple[list[Any], bool, bytes]:
    """Return (records, whether it divides them among its readers, its state before the first)."""
    info = WatchedInfo(dataset, 0, 1, job.seed)
    set_worker_info(info)
    seed_all(job.seed)
    try:
        iterator = iter(dataset)
        state = iterator_state(iterator, dataset)
        numbers = _until_seen(range(1 << 40), job, varies=varies)
        # The numbers first: the record behind the last one that is needed may not be there yet.
        records = [record for _, record in zip(numbers, iterator, strict=False)]
        state = max(state, iterator_state(iterator, dataset), key=len)
    except (Exception, SystemExit) as error:
        if isinstance(error, DataError) and error.code == "data/state-not-plain":
            raise DataError(f"{what}: {error}", code=error.code) from error
        read = f"reading the first records of {type(dataset).__name__}"
        raise _raised(f"{what}: {read}", error) from error
    if not records:
        raise DataError(
            f"{what}: {type(dataset).__name__} gave no record; there is nothing to train on", code="data/empty"
        )
    return records, info.looked, state


def _raised(doing: str, error: BaseException) -> DataError:
    return DataError(f"{doing} raised {raised_text(error)}", code="data/item-raised")


def _until_seen(numbers: Iterable[int], job: Job, *, varies: bool) -> Iterator[int]:
    """Yield as many numbers as records are needed to know the size of a batch."""
    began_s, most = time.monotonic(), max(LOOK_RECORDS, job.data.batch_size) if varies else TRIAL_RECORDS
    for number in numbers:
        is_enough = number >= TRIAL_RECORDS and number >= min(job.data.batch_size, most)
        if number >= most or (is_enough and time.monotonic() - began_s > LOOK_S):
            return
        yield number


def _measured(job: Job, collator: Collator, records: list[Any], largest: int) -> tuple[BatchForm, int, str]:
    """Return (the form of a batch, bytes of a slot, a note)."""
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
    words = f"a slot has {size(needed)}, {times}the largest of {len(cut)} batches"
    return form, needed + 64 * len(form.leaves), f"{words} (data.slot_bytes)"


# ---- validation data in a ring --------------------------------------------------------------------------------------


@dataclass(slots=True)
class HeldRing:
    """All batches of the validation data in a separate ring, one slot each: read once, before workers start."""

    ring: Ring
    plan: BatchPlan
    targets: Tensor | None  # (N, …), if all have the same shape

    def batch(self, number: int) -> list[Any]:
        """Return a batch: inputs, and target."""
        leaves = [leaf.clone() for leaf in self.ring.leaves(number)]
        batch = self.ring.spec.form.batch(leaves, 0, self.ring.rows(number))
        return [*batch.inputs, batch.target]


def read_into_memory(streamed: Streamed, batch_size: int, what: str) -> HeldRing:
    """Read the stream to its end, in this process. Raises DataError, MemoryShortError."""
    plan = streamed.stream.plan
    if isinstance(plan, StreamPlan):
        plan = replace(plan, batch_size=batch_size, shards=1, drop_last=False, drop_single=False)
    else:
        plan = BatchPlan(plan.samples, batch_size)
    stream = replace(streamed.stream, plan=plan, order="none", what=what)
    spec = streamed.ring_spec(1, 0)
    spec = replace(spec, data_bytes=-(-spec.data_bytes // max(1, streamed.stream.plan.largest)) * batch_size * 2)
    ring = Ring.allocate("val-slot", spec)
    filler = Filler(stream, ring)
    kept: list[tuple[tuple[Tensor, ...], int]] = []
    memory = _Room(what)
    with own_random_state():
        while len(kept) < plan.batches:
            ring.table[0, : SlotWord.FROM + 1] = (0, len(kept), 0, len(kept), 0)
            try:
                if not filler.fill(0):
                    break
            except Unreadable as bad:
                raise bad.error from bad.__cause__
            memory.reserve(sum(leaf.nbytes for leaf in ring.leaves(0)), ring.rows(0))
            kept.append((tuple(leaf.clone() for leaf in ring.leaves(0)), ring.rows(0)))
    return _in_memory(kept, spec, batch_size)


@dataclass(slots=True)
class _Room:
    """A check of free memory: the length of an iterable is unknown, and the kernel overcommits. The data is in memory
    twice at the end, as it is copied into its ring, where every batch takes as much space as the largest."""

    what: str
    records: int = 0
    batches: int = 0
    largest: int = 0
    nbytes: int = 0
    _left: int = 0  # bytes until the next check

    def reserve(self, nbytes: int, records: int) -> None:
        """Count one more batch. Raises MemoryShortError."""
        if self._left < nbytes or self.largest < nbytes:
            memory = host.available_memory()
            room = memory.bytes - nbytes - (self.batches + 1) * max(self.largest, nbytes)
            if room < 0:
                raise MemoryShortError(
                    f"{self.what}: after {self.records:,} records, which take {size(self.nbytes)}, only "
                    f"{size(memory.bytes)} are free ({memory.limited_by}), and there are more records. All are kept in "
                    "memory, and twice while they are read: use fewer records (an iterable must end) or a larger limit",
                    code="run/memory-short",
                )
            self._left = max(nbytes, room // LOOKS)
        self.records, self.batches, self.largest = self.records + records, self.batches + 1, max(self.largest, nbytes)
        self.nbytes, self._left = self.nbytes + nbytes, self._left - nbytes


def _in_memory(kept: list[tuple[tuple[Tensor, ...], int]], spec: RingSpec, batch_size: int) -> HeldRing:
    shapes = [tuple(tuple(leaf.shape) for leaf in leaves) for leaves, _ in kept]
    largest = max(spec.form.nbytes(each) for each in shapes)
    whole = Ring.allocate("data-val", replace(spec, slots=len(kept), data_bytes=largest, state_bytes=0))
    for slot, ((leaves, rows), each) in enumerate(zip(kept, shapes, strict=True)):
        for view, leaf in zip(whole.reserve(slot, each), leaves, strict=True):
            view.copy_(leaf)
        whole.seal(slot, rows, each)
        whole.table[slot, SlotWord.BATCH], whole.table[slot, SlotWord.FILLED] = slot, 1
    targets = [leaves[-1] for leaves, _ in kept]
    are_alike = len({target.shape[1:] for target in targets}) == 1 and targets[0].dim() > 0
    samples = sum(rows for _, rows in kept)
    return HeldRing(whole, BatchPlan(samples, batch_size), torch.cat(targets) if are_alike else None)


_AT_ITS_END = "known at the end of the stream"
METRIC_SAMPLES = 64  # spread over the validation data, so that a metric sees more than one class


@dataclass(slots=True)
class Source:
    """One data set: its fields as tensors (N, …), inputs first and target last, and its batches. For a stream only the
    first records are here (`streamed`), for validation data in a ring all batches (`held`), for a `rollout` the
    position that was played before the start."""

    tensors: tuple[Tensor, ...]  # () for packed or streamed data
    plan: EpochPlan
    resident: ResidentData | None = None  # if they are already in shared memory
    packed: Packed | None = None
    streamed: Streamed | None = None
    held: HeldRing | None = None
    rollout: Rollout | None = None
    sampling: Sampling | None = None  # draws its epochs
    dataset: Any = None  # what the user gave, before a part of it was held out
    left_out: np.ndarray | None = None  # numbers (n, k) of the names in those rows that a ranking loss leaves out

    @property
    def nbytes(self) -> int:
        """Bytes of the data; 0 for a stream, whose ring is counted with its layout."""
        if self.packed is not None:
            return self.packed.nbytes
        if self.held is not None:
            return self.held.ring.spec.nbytes
        if self.rollout is not None:
            return 0
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    @property
    def target(self) -> Any:
        """The targets (N, …); for a stream those of its first records."""
        if self.streamed is not None:
            return self.head(METRIC_SAMPLES)[-1]
        if self.held is not None:
            return self.held.targets if self.held.targets is not None else self.held.batch(0)[-1]
        return self.tensors[-1] if self.packed is None else self.packed.targets()

    @property
    def targets(self) -> Iterator[Any]:
        """All targets, in parts (n, …): of data in a ring those of each batch; for a stream of its first records."""
        many = self.held.plan.batches if self.held is not None and self.held.targets is None else 0
        return (self.held.batch(number)[-1] for number in range(many)) if self.held and many else iter((self.target,))

    @property
    def weights(self) -> Tensor:
        """The weights (N,) of weighted data."""
        return self.tensors[-2] if self.packed is None else self.packed.weights()

    @property
    def is_there_already(self) -> bool:
        """True if the data is in the shared memory it will be trained from."""
        return self.resident is not None or self.packed is not None or self.held is not None

    def lay_contiguous(self) -> None:
        """Undo the channels_last layout of images: data in shared memory is copied again when it is laid out."""
        self.resident = None
        self.streamed = None if self.streamed is None else self.streamed.contiguous()

    def pick(self, rows: Tensor) -> list[Any]:
        """Return the samples `rows` (n,) int64 as a batch: the inputs, and the target."""
        if self.packed is None:
            return [tensor[rows] for tensor in self.tensors]
        batch: Batch = self.packed.pick(rows.numpy())
        return [*(tensor.clone() for tensor in batch.inputs), batch.target.clone()]

    def head(self, samples: int) -> list[Any]:
        """Return the first samples as a batch; for data in a ring at most its first batch."""
        if self.streamed is not None:
            return self.streamed.head(samples)
        if self.held is not None:
            return self.held.batch(0)
        return self.pick(torch.arange(min(samples, self._rows)))

    def spread(self) -> list[Any]:
        """Return samples spread over all of it, as a batch."""
        if self.streamed is not None or self.held is not None or self.rollout is not None:
            return self.head(METRIC_SAMPLES)
        samples = self._rows
        chosen = torch.linspace(0, samples - 1, min(METRIC_SAMPLES, samples), dtype=torch.float64)
        return self.pick(chosen.long().unique())

    @property
    def _rows(self) -> int:
        """Samples in memory: an epoch of lanes has fewer, one that a sampler draws may have more."""
        return len(self.tensors[-1]) if self.tensors else self.plan.samples

    def size(self) -> dict[str, Any]:
        """Return the size of an epoch; for an iterable it is unknown before the end."""
        if self.plan.batches < OPEN:
            return {"samples": self.plan.samples, "batches": self.plan.batches}
        return {"samples": self.plan.samples or _AT_ITS_END, "batches": _AT_ITS_END}

    def fields(self) -> dict[str, str]:
        """Return the fields as text."""
        if self.packed is not None:
            return {spec.name: f"{spec.shape} {spec.dtype}" for spec in self.packed.spec.arrays}
        if self.streamed is not None:
            leaves = self.streamed.form.leaves
            return {f"field {k}": f"streamed {str(leaf.dtype).removeprefix('torch.')}" for k, leaf in enumerate(leaves)}
        if self.rollout is not None:
            return {f"field {k}": f"played {type_name(one)}" for k, one in enumerate(self.tensors)}
        return {f"field {k}": f"{tuple(one.shape)} {type_name(one)}" for k, one in enumerate(self.tensors)}

    def row_kinds(self, with_shapes: bool = True) -> list[str]:
        """Return shape and type of a row of each field (in a ring, of its first batch), to compare data sets."""
        leaves = self.tensors or tree_leaves(self.head(METRIC_SAMPLES))
        return [f"{tuple(leaf.shape[1:])} {type_name(leaf)}" if with_shapes else type_name(leaf) for leaf in leaves]


def type_name(tensor: Tensor) -> str:
    """Return the type of the numbers, such as float32."""
    return str(tensor.dtype).removeprefix("torch.")
