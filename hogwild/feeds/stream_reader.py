"""Reading streamed data: records of one batch after the other, from a map-style data set or an iterable, into slots of
the ring. Runs in a loader, or in the only process (`procs: 0`).

    map-style     positions of the batch in the epoch's order -> dataset[i], or dataset.__getitems__([i, …])
    iterable      the next `batch_size` records of this shard's iterator

Before a batch is read, the generators of torch, Python and numpy are seeded from (seed, epoch, batch), so a batch is
the same in any process. `state_dict()` of the iterator, or else of the data set, gives its place; without it, a
restarted reader reads the earlier records again and skips them. States are stored in checkpoints, so they consist of
plain values, and reading them executes no code."""

import io
import pickle
import random
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.data import Subset
from torch.utils.data._utils import worker as torch_worker

from hogwild import by_value
from hogwild.errors import CheckpointError, DataError, HogwildError
from hogwild.feeds.ring import MOST_DIMENSIONS, BatchForm, Leaf, Ring, Shapes, SlotWord, TooLarge
from hogwild.feeds.row_reader import as_tensor, is_nested, number_of, place_of
from hogwild.feeds.sample_order import Order, make_order
from hogwild.metrics.loss_sums import Labels
from hogwild.scheduling.batch_plan import EpochPlan, StreamPlan, mix
from hogwild.user_code import ComponentSpec, build, raised_text, user_frame

NUMBERS = (bool, int, float, np.number, np.bool_)


class BadBatch(Exception):
    """Records that cannot form a batch. `words` says why; `record` is the number within the batch, or None."""

    def __init__(self, words: str, code: str, record: int | None = None) -> None:
        super().__init__(words)
        self.words, self.code, self.record = words, code, record


@dataclass(frozen=True, slots=True)
class PaddingRule:
    """The settings of `data.padding`: `value` pads inputs, `target` pads the last field. `fields`: numbers of the
    fields that vary, once they are known."""

    value: float = 0
    longest: int | None = None
    target: float = -100
    fields: tuple[int, ...] = ()


@dataclass(slots=True)
class BatchLeaf:
    """One leaf of a batch before it is written: one tensor, or one piece per record. With `lengths` the pieces are
    padded with `filler`."""

    pieces: Any  # a Tensor, or a list of tensors, arrays or numbers
    dtype: torch.dtype
    shape: tuple[int, ...]
    lengths: list[int] | None = None
    filler: float = 0

    def write(self, view: Tensor) -> None:
        """Write into the slot's memory `view`, which has this shape."""
        if isinstance(self.pieces, Tensor):
            view.copy_(self.pieces)
        elif self.lengths is not None:
            view.fill_(self.filler)
            for row, (piece, length) in enumerate(zip(self.pieces, self.lengths, strict=True)):
                view[row, :length] = piece if isinstance(piece, Tensor) else torch.as_tensor(piece)
        elif isinstance(self.pieces[0], Tensor):
            if view.is_contiguous():
                torch.stack(self.pieces, out=view)
            else:
                view.copy_(torch.stack(self.pieces))
        elif isinstance(self.pieces[0], np.ndarray) and view.is_contiguous():
            np.stack(self.pieces, out=view.numpy())
        else:
            view.copy_(torch.from_numpy(np.stack(self.pieces)).reshape(view.shape))


@dataclass(frozen=True, slots=True)
class Columns:
    """Records of equal form: an array (n, …) of each field, not of objects. An iterator whose method `next_columns`
    returns them is not asked for each record; it draws no random numbers."""

    fields: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.fields[0])

    def records(self) -> list[Any]:
        return list(zip(*self.fields, strict=True))


