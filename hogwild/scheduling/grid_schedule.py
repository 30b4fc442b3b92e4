"""The schedule of a grid: no two workers hold cells that share a block of rows or of columns.

       C0 C1 C2 C3      worker A holds (R0, C1): R0 and C1 are occupied for everybody but A
    R0  .  A  .  .      worker B may have any cell of the other rows and columns
    R1  .  .  b  .      B gets the one whose row and column have the most samples left, so that at the end
    R2  .  .  .  .      no single row or column keeps everybody waiting

There is no barrier, not even between epochs: cells of the next epoch are leased as soon as no cell of this epoch can
be. With four blocks a side per worker and two leased cells, at most half of each side is occupied, and a worker nearly
always finds a cell; with two blocks and four leased cells it often finds none (tests/scheduling/test_grid_schedule.py
simulates both). A side has at most 256 blocks: with many more than 64 workers some wait for others, with more than 256
always.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

import numpy as np

from hogwild.scheduling.grid_plan import GridPlan
from hogwild.scheduling.leases import MAX_ITEM_BATCHES, FreeRange, Lease, Limits
from hogwild.scheduling.range_schedule import LEASES_IN_HAND, Free, LeaseChoice, LeaseSchedule, OfPlan
from hogwild.scheduling.seeds import mix

# Random part of a cell's priority, as a share of an average row, drawn anew for every epoch: cells come in another
# order each time, and the fullest rows and columns still come first.
DRAWN_SHARE = 0.25


class FreeCells(OfPlan):
    """The free batches of one epoch, by cell. `left` (B, C) float64: samples; the sums over rows and columns are kept,
    too, because a grid may have 65,536 cells."""

    _plan: GridPlan

    def __init__(self, plan: GridPlan, drawn: np.ndarray, pieces: Iterable[FreeRange] | None = None) -> None:
        """`pieces`: the free ranges; None: the whole epoch."""
        super().__init__(plan)
        self._drawn = drawn  # (B, C) float64
        self._cells: dict[int, list[FreeRange]] = {}  # cells with pieces put or taken; all others are whole or used up
        self._begun: set[int] = set()  # cells that were partly leased before
        self._batches = plan.batches if pieces is None else 0
        whole = np.diff(plan.bounds).reshape(plan.grid).astype(np.float64)
        self.left = whole if pieces is None else np.zeros(plan.grid)
        self._rows, self._columns = self.left.sum(axis=1), self.left.sum(axis=0)
        self.put(pieces or ())

    def __iter__(self) -> Iterator[FreeRange]:
        return chain.from_iterable(self._pieces(cell) for cell in np.flatnonzero(self.left).tolist())

    @property
    def has_free(self) -> bool:
        return self._batches > 0

    def updates(self, accumulate: int) -> int:
        return self._batches

    def lease(self, piece: FreeRange, stop: int) -> None:
        cell = self._plan.cell_of(piece.start)
        pieces = self._pieces(cell)
        self.cut(pieces, piece, stop)
        self._note(cell, pieces, piece.start - stop, -self._plan.samples_in(piece.start, stop))

    def put(self, pieces: Iterable[FreeRange]) -> None:
        for piece in pieces:
            cell = self._plan.cell_of(piece.start)
            of_cell = sorted([*self._pieces(cell), piece], key=lambda each: each.start)
            self._note(cell, of_cell, piece.stop - piece.start, self._plan.samples_in(piece.start, piece.stop))

    def _pieces(self, cell: int) -> list[FreeRange]:
        if cell in self._cells or not self.left.flat[cell]:
            return self._cells.get(cell, [])
        first, stop = self._plan.first_batches[cell : cell + 2].tolist()
        return [FreeRange(first, stop)]

    def _note(self, cell: int, pieces: list[FreeRange], batches: int, samples: int) -> None:
        self._batches += batches
        row, column = divmod(cell, self._plan.grid[1])
        for sums, place in ((self.left, (row, column)), (self._rows, row), (self._columns, column)):
            sums[place] += samples
        first = self._plan.first_batches
        self._begun.discard(cell)
        self._cells.pop(cell, None)
        if pieces:
            self._cells[cell] = pieces
        if len(pieces) > 1 or (pieces and (pieces[0].start > first[cell] or pieces[0].stop < first[cell + 1])):
            self._begun.add(cell)

    def best(self, rows: np.ndarray, columns: np.ndarray) -> FreeRange | None:
        """Return the first free range of the best cell in `rows` (B,) and `columns` (C,) bool, the unoccupied ones.
        Cells already begun come first, so that a resumed job of one worker keeps its order; otherwise the cell whose
        row and column have the most samples left, the first of equal ones."""
        from hogwild.kernels.parsing import grid_cells

        across = self._plan.grid[1]
        for cell in sorted(self._begun):
            if rows[cell // across] and columns[cell % across]:
                return self._pieces(cell)[0]
        free = np.flatnonzero(rows), np.flatnonzero(columns)
        chosen = int(grid_cells.fullest(self._drawn, self.left, self._rows, self._columns, *free))
        return self._pieces(chosen)[0] if chosen >= 0 else None


class GridSchedule(LeaseSchedule):
    """The schedule of a grid. An item is a whole cell, or the rest of one. Conflicts are computed from the leases."""

    def __init__(self, plan: GridPlan, *, seed: int) -> None:
        from hogwild.kernels.parsing import warm_up

        warm_up.ready("grid")
        self._plan = plan
        self._seed = seed
        self._next: tuple[int, FreeCells] | None = None  # kept until a cell of it can be leased

    def free_of(self, epoch: int, pieces: Iterable[FreeRange] | None = None) -> FreeCells:
        if pieces is not None:
            return FreeCells(self._plan, self._draw(epoch), pieces)
        if self._next is None or self._next[0] != epoch:
            self._next = epoch, FreeCells(self._plan, self._draw(epoch))
        return self._next[1]

    def _draw(self, epoch: int) -> np.ndarray:
        """Return (B, C) float64: tie-breakers of this epoch. A bit generator's numbers never change with numpy."""
        rows, columns = self._plan.grid
        words = np.random.PCG64(mix(self._seed, epoch, -5)).random_raw(rows * columns) >> np.uint64(11)
        drawn: np.ndarray = words.reshape(rows, columns) * (DRAWN_SHARE * self._plan.samples / rows / 2**53)
        return drawn

    def choose(self, worker: int, epochs: Mapping[int, Free], leases: Collection[Lease]) -> LeaseChoice | None:
        taken = self._plan.cells[[lease.item.start for lease in leases if lease.worker != worker]]
        rows, columns = (np.ones(side, bool) for side in self._plan.grid)
        rows[taken // len(columns)] = columns[taken % len(columns)] = False
        for epoch, free in epochs.items():
            assert isinstance(free, FreeCells)
            if (piece := free.best(rows, columns)) is not None:
                return LeaseChoice(epoch, piece)
        return None

    def updates(self, horizon: int, limits: Limits) -> int:
        """Return the length of an item: a whole cell, up to the limit of the commit word. A shorter item would still
        leave the rest of its row and column occupied."""
        return MAX_ITEM_BATCHES

    def most_in_hand(self, horizon: int, limits: Limits) -> int:
        """Return 2 if every worker then still finds an unoccupied row and column; 1 near the end, when a second leased
        cell would keep others waiting."""
        cells = horizon * len(self._plan.bounds) / self._plan.batches
        room = min(*self._plan.grid, int(cells))
        return LEASES_IN_HAND if room > 2 * (limits.procs - 1) else 1

    def restart(self, next_epoch: int) -> None:
        self._next = None
