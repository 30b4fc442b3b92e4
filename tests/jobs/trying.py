"""A model whose forward commits a crime in its first `often` calls, which are the trial of the job before training.
Every call is noted in `diary`: the process, and whether it is a worker's."""

import ctypes
import multiprocessing
import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.helpers.processes import PATIENCE_S, in_worker


class Trying(nn.Module):
    def __init__(self, diary: str, crime: str = "", often: int = 1, lazy: bool = False) -> None:
        super().__init__()
        self.linear = nn.LazyLinear(2) if lazy else nn.Linear(4, 2)
        self.diary, self.crime, self.often = Path(diary), crime, often

    def forward(self, inputs: Tensor) -> Tensor:
        if in_worker():
            return self.linear(inputs)
        where = "worker" if multiprocessing.parent_process() is not None else "parent"
        calls = len([*self.diary.glob("call-*")])
        (self.diary / f"call-{calls}-{where}-{os.getpid()}").touch()
        if calls < self.often:
            commit(self.crime)
        return self.linear(inputs)


class Growing(Trying):
    """Makes a buffer and a module in its first forward."""

    def forward(self, inputs: Tensor) -> Tensor:
        if not hasattr(self, "scale"):
            self.register_buffer("scale", torch.ones(()))
            self.last = nn.Identity()
        return self.last(super().forward(inputs) * self.scale)


class Unsendable(Trying):
    """Cannot be read in another process before training."""

    def __setstate__(self, state: dict[str, object]) -> None:
        if multiprocessing.parent_process() is not None and not in_worker():
            raise RuntimeError("not here")
        super().__setstate__(state)


def commit(crime: str) -> None:
    if crime == "segfault":
        ctypes.string_at(0)
    if crime == "exit":
        print("no licence for today", flush=True)
        os._exit(7)
    if crime == "exit well":
        os._exit(0)
    if crime == "raise":
        print("a shape, for instance")
        _ = {}["missing"]
    if crime == "hang":
        time.sleep(PATIENCE_S)
    if crime == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if crime == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)


class Pairs(TensorDataset):
    """With `wrong` the label of that sample is one too many."""

    def __init__(self, wrong: int = -1) -> None:
        labels = torch.arange(40) % 2
        if wrong >= 0:
            labels[wrong] = 2
        super().__init__(torch.randn(40, 4), labels)
