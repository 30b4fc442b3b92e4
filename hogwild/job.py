"""From a checked job file to the objects that are trained, in the supervisor, before workers start: the model, the
loss, the optimizer and the data, each looked at closely enough that what can be known to fail does not start.

`build` makes them from class paths, `from_objects` takes a library caller's own; `inspect` looks at either.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from hogwild import device, lr, metrics
from hogwild.batches import BatchPlan, mix
from hogwild.config import Job
from hogwild.config_schema import Split
from hogwild.data.files import set_data_dir
from hogwild.errors import BuildError, DataError, ModelError, OptimizerError
from hogwild.feeds import materialise
from hogwild.lean_torch import sparing_the_compiler
from hogwild.param_groups import param_groups
from hogwild.params import SharedModel, WorkerModel, freeze_parameters
from hogwild.plan import plan_here
from hogwild.registry import build as build_component
from hogwild.registry import build_callable
from hogwild.updates import AutogradUpdate

EVALUATION_BATCH = 256  # no gradients, so larger batches than training's cost nothing and save time
TRIAL_SAMPLES = 3  # more than two: a loss that broadcasts (2, 2) over 2 labels would be wrong with any other number
UNLABELLED = -100  # what torch's classification losses leave out unless told otherwise
NORMS = (nn.modules.batchnorm._BatchNorm,)


@dataclass(slots=True)
class Source:
    """One data set: its fields as tensors (N, …), inputs first and target last, and its batches."""

    tensors: tuple[Tensor, ...]
    plan: BatchPlan

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


@dataclass(slots=True)
class Parts:
    """What a job is made of. `notes` are sentences a person should read before it starts."""

    model: nn.Module
    loss: Any
    optimizer: torch.optim.Optimizer
    train: Source
    val: Source | None
    output_shape: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)


def build(job: Job, data_dir: Path | None) -> Parts:
    """Imports and calls what the job file names, in a fixed order under the job's seed."""
    if data_dir is not None:
        set_data_dir(data_dir)
    torch.manual_seed(job.seed)
    model = build_component(job.model)
    if not isinstance(model, nn.Module):
        raise ModelError(f"model.class_path {job.model.class_path} made a {type(model).__name__}, not an nn.Module")
    loss = build_callable(job.loss)
    frozen = freeze_parameters(model, job.model.freeze)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ModelError(
            f"{job.model.class_path} has no parameter to train" + (" after model.freeze" if frozen else "")
        )
    groups = job.optimizer.groups
    optimizer = build_component(job.optimizer, param_groups(model, groups) if groups else trainable)
    train = build_component(job.data.train)
    val: Any = job.data.val
    if val is not None and not isinstance(val, Split):
        val = build_component(val)
    return from_objects(job, model, loss, optimizer, train, val)


