"""`hogwild.train` and `hogwild.load`, the library's calls; the keywords and the result of `train`. A call runs through
the same code as a YAML job; only the objects come from the caller.

A keyword is a field of the job file's `train` or `data` section, a whole section as a dict, or one of the four objects.
The schema has their rules and defaults; `Keywords` repeats their names and types for editors and type checkers, and a
test compares the two."""

import html
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset

from hogwild.config.load import Job, job_from_mapping
from hogwild.config.rules import show
from hogwild.config.schema import Data, Device, Loaders, Procs, Slots, Split, Threads, Train
from hogwild.data.made_by_function import is_maker, made_by_function
from hogwild.data.pair_tables import as_data
from hogwild.errors import BuildError, ConfigError, ModelError, Problem, UsageError, nearest
from hogwild.formatting import counted, one_line, short_number
from hogwild.job.foreseen_kernels import foreseen
from hogwild.metrics.catalog import name_of
from hogwild.models import has_kernels
from hogwild.monitoring.callbacks import Callbacks
from hogwild.report.run_view import read_metrics
from hogwild.storage.run_directory import LIBRARY, require_current_folder
from hogwild.user_code import Given, build, build_callable, user_path

if TYPE_CHECKING:
    from pandas import DataFrame

    from hogwild.inference.trained_model import Trained


COUNTS = ("epoch", "updates", "samples")


class History(Mapping[str, NDArray[Any]]):
    """Columns (rows,) of a run, by name: a row per evaluation, with its metrics, `loss` among them, and `train_loss`,
    the mean per sample of the last complete epoch. A run without validation data has a row per training record instead
    (one each `log.every_s`), where `train_loss` is the mean per batch since the row before. `epoch`, `updates` and
    `samples` are int64, all others float64, NaN where a row has no number; `time` is in seconds since 1970, `seconds`
    how long an evaluation took. A resumed run has the rows of all attempts."""

    def __init__(self, columns: Mapping[str, NDArray[Any]] | None = None) -> None:
        self._columns = dict(columns or {})

    @classmethod
    def of(cls, run_dir: Path) -> "History":
        """Read metrics.jsonl; empty without it (`log.jsonl: false`)."""
        records = read_metrics(run_dir)
        if records.evaluations.rows:
            table, kept = records.evaluations, records.evaluations.names
        else:
            table, kept = records.train, ["time", *COUNTS, "loss", "samples_per_s", "lr"]
        names = {"loss": "train_loss"} if table is records.train else {}
        columns = {names.get(name, name): table[name] for name in kept if name in table}
        whole = {name: columns[name].astype(np.int64) for name in COUNTS if name in columns}
        return cls({**columns, **whole})

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """Return the number of columns, as of any mapping."""
        return len(self._columns)

    @property
    def rows(self) -> int:
        return min(map(len, self._columns.values()), default=0)

    def to_pandas(self) -> "DataFrame":
        """Return the columns as a pandas DataFrame. Raises UsageError if pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise UsageError(
                f"history.to_pandas() needs pandas ({error}): pip install pandas", code="usage/missing-extra"
            ) from error
        return pandas.DataFrame(self._columns)

    def __repr__(self) -> str:
        return one_line(f"History({counted(self.rows, 'row')}: {', '.join(self)})")


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of a job: the fields of summary.json. Seconds are wall-clock time; `leases` counts batches; `state` is
    succeeded, stopped (resumable) or cancelled. `train_loss` is the mean per sample of the last complete epoch; `best`
    has metric, value, updates, epoch, checkpoint and its path of the best evaluation; `weights` says which the model
    has: those of the "best" evaluation, whose `metrics` are given, or of the "last" update; `popularity` has the
    ranking metrics of a recommender of the most popular items; `warnings` those of Python and torch in all processes,
    each text once, with its place."""

    state: str
    reason: str
    name: str
    run_dir: Path
    wall_s: float
    train_s: float
    paused_s: float
    startup_s: float | None
    startup: Mapping[str, float] | None
    compiling_s: float
    idle: float
    samples: int
    updates: int
    samples_per_s: float | None
    procs: int
    threads: int
    device: str
    placement: str
    update: str
    update_why: str
    exchange: str
    metrics: Mapping[str, float]
    train_loss: float | None
    best: Mapping[str, Any] | None
    weights: str
    restarts: int
    rollbacks: int
    lane_restarts: int | None
    loader_deaths: int | None
    ring: Mapping[str, int] | None
    leases: Mapping[str, int]
    staleness: Mapping[str, int]
    peak_pss_bytes: int
    checkpoint: str | None
    warnings: Sequence[str]
    advice: str | None

    popularity: Mapping[str, float] = field(default_factory=dict)
    history: History = field(default_factory=History, compare=False)

    def __repr__(self) -> str:
        words = self._words() | {"warnings": counted(len(self.warnings), "warning") * bool(self.warnings), "advice": ""}
        return one_line(f"TrainResult({'; '.join(filter(None, words.values()))})")

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        rows = (
            f"<tr><th style='text-align:left'>{name}</th><td style='text-align:left'>{html.escape(words)}</td></tr>"
            for name, words in self._words().items()
        )
        return f"<table>{''.join(rows)}</table>"

    def _words(self) -> dict[str, str]:
        speed = f", {short_number(self.samples_per_s)} samples/s" if self.samples_per_s else ""
        who = f" by {counted(self.procs, 'worker')}" if self.procs else ""
        shown = {"train_loss": self.train_loss, **self.metrics}
        metrics = (f"{name} {value:.4g}" for name, value in shown.items() if value is not None)
        found = {
            "state": f"{self.state} ({self.reason})",
            "work": f"{counted(self.updates, 'update')}{who}, {self.wall_s:.3g} s{speed}",
            "metrics": ", ".join(metrics),
            "weights": f"{self.weights} weights" if self.best else "",
            "run_dir": str(self.run_dir),
            "warnings": "\n".join(self.warnings),
            "advice": self.advice or "",
        }
        return {name: words for name, words in found.items() if words}


