"""The parent's loop: wait (at most 60 ms), process what happened, pass it to the rosters and the queue, carry out their
decisions. No model computation, no lock, no longer wait: a stalled worker gets a second to write its stacks, but
the loop continues meanwhile (`stacks.py`).

    wake: pidfds · ack pipes · sockets · signals · checkpoint written · 50 ms
      -> group: acks -> reports -> deaths (reap, read the row, release the leases) -> clocks    (`processes/group.py`)
      -> pauses -> leases -> records

The teams: `Workers` with their set-up, what they have done and what a death sets free; `Predictors`; `StreamWork` is
what the loaders of a stream are given.

In a pause all workers park and the flats do not change, for an evaluation, a checkpoint, or the end.

    (running) -- due --> PARKING -- all parked --> MERGING --> EVALUATING -- all slices done --> CONCLUDING
                                                      '-------- nothing to evaluate -----------------^ |
    CONCLUDING -- a checkpoint is due --> COPYING --> WRITING, only if memory is too short to train meanwhile
          '-----------------------------------'------------'--> (running), or the end
    MERGING, COPYING -- the run has diverged --> GOING_BACK --> (running), or the end
    in a cluster:  PARKING --> CUTTING --> MERGING …, or (running) if only a cut was due;  … --> RELEASING --> (running)

Workers park inside an item, between two exchanges. No training items are leased. A worker that dies while parked is
handled like any other; one that becomes ready parks by itself. Long work (MERGING, COPYING, WRITING) is done by
threads, while the supervisor's loop continues.

A stop waits `supervise.grace_s` for all workers to park. A worker that has not parked by then, in a long operation or
itself stopped by a signal, is fenced: killed, its leases freed uncharged, and the checkpoint is made without it."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from hogwild import by_value, host
from hogwild.errors import DataError, HogwildError, TooManyQuarantined, TrainingError
from hogwild.formatting import counted
from hogwild.host.background_thread import Background, responsive
from hogwild.monitoring.live_calls import SOCKET
from hogwild.parameters.buffers import REGION
from hogwild.scheduling.stream_schedule import REQUESTS_IN_HAND, SlotRequest
from hogwild.scheduling.work_queue import HAND_S, Release, WorkQueue
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Command, Control, Phase, Word
from hogwild.storage.run_directory import RunDir
from hogwild.workers.child.loader import ENDED, StreamRecipe, recipe_of
from hogwild.workers.loading.loaders import LoaderLoss, Loaders, Work
from hogwild.workers.messages import PredictTask, Report, Setup
from hogwild.workers.processes.fork_server import SERVER
from hogwild.workers.processes.group import ProcessGroup, Team, shortened
from hogwild.workers.processes.handle import Handle
from hogwild.workers.processes.roster import (
    GAP_S,
    Death,
    End,
    Moment,
    Role,
    RoleLimits,
    Roster,
    RowReading,
    Setbacks,
    State,
    limits_of,
)
from hogwild.workers.session.outcome import Due, Outcome
from hogwild.workers.session.progress import ProgressRecords
from hogwild.workers.session.resume import start_rollback
from hogwild.workers.session.ring_state import RingState
from hogwild.workers.session.session import Session, pss_bytes_of
from hogwild.workers.supervision.answers import RequestAnswers
from hogwild.workers.supervision.rounds import Rounds

LOOP_WAIT_MS = 50
PSS_EVERY_S = 10.0  # the kernel walks all page tables for it
PSS_SOON_S = 2.0
PSS_SHARE = 0.002  # of a core, at most: where it takes long it is done less often
MEMORY_WAIT_S = 1.0  # at the end, for a running measurement
PACE_S = 0.05  # between two measurements of the workers' pace
# While a worker with half of what it has in hand will be busy for so long, acknowledgements wait: a turn of this loop
# costs a core 0.3 to 1 ms, and on a machine without a spare core that is a worker's.
QUIET_MS = 2
SLOTS_MS = 10  # but loaders, which answer in the same way, do not wait longer
QUICK_PER_S = 1000  # batches of a stream: at this pace a turn for each would take longer than the batch
BEATS = "beats"  # the region it writes: a beat, and the number of calls answered
FLATS = "params-"
EVALUATION_EPOCH = -2  # pseudo-epoch to which an exception in an evaluation is charged


# ---- the teams ------------------------------------------------------------------------------------------------------


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
        drawing = [self._session.draws.waits] if self._session.draws is not None else []
        return [ledger, *filter(None, drawing), *(f"{title}: waits for a lease" for title in idle)]

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
                _, start, stop = unevaluated.quarantined[0]
                what = f"batches {start} to {stop - 1} of data.val"
                if session.evaluating.is_scoring:
                    what = f"computing {', '.join(session.evaluating.panel.whole)} from the outputs of data.val"
                workers = counted(session.job.supervise.max_item_attempts, "worker")
                detail = f"{handle.error.detail}\n" if handle.error else ""
                words = f"{detail}{what} crashed {workers} (supervise.max_item_attempts); see {handle.log}"
                errors.append(TrainingError(words, code="train/unevaluable"))
        self._record(handle, end, how, release)
        is_excused = bool(release.quarantined) or session.clock.paused_since_s is not None
        batches = int(session.board.words[number, Word.BATCHES])
        death = Death(f"{how}; see {handle.log}", handle.error, charged, batches, end, is_excused)
        if (too_many := session.check_quarantine(release)) is not None:  # what the roster says of the death tells more
            self._late_errors.append(death.blamed(TooManyQuarantined, str(too_many)) if death.is_of_user else too_many)
        return death, errors

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


# ---- pauses ---------------------------------------------------------------------------------------------------------


class PauseStage(Enum):
    PARKING = "parking"
    CUTTING = "cutting"  # a cluster: the flats are copied for a round, and put back to the anchor for what follows
    MERGING = "merging"
    EVALUATING = "evaluating"
    CONCLUDING = "concluding"  # the previous checkpoint is still being written
    COPYING = "copying"
    WRITING = "writing"
    GOING_BACK = "going back"  # to the last good checkpoint: the run has diverged
    RELEASING = "releasing"


@dataclass(slots=True)
class Pause:
    number: int
    stage: PauseStage = PauseStage.PARKING
    looked_s: float = math.inf  # time of the last advance
    stopping_s: float = 0.0  # time that a stop has waited for all workers to park


class Pauses:
    """Begins, advances and ends pauses; one at a time, numbered. Driven once per turn of the supervisor's loop."""

    def __init__(self, session: Session, workers: Workers, rounds: Rounds | None = None) -> None:
        self._session, self._rounds = session, rounds
        self._workers, self._roster = workers, workers.roster
        self._count = 0
        self.current: Pause | None = None

    @property
    def queue(self) -> WorkQueue | None:
        """The queue to lease from now: training, an evaluation, or none."""
        if self.current is None:
            return self._session.queue
        return self._session.evaluating.current if self.current.stage is PauseStage.EVALUATING else None

    def advance(self, now: float) -> Outcome | None:
        """Begin a pause if one is due, advance the current one as far as possible; return the outcome at the job's
        end."""
        if self.current is None:
            if not self._session.due(now) and not (self._rounds is not None and self._rounds.is_due(now)):
                return None
            self._count += 1
            self.current = Pause(self._count)
            self._session.board.send(Command.PAUSE, self._count)
            self._workers.wake()
        steps: dict[PauseStage, Callable[[Pause, float], Outcome | None]] = {
            PauseStage.PARKING: self._park,
            PauseStage.CUTTING: self._cut,
            PauseStage.MERGING: self._merged,
            PauseStage.EVALUATING: self._evaluated,
            PauseStage.CONCLUDING: self._conclude,
            PauseStage.COPYING: self._copied,
            PauseStage.WRITING: self._written,
            PauseStage.GOING_BACK: self._go_back,
            PauseStage.RELEASING: self._release,
        }
        return steps[self.current.stage](self.current, now)

    def _park(self, pause: Pause, now: float) -> Outcome | None:
        missing = [k for k in self._roster.attached() if self._workers[k].parked_in != pause.number]
        if self._roster.is_anyone_dying or missing:
            self._fence_late(pause, missing, now)
            return None
        if self._rounds is not None and self._rounds.is_settling:
            return None
        # Only now: since the last booking a worker may have finished one item and begun another.
        self._workers.book()
        if (rounds := self._rounds) is None:
            return self._merge(pause, now)
        # Copy the flats for a round. Before an evaluation or a checkpoint they are put back to the anchor, and at the
        # end of the job they stay there.
        session, due = self._session, self._session.due(now)
        looks = due.evaluate or due.checkpoint
        if due.finish is None and rounds.is_idle and (looks or rounds.is_due(now)):
            session.pause_task.submit(rounds.copy(session.merging(), hold=looks), rounds.was_cut)
        pause.stage = PauseStage.CUTTING
        return self._cut(pause, now)

    def _cut(self, pause: Pause, now: float) -> Outcome | None:
        session, rounds = self._session, self._rounds
        assert rounds is not None
        if session.pause_task.is_busy or rounds.is_settling:
            return None
        finish = session.due(now).finish
        if finish is not None and not rounds.is_over:
            session.pause_task.submit(rounds.taking(), rounds.end)
            return None
        if finish is not None or rounds.is_held:
            return self._merge(pause, now)
        self._resume(time.monotonic())
        return None

    def _merge(self, pause: Pause, now: float) -> Outcome | None:
        self._session.merge_buffers(now)
        pause.stage = PauseStage.MERGING
        return self._merged(pause, now)

    def _note_still(self, number: int) -> None:
        """Note, for a predictor, that nobody writes parameters until this pause is over; 0: that somebody may."""
        self._session.board.control[Control.STILL] = number

    def _fence_late(self, pause: Pause, missing: list[int], now: float) -> None:
        """Fence workers that do not park: a stop is bounded. Its clock adds up time between turns, as in the roster."""
        gap, pause.looked_s = max(0.0, now - pause.looked_s), now
        finish = self._session.stop or self._session.due(now).finish
        if finish is None or finish.state != "stopped":
            return
        pause.stopping_s += gap if gap <= GAP_S else 0.0
        grace_s = self._session.job.supervise.grace_s
        if pause.stopping_s <= grace_s:
            return
        for worker in missing:
            why = f"did not park within {grace_s:g} s (supervise.grace_s) while the job was stopping"
            pid = self._workers[worker].pid
            self._session.journal.event("fence", worker=worker, pid=pid, why=why)
            self._session.journal.show_message(f"worker {worker} (pid {pid}) {why}; it is killed")
            self._roster.fence(worker)
            self._workers[worker].kill(why)

    def _merged(self, pause: Pause, now: float) -> Outcome | None:
        session = self._session
        if session.pause_task.is_busy:
            return None
        if session.due(now).rollback:
            return self._go_back(pause, now)
        self._note_still(pause.number)
        # Check again: workers may have finished the epoch, or the job, while parking.
        if session.due(now).evaluate:
            session.evaluating.start()
            pause.stage = PauseStage.EVALUATING
            return None
        return self._conclude(pause, now)

    def _evaluated(self, pause: Pause, now: float) -> Outcome | None:
        session = self._session
        if session.evaluating.advance():
            session.finish_evaluation()
        elif session.stop is None:
            return None
        session.evaluating.abandon()
        return self._conclude(pause, now)

    def _conclude(self, pause: Pause, now: float) -> Outcome | None:
        session, due = self._session, self._session.due(now)
        pause.stage = PauseStage.CONCLUDING
        if not due.checkpoint or self._must_take(due):
            return self._over(now)
        if session.saving.is_busy:  # at the end of the job; the loop continues meanwhile
            return None
        session.start_checkpoint(now)
        pause.stage = PauseStage.COPYING
        return None

    def _copied(self, pause: Pause, now: float) -> Outcome | None:
        if self._session.saving.is_copying:
            return None
        pause.stage = PauseStage.WRITING
        due = self._session.due(now)
        if due.rollback:
            return None
        if due.finish is not None and not self._must_take(due):
            return due.finish
        return self._written(pause, now)

    def _written(self, pause: Pause, now: float) -> Outcome | None:
        if self._session.due(now).rollback:  # the copy found ruined parameters
            return self._go_back(pause, now)
        return None if self._session.saving.is_read_in_place else self._over(now)

    def _go_back(self, pause: Pause, now: float) -> Outcome | None:
        session = self._session
        self._note_still(0)
        pause.stage = PauseStage.GOING_BACK
        if session.is_waited_for:  # wait: a checkpoint in flight may be the one to restore
            return None
        if not session.due(now).rollback:
            return self._over(now)
        start_rollback(session)
        return None

    def _over(self, now: float) -> Outcome | None:
        """Return the outcome if the job ends here; otherwise let all workers train on."""
        if (finish := self._session.due(now).finish) is not None:
            if self.current is None or not self._must_take(self._session.due(now)):
                return finish
            self._note_still(0)
            self.current.stage = PauseStage.CUTTING  # what is held is not the last committed round
            return None
        if self._rounds is not None and self._rounds.is_held and self.current is not None:
            self._note_still(0)
            self.current.stage = PauseStage.RELEASING
            return None
        self._resume(time.monotonic())  # a fresh time: the pause may have taken long
        return None

    def _must_take(self, due: Due) -> bool:
        """Return whether the job ends, and a cluster's flats are not yet those of the last committed round."""
        return due.finish is not None and self._rounds is not None and not self._rounds.is_over

    def _release(self, pause: Pause, now: float) -> Outcome | None:
        """Give a cluster's flats back what they had, then train on: an end that is due needs a pause of its own."""
        rounds, task = self._rounds, self._session.pause_task
        assert rounds is not None
        if not rounds.is_held:
            self._resume(time.monotonic())
        elif not rounds.is_settling and not task.is_busy:
            task.submit(rounds.releasing(), rounds.was_released)
        return None

    def _resume(self, now: float) -> None:
        self._note_still(0)
        self.current = None
        self._session.go_on(now)
        self._session.board.send(Command.RUN, self._count)
        self._workers.wake(over=self._count)


