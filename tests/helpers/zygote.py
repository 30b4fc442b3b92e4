"""A process that has imported torch and hogwild, and forks the commands that tests start.

    test       ── argv, environment, descriptors, … ──► zygote       ── fork ──► `python run.py …`, a supervisor
    supervisor ── argv, environment, descriptors, … ──► a fork of it ── fork twice ──► a command, the supervisor's child

Importing torch takes two seconds of processor time, and the suite starts hundreds of jobs. The zygote has no threads,
has computed nothing and opened nothing, so a fork of it is what a fresh interpreter is after its imports. Workers are
forked by the job's own fork server, as everywhere (`workers/processes/fork_server.py`). A child that a command starts
(`check --deep`, a trial of `plan --measure`, the fork server of `hogwild.train`) must be the child of the process that
asked, which waits for it: the process in between ends at once, and an orphan's next parent is the nearest subreaper
above it (prctl(2)).

Tests of the start itself (imports, signals in between, variables that a runtime reads when it is loaded) start real
interpreters (`OF_THE_START`, `can_become`), and so does `make stress`, everywhere.

`python -m tests.helpers.zygote DESCRIPTOR` is the zygote."""

import array
import atexit
import contextlib
import ctypes
import fcntl
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
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from hogwild import host
from hogwild.service.environment import MARK as JOB_MARK
from tests.helpers.processes import IS_THOROUGH, MARK

HOME = Path(__file__).resolve().parents[2]
LONGEST = 1 << 20  # bytes of a request
MOST_DESCRIPTORS = 64
PR_SET_CHILD_SUBREAPER = 36
NO_MARK = "-" * 32
FORK_SERVER = "workers.processes.fork_server"
OURS = {("-P", "-c")}  # how `check --deep`, `doctor`, `chaos`, trials and fork servers are started


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
            with contextlib.suppress(ProcessLookupError):  # it has ended since, and the zygote has reaped it
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class Zygote:
    """The side of the process that asks: a test's, or a supervisor's that was forked itself. Started at the first
    request of a process that runs tests."""

    def __init__(self, channel: socket.socket, pid: int) -> None:
        self._socket, self.pid = channel, pid
        self._ended: dict[int, int] = {}

    @classmethod
    def start(cls) -> "Zygote":
        """Start a fresh interpreter, the child of this process."""
        ours, theirs = _pair()
        with theirs:
            environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.helpers.zygote", str(theirs.fileno())],
                cwd=HOME,
                env=environment | {"PYTHONPATH": str(HOME), MARK: NO_MARK},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        process.returncode = 0  # `close` waits for it
        return cls(ours, process.pid)

    @classmethod
    def fork_another(cls) -> "Zygote":
        """Fork one from this process, which is a fork of a zygote and has done nothing yet."""
        ours, theirs = _pair()
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            host.die_with_parent(parent)
            ours.close()
            serve(theirs)
            os._exit(0)
        theirs.close()
        return cls(ours, pid)

    def command(
        self, argv: Sequence[str], folder: Path, environment: Mapping[str, str], descriptors: Sequence[int]
    ) -> int:
        """Fork a process that runs `python ARGV`, the zygote's child. Returns its number."""
        return self._ask({"argv": [*argv], "cwd": str(folder), "env": dict(environment)}, descriptors)

    def child(
        self,
        argv: Sequence[str],
        descriptors: Mapping[int, int],
        environment: Mapping[str, str] | None = None,
        folder: str = ".",
        new_session: bool = False,
    ) -> int:
        """Fork a child of this process that runs `python ARGV` and inherits what a spawned one does. `descriptors`: its
        number -> the one here, besides the standard ones. Returns its number."""
        given = {number: number for number in (0, 1, 2) if _is_open(number)} | dict(descriptors)
        sources = list(given.values())
        inherited = {
            "argv": [*argv],
            "env": dict(os.environ if environment is None else environment),
            "parent": os.getpid(),
            "descriptors": list(given),
            "new_session": new_session,
            "ignored": [s for s in signal.valid_signals() if signal.getsignal(s) is signal.SIG_IGN],
            "blocked": [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        }
        with contextlib.ExitStack() as stack:
            sources.append(os.open(folder, os.O_PATH))  # also of a folder that was removed while we are in it
            stack.callback(os.close, sources[-1])
            prctl = ctypes.CDLL(None).prctl
            prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            stack.callback(prctl, PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            return self._ask(inherited, sources)

    def _ask(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        names = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)
        limits = {name: resource.getrlimit(name) for name in names}
        content = json.dumps({**request, "cores": [*os.sched_getaffinity(0)], "limits": limits}).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        self._socket.sendmsg([content], rights)
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
        os.waitpid(self.pid, 0)


def _pair() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
    return ours, theirs


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


_zygote: Zygote | None = None
_AT_IMPORT = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
# Variables that a runtime or the interpreter reads when it is loaded: the zygote is loaded already.
# (What scikit-learn and torch set themselves, for whoever comes after them, is no wish of a test.)
SET_BY_LIBRARIES = {"KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"}
READ_AT_START = ("OMP_", "KMP_", "GOMP_", "MKL_", "LD_", "PYTHON", "MALLOC_", "TORCH", "CUDA", "LC_", "LANG")
# Tests, files of them or single ones, of what happens until the imports are done, or depends on them.
OF_THE_START = (
    "test_a_users_own_packages_in_the_current_folder_do_not_replace_ours",
    "test_doctor.py",  # looks at the interpreter
    "test_early_signals.py",
    "test_early_start.py",
    "test_a_parent_killed_in_its_first_seconds_leaves_no_child",
    "test_a_process_of_two_threads_is_never_forked",
    "test_startup_imports.py",
    "test_compiled_model.py",  # the key of inductor's cache holds what was imported
    "test_cpu_plan.py",
)


def can_become(environment: Mapping[str, str]) -> bool:
    """Whether a fork of the zygote would be what a process with this environment is."""
    file, _, test = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")
    is_of_the_start = {Path(file).name, test.split("[")[0].split(" ")[0]} & {*OF_THE_START}
    # The mark of a service's job is read from the first lines of its process (/proc/PID/environ).
    if is_of_the_start or IS_THOROUGH or JOB_MARK in (*environment, *os.environ):
        return False
    names = {name for name in (*environment, *os.environ) if name.startswith(READ_AT_START)}
    return all(environment.get(name) == _AT_IMPORT.get(name) for name in names - {"PYTHONPATH"} - SET_BY_LIBRARIES)


def end() -> None:
    """The next job gets a zygote of its own: this process has changed what a child inherits (its mount namespace)."""
    global _zygote
    if _zygote is not None:
        atexit.unregister(_zygote.close)
        _zygote.close()
        _zygote = None


def children() -> list[int]:
    """Children of this process, without the zygote."""
    return [pid for pid in host.children(os.getpid()) if _zygote is None or pid != _zygote.pid]


def children_but_helpers() -> list[int]:
    """The same without multiprocessing's own tracker, which stays for as long as a process runs tests."""
    from multiprocessing import resource_tracker

    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)  # type: ignore[attr-defined]
    return [pid for pid in children() if pid != tracker]


def fork(argv: Sequence[str], folder: Path, environment: Mapping[str, str], out: int, err: int, stdin: bool) -> Forked:
    """Start `python ARGV` in `folder`; `stdin`: through a pipe, whose other end is the result's `stdin`."""
    zygote = own()
    theirs, ours = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY), -1)
    try:
        pid = zygote.command(argv, folder, environment, [theirs, out, err])
    finally:
        os.close(theirs)
    return Forked(zygote, argv, pid, os.fdopen(ours, "w") if stdin else None)


