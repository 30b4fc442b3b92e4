"""Text files of millions of lines, parsed in passes: each pass does something to every piece of the file, whole lines
of it, and writes what it finds straight into memory that all share.

    dataset.pack(reader, what, like, on_bad_line)
       Parsing ── reader.pack ──► from the cache, mapped; or parse(run): count ──► memory ──► parse ──► put in order
                                                                run(pass): here, or by the workers that wait

A piece that is done twice, because a worker died, holds the same. Pieces are read, not mapped: a file that is cut
short while it is read is an error then, not a signal. What is zipped is unzipped into memory first, by one process."""

import os
import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hogwild.data.locate import Wanted, beside, find, folders, require
from hogwild.data.text_file import GZIP, TextFile
from hogwild.errors import DataError, UsageError
from hogwild.feeds.packed import Packed
from hogwild.shared_memory.region import Region

PIECE = 4 << 20  # bytes: some 20 ms; what a death costs
LOOK = 1 << 16
MARK = b"\xef\xbb\xbf"  # in front of UTF-8, by some programs
SHOWN = 60  # characters of a line
ZIP = b"PK\x03\x04"

Run = Callable[["Pass"], None]


class PassStep(Protocol):
    """What a pass does to a piece. Crosses a process by cloudpickle."""

    def ready(self) -> None:
        """Compiles what it needs, or takes it from the cache of compiled code."""
        ...

    def do(self, piece: int, regions: Mapping[str, Region]) -> None:
        """Writes what it finds into the regions. Twice is as good as once. Raises DataError."""
        ...


@dataclass(frozen=True, slots=True)
class Pass:
    """One look at each of `count` pieces, in any order, by whatever process: `regions` are the memory that `step`
    reads and writes, in every process."""

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
    """What came of a file. `left_out`: how many lines, features, ratings, … are not in it, by what they are; `notes`
    say so to a person. Both are kept with it."""

    packed: Packed
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Parsing(Protocol):
    """A file on its way into packed arrays: what a `Reader` is given to pack."""

    @property
    def what(self) -> str:
        """What the data are, in errors."""
        ...

    def key(self) -> str:
        """Hexadecimal, of everything the result follows from: content, options, and the training data's numbers."""
        ...

    def parse(self, run: Run) -> Parsed:
        """Raises DataError, MemoryShortError."""
        ...


class PackedFile(ABC):
    """A data set that is a file, and becomes packed arrays. `left_out`: of the last packing, as `Parsed` has it."""

    left_out: Mapping[str, int] = {}

    @abstractmethod
    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        """`what` it is in errors; `like`: the training data, of validation data; `on_bad_line`: fail or skip."""

    def pack(
        self, reader: Any, what: str = "data.train", like: Packed | None = None, on_bad_line: str = "fail"
    ) -> Packed:
        """Through a `samples.Reader`: from the cache, or parsed. `like`: the training data, of validation data."""
        parsed: Parsed = reader.pack(self.parsing(what, like, on_bad_line))
        self.left_out = parsed.left_out
        return parsed.packed


