"""A process that does not even die of SIGKILL: the job goes on without it, ends, and says so. Made real with the
freezer of control groups, version 1: what is frozen is in state D, and the kernel acts on a signal only when it
thaws."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.jobs import JOBS, Job
from tests.helpers.processes import PATIENCE_S, state_of, wait_for

pytestmark = pytest.mark.processes

FREEZER = Path("/sys/fs/cgroup/freezer")
SILENCE_S = 3


@pytest.fixture
def freezer() -> Iterator[Path]:
    folder = FREEZER / f"hogwild-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "freezer.state").write_text("THAWED")
    except OSError as error:
        pytest.skip(f"no freezer (control groups, version 1) can be used here: {error}")
    yield folder
    (folder / "freezer.state").write_text("THAWED")
    wait_for("its processes to be gone", lambda: not (folder / "cgroup.procs").read_text().strip())
    folder.rmdir()


@pytest.mark.whole
def test_a_worker_that_does_not_die_of_sigkill_is_left_behind_and_its_place_stays_empty(
    freezer: Path, tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    arguments = [
        str(JOBS / "counting.yaml"),
        f"model.init_args.diary={tmp_path}",
        "model.init_args.pace_s=0.1",
        f"supervise.stall_timeout_s={SILENCE_S}",
        "supervise.max_restarts=100",
        "supervise.max_item_attempts=100",
        "checkpoint.every_s=null",
        "train.exchange=direct",
    ]
    job = start_job(tmp_path / "job", *arguments)
    job.wait_for_event("ready", 2)
    victim = job.workers()[0]
    notes = tmp_path / f"train-{victim}"
    wait_for("its second batch", lambda: notes.exists() and notes.read_text().count("\n") >= 2)
    (tmp_path / "hold").touch()
    wait_for("it to stand between two batches", (tmp_path / f"held-{victim}").exists)
    (freezer / "cgroup.procs").write_text(str(victim))
    (freezer / "freezer.state").write_text("FROZEN")
    wait_for("the frost", lambda: state_of(victim) == "D")
    (tmp_path / "hurry").touch()
    (tmp_path / "hold").unlink()

    job.wait_for_exit_of(victim)
    # Its end is bounded, too: the interpreter waits at its exit for every child that it knows of.
    assert job.process.wait(PATIENCE_S) == 0, job.stderr()
    assert state_of(victim) == "D"
    (freezer / "freezer.state").write_text("THAWED")
    ended = job.wait()
    assert not ended.left_behind

    (exit_event,) = [event for event in ended.events("exit") if event["pid"] == victim]
    assert exit_event["kind"] == "stalled"
    assert (
        exit_event["how"].startswith("stalled: silent for")
        and "still alive 5 s after SIGKILL (disk-sleep" in exit_event["how"]
    )
    assert f"warning: worker 0 (pid {victim}) is still alive 5 s after SIGKILL" in ended.stderr
    assert [event["incarnation"] for event in ended.events("spawn") if event["worker"] == 0] == [1]
    assert ended.ledger_adds_up() and ended.leases["quarantined"] == 0
    assert ended.effects().min() == 1
