"""The factorisation machine of degree 2 (Rendle, "Factorization Machines", 2010), one row after the other.

    z = bias + sum of w_j x_j + the sum over pairs j < k of <v_j, v_k> x_j x_k
      = bias + sum of w_j x_j + 1/2 sum over f of ((sum of v_jf x_j)^2 - sum of (v_jf x_j)^2)

so a row costs its non-zeros times the factors (his lemma 3.1), and dz/dv_jf is x_j (S_f - v_jf x_j), where S_f is the
first sum, kept from the first pass over the row for the second.

For the race, and why an Adagrad step never exceeds its rate, see `linear.py`. S_f uses the values of the first pass:
others may write before the second pass, so the gradient is slightly stale."""

import numpy as np

from hogwild.kernels.compiling import inlined, is_finite, kernel
from hogwild.kernels.ftrl import follow, ftrl_step
from hogwild.kernels.linear import adagrad_step, loss_and_slope
from hogwild.kernels.prefetch import ask_ahead

_0, _1 = np.float32(0.0), np.float32(1.0)
_HALF = np.float32(0.5)


@inlined
def add_feature(work, factors, row, x):  # type: ignore[no-untyped-def]
    """Add x times a feature's factors to `work` (K,); return the sum of their squares."""
    squares = _0
    for f in range(len(work)):
        part = factors[row, f] * x
        work[f] += part
        squares += part * part
    return squares


@inlined
def learn(  # type: ignore[no-untyped-def]
    weight, sums, factors, factor_sums, j, row, x, step, work, is_adagrad, rate, decay, eps,
    factor_rate, factor_decay, factor_eps,
):  # fmt: skip
    """Update feature j's weight and its factors, in row `row`, from one sample; `step` is the loss's slope times x."""
    gradient = step + decay * weight[j]
    if is_adagrad:
        total = sums[j] + gradient * gradient
        sums[j] = total
        weight[j] -= adagrad_step(total, gradient, rate, eps)
        for f in range(len(work)):
            old = factors[row, f]
            gradient = step * (work[f] - old * x) + factor_decay * old
            total = factor_sums[row, f] + gradient * gradient
            factor_sums[row, f] = total
            factors[row, f] = old - adagrad_step(total, gradient, factor_rate, factor_eps)
    else:
        weight[j] -= rate * gradient
        for f in range(len(work)):
            old = factors[row, f]
            factors[row, f] = old - factor_rate * (step * (work[f] - old * x) + factor_decay * old)


@kernel
def factorization_machine(  # type: ignore[no-untyped-def]
    rows, indptr, indices, values, target, weights, kind, weight, sums, mine, my_sums, factors, factor_sums, slot,
    local, local_sums, bias, bias_sums, work, is_adagrad, rate, decay, eps, factor_rate, factor_decay, factor_eps,
    bias_rate, bias_decay, bias_eps,
):  # fmt: skip
    """Train on rows `rows` (n,) of the data; return (loss, rows applied). weights (N,) of the rows, or (0,): 1 each.
    weight (F,) and factors (F, K). With H hot features (possibly 0): slot (F,), mine (F,), NaN for features that are
    not hot, and local (H, K). bias (1,). Sums have the shape of their parameters; SGD does not read them. `work`
    (K,)."""
    loss, applied = 0.0, 0
    hot, width = len(local), factors.shape[1]
    b = began = bias[0]
    b_total = b_total_began = bias_sums[0]
    for n in range(len(rows)):
        ask_ahead(rows, n, indptr, indices, values)
        first, last = indptr[rows[n]], indptr[rows[n] + 1]
        z, squares = b, _0
        for f in range(width):
            work[f] = _0
        for p in range(first, last):
            j, x = indices[p], values[p]
            s = slot[j] if hot else np.uint32(0)
            if s < hot:
                z += mine[j] * x
                squares += add_feature(work, local, s, x)
            else:
                z += weight[j] * x
                squares += add_feature(work, factors, j, x)
        pairs = -squares
        for f in range(width):
            pairs += work[f] * work[f]
        z += _HALF * pairs
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
        for p in range(first, last):
            j, x = indices[p], values[p]
            step = slope * x
            s = slot[j] if hot else np.uint32(0)
            if s < hot:
                learn(
                    mine, my_sums, local, local_sums, j, s, x, step, work, is_adagrad, rate, decay, eps,
                    factor_rate, factor_decay, factor_eps,
                )  # fmt: skip
            else:
                learn(
                    weight, sums, factors, factor_sums, j, j, x, step, work, is_adagrad, rate, decay, eps,
                    factor_rate, factor_decay, factor_eps,
                )  # fmt: skip
    bias[0] += b - began
    bias_sums[0] += b_total - b_total_began
    return loss, applied


@kernel
def ftrl(  # type: ignore[no-untyped-def]
    rows, indptr, indices, values, target, weights, kind, weight, sums, far, factors, factor_sums, factor_far, bias,
    bias_sums, bias_far, work, rate, more, l1, factor_rate, factor_more, factor_l1, bias_rate, bias_more, bias_l1,
):  # fmt: skip
    """Train as `factorization_machine`, by FTRL-proximal (`ftrl.py`), with nothing private, for the reason in
    `linear.ftrl`. far (F,), factor_far (F, K), bias_far (1,): its z."""
    loss, applied = 0.0, 0
    width = factors.shape[1]
    b = began = bias[0]
    b_total = b_total_began = bias_sums[0]
    b_far = bias_far[0]
    for n in range(len(rows)):
        ask_ahead(rows, n, indptr, indices, values)
        first, last = indptr[rows[n]], indptr[rows[n] + 1]
        z, pairs = b, _0
        for f in range(width):
            work[f] = _0
        for p in range(first, last):
            z += weight[indices[p]] * values[p]
            pairs -= add_feature(work, factors, indices[p], values[p])
        for f in range(width):
            pairs += work[f] * work[f]
        z += _HALF * pairs
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
        for p in range(first, last):
            j, x = indices[p], values[p]
            step = slope * x
            total = sums[j] + step * step
            sums[j] = total
            weight[j], far[j] = ftrl_step(weight[j], step, total, far[j], rate, more, l1)
            for f in range(width):
                old = factors[j, f]
                gradient = step * (work[f] - old * x)
                follow(factors, factor_sums, factor_far, j, f, gradient, old, factor_rate, factor_more, factor_l1)
    bias[0] += b - began
    bias_sums[0] += b_total - b_total_began
    bias_far[0] = b_far
    return loss, applied
