"""Results of a search for people: the table of its trials, the best job file, CSV. Reads the study and the runs."""

import csv
import hashlib
import io
import math
import os
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from hogwild.config.load import load_job, values_of
from hogwild.config.schema import Job, Split
from hogwild.config.strict_yaml import dump
from hogwild.errors import ConflictError, NotFoundError, UsageError
from hogwild.formatting import counted, duration, format_value, percent
from hogwild.monitoring.run_status import ALIVE, LOST, RUNS, is_running, read_status
from hogwild.searching import study as studies
from hogwild.searching.study import FAILED, PRUNED_AT
from hogwild.searching.trials import JOB_FILE, TRIALS, arguments_of
from hogwild.storage.run_directory import SEARCH
from hogwild.storage.run_files import read_json

RECORD, BEST = SEARCH, "best.yaml"  # in the folder of a search
MAY_CHANGE = {"search.trials", "search.max_time_s", "search.parallel"}  # when a search goes on
STATES = ("complete", "pruned", "failed", "running", "paused")
WORDS = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


@dataclass(frozen=True, slots=True)
class SearchRun:
    """The folder of a search, as its own files tell it."""

    folder: Path
    record: Mapping[str, Any]
    job: Job
    text: str

    @classmethod
    def of(cls, folder: Path) -> "SearchRun":
        """Read the folder. Raises NotFoundError for one that is no search."""
        record = read_json(folder, RECORD)
        copy = folder / JOB_FILE
        if not record or not copy.is_file():
            raise NotFoundError(
                f"{folder} is not the folder of a search: no {RECORD} (looked for {(folder / RECORD).absolute()})",
                code="search/not-found",
            )
        text = copy.read_text("utf-8")
        job = load_job(Path(str(record["job_file"])), list(map(str, record["overrides"])), source_text=text)
        return cls(folder, record, job, text)

    @property
    def job_file(self) -> Path:
        return Path(str(self.record["job_file"]))

    @property
    def overrides(self) -> list[str]:
        return list(map(str, self.record["overrides"]))

    @property
    def identity(self) -> str:
        """A hash of the job file, without what a resumed search may change: by it a study knows its search."""
        fixed = [one for one in self.overrides if one.partition("=")[0] not in MAY_CHANGE]
        return hashlib.sha256("\0".join([self.text, *fixed]).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    @property
    def name(self) -> str:
        """The name of the folder; of a job of the service, whose folders are all named alike, that of the job."""
        return self.job.name if self.record.get("data_folders") else self.folder.name

    @property
    def is_alive(self) -> bool:
        """True while the process of the search runs."""
        return self.record.get("state") in ALIVE and is_running(self.record)

    @property
    def state(self) -> str:
        """running, succeeded, stopped, failed; lost: its process was killed."""
        if self.is_alive:
            return "running"
        state = str(self.record.get("state"))
        return LOST if state in ALIVE else state

    def state_of(self, trial: FrozenTrial) -> str:
        """Return the state of a trial in a word, of STATES."""
        found = state_of(trial)
        return "paused" if found == "running" and not self.is_alive else found

    def study(self) -> optuna.Study:
        """Open the study to read it; a search may be writing it."""
        storage = studies.storage_of(self.folder, self.record.get("storage"))
        return optuna.load_study(study_name=self.record["study"], storage=storage)

    def values(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the job file with those of a trial, without the search."""
        fields = {**studies.common_fields(self.job), **changes}
        return values_of(self.job_file, [*self.overrides, *arguments_of(fields)], self.text)


def find_search(given: str | None) -> Path:
    """Return the folder of a search: a path, a name in runs/, or the newest one there. Raises NotFoundError."""
    if given not in (None, "latest"):
        assert given is not None
        path = Path(given)
        return RUNS / given if not path.is_dir() and (RUNS / given).is_dir() else path
    found = [file.parent for file in RUNS.glob(f"*/{RECORD}")] if RUNS.is_dir() else []
    if not found:
        raise NotFoundError(f"no search in {RUNS.absolute()}; name its folder", code="search/not-found")
    return max(found, key=lambda folder: (folder / RECORD).stat().st_mtime)


# ---- the best job file ----------------------------------------------------------------------------------------------


def best_of(search: SearchRun, study: optuna.Study, number: int | None = None) -> FrozenTrial:
    """Return the best trial by the first metric, or trial `number` of the front. Raises ConflictError before the first
    complete one, UsageError for a trial that is not on the front."""
    front = studies.front(study)
    if not front:
        raise ConflictError(
            f"no trial of {search.folder} is complete yet, so none is the best: hogwild search show {search.folder}",
            code="search/no-best",
        )
    found = [one for one in front if number in (None, one.number)]
    if not found:
        there = ", ".join(str(one.number) for one in front)
        raise UsageError(
            f"--trial {number}: must be a trial of the front: {there}",
            code="search/not-best",
        )
    return found[0]


def best_text(search: SearchRun, study: optuna.Study, number: int | None = None) -> str:
    """Return the job file of the best trial, or of trial `number` of the front: the user's own values with those that
    the search has found. Raises as `best_of`."""
    best = best_of(search, study, number)
    title = "The best" if number is None else "On the front"
    folder = search.job_file.parent
    if places := search.record.get("data_folders"):  # the job file is a copy: its own folder, with code and data
        folder = Path(str(places[0]))
    cd = "" if folder == Path(str(search.record["folder"])) else f"cd {shlex.quote(str(folder))} && "
    run = search.folder.absolute() / TRIALS / f"{best.number:04}"
    head = (
        f"# {title} of {counted(len(study.get_trials(deepcopy=False)), 'trial')} of {search.name}: trial "
        f"{best.number}, {_metrics_in_words(search, best, 6)}. Its model: {run}\n"
    )
    if number is None:
        head += f"# {cd}hogwild train {shlex.quote(os.path.abspath(search.folder / BEST))}\n"
    values = search.values(studies.fields_of(_space(search), best.params))
    return head + dump(values)


def _metrics_in_words(search: SearchRun, trial: FrozenTrial, digits: int) -> str:
    metrics = zip(studies.metrics_of(search.job), trial.values, strict=True)
    return ", ".join(f"{metric} {value:.{digits}g}" for metric, value in metrics)


def _space(search: SearchRun) -> Mapping[str, Any]:
    assert search.job.search is not None
    return search.job.search.space


def whole_data(job: Job) -> dict[str, Any]:
    """Return the fields with which a job trains on its validation data, too. Raises UsageError where these are of other
    files."""
    train, val = job.data.train, job.data.val
    if isinstance(val, Split):
        return {"data.val": None}
    rest = {name: value for name, value in train.init_args.items() if name != "holdout"}
    other = {} if val is None else {name: value for name, value in val.init_args.items() if name != "holdout"}
    if val is not None and val.class_path == train.class_path and rest == other and "holdout" in train.init_args:
        return {"data.val": None, "data.train.init_args": rest}
    raise UsageError(
        "--refit trains on all data, so data.val must be a part of data.train: {fraction: 0.1}, or the other part of "
        "one holdout; it is another data set",
        code="search/no-refit",
    )


def refit_values(search: SearchRun, study: optuna.Study) -> dict[str, Any]:
    """Return the fields of the job that trains on all data: the best values, and as many epochs as the best trial had
    had at its best evaluation."""
    best = best_of(search, study)
    status = read_status(search.folder / TRIALS / f"{best.number:04}").snapshot.best
    fields = studies.fields_of(_space(search), best.params)
    epochs = {} if status is None or not status.epoch else {"train.epochs": status.epoch}
    return {"search": None, "evaluate": {}, **fields, **whole_data(search.job), **epochs}


# ---- tables ---------------------------------------------------------------------------------------------------------


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """Return path -> its last part, or the whole path if two have the same last part."""
    paths = list(paths)
    last = Counter(path.rpartition(".")[2] for path in paths)
    return {path: end if last[end := path.rpartition(".")[2]] == 1 else path for path in paths}


def cell(value: Any) -> str:
    """Return a value for a table: a number with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else format_value(value)


def state_of(trial: FrozenTrial) -> str:
    """Return the state of a trial in a word: running, complete, pruned, failed."""
    return "failed" if FAILED in trial.user_attrs else WORDS.get(trial.state, "running")


def note_of(trial: FrozenTrial) -> str:
    """Return why a trial failed, or when it was pruned."""
    if FAILED in trial.user_attrs:
        return str(trial.user_attrs[FAILED])
    if trial.state == TrialState.PRUNED and PRUNED_AT in trial.user_attrs:
        return f"after {counted(int(trial.user_attrs[PRUNED_AT]), 'evaluation')}"
    return ""


def ranked(trials: Iterable[FrozenTrial], front: Iterable[FrozenTrial], *, is_max: bool) -> list[FrozenTrial]:
    """Return trials, the best first: those of the front, other complete ones, by the first metric; running ones; pruned
    ones by how far they came; others."""
    best = {one.number for one in front}

    def rank(trial: FrozenTrial) -> tuple[int, float, float, int]:
        values = studies.best_values(trial, is_max=is_max)
        signed = float("inf") if not values else -values[0] if is_max else values[0]
        state = state_of(trial)
        order = 0 if trial.number in best else {"complete": 1, "running": 2, "pruned": 3, "failed": 4}[state]
        return order, -count_of(trial) if state == "pruned" else 0, signed, trial.number

    return sorted(trials, key=rank)


def count_of(trial: FrozenTrial) -> int:
    """Return the number of a trial's evaluations."""
    return max(studies.evaluations_of(trial), default=0)


def rows_of(
    search: SearchRun, trials: Sequence[FrozenTrial], front: Iterable[FrozenTrial] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield the title and a row per trial: number, state, its metrics, evaluations, its values, a note."""
    names, metrics, best = short_names(_space(search)), studies.metrics_of(search.job), {one.number for one in front}
    is_max = studies.is_maximised(search.job)
    yield ("trial", "state", *metrics, "evaluations", *names.values(), "note")
    for trial in trials:
        values = studies.best_values(trial, is_max=is_max)
        fields = studies.fields_of(_space(search), trial.params)
        yield (
            str(trial.number),
            search.state_of(trial),
            *([f"{value:.5g}" for value in values] or ["-"] * len(metrics)),
            str(count_of(trial)),
            *(cell(fields[path]) if path in fields else "-" for path in names),
            "on the front" if trial.number in best and len(metrics) > 1 else note_of(trial),
        )


def head_of(search: SearchRun, study: optuna.Study) -> Iterator[str]:
    """Yield what a search has come to, in a few lines."""
    trials = study.get_trials(deepcopy=False)
    counts = Counter(search.state_of(one) for one in trials)
    states = ", ".join(f"{counts[word]} {word}" for word in STATES if counts[word])
    spent = duration(float(study.user_attrs.get(studies.SPENT_S, 0.0)))
    yield f"search {search.name}  {search.state}  {counted(len(trials), 'trial')}: {states or 'none'}; {spent}"
    if front := studies.front(study):
        best, names = front[0], short_names(_space(search))
        fields = studies.fields_of(_space(search), best.params)
        found = ", ".join(f"{names[path]} {cell(value)}" for path, value in fields.items())
        yield f"  best        {_metrics_in_words(search, best, 5)}, trial {best.number}: {found}"
        if len(study.directions) > 1:
            yield f"  front       {counted(len(front), 'trial')}: {', '.join(str(one.number) for one in front)}"
    if packing := study.user_attrs.get(studies.PACKING):
        yield f"  parallel    {packing['words']}"
    if shares := studies.importance(study):
        names = short_names(_space(search))
        yield "  importance  " + ", ".join(
            f"{names.get(path, path)} {percent(share)}" for path, share in shares.items()
        )


def as_csv(search: SearchRun, study: optuna.Study) -> str:
    """Return the trials as CSV, in the order in which they began; every evaluation is in the runs' own records."""
    metrics, space = studies.metrics_of(search.job), _space(search)
    is_max = studies.is_maximised(search.job)
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["trial", "state", *metrics, "evaluations", "seconds", *space, "note"])
    for trial in study.get_trials(deepcopy=False):
        values = studies.best_values(trial, is_max=is_max)
        lasted = "" if trial.duration is None else f"{trial.duration.total_seconds():.3f}"
        fields = studies.fields_of(space, trial.params)
        cells = [fields.get(path, "") for path in space]
        writer.writerow(
            [
                trial.number,
                search.state_of(trial),
                *(values or [""] * len(metrics)),
                count_of(trial),
                lasted,
                *cells,
                note_of(trial),
            ]
        )
    return table.getvalue()


def as_record(search: SearchRun, study: optuna.Study) -> dict[str, Any]:
    """Return a search as one object, for programs."""
    is_max, space, metrics = studies.is_maximised(search.job), _space(search), studies.metrics_of(search.job)
    trials = [
        {
            "trial": trial.number,
            "state": search.state_of(trial),
            "value": next(iter(values), None),
            "metrics": {
                metric: value if math.isfinite(value) else None for metric, value in zip(metrics, values, strict=False)
            },
            "evaluations": count_of(trial),
            "values": studies.fields_of(space, trial.params),
            "note": note_of(trial),
            "run_dir": str((search.folder / TRIALS / f"{trial.number:04}").absolute()),
        }
        for trial in study.get_trials(deepcopy=False)
        for values in [studies.best_values(trial, is_max=is_max)]
    ]
    front = [trials[one.number] for one in studies.front(study)]
    return {
        "state": search.state,
        "run_dir": str(search.folder.absolute()),
        "metric": studies.metric_of(search.job),
        "higher_is_better": is_max,
        "metrics": {metric: {"higher_is_better": more} for metric, more in metrics.items()},
        "best": next(iter(front), None),
        "front": front,
        "importance": studies.importance(study),
        "parallel": study.user_attrs.get(studies.PACKING),
        "trials": trials,
    }
