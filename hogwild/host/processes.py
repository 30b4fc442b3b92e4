"""One process, seen from another or from itself: its life, its memory, its limits.

The one thing to know: a process is identified by a *pidfd*, never by its number. The number can be reused as soon as
the process is reaped, and a late kill would hit another process; with a pidfd the late kill fails instead.

A process that does not respond is looked at through the kernel (`kernel_threads`): the state of each thread and the
kernel function it sleeps in, even if the process is stopped or holds the GIL in native code. It may have moved on, or
ended, since: whatever cannot be read is left out, and nothing raises."""

import contextlib
import ctypes
import mmap
import os
import platform
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hogwild.errors import RunError
from hogwild.host.topology import read_if_known
from hogwild.version import PACKAGE_ROOT

PROC = Path("/proc")
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
KILL, STOP, GO_ON = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT
TERMINATE, INTERRUPT, ABORT = signal.SIGTERM, signal.SIGINT, signal.SIGABRT
KILLED = -KILL  # the status of a process that it has ended
DISCARDED_AT_ONCE = 8 << 20  # bytes: half a millisecond
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
LARGEST_IN_HEAP = 32 << 20  # bytes; glibc takes no more on 64-bit machines
KEPT_BYTES = 1 << 30
SCHED_ATTR = "=IIQiIQQQ"  # <linux/sched/types.h>: size, policy, flags, nice, priority, runtime, deadline, period; in ns
SCHED_CALLS = {"x86_64": (315, 314), "aarch64": (275, 274)}  # numbers of sched_getattr and sched_setattr
SCHED_OTHER, SCHED_BATCH = 0, 3
FLOCK = "hhqqi4x"  # <fcntl.h>, struct flock: type, whence, start, length, pid

CAUSES = {
    "SIGKILL": "perhaps out of memory",
    "SIGSEGV": "a crash in native code",
    "SIGBUS": "a mapped file was truncated, or memory ran out at first touch",
    "SIGABRT": "native code aborted, see the log",
    "SIGFPE": "an integer division by zero in native code",
    "SIGILL": "native code built for another processor",
    "SIGXCPU": "a limit on processor time",
}


# --- one process, seen from another -------------------------------------------------------------------------


def pidfd_open(pid: int) -> int:
    """Return a descriptor that becomes readable when the process dies. Open it before the process can be reaped. Raises
    ProcessLookupError if it was."""
    return os.pidfd_open(pid)


