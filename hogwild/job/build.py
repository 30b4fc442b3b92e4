"""Build of the trained objects from a checked job file, in the supervisor, before workers start: model, loss, optimizer
and data, checked so that predictable failures occur before the start (`checks.py`).

`build` makes them from class paths, `from_objects` takes the objects of a library caller.
"""

import math
from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

from hogwild.config.load import Job
from hogwild.config.schema import Component, OwnSchedule, Split, TorchSchedule
from hogwild.data.locate import set_data_dir
from hogwild.data.vector_file import unwritable
from hogwild.devices.discovery import require_cpu
from hogwild.errors import HogwildError, ModelError, UsageError
from hogwild.feeds.packed import kinds_of
from hogwild.feeds.row_reader import InTurn, Reader
from hogwild.formatting import counted
from hogwild.job.data import (
    check_length,
    count_classes,
    match_names,
    names_of,
    pack,
    packs,
    require_fitting,
    sizes_for,
    sources_of,
)
from hogwild.job.facts import complete
from hogwild.job.gradient_check import SAMPLES as GRADIENT_SAMPLES
from hogwild.job.gradient_check import check_gradients
from hogwild.job.identity import identified, in_thread, read_names
from hogwild.job.initial_values import held_out_notes, known_names, load_initial
from hogwild.job.known_rows import NamedRows
from hogwild.job.parameter_groups import freeze_parameters, late_parameters, param_groups, require_trained
from hogwild.job.parts import Functions, Parts, batch_of, check_ranked, inspect
from hogwild.job.row_names import NOTHING_KNOWN, KnownNames
from hogwild.job.update_choice import UpdateChoice, choose
from hogwild.job.weights import balance, build_loss, is_balanced, weighted_loss
from hogwild.metrics.panel import Panel
from hogwild.metrics.popularity import popularity
from hogwild.nn import cut_to_use
from hogwild.parameters.checks import check_rule, check_tensors
from hogwild.parameters.shared_model import SharedModel
from hogwild.parameters.structure_file import check_apart
from hogwild.parameters.worker_model import WorkerModel
from hogwild.planning.device_placement import is_open, planned
from hogwild.planning.job_plan import JobPlan, updates_of
from hogwild.scheduling.batch_plan import EpochPlan, StreamPlan
from hogwild.training import lr_schedule
from hogwild.training.autograd_update import AutogradUpdate
from hogwild.training.outputs import described
from hogwild.training.torch_schedule import SteppedScheduler
from hogwild.training.torch_settings import sparing_the_compiler
from hogwild.user_code import build as build_component
from hogwild.user_code import raised_text

SPARES = (
    "supervise.spares has no effect and goes with the next version: every replacement starts in a tenth of a second"
)
NO_KERNEL = UpdateChoice(None, "autograd: compiled kernels run on the CPU only", is_worth_saying=False)


def build(plan: JobPlan, data_dir: Path | None, reader: Reader | None = None, *, run: Path | None = None) -> Parts:
    """Import and call the classes that the job file names, in a fixed order under the job's seed. `reader` loads the
    data into memory; by default this process, row by row. `run`: the directory of the run that is resumed or evaluated:
    a checkpoint's values follow, so `model.init_from` is not read."""
    job = plan.job
    if data_dir is not None:
        set_data_dir(data_dir)
    reader = reader or InTurn(job.seed)
    known = NOTHING_KNOWN
    if job.model.init_from is not None:
        known = known_names(job.model.init_from) if run is None else KnownNames.of_run(read_names(run))
    data = pack(job, reader, known)
    torch.manual_seed(job.seed)
    require_fitting(job.model, data.made)
    count_classes(job.model, data.made)
    model = build_component(job.model, **sizes_for(job.model, data.sizes))
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"model.class_path {job.model.class_path} returned a {type(model).__name__}, not an nn.Module",
            code="model/not-a-module",
        )
    loss = build_loss(job.loss)
    started = None
    if run is None and job.model.init_from is not None:
        names = names_of(data.made, data.train)
        started = load_initial(model, job.model.init_from, names, job.model, data.unseen)
    frozen = freeze_parameters(model, job.model.freeze)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ModelError(
            f"{job.model.class_path} has no parameter to train" + (" after model.freeze" if frozen else ""),
            code="model/no-parameters",
        )
    groups = job.optimizer.groups
    with cut_to_use(model):  # some write all of their state at once
        optimizer = build_component(job.optimizer, param_groups(model, groups) if groups else trainable)
    generator = torch.get_rng_state() if data.made is None else None
    train: Any = data.train or (build_component(job.data.train) if data.made is None else data.made)
    val: Any = data.val or job.data.val
    if isinstance(val, Component):
        val = build_component(val)
    parts = from_objects(plan, model, loss, optimizer, train, val, Functions.of(job), reader, generator)
    if started is not None:
        parts.notes[:0] = [started.give_state(model, optimizer), *held_out_notes(job, parts.train.packed)]
    parts.component = job.model
    if job.data.val == job.data.train and not packs(train):
        parts.notes.append("data.val is data.train itself: the figures are of what was trained on")
    if parts.names is not None and data.unseen:
        parts.names["unseen"] = data.unseen
    return parts


