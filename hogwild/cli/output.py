"""Output of all commands: results on standard output, messages on standard error. Standard streams may be closed, full,
or have lost their reader."""

import contextlib
import csv
import errno
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hogwild.errors import RunError, UsageError
from hogwild.host import raising_on_signals
from hogwild.host.terminal import printable

NUMBER = re.compile(r"-|\d[\d.,:e+-]*( %)?")
LAST_STANDARD = 2  # 0, 1, 2: standard input, output, error
MOST_LETTERS = 60  # of a name or a cell that a terminal shows


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Raise on signals while a job file is read, which may be an endless pipe; not during the imports for it."""
    import hogwild.config.load  # noqa: F401

    with raising_on_signals():
        yield


def print_result(*texts: str) -> None:
    """Print a result, one text after the other. A reader that has left (`hogwild show | head`, a closed terminal) is
    not an error. Raises RunError, for example for a full disk."""
    with contextlib.suppress(BrokenPipeError):
        for text in texts:
            print_part(text)


def print_answer(record: Mapping[str, Any], lines: Iterable[str], as_json: bool) -> None:
    """Print a result: with --json as one object, otherwise as lines."""
    print_result(*([json.dumps(record)] if as_json else lines))


def aligned(rows: Sequence[Sequence[str]], width: int | None = None, *, least: int = 8) -> list[str]:
    """Return a table's title and rows as lines of one length. Columns of numbers stand right; the second column is cut,
    down to `least`, if the lines would be longer than `width`."""
    columns = [*zip(*rows, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    if width is not None:
        room = width - sum(widths) + widths[1] - 2 * (len(widths) - 1)
        widths[1] = min(widths[1], max(least, room))
    sides = [">" if all(map(NUMBER.fullmatch, column[1:])) else "<" for column in columns]
    shapes = [*zip(sides, widths, strict=True)]
    return [
        "  ".join(f"{cut(cell, most):{side}{most}}" for cell, (side, most) in zip(row, shapes, strict=True))
        for row in rows
    ]


def cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def for_people(cell: object) -> str:
    """Return a name or a cell as a terminal shows it: on one line, a long one cut. Elsewhere it stays as it is."""
    text = str(cell)
    return cut(printable(text).replace("\n", " "), MOST_LETTERS) if _is_terminal() else text


def _table_for_people(content: str) -> str:
    """Return lines of CSV as a terminal shows them."""
    if not _is_terminal():
        return content
    lines = io.StringIO()
    rows = csv.reader(io.StringIO(content, newline=""))
    csv.writer(lines, lineterminator="\n").writerows([*map(for_people, row)] for row in rows)
    return lines.getvalue()


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def print_part(text: str) -> None:
    """Print a part of a result that does not end by itself. Raises BrokenPipeError if its reader has left, RunError as
    `print_result`."""
    try:
        print(text, flush=True)
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.EIO):
            raise BrokenPipeError from error
        raise RunError(f"cannot write the result to standard output: {error.strerror}", code="run/stdout") from error


def put_parts(parts: Iterable[tuple[int, bytes]], out: Path | None, what: str) -> None:
    """Print encoded rows, (their number, text); or write them to a file, and print how many `what` it has. Raises
    as `print_part` and `writing`."""
    from hogwild.inference.predict import of_one_width, writing

    if out is None:
        for _, content in of_one_width(parts):
            print_part(_table_for_people(content.decode()).removesuffix("\n"))
        return

    count = 0
    with writing(out) as writer:
        for rows, content in of_one_width(parts) if out.suffix == ".csv" else parts:
            writer.append(content)
            count += rows
    print_result(f"{count:,} {what}: {out}")


def print_message(message: str) -> None:
    """Print a message on standard error; ignore errors, as the exit status remains."""
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def file_exists(file: Path) -> UsageError:
    """Return the error of a command that would overwrite a file."""
    words = f"{file} already exists; replace it with --force, or choose another file with --out"
    return UsageError(words, code="usage/file-exists")


def hold_standard_streams() -> None:
    """Open /dev/null as descriptors 0 to 2 if they are closed: otherwise the next file or pipe would get these numbers,
    and everything that native code prints."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= LAST_STANDARD:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is None:  # `print(file=None)` would write to standard output
        sys.stderr = os.fdopen(os.dup(LAST_STANDARD), "w")
    for stream in (sys.stdout, sys.stderr):  # a terminal that cannot show `→` is shown `\u2192`, not an error
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):  # POSIX: the latter
            stream.reconfigure(errors="backslashreplace")


def flush_results() -> None:
    """Flush both streams; on an error drop their content, or the flush at exit would change the exit status."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
