"""Bad input, as a table: crime -> exit status and words. For each: no traceback of ours, nothing on standard output,
no run directory, no process, no half-written file.

What is found before a worker starts runs in this process, through the command line's own `run`; what needs workers,
signals or broken streams runs as a command. The users' modules are `bad_input/guilty.py` and a few broken ones."""

import contextlib
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import hogwild
from hogwild import cli, host
from hogwild.errors import BuildError, ConfigError, DataError, HogwildError, ModelError, OptimizerError, UsageError
from tests.bad_input import guilty
from tests.helpers.processes import MARK, PATIENCE_S, marked, wait_for

ROOT = Path(__file__).resolve().parent.parent
BASE = """\
model: {class_path: guilty.Net}
data: {train: {class_path: guilty.blobs}, batch_size: 8}
optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.1}}
train: {procs: 1}
"""
BROKEN = {
    "divides_by_zero": "1 / 0\n",
    "exits_when_imported": "import sys\nsys.exit(5)\n",
    "needs_a_library": "import a_library_nobody_has\n",
    "not_python": "def f(:\n",
}
WRONG_IN_FOUR_PLACES = """\
model: {class_pth: guilty.Net}
data: {train: {class_path: guilty.blobs}, batch_size: 0}
train: {epochs: many}
sede: 1
"""

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # of torch, in their code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: job.yaml, his module, his broken modules, his damaged data."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copy(Path(guilty.__file__), folder)
    (folder / "job.yaml").write_text(BASE)
    (folder / "four.yaml").write_text(WRONG_IN_FOUR_PLACES)
    (folder / "twice.yaml").write_text(BASE + "train: {procs: 2}\n")
    (folder / "tab.yaml").write_text("model:\n\tclass_path: guilty.Net\n")
    (folder / "latin.yaml").write_bytes("name: Blåbær\n".encode("latin-1"))
    (folder / "empty.yaml").write_text("")
    for name, text in BROKEN.items():
        (folder / f"{name}.py").write_text(text)
    mnist = folder / "damaged" / "mnist"
    mnist.mkdir(parents=True)
    (mnist / "train-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, 60_000, 28, 28) + bytes(1000))
    (mnist / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, 60_000) + bytes(60_000))
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
    assert len(os.listdir("/proc/self/fd")) <= len(descriptors), "descriptors (of shared memory?) were left open"


def job(*changes: str) -> tuple[str, ...]:
    return ("train", "job.yaml", *changes)


def model(name: str) -> tuple[str, ...]:
    return job(f"model.class_path=guilty.{name}")


def items(how: str) -> tuple[str, ...]:
    return job(f"data.train={{class_path: guilty.Items, init_args: {{how: {how}}}}}")


MNIST = "data.train={class_path: hogwild.data.Mnist}"
VAST = ("model.class_path=guilty.TakesWholeNumbers", "loss.class_path=guilty.distance_to_whole_numbers")

