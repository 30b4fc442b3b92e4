"""Another program's processes, looked at and signalled from outside: what `hogwild.chaos` needs of Linux.

The one thing to know: a number read from a file may belong to a stranger by now. Whoever signals opens a pidfd first
and asks afterwards whose child it is; whoever only looks compares when the process began."""

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
CLOCK_STEP_S = 1.0  # the kernel counts the age of a process in ticks, and the clock may be set meanwhile
LONGEST_LOOK_S = 0.1  # of a wait: time in which we ourselves did not run counts for nobody


def open_child(pid: int, parent: int) -> int | None:
    """A pidfd of `pid`, None when that is no living child of `parent`. The look at the parent comes second: while it is
    that parent's child, dead and unreaped or not, its number belongs to nobody else."""
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
    """Every living process with `entry` (NAME=VALUE) in the environment it was started with, which all descendants
    inherit, whoever their parent is by now: number -> command line. What is dead has no environment any more."""
    wanted, found = entry.encode(), {}
    for pid in pids():
        with contextlib.suppress(OSError):  # it ended while we looked, or is somebody else's
            if wanted in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found[pid] = command_line(pid)
    return found


def of_workers(pids_at: dict[int, float], *, with_groups: bool = True) -> dict[int, str]:
    """What lives of these processes (number -> wall time at which it was said to be there) and of the groups they led:
    number -> command line. One that began later is a stranger with the same number, and so is its group."""
    fields = {pid: found for pid in pids() if (found := stat_fields(pid)) is not None and found[STATE] != "Z"}
    strangers = {
        pid for pid, at in pids_at.items() if pid in fields and time.time() - age_s(fields[pid]) > at + CLOCK_STEP_S
    }
    ours = pids_at.keys() - strangers
    leaders = ours if with_groups else set()
    return {pid: command_line(pid) for pid, found in fields.items() if pid in ours or int(found[GROUP]) in leaders}


def wait_until_gone(look: Callable[[], dict[int, str]], limit_s: float) -> tuple[float, dict[int, str]]:
    """Seconds until `look` found nothing, and what it still found after `limit_s`. A look that comes late, because this
    process was not scheduled, adds no more than LONGEST_LOOK_S."""
    waited, last = 0.0, time.monotonic()
    while (found := look()) and waited < limit_s:
        time.sleep(0.01)
        now = time.monotonic()
        waited, last = waited + min(now - last, LONGEST_LOOK_S), now
    return waited, found


def shared_memory_names() -> frozenset[str]:
    """Names in /dev/shm; empty where there is none."""
    try:
        return frozenset(os.listdir(SHARED_MEMORY))
    except OSError:
        return frozenset()


def left_in_shared_memory(before: frozenset[str]) -> list[str]:
    """New names of this user's that no living process holds open or mapped: what another program uses is its own."""
    new = []
    for name in sorted(shared_memory_names() - before):
        with contextlib.suppress(OSError):
            if (SHARED_MEMORY / name).lstat().st_uid == os.getuid():
                new.append(name)
    held = _held() if new else set()
    return [name for name in new if str(SHARED_MEMORY / name) not in held]


def _held() -> set[str]:
    """Files in /dev/shm that some process has open or mapped."""
    held: set[str] = set()
    for pid in pids():
        process = PROC / str(pid)
        with contextlib.suppress(OSError):
            held.update(os.readlink(link) for link in (process / "fd").iterdir())
        with contextlib.suppress(OSError):
            maps = (process / "maps").read_text(errors="replace").splitlines()
            held.update(line.split(maxsplit=5)[-1] for line in maps if str(SHARED_MEMORY) in line)
    return held
