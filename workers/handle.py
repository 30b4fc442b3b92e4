"""One worker process as the supervisor sees it: its pipes, its pidfd, its reports. The only file that starts processes.

The child inherits four descriptors under their own numbers (lease pipe, ack pipe, socket, lifeline) and nothing else;
the supervisor closes its copies of the child's ends as soon as the child exists, so that end-of-file means what it
should."""

import contextlib
import os
import pickle
import socket
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import context
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch.multiprocessing

import hogwild
from hogwild import host
from hogwild.errors import UsageError
from workers import entry
from workers.messages import LOOK, Report, Setup, read_records, write_record

PAYLOAD_LIMIT = 4096  # bytes of our own arguments; CPython 3.11 can hang in start() when all of it passes 64 KiB
REAPED_ELSEWHERE = 255  # its status went to somebody else, a host application's wait() perhaps
PATH_LIMIT = 32 * 1024
PACKAGE_ROOT = str(Path(hogwild.__file__).resolve().parent.parent)


class _Inherited:
    """A descriptor that the child inherits under its own number; arrives as a plain int."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        popen = context.get_spawning_popen()
        if popen is not None:  # None while the size of the payload is measured
            popen.duplicate_for_child(self.descriptor)
        return int, (self.descriptor,)


@dataclass(slots=True)
class Handle:
    """Owns the supervisor's ends. `close` gives everything back; call it only after `reap` returned a status."""

    worker: int
    incarnation: int
    process: BaseProcess
    pid: int
    pidfd: int
    lease_write: int
    ack_read: int
    channel: socket.socket
    log: Path
    is_ready: bool = False
    update_path: str = ""
    error: Report | None = None
    killed_for: str = ""

    @classmethod
    def spawn(
        cls,
        worker: int,
        incarnation: int,
        *,
        lifeline: int,
        log: Path,
        stacks: Path,
        environment: dict[str, str],
    ) -> "Handle":
        """Starts a worker. `lifeline` is the read end of a pipe whose write end only the supervisor has. Main thread
        only: a death signal is tied to the thread that forked."""
        if threading.current_thread() is not threading.main_thread():
            raise UsageError("workers must be started from the main thread; call hogwild.train there")
        lease_read, lease_write = os.pipe()
        ack_read, ack_write = os.pipe()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for descriptor in (lease_read, lease_write, ack_read):
            os.set_blocking(descriptor, False)
        start = entry.Start(
            worker=worker,
            incarnation=incarnation,
            parent_pid=os.getpid(),
            lease_read=_Inherited(lease_read),  # type: ignore[arg-type]
            ack_write=_Inherited(ack_write),  # type: ignore[arg-type]
            channel=_Inherited(theirs.fileno()),  # type: ignore[arg-type]
            lifeline=_Inherited(lifeline),  # type: ignore[arg-type]
            log=str(log),
            stacks=str(stacks),
            environment=tuple(environment.items()),
        )
        try:
            process, pidfd = _launch(start)
        except BaseException:
            for descriptor in (lease_write, ack_read):
                os.close(descriptor)
            ours.close()
            raise
        finally:
            for descriptor in (lease_read, ack_write):
                os.close(descriptor)
            theirs.close()
        assert process.pid is not None
        ours.setblocking(False)
        return cls(worker, incarnation, process, process.pid, pidfd, lease_write, ack_read, ours, log)

    def set_up(self, setup: Setup, descriptors: Sequence[int]) -> None:
        """Sends what the worker needs. A worker that died meanwhile is no error here: its pidfd says so."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            setup.send(self.channel, descriptors)

    def lease(self, sequence: int, item: int) -> None:
        write_record(self.lease_write, sequence, item)

    def wake(self) -> None:
        """Makes it look at the control row now instead of at its next beat."""
        write_record(self.lease_write, 0, LOOK)

    def acks(self) -> list[tuple[int, int]]:
        """(skipped, item id) of every item finished since the last call; doorbells left out."""
        return [(skipped, item) for skipped, item in read_records(self.ack_read) if item != LOOK]

    def listen(self) -> None:
        """Takes in what the worker said over its socket."""
        for report in Report.receive_all(self.channel):
            if report.kind == "ready":
                self.is_ready, self.update_path = True, report.detail
            else:
                self.error = report

    def kill(self, why: str = "") -> None:
        self.killed_for = self.killed_for or why
        host.kill_by_pidfd(self.pidfd)

    def reap(self) -> int | None:
        """The exit status once the process is dead, None before. What user code started in it ends with it."""
        if not host.end_group_of_the_dead(self.pid):
            return None
        status = self.process.exitcode
        return REAPED_ELSEWHERE if status is None else status

    def close(self) -> None:
        for descriptor in (self.lease_write, self.ack_read, self.pidfd):
            os.close(descriptor)
        self.channel.close()
        self.process.close()


def _launch(start: entry.Start) -> tuple[BaseProcess, int]:
    process = torch.multiprocessing.get_context("spawn").Process(
        target=entry.main, args=(start,), name=f"hogwild-worker-{start.worker}"
    )
    with host.blocked_signals(), _plain_main():
        _check_payload(start)
        process.start()
        assert process.pid is not None
        return process, host.pidfd_open(process.pid)


def _check_payload(start: entry.Start) -> None:
    assert len(pickle.dumps(start)) < PAYLOAD_LIMIT
    size = sum(len(folder) for folder in sys.path)
    if size > PATH_LIMIT:
        raise UsageError(f"sys.path is {size:,} bytes long, more than {PATH_LIMIT:,}: workers cannot be started safely")


@contextlib.contextmanager
def _plain_main() -> Iterator[None]:
    """While a child is started there is no main module to import again (no `if __name__` guard is needed, a notebook
    has none), no user folder before ours in sys.path, no long command line to send, and no stream to flush: `start()`
    does that, and would fail on a standard error whose reader has gone."""
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
