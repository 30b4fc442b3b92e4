"""Two-sided data (ratings, triples) as a grid: blocks of rows x blocks of columns. Two samples in cells that share
neither block write no parameter in common, so workers that hold such cells never write the same cache line (Gemulla et
al., "Large-scale matrix factorization with distributed SGD", 2011; here without a barrier, `grid_schedule.py`).

    Grid       the cell of each sample, and the order that makes each cell a contiguous range
    GridPlan   the division of an epoch in that order into batches: no batch crosses the border of a cell

Blocks are ranges of ids with about equally many samples each."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

MOST_SIDE = 256  # most blocks of rows, and of columns, for any number of workers
MOST_CELLS = MOST_SIDE**2  # a cell number has 16 bits


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """`row_cuts` (B + 1,) and `column_cuts` (C + 1,) int64: block k holds the ids [cuts[k], cuts[k + 1]). `bounds` (B *
    C + 1,) int64: start and end of each cell (row block * C + column block) once the samples are in `order`. `rows`,
    `columns` (N,) int32: the ids as given."""

    row_cuts: np.ndarray
    column_cuts: np.ndarray
    bounds: np.ndarray
    rows: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(
        cls, rows: np.ndarray, columns: np.ndarray, row_count: int, column_count: int, sides: tuple[int, int]
    ) -> "Grid":
        """Build a grid from samples with ids `rows`, `columns` (N,) int32, below `row_count` and `column_count`: B x C
        = `sides` blocks, or fewer, as a block holds at least one id. Raises ValueError beyond 65,536 cells, and for an
        id that is out of range. Needs numba; 25 million samples take 0.2 s."""
        from hogwild.kernels.parsing import grid_cells, warm_up

        if min(sides) < 1 or sides[0] * sides[1] > MOST_CELLS:
            raise ValueError(f"a grid has 1 to {MOST_CELLS} cells, not {sides[0]} x {sides[1]}")
        warm_up.ready("grid")
        cuts = []
        for ids, many, blocks in ((rows, row_count, sides[0]), (columns, column_count, sides[1])):
            counts = np.zeros(many, np.int64)
            if not grid_cells.count(ids, counts):
                raise ValueError(f"ids from {ids.min()} to {ids.max()}, and there are {many}")
            cuts.append(balanced_cuts(counts, blocks))
        across = len(cuts[1]) - 1
        bounds = np.zeros((len(cuts[0]) - 1) * across + 1, np.int64)
        grid_cells.count_cells(rows, columns, _blocks(cuts[0], across), _blocks(cuts[1], 1), bounds[1:])
        np.cumsum(bounds, out=bounds)
        return cls(cuts[0], cuts[1], bounds, rows, columns)

    @property
    def sides(self) -> tuple[int, int]:
        return len(self.row_cuts) - 1, len(self.column_cuts) - 1

    def order(self) -> np.ndarray:
        """Return (N,) int64: the samples ordered by cell, within a cell by row (so that a row's parameters stay in the
        nearest cache), within a row in the original order. 25 million samples take 0.1 s if they are already sorted by
        row, as ratings usually are, and several times as long otherwise (one core)."""
        from hogwild.kernels.parsing import grid_cells, ordering, warm_up

        warm_up.ready("grid")
        before, order = np.zeros(0, np.int64), np.empty(len(self.rows), np.int64)
        if not bool((self.rows[1:] >= self.rows[:-1]).all()):
            before = np.empty(len(self.rows), np.int64)
            begins = np.zeros(int(self.row_cuts[-1]) + 1, np.int64)
            ordering.counted(self.rows, np.arange(len(self.rows)), begins, before)
        blocks = _blocks(self.row_cuts, self.sides[1]), _blocks(self.column_cuts, 1)
        grid_cells.by_cell(before, self.rows, self.columns, *blocks, self.bounds[:-1].copy(), order)
        return order


def balanced_cuts(counts: np.ndarray, blocks: int) -> np.ndarray:
    """Return (blocks + 1,) int64: cuts of the ids 0..len(counts) into ranges with about equally many samples; `counts`
    (ids,) is the number of samples per id. At most one block per id. If one id exceeds a block's share, the later
    blocks share the rest evenly."""
    ids = len(counts)
    blocks = max(1, min(blocks, ids))
    before = np.zeros(ids + 1, np.int64)
    np.cumsum(counts, out=before[1:])
    cuts = np.zeros(blocks + 1, np.int64)
    for block in range(1, blocks):
        begin = int(cuts[block - 1])
        goal = before[begin] + (before[-1] - before[begin]) / (blocks - block + 1)
        cut = int(np.searchsorted(before, goal))
        if cut > 0 and goal - before[cut - 1] < before[cut] - goal:
            cut -= 1
        cuts[block] = min(max(cut, begin + 1), ids - (blocks - block))
    cuts[-1] = ids
    return cuts


def _blocks(cuts: np.ndarray, times: int) -> np.ndarray:
    """Return (ids,) uint16: the block of each id, multiplied by `times`."""
    return np.repeat(np.arange(len(cuts) - 1, dtype=np.uint16) * np.uint16(times), np.diff(cuts))


@dataclass(frozen=True, slots=True)
class GridPlan:
    """The division of one epoch in a grid's order into batches. As `BatchPlan`, but each cell is divided separately and
    its last batch is shorter. `bounds` (cells + 1): first position of each cell, and the end."""

    batch_size: int
    grid: tuple[int, int]  # number of row blocks and of column blocks
    bounds: tuple[int, ...]
    first_batches: np.ndarray = field(init=False, repr=False, compare=False)  # (cells + 1,) int64: of each cell
    cells: np.ndarray = field(init=False, repr=False, compare=False)  # (batches,) int64: of each batch
    _firsts: np.ndarray = field(init=False, repr=False, compare=False)  # (batches + 1,) int64: first position of each

    merges: ClassVar[bool] = False  # a kernel can train on a batch of any size
    merge_single: ClassVar[bool] = False
    drop_last: ClassVar[bool] = False
    lanes: ClassVar[None] = None

    @classmethod
    def of(cls, grid: Grid, batch_size: int) -> "GridPlan":
        return cls(batch_size, grid.sides, tuple(grid.bounds.tolist()))

    def __post_init__(self) -> None:
        bounds = np.array(self.bounds, np.int64)
        batches = -(-np.diff(bounds) // self.batch_size)
        first_batches = np.zeros(len(bounds), np.int64)
        np.cumsum(batches, out=first_batches[1:])
        cells = np.repeat(np.arange(len(batches)), batches)
        firsts = np.full(len(cells) + 1, bounds[-1])
        firsts[:-1] = bounds[cells] + (np.arange(len(cells)) - first_batches[cells]) * self.batch_size
        for name, value in (("first_batches", first_batches), ("cells", cells), ("_firsts", firsts)):
            object.__setattr__(self, name, value)

    def __reduce__(self) -> "tuple[Callable[..., GridPlan], tuple[object, ...]]":
        """Pickle only the bounds; the derived arrays, which may be megabytes, are rebuilt."""
        return GridPlan, (self.batch_size, self.grid, self.bounds)

    @property
    def samples(self) -> int:
        return self.bounds[-1]

    @property
    def batches(self) -> int:
        return len(self.cells)

    @property
    def largest(self) -> int:
        return int(np.diff(self._firsts).max(initial=0))

    def positions(self, batch: int) -> tuple[int, int]:
        return int(self._firsts[batch]), int(self._firsts[batch + 1])

    def samples_in(self, start: int, stop: int) -> int:
        return int(self._firsts[stop] - self._firsts[start]) if stop > start else 0

    def cell_of(self, batch: int) -> int:
        """Return the cell of a batch: row block * C + column block."""
        return int(self.cells[batch])
