"""A table in a text file into shared memory, as one does it without us: pandas reads it, in one process, with as many
threads as it likes, and the columns are copied into tensors."""

import os
import subprocess
import sys
from importlib.metadata import version as version_of
from pathlib import Path

PROGRAM = """
import sys, time
import numpy, pandas, torch
began = time.monotonic()
table = pandas.read_csv(sys.argv[1], dtype=numpy.float32)
inputs = torch.empty((len(table), table.shape[1] - 1)).share_memory_()
target = torch.empty((len(table), 1)).share_memory_()
inputs.numpy()[:] = table.iloc[:, 1:].to_numpy()
target.numpy()[:] = table.iloc[:, :1].to_numpy()
print(time.monotonic() - began)
"""


def version() -> str:
    return version_of("pandas")


def seconds(file: Path, cores: int | None = None) -> float:
    """Without its imports, in an interpreter of its own, on so many of our cores; None for all."""
    ours = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, sorted(ours)[:cores])
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(file)], capture_output=True, text=True, check=True)
    finally:
        os.sched_setaffinity(0, ours)
    return float(done.stdout)
