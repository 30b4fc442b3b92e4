"""Pauses: all workers park and the flats do not change, for an evaluation, a checkpoint, or the end.

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

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from hogwild.scheduling.work_queue import WorkQueue
from hogwild.shared_memory.scoreboard import Command, Control
from hogwild.workers.processes.roster import GAP_S
from hogwild.workers.session.outcome import Due, Outcome
from hogwild.workers.session.resume import start_rollback
from hogwild.workers.session.session import Session
from hogwild.workers.supervision.rounds import Rounds
from hogwild.workers.supervision.workers import Workers


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
            if not self._session.due(now) and not self._is_cut_due(now):
                return None
            self._start()
        assert self.current is not None
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

    def _start(self) -> None:
        self._count += 1
        self.current = Pause(self._count)
        self._session.board.send(Command.PAUSE, self._count)
        self._workers.wake()

    def _park(self, pause: Pause, now: float) -> Outcome | None:
        missing = [k for k in self._roster.attached() if self._workers[k].parked_in != pause.number]
        if self._roster.is_anyone_dying or missing:
            self._fence_late(pause, missing, now)
            return None
        if self._rounds is not None and self._rounds.is_settling:
            return None
        # Only now: since the last booking a worker may have finished one item and begun another.
        self._workers.book()
        if self._rounds is not None:
            return self._begin_cut(self._rounds, pause, now)
        return self._merge(pause, now)

    def _begin_cut(self, rounds: Rounds, pause: Pause, now: float) -> Outcome | None:
        """Copy the flats for a round. Before an evaluation or a checkpoint they are put back to the anchor, and at the
        end of the job they stay there."""
        session = self._session
        due = session.due(now)
        looks = due.evaluate or due.checkpoint
        if due.finish is None and rounds.is_idle and (looks or self._is_cut_due(now)):
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

    def _is_cut_due(self, now: float) -> bool:
        """Return whether a round needs a cut."""
        return self._rounds is not None and self._rounds.is_due(now)

    def _resume(self, now: float) -> None:
        self._note_still(0)
        self.current = None
        self._session.go_on(now)
        self._session.board.send(Command.RUN, self._count)
        self._workers.wake(over=self._count)
