"""Compiling kernels, and a cache of what was compiled that a crash cannot poison.

    CACHE/kernels-HASH/NAME/    numba's files of every kernel that the update NAME runs
                 manifest.json  the checksum of each; its presence makes the folder whole

HASH is of all kernel sources, the versions of Python and numba, the CPU and the bounds-check flag: whatever would make
other code makes another folder. (`artifact_cache.py` says what makes it whole.)"""

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

from hogwild.storage.artifact_cache import Kept, cache_root

# Sums may be reordered and fused, so that they are vectorised; NaN and infinity stay what they are, because every
# kernel asks for them.
FAST = {"nsz", "arcp", "contract", "afn", "reassoc"}
_INFINITY = np.float32(np.inf)

numba_config: Any = config  # its settings are made while it is imported
_KERNELS: list[Any] = []  # every dispatcher made in this process


def kernel(function: Callable[..., Any]) -> Any:
    """Compiled at its first call, without the interpreter lock, and kept on disk where `KernelCache` says. Small
    functions that a kernel calls are decorated with `inlined` instead."""
    made = numba.njit(nogil=True, fastmath=FAST, error_model="numpy")(function)
    _KERNELS.append(made)
    return made


def exact_kernel(function: Callable[..., Any]) -> Any:
    """A kernel in which every operation is rounded as it is written: what torch computes is computed to the bit."""
    made = numba.njit(nogil=True, error_model="numpy")(function)
    _KERNELS.append(made)
    return made


def exact(function: Callable[..., Any]) -> Any:
    """A part of exact kernels."""
    return numba.njit(nogil=True, error_model="numpy", inline="never")(function)


def inlined(function: Callable[..., Any]) -> Any:
    """A part of kernels: compiled into each of them."""
    return numba.njit(nogil=True, fastmath=FAST, error_model="numpy", inline="never")(function)


@inlined
def is_finite(x):  # type: ignore[no-untyped-def]
    """Neither NaN nor infinite. `np.isfinite` must not be used in a kernel: numba computes it as x - x, which is 0 for
    whatever is a sum where sums may be reordered."""
    return abs(x) < _INFINITY


@dataclass(frozen=True, slots=True)
class KernelCache(Kept):
    """The compiled kernels of one update, `name`, in `folder`."""

    @classmethod
    def of(cls, name: str) -> "KernelCache":
        """Where the kernels known to this process by now would be kept."""
        key = hashlib.blake2b(f"{fingerprint()}|{name}".encode(), digest_size=8).hexdigest()
        return cls(cache_root() / f"kernels-{key}")

    def load(self, run: Callable[[], object]) -> None:
        """`run` calls the kernels, which come from the cache. Only of a whole one."""
        _keep_in(self.folder)
        run()
        self.touch()

    def fill(self, run: Callable[[], object]) -> str:
        """`run` calls the kernels, which are compiled and kept. Says why where nothing could be kept: they are compiled
        all the same."""
        return self.filled(_keep_in, run)


def fingerprint() -> str:
    """Of everything that decides what is compiled. numba itself looks at a source's time, so that is in it."""
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
    """numba reads and writes the compiled code of every kernel there from now on."""
    before = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = str(folder)
    try:
        for made in _KERNELS:
            made.enable_caching()
    finally:
        numba_config.CACHE_DIR = before
