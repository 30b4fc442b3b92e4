"""The first lines of a text file: column names, and signs of a wrong delimiter or encoding."""

import codecs
import contextlib
from collections.abc import Collection

from hogwild.data.file_kind import not_text
from hogwild.data.text_file import TextFile, TextStream
from hogwild.data.text_parsing.table_text import Format
from hogwild.errors import DataError

HEADER_BYTES = 1 << 20  # bytes in which the header, or the first row, must end
OTHER_DELIMITERS = (",", ";", "\t", "|", " ")


def read_header(
    text: TextFile | TextStream,
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
    start, line = _skipped(text, head, start, skip_lines)
    record, end, next_line = _first_record(text, head, start, line, encoding, delimiter)
    if len(record) == 1 and has_target:
        _refuse_one_column(text, record[0], line, delimiter)
    if not has_header:
        return [str(place) for place in range(len(record))], start, line
    names = [name.strip() for name in record]
    names[0] = names[0].lstrip("# ") or names[0]  # a header that is marked as a comment
    _check_names(text, names, line)
    return names, end, next_line


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


def _skipped(text: TextFile | TextStream, head: bytes, start: int, skip_lines: int) -> tuple[int, int]:
    """Return offset and number of the first line that counts: after `skip_lines` and the empty lines behind them."""
    line = 1
    while start < len(head):
        end = head.find(b"\n", start)
        content = head[start : end if end >= 0 else len(head)]
        if skip_lines < line and content.strip(b"\r"):
            return start, line
        if end < 0:
            break
        start, line = end + 1, line + 1
    what = "is empty" if not head else f"has no line with text after the {skip_lines} skipped lines"
    raise DataError(f"{text.path}: {what if skip_lines or not head else 'holds only empty lines'}", code="data/empty")


def _first_record(
    text: TextFile | TextStream, head: bytes, start: int, line: int, encoding: str, delimiter: str
) -> tuple[list[str], int, int]:
    """Return the record's fields, the offset behind it and the line number there."""
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
            f'{where}: does not end within {HEADER_BYTES:,} bytes, or cannot be split into columns: {why}; is a quote (") not '
            "closed?",
            code="data/csv-quotes",
        )
    try:
        content.decode(encoding)
    except UnicodeDecodeError as error:
        raise not_text(where, content[error.start : error.start + 1], encoding) from error
    return record, start + len(content), line + max(1, shown.count("\n"))


def _refuse_one_column(text: TextFile | TextStream, content: str, line: int, delimiter: str) -> None:
    better = max(OTHER_DELIMITERS, key=lambda sign: content.count(sign) if sign != delimiter else 0)
    hint = f"; is it {better!r}?" if content.count(better) and better != delimiter else "."
    raise DataError(
        f"{text.path}: line {line}: only one column is found with the delimiter {delimiter!r}{hint} An input and "
        f"a target are needed: {content[:60]!r}",
        code="data/csv-delimiter",
    )


def _check_names(text: TextFile | TextStream, names: list[str], line: int) -> None:
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is None:
        return
    places = ", ".join(str(i) for i, name in enumerate(names) if name == twice)
    what = f"{twice!r} names the columns {places}" if twice else f"the columns {places} have no name"
    raise DataError(
        f"{text.path}: line {line}: {what}; column names must be unique (or set header: false)",
        code="data/csv-columns",
    )
