"""The job file as one frozen tree: every field with its type, range, default and reason.

Torch-free. Rules that types cannot express (arguments of torch classes, fields that must agree) are in `rules.py`,
error messages in `rules.py` too, loading in `load.py`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from hogwild.config.values import above_zero, ascending, each_once, field_path, one_kind, plain, rule
from hogwild.devices.kinds import accelerators
from hogwild.formatting import brief, one_line
from hogwild.metrics import catalog
from hogwild.metrics.catalog import MOST
from hogwild.scheduling.work_queue import MAX_ITEM_BATCHES

MAX_SECONDS = 1e9  # 30 years; the operating system's timers overflow somewhere beyond
MAX_WHOLE = 2**63 - 1  # the maximum of a word of shared memory
TAG = "tag:"  # prefix of pydantic's union tags in an error's location; they are no keys of the file


def _fits(number: int) -> int:
    if abs(number) > MAX_WHOLE:
        raise rule("must fit into 64 bits", code="config/out-of-range")
    return number


def _class_path(text: str) -> str:
    parts = text.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise rule("must be a dotted path to a class or function, such as mymodel.Net", code="config/class-path")
    return text


def _file_name(text: str) -> str:
    if not text.strip() or len(text) > 100 or text[0] in ".-" or not text.isprintable() or set(text) & set("/\\"):
        raise rule(
            "must be usable as a folder name: 1 to 100 characters, no slash, no leading dot or dash",
            code="config/bad-name",
        )
    return text


def _tags(found: list[str]) -> list[str]:
    for one in found:
        if one != one.strip() or not 0 < len(one) <= 50 or not one.isprintable() or "," in one:
            words = "must be tags of 1 to 50 printable characters, without a comma or a space at an end"
            raise rule(f"{words}, got {one[:50]!r}", code="config/bad-name")
    if len(found) > 20 or len({*found}) < len(found):
        raise rule("must be at most 20 tags, each once", code="config/bad-name")
    return found


def _auto_or_whole(low: int, high: int) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value == "auto" or (type(value) is int and low <= value <= high):
            return value
        code = "config/out-of-range" if type(value) is int else "config/wrong-type"
        raise rule(f"must be auto or a whole number from {low} to {high}", code=code)

    return BeforeValidator(check)


def _auto_or_bool(value: Any) -> Any:
    if value == "auto" or isinstance(value, bool):
        return value
    raise rule("must be auto, true or false", code="config/wrong-type")


def _auto_or_seconds(value: Any) -> Any:
    """Check the time between two rounds of a cluster."""
    if value == "auto" or (type(value) in (int, float) and 0 < value <= MAX_SECONDS):
        return value if value == "auto" else float(value)
    raise rule("must be auto or a number of seconds above 0", code="config/wrong-type")


def _version(value: Any) -> Any:
    if value != 1 or type(value) is not int:
        raise rule("must be 1, the only version of the job file", code="config/unknown-choice")
    return value


def _metric_name(text: str) -> str:
    """Check the name under which a metric is reported: its own, or the last part of a class path."""
    if not text.isidentifier() and not catalog.RANKED.match(text):
        raise rule(
            "must be a metric's name, such as loss or accuracy (hogwild list metrics)", code="config/unknown-metric"
        )
    return text


def _metric(text: str) -> str:
    if catalog.is_own(text):
        return _class_path(text)
    if catalog.known(text) is None:
        raise rule(
            f"must be one of {', '.join(catalog.CATALOG)}, or the class path of your own function",
            code="config/unknown-metric",
        )
    return text


def _device(value: Any) -> Any:
    kind, colon, index = value.partition(":") if isinstance(value, str) else ("", "", "")
    is_index = index.isascii() and index.isdigit() and len(index) <= 3
    if kind in accelerators() and (is_index if colon else True):
        return value
    if value in ("auto", "cpu"):
        return value
    raise rule("must be auto, cpu, cuda or cuda:N", code="config/unknown-choice")


def nbytes(value: str | int) -> int:
    """Return the bytes of a size such as `4 GiB` or `500 MB`. Raises pydantic's ValidationError."""
    return int(TypeAdapter(ByteSize).validate_python(value))


