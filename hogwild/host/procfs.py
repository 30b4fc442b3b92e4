"""Facts from /proc about any process, ours or not. `hogwild.host` exports what other packages need.

The one thing to know: each function reads a process that may have moved on, or ended, since."""

import os
import time
from pathlib import Path

PROC = Path("/proc")
STATE, PARENT, GROUP, USER, SYSTEM, THREADS, STARTED = 0, 1, 2, 11, 12, 17, 19  # fields of `stat_fields`


def pids() -> list[int]:
    """Return the numbers of all processes."""
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of proc_pid_stat(5) from the state on; the name before it may hold blanks and brackets. None if
    the process is gone or not readable."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def process_state(pid: int) -> str | None:
    """Return the letter of proc_pid_stat(5): R running, S sleeping, D in the kernel, T stopped, Z dead but not reaped.
    None if it is gone."""
    fields = stat_fields(pid)
    return fields[STATE] if fields else None


def is_stopped(pid: int) -> bool:
    """Return whether it is stopped, by a signal or a debugger, and so cannot respond."""
    return process_state(pid) in ("T", "t")


def open_descriptor_of(pid: int, descriptor: int) -> int:
    """Open the file behind another process's descriptor, for reading and writing. Raises OSError if it is gone or we
    may not open it."""
    return os.open(PROC / str(pid) / "fd" / str(descriptor), os.O_RDWR | os.O_CLOEXEC)


def command_line(pid: int) -> str:
    """Return the command line as `ps` shows it; "" if the process is gone."""
    try:
        return (PROC / str(pid) / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def cpu_s(pid: int) -> float | None:
    """Return the CPU time of all its threads, in user code and in the kernel, to 10 ms. None if it is gone."""
    fields = stat_fields(pid)
    return (int(fields[USER]) + int(fields[SYSTEM])) / os.sysconf("SC_CLK_TCK") if fields else None


def age_s(fields: list[str]) -> float:
    """Return the age of the process with these `stat_fields`, to 10 ms: the kernel counts it in ticks."""
    since_boot = int(fields[STARTED]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot
