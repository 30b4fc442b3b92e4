"""Rows of a model by name: of users, items, words, entities, features, fields, columns, categories, classes. A run
that begins with another run's model takes a row's values, and its optimizer state, by its name, never by its number.

    another run's names ── those to keep ──> behind the data's own names: the rows of the new model
    kind of rows of each dimension of each tensor ── common names ──> moves: (dimension, rows there, rows here)"""

import inspect
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hogwild.config.schema import Component
from hogwild.errors import DataError, HogwildError, ModelError
from hogwild.feeds.packed import MEMBERSHIPS, Packed
from hogwild.job.identity import NO_NAMES
from hogwild.storage.run_directory import NAMES
from hogwild.user_code import build, resolve

Names = Mapping[str, Sequence[Any]]  # by kind: users, items, words, …
# tensor -> dimension -> kind -> (rows of each name, number that the model's argument gives)
Rows = Mapping[str, Mapping[int, Mapping[str, tuple[int, int]]]]
Move = tuple[int, Tensor, Tensor]  # dimension; rows there; the same names' rows here
FEATURES, CLASSES, WORDS, FIELDS = "features", "classes", "words", "fields"
CATEGORIES, CATEGORY = "categories", "category "  # columns; before the name of one: its values
NO_TABLES = (nn.Linear, nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RNNBase)
NOT_KEPT = (CLASSES, FIELDS)  # a row without samples, or without a column
LIMITS = {"keep": float("inf"), "drop": 0}  # runs that a row stays without a sample


def names_by_kind(found: Mapping[str, Any] | None) -> dict[str, Sequence[Any]]:
    """Return the names of each kind of row. Features that have no names (libsvm) are numbers from the data's first
    one on."""
    found = found or NO_NAMES
    no_rows = ("first", "means", *MEMBERSHIPS.values())
    kinds = {kind: values for kind, values in found["names"].items() if kind not in no_rows}
    if "first" in found["names"]:
        first = int(found["names"]["first"][0])
        kinds[FEATURES] = range(first, first + found["sizes"][FEATURES])
    return kinds


# ---- rows that the data lacks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KnownNames:
    """Names that have a row even if the data lacks them. `unseen`: kind -> name -> number of runs, the next included,
    whose data lacks it; 1 for a name that is not listed. Classes are not kept: a class without samples cannot be
    told from a mistake."""

    names: Names = field(default_factory=dict)
    unseen: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def of_run(cls, found: Mapping[str, Any]) -> "KnownNames":
        """Return what the run with these names knows, to resume or evaluate it."""
        listed: Mapping[str, Sequence[int]] = found.get("unseen") or {}
        last = {kind: found["names"][kind][-len(runs) :] for kind, runs in listed.items() if runs}
        return cls(
            {kind: names for kind, names in names_by_kind(found).items() if kind not in NOT_KEPT},
            {kind: dict(zip(map(str, names), listed[kind], strict=True)) for kind, names in last.items()},
        )

    @classmethod
    def kept(cls, found: Mapping[str, Any], gone: Literal["keep", "drop"] | int) -> "KnownNames":
        """Return what a run that begins with the model of another one, with the names `found`, knows. `gone`: value of
        `model.init_from.gone`."""
        most = LIMITS[gone] if isinstance(gone, str) else gone
        old, names = cls.of_run(found), {}
        for kind, values in old.names.items():
            runs = old.unseen.get(kind, {})
            is_all = isinstance(values, range) or not runs
            names[kind] = values if is_all else [name for name in values if runs.get(str(name), 0) < most]
        unseen = {kind: {name: runs + 1 for name, runs in each.items()} for kind, each in old.unseen.items()}
        return cls(names if most else {}, unseen)

    def extend(self, packed: Packed) -> tuple[Packed, dict[str, list[int]]]:
        """Return the data set with its own rows and, behind them, rows of the names that it lacks; and the runs that
        those have been unseen for, by kind. Raises DataError for a name in another Unicode form than a known one."""
        names, sizes = dict(packed.names), dict(packed.spec.sizes)
        unseen: dict[str, list[int]] = {}
        if FEATURES in self.names and "first" in names:
            theirs, first = self.names[FEATURES], int(names["first"][0])
            if isinstance(theirs, range) and theirs.start >= first:
                sizes[FEATURES] = max(sizes[FEATURES], theirs.stop - first)
        counts = packed.arrays().get("counts")  # of a text's words
        for kind in self.names.keys() & names.keys() & sizes.keys():
            own = {str(name) for name in names[kind]}
            lacking = [name for name in self.names[kind] if str(name) not in own]
            if kind == WORDS and counts is not None:
                # `Text.remember` gave them rows: the last ones, as they are rarest.
                lacking = names[kind][int(np.count_nonzero(counts)) :]
            else:
                require_one_form(kind, lacking, names[kind])
                names[kind], sizes[kind] = _joined(names[kind], lacking), sizes[kind] + len(lacking)
            if len(lacking):
                runs = self.unseen.get(kind, {})
                unseen[kind] = [runs.get(str(name), 1) for name in lacking]
        return Packed(packed.region, replace(packed.spec, sizes=sizes), names), unseen


