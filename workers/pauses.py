"""Pauses: everybody parks, the flats are at rest, and something is done that needs that.

    (running) -- due --> PARKING -- all parked --> EVALUATING -- all slices done --> CONCLUDING --> (running), or end
                            '----------- nothing to evaluate -------------------------^  '--> WRITING, if memory is too
                                                                                              short to train meanwhile

Workers park in the middle of an item, between two exchanges. Leasing of training items stands still. A worker that
dies while parked is handled like any other; one that becomes ready parks by itself."""

from dataclasses import dataclass
from enum import Enum

from hogwild.scoreboard import Command
from hogwild.workqueue import WorkQueue
from workers.crew import Crew
from workers.outcome import Outcome
from workers.roster import Roster
from workers.session import Session


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
            if not self._session.due(now):
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
            self._resume(now)
        return None

    def _resume(self, now: float) -> None:
        self.current = None
        self._session.go_on(now)
        self._session.board.say(Command.RUN, self._count)
        self._crew.wake()
