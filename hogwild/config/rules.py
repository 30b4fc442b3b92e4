"""Rules for a job that types cannot express: arguments of common torch classes, names in our catalogs, fields that must
agree.

They work on the raw values, so that errors are reported in the same pass as all others. Torch-free.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple

from hogwild.config import synonyms, torch_arguments
from hogwild.config.schema import SGD, Supervise
from hogwild.config.strict_yaml import Path
from hogwild.config.torch_arguments import Arguments, broken_rule
from hogwild.devices.kinds import accelerators
from hogwild.errors import did_you_mean
from hogwild.metrics import catalog as metric_names
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
    ("train.procs_max", (None,), "train.procs", 0, "no worker is started"),
    ("queue.elastic", (None,), "train.procs", 0, "no worker is started"),
    ("queue.elastic", (None,), "train.pin", True, "workers are bound to their cores"),
    ("queue.elastic", (None,), "data.lanes", _GIVEN, "a lane belongs to one worker"),
    ("data.loaders", ("auto",), "data.feed", "resident", "no loader reads during training"),
    ("data.slots", ("auto",), "data.feed", "resident", "no loader reads during training"),
    ("data.slot_bytes", ("auto",), "data.feed", "resident", "no loader reads during training"),
    ("data.shuffle", ("auto", "none"), "data.lanes", _GIVEN, "lanes are read in order"),
    ("data.feed", ("auto", "resident"), "data.lanes", _GIVEN, "lanes read rows by index"),
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
    yield from _batches_of_an_item(values)
    yield from _stream(values)
    yield from _needs_validation(values)
    yield from _metrics(values.get("evaluate"))
    yield from _torch_schedule(_at(values, "lr_schedule.name"))


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
    here, meant = (*path, "class_path"), synonyms.class_paths(str(path[0]), name)
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
            meant = synonyms.meanings(argument, [f"optimizer.init_args.{one}" for one in known])
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


def _torch_schedule(name: Any) -> Iterator[JobFinding]:
    """Refuse torch's schedulers as functions of the number of updates."""
    if str(name).rpartition(".")[0] == "torch.optim.lr_scheduler":
        words = (
            f"must be a function of the number of updates, got {name!r}; write class_path: {name}, with its init_args"
        )
        yield JobFinding(("lr_schedule", "name"), words, code="config/unknown-choice")


def _batches_of_an_item(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    accumulate, sync_every = _at(values, "train.accumulate"), _at(values, "train.sync_every")
    if type(accumulate) is int and type(sync_every) is int and accumulate * sync_every > MAX_ITEM_BATCHES >= sync_every:
        message = f"times train.accumulate must be <= {MAX_ITEM_BATCHES} batches, got {sync_every} x {accumulate}"
        yield JobFinding(("train", "sync_every"), message)


def _stream(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check fields that need a stream, and a split that lanes exclude."""
    if _at(values, "data.lanes") is None:
        for name in ("collate", "padding") if _at(values, "data.feed") == "resident" else ():
            if _at(values, f"data.{name}") is not None:
                message = "needs data.feed: stream, but the job sets resident"
                yield JobFinding(("data", name), message, True, "data/stream-only")
    elif _at(values, "data.val.fraction") is not None:
        message = "must be a separate data set with data.lanes: a random split leaves gaps in the sequence"
        yield JobFinding(("data", "val"), message)


def _needs_validation(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    if _at(values, "data.val") is not None:
        return
    for name in ("target", "patience", "every_updates"):
        if _at(values, f"evaluate.{name}"):
            message = "needs data.val, as nothing is evaluated without it; such as data.val={fraction: 0.1}"
            yield JobFinding(("evaluate", name), message, True, "config/needs-validation")


def _metrics(section: Any) -> Iterator[JobFinding]:
    """Check that names in monitor and target are among the listed metrics; with `auto`, which depends on the loss,
    among the known ones: others must be listed."""
    if not isinstance(section, Mapping):
        return
    listed = section.get("metrics", "auto")
    names = [metric_names.LOSS]
    for number, metric in enumerate(listed if isinstance(listed, list) else []):
        name, where = str(metric).rpartition(".")[2], ("evaluate", "metrics", number)
        if name in metric_names.RECORDED and "." in str(metric):
            rule = "evaluation records already have a field of this name; rename the function"
            yield JobFinding(where, f"{rule}, got {show(metric)}", code="config/metric-name")
        if name in names and metric != metric_names.LOSS:
            yield JobFinding(where, f"must not be listed twice, got {show(metric)}", code="config/duplicate-key")
        names.append(name)
    target = section.get("target")
    goals: list[tuple[Path, Any]] = [(("monitor",), section.get("monitor"))]
    goals += [(("target", name), name) for name in target] if isinstance(target, Mapping) else []
    for path, name in goals:
        if not isinstance(name, str) or name in names or (listed == "auto" and metric_names.known(name)):
            continue
        known = metric_names.CATALOG if listed == "auto" else names
        rule = "must be a known metric, or be listed" if listed == "auto" else "must be listed"
        rule += " in evaluate.metrics"
        words = f"{rule}{synonyms.close_word(name, known)} (known: {', '.join(known)}), got {show(name)}"
        yield JobFinding(("evaluate", *path), words, len(path) > 1, "config/unknown-metric")
