"""One child process as the supervisor sees it: its pipes, its pidfd, its reports. The only file that starts processes.

The child inherits five descriptors under their own numbers (lease pipe, ack pipe, socket, lifeline, and a memory file
for its output before it has a log) and nothing else. The supervisor closes its copies of the child's ends as soon as
the child exists, so that end-of-file works.

A process is a fork of the fork server (`fork_server.py`), or else a fresh interpreter; from its first line
(`entry.main`) on both are the same."""

import contextlib
import multiprocessing.process
import os
import pickle
import socket
import sys
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing import context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild import host
from hogwild.errors import UsageError
from hogwild.version import PACKAGE_ROOT
from hogwild.workers.child import entry
from hogwild.workers.messages import LOOK, Report, Start, Task, read_records, write_record
from hogwild.workers.processes.fork_server import DESCRIPTORS, SERVER, CannotServe, Forked
from hogwild.workers.processes.roster import Role

if TYPE_CHECKING:
    from hogwild.shared_memory.region import Region  # with numpy

PAYLOAD_LIMIT = 4096  # bytes of our arguments; CPython 3.11 can hang in start() if the whole payload exceeds 64 KiB
REAPED_ELSEWHERE = 255  # other code reaped it, perhaps a host application's wait()
PATH_LIMIT = 32 * 1024
REAP_S = 5.0  # after SIGKILL; a process in an uninterruptible system call may survive it
POLL_MS = 20


class _Inherited:
    """A descriptor that the child inherits under its own number; unpickled as a plain int."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        popen = context.get_spawning_popen()
        if popen is not None:  # None while the payload size is measured
            popen.duplicate_for_child(self.descriptor)
        return int, (self.descriptor,)


@dataclass(slots=True)
class Handle:
    """A child process and our ends of its pipes. `close` releases them; call it only after `reap` returned a status."""

    process: BaseProcess | Forked
    pid: int
    pidfd: int
    lease_write: int
    ack_read: int
    channel: socket.socket
    words: int
    role: Role
    number: int  # among those of its role
    incarnation: int
    log: Path | None = None
    is_ready: bool = False
    parked_in: int = 0  # number of the pause, once its earlier stores are visible
    update_path: str = ""
    error: Report | None = None
    on_warning: Callable[[str, str], object] = lambda text, place: None
    said: list[Report] = field(default_factory=list)  # about its task; whoever gave the task takes them
    killed_for: str = ""

    @classmethod
    def spawn(
        cls,
        role: Role,
        number: int,
        incarnation: int,
        *,
        lifeline: int,
        environment: Mapping[str, str],
        is_forked: bool = False,
    ) -> "Handle":
        """Start a process, which waits for its task (`send`). `lifeline` is the read end of a pipe whose write end only
        the supervisor has; `environment`: variables beside the supervisor's. `is_forked`: by the fork server, where it
        can. Main thread only: a death signal is tied to the thread that forked."""
        if threading.current_thread() is not threading.main_thread():
            raise UsageError(
                "workers must be started from the main thread; call hogwild.train there", code="usage/main-thread"
            )
        place = role, number, incarnation
        if is_forked:
            try:
                return cls._launched(SERVER.launch, lifeline, environment, place)
            except CannotServe as error:
                SERVER.why = str(error)
        return cls._launched(_fresh, lifeline, environment, place)

    @classmethod
    def _launched(
        cls,
        launch: "Callable[[Start], BaseProcess | Forked]",
        lifeline: int,
        environment: Mapping[str, str],
        place: tuple[Role, int, int],
    ) -> "Handle":
        """Start it in one of two ways, each with descriptors of its own."""
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            lease_read, lease_write = _pipe(theirs, ours)
            ack_read, ack_write = _pipe(ours, theirs)
            channel, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.enter_context(channel)
            theirs.enter_context(far_end)
            words = os.memfd_create("hogwild-first-words")
            ours.callback(os.close, words)
            for descriptor in (lease_read, lease_write, ack_read):
                os.set_blocking(descriptor, False)
            start = Start(
                parent_pid=os.getpid(),
                lease_read=lease_read,
                ack_write=ack_write,
                channel=far_end.fileno(),
                lifeline=lifeline,
                words=words,
                environment=tuple(environment.items()),
            )
            with host.blocked_signals():
                process = launch(start)
                assert process.pid is not None
                pidfd = host.pidfd_open(process.pid)
            ours.pop_all()  # the handle owns them from now on
        channel.setblocking(False)
        return cls(process, process.pid, pidfd, lease_write, ack_read, channel, words, *place)

    def send(self, task: Task, regions: "Mapping[str, Region]") -> None:
        """Send its task, with the regions, the user's folders and torch's settings. A process that died meanwhile is no
        error here: its pidfd shows it."""
        from hogwild.training.torch_settings import current  # torch is loaded by now

        self.log = Path(task.log) if task.log else None
        task = replace(
            task,
            regions=tuple((name, region.nbytes) for name, region in regions.items()),
            # with the user's folders and what user code has added
            sys_path=tuple(folder for folder in sys.path if isinstance(folder, str)),
            torch_settings=current(),
        )
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            task.send(self.channel, [region.descriptor for region in regions.values()])

    def descriptors(self) -> tuple[int, int, int]:
        """Return the descriptors that become readable when something happens to the process."""
        return self.pidfd, self.ack_read, self.channel.fileno()

    def lease(self, sequence: int, item: int) -> None:
        write_record(self.lease_write, sequence, item)

    def wake(self, over: int = 0) -> None:
        """Make the worker read the control row now, not at its next beat. `over`: the pause that has ended; without
        this record it stays parked."""
        write_record(self.lease_write, over, LOOK)

    def acks(self) -> list[tuple[int, int]]:
        """Return (skipped, item id) of every item finished since the last call; of a loader (answer, number) of every
        slot or range. Doorbells are left out."""
        found = []
        for first, item in read_records(self.ack_read):
            if item != LOOK:
                found.append((first, item))
            else:
                self.parked_in = first or self.parked_in
        return found

    def listen(self) -> None:
        """Process the reports from the process's socket."""
        for report in Report.receive_all(self.channel):
            if report.kind == "error":
                self.error = report
            elif report.kind == "warning":
                self.on_warning(report.detail, report.place)
            elif report.kind == "ready":
                self.is_ready, self.update_path = True, report.detail
            else:
                self.said.append(report)

    def pop_said(self) -> list[Report]:
        said, self.said = self.said, []
        return said

    def kill(self, why: str = "") -> None:
        self.killed_for = self.killed_for or why
        host.kill_by_pidfd(self.pidfd)

    def reap(self) -> int | None:
        """Return the exit status of a dead process, None before. Processes started by its user code end with it."""
        if not host.end_group_of_the_dead(self.pid):
            return None
        status = self.process.exitcode
        return REAPED_ELSEWHERE if status is None else status

    def last_output(self) -> str:
        """Return the last line of output before the worker had a log, for instance an exception; "" if none."""
        return next((line for line in reversed(self.first_output().split("\n")) if line.strip()), "")

    def first_output(self) -> str:
        """Return the whole output before the worker had a log."""
        return os.pread(self.words, os.fstat(self.words).st_size, 0).decode(errors="replace")

    @property
    def title(self) -> str:
        return f"{self.role} {self.number} (pid {self.pid})"

    def describe_undead(self) -> str:
        """Return a phrase for a process that is still there after SIGKILL."""
        return f"is still alive 5 s after SIGKILL ({host.process_status(self.pid)}: an uninterruptible system call?)"

    def disown(self) -> None:
        """Stop waiting for a process that survives SIGKILL; otherwise multiprocessing would wait for ever at exit."""
        _children().discard(self.process)

    def close(self) -> None:
        # Output from before the worker opened its log, if it died before; else it is there already.
        if self.log is not None and (output := self.first_output()):
            # A full disk must not stop training.
            with contextlib.suppress(OSError), open(self.log, "a", encoding="utf-8") as log:
                log.write(output)
        for descriptor in (self.lease_write, self.ack_read, self.pidfd, self.words):
            os.close(descriptor)
        self.channel.close()
        with contextlib.suppress(ValueError):  # other code has reaped it: multiprocessing thinks that it still runs
            self.process.close()
        self.disown()


