"""The resident feed: batches gathered from shared data into reused buffers.

The supervisor writes a data set once into one shared region (`ResidentData`). Every worker maps it and gathers the rows
of a batch into buffers that it allocates once (`ResidentFeed`). Only batch numbers are sent: the rows of a batch follow
from (seed, epoch, number), see `sample_order.py`."""

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
from hogwild.host.thread_pools import threads_for
from hogwild.scheduling.batch_plan import EpochPlan
from hogwild.shared_memory.region import Region, aligned


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of all samples and its place in the region: `shape` is (N, …); the last field is the target."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    channels_last: bool = False  # rows are stored as (H, W, C) and viewed as (C, H, W)

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.row_bytes

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def view(self, region: Region) -> Tensor:
        """Return the field (N, …) in memory order: rows contiguous."""
        return region.tensor(self.dtype, self.lying, self.offset)

    def rows(self, region: Region) -> np.ndarray:
        """Return the field as (N, row_bytes) uint8, for copying rows of any type."""
        return region.array(np.uint8, (self.shape[0], self.row_bytes), self.offset)

    @property
    def lying(self) -> tuple[int, ...]:
        if not self.channels_last:
            return self.shape
        n, c, h, w = self.shape
        return (n, h, w, c)

    def logical(self, lying: Tensor) -> Tensor:
        return lying.permute(0, 3, 1, 2) if self.channels_last else lying


class ResidentData:
    """A data set in shared memory. The supervisor writes it before workers start; it is read-only afterwards."""

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
        """Allocate zeros for fields of these types and shapes (N, …). With `channels_last`, 4-d floating inputs are
        laid out (N, H, W, C). Raises MemoryShortError."""
        specs: list[FieldSpec] = []
        offset = 0
        for position, (dtype, shape) in enumerate(fields):
            is_image = len(shape) == 4 and dtype.is_floating_point and position < len(fields) - 1
            specs.append(FieldSpec(dtype, tuple(shape), offset, channels_last and is_image))
            offset = aligned(offset + specs[-1].nbytes)
        return cls(Region.allocate(name, offset), specs)

    @classmethod
    def from_tensors(cls, name: str, tensors: Sequence[Tensor], *, channels_last: bool = False) -> "ResidentData":
        """Copy (N, …) tensors into a new region, laid out as in `allocate`."""
        data = cls.allocate(name, [(tensor.dtype, tensor.shape) for tensor in tensors], channels_last=channels_last)
        with threads_for(data.region.nbytes):
            for spec, tensor in zip(data.fields, tensors, strict=True):
                lying = spec.view(data.region)
                lying.copy_(tensor.permute(0, 2, 3, 1) if spec.channels_last else tensor)
        return data

    def views(self) -> tuple[Tensor, ...]:
        """Return each field as a (N, …) view in its logical shape."""
        return tuple(spec.logical(spec.view(self.region)) for spec in self.fields)

    def targets(self) -> Tensor:
        """Return the targets (N, …): the last field."""
        return self.views()[-1]

    def weights(self) -> Tensor:
        """Return the weights (N,) of weighted data: the field before the target."""
        return self.views()[-2]

    def feed(self, plan: EpochPlan, *, seed: int, order: str | Order) -> "ResidentFeed":
        """Return a feed of its batches. `order`: the value of `data.shuffle`, or what a sampler draws."""
        return ResidentFeed(self, plan, seed=seed, order=order)


class ResidentFeed:
    """Gathers batches of a `ResidentData` into buffers that stay at the same addresses for the whole job.

    numpy copies the rows as bytes: 64 rows of 3,136 bytes take 24 us; `torch.index_select` takes 30 us (33 us with the
    image's four dimensions), and copying consecutive rows without an index 14 us."""

    def __init__(self, data: ResidentData, plan: EpochPlan, *, seed: int, order: str | Order) -> None:
        """`order`: the value of `data.shuffle`, see `sample_order.py`, or the order itself."""
        row_bytes = sum(spec.row_bytes for spec in data.fields)
        self._plan = plan
        if plan.lanes is not None:
            order = LaneOrder(plan.lanes, plan.batch_size, plan.batches // plan.lanes)
        elif isinstance(order, str):
            order = make_order(order, data.samples, seed=seed, row_bytes=row_bytes)
        self._order: Order = order
        self._specs = data.fields
        self._rows = [spec.rows(data.region) for spec in data.fields]
        self._buffers = [torch.empty(plan.largest * spec.row_bytes, dtype=torch.uint8) for spec in data.fields]
        self._views: dict[int, tuple[list[np.ndarray], tuple[Tensor, ...]]] = {}

    @property
    def slot_nbytes(self) -> int:
        """Bytes of memory for one batch."""
        return sum(aligned(self._plan.largest * spec.row_bytes) for spec in self._specs)

    def into(self, memory: Tensor) -> "ResidentFeed":
        """Return a feed that gathers the same batches into `memory` (slot_nbytes,) uint8, owned by the caller (pinned,
        for instance). Fields begin on cache lines."""
        twin = copy.copy(self)
        sizes = [self._plan.largest * spec.row_bytes for spec in self._specs]
        starts = list(accumulate(map(aligned, sizes), initial=0))
        twin._buffers = [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        twin._views = {}
        return twin

    def gather(self, epoch: int, batch: int) -> Batch:
        """Fill the buffers with batch number `batch` of `epoch`."""
        first, last = self._plan.positions(batch)
        chosen = self._order.indices(epoch, first, last)
        size = len(chosen)
        slots, shown = self._views.get(size) or self._cut(size)
        for rows, slot in zip(self._rows, slots, strict=True):
            # numpy's default, "raise", would gather into a temporary array first; an order contains only valid samples.
            rows.take(chosen, axis=0, out=slot, mode="clip")
        return Batch(shown[:-1], shown[-1], first, size)

    def addresses(self) -> tuple[int, ...]:
        """Return the buffers' addresses: the same numbers for the whole job."""
        return tuple(buffer.data_ptr() for buffer in self._buffers)

    def _cut(self, size: int) -> tuple[list[np.ndarray], tuple[Tensor, ...]]:
        """Make views of the first `size` rows of every buffer, as bytes and as typed tensors; once per size (an epoch
        has at most two, unless a sampler makes its batches)."""
        if any(size * spec.row_bytes > len(buffer) for spec, buffer in zip(self._specs, self._buffers, strict=True)):
            self._buffers = [torch.empty(size * spec.row_bytes, dtype=torch.uint8) for spec in self._specs]
            self._views = {}
        slots: list[np.ndarray] = []
        shown: list[Tensor] = []
        for spec, buffer in zip(self._specs, self._buffers, strict=True):
            part = buffer[: size * spec.row_bytes]
            slots.append(part.numpy().reshape(size, spec.row_bytes))
            rows = part.view(spec.dtype).view(size, *spec.lying[1:])
            shown.append(spec.logical(rows))
        self._views[size] = (slots, tuple(shown))
        return self._views[size]
