"""The surroundings of a process: what a child inherits, for processes that are forked by another one than their parent
(`workers/processes/fork_server.py`), and what the execution of a program sets, for a fork that is to be what an
executed program is: the command line and environment that others see in /proc, the numbers of its descriptors, its
standard streams. Exported by `hogwild.host`; import it from there."""

import contextlib
import ctypes
import faulthandler
import fcntl
import os
import resource
import signal
import struct
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hogwild.host.processes import wait_readable
from hogwild.host.signals import CHILD_SIGNALS

SELF = Path("/proc/self")
PR_SET_NAME, PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 15, 36, 37  # <linux/prctl.h>
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
# Beginnings of the names of variables that a runtime, a library or the interpreter reads when it is loaded.
READ_WHEN_LOADED = (
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "NUMBA_", "NPY_", "ATEN_", "TORCH", "PYTORCH_", "CUDA", "LD_",
    "GLIBC_", "MALLOC_", "PYTHON", "LC_", "LANG", "TZ",
)  # fmt: skip
HASH_SEED = "PYTHONHASHSEED"  # programs set it to seed processes to come; the forks of a server have its own
SET_BY_LIBRARIES = {"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"}
PARENT_S = 5.0  # until the process between has ended


# Lines of /proc/self/status, and files beside it, that a process shares with the one that has started it.
FIXED_LINES = ("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "Seccomp_filters")  # and capabilities
FIXED_FILES = ("cgroup", "oom_score_adj", "personality", "timerslack_ns")


@dataclass(frozen=True, slots=True)
class FixedSurroundings:
    """The part of a process's surroundings that it cannot change any more, or not everybody can."""

    variables: Mapping[str, str]
    proc: tuple[str, ...]  # user, groups, capabilities, …
    places: tuple[str, ...]  # root and namespaces
    scheduling: tuple[int, ...]  # session, policy, niceness

    @classmethod
    def here(cls, but: Collection[str], environment: Mapping[str, str] = os.environ) -> "FixedSurroundings":
        """`but`: variables that the process sets anyway. `environment`: that of its children, if it is another one."""
        left_out = {*SET_BY_LIBRARIES, HASH_SEED, *but}
        kept = {
            name: value
            for name, value in environment.items()
            if name.startswith(READ_WHEN_LOADED) and name not in left_out
        }
        lines = [line for line in _status().items() if line[0] in FIXED_LINES or line[0].startswith("Cap")]
        files = [file.read_text() for name in FIXED_FILES if (file := SELF / name).exists()]
        places = [SELF / "root", *(one for one in (SELF / "ns").iterdir() if not one.name.endswith("_for_children"))]
        return cls(
            kept,
            (*map(str, lines), *files),
            tuple(sorted(map(os.readlink, places))),
            (os.getsid(0), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)),
        )

    def changed(self, now: "FixedSurroundings") -> str:
        """Return what is different now, in words; "" if nothing is."""
        names = {*self.variables, *now.variables}
        found = [name for name in sorted(names) if self.variables.get(name) != now.variables.get(name)]
        if self.proc != now.proc:
            found.append("user, groups, capabilities or control group")
        if self.places != now.places:
            found.append("root folder or namespaces")
        if self.scheduling != now.scheduling:
            found.append("session, scheduling policy or niceness")
        return ", ".join(found)


def _status() -> dict[str, str]:
    return dict(line.split(":", 1) for line in (SELF / "status").read_text().splitlines())


