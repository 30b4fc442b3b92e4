"""The data of a job for its workers (resident, packed, in lanes or streamed), and its held-out part.

feed: auto     resident if the data set has a length, equal records, and fits into half of the free memory
feed: stream   streamed

Some data determine sizes of the model and are made before it. A data set that can be packed has `pack(reader, what,
like, on_bad_line) -> Packed`; `like` is the training data, whose vocabulary and numbers are used for validation data. A
model may have `on_data(train, val)`, which is called once with the arrays of both (val may be None): counts for its
negatives, known triples. A data set that leaves out rare names may have `remember(names)`, called before `pack` with
those that have a row already.

Any other data set gives sizes by an attribute or property of its class: `sizes` (name -> number: `features`; after
`count_classes()`, if it has that, also `classes`), or `vocabularies` (name -> what its numbers stand for, by number;
{} for the class), whose lengths are used: `symbols`."""

import inspect
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from hogwild import host
from hogwild.config.load import Job
from hogwild.config.schema import Component, Data, Split
from hogwild.data.rollout import Rollout, try_rollout
from hogwild.errors import DataError, ModelError
from hogwild.feeds.packed import Packed, columns_of, held_out, rows_in
from hogwild.feeds.ring import BatchForm
from hogwild.feeds.row_reader import Held, Part, Reader, RowSource, division, ready_tensors, require_both
from hogwild.feeds.stream_reader import travels
from hogwild.formatting import size
from hogwild.job.parts import NORMS, Functions
from hogwild.job.row_names import NOTHING_KNOWN, KnownNames
from hogwild.job.sampling import Sampling, build_sampler
from hogwild.job.source import Source, has_nested, is_iterable, prepare, read_into_memory
from hogwild.losses import BprLoss, WarpLoss
from hogwild.parameters.shared_model import wants_channels_last
from hogwild.planning.device_placement import is_open
from hogwild.planning.job_plan import JobPlan
from hogwild.scheduling.batch_plan import BatchPlan, EpochPlan, StreamPlan
from hogwild.training.lr_schedule import NAMED
from hogwild.training.model_steps import takes_state
from hogwild.user_code import Given, build, resolve

EVALUATION_BATCH = 256  # no gradients: larger batches than in training cost nothing and save time
RESIDENT_SHARE = 0.5  # of the free memory: a larger data set is streamed (feed: auto)


