"""Processes of another program, watched and signalled from outside: what `hogwild.chaos` and `hogwild.service` need
from Linux.

The one thing to know: a process number read from a file may belong to another process by now. Before a signal, open a
pidfd first and check its parent afterwards; to only watch, compare the start time."""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from hogwild import host
from hogwild.host.processes import PROC, command_line, process_status

KILL, STOP, GO_ON, TERMINATE, INTERRUPT = host.KILL, host.STOP, host.GO_ON, host.TERMINATE, host.INTERRUPT
SHARED_MEMORY = Path("/dev/shm")
CLOCK_STEP_S = 1.0  # the kernel counts a process's age in ticks, and the clock may be set meanwhile
MOST_LOOKS = 100  # a process that forks all the time must not hold us up
LONGEST_LOOK_S = 0.1  # per wait: time in which this process itself did not run is not counted


def open_child(pid: int, parent: int) -> int | None:
    """Return a pidfd of `pid`, or None if it is no living child of `parent`. The parent is checked second: as long as
    `pid` is its child, dead and unreaped or not, the number cannot belong to another process."""
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
    """Return every living process started with `entry` (NAME=VALUE) in its environment, as number -> command line. All
    descendants inherit it, even after their parent changed. Dead processes have no environment any more."""
    name, _, value = entry.partition("=")
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it ended while we looked, or is somebody else's
            if process.environ().get(name) == value:
                found[process.pid] = command_line(process.pid)
    return found


def values_of(name: str) -> frozenset[str]:
    """Return the values that this variable has in the environments of all living processes that we may look at."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found.add(process.environ().get(name, ""))
    return frozenset(found - {""})


def is_marked(pid: int, entry: str) -> bool:
    """Return whether this living process was started with `entry` in its environment."""
    name, _, value = entry.partition("=")
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).environ().get(name) == value
    return False


def kill_if_marked(pid: int, entry: str) -> None:
    """Kill a process that was found by `marked`, unless its number belongs to another one by now."""
    with contextlib.suppress(OSError):
        pidfd = host.pidfd_open(pid)
        try:
            if is_marked(pid, entry):
                host.kill_by_pidfd(pidfd, KILL)
        finally:
            os.close(pidfd)


def _of(pid: int, what: Callable[[int], int]) -> int | None:
    """Return the session (`os.getsid`) or group (`os.getpgid`) of a process; None if it is gone."""
    try:
        return what(pid)
    except ProcessLookupError:
        return None


def leads_session(pid: int) -> bool:
    """Return whether the process is the first one of its session; False if it is gone."""
    return _of(pid, os.getsid) == pid


def kill_session(leader: int) -> None:
    """Kill the other processes of a session. `leader`: our own child, dead and not reaped: until it is, no stranger
    can get its number, nor a session with it. One with a pending SIGKILL cannot fork, so a look without anybody new is
    the last one."""
    killed = {leader}
    for _ in range(MOST_LOOKS):
        new = [pid for pid in psutil.pids() if pid not in killed and _of(pid, os.getsid) == leader]
        for pid in new:
            with contextlib.suppress(OSError):
                pidfd = host.pidfd_open(pid)
                try:
                    if _of(pid, os.getsid) == leader:
                        host.kill_by_pidfd(pidfd, KILL)
                finally:
                    os.close(pidfd)
        killed.update(new)
        if not new:
            return


def of_workers(pids_at: dict[int, float], *, with_groups: bool = True) -> dict[int, str]:
    """Return the living ones of these processes (number -> wall time at which each was reported) and of the groups they
    led, as number -> command line. A process that began later is another one with the same number, and so is its
    group."""
    dead = (None, psutil.STATUS_ZOMBIE)
    living = {process.pid: process for process in psutil.process_iter() if process_status(process.pid) not in dead}
    strangers = {pid for pid, at in pids_at.items() if pid in living and living[pid].create_time() > at + CLOCK_STEP_S}
    ours = pids_at.keys() - strangers
    leaders = ours if with_groups else set()
    return {pid: command_line(pid) for pid in living if pid in ours or _of(pid, os.getpgid) in leaders}


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
    held = _files_in_use() if new else set()
    return [name for name in new if str(SHARED_MEMORY / name) not in held]


def _files_in_use() -> set[str]:
    """Return the files in /dev/shm that some process has open or mapped."""
    held: set[str] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(OSError):  # psutil's `open_files` leaves out what has no name in a folder any more
            held.update(os.readlink(link) for link in (PROC / str(process.pid) / "fd").iterdir())
        with contextlib.suppress(psutil.Error):
            held.update(place.path for place in process.memory_maps())
    return held
