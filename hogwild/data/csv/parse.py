"""Parsing of records into arrays. One set of rules, for a file of text, a Parquet file and a table in memory:

    text    ── pyarrow: numbers ──┐
            ── pyarrow: words   ──┤
            ── Python's csv     ──┼──► columns: numbers, or words and each row's ──► rules ──► ParsedRecords
    arrow   ── by their types   ──┤
            ── as words         ──┘

Each reading is tried if the one before fails. The last one knows the place of every value, for the error.

Missing numbers are NaN here and missing codes -1. Nothing else can be: a NaN in the file counts as missing and an
infinity is an error."""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from hogwild.data.ids import digest_of, one_spelling
from hogwild.data.text_file import unmarked
from hogwild.data.text_parsing import MISSING, Format, numpy_of
from hogwild.errors import DataError, UsageError, did_you_mean

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
            return digest_of(text) % self.size
        return self.size - 1 if self.other else None

    def of_words(
        self, words: "Words", rule: "Rule", dtype: Any, *, is_utf8: bool
    ) -> "tuple[np.ndarray, dict[int, BreaksRule]]":
        """Return (n + 1,): the codes of n words and the empty one, each by the rule; and why some break it, by their
        numbers. `is_utf8`: the words are text for sure."""
        return _by_rule(words, rule, dtype)


class ByPiece(Codes):
    """Each piece of a file numbers its own values; `ParsedRecords.values` has them."""


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
            raise _wrong(f"{who}: column {absent[0]!r} of the training data is missing{instead} {shown_names(names)}")
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
    target: Column | Sequence[Column] | None,
    inputs: Sequence[Column] | None,
    leave_out: Sequence[Column],
    categorical: Mapping[Column, Any],
    target_type: Literal["float", "class"],
    weight: Column | None = None,
) -> CsvLayout:
    """Return the layout; `target` None: of rows without one. Raises UsageError for missing columns, columns named
    twice, or invalid categories."""
    if target_type not in ("float", "class"):
        raise _wrong(f"{who}: target_type must be float or class, got {target_type!r}")
    look_up = ColumnNames(who, tuple(names), has_header)
    targets = [] if target is None else look_up.places("target", target if _is_list(target) else [target])
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
        is_index = [bool(INDEX.fullmatch(name)) or (place == 0 and not name) for place, name in enumerate(names)]
        index = [place for place in free if place not in codes and has_header and is_index[place]]
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
        raise _wrong(f"{self.who}: {argument}: there is no column {column!r}{near} {shown_names(self.names)}")


def shown_names(names: Sequence[str]) -> str:
    """Return the names of columns for an error."""
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


# ---- values ---------------------------------------------------------------------------------------------------------

MISSING_TEXTS = frozenset(MISSING)
YES_AND_NO = {"true": 1.0, "false": 0.0}  # as numbers, in any case
LARGEST_CLASS = 2**53  # above it, not every whole number is a float64
CONTROL = re.compile(r"[\x80-\x9f]")  # of latin-1; letters and signs of cp1252
THOUSANDS = re.compile(r"[+-]?\d{1,3}([.,])\d{3}(\1\d{3})*")
SHOWN = 60  # characters of a value in an error
# A text that is perhaps not its one spelling, for RE2: white space, by Python's `str.strip`, is around it; it is empty;
# or `one_spelling` may have another.
_SPACE = "[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
ODD = rf"\A{_SPACE}|{_SPACE}\z|\A\z|\.0+\z|\A(?i:true|false)\z"


@dataclass(frozen=True, slots=True)
class ParsedRecords:
    """Parsed records: `numbers` (n, F) float32, `codes` (n, C) int64; `target` (n, T) float32, or (n,) int64; `ids`,
    if there is a column of them, n texts; `weight`, if there is a column of it, (n,) float32, none missing. `values`:
    of each column of codes `ByPiece` an arrow array of its values, in one spelling, perhaps some twice."""

    numbers: np.ndarray
    codes: np.ndarray
    target: np.ndarray
    ids: list[str] | None = None
    weight: np.ndarray | None = None
    values: tuple[Any, ...] = ()

    def missing(self) -> np.ndarray:
        """Return (n,) bool: True for records with a missing value."""
        if self.target.dtype == np.float32:
            lacks = np.isnan(self.target).any(axis=1)
        else:
            lacks = self.target == MISSING_CODE
        found: np.ndarray = lacks | np.isnan(self.numbers).any(axis=1) | (self.codes == MISSING_CODE).any(axis=1)
        return found


