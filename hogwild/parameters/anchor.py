"""The anchor: the trained parameters that all nodes of a cluster agreed on in the last round, and the arithmetic of a
round. The supervisor computes it in a thread; the communicator only adds up `sums` over the nodes: all dense words, and
of the tables the rows that any node has changed (in the others every node has zeros).

    cut       copy = flats                                     all workers are parked
    offer     sums = updates x (copy - anchor)                 workers train again
              (the communicator: sums = the sum over all nodes)
    settle    sums = the new anchor                            the same bits on every node
    apply     flats += new anchor - copy;  anchor = new anchor a word that nobody changed is not written

A word that did not change since the cut gets the anchor's very bits. A worker's write between our read and our write of
a word is lost, as in every exchange (`exchange.py`); the next cut is compared with the anchor, so nothing drifts.

Dense parameters move by the mean of the nodes' differences, weighted by their updates: by itself (`average`), or as the
gradient of Nesterov's momentum (`nesterov`; DiLoCo, Douillard et al. 2023, arXiv:2311.08105). A row of a sparse table
moves by the sum of the differences over the number of nodes that changed it: a plain mean would divide by nodes that
never saw the row. Sums beside the parameters (`SharedModel.sums`: FTRL's z) move by the sum of the differences: with a
sum for each of K nodes, l1 would weigh K times as much.

`hold` puts the anchor into the flats for an evaluation or a checkpoint while workers are parked; `release` takes it out
again, with what has come meanwhile. Buffers take part in all of this (`BufferAnchor`)."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field

import numpy as np
import torch
from torch import Tensor

from hogwild.parameters import buffers
from hogwild.parameters.buffers import MASTER, BufferLayout, BufferSlot, block_of
from hogwild.parameters.exchange import trained_sizes
from hogwild.parameters.flat_layout import FlatLayout, region_name
from hogwild.parameters.state_dicts import is_finite
from hogwild.shared_memory.region import Region

PIECE = 1 << 14  # words at a time: they stay in the nearest cache between our read and our write
BLOCK = 1 << 16  # words at a time where torch makes a copy twice as wide
RATE, MOMENTUM = 0.7, 0.9  # of nesterov, DiLoCo's
WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}  # sums of these lose too much in themselves
SUMS, CHANGED, CHANGERS, TABLES = "round-", "changed", "changers", "tables"  # regions that the communicator maps


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows of one sparse parameter, or words of a sum beside the parameters: words [offset, offset + rows x width) of
    the flat; `bit`: of its first row among all rows of all tables."""

    offset: int
    rows: int
    width: int
    bit: int

    def of(self, words: Tensor) -> Tensor:
        """Return (rows, width) of one flat's words."""
        return words[self.offset : self.offset + self.rows * self.width].view(self.rows, self.width)


@dataclass(slots=True)
class _Words:
    """The trained words of one dtype. `dense`: ranges outside the tables."""

    flat: Tensor  # (n,) shared, written by all workers
    sums: Tensor  # (n,) shared with the communicator, at least float32
    dense: list[tuple[int, int]]
    tables: list[RowTable]
    anchor: Tensor = field(init=False)  # (n,)
    copy: Tensor = field(init=False)  # (n,) the flat at the cut
    momentum: Tensor | None = None  # (n,) of the dense words
    bound: float | None = None  # of the size of a sum beside the parameters; None: parameters

    def __post_init__(self) -> None:
        self.anchor, self.copy = self.flat.clone(), self.flat.clone()


