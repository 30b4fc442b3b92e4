"""Checks of a job's objects before the start, to fail early on what would fail later: the labels of all samples, and
what the trial of the job's own code finds (`trial.py`)."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hogwild.config.load import Job
from hogwild.config.schema import Evaluate, Split
from hogwild.errors import BuildError, DataError, HogwildError, ModelError, UsageError
from hogwild.feeds.row_reader import Reader, division, place_of
from hogwild.job.trial import SAMPLES, Trial, copied, laid, transformed_copy
from hogwild.metrics.catalog import JUDGED
from hogwild.metrics.loss_sums import BY_CLASS, Labels, as_module
from hogwild.metrics.panel import Panel
from hogwild.training.loss_scaler import check_precision
from hogwild.training.model_steps import MOST_NAMES, has_evaluation_step, has_training_step

if TYPE_CHECKING:
    from hogwild.job.parts import Parts
    from hogwild.job.source import Source


def inspect(job: Job, parts: "Parts", reader: Reader) -> None:
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


def _trial_of(job: Job, parts: "Parts") -> Trial:
    plan, val = parts.train.plan, parts.val
    first, last = plan.positions(plan.batches - 1)
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


def check_ranked(panel: Panel, train: "Source", val: "Source") -> None:
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


def batch_of(parts: "Parts", samples: int) -> list[Tensor]:
    """Return the first samples as they are trained on: copies, transformed. The random state stays unchanged."""
    return transformed_copy(laid(parts.train.head(samples), parts.model, parts.found.memory_format), parts.transform)


def _check_labels(job: Job, parts: "Parts", source: "Source", what: str) -> None:
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


def _changes_labels(parts: "Parts") -> bool:
    """Return whether `data.transform` makes other labels, or fails, which is the trial's error."""
    try:
        changed = batch_of(parts, SAMPLES)[-1] if parts.transform is not None else None
    except HogwildError:
        return True
    return changed is not None and not torch.equal(changed, parts.train.head(SAMPLES)[-1])


def _place_of(job: Job, parts: "Parts", source: "Source", what: str, row: int) -> tuple[str, int]:
    """Return a sample's place in the data that the user gave: a part may have been held out by a seeded draw."""
    if not isinstance(job.data.val, Split) or parts.val is None:
        return what, row
    count = parts.train.plan.samples + parts.val.plan.samples
    part = division(count, job.data.val.fraction, job.seed)[source is parts.val]
    return "data.train", int((part if source.packed is None else part.sort().values)[row])
