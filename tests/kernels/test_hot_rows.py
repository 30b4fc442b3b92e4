"""Private copies of hot rows: which rows are worth one, and what a flush leaves in the shared memory."""

import numpy as np
import pytest

pytest.importorskip("numba")

from hogwild.kernels.hot_rows import HotRows
from hogwild.kernels.profile import HOT_BYTES, WHOLE_BYTES, choose_hot


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("rows", [[4, 1], [*range(6)]])
def test_a_flush_adds_what_was_learnt_and_brings_what_others_learnt(width: int, rows: list[int]) -> None:
    flat = np.arange(6 * width, dtype=np.float32).reshape(6, width)
    before = flat.copy()
    mine, theirs = (HotRows(flat, np.array(rows, np.int32)) for _ in range(2))
    mine.local[mine.slot[4]] += 10
    theirs.local[theirs.slot[[4, 1]]] += 100
    assert np.array_equal(flat, before)
    mine.flush()
    theirs.flush()
    mine.flush()
    before[4] += 110
    before[1] += 100
    assert np.array_equal(flat, before)
    for each in (mine, theirs):
        assert np.array_equal(each.local[each.slot[rows]], flat[rows])
    theirs.local[theirs.slot[1]] += 5
    theirs.refresh()
    theirs.flush()
    assert np.array_equal(flat, before)


def test_a_row_of_one_number_keeps_its_place_and_what_is_not_hot_is_nan() -> None:
    hot = HotRows(np.arange(5, dtype=np.float32).reshape(5, 1), np.array([3, 0], np.int32))
    assert hot.slot.tolist() == [0, -1, -1, 3, -1]
    np.testing.assert_array_equal(hot.local[:, 0], [0, np.nan, np.nan, 3, np.nan])


def power_law(rows: int, accesses: int) -> np.ndarray:
    """(rows,) int64 in no order: as words in texts, one in k of the k-th."""
    weights = 1.0 / np.arange(1, rows + 1)
    counts = (accesses * weights / weights.sum()).astype(np.int64)
    return np.random.default_rng(0).permutation(counts)


def test_the_most_frequent_rows_are_hot_and_never_more_than_a_cache_holds() -> None:
    counts = power_law(1_000_000, 50_000_000)
    for width in (4, 400):
        chosen = choose_hot(counts, 500_000, width)
        assert 0 < len(chosen.rows) <= HOT_BYTES // width and chosen.rows.dtype == np.int32
        assert len(set(chosen.rows.tolist())) == len(chosen.rows)
        rest = np.delete(counts, chosen.rows)
        assert counts[chosen.rows].min() >= rest.max()
        assert (np.diff(counts[chosen.rows]) <= 0).all()
        assert chosen.share == pytest.approx(counts[chosen.rows].sum() / counts.sum())
    assert len(choose_hot(counts, 500_000, 400).rows) == HOT_BYTES // 400


@pytest.mark.slow
def test_a_row_that_is_hardly_met_between_two_flushes_is_not_hot() -> None:
    counts = np.full(4_000_000, 10, np.int64)
    counts[[5, 7]] = 10_000_000, 9_000_000
    chosen = choose_hot(counts, 10_000_000, 4)
    assert chosen.rows.tolist() == [5, 7]
    assert chosen.text == "2 of 4,000,000 rows have private copies: 32% of all accesses"


def test_a_small_model_is_private_as_a_whole_and_a_flat_profile_has_nothing_hot() -> None:
    assert sorted(choose_hot(power_law(123, 10_000), 700, 4).rows.tolist()) == [*range(123)]
    assert len(choose_hot(np.full(WHOLE_BYTES, 3, np.int64), 10_000, 4).rows) == 0
    assert "none of" in choose_hot(np.full(WHOLE_BYTES, 3, np.int64), 10_000, 4).text
    assert len(choose_hot(np.zeros(9, np.int64), 0, 4).rows) == 0
