"""A trial of the fork server on this machine, for `hogwild doctor` and `check --deep`: start it as `hogwild.train`
does, fork processes from it, measure them. A process of its own runs it, so that a crash of torch is an answer, too."""

import contextlib
import json
import os
import time
from collections.abc import Iterator

from hogwild import host
from hogwild.planning.cpu_plan import plan_here
from hogwild.planning.process_memory import may_fork
from workers.processes.fork_server import READY_S, SERVER, CannotServe, Forked
from workers.processes.handle import Handle

WAIT_MS = 20


def main() -> None:
    """Print the answer as JSON: `why`, empty if this machine can fork from a server, and what was measured."""
    why, found = "", dict[str, float]()
    try:
        if not may_fork("cpu"):
            raise CannotServe(f"OpenMP binds threads to cores ({', '.join(host.binding_variables(os.environ))})")
        SERVER.start({}, kernels="")
        found = _measured()
    except (OSError, CannotServe) as error:
        why = str(error)
    finally:
        SERVER.close()
    print(json.dumps({"why": why, **found}))


def _measured() -> dict[str, float]:
    """Return bytes of memory and the seconds that a fork takes."""
    with _forked() as handle:
        fork, _ = host.memory_of(handle.pid)
    began_s = time.monotonic()
    with _forked():
        took_s = time.monotonic() - began_s
    assert SERVER.pid is not None
    private, shared = host.memory_of(SERVER.pid)  # without a fork that shares its pages
    return {"import_private": private, "import_shared": shared, "fork_private": fork, "fork_s": took_s}


@contextlib.contextmanager
def _forked() -> Iterator[Handle]:
    """Yield a forked process that waits for its task. Raises CannotServe."""
    read, write = os.pipe()
    handle = Handle.spawn(read, plan_here(1, 1), is_forked=True)
    try:
        if not isinstance(handle.process, Forked):
            raise CannotServe(SERVER.why)
        while not handle.is_waiting:
            if handle.reap() is not None:
                raise CannotServe(f"a forked process ended: {handle.last_output()}")
            host.wait_readable([handle.pidfd, handle.channel.fileno()], WAIT_MS)
            handle.listen()
        yield handle
    finally:
        handle.kill()
        host.wait_readable([handle.pidfd], READY_S * 1000)
        handle.reap()
        handle.close()
        os.close(read)
        os.close(write)
