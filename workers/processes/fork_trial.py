"""A trial of the fork server on this machine, for `hogwild doctor` and `check --deep`: start it as `hogwild.train`
does, fork processes from it, measure them. A process of its own runs it, so that a crash of torch is an answer, too."""

import contextlib
import json
import os
import pickle
import time
from collections.abc import Iterator

from hogwild import host
from hogwild.planning.cpu_plan import environment_for, may_fork
from hogwild.shared_memory.region import Region
from hogwild.workers.child.loader import BEATS, recipe_of
from hogwild.workers.messages import LoadTask
from hogwild.workers.processes.fork_server import READY_S, SERVER, CannotServe, Forked
from hogwild.workers.processes.handle import Handle
from hogwild.workers.processes.roster import Role

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


class _Nothing:
    """A recipe for a reader that has nothing to read."""

    def open(self, *_: object) -> None: ...


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


def give_nothing_to_read(handle: Handle) -> None:
    """Send the task of a reader, so that the process says when it is ready."""
    beats = Region.allocate("beats", BEATS * 8)
    handle.send(LoadTask(0), {"beats": beats, "recipe": recipe_of(pickle.dumps(_Nothing()), [])})


@contextlib.contextmanager
def _forked() -> Iterator[Handle]:
    """Yield a forked process that waits for work. Raises CannotServe."""
    read, write = os.pipe()
    environment = environment_for(1, os.environ)
    handle = Handle.spawn(Role.READER, 0, 1, lifeline=read, environment=environment, is_forked=True)
    try:
        if not isinstance(handle.process, Forked):
            raise CannotServe(SERVER.why)
        give_nothing_to_read(handle)
        while not handle.is_ready:
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
