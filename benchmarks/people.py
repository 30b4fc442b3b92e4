"""The figures of what a person sees: `make bench-people`. Needs the MNIST files (`HOGWILD_DATA`). Run nothing
else meanwhile.

A job that shows everything and one that shows nothing take turns; so do a table read by our workers and by pandas.
"""

import fcntl
import os
import pty
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.baselines import pandas_csv
from benchmarks.baselines.networks import NETWORKS
from benchmarks.bench import NO_EVALUATION, in_turn
from benchmarks.commands import MNIST, ROOT, CommandFailed, job, seconds, summary_of
from benchmarks.figures import MLP, Figure
from benchmarks.results import begin, write
from benchmarks.row import Row
from hogwild import estimator, host
from hogwild.chaos.inject import STATUS
from hogwild.storage.run_files import read_json
from tests.bad_input.jobs import BAD_JOBS
from tests.bad_input.table import TABLE
from tests.helpers.jobs import read_events
from tests.helpers.run_records import Story, write_run
from tests.helpers.terminal import Reader

COST = Figure("display, JSONL and TensorBoard together: share of the machine's processor time, MLP", 0.01, "", True)
REPORT = Figure("`report` of 100,000 metric records and 1,000 events", 10.0, "s", True)
CSV = Figure("CSV of 1 M rows x 30 numbers into shared memory, 2 workers, over pandas.read_csv + copy", 1.2)
TRIED = Figure("bad inputs tried, each with code, place and rule", 120, "")
CHECKED = Figure("scikit-learn's `check_estimator`, Classifier and Regressor: unexpected failures", 0, "", True)

SHOWN = ("log.progress=true", "log.jsonl=true", "log.tensorboard=true")
HIDDEN = ("log.progress=false", "log.jsonl=false", "log.tensorboard=false")
PAIRS, FEW = 11, 3
EPOCHS = 30
DEATHS = 230  # each with its exit, restart, spawn and ready
TABLE_ROWS, COLUMNS = 1_000_000, 30
WIDTH, HEIGHT = 200, 50
LOOK_S = 0.05  # between two looks at what the supervisor has used


@dataclass(frozen=True, slots=True)
class Shown:
    """`cpu_s`: of the supervisor's process alone, from the first update to its end."""

    samples_per_s: float
    train_s: float
    cpu_s: float


def showing(settings: tuple[str, ...]) -> Shown:
    """An MLP job on a terminal of its own, which somebody reads."""
    master, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", HEIGHT, WIDTH, 0, 0))
    overrides = (*NETWORKS[MLP].overrides, *NO_EVALUATION, f"train.epochs={EPOCHS}", "train.threads=1", *settings)
    with tempfile.TemporaryDirectory() as folder, open(master, "rb", buffering=0) as screen:
        argv = [sys.executable, str(ROOT / "run.py"), "train", MNIST, "--procs", "2", *overrides]
        argv += ["train.exchange=delta", "--json", "--run-dir", f"{folder}/run"]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=terminal, text=True, cwd=folder)
        os.close(terminal)
        Reader(screen)
        cpu_s = _watched(process, Path(folder) / "run")
        answer = process.communicate()[0]
        if process.returncode:
            raise CommandFailed(f"exit status {process.returncode}: {argv}")
    summary = summary_of(answer)
    return Shown(summary["samples_per_s"], summary["train_s"], cpu_s)


def _watched(process: subprocess.Popen[str], run: Path) -> float:
    """Processor seconds of the process itself from its first update on, as last seen before its end."""
    began_s: float | None = None
    cpu_s = 0.0
    while process.poll() is None:
        cpu_s = host.cpu_s(process.pid) or cpu_s
        if began_s is None and read_json(run, STATUS).get("updates"):
            began_s = cpu_s
        time.sleep(LOOK_S)
    return cpu_s - (began_s or 0.0)


def cost() -> list[Row]:
    """Processor time says what a ratio of two rates cannot: those of one job differ by a tenth from run to run."""
    shown: list[Shown] = []
    hidden: list[Shown] = []

    def look(settings: tuple[str, ...], kept: list[Shown]) -> float:
        kept.append(showing(settings))
        return kept[-1].samples_per_s

    everything, nothing = in_turn(PAIRS, partial(look, SHOWN, shown), partial(look, HIDDEN, hidden))
    machine = host.usable_cores().usable
    shares = [(a.cpu_s / a.train_s - b.cpu_s / b.train_s) / machine for a, b in zip(shown, hidden, strict=True)]
    alone = statistics.median(one.cpu_s / one.train_s / machine for one in hidden)
    note = f"2 workers, {machine:g} cores; what the supervisor uses without them: the baseline"
    spread = statistics.quantiles([b / statistics.median(nothing) for b in nothing], n=4)
    rates = f"samples/s; half of the runs that show nothing lie between {spread[0]:.3f} and {spread[2]:.3f} of them"
    costs = [1 - a / b for a, b in zip(everything, nothing, strict=True)]
    return [
        COST.row(shares, alone, note),
        Row("the same: cost on throughput", "", None, costs, statistics.median(nothing), rates),
    ]


