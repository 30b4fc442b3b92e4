"""A supervisor that is told to stop, or that stands still, while something takes long: its loop waits for nothing, and
a stop is bounded. The models count how often each sample took effect (jobs/counting.py)."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hogwild.storage.checkpoint_format import newest_good
from tests.helpers.jobs import JOBS, Ended, Job
from tests.helpers.processes import state_of, wait_for

pytestmark = pytest.mark.processes

COUNTING = str(JOBS / "counting.yaml")
PLAIN = ["data.shuffle=none", "checkpoint.every_s=null"]
# Whoever is held must not be called silent, however long the machine takes: that is another test.
PATIENT = ["supervise.stall_timeout_s=800", "supervise.deadlock_timeout_s=900"]
SILENCE_S = 8  # long enough that no machine leaves a healthy worker silent for it


def counting(diary: Path, *arguments: str) -> list[str]:
    diary.mkdir(parents=True)
    return [COUNTING, f"model.init_args.diary={diary}", *PLAIN, *arguments]


def resumed(start_job: Callable[..., Job], stopped: Ended, folder: Path) -> Ended:
    """Goes on with the run to its end; every sample took effect once."""
    ended = start_job(folder, "--resume", str(stopped.run_dir), run_dir=stopped.run_dir).wait()
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    assert ended.ledger_adds_up() and ended.leases["redone"] == 0
    assert (ended.effects() == 1).all()
    return ended


@pytest.fixture(scope="module")
def frozen(jobs_folder: Path, start_shared_job: Callable[..., Job]) -> tuple[Job, float]:
    """A job all of whose processes were stopped, as by the pause of a container or a laptop that sleeps, and when."""
    limits = [f"supervise.stall_timeout_s={SILENCE_S}", "model.init_args.pace_s=0.05", "train.epochs=100000"]
    job = start_shared_job(jobs_folder / "frozen", *counting(jobs_folder / "diary-frozen", *limits))
    job.wait_for_updates(20)
    for pid in (job.process.pid, *job.workers().values()):  # the supervisor first: nobody is seen to be silent
        os.kill(pid, signal.SIGSTOP)
        wait_for("the stop", lambda pid=pid: state_of(pid) == "T")  # type: ignore[misc]
    return job, time.monotonic()


def test_the_loop_goes_on_while_parameters_are_copied(
    frozen: tuple[Job, float], jobs_folder: Path, start_job: Callable[..., Job]
) -> None:
    """A copy that takes for ever: meanwhile a worker dies and is replaced, and a second signal ends the job at once."""
    diary = jobs_folder / "diary-copy"
    arguments = counting(diary, "model.class_path=gated.Gated", "checkpoint.every_updates=40", *PATIENT)
    (diary / "gates").touch()
    job = start_job(jobs_folder / "copy", *arguments)
    wait_for("the first copy", (diary / "saving-1").exists)
    job.wait_for_event("ready", 2)
    victim = job.workers()[0]
    os.kill(victim, signal.SIGKILL)
    job.wait_for_exit_of(victim)
    job.wait_for_event("ready", 3)
    assert job.status()["doing"] == "saving" and not job.events("checkpoint")
    (diary / "saved-1").touch()
    job.wait_for_event("checkpoint")
    wait_for("the second copy", (diary / "saving-2").exists)
    job.send(signal.SIGTERM)
    job.wait_for_event("signal")
    job.send(signal.SIGTERM)
    ended = job.wait()
    assert (ended.status, ended.summary["state"]) == (143, "cancelled"), ended.stderr
    assert not ended.left_behind
    good, rejected = newest_good(ended.run_dir / "checkpoints")
    assert not rejected and good is not None
    assert [event["name"] for event in ended.events("checkpoint")] == [good.name]
    (diary / "gates").unlink()
    resumed(start_job, ended, jobs_folder / "copy-resumed")


def test_a_stop_does_not_wait_for_a_worker_in_a_long_operation(
    frozen: tuple[Job, float], jobs_folder: Path, start_job: Callable[..., Job]
) -> None:
    diary = jobs_folder / "diary-held"
    limits = ["supervise.grace_s=1", "supervise.max_restarts=0", "supervise.max_item_attempts=1", *PATIENT]
    job = start_job(jobs_folder / "held", *counting(diary, *limits))
    job.wait_for_updates(20)
    (diary / "hold").touch()
    held = set(job.workers().values())
    wait_for("both to stand between two updates", lambda: all((diary / f"held-{pid}").exists() for pid in held))
    job.send(signal.SIGTERM)
    ended = job.wait()
    assert (ended.status, ended.reason) == (75, ("stopped", "SIGTERM")), ended.stderr
    assert {event["pid"] for event in ended.events("fence")} == held
    for event in ended.events("exit"):
        assert "did not park within 1 s (supervise.grace_s)" in event["how"] and not event["quarantined"]
    assert ended.summary["restarts"] == 0 and not ended.left_behind
    good, rejected = newest_good(ended.run_dir / "checkpoints")
    assert not rejected and good is not None and good.name == ended.summary["checkpoint"]
    (diary / "hold").unlink()
    assert resumed(start_job, ended, jobs_folder / "held-resumed").leases["quarantined"] == 0


@pytest.mark.parametrize(("name", "further"), [("SIGUSR1", []), ("SIGUSR2", ["train.procs=0"])])
def test_a_schedulers_notice_to_all_processes_stops_the_job_with_a_checkpoint(
    tmp_path: Path, start_job: Callable[..., Job], name: str, further: list[str]
) -> None:
    diary = tmp_path / "diary"
    job = start_job(tmp_path / "job", *counting(diary, "model.init_args.pace_s=0.2", *further))
    job.wait_for_updates(5)
    for pid in (*job.workers().values(), job.process.pid):  # as by srun
        os.kill(pid, signal.Signals[name])
    ended = job.wait()
    assert (ended.status, ended.reason) == (75, ("stopped", name)), ended.stderr
    assert ended.summary["restarts"] == 0 and not ended.left_behind
    assert f"{name}: writing a checkpoint and stopping\n" in ended.stderr
    good, rejected = newest_good(ended.run_dir / "checkpoints")
    assert not rejected and good is not None and good.name == ended.summary["checkpoint"]
    (diary / "hurry").touch()
    resumed(start_job, ended, tmp_path / "resumed")


def test_a_job_whose_processes_all_stood_still_for_longer_than_a_stall_goes_on(frozen: tuple[Job, float]) -> None:
    job, since_s = frozen
    workers = job.workers()
    wait_for("more time than a stall takes", lambda: time.monotonic() > since_s + SILENCE_S + 1)
    shown = job.status()["time"]
    job.send(signal.SIGCONT)
    wait_for("a whole turn of the supervisor's loop", lambda: job.status()["time"] > shown)
    for pid in workers.values():
        os.kill(pid, signal.SIGCONT)
    job.wait_for_updates(job.status()["updates"] + 20)
    job.send(signal.SIGTERM)
    ended = job.wait()
    assert (ended.status, ended.reason) == (75, ("stopped", "SIGTERM")), ended.stderr
    assert not ended.events("stall") and {event["pid"] for event in ended.events("spawn")} == set(workers.values())
    assert ended.summary["restarts"] == 0 and not ended.left_behind
