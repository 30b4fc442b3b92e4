"""A running job that is given more workers and fewer, by files in RUN/requests, while workers die."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.jobs import JOBS, Ended, Job, write_request
from tests.helpers.processes import wait_for

pytestmark = pytest.mark.processes

COUNTING = str(JOBS / "counting.yaml")
SIZES = (4, 1, 3, 2, 4, 2)


def ask(job: Job, name: str, **request: Any) -> str:
    """The answer to a request."""
    write_request(job.run_dir, name, **request)

    def answer() -> list[str]:
        return [event["answer"] for event in job.events("request") if event["id"] == name]

    return wait_for(f"the answer to {name}", answer)[0]


def training(job: Job) -> int:
    return sum(row["state"] == "training" for row in job.status().get("workers", []))


@pytest.fixture(scope="module")
def resized(jobs_folder: Path, start_shared_job: Callable[..., Job]) -> tuple[Ended, list[str]]:
    diary = jobs_folder / "diary"
    diary.mkdir()
    job = start_shared_job(
        jobs_folder / "resized",
        COUNTING,
        "train.procs_max=4",
        f"model.init_args.diary={diary}",
        "model.init_args.pace_s=0.3",
        "train.exchange=direct",
        "supervise.max_item_attempts=100",
    )
    wait_for("two workers", lambda: training(job) == 2)
    answers = [
        ask(job, "strange", ask="sing"),
        ask(job, "too-many", ask="resize", procs=5),
        ask(job, "none", ask="resize", procs=True),
    ]
    answers += [
        ask(job, "checkpoint", ask="checkpoint"),
        ask(job, "stacks", ask="stacks"),
        ask(job, "nowhere", ask="resize", cores=[9999]),
        ask(job, "no-cores", ask="resize", cores=["0"]),
        ask(job, "here", ask="resize", cores=sorted(os.sched_getaffinity(0))[:1]),
    ]
    masks = {frozenset(os.sched_getaffinity(pid)) for pid in job.workers().values()}
    assert masks == {frozenset(sorted(os.sched_getaffinity(0))[:1])}
    for number, procs in enumerate(SIZES):
        answers.append(ask(job, str(number), ask="resize", procs=procs))
        wait_for(f"{procs} workers", lambda procs=procs: training(job) == procs == len(job.status()["workers"]))
        victim = job.workers()[0]
        os.kill(victim, signal.SIGKILL)
        job.wait_for_exit_of(victim)
        job.wait_for_event("restart", number + 1)  # else the job may end before the last one
    (diary / "hurry").touch()
    return job.wait(), answers


@pytest.mark.whole
def test_every_batch_takes_effect_once_however_many_workers_there_are(resized: tuple[Ended, list[str]]) -> None:
    ended, _ = resized
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    assert ended.ledger_adds_up() and ended.leases["quarantined"] == 0
    effects, redone = ended.effects(), ended.leases["redone"]
    assert effects.min() == 1 and int((effects > 1).sum()) <= 4 * redone
    assert not ended.left_behind


@pytest.mark.whole
def test_a_worker_that_leaves_is_no_death_and_one_that_comes_no_restart(resized: tuple[Ended, list[str]]) -> None:
    ended, _ = resized
    kinds = [event["kind"] for event in ended.events("exit")]
    assert kinds.count("left") == sum(max(0, a - b) for a, b in zip((2, *SIZES), SIZES, strict=False))
    assert ended.summary["restarts"] == len(ended.events("restart")) == kinds.count("died") == len(SIZES)


@pytest.mark.whole
def test_what_cannot_be_done_is_answered_with_the_rule(resized: tuple[Ended, list[str]]) -> None:
    ended, answers = resized
    assert answers[:3] == [
        "it asks for nothing known; known are checkpoint, stacks, resize, predictor, ids",
        "procs must be a number from 1 (supervise.min_workers) to 4 (train.procs_max), got 5",
        "procs must be a number from 1 (supervise.min_workers) to 4 (train.procs_max), got True",
    ]
    assert answers[3:8] == [
        *("done", "done", "cores [9999] are not all of this machine, or not open to this job"),
        *("cores must be a list of logical CPUs, such as [0, 1], got ['0']", "done"),
    ]
    assert answers[8:] == ["done"] * len(SIZES)
    told = {event["id"]: event for event in ended.events("request")}
    assert (ended.run_dir / "checkpoints" / told["checkpoint"]["checkpoint"]).parent.is_dir()
    assert list(told["stacks"]["calls"]) and (Path(told["stacks"]["stacks"]) / "worker-0.txt").read_text()
    assert not list((ended.run_dir / "requests").iterdir())
