"""The built-in metrics, and predictions and targets in the one form that all of them take.

The loss determines how an output is read: cross-entropy and NLL as classes, BCE as yes or no. For a user's loss the
shapes decide: integer targets with one dimension less than the output are classes, with the output's own shape they are
yes or no.

Most metrics are sums over samples: the totals and counts of all batches are added up and divided once. AUC, macro-F1
and the calibration error are no sums: they are computed once from the outputs and targets of all samples. Those of
ranks (a correlation, the ranks of right answers) are named by their class path."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hogwild.metrics.catalog import TOP
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


# ---- sums ------------------------------------------------------------------------------------------------------------

GROUPS = 10  # of samples, for the calibration error


@dataclass(frozen=True, slots=True)
class SumMetric:
    """A metric from sums: `add(output, target, loss, weight)` is (total, count) of a batch; `value` maps total / count.
    weight (B,): of the samples; None: 1 each."""

    add: Callable[[Any, Tensor, Loss, Tensor | None], tuple[float, float]]
    value: Callable[[float], float] = float


def sum_metric(name: str) -> SumMetric | None:
    """Return the metric of that name; None if it is not a sum."""
    if found := TOP.match(name):
        return SumMetric(partial(_among_the_largest, int(found.group(1))))
    return _BY_NAME.get(name)


def _weighted(values: Tensor, weight: Tensor) -> tuple[float, float]:
    """Return total and count of the values (M, …) with weights (M,)."""
    rows = values.double().reshape(len(weight), values[:1].numel())
    return float((rows.sum(1) * weight).sum()), float(weight.sum()) * rows.shape[1]


def _right(output: Any, target: Tensor, loss: Loss, weight: Tensor | None) -> tuple[float, float]:
    given = judged(output, target, loss, weight)
    return _weighted(given.predicted == given.wanted, given.weight)


def _among_the_largest(k: int, output: Any, target: Tensor, loss: Loss, weight: Tensor | None) -> tuple[float, float]:
    given = judged(output, target, loss, weight)
    if isinstance(given, Answers):
        raise UnsuitableError("the problem is binary: there are no classes to rank")
    if k > given.logits.shape[1]:
        raise UnsuitableError(f"there are only {given.logits.shape[1]} classes")
    hits = given.logits.topk(k, 1).indices == given.wanted[:, None]
    return _weighted(hits.any(1), given.weight)


def _surprise(output: Any, target: Tensor, loss: Loss, weight: Tensor | None) -> tuple[float, float]:
    """Return the log loss in nats; without class weights and label smoothing."""
    given = judged(output, target, loss, weight)
    if isinstance(given, Answers):
        criterion = F.binary_cross_entropy_with_logits if given.are_logits else F.binary_cross_entropy
        return _weighted(criterion(given.outputs.double(), given.wanted.double(), reduction="none"), given.weight)
    return _weighted(F.nll_loss(log_probabilities(given), given.wanted, reduction="none"), given.weight)


def _errors(power: int, output: Any, target: Tensor, _: Loss, weight: Tensor | None) -> tuple[float, float]:
    return _weighted(difference(output, target).abs() ** power, weights_of(target, weight))


def _episodes(_: Any, target: Tensor, __: Loss, ___: Tensor | None) -> tuple[float, float]:
    """Return total reward and number of the episodes that end in this batch: the last column, NaN in other steps."""
    if target.dim() != 2 or not target.is_floating_point():
        raise UnsuitableError(
            f"the target {tuple(target.shape)} {target.dtype} must be (B, K) float; its last column holds the total "
            "reward of an episode in its last step, and NaN in the others"
        )
    returns = target[:, -1].double()
    ended = ~returns.isnan()
    return float(returns[ended].sum()), float(ended.sum())


_BY_NAME = {
    "accuracy": SumMetric(_right),
    "log_loss": SumMetric(_surprise),
    "perplexity": SumMetric(_surprise, lambda value: math.exp(value) if value < 700 else math.inf),
    "rmse": SumMetric(partial(_errors, 2), math.sqrt),
    "mae": SumMetric(partial(_errors, 1)),
    "episode_return": SumMetric(_episodes),
}


# ---- of the whole set -----------------------------------------------------------------------------------------------


def auc(outputs: Any, targets: Tensor, loss: Loss, weights: Tensor | None = None) -> float:
    """Return the area under the ROC curve: the share of pairs with the positive ranked above the negative, ties
    counting half (Fawcett 2006); a pair counts as the product of its weights. For more than two classes, or several
    answers, the mean of each against the rest, over those that have both. NaN if none has."""
    given = judged(outputs, targets, loss, weights)
    if isinstance(given, Answers):
        pairs = zip(given.outputs.double().unbind(1), given.wanted.unbind(1), strict=True)
    elif given.logits.shape[1] == 2:
        log_odds = given.logits[:, 1].double() - given.logits[:, 0].double()
        pairs = zip((log_odds,), (given.wanted == 1,), strict=True)
    else:
        scores = log_probabilities(given).unbind(1)
        pairs = zip(scores, [given.wanted == number for number in range(len(scores))], strict=True)
    areas = [_area(scores, wanted, given.weight) for scores, wanted in pairs]
    return _mean([area for area in areas if not math.isnan(area)])


def macro_f1(outputs: Any, targets: Tensor, loss: Loss, weights: Tensor | None = None) -> float:
    """Return the mean of F1 = 2 tp / (2 tp + fp + fn) over the classes that occur among targets or predictions. For a
    single yes or no the two answers are the classes, for several each answer is one."""
    given = judged(outputs, targets, loss, weights)
    weight = given.weight
    if isinstance(given, Answers):
        predicted = given.predicted
        if predicted.shape[1] > 1:
            yes = predicted & given.wanted, predicted, given.wanted
            return _mean_f1(*((each.double() * weight[:, None]).sum(0) for each in yes))
        chosen, wanted, classes = predicted[:, 0].long(), given.wanted[:, 0].long(), 2
    else:
        chosen, wanted, classes = given.predicted, given.wanted, given.logits.shape[1]
    hits = weight * (chosen == wanted)
    pairs = (wanted, hits), (chosen, weight), (wanted, weight)
    return _mean_f1(*(torch.bincount(each, counts, minlength=classes) for each, counts in pairs))


def calibration_error(outputs: Any, targets: Tensor, loss: Loss, weights: Tensor | None = None) -> float:
    """Return the mean distance of a probability from the share that comes true, in GROUPS groups of about as many
    samples each, by rising probability; samples of one probability share a group (Nguyen and O'Connor 2015; equal
    widths would put all of a rare click into one). For several classes the probability of the predicted one, for
    several answers the mean over them."""
    given = judged(outputs, targets, loss, weights)
    if isinstance(given, Answers):
        found = given.outputs.double().sigmoid() if given.are_logits else given.outputs.double()
        pairs = zip(found.unbind(1), given.wanted.unbind(1), strict=True)
    else:
        found = log_probabilities(given).exp()
        pairs = zip((found.amax(1),), (given.predicted == given.wanted,), strict=True)
    return _mean([_distance(probabilities, is_true, given.weight) for probabilities, is_true in pairs])


def _distance(probabilities: Tensor, is_true: Tensor, weight: Tensor) -> float:
    count = float(weight.sum())
    if not count or bool(probabilities.isnan().any()):
        return math.nan
    _, tied = probabilities.unique(return_inverse=True)
    sizes = torch.bincount(tied, weight)
    middle = (sizes.cumsum(0) - sizes / 2)[tied]
    group = (middle * GROUPS / count).long().clamp_max(GROUPS - 1)  # a weight of 0 may lie at the end
    apart = torch.bincount(group, weight * (probabilities - is_true.double()), minlength=GROUPS)
    return float(apart.abs().sum()) / count


WHOLE: dict[str, Callable[[Any, Tensor, Loss, Tensor | None], float]] = {
    "auc": auc,
    "calibration_error": calibration_error,
    "macro_f1": macro_f1,
}


def _mean_f1(hits: Tensor, predicted: Tensor, wanted: Tensor) -> float:
    """Return the mean F1 from weighted counts per class (C,): 2 tp + fp + fn is predicted + wanted."""
    occurring = predicted + wanted > 0
    return _mean((2 * hits[occurring] / (predicted + wanted)[occurring]).tolist())


def _area(scores: Tensor, wanted: Tensor, weight: Tensor) -> float:
    """Compute the area from the weight of the negatives below each score (Mann and Whitney), in O(M log M)."""
    _, tied = scores.unique(return_inverse=True)
    positives, negatives = (torch.bincount(tied, weight * side) for side in (wanted, ~wanted))
    whole = float(positives.sum()) * float(negatives.sum())
    if not whole or bool(scores.isnan().any()):
        return math.nan
    below = negatives.cumsum(0) - negatives / 2
    return float((positives * below).sum()) / whole


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


# ---- of ranks --------------------------------------------------------------------------------------------------------


def spearman(outputs: Tensor, targets: Tensor) -> float:
    """Return Spearman's rank correlation of outputs (N,) with targets (N,), ties at their mean rank; NaN if one of them
    is constant. A metric: `evaluate.metrics: [hogwild.metrics.spearman]`."""
    ranks = []
    for side in (outputs, targets):
        _, group, sizes = side.detach().double().reshape(-1).unique(return_inverse=True, return_counts=True)
        ranks.append((sizes.cumsum(0) - (sizes - 1) / 2).double()[group])
    a, b = (one - one.mean() for one in ranks)  # not torch.corrcoef, which warns of a single sample
    return float((a * b).sum() / (a.square().sum() * b.square().sum()).sqrt())


def mrr(ranks: Tensor, targets: Tensor) -> float:
    """Return the mean reciprocal rank of ranks (N, 2), one for each question of a triple."""
    return float(ranks.double().reciprocal().mean())


def hits_1(ranks: Tensor, targets: Tensor) -> float:
    """Return the share of right answers that are ranked first, of ranks (N, 2)."""
    return _hits(ranks, 1)


def hits_3(ranks: Tensor, targets: Tensor) -> float:
    """Return the share of right answers among the first 3, of ranks (N, 2)."""
    return _hits(ranks, 3)


def hits_10(ranks: Tensor, targets: Tensor) -> float:
    """Return the share of right answers among the first 10, of ranks (N, 2)."""
    return _hits(ranks, 10)


def _hits(ranks: Tensor, k: int) -> float:
    return float((ranks <= k).double().mean())


OF_RANKS = (mrr, hits_1, hits_3, hits_10)
for _metric in (spearman, *OF_RANKS):
    vars(_metric)["higher_is_better"] = True