def _size(value: Any) -> Any:
    try:
        if type(value) in (int, str) and nbytes(value) > 0:
            return value
    except ValidationError:
        pass
    raise rule("must be a size, such as 4 GiB or 500 MB", code="config/wrong-type")


Whole = Annotated[int, AfterValidator(_fits)]
Size = Annotated[str | int, BeforeValidator(_size)]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Procs = Annotated[Literal["auto"] | Annotated[int, Field(ge=0, le=1024)], _auto_or_whole(0, 1024)]
Threads = Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=1024)], _auto_or_whole(1, 1024)]
Loaders = Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=256)], _auto_or_whole(1, 256)]
Slots = Annotated[Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_WHOLE)], _auto_or_whole(1, MAX_WHOLE)]
Device = Annotated[str, BeforeValidator(_device)]
Progress = Annotated[Literal["auto"] | bool, BeforeValidator(_auto_or_bool)]
Rounds = Annotated[Literal["auto"] | float, BeforeValidator(_auto_or_seconds)]
Version = Annotated[Literal[1], BeforeValidator(_version)]
FileName = Annotated[str, AfterValidator(_file_name)]
Tags = Annotated[list[str], AfterValidator(_tags)]
ClassPath = Annotated[str, AfterValidator(_class_path)]
MetricName = Annotated[str, AfterValidator(_metric_name)]
Metric = Annotated[str, AfterValidator(_metric)]
InitArgs = Annotated[dict[str, Any], AfterValidator(plain)]


