"""The factorisation machine of degree 2 (Rendle, "Factorization Machines", 2010), one row after the other.

    z = bias + sum of w_j x_j + the sum over pairs j < k of <v_j, v_k> x_j x_k
      = bias + sum of w_j x_j + 1/2 sum over f of ((sum of v_jf x_j)^2 - sum of (v_jf x_j)^2)

so a row costs its non-zeros times the factors (his lemma 3.1), and dz/dv_jf is x_j (S_f - v_jf x_j), where S_f is the
first sum, kept from the first pass over the row for the second.

For the race, and why an Adagrad step never exceeds its rate, see `linear.py`. S_f uses the values of the first pass:
others may write before the second pass, so the gradient is slightly stale."""

import numpy as np

from hogwild.kernels.compiling import inlined, kernel
from hogwild.kernels.linear import judged
from hogwild.kernels.prefetch import ask_ahead
from hogwild.kernels.steps import move, step

_0, _HALF = np.float32(0.0), np.float32(0.5)
_first = np.uint64(0)  # the only column of `weight`


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
    rule, weight, sums, far, factors, factor_sums, factor_far, j, row, x, slope, work, own, others
):  # fmt: skip
    """Update feature j's weight and its factors, in row `row`, from one sample; `slope` is the loss's, times x."""
    move(rule, weight, sums, far, j, _first, slope, weight[j, _first], own)
    for f in range(len(work)):
        old = factors[row, f]
        move(rule, factors, factor_sums, factor_far, row, f, slope * (work[f] - old * x), old, others)


@kernel
def factorization_machine(  # type: ignore[no-untyped-def]
    rows, indptr, indices, values, target, weights, kind, weight, sums, far, factors, factor_sums, factor_far,
    bias, bias_sums, bias_far, mine, my_sums, slot, local, local_sums, work, rule, own, others, of_bias,
):  # fmt: skip
    """Train on rows `rows` (n,) of the data by `rule` (`steps.py`); return (loss, rows applied). weights (N,) of the
    rows, or (0,): 1 each. weight (F, 1), factors (F, K), bias (1,), each followed by its sums and its z, which have its
    shape where the rule has them. With H hot features (0 with FTRL, for the reason in `linear.train`): slot (F,), mine
    (F, 1), NaN for features that are not hot, and local (H, K). `work` (K,); own, others, of_bias: the numbers of the
    three parameters."""
    loss, applied = 0.0, 0
    hot, width = len(local), factors.shape[1]
    b = began = bias[0]
    b_total = b_total_began = bias_sums[0]
    b_far = bias_far[0]
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
                z += mine[j, _first] * x
                squares += add_feature(work, local, s, x)
            else:
                z += weight[j, _first] * x
                squares += add_feature(work, factors, j, x)
        pairs = -squares
        for f in range(width):
            pairs += work[f] * work[f]
        z += _HALF * pairs
        is_sound, counts, lost, slope = judged(kind, z, target, weights, rows[n])
        if not is_sound:
            continue
        loss, applied = loss + lost, applied + 1
        if counts == _0:
            continue
        b, b_total, b_far = step(rule, b, slope, b_total, b_far, of_bias)
        for p in range(first, last):
            j, x = indices[p], values[p]
            s = slot[j] if hot else np.uint32(0)
            if s < hot:
                learn(rule, mine, my_sums, far, local, local_sums, factor_far, j, s, x, slope * x, work, own, others)
            else:
                learn(rule, weight, sums, far, factors, factor_sums, factor_far, j, j, x, slope * x, work, own, others)
    bias[0] += b - began
    bias_sums[0] += b_total - b_total_began
    bias_far[0] = b_far
    return loss, applied
