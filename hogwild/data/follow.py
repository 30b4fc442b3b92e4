"""A table or libsvm file that others append to, as a stream without an end: see docs/streaming.md.

    FollowedFile ── whole lines ──► the rules of Csv or LibSvm ──► rows, one by one ──► loader
                                          │
                                          └── a new name ──► RUN/names.jsonl, before its row is given away

One reader reads a file. Its place, behind the last row that was given away, is the state of the iterator, which lies in
every checkpoint; so it depends on the lines alone which row is in which batch, and a resume repeats and loses none."""

import json
import logging
import math
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from torch.utils.data import IterableDataset

from hogwild.data.csv.parse import (
    MISSING_CODE,
    Column,
    ColumnNames,
    CsvLayout,
    CsvTable,
    Words,
    layout,
)
from hogwild.data.followed_file import Ended, FollowedFile, KeptInput, Lines, refuse_other_than_file
from hogwild.data.input_rows import given_arguments
from hogwild.data.locate import bad_argument, choice, find_file, places_of, reading, require
from hogwild.data.sentences import sentences_in
from hogwild.data.standard_input import folder_of
from hogwild.data.text_file import CR, HEAD, LF, MARK, not_text, unmarked
from hogwild.data.text_keys import NAMES, Keys, NameFile
from hogwild.data.text_parsing import ENCODINGS, HEADER_BYTES, Beginning, Format, read_header, shown
from hogwild.errors import DataError, NotFoundError
from hogwild.feeds.stream_reader import Columns
from hogwild.feeds.waiting import FIRST_S, LONGEST_S, pause

UNREAD = "\0"  # the target of a file to predict; no column has this name: zero bytes are refused
FIRST_TOLD = 3  # bad lines with a message each; then every tenth, hundredth, …
SIGN_OF_LIFE = 256  # bad lines: a block of nothing else takes seconds
log = logging.getLogger(__name__)


