"""Linear models over sparse rows: one output (logistic, hinge, squared) or one per class (softmax), SGD and Adagrad;
FTRL-proximal for one output.

    z = bias + sum of weight[j] * x_j          over the features j of a row
    weight[j] -= rate * slope(z) * x_j         at once, before the next row is read

The race. Workers write the same words without a lock; a write between another worker's read and write is lost:
occasionally a gradient. Adagrad also divides by the root of a sum that may go back to an older value. So a sum is read
once, into a local variable, the worker's own square is added there, and the step divides by the root of that local:

    total = sums[j] + g^2;  sums[j] = total;  weight[j] -= rate * g / (sqrt(total) + eps)      |step| <= rate

whatever others write. Dividing by `sums[j]`, read a second time, would give a step of rate * g / eps if it is 0 by
then.

Hot features. `mine` (F,) is this worker's copy of them, NaN where a feature is not hot (`hot_rows.py`), or `weight`
itself. A row's most frequent features come first: they are read from `mine` four at a time until a sum is NaN, and the
few remaining ones are checked one by one. So later hot features are found as well, and four features without a NaN need
no check at all.

Speed. Indices are unsigned (`indices.view(uint32)`): for a signed index numba checks at every access whether it counts
from the end, which cost more than half of the speed. No array is passed to a function inside a loop, which would count
references. The bias is in every row: a call keeps its own copy and adds its change at the end. Adagrad computes the
roots and divisions of a block of features together, several per instruction: 25 % faster."""

import numpy as np

from hogwild.kernels.compiling import inlined, is_finite, kernel
from hogwild.kernels.prefetch import ask_ahead
from hogwild.kernels.steps import ADAGRAD, FTRL, adagrad_step, move_one, step

SIGNS, PROBABILITIES, HINGE, SQUARED = 0, 1, 2, 3  # kinds of loss
BLOCK = np.uint64(256)  # features: their work arrays stay in the first-level cache

_0, _1, _2 = np.float32(0.0), np.float32(1.0), np.float32(2.0)
_1U, _2U, _3U, _4U = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


@inlined
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


@inlined
def judged(kind, z, target, weights, row):  # type: ignore[no-untyped-def]
    """Return (whether the row counts as applied, its weight, its loss, its slope). One of weight 0 is as if it were not
    there: its features do not decay."""
    counts = weights[row] if len(weights) else _1
    lost, slope = loss_and_slope(kind, z, target[row], counts)
    if counts == _0:
        return True, counts, _0, _0
    return is_finite(z) and is_finite(slope), counts, lost, slope


@inlined
def output(b, first, last, indices, values, mine, weight):  # type: ignore[no-untyped-def]
    """Return (z, end of the hot features) of the row [first, last): four features at a time while all four are hot,
    then each from the copy that has it."""
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


@kernel
def train(  # type: ignore[no-untyped-def]
    rows, indptr, indices, values, target, weights, kind, weight, sums, far, bias, bias_sums, bias_far,
    mine, my_sums, work, rule, own, of_bias,
):  # fmt: skip
    """Train on rows `rows` (n,) of the data by `rule` (`steps.py`), one after the other; return (loss, rows applied).
    weights (N,) of the rows, or (0,): 1 each. weight (F,) and bias (1,), each followed by its sums and its z, which
    have its shape where the rule has them; mine (F,) and its sums. own, of_bias: the numbers of both parameters; the
    decay is that of the features in a row. `work` (2, at least BLOCK) is scratch memory. By FTRL nothing is private:
    two workers that cut the same weight to 0, each in its copy, would together push it beyond."""
    rate, decay, eps = own
    loss, applied = 0.0, 0
    b = began = bias[0]
    b_total = b_total_began = bias_sums[0]
    b_far = bias_far[0]
    for n in range(len(rows)):
        ask_ahead(rows, n, indptr, indices, values)
        first, last = indptr[rows[n]], indptr[rows[n] + 1]
        z, split = output(b, first, last, indices, values, mine, weight)
        is_sound, counts, lost, slope = judged(kind, z, target, weights, rows[n])
        if not is_sound:
            continue
        loss, applied = loss + lost, applied + 1
        if counts == _0 or (slope == _0 and (decay == _0 or len(rule) == FTRL)):  # outside a hinge's margin
            continue
        b, b_total, b_far = step(rule, b, slope, b_total, b_far, of_bias)
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
            move_one(rule, mine, my_sums, far, j, slope * values[p], mine[j], own)
        for p in range(split, last):
            j = indices[p]
            old = mine[j]
            if old == old:
                move_one(rule, mine, my_sums, far, j, slope * values[p], old, own)
            else:
                move_one(rule, weight, sums, far, j, slope * values[p], weight[j], own)
    bias[0] += b - began
    bias_sums[0] += b_total - b_total_began
    bias_far[0] = b_far
    return loss, applied


@kernel
def softmax(  # type: ignore[no-untyped-def]
    rows, indptr, indices, values, target, weights, weight, sums, slot, local, local_sums, bias, bias_sums, work,
    rule, rate, decay, eps, bias_rate, bias_decay, bias_eps,
):  # fmt: skip
    """Train with one output per class: weight (F, C), slot (F,) and local (H, C) of its hot features (H may be 0), bias
    (C,), `work` (5, C) as scratch memory, target (N,) int64. SGD does not read the sums, which have the same shapes. A
    target that is not a class is not applied."""
    loss, applied = 0.0, 0
    classes, hot = weight.shape[1], len(local)
    scores, b, b_began, b_sums, b_sums_began = work[0], work[1], work[2], work[3], work[4]
    for c in range(classes):
        b[c] = b_began[c] = bias[c]
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
        largest, whole, own = scores[0], _0, scores[wanted]
        for c in range(classes):
            largest = max(largest, scores[c])
        for c in range(classes):
            scores[c] = np.exp(scores[c] - largest)
            whole += scores[c]
        lost = np.log(whole) + largest - own
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
            gradient = scores[c] + bias_decay * b[c]
            if len(rule) == ADAGRAD:
                total = b_sums[c] + gradient * gradient
                b_sums[c] = total
                b[c] -= adagrad_step(total, gradient, bias_rate, bias_eps)
            else:
                b[c] -= bias_rate * gradient
        for p in range(first, last):
            j, x = indices[p], values[p]
            s = slot[j] if hot else np.uint32(0)
            if s < hot:
                for c in range(classes):
                    gradient = scores[c] * x + decay * local[s, c]
                    if len(rule) == ADAGRAD:
                        total = local_sums[s, c] + gradient * gradient
                        local_sums[s, c] = total
                        local[s, c] -= adagrad_step(total, gradient, rate, eps)
                    else:
                        local[s, c] -= rate * gradient
            else:
                for c in range(classes):
                    gradient = scores[c] * x + decay * weight[j, c]
                    if len(rule) == ADAGRAD:
                        total = sums[j, c] + gradient * gradient
                        sums[j, c] = total
                        weight[j, c] -= adagrad_step(total, gradient, rate, eps)
                    else:
                        weight[j, c] -= rate * gradient
    for c in range(classes):
        bias[c] += b[c] - b_began[c]
        bias_sums[c] += b_sums[c] - b_sums_began[c]
    return loss, applied