class Section(BaseModel):
    """One map of the job file: strict types, no unknown keys, frozen."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    __repr__ = __str__ = brief


class Component(Section):
    """Any importable class or function and its keyword arguments."""

    class_path: ClassPath = Field(description="Import path; user code needs no registration.")
    init_args: InitArgs = Field(default={}, description="Keyword arguments, read as YAML 1.2.")


SCHEDULES = ("constant", "step", "linear", "cosine", "one_cycle")


class Schedule(Section):
    """Fields of all schedules."""

    warmup_updates: Whole = Field(default=0, ge=0, description="Updates of the linear warm-up to the full rate.")

    @property
    def options(self) -> dict[str, Any]:
        """Return the fields that only this schedule has."""
        return self.model_dump(exclude={"name", "warmup_updates"})


class ConstantSchedule(Schedule):
    """A constant rate."""

    name: Literal["constant"] = Field(default="constant", description="The default.")


class StepSchedule(Schedule):
    """Multiply the rate by `gamma` every `every_updates` updates."""

    name: Literal["step"] = Field(description="Like torch's StepLR.")
    every_updates: Whole = Field(ge=1, description="Length of a step, in updates of all workers.")
    gamma: float = Field(default=0.1, gt=0, description="Factor on the rate at each step.")


class LinearSchedule(Schedule):
    """A linear change of the factor from 1 to `final_factor` over the planned updates."""

    name: Literal["linear"] = Field(description="Like torch's LinearLR.")
    final_factor: float = Field(default=0.0, ge=0, description="Factor at the end.")


class CosineSchedule(Schedule):
    """A half cosine from 1 to `final_factor` over the planned updates."""

    name: Literal["cosine"] = Field(description="Like torch's CosineAnnealingLR.")
    final_factor: float = Field(default=0.0, ge=0, description="Factor at the end.")


class OneCycleSchedule(Schedule):
    """A rise to the full rate, then a fall."""

    name: Literal["one_cycle"] = Field(description="Like torch's OneCycleLR, without its momentum cycle.")
    peak_fraction: float = Field(default=0.3, gt=0, lt=1, description="Fraction of updates in which the rate rises.")


class OwnSchedule(Schedule):
    """Your own schedule: called with the number of updates of all workers, returns the factor."""

    name: ClassPath = Field(
        description="A function, or a class: built with init_args, then called.",
        json_schema_extra={"pattern": r"\."},  # otherwise `linear` matches twice, and editors refuse it
    )
    init_args: InitArgs = Field(default={}, description="Keyword arguments.")


class TorchSchedule(Schedule):
    """A scheduler of torch, stepped on a stand-in of the optimizer; `ReduceLROnPlateau` looks at `evaluate.monitor`.
    Or a function or class of your own, as with `name`."""

    class_path: ClassPath = Field(
        description="A class of torch.optim.lr_scheduler, a subclass of its LRScheduler, or your own schedule."
    )
    init_args: InitArgs = Field(default={}, description="Keyword arguments without the optimizer.")
    every: Literal["auto", "update", "epoch"] = Field(
        default="auto",
        description="What it counts; auto: epochs, for OneCycleLR and CyclicLR updates.",
    )

    @property
    def name(self) -> str:
        return self.class_path


def _name_of(value: Any) -> Any:
    if isinstance(value, Mapping) and "class_path" in value:
        return None
    return value.get("name", "constant") if isinstance(value, Mapping) else getattr(value, "name", "constant")


def _known(value: Any) -> Any:
    name = _name_of(value)
    if name is None:
        return value
    if not isinstance(name, str) or (name not in SCHEDULES and "." not in name):
        raise rule(f"must be one of {', '.join(SCHEDULES)}, or a class path", at="name", code="config/unknown-choice")
    return value


def _kind(value: Any) -> str:
    name = _name_of(value)
    if name is None or isinstance(value, TorchSchedule):
        return TAG + "torch"
    return TAG + (name if name in SCHEDULES else "own")


LrSchedule = Annotated[
    Annotated[ConstantSchedule, Tag(TAG + "constant")]
    | Annotated[StepSchedule, Tag(TAG + "step")]
    | Annotated[LinearSchedule, Tag(TAG + "linear")]
    | Annotated[CosineSchedule, Tag(TAG + "cosine")]
    | Annotated[OneCycleSchedule, Tag(TAG + "one_cycle")]
    | Annotated[OwnSchedule, Tag(TAG + "own")]
    | Annotated[TorchSchedule, Tag(TAG + "torch")],
    Discriminator(_kind),
    BeforeValidator(_known),
]


SGD = "torch.optim.SGD"


class FrozenUntil(Section):
    """Parameters that are frozen at first: for example a backbone, until the new head has learnt something."""

    params: list[str] = Field(min_length=1, description="Shell patterns (* and ?) of parameter names.")
    until: Whole = Field(ge=1, description="Number of updates of all workers after which they are trained.")


def _map_or_text(value: Any) -> str:
    return TAG + ("map" if isinstance(value, Mapping | Section) else "text")


def _list_or_text(value: Any) -> str:
    return TAG + ("list" if isinstance(value, list | tuple) else "text")


Frozen = Annotated[
    Annotated[str, Tag(TAG + "text")] | Annotated[FrozenUntil, Tag(TAG + "map")], Discriminator(_map_or_text)
]


class InitFrom(Section):
    """Initial values from a file, for the model's tensors that it contains."""

    path: str = Field(
        min_length=1,
        description="state_dict (.pt, .pth, .bin), .safetensors file, checkpoint or run directory; or word vectors "
        "(word2vec, GloVe), which go into an nn.Embedding by name.",
    )
    skip: list[str] = Field(
        default=[], description="Patterns of tensors that keep the constructor's values, such as a new head."
    )
    gone: Literal["keep", "drop"] | Annotated[Whole, Field(ge=1)] = Field(
        default="keep",
        description="Rows whose name (user, item, word, …) the data lacks: keep them, drop them, or keep them for that "
        "many runs.",
    )
    optimizer_state: bool = Field(
        default=True, description="Whether a checkpoint's optimizer state is used too, if it is of the same optimizer."
    )


Initial = Annotated[
    Annotated[str, Tag(TAG + "text"), Field(min_length=1)] | Annotated[InitFrom, Tag(TAG + "map")],
    Discriminator(_map_or_text),
]


class Model(Component):
    """The torch module to train."""

    init_from: Initial | None = Field(
        default=None, description="File with initial values, searched for like data files; null: the constructor's."
    )
    freeze: list[Frozen] = Field(
        default=[], description="Shell patterns (* and ?) of parameters not to train, always or until an update."
    )
    memory_format: Literal["auto", "contiguous", "channels_last"] = Field(
        default="auto", description="auto: channels_last (a third faster on CPUs) for models with Conv2d that allow it."
    )
    compile: Literal["none", "script", "inductor"] = Field(
        default="none", description="script: TorchScript; inductor: torch.compile, once for all workers and cached."
    )


