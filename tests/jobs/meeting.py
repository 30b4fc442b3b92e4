"""The bundled model for digits whose workers keep step: each begins its batch k only when all have come to theirs. So
every worker makes its first batches, and makes them at the same time as the others, however the machine divides its
time."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

from torch import Tensor

from hogwild.models import Mlp


class Meeting(Mlp):
    """The first `together` batches of `parties` workers. `diary` holds a file per process with a byte for each batch it
    has begun. The first to come to batch `fatal` is killed there, and from then on nobody waits."""

    def __init__(self, diary: str, parties: int, together: int, fatal: int = -1) -> None:
        super().__init__(features=64, hidden=[16], classes=10)
        self.diary = Path(diary)
        self.parties, self.together, self.fatal = parties, together, fatal
        self.begun = 0

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training and multiprocessing.parent_process() is not None and len(inputs) > 3:  # a trial has three
            self._meet()
        return super().forward(inputs)

    def _meet(self) -> None:
        self.begun += 1
        with open(self.diary / f"begun-{os.getpid()}", "a") as file:
            file.write(".")
        if self.begun == self.fatal + 1:
            self._die_if_first()
        while self.begun <= self.together and not (self.diary / "dead").exists():
            if sum(file.stat().st_size >= self.begun for file in self.diary.glob("begun-*")) >= self.parties:
                return
            time.sleep(0.002)

    def _die_if_first(self) -> None:
        try:
            (self.diary / "dead").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
