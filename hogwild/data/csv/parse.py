"""Parsing of records into arrays: fast, by pyarrow, if they are well-formed; otherwise again by Python's csv module,
value by value: some 30 times slower, but with the place of every value. That reports the line, the column and the rule,
and reads what pyarrow rejects (a plus sign, spaces).

Missing numbers are NaN here and missing codes -1. Nothing else can be: a NaN in the file counts as missing and an
infinity is an error."""

import csv
import io
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from hogwild.data.csv.columns import MISSING_CODE, Codes, CsvLayout
from hogwild.errors import DataError

UTF8 = "utf8"  # only with this name pyarrow knows that no recoding is needed
# Texts for "no number" in files from pandas, R, spreadsheets, databases and the UCI archive.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NAN", "-nan", "NULL", "null", "None", "none", "?")
MISSING_TEXTS = frozenset(MISSING)
LARGEST_CLASS = 2**53  # above it, not every whole number is a float64
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

    @property
    def lacks_codes(self) -> bool:
        """True if a category or a class is missing."""
        is_coded = self.target.dtype == np.int64
        return bool((self.codes == MISSING_CODE).any() or (is_coded and (self.target == MISSING_CODE).any()))

    def missing(self) -> np.ndarray:
        """Return (n,) bool: True for records with a missing value."""
        if self.target.dtype == np.float32:
            lacks = np.isnan(self.target).any(axis=1)
        else:
            lacks = self.target == MISSING_CODE
        found: np.ndarray = lacks | np.isnan(self.numbers).any(axis=1) | (self.codes == MISSING_CODE).any(axis=1)
        return found


