"""Processes that wait for the caller's next job: who takes them, and when they end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hogwild
from hogwild import host
from hogwild.planning.cpu_plan import Plan, plan_here
from tests.helpers.jobs import HOME
from tests.helpers.processes import PATIENCE_S, state_of, wait_for
from workers.processes import warm
from workers.processes.warm import KEPT, WarmProcesses

pytestmark = pytest.mark.processes


@contextmanager
def kept() -> Iterator[tuple[WarmProcesses, int]]:
    """One that waits for a job with one worker. No fixture: the environment of a test's set-up is another one."""
    own = WarmProcesses()
    try:
        own.note(plan(), has_kernels=False)
        own.keep()
        (waiting,) = own.pids
        yield own, waiting
    finally:
        own.close()


def plan(threads: int = 1) -> Plan:
    return plan_here(1, threads, pin=False)


def is_gone(pid: int) -> bool:
    return state_of(pid) is None


# ---- taken by the next call ------------------------------------------------------------------------------------------


def trained(folder: Path, **settings: object) -> list[int]:
    """The processes of the workers, after a call."""
    torch.manual_seed(0)
    model, features = nn.Linear(4, 2), torch.randn(64, 4)
    data = TensorDataset(features, (features.sum(1) > 0).long())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"procs": 1, "epochs": 2, "batch_size": 8, "run_dir": folder} | settings
    result = hogwild.train(model, data, nn.CrossEntropyLoss(), optimizer, **given)  # type: ignore[arg-type]
    assert result.samples == 128
    events = (folder / "events.jsonl").read_text().splitlines()
    return [event["pid"] for event in map(json.loads, events) if event["event"] == "spawn"]


def test_the_next_call_takes_what_waits_and_each_process_runs_one_job(tmp_path: Path) -> None:
    assert KEPT.pids == []
    first = trained(tmp_path / "a")
    waiting = KEPT.pids
    assert len(waiting) == 1 and waiting != first
    assert trained(tmp_path / "b") == waiting
    assert len(KEPT.pids) == 1 and KEPT.pids != waiting
    assert all(map(is_gone, first + waiting))


def test_one_that_was_killed_or_stopped_meanwhile_is_not_taken(tmp_path: Path) -> None:
    trained(tmp_path / "a")
    for number, kind in ((signal.SIGKILL, "Z"), (signal.SIGSTOP, "T")):
        (waiting,) = KEPT.pids
        os.kill(waiting, number)
        wait_for("the signal", lambda pid=waiting, kind=kind: state_of(pid) == kind)
        assert waiting not in trained(tmp_path / kind)
        assert len(KEPT.pids) == 1 and waiting not in KEPT.pids


def test_a_call_without_workers_leaves_none(tmp_path: Path) -> None:
    trained(tmp_path / "a")
    trained(tmp_path / "inline", procs=0)
    assert KEPT.pids == []


# ---- only into the same surroundings ---------------------------------------------------------------------------------


def test_one_is_taken_into_the_surroundings_it_was_started_in() -> None:
    with kept() as (own, waiting):
        taken = own.take(plan())
        assert taken is not None and taken.pid == waiting and own.pids == []
        taken.kill()
        wait_for("its death", lambda: taken.reap() is not None)
        taken.close()


def path_changes(patch: pytest.MonkeyPatch) -> None:
    patch.syspath_prepend("/a/folder")


