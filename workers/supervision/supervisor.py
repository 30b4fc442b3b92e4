"""The parent's loop: wait (at most 20 ms), process what happened, pass it to the roster and the queue, carry out their
decisions. No model computation, no lock, no longer wait: a stalled worker gets half a second to write its stacks, but
the loop continues meanwhile (`stacks.py`).

    wake: pidfds · ack pipes · sockets · signals · checkpoint written · 20 ms
      -> acks -> reports -> deaths (reap, read the row, release the leases) -> clocks -> leases -> pauses -> records
"""

import select
import time
from collections.abc import Callable, Mapping

from hogwild import host
from hogwild.errors import Deadlocked
from hogwild.host.background_thread import Background, responsive
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Command, Control, Phase, Word
from workers.messages import Setup
from workers.processes.early_start import HeadStart
from workers.processes.handle import Handle
from workers.processes.roster import Abandon, Action, Kill, Roster, RowReading, Spawn, State
from workers.processes.stacks import LOOK_MS, Blocked, Stacks
from workers.session.outcome import Outcome
from workers.session.progress import ProgressRecords
from workers.session.session import Session, pss_bytes_of
from workers.supervision.crew import Crew
from workers.supervision.deaths import DeathHandler
from workers.supervision.loaders import Loaders
from workers.supervision.pauses import Pauses

LOOP_WAIT_MS = 20
PSS_EVERY_S = 10.0  # the kernel walks all page tables for it
PSS_SOON_S = 2.0
MEMORY_WAIT_S = 1.0  # at the end, for a running measurement