def own_surroundings() -> dict[str, Any]:
    """Return what a child takes over with `take_over`, as JSON has it: all but descriptors and the current folder."""
    if (told := _status().get("Umask")) is None:  # gVisor
        mask = os.umask(0)
        os.umask(mask)
    else:
        mask = int(told, 8)
    return {
        "environment": dict(os.environ),
        "cores": sorted(os.sched_getaffinity(0)),
        "limits": [(name, *resource.getrlimit(name)) for name in LIMITS],
        "umask": mask,
        "ignored": [int(one) for one in signal.valid_signals() if signal.getsignal(one) is signal.SIG_IGN],
        "blocked": [int(one) for one in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    }


def take_over(found: Mapping[str, Any]) -> None:
    """Give this process the `own_surroundings` of another. Signals are handled as by an interpreter that was started by
    a process which ignores and blocks these."""
    os.environ.clear()
    os.environ.update(found["environment"])
    os.umask(found["umask"])
    for name, *limit in found["limits"]:
        resource.setrlimit(name, limit)
    os.sched_setaffinity(0, found["cores"])
    dumps_stacks = faulthandler.is_enabled()
    faulthandler.disable()  # it would not notice that its handlers go
    block_signals()  # none may meet a handler that is not the last
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        is_ignored = number in found["ignored"] or number in (signal.SIGPIPE, signal.SIGXFSZ)
        signal.signal(number, signal.SIG_IGN if is_ignored else usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, found["blocked"])
    if dumps_stacks:
        faulthandler.enable(2)


def block_signals() -> None:
    """Let every signal wait, also one that is ignored now."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def is_stop_pending() -> bool:
    """Return whether a signal has come that `blocked_signals` keeps from us."""
    return bool(signal.sigpending() & {*CHILD_SIGNALS})


def above_standard(descriptor: int) -> int:
    """Return another number of this descriptor, which no standard stream has: a command without them has low ones."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def let_go(but: int) -> int:
    """Hold nothing of the process that this one was forked from: signals, streams, descriptors `but` one; return its
    number now."""
    but = above_standard(but)
    os.setpgid(0, 0)  # Ctrl-C is for the supervisor
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(stop, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would leave no child to wait for
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    close_all_but({but})
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115
    for standard, name in ((1, "stdout"), (2, "stderr")):
        encoding = getattr(getattr(sys, name), "encoding", "utf-8")
        stream = open(  # noqa: SIM115 - as an interpreter does at its start
            standard, "w", buffering=1, encoding=encoding, errors="backslashreplace", closefd=False
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return but


def close_all_but(kept: Collection[int]) -> None:
    """Close all descriptors but the standard ones and these, which no program that is executed inherits."""
    for number in [int(name) for name in os.listdir(SELF / "fd")]:
        if number > 2 and number not in kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(number)
    for number in kept:
        os.set_inheritable(number, False)


def has_gpu() -> bool:
    """Return whether this machine shows one: NVIDIA's, in WSL2, in a Jetson, AMD's."""
    return any(Path("/dev", name).exists() for name in ("nvidiactl", "dxg", "nvhost-ctrl-gpu", "kfd"))


def thread_count() -> int:
    """Return the threads of this process, also those that Python does not know."""
    return len(os.listdir(SELF / "task"))


def name_process(name: str) -> None:
    """Set the name that `ps -o comm` shows, 15 characters at most, and the command line that `ps` shows, which a fork
    shares with the process that it was forked from: `pkill -f` would find both."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)
    start, end = map(int, (SELF / "stat").read_text().rpartition(")")[2].split()[45:47])
    if len(name) < end - start:  # 0 where the kernel hides it
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, name.encode(), len(name))


@contextlib.contextmanager
def adopting() -> Iterator[bool]:
    """Be the parent of orphans among this process's descendants, for a while (prctl(2), PR_SET_CHILD_SUBREAPER).
    False: the kernel does not allow it."""
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int(0)
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    is_allowed = prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    try:
        yield is_allowed
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def await_parent(pid: int, lifeline: int) -> None:
    """Wait until process `pid` has adopted this one: its parent now ends. Ends this process if it does not, or if the
    `lifeline` shows that `pid` has ended: then another process is its parent, for good."""
    while (now := os.getppid()) != pid:
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            pidfd = os.pidfd_open(now)
            has_ended = wait_readable([pidfd, lifeline], PARENT_S * 1000)
            os.close(pidfd)
            if not has_ended or wait_readable([lifeline], 0):
                os._exit(1)


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
    # The process has one thread: another one could move the end of the heap meanwhile. Needs no privilege.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    # The name before the state may hold blanks and brackets.
    fields = dict(enumerate(map(int, STAT.read_text().rpartition(")")[2].split()[1:]), 4))
    places = *(fields[number] for number in CODE_AND_DATA), fields[START_BRK], libc.sbrk(0), fields[START_STACK]
    # The last three: no other auxiliary vector, no other executable.
    words = (middle, middle + len(variables), 0, 0, NO_DESCRIPTOR)
    packed = struct.pack(MAP, *places, begin, middle, *words)
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, packed, ctypes.c_ulong(len(packed)), ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_MM_MAP) failed")
    _shown = shown


def can_show_command() -> bool:
    """Return whether `show_command` works on this machine. Changes nothing."""
    size = ctypes.c_uint(0)
    return bool(ctypes.CDLL(None).prctl(PR_SET_MM, PR_SET_MM_MAP_SIZE, ctypes.byref(size), 0, 0) == 0)


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
        stream, is_open = None, False
        with contextlib.suppress(OSError):
            is_open = bool(os.fstat(number))
        if is_open:
            stream = open(number, "w" if number else "r", closefd=False, **forms[name])  # noqa: SIM115
            by_line = (number == 2 or stream.isatty()) and not is_unbuffered
            stream.reconfigure(line_buffering=by_line, write_through=is_unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
