"""A data set whose items take their time to be read, and some of which commit crimes, in workers only."""

import multiprocessing
import os
import time
from pathlib import Path

import crimes
import torch
from torch import Tensor
from torch.utils.data import Dataset

PACE_S = 0.015  # with 100 items: longer than anybody reads in the parent, however fast the machine is


class Slow(Dataset):
    """`samples` items: x (3,) float32, with a number drawn at random in it, and y int64. `crimes`: {crime: index}, in a
    worker. `bad`: {index: how}, wherever it is read. Notes who read what in `diary`/read-PID."""

    def __init__(
        self,
        samples: int = 100,
        diary: str = "",
        pace_s: float = PACE_S,
        crimes: dict[str, int] | None = None,
        bad: dict[int, str] | None = None,
    ) -> None:
        self.samples, self.pace_s = samples, pace_s
        self.diary = Path(diary)
        self.crimes = {at: crime for crime, at in (crimes or {}).items()}
        self.bad = {int(index): how for index, how in (bad or {}).items()}

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.pace_s)
        in_worker = multiprocessing.parent_process() is not None
        if self.diary.name:
            with open(self.diary / f"read-{os.getpid()}", "a") as notes:
                notes.write(f"{index}\n")
        if in_worker and index in self.crimes:
            crimes.commit(self.crimes[index], self.diary)
        how = self.bad.get(index)
        if how == "raises":
            raise OSError(f"the file of item {index} is gone")
        if how == "raises in a worker" and in_worker:
            raise OSError("only here")
        x = torch.tensor([index, index / 2, float(torch.rand(()))])
        return (x * float("nan") if how == "nan" else x[:2] if how == "short" else x), index % 2


class Unportable(Slow):
    """It cannot be given to another process."""

    def __reduce__(self) -> str:
        raise TypeError("an open connection")


class Ranged(Slow):
    """It reads in ranges."""

    def rows(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        items = [self[index] for index in range(start, stop)]
        return torch.stack([x for x, _ in items]), torch.tensor([y for _, y in items])

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x, y = super().__getitem__(index)
        return x[:2], y


class Unmakeable(Slow):
    """Another process can import it, and not make it."""

    def __setstate__(self, state: dict[str, object]) -> None:
        raise RuntimeError("not in this process")


class Printed(Slow):
    """It can say what its samples are made of."""

    def fingerprint(self) -> str:
        return f"{self.samples:032x}"


def add_noise(x: Tensor, y: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return x + scale * torch.randn(x.shape), y
