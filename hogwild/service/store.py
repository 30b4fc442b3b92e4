"""The jobs on disk. Only the loop's thread writes.

The truth is a folder per job: `job.json`, written once, and a journal with a line per event, synced before anything
acts on it. SQLite holds a copy of each folded record, so that a start does not read every journal: a row counts only if
it was made from a journal of the present size and its checksum fits. A damaged, foreign or full database therefore
loses nothing; it is made anew, or left out until the next start.

    add:     .tmp-ID/ {job.json, files/, journal} -> sync -> rename to ID/     a crash before leaves only .tmp-ID
    sweep:   .tmp-ID/ {job folders} -> sync -> rename to .all-ID/ -> move each  a crash between: moved at the start
    book:    line -> fsync -> row                                               a crash between leaves an older row
    remove:  rename ID/ to .tmp-ID -> delete                                    a crash between: swept at the start"""

import contextlib
import json
import os
import secrets
import shutil
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from hogwild.errors import RunDirError, StorageFullError
from hogwild.service.failpoints import reach
from hogwild.service.folders import ACCEPTED, ID, JobFolder, StateFolder, order_text
from hogwild.service.states import JobEvent, JobOrder, JobRecord, apply
from hogwild.storage.files import TEMPORARY, Records, file_bytes, sync_folder

FORMAT = 1  # of the database; another one is made anew
_DAMAGE = (sqlite3.Error, OSError, ValueError, OverflowError)


