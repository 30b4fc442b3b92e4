"""Whole jobs that are trained by a kernel of the model's own: the example of examples/own_kernel."""

import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from tests.helpers.jobs import Ended, Job, in_turn
from tests.helpers.processes import wait_for

pytestmark = pytest.mark.processes

STATIONS = str(Path(__file__).parents[2] / "examples" / "own_kernel" / "job.yaml")
SMALL = ["data.train.init_args.readings=40000", "data.batch_size=1000", "train.epochs=2", "log.tensorboard=false"]
INSIDE = [STATIONS, *SMALL, "train.procs=0"]


@pytest.fixture(scope="module")
def ended(jobs_folder: Path) -> dict[str, Ended]:
    """Small jobs, one after the other in one process."""
    one = [STATIONS, *SMALL, "train.procs=1", "train.epochs=4"]
    jobs = {
        "fused": INSIDE,
        "again": INSIDE,
        "worker": [STATIONS, *SMALL, "train.procs=1"],
        "two": [STATIONS, *SMALL, "train.procs=2", "train.epochs=6"],
        "autograd": [*INSIDE, "train.update=autograd", "optimizer.init_args.lr=20"],
        "clipped": [*INSIDE, "train.grad_clip=1.0"],
        "stale": [*INSIDE, "train.max_staleness=3", "train.accumulate=2"],
        "momentum": [*INSIDE, "optimizer.init_args.momentum=0.5"],
        "forced": [*INSIDE, "train.update=fused", "train.grad_clip=1.0"],
        "whole": one,
        "falling rate": [*INSIDE, "lr_schedule={name: linear, final_factor: 0.0}"],
        "half": [*one, "train.max_updates=70"],
        "other half": ["--resume", str(jobs_folder / "jobs" / "half" / "run"), "train.max_updates=null"],
        "too fast": [*INSIDE, "optimizer.init_args.lr=1e38"],
        "too fast fails": [*INSIDE, "optimizer.init_args.lr=1e38", "supervise.on_nan=fail"],
    }
    return in_turn(jobs_folder / "jobs", jobs)


def means(ended: Ended) -> np.ndarray:
    return ended.tensors()["mean"].numpy()


def test_a_job_whose_loss_rule_and_options_the_kernel_implements_is_trained_by_it(ended: dict[str, Ended]) -> None:
    job = ended["fused"]
    assert job.status == 0 and job.reason == ("succeeded", "epochs")
    assert job.summary["update"] == "fused" and job.summary["update_why"] == "fused: Stations, SGD"
    assert job.summary["compiling_s"] > 0
    assert job.summary["updates"] == job.leases["done"] == job.leases["total"] == 80
    assert job.summary["metrics"]["rmse"] < 6, "a start: 40 readings a station and epoch"
    assert "update: fused: Stations, SGD" in job.stderr


def test_one_worker_computes_the_same_every_time_inside_and_in_a_process(ended: dict[str, Ended]) -> None:
    np.testing.assert_array_equal(means(ended["fused"]), means(ended["again"]))
    np.testing.assert_array_equal(means(ended["fused"]), means(ended["worker"]))


def test_two_workers_account_for_every_batch(ended: dict[str, Ended]) -> None:
    job = ended["two"]
    assert job.leases == {"total": 240, "done": 240, "skipped": 0, "quarantined": 0, "indeterminate": 0, "redone": 0}
    assert job.summary["samples"] == 6 * 40_000 and 0 <= job.summary["idle"] < 1
    assert job.summary["metrics"]["rmse"] < 2.6


