"""The one thread that decides: it alone writes the store, starts processes and signals them.

    calls of HTTP ─► answer ─► ends ─► runs ─► signals ─► starts ─► late events ─► snapshot ─► sweep ─► wait
                       ▲                                                               │               (eventfd,
                       └───────────────────────────────────────────────────────────────┼───────────────  pidfds)
                                                                                       ▼
                                                           readers: `snapshot`, immutable, without a lock

The one thing to know: every step is written down before it is done, and can be done again. `starting` is booked before
the process starts, its number after; a service that was killed in between finds the process by its mark. An end is
booked once the process is dead, known by a pidfd, never by a silence."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from queue import SimpleQueue
from typing import Any, TypeVar

from hogwild import host
from hogwild.errors import ConflictError, NotFoundError, ServiceError, StorageFullError
from hogwild.host import other_jobs
from hogwild.monitoring.run_status import is_running as is_process_of
from hogwild.monitoring.run_status import read_object
from hogwild.service import attempts
from hogwild.service.attempts import Process
from hogwild.service.failpoints import reach
from hogwild.service.folders import StateFolder
from hogwild.service.schedule import Machine, decide
from hogwild.service.states import Ask, AttemptEnd, JobOrder, JobRecord, asked, end_event, overdue
from hogwild.service.store import Store
from hogwild.service.views import Row, row_of
from hogwild.storage.run_directory import STATUS

LIVE_S, IDLE_S, SWEEP_S = 0.5, 5.0, 0.2  # between two looks
UNSURE_S = 10.0  # for a record of a found process
LEAST_LETTERS = 4  # of an id
IN_USE = "run/in-use"
Answer = TypeVar("Answer")


@dataclass(slots=True)
class Watched:
    """A live process. `found_s`: when it was found, on the monotonic clock, if an earlier service had asked it to stop;
    `found`: the same in seconds since 1970."""

    process: Process
    sent: list[int] = field(default_factory=list)  # signals
    found_s: float | None = None
    found: float = 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All jobs at one moment. `rows`: id -> (version at which the row changed last, row as JSON); oldest job first."""

    version: int = 0
    rows: dict[str, tuple[int, str]] = field(default_factory=dict)


