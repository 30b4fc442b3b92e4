"""The processes of a job as the supervisor sees them: the workers with their set-up, what they have done and what a
death sets free, and the predictor."""

import contextlib
from collections.abc import Callable, Iterator, Mapping

from hogwild.errors import HogwildError, TrainingError
from hogwild.monitoring.live_calls import SOCKET
from hogwild.parameters.buffers import REGION
from hogwild.scheduling.work_queue import Release
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Phase, Word
from hogwild.storage.run_directory import RunDir
from hogwild.workers.messages import PredictTask, Setup
from hogwild.workers.processes.group import ProcessGroup, Team, shortened
from hogwild.workers.processes.handle import Handle
from hogwild.workers.processes.roster import Death, End, Role, Roster, RowReading, State, limits_of
from hogwild.workers.session.session import Session

EVALUATION_EPOCH = -2  # pseudo-epoch to which an exception in an evaluation is charged


class Workers(Team):
    """The team that trains."""

    def __init__(
        self,
        group: ProcessGroup,
        session: Session,
        make_setup: Callable[[int], tuple[Setup, Mapping[str, Region]]],
    ) -> None:
        limits = limits_of(Role.WORKER, session.job.supervise)
        has_committed = session.queue.samples > 0
        super().__init__(group, Roster(Role.WORKER, limits, session.plan.procs, has_committed))
        self._session, self._make_setup = session, make_setup
        self._late_errors: list[HogwildError] = []

    def prepare(self, number: int) -> tuple[Setup, Mapping[str, Region]]:
        self._session.board.renew(number, self[number].incarnation)
        return self._make_setup(number)

    def wake(self, over: int = 0) -> None:
        """Make all read the control row now; the pause `over` has ended."""
        for handle in self:
            handle.wake(over)

    def settle(self, handle: Handle) -> None:
        self._session.acknowledge(handle.number, handle.acks())

    def book(self) -> None:
        """Book what every worker has finished and committed. Acks first: a commit word covers only the newest item, so
        only the pipe tells of the one before it."""
        for handle in self:
            self.settle(handle)
        self._session.observe(self.handles)

    def readings(self) -> dict[int, RowReading]:
        words = self._session.board.words
        return {
            worker: RowReading(
                beat=int(words[worker, Word.BEAT_NS]),
                batches=int(words[worker, Word.BATCHES]),
                slowest_s=int(words[worker, Word.SLOWEST_NS]) / 1e9,
                has_lease=bool(self._session.queue.leases_of(worker)),
                idle=int(words[worker, Word.PHASE]) in (Phase.WAITING, Phase.PARKED),
            )
            for worker in self.handles
        }

    def act(self) -> Iterator[HogwildError]:
        late, self._late_errors = self._late_errors, []
        yield from late

    def has_left(self, handle: Handle) -> bool:
        return int(self._session.board.words[handle.number, Word.PHASE]) == Phase.LEAVING

    def ask_to_leave(self, handle: Handle) -> None:
        handle.wake()  # the control row says so

    def waits(self) -> list[str]:
        """Return the ledger's state, and who waits for a lease."""
        queue = self._session.queue
        idle = [handle.title for handle in self if not queue.leases_of(handle.number)]
        ledger = f"the ledger is at epoch {queue.epoch} of {queue.limits.epochs}, {queue.total} batches are finished"
        return [ledger, *(f"{title}: waits for a lease" for title in idle)]

    # ---- deaths

    def lost(self, number: int, handle: Handle | None, end: End, how: str) -> tuple[Death, list[HogwildError]]:
        if handle is None:
            self._session.journal.show_message(f"worker {number} {how}")
            self.event("exit", number, incarnation=self.roster.slots[number].incarnation, kind=end.value, how=how)
            return Death(how, end=end), []
        session = self._session
        errors: list[HogwildError] = []
        is_charged = not self.roster.slots[number].is_fenced
        release = session.queue.release(number, session.board.progress(number), charged=is_charged)
        charged = release.charged
        if (evaluation := session.evaluating.current) is not None:
            unevaluated = evaluation.release(number, session.board.progress(number, Phase.EVALUATING))
            charged = charged or (unevaluated.charged and (EVALUATION_EPOCH, unevaluated.charged[1]))
            if unevaluated.quarantined:
                errors.append(TrainingError(self._unevaluable(unevaluated, handle), code="train/unevaluable"))
        self._record(handle, end, how, release)
        if (too_many := session.check_quarantine(release)) is not None:
            self._late_errors.append(too_many)  # what the roster says of the death tells more
        is_excused = bool(release.quarantined) or session.clock.paused_since_s is not None
        batches = int(session.board.words[number, Word.BATCHES])
        return Death(f"{how}; see {handle.log}", handle.error, charged, batches, end, is_excused), errors

    def _record(self, handle: Handle, end: End, how: str, release: Release) -> None:
        journal = self._session.journal
        error = shortened(handle.error.detail) if handle.error else ""
        batches = "1 batch" if release.freed == 1 else f"{release.freed} batches"
        self.event(
            "exit",
            handle.number,
            incarnation=handle.incarnation,
            pid=handle.pid,
            kind=end.value,
            how=how,
            error=error,
            freed=release.freed,
            indeterminate=release.indeterminate,
            quarantined=[list(piece) for piece in release.quarantined],
        )
        lead = "could not start: " if end is End.COULD_NOT_START and not how.startswith("could not") else ""
        journal.show_message(f"{handle.title}: {lead}{error or how}; {batches} reassigned")
        for epoch, start, stop in release.quarantined:
            journal.show_message(f"quarantined: epoch {epoch}, batches {start} to {stop - 1}")

    def _unevaluable(self, release: Release, handle: Handle) -> str:
        _, start, stop = release.quarantined[0]
        attempts = self._session.job.supervise.max_item_attempts
        detail = f": {handle.error.detail}" if handle.error else ""
        what = f"batches {start} to {stop - 1} of data.val"
        if self._session.evaluating.is_scoring:
            what = f"computing {', '.join(self._session.evaluating.panel.whole)} from the outputs of data.val"
        workers = "1 worker" if attempts == 1 else f"{attempts} workers"
        return f"{what} crashed {workers} (supervise.max_item_attempts){detail}; see {handle.log}"


