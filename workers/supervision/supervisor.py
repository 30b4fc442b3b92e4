"""The parent's loop: wait (at most 60 ms), process what happened, pass it to the rosters and the queue, carry out their
decisions. No model computation, no lock, no longer wait: a stalled worker gets a second to write its stacks, but
the loop continues meanwhile (`stacks.py`).

    wake: pidfds · ack pipes · sockets · signals · checkpoint written · 50 ms
      -> group: acks -> reports -> deaths (reap, read the row, release the leases) -> clocks    (`processes/group.py`)
      -> pauses -> leases -> records
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import cloudpickle

from hogwild import host
from hogwild.errors import DataError, HogwildError
from hogwild.host.background_thread import Background, responsive
from hogwild.scheduling.stream_schedule import SlotRequest
from hogwild.scheduling.work_queue import HAND_S
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Command, Word
from hogwild.workers.child.loader import ENDED, StreamRecipe
from hogwild.workers.loading.loaders import LoaderLoss, Loaders, Work
from hogwild.workers.messages import Report, Setup
from hogwild.workers.processes.fork_server import SERVER
from hogwild.workers.processes.group import ProcessGroup, Team
from hogwild.workers.processes.roster import Death, Moment, Role, RoleLimits, Roster, Setbacks, limits_of
from hogwild.workers.session.outcome import Outcome
from hogwild.workers.session.progress import ProgressRecords
from hogwild.workers.session.ring_state import RingState
from hogwild.workers.session.session import Session, pss_bytes_of
from hogwild.workers.supervision.answers import RequestAnswers
from hogwild.workers.supervision.pauses import Pauses
from hogwild.workers.supervision.rounds import Rounds
from hogwild.workers.supervision.workers import Predictors, Workers

LOOP_WAIT_MS = 50
PSS_EVERY_S = 10.0  # the kernel walks all page tables for it
PSS_SOON_S = 2.0
MEMORY_WAIT_S = 1.0  # at the end, for a running measurement
PACE_S = 0.05  # between two measurements of the workers' pace
# While all workers have enough in hand, acknowledgements wait so long: a turn of this loop costs a worker 0.3 ms.
QUIET_MS = 10


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
        self._next_pss_s = 0.0
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
                self._turn()  # workers start now
                while self._outcome is None:
                    backgrounds = [session.pause_task, session.saving.writer, self._memory]
                    backgrounds += [self._rounds.thread] if self._rounds is not None else []
                    descriptors = self._watch.fileno(), *(each.fileno() for each in backgrounds)
                    if not (self._are_stocked and self._group.wait(QUIET_MS, *descriptors, is_quiet=True)):
                        self._group.wait(LOOP_WAIT_MS, *descriptors)
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
        began_s, clock = time.monotonic(), self._session.clock
        self._step(began_s)
        clock.longest_turn_s = max(clock.longest_turn_s, time.monotonic() - began_s)

    def _step(self, now: float) -> None:
        session = self._session
        self._handle_signals()
        session.finish_threads()
        self._memory.finish()
        errors = self._group.step(now, self._group.teams, self._moments())
        if errors and self._outcome is None:
            self._outcome = Outcome("failed", errors[0].code, error=errors[0])
        if self._outcome is not None:
            return
        self._answers.answer(now, self._group, self._resize, self._predictors.wish)
        if self._rounds is not None:
            self._rounds.advance(now)
        self._outcome = self._pauses.advance(now) if self._outcome is None else self._outcome
        self._measure_pace(now)
        self._lease_out()
        session.restarts = self._workers.roster.restarts
        self._record(now)
        if self._ready != (ready := sum(handle.is_ready for handle in self._workers)):
            self._ready, self._next_pss_s = ready, min(self._next_pss_s, now + PSS_SOON_S)  # until now it was importing
        if now >= self._next_pss_s:
            self._next_pss_s = now + PSS_EVERY_S
            self._measure_memory()

    def _handle_signals(self) -> None:
        self._watch.drain()
        received = self._watch.received
        if self._is_hurried():
            self._outcome = Outcome.cancelled_by(self._watch.received[1])
        elif received and self._session.stop is None:
            self._session.note_signal(received[0])

    def _is_hurried(self) -> bool:
        return len(self._watch.received) >= 2

    def _moments(self) -> dict[Role, Moment]:
        loaders, session = self._loaders, self._session
        of_workers = Moment(
            paused=self._pauses.current is not None,
            has_unfinished_work=session.has_unfinished_work and not (loaders is not None and loaders.is_busy),
            filled=sum(loaders.filled) if loaders is not None else 0,
        )
        return {Role.WORKER: of_workers, Role.PREDICTOR: Moment(may_start=session.stop is None)}

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
                self._outcome = Outcome("failed", error.code, error=error)
        return ""

    @property
    def _are_stocked(self) -> bool:
        """True if no worker needs anything soon."""
        attached = self._workers.roster.attached()
        return self._pauses.current is None and all(map(self._session.queue.is_stocked, attached)) and bool(attached)

    def _measure_pace(self, now: float) -> None:
        """Measure how many batches each worker trains in HAND_S. A pace falls by half at most, because a pause is no
        sign of one."""
        if (elapsed_s := now - self._paced_s) < PACE_S:
            return
        batches, hands = self._session.board.batches(), self._session.queue.limits.hands
        for worker, (before, after) in enumerate(zip(self._paced_batches, batches, strict=True)):
            hands[worker] = max(int((after - before) / elapsed_s * HAND_S), hands.get(worker, 0) // 2)
        self._paced_s, self._paced_batches = now, batches

    def _lease_out(self) -> None:
        queue = self._pauses.queue
        if queue is None:
            return
        for worker in self._workers.roster.attached():
            while (item := queue.lease(worker)) is not None:
                self._session.board.write_item(item)
                self._sequence += 1
                self._workers[worker].lease(self._sequence, item.id)

    # ---- records -----------------------------------------------------------------------------------------------

    def _record(self, now: float, *, is_last: bool = False) -> None:
        loaders = self._loaders
        rows = (lambda: loaders.rows("batches", loaders.filled)) if loaders is not None else list
        self._progress.record(now, self._rows, self._pss_bytes, rows, is_last=is_last)

    def _rows(self) -> list[dict[str, object]]:
        return self._workers.rows("updates", self._session.board.words[:, Word.UPDATES].tolist())

    def _measure_memory(self) -> None:
        """Measure memory in a thread: it takes milliseconds per process and gigabyte."""
        self._group.oom_kills.discard()
        if not self._memory.is_busy:
            pids = self._pids()
            self._memory.submit(lambda: pss_bytes_of(pids), lambda found: self._record_memory(pids, found))

    def _record_memory(self, pids: list[int], pss_bytes: dict[int, int]) -> None:
        if set(pids) <= set(self._pids()):  # else a PID may have been reused by then
            self._pss_bytes = pss_bytes
            self._session.peak_pss_bytes = max(self._session.peak_pss_bytes, sum(pss_bytes.values()))

    def _pids(self) -> list[int]:
        return [handle.pid for handle in self._group] + ([] if SERVER.pid is None else [SERVER.pid])


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
    recipe = cloudpickle.dumps(StreamRecipe(state.stream, state.ring.spec))
    work = StreamWork(session, state, limits)
    return Loaders(group, roster, work, recipe, {"ring": state.ring.region})
