"""The jobs on disk. Only the loop's thread writes.

The store is a SQLite database: per job a row with its order and its record, and a row per event. Each job's folder has
a copy of its row, `job.json`. A row counts the job's events and has a checksum: of row and copy the newer one that is
whole is read, so a lost or damaged database is made anew from the copies, and a lost or damaged copy from its row.

    add:     .tmp-X/ {job.json, files/} -> sync -> rename to ID/ -> row         a crash before leaves only .tmp-X
    book:    row and event, synced -> job.json                                  a crash between leaves an older copy
    remove:  rename ID/ to .tmp-X -> delete                                     a crash between: swept at the start"""

import contextlib
import json
import os
import secrets
import shutil
import sqlite3
import sys
import threading
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hogwild.errors import StorageFullError
from hogwild.service.failpoints import reach
from hogwild.service.folders import ID, JobFolder, StateFolder, read_text
from hogwild.service.states import JobEvent, JobOrder, JobRecord, apply
from hogwild.storage.files import TEMPORARY, object_of, sync_folder
from hogwild.storage.files import replace as replace_file

VERSION = 2  # of a stored job; 1: job.json has the order alone, and a journal beside it the events
LOCKED_S = 5.0  # at most, at the start, for a program that has locked the database: a row may be newer than its copy
_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, content TEXT);
CREATE TABLE IF NOT EXISTS events (job TEXT, event TEXT);
CREATE INDEX IF NOT EXISTS events_of_job ON events (job);
"""
_FAILURES = (sqlite3.Error, OSError, ValueError, TypeError, OverflowError)
_STORED = TypeAdapter(tuple[JobOrder, JobRecord])


class Store:
    """All jobs and their events. `jobs`, `orders`: id -> as it is now; `unreadable`: id -> why, of damaged jobs, which
    are left alone; `warning`: the last line that was printed about a database that was lost or damaged."""

    def __init__(self, state: StateFolder) -> None:
        self.state = state
        self.jobs: dict[str, JobRecord] = {}
        self.orders: dict[str, JobOrder] = {}
        self.unreadable: dict[str, str] = {}
        self.warning = ""
        self._numbered = 0  # the highest number that was given, also to a removed job
        self._database: sqlite3.Connection | None = None
        self._late: dict[str, list[JobEvent]] = {}  # rows to be written, with their new events; or deleted
        self._copies: set[str] = set()  # jobs whose job.json is to be written

    @property
    def is_behind(self) -> bool:
        """Return whether something waits for space on the disk."""
        return bool(self._late or self._copies)

    def load(self) -> None:
        """Read all jobs. Raises RunDirError."""
        for left in self.state.folders(TEMPORARY):  # of jobs that a killed service was adding or removing
            shutil.rmtree(left, ignore_errors=True)
        is_missing = not self.state.database.exists()
        with contextlib.suppress(ValueError):
            self._numbered = int(read_text(self.state.numbered)[:15])  # a row takes it, whatever is in the file
        rows = self._read_rows()
        found: list[tuple[JobOrder, JobRecord, str]] = []
        for folder in [JobFolder(path) for path in self.state.folders() if ID.fullmatch(path.name)]:
            try:
                found.append(_newest(folder, rows.get(folder.path.name)))
            except (OSError, ValueError) as error:
                self.unreadable[folder.path.name] = f"{folder.order}: {error}"
        self._numbered = max([self._numbered, *(order.number for order, _, _ in found)])
        taken = set[int]()
        for order, job, copy in sorted(found, key=lambda one: (one[0].number, one[0].submitted, one[0].id)):
            if order.number in taken:  # one of them was brought here from another state folder
                number, order = order.number, replace(order, number=self.next_number())
                self._warn(f"two jobs had the number {number}: {order.id} is job {order.number} from now on")
            taken.add(order.number)
            self.orders[order.id], self.jobs[order.id] = order, job
            content = _content(order, job)
            if rows.get(order.id) != content:
                self._late[order.id] = []
            if copy != content:
                self._copies.add(order.id)
        if is_missing and found:
            self._warn(f"{self.state.database} was missing and is made anew from each job's job.json")
        self._late |= {
            name: [] for name in rows.keys() - {path.name for path in self.state.folders()}
        }  # deleted by hand
        self.write_late()

    def close(self) -> None:
        if self._database is not None:
            with contextlib.suppress(sqlite3.Error):
                self._database.close()
            self._database = None

    def next_number(self) -> int:
        """Return a new number."""
        self._numbered += 1
        return self._numbered

    def return_number(self, order: JobOrder) -> None:
        """Take back the number of a job that was refused, unless a later one was given since."""
        if self._numbered == order.number:
            self._numbered -= 1

    def write_aside(self, files: Mapping[str, bytes], order: JobOrder) -> Path:
        """Write a new job, complete, to a folder aside, for `add`. May take long; any thread. Raises
        StorageFullError."""
        aside = self.state.jobs / f"{TEMPORARY}{secrets.token_hex(8)}"
        folder = JobFolder(aside)
        with self._accepting(aside):
            for name, content in files.items():
                _write_synced(folder.files / name, content)
            _write_synced(folder.order, _content(order, JobRecord(order.id)).encode())
            for made in (*{(folder.files / name).parent for name in files}, aside):
                sync_folder(made)
        return aside

    def add(self, order: JobOrder, aside: Path) -> None:
        """Store a new job, queued. `aside` is used up. Raises StorageFullError."""
        place = self.state.job(order.id).path
        with self._accepting(aside):
            reach("added-aside")
            try:
                aside.rename(place)  # from here on a crash does not undo it
                sync_folder(self.state.jobs)
            except OSError:
                if not aside.exists():
                    place.rename(aside)
                self.return_number(order)
                raise
        reach("added")
        self.orders[order.id], self.jobs[order.id], self._late[order.id] = order, JobRecord(order.id), []
        self._commit()  # later, if it fails: job.json is complete

    @contextlib.contextmanager
    def _accepting(self, aside: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise StorageFullError(
                f"the job was not accepted: {self.state.jobs} cannot be written: {error.strerror}"
            ) from error

    def replace_code(self, name: str, files: Mapping[str, bytes]) -> None:
        """Give a job that does not run other files beside its job file. One by one: a job that is broken off here does
        not run, and is asked again. Raises StorageFullError."""
        folder, copied = self.state.job(name).files, self.orders[name].copied
        try:
            for old in folder.rglob("*.py"):
                if (one := str(old.relative_to(folder))) not in files and one != copied:
                    old.unlink()
            for one, content in files.items():
                (folder / one).parent.mkdir(parents=True, exist_ok=True)
                replace_file(folder / one, content, sync=False)
        except OSError as error:
            raise StorageFullError(f"{folder} cannot be written: {error.strerror}") from error

    def book(self, name: str, event: JobEvent, *, must: bool = False) -> JobRecord:
        """Write an event and return the job after it. On a full disk it is written later, `write_late`; with `must`
        nothing changes then, and StorageFullError is raised."""
        before = self.jobs[name]
        job = self.jobs[name] = replace(apply(before, event), booked=before.booked + 1)
        was_late, events = name in self._late, self._late.setdefault(name, [])
        events.append(event)
        if not self._commit() and must:
            self.jobs[name] = before
            events.pop()
            if not was_late:
                del self._late[name]
            raise StorageFullError(f"{self.state.database} cannot be written (disk full?)")
        reach("booked")
        self._copies.add(name)
        self._write_copies()
        reach("copied")
        return job

    def write_late(self) -> None:
        """Write what did not fit on the disk before."""
        self._commit()
        self._write_copies()

    def remove(self, name: str) -> None:
        """Delete a job with its run. Raises StorageFullError if the folder cannot be changed."""
        folder = self.state.job(name).path
        aside = folder.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
        if self.orders[name].number == max(one.number for one in self.orders.values()):
            # No copy tells its number from now on. A full disk must not keep a job from being removed.
            with contextlib.suppress(OSError):
                replace_file(self.state.numbered, f"{self._numbered}\n".encode(), sync=True)
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
        self._late[name] = []
        self._commit()

    def set_aside(self, name: str, why: str) -> None:
        """Leave a job alone until the next start."""
        self.unreadable[name] = why
        self._copies.discard(name)
        for table in (self.jobs, self.orders, self._late):
            table.pop(name, None)

    # ---- the database and the copies

    def _read_rows(self) -> dict[str, str]:
        """Return id -> content of the rows. Without a database that can be read: none, and the copies count."""
        try:
            database = self._connect()
            database.execute("PRAGMA busy_timeout = 0")  # from now on the loop's thread must not wait
            (last,) = database.execute("SELECT max(seq) FROM sqlite_sequence").fetchone()
            self._numbered = max(self._numbered, int(last or 0))  # AUTOINCREMENT remembers those of removed jobs
            return dict(database.execute("SELECT id, content FROM jobs WHERE typeof(content) = 'text'"))
        except _FAILURES as error:
            self._fail(error)
            return {}

    def _connect(self) -> sqlite3.Connection:
        """Return the database; a new one is to get all jobs. Raises sqlite3.Error."""
        if not self.state.database.exists():  # deleted by hand: what is written into the open one is lost
            self.close()
        if self._database is None:
            if not self.state.database.exists():
                self._late = {name: self._late.get(name, []) for name in self.jobs}
            timeout_s = 0 if self.jobs else LOCKED_S
            database = sqlite3.connect(self.state.database, check_same_thread=False, timeout=timeout_s)
            self._database = database
            database.text_factory = lambda text: text.decode(errors="replace")  # a row's checksum tells
            if database.execute("PRAGMA integrity_check").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("its pages do not fit together")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.executescript(_TABLES)
        return self._database

    def _fail(self, error: Exception) -> None:
        """Close the database after an error. A damaged one is set aside: the next try makes a new one."""
        self.close()
        file = self.state.database
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        is_operational = isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR
        if is_operational or isinstance(error, OSError):  # no space, or not ours to repair
            self._warn(f"{file} cannot be used for now ({error}); each job's job.json has what it would have")
            return
        self._warn(f"{file} was damaged ({error}) and is made anew from each job's job.json; it is kept as *.damaged")
        with contextlib.suppress(OSError):
            for tail in ("-wal", "-shm", ""):
                if (part := file.with_name(file.name + tail)).exists():
                    part.replace(part.with_name(f"{part.name}.damaged"))

    def _warn(self, words: str) -> None:
        if words != self.warning:
            self.warning = words
            print(f"warning: {words}", file=sys.stderr, flush=True)

    def _commit(self) -> bool:
        """Write rows and events that are late, all or none; return whether that is done."""
        if not self._late:
            return True
        try:
            with self._connect() as database:  # one transaction
                for name, events in self._late.items():
                    if name in self.jobs:
                        row = (self.orders[name].number, name, _content(self.orders[name], self.jobs[name]))
                        database.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?)", row)
                        lines = [(name, json.dumps(event)) for event in events]
                        database.executemany("INSERT INTO events VALUES (?, ?)", lines)
                    else:
                        database.execute("DELETE FROM jobs WHERE id = ?", (name,))
                        database.execute("DELETE FROM events WHERE job = ?", (name,))
        except _FAILURES as error:
            self._fail(error)
            return False
        self._late.clear()
        return True

    def _write_copies(self) -> None:
        # Not synced: the row is. After a power cut the newer one counts.
        for name in list(self._copies):
            try:
                content = _content(self.orders[name], self.jobs[name])
                replace_file(self.state.job(name).order, content.encode(), sync=False)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                # Its folder was deleted by hand, or changed: the job lives on until the next start.
                pass
            except OSError:  # disk full: later
                continue
            self._copies.discard(name)


def _write_synced(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _content(order: JobOrder, job: JobRecord) -> str:
    """Return a stored job, as its row and its job.json have it."""
    values = {"version": VERSION, "order": asdict(order), "record": asdict(job)}
    return json.dumps({**values, "checksum": _checksum(values)}, indent=1)


def _checksum(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(values).encode())


def _newest(folder: JobFolder, row: str | None) -> tuple[JobOrder, JobRecord, str]:
    """Return the job of row or copy, of the one with more events if both are whole; and the copy. Raises ValueError or
    OSError if none is whole."""
    found: list[tuple[JobOrder, JobRecord]] = []
    why: Exception = ValueError("it is empty or missing")
    copy = ""
    try:
        copy = read_text(folder.order)
    except OSError as error:
        why = error
    for content in filter(None, (row, copy)):
        try:
            found.append(_stored(content, folder))
        except (OSError, ValueError) as error:
            why = error
    if not found:
        raise why
    order, job = max(found, key=lambda one: one[1].booked)
    return order, job, copy


def _stored(content: str, folder: JobFolder) -> tuple[JobOrder, JobRecord]:
    """Return a stored job. Raises ValueError if it is damaged, or another job's; OSError."""
    values = object_of(content) or {}
    version, checksum = values.get("version"), values.pop("checksum", None)
    if isinstance(version, int) and version > VERSION:
        raise ValueError(f"it has version {version}, written by a newer hogwild")
    if version == 1:
        values = {"order": values, "record": asdict(_folded(folder))}
    elif checksum != _checksum(values):
        raise ValueError("its checksum does not fit")
    order, job = _STORED.validate_python((values.get("order"), values.get("record")))
    if order.id != folder.path.name:
        raise ValueError(f"it is the order of job {order.id}")
    return order, job


def _folded(folder: JobFolder) -> JobRecord:
    """Return the record that a journal of version 1 gives. A line that cannot be read or applied is left out, and so is
    a last one without its end. Raises OSError."""
    job = JobRecord(folder.path.name)
    for line in folder.journal.read_bytes().split(b"\n")[:-1]:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            job = apply(job, json.loads(line))
    return job
