"""Epochs cut into batches, and the seeds that every process computes by itself."""

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.scheduling.batch_plan import BatchPlan, batch_seed, mix, permutation_seed

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
