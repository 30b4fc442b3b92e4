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

Order. A kernel trains on batches of samples that lie one after the other (`rows` empty: a grid's order, in which
neighbours are of different rows), or on the samples `rows`, in that order.

A row of up to WIDEST numbers is a value of its own (`simd.py`), so each kernel is compiled for the width of the tables:
without loops, and without checks that tables do not overlap (32 factors, SGD: 108 million ratings per second became
130; 50 factors: 42 became 84). `of`: the width as a type, None beyond.

Arguments. `batches`: rows, borders, factors, columns: batch b has the samples [borders[b], borders[b + 1]), factors[b]
times the rates, and a column of the grid, which it enters (`enter`) by `place`; the kernel stops before one that
another worker holds. `data`: user, item, rating, mean. `tables`: of users (U, k), items (I, k), user_bias (U,),
item_bias (I,), with their sums; `numbers` (4, 3): rate, decay and epsilon of each. Row numbers are unsigned here: for a
signed one numba checks at every access whether it counts from the end.

Every kernel returns (sum of the batches' mean losses, batches, sum of losses, samples, batches done); a batch counts in
the second if one of its samples was applied. A sample whose slope is not finite is not."""

from typing import Any

import numpy as np
from numba.core import cgutils, types
from numba.extending import overload

from hogwild.kernels.compiling import IN_KERNELS, inlined, is_finite, kernel, only_in_kernels, shared_body
from hogwild.kernels.signatures import WIDEST
from hogwild.kernels.simd import (
    ask_for_row,
    four,
    fused,
    instruction,
    load_row,
    most,
    of_width,
    part,
    root,
    splat_row,
    store_row,
    total,
    totals,
)
from hogwild.kernels.steps import ADAGRAD, descend

# ---- columns of a grid
#
# Claims of workers to column blocks of a grid (`hogwild/scheduling/schedules.py`): words of the scoreboard that
# kernels read and write between two cells, without a lock and without a message.
#
#     my next column ──► is another there? ──no──► my word says that I am there ──► train the cell ──► next column
#                              | yes
#                              '── look again, SPINS times; then the caller takes other columns first, and this one
#                                  at last in any case (`insist`; `workers/child/fused_trainer.py`)
#
# Each word has one writer: a worker its own; column + 1, or 0: in none. Two that look at the same moment may enter
# together, and whoever insists enters beside another. Then both write the same rows without a lock, which is Hogwild as
# it was published: slower, and a gradient may be lost. But nobody ever waits for another worker: not for a slower one,
# nor for one that lost its core in the middle of a column, was stopped, or has died.

SPINS = 1 << 10  # some 2 microseconds: to call the kernel for another column takes 20
_next, _none = np.int64(1), np.int64(0)


def _word(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    made = context.make_array(kind)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, kind, made, [index], wraparound=False)


@instruction
def _read(typing_context, words, index):  # type: ignore[no-untyped-def]
    """Read words[index], int64: anew each time, also in a loop."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = _word(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(words, types.intp), generate


@instruction
def _write(typing_context, words, index, value):  # type: ignore[no-untyped-def]
    """Write words[index] now: after all that was written before."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        pointer = _word(context, builder, signature.args[0], *arguments[:2])
        builder.store_atomic(arguments[2], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(words, types.intp, types.int64), generate


@only_in_kernels
def is_met(words, own, column):  # type: ignore[no-untyped-def]
    """Return whether another worker is in this column."""
    met = False
    for other in range(len(words)):
        met |= other != own and _read(words, other) == column + _next
    return met


@inlined
def enter(words, own, column, insist):  # type: ignore[no-untyped-def]
    """Enter a column; return False if another worker stays there and we do not `insist`. words (P,) int64: of all
    workers, `own` among them."""
    _write(words, own, _none)
    spins = 0
    while not insist and is_met(words, own, column):
        if spins == SPINS:
            return False
        spins += 1
    _write(words, own, column + _next)
    return True


AHEAD = 8  # ratings: the row of an item is prefetched so many ratings ahead: 10 to 15 % faster
_RULE = (0,) * ADAGRAD
MOST_BY_FOURS = 32  # with more, eight rows do not fit into the processor's registers

_0, _1, _2 = np.float32(0.0), np.float32(1.0), np.float32(2.0)


def width_of(table: np.ndarray) -> np.ndarray | None:
    """Return the argument `of` for tables (R, k)."""
    return of_width(table.shape[1]) if table.shape[1] <= WIDEST else None


@only_in_kernels
def place(rows, n):  # type: ignore[no-untyped-def]
    """Return the position of sample number n."""
    return np.uint64(rows[n]) if len(rows) else np.uint64(n)


@only_in_kernels
def ask_ahead(table, column, rows, n, stop, of):  # type: ignore[no-untyped-def]
    """Prefetch the row of the sample AHEAD places later."""
    if n + AHEAD < stop:
        ask_for_row(table, column[place(rows, n + AHEAD)], of)


# ---- a pair of rows: as values, or number by number ------------------------------------------------------------------


def products(users, u, items, i, of):  # type: ignore[no-untyped-def]
    """Return (x . y, x . x, y . y) of row u of `users` (., k) and row i of `items` (., k); what is not used costs
    nothing."""


@overload(products, jit_options=IN_KERNELS)
def _products(users, u, items, i, of):  # type: ignore[no-untyped-def]
    def by_row(users, u, items, i, of):  # type: ignore[no-untyped-def]
        p, q = load_row(users, u, of), load_row(items, i, of)
        return total(p * q), total(p * p), total(q * q)

    def by_number(users, u, items, i, of):  # type: ignore[no-untyped-def]
        z, own, other = _0, _0, _0
        for f in range(np.uint64(users.shape[1])):
            p, q = users[u, f], items[i, f]
            z += p * q
            own += p * p
            other += q * q
        return z, own, other

    return by_number if isinstance(of, types.NoneType) else by_row


@only_in_kernels
def renew(table, row, keep, step, x, y, of):  # type: ignore[no-untyped-def]
    """Row `row` of a table becomes keep * x + step * y."""
    store_row(table, row, fused(splat_row(step, of), y, splat_row(keep, of) * x))


def blend(users, u, items, i, keep, step, other_keep, other_step, of):  # type: ignore[no-untyped-def]
    """Row u of `users` becomes keep * x + step * y, and row i of `items` other_keep * y + other_step * x."""


@overload(blend, jit_options=IN_KERNELS)
def _blend(users, u, items, i, keep, step, other_keep, other_step, of):  # type: ignore[no-untyped-def]
    def by_row(users, u, items, i, keep, step, other_keep, other_step, of):  # type: ignore[no-untyped-def]
        p, q = load_row(users, u, of), load_row(items, i, of)
        renew(users, u, keep, step, p, q, of)
        renew(items, i, other_keep, other_step, q, p, of)

    def by_number(users, u, items, i, keep, step, other_keep, other_step, of):  # type: ignore[no-untyped-def]
        for f in range(np.uint64(users.shape[1])):
            p, q = users[u, f], items[i, f]
            users[u, f] = keep * p + step * q
            items[i, f] = other_keep * q + other_step * p

    return by_number if isinstance(of, types.NoneType) else by_row


def adagrad_rows(tables, u, i, slope, numbers, of):  # type: ignore[no-untyped-def]
    """Update both rows, each number with its own sum."""


@overload(adagrad_rows, jit_options=IN_KERNELS)
def _adagrad_rows(tables, u, i, slope, numbers, of):  # type: ignore[no-untyped-def]
    def by_row(tables, u, i, slope, numbers, of):  # type: ignore[no-untyped-def]
        (users, user_sums, _), (items, item_sums, _) = tables[0], tables[1]
        p, q, slopes = load_row(users, u, of), load_row(items, i, of), splat_row(slope, of)
        own = fused(slopes, q, splat_row(numbers[0, 1], of) * p)
        other = fused(slopes, p, splat_row(numbers[1, 1], of) * q)
        own_sum = fused(own, own, load_row(user_sums, u, of))
        other_sum = fused(other, other, load_row(item_sums, i, of))
        store_row(user_sums, u, own_sum)
        store_row(item_sums, i, other_sum)
        store_row(users, u, p - splat_row(numbers[0, 0], of) * own / (root(own_sum) + splat_row(numbers[0, 2], of)))
        store_row(items, i, q - splat_row(numbers[1, 0], of) * other / (root(other_sum) + splat_row(numbers[1, 2], of)))

    def by_number(tables, u, i, slope, numbers, of):  # type: ignore[no-untyped-def]
        users, items = tables[0], tables[1]
        for f in range(np.uint64(users[0].shape[1])):
            p, q = users[0][u, f], items[0][i, f]
            descend(_RULE, users, (u, f), slope * q + numbers[0, 1] * p, numbers[0, 0], numbers[0, 2])
            descend(_RULE, items, (i, f), slope * p + numbers[1, 1] * q, numbers[1, 0], numbers[1, 2])

    return by_number if isinstance(of, types.NoneType) else by_row


def row_adagrad_by_fours(  # type: ignore[no-untyped-def]
    rows, n, stop, user, item, rating, mean, users, items, user_bias, item_bias,
    user_sums, item_sums, user_bias_sums, item_bias_sums, numbers, of,
):  # fmt: skip
    """Train on the samples n to n + 3 together, and return (True, the sum of their losses), if they have no row in
    common and all are finite; otherwise do nothing and return (False, 0). The numbers that a sample has one of are
    computed four at a time: one sample after the other, the processor's window is full of the roots and quotients of
    two or three (32 factors: 55 million ratings per second became 68). Arrays are arguments one by one: of those in
    tuples numba would count references in the loop, which is four times slower."""


@overload(row_adagrad_by_fours, jit_options=IN_KERNELS)
def _row_adagrad_by_fours(  # type: ignore[no-untyped-def]
    rows, n, stop, user, item, rating, mean, users, items, user_bias, item_bias,
    user_sums, item_sums, user_bias_sums, item_bias_sums, numbers, of,
):  # fmt: skip
    def by_row(  # type: ignore[no-untyped-def]
        rows, n, stop, user, item, rating, mean, users, items, user_bias, item_bias,
        user_sums, item_sums, user_bias_sums, item_bias_sums, numbers, of,
    ):  # fmt: skip
        if n + 4 > stop:
            return False, _0
        a0, a1, a2, a3 = place(rows, n), place(rows, n + 1), place(rows, n + 2), place(rows, n + 3)
        u0, u1, u2, u3 = np.uint64(user[a0]), np.uint64(user[a1]), np.uint64(user[a2]), np.uint64(user[a3])
        i0, i1, i2, i3 = np.uint64(item[a0]), np.uint64(item[a1]), np.uint64(item[a2]), np.uint64(item[a3])
        if (
            (u0 == u1) | (u0 == u2) | (u0 == u3) | (u1 == u2) | (u1 == u3) | (u2 == u3)
            | (i0 == i1) | (i0 == i2) | (i0 == i3) | (i1 == i2) | (i1 == i3) | (i2 == i3)
        ):  # fmt: skip
            return False, _0
        p0, p1 = load_row(users, u0, of), load_row(users, u1, of)
        p2, p3 = load_row(users, u2, of), load_row(users, u3, of)
        q0, q1 = load_row(items, i0, of), load_row(items, i1, of)
        q2, q3 = load_row(items, i2, of), load_row(items, i3, of)
        z = totals(p0 * q0, p1 * q1, p2 * q2, p3 * q3)
        own = totals(p0 * p0, p1 * p1, p2 * p2, p3 * p3)
        other = totals(q0 * q0, q1 * q1, q2 * q2, q3 * q3)
        bias = four_of(user_bias, u0, u1, u2, u3)
        other_bias = four_of(item_bias, i0, i1, i2, i3)
        known = four(mean - rating[a0], mean - rating[a1], mean - rating[a2], mean - rating[a3])
        error = z + (bias + other_bias + known)
        slope = error + error
        square, cross = slope * slope, (slope + slope) * z
        zero, one, share = all_four(_0), all_four(_1), all_four(_1 / np.float32(users.shape[1]))
        decay, other_decay = all_four(numbers[0, 1]), all_four(numbers[1, 1])
        sums = most(square * other + decay * (cross + decay * own), zero) * share
        sums = sums + four_of(user_sums, u0, u1, u2, u3)
        other_sums = most(square * own + other_decay * (cross + other_decay * other), zero) * share
        other_sums = other_sums + four_of(item_sums, i0, i1, i2, i3)
        if not is_finite(total(square + sums + other_sums)):
            return False, _0
        step = all_four(numbers[0, 0]) / (root(sums) + all_four(numbers[0, 2]))
        other_step = all_four(numbers[1, 0]) / (root(other_sums) + all_four(numbers[1, 2]))
        keep, other_keep = one - step * decay, one - other_step * other_decay
        step, other_step = zero - step * slope, zero - other_step * slope
        gradient = fused(all_four(numbers[2, 1]), bias, slope)
        other_gradient = fused(all_four(numbers[3, 1]), other_bias, slope)
        bias_sums = gradient * gradient + four_of(user_bias_sums, u0, u1, u2, u3)
        other_bias_sums = other_gradient * other_gradient + four_of(item_bias_sums, i0, i1, i2, i3)
        bias = bias - all_four(numbers[2, 0]) * gradient / (root(bias_sums) + all_four(numbers[2, 2]))
        other_bias = other_bias - all_four(numbers[3, 0]) * other_gradient / (
            root(other_bias_sums) + all_four(numbers[3, 2])
        )
        renew(users, u0, part(keep, 0), part(step, 0), p0, q0, of)
        renew(items, i0, part(other_keep, 0), part(other_step, 0), q0, p0, of)
        renew(users, u1, part(keep, 1), part(step, 1), p1, q1, of)
        renew(items, i1, part(other_keep, 1), part(other_step, 1), q1, p1, of)
        renew(users, u2, part(keep, 2), part(step, 2), p2, q2, of)
        renew(items, i2, part(other_keep, 2), part(other_step, 2), q2, p2, of)
        renew(users, u3, part(keep, 3), part(step, 3), p3, q3, of)
        renew(items, i3, part(other_keep, 3), part(other_step, 3), q3, p3, of)
        put_four(user_bias, u0, u1, u2, u3, bias)
        put_four(item_bias, i0, i1, i2, i3, other_bias)
        put_four(user_sums, u0, u1, u2, u3, sums)
        put_four(item_sums, i0, i1, i2, i3, other_sums)
        put_four(user_bias_sums, u0, u1, u2, u3, bias_sums)
        put_four(item_bias_sums, i0, i1, i2, i3, other_bias_sums)
        return True, total(error * error)

    def by_number(  # type: ignore[no-untyped-def]
        rows, n, stop, user, item, rating, mean, users, items, user_bias, item_bias,
        user_sums, item_sums, user_bias_sums, item_bias_sums, numbers, of,
    ):  # fmt: skip
        return False, _0

    return by_row if not isinstance(of, types.NoneType) and 3 <= of.dtype.count <= MOST_BY_FOURS else by_number


@only_in_kernels
def all_four(number):  # type: ignore[no-untyped-def]
    return four(number, number, number, number)


@only_in_kernels
def four_of(table, a, b, c, d):  # type: ignore[no-untyped-def]
    return four(table[a], table[b], table[c], table[d])


@only_in_kernels
def put_four(table, a, b, c, d, values):  # type: ignore[no-untyped-def]
    table[a], table[b], table[c], table[d] = part(values, 0), part(values, 1), part(values, 2), part(values, 3)


@only_in_kernels
def mean_square(slope, other, decay, own, product, k):  # type: ignore[no-untyped-def]
    """Return the mean square of slope * x + decay * y over the k numbers of rows with |x|^2 = other, |y|^2 = own, x . y
    = product. Clamped to 0 against rounding."""
    return max(_0, slope * slope * other + decay * (_2 * slope * product + decay * own)) / k


# ---- kernels: a rule is a function that trains on the samples [n, stop), and returns (sum of losses, samples applied)


@shared_body
def over_batches(train, batches, place_in_grid, of, data, tables, numbers):  # type: ignore[no-untyped-def]
    """Train on all batches by one rule."""
    (rows, borders, factors, columns), (words, own, insist) = batches, place_in_grid
    now = numbers.copy()
    mean_losses, trained, losses, samples, column = 0.0, 0, 0.0, 0, -1
    for b in range(len(factors)):
        if columns[b] != column:
            column = columns[b]
            if not enter(words, own, column, insist):
                return mean_losses, trained, losses, samples, b
        for t in range(4):
            now[t, 0] = numbers[t, 0] * factors[b]
        loss, applied = train(rows, borders[b], borders[b + 1], data, tables, now, of)
        if applied:
            mean_losses, trained, losses, samples = (
                mean_losses + loss / applied, trained + 1, losses + loss, samples + applied
            )  # fmt: skip
    return mean_losses, trained, losses, samples, len(factors)


@only_in_kernels
def sgd_samples(rows, n, stop, data, tables, numbers, of):  # type: ignore[no-untyped-def]
    user, item, rating, mean = data
    users, items, user_bias, item_bias = tables[0][0], tables[1][0], tables[2][0], tables[3][0]
    rate, other_rate, bias_rate, other_bias_rate = numbers[0, 0], numbers[1, 0], numbers[2, 0], numbers[3, 0]
    keep, other_keep = _1 - rate * numbers[0, 1], _1 - other_rate * numbers[1, 1]
    bias_keep, other_bias_keep = _1 - bias_rate * numbers[2, 1], _1 - other_bias_rate * numbers[3, 1]
    loss, applied = 0.0, 0
    for m in range(n, stop):
        ask_ahead(items, item, rows, m, stop, of)
        at = place(rows, m)
        u, i = np.uint64(user[at]), np.uint64(item[at])
        bias, other_bias = user_bias[u], item_bias[i]
        error = products(users, u, items, i, of)[0] + (bias + other_bias + mean - rating[at])
        slope = _2 * error
        if not is_finite(slope):
            continue
        loss += error * error
        applied += 1
        blend(users, u, items, i, keep, -rate * slope, other_keep, -other_rate * slope, of)
        user_bias[u] = bias_keep * bias - bias_rate * slope
        item_bias[i] = other_bias_keep * other_bias - other_bias_rate * slope
    return loss, applied


@only_in_kernels
def adagrad_samples(rows, n, stop, data, tables, numbers, of):  # type: ignore[no-untyped-def]
    user, item, rating, mean = data
    users, items, user_bias, item_bias = tables[0][0], tables[1][0], tables[2][0], tables[3][0]
    loss, applied = 0.0, 0
    for m in range(n, stop):
        ask_ahead(items, item, rows, m, stop, of)
        ask_ahead(tables[1][1], item, rows, m, stop, of)
        at = place(rows, m)
        u, i = np.uint64(user[at]), np.uint64(item[at])
        error = products(users, u, items, i, of)[0] + (user_bias[u] + item_bias[i] + mean - rating[at])
        slope = _2 * error
        if not is_finite(slope):
            continue
        loss += error * error
        applied += 1
        adagrad_rows(tables, u, i, slope, numbers, of)
        descend(_RULE, tables[2], u, slope + numbers[2, 1] * user_bias[u], numbers[2, 0], numbers[2, 2])
        descend(_RULE, tables[3], i, slope + numbers[3, 1] * item_bias[i], numbers[3, 0], numbers[3, 2])
    return loss, applied


@only_in_kernels
def row_adagrad_samples(rows, n, stop, data, tables, numbers, of):  # type: ignore[no-untyped-def]
    user, item, rating, mean = data
    users, items, user_bias, item_bias = tables[0][0], tables[1][0], tables[2][0], tables[3][0]
    user_sums, item_sums, user_bias_sums, item_bias_sums = tables[0][1], tables[1][1], tables[2][1], tables[3][1]
    decay, other_decay, k = numbers[0, 1], numbers[1, 1], np.float32(users.shape[1])
    loss, applied = 0.0, 0
    while n < stop:
        if n + AHEAD + 4 < stop:
            for ahead in range(AHEAD, AHEAD + 4):
                ask_for_row(items, item[place(rows, n + ahead)], of)
        are_done, lost = row_adagrad_by_fours(
        rows, n, stop, user, item, rating, mean, users, items, user_bias, item_bias,
        user_sums, item_sums, user_bias_sums, item_bias_sums, numbers, of,
        )  # fmt: skip
        if are_done:
            loss, applied, n = loss + lost, applied + 4, n + 4
            continue
        at = place(rows, n)
        n += 1
        u, i = np.uint64(user[at]), np.uint64(item[at])
        z, own, other = products(users, u, items, i, of)
        bias, other_bias = user_bias[u], item_bias[i]
        error = z + (bias + other_bias + mean - rating[at])
        slope = _2 * error
        sum_ = user_sums[u] + mean_square(slope, other, decay, own, z, k)
        other_sum = item_sums[i] + mean_square(slope, own, other_decay, other, z, k)
        if not is_finite(slope + sum_ + other_sum):  # an infinite sum would never recover
            continue
        loss += error * error
        applied += 1
        step = numbers[0, 0] / (np.sqrt(sum_) + numbers[0, 2])
        other_step = numbers[1, 0] / (np.sqrt(other_sum) + numbers[1, 2])
        keep, other_keep = _1 - step * decay, _1 - other_step * other_decay
        blend(users, u, items, i, keep, -step * slope, other_keep, -other_step * slope, of)
        user_sums[u], item_sums[i] = sum_, other_sum
        # The mean square of a row of one number is that number's square: Adagrad.
        descend(_RULE, tables[2], u, slope + numbers[2, 1] * bias, numbers[2, 0], numbers[2, 2])
        descend(_RULE, tables[3], i, slope + numbers[3, 1] * other_bias, numbers[3, 0], numbers[3, 2])
    return loss, applied


@kernel
def sgd(batches, place_in_grid, of, data, tables, numbers):  # type: ignore[no-untyped-def]
    return over_batches(sgd_samples, batches, place_in_grid, of, data, tables, numbers)


@kernel
def adagrad(batches, place_in_grid, of, data, tables, numbers):  # type: ignore[no-untyped-def]
    """Train with a separate rate for each number (Duchi, Hazan and Singer 2011)."""
    return over_batches(adagrad_samples, batches, place_in_grid, of, data, tables, numbers)


@kernel
def row_adagrad(batches, place_in_grid, of, data, tables, numbers):  # type: ignore[no-untyped-def]
    """Train with a separate rate for each row; sums of users (U,), of items (I,)."""
    return over_batches(row_adagrad_samples, batches, place_in_grid, of, data, tables, numbers)