class Supervisor:
    """Runs one session with worker processes. `run` returns the outcome; no child outlives it."""

    def __init__(
        self,
        session: Session,
        watch: host.SignalWatch,
        make_setup: Callable[[int], tuple[Setup, Mapping[str, Region]]],
        early: HeadStart,
    ) -> None:
        self._session = session
        self._watch = watch
        self.roster = Roster(session.plan.procs, session.job.supervise, committed_before=session.queue.samples > 0)
        self._crew = Crew(make_setup, session.plan, early, session.job.supervise.spares)
        self._deaths = DeathHandler(session, self.roster, self._crew)
        self._pauses = Pauses(session, self.roster, self._crew)
        self._loaders = Loaders(session, session.streamed, self._crew.recruit) if session.streamed else None
        self._stacks = Stacks(session.rundir)
        self._progress = ProgressRecords(session, time.monotonic())
        self._sequence = 0
        self._outcome: Outcome | None = None
        self._next_pss_s = 0.0
        self._memory = Background("memory")
        self._pss_bytes: dict[int, int] = {}  # by pid, as last measured

    def run(self) -> Outcome:
        session = self._session
        try:
            session.start(time.monotonic())
            session.board.send(Command.RUN)
            self._memory.start()
            with responsive():
                while self._outcome is None:
                    self._wait()
                    began_s = time.monotonic()
                    self._step(began_s)
                    session.clock.longest_turn_s = max(session.clock.longest_turn_s, time.monotonic() - began_s)
            self._record(time.monotonic(), is_last=True)
            session.note_memory(sum(pss_bytes_of(self._pids()).values()))
        finally:
            in_order = self._outcome is not None and self._outcome.state in ("succeeded", "stopped")
            session.board.send(Command.LEAVE)
            session.restarts = self.roster.restarts
            grace_s = session.job.supervise.grace_s if in_order else 0.0
            undead = self._loaders.dismiss() if self._loaders is not None else []
            for handle in (*undead, *self._crew.dismiss(session, grace_s, self._is_hurried)):
                session.journal.show_message(f"warning: {handle.title} {handle.describe_undead()}; it is left behind")
            self._stacks.close()
            self._memory.wait(MEMORY_WAIT_S)
            self._memory.close()
            for worker in range(session.plan.procs):
                session.queue.release(worker, session.board.progress(worker))
        if self._outcome.state == "stopped" and self._is_hurried():  # a second signal came while they were leaving
            self._outcome = self._cancelled()
        return self._outcome

    # ---- one turn ----------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._watch.fileno(), select.POLLIN)
        for background in (self._session.pause_task, self._session.saving.writer, self._memory):
            poll.register(background.fileno(), select.POLLIN)
        for handle in self._everybody():
            for descriptor in handle.descriptors():
                poll.register(descriptor, select.POLLIN)
        poll.poll(LOOK_MS if self._stacks.is_waiting else LOOP_WAIT_MS)

    def _step(self, now: float) -> None:
        session = self._session
        self._handle_signals()
        session.finish_threads()
        self._memory.finish()
        session.holder.check()
        for handle in self._crew:
            self._handle_reports(handle)
            if (status := handle.reap()) is not None:
                self._handle_reports(handle)  # its last reports
                self._stacks.leave_out(handle.worker)
                self._carry_out(self._deaths.handle(handle, status, now))
        self._crew.book(session)
        if self._loaders is not None and (error := self._loaders.step(now)) is not None and self._outcome is None:
            self._outcome = Outcome("failed", error.code, error=error)
        self._stacks.advance(now)
        loaders = self._loaders
        actions = self.roster.tick(
            now,
            self._readings(),
            paused=self._pauses.current is not None,
            spares=self._crew.spares.ready,
            is_owed=not session.queue.is_finished and not (loaders is not None and loaders.is_busy),
            filled=loaders.filled if loaders is not None else 0,
        )
        self._carry_out(actions)
        if self._outcome is not None:
            return
        self._outcome = self._pauses.advance(now)
        self._name_compiler()
        self._lease_out()
        self._deaths.keep_spares_ready(now)
        session.restarts = self.roster.restarts
        self._record(now)
        if now >= self._next_pss_s:
            self._next_pss_s = now + PSS_EVERY_S
            self._measure_memory()

    def _handle_signals(self) -> None:
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

    def _handle_reports(self, handle: Handle) -> None:
        was_ready = handle.is_ready
        handle.listen()
        if handle.is_ready and not was_ready:
            self.roster.ready(handle.worker)
            self._next_pss_s = min(self._next_pss_s, time.monotonic() + PSS_SOON_S)  # until now it was importing
            self._session.journal.event(
                "ready", worker=handle.worker, incarnation=handle.incarnation, update=handle.update_path
            )

    def _readings(self) -> dict[int, RowReading]:
        words = self._session.board.words
        return {
            handle.worker: RowReading(
                beat=int(words[handle.worker, Word.BEAT_NS]),
                batches=int(words[handle.worker, Word.BATCHES]),
                slowest_s=int(words[handle.worker, Word.SLOWEST_NS]) / 1e9,
                has_lease=bool(self._session.queue.leases_of(handle.worker)),
                idle=int(words[handle.worker, Word.PHASE]) in (Phase.WAITING, Phase.PARKED),
            )
            for handle in self._crew
        }

    def _name_compiler(self) -> None:
        """Name the lowest worker that is not retired: it compiles for all."""
        there = (worker for worker, slot in enumerate(self.roster.slots) if slot.state is not State.RETIRED)
        self._session.board.control[Control.COMPILER] = next(there, 0)

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
                self._kill(self._crew[action.worker], action.why, action.silent_s)
            elif isinstance(action, Abandon):
                self._stacks.leave_out(action.worker)
                self._carry_out(self._deaths.abandon(self._crew[action.worker], time.monotonic()))
            elif isinstance(action.error, Deadlocked):
                self._name_the_blocked(action.error)
            elif self._outcome is None:
                self._outcome = Outcome("failed", action.error.code, error=action.error)

    def _spawn(self, action: Spawn) -> None:
        if action.incarnation > 1:
            self._session.journal.event("restart", worker=action.worker, incarnation=action.incarnation)
        self._session.board.renew(action.worker, action.incarnation)
        try:
            handle = self._crew.spawn(action.worker, action.incarnation)
        except OSError as error:
            self._carry_out(self._deaths.refused(action.worker, action.incarnation, error))
            return
        spare = {"spare": True} if handle.is_spare else {}
        self._session.journal.event(
            "spawn", worker=action.worker, incarnation=action.incarnation, pid=handle.pid, **spare
        )

    def _kill(self, handle: Handle, why: str, silent_s: float) -> None:
        """Handle a stalled worker: its stacks first, if it can still write them, then SIGKILL. Its leases are freed
        only after it was reaped; that is the fence: a stopped process must not wake up and write when others have its
        work."""

        def end(blocked: Blocked) -> None:
            where = blocked.get(handle.worker, "")
            reason = f"{why}, {where}" if where else why
            kind = self.roster.ending(handle.worker, left=False, fenced=True).value  # could-not-start or stalled
            place = {"worker": handle.worker, "pid": handle.pid, "kind": kind}
            self._session.journal.event("stall", **place, why=why, blocked=where)
            self._session.journal.show_message(f"{handle.title} {reason}; it is killed and replaced")
            handle.kill(reason)

        self._stacks.collect([handle], self._crew, f"{handle.title} {why}", silent_s, end)

    def _name_the_blocked(self, error: Deadlocked) -> None:
        """Fail a deadlocked job as soon as all have written their stacks, with the call each worker is blocked in."""
        titles = {handle.worker: handle.title for handle in self._crew}

        def fail(blocked: Blocked) -> None:
            if self._outcome is not None:
                return
            waits = [f"  {words}" for words in self._waits()]
            lines = [f"  {title}: {blocked.get(worker) or 'unknown'}" for worker, title in titles.items()]
            self._session.journal.event("deadlock", why=str(error), blocked=blocked)
            self._outcome = Outcome("failed", error.code, error=Deadlocked("\n".join([str(error), *waits, *lines])))

        still_s = self._session.job.supervise.deadlock_timeout_s
        self._stacks.collect(self._crew, self._crew, "nobody commits", still_s, fail)

    def _waits(self) -> list[str]:
        """Return the ledger's state, and what workers and loaders without work wait for."""
        queue = self._session.queue
        idle = [handle.title for handle in self._crew if not queue.leases_of(handle.worker)]
        ledger = f"the ledger is at epoch {queue.epoch} of {queue.limits.epochs}, {queue.total} batches are finished"
        loaders = self._loaders.waits() if self._loaders is not None else []
        return [ledger, *(f"{title}: waits for a lease" for title in idle), *loaders]

    # ---- records -----------------------------------------------------------------------------------------------

    def _record(self, now: float, *, is_last: bool = False) -> None:
        loaders = self._loaders.rows if self._loaders is not None else tuple
        self._progress.record(now, self._rows, self._crew.spares.rows, self._pss_bytes, loaders, is_last=is_last)

    def _rows(self) -> list[dict[str, object]]:
        pids = {handle.worker: handle.pid for handle in self._crew}
        return self.roster.rows(pids, "updates", self._session.board.words[:, Word.UPDATES].tolist())

    def _measure_memory(self) -> None:
        """Measure memory in a thread: it takes milliseconds per process and gigabyte."""
        self._deaths.oom_kills.discard()
        if not self._memory.is_busy:
            pids = self._pids()
            self._memory.submit(lambda: pss_bytes_of(pids), lambda found: self._record_memory(pids, found))

    def _record_memory(self, pids: list[int], pss_bytes: dict[int, int]) -> None:
        if set(pids) <= set(self._pids()):  # else a PID may have been reused by then
            self._pss_bytes = pss_bytes
            self._session.note_memory(sum(pss_bytes.values()))

    def _everybody(self) -> list[Handle]:
        return [*self._crew, *self._crew.spares, *(self._loaders or ())]

    def _pids(self) -> list[int]:
        return [handle.pid for handle in self._everybody()]
