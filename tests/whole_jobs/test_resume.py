"""Stopping and going on: signals to a real job, then --resume. The counting model shows that nothing is repeated or
left out; one worker shows that not even a bit differs."""

import json
import os
import shlex
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild.api import TrainResult
from hogwild.cli import main
from hogwild.config import of_run
from hogwild.config.load import load_job
from hogwild.config.locate import default_config
from hogwild.errors import CheckpointError, DataError, HogwildError, UsageError
from hogwild.storage import checkpoint, checkpoint_format
from hogwild.workers.session.resume import check_changes
from tests.helpers.jobs import JOBS, Ended, Job, in_turn
from tests.helpers.processes import wait_for

COUNTING = str(JOBS / "counting.yaml")
CRAWLING = str(JOBS / "crawling.yaml")


def paced(diary: Path, pace_s: float = 0.2) -> list[str]:
    """At this pace two workers need 80 s: whoever stops them may be late."""
    diary.mkdir(parents=True)
    return [COUNTING, f"model.init_args.diary={diary}", f"model.init_args.pace_s={pace_s}", "train.epochs=2"]


@pytest.fixture(scope="module")
def stopped(jobs_folder: Path, start_shared_job: Callable[..., Job]) -> dict[str, Ended]:
    """Jobs stopped by one signal each; the digits in the middle of an epoch, with momentum and dropout."""
    ended = {}
    for name, number in (("SIGINT", signal.SIGINT), ("SIGTERM", signal.SIGTERM)):
        diary = jobs_folder / f"diary-{name}"
        job = start_shared_job(jobs_folder / name, *paced(diary))
        job.wait_for_updates(5)
        job.send(number)
        ended[name] = job.wait()
        (diary / "hurry").touch()
    diary = jobs_folder / "diary-digits"
    diary.mkdir()
    job = start_shared_job(jobs_folder / "digits", *crawling(diary))
    job.wait_for_updates(120)
    job.send(signal.SIGINT)
    ended["digits"] = job.wait()
    (diary / "hurry").touch()
    return ended


def crawling(diary: Path) -> list[str]:
    return [CRAWLING, f"model.init_args.diary={diary}"]


@pytest.fixture(scope="module")
def resumed(jobs_folder: Path, stopped: dict[str, Ended]) -> dict[str, Ended]:
    """Copies of what was stopped, resumed: each line goes on where the one before it ended."""
    copies = {name: str(shutil.copytree(job.run_dir, jobs_folder / f"copy-{name}", symlinks=True))
              for name, job in stopped.items()}  # fmt: skip
    run = copies["SIGINT"]
    jobs = {
        "beside": [COUNTING, "--resume", run],
        "changed": ["--resume", run, "data.batch_size=8", "optimizer.init_args.lr=0.5"],
        "more": ["--resume", run, "train.procs=3", "train.epochs=3", "checkpoint.every_updates=150"],
        "again": ["--resume", run],
        "term": ["--resume", copies["SIGTERM"], "train.procs=1"],
        "digits": ["--resume", copies["digits"]],
        "digits undisturbed": crawling(jobs_folder / "diary-digits"),
        "nowhere": ["--resume", str(jobs_folder / "nowhere")],
    }
    return in_turn(jobs_folder / "resumed", jobs)


@pytest.mark.processes
@pytest.mark.whole
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_one_signal_checkpoints_and_stops(stopped: dict[str, Ended], name: str) -> None:
    job = stopped[name]
    assert (job.status, job.reason) == (75, ("stopped", name)), job.stderr
    assert job.ledger_adds_up()
    assert 0 < job.summary["samples"] < 2 * 1600
    assert int(job.effects().sum()) == job.summary["samples"]
    assert f"{name}: writing a checkpoint and stopping (send it again to stop at once)" in job.stderr
    assert not job.left_behind


@pytest.mark.processes
@pytest.mark.whole
def test_a_resumed_job_ends_with_the_samples_of_an_undisturbed_one(resumed: dict[str, Ended]) -> None:
    for name, epochs in (("more", 3), ("term", 2)):
        job = resumed[name]
        assert (job.status, job.reason) == (0, ("succeeded", "epochs")), job.stderr
        assert job.summary["samples"] == epochs * 1600
        assert job.leases == {**dict.fromkeys(job.leases, 0), "total": epochs * 400, "done": epochs * 400}
        assert (job.effects() == epochs).all()