@dataclass(frozen=True, slots=True)
class Collator:
    """Makes batches of records: stacked, padded, or by the user's own `collate_fn`.

        no collate         a record is a tuple (input, …, target) of tensors, arrays and numbers, nested or not: equal
                           leaves are stacked, (B, …) each
        padding            the same, and fields whose first dimension varies are padded to the longest of the batch,
                           (B, T, …); lengths of inputs, (B,) int64, follow them as one more field
        a collate_fn       batch = collate_fn([record, …]), as in torch.utils.data.DataLoader

    The result is (input, …, target), nested in any way; its leaves are tensors, arrays or numbers.

    `channels_last`: memory format of images. `labels`: the valid targets. An invalid one
    would otherwise raise in the middle of an update on a CPU, and destroy the worker's CUDA context on a GPU."""

    collate: Callable[[list[Any]], Any] | None = None
    padding: PaddingRule | None = None
    channels_last: bool = False
    labels: Labels | None = None

    def with_padding_of(self, records: Sequence[Any]) -> "Collator":
        """Return a collator that knows which fields to pad: those of different length in `records`, else the first."""
        if self.padding is None or self.padding.fields:
            return self
        fields = [_as_tuple(record) for record in records]
        numbers = [
            number
            for number in range(len(fields[0]))
            if len({_length(record[number]) for record in fields if number < len(record)}) > 1
        ]
        return replace(self, padding=replace(self.padding, fields=tuple(numbers) or (0,)))

    @property
    def is_plain(self) -> bool:
        return self.collate is None and self.padding is None

    def columns(self, records: list[Any] | Columns) -> tuple[TreeSpec, list[BatchLeaf]]:
        """Return the nesting and the leaves of the batch. Raises BadBatch, and what the user's collate_fn raises."""
        if isinstance(records, Columns):
            whole = [torch.from_numpy(field) for field in records.fields]
            return _flat(len(whole)), [BatchLeaf(one, one.dtype, tuple(one.shape)) for one in whole]
        if self.collate is not None:
            return self._collated(self.collate(records))
        if self.padding is not None:
            return self._padded([_as_tuple(record) for record in records])
        first, tree = tree_flatten(_as_tuple(records[0]))
        if (fields := _plain_fields(records)) is not None:
            return tree, [_stacked(pieces, field) for field, pieces in enumerate(fields)]
        leaves: list[list[Any]] = [[leaf] for leaf in first]
        for number, record in enumerate(records[1:], 1):
            flat, other = tree_flatten(_as_tuple(record, number))
            if other != tree:
                words = f"is nested as {_describe(other)}, the first of its batch as {_describe(tree)}"
                raise BadBatch(words, "data/unlike-items", number)
            for column, leaf in zip(leaves, flat, strict=True):
                column.append(leaf)
        return tree, [_stacked(column, field) for field, column in enumerate(leaves)]

    def _padded(self, records: list[tuple[Any, ...]]) -> tuple[TreeSpec, list[BatchLeaf]]:
        assert self.padding is not None
        columns: list[BatchLeaf] = []
        width = len(records[0])
        for number, record in enumerate(records):
            if len(record) != width:
                raise BadBatch(f"has {len(record)} fields, the first {width}", "data/unlike-items", number)
        for field in range(width):
            pieces = [record[field] for record in records]
            if field in self.padding.fields:
                columns += self._pad(pieces, field, is_target=field == width - 1)
            else:
                columns.append(_stacked(pieces, field))
        return tree_flatten(tuple(range(len(columns))))[1], columns

    def _pad(self, pieces: list[Any], field: int, *, is_target: bool) -> list[BatchLeaf]:
        """Return the padded field; the lengths follow an input, but not a target, which stays last."""
        assert self.padding is not None
        tensors = [torch.as_tensor(piece) for piece in pieces]
        dtype, rest = tensors[0].dtype, tuple(tensors[0].shape[1:])
        for number, tensor in enumerate(tensors):
            if tensor.dim() == 0:
                raise BadBatch(f"has a single number as field {field}, which data.padding pads", "data/padding", number)
            if tuple(tensor.shape[1:]) != rest or tensor.dtype != dtype:
                words = f"field {field} is {_shape(tensor)}, in the first {_shape(tensors[0])}"
                raise BadBatch(f"{words}; only the first dimension may vary", "data/unlike-items", number)
            if self.padding.longest is not None and len(tensor) > self.padding.longest:
                words = f"has {len(tensor)} elements in field {field}, more than data.padding.longest"
                raise BadBatch(f"{words} {self.padding.longest}", "data/padding", number)
        lengths = [len(tensor) for tensor in tensors]
        if dtype == torch.float64 and not isinstance(pieces[0], Tensor | np.ndarray):
            dtype = torch.float32
        shape = (len(tensors), max(lengths), *rest)
        if is_target:
            return [BatchLeaf(tensors, dtype, shape, lengths, self.padding.target)]
        padded = BatchLeaf(tensors, dtype, shape, lengths, self.padding.value)
        return [padded, BatchLeaf(torch.tensor(lengths), torch.int64, (len(lengths),))]

    def _collated(self, batch: Any) -> tuple[TreeSpec, list[BatchLeaf]]:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            words = f"collate_fn returned a {type(batch).__name__}; a batch is a tuple (input, …, target)"
            raise BadBatch(words, "data/bad-batch")
        leaves, tree = tree_flatten(tuple(batch))
        columns = []
        for leaf in leaves:
            if not isinstance(leaf, (Tensor, np.ndarray, *NUMBERS)):
                words = f"collate_fn returned a {type(leaf).__name__} inside its batch"
                raise BadBatch(f"{words}; return only tensors, arrays and numbers", "data/bad-batch")
            is_float = type(leaf) is float
            tensor = torch.tensor(leaf, dtype=torch.float32) if is_float else torch.as_tensor(leaf)
            if tensor.layout != torch.strided:
                raise BadBatch(f"collate_fn returned a {tensor.layout} tensor; return dense ones", "data/bad-batch")
            columns.append(BatchLeaf(tensor.detach(), tensor.dtype, tuple(tensor.shape)))
        return tree, columns

    def form(self, records: list[Any]) -> tuple[BatchForm, Shapes]:
        """Return the form and the shapes of a stream's batches, from its first records."""
        tree, columns = self.columns(records)
        leaves = []
        for number, column in enumerate(columns):
            _check_dimensions(number, column)
            is_image = len(column.shape) == 4 and column.dtype.is_floating_point and number < len(columns) - 1
            leaves.append(Leaf(column.dtype, channels_last=is_image and self.channels_last))
        return BatchForm.of(tree, leaves), tuple(column.shape for column in columns)

    def put(self, records: list[Any] | Columns, ring: Ring, slot: int) -> tuple[int, Shapes]:
        """Write the batch into the slot and return (rows, shapes). Raises BadBatch."""
        tree, columns = self.columns(records)
        form = ring.spec.form
        if tree != ring.tree:
            words = f"is nested as {_describe(tree)}, the first batch as {form.nesting}"
            raise BadBatch(words, "data/unlike-items")
        for number, (column, leaf) in enumerate(zip(columns, form.leaves, strict=True)):
            if column.dtype != leaf.dtype:
                words = f"tensor {number} is {_type(column.dtype)}, in the first batch {_type(leaf.dtype)}"
                raise BadBatch(words, "data/unlike-items")
            _check_dimensions(number, column)
        shapes = tuple(column.shape for column in columns)
        try:
            views = ring.reserve(slot, shapes)
        except TooLarge as error:
            raise BadBatch(
                f"takes {error.args[0]:,} bytes ({', '.join(map(str, shapes))}), but a slot has only "
                f"{ring.spec.data_bytes:,}: set data.slot_bytes, or data.padding.longest",
                "data/batch-too-large",
            ) from error
        for column, view in zip(columns, views, strict=True):
            column.write(view)
        if self.labels is not None and (wrong := self.labels.wrong(views[-1])) is not None:
            row, value = wrong
            words = f"has label {self.labels.describe(value)}"
            raise BadBatch(words, "data/labels", None if self.collate is not None else row)
        return len(records), shapes


