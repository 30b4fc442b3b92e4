"""The first lines of a worker. Torch-free: importing torch takes more than a second, and a worker must be tied to its
supervisor's life before that.

Order: death signal, then a check of the parent (a parent that died earlier sends no signal) - a process group of its
own - output - signals - environment (OpenMP reads it when torch is loaded) - torch - the task with the descriptors of
all shared memory - log files.
"""

import atexit
import contextlib
import gc
import json
import os
import socket
import sys
from collections.abc import Iterator

from hogwild import host
from hogwild.workers.messages import Leaving, Start

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2


def main(start: Start) -> None:
    """Run a worker process and end it; status 0 means that it was told to leave. Target of `Process`."""
    host.die_with_parent(start.parent_pid)
    host.lead_a_group()
    host.no_core_dumps()
    redirect_to_memory(start.words)
    leaving = Leaving()
    host.worker_signals(leaving.ask, STANDARD_ERROR)
    os.environ.update(start.environment)
    host.raise_oom_score()
    cores = host.affinity()
    channel = socket.socket(fileno=start.channel)
    with without_collecting():
        from hogwild.workers.child.build import run  # imports torch

    gc.freeze()  # later collections skip torch's few hundred thousand objects
    if host.binding_variables(os.environ):  # else a change meanwhile, by a service for instance, was meant
        host.set_affinity(cores)  # OpenMP may have bound us to one core
    status = run(start, channel, leaving)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip interpreter shutdown: tearing down torch takes 0.3 s, on a busy machine over 2 s, long enough to look
    # stalled, and every job's end would wait for it. It would also wait for threads that user code left running.
    os._exit(status)


def load_kernels(kernels: str) -> None:
    """Import numba, which takes half a second, and load those of a job's kernels that are cached; nothing for "", or
    if something is missing or broken. Compiles nothing."""
    if kernels:
        with contextlib.suppress(Exception), without_collecting():  # an update that needs them reports it
            from hogwild.kernels import compiling, kernel_cache
            from hogwild.kernels.signatures import Kernels

            compiling.load_registries()
            for plain in json.loads(kernels):
                kernel_cache.load(Kernels.of(plain))


@contextlib.contextmanager
def without_collecting() -> Iterator[None]:
    """Disable garbage collection around the import of torch, which makes some hundred thousand objects and no garbage:
    collecting would take a tenth of the import time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def redirect_to_memory(words: int) -> None:
    """Redirect standard output and error to memory that the supervisor holds, too, until the worker has its log."""
    os.dup2(words, STANDARD_OUTPUT)
    os.dup2(words, STANDARD_ERROR)
    os.close(words)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
