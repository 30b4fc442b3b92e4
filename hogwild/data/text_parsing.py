"""Text files of millions of lines, parsed into packed arrays: in pieces of complete lines, by threads of this process.

    dataset.pack(reader, what, like, on_bad_line)
       Parsing ── reader.pack ──► from the cache, mapped; or parse(tell): pieces ──► threads ──► arrays, in their order

Pieces are read, not mapped: a file that is truncated meanwhile is then an error, not a signal. pyarrow and compiled
kernels work without the GIL.

Tables of every class become columns here (`Format`, `TableText`). pyarrow reads a piece as a whole, or refuses it if
anything is unusual; then it is read record by record, to name the one that cannot be used."""

import codecs
import contextlib
import csv
import hashlib
import io
import json
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from hogwild import host
from hogwild.data.cache import DatasetCache
from hogwild.data.ids import WHITE
from hogwild.data.text_file import (
    MARK,
    TextFile,
    TextStream,
    Wanted,
    not_text,
    quotes_are_whole,
    unmarked,
    whole_records,
)
from hogwild.errors import DataError, MemoryShortError, shown_name
from hogwild.feeds.packed import Packed
from hogwild.formatting import counted, size

LOOKED_AT = 1 << 16  # bytes in which the form of the lines is found
SHOWN = 60  # characters of a line
ENCODINGS = ("utf-8", "latin-1", "cp1252")  # of tables
INPUT = "input"  # the name in errors of rows to predict, which stay in the order of the file
AHEAD = 3  # pieces per thread that are read and parsed before their turn
BEFORE_FIELD, BEHIND_FIELD = rb"(?:^|(?<=[,;|:\t\n\"]))", rb"(?=[,;|:\t\r\n\"]|$)"
Tell = Callable[[int, int], object]  # bytes of the file that are read, its size
_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Parsed:
    """Result of parsing a file. `left_out`: the number of lines, features, ratings, … left out, by kind; `notes` tell
    it to a person. Both are cached with the data."""

    packed: Packed
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class Piece:
    """A parsed piece of a file: its rows as arrays, and its numbers of lines, rows and bad lines. `bad`: the first line
    that does not parse, counted within the piece from 0 on, and what is wrong with it."""

    arrays: tuple[Any, ...]
    lines: int
    rows: int
    bad_lines: int = 0
    bad: tuple[int, str] = (0, "")
    line: int = 0  # the number of its first line in the file
    places: Sequence[int] = ()  # of a table: the line of each row, counted within the piece from 0 on