# crime: (command, exit status, words in the message)
CRIMES: dict[str, tuple[tuple[str, ...], int, tuple[str, ...]]] = {
    # the job file
    "four errors": (
        ("train", "four.yaml"),
        2,
        ("four.yaml:1:", "did you mean 'class_path'?", "batch_size", "epochs", "'seed'?", "nothing was started"),
    ),
    "a duplicate key": (("train", "twice.yaml"), 2, ("twice.yaml:5:1", "train", "duplicate")),
    "a tab": (("train", "tab.yaml"), 2, ("tab.yaml:2:1",)),
    "not UTF-8": (("train", "latin.yaml"), 2, ("latin.yaml", "UTF-8")),
    "an empty job file": (("train", "empty.yaml"), 2, ("empty.yaml", "model")),
    "no such job file": (("train", "nowhere.yaml"), 3, ("nowhere.yaml", "No such file", "looked for /")),
    "a folder as job file": (("train", "damaged/"), 3, ("damaged",)),
    "an unknown override": (job("optimizer.init_args.lrr=1"), 2, ("lrr", "did you mean 'lr'?")),
    "a negative rate": (job("optimizer.init_args.lr=-1"), 2, ("lr: must be >= 0, got -1",)),
    "procs that are no number": (job("--procs", "many"), 2, ("train.procs", "auto or a whole number", "'many'")),
    "no update between two flushes": (job("train.sync_every=0"), 2, ("train.sync_every", "must be >= 1, got 0")),
    "an exchange too long to count": (
        job("train.sync_every=1000", "train.accumulate=66"),
        2,
        ("train.sync_every", "times train.accumulate must be <= 65535 batches, got 1000 x 66"),
    ),
    "a negative staleness": (job("train.max_staleness=-1"), 2, ("train.max_staleness", "must be >= 0, got -1")),
    "delta with a state for all": (
        job("train.exchange=delta", "optimizer.state=shared"),
        2,
        ("train.exchange", "must be direct where optimizer.state is shared", "got 'delta'"),
    ),
    "a misspelt target": (job("evaluate.target={accurcy: 0.9}"), 2, ("did you mean 'accuracy'?",)),
    "a target without data.val": (job("evaluate.target={accuracy: 0.9}"), 1, ("data.val",)),
    "a run that is not there": (("train", "--resume", "nowhere"), 3, ("nowhere", "no such folder")),
    "a run that is none": (("train", "--resume", "damaged"), 3, ("is no run", "resolved.yaml")),
    "a data folder that is not there": (job("--data-dir", "nowhere"), 3, ("--data-dir nowhere", "no such folder")),
    # class paths
    "no such module": (job("model.class_path=gilty.Net"), 2, ("there is no module 'gilty'", "'guilty'?")),
    "no such class": (model("Nett"), 2, ("guilty has no 'Nett'", "did you mean 'Net'?", "guilty.py")),
    "not a class": (model("NOT_A_CLASS"), 2, ("must name a class or a function, but it is a int",)),
    "raises when imported": (
        job("model.class_path=divides_by_zero.Net"),
        2,
        ("importing divides_by_zero raised ZeroDivisionError", "divides_by_zero.py:1"),
    ),
    "exits when imported": (job("model.class_path=exits_when_imported.Net"), 2, ("raised SystemExit: 5",)),
    "needs a library": (job("model.class_path=needs_a_library.Net"), 2, ("'a_library_nobody_has'",)),
    "not Python": (job("model.class_path=not_python.Net"), 2, ("SyntaxError", "not_python.py")),
    "an unknown argument": (job("model.init_args.nrom=true"), 2, ("init_args.nrom", "did you mean 'norm'?")),
    # the model
    "raises in its constructor": (model("RaisesInTheConstructor"), 1, ("ValueError: no weights today", "guilty.py:")),
    "exits in its constructor": (model("ExitsInTheConstructor"), 1, ("raised SystemExit: 7", "guilty.py:")),
    "not a module": (model("blobs"), 1, ("made a TensorDataset, not an nn.Module",)),
    "on meta": (model("OnMeta"), 1, ("first.weight", "meta")),
    "lazy": (model("LazyNotYetShaped"), 1, ("spare", "lazy")),
    "without parameters": (model("WithoutParameters"), 1, ("no parameter to train",)),
    "all frozen": (model("AllFrozen"), 1, ("no parameter to train",)),
    "frozen by the job": (job("model.freeze=['*']"), 1, ("no parameter to train after model.freeze",)),
    "scripted": (model("scripted"), 1, ("ScriptModule", "plain nn.Module")),
    "parametrized": (model("parametrized"), 1, ("first is parametrized", "remove_parametrizations")),
    "overlapping": (model("overlapping"), 1, ("first.weight", "first.bias", "same memory")),
    "holds a lock": (model("HoldsALock"), 1, ("cannot pickle", "lock")),
    "returns a tuple": (model("ReturnsATuple"), 1, ("must be Tensor, not tuple", "(3, 4) float32")),
    "raises in forward": (model("RaisesInForward"), 1, ("RaisesInForward", "KeyError: 'no such layer'")),
    # the loss and the optimizer
    "a loss per sample": (job("loss.class_path=guilty.a_loss_per_sample"), 1, ("(3,) float32", "one floating-point")),
    "no loss": (job("loss.class_path=guilty.no_loss"), 1, ("returned a NoneType",)),
    "a plain float": (job("loss.class_path=guilty.a_plain_float"), 1, ("returned a float",)),
    "needs a closure": (job("optimizer={class_path: torch.optim.LBFGS}"), 2, ("needs a closure",)),
    "a group of nobody": (
        job("optimizer.groups=[{params: [frist.*]}]"),
        1,
        ("optimizer.groups[0].params[0]: 'frist.*' matches no trained parameter", "near names: first."),
    ),
    "a group that is left nothing": (
        job("optimizer.groups=[{params: ['*']}, {params: [first.*]}]"),
        1,
        ("optimizer.groups[1]: optimizer.groups[0] took all its parameters",),
    ),
    "a group with an unknown argument": (
        job("optimizer.groups=[{params: ['*'], init_args: {wieght_decay: 0}}]"),
        2,
        ("optimizer.groups[0].init_args.wieght_decay", "did you mean 'weight_decay'?"),
    ),
    "takes no parameters": (job("optimizer={class_path: guilty.nothing}"), 1, ("guilty.nothing() raised TypeError",)),
    "makes no optimizer": (job("optimizer={class_path: guilty.of}"), 1, ("a list, not a torch.optim.Optimizer",)),
    "refuses these shapes": (job("optimizer={class_path: torch.optim.Muon}"), 1, ("Muon", "2D")),
    # the data
    "empty": (job("data.train.init_args.samples=0"), 1, ("data.train: the data set is empty",)),
    "a label out of range": (
        job("data.train.init_args.wrong_label_at=17"),
        1,
        ("data.train: the label of sample 17 is 7", "[0, 1]"),
    ),
    "a label out of range, plain function": (
        job("data.train.init_args.wrong_label_at=17", "loss.class_path=torch.nn.functional.cross_entropy"),
        1,
        ("data.train: the label of sample 17 is 7",),
    ),
    "a label out of range in data.val": (
        job("data.val={class_path: guilty.blobs, init_args: {wrong_label_at: 3}}"),
        1,
        ("data.val: the label of sample 3 is 7",),
    ),
    "NaN": (job("data.train.init_args.nan_at=11"), 1, ("data.train: input 0 of sample 11 is NaN",)),
    "data.val of another type": (
        job("data.val={class_path: guilty.blobs, init_args: {dtype: float64}}"),
        1,
        ("data.val has samples of (4,) float64", "data.train of (4,) float32"),
    ),
    "another type than the model's": (job("data.train.init_args.dtype=float64"), 1, ("same dtype", "(3, 4) float64")),
    "one sample for BatchNorm": (
        job("data.train.init_args.samples=1", "model.init_args.norm=true"),
        1,
        ("BatchNorm cannot train on a batch of one",),
    ),
    "batches of one for BatchNorm": (
        job("data.batch_size=1", "model.init_args.norm=true"),
        1,
        ("BatchNorm cannot train on a batch of one",),
    ),
    "all dropped": (job("data.batch_size=100", "data.drop_last=true"), 1, ("fewer than data.batch_size 100",)),
    "nothing held back": (job("data.val={fraction: 0.001}"), 1, ("data.val.fraction", "leaves 0")),
    "an item that raises": (items("raises"), 1, ("data.train: reading item 5 raised OSError: disk on fire",)),
    "an item that exits": (items("exits"), 1, ("data.train: reading item 5 raised SystemExit: 4",)),
    "an item that is longer": (items("longer"), 1, ("item 5, field 0 has shape (5,), item 0 has (4,)",)),
    "an item of another type": (items("wider"), 1, ("item 5, field 0 is torch.float64",)),
    "an item without a target": (items("alone"), 1, ("item 5 is a tuple of 1",)),
    "an item with a word": (items("a word"), 1, ("item 5 cannot be made into tensors",)),
    "an item that is a map": (items("a map"), 1, ("item 5 is a dict",)),
    "an item of three": (items("three"), 1, ("item 5 has 3 fields, item 0 has 2",)),
    "a stream": (job("data.train={class_path: guilty.Stream}"), 1, ("IterableDataset",)),
    "no length": (job("data.train={class_path: guilty.WithoutLength}"), 1, ("has no len()",)),
    "a length that raises": (job("data.train={class_path: guilty.LengthRaises}"), 1, ("nobody counted",)),
    "no data set": (job("data.train={class_path: guilty.nothing}"), 1, ("NoneType has no len()",)),
    "items larger than memory": (
        job("data.train={class_path: guilty.LargerThanAnyMemory}"),
        1,
        ("1,000,000,000,000,000 items", "are free"),
    ),
    "tensors larger than memory": (
        job("data.train={class_path: guilty.vast}", *VAST),
        1,
        ("500,000,000,000,", "bytes of memory", "are free"),
    ),
    "a truncated file": (
        job(MNIST, "--data-dir", "damaged"),
        1,
        ("train-images-idx3-ubyte: truncated", "47,040,000", "holds 1,000"),
    ),
    "missing data": (
        job(MNIST, "--data-dir", "."),
        3,
        ("train-images-idx3-ubyte", "Looked in", "published by", "HOGWILD_DATA"),
    ),
}


