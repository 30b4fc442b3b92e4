"""The precision of forward and loss: float32, or the types that torch's autocast chooses for each operation.
Parameters, gradients, optimizer state and checkpoints keep their type, mostly float32: autocast casts a layer's weights
and inputs, and gradients are returned in the parameters' own type.

In fp16 a worker multiplies its loss by a scale: large, so that small gradients do not round to zero, and halved when
large ones overflow.

    loss x scale -> backward -> gradients / scale -> finite?  yes: the update goes on; after many of them, scale x 2
                                                      no:  scale / 2, repeat the batches; at scale 1 they are at fault

torch.amp.GradScaler skips a whole optimizer step with its batch. Here no batch is lost to the search for a scale: it is
computed again at a smaller scale, and one that is not finite at any scale is a NaN batch as in `supervise.on_nan`.
Scales are powers of two: multiplying and dividing by them changes no bit of a float32.

The scale is stored in the worker's own row of the scoreboard: a replacement continues with it, and checkpoints hold
it."""

import contextlib
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.errors import ModelError
from hogwild.shared_memory.scoreboard import Row, Scoreboard, Word
from hogwild.training.outputs import mapped

NARROW = {"bf16": torch.bfloat16, "fp16": torch.float16}
SCALED = "fp16"  # its gradients need a scaled loss: half of them would be zero


def autocast(precision: str, device_type: str) -> AbstractContextManager[Any]:
    """Return a context for a forward pass and its loss; reusable, but not nested."""
    if precision not in NARROW:
        return contextlib.nullcontext()
    return torch.autocast(device_type, NARROW[precision])


def device_type_of(params: Sequence[Tensor]) -> str:
    return params[0].device.type if params else "cpu"


def widened(output: Any) -> Any:
    """Return outputs of a narrow type as float32, for metrics; everything else unchanged."""
    return mapped(output, lambda _, one: one.float() if one.dtype in NARROW.values() else one)


def check_precision(precision: str, model: nn.Module) -> None:
    """Check the parameters' types. Raises ModelError for one whose gradient would be float16: scaled it overflows, and
    unscaled it becomes zero. (torch.amp.GradScaler refuses these too.)"""
    if precision != SCALED:
        return
    for name, param in model.named_parameters():
        if param.requires_grad and param.dtype == torch.float16:
            raise ModelError(
                f"parameter {name} is float16, but train.precision: fp16 needs float32 parameters, which it casts "
                "where that is safe: call model.float(), or remove train.precision",
                code="model/precision",
            )


# The values of torch.amp.GradScaler.
FIRST = 2.0**16
GROW_AFTER = 2000
LEAST, MOST = 1.0, 2.0**64


class Unscaled:
    """The scaler of fp32 and bf16, whose exponent range needs no scaling: `scale` multiplies the next loss."""

    is_on = False
    scale = 1.0

    def lower(self) -> bool:
        return False

    def succeed(self) -> None:
        """Do nothing."""


class RowScaler:
    """The scaler of fp16. One writer: the worker that owns the row."""

    is_on = True

    def __init__(self, row: Row) -> None:
        self._words, self._floats = row.words, row.floats
        self._before = 0.0  # the scale of the first try of an overflowing batch; 0: none is being repeated
        if not self._floats[Word.SCALE]:
            self._floats[Word.SCALE] = FIRST

    @property
    def scale(self) -> float:
        return float(self._floats[Word.SCALE])

    def lower(self) -> bool:
        """Lower the scale after gradients that are not finite, of a finite loss; return whether to repeat the batch. If
        not, the batch is at fault, and the scale before it is restored."""
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
        """Count finite gradients."""
        self._before = 0.0
        self._words[Word.GOOD] += 1
        if self._words[Word.GOOD] >= GROW_AFTER:
            self._words[Word.GOOD] = 0
            self._floats[Word.SCALE] = min(MOST, 2 * self.scale)


Scaler = RowScaler | Unscaled


def scaler_for(precision: str, row: Row) -> Scaler:
    return RowScaler(row) if precision == "fp16" else Unscaled()


# ---- in the supervisor


def overflows(board: Scoreboard) -> int:
    """Return how many backward passes of this attempt were repeated at a smaller scale."""
    return int(board.words[: board.procs, Word.OVERFLOWS].sum())


def state(board: Scoreboard) -> list[list[float]]:
    """Return [scale, finite updates since it changed] of every worker, for a checkpoint; [] without scales. Only while
    all workers are parked."""
    scales = board.floats[: board.procs, Word.SCALE]
    if not scales.any():
        return []
    good = board.words[: board.procs, Word.GOOD]
    return [[float(scale), float(count)] for scale, count in zip(scales, good, strict=True)]


def restore(board: Scoreboard, saved: Sequence[Any]) -> None:
    """Restore the scales before workers start. Worker k gets that of saved worker k modulo their number, which is none
    if that one had not trained. Raises ValueError for invalid scales."""
    pairs = np.array(saved, np.float64).reshape(-1, 2)
    if not all(value == 0.0 or (LEAST <= value <= MOST and math.frexp(value)[0] == 0.5) for value in pairs[:, 0]):
        raise ValueError(f"the scales of fp16 losses are not powers of two: {pairs[:, 0].tolist()}")
    board.floats[: board.procs, Word.SCALE] = 0.0
    board.words[: board.procs, Word.GOOD] = 0
    for worker in range(board.procs if len(pairs) else 0):
        scale, good = pairs[worker % len(pairs)]
        board.floats[worker, Word.SCALE] = scale
        board.words[worker, Word.GOOD] = int(good)