@cache
def _flat(leaves: int) -> TreeSpec:
    """Return the nesting of a tuple of so many tensors."""
    return tree_flatten(tuple(range(leaves)))[1]


def _check_dimensions(number: int, column: BatchLeaf) -> None:
    if len(column.shape) > MOST_DIMENSIONS:
        words = f"tensor {number} has {len(column.shape)} dimensions; a streamed batch has at most {MOST_DIMENSIONS}"
        raise BadBatch(words, "data/bad-batch")


def _plain_fields(records: list[Any]) -> list[list[Any]] | None:
    """Return the pieces of each field if all records are tuples of the same number of tensors, arrays and numbers; None
    otherwise. Covers most data and is thirty times as fast as flattening every record."""
    if not _are(records, (tuple, list)) or len(set(map(len, records))) > 1:
        return None
    fields = [list(pieces) for pieces in zip(*records, strict=True)]
    return fields if all(_are(pieces, (Tensor, np.ndarray, *NUMBERS)) for pieces in fields) else None


def _are(things: list[Any], kinds: tuple[type, ...]) -> bool:
    """Return whether all things are of these kinds. Checks each distinct type once, not each thing."""
    return all(issubclass(kind, kinds) for kind in set(map(type, things)))


def _stacked(pieces: list[Any], field: int) -> BatchLeaf:
    """Stack equal leaves of all records. Like torch's default collation, but a Python float becomes float32."""
    first = pieces[0]
    if isinstance(first, Tensor):
        pieces = [piece.detach() for piece in pieces] if first.requires_grad else pieces
        shape, dtype = first.shape, first.dtype
        are_tensors = _are(pieces, (Tensor,))
        for number, piece in enumerate(pieces):
            if not (are_tensors or isinstance(piece, Tensor)) or piece.shape != shape or piece.dtype != dtype:
                raise _unlike(piece, first, field, number)
        if first.layout != torch.strided:
            raise BadBatch(f"field {field} is a {first.layout} tensor; use dense ones", "data/not-dense", 0)
        return BatchLeaf(pieces, dtype, (len(pieces), *shape))
    if isinstance(first, np.ndarray):
        for number, piece in enumerate(pieces):
            if not isinstance(piece, np.ndarray) or piece.shape != first.shape or piece.dtype != first.dtype:
                raise _unlike(piece, first, field, number)
        return BatchLeaf(pieces, torch.from_numpy(np.empty(0, first.dtype)).dtype, (len(pieces), *first.shape))
    for number, piece in enumerate(pieces) if not _are(pieces, NUMBERS) else ():
        if not isinstance(piece, NUMBERS):
            words = f"field {field} is a {type(piece).__name__}; use tensors, arrays or numbers, or set data.collate"
            raise BadBatch(words, "data/bad-item", number)
    is_float = any(issubclass(kind, float) and not issubclass(kind, np.floating) for kind in set(map(type, pieces)))
    whole = torch.tensor(pieces, dtype=torch.float32) if is_float else torch.from_numpy(np.array(pieces))
    return BatchLeaf(whole, whole.dtype, (len(pieces),))


