"""Processes of another program, watched and signalled from outside: what `hogwild.chaos` needs from Linux.

The one thing to know: a process number read from a file may belong to another process by now. Before a signal, open a
pidfd first and check its parent afterwards; to only watch, compare the start time."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from hogwild import host
from hogwild.host.procfs import GROUP, PARENT, PROC, STATE, age_s, command_line, pids, stat_fields

KILL, STOP, GO_ON = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
TERMINATE, INTERRUPT = signal.SIGTERM, signal.SIGINT
SHARED_MEMORY = Path("/dev/shm")
CLOCK_STEP_S = 1.0  # the kernel counts a process's age in ticks, and the clock may be set meanwhile
LONGEST_LOOK_S = 0.1  # per wait: time in which this process itself did not run is not counted


def open_child(pid: int, parent: int) -> int | None:
    """Return a pidfd of `pid`, or None if it is no living child of `parent`. The parent is checked second: as long as
    `pid` is its child, dead and unreaped or not, the number cannot belong to another process."""
    try:
        pidfd = host.pidfd_open(pid)
    except OSError:
        return None
    fields = stat_fields(pid)
    if fields is not None and fields[STATE] != "Z" and int(fields[PARENT]) == parent:
        return pidfd
    os.close(pidfd)
    return None


def marked(entry: str) -> dict[int, str]:
    """Return every living process started with `entry` (NAME=VALUE) in its environment, as number -> command line. All
    descendants inherit it, even after their parent changed. Dead processes have no environment any more."""
    wanted, found = entry.encode(), {}
    for pid in pids():
        with contextlib.suppress(OSError):  # it ended while we read, or belongs to another user
            if wanted in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found[pid] = command_line(pid)
    return found


def of_workers(pids_at: dict[int, float], *, with_groups: bool = True) -> dict[int, str]:
    """Return the living ones of these processes (number -> wall time at which each was reported) and of the groups they
    led, as number -> command line. A process that began later is another one with the same number, and so is its
    group."""
    fields = {pid: found for pid in pids() if (found := stat_fields(pid)) is not None and found[STATE] != "Z"}
    strangers = {
        pid for pid, at in pids_at.items() if pid in fields and time.time() - age_s(fields[pid]) > at + CLOCK_STEP_S
    }
    ours = pids_at.keys() - strangers
    leaders = ours if with_groups else set()
    return {pid: command_line(pid) for pid, found in fields.items() if pid in ours or int(found[GROUP]) in leaders}


def wait_until_gone(look: Callable[[], dict[int, str]], limit_s: float) -> tuple[float, dict[int, str]]:
    """Return the seconds until `look` found nothing, and what it still found after `limit_s`. A late call, because this
    process was not scheduled, adds at most LONGEST_LOOK_S."""
    waited, last = 0.0, time.monotonic()
    while (found := look()) and waited < limit_s:
        time.sleep(0.01)
        now = time.monotonic()
        waited, last = waited + min(now - last, LONGEST_LOOK_S), now
    return waited, found


def shared_memory_names() -> frozenset[str]:
    """Return the names in /dev/shm; empty if it does not exist."""
    try:
        return frozenset(os.listdir(SHARED_MEMORY))
    except OSError:
        return frozenset()


def left_in_shared_memory(before: frozenset[str]) -> list[str]:
    """Return this user's new names that no living process has open or mapped: those in use belong to others."""
    new = []
    for name in sorted(shared_memory_names() - before):
        with contextlib.suppress(OSError):
            if (SHARED_MEMORY / name).lstat().st_uid == os.getuid():
                new.append(name)
    held = _held() if new else set()
    return [name for name in new if str(SHARED_MEMORY / name) not in held]


def _held() -> set[str]:
    """Return the files in /dev/shm that some process has open or mapped."""
    held: set[str] = set()
    for pid in pids():
        process = PROC / str(pid)
        with contextlib.suppress(OSError):
            held.update(os.readlink(link) for link in (process / "fd").iterdir())
        with contextlib.suppress(OSError):
            maps = (process / "maps").read_text(errors="replace").splitlines()
            held.update(line.split(maxsplit=5)[-1] for line in maps if str(SHARED_MEMORY) in line)
    return held
