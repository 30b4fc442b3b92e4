"""The time of a command to its first update: `make bench-start`. Needs the files of `HOGWILD_DATA`. Run nothing else
meanwhile.

    python -m benchmarks.start                     everything (half an hour on two cores)
    python -m benchmarks.start --only imdb calls   some; the other rows stay as they were
    python -m benchmarks.start --before FOLDER     and what is measured over another checkout of this project, in turns

Seconds from the command to the first update of any worker, and to the moment the last worker is ready, over what
`import torch` takes in another process in the same round. Warm: the data was parsed before, and the kernels are in
the cache. Cold: the cache of kernels is empty; how much longer that takes."""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest import mock

from benchmarks import commands, results, sparse_data
from benchmarks.bench import NO_EVALUATION, in_turn, median, say
from benchmarks.commands import ROOT
from benchmarks.detection import replaced_s
from benchmarks.row import Row
from benchmarks.sparse_factorisation import FACTORS, ratings_settings
from benchmarks.synthetic_ratings import Shape
from benchmarks.watched import ENDLESS, running
from hogwild.storage.run_files import write_request

SUITE, RUNS, COLD_RUNS = "start", 5, 3
# What was asked for.
CONFIGS = {"digits": 1.2, "mnist": 1.35, "imdb": 1.4, "ratings": 1.35, "skipgram": 1.5, "a9a": 1.4}
COLD_S = {"ratings": 1.5, "a9a": 1.5, "codex": 6.0}
EVERY_WORKER, ALL_WORKERS, LARGE, CALL_S = 1.35, 1.6, 1.8, 0.15
MOST_WORKERS = 16 if len(os.sched_getaffinity(0)) >= 16 else 8
PRIVATE_MB, AGAIN_S = 15.0, 0.15
PROCESSOR, SPEED = 0.35, 0.99  # over the tree before
SPEEDS = {
    "LeNet": ("mnist",),
    "MLP": ("mnist", "model={class_path: hogwild.models.Mlp, init_args: {features: 784, hidden: [128], classes: 10}}"),
    "ratings": ("ratings",),
    "words": ("skipgram",),
    "codex": ("codex",),
}
TRAINS_S = "train.max_time_s=10"
EVERY_S = 0.02  # between two status files, and so the resolution of a first commit
LONG_ENOUGH = ("train.epochs=1000000", "train.max_time_s=3", *NO_EVALUATION)  # for every worker to be ready
CALLS = "calls"
IMPORT = "import time; began = time.perf_counter(); import torch; print(time.perf_counter() - began)"
TWO_CALLS = """
import json, sys, time
import torch, hogwild
from hogwild.data import Digits

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))

first_updates = []
for number in range(2):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss, folder = torch.nn.CrossEntropyLoss(), f"{sys.argv[1]}/{number}"
    result = hogwild.train(model, Digits("train"), loss, optimizer, procs=2, epochs=3, batch_size=16, run_dir=folder)
    first_updates.append(json.load(open(folder + "/summary.json"))["startup_s"])
print(first_updates[1])
"""


def import_s() -> float:
    return float(commands.answer("-c", IMPORT))


def started(folder: Path, config: str, *settings: str, procs: int = 2) -> tuple[float, float]:
    """(seconds to the first update, seconds until the last worker was ready) of a command with some workers."""
    run_dir, began_s = folder / f"run-{time.monotonic_ns()}", time.time()  # the data's cache is beside it
    file = str(ROOT / "configs" / f"{config}.yaml")
    _, summary = commands.job("train", file, "--procs", str(procs), *LONG_ENOUGH, *settings, run_dir=run_dir)
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


def many() -> Row:
    """The ratio for the last of many workers."""
    with tempfile.TemporaryDirectory() as folder:
        ways = import_s, lambda: started(Path(folder), "digits", procs=MOST_WORKERS)[1]
        alone, ready = in_turn(RUNS, *ways)
    ratios = [all_ready / one for all_ready, one in zip(ready, alone, strict=True)]
    figure, note = f"digits, {MOST_WORKERS} workers: every worker", f"{median(ready):.2f} s"
    return Row(figure, "x", ALL_WORKERS, ratios, median(alone), note, smaller_is_better=True)


def cold(name: str, target: float) -> Row:
    """Measure the additional time where no kernel was compiled before; its data was parsed."""
    more = []
    with tempfile.TemporaryDirectory() as folder:
        started(Path(folder), name)
        for number in range(COLD_RUNS):
            with _caches_in(Path(folder) / str(number)):
                seconds = [started(Path(folder), name)[0] for _ in range(2)]
                more.append(seconds[0] - seconds[1])
    return Row(f"{name}: kernels never compiled, more", "s", target, more, smaller_is_better=True)