@dataclass(frozen=True, slots=True)
class Format:
    """The text format of a file."""

    delimiter: str
    decimal: str
    encoding: str
    has_quotes: bool


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A file and its format, and the parser of its records; missing values are marked as the module says.
    `refuse_missing`: a missing value is an error with its place instead."""

    path: Path
    layout: CsvLayout
    format: Format
    refuse_missing: bool

    def parse(self, content: bytes, count: int, line: int) -> ParsedRecords:
        """Return the `count` records in `content`, which begins at line `line`. Raises DataError with the place."""
        records = self._quick(content, count)
        return Careful(self, content, line).records(count) if records is None else records

    def _quick(self, content: bytes, count: int) -> ParsedRecords | None:
        """Return the records, or None if anything is unusual."""
        import pyarrow

        if self.layout.ids in (*self.layout.numbers, *self.layout.coded):  # pyarrow reads a column once
            return None
        try:
            table = self._table(content)
            if table.num_rows != count:
                return None
            plan = self.layout
            numbers = self._floats(table, plan.numbers, np.float32)
            codes = np.empty((count, len(plan.coded)), np.int64)
            known = all(
                _encode(table.column(str(place)), each, codes[:, i])
                for i, (place, each) in enumerate(zip(plan.coded, plan.codes, strict=True))
            )
            target = self._target(table, count)
            weight = None if plan.weight is None else self._floats(table, (plan.weight,), np.float32)
        except pyarrow.ArrowInvalid:
            return None
        if not known or numbers is None or target is None:
            return None
        if plan.weight is not None and (weight is None or not (weight >= 0).all()):  # NaN is not
            return None
        ids = None
        if plan.ids is not None:
            ids = [text.strip() for text in table.column(str(plan.ids)).to_pylist()]
        records = ParsedRecords(numbers, codes, target, ids, None if weight is None else weight[:, 0])
        return None if self.refuse_missing and records.lacks_codes else records

    def _table(self, content: bytes) -> Any:
        import pyarrow
        from pyarrow import csv as arrow_csv

        plan, encoding = self.layout, self.format.encoding
        weights = () if plan.weight is None else (plan.weight,)
        used: tuple[int, ...] = (*plan.numbers, *plan.coded, *plan.targets, *weights)
        text = {*plan.coded, *(plan.targets if plan.target_codes else ())}
        # Not float32: pyarrow parses it more slowly, and rounds once while everyone else rounds twice.
        kinds = {str(place): pyarrow.float64() for place in (*plan.numbers, *plan.targets, *weights)}
        kinds |= {str(place): pyarrow.dictionary(pyarrow.int32(), pyarrow.string()) for place in text}
        if plan.ids is not None:
            used, kinds = (*used, plan.ids), kinds | {str(plan.ids): pyarrow.string()}
        return arrow_csv.read_csv(
            pyarrow.BufferReader(pyarrow.py_buffer(content)),
            read_options=arrow_csv.ReadOptions(
                use_threads=False,  # each thread parses a separate piece
                block_size=len(content) + 1,  # one chunk per column
                column_names=[str(place) for place in range(len(plan.names))],
                encoding=UTF8 if encoding == "utf-8" else encoding,
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self.format.delimiter,
                quote_char='"' if self.format.has_quotes else False,  # without quotes it saves 10 %
                newlines_in_values=self.format.has_quotes,
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=[str(place) for place in used],
                column_types=kinds,
                null_values=MISSING,
                strings_can_be_null=False,
                decimal_point=self.format.decimal,
            ),
        )

    def _floats(self, table: Any, places: tuple[int, ...], dtype: type) -> np.ndarray | None:
        """Return (n, len(places)), NaN if missing; None if a value is infinite, not a number, or refused."""
        out = np.empty((table.num_rows, len(places)), dtype)
        missing = 0
        with np.errstate(over="ignore"):  # the value becomes infinite and is found below
            for i, place in enumerate(places):
                column = table.column(str(place))
                missing += column.null_count
                done = 0
                for chunk in column.chunks:  # one chunk, unless the text grew when it was converted to UTF-8
                    out[done : done + len(chunk), i] = _array(chunk.fill_null(np.nan) if chunk.null_count else chunk)
                    done += len(chunk)
        if missing and self.refuse_missing:
            return None
        return out if np.count_nonzero(np.isfinite(out)) == out.size - missing else None

    def _target(self, table: Any, count: int) -> np.ndarray | None:
        plan = self.layout
        if plan.target_codes is not None:
            codes = np.empty(count, np.int64)
            return codes if _encode(table.column(str(plan.targets[0])), plan.target_codes, codes) else None
        if not plan.is_class:
            return self._floats(table, plan.targets, np.float32)
        values = self._floats(table, plan.targets, np.float64)
        return None if values is None else _classes(values[:, 0])


def _encode(column: Any, codes: Codes, out: np.ndarray) -> bool:
    """Encode a column; each distinct value is looked up once per piece. Return False if one is not allowed."""
    done = 0
    for chunk in column.chunks:
        found = [codes.code(text.strip()) for text in chunk.dictionary.to_pylist()]
        if None in found:
            return False
        out[done : done + len(chunk)] = np.array(found, dtype=np.int64)[_array(chunk.indices)]
        done += len(chunk)
    return True


def _array(chunk: Any) -> np.ndarray:
    """Return an array without a copy. `to_numpy` would import pandas, if installed, in every process: 0.3 s."""
    return np.from_dlpack(chunk) if len(chunk) else np.empty(0, np.int64)


def _classes(values: np.ndarray) -> np.ndarray | None:
    """Convert float64 (n,) to int64 (n,); None if a value is not a whole number >= 0."""
    lacks = np.isnan(values)
    whole = np.where(lacks, MISSING_CODE, values)
    if ((whole < 0) & ~lacks).any() or (whole >= LARGEST_CLASS).any() or (whole != np.floor(whole)).any():
        return None
    return whole.astype(np.int64)


# ---- value by value ------------------------------------------------------------------------------------------------


class Careful:
    """Parser of the records in `content`, whose first line has number `line`."""

    def __init__(self, table: CsvTable, content: bytes, line: int) -> None:
        self._table, self._content, self._line = table, content, line
        self._layout = table.layout

    def records(self, count: int) -> ParsedRecords:
        """Return exactly `count` records. Raises DataError with the place of the first wrong value."""
        plan = self._layout
        rows = list(self._rows())
        if len(rows) != count:
            self._refuse_quotes(count, len(rows))
        numbers = np.empty((count, len(plan.numbers)), np.float32)
        codes = np.empty((count, len(plan.coded)), np.int64)
        is_coded = plan.target_codes is not None or plan.is_class
        target = np.empty(count, np.int64) if is_coded else np.empty((count, len(plan.targets)), np.float32)
        for i, (line, row) in enumerate(rows):
            for j, place in enumerate(plan.numbers):
                numbers[i, j] = self._number(line, place, row[place])
            for j, (place, each) in enumerate(zip(plan.coded, plan.codes, strict=True)):
                codes[i, j] = self._code(line, place, row[place], each)
            target[i] = self._target(line, row)
        ids = None if plan.ids is None else [self._text(line, plan.ids, row[plan.ids]) for line, row in rows]
        weight = None
        if plan.weight is not None:
            weight = np.array([self._weight(line, plan.weight, row[plan.weight]) for line, row in rows], np.float32)
        return ParsedRecords(numbers, codes, target, ids, weight)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield (line number, fields) of each record; each has as many fields as there are columns."""
        # Wrong encoding matters only in a column that is read; `_code` checks it there.
        text = self._content.decode(self._table.format.encoding, "surrogateescape")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=self._table.format.delimiter, strict=True)
        columns, line = len(self._layout.names), self._line
        while True:
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                self._refuse(line, f"cannot be taken apart: {error}", "data/csv-quotes")
            if row and len(row) != columns:
                self._refuse_ragged(line, row)
            if row:
                yield line, row
            line = self._line + reader.line_num

    def _refuse_ragged(self, line: int, row: list[str]) -> NoReturn:
        shown = _cut(self._table.format.delimiter.join(row))
        columns = len(self._layout.names)
        hint = ""
        if row[0].lstrip().startswith("#"):
            hint = "; comments are not supported: remove them, or skip those before the header with skip_lines"
        elif re.search(rb"\r(?!\n)", self._content):
            hint = "; a carriage return inside the line ends it"
        elif not "".join(row).strip():
            hint = "; it has only spaces: remove it"
        elif len(row) > columns:
            hint = f"; a value with a {self._table.format.delimiter!r} in it must be in quotes"
        self._refuse(line, f"has {len(row)} values, {columns} were expected: {shown!r}{hint}", "data/csv-ragged")

    def _refuse_quotes(self, expected: int, found: int) -> NoReturn:
        lines = self._content.split(b"\n")
        odd = next((i for i, each in enumerate(lines) if each.count(b'"') % 2 or b"\r" in each.rstrip(b"\r")), 0)
        self._refuse(
            self._line + odd,
            f"from here on lines and quotes do not agree ({found:,} records are found in the place of {expected:,}): a "
            f'quote (") inside a value without quotes, or a carriage return inside a line: '
            f"{_cut(lines[odd].decode('utf-8', 'replace'))!r}",
            "data/csv-quotes",
        )

    def _number(self, line: int, place: int, text: str) -> float:
        text = text.strip()
        if text in MISSING_TEXTS:
            if self._table.refuse_missing:
                self._refuse_missing(line, place, text)
            return math.nan
        try:
            value = self._float(text)
        except ValueError:
            self._refuse_value(line, place, text, "must be a number" + self._number_hint(text))
        if math.isinf(value) and "inf" in text.lower():
            self._refuse_value(line, place, text, "must be finite; what is unknown is left empty")
        with np.errstate(over="ignore"):
            if math.isinf(np.float32(value)):
                self._refuse_value(line, place, text, "must fit float32: at most 3.4e38 in size")
        return value

    def _weight(self, line: int, place: int, text: str) -> float:
        value = math.nan if text.strip() in MISSING_TEXTS else self._number(line, place, text)
        if not value >= 0:
            rule = "must be a number from 0 on: the weight of a row; 0 leaves it out, and it is never filled in"
            self._refuse_value(line, place, text, rule)
        return value

    def _float(self, text: str) -> float:
        decimal = self._table.format.decimal
        if "_" in text or (decimal != "." and "." in text):  # Python accepts 1_000, other programs do not
            raise ValueError
        return float(text.replace(decimal, "."))

    def _number_hint(self, text: str) -> str:
        decimal = self._table.format.decimal
        other = "," if decimal == "." else "."
        plain = text.replace(other, "")
        if other in text and plain.lstrip("+-").isdigit():
            return f" (the decimal point is {decimal!r}; set decimal: {other!r} for the other; no thousands separators)"
        if any(sign.isalpha() for sign in text):
            return "; list a text column under categorical, or exclude it with leave_out"
        return ""

    def _text(self, line: int, place: int, text: str) -> str:
        text = text.strip()
        try:
            text.encode()
        except UnicodeEncodeError:
            rule = f"is not {self._table.format.encoding} text; say encoding: latin-1 or cp1252 if the file is"
            self._refuse_value(line, place, text.encode("utf-8", "surrogateescape"), rule, "data/csv-encoding")
        return text

    def _code(self, line: int, place: int, text: str, codes: Codes) -> int:
        text = self._text(line, place, text)
        code = codes.code(text)
        if code == MISSING_CODE and self._table.refuse_missing:
            self._refuse_missing(line, place, text)
        if code is None:
            listed = list(codes.places)
            more = f", … ({len(listed)} in all)" if len(listed) > 12 else ""
            rule = f"must be one of {', '.join(listed[:12])}{more}; add it, or say other: true for all the rest"
            self._refuse_value(line, place, text, rule)
        return code

    def _target(self, line: int, row: list[str]) -> Any:
        plan = self._layout
        if not plan.targets:  # a file to predict
            return ()
        first = plan.targets[0]
        if plan.target_codes is not None:
            return self._code(line, first, row[first], plan.target_codes)
        values = [self._number(line, place, row[place]) for place in plan.targets]
        if not plan.is_class:
            return values
        text = row[first].strip()
        value = math.nan if text in MISSING_TEXTS else self._float(text)
        if math.isnan(value):
            return MISSING_CODE
        if value < 0 or value != math.floor(value) or value >= LARGEST_CLASS:
            rule = "must be a class: a whole number from 0 on; other classes are listed under categorical"
            self._refuse_value(line, first, text, rule)
        return int(value)

    def _refuse_missing(self, line: int, place: int, text: str) -> NoReturn:
        shown = f"{text!r} stands for a missing value" if text else "the value is missing"
        hint = "say missing: drop (leaves the row out), mean, or a number"
        self._refuse(line, f"{self._layout.label(place)}: {shown}; {hint}", "data/csv-missing")

    def _refuse_value(
        self, line: int, place: int, text: str | bytes, rule: str, code: str = "data/csv-value"
    ) -> NoReturn:
        self._refuse(line, f"{self._layout.label(place)}: {_cut(text)!r} {rule}", code)

    def _refuse(self, line: int, message: str, code: str) -> NoReturn:
        raise DataError(f"{self._table.path}: line {line}: {message}", code=code)


def _cut(text: Any) -> Any:
    return text if len(text) <= SHOWN else text[:SHOWN]