def own() -> Zygote:
    """Return the zygote of this process; start it if there is none."""
    global _zygote
    if _zygote is None:
        _zygote = Zygote.start()
        atexit.register(_zygote.close)
    return _zygote


def fork_children() -> None:
    """Fork, from now on, the commands in OURS, which subprocess would start as fresh interpreters, where that is the
    same."""
    fork_exec = subprocess._fork_exec  # type: ignore[attr-defined]

    def fork_or_exec(args: Sequence[Any], *rest: Any) -> int:
        _, close_fds, keep, cwd, env, p2cread, _, _, c2pwrite, _, errwrite, _, errpipe, _, new_session, *special = rest
        program, *argv = [os.fsdecode(argument) for argument in args]
        environment = {**os.environ} if env is None else dict(os.fsdecode(one).split("=", 1) for one in env)
        is_plain = close_fds and special[:-1] == [-1, None, None, None, -1, None]  # group, users, umask, preexec_fn
        if FORK_SERVER in " ".join(argv[:3]):  # what it forks sets its threads itself
            environment = {name: value for name, value in environment.items() if not name.endswith("_NUM_THREADS")}
        is_ours = program == sys.executable and (tuple(argv[:2]) in OURS or argv[:1] == [str(HOME / "run.py")])
        if not (is_plain and is_ours and can_become(environment)):
            return int(fork_exec(args, *rest))
        standard = {number: one for number, one in enumerate((p2cread, c2pwrite, errwrite)) if one != -1}
        passed = {one: one for one in keep if one != errpipe}
        return own().child(argv, standard | passed, environment, cwd or ".", new_session)

    subprocess._fork_exec = fork_or_exec  # type: ignore[attr-defined]


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
            content, descriptors, _, _ = socket.recv_fds(channel, LONGEST, MOST_DESCRIPTORS)
            if not content:
                return
            request = json.loads(content)
            if "parent" in request:
                pid = _fork_for_its_parent(request, descriptors)
            elif (pid := os.fork()) == 0:
                _become(request, dict(enumerate(descriptors)))
            else:
                children[os.pidfd_open(pid)] = pid
            for descriptor in descriptors:
                os.close(descriptor)
            channel.send(json.dumps({"started": pid}).encode())


