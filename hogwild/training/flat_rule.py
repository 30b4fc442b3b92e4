"""torch's own rule, run over one tensor per span instead of one per parameter.

A shadow of the user's optimizer has the spans as its parameters, the gradient flat's spans as their gradients and the
state arrays beside the spans as its state. For an elementwise rule that is the same arithmetic in the same order, so
the result is the same to the bit; for LeNet it takes 15 us instead of 73. torch's fused kernel is used if there is one
(one pass over the memory), unless the user chose otherwise: SGD is the same to the bit, Adam, AdamW and Adagrad round
differently in the last place. SGD's kernel is called without its Python wrapper, which would double the time after a
model has emptied the caches.

The rule may be used in a batch if every optimised parameter got a dense gradient, and all their state exists and has
counted the same steps. So the first update of a rule with state is a stock one, and after unequal use of parameters
rules that count steps stay with the stock path; SGD returns to the flat. With `state: shared` a worker that saw unequal
use stays with the stock path. Shared state of the rules in `HARDENED` is read into private memory
before the step and written back after it.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import eq
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, RAdam, RMSprop

from hogwild.optimizers import FTRL, RowWiseAdagrad
from hogwild.parameters.checks import has_step_hooks
from hogwild.parameters.flat_layout import FlatLayout, Span
from hogwild.parameters.optimizer_state import bare_step, parameters_of
from hogwild.parameters.worker_model import WorkerModel

# ---- shared state
#
# Optimizer state that all workers share, hardened against lost writes: Adagrad, RMSprop, Adam, AdamW, RAdam.
#
#     read     own <- shared, each word once; `own` is corrected if no single worker could have computed it
#     step     torch's own rule over `own`: it accumulates and divides in this worker's private memory
#     write    shared <- own
#
# The race. Between `read` and `write` others read and write the same words, without a lock: accumulators return to
# earlier values, a block at a time, and m and v of one word may differ in age. In torch's own passes over shared memory
# a worker then divides by an accumulator without its own gradient, and one update is larger than a million ordinary
# ones. Here it divides by what it has just computed from its one read, so whatever the others write:
#
#     Adagrad   sum >= g^2                         |update| <= lr
#     RMSprop   v >= (1-a) g^2                     |update| <= lr / sqrt(1-a), with momentum 1/(1-momentum) times that
#     Adam(W)   v >= (1-b2) g^2  and  v >= c m^2   |update| <= lr / sqrt(c), times sqrt(1-b2^t) / (1-b1^t)
#
# g is the gradient that the rule accumulates: after maximize, and with weight decay if that is part of the gradient
# (AdamW's is not). eps only adds; amsgrad divides by the largest v of all, which is not smaller. RAdam's factor is
# below Adam's.
#
# All but v >= c m^2 always hold: a sum of numbers >= 0 is not below any of them, in floats too. That one relates two
# words read at different times. Enforced before the step, it holds after it, whatever the gradient is (`least_ratio`).
#
# The factor of bias correction is below 1/(1-b1) for every t >= 1, and a worker uses the t it has read, plus one: a
# lost increment makes t smaller, never 0. Values that only grow (t, Adagrad's sum, amsgrad's maximum) are never read as
# less than this worker itself wrote last.
#
# centered: the rule divides by sqrt(v - a^2), a the average of g. With different ages the difference may be negative,
# and its root a NaN. v >= a^2 is the same bound with b1 = b2; a pair below it is moved well inside, as on the edge
# rounding decides. A state that one worker could have computed is kept: a constant gradient makes torch itself divide
# by almost nothing.
#
# A momentum buffer is no divisor: a reverted one is a sum of earlier gradients, at most G / (1-momentum) in one pass
# (fused), at most N times that in several. It needs no hardening, and stays in shared memory.

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


_NARROW = (torch.float16, torch.bfloat16)  # dot products overflow or lose precision: summed in float32


class Gradients:
    """Private gradients of the optimised parameters of one worker: a flat per dtype, at the offsets of the parameter
    flat, so that gradient and parameter spans match. Order: `backward` (any number), `collect`, use, `clear`.

    autograd adds a gradient in place into `param.grad` if there is one, and otherwise stores its own tensor there. We
    rely on both: after its first dense gradient a parameter's `grad` stays bound to a view of the flat, and a gradient
    in a separate tensor (first use; user code set it to None) is copied in and bound. Each view is made with `.data`,
    so it has its own version counter, which every accumulation increments: if it has not changed since the last
    `clear`, this batch did not use the parameter. Sparse gradients stay where autograd puts them, outside the flat, and
    are never written: autograd gives two embeddings that are added the same memory for the values of both."""

    def __init__(self, layout: FlatLayout, params: list[nn.Parameter], device: torch.device) -> None:
        sizes = layout.gradient_sizes.items()
        self.flats = {dtype: torch.zeros(size, dtype=dtype, device=device) for dtype, size in sizes}
        # For the fast sums: each flat, and a preallocated tensor for its sum. Empty for types that need care.
        self._sums = [(flat, flat.new_empty(())) for flat in self.flats.values() if flat.numel()]
        if any(flat.is_complex() or flat.dtype in _NARROW for flat, _ in self._sums):
            self._sums = []
        dense = [i for span in layout.spans if span.is_dense for i in span.params]
        self._params = [params[i] for i in dense]
        places = ((self.flats[slot.dtype], slot) for slot in (layout.params[i] for i in dense))
        self._views = [torch.as_strided(flat, slot.shape, slot.strides, slot.offset).data for flat, slot in places]
        self._clean = self.versions()
        self._seen = self._clean  # as of the last `collect`
        self._loose = [params[i] for span in layout.spans if span.sparse for i in span.params]
        # autograd fills these too, and nothing else would clear them
        named = zip(params, layout.params, strict=True)
        strays = [param for param, slot in named if slot.requires_grad and slot.group is None]
        self._never_bound = [*self._loose, *strays]
        self._collected = False
        self._idle: list[int] = []  # bound, not used in this batch
        self.outside: list[nn.Parameter] = []  # parameters with gradients outside the flat, in this batch
        self.complete = False  # every parameter with a place in the flat got a dense gradient in this batch
        self.is_zero = False  # the flats are zero already: whoever sets this has zeroed them
        self._replayed = self._is_stale = False  # a graph wrote every view; `_seen` is older than the views

    def reopen(self) -> None:
        """Let another `backward` follow after `collect`."""
        self._collected = self._replayed

    def replayed(self) -> None:
        """Note that a graph has accumulated into every view, without their versions."""
        self._collected = self._replayed = self._is_stale = self.complete = True
        self._idle, self.outside = [], []

    def tried(self, before: list[int]) -> bool:
        """Note that the last gradient was computed several times, by Python; `before`: `versions` before that. Return
        whether it wrote every view."""
        self._is_stale = True
        return not any(map(eq, before, self.versions()))

    def collect(self) -> None:
        """Find out which parameters this batch used. Does nothing the second time before `clear`."""
        if self._collected:
            return
        self._collected = True
        self._idle, self.outside = [], [p for p in self._loose if p.grad is not None]
        self.complete = True
        self._seen = self.versions()
        if any(map(eq, self._seen, self._clean)):
            for i, version in enumerate(self._seen):
                if version == self._clean[i]:
                    self._collect(i)
            self._seen = self.versions()

    def versions(self) -> list[int]:
        """Return the views' versions, which zeroing or scaling the whole flat does not change."""
        return [view._version for view in self._views]

    def _collect(self, i: int) -> None:
        """Handle view `i`, which was not written: its parameter is unused, or has its gradient elsewhere."""
        grad, view = self._params[i].grad, self._views[i]
        if grad is None or grad is view:
            self._idle.append(i)
            self.complete = False
        elif grad.layout != torch.strided:
            self.outside.append(self._params[i])
            self.complete = False
        else:
            view.copy_(grad)
            self._params[i].grad = view

    def hide_unused(self) -> None:
        """Set the gradients of unused parameters to None, as in stock torch, until `clear`."""
        for i in self._idle:
            self._params[i].grad = None

    def clear(self, *, were_touched: bool = False) -> None:
        """Reset for the next batch. `were_touched`: other code has had the gradients since `collect`, and may have
        written into them."""
        self.collect()
        for flat in self.flats.values() if not self.is_zero else ():
            flat.zero_()
        if not self.complete:
            for param, view in zip(self._params, self._views, strict=True):
                if param.grad is not view:
                    param.grad = None
        for param in self._never_bound:
            param.grad = None
        self._clean = self.versions() if were_touched or self._is_stale else self._seen
        self._collected = self._replayed = self._is_stale = self.is_zero = False

    def is_finite(self, squares: Callable[[nn.Parameter], float | None] = lambda param: None) -> bool:
        """Return whether all gradients are finite. A sum is finite only if all its terms are; if it has overflowed,
        each is looked at. torch sums in half the time of a dot product. Sparse rows are not summed: if the sum of all
        squares is finite, the sums of rows are, too. `squares` may know that sum for a parameter outside the flat."""
        self.collect()
        total = 0.0
        for flat, place in self._sums:
            total += torch.sum(flat, 0, out=place).item()
        if not self._sums:
            total = self._dense_square()
        for param in self.outside:
            known = squares(param)
            if known is None:
                grad = _grad(param)
                known = _square(grad if grad.layout == torch.strided else grad._values())
            total += known
        return math.isfinite(total) or math.isfinite(self._careful_norm())

    def norm(self, squares: Callable[[nn.Parameter], float | None] = lambda param: None) -> float:
        """Return the 2-norm of all gradients; not finite exactly if one of them is not. `squares` may know the square
        for a parameter outside the flat.

        One dot product per flat. In float32 it overflows above a norm of 1.8e19, and only then is a slower method used:
        `isfinite().all()` costs ten times as much."""
        self.collect()
        total = self._dense_square()
        for param in self.outside:
            known = squares(param)
            total += _square(_stored(_grad(param))) if known is None else known
        return math.sqrt(total) if math.isfinite(total) else self._careful_norm()

    def _dense_square(self) -> float:
        if not self._sums:
            return sum(_square(flat) for flat in self.flats.values() if flat.numel())
        total = 0.0
        for flat, square in self._sums:
            total += _dot(flat, out=square).item()
        return total

    def add_squares(self, total: Tensor) -> None:
        """Add the squares of all gradients in the flats to `total` (), on their device, without waiting."""
        self.collect()
        for flat, square in self._sums:
            total.add_(_dot(flat, out=square))
        for flat in self.flats.values() if not self._sums else ():
            if flat.numel():
                part = torch.view_as_real(flat) if flat.is_complex() else flat
                wide = torch.float32 if part.dtype in _NARROW else part.dtype
                total.add_(torch.linalg.vector_norm(part, dtype=wide).square())

    def _careful_norm(self) -> float:
        self.collect()
        total = 0.0
        for part in (*self.flats.values(), *(_stored(_grad(param)) for param in self.outside)):
            if not part.numel():
                continue
            if not torch.isfinite(part).all():
                return math.nan
            biggest = float(part.abs().max()) or 1.0
            wide = torch.complex128 if part.is_complex() else torch.float64
            total = math.hypot(total, biggest * float(torch.linalg.vector_norm(part.to(wide) / biggest)))
        return total

    def scale(self, factor: float) -> None:
        """Multiply all gradients in place."""
        self.collect()
        for flat in self.flats.values():
            flat.mul_(factor)
        for param in self.outside:
            param.grad = _grad(param) * factor

    def let_go(self, params: Sequence[nn.Parameter]) -> None:
        """Drop the gradients of `params`, which are outside the flat and were applied."""
        for param in params:
            param.grad = None
        self.outside = [param for param in self.outside if param.grad is not None]


