"""Batches out of shared data into reused buffers: the resident feed.

The supervisor writes a data set once into one shared region (`ResidentData`); every worker maps it and gathers the
rows of a batch into buffers it allocated at its start and uses for ever (`ResidentFeed`). Only positions travel: a
batch is a number, and which rows it holds follows from (seed, epoch, number), see `orders.py`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

from hogwild import host
from hogwild.batches import BatchPlan
from hogwild.errors import DataError, MemoryShortError
from hogwild.orders import make_order
from hogwild.shm import Region, aligned

CHECK_NUMBERS = 1 << 24  # looked at in one go when searching for NaN: keeps the temporaries small
ALIKE = "all items must have the same fields, shapes and types"


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of all samples, as it lies in the region: `shape` is (N, …); the last field is the target."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    channels_last: bool = False  # rows lie as (H, W, C) and are shown as (C, H, W)

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.row_bytes

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def view(self, region: Region) -> Tensor:
        """(N, …) as it lies in memory: rows contiguous."""
        return region.tensor(self.dtype, self.lying, self.offset)

    def rows(self, region: Region) -> np.ndarray:
        """(N, row_bytes) uint8: what is to be copied, whatever its type."""
        return region.array(np.uint8, (self.shape[0], self.row_bytes), self.offset)

    @property
    def lying(self) -> tuple[int, ...]:
        if not self.channels_last:
            return self.shape
        n, c, h, w = self.shape
        return (n, h, w, c)


@dataclass(frozen=True, slots=True)
class Batch:
    """A gathered batch. The tensors are views of the feed's buffers: they hold until the next `gather`."""

    inputs: tuple[Tensor, ...]
    target: Tensor
    first_position: int
    size: int


class Feed(Protocol):
    """Turns batch numbers into batches in reused buffers."""

    def gather(self, epoch: int, batch: int) -> Batch: ...


class ResidentData:
    """A data set in shared memory. The supervisor writes it before workers start; nobody writes it afterwards."""

    def __init__(self, region: Region, fields: Sequence[FieldSpec]) -> None:
        self.region = region
        self.fields = tuple(fields)

    @property
    def samples(self) -> int:
        return self.fields[0].shape[0]

    @classmethod
    def from_tensors(cls, name: str, tensors: Sequence[Tensor], *, channels_last: bool = False) -> "ResidentData":
        """Copies (N, …) tensors into a new region. With `channels_last`, 4-d floating inputs are laid out (N, H, W,
        C)."""
        specs: list[FieldSpec] = []
        offset = 0
        for position, tensor in enumerate(tensors):
            is_image = tensor.dim() == 4 and tensor.is_floating_point() and position < len(tensors) - 1
            specs.append(FieldSpec(tensor.dtype, tuple(tensor.shape), offset, channels_last and is_image))
            offset = aligned(offset + specs[-1].nbytes)
        data = cls(Region.allocate(name, offset), specs)
        for spec, tensor in zip(specs, tensors, strict=True):
            lying = spec.view(data.region)
            lying.copy_(tensor.permute(0, 2, 3, 1) if spec.channels_last else tensor)
        return data

    def views(self) -> tuple[Tensor, ...]:
        """Each field as a (N, …) view in its logical shape."""
        return tuple(
            spec.view(self.region).permute(0, 3, 1, 2) if spec.channels_last else spec.view(self.region)
            for spec in self.fields
        )


