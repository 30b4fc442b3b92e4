"""Standard error, written by a thread: a terminal that does not read (Ctrl-S, a full pipe) holds up the thread, never
the job. Messages keep their order; of pictures of the job only the newest is kept, so a slow terminal gets fewer.

    say(text) ──► queue ──┐
                          ├─► [thread: erase the last frame, write the messages, draw the newest frame] ─► one write
    show(glance) ─► slot ─┘

The cursor is never hidden and no mode of the terminal is changed: it stands at the beginning of the line below the
frame, so that whatever ends the job, or stops it, leaves a terminal that can be used."""

import contextlib
import enum
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from hogwild.host import terminal
from hogwild.monitoring.job_view import Glance

if TYPE_CHECKING:
    from hogwild.monitoring.live_display import Display

MOST_MESSAGES = 1000  # that wait for a terminal; later ones are counted instead
ANSWER_S = 1.0  # a terminal that takes nothing for so long is not waited for again
CLOSE_S = 2.0


class Look(enum.Enum):
    """What is shown besides messages."""

    NOTHING = "nothing"
    LINES = "lines"  # now and then: a file, a pipe, a terminal without a movable cursor
    ONE_LINE = "one line"  # rewritten in place: `procs: 0`, where a debugger may want the terminal
    LIVE = "live"


def look_for(progress: bool, procs: int) -> Look:
    """What suits standard error as it is now."""
    if not progress:
        return Look.NOTHING
    if not terminal.can_move_cursor(_descriptor(sys.stderr)):
        return Look.LINES
    return Look.LIVE if procs else Look.ONE_LINE


class Screen:
    """One per job. `say`, `line` and `show` return at once, or before `start` within ANSWER_S, and never raise."""

    def __init__(self, look: Look = Look.NOTHING) -> None:
        self.look = look
        self._inbox = _Inbox()
        self._continued = terminal.Continued()
        self._writer = _TerminalThread(look, self._inbox, self._continued)
        self._thread: threading.Thread | None = None
        self._is_waited_for = True  # until the loop begins: what was said is there when `say` returns

    def start(self) -> None:
        """The loop that must not wait begins."""
        self._begin()
        self._is_waited_for = False
        if self.look is Look.LIVE:
            self._continued.install()

    def say(self, text: str) -> None:
        """A message of one or more lines; above the frame, where there is one."""
        self._begin()
        self._inbox.put(text)
        if self._is_waited_for:
            self._is_waited_for = self._inbox.wait_until_written(ANSWER_S)

    def show(self, glance: Glance) -> None:
        """The job as it is now; instead of one that was not drawn yet. For `Look.LIVE`."""
        self._begin()
        self._inbox.put_glance(glance)

    def line(self, text: str) -> None:
        """The progress line; in place of one that was not written yet."""
        self._begin()
        self._inbox.put_line(text)

    def close(self) -> None:
        """Waits for what is still to be written, but not long."""
        if self._thread is not None:
            self._inbox.close()
            self._thread.join(CLOSE_S)
        self._continued.restore()

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._writer.serve, name="screen", daemon=True)
            self._thread.start()


class _Inbox:
    """Between the loop and the thread. The lock is held for a few instructions, never while something is written."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: deque[str] = deque()
        self._lost = 0
        self._glance: Glance | None = None
        self._line: str | None = None
        self._is_closed = False
        self._is_taken = False  # what was taken is being written

    def put(self, text: str) -> None:
        with self._changed:
            if len(self._messages) < MOST_MESSAGES:
                self._messages.append(text)
            else:
                self._lost += 1
            self._changed.notify_all()

    def put_glance(self, glance: Glance) -> None:
        with self._changed:
            self._glance = glance
            self._changed.notify_all()

    def put_line(self, line: str) -> None:
        with self._changed:
            self._line = line
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def wait_until_written(self, timeout_s: float) -> bool:
        """Until nothing is left to be written; False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_taken and not self._holds_something(), timeout_s)

    def take(self) -> "tuple[list[str], str | None, Glance | None, bool]":
        """For the thread: messages, the newest line and glance, and whether this is all. Waits for something."""
        with self._changed:
            self._is_taken = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._holds_something() or self._is_closed)
            self._is_taken = True
            messages, line, glance = list(self._messages), self._line, self._glance
            if self._lost:
                messages.append(f"… {self._lost:,} messages could not be shown; they are in logs/supervisor.log")
            self._messages.clear()
            self._lost, self._line, self._glance = 0, None, None
            return messages, line, glance, self._is_closed

    def _holds_something(self) -> bool:
        return bool(self._messages or self._line is not None or self._glance is not None)


