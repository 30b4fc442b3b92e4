"""Warm spares: processes that wait, torch imported, for a worker's place; and what a person may do to them."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hogwild.config.schema import Supervise
from hogwild.planning.cpu_plan import plan_here
from tests.helpers.jobs import HOME, JOBS, Ended, Job
from tests.helpers.processes import state_of, wait_for
from workers.processes.group import ProcessGroup
from workers.processes.roles import LONGEST_SPARE_BACKOFF_S, Role, limits_of
from workers.processes.roster import FIRST_BACKOFF_S, Moment, Roster, Spawn
from workers.processes.setbacks import Death
from workers.processes.team import KeptEvents

pytestmark = pytest.mark.processes

COUNTING = str(JOBS / "counting.yaml")
BATCH = 4
START_LIMIT_S = 10  # as long as the job with a worker that is stopped while it is set up takes


# ---- when the next one is started ------------------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    """Whoever is in it is gone after the test, however that ends."""
    with ProcessGroup(Supervise()) as group:
        group.start(plan_here(1, 1, pin=False), 1, is_forked=False)
        group.start_spares()
        yield group


def turn(group: ProcessGroup, now: float) -> list[int]:
    """One turn of a job whose workers have settled; the spares there are then."""
    assert group.step(now, [group.pool]) == []
    return [handle.pid for handle in group.pool]


def test_twenty_spares_killed_in_a_row_are_buried_and_started_at_their_pace(group: ProcessGroup) -> None:
    """Real processes, killed before they have imported anything; the clock is ours."""
    group.pool.roster.expect(1)
    now, taken = 0.0, group.pool.take()
    assert taken is not None  # it came with the group
    for death in range(20):
        (fresh,) = turn(group, now)
        assert group.pool[0].is_spare
        os.kill(fresh, signal.SIGKILL)
        wait_for("its death", lambda pid=fresh: state_of(pid) == "Z")
        pause_s = min(LONGEST_SPARE_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(death, 10))
        assert turn(group, now) == []
        assert turn(group, now + 0.99 * pause_s) == []
        now += pause_s
    kept = KeptEvents()
    group.diary, told = kept, group.diary
    told.tell(Diary(events := []))  # type: ignore[attr-defined]
    assert events.count("spare") == events.count("spare-exit") == 20
    group.pool.put(taken)


class Diary:
    def __init__(self, events: list[str]) -> None:
        self._events = events

    def event(self, kind: str, /, **values: Any) -> None:
        self._events.append(kind)

    def show_message(self, message: str) -> None:
        raise AssertionError(message)


def test_a_spare_that_is_taken_is_replaced_at_once_whoever_died_before() -> None:
    roster = Roster(Role.SPARE, limits_of(Role.SPARE, Supervise()), 1)
    for now in (0.0, 100.0, 200.0):
        assert roster.tick(now, {}) == [Spawn(0, roster.slots[0].incarnation)]
        roster.exited(0, now, Death("killed"))
        assert roster.tick(now, {}) == []
    roster.tick(300.0, {})
    roster.ready(0)
    roster.taken(0)
    assert roster.tick(300.0, {}) == [Spawn(0, 5)]


def test_spares_are_started_one_at_a_time_and_only_when_that_disturbs_nobody() -> None:
    roster = Roster(Role.SPARE, limits_of(Role.SPARE, Supervise()), 3)
    assert roster.tick(0.0, {}, Moment(may_start=False)) == []
    for number in range(3):
        assert roster.tick(0.0, {}) == [Spawn(number, 1)]
        assert roster.tick(0.0, {}) == []
        roster.ready(number)
    assert roster.tick(0.0, {}) == []


def test_a_spare_that_somebody_has_stopped_or_killed_is_not_taken(group: ProcessGroup) -> None:
    group.refill(3)
    stopped, killed, well = made = [*group.pool]
    for handle in made:
        handle.is_waiting = True
    os.kill(stopped.pid, signal.SIGSTOP)
    wait_for("the stop", lambda: state_of(stopped.pid) == "T")
    os.kill(killed.pid, signal.SIGKILL)
    wait_for("the death", lambda: state_of(killed.pid) == "Z")
    assert group.pool.take() is well
    assert stopped.killed_for == "stopped while it waited"
    wait_for("both to be buried", lambda: turn(group, 0.0) == [])
    group.pool.put(well)


FILE_LIMIT = """
import resource
from hogwild.errors import RunError
from hogwild.planning.cpu_plan import FILES, FILES_PER_WORKER, plan_here
from hogwild.config.schema import Supervise
from workers.processes.group import ProcessGroup
limit = FILES + 4 * FILES_PER_WORKER
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
ProcessGroup(Supervise()).raise_file_limit(plan_here(1, 1))
ProcessGroup(Supervise(spares=50)).raise_file_limit(plan_here(0, 1))
try:
    ProcessGroup(Supervise(spares=50)).raise_file_limit(plan_here(1, 1))
except RunError as error:
    print(error)
