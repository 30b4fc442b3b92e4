"""Folders that are complete or absent, after any crash: checkpoints, compiled code, parsed data.

    .tmp-NAME-PID/    files, hashed and synced; last manifest.json: size and hash of each file, and a hash of itself
         |  rename, sync the folder above
    NAME/             now it exists

A reader sees all of a folder or nothing, and compares it with the manifest before it uses a byte. A killed writer
leaves only a temporary name. The one owner of a folder removes those at once, as nobody else writes there (`sweep`).
Where several processes write, a day must have passed (`sweep_stale`); if two publish the same name, the first wins."""

import contextlib
import hashlib
import json
import os
import shutil
import stat
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from hogwild.storage.files import TEMPORARY, sync_folder

MANIFEST = "manifest.json"
REPLACED = ".old-"  # prefix of a folder that is being replaced
STALE_S = 24 * 3600.0  # a temporary name this old has no writer any more
CHUNK = 4 << 20  # bytes: large enough to be fast, small enough to let other threads run

Entry = dict[str, Any]  # of a file in the manifest: its hash, under the name of the algorithm, and its size
Digest: TypeAlias = "hashlib._Hash | Crc32"


class Crc32:
    """zlib's checksum, with the methods of a hash: more than twice as fast as SHA-256, and enough against damage."""

    name = "crc32"

    def __init__(self) -> None:
        self._value = 0

    def update(self, content: Any, /) -> None:
        self._value = zlib.crc32(content, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


class UnreadableFile(OSError):
    """A file of a published folder that cannot be read. Its text is a sentence with the file's name."""


# ---- writing


class HashedFile:
    """A new file, hashed while it is written in chunks; hashing and writing release the interpreter lock.

    The first error is kept and raised by `finish`: raised inside torch's zip writer, it would be replaced by
    'unexpected pos', and torch might write on."""

    def __init__(self, path: Path, digest: "Digest | None" = None) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._digest = digest or hashlib.sha256()
        self.size = 0
        self.error: OSError | None = None

    def write(self, content: Any) -> int:
        whole = memoryview(content)
        for chunk in chunks(whole.cast("B")) if whole.nbytes else ():  # an empty array cannot be cast
            if self.error is not None:
                break
            self._digest.update(chunk)
            self.size += len(chunk)
            try:
                while chunk:
                    chunk = chunk[os.write(self._descriptor, chunk) :]
            except OSError as error:
                self.error = error
        return whole.nbytes

    def flush(self) -> None:
        """No-op: torch.save calls it, but nothing is buffered here."""

    def finish(self) -> Entry:
        """Sync the file and return its entry. Raises the first OSError."""
        if self.error is not None:
            raise self.error
        os.fsync(self._descriptor)
        return {self._digest.name: self._digest.hexdigest(), "size": self.size}

    def close(self) -> None:
        os.close(self._descriptor)


def chunks(whole: memoryview) -> Iterator[memoryview]:
    return (whole[start : start + CHUNK] for start in range(0, len(whole), CHUNK))


@contextlib.contextmanager
def written_aside(target: Path, room: Path | None = None) -> Iterator[Path]:
    """Yield a new folder in `room`, by default beside `target`, to be filled and published; remove it at the end if it
    still exists. Raises OSError."""
    aside = (room or target.parent) / f"{TEMPORARY}{target.name}-{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)  # left by a process that had our number
    try:
        aside.mkdir()
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def write_manifest(aside: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest, after all files, and sync the folder. Raises OSError."""
    with contextlib.closing(HashedFile(aside / MANIFEST)) as file:
        file.write(seal(content))
        file.finish()
    sync_folder(aside)


def publish(aside: Path, target: Path) -> None:
    """Rename `aside` to `target`, unless another process was first: its folder is as good. Raises OSError."""
    try:
        aside.rename(target)
    except OSError:
        if not (target / MANIFEST).exists():
            raise
    sync_folder(target.parent)


def publish_instead(aside: Path, target: Path) -> None:
    """Rename `aside` to `target` and replace what has that name: `sweep` undoes it if we die between the two
    renames, and this function does if the second one fails. Only for the one owner of the folder. Raises OSError."""
    replaced = target.with_name(REPLACED + target.name)
    shutil.rmtree(replaced, ignore_errors=True)
    if target.exists():
        target.rename(replaced)
    try:
        aside.rename(target)
    except OSError:
        if replaced.exists():
            replaced.rename(target)
        raise
    sync_folder(target.parent)
    shutil.rmtree(replaced, ignore_errors=True)


# ---- reading


def seal(content: Mapping[str, Any]) -> bytes:
    """Return the manifest's bytes, with a hash over the rest. The encoding is canonical, so any changed byte shows."""
    body = json.dumps(content, sort_keys=True, allow_nan=False)
    sealed = {**content, "seal": hashlib.sha256(body.encode()).hexdigest()}
    return (json.dumps(sealed, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def read_manifest(folder: Path) -> tuple[dict[str, Any], bool]:
    """Return the manifest's content, as far as it can be read, and whether it is undamaged. Raises UnreadableFile."""
    with _regular_file(folder / MANIFEST) as descriptor, open(descriptor, "rb", closefd=False) as stream:
        raw = stream.read()
    content: dict[str, Any] = {}
    try:
        content = json.loads(raw)
        content.pop("seal")
        return content, seal(content) == raw
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return content if isinstance(content, dict) else {}, False


def entry_of(path: Path, digest: "Digest | None" = None, *, sync: bool = False) -> Entry:
    """Read a file and return its entry, to be compared with the manifest's or, with `sync`, written there. Raises
    UnreadableFile, also for a link or a pipe."""
    digest, size = digest or hashlib.sha256(), 0
    with _regular_file(path) as descriptor:
        while chunk := os.read(descriptor, CHUNK):
            digest.update(chunk)
            size += len(chunk)
        if sync:
            os.fsync(descriptor)
    return {digest.name: digest.hexdigest(), "size": size}


@contextlib.contextmanager
def _regular_file(path: Path) -> Iterator[int]:
    """Yield a descriptor of a regular file: no link, and no pipe that would block for ever."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UnreadableFile(f"cannot open {path.name}: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UnreadableFile(f"{path.name} is not a regular file")
        yield descriptor
    except OSError as error:
        if isinstance(error, UnreadableFile):
            raise
        raise UnreadableFile(f"cannot read {path.name}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):  # an error on close does not matter: everything was read
            os.close(descriptor)


# ---- cleaning up


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the leftovers of a killed writer and restore what it was replacing. Only for the one owner of `folder`."""
    for path in folder.glob(f"{REPLACED}*"):
        original = folder / path.name.removeprefix(REPLACED)
        if original.exists():
            remove(path)
        else:
            path.rename(original)
    for path in folder.glob(f"{TEMPORARY}*"):
        remove(path)


def sweep_stale(folder: Path, now_s: float, name: str = "") -> None:
    """Remove what killed writers, of `name` or of anything, left in a folder where other processes may write now.
    `now_s`: the modification time of something just published."""
    for path in folder.glob(f"{TEMPORARY}{name}*"):
        with contextlib.suppress(OSError):  # another process was first, or it is another user's
            if now_s - path.lstat().st_mtime > STALE_S:
                remove(path)
