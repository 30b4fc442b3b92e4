"""The input of a worker: the facts about the job (`WorkerSpec`), and the objects its trainer computes with
(`Numerics`). No torch here."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hogwild.kernels.fused import FusedUpdate
from hogwild.scheduling.batch_plan import EpochPlan

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from hogwild.feeds.batch import Feed
    from hogwild.feeds.packed import Spec
    from hogwild.feeds.resident import FieldSpec
    from hogwild.feeds.ring import RingSpec
    from hogwild.feeds.sample_order import Order
    from hogwild.kernels.hot_rows import HotRows
    from hogwild.metrics.panel import Panel
    from hogwild.parameters.worker_model import WorkerModel
    from hogwild.training.autograd_update import AutogradUpdate
    from hogwild.training.evaluator import Evaluator
    from hogwild.training.recurrent_state import LaneState


@dataclass(frozen=True, slots=True)
class DataSpec:
    """One data set as a worker sees it: the layout of its region, and its division into batches."""

    data: "Spec | RingSpec"
    plan: EpochPlan
    order: str


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The facts a worker needs about the job, besides the model; pickled once (cloudpickle), read by all workers."""

    seed: int
    train: DataSpec
    val: DataSpec | None
    accumulate: int
    grad_clip: float | None
    schedule: Callable[[int], float] | None
    fail_on_nan: bool
    max_staleness: int | None = None
    panel: "Panel | None" = None  # of an evaluation
    outputs: "FieldSpec | None" = None  # layout of its outputs, if a metric needs all of them
    transform: Callable[..., object] | None = None  # of training batches
    fused: "Mapping[str, np.ndarray] | None" = None  # if a kernel trains the model: array of the data -> its hot rows
    sync_every: int = 16  # most batches between two flushes of hot rows
    copies_slots: bool = False  # copy each batch out of its slot, because it will be modified
    loss_names: tuple[str, ...] = ()  # further losses of a training_step
    inference: bool = False  # evaluations run under torch.inference_mode
    precision: str = "fp32"  # of the forward pass and the loss
    compile: str = "none"  # the model: script, inductor
    compile_key: str = ""  # key of inductor's code in the cache
    compile_scratch: "Path | None" = None  # the job's folder for code being compiled or loaded
    typical: Sequence[list[Any]] = ()  # example batches to compile for, if data is streamed
    profile: tuple[int, int, str] | None = None  # --profile: first update, end of the window, folder
    devices: tuple[str, ...] = ()  # one per worker; empty: the CPU
    device_handles: Mapping[str, str] | None = None  # flats on a device: region -> its owner's handle


@dataclass(slots=True)
class Fused:
    """The fused update of a trainer, instead of autograd, bound to one worker's memory."""

    update: FusedUpdate
    plan: EpochPlan
    order: "Order"
    hot: "Sequence[HotRows]" = ()
    count: Callable[[int], None] = lambda updates: None  # adds to the optimizer's step count

    def refresh(self) -> None:
        """Read the private copies from the flats again."""
        for rows in self.hot:
            rows.refresh()

    def flush(self) -> None:
        for rows in self.hot:
            rows.flush()


class OnCpu:
    """The steps of a trainer that differ if it computes on a device (`OnDevice`). On the CPU they do nothing: results
    are ready at once, and errors need no translation."""

    def announce(self, epoch: int, batch: int) -> None:
        """Prefetch the next batch while this process would only wait for the device."""

    def losses(self, update: "AutogradUpdate", told: float) -> float:
        """Return the sum of the losses of an update; `told` is the sum that its `backward` calls returned."""
        return told

    def explained(self) -> contextlib.AbstractContextManager[None]:
        """Translate the device's errors into ours, where they are known."""
        return contextlib.nullcontext()

    def is_lost(self) -> bool:
        """Return True if the current error has also broken the device: nothing on it can be saved."""
        return False


ON_CPU = OnCpu()


@dataclass(frozen=True, slots=True)
class Numerics:
    """The objects a trainer computes with. `seed_generator` seeds the generator that layers draw from. `rollbacks`: the
    run's rollbacks before this was made."""

    model: "WorkerModel"
    update: "AutogradUpdate | None"  # None: `fused` trains
    feed: "Feed | None"
    evaluator: "Evaluator | None"
    seed_generator: Callable[[int], object]
    rollbacks: int = 0
    fused: Fused | None = None
    lanes: "LaneState | None" = None  # for a recurrent model with data.lanes
    place: OnCpu = ON_CPU  # the device of the computation

    @property
    def path(self) -> str:
        """Path of the updates and the reason for it, for the log."""
        return self.update.path if self.update is not None else f"fused: {self.fused.update.name}" if self.fused else ""
