"""The format of a checkpoint on disk: names, manifest, verification. Torch-free.

The manifest holds a hash of every file and of itself, because torch.load accepts flipped bits and zeroed blocks
silently. Nothing in a checkpoint is used before all of it was checked. `checkpoint.py` writes and loads it."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild.errors import CheckpointError
from hogwild.storage.run_directory import BEST, LATEST, TEMPORARY, sync_folder

FORMAT = 1
STATE, MODEL, MANIFEST = "state.pt", "model.safetensors", "manifest.json"
FILES = (STATE, MODEL)
NAME = re.compile(r"update-(\d{9,})")
REPLACED = ".old-"  # prefix of a checkpoint that is being replaced
REJECTED = "rejected-"
REJECTED_NAME = re.compile(re.escape(REJECTED) + NAME.pattern)
REMAINS = re.compile(rf"({re.escape(TEMPORARY)}|{re.escape(REPLACED)}){NAME.pattern}")
CHUNK = 4 << 20  # bytes: large enough to be fast, small enough to let other threads run


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a checkpoint. `files` is name -> {sha256, size}; `meta` is the caller's."""

    format: int
    name: str
    update: int
    created: str
    torch: str
    files: dict[str, dict[str, Any]]
    meta: dict[str, Any]


def checkpoint_name(update: int) -> str:
    """Return `update-000001000`: names sort by update."""
    return f"update-{update:09d}"


def verify(path: Path) -> Manifest:
    """Check every byte of a checkpoint. Raises CheckpointError with the file, its expected and its actual hash."""
    manifest = _read_manifest(path.resolve())
    for name, expected in manifest.files.items():
        with _regular_file(path.resolve() / name) as descriptor:
            actual = _hash(descriptor)
        if actual != expected:
            raise CheckpointError(
                f"checkpoint {path}: {name} is damaged: it has {actual}, the manifest says {expected}",
                code="checkpoint/damaged",
            )
    return manifest


