"""Loaders that are slow, and alive: whole jobs in which a batch takes longer than a start or a deadlock may; and a job
in which nobody has anything to do, and not all is done. The tables are in test_roster.py."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.jobs import JOBS, Ended, Job
from tests.whole_jobs.test_stream_jobs import streaming

pytestmark = pytest.mark.processes

START_LIMIT_S = 10  # as in test_replacements.py: no machine needs as long for a process
DEADLOCK_S = 6
KILLED_AT = 200  # records, and then they take START_LIMIT_S to pass over


@pytest.fixture(scope="module")
def ended(jobs_folder: Path, start_shared_job: Callable[..., Job]) -> dict[str, Ended]:
    """Side by side: they sleep most of the time."""
    diary = jobs_folder / "diary"
    diary.mkdir()
    pace_s = (START_LIMIT_S + 1) / KILLED_AT
    passing = streaming("Slow", KILLED_AT + 40, diary=diary, once_killed=True, pace_s=pace_s)
    crimes = f"data.train.init_args.crimes={{is killed: {KILLED_AT}}}"
    slow = streaming("Slow", 8, pace_s=(DEADLOCK_S + 2) / 4)
    limits = [f"supervise.deadlock_timeout_s={DEADLOCK_S}", "supervise.grace_s=1"]
    jobs = {
        "passes over": [*passing, crimes, "train.procs=1", f"supervise.start_timeout_s={START_LIMIT_S}"],
        "slow batches": [*slow, "train.procs=1", *limits],
    }
    started = {name: start_shared_job(jobs_folder / name, *given) for name, given in jobs.items()}
    folder, python = jobs_folder / "withheld", (str(JOBS / "withheld.py"),)
    limits[0] = "supervise.deadlock_timeout_s=2"
    still = [*streaming("Numbers"), *limits, "--run-dir", str(folder / "run")]
    started["withheld"] = start_shared_job(folder, "train", *still, python=python)
    return {name: job.wait() for name, job in started.items()}


@pytest.mark.parametrize("name", ["passes over", "slow batches"])
def test_a_loader_that_reads_is_left_alone_however_long_its_batch_takes(ended: dict[str, Ended], name: str) -> None:
    job = ended[name]
    assert job.status == 0, job.stderr
    whys = [event["why"] for event in job.events("loader-stall")]
    assert all("did not get ready" in why for why in whys), "only a start may be slow, on a busy machine"
    assert (job.effects() == 1).all()
    assert not job.left_behind


def test_records_that_are_passed_over_are_read_for_longer_than_a_start_may_take(ended: dict[str, Ended]) -> None:
    job = ended["passes over"]
    _, again = job.events("loader-ready")
    (end,) = job.events("end")
    assert end["time"] - again["time"] > START_LIMIT_S


def test_a_job_in_which_nobody_has_anything_to_do_ends_and_says_what_everybody_waits_for(
    ended: dict[str, Ended],
) -> None:
    job = ended["withheld"]
    assert job.reason == ("failed", "train/deadlocked")
    said = " ".join(job.stderr.split())
    assert "no batch was committed or filled for 2 s (supervise.deadlock_timeout_s)" in said
    assert "the ledger is at epoch 0 of 1, " in said
    for noun, what in (("worker", "a lease"), ("loader", "something to read (16 of 16 slots are filled; epochs")):
        for number in (0, 1):
            assert re.search(rf"{noun} {number} \(pid \d+\): waits for {re.escape(what)}", said)
    assert not job.left_behind
