"""In which precision forward and loss are computed: float32, or what torch's autocast chooses for each operation.

Parameters, gradients, optimizer state and checkpoints stay as they are, float32 most of the time: autocast casts a
layer's weights and inputs, and the gradients come back in the parameters' own type."""

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import ModelError

NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}
SCALED = "fp16"  # whose gradients need a larger loss: half of them would be zero


def autocast(precision: str, device_type: str) -> AbstractContextManager[Any]:
    """To be entered around every forward pass and its loss; one at a time, as often as one likes."""
    if precision not in NARROW:
        return contextlib.nullcontext()
    return torch.autocast(device_type, NARROW[precision])


def device_type_of(params: Sequence[Tensor]) -> str:
    return params[0].device.type if params else "cpu"


def widened(output: Any) -> Any:
    """What metrics are computed of: outputs of a narrow type as float32; everything else as it is."""
    narrow = isinstance(output, Tensor) and output.dtype in NARROW.values()
    return output.float() if narrow else output


def check_precision(precision: str, model: nn.Module) -> None:
    """Raises ModelError for a parameter whose gradient would lie in float16: at the scale it is computed at it
    overflows, and divided by it it is zero. (torch.amp.GradScaler refuses these too.)"""
    if precision != SCALED:
        return
    for name, param in model.named_parameters():
        if param.requires_grad and param.dtype == torch.float16:
            raise ModelError(
                f"parameter {name} is float16; train.precision: fp16 keeps parameters in float32 and casts them where "
                "that is safe: call model.float(), or leave train.precision out",
                code="model/precision",
            )
