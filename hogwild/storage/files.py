"""Atomic replacement of files and links: written to `.tmp-NAME-PID`, then renamed. A reader sees the old or the new
one."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from hogwild.storage.records import explained

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
