"""What the workers of `protocol.py` compute with: nothing. An "apply" adds 1 to a word per batch in shared memory, so
that what took effect can be counted afterwards, whoever did it and however it ended. No torch.

Every worker has its own row of the counts, so two of them can never write the same word: a batch that took effect
twice is seen even if both did it at once."""

import contextlib
import mmap
import os
import random
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hogwild.metrics.result_row import EvalSums


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
    """What user code raises."""


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
