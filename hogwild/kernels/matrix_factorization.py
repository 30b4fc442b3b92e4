"""Matrix factorisation: a rating is mean + user_bias[u] + item_bias[i] + users[u] . items[i] (Koren, Bell and Volinsky,
"Matrix factorization techniques for recommender systems", 2009). Squared loss; SGD, Adagrad, row-wise Adagrad.

    slope = 2 (predicted - rating)
    users[u] -= rate * (slope * items[i] + decay * users[u])         both with the rows as they were read; decay: L2,
    items[i] -= rate * (slope * users[u] + decay * items[i])         of the two rows that a rating touches

The race. Workers write the same words without a lock, and occasionally a write is lost: one gradient. Adagrad also
divides by the root of a sum that may go back to an older value. So a sum is read once, into a local, the worker's own
square is added there, and the step divides by the root of that local:

    local = sums[u, f] + g^2;   sums[u, f] = local;   users[u, f] -= rate * g / (sqrt(local) + eps)     |step| <= rate
    local = sums[u] + mean(g^2);   sums[u] = local;   step as above, one root for the row      ||step|| <= rate sqrt(k)

whatever others write. Dividing by the sum, read a second time, would give rate * g / eps if it is 0 by then.

Order. Neighbours in the data are ratings by one user, and each reads what the previous one wrote: a dependency of some
50 cycles, more than the arithmetic. So a chunk alternates between its first half and its second half: the dependency
halves, and the rows are still in the cache (k = 16, rows in the second-level cache: 54 million ratings per second
became 98). Four places were slower again.

`rates`, `decays`, `epsilons` are (4,) float32: of users, items, user_bias, item_bias. Row numbers are unsigned here:
for a signed one numba checks at every access whether it counts from the end."""

import numpy as np

from hogwild.kernels.compiling import inlined, is_finite, kernel
from hogwild.kernels.prefetch import ask_for

AHEAD = 8  # ratings: the row of an item is prefetched so many ratings ahead: 10 to 15 % faster

_0, _1, _2 = np.float32(0.0), np.float32(1.0), np.float32(2.0)


@inlined
def in_turns(n, half):  # type: ignore[no-untyped-def]
    """Return the place in a chunk of the n-th sample processed: 0, half, 1, half + 1, …; `half` is rounded up."""
    return np.uint64((n >> 1) + (n & 1) * half)


@inlined
def dot(left, a, right, b):  # type: ignore[no-untyped-def]
    """Return row a of `left` (., k) times row b of `right` (., k)."""
    z = _0
    for f in range(np.uint64(left.shape[1])):
        z += left[a, f] * right[b, f]
    return z


@inlined
def adagrad_number(values, sums, a, f, gradient, rate, epsilon):  # type: ignore[no-untyped-def]
    """Update one number of a table, dividing by the locally computed sum: see the race above."""
    total = sums[a, f] + gradient * gradient
    sums[a, f] = total
    values[a, f] -= rate * gradient / (np.sqrt(total) + epsilon)


@inlined
def adagrad_bias(values, sums, a, slope, rate, decay, epsilon):  # type: ignore[no-untyped-def]
    """Update a column of one number per row; a row's mean square is that number's square, so row-wise Adagrad is the
    same."""
    gradient = slope + decay * values[a]
    total = sums[a] + gradient * gradient
    sums[a] = total
    values[a] -= rate * gradient / (np.sqrt(total) + epsilon)


@inlined
def mean_square(slope, other, decay, own, product, k):  # type: ignore[no-untyped-def]
    """Return the mean square of slope * x + decay * y over the k numbers of rows with |x|^2 = other, |y|^2 = own, x . y
    = product. Clamped to 0 against rounding."""
    return max(_0, slope * slope * other + decay * (_2 * slope * product + decay * own)) / k


@kernel
def sgd(rows, user, item, rating, users, items, user_bias, item_bias, mean, rates, decays):  # type: ignore[no-untyped-def]
    """Train on ratings `rows` (n,) int64; return (sum of losses, ratings applied). users (U, k), items (I, k),
    user_bias (U,), item_bias (I,), all float32. A rating whose slope is not finite is not applied."""
    rate, other_rate, bias_rate, other_bias_rate = rates[0], rates[1], rates[2], rates[3]
    keep, other_keep = _1 - rate * decays[0], _1 - other_rate * decays[1]
    bias_keep, other_bias_keep = _1 - bias_rate * decays[2], _1 - other_bias_rate * decays[3]
    loss, applied, half = 0.0, 0, (len(rows) + 1) >> 1
    for n in range(len(rows)):
        at = np.uint64(rows[in_turns(n, half)])
        if n + AHEAD < len(rows):
            ask_for(items, item[np.uint64(rows[in_turns(n + AHEAD, half)])])
        u, i = np.uint64(user[at]), np.uint64(item[at])
        bias, other_bias = user_bias[u], item_bias[i]
        error = dot(users, u, items, i) + (bias + other_bias + mean - rating[at])
        slope = _2 * error
        if not is_finite(slope):
            continue
        loss += error * error
        applied += 1
        user_bias[u] = bias_keep * bias - bias_rate * slope
        item_bias[i] = other_bias_keep * other_bias - other_bias_rate * slope
        step, other_step = -rate * slope, -other_rate * slope
        for f in range(np.uint64(users.shape[1])):
            p, q = users[u, f], items[i, f]
            users[u, f] = keep * p + step * q
            items[i, f] = other_keep * q + other_step * p
    return loss, applied


