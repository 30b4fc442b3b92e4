"""Arguments of common torch classes, without importing torch: `check` takes half a second, `import torch` takes two.

`tools/torch_arguments.py` writes torch_arguments.json from the installed torch; a test compares the two.
"""

import json
import math
import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

BALANCED = "balanced"  # weights of classes, from the training data
Rule: TypeAlias = Mapping[str, Any]  # of one argument
Arguments: TypeAlias = Mapping[str, Rule]

_TABLE = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))
OPTIMIZERS: Mapping[str, Arguments] = _TABLE["optimizers"]
LOSSES: Mapping[str, Arguments | None] = _TABLE["losses"]  # None: the arguments are objects, or sizes of the model
_BOUNDS = {
    "min": (operator.ge, ">="),
    "above": (operator.gt, ">"),
    "max": (operator.le, "<="),
    "below": (operator.lt, "<"),
}


def broken_rule(rule: Rule, value: Any) -> str | None:
    """Return what the value of an argument must be and is not, or None."""
    kind, words = rule["type"], rule.get("words", ())
    if (value is None and "null" in rule) or (isinstance(value, str) and value in words):
        return None
    if kind == "flag":
        return None if isinstance(value, bool) else "must be true or false"
    if kind == "word":
        return f"must be {' or '.join(words)}"
    if kind == "list":
        return _broken_list(rule, value)
    if isinstance(value, bool) or not isinstance(value, int if kind == "whole" else int | float):
        return f"must be a {'whole ' if kind == 'whole' else ''}number{_quotes(value)}"
    broken = (
        f"must be {sign} {rule[name]}"
        for name, (holds, sign) in _BOUNDS.items()
        if name in rule and not holds(value, rule[name])
    )
    return next(broken, None)


def _broken_list(rule: Rule, value: Any) -> str | None:
    entries = rule.get("entries")
    if not isinstance(value, list | tuple) or (len(value) != len(entries) if entries else not value):
        words = f"{len(entries)} numbers" if entries else "numbers, one for each class"
        return " or ".join([f"must be a list of {words}", *rule.get("words", ())])
    rules = entries or [rule["each"]] * len(value)
    broken = [found for each, item in zip(rules, value, strict=True) if (found := broken_rule(each, item))]
    return f"{broken[0]} in each entry" if broken else None


def _quotes(value: Any) -> str:
    try:
        return " without quotes" if isinstance(value, str) and math.isfinite(float(value)) else ""
    except ValueError:
        return ""
