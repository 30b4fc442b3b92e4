"""`hogwild eval`: evaluates a checkpoint again, in this process.

The job is built as in a resume (same data, split and batches), the checkpoint is loaded as in a resume, and the metrics
come from the same sums over the same batches as in training. Predictions, on request, are the outputs of all validation
samples, in their order."""

import contextlib
import csv
import inspect
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from hogwild.config.load import Job
from hogwild.config.of_run import looking_where
from hogwild.config.schema import Component
from hogwild.data.rollout import RolloutFeed
from hogwild.errors import NotFoundError, UsageError
from hogwild.feeds.batch import Feed
from hogwild.feeds.resident import ResidentData
from hogwild.feeds.ring import RingFeed
from hogwild.feeds.row_reader import InTurn
from hogwild.formatting import beside, brief
from hogwild.inference.inputs import PARTS, path_argument
from hogwild.inference.predict import made_whole
from hogwild.job.build import build
from hogwild.job.identity import require_same
from hogwild.job.parts import Parts
from hogwild.metrics.loss_sums import WeightedLoss
from hogwild.metrics.result_row import EvalSums
from hogwild.parameters.shared_model import SharedModel
from hogwild.planning.device_placement import planned
from hogwild.storage.checkpoint import load
from hogwild.storage.checkpoint_format import update_of
from hogwild.storage.files import to_json
from hogwild.training.evaluator import Evaluator
from hogwild.training.outputs import AllOutputs, leaves_of
from hogwild.training.torch_settings import sparing_the_compiler
from hogwild.user_code import build as build_component
from hogwild.user_code import resolve

if TYPE_CHECKING:
    from hogwild.metrics.ranking import Ranking  # which imports numba


@dataclass(frozen=True, slots=True)
class Reevaluation:
    """Result of an evaluation. `recorded`: the metrics that training wrote into the checkpoint, if it evaluated exactly
    these parameters; `outputs` (N, …) and `targets` (N, …) exist only on request; `popularity`: the ranking metrics of
    the most popular items."""

    __repr__ = brief

    checkpoint: Path
    updates: int
    samples: int
    metrics: dict[str, float]
    recorded: dict[str, float] | None
    outputs: Any = None
    targets: Tensor | None = None
    popularity: dict[str, float] = field(default_factory=dict)
    what: str = "data.val"  # the data
    notes: tuple[str, ...] = ()  # on the data of a file


@sparing_the_compiler()
def reevaluate(
    job: Job, checkpoint: Path, data_dir: Path | None, *, keep_outputs: bool = False, file: Path | None = None
) -> Reevaluation:
    """Evaluate a checkpoint, on `file` instead of the validation data if it is given. Raises CheckpointError if it is
    damaged or of another model, UsageError if the job has no validation data, and all errors of building the job."""
    own = job.data.val
    if file is not None:
        job = on_file(job, file)
    elif own is None:
        raise UsageError(
            f"{checkpoint}: its job has no data.val, so there is nothing to evaluate; --data FILE evaluates on a file",
            code="config/needs-validation",
        )
    state = load(checkpoint)
    updates = update_of(checkpoint.name)
    here = {"procs": 0, "procs_max": None, "threads": 1, "device_per_worker": None}  # of this process, on any machine
    plan = planned(job.model_copy(update={"train": job.train.model_copy(update=here)}))
    with looking_where(checkpoint.parent.parent):
        parts = build(plan, data_dir, run=checkpoint.parent.parent)
        if file is not None and isinstance(own, Component) and callable(add := getattr(parts.model, "add_known", None)):
            theirs = build_component(own).pack(InTurn(job.seed), "data.val", parts.train.packed, job.data.on_bad_line)
            add(theirs.arrays()["triple"])  # true, too: no rank counts them as wrong answers
    require_same(state, checkpoint.parent.parent, parts.names, {"names": parts.identity["names"]})
    if keep_outputs and parts.val is not None and parts.val.rollout is not None:
        raise UsageError("--predictions: data.val is a Rollout, which has no rows", code="usage/no-predictions")
    if keep_outputs and parts.found.output is None:
        words = "--predictions: the model returns no tensor with a row for each sample"
        raise UsageError(words, code="usage/no-predictions")
    with _loaded(job, parts, state) as feed:
        values, outputs, targets = _evaluated(job, parts, feed, keep_outputs)
    is_same = state["evaluated_at"] == updates and file is None
    recorded = {str(name): float(value) for name, value in state["metrics"].items()} if is_same else None
    samples = parts.val.plan.samples if parts.val is not None else len(targets)
    what, notes = "data.val", tuple[str, ...]()
    if file is not None:
        what, about = str(file), "data.val: "
        notes = tuple(f"{file}: {note.removeprefix(about)}" for note in parts.notes if note.startswith(about))
    kept = targets if keep_outputs else None
    return Reevaluation(checkpoint, updates, samples, values, recorded, outputs, kept, parts.popularity, what, notes)


