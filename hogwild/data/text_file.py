"""Text files in pieces: of complete lines, or of complete records with their places, so that any piece can be read and
parsed on its own.

The kind of a file is known by its first bytes and never by its name: packed content is unpacked, also twice; content of
another kind than a reader's is refused, with what it is."""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import numpy as np

from hogwild.data.locate import reading, require
from hogwild.errors import DataError

HEAD = 4096  # bytes that are looked at
MOST_TIMES = 3  # packed one in the other
MARK = codecs.BOM_UTF8  # some programs write it before UTF-8
PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"]\0\0": "xz",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"PK\3\4": "zip",
}
PARQUET = b"PAR1"
BAD_ZIP = (zipfile.BadZipFile, NotImplementedError, RuntimeError)  # also of another method, or with a password
# Beginnings of other kinds, with the cure. Those of BINARY may begin a text, too: a binary file has zeros behind them.
BINARY = {
    PARQUET: "a Parquet table; hogwild.data.Csv and Clicks read it if it is not packed again, other classes need text",
    b"ARROW1": "an Arrow (Feather) table; save it as Parquet or CSV",
    b"\xff\xff\xff\xff": "an Arrow stream; save it as Parquet or CSV",
    b"ORC": "an ORC table; save it as Parquet or CSV",
    b"SQLite format 3": "an SQLite database; export its table as CSV",
}
OTHERS = {
    b"\x93NUMPY": "a NumPy array (.npy); write arrays with numpy.savez, as hogwild.data.Npz reads them",
    b"\x89HDF": "an HDF5 file; save the table as Parquet or CSV",
    b"\xd0\xcf\x11\xe0": "a file of an old Office program; save the table as CSV",
    b"%PDF-": "a PDF document",
    b"\x80\x04\x95": "a Python pickle, which is never loaded; save the data as CSV or .npz",
    b"7z\xbc\xaf": "a 7z archive; unpack it",
    b"Rar!\x1a": "a rar archive; unpack it",
    b"\x04\x22\x4d\x18": "packed by lz4; unpack it",
    b"\x1f\x9d": "packed by compress (.Z); unpack it",
    b"version https://git-lfs.": "a pointer of Git LFS, not the file itself; fetch that with git lfs pull",
}
PAGE = re.compile(rb"\s*(<!doctype html|<html|<head\b)", re.IGNORECASE)
OBJECTS = re.compile(rb'\s*(\{\s*"|\[\s*[{\["])')  # JSON
MARKUP = re.compile(rb"\s*<\?xml")
Wanted = Literal["table", "text", "bytes"]


def opened(path: Path, raw: BinaryIO, wanted: Wanted) -> tuple[BinaryIO, ...]:
    """Return the stream of the unpacked content and those behind it, the last of which is `raw`, at its beginning.
    Raises DataError for content that is no text (`text`, `table`) or markup in the place of a table."""
    streams: tuple[BinaryIO, ...] = (raw,)
    while packed := _packing(_head(streams[0])):
        if len(streams) > MOST_TIMES:
            raise _other(path, f"packed more than {MOST_TIMES} times; unpack it")
        found: Any
        if packed == "gzip":
            found = gzip.GzipFile(fileobj=streams[0], mode="rb")
        elif packed == "bzip2":
            found = bz2.BZ2File(streams[0])
        elif packed == "xz":
            found = lzma.LZMAFile(streams[0])  # noqa: SIM115 until the file is closed
        elif packed == "zip":
            found = _only_member(path, zipfile.ZipFile(streams[0]))
        else:
            require("pyarrow", str(path), "pyarrow", "csv")
            import pyarrow

            found = pyarrow.CompressedInputStream(streams[0], "zstd")
        streams = (cast(BinaryIO, io.BufferedReader(found, 1 << 16)), *streams)
    refuse_other_kind(path, _head(streams[0]), wanted)
    return streams


def _only_member(path: Path, archive: zipfile.ZipFile) -> Any:
    names = [one.filename for one in archive.infolist() if not one.is_dir() and not one.filename.startswith("__MACOSX")]
    if "xl/workbook.xml" in names:
        raise _other(path, "an Excel workbook; save its table as CSV UTF-8")
    if len(names) != 1:
        shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
        raise DataError(
            f"{path}: the archive must contain one file, but has {len(names)} ({shown}); unpack it, and name the file",
            code="data/wrong-format",
        )
    return archive.open(names[0])


