"""The one thread that decides: it alone writes the store, starts processes and signals them.

    calls of HTTP ─► answer ─► ends ─► runs, signals, moves ─► sweep ─► starts ─► late events ─► snapshot ─► wait
                       ▲                                                                           │    (eventfd,
                       └───────────────────────────────────────────────────────────────────────────┼────  pidfds)
                                                                                                   ▼
                                                              readers: `snapshot`, immutable, without a lock

The one thing to know: every step is written down before it is done, and can be done again. `starting` is booked before
the process starts, its number after; a service that was killed in between finds the process by its mark. An end is
booked once the process is dead, known by a pidfd, never by a silence."""

import contextlib
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from hogwild import host
from hogwild.errors import ConflictError, NotFoundError, ServiceError, StorageFullError
from hogwild.host import other_jobs
from hogwild.monitoring.run_status import is_running as is_process_of
from hogwild.service import attempts
from hogwild.service.attempts import JobForker, JobProcess
from hogwild.service.failpoints import reach
from hogwild.service.folders import MARK, StateFolder
from hogwild.service.moves import Moves
from hogwild.service.rows import JobRows, Row, Snapshot
from hogwild.service.schedule import Machine, decide
from hogwild.service.states import Ask, AttemptEnd, JobOrder, JobRecord, asked, end_event, overdue
from hogwild.service.store import Store
from hogwild.storage.run_directory import LOCK
from hogwild.storage.run_files import read_json, status_file

LIVE_S, IDLE_S, SWEEP_S, MOVE_S = 0.5, 5.0, 0.2, 0.05  # between two looks
UNSURE_S = 600.0  # at most, for a record of a found process
TRAINING = ("running", "stopping")  # of status.json
LEAST_LETTERS = 4  # of an id
IN_USE = "run/in-use"
Answer = TypeVar("Answer")