NOTHING_KNOWN = KnownNames()


def _joined(own: Any, more: Sequence[Any]) -> Any:
    if isinstance(own, np.ndarray) and own.dtype.kind in "iu":
        if all(isinstance(name, int) for name in more):
            return np.concatenate([own, np.array(more, own.dtype)])
        own = own.tolist()
    return [*own, *more]


def require_one_form(kind: str, gone: Iterable[Any], new: Iterable[Any]) -> None:
    """Raise DataError if a name that is gone appears as a new one of the same characters in another Unicode form."""
    forms = {unicodedata.normalize("NFC", name): name for name in gone if isinstance(name, str) and not name.isascii()}
    for name in new if forms else ():
        other = forms.get(unicodedata.normalize("NFC", name)) if isinstance(name, str) else None
        if other is not None and other != name:
            raise DataError(
                f"{kind}: {name!r} is {name!a} in the data and {other!a} in the run whose model is taken: the same "
                "characters in another Unicode form, so it would lose its row; write both in one form "
                "(unicodedata.normalize)",
                code="data/name-form",
            )


# ---- rows of both models --------------------------------------------------------------------------------------------


def rows_of(spec: Component | None, names: Mapping[str, Any] | None) -> Rows:
    """Find the kinds of rows that each dimension of the model counts, by building it without memory for more rows of
    each kind. Omits kinds for which that fails. `names`: of the data, with the sizes that the model took from there."""
    found: dict[str, dict[int, dict[str, tuple[int, int]]]] = {}
    if spec is None or names is None:
        return found
    parameters = inspect.signature(resolve(spec.class_path)).parameters
    arguments = {kind: size for kind, size in names["sizes"].items() if kind in parameters} | spec.init_args
    own = _shapes(spec, arguments)
    for kind in names_by_kind(names):
        count, more, larger = _grown(kind, names, arguments)
        built = _shapes(spec, larger) if larger else {}
        for name in built.keys() & own.keys():
            for place, (size, grown) in enumerate(zip(own[name], built[name], strict=False)):
                if grown != size:
                    times = (grown - size) // more if (grown - size) % more == 0 else 0
                    found.setdefault(name, {}).setdefault(place, {})[kind] = times, count
    return found