def _packing(head: bytes) -> str | None:
    return next((name for sign, name in PACKED.items() if head.startswith(sign)), None)


def refuse_packed(path: object, head: bytes) -> None:
    """Raise DataError for packed content, where it is not unpacked."""
    if packed := _packing(head):
        raise _other(path, f"packed by {packed}; unpack it first")


def _head(stream: BinaryIO) -> bytes:
    return cast(io.BufferedReader, stream).peek(HEAD)[:HEAD]


def refuse_other_kind(path: object, head: bytes, wanted: Wanted) -> None:
    """Raise DataError for the beginning of a file of another kind."""
    for sign, what in (OTHERS | BINARY if b"\0" in head else OTHERS).items():
        if head.startswith(sign):
            raise _other(path, what)
    if head[257:262] == b"ustar":
        raise _other(path, "a tar archive; unpack it, and name the file in it")
    if PAGE.match(head.removeprefix(MARK)):
        raise _other(path, "an HTML page, perhaps an error of the server it was fetched from; get the file again")
    if wanted == "bytes":
        return
    # ASCII in UTF-16 has a zero at every other place, and nowhere else.
    halves = (head[::2].strip(b"\0"), head[1::2].strip(b"\0"))
    is_wide = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or (b"\0" in head and b"" in halves)
    if is_wide or (wanted == "table" and b"\0" in head):
        what = "UTF-16; save it as UTF-8" if is_wide else "binary, not a text file: it contains zero bytes"
        raise DataError(f"{path}: is {what}", code="data/csv-encoding")
    if wanted == "table" and b"\r" in head.rstrip(b"\r") and b"\n" not in head:
        raise DataError(
            f"{path}: line 1: lines end with a carriage return only; save the file with \\n line ends",
            code="data/csv-line-ends",
        )
    if wanted == "table" and OBJECTS.match(head.removeprefix(MARK)):
        raise _other(path, "JSON, not a table; save it as CSV, for example with pandas.read_json(…).to_csv(…)")
    if wanted == "table" and MARKUP.match(head.removeprefix(MARK)):
        raise _other(path, "an XML document, not a table")


