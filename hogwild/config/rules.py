"""Rules for a job that types cannot express: arguments of common torch classes, names in our catalogs, fields that must
agree.

They work on the raw values, so that errors are reported in the same pass as all others. Torch-free.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hogwild.config import synonyms, torch_arguments
from hogwild.config.schedules import SCHEDULES
from hogwild.config.schema import SGD, Supervise, Train
from hogwild.config.strict_yaml import Path
from hogwild.config.torch_arguments import Arguments, broken_rule
from hogwild.devices.kinds import accelerators
from hogwild.errors import did_you_mean
from hogwild.metrics import catalog as metric_names
from hogwild.scheduling.leases import MAX_ITEM_BATCHES
from hogwild.scheduling.stream_schedule import fewest_slots, too_few_slots


class JobFinding(NamedTuple):
    """An error of a job file: where, what is wrong, whether the place is the key's or the value's, and the code."""

    path: Path
    message: str
    at_key: bool = False
    code: str = "config/contradiction"


def _contradiction(path: str, rule: str, value: Any) -> JobFinding:
    """Return the finding that `value` of the field breaks a rule because of another field."""
    return JobFinding(tuple(path.split(".")), f"{rule}, got {show(value)}")


def _devices(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check that the fields about devices agree; the existing devices are known only later (`device_placement.py`)."""
    train = values.get("train")
    if not isinstance(train, Mapping):
        return
    kind = str(train.get("device", "auto")).partition(":")[0]
    placement = train.get("placement", "auto")
    if kind == "cpu" and placement in ("cuda-replica", "cuda-shared"):
        yield _contradiction("train.placement", "must be auto or cpu where train.device is cpu", placement)
    elif kind in accelerators() and placement == "cpu":
        rule = f"must be auto or cuda-replica where train.device is {kind}: parameters must be on the device"
        yield _contradiction("train.placement", rule, placement)
    yield from _device_per_worker(train)
    is_shared = placement == "cuda-shared"
    if placement == "cpu" or not (kind in accelerators() or placement == "cuda-replica" or is_shared):
        return
    exchange = (
        ("delta", "direct or auto: workers write the parameters on the device")
        if is_shared
        else ("direct", "delta or auto: each worker has a copy on its device")
    )
    for path, refused, allowed in (
        ("train.exchange", *exchange),
        ("train.update", "fused", "auto or autograd: kernels run on the CPU"),
        ("optimizer.state", "shared", "private: each worker's state is on its device"),
    ):
        if _at(values, path) == refused:
            yield _contradiction(path, f"must be {allowed} (train.device is {kind})", refused)


def _device_per_worker(train: Mapping[str, Any]) -> Iterator[JobFinding]:
    chosen, procs, device = train.get("device_per_worker"), train.get("procs"), train.get("device", "auto")
    if not isinstance(chosen, list):
        return
    here: Path = ("train", "device_per_worker")
    if device not in accelerators():
        yield JobFinding(here, f"needs train.device: cuda, without an index, got {device}", at_key=True)
    if type(procs) is int and len(chosen) != max(1, procs):
        yield JobFinding(here, f"must name one device for each of {max(1, procs)} workers, got {len(chosen)}")


# Arguments that torch reads from the constructor and never from a group.
_FOR_ALL = dict.fromkeys(
    ("differentiable", "initial_accumulator_value"), "applies to all groups; set it in optimizer.init_args"
)

_CLASS_PATHS: Mapping[str, str | None] = {
    "model": None,
    "loss": "torch.nn.CrossEntropyLoss",
    "data.train": None,
    "data.val": None,
    "optimizer": SGD,
}


