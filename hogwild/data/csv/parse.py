"""Records of a text file as arrays. Quickly, by pyarrow, where they are as they should be; else once more by
`slow_parse.py`, which says what is wrong, or reads it after all.

Missing numbers are NaN here and missing codes -1: nothing else can be either, because a NaN in the file is missing and
an infinity is an error."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hogwild.data.csv.columns import MISSING_CODE, Codes
from hogwild.data.csv.slow_parse import LARGEST_CLASS, MISSING, Careful, CsvTable, ParsedRecords

UTF8 = "utf8"  # by this name alone pyarrow knows that nothing needs to be recoded


@dataclass(frozen=True, slots=True)
class Parser:
    """Of one table; what is missing is shown as the module says, unless it is refused."""

    table: CsvTable

    def parse(self, content: memoryview, count: int, line: int) -> ParsedRecords:
        """The `count` records in `content`, whose first line has number `line`. Raises DataError with the place."""
        records = self._quick(content, count)
        if records is None or (self.table.refuse_missing and not records.is_complete):
            records = Careful(self.table, bytes(content), line).records(count)
        return records

    def _quick(self, content: memoryview, count: int) -> ParsedRecords | None:
        """None where anything is odd."""
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
        # Not float32, which pyarrow parses more slowly, and rounds once where everybody else rounds twice.
        kinds = {str(place): pyarrow.float64() for place in (*plan.numbers, *plan.targets)}
        kinds |= {str(place): pyarrow.dictionary(pyarrow.int32(), pyarrow.string()) for place in text}
        return arrow_csv.read_csv(
            pyarrow.BufferReader(pyarrow.py_buffer(content)),
            read_options=arrow_csv.ReadOptions(
                use_threads=False,  # every worker parses a range of its own
                block_size=len(content) + 1,  # one chunk per column
                column_names=[str(place) for place in range(len(plan.names))],
                encoding=UTF8 if encoding == "utf-8" else encoding,
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=self.table.format.delimiter,
                quote_char='"' if self.table.format.has_quotes else False,  # not looking for it saves a tenth
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
        """(n, len(places)), NaN where missing; None where something is infinite, or not a number."""
        out = np.empty((table.num_rows, len(places)), dtype)
        missing = 0
        with np.errstate(over="ignore"):  # becomes infinite, and is found below
            for i, place in enumerate(places):
                column = table.column(str(place))
                missing += column.null_count
                done = 0
                for chunk in column.chunks:  # one, but for text that grew when it became UTF-8
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
    """Each different value is looked up once per piece; False where one is not allowed."""
    done = 0
    for chunk in column.chunks:
        found = [codes.code(text.strip()) for text in chunk.dictionary.to_pylist()]
        if None in found:
            return False
        out[done : done + len(chunk)] = np.array(found, dtype=np.int64)[_array(chunk.indices)]
        done += len(chunk)
    return True


def _array(chunk: Any) -> np.ndarray:
    """Without a copy. `to_numpy` would import pandas, where that is installed, in every process: 0.3 s."""
    return np.from_dlpack(chunk) if len(chunk) else np.empty(0, np.int64)


def _classes(values: np.ndarray) -> np.ndarray | None:
    """float64 (n,) -> int64 (n,); None where one is not a whole number >= 0."""
    lacks = np.isnan(values)
    whole = np.where(lacks, MISSING_CODE, values)
    if ((whole < 0) & ~lacks).any() or (whole >= LARGEST_CLASS).any() or (whole != np.floor(whole)).any():
        return None
    return whole.astype(np.int64)
