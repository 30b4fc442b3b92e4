"""Batches out of shared data into reused buffers: the resident feed.

The supervisor writes a data set once into one shared region (`ResidentData`); every worker maps it and gathers the
rows of a batch into buffers it allocated at its start and uses for ever (`ResidentFeed`). Only positions travel: a
batch is a number, and which rows it holds follows from (seed, epoch, number), see `sample_order.py`."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from hogwild.feeds.batch import Batch
from hogwild.feeds.sample_order import LaneOrder, Order, make_order
from hogwild.scheduling.batch_plan import EpochPlan
from hogwild.shared_memory.region import Region, aligned


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


class ResidentData:
    """A data set in shared memory. The supervisor writes it before workers start; nobody writes it afterwards."""

    def __init__(self, region: Region, fields: Sequence[FieldSpec]) -> None:
        self.region = region
        self.fields = tuple(fields)

    @property
    def samples(self) -> int:
        return self.fields[0].shape[0]

    @classmethod
    def allocate(
        cls, name: str, fields: Sequence[tuple[torch.dtype, Sequence[int]]], *, channels_last: bool = False
    ) -> "ResidentData":
        """Zeros for fields of these types and shapes (N, …). With `channels_last`, 4-d floating inputs are laid out
        (N, H, W, C). Raises MemoryShortError."""
        specs: list[FieldSpec] = []
        offset = 0
        for position, (dtype, shape) in enumerate(fields):
            is_image = len(shape) == 4 and dtype.is_floating_point and position < len(fields) - 1
            specs.append(FieldSpec(dtype, tuple(shape), offset, channels_last and is_image))
            offset = aligned(offset + specs[-1].nbytes)
        return cls(Region.allocate(name, offset), specs)

    @classmethod
    def from_tensors(cls, name: str, tensors: Sequence[Tensor], *, channels_last: bool = False) -> "ResidentData":
        """Copies (N, …) tensors into a new region, laid out as `allocate` says."""
        data = cls.allocate(name, [(tensor.dtype, tensor.shape) for tensor in tensors], channels_last=channels_last)
        for spec, tensor in zip(data.fields, tensors, strict=True):
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

    def __init__(self, data: ResidentData, plan: EpochPlan, *, seed: int, order: str) -> None:
        """`order`: what `data.shuffle` says, see `sample_order.py`."""
        row_bytes = sum(spec.row_bytes for spec in data.fields)
        self._plan = plan
        self._order: Order = (
            LaneOrder(plan.lanes, plan.batch_size, plan.batches // plan.lanes)
            if plan.lanes is not None
            else make_order(order, data.samples, seed=seed, row_bytes=row_bytes)
        )
        self._specs = data.fields
        self._rows = [spec.rows(data.region) for spec in data.fields]
        self._buffers = [torch.empty(plan.largest * spec.row_bytes, dtype=torch.uint8) for spec in data.fields]
        self._views: dict[int, tuple[list[np.ndarray], tuple[Tensor, ...]]] = {}

    @property
    def slot_nbytes(self) -> int:
        """Of one piece of memory that holds a batch."""
        return sum(aligned(self._plan.largest * spec.row_bytes) for spec in self._specs)

    def into(self, memory: Tensor) -> "ResidentFeed":
        """The same batches, gathered into `memory` (slot_nbytes,) uint8, which is somebody's else: pinned, perhaps.
        Fields begin on cache lines."""
        twin = copy.copy(self)
        sizes = [self._plan.largest * spec.row_bytes for spec in self._specs]
        starts = list(accumulate(map(aligned, sizes), initial=0))
        twin._buffers = [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        twin._views = {}
        return twin

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
