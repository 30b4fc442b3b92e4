"""The buffers that all nodes of a cluster agreed on in the last round, and their part of a round (`anchor.py`).

    cut       copy = master, after a merge                        all workers are parked
    offer     sums = k, w(k) (copy - anchor)                      of each buffer; k: its updates since the anchor's cut
    settle    anchor + sums / w(K), K = all nodes' updates        the same bits on every node
    apply     anchor = that; the master follows at the next cut, as only a pause may write it

So nodes are merged as workers are (`buffers.py`): the anchor is what one process would have left after the batches of
all nodes. A master that has made k more updates since its cut, with `own` free of the copy,

    master = copy + taken(k) (own - copy),        becomes        anchor + taken(k) (own - anchor)."""

from collections.abc import Mapping

import torch
from torch import Tensor

from hogwild.parameters import buffers
from hogwild.parameters.buffers import MASTER, BufferLayout, BufferSlot, block_of
from hogwild.shared_memory.region import Region

SUMS = "round-buffers-float64"


class BufferAnchor:
    """One node's side. `region` is that of the buffers, `sums` is shared with the communicator."""

    def __init__(self, layout: BufferLayout, region: Region, workers: int) -> None:
        self._layout, self._region, self._workers = layout, region, workers
        self._slots = [slot for slot in layout.slots if slot.moves]
        words = sum(1 + self._numel(slot) for slot in self._slots)
        self.sums = Region.allocate(SUMS, 8 * words)
        self._sums: dict[str, Tensor] = {}  # (1 + numel,) float64 of each buffer
        start = 0
        for slot in self._slots:
            self._sums[slot.name] = self.sums.tensor(torch.float64, (1 + self._numel(slot),), 8 * start)
            start += 1 + self._numel(slot)
        self._anchor = self._copy = self._new = self._masters()
        self._anchored_at = self._cut_at = self._merged()
        self._is_behind = False  # the masters have not followed the anchor yet

    @staticmethod
    def _numel(slot: BufferSlot) -> int:
        return torch.Size(slot.shape).numel()

    def _master(self, slot: BufferSlot) -> Tensor:
        return self._layout.view(self._region, slot, MASTER)

    def _masters(self) -> dict[str, Tensor]:
        return {slot.name: self._master(slot).clone() for slot in self._slots}

    def _merged(self) -> int:
        """Return the batches in all merges so far, of this node."""
        return sum(int(self._layout.header(self._region, block_of(worker))) for worker in range(self._workers))

    def cut(self, *, is_held: bool) -> None:
        """Copy the masters, after a merge; first let them follow the anchor. While that is held nothing has changed."""
        if is_held:
            self._copy, self._cut_at = self._anchor, self._anchored_at
            return
        if self._is_behind:
            self._write({slot.name: self._followed(slot) for slot in self._slots})
            self._is_behind, self._anchored_at = False, self._cut_at
        self._copy, self._cut_at = self._masters(), self._merged()

    def _followed(self, slot: BufferSlot) -> Tensor:
        master, copy, anchor = self._master(slot), self._copy[slot.name], self._anchor[slot.name]
        if slot.dtype == torch.bool:
            return torch.where(master == copy, anchor, master)
        if not (slot.dtype.is_floating_point or slot.dtype.is_complex):
            return anchor + (master - copy)
        updates = self._updates(slot, self._masters(), self._copy, self._merged() - self._cut_at)
        if not updates:
            return anchor
        rule = slot.rule
        weights = [rule.weight(updates, self._counter(slot, values)) for values in (self._copy, self._anchor)]
        taken = 0.0 if rule.momentum == 0 else updates / weights[1]
        found = anchor + (master - copy) * (weights[0] / weights[1]) + (copy - anchor) * taken
        return torch.where(torch.isfinite(found), found, master)

    def offer(self) -> None:
        """Put this node's part into the sums."""
        for slot in self._slots:
            copy, anchor = (_wide(values[slot.name]) for values in (self._copy, self._anchor))
            updates = self._updates(slot, self._copy, self._anchor, self._cut_at - self._anchored_at)
            weight = slot.rule.weight(updates, self._counter(slot, self._anchor)) if updates else 0.0
            step = torch.nan_to_num(weight * (copy - anchor), nan=0.0, posinf=0.0, neginf=0.0)
            sums = self._sums[slot.name]
            sums[0] = updates
            sums[1:] = torch.where(torch.isfinite(anchor), step, updates * copy).flatten()

    def settle(self, nodes: int) -> None:
        """Turn the sums over all nodes into the new anchor, which `apply` adopts."""
        if nodes == 1:
            self._new = self._copy
            return
        self._new = {slot.name: self._settled(slot) for slot in self._slots}

    def _settled(self, slot: BufferSlot) -> Tensor:
        anchor, sums = self._anchor[slot.name], self._sums[slot.name]
        updates = int(sums[0])
        if not updates:
            return anchor
        step, wide = sums[1:].view(slot.shape), _wide(anchor)
        found = wide + step / slot.rule.weight(updates, self._counter(slot, self._anchor))
        found = torch.where(torch.isfinite(wide), found, step / updates)
        if slot.dtype == torch.bool:
            return found > 0.5
        return (found if slot.dtype.is_floating_point else found.round()).to(slot.dtype)

    def apply(self, *, is_held: bool) -> None:
        self._anchor, self._anchored_at = self._new, self._cut_at
        self._is_behind = not is_held

    def hold(self) -> None:
        """Put the anchor into the masters and all copies. All workers are parked."""
        self._write(self._anchor)

    def take(self) -> None:
        """Set the masters and all copies to the anchor. All workers are parked."""
        self._write(self._anchor)
        self._is_behind, self._anchored_at = False, self._merged()

    def release(self, *, is_open: bool) -> None:
        """Give the masters what this node has: its last cut, or the anchor if that has been committed."""
        if is_open:
            self._write(self._copy)
        else:
            self.take()

    def restart(self) -> None:
        """Set the anchor to the masters, before workers start."""
        self._anchor = self._copy = self._masters()
        self._anchored_at = self._cut_at = self._merged()
        self._is_behind = False

    def _write(self, values: Mapping[str, Tensor]) -> None:
        for slot in self._slots:
            self._master(slot).copy_(values[slot.name])
        buffers.restart(self._layout, self._region, self._workers)

    def _updates(self, slot: BufferSlot, now: Mapping[str, Tensor], then: Mapping[str, Tensor], batches: int) -> int:
        """Return the updates of a buffer between two moments, as its counter says, or the batches if it has none."""
        counted = self._counter(slot, now) - self._counter(slot, then)
        return counted if counted > 0 else max(0, batches)

    @staticmethod
    def _counter(slot: BufferSlot, values: Mapping[str, Tensor]) -> int:
        return int(values[slot.rule.counter]) if slot.rule.counter in values else 0


def _wide(value: Tensor) -> Tensor:
    return value.to(torch.float64)
