"""Everything a job is built from: model, data, loss, optimizer and plan, as objects; and its functions beside them:
metrics, the collate function, and the transform of a batch. A job file names these by class path; a library call may
pass them as objects."""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from hogwild.config.field_types import Component
from hogwild.config.load import Job
from hogwild.feeds.batch import Transform
from hogwild.job.identity import Identity
from hogwild.job.source import Source
from hogwild.job.trial import Findings
from hogwild.job.update_choice import UpdateChoice
from hogwild.metrics import catalog
from hogwild.metrics.panel import Own, Panel
from hogwild.training.torch_schedule import SteppedScheduler
from hogwild.user_code import build, build_callable, resolve


@dataclass(slots=True)
class Parts:
    """All objects of a job. `notes` are sentences for the user to read before the start."""

    model: nn.Module
    loss: Any
    optimizer: torch.optim.Optimizer
    train: Source
    val: Source | None
    panel: Panel
    notes: list[str] = field(default_factory=list)
    transform: Transform | None = None  # for training batches
    choice: UpdateChoice = field(default_factory=lambda: UpdateChoice(None, "autograd"))
    late: dict[str, int] = field(default_factory=dict)  # parameter -> the first update that trains it
    found: Findings = field(default_factory=lambda: Findings("auto", ()))  # of the trial
    names: dict[str, Any] | None = None  # names that the data's numbers stand for, and sizes
    identified: "Future[Identity] | None" = None  # the identity of the data, once a thread has computed it
    component: Component | None = None  # what the model was built from; None: a library caller's object
    stepped: SteppedScheduler | None = None  # a scheduler of torch, instead of a function of the number of updates

    @property
    def identity(self) -> Identity:
        """The identity of the data; {} if there is none. Waits for it, and raises what its computation raised."""
        return {} if self.identified is None else self.identified.result()

    @property
    def typical(self) -> list[list[Any]]:
        """Example batches of streamed training data, for whatever compiles code for it."""
        if self.train.streamed is None:
            return []
        return [self.train.streamed.head()] if self.choice.update is not None else self.train.streamed.typical()

    @property
    def keeps_to_cpu(self) -> str:
        """The reason for training on the CPU, GPU or not, if the job leaves its device open; "" for none."""
        if self.choice.update is not None:
            return f"{self.choice.update.name} is compiled for the CPU"
        return "workers play a Rollout on the CPU" if self.train.rollout is not None else ""

    @property
    def outputs_shape(self) -> tuple[int, ...]:
        """Shape (N, …) of the outputs of an evaluation, if a metric needs all of them; else ()."""
        if self.val is None or self.found.output is None or not self.panel.whole:
            return ()
        return (self.val.plan.samples, *self.found.output.shape[1:])

    @property
    def covered(self) -> tuple[int, int]:
        """Shape (metrics, items) of the bytes that mark the items which metrics of coverage count; (0, 0) for none."""
        if self.val is None or not self.panel.coverages:
            return (0, 0)
        _, items, _ = self.model.score_tables()  # type: ignore[operator]
        return (self.panel.coverages, len(items))

    @property
    def outputs_nbytes(self) -> int:
        if self.found.output is None or not self.outputs_shape:
            return 0
        return math.prod(self.outputs_shape) * self.found.output.element_size()


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of a job. `metrics` by name; None for the default metrics of the model and the loss."""

    metrics: Mapping[str, str | Own] | None = None
    collate: Callable[..., Any] | None = None
    transform: Transform | None = None
    scheduler: LRScheduler | None = None  # the caller's own

    @classmethod
    def of(cls, job: Job, given: Mapping[str, Any] | None = None) -> "Functions":
        """Import and build the functions of the job, except those `given` by field name. Raises ConfigError,
        BuildError."""
        given = given or {}
        return cls(
            given["metrics"] if "metrics" in given else _metrics(job),
            given["collate"] if "collate" in given else _built(job.data.collate),
            given["transform"] if "transform" in given else _built(job.data.transform),
            given.get("scheduler"),
        )


def _built(spec: Component | None) -> Any:
    return None if spec is None else build_callable(spec)


def _metrics(job: Job) -> dict[str, str | Own] | None:
    """Return metrics by name, the last part of a class path. Classes are instantiated without arguments."""
    if job.evaluate.metrics == "auto":
        return None
    found: dict[str, str | Own] = {}
    for metric in job.evaluate.metrics:
        target = resolve(metric) if catalog.is_own(metric) else metric
        made = build(Component(class_path=metric)) if isinstance(target, type) else target
        found[metric.rpartition(".")[2]] = made
    return found
