"""The kernel's view of a process that does not respond: the state of each thread and the kernel function it sleeps in,
without asking the process. It works even if the process is stopped or holds the GIL in native code. Exported by
`hogwild.host`; import it from there.

The one thing to know: each function reads a living process, which may have moved on, or ended, since. Whatever cannot
be read (no permission, another kernel, gone) is left out; nothing raises."""

import contextlib
import signal
from dataclasses import dataclass
from pathlib import Path

from hogwild.host.processes import PROC
from hogwild.host.topology import read_if_known

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
