"""Everything a job is built from: model, data, loss, optimizer and plan, as objects."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.config.field_types import Component
from hogwild.feeds.transform import Transform
from hogwild.job.identity import Identity
from hogwild.job.source import Source
from hogwild.job.update_choice import Meetings, UpdateChoice
from hogwild.metrics.panel import Panel

NORMS = (nn.modules.batchnorm._BatchNorm,)


@dataclass(slots=True)
class Parts:
    """All objects of a job. `notes` are sentences for the user to read before the start."""

    model: nn.Module
    loss: Any
    optimizer: torch.optim.Optimizer
    train: Source
    val: Source | None
    panel: Panel
    output: Tensor | None = None  # (0, …): the model's output in an evaluation, if it is one tensor
    output_shape: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)
    transform: Transform | None = None  # for training batches
    choice: UpdateChoice = field(default_factory=lambda: UpdateChoice(None, "autograd"))
    meetings: Meetings = field(default_factory=Meetings)
    writes_inputs: bool = False  # the model changes its inputs in place
    late: dict[str, int] = field(default_factory=dict)  # parameter -> the first update that trains it
    loss_names: tuple[str, ...] = ()  # further losses that a training_step returns
    infers: bool = False  # evaluations run under inference_mode
    names: dict[str, Any] | None = None  # names that the data's numbers stand for, and sizes
    identity: Identity = field(default_factory=dict)  # of the data
    component: Component | None = None  # what the model was built from; None: a library caller's object
    memory_format: str = "auto"  # the final memory format of the job

    @property
    def outputs_shape(self) -> tuple[int, ...]:
        """Shape (N, …) of the outputs of an evaluation, if a metric needs all of them; else ()."""
        if self.val is None or self.output is None or not self.panel.whole:
            return ()
        return (self.val.plan.samples, *self.output.shape[1:])

    @property
    def outputs_nbytes(self) -> int:
        if self.output is None or not self.outputs_shape:
            return 0
        return math.prod(self.outputs_shape) * self.output.element_size()
