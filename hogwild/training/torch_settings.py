"""Per-process settings of torch that change its results. A worker is a new process with torch's defaults: it gets the
settings that the caller, or a module of the job, has made in the supervisor. Not included: what a job decides (threads,
denormals, seeds), and the default device."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any

import torch
from torch.backends import cuda, mha


def _attribute(path: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
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
KERNELS = ("flash", "math", "mem_efficient", "cudnn")  # of scaled dot-product attention
SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "dtype": (lambda: str(torch.get_default_dtype())[6:], lambda name: torch.set_default_dtype(getattr(torch, name))),
    "float32_matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "deterministic": (  # not torch.set_deterministic_debug_mode, which omits the compiler
        torch.get_deterministic_debug_mode,
        lambda mode: torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1),
    ),
    "anomaly": (
        lambda: [torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()],
        lambda both: torch.set_anomaly_enabled(*both),
    ),
    **{f"{kind}_sdp": (getattr(cuda, f"{kind}_sdp_enabled"), getattr(cuda, f"enable_{kind}_sdp")) for kind in KERNELS},
    "transformer_fastpath": (mha.get_fastpath_enabled, mha.set_fastpath_enabled),
    **{path: _attribute(path) for path in ATTRIBUTES},
}


def current() -> dict[str, Any]:
    """Return the settings as plain values that JSON holds."""
    found = {}
    for name, (read, _) in SETTINGS.items():
        with suppress(RuntimeError):  # matmul precisions that differ by backend cannot be read as one
            found[name] = read()
    return found


def apply(values: Mapping[str, Any]) -> None:
    """Apply settings that differ here. Call it after importing user code, too: modules change some of them."""
    here = current()
    for name, value in values.items():
        if here.get(name) != value:
            SETTINGS[name][1](value)
            here = current()  # it may have changed others
