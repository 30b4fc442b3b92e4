"""Rules for a job that types cannot express: arguments of common torch classes, names in our catalogs, fields that must
agree.

They work on the raw values, so that errors are reported in the same pass as all others. Torch-free.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from hogwild.config import torch_arguments
from hogwild.config.schema import SGD, Supervise
from hogwild.config.strict_yaml import Path
from hogwild.config.torch_arguments import Check
from hogwild.devices.kinds import accelerators
from hogwild.errors import did_you_mean
from hogwild.metrics import catalog as metric_names
from hogwild.scheduling.leases import MAX_ITEM_BATCHES

Finding = tuple[Path, str, bool, str]
"""Where, what is wrong, whether the place is the key's (True) or the value's (False), and the code."""

CONTRADICTION = "config/contradiction"


def _devices(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that the fields about devices agree; the existing devices are known only later (`device_placement.py`)."""
    train, optimizer = values.get("train"), values.get("optimizer")
    if not isinstance(train, Mapping):
        return
    kind = str(train.get("device", "auto")).partition(":")[0]
    placement = train.get("placement", "auto")
    yield from _placement(kind, placement)
    yield from _workers(train, kind)
    is_shared = placement == "cuda-shared"
    if placement == "cpu" or not (kind in accelerators() or placement == "cuda-replica" or is_shared):
        return
    state = optimizer.get("state") if isinstance(optimizer, Mapping) else None
    for path, value, rule in (
        (
            ("train", "exchange"),
            train.get("exchange"),
            ("delta", "direct or auto: workers write the parameters on the device")
            if is_shared
            else ("direct", "delta or auto: each worker has a copy on its device"),
        ),
        (("train", "update"), train.get("update"), ("fused", "auto or autograd: kernels run on the CPU")),
        (("optimizer", "state"), state, ("shared", "private: each worker's state is on its device")),
    ):
        if value == rule[0]:
            yield path, f"must be {rule[1]} (train.device is {kind}), got {value!r}", False, CONTRADICTION


def _placement(kind: str, placement: Any) -> Iterator[Finding]:
    if kind == "cpu" and placement in ("cuda-replica", "cuda-shared"):
        rule = "must be auto or cpu where train.device is cpu"
    elif kind in accelerators() and placement == "cpu":
        rule = f"must be auto or cuda-replica where train.device is {kind}: parameters must be on the device"
    else:
        return
    yield ("train", "placement"), f"{rule}, got {placement!r}", False, CONTRADICTION


def _workers(train: Mapping[str, Any], kind: str) -> Iterator[Finding]:
    chosen, procs, device = train.get("device_per_worker"), train.get("procs"), train.get("device", "auto")
    if not isinstance(chosen, list):
        return
    here: Path = ("train", "device_per_worker")
    if device not in accelerators():
        yield (
            here,
            f"needs train.device: cuda, without an index, got {device}",
            True,
            CONTRADICTION,
        )
    if type(procs) is int and len(chosen) != max(1, procs):
        yield here, f"must name one device for each of {max(1, procs)} workers, got {len(chosen)}", False, CONTRADICTION


# Arguments that torch reads from the constructor and never from a group.
_FOR_ALL = dict.fromkeys(
    ("differentiable", "initial_accumulator_value"),
    "applies to all groups; set it in optimizer.init_args",
)

_CLASS_PATHS: Mapping[Path, str | None] = {
    ("model",): None,
    ("loss",): "torch.nn.CrossEntropyLoss",
    ("data", "train"): None,
    ("data", "val"): None,
    ("optimizer",): SGD,
}


