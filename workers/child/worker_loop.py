"""The loop of a worker. No torch here: the trainer is passed in.

    pulled leases, in order -> train or evaluate -> ack          waiting: beat, five times a second

On PAUSE in the control row it parks between two exchanges, evaluates leased slices, then continues inside the item.
"""

import contextlib
import os
import socket
import traceback
from collections import deque
from collections.abc import Callable

from hogwild.errors import DeviceMemoryError, HogwildError
from hogwild.monitoring.profile_report import PAUSE
from hogwild.scheduling.work_queue import Kind, WorkItem
from hogwild.shared_memory.scoreboard import Command, Control, Phase, Word
from hogwild.user_code import raised_text, user_frame
from hogwild.workers.child.trainer import NonFiniteGradient, Trainer
from hogwild.workers.messages import LOOK, Leases, Leaving, ParentGone, Report, Start, write_record

_COMMAND = int(Control.COMMAND)  # plain integers: read before every update
_FIRST_ITEM = int(Control.FIRST_ITEM)
_RUN = int(Command.RUN)
WAIT_MS = 200  # between two beats of an idle worker


class Loop:
    """The work of a child between set-up and end. `item`: the lease that a failure is reported for; `path`: of its
    updates, and why."""

    path = ""
    item: WorkItem | None = None

    def run(self) -> None:
        """Work until told to leave. Raises ParentGone."""
        raise NotImplementedError

    def close(self) -> None:
        """Close what is open: the process ends, for any reason."""


class WorkerLoop(Loop):
    """Pulls items over the worker's own pipes. Every wait beats and watches the lifeline."""

    def __init__(self, start: Start, trainer: Trainer, leaving: Leaving) -> None:
        self._start = start
        self._trainer = trainer
        self._row = trainer.row
        self._board = trainer.row.board
        self._leaving = leaving
        self._hand: deque[int] = deque()
        self._over = 0  # the last pause that is over, as told by a record
        self.path = trainer.path
        self._leases = Leases(start)

    def run(self) -> None:
        """Process items until told to leave, by the control row or by SIGTERM."""
        while (item := self._next()) is not None:
            self.item = item
            if item.kind is not Kind.TRAIN:
                self._trainer.profile.enter(PAUSE)
                self._evaluate(item)
                continue
            self._trainer.catch_up()  # a rollback may have happened while this worker was built
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
        self._trainer.profile.close()
        self._trainer.model.close()

    def _evaluate(self, item: WorkItem) -> None:
        self._trainer.catch_up()
        self._trainer.evaluate(item)
        self._row.enter(Phase.PARKED if self._command() == Command.PAUSE else Phase.WAITING)
        write_record(self._start.ack_write, 0, item.id)

    def _next(self) -> WorkItem | None:
        """Return the next pulled item, or wait for one. None: leave."""
        self._trainer.profile.enter("wait")
        self._row.enter(Phase.WAITING)
        while True:
            if not self._may_go_on():
                return None
            if not self._hand:
                self._pull(0)
            self._drop_void()
            if self._hand:
                return self._board.read_item(self._hand.popleft())
            self._pull(WAIT_MS)

    def _drop_void(self) -> None:
        """Drop pulled items that were leased before the last rollback: their rows of the item table may be reused by
        now."""
        first = self._board.control_words[_FIRST_ITEM]
        while self._hand and self._hand[0] < first:  # ids increase
            self._hand.popleft()

    def _may_train(self) -> bool:
        """Return whether to continue the item; called between two exchanges. False: drop the item, or leave."""
        if self._command() == _RUN and not self._leaving.asked:
            return True
        return self._may_go_on() and self.item is not None and not self._trainer.is_void(self.item)

    def _may_go_on(self) -> bool:
        """Return whether to continue; parks while the control row says so. Called between two exchanges."""
        command = self._command()
        if command == Command.RUN and not self._leaving.asked:
            return True
        return command == Command.PAUSE and not self._leaving.asked and self._park()

    def _command(self) -> int:
        """Return the control row's command."""
        command: int = self._board.control_words[_COMMAND]
        return command

    def _park(self) -> bool:
        """Report that this worker no longer writes the flats; evaluate meanwhile. False: leave."""
        self._trainer.flush()
        self._trainer.profile.enter(PAUSE)
        self._trainer.rest()  # else rebound or device values would be missing from the merge and the snapshot
        phase = int(self._row.words[Word.PHASE])
        announced = 0
        # Trust RUN only after a record confirms it: then earlier stores, for instance of a rollback, are visible.
        while (command := self._command()) == Command.PAUSE or (command == Command.RUN and self._over < announced):
            if self._leaving.asked:
                return False
            number = int(self._board.control[Control.PAUSE])
            if number != announced:
                self._row.enter(Phase.PARKED)
                self._row.words[Word.PARKED] = announced = number
                write_record(self._start.ack_write, number, LOOK)
            self._drop_void()
            while (item := self._evaluation_in_hand()) is not None:  # may have been pulled before we parked
                self._evaluate(item)
            self._pull(WAIT_MS)
        if command != Command.RUN or self._leaving.asked:
            return False  # leaving: do not rebuild anything
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
        """Queue the leases that have arrived; wait up to `wait_ms` for one."""
        for first, item in self._leases.pull(wait_ms):
            if item != LOOK:
                self._hand.append(item)
            else:
                self._over = max(self._over, first)
        self._row.beat()


def serve(start: Start, channel: socket.socket, leaving: Leaving, make: "Callable[[], Trainer | Loop]") -> int:
    """Run the child; return its exit status. An exception of user code is reported over the socket before the child
    ends. `make` returns a trainer, whose items are pulled, or a loop."""
    loop: Loop | None = None
    try:
        made = make()
        loop = WorkerLoop(start, made, leaving) if isinstance(made, Trainer) else made
        Report("ready", detail=loop.path).send(channel)
        loop.run()
    except ParentGone:
        os._exit(1)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # the last two come only from user code
        with contextlib.suppress(ParentGone):
            _report(error, loop.item if loop else None).send(channel)
        traceback.print_exc()
        return 1
    finally:
        if loop is not None:
            loop.close()
    return 0


def _report(error: BaseException, item: WorkItem | None) -> Report:
    is_ours, name = isinstance(error, HogwildError | NonFiniteGradient), type(error).__name__
    during = f"epoch {item.epoch}: " if item else ""
    return Report(
        "error",
        detail=during + (str(error) if is_ours else raised_text(error)),
        error_type=name,
        place=user_frame(error),
        hopeless=is_ours and not isinstance(error, DeviceMemoryError),
        traceback="".join(traceback.format_exception(error)),
        code=error.code if isinstance(error, HogwildError | NonFiniteGradient) else "",
    )
