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
from hogwild.errors import UsageError
from hogwild.formatting import counted, size
from hogwild.job.foreseen_kernels import options_set
from hogwild.kernels.fused import FusedUpdate, Side, Streaming
from hogwild.kernels.profile import choose_hot
from hogwild.kernels.signatures import has_numba
from hogwild.scheduling.grid_plan import Grid, Shape, TableSide
from hogwild.training.model_steps import has_training_step

if TYPE_CHECKING:
    from hogwild.feeds.packed import Packed
    from hogwild.job.source import Streamed

MOST_CROWDED = 1.5  # times a worker's share of the samples in one block: beyond, workers wait for each other
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
class ConflictEstimate:
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


def sides_of(update: FusedUpdate, model: nn.Module) -> tuple[TableSide, ...]:
    """Return the tables whose rows the kernel writes."""
    return tuple(TableSide(side.array, *_extent(model, side), side.is_drawn) for side in update.sides)


def estimate_conflicts(
    update: FusedUpdate,
    model: nn.Module,
    packed: "Packed",
    *,
    writers: int,
    grid: Shape | None = None,
    copied: str = "",
    may_copy: bool = False,
) -> ConflictEstimate:
    """Keep workers from each other's cache lines, as planned; of one-sided data the counts choose the rows. The options
    are those of `JobPlan`."""
    if grid is not None:
        return _grid(model, packed, update.sides, grid, writers)
    if copied:
        rows, width = next(_extent(model, side) for side in update.sides if side.array == copied)
        words = f"{copied}: each worker has private copies of all {rows:,} rows ({size(rows * width)})"
        return ConflictEstimate({copied: np.arange(rows, dtype=np.int32)}, None, (words,))
    return _one_sided(model, packed, update.sides[0]) if len(update.sides) == 1 and may_copy else ConflictEstimate()


def _one_sided(model: nn.Module, packed: "Packed", side: Side) -> ConflictEstimate:
    rows, width = _extent(model, side)
    counts = np.bincount(packed.arrays()[side.array].reshape(-1), minlength=rows)
    chosen = choose_hot(counts, packed.samples, width)
    hot = {side.array: chosen.rows} if len(chosen.rows) else {}
    return ConflictEstimate(hot, None, (f"{side.array}: {chosen.text}",))


def _grid(model: nn.Module, packed: "Packed", sides: tuple[Side, ...], shape: Shape, procs: int) -> ConflictEstimate:
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
    return ConflictEstimate({}, grid, tuple(words))


def _extent(model: nn.Module, side: Side) -> tuple[int, int]:
    """Return (rows, bytes of one row in all parameters of the side)."""
    params = [model.get_parameter(name) for name in side.params]
    return len(params[0]), sum(param[0].numel() * param.element_size() for param in params)