def from_objects(
    job: Job,
    model: nn.Module,
    loss: Any,
    optimizer: torch.optim.Optimizer,
    train: Dataset,
    val: Dataset | Split | None,
) -> Parts:
    """Cuts and checks the data, tries one forward pass, and raises BuildError for what cannot be trained."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OptimizerError(f"the optimizer is a {type(optimizer).__name__}, not a torch.optim.Optimizer")
    device.require_cpu(model.named_parameters(), "the model")
    tensors = materialise(train, "data.train")
    held_back: tuple[Tensor, ...] | None = None
    if isinstance(val, Split):
        tensors, held_back = _split(tensors, val.fraction, job.seed)
    elif val is not None:
        held_back = materialise(val, "data.val")
    has_norm = any(isinstance(module, NORMS) for module in model.modules())
    plan = BatchPlan(len(tensors[0]), job.data.batch_size, job.data.drop_last, merge_single=has_norm)
    parts = Parts(model, loss, optimizer, Source(tensors, plan), None)
    if held_back is not None:
        size = max(job.data.batch_size, EVALUATION_BATCH)
        parts.val = Source(held_back, BatchPlan(len(held_back[0]), size))
    _inspect(job, parts)
    return parts


def planned_updates(job: Job, plan: BatchPlan) -> int:
    """Updates of the whole job if nothing is skipped."""
    return plan.planned_updates(
        epochs=job.train.epochs, accumulate=job.train.accumulate, max_updates=job.train.max_updates
    )


def bytes_needed(job: Job, parts: Parts, procs: int) -> int:
    """Shared memory the job will take: data, parameters, optimizer state, buffers."""
    data = parts.train.nbytes + (parts.val.nbytes if parts.val else 0)
    return data + SharedModel.bytes_needed(parts.model, parts.optimizer, procs=max(1, procs), state=job.optimizer.state)


@sparing_the_compiler()
def deep_check(job: Job, job_file: Path | None, data_dir: Path | None) -> dict[str, Any]:
    """What `check --deep` reports. Builds everything and starts nothing."""
    parts = build(job, data_dir)
    shape = {
        f"field {position}": f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
        for position, tensor in enumerate(parts.train.tensors)
    }
    parameters = sum(parameter.numel() for parameter in parts.model.parameters())
    trained = sum(parameter.numel() for parameter in parts.model.parameters() if parameter.requires_grad)
    planned = plan_here(job.train.procs, job.train.threads, pin=job.train.pin)
    needed = bytes_needed(job, parts, planned.procs)
    return {
        "job": job.name,
        "model": f"{type(parts.model).__name__}, {parameters:,} parameters, {trained:,} trained",
        "train": {"samples": parts.train.plan.samples, "batches": parts.train.plan.batches, **shape},
        "val": {"samples": parts.val.plan.samples} if parts.val else None,
        "output": f"(B, {', '.join(map(str, parts.output_shape[1:]))})" if parts.output_shape else "not one tensor",
        "groups": [_described_group(group) for group in parts.optimizer.param_groups],
        "update": f"autograd (the model brings no fused update); {_update_path(job, parts)}",
        "metrics": list(metrics.metrics_for(parts.loss)),
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


# ---- looking closely -----------------------------------------------------------------------------------------------


def _split(tensors: tuple[Tensor, ...], fraction: float, seed: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A seeded split: (train, held back)."""
    count = len(tensors[0])
    held = round(count * fraction)
    if not 0 < held < count:
        raise DataError(
            f"data.val.fraction {fraction} of {count} samples leaves {held} to evaluate; both parts need one"
        )
    order = torch.randperm(count, generator=torch.Generator().manual_seed(mix(seed, -2)))
    return tuple(t[order[held:]] for t in tensors), tuple(t[order[:held]] for t in tensors)


def _inspect(job: Job, parts: Parts) -> None:
    plan = parts.train.plan
    if plan.batches == 0:
        raise DataError(
            f"data.train has {plan.samples} samples, fewer than data.batch_size {plan.batch_size}, and data.drop_last "
            "is true: there is no batch to train on"
        )
    if plan.merges:
        parts.notes.append(
            f"the last batch would hold one sample, which BatchNorm cannot train on: it is merged into the one before "
            f"({plan.largest} samples)"
        )
    if parts.val is not None and _fields(parts.val) != _fields(parts.train):
        raise DataError(
            f"data.val has samples of {', '.join(_fields(parts.val))}, data.train of "
            f"{', '.join(_fields(parts.train))}; both must be alike"
        )
    _try_forward(parts)
    first, last = plan.positions(plan.batches - 1)
    if plan.merge_single and last - first == 1:
        _refuse_single(parts)
    for what, source in (("data.train", parts.train), ("data.val", parts.val)):
        if source is not None:
            _check_labels(parts, source, what)
    metrics.check_target(
        {str(name): goal for name, goal in job.evaluate.target.items()}, metrics.metrics_for(parts.loss)
    )
    if job.evaluate.target and parts.val is None:
        raise BuildError("evaluate.target needs data.val: without it nothing is evaluated")