def findings(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Yield all errors beyond types and ranges. `values` may have any error that the schema reports."""
    for path, default in _CLASS_PATHS.items():
        section = _at(values, path)
        if isinstance(section, Mapping):
            yield from _component(
                tuple(path.split(".")), section.get("class_path", default), section.get("init_args", {})
            )
    yield from _groups(values.get("optimizer"))
    yield from _enough_workers(values)
    yield from _deadlines(values)
    yield from _most_workers(values)
    yield from _elastic(values)
    yield from _spares(values)
    yield from _exchange(values)
    yield from _cluster(values)
    yield from _lanes(values)
    yield from _stream(values)
    yield from _slots(values)
    yield from _needs_validation(values)
    yield from _devices(values)
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
    if not isinstance(class_path, str):
        return
    module, _, name = class_path.rpartition(".")
    here: Path = (*path, "class_path")
    if module in ("hogwild.models", "hogwild.data"):
        yield from _catalogued(here, module, name)
    elif module == "torch.optim":
        yield from _optimizer(path, name, init_args)
    elif module == "torch.nn" and path == ("loss",):
        yield from _loss(path, name, init_args)
    elif module == "torch" and (meant := synonyms.class_paths(str(path[0]), name)):
        words = f"torch has no {name!r}; write {' or '.join(meant)}"
        yield JobFinding(here, words, code="config/class-path")


def _catalogued(here: Path, module: str, name: str) -> Iterator[JobFinding]:
    # An import by name, because only here it is known which of the two packages is meant. Neither imports torch.
    from importlib import import_module

    catalog: Mapping[str, str] = import_module(module).CATALOG
    if name not in catalog:
        words = f"{module} has no {name!r}{did_you_mean(name, catalog)} (it has: {', '.join(catalog)})"
        yield JobFinding(here, words, code="config/class-path")


def _optimizer(path: Path, name: str, init_args: Any) -> Iterator[JobFinding]:
    here = (*path, "class_path")
    if name == "LBFGS":
        words = "needs a closure that evaluates the loss several times; a worker applies one gradient"
        yield JobFinding(here, f"torch.optim.{name} {words}", code="optimizer/closure")
    elif name not in torch_arguments.OPTIMIZERS:
        known = torch_arguments.OPTIMIZERS
        words = f"torch.optim has no {name!r}{did_you_mean(name, known)} (known: {', '.join(known)})"
        yield JobFinding(here, words, code="config/class-path")
    elif isinstance(init_args, Mapping):
        yield from _arguments(path, name, torch_arguments.OPTIMIZERS[name], init_args)
        if name == "SGD":
            yield from _nesterov(path, init_args)


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
            yield from _nesterov_of_group(path, common, own)


def _nesterov_of_group(path: Path, common: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Report an error of the group's own settings; errors of `init_args` alone are reported there."""
    if not any(_nesterov(path, common)):
        guilty = next((key for key in ("nesterov", "momentum", "dampening") if key in own), "nesterov")
        for _, message, is_key, code in _nesterov(path, {**common, **own}):
            yield JobFinding((*path, "init_args", guilty), f"nesterov {message}", is_key, code)


def _loss(path: Path, name: str, init_args: Any) -> Iterator[JobFinding]:
    if name in torch_arguments.LOSSES:
        known = torch_arguments.LOSSES[name]
        if known is not None and isinstance(init_args, Mapping):
            yield from _arguments(path, name, known, init_args)
    else:
        meant = synonyms.class_paths("loss", name)
        close = f"; write {' or '.join(meant)}" if meant else did_you_mean(name, torch_arguments.LOSSES)
        message = f"torch.nn has no loss {name!r}{close} (known: {', '.join(torch_arguments.LOSSES)})"
        yield JobFinding((*path, "class_path"), message, code="config/class-path")


def _arguments(path: Path, name: str, known: Arguments, init_args: Mapping[str, Any]) -> Iterator[JobFinding]:
    for argument, value in init_args.items():
        here = (*path, "init_args", argument)
        if argument == "params":
            words = "is filled in with the model's parameters; remove it"
            yield JobFinding(here, words, True, "config/unknown-argument")
        elif argument in _FOR_ALL and argument not in known and argument in torch_arguments.OPTIMIZERS.get(name, ()):
            yield JobFinding(here, _FOR_ALL[argument], True, "config/unknown-argument")
        elif argument not in known:
            meant = synonyms.meanings(argument, [f"optimizer.init_args.{one}" for one in known])
            close = f"; did you mean '{meant[0].rpartition('.')[2]}'?" if meant else did_you_mean(argument, known)
            words = f"unknown argument of {name}{close} (allowed: {', '.join(known)})"
            yield JobFinding(here, words, True, "config/unknown-argument")
        elif rule := broken_rule(known[argument], value):
            yield JobFinding(here, f"{rule}, got {show(value)}", code="config/bad-argument")


def _nesterov(path: Path, init_args: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check what torch.optim.SGD would raise only when it is built."""
    if init_args.get("nesterov") is True and (not init_args.get("momentum") or init_args.get("dampening")):
        here = (*path, "init_args", "nesterov")
        yield JobFinding(here, "needs a momentum > 0 and no dampening", code="config/bad-argument")


def _torch_schedule(name: Any) -> Iterator[JobFinding]:
    """Refuse torch's schedulers as functions of the number of updates."""
    module, _, last = str(name).rpartition(".")
    if module == "torch.optim.lr_scheduler":
        word = synonyms.word_for(last, SCHEDULES)
        rule = f"must be one of {', '.join(SCHEDULES)}, or your own function of the number of updates"
        meant = f"class_path: {name}, with its init_args" + (f"; or {word}" if word else "")
        words = f"{rule}: torch's schedulers need an optimizer, got {last!r}; write {meant}"
        yield JobFinding(("lr_schedule", "name"), words, code="config/unknown-choice")


def _enough_workers(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    procs, least = _at(values, "train.procs"), _at(values, "supervise.min_workers")
    if type(procs) is int and type(least) is int and 0 < procs < least:
        yield _contradiction("supervise.min_workers", f"must be <= train.procs ({procs})", least)


def _deadlines(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check the deadlines, of which the file may give both or one: the defaults agree. The error is at the grace if the
    file gives one."""
    given = values.get("supervise")
    given = given if isinstance(given, Mapping) else {}
    grace_s, deadline_s = (
        given.get(name, Supervise.model_fields[name].default) for name in ("grace_s", "deadlock_timeout_s")
    )
    if type(grace_s) not in (int, float) or type(deadline_s) not in (int, float) or not grace_s > deadline_s > 0:
        return
    if "grace_s" in given:
        default = "" if "deadlock_timeout_s" in given else ", the default"
        rule = f"must be <= supervise.deadlock_timeout_s ({deadline_s:g}{default})"
        yield _contradiction("supervise.grace_s", rule, grace_s)
    else:
        rule = f"must be >= supervise.grace_s ({grace_s:g}, the default)"
        yield _contradiction("supervise.deadlock_timeout_s", rule, deadline_s)


def _most_workers(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check that `train.procs_max` leaves room for the workers that the job begins with."""
    procs, most = _at(values, "train.procs"), _at(values, "train.procs_max")
    if type(procs) is not int or type(most) is not int:
        return
    if procs == 0:
        yield _contradiction("train.procs_max", "must be null where train.procs is 0: no worker is started", most)
    elif most < procs:
        yield _contradiction("train.procs_max", f"must be >= train.procs ({procs})", most)


def _elastic(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check that a job which asks for changing cores can be resized."""
    elastic = _at(values, "queue.elastic")
    if not isinstance(elastic, Mapping):
        return
    for path, value, rule in (
        ("train.procs", 0, "no worker is started"),
        ("train.pin", True, "workers are bound to their cores"),
    ):
        if (found := _at(values, path)) == value and type(found) is type(value):
            yield _contradiction("queue.elastic", f"must be null where {path} is {show(value)}: {rule}", elastic)
    if _at(values, "data.lanes") is not None:
        yield _contradiction("queue.elastic", "must be null with data.lanes: a lane belongs to one worker", elastic)
    least, most = elastic.get("min", 1), elastic.get("max", "auto")
    if type(least) is int and type(most) is int and least > most:
        yield _contradiction("queue.elastic.min", f"must be <= queue.elastic.max ({most})", least)


def _spares(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check that spare processes can be needed."""
    spares = _at(values, "supervise.spares")
    if type(spares) is not int or spares <= 0:
        return
    for path in ("train.procs", "supervise.max_restarts"):
        value = _at(values, path)
        if type(value) is int and value == 0:
            yield _contradiction("supervise.spares", f"must be 0 where {path} is 0: no worker is ever replaced", spares)


def _exchange(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    if _at(values, "train.exchange") == "delta" and _at(values, "optimizer.state") == "shared":
        rule = "must be direct where optimizer.state is shared: a shared state needs shared parameters"
        yield _contradiction("train.exchange", rule, "delta")
    accumulate, sync_every = _at(values, "train.accumulate"), _at(values, "train.sync_every")
    if type(accumulate) is int and type(sync_every) is int and accumulate * sync_every > MAX_ITEM_BATCHES >= sync_every:
        message = f"times train.accumulate must be <= {MAX_ITEM_BATCHES} batches, got {sync_every} x {accumulate}"
        yield JobFinding(("train", "sync_every"), message)


def _stream(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check that a job without a stream sets no fields of a stream."""
    if _at(values, "data.feed") != "resident":
        return
    for path in ("data.loaders", "data.slots", "data.slot_bytes"):
        value = values["data"].get(path.removeprefix("data."), "auto")
        if value != "auto":
            rule = "has no effect with data.feed: resident, where no loader reads during training"
            yield _contradiction(path, rule, value)
    for path in ("data.collate", "data.padding"):
        if _at(values, path) is not None and _at(values, "data.lanes") is None:
            message = "needs data.feed: stream, but the job sets resident"
            yield JobFinding(tuple(path.split(".")), message, True, "data/stream-only")


def _slots(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check the slots of a stream whose processes the job file counts; others are counted at the start."""
    slots, procs, loaders = (_at(values, path) for path in ("data.slots", "train.procs", "data.loaders"))
    loaders = procs if loaders in (None, "auto") else loaders
    batches = _exchanged(_at(values, "train.accumulate"))
    if _at(values, "train.exchange") == "delta":
        batches *= _exchanged(_at(values, "train.sync_every"), Train.model_fields["sync_every"].default)
    counts = [one for one in (slots, procs, loaders) if type(one) is int and one > 0]
    is_streamed = _at(values, "data.feed") == "stream" and _at(values, "data.lanes") is None
    if is_streamed and len(counts) == 3 and slots < (least := fewest_slots(procs, loaders, batches)):
        yield JobFinding(("data", "slots"), too_few_slots(slots, least, procs, loaders, batches))


def _exchanged(value: Any, default: int = 1) -> int:
    return value if type(value) is int and value > 0 else default


def _needs_validation(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    if _at(values, "data.val") is not None:
        return
    for name in ("target", "patience", "every_updates"):
        if _at(values, f"evaluate.{name}"):
            message = "needs data.val, as nothing is evaluated without it; such as data.val={fraction: 0.1}"
            yield JobFinding(("evaluate", name), message, True, "config/needs-validation")


def _cluster(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check the fields that a cluster excludes; what torchrun must have set is known only when the job starts."""
    if _at(values, "cluster.engine") != "torchrun":
        return
    for path, refused, allowed in (
        ("train.procs", 0, "1 or more: the parent exchanges with the other nodes while workers train"),
        ("train.placement", "cuda-shared", "auto, cpu or cuda-replica: nodes exchange parameters in host memory"),
        ("supervise.on_nan", "rollback", "skip or fail: nodes cannot go back to a checkpoint one by one"),
    ):
        value = _at(values, path)
        if value == refused and type(value) is type(refused):
            yield _contradiction(path, f"must be {allowed} (cluster.engine is torchrun)", value)


def _lanes(values: Mapping[str, Any]) -> Iterator[JobFinding]:
    """Check the fields that lanes exclude: they are an order of consecutive rows, one batch after the other."""
    lanes = _at(values, "data.lanes")
    if type(lanes) is not int:
        return
    procs, accumulate = _at(values, "train.procs"), _at(values, "train.accumulate")
    shuffle, feed, val = (_at(values, f"data.{name}") for name in ("shuffle", "feed", "val"))
    if isinstance(shuffle, str) and shuffle not in ("auto", "none"):
        yield _contradiction("data.shuffle", "must be auto or none with data.lanes: lanes are read in order", shuffle)
    if isinstance(feed, str) and feed not in ("auto", "resident"):
        yield _contradiction("data.feed", "must be auto or resident with data.lanes: lanes read rows by index", feed)
    if isinstance(val, Mapping) and "fraction" in val:
        message = "must be a separate data set with data.lanes: a random split leaves gaps in the sequence"
        yield JobFinding(("data", "val"), message)
    if type(accumulate) is int and accumulate > 1:
        rule = "must be 1 with data.lanes: the state is passed on after each batch"
        yield _contradiction("train.accumulate", rule, accumulate)
    if type(procs) is int and procs > lanes:
        rule = f"must be >= train.procs ({procs}): a worker without a lane has nothing to do"
        yield _contradiction("data.lanes", rule, lanes)


def _metrics(section: Any) -> Iterator[JobFinding]:
    """Check that names in monitor and target are among the listed metrics; with `auto`, which depends on the loss,
    among the known ones: others must be listed."""
    if not isinstance(section, Mapping):
        return
    listed = section.get("metrics", "auto")
    names = [metric_names.LOSS]
    for number, metric in enumerate(listed if isinstance(listed, list) else []):
        name = str(metric).rpartition(".")[2]
        if name in metric_names.RECORDED and "." in str(metric):
            rule = "evaluation records already have a field of this name; rename the function"
            yield JobFinding(("evaluate", "metrics", number), f"{rule}, got {show(metric)}", code="config/metric-name")
        if name in names and metric != metric_names.LOSS:
            where = ("evaluate", "metrics", number)
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
