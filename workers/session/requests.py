"""Requests to a running job: files RUN/requests/ID.json, which whoever asks writes under another name and renames. The
supervisor answers each with an event.

    {"ask": "resize", "procs": 3}  ->  {"event": "request", "id": ID, "ask": …, "answer": "done", or why not}"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hogwild.storage.files import read_regular
from hogwild.storage.records import object_of

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
                # {} is answered as unknown: no object of JSON, too long, or a pipe, which would keep the job waiting.
                request = object_of(read_regular(file, most=MOST_BYTES)) or {}
                file.unlink()
                yield file.stem, request
