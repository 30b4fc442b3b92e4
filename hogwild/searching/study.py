"""Optuna's study of a search: the space, sampler and pruner that the job file names, the storage, and the values it is
told. Every decision about values and pruning is Optuna's.

The study has one writer, the process that holds the lock of the search's folder. So its journal needs no lock of its
own, which a killed process would leave behind; a line that a killed writer has torn is cut off before the file is
opened."""

import contextlib
import inspect
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, GridSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, get_storage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hogwild.config.schema import Component, Job, Range, Search
from hogwild.config.strict_yaml import flow
from hogwild.errors import ConflictError, UsageError
from hogwild.formatting import counted
from hogwild.metrics import catalog
from hogwild.user_code import build, raised_text, resolve, user_path

JOURNAL = "study.journal"
OF_JOB = "hogwild_job"  # attribute of a study: which job it is of
SPENT_S = "hogwild_spent_s"  # attribute of a study: seconds of all attempts
PACKING = "hogwild_parallel"  # attribute of a study: how its trials share the cores, and why
# Attributes of a trial: why it failed; after which evaluation; how often in a row, and after how many evaluations.
FAILED, PRUNED_AT, KILLS = "failed", "pruned_at", "kills"
EVALUATION = "evaluation "  # attributes of a trial of several metrics: their values at evaluation N
ENDED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
DRAWN = 3  # trials by which a sampler is checked: CMA-ES draws the first one at random
FIRST_STEP = 1  # the steps of a trial are its evaluations, counted from here


def metrics_of(job: Job) -> dict[str, bool]:
    """Return the metrics that the search of a job optimises, and whether more is better; the schema has checked that
    this is known. The first one decides which evaluation of a trial counts."""
    assert job.search is not None
    return {metric: _is_maximised(job, metric) for metric in job.search.metrics(job.evaluate.monitor)}


def _is_maximised(job: Job, metric: str) -> bool:
    if metric == job.evaluate.monitor and job.evaluate.mode != "auto":
        return job.evaluate.mode == "max"
    known = catalog.known(metric)
    assert known is not None
    return known.higher_is_better


def metric_of(job: Job) -> str:
    """Return the first metric that the search of a job optimises."""
    return next(iter(metrics_of(job)))


def is_maximised(job: Job) -> bool:
    """Return whether more of the first metric is better."""
    return metrics_of(job)[metric_of(job)]


def common_fields(job: Job) -> dict[str, Any]:
    """Return the fields that all trials have: no search of their own, and the metric of their best checkpoint."""
    metric, evaluate = metric_of(job), job.evaluate
    is_others = metric != evaluate.monitor and evaluate.mode != "auto"  # the mode is that of another metric
    return {"search": None, "evaluate.monitor": metric, **({"evaluate.mode": "auto"} if is_others else {})}


# ---- the space ------------------------------------------------------------------------------------------------------


def distributions(space: Mapping[str, Range]) -> dict[str, BaseDistribution]:
    """Return Optuna's distribution of each field."""
    return {field: _distribution(values) for field, values in space.items()}


def _distribution(values: Range) -> BaseDistribution:
    if values.log is not None:
        low, high = values.log
        return FloatDistribution(low, high, log=True)
    if values.uniform is not None:
        low, high = values.uniform
        return FloatDistribution(low, high)
    if values.int is not None:
        first, last = values.int
        return IntDistribution(first, last)
    return CategoricalDistribution([_category(one) for one in values.choice or ()])


def _category(value: Any) -> Any:
    """Return what stands for a choice in the study, which stores no lists and maps."""
    return flow(value) if isinstance(value, list | dict) else value


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two parameters are one choice: 1 and true are two."""
    return type(one) is type(other) and one == other


def fields_of(space: Mapping[str, Range], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return field -> value, from the parameters of a trial."""
    found = dict(params)
    for field, values in space.items():
        for one in values.choice or () if field in params else ():
            if _is_same(_category(one), params[field]):
                found[field] = one
    return found


def written(job: Job, space: Mapping[str, Range]) -> dict[str, Any]:
    """Return the parameters that the job file itself has, as the study names them: of the fields that are given and lie
    in the space."""
    found = {}
    for field, distribution in distributions(space).items():
        value: Any = job
        for name in field.split("."):
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
        value = _category(value)
        if _holds(distribution, value):
            found[field] = value
    return found


def _holds(distribution: BaseDistribution, value: Any) -> bool:
    """Return whether a parameter may have this value."""
    if isinstance(distribution, CategoricalDistribution):
        return any(_is_same(one, value) for one in distribution.choices)
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    kinds = (int,) if isinstance(distribution, IntDistribution) else (int, float)
    return type(value) in kinds and distribution.low <= value <= distribution.high


def asked(study: Study, job: Job) -> optuna.Trial:
    """Return a new trial. The first one has the values of the job file, where those lie in the space, so that a search
    begins with the job as it is; a grid has them anyway."""
    search = job.search
    assert search is not None
    if search.sampler != "grid" and not study.get_trials(deepcopy=False) and (values := written(job, search.space)):
        study.enqueue_trial(values)  # Optuna keeps it as waiting until somebody asks
    return study.ask(distributions(search.space))


