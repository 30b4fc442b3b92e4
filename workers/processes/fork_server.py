"""The fork server: one process that has imported torch and the modules of workers, and from which a job's processes are
forked. An import takes two seconds and 146 MB for each process, a fork of the server some milliseconds and 4 MB.

    command ── import torch ──┬── fork: THE SERVER          hogwild.train ── the server as a fresh interpreter, at its
                              └── goes on as the supervisor                  first call; it stays for the next ones

    supervisor                          server                             child
    request and descriptors ──────────► fork ─► (a process between) ─► fork ─► waits until its parent is the supervisor
    ◄────────────────────── its number          '── ends ──────────────►      takes over the supervisor's surroundings
                                                                              `entry.main`, as a fresh interpreter does

The child is the supervisor's: an orphan's next parent is the nearest subreaper above it (prctl(2)), which the
supervisor is while it asks. So it is reaped, reported and killed as any child, and its death signal is the
supervisor's death.

What makes a fork of it safe, and is checked before each: it has one thread. What is so by construction: no user's code
has run in it, no CUDA, no OpenMP or pyarrow pool was started, and it has no descriptor of the supervisor's. A user's
process is never forked. Where the server cannot serve, a process is a fresh interpreter (`handle.py`), and `why` says
the reason: it died or does not answer, or the surroundings of the supervisor have changed in what a child of it cannot
take over (`host.FixedSurroundings`). The death of the server disturbs no process that runs."""

import array
import atexit
import contextlib
import fcntl
import gc
import json
import multiprocessing.process
import os
import random
import select
import socket
import subprocess
import sys
import time
import types
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NoReturn

from hogwild import host
from hogwild.monitoring.job_view import ServerGlance
from hogwild.planning.cpu_plan import VARIABLES
from hogwild.version import PACKAGE_ROOT
from workers.messages import Start

ANSWER_S = 5.0  # for a fork; it takes milliseconds
READY_S = 60.0  # for the import of torch
LOOK_MS = 100
DESCRIPTORS = ("lease_read", "ack_write", "channel", "lifeline", "words")  # of a `Start`, in this order
NAMES = SERVER_NAME, CHILD_NAME = "hogwild-server", "hogwild-child"  # of processes
CODE = "import sys; sys.path.insert(0, {root!r}); from workers.processes.fork_server import main; main(*sys.argv[1:])"


def may_fork(device: str) -> bool:
    """Return whether processes that compute on `device` may be forks: until that was tried on one, not with a GPU, and
    not if OpenMP binds threads to cores, which it decides when it is loaded."""
    return (device == "cpu" or not host.has_nvidia_driver()) and not host.binding_variables(os.environ)


class CannotServe(Exception):
    """The server cannot make this process, a fresh interpreter can: the message says why."""


class Forked:
    """A process that was forked by the server, with the part of `multiprocessing.Process` that a `Handle` uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    @property
    def exitcode(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs, or if other code has reaped it."""
        if self._status is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def close(self) -> None:
        """Nothing is held."""


