"""The loss of a whole data set from its batches: a sum and a weight of each, divided once at the end.

Losses are summed from float32 elements. The result equals that of one batch with the whole set, however it is divided:
for the mean-reducing form of the loss, and for `reduction="sum"` the sum per sample. With weights of samples it equals
that of a set in which each sample occurs as often as its weight says."""

import copy
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.errors import BuildError
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
    F.kl_div: nn.KLDivLoss,
    F.poisson_nll_loss: nn.PoissonNLLLoss,
    F.hinge_embedding_loss: nn.HingeEmbeddingLoss,
    F.soft_margin_loss: nn.SoftMarginLoss,
    F.multi_margin_loss: nn.MultiMarginLoss,
    F.multilabel_margin_loss: nn.MultiLabelMarginLoss,
    F.multilabel_soft_margin_loss: nn.MultiLabelSoftMarginLoss,
}
BY_CLASS = (nn.CrossEntropyLoss, nn.NLLLoss)  # the prediction is the argmax over the classes
BY_SIGN = (nn.BCEWithLogitsLoss, nn.BCELoss, LogisticLoss, HingeLoss)  # every element is a yes or no


class WeightedLoss(nn.Module):
    """The loss of samples with weights: the mean that torch's own computes of a batch in which each sample occurs as
    often as its weight says, times the batch's mean weight over `mean`, that of the training data. So twice the weights
    change nothing, a sample counts alike in whatever batch it is, and a batch of one is what a kernel applies.

    `loss` has an attribute `reduction`, as torch's have, or a method `by_sample(output, target)` that returns the
    losses (B,). Raises BuildError for one that has neither."""

    def __init__(self, loss: Loss, mean: float) -> None:
        super().__init__()
        self.loss, self.mean = as_module(loss), mean
        if not hasattr(self.loss, "reduction") and not callable(getattr(self.loss, "by_sample", None)):
            raise BuildError(
                f"{getattr(loss, '__name__', type(loss).__name__)} cannot be weighted by sample, but data.train has "
                "weights: use a loss of torch, LogisticLoss or HingeLoss, or give it a method by_sample(output, target)"
                " that returns the losses (B,)",
                code="model/bad-loss",
            )

    def forward(self, output: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """Return the loss, a scalar; weight (B,), from 0 on."""
        total, divisor = _sum_and_divisor(output, target, self.loss, weight)
        share = weight.double().sum() / self.mean
        if getattr(self.loss, "reduction", "") != "sum":
            share = share / len(weight)
        loss = total / divisor.clamp_min(torch.finfo(torch.float64).tiny) * share
        return loss.to(torch.promote_types(output.dtype, torch.float32))  # outputs may be of half precision


def parted(loss: Any, inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """Return (what the model gets, the weights of the samples, if any): they are the last of a batch's inputs."""
    return (inputs[:-1], inputs[-1:]) if isinstance(loss, WeightedLoss) else (inputs, ())


def as_module(loss: Loss) -> Loss:
    """Return the module of a torch function, and the loss of a WeightedLoss; anything else unchanged."""
    if isinstance(loss, WeightedLoss):
        return loss.loss
    try:
        return _MODULE_OF[loss]() if loss in _MODULE_OF else loss
    except TypeError:  # an unhashable callable object is not one of torch's functions
        return loss


def is_torch_loss(loss: Loss) -> bool:
    """Return whether `reduction` has torch's meaning: torch's own class, or a subclass with torch's forward."""
    forward = getattr(type(loss), "forward", None)
    return getattr(forward, "__module__", "") == "torch.nn.modules.loss" and hasattr(loss, "reduction")


def loss_sums(output: Any, target: Tensor, loss: Loss, weight: Tensor | None = None) -> tuple[float, float]:
    """Return (sum, divisor) of one batch; `loss` as a module (`as_module`); weight (B,) of the samples.

    torch's own losses are evaluated element by element, so class weights, ignored targets and every reduction are
    handled correctly. A user's loss returns one number for the batch, which counts as its mean and is weighted by B; if
    it returns a tensor, that holds the loss of every element.
    """
    if weight is None and not is_torch_loss(loss):
        value = loss(output, target)
        samples = len(target)
        if value.dim() == 0:
            return float(value) * samples, float(samples)
        return float(value.double().sum()), float(value.numel())
    total, divisor = _sum_and_divisor(output, target, loss, weight)
    return float(total), float(divisor)


def _sum_and_divisor(output: Any, target: Tensor, loss: Loss, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the sum of all elements and the divisor of their mean, float64 scalars."""
    value = _elements(output, target, loss)
    ones = torch.ones(len(target), dtype=torch.float64, device=value.device) if weight is None else weight.double()
    if len(value) != len(ones):
        raise BuildError(
            f"{type(loss).__name__} returned losses {tuple(value.shape)} of {len(ones)} samples; weights of samples "
            "need the losses of each",
            code="model/bad-loss",
        )
    each = ones.reshape(-1, *[1] * (value.dim() - 1))
    total = (value.double() * each).sum()
    if getattr(loss, "reduction", "") in ("sum", "batchmean"):  # batchmean: KLDivLoss, the sum per sample
        return total, ones.sum()
    if isinstance(loss, BY_CLASS):
        return total, _class_weight_sum(output, target, loss, ones)
    return total, ones.sum() * (value.numel() // max(1, len(value)))


def _elements(output: Any, target: Tensor, loss: Any) -> Tensor:
    """Return the loss of every element (B, …)."""
    if not hasattr(loss, "reduction"):
        found: Tensor = loss.by_sample(output, target)
        return found
    elementwise = copy.copy(loss)  # shallow: weights are shared, only the attribute below differs
    elementwise.reduction = "none"
    return torch.as_tensor(elementwise(output, target))


def _class_weight_sum(output: Tensor, target: Tensor, loss: nn.CrossEntropyLoss | nn.NLLLoss, weight: Tensor) -> Tensor:
    """Return the divisor of torch's mean: the weights of the classes of all targets not ignored; with class
    probabilities as targets the number of distributions, weighted or not."""
    if target.is_floating_point():
        return weight.sum() * (output[:1].numel() // output.shape[1])
    kept = target != loss.ignore_index  # multiplied, not selected: a CUDA graph has no shapes that vary
    each = weight.reshape(-1, *[1] * (target.dim() - 1)) * kept
    return each.sum() if loss.weight is None else (each * loss.weight.double()[target * kept]).sum()