def findings(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield all errors beyond types and ranges. `values` may have any error that the schema reports."""
    for path, default in _CLASS_PATHS.items():
        section = _at(values, path)
        if isinstance(section, Mapping):
            yield from _component(path, section.get("class_path", default), section.get("init_args", {}))
    yield from _groups(_at(values, ("optimizer",)))
    yield from _enough_workers(values)
    yield from _deadlines(values)
    yield from _spares(values)
    yield from _exchange(values)
    yield from _lanes(values)
    yield from _stream(values)
    yield from _devices(values)
    yield from _metrics(_at(values, ("evaluate",)))


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


def _at(values: Any, path: Path) -> Any:
    for part in path:
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _component(path: Path, class_path: Any, init_args: Any) -> Iterator[Finding]:
    if not isinstance(class_path, str):
        return
    module, _, name = class_path.rpartition(".")
    here = (*path, "class_path")
    if module in ("hogwild.models", "hogwild.data"):
        yield from _catalogued(here, module, name)
    elif module == "torch.optim":
        yield from _optimizer(path, name, init_args)
    elif module == "torch.nn" and path == ("loss",):
        yield from _loss(path, name, init_args)


def _catalogued(here: Path, module: str, name: str) -> Iterator[Finding]:
    # An import by name, because only here it is known which of the two packages is meant. Neither imports torch.
    from importlib import import_module

    catalog: Mapping[str, str] = import_module(module).CATALOG
    if name not in catalog:
        known = ", ".join(catalog)
        yield (
            here,
            f"{module} has no {name!r}{did_you_mean(name, catalog)} (it has: {known})",
            False,
            "config/class-path",
        )


def _optimizer(path: Path, name: str, init_args: Any) -> Iterator[Finding]:
    here = (*path, "class_path")
    if name in torch_arguments.REFUSED:
        yield (
            here,
            f"torch.optim.{name} {torch_arguments.REFUSED[name]}",
            False,
            "optimizer/closure" if name == "LBFGS" else "config/class-path",
        )
    elif name not in torch_arguments.OPTIMIZERS:
        known = torch_arguments.OPTIMIZERS
        words = f"torch.optim has no {name!r}{did_you_mean(name, known)} (known: {', '.join(known)})"
        yield here, words, False, "config/class-path"
    elif isinstance(init_args, Mapping):
        yield from _arguments(path, name, torch_arguments.OPTIMIZERS[name], init_args)
        if name == "SGD":
            yield from _nesterov(path, init_args)


def _groups(section: Any) -> Iterator[Finding]:
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
            yield from _nesterov_of_group(path, common, own)


def _nesterov_of_group(path: Path, common: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[Finding]:
    """Report an error of the group's own settings; errors of `init_args` alone are reported there."""
    if not any(_nesterov(path, common)):
        guilty = next((key for key in ("nesterov", "momentum", "dampening") if key in own), "nesterov")
        for _, message, is_key, code in _nesterov(path, {**common, **own}):
            yield (*path, "init_args", guilty), f"nesterov {message}", is_key, code


def _loss(path: Path, name: str, init_args: Any) -> Iterator[Finding]:
    if name in torch_arguments.LOSSES:
        if isinstance(init_args, Mapping):
            yield from _arguments(path, name, torch_arguments.LOSSES[name], init_args)
    elif name not in torch_arguments.UNCHECKED_LOSSES:
        known = torch_arguments.LOSSES
        message = f"torch.nn has no loss {name!r}{did_you_mean(name, known)} (known: {', '.join(known)})"
        yield (*path, "class_path"), message, False, "config/class-path"


def _arguments(path: Path, name: str, known: Mapping[str, Check], init_args: Mapping[str, Any]) -> Iterator[Finding]:
    for argument, value in init_args.items():
        here = (*path, "init_args", argument)
        if argument in torch_arguments.FILLED_IN:
            yield here, torch_arguments.FILLED_IN[argument], True, "config/unknown-argument"
        elif argument in _FOR_ALL and argument not in known and argument in torch_arguments.OPTIMIZERS.get(name, ()):
            yield here, _FOR_ALL[argument], True, "config/unknown-argument"
        elif argument not in known:
            allowed = ", ".join(known)
            close = did_you_mean(argument, known)
            yield here, f"unknown argument of {name}{close} (allowed: {allowed})", True, "config/unknown-argument"
        elif rule := known[argument](value):
            yield here, f"{rule}, got {show(value)}", False, "config/bad-argument"


def _nesterov(path: Path, init_args: Mapping[str, Any]) -> Iterator[Finding]:
    """Check what torch.optim.SGD would raise only when it is built."""
    if init_args.get("nesterov") is True and (not init_args.get("momentum") or init_args.get("dampening")):
        yield (*path, "init_args", "nesterov"), "needs a momentum > 0 and no dampening", False, "config/bad-argument"


def _enough_workers(values: Mapping[str, Any]) -> Iterator[Finding]:
    procs, least = _at(values, ("train", "procs")), _at(values, ("supervise", "min_workers"))
    if type(procs) is int and type(least) is int and 0 < procs < least:
        yield (
            ("supervise", "min_workers"),
            f"must be <= train.procs ({procs}), got {least}",
            False,
            CONTRADICTION,
        )


def _deadlines(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Check the deadlines, of which the file may give both or one: the defaults agree. The error is at the grace if the
    file gives one."""
    given = _at(values, ("supervise",))
    given = given if isinstance(given, Mapping) else {}
    grace_s, deadline_s = (given.get(name, _default(name)) for name in ("grace_s", "deadlock_timeout_s"))
    if type(grace_s) not in (int, float) or type(deadline_s) not in (int, float) or not grace_s > deadline_s > 0:
        return
    if "grace_s" in given:
        default = "" if "deadlock_timeout_s" in given else ", the default"
        message = f"must be <= supervise.deadlock_timeout_s ({deadline_s:g}{default}), got {show(grace_s)}"
        yield ("supervise", "grace_s"), message, False, CONTRADICTION
    else:
        message = f"must be >= supervise.grace_s ({grace_s:g}, the default), got {show(deadline_s)}"
        yield ("supervise", "deadlock_timeout_s"), message, False, CONTRADICTION


def _default(name: str) -> Any:
    return Supervise.model_fields[name].default


def _spares(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that spare processes can be needed."""
    spares = _at(values, ("supervise", "spares"))
    if type(spares) is not int or spares <= 0:
        return
    for path in (("train", "procs"), ("supervise", "max_restarts")):
        value = _at(values, path)
        if type(value) is int and value == 0:
            message = f"must be 0 where {'.'.join(path)} is 0: no worker is ever replaced, got {spares}"
            yield ("supervise", "spares"), message, False, CONTRADICTION


def _exchange(values: Mapping[str, Any]) -> Iterator[Finding]:
    if _at(values, ("train", "exchange")) == "delta" and _at(values, ("optimizer", "state")) == "shared":
        message = "must be direct where optimizer.state is shared: a shared state needs shared parameters"
        yield ("train", "exchange"), f"{message}, got 'delta'", False, CONTRADICTION
    accumulate, sync_every = (_at(values, ("train", name)) for name in ("accumulate", "sync_every"))
    if type(accumulate) is int and type(sync_every) is int and accumulate * sync_every > MAX_ITEM_BATCHES >= sync_every:
        yield (
            ("train", "sync_every"),
            f"times train.accumulate must be <= {MAX_ITEM_BATCHES} batches, got {sync_every} x {accumulate}",
            False,
            CONTRADICTION,
        )


def _stream(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Check that a job without a stream sets no fields of a stream."""
    data = _at(values, ("data",))
    if not isinstance(data, Mapping) or data.get("feed") != "resident":
        return
    for name, default in (("loaders", "auto"), ("slots", "auto"), ("slot_bytes", "auto")):
        value = data.get(name, default)
        if value != default:
            message = (
                f"has no effect with data.feed: resident, where no loader reads during training, got {show(value)}"
            )
            yield ("data", name), message, False, CONTRADICTION


def _lanes(values: Mapping[str, Any]) -> Iterator[Finding]:
    """Check the fields that lanes exclude: they are an order of consecutive rows, one batch after the other."""
    lanes = _at(values, ("data", "lanes"))
    if type(lanes) is not int:
        return
    procs, accumulate = _at(values, ("train", "procs")), _at(values, ("train", "accumulate"))
    shuffle, feed, val = (_at(values, ("data", name)) for name in ("shuffle", "feed", "val"))
    if isinstance(shuffle, str) and shuffle not in ("auto", "none"):
        message = f"must be auto or none with data.lanes: lanes are read in order, got {show(shuffle)}"
        yield ("data", "shuffle"), message, False, CONTRADICTION
    if isinstance(feed, str) and feed not in ("auto", "resident"):
        message = f"must be auto or resident with data.lanes: lanes read rows by index, got {show(feed)}"
        yield ("data", "feed"), message, False, CONTRADICTION
    if isinstance(val, Mapping) and "fraction" in val:
        message = "must be a separate data set with data.lanes: a random split leaves gaps in the sequence"
        yield ("data", "val"), message, False, CONTRADICTION
    if type(accumulate) is int and accumulate > 1:
        message = f"must be 1 with data.lanes: the state is passed on after each batch, got {accumulate}"
        yield ("train", "accumulate"), message, False, CONTRADICTION
    if type(procs) is int and procs > lanes:
        message = f"must be >= train.procs ({procs}): a worker without a lane has nothing to do, got {lanes}"
        yield ("data", "lanes"), message, False, CONTRADICTION


def _metrics(section: Any) -> Iterator[Finding]:
    """Check that names in monitor and target are among the listed metrics; with `auto`, which depends on the loss,
    among the known ones: others must be listed."""
    if not isinstance(section, Mapping):
        return
    listed = section.get("metrics", "auto")
    names = [metric_names.LOSS]
    for number, metric in enumerate(listed if isinstance(listed, list) else []):
        name = str(metric).rpartition(".")[2]
        if name in names and metric != metric_names.LOSS:
            where = ("evaluate", "metrics", number)
            yield where, f"must not be listed twice, got {show(metric)}", False, "config/duplicate-key"
        names.append(name)
    target = section.get("target")
    goals: list[tuple[Path, Any]] = [(("monitor",), section.get("monitor"))]
    goals += [(("target", name), name) for name in target] if isinstance(target, Mapping) else []
    for path, name in goals:
        if not isinstance(name, str) or name in names or (listed == "auto" and metric_names.known(name)):
            continue
        known = metric_names.CATALOG if listed == "auto" else names
        rule = "must be a known metric, or be listed in evaluate.metrics" if listed == "auto" else _LISTED
        words = f"{rule}{did_you_mean(name, known)} (known: {', '.join(known)}), got {show(name)}"
        yield ("evaluate", *path), words, len(path) > 1, "config/unknown-metric"


_LISTED = "must be listed in evaluate.metrics"
