"""Loading of a user's data set into memory. Tensors (TensorDataset, ours) are used as they are; of anything else rows
are read in ranges and checked, so that an error names the lowest bad one: by this process (`InTurn`) or, if that takes
long, by several (`workers/loading/loading.py`).

    has `rows(start, stop)`     ranges of rows at once: (input, …, target), tensors (stop - start, …) each
    and `parts()`               all rows in their order, as parts of the same form, finite: read by its own threads
    any other: len() and [i]    item by item; torch's generator is seeded for each item, so random items are the same
                                whichever process reads them
"""

import inspect
import logging
import math
import random
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from hogwild import host
from hogwild.errors import DataError, HogwildError, MemoryShortError
from hogwild.feeds.resident import ResidentData
from hogwild.formatting import size
from hogwild.host.thread_pools import threads_for
from hogwild.scheduling.batch_plan import item_seed, mix
from hogwild.user_code import raised_text

if TYPE_CHECKING:
    from hogwild.feeds.packed import Packed


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Held:
    """A data set in memory: fields (N, …), inputs first, target last. `resident`: the tensors are views of this shared
    memory. `left_out`: numbers (n, k) of the names in those rows that a ranking loss leaves out."""

    tensors: tuple[Tensor, ...]  # () for packed data
    resident: ResidentData | None = None
    packed: "Packed | None" = None
    left_out: "np.ndarray | None" = None

    @property
    def samples(self) -> int:
        return len(self.tensors[0]) if self.packed is None else self.packed.samples


class Reader(Protocol):
    """Loads a data set into memory, whole or, with `fraction`, as (train, held out), and tries the job's code, perhaps
    in other processes. `channels_last`: memory format of images that are read into shared memory. Raises DataError,
    MemoryShortError."""

    def read(self, dataset: Any, what: str, *, fraction: float | None, channels_last: bool) -> tuple[Held, ...]: ...

    def pack(self, parsing: Any) -> Any:
        """Return the `Parsed` file of a `hogwild.data.text_parsing.Parsing`."""

    def try_out(self, trial: Any) -> Any:
        """Return the `Findings` of a `hogwild.job.parts.Trial`. Raises ModelError if it ends its process."""


