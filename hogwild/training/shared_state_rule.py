"""Optimizer state that all workers share, hardened against lost writes: Adagrad, RMSprop, Adam, AdamW, RAdam.

    read     own <- shared, each word once; `own` is corrected if no single worker could have computed it
    step     torch's own rule over `own`: it accumulates and divides in this worker's private memory
    write    shared <- own

The race. Between `read` and `write` others read and write the same words, without a lock: accumulators return to
earlier values, a block at a time, and m and v of one word may differ in age. In torch's own passes over shared memory a
worker then divides by an accumulator without its own gradient, and one update is larger than a million ordinary ones.
Here it divides by what it has just computed from its one read, so whatever the others write:

    Adagrad   sum >= g^2                         |update| <= lr
    RMSprop   v >= (1-a) g^2                     |update| <= lr / sqrt(1-a), with momentum 1/(1-momentum) times that
    Adam(W)   v >= (1-b2) g^2  and  v >= c m^2   |update| <= lr / sqrt(c), times sqrt(1-b2^t) / (1-b1^t)

g is the gradient that the rule accumulates: after maximize, and with weight decay if that is part of the gradient
(AdamW's is not). eps only adds; amsgrad divides by the largest v of all, which is not smaller. RAdam's factor is below
Adam's.

All but v >= c m^2 always hold: a sum of numbers >= 0 is not below any of them, in floats too. That one relates two
words read at different times. Enforced before the step, it holds after it, whatever the gradient is (`least_ratio`).

The factor of bias correction is below 1/(1-b1) for every t >= 1, and a worker uses the t it has read, plus one: a lost
increment makes t smaller, never 0. Values that only grow (t, Adagrad's sum, amsgrad's maximum) are never read as less
than this worker itself wrote last.

centered: the rule divides by sqrt(v - a^2), a the average of g. With different ages the difference may be negative, and
its root a NaN. v >= a^2 is the same bound with b1 = b2; a pair below it is moved well inside, as on the edge rounding
decides. A state that one worker could have computed is kept: a constant gradient makes torch itself divide by almost
nothing.

A momentum buffer is no divisor: a reverted one is a sum of earlier gradients, at most G / (1-momentum) in one pass
(fused), at most N times that in several. It needs no hardening, and stays in shared memory.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, RAdam, RMSprop

from hogwild.optimizers import FTRL, RowWiseAdagrad

HARDENED = (Adagrad, RMSprop, Adam, AdamW, RAdam)  # exactly these; a subclass may divide by something else
GROWING = ("step", "sum", "max_exp_avg_sq")
SLACK = 16  # units in the last place per update, more than the rounding errors of m and v together


def least_ratio(beta1: float, beta2: float, epsilon: float, steps: float = math.inf) -> float:
    """Return c such that v >= c m^2 for moving averages m of g and v of g^2 that begin at 0, after `steps` updates or
    fewer.

    m = (1-b1) sum b1^k g_k, v = (1-b2) sum b2^k g_k^2, k updates ago. Cauchy-Schwarz over b1^k / sqrt(b2^k) and
        sqrt(b2^k) g_k:   m^2 <= (1-b1)^2 / (1-b2) * sum r^k * v,   r = b1^2/b2,   sum r^k = (1-r^steps) / (1-r).
        With c = (1-b2)(1-r)/(1-b1)^2, v >= c m^2 still holds after an update with any g: (b1 m + (1-b1) g)^2 <=
        (b1^2/(b2 c) + (1-b1)^2/(1-b2)) (b2 v + (1-b2) g^2), and the first bracket is 1/c.

    Rounding is taken as unfavourable: `epsilon` is the type's distance from 1 to the next number, and r and c are off
    by SLACK of them, so the bound never changes a single worker's state (of these betas). Returns 0 (no bound) if r >=
    1: a long sequence then has any ratio, with torch's own rule too."""
    slack = SLACK * epsilon
    if not (0 <= beta1 < 1 and 0 < beta2 < 1) or steps < 1:
        return 0.0
    ratio: float = beta1 * beta1 / beta2 * (1 + slack)
    if ratio >= 1:
        return 0.0
    least: float = (1 - beta2) * (1 - ratio) / (1 - beta1) ** 2 * (1 - slack) / (1 - ratio**steps)
    return max(0.0, least)


def lost_squares(beta2: float, smallest_normal: float) -> float:
    """Return the loss of v by underflow: at most 4 smallest normal numbers per update, flushed to zero or not."""
    return 4 * smallest_normal / (1 - beta2) if beta2 < 1 else math.inf