def _grown(kind: str, names: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[int, int, dict[str, Any]]:
    """Return a model's number of rows of a kind, how many more, and its arguments with these more; {} if it takes no
    such number."""
    listed = arguments.get(CATEGORIES)
    if kind.startswith(CATEGORY) and isinstance(listed, list):
        place = [*names["names"][CATEGORIES]].index(kind.removeprefix(CATEGORY))
        if place < len(listed):
            more = listed[place] + 64
            larger = [*listed[:place], listed[place] + more, *listed[place + 1 :]]
            return listed[place], more, {**arguments, CATEGORIES: larger}
    if kind == CATEGORIES and isinstance(listed, list):
        more = len(listed) + 64
        return len(listed), more, {**arguments, CATEGORIES: [*listed, *[3] * more]}
    for argument in ("classes", "outputs") if kind == CLASSES else (kind,):
        if isinstance(size := arguments.get(argument), int):
            more = size + 64  # this number also reveals rounded-up sizes
            return size, more, {**arguments, argument: size + more}
    return 0, 1, {}


def _shapes(spec: Component, arguments: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    with suppress(HogwildError), torch.random.fork_rng(devices=[]), torch.device("meta"):
        built = build(spec.model_copy(update={"init_args": arguments})).state_dict()
        return {name: _shape(value) for name, value in built.items()}
    return {}


def renamed(theirs: Rows, ours: Rows) -> dict[str, str | None]:
    """Return the names here of tensors whose number in a list follows from a category's place among the columns, by
    their names there; None for those of a category that is gone."""

    def tables(rows: Rows) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, places in sorted(rows.items()):
            for kind in {kind for each in places.values() for kind in each if kind.startswith(CATEGORY)}:
                found.setdefault(kind, []).append(name)
        return found

    old, new = tables(theirs), tables(ours)
    moves = dict[str, str | None]()
    for kind, names in old.items():
        here = new.get(kind, [])
        moves |= dict(zip(names, here if len(here) == len(names) else [None] * len(names), strict=True))
    return {name: other for name, other in moves.items() if name != other}


def matched(
    model: nn.Module,
    saved: Mapping[str, Any],
    ours: Names,
    theirs: Names,
    rows: Rows,
    unseen: Mapping[str, Sequence[int]],
) -> tuple[dict[str, list[Move]], list[str]]:
    """Return the moves of rows, by tensor, for those tensors of `saved` whose rows stand for `theirs`; and a text with
    the counts of each kind of which rows are moved. `unseen` as from `KnownNames.extend`. Raises ModelError for rows
    with unknown names, two of one name, and names that changed though no row of theirs can be found."""
    changed = {kind: names for kind, names in ours.items() if theirs.get(kind) != names}
    pairs = {kind: (torch.arange(len(names)),) * 2 for kind, names in ours.items() if kind not in changed}
    pairs |= {kind: _places(kind, theirs[kind], names) for kind, names in changed.items() if kind in theirs}
    unclear = changed.keys() - {kind for places in rows.values() for each in places.values() for kind in each}
    if type(model).__module__.startswith("hogwild.models"):  # it has an argument for what it counts
        unclear -= {FIELDS, CATEGORIES} - inspect.signature(type(model)).parameters.keys()
    own, found, told = model.state_dict(), dict[str, list[Move]](), set[str]()
    spare = dict[str, tuple[str, int, int]]()  # kind -> a table that may have rows of it
    for name, value in saved.items():
        moves: list[Move] = []
        for place, (here, there) in enumerate(zip(_shape(own[name]), _shape(value), strict=False)):
            kinds = rows.get(name, {}).get(place, {})
            for kind in unclear if not kinds else ():
                many = len(theirs.get(kind, ())), len(ours[kind])
                if there == many[0] or here == many[1]:
                    kinds = {kind: (0, 0)}
                elif _may_count(model, name, place, kind, (there, here), many):
                    spare.setdefault(kind, (name, there, here))
            if not changed.keys() & kinds.keys():
                continue
            move = _move(model, kinds, (there, here), pairs, ours, theirs)
            if move is None:
                raise _untold(name, " and ".join(kinds), there, here, theirs)
            moves.append((place, *move))
            told |= changed.keys() & kinds.keys()
        if moves:
            found[name] = moves
    for kind, (name, there, here) in spare.items():
        if kind not in told:
            raise _untold(name, kind, there, here, theirs)
    counts = ((kind, len(pairs[kind][0]), len(ours[kind]), len(theirs[kind])) for kind in changed if kind in told)
    return found, [_counted(*counted, len(unseen.get(counted[0], ()))) for counted in counts]


def _untold(name: str, kind: str, there: int, here: int, theirs: Names) -> ModelError:
    why = f"which differ now: none of {there:,} in the file can be matched to the {here:,} here"
    if not theirs:
        why = f"but no {NAMES} beside it or in its run names them; put that file there"
    return ModelError(f"{name} has rows for {kind}, {why}", code="model/init-names")


def _may_count(
    model: nn.Module, name: str, place: int, kind: str, sizes: tuple[int, int], many: tuple[int, int]
) -> bool:
    """Return whether a dimension may count rows of a kind that no argument of the model counts: the first one of a
    table with as many rows or more, or one with several numbers for each field. `sizes`, `many` names: there, here."""
    if kind in (FIELDS, CATEGORIES):
        return all(size % max(1, count) == 0 for size, count in zip(sizes, many, strict=True))
    owner = model.get_submodule(name.rpartition(".")[0])
    is_table = place == 0 and not isinstance(owner, NO_TABLES) and kind not in (CLASSES, FEATURES)
    return is_table and all(size >= count for size, count in zip(sizes, many, strict=True))


def _move(
    model: nn.Module,
    kinds: Mapping[str, tuple[int, int]],
    sizes: tuple[int, int],
    pairs: Mapping[str, tuple[Tensor, Tensor]],
    ours: Names,
    theirs: Names,
) -> tuple[Tensor, Tensor] | None:
    """Return the rows there and here of the same names, in a dimension of `sizes` (there, here); None if it cannot be
    told. A model of ours says in `side_by_side` which kinds stand behind one another in a dimension, in `in_blocks` and
    `in_runs` how several numbers of a row lie."""
    ordered = [kind for kind in getattr(model, "side_by_side", ()) if kind in kinds] if len(kinds) > 1 else [*kinds]
    if len(ordered) != len(kinds) or not kinds.keys() <= pairs.keys():
        return None
    found: tuple[list[Tensor], list[Tensor]] = [], []
    ends = [0, 0]
    for kind in ordered:
        (times, argument), counts = kinds[kind], (len(theirs[kind]), len(ours[kind]))
        for side, (count, rows) in enumerate(zip(counts, pairs[kind], strict=True)):
            numbers = torch.arange(times)
            if times > 1 and kind in getattr(model, "in_runs", ()):
                rows = (rows[:, None] * times + numbers).flatten()
            elif times > 1 and kind in getattr(model, "in_blocks", ()):
                rows = (numbers[:, None] * count + rows).flatten()
            elif times != 1:
                return None
            found[side].append(rows + ends[side])
            ends[side] += times * count
    # A table of more rows than names: as its argument says, from the first row on.
    has_spare = len(ordered) == 1 and times == 1 and sizes[1] == argument > counts[1] and sizes[0] >= counts[0]
    return (torch.cat(found[0]), torch.cat(found[1])) if tuple(ends) == sizes or has_spare else None


def _counted(kind: str, kept: int, here: int, there: int, unseen: int) -> str:
    lacking = f"{unseen:,} kept that the data lacks, " if unseen else ""
    return f"{kind} by name: {kept - unseen:,} kept, {lacking}{here - kept:,} new, {there - kept:,} gone"


def moved(target: Tensor, source: Tensor, moves: Sequence[Move]) -> Tensor:
    """Return `target`, changed in place: the rows that moves name are those of `source`; without moves, `source`."""
    if not moves:
        return source
    (place, old, new), *rest = moves
    part = moved(target.index_select(place, new), source.index_select(place, old), rest)
    return target.index_copy_(place, new, part)


def _places(kind: str, old: Sequence[Any], new: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Return the rows of the common names in each of the two. 42 and "42" are the same."""
    if isinstance(old, range) and isinstance(new, range):  # millions of features
        first = max(old.start, new.start)
        both = torch.arange(first, max(first, min(old.stop, new.stop)))
        return both - old.start, both - new.start
    places, here = ({str(name): row for row, name in enumerate(names)} for names in (old, new))
    for names, rows, where in ((old, places, "in the file"), (new, here, "in the data")):
        if len(rows) != len(names):
            twice = next(str(name) for row, name in enumerate(names) if rows[str(name)] != row)
            raise ModelError(f"{kind}: two rows {where} have the name {twice!r}", code="model/init-names")
    pairs = [(places[name], row) for name, row in here.items() if name in places]
    both = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor) and not is_lazy(value) else ()