def begun(study: Study) -> int:
    """Return the number of trials that have begun."""
    return sum(one.state != TrialState.WAITING for one in study.get_trials(deepcopy=False))


def combinations(space: Mapping[str, Range]) -> dict[str, list[Any]]:
    """Return every value of each field, for the sampler `grid`; ranges of real numbers have none."""
    return {
        field: [*range(values.int[0], values.int[1] + 1)]
        if values.int
        else [_category(one) for one in values.choice or ()]
        for field, values in space.items()
    }


def most_trials(search: Search) -> float:
    """Return the number of trials after which no other one begins; infinity for none."""
    most = math.inf if search.trials is None else search.trials
    if search.sampler == "grid":
        return min(most, math.prod(map(len, combinations(search.space).values())))
    return most


# ---- sampler and pruner ---------------------------------------------------------------------------------------------


def sampler_of(search: Search, seed: int) -> BaseSampler:
    """Return the sampler. Raises UsageError for a class that is none."""
    if isinstance(search.sampler, Component):
        sampler: BaseSampler = _own(search.sampler, "sampler", BaseSampler, seed=seed)
        return sampler
    if search.sampler == "grid":
        return GridSampler(combinations(search.space), seed=seed)
    return RandomSampler(seed=seed) if search.sampler == "random" else TPESampler(seed=seed)


def pruner_of(job: Job, search: Search) -> BasePruner:
    """Return the pruner; none for trials with one evaluation. Raises UsageError for a class that is none."""
    evaluations = planned_evaluations(job, search)
    if isinstance(search.pruner, Component):
        pruner: BasePruner = _own(search.pruner, "pruner", BasePruner)
        return pruner
    if search.pruner == "none" or evaluations == 1:
        return NopPruner()
    if search.pruner == "median":
        return MedianPruner()
    return HyperbandPruner(min_resource=FIRST_STEP, max_resource=evaluations or "auto")


def check_classes(job: Job, job_file: Path | None) -> None:
    """Check sampler and pruner if they are classes: the sampler draws the values of some trials of a study that is
    thrown away. Modules beside the job file are found. Raises UsageError for one that cannot serve this search."""
    search = job.search
    assert search is not None
    user_path(job_file)
    _quiet()
    pruner_of(job, search)
    if not isinstance(search.sampler, Component):
        return
    metrics = metrics_of(job)
    study = _in_loop(optuna.create_study(sampler=sampler_of(search, job.seed), directions=_directions(metrics)))
    try:
        for number in takewhile(lambda _: not is_exhausted(study), range(DRAWN)):
            study.tell(study.ask(distributions(search.space)), [float(number)] * len(metrics))
    except Exception as error:  # whatever the class raises
        raise UsageError(
            f"search.sampler: {search.sampler.class_path} cannot draw values for this search, of "
            f"{counted(len(metrics), 'metric')} ({', '.join(metrics)}): it raised {raised_text(error)}",
            code="search/sampler",
        ) from error


def planned_evaluations(job: Job, search: Search) -> int | None:
    """Return how many evaluations a whole trial has; None where the job file alone does not tell."""
    train, evaluate = job.train, job.evaluate
    if evaluate.every_updates is not None or train.max_updates is not None or train.max_time_s is not None:
        return None
    if {"train.epochs", "evaluate.every_epochs"} & search.space.keys():
        return None
    return 1 if evaluate.every_epochs is None else math.ceil(train.epochs / evaluate.every_epochs)


def _own(component: Component, what: str, kind: type, **extra: Any) -> Any:
    """Build a class of the user's, or of Optuna's. It is given the `extra` arguments that it has and the file leaves
    out."""
    known = inspect.signature(resolve(component.class_path)).parameters
    missing = {name: value for name, value in extra.items() if name in known and name not in component.init_args}
    found = build(component, **missing)
    if not isinstance(found, kind):
        raise UsageError(
            f"search.{what}: {component.class_path} must be a {what} of Optuna ({kind.__module__}.{kind.__name__}), "
            f"not a {type(found).__name__}",
            code="search/not-optuna",
        )
    return found


# ---- the storage ----------------------------------------------------------------------------------------------------


