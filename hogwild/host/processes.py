"""One process, seen from another or from itself: its life, its memory, its limits.

The one thing to know: a process is named by a *pidfd*, never by its number. A number is given to the next
process as soon as the old one was reaped, and a late kill would hit a stranger; a pidfd then says that nobody
is there."""

import contextlib
import ctypes
import mmap
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from hogwild.errors import RunError, UsageError
from hogwild.host.procfs import PROC, age_s

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
DISCARDED_AT_ONCE = 8 << 20  # bytes: half a millisecond

CAUSES = {
    "SIGKILL": "perhaps out of memory",
    "SIGSEGV": "a crash in native code",
    "SIGBUS": "a mapped file was truncated, or memory ran out at first touch",
    "SIGABRT": "native code aborted, see the log",
    "SIGFPE": "an integer division by zero in native code",
    "SIGILL": "native code built for another processor",
    "SIGXCPU": "a limit on processor time",
}


def require_linux(system: str = sys.platform) -> None:
    """Raises UsageError everywhere else."""
    if system != "linux":
        raise UsageError(
            f"hogwild runs on Linux only (it needs pidfd and memfd); this is {system}. "
            f"Use a Linux machine or container.",
            code="usage/not-linux",
        )


# --- one process, seen from another -------------------------------------------------------------------------


def pidfd_open(pid: int) -> int:
    """A descriptor that becomes readable when the process dies. Open it before the process can have been
    reaped. Raises ProcessLookupError when it has."""
    return os.pidfd_open(pid)


def kill_by_pidfd(pidfd: int, number: int = signal.SIGKILL) -> bool:
    """Sends a signal; False when the process was dead and reaped already, which is no error."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


def request_stack(pidfd: int) -> bool:
    """Asks a worker to write the stacks of its threads to its stacks file; works while it hangs in native
    code. Only where `can_write_stacks`: without a handler the signal would end it."""
    return kill_by_pidfd(pidfd, signal.SIGUSR1)


def wait_readable(descriptors: Iterable[int], timeout_ms: float) -> None:
    """Until one of them is, at most so long. Any number, of any size: select() stops at 1,024."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll(timeout_ms)


def process_status(pid: int) -> str | None:
    """`psutil`'s word: running, sleeping, disk-sleep, stopped, tracing-stop, zombie (dead, not reaped). None: gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return str(psutil.Process(pid).status())
    return None


def is_stopped(pid: int) -> bool:
    """True if a signal or a debugger has stopped it: it answers nobody."""
    return process_status(pid) in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def children(pid: int, *, recursive: bool = False) -> list[int]:
    """Live and unreaped children; `recursive`: theirs, too. [] when the process is gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return sorted(child.pid for child in psutil.Process(pid).children(recursive))
    return []


def command_line(pid: int) -> str:
    """As `ps` shows it; "" when it is gone, or not ours to look at."""
    with contextlib.suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())
    return ""


def cpu_s(pid: int) -> float | None:
    """Processor time of all its threads, in user code and in the kernel, to 10 ms. None: gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return None


def pss_bytes(pid: int) -> int:
    """Memory of the process with each shared page divided by its users, so that the sum over workers counts the flats
    once. 0 when it is gone or not ours. Walks every page table: milliseconds per gigabyte, so not more often than each
    10 s."""
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_full_info().pss)
    return 0


def describe_exit(returncode: int) -> str:
    """`exit status 3`, or `killed by SIGKILL (perhaps out of memory)` for the negative codes of subprocess
    and waitpid."""
    if returncode >= 0:
        return f"exit status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        return f"killed by signal {-returncode}"
    return f"killed by {name} ({CAUSES[name]})" if name in CAUSES else f"killed by {name}"


# --- this process -------------------------------------------------------------------------------------------


def die_with_parent(expected_ppid: int) -> None:
    """From now on the kernel kills this process when the thread that started it ends: so start children from
    the main thread. Does not return when the parent is gone already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != expected_ppid:  # it died before prctl: nobody will send us the signal any more
        os._exit(1)


