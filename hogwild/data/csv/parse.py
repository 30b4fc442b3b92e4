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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from hogwild.data.csv.columns import MISSING_CODE, Codes, CsvLayout
from hogwild.data.file_kind import unmarked
from hogwild.data.ids import one_spelling
from hogwild.data.text_parsing.table_text import MISSING, Format, numpy_of
from hogwild.errors import DataError

MISSING_TEXTS = frozenset(MISSING)
YES_AND_NO = {"true": 1.0, "false": 0.0}  # as numbers, in any case
LARGEST_CLASS = 2**53  # above it, not every whole number is a float64
CONTROL = re.compile(r"[\x80-\x9f]")  # of latin-1; letters and signs of cp1252
THOUSANDS = re.compile(r"[+-]?\d{1,3}([.,])\d{3}(\1\d{3})*")
SHOWN = 60  # characters of a value in an error


@dataclass(frozen=True, slots=True)
class ParsedRecords:
    """Parsed records: `numbers` (n, F) float32, `codes` (n, C) int64; `target` (n, T) float32, or (n,) int64; `ids`,
    if there is a column of them, n texts; `weight`, if there is a column of it, (n,) float32, none missing."""

    numbers: np.ndarray
    codes: np.ndarray
    target: np.ndarray
    ids: list[str] | None = None
    weight: np.ndarray | None = None

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
    """A column of words: the different ones, and the number of each row's, (n,)."""

    values: list[str]
    rows: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Words":
        places: dict[str, int] = {}
        rows = [places.setdefault(text, len(places)) for text in texts]
        return cls([*places], np.array(rows, np.int64))


Columns: TypeAlias = Mapping[int, "np.ndarray | Words"]  # by place; numbers (n,) float64, NaN if missing
Rule: TypeAlias = Callable[[str], Any]
Plain: TypeAlias = Callable[[Any], Any]  # numbers -> whether each needs no rule


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

    def words(self, content: Any, count: int, line: int) -> dict[int, list[str]]:
        """Return the texts of each column that is used. Raises DataError for text that cannot be taken apart."""
        *_, (columns, _) = self._readings(content, count, line)
        return {
            place: [column.values[row].strip() for row in column.rows]
            for place, column in columns.items()
            if isinstance(column, Words)
        }

    # ---- readings

    def _readings(self, content: Any, count: int, line: int) -> Iterator[tuple[Columns, Sequence[int]]]:
        """Yield the columns, and the line of each record if it is known, the fastest reading first."""
        numbers = {place for place in self.numeric if place != self.layout.ids}  # an id is kept as it is written
        content = unmarked(content) if isinstance(content, bytes) else content
        for typed in (numbers, set[int]()):
            if not isinstance(content, bytes):
                columns = {place: column_of(column, place in typed) for place, column in content.items()}
                yield columns, range(line, line + count)
            elif (table := self._quick(content, count, typed)) is not None:
                names = [*map(int, table.column_names)]
                yield {place: column_of(table.column(str(place)), place in typed) for place in names}, ()
        if isinstance(content, bytes):
            yield self._taken_apart(content, count, line)

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

    def _quick(self, content: bytes, count: int, typed: set[int]) -> Any:
        """Return the table as pyarrow reads it, the columns `typed` as numbers; None if anything is unusual."""
        import pyarrow

        if b"#" in content and self._comment.search(content):
            return None
        # Not float32: pyarrow parses it more slowly, and rounds once while everyone else rounds twice.
        number, words = pyarrow.float64(), pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
        kinds = {place: number if place in typed else words for place in sorted(self.used)}
        return self.format.columns(content, count, len(self.layout.names), kinds)

    def _taken_apart(self, content: bytes, count: int, line: int) -> tuple[Columns, Sequence[int]]:
        """Return the columns and the line of each record. Raises DataError for lines that cannot be taken apart."""
        lines, rows = [], []
        for place, row in self._rows(content, line):
            lines.append(place)
            rows.append(row)
        if len(rows) != count:
            raise self._unlike_quotes(content, line, count, len(rows))
        return {place: Words.of([row[place] for row in rows]) for place in self.used}, lines

    def _rows(self, content: bytes, first: int) -> Iterator[tuple[int, list[str]]]:
        """Yield (line number, fields) of each record; each has as many fields as there are columns."""
        columns = len(self.layout.names)
        for number, text, row in self.format.records(content):
            line, begin = first + number, text.partition("\n")[0]
            if isinstance(row, str):
                raise self._error(line, f"cannot be taken apart: {row}", "data/csv-quotes")
            if len(row) != columns:
                raise self._ragged(line, row)
            if begin.startswith("#") and self._comment.match(begin.encode("utf-8", "replace")):
                words = f"begins as a comment: {_cut(begin)!r}; remove it"
                raise self._error(line, f"{words}, or write the value in quotes if it is one", "data/csv-ragged")
            yield line, row

    # ---- from columns to arrays

    def _records(self, columns: Columns, count: int) -> ParsedRecords:
        """Return the records. Raises WrongValue for the first one with a value that breaks a rule."""
        plan, wrong = self.layout, list[WrongValue]()

        def filled(out: np.ndarray, place: int, rule: Rule, is_plain: Plain = _fits_float32) -> np.ndarray:
            try:
                _fill(out, place, columns[place], rule, is_plain)
            except WrongValue as error:
                wrong.append(error)
            return out

        numbers = np.empty((count, len(plan.numbers)), np.float32)
        for i, place in enumerate(plan.numbers):
            filled(numbers[:, i], place, self.number)
        codes = np.empty((count, len(plan.coded)), np.int64)
        for i, (place, each) in enumerate(zip(plan.coded, plan.codes, strict=True)):
            filled(codes[:, i], place, partial(self.code, codes=each))
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
            weight = filled(np.empty(count, np.float32), plan.weight, self.weight, _is_weight)
        if wrong:
            raise min(wrong, key=lambda error: error.row)
        return ParsedRecords(numbers, codes, target, ids, weight)

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
        if self.format.encoding != "utf-8" and not text.isascii():
            self._check_encoding(text)
        return text

    def _check_encoding(self, text: str) -> None:
        """Raise BreaksRule for text that is surely in another encoding: any bytes are text in these two."""
        given = self.format.encoding
        with contextlib.suppress(UnicodeError):
            raise _breaks(text, f"is {text.encode(given).decode()!r} in UTF-8, not {given}", "data/csv-encoding")
        if given == "latin-1" and CONTROL.search(text):
            raise _breaks(text, f"is {text.encode(given).decode('cp1252', 'replace')!r} in cp1252", "data/csv-encoding")

    def _float(self, text: str, rule: str) -> float:
        decimal = self.format.decimal
        if (known := YES_AND_NO.get(text.lower())) is not None:
            return known
        try:
            if "_" in text or (decimal != "." and "." in text):  # Python accepts 1_000, other programs do not
                raise ValueError
            return float(text.replace(decimal, "."))
        except ValueError:
            raise _breaks(text, rule + self._number_hint(text)) from None

    def _number_hint(self, text: str) -> str:
        decimal = self.format.decimal
        other = "," if decimal == "." else "."
        plain = text.replace(other, "")
        if other in text and plain.lstrip("+-").isdigit():
            if THOUSANDS.fullmatch(text):
                return f" (the decimal point is {decimal!r}; write it without {other!r} if that parts thousands)"
            return f" (the decimal point is {decimal!r}; set decimal: {other!r} for the other; no thousands separators)"
        if any(sign.isalpha() for sign in text):
            return "; list a text column under categorical, or exclude it with leave_out"
        return ""

    def _check_missing(self, text: str) -> None:
        if self.refuse_missing:
            shown = f"{text!r} stands for a missing value" if text else "the value is missing"
            raise BreaksRule(f"{shown}; say missing: drop (leaves the row out), mean, or a number", "data/csv-missing")

    # ---- lines that cannot be taken apart

    def _ragged(self, line: int, row: list[str]) -> DataError:
        shown = _cut(self.format.delimiter.join(row))
        columns = len(self.layout.names)
        hint = ""
        if row[0].lstrip().startswith("#"):
            hint = "; comments are not supported: remove them, or skip those before the header with skip_lines"
        elif not "".join(row).strip():
            hint = "; it has only spaces: remove it"
        elif len(row) > columns:
            hint = f"; a value with a {self.format.delimiter!r} in it must be in quotes; row names (R) need a name, too"
        return self._error(line, f"has {len(row)} values, {columns} were expected: {shown!r}{hint}", "data/csv-ragged")

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
        return numpy_of(_joined(numbers.fill_null(math.nan) if numbers.null_count else numbers))
    whole = _joined(column if types.is_dictionary(kind) else column.dictionary_encode())
    values = spelled(whole.dictionary)
    rows = whole.indices.fill_null(len(values)) if whole.null_count else whole.indices
    return Words([*values, ""], numpy_of(rows))


