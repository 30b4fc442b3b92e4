"""The field-aware factorisation machine (Juan, Zhuang, Chin and Lin, "Field-aware Factorization Machines for CTR
Prediction", 2016), one row after the other. A row has one feature of each of C fields.

    z = bias + sum of w_j x_j + the sum over fields a < b of <v[j_a, b], v[j_b, a]> x_a x_b

where j_a is the row's feature of field a and v[j, b] are the K numbers that feature j has for field b: the columns from
b K on of its row of `factors`. A row costs its pairs of fields times K.

For the race, and why an Adagrad step never exceeds its rate, see `linear.py`. Each number of a pair is read once, for
both gradients: so they are those of the same moment, if not of the one in which z was computed."""

import numpy as np

from hogwild.kernels.compiling import inlined, kernel
from hogwild.kernels.linear import judged
from hogwild.kernels.prefetch import ask_ahead
from hogwild.kernels.steps import move, step

_0 = np.float32(0.0)


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


@kernel
def field_factorization_machine(  # type: ignore[no-untyped-def]
    rows, indptr, indices, values, target, weights, kind, fields, weight, sums, far, factors, factor_sums, factor_far,
    bias, bias_sums, bias_far, rule, own, others, of_bias,
):  # fmt: skip
    """Train on rows `rows` (n,) of the data by `rule` (`steps.py`); return (loss, rows applied). weights (N,) of the
    rows, or (0,): 1 each. weight (F, 1), factors (F, C K), bias (1,), each followed by its sums and its z, which have
    its shape where the rule has them; `fields` is C, and each row has C features. own, others, of_bias: the numbers of
    the three parameters."""
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
        is_sound, counts, lost, slope = judged(kind, z, target, weights, rows[n])
        if not is_sound:
            continue
        loss, applied = loss + lost, applied + 1
        if counts == _0:
            continue
        b, b_total, b_far = step(rule, b, slope, b_total, b_far, of_bias)
        for a in range(count):
            i, x = indices[first + a], values[first + a]
            move(rule, weight, sums, far, i, none, slope * x, weight[i, none], own)
            for c in range(a + one, count):
                j = indices[first + c]
                push = slope * x * values[first + c]
                for k in range(width):
                    p, q = c * width + k, a * width + k
                    left, right = factors[i, p], factors[j, q]
                    move(rule, factors, factor_sums, factor_far, i, p, push * right, left, others)
                    move(rule, factors, factor_sums, factor_far, j, q, push * left, right, others)
    bias[0] += b - began
    bias_sums[0] += b_total - b_total_began
    bias_far[0] = b_far
    return loss, applied
