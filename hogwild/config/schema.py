"""The job file as one frozen tree: every field, its type, its range, its default, and why it is there.

Torch-free. What a value means where types cannot say it (an argument of a torch class, two fields that must
agree) is in `rules.py`; how an error is worded is in `messages.py`; loading is in `load.py`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from hogwild.config.field_types import (
    TAG,
    ClassPath,
    Component,
    Device,
    FileName,
    InitArgs,
    Loaders,
    Metric,
    MetricName,
    Procs,
    Progress,
    Seconds,
    Section,
    Slots,
    Threads,
    Version,
    Whole,
    rule,
)
from hogwild.metrics.catalog import MOST
from hogwild.scheduling.leases import MAX_ITEM_BATCHES

SCHEDULES = ("constant", "step", "linear", "cosine", "one_cycle")


class Schedule(Section):
    """What all schedules have."""

    warmup_updates: Whole = Field(default=0, ge=0, description="A straight line up to the full rate first.")

    @property
    def options(self) -> dict[str, Any]:
        """The schedule's own keys."""
        return self.model_dump(exclude={"name", "warmup_updates"})


class ConstantSchedule(Schedule):
    """The factor 1."""

    name: Literal["constant"] = Field(default="constant", description="No schedule unless one is asked for.")


class StepSchedule(Schedule):
    """Times `gamma` after every `every_updates` updates."""

    name: Literal["step"] = Field(description="As torch's StepLR.")
    every_updates: Whole = Field(ge=1, description="Length of a step, in updates of all workers.")
    gamma: float = Field(default=0.1, gt=0, description="What each step multiplies the rate by.")


class LinearSchedule(Schedule):
    """A straight line from 1 to `final_factor` over the planned updates."""

    name: Literal["linear"] = Field(description="As torch's LinearLR.")
    final_factor: float = Field(default=0.0, ge=0, description="The factor at the end.")


class CosineSchedule(Schedule):
    """Half a cosine from 1 to `final_factor` over the planned updates."""

    name: Literal["cosine"] = Field(description="As torch's CosineAnnealingLR.")
    final_factor: float = Field(default=0.0, ge=0, description="The factor at the end.")


class OneCycleSchedule(Schedule):
    """Up to the full rate and down again."""

    name: Literal["one_cycle"] = Field(description="As torch's OneCycleLR, without its momentum cycle.")
    peak_fraction: float = Field(default=0.3, gt=0, lt=1, description="The part of the updates that goes up.")


class OwnSchedule(Schedule):
    """A user's own: called with the global update count, answers the factor."""

    name: ClassPath = Field(
        description="A function, or a class that is built with init_args and then called.",
        json_schema_extra={"pattern": r"\."},  # or an editor would take `linear` for one, too, and refuse it
    )
    init_args: InitArgs = Field(default={}, description="Its keyword arguments.")

    @property
    def options(self) -> dict[str, Any]:
        return {"init_args": dict(self.init_args)}


def _name_of(value: Any) -> Any:
    if isinstance(value, Mapping):
        return value.get("name", "constant")
    return getattr(value, "name", "constant")


def _known(value: Any) -> Any:
    name = _name_of(value)
    if not isinstance(name, str) or (name not in SCHEDULES and "." not in name):
        raise rule(f"must be one of {', '.join(SCHEDULES)}, or a class path", at="name", code="config/unknown-choice")
    return value


def _kind(value: Any) -> str:
    name = _name_of(value)
    return TAG + (name if name in SCHEDULES else "own")


LrSchedule = Annotated[
    Annotated[ConstantSchedule, Tag(TAG + "constant")]
    | Annotated[StepSchedule, Tag(TAG + "step")]
    | Annotated[LinearSchedule, Tag(TAG + "linear")]
    | Annotated[CosineSchedule, Tag(TAG + "cosine")]
    | Annotated[OneCycleSchedule, Tag(TAG + "one_cycle")]
    | Annotated[OwnSchedule, Tag(TAG + "own")],
    Discriminator(_kind),
    BeforeValidator(_known),
]


SGD = "torch.optim.SGD"


class FrozenUntil(Section):
    """Parameters that the first updates leave alone: a backbone, until the new head has learnt something."""

    params: list[str] = Field(min_length=1, description="Patterns (as in a shell) of parameter names.")
    until: Whole = Field(ge=1, description="The update of the whole job that trains them first, counted from 0.")


def _frozen_kind(value: Any) -> str:
    return TAG + ("until" if isinstance(value, Mapping | FrozenUntil) else "pattern")


Frozen = Annotated[
    Annotated[str, Tag(TAG + "pattern")] | Annotated[FrozenUntil, Tag(TAG + "until")], Discriminator(_frozen_kind)
]


