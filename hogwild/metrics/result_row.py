"""The sums of an evaluation, which add up over slices. No torch: they are stored in the scoreboard.

Each evaluation slice is one row of WORDS float64 words, written by the worker that holds its lease:

    word  0         loss_sum      sum of the (weighted) loss of every element
          1         loss_weight   its divisor at the end: the sum of the weights, or the number of elements
          2 + 2 k   total         of the k-th metric that is a sum: right predictions, squared differences, …
          3 + 2 k   count         its divisor: the number of predictions

Rows are added word by word in float64 and divided once, in `metrics.Panel.values`. The counts are integers below 2**53
and so exact; a sum of float32 losses leaves 29 bits to spare. A scoring item's row (`Kind.SCORE`) holds the values of
the metrics that are no sums, in their order, instead."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hogwild.metrics.catalog import MOST

WORDS = 2 + 2 * MOST


@dataclass(frozen=True, slots=True)
class EvalSums:
    """The words of a row: the sums of one slice, or of several added together."""

    words: tuple[float, ...] = (0.0,) * WORDS

    @classmethod
    def of(cls, first: Iterable[float]) -> "EvalSums":
        """Make a row from its first words; the others are zero."""
        given = tuple(map(float, first))
        return cls(given + (0.0,) * (WORDS - len(given)))

    def __add__(self, other: "EvalSums") -> "EvalSums":
        return EvalSums(tuple(mine + theirs for mine, theirs in zip(self.words, other.words, strict=True)))

    def write(self, row: np.ndarray) -> None:
        """Write into a row (WORDS,) float64; only the worker that holds the slice's lease may."""
        row[:] = self.words

    @classmethod
    def read(cls, row: np.ndarray) -> "EvalSums":
        """Read a row (WORDS,) float64."""
        return cls(tuple(row.tolist()))
