"""Parts of a process that the execution of a program sets, for a fork that is to be what an executed program is: the
command line and environment that other processes see in /proc, the numbers of its descriptors, its standard streams.
Exported by `hogwild.host`; import it from there."""

import ctypes
import fcntl
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hogwild.host.surroundings import close_all_but

STAT = Path("/proc/self/stat")
PR_SET_MM, PR_SET_MM_MAP, PR_SET_MM_MAP_SIZE = 35, 14, 15  # <linux/prctl.h>
# Fields of STAT, numbered as in proc_pid_stat(5), in the order of `struct prctl_mm_map`.
CODE_AND_DATA, START_BRK, START_STACK = (26, 27, 45, 46), 47, 28
MAP = "=11QQII"
NO_DESCRIPTOR = (1 << 32) - 1
STREAMS = ("stdin", "stdout", "stderr")
_shown = ctypes.create_string_buffer(1)  # the kernel reads it here


def show_command(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Let this process, a fork, and its own forks have this command line and environment in /proc, as a process has
    that was executed with them. Raises OSError if the kernel was built without that (CONFIG_CHECKPOINT_RESTORE)."""
    global _shown
    line = b"".join(os.fsencode(one) + b"\0" for one in argv)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    shown = ctypes.create_string_buffer(line + variables, len(line) + len(variables) + 1)
    begin = ctypes.addressof(shown)
    middle = begin + len(line)
    _show(begin, middle, middle, middle + len(variables))
    _shown = shown


def can_show_command() -> bool:
    """Return whether `show_command` works on this machine. Changes nothing."""
    size = ctypes.c_uint(0)
    return bool(ctypes.CDLL(None).prctl(PR_SET_MM, PR_SET_MM_MAP_SIZE, ctypes.byref(size), 0, 0) == 0)


def _fields() -> dict[int, int]:
    """Return the fields of STAT behind the state; the name before it may hold blanks and brackets."""
    return dict(enumerate(map(int, STAT.read_text().rpartition(")")[2].split()[1:]), 4))


def _show(arg_start: int, arg_end: int, env_start: int, env_end: int) -> None:
    """Tell the kernel where both are in the memory of this process, which has one thread: another one could move the
    end of the heap meanwhile. Needs no privilege."""
    libc, fields = ctypes.CDLL(None, use_errno=True), _fields()
    libc.sbrk.restype = ctypes.c_void_p
    places = *(fields[number] for number in CODE_AND_DATA), fields[START_BRK], libc.sbrk(0), fields[START_STACK]
    # The last three: no other auxiliary vector, no other executable.
    packed = struct.pack(MAP, *places, arg_start, arg_end, env_start, env_end, 0, 0, NO_DESCRIPTOR)
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, packed, ctypes.c_ulong(len(packed)), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_MM_MAP) failed")


def place_descriptors(descriptors: Mapping[int, int]) -> None:
    """Give these descriptors (number -> the one it is now) their numbers, and close all others."""
    above = max(descriptors, default=2) + 1
    now = {number: fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, above) for number, one in descriptors.items()}
    for number in {0, 1, 2} - {*descriptors}:
        os.close(number)
    close_all_but(now.values())
    for number, one in now.items():
        os.dup2(one, number)
        os.close(one)


def stream_forms() -> dict[str, dict[str, Any]]:
    """Return encoding and error handling of each standard stream, as the interpreter has chosen them at its start."""
    streams = {name: getattr(sys, name) for name in STREAMS}
    return {name: {"encoding": one.encoding, "errors": one.errors} for name, one in streams.items() if one is not None}


def open_streams(forms: Mapping[str, Mapping[str, Any]], *, is_unbuffered: bool) -> None:
    """Open the standard streams for the descriptors that are there now, as the interpreter does at its start."""
    for number, name in enumerate(STREAMS):
        stream = None
        if _is_open(number):
            stream = open(number, "w" if number else "r", closefd=False, **forms[name])  # noqa: SIM115
            by_line = (number == 2 or stream.isatty()) and not is_unbuffered
            stream.reconfigure(line_buffering=by_line, write_through=is_unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
