"""Requests to a running job: files RUN/requests/ID.json, which whoever asks writes under another name and renames. The
supervisor answers each with an event.

    {"ask": "resize", "procs": 3}  ->  {"event": "request", "id": ID, "ask": …, "answer": "done", or why not}"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hogwild.storage.files import read_regular

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
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(read_regular(file, most=MOST_BYTES)), dict):
            return found
    return {}
