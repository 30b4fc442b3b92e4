"""Validation data that is kept in whole batches (padded, collated, or from an iterable): read once, before workers
start, into a ring that holds all of them."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hogwild import host
from hogwild.errors import MemoryShortError
from hogwild.feeds.ring import Ring, RingSpec, SlotWord
from hogwild.feeds.stream_reader import Filler, Unreadable
from hogwild.formatting import size
from hogwild.job.stream_setup import Streamed, own_random_state
from hogwild.scheduling.batch_plan import BatchPlan, StreamPlan

LOOKS = 8  # checks of memory while the free memory is filled: others use it, too


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


def hold(streamed: Streamed, batch_size: int, what: str) -> HeldRing:
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
            memory.take(sum(leaf.nbytes for leaf in ring.leaves(0)), ring.rows(0))
            kept.append((tuple(leaf.clone() for leaf in ring.leaves(0)), ring.rows(0)))
    return _held(kept, spec, batch_size)


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

    def take(self, nbytes: int, records: int) -> None:
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


def _held(kept: list[tuple[tuple[Tensor, ...], int]], spec: RingSpec, batch_size: int) -> HeldRing:
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