@pytest.mark.processes
def test_procs_and_epochs_may_change_and_the_records_go_on(resumed: dict[str, Ended]) -> None:
    job = resumed["more"]
    assert {event["worker"] for event in job.events("spawn")} == {0, 1, 2}
    kinds = [event["event"] for event in job.events() if event["event"] in ("resume", "end")]
    assert kinds[:3] == ["end", "resume", "end"] and "resuming from update-" in job.stderr


@pytest.mark.processes
def test_resuming_a_finished_run_changes_nothing(resumed: dict[str, Ended]) -> None:
    again, more = resumed["again"], resumed["more"]
    assert (again.status, again.reason) == (0, ("succeeded", "epochs")), again.stderr
    assert again.leases == more.leases
    assert (again.effects() == 3).all()


@pytest.mark.processes
@pytest.mark.whole
def test_one_worker_interrupted_and_resumed_gives_the_bits_of_an_undisturbed_one(
    stopped: dict[str, Ended], resumed: dict[str, Ended]
) -> None:
    assert stopped["digits"].status == 75
    assert stopped["digits"].summary["updates"] % 90 > 0, "stopped in the middle of an epoch"
    assert resumed["digits"].status == resumed["digits undisturbed"].status == 0, resumed["digits"].stderr
    assert resumed["digits"].model_bytes() == resumed["digits undisturbed"].model_bytes()
    assert resumed["digits"].summary["metrics"] == resumed["digits undisturbed"].summary["metrics"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("beside", 2, ["--resume takes the job and the folder from the run, so a job file"]),
        ("changed", 2, ["data.batch_size: was 4, now 8", "optimizer.init_args.lr: was 1.0, now 0.5"]),
        ("nowhere", 3, ["there is no such folder"]),
    ],
)
def test_what_cannot_be_resumed_is_an_error_with_the_cause(
    resumed: dict[str, Ended], name: str, status: int, words: list[str]
) -> None:
    job = resumed[name]
    assert job.status == status and all(one in job.stderr for one in words), job.stderr


@pytest.mark.processes
@pytest.mark.whole
def test_a_damaged_checkpoint_is_said_and_the_one_before_is_used(resumed: dict[str, Ended], jobs_folder: Path) -> None:
    run = jobs_folder / "damaged-run"
    shutil.copytree(resumed["more"].run_dir, run, symlinks=True)
    newest, before = sorted((run / "checkpoints").glob("update-*"), reverse=True)[:2]
    state = bytearray((newest / "state.pt").read_bytes())
    state[len(state) // 2] ^= 0xFF
    (newest / "state.pt").write_bytes(state)
    job = in_turn(jobs_folder / "repair", {"damaged": ["--resume", str(run)]})["damaged"]
    assert (job.status, job.reason) == (0, ("succeeded", "epochs")), job.stderr
    assert newest.name in job.stderr
    assert f"resuming from {before.name}" in job.stderr
    assert (job.effects() == 3).all()
    assert (run / "checkpoints" / f"rejected-{newest.name}").is_dir()


@pytest.mark.processes
@pytest.mark.whole
def test_a_second_signal_cancels_at_once(jobs_folder: Path, start_job: Callable[..., Job]) -> None:
    diary = jobs_folder / "diary-second"
    job = start_job(jobs_folder / "second", *paced(diary))
    job.wait_for_event("ready", 2)
    job.wait_for_updates(2)
    (diary / "hold").touch()  # no batch ends any more: the first signal cannot be obeyed
    for pid in job.workers().values():
        wait_for("nobody to go on", (diary / f"held-{pid}").exists)
    job.send(signal.SIGINT)
    job.wait_for_event("signal")
    job.send(signal.SIGINT)
    ended = job.wait()
    assert (ended.status, ended.reason) == (130, ("cancelled", "second SIGINT")), ended.stderr
    assert not ended.left_behind


@pytest.mark.processes
def test_an_evaluation_that_a_stop_has_met_is_made_up_for(jobs_folder: Path, start_job: Callable[..., Job]) -> None:
    folder = jobs_folder / "owed"
    arguments = [str(JOBS / "interrupting.yaml"), f"model.init_args.folder={folder}"]
    first = start_job(folder, *arguments).wait()
    assert (first.status, first.reason) == (75, ("stopped", "SIGINT")), first.stderr
    assert not first.events("evaluation")
    (second,) = in_turn(jobs_folder / "owing", {"resumed": ["--resume", str(first.run_dir)]}).values()
    assert second.status == 0, second.stderr
    assert [event["updates"] for event in second.events("evaluation")] == [23, 46]  # 1,437 samples, batches of 64


# ---- a resume that is refused --------------------------------------------------------------------------------------


def content(run: Path) -> dict[str, bytes]:
    """Every file and link of a run directory, byte for byte."""
    links = {path: os.readlink(path).encode() for path in run.rglob("*") if path.is_symlink()}
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path not in links}
    return {str(path.relative_to(run)): held for path, held in (links | files).items()}


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.5, **options})


