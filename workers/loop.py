"""A worker after its first lines: map the shared memory, build the trainer, then pull items until told to leave.

hand (leases pulled, in order) -> train or evaluate -> ack          waiting: beat, five times a second
control row says PAUSE: park between two exchanges, evaluate what is leased meanwhile, go on in the middle of the item
"""

import os
import select
import socket
import sys
import traceback
from collections import deque
from collections.abc import Mapping

import cloudpickle
import torch

from hogwild.errors import HogwildError
from hogwild.params import WorkerModel
from hogwild.pools import limit_pools
from hogwild.scoreboard import Command, Control, Phase, Row, Scoreboard, Word
from hogwild.shm import Region
from hogwild.traces import PAUSE
from hogwild.workqueue import Kind, WorkItem
from workers.entry import Leaving, Start, settle
from workers.messages import LOOK, Report, Setup, read_records, write_record
from workers.profile import make_profile
from workers.trainer import Kit, NonFiniteGradient, Trainer

_COMMAND, _ACTIVE = int(Control.COMMAND), int(Control.ACTIVE)  # plain integers: looked at before every update
_RUN, _PAUSE = int(Command.RUN), int(Command.PAUSE)
WAIT_MS = 200  # between two beats of a worker that has nothing to do


class ParentGone(Exception):
    """End-of-file on the lifeline or the lease pipe: nobody is left to report to."""


class WorkerLoop:
    """Pulls items over the worker's own pipes. Never waits without beating, never without watching the lifeline."""

    def __init__(self, start: Start, trainer: Trainer, leaving: Leaving) -> None:
        self._start = start
        self._trainer = trainer
        self._row = trainer.row
        self._board = trainer.row.board
        self._leaving = leaving
        self._hand: deque[int] = deque()
        self.item: WorkItem | None = None
        self._poll = select.poll()
        self._poll.register(start.lease_read, select.POLLIN)
        self._poll.register(start.lifeline, select.POLLIN)

    def run(self) -> None:
        """Returns when told to leave, by the control row or by SIGTERM."""
        while (item := self._next()) is not None:
            self.item = item
            if item.kind is Kind.EVALUATE:
                self._trainer.profile.enter(PAUSE)
                self._evaluate(item)
                continue
            skipped = self._trainer.train(item, self._may_go_on)
            if skipped is None:
                break
            self._row.enter(Phase.WAITING)
            write_record(self._start.ack_write, skipped, item.id)
        self._row.enter(Phase.LEAVING)

    def close(self) -> None:
        """The worker leaves, however that came."""
        self._trainer.profile.close()

    def _evaluate(self, item: WorkItem) -> None:
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
            if self._hand:
                return self._board.read_item(self._hand.popleft())
            self._pull(WAIT_MS)

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
        self._trainer.model.check_bound()  # what user code rebound would be missing from the merge and the snapshot
        phase = int(self._row.words[Word.PHASE])
        announced = 0
        while (command := self._command()) == Command.PAUSE and not self._leaving.asked:
            number = int(self._board.control[Control.PAUSE])
            if number != announced:
                self._row.enter(Phase.PARKED)
                self._row.words[Word.PARKED] = announced = number
                write_record(self._start.ack_write, 0, LOOK)
            self._pull(WAIT_MS)
            while (item := self._evaluation_in_hand()) is not None:
                self._evaluate(item)
        self._row.enter(Phase(phase))
        self._trainer.profile.enter("wait")
        self._trainer.follow()
        return command == Command.RUN and not self._leaving.asked

    def _evaluation_in_hand(self) -> WorkItem | None:
        for item_id in self._hand:
            item = self._board.read_item(item_id)
            if item.kind is Kind.EVALUATE:
                self._hand.remove(item_id)
                return item
        return None

    def _pull(self, wait_ms: int) -> None:
        """Moves the leases that have arrived into the hand; waits up to `wait_ms` for something to happen."""
        for descriptor, events in self._poll.poll(wait_ms):
            if descriptor == self._start.lifeline or events & (select.POLLHUP | select.POLLERR):
                raise ParentGone
            self._hand.extend(item for _, item in read_records(descriptor) if item != LOOK)
        self._row.beat()


