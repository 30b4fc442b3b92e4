"""Trials of procs x threads on a job's own model and data: `plan --measure`, and `train --procs auto`; and of both
exchanges, for their speed and for the loss: `plan --measure`.

A trial is the real command in a child process, with a few seconds of training; trials run one after the other.
Pure except `try_setting` and `try_exchanges`."""

import json
import math
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from hogwild.config.locate import reopenable
from hogwild.errors import RunError
from hogwild.host import Cores, describe_exit
from hogwild.host.processes import own_command, wait_or_kill

MOST_SETTINGS = 6  # each costs a start-up of four to six seconds, in addition to its training
TRIAL_S, LONGER_S = 1.5, 10.0  # of training, from the first update; the second for long batches
FEW_UPDATES = 20  # per worker: with fewer, the rate depends on the point within a batch at which time was up
TOO_FEW = "too few updates to tell"
STOPPED = 75  # the exit status of a job ended by max_time_s: the normal end of a trial
GRACE_S = 10.0  # time for an interrupted trial to clean up
NOISE = 0.02  # rates that differ by less are equal
COMPARED_S = 3.0  # of training, at the measured speed, for the loss of an exchange
LOOKS = 8  # evaluations of one such trial; the later half counts
IN_TURN = ("direct", "delta", "delta", "direct")  # so that a machine that slows down favours neither

TRIAL = (  # no early end, no writing
    "train.epochs=1000000",
    "evaluate.target={}",
    "evaluate.patience=null",
    "checkpoint.every_s=null",
    "checkpoint.every_updates=null",
    "log.jsonl=false",
    "log.progress=false",
    "supervise.min_workers=1",
)
FOR_SPEED = ("train.max_updates=null", "data.val=null", "evaluate.every_updates=null")  # no pause
FOR_LOSS = ("train.max_time_s=null", "evaluate.every_epochs=null", "checkpoint.keep_best=false")


@dataclass(frozen=True, slots=True)
class TrialSetting:
    procs: int
    threads: int

    def __str__(self) -> str:
        return f"{self.procs} x {self.threads}"


@dataclass(frozen=True, slots=True)
class SettingTrial:
    """The result of a trial: `samples_per_s`, or None and the `error` message. `is_coarse`: after few updates;
    `train_loss` and `placement` as in summary.json."""

    setting: TrialSetting
    samples_per_s: float | None
    error: str = ""
    is_coarse: bool = False
    train_loss: float | None = None
    placement: str = "cpu"


@dataclass(frozen=True, slots=True)
class ExchangeTrial:
    """The result of one exchange's trials: `samples_per_s`, or None and the `error` message; `losses`: of the later
    evaluations, or of the training data if there are no others."""

    exchange: str
    samples_per_s: float | None
    losses: tuple[float, ...] = ()
    error: str = ""

    @property
    def loss(self) -> float:
        return statistics.median(self.losses) if self.losses else math.nan

    @property
    def worst(self) -> float:
        return max(self.losses, default=math.nan)


@dataclass(frozen=True, slots=True)
class Question:
    """The job to try: its file (None: the embedded one), the file's text, overrides, and the data folder."""

    job_file: Path | None
    job_text: str
    overrides: Sequence[str]
    data_dir: Path | None
    exchange: Literal["auto", "direct", "delta"] = "auto"
    has_validation: bool = False

    def arguments(self, setting: TrialSetting, seconds: float, folder: Path) -> list[str]:
        """Return the command-line arguments of one trial, whose files go to `folder`."""
        changes = (*FOR_SPEED, f"train.exchange={self.exchange}", f"train.max_time_s={seconds}")
        return self._arguments(setting, changes, folder)

    def loss_arguments(self, setting: TrialSetting, exchange: str, updates: int, folder: Path) -> list[str]:
        """Return the same for a trial of an exchange, for so many updates."""
        changes = [*FOR_LOSS, f"train.exchange={exchange}", f"train.max_updates={updates}"]
        changes += [f"evaluate.every_updates={updates // LOOKS}"] if self.has_validation else []
        return self._arguments(setting, changes, folder)

    def _arguments(self, setting: TrialSetting, changes: Sequence[str], folder: Path) -> list[str]:
        changes = (f"train.procs={setting.procs}", f"train.threads={setting.threads}", *changes)
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


