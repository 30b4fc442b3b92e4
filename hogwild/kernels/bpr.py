"""Bayesian personalised ranking (Rendle, Freudenthaler, Gantner and Schmidt-Thieme 2009): an item that a user has
should score higher than a random item that it does not have.

    x = item_bias[i] - item_bias[j] + users[u] . (items[i] - items[j]);   loss = log(1 + exp(-x))

j is drawn uniformly, again if the user has it. SGD and Adagrad; the race, the order in a chunk, `rates` and similar
arguments are as in `matrix_factorization.py`. A grid keeps workers out of each other's users. It
cannot keep them out of each other's items: j is any of all items, so two workers seldom write the same one.

    bounds (U+1,) int64, had (N,) int32: the items of user u are had[bounds[u]:bounds[u+1]], in ascending order"""

import numpy as np

from hogwild.kernels.compiling import inlined, is_finite, kernel
from hogwild.kernels.matrix_factorization import adagrad_bias, adagrad_number, in_turns
from hogwild.kernels.rng import STEP, below, mixed

TRIES = 16  # after so many draws the user has (nearly) every item: nothing can be learnt from it

_0, _1 = np.float32(0.0), np.float32(1.0)
_one = np.uint64(1)


@inlined
def has(had, first, last, j):  # type: ignore[no-untyped-def]
    """Return whether j is in had[first:last]."""
    while first < last:
        middle = (first + last) >> _one
        if had[middle] < j:
            first = middle + _one
        else:
            last = middle
    return first < np.uint64(len(had)) and had[first] == j


@inlined
def not_had(bounds, had, u, items, state):  # type: ignore[no-untyped-def]
    """Return one of `items` items that user u does not have, or -1 if TRIES draws found none: int64."""
    first, last = np.uint64(bounds[u]), np.uint64(bounds[u + _one])
    for _ in range(TRIES):
        state += STEP
        j = below(mixed(state), items)
        if not has(had, first, last, j):
            return j
    return np.int64(-1)


@inlined
def loss_and_slope(x):  # type: ignore[no-untyped-def]
    """Return (log(1 + exp(-x)), its derivative), float32."""
    small = np.exp(-abs(x))  # never overflows
    return np.log(_1 + small) + max(-x, _0), -(small if x >= _0 else _1) / (_1 + small)


@inlined
def margin(users, items, item_bias, u, i, j):  # type: ignore[no-untyped-def]
    """Return how much higher item i scores than item j."""
    x = _0
    for f in range(np.uint64(users.shape[1])):
        x += users[u, f] * (items[i, f] - items[j, f])
    return x + (item_bias[i] - item_bias[j])


@kernel
def sgd(rows, user, item, bounds, had, seed, users, items, item_bias, rates, decays):  # type: ignore[no-untyped-def]
    """Train on samples `rows` (n,) int64; return (sum of losses, samples applied, samples without a pair: users who
    have everything). users (U, k), items (I, k), item_bias (I,), float32. The draws depend only on `seed`, uint64, and
    the sample."""
    rate, other_rate, bias_rate = rates[0], rates[1], rates[3]
    keep, other_keep, bias_keep = _1 - rate * decays[0], _1 - other_rate * decays[1], _1 - bias_rate * decays[3]
    loss, applied, alone, half = 0.0, 0, 0, (len(rows) + 1) >> 1
    for n in range(len(rows)):
        at = np.uint64(rows[in_turns(n, half)])
        u, i = np.uint64(user[at]), np.uint64(item[at])
        drawn = not_had(bounds, had, u, len(items), mixed(seed ^ (at * STEP)))
        if drawn < 0:
            alone += 1
            continue
        j = np.uint64(drawn)
        x = margin(users, items, item_bias, u, i, j)
        lost, slope = loss_and_slope(x)
        if not is_finite(x):
            continue
        loss += lost
        applied += 1
        item_bias[i] = bias_keep * item_bias[i] - bias_rate * slope
        item_bias[j] = bias_keep * item_bias[j] + bias_rate * slope
        step, other_step = -rate * slope, -other_rate * slope
        for f in range(np.uint64(users.shape[1])):
            p, q, r = users[u, f], items[i, f], items[j, f]
            users[u, f] = keep * p + step * (q - r)
            items[i, f] = other_keep * q + other_step * p
            items[j, f] = other_keep * r - other_step * p
    return loss, applied, alone


@kernel
def adagrad(  # type: ignore[no-untyped-def]
    rows, user, item, bounds, had, seed, users, items, item_bias, user_sums, item_sums, item_bias_sums,
    rates, decays, epsilons,
):  # fmt: skip
    """Train as `sgd`, with a separate rate for each number."""
    rate, other_rate, decay, other_decay = rates[0], rates[1], decays[0], decays[1]
    epsilon, other_epsilon = epsilons[0], epsilons[1]
    loss, applied, alone, half = 0.0, 0, 0, (len(rows) + 1) >> 1
    for n in range(len(rows)):
        at = np.uint64(rows[in_turns(n, half)])
        u, i = np.uint64(user[at]), np.uint64(item[at])
        drawn = not_had(bounds, had, u, len(items), mixed(seed ^ (at * STEP)))
        if drawn < 0:
            alone += 1
            continue
        j = np.uint64(drawn)
        x = margin(users, items, item_bias, u, i, j)
        lost, slope = loss_and_slope(x)
        if not is_finite(x):
            continue
        loss += lost
        applied += 1
        adagrad_bias(item_bias, item_bias_sums, i, slope, rates[3], decays[3], epsilons[3])
        adagrad_bias(item_bias, item_bias_sums, j, -slope, rates[3], decays[3], epsilons[3])
        for f in range(np.uint64(users.shape[1])):
            p, q, r = users[u, f], items[i, f], items[j, f]
            adagrad_number(users, user_sums, u, f, slope * (q - r) + decay * p, rate, epsilon)
            adagrad_number(items, item_sums, i, f, slope * p + other_decay * q, other_rate, other_epsilon)
            adagrad_number(items, item_sums, j, f, other_decay * r - slope * p, other_rate, other_epsilon)
    return loss, applied, alone
