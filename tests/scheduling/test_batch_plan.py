"""Epochs cut into batches, and the seeds that every process computes by itself."""

import pickle
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import given as having
from hypothesis import strategies as st

from hogwild.scheduling.batch_plan import BatchPlan, EpochPlan, batch_seed, mix, permutation_seed, updates_planned
from hogwild.scheduling.grid_plan import LANES, LINE, Grid, GridPlan, Shape, balanced_cuts

PATIENT = settings(deadline=None)  # a busy machine is no failure
PLANS = st.builds(
    BatchPlan,
    samples=st.integers(1, 400),
    batch_size=st.integers(1, 70),
    drop_last=st.booleans(),
    merge_single=st.booleans(),
)


@PATIENT
@given(PLANS)
def test_the_batches_of_an_epoch_follow_each_other_without_gap_or_overlap(plan: BatchPlan) -> None:
    ranges = [plan.positions(batch) for batch in range(plan.batches)]
    assert all(first < last for first, last in ranges)
    assert all(left[1] == right[0] for left, right in pairwise(ranges))
    if ranges:
        assert ranges[0][0] == 0
        assert ranges[-1][1] == (plan.batches * plan.batch_size if plan.drop_last else plan.samples)


@PATIENT
@given(PLANS)
def test_only_less_than_one_batch_is_ever_dropped(plan: BatchPlan) -> None:
    left_out = plan.samples - plan.samples_in(0, plan.batches)
    assert left_out == (plan.samples % plan.batch_size if plan.drop_last else 0)


@PATIENT
@given(PLANS)
def test_the_buffer_size_is_the_size_of_the_largest_batch(plan: BatchPlan) -> None:
    sizes = [last - first for first, last in map(plan.positions, range(plan.batches))]
    assert max(sizes, default=plan.largest) == plan.largest
    assert all(size == plan.batch_size for size in sizes[:-1])


@PATIENT
@given(PLANS, st.data())
def test_samples_add_up_over_any_cut(plan: BatchPlan, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, plan.batches))
    assert plan.samples_in(0, cut) + plan.samples_in(cut, plan.batches) == plan.samples_in(0, plan.batches)


@PATIENT
@given(PLANS)
def test_with_merging_no_batch_holds_a_single_sample_unless_all_do(plan: BatchPlan) -> None:
    plan = BatchPlan(plan.samples, plan.batch_size, plan.drop_last, merge_single=True)
    sizes = [last - first for first, last in map(plan.positions, range(plan.batches))]
    assert 1 not in sizes or plan.batch_size == 1 or plan.samples == 1


@pytest.mark.parametrize(
    ("samples", "batch_size", "drop_last", "merge_single", "ranges"),
    [
        (9, 4, False, True, [(0, 4), (4, 9)]),  # the last one of a single sample is merged
        (9, 4, False, False, [(0, 4), (4, 8), (8, 9)]),
        (9, 4, True, True, [(0, 4), (4, 8)]),
        (10, 4, False, True, [(0, 4), (4, 8), (8, 10)]),  # two are enough
        (8, 4, False, True, [(0, 4), (4, 8)]),
        (5, 4, False, True, [(0, 5)]),
        (1, 4, False, True, [(0, 1)]),  # nothing to merge it into
        (3, 1, False, True, [(0, 1), (1, 2), (2, 3)]),  # asked for
        (3, 4, True, False, []),
        (3, 4, False, False, [(0, 3)]),
    ],
)
def test_the_last_batch_is_shorter_dropped_or_merged(
    samples: int, batch_size: int, drop_last: bool, merge_single: bool, ranges: list[tuple[int, int]]
) -> None:
    plan = BatchPlan(samples, batch_size, drop_last, merge_single)
    assert [plan.positions(batch) for batch in range(plan.batches)] == ranges


def test_seeds_differ_between_neighbouring_seeds_epochs_and_positions() -> None:
    cases = list(product(range(8), range(8), range(0, 640, 64)))
    seeds = {batch_seed(*case) for case in cases} | {permutation_seed(*case[:2]) for case in cases}
    assert len(seeds) == len(cases) + 64


def test_the_order_of_what_is_mixed_matters() -> None:
    assert mix(1, 2) != mix(2, 1)
    assert mix(0) != mix(0, 0)


def test_one_changed_bit_changes_about_half_of_the_seed() -> None:
    flipped = [(mix(7, 3, 0) ^ mix(7, 3, 1 << bit)).bit_count() for bit in range(64)]
    assert 29 <= sum(flipped) / len(flipped) <= 34  # 63 bits: 31.5 are expected
    assert min(flipped) >= 15


def test_every_bit_of_a_seed_is_set_half_of_the_time() -> None:
    values = [mix(1, number) for number in range(4000)]
    for bit in range(63):
        share = sum(value >> bit & 1 for value in values) / len(values)
        assert 0.45 < share < 0.55, f"bit {bit}"


@PATIENT
@given(st.lists(st.integers(-(2**80), 2**80), max_size=5))
def test_a_seed_is_one_that_torch_accepts(values: list[int]) -> None:
    assert 0 <= mix(*values) < 2**63


def test_a_seed_never_changes_between_versions() -> None:
    """A resumed run must go on with the permutation it began with."""
    assert permutation_seed(1, 0) == 7_902_066_661_516_118_081
    assert batch_seed(1, 0, 64) == 9_217_169_635_272_127_535


def test_mixing_is_the_published_splitmix64() -> None:
    """The first output of Vigna's splitmix64.c for seed 0 (xoshiro.di.unimi.it), without the lowest bit."""
    assert mix(0) == 0xE220A8397B1DCDAF >> 1


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
