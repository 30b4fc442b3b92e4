"""The schedules of training data that is in memory, apart from the default one: epochs that a sampler draws, lanes of
consecutive batches, and the row blocks of a grid. Pure bookkeeping."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, pairwise, takewhile

from hogwild.scheduling.batch_plan import Bounds, EpochPlan, mix
from hogwild.scheduling.grid_plan import GridPlan
from hogwild.scheduling.work_queue import (
    EPOCHS_AHEAD,
    LEASES_IN_HAND,
    MAX_ITEM_BATCHES,
    Free,
    FreeRange,
    FreeRanges,
    Lease,
    LeaseChoice,
    LeaseSchedule,
    Limits,
    RangeSchedule,
)


def schedule_for(
    plan: EpochPlan, limits: Limits, seed: int, bounds: Callable[[int], Bounds | None] | None = None
) -> LeaseSchedule | None:
    """Return the schedule: over a grid no two workers hold parts of one row block; a lane belongs to one worker. None:
    the queue's own, any ranges. `bounds`: of the epochs that a sampler draws."""
    if isinstance(plan, GridPlan):
        return GridSchedule(plan, limits, seed=seed)
    if bounds is not None:
        return DrawnSchedule(plan, min(limits.accumulate, plan.batches), bounds)
    return LaneSchedule(plan, limits) if plan.lanes is not None else None


def steps_of(plan: EpochPlan) -> int:
    """Return the number of batches per lane."""
    assert plan.lanes is not None
    return plan.batches // plan.lanes


class DrawnRanges(FreeRanges):
    """Free ranges of an epoch that a sampler has drawn, or will have before any is leased."""

    def __init__(self, pieces: Iterable[FreeRange], plan: EpochPlan, bounds: Callable[[], Bounds | None]) -> None:
        super().__init__(pieces, plan)
        self._bounds = bounds

    def samples_in(self, start: int, stop: int) -> int:
        bounds = self._bounds()
        assert bounds is not None, "leased before it was drawn"
        return int(bounds[stop] - bounds[start])


class DrawnSchedule(RangeSchedule):
    """Ranges of epochs that a sampler draws. `bounds(epoch)`: None until it is drawn; so long nothing of it, nor of a
    later one, is leased."""

    def __init__(self, plan: EpochPlan, update: int, bounds: Callable[[int], Bounds | None]) -> None:
        super().__init__(plan, update)
        self._bounds = bounds

    def free_of(self, epoch: int, pieces: Iterable[FreeRange] | None = None) -> DrawnRanges:
        if pieces is None:
            bounds = self._bounds(epoch)
            assert bounds is not None, "opened before it was drawn"
            pieces = [FreeRange(0, len(bounds) - 1)]
        return DrawnRanges(pieces, self._plan, partial(self._bounds, epoch))

    def choose(self, worker: int, epochs: Mapping[int, Free], leases: Collection[Lease]) -> LeaseChoice | None:
        drawn = takewhile(lambda epoch: self._bounds(epoch) is not None, epochs)
        return super().choose(worker, {epoch: epochs[epoch] for epoch in drawn}, leases)

    def may_open(self, epoch: int, earliest: int, end: int, limits: Limits) -> bool:
        return epoch <= earliest + EPOCHS_AHEAD and self._bounds(epoch) is not None


class FreeLanes(Free):
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
    """The schedule of lanes: the continuation of a sequence goes to the worker that holds the sequence's state.

        lane 0   [done by A][leased to A  ][ free, for A only ................ ]
        lane 1   [done by B][B][ free, for B only ............................ ]
        lane 2   [ free: for the first worker that has finished its own lane ]

    A worker without an unfinished lane gets the free lane with the most batches left, and holds it until none of it is
    free. If the worker dies, anybody may take the lane, which then continues from zero state
    (`training/model_steps.py` counts that). No barrier between epochs. At the end of an epoch a worker waits for at
    most one lane of another, so use many lanes: with L lanes and N workers at most N / L of an epoch is lost, half of
    that on average. An item is a part of one lane, in order."""

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


