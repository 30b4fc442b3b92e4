"""Per-process settings of torch that change its results. A worker is a new process with torch's defaults: it gets the
settings that the caller, or a module of the job, has made in the supervisor. Not included: what a job decides (threads,
denormals, seeds), and the default device. And torch without its compiler (`sparing_the_compiler`)."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from operator import attrgetter
from typing import Any

import torch
from torch._compile import _disable_dynamo
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


COMPILER = "torch._dynamo"
CACHED = "__dynamo_disable"  # attribute in which torch's decorator caches the function to call


@contextlib.contextmanager
def sparing_the_compiler() -> Iterator[None]:
    """Make four methods of `torch.optim.Optimizer` (add_param_group, state_dict, load_state_dict, zero_grad) call their
    plain functions. They are decorated, only to prevent tracing, so that their first call imports torch._dynamo, and
    with it sympy, torch.distributed and torch._inductor: a second or more, in a process that compiles nothing
    (torch/_compile.py, `_disable_dynamo`). Does nothing once torch._dynamo was imported, and is undone afterwards, so
    that a program that compiles later finds torch unchanged. Main thread only: the change affects the whole process."""
    if COMPILER in sys.modules:
        yield
        return
    spared = [function for function in _disabled(torch.optim.Optimizer) if not hasattr(function, CACHED)]
    for function in spared:
        setattr(function, CACHED, function)
    try:
        yield
    finally:
        for function in spared:
            if getattr(function, CACHED, None) is function:
                delattr(function, CACHED)


def _disabled(owner: type) -> list[Callable[..., Any]]:
    """Return the plain functions behind a class's decorated methods, found by the decorator's code object."""
    decorated = _disable_dynamo(lambda: None).__code__
    return [method.__wrapped__ for method in vars(owner).values() if getattr(method, "__code__", None) is decorated]
