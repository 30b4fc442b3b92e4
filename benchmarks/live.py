"""The cost of live predictions for the training, and their speed: `make bench-live`. Needs the MNIST files
(`HOGWILD_DATA`). Run nothing else meanwhile.

In one job, slices of time without calls and with a client alternate, so both see the same job on the same machine. The
client is a process of its own with one connection: CALLS_PER_S calls of ROWS rows, each at its time, late or not. The
rows go to benchmarks/results/live.json."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks.commands import MNIST, ROOT
from benchmarks.row import Row
from benchmarks.watched import ENDLESS, Running, running
from hogwild import host
from hogwild.chaos.inject import STATUS
from hogwild.monitoring.live_calls import LiveCalls
from hogwild.storage.run_files import read_json

SUITE = "live"
CALLS_PER_S = 100
ROWS = 64
EVERY_S = 0.05  # between two status files
# A call is its forward pass, 0.3 ms here: a convolutional network would need half a core for them.
MODEL = "model={class_path: hogwild.models.Mlp, init_args: {features: 784, hidden: [128], classes: 10}}"


@dataclass(frozen=True, slots=True)
class Effort:
    """`rounds` of two slices, each of `slice_s` seconds, in every job."""

    rounds: int = 12
    slice_s: float = 10.0


FULL, QUICK = Effort(), Effort(1, 2.0)


# ---- the client ------------------------------------------------------------------------------------------------------


def call(run: Path, slice_s: float) -> list[float]:
    """Milliseconds of each call, from when it was due: a call that waits for the one before it is late, too."""
    content = np.random.default_rng(1).random((ROWS, 1, 28, 28), np.float32).tobytes()
    header = {"do": "predict", "form": "tensors", "inputs": [["float32", [ROWS, 1, 28, 28]]]}
    found = []
    with LiveCalls(run) as calls:
        calls.call(header, content)  # connects, and starts the predictor
        began = time.monotonic()
        for number in range(int(slice_s * CALLS_PER_S)):
            due = began + number / CALLS_PER_S
            time.sleep(max(0.0, due - time.monotonic()))
            calls.call(header, content)
            found.append(1000 * (time.monotonic() - due))
    return found


def client(run: Path, slice_s: float) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "benchmarks.live", "--client", str(run), str(slice_s)]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True)


# ---- the job ---------------------------------------------------------------------------------------------------------


def place(now: Running) -> tuple[float, int]:
    """(time, updates) of the next status file."""
    before = read_json(now.run_dir, STATUS).get("time")

    def look() -> dict[str, Any] | None:
        record = read_json(now.run_dir, STATUS)
        return record if record.get("time", before) != before else None

    record = now.until("status", look)
    assert record is not None
    return float(record["time"]), int(record["updates"])


def rate(now: Running, seconds: float) -> float:
    """Updates per second, over so many."""
    began, first = place(now)
    time.sleep(seconds)
    ended, last = place(now)
    return (last - first) / (ended - began)


def measured(procs: int, effort: Effort) -> tuple[list[float], list[float]]:
    """(rates with a client over those without, p99 of the calls in ms) by round."""
    ratios, late = [], []
    # One thread a worker: with one worker, auto would give it both cores, and none were free.
    more = (MODEL, "train.threads=1", f"log.every_s={EVERY_S}", "checkpoint.every_s=null", "log.tensorboard=false")
    with running(MNIST, "--procs", str(procs), *ENDLESS, *more) as now:
        now.until_all_train(procs)
        call(now.run_dir, 0.5)  # the predictor is there in both slices
        for _ in range(effort.rounds):
            without = rate(now, effort.slice_s)
            calling = client(now.run_dir, effort.slice_s + 2.0)
            time.sleep(1.5)  # its imports
            ratios.append(rate(now, effort.slice_s - 1.0) / without)
            answer, _ = calling.communicate()
            late.append(float(np.percentile(json.loads(answer), 99)))
    return ratios, late


def figures(effort: Effort) -> list[Row]:
    cores = host.usable_cores().usable
    rows = []
    for procs, name, most_ms in ((max(1, int(cores) - 1), "a core free", 5.0), (int(cores), "none free", 20.0)):
        ratios, late = measured(procs, effort)
        note = f"{procs} workers on {cores:g} cores, MNIST, an MLP of 128 units; {CALLS_PER_S} calls/s of {ROWS} rows"
        rows.append(Row(f"live: batches/s with a client over without, {name}", "x", 0.97, ratios, note=note))
        rows.append(Row(f"live: p99 of a call, {name}", "ms", most_ms, late, note=note, smaller_is_better=True))
    return rows


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live")
    parser.add_argument("--quick", action="store_true", help="only shows that it works; writes nothing")
    parser.add_argument("--client", nargs=2, metavar=("RUN", "SECONDS"), help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.client:
        print(json.dumps(call(Path(given.client[0]), float(given.client[1]))))
        return 0
    if not os.environ.get("HOGWILD_DATA"):
        sys.exit("set HOGWILD_DATA to the folder that holds mnist/")
    described = results.machine() if given.quick else results.begin()
    rows = figures(QUICK if given.quick else FULL)
    if given.quick:
        print(results.table(rows))
    else:
        results.update(SUITE, rows, described)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
