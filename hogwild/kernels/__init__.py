"""Compiled, lock-free inner loops over the shared flats, and the interface for a model's own kernels.

    fused.py        the interface of a fused update: `FusedUpdate`, `Chunk`, `Tally`; no numba
    compiling.py    the `kernel` decorator
    signatures.py   the types of our kernels' arguments: known before there is a model; no numba
    kernel_cache.py a cache of compiled code that a crash cannot poison, filled while a job starts
    rng.py          random numbers inside a kernel
    hot_rows.py     private copies of the rows that all workers write
    simd.py         vectors and whole rows as values, for what LLVM does not vectorise well by itself
    parsing/        text and ids in columns
    sparse_models.py …  the rules of our own model families

The names below are public. Each is loaded on first use: numba is an extra, and only a worker that runs a kernel needs
it."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hogwild.kernels.compiling import exact, exact_kernel, inlined, is_finite, kernel
    from hogwild.kernels.fused import Arrays, Chunk, FusedUpdate, Hot, Side, Tally

__all__ = [
    "Arrays", "Chunk", "FusedUpdate", "Hot", "Side", "Tally", "exact", "exact_kernel", "inlined", "is_finite", "kernel",
]  # fmt: skip
_COMPILING = ("exact", "exact_kernel", "inlined", "is_finite", "kernel")


def __getattr__(name: str) -> Any:
    if name in __all__:
        home = "compiling" if name in _COMPILING else "fused"
        return getattr(importlib.import_module(f"hogwild.kernels.{home}"), name)
    raise AttributeError(f"module 'hogwild.kernels' has no attribute {name!r}; it has {', '.join(__all__)}")
