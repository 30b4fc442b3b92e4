"""Fixtures for tests that run whole jobs. `start_job` starts one; nothing of it survives
the test."""

import atexit
import gc
import multiprocessing.util
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from hogwild import host
from hogwild.data import locate
from tests.helpers import zygote
from tests.helpers.jobs import Job, start
from tests.helpers.predicting import Say, commands
from tests.helpers.processes import IS_THOROUGH

os.environ["HOGWILD_DEVICE_KINDS"] = "simulated=tests.helpers.simulated_gpu"  # here and in the children of tests

# `nohup make test &` in a script ignores them, here and in the children of tests.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _folder_for_kernels() -> Path:
    """Return the folder of compiled code, which the next run finds again: not the user's own, and nobody else's."""
    folder = Path(tempfile.gettempdir()) / f"hogwild-tests-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    is_ours = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    return folder if is_ours else Path(tempfile.mkdtemp(prefix="hogwild-tests-"))


os.environ["XDG_CACHE_HOME"] = str(_folder_for_kernels())
# Leases on cores: jobs of other tests, and of the user, would change the threads of ours.
os.environ["XDG_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="hogwild-leases-", dir=os.environ["XDG_CACHE_HOME"])
atexit.register(shutil.rmtree, os.environ["XDG_RUNTIME_DIR"], ignore_errors=True)

# A machine that does something else for a while makes no example wrong. In CI the examples are the same every time:
# what it says should be about the change, not about luck.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("patient"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "patient")


# ---- pure tests start no process ------------------------------------------------------------------------------------

_may_start = True
KEPT_S = 7 * 24 * 3600.0  # without use
_kernels: Path | None = None  # the folder of what is compiled in this process


def pytest_collection_finish() -> None:
    """Let later collections skip the some million objects of imports and test items."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with whole jobs come first: what takes longest must not begin last."""
    longest = {item.path for item in items if item.get_closest_marker("processes") is not None}
    items.sort(key=lambda item: item.path not in longest)


def _keep_kernels() -> None:
    """Let what the tests of this process compile be found by the next run: a folder for each process of a run, as two
    may not write into one. It is for these sources (`kernel_cache.fingerprint`); another run at the same time goes
    without."""
    global _kernels
    if (compiling := sys.modules.get("hogwild.kernels.compiling")) is None:
        return
    if _kernels is None:
        from hogwild.kernels.kernel_cache import fingerprint

        name = f"{fingerprint()}-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
        _kernels = Path(os.environ["XDG_CACHE_HOME"]) / "kernels-of-tests" / name
        _kernels.mkdir(parents=True, exist_ok=True)
        for other in _kernels.parent.iterdir():
            if time.time() - other.stat().st_mtime > KEPT_S:
                shutil.rmtree(other, ignore_errors=True)
        os.utime(_kernels)
        try:
            host.lock_file(_kernels / "lock")
        except BlockingIOError:
            _kernels = Path(tempfile.mkdtemp(prefix="kernels-of-tests-"))
    if compiling._folder != _kernels:
        compiling.keep_in(_kernels)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _may_start
    _keep_kernels()
    _may_start = item.get_closest_marker("processes") is not None
    if _may_start and not IS_THOROUGH:
        zygote.own()  # now: what a test counts before and after must not change by it
    yield
    _may_start = True


FONT_LISTS = ("fc-list",)  # matplotlib lists the fonts of a machine once, then keeps the list


def _refuse(event: str, arguments: tuple[Any, ...] = ()) -> None:
    if event == "subprocess.Popen" and arguments and arguments[0] in FONT_LISTS:
        return
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn") and not _may_start:
        raise RuntimeError(
            "this test starts a process: mark it with pytest.mark.processes (make test leaves those out)"
        )


def _spawn(*arguments: Any) -> Any:
    _refuse("os.fork")
    return _spawnv_passfds(*arguments)


sys.addaudithook(_refuse)
zygote.fork_children()
_spawnv_passfds = multiprocessing.util.spawnv_passfds  # it has no audit event
multiprocessing.util.spawnv_passfds = _spawn


@pytest.fixture(autouse=True)
def data_folder() -> Iterator[None]:
    """A command line that is run in this process with --data-dir means that folder from then on: not the next test."""
    yield
    locate.set_data_dir(None)


@pytest.fixture(autouse=True)
def no_warm_process() -> Iterator[None]:
    """The server that waits for a test's next `hogwild.train` ends with the test, and so does multiprocessing's
    tracker."""
    was_known = host.is_tracker_known()
    yield
    if (module := sys.modules.get("hogwild.workers.processes.fork_server")) is not None:
        module.SERVER.close()
        if host.is_tracker_known() and not was_known:
            host.stop_resource_tracker()


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """`helpers.predicting.commands`."""
    return commands(capsys)


@pytest.fixture(scope="module")
def jobs_folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder for the jobs of one test module."""
    return tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2])


@pytest.fixture(scope="module")
def start_shared_job() -> Iterator[Callable[..., Job]]:
    """`helpers.jobs.start` for fixtures of a whole module."""
    yield from _starting()


@pytest.fixture
def start_job() -> Iterator[Callable[..., Job]]:
    """`helpers.jobs.start`; what still runs at the end of the test is killed."""
    yield from _starting()


def _starting() -> Iterator[Callable[..., Job]]:
    started: list[Job] = []

    def begin(*arguments: object, **options: object) -> Job:
        started.append(start(*arguments, **options))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for job in started:
        job.destroy()
