"""The digits' model, which stops before a certain batch and waits, or goes on slowly: a test that kills or stops it
meets it between two updates, in the middle of an epoch, with the gradient of the next one not even begun."""

import math
import multiprocessing
import os
import time
from pathlib import Path

from torch import Tensor

from hogwild.models import Mlp


class Held(Mlp):
    """After `batches` of its own, a worker says so in `diary`/held-PID, and waits before each further one, at most
    `longest_s`, until there is a file `release` in `diary`."""

    def __init__(
        self, diary: Path, batches: int, release: str = "released", longest_s: float = math.inf, hidden: int = 32
    ) -> None:
        super().__init__(features=64, hidden=[hidden], classes=10, dropout=0.2)
        self.diary, self.release = Path(diary), release
        self.left, self.longest_s = batches, longest_s

    def forward(self, images: Tensor) -> Tensor:
        if self.training and multiprocessing.parent_process() is not None:
            self.left -= 1
            until = time.monotonic() + self.longest_s
            while self.left < 0 and time.monotonic() < until and not (self.diary / self.release).exists():
                (self.diary / f"held-{os.getpid()}").touch()
                time.sleep(0.005)
        return super().forward(images)