def evaluation_batch(data: Data) -> int:
    """Return the samples of a batch of an evaluation; the last may have fewer."""
    return max(data.batch_size, EVALUATION_BATCH)


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
    functions: Functions,
    reader: Reader,
    generator: Tensor | None,
) -> tuple[Source, Source | None, list[str]]:
    """Return (training data, held-out data or None, notes for the user). Raises DataError, also for a DataLoader."""
    job = plan.job
    for what, given in (("data.train", train), ("data.val", val)):
        if isinstance(given, DataLoader):
            raise DataError(
                f"{what} names a DataLoader, which only hogwild.train takes apart; name the data set itself, and "
                "batch_size, shuffle, drop_last, collate, loaders and sampler as fields of data",
                code="data/loader",
            )
    if isinstance(train, Rollout) or isinstance(val, Rollout):
        return _rollouts(plan, model, train, val)
    per_batch = evaluation_batch(job.data)
    is_packed = packs(train) or isinstance(train, Packed)
    why, note = ("", "") if is_packed else why_streamed(job, train, "data.train")
    notes = [note] if note else []
    csv: Any = sys.modules.get("hogwild.data.csv.dataset")  # few jobs have one, and its import takes 20 ms
    if csv is not None and isinstance(train, csv.Csv) and not is_packed:
        notes += [f"data.train: {said}" for said in train.notes]
    has_norm = any(isinstance(module, NORMS) for module in model.modules())
    channels_last = wants_channels_last(model, job.model.memory_format)
    sampling = _sampling_of(job, functions, train, loss, is_packed=is_packed, has_norm=has_norm)
    notes += [sampling.note] if sampling is not None else []
    options: dict[str, Any] = {"collate": functions.val_collate, "channels_last": channels_last, "has_norm": has_norm}
    if not why:
        is_data = val is not None and not isinstance(val, Split)
        is_in_batches = is_data and (
            functions.val_collate is not None or (job.data.feed == "auto" and is_iterable(val))
        )
        is_read_through = is_in_batches and not is_packed
        read_now = None if is_read_through else val
        if is_packed:
            trained, held = read_packed(job, train, read_now, reader, loss, notes)
        else:
            fraction = val.fraction if isinstance(val, Split) else None
            trained, *parts = reader.read(train, "data.train", fraction=fraction, channels_last=channels_last)
            if read_now is not None and fraction is None:
                parts = [*reader.read(read_now, "data.val", fraction=None, channels_last=channels_last)]
            held = parts[0] if parts else None
            if is_ranking(loss):
                trained = _liked(trained, "data.train", notes)
                held = held and _liked(held, "data.val", notes)
        epoch: EpochPlan
        if sampling is not None:
            epoch = sampling.plan
        elif job.data.lanes is None:
            epoch = BatchPlan(trained.samples, job.data.batch_size, job.data.drop_last, merge_single=has_norm)
        else:
            epoch = lane_plan(job, model, trained, notes)
        of_train: dict[str, Any] = {"sampling": sampling, "dataset": train, "left_out": trained.left_out}
        source = Source(trained.tensors, epoch, trained.resident, trained.packed, **of_train)
        if is_read_through:
            return source, _held_of(job, val, per_batch, options), notes
        if held is None:
            return source, None, notes
        epoch = BatchPlan(held.samples, per_batch)
        kept = Source(held.tensors, epoch, held.resident, held.packed, dataset=val, left_out=held.left_out)
        return source, kept, notes
    whole = train
    if isinstance(val, Split):
        train, val = split(train, val.fraction, job.seed)
    spec = job.data.train if generator is not None and not isinstance(job.data.val, Split) else None
    of_train = {**options, "collate": functions.collate, "sampling": sampling}
    streamed = prepare(job, train, spec, generator, why, loaders=plan.loaders, **of_train)
    source = Source((), streamed.stream.plan, streamed=streamed, sampling=sampling, dataset=whole)
    notes += streamed.notes
    if val is None:
        return source, None, notes
    needs_slots = functions.val_collate is not None or job.data.padding is not None or is_iterable(val)
    needs_slots = needs_slots or streamed.form.is_nested
    if not needs_slots:
        (alike,) = reader.read(val, "data.val", fraction=None, channels_last=channels_last)
        return source, Source(alike.tensors, BatchPlan(alike.samples, per_batch), alike.resident), notes
    spec = job.data.val if generator is not None and isinstance(job.data.val, Component) else None
    return source, _held_of(job, val, per_batch, options | {"padded": streamed.padded}, spec, streamed.form), notes


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
        for name in ("batch_size", "collate", "drop_last", "feed", "lanes", "padding", "sampler", "shuffle")
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


def _sampling_of(
    job: Job, functions: Functions, train: Any, loss: Any, *, is_packed: bool, has_norm: bool
) -> Sampling | None:
    """Return the draws of the job's sampler, if it has one. Raises DataError where there is nothing to draw from."""
    if functions.sampler is None and job.data.sampler is None:
        return None
    why = "can only be read from start to end" if is_iterable(train) else ""
    why = why or ("is packed, and read in an order that suits the model's kernel" if is_packed else "")
    why = why or (f"has rows that {type(loss).__name__} leaves out" if is_ranking(loss) else "")
    if why:
        raise DataError(
            f"data.sampler: its entries are numbers of samples, but {type(train).__name__} {why}: leave the sampler "
            "out, or give a data set with len() and [i]",
            code="data/sampler",
        )
    sampler = job.data.sampler if functions.sampler is None else functions.sampler
    sampler = build_sampler(sampler, train) if isinstance(sampler, Component | Given) else sampler
    return Sampling.of(job, sampler, train, has_norm=has_norm)


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


