"""Losses over candidates, inside a kernel: a row of scores becomes the weights that its gradient is made with."""

import numpy as np

from hogwild.kernels.compiling import inlined, is_finite
from hogwild.kernels.products import BLOCK

SOFTMAX, LOGISTIC, MARGIN = 0, 1, 2

_0, _1, _HALF = np.float32(0.0), np.float32(1.0), np.float32(0.5)
_LOW = np.float32(-np.inf)
_LOG2E, _LN2 = np.float32(1.4426950408889634), np.float32(0.6931471805599453)
_P2, _P3, _P4, _P5, _P6 = (np.float32(1.0 / n) for n in (2, 6, 24, 120, 720))
_BIAS, _MANTISSA = np.int32(127), np.int32(23)


@inlined
def exp(x):  # type: ignore[no-untyped-def]
    """e^x in float32 to 1e-6 near 0 and 4e-6 at the ends, 0 below -86: a polynomial and an exponent, which is
    vectorised where a call of the library is not. NaN is not kept: the caller has looked."""
    t = min(max(x * _LOG2E, np.float32(-126.0)), np.float32(126.0))
    whole = np.floor(t + _HALF)
    f = (t - whole) * _LN2
    p = _1 + f * (_1 + f * (_P2 + f * (_P3 + f * (_P4 + f * (_P5 + f * _P6)))))
    power = np.int32((np.int32(whole) + _BIAS) << _MANTISSA).view(np.float32)
    return p * power if t > np.float32(-124.0) else _0


@inlined
def weigh(loss, margin, S, q, own, drawn, count, positive, right):  # type: ignore[no-untyped-def]
    """The loss of query q, whose right answer is row `own` with the score positive[q]; `right` (queries,) gets its
    weight, S[q] the weights of what was drawn. What was drawn and is the right answer is no negative, nor is a column
    past `count`. NaN where a score is not finite: then the weights mean nothing."""
    p = positive[q]
    total, negatives, value = p, _0, _0
    for j in range(count):
        total += S[q, j]
    for j in range(count):
        is_negative = drawn[j] != own
        negatives += _1 if is_negative else _0
        S[q, j] = S[q, j] if is_negative else _LOW
    for j in range(count, S.shape[1]):
        S[q, j] = _LOW
    if not is_finite(total):
        return np.float32(np.nan)
    if loss == SOFTMAX:
        return weigh_softmax(S, q, p, right)
    each = _1 / max(negatives, _1)
    if loss == MARGIN:
        short = _0
        for j in range(S.shape[1]):
            lack = margin - p + S[q, j]
            value += max(lack, _0)
            w = each if lack > _0 else _0
            S[q, j] = w
            short += w
        right[q] = -short
        return value * each
    for first in range(0, S.shape[1], BLOCK):
        product = _1  # one logarithm for eight of them
        for j in range(first, first + BLOCK):
            s = S[q, j]
            e = exp(-abs(s))
            value += max(s, _0)
            product *= _1 + e
            S[q, j] = each * (_1 if s >= _0 else e) / (_1 + e)
        value += np.log(product)
    e = exp(-abs(p))
    right[q] = -(e if p >= _0 else _1) / (_1 + e)
    return each * value + max(-p, _0) + np.log1p(e)


@inlined
def weigh_softmax(S, q, p, right):  # type: ignore[no-untyped-def]
    """Cross-entropy of the right answer among all."""
    top = p
    for j in range(S.shape[1]):
        top = max(top, S[q, j])
    own = exp(p - top)
    mass = own
    for j in range(S.shape[1]):
        e = exp(S[q, j] - top)
        S[q, j] = e
        mass += e
    share = _1 / mass
    others = _0
    for j in range(S.shape[1]):
        S[q, j] *= share
        others += S[q, j]
    right[q] = -others
    return np.log(mass) + top - p
