"""Weights of samples and of classes: the loss by which a job with weights is trained and evaluated.

A data set has them if its class, or the object, has an attribute `has_sample_weights` that is true: then the field
before the target is the weight of each sample, (N,) from 0 on. In a batch it is the last input, which the model does
not get."""

from typing import Any

import torch
from torch import Tensor

from hogwild.config.schema import Component
from hogwild.config.torch_arguments import BALANCED
from hogwild.errors import DataError, ModelError, UsageError
from hogwild.feeds.row_reader import Part
from hogwild.job.source import Source
from hogwild.metrics.loss_sums import BY_CLASS, WeightedLoss, as_module
from hogwild.user_code import build_callable


def is_weighted(dataset: Any) -> bool:
    """Return whether the field before the target is the weight of each sample; `dataset` may be a part of another."""
    whole = dataset.dataset if isinstance(dataset, Part) else dataset
    return getattr(whole, "has_sample_weights", False) is True


def weighted_loss(loss: Any, train: Source, val: Source | None, notes: list[str], *, is_split: bool) -> Any:
    """Return the loss for weighted data, which it checks; any other unchanged. Adds to `notes` what the weights are.
    Raises DataError, and BuildError for a loss that cannot be weighted by sample."""
    sides = [("data.train", train)] + ([] if val is None or is_split else [("data.val", val)])
    have = [
        source.packed.has_sample_weights if source.packed is not None else is_weighted(source.dataset)
        for _, source in sides
    ]
    if not any(have):
        return loss
    if not all(have):
        with_them, without = (sides[have.index(one)][0] for one in (True, False))
        raise DataError(
            f"{with_them} has weights of samples, {without} has none; give both (a column of ones, if all count alike)",
            code="data/val-unlike-train",
        )
    for what, source in sides:
        _check(what, source)
    weights = train.weights.double()
    mean = float(weights.mean())
    notes.append(
        f"weights of samples: {float(weights.min()):g} to {float(weights.max()):g}, mean {mean:.4g}, by which the "
        "training loss is divided"
    )
    return WeightedLoss(loss, mean)


def _check(what: str, source: Source) -> None:
    """Raise DataError for weights that no sample may have, or that are not in memory."""
    if not source.tensors and source.packed is None:
        raise DataError(
            f"{what}: weights of samples need data that lies in memory, not a stream; set data.feed: resident",
            code="data/weights",
        )
    weights, samples = source.weights if len(source.tensors) != 2 else None, source.plan.samples
    if weights is None or weights.dim() != 1 or not weights.is_floating_point():
        got = "there is none" if weights is None else f"it is {tuple(weights.shape)} {weights.dtype}"
        raise DataError(
            f"{what}: the field before the target must be the weight of each sample, (N,) of floating-point numbers; "
            f"{got}",
            code="data/weights",
        )
    wrong: Tensor = ~((weights >= 0) & torch.isfinite(weights))
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise DataError(
            f"{what}: the weight of sample {row} is {float(weights[row]):g}; it must be finite, from 0 on",
            code="data/weights",
        )
    if not float(weights.sum()):
        raise DataError(
            f"{what}: the weights of all {samples:,} samples are 0; there is nothing to learn", code="data/weights"
        )


# ---- of classes -----------------------------------------------------------------------------------------------------


def is_balanced(spec: Component) -> bool:
    """Return whether the data decide the weights of a loss of torch."""
    return spec.class_path.startswith("torch.nn.") and spec.init_args.get("weight") == BALANCED


def build_loss(spec: Component) -> Any:
    """Return the loss of a job file. A list as `weight` or `pos_weight` of a loss of torch becomes a tensor, and
    `weight: balanced` is left to `balance`. Raises what its class raises."""
    given = dict(spec.init_args)
    if is_balanced(spec):
        del given["weight"]
    for name in {"weight", "pos_weight"} & given.keys() if spec.class_path.startswith("torch.nn.") else ():
        given[name] = None if given[name] is None else torch.tensor(given[name], dtype=torch.float32)
    return build_callable(spec.model_copy(update={"init_args": given}))


def balance(loss: Any, train: Source, notes: list[str]) -> None:
    """Give `loss` weights by which all classes together count alike: samples / (classes x samples of the class), by
    the weights of the samples, if there are any. Raises UsageError for a loss without classes, DataError for a
    stream."""
    criterion, target = as_module(loss), train.target
    if not isinstance(criterion, BY_CLASS) or target.is_floating_point():
        raise UsageError(
            f"loss.init_args.weight: balanced needs CrossEntropyLoss or NLLLoss and classes as targets; the loss is a "
            f"{type(criterion).__name__}, the targets are {target.dtype}",
            code="config/bad-argument",
        )
    if not train.tensors and train.packed is None:
        raise DataError(
            "loss.init_args.weight: balanced needs training data that lies in memory, not a stream; give a list, or "
            "set data.feed: resident",
            code="data/weights",
        )
    kept = (target != criterion.ignore_index) & (target >= 0)  # a wrong label is another check's error
    many = train.weights.double() if isinstance(loss, WeightedLoss) else torch.ones(len(target), dtype=torch.float64)
    many = many.reshape(-1, *[1] * (target.dim() - 1)).expand(target.shape)
    classes = train.packed.spec.sizes.get("classes", 0) if train.packed is not None else 0
    sums = torch.bincount(target[kept].reshape(-1).long(), many[kept].reshape(-1), minlength=classes)
    weights = torch.where(sums > 0, sums.sum() / (len(sums) * sums.clamp_min(1e-300)), 0.0)
    criterion.weight = weights.float()
    shown = ", ".join(f"{number}: {weight:.4g}" for number, weight in enumerate(weights[:12].tolist()))
    notes.append(f"weights of classes: {shown}{', …' if len(weights) > 12 else ''}")


def require_all_classes(loss: Any, output: Any) -> None:
    """Check that a loss with weights of classes has one for each class of the output (B, C, …). Raises ModelError."""
    criterion = as_module(loss)
    weight = criterion.weight if isinstance(criterion, BY_CLASS) else None
    if weight is not None and isinstance(output, Tensor) and output.dim() > 1 and len(weight) != output.shape[1]:
        raise ModelError(
            f"loss.init_args.weight: {len(weight)} weights, and the model's output has {output.shape[1]} classes; give "
            "one for each ('balanced' knows the classes of the training data only)",
            code="model/unlike-data",
        )