def _other(path: object, what: str) -> DataError:
    return DataError(f"{path}: is {what}", code="data/wrong-format")


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of reading and unpacking into DataError naming the file."""
    with reading(path):
        try:
            yield
        except (EOFError, zlib.error, lzma.LZMAError, OSError, *BAD_ZIP) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            with open(path, "rb") as file:
                head = file.read(HEAD)
            raise DataError(
                f"{path}: damaged or truncated {_packing(head) or 'packed'} file: {error}; get the file again",
                code="data/damaged-file",
            ) from error


def unmarked(content: bytes) -> bytes:
    """Return lines of UTF-8 without byte order marks at their beginning: they are where files were put together."""
    if MARK[:1] not in content:  # a search for one byte is ten times as fast as one for three
        return content
    return content.removeprefix(MARK).replace(b"\n" + MARK, b"\n")


def is_parquet(path: Path) -> bool:
    """Return whether a file is a Parquet table, whatever its name is."""
    with reading(path), open(path, "rb") as file:
        head = file.read(HEAD)
    return head.startswith(PARQUET) and b"\0" in head


def content_of(path: Path, wanted: Wanted) -> bytes:
    """Return the whole content, unpacked. Raises DataError."""
    with explained(path), contextlib.ExitStack() as streams:
        raw = streams.enter_context(open(path, "rb"))
        return opened(path, raw, wanted)[0].read()


def text_of(path: Path, wanted: Wanted, encoding: str | None = None) -> str:
    """Return the whole text, without a byte order mark. `encoding`: what the user's argument of this name says; None:
    there is none, and the text is UTF-8. Raises DataError with the line of bytes that are no text."""
    content = content_of(path, wanted)
    content = unmarked(content) if wanted == "table" else content.removeprefix(MARK)
    try:
        return content.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise not_text(f"{path}: line {line:,}", content[error.start : error.end], encoding) from None


def not_text(place: str, found: bytes, encoding: str | None) -> DataError:
    """Return the error for bytes that are not text in the `encoding` of the argument of this name, or in UTF-8."""
    cure = "convert the file" if encoding is None else "save it as UTF-8, or set encoding: latin-1 or cp1252"
    return DataError(f"{place}: {found!r} is not {encoding or 'utf-8'} text; {cure}", code="data/csv-encoding")


# ---- files and streams ----------------------------------------------------------------------------------------------

RECORDS = 1 << 17  # bytes of records in a piece: scanned to find a single record
LINES = 4 << 20  # bytes of lines in a piece
LF, CR, QUOTE = 10, 13, 34


class TextFile:
    """Bytes of a file by offset, unpacked. For one process and one reader: a packed stream is read
    forwards, and can go back only to its beginning. Picklable: the file is opened at the first read.

    Raises DataError naming the file if it cannot be read, is damaged, is not `wanted`, or was replaced since."""

    def __init__(self, path: Path, wanted: Wanted = "table") -> None:
        self.path, self._wanted = path, wanted
        self._streams: tuple[BinaryIO, ...] = ()  # the stream to read from, and those behind it
        self._last = 0, b""  # the last read and its offset: a packed stream would have to start again for it
        self._at = 0  # of a packed stream: the bytes that are read
        with reading(path):
            self._identity = _identity(os.stat(path))

    def read_at(self, offset: int, size: int) -> bytes:
        """Return `size` bytes from `offset`, fewer at the end of the file."""
        with explained(self.path):
            at, content = self._last
            known = content[offset - at : offset - at + size] if at <= offset < at + len(content) else b""
            if len(known) < size:
                known += self._read_new(offset + len(known), size - len(known))
            self._last = offset, known
            return known

    def lines(self, begin: int = 0, size: int | None = None) -> Iterator[bytes]:
        """Yield the text from byte `begin` on, in pieces of complete lines, of about `size` bytes (`LINES`)."""
        parts: list[bytes] = []
        while content := self.read_at(begin, size or LINES):
            begin += len(content)
            end = content.rfind(b"\n") + 1
            if end:
                yield b"".join([*parts, content[:end]])
                parts = []
            parts.append(content[end:])
        if len(self._streams) == 1 and begin < self._identity[1]:
            raise self.changed()
        if rest := b"".join(parts):
            yield rest

    @property
    def progress(self) -> tuple[int, int]:
        """The bytes of the file, as it is stored, that are read, and its size."""
        size = self._identity[1]
        return (min(self._streams[-1].tell(), size) if self._streams else 0), size

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
        self._streams, self._last = (), (0, b"")

    def changed(self) -> DataError:
        return DataError(
            f"{self.path}: was changed after its rows were counted; start again when the file is complete",
            code="data/file-changed",
        )

    def hash_into(self, digest: Any) -> None:
        """Add the file's bytes, as stored on disk, to a `hashlib` object."""
        with reading(self.path), open(self.path, "rb", buffering=0) as stream:
            while chunk := stream.read(4 << 20):
                digest.update(chunk)

    def __del__(self) -> None:
        if "_streams" in self.__dict__:
            self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_streams": (), "_last": (0, b"")}

    def _read_new(self, offset: int, size: int) -> bytes:
        if len(self._streams) > 1 and offset < self._at:
            self.close()
        stream = self._streams[0] if self._streams else self._open()
        if len(self._streams) == 1:
            stream.seek(offset)
            return stream.read(size)
        while self._at < offset and (skipped := stream.read(min(LINES, offset - self._at))):
            self._at += len(skipped)
        found = stream.read(size)
        self._at += len(found)
        return found

    def _open(self) -> BinaryIO:
        raw = open(self.path, "rb")  # noqa: SIM115 until `close`
        self._streams, self._at = (raw,), 0
        if _identity(os.fstat(raw.fileno())) != self._identity:
            self.close()
            raise self.changed()
        try:
            self._streams = opened(self.path, raw, self._wanted)
        except BaseException:
            self.close()  # the next read must not find the raw file
            raise
        return self._streams[0]


