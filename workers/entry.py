"""A worker's first lines. Torch-free: importing torch takes more than a second, and a worker must be tied to its
supervisor's life before that.

Order: death signal and a look at the parent (a parent that died earlier sends no signal) - a process group of its own -
log files - signals - environment (OpenMP reads it when torch is loaded) - torch - the set-up, with the descriptors of
all shared memory.
"""

import atexit
import os
import socket
import sys
from dataclasses import dataclass

from hogwild import host


@dataclass(frozen=True, slots=True)
class Start:
    """What crosses `Process.start`: numbers and short names only, never a tensor (unpickling one would import torch
    before our first line). Descriptors are inherited under the same numbers."""

    worker: int
    incarnation: int
    parent_pid: int
    lease_read: int
    ack_write: int
    channel: int
    lifeline: int
    log: str
    stacks: str
    environment: tuple[tuple[str, str], ...]


class Leaving:
    """Set by SIGTERM: the worker finishes the exchange in hand and leaves."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        self.asked = True


def main(start: Start) -> None:
    """The target of a worker process. Ends the process; 0 means that it was told to leave."""
    host.die_with_parent(start.parent_pid)
    host.lead_a_group()
    host.no_core_dumps()
    _redirect(start.log)
    leaving = Leaving()
    stacks = os.open(start.stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    host.worker_signals(leaving.ask, stacks)
    os.environ.update(start.environment)
    host.raise_oom_score()
    cores = host.affinity()
    channel = socket.socket(fileno=start.channel)
    from workers.loop import run  # imports torch

    host.set_affinity(cores)  # an OpenMP runtime with OMP_PROC_BIND has bound us to one core by now
    status = run(start, channel, leaving)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking torch apart object by object takes 0.3 s, on a busy machine more than two: long enough to look stalled, and
    # every job's end would wait for it. A thread that the user's code left running holds up nothing either.
    os._exit(status)


def _redirect(log: str) -> None:
    """Standard output and error go to the worker's own log, opened for appending: one write is one line, nobody else's
    buffer or lock is touched, and a full pipe can stop nobody."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
