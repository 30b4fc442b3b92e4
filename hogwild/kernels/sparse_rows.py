"""Compiled optimizer rules for sparse gradients: the rows that a batch touched, and their optimizer state, are updated
in place.

A gradient comes from autograd: `indices` (n,) int64 and `values` (n, D) float32, a row of a table as often as the batch
looked it up. `factor` multiplies it (clipping, and -1 to maximize). With a linear rule (SGD) each occurrence is applied
separately; otherwise the occurrences are summed first, in their order, through a hash table as large as the batch: the
size of the parameter's table does not matter.

Operations are those of torch's rules, each rounded (`exact_kernel`): SGD equals torch to the bit. The others differ by
rounding only: torch sums three occurrences in the order of an unstable sort, and uses MKL's root, which is sometimes
off by one in the last place; here it is correctly rounded.

The race. Other workers read and write the same words, without a lock, between any two of these statements. A rule reads
each word once, into a local; the divisor is computed from that local and includes the rule's own gradient. So whatever
others write or lose, in units of the rate:

    adagrad       s >= g^2                         |update| <= 1
    row_adagrad   s >= mean of the row's g^2       |update of a row| <= sqrt(D)
    lazy_adam     v >= (1-b2) g^2, v >= c m^2      |update| <= 1 / sqrt(c), times the bias correction
    ftrl          s >= g^2, |z| <= l1              |update| <= 1

v >= c m^2 relates two words read at different times: it is enforced on the locals (`shared_rules.least_ratio`; `floor`
for the rounding of small numbers); with one worker it never applies."""

import numpy as np

from hogwild.kernels.compiling import exact, exact_kernel, kernel
from hogwild.kernels.simd import LINE, ask_for, fused_product
from hogwild.kernels.steps import ftrl_step

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: Knuth, The Art of Computer Programming 3, 6.4
_64 = np.uint64(64)
LINES_AHEAD = 96  # cache lines of all tables together that are asked for before they are used


@exact_kernel
def linked(indices, size, links):  # type: ignore[no-untyped-def]
    """Chain the occurrences of each row, in order. `links` (4, 2^b) int32, 2^b >= 2n: `links[0, u]` is the first
    occurrence of row number u, `links[2, i]` the one after i, or -1. Return the number of rows; -1 if one is outside
    [0, size)."""
    first, last, after, table = links[0], links[1], links[2], links[3]
    bits = 3
    while (1 << bits) < 2 * len(indices):
        bits += 1
    shift, mask = _64 - np.uint64(bits), (1 << bits) - 1
    table[: mask + 1] = -1
    count = 0
    for i in range(len(indices)):
        row = indices[i]
        if row < 0 or row >= size:
            return -1
        after[i] = -1
        slot = np.int64((np.uint64(row) * _GOLDEN) >> shift)
        while table[slot] >= 0 and indices[first[table[slot]]] != row:
            slot = (slot + 1) & mask
        u = table[slot]
        if u < 0:
            u = count
            count += 1
            table[slot] = u
            first[u] = i
        else:
            after[last[u]] = i
        last[u] = i
    return count


@exact
def summed(values, factor, links, u, total):  # type: ignore[no-untyped-def]
    """Set total (D,) to the gradient of row number u, times `factor`."""
    i = links[0, u]
    for k in range(values.shape[1]):
        total[k] = values[i, k] * factor
    i = links[2, i]
    while i >= 0:
        for k in range(values.shape[1]):
            total[k] += values[i, k] * factor
        i = links[2, i]


