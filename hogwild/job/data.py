"""The data of a job for its workers (resident, packed, in lanes or streamed), and its held-out part.

feed: auto     resident if the data set has a length, equal records, and fits into half of the free memory
feed: stream   streamed"""

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from hogwild import host
from hogwild.config.field_types import Component
from hogwild.config.load import Job
from hogwild.config.schema import Data, Split
from hogwild.data.rollout import Rollout, try_rollout
from hogwild.errors import DataError, ModelError
from hogwild.feeds.packed import Packed
from hogwild.feeds.ring import BatchForm
from hogwild.feeds.row_reader import Held, Part, Reader, RowSource, division, ready_tensors
from hogwild.feeds.stream_reader import travels
from hogwild.formatting import size
from hogwild.job.packed_data import is_ranking, liked_rows, packs, read_packed
from hogwild.job.source import Source
from hogwild.job.stream_setup import has_nested, is_iterable, prepare, read_into_memory
from hogwild.job.trial import NORMS
from hogwild.parameters.shared_model import wants_channels_last
from hogwild.planning.device_placement import is_open
from hogwild.planning.job_plan import JobPlan
from hogwild.scheduling.batch_plan import BatchPlan, EpochPlan, StreamPlan
from hogwild.training.lr_schedule import NAMED
from hogwild.training.model_steps import takes_state

EVALUATION_BATCH = 256  # no gradients: larger batches than in training cost nothing and save time
RESIDENT_SHARE = 0.5  # of the free memory: a larger data set is streamed (feed: auto)


def lane_plan(job: Job, model: nn.Module, trained: Held, notes: list[str]) -> BatchPlan:
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


def sources_of(
    plan: JobPlan,
    model: nn.Module,
    loss: Any,
    train: Any,
    val: Any,
    collate: Any,
    reader: Reader,
    generator: Tensor | None,
) -> tuple[Source, Source | None, list[str]]:
    """Return (training data, held-out data or None, notes for the user). Raises DataError, also for a DataLoader."""
    job = plan.job
    for what, given in (("data.train", train), ("data.val", val)):
        if isinstance(given, DataLoader):
            raise DataError(
                f"{what} is a DataLoader; pass the data set itself, and batch_size, shuffle, drop_last and collate as "
                "fields of the job",
                code="data/loader",
            )
    if isinstance(train, Rollout) or isinstance(val, Rollout):
        return _rollouts(plan, model, train, val)
    per_batch = max(job.data.batch_size, EVALUATION_BATCH)
    is_packed = packs(train) or isinstance(train, Packed)
    why, note = ("", "") if is_packed else why_streamed(job, train, "data.train")
    notes = [note] if note else []
    csv: Any = sys.modules.get("hogwild.data.csv.dataset")  # few jobs have one, and its import takes 20 ms
    if csv is not None and isinstance(train, csv.Csv) and not is_packed:
        notes += [f"data.train: {said}" for said in train.notes]
    has_norm = any(isinstance(module, NORMS) for module in model.modules())
    channels_last = wants_channels_last(model, job.model.memory_format)
    options: dict[str, Any] = {"collate": collate, "channels_last": channels_last, "has_norm": has_norm}
    if not why:
        is_data = val is not None and not isinstance(val, Split)
        is_read_through = job.data.feed == "auto" and not is_packed and is_data and is_iterable(val)
        read_now = None if is_read_through else val
        if is_packed:
            trained, held = read_packed(job, train, read_now, reader, loss, notes)
        else:
            trained, held = _read(train, read_now, reader, channels_last)
            if is_ranking(loss):
                trained = _liked(trained, "data.train", notes)
                held = held and _liked(held, "data.val", notes)
        if job.data.lanes is None:
            epoch = BatchPlan(trained.samples, job.data.batch_size, job.data.drop_last, merge_single=has_norm)
        else:
            epoch = lane_plan(job, model, trained, notes)
        source = Source(trained.tensors, epoch, trained.resident, trained.packed, dataset=train)
        if is_read_through:
            return source, _held_of(job, val, per_batch, options), notes
        if held is None:
            return source, None, notes
        epoch = BatchPlan(held.samples, per_batch)
        return source, Source(held.tensors, epoch, held.resident, held.packed, dataset=val), notes
    whole = train
    if isinstance(val, Split):
        train, val = split(train, val.fraction, job.seed)
    spec = job.data.train if generator is not None and not isinstance(job.data.val, Split) else None
    streamed = prepare(job, train, spec, generator, why, loaders=plan.loaders, **options)
    source = Source((), streamed.stream.plan, streamed=streamed, dataset=whole)
    notes += streamed.notes
    if val is None:
        return source, None, notes
    needs_slots = job.data.collate is not None or job.data.padding is not None or is_iterable(val)
    needs_slots = needs_slots or streamed.form.is_nested
    if not needs_slots:
        (alike,) = reader.read(val, "data.val", fraction=None, channels_last=channels_last)
        return source, Source(alike.tensors, BatchPlan(alike.samples, per_batch), alike.resident), notes
    spec = job.data.val if generator is not None and isinstance(job.data.val, Component) else None
    return source, _held_of(job, val, per_batch, options, spec, streamed.form), notes


