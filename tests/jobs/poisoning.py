"""The counting model, whose parameters become NaN once: in the worker that trains the sample `poisoned_at`."""

from pathlib import Path

from counting import Counting
from torch import Tensor

from tests.helpers.processes import in_worker

ROW = 0  # is overwritten


class Poisoned(Counting):
    """The note `diary`/poisoned has the number of the worker's process."""

    def __init__(self, samples: int, diary: str, poisoned_at: int, pace_s: float = 0.0) -> None:
        super().__init__(samples, diary, pace_s)
        self.poisoned_at, self.note = poisoned_at, Path(diary) / "poisoned"

    def forward(self, numbers: Tensor) -> Tensor:
        """numbers (B,) int64 -> their rows (B,)."""
        counts = super().forward(numbers)
        if self.poisoned_at in numbers.tolist() and in_worker() and self.training and not self.note.exists():
            self.note.touch()
            self.effects.weight.data[ROW] = float("nan")
        return counts
