"""Whole jobs from the command line: how they learn, what they count, how they end. Real data (the bundled digits) and a
model that counts the effects of every sample (jobs/counting.py)."""

import json
import signal
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from hogwild.monitoring.run_status import ALIVE
from tests.helpers.jobs import JOBS, Ended, Job, in_turn
from tests.helpers.processes import wait_for

pytestmark = pytest.mark.processes

COUNTING = str(JOBS / "counting.yaml")
NORM = str(JOBS / "norm.yaml")
DIGITS = ["train.threads=1", "train.epochs=3", "evaluate.every_epochs=3", "checkpoint.every_s=null"]
RATES = ["optimizer.class_path=counting.Treacherous", "train.epochs=2", "lr_schedule={name: linear, final_factor: 0.0}"]


@pytest.fixture(scope="module")
def ended(jobs_folder: Path) -> dict[str, Ended]:
    """Small jobs, one after the other in one process; each has workers of its own."""
    rates, three = jobs_folder / "rates", jobs_folder / "three"
    for diary in (rates, three):
        diary.mkdir()
    overtaken = [f"model.init_args.diary={three}", "model.init_args.crimes.waits to be overtaken=0"]
    jobs = {
        "one": ["train.procs=1", *DIGITS],
        "target": ["train.procs=1", *DIGITS, "train.epochs=100", "evaluate.target={accuracy: 0.9}"],
        "fraction": ["train.procs=2", *DIGITS, "data.val={fraction: 0.25}", "optimizer.state=shared"],
        "norm": [NORM],
        "three epochs": [COUNTING, "train.epochs=3", *overtaken],
        "max updates": [COUNTING, "train.procs=3", "train.accumulate=2", "train.epochs=3", "train.max_updates=237"],
        "max time": [COUNTING, "train.procs=0", "train.epochs=100000", "train.max_time_s=0.7"],
        "more time": ["--resume", str(jobs_folder / "jobs" / "max time" / "run")],
        "nan": [COUNTING, *nan_at(41, 801), "data.shuffle=none", f"model.init_args.diary={rates}"],
        "rates": [COUNTING, *RATES, f"optimizer.init_args.diary={rates}", "train.procs=1"],
    }
    return in_turn(jobs_folder / "jobs", jobs)


def nan_at(*numbers: int) -> list[str]:
    crimes = ("computes nan", "always computes nan")
    return [f"model.init_args.crimes.{crime}={number}" for crime, number in zip(crimes, numbers, strict=True)]


@pytest.fixture(scope="module")
def default(jobs_folder: Path, start_shared_job: Callable[..., Job]) -> tuple[Ended, list[dict[str, object]]]:
    """`python run.py --procs 4 --json`, and every status.json seen meanwhile: as many as the machine lets us see."""
    job = start_shared_job(jobs_folder / "default", "--procs", "4", "--json", "log.every_s=0.1")
    seen: list[dict[str, object]] = []

    def watch() -> bool:
        is_over = job.process.poll() is not None  # asked first: the last status is there then
        look_at_status(job, seen)
        return is_over

    wait_for("the end of the default job", watch)
    return job.wait(), seen


def look_at_status(job: Job, seen: list[dict[str, object]]) -> None:
    status = job.status()
    if status and (not seen or seen[-1] != status):
        seen.append(status)


@pytest.fixture(scope="module")
def inside(jobs_folder: Path, start_shared_job: Callable[..., Job]) -> tuple[Ended, list[dict[str, object]]]:
    """A job inside the parent, which goes on until several of its status.json were seen, and a Ctrl-C; the same."""
    job = start_shared_job(jobs_folder / "inside", COUNTING, "train.procs=0", "train.epochs=100000")
    seen: list[dict[str, object]] = []

    def watch() -> bool:
        look_at_status(job, seen)
        assert job.process.poll() is None, job.stderr()
        running = [status for status in seen if status["state"] == "running"]
        return len(running) >= 5 and running[-1]["updates"] >= 10  # type: ignore[operator]

    wait_for("five of its status files", watch)
    job.send(signal.SIGINT)
    ended = job.wait()
    look_at_status(job, seen)
    return ended, seen


# ---- the default job ------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_the_default_job_learns_the_digits(default: tuple[Ended, list[dict[str, object]]]) -> None:
    job, _ = default
    assert (job.status, job.reason) == (0, ("succeeded", "epochs")), job.stderr
    assert job.summary["metrics"]["accuracy"] > 0.96
    assert job.leases == {**dict.fromkeys(job.leases, 0), "total": 3600, "done": 3600}
    assert job.summary["samples"] == 40 * 1437
    assert not job.left_behind


@pytest.mark.whole
def test_the_summary_is_the_last_line_of_the_output(default: tuple[Ended, list[dict[str, object]]]) -> None:
    job, _ = default
    assert json.loads(job.stdout.splitlines()[-1]) == job.summary


@pytest.mark.parametrize(("watched", "least", "end"), [("default", 0, "succeeded"), ("inside", 5, "stopped")])
def test_status_is_whole_whenever_it_is_read(
    watched: str, least: int, end: str, request: pytest.FixtureRequest
) -> None:
    _, seen = request.getfixturevalue(watched)
    running = [status for status in seen if status["state"] == "running"]
    assert len(running) >= least
    for status in running:
        assert {"epoch", "updates", "samples", "progress", "pid", "workers", "wall_s"} <= status.keys()
    progress = [status["updates"] for status in seen]
    assert progress == sorted(progress)
    assert seen[-1]["state"] == end
    assert {"epoch", "planned_updates", "progress", "metrics"} <= seen[-1].keys()
    states = [key for key, _ in groupby(status["state"] for status in seen if status)]
    assert states == [state for state in (*ALIVE, end) if state in states], "and it never goes back"


