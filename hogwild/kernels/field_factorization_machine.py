"""The field-aware factorisation machine (Juan, Zhuang, Chin and Lin, "Field-aware Factorization Machines for CTR
Prediction", 2016), one row after the other. A row has one feature of each of C fields.

    z = bias + sum of w_j x_j + the sum over fields a < b of <v[j_a, b], v[j_b, a]> x_a x_b

where j_a is the row's feature of field a and v[j, b] are the K numbers that feature j has for field b: the columns from
b K on of its row of `factors`. A row costs its pairs of fields times K.

For the race, and why an Adagrad step never exceeds its rate, see `linear.py`. Each number of a pair is read once, for
both gradients: so they are those of the same moment, if not of the one in which z was computed."""

import numpy as np

from hogwild.kernels.compiling import inlined, is_finite, kernel
from hogwild.kernels.ftrl import follow, ftrl_step
from hogwild.kernels.linear import adagrad_step, loss_and_slope
from hogwild.kernels.prefetch import ask_ahead

_0, _1 = np.float32(0.0), np.float32(1.0)


@inlined
def output(b, first, count, width, indices, values, weight, factors):  # type: ignore[no-untyped-def]
    """Return z of the row whose `count` features begin at `first`."""
    z, none, one = b, np.uint64(0), np.uint64(1)
    for a in range(count):
        i, x = indices[first + a], values[first + a]
        z += weight[i, none] * x
        for c in range(a + one, count):
            j = indices[first + c]
            product = _0
            for k in range(width):
                product += factors[i, c * width + k] * factors[j, a * width + k]
            z += product * x * values[first + c]
    return z


@inlined
def learn(param, sums, row, k, gradient, old, is_adagrad, rate, eps):  # type: ignore[no-untyped-def]
    """Update param[row, k], which was `old`."""
    if is_adagrad:
        total = sums[row, k] + gradient * gradient
        sums[row, k] = total
        param[row, k] = old - adagrad_step(total, gradient, rate, eps)
    else:
        param[row, k] = old - rate * gradient


@kernel
def field_factorization_machine(  # type: ignore[no-untyped-def]
    rows, indptr, indices, values, target, weights, kind, fields, weight, sums, factors, factor_sums, bias, bias_sums,
    is_adagrad, rate, decay, eps, factor_rate, factor_decay, factor_eps, bias_rate, bias_decay, bias_eps,
):  # fmt: skip
    """Train on rows `rows` (n,) of the data; return (loss, rows applied). weights (N,) of the rows, or (0,): 1 each.
    weight (F, 1), factors (F, C K), bias (1,); `fields` is C, and each row has C features. Sums have the shape of their
    parameters; SGD does not read them."""
    loss, applied = 0.0, 0
    width = np.uint64(factors.shape[1] // fields)
    count = np.uint64(fields)
    one, none = np.uint64(1), np.uint64(0)
    b = began = bias[0]
    b_total = b_total_began = bias_sums[0]
    for n in range(len(rows)):
        ask_ahead(rows, n, indptr, indices, values)
        first = indptr[rows[n]]
        z = output(b, first, count, width, indices, values, weight, factors)
        counts = weights[rows[n]] if len(weights) else _1
        if counts == _0:  # as if it were not there: its features do not decay
            applied += 1
            continue
        lost, slope = loss_and_slope(kind, z, target[rows[n]], counts)
        if not (is_finite(z) and is_finite(slope)):
            continue
        loss += lost
        applied += 1
        gradient = slope + bias_decay * b
        if is_adagrad:
            b_total += gradient * gradient
            b -= adagrad_step(b_total, gradient, bias_rate, bias_eps)
        else:
            b -= bias_rate * gradient
        for a in range(count):
            i, x = indices[first + a], values[first + a]
            old = weight[i, none]
            learn(weight, sums, i, none, slope * x + decay * old, old, is_adagrad, rate, eps)
            for c in range(a + one, count):
                j = indices[first + c]
                step = slope * x * values[first + c]
                for k in range(width):
                    p, q = c * width + k, a * width + k
                    left, right = factors[i, p], factors[j, q]
                    pull, push = step * right + factor_decay * left, step * left + factor_decay * right
                    learn(factors, factor_sums, i, p, pull, left, is_adagrad, factor_rate, factor_eps)
                    learn(factors, factor_sums, j, q, push, right, is_adagrad, factor_rate, factor_eps)
    bias[0] += b - began
    bias_sums[0] += b_total - b_total_began
    return loss, applied


@kernel
def ftrl(  # type: ignore[no-untyped-def]
    rows, indptr, indices, values, target, weights, kind, fields, weight, sums, far, factors, factor_sums, factor_far,
    bias, bias_sums, bias_far, rate, more, l1, factor_rate, factor_more, factor_l1, bias_rate, bias_more, bias_l1,
):  # fmt: skip
    """Train as `field_factorization_machine`, by FTRL-proximal (`ftrl.py`). far (F, 1), factor_far (F, C K), bias_far
    (1,): its z."""
    loss, applied = 0.0, 0
    width = np.uint64(factors.shape[1] // fields)
    count = np.uint64(fields)
    one, none = np.uint64(1), np.uint64(0)
    b = began = bias[0]
    b_total = b_total_began = bias_sums[0]
    b_far = bias_far[0]
    for n in range(len(rows)):
        ask_ahead(rows, n, indptr, indices, values)
        first = indptr[rows[n]]
        z = output(b, first, count, width, indices, values, weight, factors)
        counts = weights[rows[n]] if len(weights) else _1
        if counts == _0:  # as if it were not there: its features do not decay
            applied += 1
            continue
        lost, slope = loss_and_slope(kind, z, target[rows[n]], counts)
        if not (is_finite(z) and is_finite(slope)):
            continue
        loss += lost
        applied += 1
        if slope == _0:
            continue
        b_total += slope * slope
        b, b_far = ftrl_step(b, slope, b_total, b_far, bias_rate, bias_more, bias_l1)
        for a in range(count):
            i, x = indices[first + a], values[first + a]
            follow(weight, sums, far, i, none, slope * x, weight[i, none], rate, more, l1)
            for c in range(a + one, count):
                j = indices[first + c]
                step = slope * x * values[first + c]
                for k in range(width):
                    p, q = c * width + k, a * width + k
                    left, right = factors[i, p], factors[j, q]
                    pull, push = step * right, step * left
                    follow(factors, factor_sums, factor_far, i, p, pull, left, factor_rate, factor_more, factor_l1)
                    follow(factors, factor_sums, factor_far, j, q, push, right, factor_rate, factor_more, factor_l1)
    bias[0] += b - began
    bias_sums[0] += b_total - b_total_began
    bias_far[0] = b_far
    return loss, applied
