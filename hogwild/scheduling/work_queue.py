"""The work of a job as leased items. Pure bookkeeping: no clock, no process, no lock, no torch.

    FREE -> LEASED -> DONE | SKIPPED | QUARANTINED      a crash makes at most one exchange INDETERMINATE

The ledger counts batches. An item is a range of batches of one epoch, a whole number of updates long (an update is
`accumulate` batches, applied at once; the last one of an epoch may be shorter). The schedule picks the free range it is
cut from: the first (`RangeSchedule`), or, in `schedules.py`, one without conflict with another worker, or the
continuation of the worker's own lane. A worker commits exchange by exchange: `sync_every` updates,
fewer at the end of an item. The supervisor calls `observe` with each worker's commit word; all counters follow from
that. So a snapshot is exact up to the last observation, and a checkpoint is this object's `state()` taken when every
worker is parked."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import IntEnum
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from hogwild.scheduling.batch_plan import EpochPlan, check_cut, how_cut, updates_planned

HAND_S = 0.1
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


LEASES_IN_HAND = 2
EPOCHS_AHEAD = 1  # where order matters: keeps the other workers close to what a stalled one holds


class Free(ABC):
    """The free batches of one epoch, in pieces that no item may reach across."""

    def __init__(self, plan: EpochPlan) -> None:
        self._plan = plan

    @abstractmethod
    def __iter__(self) -> Iterator[FreeRange]: ...

    @property
    @abstractmethod
    def has_free(self) -> bool:
        """True if any are free, or may be: the end of a stream is unknown before it is read."""

    @abstractmethod
    def updates(self, accumulate: int) -> int:
        """Return the number of updates of `accumulate` batches; the last one of a piece may be shorter."""

    @abstractmethod
    def lease(self, piece: FreeRange, stop: int) -> None:
        """Lease the batches `[piece.start, stop)`."""

    @abstractmethod
    def put(self, pieces: Iterable[FreeRange]) -> None:
        """Make `pieces` free (again)."""

    def samples_in(self, start: int, stop: int) -> int:
        """Return the number of samples in the leased batches `[start, stop)`."""
        return self._plan.samples_in(start, stop)

    def mark_finished(self, start: int, stop: int) -> None:  # noqa: B027 (batches known at the start need nothing)
        """Settle the batches `[start, stop)`: they will not be asked for again."""

    def grant(self, pieces: Iterable[FreeRange]) -> None:
        """Make `pieces` free, which this node of a cluster did not have."""
        self.put(pieces)

    def spare(self, accumulate: int) -> list[FreeRange]:
        """Return the free batches that another node could have as well, in order: nothing of them has begun."""
        return list(self)

    def withdraw(self, piece: FreeRange, start: int) -> None:
        """Remove the batches `[start, piece.stop)` of a spare piece."""
        self.lease(piece, piece.stop)
        self.put([FreeRange(piece.start, start, piece.attempts)] if piece.start < start else [])

    @staticmethod
    def cut(pieces: list[FreeRange], piece: FreeRange, stop: int) -> None:
        """Remove the batches `[piece.start, stop)` from `pieces`, which holds `piece`."""
        at = pieces.index(piece)
        pieces[at : at + 1] = [FreeRange(stop, piece.stop)] if stop < piece.stop else []


class LeaseChoice(NamedTuple):
    """The next range for a worker."""

    epoch: int
    piece: FreeRange


class LeaseSchedule(ABC):
    """The rule that decides which batches may be leased at the same time. `fills_hands`: a worker may have more leases
    than `most_in_hand`, if they are short."""

    fills_hands = False

    @abstractmethod
    def free_of(self, epoch: int, pieces: Iterable[FreeRange] | None = None) -> Free:
        """Return the free batches of `epoch`: all of it, or after a resume only `pieces`."""

    def wait_for_grants(self) -> None:  # noqa: B027
        """Open no epoch: this is a node of a cluster, whose queue names each batch in `free_of` or `Free.grant`."""

    @abstractmethod
    def choose(self, worker: int, epochs: Mapping[int, Free], leases: Collection[Lease]) -> LeaseChoice | None:
        """Choose the next range for `worker` from these epochs, the earliest first, given the current `leases`; or
        None. The caller leases what is returned."""

    def choose_for_idle(self, worker: int, epochs: Mapping[int, Free], leases: Collection[Lease]) -> LeaseChoice | None:
        """Choose for a worker that holds nothing, and for which `choose` found nothing."""
        return None

    @abstractmethod
    def updates(self, horizon: int, limits: Limits) -> int:
        """Return the longest item, in updates, while `horizon` updates are free."""

    def released(self, worker: int) -> None:  # noqa: B027 (by default there is nothing to forget)
        """Forget `worker`, which is gone; its leased batches are free again."""

    def may_open(self, epoch: int, earliest: int, end: int, limits: Limits) -> bool:
        """Return whether a worker that finds nothing may begin `epoch` while `earliest` is not settled. `end`: the
        epoch that waits for an evaluation, or for none."""
        return epoch <= earliest + EPOCHS_AHEAD

    def most_in_hand(self, horizon: int, limits: Limits) -> int:
        """Return the most leases a worker may hold at once."""
        return LEASES_IN_HAND if horizon > 2 * limits.procs else 1

    def drop_epoch(self, epoch: int) -> None:  # noqa: B027
        """Forget `epoch`: all of it is settled."""

    def restart(self, next_epoch: int) -> None:  # noqa: B027
        """Go back to a checkpoint. `free_of` is then called for each unfinished epoch before `next_epoch`; an epoch it
        is not called for is settled."""


class FreeRanges(Free):
    """Free ranges in order of position."""

    def __init__(self, pieces: Iterable[FreeRange], plan: EpochPlan) -> None:
        super().__init__(plan)
        self._pieces = list(pieces)

    def __iter__(self) -> Iterator[FreeRange]:
        return iter(self._pieces)

    @property
    def has_free(self) -> bool:
        return bool(self._pieces)

    def updates(self, accumulate: int) -> int:
        return sum(-(-(piece.stop - piece.start) // accumulate) for piece in self._pieces)

    def lease(self, piece: FreeRange, stop: int) -> None:
        self.cut(self._pieces, piece, stop)

    def put(self, pieces: Iterable[FreeRange]) -> None:
        self._pieces += pieces
        self._pieces.sort(key=lambda piece: piece.start)


class RangeSchedule(LeaseSchedule):
    """The first free range of the earliest epoch, cut to a length that shrinks towards the end of the job."""

    fills_hands = True

    def __init__(self, plan: EpochPlan, update: int) -> None:
        """`update`: batches per update."""
        self._plan = plan
        self._update = update

    def free_of(self, epoch: int, pieces: Iterable[FreeRange] | None = None) -> FreeRanges:
        return FreeRanges([FreeRange(0, self._plan.batches)] if pieces is None else pieces, self._plan)

    def choose(self, worker: int, epochs: Mapping[int, Free], leases: Collection[Lease]) -> LeaseChoice | None:
        for epoch, free in epochs.items():
            if (piece := next(iter(free), None)) is not None:
                return LeaseChoice(epoch, piece)
        return None

    def may_open(self, epoch: int, earliest: int, end: int, limits: Limits) -> bool:
        return True

    def updates(self, horizon: int, limits: Limits) -> int:
        """Return the length of an item: long at first, shorter towards the end, but one whole exchange as long as every
        worker can have one."""
        longest = min(max(limits.max_item_updates, limits.sync_every), MAX_ITEM_BATCHES // self._update)
        shortest = min(limits.sync_every, -(-horizon // limits.procs))
        return max(1, min(longest, max(shortest, -(-horizon // (4 * limits.procs)))))


__all__ = ["FreeRange", "Kind", "Lease", "LeaseProgress", "Ledger", "Limits", "Release", "WorkItem", "WorkQueue"]

ITEM_ROWS = 2048  # ids that differ by a multiple of this share a row of the item table: never leased at once
Choose: TypeAlias = Callable[[int, Mapping[int, Free], Collection[Lease]], LeaseChoice | None]
MOST_IN_HAND, MOST_SHORT = 64, 256  # leases of a worker, where items are short; and of all: the schedule looks at them


@dataclass(slots=True)
class _Epoch:
    free: Free
    settled: int = 0
    leased: int = 0


class WorkQueue:
    """Leases items to workers and keeps the ledger. One instance for training, one for each evaluation."""

    def __init__(
        self,
        plan: EpochPlan,
        limits: Limits,
        *,
        kind: Kind = Kind.TRAIN,
        ids: Iterator[int] | None = None,
        schedule: LeaseSchedule | None = None,
    ) -> None:
        self.plan = plan
        self.limits = limits
        self.kind = kind
        self.own = Counts()  # of this queue
        self.open_until = limits.epochs  # epochs >= this one wait for an evaluation or a checkpoint
        self._ids = ids if ids is not None else count(1)
        self._epochs: dict[int, _Epoch] = {}
        self._next_epoch = 0
        self._finished_batches = 0  # batches of settled epochs
        self._leases: dict[int, Lease] = {}
        self._hands: dict[int, list[Lease]] = {}  # by worker, in the order they were given out
        self._held: dict[int, int] = {}  # by worker: leased batches that are not settled
        self._taken: set[int] = set()  # rows of the item table that a lease still needs
        self._update = min(limits.accumulate, plan.batches)
        if not 0 < self._update <= MAX_ITEM_BATCHES:
            raise ValueError(f"an update must hold 1 to {MAX_ITEM_BATCHES} batches, not {self._update}")
        if plan.lanes is not None and limits.accumulate != 1:
            raise ValueError(f"in lanes an update holds one batch, not {limits.accumulate}: each passes a state on")
        if plan.grid is not None and limits.accumulate != 1:
            raise ValueError(f"over a grid an update holds one batch, not {limits.accumulate}: cells end anywhere")
        self._schedule: LeaseSchedule = schedule if schedule is not None else RangeSchedule(plan, self._update)

    # ---- questions ---------------------------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        return self.own.ledger

    @property
    def updates(self) -> int:
        return self.own.updates

    @property
    def samples(self) -> int:
        return self.own.samples

    @property
    def epoch(self) -> int:
        """The earliest epoch with unsettled batches; `limits.epochs` when all are finished."""
        return min(self._epochs, default=self._next_epoch)

    @property
    def is_finished(self) -> bool:
        """True if nothing is free, leased or unopened, or if the requested updates are made and nothing is leased."""
        if self._leases:
            return False
        return self.epoch >= self.limits.epochs or self._updates_left() == 0

    @property
    def total(self) -> int:
        """Batches of the epochs run: whole epochs, and the settled part of an epoch cut short by a limit."""
        return self._finished_batches + sum(work.settled for work in self._epochs.values())

    @property
    def planned_updates(self) -> int:
        limits = self.limits
        return updates_planned(
            self.plan, epochs=limits.epochs, accumulate=limits.accumulate, max_updates=limits.max_updates
        )

    def epochs_done(self, batches: Callable[[int], int]) -> float:
        """Return the settled epochs, with the settled part of those that are open: each has `batches(epoch)`."""
        parts = (work.settled / max(1, batches(epoch)) for epoch, work in self._epochs.items())
        return self._next_epoch - len(self._epochs) + sum(parts)

    def is_epoch_settled(self, epoch: int) -> bool:
        return epoch < self.epoch

    def is_begun(self, epoch: int) -> bool:
        """Return whether some of it was leased, in this attempt or an earlier one."""
        return epoch < self._next_epoch

    def leases_of(self, worker: int) -> list[Lease]:
        """Return the worker's leases in the order they were given out, which is the order of work."""
        return [*self._hands.get(worker, ())]

    def hand_s(self, worker: int) -> float:
        """Return the seconds of work that the worker has in hand, at its measured pace; 0 while that is unknown."""
        hand = self.limits.hands.get(worker, 0)
        return HAND_S * self._held.get(worker, 0) / hand if hand else 0.0

    # ---- leasing -----------------------------------------------------------------------------------------------

    def lease(self, worker: int) -> WorkItem | None:
        """Lease the next item to `worker`; return None if it has enough or nothing may be leased."""
        horizon = self._free_updates()
        in_hand = len(self._hands.get(worker, ()))
        if in_hand >= self._schedule.most_in_hand(horizon, self.limits) and not self._is_short(worker, horizon):
            return None
        left = self._updates_left()
        choice = self._choose(worker) if left != 0 else None
        if choice is None:
            return None
        updates = self._schedule.updates(horizon, self.limits)
        updates = updates if left is None else min(updates, left)
        epoch, piece = choice
        if piece.attempts:  # they count for its first update, even if `sync_every` has changed
            updates = 1 if self.limits.sync_every > 1 else updates
        stop = min(piece.stop, piece.start + updates * self.limits.accumulate)
        # Skip ids whose row is taken: a stopped worker may read its second item only after thousands of others.
        number = next(number for number in self._ids if number % ITEM_ROWS not in self._taken)
        self._taken.add(number % ITEM_ROWS)
        item = WorkItem(number, self.kind, epoch, piece.start, stop)
        self._leases[item.id] = lease = Lease(item, worker, piece.attempts)
        self._hands.setdefault(worker, []).append(lease)
        self._held[worker] = self._held.get(worker, 0) + lease.left
        self._epochs[epoch].leased += 1
        self._epochs[epoch].free.lease(piece, stop)
        return item

    def _is_short(self, worker: int, horizon: int) -> bool:
        """Return whether it has less work in hand than it should have, and no more than half its share of what is left:
        hands shrink towards the end, so that all workers finish together. A worker that is far behind another takes no
        more than two leases: the other may be faster with what is left."""
        limits, hand = self.limits, self._hands.get(worker, [])
        held = self._held.get(worker, 0)
        if held >= limits.hands.get(worker, 0) or not self._schedule.fills_hands:
            return False
        if len(hand) >= min(MOST_IN_HAND, MOST_SHORT // limits.procs):
            return False
        far = 1 + sum(limits.hands.values()) // (2 * self.plan.batches)  # epochs: half of what all have in hand
        if any(other and other[0].item.epoch > hand[0].item.epoch + far for other in self._hands.values()):
            return False
        left = horizon * limits.accumulate + sum(self._held.values())
        return 2 * (held + hand[-1].left) * limits.procs <= left

    def _choose(self, worker: int) -> LeaseChoice | None:
        """Choose from the open epochs, then from the next one, then for a worker that would be idle."""
        schedule, opened = self._schedule, self._opened()
        for choose in (schedule.choose, schedule.choose_for_idle):
            if (choice := choose(worker, opened, self._leases.values())) is not None:
                return choice
            if (choice := self._choose_from_next(worker, choose)) is not None:
                return choice
            if self._hands.get(worker):
                return None
        return None

    def _opened(self) -> dict[int, Free]:
        return {epoch: self._epochs[epoch].free for epoch in sorted(self._epochs) if epoch < self.open_until}

    def _choose_from_next(self, worker: int, choose: Choose) -> LeaseChoice | None:
        epoch, end = self._next_epoch, min(self.open_until, self.limits.epochs)
        if epoch >= end or not self._schedule.may_open(epoch, self.epoch, end, self.limits):
            return None
        free = self._schedule.free_of(epoch)
        choice = choose(worker, {epoch: free}, self._leases.values())
        if choice is not None:
            self._open(epoch, free)
        return choice

    def _open(self, epoch: int, free: Free) -> _Epoch:
        self._epochs[epoch] = _Epoch(free)
        self._next_epoch += 1
        return self._epochs[epoch]

    def _free_updates(self) -> int:
        """Return the updates that could be leased without waiting for an evaluation; items shrink towards it."""
        end = min(self.open_until, self.limits.epochs)
        free = sum(work.free.updates(self.limits.accumulate) for epoch, work in self._epochs.items() if epoch < end)
        free += max(0, end - self._next_epoch) * self._updates_in(self.plan.batches)
        left = self._updates_left()
        return free if left is None else min(free, left)

    def _updates_left(self) -> int | None:
        if self.limits.max_updates is None:
            return None
        in_hand = sum(self._updates_in(lease.left) for lease in self._leases.values())
        return max(0, self.limits.max_updates - self.updates - in_hand)

    def _updates_in(self, batches: int) -> int:
        return -(-batches // self.limits.accumulate)

    # ---- settling ----------------------------------------------------------------------------------------------

    def observe(self, item: int, committed: int, skipped: int) -> None:
        """Book the batches a worker has committed of its item. A number seen before, or an item that is no longer
        leased, changes nothing."""
        lease = self._leases.get(item)
        if lease is None or committed <= lease.settled:
            return
        first = lease.item.start
        newly_skipped = skipped - lease.skipped
        updates = self._updates_in(committed) - self._updates_in(lease.settled)
        work = self._epochs[lease.item.epoch]
        self.own.samples += work.free.samples_in(first + lease.settled, first + committed)
        self.own.updates += updates - self._updates_in(newly_skipped)
        self.own.done += committed - lease.settled - newly_skipped
        self.own.skipped += newly_skipped
        work.settled += committed - lease.settled
        self._held[lease.worker] -= committed - lease.settled
        work.free.mark_finished(first + lease.settled, first + committed)
        lease.settled, lease.skipped, lease.attempts = committed, skipped, 0

    def ack(self, worker: int, item: int, skipped: int) -> WorkItem | None:
        """Settle an item that the worker has finished. Return it, or None if it is not (any longer) its own."""
        lease = self._leases.get(item)
        if lease is None or lease.worker != worker:
            return None
        self.observe(item, lease.item.stop - lease.item.start, skipped)
        self._drop(lease)
        return lease.item

    def release(self, worker: int, progress: LeaseProgress | None, *, charged: bool = True) -> Release:
        """Take back all leases of a dead worker. Call it only after the worker was reaped. `charged` is false if the
        work cannot be the cause: then no attempt is counted."""
        if progress is not None:
            self.observe(progress.item, progress.committed, progress.skipped)
        leases = self.leases_of(worker)
        current, report = None, Release()
        # The oldest lease is charged, because items are processed in the order they were given out. None is if it is
        # finished but not acknowledged: the next one was not begun.
        if progress is not None and progress.active and leases and leases[0].left:
            current = leases[0]
            report = self._break(current, progress, charged)
            self._drop(current)
        others = [lease for lease in leases if lease is not current]
        for lease in others:
            self._free(lease, lease.item.start + lease.settled, lease.attempts)
            self._drop(lease)
        self._schedule.released(worker)
        return replace(report, freed=report.freed + sum(lease.left for lease in others))

    def _break(self, lease: Lease, progress: LeaseProgress, is_charged: bool) -> Release:
        """Settle or free the first uncommitted exchange of the item in progress; free the rest of the item."""
        item = lease.item
        start = item.start + lease.settled
        in_doubt = progress.intended_item == item.id and progress.intended > lease.settled
        length = self.limits.sync_every * self.limits.accumulate
        stop = item.start + progress.intended if in_doubt else min(item.stop, start + length)
        doubtful = stop - start if in_doubt else 0
        self.own.indeterminate += doubtful
        charged = (item.epoch, start) if is_charged else None
        attempts = lease.attempts + is_charged
        is_skipped = in_doubt and not self.limits.redo_indeterminate
        if is_skipped or attempts >= self.limits.max_attempts:
            self._close(item.epoch, start, stop, "skipped" if is_skipped else "quarantined")
            self._free(lease, stop, 0)
            return Release(item.stop - stop, doubtful, () if is_skipped else ((item.epoch, start, stop),), charged)
        self.own.redone += doubtful
        self._free(lease, start, attempts, stop)
        return Release(item.stop - start, doubtful, (), charged)

    def _close(self, epoch: int, start: int, stop: int, account: str) -> None:
        setattr(self.own, account, getattr(self.own, account) + stop - start)
        self._epochs[epoch].settled += stop - start
        self._epochs[epoch].free.mark_finished(start, stop)

    def _free(self, lease: Lease, start: int, attempts: int, charged_until: int | None = None) -> None:
        """Put the rest of an item back, in order of position: the broken part is retried first. An exchange of several
        updates comes back as one piece per update, so that the update that crashes workers is isolated."""
        item, step = lease.item, self.limits.accumulate
        pieces: list[FreeRange] = []
        if charged_until is not None and charged_until - start > step:
            pieces = [
                FreeRange(at, min(at + step, charged_until), attempts) for at in range(start, charged_until, step)
            ]
            start, attempts = charged_until, 0
        if start < item.stop:
            pieces.append(FreeRange(start, item.stop, attempts))
        self._epochs[item.epoch].free.put(pieces)

    def _drop(self, lease: Lease) -> None:
        del self._leases[lease.item.id]
        self._taken.remove(lease.item.id % ITEM_ROWS)
        self._hands[lease.worker].remove(lease)
        self._held[lease.worker] -= lease.left
        self._epochs[lease.item.epoch].leased -= 1
        self._finish(lease.item.epoch)

    def _finish(self, epoch: int) -> None:
        """Forget the epoch if nothing of it is left."""
        work = self._epochs[epoch]
        if not work.leased and not work.free.has_free:
            self._finished_batches += work.settled
            del self._epochs[epoch]
            self._schedule.drop_epoch(epoch)

    # ---- streams -----------------------------------------------------------------------------------------------

    def give_up(self, epoch: int, pieces: Iterable[tuple[int, int]]) -> Release:
        """Quarantine the batches [start, stop) of all `pieces`: nobody can read them. They are not leased, and the
        schedule has already dropped them."""
        while self._next_epoch <= epoch:  # loaders are ahead of the workers
            self._open(self._next_epoch, self._schedule.free_of(self._next_epoch))
        work = self._epochs[epoch]
        release = Release(quarantined=tuple((epoch, *piece) for piece in pieces))
        batches = sum(stop - start for _, start, stop in release.quarantined)
        self.own.quarantined += batches
        work.settled += batches
        self._finish(epoch)
        return release

    def find_ends(self) -> None:
        """Finish epochs after an end of a stream has become known."""
        for epoch in list(self._epochs):
            self._finish(epoch)

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything a resumed job needs, as plain numbers and lists. Leased batches that are not settled count
        as free."""
        rest = self._unsettled()
        return {
            "plan": how_cut(self.plan),
            "next_epoch": self._next_epoch,
            "free": [[epoch, *piece] for epoch in sorted(rest) for piece in sorted(rest[epoch])],
            "ledger": asdict(self.ledger),
            "updates": self.updates,
            "samples": self.samples,
            "settled": [[epoch, work.settled] for epoch, work in self._epochs.items() if rest[epoch]],
            "finished_batches": self._finished_batches
            + sum(work.settled for epoch, work in self._epochs.items() if not rest[epoch]),
        }

    def _unsettled(self) -> dict[int, list[list[int]]]:
        """Return the free and leased batches of each open epoch: start, stop, attempts, and the step if it is not 1."""
        rest: dict[int, list[list[int]]] = {
            epoch: [
                [piece.start, piece.stop, piece.attempts, *([piece.step] if piece.step > 1 else ())]
                for piece in work.free
            ]
            for epoch, work in self._epochs.items()
        }
        for lease in self._leases.values():
            if lease.left:
                rest[lease.item.epoch].append([lease.item.start + lease.settled, lease.item.stop, lease.attempts])
        return rest

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `state`; current leases become void. Raises ValueError, and changes nothing, if the batch plan
        differs from the saved one; the message names both values."""
        check_cut(self.plan, state["plan"])
        self._next_epoch = state["next_epoch"]
        self.own = Counts(**state["ledger"], updates=state["updates"], samples=state["samples"])
        self._forget()
        pieces: dict[int, list[FreeRange]] = {}
        for epoch, *piece in state["free"]:
            pieces.setdefault(epoch, []).append(FreeRange(*piece))
        for epoch, of_epoch in pieces.items():
            settled = self.plan.batches - sum(piece.stop - piece.start for piece in of_epoch)
            settled = dict(state.get("settled", ())).get(epoch, settled)  # missing in older checkpoints
            self._epochs[epoch] = _Epoch(self._schedule.free_of(epoch, of_epoch), settled)
        finished = (self._next_epoch - len(self._epochs)) * self.plan.batches
        self._finished_batches = state.get("finished_batches", finished)

    def _forget(self) -> None:
        """Forget all leases and open epochs."""
        self._leases, self._hands, self._epochs = {}, {}, {}
        self._held, self._taken = {}, set()
        self._schedule.restart(self._next_epoch)
