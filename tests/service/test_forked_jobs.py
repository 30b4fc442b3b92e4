"""A job is a fork of the service's fork server, and is what a fresh interpreter is; the server may end at any time."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from hogwild import host
from hogwild.service.folders import MARK as JOB_MARK
from hogwild.workers.processes import job_server
from hogwild.workers.processes.fork_server import COMMAND_NAME, SERVER_NAME
from hogwild.workers.processes.job_server import JobServer
from tests.helpers.jobs import HOME
from tests.helpers.processes import state_of, wait_for
from tests.helpers.service import LONG, SMALL, Service

pytestmark = pytest.mark.processes
ENDED = ("succeeded", "failed", "cancelled", "paused")


@pytest.fixture
def server() -> Iterator[JobServer]:
    made = JobServer()
    yield made
    made.close()


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    return {**kept, "PYTHONPATH": str(HOME), **more}


def started(server: JobServer, given: Mapping[str, str]) -> None:
    wait_for("the server", lambda: not server.is_starting(given))


def server_of(service: Service) -> int | None:
    assert service.process is not None
    named = [pid for pid in host.children(service.process.pid) if host.process_name(pid) == SERVER_NAME]
    return max(
        (pid for pid in named if state_of(pid) != "Z"), default=None
    )  # beside the one that tests fork commands from


# ---- a fork is what a fresh interpreter is --------------------------------------------------------------------------

SAYS = """
import atexit, json, os, resource, signal, sys, tempfile, threading
from pathlib import Path
proc = Path("/proc/self")
status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
lines = ("PPid", "Uid", "Gid", "Groups", "Umask", "Cpus_allowed_list", "SigBlk", "SigIgn", "SigCgt", "Threads")
streams = [sys.stdin, sys.stdout, sys.stderr]
atexit.register(print, "the last word", flush=True)
threading.Timer(0.05, print, ["a thread", sys.argv[-1]]).start()
print(json.dumps({
    "status": {name: status[name].strip() for name in lines},
    "files": [(proc / name).read_text() for name in ("cmdline", "environ", "limits", "oom_score_adj", "cgroup")],
    "descriptors": {int(one.name): os.readlink(one) for one in (proc / "fd").iterdir() if one.exists()},
    "handlers": [str(signal.getsignal(one)) for one in signal.valid_signals()],
    "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
    "folder": os.getcwd(), "temporary": tempfile.gettempdir(), "environment": dict(os.environ),
    "argv": [sys.argv, sys.orig_argv], "path": sys.path, "flags": str(sys.flags),
    "streams": [[one.encoding, one.errors, one.line_buffering, one.write_through, one.fileno()] for one in streams],
    "niceness": os.nice(0), "cores": sorted(os.sched_getaffinity(0)), "exit": sys.exc_info()[0],
}))
print("said", file=sys.stderr)
sys.exit(int(sys.argv[1]) if sys.argv[1].isdecimal() else sys.argv[1])
"""


def test_a_fork_is_what_a_fresh_interpreter_is_field_by_field(server: JobServer, tmp_path: Path) -> None:
    """Changes after the server has started are taken over; a second fork has its own."""
    started(server, environment())
    (tmp_path / "temporary").mkdir()
    given = environment(TMPDIR=str(tmp_path / "temporary"), **{JOB_MARK: "x@y"})
    mask, cores = os.umask(0o027), os.sched_getaffinity(0)
    former = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        os.sched_setaffinity(0, {min(cores)})
        for code in ("0", "7", "words", "300"):
            argv = ["-P", "-c", SAYS, code, "größe"]
            found = [run(way, argv, given, tmp_path) for way in (forked(server), fresh)]
            (forked_status, out, err), (fresh_status, fresh_out, fresh_err) = found
            assert (forked_status, err) == (fresh_status, fresh_err)
            first, *rest = out.splitlines()
            fresh_first, *fresh_rest = fresh_out.splitlines()
            assert rest == fresh_rest == ["a thread größe", "the last word"]
            assert json.loads(first) == json.loads(fresh_first)
    finally:
        os.umask(mask)
        os.sched_setaffinity(0, cores)
        signal.signal(signal.SIGUSR2, former)


Way = Callable[[list[str], Mapping[str, str], Path, list[int]], Callable[[], int | None]]


def forked(server: JobServer) -> Way:
    def start(argv: list[str], given: Mapping[str, str], folder: Path, standard: list[int]) -> Callable[[], int | None]:
        started(server, given)
        made = server.fork(argv, given, str(folder), standard)
        assert made is not None, server.why
        pid, status = made
        pidfd = host.pidfd_open(pid)
        assert host.wait_readable([pidfd], 60_000)
        os.close(pidfd)
        return status

    return start


def fresh(argv: list[str], given: Mapping[str, str], folder: Path, standard: list[int]) -> Callable[[], int | None]:
    """`preexec_fn`: the tests' own way to fork commands leaves it alone."""
    stdin, stdout, stderr = standard
    return subprocess.Popen(
        [sys.executable, *argv],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=folder,
        env=given,
        start_new_session=True,
        preexec_fn=lambda: None,
    ).wait