class TrainInterrupted(KeyboardInterrupt):
    """Ctrl-C during `hogwild.train`, raised after the job has written its checkpoint and ended. `result` is what the
    call would have returned; the model holds its weights."""

    def __init__(self, result: TrainResult) -> None:
        self.result = result
        goes_on = f"resume={str(result.run_dir)!r} continues" if result.state == "stopped" else "no checkpoint"
        super().__init__(f"{result.state} after {counted(result.updates, 'update')}; {goes_on}")


SECTIONS = ("model", "loss", "data", "optimizer", "train")  # partly filled from the arguments
WHOLE = ("lr_schedule", "evaluate", "checkpoint", "supervise", "log", "name", "tags", "seed")
OF_OBJECTS = {"model", "loss", "optimizer"}  # names of objects and also of sections
UNSET: Any = ...  # default of an object: given by keyword, or missing

Fields = Mapping[str, Any]  # of a section of the job file


class Keywords(TypedDict, total=False):
    """Keywords besides the objects' own parameters and those that no job file has. docs/job-file.md describes them."""

    procs: Procs
    procs_max: int | None
    threads: Threads
    epochs: int
    max_updates: int | None
    max_time_s: float | None
    device: Device
    device_per_worker: list[int] | None
    placement: Literal["auto", "cpu", "cuda-replica", "cuda-shared"]
    graphs: Literal["off", "auto"]
    update: Literal["auto", "autograd", "fused"]
    precision: Literal["fp32", "bf16", "fp16"]
    exchange: Literal["auto", "direct", "delta"]
    sync_every: int
    max_staleness: int | None
    pin: bool
    flush_denormal: bool
    grad_clip: float | None
    accumulate: int
    batch_size: int
    transform: Callable[..., Any] | Fields | None
    on_bad_line: Literal["fail", "skip"]
    drop_last: bool
    feed: Literal["auto", "resident", "stream"]
    loaders: Loaders
    collate: Callable[..., Any] | Fields | None
    padding: Fields | None
    slots: Slots
    slot_bytes: Slots
    shuffle: Literal["auto", "full", "chunked", "none"]
    sampler: Iterable[Any] | Fields | None
    lanes: int | None
    name: str
    tags: list[str]
    seed: int
    lr_schedule: Fields | LRScheduler | Callable[..., Any]
    evaluate: Fields
    checkpoint: Fields
    supervise: Fields
    log: Fields
    data: Fields
    train: Fields
    model: nn.Module | Fields
    dataset: Any
    loss: Any
    optimizer: Optimizer | Fields


