"""`run.py` as a user starts it, and what it answered; other commands by the clock."""

import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MNIST = str(ROOT / "configs" / "mnist.yaml")
DIGITS = str(ROOT / "configs" / "digits.yaml")
FILES = ("events.jsonl", "metrics.jsonl")
OFTEN = ("log.every_s=0.2",)  # so that `settled` has records to count between
STOPPED = 75  # `train.max_time_s` was reached: a summary like any other


class CommandFailed(Exception):
    """A measured command failed; the message holds its last words."""


def job(*arguments: str, run_dir: Path | None = None) -> tuple[float, dict[str, Any]]:
    """(seconds of the whole command, its summary). `run_dir`: where the run stays, and beside it what is kept beside
    runs. Raises CommandFailed with what it said."""
    if run_dir is not None:
        return _job(run_dir, arguments)
    with tempfile.TemporaryDirectory() as folder:
        return _job(Path(folder) / "run", arguments)


def processor_s(*arguments: str, root: Path = ROOT) -> float:
    """The processor time of a job's command and all its processes. `root`: the checkout it is of. Raises
    CommandFailed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        _job(Path(folder) / "run", arguments, root)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def speed(*arguments: str, root: Path = ROOT) -> float:
    """The samples a second of a job, once all of its workers are there. `root`: the checkout it is of. Raises
    CommandFailed with what it said."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        _, summary = _job(run_dir, (*arguments, *OFTEN), root)
        return settled(run_dir) or float(summary["samples_per_s"])


def settled(run_dir: Path) -> float | None:
    """Return the samples a second between the first record after the last worker was ready and the last record; None
    for a job that was over by then."""
    trained = [(time_s, samples) for time_s, samples, is_all in _records(run_dir) if is_all]
    if len(trained) < 2 or trained[0] == trained[-1]:
        return None
    (began_s, before), (ended_s, after) = trained[0], trained[-1]
    return float((after - before) / (ended_s - began_s))


def before_all_were_there(run_dir: Path) -> float:
    """Return the share of the samples, from 0 to 1, that was trained before the last worker was ready."""
    records = [*_records(run_dir)]
    return float(max((samples for _, samples, is_all in records if not is_all), default=0) / records[-1][1])


def _records(run_dir: Path) -> Iterator[tuple[float, int, bool]]:
    """Yield (time, samples, whether all workers were ready by then) of each record of training."""
    events, records = (map(json.loads, (run_dir / file).read_text().splitlines()) for file in FILES)
    ready_s = max(event["time"] for event in events if event["event"] == "ready")
    for row in records:
        if row["kind"] == "train":
            yield row["time"], row["samples"], row["time"] >= ready_s


def answer(*argv: str) -> str:
    """The last line that a Python with these arguments printed, with the project at hand. Raises CommandFailed."""
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise CommandFailed(f"{' '.join(argv)}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]


def summary_of(stdout: str) -> dict[str, Any]:
    """Return a job's answer with --json."""
    answer: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return answer


def overhead(*arguments: str) -> float:
    """The share of an update, from 0 to 1, that is neither forward nor backward: the median over the updates of all
    workers in the window of `--profile`, which is among the arguments. Raises CommandFailed."""
    with tempfile.TemporaryDirectory() as folder:
        _job(Path(folder) / "run", arguments)
        table = (Path(folder) / "run" / "profile" / "phases.txt").read_text()
    (line,) = re.findall(r"all but forward, backward.* ([0-9.]+) %$", table, re.MULTILINE)
    return float(line) / 100


def _job(run_dir: Path, arguments: tuple[str, ...], root: Path = ROOT) -> tuple[float, dict[str, Any]]:
    argv = [sys.executable, str(root / "run.py"), *arguments, "--json", "--run-dir", str(run_dir)]
    began = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=run_dir.parent)
    took = time.monotonic() - began
    if done.returncode not in (0, STOPPED):
        raise CommandFailed(f"{' '.join(argv[1:])}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return took, summary_of(done.stdout)


def seconds(*argv: str, at_once: int = 1) -> float:
    """From the start of `at_once` interpreters with these arguments to the end of the last. Raises CommandFailed."""
    began = time.monotonic()
    started = [
        subprocess.Popen(
            [sys.executable, *argv], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for _ in range(at_once)
    ]
    words = [process.communicate()[1] for process in started]
    took = time.monotonic() - began
    for process, said in zip(started, words, strict=True):
        if process.returncode:
            raise CommandFailed(f"{' '.join(argv)}: exit status {process.returncode}\n{said[-2000:]}")
    return took
