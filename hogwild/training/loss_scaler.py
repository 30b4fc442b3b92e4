"""The scale of a worker's losses in fp16: so large that small gradients are not rounded to zero, and smaller again
where a large one overflows.

    loss x scale -> backward -> gradients / scale -> finite?  yes: the update goes on; after many of them, scale x 2
                                                      no:  scale / 2, the same batches again, until 1: then it is they

torch.amp.GradScaler belongs to one optimizer's one step, which it skips, batch and all. Here every batch is settled:
it is computed again at the smaller scale, so none is lost to the search for one, and what is not finite at any scale is
the NaN batch that `supervise.on_nan` is about. Scales are powers of two: multiplying and dividing by them changes no
bit of a float32.

The scale lies in the worker's own row of the scoreboard: a replacement goes on with it, and checkpoints hold it."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from hogwild.shared_memory.scoreboard import Row, Scoreboard, Word

# Those of torch.amp.GradScaler.
FIRST = 2.0**16
GROW_AFTER = 2000
LEAST, MOST = 1.0, 2.0**64


class Scaler(Protocol):
    """`scale` is what the next loss is multiplied by; always 1 unless it `is_on`."""

    is_on: bool

    @property
    def scale(self) -> float: ...
    def lower(self) -> bool: ...
    def succeed(self) -> None: ...


class Unscaled:
    """Of fp32 and bf16, whose exponents reach as far as the gradients'."""

    is_on = False
    scale = 1.0

    def lower(self) -> bool:
        return False

    def succeed(self) -> None:
        """There is nothing to count."""


class RowScaler:
    """Of fp16. One writer: the worker whose row it is."""

    is_on = True

    def __init__(self, row: Row, grow_after: int | None = None) -> None:
        self._words, self._floats = row.words, row.floats
        self._grow_after = grow_after or GROW_AFTER
        self._before = 0.0  # the scale at which the batch that overflows was tried first; 0: none does
        if not self._floats[Word.SCALE]:
            self._floats[Word.SCALE] = FIRST

    @property
    def scale(self) -> float:
        return float(self._floats[Word.SCALE])

    def lower(self) -> bool:
        """After gradients that are not finite, of a finite loss: whether the batch is to be computed again. If not, the
        scale is what it was before this batch, whose fault it is."""
        scale = self.scale
        self._words[Word.GOOD] = 0
        if scale <= LEAST:
            self._floats[Word.SCALE] = self._before or scale
            self._before = 0.0
            return False
        self._before = self._before or scale
        self._floats[Word.SCALE] = scale / 2
        self._words[Word.OVERFLOWS] += 1
        return True

    def succeed(self) -> None:
        """Finite gradients."""
        self._before = 0.0
        self._words[Word.GOOD] += 1
        if self._words[Word.GOOD] >= self._grow_after:
            self._words[Word.GOOD] = 0
            self._floats[Word.SCALE] = min(MOST, 2 * self.scale)


def scaler_for(precision: str, row: Row) -> Scaler:
    return RowScaler(row) if precision == "fp16" else Unscaled()


# ---- in the supervisor


def overflows(board: Scoreboard) -> int:
    """Backward passes of this attempt that were made again at a smaller scale."""
    return int(board.words[: board.procs, Word.OVERFLOWS].sum())


def state(board: Scoreboard) -> list[list[float]]:
    """[scale, finite updates since it changed] of every worker, for a checkpoint; [] without scales. While everybody
    is parked."""
    scales = board.floats[: board.procs, Word.SCALE]
    if not scales.any():
        return []
    good = board.words[: board.procs, Word.GOOD]
    return [[float(scale), float(count)] for scale, count in zip(scales, good, strict=True)]


def restore(board: Scoreboard, saved: Sequence[Any]) -> None:
    """Before workers start. Worker k goes on with the scale of worker k modulo those there were; one that had trained
    nothing has none. Raises ValueError for what no scale can be."""
    pairs = np.array(saved, np.float64).reshape(-1, 2)
    if not all(value == 0.0 or (LEAST <= value <= MOST and math.frexp(value)[0] == 0.5) for value in pairs[:, 0]):
        raise ValueError(f"the scales of fp16 losses are not powers of two: {pairs[:, 0].tolist()}")
    board.floats[: board.procs, Word.SCALE] = 0.0
    board.words[: board.procs, Word.GOOD] = 0
    for worker in range(board.procs if len(pairs) else 0):
        scale, good = pairs[worker % len(pairs)]
        board.floats[worker, Word.SCALE] = scale
        board.words[worker, Word.GOOD] = int(good)
