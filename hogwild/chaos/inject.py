"""Injection of faults into a job: it is started as a user would, watched by its run directory, signalled by pidfd, and
resumed after every end that a fault caused.

    start ── look, hit, look, hit ── supervisor killed or asked to stop ── nobody left? ── --resume ── … ── its own end

The job runs in its own session, so that only we get a Ctrl-C from the terminal, and it does not outlive us. A process
is signalled only after checking that the supervisor is its parent."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from hogwild import host
from hogwild.chaos import schedule
from hogwild.chaos.schedule import Fault
from hogwild.chaos.watch import Target, Watch
from hogwild.errors import RunError
from hogwild.host import other_jobs
from hogwild.host.own_command import own_command, wait_or_kill

LOOK_MS = 20.0  # interval between two reads of the run's records; the supervisor's end is seen at once
ORPHANS_S = 2.0  # after a supervisor's end, no process of its job may live longer than this
STOPPED = 75  # exit status of a job that can be resumed
LAST_WORDS = 4000  # characters of the job's output that an error quotes

SIGNALS = {
    **dict.fromkeys(
        (schedule.KILL, schedule.LOADER_KILL, schedule.SUPERVISOR_KILL, *schedule.OF_SERVER), other_jobs.KILL
    ),
    **dict.fromkeys(schedule.LASTING, other_jobs.STOP),
    **dict.fromkeys((schedule.TERMINATE, schedule.SUPERVISOR_TERMINATE), other_jobs.TERMINATE),
    schedule.INTERRUPT: other_jobs.INTERRUPT,
}


@dataclass(frozen=True, slots=True)
class Hit:
    """One injected fault. `time` is wall-clock time, as in the run's records; `since_s` counts as in the schedule.
    `attempt` counts from 1; `incarnation` is 0 for a supervisor."""

    fault: Fault
    time: float
    since_s: float
    attempt: int
    pid: int
    incarnation: int


@dataclass(slots=True)
class Attempt:
    """One process of the job's supervisor. `asked`: our faults that were meant to end it. `left`: processes of the job
    that lived ORPHANS_S longer than it."""

    number: int
    pid: int
    began: float
    ended: float = 0.0
    status: int | None = None
    asked: list[str] = field(default_factory=list)
    left: dict[int, str] = field(default_factory=dict)

    @property
    def is_to_be_resumed(self) -> bool:
        return bool(self.asked) and self.status in (STOPPED, -other_jobs.KILL)


@dataclass(slots=True)
class FaultRecord:
    """All injected faults and all attempts. `interrupted`: the signal that ended us."""

    hits: list[Hit] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    interrupted: int = 0


@dataclass(frozen=True, slots=True)
class FaultRun:
    """One job under faults. `arguments`: of its command; `environment`: its own, with `mark` (NAME=VALUE), which
    identifies all its processes. Its output goes to the file `words`. `grace_s`: seconds it has to stop in order."""

    arguments: Sequence[str]
    run_dir: Path
    environment: dict[str, str]
    mark: str
    words: Path
    grace_s: float
    say: Callable[[str], None]

    def run(self, faults: Sequence[Fault], record: FaultRecord) -> None:
        """Run until the job has ended by itself, even if not all faults were injected. Fills `record`, also if a signal
        ends us; the job is gone then, too."""
        hits = _Hits(list(faults), record, self.say)
        arguments, offset = list(self.arguments), 0
        while True:
            offset = self._attempt(arguments, offset, hits)
            if not record.attempts[-1].is_to_be_resumed:
                return
            arguments = ["train", "--resume", str(self.run_dir), "--no-progress", "--json"]

    def said(self) -> str:
        """Return the last output of the job on stdout and stderr."""
        return self.words.read_text(errors="replace")[-LAST_WORDS:].strip() if self.words.exists() else ""

    def _attempt(self, arguments: Sequence[str], offset: int, hits: "_Hits") -> int:
        """Run one attempt; return how far the run's events were read."""
        with self._started(arguments) as process:
            attempt = Attempt(len(hits.record.attempts) + 1, process.pid, time.time())
            hits.record.attempts.append(attempt)
            # not reaped yet, so the number is still its own, alive or dead
            supervisor = Target(0, 0, process.pid, host.pidfd_open(process.pid), time.monotonic())
            with Watch(self.run_dir, process.pid, offset) as watch:
                try:
                    while process.poll() is None:
                        host.wait_readable([supervisor.pidfd], LOOK_MS)
                        watch.look()
                        hits.turn(time.monotonic(), watch, supervisor, attempt)
                except BaseException:
                    if schedule.SUPERVISOR_TERMINATE not in attempt.asked:  # a second SIGTERM would mean: stop at once
                        process.terminate()  # the job writes a checkpoint, ends its workers and exits
                    supervisor.send(other_jobs.GO_ON)  # we may have just stopped it
                    hits.let_go_on()
                    raise
                finally:
                    self._end(process, attempt)
                    hits.let_go_on()
                    supervisor.close()
        return watch.offset

    @contextlib.contextmanager
    def _started(self, arguments: Sequence[str]) -> Iterator["subprocess.Popen[Any]"]:
        with open(self.words, "ab") as words:
            try:
                process = subprocess.Popen(
                    own_command(arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=words,
                    stderr=words,
                    env=self.environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise RunError(f"cannot start the job: {error}", code="run/cannot-start") from error
        with process:
            yield process

    def _end(self, process: "subprocess.Popen[Any]", attempt: Attempt) -> None:
        try:
            wait_or_kill(process, self.grace_s)
        finally:
            attempt.ended, attempt.status = time.time(), process.returncode
            _, attempt.left = other_jobs.wait_until_gone(partial(other_jobs.marked, self.mark), ORPHANS_S)


class _Hits:
    """The pending faults, and the processes that are stopped and must continue."""

    def __init__(self, faults: list[Fault], record: FaultRecord, say: Callable[[str], None]) -> None:
        self.record = record
        self._pending, self._say = faults, say
        self._began_s: float | None = None
        self._stopped: list[tuple[float, int]] = []  # (when it continues, a pidfd of ours)

    def turn(self, now: float, watch: Watch, supervisor: Target, attempt: Attempt) -> None:
        """Inject each due fault whose target can be hit."""
        if self._began_s is None and watch.has_spawned:
            self._began_s = now
        self._go_on(now)
        if self._began_s is None:
            return
        for fault in [fault for fault in self._pending if fault.at_s <= now - self._began_s]:
            target = self._target(fault, watch, supervisor, attempt)
            if target is None or (fault.lasts_s and target.stopped_until_s > now):
                continue  # the first stop's SIGCONT would end a second one
            if fault.kind in schedule.OF_SERVER:
                watch.strike_server(other_jobs.KILL if fault.kind == schedule.SERVER_KILL else other_jobs.STOP)
            if not target.send(SIGNALS[fault.kind]):
                continue
            self._pending.remove(fault)
            self._note(fault, now, target, attempt)
            if fault.role == schedule.SUPERVISOR:
                return  # the next turn decides whether anything is left to hit

    def let_go_on(self) -> None:
        """Continue every stopped process; dead ones do not matter."""
        self._go_on(float("inf"))

    def _target(self, fault: Fault, watch: Watch, supervisor: Target, attempt: Attempt) -> Target | None:
        if fault.role != schedule.SUPERVISOR:
            return watch.fit(fault.role, fault.number, early=fault.early)
        if not (watch.has_started and watch.is_training):
            return None  # do not interrupt a resume before it trains: it would never get anywhere
        if attempt.asked and fault.kind != schedule.SUPERVISOR_KILL:
            return None  # a second SIGTERM means: stop at once
        return supervisor

    def _note(self, fault: Fault, now: float, target: Target, attempt: Attempt) -> None:
        assert self._began_s is not None
        hit = Hit(fault, time.time(), round(now - self._began_s, 3), attempt.number, target.pid, target.incarnation)
        self.record.hits.append(hit)
        if fault.kind in (schedule.SUPERVISOR_KILL, schedule.SUPERVISOR_TERMINATE):
            attempt.asked.append(fault.kind)
        if fault.lasts_s:
            target.stopped_until_s = now + fault.lasts_s
            self._stopped.append((target.stopped_until_s, os.dup(target.pidfd)))
        target.is_doomed = fault.kind in schedule.DEADLY
        self._say(f"{hit.since_s:8.1f} s  {fault} (pid {target.pid})")

    def _go_on(self, now: float) -> None:
        for entry in [entry for entry in self._stopped if entry[0] <= now]:
            host.kill_by_pidfd(entry[1], other_jobs.GO_ON)
            self._stopped.remove(entry)  # before its pidfd is closed: a signal to us may come between any two lines
            os.close(entry[1])