# ---- the file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextLines:
    """A text in pieces of whole lines, that any process can read: `cuts` (pieces + 1,) int64 are where they begin.
    `text`: of a file that is not zipped. Otherwise its bytes are the region `text`, `size` of them."""

    path: Path
    text: TextFile | None
    size: int
    cuts: np.ndarray
    first_line: int = 1

    @classmethod
    def of(cls, path: Path) -> "tuple[TextLines, dict[str, Region]]":
        """With the regions that it lies in. Raises DataError for a file that is empty, damaged or cannot be read."""
        head, size, text = *_head(path), TextFile(path)
        if not head.startswith((GZIP, ZIP)):
            lines, regions = cls(path, text, size, np.zeros(1, np.int64)), {}
        else:
            region, size = Region.of_stream("text", _member(path) if head.startswith(ZIP) else _stream(text))
            lines, regions = cls(path, None, size, np.zeros(1, np.int64)), {"text": region}
        text.close()
        if not lines.size:
            raise _empty(path)
        begin = len(MARK) if lines.read(0, len(MARK), regions).tobytes() == MARK else 0
        if begin == lines.size:
            raise _empty(path)
        return lines.cut(begin, 1, regions), regions

    @property
    def pieces(self) -> int:
        return len(self.cuts) - 1

    def cut(self, begin: int, first_line: int, regions: Mapping[str, Region]) -> "TextLines":
        """The same from byte `begin` on, which is the beginning of line `first_line`."""
        cuts = [begin]
        while self.size - cuts[-1] > PIECE:
            cuts.append(self._behind_line(cuts[-1] + PIECE, regions))
        if cuts[-1] < self.size:
            cuts.append(self.size)
        return replace(self, cuts=np.array(cuts, np.int64), first_line=first_line)

    def read(self, begin: int, end: int, regions: Mapping[str, Region]) -> np.ndarray:
        """Bytes (end - begin,) uint8, not to be written. Raises DataError for a file that has become shorter."""
        end = min(end, self.size)
        if self.text is None:
            view = regions["text"].array("u1", (self.size,))[begin:end]
            view.flags.writeable = False  # the type that kernels are compiled for
            return view
        content = self.text.read_at(begin, end - begin)
        if len(content) < end - begin:
            raise self.text.changed()
        return np.frombuffer(content, np.uint8)

    def piece(self, number: int, regions: Mapping[str, Region]) -> np.ndarray:
        return self.read(int(self.cuts[number]), int(self.cuts[number + 1]), regions)

    def changed(self) -> DataError:
        """The file is not what it was when it was looked at first."""
        return (self.text or TextFile(self.path)).changed()

    def _behind_line(self, at: int, regions: Mapping[str, Region]) -> int:
        while at < self.size:
            found = self.read(at, at + LOOK, regions).tobytes().find(b"\n")
            if found >= 0:
                return at + found + 1
            at += LOOK
        return self.size


def _head(path: Path) -> tuple[bytes, int]:
    """(its first bytes, how many there are)"""
    try:
        with open(path, "rb", buffering=0) as stream:
            return stream.read(len(ZIP)), os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}", code="data/unreadable") from error


def _empty(path: Path) -> DataError:
    return DataError(f"{path}: the file is empty; there is nothing to train on", code="data/empty")


def _stream(text: TextFile) -> Iterator[bytes]:
    at = 0
    while chunk := text.read_at(at, PIECE):
        at += len(chunk)
        yield chunk


def _member(path: Path) -> Iterator[bytes]:
    """The one file in a zip archive."""
    try:
        with zipfile.ZipFile(path) as archive:
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
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}", code="data/unreadable") from error


def find_text(who: str, path: str, root: str | None, advice: str) -> Path:
    """Where the file is. Raises NotFoundError that says where it was looked for, and UsageError without numba."""
    require("numba", who, "numba", "sparse")
    given = Path(path).expanduser()
    where = [given.parent] if given.is_absolute() else [*folders(root, None), *beside()]
    return find([Wanted((given.name if given.is_absolute() else str(given),))], where, who, advice)[0]


