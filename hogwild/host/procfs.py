"""The parts of /proc that psutil does not offer: opening another process's descriptor, and an age on the boot clock,
which nobody can set. Everything else about processes comes from psutil (`processes.py`)."""

import os
import time
from pathlib import Path

PROC = Path("/proc")
_STARTED = 19  # field of proc_pid_stat(5), counted from the state: the name before it may hold blanks and brackets


def open_descriptor_of(pid: int, descriptor: int) -> int:
    """Open what another process has open under that number, for reading and writing. Raises OSError where the process
    is gone, or not ours to look at."""
    return os.open(PROC / str(pid) / "fd" / str(descriptor), os.O_RDWR | os.O_CLOEXEC)


def age_s(pid: int) -> float | None:
    """Seconds since the process began, to 10 ms: the kernel counts in ticks. None: gone. (psutil's `create_time` is
    wall clock time.)"""
    try:
        fields = (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_STARTED]) / os.sysconf("SC_CLK_TCK")
