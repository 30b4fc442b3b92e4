"""A process that has imported torch and hogwild, and forks a supervisor for each job that a test starts.

    test ── argv, folder, environment, descriptors 0 1 2 ──► zygote ── fork ──► `python run.py …`
         ◄── number, later the wait status ────────────────

Importing torch takes two seconds of processor time, and the suite starts hundreds of jobs. The zygote has no threads,
has computed nothing and opened nothing, so a fork of it is what a fresh interpreter is after its imports. Workers are
spawned by the supervisor as ever. Tests of the start itself (imports, signals in between, variables that a runtime
reads when it is loaded) start a real interpreter (`can_become`).

`python -m tests.helpers.zygote DESCRIPTOR` is the zygote."""

import array
import atexit
import gc
import json
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from hogwild import host

HOME = Path(__file__).resolve().parents[2]
LONGEST = 1 << 20  # bytes of a request


class Forked:
    """One forked process, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, zygote: "Zygote", argv: Sequence[str], pid: int, stdin: IO[str] | None) -> None:
        self.args, self.pid, self.stdin = [sys.executable, *argv], pid, stdin
        self.returncode: int | None = None
        self._zygote = zygote

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._zygote.status_of(self.pid, 0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._zygote.status_of(self.pid, left)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)  # the zygote reaps it only when it reports, and `poll` has just asked

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Zygote:
    """The test's side. One for each process that runs tests; started at the first job."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
        with theirs:
            environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.zygote", str(theirs.fileno())],
                cwd=HOME,
                env=environment | {"PYTHONPATH": str(HOME)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._socket = ours
        self._ended: dict[int, int] = {}
        atexit.register(self.close)

    def start(
        self, argv: Sequence[str], folder: Path, environment: Mapping[str, str], descriptors: Sequence[int]
    ) -> int:
        """Fork a process that runs `python ARGV`. Returns its number."""
        limits = {name: resource.getrlimit(name) for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)}
        inherited = {"cores": [*os.sched_getaffinity(0)], "limits": limits}
        request = json.dumps({"argv": [*argv], "cwd": str(folder), "env": dict(environment), **inherited}).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        self._socket.sendmsg([request], rights)
        while True:
            answer = self._receive(None)
            assert answer is not None, "the zygote is gone"
            if "started" in answer:
                return int(answer["started"])

    def status_of(self, pid: int, timeout_s: float | None) -> int | None:
        """The exit status of a forked process, negative for a signal; None while it runs."""
        while pid not in self._ended and self._receive(timeout_s) is not None:
            pass
        return self._ended.get(pid)

    def _receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        ready, _, _ = select.select([self._socket], [], [], timeout_s)
        if not ready:
            return None
        content = self._socket.recv(LONGEST)
        assert content, "the zygote is gone"
        answer: dict[str, Any] = json.loads(content)
        if "ended" in answer:
            self._ended[answer["ended"]] = answer["status"]
        return answer

    def close(self) -> None:
        self._socket.close()
        self.process.wait(10)


_zygote: Zygote | None = None
_AT_IMPORT = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
# Variables that a runtime or the interpreter reads when it is loaded: the zygote is loaded already.
# (What scikit-learn and torch set themselves, for whoever comes after them, is no wish of a test.)
SET_BY_LIBRARIES = {"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"}
READ_AT_START = ("OMP_", "KMP_", "GOMP_", "MKL_", "LD_", "PYTHON", "MALLOC_", "TORCH", "CUDA", "LC_", "LANG")
# Tests of what happens until the imports are done.
OF_THE_START = (
    "test_early_signals.py",
    "test_early_start.py",
    "test_parent_death.py",
    "test_startup_imports.py",
    "test_threads.py",
    "test_cpu_plan.py",
)


def _test_file() -> str:
    return Path(os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]).name


def can_become(environment: Mapping[str, str]) -> bool:
    """Whether a fork of the zygote would be what a process with this environment is."""
    if _test_file() in OF_THE_START or environment.get("PYTHONPATH") != str(HOME):
        return False
    names = {name for name in (*environment, *os.environ) if name.startswith(READ_AT_START)}
    return all(environment.get(name) == _AT_IMPORT.get(name) for name in names - {"PYTHONPATH"} - SET_BY_LIBRARIES)


def end() -> None:
    """The next job gets a zygote of its own: this process has changed what a child inherits (its mount namespace)."""
    global _zygote
    if _zygote is not None:
        _zygote.close()
        atexit.unregister(_zygote.close)
        _zygote = None


def children_but_helpers() -> list[int]:
    """Children of this process, without the zygote and multiprocessing's own tracker."""
    from multiprocessing import resource_tracker

    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)  # type: ignore[attr-defined]
    ours = {tracker, _zygote.process.pid if _zygote else None}
    return [pid for pid in host.children(os.getpid()) if pid not in ours]


def fork(argv: Sequence[str], folder: Path, environment: Mapping[str, str], out: int, err: int, stdin: bool) -> Forked:
    """Start `python ARGV` in `folder`; `stdin`: through a pipe, whose other end is the result's `stdin`."""
    global _zygote
    _zygote = _zygote or Zygote()
    theirs, ours = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY), -1)
    try:
        pid = _zygote.start(argv, folder, environment, [theirs, out, err])
    finally:
        os.close(theirs)
    return Forked(_zygote, argv, pid, os.fdopen(ours, "w") if stdin else None)


# ---- the zygote's side ----------------------------------------------------------------------------------------------


def serve(channel: socket.socket) -> None:
    """Fork for every request, and report every end, until the test's side is closed."""
    children: dict[int, int] = {}  # pidfd -> number
    while True:
        ready, _, _ = select.select([channel, *children], [], [])
        for pidfd in [one for one in children if one in ready]:
            pid = children.pop(pidfd)
            _, status = os.waitpid(pid, 0)
            os.close(pidfd)
            channel.send(json.dumps({"ended": pid, "status": os.waitstatus_to_exitcode(status)}).encode())
        if channel in ready:
            content, descriptors, _, _ = socket.recv_fds(channel, LONGEST, 3)
            if not content:
                return
            if (pid := os.fork()) == 0:
                for pidfd in children:
                    os.close(pidfd)
                channel.close()
                _become(json.loads(content), descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            children[os.pidfd_open(pid)] = pid
            channel.send(json.dumps({"started": pid}).encode())


def _become(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """Run the request as a fresh interpreter would. Does not return."""
    import numpy as np

    for standard, descriptor in enumerate(descriptors):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.sched_setaffinity(0, request["cores"])
    for name, limit in request["limits"].items():
        resource.setrlimit(int(name), limit)
    np.random.seed()  # torch's generator begins the same in every process, numpy's does not
    status = 1
    try:
        program, *rest = request["argv"]
        if program == "-m":
            sys.argv, sys.path[0] = rest, request["cwd"]
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = request["argv"], str(Path(program).parent)
            runpy.run_path(program, run_name="__main__")
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    import torch  # noqa: F401

    import workers.execution
    import workers.run  # noqa: F401

    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as end:
        os.set_inheritable(end.fileno(), False)
        serve(end)
    os._exit(0)
