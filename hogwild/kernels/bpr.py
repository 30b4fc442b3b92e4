"""Pairwise ranking: an item i that a user has should score higher than an item j that it does not have.

    x = item_bias[i] - item_bias[j] + users[u] . (items[i] - items[j])
    BPR: loss = log(1 + exp(-x)), j is random (Rendle, Freudenthaler, Gantner and Schmidt-Thieme 2009)
    WARP: loss = H(rank) max(0, 1 - x), j is the first of at most `tries` random ones with x < 1, the n-th; the rank is
    estimated as (items that the user does not have) / n (Weston, Bengio and Usunier, "WSABIE", 2011); H(r) = 1 + 1/2 +
    ... + 1/r. Without such a j nothing changes.

j is drawn uniformly from the items of the training data, again if the user has it. With `alpha`, a pair has the weight
1 + alpha * rating (Hu, Koren and Volinsky 2008). SGD and Adagrad (`steps.py`; the race is that of
`matrix_factorization.py`). Pairs come in random order, so that neighbours are seldom of one row, and are trained in it:
a batch that is computed in pieces, because it takes long, gives the same result. There is no grid, which could not keep
workers out of each other's items: j is any of all items. Of few items each worker has private copies; of many, two
workers seldom write the same one.

A plain row is a vector by itself. In a hybrid model the vector of a user or an item is the sum of its own row and of
its features' rows, each times a weight (Kula, "Metadata embeddings for user and item cold-start recommendations",
2015). A feature that both items of a pair have moves by the difference of its weights, once, as in autograd.

    data: user, item, rating; owned: bounds (U+1,) int64, had (N,) int32, drawable (D,) int32: the items of user u are
    had[bounds[u]:bounds[u+1]], in ascending order; drawable are the items of the training data
    choice: seed, tries (0 for BPR), alpha
    tables: of users (U, k), items (I, k), item_bias (I,); of a hybrid model then of user and item features and biases;
    numbers (tables, 3): rate, decay and epsilon of each
    members: of a hybrid model ((starts (U+1,), ids (n,) int64, weights (n,) float32), the same of items): the features
    of user u, in ascending order, are ids[starts[u]:starts[u+1]]"""

import numpy as np

from hogwild.kernels.compiling import is_finite, kernel, only_in_kernels, shared_body
from hogwild.kernels.rng import STEP, below, mixed
from hogwild.kernels.steps import descend

TRIES = 16  # after so many draws the user has (nearly) every item: nothing can be learnt from it
HALF, EULER = np.float32(0.5), np.float32(0.57722)

_0, _1 = np.float32(0.0), np.float32(1.0)
_one = np.uint64(1)


@only_in_kernels
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


@only_in_kernels
def not_had(bounds, had, drawable, u, state):  # type: ignore[no-untyped-def]
    """Return an item that user u does not have, or -1 if TRIES draws found none: int64."""
    first, last = np.uint64(bounds[u]), np.uint64(bounds[u + _one])
    for _ in range(TRIES):
        state += STEP
        j = np.int64(drawable[np.uint64(below(mixed(state), len(drawable)))])
        if not has(had, first, last, j):
            return j
    return np.int64(-1)


@only_in_kernels
def loss_and_slope(x):  # type: ignore[no-untyped-def]
    """Return (log(1 + exp(-x)), its derivative), float32."""
    small = np.exp(-abs(x))  # never overflows
    return np.log(_1 + small) + max(-x, _0), -(small if x >= _0 else _1) / (_1 + small)


