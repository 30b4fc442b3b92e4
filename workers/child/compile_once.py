"""Make the kernels or the model of a job callable in a worker: compiled by one process, for all.

    there already     ──► loaded by the fork server: nothing to do
    cached, complete? ──► load
    else              ──► claim it (`artifact_cache.py`), compile, cache; while another process has the claim, beat

Nobody waits on a lock: a claim is asked for again and again, and ends with its process. One that dies while compiling
leaves a folder under a temporary name, which nobody reads."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hogwild import host
from hogwild.shared_memory.scoreboard import Phase, Row
from hogwild.storage.artifact_cache import CompiledCache, made_ready
from hogwild.workers.messages import ParentGone

if TYPE_CHECKING:
    from hogwild.kernels.signatures import Kernels

Parts = Sequence[tuple[CompiledCache, Callable[[], object]]]  # caches, each with what calls its content
LOOK_MS = 20  # between two looks at the cache


def make_ready(
    name: str, run: Callable[[], object], kernels: "Sequence[Kernels]", row: Row, lifeline: int | None
) -> str:
    """Make every kernel of `name`, an update or a metric, callable: those of ours, or without any all that `run` calls,
    on empty data. Return a log message: there already, loaded or compiled, and the time. `lifeline`: None in the
    supervisor itself (`procs: 0`). Raises ParentGone."""
    from hogwild.kernels.compiling import compile_all, is_ready  # numba takes half a second
    from hogwild.kernels.kernel_cache import KernelCache

    parts: Parts = [(KernelCache.of(one), partial(compile_all, one)) for one in kernels if not is_ready(one)]
    if not kernels:
        parts = [(KernelCache.of(name), run)]
    return make_all_ready(f"kernels of {name}", parts, row, lifeline)


def make_all_ready(what: str, parts: Parts, row: Row, lifeline: int | None) -> str:
    """As `make_ready`, for any caches."""

    def pause() -> None:
        if host.wait_readable([] if lifeline is None else [lifeline], LOOK_MS):
            raise ParentGone
        row.beat()

    began_s = time.monotonic()
    row.enter(Phase.COMPILING)
    how = dict.fromkeys(made_ready(cache, run, pause) for cache, run in parts) or ("there already",)
    row.enter(Phase.BOOTING)
    return f"{what}: {' and '.join(how)} in {time.monotonic() - began_s:.1f} s"
