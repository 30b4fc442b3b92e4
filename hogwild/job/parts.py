"""Everything a job is built from (`Parts`): model, data, loss, optimizer, as objects, and its functions beside them.

Their *trial*: the job's own code runs once on a few samples, before anything is laid out, to fail early on what would
fail later. One forward pass and one loss (or the model's own steps), and the metrics on samples of the validation data.

A job with workers sends its trial to the first of them (`workers/loading/loading.py`), on copies, so that a crash of
the user's native code is an error with a message. Elsewhere it runs on the job's own objects and leaves no trace:
random state and modes are restored, and no gradient is kept. `inspect` is the whole; it follows the trial."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from hogwild.config.load import Job
from hogwild.config.schema import Component, Evaluate, Split
from hogwild.errors import BuildError, DataError, HogwildError, ModelError, UsageError
from hogwild.feeds.batch import Transform, tried
from hogwild.feeds.row_reader import Reader, division, place_of
from hogwild.host.thread_pools import threads_for
from hogwild.job.changed_state import find_changed_state
from hogwild.job.identity import Identity
from hogwild.job.known_rows import NamedRows
from hogwild.job.source import Source
from hogwild.job.update_choice import UpdateChoice
from hogwild.job.weights import require_all_classes
from hogwild.losses import HingeLoss, LogisticLoss
from hogwild.metrics import catalog
from hogwild.metrics.catalog import JUDGED
from hogwild.metrics.loss_sums import BY_CLASS, Labels, as_module, parted
from hogwild.metrics.panel import Own, Panel
from hogwild.nn import tables_in
from hogwild.parameters.buffers import MergeRule
from hogwild.parameters.shared_model import OWN, converted, wants_channels_last
from hogwild.scheduling.batch_plan import SampledPlan
from hogwild.training.compiled_model import check_compiler, scripted
from hogwild.training.evaluator import evaluating
from hogwild.training.inference_mode import why_not as why_no_inference
from hogwild.training.loss_scaler import autocast, check_precision, device_type_of, widened
from hogwild.training.lr_schedule import Factor
from hogwild.training.model_steps import (
    MOST_NAMES,
    Losses,
    forward_of,
    has_evaluation_step,
    has_training_step,
    leaving_no_trace,
    predictor,
    try_training_step,
)
from hogwild.training.outputs import AllOutputs, leaves_of, mapped, of_rows
from hogwild.training.torch_schedule import SteppedScheduler
from hogwild.training.torch_settings import sparing_the_compiler
from hogwild.user_code import build, build_callable, raised_text, resolve

NORMS = (nn.modules.batchnorm._BatchNorm,)
OURS = ("hogwild.models.", "hogwild.losses", "hogwild.metrics.loss_sums", "torch.nn.modules.")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
EVERYWHERE = ("_global_forward_hooks", "_global_forward_pre_hooks")  # hooks of all modules
BROADCASTS = "Using a target size"  # the first words of torch's warning
ELEMENTWISE = (
    *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.PoissonNLLLoss, nn.KLDivLoss, nn.BCELoss),
    *(nn.BCEWithLogitsLoss, nn.SoftMarginLoss, nn.HingeEmbeddingLoss, LogisticLoss, HingeLoss),
)
SAMPLES = 3  # more than two: a loss that wrongly broadcasts (2, 2) over 2 labels fails with any other number


@dataclass(slots=True)
class Findings:
    """The results of a trial; on an `error`, those found before it. `memory_format`: the final one."""

    memory_format: str
    metrics: tuple[str, ...]
    notes: list[str] = field(default_factory=list)
    output: Any = None  # the model's output for no sample, (0, …), in an evaluation; None: it has no rows
    output_shape: tuple[int, ...] = ()  # of SAMPLES samples; () if it is not one tensor
    loss_names: tuple[str, ...] = ()  # further losses that a training_step returns
    writes_inputs: bool = False  # the model changes its inputs in place
    infers: bool = False  # evaluations run under inference_mode
    buffer_rules: dict[str, MergeRule] | None = None  # of buffers that training changes; None: not known
    error: HogwildError | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """The objects of a trial. `train`: the first samples as a batch, inputs first and target last; `single`: the first
    one, if a batch of one would be trained. `val`: the first samples of the validation data, and `spread`: samples from
    all of it. `memory_format`: the wish of the job; no `Job` here, whose import takes a worker long."""

    memory_format: str
    compile: str
    precision: str
    model: nn.Module
    loss: Any
    panel: Panel
    transform: Transform | None
    train: list[Any]
    single: list[Any] | None
    val: list[Any] | None
    spread: list[Any] | None

    @property
    def is_ours(self) -> bool:
        """True for a model, a loss and metrics of ours or torch's, to which nobody has attached code: it does not
        crash."""
        if self.transform is not None or self.panel.own or self.compile != "none":
            return False
        if not type(self.model).__module__.startswith("hogwild.models."):
            return False
        if any(getattr(nn.modules.module, name) for name in EVERYWHERE):
            return False
        losses = self.loss.modules() if isinstance(self.loss, nn.Module) else [self.loss]
        return all(map(_is_plain, [*self.model.modules(), *losses]))

    def run(self) -> Findings:
        """Try the job in its final memory format, which is decided here: channels_last if it is wanted and all of the
        job works in it. The error of the job's code is one of the findings."""
        wish = self.memory_format
        found = Findings(wish, self.panel.names)
        with sparing_the_compiler(), threads_for():
            if not wants_channels_last(self.model, wish):
                return self._run(found)
            with converted(self.model, wish):
                found = self._run(found, with_update=True)
            if found.error is None:
                return found
            contiguous = self._run(Findings(OWN, self.panel.names))
        if contiguous.error is not None:  # it fails in any format
            return contiguous
        words = (
            f"{type(self.model).__name__} fails in channels_last, which is faster (.reshape or .flatten instead of "
            f".view helps): {found.error}"
        )
        if wish == "channels_last":
            contiguous.error = ModelError(f"model.memory_format: {words}", code="model/memory-format")
        contiguous.notes.append(f"model.memory_format: contiguous, because {words}")
        return contiguous

    def _run(self, found: Findings, *, with_update: bool = False) -> Findings:
        try:
            _Pass(self, found).run(with_update=with_update)
        except HogwildError as error:
            found.error = error
        except (Exception, SystemExit) as error:  # our own mistake: user code's errors have been translated
            found.error = HogwildError(f"{type(error).__name__}: {error}", code="run/unexpected")
            found.error.__cause__ = error
        return found