class TextStream:
    """Text that cannot be read twice, such as standard input, in the place of a `TextFile`: a header, then pieces that
    end with a record or a line, as soon as they are there. For one process."""

    progress = (0, 0)

    def __init__(self, path: Path, descriptor: int) -> None:
        """`path`: its name in messages."""
        self.path, self._descriptor = path, descriptor
        self._kept = b""  # read, and not yet taken
        self._is_over = self._is_begun = False

    def wait_for_header(self, skip_lines: int) -> None:
        """Read until there is a whole record behind the first `skip_lines` lines, or the end."""
        while not self._is_over and len(self._kept) < RECORDS << 3:
            *skipped, rest = self._kept.split(b"\n", skip_lines)
            if len(skipped) == skip_lines and len(record_ends(np.frombuffer(rest, np.uint8), 0, is_quoted=False)[1]):
                return
            self._read()

    def read_at(self, offset: int, size: int) -> bytes:
        """Return what was read and not yet taken; only the beginning can be looked at."""
        return self._kept[offset : offset + size]

    def records(self, begin: int, line: int) -> Iterator[tuple[bytes, int, int]]:
        """Take pieces (text, records in it, number of its first line) from byte `begin` of what was read on, where
        `line` begins. Raises DataError if it ends inside quotes."""
        self._kept = self._kept[begin:]
        while True:
            newlines, ends = record_ends(np.frombuffer(self._kept, np.uint8), 0, is_quoted=False)
            if len(ends):
                content, self._kept = self._kept[: ends[-1] + 1], self._kept[ends[-1] + 1 :]
                yield content, len(ends), line
                line += int(np.count_nonzero(newlines <= ends[-1]))
            if self._is_over:
                break
            self._read()
        if self._kept.count(b'"') % 2:
            raise DataError(
                f'{self.path}: after line {line}: a quote (") is not closed before the end', code="data/csv-quotes"
            )
        if self._kept.strip(b"\r\n"):
            yield self._kept, 1, line

    def lines(self, begin: int = 0) -> Iterator[bytes]:
        """Take pieces of whole lines, from byte `begin` of what was read on."""
        self._kept = self._kept[begin:]
        while True:
            end = self._kept.rfind(b"\n") + 1
            if end:
                content, self._kept = self._kept[:end], self._kept[end:]
                yield content
            if self._is_over:
                break
            self._read()
        if self._kept:
            yield self._kept

    def close(self) -> None:
        """No-op: the descriptor is the caller's."""

    def _read(self) -> None:
        with reading(self.path):
            content = os.read(self._descriptor, 2 * RECORDS)
        if not self._is_begun:
            refuse_packed(self.path, content)
            refuse_other_kind(self.path, content[:HEAD], "table")
            self._is_begun = True
        self._is_over = not content
        self._kept += content


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns


# ---- records --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordPieces:
    """Records of a text, in pieces that end with a record. Of each piece, and of the end: the byte where it begins, the
    records before it, and its first line's number."""

    begins: np.ndarray  # (pieces + 1,) int64
    records: np.ndarray  # (pieces + 1,) int64
    lines: np.ndarray  # (pieces + 1,) int64

    @property
    def rows(self) -> int:
        return int(self.records[-1])

    def read(self, text: TextFile, first: int, stop: int) -> tuple[bytes, int]:
        """Return the bytes of the records [first, stop), with the empty lines before them, and the number of their
        first line. first < stop. Raises DataError for a changed file."""
        early, late = (int(np.searchsorted(self.records, record, side="right")) - 1 for record in (first, stop - 1))
        offset, until = int(self.begins[early]), int(self.begins[late + 1])
        content, line = text.read_at(offset, until - offset), int(self.lines[early])
        if len(content) < until - offset:
            raise text.changed()
        first, stop = first - int(self.records[early]), stop - int(self.records[early])
        if first == 0 and stop == self.records[late + 1] - self.records[early]:
            return content, line
        _, ends = record_ends(np.frombuffer(content, np.uint8), 0, is_quoted=False)
        begin = int(ends[first - 1]) + 1 if first else 0
        end = int(ends[stop - 1]) + 1 if stop <= len(ends) else len(content)  # the last record may have no line end
        return content[begin:end], line + content.count(b"\n", 0, begin)


