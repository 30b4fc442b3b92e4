"""The figures of the spine: `make bench-spine`. Needs the MNIST files (`HOGWILD_DATA`). Run nothing else meanwhile.

Ours and the limit alternate, so that a noisy minute hits both; every figure is the median of RUNS.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.baselines.limit import Settings, samples_per_s
from benchmarks.results import write
from benchmarks.row import Row
from hogwild.data import Mnist

RUNS = 5
ROOT = Path(__file__).parent.parent
LENET_FLOOR = 0.85 * 18_000  # a limit slower than this says more about the machine's mood than about us


def command(*arguments: str) -> tuple[float, dict[str, Any]]:
    """Runs `run.py` as a user does; (seconds of the whole command, its summary)."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, str(ROOT / "run.py"), *arguments, "--json", "--run-dir", f"{folder}/run"],
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
        )
        return time.monotonic() - began, json.loads(done.stdout.splitlines()[-1])


def seconds(*argv: str) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, *argv], check=True, capture_output=True, cwd=ROOT)
    return time.monotonic() - began


def digits() -> list[Row]:
    runs = [command("--procs", "4") for _ in range(RUNS)]
    return [
        Row("digits default job: test accuracy", "", 0.96, [run["metrics"]["accuracy"] for _, run in runs]),
        Row("digits default job: whole command", "s", 30.0, [s for s, _ in runs], smaller_is_better=True),
    ]


def mnist() -> Row:
    runs = [command("train", str(ROOT / "configs/mnist.yaml"), "--procs", "2")[1] for _ in range(3)]
    return Row("MNIST, 2 workers: test accuracy within 4 epochs", "", 0.98, [r["metrics"]["accuracy"] for r in runs])


def lenet_over_the_limit() -> Row:
    x, y = Mnist(split="train").tensors
    ratios: list[float] = []
    limits: list[float] = []
    ours: list[float] = []
    for _ in range(RUNS):
        limits.append(samples_per_s(x, y, 2, Settings(updates=1500)))
        _, summary = command("train", str(ROOT / "configs/mnist.yaml"), "--procs", "2", "train.epochs=3")
        ours.append(summary["samples_per_s"])
        ratios.append(ours[-1] / limits[-1])
    limit = statistics.median(limits)
    row = Row(
        "LeNet, 2 workers: samples/s over the limit",
        "x",
        0.85,
        ratios,
        baseline=limit,
        note=f"ours {statistics.median(ours):,.0f} samples/s; baseline: 2 processes that share nothing",
    )
    if limit < LENET_FLOOR:
        row.met, row.note = None, f"void: the limit ran at {limit:,.0f} samples/s, below {LENET_FLOOR:,.0f}"
    return row


def start_of_the_command_line() -> list[Row]:
    rows: list[Row] = []
    for name, argv in (("--help", ["run.py", "--help"]), ("check", ["run.py", "check", "configs/mnist.yaml"])):
        ratios: list[float] = []
        imports: list[float] = []
        for _ in range(RUNS):
            imports.append(seconds("-c", "import torch"))
            ratios.append(seconds(*argv) / imports[-1])
        rows.append(
            Row(
                f"{name}: time over `import torch`",
                "x",
                0.5,
                ratios,
                baseline=statistics.median(imports),
                smaller_is_better=True,
                note="baseline in seconds",
            )
        )
    return rows


def main() -> None:
    if not os.environ.get("HOGWILD_DATA"):
        sys.exit("set HOGWILD_DATA to the folder that holds mnist/")
    write("spine", [*digits(), mnist(), lenet_over_the_limit(), *start_of_the_command_line()])


if __name__ == "__main__":
    main()
