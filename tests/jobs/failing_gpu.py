"""A model that meets what a GPU may do to it: it runs out of memory, or its context breaks. On the simulated device,
whose public functions a model may call; each once, or in every worker (`always`), at a batch that is chosen."""

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tests.helpers import simulated_gpu as simulated

COMMITTED = 6  # batches: an exchange of 4 was flushed before the sixth began


def is_alive(file: Path) -> bool:
    return Path("/proc", file.name.partition("-")[2]).exists()


class Failing(nn.Module):
    """`at`: number of the worker's own batch, from 1. `how`: memory, context, always-memory; or dies: SIGKILL, and its
    replacement finds no room on the device."""

    def __init__(self, diary: str, how: str = "", at: int = 20) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10))
        self.diary, self.how, self.at, self.seen = Path(diary), how, at, 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.how == "dies" and (self.diary / "dies").exists():
            simulated.limit_memory(1000)
            (self.diary / f"replacement-{os.getpid()}").touch()

    def forward(self, x: Tensor) -> Tensor:
        if multiprocessing.parent_process() is not None and self.training:
            self.seen += 1
            if self.seen == COMMITTED:
                (self.diary / f"committed-{os.getpid()}").touch()
            if self.seen == self.at and self.how:
                self._wait_for_the_other()
                self._fail()
                self._outlive_the_replacement()
        return self.body(x.float())

    def _wait_for_the_other(self) -> None:
        """Nobody's failure is the first thing that happens, unless it is to be."""
        while self.at > COMMITTED and len(list(self.diary.glob("committed-*"))) < 2:
            time.sleep(0.005)

    def _outlive_the_replacement(self) -> None:
        """The job is not over before that has given up."""
        while self.how == "dies" and not any(not is_alive(file) for file in self.diary.glob("replacement-*")):
            time.sleep(0.005)

    def _fail(self) -> None:
        if not self.how.startswith("always"):
            try:
                os.close(os.open(self.diary / self.how, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        if self.how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.how.endswith("memory"):
            simulated.run_out_of_memory(123_456)
        else:
            simulated.break_context()
