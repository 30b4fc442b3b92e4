"""The grid of two-sided data, and how an epoch over it is cut into batches: compared with the definition, sample by
sample."""

import pickle

import numpy as np
import pytest
from hypothesis import given as having
from hypothesis import settings
from hypothesis import strategies as st

from hogwild.scheduling.batch_plan import BatchPlan, EpochPlan, updates_planned
from hogwild.scheduling.grid_plan import LANES, LINE, Grid, GridPlan, Shape, balanced_cuts

ROWS, COLUMNS = 37, 23
SHAPES = st.sampled_from([(1, 1, 1), (4, 4, 2), (8, 3, 3), (40, 40, 7), (2, 5, 9)])


@st.composite
def grids(draw: st.DrawFn) -> tuple[Grid, np.ndarray]:
    """A grid, and its columns: few samples, many of them of the same ids, in any order."""
    count = draw(st.integers(1, 200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    power = draw(st.sampled_from([1.0, 4.0]))
    rows = (ROWS * rng.random(count) ** power).astype(np.int32)
    columns = (COLUMNS * rng.random(count) ** power).astype(np.int32)
    if draw(st.booleans()):
        rows.sort()
    return Grid.of(rows, columns, ROWS, COLUMNS, draw(SHAPES)), columns


def block_of(cuts: np.ndarray, number: int) -> int:
    return next(k for k in range(len(cuts) - 1) if cuts[k] <= number < cuts[k + 1])


def cells_of(grid: Grid, ids: np.ndarray) -> list[tuple[int, int, list[int]]]:
    """(Row block, column block, samples) of each cell in the order of storage: the definition."""
    rows, columns, starts = grid.shape
    cells: dict[tuple[int, int], list[int]] = {}
    for sample in np.argsort(grid.rows, kind="stable").tolist():
        cell = block_of(grid.row_cuts, grid.rows[sample]), block_of(grid.column_cuts, ids[sample])
        cells.setdefault(cell, []).append(sample)
    stored = [(row, (row % starts * columns // starts + k) % columns) for row in range(rows) for k in range(columns)]
    return [(*cell, cells.get(cell, [])) for cell in stored]


@settings(deadline=None)
@having(given=grids())
def test_a_cell_is_sorted_by_row_then_as_it_was_and_stored_in_lanes_from_where_its_row_block_starts(
    given: tuple[Grid, np.ndarray],
) -> None:
    grid, columns = given
    order, bounds = [], [0]
    for _, _, samples in cells_of(grid, columns):
        length = -(-len(samples) // LANES)
        order += [sample for first in range(length) for sample in samples[first::length]]
        bounds.append(len(order))
    assert grid.order().tolist() == order
    assert grid.bounds.tolist() == bounds


@pytest.mark.parametrize("shape", [(6, 8, 2), (9, 8, 3), (8, 7, 4)])
def test_row_blocks_of_different_starts_are_never_in_the_same_column_at_the_same_pace(shape: Shape) -> None:
    rows, columns, starts = shape
    found = GridPlan(1, shape, tuple(range(rows * columns + 1))).columns.reshape(rows, columns)
    for one in range(rows):
        for other in range(rows):
            assert (found[one] == found[other]).any() == (one % starts == other % starts)


def test_a_block_of_many_rows_is_ordered_by_all_digits_of_a_row() -> None:
    rows = np.random.default_rng(0).integers(0, 1_000_000, 3000, dtype=np.int32)
    grid = Grid.of(rows, np.zeros_like(rows), 1_000_000, 1, (1, 1, 1))
    lanes = np.argsort(rows, kind="stable").reshape(LANES, -1)
    assert np.array_equal(grid.order(), lanes.T.reshape(-1))


@pytest.mark.parametrize(
    ("counts", "blocks", "cuts"),
    [
        ([1, 1, 1, 1, 1, 1, 1, 1], 4, [0, 2, 4, 6, 8]),
        ([3, 3], 2, [0, 1, 2]),
        ([100, 1, 1, 1, 1, 1, 1], 4, [0, 1, 3, 5, 7]),  # a heavy id is alone; the others share what is left
        ([1, 1, 1, 1, 1, 1, 100], 4, [0, 4, 5, 6, 7]),  # it is the last: no block is empty, though
        ([0, 0, 0], 2, [0, 1, 3]),  # ids that no sample has
        ([5], 4, [0, 1]),  # at most a block for each id
    ],
)
def test_blocks_hold_about_equally_many_samples(counts: list[int], blocks: int, cuts: list[int]) -> None:
    assert balanced_cuts(np.array(counts), blocks).tolist() == cuts


def test_blocks_of_a_power_law_differ_by_no_more_than_their_heaviest_line() -> None:
    counts = (1e6 / np.arange(1, 5001) ** 0.9).astype(np.int64)
    cuts = balanced_cuts(counts, 16)
    sizes = np.add.reduceat(counts, cuts[:-1])
    heaviest = np.maximum.reduceat(np.add.reduceat(counts, np.arange(0, 5000, LINE)), cuts[:-1] // LINE)
    share = sizes[1:].sum() / 15  # the first block is one line
    assert cuts[1] == LINE and (sizes[1:] <= share + heaviest[1:]).all()
    assert sizes[1:].min() > 0.8 * share


@pytest.mark.parametrize(("ids", "is_cut_between_lines"), [(64, True), (63, False), (1000, True), (1001, True)])
def test_where_there_are_ids_enough_no_line_of_a_table_with_one_number_for_each_is_in_two_blocks(
    ids: int, is_cut_between_lines: bool
) -> None:
    cuts = balanced_cuts(np.random.default_rng(0).integers(100, size=ids), 4)
    assert len(cuts) == 5 and cuts[-1] == ids
    assert (cuts[:-1] % LINE == 0).all() == is_cut_between_lines


def test_a_grid_has_no_more_cells_than_numbers_of_16_bits() -> None:
    ids = np.zeros(3, np.int32)
    with pytest.raises(ValueError, match="1 to 65536 cells, not 300 x 300"):
        Grid.of(ids, ids, 1, 1, (300, 300, 2))
    with pytest.raises(ValueError, match="not 0 x 4"):
        Grid.of(ids, ids, 1, 1, (0, 4, 2))
    every = np.arange(256, dtype=np.int32)
    assert Grid.of(every, every, 256, 256, (256, 256, 1)).bounds[-2:].tolist() == [255, 256]  # the last cell has one


def test_ids_out_of_range_are_no_grid() -> None:
    ids = np.array([0, 5, 2], np.int32)
    with pytest.raises(ValueError, match="ids from 0 to 5, and there are 5"):
        Grid.of(ids, ids, 6, 5, (2, 2, 1))
    with pytest.raises(ValueError, match="ids from -5 to 0"):
        Grid.of(-ids, ids, 6, 6, (2, 2, 1))


@settings(deadline=None)
@having(given=grids(), batch_size=st.sampled_from([1, 3, 7, 1000]))
def test_an_epoch_is_cut_into_batches_that_each_lie_in_one_cell(
    given: tuple[Grid, np.ndarray], batch_size: int
) -> None:
    grid, columns = given
    plan: EpochPlan = GridPlan.of(grid, batch_size)
    assert isinstance(plan, GridPlan)
    cells = [(row, column) for row, column, samples in cells_of(grid, columns) for _ in samples]
    ends = set(grid.bounds.tolist())
    covered: list[int] = []
    for batch in range(plan.batches):
        first, last = plan.positions(batch)
        assert 0 < last - first <= batch_size
        assert set(cells[first:last]) == {(plan.row_of(batch), plan.columns[batch])}
        assert last - first == batch_size or last in ends  # only the last one of a cell is shorter
        covered += range(first, last)
    assert covered == list(range(plan.samples)) == list(range(len(grid.rows)))
    assert plan.largest == max(plan.samples_in(batch, batch + 1) for batch in range(plan.batches))
    assert plan.samples_in(0, plan.batches) == plan.samples
    assert plan.samples_in(1, 1) == 0
    of_rows = [plan.row_of(batch) for batch in range(plan.batches)]
    assert plan.row_bounds.tolist() == [sum(row < block for row in of_rows) for block in range(grid.shape[0] + 1)]
    middle, firsts = plan.batches // 2, [plan.positions(batch)[0] for batch in range(plan.batches)]
    assert plan.borders(middle, plan.batches).tolist() == [*firsts[middle:], plan.samples]


@settings(deadline=None)
@having(given=grids(), batch_size=st.sampled_from([1, 7]))
def test_a_plan_travels_as_its_bounds_alone(given: tuple[Grid, np.ndarray], batch_size: int) -> None:
    plan = GridPlan.of(given[0], batch_size)
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert [again.positions(k) for k in range(again.batches)] == [plan.positions(k) for k in range(plan.batches)]


def test_a_plan_of_millions_of_batches_is_small_where_it_travels() -> None:
    plan = GridPlan(1, (4, 4, 2), tuple(range(0, 16 * 100_000 + 1, 100_000)))
    assert plan.batches == 1_600_000
    assert len(pickle.dumps(plan)) < 1000


def test_updates_are_planned_as_without_a_grid() -> None:
    plan = GridPlan(4, (2, 2, 1), (0, 5, 5, 9, 10))  # batches of 4 + 1, none, 4, 1
    assert [plan.positions(batch) for batch in range(plan.batches)] == [(0, 4), (4, 5), (5, 9), (9, 10)]
    assert updates_planned(plan, epochs=3, accumulate=1, max_updates=None) == 12
    assert updates_planned(plan, epochs=3, accumulate=1, max_updates=7) == 7
    assert (plan.grid, plan.merges, plan.drop_last) == ((2, 2, 1), False, False)
    assert BatchPlan(10, 4).grid is None