class ResidentFeed:
    """Gathers batches of a `ResidentData` into buffers that stay where they are for the whole job.

    Rows are copied as bytes, by numpy: of 64 rows of 3,136 bytes that takes 24 us, `torch.index_select` 30 (33 with the
    image's four dimensions), and a copy of rows that follow each other, without any index, 14."""

    def __init__(self, data: ResidentData, plan: BatchPlan, *, seed: int, order: str) -> None:
        """`order`: what `data.shuffle` says, see `orders.py`."""
        row_bytes = sum(spec.row_bytes for spec in data.fields)
        self._plan = plan
        self._order = make_order(order, data.samples, seed=seed, row_bytes=row_bytes)
        self._specs = data.fields
        self._rows = [spec.rows(data.region) for spec in data.fields]
        self._buffers = [torch.empty(plan.largest * spec.row_bytes, dtype=torch.uint8) for spec in data.fields]
        self._views: dict[int, tuple[list[np.ndarray], tuple[Tensor, ...]]] = {}

    def gather(self, epoch: int, batch: int) -> Batch:
        """Fills the buffers with batch number `batch` of `epoch`."""
        first, last = self._plan.positions(batch)
        size = last - first
        slots, shown = self._views.get(size) or self._cut(size)
        chosen = self._order.indices(epoch, first, last)
        for rows, slot in zip(self._rows, slots, strict=True):
            # "raise", numpy's default, would gather into an array of its own first; an order names only samples that
            # are there.
            rows.take(chosen, axis=0, out=slot, mode="clip")
        return Batch(shown[:-1], shown[-1], first, size)

    def addresses(self) -> tuple[int, ...]:
        """Where the buffers are, in bytes: the same numbers for the whole job."""
        return tuple(buffer.data_ptr() for buffer in self._buffers)

    def _cut(self, size: int) -> tuple[list[np.ndarray], tuple[Tensor, ...]]:
        """Views of the first `size` rows of every buffer, as bytes and as what they are; made once per size (an epoch
        has at most two)."""
        slots: list[np.ndarray] = []
        shown: list[Tensor] = []
        for spec, buffer in zip(self._specs, self._buffers, strict=True):
            part = buffer[: size * spec.row_bytes]
            slots.append(part.numpy().reshape(size, spec.row_bytes))
            rows = part.view(spec.dtype).view(size, *spec.lying[1:])
            shown.append(rows.permute(0, 3, 1, 2) if spec.channels_last else rows)
        self._views[size] = (slots, tuple(shown))
        return self._views[size]


# ---- from a user's data set to tensors, in the supervisor, before workers start ------------------------------------


def materialise(dataset: Dataset, what: str) -> tuple[Tensor, ...]:
    """All samples of a map-style data set as tensors (N, …), inputs first, target last.

    A data set that has its `tensors` already (torch's `TensorDataset`, ours) is taken as it is; another is read item by
    item. Raises DataError naming `what`, the item and the rule.
    """
    if isinstance(dataset, IterableDataset):
        raise DataError(f"{what}: an IterableDataset has no positions to lease; give a map-style Dataset (len and [i])")
    tensors = _ready_tensors(dataset)
    if tensors is None:
        tensors = _read_items(dataset, what)
    _check_fields(tensors, what)
    return tensors


def _ready_tensors(dataset: Any) -> tuple[Tensor, ...] | None:
    """The tensors behind `dataset[i]`; None where a class of the user's own reads its items in its own way."""
    read = getattr(type(dataset), "__getitem__", None)
    if read is TensorDataset.__getitem__:
        return tuple(tensor.detach() for tensor in dataset.tensors)
    if read is not Subset.__getitem__ or (whole := _ready_tensors(dataset.dataset)) is None:
        return None
    if any(tensor.layout != torch.strided for tensor in whole):
        return None  # cannot be indexed so; reading the items says what is wrong
    chosen = torch.as_tensor(dataset.indices, dtype=torch.int64)
    try:
        return tuple(tensor[chosen] for tensor in whole)
    except IndexError:
        return None  # reading them one by one says which


def _read_items(dataset: Any, what: str) -> tuple[Tensor, ...]:
    count = _length(dataset, what)
    if count == 0:
        raise DataError(f"{what}: the data set is empty; there is nothing to train on")
    first = _item(dataset, 0, what)
    _check_room(count, first, what)
    columns = [torch.empty((count, *field.shape), dtype=field.dtype) for field in first]
    for index in range(count):
        fields = first if index == 0 else _item(dataset, index, what)
        if len(fields) != len(columns):
            raise DataError(f"{what}: item {index} has {len(fields)} fields, item 0 has {len(columns)}; {ALIKE}")
        for position, (column, field) in enumerate(zip(columns, fields, strict=True)):
            _check_alike(column, field, f"{what}: item {index}, field {position}")
            column[index] = field
    return tuple(columns)


