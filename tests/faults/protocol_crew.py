"""The processes of `protocol.py`: forked, for a fork of this small program takes a millisecond where an import of
torch takes two seconds. Everything else is the real thing: `ProcessGroup` and `Handle` with pipes, socket, pidfd and
reaping on one side, the first lines of a worker, `serve`, `WorkerLoop` and `Trainer` on the other."""

import gc
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from hogwild import host
from hogwild.config.schema import Supervise
from hogwild.errors import HogwildError
from hogwild.shared_memory.scoreboard import Row, Scoreboard
from hogwild.workers.child.profiler import Profile
from hogwild.workers.child.spec import Numerics, WorkerSpec
from hogwild.workers.child.trainer import Trainer, serve
from hogwild.workers.messages import Leaving, Start, Task
from hogwild.workers.processes import handle as handle_module
from hogwild.workers.processes.fork_server import Forked
from hogwild.workers.processes.group import ProcessGroup
from hogwild.workers.processes.handle import Handle
from hogwild.workers.processes.roster import Role
from hogwild.workers.processes.stacks import Then

# What is given to a child must not be made before the fork: it is the child's own.
MakeNumerics = Callable[[int, int], Numerics]  # (worker, incarnation)
Prepare = Callable[[Start], None]  # the last thing in a child before it serves
KEPT = ("lease_read", "ack_write", "channel", "lifeline")
MOST_DESCRIPTORS = 1 << 20
BROKEN = 99  # the exit status of a worker in which our own code raised what it should not


class ForkedHandle(Handle):
    def send(self, task: Task, regions: Any) -> None:
        """Nothing is sent: a forked process has everything."""


class Nursery:
    """Starts workers; holds the write end of their lifeline."""

    def __init__(self, board: Scoreboard, worker_spec: WorkerSpec, make_numerics: MakeNumerics) -> None:
        self.board, self._worker_spec, self._make_numerics = board, worker_spec, make_numerics
        self._lifeline: tuple[int, ...] = os.pipe()
        self._worker = self._incarnation = 0
        self._prepare: Prepare | None = None
        handle_module._fresh = self._launch  # type: ignore[assignment]

    def spawn(self, worker: int, incarnation: int, prepare: Prepare | None = None) -> Handle:
        self._worker, self._incarnation, self._prepare = worker, incarnation, prepare
        return ForkedHandle.spawn(Role.WORKER, worker, incarnation, lifeline=self._lifeline[0], environment={})

    def cut_lifeline(self) -> None:
        """As the supervisor's death does. The second time nothing happens."""
        for end in self._lifeline:
            os.close(end)
        self._lifeline = ()

    def _launch(self, start: Start) -> Forked:
        pid = os.fork()
        if not pid:
            self._live(start)
        return Forked(pid)

    def _live(self, start: Start) -> None:
        status = BROKEN
        try:
            gc.disable()
            host.die_with_parent(start.parent_pid)
            host.lead_a_group()
            _close_all_but({getattr(start, name) for name in KEPT})
            leaving = Leaving()
            host.worker_signals(leaving.ask, sys.stderr.fileno())
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stderr.fileno())  # the tracebacks of some hundred crimes
            channel = socket.socket(fileno=start.channel)
            if self._prepare is not None:
                self._prepare(start)
            status = serve(start, channel, leaving, self._make_trainer)
        finally:
            os._exit(status)

    def _make_trainer(self) -> Trainer:
        make = partial(self._make_numerics, self._worker, self._incarnation)
        return Trainer(self._worker_spec, make, Row(self.board, self._worker), Profile())


class ForkedGroup(ProcessGroup):
    """The group of processes of one run."""

    def __init__(self, supervise: Supervise, nursery: Nursery) -> None:
        super().__init__(supervise)
        self._nursery = nursery
        self.stacks = NoStacks()  # type: ignore[assignment]

    def _spawn_process(self, role: Role, number: int, incarnation: int) -> Handle:
        self._nursery.board.renew(number, incarnation)  # a forked process does not wait for a task
        return self._nursery.spawn(number, incarnation)


class NoStacks:
    """A thread in the parent would be no good when it forks."""

    rundir = None

    is_waiting = False

    def collect(self, suspects: Any, everybody: Any, why: str, still_s: float, then: Then) -> None:
        then({})

    def advance(self, now: float) -> list[HogwildError]:
        return []

    def leave_out(self, handle: Handle) -> None: ...
    def close(self) -> None: ...


def _close_all_but(kept: set[int]) -> None:
    """Close the descriptors that a spawned process would not have inherited: the other workers' ends above all, which
    would hide their end-of-file."""
    low = 3
    for descriptor in sorted(kept):
        os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, MOST_DESCRIPTORS)  # one system call
