"""The handling of dead and abandoned workers: their leases are freed, the death is recorded with its cause, and the
roster is told."""

import time

from hogwild import host
from hogwild.errors import TrainingError
from hogwild.scheduling.work_queue import Release
from hogwild.shared_memory.scoreboard import Phase, Word
from workers.processes.handle import Handle
from workers.processes.roster import Action, Fail, Roster
from workers.processes.setbacks import Death, End
from workers.session.session import Session
from workers.supervision.crew import Crew

LONGEST_WORDS = 300
EVALUATION_EPOCH = -2  # pseudo-epoch to which an exception in an evaluation is charged


class DeathHandler:
    """The deaths of one attempt, in the supervisor."""

    def __init__(self, session: Session, roster: Roster, crew: Crew) -> None:
        self._session = session
        self._roster = roster
        self._crew = crew
        self.oom_kills = host.OomKills()

    def handle(self, handle: Handle, status: int, now: float) -> list[Action]:
        """Handle a reaped process: its last stores are visible, and its reports were processed."""
        session, worker = self._session, handle.worker
        has_left = status == 0 and int(session.board.words[worker, Word.PHASE]) == Phase.LEAVING
        end = self._roster.ending(worker, left=has_left, fenced=bool(handle.killed_for))
        how = handle.killed_for or self._describe(status, has_left) + self._said(handle, end)
        session.acknowledge(worker, handle.acks())
        self._crew.drop(handle)
        return self._decide(handle, end, how, now)

    def abandon(self, handle: Handle, now: float) -> list[Action]:
        """Handle a killed process that does not die. Its code no longer runs: the kernel acts on the signal before it
        returns to user code. Its leases are freed; its row is never reused."""
        self._crew.abandon(handle)
        how = f"{handle.killed_for}; {handle.describe_undead()}"
        self._session.journal.show_message(f"worker {handle.worker} (pid {handle.pid}): it is not replaced")
        return self._decide(handle, End.STALLED, how, now, is_dead=False)

    def refused(self, worker: int, incarnation: int, error: OSError) -> list[Action]:
        """Handle a process that the machine refuses (no memory, PID or descriptor left): a failed start."""
        how = f"could not be started: {error}"
        end = End.COULD_NOT_START
        self._session.journal.show_message(f"worker {worker} {how}")
        self._session.journal.event("exit", worker=worker, incarnation=incarnation, kind=end.value, how=how)
        return self._roster.exited(worker, time.monotonic(), Death(how, end=end))

    def keep_spares_ready(self, now: float) -> None:
        """Drop dead spares, and start a missing one when it disturbs nobody."""
        journal, spares = self._session.journal, self._crew.spares
        for handle, status in spares.pop_dead(now):
            how = handle.killed_for or self._describe(status, has_left=False)
            journal.event("spare-exit", pid=handle.pid, how=how, error=handle.last_output())
            handle.close()
        if self._session.stop is not None or not self._roster.is_settled:
            return
        try:
            fresh = spares.fill(now)
        except OSError as error:
            journal.event("spare-exit", how=f"could not be started: {error}")
            return
        if fresh is not None:
            journal.event("spare", pid=fresh.pid)

    # ---- consequences --------------------------------------------------------------------------------------

    def _decide(self, handle: Handle, end: End, how: str, now: float, *, is_dead: bool = True) -> list[Action]:
        session, worker = self._session, handle.worker
        is_charged = not self._roster.slots[worker].is_fenced
        release = session.queue.release(worker, session.board.progress(worker), charged=is_charged)
        charged = release.charged
        actions: list[Action] = []
        if (evaluation := session.evaluating.current) is not None:
            unevaluated = evaluation.release(worker, session.board.progress(worker, Phase.EVALUATING))
            charged = charged or (unevaluated.charged and (EVALUATION_EPOCH, unevaluated.charged[1]))
            if unevaluated.quarantined:
                actions.append(Fail(TrainingError(self._unevaluable(unevaluated, handle), code="train/unevaluable")))
        self._record(handle, end, how, release)
        death = Death(
            f"{how}; see {handle.log}",
            handle.error,
            charged,
            int(session.board.words[worker, Word.BATCHES]),
            end,
            is_excused=bool(release.quarantined) or session.clock.paused_since_s is not None,
        )
        actions += self._roster.exited(worker, now, death) if is_dead else self._roster.abandoned(worker, death)
        if (too_many := session.check_quarantine(release)) is not None:
            actions.append(Fail(too_many))
        return actions

    def _record(self, handle: Handle, end: End, how: str, release: Release) -> None:
        journal = self._session.journal
        error = _shortened(handle.error.detail) if handle.error else ""
        batches = "1 batch" if release.freed == 1 else f"{release.freed} batches"
        journal.event(
            "exit",
            worker=handle.worker,
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
        journal.show_message(f"worker {handle.worker} (pid {handle.pid}): {lead}{error or how}; {batches} reassigned")
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

    def _describe(self, status: int, has_left: bool) -> str:
        if has_left:  # user code can exit with 0, too
            return "left on SIGTERM"
        if status < 0 and host.signal_name(-status) == "SIGKILL" and (words := self.oom_kills.claim()):
            return words
        return host.describe_exit(status)

    @staticmethod
    def _said(handle: Handle, end: End) -> str:
        """Return the last line of a worker that died before it had a log and could not report."""
        words = handle.last_output() if end is End.COULD_NOT_START and handle.error is None else ""
        return f" ({_shortened(words)})" if words else ""


def _shortened(words: str) -> str:
    """Return the first line of an exception, for the terminal; the worker's log has all of it."""
    line = words.partition("\n")[0]
    return line if len(line) <= LONGEST_WORDS else f"{line[:LONGEST_WORDS]}…"