class InTurn:
    """Reads in this process, one row after the other."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def read(self, dataset: Any, what: str, *, fraction: float | None, channels_last: bool) -> tuple[Held, ...]:
        return divided(materialise(dataset, what, self._seed), fraction, self._seed)

    def pack(self, parsing: Any) -> Any:
        """Parse in this process, without a cache. Logs which records are left out."""
        parsed = parsing.parse(lambda done, size: None)
        for note in parsed.notes:
            log.warning("%s", note)
        return parsed

    def try_out(self, trial: Any) -> Any:
        return trial.run()


def materialise(dataset: Dataset, what: str, seed: int = 0) -> tuple[Tensor, ...]:
    """Return all samples of a map-style data set as tensors (N, …), inputs first, target last.

    A data set that has `tensors` (torch's `TensorDataset`, ours) is used as it is; any other is read in this process.
    Raises DataError naming `what`, the item and the rule.
    """
    if (ready := ready_tensors(dataset, what)) is not None:
        return ready
    rows = RowSource.of(dataset, what, seed)
    columns = rows.columns()
    rows.read_into(columns)
    return columns


def divided(tensors: tuple[Tensor, ...], fraction: float | None, seed: int) -> tuple[Held, ...]:
    """Return (all samples,), or (train, held out) if `fraction` is given."""
    if fraction is None:
        return (Held(tensors),)
    return tuple(Held(tuple(t[part] for t in tensors)) for part in division(len(tensors[0]), fraction, seed))


class Part(Subset[Any]):
    """The training or the held-out part under `data.val.fraction`; `indices` are item numbers in the whole data set."""


def number_of(dataset: Any, item: int) -> int:
    """Return the number of an item of `dataset` in the data set that the user gave."""
    return int(dataset.indices[item]) if isinstance(dataset, Part) else item


def place_of(dataset: Any, number: int) -> str:
    """Return ` (FILE: line N)` of an item that `number_of` counts, if the user's data set knows it; else ""."""
    known = getattr(dataset.dataset if isinstance(dataset, Part) else dataset, "place_of", None)
    return f" ({known(number)})" if callable(known) else ""


def division(count: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split rows by seed into (train, held out), (n,) int64 each. Raises DataError if one part is empty."""
    held = round(count * fraction)
    require_both(held, count, fraction)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(mix(seed, -2)))
    return order[held:], order[:held]


def require_both(held: int, count: int, fraction: float) -> None:
    """Raise DataError unless the training and the held-out part have a sample each."""
    if not 0 < held < count:
        what = "to train on" if held else "to evaluate"
        raise DataError(
            f"data.val.fraction {fraction} of {count} samples leaves none {what}; set data.val.fraction to a share "
            "that gives both parts one, or train without an evaluation: data.val=null",
            code="data/split",
        )


# ---- what lies in memory already ------------------------------------------------------------------------------------


def ready_tensors(dataset: Any, what: str) -> tuple[Tensor, ...] | None:
    """Return the checked tensors of a data set that has them; None for one that must be read. Raises DataError."""
    if isinstance(dataset, IterableDataset):
        raise DataError(f"{what}: an IterableDataset cannot be resident; set data.feed: stream", code="data/stream")
    tensors = _ready_tensors(dataset)
    if tensors is None:
        return None
    if len(tensors) < 2:
        raise DataError(f"{what}: samples have only one field; they need an input and a target", code="data/fields")
    lengths = {len(tensor) for tensor in tensors}
    if len(lengths) > 1:
        raise DataError(
            f"{what}: the fields have different numbers of samples: {[len(t) for t in tensors]}", code="data/fields"
        )
    if lengths == {0}:
        raise DataError(f"{what}: the data set is empty; there is nothing to train on", code="data/empty")
    for position, tensor in enumerate(tensors):
        if tensor.layout != torch.strided:
            words = f"field {position} is {tensor.layout}; only dense tensors can be resident"
            raise DataError(f"{what}: {words}", code="data/not-dense")
        if (row := first_non_finite(tensor)) is not None:
            raise not_finite(what, row, position, len(tensors))
    return tensors


def _ready_tensors(dataset: Any) -> tuple[Tensor, ...] | None:
    """Return the tensors behind `dataset[i]`; None if a user's class defines its own `__getitem__`."""
    read = getattr(type(dataset), "__getitem__", None)
    if read is TensorDataset.__getitem__:
        return tuple(tensor.detach() for tensor in dataset.tensors)
    if read is not Subset.__getitem__ or (whole := _ready_tensors(dataset.dataset)) is None:
        return None
    if any(tensor.layout != torch.strided for tensor in whole):
        return None  # cannot be indexed like this; reading the items reports the error
    chosen = torch.as_tensor(dataset.indices, dtype=torch.int64)
    try:
        return tuple(tensor[chosen] for tensor in whole)
    except IndexError:
        return None  # reading them one by one reports which index is wrong


CHECK_NUMBERS = 1 << 24  # elements per NaN check: keeps the temporaries small
RANGE_BYTES = 1 << 24  # of rows read in one call
MOST_ROWS = 1 << 16
STEP_S = 0.25
LOOK_ROWS, LOOK_S = 16, 0.5  # read twice, to see whether they change; two at least
ALIKE = "all items must have the same fields, shapes and types"


class BadRow(Exception):
    """An unusable row; `error` is the message for the user."""

    def __init__(self, row: int, error: DataError) -> None:
        super().__init__(row)
        self.row, self.error = row, error

    def pop_error(self) -> DataError:
        """Return `error`, to be raised instead, and drop it here: as its context this exception would form a reference
        cycle, which keeps the memory of every frame alive until garbage collection."""
        error = self.error
        del self.error
        return error


@dataclass(frozen=True, slots=True)
class FieldKind:
    """Type and shape of one field, the same in all rows."""

    dtype: torch.dtype
    shape: tuple[int, ...]  # of one row

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class RowSource:
    """A data set that is read range by range; `kinds` are those of its first item. Crosses processes by value."""

    dataset: Any
    what: str
    count: int
    kinds: tuple[FieldKind, ...]
    seed: int
    by_range: bool  # it has `rows(start, stop)`
    by_threads: bool  # and `parts()`
    first: tuple[Tensor, ...] | None = None  # item 0, already read to learn the kinds: no item is read twice

    @classmethod
    def of(cls, dataset: Any, what: str, seed: int) -> "RowSource":
        """Read the first row to learn the fields. Raises DataError without rows, or if it is no sample."""
        count = _length(dataset, what)
        if count == 0:
            raise DataError(f"{what}: the data set is empty; there is nothing to train on", code="data/empty")
        by_range = has_rows(dataset)
        try:
            with torch.random.fork_rng(devices=[]):
                first = _rows(dataset, 0, 1, what) if by_range else _item(dataset, 0, what, seed)
        except BadRow as bad:
            raise bad.pop_error() from bad.__cause__
        kinds = tuple(FieldKind(field.dtype, tuple(field.shape[1:] if by_range else field.shape)) for field in first)
        by_threads = by_range and inspect.isgeneratorfunction(getattr(type(dataset), "parts", None))
        return cls(dataset, what, count, kinds, seed, by_range, by_threads, None if by_range else first)

    @property
    def row_bytes(self) -> int:
        return sum(kind.nbytes for kind in self.kinds)

    def columns(self) -> tuple[Tensor, ...]:
        """Allocate private memory for all rows. Raises MemoryShortError."""
        self.check_room()
        return tuple(torch.empty((self.count, *kind.shape), dtype=kind.dtype) for kind in self.kinds)

    def check_room(self) -> None:
        """Check free memory before allocating: the kernel overcommits and would kill the process on writing."""
        needed, memory = self.count * self.row_bytes, host.available_memory()
        if needed > memory.bytes:
            raise MemoryShortError(
                f"{self.what}: {self.count:,} items like the first take {size(needed)}, but only {size(memory.bytes)} "
                f"are free ({memory.limited_by}); use less data, smaller types, or a larger limit",
                code="run/memory-short",
            )

    def read_into(
        self, columns: Sequence[Tensor], goes_on: Callable[[int, float, float], bool] = lambda rows, s, pace_s: True
    ) -> int:
        """Read in this process, from the first row on, into `columns` (N, …), and return the number of rows read.
        Between two ranges `goes_on` gets the rows read so far, the seconds used, and the seconds per row of the last
        range (in small ranges the overhead of a call dominates). Raises DataError."""
        began_s = last_s = time.monotonic()
        done, pace_s = 0, 0.0
        for fields in self.parts() if self.by_threads else ():
            for column, field in zip(columns, fields, strict=True):
                column[done : done + len(field)] = field
            done += len(fields[0])
        while done < self.count and (not done or goes_on(done, last_s - began_s, pace_s)):
            # Start with small steps, as a row may take seconds, and keep steps short enough to call `goes_on` often.
            step = self.at_once(min(done, int(STEP_S / max(pace_s, 1e-9))))
            stop = min(self.count, done + step)
            for column, field in zip(columns, self.read_here(done, stop), strict=True):
                column[done:stop] = field
            now_s = time.monotonic()
            pace_s, last_s, done = (now_s - last_s) / (stop - done), now_s, stop
        return done

    def parts(self) -> Generator[tuple[Tensor, ...], None, None]:
        """Yield all rows, in parts that the data set reads by threads of this process, and whose numbers it has found
        finite. Raises DataError."""
        start, rows, threads = 0, iter(self.dataset.parts()), torch.get_num_threads()
        torch.set_num_threads(1)  # for the copies between two parts: torch's threads would wait for those that parse
        try:
            while (fields := _part(rows, f"{self.what}: parts() of {type(self.dataset).__name__}", start)) is not None:
                self._check_alike(fields, start, [tuple(field.shape[1:]) for field in fields])
                yield fields
                start += len(fields[0])
        except BadRow as bad:
            raise bad.pop_error() from bad.__cause__
        finally:
            torch.set_num_threads(threads)

    def read_here(self, start: int, stop: int) -> tuple[Tensor, ...]:
        """Read like `read`, but in the user's process: restores the random state and raises DataError."""
        try:
            with torch.random.fork_rng(devices=[]):
                return self.read(start, stop)
        except BadRow as bad:
            raise bad.pop_error() from bad.__cause__

    def changing_row(self) -> int | None:
        """Return a row that is another when it is read again under another random state, as random augmentation makes
        it; None if none of the first, the last and some others is. Raises DataError."""
        if type(self.dataset).__module__.startswith("hogwild."):
            return None  # ours are the same at each reading
        python, numbers, ends_s = random.getstate(), np.random.get_state(), time.monotonic() + LOOK_S
        others: list[int] = np.random.default_rng(self.seed).integers(0, self.count, LOOK_ROWS - 2).tolist()
        try:
            with torch.random.fork_rng(devices=[]):
                for looked, row in enumerate(dict.fromkeys([0, self.count - 1, *others])):
                    if looked > 1 and time.monotonic() > ends_s:
                        break
                    one, other = (self._read_seeded(row, seed) for seed in (1, 2))
                    if not all(map(_is_same, one, other)) or len(one) != len(other):
                        return row
        except BadRow as bad:
            raise bad.pop_error() from bad.__cause__
        finally:
            random.setstate(python)
            np.random.set_state(numbers)
        return None

    def _read_seeded(self, row: int, seed: int) -> tuple[Tensor, ...]:
        random.seed(seed)
        np.random.seed(seed)
        if not self.by_range:
            return tuple(field.clone() for field in _item(self.dataset, row, self.what, seed))
        torch.default_generator.manual_seed(seed)
        return tuple(field.clone() for field in _rows(self.dataset, row, row + 1, self.what))

    def at_once(self, wanted: int) -> int:
        """Return `wanted`, limited to the largest range of rows."""
        return max(1, min(wanted, MOST_ROWS, RANGE_BYTES // max(1, self.row_bytes)))

    def read(self, start: int, stop: int, beat: Callable[[int], object] = lambda row: None) -> tuple[Tensor, ...]:
        """Return rows `[start, stop)`: a tensor (stop - start, …) per field. `beat` is called with every row, or range
        start, before it is read. Raises BadRow for the lowest unusable row."""
        if self.by_range:
            beat(start)
            fields = _rows(self.dataset, start, stop, self.what)
            self._check_alike(fields, start, [tuple(field.shape[1:]) for field in fields])
            self._check_finite(fields, start)
            return fields
        columns = tuple(torch.empty((stop - start, *kind.shape), dtype=kind.dtype) for kind in self.kinds)
        for row in range(start, stop):
            beat(row)
            try:
                fields = self.first if row == 0 and self.first else _item(self.dataset, row, self.what, self.seed)
                self._check_alike(fields, row, [tuple(field.shape) for field in fields])
            except BadRow:
                self._check_finite([column[: row - start] for column in columns], start)  # report a lower row first
                raise
            for column, field in zip(columns, fields, strict=True):
                column[row - start] = field
        self._check_finite(columns, start)
        return columns

    def _check_alike(self, fields: Sequence[Tensor], row: int, shapes: Sequence[tuple[int, ...]]) -> None:
        """Check shapes and types: copying would silently broadcast, or truncate 0.7 to 0 after an integer item."""
        problem = ""
        if len(fields) != len(self.kinds):
            problem = f" has {len(fields)} fields, item 0 has {len(self.kinds)}"
        else:
            for position, (field, shape, kind) in enumerate(zip(fields, shapes, self.kinds, strict=True)):
                if shape != kind.shape:
                    problem = problem or f", field {position} has shape {shape}, item 0 has {kind.shape}"
                if field.dtype != kind.dtype:
                    problem = problem or f", field {position} is {field.dtype}, item 0 has {kind.dtype}"
        if problem:
            raise BadRow(row, DataError(f"{self.what}: item {row}{problem}; {ALIKE}", code="data/unlike-items"))

    def _check_finite(self, fields: Sequence[Tensor], start: int) -> None:
        bad = [(row, position) for position, field in enumerate(fields) if (row := first_non_finite(field)) is not None]
        if bad:
            row, position = min(bad)
            raise BadRow(start + row, not_finite(self.what, start + row, position, len(fields)))


def _is_same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    same = one == other
    return bool((same | ((one != one) & (other != other))).all())  # NaN is NaN


def has_rows(dataset: Any) -> bool:
    """Return whether its class has `rows(start, stop)`. Compares argument names, as a user's class may have another
    method of that name."""
    method = getattr(type(dataset), "rows", None)
    return inspect.isfunction(method) and [*inspect.signature(method).parameters][1:] == ["start", "stop"]


def _length(dataset: Any, what: str) -> int:
    try:
        return len(dataset)
    except (Exception, SystemExit) as error:
        kind = type(dataset).__name__
        words = f"len() of {kind} raised {raised_text(error)}"
        if isinstance(error, TypeError | NotImplementedError):
            words = f"{kind} has no len(); use a map-style Dataset"
        raise DataError(f"{what}: {words}", code="data/no-length") from error


def _rows(dataset: Any, start: int, stop: int, what: str) -> tuple[Tensor, ...]:
    where = f"{what}: rows({start}, {stop}) of {type(dataset).__name__}"
    try:
        fields = tuple(dataset.rows(start, stop))
    except (Exception, SystemExit) as error:
        raise BadRow(start, _raised(where, error)) from error
    is_right = len(fields) >= 2 and all(isinstance(f, Tensor) and f.dim() and len(f) == stop - start for f in fields)
    if not is_right:
        words = f"{where} must return (input, …, target), each of {stop - start} rows"
        raise BadRow(start, DataError(words, code="data/bad-item"))
    return tuple(field.detach() for field in fields)


def _part(rows: Iterator[tuple[Tensor, ...]], where: str, start: int) -> tuple[Tensor, ...] | None:
    """Return the next part of a data set, whose first row is `start`; None at the end. Raises BadRow."""
    try:
        fields = next(rows, None)
    except (Exception, SystemExit) as error:
        raise BadRow(start, _raised(where, error)) from error
    return None if fields is None else tuple(field.detach() for field in fields)


def _item(dataset: Any, index: int, what: str, seed: int) -> tuple[Tensor, ...]:
    """Return item `index` as tensors. Raises BadRow."""
    torch.default_generator.manual_seed(item_seed(seed, index))  # 1.1 us
    try:
        sample = dataset[index]
    except (Exception, SystemExit) as error:
        raise BadRow(index, _raised(f"{what}: reading item {index}", error)) from error
    if not isinstance(sample, (tuple, list)) or len(sample) < 2:
        size = f" of {len(sample)}" if isinstance(sample, (tuple, list)) else ""
        words = f"a {type(sample).__name__}{size}; a sample is a tuple (input, …, target) of tensors, arrays or numbers"
        raise BadRow(index, DataError(f"{what}: item {index} is {words}", code="data/bad-item"))
    if nested := [type(field).__name__ for field in sample if is_nested(field)]:
        words = (  # one tensor of its numbers would be one input, of one type
            f"{what}: item {index} cannot be converted to tensors: it holds a {nested[0]}, and data in memory has one "
            "tensor per field; set data.feed: stream, which keeps the nesting, or return (input, …, target) flat"
        )
        raise BadRow(index, DataError(words, code="data/bad-item"))
    try:
        return tuple(as_tensor(field) for field in sample)
    except (TypeError, ValueError, RuntimeError) as error:
        words = f"{what}: item {index} cannot be converted to tensors: {error}"
        raise BadRow(index, DataError(words, code="data/bad-item")) from error


def is_nested(field: Any) -> bool:
    """Return whether a field of a sample has a structure, which is kept: all tuples, lists and dicts but a list of
    numbers of one type, or of such lists, which is an array."""
    if not isinstance(field, list) or not field:
        return isinstance(field, tuple | list | dict)
    kinds = set(map(type, field))
    return any(map(is_nested, field)) if kinds == {list} else kinds not in ({bool}, {int}, {float})


def _raised(where: str, error: BaseException) -> DataError:
    """Return a DataError; keeps the code if `error` is one of our errors."""
    code = error.code if isinstance(error, HogwildError) else "data/item-raised"
    made = DataError(f"{where} raised {raised_text(error)}", code=code)
    made.__cause__ = error
    return made


def as_tensor(field: Any) -> Tensor:
    """Convert like torch's default collation, but a Python float becomes float32, the type models compute in."""
    if isinstance(field, Tensor):
        if field.layout != torch.strided:
            raise TypeError(f"it holds a {field.layout} tensor; only dense tensors can be resident")
        return field.detach()
    if isinstance(field, np.ndarray) and not field.flags.writeable:  # memory-mapped: torch would warn for each item
        field = field.copy()
    return torch.as_tensor(field, dtype=torch.float32) if isinstance(field, float) else torch.as_tensor(field)


def not_finite(what: str, row: int, position: int, fields: int) -> DataError:
    name = "the target" if position == fields - 1 else f"input {position}"
    return DataError(f"{what}: {name} of sample {row} is NaN or infinite; clean the data first", code="data/not-finite")


def first_non_finite(tensor: Tensor) -> int | None:
    if not tensor.is_floating_point():
        return None
    width = max(1, math.prod(tensor.shape[1:]))  # explicit, because -1 cannot be inferred for rows without elements
    height = max(1, CHECK_NUMBERS // width)
    with threads_for(tensor.nbytes):
        for start in range(0, len(tensor), height):
            rows = tensor[start : start + height].reshape(-1, width)
            # One sum detects any bad value; only then is each row checked. (If a finite sum overflows, the rows are
            # checked for nothing.)
            if not torch.isfinite(rows.sum()):
                bad = (~torch.isfinite(rows)).any(dim=1).nonzero()
                if len(bad):
                    return start + int(bad[0])
    return None
