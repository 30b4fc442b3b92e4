"""The input of a worker: the facts about the job (`WorkerSpec`), and the objects its trainer computes with
(`Numerics`). No torch here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hogwild.kernels.fused import FusedUpdate
from hogwild.scheduling.batch_plan import EpochPlan

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from torch import Tensor

    from hogwild.data.rollout import Rollout
    from hogwild.feeds.batch import Feed
    from hogwild.feeds.packed import Spec
    from hogwild.feeds.ring import RingSpec
    from hogwild.feeds.sample_order import Order
    from hogwild.kernels.hot_rows import HotRows
    from hogwild.metrics.panel import Panel
    from hogwild.monitoring.profile_report import Window
    from hogwild.parameters.worker_model import WorkerModel
    from hogwild.training.autograd_update import AutogradUpdate
    from hogwild.training.evaluator import Evaluator, Scorer
    from hogwild.training.model_steps import LaneState
    from hogwild.training.outputs import AllOutputs
    from hogwild.training.place import CpuPlace
    from hogwild.training.torch_schedule import SteppedScheduler


@dataclass(frozen=True, slots=True)
class DataSpec:
    """One data set as a worker sees it: the layout of its region, or what plays it, and its division into batches."""

    data: "Spec | RingSpec | Rollout"
    plan: EpochPlan
    order: str


@dataclass(frozen=True, slots=True)
class Compute:
    """Settings of the computation of a worker, and its device."""

    grad_clip: float | None = None
    loss_names: tuple[str, ...] = ()  # further losses of a training_step
    precision: str = "fp32"  # of the forward pass and the loss
    panel: "Panel | None" = None  # of an evaluation
    inference: bool = False  # evaluations run under torch.inference_mode
    progressive: bool = False  # score training batches before they are learnt
    fused: "Mapping[str, np.ndarray] | None" = None  # if a kernel trains the model: array of the data -> its hot rows
    compile: str = "none"  # the model: script, inductor
    compile_key: str = ""  # key of inductor's code in the cache
    compile_scratch: "Path | None" = None  # the job's folder for code being compiled or loaded
    devices: tuple[str, ...] = ()  # one per worker; empty: the CPU
    device_handles: Mapping[str, str] | None = None  # flats on a device: region -> its owner's handle
    graphs: bool = False  # replay updates on a device as graphs


@dataclass(frozen=True, slots=True)
class DataSide:
    """The data a worker trains on and evaluates, in the regions `data-train` and `data-val`."""

    train: DataSpec
    val: DataSpec | None
    transform: Callable[..., object] | None = None  # of training batches
    copies_slots: bool = False  # copy each batch out of its slot, because it will be modified
    outputs: "AllOutputs | None" = None  # layout of `data-outputs`, if a metric needs all outputs
    covered: tuple[int, int] = (0, 0)  # shape of `data-covered`, bytes that mark items; if a metric is their coverage
    typical: Sequence[list[Any]] = ()  # example batches to compile for (inductor, kernels), if data is streamed


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules a worker trains by."""

    seed: int
    accumulate: int = 1
    schedule: Callable[[int], float] | None = None
    stepped: "SteppedScheduler | None" = None  # sets the groups' own rates, which `schedule` multiplies
    fail_on_nan: bool = False
    max_staleness: int | None = None
    sync_every: int = 16  # most batches between two flushes of hot rows
    profile: "tuple[Window, Path] | None" = None  # --profile, with the output folder


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The facts a worker needs about the job, besides the model; pickled once (`by_value`), read by all workers."""

    compute: Compute
    data: DataSide
    rules: Rules


@dataclass(slots=True)
class Fused:
    """The fused update of a trainer, instead of autograd, bound to one worker's memory."""

    update: FusedUpdate
    plan: EpochPlan
    order: "Order | None"  # of packed data; None for a stream
    hot: "Sequence[HotRows]" = ()
    count: Callable[[int], None] = lambda updates: None  # adds to the optimizer's step count
    feed: "Feed | None" = None  # of batches to bind or to score: each is an exchange of its own
    bind: "Callable[[Sequence[Tensor], Tensor], np.ndarray] | None" = None  # a stream's batch; returns its rows (n,)
    scorer: "Scorer | None" = None

    def refresh(self) -> None:
        """Read the private copies from the flats again."""
        for rows in self.hot:
            rows.refresh()

    def flush(self) -> None:
        for rows in self.hot:
            rows.flush()


@dataclass(frozen=True, slots=True)
class Numerics:
    """The objects a trainer computes with. `rollbacks`: the run's rollbacks before this was made."""

    model: "WorkerModel"
    update: "AutogradUpdate | None"  # None: `fused` trains
    feed: "Feed | None"
    evaluator: "Evaluator | None"
    place: "CpuPlace"  # of the computation
    rollbacks: int = 0
    fused: Fused | None = None
    lanes: "LaneState | None" = None  # for a recurrent model with data.lanes
    scorer: "Scorer | None" = None  # of training batches before they are learnt

    @property
    def path(self) -> str:
        """Path of the updates and the reason for it, for the log."""
        return self.update.path if self.update is not None else f"fused: {self.fused.update.name}" if self.fused else ""