class TextRecords(IterableDataset[tuple[Any, ...]]):
    """Records in text that arrive one after the other, and the columns that a job names: the base of `Follow` and
    `Kafka`. `path`: their place in errors."""

    path: Path
    has_header = True
    run_dir_of_job: str | None = None  # where a loader keeps the names, set by it

    def __init__(
        self,
        who: str,
        target: Column | Sequence[Column] | None,
        inputs: Sequence[Column],
        categorical: Mapping[Column, Any] | None,
        ids: Sequence[Column],
        features: Sequence[Column],
        hash: int | None,
        missing: str | float,
        target_type: Literal["float", "class"],
        weight: Column | None,
        text: str | bool | None,
        longest: int,
        until: Literal["stop", "end"],
        on_gap: str,
        on_bad_line: str,
        form: Format,
    ) -> None:
        self.who = who
        delimiter, decimal = form.delimiter, form.decimal
        choice(who, "until", until, ("stop", "end"))
        choice(who, "on_gap", on_gap, ("fail", "go_on"))
        for name, given in (("inputs", inputs), ("ids", ids), ("features", features)):
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise bad_argument(f"{who}: {name} must be a list of columns, got {given!r}")
        if text is not None:
            targets = [target] if isinstance(target, str | int) else target or ()
            further = [*targets, *inputs, *ids, *features, *(categorical or ()), *([] if weight is None else [weight])]
            _check_text(who, text, longest, further)
            target = []
        elif target is None and (named := [*inputs, *ids, *features, *(categorical or ())]):
            raise bad_argument(f"{who}: column {named[0]!r} is named, but no target; a libsvm file has no columns")
        if not isinstance(target, str | int | None) and not len(target) and not ids and text is None:
            raise bad_argument(f"{who}: target names no column; [] is for events of ids")
        if target is not None and text is None and not (*inputs, *ids, *features):
            raise bad_argument(f"{who}: name the columns to predict from: inputs, ids or features")
        if hash is not None and (type(hash) is not int or hash < 2 or not features):
            raise bad_argument(f"{who}: hash must be a whole number >= 2, the rows that `features` share, got {hash!r}")
        is_number = isinstance(missing, int | float) and not isinstance(missing, bool)
        if missing not in ("fail", "drop") and not (is_number and math.isfinite(np.float32(missing))):
            raise bad_argument(f"{who}: missing must be fail, drop or a finite number, got {missing!r}")
        if not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise bad_argument(f'{who}: delimiter must be one ASCII character, such as "," or "\\t", got {delimiter!r}')
        if decimal not in (".", ",") or decimal == delimiter:
            raise bad_argument(f'{who}: decimal must be "." or ",", and not the delimiter, got {decimal!r}')
        self.target = [] if target == UNREAD else target
        self.constant = float(target != UNREAD)  # the target of all lines where no column has it
        self.inputs, self.categorical = [*inputs], dict(categorical or {})
        self.ids, self.features, self.hash, self.weight = [*ids], [*features], hash, weight
        self.text, self.longest, self.missing, self.target_type = text, longest, missing, target_type
        self.until, self.on_gap, self.on_bad_line = until, on_gap, on_bad_line
        self.form = form

    @property
    def has_sample_weights(self) -> bool:
        """True if the field before the target is the weight of each sample."""
        return self.weight is not None

    @property
    def is_endless(self) -> bool:
        return self.until == "stop"

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes that a model takes from the arguments."""
        if self.hash is not None:
            return {"features": self.hash, "fields": len(self.features)}
        return {"features": len([name for name in self.inputs if name not in self.categorical])} if self.inputs else {}


class Follow(TextRecords):
    """Rows of a CSV, JSONL (one JSON object per line) or libsvm file that others append to, from its beginning on and
    then as they come. What it is is seen from its first line; it must be UTF-8 text, not packed.

    A record of a table has, in this order, each only if it is asked for:

        x         (F,) float32    the columns in `inputs`, without the categorical ones
        codes     (C,) int64      the categorical ones, as in `Csv`
        id        () int64        for each column in `ids`: a whole number from 0 on is itself, any other text a
                                  negative number, from a stable 63-bit hash: for `NamedEmbedding`
        features  (K,) int64      for the columns in `features`, the same of `site=news`, as `Clicks` names features, or
                                  just of `site` where the value is missing; with `hash: N` numbers below N
        weight    () float32      as in `Csv`
        target    (T,) float32    as in `Csv`; () float32 with `ids` or `features`, as in `Ratings` and `Clicks`;
                                  () int64 for a class

    A record of texts (`text`) has the words of one, separated by white space, or the next `longest` of a long one; a
    text without a word has none:

        words     (longest,) int64   the key of each, as of an id, but 7.0 and 7 are two words; -1 behind the last one
        target    () float32      1

    A record of a libsvm file has indices (n,) int64, values (n,) float32 and label () float32; `data.collate:
    {class_path: hogwild.data.sparse_rows}` makes them batches.

    A line is read once its line end is there. A rotated (renamed) file is read to its end before the next one; `on_gap`
    says what happens where lines may be missing. Each run reads a file by one process, whose place is kept in every
    checkpoint.

    Needs pyarrow for CSV and texts, numba for libsvm. Raises NotFoundError and UsageError; the iterator DataError with
    file, line, column, value and rule.

    Arguments:
        path: file; if it is not there yet, it is waited for. "-": standard input of `hogwild train`, kept in RUN/stdin,
            whose end is the end of the stream; its last line needs no line end.
        target: column to predict, or a list of columns; [] with `ids` where each line is an event, such as a click: its
            target is 1; null for libsvm, and for texts.
        inputs: columns of numbers, and of those in `categorical`.
        categorical: as in Csv.
        ids: columns of names, each for a table of its own.
        features: columns that have one table together, as in Clicks.
        hash: number of rows of that table that the features share by a stable hash; null: a key of 63 bits for each.
        missing: fail, drop (leave the row out), or a number for missing inputs. A target or an id is never filled in.
        target_type: float, or class: whole numbers from 0 on.
        weight: column of the weights of rows.
        text: true: each line is a text; or the column of the texts in a CSV file, their key in JSON objects. For
            `NamedSkipGram`.
        longest: words of a record of texts.
        until: "stop": follow the file until the job is stopped; "end": stop at the end of the file.
        on_gap: fail, or go_on with a warning where lines may be missing: the file was truncated, overwritten, removed
            or packed before it was read to its end, or its last line has no end.
        on_bad_line: fail, or skip lines that cannot be used, with warnings.
        header: of a CSV file, whether the first line has the names of the columns.
        delimiter: one character (tab: "\\t").
        decimal: "." or ",".
        encoding: of a CSV file: utf-8, latin-1 or cp1252."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        target: Column | Sequence[Column] | None = None,
        inputs: Sequence[Column] = (),
        categorical: Mapping[Column, Any] | None = None,
        ids: Sequence[Column] = (),
        features: Sequence[Column] = (),
        hash: int | None = None,
        missing: str | float = "fail",
        target_type: Literal["float", "class"] = "float",
        weight: Column | None = None,
        text: str | bool | None = None,
        longest: int = 64,
        until: Literal["stop", "end"] = "stop",
        on_gap: Literal["fail", "go_on"] = "fail",
        on_bad_line: Literal["fail", "skip"] = "fail",
        header: bool = True,
        delimiter: str = ",",
        decimal: str = ".",
        encoding: str = "utf-8",
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        self.init_args = given_arguments(self, locals())
        who = f"Follow(path={str(path)!r})"
        choice(who, "on_bad_line", on_bad_line, ("fail", "skip"))
        choice(who, "encoding", encoding, ENCODINGS)
        super().__init__(
            who, target, inputs, categorical, ids, features, hash, missing, target_type, weight, text, longest, until,
            on_gap, on_bad_line, Format(delimiter, decimal, encoding),
        )  # fmt: skip
        self.has_header = header
        self.is_standard_input = str(path) == "-"
        self.path = Path("standard input") if self.is_standard_input else _place_of(who, path, root, until)

    @staticmethod
    def for_inputs(arguments: Mapping[str, Any], _: Sequence[str] | None) -> dict[str, Any]:
        """Return the arguments for a file to predict: it ends, and needs neither target nor weights."""
        if arguments.get("target") is None:  # libsvm, or texts
            return {**arguments, "until": "end"}
        inputs = arguments.get("inputs", ())
        categorical = {name: one for name, one in (arguments.get("categorical") or {}).items() if name in inputs}
        unread: dict[str, Any] = {"target": UNREAD, "target_type": "float", "weight": None}
        return {**arguments, **unread, "categorical": categorical, "until": "end"}

    def __iter__(self) -> "Follower":
        if self.is_standard_input:
            file: FollowedFile = KeptInput(folder_of(self.run_dir_of_job))
        else:
            file = FollowedFile(self.path, self.until, self.on_gap)
        return Follower(file, lambda names: reader_of(self, file.beginning(HEAD), names), self.run_dir_of_job, NAMES)


