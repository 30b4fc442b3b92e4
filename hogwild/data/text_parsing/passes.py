"""Text files of millions of lines, parsed in passes: each pass processes every piece of the file (complete lines) and
writes its results directly into shared memory.

    dataset.pack(reader, what, like, on_bad_line)
       Parsing ── reader.pack ──► from the cache, mapped; or parse(run): count ──► memory ──► parse ──► put in order
                                                                run(pass): here, or by the workers that wait

A piece processed twice, because a worker died, gives the same result. Pieces are read, not mapped: a file that is
truncated meanwhile is then an error, not a signal. A zipped file is first unzipped into memory, by one process."""

import hashlib
import json
import os
import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from hogwild.data.locate import find_file, reading, require
from hogwild.data.text_file import GZIP, TextFile
from hogwild.errors import DataError
from hogwild.feeds.packed import Packed
from hogwild.shared_memory.region import Region

PIECE = 4 << 20  # bytes: some 20 ms of work, lost if a worker dies
LOOK = 1 << 16
MARK = b"\xef\xbb\xbf"  # byte order mark that some programs write before UTF-8
SHOWN = 60  # characters of a line
ZIP = b"PK\x03\x04"

Run = Callable[["Pass"], None]


class PassStep(Protocol):
    """The work of a pass on one piece. Sent to other processes by cloudpickle."""

    def ready(self) -> None:
        """Compile the kernels, or load them from the cache of compiled code."""
        ...

    def do(self, piece: int, regions: Mapping[str, Region]) -> None:
        """Write the results for a piece into the regions; repeating it is harmless. Raises DataError."""
        ...


@dataclass(frozen=True, slots=True)
class Pass:
    """One run over `count` pieces, in any order, by any process. `regions` are the memory that `step` reads and writes,
    in every process."""

    what: str
    count: int
    step: PassStep
    regions: Mapping[str, Region]

    def run_here(self) -> None:
        self.step.ready()
        for piece in range(self.count):
            self.step.do(piece, self.regions)


@dataclass(frozen=True, slots=True)
class Parsed:
    """Result of parsing a file. `left_out`: the number of lines, features, ratings, … left out, by kind; `notes` tell
    it to a person. Both are cached with the data."""

    packed: Packed
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Parsing(ABC):
    """The parsing of a file into packed arrays: the argument of a `Reader`'s `pack`. `source`: the data set; `what`:
    its name in errors; `like`: the training data, if any; `on_bad_line`: fail or skip."""

    kind: ClassVar[str]
    version: ClassVar[int] = 1  # of the output for a file
    options: ClassVar[tuple[str, ...]]  # attributes of `source` that the output depends on
    rules: ClassVar[Mapping[int, str]] = {}  # by the kernel's rule number; TOKEN is replaced by the text in the file
    source: Any

    def __init__(self, source: Any, what: str, like: Packed | None, on_bad_line: str) -> None:
        self.source, self.what, self.like, self.on_bad_line = source, what, like, on_bad_line
        self.left_out: dict[str, int] = {}
        self.notes: list[str] = []

    def key(self) -> str:
        """Return a hash (hexadecimal) of all that the result depends on: content, options, and the training data's
        sizes and names. Takes 1 s per gigabyte."""
        content, digest = hashlib.sha256(), hashlib.sha256()
        TextFile(self.source.path).hash_into(content)
        options = (*(getattr(self.source, name) for name in self.options), self.on_bad_line)
        for part in (self.kind, self.version, options, content.hexdigest()):
            digest.update(repr(part).encode())
        if self.like is None:
            digest.update(b"None")
        else:
            digest.update(json.dumps(dict(self.like.spec.sizes), sort_keys=True).encode())
            for name, values in names_as_bytes(self.like.names):
                digest.update(name.encode() + values)
        return digest.hexdigest()

    @abstractmethod
    def parse(self, run: Run) -> Parsed:
        """Parse the file. Raises DataError, MemoryShortError."""

    def check_bad_lines(self, finds: "Finds") -> None:
        """Raise DataError if the file has changed or has no rows, and for the first bad line unless they are skipped;
        then note their number."""
        from hogwild.kernels.parsing.lines import BAD, OVERFLOW, ROWS

        if finds.total(OVERFLOW):
            raise finds.lines.changed()
        if bad := finds.total(BAD):
            words = finds.first_bad(self.rules)
            if self.on_bad_line != "skip":
                raise DataError(
                    f"{words} (data.on_bad_line: skip leaves such lines out and counts them)", code="data/bad-line"
                )
            self.left_out["bad lines"] = bad
            self.notes.append(f"{bad:,} lines cannot be parsed and are left out; the first: {words}")
        if not finds.total(ROWS):
            raise self.no_rows()

    def no_rows(self) -> DataError:
        skipped = f"; {self.left_out['bad lines']:,} lines cannot be parsed" if "bad lines" in self.left_out else ""
        return DataError(f"{self.source.path}: contains no samples: there is no row{skipped}", code="data/empty")

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


