"""From a checked job file to the objects that are trained, in the supervisor, before workers start: the model, the
loss, the optimizer and the data, each looked at closely enough that what can be known to fail does not start
(`job_checks.py`).

`build` makes them from class paths, `from_objects` takes a library caller's own.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hogwild import device, lr, metric_names
from hogwild.batches import BatchPlan, EpochPlan
from hogwild.config import Job
from hogwild.config_schema import Split
from hogwild.config_types import Component
from hogwild.data.files import set_data_dir
from hogwild.errors import ModelError, OptimizerError
from hogwild.feeds import Batch, ResidentData
from hogwild.fused_choice import Choice, Meetings, choose, meetings
from hogwild.grid import GridPlan
from hogwild.job_checks import NORMS, inspect
from hogwild.lean_torch import sparing_the_compiler
from hogwild.metrics import Own, Panel
from hogwild.packed import Packed
from hogwild.packing import pack, packs, read_packed, show, sizes_for
from hogwild.param_groups import param_groups
from hogwild.params import SharedModel, WorkerModel, freeze_parameters, wants_channels_last
from hogwild.placing import is_on_device, with_devices
from hogwild.plan import plan_here
from hogwild.registry import build as build_component
from hogwild.registry import build_callable, resolve
from hogwild.samples import Held, InTurn, Reader
from hogwild.transforms import Transform
from hogwild.updates import AutogradUpdate

NO_KERNEL = Choice(None, "autograd: on a device, where no kernel of a model's own runs", is_worth_saying=False)
EVALUATION_BATCH = 256  # no gradients, so larger batches than training's cost nothing and save time


@dataclass(slots=True)
class Source:
    """One data set: its fields as tensors (N, …), inputs first and target last, and its batches."""

    tensors: tuple[Tensor, ...]  # () of a packed one
    plan: EpochPlan
    resident: ResidentData | None = None  # where they lie in shared memory already
    packed: Packed | None = None

    @property
    def nbytes(self) -> int:
        if self.packed is not None:
            return self.packed.nbytes
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    @property
    def target(self) -> Tensor:
        """(N, …)"""
        return self.tensors[-1] if self.packed is None else self.packed.targets()

    @property
    def is_there_already(self) -> bool:
        """In the shared memory it will be trained from."""
        return self.resident is not None or self.packed is not None

    def pick(self, rows: Tensor) -> list[Tensor]:
        """These samples (n,) int64 as a batch: the inputs, and the target."""
        if self.packed is None:
            return [tensor[rows] for tensor in self.tensors]
        batch: Batch = self.packed.pick(rows.numpy())
        return [*(tensor.clone() for tensor in batch.inputs), batch.target.clone()]

    def head(self, samples: int) -> list[Tensor]:
        """The first ones, as a batch."""
        return self.pick(torch.arange(min(samples, self.plan.samples)))

    def fields(self) -> dict[str, str]:
        """What there is, in words."""
        if self.packed is not None:
            return {spec.name: f"{spec.shape} {spec.dtype}" for spec in self.packed.spec.arrays}
        return {f"field {k}": f"{tuple(one.shape)} {_type(one)}" for k, one in enumerate(self.tensors)}


@dataclass(slots=True)
class Parts:
    """What a job is made of. `notes` are sentences a person should read before it starts."""

    model: nn.Module
    loss: Any
    optimizer: torch.optim.Optimizer
    train: Source
    val: Source | None
    panel: Panel
    output: Tensor | None = None  # (0, …): what the model answers in an evaluation, if it is one tensor
    output_shape: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    transform: Transform | None = None  # of the batches that are trained on
    choice: Choice = field(default_factory=lambda: Choice(None, "autograd"))
    meetings: Meetings = field(default_factory=Meetings)
    names: dict[str, Any] | None = None  # what numbers stand for, and how many there are: of packed data

    @property
    def outputs_shape(self) -> tuple[int, ...]:
        """(N, …) of the outputs of an evaluation, where a metric needs all of them; else ()."""
        if self.val is None or self.output is None or not self.panel.whole:
            return ()
        return (self.val.plan.samples, *self.output.shape[1:])

    @property
    def outputs_nbytes(self) -> int:
        if self.output is None or not self.outputs_shape:
            return 0
        return math.prod(self.outputs_shape) * self.output.element_size()


def build(job: Job, data_dir: Path | None, reader: Reader | None = None) -> Parts:
    """Imports and calls what the job file names, in a fixed order under the job's seed. `reader` brings the data into
    memory; by default this process, row by row."""
    if data_dir is not None:
        set_data_dir(data_dir)
    reader = reader or InTurn(job.seed)
    data = pack(job, reader)
    torch.manual_seed(job.seed)
    model = build_component(job.model, **sizes_for(job.model, data.train))
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"model.class_path {job.model.class_path} made a {type(model).__name__}, not an nn.Module",
            code="model/not-a-module",
        )
    loss = build_callable(job.loss)
    frozen = freeze_parameters(model, job.model.freeze)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ModelError(
            f"{job.model.class_path} has no parameter to train" + (" after model.freeze" if frozen else ""),
            code="model/no-parameters",
        )
    groups = job.optimizer.groups
    optimizer = build_component(job.optimizer, param_groups(model, groups) if groups else trainable)
    train: Any = data.train or build_component(job.data.train)
    val: Any = data.val or job.data.val
    if isinstance(val, Component):
        val = build_component(val)
    return from_objects(job, model, loss, optimizer, train, val, _own_metrics(job), reader)


def from_objects(
    job: Job,
    model: nn.Module,
    loss: Any,
    optimizer: torch.optim.Optimizer,
    train: Dataset,
    val: Dataset | Split | None,
    metrics: Mapping[str, str | Own] | None = None,
    reader: Reader | None = None,
) -> Parts:
    """Cuts and checks the data, tries one forward pass, and raises BuildError for what cannot be trained. `metrics` by
    name; None for those that suit the model and the loss."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptimizerError(
            f"the optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer", code="optimizer/not-one"
        )
    device.require_cpu(model.named_parameters(), "the model")
    trained, held_back = _read(job, model, train, val, reader or InTurn(job.seed))
    show(model, trained.packed, held_back.packed if held_back else None)
    has_norm = any(isinstance(module, NORMS) for module in model.modules())
    plan = BatchPlan(trained.samples, job.data.batch_size, job.data.drop_last, merge_single=has_norm)
    panel = Panel.of(metrics, model, loss)
    source = Source(trained.tensors, plan, trained.resident, trained.packed)
    parts = Parts(model, loss, optimizer, source, None, panel)
    parts.choice = NO_KERNEL if is_on_device(job) else choose(job, model, loss, optimizer, trained.packed)
    if trained.packed is not None:
        names = {key: [*map(_plain, values)] for key, values in trained.packed.names.items()}
        parts.names = {"sizes": dict(trained.packed.spec.sizes), "names": names}
    parts.transform = build_callable(job.data.transform) if job.data.transform is not None else None
    if held_back is not None:
        size = max(job.data.batch_size, EVALUATION_BATCH)
        parts.val = Source(held_back.tensors, BatchPlan(held_back.samples, size), held_back.resident, held_back.packed)
    inspect(job, parts)
    return parts