def run(way: Way, argv: list[str], given: Mapping[str, str], folder: Path) -> tuple[int | None, str, str]:
    with open(os.devnull) as null, open(folder / "out", "w") as out, open(folder / "err", "w") as err:
        status = way(argv, given, folder, [null.fileno(), out.fileno(), err.fileno()])()
    return status, (folder / "out").read_text(), (folder / "err").read_text()


def test_a_signal_in_the_first_moment_of_a_fork_is_not_lost(server: JobServer, tmp_path: Path) -> None:
    given = environment()
    started(server, given)
    with open(os.devnull, "r+") as null:
        for _ in range(20):
            made = server.fork(["-P", "-c", "import time; time.sleep(1000)"], given, "/", [null.fileno()] * 3)
            assert made is not None
            pid, status = made
            os.kill(pid, signal.SIGTERM)
            assert wait_for("its end", status) == -signal.SIGTERM


def test_a_folder_that_is_gone_and_an_exception_are_told_as_by_a_fresh_interpreter(
    server: JobServer, tmp_path: Path
) -> None:
    given = environment()
    started(server, given)
    with open(os.devnull, "r+") as null, pytest.raises(FileNotFoundError):
        server.fork(["-P", "-c", ""], given, str(tmp_path / "gone"), [null.fileno()] * 3)
    argv = ["-P", "-c", "def f(): raise ValueError('7')\nf()"]
    status, out, err = run(forked(server), argv, given, tmp_path)
    assert (status, out) == (1, "") and "ValueError: 7" in err


# ---- when there is none ---------------------------------------------------------------------------------------------


@contextmanager
def folder_of_code(patch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "hogwild"
        (package / "deep").mkdir(parents=True)
        (package / "linked").symlink_to(Path(folder) / "workers")
        (Path(folder) / "workers" / "deep").mkdir(parents=True)
        (Path(folder) / "workers" / "deep" / "file.py").write_text("before")
        patch.setattr(job_server, "PACKAGE", package)
        yield Path(folder)


@pytest.mark.parametrize("change", ["write", "add", "remove"])
def test_a_job_is_a_fresh_interpreter_once_the_code_on_disk_is_not_what_the_service_has_imported(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with folder_of_code(monkeypatch) as folder:
        server = JobServer()
        file = folder / "workers" / "deep" / "file.py"
        if change == "write":
            file.write_text("after")
        elif change == "add":
            file.with_name("new.py").touch()
        else:
            file.unlink()
        assert not server.is_starting(environment()) and "has changed" in server.why
        assert server.fork([], {}, "/", [0, 1, 2]) is None and not server.descriptors()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"OMP_PROC_BIND": "close"}, "OpenMP"),
        ({"PYTHONPATH": "lib"}, "PYTHONPATH"),
        ({"PYTHONPATH": "/a:b"}, "PYTHONPATH"),
    ],
)
def test_variables_that_a_fork_could_not_follow_are_named(given: dict[str, str], words: str) -> None:
    server = JobServer()
    assert not server.is_starting({**os.environ, **given}) and words in server.why