def run(start: Start, channel: socket.socket, leaving: Leaving) -> int:
    """The exit status of the worker. An exception of the user's code is reported over the socket before it ends us."""
    loop: WorkerLoop | None = None
    try:
        setup, descriptors = Setup.receive(channel)
        settle(setup.log, setup.stacks)
        trainer = _build(start, setup, descriptors)
        loop = WorkerLoop(start, trainer, leaving)
        Report("ready", detail=trainer.update.path).send(channel)
        write_record(start.ack_write, 0, LOOK)
        loop.run()
    except (ParentGone, EOFError):
        os._exit(1)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # the last two only a user's own code raises here
        traceback.print_exc()
        _report(error, loop.item if loop else None).send(channel)
        return 1
    finally:
        if loop is not None:
            loop.close()
    return 0


def _build(start: Start, setup: Setup, descriptors: list[int]) -> Trainer:
    # The user's own folders come behind ours in time, not in order: everything of ours is imported by now, so a user's
    # own `workers/` or `hogwild/` shadows nothing.
    sys.path[:] = setup.sys_path
    if setup.folder:
        os.chdir(setup.folder)  # user code may have changed it since this process was started
    _inherit(setup.environment, {name for name, _ in start.environment})
    torch.set_flush_denormal(setup.flush_denormal)  # first: the threads made later inherit it
    torch.set_num_threads(setup.threads)
    torch.set_num_interop_threads(1)
    regions = {
        name: Region.attach(descriptor, nbytes)
        for (name, nbytes), descriptor in zip(setup.regions, descriptors, strict=True)
    }
    board = Scoreboard(regions.pop("scoreboard"), setup.procs)
    row = Row(board, start.worker)
    row.beat()
    kit: Kit = cloudpickle.loads(_blob(regions.pop("kit"), setup.kit_nbytes))
    structure = _blob(regions.pop("structure"), setup.structure_nbytes)
    trainer = make_trainer(kit, structure, regions, row, start.worker)
    # After the structure, which imports the user's modules: they may have set another number, or brought a pool.
    for pool in limit_pools(setup.threads):
        print(f"{pool}, limited to {setup.threads}", flush=True)
    torch.set_num_threads(setup.threads)  # which reaches the MKL inside torch, too
    return trainer


def make_trainer(kit: Kit, structure: bytes, regions: Mapping[str, Region], row: Row, worker: int) -> Trainer:
    """A trainer over mapped regions: `data-train` and `data-val` hold the data, the others the model."""
    model_regions = {name: region for name, region in regions.items() if not name.startswith("data-")}
    model = WorkerModel.attach(structure, model_regions, worker)
    train = kit.train.feed(regions["data-train"], kit.seed)
    val = kit.val.feed(regions["data-val"], kit.seed) if kit.val is not None else None
    return Trainer(kit, model, train, val, row, make_profile(kit.profile, worker))


def _inherit(changes: Mapping[str, str | None], ours: set[str]) -> None:
    """What user code in the supervisor has done to the environment since this process was started; `ours` are the
    plan's."""
    for name in changes.keys() - ours:
        value = changes[name]
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _blob(region: Region, nbytes: int) -> bytes:
    return region.array("u1", (nbytes,)).tobytes()


def _report(error: BaseException, item: WorkItem | None) -> Report:
    hopeless = isinstance(error, HogwildError | NonFiniteGradient)
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    return Report(
        "error",
        detail=(str(error) if hopeless else f"{type(error).__name__}: {error}")
        + (f" (epoch {item.epoch})" if item else ""),
        error_type=type(error).__name__,
        place=f"{last.filename}:{last.lineno}" if last else "",
        hopeless=hopeless,
        traceback="".join(traceback.format_exception(error)),
    )
