"""Requests to a running job: files RUN/requests/ID.json, which whoever asks writes under another name and renames. The
supervisor answers each with an event.

    {"ask": "resize", "procs": 3}  ->  {"event": "request", "id": ID, "ask": …, "answer": "done", or why not}"""

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOOK_S = 0.1
MOST_BYTES = 64 * 1024  # of a request


class Requests:
    """The requests to a run. `folder`: RUN/requests, if it is there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next_s = 0.0

    def look(self, now: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (id, request) of each new request, at most every LOOK_S."""
        if now >= self._next_s:
            self._next_s = now + LOOK_S
            yield from self._taken()

    def _taken(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for file in sorted(self._folder.glob("*.json")):
            with contextlib.suppress(OSError):  # what cannot be read and removed, as a folder, is not answered
                request = _read(file)
                file.unlink()
                yield file.stem, request


def _read(file: Path) -> dict[str, Any]:
    """Return the request; {} for anything else, which is answered as unknown: no object of JSON, too long, no file (a
    pipe would keep the job waiting)."""
    reader = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        content = os.read(reader, MOST_BYTES) if stat.S_ISREG(os.fstat(reader).st_mode) else b""
    finally:
        os.close(reader)
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(content), dict):
            return found
    return {}
