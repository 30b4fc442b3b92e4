"""Files below a run directory, read by a process that does not trust them.

The one thing to know: user code may have written there, and a killed job may have left half of anything. So a file is
opened through no link and must be a regular file.

Beside them the requests to a live job: a file RUN/requests/ID.json, written aside and renamed. The supervisor, or the
process of a search, looks every 100 ms and answers with an event `request` in RUN/events.jsonl
(`workers/supervision/answers.py`, `searching/attempt.py`)."""

import contextlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from datetime import datetime
from io import BufferedReader
from pathlib import Path
from typing import Any

from hogwild.storage.checkpoint_format import MANIFEST, NAME
from hogwild.storage.files import explained, file_bytes, object_of, read_regular, replace, to_json
from hogwild.storage.run_directory import BEST, LATEST, REQUESTS, RESOLVED, SEARCH, STATUS

SMALL_BYTES = 4 << 20  # of a file that is read whole: manifest, configuration
MOST_ENTRIES = 1000  # of a folder
LOOK_S, MOST_BYTES = 0.1, 64 * 1024  # between two looks for requests; of a request
CHECKPOINTS = "checkpoints"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def opened_folder(run: Path, *names: str) -> Iterator[int]:
    """Yield the descriptor of a folder below a run directory, reached through no link. Raises OSError."""
    folder = os.open(run, _FOLDER)
    try:
        for name in names:
            above, folder = folder, os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
            os.close(above)
        yield folder
    finally:
        os.close(folder)


def opened(run: Path, *names: str) -> BufferedReader:
    """Open a regular file below a run directory, through no link; a pipe does not block. Raises OSError."""
    with opened_folder(run, *names[:-1]) as folder:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        reader = os.open(names[-1], flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(reader).st_mode):  # `open` would not close a folder that it refuses
        os.close(reader)
        raise FileNotFoundError(f"{'/'.join(names)} is no regular file")
    return open(reader, "rb")


def read_small(run: Path, *names: str) -> str | None:
    """Return the text of a small file; None if it is missing, unreadable or large."""
    with contextlib.suppress(OSError), opened(run, *names) as stream:
        content = stream.read(SMALL_BYTES + 1)
        return content.decode(errors="replace") if len(content) <= SMALL_BYTES else None
    return None


def read_json(run: Path, *names: str) -> dict[str, Any]:
    """Return the JSON object in a small file; {} if it is missing or damaged."""
    return object_of(read_small(run, *names) or "") or {}


def status_file(run: Path) -> Path:
    """Return the file in which a run, or a search, tells its state."""
    return found if (found := run / SEARCH).exists() else run / STATUS


def is_begun(run: Path) -> bool:
    """Return whether a run, or a search, can be resumed."""
    return (run / RESOLVED).exists() or (run / SEARCH).exists()


def checkpoints_in(run: Path) -> list[dict[str, Any]]:
    """Return the checkpoints, the newest first."""
    names, best, latest = [], None, None
    with contextlib.suppress(OSError), opened_folder(run, CHECKPOINTS) as folder:
        names = [name for name in os.listdir(folder) if NAME.fullmatch(name)]
        best, latest = (_target(folder, link) for link in (BEST, LATEST))
    ordered = sorted(names, key=lambda name: int(name.partition("-")[2]), reverse=True)[:MOST_ENTRIES]
    found = [(name, read_json(run, CHECKPOINTS, name, MANIFEST)) for name in ordered]
    return [
        {**_checkpoint(name, manifest), "is_best": name == best, "is_latest": name == latest}
        for name, manifest in found
        if manifest
    ]


def _target(folder: int, link: str) -> str | None:
    try:
        return os.readlink(link, dir_fd=folder)
    except OSError:
        return None


def _checkpoint(name: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
    meta, files = (one if isinstance(one := manifest.get(key), dict) else {} for key in ("meta", "files"))
    sizes = [one.get("size") for one in files.values() if isinstance(one, dict)]
    metrics, epoch = meta.get("metrics"), meta.get("epoch")
    return {
        "name": name,
        "updates": int(name.partition("-")[2]),
        "epoch": epoch if isinstance(epoch, int) else None,
        "bytes": sum(size for size in sizes if isinstance(size, int)),
        "at": _seconds(manifest.get("created")),
        "metrics": to_json(metrics) if isinstance(metrics, dict) else None,
    }


def _seconds(created: Any) -> float | None:
    try:
        return datetime.fromisoformat(created).timestamp()
    except (TypeError, ValueError, OverflowError, OSError):
        return None


EVENTS = "events.jsonl"


def new_request() -> str:
    """Return the id of a new request."""
    return secrets.token_hex(6)


def write_request(run: Path, request: Mapping[str, Any], name: str = "") -> str:
    """Ask a running job: `{"ask": "checkpoint"}`, `"stacks"`, or `"resize"` with procs and cores. Return its id, which
    is `name` if that is given. Raises RunDirError."""
    name = name or new_request()
    file = run / REQUESTS / f"{name}.json"
    with explained(f"cannot write {file}"):
        file.parent.mkdir(exist_ok=True)
        replace(file, json.dumps(request).encode(), sync=False)
    return name


class Requests:
    """The requests to a run, for the process that answers them. `folder`: RUN/requests, if it is there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next_s = 0.0

    def look(self, now: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (id, request) of each new request, at most every LOOK_S."""
        if now >= self._next_s:
            self._next_s = now + LOOK_S
            for file in sorted(self._folder.glob("*.json")):
                with contextlib.suppress(OSError):  # what cannot be read and removed, as a folder, is not answered
                    # {} is answered as unknown: no JSON object, too long, or a pipe, which would keep the job waiting.
                    request = object_of(read_regular(file, most=MOST_BYTES)) or {}
                    file.unlink()
                    yield file.stem, request


def answer_file(run: Path, name: str) -> Path:
    """Return the file for the answer to a request `ids`: int64 keys, in any order."""
    return run / REQUESTS / f"{name}.ids"


def withdraw(run: Path, name: str) -> bool:
    """Take a request back; return False if the job has read it already."""
    try:
        (run / REQUESTS / f"{name}.json").unlink()
    except OSError:
        return False
    return True


def is_unread(run: Path, name: str) -> bool:
    """Return whether the job has not read a request yet."""
    return (run / REQUESTS / f"{name}.json").exists()


def answer_to(run: Path, name: str, begin: int) -> dict[str, Any] | None:
    """Return the event that answers a request; None if there is none yet. `begin`: size of the events before it was
    written."""
    try:
        lines = read_regular(run / EVENTS, begin).splitlines(keepends=True)
    except OSError:
        return None
    for line in lines:
        if line.endswith(b"\n") and name.encode() in line:
            event = object_of(line) or {}  # user code may write there, too
            if event.get("event") == "request" and event.get("id") == name:
                return event
    return None


def size_of_events(run: Path) -> int:
    """Return the size of the events, before a request."""
    return file_bytes(run / EVENTS)
