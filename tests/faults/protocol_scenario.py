"""What one run of `protocol.py` is about, all of it from its seed, and what must be true when it has ended."""

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from hogwild.scheduling.batch_plan import BatchPlan, mix
from hogwild.scheduling.work_queue import Limits, Release, WorkQueue
from tests.faults.protocol_numerics import DEADLY, Crimes, Effects
from tests.faults.protocol_trouble import STALL_S

FATAL = ("SIGKILL", *DEADLY)
HANG_S = 120.0  # without a commit or a death: a net, far beyond what a busy machine needs


@dataclass(frozen=True, slots=True)
class Policy:
    """Nobody is given up, and nobody waits long to come back."""

    max_restarts: int = 10**9
    window_s: float = 0.0
    start_timeout_s: float = HANG_S
    stall_timeout_s: float = STALL_S
    deadlock_timeout_s: float = HANG_S
    min_workers: int = 1
    max_item_attempts: int = 10**6
    grace_s: float = HANG_S


@dataclass(frozen=True, slots=True)
class Scenario:
    """`mean_life`: steps that a worker lives, about three for a batch; 0: for ever. `fault_every_s`: between two
    signals that come from outside, whatever the worker is doing; 0: none come."""

    seed: int
    procs: int
    batches: int
    epochs: int
    accumulate: int
    sync_every: int  # to begin with; 0: direct
    redo: bool
    max_attempts: int
    max_item_updates: int
    max_staleness: int | None
    poison: dict[int, str]
    not_finite: frozenset[int]
    val_batches: int
    mean_life: float
    fault_every_s: float
    spin: int

    @classmethod
    def of(cls, seed: int) -> "Scenario":
        rng = random.Random(mix(seed, 1))
        mean_life, epochs = rng.choice([10.0, 30.0, 30.0, 60.0]), rng.randrange(2, 4)
        batches = int(mean_life * rng.uniform(10, 20) / epochs)  # some hundred deaths
        everything = range(batches * epochs)
        evil = rng.sample(everything, rng.choice([0, 0, 3, 8]))
        accumulate = rng.choice([1, 1, 1, 2, 3])
        spoilt = set().union(*(_update_of(batch, batches, accumulate) for batch in evil))
        return cls(
            seed=seed,
            procs=rng.randrange(2, 7),
            batches=batches,
            epochs=epochs,
            accumulate=accumulate,
            sync_every=rng.choice([0, 0, 2, 4, 7]),
            redo=rng.random() < 0.6,
            max_attempts=rng.randrange(2, 5),
            max_item_updates=rng.choice([1, 4, 16, 64]),
            max_staleness=rng.choice([None, None, None, 8, 40]),
            poison={batch: rng.choice(FATAL) for batch in evil},
            not_finite=frozenset(rng.sample(everything, rng.choice([0, 5]))) - spoilt,
            val_batches=rng.randrange(20, 60),
            mean_life=mean_life,
            fault_every_s=rng.choice([0.005, 0.02]),
            spin=rng.choice([0, 1000, 5000]),
        )

    @property
    def never_applied(self) -> set[int]:
        """All batches of the updates that hold one whose loss is not finite."""
        return set().union(*(_update_of(batch, self.batches, self.accumulate) for batch in self.not_finite))

    def crimes(self, worker: int, incarnation: int) -> Crimes:
        return Crimes(random.Random(mix(self.seed, worker, incarnation)), self.mean_life, self.poison)

    def queue(self) -> WorkQueue:
        limits = Limits(
            procs=self.procs,
            epochs=self.epochs,
            accumulate=self.accumulate,
            max_attempts=self.max_attempts,
            max_item_updates=self.max_item_updates,
            redo_indeterminate=self.redo,
            sync_every=self.sync_every or 1,
        )
        queue = WorkQueue(BatchPlan(self.batches, 1), limits)
        queue.open_until = 1
        return queue


