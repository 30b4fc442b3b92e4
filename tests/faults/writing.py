"""Writes checkpoints to be interrupted at any system call. Imports torch once, then forks for every trial: a process
with no thread but its first. `python -m tests.faults.writing`, driven over its standard input and output:

    FOLDER UPDATE VALUE    forks; the child says its number and waits
    g                      (to the child) writes the checkpoint, prunes, turns `latest`; says how that went, and waits

Killed, or at end-of-file, the child ends; the parent then says `over`, and waits for another line."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import Tensor

from hogwild.errors import HogwildError
from hogwild.storage import checkpoint, checkpoint_format
from hogwild.storage.checkpoint_format import checkpoint_name
from hogwild.storage.files import point
from hogwild.storage.run_directory import RESOLVED, RunDir

KEEP = 2
GO, OVER = b"g", "over"


def state_of(update: int, value: float) -> dict[str, Tensor]:
    """Return the content of that update's checkpoint."""
    return {
        "weight": torch.arange(6000.0) + value,
        "momentum": torch.full((40, 50), value),
        "updates": torch.tensor(update),
    }


def make_run(folder: Path, *updates: int) -> Path:
    """A run directory with checkpoints of these updates, `latest` pointing to the newest; the folder of those."""
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir(parents=True)
    (folder / RESOLVED).touch()
    with RunDir.open(folder) as run:
        for update in updates:
            _write(run, update, float(update))
    return checkpoints


def _write(run: RunDir, update: int, value: float) -> None:
    """In the order in which a job does it: the first two in the writer's thread, then the supervisor's turn."""
    state = state_of(update, value)
    written = checkpoint.write(run.checkpoints, checkpoint_name(update), dict(state), state, {"value": value})
    checkpoint_format.prune(run.checkpoints, KEEP)
    point(run.latest, written.name)


def _attempt(run: RunDir, update: int, value: float) -> dict[str, str]:
    """Errors that a job survives; any other one ends this process, and is seen."""
    try:
        _write(run, update, value)
    except (HogwildError, OSError) as error:
        return {"error": type(error).__name__, "words": str(error)}
    return {"error": "", "words": ""}


def _child(folder: Path, update: int, value: float) -> None:
    run = RunDir.open(folder)
    os.write(1, f"{os.getpid()}\n".encode())
    while os.read(0, 1) == GO:
        said = json.dumps(_attempt(run, update, value))
        os.write(1, f"{said}\n".encode())


def _line() -> str:
    """Byte by byte: what comes after it is the child's."""
    line = b""
    while (byte := os.read(0, 1)) not in (b"", b"\n"):
        line += byte
    return line.decode()


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    make_run(folder, 1)  # whatever is imported or opened at the first time
    while line := _line():
        where, update, value = line.split(" ")
        if (pid := os.fork()) == 0:
            try:
                _child(Path(where), int(update), float(value))
            finally:
                sys.stderr.flush()
                os._exit(1)
        os.waitpid(pid, 0)
        os.write(1, f"{OVER}\n".encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
