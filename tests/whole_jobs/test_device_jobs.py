"""Whole jobs on a GPU that is simulated on the CPU: the same results where they must be, the same guarantees
everywhere, and what a GPU alone can do to a job."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild.errors import DeviceMemoryError
from hogwild.feeds.device_feed import DeviceFeed
from tests.helpers import simulated_gpu as simulated
from tests.helpers.jobs import JOBS, Ended, in_turn
from tests.shared_model import (
    one_thread,  # noqa: F401 (a fixture for every test here)
    same_bits,
)

FAILING, COUNTING = str(JOBS / "failing_gpu.yaml"), str(JOBS / "counting.yaml")
ONE, INLINE = "train.procs=1", "train.procs=0"
RUNS = ("graphs", "plain")
BATCHES = 2 * 72  # of the failing jobs: two epochs of what is not held back


def failing(diary: Path, how: str, *arguments: str) -> list[str]:
    diary.mkdir(parents=True)
    return [FAILING, f"model.init_args.diary={diary}", f"model.init_args.how={how}", *arguments]


@pytest.fixture(scope="module")
def jobs(jobs_folder: Path) -> dict[str, Ended]:
    diary = jobs_folder / "diary"
    crimes = ["model.init_args.crimes.is killed=20", "model.init_args.crimes.raises=420"]
    (diary / "counting").mkdir(parents=True)
    later = "train.epochs=1"
    whole = {
        "memory once": failing(diary / "memory", "memory"),
        "memory first": failing(diary / "first", "always-memory", "model.init_args.at=1"),
        "memory twice": failing(diary / "twice", "always-memory", "model.init_args.at=30"),
        "context": failing(diary / "context", "context"),
        "no room": failing(diary / "dies", "dies", "supervise.min_workers=1", "train.epochs=2"),
        "crimes": [
            COUNTING,
            f"model.init_args.diary={diary / 'counting'}",
            "data.shuffle=none",
            "train.device=simulated",
            *crimes,
        ],
        "cpu": failing(diary / "cpu", "", INLINE, "train.device=cpu"),
        "device": failing(diary / "device", "", ONE),
        "device, stopped": failing(diary / "stopped", "", INLINE, later),
        "cpu, stopped": failing(diary / "cpu-stopped", "", INLINE, later, "train.device=cpu"),
        "no gpu": failing(diary / "none", "", "train.device=cuda"),
        "no such": failing(diary / "such", "", "train.device=simulated:2"),
        "no such for one": failing(diary / "one", "", "train.device_per_worker=[0, 7]"),
        "too few": failing(diary / "few", "", "train.device_per_worker=[0]", "train.procs=auto", "--procs", "3"),
    }
    first = in_turn(jobs_folder / "first", whole)
    goes_on = {
        "cpu after device": ["--resume", str(first["device, stopped"].run_dir), "train.epochs=2", "train.device=cpu"],
        "device after cpu": [
            "--resume",
            str(first["cpu, stopped"].run_dir),
            "train.epochs=2",
            "train.device=simulated",
        ],
    }
    return first | in_turn(jobs_folder / "second", goes_on)


def succeeded(job: Ended) -> bool:
    assert (job.status, job.reason) == (0, ("succeeded", "epochs")), job.stderr
    assert job.process_leaks == {"descriptors": 0, "threads": 0} and not job.left_behind
    return job.ledger_adds_up()


# ---- what it computes -----------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_one_worker_on_a_device_does_what_one_on_the_cpu_does(jobs: dict[str, Ended]) -> None:
    assert succeeded(jobs["cpu"]) and succeeded(jobs["device"])
    assert jobs["device"].model_bytes() == jobs["cpu"].model_bytes()
    summary = jobs["device"].summary
    assert (summary["device"], summary["placement"], summary["exchange"]) == ("simulated:0", "cuda-replica", "delta")


@pytest.mark.processes
@pytest.mark.parametrize("name", ["cpu after device", "device after cpu"])
def test_a_run_goes_on_elsewhere_as_if_it_had_never_stopped(jobs: dict[str, Ended], name: str) -> None:
    """The optimizer's state and the buffers are in the checkpoint, wherever they were."""
    assert succeeded(jobs[name])
    assert jobs[name].model_bytes() == jobs["cpu"].model_bytes()