class Parsing(ABC):
    """The parsing of a file into packed arrays: the argument of a `Reader`'s `pack`. `source`: the data set; `what`:
    its name in errors; `like`: the training data, if any; `on_bad_line`: fail or skip."""

    kind: ClassVar[str]
    version: ClassVar[int] = 1  # of the output for a file
    options: ClassVar[tuple[str, ...]]  # attributes of `source` that the output depends on
    rules: ClassVar[Mapping[int, str]] = {}  # by their number; TOKEN is replaced by the text in the file
    wanted: ClassVar[Wanted] = "table"
    has_quotes = False  # around values, which may have line ends
    source: Any

    def __init__(self, source: Any, what: str, like: Packed | None, on_bad_line: str, *, text: Any = None) -> None:
        """`text`: what stands for the file in a subclass that has its content."""
        self.source, self.what, self.like, self.on_bad_line = source, what, like, on_bad_line
        self.text = text or TextFile(source.path, self.wanted)
        self.left_out: dict[str, int] = {}
        self.notes: list[str] = []
        self.compiling_s = 0.0  # or loading compiled code

    def key(self, cache: DatasetCache | None = None) -> str:
        """Return a hash (hexadecimal) of all that the result depends on: content, options, and the training data's
        sizes and names. Takes 1 s per gigabyte, unless the `cache` has seen the file."""
        digest, content = hashlib.sha256(), hash_of(self.text, cache)
        options = (*(getattr(self.source, name) for name in self.options), self.on_bad_line)
        for part in (self.kind, self.version, options, content, *([INPUT] if self.what == INPUT else [])):
            digest.update(repr(part).encode())
        if self.like is None:
            digest.update(b"None")
        else:
            digest.update(json.dumps(dict(self.like.spec.sizes), sort_keys=True).encode())
            for name, values in names_as_bytes(self.like.names):
                digest.update(name.encode() + values)
        return digest.hexdigest()

    @abstractmethod
    def parse(self, tell: Tell) -> Parsed:
        """Parse the file; `tell` gets the progress. Raises DataError, MemoryShortError."""

    # ---- steps of `parse`

    def begin(self) -> int:
        """Return the offset of the first line, behind a byte order mark. Raises DataError for an empty file."""
        head = self.text.read_at(0, len(MARK) + 1)
        begin = len(MARK) if head.startswith(MARK) else 0
        if len(head) == begin:
            raise DataError(f"{self.source.path}: the file is empty; there is nothing to train on", code="data/empty")
        return begin

    def first_lines(self, begin: int) -> list[bytes]:
        """Return the whole lines of the text's first 64 KiB from byte `begin` on, with their ends."""
        content = self.text.read_at(begin, LOOKED_AT)
        lines = re.findall(rb"[^\n]*\n|[^\n]+", content)
        return lines[:-1] if len(content) == LOOKED_AT and len(lines) > 1 else lines

    def pieces(self, parse: Callable[[bytes], Piece], tell: Tell, begin: int, line: int = 1) -> list[Piece]:
        """Parse the text from byte `begin` on, where line `line` starts, by threads. Raises DataError for the first bad
        line, unless they are skipped, and MemoryShortError."""
        pieces: list[Piece] = []
        nbytes = 0
        for piece in in_threads(parse, self.contents(begin)):
            if piece.bad[1] and self.on_bad_line != "skip":
                raise DataError(
                    f"{self.place(line + piece.bad[0])}: {piece.bad[1]} (data.on_bad_line: skip leaves such lines out "
                    "and counts them)",
                    code="data/bad-line",
                )
            piece.line = line
            line += piece.lines
            pieces.append(piece)
            nbytes += sum(array.nbytes for array in piece.arrays)
            self.check_memory(nbytes)
            tell(*self.text.progress)
        self.text.close()
        return pieces

    def contents(self, begin: int) -> Iterator[bytes]:
        """Yield the pieces of the text, in UTF-8 without marks. Replaced by tests."""
        line, pieces = 1, self.text.lines(begin)
        for content in whole_records(pieces) if self.has_quotes else pieces:
            try:
                text = content if self.encoding == "utf-8" else content.decode(self.encoding).encode()
            except UnicodeDecodeError as error:
                line += self.text.read_at(0, begin).count(b"\n") + content.count(b"\n", 0, error.start)
                raise not_text(self.place(line), content[error.start : error.end], self.encoding) from None
            line += content.count(b"\n")
            yield unmarked(text)

    @property
    def encoding(self) -> str:
        return str(getattr(self.source, "encoding", "utf-8"))

    def place_of(self, word: bytes, *, is_field: bool = False) -> str:
        """Return the file and the line where a word is first, perhaps as a whole field, by reading the file again."""
        number, around = 1, (BEFORE_FIELD, BEHIND_FIELD) if is_field else (b"", b"")
        searched = re.compile(around[0] + re.escape(word) + around[1])
        for content in self.contents(self.begin()):
            if (found := searched.search(content)) is not None:
                return self.place(number + content.count(b"\n", 0, found.start()))
            number += content.count(b"\n")
        return str(self.source.path)  # the word has quotes that are written twice

    def check_memory(self, nbytes: int) -> None:
        """Check that the final arrays fit into memory beside the parsed ones. The kernel overcommits: it would end the
        process later."""
        memory = host.available_memory()
        if nbytes > memory.bytes:
            raise MemoryShortError(
                f"{self.what}: {size(nbytes)} are parsed and must be copied into shared memory, but only "
                f"{size(memory.bytes)} are free ({memory.limited_by}); use less data or a larger limit",
                code="run/memory-short",
            )

    def note_bad_lines(self, pieces: list[Piece]) -> None:
        """Note the number of bad lines, which are skipped. Raises DataError if no row is left."""
        if bad := sum(piece.bad_lines for piece in pieces):
            first = next(piece for piece in pieces if piece.bad[1])
            words = f"{self.place(first.line + first.bad[0])}: {first.bad[1]}"
            self.left_out["bad lines"] = bad
            self.notes.append(f"{bad:,} lines cannot be parsed and are left out; the first: {words}")
        if not sum(piece.rows for piece in pieces):
            skipped = f"; {bad:,} lines cannot be parsed" if bad else ""
            raise DataError(f"{self.source.path}: contains no samples: there is no row{skipped}", code="data/empty")

    def place(self, line: int) -> str:
        return f"{self.source.path}: line {line:,}"

    def finished(self, packed: Packed) -> Parsed:
        return Parsed(packed, self.left_out, tuple(f"{self.source.path}: {note}" for note in self.notes))

    @property
    def region_name(self) -> str:
        return self.what.replace(".", "-")


