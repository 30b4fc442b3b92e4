"""Products of small matrices that stay in the cache, for kernels whose samples share their negatives.

Written for LLVM: blocks of 4 x 2 sums, which 16 vector registers hold (4 x 4 need 32: half the speed without
AVX-512), or 8 rows added to one, with contiguous inner loops over the width: 40 to 64 GFLOP/s on one core with 256-bit
vectors, where a BLAS has 46 to 80, and no copy of the rows that `c` names. One row is written at a time: with two, LLVM
could not prove that they differ, and would not vectorise. Queries and columns are padded to a multiple of BLOCK, the
width with zeros to a multiple of 16. `aligned` tables are a third faster: no load crosses a cache line."""

import numpy as np

from hogwild.kernels.compiling import inlined

BLOCK = 8
TILE = 128
_0 = np.float32(0.0)


def aligned(rows: int, width: int) -> np.ndarray:
    """Return zeros (rows, width) float32 that begin a cache line."""
    memory = np.zeros(rows * width + 16, np.float32)
    first = -memory.ctypes.data // 4 % 16
    return memory[first : first + rows * width].reshape(rows, width)


@inlined
def dots(Q, X, c, S, queries, candidates, width):  # type: ignore[no-untyped-def]
    """Set S[i, j] = Q[i] . X[c[j]]. The rows of TILE candidates stay in the second-level cache."""
    for first in range(0, candidates, TILE):
        last = min(candidates, first + TILE)
        for i in range(0, queries, 4):
            for j in range(first, last, 2):
                k0, k1 = c[j], c[j + 1]
                a0 = a1 = b0 = b1 = e0 = e1 = f0 = f1 = _0
                for d in range(width):
                    x0, x1 = X[k0, d], X[k1, d]
                    q0, q1, q2, q3 = Q[i, d], Q[i + 1, d], Q[i + 2, d], Q[i + 3, d]
                    a0 += q0 * x0
                    a1 += q0 * x1
                    b0 += q1 * x0
                    b1 += q1 * x1
                    e0 += q2 * x0
                    e1 += q2 * x1
                    f0 += q3 * x0
                    f1 += q3 * x1
                S[i, j], S[i, j + 1] = a0, a1
                S[i + 1, j], S[i + 1, j + 1] = b0, b1
                S[i + 2, j], S[i + 2, j + 1] = e0, e1
                S[i + 3, j], S[i + 3, j + 1] = f0, f1


@inlined
def mix(W, X, c, out, queries, candidates, width):  # type: ignore[no-untyped-def]
    """Add the sum over j of W[i, j] X[c[j]] to out[i]. Eight candidates stay in the first-level cache."""
    for j in range(0, candidates, 8):
        k0, k1, k2, k3, k4, k5, k6, k7 = c[j], c[j + 1], c[j + 2], c[j + 3], c[j + 4], c[j + 5], c[j + 6], c[j + 7]
        for i in range(queries):
            w0, w1, w2, w3 = W[i, j], W[i, j + 1], W[i, j + 2], W[i, j + 3]
            w4, w5, w6, w7 = W[i, j + 4], W[i, j + 5], W[i, j + 6], W[i, j + 7]
            for d in range(width):
                out[i, d] += (
                    w0 * X[k0, d] + w1 * X[k1, d] + w2 * X[k2, d] + w3 * X[k3, d]
                    + w4 * X[k4, d] + w5 * X[k5, d] + w6 * X[k6, d] + w7 * X[k7, d]
                )  # fmt: skip


@inlined
def mix_back(W, Q, c, out, queries, candidates, width):  # type: ignore[no-untyped-def]
    """Add the sum over i of W[i, j] Q[i] to out[c[j]]."""
    for first in range(0, candidates, TILE):
        last = min(candidates, first + TILE)
        for i in range(0, queries, 8):
            for j in range(first, last):
                k = c[j]
                w0, w1, w2, w3 = W[i, j], W[i + 1, j], W[i + 2, j], W[i + 3, j]
                w4, w5, w6, w7 = W[i + 4, j], W[i + 5, j], W[i + 6, j], W[i + 7, j]
                for d in range(width):
                    out[k, d] += (
                        w0 * Q[i, d] + w1 * Q[i + 1, d] + w2 * Q[i + 2, d] + w3 * Q[i + 3, d]
                        + w4 * Q[i + 4, d] + w5 * Q[i + 5, d] + w6 * Q[i + 6, d] + w7 * Q[i + 7, d]
                    )  # fmt: skip


@inlined
def clear(A, rows, width):  # type: ignore[no-untyped-def]
    """Set A[:rows, :width] = 0."""
    for k in range(rows):
        for d in range(width):
            A[k, d] = _0


@inlined
def squares(X, rows, out, width):  # type: ignore[no-untyped-def]
    """Set out[u] = |X[u]|^2."""
    for u in range(rows):
        total = _0
        for d in range(width):
            total += X[u, d] * X[u, d]
        out[u] = total
