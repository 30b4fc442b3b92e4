"""What a model's output says, beside what it should have said: the form in which every metric takes them.

The loss decides how an output is read: cross-entropy and NLL over classes, BCE yes or no. Of a loss of the user's own
the shapes decide: whole-number targets with one dimension less than the output are classes, of the output's own shape
they are yes or no."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.metrics.loss_sums import BY_CLASS, BY_SIGN, Loss, is_torch_loss

IGNORED = -100  # what torch's classification losses leave out unless told otherwise


class UnsuitableError(ValueError):
    """This metric cannot be computed from such outputs and targets; the message says why."""


@dataclass(frozen=True, slots=True)
class Classes:
    """`logits` (M, C), log-probabilities but for a constant per row; `wanted` (M,) int64. Ignored targets are left
    out."""

    logits: Tensor
    wanted: Tensor


@dataclass(frozen=True, slots=True)
class Answers:
    """`outputs` (M, K) as the model gave them, `wanted` (M, K) bool; `are_logits`, or else probabilities."""

    outputs: Tensor
    wanted: Tensor
    are_logits: bool


def judged(output: Any, target: Tensor, loss: Loss) -> Classes | Answers:
    """How classes or yes and no were predicted; `loss` as a module. Raises UnsuitableError where neither is."""
    if not isinstance(output, Tensor):
        raise UnsuitableError(f"the model answers a {type(output).__name__}, not one tensor")
    shapes = f"output {tuple(output.shape)} {output.dtype}, target {tuple(target.shape)} {target.dtype}"
    is_whole = not target.is_floating_point()
    if isinstance(loss, BY_CLASS) or (not isinstance(loss, BY_SIGN) and is_whole and output.dim() == target.dim() + 1):
        return _classes(output, target, loss, shapes)
    if isinstance(loss, BY_SIGN) or (is_whole and output.shape == target.shape):
        if output.shape != target.shape:
            raise UnsuitableError(f"output and target must have the same shape ({shapes})")
        width = output[:1].numel()
        wanted = target.reshape(-1, width) > 0.5
        return Answers(output.reshape(-1, width), wanted, not isinstance(loss, nn.BCELoss))
    raise UnsuitableError(f"neither classes nor yes and no: the loss does not say what a prediction is ({shapes})")


def numbers(output: Any, target: Tensor) -> tuple[Tensor, Tensor]:
    """Both (B, …) float64, of the same shape: what broadcasts would be compared with something else."""
    if not isinstance(output, Tensor) or output.shape != target.shape:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise UnsuitableError(
            f"output and target must have the same shape (output {got}, target {tuple(target.shape)})"
        )
    return output.double(), target.double()


def log_probabilities(given: Classes) -> Tensor:
    """(M, C) float64, also of log-probabilities: a constant added to a row changes nothing."""
    return F.log_softmax(given.logits.double(), 1)


def _classes(output: Tensor, target: Tensor, loss: Loss, shapes: str) -> Classes:
    if target.is_floating_point():  # class probabilities: the largest is the class
        if output.shape != target.shape:
            raise UnsuitableError(f"class probabilities must have the output's shape ({shapes})")
        target = target.argmax(1)
    dim = 1 if output.dim() > 1 and output.shape[:1] + output.shape[2:] == target.shape else -1
    rows = output.movedim(dim, -1)
    # A language model's loss may flatten (B, T, C) itself; torch's own has the classes in dimension 1, always.
    if rows.shape[:-1] != target.shape or (dim == -1 and isinstance(loss, BY_CLASS) and is_torch_loss(loss)):
        raise UnsuitableError(f"the output must have one dimension more than the target, for the classes ({shapes})")
    rows, wanted = rows.reshape(-1, rows.shape[-1]), target.reshape(-1)
    kept = wanted != getattr(loss, "ignore_index", IGNORED)
    return Classes(rows, wanted) if bool(torch.all(kept)) else Classes(rows[kept], wanted[kept])
