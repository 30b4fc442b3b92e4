"""Files and links that are replaced as a whole: written aside (`.tmp-NAME-PID`), then renamed, so that a reader sees
the old one or the new one."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hogwild.storage.records import explained

TEMPORARY = ".tmp-"


@contextlib.contextmanager
def temporary(file: Path) -> Iterator[Path]:
    """The name beside `file` under which it is written before it is renamed; what is still there at the end goes."""
    aside = file.with_name(f"{TEMPORARY}{file.name}-{os.getpid()}")
    try:
        yield aside
    finally:
        aside.unlink(missing_ok=True)


def replace(file: Path, content: bytes, sync: bool) -> None:
    with temporary(file):
        write_aside(file, content, sync).replace(file)
    if sync:
        sync_folder(file.parent)


def write_aside(file: Path, content: bytes, sync: bool) -> Path:
    aside = file.with_name(f"{TEMPORARY}{file.name}-{os.getpid()}")
    try:
        with open(aside, "wb") as stream:
            stream.write(content)
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return aside


def sync_folder(folder: Path) -> None:
    """Makes names made or changed in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def point(link: Path, name: str) -> None:
    """A symbolic link to `name` beside it: relative, so that a run can be moved."""
    with explained(f"cannot update {link}"), temporary(link) as aside:
        aside.unlink(missing_ok=True)  # of a process that had our number
        aside.symlink_to(name)
        aside.replace(link)
