"""Products of small matrices that stay in the cache, for kernels whose samples share their negatives.

A block of 4 x 2 vectors of sums stays in registers, of which 16 are enough: eight sums that do not wait for each other
keep both of a core's multipliers busy. With 512-bit vectors 90 to 130 GFLOP/s on one core (a BLAS, which copies the
rows first: 150), with 256-bit ones 55 to 70; LLVM's own loops have 45 to 70 with either. Queries and candidates are
padded to a multiple of BLOCK, the width with zeros to a multiple of 16; tables begin a cache line (`zeros_on_lines`),
or loads cross one."""

import numpy as np

from hogwild.kernels.compiling import inlined
from hogwild.kernels.simd import NATIVE, fused, load_native, part, splat_native, store_native, totals

BLOCK = 8
TILE = 128
_0 = np.float32(0.0)


@inlined
def dots(Q, X, c, S, queries, candidates, width):  # type: ignore[no-untyped-def]
    """Set S[i, j] = Q[i] . X[c[j]]. The rows of TILE candidates stay in the second-level cache."""
    for first in range(0, candidates, TILE):
        last = min(candidates, first + TILE)
        for i in range(0, queries, 4):
            for j in range(first, last, 2):
                k0, k1 = c[j], c[j + 1]
                a0 = a1 = b0 = b1 = e0 = e1 = f0 = f1 = splat_native(_0)
                for d in range(0, width, NATIVE):
                    x0, x1 = load_native(X, k0, d), load_native(X, k1, d)
                    q0, q1 = load_native(Q, i, d), load_native(Q, i + 1, d)
                    q2, q3 = load_native(Q, i + 2, d), load_native(Q, i + 3, d)
                    a0, a1 = fused(q0, x0, a0), fused(q0, x1, a1)
                    b0, b1 = fused(q1, x0, b0), fused(q1, x1, b1)
                    e0, e1 = fused(q2, x0, e0), fused(q2, x1, e1)
                    f0, f1 = fused(q3, x0, f0), fused(q3, x1, f1)
                s0, s1 = totals(a0, b0, e0, f0), totals(a1, b1, e1, f1)
                S[i, j], S[i, j + 1] = part(s0, 0), part(s1, 0)
                S[i + 1, j], S[i + 1, j + 1] = part(s0, 1), part(s1, 1)
                S[i + 2, j], S[i + 2, j + 1] = part(s0, 2), part(s1, 2)
                S[i + 3, j], S[i + 3, j + 1] = part(s0, 3), part(s1, 3)


@inlined
def mix(W, X, chosen, out, targets, rows, terms, width):  # type: ignore[no-untyped-def]
    """Add the sum over j of W[i, j] X[chosen[j]] to out[targets[i]], for `rows` i and `terms` j. A target may be named
    more than once. A strip of TILE rows of X stays in the first-level cache."""
    for first in range(0, terms, TILE):
        last = min(terms, first + TILE)
        for d in range(0, width - NATIVE, 2 * NATIVE):
            e = d + NATIVE
            for i in range(0, rows, 4):
                a0 = a1 = b0 = b1 = e0 = e1 = f0 = f1 = splat_native(_0)
                for place in range(first, last):
                    j = np.uint64(place)  # which cannot mean a place from the end
                    x0, x1 = load_native(X, chosen[j], d), load_native(X, chosen[j], e)
                    w0, w1 = splat_native(W[i, j]), splat_native(W[i + 1, j])
                    w2, w3 = splat_native(W[i + 2, j]), splat_native(W[i + 3, j])
                    a0, a1 = fused(w0, x0, a0), fused(w0, x1, a1)
                    b0, b1 = fused(w1, x0, b0), fused(w1, x1, b1)
                    e0, e1 = fused(w2, x0, e0), fused(w2, x1, e1)
                    f0, f1 = fused(w3, x0, f0), fused(w3, x1, f1)
                _add(out, targets, i, d, a0, b0, e0, f0)
                _add(out, targets, i, e, a1, b1, e1, f1)
        if width % (2 * NATIVE):
            d = width - NATIVE
            for i in range(0, rows, 4):
                a0 = b0 = e0 = f0 = splat_native(_0)
                for place in range(first, last):
                    j = np.uint64(place)  # which cannot mean a place from the end
                    x0 = load_native(X, chosen[j], d)
                    a0, b0 = fused(splat_native(W[i, j]), x0, a0), fused(splat_native(W[i + 1, j]), x0, b0)
                    e0, f0 = fused(splat_native(W[i + 2, j]), x0, e0), fused(splat_native(W[i + 3, j]), x0, f0)
                _add(out, targets, i, d, a0, b0, e0, f0)


@inlined
def _add(out, targets, i, d, v0, v1, v2, v3):  # type: ignore[no-untyped-def]
    """Add four vectors to the rows targets[i], targets[i + 1], ..., one after the other: two may be the same."""
    k0, k1, k2, k3 = targets[i], targets[i + 1], targets[i + 2], targets[i + 3]
    store_native(out, k0, d, load_native(out, k0, d) + v0)
    store_native(out, k1, d, load_native(out, k1, d) + v1)
    store_native(out, k2, d, load_native(out, k2, d) + v2)
    store_native(out, k3, d, load_native(out, k3, d) + v3)


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
