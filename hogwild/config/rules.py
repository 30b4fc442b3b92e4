"""Rules for a job that types cannot express: arguments of common torch classes, names in our catalogs, fields that must
agree.

They work on the raw values, so that errors are reported in the same pass as all others. Below are the messages of the
schema's errors, with the nearest correct value. Torch-free.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import Tag, ValidationError
from pydantic_core import ErrorDetails

from hogwild.config import torch_arguments
from hogwild.config.schema import SCHEDULES, SGD, TAG, Job, Search, Section, Supervise
from hogwild.config.strict_yaml import Path, dotted
from hogwild.config.torch_arguments import Arguments, broken_rule
from hogwild.devices.kinds import accelerators
from hogwild.errors import did_you_mean, nearest
from hogwild.metrics import catalog
from hogwild.scheduling.work_queue import MAX_ITEM_BATCHES


class JobFinding(NamedTuple):
    """An error of a job file: where, what is wrong, whether the place is the key's or the value's, and the code."""

    path: Path
    message: str
    at_key: bool = False
    code: str = "config/contradiction"


def _contradiction(path: str, rule: str, value: Any) -> JobFinding:
    """Return the finding that `value` of the field breaks a rule because of another field."""
    return JobFinding(tuple(path.split(".")), f"{rule}, got {show(value)}")


_GIVEN = object()  # any value but null
_GPU = "an accelerator"
# A field, the values that it may have while another field has a value, and why.
_CONFLICTS: tuple[tuple[str, tuple[Any, ...], str, Any, str], ...] = (
    ("train.placement", ("auto", "cpu"), "train.device", "cpu", "workers compute on the CPU"),
    ("train.placement", ("auto", "cuda-replica", "cuda-shared"), "train.device", _GPU, "workers compute there"),
    ("train.exchange", ("direct", "auto"), "train.placement", "cuda-shared", "workers write the parameters themselves"),
    ("train.exchange", ("delta", "auto"), "train.placement", "cuda-replica", "each worker has a copy on its device"),
    ("train.update", ("auto", "autograd"), "train.placement", "cuda-shared", "kernels run on the CPU"),
    ("train.update", ("auto", "autograd"), "train.placement", "cuda-replica", "kernels run on the CPU"),
    ("optimizer.state", ("private", "auto"), "train.placement", "cuda-shared", "each worker has its own state"),
    ("optimizer.state", ("private", "auto"), "train.placement", "cuda-replica", "each worker has its own state"),
    ("train.exchange", ("direct", "auto"), "optimizer.state", "shared", "a shared state needs shared parameters"),
    ("evaluate.restore_best", ("auto", False), "checkpoint.keep_best", False, "no checkpoint has the best weights"),
    ("train.procs_max", (None,), "train.procs", 0, "no worker is started"),
    ("queue.elastic", (None,), "train.procs", 0, "no worker is started"),
    ("queue.elastic", (None,), "train.pin", True, "workers are bound to their cores"),
    ("queue.elastic", (None,), "data.lanes", _GIVEN, "a lane belongs to one worker"),
    ("data.loaders", ("auto",), "data.feed", "resident", "no loader reads during training"),
    ("data.slots", ("auto",), "data.feed", "resident", "no loader reads during training"),
    ("data.slot_bytes", ("auto",), "data.feed", "resident", "no loader reads during training"),
    ("data.shuffle", ("auto", "none"), "data.lanes", _GIVEN, "lanes are read in order"),
    ("data.feed", ("auto", "resident"), "data.lanes", _GIVEN, "lanes read rows by index"),
    ("data.sampler", (None,), "data.lanes", _GIVEN, "lanes are read in order"),
    ("data.shuffle", ("auto",), "data.sampler", _GIVEN, "the sampler decides the order"),
    ("train.accumulate", (1,), "data.lanes", _GIVEN, "the state is passed on after each batch"),
    ("cluster.engine", ("none",), "train.procs", 0, "the parent exchanges with other nodes while workers train"),
    ("cluster.engine", ("none",), "train.placement", "cuda-shared", "nodes exchange parameters in host memory"),
    ("supervise.on_nan", ("skip", "fail"), "cluster.engine", "torchrun", "nodes cannot go back one by one"),
)


def _conflicts(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check the fields that exclude each other. The existing devices are known only later (`device_placement.py`)."""
    device = str(_at(values, "train.device")).partition(":")[0]
    placement = _at(values, "train.placement")
    is_gpu = device in accelerators()
    facts = {
        "train.device": _GPU if is_gpu else device,
        "train.placement": "cuda-replica" if is_gpu and placement in (None, "auto") else placement,
    }
    for field, allowed, other, refused, why in _CONFLICTS:
        value, found = _at(values, field), facts.get(other, _at(values, other))
        is_met = found is not None if refused is _GIVEN else (type(found), found) == (type(refused), refused)
        if is_met and value is not None and value not in allowed:
            where = f"with {other}" if refused is _GIVEN else f"where {other} is {_word(found)}"
            yield _contradiction(field, f"must be {' or '.join(map(_word, allowed))} {where}: {why}", value)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else show(value)