class ServiceLoop:
    """The thread. Other threads use `call`, `snapshot` and `stop` only. `on_change` is called in this thread after each
    new snapshot."""

    def __init__(self, state: StateFolder, machine: Machine, on_change: Callable[[], None]) -> None:
        self.state = state
        self.machine = machine
        self.snapshot = Snapshot()
        self._store = Store(state)
        self._on_change = on_change
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._live: dict[str, Watched] = {}
        self._sweeping: set[str] = set()
        self._waits: dict[str, str] = {}
        self._looked: dict[str, tuple[Any, dict[str, Any]]] = {}  # (identity of status.json, content)
        self._rows: dict[str, tuple[tuple[Any, ...], Row]] = {}  # (what a row was made from, row)
        self._shown: dict[str, Row] = {}  # rows of the snapshot
        self._is_stopping = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="service-loop", daemon=True)

    # ---- other threads

    def load(self) -> None:
        """Read the store and find the processes of live jobs; before `start`. Raises RunDirError, ServiceError."""
        self._store.load()
        self._recover()
        self._publish()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; jobs go on. Raises what ended it before."""
        self._is_stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._store.close()
        if self._failure is not None:
            raise self._failure

    def call(self, work: Callable[[], Answer]) -> "Future[Answer]":
        """Run `work`, one of the methods below, in the thread."""
        future: Future[Answer] = Future()

        def answer() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

        self._calls.put(answer)
        if self._failure is not None:  # nobody will take it
            future.cancel()
        os.eventfd_write(self._wake, 1)
        return future

    # ---- requests; in the thread

    def submit(self, order: JobOrder, files: dict[str, str]) -> Row:
        """Store a job. A repeated id is the same job. Raises StorageFullError; ConflictError for the id of another."""
        known = self._store.orders.get(order.id)
        if known is None:
            self._store.add(JobOrder(**{**_values(order), "number": self._store.next_number()}), files)
        elif (known.job_file, known.overrides) != (order.job_file, order.overrides):
            raise ConflictError(f"job {order.id} exists already, and is another one", code="service/other-job")
        return self._row(order.id)

    def ask(self, name: str, ask: Ask, now: bool) -> Row:
        """Cancel, pause, resume or retry. Raises NotFoundError, ConflictError."""
        job = self._job(name)
        event = asked(job, ask, now=now, at=time.time())
        if event is not None:
            self._store.book(job.id, event)  # a full disk must not keep a job from being cancelled
        return self._row(job.id)

    def delete(self, name: str) -> None:
        """Remove a job and its run. Raises NotFoundError, ConflictError, StorageFullError."""
        job = self._job(name)
        name = job.id
        if job.is_live or job.state == "queued":
            raise ConflictError(f"job {name} is {job.state}: cancel it first", code="service/wrong-state")
        if name in self._sweeping and not attempts.sweep(self._store.orders[name]):
            raise ConflictError(f"processes of job {name} are still ending; try again", code="service/wrong-state")
        self._store.remove(name)
        self._sweeping.discard(name)
        for table in (self._looked, self._rows, self._shown, self._waits):
            table.pop(name, None)

    def row(self, name: str) -> Row:
        """Return one job. Raises NotFoundError."""
        return self._row(self._job(name).id)

    def _job(self, name: str) -> JobRecord:
        """Return the job of that id, number or beginning of an id."""
        if name in self._store.unreadable:
            raise ServiceError(f"job {name} is damaged: {self._store.unreadable[name]}", code="service/damaged-job")
        orders = self._store.orders
        for fits in (
            lambda one: one == name,
            lambda one: str(orders[one].number) == name,
            lambda one: len(name) >= LEAST_LETTERS and one.startswith(name),
        ):
            if len(found := [one for one in orders if fits(one)]) == 1:
                return self._store.jobs[found[0]]
        raise NotFoundError(
            f"no job {name!r}: neither a number nor the beginning of an id (hogwild ps -a lists them)",
            code="service/no-job",
        )

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._turn()
                self._wait()
        except BaseException as error:  # told by `stop` and by health
            self._failure = error
        self._publish()

    @property
    def is_well(self) -> bool:
        return self._failure is None

    def _turn(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        while not self._calls.empty():
            self._calls.get()()
        for name in [name for name, watched in self._live.items() if watched.process.is_dead()]:
            self._book_end(name)
        for name, watched in self._live.items():
            self._look(name, watched.process)
            self._signal(name, watched)
        self._start_jobs()
        if self._store.is_behind:
            self._store.write_late()
        self._sweep()
        self._publish()

    def _wait(self) -> None:
        wait_s = SWEEP_S if self._sweeping else LIVE_S if self._live else IDLE_S
        host.wait_readable([self._wake, *(watched.process.pidfd for watched in self._live.values())], wait_s * 1000)

    def _recover(self) -> None:
        """Find the processes of live jobs again, and what ended jobs left."""
        marks = other_jobs.values_of(attempts.MARK)
        for name, job in self._store.jobs.items():
            order = self._store.orders[name]
            if job.is_live:
                process = attempts.adopt(job) or (attempts.find(order, job) if order.mark in marks else None)
                if process is not None:
                    was_told = job.state == "stopping"
                    self._take(name, Watched(process, [], time.monotonic() if was_told else None, time.time()))
            elif order.mark in marks and (process := self._process_of_run(name)) is not None:
                # The journal lost its end, by a damaged disk: the run directory's word is newer.
                event = {"event": "starting", "attempt": max(job.attempt, 1), "cores": sorted(host.affinity())}
                self._store.book(name, {**event, "at": time.time(), "boot_id": host.boot_id()})
                self._take(name, Watched(process))
            elif order.mark in marks:
                self._sweeping.add(name)
        for name, job in list(self._store.jobs.items()):
            if job.is_live and name not in self._live:
                self._book_lost(name)

    def _process_of_run(self, name: str) -> Process | None:
        record = read_object(self.state.job(name).run / STATUS)
        if not is_process_of(record):
            return None
        values = {field: record.get(field) for field in ("pid", "start_ticks", "boot_id")}
        return attempts.adopt(JobRecord(name, **values))  # type: ignore[arg-type]

    def _take(self, name: str, watched: Watched) -> None:
        """Watch a process from now on, and write its number down."""
        self._live[name] = watched
        job, process = self._store.jobs[name], watched.process
        if (job.pid, job.start_ticks) != (process.pid, process.start_ticks):
            self._store.book(name, {"event": "started", "pid": process.pid, "start_ticks": process.start_ticks})
            reach("started")

    def _book_end(self, name: str) -> None:
        job, folder = self._store.jobs[name], self.state.job(name)
        reach("before-end")
        status = self._live.pop(name).process.close()
        end = attempts.end_of(job, folder, status)
        if end.error_code == IN_USE and (other := self._process_of_run(name)) is not None:
            self._take(name, Watched(other))  # an earlier start of ours that nobody had seen holds the run
            return
        self._finish(name, end)

    def _book_lost(self, name: str) -> None:
        """Book the end of an attempt whose process is not there: it ended while no service ran, or never began."""
        job = self._store.jobs[name]
        self._finish(name, attempts.end_of(job, self.state.job(name), None))

    def _finish(self, name: str, end: AttemptEnd) -> None:
        job = self._store.jobs[name]
        self._store.book(name, end_event(job, self._store.orders[name], end, time.time()))
        self._sweeping.add(name)
        self._looked.pop(name, None)
        reach("ended")

    def _look(self, name: str, process: Process) -> None:
        job = self._store.jobs[name]
        if job.state == "starting" and attempts.is_running(self._record(name), process):
            job = self._store.book(name, {"event": "running"})
        order = self._store.orders[name]
        if order.max_duration_s is not None and (late := overdue(job, order, host.age_s(process.start_ticks))):
            self._store.book(name, late)

    def _signal(self, name: str, watched: Watched) -> None:
        """Tell a process what was asked: SIGTERM stops it with a checkpoint, a second, different signal at once."""
        job = self._store.jobs[name]
        if job.state != "stopping":
            return
        record = self._record(name)
        is_training = attempts.is_running(record, watched.process)
        if watched.found_s is not None and not watched.sent:
            # An earlier service may have sent it, and a second one would stop the job without a checkpoint: wait for
            # a record that tells.
            if is_training and record.get("state") == "stopping":
                watched.sent.append(other_jobs.TERMINATE)
            elif is_training and record["time"] <= watched.found and time.monotonic() < watched.found_s + UNSURE_S:
                return
        for number in (other_jobs.TERMINATE, other_jobs.INTERRUPT, other_jobs.KILL)[: job.urgency + 1]:
            # While it is built one signal ends it; two would end it without a word.
            if number in watched.sent or (number == other_jobs.INTERRUPT and not is_training):
                continue
            reach("before-signal")
            watched.process.send(number)
            watched.sent.append(number)
            reach("signalled")

    def _start_jobs(self) -> None:
        jobs = [job for job in self._store.jobs.values() if job.is_live or self._is_startable(job)]
        if not any(job.state == "queued" for job in jobs):
            self._waits = {}
            return
        turn = decide(jobs, self._store.orders, replace(self.machine, memory_bytes=self._free_bytes()))
        self._waits = dict(turn.waits)
        for name in turn.passed:
            self._store.book(name, {"event": "passed"})
        for name, share in turn.starts.items():
            job = self._store.jobs[name]
            event = {"event": "starting", "attempt": job.attempt + 1, **asdict(share)}
            try:
                job = self._store.book(name, {**event, "at": time.time(), "boot_id": host.boot_id()}, must=True)
            except StorageFullError as error:
                self._waits[name] = f"cannot start: {error}"
                continue
            try:
                process = attempts.start(self._store.orders[name], job, self.state.job(name))
            except OSError as error:
                words = f"cannot be started: {error.strerror}: {error.filename}"
                self._finish(name, AttemptEnd("failed", words, words, "service/not-started", 1))
                continue
            self._take(name, Watched(process))

    def _free_bytes(self) -> float:
        """Return the free memory, less what live jobs have reserved and do not use yet."""
        reserved = 0
        for name in self._live:
            used = self._record(name).get("pss_bytes")
            reserved += max(0, self._store.orders[name].memory - (used if isinstance(used, int) else 0))
        return host.available_memory().bytes - reserved

    def _is_startable(self, job: JobRecord) -> bool:
        return job.state == "queued" and job.id not in self._sweeping

    def _sweep(self) -> None:
        """Kill what ended jobs have left, until nothing is found."""
        for name in list(self._sweeping):
            if attempts.sweep(self._store.orders[name]):
                self._sweeping.discard(name)

    # ---- what readers see

    def _record(self, name: str) -> dict[str, Any]:
        """Return the run's status.json, read again only if it was replaced."""
        file = self.state.job(name).run / STATUS
        try:
            found = file.stat()
            identity = (found.st_ino, found.st_mtime_ns, found.st_size)
        except OSError:
            identity = None
        before = self._looked.get(name)
        if before is None or before[0] != identity:
            self._looked[name] = before = (identity, read_object(file) if identity else {})
        return before[1]

    def _row(self, name: str) -> Row:
        job = self._store.jobs[name]
        # A run that no process writes does not change: its file is looked at once.
        record = self._record(name) if job.is_live or name not in self._looked else self._looked[name][1]
        made_from = (job, id(record), self._waits.get(name))
        known = self._rows.get(name)
        if known is None or known[0] != made_from:
            row = row_of(job, self._store.orders[name], self.state.job(name), record, self._waits.get(name))
            self._rows[name] = known = (made_from, row)
        return known[1]

    def _publish(self) -> None:
        """Make a new snapshot if anything changed."""
        before, version = self.snapshot.rows, self.snapshot.version + 1
        rows = {}
        for name in self._store.jobs:
            row = self._row(name)
            known = before.get(name)
            if known is not None and self._shown.get(name) is row:
                rows[name] = known
                continue
            text = json.dumps(row, separators=(",", ":"))
            self._shown[name] = row
            rows[name] = known if known is not None and known[1] == text else (version, text)
        if rows != before:
            self.snapshot = Snapshot(version, rows)
            self._on_change()


def _values(order: JobOrder) -> dict[str, Any]:
    return {name: getattr(order, name) for name in JobOrder.__slots__}