class _OneWriter(BaseJournalFileLock):
    """No lock: the lock of the search's folder keeps other writers out, and ends with its process."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def storage_of(folder: Path, url: str | None) -> BaseStorage:
    """Open the storage: the journal in the search's folder, or a database. Raises UsageError for one that cannot be
    opened."""
    if url is None:
        return JournalStorage(JournalFileBackend(str(folder / JOURNAL), _OneWriter()))
    try:
        return get_storage(url)
    except Exception as error:  # SQLAlchemy's and its drivers' own
        raise UsageError(f"--storage {url}: cannot be opened: {error}", code="search/storage") from error


def mend(journal: Path) -> None:
    """Cut off the last line if a killed writer has not ended it: what is appended to it would be unreadable."""
    with contextlib.suppress(FileNotFoundError), open(journal, "r+b") as stream:
        content = stream.read()
        stream.truncate(content.rfind(b"\n") + 1)


def open_study(folder: Path, job: Job, identity: str, url: str | None, *, is_new: bool) -> Study:
    """Create the study of a search, named as its folder, or open it again. Raises ConflictError if the storage has
    another one of that name. `identity`: of the search."""
    search = job.search
    assert search is not None
    _quiet()
    if url is None and not is_new:
        mend(folder / JOURNAL)
    storage = storage_of(folder, url)
    metrics = metrics_of(job)
    directions = _directions(metrics)
    study = optuna.create_study(
        storage=storage,
        study_name=folder.name,
        directions=directions,
        load_if_exists=True,
        pruner=pruner_of(job, search),
    )
    its = study.user_attrs.get(OF_JOB)
    if its is None and not study.get_trials(deepcopy=False):
        study.set_metric_names([*metrics])
        study.set_user_attr(OF_JOB, identity)
    elif is_new or its != identity or study.directions != directions:
        raise ConflictError(
            f"{url or folder / JOURNAL} already has a study named {folder.name}, "
            f"{'of another search' if is_new else 'of another job file'}: give another --run-dir or --storage",
            code="search/other-study",
        )
    # Not the seed alone: each attempt would draw the same values again.
    study.sampler = sampler_of(search, job.seed + len(study.get_trials(deepcopy=False)))
    return _in_loop(study)


def _quiet() -> None:
    """Let Optuna print errors only, not that a class is new."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)


def _in_loop(study: Study) -> Study:
    """Return the study, asked by a loop of ours: a sampler that has no more values may call `Study.stop`."""
    study._thread_local.in_optimize_loop = True
    return study


def is_exhausted(study: Study) -> bool:
    """Return whether the sampler has said, after a trial, that there is no other one to try."""
    return study._stop_flag


def _directions(metrics: Mapping[str, bool]) -> list[StudyDirection]:
    return [StudyDirection.MAXIMIZE if is_max else StudyDirection.MINIMIZE for is_max in metrics.values()]


# ---- the values of trials -------------------------------------------------------------------------------------------


def report(trial: optuna.Trial, step: int, values: Sequence[float]) -> None:
    """Record an evaluation. Optuna takes those of a single metric, for its pruners; those of several are attributes."""
    if len(values) == 1:
        trial.report(values[0], step)
    else:
        trial.set_user_attr(f"{EVALUATION}{step}", [value if math.isfinite(value) else None for value in values])


def evaluations_of(trial: FrozenTrial) -> dict[int, tuple[float, ...]]:
    """Return the evaluations of a trial by their numbers: values of the metrics, NaN for one that was not finite."""
    several = {
        int(key.removeprefix(EVALUATION)): tuple(math.nan if value is None else float(value) for value in values)
        for key, values in trial.user_attrs.items()
        if key.startswith(EVALUATION)
    }
    return dict(sorted((several or {step: (value,) for step, value in trial.intermediate_values.items()}).items()))


def best_values(trial: FrozenTrial, *, is_max: bool) -> tuple[float, ...]:
    """Return the metrics at a trial's best evaluation, whose checkpoint it keeps; () without a finite first metric."""
    finite = [values for values in evaluations_of(trial).values() if math.isfinite(values[0])]
    return (max if is_max else min)(finite, key=lambda values: values[0], default=())


def front(study: Study) -> list[FrozenTrial]:
    """Return the complete trials of the Pareto front, the best by the first metric first; of a single metric, the best
    trial alone."""
    sign = -1 if study.directions[0] == StudyDirection.MAXIMIZE else 1
    found = sorted(study.best_trials, key=lambda one: (sign * one.values[0], one.number))
    return found if len(study.directions) > 1 else found[:1]


def best_trial(study: Study) -> FrozenTrial | None:
    """Return the best complete trial, by the first metric; None before the first one."""
    return next(iter(front(study)), None)


def importance(study: Study) -> dict[str, float]:
    """Return the share of each field in the differences of the first metric between complete trials, the largest first;
    {} while there are too few."""
    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len({one.values[0] for one in done}) < 4:
        return {}
    sign = -1 if study.directions[0] == StudyDirection.MAXIMIZE else 1  # PED-ANOVA takes less for better
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return dict(optuna.importance.get_param_importances(study, target=lambda one: sign * one.values[0]))
        except (ValueError, RuntimeError):  # fields that have had a single value
            return {}


def unfinished(study: Study, space: Mapping[str, Range]) -> Iterator[optuna.Trial]:
    """Yield the trials that have begun and were not told, each with a value for every field: a search that was killed
    while it asked left some without."""
    for one in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        trial = optuna.Trial(study, one._trial_id)
        for field, values in distributions(space).items():
            trial._suggest(field, values)  # as `Study.ask` does
        yield trial
