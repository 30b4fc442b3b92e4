"""How long a command takes to its first update: `make bench-start`. Needs the files of `HOGWILD_DATA`. Run nothing else
meanwhile.

    python -m benchmarks.start                     everything (a quarter of an hour on two cores)
    python -m benchmarks.start --only imdb calls   some; the other rows stay as they were

Seconds from the command to the first update of any worker, and to the moment the last worker is ready, over what
`import torch` takes in another process in the same round. Warm: the data was parsed before, and the kernels are in
the cache. Cold: neither the data's cache nor that of kernels has anything; how much longer that takes."""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from benchmarks import commands, results, sparse_data
from benchmarks.bench import NO_EVALUATION, in_turn, median, say
from benchmarks.commands import ROOT
from benchmarks.row import Row
from benchmarks.sparse_factorisation import FACTORS, ratings_settings
from benchmarks.synthetic_ratings import Shape

SUITE, RUNS, COLD_RUNS = "start", 5, 3
CONFIGS = {"digits": 1.3, "mnist": 1.3, "imdb": 1.2, "ratings": 1.2, "skipgram": 1.2}  # what was asked for
EVERY_WORKER, COLD_S, LARGE, CALL_S = 1.8, 2.0, 2.0, 0.15
LONG_ENOUGH = ("train.epochs=1000000", "train.max_time_s=3", *NO_EVALUATION)  # for every worker to be ready
CALLS = "calls"
IMPORT = "import time; began = time.perf_counter(); import torch; print(time.perf_counter() - began)"
TWO_CALLS = """
import json, sys, time
import torch, hogwild
from hogwild.data import Digits

first_updates = []
for number in range(2):
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss, folder = torch.nn.CrossEntropyLoss(), f"{sys.argv[1]}/{number}"
    result = hogwild.train(model, Digits("train"), loss, optimizer, procs=2, epochs=3, batch_size=16, run_dir=folder)
    first_updates.append(json.load(open(folder + "/summary.json"))["startup_s"])
print(first_updates[1])
"""


def import_s() -> float:
    return float(commands.answer("-c", IMPORT))


def started(folder: Path, config: str, *settings: str) -> tuple[float, float]:
    """(seconds to the first update, seconds until the last worker was ready) of a command with two workers."""
    run_dir, began_s = folder / f"run-{time.monotonic_ns()}", time.time()  # the data's cache is beside it
    file = str(ROOT / "configs" / f"{config}.yaml")
    _, summary = commands.job("train", file, "--procs", "2", *LONG_ENOUGH, *settings, run_dir=run_dir)
    events = map(json.loads, (run_dir / "events.jsonl").read_text().splitlines())
    return summary["startup_s"], max(event["time"] for event in events if event["event"] == "ready") - began_s


def warm(name: str, target: float, config: str, *settings: str) -> list[Row]:
    """The rows of a job; its first run, which parses and compiles, does not count."""
    with tempfile.TemporaryDirectory() as folder:
        started(Path(folder), config, *settings)
        ready: list[float] = []

        def first() -> float:
            update, all_ready = started(Path(folder), config, *settings)
            ready.append(all_ready)
            return update

        alone, updates = in_turn(RUNS, import_s, first)
    ratios = [update / one for update, one in zip(updates, alone, strict=True)]
    note = f"{median(updates):.2f} s; baseline: import torch, seconds"
    return [
        Row(f"{name}: first update", "x", target, ratios, median(alone), note, smaller_is_better=True),
        Row(f"{name}: every worker", "x", EVERY_WORKER, [a / b for a, b in zip(ready, alone, strict=True)],
            note=f"{median(ready):.2f} s", smaller_is_better=True),
    ]  # fmt: skip


def cold(name: str) -> Row:
    """How much longer it takes where nothing was parsed or compiled before."""
    more = []
    for _ in range(COLD_RUNS):
        with tempfile.TemporaryDirectory() as folder, _caches_in(Path(folder)):
            seconds = [started(Path(folder), name)[0] for _ in range(2)]
            more.append(seconds[0] - seconds[1])
    return Row(f"{name}: cold, more", "s", COLD_S, more, smaller_is_better=True)


@contextmanager
def _caches_in(folder: Path) -> Iterator[None]:
    """Kernels that children compile are kept in this folder, and looked for nowhere else."""
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(folder / "cache")):
        yield


def second_call() -> Row:
    """Seconds from the second `hogwild.train` of a process to its first update, once processes wait for it."""
    with tempfile.TemporaryDirectory() as folder:
        calls = [float(commands.answer("-c", TWO_CALLS, tempfile.mkdtemp(dir=folder))) for _ in range(RUNS)]
    return Row("second hogwild.train: first update", "s", CALL_S, calls, smaller_is_better=True)


def large() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        parts = sparse_data.synthetic(Path(folder), Shape.part(0.8))
        return warm("20 million ratings", LARGE, "ratings", *ratings_settings(parts, FACTORS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="ROW", choices=[*CONFIGS, "large", CALLS])
    only = parser.parse_args().only
    described = results.machine()
    sparse_data.data_folder()  # or the end

    def keep(*rows: Row) -> None:
        for row in rows:
            say(f"{row.figure}: {row.value:.2f} {row.unit}, asked {row.target:.2f}; {row.note}")
        results.update(SUITE, rows, described, is_quiet=True)

    for name, target in CONFIGS.items():
        if not only or name in only:
            keep(*warm(name, target, name))
            if name not in ("digits", "mnist"):
                keep(cold(name))
    if not only or "large" in only:
        keep(*large())
    if not only or CALLS in only:
        keep(second_call())


if __name__ == "__main__":
    main()