def signature_of(train: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of `train` with each keyword, its type and the schema's default, for `help` and editors."""
    own = inspect.signature(train)
    places = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
    objects = {one.name for one in places if one.kind is one.POSITIONAL_ONLY}
    shown = [
        one.replace(kind=one.POSITIONAL_OR_KEYWORD, default=one.empty) if one.name in objects else one for one in places
    ]
    defaults = {
        name: one.default
        for section in (Train, Data, Job)
        for name, one in section.model_fields.items()
        if not one.is_required() and one.default_factory is None
    } | {"name": ...}  # the model's class
    shown += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, {}), annotation=kind)
        for name, kind in get_type_hints(Keywords).items()
        if name not in objects
    ]
    return own.replace(parameters=shown)


def own_functions(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the functions among the settings, by the field names of `Functions`; replace them by their paths."""
    found: dict[str, Any] = {}
    for place in _places(settings):
        for name in ("collate", "transform"):
            entry = _section(place.get(name))
            if callable(target := entry.get("class_path")):
                path, args = path_of(target), entry.get("init_args")
                place[name] = {**entry, "class_path": path}
                found[name] = build_callable(Given(path, target, args if isinstance(args, Mapping) else {}))
    schedule = _section(settings.get("lr_schedule"))
    own = schedule.get("class_path", schedule.get("name"))
    if isinstance(own, LRScheduler) or callable(own):
        from hogwild.training.torch_schedule import is_scheduler

        kind = "class_path" if is_scheduler(own) else "name"
        others = {key: value for key, value in schedule.items() if key not in ("class_path", "name")}
        found["schedule"], settings["lr_schedule"] = own, {kind: path_of(own), **others}
    section = settings.get("evaluate")
    if isinstance(section, Mapping) and (metrics := _own_metrics(section.get("metrics"))):
        found["metrics"] = {path.rpartition(".")[2]: metric for path, metric in metrics.items()}
        settings["evaluate"] = {**section, "metrics": [*metrics]}
    return found


def _places(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the dicts that may have fields of `data`: the settings, and their section, which becomes a copy."""
    if not isinstance(settings.get("data"), Mapping):
        return [settings]
    settings["data"] = dict(settings["data"])  # keep the caller's dict unchanged
    return [settings, settings["data"]]


def _section(given: Any) -> dict[str, Any]:
    return {**given} if isinstance(given, Mapping) else {"class_path": given}


def _own_metrics(given: Any) -> dict[str, Any]:
    """Return the metrics by their paths, which end with their names; {} if there is no function among them. Raises
    ConfigError for a name that no record can have."""
    if isinstance(given, Mapping):
        entries: list[tuple[Any, Any]] = [*given.items()]
        rule = "must be a function"
    else:
        listed = given if isinstance(given, list | tuple) else [given]
        if not any(map(callable, listed)):
            return {}
        entries = [(name_of(one, place) if callable(one) else one, one) for place, one in enumerate(listed, 1)]
        rule = "must be a metric's name or a function"
    found: dict[str, Any] = {}
    for name, metric in entries:
        path, wrong = name, ""
        if callable(metric):
            path = f"{path_of(metric).rpartition('.')[0]}.{name}"
            metric = build(Given(path, metric)) if isinstance(metric, type) else metric
            wrong = "" if str(name).isidentifier() else "must have an identifier as its name"
        elif isinstance(given, Mapping) or not isinstance(metric, str):
            wrong = rule
        if wrong or path in found:
            wrong = wrong or "must have a name of its own, as in {'first': f, 'second': g}"
            words = f"{wrong}, got {show(name)}" + (f": {show(metric)}" if name != metric else "")
            raise ConfigError([Problem(LIBRARY, 0, 0, "evaluate.metrics", words, code="config/metric-name")])
        found[path] = metric
    return found


def objects_of(positional: tuple[Any, ...], settings: dict[str, Any]) -> list[Any]:
    """Return the four objects, given by position or by keyword; remove the latter from `settings`. A dict as keyword of
    an object that is given by position is a section, and stays. Raises UsageError for a missing or repeated object."""
    given = dict(zip(("model", "dataset", "loss", "optimizer"), positional, strict=True))
    by_name = [name for name in given if name in settings]
    sections = [name for name in by_name if name in OF_OBJECTS and isinstance(settings[name], Mapping)]
    missing = [name for name in given if given[name] is UNSET and name not in by_name]
    twice = [name for name in by_name if given[name] is not UNSET and name not in sections]
    if missing or twice:
        wrong = [f"{name} is missing" for name in missing] + [f"{name} is given twice" for name in twice]
        raise UsageError(
            f"{LIBRARY} needs a model, a dataset, a loss and an optimizer: {', '.join(wrong)}", code="usage/objects"
        )
    return [settings.pop(name) if thing is UNSET else thing for name, thing in given.items()]


def without_loaders(dataset: Any, val: Any, settings: dict[str, Any]) -> tuple[Any, Any, dict[str, Any], list[str]]:
    """Take DataLoaders apart: return the data set, the validation data, the functions and the sampler that are the
    caller's own, by the field names of `Functions`, and notes for the user. The rest becomes settings, with the sampler
    as its class path. Raises UsageError for what is given twice, or cannot be taken apart."""
    from hogwild.job.data_loader import LoaderParts

    given, notes = dict[str, Any](), list[str]()
    sections = [settings, settings["data"]] if isinstance(settings.get("data"), Mapping) else [settings]
    if isinstance(dataset, DataLoader):
        parts = LoaderParts.of(dataset, "dataset")
        dataset, notes = parts.dataset, [parts.note]
        found = parts.settings | parts.sampled
        for name, value in [*found.items()]:
            for by_keyword in (one[name] for one in sections if name in one):
                is_same = by_keyword is value or (isinstance(value, int | str) and by_keyword == value)
                if name not in LoaderParts.YIELDING and not is_same:
                    raise UsageError(
                        f"{name} is given twice: {by_keyword!r:.60} by keyword, {value!r:.60} by the DataLoader; leave "
                        "the keyword out, or change the DataLoader",
                        code="usage/contradiction",
                    )
                found.pop(name, None)
        if any(one.get("feed") == "resident" for one in sections):
            found.pop("loaders", None)  # nobody reads while the job trains
        settings |= found
    if isinstance(val, DataLoader):
        of_val = LoaderParts.of(val, "val")
        seed = settings.get("seed", Job.model_fields["seed"].default)
        val, given["val_collate"] = of_val.held_out(seed), of_val.settings.get("collate")
        notes.append(of_val.note)
    for place in _places(settings):
        entry = _section(place.get("sampler"))
        if (own := entry.get("class_path")) is None or isinstance(own, str):
            continue
        place["sampler"] = {**entry, "class_path": path_of(own)}
        args = entry.get("init_args")
        given["sampler"] = Given(path_of(own), own, args if isinstance(args, Mapping) else {}) if is_maker(own) else own
    return dataset, val, given, [note for note in notes if note]


def job_of(
    model: nn.Module, dataset: Dataset, loss: Any, optimizer: Optimizer, val: Any, settings: Mapping[str, Any]
) -> Job:
    """Return the call as a job, with objects as the paths of their classes, so that the run directory records them, and
    the arguments of a data set that knows them, to read files like its own. Raises ConfigError with all errors of the
    keywords."""
    draft = _KeywordDraft(
        {
            "name": type(model).__name__.lower(),
            "model": {"class_path": path_of(model)},
            "loss": {"class_path": path_of(loss)},
            "optimizer": {"class_path": path_of(optimizer)},
            "data": {"train": {"class_path": path_of(dataset), "init_args": _init_args(dataset)}},
            "train": {},
        }
    )
    for key, value in settings.items():
        draft.put_keyword(key, value)
    draft.put_val(val)
    try:
        job = job_from_mapping(draft.values, LIBRARY)
    except ConfigError as error:
        draft.problems += error.problems
    if draft.problems:
        raise ConfigError(draft.problems)
    return job


def _init_args(dataset: Any) -> dict[str, Any]:
    found = getattr(dataset, "init_args", None)
    return found if isinstance(found, dict) and type(dataset).__module__.startswith("hogwild.data.") else {}


@dataclass(slots=True)
class _KeywordDraft:
    """Sections of a job file, filled from keywords; errors of a keyword itself are in `problems`."""

    values: dict[str, Any]
    problems: list[Problem] = field(default_factory=list)
    _said: dict[tuple[str, str], str] = field(default_factory=dict)  # (section, field) -> its keyword

    def put_keyword(self, key: str, value: Any) -> None:
        value = dict(value) if isinstance(value, Mapping) else value
        if key not in SECTIONS:
            section, name = _home(key)
            self._put(section, name, value, f"{key}={value!r}")
        elif not isinstance(value, dict):
            self._report(key, f"must be a dict of the section's fields, got {value!r}")
        else:
            for name, one in value.items():
                self._put(key, name, one, f"{key}={{{name!r}: {one!r}}}")

    def put_val(self, val: Any) -> None:
        if isinstance(val, Mapping) and "class_path" in val:
            self._report("data.val", "must be a data set, or {'fraction': f}; class paths work in job files only")
        elif val is not None:
            self.values["data"]["val"] = dict(val) if isinstance(val, Mapping) else {"class_path": path_of(val)}

    def _put(self, section: str | None, name: Any, value: Any, said: str) -> None:
        path = f"{section}.{name}"
        if section is None:
            self.values[name] = value
        elif (section, name) == ("data", "val"):
            self._report(path, "must be given as the keyword val=…")
        elif (section in OF_OBJECTS and name in ("class_path", "init_args", "groups")) or path == "data.train":
            self._report(path, "is for job files only, as the object is given here; remove it")
        elif (section, name) in self._said:
            self._report(path, f"is given twice: {self._said[section, name]} and {said}")
        else:
            self._said[section, name] = said
            self.values[section][name] = value

    def _report(self, path: str, message: str) -> None:
        self.problems.append(Problem(LIBRARY, 0, 0, path, message, code="config/keyword"))


def _home(key: str) -> tuple[str | None, str]:
    """Return the section (None: top level) and the field of a keyword. An unknown keyword goes to the section of the
    most similar name, for the error's suggestion."""
    homes: dict[str, tuple[str | None, str]] = {name: ("train", name) for name in Train.model_fields}
    homes |= {name: ("data", name) for name in Data.model_fields if name not in ("train", "val")}
    homes |= {name: (None, name) for name in (*WHOLE, *SECTIONS)} | {"optimizer_state": ("optimizer", "state")}
    if key in homes:
        return homes[key]
    near = nearest(key, homes, most=1)
    return (homes[near[0]][0] if near else None), key


def path_of(thing: Any) -> str:
    """Return the dotted path of a function or of an object's class: the public one for ours, wherever its file lies;
    for a local class, only the valid parts. Of a partial, that of its function."""
    while isinstance(thing, partial):
        thing = thing.func
    named = thing if hasattr(thing, "__qualname__") and hasattr(thing, "__module__") else type(thing)
    home = ".".join(str(named.__module__).split(".")[:2])  # a method of a built-in object has None
    public = sys.modules.get(home) if home.startswith("hogwild.") else None
    names: Any = getattr(public, "CATALOG", getattr(public, "__all__", ()))  # the rules refuse what is not in it
    is_public = named.__qualname__ in names and getattr(public, named.__qualname__) is named
    parts = f"{home if is_public else named.__module__}.{named.__qualname__}".replace("<locals>.", "").split(".")
    return ".".join(part if part.isidentifier() else "anonymous" for part in parts)


def train(
    model: nn.Module = UNSET,
    dataset: Any = UNSET,
    loss: Any = UNSET,
    optimizer: Optimizer = UNSET,
    /,
    *,
    val: Any = None,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    optimizer_state: Literal["auto", "private", "shared"] | None = None,
    callbacks: Sequence[object] = (),
    on_interrupt: Literal["raise", "return"] = "raise",
    **keywords: Unpack[Keywords],
) -> TrainResult:
    """Train `model` with several worker processes that share its parameters. Afterwards the model holds the result in
    private memory, and the optimizer the shared state, or the state of the worker with the most updates.

    `dataset` and `val` are data sets of (input, …, target), map-style or iterable, or pairs of users and items: a
    scipy.sparse matrix, a data frame or an array (`hogwild.data.pair_tables`). A DataLoader is taken apart: its data
    set, batch size, sampler and the rest become the job's. `val={"fraction": 0.2}` uses a random part of `dataset`.
    `loss` is called as loss(output, target). `optimizer` is a torch.optim instance over model.parameters(); its class,
    groups, hyper-parameters and state are used. These four may also be given as keywords. Every other keyword is a
    field of the job file's `train` or `data` section (`procs=4`, `epochs=3`, `batch_size=64`), `name`, `seed`, or a
    section as a dict (`checkpoint={"every_s": 5}`). Examples: `model={"freeze": ["conv*"]}` freezes parameters until
    the call returns; `optimizer_state` is "auto" (the default), "private" or "shared".

    Wherever a job file has a class path, a function or class is taken: `transform` (of a batch's inputs and target),
    `collate` (of a list of records), `lr_schedule` (of the number of updates; or one of torch's schedulers over
    `optimizer`, of which a copy is stepped, or its class), and metrics of all outputs and targets:
    `evaluate={"metrics": gini}`, `["accuracy", gini]`, or `{"gini": lambda outputs, targets: …}`, which gives names. A
    function as `dataset` or `val` is called, and returns the data set; one that yields is called in every epoch.
    `sampler` is any torch.utils.data.Sampler, or what makes one of the data set. `resume` continues from the run
    directory of an earlier call with the same objects.

    `callbacks` are objects with any of the methods `on_start`, `on_evaluation`, `on_checkpoint` and `on_end`. Each is
    called with a `hogwild.monitoring.callbacks.JobEvent`, in order, by one thread, while training goes on. An exception
    in one stops the job with a checkpoint, and is raised here as UserCodeError.

    The first call starts one more process, the fork server: it imports torch once, for the processes of this call and
    of all later ones. `hogwild.close()` ends it. Call it from the main thread; `if __name__ == "__main__"` is not
    needed. Raises HogwildError, with the messages of the command line, if the job cannot start or fails. Returns if the
    job was stopped by `max_time_s`, a callback or a signal other than Ctrl-C. After a Ctrl-C, once the checkpoint is
    written, it raises TrainInterrupted, a KeyboardInterrupt with the result as `result`, so that a loop of calls ends;
    `on_interrupt="return"` returns the result instead.
    """
    began_s = time.monotonic()
    require_current_folder()
    if run_dir is not None and resume is not None and os.path.realpath(run_dir) != os.path.realpath(resume):
        raise UsageError(
            f"resume={str(resume)!r} continues in that folder, but run_dir={str(run_dir)!r} names another; remove "
            "run_dir, or remove resume for a new run",
            code="usage/contradiction",
        )
    if on_interrupt not in ("raise", "return"):
        raise UsageError(f'on_interrupt={on_interrupt!r} must be "raise" or "return"', code="usage/bad-value")
    settings: dict[str, Any] = {**keywords}
    model, dataset, loss, optimizer = objects_of((model, dataset, loss, optimizer), settings)
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model is a {type(model).__name__}, not a torch.nn.Module", code="model/not-a-module")
    if not callable(loss):
        raise BuildError(
            f"the loss is a {type(loss).__name__}; it must be callable as loss(output, target)",
            code="model/loss-not-callable",
        )
    if optimizer_state is not None:
        settings["optimizer_state"] = optimizer_state
    dataset, val = made_by_function(dataset, "data.train"), made_by_function(val, "data.val")
    dataset, val, taken, notes = without_loaders(dataset, val, settings)
    dataset, val, chosen = as_data(model, dataset, val)
    given = own_functions(settings) | taken
    job = job_of(model, dataset, loss, optimizer, val, settings)
    told = Callbacks(callbacks)
    from hogwild.feeds.packed import Packed
    from hogwild.feeds.row_reader import Reader
    from hogwild.job.build import from_objects
    from hogwild.job.data import names_of, packs
    from hogwild.job.initial_values import held_out_notes, load_initial
    from hogwild.job.parameter_groups import freeze_parameters
    from hogwild.job.parts import Functions, Parts
    from hogwild.planning.job_plan import JobPlan
    from hogwild.workers.run import run
    from hogwild.workers.session.startup import Description

    held_back = job.data.val if isinstance(job.data.val, Split) else cast("Dataset | None", val)

    def read(plan: JobPlan, reader: Reader) -> Parts:
        data: Any = dataset
        started: list[str] = []
        if resume is None and job.model.init_from is not None:
            if packs(data):
                data = data.pack(reader, "data.train", None, job.data.on_bad_line)
            names = names_of(data, data if isinstance(data, Packed) else None)
            started = [load_initial(model, job.model.init_from, names).give_state(model, optimizer)]
        freeze_parameters(model, job.model.freeze)
        parts = from_objects(plan, model, loss, optimizer, data, held_back, Functions.of(job, given), reader)
        if started:
            started += held_out_notes(job, parts.train.packed)
        parts.notes[:0] = [*notes, *chosen, *started]
        return parts

    modes = [(module, module.training) for module in model.modules()]
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    if not model.training:
        model.train()
    try:
        with told:
            result = run(
                Description(
                    job=job,
                    read=read,
                    run_dir=Path(run_dir) if run_dir is not None else None,
                    resume=Path(resume) if resume is not None else None,
                    caller=LIBRARY,
                    began_s=began_s,
                    callbacks=told,
                    kernels=foreseen(job, _update_of(model, loss, optimizer)),
                )
            )
    finally:
        for module, was_training in modes:
            module.training = was_training
        for parameter, was_trained in trained:
            parameter.requires_grad_(was_trained)
    result.shared.release()
    if (error := result.error or told.error) is not None:
        raise error
    names = {field.name for field in fields(TrainResult)}
    values = {key: value for key, value in result.summary.items() if key in names}
    run_dir = Path(values["run_dir"])
    if (best := values["best"]) is not None:
        path = run_dir / "checkpoints" / best["checkpoint"] if best["checkpoint"] else None
        values["best"] = {**best, "path": path}
    found = TrainResult(**{**values, "run_dir": run_dir, "history": History.of(run_dir)})
    if found.reason == "SIGINT" and on_interrupt == "raise":
        raise TrainInterrupted(found)
    return found


def _update_of(model: Any, loss: Any, optimizer: Optimizer) -> Any:
    """Return the fused update of a model of ours, or None: other models are asked when the job is built."""
    return model.fused(loss, optimizer) if has_kernels(path_of(model)) and hasattr(model, "fused") else None


train.__signature__ = signature_of(train)  # type: ignore[attr-defined]


def close() -> None:
    """End the process from which those of `train` are forked, now rather than at the end of this process."""
    from hogwild.workers.processes.fork_server import SERVER

    SERVER.close()


def load(
    source: str | Path,
    *,
    model: nn.Module | None = None,
    collate: Callable[..., Any] | None = None,
    which: str | None = None,
    data_dir: str | Path | None = None,
    live: bool = False,
) -> "Trained":
    """Load a run's model, ready to use. `source` is a run directory (its best checkpoint, or `which="latest"`) or a
    checkpoint. `model` gets the weights, in place, and is used instead of a new object of the run's class: a run of
    `train` records no arguments of classes, so it needs one unless the class can be built without. `collate`: the
    function that `train` got under this name, if it cannot be imported by its own. With `live`
    the model is that of the running job at each call, as `hogwild predict --live` has it; only `predict` and `similar`
    are of use. See `hogwild.inference.trained_model`. Raises NotFoundError, UsageError, ModelError, CheckpointError,
    RunError."""
    from hogwild.config.of_run import checkpoint_of, data_folder, is_of_library, recorded, require_run
    from hogwild.data.locate import set_data_dir
    from hogwild.inference.trained_model import Trained

    if live and (model is not None or which is not None):
        raise UsageError(
            "live=True: the job's own model answers; leave model and which out", code="usage/contradiction"
        )
    if live:
        run = require_run(Path(source)).parent
    else:
        path = checkpoint_of(Path(source), which)
        run = path.parent.parent
    job, users_file, _ = recorded(run)
    folder = data_folder(Path(data_dir) if data_dir is not None else None, run)
    user_path(users_file)
    if folder is not None:
        set_data_dir(folder)
    if live:
        from hogwild.monitoring.live_calls import LiveCalls
        from hogwild.monitoring.live_model import live_model

        return live_model(run, LiveCalls(run), consistent=False, collate=collate)
    return Trained.of(job, path, model, is_of_objects=is_of_library(run), collate=collate)