def _check_text(who: str, text: Any, longest: Any, further: Sequence[Any]) -> None:
    """Raise UsageError for arguments that texts cannot have."""
    if text is not True and not (isinstance(text, str) and text):
        raise bad_argument(f"{who}: text must be true, or a column or key of the texts, got {text!r}")
    if further:
        raise bad_argument(f"{who}: column {further[0]!r} is named, but records of texts have words alone")
    if type(longest) is not int or longest < 1:
        raise bad_argument(f"{who}: longest must be a whole number >= 1, got {longest!r}")
    require("pyarrow", f"{who.partition('(')[0]} of texts", "pyarrow", "csv")


def sparse_rows(records: Sequence[tuple[Any, Any, Any]]) -> tuple[Any, ...]:
    """Make a batch of (indices, values, label): indices (nnz,), offsets (B,), values (nnz,), target (B,), as models of
    sparse rows take them. A `data.collate` for `Follow` on a libsvm file."""
    indices, values, labels = zip(*records, strict=True)
    offsets = np.cumsum([0, *map(len, indices[:-1])], dtype=np.int64)
    return np.concatenate(indices), offsets, np.concatenate(values), np.array(labels, np.float32)


def _place_of(who: str, path: str | os.PathLike[str], root: str | os.PathLike[str] | None, until: str) -> Path:
    """Return the absolute path of the file, also of one that is not there yet."""
    given = Path(os.path.expanduser(path))
    places = [(folder / given).absolute() for folder in places_of(path, root)]
    for place in places:
        if place.exists():
            refuse_other_than_file(place, os.stat(place).st_mode)
            with reading(place), open(place, "rb"):
                return place
    if until == "end":
        return find_file(who, path, root, "It is your own file: a table or libsvm rows.").absolute()
    for place in places:
        if place.parent.is_dir():
            log.warning("%s: is not there yet; it is followed as soon as it is", place)
            return place
    raise NotFoundError(
        f"{who}: there is neither the file nor its folder: {', '.join(map(str, places))}", code="data/not-found"
    )


# ---- the iterator ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LineRows:
    """Rows of some lines: their fields, n each; and for each row the byte of the content where its line ends, and the
    number of lines up to that, (n,) int64. A line may have several rows."""

    fields: Sequence[Any]
    ends: np.ndarray
    counts: np.ndarray


