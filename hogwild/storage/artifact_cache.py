"""A cache of compiled code on disk that a crash cannot corrupt.

    CACHE/NAME/    files
      manifest.json    the checksum of each file; the folder is complete once the manifest exists

A folder is filled under another name and renamed. Its files are compared with the manifest before any is loaded,
because truncated or damaged code may crash the process, or run. An incomplete folder is removed and filled again. A
compiler that also writes into the folder it reads (inductor) is given a copy of the files in the manifest."""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

MANIFEST = "manifest.json"
ASIDE = ".tmp-"
UNUSED_S = 30 * 24 * 3600.0
STALE_S = 24 * 3600.0  # a temporary folder this old has no live compiler any more


def cache_root() -> Path:
    """Return $XDG_CACHE_HOME/hogwild, or ~/.cache/hogwild."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "hogwild"


def new_scratch() -> Path:
    """Return a job's scratch folder, made at first use. Its workers may be killed while they compile or load."""
    return cache_root() / f"{ASIDE}job-{secrets.token_hex(8)}"


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
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            if all(_checksum(self.folder / name) == checksum for name, checksum in self._files().items()):
                return True
        shutil.rmtree(self.folder, ignore_errors=True)
        return False

    def _files(self) -> dict[str, str]:
        files: dict[str, str] = json.loads((self.folder / MANIFEST).read_bytes())["files"]
        return files

    @contextlib.contextmanager
    def copied(self) -> Iterator[Path]:
        """Yield a temporary folder with a copy of the files in the manifest; it is removed afterwards with everything
        written into it. Call it only if `is_whole`. Raises OSError if it cannot be made."""
        room = self.scratch or self.folder.parent
        room.mkdir(parents=True, exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix=f"{ASIDE}{self.folder.name}-", dir=room))
        try:
            for name in self._files():
                (own / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.folder / name, own / name)
            yield own
        finally:
            shutil.rmtree(own, ignore_errors=True)

    def touch(self) -> None:
        """Mark as used: it is kept for another UNUSED_S. Remove what was not used."""
        with contextlib.suppress(OSError):  # owned by another user: it only looks older than it is
            os.utime(self.folder)
            _prune(self.folder)

    def filled(self, write_to: Callable[[Path], object], run: Callable[[], object]) -> str:
        """Compile by `run`, after telling `write_to` the folder for the compiled code. Return why nothing could be
        kept, or ""; the code is compiled in either case."""
        problem = ""
        aside = (self.scratch or self.folder.parent) / f"{ASIDE}{self.folder.name}-{os.getpid()}"
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            write_to(aside)
        except (OSError, RuntimeError) as error:
            problem = f"compiled kernels are not kept: {error}"
        try:
            run()
            problem = problem or _publish(aside, self.folder)
            if not problem:
                _prune(self.folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return problem


def _publish(aside: Path, folder: Path) -> str:
    try:
        files = {str(path.relative_to(aside)): _checksum(path) for path in sorted(aside.rglob("*")) if path.is_file()}
        if not files:
            return "they were compiled in this process before"
        (aside / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n")
        aside.rename(folder)
    except OSError as error:
        # If another job was first, its folder is just as good.
        return "" if (folder / MANIFEST).exists() else f"compiled kernels are not kept: {error}"
    return ""


def _prune(newest: Path) -> None:
    """Remove what was not used for long: code of other versions, and leftovers of killed processes. Downloaded data
    beside them stays."""
    now_s = newest.stat().st_mtime
    for folder in newest.parent.iterdir():
        with contextlib.suppress(OSError):  # another process was first
            is_aside = folder.name.startswith(ASIDE)
            is_ours = is_aside or (folder / MANIFEST).exists()
            if is_ours and now_s - folder.stat().st_mtime > (STALE_S if is_aside else UNUSED_S):
                shutil.rmtree(folder)


def _checksum(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