def hash_of(text: Any, cache: DatasetCache | None) -> str:
    """Return the SHA-256 of a text; of a file, the one in the `cache` if it has not changed since."""

    def computed() -> str:
        text.hash_into(found := hashlib.sha256())
        return found.hexdigest()

    return computed() if cache is None or not isinstance(text, TextFile) else cache.hash_of(text.path, computed)


def names_as_bytes(names: Mapping[str, Any]) -> list[tuple[str, bytes]]:
    """Return each name array as bytes: whole numbers as in memory, words as JSON."""
    written = []
    for name, values in names.items():
        array = values if isinstance(values, np.ndarray) else np.asarray(values)
        if array.dtype.kind == "i":
            written.append((f"{name}:int64", np.ascontiguousarray(array, np.int64).tobytes()))
        else:
            written.append((f"{name}:words", json.dumps([*map(str, values)]).encode()))
    return written


class PackedFile(ABC):
    """A data set in a file that is parsed into packed arrays. `left_out`: of the last packing, as in `Parsed`."""

    path: Path
    left_out: Mapping[str, int] = {}

    @abstractmethod
    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        """Return the parsing, with these arguments."""

    def pack(
        self, reader: Any, what: str = "data.train", like: Packed | None = None, on_bad_line: str = "fail"
    ) -> Packed:
        """Pack by a `feeds.row_reader.Reader`: from the cache, or parsed. `like`: the training data, for validation
        data."""
        parsed: Parsed = reader.pack(self.parsing(what, like, on_bad_line))
        self.left_out = parsed.left_out
        return parsed.packed


def in_threads(parse: Callable[[_Piece], _Result], pieces: Iterable[_Piece]) -> Iterator[_Result]:
    """Yield parse(piece) for each piece, in their order. The calling thread takes the pieces one by one, so they may
    come from a file. An error is raised in its piece's turn."""
    threads = max(1, int(host.usable_cores().usable))
    pool = ThreadPoolExecutor(threads, "parse", initializer=host.leave_signals_to_main)
    waiting: deque[Future[_Result]] = deque()
    try:
        for piece in pieces:
            waiting.append(pool.submit(parse, piece))
            if len(waiting) > AHEAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


# ---- lines that do not parse ----------------------------------------------------------------------------------------


def problem(rule: str, line: bytes, rest: bytes) -> str:
    """Return what is wrong with a line: the rule, with the beginning of `rest` for TOKEN, and the line."""
    token = re.split(rb"[\s,;]|::", rest, maxsplit=1)[0]
    return f"{rule.replace('TOKEN', repr(shown(token)))}: {shown(line)!r}"


def shown(line: bytes) -> str:
    """Return a line for a message: decoded, whatever it holds, and shortened."""
    text = line[: 4 * SHOWN].decode("utf-8", "backslashreplace").rstrip("\r")
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def begins_of(counts: np.ndarray) -> np.ndarray:
    """Return (n + 1,) int64: the start of each, and the end of all."""
    begins = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=begins[1:])
    return begins


