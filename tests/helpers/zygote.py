"""Commands that tests start, as forks of a fork server: importing torch takes two seconds of processor time, and the
suite starts hundreds of jobs. Their start is the product's (`workers/processes/fork_server.py`), as that of a job of
the service; this file only says which ones.

`fork_children` lets `subprocess` fork our own commands, here and in each of them, which has a server of its own.
Tests of the start itself (imports, signals in between, variables that a runtime reads when it is loaded) start real
interpreters (`OF_THE_START`, `is_same`), and so does `make stress`, everywhere."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hogwild import host
from hogwild.workers.processes import fork_server
from hogwild.workers.processes.fork_server import CannotServe, Forked
from hogwild.workers.processes.job_server import CommandServer
from tests.helpers.processes import IS_THOROUGH

HOME = Path(__file__).resolve().parents[2]
FORK_SERVER = "hogwild.workers.processes.fork_server"
OURS = ("-P", "-c")  # how `check --deep`, `doctor`, `chaos`, trials and fork servers are started
RUN = ("-c", "from tests.helpers.zygote import run; run()")
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

_server = CommandServer()
_made: list[Forked] = []  # the server's children that it is to know
_one_at_a_time, _its_start = threading.Lock(), threading.Lock()


def own() -> None:
    """Start the server of this process, if there is none."""
    if _server.pid is None and _its_start.acquire(blocking=False):  # which comes by here
        try:
            _server.start(_plain(os.environ), kernels="", for_commands=True)
        finally:
            _its_start.release()


def end() -> None:
    """The next command gets a server of its own: this process has changed what a child inherits (its mounts)."""
    _server.close()


def children() -> list[int]:
    """Children of this process, without the server."""
    return [pid for pid in host.children(os.getpid()) if pid != _server.pid]


def children_but_helpers() -> list[int]:
    """The same without multiprocessing's own tracker, which stays for as long as a process runs tests."""
    from multiprocessing import resource_tracker

    tracker = getattr(resource_tracker._resource_tracker, "_pid", None)  # type: ignore[attr-defined]
    return [pid for pid in children() if pid != tracker]


def fork_children() -> None:
    """Fork, from now on, our own commands, which subprocess would start as fresh interpreters, where that is the
    same."""
    fork_exec = subprocess._fork_exec  # type: ignore[attr-defined]

    def fork_or_exec(args: Sequence[Any], *rest: Any) -> int:
        _, close_fds, keep, cwd, env, p2cread, _, _, c2pwrite, _, errwrite, _, errpipe, _, new_session, *special = rest
        program, *argv = [os.fsdecode(argument) for argument in args]
        environment = {**os.environ} if env is None else dict(os.fsdecode(one).split("=", 1) for one in env)
        is_plain = close_fds and special[:-1] == [-1, None, None, None, -1, None]  # group, users, umask, preexec_fn
        if _is_fork_server(argv):  # what it forks sets its threads itself
            environment = _plain(environment)
        if is_plain and program == sys.executable and _is_ours(argv) and is_same(environment):
            standard = {number: number for number in (0, 1, 2) if _is_open(number)}
            standard |= {number: one for number, one in enumerate((p2cread, c2pwrite, errwrite)) if one != -1}
            passed = {one: one for one in keep if one != errpipe}
            command = fork_server.PythonCommand(
                [*RUN, *argv], _with_path(environment), standard | passed, cwd or ".", bool(new_session)
            )
            with _one_at_a_time:
                try:
                    _made.append(_server.launch(command))
                    return _made[-1].pid
                except CannotServe:
                    pass
        return int(fork_exec(args, *rest))

    subprocess._fork_exec = fork_or_exec  # type: ignore[attr-defined]


def is_same(environment: Mapping[str, str]) -> bool:
    """Whether a fork would be what a process with this environment is."""
    file, _, test = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")
    is_of_the_start = {Path(file).name, test.split("[")[0].split(" ")[0]} & {*OF_THE_START}
    own()
    has_our_path = environment.get("PYTHONPATH", str(HOME)) == str(HOME)
    return not is_of_the_start and not IS_THOROUGH and has_our_path and _server.fits(_with_path(environment))


def run() -> None:
    """Run `python ARGV` in a fork; its own commands are forks, too. A fork server has none, and lets go of all."""
    if not _is_fork_server(sys.argv[1:]):
        _server.fork(kernels="")
        fork_children()
    fork_server.run_python(sys.argv[1:])


def _is_ours(argv: Sequence[str]) -> bool:
    """Whether it imports at its start what the server has: `run.py`, a child of it, or a helper of the tests."""
    is_helper = argv[0] == "-m" and argv[1].startswith("tests.helpers.")
    return is_helper or tuple(argv[:2]) == OURS or argv[0] == str(HOME / "run.py")


def _is_fork_server(argv: Sequence[str]) -> bool:
    return FORK_SERVER in " ".join(argv[:3])


def _plain(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what sets the number of threads."""
    return _with_path({name: value for name, value in environment.items() if not name.endswith("_NUM_THREADS")})


def _with_path(environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "PYTHONPATH": str(HOME)}


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