class Loss(Component):
    """The loss function: called as loss(output, target), returns one number."""

    class_path: ClassPath = Field(default="torch.nn.CrossEntropyLoss", description="The usual loss of a classifier.")


class Split(Section):
    """Validation data drawn at random from the training data, by the job's seed."""

    fraction: float = Field(gt=0, lt=1, description="Fraction of the training data used for validation.")


def _val_kind(value: Any) -> str:
    is_map = isinstance(value, Mapping) and "class_path" not in value and any(str(key)[:1] == "f" for key in value)
    return TAG + ("split" if is_map or isinstance(value, Split) else "component")


Val = Annotated[
    Annotated[Component, Tag(TAG + "component")] | Annotated[Split, Tag(TAG + "split")],
    Discriminator(_val_kind),
]


class Padding(Section):
    """Padding of sequences to one batch: (B, longest of the batch, ...), followed by the lengths (B,)."""

    value: float = Field(default=0, description="Fill value of shorter sequences.")
    longest: Whole | None = Field(default=None, ge=1, description="Maximum length; null: measured.")
    target: float = Field(default=-100, description="Fill value of varying targets; torch's losses ignore -100.")


class Data(Section):
    """The training and validation data, and the way it reaches the workers."""

    train: Component = Field(description="Dataset of (input, ..., target): map-style, iterable, or an iterator.")
    val: Val | None = Field(default=None, description="Validation data: a dataset, {fraction: f} of `train`, or null.")
    batch_size: Whole = Field(default=64, ge=1, description="Samples per batch; work is leased and counted in batches.")
    transform: Component | None = Field(default=None, description="transform(*inputs, target) of each training batch.")
    on_bad_line: Literal["fail", "skip"] = Field(
        default="fail", description="Action for a line of text that cannot be parsed; skip: count and log it."
    )
    drop_last: bool = Field(default=False, description="Leave out the last batch of an epoch if it is smaller.")
    feed: Literal["auto", "resident", "stream"] = Field(
        default="auto", description="resident: in shared memory; stream: read during training; auto: what fits."
    )
    loaders: Loaders = Field(default="auto", description="Processes that read streamed data; auto: one per worker.")
    collate: Component | None = Field(default=None, description="collate_fn([record, ...]) for streamed data.")
    padding: Padding | None = Field(
        default=None, description="Pad sequences to the longest of their batch, and add their lengths."
    )
    slots: Slots = Field(
        default="auto",
        description="Buffer of streamed data, in batches; auto: twice what processes use at once, more for kernels.",
    )
    slot_bytes: Slots = Field(default="auto", description="Bytes per batch of streamed data; auto: measured.")
    shuffle: Literal["auto", "full", "chunked", "none"] = Field(
        default="auto",
        description="full (auto, but for texts): a new random order per epoch; chunked: random chunks, faster to read.",
    )
    sampler: Component | None = Field(
        default=None,
        description="Any torch.utils.data.Sampler: draws an epoch, as numbers of samples or as batches of them.",
    )
    lanes: Whole | None = Field(
        default=None, ge=1, description="For recurrent models: number of sequences that keep their state."
    )


class Group(Section):
    """A parameter group with its own settings, such as no weight decay for biases or a smaller rate for a backbone."""

    params: list[str] = Field(min_length=1, description="Shell patterns (* and ?) of parameter names.")
    init_args: InitArgs = Field(default={}, description="Optimizer arguments for these parameters only.")


class Optimizer(Component):
    """Any torch.optim class. Each worker applies it to the shared parameters."""

    class_path: ClassPath = Field(default=SGD, description="Plain SGD, the optimizer of the Hogwild proofs.")
    state: Literal["auto", "private", "shared"] = Field(
        default="auto",
        description="Momentum and the like. private: one per worker; shared: one for all, without a lock; auto: shared "
        "for sparse gradients, RAdam and FTRL.",
    )
    groups: list[Group] = Field(
        default=[], description="The first matching group applies; other parameters use the settings above."
    )

    @model_validator(mode="before")
    @classmethod
    def _default_lr(cls, value: Any) -> Any:
        """Set the lr of SGD to 0.01 if it is not given: torch's 0.001 is too small for the examples."""
        if not isinstance(value, Mapping) or value.get("class_path", SGD) != SGD:
            return value
        init_args = value.get("init_args", {})
        if not isinstance(init_args, Mapping) or "lr" in init_args:
            return value
        return {**value, "init_args": {"lr": 0.01, **init_args}}