@only_in_kernels
def rank_weight(bounds, drawable, u, draws):  # type: ignore[no-untyped-def]
    """Return H(the rank estimated from so many draws), at most 2 % less."""
    rank = max(1, (len(drawable) - (bounds[u + _one] - bounds[u])) // draws)
    return np.log(np.float32(rank) + HALF) + EULER


@shared_body
def over_pairs(gather, margin, learn, rows, data, owned, choice, tables, members, rule, numbers):  # type: ignore[no-untyped-def]
    """Train on samples `rows` (n,) int64; return (sum of losses, samples applied, samples without a pair: users who
    have everything). The draws depend only on the seed, uint64, and the sample. `gather` returns what `margin` and
    `learn` need of a sample's user and item; `margin` how much higher i scores than j."""
    (user, item, rating), (bounds, had, drawable), (seed, tries, alpha) = data, owned, choice
    loss, applied, alone = 0.0, 0, 0
    k = np.uint64(tables[0][0].shape[1])
    vectors = np.empty(k, np.float32), np.empty(k, np.float32), np.empty(k, np.float32)
    for n in range(len(rows)):
        at = np.uint64(rows[n])
        u, i = np.uint64(user[at]), np.uint64(item[at])
        state = mixed(seed ^ (at * STEP))
        bias = gather(u, i, tables, members, vectors)
        drawn, draws, x = np.int64(-1), 0, _1
        while draws < max(tries, 1):
            other = not_had(bounds, had, drawable, u, state + np.uint64(draws * TRIES) * STEP)
            draws += 1
            if other < 0:
                if draws == 1:
                    break
                continue
            drawn = other
            x = margin(u, i, np.uint64(other), bias, tables, members, vectors)
            if not x >= _1:
                break
        if drawn < 0:
            alone += 1
            continue
        weight = _1 + alpha * max(rating[at], _0)
        if not is_finite(x * weight):
            continue
        applied += 1
        if tries == 0:
            lost, slope = loss_and_slope(x)
        elif x >= _1:
            continue
        else:
            height = rank_weight(bounds, drawable, u, draws)
            lost, slope = height * (_1 - x), -height
        loss += weight * lost
        learn(u, i, np.uint64(drawn), weight * slope, tables, members, vectors, rule, numbers)
    return loss, applied, alone


# ---- plain rows


@only_in_kernels
def plain_gather(u, i, tables, members, vectors):  # type: ignore[no-untyped-def]
    return tables[2][0][i]


@only_in_kernels
def plain_margin(u, i, j, bias, tables, members, vectors):  # type: ignore[no-untyped-def]
    users, items, item_bias = tables[0][0], tables[1][0], tables[2][0]
    x = _0
    for f in range(np.uint64(users.shape[1])):
        x += users[u, f] * (items[i, f] - items[j, f])
    return x + (item_bias[i] - item_bias[j])


@only_in_kernels
def plain_learn(u, i, j, slope, tables, members, vectors, rule, numbers):  # type: ignore[no-untyped-def]
    users, items, biases = tables
    rate, decay, eps = numbers[0, 0], numbers[0, 1], numbers[0, 2]
    other_rate, other_decay, other_eps = numbers[1, 0], numbers[1, 1], numbers[1, 2]
    descend(rule, biases, i, slope + numbers[2, 1] * biases[0][i], numbers[2, 0], numbers[2, 2])
    descend(rule, biases, j, -slope + numbers[2, 1] * biases[0][j], numbers[2, 0], numbers[2, 2])
    for f in range(np.uint64(users[0].shape[1])):
        p, q, r = users[0][u, f], items[0][i, f], items[0][j, f]
        descend(rule, users, (u, f), slope * (q - r) + decay * p, rate, eps)
        descend(rule, items, (i, f), slope * p + other_decay * q, other_rate, other_eps)
        descend(rule, items, (j, f), other_decay * r - slope * p, other_rate, other_eps)


@kernel
def plain(rows, data, owned, choice, tables, members, rule, numbers):  # type: ignore[no-untyped-def]
    return over_pairs(
        plain_gather, plain_margin, plain_learn, rows, data, owned, choice, tables, members, rule, numbers
    )


# ---- rows as sums of features


@only_in_kernels
def add_up(own, table, members, row, vector):  # type: ignore[no-untyped-def]
    """Set vector (k,) to the sum of a row of `own` and those of its features."""
    starts, ids, weights = members
    for f in range(np.uint64(own.shape[1])):
        vector[f] = own[row, f]
    for at in range(np.uint64(starts[row]), np.uint64(starts[row + _one])):
        feature, weight = np.uint64(ids[at]), weights[at]
        for f in range(np.uint64(own.shape[1])):
            vector[f] += weight * table[feature, f]


@only_in_kernels
def whole_bias(own, table, members, row):  # type: ignore[no-untyped-def]
    starts, ids, weights = members
    bias = own[row]
    for at in range(np.uint64(starts[row]), np.uint64(starts[row + _one])):
        bias += weights[at] * table[np.uint64(ids[at])]
    return bias


@only_in_kernels
def hybrid_gather(u, i, tables, members, vectors):  # type: ignore[no-untyped-def]
    add_up(tables[0][0], tables[3][0], members[0], u, vectors[0])
    add_up(tables[1][0], tables[4][0], members[1], i, vectors[1])
    return whole_bias(tables[2][0], tables[5][0], members[1], i)


@only_in_kernels
def hybrid_margin(u, i, j, bias, tables, members, vectors):  # type: ignore[no-untyped-def]
    P, Q, R = vectors
    add_up(tables[1][0], tables[4][0], members[1], j, R)
    x = bias - whole_bias(tables[2][0], tables[5][0], members[1], j)
    for f in range(np.uint64(len(P))):
        x += P[f] * (Q[f] - R[f])
    return x


@only_in_kernels
def hybrid_learn(u, i, j, slope, tables, members, vectors, rule, numbers):  # type: ignore[no-untyped-def]
    users, items, biases, user_features, item_features, feature_biases = tables
    (user_starts, user_ids, user_weights), (item_starts, item_ids, item_weights) = members
    P, Q, R = vectors
    k = np.uint64(len(P))
    descend(rule, biases, i, slope + numbers[2, 1] * biases[0][i], numbers[2, 0], numbers[2, 2])
    descend(rule, biases, j, -slope + numbers[2, 1] * biases[0][j], numbers[2, 0], numbers[2, 2])
    for f in range(k):
        difference, step = slope * (Q[f] - R[f]), slope * P[f]
        descend(rule, users, (u, f), difference + numbers[0, 1] * users[0][u, f], numbers[0, 0], numbers[0, 2])
        descend(rule, items, (i, f), step + numbers[1, 1] * items[0][i, f], numbers[1, 0], numbers[1, 2])
        descend(rule, items, (j, f), numbers[1, 1] * items[0][j, f] - step, numbers[1, 0], numbers[1, 2])
    for at in range(np.uint64(user_starts[u]), np.uint64(user_starts[u + _one])):
        own, share = np.uint64(user_ids[at]), slope * user_weights[at]
        for f in range(k):
            gradient = share * (Q[f] - R[f]) + numbers[3, 1] * user_features[0][own, f]
            descend(rule, user_features, (own, f), gradient, numbers[3, 0], numbers[3, 2])
    a, a_end = np.uint64(item_starts[i]), np.uint64(item_starts[i + _one])
    b, b_end = np.uint64(item_starts[j]), np.uint64(item_starts[j + _one])
    while a < a_end or b < b_end:
        has_own = a < a_end and (b == b_end or item_ids[a] <= item_ids[b])
        has_other = b < b_end and (a == a_end or item_ids[b] <= item_ids[a])
        feature = np.uint64(item_ids[a] if has_own else item_ids[b])
        times, part = _0, _0
        if has_own:
            times, part, a = times + _1, part + item_weights[a], a + _one
        if has_other:
            times, part, b = times + _1, part - item_weights[b], b + _one
        gradient = slope * part + times * numbers[5, 1] * feature_biases[0][feature]
        descend(rule, feature_biases, feature, gradient, numbers[5, 0], numbers[5, 2])
        for f in range(k):
            gradient = slope * part * P[f] + times * numbers[4, 1] * item_features[0][feature, f]
            descend(rule, item_features, (feature, f), gradient, numbers[4, 0], numbers[4, 2])


@kernel
def hybrid(rows, data, owned, choice, tables, members, rule, numbers):  # type: ignore[no-untyped-def]
    return over_pairs(
        hybrid_gather, hybrid_margin, hybrid_learn, rows, data, owned, choice, tables, members, rule, numbers
    )