@exact
def rows_ahead(tables, width):  # type: ignore[no-untyped-def]
    """Return how many rows of each of so many tables are prefetched. Too few, and each row is waited for; too many, and
    the first ones have left the cache again."""
    return max(1, LINES_AHEAD // (tables * ((width + LINE - 1) // LINE)))


@exact_kernel
def sgd(param, indices, values, factor, rate):  # type: ignore[no-untyped-def]
    """Apply SGD; return whether all indices are inside the parameter. If one is not, nothing was changed."""
    for i in range(len(indices)):
        if indices[i] < 0 or indices[i] >= param.shape[0]:
            return False
    ahead = rows_ahead(1, param.shape[1])
    for i in range(len(indices)):
        row = indices[i]
        if i + ahead < len(indices):
            ask_for(param, indices[i + ahead])
        for k in range(param.shape[1]):
            param[row, k] = fused_product(-rate, values[i, k] * factor, param[row, k])
    return True


# The other rules take the chains from `linked`, and rows numbered [0, count). `total` (D,) is scratch for a row's sum.


@exact_kernel
def adagrad(param, sums, indices, values, factor, links, count, total, rate, eps):  # type: ignore[no-untyped-def]
    ahead = rows_ahead(2, param.shape[1])
    for u in range(count):
        row = indices[links[0, u]]
        if u + ahead < count:
            later = indices[links[0, u + ahead]]
            ask_for(param, later)
            ask_for(sums, later)
        summed(values, factor, links, u, total)
        for k in range(param.shape[1]):
            g = total[k]
            s = sums[row, k] + g * g  # read once: the divisor includes g, whatever others write
            sums[row, k] = s
            param[row, k] = fused_product(-rate, g / (np.sqrt(s) + eps), param[row, k])


@exact_kernel
def lazy_adam(  # type: ignore[no-untyped-def]
    param, means, squares, indices, values, factor, links, count, total,
    rate, eps, one_minus_1, one_minus_2, least, floor,
):  # fmt: skip
    """Apply lazy Adam. `rate` includes this step's bias correction. `one_minus_1`, `one_minus_2`: 1 - beta1, 1 -
    beta2."""
    ahead = rows_ahead(3, param.shape[1])
    for u in range(count):
        row = indices[links[0, u]]
        if u + ahead < count:
            later = indices[links[0, u + ahead]]
            ask_for(param, later)
            ask_for(means, later)
            ask_for(squares, later)
        summed(values, factor, links, u, total)
        for k in range(param.shape[1]):
            g = total[k]
            m = means[row, k]
            v = squares[row, k]
            # The two may have different ages, and are not read again: v >= c m^2 holds from here on.
            bound = least * m * m - floor
            v = bound if bound > v else v
            m = (g - m) * one_minus_1 + m
            v = (g * g - v) * one_minus_2 + v
            squares[row, k] = v  # before m: a reader in between finds the older m
            means[row, k] = m
            param[row, k] += -rate * (m / (np.sqrt(v) + eps))


@kernel
def row_adagrad(param, sums, indices, values, factor, links, count, total, rate, eps, decay):  # type: ignore[no-untyped-def]
    """Apply row-wise Adagrad; `sums` (R,)."""
    dim = param.shape[1]
    ahead = rows_ahead(1, param.shape[1])
    for u in range(count):
        row = indices[links[0, u]]
        if u + ahead < count:
            ask_for(param, indices[links[0, u + ahead]])
        summed(values, factor, links, u, total)
        if decay != 0:
            for k in range(dim):
                total[k] += decay * param[row, k]
        square = np.float32(0)
        for k in range(dim):
            square += total[k] * total[k]
        s = sums[row] + square / np.float32(dim)  # read once
        sums[row] = s
        step = rate / (np.sqrt(s) + eps)
        for k in range(dim):
            param[row, k] -= step * total[k]


@kernel
def ftrl(param, sums, far, indices, values, factor, links, count, total, rate, more, l1):  # type: ignore[no-untyped-def]
    """Apply FTRL-proximal; `far` (R, D) is its z, `more` is beta + rate l2."""
    ahead = rows_ahead(3, param.shape[1])
    for u in range(count):
        row = indices[links[0, u]]
        if u + ahead < count:
            later = indices[links[0, u + ahead]]
            ask_for(param, later)
            ask_for(sums, later)
            ask_for(far, later)
        summed(values, factor, links, u, total)
        for k in range(param.shape[1]):
            g = total[k]
            s = sums[row, k] + g * g  # read once
            sums[row, k] = s
            param[row, k], far[row, k] = ftrl_step(param[row, k], g, s, far[row, k], rate, more, l1)


@kernel
def square(values):  # type: ignore[no-untyped-def]
    """Return the sum of squares of all values (n, D), float32: not finite if one of them is not."""
    flat, total = values.reshape(-1), np.float32(0)
    for n in range(len(flat)):  # not `for value in flat`, which LLVM does not vectorise: fifty times as slow
        total += flat[n] * flat[n]
    return total


@kernel
def squared_norm(values, links, count, total):  # type: ignore[no-untyped-def]
    """Return the sum of squares of the gradient, with each row's occurrences summed, float64."""
    square = 0.0
    for u in range(count):
        summed(values, np.float32(1), links, u, total)
        for k in range(values.shape[1]):
            square += np.float64(total[k]) * np.float64(total[k])
    return square