def spelled(values: Any) -> list[str]:
    """Return the texts of an arrow array without missing values."""
    import pyarrow

    if pyarrow.types.is_floating(values.type):  # NumPy's scalars are as short as they can be for their type
        return ["" if number != number else str(number) for number in numpy_of(values)]
    types = pyarrow.types
    if any(test(values.type) for test in (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)):
        return [content.decode("utf-8", "surrogateescape") for content in values.to_pylist()]
    return [*map(str, values.to_pylist())]


def _joined(column: Any) -> Any:
    """Return the chunks as one array: there is only one, unless text grew when it was converted to UTF-8."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _fill(out: np.ndarray, place: int, column: "np.ndarray | Words", rule: Rule, is_plain: Plain) -> None:
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
    found, broken = np.empty(len(column.values), out.dtype), dict[int, BreaksRule]()
    for number, text in enumerate(column.values):
        try:
            found[number] = rule(text.strip())
        except BreaksRule as why:
            broken[number] = why
    if broken and len(wrong := np.flatnonzero(np.isin(column.rows, [*broken]))):
        row = int(wrong[0])
        raise WrongValue(row if isinstance(rows, slice) else int(rows[row]), place, broken[int(column.rows[row])])
    out[rows] = found[column.rows]


def _fits_float32(numbers: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.isfinite(np.float32(numbers))


def _is_weight(numbers: Any) -> Any:
    return (numbers >= 0) & _fits_float32(numbers)


def _is_class(numbers: Any) -> Any:
    return (numbers >= 0) & (numbers < LARGEST_CLASS) & (numbers == np.floor(numbers))


def _breaks(text: str | bytes, rule: str, code: str = "data/csv-value") -> BreaksRule:
    return BreaksRule(f"{_cut(text)!r} {rule}", code)


def _cut(text: Any) -> Any:
    return text if len(text) <= SHOWN else text[:SHOWN]