# ---- tables ---------------------------------------------------------------------------------------------------------

VALUE, FINITE, FIELDS, EMPTY, QUOTE, COMMENTED = range(1, 7)  # rules that a line can break
HEADER_BYTES = 1 << 20  # bytes in which the header, or the first row, must end
OTHER_DELIMITERS = (",", ";", "\t", "|", " ")
UTF8 = "utf8"  # only with this name pyarrow knows that no recoding is needed
ONE = "\x1f"  # in the place of a delimiter of two characters, which neither pyarrow nor Python's csv knows
# Texts for "no number" in files from pandas, R, spreadsheets, databases and the UCI archive.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NAN", "-nan", "NULL", "null", "None", "none", "?")
COMMENT = re.compile(rb"[#%](?:[ \t\r\d#%]|$)", re.MULTILINE)  # begins a line; #name is a name
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
NOT_FINITE = re.compile(r"[+-]?(nan|inf)", re.IGNORECASE)
WHOLE = r"\A(0|[1-9][0-9]{0,17})(\.0+)?\z"  # 7.0: pandas writes it where a value is missing; 007 and 7 are two ids
ONE_POINT = r"\A(-?(?:0|[1-9][0-9]*))\.0+\z"
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Format:
    """The text format of a table. Without `has_quotes` quotation marks are ordinary characters."""

    delimiter: str
    decimal: str = "."
    encoding: str = "utf-8"
    has_quotes: bool = True

    def columns(self, content: bytes, count: int, width: int, kinds: Mapping[int, Any]) -> Any:
        """Return the columns `kinds`, arrow types by place, of the `count` records of `width` fields in `content` as an
        arrow table, which names columns by their places; None if anything is unusual."""
        import pyarrow
        from pyarrow import csv as arrow_csv

        has_quotes = self.has_quotes and b'"' in content
        if len(self.delimiter) > 1:
            if has_quotes or ONE.encode() in content:
                return None
            content = content.replace(self.delimiter.encode(), ONE.encode())
        if has_quotes and not quotes_are_whole(content, self.delimiter.encode()):
            return None
        places = [*map(str, kinds)]
        try:
            table = arrow_csv.read_csv(
                pyarrow.BufferReader(pyarrow.py_buffer(content)),
                read_options=arrow_csv.ReadOptions(
                    use_threads=False,  # each thread parses a separate piece
                    block_size=len(content) + 1,  # one chunk per column
                    column_names=[*map(str, range(width))],
                    encoding=UTF8 if self.encoding == "utf-8" else self.encoding,
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=self._sign,
                    quote_char='"' if has_quotes else False,  # without quotes it saves 10 %
                    newlines_in_values=has_quotes,
                ),
                convert_options=arrow_csv.ConvertOptions(
                    include_columns=places,
                    column_types=dict(zip(places, kinds.values(), strict=True)),
                    null_values=MISSING,
                    strings_can_be_null=False,
                    decimal_point=self.decimal,
                ),
            )
        except (pyarrow.ArrowInvalid, UnicodeDecodeError):
            return None
        return table if table.num_rows == count else None

    def records(self, content: bytes) -> Iterator[tuple[int, str, list[str] | str]]:
        """Yield the number of the first line, from 0 on, the text, and the fields, or why there are none, of each
        record that is not empty. A record that cannot be taken apart ends with its first line. Wrong bytes become
        surrogates: they matter only in a column that is read."""
        lines = io.StringIO(content.decode(self.encoding, "surrogateescape"), newline="").readlines()
        sign, at, number = self._sign, 0, 0
        read = partial(
            csv.reader, delimiter=sign, quoting=csv.QUOTE_MINIMAL if self.has_quotes else csv.QUOTE_NONE, strict=True
        )

        def taken() -> Iterator[str]:
            nonlocal at
            while at < len(lines):
                at += 1
                yield lines[at - 1].replace(self.delimiter, sign)

        rows: Any = None
        while at < len(lines):
            rows, begin = rows or read(taken()), at
            found: list[str] | str
            try:
                found = [field.replace(sign, self.delimiter) for field in next(rows)]
                while lines[at - 1].endswith("\r") and lines[at : at + 1] in (["\r"], ["\r\n"]):
                    at += 1
                if found and lines[at - 1].endswith("\r") and at < len(lines):
                    found = "a carriage return inside a line ends it"
                elif sign != self.delimiter and sign in lines[begin]:
                    found = f"the character {sign!r} is in it"
            except csv.Error as error:
                found, rows, at = str(error), None, begin + 1
            while isinstance(found, str) and at < len(lines) and not lines[at - 1].endswith("\n"):
                at += 1
            text = "".join(lines[begin:at])
            if found:
                yield number, text, found
            number += text.count("\n")

    @property
    def _sign(self) -> str:
        """The delimiter in the text that pyarrow and Python's csv read."""
        return ONE if len(self.delimiter) > 1 else self.delimiter


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first bytes of the file `path`, in the place of a `TextFile`."""

    path: Path
    content: bytes

    def read_at(self, offset: int, size: int) -> bytes:
        return self.content[offset : offset + size]


def read_header(
    text: TextFile | TextStream | Beginning,
    has_header: bool,
    delimiter: str,
    encoding: str,
    skip_lines: int,
    *,
    has_target: bool = True,
) -> tuple[list[str], int, int]:
    """Return (names, offset of the first row, its line number); names are "0", "1", … without a header. Raises
    DataError if there is no first line, or if it cannot be right."""
    head = text.read_at(0, HEADER_BYTES)
    start = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
    line = 1
    while start < len(head):  # until the first line that counts: behind `skip_lines` and the empty lines after them
        end = head.find(b"\n", start)
        content = head[start : end if end >= 0 else len(head)]
        if skip_lines < line and content.strip(b"\r"):
            break
        start, line = (end + 1, line + 1) if end >= 0 else (len(head), line)
    if start == len(head):
        what = "is empty" if not head else f"has no line with text after the {skip_lines} skipped lines"
        raise DataError(
            f"{text.path}: {what if skip_lines or not head else 'holds only empty lines'}", code="data/empty"
        )
    where = f"{text.path}: line {line}"
    _, shown, record = next(Format(delimiter, encoding=encoding).records(head[start:]))
    content = shown.encode(encoding, "surrogateescape")
    if b"\r" in content.rstrip(b"\r\n") or (isinstance(record, str) and content.endswith(b"\r")):
        raise DataError(
            f"{where}: lines end with a carriage return only; save the file with \\n line ends",
            code="data/csv-line-ends",
        )
    if isinstance(record, str) or start + len(content) == HEADER_BYTES:
        why = record if isinstance(record, str) else "perhaps the file is not text"
        raise DataError(
            f"{where}: does not end within {HEADER_BYTES:,} bytes, or cannot be split into columns: {why}; is a quote "
            '(") not closed?',
            code="data/csv-quotes",
        )
    try:
        content.decode(encoding)
    except UnicodeDecodeError as error:
        raise not_text(where, content[error.start : error.start + 1], encoding) from error
    if len(record) == 1 and has_target:
        better = max(OTHER_DELIMITERS, key=lambda sign: record[0].count(sign) if sign != delimiter else 0)
        hint = f"; is it {better!r}?" if record[0].count(better) and better != delimiter else "."
        raise DataError(
            f"{where}: only one column is found with the delimiter {delimiter!r}{hint} An input and "
            f"a target are needed: {record[0][:60]!r}",
            code="data/csv-delimiter",
        )
    if not has_header:
        return [str(place) for place in range(len(record))], start, line
    names = [name.strip() for name in record]
    names[0] = names[0].lstrip("# ") or names[0]  # a header that is marked as a comment
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        places = ", ".join(str(i) for i, name in enumerate(names) if name == twice[0])
        what = f"{twice[0]!r} names the columns {places}" if twice[0] else f"the columns {places} have no name"
        words = f"{where}: {what}; column names must be unique (or set header: false)"
        raise DataError(words, code="data/csv-columns")
    return names, start + len(content), line + max(1, shown.count("\n"))


def delimiter_of(
    text: TextFile | TextStream, given: str, encoding: str, skip_lines: int, wanted: Collection[str]
) -> str:
    """Return the delimiter of a file whose header has the names `wanted`: the one `given`, or the first that finds them
    all."""
    for delimiter in (given, *OTHER_DELIMITERS):
        with contextlib.suppress(DataError):
            if {*wanted} <= {*read_header(text, True, delimiter, encoding, skip_lines, has_target=False)[0]}:
                return delimiter
    return given


@dataclass(frozen=True, slots=True)
class TableText:
    """The columns of a packed table, by their places among `width` fields: `words`, `numbers`, which are finite, and
    `times`, whole numbers, or words in a piece where one is anything else."""

    form: Format
    width: int
    words: tuple[int, ...]
    numbers: tuple[int, ...] = ()
    times: tuple[int, ...] = ()

    def parse(self, parsing: Parsing, content: bytes) -> Piece:
        """Parse a piece: its arrays are the columns of words as arrow's dictionaries, of numbers float32, of times
        int64 or as words. Bad lines are left out, and counted."""
        return self._quick(content) or self._careful(parsing, content)

    def _quick(self, content: bytes) -> Piece | None:
        """Return the piece; None if anything is unusual."""
        import pyarrow

        if (b"#" in content or b"%" in content) and COMMENT.search(content):
            return None
        if content.count(b"\r") != content.count(b"\r\n"):
            return None
        words, number = pyarrow.dictionary(pyarrow.int32(), pyarrow.binary()), pyarrow.float64()
        kinds = dict.fromkeys(self.words, words) | dict.fromkeys(self.numbers, number)
        lines = content.count(b"\n") + (not content.endswith(b"\n"))
        for time in (pyarrow.int64(), words) if self.times else (words,):
            table = self.form.columns(content, lines, self.width, kinds | dict.fromkeys(self.times, time))
            if table is not None and all(map(_is_plain, columns := [column.chunk(0) for column in table.columns])):
                return Piece(tuple(map(_array, columns)), lines, lines, places=range(lines))
        return None

    def _careful(self, parsing: Parsing, content: bytes) -> Piece:
        """Return the piece, read record by record."""
        import pyarrow

        places, rows, broken = list[int](), list[list[str]](), list[tuple[int, str]]()
        for number, text, fields in self.form.records(content):
            line = text.partition("\n")[0].rstrip("\r")
            if not line.strip(WHITE):
                continue
            if found := self._broken(line, fields):
                rule, field = found
                said = "" if broken else problem(parsing.rules[rule], _bytes(line), _bytes(field))
                broken.append((number, said))
                continue
            places.append(number)
            rows.append([*fields])
        words, numbers, times = (
            [[row[place] for row in rows] for place in places] for places in (self.words, self.numbers, self.times)
        )
        ids = [pyarrow.array(map(_bytes, column), pyarrow.binary()).dictionary_encode() for column in (*words, *times)]
        ratings = [np.array([*map(float, column)], np.float32) for column in numbers]
        lines = content.count(b"\n") + (not content.endswith(b"\n"))
        arrays = (*ids[: len(words)], *ratings, *ids[len(words) :])
        return Piece(arrays, lines, len(rows), len(broken), broken[0] if broken else (0, ""), places=places)

    def _broken(self, line: str, fields: list[str] | str) -> tuple[int, str] | None:
        """Return the rule that a record breaks, if any, and the field that does."""
        if COMMENT.match(_bytes(line)):
            return COMMENTED, ""
        if isinstance(fields, str):
            return QUOTE if '"' in line else FIELDS, ""
        for place, value in enumerate(fields):
            text = value.strip(WHITE)
            if place in (*self.words, *self.times) and not text:
                return EMPTY, value
            if place in self.numbers and not (NUMBER.fullmatch(text) and abs(float(text)) <= LARGEST):
                return FINITE if NOT_FINITE.match(text) or NUMBER.fullmatch(text) else VALUE, value
        return None if len(fields) == self.width else (FIELDS, "")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _is_plain(column: Any) -> bool:
    """Return whether no word is blank, and no number missing or infinite."""
    import pyarrow
    from pyarrow import compute

    if column.null_count:
        return False
    if not pyarrow.types.is_dictionary(column.type):
        return bool(np.isfinite(_array(column)).all())
    try:
        texts = column.dictionary.cast(pyarrow.string())
    except pyarrow.ArrowInvalid:
        return False
    return not compute.any(compute.equal(compute.ascii_trim(texts, WHITE), "")).as_py()


def _array(column: Any) -> Any:
    """Return words as they are, numbers as float32, whole ones as int64."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        return column
    with np.errstate(over="ignore"):  # the value becomes infinite
        return numpy_of(column).astype(np.float32 if pyarrow.types.is_floating(column.type) else np.int64)


