"""`hogwild.train` and `hogwild.load`, the library's calls. A call runs through the same code as a YAML job; only the
objects come from the caller."""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from hogwild.config.load import Job, job_from_mapping
from hogwild.config.schema import Data, Split, Train
from hogwild.errors import BuildError, ConfigError, HogwildError, ModelError, Problem, UsageError, nearest
from hogwild.storage.run_directory import LIBRARY, require_current_folder
from hogwild.user_code import claim_our_packages, user_path

if TYPE_CHECKING:
    from hogwild.inference.trained_model import Trained

SECTIONS = ("model", "loss", "data", "optimizer", "train")  # partly filled from the arguments
WHOLE = ("lr_schedule", "evaluate", "checkpoint", "supervise", "log", "name", "seed")
OF_OBJECTS = {"model", "loss", "optimizer"}  # names of objects and also of sections
UNSET: Any = ...  # default of an object: given by keyword, or missing


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of a job: the fields of summary.json. Seconds are wall-clock time; `leases` counts batches; `state` is
    succeeded, stopped (resumable) or cancelled. `train_loss` is the mean per sample of the last complete epoch; `best`
    has metric, value, updates, epoch and checkpoint of the best evaluation."""

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
    restarts: int
    rollbacks: int
    lane_restarts: int | None
    loader_deaths: int | None
    ring: Mapping[str, int] | None
    leases: Mapping[str, int]
    staleness: Mapping[str, int]
    peak_pss_bytes: int
    checkpoint: str | None
    advice: str | None


def train(
    model: nn.Module = UNSET,
    dataset: Dataset = UNSET,
    loss: Any = UNSET,
    optimizer: Optimizer = UNSET,
    /,
    *,
    val: Dataset | Mapping[str, float] | None = None,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    optimizer_state: str | None = None,
    **settings: Any,
) -> TrainResult:
    """Train `model` with several worker processes that share its parameters. Afterwards the model holds the result in
    private memory, and the optimizer the shared state, or the state of the worker with the most updates.

    `dataset` and `val` are data sets of (input, …, target), map-style or iterable; `val={"fraction": 0.2}` uses a
    random part of `dataset`. `loss` is called as loss(output, target). `optimizer` is a torch.optim instance over
    model.parameters(); its class, groups, hyper-parameters and state are used. These four may also be given as
    keywords. Every other keyword is a field of the job file's `train` or `data` section (`procs=4`, `epochs=3`,
    `batch_size=64`), `name`, `seed`, or a section as a dict (`checkpoint={"every_s": 5}`). Examples:
    `model={"freeze": ["conv*"]}` freezes parameters until the call returns; `evaluate={"metrics": ["accuracy", gini]}`
    uses your function gini(outputs, targets) of all outputs. `collate` (of a list of records) and `transform` (of a
    batch's inputs and target) may be functions. `optimizer_state` is "auto" (the default), "private" or "shared".
    `resume` continues from the run directory of an earlier call with the same objects.

    After a call, as many new processes wait a minute for the next one, which then starts without importing torch;
    `hogwild.close()` ends them. Call it from the main thread; `if __name__ == "__main__"` is not needed. Raises
    HogwildError, with the messages of the command line, if the job cannot start or fails. Returns if the job was
    stopped by Ctrl-C or `max_time_s`.
    """
    began_s = time.monotonic()
    require_current_folder()
    if run_dir is not None and resume is not None and os.path.realpath(run_dir) != os.path.realpath(resume):
        raise UsageError(
            f"resume={str(resume)!r} continues in that folder, but run_dir={str(run_dir)!r} names another; remove "
            "run_dir, or remove resume for a new run",
            code="usage/contradiction",
        )
    model, dataset, loss, optimizer = _objects((model, dataset, loss, optimizer), settings)
    if not isinstance(model, nn.Module):
        raise ModelError(f"the model is a {type(model).__name__}, not a torch.nn.Module", code="model/not-a-module")
    if not callable(loss):
        raise BuildError(
            f"the loss is a {type(loss).__name__}; it must be callable as loss(output, target)",
            code="model/loss-not-callable",
        )
    if optimizer_state is not None:
        settings["optimizer_state"] = optimizer_state
    given = _own_functions(settings)
    job = _job(model, dataset, loss, optimizer, val, settings)
    claim_our_packages()
    from hogwild.feeds.materialise import Reader
    from hogwild.feeds.packed import Packed
    from hogwild.job.build import from_objects
    from hogwild.job.initial_values import load_initial
    from hogwild.job.packed_data import names_of, packs
    from hogwild.job.parameter_groups import freeze_parameters
    from hogwild.job.parts import Functions, Parts
    from workers.processes.warm import KEPT
    from workers.request import Request
    from workers.run import run

    held_back = job.data.val if isinstance(job.data.val, Split) else cast("Dataset | None", val)

    def make_parts(reader: Reader) -> Parts:
        data: Any = dataset
        started: list[str] = []
        if resume is None and job.model.init_from is not None:
            if packs(data):
                data = data.pack(reader, "data.train", None, job.data.on_bad_line)
            names = names_of(data, data if isinstance(data, Packed) else None)
            started = [load_initial(model, job.model.init_from, names).give_state(model, optimizer)]
        freeze_parameters(model, job.model.freeze)
        parts = from_objects(job, model, loss, optimizer, data, held_back, Functions.of(job, given), reader)
        parts.notes[:0] = started
        return parts

    modes = [(module, module.training) for module in model.modules()]
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    if not model.training:
        model.train()
    try:
        result = run(
            Request(
                job=job,
                make_parts=make_parts,
                run_dir=Path(run_dir) if run_dir is not None else None,
                resume=Path(resume) if resume is not None else None,
                caller=LIBRARY,
                began_s=began_s,
            )
        )
    except HogwildError:
        KEPT.keep()  # for the next try
        raise
    finally:
        for module, was_training in modes:
            module.training = was_training
        for parameter, was_trained in trained:
            parameter.requires_grad_(was_trained)
    result.shared.release()
    KEPT.keep()
    if result.error is not None:
        raise result.error
    names = {field.name for field in fields(TrainResult)}
    values = {key: value for key, value in result.summary.items() if key in names}
    return TrainResult(**{**values, "run_dir": Path(values["run_dir"])})


def close() -> None:
    """End the processes that wait for the next call of `train`, now rather than a minute after the last call or at the
    end of this process."""
    from workers.processes.warm import KEPT

    KEPT.close()


def _own_functions(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the functions among the settings, by the field names of `Functions`; replace them by their paths."""
    found: dict[str, Any] = {}
    if isinstance(settings.get("data"), Mapping):
        settings["data"] = dict(settings["data"])  # keep the caller's dict unchanged
    for place in (settings, settings.get("data")):
        for name in ("collate", "transform"):
            if isinstance(place, dict) and callable(place.get(name)):
                found[name], place[name] = place[name], {"class_path": _path_of(place[name])}
    section = settings.get("evaluate")
    listed = section.get("metrics") if isinstance(section, Mapping) else None
    if not isinstance(listed, list | tuple) or not any(callable(metric) for metric in listed):
        return found
    from hogwild.metrics.panel import named

    paths = [_path_of(metric) if callable(metric) else metric for metric in listed]
    settings["evaluate"] = {**cast("Mapping[str, Any]", section), "metrics": paths}
    found["metrics"] = named(metric for metric in listed if isinstance(metric, str) or callable(metric))
    return found


def _objects(positional: tuple[Any, ...], settings: dict[str, Any]) -> list[Any]:
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


def _job(
    model: nn.Module, dataset: Dataset, loss: Any, optimizer: Optimizer, val: Any, settings: Mapping[str, Any]
) -> Job:
    """Return the call as a job, with objects as the paths of their classes, so that the run directory records them.
    Raises ConfigError with all errors of the keywords."""
    draft = _KeywordDraft(
        {
            "name": type(model).__name__.lower(),
            "model": {"class_path": _path_of(model)},
            "loss": {"class_path": _path_of(loss)},
            "optimizer": {"class_path": _path_of(optimizer)},
            "data": {"train": {"class_path": _path_of(dataset)}},
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
            self.values["data"]["val"] = dict(val) if isinstance(val, Mapping) else {"class_path": _path_of(val)}

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


def _path_of(thing: Any) -> str:
    """Return the dotted path of a function or of an object's class: the public one for ours, wherever its file lies;
    for a local class, only the valid parts."""
    named = thing if hasattr(thing, "__qualname__") and hasattr(thing, "__module__") else type(thing)
    home = ".".join(str(named.__module__).split(".")[:2])  # a method of a built-in object has None
    public = sys.modules.get(home) if home.startswith("hogwild.") else None
    names: Any = getattr(public, "CATALOG", getattr(public, "__all__", ()))  # the rules refuse what is not in it
    is_public = named.__qualname__ in names and getattr(public, named.__qualname__) is named
    parts = f"{home if is_public else named.__module__}.{named.__qualname__}".replace("<locals>.", "").split(".")
    return ".".join(part if part.isidentifier() else "anonymous" for part in parts)


def load(
    source: str | Path,
    *,
    which: str | None = None,
    data_dir: str | Path | None = None,
    model: nn.Module | None = None,
) -> "Trained":
    """Load a run's model, ready to use. `source` is a run directory (its best checkpoint, or `which="latest"`) or a
    checkpoint. `model` gets the weights, in place, and is used instead of a new object of the run's class: a run of
    `train` records no arguments of classes, so it needs one unless the class can be built without. See
    `hogwild.inference.trained_model`. Raises NotFoundError, UsageError, ModelError, CheckpointError, RunError."""
    from hogwild.config.of_run import checkpoint_of, data_folder, is_of_library, recorded
    from hogwild.data.locate import set_data_dir
    from hogwild.inference.trained_model import Trained

    path = checkpoint_of(Path(source), which)
    run = path.parent.parent
    job, users_file, _ = recorded(run)
    folder = data_folder(Path(data_dir) if data_dir is not None else None, run)
    user_path(users_file)
    if folder is not None:
        set_data_dir(folder)
    return Trained.of(job, path, model, is_of_objects=is_of_library(run))