class _TerminalThread:
    """The thread's side. Does not know the Screen, which can so be forgotten."""

    def __init__(self, look: Look, inbox: _Inbox, continued: terminal.Continued) -> None:
        self._look = look
        self._inbox = inbox
        self._continued = continued
        self._seen_continued = 0
        self._display: Display | None = None
        self._drawn: Sequence[int] = ()  # columns of each line of the frame that stands on the terminal
        self._width = 0  # of the terminal, when it was drawn
        self._last: Glance | None = None
        self._line = ""  # the progress line that is open, without its end
        self._is_mute = False

    def serve(self) -> None:
        terminal.write_in_background_too()
        is_over = False
        while not is_over:
            messages, line, glance, is_over = self._inbox.take()
            self._last = glance or self._last
            if self._look is Look.LIVE:
                self._live(messages, is_over)
            else:
                self._plain(messages, line, is_over)

    # ---- lines -------------------------------------------------------------------------------------------------

    def _plain(self, messages: list[str], line: str | None, is_over: bool) -> None:
        text = "".join(f"{message}\n" for message in messages)
        if self._look is not Look.ONE_LINE:
            self._write(text + (f"{line}\n" if line else ""))
            return
        before = "\r\x1b[2K" if self._line and text else ""
        self._line = line or self._line
        if line is not None or text:
            shown = self._line[: self._size()[0] - 1]
            self._write(f"{before}{text}" + (f"\r\x1b[2K{shown}" if shown else ""))
        if is_over and self._line:
            self._write("\n")

    # ---- a frame -----------------------------------------------------------------------------------------------

    def _live(self, messages: list[str], is_over: bool) -> None:
        if self._continued.count != self._seen_continued:  # the shell has written since
            self._seen_continued, self._drawn = self._continued.count, ()
        width, height = self._size()
        text = self._above(width, height)
        text += "".join(
            f"{line}\x1b[K\n" for message in messages for line in terminal.printable(message).splitlines() or [""]
        )
        frame: list[tuple[str, int]] = []
        if self._last is not None and not terminal.is_in_background(_descriptor(sys.stderr)):
            frame = self._frame(self._last, width, height, is_over)
        text += "".join(f"{line}\x1b[K\n" for line, _ in frame)
        self._write(f"{text}\x1b[J" if self._drawn or frame else text)
        self._drawn = [columns for _, columns in frame]

    def _above(self, width: int, height: int) -> str:
        """To the beginning of the frame that stands there. A terminal that has become narrower has wrapped its lines;
        what was pushed off the top is out of reach."""
        rows = sum(max(1, -(-columns // width)) for columns in self._drawn)
        up = min(rows, height - 1)
        # Lines that a terminal has wrapped stay joined for it until they are cleared as a whole.
        is_resized, self._width = width != self._width, width
        return (f"\r\x1b[{up}A" + ("\x1b[J" if is_resized else "")) if up else ""

    def _frame(self, glance: Glance, width: int, height: int, is_last: bool) -> list[tuple[str, int]]:
        try:
            if self._display is None:
                from hogwild.monitoring.live_display import Display

                self._display = Display(encoding=getattr(sys.stderr, "encoding", None) or "ascii")
            return self._display.frame(glance, width, height, is_last=is_last)
        except Exception as error:  # a mistake of ours: a picture less, and the job goes on
            self._look = Look.NOTHING
            self._write(f"warning: the display ends: {type(error).__name__}: {error}; the job goes on\n")
            return []

    # ---- out ---------------------------------------------------------------------------------------------------

    def _size(self) -> tuple[int, int]:
        return terminal.size(_descriptor(sys.stderr))

    def _write(self, text: str) -> None:
        """Until it cannot be written to: its reader has gone, it was closed, its disk is full."""
        stream, is_ours = sys.stderr, sys.stderr is sys.__stderr__
        if self._is_mute or stream is None or not text:
            return
        try:
            stream.flush()
            if is_ours:
                _write_all(stream.fileno(), text.encode(stream.encoding, "backslashreplace"))
            else:  # somebody's own: a notebook's, a test's
                stream.write(text)
                stream.flush()
        except (OSError, ValueError):
            self._is_mute = True


def _write_all(descriptor: int, data: bytes) -> None:
    """Not through the stream: an interpreter that ends while a thread holds the stream's lock aborts."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # somebody else made it non-blocking, for all who share it
            room = select.poll()
            room.register(descriptor, select.POLLOUT)
            room.poll()


def _descriptor(stream: IO[str] | None) -> int:
    """-1 where there is none."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return stream.fileno() if stream is not None else -1
    return -1
