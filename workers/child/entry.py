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

from hogwild import host
from workers.child.standard_streams import STANDARD_ERROR, redirect
from workers.messages import Leaving, ParentGone, Report, Start


def main(start: Start) -> None:
    """The target of a worker process. Ends the process; 0 means that it was told to leave."""
    host.die_with_parent(start.parent_pid)
    host.lead_a_group()
    host.no_core_dumps()
    redirect(start.words)
    leaving = Leaving()
    host.worker_signals(leaving.ask, STANDARD_ERROR)
    os.environ.update(start.environment)
    host.raise_oom_score()
    cores = host.affinity()
    channel = socket.socket(fileno=start.channel)
    with without_collecting():
        from workers.child.dispatch import run  # imports torch

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