def from_objects(
    plan: JobPlan,
    model: nn.Module,
    loss: Any,
    optimizer: torch.optim.Optimizer,
    train: Dataset,
    val: Dataset | Split | None,
    functions: Functions | None = None,
    reader: Reader | None = None,
    generator: Tensor | None = None,
) -> Parts:
    """Divide and check the data and try one forward pass. Raises BuildError for a job that cannot be trained.
    `functions`: default: those that the job names. `generator`: torch's random state before a class path made `train`;
    None if the data set is the caller's own object."""
    job = plan.job
    check_rule(optimizer)
    require_cpu(model.named_parameters(), "the model")
    functions = functions or Functions.of(job)
    reader = reader or InTurn(job.seed)
    match_names(train, val)
    source, held_back, notes = sources_of(plan, model, loss, train, val, functions, reader, generator)
    check_length(job, source.plan)
    on_data = getattr(model, "on_data", None)
    if source.packed is not None and callable(on_data):
        kept = held_back.packed if held_back else None
        with torch.no_grad():
            on_data(source.packed.arrays(), kept.arrays() if kept is not None else None)
    names, on_names = names_of(train, source.packed), getattr(model, "on_names", None)
    if source.streamed is not None and source.streamed.padded:  # predictions pad the same fields
        names = (names or {"sizes": {}, "names": {}}) | {"padded": [*source.streamed.padded]}
    if names is not None and callable(on_names):
        on_names(names["names"])
    choose_penalty = getattr(model, "choose_penalty", None)
    if source.packed is not None and callable(choose_penalty):
        notes += filter(None, [choose_penalty(source.packed.arrays(), loss, optimizer)])
    loss = weighted_loss(loss, source, held_back, notes, is_split=isinstance(val, Split))
    if is_balanced(job.loss):
        balance(loss, source, notes)
    panel = Panel.of(functions.metrics, model, loss)
    if held_back is not None:
        check_ranked(panel, source, held_back)
    if job.supervise.spares:
        notes.append(SPARES)
    parts = Parts(model, loss, optimizer, source, held_back, panel, notes=notes)
    if plan.devices and not is_open(job):
        parts.choice = NO_KERNEL
    else:
        parts.choice = choose(job, model, loss, optimizer, source.packed, source.streamed)
    parts.names = names
    parts.identified = identified(
        parts.names, train=(source, train), val=(held_back, train if isinstance(val, Split) else val)
    )
    if source.packed is not None and kinds_of(source.packed):
        parts.known = in_thread(NamedRows.of_data, copy(source), copy(held_back), names)
    parts.late = late_parameters(model, job.model.freeze)
    never = require_trained(model, optimizer, parts.late, updates_of(job, source.plan))
    parts.notes += [never] if never else []
    words = names["names"].get("words", ()) if names is not None and hasattr(model, "vectors") else ()
    if bad := unwritable(words):
        parts.notes.append(
            f"{counted(len(bad), 'word')} such as {bad[0]!r} cannot be written in word2vec's formats: `hogwild export "
            "--format word2vec` will refuse this model's vectors; give each a name of its own to export them"
        )
    parts.transform = functions.transform
    parts.stepped = _stepped(job, parts, functions.schedule)
    parts.curve = _own_curve(job, functions.schedule) if parts.stepped is None else None
    inspect(job, parts, reader)
    if (ranked := parts.panel.ranked) and source.packed is not None and held_back and held_back.packed is not None:
        pairs, items = (source.packed.arrays(), held_back.packed.arrays()), len(model.score_tables()[1])  # type: ignore[operator]
        parts.popular = in_thread(popularity, ranked, items, *pairs, getattr(model, "least_relevant", -math.inf))
    check_tensors(model)  # now that the trial has given lazy ones their shapes
    rollouts = {"data.train": parts.train.rollout, "data.val": held_back.rollout if held_back is not None else None}
    sent = {"evaluate.metrics": parts.panel, "data.transform": parts.transform, "lr_schedule": parts.curve, **rollouts}
    for what, thing in sent.items() if plan.procs else ():
        check_apart(model, what, thing)
    return parts


def _own_curve(job: Job, given: Any) -> lr_schedule.Factor | None:
    """Return the user's function of the number of updates, called once. Raises UsageError, UserCodeError."""
    if not isinstance(job.lr_schedule, OwnSchedule | TorchSchedule):
        return None
    try:
        curve = lr_schedule.own_factor(job.lr_schedule, given)
        curve(0)
    except HogwildError:
        raise
    except (Exception, SystemExit) as error:
        words = f"lr_schedule: {job.lr_schedule.name}: built and called with 0 updates, it raised {raised_text(error)}"
        raise UsageError(words, code="config/lr-schedule") from error
    return curve


