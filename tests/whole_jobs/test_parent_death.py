"""The supervisor is killed with SIGKILL: in its first seconds, while it trains, in the middle of a checkpoint. No child
of it outlives it, stopped or not, nothing is left in shared memory, and the run can be resumed without a sample lost
or repeated. Children are found by a mark in their environment, whoever their parent is by now."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.jobs import JOBS, RUN_PY, Ended, Job, in_turn
from tests.helpers.processes import PATIENCE_S, state_of, wait_for

pytestmark = pytest.mark.processes

COUNTING = str(JOBS / "counting.yaml")
SEEDS = range(10)
AT_ONCE = 2  # jobs that start side by side: the machine is small, and a start is mostly waiting for torch
FIRST_SECONDS = 3.0
FOR_EVER = "train.epochs=1000000"  # however late the kill comes, the job is not at its end


@pytest.mark.parametrize("seeds", [SEEDS[i : i + AT_ONCE] for i in range(0, len(SEEDS), AT_ONCE)])
def test_a_parent_killed_in_its_first_seconds_leaves_no_child(
    seeds: range, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    jobs = [start_job(tmp_path / str(seed), "--procs", "2", FOR_EVER) for seed in seeds]
    began = time.monotonic()
    moments = sorted(
        (random.Random(seed).uniform(0, FIRST_SECONDS), job) for seed, job in zip(seeds, jobs, strict=True)
    )
    for moment, job in moments:
        _wait_until(began + moment)
        job.send(signal.SIGKILL)
        assert job.process.wait(PATIENCE_S) == -signal.SIGKILL
        assert job.left_behind() == []


def _wait_until(moment_s: float) -> None:
    wait_for("the moment", lambda: time.monotonic() >= moment_s)


def killed_while_training(job: Job, diary: Path) -> None:
    """One worker is stopped: it can neither see its lifeline close nor notice anything else."""
    job.wait_for_event("ready", 2)
    job.wait_for_event("checkpoint", 1)
    victim = job.workers()[0]
    os.kill(victim, signal.SIGSTOP)
    wait_for("the stop", lambda: state_of(victim) == "T")
    job.send(signal.SIGKILL)


def killed_in_a_checkpoint(job: Job, diary: Path) -> None:
    """A checkpoint is written into a folder of a temporary name; the second one does not get further than that."""
    wait_for("the disk that does not answer", (diary / "stuck").exists)
    assert list((job.run_dir / "checkpoints").glob(".tmp-update-*"))
    job.send(signal.SIGKILL)


def killed_before_any_checkpoint(job: Job, diary: Path) -> None:
    job.wait_for_event("ready", 2)
    job.wait_for_updates(1)
    job.send(signal.SIGKILL)


DEAF_DISK = "in a checkpoint"
DEATHS: dict[str, tuple[Callable[[Job, Path], None], list[str]]] = {
    "while training": (killed_while_training, ["checkpoint.every_updates=4"]),
    DEAF_DISK: (
        killed_in_a_checkpoint,
        ["checkpoint.every_updates=4", "model.init_args.ballast=1000000", "checkpoint.keep=2"],
    ),
    "before any checkpoint": (killed_before_any_checkpoint, []),
}


@pytest.fixture(scope="module")
def resumed(jobs_folder: Path, start_shared_job: Callable[..., Job]) -> dict[str, tuple[list[str], Ended]]:
    """For each death: what was left after it, and the run resumed. At this pace, and without the `hurry`, a job takes
    longer than a minute: the kill may be late."""
    left, runs = {}, {}
    for name, (kill, arguments) in DEATHS.items():
        diary = jobs_folder / f"diary-{name}"
        diary.mkdir()
        pace = [f"model.init_args.diary={diary}", "model.init_args.pace_s=0.2", "train.epochs=2"]
        run_dir = jobs_folder / name / "run"
        command = ("train", COUNTING, *pace, *arguments, "--run-dir", str(run_dir))
        python = (str(JOBS / "deaf_disk.py"), str(diary)) if name == DEAF_DISK else (RUN_PY,)
        job = start_shared_job(jobs_folder / name, *command, python=python, run_dir=run_dir)
        kill(job, diary)
        assert job.process.wait(PATIENCE_S) == -signal.SIGKILL
        left[name] = job.left_behind()
        (diary / "hurry").touch()
        runs[name] = ["--resume", str(job.run_dir), "checkpoint.every_updates=100"]
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
    assert "starts from the beginning" in resumed["before any checkpoint"][1].stderr