# ---- the file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextLines:
    """A text in pieces of complete lines, readable by any process: `cuts` (pieces + 1,) int64 are their starts and the
    end. `text`: the file, if it is not zipped; otherwise its `size` bytes are the region `text`."""

    path: Path
    text: TextFile | None
    size: int
    cuts: np.ndarray
    first_line: int = 1

    @classmethod
    def of(cls, path: Path) -> "tuple[TextLines, dict[str, Region]]":
        """Return a file's lines and the regions that hold them. Raises DataError if it is empty, damaged or
        unreadable."""
        head, size, text = *_head(path), TextFile(path)
        if not head.startswith((GZIP, ZIP)):
            lines, regions = cls(path, text, size, np.zeros(1, np.int64)), {}
        else:
            region, size = Region.of_stream("text", _member(path) if head.startswith(ZIP) else _stream(text))
            lines, regions = cls(path, None, size, np.zeros(1, np.int64)), {"text": region}
        text.close()
        begin = len(MARK) if lines.size and lines.read(0, len(MARK), regions).tobytes() == MARK else 0
        if begin == lines.size:
            raise DataError(f"{path}: the file is empty; there is nothing to train on", code="data/empty")
        return lines.cut(begin, 1, regions), regions

    @property
    def pieces(self) -> int:
        return len(self.cuts) - 1

    def cut(self, begin: int, first_line: int, regions: Mapping[str, Region]) -> "TextLines":
        """Return the same text from byte `begin` on, the beginning of line `first_line`."""
        cuts = [begin]
        while self.size - cuts[-1] > PIECE:
            cuts.append(self._behind_line(cuts[-1] + PIECE, regions))
        if cuts[-1] < self.size:
            cuts.append(self.size)
        return replace(self, cuts=np.array(cuts, np.int64), first_line=first_line)

    def read(self, begin: int, end: int, regions: Mapping[str, Region]) -> np.ndarray:
        """Return bytes (end - begin,) uint8, read-only. Raises DataError if the file has become shorter."""
        end = min(end, self.size)
        if self.text is None:
            view = regions["text"].array("u1", (self.size,))[begin:end]
            view.flags.writeable = False  # the array type that kernels are compiled for
            return view
        content = self.text.read_at(begin, end - begin)
        if len(content) < end - begin:
            raise self.text.changed()
        return np.frombuffer(content, np.uint8)

    def piece(self, number: int, regions: Mapping[str, Region]) -> np.ndarray:
        return self.read(int(self.cuts[number]), int(self.cuts[number + 1]), regions)

    def changed(self) -> DataError:
        """Return the error for a file that changed after the first read."""
        return (self.text or TextFile(self.path)).changed()

    def _behind_line(self, at: int, regions: Mapping[str, Region]) -> int:
        while at < self.size:
            found = self.read(at, at + LOOK, regions).tobytes().find(b"\n")
            if found >= 0:
                return at + found + 1
            at += LOOK
        return self.size


def _head(path: Path) -> tuple[bytes, int]:
    """Return (its first bytes, its size)."""
    with reading(path), open(path, "rb", buffering=0) as stream:
        return stream.read(len(ZIP)), os.fstat(stream.fileno()).st_size


def _stream(text: TextFile) -> Iterator[bytes]:
    at = 0
    while chunk := text.read_at(at, PIECE):
        at += len(chunk)
        yield chunk


def _member(path: Path) -> Iterator[bytes]:
    """Yield the content of the only file in a zip archive."""
    try:
        with reading(path), zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            if len(members) != 1:
                raise DataError(
                    f"{path}: the archive must contain one file, but has {len(members)}", code="data/wrong-format"
                )
            with archive.open(members[0]) as stream:
                while chunk := stream.read(PIECE):
                    yield chunk
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError) as error:
        raise DataError(
            f"{path}: damaged or truncated zip file: {error}; get the file again", code="data/damaged-file"
        ) from error


