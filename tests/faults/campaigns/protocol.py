"""The protocol without torch, killed some hundred times a second (`tests/faults/protocol.py`)."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.faults.tally import Tally

HOME = Path(__file__).resolve().parents[3]
TIMEOUT_S = 1000.0  # the program has its own nets; this one is for the program
SEEDS_APART = 100_000  # of two campaigns: each goes on from seed to seed until it has its kills


def run(seed: int, count: int, folder: Path) -> Tally:
    """At least `count` deaths by SIGKILL, and about a tenth as many of other kinds. In a process of its own, which
    forks and may have no torch; what it said is in `folder`. Raises RuntimeError when it came to no end."""
    first = seed * SEEDS_APART
    return Tally(**command(folder, "tests.faults.protocol", str(first), "--kills", str(count))["tally"])


def command(folder: Path, module: str, *arguments: str) -> dict[str, object]:
    """The JSON that `python -m module` printed. It exits with 1 when there were violations, which are in there, too."""
    ended = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=HOME,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # threads that a fork would have to stop and start
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    name = "-".join([module.rpartition(".")[2], *arguments])
    (folder / f"{name}.txt").write_text(ended.stdout + ended.stderr)
    if ended.returncode not in (0, 1) or not ended.stdout:
        raise RuntimeError(f"python -m {module} {' '.join(arguments)} ended with {ended.returncode}:\n{ended.stderr}")
    found: dict[str, object] = json.loads(ended.stdout)
    return found
