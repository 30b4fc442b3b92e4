"""Pairwise ranking: an item i that a user has should score higher than an item j that it does not have.

    x = item_bias[i] - item_bias[j] + users[u] . (items[i] - items[j])
    BPR: loss = log(1 + exp(-x)), j is random (Rendle, Freudenthaler, Gantner and Schmidt-Thieme 2009)
    WARP: loss = H(rank) max(0, 1 - x), j is the first of at most `tries` random ones with x < 1, the n-th; the rank is
    estimated as (items that the user does not have) / n (Weston, Bengio and Usunier, "WSABIE", 2011); H(r) = 1 + 1/2 +
    ... + 1/r. Without such a j nothing changes.

j is drawn uniformly from the items of the training data, again if the user has it. With `alpha`, a pair has the weight
1 + alpha * rating (Hu, Koren and Volinsky 2008). SGD and Adagrad; the race, the order in a chunk, `rates` and similar
arguments are as in `matrix_factorization.py`. Pairs come in random order, and there is no grid, which could not keep
workers out of each other's items: j is any of all items. Of few items each worker has private copies; of many, two
workers seldom write the same one.

    bounds (U+1,) int64, had (N,) int32: the items of user u are had[bounds[u]:bounds[u+1]], in ascending order
    drawable (D,) int32: the items of the training data
    tries: 0 for BPR"""

import numpy as np

from hogwild.kernels.compiling import inlined, is_finite, kernel
from hogwild.kernels.matrix_factorization import adagrad_bias, adagrad_number, in_turns
from hogwild.kernels.rng import STEP, below, mixed
from hogwild.kernels.steps import ADAGRAD

TRIES = 16  # after so many draws the user has (nearly) every item: nothing can be learnt from it
HALF, EULER = np.float32(0.5), np.float32(0.57722)

_0, _1 = np.float32(0.0), np.float32(1.0)
_one = np.uint64(1)


@inlined
def has(had, first, last, j):  # type: ignore[no-untyped-def]
    """Return whether j is in had[first:last]."""
    stop = last
    while first < last:
        middle = (first + last) >> _one
        if had[middle] < j:
            first = middle + _one
        else:
            last = middle
    return first < stop and had[first] == j


@inlined
def not_had(bounds, had, drawable, u, state):  # type: ignore[no-untyped-def]
    """Return an item that user u does not have, or -1 if TRIES draws found none: int64."""
    first, last = np.uint64(bounds[u]), np.uint64(bounds[u + _one])
    for _ in range(TRIES):
        state += STEP
        j = np.int64(drawable[np.uint64(below(mixed(state), len(drawable)))])
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


@inlined
def rank_weight(bounds, drawable, u, draws):  # type: ignore[no-untyped-def]
    """Return H(the rank estimated from so many draws), at most 2 % less."""
    rank = max(1, (len(drawable) - (bounds[u + _one] - bounds[u])) // draws)
    return np.log(np.float32(rank) + HALF) + EULER


@inlined
def pair(bounds, had, drawable, tries, u, i, state, users, items, item_bias):  # type: ignore[no-untyped-def]
    """Return (j, margin, loss, slope): j is -1 if user u has (nearly) everything; the slope is 0 if nothing is to be
    learnt."""
    j = not_had(bounds, had, drawable, u, state)
    if j < 0:
        return j, _0, _0, _0
    x = margin(users, items, item_bias, u, i, np.uint64(j))
    if tries == 0:
        lost, slope = loss_and_slope(x)
        return j, x, lost, slope
    draws = 1
    while x >= _1 and draws < tries:
        other = not_had(bounds, had, drawable, u, state + np.uint64(draws * TRIES) * STEP)
        if other >= 0:
            j = other
            x = margin(users, items, item_bias, u, i, np.uint64(j))
        draws += 1
    if x >= _1:
        return j, x, _0, _0
    weight = rank_weight(bounds, drawable, u, draws)
    return j, x, weight * (_1 - x), -weight


@inlined
def move(table, sums, row, f, gradient, rate, epsilon, rule):  # type: ignore[no-untyped-def]
    if len(rule) == ADAGRAD:
        adagrad_number(table, sums, row, f, gradient, rate, epsilon)
    else:
        table[row, f] -= rate * gradient


@inlined
def move_bias(table, sums, row, slope, rate, decay, epsilon, rule):  # type: ignore[no-untyped-def]
    if len(rule) == ADAGRAD:
        adagrad_bias(table, sums, row, slope, rate, decay, epsilon)
    else:
        table[row] -= rate * (slope + decay * table[row])


@kernel
def train(  # type: ignore[no-untyped-def]
    rows, user, item, rating, bounds, had, drawable, seed, tries, alpha, users, items, item_bias,
    user_sums, item_sums, item_bias_sums, rates, decays, epsilons, rule,
):  # fmt: skip
    """Train on samples `rows` (n,) int64; return (sum of losses, samples applied, samples without a pair: users who
    have everything). users (U, k), items (I, k), item_bias (I,), float32; sums have the shapes of their tables, SGD
    reads none. `rule`: `steps.py`. The draws depend only on `seed`, uint64, and the sample."""
    rate, other_rate, decay, other_decay = rates[0], rates[1], decays[0], decays[1]
    epsilon, other_epsilon = epsilons[0], epsilons[1]
    loss, applied, alone, half = 0.0, 0, 0, (len(rows) + 1) >> 1
    for n in range(len(rows)):
        at = np.uint64(rows[in_turns(n, half)])
        u, i = np.uint64(user[at]), np.uint64(item[at])
        state = mixed(seed ^ (at * STEP))
        drawn, x, lost, slope = pair(bounds, had, drawable, tries, u, i, state, users, items, item_bias)
        if drawn < 0:
            alone += 1
            continue
        weight = _1 + alpha * max(rating[at], _0)
        if not is_finite(x * weight):
            continue
        loss += weight * lost
        applied += 1
        if tries and slope == _0:
            continue
        j, slope = np.uint64(drawn), weight * slope
        move_bias(item_bias, item_bias_sums, i, slope, rates[3], decays[3], epsilons[3], rule)
        move_bias(item_bias, item_bias_sums, j, -slope, rates[3], decays[3], epsilons[3], rule)
        for f in range(np.uint64(users.shape[1])):
            p, q, r = users[u, f], items[i, f], items[j, f]
            move(users, user_sums, u, f, slope * (q - r) + decay * p, rate, epsilon, rule)
            move(items, item_sums, i, f, slope * p + other_decay * q, other_rate, other_epsilon, rule)
            move(items, item_sums, j, f, other_decay * r - slope * p, other_rate, other_epsilon, rule)
    return loss, applied, alone