class ForkServer:
    """The supervisor's side. Main thread only."""

    def __init__(self) -> None:
        self.why = ""  # the last process was a fresh interpreter
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Have none: in a fork of this process it is the parent's, which sees its end by our copy of the socket."""
        if (channel := getattr(self, "_channel", None)) is not None:
            channel.close()
        self._channel: socket.socket | None = None
        self._pid = self._pidfd = -1
        self._is_ready = False
        self._surroundings: host.FixedSurroundings | None = None
        self._children = set[int]()

    @property
    def pid(self) -> int | None:
        return self._pid if self._channel is not None else None

    def glance(self, memory: Mapping[int, int]) -> ServerGlance | None:
        """Return it for a display. `memory`: PSS by pid, in bytes, as last measured."""
        if self._channel is None:
            return None
        states = {None: "ended", "zombie": "ended", "stopped": "stopped", "tracing-stop": "stopped"}
        state = states.get(host.process_status(self._pid), "waiting" if self._is_ready else "importing")
        return ServerGlance(self._pid, state, memory.get(self._pid))

    # ---- its start and its end

    def fork(self, *, has_kernels: bool) -> None:
        """Fork it from this process, a command that has imported torch and nothing else; start a fresh interpreter, if
        something has started a thread meanwhile."""
        if host.thread_count() != 1:
            self.start({}, has_kernels=has_kernels)
            return
        self.close()
        ours, theirs = _pair()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        if (pid := os.fork()) == 0:
            _serve(theirs.detach(), parent, has_kernels=has_kernels)
        theirs.close()
        self._own(pid, ours)

    def start(self, environment: Mapping[str, str], *, has_kernels: bool) -> None:
        """Start it as a fresh interpreter with these variables besides, and do not wait for it; nothing, if there is
        one that fits. A machine that refuses a process gets no error here: the job's own processes will."""
        here = host.FixedSurroundings.here(VARIABLES)
        if self._channel is not None and self._surroundings == here and not host.wait_readable([self._pidfd], 0):
            return
        self.close()
        ours, theirs = _pair()
        with theirs, contextlib.suppress(OSError):
            process = subprocess.Popen(
                [
                    *(sys.executable, *subprocess._args_from_interpreter_flags(), "-P", "-c"),  # type: ignore[attr-defined]
                    *(CODE.format(root=PACKAGE_ROOT), str(theirs.fileno()), str(os.getpid()), str(int(has_kernels))),
                ],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **environment, "OPENBLAS_NUM_THREADS": "1"},  # else numpy's import starts threads
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            process.returncode = 0  # we wait for it, not subprocess
            self._own(process.pid, ours)
            return
        ours.close()

    def _own(self, pid: int, channel: socket.socket) -> None:
        self._pid, self._pidfd, self._channel = pid, os.pidfd_open(pid), channel
        self._surroundings = host.FixedSurroundings.here(VARIABLES)
        atexit.unregister(self.close)
        atexit.register(self.close)

    def close(self) -> None:
        """End it, now; processes that it has forked go on."""
        if self._channel is not None:
            host.kill_by_pidfd(self._pidfd)
            os.close(self._pidfd)
            self._channel.close()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._channel, self._surroundings, self._is_ready = None, None, False

    # ---- a process

    def launch(self, start: Start) -> Forked:
        """Fork a child of this process that runs `entry.main(start)`. Raises CannotServe, or OSError if the machine
        refuses a process."""
        if self._channel is None:
            raise CannotServe("there is no fork server")
        if self._surroundings != host.FixedSurroundings.here(VARIABLES):
            self.close()
            raise CannotServe("the environment that libraries read, the user or the niceness has changed")
        try:
            self._await_ready()
            answer = self._ask(start)
        except (OSError, ValueError, CannotServe) as error:
            self._bury_unknown()
            self.close()
            raise CannotServe(
                f"the fork server has ended: {error}" if isinstance(error, OSError) else str(error)
            ) from error
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        if "refused" in answer:
            raise CannotServe(answer["refused"])
        self._children.add(answer["started"])
        return Forked(answer["started"])

    def _await_ready(self) -> None:
        if not self._is_ready and self._receive(READY_S) is not None:
            self._is_ready = True

    def _ask(self, start: Start) -> dict[str, Any]:
        assert self._channel is not None
        with contextlib.ExitStack() as stack:
            words = os.memfd_create("hogwild-request")
            stack.callback(os.close, words)
            os.write(words, json.dumps({"start": asdict(start), **host.own_surroundings()}).encode())
            folder = os.open(".", os.O_PATH)  # also one that was removed while we are in it
            stack.callback(os.close, folder)
            descriptors = [words, folder, *(getattr(start, name) for name in DESCRIPTORS)]
            stack.enter_context(host.adopting())
            self._channel.sendmsg([b"fork"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])
            return self._receive(ANSWER_S)

    def _receive(self, limit_s: float) -> dict[str, Any]:
        assert self._channel is not None
        until = time.monotonic() + limit_s
        while not host.wait_readable([self._channel.fileno()], LOOK_MS):
            if time.monotonic() > until or host.is_stopped(self._pid):
                raise CannotServe("the fork server does not answer")
        content = self._channel.recv(1 << 16)
        if not content:
            raise CannotServe("the fork server has ended")
        answer: dict[str, Any] = json.loads(content)
        return answer

    def _bury_unknown(self) -> None:
        """Kill a child that was forked for a request of which no answer came: nobody would ever wait for it."""
        host.kill_by_pidfd(self._pidfd)
        host.wait_readable([self._pidfd], ANSWER_S * 1000)  # it forks no more
        for pid in host.children(os.getpid()):
            if pid not in self._children and pid != self._pid and host.process_name(pid) in NAMES:
                host.kill_and_reap(pid, ANSWER_S)


