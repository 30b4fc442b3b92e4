"""Facts about the terminal a job writes to: foreground or background, stopped (Ctrl-Z) and continued, its size. Nothing
here changes a terminal mode, so nothing must be restored, however a job ends.

The one thing to know: with `stty tostop`, a background process that writes is stopped by SIGTTOU; a thread that blocks
the signal is not."""

import os
import signal
import threading
from types import FrameType
from typing import Any

from hogwild.host.signals import give_back

DEFAULT_SIZE = (80, 24)
CANNOT = ("", "dumb", "unknown")  # values of TERM without cursor movement


def can_move_cursor(descriptor: int) -> bool:
    """Return whether it is a terminal on which lines can be rewritten."""
    return os.isatty(descriptor) and os.environ.get("TERM", "") not in CANNOT


def size(descriptor: int) -> tuple[int, int]:
    """Return the current columns and lines; 80 and 24 if the terminal does not tell."""
    try:
        columns, lines = os.get_terminal_size(descriptor)
    except OSError:
        columns = lines = 0
    return columns or DEFAULT_SIZE[0], lines or DEFAULT_SIZE[1]


def is_in_background(descriptor: int) -> bool:
    """Return whether another process group has the terminal now: after `bg`, or started with `&`. False for a terminal
    that does not control us."""
    try:
        return os.tcgetpgrp(descriptor) != os.getpgrp()
    except OSError:
        return False


def write_in_background_too() -> None:
    """Let the calling thread write to a terminal from the background without stopping the process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})


def printable(text: str) -> str:
    """Remove characters that move the cursor or change colours, except line ends: a message may hold user text."""
    return "".join(char if char.isprintable() or char == "\n" else " " if char == "\t" else "?" for char in text)


class Continued:
    """Counter of how often the process was stopped and continued; afterwards the terminal shows other content than
    ours. Main thread only; in other threads it counts nothing."""

    def __init__(self) -> None:
        self.count = 0
        self._former: dict[int, Any] = {}

    def install(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._former[signal.SIGCONT] = signal.signal(signal.SIGCONT, self._note_signal)

    def restore(self) -> None:
        give_back(self._former)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
