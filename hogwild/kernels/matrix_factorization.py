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

`rates`, `decays`, `epsilons` are (4,) float32: of users, items, user_bias, item_bias; a batch b has `factors[b]` times
the rates. Row numbers are unsigned here: for a signed one numba checks at every access whether it counts from the end.

Every kernel returns (sum of the batches' mean losses, batches, sum of losses, samples, batches done); a batch counts in
the second if one of its samples was applied. A sample whose slope is not finite is not. `columns` and what follows:
`enter`; it stops before a batch whose column another worker holds."""

from typing import Any

import numpy as np
from numba.core import cgutils, types
from numba.extending import overload

from hogwild.kernels.compiling import FAST, inlined, is_finite, kernel
from hogwild.kernels.fused import STAMP_BITS
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

# ---- columns of a grid
#
# Claims of workers to column blocks of a grid (`hogwild/scheduling/schedules.py`): words of the scoreboard that
# kernels read and write between two cells, without a lock and without a message.
#
#     my next column ──► is another there? ──no──► my word says that I am there ──► train the cell ──► next column
#                              | yes
#                              '── look again, SPINS times; then the caller waits (`workers/child/fused_trainer.py`)
#
# Each word has one writer: a worker its own. Two that look at the same moment may enter together, and the caller of the
# kernel may `insist` (until a column is free). Then both write the same rows without a lock, which is Hogwild as it was
# published: slower, and a gradient may be lost, but nobody waits for ever, and no order of waiting can close into a
# circle.
#
#     word    stamp | column + 1; 0: in none. The stamp is of the item: a word that has not changed in all that time is
#             of a worker that was stopped or has died, and `ignored`.

SPINS = 1 << 15  # some 80 microseconds
_MASK, _next = np.int64((1 << STAMP_BITS) - 1), np.int64(1)


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


@inlined
def is_met(words, ignored, own, column):  # type: ignore[no-untyped-def]
    """Return whether another worker is in this column."""
    for other in range(len(words)):
        if other != own:
            word = _read(words, other)
            if (word & _MASK) == column + _next and word != ignored[other]:
                return True
    return False


@inlined
def enter(words, ignored, own, stamp, column, insist):  # type: ignore[no-untyped-def]
    """Enter a column; return (True, whether another worker is there), or (False, True) if one stays and we do not
    `insist`. words (P,) int64: of all workers, `own` among them; ignored (P,) int64: words that count as absence."""
    _write(words, own, np.int64(0))
    met = is_met(words, ignored, own, column)
    spins = 0
    while met and not insist and spins < SPINS:
        met = is_met(words, ignored, own, column)
        spins += 1
    if met and not insist:
        return False, True
    _write(words, own, stamp | (column + _next))
    return True, met


AHEAD = 8  # ratings: the row of an item is prefetched so many ratings ahead: 10 to 15 % faster
MOST_BY_FOURS = 32  # with more, eight rows do not fit into the processor's registers

_0, _1, _2 = np.float32(0.0), np.float32(1.0), np.float32(2.0)


def width_of(table: np.ndarray) -> np.ndarray | None:
    """Return the argument `of` for tables (R, k)."""
    return of_width(table.shape[1]) if table.shape[1] <= WIDEST else None


@inlined
def in_turns(n, half):  # type: ignore[no-untyped-def]
    """Return the place in a chunk of the n-th sample processed: 0, half, 1, half + 1, …; `half` is rounded up. Where
    neighbours are of one row, each would wait for what the one before it writes."""
    return np.uint64((n >> 1) + (n & 1) * half)


@inlined
def place(rows, n):  # type: ignore[no-untyped-def]
    """Return the position of sample number n."""
    return np.uint64(rows[n]) if len(rows) else np.uint64(n)


@inlined
def ask_ahead(table, column, rows, n, stop, of):  # type: ignore[no-untyped-def]
    """Prefetch the row of the sample AHEAD places later."""
    if n + AHEAD < stop:
        ask_for_row(table, column[place(rows, n + AHEAD)], of)


# ---- a pair of rows: as values, or number by number ------------------------------------------------------------------

_OPTIONS: Any = {"nogil": True, "fastmath": FAST, "error_model": "numpy", "forceinline": True}


def products(users, u, items, i, of):  # type: ignore[no-untyped-def]
    """Return (x . y, x . x, y . y) of row u of `users` (., k) and row i of `items` (., k); what is not used costs
    nothing."""


@overload(products, jit_options=_OPTIONS)
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


@inlined
def renew(table, row, keep, step, x, y, of):  # type: ignore[no-untyped-def]
    """Row `row` of a table becomes keep * x + step * y."""
    store_row(table, row, fused(splat_row(step, of), y, splat_row(keep, of) * x))


def blend(users, u, items, i, keep, step, other_keep, other_step, of):  # type: ignore[no-untyped-def]
    """Row u of `users` becomes keep * x + step * y, and row i of `items` other_keep * y + other_step * x."""


@overload(blend, jit_options=_OPTIONS)
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


def adagrad_rows(users, user_sums, u, items, item_sums, i, slope, rates, decays, epsilons, of):  # type: ignore[no-untyped-def]
    """Update both rows, each number with its own sum."""


@overload(adagrad_rows, jit_options=_OPTIONS)
def _adagrad_rows(users, user_sums, u, items, item_sums, i, slope, rates, decays, epsilons, of):  # type: ignore[no-untyped-def]
    def by_row(users, user_sums, u, items, item_sums, i, slope, rates, decays, epsilons, of):  # type: ignore[no-untyped-def]
        p, q, slopes = load_row(users, u, of), load_row(items, i, of), splat_row(slope, of)
        own = fused(slopes, q, splat_row(decays[0], of) * p)
        other = fused(slopes, p, splat_row(decays[1], of) * q)
        own_sum = fused(own, own, load_row(user_sums, u, of))
        other_sum = fused(other, other, load_row(item_sums, i, of))
        store_row(user_sums, u, own_sum)
        store_row(item_sums, i, other_sum)
        store_row(users, u, p - splat_row(rates[0], of) * own / (root(own_sum) + splat_row(epsilons[0], of)))
        store_row(items, i, q - splat_row(rates[1], of) * other / (root(other_sum) + splat_row(epsilons[1], of)))

    def by_number(users, user_sums, u, items, item_sums, i, slope, rates, decays, epsilons, of):  # type: ignore[no-untyped-def]
        for f in range(np.uint64(users.shape[1])):
            p, q = users[u, f], items[i, f]
            adagrad_number(users, user_sums, u, f, slope * q + decays[0] * p, rates[0], epsilons[0])
            adagrad_number(items, item_sums, i, f, slope * p + decays[1] * q, rates[1], epsilons[1])

    return by_number if isinstance(of, types.NoneType) else by_row


def row_adagrad_by_fours(  # type: ignore[no-untyped-def]
    rows, n, stop, user, item, rating, users, items, user_bias, item_bias,
    user_sums, item_sums, user_bias_sums, item_bias_sums, mean, rates, decays, epsilons, of,
):  # fmt: skip
    """Train on the samples n to n + 3 together, and return (True, the sum of their losses), if they have no row in
    common and all are finite; otherwise do nothing and return (False, 0). The numbers that a sample has one of are
    computed four at a time: one sample after the other, the processor's window is full of the roots and quotients of
    two or three (32 factors: 55 million ratings per second became 68)."""


@overload(row_adagrad_by_fours, jit_options=_OPTIONS)
def _row_adagrad_by_fours(  # type: ignore[no-untyped-def]
    rows, n, stop, user, item, rating, users, items, user_bias, item_bias,
    user_sums, item_sums, user_bias_sums, item_bias_sums, mean, rates, decays, epsilons, of,
):  # fmt: skip
    def by_row(  # type: ignore[no-untyped-def]
        rows, n, stop, user, item, rating, users, items, user_bias, item_bias,
        user_sums, item_sums, user_bias_sums, item_bias_sums, mean, rates, decays, epsilons, of,
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
        p0, p1, p2, p3 = (
            load_row(users, u0, of), load_row(users, u1, of), load_row(users, u2, of), load_row(users, u3, of)
        )  # fmt: skip
        q0, q1, q2, q3 = (
            load_row(items, i0, of), load_row(items, i1, of), load_row(items, i2, of), load_row(items, i3, of)
        )  # fmt: skip
        z = totals(p0 * q0, p1 * q1, p2 * q2, p3 * q3)
        own = totals(p0 * p0, p1 * p1, p2 * p2, p3 * p3)
        other = totals(q0 * q0, q1 * q1, q2 * q2, q3 * q3)
        bias = four(user_bias[u0], user_bias[u1], user_bias[u2], user_bias[u3])
        other_bias = four(item_bias[i0], item_bias[i1], item_bias[i2], item_bias[i3])
        known = four(mean - rating[a0], mean - rating[a1], mean - rating[a2], mean - rating[a3])
        error = z + (bias + other_bias + known)
        slope = error + error
        square, cross = slope * slope, (slope + slope) * z
        zero, share = all_four(_0), all_four(_1 / np.float32(users.shape[1]))
        decay, other_decay = all_four(decays[0]), all_four(decays[1])
        sums = most(square * other + decay * (cross + decay * own), zero) * share
        sums = sums + four(user_sums[u0], user_sums[u1], user_sums[u2], user_sums[u3])
        other_sums = most(square * own + other_decay * (cross + other_decay * other), zero) * share
        other_sums = other_sums + four(item_sums[i0], item_sums[i1], item_sums[i2], item_sums[i3])
        if not is_finite(total(square + sums + other_sums)):
            return False, _0
        gradient, other_gradient = (
            fused(all_four(decays[2]), bias, slope),
            fused(all_four(decays[3]), other_bias, slope),
        )
        bias_sums = gradient * gradient + four(
            user_bias_sums[u0], user_bias_sums[u1], user_bias_sums[u2], user_bias_sums[u3]
        )
        other_bias_sums = other_gradient * other_gradient + four(
            item_bias_sums[i0], item_bias_sums[i1], item_bias_sums[i2], item_bias_sums[i3]
        )
        step = all_four(rates[0]) / (root(sums) + all_four(epsilons[0]))
        other_step = all_four(rates[1]) / (root(other_sums) + all_four(epsilons[1]))
        one = all_four(_1)
        keep, other_keep = one - step * decay, one - other_step * other_decay
        step, other_step = zero - step * slope, zero - other_step * slope
        bias = bias - all_four(rates[2]) * gradient / (root(bias_sums) + all_four(epsilons[2]))
        other_bias = other_bias - all_four(rates[3]) * other_gradient / (root(other_bias_sums) + all_four(epsilons[3]))
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
        rows, n, stop, user, item, rating, users, items, user_bias, item_bias,
        user_sums, item_sums, user_bias_sums, item_bias_sums, mean, rates, decays, epsilons, of,
    ):  # fmt: skip
        return False, _0

    return by_row if not isinstance(of, types.NoneType) and 3 <= of.dtype.count <= MOST_BY_FOURS else by_number


@inlined
def all_four(number):  # type: ignore[no-untyped-def]
    return four(number, number, number, number)


@inlined
def put_four(table, a, b, c, d, values):  # type: ignore[no-untyped-def]
    table[a], table[b], table[c], table[d] = part(values, 0), part(values, 1), part(values, 2), part(values, 3)


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


NOTHING = (0.0, 0, 0.0, 0)


@inlined
def with_batch(sums, loss, applied):  # type: ignore[no-untyped-def]
    """Return (sum of the batches' mean losses, batches, sum of losses, samples) with a batch, if anything of it was
    applied."""
    if not applied:
        return sums
    mean_losses, batches, losses, samples = sums
    return mean_losses + loss / applied, batches + 1, losses + loss, samples + applied


# ---- kernels ---------------------------------------------------------------------------------------------------------


@kernel
def sgd(  # type: ignore[no-untyped-def]
    rows, borders, factors, columns, words, ignored, worker, stamp, insist, of,
    user, item, rating, users, items, user_bias, item_bias, mean, rates, decays,
):  # fmt: skip
    """Train on the samples [borders[b], borders[b + 1]) of each batch b. users (U, k), items (I, k), user_bias (U,),
    item_bias (I,), all float32."""
    sums, column = NOTHING, -1
    for b in range(len(factors)):
        if columns[b] != column:
            column = columns[b]
            has_entered, insist = enter(words, ignored, worker, stamp, column, insist)
            if not has_entered:
                return *sums, b
        rate, other_rate, bias_rate, other_bias_rate = (
            rates[0] * factors[b], rates[1] * factors[b], rates[2] * factors[b], rates[3] * factors[b]
        )  # fmt: skip
        keep, other_keep = _1 - rate * decays[0], _1 - other_rate * decays[1]
        bias_keep, other_bias_keep = _1 - bias_rate * decays[2], _1 - other_bias_rate * decays[3]
        loss, applied = 0.0, 0
        for n in range(borders[b], borders[b + 1]):
            ask_ahead(items, item, rows, n, borders[b + 1], of)
            at = place(rows, n)
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
        sums = with_batch(sums, loss, applied)
    return *sums, len(factors)


@kernel
def adagrad(  # type: ignore[no-untyped-def]
    rows, borders, factors, columns, words, ignored, worker, stamp, insist, of,
    user, item, rating, users, items, user_bias, item_bias,
    user_sums, item_sums, user_bias_sums, item_bias_sums, mean, rates, decays, epsilons,
):  # fmt: skip
    """Train as `sgd`, with a separate rate for each number (Duchi, Hazan and Singer 2011). Sums have the shapes of
    their tables."""
    sums, column = NOTHING, -1
    for b in range(len(factors)):
        if columns[b] != column:
            column = columns[b]
            has_entered, insist = enter(words, ignored, worker, stamp, column, insist)
            if not has_entered:
                return *sums, b
        now = rates * factors[b]
        loss, applied = 0.0, 0
        for n in range(borders[b], borders[b + 1]):
            ask_ahead(items, item, rows, n, borders[b + 1], of)
            ask_ahead(item_sums, item, rows, n, borders[b + 1], of)
            at = place(rows, n)
            u, i = np.uint64(user[at]), np.uint64(item[at])
            error = products(users, u, items, i, of)[0] + (user_bias[u] + item_bias[i] + mean - rating[at])
            slope = _2 * error
            if not is_finite(slope):
                continue
            loss += error * error
            applied += 1
            adagrad_rows(users, user_sums, u, items, item_sums, i, slope, now, decays, epsilons, of)
            adagrad_bias(user_bias, user_bias_sums, u, slope, now[2], decays[2], epsilons[2])
            adagrad_bias(item_bias, item_bias_sums, i, slope, now[3], decays[3], epsilons[3])
        sums = with_batch(sums, loss, applied)
    return *sums, len(factors)


@kernel
def row_adagrad(  # type: ignore[no-untyped-def]
    rows, borders, factors, columns, words, ignored, worker, stamp, insist, of,
    user, item, rating, users, items, user_bias, item_bias,
    user_sums, item_sums, user_bias_sums, item_bias_sums, mean, rates, decays, epsilons,
):  # fmt: skip
    """Train as `sgd`, with a separate rate for each row. user_sums (U,), item_sums (I,)."""
    sums, column = NOTHING, -1
    k = np.float32(users.shape[1])
    decay, other_decay, bias_decay, other_bias_decay = decays[0], decays[1], decays[2], decays[3]
    for b in range(len(factors)):
        if columns[b] != column:
            column = columns[b]
            has_entered, insist = enter(words, ignored, worker, stamp, column, insist)
            if not has_entered:
                return *sums, b
        now = rates * factors[b]
        loss, applied, n, stop = 0.0, 0, borders[b], borders[b + 1]
        while n < stop:
            if n + AHEAD + 4 < stop:
                for ahead in range(AHEAD, AHEAD + 4):
                    ask_for_row(items, item[place(rows, n + ahead)], of)
            are_done, lost = row_adagrad_by_fours(
                rows, n, stop, user, item, rating, users, items, user_bias, item_bias,
                user_sums, item_sums, user_bias_sums, item_bias_sums, mean, now, decays, epsilons, of,
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
            sum_, other_sum = (
                user_sums[u] + mean_square(slope, other, decay, own, z, k),
                item_sums[i] + mean_square(slope, own, other_decay, other, z, k),
            )
            if not is_finite(slope + sum_ + other_sum):  # an infinite sum would never recover
                continue
            loss += error * error
            applied += 1
            gradient, other_gradient = slope + bias_decay * bias, slope + other_bias_decay * other_bias
            bias_sum = user_bias_sums[u] + gradient * gradient
            other_bias_sum = item_bias_sums[i] + other_gradient * other_gradient
            step, other_step = now[0] / (np.sqrt(sum_) + epsilons[0]), now[1] / (np.sqrt(other_sum) + epsilons[1])
            keep, other_keep = _1 - step * decay, _1 - other_step * other_decay
            blend(users, u, items, i, keep, -step * slope, other_keep, -other_step * slope, of)
            user_sums[u], item_sums[i] = sum_, other_sum
            user_bias_sums[u], item_bias_sums[i] = bias_sum, other_bias_sum
            user_bias[u] = bias - now[2] * gradient / (np.sqrt(bias_sum) + epsilons[2])
            item_bias[i] = other_bias - now[3] * other_gradient / (np.sqrt(other_bias_sum) + epsilons[3])
        sums = with_batch(sums, loss, applied)
    return *sums, len(factors)