class Anchor:
    """One node's side of the rounds. `is_open`: the copy holds a cut that is in no committed round. `is_held`: the
    flats hold the anchor."""

    def __init__(
        self,
        layout: FlatLayout,
        regions: Mapping[str, Region],
        outer: str,
        rows_of: Collection[str] = (),
        buffered: tuple[buffers.BufferLayout, int] | None = None,
        beside: Sequence[tuple[Tensor, float]] = (),
    ) -> None:
        """`rows_of`: names of parameters that are trained row by row, besides those with sparse gradients.
        `buffered`: the layout of the buffers, and the number of workers that have copies. `beside`: (n,) words of which
        nodes add up their changes, and the bound of their size."""
        self._outer = outer
        self._words: list[_Words] = []
        self.regions: dict[str, Region] = {}  # for the communicator
        self.by_rows: set[str] = set()  # names of the parameters that are tables
        of_region: dict[str, list[RowTable]] = {}
        self.is_open = self.is_held = False
        bits = 0
        for dtype, size in trained_sizes(layout).items():
            tables: list[RowTable] = []
            for slot in sorted(layout.params, key=lambda slot: slot.offset):
                is_rows = slot.group is not None and (slot.sparse or slot.name in rows_of) and len(slot.shape) > 1
                if slot.dtype == dtype and is_rows:
                    width = int(np.prod(slot.shape[1:]))
                    tables.append(RowTable(slot.offset, slot.shape[0], width, bits))
                    self.by_rows.add(slot.name)
                    bits += slot.shape[0]
            wide = WIDE.get(dtype, dtype)
            name = f"{SUMS}{dtype}-{wide}".replace("torch.", "")  # the communicator adds up what stands last
            self.regions[name] = Region.allocate(name, size * wide.itemsize)
            flat = regions[region_name(dtype)].tensor(dtype, (size,))
            sums = self.regions[name].tensor(wide, (size,))
            of_region[name] = tables
            words = _Words(flat, sums, outside(size, tables), tables)
            words.momentum = torch.zeros(size, dtype=wide) if outer == "nesterov" and words.dense else None
            self._words.append(words)
        self._rows = bits  # of parameters; those beside them follow
        for number, (flat, bound) in enumerate(beside):
            name = f"{SUMS}sum-{number}-{str(flat.dtype).removeprefix('torch.')}"
            self.regions[name] = Region.allocate(name, flat.nbytes)
            shared = self.regions[name].tensor(flat.dtype, (len(flat),))
            of_region[name] = [RowTable(0, len(flat), 1, bits)]
            self._words.append(_Words(flat, shared, [], of_region[name], bound=bound))
            bits += len(flat)
        self._bits = bits
        if bits:
            self.regions[CHANGED] = Region.allocate(CHANGED, -(-bits // 8))
            self.regions[CHANGERS] = Region.allocate(CHANGERS, 2 * self._rows)
        self._buffers: BufferAnchor | None = None
        if buffered is not None and any(slot.moves for slot in buffered[0].slots):
            self._buffers = BufferAnchor(buffered[0], regions[buffers.REGION], buffered[1])
            self.regions[BUFFER_SUMS] = self._buffers.sums
        if bits:
            names = sorted(name for name in self.regions if name.startswith(SUMS))
            found = [(names.index(name), *astuple(table)) for name, tables in of_region.items() for table in tables]
            self.regions[TABLES] = Region.allocate(TABLES, 8 * 5 * len(found))
            self.regions[TABLES].array("i8", (len(found), 5))[:] = found

    # ---- a round

    def cut(self) -> bool:
        """Copy the flats, and the buffers after a merge; return whether all flats are finite. All workers are parked.
        While the anchor is held the flats are not this node's: the copy then is, or nothing has changed."""
        for words in self._words:
            if not self.is_held:
                words.copy.copy_(words.flat)
            elif not self.is_open:
                words.copy.copy_(words.anchor)
        if self._buffers is not None and not (self.is_held and self.is_open):
            self._buffers.cut(is_held=self.is_held)
        self.is_open = True
        return all(is_finite(words.copy) for words in self._words)

    def offer(self, updates: int) -> tuple[float, int]:
        """Put this node's part into the sums: `updates` times its difference, and the rows that changed. Return the
        drift, which is the norm of the difference over that of the anchor, and a checksum of the anchor."""
        if self._buffers is not None:
            self._buffers.offer()
        changed = np.zeros(-(-self._bits // 8) * 8, np.uint8)
        moved = whole = 0.0
        for words in self._words:
            words.sums.copy_(words.copy).sub_(words.anchor)
            if words.bound is None:
                moved += _square(words.sums)
                whole += _square(words.anchor)
            for start, stop in words.dense:
                words.sums[start:stop].mul_(updates)
            for table in words.tables:
                rows = table.of(words.sums).ne(0).any(dim=1).numpy()
                changed[table.bit : table.bit + table.rows] = rows
        if self._bits:
            self.regions[CHANGED].array(np.uint8, (len(changed) // 8,))[:] = np.packbits(changed)
        return float((moved / whole) ** 0.5) if whole else 0.0, self._checksum()

    def _checksum(self) -> int:
        """Return the sum of the parameters' words as integers: nodes that agree to the bit have the same."""
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        anchors = [words.anchor for words in self._words if words.bound is None]
        views = [anchor.view(integers[anchor.element_size()]) for anchor in anchors]
        return sum(int(piece.sum()) for view in views for piece in view.split(BLOCK))

    def settle(self, updates: int, nodes: int) -> None:
        """Turn the sums over all nodes into the new anchor; `updates` of all nodes since the last round."""
        if self._buffers is not None:
            self._buffers.settle(nodes)
        changers = torch.ones(self._rows)  # (rows,) the nodes that changed each row, at least 1
        if self._rows and nodes > 1:
            counts = self.regions[CHANGERS].array(np.uint16, (self._rows,))
            changers = torch.from_numpy(np.maximum(counts, 1).astype(np.float32))
        for words in self._words:
            if nodes == 1:  # alone: what this node has, to the bit
                words.sums.copy_(words.copy)
                continue
            if words.bound is not None:
                words.sums.add_(words.anchor).clamp_(-words.bound, words.bound)
                continue
            for start, stop in words.dense:
                step, anchor = words.sums[start:stop], words.anchor[start:stop]
                if not updates:
                    step.copy_(anchor)
                    continue
                step.div_(updates)
                if words.momentum is not None:
                    momentum = words.momentum[start:stop]
                    momentum.mul_(MOMENTUM).add_(step)
                    step.add_(momentum, alpha=MOMENTUM).mul_(RATE)
                step.add_(anchor)
            for table in words.tables:
                step = table.of(words.sums)
                step.div_(changers[table.bit : table.bit + table.rows, None])
                step.add_(table.of(words.anchor))

    def apply(self) -> None:
        """Bring the flats and the anchor to the new anchor that `settle` made. Workers may be training."""
        for words in self._words:
            for start in range(0, len(words.flat), PIECE):
                part = slice(start, start + PIECE)
                new, copy = words.sums[part].to(words.flat.dtype), words.copy[part]
                if not self.is_held:
                    _move(words.flat[part], copy, new)
                words.anchor[part] = new
        if self._buffers is not None:
            self._buffers.apply(is_held=self.is_held)
        self.is_open = False

    # ---- beside a round

    def hold(self) -> None:
        """Put the anchor into the flats. All workers are parked, after a `cut`."""
        assert self.is_open and not self.is_held
        for words in self._words:
            words.flat.copy_(words.anchor)
        if self._buffers is not None:
            self._buffers.hold()
        self.is_held = True

    def release(self) -> None:
        """Give the flats what this node has: its last cut, or the anchor if that has been committed."""
        assert self.is_held
        for words in self._words:
            words.flat.copy_(words.copy if self.is_open else words.anchor)
        if self._buffers is not None:
            self._buffers.release(is_open=self.is_open)
        self.is_held = False

    def take(self) -> None:
        """Set the flats to the anchor; what this node has done since is gone. All workers are parked."""
        for words in self._words:
            words.flat.copy_(words.anchor)
        if self._buffers is not None:
            self._buffers.take()
        self.is_held = False

    def restart(self) -> None:
        """Set the anchor to the flats, before workers start."""
        for words in self._words:
            words.anchor.copy_(words.flat)
        if self._buffers is not None:
            self._buffers.restart()
        self.is_open = self.is_held = False

    # ---- for a checkpoint

    def momentum(self) -> dict[str, Tensor]:
        """Return a copy of nesterov's momentum, by dtype; {}: none."""
        found = {str(words.flat.dtype): words.momentum for words in self._words}
        return {name: value.clone() for name, value in found.items() if value is not None}

    def restore_momentum(self, saved: Mapping[str, Tensor]) -> None:
        """Set the momentum to a saved one, or to zero if none of this layout was saved."""
        for words in self._words:
            value = saved.get(str(words.flat.dtype))
            if words.momentum is not None:
                words.momentum.zero_()
                if value is not None and value.shape == words.momentum.shape:
                    words.momentum.copy_(value)


def outside(size: int, tables: Sequence[RowTable], alignment: int = 1) -> list[tuple[int, int]]:
    """Return the ranges of [0, size) that no table covers. `alignment`: of parameters, in words; more than 1: without
    the words behind a table up to there, which are unused."""
    ranges, end = [], 0
    for table in tables:
        if table.offset > end:
            ranges.append((end, table.offset))
        end = -(-(table.offset + table.rows * table.width) // alignment) * alignment
    return [*ranges, (end, size)] if end < size else ranges


def tables_of(regions: Mapping[str, Region], names: Sequence[str]) -> list[list[RowTable]]:
    """Return the tables in each region of sums; `names`: theirs, sorted."""
    found: list[list[RowTable]] = [[] for _ in names]
    if TABLES in regions:
        for region, *table in regions[TABLES].array("i8", (regions[TABLES].nbytes // 40, 5)).tolist():
            if table[1]:  # else behind the last one
                found[region].append(RowTable(*table))
    return found


def _square(values: Tensor) -> float:
    """Return the square of the 2-norm."""
    return sum(float(torch.linalg.vector_norm(piece, dtype=torch.float64)) ** 2 for piece in values.split(BLOCK))


def _move(flat: Tensor, copy: Tensor, new: Tensor) -> None:
    """Add to a piece of the flat what the round has changed since the cut."""
    step = new - copy
    changed = step.nonzero().squeeze(1)
    if len(changed) == 0:
        return
    if len(changed) < len(flat) // 2:
        had = flat[changed]
        flat[changed] = torch.where(had == copy[changed], new[changed], had + step[changed])
        return
    moved = torch.where(flat == copy, new, flat + step)
    flat.copy_(moved)


BUFFER_SUMS = "round-buffers-float64"


class BufferAnchor:
    """The buffers that all nodes of a cluster agreed on in the last round, and their part of a round.

      cut       copy = master, after a merge                        all workers are parked
      offer     sums = k, w(k) (copy - anchor)                     of each buffer; k: its updates since the anchor's cut
      settle    anchor + sums / w(K), K = all nodes' updates        the same bits on every node
      apply     anchor = that; the master follows at the next cut, as only a pause may write it

    So nodes are merged as workers are (`buffers.py`): the anchor is what one process would have left after the batches
    of all nodes. A master that has made k more updates since its cut, with `own` free of the copy,

        master = copy + taken(k) (own - copy),        becomes        anchor + taken(k) (own - anchor).

    `region` is that of
    the buffers, `sums` is shared with the communicator."""

    def __init__(self, layout: BufferLayout, region: Region, workers: int) -> None:
        self._layout, self._region, self._workers = layout, region, workers
        self._slots = [slot for slot in layout.slots if slot.moves]
        sizes = {slot.name: 1 + math.prod(slot.shape) for slot in self._slots}
        self.sums = Region.allocate(BUFFER_SUMS, 8 * sum(sizes.values()))
        self._sums: dict[str, Tensor] = {}  # (1 + numel,) float64 of each buffer
        start = 0
        for name, size in sizes.items():
            self._sums[name] = self.sums.tensor(torch.float64, (size,), 8 * start)
            start += size
        self._anchor = self._copy = self._new = self._masters()
        self._anchored_at = self._cut_at = self._merged()
        self._is_behind = False  # the masters have not followed the anchor yet

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
            copy, anchor = (values[slot.name].double() for values in (self._copy, self._anchor))
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
        step, wide = sums[1:].view(slot.shape), anchor.double()
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
