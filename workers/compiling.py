"""Who compiles the kernels of a job: one worker, named in the control row; the others wait for its word.

    kept and whole?  ──► loaded
    else, I am the one ──► compiled, kept ──► my word COMPILED
          I am not     ──► wait, beating, until its word is there; it dies: the supervisor names another, perhaps me

Nobody waits on a lock or a file: a worker that dies while it compiles leaves a folder under another name, which
nobody reads."""

import select
import time
from collections.abc import Callable

from hogwild.kernels.compiling import Cache
from hogwild.scoreboard import Control, Phase, Row, Word

LOOK_MS = 20  # between two looks at the others' word


class ParentGone(Exception):
    """End-of-file on the lifeline: nobody is left to train for."""


def make_ready(name: str, run: Callable[[], object], row: Row, lifeline: int | None) -> str:
    """Every kernel of the update `name` can be called: `run` calls each once, over nothing. Says how that came, and how
    long it took. `lifeline`: None in the supervisor itself (`procs: 0`). Raises ParentGone."""
    began_s = time.monotonic()
    row.enter(Phase.COMPILING)
    how = _made_ready(name, run, row, lifeline)
    row.enter(Phase.BOOTING)
    return f"kernels of {name}: {how} in {time.monotonic() - began_s:.1f} s"


def _made_ready(name: str, run: Callable[[], object], row: Row, lifeline: int | None) -> str:
    cache, board = Cache.of(name), row.board
    while True:
        if cache.is_whole():
            cache.load(run)
            row.words[Word.COMPILED] = 1
            return "loaded"
        compiler = int(board.control[Control.COMPILER])
        if lifeline is None or compiler == row.worker or board.words[compiler, Word.COMPILED]:
            problem = cache.fill(run)
            row.words[Word.COMPILED] = 1
            return f"compiled{f' ({problem})' if problem else ''}"
        _wait(lifeline)
        row.beat()


def _wait(lifeline: int) -> None:
    poll = select.poll()
    poll.register(lifeline, select.POLLIN)
    if poll.poll(LOOK_MS):
        raise ParentGone