class Train(Section):
    """Duration, device, and number of workers."""

    procs: Procs = Field(
        default="auto",
        description="Number of workers; 0: train in the parent process, for pdb; auto: one per CPU core, and one alone "
        "if the job trains for less than 2 s.",
    )
    procs_max: Whole | None = Field(
        default=None, ge=1, le=1024, description="Most workers that a running job may be resized to; null: train.procs."
    )
    threads: Threads = Field(
        default="auto",
        description="Threads per worker; auto: OMP_NUM_THREADS, or the cores that other jobs leave / procs.",
    )
    epochs: Whole = Field(default=1, ge=1, description="Passes over the data; the workers share each pass.")
    max_updates: Whole | None = Field(default=None, ge=1, description="Stop after exactly this many updates.")
    max_time_s: Seconds | None = Field(default=None, description="Seconds of training until the job stops, resumable.")
    device: Device = Field(default="auto", description="auto (a GPU if there is one), cpu, cuda or cuda:N.")
    device_per_worker: list[Annotated[Whole, Field(ge=0, le=999)]] | None = Field(
        default=None, description="GPU index of each worker; null: worker k uses GPU k modulo the number of GPUs."
    )
    placement: Literal["auto", "cpu", "cuda-replica", "cuda-shared"] = Field(
        default="auto",
        description="Place of the parameters. cuda-replica: one copy per worker on its GPU, exchanged in host memory; "
        "cuda-shared: one copy on one GPU, written by all workers; auto: by the device.",
    )
    graphs: Literal["off", "auto"] = Field(
        default="off",
        description="On a GPU, auto: replay updates as CUDA graphs where that does the same as the model's Python. Not "
        "yet run on a GPU, so off unless asked for.",
    )
    update: Literal["auto", "autograd", "fused"] = Field(
        default="auto", description="fused: the model's compiled kernel; auto: the kernel if possible, else autograd."
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        default="fp32", description="Precision of forward and loss, by torch.autocast; parameters stay float32."
    )
    exchange: Literal["auto", "direct", "delta"] = Field(
        default="auto", description="direct (auto): write each update; delta: write sums of sync_every."
    )
    sync_every: Whole = Field(default=16, ge=1, le=MAX_ITEM_BATCHES, description="Updates per exchange of delta.")
    max_staleness: Whole | None = Field(
        default=None, ge=0, description="Skip an update if others made more than N since it read the parameters."
    )
    pin: bool = Field(default=False, description="Bind each worker to its own CPU cores, if there are enough.")
    flush_denormal: bool = Field(
        default=True, description="Round numbers below 1e-38 to 0; they are up to 100 times slower."
    )
    grad_clip: float | None = Field(default=None, gt=0, description="Maximum gradient norm; null: no limit.")
    accumulate: Whole = Field(
        default=1, ge=1, le=MAX_ITEM_BATCHES, description="Batches per update; counted in 16 bits."
    )


def _metrics_kind(value: Any) -> str:
    return TAG + ("list" if isinstance(value, list | tuple) else "one" if value != "auto" else "auto")


Metrics = Annotated[
    Annotated[Literal["auto"], Tag(TAG + "auto")]
    | Annotated[Metric, AfterValidator(lambda one: [one]), Tag(TAG + "one")]
    | Annotated[list[Metric], Field(max_length=MOST), Tag(TAG + "list")],
    Discriminator(_metrics_kind),
]


