"""A worker pulls items over its own pipes until told to leave. No torch here: the trainer is given.

hand (leases pulled, in order) -> train or evaluate -> ack          waiting: beat, five times a second
control row says PAUSE: park between two exchanges, evaluate what is leased meanwhile, go on in the middle of the item
"""

import contextlib
import os
import select
import socket
import traceback
from collections import deque
from collections.abc import Callable
from typing import Protocol

from hogwild.errors import NOT_FINITE, DeviceMemoryError, HogwildError
from hogwild.monitoring.profile_report import PAUSE
from hogwild.scheduling.work_queue import Kind, WorkItem
from hogwild.shared_memory.scoreboard import Command, Control, Phase, Word
from workers.child.trainer import NonFiniteGradient, Trainer
from workers.messages import LOOK, Leaving, ParentGone, Report, Start, read_records, write_record

_COMMAND, _ACTIVE = int(Control.COMMAND), int(Control.ACTIVE)  # plain integers: looked at before every update
_FIRST_ITEM = int(Control.FIRST_ITEM)
_RUN, _PAUSE = int(Command.RUN), int(Command.PAUSE)
WAIT_MS = 200  # between two beats of a worker that has nothing to do


class WorkerLoop:
    """Pulls items over the worker's own pipes. Never waits without beating, never without watching the lifeline."""

    def __init__(self, start: Start, trainer: Trainer, leaving: Leaving) -> None:
        self._start = start
        self._trainer = trainer
        self._row = trainer.row
        self._board = trainer.row.board
        self._leaving = leaving
        self._hand: deque[int] = deque()
        self._over = 0  # the last pause that it was told is over
        self.path = trainer.path
        self.item: WorkItem | None = None
        self._poll = select.poll()
        self._poll.register(start.lease_read, select.POLLIN)
        self._poll.register(start.lifeline, select.POLLIN)

    def run(self) -> None:
        """Returns when told to leave, by the control row or by SIGTERM."""
        while (item := self._next()) is not None:
            self.item = item
            if item.kind is not Kind.TRAIN:
                self._trainer.profile.enter(PAUSE)
                self._evaluate(item)
                continue
            self._trainer.catch_up()  # the run may have gone back while this worker was being built
            skipped = self._trainer.train(item, self._may_train)
            if skipped is None and self._trainer.is_void(item):
                continue
            if skipped is None:
                break
            self._row.enter(Phase.WAITING)
            write_record(self._start.ack_write, skipped, item.id)
        self._trainer.rest()
        self._row.enter(Phase.LEAVING)

    def close(self) -> None:
        """The worker leaves, however that came."""
        self._trainer.profile.close()
        self._trainer.model.close()

    def _evaluate(self, item: WorkItem) -> None:
        self._trainer.catch_up()
        self._trainer.evaluate(item)
        self._row.enter(Phase.PARKED if self._command() == Command.PAUSE else Phase.WAITING)
        write_record(self._start.ack_write, 0, item.id)

    def _next(self) -> WorkItem | None:
        """The next item in hand; waits for one. None: leave."""
        self._trainer.profile.enter("wait")
        self._row.enter(Phase.WAITING)
        while True:
            if not self._may_go_on():
                return None
            self._pull(0)
            self._drop_void()
            if self._hand:
                return self._board.read_item(self._hand.popleft())
            self._pull(WAIT_MS)

    def _drop_void(self) -> None:
        """Of the hand: what was leased before the run went back to a checkpoint. Its rows of the item table may be
        others' by now."""
        first = self._board.control_words[_FIRST_ITEM]
        while self._hand and self._hand[0] < first:  # ids grow
            self._hand.popleft()

    def _may_train(self) -> bool:
        """Asked between two exchanges of the item. False: leave it, or leave altogether."""
        if self._command() == _RUN and not self._leaving.asked:
            return True
        return self._may_go_on() and self.item is not None and not self._trainer.is_void(self.item)

    def _may_go_on(self) -> bool:
        """Asked between two exchanges. Parks as long as the control row says so."""
        command = self._command()
        if command == Command.RUN and not self._leaving.asked:
            return True
        return command == Command.PAUSE and not self._leaving.asked and self._park()

    def _command(self) -> int:
        """What the control row wants of this worker: those behind `ACTIVE` stay parked."""
        words = self._board.control_words
        command: int = words[_COMMAND]
        return _PAUSE if command == _RUN and 0 < words[_ACTIVE] <= self._row.worker else command

    def _park(self) -> bool:
        """Says that the flats are at rest as far as this worker goes; evaluates meanwhile. False: leave."""
        self._trainer.flush()
        self._trainer.profile.enter(PAUSE)
        self._trainer.rest()  # what user code rebound or a device has would be missing from the merge and the snapshot
        phase = int(self._row.words[Word.PHASE])
        announced = 0
        # RUN is believed once a record says so: what was stored before it, by a rollback for instance, is there then.
        while (command := self._command()) == Command.PAUSE or (command == Command.RUN and self._over < announced):
            if self._leaving.asked:
                return False
            number = int(self._board.control[Control.PAUSE])
            if number != announced:
                self._row.enter(Phase.PARKED)
                self._row.words[Word.PARKED] = announced = number
                write_record(self._start.ack_write, number, LOOK)
            self._drop_void()
            while (item := self._evaluation_in_hand()) is not None:  # perhaps pulled before we parked
                self._evaluate(item)
            self._pull(WAIT_MS)
        if command != Command.RUN or self._leaving.asked:
            return False  # without making anything again, only to leave
        is_void = self.item is not None and self._trainer.is_void(self.item)
        self._row.enter(Phase.WAITING if is_void else Phase(phase))
        self._trainer.profile.enter("wait")
        self._trainer.catch_up()
        self._trainer.follow()
        return True

    def _evaluation_in_hand(self) -> WorkItem | None:
        for item_id in self._hand:
            item = self._board.read_item(item_id)
            if item.kind is not Kind.TRAIN:
                self._hand.remove(item_id)
                return item
        return None

    def _pull(self, wait_ms: int) -> None:
        """Moves the leases that have arrived into the hand; waits up to `wait_ms` for something to happen."""
        for descriptor, events in self._poll.poll(wait_ms):
            if descriptor == self._start.lifeline or events & (select.POLLHUP | select.POLLERR):
                raise ParentGone
            for first, item in read_records(descriptor):
                if item != LOOK:
                    self._hand.append(item)
                else:
                    self._over = max(self._over, first)
        self._row.beat()