def _rollouts(plan: JobPlan, model: nn.Module, train: Any, val: Any) -> tuple[Source, Source | None, list[str]]:
    """Return what `sources_of` returns, for data that workers make from the model."""
    job = plan.job
    for what, given in (("data.train", train), ("data.val", val)):
        if given is not None and not isinstance(given, Rollout):
            named = "data.val.fraction is set" if isinstance(given, Split) else f"{what} is a {type(given).__name__}"
            raise DataError(
                f"{named}, but the other of data.train and data.val is a Rollout; both must be Rollouts, or data.val "
                "left out",
                code="data/rollout",
            )
    wrong = [
        f"data.{name}"
        for name in ("batch_size", "collate", "drop_last", "feed", "lanes", "padding", "shuffle")
        if getattr(job.data, name) != Data.model_fields[name].default
    ]
    wrong += ["train.device"] if plan.devices and not is_open(job) else []
    wrong += ["model.compile"] if job.model.compile == "inductor" else []
    if wrong:
        raise DataError(
            f"data.train is a Rollout, which makes whole batches of any size on the CPU: leave out {', '.join(wrong)}",
            code="data/rollout",
        )
    played = [
        Source(
            try_rollout(one, model, job.seed, is_val=one is val),
            BatchPlan(one.updates_per_epoch, 1),
            rollout=one,
            dataset=one,
        )
        for one in (train, val)
        if one is not None
    ]
    return played[0], played[1] if val is not None else None, []


def why_streamed(job: Job, dataset: Any, what: str) -> tuple[str, str]:
    """Return (why it is streamed, or "" if it is resident; a note for the log). Raises DataError for neither."""
    data = job.data
    if data.lanes is not None:
        return "", ""
    if data.feed == "resident":
        if is_iterable(dataset) or ready_tensors(dataset, what) is not None:
            return "", ""
        if changes := _why_changing(RowSource.of(dataset, what, job.seed)):
            return "", f"{what}: {changes}; data.feed: resident trains on one reading of each in every epoch"
        return "", ""
    if data.feed == "stream":
        return "set by data.feed", ""
    if is_iterable(dataset):
        return f"{type(dataset).__name__} can only be read from start to end", ""
    for name in ("collate", "padding"):
        if getattr(data, name) is not None:
            return f"data.{name} is set", ""
    if ready_tensors(dataset, what) is not None:
        return "", ""
    try:
        rows = RowSource.of(dataset, what, job.seed)
    except DataError as error:
        if error.code == "data/bad-item" and has_nested(dataset):
            return f"the inputs of {type(dataset).__name__} are nested", ""
        raise
    frozen = ""
    if changes := _why_changing(rows):
        if not (unsent := travels(dataset)):
            return f"{changes}, so every epoch is drawn anew (data.feed: resident would train on one reading)", ""
        frozen = f"; {changes}, but it trains on one reading, as loaders cannot be sent the data set ({unsent})"
    needed, memory = rows.count * rows.row_bytes, host.available_memory()
    if needed > RESIDENT_SHARE * memory.bytes:
        return f"it needs {size(needed)}, more than half of the free memory ({size(memory.bytes)})", ""
    return (
        "",
        f"{what}: resident: {size(needed)} loaded into memory ({size(memory.bytes)} free; data.feed: auto){frozen}",
    )


def _why_changing(rows: RowSource) -> str:
    """Return why a data set is not the same in every epoch; "" if it is, as far as a few readings tell."""
    whole = rows.dataset.dataset if isinstance(rows.dataset, Part) else rows.dataset
    if callable(getattr(whole, "set_epoch", None)):
        return f"{type(whole).__name__} has a set_epoch"
    row = rows.changing_row()
    return "" if row is None else f"item {row} of {type(whole).__name__} changes from reading to reading"


def split(dataset: Any, fraction: float, seed: int) -> tuple[Any, Any]:
    """Return (training data, held-out data) of a map-style data set. Raises DataError for an iterable."""
    if is_iterable(dataset):
        raise DataError(
            f"data.val.fraction: {type(dataset).__name__} can only be read from start to end; give data.val a data set",
            code="data/split",
        )
    trained, held = division(len(dataset), fraction, seed)
    return Part(dataset, trained.tolist()), Part(dataset, held.tolist())


def _held_of(
    job: Job,
    val: Any,
    per_batch: int,
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
            f"data.val has batches {form.describe()}, data.train {trained.describe()}; both must be alike",
            code="data/val-unlike-train",
        )
    ring = read_into_memory(streamed, per_batch, "data.val")
    return Source((), ring.plan, held=ring)


def _liked(held: Held, what: str, notes: list[str]) -> Held:
    rows = liked_rows(held.tensors[-1].numpy(), what, notes)
    return held if rows is None else Held(tuple(tensor[torch.from_numpy(rows)] for tensor in held.tensors))


def _read(train: Dataset, val: Dataset | Split | None, reader: Reader, channels_last: bool) -> tuple[Held, Held | None]:
    """Return (training data, held-out data)."""
    fraction = val.fraction if isinstance(val, Split) else None
    trained, *held_back = reader.read(train, "data.train", fraction=fraction, channels_last=channels_last)
    if val is not None and not isinstance(val, Split):
        held_back = [*reader.read(val, "data.val", fraction=None, channels_last=channels_last)]
    return trained, held_back[0] if held_back else None
