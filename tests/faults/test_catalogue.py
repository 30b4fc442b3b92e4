"""Tests of those entries of docs/failures.md that belong to no part of the project."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hogwild import host
from hogwild.errors import UsageError
from hogwild.shared_memory.region import Region
from hogwild.workers.processes.handle import PATH_LIMIT, Handle
from hogwild.workers.processes.roster import Role
from tests.helpers.jobs import JOBS, Job
from tests.helpers.processes import state_of, wait_for

COUNTING = str(JOBS / "counting.yaml")


# ---- starting -------------------------------------------------------------------------------------------------------


ONE = "train.procs=1"


@pytest.fixture
def lifeline() -> Iterator[list[int]]:
    """And, with a worker, comes multiprocessing's resource tracker: it is not left to the tests after this one."""
    was_known = host.is_tracker_known()
    ends = list(os.pipe())
    yield ends
    for end in ends:
        os.close(end)
    if not was_known:
        host.stop_resource_tracker()


@pytest.mark.processes
def test_a_hundred_processes_that_die_at_once_leave_no_descriptor_and_hit_none_of_the_next(
    lifeline: list[int],
) -> None:
    """Entries 13 and 15: killed before it reads what it was started with, and the next gets the same numbers."""
    host.ensure_resource_tracker()
    before = host.descriptor_count()
    for _ in range(100):
        handle = Handle.spawn(Role.WORKER, 0, 1, lifeline=lifeline[0], environment={})
        handle.kill()
        host.wait_readable([handle.pidfd], 60_000)
        assert handle.reap() == -signal.SIGKILL
        handle.close()
    assert host.descriptor_count() == before


@pytest.mark.processes
def test_a_search_path_that_could_hang_the_start_is_refused(
    lifeline: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, "/" + "x" * PATH_LIMIT])
    with pytest.raises(UsageError, match=r"sys\.path has .* characters, more than 32,768"):
        Handle.spawn(Role.WORKER, 0, 1, lifeline=lifeline[0], environment={})


@pytest.mark.processes
def test_a_number_that_belongs_to_somebody_else_by_now_is_not_killed() -> None:
    """Entry 33: the number of a process that was reaped is given to a stranger; a pidfd still means the dead one."""
    dead = subprocess.Popen(["true"])
    pidfd = host.pidfd_open(dead.pid)
    dead.wait()
    try:
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(dead.pid - 1))
    except OSError as error:
        os.close(pidfd)
        pytest.skip(f"the next process number cannot be chosen here: {error}")
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        if stranger.pid != dead.pid:
            pytest.skip("another process was faster and has the number")
        assert not host.kill_by_pidfd(pidfd)
        assert state_of(stranger.pid) in ("R", "S", "D")
    finally:
        os.close(pidfd)
        stranger.kill()
        stranger.wait()


# ---- shared memory --------------------------------------------------------------------------------------------------

READER = """
import mmap, sys
shared = mmap.mmap({descriptor}, {nbytes})
assert sum(shared[at] for at in range(0, {nbytes}, mmap.PAGESIZE)) == 0
print("read", flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
def test_memory_that_is_shared_counts_once_over_all_processes() -> None:
    """Entry 49: resident sizes would count it once for each. Without torch, whose own pages are shared with whatever
    else runs on this machine."""
    nbytes = 256 << 20
    shared = os.memfd_create("shared")
    os.ftruncate(shared, nbytes)
    command = [sys.executable, "-c", READER.format(descriptor=shared, nbytes=nbytes)]
    readers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[shared]) for _ in range(4)
    ]
    os.close(shared)
    try:
        assert [reader.stdout.readline() for reader in readers if reader.stdout] == [b"read\n"] * 4
        parts = [host.pss_bytes(reader.pid) for reader in readers]
        assert 0.99 * nbytes < sum(parts) < 1.25 * nbytes
    finally:
        for reader in readers:
            reader.communicate()


@pytest.mark.parametrize("form", ["tensor", "array"])
def test_memory_that_is_shared_cannot_be_resized(form: str) -> None:
    """Entry 51: torch's own shared tensors end the process with SIGSEGV."""
    region = Region.allocate("shared", 4096)
    view = region.tensor(torch.float32, (8,)) if form == "tensor" else region.array("f4", (8,))
    with pytest.raises((RuntimeError, ValueError), match=r"not resizable|does not own its data"):
        view.resize_(10_000) if isinstance(view, torch.Tensor) else np.ndarray.resize(view, (10_000,))


# ---- jobs -----------------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_model_that_resizes_its_parameters_fails_with_its_own_line(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    ended = start_job(tmp_path, "train", COUNTING, ONE, "model.class_path=odd.Resizing").wait()
    assert ended.status == 1
    assert "Trying to resize storage that is not resizable" in ended.stderr
    assert "odd.py" in ended.stderr
    assert not ended.left_behind


@pytest.mark.processes
def test_a_supervisor_with_cuda_in_use_starts_no_worker(tmp_path: Path, start_job: Callable[..., Job]) -> None:
    """Entry 22: what a child of such a process does is undefined."""
    ended = start_job(tmp_path, "train", COUNTING, ONE, "model.class_path=odd.WithCuda").wait()
    assert ended.status == 1
    assert "CUDA was initialised in the supervisor" in ended.stderr
    assert not ended.left_behind


@pytest.mark.processes
@pytest.mark.parametrize(("flushes", "seen"), [(True, "tiny-0.0"), (False, "tiny-5.8")])
def test_denormal_numbers_are_flushed_in_workers_as_the_job_says(
    tmp_path: Path, start_job: Callable[..., Job], flushes: bool, seen: str
) -> None:
    """Entry 70: arithmetic with them is up to a hundred times slower."""
    job = [COUNTING, "model.class_path=odd.Tiny", f"model.init_args.diary={tmp_path}", "train.max_updates=8"]
    ended = start_job(tmp_path, "train", *job, f"train.flush_denormal={str(flushes).lower()}").wait()
    assert ended.status == 0, ended.stderr
    assert [file.name.startswith(seen) for file in tmp_path.glob("tiny-*")] == [True]


@pytest.mark.processes
def test_a_data_file_that_is_truncated_while_training_changes_nothing(
    tmp_path: Path, start_job: Callable[..., Job]
) -> None:
    """Entry 65: it was read into shared memory before the first worker started; nothing maps it any more."""
    file = tmp_path / "numbers.npz"
    np.savez(file, x=np.arange(1600), y=np.arange(1600))
    (tmp_path / "hold").touch()
    data = ["data.train.class_path=hogwild.data.Npz", f"data.train.init_args={{path: {file}, inputs: [x], target: y}}"]
    job = start_job(tmp_path, "train", COUNTING, ONE, *data, f"model.init_args.diary={tmp_path}")
    wait_for("its worker", lambda: any(tmp_path.glob("held-*")))
    os.truncate(file, 100)
    (tmp_path / "hold").unlink()
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    assert torch.equal(ended.effects(), torch.ones(1600))
