"""The run directory: who owns it, where things lie in it, and how they are written so that nothing is ever
half there.

Whole files are written aside (`.tmp-NAME-PID`), then renamed: a reader sees the old one or the new one.
Records are appended by one write of one whole line. One process, the supervisor, writes; the lock on
`RUN/.lock` makes sure of it, and the kernel frees it with the process, however that ends."""

import contextlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild import host
from hogwild.errors import NotFoundError, RunDirError
from hogwild.storage.files import TEMPORARY as TEMPORARY
from hogwild.storage.files import point, replace
from hogwild.storage.files import sync_folder as sync_folder
from hogwild.storage.records import Records as Records
from hogwild.storage.records import explained, tried
from hogwild.storage.records import to_json as to_json

LOCK = ".lock"
ENV = "env.json"
NAMES = "names.json"  # what the model's numbers stand for: words, users, items
LATEST, BEST = "latest", "best"  # links among the checkpoints
RESOLVED = "resolved.yaml"  # what makes a directory a run: without it nothing could be resumed
LIBRARY = "hogwild.train"  # `caller` in env.json of a run whose objects came from a call: no file can build them again
MEASURED = "# Measured in the job's first seconds: "  # begins the line of resolved.yaml that says why an exchange is so
PLACES = ("device", "device_per_worker", "placement")  # fields of `train` that say where parameters lie


