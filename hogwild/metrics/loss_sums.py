"""The loss of a whole data set from its batches: a sum and a weight of each, divided once at the end; and the targets
that a loss takes.

Losses are summed from float32 elements. The result equals that of one batch with the whole set, however it is divided:
for the mean-reducing form of the loss, and for `reduction="sum"` the sum per sample. With weights of samples it equals
that of a set in which each sample occurs as often as its weight says.

A loss that compares signs or ranges computes a number from any target: labels 1 and 2 would both be positive, and the
accuracy 1. So these are the targets:

CrossEntropyLoss, NLLLoss, MultiMarginLoss       class numbers from 0 on, and the ignored one
MultiLabelMarginLoss                             the same, and -1
CrossEntropyLoss with probabilities, BCELoss, BCEWithLogitsLoss, MultiLabelSoftMarginLoss     0 to 1
LogisticLoss, HingeLoss                          0 and 1, or -1 and 1
SoftMarginLoss, HingeEmbeddingLoss               -1 and 1
PoissonNLLLoss, KLDivLoss                        0 or more; with log_target 0 or less
BprLoss, WarpLoss                                more than 0; data in memory lose the others (`job.packed_data`)
any other                                        any number"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.errors import BuildError
from hogwild.losses import BprLoss, HingeLoss, LogisticLoss, WarpLoss

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
    if hasattr(loss, "reduction"):
        elementwise: Any = copy.copy(loss)  # shallow: weights are shared, only the attribute below differs
        elementwise.reduction = "none"
        value = torch.as_tensor(elementwise(output, target))
    else:
        value = loss.by_sample(output, target)  # type: ignore[attr-defined]  # `WeightedLoss` has checked it
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


def _class_weight_sum(output: Tensor, target: Tensor, loss: nn.CrossEntropyLoss | nn.NLLLoss, weight: Tensor) -> Tensor:
    """Return the divisor of torch's mean: the weights of the classes of all targets not ignored; with class
    probabilities as targets the number of distributions, weighted or not."""
    if target.is_floating_point():
        return weight.sum() * (output[:1].numel() // output.shape[1])
    kept = target != loss.ignore_index  # multiplied, not selected: a CUDA graph has no shapes that vary
    each = weight.reshape(-1, *[1] * (target.dim() - 1)) * kept
    return each.sum() if loss.weight is None else (each * loss.weight.double()[target * kept]).sum()


# ---- targets ---------------------------------------------------------------------------------------------------------

AT_ONCE = 1 << 24  # elements per check: keeps the temporaries small
PROBABLE = (nn.BCELoss, nn.BCEWithLogitsLoss, nn.MultiLabelSoftMarginLoss)
NUMBERED = (nn.MultiMarginLoss, nn.MultiLabelMarginLoss)
ABOVE_0 = 2.0**-126  # the least normal number of float32
ZERO_ONE, SIGNS = (0, 1), (-1, 1)


@dataclass(frozen=True, slots=True)
class Labels:
    """The valid targets: numbers from `least` to `most`, or of one of the `pairs` if there are any; and `ignored`.
    `classes`: of the model, if they are class numbers."""

    loss: str
    least: float = -inf
    most: float = inf
    pairs: tuple[tuple[int, int], ...] = ()
    ignored: int | None = None
    classes: int = 0

    @classmethod
    def of(cls, loss: Any, output: tuple[int, ...], target: Tensor, *, is_judged: bool = False) -> "Labels | None":
        """Return the rule for a loss, as a module, of outputs (B, …) and targets (B, …); None if any number will do.
        `is_judged`: a metric reads the targets as classes, or as yes and no, whatever the loss is."""
        name, is_whole = type(loss).__name__, not target.is_floating_point()
        if isinstance(loss, BY_CLASS + NUMBERED):
            if len(output) < 2:
                return None
            if is_whole:
                least = -1 if isinstance(loss, nn.MultiLabelMarginLoss) else 0
                return cls(name, least, output[1] - 1, (), getattr(loss, "ignore_index", None), output[1])
            return cls(name, 0, 1) if tuple(target.shape[1:]) == output[1:] else None
        if getattr(type(loss), "forward", None) in (LogisticLoss.forward, HingeLoss.forward):
            return cls(name, pairs=(ZERO_ONE, SIGNS))
        if isinstance(loss, BprLoss | WarpLoss):
            return cls(name, ABOVE_0)
        if is_torch_loss(loss):
            if isinstance(loss, PROBABLE):
                return cls(name, 0, 1)
            if isinstance(loss, nn.SoftMarginLoss | nn.HingeEmbeddingLoss):
                return cls(name, pairs=(SIGNS,))
            if isinstance(loss, nn.PoissonNLLLoss | nn.KLDivLoss):
                return cls(name, -inf, 0) if getattr(loss, "log_target", False) else cls(name, 0, inf)
            return None
        if is_judged and is_whole and tuple(target.shape[1:]) == output[1:]:
            return cls("evaluate.metrics", pairs=(ZERO_ONE, SIGNS))
        return None

    def narrowed(self, target: Tensor) -> "Labels":
        """Return the rule after some targets: the pairs that hold all of them."""
        kept = tuple(pair for pair in self.pairs if not self._wrong(target, pair).any())
        return replace(self, pairs=kept or self.pairs)

    def wrong(self, target: Tensor) -> tuple[int, float] | None:
        """Return (row, value) of the first invalid target in (B, …), or None."""
        begin, rows = 0, max(1, AT_ONCE // max(1, target[:1].numel()))
        pairs = self.narrowed(target).pairs
        for some in target.split(rows):
            if (is_wrong := self._wrong(some, pairs[0] if pairs else None)).any():
                row = int(is_wrong.reshape(len(some), -1).any(dim=1).nonzero()[0])
                return begin + row, some[row][is_wrong[row]].reshape(-1)[0].item()
            begin += len(some)
        return None

    def ends_of(self, target: Tensor) -> set[float]:
        """Return the least and the largest of the targets that are not ignored; of a loss that does not divide samples
        into classes -inf and inf."""
        if self.most == inf and not self.pairs:
            return {-inf, inf}
        kept = target if self.ignored is None else target[target.long() != self.ignored]
        return {float(kept.min()), float(kept.max())} if kept.numel() else set()

    def describe(self, value: float, names: Sequence[Any] = ()) -> str:
        """Return what is wrong with a label. `names`: the labels as they are in the file, if they were numbered."""
        name = f" ({names[int(value)]} in the file)" if 0 <= value < len(names) else ""
        if self.classes:
            return f"{value}{name}; the model has {self.classes} outputs, so labels must be in [0, {self.classes - 1}]"
        if not self.pairs:
            least, most = f"{self.least:g}", f"{self.most:g}"
            rule = (
                f"from {least} to {most}"
                if inf not in (-self.least, self.most)
                else (f"from {least} on" if self.most == inf else f"up to {most}")
            )
            rule = "above 0: each sample is a like" if self.least == ABOVE_0 else rule
            return f"{value:g}{name}; {self.loss} takes numbers {rule}"
        rule = ", or ".join(f"{low} and {high}" for low, high in self.pairs)
        return (
            f"{value:g}{name}; {self.loss} takes two labels, {rule}. Change them in the data, or number the classes "
            "for CrossEntropyLoss (hogwild.data.LibSvm: labels: classes; Csv: categorical)"
        )

    def _wrong(self, target: Tensor, pair: tuple[int, int] | None) -> Tensor:
        """Return (B, …) of bool; `pair`: the only valid ones."""
        numbers = target if target.is_floating_point() else target.long()  # -1 is 255 beside uint8
        if pair is not None:
            return (numbers != pair[0]) & (numbers != pair[1])
        is_wrong = (numbers < self.least) | (numbers > self.most)
        return is_wrong if self.ignored is None else is_wrong & (numbers != self.ignored)