def environment_changes(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("OMP_PROC_BIND", "true")


def cores_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(host, "affinity", lambda: {1 << 16})


@pytest.mark.parametrize("change", [path_changes, environment_changes, cores_change])
def test_none_is_taken_into_others_and_they_end(
    change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept() as (own, waiting):
        change(monkeypatch)
        taken = own.take(plan())
        if taken is not None:
            taken.kill()
        assert taken is None and own.pids == [] and is_gone(waiting)


def test_none_is_taken_for_other_threads() -> None:
    with kept() as (own, waiting):
        taken = own.take(plan(threads=2))
        if taken is not None:
            taken.kill()
        assert taken is None and is_gone(waiting)


def test_those_that_nobody_asked_for_are_replaced_once_the_surroundings_are_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with kept() as (own, waiting):
        environment_changes(monkeypatch)
        own.keep()
        assert len(own.pids) == 1 and is_gone(waiting)


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_after_a_while_they_end_and_leave_no_zombie(monkeypatch: pytest.MonkeyPatch) -> None:
    with kept() as (own, waiting):
        monkeypatch.setattr(warm, "IDLE_S", 0.01)
        own.keep()
        wait_for("the end of the while", lambda: is_gone(waiting))
        assert own.take(plan()) is None


def test_close_ends_them_and_they_may_be_kept_again() -> None:
    with kept() as (own, waiting):
        own.close()
        own.close()
        assert own.pids == [] and is_gone(waiting)
        own.keep()
        assert len(own.pids) == 1


def test_a_fork_of_the_caller_neither_ends_nor_holds_them() -> None:
    with kept() as (own, waiting):
        (handle,) = own._handles
        descriptors = [*own._lifeline, handle.lease_write, handle.pidfd, handle.channel.fileno()]
        if not (child := os.fork()):
            own.close()
            os._exit(len(own.pids) + sum(map(is_open, descriptors)))
        assert os.waitpid(child, 0)[1] == 0
        assert all(map(is_open, descriptors)) and state_of(waiting) not in (None, "Z")


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_one_that_other_code_has_reaped_is_replaced(tmp_path: Path) -> None:
    trained(tmp_path / "a")
    (waiting,) = KEPT.pids
    os.kill(waiting, signal.SIGKILL)
    os.waitpid(waiting, 0)
    assert waiting not in trained(tmp_path / "b")
    assert len(KEPT.pids) == 1


PROGRAM = """
import sys, os, signal
import torch
from torch import nn
from torch.utils.data import TensorDataset
import hogwild
from workers.processes import warm
from workers.processes.warm import KEPT

warm.IDLE_S = 3600
model, data = nn.Linear(4, 2), TensorDataset(torch.randn(64, 4), torch.zeros(64, dtype=torch.long))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hogwild.train(model, data, nn.CrossEntropyLoss(), optimizer, procs=1, epochs=1, run_dir=sys.argv[1])
print(*KEPT.pids, flush=True)
{end}
"""


FORK = """
import multiprocessing
process = multiprocessing.get_context("fork").Process(target=print)
process.start()
process.join()
if not (child := os.fork()):
    sys.exit(0)  # its own end waits for nobody, and says nothing
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), ("raise SystemExit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -9), ("os._exit(4)", 4), (FORK, 0)],
)
def test_none_outlives_the_caller_however_it_ends(end: str, status: int, tmp_path: Path) -> None:
    program = [sys.executable, "-c", PROGRAM.format(end=end), str(tmp_path / "run")]
    done = subprocess.run(program, cwd=HOME, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    (waiting,) = map(int, done.stdout.split())
    wait_for("its end", lambda: is_gone(waiting))


OF_A_CHILD = """
import multiprocessing, sys
import torch
import hogwild
from hogwild.data import Digits
from workers.processes import warm

def job():
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hogwild.train(model, Digits("test"), torch.nn.CrossEntropyLoss(), optimizer, procs=1, epochs=1, run_dir=sys.argv[1])

warm.IDLE_S = 3600
process = multiprocessing.get_context("fork").Process(target=job)
process.start()
process.join()
sys.exit(process.exitcode)
"""


def test_a_process_of_multiprocessing_that_has_trained_does_not_wait_for_them_at_its_end(tmp_path: Path) -> None:
    program = [sys.executable, "-c", OF_A_CHILD, str(tmp_path / "run")]
    done = subprocess.run(program, cwd=HOME, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