@kernel
def adagrad(  # type: ignore[no-untyped-def]
    rows, user, item, rating, users, items, user_bias, item_bias,
    user_sums, item_sums, user_bias_sums, item_bias_sums, mean, rates, decays, epsilons,
):  # fmt: skip
    """Train as `sgd`, with a separate rate for each number (Duchi, Hazan and Singer 2011). Sums have the shapes of
    their tables."""
    loss, applied, half = 0.0, 0, (len(rows) + 1) >> 1
    rate, other_rate, decay, other_decay = rates[0], rates[1], decays[0], decays[1]
    epsilon, other_epsilon = epsilons[0], epsilons[1]
    for n in range(len(rows)):
        at = np.uint64(rows[in_turns(n, half)])
        u, i = np.uint64(user[at]), np.uint64(item[at])
        error = dot(users, u, items, i) + (user_bias[u] + item_bias[i] + mean - rating[at])
        slope = _2 * error
        if not is_finite(slope):
            continue
        loss += error * error
        applied += 1
        adagrad_bias(user_bias, user_bias_sums, u, slope, rates[2], decays[2], epsilons[2])
        adagrad_bias(item_bias, item_bias_sums, i, slope, rates[3], decays[3], epsilons[3])
        for f in range(np.uint64(users.shape[1])):
            p, q = users[u, f], items[i, f]
            adagrad_number(users, user_sums, u, f, slope * q + decay * p, rate, epsilon)
            adagrad_number(items, item_sums, i, f, slope * p + other_decay * q, other_rate, other_epsilon)
    return loss, applied


@kernel
def row_adagrad(  # type: ignore[no-untyped-def]
    rows, user, item, rating, users, items, user_bias, item_bias,
    user_sums, item_sums, user_bias_sums, item_bias_sums, mean, rates, decays, epsilons,
):  # fmt: skip
    """Train as `sgd`, with a separate rate for each row. user_sums (U,), item_sums (I,)."""
    loss, applied, half, k = 0.0, 0, (len(rows) + 1) >> 1, np.float32(users.shape[1])
    rate, other_rate, decay, other_decay = rates[0], rates[1], decays[0], decays[1]
    for n in range(len(rows)):
        at = np.uint64(rows[in_turns(n, half)])
        if n + AHEAD < len(rows):
            ask_for(items, item[np.uint64(rows[in_turns(n + AHEAD, half)])])
        u, i = np.uint64(user[at]), np.uint64(item[at])
        z, own, other = _0, _0, _0
        for f in range(np.uint64(users.shape[1])):
            p, q = users[u, f], items[i, f]
            z += p * q
            own += p * p
            other += q * q
        error = z + (user_bias[u] + item_bias[i] + mean - rating[at])
        slope = _2 * error
        total = user_sums[u] + mean_square(slope, other, decay, own, z, k)
        other_total = item_sums[i] + mean_square(slope, own, other_decay, other, z, k)
        if not is_finite(slope + total + other_total):  # an infinite sum would never recover
            continue
        loss += error * error
        applied += 1
        user_sums[u] = total
        item_sums[i] = other_total
        adagrad_bias(user_bias, user_bias_sums, u, slope, rates[2], decays[2], epsilons[2])
        adagrad_bias(item_bias, item_bias_sums, i, slope, rates[3], decays[3], epsilons[3])
        step, other_step = rate / (np.sqrt(total) + epsilons[0]), other_rate / (np.sqrt(other_total) + epsilons[1])
        keep, other_keep = _1 - step * decay, _1 - other_step * other_decay
        step, other_step = -step * slope, -other_step * slope
        for f in range(np.uint64(users.shape[1])):
            p, q = users[u, f], items[i, f]
            users[u, f] = keep * p + step * q
            items[i, f] = other_keep * q + other_step * p
    return loss, applied
