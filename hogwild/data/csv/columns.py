"""Columns of a text file: names and numbers resolved, values of categories encoded."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from hogwild.data.ids import one_spelling
from hogwild.errors import UsageError, did_you_mean

MISSING_CODE = -1
INDEX = re.compile(r"__index_level_\d+__|Unnamed: 0(\.\d+)*")  # names of row numbers that pandas has written
Column: TypeAlias = str | int
"""A column by its name in the header, or by its number: 0 is the first, -1 the last."""


@dataclass(frozen=True, slots=True)
class Codes:
    """Mapping from text to a number in [0, size). Listed values get their place as number; with `other`, all the rest
    share one more, the last. Hashed values get the same number in every process, program and year (BLAKE2b); several
    values may share one."""

    size: int
    places: Mapping[str, int] = field(default_factory=dict)
    other: bool = False
    is_hashed: bool = False

    def names(self) -> list[str]:
        """Return what each code stands for; of hashed values its number and size."""
        if self.is_hashed:
            return [f"#{code}/{self.size}" for code in range(self.size)]
        return [*self.places, *["(other)" if "other" in self.places else "other"] * self.other]

    def code(self, text: str) -> int | None:
        """Return the code; MISSING_CODE for an empty text that is not listed, None for a value that is not allowed."""
        found = self.places.get(text)
        if found is not None or text == "":
            return MISSING_CODE if found is None else found
        return self.filled(text)

    def filled(self, text: str) -> int | None:
        """Return the code of a text that is not listed, or of a missing value that is not refused or dropped."""
        if self.is_hashed:
            return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % self.size
        return self.size - 1 if self.other else None


@dataclass(frozen=True, slots=True)
class CsvLayout:
    """Places of the columns in a record: numeric inputs, coded inputs, targets. There is one coded target
    (`target_codes`), or one class number (`is_class`), or one or more float targets."""

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    coded: tuple[int, ...]
    codes: tuple[Codes, ...]
    targets: tuple[int, ...]
    target_codes: Codes | None
    is_class: bool
    ids: int | None = None  # of rows: a column that is kept as text
    weight: int | None = field(default=None, repr=False)  # of samples; not in the fingerprint of data without it
    index: tuple[int, ...] = field(default=(), repr=False)  # left out without being asked

    @property
    def texts(self) -> tuple[int, ...]:
        """The places of columns that are read as text."""
        coded_targets = self.targets if self.target_codes is not None else ()
        return (*self.coded, *coded_targets, *(() if self.ids is None else (self.ids,)))

    def with_ids(self, who: str, column: str) -> "CsvLayout":
        """Return the layout with the column of ids. Raises UsageError if there is none of that name."""
        if column not in self.names:
            raise _wrong(f"{who}: there is no column {column!r}{did_you_mean(column, self.names)} {_shown(self.names)}")
        return replace(self, ids=self.names.index(column))

    def label(self, place: int) -> str:
        name = self.names[place]
        return f"column {place}" if name == str(place) else f"column {name!r}"

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs, in the order of the file."""
        return [self.names[place] for place in sorted((*self.numbers, *self.coded))]

    def inputs_in(self, who: str, names: Sequence[str], has_header: bool) -> "CsvLayout":
        """Return the same inputs, without target, for a file with columns `names`. Raises UsageError for a missing
        one."""
        wanted, places = sorted((*self.numbers, *self.coded)), {name: place for place, name in enumerate(names)}
        if not has_header and len(names) == len(wanted):
            places = {str(column): place for place, column in enumerate(wanted)}
        elif not has_header and len(names) != len(self.names):
            raise _wrong(
                f"{who}: the file has {len(names)} columns and no header; it needs the {len(self.names)} columns of "
                f"the training data, or only the {len(wanted)} inputs"
            )
        absent = [self.names[column] for column in wanted if self.names[column] not in places]
        if absent:
            others = [name for name in names if name not in self.names] if has_header else []
            instead = f", it has {others[0]!r}, which the training data does not have" if others else ""
            raise _wrong(f"{who}: column {absent[0]!r} of the training data is missing{instead} {_shown(names)}")
        numbers, coded = (tuple(places[self.names[one]] for one in many) for many in (self.numbers, self.coded))
        return CsvLayout(tuple(names), numbers, coded, self.codes, (), None, False)

    def like(self, who: str, trained: "CsvLayout", has_header: bool, target: Any, weight: Any) -> "CsvLayout":
        """Return the layout with the inputs, categories and classes of the training data, told by their names, and with
        its target and weight, unless `target` and `weight`, the arguments for this file, name others. Raises
        UsageError."""
        plan = trained.inputs_in(who, self.names, has_header)
        targets = self._places_like(trained, trained.targets, target, self.targets)
        if trained.targets and len(targets) != len(trained.targets):
            raise _wrong(f"{who}: has {len(targets)} targets, the training data {len(trained.targets)}")
        _check_disjoint(who, self.names, (*plan.numbers, *plan.coded), targets)
        weights = () if trained.weight is None else (trained.weight,)
        own = self._places_like(trained, weights, weight, () if self.weight is None else (self.weight,))
        return replace(
            plan, targets=targets, target_codes=trained.target_codes, is_class=trained.is_class,
            weight=own[0] if own else None,
        )  # fmt: skip

    def _places_like(
        self, trained: "CsvLayout", theirs: tuple[int, ...], argument: Any, own: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the places here of the training data's columns `theirs`, in their order, if they are here and
        `argument` names no others; else `own`."""
        names = [trained.names[place] for place in theirs]
        said = {one for one in (argument if _is_list(argument) else [argument]) if isinstance(one, str)}
        is_here = bool(own) and {*names} <= {*self.names} and said <= {*names}
        return tuple(self.names.index(name) for name in names) if is_here else own


def layout(
    who: str,
    names: Sequence[str],
    has_header: bool,
    target: Column | Sequence[Column],
    inputs: Sequence[Column] | None,
    leave_out: Sequence[Column],
    categorical: Mapping[Column, Any],
    target_type: Literal["float", "class"],
    weight: Column | None = None,
) -> CsvLayout:
    """Return the layout. Raises UsageError for missing columns, columns named twice, or invalid categories."""
    if target_type not in ("float", "class"):
        raise _wrong(f"{who}: target_type must be float or class, got {target_type!r}")
    look_up = ColumnNames(who, tuple(names), has_header)
    targets = look_up.places("target", target if _is_list(target) else [target])
    absent = look_up.places("leave_out", leave_out)
    codes = {
        look_up.place("categorical", column): _codes(f"{who}: categorical column {column!r}", given)
        for column, given in categorical.items()
    }
    weights = [] if weight is None else look_up.places("weight", [weight])
    used = {*targets, *absent, *weights}
    index: list[int] = []
    if inputs is not None:
        chosen = look_up.places("inputs", inputs)
    else:
        free = [place for place in range(len(names)) if place not in used]
        index = [place for place in free if place not in codes and has_header and _is_index(place, names[place])]
        chosen = [place for place in free if place not in index]
    _check_disjoint(who, names, chosen, targets)
    if both := [names[place] for place in weights if place in (*chosen, *targets)]:
        raise _wrong(f"{who}: column {both[0]!r} is the weight, and also an input or the target")
    coded = tuple(place for place in chosen if place in codes)
    is_coded = any(place in codes for place in targets)
    if len(targets) > 1 and (is_coded or target_type == "class"):
        raise _wrong(f"{who}: only a single target can be a class, got {len(targets)} targets")
    unread = [names[place] for place in codes if place not in (*chosen, *targets)]
    if unread:
        raise _wrong(f"{who}: categorical column {unread[0]!r} is neither an input nor the target")
    return CsvLayout(
        tuple(names),
        tuple(place for place in chosen if place not in codes),
        coded,
        tuple(codes[place] for place in coded),
        tuple(targets),
        codes[targets[0]] if is_coded else None,
        target_type == "class" and not is_coded,
        weight=weights[0] if weights else None,
        index=tuple(index),
    )


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """The names of a file's columns, to look up those that an argument gives by name or number. Raises UsageError."""

    who: str
    names: tuple[str, ...]
    has_header: bool

    def places(self, argument: str, columns: Any) -> list[int]:
        if not _is_list(columns):
            raise _wrong(f"{self.who}: {argument} must be a list of columns, got {columns!r}")
        found = [self.place(argument, column) for column in columns]
        twice = [self.names[place] for i, place in enumerate(found) if place in found[:i]]
        if twice:
            raise _wrong(f"{self.who}: {argument} names column {twice[0]!r} twice")
        if not found and argument != "leave_out":
            raise _wrong(f"{self.who}: {argument} names no column")
        return found

    def place(self, argument: str, column: Any) -> int:
        count = len(self.names)
        if isinstance(column, int) and not isinstance(column, bool):
            if not -count <= column < count:
                raise _wrong(
                    f"{self.who}: {argument}: there is no column {column}; the file has {count} columns: 0 to "
                    f"{count - 1}, or -1 for the last"
                )
            return column % count
        if column in self.names and self.has_header:
            return self.names.index(column)
        if not isinstance(column, str):
            raise _wrong(f"{self.who}: {argument}: a column is a name or a number, got {column!r}")
        if not self.has_header:
            raise _wrong(
                f"{self.who}: {argument}: with header: false columns are given by number, from 0, got {column!r}"
            )
        near = did_you_mean(column, self.names)
        raise _wrong(f"{self.who}: {argument}: there is no column {column!r}{near} {_shown(self.names)}")


def _is_index(place: int, name: str) -> bool:
    return bool(INDEX.fullmatch(name)) or (place == 0 and not name)


def _shown(names: Sequence[str]) -> str:
    if all(is_number(name) for name in names):
        return f"(the first line has numbers, {', '.join(names[:3])}, …: for a file without a header set header: false)"
    more = f", … ({len(names)} in all)" if len(names) > 12 else ""
    return f"(columns: {', '.join(names[:12])}{more})"


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_disjoint(who: str, names: Sequence[str], chosen: Sequence[int], targets: Sequence[int]) -> None:
    both = [names[place] for place in chosen if place in targets]
    if both:
        raise _wrong(f"{who}: column {both[0]!r} is both the target and an input; the model would only copy it")
    if not chosen:
        raise _wrong(f"{who}: no column is left as an input; the file has only {', '.join(names)}")


def _codes(where: str, given: Any) -> Codes:
    rule = "must be a list of values, {values: […], other: true} or {hash: N}"
    if isinstance(given, Mapping):
        if set(given) == {"hash"}:
            size = given["hash"]
            if type(size) is not int or size < 2:
                raise _wrong(f"{where}: hash must be a whole number >= 2, the number of codes, got {size!r}")
            return Codes(size, is_hashed=True)
        if "values" not in given or not set(given) <= {"values", "other"}:
            raise _wrong(f"{where}: {rule}, got {dict(given)!r}")
        if not isinstance(given.get("other", False), bool):
            raise _wrong(f"{where}: other must be true or false, got {given['other']!r}")
        return _listed(where, given["values"], given.get("other", False))
    if not _is_list(given):
        raise _wrong(f"{where}: {rule}, got {given!r}")
    return _listed(where, given, False)


def _listed(where: str, values: Any, other: bool) -> Codes:
    if not _is_list(values) or not values:
        raise _wrong(f"{where}: values must be a list of at least one value, got {values!r}")
    odd = [value for value in values if isinstance(value, bool) or not isinstance(value, str | int)]
    if odd:
        raise _wrong(f"{where}: values are compared as text; write this one in quotes, as in the file: {odd[0]!r}")
    places = {one_spelling(str(value).strip()): place for place, value in enumerate(values)}
    if len(places) < len(values):
        raise _wrong(f"{where}: lists a value twice: {', '.join(map(str, values))}")
    return Codes(len(places) + other, places, other)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _wrong(message: str) -> UsageError:
    return UsageError(message, code="data/csv-columns")
