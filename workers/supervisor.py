"""The parent's loop: wait (at most 20 ms), take in what happened, feed it to the roster and the queue, carry out their
decisions. No model mathematics, no lock; the one longer wait is the half second in which a stalled worker may write its
stacks.

    wake: pidfds · ack pipes · sockets · signals · checkpoint written · 20 ms
      -> acks -> reports -> deaths (reap, read the row, release the leases) -> clocks -> leases -> pauses -> records
"""

import select
import time
from collections.abc import Callable

from hogwild import host
from hogwild.errors import TrainingError
from hogwild.scoreboard import Command, Phase, Word
from hogwild.workqueue import Release
from workers.crew import Crew
from workers.handle import Handle
from workers.head_start import HeadStart
from workers.messages import Setup
from workers.outcome import Outcome
from workers.pauses import Pauses
from workers.progress import Progress
from workers.roster import Action, Fail, Kill, Reading, Roster, Spawn
from workers.session import Session

LOOP_WAIT_MS = 20
PSS_EVERY_S = 10.0  # the kernel walks all page tables for it
LONGEST_WORDS = 300
EVALUATION_EPOCH = -2  # where an exception in an evaluation is charged to, for the roster


class Supervisor:
    """Runs one session with worker processes. `run` returns how it ended; no child outlives it."""

    def __init__(
        self,
        session: Session,
        watch: host.SignalWatch,
        make_setup: Callable[[int], tuple[Setup, list[int]]],
        early: HeadStart,
    ) -> None:
        self._session = session
        self._watch = watch
        self.roster = Roster(session.plan.procs, session.job.supervise, committed_before=session.queue.samples > 0)
        self._crew = Crew(session.rundir, make_setup, session.plan, early)
        self._pauses = Pauses(session, self.roster, self._crew)
        self._progress = Progress(session, time.monotonic())
        self._sequence = 0
        self._outcome: Outcome | None = None
        self._oom_kills = host.oom_kills()
        self._next_pss_s = 0.0

    def run(self) -> Outcome:
        session = self._session
        session.begin(time.monotonic())
        session.board.say(Command.RUN)
        try:
            while self._outcome is None:
                self._wait()
                self._step(time.monotonic())
            self._measure_memory()
        finally:
            in_order = self._outcome is not None and self._outcome.state in ("succeeded", "stopped")
            session.board.say(Command.LEAVE)
            session.restarts = self.roster.restarts
            grace_s = session.job.supervise.grace_s if in_order else 0.0
            for handle in self._crew.dismiss(session, grace_s, self._is_hurried):
                session.journal.say(f"worker {handle.worker} (pid {handle.pid}) does not die of SIGKILL")
            for worker in range(session.plan.procs):
                session.queue.release(worker, session.board.progress(worker))
        if self._outcome.state == "stopped" and self._is_hurried():  # the second signal came while they were leaving
            self._outcome = self._cancelled()
        return self._outcome

    # ---- one turn ----------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._watch.fileno(), select.POLLIN)
        poll.register(self._session.writer.fileno(), select.POLLIN)
        for handle in self._crew:
            for descriptor in (handle.pidfd, handle.ack_read, handle.channel.fileno()):
                poll.register(descriptor, select.POLLIN)
        poll.poll(LOOP_WAIT_MS)

    def _step(self, now: float) -> None:
        session = self._session
        self._take_signals()
        if (written := session.writer.result()) is not None:
            session.take_written(written)
        for handle in self._crew:
            self._take_reports(handle)
            if (status := handle.reap()) is not None:
                self._bury(handle, status, now)
        self._crew.book(session)
        self._carry_out(self.roster.tick(now, self._readings(), paused=self._pauses.current is not None))
        if self._outcome is not None:
            return
        self._outcome = self._pauses.advance(now)
        self._lease_out()
        session.restarts = self.roster.restarts
        self._progress.record(now, self._worker_rows())
        if now >= self._next_pss_s:
            self._next_pss_s = now + PSS_EVERY_S
            self._measure_memory()

    def _take_signals(self) -> None:
        self._watch.drain()
        received = self._watch.received
        if self._is_hurried():
            self._outcome = self._cancelled()
        elif received and self._session.stop is None:
            self._session.note_signal(received[0])

    def _is_hurried(self) -> bool:
        return len(self._watch.received) >= 2

    def _cancelled(self) -> Outcome:
        return Outcome.cancelled_by(self._watch.received[1])

    def _take_reports(self, handle: Handle) -> None:
        was_ready = handle.is_ready
        handle.listen()
        if handle.is_ready and not was_ready:
            self.roster.ready(handle.worker)
            self._session.journal.event(
                "ready", worker=handle.worker, incarnation=handle.incarnation, update=handle.update_path
            )

    def _readings(self) -> dict[int, Reading]:
        words = self._session.board.words
        return {
            handle.worker: Reading(
                beat=int(words[handle.worker, Word.BEAT_NS]),
                batches=int(words[handle.worker, Word.BATCHES]),
                slowest_s=int(words[handle.worker, Word.SLOWEST_NS]) / 1e9,
                has_lease=bool(self._session.queue.leases_of(handle.worker)),
                idle=int(words[handle.worker, Word.PHASE]) in (Phase.WAITING, Phase.PARKED),
            )
            for handle in self._crew
        }

    def _lease_out(self) -> None:
        queue = self._pauses.queue
        if queue is None:
            return
        for worker in self.roster.attached():
            while (item := queue.lease(worker)) is not None:
                self._session.board.write_item(item)
                self._sequence += 1
                self._crew[worker].lease(self._sequence, item.id)

    # ---- births and deaths -------------------------------------------------------------------------------------

    def _carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Spawn):
                self._spawn(action)
            elif isinstance(action, Kill):
                self._kill(self._crew[action.worker], action.why)
            elif self._outcome is None:
                if not isinstance(action.error, TrainingError) or action.error.code == "train/deadlocked":
                    self._crew.request_stacks(self._crew)
                self._outcome = Outcome("failed", action.error.code, error=action.error)

    def _spawn(self, action: Spawn) -> None:
        """A process that the machine refuses (no memory, no number, no descriptor left) is a start that failed."""
        if action.incarnation > 1:
            self._session.journal.event("restart", worker=action.worker, incarnation=action.incarnation)
        self._session.board.renew(action.worker, action.incarnation)
        try:
            handle = self._crew.spawn(action.worker, action.incarnation)
        except OSError as error:
            how = f"could not be started: {error}"
            self._session.journal.say(f"worker {action.worker} {how}")
            self._session.journal.event("exit", worker=action.worker, incarnation=action.incarnation, how=how)
            self._carry_out(self.roster.exited(action.worker, time.monotonic(), how, None, None))
            return
        self._session.journal.event("spawn", worker=action.worker, incarnation=action.incarnation, pid=handle.pid)

    def _kill(self, handle: Handle, why: str) -> None:
        """A worker that does not move: its stacks first, if it can still write them, then SIGKILL. Its leases come
        back when it was reaped; that is the fence: a stopped process must not wake up and write when others have its
        work."""
        journal = self._session.journal
        journal.event("stall", worker=handle.worker, pid=handle.pid, why=why)
        journal.say(f"worker {handle.worker} (pid {handle.pid}) {why}; it is killed and replaced")
        self._crew.request_stacks([handle])
        handle.kill(why)

    def _bury(self, handle: Handle, status: int, now: float) -> None:
        """The process is gone and reaped: what it wrote is all there, and no more can come."""
        session, worker = self._session, handle.worker
        session.acknowledge(worker, handle.acks())
        self._take_reports(handle)
        release = session.queue.release(worker, session.board.progress(worker))
        charged = release.charged
        actions: list[Action] = []
        if session.evaluation is not None:
            unevaluated = session.evaluation.release(worker, session.board.progress(worker, Phase.EVALUATING))
            charged = charged or (unevaluated.charged and (EVALUATION_EPOCH, unevaluated.charged[1]))
            if unevaluated.quarantined:
                actions.append(Fail(TrainingError(self._unevaluable(unevaluated, handle))))
        how = handle.killed_for or self._describe(status, Phase(int(session.board.words[worker, Word.PHASE])))
        self._record_exit(handle, how, release)
        self._crew.forget(handle)
        batches = int(session.board.words[worker, Word.BATCHES])
        actions += self.roster.exited(worker, now, f"{how}; see {handle.log}", handle.error, charged, batches)
        if (too_many := session.check_quarantine(release)) is not None:
            actions.append(Fail(too_many))
        self._carry_out(actions)

    def _record_exit(self, handle: Handle, how: str, release: Release) -> None:
        journal = self._session.journal
        error = _shortened(handle.error.detail) if handle.error else ""
        batches = "1 batch" if release.freed == 1 else f"{release.freed} batches"
        journal.event(
            "exit",
            worker=handle.worker,
            incarnation=handle.incarnation,
            pid=handle.pid,
            how=how,
            error=error,
            freed=release.freed,
            indeterminate=release.indeterminate,
            quarantined=[list(piece) for piece in release.quarantined],
        )
        journal.say(f"worker {handle.worker} (pid {handle.pid}): {error or how}; {batches} go to others")
        for epoch, start, stop in release.quarantined:
            journal.say(f"quarantined: epoch {epoch}, batches {start} to {stop - 1}")

    def _unevaluable(self, release: Release, handle: Handle) -> str:
        _, start, stop = release.quarantined[0]
        attempts = self._session.job.supervise.max_item_attempts
        detail = f": {handle.error.detail}" if handle.error else ""
        return (
            f"batches {start} to {stop - 1} of data.val ended {attempts} workers (supervise.max_item_attempts){detail}"
            f"; see {handle.log}"
        )

    def _describe(self, status: int, phase: Phase) -> str:
        kills = host.oom_kills()
        is_sigkill = status < 0 and host.signal_name(-status) == "SIGKILL"
        is_oom = is_sigkill and kills is not None and kills > (self._oom_kills or 0)
        self._oom_kills = kills
        if status == 0 and phase is Phase.LEAVING:  # user code can end a process with 0 as well
            return "left when it was sent SIGTERM"
        return "killed by the kernel: out of memory" if is_oom else host.describe_exit(status)

    # ---- records -----------------------------------------------------------------------------------------------

    def _worker_rows(self) -> list[dict[str, object]]:
        words = self._session.board.words
        return [
            {
                "worker": worker,
                "state": slot.state.value,
                "pid": self._crew[worker].pid if worker in self._crew else None,
                "incarnation": slot.incarnation,
                "updates": int(words[worker, Word.UPDATES]),
            }
            for worker, slot in enumerate(self.roster.slots)
        ]

    def _measure_memory(self) -> None:
        self._session.note_memory(handle.pid for handle in self._crew)


def _shortened(words: str) -> str:
    """An exception's first line, for the terminal; all of it is in the worker's log."""
    line = words.partition("\n")[0]
    return line if len(line) <= LONGEST_WORDS else f"{line[:LONGEST_WORDS]}…"
