"""Compile the kernels or the model of a job once: the worker named in the control row compiles, the others wait for it.

    cached and complete?   ──► load
    else, I am the compiler ──► compile, cache ──► my word COMPILED: the number of things I have ready
          I am not          ──► wait, beating, for its word; if it dies, the supervisor names another, perhaps me

Nobody waits on a lock or a file: a worker that dies while compiling leaves a folder under a temporary name, which
nobody reads."""

import select
import time
from collections.abc import Callable
from typing import Protocol

from hogwild.shared_memory.scoreboard import Control, Phase, Row, Word
from workers.messages import ParentGone

LOOK_MS = 20  # between two checks of the compiler's word
KERNELS, MODEL, RANKING = 1, 2, 3  # in this order, if a job has several


class CompiledCache(Protocol):
    """A folder of `hogwild/storage/artifact_cache.py` that can be loaded or filled. Both methods return a log message,
    or none."""

    def is_whole(self) -> bool: ...
    def load(self, run: Callable[[], object]) -> str | None: ...
    def fill(self, run: Callable[[], object]) -> str: ...


def make_ready(name: str, run: Callable[[], object], row: Row, lifeline: int | None, stage: int = KERNELS) -> str:
    """Make every kernel of `name`, an update or a metric, callable: `run` calls each once, on empty data. Return a log
    message: loaded or compiled, and the time. `lifeline`: None in the supervisor itself (`procs: 0`). Raises
    ParentGone."""
    from hogwild.kernels.compiling import KernelCache as Kernels  # numba takes half a second

    return make_all_ready(f"kernels of {name}", Kernels.of(name), run, row, lifeline, stage)


def make_all_ready(
    what: str, cache: CompiledCache, run: Callable[[], object], row: Row, lifeline: int | None, stage: int
) -> str:
    """As `make_ready`, for any cache. `stage`: the number of this thing among those a worker makes ready, from 1."""
    began_s = time.monotonic()
    row.enter(Phase.COMPILING)
    how = _made_ready(cache, run, row, lifeline, stage)
    row.enter(Phase.BOOTING)
    return f"{what}: {how} in {time.monotonic() - began_s:.1f} s"


def _made_ready(cache: CompiledCache, run: Callable[[], object], row: Row, lifeline: int | None, stage: int) -> str:
    board = row.board
    while True:
        compiler = int(board.control[Control.COMPILER])
        is_compiled = board.words[compiler, Word.COMPILED] >= stage  # read this before checking the cache, not after it
        if cache.is_whole():
            how = cache.load(run) or "loaded"
            row.words[Word.COMPILED] = stage
            return how
        if lifeline is None or compiler == row.worker or is_compiled:
            problem = cache.fill(run)
            row.words[Word.COMPILED] = stage
            return f"compiled{f' ({problem})' if problem else ''}"
        _wait(lifeline)
        row.beat()


def _wait(lifeline: int) -> None:
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    if poll.poll(LOOK_MS):
        raise ParentGone
