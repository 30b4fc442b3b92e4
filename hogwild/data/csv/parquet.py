"""Records of a Parquet file, written as CSV text of the columns that are used: the parser, with its rules for missing
values and categories, is the one of text files."""

import contextlib
import io
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.data.csv.parse import Format
from hogwild.data.locate import reading
from hogwild.errors import DataError

ROWS = 1 << 14  # read at a time
FORMAT = Format(",", ".", "utf-8", has_quotes=True)


class ParquetRecords:
    """In the place of `RecordPieces`. For one process and one reader; fast in ascending order. Picklable: the file is
    opened again. Raises DataError for a file that is not Parquet, is damaged, or cannot be written as text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.numbers: Collection[int] = ()  # places of the columns that are read as numbers
        self.texts: Collection[int] = ()  # and as text; all others are left empty
        self._file: Any = None
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = None  # the last one read, whose first row is `_at`
        self._at = self._next = 0
        with self._explained():
            metadata = self._opened().metadata
            self.names: list[str] = self._opened().schema_arrow.names
            counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self._groups = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)  # first row of each, and the end
        twice = next((name for i, name in enumerate(self.names) if name in self.names[:i]), None)
        if twice is not None:
            raise DataError(f"{path}: two columns have the name {twice!r}", code="data/csv-columns")
        # As `RecordPieces`: pieces begin at these records, and have no place in a text.
        self.records = np.append(np.arange(0, self.rows, ROWS // 8), self.rows)
        self.begins, self.lines = np.zeros(1, np.int64), np.ones(1, np.int64)
        self.has_quotes = True

    @property
    def rows(self) -> int:
        return int(self._groups[-1])

    def read(self, _: object, first: int, stop: int) -> tuple[bytes, int]:
        """Return the records [first, stop) as text, and the number of the first one, from 1 on."""
        import pyarrow
        from pyarrow import csv

        with self._explained():
            table = pyarrow.Table.from_batches([*self._slices(first, stop)])
            columns = [self._writable(table.column(place), place) for place in range(len(self.names))]
            out = io.BytesIO()
            whole = pyarrow.table(columns, [str(place) for place in range(len(columns))])
            csv.write_csv(whole, out, csv.WriteOptions(include_header=False))
        return out.getvalue(), first + 1

    def _writable(self, column: Any, place: int) -> Any:
        import pyarrow

        if place not in self.numbers and place not in self.texts:
            return pyarrow.nulls(len(column), pyarrow.string())
        if place in self.numbers and pyarrow.types.is_boolean(column.type):
            column = column.cast(pyarrow.int8())
        if column.null_count and len(self.names) == 1:  # an empty line would be no record
            column = column.cast(pyarrow.string()).fill_null("")
        return column

    def _slices(self, first: int, stop: int) -> Iterator[Any]:
        while first < stop:
            if self._batch is None or not self._at <= first < self._next:
                self._go_to(first)
            begin, end = first - self._at, min(stop, self._next) - self._at
            yield self._batch.slice(begin, end - begin)
            first = self._at + end

    def _go_to(self, row: int) -> None:
        group = int(np.searchsorted(self._groups, row, side="right")) - 1
        if self._batch is None or row < self._at or self._groups[group] > self._next:
            rest = range(group, len(self._groups) - 1)
            self._batches = self._opened().iter_batches(ROWS, row_groups=rest, use_threads=False)
            self._next = int(self._groups[group])
        while row >= self._next:
            self._batch = next(self._batches)
            self._at, self._next = self._next, self._next + len(self._batch)

    def _opened(self) -> Any:
        from pyarrow import parquet

        if self._file is None:
            self._file = parquet.ParquetFile(self.path)
        return self._file

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn errors of reading into DataError naming the file."""
        import pyarrow

        with reading(self.path):
            try:
                yield
            except pyarrow.ArrowException as error:
                raise DataError(
                    f"{self.path}: cannot be read as Parquet: {str(error).splitlines()[0]}", code="data/wrong-format"
                ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None, "_batches": iter(()), "_batch": None, "_at": 0, "_next": 0}
