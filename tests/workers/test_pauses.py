"""The supervisor's loop, without processes: the order of things in a pause, with recorded collaborators, and requests
to a running job: what lies in the folder never stops the supervisor, nor the requests behind it. What `supervisor.py`
and real workers do is in test_supervision.py."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from hogwild.shared_memory.scoreboard import Command, Control
from hogwild.storage.run_directory import RunDir
from hogwild.storage.run_files import LOOK_S, MOST_BYTES, Requests
from hogwild.workers.session.outcome import Due, Outcome
from hogwild.workers.supervision.supervisor import Pauses, PauseStage, Supervisor

GRACE_S = 10.0
STOP = Outcome("stopped", "SIGTERM")


class Story:
    """A session, roster and crew that write down what is asked of them, in order. Workers 0 and 1 are attached; those
    in `parked` have parked."""

    def __init__(self, due: Due, workers: tuple[int, ...] = (0, 1)) -> None:
        self.told: list[Any] = []
        self.dues = due
        self.parked: set[int] = set()
        self.attached = list(workers)
        self.saving = SimpleNamespace(is_busy=False, is_copying=False, is_read_in_place=False)
        self.pause_task = SimpleNamespace(is_busy=False)
        board = SimpleNamespace(send=self._say, control={})
        supervise = SimpleNamespace(grace_s=GRACE_S)
        self.session = SimpleNamespace(
            board=board,
            saving=self.saving,
            pause_task=self.pause_task,
            due=lambda now: self.dues,
            merge_buffers=lambda now: self.told.append("merge_buffers"),
            start_checkpoint=self._start_checkpoint,
            go_on=lambda now: self.told.append("go on"),
            stop=None,
            queue="training",
            journal=SimpleNamespace(
                event=lambda kind, **values: self.told.append((kind, values["worker"])), show_message=str
            ),
            job=SimpleNamespace(train=SimpleNamespace(exchange="direct", sync_every=16), supervise=supervise),
            plan=SimpleNamespace(procs=1, rows=1),
            shared=SimpleNamespace(layout=SimpleNamespace(flats=SimpleNamespace(spans=(), gradient_sizes={}))),
        )
        self.roster = SimpleNamespace(attached=lambda: self.attached, is_anyone_dying=False, fence=self._fence)
        self.pauses = Pauses(self.session, self._crew())  # type: ignore[arg-type]

    def _crew(self) -> Any:
        story = self

        class Crew:
            roster = story.roster

            def wake(self, over: int = 0) -> None:
                story.told.append("wake")

            def book(self) -> None:
                story.told.append("book")

            def __getitem__(self, worker: int) -> Any:
                number = story.pauses.current.number if worker in story.parked and story.pauses.current else 0
                return SimpleNamespace(
                    pid=worker, parked_in=number, kill=lambda why: story.told.append(("kill", worker))
                )

        return Crew()

    def _say(self, command: Command, number: int = 0) -> None:
        self.told.append((command.name, number))

    def _start_checkpoint(self, now: float) -> None:
        self.told.append("checkpoint")
        self.saving.is_busy = self.saving.is_copying = True
        self.dues = Due(finish=self.dues.finish)

    def _fence(self, worker: int) -> None:
        self.attached.remove(worker)
        self.roster.is_anyone_dying = True

    def copied(self) -> None:
        self.saving.is_copying = False

    def at(self, *times: float) -> Outcome | None:
        """Advances at these times, in seconds; what the last one says."""
        return [self.pauses.advance(now) for now in times][-1]

    @property
    def stage(self) -> PauseStage | None:
        return self.pauses.current and self.pauses.current.stage


def test_nothing_is_begun_while_nothing_is_due() -> None:
    story = Story(Due())
    assert story.pauses.advance(0.0) is None
    assert story.told == [] and story.pauses.queue == "training"


def test_acknowledgements_are_taken_in_after_everybody_parked_and_before_the_copy() -> None:
    story = Story(Due(checkpoint=True))
    assert story.at(0.0) is None
    assert story.told == [("PAUSE", 1), "wake"] and story.pauses.queue is None
    story.parked = {0, 1}
    assert story.at(0.1) is None
    assert story.told[2:] == ["book", "merge_buffers", "checkpoint"]
    story.copied()
    assert story.at(0.2) is None
    assert story.told[5:] == ["go on", ("RUN", 1), "wake"]
    assert story.pauses.current is None


def test_nobody_trains_while_threads_merge_and_copy_and_every_turn_comes_back_at_once() -> None:
    story = Story(Due(checkpoint=True))
    story.parked, story.pause_task.is_busy = {0, 1}, True
    story.at(0.0, 0.1, 0.2)
    assert story.stage is PauseStage.MERGING and "checkpoint" not in story.told
    story.pause_task.is_busy = False
    story.at(0.3, 0.4, 0.5)
    assert story.stage is PauseStage.COPYING and story.told.count("checkpoint") == 1
    assert story.pauses.queue is None and "go on" not in story.told
    story.copied()
    story.at(0.6)  # the writer is busy: that is no reason to wait
    assert story.stage is None and story.told[-3:] == ["go on", ("RUN", 1), "wake"]


def test_a_stop_that_comes_while_a_checkpoint_is_copied_ends_the_job_with_it() -> None:
    story = Story(Due(checkpoint=True))
    story.parked = {0, 1}
    story.at(0.0)
    story.dues = Due(finish=STOP)
    assert story.at(0.1) is None
    story.copied()
    assert story.at(0.2) is STOP
    assert "go on" not in story.told


def test_a_pause_is_still_from_the_merge_until_before_workers_are_told_to_go_on() -> None:
    story = Story(Due(checkpoint=True))
    board, said = story.session.board, list[tuple[Command, int]]()
    board.send = lambda command, number=0: said.append((command, board.control.get(Control.STILL, 0)))
    story.at(0.0)
    story.parked, story.pause_task.is_busy = {0, 1}, True
    story.at(0.1)
    assert not board.control.get(Control.STILL), "buffers are being merged"
    story.pause_task.is_busy = False
    story.at(0.2)
    assert (story.stage, board.control[Control.STILL]) == (PauseStage.COPYING, 1)
    story.copied()
    story.at(0.3)
    assert said == [(Command.PAUSE, 0), (Command.RUN, 0)]


@pytest.mark.parametrize("what", ["somebody trains", "somebody dies"])
def test_the_snapshot_waits_for_everybody_who_can_write(what: str) -> None:
    story = Story(Due(checkpoint=True))
    story.parked = {0, 1} if what == "somebody dies" else {1}
    story.roster.is_anyone_dying = what == "somebody dies"
    story.at(0.0, 0.1, 0.2, 3600.0)
    assert "checkpoint" not in story.told and story.attached == [0, 1]
    story.parked, story.roster.is_anyone_dying = {0, 1}, False
    story.at(3600.1)
    assert "checkpoint" in story.told


def test_the_end_of_a_job_waits_for_the_checkpoint_in_flight_without_blocking() -> None:
    outcome = Outcome("succeeded", "epochs")
    story = Story(Due(checkpoint=True, finish=outcome))
    story.parked, story.saving.is_busy = {0, 1}, True
    assert story.at(0.0, 0.1, 0.2) is None
    assert story.stage is PauseStage.CONCLUDING and "checkpoint" not in story.told
    story.saving.is_busy = False
    assert story.at(0.3) is None
    assert story.told[-1] == "checkpoint"
    story.copied()
    assert story.at(0.4) is outcome


def test_a_checkpoint_written_from_the_shared_memory_keeps_everybody_parked_until_it_is_written() -> None:
    story = Story(Due(checkpoint=True))
    story.parked = {0, 1}
    story.at(0.0)
    story.copied()
    story.saving.is_read_in_place = True
    story.at(0.1, 0.2)
    assert story.stage is PauseStage.WRITING
    assert story.pauses.queue is None and "go on" not in story.told
    story.saving.is_read_in_place = False
    story.at(0.3)
    assert story.pauses.current is None and story.told[-3:] == ["go on", ("RUN", 1), "wake"]


# ---- a stop is bounded ----------------------------------------------------------------------------------------------

TURN_S = 0.5


def turns(begin_s: float, span_s: float) -> list[float]:
    return [begin_s + TURN_S * k for k in range(int(span_s / TURN_S) + 1)]


@pytest.mark.parametrize("stop", [STOP, Outcome("stopped", "max_time_s")])
def test_who_does_not_park_within_the_grace_of_a_stop_is_fenced_and_the_checkpoint_made_without(stop: Outcome) -> None:
    story = Story(Due(checkpoint=True, finish=stop))
    story.parked = {0}
    story.at(*turns(0.0, GRACE_S))
    assert story.attached == [0, 1]
    story.at(GRACE_S + TURN_S)
    assert story.told[-2:] == [("fence", 1), ("kill", 1)] and story.attached == [0]
    story.at(*turns(GRACE_S + 2 * TURN_S, GRACE_S))  # killed but not reaped: it may still be in the middle of a write
    assert story.told[-1] == ("kill", 1)
    story.roster.is_anyone_dying = False
    story.at(100.0)
    assert story.told[-1] == "checkpoint"
    story.copied()
    assert story.at(100.1) is stop


def test_the_grace_counts_from_the_stop_and_not_from_a_pause_before_it() -> None:
    story = Story(Due(checkpoint=True))
    story.parked = {0}
    story.at(*turns(0.0, 5 * GRACE_S))
    story.session.stop = STOP
    story.at(*turns(5 * GRACE_S, GRACE_S - TURN_S))
    assert story.attached == [0, 1]
    story.at(*turns(6 * GRACE_S, TURN_S))
    assert story.attached == [0]


def test_time_in_which_the_supervisor_itself_was_stopped_is_no_part_of_the_grace() -> None:
    story = Story(Due(checkpoint=True, finish=STOP))
    story.parked = {0}
    story.at(*turns(0.0, 1.0), 31.0, *turns(31.0 + TURN_S, GRACE_S - 1.5))
    assert story.attached == [0, 1]
    story.at(31.0 + GRACE_S, 31.5 + GRACE_S)
    assert story.attached == [0]


def test_nobody_is_fenced_where_the_job_does_not_stop() -> None:
    for due in (Due(checkpoint=True), Due(evaluate=True), Due(finish=Outcome("succeeded", "epochs"))):
        story = Story(due)
        story.parked = {0}
        story.at(*turns(0.0, 10 * GRACE_S))
        assert story.attached == [0, 1]


class Waits(Exception):
    pass


def test_workers_start_before_the_first_wait() -> None:
    """A wait of the loop takes 50 ms where nothing happens, and nothing happens before there are workers."""
    supervisor: Any = object.__new__(Supervisor)
    for name in ("_session", "_watch", "_group", "_workers", "_answers", "_predictors", "_memory", "_pauses", "_step"):
        setattr(supervisor, name, MagicMock())
    supervisor._session.clock.longest_turn_s, supervisor._session.plan.rows = 0.0, 0
    supervisor._teams, supervisor._rounds, supervisor._outcome = [], None, None
    supervisor._group.wait.side_effect = Waits
    with pytest.raises(Waits):
        supervisor.run()
    supervisor._step.assert_called_once()


def test_what_is_no_request_is_answered_or_passed_over_and_the_next_is_read(tmp_path: Path) -> None:
    requests, folder = Requests(tmp_path / "requests"), tmp_path / "requests"
    assert not list(requests.look(0.0)), "nobody has asked anything yet"
    folder.mkdir()
    (folder / "a.json").mkdir()
    os.mkfifo(folder / "b.json")
    (folder / "c.json").symlink_to("nowhere")
    (folder / "d.json").write_text('{"ask": ')
    (folder / "e.json").write_text("[1]")
    (folder / "f.json").write_bytes(b"\xff\xfe")
    (folder / "g.json").write_text("[" * MOST_BYTES)
    (folder / "h.json").write_text('{"ask": "' + "x" * MOST_BYTES + '"}')
    (folder / "i.tmp").write_text('{"ask": "resize", "procs": 1}')
    (folder / "j.json").write_text('{"ask": "resize", "procs": 3}')
    found = dict(requests.look(LOOK_S))
    assert found == {**{name: {} for name in "bdefgh"}, "j": {"ask": "resize", "procs": 3}}
    assert not dict(requests.look(2 * LOOK_S)), "each is answered once"
    assert sorted(file.name for file in folder.iterdir()) == ["a.json", "c.json", "i.tmp"]


def test_requests_to_an_earlier_attempt_are_not_answered_by_this_one_but_early_ones_are(tmp_path: Path) -> None:
    """A resume opens the run first of all: what is asked while it is being built is answered once it trains."""
    run = tmp_path / "run"
    (run / "requests").mkdir(parents=True)
    (run / "resolved.yaml").touch()
    (run / "requests" / "old.json").write_text('{"ask": "resize", "procs": 3}')
    (run / "requests" / ".tmp-half").write_text("{")
    with RunDir.open(run) as opened:
        (run / "requests" / "new.json").write_text('{"ask": "stacks"}')
        assert dict(Requests(opened.requests).look(0.0)) == {"new": {"ask": "stacks"}}
