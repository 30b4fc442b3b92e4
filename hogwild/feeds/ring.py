"""The ring: a fixed set of shared-memory slots, one batch each, filled by loaders and read in place by workers.

    [ table | heads | states | data ]                     per slot: a row of the table, a head, two states, its data
      table row      epoch, batch, shard, place, …        the supervisor, before it sends the slot's number
      head           rows, lengths of the states, shapes  the loader that was sent the slot's number
      states         of the iterator, before and after    the same; if a loader begins anew, the supervisor before it

Readers learn of a slot over a pipe, only after it is filled, so the table needs no lock. All batches have the nesting
and the types of the job's first batch (`BatchForm`); shapes may vary as long as the batch fits into `data_bytes`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_map, tree_structure, tree_unflatten

from hogwild.errors import DataError
from hogwild.feeds.batch import Batch
from hogwild.shared_memory.region import Region, aligned

MOST_DIMENSIONS = 8
LEAF_WORDS = 1 + MOST_DIMENSIONS  # number of dimensions, then each dimension
ROW_WORDS = 8  # of a table row: one cache line
KEPT_VIEWS = 4  # times the slots: cached sets of views, if shapes vary
Shapes = tuple[tuple[int, ...], ...]


class SlotWord(IntEnum):
    """Words of a table row: the batch that the slot holds or will hold."""

    EPOCH = 0
    BATCH = 1
    SHARD = 2
    PLACE = 3  # of the batch within its shard
    FROM = 4  # place from which a restarted iterator continues: the one its state belongs to
    STATE_BYTES = 5  # length of that state, stored as the slot's state before; 0: start from the beginning
    FILLED = 6  # 1: the parent knows that the slot holds that batch


class Head(IntEnum):
    """Words of a slot's head, before its shapes."""

    ROWS = 0
    BEFORE_BYTES = 1
    AFTER_BYTES = 2
    SHAPES = 3  # start of the shapes


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor of a batch: its type, and whether its rows are stored as (H, W, C) and viewed as (C, H, W)."""

    dtype: torch.dtype
    channels_last: bool = False

    def lying(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if not (self.channels_last and len(shape) == 4):
            return shape
        n, c, h, w = shape
        return (n, h, w, c)

    def nbytes(self, shape: tuple[int, ...]) -> int:
        return aligned(math.prod(shape) * self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class BatchForm:
    """The nesting and the tensor types that all batches of a stream share. `nesting` is a batch with leaf numbers in
    place of tensors: `({"a": 0, "b": 1}, 2)`."""

    nesting: tuple[Any, ...]
    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, tree: TreeSpec, leaves: Sequence[Leaf]) -> "BatchForm":
        return cls(tree_unflatten(range(len(leaves)), tree), tuple(leaves))

    @property
    def kinds(self) -> tuple[torch.dtype, ...]:
        return tuple(leaf.dtype for leaf in self.leaves)

    def describe(self) -> str:
        """Return the nested tensor types, for messages."""
        shown = tree_map(lambda number: str(self.kinds[number]).removeprefix("torch."), self.nesting)
        return str(shown).replace("'", "")

    @property
    def is_nested(self) -> bool:
        """True if an input is not a single tensor."""
        return self.nesting != tuple(range(len(self.leaves)))

    @property
    def tree(self) -> TreeSpec:
        return tree_structure(self.nesting)

    def nbytes(self, shapes: Shapes) -> int:
        """Return the bytes that the tensors of a batch take in a slot."""
        return sum(leaf.nbytes(shape) for leaf, shape in zip(self.leaves, shapes, strict=True))

    def batch(self, leaves: Sequence[Tensor], first_position: int, rows: int) -> Batch:
        """Return the batch (input, …, target), nested as by the collate function."""
        # Walking the tree takes longer, and usually nothing is nested.
        *inputs, target = tree_map(leaves.__getitem__, self.nesting) if self.is_nested else leaves
        return Batch(tuple(inputs), target, first_position, rows)


@dataclass(frozen=True, slots=True)
class RingSpec:
    """Everything a process must know to use the region of a ring."""

    form: BatchForm
    slots: int
    loaders: int
    data_bytes: int  # of one slot
    state_bytes: int = 0  # of each of a slot's two states

    @property
    def head_words(self) -> int:
        return aligned(8 * (Head.SHAPES + LEAF_WORDS * len(self.form.leaves))) // 8

    @property
    def tables_bytes(self) -> int:
        return 8 * (ROW_WORDS + self.head_words) * self.slots

    @property
    def slot_bytes(self) -> int:
        return aligned(self.data_bytes) + 2 * aligned(self.state_bytes)

    @property
    def nbytes(self) -> int:
        return self.tables_bytes + self.slots * self.slot_bytes

    def record(self) -> dict[str, int]:
        return {"slots": self.slots, "bytes": self.nbytes}


class TooLarge(Exception):
    """A batch does not fit into a slot: it needs `args[0]` bytes."""


class Ring:
    """The slots of one job, usable in any process. Views are cached."""

    def __init__(self, region: Region, spec: RingSpec) -> None:
        self.spec = spec
        self.region = region
        self.table = region.array(np.int64, (spec.slots, ROW_WORDS))
        self._heads = region.array(np.int64, (spec.slots, spec.head_words), self.table.nbytes)
        self._views: dict[tuple[int, Shapes], tuple[Tensor, ...]] = {}
        self.tree = spec.form.tree

    @classmethod
    def allocate(cls, name: str, spec: RingSpec) -> "Ring":
        """Allocate a ring. Raises MemoryShortError."""
        return cls(Region.allocate(name, spec.nbytes), spec)

    # ---- the batch in a slot

    def reserve(self, slot: int, shapes: Shapes) -> tuple[Tensor, ...]:
        """Return writable memory of the slot for tensors of these shapes, in the order of the form's leaves. Only the
        owner of the slot may call it. Raises TooLarge."""
        needed = self.spec.form.nbytes(shapes)
        if needed > self.spec.data_bytes:
            raise TooLarge(needed)
        return self._cut(slot, shapes)

    def seal(self, slot: int, rows: int, shapes: Shapes, before: bytes = b"", after: bytes = b"") -> None:
        """Write the slot's head: number of rows, shapes, and the iterator's states before and after the batch."""
        head = self._heads[slot]
        for number, shape in enumerate(shapes):
            start = Head.SHAPES + LEAF_WORDS * number
            head[start] = len(shape)
            head[start + 1 : start + 1 + len(shape)] = shape
        head[Head.ROWS] = rows
        self.write_state(slot, before, is_after=False)
        self.write_state(slot, after, is_after=True)

    def rows(self, slot: int) -> int:
        return int(self._heads[slot, Head.ROWS])

    def leaves(self, slot: int) -> tuple[Tensor, ...]:
        """Return the tensors of the batch in this slot, without a copy."""
        head = self._heads[slot]
        shapes = []
        for number in range(len(self.spec.form.leaves)):
            start = Head.SHAPES + LEAF_WORDS * number
            shapes.append(tuple(head[start + 1 : start + 1 + int(head[start])].tolist()))
        return self._cut(slot, tuple(shapes))

    def targets(self) -> Tensor:
        """Return the targets (N, …) of all slots, which must be filled, as those of validation data are."""
        return torch.cat([self.leaves(slot)[-1] for slot in range(self.spec.slots)])

    def find(self, epoch: int, batch: int) -> int:
        """Return the slot of a batch that the caller has leased."""
        table = self.table
        is_it = (
            (table[:, SlotWord.BATCH] == batch) & (table[:, SlotWord.EPOCH] == epoch) & (table[:, SlotWord.FILLED] == 1)
        )
        (found,) = np.nonzero(is_it)
        assert len(found) == 1, f"epoch {epoch}, batch {batch} is in {len(found)} slots"
        return int(found[0])

    def _cut(self, slot: int, shapes: Shapes) -> tuple[Tensor, ...]:
        views = self._views.get((slot, shapes))
        if views is not None:
            return views
        offset, made = self._data(slot), []
        for leaf, shape in zip(self.spec.form.leaves, shapes, strict=True):
            view = self.region.tensor(leaf.dtype, leaf.lying(shape), offset)
            made.append(view.permute(0, 3, 1, 2) if leaf.channels_last and len(shape) == 4 else view)
            offset += leaf.nbytes(shape)
        if len(self._views) >= KEPT_VIEWS * self.spec.slots:
            self._views.clear()
        views = self._views[slot, shapes] = tuple(made)
        return views

    def words(self) -> np.ndarray:
        """Return a copy of all slots' data as int64, in which are all numbers of that type, and others."""
        words = self.spec.data_bytes // 8
        return np.stack([self.region.array(np.int64, (words,), self._data(slot)) for slot in range(self.spec.slots)])

    # ---- the iterator's states

    def write_state(self, slot: int, state: bytes, *, is_after: bool) -> None:
        """Write an iterator state. Raises DataError if it has outgrown its space."""
        if len(state) > self.spec.state_bytes:
            raise DataError(
                f"data.train: the iterator's state has grown to {len(state):,} bytes, but a slot has room for "
                f"{self.spec.state_bytes:,} (by its first state); keep only the position in state_dict(), not the data",
                code="data/stream-state",
            )
        word = Head.AFTER_BYTES if is_after else Head.BEFORE_BYTES
        self._heads[slot, word] = len(state)
        if state:
            self._state(slot, is_after)[: len(state)] = np.frombuffer(state, np.uint8)

    def read_state(self, slot: int, *, is_after: bool) -> bytes:
        """Return an iterator state of a filled slot."""
        length = int(self._heads[slot, Head.AFTER_BYTES if is_after else Head.BEFORE_BYTES])
        return self._state(slot, is_after)[:length].tobytes() if length else b""

    def read_begin(self, slot: int) -> bytes:
        """Return the state to start from, as given in the table."""
        length = int(self.table[slot, SlotWord.STATE_BYTES])
        return self._state(slot, is_after=False)[:length].tobytes() if length else b""

    def _state(self, slot: int, is_after: bool) -> np.ndarray:
        start = self._data(slot) + aligned(self.spec.data_bytes) + (aligned(self.spec.state_bytes) if is_after else 0)
        return self.region.array(np.uint8, (self.spec.state_bytes,), start)

    def _data(self, slot: int) -> int:
        return self.spec.tables_bytes + slot * self.spec.slot_bytes


