"""The crimes of user code against a worker. Each is committed once, by whoever comes first (a file in the diary says
so), except those called `always`."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path


def commit(crime: str, diary: Path) -> float:
    """Commits the crime; returns a factor for the batch's result, for those who survive it."""
    if not crime.startswith("always") and not _is_first(diary / f"crime-{crime.replace(' ', '-')}"):
        return 1.0
    return CRIMES[crime](diary) or 1.0


def _is_first(file: Path) -> bool:
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    file.write_text(f"{os.getpid()}\n")
    return True


def _raise_it(diary: Path) -> float:
    raise RuntimeError("a bad batch, once")


def _raise_always(diary: Path) -> float:
    raise RuntimeError("a bad batch, always")


def _raise_in_loss(diary: Path) -> float:
    raise ArithmeticError("a loss that gives up, once")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("an exception that cannot say what it is")


def _raise_unspeakable(diary: Path) -> float:
    raise Unspeakable


def _raise_at_length(diary: Path) -> float:
    raise RuntimeError("é" * 20_000)


def _leave_a_grandchild(diary: Path) -> float:
    """It holds every descriptor the worker had: end-of-file never comes on any pipe. Not marked as one of ours."""
    child = subprocess.Popen(["sleep", "3600"], close_fds=False, env={})
    (diary / "grandchild").write_text(str(child.pid))
    os._exit(7)


def _hang(diary: Path) -> float:
    while True:
        time.sleep(0.01)


def _hang_in_native_code(diary: Path) -> float:
    """Sleeps with the interpreter lock held: no Python code runs in this process any more."""
    while True:
        ctypes.PyDLL(None).sleep(60)


def _wait_to_be_overtaken(diary: Path) -> float:
    """Until another worker, perhaps one that has still to start, has begun two batches more: one of its updates lies
    between our reading and our applying then, however the machine divides its time."""
    before = _begun_by_others(diary)
    while not any(begun >= before.get(worker, 0) + 2 for worker, begun in _begun_by_others(diary).items()):
        time.sleep(0.005)
    return 1.0


def _begun_by_others(diary: Path) -> dict[str, int]:
    own = f"train-{os.getpid()}"
    return {file.name: file.read_text().count("\n") for file in diary.glob("train-*") if file.name != own}


def _nan(diary: Path) -> float:
    return float("nan")


def _close_everything(diary: Path) -> float:
    os.closerange(3, 256)
    return 1.0


def _start_a_thread_for_ever(diary: Path) -> float:
    threading.Thread(target=threading.Event().wait, daemon=False).start()
    return 1.0


def _take_all_memory(diary: Path) -> float:
    """64 MiB at a time, every page touched."""
    taken = []
    while True:
        taken.append(b"x" * (1 << 26))


def _run_out_of_address_space(diary: Path) -> float:
    """Raise what a limit on a process makes of an allocation, MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (1 << 28)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return float(len(bytes(1 << 30)))


def _flood(diary: Path) -> float:
    sys.stdout.write("x" * 1_000_000)
    sys.stdout.flush()
    return 1.0


def _signal_itself(number: signal.Signals) -> Callable[[Path], float]:
    def send(diary: Path) -> float:
        os.kill(os.getpid(), number)
        return 1.0

    return send


def _exit_with(status: int) -> Callable[[Path], float]:
    return lambda diary: os._exit(status)


CRIMES: dict[str, Callable[[Path], float | None]] = {
    "raises": _raise_it,
    "always raises": _raise_always,
    "raises in the loss": _raise_in_loss,
    "raises the unspeakable": _raise_unspeakable,
    "raises at length": _raise_at_length,
    "asks to exit": lambda diary: sys.exit(5),
    "exits with 0": _exit_with(0),
    "is killed": _signal_itself(signal.SIGKILL),
    "always is killed": _signal_itself(signal.SIGKILL),
    "reads nowhere": lambda diary: bool(ctypes.string_at(0)),
    "stops itself": _signal_itself(signal.SIGSTOP),
    "terminates itself": _signal_itself(signal.SIGTERM),
    "hangs": _hang,
    "hangs in native code": _hang_in_native_code,
    "leaves a grandchild": _leave_a_grandchild,
    "closes everything": _close_everything,
    "starts a thread for ever": _start_a_thread_for_ever,
    "floods its output": _flood,
    "always takes all memory": _take_all_memory,
    "runs out of address space": _run_out_of_address_space,
    "waits to be overtaken": _wait_to_be_overtaken,
    "computes nan": _nan,
    "always computes nan": _nan,
    "is killed in its step": _signal_itself(signal.SIGKILL),
    "is killed after its step": _signal_itself(signal.SIGKILL),
}
