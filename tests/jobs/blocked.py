"""Workers that do not move any more, each in a way of its own: `hangs` names functions of this file. A worker claims
the next one that nobody has claimed, and goes on as if nothing were when there is none left."""

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from counting import Counting, in_worker
from torch import Tensor

LONG_S = 3600.0


class Hanging(Counting):
    """`together`: how many workers there must be, each in a batch, before the first of them hangs, at the earliest in
    its second: until its first commit it is starting. Until then a worker waits in its first batch (`waits`), or trains
    on, so that there are commits. `diary` as of `Counting`."""

    def __init__(self, samples: int, diary: str, hangs: list[str], together: int, waits: bool = False) -> None:
        super().__init__(samples, diary)
        self.hangs, self.together, self.waits = hangs, together, waits
        self.batches = 0

    def forward(self, numbers: Tensor) -> Tensor:
        """numbers (B,) int64 -> their rows (B,)."""
        counts = super().forward(numbers)
        if in_worker() and self.training and self.diary is not None:
            while self.waits and not self._are_all_here(self.diary):
                time.sleep(0.005)
            if self.batches and self._are_all_here(self.diary):
                self._claim(self.diary)
            self.batches += 1
            time.sleep(0.01)
        return counts

    def _are_all_here(self, diary: Path) -> bool:
        return len(list(diary.glob("train-*"))) >= self.together

    def _claim(self, diary: Path) -> None:
        for name in self.hangs:
            try:
                claim = os.open(diary / f"claim-{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                continue
            os.write(claim, f"{os.getpid()}\n".encode())
            os.close(claim)
            HANGS[name]()
            return


def sleeps() -> None:
    time.sleep(LONG_S)


def sleeps_in_native_code() -> None:
    """With the interpreter's lock held: no Python code runs in this process any more."""
    ctypes.PyDLL(None).sleep(int(LONG_S))


def waits_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def reads_a_pipe() -> None:
    reading, _ = os.pipe()
    os.read(reading, 1)


def stops() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hears_nothing() -> None:
    """Ignores the signal that asks for its stacks."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    time.sleep(LONG_S)


def works_on_beside() -> None:
    """A thread of its own goes on, as one that beats would, while the training thread hangs."""
    threading.Thread(target=_work, daemon=True).start()
    threading.Event().wait()


def _work() -> None:
    while True:
        torch.ones(64).sum()
        time.sleep(0.001)


def stops_in_its_beat() -> None:
    """The next time that this worker's row is about to be told that it lives, the process is stopped."""

    def stop_there(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name in ("beat", "note_update"):
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGSTOP)

    sys.setprofile(stop_there)


HANGS = {
    function.__name__: function
    for function in (
        sleeps,
        sleeps_in_native_code,
        waits_for_a_lock,
        reads_a_pipe,
        stops,
        hears_nothing,
        works_on_beside,
        stops_in_its_beat,
    )
}
