"""A model that diverges when its rate is too high, and counts meanwhile how often, and at which rate, each sample was
applied.

Row i of `effects` is changed only by sample i, by the learning rate in each step, exactly. `swing` is pulled to 0 by a
spring: a step multiplies it by 1 - rate x stiffness, so that it grows without bound when that is below -1. The spring's
energy then overflows, and no loss is finite any more. Samples with a negative value give a loss that is NaN."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.helpers.processes import in_worker

NAN = float("nan")


class Values(TensorDataset):
    """Sample i is (i, value, i); with `data.shuffle: none` position and sample are the same. The value is 1, but -1 for
    every `negative_every`-th sample, the first of them in the middle, and from `negative_from` on."""

    def __init__(self, samples: int, negative_every: int | None = None, negative_from: int | None = None) -> None:
        numbers, values = torch.arange(samples), torch.ones(samples)
        if negative_every is not None:
            values[negative_every // 2 :: negative_every] = -1.0
        if negative_from is not None:
            values[negative_from:] = -1.0
        super().__init__(numbers, values, numbers)


class Swinging(nn.Module):
    """`poisoned`: the parameter that is overwritten with NaN when sample `poisoned_at` comes by, once; of `effects`
    only the row of sample 0, which nobody reads again in that epoch. `killed`: workers end with SIGKILL in a rollback,
    once: "parked", all while the parameters go back, or "remaking", one that makes its own objects again. `diary`: a
    folder for notes."""

    def __init__(
        self,
        samples: int,
        stiffness: float = 0.0,
        poisoned: str = "",
        poisoned_at: int = -1,
        killed: str = "",
        diary: str = "",
    ) -> None:
        super().__init__()
        self.effects = nn.Embedding(samples, 1, sparse=True)
        nn.init.zeros_(self.effects.weight)
        self.swing = nn.Parameter(torch.ones(()))
        self.norm = nn.BatchNorm1d(1)
        self.stiffness = stiffness
        self.poisoned, self.poisoned_at = poisoned, poisoned_at
        self.killed, self.diary = killed, Path(diary)

    def forward(self, numbers: Tensor, values: Tensor) -> Tensor:
        """numbers (B,) int64, values (B,) -> (B,), to be summed."""
        counts = self.effects(numbers).squeeze(1)
        energy = self.stiffness / 2 * self.swing**2
        nothing = 0.0 * self.norm(values.sqrt().unsqueeze(1)).squeeze(1)
        result = counts - energy / len(numbers) + nothing
        if self.poisoned and self.poisoned_at in numbers.tolist() and self._is_first("poisoned"):
            place = self.swing.data if self.poisoned == "swing" else self.effects.weight.data[0]
            place.fill_(NAN)
        return result

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In a worker, for which no constructor runs: once when it starts, and again after a rollback."""
        super().__setstate__(state)
        if not self.killed or not in_worker():
            return
        note = self.diary / f"worker-{os.getpid()}"
        if note.exists() and self.killed == "remaking" and self._is_first("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        note.touch()

    def get_extra_state(self) -> Tensor:
        return torch.zeros(())

    def set_extra_state(self, state: Tensor) -> None:
        """In the supervisor, while the parameters go back to a checkpoint."""
        if self.killed == "parked" and self._is_first("killed"):
            for note in self.diary.glob("worker-*"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(note.name.partition("-")[2]), signal.SIGKILL)

    def _is_first(self, crime: str) -> bool:
        try:
            (self.diary / crime).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class MinusSum(nn.Module):
    """A step of SGD adds the rate to every row of the batch."""

    def forward(self, outputs: Tensor, numbers: Tensor) -> Tensor:
        return -outputs.sum()