SIZES, VOCABULARIES = "sizes", "vocabularies"
FITTING = ("features", "channels", "categories")  # sizes of the inputs: with others the model fails


@dataclass(frozen=True, slots=True)
class PackedData:
    """The data sets of a job file that can be packed; None for others. `made`: the training data set, if it was already
    made."""

    train: Packed | None = None
    val: Packed | None = None
    made: Any = None
    unseen: dict[str, list[int]] = field(default_factory=dict)  # of the last rows of each kind, which have no sample

    @property
    def sizes(self) -> Mapping[str, Any]:
        """The sizes that a model may take from it."""
        return self.train.spec.sizes if self.train is not None else _sizes(self.made)


def packs(dataset: Any) -> bool:
    """Return whether it, or an instance of the class, can be packed."""
    return callable(getattr(dataset, "pack", None))


def pack(job: Job, reader: Reader, known: KnownNames = NOTHING_KNOWN) -> PackedData:
    """Return the packed data of a job file, with rows for `known` names. Raises DataError and what the classes
    raise."""
    found = resolve(job.data.train.class_path)
    if not packs(found):
        has_sizes = hasattr(found, VOCABULARIES) or hasattr(found, SIZES)
        return PackedData(made=build(job.data.train)) if has_sizes else PackedData()
    dataset = build(job.data.train)
    if hasattr(dataset, "remember"):
        dataset.remember(known.names)
    train, unseen = known.extend(dataset.pack(reader, "data.train", None, job.data.on_bad_line))
    val = job.data.val
    if not isinstance(val, Component) or not packs(resolve(val.class_path)):
        return PackedData(train, unseen=unseen)
    held = build(val)
    match_names(dataset, held)
    return PackedData(train, held.pack(reader, "data.val", train, job.data.on_bad_line), unseen=unseen)