def reaped(handles: Iterable[Handle], limit_s: float, gives_up: Callable[[], bool] = lambda: False) -> Iterator[Handle]:
    """Yield each process when it has died, until all have, `limit_s` is over or the caller gives up."""
    left, deadline = list(handles), time.monotonic() + limit_s
    while left and time.monotonic() < deadline and not gives_up():
        host.wait_readable([handle.pidfd for handle in left], POLL_MS)
        for handle in left[:]:
            if handle.reap() is not None:
                left.remove(handle)
                yield handle


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """Return (read end, write end), each closed with its stack."""
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def _fresh(start: Start) -> BaseProcess:
    """Start a fresh interpreter. Stop signals are blocked."""
    size = sum(len(folder) for folder in sys.path)
    if size > PATH_LIMIT:
        raise UsageError(
            f"sys.path has {size:,} characters, more than {PATH_LIMIT:,}: workers cannot be started safely",
            code="run/environment-too-large",
        )
    inherited: Any = {name: _Inherited(getattr(start, name)) for name in DESCRIPTORS}
    start = replace(start, **inherited)
    from torch.multiprocessing import get_context

    with host.blocked_signals(), _plain_main():
        assert len(pickle.dumps(start)) < PAYLOAD_LIMIT
        process = get_context("spawn").Process(target=entry.main, args=(start,), name="hogwild-worker")
        process.start()
        return process


def _children() -> set[BaseProcess]:
    """Return the processes that multiprocessing knows: it waits for all of them at exit."""
    module: Any = multiprocessing.process
    found: set[BaseProcess] = module._children
    return found


@contextlib.contextmanager
def _plain_main() -> Iterator[None]:
    """Hide `__main__`, user folders, arguments and streams while a child starts: no main module to import again (no `if
    __name__` guard needed; a notebook has none), no user folder before ours on sys.path, no long command line to send,
    and no stream for `start()` to flush, which fails if the reader of standard error has gone."""
    main, path, argv = sys.modules["__main__"], sys.path[:], sys.argv
    out, err = sys.stdout, sys.stderr
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.path[:] = [PACKAGE_ROOT, *(folder for folder in path if folder != PACKAGE_ROOT)]
    sys.argv = ["hogwild-worker"]
    sys.stdout = sys.stderr = None
    try:
        yield
    finally:
        sys.stdout, sys.stderr = out, err
        sys.modules["__main__"], sys.argv = main, argv
        sys.path[:] = path