def _unlike(piece: Any, first: Any, field: int, number: int) -> BadBatch:
    words = f"field {field} is {_shape(piece)}, in the first record of its batch {_shape(first)}"
    return BadBatch(f"{words}; set data.padding or data.collate for records that vary", "data/unlike-items", number)


def _as_tuple(record: Any, number: int = 0) -> tuple[Any, ...]:
    if not isinstance(record, (tuple, list)) or len(record) < 2:
        words = f"is a {type(record).__name__}; a record is a tuple (input, …, target), or set data.collate"
        raise BadBatch(words, "data/bad-item", number)
    return tuple(as_tensor(field) if isinstance(field, list) and not is_nested(field) else field for field in record)


def _length(field: Any) -> int:
    return len(field) if isinstance(field, (Tensor, np.ndarray, list)) and np.ndim(field) else -1


def _shape(piece: Any) -> str:
    if isinstance(piece, Tensor):
        return f"{tuple(piece.shape)} {_type(piece.dtype)}"
    return f"{piece.shape} {piece.dtype}" if isinstance(piece, np.ndarray) else f"a {type(piece).__name__}"


def _type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _describe(tree: TreeSpec) -> str:
    return str(tree_unflatten(range(tree.num_leaves), tree))


READ_SEED, BEGIN_SEED = -6, -7  # seeds for reading a batch's records, and for starting an iterator