def sizes_for(model: Component, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `sizes` that the model takes as arguments and the job file leaves out. A user's own class gets
    only arguments without a default: `channels` may mean something else there."""
    if not sizes:
        return {}
    target = resolve(model.class_path)
    is_ours = getattr(target, "__module__", "").startswith("hogwild.")
    return {
        name: sizes[name]
        for name, one in inspect.signature(target).parameters.items()
        if name in sizes and name not in model.init_args and (is_ours or one.default is one.empty)
    }


def count_classes(model: Component, made: Any) -> None:
    """Have the data set count its classes, a pass over its file, if the model takes their number from it."""
    if hasattr(made, "count_classes") and sizes_for(model, {"classes": 0, "outputs": 0}):
        made.count_classes()


def require_fitting(model: Component, made: Any) -> None:
    """Raise ModelError if the job file gives one of our models another size of the inputs than the data set `made` has.
    A category may have more values than occur."""
    for name in FITTING if model.class_path.startswith("hogwild.models.") else ():
        given, wanted = model.init_args.get(name), _sizes(made).get(name)
        if given is None or wanted is None or given == wanted:
            continue
        if isinstance(given, list) and len(given) == len(wanted) and all(map(int.__ge__, given, wanted)):
            continue
        raise ModelError(
            f"model.init_args.{name} is {given}, but the data has {wanted}; remove {name} from model.init_args to take "
            "it from the data",
            code="model/unlike-data",
        )


def read_packed(
    job: Job, train: Any, val: Any, reader: Reader, loss: Any, notes: list[str]
) -> tuple[Held, Held | None]:
    """Return (training data, held-out data). Adds to `notes` what a ranking loss leaves out, and how many rows are in
    both. Raises DataError."""
    packed = train if isinstance(train, Packed) else train.pack(reader, "data.train", None, job.data.on_bad_line)
    if packed.samples == 0:
        raise DataError("data.train: the data set is empty; there is nothing to train on", code="data/empty")
    packed, less = _liked_pairs(packed, "data.train", loss, notes)
    if isinstance(val, Split):
        if packed.spec.form == "tokens":
            raise DataError(
                "data.val.fraction: a text cannot be split; use a separate data set (hogwild.data.WordPairs)",
                code="data/split",
            )
        trained, held = (packed.copy_rows(f"data-{k}", p) for k, p in enumerate(_parts(packed, val.fraction, job.seed)))
        return Held((), None, trained, less), Held((), None, held)
    if val is None:
        return Held((), None, packed, less), None
    if not packs(val) and not isinstance(val, Packed):
        raise DataError(
            f"data.val: a {type(val).__name__} cannot be packed, but data.train is; use a data set of the same kind",
            code="data/val-unlike-train",
        )
    held_back = val if isinstance(val, Packed) else val.pack(reader, "data.val", packed, job.data.on_bad_line)
    if held_back.samples == 0:
        raise DataError(
            "data.val: the data set is empty; there is nothing to evaluate: give it rows, or train without an "
            "evaluation (data.val=null)",
            code="data/empty",
        )
    held_back, less_held = _liked_pairs(held_back, "data.val", loss, notes)
    ours, theirs = columns_of(packed), columns_of(held_back)
    if ours is not None and theirs is not None and (many := rows_in(ours, theirs)):
        notes.append(
            f"data.val: {many:,} of its {held_back.samples:,} rows are in data.train, too: the figures are partly of "
            "what was trained on; divide the file by one `holdout`, with part: train there and part: test here"
        )
    return Held((), None, packed, less), Held((), None, held_back, less_held)


def is_ranking(loss: Any) -> bool:
    """Return whether each sample is a like to the loss, whatever its value."""
    return isinstance(loss, BprLoss | WarpLoss)


def liked_rows(values: np.ndarray, what: str, notes: list[str]) -> np.ndarray | None:
    """Return the rows (n,) int64 with a value above 0; None if all have one. Adds to `notes` how many have none, or
    what counts as a like. Raises DataError if none is left."""
    rows = np.flatnonzero(values > 0)
    if not len(rows):
        raise DataError(
            f"{what}: no pair has a value above 0; the loss takes each pair as a like: give likes the value 1",
            code="data/empty",
        )
    if less := len(values) - len(rows):
        notes.append(f"{what}: {less:,} of {len(values):,} pairs are left out: a value of 0 or less is no like")
    elif what == "data.train" and (lowest := values.min()) < values.max():
        notes.append(f"{what}: each pair is a like, with any value from {lowest:g} to {values.max():g}")
    return rows if less else None


def _liked_pairs(packed: Packed, what: str, loss: Any, notes: list[str]) -> tuple[Packed, np.ndarray | None]:
    """Return the ratings that the loss may have, and the users and items (n, 2) of the others, if there are any."""
    rating = packed.arrays().get("rating") if is_ranking(loss) else None
    rows = None if rating is None else liked_rows(rating, what, notes)
    users, items = (packed.spec.sizes.get(kind, 0) for kind in ("users", "items"))
    if rating is not None and what == "data.train" and users * items == (len(rating) if rows is None else len(rows)):
        raise DataError(
            f"{what}: each of the {users:,} users has each of the {items:,} items, and none is left to rank below "
            "them; leave out what is no like, or give it the value 0",
            code="data/empty",
        )
    if rows is None:
        return packed, None
    arrays = packed.arrays()
    less = np.stack([np.delete(arrays[name], rows) for name in ("user", "item")], 1)
    return packed.copy_rows(what.replace(".", "-"), rows), less


def _parts(packed: Packed, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of (train, held out), by their names if they have any. Raises DataError if one part is empty."""
    if (columns := columns_of(packed)) is None:
        trained, held = division(packed.samples, fraction, seed)
        return np.sort(trained.numpy()), np.sort(held.numpy())
    is_held = held_out(columns, fraction, seed)
    require_both(int(is_held.sum()), packed.samples, fraction)
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def match_names(train: Any, val: Any) -> None:
    """Have the validation data read by the names of the training data: columns, categories, classes, inputs. A data set
    that can be read so has `read_like(train)`, for training data of its class; and `alike`, arguments by name that both
    must share. Raises UsageError, DataError for another argument, for a name that only one of the two has, and for
    other data sets whose names differ."""
    train, val = (one.dataset if isinstance(one, Subset) else one for one in (train, val))
    theirs, ours = (getattr(one, "alike", {}) for one in (train, val))
    for name in ours.keys() & theirs.keys() if isinstance(ours, Mapping) and isinstance(theirs, Mapping) else ():
        if ours[name] != theirs[name]:
            raise DataError(
                f"data.val: {name} is {ours[name]!r}, but {theirs[name]!r} in data.train; give both the same",
                code="data/val-unlike-train",
            )
    base = next((one for one in type(val).__mro__ if "read_like" in vars(one)), None)
    if base is not None and isinstance(train, base) and train is not val:
        val.read_like(train)
        return
    if packs(train) or isinstance(train, Packed) or train is val:
        return
    require_same_names(_listed_names(train), val, "data.val")


def require_same_names(theirs: Mapping[str, Sequence[Any]], dataset: Any, what: str) -> None:
    """Raise DataError if a data set has other names by number than the training data, `theirs`, or another order."""
    listed = _listed_names(dataset)
    for kind in theirs.keys() & listed.keys():
        known, ours = _all_plain(theirs[kind]), _all_plain(listed[kind])
        if known != ours:
            row = next(k for k, pair in enumerate(zip_longest(known, ours)) if pair[0] != pair[1])
            here, there = (repr(names[row]) if row < len(names) else "nothing" for names in (ours, known))
            raise DataError(
                f"{what}: {kind}: number {row} is {here}, but {there} in data.train, so the model would take one for "
                f"the other; give both the same {kind} in the same order",
                code="data/val-unlike-train",
            )


def _listed_names(dataset: Any) -> dict[str, list[Any]]:
    """Return names by number: of `vocabularies`, and the `classes` of torchvision's data sets."""
    classes = getattr(dataset, "classes", None)
    of_torchvision = {"classes": classes} if isinstance(classes, list | tuple) else {}
    return {str(kind): [*names] for kind, names in {**of_torchvision, **_vocabularies(dataset)}.items()}


def names_of(train: Any, packed: Packed | None) -> dict[str, Any] | None:
    """Return the names of the data's numbers, the sizes that models take, and the columns of its file, as stored in a
    run's names.json; None if the data has none of these."""
    if packed is not None:
        names = {key: _all_plain(values) for key, values in packed.names.items()}
        of_file: dict[str, Any] = {key: names.pop(key) for key in ("columns", "target") if key in names}
        return {"sizes": dict(packed.spec.sizes), "names": names, **of_file}
    sizes, columns = _sizes(train), getattr(train, "columns", None)
    names = {str(key): _all_plain(values) for key, values in _vocabularies(train).items()}
    of_file = {"columns": list(columns)} if hasattr(type(train), "for_inputs") and columns else {}
    return {"sizes": dict(sizes), "names": names, **of_file} if sizes or of_file else None


def _sizes(dataset: Any) -> Mapping[str, Any]:
    found = getattr(dataset, SIZES, None)
    counts = {str(name): len(names) for name, names in _vocabularies(dataset).items()}
    return counts | {str(name): size for name, size in found.items()} if isinstance(found, Mapping) else counts


def _vocabularies(dataset: Any) -> Mapping[str, Sequence[Any]]:
    found = getattr(dataset, VOCABULARIES, None)
    is_ours = isinstance(found, Mapping) and all(isinstance(names, list | tuple) for names in found.values())
    return found if is_ours and found is not None else {}


def _all_plain(values: Any) -> list[Any]:
    """Return names as JSON can hold them: numpy's numbers are not Python's."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuU":
        plain: list[Any] = values.tolist()  # millions of them
        return plain
    return [*map(_plain, values)]


def _plain(name: Any) -> Any:
    plain = name.item() if hasattr(name, "item") else name
    is_json = isinstance(plain, str | int) or (isinstance(plain, float) and math.isfinite(plain))
    return plain if is_json else str(plain)
