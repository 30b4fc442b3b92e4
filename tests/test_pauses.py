"""The order of things in a pause, with recorded collaborators: what `supervisor.py` and real workers do is in
test_supervision.py."""

from types import SimpleNamespace
from typing import Any

import pytest

from hogwild.scoreboard import Command
from workers.outcome import Due, Outcome
from workers.pauses import Pauses, Stage


class Story:
    """A session, roster and crew that write down what is asked of them, in order."""

    def __init__(self, due: Due) -> None:
        self.told: list[Any] = []
        self.dues = due
        self.parked = self.stays = False
        self.evaluation: Any = None
        self.writer = SimpleNamespace(is_busy=False)
        board = SimpleNamespace(say=self._say, parked=lambda workers, number: self.parked)
        session = SimpleNamespace(
            board=board,
            writer=self.writer,
            due=lambda now: self.dues,
            quieten=lambda now: self.told.append("quieten"),
            conclude_at_rest=self._conclude,
            go_on=lambda now: self.told.append("go on"),
            stop=None,
            queue="training",
            job=SimpleNamespace(train=SimpleNamespace(exchange="direct", sync_every=16)),
            plan=SimpleNamespace(procs=1),  # so that no pause is for a trial (test_trial.py)
            shared=SimpleNamespace(layout=SimpleNamespace(flats=SimpleNamespace(spans=(), gradient_sizes={}))),
        )
        self.roster = SimpleNamespace(attached=lambda: [0, 1], is_anyone_dying=False)
        crew = SimpleNamespace(wake=lambda: self.told.append("wake"), book=lambda session: self.told.append("book"))
        self.pauses = Pauses(session, self.roster, crew)  # type: ignore[arg-type]

    def _say(self, command: Command, number: int = 0) -> None:
        self.told.append((command.name, number))

    def _conclude(self, now: float) -> bool:
        self.told.append("checkpoint")
        self.dues = Due(finish=self.dues.finish)
        return self.stays


def test_nothing_is_begun_while_nothing_is_due() -> None:
    story = Story(Due())
    assert story.pauses.advance(0.0) is None
    assert story.told == [] and story.pauses.queue == "training"


def test_acknowledgements_are_taken_in_after_everybody_parked_and_before_the_snapshot() -> None:
    story = Story(Due(checkpoint=True))
    assert story.pauses.advance(0.0) is None
    assert story.told == [("PAUSE", 1), "wake"] and story.pauses.queue is None
    story.parked = True
    assert story.pauses.advance(0.1) is None
    assert story.told[2:] == ["book", "quieten", "checkpoint", "go on", ("RUN", 1), "wake"]
    assert story.pauses.current is None


@pytest.mark.parametrize("what", ["somebody trains", "somebody dies"])
def test_the_snapshot_waits_for_everybody_who_can_write(what: str) -> None:
    story = Story(Due(checkpoint=True))
    story.parked = story.roster.is_anyone_dying = what == "somebody dies"
    for now in (0.0, 0.1, 0.2):
        assert story.pauses.advance(now) is None
    assert "checkpoint" not in story.told
    story.parked, story.roster.is_anyone_dying = True, False
    story.pauses.advance(0.3)
    assert "checkpoint" in story.told


def test_the_end_of_a_job_waits_for_the_checkpoint_in_flight_without_blocking() -> None:
    outcome = Outcome("succeeded", "epochs")
    story = Story(Due(checkpoint=True, finish=outcome))
    story.parked, story.writer.is_busy = True, True
    assert [story.pauses.advance(now) for now in (0.0, 0.1, 0.2)] == [None, None, None]
    assert story.pauses.current is not None and story.pauses.current.stage is Stage.CONCLUDING
    assert "checkpoint" not in story.told
    story.writer.is_busy = False
    assert story.pauses.advance(0.3) is outcome
    assert story.told[-1] == "checkpoint"


def test_a_checkpoint_written_from_the_shared_memory_keeps_everybody_parked_until_it_is_written() -> None:
    story = Story(Due(checkpoint=True))
    story.parked = story.stays = story.writer.is_busy = True
    for now in (0.0, 0.1, 0.2):
        story.writer.is_busy = now > 0
        assert story.pauses.advance(now) is None
    assert story.pauses.current is not None and story.pauses.current.stage is Stage.WRITING
    assert story.pauses.queue is None and "go on" not in story.told
    story.writer.is_busy = False
    story.pauses.advance(0.3)
    assert story.pauses.current is None and story.told[-3:] == ["go on", ("RUN", 1), "wake"]
