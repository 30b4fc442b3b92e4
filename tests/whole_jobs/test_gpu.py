"""The same on a GPU of NVIDIA's, short: what the simulated device cannot know of the driver. Skipped, and said so,
where there is none. This process never opens it: each test is of a process of its own (`helpers/on_gpu.py`), for the
jobs of this and of every later file need a parent without a context."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.jobs import HOME, IN_TURN_S
from tests.helpers.on_gpu import CASES, GRAPHS, NO_GRAPHS, RULES

pytestmark = pytest.mark.processes

NO_GPU = "no GPU here: torch.cuda.device_count() is 0; other tests run the same code on a simulated one"
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() == 0, reason=NO_GPU)]


def needs_gpu(test):  # type: ignore[no-untyped-def]
    for mark in on_gpu:
        test = mark(test)
    return test


def found_on(device: str, folder: Path, *cases: str) -> dict[str, Any]:
    """By case. One process for all of them."""
    command = [sys.executable, "-m", "tests.helpers.on_gpu", device, str(folder), *cases]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False, timeout=IN_TURN_S)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@needs_gpu
def test_batches_arrive_whole_and_the_slots_stay(tmp_path: Path) -> None:
    assert found_on("cuda", tmp_path, "batches") == {"batches": {"changed": [], "places": 1}}


@needs_gpu
@pytest.mark.parametrize("rule", [*RULES, "sparse"])
def test_one_worker_trains_as_the_plain_loop_does(rule: str, tmp_path: Path) -> None:
    case = f"plain-{rule}"
    assert found_on("cuda", tmp_path, case) == {case: {"differ": [], "finite": True}}


@needs_gpu
def test_checking_and_applying_an_update_allocates_nothing_on_the_device(tmp_path: Path) -> None:
    assert found_on("cuda", tmp_path, "allocations")["allocations"]["taken"][3:] == [0, 0, 0]


@needs_gpu
@pytest.mark.parametrize("case", GRAPHS)
def test_updates_that_are_replayed_do_what_they_do_otherwise(case: str, tmp_path: Path) -> None:
    check_replayed(found_on("cuda", tmp_path, case)[case])


@needs_gpu
@pytest.mark.parametrize("case", NO_GRAPHS)
def test_a_model_that_cannot_be_captured_is_trained_as_it_is(case: str, tmp_path: Path) -> None:
    """Also after a capture that has failed."""
    check_not_replayed(found_on("cuda", tmp_path, case)[case])


def check_replayed(found: dict[str, Any]) -> None:
    assert found["replays"] > 100 and found["plain"] == 0 and (found["why"], found["differ"]) == (None, [])


def check_not_replayed(found: dict[str, Any]) -> None:
    assert found["replays"] == 0 and found["why"] and found["differ"] == []


@needs_gpu
def test_a_model_on_a_gpu_is_refused(tmp_path: Path) -> None:
    found = found_on("cuda", tmp_path, "refused")["refused"]
    assert found["code"] == "model/device" and "weight is on cuda:0; " in found["words"]
    assert "model.cpu()" in found["words"]


@needs_gpu
def test_a_job_of_two_workers_learns_and_the_supervisor_has_no_context(tmp_path: Path) -> None:
    found = found_on("cuda", tmp_path, "job")["job"]
    assert found["leases"]["done"] == found["leases"]["total"] and found["procs"] == 2
    assert found["device"].startswith("cuda:0") and found["has_context"] is False


@needs_gpu
def test_memory_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    found = found_on("cuda", tmp_path, "memory")["memory"]
    assert found["code"] == "device/memory" and "GPU out of memory: cuda:0" in found["words"]
    assert found["has_context"] is False


@needs_gpu
def test_the_first_updates_of_a_recurrent_model_learn(tmp_path: Path) -> None:
    assert found_on("cuda", tmp_path, "recurrent")["recurrent"] == {"updates": 24, "still": [], "has_context": False}


def test_every_case_runs_on_a_device_that_is_simulated(tmp_path: Path) -> None:
    """So that the lines for a GPU are not first tried where there is one."""
    found = found_on("simulated", tmp_path, *CASES)
    assert found["batches"] == {"changed": [], "places": 1}
    assert all(found[f"plain-{rule}"] == {"differ": [], "finite": True} for rule in [*RULES, "sparse"])
    assert found["allocations"]["taken"][3:] == [0, 0, 0]
    assert found["refused"]["code"] == "model/device"
    for case in GRAPHS:
        check_replayed(found[case])
    for case in NO_GRAPHS:
        check_not_replayed(found[case])
    assert found["job"]["leases"]["done"] == found["job"]["leases"]["total"]
    assert found["job"]["device"] == "simulated:0, simulated:1"
    assert found["memory"]["code"] == "device/memory" and "GPU out of memory: simulated:0" in found["memory"]["words"]
    assert found["recurrent"]["updates"] == 24 and found["recurrent"]["still"] == []
    assert not any(one.get("has_context") for one in found.values())
