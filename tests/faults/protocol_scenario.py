"""The scenario of one run of `protocol.py`, all of it from its seed, and what must be true when it has ended; what its
workers compute with; and signals from outside.

They compute nothing: an "apply" adds 1 to a word per batch in shared memory, so that what took effect can be counted
afterwards, whoever did it and however it ended. Every worker has its own row of the counts, so two of them can never
write the same word: a batch that took effect twice is seen even if both did it at once. No torch."""

import contextlib
import mmap
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hogwild import host
from hogwild.metrics.result_row import EvalSums
from hogwild.scheduling.batch_plan import BatchPlan, mix
from hogwild.scheduling.work_queue import Limits, Release, WorkQueue
from hogwild.workers.processes.handle import Handle


class Memory:
    """Shared memory without a name, inherited by forked children: to a `Scoreboard` the same as a `Region`."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._mapped = mmap.mmap(-1, nbytes)

    def array(self, dtype: Any, shape: Sequence[int], offset: int = 0) -> np.ndarray:
        return np.frombuffer(self._mapped, dtype, int(np.prod(shape)), offset).reshape(tuple(shape))


class Effects:
    """`counts` (procs, batches of all epochs) int64: row k is written by worker k alone. `applying` (procs,) int64:
    batches that worker k is in the middle of applying; the supervisor puts it back to 0 when the worker is dead."""

    def __init__(self, procs: int, batches: int) -> None:
        memory = Memory(8 * procs * (batches + 1))
        self.counts = memory.array(np.int64, (procs, batches))
        self.applying = memory.array(np.int64, (procs,), self.counts.nbytes)

    def total(self) -> np.ndarray:
        """(batches,) how often each batch took effect."""
        return self.counts.sum(axis=0)


# ---- crimes ---------------------------------------------------------------------------------------------------------


class Crime(Exception):
    """An error of user code."""


def _raising(statement: str) -> Callable[[int], None]:
    """From a place of its own: what is raised twice at the same place, in two batches, is taken to be hopeless."""
    return lambda number: exec(compile(statement, f"/a user's/{number}.py", "exec"), {"Crime": Crime})


CRIMES: dict[str, Callable[[int], None]] = {
    "SIGKILL": lambda number: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSTOP": lambda number: os.kill(os.getpid(), signal.SIGSTOP),
    "SIGTERM": lambda number: os.kill(os.getpid(), signal.SIGTERM),
    "exit(0)": lambda number: os._exit(0),
    "exit(1)": lambda number: os._exit(1),
    "exception": _raising("raise Crime"),
    "sys.exit": _raising("raise SystemExit(0)"),
}
DEADLY = ("SIGKILL", "SIGKILL", "exit(0)", "exit(1)", "exception", "sys.exit")


class Crimes:
    """Aimed at (worker, incarnation, so many steps into its work): the same for the same seed. A step is a look at one
    of the places where a worker runs what is not ours. `poison`: batch -> the crime that it always commits; half of
    them in the forward pass, the others in the middle of the apply."""

    def __init__(self, rng: random.Random, mean_life: float, poison: dict[int, str]) -> None:
        self._left = 1 + int(rng.expovariate(1 / mean_life)) if mean_life else -1
        kinds = (["SIGKILL"] * 44, DEADLY[2:], ["SIGTERM"], ["SIGSTOP"] if rng.random() < 0.2 else [])
        self._kind = rng.choice([kind for group in kinds for kind in group])
        self._number = rng.getrandbits(62)
        self._poison = poison

    def look(self) -> None:
        self._left -= 1
        if self._left == 0:
            CRIMES[self._kind](self._number)

    def forward(self, batch: int) -> None:
        self.look()
        if batch in self._poison and batch % 2:
            CRIMES[self._poison[batch]](self._number)

    def apply(self, batch: int) -> None:
        self.look()
        if batch in self._poison and not batch % 2:
            CRIMES[self._poison[batch]](self._number)


# ---- a model, an update, a feed and an evaluation that only count ---------------------------------------------------


class CountingExchange:
    """As hogwild.parameters.exchange.Exchange: in delta the batches are kept, and take effect when they are flushed."""

    def __init__(self, effects: Effects, worker: int, crimes: Crimes) -> None:
        self.is_delta = False
        self._counts, self._applying, self._worker = effects.counts[worker], effects.applying, worker
        self._local: list[int] = []
        self._crimes = crimes

    def write(self, batches: list[int]) -> None:
        if self.is_delta:
            self._local += batches
        else:
            self._add(batches)

    def flush(self) -> None:
        self._add(self._local)
        self._local = []

    def refresh(self) -> None:
        self._local = []

    def _add(self, batches: list[int]) -> None:
        self._crimes.look()
        self._applying[self._worker] = len(batches)
        for batch in batches:
            self._counts[batch] += 1
            self._crimes.apply(batch)
        self._applying[self._worker] = 0
        self._crimes.look()


class CountingModel:
    """Buffers and bindings cost nothing here."""

    def __init__(self, exchange: CountingExchange) -> None:
        self.exchange = exchange

    def bind(self, *, delta: bool) -> None:
        self.exchange.is_delta = delta
        self.exchange.refresh()

    def refresh(self) -> None:
        self.exchange.refresh()

    def start(self) -> None: ...
    def rest(self) -> None: ...
    def close(self) -> None: ...
    def check_bound(self) -> None: ...
    def keep_buffers(self) -> None: ...
    def restore_buffers(self) -> None: ...
    def mark_buffers(self) -> None: ...
    def return_buffers(self) -> None: ...


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """Its number is all that it holds: counted over all epochs."""

    inputs: tuple[int]
    target: None
    first_position: int
    size: int = 1


class CountingFeed:
    def __init__(self, batches: int, crimes: Crimes) -> None:
        self._batches, self._crimes = batches, crimes

    def gather(self, epoch: int, number: int) -> NumberedBatch:
        self._crimes.look()
        return NumberedBatch((epoch * self._batches + number,), None, number)


class CountingUpdate:
    """`not_finite`: batches whose loss is NaN. `spin`: how long a backward pass takes, in turns of an empty loop."""

    path = "counting"
    next_thaw = None  # nothing is frozen

    def __init__(self, exchange: CountingExchange, crimes: Crimes, not_finite: set[int], spin: int) -> None:
        self._exchange, self._crimes, self._not_finite, self._spin = exchange, crimes, not_finite, spin
        self._held: list[int] = []

    def backward(self, inputs: tuple[int], target: None, scale: float = 1.0) -> float:
        (batch,) = inputs
        for _ in range(self._spin):
            pass
        self._crimes.forward(batch)
        self._held.append(batch)
        return float("nan") if batch in self._not_finite else 1.0

    def must_redo(self) -> bool:
        return False

    def is_finite(self) -> bool:
        return True  # the trainer has looked at the loss

    def apply(self, lr_factor: float | None) -> None:
        held, self._held = self._held, []
        self._exchange.write(held)

    def discard(self) -> None:
        self._held = []


class CountingEvaluator:
    """The sums of a slice say which batches it held."""

    def __init__(self, crimes: Crimes) -> None:
        self._crimes = crimes

    def sums(self, batches: Iterable[int], beat: Callable[[], None], infers: bool = False) -> EvalSums:
        sums = EvalSums()
        for batch in batches:
            self._crimes.look()
            sums += EvalSums.of((float(batch), 1.0))
            beat()
        return sums


class StillPlace:
    """As hogwild.training.place.CpuPlace, without torch."""

    def seed(self, seed: int) -> None: ...
    def announce(self, feed: CountingFeed, epoch: int, batch: int) -> None: ...
    def losses(self, update: CountingUpdate, told: float) -> float:
        return told

    def explained(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def is_lost(self) -> bool:
        return False


SIGNALS = [signal.SIGKILL] * 6 + [signal.SIGTERM, signal.SIGSTOP, signal.SIGSTOP]
STALL_S = 0.5  # a worker that is only slow may be taken for a stalled one: it is fenced then, and nothing is lost


class Trouble:
    """One signal `every_s` on average, to whoever is alive."""

    def __init__(self, rng: random.Random, every_s: float) -> None:
        self._rng, self._every_s = rng, every_s
        self._next_s = self._next_look_s = 0.0
        self._wakes: list[tuple[float, Handle]] = []  # stopped by us; to be woken then, if they still live
        self._signalled_early: set[int] = set()

    def make(self, crew: Mapping[int, Handle], now: float) -> None:
        for at, handle in [*self._wakes]:
            if now >= at:
                self._wakes.remove((at, handle))
                host.kill_by_pidfd(handle.pidfd, signal.SIGCONT)
        if now >= self._next_look_s:
            self._next_look_s = now + STALL_S
            self._fence_the_stopped(crew)
        if now >= self._next_s and crew:
            self._next_s = now + self._rng.expovariate(1 / self._every_s)
            self._strike(crew[self._rng.choice(sorted(crew))], now)

    def _strike(self, handle: Handle, now: float) -> None:
        if not handle.is_ready:  # three starts that fail in a row are another story
            if handle.number in self._signalled_early:
                return
            self._signalled_early.add(handle.number)
        else:
            self._signalled_early.discard(handle.number)
        number = self._rng.choice(SIGNALS)
        host.kill_by_pidfd(handle.pidfd, number)
        if number == signal.SIGSTOP and self._rng.random() < 0.9:  # the others are fenced when they have been silent
            self._wakes.append((now + self._rng.uniform(0, 2 * STALL_S), handle))

    def _fence_the_stopped(self, crew: Mapping[int, Handle]) -> None:
        """The roster judges by the beat whom it has seen commit. A first start has a longer clock, which would cost the
        run its pace."""
        awaited = [handle for _, handle in self._wakes]
        for handle in crew.values():
            if handle not in awaited and host.process_status(handle.pid) == "stopped":
                handle.kill("stopped")

    def forget(self, handle: Handle) -> None:
        """It is dead; its descriptor will be somebody else's."""
        self._wakes = [(at, stopped) for at, stopped in self._wakes if stopped is not handle]


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
    """The releases of the dead, batch by batch, beside the sums of the ledger."""

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