def kill_by_pidfd(pidfd: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal; return False if the process was dead and reaped already, which is no error. At TERMINATE our
    children finish what they do, at ABORT they write the stacks of their threads."""
    try:
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    return True


def request_stack(pidfd: int) -> bool:
    """Ask a worker to write the stacks of its threads to its stacks file; works even while it hangs in native code.
    Check `can_write_stacks` first: without a handler the signal would kill it."""
    return kill_by_pidfd(pidfd, signal.SIGUSR1)


def wait_readable(descriptors: Iterable[int], timeout_ms: float | None) -> bool:
    """Wait until one descriptor is readable, at most `timeout_ms` (None: for ever); return whether one is. Unlike
    select(), no limit of 1,024 descriptors."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(timeout_ms))


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
        return " ".join(psutil.Process(pid).cmdline()).rstrip()  # one that was renamed ends with blanks
    return ""


def process_name(pid: int) -> str:
    """As `ps -o comm` shows it, 15 characters at most: forks of one process name themselves. "": gone."""
    return read_if_known(PROC / str(pid) / "comm") or ""


def cpu_s(pid: int) -> float | None:
    """Processor time of all its threads, in user code and in the kernel, to 10 ms. None: gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        times = psutil.Process(pid).cpu_times()
        return float(times.user + times.system)
    return None


def core_wait_s() -> float:
    """Return the seconds for which this thread was ready to run without a core. 0: the kernel does not tell."""
    words = (read_if_known(PROC / "thread-self" / "schedstat") or "").split()
    return int(words[1]) / 1e9 if len(words) > 1 else 0.0


def pss_bytes(pid: int) -> int:
    """Memory of the process with each shared page divided by its users, so that the sum over workers counts the flats
    once. 0 when it is gone or not ours. Walks every page table: milliseconds per gigabyte, so not more often than each
    10 s."""
    with contextlib.suppress(psutil.Error):
        return int(psutil.Process(pid).memory_full_info().pss)
    return 0


def memory_of(pid: int) -> tuple[int, int]:
    """Return the bytes in memory of a process: its own, and those it shares, also with files. (0, 0) as above."""
    with contextlib.suppress(psutil.Error):
        found = psutil.Process(pid).memory_full_info()
        return int(found.uss), int(found.rss - found.uss)
    return 0, 0


def describe_exit(returncode: int) -> str:
    """Return `exit status 3`, or `killed by SIGKILL (perhaps out of memory)` for the negative codes of subprocess and
    waitpid."""
    if returncode >= 0:
        return f"exit status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        return f"killed by signal {-returncode}"
    return f"killed by {name} ({CAUSES[name]})" if name in CAUSES else f"killed by {name}"


# --- this process -------------------------------------------------------------------------------------------


def path_of(descriptor: int) -> str:
    """Return a path that opens the file of a descriptor of this process again, also one without a name."""
    return f"/proc/self/fd/{descriptor}"


def die_with_parent(expected_ppid: int, number: int = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when the thread that started it ends; therefore start children from
    the main thread. Does not return if the parent is gone already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != expected_ppid:  # the parent died before prctl: no signal will come
        os._exit(1)


def discard_pages(address: int, nbytes: int) -> None:
    """Give the whole pages of a private memory range back to the kernel. Their content is lost; the addresses stay
    valid. Works in pieces and without the GIL, so that no other thread waits. Locked memory stays as it is."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    page = mmap.PAGESIZE
    first, end = -(-address // page) * page, (address + nbytes) // page * page
    for start in range(first, end, DISCARDED_AT_ONCE):
        madvise(start, min(DISCARDED_AT_ONCE, end - start), mmap.MADV_DONTNEED)


def keep_freed_memory() -> None:
    """Have glibc keep what this process frees, up to `KEPT_BYTES` at the top of its heap, for the next allocation. By
    default it returns it to the kernel above a threshold that follows the sizes freed so far: whether a batch's
    activations cost a page fault every 4 KiB, of which a training loop had up to 50,000 a second, is then chance.
    See mallopt(3); another C library, or an allocator loaded before it, is left as it is."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_IN_HEAP)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def compute_longer_at_a_time(slice_ns: int) -> None:
    """Ask the kernel to leave a core to this thread, and those that it starts, for so long at a time. With more workers
    than cores each change of the worker empties a cache, every 3 ms by default. Its share of the time stays the same,
    and a thread that sleeps most of the time interrupts it as before. Since Linux 6.12 (sched_setattr(2)); elsewhere,
    and under another policy than the usual one, nothing changes."""
    calls, libc = SCHED_CALLS.get(platform.machine()), ctypes.CDLL(None)
    found = ctypes.create_string_buffer(struct.calcsize(SCHED_ATTR))
    if calls is None or libc.syscall(calls[0], 0, found, len(found), 0) != 0:
        return
    size, policy, flags, nice, priority, _, *periods = struct.unpack(SCHED_ATTR, found.raw)
    if policy in (SCHED_OTHER, SCHED_BATCH):
        longer = struct.pack(SCHED_ATTR, size, policy, flags, nice, priority, slice_ns, *periods)
        libc.syscall(calls[1], 0, longer, 0)


def read_ahead(descriptor: int, *, all_of_it: bool) -> None:
    """Start to read a mapped file into the page cache: all of it, or, if it does not fit into memory, longer pieces
    ahead of each reader. Holds for every process that got this descriptor."""
    with contextlib.suppress(OSError):  # only advice: a file system may reject it
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED if all_of_it else os.POSIX_FADV_SEQUENTIAL)


def lead_a_group() -> None:
    """Give this child its own process group, so that processes started by user code can be killed with it, and a Ctrl-C
    in the terminal reaches only the supervisor."""
    os.setpgid(0, 0)


def end_group_of_the_dead(pid: int) -> bool:
    """Return whether our child `pid` is dead. If it is, first kill what it left running in its group, before the child
    is reaped: until then its number cannot belong to another process."""
    try:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
    except ChildProcessError:  # already reaped elsewhere; its number may be reused
        return True
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it died before it led a group; a setuid program
        os.killpg(pid, signal.SIGKILL)
    return True


def no_core_dumps() -> None:
    """Disable core dumps: a dump of the shared flats would fill the disk and delay the detection of a death."""
    import resource

    # One byte, not zero: zero is ignored if dumps are piped to a program; one disables those too.
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    limit = 1 if hard == resource.RLIM_INFINITY or hard >= 1 else 0
    resource.setrlimit(resource.RLIMIT_CORE, (limit, hard))


def raise_oom_score(by: int = 300) -> None:
    """Let the OOM killer choose this process, a worker, before the supervisor. Raising the score needs no privilege."""
    file = PROC / "self/oom_score_adj"
    file.write_text(str(min(int(file.read_text()) + by, 1000)))


def affinity(pid: int = 0) -> set[int]:
    """Return the logical CPUs on which this process, or another one, may run. Raises ProcessLookupError."""
    return os.sched_getaffinity(pid)


def set_affinity(cores: Iterable[int]) -> None:
    """Set the cores of the calling thread and of the threads and processes it starts later. Importing an OpenMP library
    with OMP_PROC_BIND set binds the thread to one core: read the mask before, set it again after."""
    os.sched_setaffinity(0, cores)


def move_family(cores: Iterable[int]) -> None:
    """Let this process, its descendants, and all their threads run on these logical CPUs from now on. Raises OSError if
    not all of them may be used; then nothing changes."""
    wanted, before = set(cores), os.sched_getaffinity(0)
    os.sched_setaffinity(0, wanted)
    if os.sched_getaffinity(0) != wanted:  # the kernel leaves out what the control group forbids
        os.sched_setaffinity(0, before)
        raise OSError(f"not all of {sorted(wanted)} may be used")
    is_moving = True
    while is_moving:  # a thread that has not moved yet may start another one
        is_moving = False
        for pid in (os.getpid(), *children(os.getpid(), recursive=True)):
            for thread in _threads_of(pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):  # it ended; a setuid program
                    if os.sched_getaffinity(thread) != wanted:
                        os.sched_setaffinity(thread, wanted)
                        is_moving = True


def why_not_moved(cores: Any) -> str:
    """Move this process and its descendants as `move_family` does; return why that cannot be, or ""."""
    if not isinstance(cores, list) or not cores or not all(type(core) is int and core >= 0 for core in cores):
        return f"cores must be a list of logical CPUs, such as [0, 1], got {cores!r}"
    try:
        move_family(cores)
    except (OSError, OverflowError):
        return f"cores {cores!r} are not all of this machine, or not open to this job"
    return ""


def cores_of_family(pid: int) -> set[int]:
    """Return the logical CPUs on which a process, its descendants, and any of their threads may run."""
    found: set[int] = set()
    for member in (pid, *children(pid, recursive=True)):
        for thread in _threads_of(member):
            with contextlib.suppress(ProcessLookupError):
                found |= os.sched_getaffinity(thread)
    return found


def _threads_of(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(PROC / str(pid) / "task")]
    return []


def open_file_limit() -> int:
    """Return how many descriptors this process may have open."""
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def descriptor_count() -> int:
    """Descriptors this process holds now."""
    return psutil.Process().num_fds() - 1  # one is that of the listing itself


def lock_file(path: Path) -> int:
    """Take an exclusive lock on a file; it lasts until the descriptor is closed or the process dies (0.7 ms after a
    SIGKILL). Raises BlockingIOError if another process has it.

    flock decides, because every file system has it. The second lock, of the open file description, is for `is_locked`:
    the kernel answers who has it, while one can only ask for a flock by taking it."""
    import fcntl

    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)  # its last holder had removed it: a lock on a file without a name keeps nobody out
    with contextlib.suppress(OSError):  # a system without these locks; NFS, where the flock is one itself
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock_of(fcntl.F_WRLCK))
    return descriptor


def is_locked(path: Path) -> bool | None:
    """Return whether a process has the lock of `lock_file`; None if the system cannot tell. It takes no lock, not for
    an instant, so it never refuses a job that starts."""
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _lock_of(fcntl.F_WRLCK))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return bool(struct.unpack(FLOCK, answer)[0] != fcntl.F_UNLCK)


def _lock_of(kind: int) -> bytes:
    """Return a lock on a whole file, for fcntl."""
    return struct.pack(FLOCK, kind, os.SEEK_SET, 0, 0, 0)


def raise_file_limit(needed: int, wanted: int) -> None:
    """Raise the soft limit on open files so that `wanted` more fit, as far as the hard limit allows. Raises RunError if
    not even `needed` more fit: better now than with a half-shared model."""
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
    """Return when this process began, on the monotonic clock (to 10 ms). The time to the first update counts from
    here. By the boot clock: psutil's `create_time` is wall clock time, which may be set."""
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    return time.monotonic() - age_s(ticks)


def start_ticks(pid: int) -> int | None:
    """Return when a process began, in clock ticks since the machine's boot; None: gone. With `boot_id` it identifies a
    process for ever: a later one with the same number began later."""
    stat = read_if_known(PROC / str(pid) / "stat")
    # proc_pid_stat(5), counted from the state: the name before it may hold blanks and brackets.
    return int(stat.rpartition(")")[2].split()[19]) if stat else None


def age_s(ticks: int) -> float:
    """Return the age of a process of this boot, from its `start_ticks`; the time of a suspended machine counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def boot_id() -> str:
    """Return the identity of this boot of this machine; "" if the system hides it."""
    return read_if_known(PROC / "sys/kernel/random/boot_id") or ""


def own_address(other: str) -> str:
    """Return the address of ours from which the host `other` is reached. Sends nothing. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def answers(address: str, timeout_s: float, *, itself: bool = False) -> bool | None:
    """Return whether something listens at `host:port`: a process that lives, also when it is stopped, as its kernel
    takes the connection. None: no answer, for instance from a host without power. `itself`: the process must take the
    connection and close it; one that is being killed, whose kernel listens for a while, does not."""
    place, _, port = address.rpartition(":")
    try:
        with socket.create_connection((place, int(port)), timeout_s) as connection:
            if itself:
                connection.recv(1)  # raises if it is reset
    except ConnectionError:
        return False
    except OSError:
        return None
    return True


_STATES = {
    "D": "in an uninterruptible system call",
    "T": "stopped (SIGSTOP)",
    "t": "stopped by a debugger",
    "Z": "dead, not reaped yet",
}


@dataclass(frozen=True, slots=True)
class KernelThread:
    """One thread. `state`: the letter of proc_pid_stat(5). `wait`: the kernel function it sleeps in, such as pipe_read
    or futex_wait_queue; "" if there is none or it is unknown. `details`: lines of proc_pid_syscall(5) and, if readable
    (root), its kernel functions, innermost first. `blocks`: it blocks the stack signal; `catches`: it has a handler."""

    tid: int
    name: str
    state: str
    wait: str = ""
    details: tuple[str, ...] = ()
    blocks: bool = False
    catches: bool = False

    def __str__(self) -> str:
        """Describe it for an error: `in the kernel's pipe_read`, `stopped (SIGSTOP)`."""
        state = _STATES.get(self.state, "")
        wait = f"in the kernel's {self.wait}" if self.wait else ""
        if self.state == "D" and wait:
            return f"{state}, {wait}"
        return state or wait or ("running" if self.state == "R" else f"state {self.state}")

    def in_full(self) -> str:
        """Return the lines for a stacks file."""
        return "\n".join([f"thread {self.tid} {self.name}: {self.state}, {self}", *self.details])


def kernel_threads(pid: int) -> list[KernelThread]:
    """Return all threads of a process, the main one first; [] if it is gone or not ours to read. Reads four small files
    per thread, about 50 us."""
    found = []
    with contextlib.suppress(OSError):
        for entry in sorted((PROC / str(pid) / "task").iterdir(), key=lambda entry: int(entry.name)):
            if status := _status(entry):
                found.append(_thread(entry, status))
    return sorted(found, key=lambda thread: thread.tid != pid)


def can_write_stacks(threads: list[KernelThread]) -> bool:
    """Return whether a process with these threads can answer `request_stack`. Without a handler the signal would kill
    it; a stopped process, or one whose threads all block the signal, does not receive it."""
    return any(thread.catches and not thread.blocks and thread.state not in "TtZX" for thread in threads)


def is_writing_stack(pid: int, deaf: frozenset[int] = frozenset()) -> bool:
    """Return whether SIGUSR1 is pending for `pid` or one of its threads runs the handler, where the kernel blocks the
    signal (proc_pid_status(5): SigPnd, ShdPnd, SigBlk). `deaf`: threads that blocked it before the request."""
    with contextlib.suppress(OSError):  # it ended while we read
        for entry in (PROC / str(pid) / "task").iterdir():
            status = _status(entry)
            names = ("SigPnd", "ShdPnd") if int(entry.name) in deaf else ("SigPnd", "ShdPnd", "SigBlk")
            if any(_has_stack_signal(status, name) for name in names):
                return True
    return False


def _thread(entry: Path, status: dict[str, str]) -> KernelThread:
    wait, call = (read_if_known(entry / name) or "" for name in ("wchan", "syscall"))
    stack = (read_if_known(entry / "stack") or "").splitlines()
    return KernelThread(
        tid=int(entry.name),
        name=status.get("Name", ""),
        state=status.get("State", "?")[:1],
        wait="" if wait == "0" else wait,
        details=(*(f"  syscall {line}" for line in call.splitlines()), *(f"  kernel {line}" for line in stack)),
        blocks=_has_stack_signal(status, "SigBlk"),
        catches=_has_stack_signal(status, "SigCgt"),
    )


def _status(entry: Path) -> dict[str, str]:
    """Return the fields of proc_pid_status(5); {} if it ended while we read."""
    lines = (read_if_known(entry / "status") or "").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _has_stack_signal(status: dict[str, str], name: str) -> bool:
    return bool(int(status.get(name) or "0", 16) >> (signal.SIGUSR1 - 1) & 1)


@contextlib.contextmanager
def socket_address(folder: Path, name: str) -> Iterator[str]:
    """Yield a short address of the socket `name` in a folder, to bind, connect or unlink it: a socket's path has at
    most 107 bytes. Raises OSError."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


# -P and the explicit folder: a user's own hogwild/ in the current folder must not shadow ours.
_FIND_US = "import sys; sys.path.insert(0, sys.argv[1]); import hogwild; sys.path.remove(sys.argv.pop(1))"
# A trial dies with us, and its workers die with the trial.
_COMMAND = """
from hogwild import host
from hogwild.__main__ import main
host.die_with_parent(int(sys.argv.pop(1)))
main()
"""


def python_child(code: str, *arguments: str) -> list[str]:
    """Return the command line of a child that runs `code`, which may import hogwild; `sys.argv[1:]` are `arguments`."""
    return [sys.executable, "-P", "-c", f"{_FIND_US}\n{code}", PACKAGE_ROOT, *arguments]


def own_command(arguments: Sequence[str]) -> list[str]:
    """Return the command line of `hogwild ARGUMENTS` for a child that dies with the calling thread."""
    return python_child(_COMMAND, str(os.getpid()), *arguments)


def wait_or_kill(process: "subprocess.Popen[Any]", grace_s: float) -> None:
    """Wait for the end of a child; kill it after `grace_s`, or if a second Ctrl-C ends the wait."""
    try:
        process.wait(grace_s)
    except BaseException as error:
        process.kill()
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