def exchange_table(trials: Sequence[ExchangeTrial], words: str) -> Iterator[str]:
    """Yield what delta gains over direct, and what it costs, one exchange per line. `words`: of which data the losses
    are."""
    direct = next((one.samples_per_s for one in trials if one.exchange == "direct"), None)
    yield f"{'exchange':>8}  {'samples/s':>11}  {'of direct':>9}  {words:>10}  {'worst':>8}"
    for trial in trials:
        if trial.samples_per_s is None or direct is None:
            yield f"{trial.exchange:>8}  {'failed':>11}  {trial.error}"
            continue
        ratio, losses = trial.samples_per_s / direct, f"{trial.loss:>10.4g}  {trial.worst:>8.4g}"
        yield f"{trial.exchange:>8}  {trial.samples_per_s:>11,.0f}  {ratio:>9.2f}  {losses}"


def try_setting(question: Question, setting: TrialSetting) -> SettingTrial:
    """Train for TRIAL_S, and again for LONGER_S if that was too short. Failures of the trial are part of the result; a
    signal to this process ends the trial too, without leftovers."""
    trial = _try(question, setting, TRIAL_S)
    return _try(question, setting, LONGER_S) if trial.is_coarse else trial


def try_exchanges(question: Question, setting: TrialSetting, updates: int) -> Iterator[ExchangeTrial]:
    """Train several times for so many updates, in direct and in delta; yield each run's result."""
    updates = max(updates, LOOKS)
    for exchange in IN_TURN:
        with TemporaryDirectory(prefix="hogwild-trial-", ignore_cleanup_errors=True) as folder:
            arguments = question.loss_arguments(setting, exchange, updates, Path(folder))
            trial = read_trial(setting, *_ended(arguments))
            events = Path(folder) / "run" / "events.jsonl"
            found = read_losses(events.read_text() if trial.samples_per_s else "", updates)
        found = found or (() if trial.train_loss is None else (trial.train_loss,))
        yield ExchangeTrial(exchange, trial.samples_per_s, found, trial.error)


def merged(trials: Sequence[ExchangeTrial]) -> list[ExchangeTrial]:
    """Return one result per exchange, of all its runs."""
    results = []
    for exchange in dict.fromkeys(trial.exchange for trial in trials):
        runs = [trial for trial in trials if trial.exchange == exchange]
        rates = [run.samples_per_s for run in runs if run.samples_per_s is not None]
        error = next((run.error for run in runs if run.error), "")
        losses = tuple(loss for run in runs for loss in run.losses)
        results.append(ExchangeTrial(exchange, statistics.median(rates) if rates else None, losses, error))
    return results


def _try(question: Question, setting: TrialSetting, seconds: float) -> SettingTrial:
    with TemporaryDirectory(prefix="hogwild-trial-", ignore_cleanup_errors=True) as folder:
        return read_trial(setting, *_ended(question.arguments(setting, seconds, Path(folder))))


def _ended(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Run the command, and end it in any case; return its exit status and output."""
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            own_command(arguments), stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )
    except OSError as error:
        raise RunError(f"a trial cannot be started: {error}", code="run/cannot-start") from error
    with process:
        try:
            out, err = process.communicate()
            return process.returncode, out, err
        except BaseException:
            process.terminate()  # it ends its workers and removes unfinished files
            raise
        finally:
            wait_or_kill(process, GRACE_S)


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
    rest = summary.get("train_loss"), summary.get("placement", "cpu")
    return SettingTrial(setting, float(summary["samples_per_s"]), "", is_coarse, *rest)


def read_losses(events: str, updates: int) -> tuple[float, ...]:
    """Return the losses of the evaluations in the later half of a trial, from its events.jsonl."""
    found = [json.loads(line) for line in events.splitlines() if '"evaluation"' in line]
    evaluations = [event for event in found if event["event"] == "evaluation" and 2 * event["updates"] > updates]
    return tuple(math.inf if event["loss"] is None else float(event["loss"]) for event in evaluations)


def _error_in(out: str) -> str:
    """Return the first line of the error in a command's --json output; "" without one."""
    for line in out.splitlines()[-1:]:
        with suppress(ValueError):
            return str(json.loads(line).get("error", "")).partition("\n")[0]
    return ""
