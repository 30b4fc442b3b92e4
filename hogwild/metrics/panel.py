"""The metrics of one job: chosen once in the parent, carried to every worker.

A metric is a sum over samples, or it is `whole`: our own AUC and macro-F1, and every function of the user's, take the
outputs and targets of all samples at once. A worker computes either; only sums are divided in the supervisor."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import BuildError, UsageError
from hogwild.metrics.additive import SumMetric, sum_metric
from hogwild.metrics.catalog import LOSS, MOST, known
from hogwild.metrics.loss_sums import BY_CLASS, BY_SIGN, Loss, as_module, loss_sums
from hogwild.metrics.predictions import UnsuitableError
from hogwild.metrics.result_row import EvalSums
from hogwild.metrics.whole_set import WHOLE

Own = Callable[[Any, Tensor], Any]  # of the user's: (outputs (N, …), targets (N, …)) -> one number
RECORDED = ("time", "kind", "event", "epoch", "updates", "samples", "seconds", "best")  # beside the metrics
_SQUARED = (nn.MSELoss, nn.SmoothL1Loss, nn.HuberLoss)


@dataclass(frozen=True, slots=True)
class Panel:
    """`names` in the order of reports, without the loss, which comes first; `own` are the user's functions by name.
    `is_auto`: nobody asked for these, so what does not suit the outputs is left out."""

    names: tuple[str, ...]
    own: Mapping[str, Own]
    is_auto: bool = False

    @classmethod
    def of(cls, chosen: Mapping[str, str | Own] | None, model: nn.Module, loss: Loss) -> "Panel":
        """`chosen`: metrics under the names they are reported by; None: what the model names in `metrics`, or else what
        suits the loss: accuracy for cross-entropy, NLL and BCE, rmse for squared and Huber losses, mae for absolute
        ones. Subclasses count as their parents."""
        if chosen is None:
            mine: Any = getattr(model, "metrics", None)
            if not _is_choice(mine):
                return cls(_suiting(as_module(loss)), {}, is_auto=True)
            chosen = named(mine)
        metrics = {name: metric for name, metric in chosen.items() if name != LOSS}
        unknown = [name for name, metric in metrics.items() if isinstance(metric, str) and known(name) is None]
        if unknown or len(metrics) > MOST:
            what = f"no such metric: {', '.join(unknown)} (hogwild list metrics)" if unknown else f"more than {MOST}"
            raise UsageError(f"evaluate.metrics: {what}", code="config/unknown-metric")
        own = {name: metric for name, metric in metrics.items() if not isinstance(metric, str)}
        if taken := [name for name in own if name in RECORDED]:
            raise UsageError(
                f"evaluate.metrics: {', '.join(taken)}: a record of an evaluation has that field already; give the "
                "function another name",
                code="config/metric-name",
            )
        return cls(tuple(metrics), own)

    # ---- what there is

    @property
    def reported(self) -> tuple[str, ...]:
        return (LOSS, *self.names)

    @property
    def whole(self) -> tuple[str, ...]:
        """The metrics that need all outputs at once, in the order of a scoring item's row."""
        return tuple(name for name in self.names if name in self.own or name in WHOLE)

    def higher_is_better(self, name: str) -> bool | None:
        """None where nobody has said so: a function of the user's without the attribute `higher_is_better`."""
        if name in self.own:
            said = getattr(self.own[name], "higher_is_better", None)
            return None if said is None else bool(said)
        found = known(name)
        return None if found is None else found.higher_is_better

    # ---- in a worker

    @torch.no_grad()
    def add(self, output: Any, target: Tensor, loss: Loss) -> EvalSums:
        """The sums of one batch: `output` as the model gave it in eval mode, target (B, …), `loss` as in training."""
        module = as_module(loss)
        words = [*loss_sums(output, target, module)]
        for _, metric in self._sums():
            words += metric.add(output, target, module)
        return EvalSums.of(words)

    @torch.no_grad()
    def score(self, outputs: Any, targets: Tensor, loss: Loss) -> tuple[float, ...]:
        """The values of `whole`, from the outputs (N, …) and targets (N, …) of all samples. Raises what a function of
        the user's raises, and TypeError where it does not answer a number."""
        module = as_module(loss)
        return tuple(
            float(self.own[name](outputs, targets)) if name in self.own else WHOLE[name](outputs, targets, module)
            for name in self.whole
        )

    # ---- in the supervisor

    def values(self, sums: EvalSums, scores: Sequence[float] = ()) -> dict[str, float]:
        """{"loss": …, "accuracy": …}: `scores` is what a scoring item answered. A sum of nothing is left out; NaN where
        the loss has no weight at all (no samples, or every target ignored)."""
        loss_sum, loss_weight, *words = sums.words
        found = {LOSS: loss_sum / loss_weight if loss_weight else math.nan}
        for (name, metric), total, count in zip(self._sums(), words[::2], words[1::2], strict=False):
            if count:
                found[name] = metric.value(total / count)
        found |= dict(zip(self.whole, scores, strict=False))
        return {name: found[name] for name in self.reported if name in found}

    def settle(self, output: Any, target: Tensor, loss: Loss) -> "Panel":
        """Tried on some outputs and targets. What was not asked for and does not suit is left out. Raises BuildError
        for what was."""
        unsuitable = {}
        for name in self.names:
            try:
                self._one(name).try_out(output, target, loss)
            except UnsuitableError as error:
                unsuitable[name] = str(error)
            except Exception as error:  # a function of the user's own
                unsuitable[name] = f"{type(error).__name__}: {error}"
        if unsuitable and not self.is_auto:
            lines = "\n  ".join(f"{name}: {why}" for name, why in unsuitable.items())
            raise BuildError(f"evaluate.metrics: not with this model, loss and data:\n  {lines}", code="model/metric")
        return replace(self, names=tuple(name for name in self.names if name not in unsuitable))

    def try_out(self, output: Any, target: Tensor, loss: Loss) -> None:
        """Everything once; raises whatever is raised."""
        self.add(output, target, loss)
        self.score(output, target, loss)

    def _one(self, name: str) -> "Panel":
        return Panel((name,), {name: self.own[name]} if name in self.own else {})

    def _sums(self) -> list[tuple[str, SumMetric]]:
        found = ((name, sum_metric(name)) for name in self.names if name not in self.own)
        return [(name, metric) for name, metric in found if metric is not None]


