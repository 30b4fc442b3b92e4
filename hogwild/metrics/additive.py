"""Metrics that are sums over samples: the totals and counts of all batches are added up and divided once."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hogwild.metrics.catalog import TOP
from hogwild.metrics.loss_sums import Loss
from hogwild.metrics.predictions import Answers, UnsuitableError, judged, log_probabilities, numbers


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
    if isinstance(given, Answers):
        predicted = given.outputs > (0.0 if given.are_logits else 0.5)
    else:
        predicted = given.logits.argmax(1)
    return float((predicted == given.wanted).sum()), float(given.wanted.numel())


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
        return float(criterion(given.outputs.double(), given.wanted.double(), reduction="sum")), float(
            given.wanted.numel()
        )
    return float(F.nll_loss(log_probabilities(given), given.wanted, reduction="sum")), float(len(given.wanted))


def _squared(output: Any, target: Tensor, _: Loss) -> tuple[float, float]:
    left, right = numbers(output, target)
    return float((left - right).square().sum()), float(left.numel())


def _absolute(output: Any, target: Tensor, _: Loss) -> tuple[float, float]:
    left, right = numbers(output, target)
    return float((left - right).abs().sum()), float(left.numel())


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


_BY_NAME = {
    "accuracy": SumMetric(_right),
    "log_loss": SumMetric(_surprise),
    "perplexity": SumMetric(_surprise, _exp),
    "rmse": SumMetric(_squared, math.sqrt),
    "mae": SumMetric(_absolute),
}
