"""One step of FTRL-proximal (`hogwild.optimizers.FTRL`) for one weight."""

import numpy as np

from hogwild.kernels.compiling import inlined

LEAST = np.float32(1e-10)  # as in hogwild/optimizers.py
_0 = np.float32(0.0)


@inlined
def ftrl_step(old, gradient, total, far, rate, more, l1):  # type: ignore[no-untyped-def]
    """Return (weight, z). `total` is a local that includes this gradient's square, `more` is beta + rate l2, `far` the
    z of a weight that is 0. A NaN is preserved."""
    own = rate / (np.sqrt(total) + more + LEAST)
    ahead = old - own * gradient
    if old * ahead > _0 or rate == _0:  # rate 0: a schedule has ended
        return ahead, far
    pull = -min(max(far, -l1), l1) - gradient  # of copies that were added up it may be more
    if old != _0:
        pull = ahead / own + (l1 if old > _0 else -l1)
    if pull > l1:
        return own * (pull - l1), -l1
    if pull < -l1:
        return own * (pull + l1), l1
    return (_0 if abs(pull) <= l1 else pull), -pull


@inlined
def follow(param, sums, far, row, k, gradient, old, rate, more, l1):  # type: ignore[no-untyped-def]
    """Update param[row, k], which was `old`, by FTRL-proximal."""
    total = sums[row, k] + gradient * gradient
    sums[row, k] = total
    param[row, k], far[row, k] = ftrl_step(old, gradient, total, far[row, k], rate, more, l1)
