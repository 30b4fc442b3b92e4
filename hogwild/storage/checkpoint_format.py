"""The format of a checkpoint on disk: names, manifest, verification. Torch-free.

torch.load accepts flipped bits and zeroed blocks silently, so nothing in a checkpoint is used before all of it was
compared with the manifest (`published_folder.py`). `checkpoint.py` writes and loads it."""

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild.errors import CheckpointError
from hogwild.storage.files import TEMPORARY
from hogwild.storage.published_folder import MANIFEST as MANIFEST
from hogwild.storage.published_folder import REPLACED, UnreadableFile, entry_of, read_manifest, remove
from hogwild.storage.run_directory import BEST, LATEST

FORMAT = 1
STATE, MODEL = "state.pt", "model.safetensors"
FILES = (STATE, MODEL)
NAME = re.compile(r"update-(\d{9,})")
REJECTED = "rejected-"
REJECTED_NAME = re.compile(re.escape(REJECTED) + NAME.pattern)
REMAINS = re.compile(rf"({re.escape(TEMPORARY)}|{re.escape(REPLACED)}){NAME.pattern}")


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
    home = path.resolve()
    try:
        manifest = _checked(home, *read_manifest(home))
        for name, expected in manifest.files.items():
            if (actual := entry_of(home / name)) != expected:
                raise CheckpointError(
                    f"checkpoint {path}: {name} is damaged: it has {actual}, the manifest says {expected}",
                    code="checkpoint/damaged",
                )
    except UnreadableFile as error:
        raise CheckpointError(f"checkpoint {home}: {error}", code="checkpoint/unreadable") from error
    return manifest


def newest_first(folder: Path, older_than: int | None = None) -> list[Path]:
    """Return the checkpoints, unverified; with `older_than`, only those of fewer updates. Raises CheckpointError."""
    try:
        found = sorted(_checkpoints(folder), key=lambda path: update_of(path.name), reverse=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot read the folder {folder} of checkpoints: {error.strerror}", code="checkpoint/unreadable"
        ) from error
    return [path for path in found if older_than is None or update_of(path.name) < older_than]


def refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise CheckpointError(
            f"checkpoint {path} is a symbolic link, which may lead out of the run directory", code="checkpoint/link"
        )


def newest_good(folder: Path, older_than: int | None = None) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that verifies, or None, and why each newer one was rejected. `older_than` as in
    `newest_first`. Changes nothing."""
    rejected: list[str] = []
    for path in newest_first(folder, older_than):
        try:
            refuse_link(path)
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
            remove(aside)
            path.rename(aside)
    if keep is not None and folder.is_dir():
        rejected = [entry for entry in folder.iterdir() if REJECTED_NAME.fullmatch(entry.name)]
        rejected.sort(key=lambda entry: (entry.lstat().st_mtime_ns, entry.name))
        for path in rejected[: max(len(rejected) - keep, 0)]:
            remove(path)


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
            try:
                shutil.rmtree(path)
            except OSError as error:  # the error may name a file without its folder, or nothing
                raise OSError(error.errno, error.strerror, str(path)) from error
    return [path.name for path in doomed]


def _checkpoints(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if NAME.fullmatch(entry.name)] if folder.is_dir() else []


def update_of(name: str) -> int:
    match = NAME.fullmatch(name)
    if match is None:
        raise _foreign(f"the name of a checkpoint must be like {checkpoint_name(1000)}, got {name!r}")
    return int(match[1])


def _checked(path: Path, content: dict[str, Any], is_intact: bool) -> Manifest:
    number = content.get("format")
    if isinstance(number, int) and number > FORMAT:
        raise CheckpointError(
            f"checkpoint {path}: {MANIFEST} says format {number}; this version of hogwild reads up to {FORMAT}: use a "
            f"newer version{'' if is_intact else ', or the file is damaged'}",
            code="checkpoint/newer-format",
        )
    if not is_intact:
        raise CheckpointError(
            f"checkpoint {path}: {MANIFEST} is damaged: its content does not match its own hash",
            code="checkpoint/damaged",
        )
    try:
        manifest = Manifest(**content)
    except TypeError as error:
        raise _foreign(f"checkpoint {path}: {MANIFEST} was not written by hogwild: {error}") from error
    if not isinstance(manifest.files, dict) or set(manifest.files) != set(FILES):
        raise _foreign(f"checkpoint {path}: {MANIFEST} lists {list(manifest.files)}, must list {list(FILES)}")
    if manifest.name != path.name:
        raise _foreign(f"checkpoint {path} was renamed from {manifest.name}; restore its name, which gives its update")
    if (manifest.format, manifest.update) != (FORMAT, update_of(path.name)):
        raise _foreign(f"checkpoint {path}: {MANIFEST} says format {number!r}, update {manifest.update!r}")
    return manifest


def _foreign(words: str) -> CheckpointError:
    return CheckpointError(words, code="checkpoint/foreign")
