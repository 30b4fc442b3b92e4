"""A user's own table: from a text file with any delimiter, plain or packed; from Parquet; or in memory.

Columns of Parquet and of tables in memory are read by their types. Words are spelled as pandas writes the same table
into a text file: True, 1, 2.5, 2024-01-05, 2024-01-05 10:00:00+01:00, 1.50; nothing for a missing value."""

import contextlib
import copy
import hashlib
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hogwild.data.cache import DatasetCache
from hogwild.data.csv.parse import (
    MISSING_CODE,
    Column,
    CsvLayout,
    CsvTable,
    ParsedRecords,
    is_number,
    layout,
    shown_names,
)
from hogwild.data.input_rows import SAMPLE, InputRows, given_arguments, named
from hogwild.data.locate import bad_argument, choice, find_file, reading, require
from hogwild.data.text_file import RecordPieces, TextFile, TextStream, find_records, is_parquet
from hogwild.data.text_parsing import ENCODINGS, Format, delimiter_of, hash_of, in_threads, read_header
from hogwild.errors import DataError, UsageError, did_you_mean

AT_ONCE = 8  # pieces of the index, 1 MB of text, parsed at a time: they and the results stay in the CPU caches
FEWEST = 10  # rows, from which on different values mean something
WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
VERSION = 4  # of this class's output for a file; part of the fingerprint
log = logging.getLogger(__name__)


