"""The schedule of lanes: the continuation of a sequence goes to the worker that holds the sequence's state.

    lane 0   [done by A][leased to A  ][ free, for A only ................ ]
    lane 1   [done by B][B][ free, for B only ............................ ]
    lane 2   [ free: for the first worker that has finished its own lane ]

A worker without an unfinished lane gets the free lane with the most batches left, and holds it until none of it is
free. If the worker dies, anybody may take the lane, which then continues from zero state (`training/model_steps.py`
counts that). No barrier between epochs. At the end of an epoch a worker waits for at most one lane of another, so use
many lanes: with L lanes and N workers at most N / L of an epoch is lost, half of that on average.

Pure bookkeeping. Imports nothing heavy: the command line waits for this file."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

from hogwild.scheduling.batch_plan import EpochPlan
from hogwild.scheduling.leases import MAX_ITEM_BATCHES, FreeRange, Lease, Limits
from hogwild.scheduling.range_schedule import LEASES_IN_HAND, Free, LeaseChoice, LeaseSchedule, OfPlan


def steps_of(plan: EpochPlan) -> int:
    """Return the number of batches per lane."""
    assert plan.lanes is not None
    return plan.batches // plan.lanes


class FreeLanes(OfPlan):
    """The free batches of one epoch, by lane, and the worker that holds each lane."""

    def __init__(self, plan: EpochPlan, pieces: Iterable[FreeRange]) -> None:
        super().__init__(plan)
        self._steps = steps_of(plan)
        self._lanes: dict[int, list[FreeRange]] = {}  # only lanes with free batches
        self.holders: dict[int, int] = {}  # lane -> worker; also for fully leased lanes
        self.put(pieces)

    def __iter__(self) -> Iterator[FreeRange]:
        return chain.from_iterable(self._lanes[lane] for lane in sorted(self._lanes))

    @property
    def has_free(self) -> bool:
        return bool(self._lanes)

    def updates(self, accumulate: int) -> int:
        return sum(self._left(lane) for lane in self._lanes)

    def lease(self, piece: FreeRange, stop: int) -> None:
        lane = piece.start // self._steps
        pieces = self._lanes[lane]
        self.cut(pieces, piece, stop)
        if not pieces:
            del self._lanes[lane]

    def put(self, pieces: Iterable[FreeRange]) -> None:
        for piece in pieces:
            of_lane = self._lanes.setdefault(piece.start // self._steps, [])
            of_lane.append(piece)
            of_lane.sort(key=lambda each: each.start)

    def spare(self, accumulate: int) -> list[FreeRange]:
        """Return the lanes without a holder; the state of the others is with their workers."""
        return [piece for lane in sorted(self.unheld()) for piece in self._lanes[lane]]

    def next_of(self, worker: int) -> FreeRange | None:
        """Return the next free range of the lane that `worker` holds and has not finished."""
        for lane, holder in self.holders.items():
            if holder == worker and lane in self._lanes:
                return self._lanes[lane][0]
        return None

    def unheld(self) -> list[int]:
        """Return the lanes that any worker may take."""
        return [lane for lane in self._lanes if lane not in self.holders]

    def give(self, worker: int) -> FreeRange:
        """Give `worker` the unheld lane with the most batches left; return its first free range."""
        lane = min(self.unheld(), key=lambda lane: (-self._left(lane), lane))
        self.holders[lane] = worker
        return self._lanes[lane][0]

    def released(self, worker: int) -> None:
        self.holders = {lane: holder for lane, holder in self.holders.items() if holder != worker}

    def _left(self, lane: int) -> int:
        return sum(piece.stop - piece.start for piece in self._lanes[lane])


class LaneSchedule(LeaseSchedule):
    """The schedule of lanes of consecutive batches. An item is a part of one lane, in order."""

    def __init__(self, plan: EpochPlan, limits: Limits) -> None:
        self._plan = plan
        self._limits = limits
        self._epochs: dict[int, FreeLanes] = {}  # used by `released`

    def free_of(self, epoch: int, pieces: Iterable[FreeRange] | None = None) -> FreeLanes:
        if pieces is None:
            steps = steps_of(self._plan)
            pieces = [FreeRange(at, at + steps) for at in range(0, self._plan.batches, steps)]
        free = FreeLanes(self._plan, pieces)
        self._epochs[epoch] = free
        return free

    def choose(self, worker: int, epochs: Mapping[int, Free], leases: Collection[Lease]) -> LeaseChoice | None:
        """Choose the next part of the worker's own lane, else an unheld lane. A worker that still has a lease leaves
        the last lanes to workers without one: it could not begin the lane yet."""
        for epoch, free in epochs.items():
            assert isinstance(free, FreeLanes)
            if (piece := free.next_of(worker)) is not None:
                return LeaseChoice(epoch, piece)
        least = self._limits.procs if any(lease.worker == worker for lease in leases) else 1
        for epoch, free in epochs.items():
            assert isinstance(free, FreeLanes)
            if len(free.unheld()) >= least:
                return LeaseChoice(epoch, free.give(worker))
        return None

    def released(self, worker: int) -> None:
        for free in self._epochs.values():
            free.released(worker)

    def updates(self, horizon: int, limits: Limits) -> int:
        """Return the length of an item. No shorter towards the end: nobody else could take the rest of the lane."""
        return min(max(limits.max_item_updates, limits.sync_every), MAX_ITEM_BATCHES)

    def most_in_hand(self, horizon: int, limits: Limits) -> int:
        return LEASES_IN_HAND

    def drop_epoch(self, epoch: int) -> None:
        self._epochs.pop(epoch, None)

    def restart(self, next_epoch: int) -> None:
        self._epochs = {}
