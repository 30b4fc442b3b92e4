"""Compiled parsers for each kind of file, from the cache of compiled code or compiled here.

Several processes may ask at once: each compiles for itself then, and the first complete folder is kept."""

import logging
from collections.abc import Callable

import numpy as np

from hogwild.kernels.compiling import KernelCache
from hogwild.kernels.parsing import lines, ordering
from hogwild.kernels.parsing.found import FOUND

log = logging.getLogger(__name__)
_READY: set[str] = set()


def ready(kind: str) -> None:
    """Load or compile the kernels of one kind of RUNS, once per process."""
    if kind in _READY:
        return
    cache, run = KernelCache.of(f"parsers-{kind}"), RUNS[kind]
    if cache.is_whole():
        cache.load(run)
    elif problem := cache.fill(run):
        log.info("%s", problem)
    _READY.add(kind)


def _text() -> np.ndarray:
    return np.frombuffer(b"", np.uint8)


def _floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _ints(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


def _longs(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int64)


def _libsvm() -> None:
    found = _longs(FOUND)
    lines.count(_text(), lines.COLON, found)
    lines.libsvm(_text(), 0, 1, False, _longs(1), _ints(1), _floats(1), _floats(1), 0, 0, 0, 0, found)
    ordering.by_frequency(
        _longs(1), _ints(1), _floats(1), _floats(1), 0, 0, 0, 0, _longs(1), False,
        _longs(1), _ints(1), _floats(1), _floats(1), np.zeros(1, np.uint8), 0, 0, _longs(2, 1), _floats(2, 1),
    )  # fmt: skip


RUNS: dict[str, Callable[[], None]] = {"libsvm": _libsvm}