class Evaluate(Section):
    """Evaluation on the validation data, and early stopping."""

    every_epochs: Whole | None = Field(default=1, ge=1, description="Evaluate every N epochs; null: only at the end.")
    every_updates: Whole | None = Field(default=None, ge=1, description="Also evaluate every N updates.")
    metrics: Metrics = Field(
        default="auto", description="One or more; auto: those that suit the loss, or the model's attribute `metrics`."
    )
    progressive: bool = Field(
        default=False,
        description="Score each training batch before it is learnt; records have the metrics of each log.every_s.",
    )
    monitor: MetricName = Field(default="loss", description="Metric that decides the best checkpoint.")
    mode: Literal["auto", "min", "max"] = Field(
        default="auto", description="Best value of `monitor`; auto: known for built-in metrics."
    )
    target: dict[MetricName, float] = Field(
        default={}, description="Stop with success when an evaluation reaches all of them."
    )
    patience: Whole | None = Field(
        default=None, ge=1, description="Stop after N evaluations without a better `monitor`."
    )
    restore_best: Progress = Field(
        default="auto", description="End with the weights of the best evaluation; auto: with patience and keep_best."
    )


class Checkpoint(Section):
    """Checkpoints: they limit the work that a crash of the parent or the machine can cost."""

    every_s: Seconds | None = Field(default=60.0, description="Seconds between checkpoints: what a crash can cost.")
    every_updates: Whole | None = Field(default=None, ge=1, description="Updates between checkpoints.")
    keep: Whole = Field(default=3, ge=1, description="Newest checkpoints to keep, in case one is damaged.")
    keep_best: bool = Field(default=True, description="Write a checkpoint at the best evaluation and keep it.")
    on_signal: bool = Field(
        default=True, description="Write a checkpoint before stopping on Ctrl-C, SIGTERM or SIGUSR1."
    )


class Supervise(Section):
    """Supervision: limits after which a worker counts as lost, and the reaction to it."""

    max_restarts: Whole = Field(
        default=10, ge=0, description="Restarts of one worker within window_s; after that it is not replaced."
    )
    window_s: Seconds = Field(default=60.0, description="Seconds: deaths further apart are not a crash loop.")
    start_timeout_s: Seconds = Field(default=120.0, description="Seconds for a worker's first batch; imports are slow.")
    stall_timeout_s: Seconds = Field(
        default=60.0, description="Seconds of silence until a worker is killed; slow batches raise it."
    )
    deadlock_timeout_s: Seconds = Field(
        default=300.0, description="Seconds without a finished batch until the job fails."
    )
    grace_s: Seconds = Field(
        default=10.0, description="Seconds to finish a batch at a stop, then to exit, before SIGKILL."
    )
    min_workers: Whole = Field(default=1, ge=1, description="The job fails if fewer workers are left.")
    spares: Whole = Field(
        default=0, ge=0, le=64, description="No effect: replacements start in 0.1 s. Ends with the next version."
    )
    max_item_attempts: Whole = Field(default=3, ge=1, description="Skip a batch after it crashed this many workers.")
    on_nan: Literal["skip", "rollback", "fail"] = Field(
        default="skip",
        description="For a loss or gradient that is not finite; rollback: after many, go back to a good checkpoint.",
    )
    on_indeterminate: Literal["redo", "skip"] = Field(
        default="redo", description="For an update that a crash interrupted. redo: perhaps twice; skip: perhaps lost."
    )


class Log(Section):
    """Records and progress display during training."""

    jsonl: bool = Field(default=True, description="Write metrics.jsonl, for programs; events.jsonl is always written.")
    tensorboard: Progress = Field(default="auto", description="Write TensorBoard files; auto: if it is installed.")
    histograms_every: Whole | None = Field(
        default=None, ge=1, description="Write parameter histograms to TensorBoard every N evaluations; null: never."
    )
    progress: Progress = Field(
        default="auto", description="Show progress on stderr: live on a terminal, else a line per 30 s."
    )
    every_s: Seconds = Field(default=1.0, description="Seconds between two records.")


class Cluster(Section):
    """Several nodes that train one model together, started by torchrun; `docs/cluster.md`."""

    engine: Literal["none", "torchrun"] = Field(
        default="none", description="torchrun: exchange with the other nodes that torchrun has started."
    )
    sync_every_s: Rounds = Field(
        default="auto", description="Seconds between two rounds; auto: 1, more if the pauses would take over 1 %."
    )
    outer: Literal["average", "nesterov"] = Field(
        default="average",
        description="Rule for the nodes' mean change. average: the mean itself; nesterov: rate 0.7, momentum 0.9, rows "
        "of sparse tables without.",
    )


