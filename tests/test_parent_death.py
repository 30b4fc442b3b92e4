"""The supervisor is killed with SIGKILL: in its first seconds, while it trains, in the middle of a checkpoint. No child
of it is alive two seconds later, stopped or not, nothing is left in shared memory, and the run can be resumed without
a sample lost or repeated. Children are found by a mark in their environment, whoever their parent is by now."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.jobs import JOBS, Ended, Job, in_turn
from tests.helpers.processes import state_of, wait_for

COUNTING = str(JOBS / "counting.yaml")
SEEDS = range(10)
AT_ONCE = 2  # jobs that start side by side: the machine is small, and a start is mostly waiting for torch
FIRST_SECONDS = 3.0


@pytest.mark.parametrize("seeds", [SEEDS[i : i + AT_ONCE] for i in range(0, len(SEEDS), AT_ONCE)])
def test_a_parent_killed_in_its_first_seconds_leaves_no_child(
    seeds: range, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    jobs = [start_job(tmp_path / str(seed), "--procs", "4") for seed in seeds]
    began = time.monotonic()
    moments = sorted(
        (random.Random(seed).uniform(0, FIRST_SECONDS), job) for seed, job in zip(seeds, jobs, strict=True)
    )
    for moment, job in moments:
        _wait_until(began + moment)
        job.send(signal.SIGKILL)
        assert job.process.wait(10) == -signal.SIGKILL
        assert job.left_behind(2.0) == []


def _wait_until(moment_s: float) -> None:
    wait_for("the moment", lambda: time.monotonic() >= moment_s)


def killed_while_training(job: Job, diary: Path) -> None:
    """One worker is stopped: it can neither see its lifeline close nor notice anything else."""
    job.wait_for_updates(60)
    victim = job.workers()[0]
    os.kill(victim, signal.SIGSTOP)
    wait_for("the stop", lambda: state_of(victim) == "T")
    job.send(signal.SIGKILL)


def killed_in_a_checkpoint(job: Job, diary: Path) -> None:
    """A checkpoint is written into a folder of a temporary name: the moment it is there."""
    job.wait_for_event("checkpoint", 1)
    checkpoints = job.run_dir / "checkpoints"
    wait_for("a checkpoint that is being written", lambda: list(checkpoints.glob(".tmp-update-*")))
    job.send(signal.SIGKILL)


def killed_before_any_checkpoint(job: Job, diary: Path) -> None:
    job.wait_for_event("ready", 2)
    job.wait_for_updates(1)
    job.send(signal.SIGKILL)


DEATHS: dict[str, tuple[Callable[[Job, Path], None], list[str]]] = {
    "while training": (killed_while_training, ["checkpoint.every_updates=25"]),
    "in a checkpoint": (
        killed_in_a_checkpoint,
        ["checkpoint.every_updates=25", "model.init_args.ballast=20000000", "checkpoint.keep=2"],
    ),
    "before any checkpoint": (killed_before_any_checkpoint, []),
}


@pytest.fixture(scope="module")
def resumed(jobs_folder: Path, start_shared_job: Callable[..., Job]) -> dict[str, tuple[list[str], Ended]]:
    """For each death: what was left two seconds after it, and the run resumed."""
    left, runs = {}, {}
    for name, (kill, arguments) in DEATHS.items():
        diary = jobs_folder / f"diary-{name}"
        diary.mkdir()
        pace = [f"model.init_args.diary={diary}", "model.init_args.pace_s=0.01", "train.epochs=2"]
        job = start_shared_job(jobs_folder / name, COUNTING, *pace, *arguments)
        kill(job, diary)
        job.process.wait(10)
        left[name] = job.left_behind(2.0)
        (diary / "hurry").touch()
        runs[name] = ["--resume", str(job.run_dir)]
    ended = in_turn(jobs_folder / "resumed", runs)
    return {name: (left[name], ended[name]) for name in DEATHS}


@pytest.mark.parametrize("name", DEATHS)
def test_no_child_outlives_a_killed_parent(resumed: dict[str, tuple[list[str], Ended]], name: str) -> None:
    left, _ = resumed[name]
    assert left == []


@pytest.mark.parametrize("name", DEATHS)
def test_a_run_whose_parent_was_killed_is_resumed_without_a_gap(
    resumed: dict[str, tuple[list[str], Ended]], name: str
) -> None:
    _, job = resumed[name]
    assert (job.status, job.reason) == (0, ("succeeded", "epochs")), job.stderr
    assert job.leases == {**dict.fromkeys(job.leases, 0), "total": 800, "done": 800}
    assert job.summary["samples"] == 2 * 1600
    assert (job.effects() == 2).all()


@pytest.mark.parametrize("name", DEATHS)
def test_no_half_written_file_survives_the_resume(resumed: dict[str, tuple[list[str], Ended]], name: str) -> None:
    _, job = resumed[name]
    assert [str(path) for path in job.run_dir.rglob(".tmp-*")] == []


def test_the_resume_goes_on_from_the_newest_checkpoint_or_from_the_beginning(
    resumed: dict[str, tuple[list[str], Ended]],
) -> None:
    for name in ("while training", "in a checkpoint"):
        (event,) = resumed[name][1].events("resume")
        assert event["updates"] > 0
    (event,) = resumed["before any checkpoint"][1].events("resume")
    assert event["checkpoint"] is None
    assert "starts from its beginning" in resumed["before any checkpoint"][1].stderr
