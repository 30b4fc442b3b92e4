"""Models over sparse rows, one row after the other: linear ones, factorisation machines and field-aware ones, with one
output (logistic, hinge, squared) and SGD, Adagrad or FTRL-proximal; and a linear model with an output per class
(softmax), SGD and Adagrad.

    linear            z = bias + sum of w_j x_j          over the features j of a row
    machine           ... + the sum over pairs j < k of <v_j, v_k> x_j x_k
                        = ... + 1/2 sum over f of ((sum of v_jf x_j)^2 - sum of (v_jf x_j)^2)
    field machine     ... + the sum over fields a < b of <v[j_a, b], v[j_b, a]> x_a x_b

Machine (Rendle, "Factorization Machines", 2010): a row costs its non-zeros times the factors (his lemma 3.1), and
dz/dv_jf is x_j (S_f - v_jf x_j), where S_f is the first sum, kept from the first pass over the row for the second.
Field machine (Juan, Zhuang, Chin and Lin, "Field-aware Factorization Machines for CTR Prediction", 2016): j_a is the
row's feature of field a, of C, and v[j, b] are the K numbers that feature j has for field b: the columns from b K on of
its row of `factors`. A row costs its pairs of fields times K.

Each row's gradients are applied at once, before the next row is read. A family is two functions given to `over_rows`:
the output, and what is learnt from its slope.

The race. Workers write the same words without a lock; a write between another worker's read and write is lost:
occasionally a gradient. Adagrad also divides by the root of a sum that may go back to an older value. So a sum is read
once, into a local variable, the worker's own square is added there, and the step divides by the root of that local:

    total = sums[j] + g^2;  sums[j] = total;  weight[j] -= rate * g / (sqrt(total) + eps)      |step| <= rate

whatever others write. Dividing by `sums[j]`, read a second time, would give a step of rate * g / eps if it is 0 by
then. A machine's S_f are those of the first pass, others may write before the second: its gradient is slightly stale. A
field machine reads each number of a pair once, for both gradients.

Hot features. A linear model's `mine` (F,) is this worker's copy of them, NaN where a feature is not hot
(`hot_rows.py`), or `weight` itself. A row's most frequent features come first: they are read from `mine` four at a time
until a sum is NaN, and the few remaining ones are checked one by one. So later hot features are found as well, and four
features without a NaN need no check at all. By FTRL nothing is private: two workers that cut the same weight to 0, each
in its copy, would together push it beyond.

Speed. Indices are unsigned (`indices.view(uint32)`): for a signed index numba checks at every access whether it counts
from the end, which cost more than half of the speed. The bias is in every row: a call keeps its own copy and adds its
change at the end. A linear model's Adagrad computes the roots and divisions of a block of features together, several
per instruction: 25 % faster.

Arguments. `rows` (n,) int64. `data`: indptr (N+1,) uint64, indices uint32, values, target (N,), weights (N,) of the
rows, or (0,): 1 each. `kind`: of loss. A parameter is a table and `rule` one of `steps.py`; `numbers` are those of
`tables`, then of the bias (1,)."""

import numpy as np

from hogwild.kernels.compiling import is_finite, kernel, only_in_kernels, shared_body
from hogwild.kernels.simd import ask_ahead
from hogwild.kernels.steps import ADAGRAD, FTRL, adagrad_step, move, step

SIGNS, PROBABILITIES, HINGE, SQUARED = 0, 1, 2, 3  # kinds of loss
BLOCK = np.uint64(256)  # features: their work arrays stay in the first-level cache

_0, _1, _2, _HALF = np.float32(0.0), np.float32(1.0), np.float32(2.0), np.float32(0.5)
_0U, _1U, _2U, _3U, _4U = (np.uint64(n) for n in range(5))


@only_in_kernels
def loss_and_slope(kind, z, wanted, counts):  # type: ignore[no-untyped-def]
    """Return (loss, its derivative by z) of one output, float32. `wanted`: a sign, a probability or a number; `counts`:
    the sample's weight."""
    if kind == SQUARED:
        return counts * (z - wanted) * (z - wanted), counts * _2 * (z - wanted)
    if kind == HINGE:
        side = _1 if wanted > _0 else -_1
        short = _1 - side * z
        return (counts * short, counts * -side) if short > _0 else (_0, _0)
    if kind != PROBABILITIES:
        wanted = _1 if wanted > _0 else _0
    small = np.exp(-abs(z))  # never overflows
    loss = np.log(_1 + small) + max(z, _0) - wanted * z
    return counts * loss, counts * ((_1 if z >= _0 else small) / (_1 + small) - wanted)


