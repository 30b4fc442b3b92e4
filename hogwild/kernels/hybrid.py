"""Pairwise ranking as in `bpr.py`, where the vector of a user or an item is the sum of its own row and of its features'
rows, each times a weight (Kula, "Metadata embeddings for user and item cold-start recommendations", 2015).

    user_starts (U+1,), user_ids (n,) int64, user_weights (n,) float32: the features of user u, in ascending order, are
    user_ids[user_starts[u]:user_starts[u+1]]; the same for items

A feature that both items of a pair have moves by the difference of its weights, once, as in autograd."""

import numpy as np

from hogwild.kernels.bpr import TRIES, loss_and_slope, move, move_bias, not_had, rank_weight
from hogwild.kernels.compiling import inlined, is_finite, kernel
from hogwild.kernels.matrix_factorization import in_turns
from hogwild.kernels.rng import STEP, mixed

_0, _1 = np.float32(0.0), np.float32(1.0)
_one = np.uint64(1)


@inlined
def add_up(own, table, starts, ids, weights, row, vector):  # type: ignore[no-untyped-def]
    """Set vector (k,) to the sum of a row of `own` and those of its features."""
    for f in range(np.uint64(own.shape[1])):
        vector[f] = own[row, f]
    for at in range(np.uint64(starts[row]), np.uint64(starts[row + _one])):
        feature, weight = np.uint64(ids[at]), weights[at]
        for f in range(np.uint64(own.shape[1])):
            vector[f] += weight * table[feature, f]


@inlined
def whole_bias(own, table, starts, ids, weights, row):  # type: ignore[no-untyped-def]
    bias = own[row]
    for at in range(np.uint64(starts[row]), np.uint64(starts[row + _one])):
        bias += weights[at] * table[np.uint64(ids[at])]
    return bias


@kernel
def train(  # type: ignore[no-untyped-def]
    rows, user, item, rating, bounds, had, drawable, seed, tries, alpha,
    user_starts, user_ids, user_weights, item_starts, item_ids, item_weights,
    users, items, item_bias, user_table, item_table, bias_table,
    user_sums, item_sums, item_bias_sums, user_table_sums, item_table_sums, bias_table_sums,
    rates, decays, epsilons, rule,
):  # fmt: skip
    """Train as `bpr.train`."""
    loss, applied, alone, half = 0.0, 0, 0, (len(rows) + 1) >> 1
    k = np.uint64(users.shape[1])
    P, Q, R = np.empty(k, np.float32), np.empty(k, np.float32), np.empty(k, np.float32)
    for n in range(len(rows)):
        at = np.uint64(rows[in_turns(n, half)])
        u, i = np.uint64(user[at]), np.uint64(item[at])
        state = mixed(seed ^ (at * STEP))
        add_up(users, user_table, user_starts, user_ids, user_weights, u, P)
        add_up(items, item_table, item_starts, item_ids, item_weights, i, Q)
        bias = whole_bias(item_bias, bias_table, item_starts, item_ids, item_weights, i)
        drawn, draws, x = np.int64(-1), 0, _1
        while draws < max(tries, 1):
            other = not_had(bounds, had, drawable, u, state + np.uint64(draws * TRIES) * STEP)
            draws += 1
            if other < 0:
                if draws == 1:
                    break
                continue
            drawn = other
            j = np.uint64(other)
            add_up(items, item_table, item_starts, item_ids, item_weights, j, R)
            x = bias - whole_bias(item_bias, bias_table, item_starts, item_ids, item_weights, j)
            for f in range(k):
                x += P[f] * (Q[f] - R[f])
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
        slope *= weight
        j = np.uint64(drawn)
        move_bias(item_bias, item_bias_sums, i, slope, rates[3], decays[3], epsilons[3], rule)
        move_bias(item_bias, item_bias_sums, j, -slope, rates[3], decays[3], epsilons[3], rule)
        for f in range(k):
            difference, step = slope * (Q[f] - R[f]), slope * P[f]
            move(users, user_sums, u, f, difference + decays[0] * users[u, f], rates[0], epsilons[0], rule)
            move(items, item_sums, i, f, step + decays[1] * items[i, f], rates[1], epsilons[1], rule)
            move(items, item_sums, j, f, decays[1] * items[j, f] - step, rates[1], epsilons[1], rule)
        for place in range(np.uint64(user_starts[u]), np.uint64(user_starts[u + _one])):
            own, share = np.uint64(user_ids[place]), slope * user_weights[place]
            for f in range(k):
                gradient = share * (Q[f] - R[f]) + decays[4] * user_table[own, f]
                move(user_table, user_table_sums, own, f, gradient, rates[4], epsilons[4], rule)
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
            decay = times * decays[6]
            move_bias(bias_table, bias_table_sums, feature, slope * part, rates[6], decay, epsilons[6], rule)
            for f in range(k):
                gradient = slope * part * P[f] + times * decays[5] * item_table[feature, f]
                move(item_table, item_table_sums, feature, f, gradient, rates[5], epsilons[5], rule)
    return loss, applied, alone
