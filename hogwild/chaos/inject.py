"""Injection of faults into a job: it is started as a user would, watched by its run directory, signalled by pidfd, and
resumed after every end that a fault caused.

    start ── look, hit, look, hit ── supervisor killed or asked to stop ── nobody left? ── --resume ── … ── its own end

The job runs in its own session, so that only we get a Ctrl-C from the terminal, and it does not outlive us. A pidfd of
every worker and loader is opened as soon as its number is known from the run's files, after checking that the
supervisor is its parent, so that no signal can hit another process."""

import json
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
from hogwild.errors import RunError
from hogwild.host import other_jobs
from hogwild.host.processes import own_command, wait_or_kill
from hogwild.storage.run_files import read_json

EVENTS, STATUS, SUMMARY = "events.jsonl", "status.json", "summary.json"
PREFIX = {"worker": "", "loader": "loader-"}  # role -> beginning of the names of its events
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


# ---- a running job as another program sees it, through its run directory --------------------------------------------


def events_of(run_dir: Path, offset: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the complete lines of events.jsonl from the byte `offset` on, each with the offset after it. An incomplete
    last line, which a killed supervisor may leave and the next one cuts off, is skipped."""
    try:
        with open(run_dir / EVENTS, "rb") as file:
            file.seek(offset)
            content = file.read()
    except FileNotFoundError:
        return
    for line in content.splitlines(keepends=True):
        if line.endswith(b"\n"):
            offset += len(line)
            yield offset, json.loads(line)


@dataclass(slots=True)
class Target:
    """A live process of the job. Times are on the monotonic clock: `began_s` and `trains_since_s` are when its start
    and its first commit (a loader's first batch) were seen, `stopped_until_s` is when it continues. `is_doomed`: it got
    a deadly signal."""

    worker: int
    incarnation: int
    pid: int
    pidfd: int
    began_s: float
    trains_since_s: float | None = None
    is_doomed: bool = False
    stopped_until_s: float = 0.0

    @property
    def has_trained(self) -> bool:
        return self.trains_since_s is not None

    def send(self, number: int) -> bool:
        """Send a signal; return False if the process was gone already."""
        return self.pidfd >= 0 and host.kill_by_pidfd(self.pidfd, number)

    def close(self) -> None:
        """Close the pidfd of a dead process: its number may be reused from now on."""
        os.close(self.pidfd)
        self.pidfd = -1


class Watch:
    """One attempt of a job, whose supervisor is `pid`. Records before its start, from the byte `offset` on, belong to
    another attempt. Call `look` often. A context manager, which closes the pidfds."""

    def __init__(self, run_dir: Path, pid: int, offset: int = 0) -> None:
        self.run_dir, self.pid, self.offset = run_dir, pid, offset
        self.of: dict[str, dict[int, Target]] = {role: {} for role in PREFIX}
        self.targets = self.of["worker"]
        self.exits: list[dict[str, Any]] = []  # the exit events so far
        self.has_started = False
        self.fruitless: dict[int, int] = {}  # worker -> its consecutive starts that ended before it trained

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        for role, targets in self.of.items():
            for number in list(targets):
                self._drop(role, number)

    @property
    def is_training(self) -> bool:
        return bool(self.training())

    def training(self) -> list[Target]:
        """Return the workers that have committed something, by number."""
        return [self.targets[worker] for worker in sorted(self.targets) if self.targets[worker].has_trained]

    def look(self) -> None:
        """Read the events written since the last call, and the states of processes that have not trained yet."""
        for offset, event in events_of(self.run_dir, self.offset):
            self.offset = offset
            if event["event"] == "start":
                self.has_started = event.get("pid") == self.pid
                continue
            for role, prefix in PREFIX.items() if self.has_started else ():
                if event["event"] == f"{prefix}spawn":
                    self._record(role, event)
                elif event["event"] == f"{prefix}exit":
                    self._drop(role, event[role])
                    self.exits += [event] if role == "worker" else []
        if all(target.has_trained for targets in self.of.values() for target in targets.values()):
            return
        status = read_json(self.run_dir, STATUS)
        for role, targets in self.of.items():
            for row in status.get(f"{role}s", ()):
                found = targets.get(row[role])
                if found is not None and found.pid == row["pid"] and row["state"] == "training":
                    found.trains_since_s = found.trains_since_s or time.monotonic()

    def fit(self, role: str, place: int, *, early: bool) -> Target | None:
        """Return the process of a role that may be hit: it trains or, with `early`, it is in the first start since this
        worker last trained. Starts that fail in a row would end the job by its own rules. `place`: among the existing
        loaders, of which there are often fewer than planned (one reads data that cannot be divided); a worker's
        number."""
        there = self.of[role]
        number = place if role == "worker" or not there else sorted(there)[place % len(there)]
        target = there.get(number)
        if target is None or target.is_doomed:
            return None
        return target if target.has_trained or (early and not self.fruitless.get(number)) else None

    def strike_server(self, number: int) -> None:
        """Send a signal to the fork server, if there is one. A stopped one ends with the job, or at the next start."""
        server = read_json(self.run_dir, STATUS).get("server")
        pidfd = other_jobs.open_child(server["pid"], self.pid) if server else None
        if pidfd is not None:
            host.kill_by_pidfd(pidfd, number)
            os.close(pidfd)

    def _record(self, role: str, event: dict[str, Any]) -> None:
        number, pid = event[role], event["pid"]
        self._drop(role, number)
        pidfd = other_jobs.open_child(pid, self.pid)
        if pidfd is not None:
            self.of[role][number] = Target(number, event["incarnation"], pid, pidfd, time.monotonic())
        elif role == "worker":  # it died before we looked; its exit event comes next
            self.fruitless[number] = self.fruitless.get(number, 0) + 1

    def _drop(self, role: str, number: int) -> None:
        if (target := self.of[role].pop(number, None)) is None:
            return
        target.close()
        if role == "worker":
            self.fruitless[number] = 0 if target.has_trained else self.fruitless.get(number, 0) + 1


# ---- the injection --------------------------------------------------------------------------------------------------


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
class FaultRun:
    """One job under faults. `arguments`: of its command; `environment`: its own, with `mark` (NAME=VALUE), which
    identifies all its processes. Its output goes to the file `words`. `grace_s`: seconds it has to stop in order.
    `pending` faults become `hits`, one `attempts` entry per start; `interrupted`: the signal that ended us."""

    arguments: Sequence[str]
    run_dir: Path
    environment: dict[str, str]
    mark: str
    words: Path
    grace_s: float
    say: Callable[[str], None]
    pending: list[Fault]
    hits: list[Hit] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    interrupted: int = 0
    _began_s: float | None = None
    _stopped: list[tuple[float, int]] = field(default_factory=list)  # (when it continues, a pidfd of ours)

    def run(self) -> None:
        """Run until the job has ended by itself, even if not all faults were injected. Fills the records, also if a
        signal ends us; the job is gone then, too."""
        arguments, offset = list(self.arguments), 0
        while not self.attempts or self.attempts[-1].is_to_be_resumed:
            offset = self._attempt(arguments, offset)
            arguments = ["train", "--resume", str(self.run_dir), "--no-progress", "--json"]

    def said(self) -> str:
        """Return the last output of the job on stdout and stderr."""
        return self.words.read_text(errors="replace")[-LAST_WORDS:].strip() if self.words.exists() else ""

    def _attempt(self, arguments: Sequence[str], offset: int) -> int:
        """Run one attempt; return how far the run's events were read."""
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
        with process, Watch(self.run_dir, process.pid, offset) as watch:
            attempt = Attempt(len(self.attempts) + 1, process.pid, time.time())
            self.attempts.append(attempt)
            # Not reaped yet, so the number is still its own, alive or dead.
            supervisor = Target(0, 0, process.pid, host.pidfd_open(process.pid), time.monotonic())
            try:
                while process.poll() is None:
                    host.wait_readable([supervisor.pidfd], LOOK_MS)
                    watch.look()
                    self._turn(time.monotonic(), watch, supervisor, attempt)
            except BaseException:
                if schedule.SUPERVISOR_TERMINATE not in attempt.asked:  # a second SIGTERM would mean: stop at once
                    process.terminate()  # the job writes a checkpoint, ends its workers and exits
                supervisor.send(other_jobs.GO_ON)  # we may have just stopped it
                self._go_on(float("inf"))
                raise
            finally:
                try:
                    wait_or_kill(process, self.grace_s)
                finally:
                    attempt.ended, attempt.status = time.time(), process.returncode
                    _, attempt.left = other_jobs.wait_until_gone(partial(other_jobs.marked, self.mark), ORPHANS_S)
                self._go_on(float("inf"))  # dead ones do not matter
                supervisor.close()
        return watch.offset

    def _turn(self, now: float, watch: Watch, supervisor: Target, attempt: Attempt) -> None:
        """Inject each due fault whose target can be hit."""
        if self._began_s is None and (watch.targets or watch.fruitless):
            self._began_s = now
        self._go_on(now)
        if self._began_s is None:
            return
        for fault in [fault for fault in self.pending if fault.at_s <= now - self._began_s]:
            target: Target | None = supervisor
            if fault.role != schedule.SUPERVISOR:
                target = watch.fit(fault.role, fault.number, early=fault.early)
            elif not (watch.has_started and watch.is_training):
                continue  # do not interrupt a resume before it trains: it would never get anywhere
            elif attempt.asked and fault.kind != schedule.SUPERVISOR_KILL:
                continue  # a second SIGTERM means: stop at once
            if target is None or (fault.lasts_s and target.stopped_until_s > now):
                continue  # the first stop's SIGCONT would end a second one
            if fault.kind in schedule.OF_SERVER:
                watch.strike_server(other_jobs.KILL if fault.kind == schedule.SERVER_KILL else other_jobs.STOP)
            if not target.send(SIGNALS[fault.kind]):
                continue
            self.pending.remove(fault)
            self._note(fault, now - self._began_s, target, attempt)
            if fault.role == schedule.SUPERVISOR:
                return  # the next turn decides whether anything is left to hit

    def _note(self, fault: Fault, since_s: float, target: Target, attempt: Attempt) -> None:
        hit = Hit(fault, time.time(), round(since_s, 3), attempt.number, target.pid, target.incarnation)
        self.hits.append(hit)
        if fault.kind in (schedule.SUPERVISOR_KILL, schedule.SUPERVISOR_TERMINATE):
            attempt.asked.append(fault.kind)
        if fault.lasts_s:
            target.stopped_until_s = time.monotonic() + fault.lasts_s
            self._stopped.append((target.stopped_until_s, os.dup(target.pidfd)))
        target.is_doomed = fault.kind in schedule.DEADLY
        self.say(f"{hit.since_s:8.1f} s  {fault} (pid {target.pid})")

    def _go_on(self, now: float) -> None:
        for entry in [entry for entry in self._stopped if entry[0] <= now]:
            host.kill_by_pidfd(entry[1], other_jobs.GO_ON)
            self._stopped.remove(entry)  # before its pidfd is closed: a signal to us may come between any two lines
            os.close(entry[1])
