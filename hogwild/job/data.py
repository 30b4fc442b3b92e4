"""The data of a job for its workers (resident, packed, in lanes or streamed), and its held-out part."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from hogwild.config.field_types import Component
from hogwild.config.load import Job
from hogwild.config.schema import Split, loaders_for
from hogwild.errors import DataError, ModelError
from hogwild.feeds.materialise import Held, Reader
from hogwild.feeds.packed import Packed
from hogwild.feeds.ring import BatchForm, RingSpec
from hogwild.job.packed_data import packs, read_packed
from hogwild.job.parts import NORMS
from hogwild.job.source import Source
from hogwild.job.stream_choice import is_iterable, split, why_streamed
from hogwild.job.stream_setup import prepare, slots_of
from hogwild.job.validation_ring import hold
from hogwild.parameters.shared_model import wants_channels_last
from hogwild.planning.cpu_plan import plan_here
from hogwild.scheduling.batch_plan import BatchPlan, EpochPlan, StreamPlan
from hogwild.training.lr_schedule import NAMED
from hogwild.training.recurrent_state import takes_state


def lane_plan(job: Job, model: nn.Module, trained: Held, val: Any, notes: list[str]) -> BatchPlan:
    """Divide the rows into `data.lanes`; adds to `notes` which rows are left out. Raises BuildError if that is
    impossible."""
    lanes, columns = job.data.lanes, job.data.batch_size
    assert lanes is not None
    if trained.packed is not None:
        raise DataError(
            "data.lanes needs a data set of consecutive rows as tensors; data.train is packed, and its samples are "
            "read in any order",
            code="data/lanes",
        )
    if isinstance(val, Split):
        raise DataError(
            "data.val.fraction: data.lanes needs a separate validation data set: a random split leaves gaps in the "
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
            f"data.lanes: {lanes} lanes of {columns} columns (data.batch_size) need at least {lanes * columns:,} rows, "
            f"but data.train has {trained.samples:,}; use fewer lanes or a smaller batch",
            code="data/lanes",
        )
    if rest := trained.samples - lanes * columns * steps:
        notes.append(
            f"{rest:,} of {trained.samples:,} rows, the last, are left out: {lanes} lanes of {columns} columns are "
            f"{steps} batches long"
        )
    return BatchPlan(lanes * columns * steps, columns, lanes=lanes)


def check_length(job: Job, plan: EpochPlan) -> None:
    """Check that the length of the job is known if its schedule is stretched over it. Raises DataError."""
    name = job.lr_schedule.name
    is_endless = isinstance(plan, StreamPlan) and plan.length is None and job.train.max_updates is None
    if is_endless and name in NAMED and name not in ("constant", "step"):
        raise DataError(
            f"lr_schedule.name: {name} needs the number of updates of the job, which is unknown: data.train is an "
            "iterable without len(); set train.max_updates, give its class a __len__, or use a schedule that needs no "
            "length: constant, step, or your own",
            code="data/no-length",
        )


def refuse_loader(dataset: Any, what: str) -> None:
    """Raise DataError for a DataLoader in place of the data set."""
    if isinstance(dataset, DataLoader):
        raise DataError(
            f"{what} is a DataLoader; pass the data set itself, and batch_size, shuffle, drop_last and collate as "
            "fields of the job",
            code="data/loader",
        )


EVALUATION_BATCH = 256  # no gradients: larger batches than in training cost nothing and save time


def sources_of(
    job: Job, model: nn.Module, train: Any, val: Any, collate: Any, reader: Reader, generator: Tensor | None
) -> tuple[Source, Source | None, list[str]]:
    """Return (training data, held-out data or None, notes for the user)."""
    for what, given in (("data.train", train), ("data.val", val)):
        refuse_loader(given, what)
    size = max(job.data.batch_size, EVALUATION_BATCH)
    is_packed = packs(train) or isinstance(train, Packed)
    why, note = ("", "") if is_packed else why_streamed(job, train, "data.train")
    notes = [note] if note else []
    has_norm = any(isinstance(module, NORMS) for module in model.modules())
    channels_last = wants_channels_last(model, job.model.memory_format)
    options: dict[str, Any] = {"collate": collate, "channels_last": channels_last, "has_norm": has_norm}
    if not why:
        is_data = val is not None and not isinstance(val, Split)
        is_read_through = job.data.feed == "auto" and not is_packed and is_data and is_iterable(val)
        trained, held = _read(job, model, train, None if is_read_through else val, reader)
        if job.data.lanes is None:
            plan = BatchPlan(trained.samples, job.data.batch_size, job.data.drop_last, merge_single=has_norm)
        else:
            plan = lane_plan(job, model, trained, val, notes)
        source = Source(trained.tensors, plan, trained.resident, trained.packed)
        if is_read_through:
            return source, _held_of(job, val, size, options), notes
        if held is None:
            return source, None, notes
        return source, Source(held.tensors, BatchPlan(held.samples, size), held.resident, held.packed), notes
    if isinstance(val, Split):
        train, val = split(train, val.fraction, job.seed)
    spec = job.data.train if generator is not None and not isinstance(job.data.val, Split) else None
    streamed = prepare(job, train, spec, generator, why, loaders=loaders_of(job), **options)
    source = Source((), streamed.stream.plan, streamed=streamed)
    notes += streamed.notes
    if val is None:
        return source, None, notes
    needs_slots = job.data.collate is not None or job.data.padding is not None or is_iterable(val)
    needs_slots = needs_slots or streamed.form.is_nested
    if not needs_slots:
        (alike,) = reader.read(val, "data.val", fraction=None, channels_last=channels_last)
        return source, Source(alike.tensors, BatchPlan(alike.samples, size), alike.resident), notes
    spec = job.data.val if generator is not None and isinstance(job.data.val, Component) else None
    return source, _held_of(job, val, size, options, spec, streamed.form), notes


def _held_of(
    job: Job,
    val: Any,
    size: int,
    options: Mapping[str, Any],
    spec: Component | None = None,
    trained: BatchForm | None = None,
) -> Source:
    """Load validation data that is kept in whole batches into a ring that holds all, contiguous. `spec`: the class path
    it was made from; `trained`: the form of training batches, if they are in a ring."""
    streamed = prepare(job, val, spec, None, "", loaders=1, what="data.val", **{**options, "channels_last": False})
    form = streamed.form
    if trained is not None and (form.nesting != trained.nesting or form.kinds != trained.kinds):
        raise DataError(
            f"data.val has batches {form.words()}, data.train {trained.words()}; both must be alike",
            code="data/val-unlike-train",
        )
    ring = hold(streamed, size, "data.val")
    return Source((), ring.plan, held=ring)


def loaders_of(job: Job) -> int:
    """Return the number of processes that read a stream."""
    return loaders_for(job, plan_here(job.train.procs, job.train.threads, pin=job.train.pin).procs)


def ring_spec_of(job: Job, source: Source, procs: int) -> RingSpec | None:
    """Return the ring through which streamed data reach `procs` workers. Raises UsageError for too few slots."""
    if source.streamed is None:
        return None
    loaders = loaders_of(job)
    return source.streamed.ring_spec(slots_of(job, procs, loaders), loaders)


def _read(
    job: Job, model: nn.Module, train: Dataset, val: Dataset | Split | None, reader: Reader
) -> tuple[Held, Held | None]:
    """Return (training data, held-out data)."""
    if packs(train) or isinstance(train, Packed):
        return read_packed(job, train, val, reader)
    channels_last = wants_channels_last(model, job.model.memory_format)
    if isinstance(val, Split):
        trained, held_back = reader.read(train, "data.train", fraction=val.fraction, channels_last=channels_last)
        return trained, held_back
    (trained,) = reader.read(train, "data.train", fraction=None, channels_last=channels_last)
    if val is None:
        return trained, None
    (held_back,) = reader.read(val, "data.val", fraction=None, channels_last=channels_last)
    return trained, held_back