def test_a_job_whose_variables_are_read_at_an_import_gets_a_server_of_its_own(
    server: JobServer, tmp_path: Path
) -> None:
    started(server, environment())
    first = server._server.pid
    started(server, environment(HOGWILD_ANYTHING="1"))
    assert server._server.pid == first
    other = environment(OMP_STACKSIZE="4M")
    assert server.is_starting(other) and server._server.pid != first
    assert not server.is_starting(environment()) and "other variables" in server.why
    started(server, other)
    assert run(forked(server), ["-P", "-c", "import os; print(os.environ['OMP_STACKSIZE'])"], other, tmp_path)[:2] == (
        0,
        "4M\n",
    )


def test_a_server_that_ends_while_it_imports_is_made_up_for_at_once(server: JobServer) -> None:
    assert server.is_starting(environment())
    assert server._server.pid is not None
    os.kill(server._server.pid, signal.SIGKILL)
    started(server, environment())
    assert server.why == "the fork server ended while it imported" and server.fork([], {}, "/", [0, 1, 2]) is None
    assert server.is_starting(environment()), "the next job has another one"


def test_what_became_this_processs_child_during_a_fork_is_reaped(server: JobServer) -> None:
    stray = subprocess.Popen(["true"])
    wait_for("its end", lambda: state_of(stray.pid) == "Z")
    server._strays.append(stray.pid)
    server.is_starting(environment())
    assert state_of(stray.pid) is None and server._strays == []
    stray.returncode = 0


# ---- the service ----------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_job_of_the_service_is_a_fork_and_its_child_with_its_mark(service: Service) -> None:
    row = service.start().submit(*LONG)
    pid = service.wait_for_state(row["id"], "running")["pid"]
    assert service.process is not None
    assert (host.process_name(pid), pid in host.children(service.process.pid)) == (COMMAND_NAME, True)
    assert str(service.state.job(row["id"]).run) in host.command_line(pid)
    assert f"\0{JOB_MARK}=".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    (event,) = [one for one in service.events(row["id"]) if one["event"] == "started"]
    assert "fresh_interpreter" not in event
    server = server_of(service)
    assert server is not None
    service.kill()
    wait_for("the end of the server", lambda: state_of(server) is None)
    assert state_of(pid) in ("R", "S")
    service.start()
    assert service.client.job(row["id"])["pid"] == pid
    service.client.cancel(row["id"])
    assert service.wait_for_state(row["id"], *ENDED)["state"] == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_that_was_killed_or_stopped_keeps_no_job_from_running(service: Service, number: int) -> None:
    service.start()
    first = service.submit(*SMALL)
    assert service.wait_for_state(first["id"], *ENDED)["state"] == "succeeded"
    server = server_of(service)
    assert server is not None
    os.kill(server, number)
    wait_for("the signal", lambda: state_of(server) in ("T", "Z", None))
    second = service.submit(*SMALL)
    ended = service.wait_for_state(second["id"], *ENDED)
    assert (ended["state"], ended["exit_status"]) == ("succeeded", 0), ended
    third = service.submit(*SMALL)
    assert service.wait_for_state(third["id"], *ENDED)["state"] == "succeeded"
    whys = [one.get("fresh_interpreter") for row in (second, third) for one in service.events(row["id"])]
    said = [why for why in whys if why]
    assert len(said) == (number == signal.SIGSTOP), said
    assert all(f"is a fresh interpreter: {why}" in service.log() for why in said)
    assert server_of(service) not in (None, server)