def describe(optimizer: torch.optim.Optimizer, *, flat: bool) -> str:
    """Return whether lost writes can harm this rule's shared state, for the log; "" if they cannot."""
    if type(optimizer) is SGD:
        return ""
    if type(optimizer) in (RowWiseAdagrad, FTRL):
        return ", shared state hardened"
    if type(optimizer) in HARDENED:
        return ", shared state hardened" if flat else ", shared state not hardened"
    return ", shared state as torch has it, not hardened"


class PrivateState:
    """One span's state as this worker uses it. `own` goes to the rule, under torch's names: tensors beside the span,
    (numel,), and the 0-dim `step`. `shared` is its source; its `step` is a vector with one element per parameter.
    Order: `read`, the rule's step, `write`."""

    def __init__(self, group: Mapping[str, Any], shared: Mapping[str, Tensor]) -> None:
        self._shared, self._group = dict(shared), group
        self.own = {key: torch.zeros_like(whole) for key, whole in shared.items() if key != "step"}
        self.own["step"] = torch.zeros((), dtype=shared["step"].dtype)
        self._counted = torch.zeros_like(self.own["step"])
        self._bound = _bound(group, self.own)

    def read(self) -> None:
        """Read the shared state into `own` and correct it; every shared word is read once. Nothing is allocated."""
        torch.amax(self._shared["step"], dim=0, out=self._counted)
        torch.maximum(self._counted, self.own["step"], out=self.own["step"])
        mended = self._bound.square if self._bound is not None else ""
        for key, whole in self._shared.items():
            if key in GROWING and key != "step":
                torch.maximum(whole, self.own[key], out=self.own[key])
            elif key not in ("step", mended):
                self.own[key].copy_(whole)
        if self._bound is not None:
            self._bound.follow(self._group)
            self._bound.read(self._shared[mended], self.own)

    def write(self) -> None:
        """Write in reverse order: v before m, so that a concurrent reader finds m older than v."""
        for key in reversed(self._shared):
            self._shared[key].copy_(self.own[key])


class _MomentBound:
    """Adam's v >= c m^2. Numbers so small that squares lose bits (below 1e-16 for float32 and usual betas) are not
    changed; eps is larger."""

    mean, square = "exp_avg", "exp_avg_sq"

    def __init__(self, beta1: float, beta2: float, like: Tensor) -> None:
        limits = torch.finfo(like.dtype)
        self._betas, self._epsilon = (beta1, beta2), limits.eps
        self._ratio = least_ratio(beta1, beta2, limits.eps)
        self._floor = torch.tensor(-lost_squares(beta2, limits.smallest_normal), dtype=like.dtype)

    def follow(self, group: Mapping[str, Any]) -> None:
        """Loosen the bound to the least of all betas that a scheduler has set: that one holds after any of them."""
        betas = group.get("betas", self._betas)
        if betas != self._betas:
            self._betas = betas
            self._ratio = min(self._ratio, least_ratio(float(betas[0]), float(betas[1]), self._epsilon))

    def read(self, shared: Tensor, own: dict[str, Tensor]) -> None:
        """Set own v = max(shared v, c m^2): the memory of own v holds the bound first, and shared v is read once."""
        mean, square = own[self.mean], own[self.square]
        torch.addcmul(self._floor, mean, mean, value=self._ratio, out=square)
        torch.maximum(shared, square, out=square)


class _VarianceBound(_MomentBound):
    """centered RMSprop's v >= a^2; a smaller v becomes v + 2 a^2, which leaves a standard deviation of |a| or more."""

    mean, square = "grad_avg", "square_avg"

    def __init__(self, alpha: float, like: Tensor) -> None:
        super().__init__(alpha, alpha, like)
        self._alpha = alpha
        self._least, self._is_below = torch.empty_like(like), torch.empty_like(like)

    def read(self, shared: Tensor, own: dict[str, Tensor]) -> None:
        """Set own v. In the first updates the bound is far above a^2, and with it what rounding could make a NaN."""
        mean, square = own[self.mean], own[self.square]
        ratio = least_ratio(self._alpha, self._alpha, self._epsilon, float(own["step"]))
        torch.addcmul(self._floor, mean, mean, value=ratio, out=self._least)
        square.copy_(shared)
        torch.sub(self._least, square, out=self._is_below)
        self._is_below.sign_().clamp_(min=0)  # 1 or 0: adding 0 changes no bit
        square.addcmul_(self._is_below, self._least, value=2)


def _bound(group: Mapping[str, Any], own: Mapping[str, Tensor]) -> _MomentBound | None:
    if "exp_avg_sq" in own:
        beta1, beta2 = (float(beta) for beta in group["betas"])
        return _MomentBound(beta1, beta2, own["exp_avg_sq"])
    return _VarianceBound(float(group["alpha"]), own["square_avg"]) if "grad_avg" in own else None
