"""The precision of forward and loss: float32, or the types that torch's autocast chooses for each operation.

Parameters, gradients, optimizer state and checkpoints keep their type, mostly float32: autocast casts a layer's weights
and inputs, and gradients are returned in the parameters' own type."""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import ModelError

NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}
SCALED = "fp16"  # its gradients need a scaled loss: half of them would be zero


def autocast(precision: str, device_type: str) -> AbstractContextManager[Any]:
    """Return a context for a forward pass and its loss; reusable, but not nested."""
    if precision not in NARROW:
        return contextlib.nullcontext()
    return torch.autocast(device_type, NARROW[precision])


def device_type_of(params: Sequence[Tensor]) -> str:
    return params[0].device.type if params else "cpu"


def widened(output: Any) -> Any:
    """Return outputs of a narrow type as float32, for metrics; everything else unchanged."""
    narrow = isinstance(output, Tensor) and output.dtype in NARROW.values()
    return output.float() if narrow else output


def check_precision(precision: str, model: nn.Module) -> None:
    """Check the parameters' types. Raises ModelError for one whose gradient would be float16: scaled it overflows, and
    unscaled it becomes zero. (torch.amp.GradScaler refuses these too.)"""
    if precision != SCALED:
        return
    for name, param in model.named_parameters():
        if param.requires_grad and param.dtype == torch.float16:
            raise ModelError(
                f"parameter {name} is float16, but train.precision: fp16 needs float32 parameters, which it casts "
                "where that is safe: call model.float(), or remove train.precision",
                code="model/precision",
            )
