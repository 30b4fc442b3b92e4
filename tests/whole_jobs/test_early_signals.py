"""A signal to stop before workers run, in whole commands: while modules are imported, a job file is read, user code is
imported, the job takes over, and while the process leaves.

No test depends on when its signal arrives: a `sitecustomize` holds the command at the import of one module until the
signal was taken, or sends it itself."""

import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from hogwild.monitoring.run_status import read_status
from tests.helpers.jobs import HOME, JOBS, RUN_PY, Job, environment
from tests.helpers.processes import PATIENCE_S, wait_for

pytestmark = pytest.mark.processes

CANCELLED = "cancelled; nothing was started\n"
ONE = "train.procs=1"
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
# What torch imports from compiled code, which goes on after an exception, and ours.
NUMPY, TORCH, TYPER, WORKERS = "numpy.matrixlib", "torch._C", "typer", "hogwild.workers.run"

# The first import of the module GATE waits until as many signals have been taken as SIGNALS says; `DIARY` tells how far
# it is. The interpreter's C handler writes a byte for each, which is no matter of who handles it, or how.
GATE = """
import os, select, signal, sys
from pathlib import Path

class Gate:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["GATE"]:
            sys.meta_path.remove(self)
            wait(Path(os.environ["DIARY"]), int(os.environ["SIGNALS"]))

def wait(diary, count):
    if "--multiprocessing-fork" in sys.orig_argv:  # a worker: it imports at the same time
        return
    try:
        (diary / "claimed").touch(exist_ok=False)
    except FileExistsError:
        return
    read, write = os.pipe2(os.O_NONBLOCK)
    former = signal.set_wakeup_fd(write)
    (diary / "reached").touch()
    try:
        for number in range(count):
            select.select([read], [], [])
            os.read(read, 1)
            (diary / f"taken-{number}").touch()
    finally:
        signal.set_wakeup_fd(former)

sys.meta_path.insert(0, Gate())
"""

# A Ctrl-C at the moment at which the supervisor begins to watch signals.
AT_HAND_OVER = """
import signal
set_wakeup_fd = signal.set_wakeup_fd

def interrupted(*arguments, **options):
    signal.set_wakeup_fd = set_wakeup_fd
    signal.raise_signal(signal.SIGINT)
    return set_wakeup_fd(*arguments, **options)

signal.set_wakeup_fd = interrupted
"""

USER_MODEL = """
import atexit, signal, time
from pathlib import Path
from torch import nn

def forever(sign):
    Path(sign).touch()
    while True:
        time.sleep(0.005)

class Endless(nn.Linear):
    def __init__(self):
        forever("building")

class LeavesSlowly(nn.Linear):
    def __init__(self):
        atexit.register(forever, "leaving")
        forever("building")

unlink = Path.unlink

def unlink_interrupted(self, *arguments, **options):
    signal.raise_signal(signal.SIGTERM)
    unlink(self, *arguments, **options)

class InterruptsTheUndoing(nn.Linear):
    def __init__(self):
        Path.unlink = unlink_interrupted
        signal.raise_signal(signal.SIGTERM)
"""

# What a compiled module may make of an exception in an import of its own.
USER_IMPORT = """
try:
    import gated
except BaseException:
    raise AttributeError("module 'gated' has no attribute 'matrix'") from None
"""


def console_script() -> str:
    """Return the code that the script of an installer runs (`[project.scripts]`)."""
    entry = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]["scripts"]["hogwild"]
    module, _, function = entry.partition(":")
    return f"import sys; from {module} import {function}; sys.exit({function}())"


@pytest.fixture
def begin(tmp_path: Path, start_job: Callable[..., Job]) -> Callable[..., Job]:
    """Starts a command held at the import of `gate`, or under another `sitecustomize`; what it says of its way is in
    tmp_path/diary, its current folder is tmp_path/job, which is empty but for its output."""

    def start(*arguments: str, gate: str = "", signals: int = 1, site: str = GATE, python: object = (RUN_PY,)) -> Job:
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "sitecustomize.py").write_text(site)
        (tmp_path / "diary").mkdir()
        extra = {
            "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{HOME}",
            "DIARY": str(tmp_path / "diary"),
            "GATE": gate,
            "SIGNALS": str(signals),
        }
        return start_job(tmp_path / "job", *arguments, python=python, extra=extra)

    return start