@dataclass(frozen=True, slots=True)
class Origin:
    """The data set as it is sent to a loader: the object itself, or the class path to build it from there (for one that
    cannot be pickled, or a function that returns an iterator), with the random state before its constructor ran."""

    dataset: Any = None
    spec: ComponentSpec | None = None
    generator: torch.Tensor | None = None  # (n,) uint8

    def open(self) -> Any:
        if self.spec is None:
            return self.dataset
        with torch.random.fork_rng(devices=[]):
            if self.generator is not None:
                torch.set_rng_state(self.generator)
            return build(self.spec)


@dataclass(frozen=True, slots=True)
class Stream:
    """Everything a loader needs. Crosses processes by value. `row_bytes`: size of a record if all are alike; then
    `chunked` uses the same chunks as for this data in memory, where a resumed job may put it (feed: auto)."""

    source: Origin
    collator: Collator
    plan: EpochPlan
    order: str
    seed: int
    what: str = "data.train"
    row_bytes: int = 1

    @property
    def is_iterable(self) -> bool:
        return isinstance(self.plan, StreamPlan)


class Unreadable(Exception):
    """A batch could not be read, for `error`; `kind` and `place`: type and source line of the user's exception."""

    def __init__(self, error: HogwildError, kind: str, place: str, trace: str) -> None:
        super().__init__(str(error))
        self.error, self.kind, self.place, self.trace = error, kind, place, trace


def seed_all(value: int) -> None:
    """Seed every generator that a data set may use."""
    torch.default_generator.manual_seed(value)
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)


class WatchedInfo(torch_worker.WorkerInfo):
    """The result of `get_worker_info()`; `looked` records whether the data set used it to shard its records."""

    def __init__(self, dataset: Any, shard: int, shards: int, seed: int) -> None:
        super().__init__(id=shard, num_workers=shards, seed=seed, dataset=dataset)
        object.__setattr__(self, "looked", False)

    def __getattribute__(self, name: str) -> Any:
        if name in ("id", "num_workers"):
            object.__setattr__(self, "looked", True)
        return object.__getattribute__(self, name)


def set_worker_info(info: Any) -> None:
    """Set the result of torch.utils.data.get_worker_info() in this process."""
    torch_worker._worker_info = info


@contextmanager
def own_random_state() -> Iterator[None]:
    """Restore the process's random generators afterwards."""
    python, numbers = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)
        set_worker_info(None)