def _length(dataset: Any, what: str) -> int:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise DataError(f"{what}: {type(dataset).__name__} has no len(); give a map-style Dataset") from error
    except (Exception, SystemExit) as error:
        raise DataError(f"{what}: len() of {type(dataset).__name__} raised {type(error).__name__}: {error}") from error


def _check_room(count: int, first: Sequence[Tensor], what: str) -> None:
    """Before the memory is taken: the kernel promises more than there is, and kills us when it is written to."""
    needed = count * sum(field.nbytes for field in first)
    memory = host.available_memory()
    if needed > memory.bytes:
        raise MemoryShortError(
            f"{what}: {count:,} items like the first take {needed:,} bytes, but only {memory.bytes:,} are free "
            f"({memory.limited_by}); use less data, smaller types, or a larger limit"
        )


def _check_alike(column: Tensor, field: Tensor, where: str) -> None:
    """Copying would broadcast another shape and cut a 0.7 behind a first item's 0 down to 0, without a word."""
    if field.shape != column.shape[1:]:
        raise DataError(f"{where} has shape {tuple(field.shape)}, item 0 has {tuple(column.shape[1:])}; {ALIKE}")
    if field.dtype != column.dtype:
        raise DataError(f"{where} is {field.dtype}, item 0 has {column.dtype}; {ALIKE}")


def _item(dataset: Any, index: int, what: str) -> tuple[Tensor, ...]:
    try:
        sample = dataset[index]
    except (Exception, SystemExit) as error:
        raise DataError(f"{what}: reading item {index} raised {type(error).__name__}: {error}") from error
    if not isinstance(sample, (tuple, list)) or len(sample) < 2:
        size = f" of {len(sample)}" if isinstance(sample, (tuple, list)) else ""
        raise DataError(
            f"{what}: item {index} is a {type(sample).__name__}{size}; a sample is a tuple (input, …, target) of "
            "tensors, arrays or numbers"
        )
    try:
        return tuple(_as_tensor(field) for field in sample)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{what}: item {index} cannot be made into tensors: {error}") from error


def _as_tensor(field: Any) -> Tensor:
    """Like torch's default collation, but a Python float becomes float32, the type models compute in."""
    if isinstance(field, Tensor):
        if field.layout != torch.strided:
            raise TypeError(f"it holds a {field.layout} tensor; only dense tensors can be resident")
        return field.detach()
    if isinstance(field, np.ndarray) and not field.flags.writeable:  # a memory-mapped file: torch warns of each item
        field = field.copy()
    return torch.as_tensor(field, dtype=torch.float32) if isinstance(field, float) else torch.as_tensor(field)


def _check_fields(tensors: Sequence[Tensor], what: str) -> None:
    if len(tensors) < 2:
        raise DataError(f"{what}: samples have one field; at least an input and a target are needed")
    lengths = {len(tensor) for tensor in tensors}
    if len(lengths) > 1:
        raise DataError(f"{what}: the fields have different numbers of samples: {[len(t) for t in tensors]}")
    if lengths == {0}:
        raise DataError(f"{what}: the data set is empty; there is nothing to train on")
    for position, tensor in enumerate(tensors):
        if tensor.layout != torch.strided:
            raise DataError(f"{what}: field {position} is {tensor.layout}; only dense tensors can be resident")
        row = _first_non_finite(tensor) if tensor.is_floating_point() else None
        if row is not None:
            name = "the target" if position == len(tensors) - 1 else f"input {position}"
            raise DataError(f"{what}: {name} of sample {row} is NaN or infinite; clean the data first")


def _first_non_finite(tensor: Tensor) -> int | None:
    width = max(1, math.prod(tensor.shape[1:]))  # explicit: rows of no elements leave nothing to infer it from
    height = max(1, CHECK_NUMBERS // width)
    for start in range(0, len(tensor), height):
        rows = tensor[start : start + height].reshape(-1, width)
        # One sum finds out whether anything is wrong; only then each row is looked at. (Overflow of a finite sum costs
        # the second look and nothing else.)
        if not torch.isfinite(rows.sum()):
            bad = (~torch.isfinite(rows)).any(dim=1).nonzero()
            if len(bad):
                return start + int(bad[0])
    return None