def find_records(text: TextFile, start: int, first_line: int) -> RecordPieces:
    """Scan every byte from `start` on, where line `first_line` begins. A record ends at a line end outside quotes;
    empty lines are not records. 0.4 s per gigabyte; with quoted short values up to 5 s, as every quote counts.
    Raises DataError if the file ends inside quotes."""
    begins, records, lines = [start], [0], [first_line]
    at, ended, line, tail, is_quoted = start, 0, first_line, b"", False
    while content := text.read_at(at, RECORDS):
        block = tail + content
        many, ends, last, before = _scanned(block, len(tail), is_quoted)
        if ends:
            ended += ends
            begins.append(at - len(tail) + last + 1)
            records.append(ended)
            lines.append(line + before)
        at, line, tail = at + len(content), line + many, block[-2:]
        is_quoted ^= bool(content.count(b'"') & 1)
    if is_quoted:
        # The cause is the first line with an odd number of quotes; it shows only at the end of the file.
        content = text.read_at(start, 2 * RECORDS)
        many = content.count(b"\n")
        numbered = enumerate(content.split(b"\n"), first_line)
        odd = next((number for number, one in numbered if one.count(b'"') % 2), None)
        place = f"line {odd}" if odd is not None else f"after line {first_line + many}"
        raise DataError(
            f'{text.path}: {place}: a quote (") is not closed before the end of the file; write a quote in a value '
            'twice, and the value in quotes: "5"" pipe"',
            code="data/csv-quotes",
        )
    if tail.strip(b"\r\n") and not tail.endswith(b"\n"):  # the last line has no line end
        begins.append(at)
        records.append(ended + 1)
        lines.append(line)
    return RecordPieces(np.array(begins), np.array(records), np.array(lines))


def _scanned(block: bytes, lead: int, is_quoted: bool) -> tuple[int, int, int, int]:
    """Return how many line ends there are from `lead` on, as in `record_ends`, and of them, ends of records; the place
    of the last of these, and the number of line ends up to it."""
    if not is_quoted and b'"' not in block and b"\r" not in block:
        is_end = np.frombuffer(block, np.uint8) == LF
        if (lead or not is_end[0]) and not (is_end[1:] & is_end[:-1]).any():  # no empty line: each ends a record
            many = int(np.count_nonzero(is_end[lead:]))
            return many, many, block.rfind(b"\n"), many
    newlines, ends = record_ends(np.frombuffer(block, np.uint8), lead, is_quoted)
    last = int(ends[-1]) if len(ends) else -1
    return len(newlines), len(ends), last, int(np.searchsorted(newlines, last, side="right"))


def record_ends(content: np.ndarray, lead: int, is_quoted: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the places in `content` of all line ends and of those that end a record, from `lead` (0, 1 or 2) on; the
    bytes before are the end of the previous block. `is_quoted`: content[lead:] begins inside quotes."""
    newlines = np.flatnonzero(content == LF)
    newlines = newlines[np.searchsorted(newlines, lead) :]
    one, two = (content.take(newlines - back, mode="clip") for back in (1, 2))
    one[newlines < 1] = two[newlines < 2] = LF  # at the very beginning a line end ends an empty line
    is_end = (one != LF) & ((one != CR) | (two != LF))
    if is_quoted or (content == QUOTE).any():
        quotes = np.flatnonzero(content == QUOTE)
        before = np.searchsorted(quotes[quotes >= lead], newlines) + int(is_quoted)
        is_end &= before % 2 == 0
    return newlines, newlines[is_end]


def quotes_are_whole(content: bytes, delimiter: bytes) -> bool:
    """Return whether all quotes are around whole fields, or doubled in them. pyarrow reads on behind any other."""
    text = np.frombuffer(b"\n" + content + b"\n", np.uint8)
    quotes = np.flatnonzero(text == QUOTE)
    is_edge = np.zeros(256, bool)
    is_edge[[ord(delimiter), LF, QUOTE]] = True
    begins_well = is_edge[text[quotes[::2] - 1]].all()
    is_edge[CR] = True
    return bool(len(quotes) % 2 == 0 and begins_well and is_edge[text[quotes[1::2] + 1]].all())


def whole_records(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Cut pieces of complete lines where a record ends, if that is within a few of them."""
    rest = b""
    for piece in pieces:
        content, rest = rest + piece, b""
        if b'"' in content:
            _, ends = record_ends(np.frombuffer(content, np.uint8), 0, is_quoted=False)
            end = int(ends[-1]) + 1 if len(ends) else 0
            if end or len(content) < 4 * LINES:
                content, rest = content[:end], content[end:]
        if content:
            yield content
    if rest:
        yield rest
