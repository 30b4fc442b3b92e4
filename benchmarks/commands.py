"""`run.py` as a user starts it, and what it answered; other commands by the clock."""

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MNIST = str(ROOT / "configs" / "mnist.yaml")
STOPPED = 75  # `train.max_time_s` was reached: a summary like any other


class CommandFailed(Exception):
    """What was measured did not work; the message holds its last words."""


def job(*arguments: str, run_dir: Path | None = None) -> tuple[float, dict[str, Any]]:
    """(seconds of the whole command, its summary). `run_dir`: where the run stays, and beside it what is kept beside
    runs. Raises CommandFailed with what it said."""
    if run_dir is not None:
        return _job(run_dir, arguments)
    with tempfile.TemporaryDirectory() as folder:
        return _job(Path(folder) / "run", arguments)


def answer(*argv: str) -> str:
    """The last line that a Python with these arguments printed, with the project at hand. Raises CommandFailed."""
    done = subprocess.run([sys.executable, *argv], capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise CommandFailed(f"{' '.join(argv)}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]


def summary_of(stdout: str) -> dict[str, Any]:
    """What a job answered with --json."""
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


def _job(run_dir: Path, arguments: tuple[str, ...]) -> tuple[float, dict[str, Any]]:
    argv = [sys.executable, str(ROOT / "run.py"), *arguments, "--json", "--run-dir", str(run_dir)]
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