def require_current_folder() -> None:
    """Raises NotFoundError when it was deleted: torch's mathematics library, in a worker for instance, ends the process
    without it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise NotFoundError(
            "the current folder was deleted; change into one that is there", code="run/current-folder-gone"
        ) from None


@dataclass(frozen=True, slots=True)
class Cut:
    """How much of the metrics records is kept: their first `size` bytes. `records`: how many are dropped."""

    size: int
    records: int


class RunDir:
    """A run directory this process has locked. Use `create` or `open`; `close` gives the lock back."""

    def __init__(self, path: Path, lock: int, found: bytes, made: Sequence[Path] = ()) -> None:
        """Takes ownership of the descriptor `lock`; `found` is what the lock held before us. `made`: the folders that
        were not there before, innermost first."""
        self.path = path
        self._made = tuple(made)
        self._lock = lock
        self._found = found
        self.job_file = path / "job.yaml"
        self.resolved_file = path / RESOLVED
        self.env_file = path / ENV
        self.status_file = path / "status.json"
        self.summary_file = path / "summary.json"
        self.metrics = Records(path / "metrics.jsonl")
        self.events = Records(path / "events.jsonl")
        self.logs = path / "logs"
        self.supervisor_log = self.logs / "supervisor.log"
        self.stacks = path / "stacks"
        self.checkpoints = path / "checkpoints"
        self.latest = self.checkpoints / LATEST
        self.best = self.checkpoints / BEST
        self.tensorboard = path / "tensorboard"
        self.report = path / "report"
        self.profile = path / "profile"

    @classmethod
    def create(cls, path: Path | None, name: str) -> "RunDir":
        """A new run: `path`, which may exist but must be empty, or `runs/NAME-YYYYmmdd-HHMMSS` under the
        current folder. Raises RunDirError when it is in use, not empty or not writable; nothing is left
        behind then."""
        folder = Path(os.path.abspath("runs" if path is None else path))
        made = [one for one in (folder, *folder.parents) if not os.path.exists(one)]
        if path is None:
            folder = _make_unique(folder, name)
            made.insert(0, folder)
        else:
            _make(folder)
            _refuse_content(folder)
        try:
            lock = _take_lock(folder)
        except RunDirError:
            _remove_empty(made)
            raise
        try:
            _refuse_content(folder)  # another job may have come between our look and our lock
            _sweep(folder)
        except RunDirError:
            os.close(lock)
            raise
        return cls(folder, lock, _sign(lock), made)

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        """An existing run, to go on with it; what a killed writer left is swept. Raises NotFoundError when
        there is none, RunDirError when another job has it or it cannot be written to."""
        folder = Path(os.path.abspath(path))
        if not folder.is_dir():
            raise NotFoundError(f"no run at {folder}: there is no such directory", code="run/not-found")
        if not (folder / RESOLVED).is_file():
            raise NotFoundError(f"{folder} is not a run directory: it has no {RESOLVED}", code="run/not-a-run")
        lock = _take_lock(folder)
        run = cls(folder, lock, _sign(lock))
        _sweep(folder)
        return run

    def close(self) -> None:
        """Gives the lock back as it was found, so that a resume that is refused has changed nothing."""
        self.metrics.close()
        self.events.close()
        if self._lock >= 0:
            with contextlib.suppress(OSError):  # a full disk: it then names a job that has ended, as after a kill
                os.ftruncate(self._lock, 0)
                os.pwrite(self._lock, self._found, 0)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> "RunDir":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def worker_log(self, worker: int) -> Path:
        return self.logs / f"worker-{worker}.log"

    def worker_stacks(self, worker: int) -> Path:
        return self.stacks / f"worker-{worker}.txt"

    def loader_log(self, loader: int) -> Path:
        return self.logs / f"loader-{loader}.log"

    def loader_stacks(self, loader: int) -> Path:
        return self.stacks / f"loader-{loader}.txt"

    def make_folders(self) -> None:
        """Those a worker or a checkpoint expects to be there. They, and the run itself, survive a power cut then."""
        for folder in (self.logs, self.stacks, self.checkpoints):
            with explained(f"cannot make {folder}"):
                folder.mkdir(exist_ok=True)
        with explained(f"cannot write to {self.path}"):
            sync_folder(self.path)
            for made in (self.path, *self._made):
                with contextlib.suppress(PermissionError):  # a folder of somebody else's that only he may list
                    sync_folder(made.parent)

    def write_text(self, name: str, text: str, *, sync: bool = False) -> Path:
        """Replaces the file `name` as a whole; with `sync` it also survives a power cut. Raises
        RunDirError."""
        file = self.path / name
        with explained(f"cannot write {file}"):
            replace(file, text.encode(), sync)
        return file

    def write_json(self, name: str, value: object, *, sync: bool = False) -> Path:
        """The same, as JSON that every reader accepts: what is not a finite number is written as null."""
        return self.write_text(name, json.dumps(to_json(value), indent=2, allow_nan=False) + "\n", sync=sync)

    def try_write_json(self, name: str, value: object) -> bool:
        """False instead of an error, for what training must not stop for. The caller says so, once."""
        return tried(lambda: self.write_json(name, value))

    def read_json(self, name: str) -> Any:
        """What a JSON file of the run holds; None when it is not there or not JSON."""
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError):
            return None

    def discard(self) -> None:
        """Removes the run, and the folders made for it: for a job in which nothing was started. `close` it
        afterwards."""
        self.metrics.close()
        self.events.close()
        for entry in self.path.iterdir() if self.path.is_dir() else ():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        _remove_empty(self._made)

    def cut_records_after(self, updates: int) -> int:
        """For a resume: drops the metrics records whose `updates` is higher, and a torn last line. Returns
        how many."""
        cut = self.draft_cut(updates)
        if cut.records:
            self.metrics.cut(cut.size)
            self.metrics.sync()
        return cut.records

    def draft_cut(self, updates: int) -> "Cut":
        """What may take long of it, for a thread: finds the last record that is kept, from the end, for `updates` only
        grow. Changes nothing. Then `metrics.cut` in the thread that appends drops what came meanwhile, too. Raises
        RunDirError."""
        dropped = 0
        for begin, line in self.metrics.backwards():
            if _is_kept(line, updates):
                return Cut(begin + len(line), dropped)
            dropped += 1
        return Cut(0, dropped)

    def update_latest(self, checkpoint: str) -> None:
        """Points `checkpoints/latest` at the checkpoint of that name. Raises RunDirError."""
        point(self.latest, checkpoint)

    def update_best(self, checkpoint: str) -> None:
        """The same for `checkpoints/best`; where there is no such checkpoint, the link goes. Raises RunDirError."""
        if checkpoint and (self.checkpoints / checkpoint).is_dir():
            point(self.best, checkpoint)
            return
        with explained(f"cannot remove {self.best}"):
            self.best.unlink(missing_ok=True)


def _make(folder: Path) -> None:
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise RunDirError(
            f"cannot make the run directory {folder}: it is a file; choose another --run-dir", code="run/dir-not-empty"
        )
    with explained(f"cannot make the run directory {folder}"):
        folder.mkdir(parents=True, exist_ok=True)


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # somebody else has put something there meanwhile
            folder.rmdir()


def _make_unique(runs: Path, name: str) -> Path:
    """Two jobs of one name may start in the same second: mkdir decides who gets which."""
    stem = re.sub(r"[^\w.+-]+", "_", name) or "job"
    base = runs / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    with explained(f"cannot make a run directory in {runs}"):
        runs.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                return folder
    raise RunDirError(f"cannot make a run directory: {base} and 998 more of that name exist", code="run/dir-taken")


def _take_lock(folder: Path) -> int:
    """The descriptor of RUN/.lock, locked. Raises RunDirError naming the process of the other job."""
    file = folder / LOCK
    try:
        return host.lock_file(file)
    except BlockingIOError:
        raise RunDirError(
            f"the run directory {folder} is in use by another job, process {_owner(file)}; "
            f"wait for it, stop it, or choose another --run-dir",
            code="run/in-use",
        ) from None
    except OSError as error:
        raise RunDirError(
            f"cannot write to the run directory {folder}: {error.strerror}", code="run/not-writable"
        ) from error


def _sign(lock: int) -> bytes:
    """Writes our process number into the lock, for whoever is refused; answers what it held before. On a full disk it
    stays empty: the kernel holds the lock, not the number."""
    found = os.pread(lock, os.fstat(lock).st_size, 0)
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return found


def _owner(lock: Path) -> str:
    """The holder writes its number just after it took the lock: for an instant there may be none."""
    try:
        return lock.read_text().strip() or "of unknown number"
    except OSError:
        return "of unknown number"


def _refuse_content(folder: Path) -> None:
    """What a job leaves that was killed before there was a run counts for nothing: its lock, and beside a lock env.json
    and names.json, and what it had not renamed yet."""
    content = {entry.name for entry in folder.iterdir()}
    if LOCK in content:
        content = {name for name in content - {LOCK, ENV, NAMES} if not name.startswith(TEMPORARY)}
    if not content:
        return
    if RESOLVED in content:
        os.close(_take_lock(folder))  # says so when a job is running there
        raise RunDirError(
            f"{folder} holds a run already: go on with it by --resume {folder}, or choose another --run-dir",
            code="run/dir-taken",
        )
    raise RunDirError(
        f"{folder} is not empty and not a run: nothing was written to it; choose another --run-dir",
        code="run/dir-not-empty",
    )


def _is_kept(line: bytes, updates: int) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    made = record.get("updates") if isinstance(record, dict) else None
    return line.endswith(b"\n") and isinstance(made, int) and made <= updates


def _sweep(folder: Path) -> None:
    """Removes what a writer that was killed had not renamed yet."""
    with explained(f"cannot clean up {folder}"):
        for entry in folder.glob(f"{TEMPORARY}*"):
            if not stat.S_ISDIR(entry.lstat().st_mode):
                entry.unlink()