def numpy_of(values: Any) -> np.ndarray:
    """Return an array without a copy. `to_numpy` would import pandas, if installed, in every process: 0.3 s."""
    return np.from_dlpack(values) if len(values) else np.empty(0, np.int64)


# ---- ids ------------------------------------------------------------------------------------------------------------


def numbered(parsing: Parsing, columns: Sequence[Sequence[Any]]) -> tuple[list[np.ndarray], Any]:
    """Return the numbers (n,) int32 of the ids in each of the columns, given as dictionaries by piece, and the ids by
    number: in numerical order, int64, if all are whole numbers, else as text in alphabetical order. What is one id, as
    in `hogwild.data.ids`, has one number. Raises DataError for what is no text."""
    import pyarrow

    unified = pyarrow.chunked_array([piece for column in columns for piece in column]).unify_dictionaries()
    numbers, names = _in_order(unified.chunk(0).dictionary, parsing)
    chunks = iter(unified.chunks)
    return [np.concatenate([numbers[numpy_of(next(chunks).indices)] for _ in column]) for column in columns], names


def _note_merged(parsing: Parsing, words: list[bytes], texts: list[str], many: int) -> None:
    """Note that words become one name, as they differ in white space around them only."""
    known = dict[str, bytes]()
    pairs = zip(words, texts, strict=True)
    word, text = next((word, text) for word, text in pairs if known.setdefault(text, word) != word)
    padded = word if word != text.encode() else known[text]
    parsing.notes.append(
        f"white space around a name does not count, so {counted(many, 'name')} less: {shown_name(padded.decode())} "
        f"({parsing.place_of(padded, is_field=True)}) counts as {shown_name(text)}"
    )


