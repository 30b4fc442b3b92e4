"""Faults of the machine under a whole job: a disk that fills up or cannot be written any more, limits, a clock that
jumps, a terminal that closes. The job goes on, or says in one sentence why not; then it can be resumed without a
gap."""

import contextlib
import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from hogwild.storage.checkpoint_format import newest_good
from tests.helpers import mounts
from tests.helpers.jobs import JOBS, RUN_PY, Ended, Job, environment
from tests.helpers.processes import shared_memory_names, wait_for

pytestmark = pytest.mark.processes

COUNTING = str(JOBS / "counting.yaml")
SAMPLES = 1600
BALLAST = 500_000  # floats; a checkpoint holds them twice: 4 MB
CHECKPOINTS = ["checkpoint.every_s=0.2", f"model.init_args.ballast={BALLAST}"]


@pytest.fixture
def diary(tmp_path: Path) -> Path:
    folder = tmp_path / "diary"
    folder.mkdir()
    return folder


def counting(diary: Path, *more: str) -> list[str]:
    """One worker, minutes long until there is a file `hurry`: what is done to it meanwhile need not hurry."""
    return ["train", COUNTING, "train.procs=1", f"model.init_args.diary={diary}", "model.init_args.pace_s=1", *more]


def resumed(start_job: Callable[..., Job], run_dir: Path, folder: Path) -> Ended:
    return start_job(folder, "train", "--resume", str(run_dir), run_dir=run_dir).wait()


def assert_exact(job: Ended) -> None:
    assert (job.status, job.reason[0]) == (0, "succeeded"), job.stderr
    assert job.ledger_adds_up()
    assert torch.equal(job.effects(), torch.ones(SAMPLES))
    assert not job.left_behind


# ---- the disk -------------------------------------------------------------------------------------------------------


@pytest.mark.whole
def test_a_disk_that_is_full_for_a_while_costs_checkpoints_and_nothing_else(
    tmp_path: Path, diary: Path, start_job: Callable[..., Job]
) -> None:
    with mounts.disk(tmp_path / "disk", "7m") as disk:
        job = start_job(tmp_path, *counting(diary, *CHECKPOINTS, "--run-dir", str(disk / "run")), run_dir=disk / "run")
        (failed, *_) = job.wait_for_event("checkpoint-failed")
        assert "No space left on device" in failed["error"]
        good, rejected = newest_good(job.run_dir / "checkpoints")
        assert good is not None
        assert not rejected
        mounts.change(disk, "size=64m")
        (diary / "hurry").touch()
        ended = job.wait()
        assert_exact(ended)
        assert "No space left on device" in ended.stderr
        assert not list(job.run_dir.rglob(".tmp-*"))


def test_a_disk_that_stays_full_fails_the_job_at_its_end_and_a_resume_with_room_is_exact(
    tmp_path: Path, diary: Path, start_job: Callable[..., Job]
) -> None:
    with mounts.disk(tmp_path / "disk", "7m") as disk:
        run_dir = disk / "run"
        job = start_job(tmp_path, *counting(diary, *CHECKPOINTS, "--run-dir", str(run_dir)), run_dir=run_dir)
        job.wait_for_event("checkpoint")  # and there is no room for another
        (diary / "hurry").touch()
        ended = job.wait()
        assert ended.status == 1
        assert "cannot write checkpoint" in ended.stderr
        assert ended.reason == ("failed", "checkpoint/not-written")
        assert not ended.left_behind
        mounts.change(disk, "size=64m")
        assert_exact(resumed(start_job, run_dir, tmp_path / "again"))


