"""Settings of torch that are a process's own and change what it computes. A worker is a new process and would have
torch's defaults: it gets what the caller, or a module of the job, has set in the supervisor.

Not here: what a job decides itself (threads, denormals, seeds), and the default device: parameters lie where the job
says."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch.backends import cuda, mha

Setting = tuple[Callable[[], Any], Callable[[Any], object]]  # (reads it, as a plain value or None; sets it)


def _dtype() -> Setting:
    def read() -> str:
        return str(torch.get_default_dtype()).removeprefix("torch.")

    return read, lambda name: torch.set_default_dtype(getattr(torch, name))


def _matmul_precision() -> Setting:
    def read() -> str | None:
        try:
            return torch.get_float32_matmul_precision()
        except RuntimeError:  # set by backend, in a way that this one word cannot say: see the attributes below
            return None

    return read, torch.set_float32_matmul_precision


def _deterministic() -> Setting:
    def write(mode: int) -> None:  # not torch.set_deterministic_debug_mode: that one forgets the compiler
        torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)

    return torch.get_deterministic_debug_mode, write


def _anomaly() -> Setting:
    def read() -> list[bool]:
        return [torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()]

    return read, lambda both: torch.set_anomaly_enabled(*both)


def _attribute(path: str) -> Setting:
    owner, _, name = path.rpartition(".")
    return lambda: attrgetter(path)(torch), lambda value: setattr(attrgetter(owner)(torch), name, value)


ATTRIBUTES = (
    "utils.deterministic.fill_uninitialized_memory",
    *(f"backends.mkldnn.{name}" for name in ("enabled", "deterministic")),
    *(f"backends.cudnn.{name}" for name in ("enabled", "deterministic", "benchmark")),
    *(f"backends.mkldnn.{name}.fp32_precision" for name in ("matmul", "conv", "rnn")),
    *(f"backends.{name}.fp32_precision" for name in ("cuda.matmul", "cudnn.conv", "cudnn.rnn")),
    *(f"backends.cuda.matmul.allow_{name}_reduced_precision_reduction" for name in ("fp16", "bf16")),
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.opt_einsum.enabled",
)
SETTINGS: dict[str, Setting] = {
    "default_dtype": _dtype(),
    "float32_matmul_precision": _matmul_precision(),
    "deterministic_algorithms": _deterministic(),
    "anomaly": _anomaly(),
    "flash_sdp": (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    "math_sdp": (cuda.math_sdp_enabled, cuda.enable_math_sdp),
    "mem_efficient_sdp": (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    "cudnn_sdp": (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    "transformer_fastpath": (mha.get_fastpath_enabled, mha.set_fastpath_enabled),
    **{path: _attribute(path) for path in ATTRIBUTES},
}


def current() -> dict[str, Any]:
    """Plain values that JSON holds; of this process."""
    return {name: value for name, (read, _) in SETTINGS.items() if (value := read()) is not None}


def apply(values: Mapping[str, Any]) -> None:
    """Sets what is different here. After user code was imported, too: modules set some of them."""
    for name, value in values.items():
        read, write = SETTINGS[name]
        if read() != value:
            write(value)