class Filler:
    """Fills slots. One per process; `beat(position)` is called before every record."""

    def __init__(
        self,
        stream: Stream,
        ring: Ring,
        beat: Callable[[int], object] = lambda position: None,
        loader: int = 0,
        again: Callable[[], Stream] | None = None,
        order: Order | None = None,
        run_dir: str | None = None,
    ) -> None:
        """`again` returns the stream as it was before anything was read from it. `order`: of a job with a sampler.
        `run_dir`: for a data set that keeps something there."""
        self._stream, self._ring, self._beat = stream, ring, beat
        self._again = (lambda: stream) if again is None else again
        self._run_dir = run_dir
        self._dataset = self._opened(stream)
        self._is_amid = self._was_ended = False  # of an iterable: begun and not finished; finished before
        self._loader = loader
        self._order = order
        if order is None and not stream.is_iterable:
            self._order = make_order(stream.order, stream.plan.samples, seed=stream.seed, row_bytes=stream.row_bytes)
        self._shards: dict[int, _Records] = {}
        self._epoch = -1
        self.has_passed_over = False  # read and skipped records of other batches to reach the last one

    def fill(self, slot: int) -> bool:
        """Read the batch of `slot` (from the table); return False if the shard ends before it. Raises Unreadable."""
        self.has_passed_over = False
        row = self._ring.table[slot]
        epoch, batch = int(row[SlotWord.EPOCH]), int(row[SlotWord.BATCH])
        if self._order is None:
            self._introduce(int(row[SlotWord.SHARD]), self._shards_of_plan)
            return self._fill_next(slot, epoch, batch)
        if epoch != self._epoch:
            _set_epoch(self._dataset, epoch)
        self._epoch = epoch
        self._introduce(self._loader, self._ring.spec.loaders)
        first, last = self._stream.plan.positions(batch)
        rows = self._order.indices(epoch, first, last).tolist()
        seed_all(mix(self._stream.seed, epoch, batch, READ_SEED))
        records = self._read(rows, epoch, batch)
        self._put(slot, records, rows)
        return True

    @property
    def _shards_of_plan(self) -> int:
        assert isinstance(self._stream.plan, StreamPlan)
        return self._stream.plan.shards

    def _introduce(self, number: int, count: int) -> None:
        """Set the worker info for a data set that asks for it."""
        set_worker_info(WatchedInfo(self._dataset, number, max(1, count), self._stream.seed + number))

    def _read(self, rows: list[int], epoch: int, batch: int) -> list[Any]:
        get_all = getattr(self._dataset, "__getitems__", None)
        row = rows[0]
        try:
            if callable(get_all):
                self._beat(row)
                return list(get_all(rows))
            records = []
            for row in rows:
                self._beat(row)
                records.append(self._dataset[row])
            return records
        except (Exception, SystemExit) as error:
            number = number_of(self._dataset, row)
            which = f"items {number}, …" if callable(get_all) else f"item {number}"
            raise self._raised(f"reading {which} (epoch {epoch}, batch {batch})", error) from error

    def _fill_next(self, slot: int, epoch: int, batch: int) -> bool:
        shard = int(self._ring.table[slot, SlotWord.SHARD])
        try:
            records, before, found = self._read_next(slot, epoch, shard)
            # It gave no record but did before: its data set keeps its place, the end of the previous epoch.
            if not found and records.is_again and records.has_ended and records.position == 0:
                self._is_amid = True
                self._shards.pop(shard)
                records, before, found = self._read_next(slot, epoch, shard)
            after = records.state() if found else b""
        except (Exception, SystemExit) as error:
            self._shards.pop(shard, None)  # an iterator that has raised cannot continue
            raise self._raised(f"the iterator (epoch {epoch}, batch {batch})", error) from error
        if not found:
            return False
        self._put(slot, found, None, before, after)
        return True

    def _read_next(self, slot: int, epoch: int, shard: int) -> tuple["_Records", bytes, list[Any] | Columns]:
        """Return (iterator of the shard, its state before the batch, records of the batch; [] at the end)."""
        place, begin = (int(self._ring.table[slot, word]) for word in (SlotWord.PLACE, SlotWord.FROM))
        records = self._shards.get(shard)
        if records is None or records.epoch != epoch or records.place > place:
            state = self._ring.read_begin(slot)
            records = self._start_shard(epoch, shard, *((begin, state) if state and begin <= place else (0, b"")))
        while records.place < place:  # read by an earlier attempt
            self.has_passed_over = True
            if not self._next(records):
                return records, b"", []
        before = records.state()
        if (note := getattr(records.iterator, "note_given_rows", None)) is not None:
            note()  # they are in slots, or trained
        return records, before, self._next(records)

    def _start_shard(self, epoch: int, shard: int, place: int, state: bytes) -> "_Records":
        """Start the shard's iterator. An iterable may keep its position in itself, so a data set left in the middle is
        opened again in its first state."""
        spec = self._stream.source.spec
        if spec is not None and isinstance(self._dataset, Iterator):  # can be read only once
            seed_all(mix(self._stream.seed, epoch, shard, BEGIN_SEED))
            self._dataset = build(spec)
        elif self._is_amid:
            self._dataset, self._was_ended = self._opened(self._again()), False
        self._is_amid = True
        self._introduce(shard, self._shards_of_plan)
        _set_epoch(self._dataset, epoch)
        is_again = self._was_ended and not state and _has_state(self._dataset)
        seed_all(mix(self._stream.seed, epoch, shard, BEGIN_SEED))
        iterator: Any = iter(self._dataset)
        if state and _has_state(iterator):
            iterator.load_state_dict(read_state(state))
        elif state:
            self._dataset.load_state_dict(read_state(state))
            iterator = iter(self._dataset)
        self._shards[shard] = _Records(self._dataset, iterator, self._stream, epoch, shard, place, is_again)
        return self._shards[shard]

    def _opened(self, stream: Stream) -> Any:
        dataset = stream.source.open()
        if hasattr(dataset, "run_dir_of_job"):
            dataset.run_dir_of_job = self._run_dir
        return dataset

    def _next(self, records: "_Records") -> list[Any] | Columns:
        found = records.next(self._beat)
        self._is_amid = not records.has_ended
        self._was_ended = self._was_ended or records.has_ended
        return found

    def _put(self, slot: int, records: list[Any] | Columns, rows: list[int] | None, *states: bytes) -> None:
        """Write the batch into its slot, with the iterator's states before and after it, if any."""
        epoch, batch = (int(self._ring.table[slot, word]) for word in (SlotWord.EPOCH, SlotWord.BATCH))
        try:
            count, shapes = self._stream.collator.put(records, self._ring, slot)
        except BadBatch as bad:
            which = f"batch {batch} of epoch {epoch}"
            if bad.record is not None:
                item = f"record {bad.record}"
                if rows is not None:
                    number = number_of(self._dataset, rows[bad.record])
                    item = f"item {number}{place_of(self._dataset, number)}"
                which = f"{item}, in {which},"
            error = DataError(f"{self._stream.what}: {which} {bad.words}", code=bad.code)
            raise Unreadable(error, "BadBatch", bad.code, "") from bad
        except (Exception, SystemExit) as error:
            raise self._raised(f"collating epoch {epoch}, batch {batch}", error) from error
        self._ring.seal(slot, count, shapes, *states)

    def _raised(self, doing: str, error: BaseException) -> Unreadable:
        code = error.code if isinstance(error, HogwildError) else "data/item-raised"
        words = f"{self._stream.what}: {doing} raised {raised_text(error)}"
        trace = "".join(traceback.format_exception(error))
        return Unreadable(DataError(words, code=code), type(error).__name__, user_frame(error), trace)