def test_a_shared_memory_folder_without_room_is_not_needed(
    tmp_path: Path, diary: Path, start_job: Callable[..., Job]
) -> None:
    """Nor is anything that was in it: a worker that dies meanwhile is replaced."""
    with mounts.disk(Path("/dev/shm"), "64k") as shm:
        (shm / "filler").write_bytes(bytes(64 * 1024))
        with pytest.raises(OSError, match="No space left"):
            (shm / "more").write_bytes(bytes(4096))
        job = start_job(tmp_path, *counting(diary))
        (diary / "hold").touch()
        wait_for("its worker", lambda: any(diary.glob("held-*")))
        victim = job.workers()[0]
        os.kill(victim, signal.SIGKILL)
        job.wait_for_exit_of(victim)
        (diary / "hurry").touch()
        (diary / "hold").unlink()
        ended = job.wait()
        assert_exact(ended)
        assert ended.summary["restarts"] == 1


# ---- limits ---------------------------------------------------------------------------------------------------------


def limited(limits: dict[str, object]) -> tuple[str, ...]:
    return ("-m", "tests.helpers.limited", json.dumps(limits), RUN_PY)


@pytest.mark.parametrize("files", [32, 48, 64, 1024])
def test_a_limit_on_open_files_is_enough_or_refused_before_anything_starts(
    tmp_path: Path, start_job: Callable[..., Job], files: int
) -> None:
    run_dir = tmp_path / "run"
    arguments = ("train", COUNTING, "--run-dir", str(run_dir))
    ended = start_job(tmp_path, *arguments, run_dir=run_dir, python=limited({"files": files})).wait()
    if ended.status == 0:
        assert files >= 64
        assert_exact(ended)
    else:
        assert ended.status == 1
        assert f"open files are needed, the limit is {files} (ulimit -n)" in ended.stderr
        assert not run_dir.exists()
        assert not ended.left_behind


@pytest.mark.parametrize("mebibytes", [400, 600, 660, 1000])
def test_an_address_space_is_enough_or_its_limit_is_named_and_nothing_is_left(
    tmp_path: Path, start_job: Callable[..., Job], mebibytes: int
) -> None:
    run_dir = tmp_path / "run"
    arguments = ("train", COUNTING, "--run-dir", str(run_dir))
    ended = start_job(tmp_path, *arguments, run_dir=run_dir, python=limited({"address": mebibytes << 20})).wait()
    if ended.status == 0:
        assert_exact(ended)
        return
    assert ended.status == 1 and mebibytes < 1000, ended.stderr
    assert f"{mebibytes} MiB" in ended.stderr and "(ulimit -v)" in ended.stderr and "run/memory-short" in ended.stderr
    assert "Traceback" not in ended.stderr and not ended.left_behind
    assert not run_dir.exists() or (mebibytes > 600 and ended.reason == ("failed", "run/memory-short"))


