"""A model that counts how often each sample was applied, exactly, whatever happens to its workers.

Row i of its table is changed only by sample i: the gradient is sparse and every step adds exactly 1 to the rows of the
batch. So no two workers write the same word, no update can be lost in a race, and `effects.weight[i]` is the number of
times that sample i took effect. Crimes (crimes.py) are committed at chosen samples, in workers only."""

import os
import time
from pathlib import Path

import crimes
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from tests.helpers.processes import in_worker


class Numbers(TensorDataset):
    """Sample i is (i, i); with `data.shuffle: none` position and sample are the same."""

    def __init__(self, samples: int) -> None:
        super().__init__(torch.arange(samples), torch.arange(samples))


class Paced(Dataset):
    """The same items, each of which takes `pace_s` to be read: by readers, if there are enough."""

    def __init__(self, samples: int, pace_s: float) -> None:
        self.samples, self.pace_s = samples, pace_s

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[int, int]:
        time.sleep(self.pace_s)
        return index, index


class Counting(nn.Module):
    """`diary`: a folder for notes; every batch of a worker adds a line to `diary`/PID. A file `hurry` in it ends the
    waiting of `pace_s` per batch; while a file `hold` is there, no batch begins, and a worker that waits for that
    says so in `diary`/held-PID: it is not in the middle of an apply then, and will not be."""

    def __init__(
        self,
        samples: int,
        diary: str = "",
        pace_s: float = 0.0,
        evaluation_pace_s: float = 0.0,
        ballast: int = 0,
        crimes: dict[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.effects = nn.Embedding(samples, 1, sparse=True)
        nn.init.zeros_(self.effects.weight)
        self.ballast = nn.Parameter(torch.zeros(ballast), requires_grad=False)
        self.diary = Path(diary) if diary else None
        self.pace_s, self.evaluation_pace_s = pace_s, evaluation_pace_s
        self.crimes = {at: crime for crime, at in (crimes or {}).items()}

    def forward(self, numbers: Tensor) -> Tensor:
        """numbers (B,) int64 -> their rows (B,)."""
        counts = self.effects(numbers).squeeze(1)
        if not in_worker():
            return counts
        self._note(numbers)
        self._wait(self.pace_s if self.training else self.evaluation_pace_s)
        for number in numbers.tolist() if self.training else []:
            if number in self.crimes and self.diary is not None:
                counts = counts * crimes.commit(self.crimes[number], self.diary)
        return counts

    def _note(self, numbers: Tensor) -> None:
        if self.diary is not None:
            kind = "train" if self.training else "evaluate"
            with open(self.diary / f"{kind}-{os.getpid()}", "a") as notes:
                notes.write(f"{numbers[0]}\n")

    def _wait(self, pace_s: float) -> None:
        if self.diary is None:
            return
        until = time.monotonic() + pace_s
        while time.monotonic() < until and not (self.diary / "hurry").exists():
            time.sleep(min(pace_s, 0.005))
        while (self.diary / "hold").exists():
            (self.diary / f"held-{os.getpid()}").touch()
            time.sleep(0.005)


class MinusSum(nn.Module):
    """The gradient of every row is -1, so that a step of SGD with lr 1 adds 1. `crimes` as of the model."""

    def __init__(self, diary: str = "", crimes: dict[str, int] | None = None) -> None:
        super().__init__()
        self.diary = Path(diary)
        self.crimes = {at: crime for crime, at in (crimes or {}).items()}

    def forward(self, counts: Tensor, numbers: Tensor) -> Tensor:
        for number in numbers.tolist() if in_worker() and counts.requires_grad else []:
            if number in self.crimes:
                crimes.commit(self.crimes[number], self.diary)
        return -counts.sum()


class Treacherous(torch.optim.SGD):
    """SGD that commits crimes inside its step: after `intent` was written and before `commit` is. Writes the rate of
    every step to `diary`/rates-PID."""

    def __init__(self, params, lr: float, diary: str = "", before: dict[str, int] | None = None, after=None) -> None:  # type: ignore[no-untyped-def]
        super().__init__(params, lr=lr)
        self.diary = Path(diary)
        self.before = {at: crime for crime, at in (before or {}).items()}
        self.after = {at: crime for crime, at in (after or {}).items()}

    def step(self, closure=None):  # type: ignore[no-untyped-def, override]
        self._betray(self.before)
        super().step(closure)
        self._betray(self.after)
        if in_worker():
            with open(self.diary / f"rates-{os.getpid()}", "a") as notes:
                notes.write(f"{self.param_groups[0]['lr']}\n")

    def _betray(self, plans: dict[int, str]) -> None:
        gradient = self.param_groups[0]["params"][0].grad
        if in_worker() and gradient is not None and gradient.is_sparse:
            for number in gradient._indices()[0].tolist():
                if number in plans:
                    crimes.commit(plans[number], self.diary)
