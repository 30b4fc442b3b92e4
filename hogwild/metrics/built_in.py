"""The built-in metrics. Most are sums over samples: the totals and counts of all batches are added up and divided once.
AUC, macro-F1 and the calibration error are no sums: they are computed once from the outputs and targets of all
samples."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hogwild.metrics.catalog import TOP
from hogwild.metrics.loss_sums import Loss
from hogwild.metrics.predictions import Answers, UnsuitableError, difference, judged, log_probabilities
from hogwild.metrics.ranks import mean_ranks

GROUPS = 10  # of samples, for the calibration error


@dataclass(frozen=True, slots=True)
class SumMetric:
    """A metric from sums: `add(output, target, loss)` is (total, count) of a batch; `value` maps total / count."""

    add: Callable[[Any, Tensor, Loss], tuple[float, float]]
    value: Callable[[float], float] = float


def sum_metric(name: str) -> SumMetric | None:
    """Return the metric of that name; None if it is not a sum."""
    if found := TOP.match(name):
        return SumMetric(partial(_among_the_largest, int(found.group(1))))
    return _BY_NAME.get(name)


def _right(output: Any, target: Tensor, loss: Loss) -> tuple[float, float]:
    given = judged(output, target, loss)
    return float((given.predicted == given.wanted).sum()), float(given.wanted.numel())


def _among_the_largest(k: int, output: Any, target: Tensor, loss: Loss) -> tuple[float, float]:
    given = judged(output, target, loss)
    if isinstance(given, Answers):
        raise UnsuitableError("the problem is binary: there are no classes to rank")
    if k > given.logits.shape[1]:
        raise UnsuitableError(f"there are only {given.logits.shape[1]} classes")
    hits = given.logits.topk(k, 1).indices == given.wanted[:, None]
    return float(hits.any(1).sum()), float(len(given.wanted))


def _surprise(output: Any, target: Tensor, loss: Loss) -> tuple[float, float]:
    """Return the log loss in nats; unweighted, without label smoothing."""
    given = judged(output, target, loss)
    if isinstance(given, Answers):
        criterion = F.binary_cross_entropy_with_logits if given.are_logits else F.binary_cross_entropy
        total = criterion(given.outputs.double(), given.wanted.double(), reduction="sum")
    else:
        total = F.nll_loss(log_probabilities(given), given.wanted, reduction="sum")
    return float(total), float(given.wanted.numel())


def _squared(output: Any, target: Tensor, _: Loss) -> tuple[float, float]:
    apart = difference(output, target)
    return float(apart.square().sum()), float(apart.numel())


def _absolute(output: Any, target: Tensor, _: Loss) -> tuple[float, float]:
    apart = difference(output, target)
    return float(apart.abs().sum()), float(apart.numel())


def _episodes(_: Any, target: Tensor, __: Loss) -> tuple[float, float]:
    """Return total reward and number of the episodes that end in this batch: the last column, NaN in other steps."""
    if target.dim() != 2 or not target.is_floating_point():
        raise UnsuitableError(
            f"the target {tuple(target.shape)} {target.dtype} must be (B, K) float; its last column holds the total "
            "reward of an episode in its last step, and NaN in the others"
        )
    returns = target[:, -1].double()
    ended = ~returns.isnan()
    return float(returns[ended].sum()), float(ended.sum())


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


_BY_NAME = {
    "accuracy": SumMetric(_right),
    "log_loss": SumMetric(_surprise),
    "perplexity": SumMetric(_surprise, _exp),
    "rmse": SumMetric(_squared, math.sqrt),
    "mae": SumMetric(_absolute),
    "episode_return": SumMetric(_episodes),
}


# ---- of the whole set -----------------------------------------------------------------------------------------------


def auc(outputs: Any, targets: Tensor, loss: Loss) -> float:
    """Return the area under the ROC curve: the share of pairs with the positive ranked above the negative, ties
    counting half (Fawcett 2006). For more than two classes, or several answers, the mean of each against the rest, over
    those that have both. NaN if none has."""
    given = judged(outputs, targets, loss)
    if isinstance(given, Answers):
        pairs = zip(given.outputs.double().unbind(1), given.wanted.unbind(1), strict=True)
    elif given.logits.shape[1] == 2:
        log_odds = given.logits[:, 1].double() - given.logits[:, 0].double()
        pairs = zip((log_odds,), (given.wanted == 1,), strict=True)
    else:
        scores = log_probabilities(given).unbind(1)
        pairs = zip(scores, [given.wanted == number for number in range(len(scores))], strict=True)
    areas = [_area(scores, wanted) for scores, wanted in pairs]
    return _mean([area for area in areas if not math.isnan(area)])


def macro_f1(outputs: Any, targets: Tensor, loss: Loss) -> float:
    """Return the mean of F1 = 2 tp / (2 tp + fp + fn) over the classes that occur among targets or predictions. For a
    single yes or no the two answers are the classes, for several each answer is one."""
    given = judged(outputs, targets, loss)
    if isinstance(given, Answers):
        predicted = given.predicted
        if predicted.shape[1] > 1:
            return _mean_f1((predicted & given.wanted).sum(0), predicted.sum(0), given.wanted.sum(0))
        chosen, wanted, classes = predicted[:, 0].long(), given.wanted[:, 0].long(), 2
    else:
        chosen, wanted, classes = given.predicted, given.wanted, given.logits.shape[1]
    hits = wanted[chosen == wanted]
    return _mean_f1(*(torch.bincount(each, minlength=classes) for each in (hits, chosen, wanted)))


def calibration_error(outputs: Any, targets: Tensor, loss: Loss) -> float:
    """Return the mean distance of a probability from the share that comes true, in GROUPS groups of about as many
    samples each, by rising probability; samples of one probability share a group (Nguyen and O'Connor 2015; equal
    widths would put all of a rare click into one). For several classes the probability of the predicted one, for
    several answers the mean over them."""
    given = judged(outputs, targets, loss)
    if isinstance(given, Answers):
        found = given.outputs.double().sigmoid() if given.are_logits else given.outputs.double()
        pairs = zip(found.unbind(1), given.wanted.unbind(1), strict=True)
    else:
        found = log_probabilities(given).exp()
        pairs = zip((found.amax(1),), (given.predicted == given.wanted,), strict=True)
    return _mean([_distance(probabilities, is_true) for probabilities, is_true in pairs])


def _distance(probabilities: Tensor, is_true: Tensor) -> float:
    count = len(probabilities)
    if not count or bool(probabilities.isnan().any()):
        return math.nan
    group = ((mean_ranks(probabilities) - 0.5) * GROUPS / count).long()
    apart = torch.zeros(GROUPS, dtype=torch.float64).index_add(0, group, probabilities - is_true.double())
    return float(apart.abs().sum()) / count


WHOLE: dict[str, Callable[[Any, Tensor, Loss], float]] = {
    "auc": auc,
    "calibration_error": calibration_error,
    "macro_f1": macro_f1,
}


def _mean_f1(hits: Tensor, predicted: Tensor, wanted: Tensor) -> float:
    """Return the mean F1 from counts per class (C,): 2 tp + fp + fn is predicted + wanted."""
    occurring = predicted + wanted > 0
    return _mean((2 * hits[occurring].double() / (predicted + wanted)[occurring]).tolist())


def _area(scores: Tensor, wanted: Tensor) -> float:
    """Compute the area from the sum of the positives' ranks (Mann and Whitney), in O(M log M)."""
    positives = int(wanted.sum())
    negatives = len(wanted) - positives
    if not positives or not negatives or bool(scores.isnan().any()):
        return math.nan
    above = float(mean_ranks(scores)[wanted].sum()) - positives * (positives + 1) / 2
    return above / (positives * negatives)


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