@contextmanager
def _caches_in(folder: Path) -> Iterator[None]:
    """Kernels that children compile are kept in this folder, and looked for nowhere else."""
    with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(folder / "cache")):
        yield


def second_call() -> Row:
    """Seconds from the second `hogwild.train` of a program to its first update, at once after the first; the model's
    class is the program's."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_text(TWO_CALLS)
        run = {"PYTHONPATH": str(ROOT)}
        with mock.patch.dict(os.environ, run):
            calls = [float(commands.answer(str(program), tempfile.mkdtemp(dir=folder))) for _ in range(RUNS)]
    return Row("second hogwild.train: first update", "s", CALL_S, calls, smaller_is_better=True)


def large() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        parts = sparse_data.synthetic(Path(folder), Shape.part(0.8))
        return warm("20 million ratings", LARGE, "ratings", *ratings_settings(parts, FACTORS))


def private_memory() -> Row:
    """Megabytes that only the worker has, of the largest of four workers of a small model."""
    found = []
    for _ in range(RUNS):
        with running(str(ROOT / "configs" / "digits.yaml"), "--procs", "4", *ENDLESS) as now:
            pids = [target.pid for target in now.until_all_train(4).values()]
            found.append(max(map(_private_mb, pids)))
    return Row("a further worker: private memory", "MB", PRIVATE_MB, found, smaller_is_better=True)


def _private_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def again() -> list[Row]:
    """Seconds from the death of a worker to its replacement's first commit, and from a wish for one more worker to that
    one's."""
    often = f"log.every_s={EVERY_S}"
    replaced, added = [], []
    with running(str(ROOT / "configs" / "digits.yaml"), "--procs", "2", *ENDLESS, "train.procs_max=64", often) as now:
        for number in range(2 * RUNS):
            replaced.append(replaced_s(now, number % 2))
        for number in range(3, 3 + RUNS):
            asked = time.monotonic()
            write_request(now.run_dir, {"ask": "resize", "procs": number})
            now.until_all_train(number)
            added.append(time.monotonic() - asked)
    return [
        Row("a killed worker's replacement trains", "s", AGAIN_S, replaced, smaller_is_better=True),
        Row("one more worker trains", "s", AGAIN_S, added, smaller_is_better=True),
    ]


def over(before: Path) -> Iterator[Row]:
    """Measure the figures over another checkout."""
    eight = "train", str(ROOT / "configs" / "digits.yaml"), "--procs", "8"
    ours, theirs = in_turn(
        RUNS, partial(commands.processor_s, *eight), partial(commands.processor_s, *eight, root=before)
    )
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    figure = "digits, 8 workers: processor time of the command over the tree before"
    yield Row(figure, "x", PROCESSOR, ratios, median(theirs), f"{median(ours):.1f} s", smaller_is_better=True)
    for name, (config, *model) in SPEEDS.items():
        job = "train", str(ROOT / "configs" / f"{config}.yaml"), "--procs", "2", "train.epochs=1000000", TRAINS_S
        settings = *job, *model, *NO_EVALUATION
        ours, theirs = in_turn(
            RUNS, partial(commands.speed, *settings), partial(commands.speed, *settings, root=before)
        )
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        yield Row(f"{name}: samples/s over the tree before", "x", SPEED, ratios, median(theirs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="ROW", choices=[*CONFIGS, *COLD_S, *OTHERS])
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="another checkout of this project")
    given = parser.parse_args()
    only = given.only
    described = results.begin()
    sparse_data.data_folder()  # or the end

    def keep(*rows: Row) -> None:
        for row in rows:
            say(f"{row.figure}: {row.value:.2f} {row.unit}, asked {row.target:.2f}; {row.note}")
        results.update(SUITE, rows, described, is_quiet=True)

    for name, target in CONFIGS.items():
        if not only or name in only:
            keep(*warm(name, target, name))
    for name, target in COLD_S.items():
        if not only or name in only:
            keep(cold(name, target))
    for name, measure in OTHERS.items():
        if not only or name in only:
            keep(*measure())
    if given.before is not None:
        keep(*over(given.before.resolve()))


OTHERS: dict[str, Callable[[], list[Row]]] = {
    "many": lambda: [many()],
    "memory": lambda: [private_memory()],
    "again": again,
    CALLS: lambda: [second_call()],
    "large": large,
}


if __name__ == "__main__":
    main()
