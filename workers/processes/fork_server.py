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
take over (`host.FixedSurroundings`). The death of the server disturbs no process that runs.

A server may also fork commands, `python ARGV`: jobs of the service (`job_server.py`). It was started as a fresh
interpreter with the variables that libraries and the interpreter read when they are loaded, so the fork is what a fresh
interpreter with the command's environment is after its imports."""

import array
import atexit
import contextlib
import errno
import gc
import importlib
import itertools
import json
import multiprocessing
import multiprocessing.process
import multiprocessing.spawn
import multiprocessing.util
import os
import random
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from multiprocessing import resource_tracker
from pathlib import Path
from subprocess import _args_from_interpreter_flags as _flags  # type: ignore[attr-defined]
from typing import Any, NoReturn

from hogwild import host
from hogwild.monitoring.run_status import ServerSnapshot
from hogwild.planning.cpu_plan import VARIABLES
from hogwild.version import PACKAGE_ROOT
from hogwild.workers.child.entry import load_kernels, redirect_to_memory, without_collecting
from hogwild.workers.messages import Start

ANSWER_S = 5.0  # for a fork; it takes milliseconds
READY_S = 60.0  # for the import of torch
LOOK_MS = 100
NUMBER_BYTES = 8  # of a process
MOST_DESCRIPTORS = 16
DESCRIPTORS = ("lease_read", "ack_write", "channel", "lifeline", "words")  # of a `Start`, in this order
ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1"}  # else the import of numpy starts threads
KEY_BYTES = 32
COMMAND_NAME = "hogwild-command"  # of the process
MODULES = (  # of commands, besides those of workers
    "hogwild.cli.main",
    "hogwild.cli.runs",
    "hogwild.host.other_jobs",
    "hogwild.workers.execution",
    "hogwild.workers.run",
)
CATALOGS = ("hogwild.data", "hogwild.models")  # whose classes a command may need: 55 ms, 5 MB
SERVER_NAME, CHILD_NAME = "hogwild-server", "hogwild-child"  # of processes
NAMES = (SERVER_NAME, CHILD_NAME, COMMAND_NAME)
MODULE = "hogwild.workers.processes.fork_server"
CODE = f"import sys; sys.path.insert(0, {{root!r}}); from {MODULE} import main; main(*sys.argv[1:])"


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """`python ARGV`, with what `subprocess.Popen` is told besides. `descriptors`: number there -> the one here."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    descriptors: Mapping[int, int]
    folder: str = "."
    new_session: bool = False


class CannotServe(Exception):
    """The server cannot make this process, a fresh interpreter can: the message says why."""


class Forked:
    """One forked process, with the part of `multiprocessing.Process` that a `Handle` uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None  # as last asked for

    @property
    def exitcode(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs, or if other code has reaped it."""
        if self.status is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status

    def close(self) -> None:
        """Nothing is held."""


class ForkServer:
    """The supervisor's side. Main thread only."""

    def __init__(self) -> None:
        self.why = ""  # the last process was a fresh interpreter
        self._kernels = ""  # of the present job, as JSON (`entry.load_kernels`)
        self._why_never = ""  # no server of this process can serve
        self._channel: socket.socket | None = None
        self._pidfd = -1
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Have none: in a fork of this process it is the parent's, which sees its end by our copy of the socket."""
        channel, pidfd = self._channel, self._pidfd
        self._channel, self._pid, self._pidfd = None, -1, -1
        if channel is not None:
            channel.close()
            os.close(pidfd)
        self._is_ready = False
        self._surroundings: host.FixedSurroundings | None = None
        self._known = weakref.WeakSet[Forked]()

    @property
    def pid(self) -> int | None:
        return self._pid if self._channel is not None else None

    def snapshot(self, memory: Mapping[int, int]) -> ServerSnapshot | None:
        """Return it for a display. `memory`: PSS by pid, in bytes, as last measured."""
        if self._channel is None:
            return None
        states = {None: "ended", "zombie": "ended", "stopped": "stopped", "tracing-stop": "stopped"}
        state = states.get(host.process_status(self._pid), "waiting" if self._is_ready else "importing")
        return ServerSnapshot(self._pid, state, memory.get(self._pid))

    # ---- its start and its end

    def fork(self, *, kernels: str) -> None:
        """Fork it from this process, a command that has imported torch and nothing else; start a fresh interpreter, if
        something has started a thread meanwhile. A machine that refuses a process gets no error here: the job's own
        processes will."""
        self._kernels = kernels
        if self._why_never:
            return
        if host.thread_count() != 1:
            self.start({}, kernels=kernels)
            return
        self.close()
        parent = os.getpid()
        with contextlib.suppress(OSError):
            ours, theirs = _pair()
            with theirs, contextlib.ExitStack() as stack:
                stack.callback(ours.close)
                if (pid := os.fork()) == 0:
                    try:
                        _serve(_detached(theirs.detach()), parent, kernels=kernels)
                    finally:
                        os._exit(1)  # else there would be two supervisors
                self._own(pid, ours, fixed_surroundings(None))
                stack.pop_all()

    def start(self, environment: Mapping[str, str], *, kernels: str, for_commands: bool = False) -> None:
        """Start it as a fresh interpreter with these variables besides, and do not wait for it; nothing, if there is
        one that fits. A machine that refuses a process gets no error here. `for_commands`: it will fork commands, and
        these are all their variables."""
        self._kernels = kernels
        if self._why_never:
            return
        here = fixed_surroundings(environment if for_commands else None)
        if self._channel is not None and self._surroundings == here and not host.wait_readable([self._pidfd], 0):
            return
        self.close()
        program: str | None = multiprocessing.spawn.get_executable()
        if program is None:  # an embedded interpreter
            return
        with contextlib.suppress(OSError):
            ours, theirs = _pair()
            with theirs, contextlib.ExitStack() as stack:
                stack.callback(ours.close)
                process = subprocess.Popen(
                    [
                        *(program, *([] if for_commands else _flags()), "-P", "-c"),
                        *(CODE.format(root=PACKAGE_ROOT), str(theirs.fileno()), str(os.getpid()), kernels),
                        str(int(for_commands)),
                    ],
                    pass_fds=[theirs.fileno()],
                    env={**({} if for_commands else os.environ), **environment} | ONE_BLAS_THREAD,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                process.returncode = 0  # we wait for it, not subprocess
                self._own(process.pid, ours, here)
                stack.pop_all()

    def _own(self, pid: int, channel: socket.socket, surroundings: host.FixedSurroundings) -> None:
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:  # no descriptor left
            channel.close()  # which ends it
            os.waitpid(pid, 0)
            raise
        self._pid, self._channel = pid, channel
        self._surroundings = surroundings
        atexit.unregister(self.close)
        atexit.register(self.close)

    def close(self) -> None:
        """End it, now; processes that it has forked go on."""
        channel, pid, pidfd = self._channel, self._pid, self._pidfd
        self._channel, self._surroundings, self._is_ready = None, None, False
        if channel is not None:
            host.kill_by_pidfd(pidfd)
            host.wait_readable([pidfd], ANSWER_S * 1000)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            os.close(pidfd)
            channel.close()

    # ---- a process

    def launch(self, start: Start | PythonCommand) -> Forked:
        """Fork a child of this process that runs `entry.main(start)`, or a command. Raises CannotServe, or OSError if
        the machine refuses a process or a descriptor."""
        if self._channel is None or self._surroundings is None:
            raise CannotServe(self._why_never or "there is no fork server")
        environment = start.environment if isinstance(start, PythonCommand) else None
        if changed := self._surroundings.changed(fixed_surroundings(environment)):
            self.close()
            raise CannotServe(f"since the fork server began, {changed} changed, which a fork cannot take over")
        self._await_ready()
        with contextlib.ExitStack() as stack:
            descriptors = _request(start, self._kernels, stack)
            if not stack.enter_context(host.adopting()):
                raise CannotServe("the kernel lets this process adopt no orphans")
            try:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                self._channel.sendmsg([b"fork"], rights)
                answer = self._receive(ANSWER_S)
                if "started" in answer:
                    self.why = ""
                    try:
                        os.waitid(os.P_PID, answer["started"], os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    except ChildProcessError as error:  # a nearer subreaper
                        raise CannotServe("the fork server's child is another process's") from error
                    made = Forked(answer["started"])
                    self._known.add(made)
                    return made
            except BaseException as error:  # also one that a handler of a signal has raised
                self._bury()
                if isinstance(error, ConnectionError):
                    raise CannotServe("the fork server has ended") from error
                raise
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        raise CannotServe(answer["refused"])

    def _await_ready(self) -> None:
        """Wait until it has imported torch, for which a fresh interpreter takes as long."""
        try:
            if not self._is_ready:
                answer = self._receive(READY_S, is_interruptible=True)
                self._why_never = answer.get("refused", "")
                if self._why_never:
                    raise CannotServe(self._why_never)
                self._is_ready = True
        except InterruptedError as error:
            raise CannotServe("a signal came before the fork server was ready") from error
        except BaseException as error:
            self.close()
            if isinstance(error, ConnectionError):
                raise CannotServe(str(error)) from error
            raise

    def _receive(self, limit_s: float, *, is_interruptible: bool = False) -> dict[str, Any]:
        """Return its next message. Raises ConnectionError if it has ended, CannotServe if it does not answer, and
        InterruptedError if it `is_interruptible` by a stop signal, which callers have blocked."""
        assert self._channel is not None
        until = time.monotonic() + limit_s
        while not host.wait_readable([self._channel.fileno(), self._pidfd], LOOK_MS):
            if time.monotonic() > until or host.is_stopped(self._pid):
                raise CannotServe("the fork server does not answer")
            if is_interruptible and host.is_stop_pending():
                raise InterruptedError
        # Its children have copies of its end: the socket alone may not show that it has ended.
        if not host.wait_readable([self._channel.fileno()], 0) or not (content := self._channel.recv(1 << 16)):
            raise ConnectionResetError("the fork server has ended")
        answer: dict[str, Any] = json.loads(content)
        return answer

    def _bury(self) -> None:
        """End it, and a child that it has forked for a request of which no answer came: nobody would ever wait for
        it. This process is `adopting`."""
        host.kill_by_pidfd(self._pidfd)
        host.wait_readable([self._pidfd], ANSWER_S * 1000)  # it forks no more
        host.end_group_of_the_dead(self._pid)  # the process between, and the child until it leads a group
        until, unknown = time.monotonic() + ANSWER_S, True
        while unknown and time.monotonic() < until:  # each may leave us an orphan
            known = {self._pid, *(one.pid for one in self._known if one.status is None)}
            unknown = False
            for pid in host.children(os.getpid()):
                if pid not in known and host.process_name(pid) in NAMES:
                    host.kill_and_reap(pid, ANSWER_S)
                    unknown = True
        self.close()


SERVER = ForkServer()


def _pair() -> tuple[socket.socket, socket.socket]:
    """Return two ends, whose numbers are no standard streams': a process that is started gets others there."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        return tuple(socket.socket(fileno=host.above_standard(end.fileno())) for end in (ours, theirs))  # type: ignore[return-value]


def _request(start: Start | PythonCommand, kernels: str, stack: contextlib.ExitStack) -> list[int]:
    """Return the descriptors of a request: its words, the folder, and those of a command, or that of multiprocessing's
    resource tracker and those of `start`. `stack` closes what is opened for it."""
    folder = os.open(start.folder if isinstance(start, PythonCommand) else ".", os.O_PATH)  # also one that was removed
    stack.callback(os.close, folder)
    request: dict[str, Any] = {"surroundings": host.own_surroundings()}
    if isinstance(start, PythonCommand):
        request["surroundings"]["environment"] = dict(start.environment)
        told = {"argv": [*start.argv], "numbers": [*start.descriptors], "new_session": start.new_session}
        request["command"] = {**told, "group": os.getpgrp()}
        given = [*start.descriptors.values()]
    else:
        request |= {"start": asdict(start), "multiprocessing": _multiprocessing_here(), "kernels": kernels}
        tracker: Any = resource_tracker
        given = [tracker.getfd(), *(getattr(start, name) for name in DESCRIPTORS)]
    words = os.memfd_create("hogwild-request")
    stack.callback(os.close, words)
    content = json.dumps(request).encode()
    if os.write(words, content) != len(content):
        raise CannotServe("a limit on the size of files (RLIMIT_FSIZE) is less than the environment")
    return [words, folder, *given]


def _multiprocessing_here() -> dict[str, Any]:
    """Return what multiprocessing tells a process that it starts by spawning, as its `spawn.prepare` takes it, and the
    process's identity."""
    util: Any = multiprocessing.util
    new: Any = multiprocessing.get_context("spawn").Process(name="hogwild-worker")
    told = {
        "name": new.name,
        "identity": new._identity,
        "authkey": bytes(new.authkey).hex(),
        "log_to_stderr": util._log_to_stderr,
        "sys_path": [PACKAGE_ROOT, *(one for one in sys.path if isinstance(one, str) and one != PACKAGE_ROOT)],
        "sys_argv": ["hogwild-worker"],
        "start_method": "spawn",  # as in every process that was started so
    }
    return told | ({} if util._logger is None else {"log_level": util._logger.getEffectiveLevel()})


# ---- the server's side ----------------------------------------------------------------------------------------------


def main(channel: str, parent: str, kernels: str, for_commands: str) -> NoReturn:
    """Import what workers import, then serve. The entry of a fresh interpreter. Garbage is collected meanwhile: else
    the places that are free lie scattered, and each fork writes into, and copies, 4 MB more."""
    host.die_with_parent(int(parent))
    _interpreter.path, _interpreter.streams = sys.path[1:], host.stream_forms()
    number = _detached(int(channel))
    with contextlib.suppress(Exception):  # a broken installation: the workers, fresh interpreters then, say so
        importlib.import_module("hogwild.workers.child.build")
        if for_commands == "1":
            for module in MODULES:
                importlib.import_module(module)
            for module in CATALOGS:
                catalog = importlib.import_module(module)
                for name in catalog.__all__:
                    getattr(catalog, name)  # imports its module
        _serve(number, int(parent), kernels=kernels)
    os._exit(1)


def _detached(channel: int) -> int:
    """Hold nothing of the supervisor's but this socket; return its number now."""
    number = host.let_go(channel)
    resource_tracker._resource_tracker._fd = resource_tracker._resource_tracker._pid = None  # type: ignore[attr-defined]
    host.name_process(SERVER_NAME)
    sys.modules["__main__"], sys.argv = types.ModuleType("__main__"), ["hogwild-worker"]
    return number


def _serve(number: int, parent: int, *, kernels: str) -> None:
    """Fork for every request until the supervisor has closed its end. Never returns: below it, in a fork of a command,
    is the command's own stack."""
    try:
        host.die_with_parent(parent)
        os.environ.update(ONE_BLAS_THREAD)  # numba loads scipy's; a child takes over the supervisor's environment
        with without_collecting():
            load_kernels(kernels)
            import torch

            importlib.import_module("hogwild.workers.child.build")
            from hogwild.host.thread_pools import pools

        pools()  # finds the libraries by walking over folders; a child inherits what is known of them
        _interpreter.threads = torch.get_num_threads()
        torch.set_num_threads(1)  # starts none; most workers have one
        channel = socket.socket(fileno=number)
        if (threads := host.thread_count()) != 1:  # sitecustomize, or an allocator, has started some
            channel.send(json.dumps({"refused": f"the fork server has {threads} threads after its imports"}).encode())
            return
        gc.collect()  # else free places lie scattered, and each fork writes into, and copies, 4 MB more
        gc.freeze()  # a later collection would copy every page that the children share
        gc.enable()  # for them: a command is forked while it does not collect
        channel.send(json.dumps({"ready": True}).encode())
        while True:
            host.wait_readable([number], None)
            content, descriptors, flags, _ = socket.recv_fds(channel, 16, MOST_DESCRIPTORS)
            if not content:
                break
            channel.send(json.dumps(_forked(parent, descriptors, flags, kernels)).encode())
            for descriptor in descriptors:
                os.close(descriptor)
    finally:
        os._exit(0)


def _forked(parent: int, descriptors: Sequence[int], flags: int, kernels: str) -> dict[str, Any]:
    """Fork a child of `parent`; return its number, or why there is none. `kernels`: those of all commands."""
    if flags & socket.MSG_CTRUNC:
        return {"errno": errno.EMFILE}
    if "numba" in sys.modules:  # kernels that were not compiled yet when the server began, or those of another job
        load_kernels(_asked(descriptors).get("kernels", kernels))
    if host.thread_count() != 1:
        return {"refused": f"the fork server has {host.thread_count()} threads"}
    try:
        read, write = os.pipe()
    except OSError as error:
        return {"errno": error.errno}
    try:
        between = os.fork()
        if between == 0:
            _between(parent, descriptors, write)
    except OSError as error:
        os.close(write)
        os.close(read)
        return {"errno": error.errno}
    os.close(write)
    answer = os.read(read, NUMBER_BYTES)
    os.close(read)
    os.waitpid(between, 0)
    if not answer:
        raise RuntimeError("the process between was killed")  # perhaps there is a child: the supervisor looks for it
    number = int.from_bytes(answer, "little", signed=True)
    return {"started": number} if number > 0 else {"errno": -number}


def _asked(descriptors: Sequence[int]) -> dict[str, Any]:
    words: dict[str, Any] = json.loads(os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0))
    return words


def _between(parent: int, descriptors: Sequence[int], write: int) -> NoReturn:
    number = -1
    try:
        host.name_process(CHILD_NAME)
        host.block_signals()  # the server ignores them: one to the child would be lost
        number = os.fork()
        if number == 0:
            _become(parent, descriptors)
    except OSError as error:
        number = -(error.errno or 1)
    os.write(write, number.to_bytes(NUMBER_BYTES, "little", signed=True))
    os._exit(0)


def _become(parent: int, descriptors: Sequence[int]) -> NoReturn:
    """Take over the supervisor's surroundings, and be a process of the job."""
    try:
        request, (folder, *given) = _asked(descriptors), descriptors[1:]
        if "command" in request:
            host.await_parent(parent, host.pidfd_open(parent))
            become(request, folder, given)
        tracker, *given = given
        start = Start(**request["start"] | dict(zip(DESCRIPTORS, given, strict=True)))
        start = replace(start, environment=tuple((name, value) for name, value in start.environment))
        redirect_to_memory(os.dup(start.words))  # the supervisor shows what is said there
        host.await_parent(parent, start.lifeline)
        os.fchdir(folder)
        host.close_all_but({tracker, *given})
        host.take_over(request["surroundings"])
        _be_known_to_multiprocessing(parent, start.lifeline, request["multiprocessing"])
        resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
        for place in [one for one, finder in sys.path_importer_cache.items() if finder is None]:
            del sys.path_importer_cache[place]  # it may be there now
        # Do what libraries do with these variables when they are loaded: they are loaded already.
        import torch

        threads = int(dict(start.environment).get("OMP_NUM_THREADS", 1))
        if threads != 1 or torch.get_num_threads() != 1:
            from hogwild.host.thread_pools import set_threads

            set_threads(threads)
        seed_generators()
        from hogwild.workers.child import entry

        entry.main(start)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _be_known_to_multiprocessing(parent: int, lifeline: int, told: dict[str, Any]) -> None:
    """Let user code that asks multiprocessing hear what a process that it has started itself hears."""
    module: Any = multiprocessing.process
    own: Any = multiprocessing.get_context("spawn").Process()
    own._parent_pid, own._identity = parent, tuple(told.pop("identity"))
    module._current_process, module._children, module._process_counter = own, set(), itertools.count(1)
    module._parent_process = module._ParentProcess("MainProcess", parent, lifeline)
    multiprocessing.spawn.prepare(told | {"authkey": bytes.fromhex(told["authkey"])})


def fixed_surroundings(environment: Mapping[str, str] | None) -> host.FixedSurroundings:
    """Return what a server must have begun with to fork commands with this environment; None: a job's processes."""
    if environment is None:
        return host.FixedSurroundings.here(VARIABLES)
    return host.FixedSurroundings.here((), environment)


@dataclass(slots=True)
class _Interpreter:
    """Choices that the interpreter has made at its start."""

    path: list[str] = field(default_factory=list)
    streams: dict[str, dict[str, Any]] = field(default_factory=dict)
    threads: int = 0  # of torch, by its own choice


_interpreter = _Interpreter()


def usual_threads() -> int:
    """Return the threads that torch would have in this process; 0 if it is no fork of a server: it has them."""
    return _interpreter.threads


def become(request: Mapping[str, Any], folder: int, given: Sequence[int]) -> NoReturn:
    """Run the command as a fresh interpreter would, in this folder, with the descriptors `given` and no others."""
    command, surroundings, status = request["command"], request["surroundings"], 1
    try:
        for error_stream in (one for number, one in zip(command["numbers"], given, strict=True) if number == 2):
            os.dup2(error_stream, 2)  # for an exception on the way
        os.fchdir(folder)
        if command["new_session"]:
            os.setsid()
        else:
            os.setpgid(0, command["group"])
        host.place_descriptors(dict(zip(command["numbers"], given, strict=True)))
        host.open_streams(_interpreter.streams, is_unbuffered=bool(surroundings["environment"].get("PYTHONUNBUFFERED")))
        host.name_process(COMMAND_NAME)
        host.show_command([sys.executable, *command["argv"]], surroundings["environment"])
        host.take_over(surroundings)
        # The random state, the key and the folder of temporary files are those of a process that has loaded its
        # libraries itself. The number of threads is not set: that would start some, and the command forks a server.
        multiprocessing.current_process().authkey = os.urandom(KEY_BYTES)
        seed_generators()
        tempfile.tempdir = None
        run_python(command["argv"])
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(status & 0xFF)


def run_python(argv: Sequence[str]) -> None:
    """Do what `python ARGV` does after its start: [-P] -c CODE, -m MODULE or a file, with arguments."""
    sys.orig_argv = [sys.executable, *argv]
    is_safe = argv[0] == "-P"
    kind, *rest = argv = argv[1:] if is_safe else argv
    first = "" if kind == "-c" else os.getcwd() if kind == "-m" else str(Path(kind).parent)
    sys.path[:] = [*([] if is_safe else [first]), *_interpreter.path]
    if kind == "-c":
        sys.argv, sys.modules["__main__"] = ["-c", *rest[1:]], types.ModuleType("__main__")
        exec(rest[0], vars(sys.modules["__main__"]))
    elif kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [*argv]
        runpy.run_path(kind, run_name="__main__")


def seed_generators() -> None:
    """Seed the generators that begin differently in each process, in a fork: Python's, and numpy's, where that is
    loaded already. torch's begins the same everywhere."""
    random.seed()
    if (loaded := sys.modules.get("numpy.random")) is not None:
        loaded.seed()
