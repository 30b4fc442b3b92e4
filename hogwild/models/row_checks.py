"""Checks before a kernel uses a model's parameters, and row numbers in data as indices: kernels check nothing."""

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.errors import ModelError


def require_ids(what: str, ids: np.ndarray, count: int) -> None:
    """Raise ModelError unless all `ids` (…) are in [0, count); `what` is the name of the model's argument."""
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < count:
        raise ModelError(
            f"the data has {what} {ids.min()} to {ids.max()}, but the model has {count:,}; remove {what} from "
            "model.init_args to count them",
            code="model/unlike-data",
        )


def ids_of(what: str, given: Tensor, count: int) -> np.ndarray:
    """Return the numbers (N,) of a stream's batch as int32, copied before they are checked. Raises ValueError if they
    are not int32 or int64 (N,), IndexError unless all are in [0, count)."""
    if given.dim() != 1 or given.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{what} must be (N,) int32 or int64, not {tuple(given.shape)} {given.dtype}")
    ids = given.numpy().copy()
    if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < count:
        raise IndexError(f"a batch has {what} {ids.min():,} to {ids.max():,}, but the model has {count:,}")
    return ids.astype(np.int32, copy=False)


def not_float32(model: nn.Module) -> str | None:
    """Return why a kernel cannot use these parameters, as text for the log, or None."""
    for name, param in model.named_parameters():
        if param.dtype != torch.float32:
            return f"its fused update is for float32, but {name} is {param.dtype}"
    return None
