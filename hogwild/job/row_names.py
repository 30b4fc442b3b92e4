"""Rows of a model by name: of users, items, words, entities, features, classes. A run that begins with another run's
model takes a row's values, and its optimizer state, by its name, never by its number.

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

from hogwild.config.field_types import Component
from hogwild.errors import DataError, HogwildError, ModelError
from hogwild.feeds.packed import MEMBERSHIPS, Packed
from hogwild.job.identity import NO_NAMES
from hogwild.storage.run_directory import NAMES
from hogwild.user_code import build, resolve

Names = Mapping[str, Sequence[Any]]  # by kind: users, items, words, …
Rows = Mapping[str, Mapping[int, tuple[str, int]]]  # tensor -> dimension -> its kind, and the rows of each
Move = tuple[int, Tensor, Tensor]  # dimension; rows there; the same names' rows here
FEATURES, CLASSES, WORDS, FIELDS = "features", "classes", "words", "fields"
NOT_KEPT = (CLASSES, FIELDS)  # a row without samples, or without a column
LIMITS = {"keep": float("inf"), "drop": 0}  # runs that a row stays without a sample


def names_by_kind(found: Mapping[str, Any] | None) -> dict[str, Sequence[Any]]:
    """Return the names of each kind of row. Features that have no names (libsvm) are numbers from the data's first
    one on."""
    found = found or NO_NAMES
    kinds = {kind: values for kind, values in found["names"].items() if kind not in ("first", *MEMBERSHIPS.values())}
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
        return cls(
            {kind: names for kind, names in names_by_kind(found).items() if kind not in NOT_KEPT}, _unseen(found)
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
            if (
                kind == WORDS and counts is not None
            ):  # `Text.remember` gave them rows: the last ones, as they are rarest
                lacking = names[kind][int(np.count_nonzero(counts)) :]
            else:
                require_one_form(kind, lacking, names[kind])
                names[kind], sizes[kind] = _joined(names[kind], lacking), sizes[kind] + len(lacking)
            if len(lacking):
                runs = self.unseen.get(kind, {})
                unseen[kind] = [runs.get(str(name), 1) for name in lacking]
        return Packed(packed.region, replace(packed.spec, sizes=sizes), names), unseen


NOTHING_KNOWN = KnownNames()


def _unseen(found: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    listed: Mapping[str, Sequence[int]] = found.get("unseen") or {}
    last = {kind: found["names"][kind][-len(runs) :] for kind, runs in listed.items() if runs}
    return {kind: dict(zip(map(str, names), listed[kind], strict=True)) for kind, names in last.items()}


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


def rows_of(spec: Component | None, model: nn.Module, names: Mapping[str, Any] | None) -> Rows:
    """Find the kind of rows that each dimension of `model` counts, by building it without memory for more rows of each
    kind. Omits kinds for which that fails. `names`: of the data, with the sizes that the model took from there."""
    found: dict[str, dict[int, tuple[str, int]]] = {}
    if spec is None or names is None:
        return found
    parameters = inspect.signature(resolve(spec.class_path)).parameters
    arguments = {kind: size for kind, size in names["sizes"].items() if kind in parameters} | spec.init_args
    for kind in (kind for kind in names_by_kind(names) if isinstance(arguments.get(kind), int)):
        more = arguments[kind] + 64  # this number also reveals rounded-up sizes
        larger = spec.model_copy(update={"init_args": arguments | {kind: arguments[kind] + more}})
        with suppress(HogwildError), torch.random.fork_rng(devices=[]), torch.device("meta"):
            built = build(larger).state_dict()
            for name, own in model.state_dict().items():
                places = found.setdefault(name, {})
                for place, (size, grown) in enumerate(zip(_shape(own), _shape(built.get(name)), strict=False)):
                    if grown != size and place in places:  # depends on both kinds
                        places[place] = (f"{places[place][0]} and {kind}", 0)
                    elif grown != size:
                        places[place] = (kind, (grown - size) // more if (grown - size) % more == 0 else 0)
    return found


def matched(
    model: nn.Module,
    saved: Mapping[str, Any],
    ours: Names,
    theirs: Names,
    rows: Rows,
    unseen: Mapping[str, Sequence[int]],
) -> tuple[dict[str, list[Move]], list[str]]:
    """Return the moves of rows, by tensor, for those tensors of `saved` whose rows stand for `theirs`; and a text with
    the counts of each kind. `unseen` as from `KnownNames.extend`. Raises ModelError for rows with unknown names, or two
    of one name."""
    changed = {kind: names for kind, names in ours.items() if theirs.get(kind) != names}
    pairs = {kind: _places(kind, theirs[kind], names) for kind, names in changed.items() if kind in theirs}
    unclear = changed.keys() - {kind for places in rows.values() for kind, _ in places.values()}
    own, found = model.state_dict(), dict[str, list[Move]]()
    for name, value in saved.items():
        moves: list[Move] = []
        for place, (here, there) in enumerate(zip(_shape(own[name]), _shape(value), strict=False)):
            alike = ((kind, 0) for kind in unclear if here == len(ours[kind]) or there == len(theirs.get(kind, ())))
            kind, times = rows.get(name, {}).get(place) or next(alike, ("", 0))
            if not changed.keys() & set(kind.split(" and ")):
                continue
            many = (len(theirs.get(kind, ())), len(ours.get(kind, ())))
            is_known = kind in pairs and (times == 1 or (times > 1 and kind in getattr(model, "in_blocks", ())))
            if not is_known or (there, here) != (times * many[0], times * many[1]):
                why = f"which differ now: none of {there:,} in the file can be matched to the {here:,} here"
                if not theirs:
                    why = f"but no {NAMES} beside it or in its run names them; put that file there"
                raise ModelError(f"{name} has rows for {kind}, {why}", code="model/init-names")
            blocks = torch.arange(times)[:, None]
            old, new = ((blocks * count + rows).flatten() for count, rows in zip(many, pairs[kind], strict=True))
            moves.append((place, old, new))
        if moves:
            found[name] = moves
    counts = ((kind, len(old), len(ours[kind]), len(theirs[kind])) for kind, (old, _) in pairs.items())
    return found, [_counted(*counted, len(unseen.get(counted[0], ()))) for counted in counts]


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