def named(metrics: Iterable[str | Own]) -> dict[str, str | Own]:
    """Each under what it is reported by: its name; of a function or an object its own, or its class's."""
    return {
        metric if isinstance(metric, str) else str(getattr(metric, "__name__", type(metric).__name__)): metric
        for metric in metrics
    }


def meets(values: Mapping[str, float], target: Mapping[str, float], higher: Mapping[str, bool]) -> bool:
    """Whether every goal of `target` is reached: at least, where `higher` says that is better, else at most. An empty
    target is never met, and neither is a goal whose metric is NaN or, because nothing was judged, missing."""
    reached = []
    for name, goal in target.items():
        value = values.get(name, math.nan)
        reached.append(value >= goal if higher[name] else value <= goal)
    return bool(reached) and all(reached)


def _is_choice(mine: Any) -> bool:
    """What a model of the user's calls `metrics` may be something else entirely."""
    return isinstance(mine, list | tuple) and bool(mine) and all(isinstance(one, str) or callable(one) for one in mine)


def _suiting(loss: Loss) -> tuple[str, ...]:
    if isinstance(loss, BY_CLASS + BY_SIGN):
        return ("accuracy",)
    if isinstance(loss, _SQUARED):
        return ("rmse",)
    return ("mae",) if isinstance(loss, nn.L1Loss) else ()