def train(device: str, procs: int = 0, **settings: object) -> tuple[nn.Module, hogwild.TrainResult]:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(160, 1, 12, 12, generator=random)
    torch.manual_seed(0)
    body = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(400, 3)
    )
    data = TensorDataset(x, (x.sum((1, 2, 3)) > 0).long())
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    result = hogwild.train(
        body, data, loss, torch.optim.SGD(body.parameters(), lr=0.05, momentum=0.9),
        val={"fraction": 0.2}, procs=procs, epochs=2, batch_size=8, device=device, log={"progress": False}, **settings,
    )  # fmt: skip
    return body, result


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_library_trains_on_a_device_in_the_process_itself(
    tmp_path: Path, accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures, dropout, buffers, class weights, evaluations: to the bit. Batches but the first of an item are looked
    ahead for."""
    ahead: list[tuple[int, int]] = []
    prefetch = DeviceFeed.prefetch

    def look(feed: DeviceFeed, epoch: int, batch: int) -> None:
        ahead.append((epoch, batch))
        prefetch(feed, epoch, batch)

    monkeypatch.setattr(DeviceFeed, "prefetch", look)
    ours, result = train("simulated:1", run_dir=tmp_path / "device", accumulate=accumulate)
    plain, other = train("cpu", run_dir=tmp_path / "cpu", accumulate=accumulate)
    assert same_bits(ours, plain) and result.metrics == other.metrics and result.device == "simulated:1"
    assert len(ahead) == len(set(ahead)) > 2 * (128 // 8) / 2
    device = simulated.opened[1]
    assert not device.registered and device.calls["register"] == device.calls["unregister"] > 0
    assert device.pageable == 0 and device.calls["allocate"] < 20 < device.calls["upload"]


@pytest.mark.processes
def test_a_worker_that_replays_its_updates_does_what_it_does_without(tmp_path: Path) -> None:
    """To the bit, and its log says it."""
    ours, _ = train("simulated:0", 1, run_dir=tmp_path / "graphs", graphs="auto")
    plain, _ = train("simulated:0", 1, run_dir=tmp_path / "plain")
    assert same_bits(ours, plain)
    logs = {name: "\n".join(file.read_text() for file in (tmp_path / name).rglob("worker*.log")) for name in RUNS}
    assert "simulated:0: updates are replayed as graphs" in logs["graphs"] and "graphs" not in logs["plain"]


def test_a_device_without_room_is_a_clear_error_in_the_process_itself(tmp_path: Path) -> None:
    simulated.limit_memory(10_000)
    try:
        with pytest.raises(DeviceMemoryError, match=r"GPU out of memory: simulated:0: .* 9\.8 KiB free"):
            train("simulated", run_dir=tmp_path / "run")
    finally:
        simulated.limit_memory(None)
    assert not simulated.opened[0].registered


# ---- deaths ---------------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_deaths_cost_what_they_cost_in_delta_on_the_cpu(jobs: dict[str, Ended]) -> None:
    job = jobs["crimes"]
    assert succeeded(job)
    assert job.leases["done"] == job.leases["total"] == 400
    assert set(job.effects().tolist()) <= {0.0, 1.0} and float(job.effects().mean()) > 0.5


@pytest.mark.processes
def test_a_broken_context_ends_its_worker_and_not_the_job(jobs: dict[str, Ended]) -> None:
    job = jobs["context"]
    assert succeeded(job) and job.leases["done"] == BATCHES
    (death,) = [event for event in job.events("exit") if event["kind"] == "died"]
    assert "read an illegal address" in death["error"]


@pytest.mark.processes
def test_memory_that_runs_out_once_ends_a_worker_and_not_the_job(jobs: dict[str, Ended]) -> None:
    job = jobs["memory once"]
    assert succeeded(job) and job.leases["done"] == BATCHES
    assert len([event for event in job.events("exit") if event["kind"] == "died"]) == 1


@pytest.mark.processes
@pytest.mark.parametrize("name", ["memory first", "memory twice"])
def test_memory_that_runs_out_again_fails_the_job_with_one_sentence(jobs: dict[str, Ended], name: str) -> None:
    job = jobs[name]
    assert (job.status, job.reason) == (1, ("failed", "device/memory"))
    assert "GPU out of memory: simulated:" in job.stderr and "121 KiB requested" in job.stderr
    assert len([event for event in job.events("exit") if event["kind"] == "died"]) <= 3 and not job.left_behind


@pytest.mark.processes
def test_a_worker_that_finds_no_room_while_others_train_is_not_started_for_ever(jobs: dict[str, Ended]) -> None:
    job = jobs["no room"]
    assert succeeded(job)
    could_not = [event for event in job.events("exit") if event["kind"] == "could-not-start"]
    assert len(could_not) == 1 and "GPU out of memory" in could_not[0]["error"]


# ---- asked for what is not there ------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        (
            "no such",
            "device/index",
            "train.device: simulated:2: no such device (available: simulated:0 to simulated:1)",
        ),
        ("no such for one", "device/index", "simulated:7: no such device"),
        ("too few", "config/contradiction", "must name one device for each of 3 workers, got 1"),
    ],
)
def test_a_device_that_is_not_there_is_said_before_anything_starts(
    jobs: dict[str, Ended], name: str, code: str, words: str
) -> None:
    job = jobs[name]
    assert job.status == 2 and words in job.stderr and code in job.stderr
    assert not job.run_dir.exists()


@pytest.mark.processes
@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said_before_anything_starts(jobs: dict[str, Ended]) -> None:
    job = jobs["no gpu"]
    assert job.status == 2 and "device/none" in job.stderr and not job.run_dir.exists()
    assert "torch finds no usable GPU (torch " in job.stderr and "use auto or cpu" in job.stderr