# ---- the loop -------------------------------------------------------------------------------------------------------


class Supervisor:
    """Runs one session with worker processes. `run` returns the outcome; no worker or loader outlives it."""

    def __init__(
        self,
        session: Session,
        watch: host.SignalWatch,
        make_setup: Callable[[int], tuple[Setup, Mapping[str, Region]]],
        group: ProcessGroup,
        rounds: Rounds | None = None,
    ) -> None:
        """`rounds`: with the other nodes of a cluster, whose communicator runs already."""
        self._session = session
        self._watch = watch
        self._group = group
        self._workers = Workers(group, session, make_setup)
        self._loaders = _loaders_of(group, session)
        self._predictors = Predictors(group, session.rundir, make_setup)
        self._teams: list[Team] = [self._loaders, self._workers] if self._loaders is not None else [self._workers]
        self._teams.append(self._predictors)
        self._rounds = rounds
        group.teams += self._teams
        if rounds is not None:
            self._teams.append(rounds.team)  # it is among the group's already
        self._pauses = Pauses(session, self._workers, rounds)
        self._answers = RequestAnswers(session, group.stacks)
        self._progress = ProgressRecords(session, time.monotonic())
        self._sequence = 0
        self._ready = 0  # how many have become ready so far
        self._outcome: Outcome | None = None
        self._paced_s, self._paced_batches = time.monotonic(), session.board.batches()  # when last measured
        self._next_pss_s, self._pss_every_s = 0.0, PSS_EVERY_S
        self._memory = Background("memory")
        self._pss_bytes: dict[int, int] = {}  # by pid, as last measured

    @host.naming_limits()
    def run(self) -> Outcome:
        session = self._session
        try:
            session.start(time.monotonic())
            session.board.send(Command.RUN)
            self._memory.start()
            with responsive():
                self._step(time.monotonic())  # workers start now; before that no turn can keep anybody waiting
                while self._outcome is None:
                    backgrounds = [session.pause_task, session.saving.writer, self._memory]
                    backgrounds += [self._rounds.thread] if self._rounds is not None else []
                    backgrounds += [session.draws.thread] if session.draws is not None else []
                    descriptors = self._watch.fileno(), *(each.fileno() for each in backgrounds)
                    quiet_ms = self._quiet_ms()
                    is_quiet = quiet_ms >= QUIET_MS
                    self._group.wait(quiet_ms if is_quiet else LOOP_WAIT_MS, *descriptors, is_quiet=is_quiet)
                    self._turn()
            self._answers.close()
            self._record(time.monotonic(), is_last=True)
            session.peak_pss_bytes = max(session.peak_pss_bytes, sum(pss_bytes_of(self._pids()).values()))
        finally:
            in_order = self._outcome is not None and self._outcome.state in ("succeeded", "stopped")
            session.board.send(Command.LEAVE)
            session.restarts = self._workers.roster.restarts
            for handle in self._group.dismiss(self._teams, in_order=in_order, is_hurried=self._is_hurried):
                session.journal.show_message(f"warning: {handle.title} {handle.describe_undead()}; it is left behind")
            self._predictors.remove_socket()
            self._memory.wait(MEMORY_WAIT_S)
            self._memory.close()
            if self._rounds is not None:
                self._rounds.close()
            for worker in range(session.plan.rows):
                session.queue.release(worker, session.board.progress(worker))
        if self._outcome.state == "stopped" and self._is_hurried():  # a second signal came while they were leaving
            self._outcome = Outcome.cancelled_by(self._watch.received[1])
        return self._outcome

    # ---- one turn ----------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        waited_s, began_s, clock = host.core_wait_s(), time.monotonic(), self._session.clock
        self._step(began_s)
        if (lasted_s := time.monotonic() - began_s) > clock.longest_turn_s:
            clock.longest_turn_s = max(clock.longest_turn_s, lasted_s - (host.core_wait_s() - waited_s))

    def _step(self, now: float) -> None:
        session = self._session
        self._watch.drain()
        if self._is_hurried():
            self._outcome = Outcome.cancelled_by(self._watch.received[1])
        elif self._watch.received and session.stop is None:
            session.note_signal(self._watch.received[0])
        session.finish_threads()
        self._memory.finish()
        loaders = self._loaders
        of_workers = Moment(
            paused=self._pauses.current is not None,
            has_unfinished_work=session.has_unfinished_work and not (loaders is not None and loaders.is_busy),
            filled=sum(loaders.filled) if loaders is not None else 0,
        )
        moments = {Role.WORKER: of_workers, Role.PREDICTOR: Moment(may_start=session.stop is None)}
        errors = self._group.step(now, self._group.teams, moments)
        if errors and self._outcome is None:
            self._outcome = Outcome.failed(errors[0])
        if self._outcome is not None:
            return
        self._answers.answer(now, self._group, self._resize, self._predictors.wish)
        if self._rounds is not None:
            self._rounds.advance(now)
        self._outcome = self._pauses.advance(now) if self._outcome is None else self._outcome
        self._measure_pace(now)
        if (queue := self._pauses.queue) is not None:
            for worker in self._workers.roster.attached():
                while (item := queue.lease(worker)) is not None:
                    session.board.write_item(item)
                    self._sequence += 1
                    self._workers[worker].lease(self._sequence, item.id)
        session.restarts = self._workers.roster.restarts
        self._record(now)
        if self._ready != (ready := sum(handle.is_ready for handle in self._workers)):
            self._ready, self._next_pss_s = ready, min(self._next_pss_s, now + PSS_SOON_S)  # until now it was importing
        if now >= self._next_pss_s:
            self._next_pss_s = now + self._pss_every_s
            self._group.oom_kills.discard()
            if not self._memory.is_busy:  # in a thread: it takes milliseconds per process and gigabyte
                pids = self._pids()
                self._memory.submit(lambda: _memory_of(pids), lambda found: self._record_memory(pids, *found))

    def _is_hurried(self) -> bool:
        return len(self._watch.received) >= 2

    def _resize(self, procs: Any) -> str:
        """Have so many workers from now on; return why that cannot be, or ""."""
        session, least = self._session, self._session.job.supervise.min_workers
        if session.stop is not None:
            return "the job is stopping"
        if session.queue.plan.lanes is not None:
            return "a lane belongs to one worker (data.lanes)"
        if session.plan.cores:
            return "its workers are pinned (train.pin)"
        if type(procs) is not int or not least <= procs <= session.plan.rows:
            rule = f"{least} (supervise.min_workers) to {session.plan.rows} (train.procs_max)"
            return f"procs must be a number from {rule}, got {procs!r}"
        if procs != session.queue.limits.procs:
            session.journal.show_message(f"workers: {procs}, until now {session.queue.limits.procs}")
            session.queue.limits.procs = procs
            for error in self._group.resize(self._workers, procs):
                self._outcome = Outcome.failed(error)
        return ""

    def _quiet_ms(self) -> int:
        """Return how long no worker will need anything: half of the time that the shortest hand lasts. Batches of a
        stream that are trained in less time than a turn takes come several at a time."""
        if self._pauses.current is not None:
            return 0
        queue = self._session.queue
        quiet_ms = int(500 * min(map(queue.hand_s, self._workers.roster.attached()), default=0.0))
        if self._loaders is None:
            return min(quiet_ms, LOOP_WAIT_MS)
        streamed = self._session.streamed
        holds_many = streamed is not None and streamed.schedule.most_requests > REQUESTS_IN_HAND
        is_quick = holds_many and max(queue.limits.hands.values(), default=0) >= QUICK_PER_S * HAND_S
        return max(min(quiet_ms, SLOTS_MS), QUIET_MS if is_quick else 0)

    def _measure_pace(self, now: float) -> None:
        """Measure how many batches each worker trains in HAND_S. A pace falls by half at most, because a pause is no
        sign of one."""
        if (elapsed_s := now - self._paced_s) < PACE_S:
            return
        batches, hands = self._session.board.batches(), self._session.queue.limits.hands
        for worker, (before, after) in enumerate(zip(self._paced_batches, batches, strict=True)):
            hands[worker] = max(int((after - before) / elapsed_s * HAND_S), hands.get(worker, 0) // 2)
        self._paced_s, self._paced_batches = now, batches

    # ---- records -----------------------------------------------------------------------------------------------

    def _record(self, now: float, *, is_last: bool = False) -> None:
        loaders, words = self._loaders, self._session.board.words
        rows = (lambda: loaders.rows("batches", loaders.filled)) if loaders is not None else list
        if loaders is not None and self._session.streamed is not None:
            self._session.streamed.paused_s = loaders.paused_s
        self._progress.record(
            now,
            lambda: self._workers.rows("updates", words[:, Word.UPDATES].tolist()),
            self._pss_bytes,
            rows,
            is_last=is_last,
        )

    def _record_memory(self, pids: list[int], pss_bytes: dict[int, int], took_s: float) -> None:
        self._pss_every_s = max(PSS_EVERY_S, took_s / PSS_SHARE)
        if set(pids) <= set(self._pids()):  # else a PID may have been reused by then
            self._pss_bytes = pss_bytes
            self._session.peak_pss_bytes = max(self._session.peak_pss_bytes, sum(pss_bytes.values()))

    def _pids(self) -> list[int]:
        return [handle.pid for handle in self._group] + ([] if SERVER.pid is None else [SERVER.pid])


def _memory_of(pids: list[int]) -> tuple[dict[int, int], float]:
    """Return the memory of processes, and the processor seconds that it took."""
    began_s = time.thread_time()
    return pss_bytes_of(pids), time.thread_time() - began_s


class StreamWork(Work):
    """The slots of a stream's ring as work of its loaders (`loading/loaders.py`). Number: slot + 1.

    a batch cannot be read    a failed attempt; after `max_item_attempts` it is quarantined
    a loader dies             the batch that it was reading is charged, in the same way
    an iterable               each loader reads its own shard, so no batch can be given up: the job fails
    """

    again = "its batches are read again"

    def __init__(self, session: Session, state: RingState, limits: RoleLimits) -> None:
        self._session, self._state, self._schedule = session, state, state.schedule
        self._attempts = limits.max_item_attempts
        self._setbacks = Setbacks(lambda: state.loaders, limits, session.queue.samples > 0, noun="loader")
        self._filled = 0

    def request(self, loader: int) -> int | None:
        if (request := self._schedule.request(loader)) is None:
            return None
        self._state.write(request)
        return request.slot + 1

    def answered(self, loader: int, answer: int, number: int) -> bool:
        if answer != ENDED:
            is_filled = self._state.filled(loader, number - 1)
            self._filled += is_filled
            return is_filled
        if self._schedule.ended(loader, number - 1) is not None:
            self._session.queue.find_ends()
        return False

    def refused(self, loader: int, report: Report) -> HogwildError | None:
        found = self._schedule.failed(loader, report.item - 1)
        if found is None:
            return None
        request, attempts = found
        self._session.journal.event(
            "bad-batch", loader=loader, epoch=request.epoch, batch=request.batch, attempts=attempts, why=report.detail
        )
        trace = f"\n\n{report.traceback.rstrip()}" if report.traceback else ""
        error = DataError(f"{report.detail}{trace}", code=report.code)
        death = Death("", replace(report, kind="error"), (request.epoch, request.batch))
        if self._setbacks.hopeless(death, self._filled, in_set_up=False) is not None:
            return error
        if attempts < self._attempts:
            return None
        return error if self._schedule.is_sharded else self._give_up(request, report.detail)

    def _give_up(self, request: SlotRequest, why: str) -> HogwildError | None:
        """Quarantine an unreadable batch and the update it belongs to."""
        session = self._session
        release = session.queue.give_up(request.epoch, self._schedule.give_up(request))
        for epoch, start, stop in release.quarantined:
            session.journal.event("quarantined", epoch=epoch, start=start, stop=stop, why=why)
            session.journal.show_message(f"quarantined: epoch {epoch}, batches {start} to {stop - 1}: {why}")
        return session.check_quarantine(release)

    def lost(self, loader: int, number: int | None, record: int, how: str) -> LoaderLoss:
        self._state.deaths += 1
        found = self._schedule.lost(loader, number - 1 if number else None)
        if found is None:
            return LoaderLoss()
        request, deaths = found
        charged = request.epoch, request.batch
        if deaths < self._attempts:
            return LoaderLoss(charged)
        ended = f"{deaths} loaders, the last one" if deaths > 1 else "its loader"
        what = f"reading record {record} (epoch {request.epoch}, batch {request.batch}) crashed {ended}: {how}"
        if self._schedule.is_sharded:
            return LoaderLoss(charged, error=DataError(f"{self._state.stream.what}: {what}", code="data/item-kills"))
        return LoaderLoss(charged, is_excused=True, error=self._give_up(request, what))

    def has_in_hand(self, loader: int) -> bool:
        return self._schedule.has_in_hand(loader)

    def waits(self) -> str:
        held = f"{self._schedule.filled_slots} of {self._schedule.slots} slots are filled"
        epochs = ", ".join(map(str, sorted(self._schedule.open_epochs))) or "none"
        return f"waits for something to read ({held}; epochs being read: {epochs})"

    def check(self) -> HogwildError | None:
        return self._state.check()


def _loaders_of(group: ProcessGroup, session: Session) -> Loaders | None:
    """Return the team that reads the job's streamed data, if there is any."""
    if (state := session.streamed) is None:
        return None
    needed = state.loaders if state.schedule.is_sharded else 1  # an iterable: each loader reads its own shard
    limits = limits_of(Role.LOADER, session.job.supervise, needed=needed)
    roster = Roster(Role.LOADER, limits, state.loaders, session.queue.samples > 0)
    recipe = recipe_of(*by_value.dumps_apart(StreamRecipe(state.stream, state.ring.spec, str(session.rundir.path))))
    work = StreamWork(session, state, limits)
    drawn = session.draws.regions if session.draws is not None else {}
    return Loaders(group, roster, work, recipe, {"ring": state.ring.region, **drawn})