@dataclass(slots=True)
class _Records:
    """The iterator of one shard in one epoch, and the place of its next batch."""

    dataset: Any
    iterator: Iterator[Any]
    stream: Stream
    epoch: int
    shard: int
    place: int
    is_again: bool  # the data set has a state and was read to its end before
    position: int = 0  # records read
    has_ended: bool = False
    _state: bytes | None = None  # since the last record was read

    def next(self, beat: Callable[[int], object]) -> list[Any] | Columns:
        """Return the records of the next batch; [] at the end."""
        plan = self.stream.plan
        assert isinstance(plan, StreamPlan)
        self._state = None
        several = getattr(self.iterator, "next_columns", None) if self.stream.collator.is_plain else None
        found = self._several(several, plan.batch_size, beat) if several else self._one_by_one(plan.batch_size, beat)
        self.place += 1
        is_short = len(found) < plan.batch_size
        is_left_out = (plan.drop_last and is_short) or (plan.drop_single and len(found) == 1 < plan.batch_size)
        return [] if is_left_out else found

    def _one_by_one(self, count: int, beat: Callable[[int], object]) -> list[Any]:
        plan = self.stream.plan
        assert isinstance(plan, StreamPlan)
        seed_all(mix(self.stream.seed, self.epoch, self.shard + plan.shards * self.place, READ_SEED))
        found: list[Any] = []
        while len(found) < count:
            beat(self.position)
            try:
                found.append(next(self.iterator))
            except StopIteration:
                self.has_ended = True
                break
            self.position += 1
        return found

    def _several(
        self, next_columns: Callable[[int], Columns | None], count: int, beat: Callable[[int], object]
    ) -> list[Any] | Columns:
        """Return the same as columns, if all parts of the batch are."""
        parts: list[Columns] = []
        while count:
            beat(self.position)
            try:
                part = next_columns(count)
            except StopIteration:
                self.has_ended = True
                break
            if part is None:
                return [record for one in parts for record in one.records()] + self._one_by_one(count, beat)
            parts.append(part)
            self.position += len(part)
            count -= len(part)
        if len(parts) == 1:
            return parts[0]
        fields = zip(*(part.fields for part in parts), strict=True)
        return Columns(tuple(map(np.concatenate, fields))) if parts else []

    def state(self) -> bytes:
        """Return the state, or b"" if there is none. After its end, the state of a data set (not of an iterator) is not
        used, as it may mean the beginning again."""
        if self._state is None:
            has_none = self.has_ended and not _has_state(self.iterator)
            self._state = b"" if has_none else iterator_state(self.iterator, self.dataset)
        return self._state


