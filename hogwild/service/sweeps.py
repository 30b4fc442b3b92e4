"""A sweep: one job file with every combination of some values. Pure.

Each combination is an ordinary job; `JobOrder.sweep` is all that they share. The client draws the sweep's id, and the
ids of its jobs follow from it, so a repeated request is the same sweep."""

import hashlib
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from yaml.nodes import SequenceNode

from hogwild.config.strict_yaml import compose
from hogwild.errors import ConfigError, UsageError

MOST_JOBS = 1000
SWEEP = re.compile(r"s[0-9a-f]{11}")  # begins with a letter that no id of a job has
Grid = Mapping[str, Sequence[str]]  # key path -> values as YAML text


def read_grid(options: Iterable[str]) -> dict[str, list[str]]:
    """Return the grid of `--sweep KEY=VALUE,VALUE` options. The values are the items of a YAML list, with or without
    its brackets. Raises UsageError."""
    grid: dict[str, list[str]] = {}
    for option in options:
        path, equals, values = option.partition("=")
        if not equals:
            raise UsageError(f"--sweep {option}: {_FORM}", code="usage/bad-sweep")
        if path in grid:
            raise UsageError(
                f"--sweep {path} is given twice; write all its values in one, such as {path}=1,2",
                code="usage/bad-sweep",
            )
        grid[path] = _items(option, values)
    return grid


_FORM = "must be KEY=VALUE,VALUE,… with values as in a YAML list, such as optimizer.init_args.lr=0.1,0.01"


def _items(option: str, values: str) -> list[str]:
    """Return the source text of each item: `1e-3` and `"010"` stay as they were written."""
    text = f"[{values}]"
    try:
        found = compose(text, "--sweep")
    except ConfigError:
        found = None
    if not isinstance(found, SequenceNode):
        raise UsageError(f"--sweep {option}: {_FORM}", code="usage/bad-sweep")
    if len(found.value) == 1 and isinstance(found.value[0], SequenceNode):  # with its own brackets
        found = found.value[0]
    return [text[item.start_mark.index : item.end_mark.index] for item in found.value]


def combinations(grid: Grid, overrides: Iterable[str] = ()) -> list[dict[str, str]]:
    """Return path -> value of each job, the last path varying fastest. Raises UsageError."""
    if not grid:
        raise UsageError("a sweep needs at least one field with values", code="usage/bad-sweep")
    fixed = {override.partition("=")[0] for override in overrides}
    for path, values in grid.items():
        double = next((value for number, value in enumerate(values) if value in values[:number]), None)
        if path in fixed:
            raise UsageError(f"{path} is both swept and set by {path}=…; leave one out", code="usage/bad-sweep")
        if not path or "=" in path:
            raise UsageError(f"cannot sweep {path!r}: must be a key path, such as train.epochs", code="usage/bad-sweep")
        if not values:
            raise UsageError(f"the sweep of {path} has no values", code="usage/bad-sweep")
        if double is not None:
            raise UsageError(
                f"the sweep of {path} has the value {double} twice; a list as one value is written {path}=[[…]]",
                code="usage/bad-sweep",
            )
    if (count := math.prod(map(len, grid.values()))) > MOST_JOBS:
        sizes = " x ".join(f"{len(values)} of {path}" for path, values in grid.items())
        raise UsageError(
            f"the sweep has {count:,} combinations ({sizes}); at most {MOST_JOBS:,} are accepted: sweep fewer values, "
            "or submit several sweeps",
            code="usage/bad-sweep",
        )
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def job_id(sweep: str, index: int) -> str:
    return hashlib.sha256(f"{sweep} {index}".encode()).hexdigest()[:12]