def report() -> Row:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        write_run(run, Story(records=100_000, deaths=DEATHS))
        events = len((run / "events.jsonl").read_text().splitlines())
        took = [seconds("run.py", "report", str(run)) for _ in range(FEW)]
    return REPORT.row(took, note=f"4 workers, {events:,} events; the whole command, imports included")


def table() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        file, runs = Path(folder) / "table.csv", Path(folder) / "runs"
        _write_table(file)
        one_core = partial(pandas_csv.seconds, file, cores=1)
        ours, pandas, alone = in_turn(FEW, partial(_ours, file, runs), partial(pandas_csv.seconds, file), one_core)
        _ours(file, runs)
        again = _ours(file, runs, is_cached=True)
        size = f"{file.stat().st_size / 1e6:.0f} MB"
    ratios, over_one = ([theirs / mine for mine, theirs in zip(ours, each, strict=True)] for each in (pandas, alone))
    note = (
        f"{size}; baseline in seconds, its import left out: pandas {pandas_csv.version()} uses both cores; ours: with "
    )
    note += "counting the rows and starting to read, without hashing the file and writing the cache"
    return [
        CSV.row(ratios, statistics.median(pandas), note),
        Row("the same over pandas on one core", "x", None, over_one, statistics.median(alone)),
        Row("the same once more, from the cache, hash included", "s", None, [again]),
    ]


def _write_table(file: Path) -> None:
    values = np.random.default_rng(1).normal(size=(TABLE_ROWS // 10, COLUMNS)).astype(np.float32)
    lines = "\n".join(",".join(f"{value:.6g}" for value in row) for row in values.tolist()) + "\n"
    with open(file, "w") as stream:
        stream.write(",".join(f"c{k}" for k in range(COLUMNS)) + "\n")
        for _ in range(10):
            stream.write(lines)


def _ours(file: Path, runs: Path, *, is_cached: bool = False) -> float:
    """Seconds from the end of the imports until the data lies in shared memory."""
    if not is_cached:
        shutil.rmtree(runs, ignore_errors=True)
        runs.mkdir()
    data = f"data.train={{class_path: hogwild.data.Csv, init_args: {{path: {file}, target: c0}}}}"
    model = f"model={{class_path: hogwild.models.Mlp, init_args: {{features: {COLUMNS - 1}, hidden: [8], classes: 1}}}}"
    settings = ("loss.class_path=torch.nn.MSELoss", "data.val=null", "train.max_updates=10", *HIDDEN)
    run_dir = Path(tempfile.mkdtemp(dir=runs))
    _, summary = job("train", "--procs", "2", data, model, *settings, run_dir=run_dir)
    (read,) = (event for event in read_events(run_dir, "data-read"))
    seconds_ = float(summary["startup"]["build_s"]) + float(summary["startup"]["share_s"])
    return seconds_ - read.get("hash_s", 0.0) - read.get("kept_s", 0.0)


def checks() -> Row:
    from sklearn.utils.estimator_checks import check_estimator

    kinds = (estimator.Classifier(), estimator.Regressor())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [one["status"] for kind in kinds for one in check_estimator(kind, on_fail=None, on_skip=None)]
    note = f"scikit-learn {version('scikit-learn')}: {found.count('passed')} passed, none is expected to fail"
    return CHECKED.row([found.count("failed")], note=note)


def main() -> None:
    if not os.environ.get("HOGWILD_DATA"):
        sys.exit("set HOGWILD_DATA to the folder that holds mnist/")
    described = begin()
    parts: list[Callable[[], list[Row]]] = [cost, lambda: [report()], table]
    rows = [row for part in parts for row in part()]
    tried = "rows of the tables in tests/bad_input, run by test_bad_input.py and test_config.py in tests/config"
    rows += [TRIED.row([len(TABLE) + len(BAD_JOBS)], note=tried), checks()]
    write("people", rows, described)


if __name__ == "__main__":
    main()
