"""Rows as values: each is read and written whole and alone, whatever its width."""

import ctypes
import mmap

import numpy as np
import pytest

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.kernels.compiling import kernel
from hogwild.kernels.simd import four, fused, load_row, of_width, part, root, splat_row, store_row, total, totals


def fenced(rows: int, width: int) -> list[np.ndarray]:
    """Return two tables: before one, and after the other, lies a page that nobody may read or write."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 3 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for fence in (start, start + 2 * page):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), page, 0) == 0
    offsets = (page, 2 * page - 4 * rows * width)
    return [np.frombuffer(memory, np.float32, rows * width, offset).reshape(rows, width) for offset in offsets]


@kernel
def _with_root(table, row, of):  # type: ignore[no-untyped-def]
    """Replace v by 3 v + its root; return its sum."""
    value = load_row(table, row, of)
    store_row(table, row, fused(value, splat_row(np.float32(3.0), of), root(value)))
    return total(value)


@pytest.mark.parametrize("width", [*range(1, 41), 50, 100, 128])
def test_a_row_is_read_and_written_whole_and_nothing_beside_it(width: int) -> None:
    for table in fenced(3, width):
        for row in range(3):
            table[:] = expected = np.full((3, width), np.nan, np.float32)
            table[row] = value = np.random.default_rng(row).uniform(1, 9, width).astype(np.float32)
            expected[row] = 3 * value + np.sqrt(value)
            assert _with_root(table, row, of_width(width)) == pytest.approx(value.sum(), rel=1e-5)
            np.testing.assert_allclose(table, expected, rtol=1e-6)


@kernel
def _sums_and_roots(table, of):  # type: ignore[no-untyped-def]
    sums = totals(load_row(table, 0, of), load_row(table, 1, of), load_row(table, 2, of), load_row(table, 3, of))
    roots = root(four(table[0, 0], table[1, 0], table[2, 0], table[3, 0]))
    return (part(sums, 0), part(sums, 1), part(sums, 2), part(sums, 3)), (
        part(roots, 0), part(roots, 1), part(roots, 2), part(roots, 3)
    )  # fmt: skip


@pytest.mark.parametrize("width", [3, 4, 5, 16, 17, 32])
def test_four_rows_are_added_up_and_four_roots_taken_at_once(width: int) -> None:
    table = np.random.default_rng(0).uniform(1, 9, (4, width)).astype(np.float32)
    sums, roots = _sums_and_roots(table, of_width(width))
    assert sums == pytest.approx(table.sum(axis=1), rel=1e-5)
    assert roots == pytest.approx(np.sqrt(table[:, 0]), rel=1e-6)
