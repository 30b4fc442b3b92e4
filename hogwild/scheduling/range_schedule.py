"""What of an epoch may be leased, and the rule of jobs whose workers need not be kept apart: the first free range, to
anybody. The rule of a grid is in `grid_schedule.py`. Loads nothing: the command line waits for this file."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from hogwild.scheduling.batch_plan import EpochPlan
from hogwild.scheduling.leases import MAX_ITEM_BATCHES, FreeRange, Lease, Limits

LEASES_IN_HAND = 2


class Free(Protocol):
    """The free batches of one epoch, in pieces that no item may reach across."""

    def __iter__(self) -> Iterator[FreeRange]: ...

    @property
    def has_free(self) -> bool:
        """Whether there are any, or may be: the end of a stream is not known before it is read."""
        ...

    def samples_in(self, start: int, stop: int) -> int:
        """Samples in the batches `[start, stop)`, which are leased."""
        ...

    def settle(self, start: int, stop: int) -> None:
        """The batches `[start, stop)` are done with: nobody will ask for them again."""
        ...

    def updates(self, accumulate: int) -> int:
        """How many updates of `accumulate` batches they are; the last of a piece may be shorter."""
        ...

    def take(self, piece: FreeRange, stop: int) -> None:
        """The batches `[piece.start, stop)` are leased."""
        ...

    def put(self, pieces: Iterable[FreeRange]) -> None:
        """They are free (again)."""
        ...


class LeaseChoice(NamedTuple):
    """What a worker may have next."""

    epoch: int
    piece: FreeRange


class LeaseSchedule(Protocol):
    """Which batches may be leased together."""

    def free_of(self, epoch: int, pieces: Iterable[FreeRange] | None = None) -> Free:
        """What is free of `epoch`: all of it, or after a resume only `pieces`."""
        ...

    def choose(self, worker: int, epochs: Mapping[int, Free], leases: Collection[Lease]) -> LeaseChoice | None:
        """What `worker` may have of these epochs, the earliest first, while `leases` are in hand; or None. What is
        answered is leased."""
        ...

    def released(self, worker: int) -> None:
        """`worker` is gone, and what it had in hand is free again."""
        ...

    def may_open(self, epoch: int, earliest: int) -> bool:
        """Whether a worker that finds nothing may begin `epoch` while `earliest` is not settled."""
        ...

    def updates(self, horizon: int, limits: Limits) -> int:
        """How long an item may be while `horizon` updates are free, in updates."""
        ...

    def most_in_hand(self, horizon: int, limits: Limits) -> int:
        """How many leases a worker may hold at once."""
        ...

    def forget(self, epoch: int) -> None:
        """All of it is settled."""
        ...

    def restart(self, next_epoch: int) -> None:
        """The run goes back to a checkpoint; `free_of` is asked anew for what is left of the epochs before
        `next_epoch`. What it is not asked for is settled."""
        ...


class OfPlan:
    """What of a `Free` follows from the epoch's plan alone, where its batches are known from the beginning."""

    def __init__(self, plan: EpochPlan) -> None:
        self._plan = plan

    def samples_in(self, start: int, stop: int) -> int:
        return self._plan.samples_in(start, stop)

    def settle(self, start: int, stop: int) -> None:
        """Nothing is kept of them."""


class FreeRanges(OfPlan):
    """Ranges in order of position."""

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

    def take(self, piece: FreeRange, stop: int) -> None:
        at = self._pieces.index(piece)
        self._pieces[at : at + 1] = [FreeRange(stop, piece.stop)] if stop < piece.stop else []

    def put(self, pieces: Iterable[FreeRange]) -> None:
        self._pieces += pieces
        self._pieces.sort(key=lambda piece: piece.start)


class RangeSchedule:
    """The first free range of the earliest epoch, cut to a length that shrinks towards the end of the job."""

    def __init__(self, plan: EpochPlan, update: int) -> None:
        """`update`: the batches of one update."""
        self._plan = plan
        self._update = update

    def free_of(self, epoch: int, pieces: Iterable[FreeRange] | None = None) -> FreeRanges:
        return FreeRanges([FreeRange(0, self._plan.batches)] if pieces is None else pieces, self._plan)

    def choose(self, worker: int, epochs: Mapping[int, Free], leases: Collection[Lease]) -> LeaseChoice | None:
        for epoch, free in epochs.items():
            if (piece := next(iter(free), None)) is not None:
                return LeaseChoice(epoch, piece)
        return None

    def released(self, worker: int) -> None:
        """Whoever is first takes what it had."""

    def may_open(self, epoch: int, earliest: int) -> bool:
        return True

    def updates(self, horizon: int, limits: Limits) -> int:
        """Long items while there is much to do, shorter ones towards the end; with room for a whole exchange as long as
        every worker can have one."""
        longest = min(max(limits.max_item_updates, limits.sync_every), MAX_ITEM_BATCHES // self._update)
        shortest = min(limits.sync_every, -(-horizon // limits.procs))
        return max(1, min(longest, max(shortest, -(-horizon // (4 * limits.procs)))))

    def most_in_hand(self, horizon: int, limits: Limits) -> int:
        return LEASES_IN_HAND if horizon > 2 * limits.procs else 1

    def forget(self, epoch: int) -> None:
        """Nothing is kept of it."""

    def restart(self, next_epoch: int) -> None:
        """Nothing is kept."""