def _read(
    job: Job, model: nn.Module, train: Dataset, val: Dataset | Split | None, reader: Reader
) -> tuple[Held, Held | None]:
    """(what is trained on, what is held back)."""
    if packs(train) or isinstance(train, Packed):
        return read_packed(job, train, val, reader)
    channels_last = wants_channels_last(model, job.model.memory_format)
    if isinstance(val, Split):
        trained, held_back = reader.read(train, "data.train", fraction=val.fraction, channels_last=channels_last)
        return trained, held_back
    (trained,) = reader.read(train, "data.train", fraction=None, channels_last=channels_last)
    if val is None:
        return trained, None
    (held_back,) = reader.read(val, "data.val", fraction=None, channels_last=channels_last)
    return trained, held_back


def _plain(name: Any) -> Any:
    """As JSON knows it: numpy's numbers are none of Python's."""
    return name.item() if hasattr(name, "item") else name


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _own_metrics(job: Job) -> dict[str, str | Own] | None:
    """The job's metrics; those of class paths are imported and called by its last part. A class is called without
    arguments."""
    if job.evaluate.metrics == "auto":
        return None
    found: dict[str, str | Own] = {}
    for metric in job.evaluate.metrics:
        target = resolve(metric) if metric_names.is_own(metric) else metric
        made = build_component(Component(class_path=metric)) if isinstance(target, type) else target
        found[metric.rpartition(".")[2]] = made
    return found