class InitFrom(Section):
    """Values that the model starts from, for those of its tensors that the file has."""

    path: str = Field(
        min_length=1,
        description="A state_dict (.pt, .pth, .bin), a .safetensors file, a checkpoint or a run directory.",
    )
    skip: list[str] = Field(
        default=[], description="Patterns of tensor names that keep their own first values: a head of another size."
    )


def _init_kind(value: Any) -> str:
    return TAG + ("map" if isinstance(value, Mapping | InitFrom) else "path")


Initial = Annotated[
    Annotated[str, Tag(TAG + "path"), Field(min_length=1)] | Annotated[InitFrom, Tag(TAG + "map")],
    Discriminator(_init_kind),
]


class Model(Component):
    """The module to train."""

    init_from: Initial | None = Field(
        default=None,
        description="What it starts from instead of its constructor's values; looked for like a file of your own.",
    )
    freeze: list[Frozen] = Field(
        default=[],
        description="Patterns (as in a shell) of parameter names that are not trained, for good or until an update.",
    )
    memory_format: Literal["auto", "contiguous", "channels_last"] = Field(
        default="auto",
        description="auto: channels_last, a third faster on the CPU, if there is a Conv2d and the model works in it.",
    )
    compile: Literal["none", "script", "inductor"] = Field(
        default="none", description="script: TorchScript; inductor: torch.compile, once for all workers, and kept."
    )


class Loss(Component):
    """Called as loss(output, target); must answer one number."""

    class_path: ClassPath = Field(default="torch.nn.CrossEntropyLoss", description="A classifier's usual loss.")


class Split(Section):
    """Validation data cut from the training data by the job's seed."""

    fraction: float = Field(gt=0, lt=1, description="The part of the training data that is held back.")


def _val_kind(value: Any) -> str:
    is_map = isinstance(value, Mapping) and "class_path" not in value and any(str(key)[:1] == "f" for key in value)
    return TAG + ("split" if is_map or isinstance(value, Split) else "component")


Val = Annotated[
    Annotated[Component, Tag(TAG + "component")] | Annotated[Split, Tag(TAG + "split")],
    Discriminator(_val_kind),
]


class Padding(Section):
    """How records of different length become one batch: (B, longest of the batch, ...), and lengths (B,) after it."""

    value: float = Field(default=0, description="What fills up the shorter ones.")
    longest: Whole | None = Field(default=None, ge=1, description="The most there can be; null: measured.")
    target: float = Field(default=-100, description="What fills up targets that vary; torch's losses ignore -100.")


class Data(Section):
    """What is trained on, and how it reaches the workers."""

    train: Component = Field(description="A dataset of (input, ..., target): map-style, iterable, or an iterator.")
    val: Val | None = Field(default=None, description="Evaluated: a dataset, {fraction: f}, or nothing.")
    batch_size: Whole = Field(default=64, ge=1, description="Samples; the batch is the unit of the ledger.")
    transform: Component | None = Field(default=None, description="transform(*inputs, target) of a training batch.")
    on_bad_line: Literal["fail", "skip"] = Field(
        default="fail", description="A line of a text file that does not parse; skip: counted, and said."
    )
    drop_last: bool = Field(default=False, description="Leaves out the last, smaller batch of an epoch.")
    feed: Literal["auto", "resident", "stream"] = Field(
        default="auto", description="resident: all in shared memory; stream: loaders fill slots; auto: what fits."
    )
    loaders: Loaders = Field(default="auto", description="Processes that read a stream; auto: as many as workers.")
    collate: Component | None = Field(
        default=None, description="collate_fn([record, ...]) of a streamed batch, as in DataLoader."
    )
    padding: Padding | None = Field(
        default=None, description="Sequences are padded to the longest of their batch; lengths follow them."
    )
    slots: Slots = Field(
        default="auto",
        description="Batches that a stream's ring holds; auto: twice what workers and loaders have in hand.",
    )
    slot_bytes: Slots = Field(default="auto", description="Of a batch of a stream; auto: measured on the first.")
    shuffle: Literal["auto", "full", "chunked", "none"] = Field(
        default="auto",
        description="full (auto): a seeded permutation per epoch; chunked: of neighbourhoods, kinder to memory.",
    )
    lanes: Whole | None = Field(
        default=None, ge=1, description="Rows continue each other: so many rows of batches, each with its state."
    )


class Group(Section):
    """Parameters with settings of their own: no weight decay for biases, a smaller rate for a backbone."""

    params: list[str] = Field(min_length=1, description="Patterns (as in a shell) of parameter names.")
    init_args: InitArgs = Field(default={}, description="Instead of the optimizer's own, for these alone.")


