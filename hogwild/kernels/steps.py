"""One step of an update rule for one number: SGD, Adagrad, FTRL-proximal (`hogwild.optimizers.FTRL`).

`numbers` of a parameter, float32: (rate, weight decay, eps) for SGD and Adagrad, (rate, beta + rate l2, l1) for FTRL.
`rule` is a tuple whose length is SGD, ADAGRAD or FTRL: a length is part of a type, so each rule is compiled by itself.
As a number that inner loops ask after, it made a factorisation machine three times slower, a field-aware one ten.
A `table` is a parameter with its sums and its z, arrays of one shape where the rule has them."""

import numpy as np

from hogwild.kernels.compiling import inlined

SGD, ADAGRAD, FTRL = 1, 2, 3  # as in optimizer_rules.py, which needs no numba
LEAST = np.float32(1e-10)  # as in hogwild/optimizers.py
_0 = np.float32(0.0)


@inlined
def adagrad_step(total, gradient, rate, eps):  # type: ignore[no-untyped-def]
    """Return the amount to subtract from a parameter. `total` is a local that includes this gradient's square."""
    return rate * gradient / (np.sqrt(total) + eps)


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
def step(rule, old, gradient, total, far, numbers):  # type: ignore[no-untyped-def]
    """Return (number, its sum, its z) after a number that was `old`."""
    rate, second, third = numbers
    if len(rule) == FTRL:
        total += gradient * gradient
        old, far = ftrl_step(old, gradient, total, far, rate, second, third)
        return old, total, far
    gradient += second * old
    if len(rule) == ADAGRAD:
        total += gradient * gradient
        return old - adagrad_step(total, gradient, rate, third), total, far
    return old - rate * gradient, total, far


@inlined
def descend(rule, table, at, gradient, rate, eps):  # type: ignore[no-untyped-def]
    """Update a number by SGD or Adagrad; `gradient` includes the decay, and the number is read again."""
    values, sums, _ = table
    if len(rule) == ADAGRAD:
        total = sums[at] + gradient * gradient  # read once, into a local: the race in `sparse_models.py`
        sums[at] = total
        values[at] -= adagrad_step(total, gradient, rate, eps)
    else:
        values[at] -= rate * gradient


@inlined
def move(rule, table, at, gradient, old, numbers):  # type: ignore[no-untyped-def]
    """Update the number `at` of a table, a place or a tuple of places, which was `old`. A sum is read once (the race in
    `sparse_models.py`); what a rule does not have is neither read nor written."""
    values, sums, far = table
    total = sums[at] if len(rule) != SGD else _0
    z = far[at] if len(rule) == FTRL else _0
    values[at], total, z = step(rule, old, gradient, total, z, numbers)
    if len(rule) != SGD:
        sums[at] = total
    if len(rule) == FTRL:
        far[at] = z
