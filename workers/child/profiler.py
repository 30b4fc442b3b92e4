"""`--profile A:B` inside a worker: the time of each phase of an update.

    this worker's update   0 … A-1    A … B-1          10 updates   as many as before    …
                           nothing    torch.profiler   settling     a clock only         nothing
                                     |                |                                 |
                                     '- started       '- worker-K.json                  '- worker-K.phases.json

The profiler slows down every operation, small ones most, so the shares of the phases are measured without it, on later
updates. A worker that leaves early also writes its records; a killed one leaves at most the note that it reached the
window."""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Any

from hogwild.monitoring.profile_report import PAUSE, SETTLING, PhaseRecord, Window, phases_name, read_phases, trace_name

BOOKKEEPING, WAIT = "bookkeeping", "wait"
OPERATORS = 30  # in worker-K.operators.txt
BETWEEN = (WAIT, PAUSE)  # phases outside an update


class Profile:
    """The recorder of a training loop; this one records nothing, in tens of nanoseconds a call. A phase is one of
    hogwild.monitoring.profile_report.PHASES, or PAUSE."""

    def start_update(self, number: int) -> None:
        """Begin an update, in the phase `bookkeeping`. `number`: this incarnation's updates so far."""

    def enter(self, phase: str) -> None:
        """End the current phase and begin this one."""

    def close(self) -> None:
        """Write the records: the worker leaves, for any reason."""


class Stopwatch:
    """Nanoseconds per phase of each update, without gaps between `start_update` and `finish`."""

    def __init__(self) -> None:
        self.updates: list[dict[str, int]] = []
        self._phase = ""
        self._since_ns = 0

    def start_update(self, number: int) -> None:
        now_ns = time.monotonic_ns()
        self._book(now_ns)
        self.updates.append({})
        self._phase, self._since_ns = BOOKKEEPING, now_ns

    def enter(self, phase: str) -> None:
        now_ns = time.monotonic_ns()
        self._book(now_ns)
        self._phase, self._since_ns = phase, now_ns

    def _book(self, now_ns: int) -> None:
        if self._phase:
            update = self.updates[-1]
            update[self._phase] = update.get(self._phase, 0) + now_ns - self._since_ns

    def finish(self) -> None:
        """End the update where the next one would begin."""
        self._book(time.monotonic_ns())
        self._phase = ""

    def break_off(self) -> None:
        """End the recording: drop an unfinished update and the final waiting."""
        if self._phase == BOOKKEEPING and self.updates[-1]:
            self.finish()
        elif self._phase not in BETWEEN:
            self.updates.pop()
        self._phase = ""


class Tracer:
    """torch's profiler: each operation, phase and update is an event of the trace."""

    def __init__(self) -> None:
        import torch  # only here: without --profile this module needs no torch

        self._torch_profiler = torch.autograd.profiler
        # Not torch.profiler.profile, which wraps this: it imports torch._inductor, which takes seconds. No shapes,
        # stacks and memory: they multiply the overhead, which is 1 to 2 us per operation already.
        self._profiler = self._torch_profiler.profile(use_kineto=True, use_cpu=True)
        self._ranges: list[Any] = []
        self._profiler.__enter__()

    def start_update(self, number: int) -> None:
        self._end_ranges(0)
        self._open(f"update {number}")
        self._open(BOOKKEEPING)

    def enter(self, phase: str) -> None:
        self._end_ranges(0 if phase in BETWEEN else 1)  # the event of the update stays open around its phases
        self._open(phase)

    def save(self, file: Path) -> None:
        """Stop recording and write the Chrome trace and the operators; only once. Raises OSError."""
        self._end_ranges(0)
        self._profiler.__exit__(None, None, None)
        aside = file.with_name(f".tmp-{file.name}")
        self._profiler.export_chrome_trace(str(aside))
        aside.replace(file)
        operators = self._profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=OPERATORS)
        file.with_suffix(".operators.txt").write_text(operators, "utf-8")

    def _open(self, name: str) -> None:
        opened = self._torch_profiler.record_function(name)
        opened.__enter__()
        self._ranges.append(opened)

    def _end_ranges(self, kept: int) -> None:
        while len(self._ranges) > kept:
            self._ranges.pop().__exit__(None, None, None)


class ProfileStage(Enum):
    BEFORE = auto()
    TRACED = auto()
    SETTLING = auto()
    TIMED = auto()
    OVER = auto()


class TorchProfile(Profile):
    """Records one worker's window and writes it into `folder`. A full disk does not stop training: the trace is
    missing, and the worker's log says so."""

    def __init__(self, window: Window, folder: Path, worker: int) -> None:
        self._window = window
        self._folder = folder
        self._worker = worker
        self._stage = ProfileStage.BEFORE
        self._left = 0  # calls until the stage ends; not by `number`, which skipped batches do not increase
        self._watch: Tracer | Stopwatch | None = None

    def start_update(self, number: int) -> None:
        if self._stage is ProfileStage.OVER or (self._stage is ProfileStage.BEFORE and number < self._window.start):
            return
        if self._left == 0:
            self._go_on()
        self._left -= 1
        if self._watch is not None:
            self._watch.start_update(number)

    def enter(self, phase: str) -> None:
        if self._watch is not None:
            self._watch.enter(phase)

    def close(self) -> None:
        if isinstance(self._watch, Stopwatch):
            self._watch.break_off()
        self._keep()
        self._stage = ProfileStage.OVER

    def _go_on(self) -> None:
        """Save the records of this stage and enter the next one."""
        if isinstance(self._watch, Stopwatch):
            self._watch.finish()
        self._keep(is_complete=self._stage is ProfileStage.TIMED)
        self._stage = ProfileStage(self._stage.value + 1)
        length = self._window.stop - self._window.start
        if self._stage is ProfileStage.TRACED:
            self._write()  # note that we reached the window
            self._left, self._watch = length, Tracer()
        elif self._stage is ProfileStage.SETTLING:
            self._left = SETTLING
        elif self._stage is ProfileStage.TIMED:
            self._left, self._watch = length, Stopwatch()

    def _keep(self, *, is_complete: bool = False) -> None:
        watch, self._watch = self._watch, None
        file = self._folder / trace_name(self._worker)
        if isinstance(watch, Tracer):
            with _complaining(file):
                watch.save(file)
        elif watch is not None:
            self._write(watch.updates, is_complete)

    def _write(self, timed: Sequence[dict[str, int]] = (), is_complete: bool = False) -> None:
        record = PhaseRecord(self._worker, os.getpid(), timed, is_complete)
        file = self._folder / phases_name(self._worker)
        aside = file.with_name(f".tmp-{file.name}")
        with _complaining(file):
            aside.write_text(json.dumps(record.to_json()) + "\n", "utf-8")
            aside.replace(file)


@contextmanager
def _complaining(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        print(f"profile: {file} cannot be written: {error}", file=sys.stderr)


def make_profile(asked: tuple[Window, Path] | None, worker: int) -> Profile:
    """Make the profile of a worker. `asked`: with the output folder. A restarted worker that already has a complete
    record records nothing."""
    if asked is None or ((found := read_phases(asked[1], worker)) is not None and found.is_complete):
        return Profile()
    return TorchProfile(*asked, worker)
