"""What /proc says of any process, ours or not, read in one place. Offered by `host.py` where others need it.

The one thing to know: everything here is a look at a process that may have gone on, or ended, since."""

import os
import time
from pathlib import Path

PROC = Path("/proc")
STATE, PARENT, GROUP, USER, SYSTEM, THREADS, STARTED = 0, 1, 2, 11, 12, 17, 19  # fields of `stat_fields`


def pids() -> list[int]:
    """Every process there is."""
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]


def stat_fields(pid: int) -> list[str] | None:
    """proc_pid_stat(5) from the state on: the name before it may hold blanks and brackets. None when it is gone, or
    not for us to look at."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def process_state(pid: int) -> str | None:
    """The letter of proc_pid_stat(5): R running, S sleeping, D in the kernel, T stopped, Z dead but not
    reaped. None: gone."""
    fields = stat_fields(pid)
    return fields[STATE] if fields else None


def is_stopped(pid: int) -> bool:
    """By a signal, or by a debugger: it answers nobody."""
    return process_state(pid) in ("T", "t")


def open_descriptor_of(pid: int, descriptor: int) -> int:
    """What another process has open under that number, for reading and writing. Raises OSError where it is gone, or not
    for us to open."""
    return os.open(PROC / str(pid) / "fd" / str(descriptor), os.O_RDWR | os.O_CLOEXEC)


def command_line(pid: int) -> str:
    """As `ps` shows it; "" when it is gone."""
    try:
        return (PROC / str(pid) / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""


def cpu_s(pid: int) -> float | None:
    """Processor time of all its threads, in user code and in the kernel, to 10 ms. None: gone."""
    fields = stat_fields(pid)
    return (int(fields[USER]) + int(fields[SYSTEM])) / os.sysconf("SC_CLK_TCK") if fields else None


def age_s(fields: list[str]) -> float:
    """How long ago the process of these `stat_fields` began, to 10 ms: the kernel counts it in ticks."""
    since_boot = int(fields[STARTED]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot
