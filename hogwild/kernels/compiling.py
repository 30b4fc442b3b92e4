"""Compilation of kernels by numba. `kernel_cache.py` keeps what was compiled."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import config, types
from numba.core.registry import cpu_target
from numba.np.numpy_support import from_dtype

from hogwild.kernels.signatures import Kernels

# Sums may be reordered and fused, so that they are vectorised. NaN and infinity must be preserved, because every kernel
# checks for them.
FAST = {"nsz", "arcp", "contract", "afn", "reassoc"}
# Functions that kernels call count no references to the arrays that they are given, which live as long as the kernel's
# call; so they make no arrays. In a function with several ways out numba would count at each call, by locked additions
# across which no reads overlap: for each row of skip-gram, a fifth of its time.
WITHOUT_COUNTS: Any = {"nogil": True, "error_model": "numpy", "_nrt": False}
_INFINITY = np.float32(np.inf)

numba_config: Any = config  # numba creates the settings during its own import
KERNELS: list[Any] = []  # every dispatcher created in this process
_folder: Path | None = None  # of compiled code


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call; it runs without the GIL, and its code is stored where `keep_in` says.
    Small functions that a kernel calls are decorated with `inlined` instead."""
    return _kept(numba.njit(nogil=True, fastmath=FAST, error_model="numpy")(function))


def exact_kernel(function: Callable[..., Any]) -> Any:
    """Compile a kernel with every operation rounded as written: the results equal torch's to the bit."""
    return _kept(numba.njit(nogil=True, error_model="numpy")(function))


def _kept(made: Any) -> Any:
    KERNELS.append(made)
    if _folder is not None:  # its module is imported by the call that compiles it
        _keep(made)
    return made


def exact(function: Callable[..., Any]) -> Any:
    """Compile a function that exact kernels call. It makes no arrays."""
    return numba.njit(inline="never", forceinline=True, **WITHOUT_COUNTS)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a function that kernels call, into each of them: LLVM does it, also where it would not by itself. It
    makes no arrays: it counts no references."""
    return numba.njit(fastmath=FAST, inline="never", forceinline=True, **WITHOUT_COUNTS)(function)


# Options of what only our own kernels call. The ways to call it from Python and from C take a third of a small kernel's
# time; without them a call from Python would crash.
IN_KERNELS: Any = {
    **WITHOUT_COUNTS,
    "fastmath": FAST,
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def only_in_kernels(function: Callable[..., Any]) -> Any:
    """Compile as `inlined`, but no ways to call it from Python and from C (`IN_KERNELS`)."""
    return numba.njit(inline="never", **IN_KERNELS)(function)


def shared_body(function: Callable[..., Any]) -> Any:
    """Compile a function as if each kernel that calls it had its text: numba inlines it, before types are known. For
    the loop that several kernels share, which is given functions: LLVM sees one function, as if there were no other."""
    return numba.njit(nogil=True, fastmath=FAST, error_model="numpy", inline="always")(function)


@inlined
def is_finite(x):  # type: ignore[no-untyped-def]
    """Return whether x is neither NaN nor infinite. Do not use `np.isfinite` in a kernel: numba computes it as x - x,
    which is 0 for any sum if sums may be reordered."""
    return abs(x) < _INFINITY


def load_registries() -> None:
    """Load what numba loads with the first kernel of a process, a quarter of a second."""
    cpu_target.target_context.refresh()


def compile_all(kernels: Kernels) -> None:
    """Compile these kernels for their types, or load them from the folder of `keep_in`."""
    for made, arguments in _dispatchers(kernels):
        made.compile(arguments)


def is_ready(kernels: Kernels) -> bool:
    """Return whether these kernels can be called at once, as nothing of them is to be loaded or compiled."""
    return all(arguments in made.overloads for made, arguments in _dispatchers(kernels))


def _dispatchers(kernels: Kernels) -> list[tuple[Any, tuple[Any, ...]]]:
    home = importlib.import_module(f"hogwild.kernels.{kernels.module}")
    return [(getattr(home, name), tuple(map(_type_of, arguments))) for name, arguments in kernels.types]


def _type_of(described: Any) -> Any:
    """Return numba's type for a description of `signatures.py`."""
    if isinstance(described, tuple):
        return types.Tuple(tuple(map(_type_of, described)))
    name, _, form = described.partition(":")
    element = types.none if name == "none" else from_dtype(np.dtype(name))
    if not form:
        return element
    return types.Array(element, int(form[0]), "A" if "A" in form else "C", readonly="R" in form)


def keep_in(folder: Path) -> None:
    """Make numba read and write the compiled code of every kernel in this folder, also of those created later."""
    global _folder
    _folder = folder
    for made in KERNELS:
        _keep(made)


def _keep(made: Any) -> None:
    before = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(_folder)
    try:
        made.enable_caching()
    finally:
        numba_config.CACHE_DIR = before
