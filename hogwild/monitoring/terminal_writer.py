"""Output to standard error by a thread: a blocked terminal (Ctrl-S, a full pipe) stops the thread, never the job.
Messages keep their order; only the newest frame is kept, so a slow terminal gets fewer frames.

    say(text) ──► queue ──┐
                          ├─► [thread: erase the last frame, write the messages, draw the newest frame] ─► one write
    show(snapshot) ─► slot ─┘

The cursor is never hidden and no terminal mode is changed. The cursor stays at the beginning of the line below the
frame, so that the terminal remains usable however the job ends or stops."""

import contextlib
import enum
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, TYPE_CHECKING, Any

from hogwild.host import terminal
from hogwild.monitoring.run_status import JobSnapshot, progress_line

if TYPE_CHECKING:
    from hogwild.monitoring.live_display import Display

MOST_MESSAGES = 1000  # waiting for a terminal; later ones are only counted
ANSWER_S = 1.0  # a terminal that accepts nothing for so long is not waited for again
CLOSE_S = 2.0
QUIET_S = 8.0  # longest silence while a job starts, without a terminal: a person waits about ten seconds for a sign
BAR = 20  # columns of a notebook's progress bar
LINE_EVERY_S = 30.0  # between two lines of progress that stay


class Look(enum.Enum):
    """The output besides messages."""

    NOTHING = "nothing"
    LINES = "lines"  # occasionally: for a file, a pipe, a terminal without cursor movement
    ONE_LINE = "one line"  # rewritten in place: `procs: 0`, where a debugger may need the terminal
    NOTEBOOK = "notebook"  # a line of its own in the cell's output, updated
    LIVE = "live"

    @property
    def is_in_place(self) -> bool:
        """True if a line replaces the one before it."""
        return self in (Look.ONE_LINE, Look.NOTEBOOK, Look.LIVE)


def look_for(progress: bool, procs: int) -> Look:
    """Return the look that suits the current standard error."""
    if not progress:
        return Look.NOTHING
    if is_notebook():
        return Look.NOTEBOOK
    if not terminal.can_move_cursor(_descriptor(sys.stderr)):
        return Look.LINES
    return Look.LIVE if procs else Look.ONE_LINE


def is_notebook() -> bool:
    """Return whether an IPython kernel shows the output of this process: Jupyter, VS Code, Colab."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class Screen:
    """The output of one job. Its methods return at once, before `start` within ANSWER_S, and never raise."""

    def __init__(self, look: Look = Look.NOTHING, footer: "Callable[[JobSnapshot], str] | None" = None) -> None:
        """`footer`: returns the last line of a live frame."""
        self.look = look
        self._inbox = _Inbox()
        self._continued = terminal.Continued()
        self._writer = _TerminalThread(look, self._inbox, self._continued, footer)
        self._thread: threading.Thread | None = None
        self._line_s: float | None = None  # when the last of several lines was shown
        self._is_waited_for = True  # until the loop starts, `show_message` returns only after its text is written

    def start(self) -> None:
        """Stop waiting for output: the job's loop starts."""
        self._start()
        self._is_waited_for = False
        if self.look is Look.LIVE:
            self._continued.install()

    def show_message(self, text: str) -> None:
        """Print a message of one or more lines, above the frame if there is one."""
        self._start()
        self._inbox.put(text)
        if self._is_waited_for:
            self._is_waited_for = self._inbox.wait_until_written(ANSWER_S)

    def show(self, job: JobSnapshot) -> None:
        """Show the job's current state, in place of an older one that was not drawn yet: as a frame, as a line, or, if
        lines stay, as one now and then."""
        if self.look is Look.LIVE:
            self._start()
            self._inbox.put_newest(job=job)
        elif self.look is Look.ONE_LINE:
            self.line(progress_line(job))
        elif self.look is Look.NOTEBOOK:
            done = int(BAR * (job.progress or 0.0))
            self.line(f"{'━' * done}{'─' * (BAR - done)} {progress_line(job)}")
        elif self.look is Look.LINES:
            now = time.monotonic()
            self._line_s = now if self._line_s is None else self._line_s
            if now - self._line_s >= (QUIET_S if job.state == "starting" else LINE_EVERY_S):
                self._line_s = now
                self.line(progress_line(job))

    def line(self, text: str) -> None:
        """Show a progress line, in place of an older one that was not written yet; "" removes the one on a terminal. A
        live display shows it until the first snapshot."""
        self._start()
        self._inbox.put_newest(line=text)

    def close(self) -> None:
        """Wait briefly for pending output."""
        if self._thread is not None:
            self._inbox.close()
            self._thread.join(CLOSE_S)
        self._continued.restore()

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._writer.serve, name="screen", daemon=True)
            thread.start()
            self._thread = thread


class _Inbox:
    """The queue between the loop and the thread. The lock is held for a few instructions, never during a write."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: deque[str] = deque()
        self._lost = 0
        self._job: JobSnapshot | None = None
        self._line: str | None = None
        self._is_closed = False
        self._is_taken = False  # the thread is writing what it took

    def put(self, text: str) -> None:
        with self._changed:
            if len(self._messages) < MOST_MESSAGES:
                self._messages.append(text)
            else:
                self._lost += 1
            self._changed.notify_all()

    def put_newest(self, *, job: JobSnapshot | None = None, line: str | None = None) -> None:
        """Replace a snapshot or a line that was not taken yet."""
        with self._changed:
            self._job = job or self._job
            self._line = self._line if line is None else line
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def wait_until_written(self, timeout_s: float) -> bool:
        """Wait until nothing is left to write; return False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_taken and not self._holds_something(), timeout_s)

    def receive(self) -> "tuple[list[str], str | None, JobSnapshot | None, bool]":
        """Wait for output; return messages, the newest line and snapshot, and whether the inbox is closed."""
        with self._changed:
            self._is_taken = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._holds_something() or self._is_closed)
            self._is_taken = True
            messages, line, job = list(self._messages), self._line, self._job
            if self._lost:
                messages.append(f"… {self._lost:,} messages could not be shown; they are in logs/supervisor.log")
            self._messages.clear()
            self._lost, self._line, self._job = 0, None, None
            return messages, line, job, self._is_closed

    def _holds_something(self) -> bool:
        return bool(self._messages or self._line is not None or self._job is not None)


