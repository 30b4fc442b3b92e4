"""Metrics that are no sums: computed once from the outputs and targets of all samples."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hogwild.metrics.loss_sums import Loss
from hogwild.metrics.predictions import Answers, judged, log_probabilities

WholeMetric = Callable[[Any, Tensor, Loss], float]


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
        predicted = given.outputs > (0.0 if given.are_logits else 0.5)
        if predicted.shape[1] > 1:
            return _mean_f1((predicted & given.wanted).sum(0), predicted.sum(0), given.wanted.sum(0))
        chosen, wanted, classes = predicted[:, 0].long(), given.wanted[:, 0].long(), 2
    else:
        chosen, wanted, classes = given.logits.argmax(1), given.wanted, given.logits.shape[1]
    hits = wanted[chosen == wanted]
    return _mean_f1(*(torch.bincount(each, minlength=classes) for each in (hits, chosen, wanted)))


WHOLE: dict[str, WholeMetric] = {"auc": auc, "macro_f1": macro_f1}


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
    _, group, sizes = scores.unique(return_inverse=True, return_counts=True)
    ranks = sizes.cumsum(0) - (sizes - 1) / 2  # tied scores get the mean of their ranks
    above = float(ranks.double()[group[wanted]].sum()) - positives * (positives + 1) / 2
    return above / (positives * negatives)


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
