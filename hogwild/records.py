"""Records: a file of one JSON object, or one line of text, per line, appended to so that nobody ever sees half a
line."""

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hogwild.errors import RunDirError


class Records:
    """A file of one JSON object per line, appended to; opened with the first record. One writer.

    A record is written by a single write at the end of the file; what a full disk lets through of it is taken
    back, so that a reader never sees half a line, and what a killed writer tore is cut off before the next
    one goes on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def append(self, record: dict[str, Any]) -> None:
        """Raises RunDirError when it cannot be written; the file is then as before."""
        line = json.dumps(to_json(record), allow_nan=False, separators=(",", ":")) + "\n"
        self._append_explained(line.encode())

    def try_append_text(self, line: str) -> bool:
        """The same for a line of plain text (the supervisor's log)."""
        return tried(lambda: self._append_explained(line.encode(errors="backslashreplace") + b"\n"))

    def try_append(self, record: dict[str, Any]) -> bool:
        """False instead of an error, for what training must not stop for. The caller says so, once."""
        return tried(lambda: self.append(record))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append_explained(self, line: bytes) -> None:
        with explained(f"cannot append to {self.path}"):
            self._append(line)

    def _append(self, line: bytes) -> None:
        if self._descriptor < 0:
            self._descriptor = _open_records(self.path)
        before = os.fstat(self._descriptor).st_size
        written = 0
        try:
            written = os.write(self._descriptor, line)
        finally:
            if written < len(line):
                os.ftruncate(self._descriptor, before)
        if written < len(line):
            raise OSError(f"only {written} of {len(line)} bytes fitted on the disk")


def to_json(value: Any) -> Any:
    """Only what JSON has: NaN and infinity become None, numpy and torch scalars numbers, paths strings,
    tuples lists. Raises TypeError for anything else."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    if callable(getattr(value, "item", None)):
        return to_json(value.item())
    raise TypeError(f"cannot be written as JSON: {value!r} ({type(value).__name__})")


def _open_records(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    content = path.read_bytes()
    if content and not content.endswith(b"\n"):
        os.ftruncate(descriptor, content.rfind(b"\n") + 1)
    return descriptor


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns the system's error into ours: what could not be done, and the system's word for why."""
    try:
        yield
    except OSError as error:
        raise RunDirError(f"{what}: {error.strerror or error}", code="run/not-writable") from error


def tried(action: Callable[[], object]) -> bool:
    try:
        action()
    except RunDirError:
        return False
    return True