def _set_epoch(dataset: Any, epoch: int) -> None:
    """Tell a data set its epoch, or those that torch's `Subset` and `data.val.fraction` take their items from."""
    while not hasattr(dataset, "set_epoch") and isinstance(dataset, Subset):
        dataset = dataset.dataset
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)


def copies_of(thing: Any) -> Callable[[], Any]:
    """Return a function that returns copies of `thing` in its present state. Raises what pickling it raises."""
    packed = by_value.dumps(thing)
    return lambda: pickle.loads(packed)


def iterator_state(iterator: Any, dataset: Any) -> bytes:
    """Return the state of the iterator, or else, as in torchdata, of the data set; b"" if neither has one. Raises
    DataError for a state that is not made of plain values."""
    for thing in (iterator, dataset):
        if _has_state(thing):
            written = io.BytesIO()
            _StateWriter(written, type(thing).__qualname__).dump(thing.state_dict())
            return written.getvalue()
    return b""


def read_state(state: bytes) -> Any:
    """Read what `iterator_state` wrote, without executing any code that it names. Raises CheckpointError."""
    try:
        return _StateReader(io.BytesIO(state)).load()
    except Exception as error:  # a hostile pickle can make its reader raise nearly anything
        raise CheckpointError(
            f"the state of the data iterator cannot be loaded safely: {error}. If an older hogwild wrote it, finish "
            "the run with that version, or start a new run from its model (model.init_from)",
            code="checkpoint/unsafe",
        ) from error


class _StateWriter(pickle.Pickler):
    """Writes plain Python values unchanged; tensors and arrays as type, shape and bytes."""

    def __init__(self, file: Any, owner: str) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._owner = owner

    def reducer_override(self, thing: Any) -> Any:
        """Reduce all objects except None, numbers, text, bytes, lists, tuples, dicts and sets."""
        if isinstance(thing, torch.Tensor) and thing.layout == torch.strided and not thing.is_quantized:
            flat = thing.detach().cpu().reshape(-1).view(torch.uint8).numpy()
            return _tensor, (str(thing.dtype).removeprefix("torch."), tuple(thing.shape), flat)
        if isinstance(thing, np.ndarray | np.generic) and thing.dtype.kind in "biufcSUmM":
            return _array, (thing.dtype.str, thing.shape, thing.tobytes(), isinstance(thing, np.generic))
        if type(thing) is OrderedDict or any(thing is maker for maker in _STATE_MAKERS.values()):
            return NotImplemented
        kind = thing if isinstance(thing, type) else type(thing)
        raise DataError(
            f"the state_dict() of {self._owner} holds a {kind.__module__}.{kind.__qualname__}, but checkpoints "
            "are loaded without running code: return numbers, text, bytes, None, lists, tuples, dicts, sets, tensors "
            "and numpy arrays, and rebuild the rest in load_state_dict()",
            code="data/state-not-plain",
        )


class _StateReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (found := _STATE_MAKERS.get((module, name))) is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return found


def _tensor(dtype: str, shape: tuple[int, ...], flat: np.ndarray) -> torch.Tensor:
    content = torch.empty(len(flat), dtype=torch.uint8).copy_(torch.from_numpy(flat))
    return content.view(getattr(torch, dtype)).view(shape)


def _array(dtype: str, shape: tuple[int, ...], content: bytes, is_scalar: bool) -> Any:
    flat = np.frombuffer(bytearray(content), dtype) if content else np.empty(0, dtype)  # refuses object pointers
    return flat.reshape(shape)[()] if is_scalar else flat.reshape(shape)


# The only callables that a state may name.
_STATE_MAKERS = {(maker.__module__, maker.__name__): maker for maker in (_tensor, _array, OrderedDict)}


def _has_state(thing: Any) -> bool:
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def travels(stream: Any) -> str:
    """Return why it cannot be sent to other processes; "" if it can."""
    try:
        by_value.dumps_apart(stream)
    except (Exception, SystemExit) as error:
        return raised_text(error)
    return ""
