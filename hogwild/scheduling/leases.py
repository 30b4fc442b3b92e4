"""The values of the work queue: items, leases, the ledger, and the progress in a worker's row. The rules are in
`work_queue.py`."""

from dataclasses import dataclass, field, fields
from enum import IntEnum

HAND_S = 0.03
MAX_ITEM_BATCHES = 0xFFFF  # the commit word counts the batches of an item in 16 bits


class Kind(IntEnum):
    """The task of a worker for an item."""

    TRAIN = 1
    EVALUATE = 2
    SCORE = 3  # one item, after all slices of an evaluation: metrics that need every output at once


@dataclass(frozen=True, slots=True)
class WorkItem:
    """Batches `[start, stop)` of `epoch`. The id is never reused in the job."""

    id: int
    kind: Kind
    epoch: int
    start: int
    stop: int


@dataclass(slots=True)
class Lease:
    """An item leased to a worker. `settled` of its batches are in the ledger; `skipped` of those were not applied."""

    item: WorkItem
    worker: int
    attempts: int
    settled: int = 0
    skipped: int = 0

    @property
    def left(self) -> int:
        return self.item.stop - self.item.start - self.settled


@dataclass(slots=True)
class FreeRange:
    """Unleased batches: every `step`-th of `[start, stop)`. `attempts` counts for the first exchange only."""

    start: int
    stop: int
    attempts: int = 0
    step: int = 1


@dataclass(slots=True)
class Ledger:
    """Counts of batches. done + skipped + quarantined = total once the work is finished."""

    done: int = 0
    skipped: int = 0
    quarantined: int = 0
    indeterminate: int = 0
    redone: int = 0

    @property
    def finished(self) -> int:
        return self.done + self.skipped + self.quarantined


@dataclass(slots=True)
class Counts(Ledger):
    """A ledger with its updates and samples."""

    updates: int = 0
    samples: int = 0

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.done, self.skipped, self.quarantined, self.indeterminate, self.redone)

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, name) + getattr(other, name) for name in _COUNTED))


_COUNTED = tuple(each.name for each in fields(Counts))


@dataclass(frozen=True, slots=True)
class LeaseProgress:
    """The progress of a worker's item, from its row: `committed` batches of `item` are finished (`skipped` of them not
    applied), and the apply of batches up to `intended` has begun. `active`: the worker was working, not waiting or
    parked."""

    item: int
    committed: int
    skipped: int
    intended_item: int
    intended: int
    active: bool = True


@dataclass(frozen=True, slots=True)
class Release:
    """The outcome of a dead worker's leases, for the event log."""

    freed: int = 0
    indeterminate: int = 0
    quarantined: tuple[tuple[int, int, int], ...] = ()  # (epoch, start, stop)
    charged: tuple[int, int] | None = None  # (epoch, first batch) of the exchange the death was charged to


@dataclass(slots=True)
class Limits:
    """The job settings that the queue needs. `procs`: workers there are now, which a resize changes; `sync_every`:
    updates between two commits; `hands`: batches that a worker should have in hand, so that it need not wait for the
    supervisor: what it trains in HAND_S, as measured."""

    procs: int
    epochs: int = 1
    accumulate: int = 1
    max_updates: int | None = None
    max_attempts: int = 3
    max_item_updates: int = 64
    redo_indeterminate: bool = True
    sync_every: int = 1
    hands: dict[int, int] = field(default_factory=dict)
