"""Stops a thread at its system calls: to kill it there, to make the call fail, or only to look. ptrace(2), by ctypes.

    seize ──► at the entry of a call ── complete, or fail ──► at its exit ──► at the entry of the next ──► …
                    '── kill                                      '── kill                '── release: it runs on, alone

Only the thread named is stopped, and only by the thread of ours that seized it. Killed at an entry, it never makes
the call. For x86_64, whose registers hold number and result; elsewhere, and where tracing is not permitted, `why_not`
says so and a test skips."""

import ctypes
import os
import platform
import signal
import subprocess
import time
from dataclasses import dataclass
from functools import cache

from tests.helpers.processes import PATIENCE_S, NeverHappened

_SEIZE, _INTERRUPT, _SYSCALL, _DETACH = 0x4206, 0x4207, 24, 17
_GET_REGISTERS, _SET_REGISTERS, _GET_CALL = 0x4204, 0x4205, 0x420E
_STATUS_REGISTERS = 1  # NT_PRSTATUS
_MARK_SYSTEM_CALLS, _DIE_WITH_TRACER = 0x1, 0x100000
_WAIT_ALL = 0x40000000  # __WALL: a thread that is not our child, too
_RESULT, _NUMBER = 10, 15  # rax and orig_rax, as words of user_regs_struct
_REGISTERS = 27
_NO_CALL = (1 << 64) - 1
_ENTRY, _EXIT = 1, 2
_EAGER_LOOKS = 300  # a step takes some 20 us: below that a sleep would be most of it

# Of x86_64. What the tests look for by name; any other call is `call-N`.
NAMES = {
    0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 7: "poll", 8: "lseek",
    16: "ioctl", 47: "recvmsg", 18: "pwrite64", 20: "writev", 40: "sendfile", 72: "fcntl", 73: "flock", 74: "fsync",
    75: "fdatasync", 76: "truncate", 77: "ftruncate", 78: "getdents", 82: "rename", 83: "mkdir", 84: "rmdir",
    86: "link", 87: "unlink", 88: "symlink", 89: "readlink", 90: "chmod", 91: "fchmod", 217: "getdents64",
    257: "openat", 258: "mkdirat", 262: "newfstatat", 263: "unlinkat", 264: "renameat", 266: "symlinkat",
    267: "readlinkat", 268: "fchmodat", 269: "faccessat", 285: "fallocate", 316: "renameat2", 326: "copy_file_range",
    332: "statx", 437: "openat2", 452: "fchmodat2",
}  # fmt: skip


FILE_CALLS = frozenset(NAMES.values()) - {"poll", "recvmsg"}  # those that a disk, or a limit of files, makes fail


class NotPermitted(Exception):
    """The kernel refuses to let us trace."""


@dataclass(frozen=True, slots=True)
class Call:
    """A system call at its entry: what it is and what it was asked."""

    name: str
    arguments: tuple[int, ...]


