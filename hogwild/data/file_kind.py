"""The kind of a file, by its first bytes and never by its name: packed content is unpacked, also twice; content of
another kind than a reader's is refused, with what it is."""

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

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
        streams = (_unpacked(path, streams[0], packed), *streams)
    refuse_other_kind(path, _head(streams[0]), wanted)
    return streams


def _packing(head: bytes) -> str | None:
    return next((name for sign, name in PACKED.items() if head.startswith(sign)), None)


def refuse_packed(path: object, head: bytes) -> None:
    """Raise DataError for packed content, where it is not unpacked."""
    if packed := _packing(head):
        raise _other(path, f"packed by {packed}; unpack it first")


def _head(stream: BinaryIO) -> bytes:
    return cast(io.BufferedReader, stream).peek(HEAD)[:HEAD]


def _unpacked(path: Path, stream: BinaryIO, packed: str) -> BinaryIO:
    found: Any
    if packed == "gzip":
        found = gzip.GzipFile(fileobj=stream, mode="rb")
    elif packed == "bzip2":
        found = bz2.BZ2File(stream)
    elif packed == "xz":
        found = lzma.LZMAFile(stream)  # noqa: SIM115 until the file is closed
    elif packed == "zip":
        found = _only_member(path, zipfile.ZipFile(stream))
    else:
        require("pyarrow", str(path), "pyarrow", "csv")
        import pyarrow

        found = pyarrow.CompressedInputStream(stream, "zstd")
    return cast(BinaryIO, io.BufferedReader(found, 1 << 16))


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
    return content.removeprefix(MARK).replace(b"\n" + MARK, b"\n") if MARK in content else content


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