@only_in_kernels
def judged(kind, z, target, weights, row):  # type: ignore[no-untyped-def]
    """Return (whether the row counts as applied, its weight, its loss, its slope). One of weight 0 is as if it were not
    there: its features do not decay."""
    counts = weights[row] if len(weights) else _1
    lost, slope = loss_and_slope(kind, z, target[row], counts)
    if counts == _0:
        return True, counts, _0, _0
    return is_finite(z) and is_finite(slope), counts, lost, slope


@shared_body
def over_rows(output, learn, rows, data, kind, tables, bias, private, rule, numbers, skips_flat):  # type: ignore[no-untyped-def]
    """Train a family on `rows`; return (loss, rows applied). `output` returns (z, the end of the row's features that it
    read in another way, which `learn` gets back). `skips_flat`: a row without a slope changes nothing."""
    indptr, indices, values, target, weights = data
    biases, bias_sums, bias_far = bias
    loss, applied = 0.0, 0
    b = began = biases[0]
    b_total = b_total_began = bias_sums[0]
    b_far = bias_far[0]
    for n in range(len(rows)):
        ask_ahead(rows, n, indptr, indices, values)
        first, last = indptr[rows[n]], indptr[rows[n] + 1]
        z, split = output(b, first, last, indices, values, tables, private)
        is_sound, counts, lost, slope = judged(kind, z, target, weights, rows[n])
        if not is_sound:
            continue
        loss, applied = loss + lost, applied + 1
        if counts == _0 or (skips_flat and slope == _0):  # outside a hinge's margin
            continue
        b, b_total, b_far = step(rule, b, slope, b_total, b_far, numbers[-1])
        learn(slope, first, split, last, indices, values, tables, private, rule, numbers)
    biases[0] += b - began
    bias_sums[0] += b_total - b_total_began
    bias_far[0] = b_far
    return loss, applied


# ---- linear ----------------------------------------------------------------------------------------------------------


@only_in_kernels
def linear_output(b, first, last, indices, values, tables, private):  # type: ignore[no-untyped-def]
    """Return (z, end of the hot features) of the row [first, last): four features at a time while all four are hot,
    then each from the copy that has it."""
    weight, mine = tables[0][0], private[0][0]
    z, split = b, first
    while split + _4U <= last:
        i, j, k, m = indices[split], indices[split + _1U], indices[split + _2U], indices[split + _3U]
        part = mine[i] * values[split] + mine[j] * values[split + _1U]
        part += mine[k] * values[split + _2U] + mine[m] * values[split + _3U]
        if part != part:
            break
        z += part
        split += _4U
    for p in range(split, last):
        old = mine[indices[p]]
        if old != old:
            old = weight[indices[p]]
        z += old * values[p]
    return z, split


@only_in_kernels
def linear_learn(slope, first, split, last, indices, values, tables, private, rule, numbers):  # type: ignore[no-untyped-def]
    """Update the row's weights, those before `split` in `mine`."""
    shared, (own, work) = tables[0], private
    weight, (mine, my_sums, _) = shared[0], own
    rate, decay, eps = numbers[0]
    start = first
    while start < split and len(rule) == ADAGRAD:
        size = min(BLOCK, split - start)
        for p in range(size):
            j = indices[start + p]
            gradient = slope * values[start + p] + decay * mine[j]
            total = my_sums[j] + gradient * gradient
            my_sums[j] = total
            work[0, p], work[1, p] = gradient, total
        for p in range(size):
            work[0, p] = adagrad_step(work[1, p], work[0, p], rate, eps)
        for p in range(size):
            mine[indices[start + p]] -= work[0, p]
        start += size
    for p in range(start, split):
        j = indices[p]
        move(rule, own, j, slope * values[p], mine[j], numbers[0])
    for p in range(split, last):
        j = indices[p]
        old = mine[j]
        if old == old:
            move(rule, own, j, slope * values[p], old, numbers[0])
        else:
            move(rule, shared, j, slope * values[p], weight[j], numbers[0])