class Resources(Section):
    """Resources that the service reserves for the job; without a service they mean nothing."""

    cpus: Whole | None = Field(default=None, ge=1, description="Physical cores; null: train.procs x train.threads.")
    memory: Size | None = Field(default=None, description="Memory to reserve, such as 4 GiB; null: none.")
    gpus: Whole = Field(default=0, ge=0, le=1024, description="GPUs; the job sees only these.")


class ElasticCores(Section):
    """Physical cores that the service may leave or give a running job, instead of those that it begins with."""

    min: Whole = Field(default=1, ge=1, le=1024, description="Fewest: others borrow the rest while they wait.")
    max: Threads = Field(default="auto", description="Most, if cores are free; auto: all of the machine.")


class Queue(Section):
    """The job in the service's queue; without a service it means nothing."""

    priority: Whole = Field(default=0, ge=-1000, le=1000, description="Higher ones start first; then older ones.")
    retries: Whole = Field(
        default=0, ge=0, le=1000, description="Times that a failed job is resumed by itself; lost ones always are."
    )
    max_duration_s: Seconds | None = Field(
        default=None, description="Seconds of all attempts until it is cancelled, with a checkpoint."
    )
    on_reboot: Literal["resume", "pause"] = Field(default="resume", description="After the machine was restarted.")
    elastic: ElasticCores | None = Field(
        default=None,
        description="Lend and borrow cores while the job runs; null: {min: 1, max: auto} where train.procs is auto, "
        "else off.",
    )


Ends = Annotated[list[float], Field(min_length=2, max_length=2), AfterValidator(ascending)]
WholeEnds = Annotated[list[Whole], Field(min_length=2, max_length=2), AfterValidator(ascending)]


class Range(Section):
    """The values that a search may give a field: one of these four."""

    log: Annotated[Ends, AfterValidator(above_zero)] | None = Field(
        default=None, description="[low, high], evenly by the logarithm: for rates and penalties."
    )
    uniform: Ends | None = Field(default=None, description="[low, high], evenly.")
    int: WholeEnds | None = Field(default=None, description="[low, high], whole numbers.")
    choice: Annotated[list[Any], Field(min_length=2), AfterValidator(each_once)] | None = Field(
        default=None, description="Any values, without an order."
    )

    _kind = model_validator(mode="before")(one_kind)

    @property
    def tested(self) -> list[tuple[tuple[Any, ...], Any]]:
        """The values that stand for all of them, each with its place below the range: both ends, or every choice."""
        found = ((kind, self.__dict__[kind]) for kind in type(self).model_fields)
        return [((kind, place), value) for kind, values in found if values for place, value in enumerate(values)]


class Search(Section):
    """A search for the best values of some fields by many trials (`hogwild search`); training ignores it."""

    space: dict[Annotated[str, AfterValidator(field_path)], Range] = Field(
        min_length=1, description="Fields of this file by their paths, and the values of each."
    )
    metric: (
        Annotated[
            Annotated[MetricName, Tag(TAG + "text")]
            | Annotated[list[MetricName], Field(min_length=2), AfterValidator(each_once), Tag(TAG + "list")],
            Discriminator(_list_or_text),
        ]
        | None
    ) = Field(default=None, description="Metric to optimise, or several: their Pareto front; null: evaluate.monitor.")
    trials: Whole | None = Field(default=50, ge=1, description="Number of trials; null: all, or until max_time_s.")
    max_time_s: Seconds | None = Field(default=None, description="Seconds until the search stops, resumable.")
    sampler: Annotated[
        Annotated[Literal["tpe", "random", "grid"], Tag(TAG + "text")] | Annotated[Component, Tag(TAG + "map")],
        Discriminator(_map_or_text),
    ] = Field(default="tpe", description="How values are chosen: one of Optuna's samplers by name, or a class of it.")
    pruner: Annotated[
        Annotated[Literal["hyperband", "median", "none"], Tag(TAG + "text")] | Annotated[Component, Tag(TAG + "map")],
        Discriminator(_map_or_text),
    ] = Field(
        default="hyperband",
        description="What ends a trial early, at an evaluation; or a class of Optuna's; several metrics: none.",
    )
    parallel: Threads = Field(
        default="auto", description="Trials at a time; auto: as many as there are cores for, or one; measured."
    )

    def metrics(self, monitor: str) -> list[str]:
        """Return the metrics to optimise; the first one decides which evaluation of a trial counts. `monitor`: of the
        job."""
        found = self.metric or monitor
        return [found] if isinstance(found, str) else found

    @property
    def has_classes(self) -> bool:
        """True if sampler or pruner is a class, which the schema does not know."""
        return isinstance(self.sampler, Component) or isinstance(self.pruner, Component)

    @model_validator(mode="before")
    @classmethod
    def _pruner_of_several(cls, given: Any) -> Any:
        is_several = isinstance(given, Mapping) and isinstance(given.get("metric"), list | tuple)
        return {"pruner": "none", **given} if is_several else given

    @model_validator(mode="after")
    def _ends(self) -> "Search":
        if self.trials is None and self.max_time_s is None and self.sampler != "grid":
            raise rule("must be a number, or max_time_s: it would never end", "trials", code="config/contradiction")
        if isinstance(self.metric, list) and self.pruner != "none":
            words = "must be none, or left out: Optuna prunes no trials of several metrics"
            raise rule(words, "pruner", code="config/contradiction")
        if self.sampler == "grid" and any(one.log or one.uniform for one in self.space.values()):
            raise rule("needs choice or int in every field of the space", "sampler", code="config/contradiction")
        return self