class FollowedText(Protocol):
    """A source of a `Follower`: `FollowedFile`, or a followed topic."""

    @property
    def place(self) -> Any: ...
    def read(self) -> Any:
        """Return what comes next, None if there is nothing yet, or `Ended`. Raises DataError."""

    def go_to(self, place: Any) -> None: ...
    def place_of(self, state: Mapping[str, Any]) -> Any: ...


class Follower(Iterator[tuple[Any, ...]]):
    """The rows of a source, one by one. Waits for lines; a loader that is told to leave meanwhile ends it. `reader`:
    returns the reader of the first lines, once they are there; `run`, `names`: the run directory, and the file in it
    for the names."""

    def __init__(
        self, source: FollowedText, reader: "Callable[[NameFile | None], Any]", run: str | None, names: str
    ) -> None:
        self._source, self._reader_of = source, reader
        self._names_of_run = Path(run) / names if run else None
        self._reader: Any = None
        self._names: NameFile | None = None
        self._lines: Any = None
        self._rows: LineRows
        self._records: Iterator[tuple[Any, ...]] = iter(())
        self._given = 0  # rows of `_rows`
        self._again = 0  # rows behind the place of the state that were given away: of a line with several

    def __next__(self) -> tuple[Any, ...]:
        while True:
            if (record := next(self._records, None)) is not None:
                self._given += 1
                return record
            self._refill()

    def next_columns(self, most: int) -> Columns | None:
        """Return the next rows, at most `most`, for a loader; None if they are not arrays. Waits, and ends, as
        `__next__`."""
        while self._lines is None or self._given == len(self._rows.ends):
            self._refill()
        fields, begin = self._rows.fields, self._given
        if not all(isinstance(field, np.ndarray) for field in fields):
            return None
        self._given = min(begin + most, len(self._rows.ends))
        self._records = zip(*(field[self._given :] for field in fields), strict=True)
        return Columns(tuple(field[begin : self._given] for field in fields))

    def _refill(self) -> None:
        """Read the next lines, once they are there. Raises StopIteration, DataError."""
        waits_s = FIRST_S
        while (found := self._source.read()) is None:
            pause(waits_s)
            waits_s = min(2 * waits_s, LONGEST_S)
        if found is Ended:
            raise StopIteration
        if self._reader is None:
            if not found.content.strip():
                return  # perhaps a header comes
            self._names = NameFile(self._names_of_run) if self._names_of_run else None
            self._reader = self._reader_of(self._names)
        self._rows = self._reader.rows(found, self._source)
        if self._names is not None:
            self._names.flush()
        self._lines, self._given = found, min(self._again, len(self._rows.ends))
        if self._given:
            self._again = 0
        self._records = zip(*(field[self._given :] for field in self._rows.fields), strict=True)

    def note_given_rows(self) -> None:
        """Note that all rows given away so far are in the ring, or trained. Raises RunError."""
        if self._names is not None:
            self._names.leave_out()

    def state_dict(self) -> dict[str, Any]:
        again, given = self._again, self._given
        if self._lines is not None and given:
            ends = self._rows.ends
            if given < len(ends) and ends[given] == ends[given - 1]:  # within a line
                again = given - int(np.searchsorted(ends, ends[given]))
        if self._lines is None:
            place = self._source.place
        elif given == again or not given:
            place = self._lines.place(0, 0)
        else:
            last = given - again - 1
            place = self._lines.place(int(self._rows.ends[last]), int(self._rows.counts[last]))
        return {**place.state(), "again": again} if again else dict(place.state())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._lines, self._records, self._given = None, iter(()), 0
        self._again = int(state.get("again", 0))
        place = {name: value for name, value in state.items() if name != "again"}
        self._source.go_to(self._source.place_of(place))


def reader_of(
    of: TextRecords, beginning: bytes, names: "NameFile | None"
) -> "TableReader | LibSvmReader | SentenceReader":
    """Return the reader for a file with this beginning. Raises UsageError."""
    is_json = beginning.removeprefix(MARK).lstrip().startswith(b"{")
    if of.text is True or (of.text is not None and is_json):
        return SentenceReader(of, names)
    if of.target is None:
        return LibSvmReader(of)
    if is_json:
        return JsonReader(of, names)
    require("pyarrow.csv", "hogwild.data.Follow of a CSV file", "pyarrow", "csv")
    return TableReader(of, names) if of.text is None else TextColumnReader(of, names)


