"""All CUDA; plain or no-op on the CPU. This version trains on the CPU only: what is here keeps CUDA out of
the processes where it must not be."""

from collections.abc import Iterable

import torch

from hogwild.errors import ModelError, UsageError


def resolve(device: str) -> torch.device:
    """The device of `train.device`: `auto` and `cpu` are the CPU. Raises UsageError for anything else."""
    if device not in ("auto", "cpu"):
        raise UsageError(
            f"train.device: must be auto or cpu in this version, got {device!r}", code="config/unknown-choice"
        )
    return torch.device("cpu")


def require_cpu(tensors: Iterable[tuple[str, torch.Tensor]], what: str) -> None:
    """Raises ModelError for the first (name, tensor) that is not in this machine's main memory; `what` is
    whose they are, as in 'the model'. Takes what `named_parameters()` gives."""
    for name, tensor in tensors:
        if tensor.device.type != "cpu":
            raise ModelError(
                f"{what}: {name} is on {tensor.device}, and its memory cannot be shared by the workers; "
                f"move it with .to('cpu') first",
                code="model/device",
            )


def visible_gpus() -> int:
    """How many GPUs torch sees. Makes no context."""
    return int(torch.cuda.device_count())


def cuda_is_initialized() -> bool:
    """Whether this process has a CUDA context. Does not make one. The supervisor must have none: a context
    does not survive in children, holds device memory, and its threads hold locks."""
    return bool(torch.cuda.is_initialized())


def flushes_denormal() -> bool:
    """Whether this thread's arithmetic takes numbers below 1e-38 for 0; torch can set it but does not tell."""
    return (torch.full((8,), 1e-40) * 0.5).sum().item() == 0.0
