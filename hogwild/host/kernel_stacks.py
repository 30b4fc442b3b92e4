"""The kernel's view of a process that does not respond: the state and system call of each thread, without asking the
process. It works even if the process is stopped or holds the GIL in native code. Exported by `hogwild.host`; import it
from there.

The one thing to know: each function reads a living process, which may have moved on, or ended, since. Whatever cannot
be read (no permission, another kernel, gone) is left out; nothing raises."""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from hogwild.host.processes import PROC
from hogwild.host.topology import read_if_known

# System calls that may block forever, with their numbers on x86_64 and elsewhere (<asm-generic/unistd.h>: aarch64,
# riscv64); -1: there is none.
_TABLE = """
    read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, ioctl 16 29, fcntl 72 25,
    flock 73 32, fsync 74 82, fdatasync 75 83, getdents64 217 61, sendfile 40 71, connect 42 203, accept 43 202,
    accept4 288 242, sendto 44 206, recvfrom 45 207, sendmsg 46 211, recvmsg 47 212, epoll_wait 232 -1,
    epoll_pwait 281 22, poll 7 -1, ppoll 271 73, select 23 -1, pselect6 270 72, msync 26 227, openat 257 56,
    close 3 57, statx 332 291, newfstatat 262 79, nanosleep 35 101, clock_nanosleep 230 115, pause 34 -1,
    futex 202 98, wait4 61 260, waitid 247 95, rt_sigsuspend 130 133, rt_sigtimedwait 128 137,
    restart_syscall 219 128, semop 65 193, semtimedop 220 192, msgrcv 70 188, mq_timedreceive 243 183,
    io_getevents 208 4, io_uring_enter 426 426, mmap 9 222, munmap 11 215, madvise 28 233, sched_yield 24 124
"""
_NUMBERS = {name: (int(here), int(there)) for name, here, there in map(str.split, _TABLE.split(","))}
_OF_A_DESCRIPTOR = {  # their first argument is a file descriptor
    *("read", "write", "readv", "writev", "pread64", "pwrite64", "ioctl", "fcntl", "flock", "fsync", "fdatasync"),
    *("getdents64", "connect", "accept", "accept4", "sendto", "recvfrom", "sendmsg", "recvmsg", "close"),
    *("epoll_wait", "epoll_pwait"),
}
_MEANING = {"futex": "waits for a lock or a condition", "restart_syscall": "a wait that goes on after a signal"}
_STATES = {
    "D": "in an uninterruptible system call",
    "T": "stopped (SIGSTOP)",
    "t": "stopped by a debugger",
    "Z": "dead, not reaped yet",
}


@dataclass(frozen=True, slots=True)
class KernelThread:
    """One thread. `state`: the letter of proc_pid_stat(5). `call`: its current system call in words; "" if there is
    none or it is unknown. `wait`: the kernel function it sleeps in. `stack`: its kernel functions, innermost first, if
    readable (root). `blocks`: it blocks the stack signal; `catches`: it has a handler for it."""

    tid: int
    name: str
    state: str
    call: str = ""
    wait: str = ""
    stack: tuple[str, ...] = ()
    blocks: bool = False
    catches: bool = False

    def __str__(self) -> str:
        """Describe it for an error: `system call read (descriptor 7, pipe:[81])`, `stopped (SIGSTOP)`."""
        state = _STATES.get(self.state, "")
        call = f"system call {self.call}" if self.call else ""
        if self.state == "D" and self.call:
            return f"{state}, {self.call}"
        return state or call or ("running" if self.state == "R" else f"state {self.state}")

    def in_full(self) -> str:
        """Return the lines for a stacks file."""
        where = f", in the kernel's {self.wait}" if self.wait else ""
        head = f"thread {self.tid} {self.name}: {self.state}, {self}{where}"
        return "\n".join([head, *(f"  kernel {function}" for function in self.stack)])


def kernel_threads(pid: int) -> list[KernelThread]:
    """Return all threads of a process, the main one first; [] if it is gone or not ours to read. Reads five small files
    per thread, about 50 us."""
    found = []
    with contextlib.suppress(OSError):
        for entry in sorted((PROC / str(pid) / "task").iterdir(), key=lambda entry: int(entry.name)):
            if status := _status(entry):
                found.append(_thread(entry, pid, status))
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


def system_call(line: str, pid: int, machine: str = "") -> str:
    """Return a description of a line of proc_pid_syscall(5): `number arguments… sp pc`, `-1 sp pc` if it is blocked
    elsewhere, or `running`. `machine` is the name as in uname(1); by default this machine's."""
    fields = line.split()
    if len(fields) < 8 or not fields[0].isdigit():
        return ""
    number, column = int(fields[0]), 0 if (machine or os.uname().machine) == "x86_64" else 1
    name = next((name for name, numbers in _NUMBERS.items() if numbers[column] == number), "")
    if not name:
        return f"number {number}"
    if name in _OF_A_DESCRIPTOR:
        descriptor = int(fields[1], 16) & 0xFFFFFFFF
        return f"{name} (descriptor {descriptor}{_of(pid, descriptor)})"
    return f"{name} ({_MEANING[name]})" if name in _MEANING else name


def _thread(entry: Path, pid: int, status: dict[str, str]) -> KernelThread:
    return KernelThread(
        tid=int(entry.name),
        name=status.get("Name", ""),
        state=status.get("State", "?")[:1],
        call=system_call(read_if_known(entry / "syscall") or "", pid),
        wait="" if (wait := read_if_known(entry / "wchan") or "") == "0" else wait,
        stack=tuple(line.partition("] ")[2] for line in (read_if_known(entry / "stack") or "").splitlines()),
        blocks=_has_stack_signal(status, "SigBlk"),
        catches=_has_stack_signal(status, "SigCgt"),
    )


def _status(entry: Path) -> dict[str, str]:
    """Return the fields of proc_pid_status(5); {} if it ended while we read."""
    lines = (read_if_known(entry / "status") or "").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _has_stack_signal(status: dict[str, str], name: str) -> bool:
    return bool(int(status.get(name) or "0", 16) >> (signal.SIGUSR1 - 1) & 1)


def _of(pid: int, descriptor: int) -> str:
    """Return the kernel's name for an open descriptor, with a comma before it; accesses no file system."""
    try:
        return f", {os.readlink(PROC / str(pid) / 'fd' / str(descriptor))}"
    except OSError:
        return ""