class Csv(Dataset[tuple[Tensor, ...]]):
    """One sample per row of a table in a text file.

    Its tensors, in this order:

        x       (N, F) float32   all numeric inputs, in their order; left out if all inputs are categorical
        codes   (N, C) int64     all categorical inputs, each coded from 0 on; only if there are any
        target  (N, T) float32   one column for each name in `target`, so (N, 1) for one: the shape of a model's single
                                 output, for MSELoss, L1Loss and BCEWithLogitsLoss
                (N,) int64       a class: with `target_type: class` (whole numbers from 0 on), or a target listed
                                 under `categorical`; for CrossEntropyLoss

    With `weight` there is one more before the target, (N,) float32: loss and metrics count a row as often as it says,
    and the model does not get it.

    Columns are named as in the header, or numbered from 0 on, -1 being the last one. Spaces around a value are ignored.
    Values may be quoted, with delimiters and line ends inside; a quote inside a quoted value is written twice. Empty
    lines are skipped. `missing` concerns empty values, and NA, NaN, null, None, ? and similar texts in a column of
    numbers. With mean or a number, a missing category gets the code of all others; the target is never filled in. To
    validate or to predict, the means are those of the training data.
    `drop` and `mean` first read the whole file once more, which takes as long as reading it.

    With `like` the other arguments refer to the file that a model was trained on; from this one only the inputs are
    read, by name, in any order, and the target may be missing. Without a header, this file must have as many columns as
    that one, or only its inputs.

    The constructor counts the rows; `rows` parses some of them, in any process, and `parts` all of them, by threads.
    Needs pyarrow (pip install 'hogwild[csv]'). Raises NotFoundError, UsageError for arguments that do not fit the file,
    and DataError with file, line, column, value and rule.

    Arguments:
        path: file, plain or packed; or a Parquet file, or a table of pandas, polars or arrow: their columns have names
            and types of their own, so header, delimiter, decimal and encoding are not asked for.
        target: column to predict, or a list of columns.
        inputs: columns to predict from; null: all but the target and those in `leave_out`.
        categorical: for columns that are no numbers: a list of the values (a value's place is its code; any other is
            an error), {values: [...], other: true} (all others get one more code, the last), or {hash: N} (a stable
            hash, N codes).
        missing: fail (an error with its line), drop (leave the row out), mean (of the column, here), or a number.
        target_type: float, or class: whole numbers from 0 on.
        weight: column of the weights of rows: 2 counts as the row twice, 0 not at all.
        leave_out: columns that are no inputs.
        header: whether the first line has the names of the columns.
        delimiter: one character (tab: "\\t").
        decimal: "." or ",".
        encoding: utf-8, latin-1 or cp1252.
        skip_lines: lines to ignore before the header, or the first row.
        like: columns of the file that a model was trained on, to predict another file."""

    def __init__(
        self,
        path: Any,
        target: Column | Sequence[Column],
        inputs: Sequence[Column] | None = None,
        categorical: Mapping[Column, Any] | None = None,
        missing: str | float | Mapping[str, float] = "fail",
        target_type: Literal["float", "class"] = "float",
        leave_out: Sequence[Column] = (),
        header: bool = True,
        delimiter: str = ",",
        decimal: str = ".",
        encoding: str = "utf-8",
        skip_lines: int = 0,
        root: str | os.PathLike[str] | None = None,
        like: Sequence[str] | None = None,
        weight: Column | None = None,
    ) -> None:
        if not hasattr(self, "init_args"):  # of a subclass
            self.init_args = given_arguments(self, locals())
        self._columns_named = target, weight
        self._who = who = f"Csv(path={named(path)!r})"
        require("pyarrow.csv", "hogwild.data.Csv", "pyarrow", "csv")
        if not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise bad_argument(f'{who}: delimiter must be one ASCII character, such as "," or "\\t", got {delimiter!r}')
        if decimal not in (".", ",") or decimal == delimiter:
            raise bad_argument(f'{who}: decimal must be "." or ",", and not the delimiter, got {decimal!r}')
        choice(who, "encoding", encoding, ENCODINGS)
        if type(skip_lines) is not int or skip_lines < 0:
            raise bad_argument(f"{who}: skip_lines must be a whole number >= 0, got {skip_lines!r}")
        if isinstance(missing, int | float) and not isinstance(missing, bool) and math.isfinite(np.float32(missing)):
            missing = float(missing)
        elif not isinstance(missing, Mapping) and missing not in ("fail", "drop", "mean"):  # a map: means of training
            raise bad_argument(f"{who}: missing must be fail, drop, mean or a finite number, got {missing!r}")
        self.missing = missing
        self._text: Any
        self._index: RecordPieces | ArrowRecords | None = None  # none of a stream
        if isinstance(path, TextStream):  # to predict
            self._text = path
            path.wait_for_header(skip_lines)
        elif isinstance(path, str | os.PathLike):
            self._text = TextFile(find_file(who, path, root, "It is your own file: a table, one sample per row."))
            if is_parquet(self._text.path):
                self._index = ParquetRecords(self._text.path)
        else:
            self._text = self._index = TableRecords(who, path)
        self._start, self._line_of_start = 0, 1
        planned = partial(
            layout, who, has_header=header or self._index is not None, target=target, inputs=inputs,
            leave_out=leave_out, categorical=categorical or {}, target_type=target_type, weight=weight,
        )  # fmt: skip
        wanted = None if like is None else planned(like)
        if self._index is not None:
            names, header, form = self._index.names, True, Format(",")
        else:
            if wanted is not None and header:
                delimiter = delimiter_of(self._text, delimiter, encoding, skip_lines, {*wanted.input_names})
            names, self._start, self._line_of_start = read_header(
                self._text, header, delimiter, encoding, skip_lines, has_target=like is None
            )
            form = Format(delimiter, decimal, encoding)
        plan = planned(names) if wanted is None else wanted.inputs_in(who, names, header)
        if isinstance(self._text, TextFile) and self._index is None:
            self._index = find_records(self._text, self._start, self._line_of_start)
        if self._index is not None and not self._index.rows:
            where = f" after line {self._line_of_start - 1}" if isinstance(self._index, RecordPieces) else ""
            raise DataError(f"{self._text.path}: contains no samples: there is no row{where}", code="data/empty")
        self._has_header = header
        self._classes = 0  # of `target_type: class`, once they are counted
        self._read_by(plan, form)

    def _read_by(self, plan: CsvLayout, form: Format) -> None:
        """Read the file by this layout from here on, and what `missing` needs of it."""
        self._use(plan, form)
        self._fill: np.ndarray | None = None
        if not isinstance(self.missing, str):
            known = self.missing if isinstance(self.missing, Mapping) else {}
            self._fill = np.array([known.get(name, self.missing) for name in self.inputs], np.float32)
        self._dropped = np.empty(0, np.int64)  # numbers of the records that are left out, ascending
        if self.missing == "drop" and self._index is not None:
            found = [np.flatnonzero(records.missing()) + begin for begin, records in self._all()]
            self._dropped = np.concatenate(found).astype(np.int64)
            if len(self._dropped) == self._index.rows:
                raise DataError(
                    f"{self._text.path}: all {self._index.rows:,} rows have a missing value, so missing: drop leaves "
                    "none; exclude the empty columns with leave_out",
                    code="data/empty",
                )
            if len(self._dropped):
                counts = f"{len(self._dropped):,} of {self._index.rows:,}"
                words = "%s: %s rows have a missing value and are left out (missing: drop)"
                log.warning(words, self._text.path, counts)
        elif self.missing == "mean":
            if self._index is None:
                raise bad_argument(f"{self._who}: missing: mean needs a file, which is read twice, not a stream")
            self._fill = self.means()
        self._text.close()

    def _use(self, plan: CsvLayout, form: Format) -> None:
        self._layout = plan
        unit = "row" if isinstance(self._index, ArrowRecords) else "line"
        self._table = CsvTable(self._text.path, plan, form, refuse_missing=self.missing == "fail", unit=unit)
        if isinstance(self._index, ArrowRecords):
            self._index.use(self._table.used)

    @staticmethod
    def for_inputs(arguments: Mapping[str, Any], columns: Sequence[str] | None) -> dict[str, Any]:
        """Return the arguments for a file to predict, by a model that was trained on a file with `columns`."""
        return {**arguments, "like": columns}

    def read_like(self, trained: "Csv") -> None:
        """Read this file, to validate, by the names of the training data's columns, in their order, and with its
        categories and classes. Raises UsageError for a column that is missing."""
        plan = self._layout.like(self._who, trained._layout, self._has_header, *self._columns_named)
        fills = self.missing == "mean"
        if fills:
            self.missing = dict(zip(trained.inputs, trained.means().tolist(), strict=True))
        if fills or plan != self._layout:
            self._read_by(plan, self._table.format)

    def read_inputs_of(
        self, arguments: Mapping[str, Any], columns: Sequence[str], means: Mapping[str, float] | None
    ) -> None:
        """Read this table, to predict, by the inputs and categories of a model's training data: `arguments` of its
        `Csv`, the `columns` of its file and, if missing values have these, its `means`. Raises UsageError."""
        given = {"inputs": None, "leave_out": (), "categorical": {}, "weight": None, **arguments}
        names = ("target", "inputs", "leave_out", "weight")
        trained = layout(
            self._who, columns, given.get("header", True), categorical=given["categorical"] or {}, target_type="float",
            **{name: given[name] for name in names},
        )  # fmt: skip
        own, plan = self._layout, trained.inputs_in(self._who, self.columns, self._has_header)
        if self.missing == "mean" and means is not None:
            self.missing = means
        self._index = copy.copy(self._index)
        plan = replace(
            plan, targets=own.targets, target_codes=own.target_codes, is_class=own.is_class, weight=own.weight
        )  # fmt: skip
        self._read_by(plan, self._table.format)

    @property
    def has_sample_weights(self) -> bool:
        """True if the field before the target is the weight of each sample."""
        return self._layout.weight is not None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the file's columns; their numbers if there is no header."""
        return self._layout.names

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the numeric inputs, in the order of the columns of x."""
        return tuple(self.columns[place] for place in self._layout.numbers)

    @property
    def categories(self) -> dict[str, int]:
        """The categorical inputs: name -> number of codes, in the order of the columns of `codes`."""
        pairs = zip(self._layout.coded, self._layout.codes, strict=True)
        return {self.columns[place]: codes.size for place, codes in pairs}

    @property
    def vocabularies(self) -> dict[str, list[str]]:
        """The numeric inputs, under `features`; the categorical ones, under `categories`, and the values of each, under
        `category NAME`; the listed values of a target, under `classes`."""
        names = {"features": [*self.inputs], "categories": [*self.categories]}
        coded = zip(self.categories, self._layout.codes, strict=True)
        names |= {f"category {name}": codes.names() for name, codes in coded}
        if self.missing == "mean":
            names["means"] = self.means().tolist()
        codes = self._layout.target_codes
        return names if codes is None or codes.is_hashed else names | {"classes": codes.names()}

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes that a model takes from the table: columns of numbers, values of each category, outputs. With
        `target_type: class` only after `count_classes`."""
        plan, coded = self._layout, self._layout.target_codes
        outputs = coded.size if coded is not None else self._classes if plan.is_class else len(plan.targets)
        inputs = {"features": len(plan.numbers), "categories": [codes.size for codes in plan.codes]}
        return inputs | ({"classes": outputs, "outputs": outputs} if outputs else {})

    @property
    def notes(self) -> list[str]:
        """Sentences on the columns, for the user to read before the start. Parses the first rows."""
        notes = []
        numeric = [self.columns[place] for place in self._table.numeric]
        is_text = isinstance(self._index, RecordPieces)
        if self._has_header and is_text and all(map(is_number, numeric)) and self.columns[:2] != ("0", "1"):
            shown = ", ".join(numeric[:3]) + (", …" if len(numeric) > 3 else "")
            notes.append(
                f"the first line has numbers, {shown}, where columns of numbers have their names: if it is a row of "
                "values, set header: false"
            )
        for place in self._layout.index:
            name = repr(self.columns[place]) if self.columns[place] else "0, without a name,"
            notes.append(f"column {name} is an index that was written with the table: no input")
        # Inputs that tell the first rows apart, unless they measure something: numbers with a fraction, or whole
        # numbers if the target is one, too.
        count = int(self._pieces.records[: AT_ONCE + 1][-1])
        content, line = self._pieces.read(self._text, 0, count)
        words = self._table.words(content, count, line)
        self._text.close()
        is_class = self._layout.is_class or self._layout.target_codes is not None
        measured = [] if is_class else [words[place] for place in self._layout.targets]
        is_whole_target = any(len(texts) > 2 and all(map(WHOLE.fullmatch, texts)) for texts in measured)
        for place in sorted((*self._layout.numbers, *self._layout.coded)):
            if len(words[place]) < max(count, FEWEST):
                continue
            if place in self._layout.coded or (not is_whole_target and all(map(WHOLE.fullmatch, words[place]))):
                name = self.columns[place]
                notes.append(
                    f"column {name!r} identifies rows, its {count:,} values are all different: it says nothing about "
                    f"other rows (leave_out: [{name}])"
                )
        return notes

    def count_classes(self) -> None:
        """Count the classes of `target_type: class`: the largest of the file, and one. Parses the whole file."""
        if self._layout.is_class:
            self._classes = 1 + max(int(records.target.max()) for _, records in self._all())

    def __len__(self) -> int:
        return self._pieces.rows - len(self._dropped)

    def __getitem__(self, position: int) -> tuple[Tensor, ...]:
        """Return one sample. Only for inspection: it scans a whole piece of the file; use `rows` to read a file."""
        size = len(self)
        if not -size <= position < size:
            raise IndexError(f"sample {position} of {size}")
        return tuple(field[0] for field in self.rows(position % size, position % size + 1))

    def rows(self, start: int, stop: int) -> tuple[Tensor, ...]:
        """Return samples [start, stop) as tensors (stop - start, …), in any process that has a copy of this object. The
        file stays open between calls; read a gzipped one in ascending order. Raises DataError as the class says."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"samples {start} to {stop} of {len(self)}")
        if start == stop:
            return tuple(field[:0] for field in self.rows(0, 1))
        first, last = self._record(start), self._record(stop - 1) + 1
        records = self._parsed((first, last, *self._pieces.read(self._text, first, last)))[1]
        return tuple(torch.from_numpy(field) for field in self._finished(first, records))

    def identify(self, column: str) -> None:
        """Name rows by this column, in `inputs_of` and `stream`. Raises UsageError if there is none of that name."""
        if column not in self.columns:
            near = did_you_mean(column, self.columns)
            words = f"{self._text.path}: there is no column {column!r}{near} {shown_names(self.columns)}"
            raise UsageError(words, code="data/csv-columns")
        self._use(replace(self._layout, ids=self.columns.index(column)), self._table.format)

    def inputs_of(self, start: int, stop: int) -> InputRows:
        """Return samples [start, stop) to predict, as `rows` does."""
        first, last = self._record(start), self._record(stop - 1) + 1
        return self._to_predict(*self._parsed((first, last, *self._pieces.read(self._text, first, last))))

    def stream(self) -> Iterator[InputRows]:
        """Yield the samples of a `TextStream`, to predict, once they are there."""
        begin = 0
        for content, count, line in self._text.records(self._start, self._line_of_start):
            records = self._table.parse(content, count, line)
            if self.missing == "drop":
                self._dropped = begin + np.flatnonzero(records.missing())
            yield self._to_predict(begin, records)
            begin += count

    def _to_predict(self, begin: int, records: ParsedRecords) -> InputRows:
        numbers = np.arange(begin, begin + len(records.target))
        kept = np.setdiff1d(numbers, self._dropped, assume_unique=True)
        names: dict[str, Any] = {SAMPLE: kept}
        if self._layout.ids is not None and records.ids is not None:
            names = {self._layout.names[self._layout.ids]: [records.ids[number - begin] for number in kept]}
        *inputs, _ = self._finished(begin, records)
        return InputRows(names, tuple(map(torch.from_numpy, inputs[: len(inputs) - self.has_sample_weights])))

    @property
    def _pieces(self) -> "RecordPieces | ArrowRecords":
        assert self._index is not None, "a stream"
        return self._index

    def parts(self) -> Iterator[tuple[Tensor, ...]]:
        """Yield all samples in their order, some thousand at a time, parsed by threads of this process. Raises
        DataError as the class says."""
        for begin, records in self._all():
            yield tuple(torch.from_numpy(field) for field in self._finished(begin, records))

    def place_of(self, sample: int) -> str:
        """Return the file and the line of a sample, for errors."""
        return self._place_of(self._record(sample))

    def fingerprint(self, cache: DatasetCache | None = None) -> str:
        """Return a hash of the file's content and of every argument that changes a sample. Takes 0.6 s per gigabyte,
        unless the `cache` has seen the file."""
        digest = hashlib.sha256()
        arguments = (VERSION, self._layout, self._table.format, int(self._pieces.begins[0]), int(self._pieces.lines[0]))
        weight = () if self._layout.weight is None else (self._layout.weight,)
        digest.update(repr((*arguments, self.missing, *weight)).encode())
        digest.update(hash_of(self._text, cache).encode())
        return digest.hexdigest()

    def _record(self, sample: int) -> int:
        """Return the record number of a sample, counting the records left out before it."""
        before = self._dropped - np.arange(len(self._dropped))
        return sample + int(np.searchsorted(before, sample, side="right"))

    def _parsed(self, piece: tuple[int, int, Any, int]) -> tuple[int, ParsedRecords]:
        """Return (number of the first record, the records) of a piece: (first record, the one behind the last, its
        content, number of the first line)."""
        first, stop, content, line = piece
        return first, self._table.parse(content, stop - first, line)

    def _all(self) -> Iterator[tuple[int, ParsedRecords]]:
        """Yield (number of the first record, the records) of every piece, parsed by threads."""
        cuts = [*self._pieces.records[:-1:AT_ONCE].tolist(), self._pieces.rows]
        pieces = ((first, stop, *self._pieces.read(self._text, first, stop)) for first, stop in pairwise(cuts))
        yield from in_threads(self._parsed, pieces)
        self._text.close()

    def _finished(self, begin: int, records: ParsedRecords) -> list[np.ndarray]:
        """Return the fields of the samples in these records, with missing values filled in or dropped."""
        numbers, codes, target = records.numbers, records.codes, records.target
        weights = [] if records.weight is None else [records.weight]
        if self._fill is not None:
            self._refuse_missing_target(target, begin)
            if np.isnan(numbers).any():
                numbers = np.where(np.isnan(numbers), self._fill, numbers)
            for i, (place, each) in enumerate(zip(self._layout.coded, self._layout.codes, strict=True)):
                if (lacks := codes[:, i] == MISSING_CODE).any():
                    if (filled := each.filled("")) is None:
                        row = begin + int(lacks.argmax())
                        self._refuse_missing(row, place, "say other: true for what is not listed, or")
                    codes[lacks, i] = filled
        elif len(self._dropped):
            gone = np.searchsorted(self._dropped, [begin, begin + len(target)])
            keep = np.ones(len(target), bool)
            keep[self._dropped[gone[0] : gone[1]] - begin] = False
            numbers, codes, target = numbers[keep], codes[keep], target[keep]
            weights = [weight[keep] for weight in weights]
        fields = [numbers] if self._layout.numbers else []
        return [*fields, *([codes] if self._layout.coded else []), *weights, target]

    def _refuse_missing_target(self, target: np.ndarray, begin: int) -> None:
        lacks = target == MISSING_CODE if target.dtype == np.int64 else np.isnan(target)
        if lacks.any():
            row = lacks.reshape(len(target), -1)
            at = int(row.any(axis=1).argmax())
            place = self._layout.targets[int(row[at].argmax())]
            self._refuse_missing(begin + at, place, "a target is never filled in;")

    def _place_of(self, record: int) -> str:
        line = self._line_of_start + record  # of a stream without empty lines and line ends in values
        if isinstance(self._index, RecordPieces):
            content, line = self._index.read(self._text, record, record + 1)
            line += content[: len(content) - len(content.lstrip(b"\r\n"))].count(b"\n")  # empty lines before it
        return f"{self._text.path}: {self._table.unit} {line}"

    def _refuse_missing(self, record: int, place: int, what: str) -> None:
        raise DataError(
            f"{self._place_of(record)}: {self._layout.label(place)}: the value is missing; {what} leave such rows out "
            "with missing: drop",
            code="data/csv-missing",
        )

    def means(self) -> np.ndarray:
        """Return the means (F,) float32 of the existing values, summed in float64."""
        if self._fill is not None and self.missing == "mean":
            return self._fill
        sums = np.zeros(len(self._layout.numbers))
        counts = np.zeros(len(self._layout.numbers), np.int64)
        for _, records in self._all():
            there = ~np.isnan(records.numbers)
            sums += np.where(there, records.numbers, 0).sum(axis=0, dtype=np.float64)
            counts += there.sum(axis=0)
        if (counts == 0).any():
            place = self._layout.numbers[int((counts == 0).argmax())]
            raise DataError(
                f"{self._text.path}: {self._layout.label(place)} has no values, so it has no mean; "
                "exclude it with leave_out",
                code="data/csv-missing",
            )
        return (sums / counts).astype(np.float32)


# ---- Parquet, and tables in memory ----------------------------------------------------------------------------------

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
        import pyarrow
        from pyarrow import compute

        table = self._part(first, stop)
        columns = {}
        for place in self._used:
            column = table.column(self._schema.names[place]).cast(self._kind(place))
            if place in self._times:  # as words, in the zone of the column, with its distance from UTC
                words = column.cast(self._times[place]).cast(pyarrow.string())
                if column.type.tz is not None:
                    words = compute.replace_substring_regex(words, "Z$", "+0000")
                    words = compute.replace_substring_regex(words, r"([+-]\d\d)(\d\d)$", r"\1:\2")
                column = words
            columns[place] = column
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

        slices = []
        with self._explained():
            while first < stop:
                group = int(np.searchsorted(self._groups, first, side="right")) - 1
                if self._batch is None or first < self._at or self._groups[group] > self._next:  # begin again, there
                    rest = range(group, len(self._groups) - 1)
                    names = [self._schema.names[place] for place in self._used]
                    self._batches = self._opened().iter_batches(ROWS, row_groups=rest, columns=names, use_threads=False)
                    self._next = int(self._groups[group])
                while first >= self._next:
                    self._batch = next(self._batches)
                    self._at, self._next = self._next, self._next + len(self._batch)
                begin, end = first - self._at, min(stop, self._next) - self._at
                slices.append(self._batch.slice(begin, end - begin))
                first = self._at + end
            return pyarrow.Table.from_batches(slices)

    def _whole(self, name: str) -> Any:
        return self._opened().read(columns=[name]).column(name)

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
