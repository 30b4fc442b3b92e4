"""The run directory: its lock, its layout, and atomic writes into it.

Whole files are written aside (`.tmp-NAME-PID`), then renamed: a reader sees the old one or the new one. Records are
appended by one write of one whole line. Only one process writes, the supervisor: the lock on `RUN/.lock` ensures it,
and the kernel frees the lock when the process ends, in any way."""

import contextlib
import json
import os
import re
import stat
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild import host
from hogwild.errors import NotFoundError, RunDirError
from hogwild.storage.files import TEMPORARY, Records, explained, object_of, point, replace, sync_folder, to_json, tried
from hogwild.storage.published_folder import remove

LOCK = ".lock"
STATUS = "status.json"
SEARCH = "search.json"  # of a search, in the place of status.json and resolved.yaml
ENV = "env.json"
STDIN = "stdin"  # what standard input has brought (data/standard_input.py)
REQUESTS = "requests"  # of others, to the running job
NAMES = "names.json"  # names of the model's ids: words, users, items
TEXTS = "names.jsonl"  # the texts behind hashed ids, [id, text] per line (data/follow.py)
ALL_TEXTS = "names*.jsonl"  # with those of further loaders: each file has one writer
KNOWN = "known.npz"  # who has what, of this run and all that it continued (job/known_rows.py)
OF_NODE = r"node-\d+"  # the part of a further node of a cluster, which may come first
LATEST, BEST = "latest", "best"  # links among the checkpoints
RESOLVED = "resolved.yaml"  # its presence makes a directory a run: needed to resume
LIBRARY = "hogwild.train"  # `caller` in env.json of a run whose objects came from a call: no file can rebuild them
PLACES = ("device", "device_per_worker", "placement")  # fields of `train` that place the parameters


def require_current_folder() -> None:
    """Raise NotFoundError if the current folder was deleted: torch's math library would end the process, for instance
    in a worker."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise NotFoundError(
            "the current folder was deleted; change to an existing folder", code="run/current-folder-gone"
        ) from None


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of the metrics records to keep: the first `size` bytes. `records`: number of dropped ones."""

    size: int
    records: int