class RingFeed:
    """Batches from the ring, which a worker trains on in place. `copies`: copy into private buffers first, because the
    transform or the model writes into its input, and a worker that dies must leave the batch unchanged."""

    def __init__(self, ring: Ring, batch_size: int, *, copies: bool = False) -> None:
        """`batch_size`: positions of a batch, as its seeds count them."""
        self._ring, self._batch_size = ring, batch_size
        self._own = Ring.allocate("own-slot", replace(ring.spec, slots=1, loaders=0)) if copies else None

    @property
    def region(self) -> Region:
        """The memory that holds its batches."""
        return self._ring.region if self._own is None else self._own.region

    @property
    def is_refilled(self) -> bool:
        """True if loaders refill the slots; otherwise the slots hold all the data."""
        return self._ring.spec.loaders > 0

    def twin(self) -> "RingFeed":
        """Return a feed of the same batches, with its own buffers if batches are copied."""
        return RingFeed(self._ring, self._batch_size, copies=self._own is not None)

    def gather(self, epoch: int, batch: int) -> Batch:
        ring = self._ring
        slot = ring.find(epoch, batch)
        leaves, rows = ring.leaves(slot), ring.rows(slot)
        if self._own is not None:
            own = self._own.reserve(0, tuple(tuple(leaf.shape) for leaf in leaves))
            for mine, shared in zip(own, leaves, strict=True):
                mine.copy_(shared)
            leaves = own
        return ring.spec.form.batch(leaves, batch * self._batch_size, rows)

    def addresses(self) -> tuple[int, ...]:
        """Return the addresses of the slots' data: the same numbers for the whole job."""
        ring = self._ring
        return tuple(ring.region.array(np.uint8, (1,), ring._data(slot)).ctypes.data for slot in range(ring.spec.slots))