class Job(Section):
    """One job of hogwild: lock-free training of one model by N processes."""

    version: Version = Field(default=1, description="Version of the file format.")
    name: FileName = Field(default="job", description="Start of the run directory's name; default: the file's stem.")
    tags: Tags = Field(default=[], description="Words of yours, by which `runs`, `ps` and the page find the job.")
    seed: Whole = Field(default=1, ge=0, description="Random seed of initial values, sample order and dropout.")
    model: Model
    loss: Loss = Field(default_factory=Loss)
    data: Data
    optimizer: Optimizer = Field(default_factory=lambda: Optimizer.model_validate({}))  # its validator sets lr
    lr_schedule: LrSchedule = Field(default_factory=ConstantSchedule)
    train: Train = Field(default_factory=Train)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    supervise: Supervise = Field(default_factory=Supervise)
    log: Log = Field(default_factory=Log)
    cluster: Cluster = Field(default_factory=Cluster)
    resources: Resources = Field(default_factory=Resources)
    queue: Queue = Field(default_factory=Queue)
    search: Search | None = Field(default=None, description="Values to try (`hogwild search`); null: none.")

    def __repr__(self) -> str:
        return one_line(f"Job({self.name!r}: {self.model.class_path} on {self.data.train.class_path})")

    __str__ = __repr__

    def to_yaml(self) -> str:
        """Return the resolved job file with every field. `load_job` reads it back as an equal job."""
        from hogwild.config.strict_yaml import dump

        return dump(self.model_dump())


def restores_best(job: Job) -> bool:
    """Return whether a job that succeeds ends with the weights of its best evaluation."""
    wish = job.evaluate.restore_best
    return job.checkpoint.keep_best and (job.evaluate.patience is not None if wish == "auto" else wish)


def surely_streams(job: Job) -> bool:
    """Return whether the job file alone shows that loaders will read the training data. A job may also stream because
    its data set is an iterable or does not fit into memory."""
    data = job.data
    is_asked_for = data.feed == "stream" or data.collate is not None or data.padding is not None
    return is_asked_for and data.lanes is None and data.feed != "resident" and job.train.procs != 0


def cannot_stream(job: Job) -> str:
    """Return why the job has no loaders; "" if it has, or may have, some."""
    if job.train.procs == 0:
        return "train.procs: 0 reads in the parent process"
    if job.data.lanes is not None:
        return "data.lanes keeps the data in memory"
    return "data.feed: resident" if job.data.feed == "resident" else ""


def loaders_for(job: Job, procs: int) -> int:
    """Return the number of processes that read a stream. auto: one per worker; more would take cores from training.
    1 for `procs: 0`, where the parent reads."""
    if procs == 0:
        return 1
    return procs if job.data.loaders == "auto" else job.data.loaders
