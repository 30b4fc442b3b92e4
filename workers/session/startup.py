"""The description of a job to run, the first of five steps (`workers/run.py`), and the first seconds of the job, from
the command to its first worker: what is seen of them, and status.json.

    announce ── import torch ── open_run ── start ── build ── … ── begins ── the journal's first record: end
    line                                    a line whenever nothing was said for QUIET_S, by a thread; status.json once
                                            per `log.every_s`

Imports no torch. A thread, because reading and user code keep the main thread for seconds to minutes."""

import contextlib
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild import host
from hogwild.cluster.launch import Launch
from hogwild.config.load import Job
from hogwild.data.standard_input import kept_file
from hogwild.formatting import counted, short_number
from hogwild.host.signals import leave_signals_to_main
from hogwild.kernels.signatures import Kernels
from hogwild.monitoring.callbacks import Callbacks
from hogwild.monitoring.profile_report import Window
from hogwild.monitoring.run_status import JobSnapshot, RunAttempt, record_of, snapshot_of
from hogwild.monitoring.terminal_writer import QUIET_S, Look, Screen, is_notebook, look_for
from hogwild.planning.job_plan import JobPlan
from hogwild.storage.files import tried
from hogwild.storage.run_directory import LIBRARY, STATUS, STDIN, RunDir
from hogwild.version import __version__
from hogwild.workers.processes.fork_server import SERVER

if TYPE_CHECKING:
    from hogwild.feeds.row_reader import Reader
    from hogwild.job.parts import Parts

COMMAND_LINE = "command line"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Description:
    """A job, and where it comes from. `read` builds or takes over the objects of a planned job, and has the reader
    bring their data into memory (user code runs only there)."""

    job: Job
    read: "Callable[[JobPlan, Reader], Parts]"
    job_text: str = ""
    run_dir: Path | None = None
    resume: Path | None = None
    data_dir: Path | None = None
    user_folders: tuple[str, ...] = ()
    job_file: Path | None = None
    caller: str = COMMAND_LINE  # or run_directory.LIBRARY
    profile: Window | None = None  # updates of each worker to record
    began_s: float = 0.0  # monotonic: when the command, or the call, began
    callbacks: Callbacks = field(default_factory=Callbacks)  # of the library's caller
    kernels: tuple[Kernels, ...] = ()  # foreseen, for processes that load or compile them beforehand
    launch: Launch | None = None  # this node's place in a cluster


IN_PLACE_S = 1.0  # between two states of a line that is rewritten
FIRST = "importing torch"
CARRIED = ("lane_restarts", "loader_deaths")  # sums over attempts that no snapshot has