@pytest.mark.parametrize("crime", CRIMES)
def test_what_can_be_known_before_workers_start_is_one_clear_error(
    crime: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, status, words = CRIMES[crime]
    run_dir = () if "--resume" in command else ("--run-dir", "new/run")
    found = cli.run([*command, *run_dir])
    shown = capsys.readouterr()
    assert found == status, shown.err
    for word in words:
        assert word in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""
    assert host.children(os.getpid()) == []


def full(path: Path) -> None:
    path.mkdir()
    (path / "precious").write_text("keep me")


PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file": (lambda path: path.write_text("keep me"), "it is a file"),
    "not empty": (full, "is not empty and not a run: nothing was written to it"),
    "a dangling link": (lambda path: path.symlink_to("nowhere/at/all"), "cannot make the run directory"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_run_directory_that_cannot_be_one_is_an_error_and_stays_as_it_was(
    place: str, in_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare, words = PLACES[place]
    prepare(tmp_path / "run")
    before = [(path, path.is_file() and path.read_text()) for path in tmp_path.rglob("*")]
    assert cli.run([*job(), "--run-dir", str(tmp_path / "run")]) == 1
    assert words in capsys.readouterr().err
    assert [(path, path.is_file() and path.read_text()) for path in tmp_path.rglob("*")] == before


@pytest.mark.parametrize("run_dir", ["/proc/run", "/dev/null/run", "n" * 300])
def test_a_run_directory_that_cannot_be_made_is_an_error(
    run_dir: str, in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*job(), "--run-dir", run_dir]) == 1
    assert "cannot make the run directory" in capsys.readouterr().err


def test_a_job_that_does_not_start_leaves_the_users_own_empty_folder(in_folder: Path, tmp_path: Path) -> None:
    assert cli.run([*model("AllFrozen"), "--run-dir", str(tmp_path)]) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["abc", "0", "-3", "999999999999"])
def test_a_number_of_threads_that_is_none_is_a_usage_error(
    value: str, in_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert cli.run([*job(), "--run-dir", "run"]) == 2
    assert f"OMP_NUM_THREADS={value}: must be a whole number from 1 to 1024" in capsys.readouterr().err


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
    table: list[tuple[dict[str, object], type[HogwildError], str]] = [
        ({"model": 3}, ModelError, "the model is a int"),
        ({"dataset": None}, DataError, "NoneType has no len()"),
        ({"loss": None}, BuildError, "the loss is a NoneType"),
        ({"optimizer": None}, OptimizerError, "the optimizer is a NoneType"),
        ({"val": {"fractoin": 0.2}}, ConfigError, "did you mean 'fraction'?"),
        ({"epoch": 3}, ConfigError, "did you mean 'epochs'?"),
        ({"procs": -1}, ConfigError, "train.procs: must be auto or a whole number"),
        ({"checkpoint": 5}, ConfigError, "checkpoint: must be a map"),
        ({"optimizer_state": "both"}, ConfigError, "private, shared"),
    ]
    for changes, kind, words in table:
        error = calls(**changes)
        assert type(error) is kind, f"{changes}: {error!r}"
        assert words in str(error)


def test_an_optimizer_of_another_model_is_an_error(calls: Callable[..., HogwildError]) -> None:
    error = calls(optimizer=torch.optim.SGD(guilty.Net().parameters(), lr=0.1))
    assert isinstance(error, OptimizerError)
    assert "not a parameter of the model" in str(error)


def test_a_closure_optimizer_is_an_error(calls: Callable[..., HogwildError]) -> None:
    net = guilty.Net()
    error = calls(model=net, optimizer=torch.optim.LBFGS(net.parameters()))
    assert isinstance(error, OptimizerError)
    assert "closure" in str(error)


def test_a_loss_that_cannot_be_pickled_is_an_error_naming_it(calls: Callable[..., HogwildError]) -> None:
    class Loss:
        lock = None

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __call__(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(output, target)

    error = calls(loss=Loss())
    assert isinstance(error, ModelError)
    assert ".Loss) cannot be written for the workers" in str(error)
    assert "lock" in str(error)


def test_a_call_from_another_thread_is_an_error_that_leaves_nothing(calls: Callable[..., HogwildError]) -> None:
    errors: list[HogwildError] = []
    thread = threading.Thread(target=lambda: errors.append(calls()))
    thread.start()
    thread.join(PATIENCE_S)
    assert isinstance(errors[0], UsageError)
    assert "main thread" in str(errors[0])


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
    "exits in forward": ("model.class_path=guilty.ExitsInForward", "SystemExit: 0"),
    "grows in forward": ("model.class_path=guilty.GrowsInForward", "create all of them in the constructor"),
    "cannot be encoded": ("model.class_path=guilty.SaysWhatCannotBeEncoded", "half a character: \\udcff"),
    "always NaN": ("loss.class_path=guilty.always_nan", "no update was made"),
}


@pytest.mark.parametrize("crime", AT_WORK)
def test_what_shows_only_at_work_fails_the_job_with_its_words(crime: str, command: Callable[..., Command]) -> None:
    change, words = AT_WORK[crime]
    job = command(change, "--procs", "1")
    assert job.status() == 1
    assert words in job.err
    assert "failed: " in job.out
    assert job.summary()["state"] == "failed"
    assert words in str(job.summary()["error"])


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
    wait_for("the first job's status", (first.run_dir / "status.json").exists)
    assert cli.run([*(job() if option == "--run-dir" else ("train",)), option, str(first.run_dir)]) == 1
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
    assert job.err == "cancelled; nothing was started\n"
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
    wait_for("the answer", lambda: "once more: stop now" in job.err)
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
    assert job.err == "the current folder was deleted; change into one that is there\n"


def test_a_result_that_cannot_be_written_is_an_error(folder: Path) -> None:
    command = [sys.executable, str(ROOT / "run.py"), "show", "job.yaml"]
    with open("/dev/full", "w") as full_disk:
        done = subprocess.run(
            command, cwd=folder, stdout=full_disk, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE_S
        )
    assert done.returncode == 1
    assert done.stderr == "the result cannot be written to standard output: No space left on device\n"
