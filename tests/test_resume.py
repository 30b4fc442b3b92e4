"""Stopping and going on: signals to a real job, then --resume. The counting model shows that nothing is repeated or
left out; one worker shows that not even a bit differs."""

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.jobs import JOBS, Ended, Job, in_turn
from tests.helpers.processes import wait_for

COUNTING = str(JOBS / "counting.yaml")
DIGITS = ["train.procs=1", "train.threads=1", "train.epochs=40", "evaluate.every_epochs=20"]


def paced(diary: Path, pace_s: float = 0.01) -> list[str]:
    diary.mkdir(parents=True)
    return [COUNTING, f"model.init_args.diary={diary}", f"model.init_args.pace_s={pace_s}", "train.epochs=2"]


@pytest.fixture(scope="module")
def stopped(jobs_folder: Path, start_shared_job: Callable[..., Job]) -> dict[str, Ended]:
    """Jobs stopped by one signal each; the digits in the middle of an epoch, with momentum and dropout."""
    ended = {}
    for name, number in (("SIGINT", signal.SIGINT), ("SIGTERM", signal.SIGTERM)):
        diary = jobs_folder / f"diary-{name}"
        job = start_shared_job(jobs_folder / name, *paced(diary))
        job.wait_for_updates(50)
        job.send(number)
        ended[name] = job.wait()
        (diary / "hurry").touch()
    job = start_shared_job(jobs_folder / "digits", *DIGITS, "log.every_s=0.01")
    job.wait_for_updates(120)
    job.send(signal.SIGINT)
    ended["digits"] = job.wait()
    return ended


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
        "digits undisturbed": [*DIGITS, "log.every_s=0.01"],
        "nowhere": ["--resume", str(jobs_folder / "nowhere")],
    }
    return in_turn(jobs_folder / "resumed", jobs)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_one_signal_checkpoints_and_stops(stopped: dict[str, Ended], name: str) -> None:
    job = stopped[name]
    assert (job.status, job.reason) == (75, ("stopped", name)), job.stderr
    assert job.ledger_adds_up()
    assert 0 < job.summary["samples"] < 2 * 1600
    assert int(job.effects().sum()) == job.summary["samples"]
    assert f"{name}: writing a checkpoint and stopping (once more: stop now)" in job.stderr
    assert not job.left_behind


def test_a_resumed_job_ends_with_the_samples_of_an_undisturbed_one(resumed: dict[str, Ended]) -> None:
    for name, epochs in (("more", 3), ("term", 2)):
        job = resumed[name]
        assert (job.status, job.reason) == (0, ("succeeded", "epochs")), job.stderr
        assert job.summary["samples"] == epochs * 1600
        assert job.leases == {**dict.fromkeys(job.leases, 0), "total": epochs * 400, "done": epochs * 400}
        assert (job.effects() == epochs).all()


def test_procs_and_epochs_may_change_and_the_records_go_on(resumed: dict[str, Ended]) -> None:
    job = resumed["more"]
    spawned = {event["worker"] for event in job.events("spawn")}
    assert spawned == {0, 1, 2}
    assert [event["event"] for event in job.events() if event["event"] in ("resume", "end")][:3] == [
        "end",
        "resume",
        "end",
    ]
    assert "resuming from update-" in job.stderr


def test_resuming_a_finished_run_changes_nothing(resumed: dict[str, Ended]) -> None:
    again, more = resumed["again"], resumed["more"]
    assert (again.status, again.reason) == (0, ("succeeded", "epochs")), again.stderr
    assert again.leases == more.leases
    assert (again.effects() == 3).all()


def test_one_worker_interrupted_and_resumed_gives_the_bits_of_an_undisturbed_one(
    stopped: dict[str, Ended], resumed: dict[str, Ended]
) -> None:
    assert stopped["digits"].status == 75
    assert stopped["digits"].summary["updates"] % 90 > 0, "stopped in the middle of an epoch"
    assert resumed["digits"].status == resumed["digits undisturbed"].status == 0, resumed["digits"].stderr
    assert resumed["digits"].model_bytes() == resumed["digits undisturbed"].model_bytes()
    assert resumed["digits"].summary["metrics"] == resumed["digits undisturbed"].summary["metrics"]


def test_a_job_file_beside_resume_is_a_usage_error(resumed: dict[str, Ended]) -> None:
    assert resumed["beside"].status == 2
    assert "--resume takes job and folder from the run; a job file" in resumed["beside"].stderr


def test_what_may_not_change_is_refused_with_both_values(resumed: dict[str, Ended]) -> None:
    job = resumed["changed"]
    assert job.status == 2
    assert "data.batch_size: was 4, now 8" in job.stderr
    assert "optimizer.init_args.lr: was 1.0, now 0.5" in job.stderr


def test_a_run_that_is_not_there_is_not_found(resumed: dict[str, Ended]) -> None:
    assert resumed["nowhere"].status == 3
    assert "there is no such folder" in resumed["nowhere"].stderr


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


def test_a_second_signal_cancels_at_once(jobs_folder: Path, start_job: Callable[..., Job]) -> None:
    diary = jobs_folder / "diary-second"
    job = start_job(jobs_folder / "second", *paced(diary))
    job.wait_for_updates(10)
    (diary / "hold").touch()  # no batch ends any more: the first signal cannot be obeyed
    wait_for("nobody to go on", lambda: _stands_still(job))
    job.send(signal.SIGINT)
    job.wait_for_event("signal")
    job.send(signal.SIGINT)
    ended = job.wait(15)
    assert (ended.status, ended.reason) == (130, ("cancelled", "second SIGINT")), ended.stderr
    assert not ended.left_behind


def _stands_still(job: Job) -> bool:
    before = job.status()
    wait_for("a newer status", lambda: job.status()["time"] > before["time"] + 0.1)
    return bool(job.status()["updates"] == before["updates"])


def test_an_evaluation_that_a_stop_has_met_is_made_up_for(jobs_folder: Path, start_job: Callable[..., Job]) -> None:
    folder = jobs_folder / "owed"
    arguments = [str(JOBS / "interrupting.yaml"), f"model.init_args.folder={folder}"]
    first = start_job(folder, *arguments).wait()
    assert (first.status, first.reason) == (75, ("stopped", "SIGINT")), first.stderr
    assert not first.events("evaluation")
    (second,) = in_turn(jobs_folder / "owing", {"resumed": ["--resume", str(first.run_dir)]}).values()
    assert second.status == 0, second.stderr
    assert [event["updates"] for event in second.events("evaluation")] == [23, 46]  # 1,437 samples, batches of 64