class Optimizer(Component):
    """Any torch.optim class; every worker applies it to the shared parameters."""

    class_path: ClassPath = Field(default=SGD, description="Hogwild's proofs are about plain SGD.")
    state: Literal["auto", "private", "shared"] = Field(
        default="auto",
        description="Momentum and the like: per worker, or one for all, without a lock; auto: one where gradients are "
        "sparse, and for RAdam.",
    )
    groups: list[Group] = Field(
        default=[], description="The first that matches takes a parameter; what is left has the settings above."
    )

    @model_validator(mode="before")
    @classmethod
    def _default_lr(cls, value: Any) -> Any:
        """SGD without an lr gets the one this project's examples use, not torch's 0.001."""
        if not isinstance(value, Mapping) or value.get("class_path", SGD) != SGD:
            return value
        init_args = value.get("init_args", {})
        if not isinstance(init_args, Mapping) or "lr" in init_args:
            return value
        return {**value, "init_args": {"lr": 0.01, **init_args}}


class Train(Section):
    """How long, on what, by how many."""

    procs: Procs = Field(default="auto", description="Workers; 0 trains inside the parent, for pdb.")
    threads: Threads = Field(default="auto", description="Per worker; auto: OMP_NUM_THREADS, or cores / procs.")
    epochs: Whole = Field(default=1, ge=1, description="Every sample once per epoch, over all workers.")
    max_updates: Whole | None = Field(default=None, ge=1, description="Ends the job after exactly so many.")
    max_time_s: Seconds | None = Field(default=None, description="From the first update; then it stops, resumable.")
    device: Device = Field(
        default="auto",
        description="auto, cpu, cuda or cuda:N. auto: a GPU if there is one.",
    )
    device_per_worker: list[Annotated[Whole, Field(ge=0, le=999)]] | None = Field(
        default=None, description="The GPU of each worker, by index; null: worker k takes k modulo their number."
    )
    placement: Literal["auto", "cpu", "cuda-replica", "cuda-shared"] = Field(
        default="auto",
        description="cuda-replica: a copy on each worker's GPU, exchanged through host memory; cuda-shared: on one "
        "GPU, written by all; auto: as the device.",
    )
    update: Literal["auto", "autograd", "fused"] = Field(
        default="auto", description="fused: the model's own kernel, or an error; auto: that, or autograd, and why."
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="Of forward and loss, by torch's autocast; parameters stay float32."
    )
    exchange: Literal["auto", "direct", "delta"] = Field(
        default="auto",
        description="direct: each update goes in; delta: sums of sync_every; auto: the faster, measured.",
    )
    sync_every: Whole = Field(
        default=16, ge=1, le=MAX_ITEM_BATCHES, description="Updates between two exchanges of delta."
    )
    max_staleness: Whole | None = Field(
        default=None, ge=0, description="Drops an update older than so many updates of others; counted as skipped."
    )
    pin: bool = Field(default=False, description="Gives each worker cores of its own, where there are enough.")
    flush_denormal: bool = Field(
        default=True, description="Numbers below 1e-38 become 0; with them arithmetic is up to 100 times slower."
    )
    grad_clip: float | None = Field(default=None, gt=0, description="Larger gradient norms shrink to it.")
    accumulate: Whole = Field(
        default=1, ge=1, le=MAX_ITEM_BATCHES, description="Batches per update; a commit word counts them in 16 bits."
    )


def _metrics_kind(value: Any) -> str:
    return TAG + ("list" if isinstance(value, list | tuple) else "auto")


Metrics = Annotated[
    Annotated[Literal["auto"], Tag(TAG + "auto")] | Annotated[list[Metric], Field(max_length=MOST), Tag(TAG + "list")],
    Discriminator(_metrics_kind),
]


class Evaluate(Section):
    """What is measured on the validation data, and when it is enough."""

    every_epochs: Whole | None = Field(default=1, ge=1, description="Training pauses meanwhile; null: only at the end.")
    every_updates: Whole | None = Field(default=None, ge=1, description="Besides, every so many updates.")
    metrics: Metrics = Field(
        default="auto", description="auto: what suits the loss, or what the model names in its attribute `metrics`."
    )
    monitor: MetricName = Field(default="loss", description="The metric that says which checkpoint is the best.")
    mode: Literal["auto", "min", "max"] = Field(default="auto", description="auto: known for our own metrics.")
    target: dict[MetricName, float] = Field(
        default={}, description="Ends the job as succeeded at the first evaluation that meets all of them."
    )
    patience: Whole | None = Field(
        default=None, ge=1, description="Ends the job after so many evaluations in a row without a better `monitor`."
    )


