"""Another program's processes, looked at and signalled from outside: what `hogwild.chaos` needs of Linux.

The one thing to know: a number read from a file may belong to a stranger by now. Whoever signals opens a pidfd first
and asks afterwards whose child it is; whoever only looks compares when the process began."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from hogwild import host
from hogwild.host.processes import command_line
from hogwild.host.procfs import PROC

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
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE and process.ppid() == parent:
            return pidfd
    os.close(pidfd)
    return None


def marked(entry: str) -> dict[int, str]:
    """Every living process with `entry` (NAME=VALUE) in the environment it was started with, which all descendants
    inherit, whoever their parent is by now: number -> command line. What is dead has no environment any more."""
    name, _, value = entry.partition("=")
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it ended while we looked, or is somebody else's
            if process.environ().get(name) == value:
                found[process.pid] = command_line(process.pid)
    return found


def of_workers(pids_at: dict[int, float], *, with_groups: bool = True) -> dict[int, str]:
    """What lives of these processes (number -> wall time at which it was said to be there) and of the groups they led:
    number -> command line. One that began later is a stranger with the same number, and so is its group."""
    living = {process.pid: process for process in psutil.process_iter() if not _is_dead(process)}
    strangers = {pid for pid, at in pids_at.items() if pid in living and living[pid].create_time() > at + CLOCK_STEP_S}
    ours = pids_at.keys() - strangers
    leaders = ours if with_groups else set()
    return {pid: command_line(pid) for pid in living if pid in ours or _group(pid) in leaders}


def _is_dead(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


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
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):  # psutil's `open_files` leaves out what has no name in a folder any more
            held.update(os.readlink(link) for link in (PROC / str(process.pid) / "fd").iterdir())
        with contextlib.suppress(psutil.Error):
            held.update(place.path for place in process.memory_maps())
    return held
