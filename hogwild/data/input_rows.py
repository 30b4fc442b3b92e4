"""Rows of a file to predict, and what must be known of the training data's file to read them."""

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils._pytree import tree_leaves

from hogwild.errors import DataError

SAMPLE = "sample"  # the column of row numbers, where rows have no other names


@dataclass(frozen=True, slots=True)
class InputRows:
    """Some rows: their names by column (numbers in the file from 0 on, under `SAMPLE`; or what a column of ids has),
    and the model's inputs, (n, …) each, perhaps nested."""

    names: Mapping[str, Any]  # a sequence or an array (n,) each
    inputs: tuple[Any, ...]

    @property
    def rows(self) -> int:
        return len(next(iter(self.names.values()))) if self.names else len(tree_leaves(self.inputs)[0])


def named(source: Any) -> str:
    """Return a name for a file, or for a table in memory."""
    return os.fspath(source) if isinstance(source, str | os.PathLike) else type(source).__name__


def given_arguments(dataset: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those arguments of a data set's constructor, of its `locals()`, that are not the defaults, as YAML can
    hold them: a run of `hogwild.train` records them as the data's `init_args`, and reads files to predict by them. {}
    if one of them cannot be written."""
    known = inspect.signature(type(dataset)).parameters
    is_table = "path" in given and not isinstance(given["path"], str | os.PathLike)
    given = {**given, "path": named(given["path"])} if is_table else given
    try:
        return {
            name: _plain(given[name]) for name, one in known.items() if name in given and given[name] != one.default
        }
    except TypeError:
        return {}


def numbers_like(what: str, theirs: Sequence[str], ours: Sequence[str], where: Any) -> list[int]:
    """Return the number that each of `ours`, names of `what`, has in the training data. Raises DataError for a name
    that it does not have."""
    places = {name: number for number, name in enumerate(theirs)}
    if unknown := [name for name in ours if name not in places]:
        known = ", ".join(map(repr, theirs[:12])) + (", …" if len(theirs) > 12 else "")
        raise DataError(
            f"data.val: {where}: {what} {unknown[0]!r} is not in data.train, which has {known}; leave it out here, or "
            "add it there",
            code="data/val-unlike-train",
        )
    return [places[name] for name in ours]


def _plain(value: Any) -> Any:
    """Return the value as YAML can hold it. Raises TypeError if it cannot."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {_plain(key): _plain(one) for key, one in value.items()}
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Sequence):
        return [*map(_plain, value)]
    raise TypeError(type(value).__name__)