class _CallInfo(ctypes.Structure):
    """struct ptrace_syscall_info of linux/ptrace.h, as of an entry."""

    _fields_ = (
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("instruction_pointer", ctypes.c_uint64),
        ("stack_pointer", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
    )


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.restype = ctypes.c_long
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    return library


_LIBC = _library()


def _ptrace(request: int, thread: int, address: int = 0, data: int = 0) -> None:
    """Raises NotPermitted, ProcessLookupError when the thread is gone or not stopped, or another OSError."""
    if _LIBC.ptrace(request, thread, address, data) < 0:
        number = ctypes.get_errno()
        kind = NotPermitted if number == 1 else OSError
        raise kind(number, f"ptrace request {request:#x} of {thread}: {os.strerror(number)}")


class Traced:
    """One thread, stopped at its system calls."""

    def __init__(self, thread: int) -> None:
        """Not to be called: `seize`."""
        self.thread = thread
        self.is_gone = False
        self._is_running = False
        self._signal = 0  # to be delivered when it runs on

    @classmethod
    def seize(cls, thread: int) -> "Traced":
        """Stops it, wherever it is: a call it waits in is begun again. It dies with us. Raises NotPermitted."""
        traced = cls(thread)
        traced._stop()
        return traced

    def _stop(self) -> None:
        _ptrace(_SEIZE, self.thread, 0, _MARK_SYSTEM_CALLS | _DIE_WITH_TRACER)
        _ptrace(_INTERRUPT, self.thread)
        self._wait()

    def watched(self) -> "Traced":
        """It runs on, to a stop that the next question waits for."""
        given, self._signal = self._signal, 0
        _ptrace(_SYSCALL, self.thread, 0, given)
        self._is_running = True
        return self

    def next_call(self) -> Call | None:
        """Runs to the entry of its next system call; None when it ended instead."""
        while (info := self._step()) is not None:
            if info.op == _ENTRY:
                return Call(NAMES.get(info.number, f"call-{info.number}"), tuple(info.arguments))
        return None

    def complete(self, instead: int | None = None) -> int | None:
        """From the entry of a call to its exit: it is made. Its result, an error as its negative number; None when the
        thread ended in it. With `instead` that is what the thread is told, whatever became of the call."""
        info = self._step()
        if info is None:
            return None
        assert info.op == _EXIT, f"thread {self.thread} is at no exit: {info.op}"
        registers = self._registers()
        if instead is None:
            return ctypes.c_int64(registers[_RESULT]).value
        registers[_RESULT] = instead & _NO_CALL
        self._set_registers(registers)
        return instead

    def fail(self, number: int) -> None:
        """From the entry of a call to its exit: it is not made, and the thread is told that it failed with errno
        `number`."""
        registers = self._registers()
        registers[_NUMBER] = _NO_CALL
        self._set_registers(registers)
        self.complete(-number)

    def kill(self) -> None:
        """SIGKILL where it stands, with its whole process; returns when it has ended."""
        os.kill(self.thread, signal.SIGKILL)
        while not self.is_gone:
            self._wait()

    def release(self) -> None:
        """It runs on, untraced."""
        _ptrace(_DETACH, self.thread, 0, self._signal)

    def seize_again(self) -> None:
        """After a `release`."""
        self._signal = 0
        self._stop()

    def memory(self, address: int, length: int) -> bytes:
        with open(f"/proc/{self.thread}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            return memory.read(length)

    def _step(self) -> _CallInfo | None:
        """On to the next entry or exit; signals that come meanwhile are delivered."""
        while not self.is_gone:
            if not self._is_running:
                self.watched()
            self._is_running = False
            if self._wait() == signal.SIGTRAP | 0x80:
                return self._call_info()
        return None

    def _call_info(self) -> _CallInfo:
        info = _CallInfo()
        _ptrace(_GET_CALL, self.thread, ctypes.sizeof(info), ctypes.addressof(info))
        return info

    def _wait(self) -> int:
        """Until it stops or ends; the signal it stopped with."""
        deadline, looks = time.monotonic() + PATIENCE_S, 0
        while True:
            pid, status = os.waitpid(self.thread, _WAIT_ALL | os.WNOHANG)
            if pid:
                break
            looks += 1
            if time.monotonic() > deadline:
                raise NeverHappened(f"thread {self.thread} came to no system call in {PATIENCE_S:g} s")
            os.sched_yield() if looks < _EAGER_LOOKS else time.sleep(0.001)
        if not os.WIFSTOPPED(status):
            self.is_gone = True
            return 0
        number = os.WSTOPSIG(status)
        if number != signal.SIGTRAP | 0x80 and not status >> 16:
            self._signal = number
        return number

    def _registers(self) -> "ctypes.Array[ctypes.c_uint64]":
        registers = (ctypes.c_uint64 * _REGISTERS)()
        self._exchange_registers(_GET_REGISTERS, registers)
        return registers

    def _set_registers(self, registers: "ctypes.Array[ctypes.c_uint64]") -> None:
        self._exchange_registers(_SET_REGISTERS, registers)

    def _exchange_registers(self, request: int, registers: "ctypes.Array[ctypes.c_uint64]") -> None:
        vector = _Vector(ctypes.addressof(registers), ctypes.sizeof(registers))
        _ptrace(request, self.thread, _STATUS_REGISTERS, ctypes.addressof(vector))


@cache
def why_not() -> str:
    """Why nothing can be traced here; "" where it can."""
    if platform.machine() != "x86_64":
        return f"system calls are traced on x86_64 only, this is {platform.machine()}"
    with subprocess.Popen(["sleep", "3600"]) as asleep:
        try:
            traced = Traced.seize(asleep.pid)
            traced.next_call()
            traced.release()
        except (NotPermitted, OSError) as error:
            return f"tracing is not permitted here: {error}"
        finally:
            asleep.kill()
    return ""
