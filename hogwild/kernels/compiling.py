"""Compilation of kernels, and a cache of compiled code that a crash cannot corrupt.

    CACHE/kernels-HASH/NAME/    numba's files of every kernel that the update NAME runs
                 manifest.json  the checksum of each; if it exists, the folder is complete

HASH covers all kernel sources, the versions of Python and numba, the CPU and the bounds-check flag: everything that
changes the compiled code changes the folder. (`artifact_cache.py` explains when a folder is complete.)"""

import hashlib
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import binding
from numba.core import config
from numba.core.registry import cpu_target

from hogwild.storage.artifact_cache import Kept, cache_root

# Sums may be reordered and fused, so that they are vectorised. NaN and infinity must be preserved, because every kernel
# checks for them.
FAST = {"nsz", "arcp", "contract", "afn", "reassoc"}
_INFINITY = np.float32(np.inf)

numba_config: Any = config  # numba creates the settings during its own import
_KERNELS: list[Any] = []  # every dispatcher created in this process


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function at its first call; it runs without the GIL, and its code is stored where `KernelCache` says.
    Small functions that a kernel calls are decorated with `inlined` instead."""
    made = numba.njit(nogil=True, fastmath=FAST, error_model="numpy")(function)
    _KERNELS.append(made)
    return made


def exact_kernel(function: Callable[..., Any]) -> Any:
    """Compile a kernel with every operation rounded as written: the results equal torch's to the bit."""
    made = numba.njit(nogil=True, error_model="numpy")(function)
    _KERNELS.append(made)
    return made


def exact(function: Callable[..., Any]) -> Any:
    """Compile a function that exact kernels call."""
    return numba.njit(nogil=True, error_model="numpy", inline="never", forceinline=True)(function)


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a function that kernels call, into each of them: LLVM does it, also where it would not by itself."""
    made = numba.njit(nogil=True, fastmath=FAST, error_model="numpy", inline="never", forceinline=True)
    return made(function)


@inlined
def is_finite(x):  # type: ignore[no-untyped-def]
    """Return whether x is neither NaN nor infinite. Do not use `np.isfinite` in a kernel: numba computes it as x - x,
    which is 0 for any sum if sums may be reordered."""
    return abs(x) < _INFINITY


@dataclass(frozen=True, slots=True)
class KernelCache(Kept):
    """The compiled kernels of one update, `name`, in `folder`."""

    @classmethod
    def of(cls, name: str) -> "KernelCache":
        """Return the cache for the kernels created in this process so far."""
        key = hashlib.blake2b(f"{fingerprint()}|{name}".encode(), digest_size=8).hexdigest()
        return cls(cache_root() / f"kernels-{key}")

    def load(self, run: Callable[[], object]) -> None:
        """Call `run`, which calls the kernels; their code comes from the cache. Only for a complete cache."""
        _keep_in(self.folder)
        run()
        self.touch()

    def fill(self, run: Callable[[], object]) -> str:
        """Call `run`, which calls the kernels; they are compiled and stored. Return the reason if nothing could be
        stored; they are compiled all the same."""
        return self.filled(_keep_in, run)


def load_registries() -> None:
    """Load what numba loads with the first kernel of a process, a quarter of a second."""
    cpu_target.target_context.refresh()


def fingerprint() -> str:
    """Return a hash of all that decides the compiled code, with the sources' times, which numba itself checks."""
    digest = hashlib.blake2b(digest_size=20)
    sources = set(Path(__file__).parent.rglob("*.py"))
    sources |= {Path(made.py_func.__code__.co_filename) for made in _KERNELS}
    for source in sorted(sources):
        digest.update(f"{source}|{source.stat().st_mtime_ns}|".encode() + source.read_bytes())
    parts = (
        sys.version, numba.__version__, platform.machine(), binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(), str(numba_config.BOUNDSCHECK),
    )  # fmt: skip
    digest.update("|".join(parts).encode())
    return digest.hexdigest()


def _keep_in(folder: Path) -> None:
    """Make numba read and write the compiled code of every kernel in this folder."""
    before = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(folder)
    try:
        for made in _KERNELS:
            made.enable_caching()
    finally:
        numba_config.CACHE_DIR = before