SERVER = ForkServer()


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


# ---- the server's side ----------------------------------------------------------------------------------------------


def main(channel: str, parent: str, has_kernels: str) -> NoReturn:
    """Import what workers import, then serve. The entry of a fresh interpreter."""
    host.die_with_parent(int(parent))
    with contextlib.suppress(Exception):  # a broken installation: the workers, fresh interpreters then, say so
        import workers.child.dispatch  # noqa: F401

        _serve(int(channel), int(parent), has_kernels=has_kernels == "1")
    os._exit(1)


def _serve(number: int, parent: int, *, has_kernels: bool) -> NoReturn:
    """Fork for every request until the supervisor has closed its end. Never returns: below it, in a fork of a command,
    is the command's own stack."""
    try:
        host.die_with_parent(parent)
        number = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)  # a command without standard streams has low ones
        host.let_go(number)
        host.name_process(SERVER_NAME)
        sys.modules["__main__"], sys.argv = types.ModuleType("__main__"), ["hogwild-worker"]
        if has_kernels:
            from workers.child.entry import load_numba

            load_numba()
        channel = socket.socket(fileno=number)
        gc.collect()
        gc.freeze()  # a later collection would copy every page that the children share
        channel.send(json.dumps({"ready": True}).encode())
        while True:
            select.select([channel], [], [])
            content, descriptors, _, _ = socket.recv_fds(channel, 16, 2 + len(DESCRIPTORS))
            if not content:
                break
            channel.send(json.dumps(_forked(parent, descriptors)).encode())
            for descriptor in descriptors:
                os.close(descriptor)
    finally:
        os._exit(0)


def _forked(parent: int, descriptors: Sequence[int]) -> dict[str, Any]:
    """Fork a child of `parent`; return its number, or why there is none."""
    if host.thread_count() != 1:
        return {"refused": f"the fork server has {host.thread_count()} threads"}
    read, write = os.pipe()
    try:
        between = os.fork()
        if between == 0:
            _between(parent, descriptors, write)
        os.close(write)
        answer = os.read(read, 8)
        os.waitpid(between, 0)
    except OSError as error:
        return {"errno": error.errno}
    finally:
        os.close(read)
    number = int.from_bytes(answer, "little", signed=True)
    return {"started": number} if number > 0 else {"errno": -number}


def _between(parent: int, descriptors: Sequence[int], write: int) -> NoReturn:
    number = -1
    try:
        host.name_process(CHILD_NAME)
        number = os.fork()
        if number == 0:
            _become(parent, descriptors)
    except OSError as error:
        number = -(error.errno or 1)
    os.write(write, number.to_bytes(8, "little", signed=True))
    os._exit(0)


def _become(parent: int, descriptors: Sequence[int]) -> NoReturn:
    """Take over the supervisor's surroundings, and be a process of the job."""
    try:
        host.await_parent(parent)
        words, folder, *given = descriptors
        request = json.loads(os.pread(words, os.fstat(words).st_size, 0))
        os.fchdir(folder)
        host.close_all_but(given)
        host.take_over(request)
        sys.path[:] = [PACKAGE_ROOT, *(one for one in sys.path if one != PACKAGE_ROOT)]
        values = request["start"] | dict(zip(DESCRIPTORS, given, strict=True))
        environment = tuple((name, value) for name, value in values["environment"])
        _limit_threads(dict(environment))
        random.seed()
        _be_known_to_multiprocessing(parent, values["lifeline"])
        from workers.child import entry

        entry.main(replace(Start(**values), environment=environment))
    finally:
        os._exit(1)


def _be_known_to_multiprocessing(parent: int, lifeline: int) -> None:
    """Let user code that asks multiprocessing hear what a process that it has started itself hears."""
    module: Any = multiprocessing.process
    own: Any = multiprocessing.get_context("spawn").Process(name="hogwild-worker")
    own._parent_pid = parent
    module._current_process, module._children = own, set()
    module._parent_process = module._ParentProcess("MainProcess", parent, lifeline)


def _limit_threads(environment: Mapping[str, str]) -> None:
    """Do what libraries do with these variables when they are loaded: they are loaded already."""
    import numpy as np
    import torch

    np.random.seed()  # torch's generator begins the same in every process, numpy's does not
    if (threads := environment.get("OMP_NUM_THREADS")) is not None:
        torch.set_num_threads(int(threads))