def on_file(job: Job, file: Path) -> Job:
    """Return the job with a file as its validation data, read by the class of that data, or else of the training data,
    with the same arguments. Raises UsageError for a class that reads no file of any name."""
    if not os.path.exists(file):  # not `Path.exists`, which raises for a name that is too long
        raise NotFoundError(
            f"--data {file}: there is no such file (looked for {file.absolute()})", code="data/not-found"
        )
    base = job.data.val if isinstance(job.data.val, Component) else job.data.train
    argument = path_argument(base.class_path)
    if argument is None:
        raise UsageError(
            f"--data {file}: {base.class_path} has no argument path, so it reads no other file", code="usage/no-input"
        )
    arguments = dict(base.init_args)
    if base.class_path.startswith("hogwild.data."):  # all of the file; a user's class knows what its arguments mean
        splits = inspect.signature(resolve(base.class_path)).parameters.get("split")
        arguments = {name: value for name, value in arguments.items() if name not in PARTS}
        arguments |= {"split": "all"} if splits is not None and splits.default is not None else {}
    val = base.model_copy(update={"init_args": arguments | {argument: str(file.absolute())}})
    return job.model_copy(update={"data": job.data.model_copy(update={"val": val})})


@contextlib.contextmanager
def _loaded(job: Job, parts: Parts, state: dict[str, Any]) -> Iterator[Feed]:
    """Load the checkpoint's parameters through shared memory, as a resume does: only that code matches all parts and
    lays out weights. Yield the validation data as an evaluation reads it."""
    model = (parts.model, parts.loss, parts.optimizer)
    shared = SharedModel.build(*model, procs=1, state=job.optimizer.state, memory_format=parts.found.memory_format)
    try:
        shared.restore(state)
        source = parts.val
        assert source is not None
        if source.held is not None:
            yield RingFeed(source.held.ring, source.plan.batch_size)
        elif source.rollout is not None:
            yield RolloutFeed(source.rollout, parts.model, job.seed, is_val=True)
        else:
            layout = shared.uses_channels_last
            data = source.packed or ResidentData.from_tensors("data-val", source.tensors, channels_last=layout)
            yield data.feed(source.plan, seed=job.seed, order="none")
    finally:
        shared.release()


def _evaluated(job: Job, parts: Parts, feed: Feed, keep_outputs: bool) -> tuple[dict[str, float], Any, Tensor]:
    assert parts.val is not None
    plan, targets = parts.val.plan, parts.val.target
    outputs = None
    if parts.found.output is not None and (keep_outputs or parts.panel.whole):
        outputs = AllOutputs.of(parts.found.output, len(targets)).empty()
    precision = job.train.precision
    marks = np.zeros(parts.covered, np.uint8)
    weights = parts.val.weights if isinstance(parts.loss, WeightedLoss) else None
    options: Any = {"outputs": outputs, "targets": targets, "precision": precision, "weights": weights}
    evaluator = Evaluator(parts.model, parts.loss, feed, job.seed, parts.panel, **options)
    if parts.panel.ranked:
        evaluator.ranking = _ranking(parts, marks)
    # There is no supervisor that waits for a beat.
    sums = evaluator.sums(range(plan.batches), lambda: None, parts.found.infers)
    scores = evaluator.scores() if parts.panel.whole else EvalSums()
    values = parts.panel.values(sums + parts.panel.covered(marks), scores.words[: len(parts.panel.whole)])
    return values, outputs if keep_outputs else None, targets.clone()