@pytest.mark.whole
def test_the_records_tell_the_story_of_the_job(default: tuple[Ended, list[dict[str, object]]]) -> None:
    job, _ = default
    kinds = [event["event"] for event in job.events()]
    assert kinds[0] == "start"
    assert kinds[-1] == "end"
    assert kinds.count("spawn") == kinds.count("evaluation") == 4
    assert 1 <= kinds.count("ready") <= 4  # who starts late finds nothing left to do
    records = [json.loads(line) for line in (job.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [r["epoch"] for r in records if r["kind"] == "evaluation"] == [10, 20, 30, 40]
    assert any(record["kind"] == "train" and (record["loss"] or 0) > 0 for record in records)


# ---- counting --------------------------------------------------------------------------------------------------------


def test_every_sample_takes_effect_once_per_epoch_over_all_workers(ended: dict[str, Ended]) -> None:
    job = ended["three epochs"]
    assert job.status == 0, job.stderr
    assert (job.effects() == 3).all()
    assert job.summary["samples"] == 3 * 1600


def test_staleness_is_seen_with_two_workers_and_is_nothing_with_one(ended: dict[str, Ended]) -> None:
    assert ended["three epochs"].summary["staleness"]["max"] > 0
    assert ended["one"].summary["staleness"] == {"p50": 0, "p99": 0, "max": 0}


def test_max_updates_is_exact_with_three_workers_that_accumulate(ended: dict[str, Ended]) -> None:
    job = ended["max updates"]
    assert (job.status, job.reason) == (0, ("succeeded", "max_updates")), job.stderr
    assert job.summary["updates"] == 237
    assert job.leases["done"] == job.leases["total"] == 2 * 237
    # An update of two batches takes half of each: its samples count half.
    assert float(job.effects().sum()) == 237 * 4


def test_max_time_stops_the_job_so_that_it_can_be_resumed(ended: dict[str, Ended]) -> None:
    """Twice, half as long: a machine that was elsewhere for all of the one time trains in the other."""
    assert ended["max time"].status == 75
    job = ended["more time"]
    assert (job.status, job.reason) == (75, ("stopped", "max_time_s")), job.stderr
    assert [event["reason"] for event in job.events("end")] == ["max_time_s"] * 2
    assert int(job.effects().sum()) == job.summary["samples"] > 0
    assert job.ledger_adds_up()


def test_a_batch_whose_gradient_is_nan_is_skipped_and_counted(ended: dict[str, Ended]) -> None:
    job = ended["nan"]
    assert (job.status, job.leases["skipped"], job.leases["done"]) == (0, 2, 398), job.stderr
    (told,) = job.summary["warnings"]
    assert told.startswith("2 of 400 batches were not applied, because ") and job.stderr.count(f"warning: {told}") == 1
    effects = job.effects()
    assert effects[40:44].tolist() == effects[800:804].tolist() == [0] * 4
    assert int(effects.sum()) == 398 * 4


def test_the_learning_rate_follows_the_global_count(ended: dict[str, Ended], jobs_folder: Path) -> None:
    assert ended["rates"].status == 0, ended["rates"].stderr
    (file,) = (jobs_folder / "rates").glob("rates-*")
    rates = [float(line) for line in file.read_text().splitlines()]
    assert len(rates) == 800
    assert rates == sorted(rates, reverse=True)
    assert rates[400] == pytest.approx(0.5, abs=0.01)
    assert float(ended["rates"].effects().sum()) == pytest.approx(4 * sum(rates), rel=1e-4)


# ---- ends, splits, layers -------------------------------------------------------------------------------------------


def test_a_target_ends_the_job_as_succeeded_at_the_first_evaluation_that_meets_it(ended: dict[str, Ended]) -> None:
    job = ended["target"]
    assert (job.status, job.reason) == (0, ("succeeded", "target")), job.stderr
    evaluations = [event["accuracy"] for event in job.events("evaluation")]
    assert evaluations[-1] >= 0.9
    assert all(accuracy < 0.9 for accuracy in evaluations[:-1])
    assert job.leases["total"] == job.leases["done"] == 90 * 3 * len(evaluations)


def test_a_fraction_is_held_back_and_shared_state_trains(ended: dict[str, Ended]) -> None:
    job = ended["fraction"]
    assert job.status == 0, job.stderr
    assert job.summary["samples"] == 3 * (1437 - 359)
    assert job.summary["metrics"]["accuracy"] > 0.6


def test_a_last_batch_of_one_is_merged_for_batchnorm_and_said(ended: dict[str, Ended]) -> None:
    job = ended["norm"]
    assert job.status == 0, job.stderr
    assert "merged into the one before (5 samples)" in job.stderr
    assert job.leases["total"] == job.leases["done"] == 3 * (1437 // 4)
    assert job.summary["samples"] == 3 * 1437
    assert job.summary["metrics"]["accuracy"] > 0.85
    assert int(job.tensors()["layers.1.num_batches_tracked"]) == 3 * (1437 // 4)


def test_nothing_of_any_job_is_left_in_the_process_that_ran_it(ended: dict[str, Ended]) -> None:
    for name, job in ended.items():
        assert (name, job.left_behind, dict(job.process_leaks)) == (name, [], {"descriptors": 0, "threads": 0})


@pytest.mark.whole
def test_inside_the_parent_ctrl_c_checkpoints_and_stops(inside: tuple[Ended, list[dict[str, object]]]) -> None:
    ended, _ = inside
    assert (ended.status, ended.reason) == (75, ("stopped", "SIGINT")), ended.stderr
    assert int(ended.effects().sum()) == ended.summary["samples"]
    assert not ended.left_behind
