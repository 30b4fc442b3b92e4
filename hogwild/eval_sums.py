"""The sums of an evaluation, which add up over slices whoever computed them. No torch: the scoreboard holds them.

Each evaluation slice is one row of WORDS float64 words, written by the worker that holds its lease:

    word  0 loss_sum      sum of the (weighted) loss of every element
          1 loss_weight   what it is divided by at the end: the sum of the weights, or the number of elements
          2 correct       right predictions
          3 count         predictions judged; 0 where the loss names no accuracy

Rows are added word by word in float64 and divided once, in `metrics.finalize`. The counts are whole numbers below
2**53 and so exact; a sum of float32 losses leaves 29 bits to spare."""

from dataclasses import dataclass

import numpy as np

WORDS = 4


@dataclass(frozen=True, slots=True)
class EvalSums:
    """The sums of one slice, or of several added together. The fields are the words of a row, in order."""

    loss_sum: float = 0.0
    loss_weight: float = 0.0
    correct: float = 0.0
    count: float = 0.0

    def __add__(self, other: "EvalSums") -> "EvalSums":
        return EvalSums(
            self.loss_sum + other.loss_sum,
            self.loss_weight + other.loss_weight,
            self.correct + other.correct,
            self.count + other.count,
        )

    def write(self, row: np.ndarray) -> None:
        """Into a row (WORDS,) float64; only the worker that holds the slice's lease may."""
        row[:] = (self.loss_sum, self.loss_weight, self.correct, self.count)

    @classmethod
    def read(cls, row: np.ndarray) -> "EvalSums":
        """From a row (WORDS,) float64."""
        return cls(*(float(word) for word in row))
