"""Requests to a live job, from outside: a file RUN/requests/ID.json, written aside and renamed. The supervisor looks
every 100 ms and answers with an event `request` in RUN/events.jsonl (`workers/supervision/answers.py`)."""

import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hogwild.storage.files import file_bytes, read_regular, replace
from hogwild.storage.records import explained, object_of
from hogwild.storage.run_directory import REQUESTS

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
