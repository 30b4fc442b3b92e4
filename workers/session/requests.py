"""Requests to a running job: files RUN/requests/ID.json, which whoever asks writes under another name and renames. The
supervisor answers each with an event.

    {"ask": "resize", "procs": 3}  ->  {"event": "request", "id": ID, "ask": …, "answer": "done", or why not}"""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

from hogwild.storage.run_directory import RunDir

LOOK_S = 0.1


class Requests:
    """The requests of one attempt; those to an earlier one are gone."""

    def __init__(self, rundir: RunDir) -> None:
        self._folder = rundir.requests
        self._next_s = 0.0
        for _ in self._taken():
            continue

    def look(self, now: float) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (id, request) of each new request, at most every LOOK_S."""
        if now >= self._next_s:
            self._next_s = now + LOOK_S
            yield from self._taken()

    def _taken(self) -> Iterator[tuple[str, dict[str, Any]]]:
        with contextlib.suppress(OSError):  # what cannot be read and removed is not answered
            for file in sorted(self._folder.glob("*.json")):
                content = file.read_bytes()
                file.unlink()
                yield file.stem, _read(content)


def _read(content: bytes) -> dict[str, Any]:
    """Return the request; {} for anything else, which is answered as unknown."""
    with contextlib.suppress(ValueError):
        if isinstance(found := json.loads(content), dict):
            return found
    return {}
