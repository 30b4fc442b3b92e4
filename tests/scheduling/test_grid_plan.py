"""The grid of two-sided data, and how an epoch over it is cut into batches: compared with the definition, sample by
sample."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.scheduling.batch_plan import BatchPlan, EpochPlan, updates_planned
from hogwild.scheduling.grid_plan import Grid, GridPlan, balanced_cuts

ROWS, COLUMNS = 37, 23


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """Few samples, many of them of the same ids, in any order."""
    count = draw(st.integers(1, 200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    power = draw(st.sampled_from([1.0, 4.0]))
    rows = (ROWS * rng.random(count) ** power).astype(np.int32)
    columns = (COLUMNS * rng.random(count) ** power).astype(np.int32)
    if draw(st.booleans()):
        rows.sort()
    return Grid.of(rows, columns, ROWS, COLUMNS, draw(st.sampled_from([(1, 1), (4, 4), (8, 3), (40, 40)])))


def block_of(cuts: np.ndarray, number: int) -> int:
    return next(k for k in range(len(cuts) - 1) if cuts[k] <= number < cuts[k + 1])


@settings(deadline=None)
@given(
    count=st.integers(1, 300), seed=st.integers(0, 2**32), is_sorted=st.booleans(), sides=st.sampled_from([1, 4, 40])
)
def test_samples_are_ordered_by_cell_then_by_row_then_as_they_were(
    count: int, seed: int, is_sorted: bool, sides: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = (ROWS * rng.random(count) ** 3).astype(np.int32)
    columns = (COLUMNS * rng.random(count) ** 3).astype(np.int32)
    if is_sorted:
        rows.sort()
    grid = Grid.of(rows, columns, ROWS, COLUMNS, (sides, sides))
    across = grid.sides[1]
    cells = [
        block_of(grid.row_cuts, row) * across + block_of(grid.column_cuts, column)
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
    ]
    assert grid.order().tolist() == sorted(range(count), key=lambda sample: (cells[sample], rows[sample], sample))
    found = [sum(each < cell for each in cells) for cell in range(grid.sides[0] * across + 1)]
    assert grid.bounds.tolist() == found


def test_blocks_of_many_rows_are_ordered_by_all_digits_of_a_row() -> None:
    rows = np.random.default_rng(0).integers(0, 1_000_000, 3000, dtype=np.int32)
    grid = Grid.of(rows, np.zeros_like(rows), 1_000_000, 1, (2, 1))
    assert np.array_equal(grid.order(), np.argsort(rows, kind="stable"))


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


def test_blocks_of_a_power_law_differ_by_no_more_than_their_heaviest_id() -> None:
    counts = (1e6 / np.arange(1, 5001) ** 0.9).astype(np.int64)
    cuts = balanced_cuts(counts, 16)
    sizes = np.add.reduceat(counts, cuts[:-1])
    heaviest = np.maximum.reduceat(counts, cuts[:-1])
    share = counts.sum() / 16
    assert (sizes[1:] <= share + heaviest[1:]).all()
    assert sizes[1:].min() > 0.8 * share


def test_a_grid_has_no_more_cells_than_numbers_of_16_bits() -> None:
    ids = np.zeros(3, np.int32)
    with pytest.raises(ValueError, match="1 to 65536 cells, not 300 x 300"):
        Grid.of(ids, ids, 1, 1, (300, 300))
    with pytest.raises(ValueError, match="not 0 x 4"):
        Grid.of(ids, ids, 1, 1, (0, 4))
    every = np.arange(256, dtype=np.int32)
    assert Grid.of(every, every, 256, 256, (256, 256)).bounds[-2:].tolist() == [255, 256]  # the last cell has one


def test_ids_out_of_range_are_no_grid() -> None:
    ids = np.array([0, 5, 2], np.int32)
    with pytest.raises(ValueError, match="ids from 0 to 5, and there are 5"):
        Grid.of(ids, ids, 6, 5, (2, 2))
    with pytest.raises(ValueError, match="ids from -5 to 0"):
        Grid.of(-ids, ids, 6, 6, (2, 2))


@settings(deadline=None)
@given(grid=grids(), batch_size=st.sampled_from([1, 3, 7, 1000]))
def test_an_epoch_is_cut_into_batches_that_each_lie_in_one_cell(grid: Grid, batch_size: int) -> None:
    plan: EpochPlan = GridPlan.of(grid, batch_size)
    assert isinstance(plan, GridPlan)
    row_blocks = np.searchsorted(grid.row_cuts, grid.rows, side="right") - 1
    cells = row_blocks * grid.sides[1] + np.searchsorted(grid.column_cuts, grid.columns, side="right") - 1
    cells = cells[grid.order()]
    covered: list[int] = []
    for batch in range(plan.batches):
        first, last = plan.positions(batch)
        assert 0 < last - first <= batch_size
        assert set(cells[first:last]) == {plan.cell_of(batch)}
        if last - first < batch_size:
            assert last == grid.bounds[plan.cell_of(batch) + 1]  # only the last one of a cell is shorter
        covered += range(first, last)
    assert covered == list(range(plan.samples)) == list(range(len(grid.rows)))
    assert plan.largest == max(plan.samples_in(batch, batch + 1) for batch in range(plan.batches))
    assert plan.samples_in(0, plan.batches) == plan.samples
    assert plan.samples_in(1, 1) == 0
    assert plan.first_batches[-1] == plan.batches
    assert (plan.cells == np.repeat(np.arange(len(plan.bounds) - 1), np.diff(plan.first_batches))).all()


@settings(deadline=None)
@given(grid=grids(), batch_size=st.sampled_from([1, 7]))
def test_a_plan_travels_as_its_bounds_alone(grid: Grid, batch_size: int) -> None:
    plan = GridPlan.of(grid, batch_size)
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert [again.positions(k) for k in range(again.batches)] == [plan.positions(k) for k in range(plan.batches)]


def test_a_plan_of_millions_of_batches_is_small_where_it_travels() -> None:
    plan = GridPlan(1, (4, 4), tuple(range(0, 16 * 100_000 + 1, 100_000)))
    assert plan.batches == 1_600_000
    assert len(pickle.dumps(plan)) < 1000


def test_updates_are_planned_as_without_a_grid() -> None:
    plan = GridPlan(4, (2, 2), (0, 5, 5, 9, 10))  # batches of 4 + 1, none, 4, 1
    assert [plan.positions(batch) for batch in range(plan.batches)] == [(0, 4), (4, 5), (5, 9), (9, 10)]
    assert updates_planned(plan, epochs=3, accumulate=1, max_updates=None) == 12
    assert updates_planned(plan, epochs=3, accumulate=1, max_updates=7) == 7
    assert (plan.grid, plan.merges, plan.drop_last) == ((2, 2), False, False)
    assert BatchPlan(10, 4).grid is None
