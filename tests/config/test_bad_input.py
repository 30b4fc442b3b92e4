"""Bad input, as a table (`bad_input/table.py`): crime -> exit status, code and words. For each: no traceback of ours,
nothing on standard output, no run directory, no process, no half-written file.

What is found before a worker starts runs in this process, through the command line's own `run`; what needs workers,
signals or broken streams runs as a command. The users' modules are `bad_input/guilty.py` and a few broken ones."""

import contextlib
import gc
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.csv
import pytest
import torch
from torch import nn

import hogwild
from hogwild.cli import main
from hogwild.errors import BuildError, ConfigError, DataError, HogwildError, ModelError, OptimizerError, UsageError
from tests.bad_input import guilty
from tests.bad_input.table import TABLE, at, job, model, write_files
from tests.helpers.processes import MARK, PATIENCE_S, marked, wait_for
from tests.helpers.zygote import children_but_helpers

ROOT = Path(__file__).resolve().parents[2]
BROKEN = {
    "divides_by_zero": "1 / 0\n",
    "exits_when_imported": "import sys\nsys.exit(5)\n",
    "needs_a_library": "import a_library_nobody_has\n",
    "not_python": "def f(:\n",
}

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: job.yaml, his module, his broken modules, his damaged data."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copy(Path(guilty.__file__), folder)
    write_files(folder)
    pyarrow.csv.read_csv(io.BytesIO(b"a\n1\n"))  # its first use opens a pipe for as long as the process lives
    for name, text in BROKEN.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Inside it, as the command line would be; what is there at the end must have been there before."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("HOGWILD_DATA", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def content() -> list[Path]:  # a child that imports from here leaves byte code, which is Python's affair
        return sorted(path for path in folder.rglob("*") if "__pycache__" not in path.parts)

    before = content()
    descriptors = os.listdir("/proc/self/fd")
    yield folder
    assert content() == before
    if len(os.listdir("/proc/self/fd")) > len(descriptors):
        gc.collect()  # it may be a file that only an error's traceback still holds
    assert len(os.listdir("/proc/self/fd")) <= len(descriptors), "descriptors (of shared memory?) were left open"


SHOWN_CODE = re.compile(r" \[([a-z]+/[a-z-]+)\]$|^code ([a-z]+/[a-z-]+): ", re.MULTILINE)


def code_of(err: str) -> str:
    """The code that a person was shown; of several on the lines of one job file, that of the whole."""
    codes = {"".join(found) for found in SHOWN_CODE.findall(err)}
    return codes.pop() if len(codes) == 1 else ", ".join(sorted(codes)) and "config/invalid"


