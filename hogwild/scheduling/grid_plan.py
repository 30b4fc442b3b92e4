"""Two-sided data (ratings) as a grid: blocks of rows x blocks of columns. Two samples in cells that share neither block
write no parameter in common, so workers in such cells never write the same cache line (Gemulla et al., "Large-scale
matrix factorization with distributed SGD", 2011; here without a barrier, `schedules.py`).

    Grid       the cell of each sample, and the order in which they are stored: each cell is a contiguous range
    GridPlan   the division of an epoch in that order into batches: no batch crosses the border of a cell

                  cells in the order of storage, by their column      two starts: a worker that goes through row
    row block 0   0 1 2 3 4 5 6 7                                     blocks 0, 2, … and one that goes through 1, 3,
    row block 1   4 5 6 7 0 1 2 3                                     …, at the same pace, are in different columns all
    row block 2   0 1 2 3 4 5 6 7                                     the time

Blocks are ranges of ids with about equally many samples each."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, TypeAlias

import numpy as np

from hogwild.kernels.pair_order import places_in_order
from hogwild.kernels.profile import HOT_BYTES

MOST_SIDE = 256  # most blocks of rows, and of columns, for any number of workers
MOST_CELLS = MOST_SIDE**2  # a cell number has 16 bits
LANES = 4
LINE = 16  # numbers of a cache line
Shape: TypeAlias = tuple[int, int, int]  # row blocks, column blocks, and at how many of these row blocks start
NO_GRID: Shape = (0, 0, 0)  # of a run that had none: its order of samples was another one
# Row blocks: one for each worker at least, up to ROWS_PER_WORKER of LEAST_ROW_BLOCK samples (about 3 ms), so that the
# fastest worker can have more, and none of much more than ROW_BLOCK samples (some 20 ms).
ROWS_PER_WORKER, LEAST_ROW_BLOCK, ROW_BLOCK = 4, 1 << 18, 1 << 21
# Column blocks: with the state that belongs to them half a second-level cache, and so many per worker that two seldom
# want the same one.
COLUMN_BYTES = 384 << 10
COLUMNS_PER_WORKER, LEAST_COLUMNS = 8, 32
CELL = 1 << 11  # samples: entering a smaller cell would cost more than a twentieth of it
LEAST_OF_COLUMN = 16  # rows: with fewer, a sample would wait for what the one before it writes


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """`row_cuts` (B + 1,) and `column_cuts` (C + 1,) int64: block k holds the ids [cuts[k], cuts[k + 1]). `bounds` (B *
    C + 1,) int64: start and end of each cell once the samples are in `order`. `rows` (N,) int32: the ids as given;
    `cells` (N,) uint16: the cell of each sample, in the order of storage."""

    row_cuts: np.ndarray
    column_cuts: np.ndarray
    bounds: np.ndarray
    rows: np.ndarray
    cells: np.ndarray
    starts: int

    @classmethod
    def of(cls, rows: np.ndarray, columns: np.ndarray, row_count: int, column_count: int, shape: Shape) -> "Grid":
        """Build a grid from samples with ids `rows`, `columns` (N,) int32, below `row_count` and `column_count`, of
        this shape, or with fewer blocks, as a block holds at least one id. Raises ValueError beyond 65,536 cells, and
        for an id that is out of range. No numba: loading it would take longer than a million samples do."""
        if min(shape) < 1 or shape[0] * shape[1] > MOST_CELLS:
            raise ValueError(f"a grid has 1 to {MOST_CELLS} cells, not {shape[0]} x {shape[1]}")
        cuts = []
        for ids, many, blocks in ((rows, row_count, shape[0]), (columns, column_count, shape[1])):
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < many:
                raise ValueError(f"ids from {ids.min()} to {ids.max()}, and there are {many}")
            cuts.append(balanced_cuts(np.bincount(ids, minlength=many), blocks))
        found = len(cuts[0]) - 1, len(cuts[1]) - 1, shape[2]
        places = np.empty(found[0] * found[1], np.uint16)  # of cells in the order of storage
        places[_numbered_by_column(found)] = np.arange(len(places), dtype=np.uint16)
        cells = _blocks(cuts[0], found[1])[rows]
        cells += _blocks(cuts[1], 1)[columns]
        cells = places[cells]
        bounds = np.zeros(len(places) + 1, np.int64)
        np.cumsum(np.bincount(cells, minlength=len(places)), out=bounds[1:])
        return cls(cuts[0], cuts[1], bounds, rows, cells, shape[2])

    @property
    def shape(self) -> Shape:
        return len(self.row_cuts) - 1, len(self.column_cuts) - 1, self.starts

    def largest_shares(self) -> tuple[float, float]:
        """Return the share of all samples that are in the fullest row block, and in the fullest column block."""
        cells = np.zeros(len(self.bounds) - 1)
        cells[_numbered_by_column(self.shape)] = np.diff(self.bounds) / max(1, len(self.rows))
        by_block = cells.reshape(self.shape[:2])
        return float(by_block.sum(axis=1).max()), float(by_block.sum(axis=0).max())

    def order(self) -> np.ndarray:
        """Return (N,) int64: the samples by cell. A cell is sorted by row, and the sorted list is divided into LANES
        parts, which are read in turns: a row's parameters stay in the nearest cache, and neighbours are of different
        rows. If they were of one row, each would wait for what the one before it writes: some 50 cycles, more than the
        arithmetic. (32 factors, SGD: 58 million ratings per second with 1 lane, 97 with 2, 108 with 4.)

        22.5 million samples take 0.5 s on a core with AVX2 (sorting places by NumPy: 1.2 s, or 5.8 s if rows are not
        sorted)."""
        keys = self.cells.astype(np.int64)
        if (self.rows[1:] < self.rows[:-1]).any():
            keys *= int(self.rows.max()) + 1
            keys += self.rows
        order = places_in_order(keys, may_overwrite=True)
        for start, stop in pairwise(self.bounds.tolist()):
            order[start:stop] = in_lanes(order[start:stop])
        return order


def grid_shape(samples: int, procs: int, columns: int, width: int) -> Shape:
    """Return the shape of the grid for so many samples, workers, columns and bytes of a column in all its parameters:
    as many blocks as the work bears."""
    rows = max(min(ROWS_PER_WORKER * procs, samples // LEAST_ROW_BLOCK), samples // ROW_BLOCK)
    least = max(2, procs)  # so that a run of one worker may go on with two
    rows = min(MOST_SIDE, max(1, rows // least) * least)
    wanted = max(LEAST_COLUMNS, COLUMNS_PER_WORKER * procs, -(-columns * width // COLUMN_BYTES))
    most = min(samples // rows // CELL, columns // LEAST_OF_COLUMN)
    return rows, min(MOST_SIDE, max(min(2 * procs, procs + 2), min(wanted, most))), least


@dataclass(frozen=True, slots=True)
class TableSide:
    """One side of two-sided data: its array of ids, the rows they name, and the bytes of a row in all its parameters.
    `is_drawn`: the kernel draws further rows of it at random."""

    array: str
    rows: int
    width: int
    is_drawn: bool = False


def rows_apart(
    sides: tuple[TableSide, ...], samples: int, procs: int, before: Shape | None, *, may_copy: bool
) -> tuple[Shape | None, str]:
    """Return how `procs` workers keep to different rows of two-sided data: (the shape of the grid, ""), (None, the
    array of which each has private copies of all rows), or (None, "") for not at all. `before`: of the run that goes
    on, or NO_GRID; None for a new one."""
    if len(sides) != 2:
        return None, ""
    smaller = min(sides, key=lambda side: side.rows * side.width)
    is_drawn = any(side.is_drawn for side in sides)
    is_ungridded = before == NO_GRID or (before is None and (is_drawn or smaller.rows < COLUMNS_PER_WORKER * procs))
    if may_copy and is_ungridded and smaller.rows * smaller.width <= HOT_BYTES:
        return None, smaller.array
    if before == NO_GRID or (before is None and is_drawn):
        return None, ""
    return before or grid_shape(samples, procs, sides[1].rows, sides[1].width), ""


def in_lanes(cell: np.ndarray) -> np.ndarray:
    """Return the samples (n,) of a cell in LANES equal parts (the last one may be shorter): first the first of each
    part, then the second ones, and so on."""
    length = -(-len(cell) // LANES)
    if length * LANES == len(cell):
        return cell.reshape(LANES, length).T.reshape(-1)
    places = np.arange(length * LANES).reshape(LANES, length).T.reshape(-1)
    found: np.ndarray = cell[places[places < len(cell)]]
    return found


def balanced_cuts(counts: np.ndarray, blocks: int) -> np.ndarray:
    """Return (blocks + 1,) int64: cuts of the ids 0..len(counts) into ranges with about equally many samples; `counts`
    (ids,) is the number of samples per id. At most one block per id. If one id exceeds a block's share, the later
    blocks share the rest evenly. With ids enough, cuts are at multiples of LINE: a cache line of a table with one
    number per id belongs to one block."""
    ids = len(counts)
    if blocks > 1 and ids >= LINE * blocks:
        by_line = np.add.reduceat(counts, np.arange(0, ids, LINE))
        cuts: np.ndarray = np.minimum(_cuts(by_line, blocks) * LINE, ids)
        return cuts
    return _cuts(counts, blocks)


def _cuts(counts: np.ndarray, blocks: int) -> np.ndarray:
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


def columns_of(shape: Shape) -> np.ndarray:
    """Return (B, C) int64: the column of each cell, in the order of storage."""
    rows, columns, starts = shape
    first = np.arange(rows) % starts * columns // starts
    found: np.ndarray = (first[:, None] + np.arange(columns)) % columns
    return found


def _numbered_by_column(shape: Shape) -> np.ndarray:
    """Return (B * C,) int64: row block * C + column of each cell, in the order of storage."""
    return (columns_of(shape) + np.arange(shape[0])[:, None] * shape[1]).reshape(-1)


def _blocks(cuts: np.ndarray, times: int) -> np.ndarray:
    """Return (ids,) uint16: the block of each id, multiplied by `times`."""
    return np.repeat(np.arange(len(cuts) - 1, dtype=np.uint16) * np.uint16(times), np.diff(cuts))


@dataclass(frozen=True, slots=True)
class GridPlan:
    """The division of one epoch in a grid's order into batches. As `BatchPlan`, but each cell is divided separately and
    its last batch is shorter. `bounds` (cells + 1): first position of each cell, and the end."""

    batch_size: int
    grid: Shape
    bounds: tuple[int, ...]
    row_bounds: np.ndarray = field(init=False, repr=False, compare=False)  # (B + 1,) int64: first batch of each block
    columns: np.ndarray = field(init=False, repr=False, compare=False)  # (batches,) int64: column of each batch
    _firsts: np.ndarray = field(init=False, repr=False, compare=False)  # (batches + 1,) int64: first position of each
    _row_firsts: list[int] = field(init=False, repr=False, compare=False)  # row_bounds, for `bisect`

    merges: ClassVar[bool] = False  # a kernel can train on a batch of any size
    merge_single: ClassVar[bool] = False
    drop_last: ClassVar[bool] = False
    lanes: ClassVar[None] = None

    @classmethod
    def of(cls, grid: Grid, batch_size: int) -> "GridPlan":
        return cls(batch_size, grid.shape, tuple(grid.bounds.tolist()))

    def __post_init__(self) -> None:
        bounds = np.array(self.bounds, np.int64)
        batches = -(-np.diff(bounds) // self.batch_size)
        first_batches = np.zeros(len(bounds), np.int64)
        np.cumsum(batches, out=first_batches[1:])
        cells = np.repeat(np.arange(len(batches)), batches)
        firsts = np.full(len(cells) + 1, bounds[-1])
        firsts[:-1] = bounds[cells] + (np.arange(len(cells)) - first_batches[cells]) * self.batch_size
        row_bounds, columns = first_batches[:: self.grid[1]].copy(), columns_of(self.grid).reshape(-1)[cells]
        derived = {"row_bounds": row_bounds, "columns": columns, "_firsts": firsts, "_row_firsts": row_bounds.tolist()}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> "tuple[Callable[..., GridPlan], tuple[object, ...]]":
        """Pickle only the bounds; the derived arrays, which may be megabytes, are rebuilt."""
        return GridPlan, (self.batch_size, self.grid, self.bounds)

    @property
    def samples(self) -> int:
        return self.bounds[-1]

    @property
    def batches(self) -> int:
        return len(self.columns)

    @property
    def largest(self) -> int:
        return int(np.diff(self._firsts).max(initial=0))

    def positions(self, batch: int) -> tuple[int, int]:
        return int(self._firsts[batch]), int(self._firsts[batch + 1])

    def borders(self, start: int, stop: int) -> np.ndarray:
        """Return (stop - start + 1,) int64: the first position of each of the batches [start, stop), and the end."""
        borders: np.ndarray = self._firsts[start : stop + 1]
        return borders

    def samples_in(self, start: int, stop: int) -> int:
        return int(self._firsts[stop] - self._firsts[start]) if stop > start else 0

    def row_of(self, batch: int) -> int:
        """Return the row block of a batch."""
        return bisect_right(self._row_firsts, batch) - 1