class Checkpoint(Section):
    """What a crash of the parent, or of the machine, may cost."""

    every_s: Seconds | None = Field(default=60.0, description="The most seconds of work that can be lost.")
    every_updates: Whole | None = Field(default=None, ge=1, description="The same in updates.")
    keep: Whole = Field(default=3, ge=1, description="More than one, should the newest be damaged.")
    keep_best: bool = Field(default=True, description="The best evaluation's is made at once, and kept.")
    on_signal: bool = Field(default=True, description="Ctrl-C and SIGTERM write one before stopping.")


class Supervise(Section):
    """When a worker counts as lost, and what is done about it."""

    max_restarts: Whole = Field(default=10, ge=0, description="Of one worker in window_s, or 3 failed starts.")
    window_s: Seconds = Field(default=60.0, description="Deaths further apart than this are no crash loop.")
    start_timeout_s: Seconds = Field(default=120.0, description="To the first commit; imports can be slow.")
    stall_timeout_s: Seconds = Field(default=60.0, description="Silence is a hang; slow batches raise it.")
    deadlock_timeout_s: Seconds = Field(default=300.0, description="No commit by anybody fails the job.")
    grace_s: Seconds = Field(default=10.0, description="For workers to park at a stop, then to leave, before SIGKILL.")
    min_workers: Whole = Field(default=1, ge=1, description="With fewer left the job fails.")
    spares: Whole = Field(default=0, ge=0, le=64, description="Processes that wait, torch imported, to replace one.")
    max_item_attempts: Whole = Field(default=3, ge=1, description="What killed so many workers is put aside.")
    on_nan: Literal["skip", "rollback", "fail"] = Field(
        default="skip",
        description="A loss or gradient that is not finite; rollback: many of them, to the last good checkpoint.",
    )
    on_indeterminate: Literal["redo", "skip"] = Field(
        default="redo",
        description="An update that a death interrupted: applied once or twice, or once or never.",
    )


class Log(Section):
    """What is written down while training."""

    jsonl: bool = Field(default=True, description="metrics.jsonl, for programs; events.jsonl is always written.")
    tensorboard: Progress = Field(default="auto", description="auto: where its package is installed.")
    histograms_every: Whole | None = Field(
        default=None, ge=1, description="Parameters as TensorBoard histograms, every so many evaluations."
    )
    progress: Progress = Field(default="auto", description="The line on stderr; auto: only on a terminal.")
    every_s: Seconds = Field(default=1.0, description="Between two records.")


def _default_optimizer() -> Optimizer:
    return Optimizer.model_validate({})  # through the validator, which fills in lr


class Job(Section):
    """One job of hogwild: lock-free training of one model by N processes."""

    version: Version = Field(default=1, description="Of this file's format.")
    name: FileName = Field(default="job", description="Begins the run directory's name; default: the file's stem.")
    seed: Whole = Field(default=1, ge=0, description="Of all that is random: initial values, order, dropout.")
    model: Model
    loss: Loss = Field(default_factory=Loss)
    data: Data
    optimizer: Optimizer = Field(default_factory=_default_optimizer)
    lr_schedule: LrSchedule = Field(default_factory=ConstantSchedule)
    train: Train = Field(default_factory=Train)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    supervise: Supervise = Field(default_factory=Supervise)
    log: Log = Field(default_factory=Log)

    def to_yaml(self) -> str:
        """The resolved job file: every field, and read back by `load_job` as an equal job."""
        from hogwild.config.strict_yaml import dump

        return dump(self.model_dump())


def surely_streams(job: Job) -> bool:
    """Loaders will read the training data, whatever it is. A job that streams because its data set is an iterable, or
    does not fit into memory, is not among these."""
    data = job.data
    is_asked_for = data.feed == "stream" or data.collate is not None or data.padding is not None
    return is_asked_for and data.lanes is None and data.feed != "resident" and job.train.procs != 0


def cannot_stream(job: Job) -> str:
    """Why no loader will be there; "" where some will, or may."""
    if job.train.procs == 0:
        return "train.procs: 0 reads in the parent"
    if job.data.lanes is not None:
        return "data.lanes keeps its data in memory"
    return "data.feed: resident" if job.data.feed == "resident" else ""


def loaders_for(job: Job, procs: int) -> int:
    """How many processes read a stream: as many as train; more would take cores from them. 1 in `procs: 0`, where the
    only process there is does it."""
    if procs == 0:
        return 1
    return procs if job.data.loaders == "auto" else job.data.loaders