# ---- readers: from lines to rows ------------------------------------------------------------------------------------

ParsedLines: TypeAlias = tuple[Sequence[Any], np.ndarray, np.ndarray]  # as in `LineRows`
NO_LINES: ParsedLines = [[]], np.empty(0, np.int64), np.empty(0, np.int64)


class LinesReader(ABC):
    """Reads rows from whole lines, and leaves out lines that cannot be used, if asked to."""

    def __init__(self, of: TextRecords) -> None:
        self.of = of
        self.bad = BadRecords("on_bad_line")

    def rows(self, lines: Lines, file: FollowedFile) -> LineRows:
        """Return the rows of these lines. Raises DataError."""
        begin, line = self.begin(lines, file)
        content = lines.content[begin:]
        try:
            fields, ends, counts = self.parsed(content, lines.line + line)
        except DataError as error:
            if self.of.on_bad_line != "skip":
                raise DataError(f"{error} (on_bad_line: skip leaves such lines out)", code=error.code) from error
            fields, ends, counts = _joined_lines(self._usable(content, lines.line + line, error))
        return LineRows(fields, begin + ends, line + counts)

    def begin(self, lines: Lines, file: FollowedFile) -> tuple[int, int]:
        """Return the byte where the first row begins, and the lines before it."""
        return 0, 0

    @abstractmethod
    def parsed(self, content: bytes, line: int) -> ParsedLines:
        """Return the fields, ends and counts of whole lines with `line` lines before them. Raises DataError."""

    def _usable(self, content: bytes, line: int, error: DataError) -> list[ParsedLines]:
        """Return the parts that can be used of lines that cannot be parsed together, for `error`."""
        ends = _ends_of(content)
        if len(ends) == 1:
            self.bad.leave_out(error)
            return []
        half = len(ends) // 2
        middle = int(ends[half - 1])
        found: list[ParsedLines] = []
        for begin, stop, before in ((0, middle, 0), (middle, len(content), half)):
            try:
                parts = [self.parsed(content[begin:stop], line + before)]
            except DataError as why:
                parts = self._usable(content[begin:stop], line + before, why)
            found += [(fields, begin + of_rows, before + counts) for fields, of_rows, counts in parts if len(counts)]
        return found

    def _refuse_zeros(self, content: bytes, line: int) -> None:
        if (at := content.find(b"\0")) >= 0:
            number = line + content.count(b"\n", 0, at) + 1
            raise DataError(
                f"{self.of.path}: line {number:,}: has a zero byte: such bytes fill what a crash of the machine, or a "
                "program that truncated the file, has lost",
                code="data/bad-line",
            )


class BadRecords:
    """The number of records that were left out, as the argument `option` asked. Tells fewer and fewer of them."""

    def __init__(self, option: str) -> None:
        self._option, self._many = option, 0

    def leave_out(self, error: DataError) -> None:
        self._many = many = self._many + 1
        if many <= FIRST_TOLD or set(str(many)[1:]) == {"0"}:
            log.warning("%s: left out (%s: skip), %s so far", error, self._option, f"{many:,}")
        if many % SIGN_OF_LIFE == 0:
            pause(0)