# The field at most, the field at least, whether the error is at the latter, and why.
_ORDERED = (
    ("supervise.min_workers", "train.procs", False, ""),
    ("supervise.grace_s", "supervise.deadlock_timeout_s", False, ""),
    ("train.procs", "train.procs_max", True, ""),
    ("train.procs", "data.lanes", True, ": a worker without a lane has nothing to do"),
    ("queue.elastic.min", "queue.elastic.max", False, ""),
)
_DEFAULTS = {f"supervise.{name}": Supervise.model_fields[name].default for name in ("grace_s", "deadlock_timeout_s")}


def _orders(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check the fields of which one is at most the other. The error is at a field that the file gives."""
    for small, large, is_at_large, why in _ORDERED:
        given = {field: _at(values, field) for field in (small, large)}
        both = {field: _DEFAULTS.get(field, 0) if value is None else value for field, value in given.items()}
        if not all(type(one) in (int, float) and one > 0 for one in both.values()) or both[small] <= both[large]:
            continue
        field, sign, other = (large, ">=", small) if is_at_large or given[small] is None else (small, "<=", large)
        default = ", the default" if given[other] is None else ""
        yield _contradiction(field, f"must be {sign} {other} ({both[other]:g}{default}){why}", both[field])


def _device_per_worker(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    chosen, procs, device = (_at(values, f"train.{name}") for name in ("device_per_worker", "procs", "device"))
    if not isinstance(chosen, list):
        return
    here: Path = ("train", "device_per_worker")
    if device not in accelerators():
        yield JobFinding(here, f"needs train.device: cuda, without an index, got {device or 'auto'}", at_key=True)
    if type(procs) is int and len(chosen) != max(1, procs):
        yield JobFinding(here, f"must name one device for each of {max(1, procs)} workers, got {len(chosen)}")


_CLASS_PATHS: Mapping[str, str | None] = {
    "model": None,
    "loss": "torch.nn.CrossEntropyLoss",
    "data.train": None,
    "data.val": None,
    "optimizer": SGD,
}
_FOR_ALL = ("differentiable", "initial_accumulator_value")  # torch reads them from the constructor, never from a group


def findings(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Yield all errors beyond types and ranges. `values` may have any error that the schema reports."""
    for path, default in _CLASS_PATHS.items():
        section = _at(values, path)
        if isinstance(section, Mapping):
            yield from _component(
                tuple(path.split(".")), section.get("class_path", default), section.get("init_args", {})
            )
    yield from _groups(values.get("optimizer"))
    yield from _conflicts(values)
    yield from _orders(values)
    yield from _device_per_worker(values)
    yield from _needs(values)
    yield from _standard_input(values)
    yield from _kafka(values)
    yield from _metrics(values.get("evaluate"))
    schedule = _at(values, "lr_schedule.name")
    if str(schedule).rpartition(".")[0] == "torch.optim.lr_scheduler":
        words = f"must be a function of the number of updates, got {schedule!r}"
        words += f"; write class_path: {schedule}, with its init_args"
        yield JobFinding(("lr_schedule", "name"), words, code="config/unknown-choice")


def show(value: Any) -> str:
    """Return a value for messages: as written in YAML, and short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a map" if value else "an empty map"
    if isinstance(value, list | tuple):
        inside = ", ".join(show(item) for item in value[:5])
        return f"[{inside}{', ...' if len(value) > 5 else ''}]"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _component(path: Path, class_path: Any, init_args: Any) -> Iterator[JobFinding]:
    """Check a class of a module whose names are known, and its arguments."""
    if not isinstance(class_path, str):
        return
    module, _, name = class_path.rpartition(".")
    here, meant = (*path, "class_path"), class_paths(str(path[0]), name)
    known = _known_names(module, path)
    if (module, name) == ("torch.optim", "LBFGS"):
        words = "needs a closure that evaluates the loss several times; a worker applies one gradient"
        yield JobFinding(here, f"{class_path} {words}", code="optimizer/closure")
    elif (known is None and module == "torch" and meant) or (known is not None and name not in known):
        close = f"; write {' or '.join(meant)}" if meant else did_you_mean(name, known or ())
        words = f"{module} has no {'loss ' if path == ('loss',) else ''}{name!r}{close}"
        yield JobFinding(here, words + (f" (known: {', '.join(known)})" if known else ""), code="config/class-path")
    elif known is not None and isinstance(known[name], Mapping) and isinstance(init_args, Mapping):
        yield from _arguments(path, name, known[name], init_args)
        yield from _nesterov(path, {}, init_args) if name == "SGD" else ()


def _known_names(module: str, path: Path) -> Mapping[str, Any] | None:
    """Return the names in a module, with the rules of their arguments if there are some; None for other modules."""
    if module in ("hogwild.models", "hogwild.data"):
        return dict.fromkeys(import_module(module).CATALOG)  # neither imports torch
    if module == "torch.optim":
        return torch_arguments.OPTIMIZERS
    return torch_arguments.LOSSES if module == "torch.nn" and path == ("loss",) else None


def _groups(section: Any) -> Iterator[JobFinding]:
    """Check each group: its settings are the optimizer's own, except those that torch reads once for all groups."""
    if not isinstance(section, Mapping) or not isinstance(section.get("groups"), list | tuple):
        return
    module, _, name = str(section.get("class_path", SGD)).rpartition(".")
    known = torch_arguments.OPTIMIZERS.get(name) if module == "torch.optim" else None
    common = section.get("init_args", {})
    for number, group in enumerate(section["groups"]):
        path: Path = ("optimizer", "groups", number)
        own = group.get("init_args", {}) if isinstance(group, Mapping) else None
        if known is None or not isinstance(own, Mapping) or not isinstance(common, Mapping):
            continue
        yield from _arguments(path, name, {key: check for key, check in known.items() if key not in _FOR_ALL}, own)
        if name == "SGD":
            yield from _nesterov(path, common, own)


def _arguments(path: Path, name: str, known: Arguments, init_args: Mapping[str, Any]) -> Iterator[JobFinding]:
    for argument, value in init_args.items():
        here = (*path, "init_args", argument)
        if argument == "params":
            words = "is filled in with the model's parameters; remove it"
            yield JobFinding(here, words, True, "config/unknown-argument")
        elif argument in _FOR_ALL and argument not in known and argument in torch_arguments.OPTIMIZERS.get(name, ()):
            words = "applies to all groups; set it in optimizer.init_args"
            yield JobFinding(here, words, True, "config/unknown-argument")
        elif argument not in known:
            meant = meanings(argument, [f"optimizer.init_args.{one}" for one in known])
            close = f"; did you mean '{meant[0].rpartition('.')[2]}'?" if meant else did_you_mean(argument, known)
            words = f"unknown argument of {name}{close} (allowed: {', '.join(known)})"
            yield JobFinding(here, words, True, "config/unknown-argument")
        elif rule := broken_rule(known[argument], value):
            yield JobFinding(here, f"{rule}, got {show(value)}", code="config/bad-argument")


def _nesterov(path: Path, common: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check what torch.optim.SGD would raise only when it is built, and never for a group. An error of the settings
    that all groups have in common is reported there."""
    if _is_nesterov_alone({**common, **own}) and not _is_nesterov_alone(common):
        guilty = next(key for key in ("nesterov", "momentum", "dampening") if key in own)
        words = "nesterov needs a momentum > 0 and no dampening"
        yield JobFinding((*path, "init_args", guilty), words, code="config/bad-argument")


def _is_nesterov_alone(settings: Mapping[str, Any]) -> bool:
    return settings.get("nesterov") is True and bool(not settings.get("momentum") or settings.get("dampening"))


def _needs(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check fields that need a stream or validation data, a split that lanes exclude, and the length of an item."""
    accumulate, sync_every = _at(values, "train.accumulate"), _at(values, "train.sync_every")
    if type(accumulate) is int and type(sync_every) is int and accumulate * sync_every > MAX_ITEM_BATCHES >= sync_every:
        message = f"times train.accumulate must be <= {MAX_ITEM_BATCHES} batches, got {sync_every} x {accumulate}"
        yield JobFinding(("train", "sync_every"), message)
    if _at(values, "data.lanes") is None:
        for name in ("collate", "padding") if _at(values, "data.feed") == "resident" else ():
            if _at(values, f"data.{name}") is not None:
                message = "needs data.feed: stream, but the job sets resident"
                yield JobFinding(("data", name), message, True, "data/stream-only")
    elif _at(values, "data.val.fraction") is not None:
        message = "must be a separate data set with data.lanes: a random split leaves gaps in the sequence"
        yield JobFinding(("data", "val"), message)
    if _at(values, "data.sampler") is not None and _at(values, "data.val.fraction") is not None:
        message = (
            "must be a separate data set with data.sampler, whose entries are numbers of all samples of data.train"
        )
        yield JobFinding(("data", "val"), message)
    names = ("target", "patience", "every_updates", "restore_best")
    for name in names if _at(values, "data.val") is None else ():
        if _at(values, f"evaluate.{name}") not in (None, False, "auto", {}):
            message = "needs data.val, as nothing is evaluated without it; such as data.val={fraction: 0.1}"
            yield JobFinding(("evaluate", name), message, True, "config/needs-validation")


def reads_standard_input(section: Any) -> bool:
    """Return whether a data set, as a component or the map of one, is what arrives on standard input."""
    names = ("class_path", "init_args")
    given = [section.get(name) if isinstance(section, Mapping) else getattr(section, name, None) for name in names]
    return given[0] in ("hogwild.data.Follow", "hogwild.data.follow.Follow") and _at(given[1], "path") == "-"


def _standard_input(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check that standard input is training data, of one machine."""
    code = "data/standard-input"
    if reads_standard_input(_at(values, "data.val")):
        message = "must be a file: standard input can be read only once, for data.train, got '-'"
        yield JobFinding(("data", "val", "init_args", "path"), message, code=code)
    if reads_standard_input(_at(values, "data.train")) and _at(values, "cluster.engine") not in (None, "none"):
        message = "must be a file with cluster.engine: each node would have a standard input of its own, got '-'"
        yield JobFinding(("data", "train", "init_args", "path"), message, code=code)


def _kafka(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check that one machine reads a topic: which partition has the next message differs between machines."""
    is_kafka = _at(values, "data.train.class_path") in ("hogwild.data.Kafka", "hogwild.data.kafka.Kafka")
    if is_kafka and _at(values, "cluster.engine") not in (None, "none"):
        message = (
            "must not be hogwild.data.Kafka with cluster.engine: nodes would make different batches of its messages"
        )
        yield JobFinding(("data", "train", "class_path"), message)


def _metrics(section: Any) -> Iterator[JobFinding]:
    """Check that names in monitor and target are among the listed metrics; with `auto`, which depends on the loss,
    among the known ones: others must be listed."""
    if not isinstance(section, Mapping):
        return
    listed = section.get("metrics", "auto")
    listed = [listed] if isinstance(listed, str) and listed != "auto" else listed
    names = [catalog.LOSS]
    for number, metric in enumerate(listed if isinstance(listed, list) else []):
        name, where = str(metric).rpartition(".")[2], ("evaluate", "metrics", number)
        if name in catalog.RECORDED and "." in str(metric):
            rule = "evaluation records already have a field of this name; rename the function"
            yield JobFinding(where, f"{rule}, got {show(metric)}", code="config/metric-name")
        if name in names and metric != catalog.LOSS:
            yield JobFinding(where, f"must not be listed twice, got {show(metric)}", code="config/duplicate-key")
        names.append(name)
    target = section.get("target")
    goals: list[tuple[Path, Any]] = [(("monitor",), section.get("monitor"))]
    goals += [(("target", name), name) for name in target] if isinstance(target, Mapping) else []
    for path, name in goals:
        if not isinstance(name, str) or name in names or (listed == "auto" and catalog.known(name)):
            continue
        known = catalog.CATALOG if listed == "auto" else names
        rule = "must be a known metric, or be listed" if listed == "auto" else "must be listed"
        rule += " in evaluate.metrics"
        words = f"{rule}{close_word(name, known)} (known: {', '.join(known)}), got {show(name)}"
        yield JobFinding(("evaluate", *path), words, len(path) > 1, "config/unknown-metric")


def searched_metrics(job: Job, search: Search) -> Iterator[tuple[Path, str]]:
    """Yield the metrics of a search with their places."""
    for number, metric in enumerate(search.metrics(job.evaluate.monitor)):
        yield ("search", "metric", *([number] if isinstance(search.metric, list) else [])), metric


def search_findings(job: Job, search: Search) -> Iterator[JobFinding]:
    """Check what a search needs of its job, which is valid by itself."""
    for path, metric in searched_metrics(job, search):
        is_said = metric == job.evaluate.monitor and job.evaluate.mode != "auto"
        if not is_said and catalog.known(metric) is None:
            words = f"unknown whether a higher or lower {metric} is better"
            words += "; make it evaluate.monitor, and set evaluate.mode"
            yield JobFinding(path, words, True, "config/metric-direction")
        if isinstance(search.metric, list) and job.evaluate.metrics == "auto" and metric != catalog.LOSS:
            words = f"must be listed in evaluate.metrics, which is auto, got {show(metric)}"
            yield JobFinding(path, words, code="config/unknown-metric")
    if job.data.val is None:
        words = "needs data.val, such as {fraction: 0.1}: trials are compared by their evaluations"
        yield JobFinding(("search",), words, True, "config/needs-validation")
    if job.cluster.engine != "none":
        yield JobFinding(("search",), "its trials train on one machine; set cluster.engine: none", True)


# ---- synonyms: names of other frameworks and first guesses. Job files have one name for each thing; an error names it

# What is meant -> the words for it. A word may mean several things: the place decides. Names that are only similar need
# no entry, nor do fields at another level and arguments of torch's optimizers and losses. At most 20 entries.
_WORDS = {
    "class_path": "name type class cls _target_",
    "init_args": "args kwargs params arguments",
    "train.epochs": "n_epochs num_epochs max_epochs",
    "train.max_updates": "steps max_steps iterations",
    "train.procs": "workers n_jobs nproc num_workers",
    "train.grad_clip": "clip max_grad_norm gradient_clip_val",
    "data.batch_size": "bs batch",
    "data.train": "dataset train_dataset",
    "data.val": "validation val_dataset",
    "data.val.fraction": "val_split validation_split",
    "data.loaders": "num_workers",
    "optimizer.init_args.lr": "learning_rate",
    "lr_schedule": "scheduler",
    "loss": "criterion val_loss",
    "accuracy": "acc val_accuracy",
    "evaluate.patience": "early_stopping",
    "cuda": "gpu",
    "fp16": "float16 half 16",
    "true": "yes on y",
    "false": "no off n",
}
_PACKAGES = {"model": "hogwild.models", "data": "hogwild.data"}


def meanings(word: object, among: Collection[str]) -> list[str]:
    """Return those of `among` for which `word` is another name."""
    return [name for name, words in _WORDS.items() if name in among and str(word).lower() in words.split()]


def class_paths(section: str, text: str) -> list[str]:
    """Return the class paths that someone who wrote `text` in `section` (model, loss, data, optimizer) may mean."""
    name, known = _plain(text.rpartition(".")[2], section), list(_known_classes(section))
    return meanings(name, known) or [path for path in known if _plain(path.rpartition(".")[2], section) == name]


def word_for(value: Any, allowed: Collection[str]) -> str:
    """Return the allowed word that `value` is another name of; "" if there is none."""
    same = [word for word in allowed if _plain(word, "lr") == _plain(str(value), "lr")]
    return next(iter(same or meanings(value, allowed)), "")


def close_word(value: Any, allowed: Collection[str]) -> str:
    """Return what an error adds about the allowed word that is meant, or the most similar one: `; write fp32`."""
    word = word_for(value, allowed)
    return f"; write {word}" if word else did_you_mean(value, allowed) if isinstance(value, str) else ""


def _plain(text: str, ending: str) -> str:
    """Return the letters and digits of a name, in lower case, without the ending: `mse` for MSELoss of a loss."""
    return re.sub(r"[^a-z0-9]", "", text.lower()).removesuffix(ending)


def _known_classes(section: str) -> Iterator[str]:
    if section == "loss":
        yield from (f"torch.nn.{name}" for name in torch_arguments.LOSSES)
        ours = ("LogisticLoss", "HingeLoss", "NegativeSampling", "BprLoss", "WarpLoss")
        yield from (f"hogwild.losses.{name}" for name in ours)
    elif section == "optimizer":
        yield from (f"torch.optim.{name}" for name in torch_arguments.OPTIMIZERS)
        yield from ("hogwild.optimizers.RowWiseAdagrad", "hogwild.optimizers.FTRL")
    elif section in _PACKAGES:
        package = _PACKAGES[section]
        yield from (f"{package}.{name}" for name in import_module(package).CATALOG)  # neither imports torch


# ---- messages of the schema's errors: the place, the value, the rule, and the nearest correct value

_BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}
_TYPES = {
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be a map of keys and values",
    "model_type": "must be a map of keys and values",
    "finite_number": "must be finite",
}
_CODES = {  # for errors other than unknown keys, types, bounds, and our own rules, which have their own codes
    "missing": "config/missing-key",
    "literal_error": "config/unknown-choice",
    "too_short": "config/out-of-range",
    "too_long": "config/out-of-range",
    "finite_number": "config/not-finite",
}
_OPTIONS = ("resume", "run_dir", "data_dir", "profile", "dry_run", "no_progress")


def schema_findings(error: ValidationError) -> Iterator[JobFinding]:
    """Yield pydantic's errors, in the order of the schema."""
    details = error.errors(include_url=False)
    meant = {path for detail in details if _is_unknown(detail) for path in _meant(detail)}
    for detail in details:
        path = _path(detail)
        if detail["type"] == "missing" and path in meant:
            continue  # the misspelt key was reported, with this one as the suggestion
        is_key = _is_unknown(detail) or detail["loc"][-1] == "[key]"
        yield JobFinding(path, _detail_text(detail), is_key, _code(detail))


def _path(detail: ErrorDetails) -> Path:
    """Return the keys in the file: pydantic adds the tags of unions, and '[key]'."""
    path = tuple(part for part in detail["loc"] if part != "[key]" and not str(part).startswith(TAG))
    at = detail.get("ctx", {}).get("at")
    return (*path, at) if at else path


def _is_unknown(detail: ErrorDetails) -> bool:
    return detail["type"] == "extra_forbidden"


def _code(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if _is_unknown(detail):
        return "config/unknown-key"
    if kind == "rule":
        return str(detail["ctx"]["code"])
    return _CODES.get(kind, "config/out-of-range" if kind in _BOUNDS else "config/wrong-type")


def _detail_text(detail: ErrorDetails) -> str:
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    if _is_unknown(detail):
        return f"unknown key{_instead(detail)} (allowed: {', '.join(_allowed(detail))})"
    if kind == "missing":
        return "is required"
    if kind == "literal_error":
        is_class = isinstance(value, str) and "." in value and _path(detail)[0] == "search"
        return _one_of(_words_in(context["expected"]), value) + f"; write {{class_path: {value}}}" * is_class
    if kind == "too_short":
        least = context["min_length"]
        return f"must have at least {'one entry' if least == 1 else f'{least} entries'}, got {show(value)}"
    if kind == "too_long" and isinstance(value, list | tuple):
        return f"must have at most {context['max_length']} entries, got {show(value)}"
    if kind in _BOUNDS:
        key, sign = _BOUNDS[kind]
        return f"must be {sign} {context[key]:g}, got {show(value)}"
    if kind == "rule":
        return _own_rule(context, value, _path(detail))
    return f"{_TYPES.get(kind, detail['msg'])}, got {show(value)}{_what_to_write(detail)}"


def _own_rule(context: Mapping[str, Any], value: Any, path: Path) -> str:
    at = context["at"]
    if at and isinstance(value, Mapping):
        value = value.get(at)
    paths = class_paths(str(path[0]), str(value)) if path[-1] == "class_path" else []
    words = [word.strip(",") for word in str(context["message"]).split() if len(word) > 2]  # no `a`, no `or`
    close = f"; write {' or '.join(paths)}" if paths else close_word(value, words)
    return f"{context['message']}, got {show(value)}{close}"


def _one_of(allowed: list[str], value: Any) -> str:
    close = close_word(value, allowed)
    rule = f"must be one of {', '.join(allowed)}" if len(allowed) > 1 else f"must be {allowed[0]}"
    return f"{rule}, got {show(value)}{close}"


def _what_to_write(detail: ErrorDetails) -> str:
    """Return what to write instead, also for a section of which only the class, the name or the fraction was given."""
    kind, value, path = detail["type"], detail["input"], _path(detail)
    if kind == "bool_type":
        return close_word(value, ["true", "false"])
    if kind == "int_type" and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    if kind in ("int_type", "float_type") and isinstance(value, str) and re.fullmatch(r"[-+.0-9eE]+", value):
        return "; remove the quotes"
    if kind == "list_type" and isinstance(value, str | int | float):
        return f"; write [{value}]"
    if kind in ("model_type", "dict_type") and value is None:
        return "; write its keys below it, or remove it"
    if path == ("data", "val") and isinstance(value, float) and 0 < value < 1:
        return f"; write {{fraction: {value}}}"
    if kind != "model_type" or not isinstance(value, str):
        return ""
    if match := re.fullmatch(r"(\w+):(\S+)", value):
        return f"; a space is missing after the colon: {match[1]}: {match[2]}"
    fields = _section_at(detail["loc"]).model_fields
    if "class_path" in fields:
        found = [value] if "." in value else class_paths(str(path[0]), value)
        return "; write " + " or ".join(f"{{class_path: {one}}}" for one in found) if found else ""
    return f"; write {{name: {word_for(value, SCHEDULES) or value}}}" if "name" in fields else ""


def _words_in(expected: str) -> list[str]:
    return re.findall(r"'([^']*)'", expected)


def _instead(detail: ErrorDetails) -> str:
    """Return the nearest key of this section, or the field of another one that is meant."""
    here, key = _path(detail)[:-1], _path(detail)[-1]
    if key in _OPTIONS:
        return f"; it is an option of the command line: --{str(key).replace('_', '-')}"
    if meant := _meant(detail):
        shown = [f"'{path[-1] if path[:-1] == here else dotted(path)}'" for path in meant]
        return f"; did you mean {' or '.join(shown)}?"
    if "init_args" in _allowed(detail):
        return f"; an argument of the class is written below init_args: {dotted((*here, 'init_args', key))}"
    return ""


def _meant(detail: ErrorDetails) -> list[Path]:
    """Return the fields that an unknown key may mean: by another word, or almost their own name, here; by their own
    name or another word elsewhere; then similar ones, here before elsewhere."""
    path, allowed = _path(detail), _allowed(detail)
    here, key = path[:-1], str(path[-1])
    if own := meanings(key, allowed) or nearest(key, allowed, most=1, cutoff=0.8):
        return [(*here, own[0])]
    if elsewhere := [one for one in homes(key) if one != path]:  # it is another lr_schedule's
        return [one for one in elsewhere if one[:-1] == here] or elsewhere
    if close := nearest(key, allowed, most=1, cutoff=0.65):
        return [(*here, close[0])]
    close = nearest(key, _fields_by_name(), most=1, cutoff=0.8)
    return [one for one in homes(close[0]) if one != path] if close else []


def homes(name: str) -> list[Path]:
    """Return the fields of a job that someone who wrote `name` may mean: by their whole or their last name, or by
    another word."""
    name = name.replace("-", "_").lower()
    if ".init_args." in name:
        return [tuple(name.split("."))]
    fields = _fields_by_name()
    return fields.get(name) or [fields[one][0] for one in meanings(name, fields)]


@cache
def _fields_by_name() -> dict[str, list[Path]]:
    """Return the paths of all fields by whole and by last name, except fields that any section has and those in lists;
    with the arguments of torch's optimizers and losses that have no field's name."""
    found: dict[str, list[Path]] = {}
    for path in dict.fromkeys(_fields_of(Job, ())):
        if path[-1] not in ("name", "class_path", "init_args", "version"):
            for name in {dotted(path), str(path[-1])}:
                found.setdefault(name, []).append(path)
    for section, table in (("optimizer", torch_arguments.OPTIMIZERS), ("loss", torch_arguments.LOSSES)):
        for name in chain(*(arguments or () for arguments in table.values())):
            path = (section, "init_args", name)
            found.setdefault(dotted(path), found.setdefault(name, [path]))
    return found


def _fields_of(section: type[Section], above: Path) -> Iterator[Path]:
    for name, field in section.model_fields.items():
        yield (*above, name)
        for inner, _ in _members(field.annotation) if get_origin(field.annotation) not in (list, dict) else ():
            yield from _fields_of(inner, (*above, name))


def _allowed(detail: ErrorDetails) -> list[str]:
    return list(_section_at(detail["loc"][:-1]).model_fields)


def _section_at(location: tuple[int | str, ...]) -> type[Section]:
    """Return the section of the schema at pydantic's location, which includes tags."""
    here: type[Section] = Job
    options: list[tuple[type[Section], str]] = []
    is_map = False
    for part in location:
        if isinstance(part, int) or is_map:  # index of a list, key of a map: all entries have the same type
            is_map = False
            continue
        if str(part).startswith(TAG):
            here = next(section for section, tag in options if tag == part)
        else:
            annotation = here.model_fields[str(part)].annotation
            options, is_map = list(_members(annotation)), get_origin(annotation) is dict
            here = options[0][0]
    return here


def _members(annotation: Any, tag: str = "") -> Iterator[tuple[type[Section], str]]:
    """Yield the sections a field may hold, each with its union tag."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation, tag
        return
    tags = [one.tag for one in getattr(annotation, "__metadata__", ()) if isinstance(one, Tag)]
    for argument in get_args(annotation):
        yield from _members(argument, tags[0] if tags else tag)