def call(
    make: Callable[[nn.Module], torch.optim.Optimizer] = sgd, samples: int = 64, classes: int = 2, **settings: Any
) -> TrainResult:
    """One kind of job, in this process; plain SGD keeps no state, so that only its groups could tell."""
    torch.manual_seed(0)
    model = nn.Linear(4, classes)
    before = [param.detach().clone() for param in model.parameters()]
    features = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))[:samples]
    data = TensorDataset(features, (features.sum(1) > 0).long())
    try:
        loss = nn.CrossEntropyLoss(label_smoothing=0.3)
        return hogwild.train(model, data, loss, make(model), **{"procs": 0, "batch_size": 8, **settings})
    except HogwildError:
        assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
        assert not any(param.is_shared() for param in model.parameters())
        raise


@pytest.fixture(scope="module")
def called(jobs_folder: Path) -> Path:
    """A run of the library's: one epoch of eight updates; then a newer checkpoint that is none, and a lock that names
    whoever was killed last."""
    run = jobs_folder / "called"
    assert call(run_dir=run).updates == 8
    (checkpoint,) = (run / "checkpoints").glob("update-*")
    shutil.copytree(checkpoint, run / "checkpoints" / "update-000000099")
    (run / ".lock").write_text("4711\n")
    return run


@pytest.fixture
def copy(called: Path, tmp_path: Path) -> Path:
    return shutil.copytree(called, tmp_path / "copy", symlinks=True)


def by_one(model: nn.Linear) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}], lr=0.5)


