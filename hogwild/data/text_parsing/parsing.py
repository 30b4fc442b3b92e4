"""Text files of millions of lines, parsed into packed arrays: in pieces of complete lines, by threads of this process.

    dataset.pack(reader, what, like, on_bad_line)
       Parsing ── reader.pack ──► from the cache, mapped; or parse(tell): pieces ──► threads ──► arrays, in their order

Pieces are read, not mapped: a file that is truncated meanwhile is then an error, not a signal. pyarrow and compiled
kernels work without the GIL."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from hogwild import host
from hogwild.data.cache import DatasetCache
from hogwild.data.file_kind import MARK, Wanted, not_text, unmarked
from hogwild.data.text_file import TextFile, whole_records
from hogwild.errors import DataError, MemoryShortError
from hogwild.feeds.packed import Packed
from hogwild.formatting import size

LOOKED_AT = 1 << 16  # bytes in which the form of the lines is found
SHOWN = 60  # characters of a line
ENCODINGS = ("utf-8", "latin-1", "cp1252")  # of tables
INPUT = "input"  # the name in errors of rows to predict, which stay in the order of the file
AHEAD = 3  # pieces per thread that are read and parsed before their turn
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
        digest, is_file = hashlib.sha256(), isinstance(self.text, TextFile)
        content = self._text_hash() if cache is None or not is_file else cache.hash_of(self.text.path, self._text_hash)
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

    def _text_hash(self) -> str:
        digest = hashlib.sha256()
        self.text.hash_into(digest)
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

    def place_of(self, word: bytes) -> str:
        """Return the file and the line where a word is first, by reading the file again."""
        number = 1
        for content in self.contents(self.begin()):
            if (at := content.find(word)) >= 0:
                return self.place(number + content.count(b"\n", 0, at))
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
        """Pack by a `feeds.materialise.Reader`: from the cache, or parsed. `like`: the training data, for validation
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