def _ranking(parts: Parts, marks: np.ndarray) -> "Ranking":
    """Return the metrics of recommenders, with kernels from the cache or compiled."""
    from hogwild.kernels.kernel_cache import make_ready
    from hogwild.kernels.signatures import ranking as kernels
    from hogwild.metrics.ranking import Ranking

    train, val = parts.train.packed, parts.val.packed if parts.val is not None else None
    assert train is not None and val is not None  # checked when the job was built
    ranking = Ranking.of(parts.panel.ranked, parts.model, train.arrays(), val.arrays(), marks)
    make_ready(kernels())
    return ranking


def write_predictions(found: Reevaluation, file: Path) -> None:
    """Write the file completely or not at all: .npz with arrays `outputs` (N, …), `targets` (N, …) and, for classes,
    `predicted` (N,); .csv with a line per sample: sample, target…, predicted, output…. Several tensors of a model have
    their own names in the place of `outputs`. Raises RunError."""
    assert found.targets is not None
    targets = found.targets.numpy()
    columns = {"targets": targets}
    for name, tensor in leaves_of(found.outputs).items():
        columns[f"{name}_" if name in ("targets", "sample", "file") else name or "outputs"] = tensor.numpy()
    outputs = columns.get("outputs", targets)
    if isinstance(found.outputs, Tensor) and targets.dtype.kind in "iu" and outputs.ndim == targets.ndim + 1:
        columns["predicted"] = outputs.argmax(1)
    with made_whole(file) as aside:
        if file.suffix == ".npz":
            with open(aside, "wb") as stream:  # given a file name, numpy would append its own suffix
                np.savez(stream, **columns)  # type: ignore[arg-type]
        else:
            _write_csv(aside, columns)


def _write_csv(file: Path, columns: dict[str, np.ndarray]) -> None:
    order = dict.fromkeys([*(key for key in ("targets", "predicted", "outputs") if key in columns), *columns])
    shown = {"targets": "target", "outputs": "output"}
    with open(file, "w", newline="", encoding="utf-8") as stream:
        table = csv.writer(stream)
        flat = {shown.get(key, key): columns[key].reshape(len(columns[key]), -1) for key in order}
        widths = {name: each.shape[1] for name, each in flat.items()}
        names = [name if width == 1 else f"{name}_{k}" for name, width in widths.items() for k in range(width)]
        table.writerow(["sample", *names])
        for number, rows in enumerate(zip(*flat.values(), strict=True)):
            table.writerow([number, *(value for row in rows for value in row.tolist())])


def lines_of(found: Reevaluation, what: str) -> list[str]:
    """Return the lines for the terminal."""
    words = ", ".join(beside(found.metrics, found.popularity, 6))
    head = f"{found.checkpoint}{what}: update {found.updates:,}, {found.samples:,} samples of {found.what}"
    lines = [head, f"  {words}"]
    if found.recorded is not None:
        recorded = ", ".join(f"{name} {value:.6g}" for name, value in found.recorded.items())
        lines.append(f"  recorded while training: {recorded}")
    return lines


def as_json(found: Reevaluation, which: str) -> str:
    answer = {
        "checkpoint": str(found.checkpoint),
        "which": which,
        "updates": found.updates,
        "data": found.what,
        "samples": found.samples,
        "metrics": found.metrics,
        "popularity": found.popularity,
        "recorded": found.recorded,
    }
    return json.dumps(to_json(answer), allow_nan=False)