def newest_good(folder: Path, older_than: int | None = None) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that verifies, or None, and why each newer one was rejected. With `older_than`, only
    checkpoints of fewer updates count. Changes nothing."""
    rejected: list[str] = []
    try:
        found = _checkpoints(folder)
    except OSError as error:
        raise CheckpointError(
            f"cannot read the folder {folder} of checkpoints: {error.strerror}", code="checkpoint/unreadable"
        ) from error
    for path in sorted(found, key=lambda found: update_of(found.name), reverse=True):
        if older_than is not None and update_of(path.name) >= older_than:
            continue
        try:
            if path.is_symlink():
                raise CheckpointError(
                    f"checkpoint {path} is a symbolic link, which may lead out of the run directory",
                    code="checkpoint/link",
                )
            verify(path)
        except CheckpointError as error:
            rejected.append(str(error))
        else:
            return path, rejected
    return None, rejected


def set_aside_after(folder: Path, good: Path | None, keep: int | None = None) -> None:
    """Rename every checkpoint newer than `good`, all of which were rejected, to `rejected-NAME`: kept for inspection,
    but not counted by `prune`. With `keep`, only the `keep` most recently written of these stay, so that repeated
    rejections do not fill the disk. Without it none is removed: another version of hogwild may be able to read them."""
    for path in _checkpoints(folder):
        if good is None or update_of(path.name) > update_of(good.name):
            aside = folder / f"{REJECTED}{path.name}"
            _remove(aside)
            path.rename(aside)
    if keep is not None and folder.is_dir():
        rejected = [entry for entry in folder.iterdir() if REJECTED_NAME.fullmatch(entry.name)]
        rejected.sort(key=lambda entry: (entry.lstat().st_mtime_ns, entry.name))
        for path in rejected[: max(len(rejected) - keep, 0)]:
            _remove(path)


def prune(folder: Path, keep: int) -> list[str]:
    """Remove all but the `keep` newest checkpoints and those that `latest` and `best` point to; return the removed
    names. Only for the writer of `folder`, and not while a checkpoint is written. Each is renamed
    first, so that a kill leaves no half checkpoint under its name. Raises OSError; the next call tries again, because a
    job may run for weeks without a `sweep`."""
    paths = sorted(_checkpoints(folder), key=lambda found: update_of(found.name))
    links = [folder / name for name in (LATEST, BEST)]
    safe = {os.readlink(link) for link in links if link.is_symlink()}
    doomed = [path for path in paths[: max(len(paths) - keep, 0)] if path.name not in safe]
    for path in doomed:
        with contextlib.suppress(FileNotFoundError):
            path.rename(folder / f"{TEMPORARY}{path.name}-{os.getpid()}")
    for path in [entry for entry in folder.iterdir() if REMAINS.match(entry.name)]:
        if not path.name.startswith(REPLACED) or path.with_name(path.name.removeprefix(REPLACED)).exists():
            _remove_whole(path)
    return [path.name for path in doomed]


def _remove_whole(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:  # the error may name a file without its folder, or nothing
        raise OSError(error.errno, error.strerror, str(folder)) from error


def sweep(folder: Path) -> None:
    """Remove the leftovers of a killed writer and restore a checkpoint that it was replacing. Only for the owner of the
    run directory."""
    for path in folder.glob(f"{REPLACED}*"):
        original = folder / path.name.removeprefix(REPLACED)
        if original.exists():
            _remove(path)
        else:
            path.rename(original)
    for path in folder.glob(f"{TEMPORARY}*"):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _checkpoints(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if NAME.fullmatch(entry.name)] if folder.is_dir() else []


def update_of(name: str) -> int:
    match = NAME.fullmatch(name)
    if match is None:
        raise CheckpointError(
            f"the name of a checkpoint must be like {checkpoint_name(1000)}, got {name!r}", code="checkpoint/foreign"
        )
    return int(match[1])


# --- for checkpoint.py ------


def seal(content: dict[str, Any]) -> bytes:
    """Return the manifest's bytes, with a hash over the rest. The encoding is canonical, so any changed byte shows."""
    body = json.dumps(content, sort_keys=True, allow_nan=False)
    sealed = {**content, "seal": hashlib.sha256(body.encode()).hexdigest()}
    return (json.dumps(sealed, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def hash_and_sync(path: Path) -> dict[str, Any]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        entry = _hash(descriptor)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return entry


def _hash(descriptor: int) -> dict[str, Any]:
    digest, size = hashlib.sha256(), 0
    while chunk := os.read(descriptor, CHUNK):
        digest.update(chunk)
        size += len(chunk)
    return {"sha256": digest.hexdigest(), "size": size}


def publish(aside: Path, path: Path) -> Path:
    """Rename `aside` to `path`. An existing checkpoint of that name (damaged, or of the same update before a resume) is
    replaced: `sweep` restores it if we die between the two renames, and this function does if the second fails."""
    replaced = path.with_name(REPLACED + path.name)
    shutil.rmtree(replaced, ignore_errors=True)
    if path.exists():
        path.rename(replaced)
    try:
        aside.rename(path)
    except OSError:
        if replaced.exists():
            replaced.rename(path)
        raise
    sync_folder(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)
    return path


def _read_manifest(path: Path) -> Manifest:
    with _regular_file(path / MANIFEST) as descriptor, open(descriptor, "rb", closefd=False) as stream:
        raw = stream.read()
    try:
        content = json.loads(raw)
        content.pop("seal")
        intact = seal(content) == raw
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        intact = False
        content = {}
    number = content.get("format")
    if isinstance(number, int) and number > FORMAT:
        raise CheckpointError(
            f"checkpoint {path}: {MANIFEST} says format {number}; this version of hogwild reads up to {FORMAT}: use a "
            f"newer version{'' if intact else ', or the file is damaged'}",
            code="checkpoint/newer-format",
        )
    if not intact:
        raise CheckpointError(
            f"checkpoint {path}: {MANIFEST} is damaged: its content does not match its own hash",
            code="checkpoint/damaged",
        )
    try:
        manifest = Manifest(**content)
    except TypeError as error:
        raise CheckpointError(
            f"checkpoint {path}: {MANIFEST} was not written by hogwild: {error}", code="checkpoint/foreign"
        ) from error
    if not isinstance(manifest.files, dict) or set(manifest.files) != set(FILES):
        raise CheckpointError(
            f"checkpoint {path}: {MANIFEST} lists {list(manifest.files)}, must list {list(FILES)}",
            code="checkpoint/foreign",
        )
    if manifest.name != path.name:
        raise CheckpointError(
            f"checkpoint {path} was renamed from {manifest.name}; restore its name, which gives its update",
            code="checkpoint/foreign",
        )
    if (manifest.format, manifest.update) != (FORMAT, update_of(path.name)):
        raise CheckpointError(
            f"checkpoint {path}: {MANIFEST} says format {number!r}, update {manifest.update!r}",
            code="checkpoint/foreign",
        )
    return manifest


@contextlib.contextmanager
def _regular_file(path: Path) -> Iterator[int]:
    """Yield a descriptor of a regular file inside the checkpoint: no link, and no pipe that would block for ever."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {path.parent}: cannot open {path.name}: {error.strerror}", code="checkpoint/unreadable"
        ) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CheckpointError(
                f"checkpoint {path.parent}: {path.name} is not a regular file", code="checkpoint/unreadable"
            )
        yield descriptor
    except OSError as error:
        raise CheckpointError(
            f"checkpoint {path.parent}: cannot read {path.name}: {error.strerror}", code="checkpoint/unreadable"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # an error on close does not matter: everything was read
            os.close(descriptor)
