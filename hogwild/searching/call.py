"""`hogwild.search`, the call for Python, and its result: the same search as the command's. Importing this module does
not import Optuna."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from pydantic_core import PydanticCustomError

from hogwild.config.load import COMMAND_LINE, Job, as_plain, job_from_mapping, load_job
from hogwild.config.locate import read_job_file
from hogwild.config.strict_yaml import dump
from hogwild.config.values import plain
from hogwild.errors import ConfigError, Problem, UsageError
from hogwild.formatting import counted, one_line
from hogwild.searching import require_optuna
from hogwild.storage.run_directory import require_current_folder

if TYPE_CHECKING:
    import optuna

    from hogwild.searching.loop import SearchOutcome
    from hogwild.searching.results import SearchRun

CALL = "hogwild.search"
JobSource = str | Path | Mapping[str, Any]


class SearchKeywords(TypedDict, total=False):
    """Fields of the job file's section `search`, besides `space`. docs/job-file.md describes them."""

    metric: str | list[str] | None
    trials: int | None
    max_time_s: float | None
    sampler: Literal["tpe", "random", "grid"] | Mapping[str, Any]
    pruner: Literal["hyperband", "median", "none"] | Mapping[str, Any]
    parallel: Literal["auto"] | int


@dataclass(frozen=True, slots=True)
class SearchTrial:
    """A trial. `state`: complete, pruned, failed or paused; `params`: its values of the fields; `values`: the metrics
    at its best evaluation, {} without one; `note`: why it failed, or when it was pruned."""

    number: int
    state: str
    params: Mapping[str, Any]
    values: Mapping[str, float | None]
    evaluations: int
    note: str
    run_dir: Path


