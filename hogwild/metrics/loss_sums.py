"""The loss of a whole data set from its batches: a sum and a weight of each, divided once at the end.

Losses are summed from float32 elements. The result equals that of one batch with the whole set, however it is divided:
for the mean-reducing form of the loss, and for `reduction="sum"` the sum per sample."""

import copy
from collections.abc import Callable
from typing import Any, TypeAlias

import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.losses import HingeLoss, LogisticLoss

Loss: TypeAlias = Callable[..., Tensor]  # loss(output, target)

# The modules that these functions equal with default arguments.
_MODULE_OF: dict[Any, type[nn.Module]] = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.nll_loss: nn.NLLLoss,
    F.binary_cross_entropy: nn.BCELoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    F.mse_loss: nn.MSELoss,
    F.l1_loss: nn.L1Loss,
    F.smooth_l1_loss: nn.SmoothL1Loss,
    F.huber_loss: nn.HuberLoss,
}
BY_CLASS = (nn.CrossEntropyLoss, nn.NLLLoss)  # the prediction is the argmax over the classes
BY_SIGN = (nn.BCEWithLogitsLoss, nn.BCELoss, LogisticLoss, HingeLoss)  # every element is a yes or no


def as_module(loss: Loss) -> Loss:
    """Return the module of a torch function; anything else unchanged."""
    try:
        return _MODULE_OF[loss]() if loss in _MODULE_OF else loss
    except TypeError:  # an unhashable callable object is not one of torch's functions
        return loss


def is_torch_loss(loss: Loss) -> bool:
    """Return whether `reduction` has torch's meaning: torch's own class, or a subclass with torch's forward."""
    forward = getattr(type(loss), "forward", None)
    return getattr(forward, "__module__", "") == "torch.nn.modules.loss" and hasattr(loss, "reduction")


def loss_sums(output: Any, target: Tensor, loss: Loss) -> tuple[float, float]:
    """Return (sum, weight) of one batch; `loss` as a module (`as_module`).

    torch's own losses are evaluated element by element, so class weights, ignored targets and every reduction are
    handled correctly. A user's loss returns one number for the batch, which counts as its mean and is weighted by B; if
    it returns a tensor, that holds the loss of every element.
    """
    if not is_torch_loss(loss):
        value = loss(output, target)
        samples = len(target)
        return (float(value) * samples, float(samples)) if value.dim() == 0 else _sum_and_size(value)
    elementwise = copy.copy(loss)  # shallow: weights are shared, only the attribute below differs
    elementwise.reduction = "none"  # type: ignore[attr-defined]
    value = elementwise(output, target)
    loss_sum, elements = _sum_and_size(value)
    reduction = loss.reduction  # type: ignore[attr-defined]
    if reduction in ("sum", "batchmean"):  # batchmean: KLDivLoss, the sum per sample
        return loss_sum, float(len(target))
    if isinstance(loss, BY_CLASS):
        return loss_sum, _class_weight_sum(output, target, loss)
    return loss_sum, elements


def _sum_and_size(value: Tensor) -> tuple[float, float]:
    return float(value.double().sum()), float(value.numel())


def _class_weight_sum(output: Tensor, target: Tensor, loss: nn.CrossEntropyLoss | nn.NLLLoss) -> float:
    """Return the divisor of torch's mean: the weights of the classes of all targets not ignored; with class
    probabilities as targets the number of distributions, weighted or not."""
    if target.is_floating_point():
        return float(output.numel() // output.shape[1])
    kept = target[target != loss.ignore_index]
    return float(kept.numel()) if loss.weight is None else float(loss.weight.double()[kept].sum())
