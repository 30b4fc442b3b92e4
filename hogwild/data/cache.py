"""Cache of parsed data beside the runs: the next job copies bytes instead of parsing text. Imports no torch.

    FOLDER/.cache/FINGERPRINT/   data.bin        the fields, one after the other, as in memory
                                 manifest.json   type and shape of each, and the checksum of data.bin
    FOLDER/.cache/hashes.json    the hashes of files that have not changed since: no job reads them again

A cache may be lost at any time and is never required: problems are reported, never raised. An entry is a published
folder (`storage/published_folder.py`). Its checksum is verified while it is read, so that a damaged entry is found,
removed and created again. Only the newest entries are kept."""

import contextlib
import json
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild.formatting import size
from hogwild.storage.files import replace
from hogwild.storage.published_folder import (
    MANIFEST,
    Crc32,
    HashedFile,
    chunks,
    publish,
    read_manifest,
    remove,
    sweep_stale,
    write_manifest,
    written_aside,
)

FORMAT = 2
KEEP = 4  # entries: training and validation data of two alternating jobs
DATA = "data.bin"
HASHES = "hashes.json"
MOST_HASHES = 64
UNSURE_S = 2.0  # a file that was changed a moment ago may change again within one tick of its time
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
    checksum: str

    def read_into(self, buffers: Sequence[Any]) -> bool:
        """Fill one writable, contiguous buffer per field (memoryview, array, shared memory) of exactly its size.

        Return False if the bytes are damaged or cannot be read: the entry is removed, the content of the buffers is
        invalid, and the data must be read as if there were no cache. Raises ValueError for buffers of other sizes."""
        views = _views(self.specs, buffers)
        digest = Crc32()
        try:
            with open(self.folder / DATA, "rb", buffering=0) as stream:
                for chunk in (chunk for view in views for chunk in chunks(view)):
                    digest.update(_filled(stream, chunk))
        except OSError as error:
            self.cache.reject(self.folder, f"{DATA}: {error.strerror or error}")
            return False
        return self._is(digest)

    def matches(self, whole: memoryview) -> bool:
        """Return whether the bytes of `DATA`, mapped by the caller, are those that were stored. If not, the entry is
        removed."""
        digest = Crc32()
        for chunk in chunks(whole):
            digest.update(chunk)
        return self._is(digest)

    def _is(self, digest: Crc32) -> bool:
        if digest.hexdigest() == self.checksum:
            return True
        self.cache.reject(self.folder, f"{DATA} is damaged or truncated")
        return False


def _filled(stream: Any, view: memoryview) -> memoryview:
    """Read as many bytes as `view` has, or up to the end of the file; return what was read. Raises OSError."""
    filled = 0
    while filled < len(view) and (count := stream.readinto(view[filled:])):
        filled += count
    return view[:filled]


