"""The cost of live predictions for the training, and their speed: `make bench-live`. Needs the MNIST files
(`HOGWILD_DATA`). Run nothing else meanwhile.

In one job, short slices of time without calls and with a client alternate, and each with one is compared with those
around it, so that all see the same job on the same machine. The client is a process of its own with one connection:
CALLS_PER_S calls of ROWS rows, each at its time, late or not. The rows go to benchmarks/results/live.json."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
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

    rounds: int = 40
    slice_s: float = 3.0


FULL, QUICK = Effort(), Effort(1, 2.0)
MORE_S = 0.3  # of calls beyond a slice: its end is a status file's


# ---- the client ------------------------------------------------------------------------------------------------------


def call(run: Path, slice_s: float) -> None:
    """For each line of standard input write the milliseconds of each call of a slice, from when it was due: a call that
    waits for the one before it is late, too."""
    content = np.random.default_rng(1).random((ROWS, 1, 28, 28), np.float32).tobytes()
    header = {"do": "predict", "form": "tensors", "inputs": [["float32", [ROWS, 1, 28, 28]]]}
    with LiveCalls(run) as calls:
        calls.call(header, content)  # connects, and starts the predictor
        print("ready", flush=True)
        for _ in sys.stdin:
            found, began = [], time.monotonic()
            for number in range(int((slice_s + MORE_S) * CALLS_PER_S)):
                due = began + number / CALLS_PER_S
                time.sleep(max(0.0, due - time.monotonic()))
                calls.call(header, content)
                found.append(1000 * (time.monotonic() - due))
            print(json.dumps(found), flush=True)


def client(run: Path, slice_s: float) -> "subprocess.Popen[str]":
    argv = [sys.executable, "-m", "benchmarks.live", "--client", str(run), str(slice_s)]
    return subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


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


def measured(procs: int, effort: Effort) -> tuple[list[float], list[float], list[float]]:
    """(rates with a client over those without, p99 of the calls in ms, processor time of a call in ms) by round."""
    without, during, late, used = [], [], [], []
    # One thread a worker: with one worker, auto would give it both cores, and none were free.
    more = (MODEL, "train.threads=1", f"log.every_s={EVERY_S}", "checkpoint.every_s=null", "log.tensorboard=false")
    with running(MNIST, "--procs", str(procs), *ENDLESS, *more) as now:
        now.until_all_train(procs)
        before = {*host.children(now.process.pid)}
        with client(now.run_dir, effort.slice_s) as calling:
            assert calling.stdin is not None and calling.stdout is not None
            calling.stdout.readline()  # the predictor is there in both slices
            both = [calling.pid, *({*host.children(now.process.pid)} - before)]
            for _ in range(effort.rounds):
                without.append(rate(now, effort.slice_s))
                began_s = sum(host.cpu_s(pid) or 0.0 for pid in both)
                print(file=calling.stdin, flush=True)
                during.append(rate(now, effort.slice_s))
                calls = json.loads(calling.stdout.readline())
                used.append(1000 * (sum(host.cpu_s(pid) or 0.0 for pid in both) - began_s) / len(calls))
                late.append(float(np.percentile(calls, 99)))
            without.append(rate(now, effort.slice_s))
            calling.stdin.close()
    around = [(before_ + after) / 2 for before_, after in pairwise(without)]
    return [a / b for a, b in zip(during, around, strict=True)], late, used


def figures(effort: Effort) -> list[Row]:
    cores = host.usable_cores().usable
    rows = []
    for procs, name, most_ms in ((max(1, int(cores) - 1), "a core free", 5.0), (int(cores), "none free", 20.0)):
        ratios, late, used = measured(procs, effort)
        note = f"{procs} workers on {cores:g} cores, MNIST, an MLP of 128 units; {CALLS_PER_S} calls/s of {ROWS} rows"
        rows.append(Row(f"live: batches/s with a client over without, {name}", "x", 0.97, ratios, note=note))
        rows.append(Row(f"live: p99 of a call, {name}", "ms", most_ms, late, note=note, smaller_is_better=True))
        rows.append(Row(f"live: processor time of a call, client and predictor, {name}", "ms", None, used, note=note))
    return rows


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live")
    parser.add_argument("--quick", action="store_true", help="only shows that it works; writes nothing")
    parser.add_argument("--client", nargs=2, metavar=("RUN", "SECONDS"), help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.client:
        call(Path(given.client[0]), float(given.client[1]))
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
