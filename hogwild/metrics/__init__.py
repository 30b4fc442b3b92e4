"""What an evaluation reports, from sums that add up over slices (`eval_sums.py`): never a mean of means.

Losses are summed from float32 elements. The result is that of one batch holding the whole set, however it was cut: of
the mean-reducing form of the loss, and for `reduction="sum"` of the sum per sample.
"""

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.errors import UsageError
from hogwild.eval_sums import WORDS as WORDS
from hogwild.eval_sums import EvalSums as EvalSums

Loss: TypeAlias = Callable[..., Tensor]  # loss(output, target)

HIGHER_IS_BETTER = {"accuracy": True, "loss": False}

# Used as functions, these are the modules with their default arguments.
_MODULE_OF: dict[Any, type[nn.Module]] = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.nll_loss: nn.NLLLoss,
    F.binary_cross_entropy: nn.BCELoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    F.mse_loss: nn.MSELoss,
}
_BY_CLASS = (nn.CrossEntropyLoss, nn.NLLLoss)  # argmax over dimension 1 is the prediction
_BY_SIGN = (nn.BCEWithLogitsLoss, nn.BCELoss)  # every element is a yes or no


def metrics_for(loss: Loss) -> tuple[str, ...]:
    """The names that an evaluation with this loss reports (`evaluate.metrics: auto`): always `loss`;
    `accuracy` for cross-entropy and NLL (the largest output is the class) and for BCE (output above 0 for
    logits, above 0.5 for probabilities). Subclasses count as their parents."""
    return ("loss", "accuracy") if isinstance(_as_module(loss), _BY_CLASS + _BY_SIGN) else ("loss",)


@torch.no_grad()
def evaluate_batch(output: Any, target: Tensor, loss: Loss) -> EvalSums:
    """The sums of one batch: `output` as the model gave it in eval mode, target (B, ...), `loss` as in
    training.

    torch's own losses are evaluated element by element, so class weights, ignored targets and every reduction
    come out right. A loss of the user's own gives one number for the batch, which is taken as its mean and
    weighted by B; if it gives a tensor, that holds the loss of every element.
    """
    module = _as_module(loss)
    loss_sum, loss_weight = _loss_sums(output, target, module)
    correct, count = _accuracy_sums(output, target, module)
    return EvalSums(loss_sum, loss_weight, correct, count)


def finalize(sums: EvalSums) -> dict[str, float]:
    """{"loss": ..., "accuracy": ...}; no accuracy where nothing was judged; NaN where the loss has no weight
    at all (no samples, or every target ignored)."""
    metrics = {"loss": sums.loss_sum / sums.loss_weight if sums.loss_weight else math.nan}
    if sums.count:
        metrics["accuracy"] = sums.correct / sums.count
    return metrics


def check_target(target: Mapping[str, float], names: tuple[str, ...]) -> None:
    """Raises UsageError where `evaluate.target` names a metric that this job does not report."""
    unknown = [name for name in target if name not in names]
    if unknown:
        raise UsageError(
            f"evaluate.target: {', '.join(unknown)}: not reported by this job; it reports {', '.join(names)}"
        )


def meets(metrics: Mapping[str, float], target: Mapping[str, float]) -> bool:
    """Whether every goal of `target` is reached: accuracy at least, loss at most. An empty target is never
    met, and neither is a goal whose metric is NaN or, because nothing was judged, missing. `check_target`
    comes first."""
    reached = [_reached(name, metrics.get(name, math.nan), goal) for name, goal in target.items()]
    return bool(reached) and all(reached)


def _reached(name: str, value: float, goal: float) -> bool:
    return value >= goal if HIGHER_IS_BETTER[name] else value <= goal


def _as_module(loss: Loss) -> Loss:
    """torch's functional form as the module it stands for; anything else as it is."""
    try:
        return _MODULE_OF[loss]() if loss in _MODULE_OF else loss
    except TypeError:  # a callable object without a hash is not one of torch's functions
        return loss


def _loss_sums(output: Any, target: Tensor, loss: Loss) -> tuple[float, float]:
    """(loss_sum, loss_weight) of one batch."""
    if not _is_torch_loss(loss):
        value = loss(output, target)
        samples = len(target)
        return (float(value) * samples, float(samples)) if value.dim() == 0 else _sum_and_size(value)
    elementwise = copy.copy(loss)  # shallow: weights are shared, only the word below is its own
    elementwise.reduction = "none"  # type: ignore[attr-defined]
    value = elementwise(output, target)
    loss_sum, elements = _sum_and_size(value)
    reduction = loss.reduction  # type: ignore[attr-defined]
    if reduction in ("sum", "batchmean"):  # batchmean: KLDivLoss, the sum per sample
        return loss_sum, float(len(target))
    if isinstance(loss, _BY_CLASS):
        return loss_sum, _class_weight_sum(output, target, loss)
    return loss_sum, elements


def _is_torch_loss(loss: Loss) -> bool:
    """Whether `reduction` means what torch says: a class of torch's, or one that kept its forward."""
    forward = getattr(type(loss), "forward", None)
    return getattr(forward, "__module__", "") == "torch.nn.modules.loss" and hasattr(loss, "reduction")


def _sum_and_size(value: Tensor) -> tuple[float, float]:
    return float(value.double().sum()), float(value.numel())


def _class_weight_sum(output: Tensor, target: Tensor, loss: nn.CrossEntropyLoss | nn.NLLLoss) -> float:
    """What torch's mean divides by: the weights of the classes of all targets not ignored; with class
    probabilities as targets the number of distributions, weighted or not."""
    if target.is_floating_point():
        return float(output.numel() // output.shape[1])
    kept = target[target != loss.ignore_index]
    return float(kept.numel()) if loss.weight is None else float(loss.weight.double()[kept].sum())


def _accuracy_sums(output: Any, target: Tensor, loss: Loss) -> tuple[float, float]:
    """(correct, count) of one batch; (0, 0) where the loss does not say what a prediction is, or where a loss
    of the user's own made something of the output that only it understands."""
    if not isinstance(output, Tensor):
        return 0.0, 0.0
    if isinstance(loss, _BY_CLASS):
        is_class = not target.is_floating_point()  # else class probabilities: the largest is the class
        predicted, wanted = output.argmax(1), target if is_class else target.argmax(1)
        judged = wanted != loss.ignore_index if is_class else torch.ones_like(wanted, dtype=torch.bool)
    elif isinstance(loss, _BY_SIGN):
        limit = 0.0 if isinstance(loss, nn.BCEWithLogitsLoss) else 0.5
        predicted, wanted = output > limit, target > 0.5
        judged = torch.ones_like(wanted)
    else:
        return 0.0, 0.0
    if predicted.shape != wanted.shape:
        return 0.0, 0.0
    return float(((predicted == wanted) & judged).sum()), float(judged.sum())