class FreeRows(Free):
    """The free batches of one epoch, by row block."""

    _plan: GridPlan

    def __init__(self, plan: GridPlan, order: Iterable[int], pieces: Iterable[FreeRange] | None = None) -> None:
        """`order`: the row blocks as they are preferred. `pieces`: the free ranges; None: the whole epoch."""
        super().__init__(plan)
        self._order = list(order)
        self._rows: list[list[FreeRange]] = [[] for _ in self._order]
        self._batches = 0
        if pieces is None:
            bounds = plan.row_bounds.tolist()
            pieces = [FreeRange(*both) for both in pairwise(bounds) if both[0] < both[1]]
        self.put(pieces)

    def __iter__(self) -> Iterator[FreeRange]:
        return (piece for pieces in self._rows for piece in pieces)

    @property
    def has_free(self) -> bool:
        return self._batches > 0

    def updates(self, accumulate: int) -> int:
        return self._batches

    def lease(self, piece: FreeRange, stop: int) -> None:
        self.cut(self._rows[self._plan.row_of(piece.start)], piece, stop)
        self._batches -= stop - piece.start

    def put(self, pieces: Iterable[FreeRange]) -> None:
        touched: set[int] = set()
        for piece in pieces:
            row = self._plan.row_of(piece.start)
            self._rows[row].append(piece)
            touched.add(row)
            self._batches += piece.stop - piece.start
        for row in touched:
            self._rows[row].sort(key=lambda each: each.start)

    def best(self, rows: Collection[int]) -> FreeRange | None:
        """Return the first free range of the best of these row blocks: one that was begun, so that a resumed job of one
        worker keeps its order, or else the first in this epoch's order."""
        found = None
        for row in self._order:
            if row in rows and (pieces := self._rows[row]):
                start, stop = self._plan.row_bounds[row : row + 2]
                if len(pieces) > 1 or pieces[0].start > start or pieces[0].stop < stop:
                    return pieces[0]
                found = found or pieces[0]
        return found


class GridSchedule(LeaseSchedule):
    """The schedule of a grid: a worker has a row block for itself, and goes through its columns.

                    columns 0 … 7
      row block 0   . . A b . . . .      A and B hold these two row blocks: nobody else is leased any of their cells, of
      row block 1   . . . . . . B .      this epoch or another. Leases say nothing of columns: before a worker enters
      row block 2   c                    one, it looks whether another is there, and takes others first
      row block 3                        (`hogwild/kernels/matrix_factorization.py`).

    So an item is long: a whole row block, or what is left of it. There is no barrier, not even between epochs: a worker
    has row blocks of its own, and is leased those of the next epochs in time. One that would be idle takes any that
    nobody holds."""

    fills_hands = True

    def __init__(self, plan: GridPlan, limits: Limits, *, seed: int) -> None:
        self._plan, self._limits = plan, limits
        self._seed = seed
        self._next: tuple[int, FreeRows] | None = None  # kept until a row block of it can be leased

    def free_of(self, epoch: int, pieces: Iterable[FreeRange] | None = None) -> FreeRows:
        if pieces is not None:
            return FreeRows(self._plan, self._order(epoch), pieces)
        if self._next is None or self._next[0] != epoch:
            self._next = epoch, FreeRows(self._plan, self._order(epoch))
        return self._next[1]

    def _order(self, epoch: int) -> list[int]:
        """Return this epoch's order of row blocks."""
        return sorted(range(self._plan.grid[0]), key=lambda row: mix(self._seed, epoch, row, -5))

    def choose(self, worker: int, epochs: Mapping[int, Free], leases: Collection[Lease]) -> LeaseChoice | None:
        """Choose one of the worker's own row blocks. They start where it will be, so it keeps its distance from the
        others; and nobody else takes, for want of a better one, what it needs next."""
        rows, procs = self._plan.grid[0], self._limits.procs
        starts = max(self._plan.grid[2], procs)
        own = {row for row in range(rows) if row % starts % procs == worker % procs}
        return self._among(own, worker, epochs, leases)

    def choose_for_idle(self, worker: int, epochs: Mapping[int, Free], leases: Collection[Lease]) -> LeaseChoice | None:
        return self._among(set(range(self._plan.grid[0])), worker, epochs, leases)

    def _among(
        self, rows: set[int], worker: int, epochs: Mapping[int, Free], leases: Collection[Lease]
    ) -> LeaseChoice | None:
        """Choose one of these row blocks that nobody else holds."""
        rows -= {self._plan.row_of(lease.item.start) for lease in leases if lease.worker != worker}
        for epoch, free in epochs.items():
            assert isinstance(free, FreeRows)
            if (piece := free.best(rows)) is not None:
                return LeaseChoice(epoch, piece)
        return None

    def may_open(self, epoch: int, earliest: int, end: int, limits: Limits) -> bool:
        """Return whether `epoch` may begin: the next one, or what lasts as long as a hand, if epochs are shorter; but
        towards `end` workers fall into step, so that none trains its row blocks long after the others have finished."""
        ahead = min(sum(limits.hands.values()) // self._plan.batches, end - 1 - epoch)
        return epoch <= earliest + EPOCHS_AHEAD + ahead

    def updates(self, horizon: int, limits: Limits) -> int:
        """Return the length of an item: a whole row block, up to the limit of the commit word. The rest of a shorter
        one could not be leased to anybody else."""
        return MAX_ITEM_BATCHES

    def most_in_hand(self, horizon: int, limits: Limits) -> int:
        """Return 2 if every worker then still finds a row block; 1 near the end, when a second one would keep others
        waiting."""
        rows = self._plan.grid[0]
        left = min(rows, -(-horizon * rows // self._plan.batches))
        return LEASES_IN_HAND if left >= LEASES_IN_HAND * limits.procs else 1

    def restart(self, next_epoch: int) -> None:
        self._next = None