@pytest.mark.parametrize("tasks", [1, 2, 4, 7, 10, 64])
def test_a_limit_on_processes_is_enough_or_it_is_named_and_nothing_is_left(
    tmp_path: Path, start_job: Callable[..., Job], tasks: int
) -> None:
    run_dir = tmp_path / "run"
    arguments = ("train", COUNTING, "--run-dir", str(run_dir))
    ended = start_job(tmp_path, *arguments, run_dir=run_dir, python=limited({"tasks": tasks})).wait()
    if tasks == 64:
        assert_exact(ended)
        return
    assert ended.status == 1, ended.stderr
    assert f"{tasks} processes and threads (ulimit -u), " in ended.stderr and "fewer train.procs" in ended.stderr
    assert "run/process-limit" in ended.stderr
    assert "Traceback" not in ended.stderr and not run_dir.exists() and not ended.left_behind


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """A control group of version 1 or 2 whose members may use 1.5 GB."""
    roots = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes", Path("/sys/fs/cgroup"): "memory.max"}
    root = next((root for root in roots if (root / "cgroup.procs").exists()), None)
    group = (root or Path("/nowhere")) / f"hogwild-test-{uuid.uuid4().hex}"
    try:
        group.mkdir()
        (group / roots[group.parent]).write_text(str(3 << 29))
    except (OSError, KeyError) as error:
        if group.is_dir():
            group.rmdir()
        pytest.skip(f"no memory control group can be made here: {error}")
    yield group
    wait_for("an empty group", lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def test_a_job_larger_than_its_memory_limit_is_refused_with_the_limit_named(
    tmp_path: Path, start_job: Callable[..., Job], memory_group: Path
) -> None:
    run_dir = tmp_path / "run"
    arguments = ("train", COUNTING, "model.init_args.ballast=200000000", "--run-dir", str(run_dir))
    python = limited({"group": str(memory_group)})
    ended = start_job(tmp_path, *arguments, run_dir=run_dir, python=python).wait()
    assert ended.status == 1
    assert f"the memory limit in {memory_group}" in ended.stderr
    assert not run_dir.exists()
    assert not ended.left_behind


# ---- time, and the terminal -----------------------------------------------------------------------------------------


def test_a_wall_clock_that_jumps_by_hours_kills_nobody_and_ends_nothing(
    tmp_path: Path, diary: Path, start_job: Callable[..., Job]
) -> None:
    (diary / "hurry").touch()
    ended = start_job(
        tmp_path,
        *counting(diary, "model.class_path=clocks.Counting", "train.max_time_s=1000", "checkpoint.every_s=900"),
    ).wait()
    assert_exact(ended)
    assert ended.summary["restarts"] == 0
    assert not ended.events("stall")
    assert len(ended.events("checkpoint")) == 1  # none was due before the last


def _in_a_terminal(folder: Path, arguments: list[str]) -> tuple[Job, int]:
    """A job whose standard streams and controlling terminal are a terminal of ours; the other end's descriptor."""
    ours, theirs = pty.openpty()
    mark = uuid.uuid4().hex
    shared = shared_memory_names()

    def take_terminal() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs these tests may be deaf to it
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, RUN_PY, *arguments, "--run-dir", str(folder / "run")],
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(mark, folder),
        preexec_fn=take_terminal,  # the child execs at once; nothing else of this process runs in it
        text=True,
    )
    os.close(theirs)
    return Job(folder, folder / "run", process, mark, shared), ours


@pytest.mark.whole
def test_a_terminal_that_is_closed_stops_the_job_in_order(
    tmp_path: Path, diary: Path, start_job: Callable[..., Job]
) -> None:
    (diary / "hold").touch()
    for name in ("stdout.txt", "stderr.txt"):  # what it says goes to the terminal
        (tmp_path / name).touch()
    job, terminal = _in_a_terminal(tmp_path, counting(diary))
    try:
        # What it prints must be read: a terminal that nobody reads holds up whoever writes to it.
        os.set_blocking(terminal, False)

        def holds() -> bool:
            with contextlib.suppress(BlockingIOError):
                os.read(terminal, 65536)
            return any(diary.glob("held-*"))

        wait_for("its worker", holds)
        os.close(terminal)
        wait_for("the signal", lambda: job.events("signal"))
        (diary / "hold").unlink()
        ended = job.wait()
    finally:
        job.destroy()
    assert ended.status == 75
    assert ended.summary["state"] == "stopped"
    assert not ended.left_behind
    (diary / "hurry").touch()
    assert_exact(resumed(start_job, job.run_dir, tmp_path / "again"))


def test_of_two_supervisors_the_second_starts_once_the_first_was_killed(
    tmp_path: Path, diary: Path, start_job: Callable[..., Job]
) -> None:
    first = start_job(tmp_path, *counting(diary, "checkpoint.every_s=0.2"))
    first.wait_for_event("checkpoint")
    (diary / "hold").touch()
    wait_for("its worker", lambda: any(diary.glob("held-*")))
    second = start_job(tmp_path / "second", "train", "--resume", str(first.run_dir), run_dir=first.run_dir).wait()
    assert second.status == 1
    assert f"in use by another job, process {first.process.pid}" in second.stderr
    first.send(signal.SIGKILL)
    first.process.wait()
    assert not first.left_behind()
    (diary / "hold").unlink()
    (diary / "hurry").touch()
    assert_exact(resumed(start_job, first.run_dir, tmp_path / "third"))
