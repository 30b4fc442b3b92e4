"""The surroundings of a process: what a child inherits, for processes that are forked by another one than their parent
(`workers/processes/fork_server.py`). Exported by `hogwild.host`; import it from there."""

import atexit
import contextlib
import ctypes
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SELF = Path("/proc/self")
PR_SET_NAME, PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 15, 36, 37  # <linux/prctl.h>
LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
# Beginnings of the names of variables that a runtime, a library or the interpreter reads when it is loaded.
READ_WHEN_LOADED = (
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "LD_", "PYTHON", "MALLOC_", "TORCH", "CUDA", "LC_", "LANG",
)  # fmt: skip
SET_BY_LIBRARIES = {"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"}
PARENT_S = 5.0  # until the process between has ended


@dataclass(frozen=True, slots=True)
class FixedSurroundings:
    """The part of a process's surroundings that it cannot change any more, or not everybody can."""

    variables: Mapping[str, str]
    user: tuple[object, ...]  # and groups, and niceness
    namespaces: tuple[str, ...]

    @classmethod
    def here(cls, but: Collection[str]) -> "FixedSurroundings":
        """`but`: variables that the process sets anyway."""
        left_out = {*SET_BY_LIBRARIES, *but}
        kept = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(READ_WHEN_LOADED) and name not in left_out
        }
        user = os.getresuid(), os.getresgid(), tuple(os.getgroups()), os.getpriority(os.PRIO_PROCESS, 0)
        names = sorted(name for name in (SELF / "ns").iterdir() if not name.name.endswith("_for_children"))
        return cls(kept, user, tuple(os.readlink(name) for name in names))


def own_surroundings() -> dict[str, Any]:
    """Return what a child takes over with `take_over`, as JSON has it: all but descriptors and the current folder."""
    mask = os.umask(0)
    os.umask(mask)
    return {
        "environment": dict(os.environ),
        "path": [folder for folder in sys.path if isinstance(folder, str)],
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
    sys.path[:] = found["path"]
    os.umask(found["umask"])
    for name, *limit in found["limits"]:
        resource.setrlimit(name, limit)
    os.sched_setaffinity(0, found["cores"])
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        is_ignored = number in found["ignored"] or number in (signal.SIGPIPE, signal.SIGXFSZ)
        signal.signal(number, signal.SIG_IGN if is_ignored else usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, found["blocked"])


def let_go(but: int) -> None:
    """Hold nothing of the process that this one was forked from: signals, exit functions, streams, descriptors `but`
    one."""
    os.setpgid(0, 0)  # Ctrl-C is for the supervisor
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(stop, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    atexit._clear()
    atexit.register(logging.shutdown)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    close_all_but({but})
    sys.stdin = sys.__stdin__ = open(os.devnull)  # type: ignore[misc]  # noqa: SIM115 - as multiprocessing does
    for standard, name in ((1, "stdout"), (2, "stderr")):
        stream = open(standard, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def close_all_but(kept: Collection[int]) -> None:
    """Close all descriptors but the standard ones and these, which no program that is executed inherits."""
    for number in [int(name) for name in os.listdir(SELF / "fd")]:
        if number > 2 and number not in kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(number)
    for number in kept:
        os.set_inheritable(number, False)


def has_nvidia_driver() -> bool:
    return Path("/dev/nvidiactl").exists()


def thread_count() -> int:
    """Return the threads of this process, also those that Python does not know."""
    return len(os.listdir(SELF / "task"))


def name_process(name: str) -> None:
    """Set the name that `ps -o comm` shows: 15 characters at most."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Be the parent of orphans among this process's descendants, for a while (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int(0)
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def await_parent(pid: int) -> None:
    """Wait until process `pid` has adopted this one. Ends this process if it does not."""
    until = time.monotonic() + PARENT_S
    while os.getppid() != pid:
        if time.monotonic() > until:
            os._exit(1)
        os.sched_yield()
