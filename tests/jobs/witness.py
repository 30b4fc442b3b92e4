"""A model that writes down what it sees in its process: one JSON line per batch in `diary`/PID."""

import ctypes
import json
import multiprocessing
import os
import threading
import time
from pathlib import Path

import torch
from torch import Tensor, nn

AHEAD = 160
TRIED = 3  # samples of the trial before the training, whose batches have more


class Witness(nn.Module):
    """A linear model of 8 features. The first worker to come is slow: its first batch lasts until the others have begun
    AHEAD of them. The batch whose inputs begin with a negative number waits while `diary`/hold is there, and says
    so."""

    def __init__(self, diary: Path) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 1)
        self.diary = diary

    def share_memory(self) -> "Witness":
        (self.diary / f"share_memory-{os.getpid()}").touch()
        return super().share_memory()

    def forward(self, inputs: Tensor) -> Tensor:
        is_trial = len(inputs) <= TRIED
        if multiprocessing.parent_process() is not None and self.training and not is_trial:
            self._testify(inputs)
            if float(inputs[0, 0]) < 0:
                self._wait_while_held()
            elif self._is_first():
                self._let_others_go_ahead()
        return self.linear(inputs).squeeze(1)

    def _testify(self, inputs: Tensor) -> None:
        seen = {
            "ppid": os.getppid(),
            "address": inputs.data_ptr(),
            "shared": all(param.is_shared() for param in self.parameters()),
            "omp": os.environ.get("OMP_NUM_THREADS"),
            "torch_threads": torch.get_num_threads(),
            "openmp_at_load": openmp_threads_of_a_new_thread(),
        }
        with open(self.diary / f"saw-{os.getpid()}", "a") as notes:
            notes.write(json.dumps(seen) + "\n")

    def _is_first(self) -> bool:
        """Return whether this is the first batch of all workers: the one that makes the file."""
        try:
            with open(self.diary / "slow", "x") as mark:
                mark.write(str(os.getpid()))
        except FileExistsError:
            return False
        return True

    def _let_others_go_ahead(self) -> None:
        own = f"saw-{os.getpid()}"
        while sum(file.read_text().count("\n") for file in self.diary.glob("saw-*") if file.name != own) < AHEAD:
            time.sleep(0.02)

    def _wait_while_held(self) -> None:
        (self.diary / "holding").write_text(str(os.getpid()))
        while (self.diary / "hold").exists():
            time.sleep(0.005)


def openmp_threads_of_a_new_thread() -> int:
    """Return the number that OpenMP read from the environment when it was loaded: set_num_threads changes the calling
    thread's number only, a new thread begins with the initial one."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    library = next(line.split()[-1] for line in maps if "libgomp" in line or "libiomp" in line or "libomp" in line)
    answer: list[int] = []
    thread = threading.Thread(target=lambda: answer.append(ctypes.CDLL(library).omp_get_max_threads()))
    thread.start()
    thread.join()
    return answer[0]