def choice(who: str, name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Raises UsageError unless an argument is one of those."""
    if value not in (several := [*allowed]):
        words = ", ".join(map(str, several))
        raise UsageError(f"{who}: {name} must be one of {words}, got {value!r}", code="config/bad-argument")


# ---- lines that do not parse ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finds:
    """What a pass found, a row of `kernels.parsers.FOUND` words per piece, beside the lines it was looking at."""

    lines: TextLines
    found: np.ndarray  # (pieces, FOUND) int64
    regions: Mapping[str, Region]
    rules: Mapping[int, str]

    def total(self, word: int) -> int:
        return int(self.found[:, word].sum())

    def settle(self, on_bad_line: str, left_out: dict[str, int]) -> list[str]:
        """Raises DataError for the first bad line, or, where they are skipped, says how many there are."""
        from hogwild.kernels.parsing.libsvm import BAD, OVERFLOW

        if self.total(OVERFLOW):
            raise self.lines.changed()
        bad = self.total(BAD)
        if not bad:
            return []
        words = self._first()
        if on_bad_line != "skip":
            raise DataError(
                f"{words} (data.on_bad_line: skip leaves such lines out and counts them)", code="data/bad-line"
            )
        left_out["bad lines"] = bad
        return [f"{bad:,} lines cannot be parsed and are left out; the first: {words}"]

    def _first(self) -> str:
        from hogwild.kernels.parsing.libsvm import BAD, LINE_AT, RULE, TOKEN_AT

        piece = int(np.flatnonzero(self.found[:, BAD])[0])
        row = self.found[piece]
        content = self.lines.piece(piece, self.regions).tobytes()
        line, at = content[row[LINE_AT] :].split(b"\n", 1)[0], int(row[TOKEN_AT] - row[LINE_AT])
        token = re.split(rb"[\s,;]|::", line[max(at, 0) :], maxsplit=1)[0]
        rule = self.rules[int(row[RULE])].replace("TOKEN", repr(shown(token)))
        return f"{self.place(piece, content, int(row[LINE_AT]))}: {rule}: {shown(line)!r}"

    def place(self, piece: int, content: bytes, at: int) -> str:
        """`FILE: line 12`, of byte `at` of a piece."""
        return f"{self.lines.path}: line {self.line_number(piece) + content.count(bytes([10]), 0, at):,}"

    def line_number(self, piece: int) -> int:
        """Of the first line of a piece."""
        from hogwild.kernels.parsing.libsvm import LINES

        return self.lines.first_line + int(self.found[:piece, LINES].sum())


def shown(line: bytes) -> str:
    """A line for a message: decoded whatever it holds, and shortened."""
    text = line[: 4 * SHOWN].decode("utf-8", "backslashreplace").rstrip("\r")
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def zeros(name: str, shape: tuple[int, ...], dtype: str) -> Region:
    """Memory for all, of that many numbers."""
    return Region.allocate(name, int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize)


def moved_together(array: np.ndarray, begins: np.ndarray, counts: np.ndarray) -> None:
    """What pieces wrote from begins[piece] on, counts[piece] each, is moved down until there is no gap. In place."""
    to = 0
    for begin, many in zip(begins[: len(counts)].tolist(), counts.tolist(), strict=True):
        if to != begin and many:
            array[to : to + many] = array[begin : begin + many]
        to += many


def begins_of(counts: np.ndarray) -> np.ndarray:
    """(n + 1,) int64: where each begins, and the end of all."""
    begins = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=begins[1:])
    return begins


@dataclass(frozen=True, slots=True)
class Count:
    """How many lines each piece has. `kind`: what will parse them (`kernels/parsers_cache.py`)."""

    lines: TextLines
    kind: str
    mark: int = ord(":")  # counted, too: of libsvm's pairs there are as many

    def ready(self) -> None:
        from hogwild.kernels.parsing import warm_up

        warm_up.ready(self.kind)

    def do(self, piece: int, regions: Mapping[str, Region]) -> None:
        from hogwild.kernels.parsing.libsvm import count

        count(self.lines.piece(piece, regions), self.mark, found_in(regions, self.lines)[piece])


def counted(
    run: Run, what: str, lines: TextLines, regions: dict[str, Region], kind: str, mark: int = ord(":")
) -> np.ndarray:
    """The first pass over a text: (pieces, FOUND) int64 of what its pieces hold, in `regions`, for all processes."""
    from hogwild.kernels.parsing.libsvm import FOUND

    regions["found"] = zeros("found", (lines.pieces, FOUND), "i8")
    run(Pass(what, lines.pieces, Count(lines, kind, mark), regions))
    return found_in(regions, lines)


def found_in(regions: Mapping[str, Region], lines: TextLines) -> np.ndarray:
    """(pieces, FOUND) int64"""
    from hogwild.kernels.parsing.libsvm import FOUND

    return regions["found"].array("i8", (lines.pieces, FOUND))


def empty_file(path: Path, left_out: Mapping[str, int]) -> DataError:
    skipped = f"; {left_out['bad lines']:,} lines cannot be parsed" if "bad lines" in left_out else ""
    return DataError(f"{path}: contains no samples: there is no row{skipped}", code="data/empty")
