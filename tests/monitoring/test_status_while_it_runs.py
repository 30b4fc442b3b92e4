"""status.json while a job starts, runs and is killed, and the lines of progress (test_run_status.py: as it is read)."""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hogwild import host
from hogwild.monitoring.run_status import (
    LATE_S,
    LOST,
    Best,
    JobSnapshot,
    RunAttempt,
    StreamSnapshot,
    WorkerSnapshot,
    progress_line,
    read_status,
    record_of,
)
from hogwild.storage.files import to_json
from hogwild.storage.run_directory import RESOLVED, STATUS, RunDir
from tests.helpers.jobs import Job
from tests.helpers.processes import PATIENCE_S, wait_for
from tests.helpers.run_status import no_start_up
from tests.monitoring.test_live_display import snapshot

SNAPSHOT = replace(
    snapshot(),
    best=Best("auc", 0.852, 11_000, 3, "update-000011000"),
    metrics={"auc": 0.85},
    stream=StreamSnapshot(loaders=1, wanted=2, filled=3, slots=4),
    workers=(WorkerSnapshot(0, "training", pid=7, phases={"working": 1.0}), WorkerSnapshot(1, "training", pid=8)),
    news=("12:00:00  worker 0  ready",),
)


def here(**changes: Any) -> RunAttempt:
    return replace(RunAttempt.here("command line", 1.0), **changes)


def write(run: Path, state: str, attempt: RunAttempt | None = None, **more: Any) -> dict[str, Any]:
    run.mkdir(exist_ok=True)
    record = record_of(attempt or here(), state, SNAPSHOT, more)
    (run / STATUS).write_text(json.dumps(to_json(record)))
    return record


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A run directory whose lock is held."""
    with RunDir.create(tmp_path / "run", "job") as run:
        (run.path / RESOLVED).touch()
        yield run.path


# ---- states ---------------------------------------------------------------------------------------------------------


def test_a_late_record_is_silent_and_has_no_speed(held: Path) -> None:
    record = write(held, "running")
    assert read_status(held).late_s is None
    (held / STATUS).write_text(json.dumps(to_json(record | {"time": time.time() - LATE_S - 5})))
    found = read_status(held)
    assert found.late_s is not None and found.snapshot.samples_per_s == 0.0
    assert found.snapshot.state == f"silent for {found.late_s:.0f} s"


# ---- while a job starts ---------------------------------------------------------------------------------------------


def test_a_run_is_building_from_its_first_moment(tmp_path: Path) -> None:
    with no_start_up(every_s=0.05) as startup:
        startup.open_run(tmp_path / "run")
        found = read_status(tmp_path / "run")
        assert (found.state, found.record["pid"], found.record["attempt"]) == ("building", os.getpid(), 1)
        assert found.record["start_ticks"] == host.start_ticks(os.getpid())
        startup.phase("reading")
        startup.start()
        wait_for("the phase", lambda: read_status(tmp_path / "run").record["doing"] == "reading")
        startup.begins()
    found = read_status(tmp_path / "run")
    assert (found.state, found.is_begun) == (LOST, False)
    with RunDir.create(tmp_path / "run", "job"):  # what a killed start leaves is no run
        pass


def test_a_job_that_does_not_begin_leaves_no_run_directory(tmp_path: Path) -> None:
    with no_start_up() as startup:
        startup.open_run(tmp_path / "runs" / "run")
        assert (tmp_path / "runs" / "run" / STATUS).exists()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_somebody_puts_into_the_directory_meanwhile_stays(tmp_path: Path) -> None:
    with no_start_up() as startup:
        startup.open_run(tmp_path / "run")
        (tmp_path / "run" / "thesis.txt").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]


def test_a_refused_resume_leaves_the_status_as_it_was_and_a_started_one_carries_the_sums(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write(run, "failed", here(attempt=3), reason="x", lane_restarts=2)
    (run / RESOLVED).touch()
    before = (run / STATUS).read_bytes()
    with no_start_up() as startup:
        startup.open_run(resume=run)
        record = read_status(run).record
        assert (record["state"], record["attempt"], record["reason"]) == ("building", 4, None)
        assert (record["updates"], record["lane_restarts"], record["workers"]) == (SNAPSHOT.updates, 2, [])
    assert (run / STATUS).read_bytes() == before


# ---- lines ----------------------------------------------------------------------------------------------------------


def test_a_line_of_progress_holds_all_that_matters() -> None:
    assert progress_line(SNAPSHOT) == (
        " 33 %  epoch 2/6  197,520 samples  loss 0.1235  90,854 samples/s  left 0:04:10  "
        "best auc 0.852, epoch 3 → checkpoints/best"
    )
    silent = (WorkerSnapshot(0, "training", silent_s=42.3, limit_s=60.0), WorkerSnapshot(1, "training", limit_s=60.0))
    bare = JobSnapshot("x", "y", "stopping", samples=7, workers=silent)
    assert progress_line(bare) == "epoch 1/1  7 samples  0 samples/s  stopping  worker 0 silent 42 s, replaced at 60 s"
    starting = (
        WorkerSnapshot(0, "starting", "compiling"),
        WorkerSnapshot(1, "ready"),
        WorkerSnapshot(2, "starting", "compiling"),
    )
    assert progress_line(JobSnapshot("x", "y", "starting", wall_s=12.0, workers=starting)) == (
        "starting workers, 12 s: 2 compiling (once on this machine), 1 ready"
    )


@pytest.mark.parametrize(
    ("silent_s", "limit_s", "words"),
    [
        (4.9, 20.0, ""),
        (5.1, 20.0, "silent 5 s, replaced at 20 s"),
        (89.0, 600.0, ""),  # its batches may take 30 s
        (91.0, 600.0, "silent 91 s, replaced at 600 s"),
        (1000.0, None, ""),
    ],
)
def test_an_unusual_silence_says_when_it_ends(silent_s: float, limit_s: float | None, words: str) -> None:
    assert WorkerSnapshot(0, "training", silent_s=silent_s, limit_s=limit_s).silence == words


# ---- a job ----------------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("seed", range(4))
def test_a_job_killed_at_a_random_moment_is_lost_and_its_status_whole(
    seed: int, start_job: Callable[..., Job], tmp_path: Path
) -> None:
    """From its run directory's first moment on, until training is under way."""
    job = start_job(
        tmp_path, "train", "--procs", "1", "train.epochs=100000", "log.every_s=0.01", "log.tensorboard=false"
    )
    wait_for("its status", (job.run_dir / STATUS).exists)
    assert read_status(job.run_dir).state in ("building", "running")
    until, seen = time.monotonic() + random.Random(seed).uniform(0.0, 2.0), set()
    while time.monotonic() < until:
        assert job.status()["pid"] == job.process.pid, "whole, whenever it is read"
        seen.add(read_status(job.run_dir).state)
    job.send(signal.SIGKILL)
    job.process.wait(PATIENCE_S)
    assert seen <= {"building", "running"}
    found = read_status(job.run_dir)
    assert (found.state, found.record["state"] in ("building", "running")) == (LOST, True)
    assert found.record["pid"] == job.process.pid and not job.left_behind()