def _try_forward(parts: Parts) -> None:
    """One forward pass and one loss over the first samples, in evaluation mode, leaving no trace: the random state is
    put back and no gradient is made."""
    sample = [tensor[:TRIAL_SAMPLES].clone() for tensor in parts.train.tensors]
    constructed = {id(param) for param in parts.model.parameters()}
    try:
        with _evaluating(parts.model):
            output = parts.model(*sample[:-1])
            _check_sample_labels(parts, output)
            loss = parts.loss(output, sample[-1])
    except BuildError:
        raise
    except (Exception, SystemExit) as error:
        *inputs, target = map(_described, sample)
        raise ModelError(
            f"{type(parts.model).__name__} and {_name(parts.loss)} cannot compute a loss on the first samples "
            f"(inputs {', '.join(inputs)}; target {target}): {type(error).__name__}: {error}"
        ) from error
    made = [name for name, param in parts.model.named_parameters() if id(param) not in constructed]
    if made:
        raise ModelError(
            f"{type(parts.model).__name__} creates parameter {made[0]} in forward; the optimizer, built before that, "
            "would never train it. Create all parameters in the constructor"
        )
    parts.output_shape = tuple(output.shape) if isinstance(output, Tensor) else ()
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        got = _described(loss) if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise BuildError(
            f"{_name(parts.loss)} returned {got}; a loss is one floating-point number in a tensor (reduction='mean')"
        )


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def _refuse_single(parts: Parts) -> None:
    """A batch of one sample is too small only for a norm that sees one value per channel of it: that of an image has
    many."""
    starved: list[nn.Module] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].numel() == inputs[0].shape[1]:
            starved.append(module)

    hooks = [m.register_forward_pre_hook(look) for m in parts.model.modules() if isinstance(m, NORMS)]
    try:
        with _evaluating(parts.model):
            parts.model(*(tensor[:1].clone() for tensor in parts.train.tensors[:-1]))
    finally:
        for hook in hooks:
            hook.remove()
    if starved:
        raise DataError(
            "BatchNorm cannot train on a batch of one sample; give more samples or a larger data.batch_size"
        )


def _fields(source: Source) -> list[str]:
    return [f"{tuple(tensor.shape[1:])} {_type(tensor)}" for tensor in source.tensors]


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {_type(tensor)}"


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _check_sample_labels(parts: Parts, output: Any) -> None:
    """Before the loss would fail on them with an index error and no sample's number."""
    if isinstance(output, Tensor):
        parts.output_shape = tuple(output.shape)
        _check_labels(parts, parts.train, "data.train")


def _check_labels(parts: Parts, source: Source, what: str) -> None:
    """Class indices must lie in [0, classes): on a CPU a wrong one is an index error in the middle of the job."""
    is_plain = parts.loss in (nn.functional.cross_entropy, nn.functional.nll_loss)
    if not (is_plain or isinstance(parts.loss, (nn.CrossEntropyLoss, nn.NLLLoss))) or len(parts.output_shape) < 2:
        return
    target = source.tensors[-1]
    if target.is_floating_point():
        return  # class probabilities
    classes = parts.output_shape[1]
    wrong = ((target < 0) | (target >= classes)) & (target != getattr(parts.loss, "ignore_index", UNLABELLED))
    if wrong.any():
        where = int(wrong.reshape(len(target), -1).any(dim=1).nonzero()[0])
        value = int(target[where][wrong[where]].reshape(-1)[0])
        raise DataError(
            f"{what}: the label of sample {where} is {value}; the model has {classes} outputs, so labels must be in "
            f"[0, {classes - 1}]"
        )


def _name(loss: Any) -> str:
    return getattr(loss, "__name__", type(loss).__name__)


def schedule_of(job: Job, plan: BatchPlan) -> lr.Factor | None:
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
