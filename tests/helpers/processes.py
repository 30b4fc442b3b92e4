"""Processes as tests see them: waiting for something, and finding what a job left behind.

Every job of a test carries its own mark in the environment, which all its descendants inherit, whoever their parent is
by now: that is how orphans are found."""

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

MARK = "HOGWILD_TEST_MARK"
POLL_S = 0.01
# A net for what hangs, never a measure: no machine that is merely slow or busy may need as long.
PATIENCE_S = 300.0
IS_THOROUGH = bool(os.environ.get("HOGWILD_THOROUGH"))  # `make stress`: every point, and real interpreters everywhere

Found = TypeVar("Found")


def in_worker() -> bool:
    """True in a worker that was set up: it has its log by then. False in its trial of the job's code before."""
    return multiprocessing.parent_process() is not None and "memfd:" not in os.readlink("/proc/self/fd/1")


class NeverHappened(AssertionError):
    """An awaited event did not happen in time."""


def wait_for(what: str, look: Callable[[], Found], timeout_s: float = PATIENCE_S) -> Found:
    """The first true answer of `look`, asked again and again; raises NeverHappened after `timeout_s`. The last look
    comes after the deadline: this process may have been paused between a look and the clock."""
    deadline = time.monotonic() + timeout_s
    while True:
        is_over = time.monotonic() > deadline
        if found := look():
            return found
        if is_over:
            raise NeverHappened(f"waited {timeout_s:g} s for {what}; last seen: {found!r}")
        time.sleep(POLL_S)


def marked(mark: str) -> dict[int, str]:
    """Every living process that carries the mark: number -> command line. A zombie has no environment any more."""
    wanted = f"{MARK}={mark}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it ended while we looked, or is not ours
    return found


def shared_memory_names() -> set[str]:
    """Names in /dev/shm: ours has none, so nothing may be added."""
    return set(os.listdir("/dev/shm"))


def state_of(pid: int) -> str | None:
    """The letter of proc_pid_stat(5); None when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
