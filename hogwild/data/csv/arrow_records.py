"""Records of a Parquet file, or of a table in memory: columns by the types that they have.

Words are spelled as pandas writes the same table into a text file: True, 1, 2.5, 2024-01-05, 2024-01-05 10:00:00+01:00,
1.50; nothing for a missing value."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.data.locate import bad_argument, reading
from hogwild.errors import DataError

ROWS = 1 << 14  # read at a time


class ArrowRecords:
    """In the place of `RecordPieces`. `read` returns arrow columns by their places, instead of text."""

    def __init__(self, path: Path, schema: Any, rows: int) -> None:
        self.path, self.rows, self._schema = path, rows, schema
        self.names: list[str] = [name.strip() for name in schema.names]  # as in text
        self._used: tuple[int, ...] = ()
        self._times: dict[int, Any] = {}  # place of a column of times -> the type as which they are spelled
        twice = next((name for i, name in enumerate(self.names) if name in self.names[:i]), None)
        if twice is not None:
            raise DataError(f"{path}: two columns have the name {twice!r}", code="data/csv-columns")
        # As `RecordPieces`: pieces begin at these records, and have no place in a text.
        self.records = np.append(np.arange(0, rows, ROWS // 8), rows)
        self.begins, self.lines = np.zeros(1, np.int64), np.ones(1, np.int64)

    def use(self, places: set[int]) -> None:
        """Read these columns from here on. Raises DataError for one that holds neither numbers nor words."""
        import pyarrow

        self._used = tuple(sorted(places))
        for place in self._used:
            kind = self._kind(place)
            try:
                pyarrow.chunked_array([], kind).dictionary_encode()
                is_words = not pyarrow.types.is_duration(kind)
            except pyarrow.ArrowNotImplementedError:
                is_words = False
            if not is_words:
                raise DataError(
                    f"{self.path}: column {self.names[place]!r} is {kind}, neither numbers nor words; exclude it with "
                    "leave_out",
                    code="data/csv-columns",
                )
            if pyarrow.types.is_timestamp(kind) and place not in self._times:
                self._times[place] = _coarsest(self._whole(self._schema.names[place]))

    def read(self, _: object, first: int, stop: int) -> tuple[Mapping[int, Any], int]:
        """Return the columns of the records [first, stop) by place, and the number of the first one, from 1 on."""
        table = self._part(first, stop)
        columns = {}
        for place in self._used:
            column = table.column(self._schema.names[place]).cast(self._kind(place))
            columns[place] = _spelled_times(column, self._times[place]) if place in self._times else column
        return columns, first + 1

    def _kind(self, place: int) -> Any:
        """Return the type of a column's values: of a dictionary, that of its values."""
        import pyarrow

        kind = self._schema.field(place).type
        return kind.value_type if pyarrow.types.is_dictionary(kind) else kind

    def _part(self, first: int, stop: int) -> Any:
        """Return the records [first, stop) as an arrow table of at least the columns that are used."""
        raise NotImplementedError

    def _whole(self, name: str) -> Any:
        """Return a whole column."""
        raise NotImplementedError


class TableRecords(ArrowRecords):
    """Records in memory: of a pandas or polars table, or of arrow. It stands for the file, too. Raises UsageError for
    anything else, and DataError for a column of several types."""

    progress = (0, 0)

    def __init__(self, who: str, table: Any) -> None:
        import pyarrow

        try:
            self._table = table if isinstance(table, pyarrow.Table) else pyarrow.table(table)
        except pyarrow.ArrowException as error:
            said = ": ".join(str(part) for part in reversed(error.args))
            raise DataError(f"{who}: cannot be read as a table: {said}", code="data/wrong-format") from error
        except (TypeError, ValueError) as error:
            raise bad_argument(f"{who}: must be a file or a table (pandas, polars or arrow): {error}") from error
        super().__init__(Path(type(table).__name__), self._table.schema, self._table.num_rows)

    def hash_into(self, digest: Any) -> None:
        """Add the content of the table to a `hashlib` object."""
        import pyarrow

        with pyarrow.ipc.new_stream(sink := pyarrow.BufferOutputStream(), self._table.schema) as stream:
            stream.write_table(self._table.combine_chunks())
        digest.update(sink.getvalue())

    def close(self) -> None:
        """No-op: there is no file."""

    def _part(self, first: int, stop: int) -> Any:
        return self._table.slice(first, stop - first)

    def _whole(self, name: str) -> Any:
        return self._table.column(name)


class ParquetRecords(ArrowRecords):
    """Records of a file, for one process and one reader; fast in ascending order. Picklable: the file is opened again.
    Raises DataError for a file that is not Parquet, or is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        self._rewind()
        with self._explained():
            metadata, schema = self._opened().metadata, self._opened().schema_arrow
            counts = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
        self._groups = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)  # first row of each, and the end
        super().__init__(path, schema, int(self._groups[-1]))

    def use(self, places: set[int]) -> None:
        self._rewind()
        with self._explained():
            super().use(places)

    def _rewind(self) -> None:
        self._batches: Iterator[Any] = iter(())
        self._batch: Any = None  # the last one read, whose first row is `_at`
        self._at = self._next = 0

    def _part(self, first: int, stop: int) -> Any:
        import pyarrow

        with self._explained():
            return pyarrow.Table.from_batches([*self._slices(first, stop)])

    def _whole(self, name: str) -> Any:
        return self._opened().read(columns=[name]).column(name)

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
            rest, names = range(group, len(self._groups) - 1), [self._schema.names[place] for place in self._used]
            self._batches = self._opened().iter_batches(ROWS, row_groups=rest, columns=names, use_threads=False)
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


def _coarsest(column: Any) -> Any:
    """Return the type that tells all times of a column and no more: dates, if it has no zone, or the coarsest unit."""
    import pyarrow

    kind = column.type
    coarser = [pyarrow.timestamp(unit, kind.tz) for unit in ("s", "ms", "us")]
    for other in coarser if kind.tz is not None else [pyarrow.date32(), *coarser]:
        with contextlib.suppress(pyarrow.ArrowInvalid):  # digits would be lost; a date loses them silently
            if column.cast(other).cast(kind).equals(column):
                return other
    return kind


def _spelled_times(column: Any, kind: Any) -> Any:
    """Return times of this type as words, in the zone of the column, with its distance from UTC."""
    import pyarrow
    from pyarrow import compute

    words = column.cast(kind).cast(pyarrow.string())
    if column.type.tz is None:
        return words
    words = compute.replace_substring_regex(words, "Z$", "+0000")
    return compute.replace_substring_regex(words, r"([+-]\d\d)(\d\d)$", r"\1:\2")
