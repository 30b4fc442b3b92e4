"""A pause inside an iterable data set that has nothing to give yet: a file that grows, a queue.

A loader that pauses here shows life, and notices that the job ends; in `time.sleep` it would look stalled, and be
killed. Elsewhere it is a sleep."""

import time
from collections.abc import Callable

LONGEST_S = 0.2  # between two looks
FIRST_S = 0.005


class Abandoned(BaseException):
    """Nobody needs the next record: the job ends. Not an Exception, so that no data set takes it for one of its own."""


_pause: Callable[[float], object] = time.sleep


def pause(seconds: float) -> None:
    """Wait up to `seconds`. Raises Abandoned if the job ends meanwhile."""
    _pause(seconds)


def set_pause(function: Callable[[float], object] | None) -> None:
    """Have `pause` call this function in this process; None: sleep."""
    global _pause
    _pause = time.sleep if function is None else function
