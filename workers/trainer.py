"""What a worker does with an item: train its batches, exchange by exchange, or evaluate them. No pipes here:
`loop.py` runs a `Trainer` in a child process, `inline.py` in the supervisor itself (`procs: 0`).

One exchange:   gather -> forward, backward (privately) -> finite? -> intent -> apply to the flats -> commit -> counters
A kill before *intent* costs nothing, after *commit* nothing; between them the exchange is in doubt, and only that one.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hogwild.batches import BatchPlan, batch_seed
from hogwild.feeds import FieldSpec, ResidentData, ResidentFeed
from hogwild.metrics import EvalSums, evaluate_batch
from hogwild.params import WorkerModel
from hogwild.scoreboard import Phase, Row, Scoreboard
from hogwild.shm import Region
from hogwild.updates import AutogradUpdate
from hogwild.workqueue import WorkItem

CHECK_BOUND_EVERY = 256  # updates between two looks at where the parameters lie


class NonFiniteGradient(Exception):
    """A loss or gradient is NaN or infinite and the job says `on_nan: fail`."""


@dataclass(frozen=True, slots=True)
class Split:
    """One data set as a worker finds it: the fields in its region, and how it is cut into batches."""

    fields: tuple[FieldSpec, ...]
    plan: BatchPlan
    shuffle: bool

    def feed(self, region: Region, seed: int) -> ResidentFeed:
        return ResidentFeed(ResidentData(region, self.fields), self.plan, seed=seed, shuffle=self.shuffle)


@dataclass(frozen=True, slots=True)
class Kit:
    """What a worker must know about the job, besides the model; written once with cloudpickle, read by every worker."""

    seed: int
    train: Split
    val: Split | None
    accumulate: int
    grad_clip: float | None
    schedule: Callable[[int], float] | None
    fail_on_nan: bool


class Trainer:
    """Trains and evaluates items on one worker's view of the model."""

    def __init__(self, kit: Kit, model: WorkerModel, train: ResidentFeed, val: ResidentFeed | None, row: Row) -> None:
        self.kit = kit
        self.model = model
        self.update = AutogradUpdate(model, grad_clip=kit.grad_clip)
        self.train_feed = train
        self.val_feed = val
        self.row = row
        self._board: Scoreboard = row.board
        self._until_check = 1  # what is wrong from the beginning is found before the first commit

    def train(self, item: WorkItem, may_go_on: Callable[[], bool]) -> int | None:
        """Trains every exchange of `item`; returns how many batches were skipped. `may_go_on` is asked before each
        exchange: it may park the worker for a while, and False ends the work at this boundary (returns None)."""
        skipped = done = 0
        self.row.enter(Phase.WORKING)
        for start in range(item.start, item.stop, self.kit.accumulate):
            if not may_go_on():
                return None
            stop = min(start + self.kit.accumulate, item.stop)
            done += stop - start
            skipped += self._exchange(item, range(start, stop), done, skipped)
        return skipped

    def _exchange(self, item: WorkItem, batches: Sequence[int], done: int, skipped: int) -> int:
        """Computes the gradient of `batches` and applies it, or skips it; returns how many batches were skipped."""
        began_ns = time.monotonic_ns()
        read_at = self._board.updates()
        self.model.keep_buffers()
        loss = sum(self._backward(item.epoch, batch, 1 / len(batches)) for batch in batches)
        if not (math.isfinite(loss) and self.update.is_finite()):
            self._skip(item, batches)
            self.row.commit(item.id, done, skipped + len(batches))
            self.row.count_batches(len(batches), 0, 0.0, began_ns)
            return len(batches)
        applied_at = self._board.updates()
        factor = None if self.kit.schedule is None else self.kit.schedule(applied_at)
        self._check_bound()
        self.row.intend(item.id, done)
        self.update.apply(factor)
        self.row.commit(item.id, done, skipped)
        self.row.count_update(applied_at - read_at)
        self.row.count_batches(len(batches), len(batches), loss, began_ns)
        return 0

    def _backward(self, epoch: int, number: int, scale: float) -> float:
        batch = self.train_feed.gather(epoch, number)
        # default_generator.manual_seed takes 1.1 us; torch.manual_seed, which also looks for GPUs, 80 to 90.
        torch.default_generator.manual_seed(batch_seed(self.kit.seed, epoch, batch.first_position))
        return self.update.backward(batch.inputs, batch.target, scale)

    def _skip(self, item: WorkItem, batches: Sequence[int]) -> None:
        self.update.discard()
        self.model.restore_buffers()
        if self.kit.fail_on_nan:
            raise NonFiniteGradient(
                f"the loss or gradient of epoch {item.epoch}, batch {batches[0]} is NaN or infinite "
                "(supervise.on_nan is 'fail'); lower the learning rate, set train.grad_clip, or look at these samples"
            )

    def _check_bound(self) -> None:
        self._until_check -= 1
        if self._until_check <= 0:
            self._until_check = CHECK_BOUND_EVERY
            self.model.check_bound()

    def evaluate(self, item: WorkItem) -> None:
        """Adds up the metrics' sums over the item's batches and writes them into its result row."""
        assert self.val_feed is not None
        self.row.enter(Phase.EVALUATING)
        module = self.model.model
        training = [part for part in module.modules() if part.training]
        module.eval()
        sums = EvalSums()
        try:
            with torch.no_grad():  # not inference_mode: what a model keeps from here must do for training too
                for number in range(item.start, item.stop):
                    batch = self.val_feed.gather(0, number)
                    torch.default_generator.manual_seed(batch_seed(self.kit.seed, -1, batch.first_position))
                    sums += evaluate_batch(module(*batch.inputs), batch.target, self.model.loss)
                    self.row.beat()
        finally:
            for part in training:
                part.training = True
        sums.write(self._board.result(item.id))