def _is_plain(module: Any) -> bool:
    """Return whether a module's class is ours or torch's, and no instance holds a hook or a function."""
    if not type(module).__module__.startswith(OURS):
        return False
    tensors = [*module._parameters.values(), *module._buffers.values()]
    values = vars(module).values()
    return (
        all(type(tensor) in (Tensor, nn.Parameter, type(None)) for tensor in tensors)
        and not any(vars(module).get(name) for name in HOOKS)
        and not any(callable(value) and not isinstance(value, nn.Module) for value in values)
    )


class _Pass:
    """One pass of a trial, in one memory format."""

    def __init__(self, trial: Trial, found: Findings) -> None:
        self.trial, self.found = trial, found
        self.model, self.loss = trial.model, trial.loss

    def run(self, *, with_update: bool) -> None:
        self._try_forward()
        self._try_compiled()
        if self.trial.single is not None:
            self._refuse_single(self.trial.single)
        self._try_evaluation()
        if with_update:
            self._try_update()
        self._find_changed_state()

    def _try_forward(self) -> None:
        """Run one forward pass and one loss over the first samples, in evaluation mode."""
        model, loss_of = self.model, self.loss
        sample = transformed_copy(self._laid(self.trial.train), self.trial.transform)
        constructed = {id(param) for _, param in model.named_parameters()}
        output = loss = None

        def described() -> str:
            *inputs, target = (", ".join(map(_described, tree_leaves(field))) for field in sample)
            return (
                f"{_name(as_module(loss_of))} cannot compute a loss on the first samples (inputs {', '.join(inputs)}; "
                f"target {target})"
            )

        with _failing(lambda: f"{type(model).__name__} and {described()}"):
            if has_training_step(model):
                with self._autocast():
                    self.found.loss_names = try_training_step(model, loss_of, copied(sample))
            is_judged_so = self.trial.val is not None and not has_evaluation_step(model)
            written = [tensor._version for tensor in tree_leaves(sample)]
            if is_judged_so or not has_training_step(model):
                with evaluating(model), self._autocast():
                    inputs, weight = parted(loss_of, tuple(sample[:-1]))
                    output = forward_of(model)(*inputs)
                    self.found.output_shape = tuple(output.shape) if isinstance(output, Tensor) else ()
                    require_all_classes(loss_of, output)
                    _refuse_broadcast(as_module(loss_of), output, sample[-1])
                    loss = loss_of(output, sample[-1], *weight)
            self.found.writes_inputs = written != [tensor._version for tensor in tree_leaves(sample)]
        made = [name for name, param in model.named_parameters() if id(param) not in constructed]
        if made:
            raise ModelError(
                f"{type(model).__name__} creates parameter {made[0]} in forward, after the optimizer was built: it "
                "would never be trained. Create all parameters in the constructor",
                code="model/gained-parameters",
            )
        if loss is None and has_training_step(model):
            return
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
            got = _described(loss) if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise BuildError(
                f"{_name(loss_of)} returned {got}; a loss is one floating-point number in a tensor (reduction='mean')",
                code="model/bad-loss",
            )

    def _try_compiled(self) -> None:
        """Check the compiled model as far as possible before workers start: a script must compute the same samples;
        inductor needs its compiler."""
        if self.trial.compile == "inductor":
            check_compiler()
        if self.trial.compile != "script":
            return
        script = scripted(self.model)
        try:
            with evaluating(script), self._autocast():
                script(*self._inputs(self._laid(self.trial.train)))
        except Exception as error:
            raise ModelError(
                f"{type(self.model).__name__} fails on the first samples as TorchScript (model.compile: script), but "
                f"not without it: {str(error).strip()}",
                code="model/not-scriptable",
            ) from error

    def _refuse_single(self, sample: list[Any]) -> None:
        """Raise an error if a norm sees a single value per channel of a one-sample batch; an image has many."""
        starved: list[nn.Module] = []

        def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if inputs[0].numel() == inputs[0].shape[1]:
                starved.append(module)

        hooks = [m.register_forward_pre_hook(look) for m in self.model.modules() if isinstance(m, NORMS)]
        inputs = self._inputs(transformed_copy(self._laid(sample), self.trial.transform))
        name = type(self.model).__name__
        try:
            with (
                _failing(lambda: f"{name} cannot compute a batch of one sample, and the last batch has one"),
                evaluating(self.model),
                self._autocast(),
            ):
                self.model(*inputs)
        finally:
            for hook in hooks:
                hook.remove()
        if starved:
            raise DataError(
                "BatchNorm cannot train on a batch of one sample; use more samples or a larger data.batch_size",
                code="data/batch-norm",
            )

    def _try_evaluation(self) -> None:
        """Try the evaluation; leave out default metrics that do not suit."""
        if self.trial.val is None or self.trial.spread is None:
            return
        *inputs, target = self.trial.spread
        name = type(self.model).__name__
        with (
            _failing(lambda: f"{name} cannot be evaluated on {len(target)} samples"),
            evaluating(self.model),
            self._autocast(),
        ):
            output, judged = predictor(self.model, self.loss)(tuple(copied(inputs)), target)
            output = widened(output)
        whole, notes = of_rows(output, len(target)), self.found.notes
        has_rows, is_tensor = bool(leaves_of(whole)), isinstance(output, Tensor)
        panel = self.trial.panel
        if not has_rows and not is_tensor and panel.whole:
            words = f"{_name(output)} has no tensor with a row for each sample"
            notes += [f"evaluate.metrics: {one} is left out: the output, a {words}" for one in panel.whole]
            panel = replace(panel, names=tuple(one for one in panel.names if one not in panel.whole))
        panel = panel.select_metrics(output, judged, self.loss, whole if has_rows else output, notes)
        if panel.whole and (less := [name for name in leaves_of(output) if name not in leaves_of(whole)]) and has_rows:
            notes.append(f"evaluate.metrics: {', '.join(panel.whole)}: None stands for {', '.join(less)} of the output")
        self.found.metrics = panel.names
        self.found.output = mapped(whole, lambda _, one: one[:0].clone()) if has_rows else None
        if panel.whole and self.found.output is None:
            raise BuildError(
                f"evaluate.metrics: {', '.join(panel.whole)}: need one tensor with an output per sample, but "
                f"{len(target)} samples gave {_described(output) if isinstance(output, Tensor) else _name(output)}",
                code="model/metric",
            )
        if panel.whole and not (judged is target or torch.equal(judged, target)):
            raise BuildError(
                f"evaluate.metrics: {', '.join(panel.whole)}: computed with the targets of data.val, but "
                f"{type(self.model).__name__}.evaluation_step returns other targets",
                code="model/metric",
            )
        if self.trial.compile == "none":  # compiled code would keep tensors of an inference that it cannot use
            self._look_at_inference(self._laid(self.trial.val))

    def _look_at_inference(self, sample: list[Any]) -> None:
        """Decide whether evaluations may run under inference_mode."""
        *inputs, target = sample
        with evaluating(self.model):
            why = why_no_inference(self.model, lambda twin: predictor(twin, self.loss)(tuple(copied(inputs)), target))
        self.found.infers = why is None
        if why is not None:
            self.found.notes.append(
                f"evaluations run under torch.no_grad, not inference_mode: {type(self.model).__name__}: {why}"
            )

    def _try_update(self) -> None:
        """Run forward, loss and backward over the first samples, in the initial modes of training."""
        *inputs, target = transformed_copy(self._laid(self.trial.train), self.trial.transform)
        losses = Losses(self.model, self.loss, self.found.loss_names)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        try:
            with leaving_no_trace(self.model), self._autocast():
                torch.autograd.grad(losses.of(tuple(inputs), target), trained, allow_unused=True)
        except (Exception, SystemExit) as error:
            raise ModelError(raised_text(error), code="model/forward-failed") from error

    def _find_changed_state(self) -> None:
        """Look at what a training forward changes beside parameters; nothing to find where all code is ours."""
        modules = [*self.model.modules(), *(self.loss.modules() if isinstance(self.loss, nn.Module) else ())]
        if isinstance(self.loss, nn.Module) and all(map(_is_plain, modules)):
            self.found.buffer_rules = {}
            return
        *inputs, target = transformed_copy(self._laid(self.trial.train), self.trial.transform)
        losses = Losses(self.model, self.loss, self.found.loss_names)

        def forward() -> None:
            with self._autocast():
                losses.of(tuple(copied(inputs)), target.clone())

        try:
            changed = find_changed_state(self.model, self.loss, forward)
        except (Exception, SystemExit):  # too few samples for it, perhaps: an error of the code ends the first update
            return
        self.found.buffer_rules = changed.rules
        self.found.notes += changed.notes

    def _inputs(self, batch: list[Any]) -> tuple[Any, ...]:
        return parted(self.loss, tuple(batch[:-1]))[0]

    def _laid(self, batch: list[Any]) -> list[Any]:
        return laid(batch, self.model, self.found.memory_format)

    def _autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.trial.precision, device_type_of([*self.model.parameters()]))


