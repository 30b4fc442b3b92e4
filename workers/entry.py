"""A worker's first lines. Torch-free: importing torch takes more than a second, and a worker must be tied to its
supervisor's life before that.

Order: death signal and a look at the parent (a parent that died earlier sends no signal) - a process group of its own -
output - signals - environment (OpenMP reads it when torch is loaded) - torch - the set-up, with the descriptors of all
shared memory, for which it waits as long as the parent builds model and data, or until a worker has died whose place it
takes - log files: before that there may be no run directory, nor ever be one. Its number comes with the set-up, too.
"""

import atexit
import contextlib
import gc
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from hogwild import host
from workers.messages import ParentGone, Report

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2


@dataclass(frozen=True, slots=True)
class Start:
    """What crosses `Process.start`: numbers and short names only, never a tensor (unpickling one would import torch
    before our first line). Descriptors are inherited under the same numbers."""

    parent_pid: int
    lease_read: int
    ack_write: int
    channel: int
    lifeline: int
    words: int
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
    _redirect(start.words)
    leaving = Leaving()
    host.worker_signals(leaving.ask, STANDARD_ERROR)
    os.environ.update(start.environment)
    host.raise_oom_score()
    cores = host.affinity()
    channel = socket.socket(fileno=start.channel)
    with without_collecting():
        from workers.building import run  # imports torch

    gc.freeze()  # a collection looks at torch's few hundred thousand objects never again
    host.set_affinity(cores)  # an OpenMP runtime with OMP_PROC_BIND has bound us to one core by now
    with contextlib.suppress(ParentGone):  # `run` will see it
        Report("waiting").send(channel)
    status = run(start, channel, leaving)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # Taking torch apart object by object takes 0.3 s, on a busy machine more than two: long enough to look stalled, and
    # every job's end would wait for it. A thread that the user's code left running holds up nothing either.
    os._exit(status)


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Around the import of torch, which makes some hundred thousand objects and no garbage: a tenth of its time goes
    into looking for some."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def settle(log: str, stacks: str) -> None:
    """From now on standard output and error go to the worker's own log, opened for appending: one write is one line,
    nobody else's buffer or lock is touched, and a full pipe can stop nobody. What was said before is copied there, and
    then taken out of memory, so that the supervisor does not copy it again. Stacks go to their own file."""
    sys.stdout.flush()
    sys.stderr.flush()
    words = os.dup(STANDARD_ERROR)
    with open(log, "ab", buffering=0) as file:
        file.write(os.pread(words, os.fstat(words).st_size, 0))
        for standard in (STANDARD_OUTPUT, STANDARD_ERROR):
            os.dup2(file.fileno(), standard)
    os.ftruncate(words, 0)
    os.close(words)
    host.write_stacks_to(os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))


def _redirect(words: int) -> None:
    """Standard output and error go to memory that the supervisor holds, too, until the worker is told of its log."""
    os.dup2(words, STANDARD_OUTPUT)
    os.dup2(words, STANDARD_ERROR)
    os.close(words)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
