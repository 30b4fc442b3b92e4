"""Moves of cores between running jobs: ask, wait for the answer, learn how fast a job is on how many cores. Used by the
loop's thread only; `schedule.py` decides.

    book `move` ─► write RUN/requests/ID.json ─► the job's event `request` answers ID ─► book `moved`, or `kept`

Both the old and the new cores are in use from the first step to the last. A service that was killed in between finds
the record with its move. The job answers a request in the turn in which it reads it, before it writes its status: so
one that is neither there nor answered, while a newer status is, was never written, and is written now."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hogwild.errors import RunDirError, StorageFullError
from hogwild.service.attempts import JobProcess
from hogwild.service.failpoints import reach
from hogwild.service.folders import StateFolder
from hogwild.service.schedule import REST_S, Machine, Transfer, Turn, cores_of, lend, may_move
from hogwild.service.states import JobRecord, Move
from hogwild.service.store import Store
from hogwild.storage.run_files import answer_to, is_unread, new_request, size_of_events, withdraw, write_request

DONE = "done"
LOOK_S = 1.0  # between two looks at a job that is silent for longer
SILENT_S = 60.0  # until a request that was read counts as refused, unless the kernel says otherwise
SETTLED_S = 3.0  # after a move, until a job's speed counts
KNOWN_S = 120.0  # a measured speed is forgotten after this time: the machine may have been busy
NEW_SHARE = 0.5  # of a new measurement in the mean


@dataclass(slots=True)
class _Wait:
    """For a job's answer. `since`: from when its time counts; `found`: when the move of an earlier service was found,
    as long as its request may not have been written; `read`: when the request was seen to have been read."""

    since: float
    found: float | None = None
    read: float | None = None


class Moves:
    """The moves that are under way, and the measured speeds."""

    def __init__(self, state: StateFolder, store: Store, machine: Machine) -> None:
        self._state, self._store, self._machine = state, store, machine
        self._waits: dict[str, _Wait] = {}  # id -> its move's
        self._speeds: dict[str, dict[int, tuple[float, float]]] = {}  # id -> cores -> (samples/s, time of the record)

    def ask(self, jobs: Sequence[JobRecord], machine: Machine, turn: Turn) -> None:
        """Ask running jobs for the moves that are worth it now. `machine`: what jobs may use of it."""
        now, orders = time.time(), self._store.orders
        ready = [job.id for job in jobs if may_move(job, orders[job.id], now)]
        if not ready:
            return
        speeds = {
            name: {cores: speed for cores, (speed, at) in self._speeds.get(name, {}).items() if now - at < KNOWN_S}
            for name in ready
        }
        for name, transfer in lend(jobs, orders, machine, turn, ready=ready, speeds=speeds).items():
            self._begin(name, transfer, now)

    def _begin(self, name: str, transfer: Transfer, now: float) -> None:
        begin = size_of_events(self._state.job(name).run)
        event = {"event": "move", "request": new_request(), "begin": begin, "at": now, **asdict(transfer)}
        try:
            job = self._store.book(name, event, must=True)
        except StorageFullError:  # a lent core is not worth a decision that is not on the disk
            return
        reach("before-move")
        assert job.move is not None
        self._write(name, job.move)
        reach("move-asked")

    def _write(self, name: str, move: Move) -> None:
        try:
            run = self._state.job(name).run
            write_request(run, {"ask": "resize", "procs": move.procs, "cores": list(move.cores)}, move.request)
        except RunDirError:
            self._store.book(name, {"event": "kept", "fixed": None})
            self._waits.pop(name, None)

    def find(self, name: str) -> None:
        """Take over a job's move from an earlier service."""
        if (move := self._store.jobs[name].move) is not None:
            wait = self._waits[name] = _Wait(time.time())
            if not is_unread(self._state.job(name).run, move.request):
                wait.found = wait.since

    def end(self, name: str) -> None:
        """Forget a job's attempt."""
        self._waits.pop(name, None)
        self._speeds.pop(name, None)

    def look(self, name: str, process: JobProcess, record: Mapping[str, Any]) -> None:
        """Look for the answer to a live job's move, and at its speed. `record`: its status.json."""
        job, run = self._store.jobs[name], self._state.job(name).run
        if job.move is None:
            self._measure(job, record)
            return
        now, at = time.time(), record.get("time")
        wait = self._waits.setdefault(name, _Wait(job.moved or 0.0))
        wait.since = min(wait.since, now)  # the clock was set back
        answer = answer_to(run, job.move.request, job.move.begin)
        if answer is not None:
            self._end_move(name, "" if answer.get("answer") == DONE else str(answer.get("answer")))
        elif wait.found is not None and isinstance(at, float) and at > wait.found:
            wait.found, wait.since = None, now
            self._write(name, job.move)
        elif wait.found is None and now - wait.since > REST_S and withdraw(run, job.move.request):
            self._store.book(name, {"event": "kept", "fixed": None})  # it is busy; later perhaps
            del self._waits[name]
        elif now - wait.since > SILENT_S:
            self._end_silent(name, process, job, at)

    def _end_silent(self, name: str, process: JobProcess, job: JobRecord, at: Any) -> None:
        """End a move whose request was read, as it seems, and not answered: by the kernel's word. The job is stopped,
        or its disk is full. `at`: time of its status.json."""
        assert job.move is not None
        wait, now = self._waits[name], time.time()
        wait.read = now if wait.read is None else wait.read
        if process.cores() == set(job.move.cores):
            self._end_move(name, "")
        # A job that does it later has less than it is booked with. But one that grows must have said since, by its
        # status, that it is done with the request: else others would get the cores that it takes when it wakes up.
        elif set(job.move.cores) <= set(job.cores) or (isinstance(at, float) and at > wait.read):
            self._end_move(name, "it did not answer")
        else:
            wait.since = now - SILENT_S + LOOK_S

    def _end_move(self, name: str, why_not: str) -> None:
        event = {"event": "kept", "fixed": why_not} if why_not else {"event": "moved"}
        self._store.book(name, {**event, "at": time.time()})
        del self._waits[name]
        reach("moved")

    def _measure(self, job: JobRecord, record: Mapping[str, Any]) -> None:
        """Note the samples/s of a job that has trained on the same cores for a while."""
        at, speed = record.get("time"), record.get("samples_per_s")
        since = max(job.moved or 0.0, job.started or 0.0)
        if not isinstance(at, float) or not isinstance(speed, float) or not speed or at - since < SETTLED_S:
            return
        if job.state != "running" or record.get("doing") != "running":
            return
        cores, known = len(cores_of(job, self._machine)), self._speeds.setdefault(job.id, {})
        before, last = known.get(cores, (speed, 0.0))
        if at > last:
            known[cores] = (before + NEW_SHARE * (speed - before), at)