class ServiceLoop:
    """The thread. Other threads use `call`, `write_aside`, `return_number`, `snapshot` and `stop` only. In this
    thread, `on_change` is called after each new snapshot, `on_failure` if an error ends it."""

    def __init__(
        self,
        state: StateFolder,
        machine: Machine,
        on_change: Callable[[], None],
        on_failure: Callable[[], None],
        server: JobForker | None = None,
    ) -> None:
        self.state = state
        self.machine = machine
        self._home = state.identity()
        self._store = Store(state)
        self._on_change = on_change
        self._on_failure = on_failure
        self._server = server
        self._calls: SimpleQueue[Callable[[BaseException | None], None]] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._live: dict[str, JobProcess] = {}
        self._unsure: dict[str, tuple[Any, float]] = {}  # id -> (time of its record, until when), see `_signal`
        self._aside: dict[str, tuple[JobProcess, JobRecord]] = {}  # set aside while their process runs
        self._sweeping: set[str] = set()
        self._not_before_s: dict[str, float] = {}  # of queued jobs that could not be started for now
        self._waits: dict[str, str] = {}
        self._moves = Moves(state, self._store, machine)
        self._rows = JobRows(state, self._store)
        self._is_stopping = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="service-loop", daemon=True)

    # ---- other threads

    def load(self) -> None:
        """Read the store and find the processes of live jobs; before `start`. Raises RunDirError."""
        self._store.load()
        self._recover()
        self._publish()
        for name, why in self._store.unreadable.items():
            print(f"warning: job {name} is damaged and left alone: {why}", file=sys.stderr, flush=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; jobs go on. Raises what ended it before."""
        self._is_stopping = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        if self._server is not None:
            self._server.close()
        self._store.close()
        if self._failure is not None:
            raise self._failure

    @property
    def snapshot(self) -> Snapshot:
        """Return all jobs as they were at the end of the last turn."""
        return self._rows.snapshot

    @property
    def is_well(self) -> bool:
        return self._failure is None

    def call(self, work: Callable[[], Answer]) -> "Future[Answer]":
        """Run `work`, one of the methods below, in the thread."""
        future: Future[Answer] = Future()

        def answer(failure: BaseException | None) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if failure is not None:
                    raise ServiceError(f"the service fails: {failure!r}", code="service/unreachable")
                done = work()
                self._publish()  # whoever asks next sees it
                future.set_result(done)
            except Exception as error:
                future.set_exception(error)

        self._calls.put(answer)
        os.eventfd_write(self._wake, 1)
        if self._failure is not None:  # perhaps nobody takes it any more
            self._answer_calls()
        return future

    def write_aside(self, order: JobOrder, files: Mapping[str, bytes]) -> tuple[JobOrder, Path]:
        """Number a new job and write it to a folder aside, for `submit`. May take long. Raises StorageFullError."""
        numbered = replace(order, number=self.call(self._store.next_number).result())
        try:
            return numbered, self._store.write_aside(files, numbered)
        except StorageFullError:
            self.return_number(numbered)
            raise

    def return_number(self, order: JobOrder) -> None:
        """Take back the number of a job that is not submitted after all."""
        self.call(lambda: self._store.return_number(order)).result()

    def _answer_calls(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._calls.get_nowait()(self._failure)

    # ---- requests; in the thread

    def submit(self, order: JobOrder, aside: Path) -> Row:
        """Store a new job, whose files are in `aside`. A repeated request is the same job. Raises StorageFullError;
        ConflictError for the id of another."""
        if order.id not in self._store.orders and order.id not in self._store.unreadable:
            self._store.add(order, aside)
        else:
            shutil.rmtree(aside, ignore_errors=True)
            self._store.return_number(order)
            before = self._store.orders.get(order.id)
            if before is None or before.digest != order.digest:
                raise ConflictError(f"job {order.id} exists already, and is another one", code="service/other-job")
        return self._row(order.id)

    def ask(self, name: str, ask: Ask, now: bool, code: Mapping[str, bytes] | None = None) -> Row:
        """Cancel, pause, resume or retry. `code`: a retry's new files. Raises NotFoundError, ConflictError; of new code
        StorageFullError."""
        job = self._job(name)
        number = self._store.orders[job.id].number
        event = asked(job, ask, now=now, at=time.time(), number=number)
        if code is not None:
            if event is None and job.state != "queued":
                words = f"job {number} is {job.state}: cancel or pause it, then retry it with new code"
                raise ConflictError(words, code="service/wrong-state")
            self._store.replace_code(job.id, code)
            event = {"event": "queued", "code_at": time.time()}
        if event is not None:
            self._store.book(job.id, event)  # a full disk must not keep a job from being cancelled
        return self._row(job.id)

    def delete(self, name: str) -> None:
        """Remove a job and its run. Raises NotFoundError, ConflictError, StorageFullError."""
        job = self._job(name)
        name, number = job.id, self._store.orders[job.id].number
        if job.is_live or job.state == "queued":
            raise ConflictError(f"job {number} is {job.state}: cancel it first", code="service/wrong-state")
        if host.is_locked(self.state.job(name).run / LOCK):
            raise ConflictError(
                f"another process trains the run of job {number}: wait for its end", code="service/wrong-state"
            )
        if not attempts.sweep(self._entry(name)):
            raise ConflictError(f"processes of job {number} are still ending; try again", code="service/wrong-state")
        self._store.remove(name)
        self._sweeping.discard(name)
        self._rows.forget(name)
        self._waits.pop(name, None)

    def row(self, name: str) -> Row:
        """Return one job. Raises NotFoundError."""
        return self._row(self._job(name).id)

    def order(self, name: str) -> JobOrder:
        """Return the order of one job. Raises NotFoundError."""
        return self._store.orders[self._job(name).id]

    def _row(self, name: str) -> Row:
        return self._rows.row(name, self._waits.get(name))

    def _publish(self) -> None:
        if self._rows.publish(self._waits):
            self._on_change()

    def _entry(self, name: str) -> str:
        return attempts.entry_of(self._store.orders[name], self._home)

    def _job(self, name: str) -> JobRecord:
        """Return the job of that id, number or beginning of an id."""
        if name in self._store.unreadable:
            raise ConflictError(f"job {name} is damaged: {self._store.unreadable[name]}", code="service/damaged-job")
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
        except BaseException as error:  # told by `stop`, by health, and by every call
            self._failure = error
            self._answer_calls()
            self._on_failure()

    def _turn(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        self._answer_calls()
        for name in [name for name, process in self._live.items() if process.is_dead()]:
            with self._alone(name):
                reach("before-end")
                self._end(name, self._live.pop(name).close())
        for name, process in list(self._live.items()):
            with self._alone(name):
                self._look(name, process)
                self._signal(name, process)
                self._moves.look(name, process, self._rows.record(name))
        for name in list(self._sweeping):  # kill what ended jobs have left, until nothing is found
            if attempts.sweep(self._entry(name)):
                self._sweeping.discard(name)
        self._start_jobs()
        if self._store.is_behind:
            self._store.write_late()
        self._publish()

    def _wait(self) -> None:
        wait_s = SWEEP_S if self._sweeping else LIVE_S if self._live else IDLE_S
        wait_s = min(wait_s, MOVE_S) if any(self._store.jobs[name].move for name in self._live) else wait_s
        ends = [process.pidfd for process in self._live.values()]
        starts = [] if self._server is None else self._server.descriptors()
        host.wait_readable([self._wake, *ends, *starts], wait_s * 1000)

    def _recover(self) -> None:
        """Find the processes of live jobs again, and what ended jobs left."""
        marks = other_jobs.values_of(MARK)
        for name, job in list(self._store.jobs.items()):
            with self._alone(name):
                self._recover_job(name, job, is_marked=self._entry(name).partition("=")[2] in marks)
        known = {self._entry(name).partition("=")[2] for name in self._store.orders}
        for mark in marks - known:
            if not mark.endswith(f"@{self._home}"):
                continue
            entry = f"{MARK}={mark}"  # of a job whose files are damaged: nobody gets its cores while its process runs
            for pid in other_jobs.marked(entry):
                named = JobRecord(entry, pid=pid, start_ticks=host.start_ticks(pid), boot_id=host.boot_id())
                if other_jobs.leads_session(pid) and (process := attempts.adopt(named, entry)) is not None:
                    self._aside[f"{entry} {pid}"] = process, replace(named, cores=tuple(sorted(process.cores())))

    def _recover_job(self, name: str, job: JobRecord, *, is_marked: bool) -> None:
        entry, folder = self._entry(name), self.state.job(name)
        if job.is_live:
            process = attempts.adopt(job, entry)
            if process is None and job.pid is None and is_marked:
                process = attempts.find(job, folder, entry)
            if process is not None:
                if job.state == "stopping":
                    record = self._rows.record(name)
                    seen = record.get("time") if attempts.is_of(record, process) else None
                    self._unsure[name] = seen, time.monotonic() + UNSURE_S
                self._take(name, process)
                self._moves.find(name)
            else:  # it ended while no service ran, or never began
                self._end(name, None)
        elif is_marked and (process := self._process_of_run(name)) is not None:
            # The journal lost its end, by a damaged disk: the run directory's word is newer.
            event = {"event": "starting", "attempt": max(job.attempt, 1), "cores": sorted(host.affinity())}
            self._store.book(name, {**event, "at": time.time(), "boot_id": host.boot_id()})
            self._take(name, process)
        elif is_marked:
            self._sweeping.add(name)

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Set a job aside whose files bring us into an error that nobody foresaw: the other jobs go on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            if (process := self._live.pop(name, None)) is not None and name in self._store.jobs:
                self._aside[name] = process, self._store.jobs[name]
            self._store.set_aside(name, f"the service failed at it: {error!r}; see its output")
            self._sweeping.discard(name)

    def _process_of_run(self, name: str) -> JobProcess | None:
        """Return the process that trains the job's run, if it is one of ours."""
        run = self.state.job(name).run
        record = read_json(run, status_file(run).name)
        if not is_process_of(record):
            return None
        values = {field: record.get(field) for field in ("pid", "start_ticks", "boot_id")}
        return attempts.adopt(JobRecord(name, **values), self._entry(name))  # type: ignore[arg-type]

    def _take(self, name: str, process: JobProcess, why: str = "") -> None:
        """Watch a process from now on, and write its number down, and why it is a fresh interpreter."""
        self._live[name] = process
        job = self._store.jobs[name]
        if (job.pid, job.start_ticks) != (process.pid, process.start_ticks):
            fresh = {"fresh_interpreter": why} if why else {}
            started = {"event": "started", "pid": process.pid, "start_ticks": process.start_ticks}
            self._store.book(name, started | fresh)
            reach("started")

    def _end(self, name: str, status: int | None) -> None:
        job, folder = self._store.jobs[name], self.state.job(name)
        end = attempts.end_of(job, folder, status)
        if end.error_code == IN_USE:
            # An earlier start of ours that nobody had seen holds the run; or somebody else trains it, by hand.
            other = self._process_of_run(name) or attempts.find(job, folder, self._entry(name))
            if other is not None:
                self._take(name, other)
                return
            end = replace(end, state="stopped", reason=f"{end.reason}; resume it when that has ended")
        self._finish(name, end)

    def _finish(self, name: str, end: AttemptEnd) -> None:
        job = self._store.jobs[name]
        self._moves.end(name)
        self._unsure.pop(name, None)
        self._store.book(name, end_event(job, self._store.orders[name], end, time.time()))
        self._sweeping.add(name)
        self._rows.look_again(name)
        reach("ended")

    def _look(self, name: str, process: JobProcess) -> None:
        job, record = self._store.jobs[name], self._rows.record(name)
        if job.state == "starting" and attempts.is_of(record, process) and record.get("state") in TRAINING:
            job = self._store.book(name, {"event": "running"})
        order = self._store.orders[name]
        if order.max_duration_s is not None and (late := overdue(job, order, host.age_s(process.start_ticks))):
            self._store.book(name, late)

    def _signal(self, name: str, process: JobProcess) -> None:
        """Tell a process what was asked: SIGTERM stops it with a checkpoint, a second, different signal at once. Each
        is sent once: a second SIGTERM would end the job without its checkpoint."""
        job = self._store.jobs[name]
        if job.state != "stopping":
            return
        record = self._rows.record(name) if attempts.is_of(self._rows.record(name), process) else {}
        state = record.get("state")
        if not job.signals and job.urgency == 0:
            if state == "stopping":  # an earlier service sent it, or somebody else did
                self._store.book(name, {"event": "signalled", "number": other_jobs.TERMINATE})
                return
            # An earlier service was perhaps killed while it sent it. A record that is newer than the one that was there
            # when the process was found tells; a stopped process keeps one SIGTERM, however many are sent.
            seen, until = self._unsure.get(name, (None, 0.0))
            if record.get("time") == seen and time.monotonic() < until and not host.is_stopped(process.pid):
                return
        for number in (other_jobs.TERMINATE, other_jobs.INTERRUPT, other_jobs.KILL)[: job.urgency + 1]:
            # While it is built one signal ends it; two would end it without a word.
            if number in job.signals or (number == other_jobs.INTERRUPT and state not in TRAINING):
                continue
            reach("before-signal")
            process.send(number)
            job = self._store.book(name, {"event": "signalled", "number": int(number)})
            reach("signalled")

    def _start_jobs(self) -> None:
        jobs = [job for job in self._store.jobs.values() if job.is_live or self._is_startable(job)]
        self._waits = {name: why for name, why in self._waits.items() if name in self._not_before_s}
        if not any(job.state == "queued" or self._store.orders[job.id].elastic for job in jobs):
            return  # nobody waits and nobody can be moved
        machine = self._open_machine()
        turn = decide(jobs, self._store.orders, machine)
        self._waits |= turn.waits
        self._moves.ask(jobs, machine, turn)
        passed = list(turn.passed)
        for name, share in turn.starts.items():
            job, folder = self._store.jobs[name], self.state.job(name)
            environment = attempts.environment_of(self._store.orders[name], share.gpus)
            if self._server is not None and not share.gpus and self._server.is_starting(environment):
                self._waits[name] = "waits for the import of torch"
                continue
            while passed:
                self._store.book(passed.pop(0), {"event": "passed"})
            try:
                attempts.prepare(job, folder)
                event = {"event": "starting", "attempt": job.attempt + 1, **asdict(share)}
                job = self._store.book(name, {**event, "at": time.time(), "boot_id": host.boot_id()}, must=True)
                process, why = attempts.start(self._store.orders[name], job, folder, self._entry(name), self._server)
            except (FileNotFoundError, NotADirectoryError, PermissionError, ValueError) as error:  # its folder is gone
                words = f"cannot be started: {error}"
                self._finish(name, AttemptEnd("failed", words, words, "service/not-started", 1))
            except (OSError, StorageFullError) as error:  # no space, process or memory is left: not the job's fault
                self._waits[name] = f"cannot be started for now: {error}"
                self._not_before_s[name] = time.monotonic() + IDLE_S
                if self._store.jobs[name].is_live:
                    self._finish(name, AttemptEnd())
            else:
                self._take(name, process, why)
                if why:
                    number = self._store.orders[name].number
                    print(f"job {number} is a fresh interpreter: {why}", file=sys.stderr, flush=True)

    def _is_startable(self, job: JobRecord) -> bool:
        if job.state != "queued" or job.id in self._sweeping:
            return False
        if time.monotonic() < self._not_before_s.get(job.id, 0.0):
            return False
        self._not_before_s.pop(job.id, None)
        return True

    def _open_machine(self) -> Machine:
        """Return the machine without what jobs use that were set aside. Memory: what is free, less what live jobs have
        reserved and do not use yet."""
        for name in [name for name, (process, _) in self._aside.items() if process.is_dead()]:
            self._aside.pop(name)[0].close()
        jobs = [job for _, job in self._aside.values()]
        gpus = [gpu for gpu in self.machine.gpus if not any(gpu in job.gpus for job in jobs)]
        free_bytes = host.available_memory().bytes
        for name in self._live:
            used = self._rows.record(name).get("pss_bytes")
            free_bytes -= max(0, self._store.orders[name].memory - (used if isinstance(used, int) else 0))
        return Machine(self.machine.cores, gpus, free_bytes, frozenset().union(*(job.in_use for job in jobs)))
