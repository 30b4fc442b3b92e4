"""Procs x threads tried out on a job's own model and data: `plan --measure`, and `train --procs auto`.

A trial is the command itself, in a child process, for a second and a half of training, one after the other: what is
measured is what will run. Pure but for `try_setting`."""

import json
import math
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from hogwild.errors import RunError
from hogwild.host import Cores, describe_exit
from hogwild.host.own_command import own_command

MOST_SETTINGS = 6  # each costs a start-up, four to six seconds, beside what it measures
TRIAL_S, LONGER_S = 1.5, 10.0  # of training, from the first update; the second where batches take long
FEW_UPDATES = 20  # of each worker: a rate over fewer depends on where in a batch the time was up
TOO_FEW = "too few updates to tell"
STOPPED = 75  # the exit status of a job that max_time_s has ended: how a trial is meant to end
GRACE_S = 10.0  # what a trial that is broken off gets to clean up
NOISE = 0.02  # figures that differ by less are equal

# Nothing that ends the trial early, pauses it, or writes. `exchange: auto` would be a trial inside the trial.
TRIAL = (
    "train.epochs=1000000",
    "train.max_updates=null",
    "data.val=null",
    "evaluate.target={}",
    "checkpoint.every_s=null",
    "checkpoint.every_updates=null",
    "log.jsonl=false",
    "log.progress=false",
    "supervise.min_workers=1",
)


@dataclass(frozen=True, slots=True)
class TrialSetting:
    procs: int
    threads: int

    def __str__(self) -> str:
        return f"{self.procs} x {self.threads}"


@dataclass(frozen=True, slots=True)
class SettingTrial:
    """What a setting did: `samples_per_s`, or None and the `error`, in words. `is_coarse`: after few updates."""

    setting: TrialSetting
    samples_per_s: float | None
    error: str = ""
    is_coarse: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """The job to try: its file (None: the embedded one), the file's text, changes on top, and where data are."""

    job_file: Path | None
    job_text: str
    overrides: Sequence[str]
    data_dir: Path | None
    exchange: Literal["auto", "direct", "delta"] = "auto"

    def arguments(self, setting: TrialSetting, seconds: float, folder: Path) -> list[str]:
        """Of the command line of one trial, whose files go to `folder`."""
        changes = (
            f"train.procs={setting.procs}",
            f"train.threads={setting.threads}",
            f"train.exchange={'direct' if self.exchange == 'auto' else self.exchange}",
            f"train.max_time_s={seconds}",
        )
        data = ["--data-dir", str(self.data_dir)] if self.data_dir is not None else []
        file = [] if self.job_file is None else [str(self._readable(self.job_file, folder))]
        return ["train", *file, *self.overrides, *TRIAL, *changes, "--json", "--run-dir", str(folder / "run"), *data]

    def _readable(self, job_file: Path, folder: Path) -> Path:
        """A pipe has been read, and would be empty now: its text goes to a file."""
        if job_file.is_file():
            return job_file.absolute()
        copy = folder / "job.yaml"
        copy.write_text(self.job_text)
        return copy


def settings(cores: Cores, threads: int | None) -> tuple[TrialSetting, ...]:
    """What is worth a trial, most promising first: every core a worker, one worker with every core, halves, one alone;
    and a worker on every SMT sibling. `threads` is given where the job or the user has fixed it. One setting where
    there is nothing to choose."""
    whole = max(1, math.floor(cores.usable))
    if whole == 1:
        return (TrialSetting(1, threads or 1),)
    half = max(1, whole // 2)
    if threads is not None:
        most = max(1, whole // threads)
        found = [TrialSetting(procs, threads) for procs in (most, max(1, most // 2), 1)]
    else:
        found = [TrialSetting(whole, 1), TrialSetting(1, whole), TrialSetting(half, whole // half), TrialSetting(1, 1)]
        found += [TrialSetting(cores.affinity, 1)] if (cores.quota or math.inf) >= cores.affinity > whole else []
        found += [TrialSetting(whole // half, half), TrialSetting(half, 1)]
    return tuple(dict.fromkeys(found))[:MOST_SETTINGS]


def best(trials: Sequence[SettingTrial]) -> SettingTrial | None:
    """The fastest; among equals, the one with the fewest workers, whose gradients are the least stale, then the fewest
    threads. None where every trial failed."""
    measured = [(trial.samples_per_s, trial) for trial in trials if trial.samples_per_s is not None]
    top = max((rate for rate, _ in measured), default=0.0)
    equal = [trial for rate, trial in measured if rate >= (1 - NOISE) * top]
    return min(equal, key=lambda trial: (trial.setting.procs, trial.setting.threads), default=None)


def table(trials: Sequence[SettingTrial]) -> Iterator[str]:
    """The trials, one per line, the chosen one marked."""
    chosen = best(trials)
    top = max((trial.samples_per_s or 0.0 for trial in trials), default=0.0)
    yield f"{'procs':>7}  {'threads':>7}  {'samples/s':>11}  {'of the best':>11}"
    for trial in trials:
        setting = f"{trial.setting.procs:>7}  {trial.setting.threads:>7}"
        if trial.samples_per_s is None:
            yield f"{setting}  {'failed':>11}  {trial.error}"
        else:
            mark = "  <- best" if trial is chosen else ""
            yield f"{setting}  {trial.samples_per_s:>11,.0f}  {trial.samples_per_s / top:>11.2f}{mark}"


def try_setting(question: Question, setting: TrialSetting) -> SettingTrial:
    """Trains for TRIAL_S; once more for LONGER_S where that was too short to tell. What goes wrong in the trial is the
    answer; a signal to us ends it too, and leaves nothing behind."""
    trial = _try(question, setting, TRIAL_S)
    return _try(question, setting, LONGER_S) if trial.is_coarse else trial


def _try(question: Question, setting: TrialSetting, seconds: float) -> SettingTrial:
    with TemporaryDirectory(prefix="hogwild-trial-", ignore_cleanup_errors=True) as folder:
        with _running(own_command(question.arguments(setting, seconds, Path(folder)))) as process:
            out, err = process.communicate()
        return read_trial(setting, process.returncode, out, err)


def read_trial(setting: TrialSetting, status: int, out: str, err: str) -> SettingTrial:
    """From how the command ended and what it said."""
    if status < 0:
        return SettingTrial(setting, None, describe_exit(status))
    if status not in (0, STOPPED):
        last = (err.strip().splitlines() or [f"exit status {status}"])[-1]
        return SettingTrial(setting, None, _error_in(out) or last)
    summary = json.loads(out.splitlines()[-1])
    is_coarse = summary["updates"] < FEW_UPDATES * setting.procs
    if not summary["samples_per_s"]:
        return SettingTrial(setting, None, TOO_FEW, is_coarse)
    return SettingTrial(setting, float(summary["samples_per_s"]), "", is_coarse)


def _error_in(out: str) -> str:
    """The first line of the error in what a command answered with --json; "" where it did not get so far."""
    for line in out.splitlines()[-1:]:
        with suppress(ValueError):
            return str(json.loads(line).get("error", "")).partition("\n")[0]
    return ""


@contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A child that is gone at the end, whatever happens meanwhile."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except OSError as error:
        raise RunError(f"a trial cannot be started: {error}", code="run/cannot-start") from error
    with process:
        try:
            yield process
        except BaseException:
            process.terminate()  # it ends its workers and removes what it was about to write
            raise
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
    except BaseException:  # a second Ctrl-C
        process.kill()
        raise
