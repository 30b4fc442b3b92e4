"""A terminal, as a job that writes to it must know it: whose foreground it is, when the job was stopped (Ctrl-Z) and
goes on, how large it is now. Nothing here changes a mode of the terminal, so nothing has to be put back, however a job
ends.

The one thing to know: a process in the background that writes is stopped by SIGTTOU where `stty tostop` is set; a
thread that blocks the signal is not."""

import os
import signal
import threading
from types import FrameType
from typing import Any

DEFAULT_SIZE = (80, 24)
CANNOT = ("", "dumb", "unknown")  # values of TERM: no movement of the cursor


def can_move_cursor(descriptor: int) -> bool:
    """Whether it is a terminal that lines can be rewritten on."""
    return os.isatty(descriptor) and os.environ.get("TERM", "") not in CANNOT


def size(descriptor: int) -> tuple[int, int]:
    """Columns and lines, as they are now; of a terminal that does not say, 80 and 24."""
    try:
        columns, lines = os.get_terminal_size(descriptor)
    except OSError:
        columns = lines = 0
    return columns or DEFAULT_SIZE[0], lines or DEFAULT_SIZE[1]


def is_in_background(descriptor: int) -> bool:
    """Somebody else has the terminal now: after `bg`, or started with `&`. Of another terminal than the one that
    controls us, nobody has it."""
    try:
        return os.tcgetpgrp(descriptor) != os.getpgrp()
    except OSError:
        return False


def write_in_background_too() -> None:
    """In the calling thread: what it writes to a terminal never stops the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})


def printable(text: str) -> str:
    """Without what would move the cursor or change colours, line ends apart: a message may hold a user's words."""
    return "".join(char if char.isprintable() or char == "\n" else " " if char == "\t" else "?" for char in text)


class Continued:
    """Counts how often the process was stopped and went on: what stands on the terminal then is not ours any more.
    Main thread only; elsewhere it counts nothing."""

    def __init__(self) -> None:
        self.count = 0
        self._former: Any = None
        self._is_installed = False

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._former = signal.signal(signal.SIGCONT, self._take)
            self._is_installed = True

    def restore(self) -> None:
        if self._is_installed:
            signal.signal(signal.SIGCONT, signal.SIG_DFL if self._former is None else self._former)
            self._is_installed = False

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