def test_one_of_two_workers_compiles_or_both_load(ended: dict[str, Ended]) -> None:
    """The one that starts last may find that all is done."""
    logs = [(ended["two"].run_dir / "logs" / f"worker-{k}.log").read_text() for k in (0, 1)]
    assert any("kernels of Stations, SGD: " in log for log in logs)
    assert sum("compiled" in log for log in logs) <= 1


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("autograd", "autograd: set by train.update"),
        ("clipped", "autograd: Stations, SGD does not implement train.grad_clip"),
        ("stale", "autograd: Stations, SGD does not implement train.max_staleness, train.accumulate"),
        ("momentum", "autograd: the kernel of Stations is for MSELoss and plain SGD"),
    ],
)
def test_what_a_kernel_does_not_implement_is_trained_by_autograd_and_said(
    ended: dict[str, Ended], name: str, why: str
) -> None:
    job = ended[name]
    assert job.status == 0, job.stderr
    assert (job.summary["update"], job.summary["update_why"]) == ("autograd", why)
    assert f"update: {why}" in job.stderr
    assert [event["why"] for event in job.events("update")] == [why]


def test_a_job_that_insists_on_the_kernel_is_told_why_not(ended: dict[str, Ended]) -> None:
    job = ended["forced"]
    assert job.status == 2
    assert "train.update: fused: Stations, SGD does not implement train.grad_clip" in job.stderr
    assert "train/not-fused" in job.stderr and not job.run_dir.exists()


def test_kernel_and_autograd_find_the_same_solution(ended: dict[str, Ended]) -> None:
    """Samples one by one at rate r are batches of 1,000 at 1,000 r, but for the order inside of a batch."""
    difference = means(ended["fused"]) - means(ended["autograd"])
    assert np.sqrt(np.mean(difference**2)) < 0.15
    assert np.sqrt(np.mean(means(ended["fused"]) ** 2)) > 5


def test_a_resumed_job_ends_where_an_uninterrupted_one_does(ended: dict[str, Ended]) -> None:
    assert "70 updates" in ended["half"].stdout, ended["half"].stdout
    assert ended["other half"].leases["done"] == ended["whole"].leases["done"] == 160
    np.testing.assert_array_equal(means(ended["other half"]), means(ended["whole"]))


def test_the_kernel_follows_the_schedule(ended: dict[str, Ended]) -> None:
    assert ended["falling rate"].summary["update"] == "fused"
    assert not np.array_equal(means(ended["falling rate"]), means(ended["fused"]))


def test_what_is_not_finite_is_never_applied(ended: dict[str, Ended]) -> None:
    assert ended["too fast"].status == 1
    assert ended["too fast fails"].status == 1
    assert "NaN or infinite" in ended["too fast fails"].stderr


def test_the_names_and_sizes_of_packed_data_are_kept_with_the_run(ended: dict[str, Ended]) -> None:
    known = json.loads((ended["fused"].run_dir / "names.json").read_text())
    assert known == {"sizes": {"stations": 1000}, "names": {}}


@pytest.mark.whole
def test_a_killed_worker_costs_at_most_a_chunk_and_loses_nothing(tmp_path: Path, start_job) -> None:  # type: ignore[no-untyped-def]
    job: Job = start_job(tmp_path, STATIONS, *SMALL, "train.procs=2", "train.epochs=100000", "checkpoint.every_s=null")
    job.wait_for_updates(100)
    for _ in range(3):
        pid = wait_for("a worker", lambda: next(iter(job.workers().values()), 0))
        os.kill(pid, signal.SIGKILL)
        job.wait_for_exit_of(pid)
    job.send(signal.SIGTERM)
    ended = job.wait()
    assert ended.status == 75 and ended.ledger_adds_up() and not ended.left_behind
    chunk = 1000  # batches: far more than 50 ms of a kernel
    assert ended.leases["indeterminate"] <= 3 * chunk
    assert ended.summary["restarts"] == 3


def test_the_model_s_own_forward_answers_what_the_kernel_learnt(ended: dict[str, Ended]) -> None:
    import hogwild

    trained = hogwild.load(ended["fused"].run_dir)
    found = trained.predict(np_readings(trained, 50))
    torch.testing.assert_close(found, torch.from_numpy(means(ended["fused"]))[np.arange(50)])


def np_readings(trained, count: int):  # type: ignore[no-untyped-def]
    from hogwild.feeds.packed import Packed

    arrays = {"station": np.arange(count, dtype=np.int32), "degrees": np.zeros(count, np.float32)}
    return Packed.of("readings", "table", arrays, trained.sizes)