BEATS = "beats"  # the region it writes: a beat, and the number of calls answered
FLATS = "params-"


class Predictors(Team):
    """The team of one, or none: the process that answers calls with the model while it trains (`child/predictor.py`).
    It starts with the first request for it, and is replaced when it dies. It holds nothing and writes no parameter, so
    its end, even for good, is none of the job's business. `make_setup`: a worker's set-up, with all regions."""

    def __init__(
        self,
        group: ProcessGroup,
        rundir: RunDir,
        make_setup: Callable[[int], tuple[Setup, Mapping[str, Region]]],
    ) -> None:
        super().__init__(group, Roster(Role.PREDICTOR, limits_of(Role.PREDICTOR, group.supervise), 0))
        self._rundir, self._make_setup = rundir, make_setup
        self._beats: Region | None = None
        self._why_lost = ""

    def wish(self) -> str:
        """Have a predictor from now on; return why there is none, or ""."""
        if any(slot.state is State.RETIRED for slot in self.roster.slots):
            return f"it ended too often: {self._why_lost}"
        if not self.roster.count:
            try:
                self._beats = Region.allocate(BEATS, 16)
            except (OSError, HogwildError) as error:  # no memory or descriptor: no reason to end the job
                return str(error)
            self.roster.resize(1)
        return ""

    def remove_socket(self) -> None:
        """Remove its socket's file, after its end."""
        if self._beats is not None:
            with contextlib.suppress(OSError):  # user code may have made a folder of it
                (self._rundir.path / SOCKET).unlink()

    def prepare(self, number: int) -> tuple[PredictTask, Mapping[str, Region]]:
        setup, regions = self._make_setup(0)
        assert self._beats is not None
        task = PredictTask(
            run=str(self._rundir.path.absolute()),
            rows=setup.rows,
            structure_nbytes=setup.structure_nbytes,
        )
        needed = {REGION, "scoreboard", "structure"}
        read = {name: region for name, region in regions.items() if name in needed or name.startswith(FLATS)}
        return task, {**read, BEATS: self._beats}

    def readings(self) -> dict[int, RowReading]:
        beat, calls = (0, 0) if self._beats is None else map(int, self._beats.array("i8", (2,)))
        return dict.fromkeys(self.handles, RowReading(beat, calls, 0.0, has_lease=False, idle=True))

    def lost(self, number: int, handle: Handle | None, end: End, how: str) -> tuple[Death, list[HogwildError]]:
        error = handle.error if handle is not None else None
        self._why_lost = shortened(error.detail if error is not None else how)
        self.event("exit", number, kind=end.value, how=how, pid=handle.pid if handle else None)
        self.group.sink.show_message(f"predictor: {self._why_lost}; workers train on")
        calls = 0 if self._beats is None else int(self._beats.array("i8", (2,))[1])
        return Death(how, batches=calls, end=end), []  # without its report: no exception of it ends the job