def _grad(param: nn.Parameter) -> Tensor:
    assert param.grad is not None
    return param.grad


def _stored(grad: Tensor) -> Tensor:
    """Return a gradient's values; rows that occur twice in a sparse one are summed, for a correct norm."""
    return grad if grad.layout == torch.strided else grad.coalesce().values()


def _dot(flat: Tensor, out: Tensor) -> Tensor:
    if flat.is_cuda:  # there `torch.dot` takes a new block for its result, in spite of `out`
        torch.mv(flat.view(1, -1), flat, out=out.view(1))
        return out
    return torch.dot(flat, flat, out=out)


def _square(part: Tensor) -> float:
    if part.is_complex():
        part = torch.view_as_real(part)
    if part.dtype in _NARROW:
        return float(torch.linalg.vector_norm(part, dtype=torch.float32)) ** 2
    flat = part.reshape(-1)
    return float(torch.dot(flat, flat))


_FUSED = (Adam, AdamW, Adagrad)
_NAMES = ("params", "param_names")
_PLAIN = (bool, int, float, str, tuple, type(None))


class FlatRule:
    """torch's rule over the spans. Call `step` only while `is_usable`."""

    def __init__(self, worker_model: WorkerModel, gradients: Gradients) -> None:
        optimizer = worker_model.optimizer
        self._optimizer = optimizer
        self._state = worker_model.state
        self._step = bare_step(optimizer)
        self._shadow = type(optimizer).__new__(type(optimizer))
        vars(self._shadow).update(vars(optimizer) | {"state": {}, "param_groups": []})
        self._groups: list[tuple[dict, dict, dict]] = []  # shadow's, user's, differences
        self._counters: list[tuple[Tensor, Tensor]] = []  # the first parameter's 0-dim state, the others'
        # With sparse parameters the gain is small, and the result would not be the same to the bit.
        self._may_fuse = not any(span.sparse for span in worker_model.layout.flats.spans)
        self._hardened = self._state.layout.shared and type(optimizer) in HARDENED
        self._on_device = worker_model.replica is not None
        self._own: list[PrivateState | DeviceStep] = []
        self._sgd: list[tuple[dict, list[Tensor], list[Tensor], list[Tensor]]] = []  # group, flat, gradient, buffer
        for s, span in enumerate(worker_model.layout.flats.spans):
            if span.is_dense:
                flat = worker_model.exchange.span(span)
                flat.grad = gradients.flats[span.dtype][span.offset : span.offset + span.numel]
                self._add(s, span, flat)
        self._is_fused_sgd = len(self._sgd) == len(self._groups)
        params = parameters_of(optimizer)
        slots = self._state.layout.slots  # without those of frozen parameters, which may not exist yet
        self._needed = [slot for slot in slots if slot.in_group or params[slot.index].requires_grad]

    def _add(self, s: int, span: Span, flat: Tensor) -> None:
        assert span.group is not None
        group = self._optimizer.param_groups[span.group]
        lacks_kernel = flat.device.type != "cpu" and type(self._optimizer) is Adagrad  # torch's is for the CPU only
        fuses = self._may_fuse and _prefers_fused(self._optimizer, group) and not lacks_kernel
        different = {"params": [flat]} | ({"fused": True} if fuses else {})
        if self._on_device and fuses and "capturable" in group:  # its counter is on the device, too
            different["capturable"] = True
            self._shadow._warned_capturable_if_run_uncaptured = True  # it is said for steps without a graph
        shadow_group = group | different
        self._shadow.param_groups.append(shadow_group)
        self._groups.append((shadow_group, group, different))
        arrays = {p.key: (p, self._state.array(p)) for p in self._state.layout.arrays if p.span == s}
        if self._hardened:
            private = PrivateState(group, {key: whole for key, (_, whole) in arrays.items()})
            self._own.append(private)
            self._shadow.state[flat] = private.own
            return
        self._shadow.state[flat] = {k: whole if p.kind == "like" else whole[0] for k, (p, whole) in arrays.items()}
        step = self._shadow.state[flat].get("step")
        if self._on_device and different.get("fused") and step is not None:
            counter = DeviceStep(step, flat)
            self._own.append(counter)
            self._shadow.state[flat]["step"] = counter.own
        if different.get("fused") and type(self._optimizer) is SGD:
            assert flat.grad is not None
            buffers = [whole for p, whole in arrays.values() if p.key == "momentum_buffer"]
            self._sgd.append((group, [flat], [flat.grad], buffers))
        self._counters += [(w[0], w[1:]) for p, w in arrays.values() if p.kind == "scalar" and len(w) > 1]

    def step(self) -> None:
        """Update all spans once, in place; no other worker writes the divisors of a hardened rule."""
        self.read()
        self.apply()
        self.write()

    def read(self) -> None:
        """Read what the host keeps of the state, before `apply`."""
        for own in self._own:
            own.read()

    def write(self) -> None:
        """Write what the host keeps of the state, after `apply`."""
        for own in self._own:
            own.write()
        for first, others in self._counters:
            others.copy_(first)

    def settings(self) -> Hashable | None:
        """Return all that `apply` depends on beside `tensors`; None if it depends on more, or works on the host."""
        kinds = (SGD,) if self._is_fused_sgd else (SGD, Adam, AdamW)
        if type(self._optimizer) not in kinds or self._hardened or has_step_hooks(self._optimizer):
            return None
        if type(self._optimizer) is not SGD and not all(different.get("fused") for _, _, different in self._groups):
            return None
        values = [value for _, group, _ in self._groups for key, value in group.items() if key not in _NAMES]
        return tuple(values) if all(isinstance(value, _PLAIN) for value in values) else None

    def tensors(self) -> list[Tensor]:
        """Return every tensor that `apply` reads and writes."""
        flats = [flat for shadow, _, _ in self._groups for flat in shadow["params"]]
        kept = [value for flat in flats for value in self._shadow.state[flat].values() if isinstance(value, Tensor)]
        return [*flats, *(_grad(flat) for flat in flats), *kept]

    def apply(self) -> None:
        """Update, without what the host keeps: the part of `step` that works on the device alone."""
        if self._is_fused_sgd and self._step_sgd():
            return
        for shadow_group, group, different in self._groups:
            shadow_group.update(group)
            shadow_group.update(different)
        with torch.no_grad():
            self._step(self._shadow)

    def _step_sgd(self) -> bool:
        """Call the kernel as torch.optim.sgd does with `fused=True` once there are buffers; return False without."""
        for group, _, _, buffer in self._sgd:
            if group["momentum"] and not buffer:
                return False
        for group, flat, grad, buffer in self._sgd:
            torch._fused_sgd_(
                flat,
                grad,
                buffer if group["momentum"] else [],
                weight_decay=group["weight_decay"],
                momentum=group["momentum"],
                lr=group["lr"],
                dampening=group["dampening"],
                nesterov=group["nesterov"],
                maximize=group["maximize"],
                is_first_step=False,
                grad_scale=None,
                found_inf=None,
            )
        return True

    def is_usable(self) -> bool:
        """Return whether all state exists, and parameters that are updated together have counted the same steps."""
        if not all(self._state.is_present(slot) for slot in self._needed):
            return False
        if self._state.layout.shared:
            return True  # counters differ for a moment while another worker writes them
        return all(bool((others == first).all()) for first, others in self._counters)


class DeviceStep:
    """A step counter on the device of `flat`, for a fused kernel, and its public copy in host memory: `counted` ()
    float32."""

    def __init__(self, counted: Tensor, flat: Tensor) -> None:
        self._counted, self._last = counted, -1.0
        self.own = torch.zeros((), dtype=counted.dtype, device=flat.device)

    def read(self) -> None:
        """Read the counter before a step: another worker may have counted since."""
        now = float(self._counted)  # host memory: waits for no kernel
        if now != self._last:
            self.own.fill_(now)
            self._last = now

    def write(self) -> None:
        """Count a step, after it."""
        self._last += 1.0
        self._counted.fill_(self._last)


def _prefers_fused(optimizer: torch.optim.Optimizer, group: dict) -> bool:
    """Return whether a fused kernel saves passes over memory. Plain SGD is one pass anyway."""
    if group.get("fused") is not None or group.get("foreach") is not None or isinstance(group["lr"], Tensor):
        return False
    if type(optimizer) is SGD:
        return bool(group["momentum"] or group["weight_decay"])
    return type(optimizer) in _FUSED
