"""Files that no reader ever sees half written: whole files and links, written to `.tmp-NAME-PID` and renamed, and
records, of which each is one line, appended by one write."""

import contextlib
import io
import json
import math
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hogwild.errors import RunDirError

TEMPORARY = ".tmp-"
MOST_BYTES = 16 << 20  # of a file that any code may have written


def home() -> Path:
    """Return the user's home folder; without one (HOME unset in a container, a user without an entry in passwd) a place
    that nobody can write to, not even root."""
    found = Path(os.path.expanduser("~"))
    return found if found.is_absolute() else Path(os.devnull)


@contextlib.contextmanager
def temporary(file: Path) -> Iterator[Path]:
    """Yield the temporary name beside `file`, to be written and renamed; remove it at the end if it still exists."""
    aside = file.with_name(f"{TEMPORARY}{file.name}-{os.getpid()}")
    aside.unlink(missing_ok=True)  # left by a process with the same PID
    try:
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def replace(file: Path, content: bytes, sync: bool) -> None:
    with temporary(file) as aside:
        with open(aside, "wb") as stream:
            stream.write(content)
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        aside.replace(file)
    if sync:
        sync_folder(file.parent)


def read_regular(file: Path, begin: int = 0, most: int = MOST_BYTES) -> bytes:
    """Return what a file that any code may have written has after `begin`, at most `most` bytes; b"" for anything else
    than a file: a pipe or a device does not block. Raises OSError."""
    reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(reader).st_mode):
            return b""
        with open(reader, "rb", closefd=False) as stream:
            stream.seek(begin)
            return stream.read(most)
    finally:
        os.close(reader)


def file_bytes(file: Path) -> int:
    """Return the size of a file; 0 if it is not there."""
    with contextlib.suppress(OSError):
        return file.stat().st_size
    return 0


def sync_folder(folder: Path) -> None:
    """Make names created or changed in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def point(link: Path, name: str) -> None:
    """Make `link` a symbolic link to `name` beside it: relative, so that a run can be moved."""
    with explained(f"cannot update {link}"), temporary(link) as aside:
        aside.symlink_to(name)
        aside.replace(link)


BLOCK = 1 << 16  # bytes read at once, from the end


class Records:
    """An append-only file of one JSON object per line; opened with the first record. One writer.

    A record is written by a single write at the end of the file. If a full disk accepts only a part, that part is cut
    off again, so that a reader never sees half a line. A line torn by a killed writer is cut off at the next
    opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def append(self, record: dict[str, Any]) -> None:
        """Append a record. Raises RunDirError if it cannot be written; the file is then unchanged."""
        line = json.dumps(to_json(record), allow_nan=False, separators=(",", ":")) + "\n"
        self._append(line.encode())

    def try_append_text(self, line: str) -> bool:
        """Append a line of plain text (the supervisor's log); return False if that fails."""
        return tried(lambda: self._append(line.encode(errors="backslashreplace") + b"\n"))

    def try_append(self, record: dict[str, Any]) -> bool:
        """Append a record; return False on failure, which must not stop training. The caller reports it, once."""
        return tried(lambda: self.append(record))

    def cut(self, size: int) -> None:
        """Keep only the first `size` bytes. Call it in the thread that appends. Raises RunDirError."""
        with explained(f"cannot cut {self.path}"):
            if self.path.exists():
                os.truncate(self.path, size)

    def sync(self) -> None:
        """Make everything appended or cut survive a power cut; may take long. Raises RunDirError."""
        with explained(f"cannot write {self.path}"), open(self.path, "ab") as stream:
            os.fsync(stream.fileno())

    def backwards(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, line), the last line first; it may lack its newline. Raises RunDirError."""
        with explained(f"cannot read {self.path}"):
            if self.path.exists():
                yield from _backwards(self.path)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, line: bytes) -> None:
        with explained(f"cannot append to {self.path}"):
            if self._descriptor < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                descriptor = os.open(self.path, flags, 0o644)
                begin, last = next(_backwards(self.path), (0, b"\n"))
                if not last.endswith(b"\n"):
                    os.ftruncate(descriptor, begin)
                self._descriptor = descriptor
            before = os.fstat(self._descriptor).st_size
            written = 0
            try:
                written = os.write(self._descriptor, line)
            finally:
                if written < len(line):
                    os.ftruncate(self._descriptor, before)
            if written < len(line):
                raise OSError(f"only {written} of {len(line)} bytes could be written (disk full?)")


def to_json(value: Any) -> Any:
    """Return `value` with JSON types only: NaN and infinity become None, numpy and torch scalars numbers, paths
    strings, tuples lists. Raises TypeError for anything else."""
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


def object_of(text: str | bytes | bytearray) -> dict[str, Any] | None:
    """Return the JSON object in a text that any code may have written; None for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _backwards(path: Path) -> Iterator[tuple[int, bytes]]:
    with open(path, "rb") as stream:
        begin, rest = stream.seek(0, os.SEEK_END), b""
        while begin > 0:
            size = min(BLOCK, begin)
            begin = stream.seek(begin - size)
            rest, *lines = io.BytesIO(stream.read(size) + rest).readlines()
            end = begin + len(rest) + sum(len(line) for line in lines)
            for line in reversed(lines):
                end -= len(line)
                yield end, line
    if rest:
        yield 0, rest


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn an OSError into a RunDirError that says which action failed and why."""
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