class StartUp:
    """The start of one job, which owns its run directory. A context manager: at its end the thread is gone, the line is
    cleared and the directory is let go; that of a job that did not begin is removed, or is again what it was. Main
    thread only."""

    def __init__(self, job: Job, procs: int, *, progress: bool | None, caller: str) -> None:
        wants_progress = job.log.progress if progress is None else progress
        if wants_progress == "auto":
            # The command line always shows it, if without a terminal in plain lines; `hogwild.train` on a terminal and
            # in a notebook only, as other output belongs to the program's author.
            wants_progress = sys.stderr is not None and (caller != LIBRARY or sys.stderr.isatty() or is_notebook())
        self.attempt = RunAttempt.here(caller, job.log.every_s, job.tags)
        self.look = look_for(bool(wants_progress), procs)
        self.job, self._procs = job, procs
        self._began_s = self._phase_s = self._drawn_s = time.monotonic()
        self._phase, self._detail = FIRST, ""
        self._count: tuple[str, int, float, float] = ("", 0, 0.0, 0.0)
        self._rundir: RunDir | None = None
        self._is_resumed = self._has_begun = self._is_announced = False
        self._before: dict[str, Any] = {}
        self._content: bytes | None = None  # of status.json before this attempt
        self._next_status_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="start-up", daemon=True)
        on_signal = job.checkpoint.on_signal
        self.screen = Screen(self.look, lambda snapshot: _about_interrupt(snapshot, on_signal=on_signal))

    def __enter__(self) -> "StartUp":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.end()
            self.screen.close()
        finally:
            self._leave()

    @property
    def rundir(self) -> RunDir:
        assert self._rundir is not None, "a dry run has none"
        return self._rundir

    # ---- steps

    def open_run(self, run_dir: Path | None = None, resume: Path | None = None) -> None:
        """Create or open the run directory; write status.json from now on. Raises RunDirError or NotFoundError."""
        # Before signals raise: else a folder that is made but not yet ours could stay.
        rundir = RunDir.open(resume) if resume else RunDir.create(run_dir, self.job.name)
        self._rundir, self._is_resumed = rundir, resume is not None
        host.before_exit(self._leave)
        before = rundir.read_json(STATUS) if resume else None
        self._before = before if isinstance(before, dict) else {}
        with contextlib.suppress(OSError):
            self._content = rundir.status_file.read_bytes() if resume else None
        self.attempt = self.attempt.after(self._before)
        self._next_status_s = time.monotonic() + self.job.log.every_s
        self._write_status(rundir)

    def announce(self) -> None:
        """Show the first line now, without the screen's thread: the fork server is forked from a process that has
        none. A standard error that is not ready for it gets it later."""
        if self.look is Look.NOTHING or sys.stderr is None:
            return
        with contextlib.suppress(OSError, ValueError):  # it is closed, or its reader has gone
            poll = select.poll()
            poll.register(sys.stderr, select.POLLOUT)
            if poll.poll(0):
                os.write(sys.stderr.fileno(), f"{self._first_line}\n".encode(errors="replace"))
                self._is_announced = True

    def start(self, note: str = "") -> None:
        """Show the first line, unless it was announced, and a note, and start the thread."""
        for line in ("" if self._is_announced else self._first_line, note):
            if line and self.look is not Look.NOTHING:
                self.screen.show_message(line)
        self._thread.start()

    @property
    def _first_line(self) -> str:
        who = counted(self._procs, "worker") if self._procs else "in this process"
        return f"hogwild {__version__}: {self.job.name}, {who}; {FIRST}"

    def phase(self, words: str) -> None:
        """Note what happens from now on."""
        self._phase, self._detail, self._phase_s = words, "", time.monotonic()

    def count(self, what: str, done: int, count: int, things: str = "samples") -> None:
        """Note how far the current phase is: `reading data.train: 45 %  12,000 samples/s`. Cheap; call it often."""
        now_s = time.monotonic()
        last, had, since_s, shown_s = self._count
        if last != what:
            self._count = last, had, since_s, shown_s = what, done, now_s, now_s
        if now_s - shown_s < IN_PLACE_S:
            return
        rate = short_number((done - had) / max(1e-9, now_s - since_s))
        self._detail = f"{what}: {100 * done / count:.0f} %  {rate} {things}/s"
        self._count = (what, done, now_s, now_s)
        if self.look is Look.ONE_LINE:
            self._draw(now_s)

    def counted(self) -> None:
        """Note that what was counted is complete."""
        self._detail = ""

    def begins(self) -> None:
        """The job begins: its run directory stays, however it ends."""
        self._has_begun = True

    def end(self) -> None:
        """Stop the thread and clear its line: the journal writes from now on. May be called again."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self.look.is_in_place:
            self.screen.line("")

    def _leave(self) -> None:
        """Let the run directory go. A second signal in its middle does it again, and ends the process."""
        rundir = self._rundir
        if rundir is None:
            return
        if not self._has_begun and not self._is_resumed:
            rundir.discard()
            if rundir.has_input:
                file = kept_file(rundir.path / STDIN, 1)
                log.warning("what standard input has brought is kept: hogwild train JOB.yaml < %s", file)
        elif not self._has_begun and self._content is not None:
            tried(partial(rundir.write_text, STATUS, self._content.decode(errors="replace")))
        self._rundir = None
        rundir.close()

    # ---- the thread

    def _serve(self) -> None:
        leave_signals_to_main()
        while not self._ended.wait(min(IN_PLACE_S, max(0.1, self.job.log.every_s))):
            now_s, rundir = time.monotonic(), self._rundir
            if self.look in (Look.LIVE, Look.NOTEBOOK) or (self.look is Look.ONE_LINE and self._phase is FIRST):
                self._draw(now_s)  # not under a debugger's prompt, which user code may show
            elif self.look is Look.LINES and now_s - self._drawn_s >= QUIET_S:
                self._draw(now_s)
            if rundir is not None and now_s >= self._next_status_s:
                self._next_status_s = now_s + self.job.log.every_s
                self._write_status(rundir)

    def _draw(self, now_s: float) -> None:
        self._drawn_s = now_s
        self.screen.line(f"{self._doing}, {now_s - self._phase_s:.0f} s")

    @property
    def _doing(self) -> str:
        return f"{self._phase}: {self._detail}" if self._detail else self._phase

    def _write_status(self, rundir: RunDir) -> None:
        known = snapshot_of(self._before)  # what earlier attempts have reached
        idle: dict[str, Any] = {"samples_per_s": 0.0, "loss": None, "left_s": None, "workers": (), "news": ()}
        idle["server"] = SERVER.snapshot({})
        shown = replace(known, name=self.job.name, run_dir=str(rundir.path), state=self._doing, stream=None, **idle)
        more = {name: self._before[name] for name in CARRIED if name in self._before}
        record = record_of(self.attempt, "building", shown, more)
        rundir.try_write_json(STATUS, record)


def _about_interrupt(snapshot: JobSnapshot, *, on_signal: bool) -> str:
    """Return the effect of Ctrl-C in one line: `Session.note_signal`, `Outcome.cancelled_by`."""
    if snapshot.state == "stopping":
        return "Ctrl-C again: stop at once; work since the last checkpoint is lost"
    how = "write a checkpoint and stop" if on_signal else "stop without a checkpoint"
    return f"Ctrl-C: {how} (resume later); twice: stop at once"
