"""Parsing of records into arrays: fast, by pyarrow, if they are well-formed; otherwise again by `slow_parse.py`, which
reports the error, or reads them after all.

Missing numbers are NaN here and missing codes -1. Nothing else can be: a NaN in the file counts as missing and an
infinity is an error."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hogwild.data.csv.columns import MISSING_CODE, Codes
from hogwild.data.csv.slow_parse import LARGEST_CLASS, MISSING, Careful, CsvTable, ParsedRecords

UTF8 = "utf8"  # only with this name pyarrow knows that no recoding is needed


@dataclass(frozen=True, slots=True)
class Parser:
    """The parser of one table; missing values are marked as the module says, unless they are refused."""

    table: CsvTable

    def parse(self, content: memoryview, count: int, line: int) -> ParsedRecords:
        """Return the `count` records in `content`, which begins at line `line`. Raises DataError with the place."""
        records = self._quick(content, count)
        if records is None or (self.table.refuse_missing and not records.is_complete):
            records = Careful(self.table, bytes(content), line).records(count)
        return records

    def _quick(self, content: memoryview, count: int) -> ParsedRecords | None:
        """Return the records, or None if anything is unusual."""
        import pyarrow

        try:
            table = self._table(content)
            if table.num_rows != count:
                return None
            plan = self.table.layout
            numbers = self._floats(table, plan.numbers, np.float32)
            codes = np.empty((count, len(plan.coded)), np.int64)
            known = all(
                _encode(table.column(str(place)), each, codes[:, i])
                for i, (place, each) in enumerate(zip(plan.coded, plan.codes, strict=True))
            )
            target = self._target(table, count)
        except pyarrow.ArrowInvalid:
            return None
        return ParsedRecords(numbers, codes, target) if known and numbers is not None and target is not None else None

    def _table(self, content: memoryview) -> Any:
        import pyarrow
        from pyarrow import csv as arrow_csv

        plan, encoding = self.table.layout, self.table.format.encoding
        used = (*plan.numbers, *plan.coded, *plan.targets)
        text = {*plan.coded, *(plan.targets if plan.target_codes else ())}
        # Not float32: pyarrow parses it more slowly, and rounds once while everyone else rounds twice.
        kinds = {str(place): pyarrow.float64() for place in (*plan.numbers, *plan.targets)}
        kinds |= {str(place): pyarrow.dictionary(pyarrow.int32(), pyarrow.string()) for place in text}
        return arrow_csv.read_csv(
            pyarrow.BufferReader(pyarrow.py_buffer(content)),
            read_options=arrow_csv.ReadOptions(
                use_threads=False,  # each worker parses a separate range
                block_size=len(content) + 1,  # one chunk per column
                column_names=[str(place) for place in range(len(plan.names))],
                encoding=UTF8 if encoding == "utf-8" else encoding,
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self.table.format.delimiter,
                quote_char='"' if self.table.format.has_quotes else False,  # without quotes it saves 10 %
                newlines_in_values=self.table.format.has_quotes,
            ),
            convert_options=arrow_csv.ConvertOptions(
                include_columns=[str(place) for place in used],
                column_types=kinds,
                null_values=MISSING,
                strings_can_be_null=False,
                decimal_point=self.table.format.decimal,
            ),
        )

    def _floats(self, table: Any, places: tuple[int, ...], dtype: type) -> np.ndarray | None:
        """Return (n, len(places)), NaN if missing; None if a value is infinite or not a number."""
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
        return out if np.count_nonzero(np.isfinite(out)) == out.size - missing else None

    def _target(self, table: Any, count: int) -> np.ndarray | None:
        plan = self.table.layout
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
