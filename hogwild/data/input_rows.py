"""Rows of a file to predict."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

SAMPLE = "sample"  # the column of row numbers, where rows have no other names


@dataclass(frozen=True, slots=True)
class InputRows:
    """Some rows: their names by column (numbers in the file from 0 on, under `SAMPLE`; or what a column of ids has),
    and the model's inputs, (n, …) each."""

    names: Mapping[str, Any]  # a sequence or an array (n,) each
    inputs: tuple[Tensor, ...]
