"""Data sets for streamed jobs over the counting model: record i is (i, i), so `effects.weight[i]` is how often it took
effect. A file `stop` in `diary` holds whoever reads a record, in the middle of a batch, until it is gone; what they
commit is committed at chosen records."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import crimes
import torch
from counting import Counting, in_worker
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Reading:
    """The part that all of them have: a record is noted before they give it away."""

    def __init__(
        self,
        samples: int,
        diary: str = "",
        crimes: dict[str, int] | None = None,
        paces: Sequence[float] = (),
    ) -> None:
        """`paces`: seconds a record takes, by the number of the loader."""
        self.samples, self.diary, self.paces = samples, Path(diary) if diary else None, paces
        self.crimes = {at: crime for crime, at in (crimes or {}).items()}

    def record(self, number: int) -> tuple[Tensor, Tensor]:
        if self.paces and in_worker():
            info = get_worker_info()
            time.sleep(self.paces[info.id % len(self.paces)] if info is not None else 0.0)
        if self.diary is not None and in_worker():
            while (self.diary / "stop").exists():
                (self.diary / f"stopped-{os.getpid()}").touch()
                time.sleep(0.005)
            if number in self.crimes:
                crimes.commit(self.crimes[number], self.diary)
        return torch.tensor(number), torch.tensor(number)


class Numbers(Reading, Dataset):
    """Map-style."""

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self.record(number)


class Divided(Reading, IterableDataset):
    """Divides its records among those who read it."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.samples, step):
            yield self.record(number)


class Undivided(Reading, IterableDataset):
    """Gives every record to everybody who reads it."""

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.samples):
            yield self.record(number)


class Slow(Undivided):
    """A record takes `pace_s`; with `once_killed`, only where a loader was killed before."""

    def __init__(self, samples: int, pace_s: float, once_killed: bool = False, **given: Any) -> None:
        super().__init__(samples, **given)
        self.pace_s, self.once_killed = pace_s, once_killed

    def record(self, number: int) -> tuple[Tensor, Tensor]:
        is_killed = self.diary is not None and (self.diary / "crime-is-killed").exists()
        if in_worker() and (is_killed or not self.once_killed):
            time.sleep(self.pace_s)
        return super().record(number)


class Cursor:
    """An iterator that says where it is, and notes every record that it really reads."""

    def __init__(self, of: "Stateful", first: int = 0, step: int = 1) -> None:
        self.of, self.next, self.step = of, first, step

    def __iter__(self) -> "Cursor":
        return self

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self.next >= self.of.samples:
            raise StopIteration
        number, self.next = self.next, self.next + self.step
        if self.of.diary is not None and in_worker():
            with open(self.of.diary / "read", "a") as notes:
                notes.write(f"{number}\n")
        return self.of.record(number)

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


class Stateful(Undivided):
    """Its iterator can go on from where another was."""

    def __iter__(self) -> Iterator[Any]:
        return Cursor(self)


class DividedStateful(Stateful):
    """The same, and it divides its records among those who read it."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        return Cursor(self) if info is None else Cursor(self, info.id, info.num_workers)


class Placed(Reading, IterableDataset):
    """Keeps its place in itself, and can say it."""

    at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at < self.samples:
            self.at += 1
            yield self.record(self.at - 1)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Once(IterableDataset):
    """Can be read once."""

    def __init__(self, samples: int) -> None:
        self.numbers = iter(range(samples))

    def __iter__(self) -> Iterator[Any]:
        return ((torch.tensor(number), torch.tensor(number)) for number in self.numbers)


def numbers(samples: int) -> Iterator[Any]:
    """A function that answers an iterator."""
    for number in range(samples):
        yield torch.tensor(number), torch.tensor(number)


class CountingNamed(Counting):
    """Counts by number; each record has the key of a name, too."""

    def forward(self, numbers: Tensor, keys: Tensor) -> Tensor:
        return super().forward(numbers)
