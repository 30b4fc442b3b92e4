"""A folder of compiled code on disk that a crash cannot poison.

    CACHE/NAME/    files
      manifest.json    the checksum of each; its presence makes the folder whole

A folder is filled under another name and renamed; its files are compared with the manifest before any is loaded,
because what is truncated or damaged ends the process, or runs. One that is not whole is removed and filled again. A
compiler that also writes where it reads (inductor) is given a copy of what the manifest names."""

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
STALE_S = 24 * 3600.0  # a folder that nobody finished for a day has no compiler any more


def cache_root() -> Path:
    """$XDG_CACHE_HOME/hogwild, or ~/.cache/hogwild."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "hogwild"


def new_scratch() -> Path:
    """Of a job, whose workers may be killed while they compile or load. Made by the first that needs it."""
    return cache_root() / f"{ASIDE}job-{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class Kept:
    """Compiled code that is kept in `folder`, or will be. What is there for a while only lies in `scratch`, which
    somebody removes who lives longer (`new_scratch`), or beside it."""

    folder: Path
    scratch: Path | None = None

    def is_whole(self) -> bool:
        """Every file is there and as it was written. One that is not whole is removed."""
        if not self.folder.exists():
            return False  # first: a folder that appears after this is renamed, and so whole
        if self._matches():
            return True
        shutil.rmtree(self.folder, ignore_errors=True)
        return False

    def _matches(self) -> bool:
        try:
            return all(_checksum(self.folder / name) == checksum for name, checksum in self._files().items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False

    def _files(self) -> dict[str, str]:
        files: dict[str, str] = json.loads((self.folder / MANIFEST).read_bytes())["files"]
        return files

    @contextlib.contextmanager
    def copied(self) -> Iterator[Path]:
        """A copy of its files, without any that came later, in a folder of this process's own, which is gone afterwards
        with all that was written into it. Of a whole one. Raises OSError where there can be none."""
        own = Path(tempfile.mkdtemp(prefix=f"{ASIDE}{self.folder.name}-", dir=self._room()))
        try:
            for name in self._files():
                (own / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.folder / name, own / name)
            yield own
        finally:
            shutil.rmtree(own, ignore_errors=True)

    def _room(self) -> Path:
        room = self.scratch or self.folder.parent
        room.mkdir(parents=True, exist_ok=True)
        return room

    def touch(self) -> None:
        """It was used: it stays for another UNUSED_S. What was not goes."""
        with contextlib.suppress(OSError):  # another user's; it only looks older than it is
            os.utime(self.folder)
            _prune(self.folder)

    def filled(self, write_to: Callable[[Path], object], run: Callable[[], object]) -> str:
        """`run` compiles; before it `write_to` is told the folder where what is compiled goes. Says why where nothing
        could be kept: it is compiled all the same."""
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
        # Where another job was first, its folder is as good as ours.
        return "" if (folder / MANIFEST).exists() else f"compiled kernels are not kept: {error}"
    return ""


def _prune(newest: Path) -> None:
    """What was not used for long: code of other versions, and what a compiler, or who loaded, left when it was killed.
    Downloaded data lies beside them, and stays."""
    now_s = newest.stat().st_mtime
    for folder in newest.parent.iterdir():
        with contextlib.suppress(OSError):  # somebody else was first
            is_aside = folder.name.startswith(ASIDE)
            is_ours = is_aside or (folder / MANIFEST).exists()
            if is_ours and now_s - folder.stat().st_mtime > (STALE_S if is_aside else UNUSED_S):
                shutil.rmtree(folder)


def _checksum(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
