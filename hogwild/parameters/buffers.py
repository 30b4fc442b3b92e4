"""Buffers (BatchNorm statistics and the like): a master, and a copy per worker, in one region.

    buffers   [ master | worker 0 | worker 1 | … ]      each block: every buffer of the model, on separate cache lines

A worker writes only its own copy; the parent writes the master and all copies, only while every worker is parked.
Adding up the workers' deltas, as for gradients, diverges from three workers on: a moving average with momentum 0.1
moves by 0.1 * (x - m) per batch, so after n batches each worker has closed most of the gap, and N deltas overshoot N
times. Hence the weighted mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hogwild.shared_memory.region import Region, aligned, own_strides

REGION = "buffers"


@dataclass(frozen=True, slots=True)
class BufferSlot:
    """One buffer; `offset` is in bytes from the start of a block."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """All buffers, in the order of `model.named_buffers()`; a block has `nbytes`, and there are workers + 1 blocks."""

    slots: tuple[BufferSlot, ...]
    nbytes: int

    def view(self, region: Region, slot: BufferSlot, block: int) -> Tensor:
        return region.tensor(slot.dtype, slot.shape, block * self.nbytes + slot.offset, slot.strides)

    def block(self, region: Region, block: int) -> Tensor:
        """Return the bytes of one block, (nbytes,) uint8."""
        return region.tensor(torch.uint8, (self.nbytes,), block * self.nbytes)


MASTER = 0


def block_of(worker: int) -> int:
    return worker + 1


def plan_buffers(model: nn.Module) -> BufferLayout:
    """Lay out every buffer once, persistent or not."""
    slots, end = [], 0
    for name, buffer in model.named_buffers():
        slots.append(BufferSlot(name, buffer.dtype, tuple(buffer.shape), own_strides(buffer), end))
        end += aligned(buffer.numel() * buffer.element_size())
    return BufferLayout(tuple(slots), end)


def merge(layout: BufferLayout, region: Region, batches: Sequence[int]) -> None:
    """Merge the workers' copies into the master and restart every copy from it. Only in a pause, by the parent.

    `batches[k]` are worker k's batches since the last merge. Floating buffers: master + sum(w (copy - master)) /
    sum(w); integers: the sum of the increments; others: the copy of the worker with most batches among those that
    changed it. A buffer that no worker changed keeps its bits; if only one worker trained, its copy is taken. With
    several workers, a copy that is not finite although the master was (an overflow, or a death in the middle of a batch
    with a NaN) counts as unchanged: one worker must not spoil the others. A single worker behaves like the plain loop,
    whenever it pauses."""
    trained = [k for k, count in enumerate(batches) if count > 0]
    if len(batches) > 1:
        for slot in layout.slots:
            _mend_poisoned(layout, region, slot, trained)
    if len(trained) == 1:
        layout.block(region, MASTER).copy_(layout.block(region, block_of(trained[0])))
    elif trained:
        for slot in layout.slots:
            _merge_slot(layout, region, slot, {k: batches[k] for k in trained})
    restart(layout, region, len(batches))


def restart(layout: BufferLayout, region: Region, workers: int) -> None:
    """Copy the master into every worker's copy."""
    master = layout.block(region, MASTER)
    for worker in range(workers):
        layout.block(region, block_of(worker)).copy_(master)


def _mend_poisoned(layout: BufferLayout, region: Region, slot: BufferSlot, workers: Sequence[int]) -> None:
    if not (slot.dtype.is_floating_point or slot.dtype.is_complex):
        return
    master = layout.view(region, slot, MASTER)
    for worker in workers:
        copy = layout.view(region, slot, block_of(worker))
        if torch.isfinite(master).all() and not torch.isfinite(copy).all():
            copy.copy_(master)


def _merge_slot(layout: BufferLayout, region: Region, slot: BufferSlot, weights: dict[int, int]) -> None:
    master = layout.view(region, slot, MASTER)
    copies = {k: layout.view(region, slot, block_of(k)) for k in weights}
    changed = [k for k, copy in copies.items() if not _same_bits(copy, master)]
    if not changed:
        return
    if slot.dtype.is_floating_point or slot.dtype.is_complex:
        master.copy_(_weighted(master, copies, weights))
    elif slot.dtype == torch.bool:
        master.copy_(copies[max(changed, key=lambda k: weights[k])])
    else:
        before = master.clone()
        for k in changed:
            master.add_(copies[k] - before)


def _weighted(master: Tensor, copies: dict[int, Tensor], weights: dict[int, int]) -> Tensor:
    wide = torch.complex128 if master.is_complex() else torch.float64
    start, total = master.to(wide), sum(weights.values())
    moved = start + sum(weights[k] * (copy.to(wide) - start) for k, copy in copies.items()) / total
    # A running minimum starts at infinity: there the difference is NaN, but the plain mean is defined.
    mean = sum(copy.to(wide) * (weights[k] / total) for k, copy in copies.items())
    return torch.where(torch.isfinite(start), moved, mean)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Compare bits: NaN equals NaN, and 0.0 differs from -0.0."""
    if not one.numel():
        return True
    one, other = (torch.as_strided(each, (each.numel(),), (1,)).view(torch.uint8) for each in (one, other))
    return torch.equal(one, other)