REFUSED: dict[str, tuple[dict[str, Any], type[HogwildError], str]] = {
    "another rate": ({"make": lambda m: sgd(m, lr=0.1)}, CheckpointError, "lr of group 0 was 0.5, now 0.1"),
    "a momentum": ({"make": lambda m: sgd(m, momentum=0.9)}, CheckpointError, "momentum of group 0 was 0, now 0.9"),
    "other groups": ({"make": by_one}, CheckpointError, r"groups of \[2\] parameters, this one of \[1, 1\]"),
    "fewer samples in as many batches": ({"samples": 63}, DataError, "data.train: samples: was 64, now 63"),
    "another model": ({"classes": 3}, CheckpointError, r"weight: shape \(2, 4\) in the checkpoint, \(3, 4\)"),
    "another batch": ({"batch_size": 16}, UsageError, "data.batch_size: was 8, now 16"),
    "another seed": ({"seed": 7}, UsageError, "seed: was 1, now 7"),
    "a frozen weight": ({"model": {"freeze": ["weight"]}}, UsageError, r"model.freeze: was \[\], now \['weight'\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_resume_that_is_refused_leaves_the_run_directory_as_it_was(name: str, copy: Path) -> None:
    changes, kind, words = REFUSED[name]
    before = content(copy)
    with pytest.raises(kind, match=words):
        call(**{"epochs": 5, "resume": copy, **changes})
    assert content(copy) == before
    assert call(epochs=2, resume=copy).updates == 16
    assert (copy / "checkpoints" / "rejected-update-000000099").is_dir()
    assert load_job(copy / "resolved.yaml").train.epochs == 2


def test_a_checkpoint_that_is_refused_leaves_nothing_behind_in_the_resume(copy: Path) -> None:
    """The newest is whole and of another model: what else it says is not of this run either."""
    folder = copy / "checkpoints"
    state = checkpoint.load(folder / "update-000000008")
    other = {"weight": torch.zeros(7, 7), "bias": torch.zeros(7)}
    checkpoint.write(
        folder, "update-000000009", {**state, "model": other, "rollbacks": 4, "scales": [[8.0, 1.0]]}, {}, {}
    )
    result = call(resume=copy, epochs=2)
    assert (result.updates, result.rollbacks) == (16, 0)
    path, _ = checkpoint_format.newest_good(folder)
    assert path is not None
    assert (checkpoint.load(path)["rollbacks"], checkpoint.load(path)["scales"]) == (0, [])


def test_a_resumed_run_that_had_been_finished_points_to_its_last_checkpoint(copy: Path) -> None:
    """Its supervisor was killed between writing it and pointing to it."""
    folder = copy / "checkpoints"
    (folder / "latest").unlink()
    (folder / "latest").symlink_to("update-000000004")
    assert call(resume=copy).updates == 8
    assert (folder / "latest").resolve().name == "update-000000008"


def test_ways_to_compute_the_same_step_may_change_at_a_resume(copy: Path) -> None:
    assert call(lambda model: sgd(model, foreach=True), epochs=2, resume=copy).updates == 16


def test_a_rate_in_a_tensor_is_compared_as_a_number(tmp_path: Path) -> None:
    def adam(rate: float) -> Callable[[nn.Module], torch.optim.Optimizer]:
        return lambda model: torch.optim.Adam(model.parameters(), lr=torch.tensor(rate))

    call(adam(0.25), run_dir=tmp_path / "run", max_updates=5)
    with pytest.raises(CheckpointError, match=r"lr of group 0 was 0\.25, now 0\.125"):
        call(adam(0.125), resume=tmp_path / "run")
    assert call(adam(0.25), resume=tmp_path / "run").updates == 8


@pytest.mark.processes
@pytest.mark.parametrize("procs", [0, 1])
def test_a_schedules_factor_is_not_taken_for_another_rate(procs: int, tmp_path: Path) -> None:
    schedule = {"lr_schedule": {"name": "linear"}, "procs": procs}
    call(run_dir=tmp_path / "run", max_updates=5, **schedule)
    assert call(resume=tmp_path / "run", **schedule).updates == 8


def test_the_command_line_refuses_the_run_of_a_call_whose_objects_it_cannot_build(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = content(copy)
    for more in ([], ["--dry-run"], ["train.epochs=2"]):
        assert main.run(["train", "--resume", str(copy), *more]) == 2
        said = capsys.readouterr().err
        assert f"run {copy} was made by a call of hogwild.train" in said
        assert f"with resume={str(copy)!r} and the same objects" in said
    assert content(copy) == before
    for command in ("check", "show"):
        assert main.run([command, str(copy / "resolved.yaml")]) == 0
    call(epochs=2, resume=copy)
    assert main.run(["--resume", str(copy)]) == 2, "it is still a run of the library's"


OWN_RULE = """
import pathlib, torch

class FromFile(torch.optim.SGD):
    def __init__(self, params, file):
        super().__init__(params, lr=float(pathlib.Path(file).read_text()))
"""


@pytest.mark.processes
def test_a_rate_that_the_users_own_class_has_changed_is_refused_by_the_command_line(jobs_folder: Path) -> None:
    folder = jobs_folder / "own-rule"
    folder.mkdir()
    (folder / "ownrule.py").write_text(OWN_RULE)
    rate = folder / "rate"
    rate.write_text("0.5")
    (folder / "job.yaml").write_text(
        "model: {class_path: hogwild.models.Mlp, init_args: {features: 64, hidden: [8], classes: 10}}\n"
        "data: {train: {class_path: hogwild.data.Digits, init_args: {split: train}}}\n"
        f"optimizer: {{class_path: ownrule.FromFile, init_args: {{file: {rate}}}}}\n"
        "train: {procs: 0, max_updates: 5}\n"
    )
    made = in_turn(jobs_folder / "own-made", {"made": [str(folder / "job.yaml")]})["made"]
    assert made.status == 0, made.stderr
    assert json.loads((made.run_dir / "env.json").read_text())["caller"] == "command line"
    rate.write_text("0.25")
    before = content(made.run_dir)
    again = ["--resume", str(made.run_dir), "train.max_updates=9"]
    refused = in_turn(jobs_folder / "own-refused", {"refused": again})["refused"]
    assert refused.status == 1
    assert "lr of group 0 was 0.5, now 0.25" in refused.stderr
    assert content(made.run_dir) == before
    rate.write_text("0.5")
    assert in_turn(jobs_folder / "own-resumed", {"resumed": again})["resumed"].summary["updates"] == 9


def test_another_exchange_needs_another_placement(tmp_path: Path) -> None:
    """Parameters that move to a device are exchanged in another way; otherwise it is another job."""
    (tmp_path / "resolved.yaml").write_text(load_job(default_config("digits"), ["train.exchange=direct"]).to_yaml())
    run: Any = SimpleNamespace(path=tmp_path, resolved_file=tmp_path / "resolved.yaml")
    for changes in ([], ["train.procs=3"], ["train.device=simulated", "train.exchange=delta"]):
        job, _, _ = of_run.resumed(tmp_path, changes)
        check_changes(run, job)
    with pytest.raises(UsageError, match=r"train\.exchange: was 'direct', now 'delta'"):
        check_changes(run, load_job(tmp_path / "resolved.yaml", ["train.exchange=delta"]))


def test_an_exchange_that_the_user_chose_contradicts_a_device_as_ever(tmp_path: Path) -> None:
    text = load_job(default_config("digits"), ["train.exchange=direct"]).to_yaml()
    (tmp_path / "resolved.yaml").write_text(text)
    with pytest.raises(HogwildError, match=r"train\.exchange: must be delta or auto"):
        of_run.resumed(tmp_path, ["train.device=simulated"])


# ---- a change that only a new run can have ---------------------------------------------------------------------------

OWN_NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, hidden=8):
        super().__init__(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
"""
OF_OWN_NET = """
model: {class_path: ownnet.Net}
data: {train: {class_path: hogwild.data.Digits, init_args: {split: train}}}
lr_schedule: {name: cosine}
train: {procs: 0, max_updates: 5}
"""


@pytest.mark.processes
def test_a_refused_change_comes_with_the_command_that_trains_it_from_these_weights(jobs_folder: Path) -> None:
    """Run from another folder than the first time, with overrides, a module and a file name that need care."""
    folder = jobs_folder / "own net"
    folder.mkdir()
    (folder / "ownnet.py").write_text(OWN_NET)
    (folder / "net.yaml").write_text(OF_OWN_NET)
    made = in_turn(jobs_folder / "net-made", {"made": [str(folder / "net.yaml"), "model.freeze=['*.bias']"]})["made"]
    assert made.status == 0, made.stderr
    changes = ["optimizer.init_args.lr=0.5", "lr_schedule={name: step, every_updates: 3}"]
    again = ["--resume", str(made.run_dir), *changes, "seed=7"]
    refused = in_turn(jobs_folder / "net-refused", {"refused": again})["refused"]
    assert refused.status == 2 and "optimizer.init_args.lr: was 0.01, now 0.5" in refused.stderr
    lines = refused.stderr.splitlines()
    command = lines[lines.index("Start a new run with this change, from the weights of this one:") + 1].strip()
    if command.startswith("cd "):
        place, command = command.split(" && ")
        assert Path(shlex.split(place)[1]).is_dir()
    program, *arguments = shlex.split(command)
    assert program == "hogwild" and arguments[0] == "train" and arguments[1].endswith("net.yaml")
    new = in_turn(jobs_folder / "net-new", {"new": arguments})["new"]
    assert new.status == 0, new.stderr
    latest = made.run_dir / "checkpoints" / "latest"
    assert f"model.init_from: {latest}: 4 of the model's 4 tensors are from this file" in new.stderr
    job, before = (load_job(run / "resolved.yaml") for run in (new.run_dir, made.run_dir))
    wanted = load_job(made.run_dir / "resolved.yaml", [*changes, "seed=7", f"model.init_from={latest}"])
    assert job == wanted != before


def test_a_refused_change_names_no_command_for_a_run_of_the_library(tmp_path: Path) -> None:
    job = load_job(default_config("digits"))
    (tmp_path / "resolved.yaml").write_text(job.to_yaml())
    (tmp_path / "env.json").write_text(json.dumps({"caller": "hogwild.train"}))
    assert of_run.new_run_command(tmp_path, load_job(default_config("digits"), ["seed=3"])) == ""


def test_the_command_of_a_new_run_falls_back_on_the_run_for_a_job_file_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone.yaml"
    (tmp_path / "resolved.yaml").write_text(load_job(default_config("digits")).to_yaml())
    (tmp_path / "env.json").write_text(json.dumps({"job_file": str(gone), "user_folders": ["/there", str(Path.cwd())]}))
    changed = load_job(tmp_path / "resolved.yaml", ["optimizer.init_args.lr=0.5"])
    said = of_run.new_run_command(tmp_path, changed)
    assert shlex.split(said) == ["hogwild", "train", str(tmp_path / "resolved.yaml"), "optimizer.init_args.lr=0.5"]
    gone.write_text("")  # there, but not a job
    assert of_run.new_run_command(tmp_path, changed) == said
