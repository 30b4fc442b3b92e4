"""Predictions and targets in the one form that every metric takes.

The loss determines how an output is read: cross-entropy and NLL as classes, BCE as yes or no. For a user's loss the
shapes decide: integer targets with one dimension less than the output are classes, with the output's own shape they are
yes or no."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.metrics.loss_sums import BY_CLASS, BY_SIGN, Loss, is_torch_loss

IGNORED = -100  # the default of torch's classification losses


class UnsuitableError(ValueError):
    """The metric cannot be computed from such outputs and targets; the message says why."""


@dataclass(frozen=True, slots=True)
class Classes:
    """Predicted classes: `logits` (M, C), log-probabilities up to a constant per row; `wanted` (M,) int64; `weight`
    (M,) float64. Ignored targets are left out."""

    logits: Tensor
    wanted: Tensor
    weight: Tensor

    @property
    def predicted(self) -> Tensor:
        return self.logits.argmax(1)


@dataclass(frozen=True, slots=True)
class Answers:
    """Yes or no: `outputs` (M, K) of the model, `wanted` (M, K) bool, `weight` (M,) float64; `are_logits`, or else
    probabilities."""

    outputs: Tensor
    wanted: Tensor
    weight: Tensor
    are_logits: bool

    @property
    def predicted(self) -> Tensor:
        return self.outputs > (0.0 if self.are_logits else 0.5)


def judged(output: Any, target: Tensor, loss: Loss, weight: Tensor | None) -> Classes | Answers:
    """Return predictions as classes or as yes and no; `loss` as a module, weight (B,) of the samples, or None if all
    have the same. Raises UnsuitableError for neither."""
    if not isinstance(output, Tensor):
        raise UnsuitableError(f"the model returns a {type(output).__name__}, not one tensor")
    shapes = f"output {tuple(output.shape)} {output.dtype}, target {tuple(target.shape)} {target.dtype}"
    is_whole, each = not target.is_floating_point(), weights_of(target, weight)
    if isinstance(loss, BY_CLASS) or (not isinstance(loss, BY_SIGN) and is_whole and output.dim() == target.dim() + 1):
        return _classes(output, target, loss, each, shapes)
    if isinstance(loss, BY_SIGN) or (is_whole and output.shape == target.shape):
        if output.shape != target.shape:
            raise UnsuitableError(f"output and target must have the same shape ({shapes})")
        width = output[:1].numel()
        wanted = target.reshape(-1, width) > 0.5
        return Answers(output.reshape(-1, width), wanted, each, not isinstance(loss, nn.BCELoss))
    raise UnsuitableError(f"neither a class nor a binary problem: the loss does not define predictions ({shapes})")


def weights_of(target: Tensor, weight: Tensor | None) -> Tensor:
    """Return the weights (B,) float64 of samples."""
    return torch.ones(len(target), dtype=torch.float64, device=target.device) if weight is None else weight.double()


def difference(output: Any, target: Tensor) -> Tensor:
    """Return output - target (B, …) in float64. Shapes must be equal: broadcasting would compare different elements."""
    if not isinstance(output, Tensor) or output.shape != target.shape:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UnsuitableError(
            f"output and target must have the same shape (output {got}, target {tuple(target.shape)})"
        )
    return output.double() - target.double()


def log_probabilities(given: Classes) -> Tensor:
    """Return log-probabilities (M, C) float64; works for log-probabilities, too: a constant per row changes nothing."""
    return F.log_softmax(given.logits.double(), 1)


def _classes(output: Tensor, target: Tensor, loss: Loss, weight: Tensor, shapes: str) -> Classes:
    if target.is_floating_point():  # class probabilities: the largest is the class
        if output.shape != target.shape:
            raise UnsuitableError(f"class probabilities must have the output's shape ({shapes})")
        target = target.argmax(1)
    dim = 1 if output.dim() > 1 and output.shape[:1] + output.shape[2:] == target.shape else -1
    rows = output.movedim(dim, -1)
    # A language model's loss may flatten (B, T, C) itself; torch's own always has the classes in dimension 1.
    if rows.shape[:-1] != target.shape or (dim == -1 and isinstance(loss, BY_CLASS) and is_torch_loss(loss)):
        raise UnsuitableError(f"the output must have one more dimension than the target, for the classes ({shapes})")
    each = weight.reshape(-1, *[1] * (target.dim() - 1)).expand(target.shape).reshape(-1)
    rows, wanted = rows.reshape(-1, rows.shape[-1]), target.reshape(-1)
    kept = wanted != getattr(loss, "ignore_index", IGNORED)
    return Classes(rows, wanted, each) if bool(torch.all(kept)) else Classes(rows[kept], wanted[kept], each[kept])