def discard_pages(address: int, nbytes: int) -> None:
    """Gives the whole pages of private memory back, whose content is lost; the addresses stay valid. In pieces and
    without the interpreter lock, so that no other thread waits. Locked memory stays as it is."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    page = mmap.PAGESIZE
    first, end = -(-address // page) * page, (address + nbytes) // page * page
    for start in range(first, end, DISCARDED_AT_ONCE):
        madvise(start, min(DISCARDED_AT_ONCE, end - start), mmap.MADV_DONTNEED)


def read_ahead(descriptor: int, *, all_of_it: bool) -> None:
    """A file that is mapped: begins to read all of it into the page cache, or what does not fit into memory in longer
    pieces ahead of whoever reads it, in every process that got this descriptor."""
    with contextlib.suppress(OSError):  # advice: a file system may not take it
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED if all_of_it else os.POSIX_FADV_SEQUENTIAL)


def lead_a_group() -> None:
    """In a child: a process group of its own, so that what user code starts in it can be ended with it, and a Ctrl-C at
    the terminal reaches the supervisor alone."""
    os.setpgid(0, 0)


def end_group_of_the_dead(pid: int) -> bool:
    """Whether our child `pid` is dead. If so, whatever it started and left running in its group is killed, before the
    child is reaped: until then its number can belong to nobody else."""
    try:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
    except ChildProcessError:  # somebody else has reaped it; its number means nothing any more
        return True
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it died before it led a group; a stranger's setuid
        os.killpg(pid, signal.SIGKILL)
    return True


def no_core_dumps() -> None:
    """A dump of the shared flats would fill the disk and delay the news of a death by seconds."""
    import resource

    # One byte, not zero: zero is ignored where dumps are piped to a program, one is the kernel's word for
    # 'not even there'.
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    limit = 1 if hard == resource.RLIM_INFINITY or hard >= 1 else 0
    resource.setrlimit(resource.RLIMIT_CORE, (limit, hard))


def raise_oom_score(by: int = 300) -> None:
    """Under memory pressure the kernel takes this process, a worker, before the supervisor. Raising needs no
    privilege."""
    file = PROC / "self/oom_score_adj"
    file.write_text(str(min(int(file.read_text()) + by, 1000)))


def affinity() -> set[int]:
    """The cores this process may run on."""
    return os.sched_getaffinity(0)


def set_affinity(cores: Iterable[int]) -> None:
    """Of the calling thread and what it starts from now on. Importing an OpenMP library with OMP_PROC_BIND set binds it
    to one core: read before, set again after."""
    os.sched_setaffinity(0, cores)


def open_file_limit() -> int:
    """How many descriptors this process may hold."""
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def descriptor_count() -> int:
    """Descriptors this process holds now."""
    return psutil.Process().num_fds() - 1  # one is that of the listing itself


def lock_file(path: Path) -> int:
    """Takes an exclusive lock; it lasts until the descriptor is closed or the process dies (0.7 ms after a
    SIGKILL). Raises BlockingIOError when another process has it."""
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def raise_file_limit(needed: int, wanted: int) -> None:
    """Raises the soft limit on open files so that `wanted` more fit, as far as the hard one allows. Raises RunError
    when not even `needed` more do: here, before anything is shared, instead of by a half-shared model."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = descriptor_count()
    if soft == resource.RLIM_INFINITY or soft >= held + wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < held + needed:
        raise RunError(
            f"{held + needed} open files are needed, the limit is {hard} (ulimit -n); raise it or use fewer procs",
            code="run/open-files",
        )
    most = held + wanted if hard == resource.RLIM_INFINITY else min(hard, held + wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def process_start_s() -> float:
    """When this process began, on the monotonic clock (to 10 ms): where the time to the first update is counted
    from."""
    age = age_s(os.getpid())
    assert age is not None
    return time.monotonic() - age