@dataclass(frozen=True, slots=True, repr=False)
class SearchResult:
    """The result of a search. `state`: succeeded, or stopped (resumable); `front`: the trials of the Pareto front,
    the best by the first metric first; of a single metric the best trial alone. `best_job` is a job file that trains as
    it is, `refit` the run on all data; both are None if there is none."""

    state: str
    reason: str
    run_dir: Path
    metrics: Sequence[str]
    trials: Sequence[SearchTrial]
    front: Sequence[SearchTrial]
    importance: Mapping[str, float]
    best_job: Path | None
    refit: Path | None

    @property
    def best_trial(self) -> SearchTrial | None:
        return next(iter(self.front), None)

    @property
    def best_params(self) -> Mapping[str, Any]:
        """Field -> value of the best trial; {} before a trial is complete."""
        return self.front[0].params if self.front else {}

    @property
    def best_values(self) -> Mapping[str, float | None]:
        """Metric -> value of the best trial; {} before a trial is complete."""
        return self.front[0].values if self.front else {}

    @property
    def best_value(self) -> float | None:
        """The first metric of the best trial."""
        return next(iter(self.best_values.values()), None)

    def study(self) -> "optuna.Study":
        """Open Optuna's study, to read it."""
        from hogwild.searching.results import SearchRun

        return SearchRun.of(self.run_dir).study()

    def __repr__(self) -> str:
        values = ", ".join(f"{metric} {value:.4g}" for metric, value in self.best_values.items())
        best = f"best trial {self.front[0].number}: {values}" if self.front else "no complete trial"
        words = f"{self.state} ({self.reason}); {counted(len(self.trials), 'trial')}; {best}; {self.run_dir}"
        return one_line(f"SearchResult({words})")


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C during `hogwild.search`, raised after all trials have written their checkpoints. `result` is what the call
    would have returned."""

    def __init__(self, result: SearchResult) -> None:
        self.result = result
        words = f"stopped after {counted(len(result.trials), 'trial')}; resume={str(result.run_dir)!r} continues"
        super().__init__(words)


def search(
    job: JobSource | None = None,
    space: Mapping[str, Any] | None = None,
    *,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    data_dir: str | Path | None = None,
    storage: str | None = None,
    refit: bool = False,
    progress: bool = True,
    on_interrupt: Literal["raise", "return"] = "raise",
    **keywords: Unpack[SearchKeywords],
) -> SearchResult:
    """Search for the best values of a job's fields by many trials, as `hogwild search` does (docs/searching.md).

    `job` is the path of a job file, or its content as a mapping: trials are processes of their own, which build model
    and data by their class paths, so objects as `hogwild.train` takes them cannot be searched. `space` maps fields to
    their values, `{"optimizer.init_args.lr": {"log": [1e-3, 1.0]}}`. It and the keywords (`metric`, `trials`,
    `max_time_s`, `sampler`, `pruner`, `parallel`) are the fields of the job's section `search`, and replace those that
    it has. `resume` continues in the folder of a search, instead of `job`; only `trials`, `max_time_s`,
    `parallel` and `data_dir` may change. `refit` then trains the best job on all data, in RUN_DIR/refit. `progress`
    shows the trials on standard error.

    Call it from the main thread; `if __name__ == "__main__"` is not needed. Raises HogwildError, with the messages of
    the command line, if the search cannot start or fails. Returns if it was stopped by `max_time_s` or a signal other
    than Ctrl-C. After a Ctrl-C, once all trials have written their checkpoints, it raises SearchInterrupted, a
    KeyboardInterrupt with the result as `result`; `on_interrupt="return"` returns the result instead."""
    require_current_folder()
    require_optuna()
    from hogwild.searching.attempt import SearchAttempt
    from hogwild.searching.trials import arguments_of

    if on_interrupt not in ("raise", "return"):
        raise UsageError(f'on_interrupt={on_interrupt!r} must be "raise" or "return"', code="usage/bad-value")
    fields = _plain({**({} if space is None else {"space": space}), **keywords})
    changes = arguments_of({f"search.{name}": value for name, value in fields.items()})
    folder = None if data_dir is None else Path(data_dir)
    if resume is not None:
        others = {"job": job, "run_dir": run_dir, "storage": storage}
        for name in (name for name, value in others.items() if value is not None):
            raise UsageError(
                f"{CALL}: resume takes the job and the folder from the search, so {name} is not allowed",
                code="usage/contradiction",
            )
        attempt = SearchAttempt.reopen(Path(resume), changes, _say, data_dir=folder)
    else:
        if job is None:
            raise UsageError(f"{CALL} needs a job, or resume", code="usage/arguments")
        if isinstance(job, Mapping):
            (found, text, file), changes = _of_mapping(job, fields), []
        else:
            found, text, file = _of_file(Path(job), changes)
        attempt = SearchAttempt.create(
            found,
            text,
            file,
            changes,
            _say,
            run_dir=None if run_dir is None else Path(run_dir),
            data_dir=folder,
            storage=storage,
        )
    result = _result(*attempt.run(is_refit=refit, shows=progress))
    if result.reason == "SIGINT" and on_interrupt == "raise":
        raise SearchInterrupted(result)
    return result


def _of_file(file: Path, changes: Sequence[str]) -> tuple[Job, str, Path]:
    """Load a job file; return the job, its text and its path. Errors of a keyword begin with the name of the call."""
    file = file.absolute()
    text = read_job_file(file)
    try:
        return load_job(file, changes, source_text=text), text, file
    except ConfigError as error:
        raise ConfigError(
            [replace(one, source=CALL) if one.source == COMMAND_LINE else one for one in error.problems]
        ) from None


def _of_mapping(job: Mapping[str, Any], fields: Mapping[str, Any]) -> tuple[Job, str, Path]:
    """Check a job; return it, the text of its file, and where that would lie: user code is in the current folder."""
    values = as_plain(job)
    if isinstance(section := values.get("search") or {}, dict):
        values["search"] = {**section, **fields}
    return job_from_mapping(values, CALL), dump(values), Path("job.yaml").absolute()


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords as a YAML file holds them. Raises ConfigError for a value that none can hold."""
    found: dict[str, Any] = as_plain(fields)
    for name, value in found.items():
        try:
            plain(value)
        except PydanticCustomError as error:
            code = str((error.context or {})["code"])
            raise ConfigError([Problem(CALL, 0, 0, f"search.{name}", error.message(), code)]) from None
    return found


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _result(found: "SearchRun", study: "optuna.Study", outcome: "SearchOutcome") -> SearchResult:
    from hogwild.searching.results import BEST, as_record
    from hogwild.searching.trials import REFIT

    record = as_record(found, study)
    trials = [
        SearchTrial(
            number=one["trial"],
            state=one["state"],
            params=one["values"],
            values=one["metrics"],
            evaluations=one["evaluations"],
            note=one["note"],
            run_dir=Path(one["run_dir"]),
        )
        for one in record["trials"]
    ]
    best, refit = found.folder / BEST, found.folder / REFIT
    return SearchResult(
        state=outcome.state,
        reason=outcome.reason,
        run_dir=found.folder,
        metrics=[*record["metrics"]],
        trials=trials,
        front=[trials[one["trial"]] for one in record["front"]],
        importance=record["importance"],
        best_job=best if best.is_file() else None,
        refit=refit if refit.is_dir() else None,
    )
