"""The keywords of `hogwild.train`, and the job that a call stands for.

A keyword is a field of the job file's `train` or `data` section, a whole section as a dict, or one of the four objects.
The schema has their rules and defaults; `Keywords` repeats their names and types for editors and type checkers, and a
test compares the two."""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, cast, get_type_hints

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from hogwild.config.field_types import Device, Loaders, Procs, Slots, Threads
from hogwild.config.load import Job, job_from_mapping
from hogwild.config.schema import Data, Train
from hogwild.errors import ConfigError, Problem, UsageError, nearest
from hogwild.storage.run_directory import LIBRARY

SECTIONS = ("model", "loss", "data", "optimizer", "train")  # partly filled from the arguments
WHOLE = ("lr_schedule", "evaluate", "checkpoint", "supervise", "log", "name", "seed")
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
    lanes: int | None
    name: str
    seed: int
    lr_schedule: Fields | LRScheduler
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
    if isinstance(settings.get("data"), Mapping):
        settings["data"] = dict(settings["data"])  # keep the caller's dict unchanged
    for place in (settings, settings.get("data")):
        for name in ("collate", "transform"):
            if isinstance(place, dict) and callable(place.get(name)):
                found[name], place[name] = place[name], {"class_path": path_of(place[name])}
    schedule = settings.get("lr_schedule")
    schedule = {"class_path": schedule} if isinstance(schedule, LRScheduler) else schedule
    if isinstance(schedule, Mapping) and isinstance(scheduler := schedule.get("class_path"), LRScheduler):
        found["scheduler"], settings["lr_schedule"] = scheduler, {**schedule, "class_path": path_of(scheduler)}
    section = settings.get("evaluate")
    listed = section.get("metrics") if isinstance(section, Mapping) else None
    if not isinstance(listed, list | tuple) or not any(callable(metric) for metric in listed):
        return found
    from hogwild.metrics.panel import named

    paths = [path_of(metric) if callable(metric) else metric for metric in listed]
    settings["evaluate"] = {**cast("Mapping[str, Any]", section), "metrics": paths}
    found["metrics"] = named(metric for metric in listed if isinstance(metric, str) or callable(metric))
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
    for a local class, only the valid parts."""
    named = thing if hasattr(thing, "__qualname__") and hasattr(thing, "__module__") else type(thing)
    home = ".".join(str(named.__module__).split(".")[:2])  # a method of a built-in object has None
    public = sys.modules.get(home) if home.startswith("hogwild.") else None
    names: Any = getattr(public, "CATALOG", getattr(public, "__all__", ()))  # the rules refuse what is not in it
    is_public = named.__qualname__ in names and getattr(public, named.__qualname__) is named
    parts = f"{home if is_public else named.__module__}.{named.__qualname__}".replace("<locals>.", "").split(".")
    return ".".join(part if part.isidentifier() else "anonymous" for part in parts)