@pytest.mark.parametrize("crime", TABLE)
def test_a_bad_input_is_one_clear_error_with_its_status_its_code_and_its_place(
    crime: str, in_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = TABLE[crime]
    needs_a_folder = row.command[0] == "train" and not {"--resume", "--run-dir"} & {*row.command}
    found = main.run([*row.command, *(("--run-dir", str(tmp_path / "new/run")) if needs_a_folder else ())])
    shown = capsys.readouterr()
    assert (found, code_of(shown.err)) == (row.status, row.code), shown.err
    for word in row.words:
        assert word in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""
    assert [*tmp_path.iterdir()] == []
    assert children_but_helpers() == []


def full(path: Path) -> None:
    path.mkdir()
    (path / "precious").write_text("keep me")


PLACES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a file": (lambda path: path.write_text("keep me"), "run/dir-not-empty", "it is a file"),
    "not empty": (full, "run/dir-not-empty", "is not empty and not a run; nothing was written to it"),
    "a dangling link": (
        lambda path: path.symlink_to("nowhere/at/all"),
        "run/not-writable",
        "cannot make the run directory",
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_run_directory_that_cannot_be_one_is_an_error_and_stays_as_it_was(
    place: str, in_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare, code, words = PLACES[place]
    prepare(tmp_path / "run")
    before = [(path, path.is_file() and path.read_text()) for path in tmp_path.rglob("*")]
    assert main.run([*job(), "--run-dir", str(tmp_path / "run")]) == 1
    err = capsys.readouterr().err
    assert words in err
    assert code_of(err) == code
    assert [(path, path.is_file() and path.read_text()) for path in tmp_path.rglob("*")] == before


@pytest.mark.parametrize("run_dir", ["/proc/run", "/dev/null/run", "n" * 300])
def test_a_run_directory_that_cannot_be_made_is_an_error(
    run_dir: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run([*job(), "--run-dir", run_dir]) == 1
    err = capsys.readouterr().err
    assert "cannot make the run directory" in err
    assert code_of(err) == "run/not-writable"


def test_a_job_that_does_not_start_leaves_the_users_own_empty_folder(in_folder: Path, tmp_path: Path) -> None:
    assert main.run([*model("AllFrozen"), "--run-dir", str(tmp_path)]) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["abc", "0", "-3", "999999999999"])
def test_a_number_of_threads_that_is_none_is_a_usage_error(
    value: str, in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert main.run([*job(), "--run-dir", "run"]) == 2
    err = capsys.readouterr().err
    assert f"OMP_NUM_THREADS={value}: must be a whole number from 1 to 1024" in err
    assert code_of(err) == "usage/omp-threads"


# ---- the library ---------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., HogwildError]]:
    """hogwild.train with one thing changed; the error it raises. No run is left, and the model is not shared."""
    monkeypatch.chdir(tmp_path)
    net = guilty.Net()

    def call(**changes: object) -> HogwildError:
        good = {
            "model": net,
            "dataset": guilty.blobs(),
            "loss": nn.CrossEntropyLoss(),
            "optimizer": torch.optim.SGD(net.parameters(), lr=0.1),
        }
        with pytest.raises(HogwildError) as raised:
            hogwild.train(**{**good, "procs": 1, **changes})  # type: ignore[arg-type]
        return raised.value

    yield call
    assert list(tmp_path.iterdir()) == []
    assert not any(parameter.is_shared() for parameter in net.parameters())


def test_the_library_names_what_is_of_the_wrong_kind(calls: Callable[..., HogwildError]) -> None:
    net = guilty.Net()
    foreign, closure = torch.optim.SGD(guilty.Net().parameters(), lr=0.1), torch.optim.LBFGS(net.parameters())
    twice = {"batch_size": 4, "data": {"batch_size": 8}}
    table: list[tuple[dict[str, object], type[HogwildError], str, str]] = [
        ({"model": 3}, ModelError, "model/not-a-module", "the model is a int"),
        ({"dataset": None}, DataError, "data/no-length", "NoneType has no len()"),
        ({"loss": None}, BuildError, "model/loss-not-callable", "the loss is a NoneType"),
        ({"optimizer": None}, OptimizerError, "optimizer/not-one", "the optimizer is a NoneType"),
        ({"optimizer": foreign}, OptimizerError, "optimizer/foreign-parameters", "not a parameter of the model"),
        ({"model": net, "optimizer": closure}, OptimizerError, "optimizer/closure", "closure"),
        ({"val": {"fractoin": 0.2}}, ConfigError, "config/unknown-key", "did you mean 'fraction'?"),
        ({"epoch": 3}, ConfigError, "config/unknown-key", "did you mean 'epochs'?"),
        ({"procs": -1}, ConfigError, "config/out-of-range", "train.procs: must be auto or a whole number"),
        ({"checkpoint": 5}, ConfigError, "config/wrong-type", "checkpoint: must be a map"),
        (twice, ConfigError, "config/keyword", "data.batch_size: is given twice"),
        ({"optimizer_state": "both"}, ConfigError, "config/unknown-choice", "auto, private, shared"),
    ]
    for changes, kind, code, words in table:
        error = calls(**changes)
        assert (type(error), error.code) == (kind, code), f"{changes}: {error!r}"
        assert words in str(error)


def test_a_loss_that_cannot_be_pickled_is_an_error_naming_it(calls: Callable[..., HogwildError]) -> None:
    class Loss:
        lock = None

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(output, target)

    error = calls(loss=Loss())
    assert isinstance(error, ModelError)
    assert ".Loss) cannot be pickled for the workers" in str(error)
    assert "lock" in str(error)
    assert error.code == "model/not-picklable"


def test_a_call_from_another_thread_is_an_error_that_leaves_nothing(calls: Callable[..., HogwildError]) -> None:
    errors: list[HogwildError] = []
    thread = threading.Thread(target=lambda: errors.append(calls()))
    thread.start()
    thread.join(PATIENCE_S)
    assert isinstance(errors[0], UsageError)
    assert "main thread" in str(errors[0])
    assert errors[0].code == "usage/main-thread"


# ---- commands ------------------------------------------------------------------------------------------------------


@dataclass
class Command:
    """A command in the user's folder; its run directory is `run_dir`, its streams are files."""

    process: subprocess.Popen[bytes]
    run_dir: Path
    mark: str

    @property
    def out(self) -> str:
        return self.run_dir.with_suffix(".out").read_text()

    @property
    def err(self) -> str:
        return self.run_dir.with_suffix(".err").read_text(errors="replace")

    def status(self) -> int:
        """Waits; then nothing of it may be left: no process, no half-written file."""
        status = self.process.wait(PATIENCE_S)
        assert marked(self.mark) == {}
        assert [path for path in self.run_dir.rglob("*") if path.name.startswith(".tmp-")] == []
        return status

    def summary(self) -> dict[str, object]:
        return dict(json.loads((self.run_dir / "summary.json").read_text()))


@pytest.fixture
def command(folder: Path, tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts one; `shell` is put around it, e.g. a redirection. What still runs at the end is killed."""
    started: list[Command] = []

    def start(*changes: str, shell: str = 'exec "$@"') -> Command:
        run_dir = tmp_path / f"run-{len(started)}"
        mark = f"{tmp_path.name}-{len(started)}-{os.getpid()}"
        arguments = [sys.executable, str(ROOT / "run.py"), *job(*changes), "--run-dir", str(run_dir)]
        with open(run_dir.with_suffix(".out"), "wb") as out, open(run_dir.with_suffix(".err"), "wb") as err:
            process = subprocess.Popen(
                ["bash", "-c", shell, "bash", *arguments],
                cwd=folder,
                env={**os.environ, MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        started.append(Command(process, run_dir, mark))
        return started[-1]

    yield start
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait()
    for name in ("building", "swallowed", "evaluating", "finish"):
        (folder / name).unlink(missing_ok=True)


AT_WORK = {
    "exits in forward": ("model.class_path=guilty.ExitsInForward", "train/user-code", "SystemExit: 0"),
    "grows in forward": (
        "model.class_path=guilty.GrowsInForward",
        "model/gained-parameters",
        "create all of them in the constructor",
    ),
    "cannot be encoded": (
        "model.class_path=guilty.SaysWhatCannotBeEncoded",
        "train/user-code",
        "half a character: \\udcff",
    ),
    "raises in backward": (
        "model.class_path=guilty.RaisesInBackward",
        "train/user-code",
        at("no way back") + "\n\n",
    ),
    "raises in a loader, inside a library": (
        "data={feed: stream, train: {class_path: guilty.BelowALibrary, init_args: {how: x}}, batch_size: 8}",
        "data/item-raised",
        at("the line of a library") + "\n\n",
    ),
    "always NaN": ("loss.class_path=guilty.always_nan", "train/no-update", "no update was made"),
}


@pytest.mark.parametrize("crime", AT_WORK)
def test_what_shows_only_at_work_fails_the_job_with_its_words(crime: str, command: Callable[..., Command]) -> None:
    change, code, words = AT_WORK[crime]
    job = command(change, "--procs", "1")
    assert job.status() == 1
    assert words in job.err
    assert f"\ncode {code}: " in job.err
    assert f"failed: {job.err.partition('error: ')[2].splitlines()[0]}\n" in job.out
    assert job.summary()["state"] == "failed"
    assert words in str(job.summary()["error"])
    assert job.summary()["error_code"] == code
    assert json.loads((job.run_dir / "status.json").read_text())["error_code"] == code


def test_a_last_batch_of_one_is_merged_for_batch_norm_and_said_so(command: Callable[..., Command]) -> None:
    job = command("model.init_args.norm=true", "data.train.init_args.samples=17")
    assert job.status() == 0
    assert "it is merged into the one before (9 samples)" in job.err
    assert job.summary()["samples"] == 17
    assert job.summary()["updates"] == 2


@pytest.mark.parametrize("option", ["--run-dir", "--resume"])
def test_a_second_job_in_a_run_directory_is_refused_and_the_first_goes_on(
    option: str, in_folder: Path, command: Callable[..., Command], capsys: pytest.CaptureFixture[str]
) -> None:
    first = command("model.class_path=guilty.Waits", "train.epochs=20")
    wait_for("the first job's run", (first.run_dir / "resolved.yaml").exists)
    assert main.run([*(job() if option == "--run-dir" else ("train",)), option, str(first.run_dir)]) == 1
    assert f"is in use by another job, process {first.process.pid}" in capsys.readouterr().err
    assert first.process.poll() is None
    (in_folder / "finish").touch()
    assert first.status() == 0
    assert first.summary()["samples"] == 20 * 32


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_user_code_builds_cancels_and_leaves_nothing(
    sent: signal.Signals, status: int, folder: Path, command: Callable[..., Command]
) -> None:
    job = command("model.class_path=guilty.SlowToBuild")
    wait_for("the constructor", (folder / "building").exists)
    job.process.send_signal(sent)
    assert job.status() == status
    assert job.err.endswith("\ncancelled; nothing was started\n")
    assert not job.run_dir.exists()


def test_a_ctrl_c_that_user_code_swallows_counts_all_the_same(folder: Path, command: Callable[..., Command]) -> None:
    job = command("model.class_path=guilty.SwallowsCtrlC")
    wait_for("the constructor", (folder / "building").exists)
    job.process.send_signal(signal.SIGINT)
    assert job.status() == 130
    assert (folder / "swallowed").exists()
    assert not job.run_dir.exists()


def test_a_second_ctrl_c_does_not_wait_for_workers_that_are_busy(folder: Path, command: Callable[..., Command]) -> None:
    job = command(
        "model.class_path=guilty.EvaluatesForEver",
        "data.val={fraction: 0.5}",
        "supervise={grace_s: 500, deadlock_timeout_s: 900}",
    )
    wait_for("the evaluation", (folder / "evaluating").exists)
    job.process.send_signal(signal.SIGINT)
    wait_for("the answer", lambda: "send it again to stop at once" in job.err)
    wait_for("the checkpoint", lambda: [*(job.run_dir / "checkpoints").glob("update-*")])  # written while they leave
    job.process.send_signal(signal.SIGINT)
    assert job.status() == 130
    assert job.summary()["state"] == "cancelled"


STREAMS = {
    "all closed": 'exec "$@" <&- >&- 2>&-',
    # `wait` is for the reader: it is gone before the job begins.
    "a reader of standard output that is gone": 'exec 3> >(:); wait $!; exec "$@" >&3 3>&-',
    "a reader of standard error that is gone": 'exec 3> >(:); wait $!; exec "$@" 2>&3 3>&-',
}


@pytest.mark.parametrize("streams", STREAMS)
def test_training_needs_nobody_who_reads(streams: str, command: Callable[..., Command]) -> None:
    job = command(shell=STREAMS[streams])
    assert job.status() == 0
    assert "Traceback" not in job.err
    assert job.summary()["state"] == "succeeded"


def test_too_few_open_files_are_an_error_that_says_how_many_are_needed(command: Callable[..., Command]) -> None:
    job = command("--procs", "2", shell='ulimit -n 48; exec "$@"')
    assert job.status() == 1
    assert "the limit is 48 (ulimit -n)" in job.err
    assert not job.run_dir.exists()


def test_a_current_folder_that_was_deleted_is_one_sentence(tmp_path: Path, command: Callable[..., Command]) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    job = command(shell=f'cd {gone}; rmdir {gone}; exec "$@"')
    assert job.status() == 3
    assert job.err.startswith(
        "the current folder was deleted; change to an existing folder\ncode run/current-folder-gone:"
    )


def test_a_result_that_cannot_be_written_is_an_error(folder: Path) -> None:
    command = [sys.executable, str(ROOT / "run.py"), "show", "job.yaml"]
    with open("/dev/full", "w") as full_disk:
        done = subprocess.run(
            command, cwd=folder, stdout=full_disk, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S
        )
    assert done.returncode == 1
    assert done.stderr.startswith("cannot write the result to standard output: No space left on device\ncode ")