@contextmanager
def _failing(words: Callable[[], str]) -> Iterator[None]:
    """Turn an error of the job's code into a ModelError: `words()`, then what was raised. So is torch's warning of a
    target that broadcasts, which may come from anywhere inside a user's loss or step."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", BROADCASTS, UserWarning)
            yield
    except BuildError:
        raise
    except (Exception, SystemExit) as error:
        is_broadcast = isinstance(error, UserWarning) and str(error).startswith(BROADCASTS)
        code = "model/broadcast" if is_broadcast else "model/forward-failed"
        message = f"{words()}: {raised_text(error)}" if is_broadcast else f"{raised_text(error)}\n{words()}"
        raise ModelError(message, code=code) from error


def _refuse_broadcast(loss: Any, output: Any, target: Any) -> None:
    """Raise ModelError if the loss broadcasts the target against the output, which then compares each sample with all
    others: by the shapes for a loss that compares element by element; any other, which may form them itself, by whether
    it matters which target belongs to which output."""
    if not isinstance(output, Tensor) or not isinstance(target, Tensor) or output.shape == target.shape:
        return
    try:
        # numpy's: torch's imports sympy.
        if np.broadcast_shapes(output.shape, target.shape) in (output.shape, target.shape):
            is_wrong = isinstance(loss, ELEMENTWISE)
        else:
            is_wrong = isinstance(loss, ELEMENTWISE) or _mixes_samples(loss, output, target)
    except ValueError:  # shapes that do not fit: the loss itself fails, or forms them
        return
    if is_wrong:
        shapes = f"the output is {_described(output)}, the target {_described(target)}"
        raise ModelError(
            f"{_name(loss)} broadcasts: {shapes} (of {len(target)} samples). Give both one shape, such as "
            "output.squeeze(-1) in forward, or y[:, None] in the data",
            code="model/broadcast",
        )


def _mixes_samples(loss: Any, output: Tensor, target: Tensor) -> bool:
    """Return whether it is all the same to the loss which target belongs to which output, but not if both have one
    shape. Tried with numbers that differ, as the first samples may be alike."""
    count = output.numel()
    if count != target.numel():
        return False
    rising = torch.linspace(0.1, 0.9, count)
    wanted = (rising > 0.5 if not target.is_floating_point() else rising).to(target.dtype)

    def is_same(shape: torch.Size) -> bool:
        targets = (wanted.reshape(shape), wanted.reshape(shape).roll(1, 0))
        one, other = (loss(rising.to(output.dtype).reshape(output.shape), each) for each in targets)
        return bool(torch.allclose(one, other, equal_nan=True))

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the loss says of shapes that the job does not have
        try:
            return is_same(target.shape) and not is_same(output.shape)
        except Exception:
            return False  # it takes targets of its own shape only, or will fail on the samples


def laid(batch: list[Any], model: nn.Module, memory_format: str) -> list[Any]:
    """Return copies, with images in the memory format that feeds will use."""
    channels_last = wants_channels_last(model, memory_format)
    form = torch.channels_last if channels_last else torch.contiguous_format
    batch = copied(batch)
    images = {id(leaf) for leaf in tree_leaves(batch)[:-1] if leaf.dim() == 4 and leaf.is_floating_point()}
    changed: list[Any] = tree_map(lambda leaf: leaf.to(memory_format=form) if id(leaf) in images else leaf, batch)
    return changed


def transformed_copy(sample: list[Any], transform: Transform | None) -> list[Any]:
    """Return the batch as it is trained on. The random state stays unchanged."""
    if transform is None:
        return sample
    with torch.random.fork_rng(devices=[]):
        return [*tried(transform, sample)]


def copied(batch: list[Any]) -> list[Any]:
    copied: list[Any] = tree_map(torch.clone, batch)
    return copied


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _name(loss: Any) -> str:
    return getattr(loss, "__name__", type(loss).__name__)


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
    identified: Future[Identity] | None = None  # the identity of the data, once a thread has computed it
    known: Future[NamedRows | None] | None = None  # likewise, the rows of names in the data
    popular: Future[dict[str, float]] | None = None  # likewise, the ranking metrics of the most popular items
    component: Component | None = None  # what the model was built from; None: a library caller's object
    stepped: SteppedScheduler | None = None  # a scheduler of torch, instead of a function of the number of updates
    curve: Factor | None = None  # the user's own function of the number of updates

    @property
    def identity(self) -> Identity:
        """The identity of the data; {} if there is none. Waits for it, and raises what its computation raised."""
        return {} if self.identified is None else self.identified.result()

    @property
    def popularity(self) -> dict[str, float]:
        """The ranking metrics of a recommender of the most popular items. Waits for them."""
        return {} if self.popular is None else self.popular.result()

    @property
    def typical(self) -> list[list[Any]]:
        """Example batches of streamed training data, for whatever compiles code for it."""
        if self.train.streamed is None and isinstance(plan := self.train.plan, SampledPlan):
            sizes = {max(plan.sizes), min(plan.sizes)}
            return [laid(self.train.head(size), self.model, self.found.memory_format) for size in sizes]
        if self.train.streamed is None:
            return []
        return [self.train.streamed.head()] if self.choice.update is not None else self.train.streamed.typical()

    @property
    def keeps_to_cpu(self) -> str:
        """The reason for training on the CPU, GPU or not, if the job leaves its device open; "" for none."""
        if self.choice.update is not None:
            return f"{self.choice.update.name} is compiled for the CPU"
        if self.has_named_rows:
            return "a NamedEmbedding stays in the memory of the host"
        return "workers play a Rollout on the CPU" if self.train.rollout is not None else ""

    @property
    def has_named_rows(self) -> bool:
        """Return whether the model has a table that is asked for by id."""
        return bool(tables_in(self.model))

    @property
    def outputs(self) -> AllOutputs | None:
        """The layout of the outputs of an evaluation, if a metric needs all of them."""
        if self.val is None or self.found.output is None or not self.panel.whole:
            return None
        return AllOutputs.of(self.found.output, self.val.plan.samples)

    @property
    def covered(self) -> tuple[int, int]:
        """Shape (metrics, items) of the bytes that mark the items which metrics of coverage count; (0, 0) for none."""
        if self.val is None or not self.panel.coverages:
            return (0, 0)
        _, items, _ = self.model.score_tables()  # type: ignore[operator]
        return (self.panel.coverages, len(items))


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of a job. `metrics` by name; None for the default metrics of the model and the loss."""

    metrics: Mapping[str, str | Own] | None = None
    collate: Callable[..., Any] | None = None
    transform: Transform | None = None
    schedule: Any = None  # the caller's own: a scheduler of torch, its class, or a function of the number of updates
    sampler: Any = None  # the caller's own
    val_collate: Callable[..., Any] | None = None  # of validation data

    @classmethod
    def of(cls, job: Job, given: Mapping[str, Any] | None = None) -> "Functions":
        """Import and build the functions of the job, except those `given` by field name. Raises ConfigError,
        BuildError."""
        given = given or {}
        collate = given["collate"] if "collate" in given else _built(job.data.collate)
        return cls(
            given["metrics"] if "metrics" in given else _metrics(job),
            collate,
            given["transform"] if "transform" in given else _built(job.data.transform),
            given.get("schedule"),
            given.get("sampler"),
            given.get("val_collate", collate),
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


def inspect(job: Job, parts: Parts, reader: Reader) -> None:
    """Check the job; `reader` tries its code, and decides its memory format. Raises BuildError, UsageError."""
    plan = parts.train.plan
    if plan.batches == 0:
        raise DataError(
            f"data.train has {plan.samples} samples, fewer than data.batch_size {plan.batch_size}, and data.drop_last "
            "is true: there is no full batch to train on",
            code="data/no-batch",
        )
    if plan.merges:
        parts.notes.append(
            f"the last batch would hold one sample, which BatchNorm cannot train on: it is merged into the one before "
            f"({plan.largest} samples)"
        )
    _check_alike(parts)
    check_precision(job.train.precision, parts.model)
    _check_steps(job, parts.model)
    if parts.val is not None and parts.val.rollout is not None and (whole := parts.panel.whole):
        raise BuildError(
            f"evaluate.metrics: {', '.join(whole)}: needs all outputs at once, but data.val is a Rollout, whose "
            "batches have any size; use metrics that are sums (episode_return, accuracy)",
            code="model/metric",
        )
    found = parts.found = reader.try_out(_trial_of(job, parts))
    # A wrong label may be what the loss failed on; its error names the sample.
    sources = [(what, one) for what, one in (("data.train", parts.train), ("data.val", parts.val)) if one is not None]
    for what, source in sources:
        _check_labels(job, parts, source, what)
    for _, source in sources:
        source.dataset = None  # needed only to name a place; it may be as large as the data
    if found.error is not None:
        raise found.error
    parts.panel = replace(parts.panel, names=found.metrics)
    if found.memory_format != job.model.memory_format:
        for source in filter(None, (parts.train, parts.val)):
            source.lay_contiguous()
    parts.notes += found.notes
    if job.evaluate.progressive and len(found.loss_names) + len(parts.panel.progressive) > MOST_NAMES:
        raise BuildError(
            f"evaluate.progressive: {len(parts.panel.progressive)} metrics with the loss, and {len(found.loss_names)} "
            f"further losses of the training_step, are more than {MOST_NAMES}: name fewer in evaluate.metrics",
            code="model/metric",
        )
    if parts.val is not None:
        directions(job.evaluate, parts.panel)


def _trial_of(job: Job, parts: Parts) -> Trial:
    plan, val = parts.train.plan, parts.val
    first, last = plan.positions(plan.batches - 1) if not isinstance(plan, SampledPlan) else (0, min(plan.sizes))
    scored = parts.train if val is None and job.evaluate.progressive else val
    is_single = plan.merge_single and last - first == 1 and not has_training_step(parts.model)
    return Trial(
        memory_format=job.model.memory_format,
        compile=job.model.compile,
        precision=job.train.precision,
        model=parts.model,
        loss=parts.loss,
        panel=parts.panel,
        transform=parts.transform,
        train=copied(parts.train.head(SAMPLES)),
        single=copied(parts.train.head(1)) if is_single else None,
        val=copied(scored.head(SAMPLES)) if scored is not None else None,
        spread=copied(val.spread() if val is not None else scored.head(SAMPLES)) if scored is not None else None,
    )


def _check_steps(job: Job, model: nn.Module) -> None:
    """Check that no setting replaces the model in its own steps, which call the model directly."""
    steps = {"training_step": has_training_step(model), "evaluation_step": has_evaluation_step(model)}
    for name in (name for name, is_there in steps.items() if is_there):
        setting, lost = "", ""
        if job.model.compile != "none":
            setting, lost = f"model.compile: {job.model.compile}", "the compiled model would not be used"
        elif job.data.lanes is not None and name == "training_step":
            setting, lost = "data.lanes", "the state would not be passed on"
        if setting:
            raise ModelError(
                f"{type(model).__name__} has a {name}, which calls the model itself: with {setting} {lost}; "
                "remove one of the two",
                code="model/own-step",
            )


def _check_alike(parts: Parts) -> None:
    """Check that training and validation data have the same fields. Shapes may differ if batches come from slots."""
    train, val = parts.train, parts.val
    if val is None or train.packed is not None:
        return
    with_shapes = bool(train.tensors and val.tensors)
    if val.row_kinds(with_shapes) != train.row_kinds(with_shapes):
        raise DataError(
            f"data.val has samples of {', '.join(val.row_kinds())}, data.train of {', '.join(train.row_kinds())}; "
            "both must be alike",
            code="data/val-unlike-train",
        )


def check_ranked(panel: Panel, train: Source, val: Source) -> None:
    """Raise BuildError if metrics of all items are asked for and the data does not say who has what."""
    if panel.ranked and not all(
        source.packed and {"user", "item"} <= {*source.packed.arrays()} for source in (train, val)
    ):
        raise BuildError(
            f"evaluate.metrics: {', '.join(panel.ranked)}: all items are ranked for each user, which needs data of "
            "users and items (hogwild.data.Ratings, Jester) as data.train and data.val",
            code="model/metric",
        )


def directions(evaluate: Evaluate, panel: Panel) -> dict[str, bool]:
    """Return whether more is better for `evaluate.monitor` and every metric in `evaluate.target`. Raises UsageError for
    a metric that this job does not report, and for a user's function with unknown direction."""
    found = {}
    for key, name in (("monitor", evaluate.monitor), *(("target", name) for name in evaluate.target)):
        if name not in panel.reported:
            raise UsageError(
                f"evaluate.{key}: {name}: not reported by this job; it reports {', '.join(panel.reported)}",
                code="config/unknown-metric",
            )
        is_said = name == evaluate.monitor and evaluate.mode != "auto"
        higher = evaluate.mode == "max" if is_said else panel.higher_is_better(name)
        if higher is None:
            raise UsageError(
                f"evaluate.{key}: {name}: unknown whether higher or lower is better; give the function an attribute "
                "higher_is_better = True or False" + (", or set evaluate.mode" if key == "monitor" else ""),
                code="config/metric-direction",
            )
        found[name] = higher
    return found


def batch_of(parts: Parts, samples: int) -> list[Tensor]:
    """Return the first samples as they are trained on: copies, transformed. The random state stays unchanged."""
    return transformed_copy(laid(parts.train.head(samples), parts.model, parts.found.memory_format), parts.transform)


def _check_labels(job: Job, parts: Parts, source: Source, what: str) -> None:
    """Check that the loss takes all targets, and say if they are of one class only. Those of a stream after its first
    records are checked batch by batch, by its reader. Raises DataError."""
    output = parts.found.output_shape
    if not output or source.rollout is not None or (source is parts.train and _changes_labels(parts)):
        return
    loss: Any = as_module(parts.loss)
    is_judged = bool(JUDGED & {*parts.panel.names} - {*parts.panel.ranked})
    first, found = 0, set[float]()
    for target in source.targets:
        if not isinstance(target, Tensor):
            return
        if isinstance(loss, BY_CLASS) and target.is_floating_point() and output[1:2] == (1,):
            words = f"{type(loss).__name__} of one output is 0 for any target: give class numbers of type int64"
            raise DataError(
                f"{what}: {words} (hogwild.data.Csv: target_type: class), or take BCEWithLogitsLoss", code="data/labels"
            )
        labels = Labels.of(loss, output, target, is_judged=is_judged)
        if labels is None:
            if isinstance(loss, BY_CLASS) and len(output) > 1 and target.is_floating_point():
                raise DataError(
                    f"{what}: the targets are {tuple(target.shape)} {str(target.dtype).removeprefix('torch.')}; "
                    f"{type(loss).__name__} takes class numbers of an integer type, such as int64",
                    code="data/labels",
                )
            return
        if (wrong := labels.wrong(target)) is not None:
            what, row = _place_of(job, parts, source, what, first + wrong[0])
            where = place_of((parts.train if what == "data.train" else source).dataset, row)
            names = source.packed.names.get("classes", ()) if source.packed is not None else ()
            words = labels.describe(wrong[1], names)
            raise DataError(f"{what}: the label of sample {row}{where} is {words}", code="data/labels")
        if source.streamed is not None:
            source.streamed = source.streamed.labelled(labels.narrowed(target))
            return
        first += len(target)
        found |= labels.ends_of(target)
    if not found:
        words = f"all labels are {loss.ignore_index}, which {type(loss).__name__} ignores"
        raise DataError(f"{what}: {words}", code="data/labels")
    if len(found) == 1:
        parts.notes.append(f"{what}: all {first:,} labels are {found.pop():g}: there is one class only")
    elif source is parts.train and isinstance(loss, BY_CLASS) and (lowest := min(found)) >= 1:
        parts.notes.append(f"{what}: the lowest label is {lowest:g}: no sample is of class 0, the first output")


def _changes_labels(parts: Parts) -> bool:
    """Return whether `data.transform` makes other labels, or fails, which is the trial's error."""
    try:
        changed = batch_of(parts, SAMPLES)[-1] if parts.transform is not None else None
    except HogwildError:
        return True
    return changed is not None and not torch.equal(changed, parts.train.head(SAMPLES)[-1])


def _place_of(job: Job, parts: Parts, source: Source, what: str, row: int) -> tuple[str, int]:
    """Return a sample's place in the data that the user gave: a part may have been held out by a seeded draw."""
    if not isinstance(job.data.val, Split) or parts.val is None:
        return what, row
    count = parts.train.plan.samples + parts.val.plan.samples
    part = division(count, job.data.val.fraction, job.seed)[source is parts.val]
    return "data.train", int((part if source.packed is None else part.sort().values)[row])
