"""What a job says while it runs: records, events, the status file, the supervisor's log, the progress line on
standard error.

A full disk, or a terminal that has gone, must not stop training, so nothing here raises: what could not be written is
said once, on standard error, if that is still there. Nor must a slow disk: the status file, which a file system that is
busy with a checkpoint takes its time to replace, is written by a thread; a line is only appended to what the kernel
keeps in memory.
"""

import sys
import time
from collections.abc import Iterable
from typing import Any

from hogwild.background import Background
from hogwild.rundir import Records, RunDir

LAST_STATUS_S = 10.0


class Journal:
    """One per job, in the supervisor. `progress`: show the line; on a terminal it is rewritten in place."""

    def __init__(self, rundir: RunDir, *, jsonl: bool, progress: bool | None, every_s: float) -> None:
        self.rundir = rundir
        self.every_s = every_s
        self._jsonl = jsonl
        self._terminal = sys.stderr is not None and sys.stderr.isatty()  # None in a daemon
        self._progress = True if progress is None else progress
        self._log = Records(rundir.supervisor_log)
        self._line_open = False
        self._complained = False
        self._mute = False
        self._next_line = 0.0
        self._next_status = 0.0
        self._status = Background("status")

    def start(self) -> None:
        """Its thread, before a loop that must not wait for that."""
        self._status.start()

    def event(self, kind: str, /, **values: Any) -> None:
        """One line of events.jsonl, and of the supervisor's log."""
        self._kept(self.rundir.events.try_append({"time": time.time(), "event": kind, **values}))
        words = " ".join(f"{key}={value}" for key, value in values.items() if value not in ("", None))
        self._kept(self._log.try_append_text(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {kind} {words}".rstrip()))

    def metrics(self, kind: str, **values: Any) -> None:
        """One line of metrics.jsonl; `updates` is always among the values, so that a resume can cut what was lost."""
        if self._jsonl:
            self._kept(self.rundir.metrics.try_append({"time": time.time(), "kind": kind, **values}))

    def status(self, **values: Any) -> None:
        """Replaces status.json, in a while; not at all while it is still being replaced."""
        self._status.settle()
        if not self._status.is_busy:
            record = {"time": time.time(), **values}
            self._status.begin(lambda: self.rundir.try_write_json("status.json", record), self._kept)

    def last_status(self, **values: Any) -> None:
        """The same, for good: it is there when this returns, unless the disk does not answer."""
        self._status.wait(LAST_STATUS_S)
        self.status(**values)
        self._status.wait(LAST_STATUS_S)

    def say(self, message: str) -> None:
        """A message for the person at the terminal; ends an open progress line first."""
        self._end_line()
        self._tell(f"{message}\n")
        self._kept(self._log.try_append_text(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}"))

    def rejected(self, reasons: Iterable[str]) -> None:
        """Checkpoints that are passed over for an older one."""
        for reason in reasons:
            self.say(f"warning: {reason}")
            self.event("checkpoint-rejected", reason=reason)

    def line(self, now: float, text: str) -> None:
        """The progress line: in place on a terminal, every ten intervals elsewhere."""
        if not self._progress or now < self._next_line:
            return
        self._next_line = now + (self.every_s if self._terminal else 10 * self.every_s)
        if self._terminal:
            self._tell(f"\r\x1b[2K{text}")
            self._line_open = True
        else:
            self._tell(f"{text}\n")

    def is_status_due(self, now: float) -> bool:
        if now < self._next_status:
            return False
        self._next_status = now + self.every_s
        return True

    def close(self) -> None:
        self._end_line()
        self._log.close()
        self._status.close()

    def _end_line(self) -> None:
        if self._line_open:
            self._tell("\n")
            self._line_open = False

    def _tell(self, text: str) -> None:
        """To standard error, until it cannot be written to: its reader has gone, it was closed, its disk is full."""
        if self._mute or sys.stderr is None:
            return
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            self._mute = True

    def _kept(self, written: bool) -> None:
        if not written and not self._complained:
            self._complained = True
            self._tell(f"warning: records of {self.rundir.path} cannot be written (disk full?); training goes on\n")
