"""The data of a job looked at before anything starts: lanes that fit, a schedule whose length is known, a DataLoader
in its place."""

from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.data import DataLoader

from hogwild.batches import BatchPlan, EpochPlan
from hogwild.config import Job
from hogwild.config_schema import Split
from hogwild.errors import DataError, ModelError
from hogwild.lr import NAMED
from hogwild.recurrence import takes_state
from hogwild.samples import Held
from hogwild.stream_plan import StreamPlan

if TYPE_CHECKING:
    pass


def lane_plan(job: Job, model: nn.Module, trained: Held, val: Any, notes: list[str]) -> BatchPlan:
    """How the rows are cut into `data.lanes`; says in `notes` what is left out. Raises BuildError where they cannot
    be."""
    lanes, columns = job.data.lanes, job.data.batch_size
    assert lanes is not None
    if trained.packed is not None:
        raise DataError(
            "data.lanes: rows that continue each other are a data set of tensors; data.train is packed, and its "
            "samples are read in any order",
            code="data/lanes",
        )
    if isinstance(val, Split):
        raise DataError(
            "data.val.fraction: with data.lanes give a data set of its own: rows drawn at random leave gaps in the "
            "sequence",
            code="data/split",
        )
    if not takes_state(model):
        raise ModelError(
            f"data.lanes: {type(model).__qualname__}.forward has no argument `state` with a default: it must be "
            "forward(x, state=None) -> (output, state)",
            code="model/state",
        )
    steps = trained.samples // (lanes * columns)
    if steps == 0:
        raise DataError(
            f"data.lanes: {lanes} lanes of {columns} columns (data.batch_size) need {lanes * columns:,} rows at least, "
            f"and data.train has {trained.samples:,}; fewer lanes, or a smaller batch",
            code="data/lanes",
        )
    if rest := trained.samples - lanes * columns * steps:
        notes.append(
            f"{rest:,} of {trained.samples:,} rows, the last, are left out: {lanes} lanes of {columns} columns are "
            f"{steps} batches long"
        )
    return BatchPlan(lanes * columns * steps, columns, lanes=lanes)


def check_length(job: Job, plan: EpochPlan) -> None:
    """A schedule that is stretched over the job must know how long that is. Raises DataError."""
    name = job.lr_schedule.name
    is_endless = isinstance(plan, StreamPlan) and plan.length is None and job.train.max_updates is None
    if is_endless and name in NAMED and name not in ("constant", "step"):
        raise DataError(
            f"lr_schedule.name: {name} is stretched over all updates of the job, and nobody knows how many there are: "
            "data.train is an iterable without len(); set train.max_updates, give its class a __len__, or use a "
            "schedule that needs no length: constant, step, or one of your own",
            code="data/no-length",
        )


def refuse_loader(dataset: Any, what: str) -> None:
    """Raises DataError for what makes batches of a data set, in place of the data set."""
    if isinstance(dataset, DataLoader):
        raise DataError(
            f"{what} is a DataLoader; give the data set itself, and batch_size, shuffle, drop_last and collate as "
            "settings of the job",
            code="data/loader",
        )