def _stepped(job: Job, parts: Parts, given: Any) -> SteppedScheduler | None:
    """Return the scheduler of torch that the job has, with a note of its steps. Raises UsageError."""
    config, optimizer = job.lr_schedule, parts.optimizer
    if not isinstance(config, TorchSchedule) or not (given is not None or lr_schedule.is_of_torch(config)):
        return None
    if isinstance(given, LRScheduler):
        stepped = SteppedScheduler.copy_of(given, optimizer, config.every)
    else:
        stepped = SteppedScheduler.build(config.class_path, config.init_args, optimizer, config.every, given)
    monitor = f" with {job.evaluate.monitor}" if stepped.unit == "evaluation" else ""
    parts.notes.append(f"lr_schedule: {stepped.name} makes a step after each {stepped.unit}{monitor}")
    if stepped.unit == "evaluation":
        is_of_cluster = job.cluster.engine != "none"
        wrong = "data.val: without it nothing is evaluated" if parts.val is None else ""
        wrong = wrong or ("one machine: the nodes of a cluster have rates of their own" if is_of_cluster else "")
        if wrong:
            raise UsageError(f"lr_schedule: {stepped.name} needs {wrong}", code="config/lr-schedule")
    elif not (isinstance(parts.train.plan, StreamPlan) and parts.train.plan.length is None):
        stepped.check_length(updates_of(job, parts.train.plan), job.train.epochs)
    return stepped


@sparing_the_compiler()
def deep_check(job: Job, job_file: Path | None, data_dir: Path | None, *, gradients: bool = False) -> dict[str, Any]:
    """Build everything without starting, and return the report of `check --deep`. `gradients`: also check them."""
    plan = planned(job)
    parts = build(plan, data_dir)
    with cut_to_use(parts.model):
        compared = check_gradients(parts.model, parts.loss, batch_of(parts, GRADIENT_SAMPLES)) if gradients else None
        parameters = sum(parameter.numel() for parameter in parts.model.parameters())
        trained = sum(parameter.numel() for parameter in parts.model.parameters() if parameter.requires_grad)
        groups = [_described_group(group) for group in parts.optimizer.param_groups]
    plan = complete(plan, parts)
    decisions, output = plan.decisions(), parts.found.output_shape
    return {
        "job": job.name,
        "model": f"{type(parts.model).__name__}, {parameters:,} parameters, {trained:,} trained",
        "train": {**parts.train.size(), **parts.train.fields()},
        "val": {"samples": parts.val.plan.samples} if parts.val else None,
        "output": f"(B, {', '.join(map(str, output[1:]))})" if output else described(parts.found.output) or "no tensor",
        "groups": groups,
        "metrics": list(parts.panel.reported) if parts.val else [],
        **decisions,
        "update": plan.why + ("" if plan.is_fused else f"; {_update_path(plan, parts)}"),
        **({"gradcheck": compared} if compared is not None else {}),
        "notes": [note for note in (plan.warning, *parts.notes) if note],
    }


def _described_group(group: Mapping[str, Any]) -> str:
    """Return a group's description: `30 parameters in 2 tensors, lr 0.1, weight_decay 0`."""
    names = ("lr", "weight_decay", "momentum", "betas")
    settings = "".join(f", {name} {group[name]}" for name in names if name in group)
    members = group["params"]
    return f"{sum(param.numel() for param in members):,} parameters in {len(members)} tensors{settings}"


def _update_path(plan: JobPlan, parts: Parts) -> str:
    """Return how a worker would apply its updates, and why, by building one, which also tries to pickle the model."""
    options: Any = {"procs": 1, "state": plan.state, "memory_format": parts.found.memory_format}
    shared = SharedModel.build(parts.model, parts.loss, parts.optimizer, **options)
    worker = WorkerModel.attach(shared.structure, shared.regions, 0)
    return AutogradUpdate(worker, grad_clip=plan.job.train.grad_clip).path


def schedule_of(job: Job, epoch: EpochPlan, own: lr_schedule.Factor | None = None) -> lr_schedule.Factor | None:
    return lr_schedule.schedule_factor(job.lr_schedule, updates_of(job, epoch), own)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Return (path, old value, new value) of every leaf in which two resolved jobs differ."""
    found: list[tuple[str, Any, Any]] = []
    for key in [*old, *(key for key in new if key not in old)]:
        path, left, right = f"{prefix}{key}", old.get(key), new.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found.extend(differences(left, right, f"{path}."))
        elif left != right:
            found.append((path, left, right))
    return found
