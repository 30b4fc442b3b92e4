"""The metrics of one job: chosen once in the parent, sent to every worker.

A metric is a sum over samples, or `whole`: our AUC and macro-F1, and every user function, take the outputs and targets
of all samples at once; or `ranked`: those of recommenders, sums over users (`ranking.py`). A worker computes any kind;
the supervisor only divides sums."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.errors import BuildError, UsageError
from hogwild.metrics.built_in import WHOLE, SumMetric, UnsuitableError, sum_metric
from hogwild.metrics.catalog import AUC, LOSS, MOST, RANKED, RECORDED, known, name_of
from hogwild.metrics.loss_sums import BY_CLASS, BY_SIGN, Loss, as_module, loss_sums
from hogwild.metrics.result_row import EvalSums
from hogwild.user_code import raised_text

# A user's function: (outputs (N, …), or what the model returns with such tensors in it, targets (N, …)) -> one number.
Own = Callable[[Any, Tensor], Any]
_SUITING: tuple[tuple[tuple[type, ...], str], ...] = (
    (BY_CLASS + BY_SIGN, "accuracy"),
    ((nn.MSELoss, nn.SmoothL1Loss, nn.HuberLoss), "rmse"),
    ((nn.L1Loss,), "mae"),
)


@dataclass(frozen=True, slots=True)
class Panel:
    """The metrics of a job: `names` in the order of reports, without the loss, which comes first; `own`: the user's
    functions by name. `is_auto`: chosen by default, so metrics that do not suit the outputs are left out. `ranks`: the
    model scores all items for a user (`score_tables`)."""

    names: tuple[str, ...]
    own: Mapping[str, Own]
    is_auto: bool = False
    ranks: bool = False

    @classmethod
    def of(cls, chosen: Mapping[str, str | Own] | None, model: nn.Module, loss: Loss) -> "Panel":
        """Choose the metrics. `chosen`: metrics under the names they are reported by; None: the model's attribute
        `metrics`, or else those that suit the loss: accuracy for cross-entropy, NLL and BCE, rmse for squared and Huber
        losses, mae for absolute ones. Subclasses count as their parents."""
        if chosen is None:
            mine: Any = getattr(model, "metrics", None)
            is_choice = isinstance(mine, list | tuple) and all(isinstance(one, str) or callable(one) for one in mine)
            if not (is_choice and mine):  # the attribute may be something else entirely
                module = as_module(loss)
                suiting = [name for kinds, name in _SUITING if isinstance(module, kinds)]
                return cls(tuple(suiting[:1]), {}, is_auto=True)
            chosen = named(mine)
        metrics = {name: metric for name, metric in chosen.items() if name != LOSS}
        unknown = [name for name, metric in metrics.items() if isinstance(metric, str) and known(name) is None]
        if unknown or len(metrics) > MOST:
            what = f"no such metric: {', '.join(unknown)} (hogwild list metrics)" if unknown else f"more than {MOST}"
            raise UsageError(f"evaluate.metrics: {what}", code="config/unknown-metric")
        ranks = callable(getattr(model, "score_tables", None))
        if not ranks and (for_users := [name for name in metrics if RANKED.match(name)]):
            raise BuildError(
                f"evaluate.metrics: {', '.join(for_users)}: {type(model).__name__} does not rank items; use "
                "hogwild.models.MatrixFactorization, BprFactorization, or a model with the method `score_tables`",
                code="model/metric",
            )
        own = {name: metric for name, metric in metrics.items() if not isinstance(metric, str)}
        if taken := [name for name in own if name in RECORDED]:
            raise UsageError(
                f"evaluate.metrics: {', '.join(taken)}: evaluation records already have a field of this name; "
                "rename the function",
                code="config/metric-name",
            )
        return cls(tuple(metrics), own, ranks=ranks)

    # ---- the metrics

    @property
    def reported(self) -> tuple[str, ...]:
        return (LOSS, *self.names)

    @property
    def whole(self) -> tuple[str, ...]:
        """The metrics that need all outputs at once, in the order of a scoring item's row."""
        ranked = self.ranked
        return tuple(name for name in self.names if name in self.own or (name in WHOLE and name not in ranked))

    @property
    def ranked(self) -> tuple[str, ...]:
        """The metrics of recommenders, whose words follow those of the sums."""
        is_ours = (name for name in self.names if name not in self.own)
        return tuple(name for name in is_ours if RANKED.match(name) or (self.ranks and name == AUC))

    @property
    def coverages(self) -> int:
        """The number of metrics for which items are marked, in the order of the marks' rows."""
        return sum(name.startswith("coverage@") for name in self.ranked)

    def higher_is_better(self, name: str) -> bool | None:
        """Return the direction; None if unknown: a user's function without the attribute `higher_is_better`."""
        if name in self.own:
            said = getattr(self.own[name], "higher_is_better", None)
            return None if said is None else bool(said)
        found = known(name)
        return None if found is None else found.higher_is_better

    @property
    def progressive(self) -> tuple[str, ...]:
        """The names of the metrics of training batches that are scored before they are learnt: those that are sums."""
        return tuple(f"progressive_{name}" for name in (LOSS, *(name for name, _ in self._sums())))

    # ---- in a worker

    @torch.no_grad()
    def add(self, output: Any, target: Tensor, loss: Loss, weight: Tensor | None = None) -> EvalSums:
        """Return the sums of one batch: `output` of the model in eval mode, target (B, …), `loss` as in training,
        weight (B,) of the samples."""
        module = as_module(loss)
        words = [*loss_sums(output, target, module, weight)]
        for _, metric in self._sums():
            words += metric.add(output, target, module, weight)
        return EvalSums.of(words)

    def add_ranked(self, words: Sequence[float]) -> EvalSums:
        """Return the sums of the users of a slice from their words, a sum and a count for each of `ranked`."""
        return EvalSums.of([*[0.0] * (2 + 2 * len(self._sums())), *words])

    @torch.no_grad()
    def score(self, outputs: Any, targets: Tensor, loss: Loss, weights: Tensor | None = None) -> tuple[float, ...]:
        """Return the values of `whole`, from the outputs (N, …) and targets (N, …) of all samples, and their weights
        (N,), which a user's function does not get. Raises what that raises, and TypeError if it does not return a
        number."""
        module = as_module(loss)
        return tuple(
            float(self.own[name](outputs, targets))
            if name in self.own
            else WHOLE[name](outputs, targets, module, weights)
            for name in self.whole
        )

    # ---- in the supervisor

    def covered(self, marks: np.ndarray) -> EvalSums:
        """Return the sums of coverage, once for all slices; `marks` (coverages, items) of bytes that are not 0."""
        rows, many = iter(marks), marks.shape[1]
        is_covered = (name.startswith("coverage@") for name in self.ranked)
        counted = [(float(np.count_nonzero(next(rows))), float(many)) if yes else (0.0, 0.0) for yes in is_covered]
        return self.add_ranked([word for pair in counted for word in pair])

    def values(self, sums: EvalSums, scores: Sequence[float] = ()) -> dict[str, float]:
        """Return {"loss": …, "accuracy": …}; `scores`: the result of a scoring item. A metric without samples is left
        out; the loss is NaN if it has no weight at all (no samples, or every target ignored)."""
        loss_sum, loss_weight, *words = sums.words
        found = {LOSS: loss_sum / loss_weight if loss_weight else math.nan}
        counted = [(name, metric.value) for name, metric in self._sums()] + [(name, float) for name in self.ranked]
        for (name, value), total, count in zip(counted, words[::2], words[1::2], strict=False):
            if count:
                found[name] = value(total / count)
        found |= dict(zip(self.whole, scores, strict=False))
        return {name: found[name] for name in self.reported if name in found}

    def progressive_values(self, totals: Sequence[float], counts: Sequence[float]) -> dict[str, float]:
        """Return the values of `progressive` from their totals and counts; {} without samples."""
        if not counts[0]:
            return {}
        found = self.values(EvalSums.of([word for pair in zip(totals, counts, strict=True) for word in pair]))
        return {f"progressive_{name}": value for name, value in found.items()}

    def select_metrics(
        self, output: Any, target: Tensor, loss: Loss, whole: Any = None, notes: list[str] | None = None
    ) -> "Panel":
        """Try the metrics on some outputs and targets, and leave out default ones that do not suit; of an output that
        is no single tensor any that do not, with a sentence in `notes`. `whole`: the output as metrics of all samples
        will get it. Raises BuildError for chosen ones that do not suit."""
        unsuitable = {}
        whole, is_tensor = output if whole is None else whole, isinstance(output, Tensor)
        ranked = self.ranked
        for name in self.names:
            if name in ranked:  # not of outputs; `Panel.of` and the data's checks have looked at it
                continue
            try:
                one = Panel((name,), {name: self.own[name]} if name in self.own else {})
                one.add(output, target, loss)
                one.score(whole, target, loss)
            except UnsuitableError as error:
                unsuitable[name] = str(error)
            except Exception as error:  # from a user's function
                unsuitable[name] = raised_text(error)
        if notes is not None and not is_tensor:
            notes += [f"evaluate.metrics: {name} is left out: {why}" for name, why in unsuitable.items()]
        elif unsuitable and not self.is_auto:
            lines = "\n  ".join(f"{name}: {why}" for name, why in unsuitable.items())
            raise BuildError(
                f"evaluate.metrics: not possible with this model, loss and data:\n  {lines}", code="model/metric"
            )
        return replace(self, names=tuple(name for name in self.names if name not in unsuitable))

    def _sums(self) -> list[tuple[str, SumMetric]]:
        found = ((name, sum_metric(name)) for name in self.names if name not in self.own)
        return [(name, metric) for name, metric in found if metric is not None]


def named(metrics: Iterable[str | Own]) -> dict[str, str | Own]:
    """Return the metrics by the names under which they are reported."""
    return {one if isinstance(one, str) else name_of(one, place): one for place, one in enumerate(metrics, 1)}


def meets(values: Mapping[str, float], target: Mapping[str, float], higher: Mapping[str, bool]) -> bool:
    """Return whether every goal of `target` is reached: at least, if `higher` says so for this metric, else at most. An
    empty target is never met, and neither is a goal whose metric is NaN or, without samples, missing."""
    reached = []
    for name, goal in target.items():
        value = values.get(name, math.nan)
        reached.append(value >= goal if higher[name] else value <= goal)
    return bool(reached) and all(reached)