def _fork_for_its_parent(request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    """Fork a child of the process that asks. Returns its number."""
    read, write = os.pipe()
    if (between := os.fork()) == 0:
        if (pid := os.fork()) == 0:
            while os.getppid() != request["parent"]:
                os.sched_yield()
            *numbers, folder = descriptors
            os.fchdir(folder)
            _become(request, dict(zip(request["descriptors"], numbers, strict=True)))
        os.write(write, pid.to_bytes(4, "little"))
        os._exit(0)
    os.close(write)
    pid = int.from_bytes(os.read(read, 4), "little")
    os.close(read)
    os.waitpid(between, 0)
    return pid


def _become(request: Mapping[str, Any], descriptors: Mapping[int, int]) -> None:
    """Run the request as a fresh interpreter would, with `descriptors` (number -> the one it is now) and no others.
    Does not return."""
    import numpy as np

    _inherit(descriptors)
    _open_standard_streams()
    _write_mark(request["env"].get(MARK, NO_MARK))
    os.environ.clear()
    os.environ.update(request["env"])
    if "cwd" in request:
        os.chdir(request["cwd"])
    os.sched_setaffinity(0, request["cores"])
    for name, limit in request["limits"].items():
        resource.setrlimit(int(name), limit)
    if "ignored" in request:
        _take_signals(request["ignored"], request["blocked"])
    if request.get("new_session"):
        os.setsid()
    np.random.seed()  # torch's generator begins the same in every process, numpy's does not
    status = 1
    try:
        _fork_children_too()
        _run(request["argv"])
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


def _run(argv: Sequence[str]) -> None:
    """Do what `python ARGV` does after its start."""
    if argv[0] == "-P":
        del sys.path[0]
        argv = argv[1:]
    else:
        sys.path[0] = "" if argv[0] == "-c" else os.getcwd() if argv[0] == "-m" else str(Path(argv[0]).parent)
    if argv[0] == "-c":
        sys.argv, sys.modules["__main__"] = ["-c", *argv[2:]], types.ModuleType("__main__")
        exec(argv[1], vars(sys.modules["__main__"]))
    elif argv[0] == "-m":
        sys.argv = [*argv[1:]]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [*argv]
        runpy.run_path(argv[0], run_name="__main__")


def _inherit(descriptors: Mapping[int, int]) -> None:
    above = max(descriptors, default=2) + 1
    now = {number: fcntl.fcntl(one, fcntl.F_DUPFD, above) for number, one in descriptors.items()}
    for one in [int(name) for name in os.listdir("/proc/self/fd")]:
        if one not in now.values():
            with contextlib.suppress(OSError):  # the folder's own
                os.close(one)
    for number, one in now.items():
        os.dup2(one, number)
        os.close(one)


def _open_standard_streams() -> None:
    """Make the streams of what is there now: one that was made for a file seeks, which a pipe cannot."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        if _is_open(number) and (old := getattr(sys, name)) is not None:
            stream = open(number, "w", encoding=old.encoding, errors=old.errors, closefd=False)  # noqa: SIM115
            stream.reconfigure(line_buffering=number == 2 or stream.isatty())
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)  # replaced only by notebooks, as our code sees it


def _write_mark(mark: str) -> None:
    """Write the mark of a test into the environment that others see in /proc: the memory that exec filled."""
    start, end = [int(field) for field in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[47:49]]
    offset = ctypes.string_at(start, end - start).index(f"{MARK}=".encode()) + len(MARK) + 1
    ctypes.memmove(start + offset, mark.encode(), len(NO_MARK))


def _take_signals(ignored: Sequence[int], blocked: Sequence[int]) -> None:
    """Handle signals as an interpreter does that was started by a process which ignores and blocks these."""
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        as_usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        is_ignored = number in ignored or number in (signal.SIGPIPE, signal.SIGXFSZ)
        signal.signal(number, signal.SIG_IGN if is_ignored else as_usual)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _fork_children_too() -> None:
    """Give this process, a supervisor or another command, a zygote of its own."""
    global _zygote
    _zygote = Zygote.fork_another()
    fork_children()


if __name__ == "__main__":
    import torch  # noqa: F401

    sys.modules["tests.helpers.zygote"] = sys.modules["__main__"]
    import workers.child.dispatch
    import workers.execution
    import workers.run  # noqa: F401

    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as end:
        os.set_inheritable(end.fileno(), False)
        serve(end)
    os._exit(0)