def joined(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Return the fields of all rows, from those of parts."""
    if not parts:
        return [[]]
    columns = zip(*parts, strict=True)
    return [np.concatenate(one) if isinstance(one[0], np.ndarray) else [*chain(*one)] for one in columns]


def _joined_lines(parts: Sequence[ParsedLines]) -> ParsedLines:
    if not parts:
        return NO_LINES
    fields, ends, counts = zip(*parts, strict=True)
    return joined(fields), np.concatenate(ends), np.concatenate(counts)


def _lines_of(content: bytes) -> list[bytes]:
    lines = content.split(b"\n")
    rest = lines.pop()
    return [line + b"\n" for line in lines] + ([rest] if rest else [])


def _ends_of(content: bytes) -> np.ndarray:
    """Return the byte behind each line, (n,) int64."""
    ends = np.flatnonzero(np.frombuffer(content, np.uint8) == LF) + 1
    return ends if content.endswith(b"\n") or not content else np.append(ends, len(content))


def _filled_lines(content: bytes, ends: np.ndarray) -> np.ndarray:
    """Return the numbers, from 0 on, of the lines that are not empty."""
    begins = np.append(0, ends[:-1])[: len(ends)]
    first = np.frombuffer(content, np.uint8)[begins]
    is_filled = first != LF
    for number in np.flatnonzero(first == CR).tolist():
        is_filled[number] = bool(content[begins[number] : ends[number]].strip(b"\r\n"))
    return np.flatnonzero(is_filled)


class TableReader(LinesReader):
    """Rows of a CSV file, by the rules of `Csv`."""

    def __init__(self, of: TextRecords, names: "NameFile | None") -> None:
        super().__init__(of)
        self._names = names
        self._table: CsvTable
        self._begins: tuple[Any, int, int] = (None, 0, 0)  # file, and byte and line of its first row
        self._header = b""
        self._header_again: re.Pattern[bytes]

    def begin(self, lines: Lines, file: FollowedFile) -> tuple[int, int]:
        if self._begins[0] != lines.identity:
            form, head = self.of.form, Beginning(self.of.path, file.beginning(HEADER_BYTES))
            names, start, line = read_header(head, self.of.has_header, form.delimiter, form.encoding, 0)
            self._begins = (lines.identity, start, line)
            self.name_columns(names)
            whole = head.content[:start].rstrip(b"\r\n")
            if self.of.has_header:
                self._header = whole[whole.rfind(b"\n") + 1 :].removeprefix(MARK)
                self._header_again = re.compile(rb"^\r*%s\r*$" % re.escape(self._header), re.MULTILINE)
        _, start, line = self._begins
        return max(0, start - lines.begin), max(0, line - 1 - lines.line)

    def name_columns(self, names: Sequence[str]) -> None:
        """Find the columns that are asked for among these. Raises UsageError."""
        self._table = self._table_of(names, CsvTable)

    def _table_of(self, names: Sequence[str], kind: type[CsvTable]) -> CsvTable:
        """Return the table of the columns that are asked for. Raises UsageError for one that is not there."""
        of = self.of
        look_up = ColumnNames(of.who, tuple(names), of.has_header)
        inputs, ids, features = (
            look_up.places(name, given) if given else []
            for name, given in (("inputs", of.inputs), ("ids", of.ids), ("features", of.features))
        )
        assert of.target is not None
        target = of.target or None if isinstance(of.target, list | tuple) else of.target
        chosen = [*dict.fromkeys((*inputs, *ids, *features))]
        plan = layout(of.who, names, of.has_header, target, chosen, (), of.categorical, of.target_type, of.weight)
        if extra := [place for place in plan.coded if place not in inputs]:
            raise bad_argument(f"{of.who}: {plan.label(extra[0])} is categorical, but not among inputs")
        keys = [Keys(0, texts=self._names) for _ in ids]
        keys += [Keys(of.hash or 0, column=names[one], is_feature=True, texts=self._names) for one in features]
        plan = replace(
            plan, numbers=tuple(place for place in plan.numbers if place in inputs),
            coded=(*plan.coded, *ids, *features), codes=(*plan.codes, *keys),
        )  # fmt: skip
        return kind(of.path, plan, of.form, refuse_missing=of.missing == "fail")

    def parsed(self, content: bytes, line: int) -> ParsedLines:
        self._refuse_zeros(content, line)
        # A search for bytes is a hundred times as fast as one for a pattern.
        if self._header and self._header in content and (again := self._header_again.search(content)) is not None:
            number = line + content.count(b"\n", 0, again.start()) + 1
            raise DataError(f"{self.of.path}: line {number:,}: is the header again", code="data/bad-line")
        ends = _ends_of(content)
        places = _filled_lines(content, ends)
        if not len(places):
            return NO_LINES
        records = self._table.parse(unmarked(content), len(places), line + 1)
        return self._finished(records, ends, places, line)

    def _finished(self, records: Any, ends: np.ndarray, places: np.ndarray, line: int) -> ParsedLines:
        """Return the fields, with missing values filled in or their rows left out."""
        of, plan = self.of, self._table.layout
        numbers, codes, target, weight = records.numbers, records.codes, records.target, records.weight
        keep = np.ones(len(places), bool)
        own = len(plan.codes) - len(of.ids) - len(of.features)
        named = codes[:, own : own + len(of.ids)]
        if not plan.targets:
            target = np.full((len(places), 1), of.constant, np.float32)
        lacks = np.isnan(target).any(axis=1) if target.dtype == np.float32 else target == MISSING_CODE
        lacks = lacks | (named == MISSING_CODE).any(axis=1)
        if of.missing == "drop":
            keep = ~(lacks | np.isnan(numbers).any(axis=1) | (codes[:, :own] == MISSING_CODE).any(axis=1))
        elif lacks.any():
            row = int(lacks.argmax())
            raise DataError(
                f"{of.path}: line {line + 1 + places[row]:,}: the target or an id is missing; it is never filled in "
                "(missing: drop leaves such rows out)",
                code="data/csv-missing",
            )
        elif not isinstance(of.missing, str):
            numbers = np.where(np.isnan(numbers), np.float32(of.missing), numbers)
            for place, each in enumerate(plan.codes[:own]):
                if (empty := codes[:, place] == MISSING_CODE).any():
                    if (filled := each.filled("")) is None:
                        row = int(empty.argmax())
                        raise DataError(
                            f"{of.path}: line {line + 1 + places[row]:,}: {plan.label(plan.coded[place])}: the "
                            "value is missing; say other: true for what is not listed",
                            code="data/csv-missing",
                        )
                    codes[empty, place] = filled
        fields: list[Any] = [numbers] if plan.numbers else []
        fields += [codes[:, :own]] if own else []
        fields += [*named.T]
        fields += [codes[:, own + len(of.ids) :]] if of.features else []
        fields += [] if weight is None else [weight]
        is_flat = bool(of.ids or of.features) and target.ndim == 2 and target.shape[1] == 1
        fields.append(target[:, 0] if is_flat else target)
        if not keep.all():
            fields, places = [field[keep] for field in fields], places[keep]
        return [np.ascontiguousarray(field) for field in fields], ends[places], places + 1


class TextColumnReader(TableReader):
    """Words of the texts in a column of a CSV file. An empty value is a text without a word."""

    def _table_of(self, names: Sequence[str], kind: type[CsvTable]) -> CsvTable:
        of = self.of
        place = ColumnNames(of.who, tuple(names), of.has_header).place("text", of.text)
        plan = CsvLayout(tuple(names), (), (), (), (), None, is_class=False, ids=place)
        return kind(of.path, plan, of.form, refuse_missing=False)

    def _finished(self, records: Any, ends: np.ndarray, places: np.ndarray, line: int) -> ParsedLines:
        return _words_of(records.ids, self.of.longest, self._names, ends, places)


class JsonTable(CsvTable):
    """Parses JSON objects, given with the number of the line of each, by the rules of a table."""

    def _readings(self, content: Any, count: int, line: int) -> Iterator[tuple[Any, Sequence[int]]]:
        objects, places = content
        numbers, columns = {*self.numeric}, dict[int, Any]()
        for place in sorted(self.used):
            values = [one.get(self.layout.names[place]) for one in objects]
            if place in numbers and {*map(type, values)} <= {int, float, bool, type(None)}:
                try:
                    columns[place] = np.array([math.nan if value is None else value for value in values], np.float64)
                    continue
                except OverflowError:  # the rule names the value
                    pass
            for value, number in zip(values, places, strict=True):
                if isinstance(value, dict | list) or (isinstance(value, str) and not _is_text(value)):
                    words = "is no text" if isinstance(value, str) else f"is a {type(value).__name__}"
                    raise self._error(
                        number, f"{self.layout.label(place)}: {words}: {str(value)[:60]!r}", "data/bad-line"
                    )
            columns[place] = Words.of(["" if value is None else str(value) for value in values])
        yield columns, places


class JsonReader(TableReader):
    """Rows of a file with a JSON object per line. Keys that no argument names are left out."""

    def begin(self, lines: Lines, file: FollowedFile) -> tuple[int, int]:
        if self._begins[0] is None:
            self._begins = ((0, 0), 0, 1)
            self.name_columns()
        return 0, 0

    def name_columns(self, names: Sequence[str] = ()) -> None:
        """Take the columns from the arguments. Raises UsageError."""
        of = self.of
        target = of.target if isinstance(of.target, list | tuple) else [of.target]
        weight = [] if of.weight is None else [of.weight]
        columns: list[Any] = [*target, *of.inputs, *of.ids, *of.features, *weight]
        if odd := [name for name in columns if not isinstance(name, str)]:
            raise bad_argument(f"{of.who}: columns of JSON objects are named by their keys, got {odd[0]!r}")
        self._table = self._table_of([*dict.fromkeys(columns)], JsonTable)

    def parsed(self, content: bytes, line: int) -> ParsedLines:
        self._refuse_zeros(content, line)
        objects, places = _objects_in(self.of.path, content, line)
        if not places:
            return NO_LINES
        records = self._table.parse((objects, [line + 1 + place for place in places]), len(places), line + 1)
        return self._finished(records, _ends_of(content), np.array(places, np.int64), line)


def _objects_in(path: Path, content: bytes, line: int) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the JSON objects in lines with `line` lines before them, and the number of the line of each, from 0 on.
    Raises DataError."""
    objects, places = list[dict[str, Any]](), list[int]()
    for number, one in enumerate(_lines_of(content)):
        if not one.strip():
            continue
        where = f"{path}: line {line + number + 1:,}"
        try:
            found = json.loads(one)
        except UnicodeDecodeError as error:
            raise not_text(where, one[error.start : error.end], None) from None
        except (ValueError, RecursionError) as error:
            raise DataError(f"{where}: is not JSON: {error}: {shown(one)!r}", code="data/bad-line") from None
        if type(found) is not dict:
            raise DataError(f"{where}: is not a JSON object: {shown(one)!r}", code="data/bad-line")
        objects.append(found)
        places.append(number)
    return objects, places


class SentenceReader(LinesReader):
    """Words of texts: of lines, or of a key of JSON objects."""

    def __init__(self, of: TextRecords, names: "NameFile | None") -> None:
        super().__init__(of)
        self._names = names

    def parsed(self, content: bytes, line: int) -> ParsedLines:
        self._refuse_zeros(content, line)
        ends = _ends_of(content)
        if self.of.text is not True:
            texts, places = self._of_objects(content, line)
            return _words_of(texts, self.of.longest, self._names, ends, np.array(places, np.int64))
        lines = unmarked(content)
        try:
            return _records_of(lines, self.of.longest, self._names, ends, np.arange(len(ends)))
        except UnicodeDecodeError as error:
            where = f"{self.of.path}: line {line + 1 + lines.count(LF.to_bytes(), 0, error.start):,}"
            raise not_text(where, lines[error.start : error.end], None) from None

    def _of_objects(self, content: bytes, line: int) -> tuple[list[str], list[int]]:
        """Return the texts of JSON objects, and the number of the line of each."""
        key, texts, places = str(self.of.text), list[str](), list[int]()
        for found, place in zip(*_objects_in(self.of.path, content, line), strict=True):
            where, text = f"{self.of.path}: line {line + 1 + place:,}: {key!r}", found.get(key)
            if text is None:
                if self.of.missing != "drop":
                    words = "the text is missing (missing: drop leaves such rows out)"
                    raise DataError(f"{where}: {words}", code="data/csv-missing")
                continue
            if not isinstance(text, str) or not _is_text(text):
                words = "is no text" if isinstance(text, str) else f"is a {type(text).__name__}, not a text"
                raise DataError(f"{where}: {words}: {str(text)[:60]!r}", code="data/bad-line")
            texts.append(text)
            places.append(place)
        return texts, places


def _words_of(
    texts: Sequence[str], longest: int, names: "NameFile | None", ends: np.ndarray, places: np.ndarray
) -> ParsedLines:
    """Return the records of texts, whose lines have the numbers `places` (n,)."""
    content = "".join(text.replace("\n", " ") + "\n" for text in texts).encode()
    return _records_of(content, longest, names, ends, places)


def _records_of(
    texts: bytes, longest: int, names: "NameFile | None", ends: np.ndarray, places: np.ndarray
) -> ParsedLines:
    """Return the records of texts, a line each. Raises UnicodeDecodeError."""
    words, lines = sentences_in(texts, longest, names)
    of_rows = places[lines]
    return [words, np.ones(len(words), np.float32)], ends[of_rows], of_rows + 1


class LibSvmReader(LinesReader):
    """Rows of a libsvm file: indices as they are written."""

    def __init__(self, of: TextRecords) -> None:
        super().__init__(of)
        from hogwild.data.libsvm import RowLines

        self._rows_of = RowLines(of.path)

    def parsed(self, content: bytes, line: int) -> ParsedLines:
        self._refuse_zeros(content, line)
        fields, places = self._rows_of(content, line)
        numbers = np.array(places, np.int64)
        return fields, _ends_of(content)[numbers], numbers + 1


def _is_text(value: str) -> bool:
    """Return whether it has no half of a surrogate pair, as the JSON escape \\ud800."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False
