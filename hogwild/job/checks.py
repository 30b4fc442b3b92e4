"""Checks of a job's objects before the start, to fail early on what would fail later.

One forward pass and one loss on a few samples (or the model's own steps), the labels of all, the metrics on samples of
the validation data. They leave no trace: random state and modes are restored, and no gradient is kept."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from hogwild.config.load import Job
from hogwild.config.schema import Evaluate, Split
from hogwild.errors import BuildError, DataError, ModelError, UsageError
from hogwild.feeds.collate import Labels
from hogwild.feeds.materialise import division, place_of
from hogwild.feeds.transform import tried
from hogwild.job.parts import NORMS
from hogwild.job.source import type_name
from hogwild.metrics.panel import Panel
from hogwild.parameters.shared_model import OWN, converted, wants_channels_last
from hogwild.training.autocast import autocast, check_precision, device_type_of, widened
from hogwild.training.compiled_model import check_compiler, scripted
from hogwild.training.evaluator import evaluating
from hogwild.training.inference_mode import why_not as why_no_inference
from hogwild.training.model_steps import (
    Losses,
    has_evaluation_step,
    has_training_step,
    leaving_no_trace,
    predictor,
    try_training_step,
)
from hogwild.training.recurrent_state import forward_of
from hogwild.user_code import raised_text

if TYPE_CHECKING:
    from hogwild.job.parts import Parts
    from hogwild.job.source import Source

TRIAL_SAMPLES = 3  # more than two: a loss that wrongly broadcasts (2, 2) over 2 labels fails with any other number
UNLABELLED = -100  # the default of torch's classification losses


def inspect(job: Job, parts: "Parts") -> None:
    """Check the job in its final memory format, which is decided here: channels_last if it is wanted and all of the job
    works in it."""
    parts.memory_format = job.model.memory_format
    if not wants_channels_last(parts.model, parts.memory_format):
        _inspect(job, parts)
        return
    notes, panel = [*parts.notes], parts.panel
    try:
        with converted(parts.model, parts.memory_format):
            _inspect(job, parts)
            _try_update(job, parts)
        return
    except (Exception, SystemExit) as error:
        failed = error
    parts.notes, parts.panel, parts.memory_format = notes, panel, OWN
    for source in filter(None, (parts.train, parts.val)):
        source.lay_contiguous()
    _inspect(job, parts)  # raises errors that occur in any format
    words = (
        f"{type(parts.model).__name__} fails in channels_last, which is faster (.reshape or .flatten instead of .view "
        f"helps): {raised_text(failed)}"
    )
    if job.model.memory_format == "channels_last":
        raise ModelError(f"model.memory_format: {words}", code="model/memory-format") from failed
    parts.notes.append(f"model.memory_format: contiguous, because {words}")


def _inspect(job: Job, parts: "Parts") -> None:
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
    _try_forward(job, parts)
    _try_compiled(job, parts)
    first, last = plan.positions(plan.batches - 1)
    if plan.merge_single and last - first == 1 and not has_training_step(parts.model):
        _refuse_single(parts)
    for what, source in (("data.train", parts.train), ("data.val", parts.val)):
        if source is not None:
            _check_labels(job, parts, source, what)
    _check_evaluation(job, parts)


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


def _check_alike(parts: "Parts") -> None:
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


def _check_evaluation(job: Job, parts: "Parts") -> None:
    """Check the evaluation; leaves out default metrics that do not suit."""
    evaluate = job.evaluate
    if parts.val is None:
        return
    *inputs, target = parts.val.spread()
    with evaluating(parts.model), _autocast(job, parts):
        output, judged = predictor(parts.model, parts.loss)(tuple(inputs), target)
        output = widened(output)
        parts.panel = parts.panel.select_metrics(output, judged, parts.loss)
    parts.output = output[:0].clone() if isinstance(output, Tensor) and output.dim() else None
    if parts.panel.whole and (parts.output is None or len(output) != len(target)):
        raise BuildError(
            f"evaluate.metrics: {', '.join(parts.panel.whole)}: need one tensor with an output per sample, but "
            f"{len(target)} samples gave {_described(output) if isinstance(output, Tensor) else type(output).__name__}",
            code="model/metric",
        )
    if parts.panel.whole and not (judged is target or torch.equal(judged, target)):
        raise BuildError(
            f"evaluate.metrics: {', '.join(parts.panel.whole)}: computed with the targets of data.val, but "
            f"{type(parts.model).__name__}.evaluation_step returns other targets",
            code="model/metric",
        )
    directions(evaluate, parts.panel)
    if job.model.compile == "none":  # code compiled for training would keep tensors of an inference that it cannot use
        _look_at_inference(parts)


def _look_at_inference(parts: "Parts") -> None:
    """Decide whether evaluations may run under inference_mode."""
    assert parts.val is not None
    *inputs, target = _first(parts, parts.val, TRIAL_SAMPLES)
    with evaluating(parts.model):
        why = why_no_inference(parts.model, lambda twin: predictor(twin, parts.loss)(tuple(_copied(inputs)), target))
    parts.infers = why is None
    if why is not None:
        parts.notes.append(
            f"evaluations run under torch.no_grad, not inference_mode: {type(parts.model).__name__}: {why}"
        )


def _try_forward(job: Job, parts: "Parts") -> None:
    """Run one forward pass and one loss over the first samples, in evaluation mode, without a trace: the random state
    is restored and no gradient is made."""
    sample = batch_of(parts, TRIAL_SAMPLES)
    constructed = {id(param) for _, param in parts.model.named_parameters()}
    output = loss = None
    try:
        if has_training_step(parts.model):
            with _autocast(job, parts):
                parts.loss_names = try_training_step(parts.model, parts.loss, _copied(sample))
        is_judged_so = parts.val is not None and not has_evaluation_step(parts.model)
        written = [tensor._version for tensor in tree_leaves(sample)]
        if is_judged_so or not has_training_step(parts.model):
            with evaluating(parts.model), _autocast(job, parts):
                output = forward_of(parts.model)(*sample[:-1])
                if isinstance(output, Tensor):  # before the loss fails with an index error and no sample number
                    parts.output_shape = tuple(output.shape)
                    _check_labels(job, parts, parts.train, "data.train")
                loss = parts.loss(output, sample[-1])
        parts.writes_inputs = written != [tensor._version for tensor in tree_leaves(sample)]
    except BuildError:
        raise
    except (Exception, SystemExit) as error:
        *inputs, target = (", ".join(map(_described, tree_leaves(field))) for field in sample)
        raise ModelError(
            f"{type(parts.model).__name__} and {_name(parts.loss)} cannot compute a loss on the first samples "
            f"(inputs {', '.join(inputs)}; target {target}): {raised_text(error)}",
            code="model/forward-failed",
        ) from error
    made = [name for name, param in parts.model.named_parameters() if id(param) not in constructed]
    if made:
        raise ModelError(
            f"{type(parts.model).__name__} creates parameter {made[0]} in forward, after the optimizer was built: it "
            "would never be trained. Create all parameters in the constructor",
            code="model/gained-parameters",
        )
    parts.output_shape = tuple(output.shape) if isinstance(output, Tensor) else ()
    if loss is None and has_training_step(parts.model):
        return
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        got = _described(loss) if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise BuildError(
            f"{_name(parts.loss)} returned {got}; a loss is one floating-point number in a tensor (reduction='mean')",
            code="model/bad-loss",
        )


def _try_update(job: Job, parts: "Parts") -> None:
    """Run forward, loss and backward over the first samples, in the initial modes of training. Leaves no trace."""
    *inputs, target = batch_of(parts, TRIAL_SAMPLES)
    losses = Losses(parts.model, parts.loss, parts.loss_names)
    with leaving_no_trace(parts.model), _autocast(job, parts):
        trained = [parameter for parameter in parts.model.parameters() if parameter.requires_grad]
        torch.autograd.grad(losses.of(tuple(inputs), target), trained, allow_unused=True)


def batch_of(parts: "Parts", samples: int) -> list[Tensor]:
    """Return the first samples as they are trained on: copies, transformed. The random state stays unchanged."""
    sample = _first(parts, parts.train, samples)
    if parts.transform is None:
        return sample
    with torch.random.fork_rng(devices=[]):
        return [*tried(parts.transform, sample)]


def _try_compiled(job: Job, parts: "Parts") -> None:
    """Check the compiled model as far as possible before workers start: a script must compute the same samples;
    inductor needs its compiler."""
    if job.model.compile == "inductor":
        check_compiler()
    if job.model.compile != "script":
        return
    script, inputs = scripted(parts.model), _first(parts, parts.train, TRIAL_SAMPLES)[:-1]
    try:
        with evaluating(script), _autocast(job, parts):
            script(*_copied(inputs))
    except Exception as error:
        raise ModelError(
            f"{type(parts.model).__name__} fails on the first samples as TorchScript (model.compile: script), but not "
            f"without it: {str(error).strip()}",
            code="model/not-scriptable",
        ) from error


def _autocast(job: Job, parts: "Parts") -> AbstractContextManager[Any]:
    return autocast(job.train.precision, device_type_of([*parts.model.parameters()]))


def _refuse_single(parts: "Parts") -> None:
    """Raise an error if a norm sees a single value per channel of a one-sample batch; an image has many."""
    starved: list[nn.Module] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].numel() == inputs[0].shape[1]:
            starved.append(module)

    hooks = [m.register_forward_pre_hook(look) for m in parts.model.modules() if isinstance(m, NORMS)]
    try:
        with evaluating(parts.model):
            parts.model(*_first(parts, parts.train, 1)[:-1])
    finally:
        for hook in hooks:
            hook.remove()
    if starved:
        raise DataError(
            "BatchNorm cannot train on a batch of one sample; use more samples or a larger data.batch_size",
            code="data/batch-norm",
        )


def _first(parts: "Parts", source: "Source", samples: int) -> list[Any]:
    """Return copies, with images in the memory format that feeds will use."""
    channels_last = wants_channels_last(parts.model, parts.memory_format)
    form = torch.channels_last if channels_last else torch.contiguous_format
    batch = _copied(source.head(samples))
    images = {id(leaf) for leaf in tree_leaves(batch)[:-1] if leaf.dim() == 4 and leaf.is_floating_point()}
    laid: list[Any] = tree_map(lambda leaf: leaf.to(memory_format=form) if id(leaf) in images else leaf, batch)
    return laid


def _copied(batch: list[Any]) -> list[Any]:
    copied: list[Any] = tree_map(torch.clone, batch)
    return copied


def _described(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {type_name(tensor)}"


def _check_labels(job: Job, parts: "Parts", source: "Source", what: str) -> None:
    """Check that class indices are in [0, classes): on a CPU a wrong one is an index error in the middle of the job.
    Labels of a stream are checked batch by batch, by its reader."""
    is_plain = parts.loss in (nn.functional.cross_entropy, nn.functional.nll_loss)
    if not (is_plain or isinstance(parts.loss, (nn.CrossEntropyLoss, nn.NLLLoss))) or len(parts.output_shape) < 2:
        return
    target = source.target
    if not isinstance(target, Tensor) or target.is_floating_point():
        return  # class probabilities
    labels = Labels(parts.output_shape[1], getattr(parts.loss, "ignore_index", UNLABELLED))
    if (wrong := labels.wrong(target)) is not None:
        what, row = _place_of(job, parts, source, what, wrong[0])
        where = place_of((parts.train if what == "data.train" else source).dataset, row)
        names = source.packed.names.get("classes", ()) if source.packed is not None else ()
        words = labels.describe(wrong[1], names)
        raise DataError(f"{what}: the label of sample {row}{where} is {words}", code="data/labels")
    if source.streamed is not None and parts.transform is None:
        source.streamed = source.streamed.labelled(labels)


def _place_of(job: Job, parts: "Parts", source: "Source", what: str, row: int) -> tuple[str, int]:
    """Return a sample's place in the data that the user gave: a part may have been held out by a seeded draw."""
    if not isinstance(job.data.val, Split) or parts.val is None:
        return what, row
    count = parts.train.plan.samples + parts.val.plan.samples
    part = division(count, job.data.val.fraction, job.seed)[source is parts.val]
    return "data.train", int((part if source.packed is None else part.sort().values)[row])


def _name(loss: Any) -> str:
    return getattr(loss, "__name__", type(loss).__name__)
