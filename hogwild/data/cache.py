"""Cache of parsed data beside the runs: the next job copies bytes instead of parsing text. Imports no torch.

    FOLDER/.cache/FINGERPRINT/   data.bin        the fields, one after the other, as in memory
                                 manifest.json   type, shape and checksum of each; if it exists, the entry is complete

A cache may be lost at any time and is never required: problems are reported, never raised. An entry is written under
another name and renamed, and its checksums are verified while it is read, so that an incomplete or damaged entry is
found, removed and created again. Only the newest entries are kept."""

import contextlib
import json
import logging
import math
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild.formatting import size

FORMAT = 1
KEEP = 4  # entries: training and validation data of two alternating jobs
DATA, MANIFEST = "data.bin", "manifest.json"
ASIDE = ".tmp-"
STALE_S = 24 * 3600.0  # an entry unfinished after a day has no writer any more
CHUNK = 4 << 20
FREE_SHARE = 0.5  # of the free disk space: checkpoints need space too
FINGERPRINT = re.compile(r"[0-9a-f]{8,128}")
# Allowed tensor types, by the name torch and numpy share, with their size in bytes.
ITEM_BYTES = {
    **dict.fromkeys(("bool", "uint8", "int8"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CachedField:
    """One field of all samples: the type's name in torch without `torch.`, and the shape (N, …)."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The size in bytes. Raises KeyError for a type that cannot be cached."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Entry:
    """A cache entry for a fingerprint; `read_into` reads it."""

    cache: "DatasetCache"
    folder: Path
    specs: tuple[CachedField, ...]
    checksums: tuple[int, ...]

    def read_into(self, buffers: Sequence[Any]) -> bool:
        """Fill one writable, contiguous buffer per field (memoryview, array, shared memory) of exactly its size.

        Return False if the bytes are damaged or cannot be read: the entry is removed, the content of the buffers is
        invalid, and the data must be read as if there were no cache. Raises ValueError for buffers of other sizes."""
        views = _views(self.specs, buffers)
        try:
            with open(self.folder / DATA, "rb", buffering=0) as stream:
                damage = next((f"field {i}" for i, view in enumerate(views) if not self._field(stream, i, view)), "")
        except OSError as error:
            damage = f"{DATA}: {error.strerror or error}"
        if damage:
            self.cache.reject(self.folder, f"{damage} is damaged or truncated" if "field" in damage else damage)
        return not damage

    def matches(self, whole: memoryview) -> bool:
        """Return whether the bytes of `DATA`, mapped by the caller, are those that were stored. If not, the entry is
        removed."""
        at = 0
        for number, spec in enumerate(self.specs):
            checksum = 0
            for start in range(at, at + spec.nbytes, CHUNK):
                checksum = zlib.crc32(whole[start : min(start + CHUNK, at + spec.nbytes)], checksum)
            if checksum != self.checksums[number]:
                self.cache.reject(self.folder, f"field {number} is damaged or truncated")
                return False
            at += spec.nbytes
        return True

    def _field(self, stream: Any, number: int, view: memoryview) -> bool:
        checksum = 0
        for start in range(0, len(view), CHUNK):
            part = view[start : start + CHUNK]
            filled = 0
            while filled < len(part):
                count = stream.readinto(part[filled:])
                if not count:
                    return False
                filled += count
            checksum = zlib.crc32(part, checksum)
        return checksum == self.checksums[number]


class DatasetCache:
    """The cache of the runs in `folder`. Used by one process at a time; several processes may share a folder. `say`
    gets a message about every problem (by default it goes to the log)."""

    def __init__(
        self, folder: str | os.PathLike[str], keep: int = KEEP, say: Callable[[str], object] = log.warning
    ) -> None:
        self.folder = Path(folder) / ".cache"
        self.keep = keep
        self.say = say

    def load(self, fingerprint: str) -> Entry | None:
        """Return the entry stored under `fingerprint` (hexadecimal), or None. A damaged entry is removed."""
        folder = self._place(fingerprint)
        try:
            raw = (folder / MANIFEST).read_bytes()
        except FileNotFoundError:
            if folder.exists():
                self.reject(folder, f"there is no {MANIFEST}")
            return None
        except OSError as error:
            self.say(f"cannot read the cache {folder} ({error.strerror or error}); reading the original files")
            return None
        entry = self._entry(folder, raw)
        if entry is not None:
            with contextlib.suppress(OSError):  # another user's folder; the entry only looks older than it is
                os.utime(folder)
        return entry

    def store(self, fingerprint: str, specs: Sequence[CachedField], buffers: Sequence[Any]) -> bool:
        """Store one contiguous buffer per field; nobody may write to them meanwhile. Return False, with a message, if
        that failed. Raises ValueError for buffers whose size does not match."""
        unknown = [spec.dtype for spec in specs if spec.dtype not in ITEM_BYTES]
        if unknown:
            self.say(f"the data is not cached in {self.folder}: it contains {unknown[0]}")
            return False
        views = _views(specs, buffers)
        folder = self._place(fingerprint)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._check_room(sum(map(len, views)))
            with self._aside(folder) as aside:
                _write(aside, specs, views)
                _publish(aside, folder)
            self._prune(folder)
        except OSError as error:
            self.say(f"the data is not cached in {self.folder}: {error.strerror or error}")
            return False
        return True

    def reject(self, folder: Path, why: str) -> None:
        """Removes an entry that cannot be used, and says so."""
        self.say(f"the cache {folder} cannot be used: {why}; it is removed, and the original files are read")
        _remove(folder)

    def _place(self, fingerprint: str) -> Path:
        if not FINGERPRINT.fullmatch(fingerprint):
            raise ValueError(f"a fingerprint is 8 to 128 hexadecimal digits, got {fingerprint!r}")
        return self.folder / fingerprint

    def _entry(self, folder: Path, raw: bytes) -> Entry | None:
        try:
            content = json.loads(raw)
            if content["format"] != FORMAT:
                raise ValueError(f"it has format {content['format']!r}, this version of hogwild reads {FORMAT}")
            specs = tuple(CachedField(one["dtype"], tuple(map(int, one["shape"]))) for one in content["fields"])
            promised = sum(spec.nbytes for spec in specs)
            checksums = tuple(int(one["crc32"]) for one in content["fields"])
            found = (folder / DATA).stat().st_size
            if found != promised:
                raise ValueError(f"{DATA} holds {found:,} bytes, the manifest promises {promised:,}")
        except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
            self.reject(folder, str(error) if isinstance(error, (ValueError, OSError)) else f"damaged {MANIFEST}")
            return None
        return Entry(self, folder, specs, checksums)

    def _check_room(self, nbytes: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if nbytes > free * FREE_SHARE:
            raise OSError(f"{size(nbytes)} is more than half of the free disk space ({size(free)})")

    @contextlib.contextmanager
    def _aside(self, folder: Path) -> Iterator[Path]:
        aside = self.folder / f"{ASIDE}{folder.name}-{os.getpid()}"
        _remove(aside)  # left by a process that had our number
        aside.mkdir()
        try:
            yield aside
        finally:
            _remove(aside)

    def _prune(self, newest: Path) -> None:
        """Remove all but the most recently used entries, and old leftovers of killed writers. A reader of a removed
        entry still has its file open."""
        entries, now = [], newest.stat().st_mtime
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                used = path.lstat().st_mtime
                if FINGERPRINT.fullmatch(path.name):
                    entries.append((path != newest, -used, path))
                elif path.name.startswith(ASIDE) and now - used > STALE_S:
                    _remove(path)
        for _, _, path in sorted(entries)[self.keep :]:
            _remove(path)


def _views(specs: Sequence[CachedField], buffers: Sequence[Any]) -> list[memoryview]:
    """Return each buffer as bytes, after checking its size against its spec."""
    views = []
    for spec, buffer in zip(specs, buffers, strict=True):
        view = memoryview(buffer)
        if view.nbytes != spec.nbytes:
            raise ValueError(f"a field {spec.dtype} {spec.shape} has {spec.nbytes} bytes, the buffer {view.nbytes}")
        views.append(view.cast("B") if view.nbytes else memoryview(b""))
    return views


def _write(aside: Path, specs: Sequence[CachedField], views: Sequence[memoryview]) -> None:
    fields = []
    with open(aside / DATA, "wb", buffering=0) as stream:
        for spec, view in zip(specs, views, strict=True):
            checksum = 0
            for start in range(0, len(view), CHUNK):
                part = view[start : start + CHUNK]
                checksum = zlib.crc32(part, checksum)
                while part:
                    part = part[stream.write(part) :]
            fields.append({"dtype": spec.dtype, "shape": list(spec.shape), "crc32": checksum})
    (aside / MANIFEST).write_text(json.dumps({"format": FORMAT, "fields": fields}, indent=1) + "\n")


def _publish(aside: Path, folder: Path) -> None:
    """Rename the entry; if that fails because one exists already, another process stored the same content first."""
    try:
        aside.rename(folder)
    except OSError:
        if not (folder / MANIFEST).exists():
            raise


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
