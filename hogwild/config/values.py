"""Checks of values that sections of the job file share, and those of the space of a search. Torch-free."""

import math
from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError


def rule(message: str, at: str = "", *, code: str) -> PydanticCustomError:
    """Return an error with our own message; the value is appended. `at`: a key below the validated one."""
    return PydanticCustomError("rule", "{message}", {"message": message, "at": at, "code": code})


def plain(value: Any) -> Any:
    """Check that a YAML file can hold the value: a job is written to resolved.yaml and read back."""
    if isinstance(value, float) and not math.isfinite(value):
        raise rule("must hold finite numbers only", code="config/not-finite")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str | int) or isinstance(key, bool):
                raise rule(f"must have text or whole numbers as keys, not {key!r}", code="config/wrong-type")
            plain(item)
    elif isinstance(value, list):
        for item in value:
            plain(item)
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise rule(f"must hold plain values only, not a {type(value).__name__}", code="config/wrong-type")
    return value


NO_PLACE = "not a place in a list; search the whole list: {choice: [[16], [32, 32]]}"


def ascending(ends: list[Any]) -> list[Any]:
    """Check the two ends of a range."""
    low, high = ends
    if not low < high:
        raise rule("must be [low, high] with low < high", code="config/out-of-range")
    return ends


def above_zero(ends: list[float]) -> list[float]:
    """Check the ends of a range that is searched by its logarithm."""
    if ends[0] <= 0:
        raise rule("must begin above 0: it is searched by its logarithm", code="config/out-of-range")
    return ends


def each_once(values: list[Any]) -> list[Any]:
    """Check the values of a choice: what a YAML file can hold, each once."""
    if any(value in values[:place] for place, value in enumerate(values)):
        raise rule("must have each value once", code="config/duplicate-key")
    return [plain(value) for value in values]


def one_kind(given: Any) -> Any:
    """Check that a range is of one kind."""
    kinds = ("log", "uniform", "int", "choice")
    if isinstance(given, list | tuple):
        raise rule("must be a map that names the kind, {choice: […]} or log, uniform, int", code="config/wrong-type")
    if isinstance(given, Mapping) and len([kind for kind in kinds if given.get(kind) is not None]) != 1:
        raise rule(f"must have one of {', '.join(kinds)}, such as {{log: [0.001, 1.0]}}", code="config/contradiction")
    return given


def field_path(text: str) -> str:
    """Check the path of a field, but not that there is such a field."""
    if not all(text.split(".")) or text.split(".")[0] == "search":
        raise rule("must be the path of a field, such as optimizer.init_args.lr", code="config/unknown-key")
    if "[" in text:
        raise rule(f"must be the path of a field, {NO_PLACE}", code="config/unknown-key")
    return text
