"""Compiled rules for sparse gradients: the rows a batch touched, and what the optimizer keeps beside them, are read,
changed and written where they lie.

A gradient is what autograd gives: `indices` (n,) int64 and `values` (n, D) float32, a row of a table as often as the
batch looked it up. `factor` multiplies it (clipping, and -1 to maximize). Where a rule is linear (SGD) each occurrence
is applied for itself; elsewhere the occurrences are summed first, in their order, through a hash table as large as the
batch: a table's own size costs nothing.

Operations are those of torch's rules, each rounded (`exact_kernel`): SGD has torch's bits. The others are as near as
two roundings of the same sum: torch sums three occurrences in the order of a sort that is not stable, and its root is
MKL's, which is off by one in the last place now and then; here it is the nearest number.

The race. Others read and write the same words, without a lock, between any two of these statements. A rule reads each
word once, into a local; what it divides by is computed from that local and contains its own gradient, so that whatever
others write or lose, in units of the rate:

    adagrad       s >= g^2                         |update| <= 1
    row_adagrad   s >= mean of the row's g^2       |update of a row| <= sqrt(D)
    lazy_adam     v >= (1-b2) g^2, v >= c m^2      |update| <= 1 / sqrt(c), times the bias correction

v >= c m^2 is about two words read at different times: it is enforced on the locals (`shared_rules.least_ratio`, `floor`
for what small numbers lose); with one worker it never binds."""

import numpy as np

from hogwild.kernels.compiling import exact, exact_kernel, kernel
from hogwild.kernels.prefetch import ask_for, fused_product

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: Knuth, The Art of Computer Programming 3, 6.4
_64 = np.uint64(64)
AHEAD = 6  # rows: of three tables' lines more are not in flight at once


@exact_kernel
def linked(indices, size, links):  # type: ignore[no-untyped-def]
    """Chains the occurrences of each row, as they come. `links` (4, 2^b) int32, 2^b >= 2n: `links[0, u]` is the first
    occurrence of row number u, `links[2, i]` the one after i, or -1. Answers how many rows there are; -1 where one is
    outside [0, size)."""
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
    """total (D,) = the gradient of row number u, times `factor`."""
    i = links[0, u]
    for k in range(values.shape[1]):
        total[k] = values[i, k] * factor
    i = links[2, i]
    while i >= 0:
        for k in range(values.shape[1]):
            total[k] += values[i, k] * factor
        i = links[2, i]


@exact_kernel
def sgd(param, indices, values, factor, rate):  # type: ignore[no-untyped-def]
    """Answers whether all indices are inside the parameter; where one is not, nothing was done."""
    for i in range(len(indices)):
        if indices[i] < 0 or indices[i] >= param.shape[0]:
            return False
    for i in range(len(indices)):
        row = indices[i]
        if i + AHEAD < len(indices):
            ask_for(param, indices[i + AHEAD])
        for k in range(param.shape[1]):
            param[row, k] = fused_product(-rate, values[i, k] * factor, param[row, k])
    return True


# The others take chains of `linked`, and rows numbered [0, count). `total` (D,) is where a row's gradient is summed.


@exact_kernel
def adagrad(param, sums, indices, values, factor, links, count, total, rate, eps):  # type: ignore[no-untyped-def]
    for u in range(count):
        row = indices[links[0, u]]
        if u + AHEAD < count:
            later = indices[links[0, u + AHEAD]]
            ask_for(param, later)
            ask_for(sums, later)
        summed(values, factor, links, u, total)
        for k in range(param.shape[1]):
            g = total[k]
            s = sums[row, k] + g * g  # the one reading: what is divided by holds g, whatever others write
            sums[row, k] = s
            param[row, k] = fused_product(-rate, g / (np.sqrt(s) + eps), param[row, k])


@exact_kernel
def lazy_adam(  # type: ignore[no-untyped-def]
    param,
    means,
    squares,
    indices,
    values,
    factor,
    links,
    count,
    total,
    rate,
    eps,
    one_minus_1,
    one_minus_2,
    least,
    floor,
):
    """`rate`: with the bias correction of this step. `one_minus_1`, `one_minus_2`: 1 - beta1, 1 - beta2."""
    for u in range(count):
        row = indices[links[0, u]]
        if u + AHEAD < count:
            later = indices[links[0, u + AHEAD]]
            ask_for(param, later)
            ask_for(means, later)
            ask_for(squares, later)
        summed(values, factor, links, u, total)
        for k in range(param.shape[1]):
            g = total[k]
            m = means[row, k]
            v = squares[row, k]
            # The two may be of different ages, and are not read again: v >= c m^2 holds from here on.
            bound = least * m * m - floor
            v = bound if bound > v else v
            m = (g - m) * one_minus_1 + m
            v = (g * g - v) * one_minus_2 + v
            squares[row, k] = v  # before m: who reads in between finds m the older one
            means[row, k] = m
            param[row, k] += -rate * (m / (np.sqrt(v) + eps))


@kernel
def row_adagrad(param, sums, indices, values, factor, links, count, total, rate, eps, decay):  # type: ignore[no-untyped-def]
    """`sums` (R,)."""
    dim = param.shape[1]
    for u in range(count):
        row = indices[links[0, u]]
        if u + AHEAD < count:
            ask_for(param, indices[links[0, u + AHEAD]])
        summed(values, factor, links, u, total)
        if decay != 0:
            for k in range(dim):
                total[k] += decay * param[row, k]
        square = np.float32(0)
        for k in range(dim):
            square += total[k] * total[k]
        s = sums[row] + square / np.float32(dim)  # the one reading
        sums[row] = s
        step = rate / (np.sqrt(s) + eps)
        for k in range(dim):
            param[row, k] -= step * total[k]


@kernel
def squared_norm(values, links, count, total):  # type: ignore[no-untyped-def]
    """The sum of squares of the gradient, its rows summed, float64."""
    square = 0.0
    for u in range(count):
        summed(values, np.float32(1), links, u, total)
        for k in range(values.shape[1]):
            square += np.float64(total[k]) * np.float64(total[k])
    return square