def _update_of(batch: int, batches: int, accumulate: int) -> range:
    """The batches that are applied together with `batch`, itself included; counted over all epochs."""
    epoch, number = divmod(batch, batches)
    first = number // accumulate * accumulate
    return range(epoch * batches + first, epoch * batches + min(first + accumulate, batches))


@dataclass(slots=True)
class Account:
    """What the releases of the dead said, batch by batch, beside the sums of the ledger."""

    scenario: Scenario
    doubts: Counter[int] = field(default_factory=Counter)  # batch -> how often an exchange with it was in doubt
    quarantined: set[int] = field(default_factory=set)
    redone: int = 0

    def enter(self, release: Release) -> None:
        each = self.scenario.batches
        if release.indeterminate:
            assert release.charged is not None
            epoch, start = release.charged
            self.doubts.update(range(epoch * each + start, epoch * each + start + release.indeterminate))
            if self.scenario.redo and not release.quarantined:
                self.redone += release.indeterminate
        for epoch, start, stop in release.quarantined:
            self.quarantined.update(range(epoch * each + start, epoch * each + stop))

    def violations(self, queue: WorkQueue, effects: Effects) -> list[str]:
        """DESIGN 1.4, when nobody is at work: done 1 effect; in doubt and redone 1 to 2 (for every doubt one more); in
        doubt and skipped 0 to 1; skipped or quarantined 0."""
        found = self._of_the_ledger(queue)
        ledger, total = queue.ledger, effects.total()
        at_most = ledger.done + ledger.indeterminate
        if not ledger.done <= total.sum() <= at_most:
            found.append(f"{total.sum()} effects for {ledger.done} batches done and {ledger.indeterminate} in doubt")
        if queue.epoch == queue.limits.epochs:
            found += self._of_each_batch(queue, total)
        return found

    def _of_the_ledger(self, queue: WorkQueue) -> list[str]:
        ledger, found = queue.ledger, []
        if ledger.indeterminate != self.doubts.total():
            found.append(f"{ledger.indeterminate} in doubt in the ledger, {self.doubts.total()} in the releases")
        if ledger.redone != self.redone:
            found.append(f"{ledger.redone} redone in the ledger, {self.redone} in the releases")
        if ledger.quarantined != len(self.quarantined):
            found.append(f"{ledger.quarantined} quarantined in the ledger, {len(self.quarantined)} in the releases")
        if queue.is_finished and ledger.finished != queue.total:
            found.append(f"no partition: {ledger} of {queue.total}")
        return found

    def _of_each_batch(self, queue: WorkQueue, total: np.ndarray) -> list[str]:
        found, plain_zeros, zeros_at_most = [], 0, 0
        for batch, count in enumerate(total.tolist()):
            doubts, quarantined = self.doubts[batch], batch in self.quarantined
            if count > 1 + doubts or (quarantined and count > doubts):
                found.append(f"batch {batch} took effect {count} times; in doubt {doubts} times, {quarantined=}")
            if not quarantined:
                plain_zeros += count == 0 and not doubts
                zeros_at_most += count == 0 or doubts > 0
        if not plain_zeros <= queue.ledger.skipped <= zeros_at_most:
            found.append(
                f"{queue.ledger.skipped} skipped; of {plain_zeros} to {zeros_at_most} batches nothing was applied"
            )
        return found + self._of_the_chosen(queue, total)

    def _of_the_chosen(self, queue: WorkQueue, total: np.ndarray) -> list[str]:
        """Batches of which is known beforehand what becomes of them."""
        never = self.scenario.never_applied
        found = [f"batch {batch} is not finite and was applied" for batch in never if total[batch]]
        for batch in self.scenario.poison:
            if batch not in self.quarantined and (self.scenario.redo or batch % 2):
                found.append(f"batch {batch} ends every worker and was not quarantined")
        if self.scenario.redo and self.scenario.max_staleness is None:
            expected = len(never - self.quarantined)
            if queue.ledger.skipped != expected:
                found.append(f"{queue.ledger.skipped} skipped, and {expected} were not finite")
        return found
