"""Products of small matrices, with the vectors of this processor and with 256-bit ones. Run as a script it checks them
in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.kernels.compiling import kernel
from hogwild.kernels.knowledge_graph import dots, mix
from hogwild.kernels.simd import NATIVE, zeros_on_lines
from tests.helpers.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
SHAPES = [(8, 8, 16), (16, 40, 32), (40, 136, 48), (128, 264, 208)]  # queries, candidates, width


@kernel
def _dots(Q, X, chosen, S, width):  # type: ignore[no-untyped-def]
    dots(Q, X, chosen, S, len(Q), len(chosen), width)


@kernel
def _mix(W, X, chosen, out, targets, width):  # type: ignore[no-untyped-def]
    mix(W, X, chosen, out, targets, len(targets), len(chosen), width)


def table(random: np.random.Generator, rows: int, width: int) -> np.ndarray:
    """Normally distributed numbers on cache lines, in rows that are 16 longer: what is beyond is NaN."""
    made = zeros_on_lines(rows, width + 16)
    made[:] = np.nan
    made[:, :width] = random.normal(size=(rows, width))
    return made


def check(queries: int, candidates: int, width: int) -> None:
    """Compare `dots` and `mix` with sums in float64. A row is chosen, and written, more than once."""
    random = np.random.default_rng(queries)
    Q, X, S = (table(random, *shape) for shape in ((queries, width), (candidates, width), (queries, candidates)))
    chosen, every = random.integers(candidates // 2, size=candidates), np.arange(max(queries, candidates))
    _dots(Q, X, chosen, S, width)
    exact = [one.astype(np.float64) for one in (Q[:, :width], X[:, :width])]
    np.testing.assert_allclose(S[:, :candidates], exact[0] @ exact[1][chosen].T, atol=2e-6 * width)
    S[:, :candidates] = weights = random.normal(size=(queries, candidates))
    mixed, back = table(random, queries, width), table(random, candidates, width)
    expected = mixed[:, :width] + weights @ exact[1][chosen], back[:, :width].astype(np.float64)
    np.add.at(expected[1], chosen, weights.T @ exact[0])
    _mix(S, X, chosen, mixed, every[:queries], width)
    _mix(S.T, Q, every[:queries], back, chosen, width)
    for found, one in zip((mixed, back), expected, strict=True):
        np.testing.assert_allclose(found[:, :width], one, atol=1e-5 * candidates)
        assert np.isnan(found[:, width:]).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_products_are_right_whatever_the_number_of_vectors_in_a_row(shape: tuple[int, int, int]) -> None:
    check(*shape)


@pytest.mark.processes
def test_they_are_right_with_vectors_of_256_bits() -> None:
    environment = {**os.environ, "NUMBA_CPU_FEATURES": "-avx512f", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, __file__], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr[-4000:]


if __name__ == "__main__":
    for shape in SHAPES:
        check(*shape)
    print(NATIVE)
