"""Limits on processes, threads and address space, which make a start fail in a library or in the kernel, with words
that name no limit. Exported by `hogwild.host`; import it from there.

    ulimit -u  (RLIMIT_NPROC)   processes and threads of a user; not for root, nor with its capabilities
    pids.max                    the same of a control group: a container's --pids-limit
    ulimit -v  (RLIMIT_AS)      address space of each process"""

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hogwild.errors import MemoryShortError, RunError
from hogwild.formatting import size
from hogwild.host.cgroups import control_groups
from hogwild.host.processes import PROC
from hogwild.host.topology import ROOT, read_if_known

LEAST_ADDRESSES = 640 << 20  # bytes; torch 2.13 and threads with 8 MiB of stack each: 660 MiB are too few, 700 enough
NEAR = 32  # processes and threads that are left: less than what several libraries start at once
SYS_ADMIN, SYS_RESOURCE = 21, 24  # <linux/capability.h>
INITIAL = ["0", "0", "4294967295"]  # proc_pid_uid_map(5) outside of user namespaces
REFUSED = (errno.EAGAIN, errno.ENOMEM)
OF_A_LOADER = ("cannot allocate", "failed to map")  # of the dynamic linker, in an ImportError


@dataclass(frozen=True, slots=True)
class Limit:
    """`most` at once, `used` now: processes and threads, or bytes of address space."""

    most: int
    used: int
    name: str
    is_memory: bool = False

    def __str__(self) -> str:
        if self.is_memory:
            return f"{size(self.most)} of address space for a process ({self.name}), {size(self.used)} in use here"
        return f"{self.most:,} processes and threads ({self.name}), {self.used:,} in use"


def task_limits(root: Path = ROOT) -> list[Limit]:
    """Return the limits on processes and threads that hold for this process."""
    found = []
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if most != resource.RLIM_INFINITY and _is_counted():
        found.append(Limit(most, _tasks_of(os.getuid()), "ulimit -u"))
    for group in control_groups("pids", root):
        if (most_here := group.number("pids.max")) is not None:
            found.append(Limit(most_here, group.number("pids.current") or 0, f"pids.max in {group.folder}"))
    return found


def address_limit() -> Limit | None:
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most == resource.RLIM_INFINITY:
        return None
    pages = int((read_if_known(PROC / "self/statm") or "0").split()[0])
    return Limit(most, pages * resource.getpagesize(), "ulimit -v", is_memory=True)


def require_tasks(needed: int) -> None:
    """Raise RunError if so many more processes and threads do not fit. The user's own limit is raised first, as far as
    the hard one allows."""
    for limit in task_limits():
        if limit.name == "ulimit -u" and limit.most < limit.used + needed:
            _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
            if hard == resource.RLIM_INFINITY or hard >= limit.used + needed:
                resource.setrlimit(resource.RLIMIT_NPROC, (limit.used + needed, hard))
                continue
        if limit.most < limit.used + needed:
            raise RunError(
                f"{needed:,} more processes and threads are needed, which a limit forbids: {limit}; raise it, or use "
                "fewer train.procs and train.threads",
                code="run/process-limit",
            )


@contextlib.contextmanager
def naming_limits() -> Iterator[None]:
    """Refuse too little address space for torch, which would end in a crash, and name the limits where the machine
    refuses a process, a thread or memory to our own code. Raises MemoryShortError or RunError."""
    limit = address_limit()
    if limit is not None and limit.most < LEAST_ADDRESSES:
        raise MemoryShortError(
            f"torch needs {size(LEAST_ADDRESSES)} of address space, the limit is {size(limit.most)} (ulimit -v); raise "
            "it, or unset it: ulimit -v unlimited",
            code="run/memory-short",
        )
    try:
        yield
    except (MemoryError, OSError, RuntimeError, ImportError) as error:
        if not _is_refusal(error) or not (words := limits_in_words()):
            raise
        message = f"the machine refuses a process, a thread or memory ({_first_line(error)}); {words}"
        if "ulimit -v" in words:
            raise MemoryShortError(
                f"{message}; raise it, or unset it: ulimit -v unlimited", code="run/memory-short"
            ) from error
        raise RunError(
            f"{message}; raise it, or use fewer train.procs and train.threads", code="run/process-limit"
        ) from error


def refusal_in_words(error: OSError) -> str:
    """Return why a process could not be started, with the limits that may be the reason."""
    words = limits_in_words() if error.errno in REFUSED else ""
    return f"{error}; {words}" if words else str(error)


def limits_in_words() -> str:
    """Return `the limit is 8 processes and threads (ulimit -u), 7 in use`; "" without one that is near."""
    found = [limit for limit in task_limits() if limit.most - limit.used < NEAR]
    words = "; ".join(map(str, [*filter(None, [address_limit()]), *found]))
    return f"the limit is {words}" if words else ""


def _is_refusal(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in REFUSED and error.filename is None
    if isinstance(error, ImportError):
        return any(words in str(error).lower() for words in OF_A_LOADER)
    return isinstance(error, MemoryError) or "can't start new thread" in str(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


def _is_counted() -> bool:
    """Return whether RLIMIT_NPROC holds for this process (fork(2), EAGAIN)."""
    if (read_if_known(PROC / "self/uid_map") or "").split() != INITIAL:
        return True  # root of a user namespace is another user outside
    able = int(_field(PROC / "self/status", "CapEff") or "0", 16)
    return os.getuid() != 0 and not (able >> SYS_ADMIN & 1 or able >> SYS_RESOURCE & 1)


def _tasks_of(user: int) -> int:
    """Return how many threads, a process's first one included, this user has."""
    found = 0
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (_field(entry / "status", "Uid") or "").split()[:1] == [str(user)]:
            found += int(_field(entry / "status", "Threads") or "0")
    return found


def _field(file: Path, name: str) -> str | None:
    """Return a field of proc_pid_status(5); None if the process is gone."""
    lines = (read_if_known(file) or "").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), None)