@kernel
def linear(rows, data, kind, tables, bias, private, rule, numbers):  # type: ignore[no-untyped-def]
    """Train a linear model; return (loss, rows applied). `tables`: of weights (F,); `private`: that of this worker's
    copies, `work` (2, at least BLOCK) as scratch memory. The decay is that of the features in a row."""
    skips_flat = numbers[0][1] == _0 or len(rule) == FTRL
    return over_rows(linear_output, linear_learn, rows, data, kind, tables, bias, private, rule, numbers, skips_flat)


# ---- factorisation machine -------------------------------------------------------------------------------------------


@only_in_kernels
def add_feature(work, factors, row, x):  # type: ignore[no-untyped-def]
    """Add x times a feature's factors to `work` (K,); return the sum of their squares."""
    squares = _0
    for f in range(len(work)):
        part = factors[row, f] * x
        work[f] += part
        squares += part * part
    return squares


@only_in_kernels
def machine_output(b, first, last, indices, values, tables, private):  # type: ignore[no-untyped-def]
    (weight, _, _), (factors, _, _) = tables
    (mine, _, _), slot, (local, _, _), work = private
    hot, width = len(local), len(work)
    z, squares = b, _0
    for f in range(width):
        work[f] = _0
    for p in range(first, last):
        j, x = indices[p], values[p]
        s = slot[j] if hot else np.uint32(0)
        if s < hot:
            z += mine[j, _0U] * x
            squares += add_feature(work, local, s, x)
        else:
            z += weight[j, _0U] * x
            squares += add_feature(work, factors, j, x)
    pairs = -squares
    for f in range(width):
        pairs += work[f] * work[f]
    return z + _HALF * pairs, last


@only_in_kernels
def learn_feature(weights, factors, j, row, x, slope, work, rule, numbers):  # type: ignore[no-untyped-def]
    """Update feature j's weight and its factors, in row `row`, from one sample; `slope` is the loss's, times x."""
    move(rule, weights, (j, _0U), slope, weights[0][j, _0U], numbers[0])
    for f in range(len(work)):
        old = factors[0][row, f]
        move(rule, factors, (row, f), slope * (work[f] - old * x), old, numbers[1])


@only_in_kernels
def machine_learn(slope, first, split, last, indices, values, tables, private, rule, numbers):  # type: ignore[no-untyped-def]
    (weights, factors), (mine, slot, local, work) = tables, private
    hot = len(local[0])
    for p in range(first, last):
        j, x = indices[p], values[p]
        s = slot[j] if hot else np.uint32(0)
        if s < hot:
            learn_feature(mine, local, j, s, x, slope * x, work, rule, numbers)
        else:
            learn_feature(weights, factors, j, j, x, slope * x, work, rule, numbers)


@kernel
def factorization_machine(rows, data, kind, tables, bias, private, rule, numbers):  # type: ignore[no-untyped-def]
    """Train a factorisation machine; return (loss, rows applied). `tables`: of weights (F, 1 or more), in the first
    column, and of factors (F, K or more), in the first K; `private`: with H hot features a table (F, 1), NaN for
    features that are not hot, their places (F,) in the next, and a table (H, K); `work` (K,) as scratch memory."""
    return over_rows(machine_output, machine_learn, rows, data, kind, tables, bias, private, rule, numbers, False)


# ---- field-aware factorisation machine -------------------------------------------------------------------------------


