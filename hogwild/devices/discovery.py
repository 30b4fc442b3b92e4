"""The devices of this machine."""

from collections.abc import Iterable
from importlib import import_module

import torch

from hogwild.devices.accelerator import Accelerator
from hogwild.devices.kinds import CPU, CUDA, registered
from hogwild.errors import ModelError, UsageError


def open_accelerator(name: str) -> Accelerator | None:
    """Open a device in the process that will compute on it, which gets a context; None for `cpu`."""
    kind, _, index = name.partition(":")
    if kind == CPU:
        return None
    if kind in (modules := registered()):
        opened: Accelerator = import_module(modules[kind]).open_device(int(index))
        return opened
    from hogwild.devices.cuda import Cuda

    return Cuda(int(index))


def count(kind: str) -> int:
    """Return the number of devices of this kind. Creates no context."""
    if kind in (modules := registered()):
        return int(import_module(modules[kind]).DEVICES)
    return visible_gpus() if kind == CUDA else 1


def resolve(device: str) -> str:
    """Return the kind of `device`; `auto`: cuda if there is a GPU, else cpu. Raises UsageError for a missing one."""
    if device == "auto":
        return CUDA if visible_gpus() else CPU
    kind, _, index = device.partition(":")
    there = count(kind)
    if there == 0:
        why = f"torch {torch.__version__} was built without CUDA"
        if torch.backends.cuda.is_built():
            version = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
            why = f"{version}, sees no GPU: check the driver and CUDA_VISIBLE_DEVICES"
        raise UsageError(
            f"train.device: {device}: torch finds no usable GPU ({why}); use auto or cpu", code="device/none"
        )
    if index:
        check_index(kind, int(index), there)
    return kind


def check_index(kind: str, index: int, there: int) -> None:
    """Raise UsageError for a device beyond those that are there."""
    if index >= there:
        have = f"{kind}:0" if there == 1 else f"{kind}:0 to {kind}:{there - 1}"
        raise UsageError(f"train.device: {kind}:{index}: no such device (available: {have})", code="device/index")


def require_cpu(tensors: Iterable[tuple[str, torch.Tensor]], what: str) -> None:
    """Check tensors as from `named_parameters()`. Raises ModelError for the first (name, tensor) that is not in this
    machine's main memory; `what` names their owner, as in 'the model'."""
    for name, tensor in tensors:
        if tensor.device.type != "cpu":
            raise ModelError(
                f"{what}: {name} is on {tensor.device}; workers can share only CPU memory: use .to('cpu') first",
                code="model/device",
            )


def visible_gpus() -> int:
    """Return the number of GPUs that torch sees. Creates no context."""
    return int(torch.cuda.device_count())


def cuda_is_initialized() -> bool:
    """Return whether this process has a CUDA context. Does not create one. The supervisor must have none: a context
    does not survive in children, holds device memory, and its threads hold locks."""
    return bool(torch.cuda.is_initialized())


def flushes_denormal() -> bool:
    """Return whether this thread flushes denormal numbers (below 1e-38) to zero; torch can set that but not read it."""
    return (torch.full((8,), 1e-40, dtype=torch.float32) * 0.5).sum().item() == 0.0
