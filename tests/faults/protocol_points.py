"""A worker killed at every bytecode between reading a lease and its acknowledgement, one after the other.

    n = 1, 2, 3, …   lease an item to a fresh worker, which kills itself before the n-th bytecode of these modules
                     -> reap, read its row, release -> another worker does the rest of the epoch -> are the books right?
    until the worker comes through: then there was no point left

The path is the same every time: leases wait in the pipe before they are looked for, nothing is read from the clock, and
the supervisor acts only when the worker sleeps. `python -m tests.faults.protocol_points NAME`."""

import argparse
import gc
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from types import FrameType, SimpleNamespace
from typing import Any

from hogwild import host
from hogwild.metrics.result_row import EvalSums
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.scheduling.work_queue import Kind, Limits, Release, WorkItem, WorkQueue
from hogwild.shared_memory import scoreboard
from hogwild.shared_memory.scoreboard import Command, Control, Phase, Scoreboard
from hogwild.workers import messages
from hogwild.workers.child import trainer
from hogwild.workers.child.spec import Compute, DataSide, DataSpec, Numerics, Rules, WorkerSpec
from hogwild.workers.messages import Start
from hogwild.workers.processes.handle import Handle
from tests.faults import protocol_scenario
from tests.faults.protocol_crew import Nursery
from tests.faults.protocol_scenario import (
    CountingEvaluator,
    CountingExchange,
    CountingFeed,
    CountingModel,
    CountingUpdate,
    Crimes,
    Effects,
    Memory,
    NumberedBatch,
    StillPlace,
)

TRACED = {module.__file__ for module in (trainer, scoreboard, messages, protocol_scenario)}
PASSED = 77  # the exit status of a victim that came through
VICTIM, HEIR = 0, 1
MOST_POINTS = 20_000
VAL_BATCHES = 2
PATIENCE_MS = 300_000


@dataclass(frozen=True, slots=True)
class Item:
    """The victim's work: all batches of an epoch but one. `parks`: before its second update, and evaluates."""

    updates: int
    sync_every: int
    parks: bool = False
    redo: bool = True

    @property
    def batches(self) -> int:
        return self.updates + 1


ITEMS = {
    "direct": Item(updates=2, sync_every=0),
    "delta": Item(updates=3, sync_every=2),  # one flush in the middle, one at the end
    "park": Item(updates=2, sync_every=2, parks=True, redo=False),
}


