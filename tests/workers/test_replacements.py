"""A worker is killed, or stopped, while it trains and while its replacement is set up: what takes its place."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.jobs import HOME, JOBS, Ended, Job
from tests.helpers.processes import wait_for

pytestmark = pytest.mark.processes

COUNTING = str(JOBS / "counting.yaml")
BATCH = 4
START_LIMIT_S = 10  # no machine needs as long for a process

FILE_LIMIT = """
import resource
from hogwild.errors import RunError
from hogwild.planning.cpu_plan import FILES, FILES_PER_WORKER, plan_here
from hogwild.config.schema import Supervise
from hogwild.workers.processes.group import ProcessGroup
limit = FILES + 4 * FILES_PER_WORKER
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
ProcessGroup(Supervise()).start(plan_here(1, 1))
ProcessGroup(Supervise()).start(plan_here(0, 1), loaders=50)
try:
    ProcessGroup(Supervise()).start(plan_here(1, 1), loaders=50)
except RunError as error:
    print(error)
"""


def test_all_processes_count_in_the_limit_on_open_files_where_there_are_any() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 80
    ended = subprocess.run([sys.executable, "-c", FILE_LIMIT], cwd=HOME, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "open files are needed, the limit is" in ended.stdout


@pytest.fixture(scope="module")
def stopped_in_its_set_up(jobs_folder: Path, start_shared_job: Callable[..., Job]) -> Job:
    """A replacement that was stopped as soon as it was there: nothing tells before its start has taken too long, and
    meanwhile the other tests run."""
    limit = f"supervise.start_timeout_s={START_LIMIT_S}"
    job = _counting(jobs_folder, start_shared_job, "stopped", limit)
    victim = job.workers()[0]
    os.kill(victim, signal.SIGKILL)
    job.wait_for_exit_of(victim)
    os.kill(_spawned(job, 0, 2)["pid"], signal.SIGSTOP)
    return job


@pytest.fixture(scope="module")
def killed_again(
    jobs_folder: Path, start_shared_job: Callable[..., Job], stopped_in_its_set_up: Job
) -> tuple[Ended, dict[str, Any]]:
    """A job with a worker that is killed, as is its replacement as soon as it is there: (the job, cores of each)."""
    job, seen = _counting(jobs_folder, start_shared_job, "killed", "train.pin=true", "supervise.spares=2"), {}
    victim = job.workers()[1]
    seen["cores"] = os.sched_getaffinity(victim)
    os.kill(victim, signal.SIGKILL)
    replacement = _spawned(job, 1, 2)
    os.kill(replacement["pid"], signal.SIGKILL)  # while it is set up, or soon after
    job.wait_for_exit_of(replacement["pid"])
    pid = _spawned(job, 1, 3)["pid"]
    job.wait_for_event("ready", 3)
    wait_for("its readiness", lambda: pid in [event["pid"] for event in job.events("ready")])
    seen["cores of the replacement"] = os.sched_getaffinity(pid)
    (jobs_folder / "diary-killed" / "hurry").touch()
    return job.wait(), seen


def _counting(folder: Path, begin: Callable[..., Job], name: str, *arguments: str) -> Job:
    """Every worker has committed something when it returns, and at this pace the job goes on for minutes."""
    diary = folder / f"diary-{name}"
    diary.mkdir()
    quiet = ("supervise.max_restarts=100", "supervise.max_item_attempts=100", "checkpoint.every_s=null")
    pace = (f"model.init_args.diary={diary}", "model.init_args.pace_s=0.5", "train.exchange=direct")
    job = begin(folder / name, COUNTING, *quiet, *pace, *arguments)
    wait_for("everybody to train", lambda: _states(job) == ["training"] * 2)
    return job


def _states(job: Job) -> list[str]:
    return [row["state"] for row in job.status().get("workers", [])]


def _spawned(job: Job, worker: int, incarnation: int) -> dict[str, Any]:
    wanted = (worker, incarnation)

    def look() -> dict[str, Any]:
        found = [event for event in job.events("spawn") if (event["worker"], event["incarnation"]) == wanted]
        return found[0] if found else {}

    return wait_for(f"incarnation {incarnation} of worker {worker}", look)


def test_a_replacement_runs_on_the_cores_of_the_worker_whose_place_it_takes(
    killed_again: tuple[Ended, dict[str, Any]],
) -> None:
    _, seen = killed_again
    assert seen["cores of the replacement"] == seen["cores"]


@pytest.mark.whole
def test_a_worker_and_its_replacement_that_are_killed_cost_two_restarts_and_no_batch(
    killed_again: tuple[Ended, dict[str, Any]],
) -> None:
    ended, _ = killed_again
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    assert ended.summary["restarts"] == len(ended.events("exit")) == 2
    assert ended.ledger_adds_up() and ended.leases["quarantined"] == 0
    effects, redone = ended.effects(), ended.leases["redone"]
    assert effects.min() == 1 and int((effects > 1).sum()) <= redone * BATCH
    assert not ended.left_behind


def test_spares_that_are_asked_for_are_none_and_the_first_lines_say_so(
    killed_again: tuple[Ended, dict[str, Any]],
) -> None:
    ended, _ = killed_again
    assert ended.stderr.count("note: supervise.spares has no effect and goes with the next version") == 1
    assert not [event for event in ended.events() if "spare" in event["event"]]


def test_a_replacement_that_is_stopped_while_it_is_set_up_could_not_start_and_is_replaced(
    stopped_in_its_set_up: Job, jobs_folder: Path
) -> None:
    job = stopped_in_its_set_up
    again = _spawned(job, 0, 3)
    (jobs_folder / "diary-stopped" / "hurry").touch()
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    (stopped,) = [event for event in ended.events("exit") if (event["worker"], event["incarnation"]) == (0, 2)]
    assert stopped["kind"] == "could-not-start" and again["pid"] != stopped["pid"]
    assert stopped["how"].startswith(f"could not start: did not get ready in {START_LIMIT_S} s")
    assert ended.ledger_adds_up() and not ended.left_behind