@pytest.fixture
def user_folder(tmp_path: Path) -> Path:
    """The current folder of the job, with user code in it."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "mymodel.py").write_text(USER_MODEL)
    (folder / "myimport.py").write_text(USER_IMPORT)
    (folder / "gated.py").write_text("")
    return folder


def sent_when(sign: Path, job: Job, number: int) -> None:
    """Sends the signal once the process has written `sign`."""
    wait_for(sign.name, lambda: sign.exists() or job.process.poll() is not None)
    assert sign.exists(), job.stderr()
    job.send(number)


def assert_cancelled(job: Job, status: int, said: str = CANCELLED) -> None:
    """The command ends with this status and these words alone, and leaves nothing."""
    ended = job.wait()
    assert (ended.status, ended.said, ended.stdout) == (status, said, "")
    assert {path.name for path in job.folder.iterdir()} == {"stdout.txt", "stderr.txt", "tmp"} and not ended.left_behind


# ---- while modules are imported -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("module", "number", "status"), [(NUMPY, *each) for each in SIGNALS] + [(TORCH, *SIGNALS[0])])
def test_a_signal_while_torch_is_imported_cancels_after_the_import(
    module: str, number: int, status: int, tmp_path: Path, begin: Callable[..., Job]
) -> None:
    job = begin("train.epochs=1", ONE, gate=module)
    wait_for("the import", (tmp_path / "diary" / "reached").exists)
    run = read_status(job.run_dir)
    assert (run.state, run.record["pid"]) == ("building", job.process.pid), "known before torch is there"
    job.send(number)
    assert_cancelled(job, status)


@pytest.mark.parametrize(
    ("first", "second", "status", "said"),
    [
        (signal.SIGINT, signal.SIGINT, 130, ""),
        (signal.SIGTERM, signal.SIGTERM, 143, ""),
        (signal.SIGINT, signal.SIGTERM, 143, ""),
        (signal.SIGHUP, signal.SIGINT, 130, ""),
        (signal.SIGHUP, signal.SIGHUP, 129, CANCELLED),  # a terminal that hangs up twice gives one order
    ],
)
def test_a_second_signal_while_torch_is_imported_ends_the_process_at_once_and_silently(
    first: int, second: int, status: int, said: str, tmp_path: Path, begin: Callable[..., Job]
) -> None:
    # After a second order a third signal never comes: the import does not go on.
    job = begin("train.epochs=1", ONE, gate=NUMPY, signals=2 if said else 3)
    sent_when(tmp_path / "diary" / "reached", job, first)
    sent_when(tmp_path / "diary" / "taken-0", job, second)
    assert_cancelled(job, status, said)


@pytest.mark.parametrize(("number", "status"), SIGNALS)
@pytest.mark.parametrize("python", [(RUN_PY,), ("-m", "hogwild"), ("-c", console_script())], ids=["run.py", "-m", "-c"])
def test_a_signal_while_the_command_line_itself_is_imported_is_no_traceback(
    python: tuple[str, ...], number: int, status: int, tmp_path: Path, begin: Callable[..., Job]
) -> None:
    job = begin("train.epochs=1", ONE, gate=TYPER, python=python)
    sent_when(tmp_path / "diary" / "reached", job, number)
    assert_cancelled(job, status)


@pytest.mark.parametrize(
    ("command", "module"),
    [
        (("check",), "pydantic"),
        (("show",), "pydantic"),
        (("schema",), "pydantic"),
        (("list", "models"), "hogwild.cli.catalog"),
        (("list", "configs"), "hogwild.config"),
        (("check", "--deep"), "hogwild.cli.plan"),
        (("train", "--dry-run"), WORKERS),
    ],
)
def test_every_command_is_cancelled_by_a_signal_during_its_imports(
    command: tuple[str, ...], module: str, tmp_path: Path, begin: Callable[..., Job]
) -> None:
    job = begin(*command, gate=module, python=("-m", "hogwild"))
    sent_when(tmp_path / "diary" / "reached", job, signal.SIGTERM)
    assert_cancelled(job, 143)


# ---- where a command may wait ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_a_signal_ends_the_reading_of_a_job_file_that_does_not_end(
    number: int, status: int, tmp_path: Path, begin: Callable[..., Job]
) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    job = begin("check", str(pipe), python=("-m", "hogwild"))
    writer = wait_for("a reader", lambda: opened_for_writing(pipe))
    job.send(number)
    ended = job.wait()
    os.close(writer)
    assert (ended.status, ended.said) == (status, CANCELLED)


def opened_for_writing(pipe: Path) -> int | None:
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # nobody reads it yet
        return None


def test_an_error_that_a_signal_leaves_in_an_import_of_user_code_is_not_blamed_on_it(
    user_folder: Path, tmp_path: Path, begin: Callable[..., Job]
) -> None:
    job = begin("model.class_path=myimport.Net", ONE, gate="gated")
    sent_when(tmp_path / "diary" / "reached", job, signal.SIGINT)
    ended = job.wait()
    assert (ended.status, ended.said) == (130, CANCELLED)
    assert not ended.run_dir.exists()


def test_a_ctrl_c_at_the_terminal_during_a_deep_check_is_answered_once(user_folder: Path) -> None:
    """It reaches the child that builds the model, too."""
    with subprocess.Popen(
        [sys.executable, "-m", "hogwild", "check", "--deep", "model.class_path=mymodel.Endless", "model.init_args={}"],
        cwd=user_folder,
        env=environment("deep", user_folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            wait_for("the constructor", (user_folder / "building").exists)
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert (process.returncode, err, out) == (130, CANCELLED, "")


# ---- while the process leaves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "status"), SIGNALS[:2])
def test_a_second_signal_while_exit_functions_run_ends_the_process_without_another_word(
    number: int, status: int, user_folder: Path, begin: Callable[..., Job]
) -> None:
    job = begin("model.class_path=mymodel.LeavesSlowly", ONE, "model.init_args={}")
    sent_when(user_folder / "building", job, number)
    sent_when(user_folder / "leaving", job, number)
    ended = job.wait()
    assert (ended.status, ended.said) == (status, CANCELLED)
    assert not ended.run_dir.exists()


def test_a_second_signal_while_the_first_is_answered_leaves_no_half_removed_run(
    user_folder: Path, begin: Callable[..., Job]
) -> None:
    ended = begin("model.class_path=mymodel.InterruptsTheUndoing", ONE, "model.init_args={}").wait()
    assert (ended.status, ended.said) == (143, CANCELLED)
    assert not ended.run_dir.exists()


# ---- the hand-over to the job ---------------------------------------------------------------------------------------


@pytest.mark.whole
@pytest.mark.parametrize("procs", [0, 1])
def test_a_signal_while_the_job_takes_over_is_its_first_one(procs: int, begin: Callable[..., Job]) -> None:
    ended = begin(str(JOBS / "counting.yaml"), f"train.procs={procs}", site=AT_HAND_OVER).wait()
    assert (ended.status, ended.reason) == (75, ("stopped", "SIGINT")), ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.left_behind


# ---- a library caller -----------------------------------------------------------------------------------------------

CALLER = """
import signal

def own(number, frame):
    pass

numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
for number in numbers:
    signal.signal(number, own)

import hogwild, hogwild.api, hogwild.cli.main, hogwild.__main__, hogwild.workers.run
assert [signal.getsignal(number) for number in numbers] == [own] * 3, "imported"

import torch
model = torch.nn.Linear(4, 1)
data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
assert hogwild.train(model, data, torch.nn.MSELoss(), optimizer, procs=0).state == "succeeded"
assert [signal.getsignal(number) for number in numbers] == [own] * 3, "trained"
assert signal.set_wakeup_fd(-1) == -1
"""


def test_a_library_caller_keeps_its_signal_handlers(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CALLER],
        cwd=tmp_path,
        env=environment("caller", tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