@dataclass(frozen=True, slots=True)
class Words:
    """A column of words: the different ones, an arrow array of strings or a list, and the number of each row's, (n,);
    that of a missing one is behind the last."""

    texts: Any
    rows: np.ndarray

    @property
    def values(self) -> list[str]:
        """The words, and the empty one."""
        return [*(self.texts if isinstance(self.texts, list) else self.texts.to_pylist()), ""]

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Words":
        places: dict[str, int] = {}
        rows = [places.setdefault(text, len(places)) for text in texts]
        return cls([*places], np.array(rows, np.int64))


Columns: TypeAlias = Mapping[int, "np.ndarray | Words"]  # by place; numbers (n,) float64, NaN if missing
Rule: TypeAlias = Callable[[str], Any]
Plain: TypeAlias = Callable[[Any], Any]  # numbers -> whether each needs no rule
OfWords: TypeAlias = Callable[["Words", Rule, Any], "tuple[np.ndarray, dict[int, BreaksRule]]"]


class BreaksRule(Exception):
    """A text breaks a rule: what is wrong with it, and the error's code."""

    def __init__(self, words: str, code: str = "data/csv-value") -> None:
        self.words, self.code = words, code


class WrongValue(Exception):
    """The first wrong value of a column: its row and place."""

    def __init__(self, row: int, place: int, why: BreaksRule) -> None:
        self.row, self.place, self.why = row, place, why


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A file and its format, and the parser of its records; missing values are marked as the module says.
    `refuse_missing`: a missing value is an error with its place instead. `unit`: what records are counted in."""

    path: Path
    layout: CsvLayout
    format: Format
    refuse_missing: bool
    unit: str = "line"

    def parse(self, content: Any, count: int, line: int) -> ParsedRecords:
        """Return the `count` records in `content`: text, which begins at line `line`, or arrow columns by place, whose
        first row has that number. Raises DataError with the place of the first wrong value."""
        for columns, lines in self._readings(content, count, line):
            try:
                return self._records(columns, count)
            except WrongValue as error:
                wrong, places = error, lines
        raise self._error(places[wrong.row], f"{self.layout.label(wrong.place)}: {wrong.why.words}", wrong.why.code)

    def words(self, content: Any, count: int, line: int) -> dict[int, set[str]]:
        """Return the different texts of each column that is used. Raises DataError for text that cannot be taken
        apart."""
        for columns, _ in self._readings(content, count, line):
            words = {place: column for place, column in columns.items() if isinstance(column, Words)}
            if len(words) == len(columns):
                break
        found = {}
        for place, column in words.items():
            values = column.values
            found[place] = {values[row].strip() for row in np.unique(column.rows)}
        return found

    # ---- readings

    def _readings(self, content: Any, count: int, line: int) -> Iterator[tuple[Columns, Sequence[int]]]:
        """Yield the columns, and the line of each record if it is known, the fastest reading first."""
        numbers = {place for place in self.numeric if place != self.layout.ids}  # an id is kept as it is written
        if not isinstance(content, bytes):
            for typed in (numbers, set[int]()):
                columns = {place: column_of(column, place in typed) for place, column in content.items()}
                yield columns, range(line, line + count)
            return
        import pyarrow

        content, width = unmarked(content), len(self.layout.names)
        # Not float32: pyarrow parses it more slowly, and rounds once while everyone else rounds twice.
        number, words = pyarrow.float64(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        is_unusual = b"#" in content and self._comment.search(content)
        for typed in () if is_unusual else (numbers, set[int]()):
            kinds = {place: number if place in typed else words for place in sorted(self.used)}
            if (table := self.format.columns(content, count, width, kinds)) is not None:
                yield {place: column_of(table.column(str(place)), place in typed) for place in kinds}, ()
        found = [*self._rows(content, line)]
        if len(found) != count:
            raise self._unlike_quotes(content, line, count, len(found))
        columns = {place: Words.of([row[place] for _, row in found]) for place in self.used}
        yield columns, [number for number, _ in found]

    @property
    def numeric(self) -> tuple[int, ...]:
        """The places of the columns that are read as numbers."""
        plan = self.layout
        targets = () if plan.target_codes is not None else plan.targets
        return (*plan.numbers, *targets, *(() if plan.weight is None else (plan.weight,)))

    @property
    def used(self) -> set[int]:
        """The places of the columns that are read."""
        return {*self.numeric, *self.layout.texts}

    @property
    def _comment(self) -> re.Pattern[bytes]:
        """The beginning of a line that may be a comment; #1 is a value, and # before a delimiter, too."""
        return re.compile(rb"^#[%s]" % b" \t#".replace(self.format.delimiter.encode(), b""), re.MULTILINE)

    def _rows(self, content: bytes, first: int) -> Iterator[tuple[int, list[str]]]:
        """Yield (line number, fields) of each record; each has as many fields as there are columns."""
        columns = len(self.layout.names)
        for number, text, row in self.format.records(content):
            line, begin = first + number, text.partition("\n")[0]
            if isinstance(row, str):
                raise self._error(line, f"cannot be taken apart: {row}", "data/csv-quotes")
            if len(row) != columns:
                hint = ""
                if row[0].lstrip().startswith("#"):
                    hint = "; comments are not supported: remove them, or skip those before the header with skip_lines"
                elif not "".join(row).strip():
                    hint = "; it has only spaces: remove it"
                elif len(row) > columns:
                    sign = repr(self.format.delimiter)
                    hint = f"; a value with a {sign} in it must be in quotes; row names (R) need a name, too"
                shown = _cut(self.format.delimiter.join(row))
                words = f"has {len(row)} values, {columns} were expected: {shown!r}{hint}"
                raise self._error(line, words, "data/csv-ragged")
            if begin.startswith("#") and self._comment.match(begin.encode("utf-8", "replace")):
                words = f"begins as a comment: {_cut(begin)!r}; remove it"
                raise self._error(line, f"{words}, or write the value in quotes if it is one", "data/csv-ragged")
            yield line, row

    # ---- from columns to arrays

    def _records(self, columns: Columns, count: int) -> ParsedRecords:
        """Return the records. Raises WrongValue for the first one with a value that breaks a rule."""
        plan, wrong = self.layout, list[WrongValue]()

        def filled(
            out: np.ndarray, place: int, rule: Rule, is_plain: Plain = _fits_float32, of_words: OfWords = _by_rule
        ) -> np.ndarray:
            try:
                _fill(out, place, columns[place], rule, is_plain, of_words)
            except WrongValue as error:
                wrong.append(error)
            return out

        numbers = np.empty((count, len(plan.numbers)), np.float32)
        for i, place in enumerate(plan.numbers):
            filled(numbers[:, i], place, self.number)
        codes, values = np.empty((count, len(plan.coded)), np.int64), list[Any]()
        for i, (place, each) in enumerate(zip(plan.coded, plan.codes, strict=True)):
            if not isinstance(each, ByPiece):
                of_words = partial(each.of_words, is_utf8=self.format.encoding == "utf-8")
                filled(codes[:, i], place, partial(self.code, codes=each), of_words=of_words)
                continue
            try:
                values.append(self._number(codes[:, i], place, columns[place]))
            except WrongValue as error:
                wrong.append(error)
        if plan.target_codes is not None:
            rule = partial(self.code, codes=plan.target_codes)
            target = filled(np.empty(count, np.int64), plan.targets[0], rule)
        elif plan.is_class:
            target = filled(np.empty(count, np.int64), plan.targets[0], self.class_number, _is_class)
        else:
            target = np.empty((count, len(plan.targets)), np.float32)
            for i, place in enumerate(plan.targets):
                filled(target[:, i], place, self.number)
        ids = None if plan.ids is None else filled(np.empty(count, object), plan.ids, self.text).tolist()
        weight = None
        if plan.weight is not None:
            weight = filled(
                np.empty(count, np.float32), plan.weight, self.weight, lambda one: (one >= 0) & _fits_float32(one)
            )
        if wrong:
            raise min(wrong, key=lambda error: error.row)
        return ParsedRecords(numbers, codes, target, ids, weight, tuple(values))

    def _number(self, out: np.ndarray, place: int, column: Any) -> Any:
        """Fill `out` (n,) with the number of each row's value, and return the values, as `ParsedRecords` has them. Only
        those that may be spelled otherwise go through the rule. Raises WrongValue."""
        import pyarrow
        from pyarrow import compute

        texts = column.texts
        if isinstance(texts, list):
            odd = np.arange(len(texts))
        else:
            is_odd = compute.match_substring_regex(texts, ODD)
            if self.format.encoding != "utf-8":
                is_odd = compute.or_(is_odd, compute.invert(compute.string_is_ascii(texts)))
            odd = np.flatnonzero(numpy_of(is_odd.cast(pyarrow.uint8())))
        found, broken = np.append(np.arange(len(texts)), MISSING_CODE), dict[int, BreaksRule]()
        written: list[str] = []
        for number in odd.tolist():
            try:
                written.append(one_spelling(self.text(str(texts[number]).strip())))
            except BreaksRule as why:
                broken[number] = why
                written.append("")
            if not written[-1]:
                found[number] = MISSING_CODE
        _raise_first(broken, place, column.rows)
        out[:] = found[column.rows]
        if isinstance(texts, list):
            return pyarrow.array(written, pyarrow.large_string())
        if len(odd):
            mask = np.zeros(len(texts), np.bool_)
            mask[odd] = True
            texts = compute.replace_with_mask(texts, pyarrow.array(mask), pyarrow.array(written, texts.type))
        return texts.cast(pyarrow.large_string())

    # ---- rules: from the text of a value to what stands for it. They raise BreaksRule.

    def number(self, text: str) -> float:
        if text in MISSING_TEXTS:
            self._check_missing(text)
            return math.nan
        value = self._float(text, "must be a number")
        if math.isinf(value) and "inf" in text.lower():
            raise _breaks(text, "must be finite; what is unknown is left empty")
        if not _fits_float32(value):
            raise _breaks(text, "must fit float32: at most 3.4e38 in size")
        return value

    def weight(self, text: str) -> float:
        value = math.nan if text in MISSING_TEXTS else self.number(text)
        if not value >= 0:
            raise _breaks(
                text, "must be a number from 0 on: the weight of a row; 0 leaves it out, and it is never filled in"
            )
        return value

    def class_number(self, text: str) -> int:
        if math.isnan(self.number(text)):
            return MISSING_CODE
        value = self._float(text, "must be a number")
        if not _is_class(value):
            raise _breaks(text, "must be a class: a whole number from 0 on; other classes are listed under categorical")
        return int(value)

    def code(self, text: str, codes: Codes) -> int:
        code = codes.code(one_spelling(self.text(text)))
        if code is None:
            listed = list(codes.places)
            more = f", … ({len(listed)} in all)" if len(listed) > 12 else ""
            raise _breaks(
                text, f"must be one of {', '.join(listed[:12])}{more}; add it, or say other: true for all the rest"
            )
        if code == MISSING_CODE:
            self._check_missing(text)
        return code

    def text(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            rule = f"is not {self.format.encoding} text; say encoding: latin-1 or cp1252 if the file is"
            raise _breaks(text.encode("utf-8", "surrogateescape"), rule, "data/csv-encoding") from None
        given = self.format.encoding
        if given == "utf-8" or text.isascii():
            return text
        with contextlib.suppress(UnicodeError):  # any bytes are text in the others, but rarely also UTF-8
            raise _breaks(text, f"is {text.encode(given).decode()!r} in UTF-8, not {given}", "data/csv-encoding")
        if given == "latin-1" and CONTROL.search(text):
            raise _breaks(text, f"is {text.encode(given).decode('cp1252', 'replace')!r} in cp1252", "data/csv-encoding")
        return text

    def _float(self, text: str, rule: str) -> float:
        decimal = self.format.decimal
        if (known := YES_AND_NO.get(text.lower())) is not None:
            return known
        try:
            if "_" in text or (decimal != "." and "." in text):  # Python accepts 1_000, other programs do not
                raise ValueError
            return float(text.replace(decimal, "."))
        except ValueError:
            other, hint = "," if decimal == "." else ".", ""
            if other in text and text.replace(other, "").lstrip("+-").isdigit():
                hint = f"set decimal: {other!r} for the other; no thousands separators"
                if THOUSANDS.fullmatch(text):
                    hint = f"write it without {other!r} if that parts thousands"
                hint = f" (the decimal point is {decimal!r}; {hint})"
            elif any(sign.isalpha() for sign in text):
                hint = "; list a text column under categorical, or exclude it with leave_out"
            raise _breaks(text, rule + hint) from None

    def _check_missing(self, text: str) -> None:
        if self.refuse_missing:
            shown = f"{text!r} stands for a missing value" if text else "the value is missing"
            raise BreaksRule(f"{shown}; say missing: drop (leaves the row out), mean, or a number", "data/csv-missing")

    # ---- lines that cannot be taken apart

    def _unlike_quotes(self, content: bytes, first: int, expected: int, found: int) -> DataError:
        lines = content.split(b"\n")
        odd = next((i for i, each in enumerate(lines) if each.count(b'"') % 2 or b"\r" in each.rstrip(b"\r")), 0)
        return self._error(
            first + odd,
            f"from here on lines and quotes do not agree ({found:,} records are found in the place of {expected:,}): a "
            f'quote (") inside a value without quotes, or a carriage return inside a line: '
            f"{_cut(lines[odd].decode('utf-8', 'replace'))!r}",
            "data/csv-quotes",
        )

    def _error(self, line: int, message: str, code: str) -> DataError:
        return DataError(f"{self.path}: {self.unit} {line}: {message}", code=code)


def column_of(column: Any, as_number: bool) -> "np.ndarray | Words":
    """Return an arrow column as numbers (n,) float64, if it should and can be, or as words."""
    import pyarrow

    kind, types = column.type, pyarrow.types
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    if as_number and any(test(kind) for test in tests):
        numbers = column.cast(pyarrow.float64(), safe=False)  # rounds whole numbers above 2^53
        numbers = numbers.fill_null(math.nan) if numbers.null_count else numbers
        return numpy_of(numbers.chunk(0) if numbers.num_chunks == 1 else numbers.combine_chunks())
    whole = column if types.is_dictionary(kind) else column.dictionary_encode()
    # There is only one chunk, unless text grew when it was converted to UTF-8.
    whole = whole.chunk(0) if whole.num_chunks == 1 else whole.combine_chunks()
    is_text = types.is_string(whole.dictionary.type) and not whole.dictionary.null_count
    values = whole.dictionary if is_text else spelled(whole.dictionary)
    rows = whole.indices.fill_null(len(values)) if whole.null_count else whole.indices
    return Words(values, numpy_of(rows))


def spelled(values: Any) -> list[str]:
    """Return the texts of an arrow array without missing values."""
    import pyarrow

    if pyarrow.types.is_floating(values.type):  # NumPy's scalars are as short as they can be for their type
        return ["" if number != number else str(number) for number in numpy_of(values)]
    types = pyarrow.types
    if any(test(values.type) for test in (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)):
        return [content.decode("utf-8", "surrogateescape") for content in values.to_pylist()]
    return [*map(str, values.to_pylist())]


def _fill(
    out: np.ndarray, place: int, column: "np.ndarray | Words", rule: Rule, is_plain: Plain, of_words: OfWords
) -> None:
    """Fill `out` (n,): every different text, and each number that is not plain, goes through the rule. Raises
    WrongValue."""
    rows: Any = slice(None)
    if isinstance(column, np.ndarray):
        with np.errstate(over="ignore", invalid="ignore"):  # such values are not plain
            out[:] = column
            rows = np.flatnonzero(~is_plain(column))
        if not len(rows):
            return
        odd, of_row = np.unique(column[rows], return_inverse=True)
        column = Words(["" if number != number else str(number) for number in odd], of_row)
    found, broken = of_words(column, rule, out.dtype)
    _raise_first(broken, place, column.rows, None if isinstance(rows, slice) else rows)
    out[rows] = found[column.rows]


def _by_rule(words: "Words", rule: Rule, dtype: Any) -> tuple[np.ndarray, dict[int, BreaksRule]]:
    found, broken = np.empty(len(words.values), dtype), dict[int, BreaksRule]()
    for number, text in enumerate(words.values):
        try:
            found[number] = rule(text.strip())
        except BreaksRule as why:
            broken[number] = why
    return found, broken


def _raise_first(
    broken: Mapping[int, BreaksRule], place: int, numbers: np.ndarray, rows: np.ndarray | None = None
) -> None:
    """Raise WrongValue for the first row whose value, told by its number (n,), is broken. `rows`: theirs, if not
    all."""
    if broken and len(wrong := np.flatnonzero(np.isin(numbers, [*broken]))):
        row = int(wrong[0])
        raise WrongValue(row if rows is None else int(rows[row]), place, broken[int(numbers[row])])


def _fits_float32(numbers: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.isfinite(np.float32(numbers))


def _is_class(numbers: Any) -> Any:
    return (numbers >= 0) & (numbers < LARGEST_CLASS) & (numbers == np.floor(numbers))


def _breaks(text: str | bytes, rule: str, code: str = "data/csv-value") -> BreaksRule:
    return BreaksRule(f"{_cut(text)!r} {rule}", code)


def _cut(text: Any) -> Any:
    return text if len(text) <= SHOWN else text[:SHOWN]