def arrange(job: Job, parts: Parts, procs: int, blocks: tuple[int, int] | None) -> None:
    """Keeps workers whose kernels write the same rows apart: chooses hot rows, or lays the training data out as a
    grid. `blocks`: of the grid the run had before (resume), whatever the number of workers is now. Raises
    MemoryShortError."""
    update, packed = parts.choice.update, parts.train.packed
    if update is None or packed is None:
        return
    parts.meetings = meetings(job, update, parts.model, packed, procs, blocks)
    grid = parts.meetings.grid
    if grid is not None:
        parts.train.packed = packed.take("data-train", grid.order())
        parts.train.plan = GridPlan.of(grid, job.data.batch_size)


def planned_updates(job: Job, plan: EpochPlan) -> int:
    """Updates of the whole job if nothing is skipped."""
    return plan.planned_updates(
        epochs=job.train.epochs, accumulate=job.train.accumulate, max_updates=job.train.max_updates
    )


def bytes_needed(job: Job, parts: Parts, procs: int) -> int:
    """Shared memory the job will take: data, kept outputs, parameters, optimizer state, buffers."""
    data = parts.train.nbytes + (parts.val.nbytes if parts.val else 0) + parts.outputs_nbytes
    return data + SharedModel.bytes_needed(parts.model, parts.optimizer, procs=max(1, procs), state=job.optimizer.state)


@sparing_the_compiler()
def deep_check(job: Job, job_file: Path | None, data_dir: Path | None) -> dict[str, Any]:
    """What `check --deep` reports. Builds everything and starts nothing."""
    parts = build(job, data_dir)
    parameters = sum(parameter.numel() for parameter in parts.model.parameters())
    trained = sum(parameter.numel() for parameter in parts.model.parameters() if parameter.requires_grad)
    planned = with_devices(plan_here(job.train.procs, job.train.threads, pin=job.train.pin), job)
    needed = bytes_needed(job, parts, planned.procs)
    return {
        "job": job.name,
        "model": f"{type(parts.model).__name__}, {parameters:,} parameters, {trained:,} trained",
        "train": {"samples": parts.train.plan.samples, "batches": parts.train.plan.batches, **parts.train.fields()},
        "val": {"samples": parts.val.plan.samples} if parts.val else None,
        "output": f"(B, {', '.join(map(str, parts.output_shape[1:]))})" if parts.output_shape else "not one tensor",
        "groups": [_described_group(group) for group in parts.optimizer.param_groups],
        "update": parts.choice.why + ("" if parts.choice.update else f"; {_update_path(job, parts)}"),
        "metrics": list(parts.panel.reported) if parts.val else [],
        "planned_updates": planned_updates(job, parts.train.plan),
        "plan": planned.reason,
        "shared_memory_bytes": needed,
        "notes": [note for note in (planned.warning, *parts.notes) if note],
    }


def _described_group(group: Mapping[str, Any]) -> str:
    """`30 parameters in 2 tensors, lr 0.1, weight_decay 0`: what tells one group from another."""
    names = ("lr", "weight_decay", "momentum", "betas")
    settings = "".join(f", {name} {group[name]}" for name in names if name in group)
    members = group["params"]
    return f"{sum(param.numel() for param in members):,} parameters in {len(members)} tensors{settings}"


def _update_path(job: Job, parts: Parts) -> str:
    """How a worker would apply its updates, and why; found out by making one, which also tries to pickle the model."""
    shared = SharedModel.build(parts.model, parts.loss, parts.optimizer, procs=1, state=job.optimizer.state)
    worker = WorkerModel.attach(shared.structure, shared.regions, 0)
    return AutogradUpdate(worker, grad_clip=job.train.grad_clip).path


def schedule_of(job: Job, plan: EpochPlan) -> lr.Factor | None:
    return lr.schedule_factor(job.lr_schedule, planned_updates(job, plan))


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """(path, old value, new value) of every leaf in which two resolved jobs differ."""
    found: list[tuple[str, Any, Any]] = []
    for key in [*old, *(key for key in new if key not in old)]:
        path, left, right = f"{prefix}{key}", old.get(key), new.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found.extend(differences(left, right, f"{path}."))
        elif left != right:
            found.append((path, left, right))
    return found
