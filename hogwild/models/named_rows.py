"""Rows that compiled updates ask for by id: a table with a constant in each row, and the ids of a stream's batch."""

from typing import Any

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor

from hogwild.kernels.signatures import GONE
from hogwild.nn import NamedEmbedding


class BiasedRows(NamedEmbedding):
    """A `NamedEmbedding` with a constant, 0 at first, before the `dim` numbers of each row: (max_capacity + 2,
    1 + dim). One table, so that an id has one row, in one place of memory, for both."""

    zeros = 1

    def __init__(self, dim: int, capacity: int, **more: Any) -> None:
        super().__init__(1 + dim if type(dim) is int and dim > 0 else dim, capacity, **more)  # else it is refused

    def divided(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        return np.ascontiguousarray(rows[:, 1:]), np.ascontiguousarray(rows[:, 0])


def without_first(table: np.ndarray) -> np.ndarray:
    """Return the rows (R, 1 + K) from their second number on, in the form of a kernel's tables: contiguous, so that the
    last column is the next row's first number, and in the last row lies behind the end. A kernel reads the first K
    columns. One of a single column, a state that the optimizer does not have, is returned as it is."""
    return table if table.shape[1] == 1 else as_strided(table.reshape(-1)[1:], table.shape, table.strides)


def any_ids(what: str, given: Tensor) -> np.ndarray:
    """Return the ids (N,) of a stream's batch as int64, copied before they are checked. Raises ValueError if they are
    not int32 or int64 (N,), IndexError for the value that no id may have."""
    if given.dim() != 1 or given.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{what} must be (N,) int32 or int64, not {tuple(given.shape)} {given.dtype}")
    ids = given.numpy().astype(np.int64)
    if (ids <= GONE).any():
        raise IndexError(f"a batch has {what} with the id {ids.min()}, which is reserved")
    return ids
