"""The choice between the model's own kernel and autograd, and of the rows that each worker may write: decided in the
parent, before anything is shared.

    the model offers one?  loss and rule fit?  every option of the job is implemented?  ──►  fused, else autograd
    two sides (ratings):   a grid of cells; with `exchange: delta`, if a side has too few rows, private copies of it
    one side (features):   with `exchange: delta`, private copies of the hottest rows, by the data's profile"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hogwild.config.load import Job
from hogwild.config.schedules import TorchSchedule
from hogwild.errors import UsageError
from hogwild.formatting import counted, size
from hogwild.kernels.fused import FusedUpdate, Side, Streaming, has_numba
from hogwild.kernels.profile import HOT_BYTES, choose_hot
from hogwild.scheduling.grid_plan import MOST_SIDE, Grid, Shape
from hogwild.training.model_steps import has_training_step

if TYPE_CHECKING:
    from hogwild.feeds.packed import Packed
    from hogwild.job.stream_setup import Streamed

# Row blocks: one for each worker at least, up to ROWS_PER_WORKER of LEAST_ROW_BLOCK samples (about 3 ms), so that the
# fastest worker can have more, and none of much more than ROW_BLOCK samples (some 20 ms).
ROWS_PER_WORKER, LEAST_ROW_BLOCK, ROW_BLOCK = 4, 1 << 18, 1 << 21
# Column blocks: with the state that belongs to them half a second-level cache, and so many per worker that two seldom
# want the same one.
COLUMN_BYTES = 384 << 10
COLUMNS_PER_WORKER, LEAST_COLUMNS = 8, 32
CELL = 1 << 11  # samples: entering a smaller cell would cost more than a twentieth of it
LEAST_OF_COLUMN = 16  # rows: with fewer, a sample would wait for what the one before it writes
MOST_CROWDED = 1.5  # times a worker's share of the samples in one block: beyond, workers wait for each other
NO_GRID: Shape = (0, 0, 0)  # of a run that had none: its order of samples was another one
EXTRA = "numba is not installed; pip install 'hogwild[sparse]'"


@dataclass(frozen=True, slots=True)
class UpdateChoice:
    """The chosen update, None for autograd; `why` explains it in the log, `check --deep` and summary.json."""

    update: FusedUpdate | None
    why: str
    is_worth_saying: bool = True  # there was a choice: the model has a kernel

    @property
    def kind(self) -> str:
        return "autograd" if self.update is None else "fused"


@dataclass(frozen=True, slots=True)
class Meetings:
    """The rows that workers may write at the same time. `hot`: array of the data -> rows (H,) int32 that every worker
    has a copy of; `words`: the choice and its reason, one sentence each."""

    hot: Mapping[str, np.ndarray] = field(default_factory=dict)
    grid: Grid | None = None
    words: tuple[str, ...] = ()


def choose(
    job: Job,
    model: nn.Module,
    loss: Any,
    optimizer: torch.optim.Optimizer,
    packed: "Packed | None",
    streamed: "Streamed | None" = None,
) -> UpdateChoice:
    """Choose the update. Raises UsageError if the job says `update: fused` and that is impossible."""
    choice = _choose(job, model, loss, optimizer, packed, streamed)
    if job.train.update == "fused" and choice.update is None:
        raise UsageError(
            f"train.update: fused: {choice.why.removeprefix('autograd: ')}; remove this field to train with autograd",
            code="train/not-fused",
        )
    return choice


def _choose(
    job: Job,
    model: nn.Module,
    loss: Any,
    optimizer: torch.optim.Optimizer,
    packed: "Packed | None",
    streamed: "Streamed | None",
) -> UpdateChoice:
    if job.train.update == "autograd":
        return UpdateChoice(None, "autograd: set by train.update")
    offer = getattr(model, "fused", None)
    if not callable(offer):
        return UpdateChoice(None, "autograd: no compiled kernel for this model", is_worth_saying=False)
    if has_training_step(model):
        return UpdateChoice(None, "autograd: the model has a training_step of its own")
    if packed is None and streamed is None:
        why = "the model's kernel needs packed data (such as hogwild.data.LibSvm), or a stream (data.feed)"
        return UpdateChoice(None, f"autograd: {why}")
    if not has_numba():
        return UpdateChoice(None, f"autograd: {EXTRA}")
    update = offer(loss, optimizer)
    if isinstance(update, str):
        return UpdateChoice(None, f"autograd: {update}")
    missing = [option for name, option in options_set(job) if name not in update.implements]
    if missing:
        return UpdateChoice(None, f"autograd: {update.name} does not implement {', '.join(missing)}")
    if streamed is not None and (misfit := _misfit(update, model, streamed)):
        return UpdateChoice(None, f"autograd: {update.name}: {misfit}")
    return UpdateChoice(update, f"fused: {update.name}")


def _misfit(update: FusedUpdate, model: nn.Module, streamed: "Streamed") -> str:
    """Return why the kernel cannot train on the batches of a stream, by its first records, or ""."""
    if not isinstance(update, Streaming):
        return "its kernel needs packed data, not a stream"
    if streamed.form.is_nested:
        return f"the batches of the stream are nested: {streamed.form.describe()}"
    *inputs, target = streamed.head()
    try:
        update.arrays_of(model, inputs, target)
    except ValueError as error:
        return str(error)
    except IndexError:
        return ""  # the trial of the model says more
    return ""


def options_set(job: Job) -> list[tuple[str, str]]:
    """Return (name in `FusedUpdate.implements`, the job's field) of every option that is not at its neutral value and
    changes an update."""
    train = job.train
    asked = [
        ("lr_schedule", "lr_schedule", job.lr_schedule.name != "constant" or job.lr_schedule.warmup_updates > 0),
        ("lr_schedule", "supervise.on_nan: rollback", job.supervise.on_nan == "rollback"),
        ("torch_schedule", f"lr_schedule: {job.lr_schedule.name}", isinstance(job.lr_schedule, TorchSchedule)),
        ("freeze", "model.freeze", bool(job.model.freeze)),
        ("thaw", "model.freeze until an update", any(not isinstance(entry, str) for entry in job.model.freeze)),
        ("transform", "data.transform", job.data.transform is not None),
        ("grad_clip", "train.grad_clip", train.grad_clip is not None),
        ("max_staleness", "train.max_staleness", train.max_staleness is not None),
        ("accumulate", "train.accumulate", train.accumulate > 1),
        ("compile", f"model.compile: {job.model.compile}", job.model.compile != "none"),
        ("precision", f"train.precision: {train.precision}", train.precision != "fp32"),
    ]
    return [(name, option) for name, option, is_set in asked if is_set]


def meetings(
    job: Job, update: FusedUpdate, model: nn.Module, packed: "Packed", procs: int, shape: Shape | None
) -> Meetings:
    """Choose how `procs` workers avoid each other's cache lines. `shape`: of the grid that is required, if any, or
    NO_GRID."""
    sides, may_copy = update.sides, procs > 1 and job.train.exchange == "delta"
    if len(sides) == 2:
        return _two_sided(model, packed, sides, max(1, procs), shape, may_copy)
    return _one_sided(model, packed, sides[0]) if sides and may_copy else Meetings()


def _one_sided(model: nn.Module, packed: "Packed", side: Side) -> Meetings:
    rows, width = _extent(model, side)
    counts = np.bincount(packed.arrays()[side.array].reshape(-1), minlength=rows)
    chosen = choose_hot(counts, packed.samples, width)
    hot = {side.array: chosen.rows} if len(chosen.rows) else {}
    return Meetings(hot, None, (f"{side.array}: {chosen.text}",))


def _two_sided(
    model: nn.Module, packed: "Packed", sides: tuple[Side, ...], procs: int, shape: Shape | None, may_copy: bool
) -> Meetings:
    extents = {side.array: _extent(model, side) for side in sides}
    smaller = min(sides, key=lambda side: extents[side.array][0] * extents[side.array][1])
    rows, width = extents[smaller.array]
    is_drawn = any(side.is_drawn for side in sides)
    is_ungridded = shape == NO_GRID or (shape is None and (is_drawn or rows < COLUMNS_PER_WORKER * procs))
    if may_copy and is_ungridded and rows * width <= HOT_BYTES:
        words = f"{smaller.array}: each worker has private copies of all {rows:,} rows ({size(rows * width)})"
        return Meetings({smaller.array: np.arange(rows, dtype=np.int32)}, None, (words,))
    if shape == NO_GRID or (shape is None and is_drawn):
        return Meetings()
    shape = shape or grid_shape(packed.samples, procs, *extents[sides[1].array])
    return _grid(model, packed, sides, shape, procs)


def grid_shape(samples: int, procs: int, columns: int, width: int) -> Shape:
    """Return the shape of the grid for so many samples, workers, columns and bytes of a column in all its parameters:
    as many blocks as the work bears."""
    rows = max(min(ROWS_PER_WORKER * procs, samples // LEAST_ROW_BLOCK), samples // ROW_BLOCK)
    least = max(2, procs)  # so that a run of one worker may go on with two
    rows = min(MOST_SIDE, max(1, rows // least) * least)
    wanted = max(LEAST_COLUMNS, COLUMNS_PER_WORKER * procs, -(-columns * width // COLUMN_BYTES))
    most = min(samples // rows // CELL, columns // LEAST_OF_COLUMN)
    return rows, min(MOST_SIDE, max(2 * procs, min(wanted, most))), least


def _grid(model: nn.Module, packed: "Packed", sides: tuple[Side, ...], shape: Shape, procs: int) -> Meetings:
    arrays, (first, second) = packed.arrays(), sides
    counts = _extent(model, first)[0], _extent(model, second)[0]
    grid = Grid.of(arrays[first.array], arrays[second.array], *counts, shape)
    rows, columns, _ = grid.shape
    words = [f"a grid of {rows} x {columns} blocks of {first.array} and {second.array}: no two workers share a row"]
    for side, share in zip(sides, grid.largest_shares(), strict=True):
        if share * procs > MOST_CROWDED:
            most = max(1, round(1 / share))
            words.append(
                f"{share:.0%} of the samples are of one block of {side.array} ids: about {counted(most, 'worker')} can "
                "be busy at once"
            )
    return Meetings({}, grid, tuple(words))


def _extent(model: nn.Module, side: Side) -> tuple[int, int]:
    """Return (rows, bytes of one row in all parameters of the side)."""
    params = [model.get_parameter(name) for name in side.params]
    return len(params[0]), sum(param[0].numel() * param.element_size() for param in params)