class DatasetCache:
    """The cache of the runs in `folder`. Used by one process at a time; several processes may share a folder. `say`
    gets a message about every problem (by default it goes to the log)."""

    def __init__(
        self, folder: str | os.PathLike[str], keep: int = KEEP, say: Callable[[str], object] = log.warning
    ) -> None:
        self.folder = Path(folder) / ".cache"
        self.keep = keep
        self.say = say

    def hash_of(self, file: Path, compute: Callable[[], str]) -> str:
        """Return the hash of a file's content: the one of an earlier job, if neither the file's number and size nor its
        times have changed, of which nobody can set the time of change."""
        place, began_ns, stamp = os.path.abspath(file), time.time_ns(), _stamp(file)
        known = self._hashes()
        if stamp and (found := known.pop(place, None)) is not None and found[:-1] == stamp:
            return str(found[-1])
        computed = compute()
        if stamp and stamp == _stamp(file) and max(stamp[-2:]) < began_ns - UNSURE_S * 1e9:
            kept = dict([*known.items()][1 - MOST_HASHES :]) | {place: [*stamp, computed]}
            with contextlib.suppress(OSError):
                self.folder.mkdir(parents=True, exist_ok=True)
                replace(self.folder / HASHES, json.dumps(kept).encode(), sync=False)
        return computed

    def _hashes(self) -> dict[str, list[Any]]:
        with contextlib.suppress(OSError, ValueError):
            content = json.loads((self.folder / HASHES).read_bytes())
            if isinstance(content, dict):
                return {name: one for name, one in content.items() if isinstance(one, list) and one}
        return {}

    def load(self, fingerprint: str) -> Entry | None:
        """Return the entry stored under `fingerprint` (hexadecimal), or None. A damaged entry is removed."""
        folder = self._place(fingerprint)
        try:
            if not folder.exists():
                return None  # check this first: a folder that appears later was renamed and is complete
            content, is_intact = read_manifest(folder)
        except OSError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                self.say(f"cannot read the cache {folder} ({error.strerror or error}); reading the original files")
            elif folder.exists():
                self.reject(folder, f"there is no {MANIFEST}")
            return None
        try:
            entry = self._entry(folder, content, is_intact)
        except (ValueError, OSError) as error:
            self.reject(folder, str(error))
            return None
        except (KeyError, TypeError, AttributeError):
            self.reject(folder, f"damaged {MANIFEST}")
            return None
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
            nbytes, free = sum(map(len, views)), shutil.disk_usage(self.folder).free
            if nbytes > free * FREE_SHARE:
                raise OSError(f"{size(nbytes)} is more than half of the free disk space ({size(free)})")
            with written_aside(folder) as aside:
                with contextlib.closing(HashedFile(aside / DATA, Crc32())) as file:
                    for view in views:
                        file.write(view)
                    entry = file.finish()
                fields = [{"dtype": spec.dtype, "shape": list(spec.shape)} for spec in specs]
                write_manifest(aside, {"format": FORMAT, "fields": fields, "files": {DATA: entry}})
                publish(aside, folder)
            self._prune(folder)
        except OSError as error:
            self.say(f"the data is not cached in {self.folder}: {error.strerror or error}")
            return False
        return True

    def reject(self, folder: Path, why: str) -> None:
        """Remove an entry that cannot be used, and say so."""
        self.say(f"the cache {folder} cannot be used: {why}; it is removed, and the original files are read")
        remove(folder)

    def _place(self, fingerprint: str) -> Path:
        if not FINGERPRINT.fullmatch(fingerprint):
            raise ValueError(f"a fingerprint is 8 to 128 hexadecimal digits, got {fingerprint!r}")
        return self.folder / fingerprint

    def _entry(self, folder: Path, content: Mapping[str, Any], is_intact: bool) -> Entry:
        """Check the manifest and the file's size. Raises OSError, and whatever a wrong manifest leads to."""
        if content.get("format", FORMAT) != FORMAT:
            raise ValueError(f"it has format {content['format']!r}, this version of hogwild reads {FORMAT}")
        if not is_intact:
            raise ValueError(f"damaged {MANIFEST}")
        specs = tuple(CachedField(one["dtype"], tuple(one["shape"])) for one in content["fields"])
        promised, found = content["files"][DATA], (folder / DATA).stat().st_size
        if not found == promised["size"] == sum(spec.nbytes for spec in specs):
            raise ValueError(f"{DATA} holds {found:,} bytes, the manifest promises {promised['size']:,}")
        return Entry(self, folder, specs, promised["crc32"])

    def _prune(self, newest: Path) -> None:
        """Remove all but the most recently used entries, and old leftovers of killed writers. A reader of a removed
        entry still has its file open."""
        sweep_stale(self.folder, newest.stat().st_mtime)
        entries = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if FINGERPRINT.fullmatch(path.name):
                    entries.append((path != newest, -path.lstat().st_mtime, path))
        for _, _, path in sorted(entries)[self.keep :]:
            remove(path)


def _stamp(file: Path) -> list[int]:
    """Return what changes with a file's content: device, number, size and times; [] if it cannot be looked at."""
    with contextlib.suppress(OSError):
        found = file.stat()
        return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    return []


def _views(specs: Sequence[CachedField], buffers: Sequence[Any]) -> list[memoryview]:
    """Return each buffer as bytes, after checking its size against its spec."""
    views = []
    for spec, buffer in zip(specs, buffers, strict=True):
        view = memoryview(buffer)
        if view.nbytes != spec.nbytes:
            raise ValueError(f"a field {spec.dtype} {spec.shape} has {spec.nbytes} bytes, the buffer {view.nbytes}")
        views.append(view.cast("B") if view.nbytes else memoryview(b""))
    return views
