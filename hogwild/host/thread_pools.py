"""The thread pools that native libraries brought into this process: OpenMP runtimes and BLAS libraries.

`OMP_NUM_THREADS` and `torch.set_num_threads` limit the pools that were loaded with or after them. A user's module may
load another OpenMP (scikit-learn has its own libgomp) or BLAS (numpy's and scipy's OpenBLAS differ), or set its own
number; each would then use as many threads as there are cores, in every worker."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from threadpoolctl import ThreadpoolController

WORTH_THREADS = 64 << 20  # bytes; one thread reads them in 10 ms


def pools() -> list[tuple[str, int]]:
    """Return (description, threads) of every pool loaded so far. MKL linked into torch is invisible here;
    `torch.set_num_threads` limits it."""
    return [(_describe(pool), int(pool["num_threads"] or 1)) for pool in ThreadpoolController().info()]


def limit_pools(threads: int) -> list[str]:
    """Limit every loaded pool to `threads` threads, for the rest of this process. Return descriptions of those that had
    more. Call it in the main thread, after the imports of user code: it takes 7 ms, and pools loaded later are not
    limited."""
    found = ThreadpoolController()
    # An OpenBLAS built without threads reports None.
    larger = [pool for pool in found.info() if (pool["num_threads"] or 0) > threads]
    for pool in found.lib_controllers:
        if (pool.num_threads or 0) > threads:
            pool.set_num_threads(threads)
    return [f"{_describe(pool)}: {pool['num_threads']} threads" for pool in larger]


def set_threads(threads: int) -> None:
    """Let torch, and every pool loaded so far, use so many threads."""
    import torch

    torch.set_num_threads(threads)
    for pool in ThreadpoolController().lib_controllers:
        pool.set_num_threads(threads)


@contextlib.contextmanager
def threads_for(nbytes: int = 0) -> Iterator[None]:
    """Let torch compute with one thread, unless there are so many bytes that more threads pay. The first use of its
    pool takes milliseconds, and its threads then wait by spinning on the cores where a job's processes start."""
    import torch

    before = torch.get_num_threads()
    if nbytes < WORTH_THREADS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def set_blas_threads(threads: int) -> None:
    """Let the BLAS libraries loaded so far use so many threads."""
    for pool in ThreadpoolController().select(user_api="blas").lib_controllers:
        pool.set_num_threads(threads)


@contextlib.contextmanager
def limited_pools(threads: int) -> Iterator[list[str]]:
    """Do the same for a while; afterwards these pools have as many threads as before."""
    with ThreadpoolController().limit(limits=None):
        yield limit_pools(threads)


def _describe(pool: dict[str, object]) -> str:
    version = f" {pool['version']}" if pool.get("version") else ""
    return f"{pool['internal_api']}{version} ({Path(str(pool['filepath'])).name})"
