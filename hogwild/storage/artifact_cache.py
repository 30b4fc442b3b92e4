"""A cache of compiled code on disk that a crash cannot corrupt: published folders under CACHE/NAME.

Truncated or damaged code may crash the process, or run. So the files are compared with the manifest before any is
loaded. An incomplete folder is removed and filled again. A compiler that also writes into the folder it reads
(inductor) is given a copy of the files in the manifest."""

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hogwild import host
from hogwild.storage.files import TEMPORARY, home
from hogwild.storage.published_folder import (
    MANIFEST,
    entry_of,
    publish,
    read_manifest,
    sweep_stale,
    write_manifest,
    written_aside,
)

UNUSED_S = 30 * 24 * 3600.0
CLAIMED_S = 120.0  # longest wait for another process that compiles: it may be stopped


class CompiledCache(Protocol):
    """A folder that can be loaded or filled. `load` and `fill` return a log message, or none."""

    def is_whole(self) -> bool: ...
    def claimed(self) -> AbstractContextManager[bool]: ...
    def load(self, run: Callable[[], object]) -> str | None: ...
    def fill(self, run: Callable[[], object]) -> str: ...


def made_ready(cache: CompiledCache, run: Callable[[], object], pause: Callable[[], object]) -> str:
    """Load what is cached, else compile and cache it, unless another process does: then `pause` is called until it is
    there, or that process has ended. Return a log message: loaded or compiled, and why it could not be kept."""
    until = time.monotonic() + CLAIMED_S
    while True:
        if cache.is_whole():
            return cache.load(run) or "loaded"
        with cache.claimed() as is_ours:
            if time.monotonic() > until or (is_ours and not cache.is_whole()):
                problem = cache.fill(run)
                return f"compiled{f' ({problem})' if problem else ''}"
        if not is_ours:
            pause()


def cache_root() -> Path:
    """Return the folder of compiled code and downloads: $XDG_CACHE_HOME/hogwild if that is an absolute path, as
    freedesktop.org specifies, else ~/.cache/hogwild."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (named if named.is_absolute() else home() / ".cache") / "hogwild"


def new_scratch() -> Path:
    """Return a job's scratch folder, made at first use. Its workers may be killed while they compile or load."""
    return cache_root() / f"{TEMPORARY}job-{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class Kept:
    """Compiled code in `folder`, kept or to be compiled. Temporary files lie in `scratch`, which a process that
    outlives the compiler removes (`new_scratch`), or beside `folder`."""

    folder: Path
    scratch: Path | None = None

    def is_whole(self) -> bool:
        """Return whether every file is there and unchanged. An incomplete folder is removed."""
        if not self.folder.exists():
            return False  # check this first: a folder that appears later was renamed and is complete
        with contextlib.suppress(OSError, KeyError, TypeError, AttributeError):
            content, is_intact = read_manifest(self.folder)
            if is_intact and all(entry_of(self.folder / name) == entry for name, entry in content["files"].items()):
                return True
        shutil.rmtree(self.folder, ignore_errors=True)
        return False

    @contextlib.contextmanager
    def claimed(self) -> Iterator[bool]:
        """Yield True where no other process compiles this meanwhile; at once False, while one does. A claim ends with
        its process, however that ends. Where there can be none, nothing can be kept, and each compiles for itself."""
        claim = self.folder.with_name(f"{TEMPORARY}{self.folder.name}-claim")
        with contextlib.ExitStack() as stack:
            is_ours = True
            try:
                self.folder.parent.mkdir(parents=True, exist_ok=True)
                stack.callback(os.close, host.lock_file(claim))
                stack.callback(claim.unlink, missing_ok=True)
            except OSError as error:
                is_ours = not isinstance(error, BlockingIOError)
            yield is_ours

    @contextlib.contextmanager
    def copied(self) -> Iterator[Path]:
        """Yield a temporary folder with a copy of the files in the manifest; it is removed afterwards with everything
        written into it. Call it only if `is_whole`. Raises OSError if it cannot be made."""
        with tempfile.TemporaryDirectory(
            prefix=f"{TEMPORARY}{self.folder.name}-", dir=self._room(), ignore_cleanup_errors=True
        ) as own:
            for name in read_manifest(self.folder)[0]["files"]:
                (Path(own) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.folder / name, Path(own) / name)
            yield Path(own)

    def _room(self) -> Path:
        room = self.scratch or self.folder.parent
        room.mkdir(parents=True, exist_ok=True)
        return room

    def touch(self) -> None:
        """Mark as used: it is kept for another UNUSED_S. Remove what was not used."""
        with contextlib.suppress(OSError):  # owned by another user: it only looks older than it is
            os.utime(self.folder)
            _prune(self.folder)

    def filled(self, write_to: Callable[[Path], object], run: Callable[[], object]) -> str:
        """Compile by `run`, after telling `write_to` the folder for the compiled code. Return why nothing could be
        kept, or ""; the code is compiled in either case."""
        with contextlib.ExitStack() as temporary:
            aside, problem = self.folder, ""
            try:
                aside = temporary.enter_context(written_aside(self.folder, self._room()))
                write_to(aside)
            except (OSError, RuntimeError) as error:
                problem = f"compiled kernels are not kept: {error}"
            run()
            return problem or _publish(aside, self.folder)


def _publish(aside: Path, folder: Path) -> str:
    files = [path for path in sorted(aside.rglob("*")) if path.is_file()]
    if not files:
        return "they were compiled in this process before"
    try:
        write_manifest(aside, {"files": {str(path.relative_to(aside)): entry_of(path, sync=True) for path in files}})
        publish(aside, folder)
        _prune(folder)
    except OSError as error:
        return f"compiled kernels are not kept: {error}"
    return ""


def _prune(newest: Path) -> None:
    """Remove what was not used for long: code of other versions, and leftovers of killed processes. Downloaded data
    beside them stays."""
    now_s = newest.stat().st_mtime
    sweep_stale(newest.parent, now_s)
    for folder in newest.parent.iterdir():
        with contextlib.suppress(OSError):  # another process was first
            if (folder / MANIFEST).exists() and now_s - folder.stat().st_mtime > UNUSED_S:
                shutil.rmtree(folder)
