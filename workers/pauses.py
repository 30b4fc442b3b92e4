"""Pauses: everybody parks, the flats are at rest, and something is done that needs that: an evaluation, a checkpoint,
another way to exchange (`trial.py`), the end.

    (running) -- due --> PARKING -- all parked --> EVALUATING -- all slices done --> CONCLUDING --> (running), or end
                            '----------- nothing to evaluate -------------------------^  '--> WRITING, if memory is too
                                                                                              short to train meanwhile

Workers park in the middle of an item, between two exchanges. Leasing of training items stands still. A worker that
dies while parked is handled like any other; one that becomes ready parks by itself."""

import time
from dataclasses import dataclass
from enum import Enum

from hogwild import host
from hogwild.errors import RunDirError
from hogwild.exchange import copied_bytes
from hogwild.scoreboard import Command
from hogwild.workqueue import WorkQueue
from workers.crew import Crew
from workers.outcome import Outcome
from workers.prepare import write_choice
from workers.roster import Roster
from workers.session import MEMORY_MARGIN, Session
from workers.trial import Trial, exchange_of, ways_of, why_settled, words_of


class Stage(Enum):
    PARKING = "parking"
    EVALUATING = "evaluating"
    CONCLUDING = "concluding"  # the checkpoint before this one is still being written
    WRITING = "writing"


@dataclass(slots=True)
class Pause:
    number: int
    stage: Stage = Stage.PARKING


class Pauses:
    """Begins, advances and ends pauses; one at a time, numbered. Driven once per turn of the supervisor's loop."""

    def __init__(self, session: Session, roster: Roster, crew: Crew) -> None:
        self._session = session
        self._roster = roster
        self._crew = crew
        self._count = 0
        self.current: Pause | None = None
        self._trial: Trial | None = None  # once everybody trains

    @property
    def queue(self) -> WorkQueue | None:
        """What may be leased now: training, an evaluation, or nothing."""
        if self.current is None:
            return self._session.queue
        return self._session.evaluation if self.current.stage is Stage.EVALUATING else None

    def advance(self, now: float) -> Outcome | None:
        """Begins a pause if one is due and takes the one that is on as far as it will go; the job's outcome at its
        end."""
        if self.current is None:
            if not self._session.due(now) and not self._is_slice_due(now):
                return None
            self._begin()
        assert self.current is not None
        if self.current.stage is Stage.PARKING:
            return self._parked(self.current, now)
        if self.current.stage is Stage.EVALUATING:
            return self._evaluated(self.current, now)
        if self.current.stage is Stage.CONCLUDING:
            return self._conclude(self.current, now)
        if not self._session.writer.is_busy:
            self._resume(now)
        return None

    def _begin(self) -> None:
        self._count += 1
        self.current = Pause(self._count)
        self._session.board.say(Command.PAUSE, self._count)
        self._crew.wake()

    def _parked(self, pause: Pause, now: float) -> Outcome | None:
        session = self._session
        if self._roster.is_anyone_dying or not session.board.parked(self._roster.attached(), pause.number):
            return None
        # Only now: a worker may have finished one item and begun another since it was last looked at.
        self._crew.book(session)
        session.quieten(now)
        if self._trial is not None:
            self._trial.end_slice(now)
            self._settle(self._trial)
        # Asked again: workers may have finished the epoch, or the job, while they were being parked.
        if session.due(now).evaluate:
            session.begin_evaluation()
            pause.stage = Stage.EVALUATING
            return None
        return self._conclude(pause, now)

    def _evaluated(self, pause: Pause, now: float) -> Outcome | None:
        session = self._session
        assert session.evaluation is not None
        if session.evaluation.is_finished:
            session.finish_evaluation()
        elif session.stop is None:
            return None
        session.evaluation = None  # a stop does not wait for a long evaluation
        return self._conclude(pause, now)

    def _conclude(self, pause: Pause, now: float) -> Outcome | None:
        session = self._session
        pause.stage = Stage.CONCLUDING
        if session.writer.is_busy and session.due(now).checkpoint:  # at the end of the job: the loop goes on meanwhile
            return None
        stays = session.conclude_at_rest(now)
        if (finish := session.due(now).finish) is not None:
            return finish
        if stays:
            pause.stage = Stage.WRITING
        else:
            self._resume(time.monotonic())  # a snapshot takes a while
        return None

    def _is_slice_due(self, now: float) -> bool:
        if self._session.plan.procs < 2 or not (self._trial or self._roster.all_train):
            return False
        trial = self._trial = self._trial or _trial_of(self._session)
        if trial.is_over:
            return False
        is_due = trial.is_due(now, all_train=self._roster.all_train, left_s=self._session.left_s(now))
        self._settle(trial)  # where it turns out that there is nothing to measure
        return is_due

    def _settle(self, trial: Trial) -> None:
        """Once the trial is over: what it found is how the job goes on."""
        session, verdict = self._session, trial.verdict
        if verdict is None or session.verdict is not None:
            return
        session.verdict = verdict
        session.set_exchange(verdict.exchange)
        remark = words_of(verdict, session.queue.plan.batch_size * session.job.train.accumulate)
        session.journal.event("exchange", choice=verdict.exchange, why=verdict.why, updates_per_s=dict(verdict.rates))
        session.journal.say(remark)
        if session.job.train.exchange == "auto" and verdict.is_measured:
            train = session.job.train.model_copy(update={"exchange": verdict.exchange})
            session.job = session.job.model_copy(update={"train": train})
            try:
                write_choice(session.rundir, session.job, remark)
            except RunDirError as error:
                session.journal.say(f"warning: {error}; a resume will measure again")

    def _resume(self, now: float) -> None:
        sync_every = self._trial.begin_slice(now) if self._trial is not None else None
        if sync_every is not None:
            self._session.queue.limits.sync_every = sync_every
        self.current = None
        self._session.go_on(now)
        self._session.board.say(Command.RUN, self._count)
        self._crew.wake()


def _trial_of(session: Session) -> Trial:
    job, procs, flats = session.job, session.plan.procs, session.shared.layout.flats
    room = host.available_memory().bytes
    why = why_settled(
        job,
        procs,
        sparse=any(span.sparse for span in flats.spans),
        has_room=room > MEMORY_MARGIN * procs * copied_bytes(flats),
    )
    given = exchange_of(job, procs) if why else None
    return Trial(session.board, ways_of(job, procs, why), given, job.train.sync_every, why)