class RunDir:
    """A run directory locked by this process. Use `create` or `open`; `close` releases the lock."""

    def __init__(self, path: Path, lock: int, found: bytes, made: Sequence[Path] = ()) -> None:
        """Take ownership of the descriptor `lock`; `found`: the lock's content before us. `made`: the folders created
        for this run, innermost first."""
        self.path = path
        self._made = tuple(made)
        self._lock = lock
        self._found = found
        self.job_file = path / "job.yaml"
        self.resolved_file = path / RESOLVED
        self.status_file = path / STATUS
        self.requests = path / REQUESTS
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
        _open.add(self)

    @classmethod
    def create(cls, path: Path | None, name: str) -> "RunDir":
        """Create a new run: `path`, which may exist but must be empty, or `runs/NAME-YYYYmmdd-HHMMSS` under the current
        folder. Raises RunDirError if it is in use, not empty or not writable, and then leaves nothing behind."""
        folder = Path(os.path.abspath("runs" if path is None else path))
        made = [one for one in (folder, *folder.parents) if not os.path.exists(one)]
        if path is None:
            folder = _make_unique(folder, name)
            made.insert(0, folder)
        else:
            if os.path.exists(folder) and not os.path.isdir(folder):
                raise RunDirError(
                    f"cannot create the run directory {folder}: it is a file; choose another --run-dir",
                    code="run/dir-not-empty",
                )
            with explained(f"cannot make the run directory {folder}"):
                folder.mkdir(parents=True, exist_ok=True)
            _refuse_content(folder)
        try:
            lock = _lock(folder)
        except RunDirError:
            _remove_empty(made)
            raise
        try:
            _refuse_content(folder)  # another job may have used it before we had the lock
            _sweep(folder)
        except RunDirError:
            os.close(lock)
            raise
        return cls(folder, lock, _sign(lock), made)

    @classmethod
    def open(cls, path: Path, mark: str = RESOLVED) -> "RunDir":
        """Open an existing run to continue it; sweep the leftovers of a killed writer. `mark`: the file that makes it
        one. Raises NotFoundError if there is none, RunDirError if another job has it or it is not writable."""
        folder = Path(os.path.abspath(path))
        if not folder.is_dir():
            raise NotFoundError(f"no run at {folder}: there is no such directory", code="run/not-found")
        if not (folder / mark).is_file():
            raise NotFoundError(f"{folder} is not a run directory: it has no {mark}", code="run/not-a-run")
        lock = _lock(folder)
        run = cls(folder, lock, _sign(lock))
        _sweep(folder)
        return run

    @property
    def lock(self) -> int:
        """The descriptor of the lock. A child that inherits it holds the lock, too, until both have closed it."""
        return self._lock

    def close(self) -> None:
        """Release the lock with its earlier content, so that a refused resume changes nothing."""
        self.metrics.close()
        self.events.close()
        if self._lock >= 0:
            with contextlib.suppress(OSError):  # a full disk: the lock then names an ended job, as after a kill
                os.ftruncate(self._lock, 0)
                os.pwrite(self._lock, self._found, 0)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> "RunDir":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def make_folders(self) -> None:
        """Make the folders that workers and checkpoints need. They, and the run itself, then survive a power cut."""
        for folder in (self.logs, self.stacks, self.checkpoints):
            with explained(f"cannot make {folder}"):
                folder.mkdir(exist_ok=True)
        with explained(f"cannot write to {self.path}"):
            sync_folder(self.path)
            for made in (self.path, *self._made):
                with contextlib.suppress(PermissionError):  # another user's folder that we may not list
                    sync_folder(made.parent)

    def write_text(self, name: str, text: str, *, sync: bool = False) -> Path:
        """Replace the file `name` atomically; with `sync` it also survives a power cut. Raises RunDirError."""
        file = self.path / name
        with explained(f"cannot write {file}"):
            replace(file, text.encode("utf-8", "surrogateescape"), sync)  # a path with any bytes
        return file

    def write_bytes(self, name: str, content: bytes) -> None:
        """Replace the file `name` atomically and durably. Raises RunDirError."""
        with explained(f"cannot write {self.path / name}"):
            replace(self.path / name, content, sync=True)

    def write_json(self, name: str, value: object, *, sync: bool = False) -> Path:
        """As `write_text`, as standard JSON: NaN and infinity are written as null."""
        return self.write_text(name, json.dumps(to_json(value), indent=2, allow_nan=False) + "\n", sync=sync)

    def try_write_json(self, name: str, value: object) -> bool:
        """As `write_json`; return False on failure, which must not stop training. The caller reports it, once."""
        return tried(lambda: self.write_json(name, value))

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file of the run; None if it is missing or not JSON."""
        try:
            return json.loads((self.path / name).read_text("utf-8"))
        except (OSError, ValueError):
            return None

    @property
    def has_input(self) -> bool:
        """True if standard input has brought something, which cannot be read again."""
        return any(file.stat().st_size for file in (self.path / STDIN).glob("[0-9]*"))

    def discard(self) -> None:
        """Remove the run and the folders made for it, but nothing that somebody else has put there, and nothing that
        standard input has brought: for a job in which nothing was started. Call `close` afterwards."""
        self.metrics.close()
        self.events.close()
        files = (self.job_file, self.resolved_file, self.status_file, self.metrics.path, self.events.path)
        folders = (self.logs, self.stacks, self.checkpoints, self.tensorboard, self.profile)
        ours = {LOCK, ENV, NAMES, TEXTS, KNOWN, *(entry.name for entry in (*files, *folders))}
        if not self.has_input:
            ours.add(STDIN)
        for entry in self.path.iterdir() if self.path.is_dir() else ():
            if entry.name in ours or entry.name.startswith(TEMPORARY):
                remove(entry)
        _remove_empty(self._made)

    def cut_records_after(self, updates: int) -> int:
        """Drop the metrics records with more than `updates` updates and a torn last line, for a resume; return how
        many."""
        cut = self.draft_cut(updates)
        if cut.records:
            self.metrics.cut(cut.size)
            self.metrics.sync()
        return cut.records

    def draft_cut(self, updates: int) -> "Cut":
        """Find, from the end, the last record to keep: the slow part of a cut, for a thread. `updates` never decrease
        in the file. Changes nothing. A later `metrics.cut`, in the thread that appends, also drops records appended
        meanwhile. Raises RunDirError."""
        dropped = 0
        for begin, line in self.metrics.backwards():
            made = (object_of(line) or {}).get("updates")
            if line.endswith(b"\n") and isinstance(made, int) and made <= updates:
                return Cut(begin + len(line), dropped)
            dropped += 1
        return Cut(0, dropped)

    def update_best(self, checkpoint: str) -> bool:
        """Point `checkpoints/best` at the checkpoint, or remove the link if there is none; return whether there is one.
        Raises RunDirError."""
        if checkpoint and (self.checkpoints / checkpoint).is_dir():
            point(self.best, checkpoint)
            return True
        with explained(f"cannot remove {self.best}"):
            self.best.unlink(missing_ok=True)
        return False


def part_of(run: Path, node: int) -> Path:
    """Return a node's own run directory: the run itself for the first node, `node-K` in it for the others."""
    return run / f"node-{node}" if node else run


