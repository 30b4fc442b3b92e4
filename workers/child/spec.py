"""What a worker is given: what it must know about the job (`WorkerSpec`), and what its trainer computes with
(`Numerics`). No torch here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hogwild.kernels.fused import FusedUpdate
from hogwild.scheduling.batch_plan import EpochPlan
from workers.child.device_hooks import ON_CPU, OnCpu

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
    from hogwild.training.autograd_update import Update
    from hogwild.training.evaluator import Evaluator
    from hogwild.training.recurrent_state import LaneState


@dataclass(frozen=True, slots=True)
class DataSpec:
    """One data set as a worker finds it: what lies in its region, and how it is cut into batches."""

    data: "Spec | RingSpec"
    plan: EpochPlan
    order: str


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker must know about the job, besides the model; written once with cloudpickle, read by every worker."""

    seed: int
    train: DataSpec
    val: DataSpec | None
    accumulate: int
    grad_clip: float | None
    schedule: Callable[[int], float] | None
    fail_on_nan: bool
    max_staleness: int | None = None
    panel: "Panel | None" = None  # of an evaluation
    outputs: "FieldSpec | None" = None  # where its outputs are kept, if a metric needs them all
    transform: Callable[..., object] | None = None  # of the batches that are trained on
    fused: "Mapping[str, np.ndarray] | None" = None  # trained by the model's kernel: array of the data -> its hot rows
    sync_every: int = 16  # batches, at most, between two flushes of hot rows
    copies_slots: bool = False  # a batch is copied out of its slot: somebody writes into it
    loss_names: tuple[str, ...] = ()  # of a training_step, beside the loss
    inference: bool = False  # evaluations run under torch.inference_mode
    precision: str = "fp32"  # of forward and loss
    compile: str = "none"  # the model: script, inductor
    compile_key: str = ""  # under which inductor's code is kept
    compile_scratch: "Path | None" = None  # the job's own folder of what is compiled or loaded just now
    typical: Sequence[list[Any]] = ()  # batches to compile for, of data that is not there yet
    profile: tuple[int, int, str] | None = None  # --profile: first update, end of the window, folder
    devices: tuple[str, ...] = ()  # of each worker; empty: the CPU
    lent: Mapping[str, str] | None = None  # where the flats lie on a device: region -> its holder's handle


@dataclass(slots=True)
class Fused:
    """What a trainer computes with instead of autograd, bound to one worker's memory."""

    update: FusedUpdate
    plan: EpochPlan
    order: "Order"
    hot: "Sequence[HotRows]" = ()
    count: Callable[[int], None] = lambda updates: None  # what its optimizer's state has seen

    def refresh(self) -> None:
        """The private copies are what the flats are now."""
        for rows in self.hot:
            rows.refresh()

    def flush(self) -> None:
        for rows in self.hot:
            rows.flush()


@dataclass(frozen=True, slots=True)
class Numerics:
    """What a trainer computes with. `seed_generator` seeds the generator that layers draw from. `rollbacks`: how often
    the run had gone back to a checkpoint when this was made."""

    model: "WorkerModel"
    update: "Update | None"  # None: `fused` trains
    feed: "Feed | None"
    evaluator: "Evaluator | None"
    seed_generator: Callable[[int], object]
    rollbacks: int = 0
    fused: Fused | None = None
    lanes: "LaneState | None" = None  # of a recurrent model, with data.lanes
    place: OnCpu = ON_CPU  # where the mathematics is done

    @property
    def path(self) -> str:
        """Which way updates go, and why, for the log."""
        return self.update.path if self.update is not None else f"fused: {self.fused.update.name}" if self.fused else ""
