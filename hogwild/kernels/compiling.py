"""Compiling kernels, and a cache of what was compiled that a crash cannot poison.

    CACHE/kernels-HASH/NAME/    numba's files of every kernel that the update NAME runs
                 manifest.json  the checksum of each; its presence makes the folder whole

HASH is of all kernel sources, the versions of Python and numba, the CPU and the bounds-check flag: whatever would make
other code makes another folder. A folder is filled under another name and renamed; its files are compared with the
manifest before numba reads one, because it ends the process, or runs, what is truncated or damaged. One that is not
whole is removed and filled again."""

import contextlib
import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import binding
from numba.core import config

MANIFEST = "manifest.json"
ASIDE = ".tmp-"
UNUSED_S = 30 * 24 * 3600.0
STALE_S = 24 * 3600.0  # a folder that nobody finished for a day has no compiler any more
# Sums may be reordered and fused, so that they are vectorised; NaN and infinity stay what they are, because every
# kernel asks for them.
FAST = {"nsz", "arcp", "contract", "afn", "reassoc"}
_INFINITY = np.float32(np.inf)

numba_config: Any = config  # its settings are made while it is imported
_KERNELS: list[Any] = []  # every dispatcher made in this process


def kernel(function: Callable[..., Any]) -> Any:
    """Compiled at its first call, without the interpreter lock, and kept on disk where `Cache` says. Small functions
    that a kernel calls are decorated with `inlined` instead."""
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
class Cache:
    """The compiled kernels of one update, `name`, in `folder`."""

    folder: Path

    @classmethod
    def of(cls, name: str) -> "Cache":
        """Where the kernels known to this process by now would be kept."""
        key = hashlib.blake2b(f"{fingerprint()}|{name}".encode(), digest_size=8).hexdigest()
        return cls(cache_root() / f"kernels-{key}")

    def is_whole(self) -> bool:
        """Every file is there and as it was written. One that is not whole is removed."""
        if not self.folder.exists():
            return False  # first: a folder that appears after this is renamed, and so whole
        if self._matches():
            return True
        shutil.rmtree(self.folder, ignore_errors=True)
        return False

    def _matches(self) -> bool:
        try:
            files = json.loads((self.folder / MANIFEST).read_bytes())["files"]
            return all(_checksum(self.folder / name) == checksum for name, checksum in files.items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False

    def load(self, run: Callable[[], object]) -> None:
        """`run` calls the kernels, which come from the cache. Only of a whole one."""
        _keep_in(self.folder)
        run()
        with contextlib.suppress(OSError):  # another user's; it only looks older than it is
            os.utime(self.folder)

    def fill(self, run: Callable[[], object]) -> str:
        """`run` calls the kernels, which are compiled and kept. Says why where nothing could be kept: they are compiled
        all the same."""
        aside = self.folder.with_name(f"{ASIDE}{self.folder.name}-{os.getpid()}")
        problem = ""
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            _keep_in(aside)
        except (OSError, RuntimeError) as error:
            problem = f"compiled kernels are not kept: {error}"
        try:
            run()
            problem = problem or _publish(aside, self.folder)
            if not problem:
                _prune(self.folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return problem


def cache_root() -> Path:
    """$XDG_CACHE_HOME/hogwild, or ~/.cache/hogwild."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "hogwild"


def fingerprint() -> str:
    """Of everything that decides what is compiled. numba itself looks at a source's time, so that is in it."""
    digest = hashlib.blake2b(digest_size=20)
    sources = {Path(__file__).parent / name for name in os.listdir(Path(__file__).parent) if name.endswith(".py")}
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


def _publish(aside: Path, folder: Path) -> str:
    try:
        files = {str(path.relative_to(aside)): _checksum(path) for path in sorted(aside.rglob("*")) if path.is_file()}
        if not files:
            return "they were compiled in this process before"
        (aside / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n")
        aside.rename(folder)
    except OSError as error:
        # Where another job was first, its folder is as good as ours.
        return "" if (folder / MANIFEST).exists() else f"compiled kernels are not kept: {error}"
    return ""


def _prune(newest: Path) -> None:
    """What was not used for long: kernels of other versions, and what a killed compiler left."""
    now_s = newest.stat().st_mtime
    for folder in newest.parent.iterdir():
        with contextlib.suppress(OSError):  # somebody else was first
            if now_s - folder.stat().st_mtime > (STALE_S if folder.name.startswith(ASIDE) else UNUSED_S):
                shutil.rmtree(folder)


def _checksum(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
