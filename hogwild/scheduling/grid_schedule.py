"""The schedule of a grid: a worker has a row block for itself, and goes through its columns.

                  columns 0 … 7
    row block 0   . . A b . . . .      A and B hold these two row blocks: nobody else is leased any of their cells, of
    row block 1   . . . . . . B .      this epoch or another. Leases say nothing of columns: before a worker enters
    row block 2   c                    one, it looks whether another is there, and waits for it, not for the supervisor
    row block 3                        (`hogwild/kernels/matrix_factorization.py`).

So an item is long: a whole row block, or what is left of it. There is no barrier, not even between epochs: a worker
has row blocks of its own, and is leased those of the next epochs in time. One that would be idle takes any that nobody
holds."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import pairwise

from hogwild.scheduling.grid_plan import GridPlan
from hogwild.scheduling.leases import MAX_ITEM_BATCHES, FreeRange, Lease, Limits
from hogwild.scheduling.range_schedule import EPOCHS_AHEAD, LEASES_IN_HAND, Free, LeaseChoice, LeaseSchedule, OfPlan
from hogwild.scheduling.seeds import mix


class FreeRows(OfPlan):
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
                if self._is_begun(row, pieces):
                    return pieces[0]
                found = found or pieces[0]
        return found

    def _is_begun(self, row: int, pieces: list[FreeRange]) -> bool:
        start, stop = self._plan.row_bounds[row : row + 2]
        return len(pieces) > 1 or pieces[0].start > start or pieces[0].stop < stop


class GridSchedule(LeaseSchedule):
    """The schedule of a grid. An item is a whole row block, or the rest of one. What is taken is seen in the leases."""

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