@only_in_kernels
def field_output(b, first, last, indices, values, tables, private):  # type: ignore[no-untyped-def]
    (weight, _, _), (factors, _, _) = tables
    z, count, width = b, np.uint64(private), np.uint64(factors.shape[1] // private)
    for a in range(count):
        i, x = indices[first + a], values[first + a]
        z += weight[i, _0U] * x
        for c in range(a + _1U, count):
            j = indices[first + c]
            product = _0
            for k in range(width):
                product += factors[i, c * width + k] * factors[j, a * width + k]
            z += product * x * values[first + c]
    return z, last


@only_in_kernels
def field_learn(slope, first, split, last, indices, values, tables, private, rule, numbers):  # type: ignore[no-untyped-def]
    weights, vectors = tables
    weight, factors = weights[0], vectors[0]
    count, width = np.uint64(private), np.uint64(factors.shape[1] // private)
    for a in range(count):
        i, x = indices[first + a], values[first + a]
        move(rule, weights, (i, _0U), slope * x, weight[i, _0U], numbers[0])
        for c in range(a + _1U, count):
            j = indices[first + c]
            push = slope * x * values[first + c]
            for k in range(width):
                p, q = c * width + k, a * width + k
                left, right = factors[i, p], factors[j, q]
                move(rule, vectors, (i, p), push * right, left, numbers[1])
                move(rule, vectors, (j, q), push * left, right, numbers[1])


@kernel
def field_factorization_machine(rows, data, kind, tables, bias, private, rule, numbers):  # type: ignore[no-untyped-def]
    """Train a field-aware machine; return (loss, rows applied). `tables`: of weights (F, 1) and of factors
    (F, C K); `private`: only the number of fields C; each row has C features."""
    return over_rows(field_output, field_learn, rows, data, kind, tables, bias, private, rule, numbers, False)


# ---- softmax ---------------------------------------------------------------------------------------------------------


@kernel
def softmax(rows, data, tables, bias, private, rule, numbers):  # type: ignore[no-untyped-def]
    """Train a linear model with one output per class; return (loss, rows applied). `tables`: of weights (F, C);
    `private`: a table (H, C) of the hot ones, H may be 0, their places (F,), `work` (5, C) as scratch memory; bias
    (C,); target int64. A target that is not a class is not applied."""
    indptr, indices, values, target, weights = data
    shared, (own, slot, work) = tables[0], private
    weight, local = shared[0], own[0]
    biases, bias_sums, _ = bias
    loss, applied = 0.0, 0
    classes, hot = weight.shape[1], len(local)
    scores, b, b_began, b_sums, b_sums_began = work[0], work[1], work[2], work[3], work[4]
    for c in range(classes):
        b[c] = b_began[c] = biases[c]
        b_sums[c] = b_sums_began[c] = bias_sums[c]
    for n in range(len(rows)):
        ask_ahead(rows, n, indptr, indices, values)
        first, last, wanted = indptr[rows[n]], indptr[rows[n] + 1], target[rows[n]]
        if wanted < 0 or wanted >= classes:
            continue
        for c in range(classes):
            scores[c] = b[c]
        for p in range(first, last):
            j, x = indices[p], values[p]
            s = slot[j] if hot else np.uint32(0)
            if s < hot:
                for c in range(classes):
                    scores[c] += local[s, c] * x
            else:
                for c in range(classes):
                    scores[c] += weight[j, c] * x
        largest, whole, right = scores[0], _0, scores[wanted]
        for c in range(classes):
            largest = max(largest, scores[c])
        for c in range(classes):
            scores[c] = np.exp(scores[c] - largest)
            whole += scores[c]
        lost = np.log(whole) + largest - right
        if not (is_finite(lost) and is_finite(whole)):
            continue
        counts = weights[rows[n]] if len(weights) else _1
        if counts == _0:  # as if it were not there: its features do not decay
            applied += 1
            continue
        loss += counts * lost
        applied += 1
        for c in range(classes):
            scores[c] = counts * (scores[c] / whole)  # now the loss's derivative by the score
        scores[wanted] -= counts
        for c in range(classes):
            b[c], b_sums[c], _ = step(rule, b[c], scores[c], b_sums[c], _0, numbers[1])
        for p in range(first, last):
            j, x = indices[p], values[p]
            s = slot[j] if hot else np.uint32(0)
            if s < hot:
                for c in range(classes):
                    move(rule, own, (s, c), scores[c] * x, local[s, c], numbers[0])
            else:
                for c in range(classes):
                    move(rule, shared, (j, c), scores[c] * x, weight[j, c], numbers[0])
    for c in range(classes):
        biases[c] += b[c] - b_began[c]
        bias_sums[c] += b_sums[c] - b_sums_began[c]
    return loss, applied