class Tracer:
    """Kills this process before the `at`-th bytecode of the protocol's modules; counted from the first look for a lease
    to the next one, where it ends the process with PASSED."""

    def __init__(self, at: int) -> None:
        self._left = at
        self._looks = 0

    def call(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if code.co_filename not in TRACED:
            return None
        if code is trainer.WorkerLoop._next.__code__:
            self._looks += 1
            if self._looks == 2:
                os._exit(PASSED)
        if not self._looks:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "opcode":
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.step


class PausingFeed(CountingFeed):
    """Plays the supervisor for a moment, at an exact one: before the second batch of its worker it says PAUSE."""

    def __init__(self, batches: int, crimes: Crimes, board: Scoreboard, pause: int) -> None:
        super().__init__(batches, crimes)
        self._board, self._pause, self._gathered = board, pause, 0

    def gather(self, epoch: int, number: int) -> NumberedBatch:
        self._gathered += 1
        if self._gathered == 1:  # asked for before the next update
            self._board.send(Command.PAUSE, self._pause)
        return super().gather(epoch, number)


class Sweep:
    """All points of one item. `violations` are sentences, each with its point."""

    def __init__(self, name: str, every: int) -> None:
        self.item, self.every = ITEMS[name], every
        limits = Limits(procs=1, epochs=MOST_POINTS, redo_indeterminate=self.item.redo)
        self.queue = WorkQueue(BatchPlan(self.item.batches, 1), limits)
        self.violations: list[str] = []
        self.doubtful = 0
        self._board = Scoreboard(Memory(Scoreboard.nbytes(2)), 2)  # type: ignore[arg-type]
        self._board.set_exchange(self.item.sync_every)
        self._effects = Effects(2, self.item.batches * MOST_POINTS)
        split = DataSpec((), self.queue.plan, "none")
        worker_spec = WorkerSpec(Compute(), DataSide(split, split), Rules(0))
        self._nursery = Nursery(self._board, worker_spec, self._numerics)
        self._sequence, self._ids = count(1), count(1)
        self.queue._ids = self._ids
        self._point = 0
        self._evaluation: WorkQueue | None = None
        self._sums = EvalSums()

    def _numerics(self, worker: int, incarnation: int) -> Numerics:
        crimes = SimpleNamespace(look=lambda: None, forward=lambda batch: None, apply=lambda batch: None)
        exchange = CountingExchange(self._effects, worker, crimes)  # type: ignore[arg-type]
        feed = CountingFeed(self.item.batches, crimes)  # type: ignore[arg-type]
        if self.item.parks and worker == VICTIM:
            feed = PausingFeed(self.item.batches, crimes, self._board, incarnation)  # type: ignore[arg-type]
        update = CountingUpdate(exchange, crimes, set(), spin=0)  # type: ignore[arg-type]
        return Numerics(CountingModel(exchange), update, feed, CountingEvaluator(crimes), StillPlace())  # type: ignore[arg-type]

    def run(self) -> int:
        """Return the number of points."""
        self._board.renew(HEIR, 1)
        heir = self._nursery.spawn(HEIR, 1)
        gc.freeze()
        gc.disable()  # a collection touches every page that a child shares with us
        for self._point in count(1):
            status, release = self._kill_at(self._point)
            self._finish_epoch(heir)
            self._check(release)
            if status != -signal.SIGKILL:
                break
        if status != PASSED:
            self.violations.append(f"point {self._point}: the victim ended with {status}")
        self._board.send(Command.LEAVE)
        heir.wake()
        host.wait_readable([heir.pidfd], PATIENCE_MS)
        if heir.reap() != 0:
            self.violations.append(f"the heir did not leave in order: {heir.error}")
        heir.close()
        self._nursery.cut_lifeline()
        return (self._point - 1) * self.every

    # ---- the victim ----------------------------------------------------------------------------------------------

    def _kill_at(self, point: int) -> tuple[int, Release]:
        self.queue.open_until = point
        self._board.renew(VICTIM, point)
        self._evaluation, self._sums = None, EvalSums()
        handle = self._nursery.spawn(VICTIM, point, lambda start: _get_ready(start, 1 + (point - 1) * self.every))
        self.queue.limits.sync_every = self.item.updates  # an item holds a whole exchange: so long shall it be
        self._lease(handle, self.queue.lease(VICTIM))
        self.queue.limits.sync_every = self.item.sync_every or 1
        is_resumed = not self.item.parks
        while (status := handle.reap()) is None:
            _wait(handle)
            self._acknowledge(handle)
            is_resumed = is_resumed or self._attend(handle)
        self._acknowledge(handle)
        release = self.queue.release(VICTIM, self._board.progress(VICTIM))
        if self._evaluation is not None:
            self._evaluation.release(VICTIM, self._board.progress(VICTIM, Phase.EVALUATING))
        handle.close()
        return status, release

    def _attend(self, handle: Handle) -> bool:
        """The pause: an evaluation when it has parked, then training again. True when it goes on."""
        if handle.parked_in != self._point:
            return False
        if self._evaluation is None:
            limits = Limits(procs=1, sync_every=VAL_BATCHES)
            plan = BatchPlan(VAL_BATCHES, 1)
            self._evaluation = WorkQueue(plan, limits, kind=Kind.EVALUATE, ids=self._ids)
            self._lease(handle, self._evaluation.lease(VICTIM))
        if not self._evaluation.is_finished or host.process_status(handle.pid) != "sleeping":
            return False
        self._board.send(Command.RUN, self._point)
        handle.wake(self._point)
        return True

    # ---- the heir, and both --------------------------------------------------------------------------------------

    def _finish_epoch(self, heir: Handle) -> None:
        while self._evaluation is not None and not self._evaluation.is_finished:
            self._serve(heir, self._evaluation)
        if self._board.control[Control.COMMAND] == Command.PAUSE:
            self._board.send(Command.RUN, self._point)
        heir.wake(self._point)  # it may have seen the pause
        self.queue.limits.sync_every = self.item.batches
        while not self.queue.is_epoch_settled(self._point - 1):
            self._serve(heir, self.queue)

    def _serve(self, heir: Handle, queue: WorkQueue) -> None:
        item = queue.lease(HEIR)
        if item is not None:
            self._lease(heir, item)
        else:
            _wait(heir)
        assert heir.reap() is None, f"the heir died: {heir.error}"
        self._acknowledge(heir)

    def _lease(self, handle: Handle, item: WorkItem | None) -> None:
        assert item is not None
        self._board.write_item(item)
        handle.lease(next(self._sequence), item.id)

    def _acknowledge(self, handle: Handle) -> None:
        for skipped, item_id in handle.acks():
            if self.queue.ack(handle.number, item_id, skipped) is None and self._evaluation is not None:
                item = self._evaluation.ack(handle.number, item_id, 0)
                if item is not None:
                    self._sums += EvalSums.read(self._board.result(item.id))

    # ---- the books -----------------------------------------------------------------------------------------------

    def _check(self, release: Release) -> None:
        """Check the ledger of the epoch that this point had for itself."""
        first = (self._point - 1) * self.item.batches
        effects = self._effects.counts[:, first : first + self.item.batches].sum(axis=0).tolist()
        expected = [{1}] * self.item.batches
        if release.indeterminate:
            assert release.charged is not None
            start = release.charged[1]
            either = {1, 2} if self.item.redo else {0, 1}
            expected[start : start + release.indeterminate] = [either] * release.indeterminate
            self.doubtful += 1
        if any(count not in allowed for count, allowed in zip(effects, expected, strict=True)):
            self._violated(f"effects {effects}, {release}")
        if self._effects.applying[VICTIM] and not release.indeterminate:
            self._violated("died in the middle of an apply, and nothing is in doubt")
        self._effects.applying[VICTIM] = 0
        ledger = self.queue.ledger
        if ledger.quarantined or ledger.finished != self._point * self.item.batches:
            self._violated(f"no partition: {ledger}")
        if self._evaluation is not None and self._sums.words[:2] != (1.0, VAL_BATCHES):
            self._violated(f"the evaluation adds up to {self._sums}")

    def _violated(self, sentence: str) -> None:
        self.violations.append(f"point {self._point}: {sentence}")


def _wait(handle: Handle) -> None:
    poll = select.poll()
    for descriptor in (handle.pidfd, handle.ack_read):
        poll.register(descriptor, select.POLLIN)
    found = poll.poll(1)  # ms: a victim that has acknowledged may still be on its way to sleep
    if any(events & (select.POLLHUP | select.POLLIN) == select.POLLHUP for _, events in found):
        host.wait_readable([handle.pidfd], PATIENCE_MS)  # its pipes are closed before it can be reaped


def _get_ready(start: Start, point: int) -> None:
    """In the victim: its lease is there before it looks for it, no clock decides a branch, no wait ends by time."""
    select_poll = select.poll()
    select_poll.register(start.lease_read, select.POLLIN)
    select_poll.poll(PATIENCE_MS)
    ticks = count(1)
    clock = SimpleNamespace(monotonic_ns=lambda: 1000 * next(ticks))
    scoreboard.time = trainer.time = clock  # type: ignore[assignment]
    trainer.WAIT_MS = PATIENCE_MS
    sys.settrace(Tracer(point).call)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=ITEMS)
    parser.add_argument("--every", type=int, default=1)
    given = parser.parse_args()
    sweep = Sweep(given.name, given.every)
    points = sweep.run()
    ledger = sweep.queue.ledger
    print(
        json.dumps(
            {
                "points": points,
                "violations": sweep.violations,
                "points in doubt": sweep.doubtful,
                "indeterminate": ledger.indeterminate,
                "redone": ledger.redone,
                "has_torch": "torch" in sys.modules,
            }
        )
    )
    return bool(sweep.violations)


if __name__ == "__main__":
    sys.exit(main())