def run_of_all(run: Path) -> Path:
    """Return the run that a node's own run directory is a part of."""
    return run.parent if re.fullmatch(OF_NODE, run.name) else run


def checkpoints_beside(run: Path) -> list[Path]:
    """Return the folders of checkpoints that the other nodes of a cluster have written on this disk."""
    home = run_of_all(run)
    folders = [home / "checkpoints", *sorted(home.glob("node-*/checkpoints"))]
    return [folder for folder in folders if folder != run / "checkpoints" and folder.is_dir()]


_open: "weakref.WeakSet[RunDir]" = weakref.WeakSet()


def _leave_locks() -> None:
    """Close the locks in a child that user code has forked: it would hold them after our end, however we end, and the
    run would look alive and could not be resumed."""
    for run in list(_open):
        if run._lock >= 0:
            os.close(run._lock)
            run._lock = -1


os.register_at_fork(after_in_child=_leave_locks)


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # another process has put something there meanwhile
            folder.rmdir()


def new_folder(name: str) -> Path:
    """Make an empty folder for a new run in `runs` under the current folder."""
    return _make_unique(Path(os.path.abspath("runs")), name)


def _make_unique(runs: Path, name: str) -> Path:
    """Make a folder for this run; if two jobs of one name start in the same second, mkdir decides."""
    stem = re.sub(r"[^\w.+-]+", "_", name) or "job"
    base = runs / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    with explained(f"cannot make a run directory in {runs}"):
        runs.mkdir(parents=True, exist_ok=True)
        for number in range(1, 1000):
            folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                return folder
    raise RunDirError(f"cannot create a run directory: {base} and 998 more with this name exist", code="run/dir-taken")


def _lock(folder: Path) -> int:
    """Return the locked descriptor of RUN/.lock. Raises RunDirError naming the process of the other job."""
    file = folder / LOCK
    try:
        return host.lock_file(file)
    except BlockingIOError:
        owner = ""
        with contextlib.suppress(
            OSError
        ):  # for an instant there is no number: the owner writes it after taking the lock
            owner = file.read_text().strip()
        is_of_service = (folder.parent / "job.json").is_file()
        stop_it = f"stop it with `hogwild cancel {folder.parent.name}`" if is_of_service else "stop it"
        raise RunDirError(
            f"the run directory {folder} is in use by another job, process {owner or 'of unknown number'}; "
            f"wait for it, {stop_it}, or choose another --run-dir",
            code="run/in-use",
        ) from None
    except OSError as error:
        raise RunDirError(
            f"cannot write to the run directory {folder}: {error.strerror}", code="run/not-writable"
        ) from error


def _sign(lock: int) -> bytes:
    """Write our PID into the lock, for refused jobs to read; return the earlier content. On a full disk it stays empty:
    the kernel holds the lock, not the number."""
    found = os.pread(lock, os.fstat(lock).st_size, 0)
    with contextlib.suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return found


def _refuse_content(folder: Path) -> None:
    """Raise RunDirError if the folder has content. Leftovers of a job killed before there was a run do not count: its
    lock, and beside a lock status.json, env.json, names.json, names.jsonl, known.npz and temporary files."""
    content = {entry.name for entry in folder.iterdir() if not re.fullmatch(OF_NODE, entry.name)}
    if LOCK in content:
        content = {
            name for name in content - {LOCK, STATUS, ENV, NAMES, TEXTS, KNOWN} if not name.startswith(TEMPORARY)
        }
    if not content:
        return
    if RESOLVED in content or SEARCH in content:
        os.close(_lock(folder))  # raises if a job is running there
        what = "search" if SEARCH in content else "run"
        raise RunDirError(
            f"{folder} already contains a {what}: resume it with --resume {folder}, or choose another --run-dir",
            code="run/dir-taken",
        )
    raise RunDirError(
        f"{folder} is not empty and not a run; nothing was written to it; choose another --run-dir",
        code="run/dir-not-empty",
    )


def _sweep(folder: Path) -> None:
    """Remove temporary files of a killed writer, and requests that an earlier attempt did not read."""
    with explained(f"cannot clean up {folder}"):
        for entry in (*folder.glob(f"{TEMPORARY}*"), *(folder / REQUESTS).glob("*")):
            if not stat.S_ISDIR(entry.lstat().st_mode):
                entry.unlink()