def _in_order(words: Any, parsing: Parsing) -> tuple[np.ndarray, Any]:
    """Return the number (n,) int32 of each of the words, and the ids by number."""
    import pyarrow
    from pyarrow import compute

    try:
        texts = compute.ascii_trim(words.cast(pyarrow.string()), WHITE)
    except pyarrow.ArrowInvalid:
        wrong = next(word for word in words.to_pylist() if word.decode("utf-8", "ignore").encode() != word)
        raise not_text(parsing.place_of(wrong), wrong, parsing.encoding) from None
    if (different := compute.count_distinct(texts).as_py()) < len(texts):
        _note_merged(parsing, words.to_pylist(), texts.to_pylist(), len(texts) - different)
    if compute.all(compute.match_substring_regex(texts, WHOLE)).as_py():
        whole = numpy_of(compute.replace_substring_regex(texts, r"\..*", "").cast(pyarrow.int64()))
        names, numbers = np.unique(whole, return_inverse=True)
        return numbers.astype(np.int32), names
    plain = compute.replace_substring_regex(texts, ONE_POINT, r"\1")  # 7 for 7.0, if both are there
    texts = compute.if_else(compute.is_in(plain, value_set=texts), plain, texts).dictionary_encode()
    order = numpy_of(compute.sort_indices(texts.dictionary))
    numbers = np.empty(len(order), np.int32)
    numbers[order] = np.arange(len(order), dtype=np.int32)
    return numbers[numpy_of(texts.indices)], texts.dictionary.take(order).to_pylist()
