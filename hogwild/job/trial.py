"""The trial of a job: its own code runs once on a few samples, before anything is laid out, to fail early on what would
fail later. One forward pass and one loss (or the model's own steps), and the metrics on samples of the validation data.

A job with workers sends its trial to the first of them (`workers/loading/loading.py`), on copies, so that a crash of
the user's native code is an error with a message. Elsewhere it runs on the job's own objects and leaves no trace:
random state and modes are restored, and no gradient is kept."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from hogwild.errors import BuildError, DataError, HogwildError, ModelError
from hogwild.feeds.batch import Transform, tried
from hogwild.host.thread_pools import threads_for
from hogwild.job.changed_state import find_changed_state
from hogwild.job.weights import require_all_classes
from hogwild.losses import HingeLoss, LogisticLoss
from hogwild.metrics.loss_sums import as_module, parted
from hogwild.metrics.panel import Panel
from hogwild.parameters.buffers import MergeRule
from hogwild.parameters.shared_model import OWN, converted, wants_channels_last
from hogwild.training.compiled_model import check_compiler, scripted
from hogwild.training.evaluator import evaluating
from hogwild.training.inference_mode import why_not as why_no_inference
from hogwild.training.loss_scaler import autocast, device_type_of, widened
from hogwild.training.model_steps import (
    Losses,
    forward_of,
    has_evaluation_step,
    has_training_step,
    leaving_no_trace,
    predictor,
    try_training_step,
)
from hogwild.training.torch_settings import sparing_the_compiler
from hogwild.user_code import raised_text

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
    output: Tensor | None = None  # (0, …): the model's output in an evaluation, if it is one tensor
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
        panel = self.trial.panel.select_metrics(output, judged, self.loss)
        self.found.metrics = panel.names
        self.found.output = output[:0].clone() if isinstance(output, Tensor) and output.dim() else None
        if panel.whole and (self.found.output is None or len(output) != len(target)):
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
        raise ModelError(f"{words()}: {raised_text(error)}", code=code) from error


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
