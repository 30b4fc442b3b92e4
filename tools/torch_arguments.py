"""Write hogwild/config/torch_arguments.json: the arguments of torch's optimizers and losses, with the rule of each.

python -m tools.torch_arguments
"""

import inspect
import json
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

FILE = Path(__file__).resolve().parents[1] / "hogwild/config/torch_arguments.json"
TRIED = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)  # every other one may be a bound of torch
REDUCTION = {"words": ["mean", "sum"]}  # none gives a tensor, which backward cannot use

# What torch checks only in a forward, or not at all.
MORE: dict[str, dict[str, Any]] = {
    "Muon.eps": {"min": 0},
    "Muon.momentum": {"below": 1},
    "Muon.ns_steps": {"min": 1},
    "Muon.adjust_lr_fn": {"words": ["original", "match_rms_adamw"]},
    "SGD.momentum": {"below": 1},  # torch accepts 1.5, but training always diverges
    "CrossEntropyLoss.label_smoothing": {"min": 0, "max": 1},
    "CrossEntropyLoss.weight": {"words": ["balanced"]},
    "GaussianNLLLoss.eps": {"above": 0},
    "HuberLoss.delta": {"above": 0},
    "KLDivLoss.reduction": {"words": ["mean", "sum", "batchmean"]},
    "MultiMarginLoss.p": {"min": 1},
    "NLLLoss.weight": {"words": ["balanced"]},
    "PoissonNLLLoss.eps": {"above": 0},
    "SmoothL1Loss.beta": {"min": 0},
    "TripletMarginLoss.eps": {"min": 0},
    "TripletMarginLoss.p": {"above": 0},
}
UNCHECKED = (  # their arguments are objects, or sizes that only the model knows
    "AdaptiveLogSoftmaxWithLoss",
    "LinearCrossEntropyLoss",
    "NLLLoss2d",
    "TripletMarginWithDistanceLoss",
)


def table() -> dict[str, Any]:
    optimizers = (
        one
        for name, one in sorted(vars(torch.optim).items())
        if inspect.isclass(one) and issubclass(one, torch.optim.Optimizer) and name not in ("LBFGS", "Optimizer")
    )
    losses = [name for name in dir(torch.nn) if "Loss" in name]
    return {
        "optimizers": {one.__name__: _arguments(one, is_tried=True) for one in optimizers},
        "losses": {
            name: None if name in UNCHECKED else _arguments(getattr(torch.nn, name), is_tried=False) for name in losses
        },
    }


def _arguments(found: Any, *, is_tried: bool) -> dict[str, Any]:
    return {
        argument: rule
        | (_torchs_bounds(found, argument, rule, default) if is_tried else {})
        | MORE.get(f"{found.__name__}.{argument}", {})
        for argument, rule, default in _rules(found)
    }


def _rules(found: Any) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Yield each argument with its type as a rule, and its default."""
    kinds = typing.get_type_hints(found.__init__)
    for argument, parameter in inspect.signature(found).parameters.items():
        if argument != "params" and argument in kinds:  # those without a type are deprecated
            yield argument, _rule(kinds[argument]) | (REDUCTION if argument == "reduction" else {}), parameter.default


def _torchs_bounds(optimizer: Any, argument: str, rule: dict[str, Any], default: Any) -> dict[str, Any]:
    """Return the bounds of a number, or of each entry of a list, that the constructor checks."""
    if rule["type"] == "number":
        return _bounds([_accepts(optimizer, argument, value) for value in TRIED])
    entries = []
    for place, entry in enumerate(rule.get("entries", ())):
        tried = [(*default[:place], value, *default[place + 1 :]) for value in TRIED]
        entries.append(entry | _bounds([_accepts(optimizer, argument, values) for values in tried]))
    return {"entries": entries} if entries else {}


def _accepts(optimizer: Any, argument: str, value: Any) -> bool:
    try:
        optimizer([torch.zeros(2, 2, requires_grad=True)], **{argument: value})
    except ValueError:
        return False
    return True


def _bounds(are_accepted: list[bool]) -> dict[str, int]:
    good = [place for place, is_accepted in enumerate(are_accepted) if is_accepted]
    low, high, last = good[0], good[-1], len(TRIED) - 1
    lower = {} if low == 0 else {"min": TRIED[low]} if low % 2 else {"above": TRIED[low - 1]}
    upper = {} if high == last else {"max": TRIED[high]} if high % 2 else {"below": TRIED[high + 1]}
    return {name: int(bound) for name, bound in (lower | upper).items()}


def _rule(kind: Any) -> dict[str, Any]:
    options = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return {"type": "list", "entries": [_rule(one) for one in options]}
    null = {"null": True} if type(None) in options else {}
    if torch.Tensor in options and float not in options:  # a weight for each class
        return {"type": "list", "each": {"type": "number", "min": 0}, **null}
    plain = {float: "number", int: "whole", bool: "flag", str: "word"}
    return {"type": next(plain[one] for one in (*options, kind) if one in plain), **null}


def text() -> str:
    """Return the file's content, with an argument in each line."""
    lines = json.dumps(table(), indent=1)
    return (
        re.sub(
            r"\{[^{}]*\}|(?<=: )\[[^]]*\]",
            lambda found: re.sub(r"\s+(?=[}\]])|(?<=[{\[])\s+", "", " ".join(found[0].split())),
            lines,
        )
        + "\n"
    )


if __name__ == "__main__":
    FILE.write_text(text())