class Loop(Protocol):
    """What a child does between its set-up and its end: a worker's loop, or a loader's."""

    path: str
    item: WorkItem | None

    def run(self) -> None: ...
    def close(self) -> None: ...


def serve(start: Start, channel: socket.socket, leaving: Leaving, make: "Callable[[], Trainer | Loop]") -> int:
    """The exit status of the child. An exception of the user's code is reported over the socket before it ends us.
    `make` answers a trainer, whose items are pulled, or a loop of its own."""
    loop: Loop | None = None
    try:
        made = make()
        loop = WorkerLoop(start, made, leaving) if isinstance(made, Trainer) else made
        Report("ready", detail=loop.path).send(channel)
        write_record(start.ack_write, 0, LOOK)
        loop.run()
    except ParentGone:
        os._exit(1)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # the last two only a user's own code raises here
        with contextlib.suppress(ParentGone):
            _report(error, loop.item if loop else None).send(channel)
        traceback.print_exc()
        return 1
    finally:
        if loop is not None:
            loop.close()
    return 0


def _code(error: BaseException) -> str:
    if isinstance(error, NonFiniteGradient):
        return NOT_FINITE
    return error.code if isinstance(error, HogwildError) else ""


def _report(error: BaseException, item: WorkItem | None) -> Report:
    hopeless = isinstance(error, HogwildError | NonFiniteGradient) and not isinstance(error, DeviceMemoryError)
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    return Report(
        "error",
        detail=(
            str(error) if isinstance(error, HogwildError | NonFiniteGradient) else f"{type(error).__name__}: {error}"
        )
        + (f" (epoch {item.epoch})" if item else ""),
        error_type=type(error).__name__,
        place=f"{last.filename}:{last.lineno}" if last else "",
        hopeless=hopeless,
        traceback="".join(traceback.format_exception(error)),
        code=_code(error),
    )
