"""The free batches of an epoch, and the default schedule: any worker gets the first free range. `grid_schedule.py` and
`lane_schedule.py` keep workers apart. Imports nothing heavy: the command line waits for this file."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from hogwild.scheduling.batch_plan import EpochPlan
from hogwild.scheduling.leases import MAX_ITEM_BATCHES, FreeRange, Lease, Limits

LEASES_IN_HAND = 2
EPOCHS_AHEAD = 1  # where order matters: keeps the other workers close to what a stalled one holds


class Free(Protocol):
    """The free batches of one epoch, in pieces that no item may reach across."""

    def __iter__(self) -> Iterator[FreeRange]: ...

    @property
    def has_free(self) -> bool:
        """True if any are free, or may be: the end of a stream is unknown before it is read."""

    def samples_in(self, start: int, stop: int) -> int:
        """Return the number of samples in the leased batches `[start, stop)`."""

    def mark_finished(self, start: int, stop: int) -> None:
        """Settle the batches `[start, stop)`: they will not be asked for again."""

    def updates(self, accumulate: int) -> int:
        """Return the number of updates of `accumulate` batches; the last one of a piece may be shorter."""

    def lease(self, piece: FreeRange, stop: int) -> None:
        """Lease the batches `[piece.start, stop)`."""

    def put(self, pieces: Iterable[FreeRange]) -> None:
        """Make `pieces` free (again)."""

    def grant(self, pieces: Iterable[FreeRange]) -> None:
        """Make `pieces` free, which this node of a cluster did not have."""

    def spare(self, accumulate: int) -> list[FreeRange]:
        """Return the free batches that another node could have as well, in order: nothing of them has begun."""

    def withdraw(self, piece: FreeRange, start: int) -> None:
        """Remove the batches `[start, piece.stop)` of a spare piece."""


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


class OfPlan(ABC):
    """The parts of a `Free` that depend only on the epoch's plan, for data whose batches are all known at the start."""

    def __init__(self, plan: EpochPlan) -> None:
        self._plan = plan

    def samples_in(self, start: int, stop: int) -> int:
        return self._plan.samples_in(start, stop)

    def mark_finished(self, start: int, stop: int) -> None:  # noqa: B027
        """No-op: settled batches need no bookkeeping here."""

    @abstractmethod
    def __iter__(self) -> Iterator[FreeRange]: ...

    @abstractmethod
    def lease(self, piece: FreeRange, stop: int) -> None: ...

    @abstractmethod
    def put(self, pieces: Iterable[FreeRange]) -> None: ...

    def grant(self, pieces: Iterable[FreeRange]) -> None:
        self.put(pieces)

    def spare(self, accumulate: int) -> list[FreeRange]:
        return list(self)

    def withdraw(self, piece: FreeRange, start: int) -> None:
        self.lease(piece, piece.stop)
        self.put([FreeRange(piece.start, start, piece.attempts)] if piece.start < start else [])

    @staticmethod
    def cut(pieces: list[FreeRange], piece: FreeRange, stop: int) -> None:
        """Remove the batches `[piece.start, stop)` from `pieces`, which holds `piece`."""
        at = pieces.index(piece)
        pieces[at : at + 1] = [FreeRange(stop, piece.stop)] if stop < piece.stop else []


class FreeRanges(OfPlan):
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