class Store:
    """All jobs and their journals. `jobs`, `orders`: id -> as it is now; `unreadable`: id -> why, of damaged jobs,
    which are left alone."""

    def __init__(self, state: StateFolder) -> None:
        self.state = state
        self.jobs: dict[str, JobRecord] = {}
        self.orders: dict[str, JobOrder] = {}
        self.unreadable: dict[str, str] = {}
        self._numbered = 0  # the highest number that was given
        self._late: dict[str, list[JobEvent]] = {}  # events that a full disk did not take yet
        self._index: _Index | None = None

    @property
    def is_behind(self) -> bool:
        """Return whether events wait for space on the disk."""
        return bool(self._late)

    def load(self) -> None:
        """Read all jobs. Raises RunDirError."""
        for left in self.state.folders(TEMPORARY):  # of jobs that a killed service was adding or removing
            shutil.rmtree(left, ignore_errors=True)
        for sweep in self.state.folders(ACCEPTED):  # by a killed service
            self._finish_sweep(sweep)
        self._index = _Index.open(self.state.index)
        rows = self._index.rows() if self._index else {}
        found: list[tuple[JobOrder, JobRecord, bool]] = []
        for folder in [JobFolder(path) for path in self.state.folders() if ID.fullmatch(path.name)]:
            name, what = folder.path.name, folder.order
            try:
                order = folder.read_order()
                what = folder.journal
                known = rows.get((name, folder.journal.stat().st_size))
                found.append((order, known or _fold(folder), known is not None))
            except (OSError, ValueError) as error:
                self.unreadable[name] = f"{what}: {error}"
        for order, job, is_known in sorted(found, key=lambda one: one[0].number):
            self.orders[order.id], self.jobs[order.id] = order, job
            if not is_known:
                self._keep(order.id)
        if self._index:
            self._index.forget_all_but(self.jobs)

    def close(self) -> None:
        if self._index:
            self._index.close()

    def next_number(self, count: int = 1) -> int:
        """Return the first of `count` new numbers."""
        first = max((order.number for order in self.orders.values()), default=0)
        first = max(first, self._numbered) + 1
        self._numbered = first + count - 1
        return first

    def write_aside(self, files: Mapping[str, bytes]) -> Path:
        """Write a new job's files to a folder aside, for `add`. May take long; any thread. Raises
        StorageFullError."""
        aside = JobFolder(self.state.jobs / f"{TEMPORARY}{secrets.token_hex(8)}")
        with self._accepting(aside.path):
            for name, text in files.items():
                _write_synced(aside.files / name, text)
            for made in {(aside.files / name).parent for name in files}:
                sync_folder(made)
        return aside.path

    def add(self, order: JobOrder, aside: Path) -> JobRecord:
        """Store a new job, queued. `aside` is used up. Raises StorageFullError; then nothing of it is left."""
        with self._accepting(aside):
            _write_synced(JobFolder(aside).order, order_text(order).encode())
            _write_synced(JobFolder(aside).journal, b"")
            sync_folder(aside)
            reach("added-aside")
            folder = self.state.job(order.id).path
            aside.rename(folder)
            try:
                sync_folder(self.state.jobs)
            except OSError:
                shutil.rmtree(folder, ignore_errors=True)
                raise
        reach("added")
        self.orders[order.id] = order
        self.jobs[order.id] = JobRecord(order.id)
        self._keep(order.id)
        return self.jobs[order.id]

    def write_sweep_aside(self, files: Mapping[str, bytes], orders: Sequence[JobOrder]) -> Path:
        """Write the jobs of a sweep, complete, to a folder aside, for `add_sweep`. Its jobs share their copied files
        by links. May take long; any thread. Raises StorageFullError."""
        copied = self.write_aside(files)
        aside = copied.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        with self._accepting(copied), self._accepting(aside):
            for order in orders:
                folder = JobFolder(aside / order.id)
                shutil.copytree(copied / "files", folder.files, copy_function=_link_or_copy)
                _write_synced(folder.order, order_text(order).encode())
                _write_synced(folder.journal, b"")
                for made in (*{(folder.files / name).parent for name in files}, folder.path):
                    sync_folder(made)
            sync_folder(aside)
            shutil.rmtree(copied)
        return aside

    def add_sweep(self, orders: Sequence[JobOrder], aside: Path) -> None:
        """Store the jobs of a sweep, queued: all or none. `aside` is used up. Raises StorageFullError."""
        accepted = aside.with_name(aside.name.replace(TEMPORARY, ACCEPTED))
        with self._accepting(aside):
            reach("added-aside")
            aside.rename(accepted)  # from here on a crash does not undo it
            moved: list[Path] = []
            try:
                sync_folder(self.state.jobs)
                reach("accepted")
                for order in orders:
                    moved.append((accepted / order.id).rename(self.state.job(order.id).path))
                    reach("moved-in")
                sync_folder(self.state.jobs)
                accepted.rmdir()
            except OSError:
                for folder in moved:  # back first: a crash here leaves all of them accepted
                    folder.rename(accepted / folder.name)
                accepted.rename(aside)
                raise
        reach("added")
        for order in orders:  # an empty journal needs no row of the database
            self.orders[order.id] = order
            self.jobs[order.id] = JobRecord(order.id)

    def _finish_sweep(self, accepted: Path) -> None:
        """Move the jobs in that a killed service had accepted. One that cannot be moved stays, and is named."""
        for folder in accepted.iterdir():
            try:
                folder.rename(self.state.jobs / folder.name)
            except OSError as error:
                self.unreadable[folder.name] = f"{folder}: cannot be moved to {self.state.jobs}: {error.strerror}"
        with contextlib.suppress(OSError):  # something is left in it
            accepted.rmdir()

    @contextlib.contextmanager
    def _accepting(self, aside: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise StorageFullError(
                f"the job was not accepted: {self.state.jobs} cannot be written: {error.strerror}"
            ) from error

    def book(self, name: str, event: JobEvent, *, must: bool = False) -> JobRecord:
        """Write an event and return the job after it. On a full disk it is written later, `write_late`; with `must`
        nothing changes then, and StorageFullError is raised."""
        job = apply(self.jobs[name], event)
        waiting = self._late.setdefault(name, [])
        waiting.append(event)
        if not self._write(name) and must:
            waiting.pop()
            if not waiting:
                del self._late[name]
            raise StorageFullError(f"{self.state.job(name).journal} cannot be written (disk full?)")
        self.jobs[name] = job
        reach("booked")
        if name not in self._late:
            self._keep(name)
            reach("indexed")
        return job

    def write_late(self) -> None:
        """Write the events that did not fit on the disk before."""
        for name in list(self._late):
            if self._write(name):
                self._keep(name)

    def remove(self, name: str) -> None:
        """Delete a job with its run. Raises StorageFullError if the folder cannot be changed."""
        folder = self.state.job(name).path
        aside = folder.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        try:
            folder.rename(aside)
            sync_folder(self.state.jobs)
        except FileNotFoundError:  # deleted by hand
            pass
        except OSError as error:
            raise StorageFullError(f"{folder} cannot be removed: {error.strerror}") from error
        reach("removed-aside")
        # A run may have gigabytes. What a killed service leaves of it is swept at the next start.
        threading.Thread(target=shutil.rmtree, args=(aside,), kwargs={"ignore_errors": True}, daemon=True).start()
        self.set_aside(name, "deleted")
        del self.unreadable[name]
        self._on_index(lambda index: index.forget(name))

    def set_aside(self, name: str, why: str) -> None:
        """Leave a job alone until the next start."""
        self.unreadable[name] = why
        for table in (self.jobs, self.orders, self._late):
            table.pop(name, None)

    def _write(self, name: str) -> bool:
        """Append the waiting events of a job, all or none; return whether they are on the disk."""
        file = self.state.job(name).journal
        if not file.parent.is_dir():  # deleted by hand; the job lives on in memory
            return False
        records = Records(file)
        before = file_bytes(file)
        try:
            for event in self._late[name]:
                records.append(dict(event))
            records.sync()
        except RunDirError:
            with contextlib.suppress(RunDirError):
                records.cut(before)
            return False
        finally:
            records.close()
        del self._late[name]
        return True

    def _keep(self, name: str) -> None:
        size = file_bytes(self.state.job(name).journal)
        self._on_index(lambda index: index.keep(self.jobs[name], size))

    def _on_index(self, action: Callable[["_Index"], None]) -> None:
        if self._index is None:
            return
        try:
            action(self._index)
        except _DAMAGE:  # full or damaged: the journals are complete, and the next start makes it anew
            self._index.close()
            self._index = None


def _link_or_copy(source: str, target: str) -> None:
    """Link a file that nobody changes; copy it where the file system has no links."""
    try:
        os.link(source, target)
    except PermissionError:  # EPERM, as link(2) has it
        shutil.copyfile(source, target)


def _write_synced(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _fold(folder: JobFolder) -> JobRecord:
    """Return the record that the journal gives. A line that cannot be read or applied is left out, and so is a last one
    without its end. Raises OSError."""
    job = JobRecord(folder.path.name)
    for line in folder.journal.read_bytes().split(b"\n")[:-1]:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            job = apply(job, json.loads(line))
    return job


class _Index:
    """The database: per job its folded record, the journal's size and a checksum of both."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    @classmethod
    def open(cls, file: Path) -> "_Index | None":
        """Return the database, made anew if it is damaged; None if that is not possible either."""
        for is_second in (False, True):
            try:
                return cls(_connected(file))
            except _DAMAGE:
                if not is_second:
                    for each in (file, *(file.with_name(file.name + tail) for tail in ("-wal", "-shm"))):
                        with contextlib.suppress(OSError):
                            each.unlink()
        return None

    def rows(self) -> dict[tuple[str, int], JobRecord]:
        """Return (id, size of its journal) -> record of all rows that are whole."""
        found = {}
        try:
            for name, size, record, crc in self._database.execute("SELECT id, size, record, crc FROM jobs"):
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    if crc == _checksum(name, size, record):
                        found[name, size] = JobRecord.of_json(json.loads(record))
        except _DAMAGE:
            return {}
        return found

    def keep(self, job: JobRecord, size: int) -> None:
        record = json.dumps(asdict(job))
        row = (job.id, size, record, _checksum(job.id, size, record))
        self._database.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?)", row)

    def forget(self, name: str) -> None:
        self._database.execute("DELETE FROM jobs WHERE id = ?", (name,))

    def forget_all_but(self, known: Mapping[str, object]) -> None:
        with contextlib.suppress(*_DAMAGE):
            for (name,) in self._database.execute("SELECT id FROM jobs").fetchall():
                if name not in known:
                    self.forget(name)

    def close(self) -> None:
        with contextlib.suppress(*_DAMAGE):
            self._database.close()


def _connected(file: Path) -> sqlite3.Connection:
    # Autocommit: each statement is a transaction of its own.
    database = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=0)
    try:
        if database.execute("PRAGMA user_version").fetchone()[0] not in (0, FORMAT):
            raise sqlite3.DatabaseError("of another version")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute(
            "CREATE TABLE IF NOT EXISTS jobs (id TEXT PRIMARY KEY, size INTEGER, record TEXT, crc INTEGER)"
        )
        database.execute(f"PRAGMA user_version = {FORMAT}")
        if database.execute("PRAGMA quick_check").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("damaged")
    except BaseException:
        database.close()
        raise
    return database


def _checksum(name: str, size: int, record: str) -> int:
    return zlib.crc32(f"{name} {size} {record}".encode())