class _TerminalThread:
    """The writer inside the thread. It holds no reference to the Screen, which can thus be garbage-collected."""

    def __init__(
        self,
        look: Look,
        inbox: _Inbox,
        continued: terminal.Continued,
        footer: Callable[[JobSnapshot], str] | None,
    ) -> None:
        self._look = look
        self._footer = footer
        self._inbox = inbox
        self._continued = continued
        self._seen_continued = 0
        self._display: Display | None = None
        self._drawn: Sequence[int] = ()  # columns of each line of the frame on the terminal
        self._width = 0  # width of the terminal when the frame was drawn
        self._last: JobSnapshot | None = None
        self._line = ""  # the open progress line, without its line end
        self._is_mute = False
        self._cell: Any = None  # display handle of a notebook's line

    def serve(self) -> None:
        terminal.write_in_background_too()
        is_over = False
        while not is_over:
            messages, line, job, is_over = self._inbox.receive()
            self._last = job or self._last
            if self._look is Look.LIVE:
                self._line = self._line if line is None else line
                self._live(messages, is_over)
            else:
                self._plain(messages, line, is_over)

    # ---- lines -------------------------------------------------------------------------------------------------

    def _plain(self, messages: list[str], line: str | None, is_over: bool) -> None:
        text = "".join(f"{message}\n" for message in messages)
        if self._look is Look.NOTEBOOK:
            self._write(text)
            if line is not None:
                self._show_in_cell(line)
            return
        if self._look is not Look.ONE_LINE:
            self._write(text + (f"{line}\n" if line else ""))
            return
        before = "\r\x1b[2K" if self._line and (text or line is not None) else ""
        self._line = self._line if line is None else line
        if line is not None or text:
            shown = self._line[: self._size()[0] - 1]
            self._write(f"{before}{text}" + (f"\r\x1b[2K{shown}" if shown else ""))
        if is_over and self._line:
            self._write("\n")

    def _show_in_cell(self, line: str) -> None:
        try:
            from IPython.display import display

            content = {"text/plain": terminal.printable(line)}
            if self._cell is None:
                self._cell = display(content, raw=True, display_id=True)
            else:
                self._cell.update(content, raw=True)
        except Exception as error:  # its kernel's connection: stop the display, and the job continues
            self._look = Look.LINES
            self._write(f"warning: the display ends: {type(error).__name__}: {error}; the job goes on\n")

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
        elif self._line and self._last is None and not is_over:
            shown = terminal.printable(self._line)[: width - 1]
            frame = [(shown, len(shown))]
        text += "".join(f"{line}\x1b[K\n" for line, _ in frame)
        self._write(f"{text}\x1b[J" if self._drawn or frame else text)
        self._drawn = [columns for _, columns in frame]

    def _above(self, width: int, height: int) -> str:
        """Return the escape sequence that moves to the beginning of the current frame. A terminal that became narrower
        has wrapped its lines; lines pushed off the top are out of reach."""
        rows = sum(max(1, -(-columns // width)) for columns in self._drawn)
        up = min(rows, height - 1)
        # Terminals keep wrapped lines joined until they are cleared as a whole.
        is_resized, self._width = width != self._width, width
        return (f"\r\x1b[{up}A" + ("\x1b[J" if is_resized else "")) if up else ""

    def _frame(self, job: JobSnapshot, width: int, height: int, is_last: bool) -> list[tuple[str, int]]:
        try:
            if self._display is None:
                from hogwild.monitoring.live_display import Display

                self._display = Display(getattr(sys.stderr, "encoding", None) or "ascii", self._footer)
            return self._display.frame(job, width, height, is_last=is_last)
        except Exception as error:  # our own bug: stop the display, and the job continues
            self._look = Look.NOTHING
            self._write(f"warning: the display ends: {type(error).__name__}: {error}; the job goes on\n")
            return []

    # ---- output ------------------------------------------------------------------------------------------------

    def _size(self) -> tuple[int, int]:
        return terminal.size(_descriptor(sys.stderr))

    def _write(self, text: str) -> None:
        """Write, until standard error fails: its reader is gone, it is closed, or its disk is full."""
        stream, is_ours = sys.stderr, sys.stderr is sys.__stderr__
        if self._is_mute or stream is None or not text:
            return
        try:
            stream.flush()
            if is_ours:
                _write_all(stream.fileno(), text.encode(stream.encoding, "backslashreplace"))
            else:  # replaced by a notebook or a test
                stream.write(text)
                stream.flush()
        except (OSError, ValueError):
            self._is_mute = True


def _write_all(descriptor: int, data: bytes) -> None:
    """Write to the descriptor: an interpreter that exits while a thread holds the stream's lock aborts."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # another process made it non-blocking, for all who share it
            room = select.poll()
            room.register(descriptor, select.POLLOUT)
            room.poll()


def _descriptor(stream: IO[str] | None) -> int:
    """Return the descriptor, or -1 if there is none."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        return stream.fileno() if stream is not None else -1
    return -1
