"""Arguments of common torch classes, without importing torch: `check` takes half a second, `import torch` takes two.

`tests/config/test_config.py` compares these tables with the signatures of the installed torch, so they stay up to date.
Ranges are torch's own, except SGD's momentum: torch accepts 1.5, but training always diverges.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

BALANCED = "balanced"  # weights of classes, from the training data
Check: TypeAlias = Callable[[Any], str | None]
"""A value -> the rule it breaks, or None."""


def number(low: float = -math.inf, high: float = math.inf, *, ends: str = "[)") -> Check:
    """Check a finite number from `low` to `high`; `ends` says which of the two belong to the range."""

    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "must be a number" + _quotes(value)
        if value < low or (value == low and ends[0] == "("):
            return f"must be {'>' if ends[0] == '(' else '>='} {low:g}"
        if value > high or (value == high and ends[1] == ")"):
            return f"must be {'<' if ends[1] == ')' else '<='} {high:g}"
        return None

    return check


def whole(low: int | None = None) -> Check:
    """Check a whole number >= low."""

    def check(value: Any) -> str | None:
        if type(value) is not int:
            return "must be a whole number" + _quotes(value)
        return f"must be >= {low}" if low is not None and value < low else None

    return check


def flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def choice(*words: str) -> Check:
    return lambda value: None if value in words else f"must be {' or '.join(words)}"


def or_null(check: Check) -> Check:
    """Check a value for which null lets torch choose."""
    return lambda value: None if value is None else check(value)


def several(*checks: Check) -> Check:
    """Check a list with one entry per check."""

    def check(value: Any) -> str | None:
        if not isinstance(value, list | tuple) or len(value) != len(checks):
            return f"must be a list of {len(checks)} numbers"
        broken = [rule for each, item in zip(checks, value, strict=True) if (rule := each(item))]
        return f"{broken[0]} in each entry" if broken else None

    return check


def entries(check_one: Check, *words: str) -> Check:
    """Check a list of any length, or one of some words."""

    def check(value: Any) -> str | None:
        if isinstance(value, str) and value in words:
            return None
        if not isinstance(value, list | tuple) or not value:
            return " or ".join(["must be a list of numbers, one for each class", *words])
        broken = [rule for item in value if (rule := check_one(item))]
        return f"{broken[0]} in each entry" if broken else None

    return check


def nothing(why: str) -> Check:
    """Check an argument that a job file cannot give; null is its only value."""
    return lambda value: None if value is None else why


def _quotes(value: Any) -> str:
    try:
        return " without quotes" if isinstance(value, str) and math.isfinite(float(value)) else ""
    except ValueError:
        return ""


_RATE = _DECAY = _EPS = number(0)
_UNIT = number(0, 1)
_BETAS = several(_UNIT, _UNIT)
_ANY = number()
_LOOPS = {"foreach": or_null(flag), "maximize": flag}
_COMMON = {"lr": _RATE, "weight_decay": _DECAY, **_LOOPS, "differentiable": flag}
_GRAPH = {"capturable": flag}
_FUSED = {"fused": or_null(flag)}
_ADAM = {**_COMMON, **_GRAPH, "betas": _BETAS, "eps": _EPS}

OPTIMIZERS: Mapping[str, Mapping[str, Check]] = {
    "ASGD": {**_COMMON, **_GRAPH, "lambd": _ANY, "alpha": _ANY, "t0": _ANY},
    "Adadelta": {**_COMMON, **_GRAPH, "rho": number(0, 1, ends="[]"), "eps": _EPS},
    "Adafactor": {
        **_LOOPS,
        "lr": _RATE,
        "weight_decay": _DECAY,
        "beta2_decay": number(high=0, ends="[]"),
        "eps": several(or_null(number(0)), _EPS),
        "d": number(1),
    },
    "Adagrad": {**_COMMON, **_FUSED, "lr_decay": number(0), "initial_accumulator_value": number(0), "eps": _EPS},
    "Adam": {**_ADAM, **_FUSED, "amsgrad": flag, "decoupled_weight_decay": flag},
    "AdamW": {**_ADAM, **_FUSED, "amsgrad": flag},
    "Adamax": _ADAM,
    "Muon": {
        "lr": _RATE,
        "weight_decay": _DECAY,
        "momentum": _UNIT,
        "nesterov": flag,
        "ns_coefficients": several(_ANY, _ANY, _ANY),
        "eps": _EPS,
        "ns_steps": whole(1),
        "adjust_lr_fn": or_null(choice("original", "match_rms_adamw")),
    },
    "NAdam": {**_ADAM, "momentum_decay": number(0), "decoupled_weight_decay": flag},
    "RAdam": {**_ADAM, "decoupled_weight_decay": flag},
    "RMSprop": {**_COMMON, **_GRAPH, "alpha": number(0), "eps": _EPS, "momentum": number(0), "centered": flag},
    "Rprop": {
        **_LOOPS,
        **_GRAPH,
        "differentiable": flag,
        "lr": _RATE,
        "etas": several(number(0, 1, ends="()"), number(1, ends="()")),
        "step_sizes": several(_ANY, _ANY),
    },
    "SGD": {**_COMMON, **_FUSED, "momentum": _UNIT, "dampening": _ANY, "nesterov": flag},
    "SparseAdam": {"lr": _RATE, "betas": _BETAS, "eps": _EPS, "maximize": flag},
}
REFUSED = {
    "LBFGS": "needs a closure that evaluates the loss several times; a worker applies one gradient",
    "Optimizer": "is the base class; name one of its subclasses",
}
FILLED_IN = {"params": "is filled in with the model's parameters; remove it"}

_OLD = {name: nothing("is deprecated in torch; use 'reduction'") for name in ("size_average", "reduce")}
_REDUCTION = {"reduction": choice("mean", "sum")}  # none gives a tensor, which backward cannot use
_WEIGHTS = or_null(entries(number(0)))  # a tensor, once it is built
_BASIC = {**_OLD, **_REDUCTION}
_MARGIN = {**_BASIC, "margin": _ANY}
_CLASSES = {**_BASIC, "weight": or_null(entries(number(0), BALANCED)), "ignore_index": whole()}

LOSSES: Mapping[str, Mapping[str, Check]] = {
    "BCELoss": {**_BASIC, "weight": _WEIGHTS},
    "BCEWithLogitsLoss": {**_BASIC, "weight": _WEIGHTS, "pos_weight": _WEIGHTS},
    "CTCLoss": {**_REDUCTION, "blank": whole(), "zero_infinity": flag},
    "CosineEmbeddingLoss": _MARGIN,
    "CrossEntropyLoss": {**_CLASSES, "label_smoothing": number(0, 1, ends="[]")},
    "GaussianNLLLoss": {**_REDUCTION, "full": flag, "eps": number(0, ends="()")},
    "HingeEmbeddingLoss": _MARGIN,
    "HuberLoss": {**_REDUCTION, "delta": number(0, ends="()")},
    "KLDivLoss": {**_OLD, "reduction": choice("mean", "sum", "batchmean"), "log_target": flag},
    "L1Loss": _BASIC,
    "MSELoss": _BASIC,
    "MarginRankingLoss": _MARGIN,
    "MultiLabelMarginLoss": _BASIC,
    "MultiLabelSoftMarginLoss": {**_BASIC, "weight": _WEIGHTS},
    "MultiMarginLoss": {**_MARGIN, "p": whole(1), "weight": _WEIGHTS},
    "NLLLoss": _CLASSES,
    "PoissonNLLLoss": {**_BASIC, "log_input": flag, "full": flag, "eps": number(0, ends="()")},
    "SmoothL1Loss": {**_BASIC, "beta": number(0)},
    "SoftMarginLoss": _BASIC,
    "TripletMarginLoss": {**_MARGIN, "p": number(0, ends="()"), "eps": _EPS, "swap": flag},
}
# Existing losses whose arguments are objects or sizes that only the model knows.
UNCHECKED_LOSSES = (
    "AdaptiveLogSoftmaxWithLoss",
    "LinearCrossEntropyLoss",
    "NLLLoss2d",
    "TripletMarginWithDistanceLoss",
)
