"""What a worker does with a batch: forward, backward into private memory, then one write into the flats,
without a lock.

    backward (once or `accumulate` times)  ->  is_finite  ->  apply, or discard

Lost updates are allowed here and nowhere else: between a worker's reading of a parameter and its write,
others write too.
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from hogwild.dry_step import bare_step
from hogwild.flat_rule import FlatRule, has_step_hooks, why_not
from hogwild.gradients import Gradients
from hogwild.shared_rules import describe as describe_shared
from hogwild.worker_model import WorkerModel


class Update(Protocol):
    """How one exchange of a worker changes the parameters."""

    path: str

    def backward(self, inputs: tuple[Tensor, ...], target: Tensor, scale: float = 1.0) -> float: ...
    def is_finite(self) -> bool: ...
    def apply(self, lr_factor: float | None) -> None: ...
    def discard(self) -> None: ...


class AutogradUpdate:
    """Any module, any `torch.optim` rule. `path` says which way updates go, and why, for the log.

    Over the flat where that gives what stock torch gives (see `flat_rule`), else the user's optimizer over
    the parameters, whose unused gradients are None then. Where the rule fits, the first update of a rule
    with state goes the stock way and the others follow over the flat."""

    def __init__(
        self,
        worker_model: WorkerModel,
        *,
        grad_clip: float | None,
        enter: Callable[[str], None] = lambda phase: None,
    ) -> None:
        """`enter` is told when "forward" and "backward" begin."""
        self._model, self._loss = worker_model.model, worker_model.loss
        self._optimizer = worker_model.optimizer
        self._state = worker_model.state
        self._grad_clip, self._enter = grad_clip, enter
        self._gradients = Gradients(worker_model.layout.flats, worker_model.params)
        self._base_rates = [group.get("lr") for group in self._optimizer.param_groups]
        self._base_rates = [lr.clone() if isinstance(lr, Tensor) else lr for lr in self._base_rates]
        self._bare_step = bare_step(self._optimizer)
        self._optimised = [
            p
            for p, slot in zip(worker_model.params, worker_model.layout.flats.params, strict=True)
            if slot.group is not None
        ]
        reason = why_not(worker_model)
        self._rule = None if reason else FlatRule(worker_model, self._gradients)
        self._flat_now = self._rule is not None and self._rule.is_usable()
        self.path = f"stock: {reason}" if reason else f"flat: {type(self._optimizer).__qualname__}"
        if self._state.layout.shared:
            self.path += describe_shared(self._optimizer, flat=reason is None)
        self._norm: float | None = None
        self._losses_finite = True

    def backward(self, inputs: tuple[Tensor, ...], target: Tensor, scale: float = 1.0) -> float:
        """Adds the gradient of `scale` x loss to the private gradients; returns the loss itself."""
        self._enter("forward")
        loss = self._loss(self._model(*inputs), target)
        value = loss.item()
        self._enter("backward")
        self._norm = None
        self._losses_finite = self._losses_finite and math.isfinite(value)
        (loss if scale == 1.0 else loss * scale).backward()
        return value

    def is_finite(self) -> bool:
        """Every loss and every gradient since the last `apply` or `discard`. One reduction, which clipping
        uses too."""
        return self._losses_finite and math.isfinite(self._gradient_norm())

    def apply(self, lr_factor: float | None) -> None:
        """Clips, sets every group's rate to its own times `lr_factor`, and writes the update into the
        flats."""
        self._gradients.collect()
        if self._grad_clip is not None:
            self._clip(self._grad_clip)
        if lr_factor is not None:
            self._set_rates(lr_factor)
        if self._flat_now and self._gradients.complete and self._rule is not None:
            self._rule.step()
            # The write went through the flat: without this, autograd would not notice it in graphs still
            # alive.
            torch.autograd.graph.increment_version(self._optimised)
            self.discard()
        else:
            self._step_stock()
            self._clear(were_touched=True)

    def discard(self) -> None:
        """The gradients are as before the first `backward`: after a batch that is not applied."""
        self._clear(were_touched=False)

    def _clear(self, *, were_touched: bool) -> None:
        self._gradients.clear(were_touched=were_touched)
        self._norm, self._losses_finite = None, True

    def _gradient_norm(self) -> float:
        if self._norm is None:
            self._norm = self._gradients.norm()
        return self._norm

    def _clip(self, limit: float) -> None:
        """torch's clip_grad_norm_ over the optimised parameters; a norm too large for float32 scales down as
        well."""
        factor = limit / (self._gradient_norm() + 1e-6)
        if factor < 1.0:
            self._gradients.scale(factor)

    def _set_rates(self, factor: float) -> None:
        for group, base in zip(self._optimizer.param_groups, self._base_rates, strict=True):
            if isinstance(base, Tensor):
                group["lr"].copy_(base * factor)
            elif base is not None:
                group["lr"] = base * factor

    def _step_stock(self) -> None:
        complete = self._gradients.complete
        self._gradients.hide_unused()
        if has_step_hooks(self._optimizer):
            self._optimizer.step()
        else:
            with torch.no_grad():
                self._bare_step(self._optimizer)
        self._state.adopt(self._optimizer)
        if self._rule is not None:
            unequal_for_good = self._state.layout.shared and not complete
            if unequal_for_good:
                self._rule = None
                self.path = "stock: parameters are used unequally and the state is shared"
                self.path += describe_shared(self._optimizer, flat=False)
            self._flat_now = self._rule is not None and self._rule.is_usable()
