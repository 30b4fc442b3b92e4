"""Trials of procs x threads on a job's own model and data: `plan --measure`, and `train --procs auto`.

A trial is the real command in a child process, with a second and a half of training; trials run one after the other.
Pure except `try_setting`."""

import json
import math
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from hogwild.config.locate import reopenable
from hogwild.errors import RunError
from hogwild.host import Cores, describe_exit
from hogwild.host.own_command import own_command, wait_or_kill

MOST_SETTINGS = 6  # each costs a start-up of four to six seconds, in addition to its training
TRIAL_S, LONGER_S = 1.5, 10.0  # of training, from the first update; the second for long batches
FEW_UPDATES = 20  # per worker: with fewer, the rate depends on the point within a batch at which time was up
TOO_FEW = "too few updates to tell"
STOPPED = 75  # the exit status of a job ended by max_time_s: the normal end of a trial
GRACE_S = 10.0  # time for an interrupted trial to clean up
NOISE = 0.02  # rates that differ by less are equal

# No early end, no pause, no writing. `exchange: auto` would be a trial inside the trial.
TRIAL = (
    "train.epochs=1000000",
    "train.max_updates=null",
    "data.val=null",
    "evaluate.target={}",
    "evaluate.patience=null",
    "evaluate.every_updates=null",
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
    """The result of a trial: `samples_per_s`, or None and the `error` message. `is_coarse`: after few updates."""

    setting: TrialSetting
    samples_per_s: float | None
    error: str = ""
    is_coarse: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """The job to try: its file (None: the embedded one), the file's text, overrides, and the data folder."""

    job_file: Path | None
    job_text: str
    overrides: Sequence[str]
    data_dir: Path | None
    exchange: Literal["auto", "direct", "delta"] = "auto"

    def arguments(self, setting: TrialSetting, seconds: float, folder: Path) -> list[str]:
        """Return the command-line arguments of one trial, whose files go to `folder`."""
        changes = (
            f"train.procs={setting.procs}",
            f"train.threads={setting.threads}",
            f"train.exchange={'direct' if self.exchange == 'auto' else self.exchange}",
            f"train.max_time_s={seconds}",
        )
        data = ["--data-dir", str(self.data_dir)] if self.data_dir is not None else []
        file = [] if self.job_file is None else [str(reopenable(self.job_file.absolute(), self.job_text, folder))]
        return ["train", *file, *self.overrides, *TRIAL, *changes, "--json", "--run-dir", str(folder / "run"), *data]


def settings(cores: Cores, threads: int | None) -> tuple[TrialSetting, ...]:
    """Return the settings to try, most promising first: one worker per core, one worker with all cores, halves, a
    single worker; and one worker per SMT sibling. `threads`: fixed by the job or the user. A single setting if there is
    no choice."""
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
    """Return the fastest trial; among equals, the one with the fewest workers, whose gradients are the least stale,
    then the fewest threads. None if every trial failed."""
    measured = [(trial.samples_per_s, trial) for trial in trials if trial.samples_per_s is not None]
    top = max((rate for rate, _ in measured), default=0.0)
    equal = [trial for rate, trial in measured if rate >= (1 - NOISE) * top]
    return min(equal, key=lambda trial: (trial.setting.procs, trial.setting.threads), default=None)


def table(trials: Sequence[SettingTrial]) -> Iterator[str]:
    """Yield the trials as a table, one per line, the best one marked."""
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
    """Train for TRIAL_S, and again for LONGER_S if that was too short. Failures of the trial are part of the result; a
    signal to this process ends the trial too, without leftovers."""
    trial = _try(question, setting, TRIAL_S)
    return _try(question, setting, LONGER_S) if trial.is_coarse else trial


def _try(question: Question, setting: TrialSetting, seconds: float) -> SettingTrial:
    with TemporaryDirectory(prefix="hogwild-trial-", ignore_cleanup_errors=True) as folder:
        with _running(own_command(question.arguments(setting, seconds, Path(folder)))) as process:
            out, err = process.communicate()
        return read_trial(setting, process.returncode, out, err)


def read_trial(setting: TrialSetting, status: int, out: str, err: str) -> SettingTrial:
    """Read a trial's result from the exit status and the output of the command."""
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
    """Return the first line of the error in a command's --json output; "" without one."""
    for line in out.splitlines()[-1:]:
        with suppress(ValueError):
            return str(json.loads(line).get("error", "")).partition("\n")[0]
    return ""


@contextmanager
def _running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a child, and end it in any case."""
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
            process.terminate()  # it ends its workers and removes unfinished files
            raise
        finally:
            wait_or_kill(process, GRACE_S)
