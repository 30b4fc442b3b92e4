"""Our own loop with its guards taken out, against our own loop: what they cost.

Both train the same job's model, over the same flats and through the same feed, in one process, in turn, block by block.
With guards it is `Trainer.train` as a worker runs it, asked between two exchanges whether it may go on. Without, an
update is *gather, forward, backward, apply over the flats*, and nothing else: nobody looks whether the loss or a
gradient is finite, seeds the generator, keeps buffers, writes intent and commit, beats, counts updates, losses and
staleness, or looks where the parameters lie. What it shares with the guarded loop (reused buffers, how autograd is
called, the one fused operation over the flat) is what makes both fast, not what makes one safe."""

import statistics
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.baselines.race import Line, race
from hogwild.config.load import load_job
from hogwild.config.schema import Job
from hogwild.job.build import build
from hogwild.job.facts import complete
from hogwild.planning.device_placement import planned
from hogwild.scheduling.work_queue import Kind, WorkItem
from hogwild.shared_memory.scoreboard import Command, Control, Row
from hogwild.workers.child.build import make_trainer
from hogwild.workers.child.trainer import Trainer
from hogwild.workers.execution import share

OVERRIDES = ("data.val=null", "train.procs=1", "train.threads=1")
EPOCH = 0


def speeds(
    config: str, overrides: tuple[str, ...], *, runs: int, pairs: int, updates: int
) -> tuple[list[float], float]:
    """Per run the guarded loop's speed over the unguarded one's, and the latter's median in samples/s of processor
    time. A run is the median of `pairs` of blocks of `updates` each."""
    ((ratios, unguarded),) = race(_measure, [(_loaded(config, overrides), runs, pairs, updates)])
    return ratios, unguarded


def alone(config: str, *, updates: int) -> float:
    """The unguarded loop's samples a second of the wall's clock, after a warm-up: the bare loop written as well as we
    can."""
    ((samples_per_s),) = race(_alone, [(_loaded(config, ()), updates)])
    return samples_per_s


def _loaded(config: str, overrides: tuple[str, ...]) -> Job:
    return load_job(Path(config), [*OVERRIDES, *overrides])


class Both:
    """One worker of the job, in this process, and its two ways of doing `updates`."""

    def __init__(self, job: Job) -> None:
        plan = planned(job)
        parts = build(plan, None)
        shared = share(complete(plan, parts), parts)
        self._board = shared.board
        self._board.renew(0, 1)
        row = Row(self._board, 0)
        self._trainer: Trainer = make_trainer(shared.worker_spec, shared.model.structure, shared.regions, row, 0)
        self._plan = parts.train.plan
        self.batches = self._plan.batches
        self._ids = count(1)

    def samples(self, updates: int) -> int:
        """Return the samples in the first `updates` batches of the epoch."""
        return self._plan.positions(updates - 1)[1]

    def parameters(self) -> list[Tensor]:
        """Return copies of the parameters as they are now."""
        return [param.detach().clone() for param in self._trainer.model.params]

    def guarded(self, updates: int) -> None:
        self._trainer.train(WorkItem(next(self._ids), Kind.TRAIN, EPOCH, 0, updates), self._may_go_on)

    def unguarded(self, updates: int) -> None:
        model, loss = self._trainer.model.model, self._trainer.model.loss
        feed, apply, backward = self._trainer.train_feed, self._apply(), self._trainer.update._run_backward
        for number in range(updates):
            batch = feed.gather(EPOCH, number)
            backward(loss(model(*batch.inputs), batch.target), 1.0)
            apply()

    def _may_go_on(self) -> bool:
        """Return the answer of the control row, as a worker asks for it."""
        return self._board.control_words[Control.COMMAND] == Command.RUN

    def _apply(self) -> Callable[[], None]:
        """One step of the rule over the flats, then gradients of zero. Needs a first guarded update: it makes the
        rule's state."""
        update = self._trainer.update
        rule, gradients = update._rule, update._gradients
        assert rule is not None and rule.is_usable(), update.path

        def apply() -> None:
            rule.step()
            for flat in gradients.flats.values():
                flat.zero_()

        return apply


def _warm(job: Job, updates: int) -> tuple[Both, int]:
    """Return both ways, and how many updates a block of them has."""
    both = Both(job)
    updates = min(updates, both.batches)
    torch.manual_seed(0)
    both.guarded(updates)
    both.unguarded(updates)
    return both, updates


def _alone(line: Line, job: Job, updates: int) -> None:
    both, block = _warm(job, updates)
    line.ready()
    blocks = -(-updates // block)
    began = time.perf_counter()
    for _ in range(blocks):
        both.unguarded(block)
    line.answer(both.samples(block) * blocks / (time.perf_counter() - began))


def _measure(line: Line, job: Job, runs: int, pairs: int, updates: int) -> None:
    both, updates = _warm(job, updates)
    line.ready()
    ratios: list[float] = []
    without: list[float] = []
    for _ in range(runs):
        found = [_pair(both, updates, guarded_first=bool(number % 2)) for number in range(pairs)]
        ratios.append(statistics.median(on / off for on, off in found))
        without += [off for _, off in found]
    line.answer((ratios, statistics.median(without)))


def _pair(both: Both, updates: int, *, guarded_first: bool) -> tuple[float, float]:
    """Samples a second with and without guards, one block of each. Of the processor's time: neither way waits for
    anything, and what another process takes from one of them says nothing about guards."""
    ways = [both.guarded, both.unguarded]
    speed: dict[Callable[[int], None], float] = {}
    for way in ways if guarded_first else ways[::-1]:
        began = time.process_time()
        way(updates)
        speed[way] = both.samples(updates) / (time.process_time() - began)
    return speed[both.guarded], speed[both.unguarded]