def find_text(who: str, path: str | os.PathLike[str], root: str | os.PathLike[str] | None, advice: str) -> Path:
    """Return the path of the file. Raises NotFoundError with the searched folders, and UsageError without numba."""
    require("numba", who, "numba", "sparse")
    return find_file(who, path, root, advice)


# ---- lines that do not parse ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finds:
    """Results of a pass, a row of `kernels.parsing.lines.FOUND` numbers per piece, with the lines of the file."""

    lines: TextLines
    found: np.ndarray  # (pieces, FOUND) int64
    regions: dict[str, Region]

    def total(self, word: int) -> int:
        return int(self.found[:, word].sum())

    def first_bad(self, rules: Mapping[int, str]) -> str:
        """Return the place, the broken rule and the text of the first bad line."""
        from hogwild.kernels.parsing.lines import BAD, LINE_AT, RULE, TOKEN_AT

        piece = int(np.flatnonzero(self.found[:, BAD])[0])
        row = self.found[piece]
        content = self.lines.piece(piece, self.regions).tobytes()
        line, at = content[row[LINE_AT] :].split(b"\n", 1)[0], int(row[TOKEN_AT] - row[LINE_AT])
        token = re.split(rb"[\s,;]|::", line[max(at, 0) :], maxsplit=1)[0]
        rule = rules[int(row[RULE])].replace("TOKEN", repr(shown(token)))
        return f"{self.place(piece, content, int(row[LINE_AT]))}: {rule}: {shown(line)!r}"

    def place(self, piece: int, content: bytes, at: int) -> str:
        """Return `FILE: line 12` for byte `at` of a piece."""
        from hogwild.kernels.parsing.lines import LINES

        before = int(self.found[:piece, LINES].sum()) + content.count(b"\n", 0, at)
        return f"{self.lines.path}: line {self.lines.first_line + before:,}"


def shown(line: bytes) -> str:
    """Return a line for a message: decoded, whatever it holds, and shortened."""
    text = line[: 4 * SHOWN].decode("utf-8", "backslashreplace").rstrip("\r")
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def zeros(name: str, shape: tuple[int, ...], dtype: str) -> Region:
    """Return shared memory for an array of this shape."""
    return Region.allocate(name, int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)


def moved_together(array: np.ndarray, begins: np.ndarray, counts: np.ndarray) -> None:
    """Close the gaps between the pieces' values, in place: each piece wrote counts[piece] from begins[piece] on."""
    to = 0
    for begin, many in zip(begins[: len(counts)].tolist(), counts.tolist(), strict=True):
        if to != begin and many:
            array[to : to + many] = array[begin : begin + many]
        to += many


def begins_of(counts: np.ndarray) -> np.ndarray:
    """Return (n + 1,) int64: the start of each, and the end of all."""
    begins = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=begins[1:])
    return begins


@dataclass(frozen=True, slots=True)
class LinesStep:
    """Base class of passes over lines. `kind`: the parser whose kernels it needs (`kernels/parsing/warm_up.py`)."""

    lines: TextLines
    kind: str

    def ready(self) -> None:
        from hogwild.kernels.parsing import warm_up

        warm_up.ready(self.kind)

    def found(self, regions: Mapping[str, Region]) -> np.ndarray:
        """Return the results, (pieces, FOUND) int64."""
        from hogwild.kernels.parsing.lines import FOUND

        return regions["found"].array("i8", (self.lines.pieces, FOUND))


@dataclass(frozen=True, slots=True)
class _Count(LinesStep):
    """Pass that counts the lines of each piece."""

    mark: int  # counted too

    def do(self, piece: int, regions: Mapping[str, Region]) -> None:
        from hogwild.kernels.parsing.lines import count

        count(self.lines.piece(piece, regions), self.mark, self.found(regions)[piece])


def counted(
    run: Run, what: str, lines: TextLines, regions: dict[str, Region], kind: str, mark: int = ord(":")
) -> Finds:
    """Run the first pass over a text, which counts lines, and bytes `mark` (libsvm has one per pair). The counts lie in
    `regions`, for all processes."""
    from hogwild.kernels.parsing.lines import FOUND

    regions["found"] = zeros("found", (lines.pieces, FOUND), "i8")
    step = _Count(lines, kind, mark)
    run(Pass(what, lines.pieces, step, regions))
    return Finds(lines, step.found(regions), regions)
