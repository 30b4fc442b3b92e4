"""Data that determine sizes of the model, made before it: packed, or with vocabularies.

A data set that can be packed has `pack(reader, what, like, on_bad_line) -> Packed`; `like` is the training data, whose
vocabulary and numbers are used for validation data. A model may have `on_data(train, val)`, which is called once with
the arrays of both (val may be None): counts for its negatives, known triples. A data set that leaves out rare names may
have `remember(names)`, called before `pack` with those that have a row already.

Any other data set gives sizes by an attribute or property of its class: `sizes` (name -> number: `features`; after
`count_classes()`, if it has that, also `classes`), or
`vocabularies` (name -> what its numbers stand for, by number; {} for the class), whose lengths are used: `symbols`."""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
from torch.utils.data import Subset

from hogwild.config.field_types import Component
from hogwild.config.load import Job
from hogwild.config.schema import Split
from hogwild.errors import DataError, ModelError
from hogwild.feeds.packed import Packed, columns_of, held_out, rows_in
from hogwild.feeds.row_reader import Held, Reader, division, require_both
from hogwild.job.row_names import NOTHING_KNOWN, KnownNames
from hogwild.losses import BprLoss, WarpLoss
from hogwild.user_code import build, resolve

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
    packed = _liked(packed, "data.train", loss, notes)
    if isinstance(val, Split):
        if packed.spec.form == "tokens":
            raise DataError(
                "data.val.fraction: a text cannot be split; use a separate data set (hogwild.data.WordPairs)",
                code="data/split",
            )
        trained, held = (packed.copy_rows(f"data-{k}", p) for k, p in enumerate(_parts(packed, val.fraction, job.seed)))
        return Held((), None, trained), Held((), None, held)
    if val is None:
        return Held((), None, packed), None
    if not packs(val) and not isinstance(val, Packed):
        raise DataError(
            f"data.val: a {type(val).__name__} cannot be packed, but data.train is; use a data set of the same kind",
            code="data/val-unlike-train",
        )
    held_back = val if isinstance(val, Packed) else val.pack(reader, "data.val", packed, job.data.on_bad_line)
    if held_back.samples == 0:
        raise DataError("data.val: the data set is empty; there is nothing to evaluate", code="data/empty")
    held_back = _liked(held_back, "data.val", loss, notes)
    ours, theirs = columns_of(packed), columns_of(held_back)
    if ours is not None and theirs is not None and (many := rows_in(ours, theirs)):
        notes.append(
            f"data.val: {many:,} of its {held_back.samples:,} rows are in data.train, too: the figures are partly of "
            "what was trained on; divide the file by one `holdout`, with part: train there and part: test here"
        )
    return Held((), None, packed), Held((), None, held_back)


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


def _liked(packed: Packed, what: str, loss: Any, notes: list[str]) -> Packed:
    """Return the ratings that the loss may have."""
    rating = packed.arrays().get("rating") if is_ranking(loss) else None
    rows = None if rating is None else liked_rows(rating, what, notes)
    users, items = (packed.spec.sizes.get(kind, 0) for kind in ("users", "items"))
    if rating is not None and what == "data.train" and users * items == (len(rating) if rows is None else len(rows)):
        raise DataError(
            f"{what}: each of the {users:,} users has each of the {items:,} items, and none is left to rank below "
            "them; leave out what is no like, or give it the value 0",
            code="data/empty",
        )
    return packed if rows is None else packed.copy_rows(what.replace(".", "-"), rows)


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
