"""Who compiles the kernels of a job, or its model: one worker, named in the control row; the others wait for its word.

    kept and whole?  ──► loaded
    else, I am the one ──► compiled, kept ──► my word COMPILED: how many of the job's things I have ready
          I am not     ──► wait, beating, until its word is there; it dies: the supervisor names another, perhaps me

Nobody waits on a lock or a file: a worker that dies while it compiles leaves a folder under another name, which
nobody reads."""

import select
import time
from collections.abc import Callable
from typing import Protocol

from hogwild.shared_memory.scoreboard import Control, Phase, Row, Word
from workers.messages import ParentGone

LOOK_MS = 20  # between two looks at the others' word
KERNELS, MODEL = 1, 2  # in this order, where a job has both


class CompiledCache(Protocol):
    """`hogwild/storage/artifact_cache.py`'s folder, and how what is in it is made. Both answer words for the log, if
    any."""

    def is_whole(self) -> bool: ...
    def load(self, run: Callable[[], object]) -> str | None: ...
    def fill(self, run: Callable[[], object]) -> str: ...


def make_ready(name: str, run: Callable[[], object], row: Row, lifeline: int | None) -> str:
    """Every kernel of the update `name` can be called: `run` calls each once, over nothing. Says how that came, and how
    long it took. `lifeline`: None in the supervisor itself (`procs: 0`). Raises ParentGone."""
    from hogwild.kernels.compiling import KernelCache as Kernels  # numba takes half a second

    return make_all_ready(f"kernels of {name}", Kernels.of(name), run, row, lifeline, KERNELS)


def make_all_ready(
    what: str, cache: CompiledCache, run: Callable[[], object], row: Row, lifeline: int | None, stage: int
) -> str:
    """The same of whatever `cache` keeps. `stage`: which of the things a worker has ready this is, counted from 1."""
    began_s = time.monotonic()
    row.enter(Phase.COMPILING)
    how = _made_ready(cache, run, row, lifeline, stage)
    row.enter(Phase.BOOTING)
    return f"{what}: {how} in {time.monotonic() - began_s:.1f} s"


def _made_ready(cache: CompiledCache, run: Callable[[], object], row: Row, lifeline: int | None, stage: int) -> str:
    board = row.board
    while True:
        compiler = int(board.control[Control.COMPILER])
        is_compiled = board.words[compiler, Word.COMPILED] >= stage  # before the look at what is kept, not after it
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