"""


def test_spares_count_in_the_limit_on_open_files_where_there_are_workers() -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] > 80
    ended = subprocess.run([sys.executable, "-c", FILE_LIMIT], cwd=HOME, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "open files are needed, the limit is" in ended.stdout


# ---- a job with spares ----------------------------------------------------------------------------------------------


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
def mishandled(
    jobs_folder: Path, start_shared_job: Callable[..., Job], stopped_in_its_set_up: Job
) -> tuple[Ended, dict[str, Any]]:
    """A job of two workers and two spares, of which a person kills and stops what he can: (the job, what he saw)."""
    job = _counting(jobs_folder, start_shared_job, "mishandled", "supervise.spares=2", "train.pin=true")
    seen: dict[str, Any] = {"killed": []}
    for _ in range(3):  # whatever it is doing just then
        victim = wait_for("a spare", lambda: next((pid for pid, _ in _spares(job)), 0))
        os.kill(victim, signal.SIGKILL)
        wait_for("its burial", lambda pid=victim: pid in {event["pid"] for event in job.events("spare-exit")})
        seen["killed"].append(victim)

    first, second = _all_waiting(job)
    os.kill(first, signal.SIGSTOP)
    wait_for("the stop", lambda: state_of(first) == "T")
    victim = job.workers()[0]
    seen["cores"] = os.sched_getaffinity(victim)
    os.kill(victim, signal.SIGKILL)
    replacement = _spawned(job, 0, 2)
    job.wait_for_event("ready", 3)
    seen |= {"stopped": first, "waited": second, "replacement": replacement}
    seen["cores of the replacement"] = os.sched_getaffinity(replacement["pid"])

    _all_waiting(job)
    victim = job.workers()[1]
    os.kill(victim, signal.SIGKILL)
    taken = _spawned(job, 1, 2)
    os.kill(taken["pid"], signal.SIGKILL)  # while it is set up, or soon after
    job.wait_for_exit_of(taken["pid"])
    _spawned(job, 1, 3)
    seen["taken"] = taken["pid"]
    seen["left"] = [pid for pid, _ in _spares(job)]
    (jobs_folder / "diary-mishandled" / "hurry").touch()
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


def _spares(job: Job) -> list[tuple[int, str]]:
    """Those of status.json, which may be old, that the events do not know as gone or taken."""
    rows = job.status().get("spares", [])
    over = {event.get("pid") for event in job.events() if event["event"] in ("spare-exit", "spawn")}
    return [(row["pid"], row["state"]) for row in rows if row["pid"] not in over]


def _all_waiting(job: Job) -> list[int]:
    def look() -> list[int]:
        rows = _spares(job)
        well = all(state == "waiting" and state_of(pid) == "S" for pid, state in rows)
        return [pid for pid, _ in rows] if well and len(rows) == 2 and _states(job) == ["training"] * 2 else []

    return wait_for("two spares that wait, and two workers that train", look)


def _spawned(job: Job, worker: int, incarnation: int) -> dict[str, Any]:
    wanted = (worker, incarnation)

    def look() -> dict[str, Any]:
        found = [event for event in job.events("spawn") if (event["worker"], event["incarnation"]) == wanted]
        return found[0] if found else {}

    return wait_for(f"incarnation {incarnation} of worker {worker}", look)


def test_a_dead_worker_is_replaced_by_the_spare_that_can_answer(mishandled: tuple[Ended, dict[str, Any]]) -> None:
    ended, seen = mishandled
    assert seen["replacement"]["spare"] is True
    assert seen["replacement"]["pid"] == seen["waited"]
    (exit_of_stopped,) = [event for event in ended.events("spare-exit") if event["pid"] == seen["stopped"]]
    assert exit_of_stopped["how"] == "stopped while it waited"


def test_a_spare_runs_on_the_cores_of_the_worker_whose_place_it_takes(mishandled: tuple[Ended, dict[str, Any]]) -> None:
    _, seen = mishandled
    assert seen["cores of the replacement"] == seen["cores"]


def test_spares_that_are_killed_cost_the_job_nothing(mishandled: tuple[Ended, dict[str, Any]]) -> None:
    ended, seen = mishandled
    assert (ended.status, ended.reason) == (0, ("succeeded", "epochs")), ended.stderr
    assert set(seen["killed"]) <= {event["pid"] for event in ended.events("spare-exit")}
    assert not set(seen["killed"]) & {event["pid"] for event in ended.events("exit")}
    # The two workers that were killed, and the spare that was killed as soon as it was one.
    assert ended.summary["restarts"] == len(ended.events("exit")) == 3
    assert ended.ledger_adds_up() and ended.leases["quarantined"] == 0
    effects, redone = ended.effects(), ended.leases["redone"]
    assert effects.min() == 1 and int((effects > 1).sum()) <= redone * BATCH


def test_spares_end_with_the_job(mishandled: tuple[Ended, dict[str, Any]]) -> None:
    ended, seen = mishandled
    assert not ended.left_behind
    assert {event["pid"] for event in ended.events("spare")} >= set(seen["left"])


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
