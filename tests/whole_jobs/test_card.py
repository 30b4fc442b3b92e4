"""The project's card, phrase by phrase, on one job (jobs/card.py) that a person would write: share_memory in the
parent, spawned children that pull from a queue, writes that everybody sees, buffers that stay, threads told to each
child, and an idle worker that is killed while nobody waits for it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hogwild import host
from hogwild.workers.processes.fork_server import CHILD_NAME
from tests.helpers.jobs import HOME, JOBS, Ended, Job
from tests.helpers.processes import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.whole]

BATCHES = 300
THREADS = max(1, int(host.usable_cores().usable / 2))


@dataclass(frozen=True)
class Card:
    """The notes of the job: `saw` has every worker's notes by pid, `names` those of its children."""

    job: Job
    ended: Ended
    facts: dict[str, Any]
    saw: dict[int, list[dict[str, Any]]]
    names: dict[int, str]
    killed_idle: int
    held: int
    slow: int
    diary: Path


@pytest.fixture(scope="module")
def card(jobs_folder: Path, start_shared_job: Callable[..., Job]) -> Card:
    diary = jobs_folder / "diary"
    diary.mkdir()
    (diary / "hold").touch()
    run_dir = jobs_folder / "card" / "run"
    job = start_shared_job(
        jobs_folder / "card", str(diary), str(run_dir), python=(str(JOBS / "card.py"),), run_dir=run_dir
    )
    job.wait_for_event("ready", 2)
    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in job.workers().values()}
    # All batches but the one that is held are done: its worker is busy, the other has nothing to do.
    held = int(wait_for("the batch that is held", lambda: _text(diary / "holding")))
    job.wait_for_updates(BATCHES - 1)
    (idle,) = set(job.workers().values()) - {held}
    os.kill(idle, signal.SIGKILL)
    job.wait_for_exit_of(idle)
    wait_for("the watcher in the parent", (diary / "changed").exists)
    (diary / "hold").unlink()
    ended = job.wait()
    assert ended.status == 0, ended.stderr
    saw = {
        int(file.name.removeprefix("saw-")): [json.loads(line) for line in file.read_text().splitlines()]
        for file in diary.glob("saw-*")
    }
    facts = json.loads((diary / "facts.json").read_text())
    return Card(job, ended, facts, saw, names, idle, held, int((diary / "slow").read_text()), diary)


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def test_share_memory_is_called_in_the_parent(card: Card) -> None:
    callers = [int(file.name.removeprefix("share_memory-")) for file in card.diary.glob("share_memory-*")]
    assert callers == [card.facts["pid"]]
    assert all(note["shared"] for notes in card.saw.values() for note in notes)


def test_n_children_are_spawned_by_the_parent(card: Card) -> None:
    assert [*card.names.values()] == [CHILD_NAME] * 2
    assert set(card.saw) <= {event["pid"] for event in card.job.events("spawn")}
    assert {note["ppid"] for notes in card.saw.values() for note in notes} == {card.facts["pid"]}


def test_children_pull_work_from_a_queue_each_at_its_own_speed(card: Card) -> None:
    done = {pid: len(notes) for pid, notes in card.saw.items()}
    assert sum(done.values()) == BATCHES
    fast = sum(count for pid, count in done.items() if pid != card.slow)
    assert fast > done[card.slow]


def test_writes_of_a_worker_are_seen_in_the_parent_while_the_job_runs(card: Card) -> None:
    (last_commit,) = [event["time"] for event in card.ended.events("end")]
    assert card.facts["changed"] is not None
    assert card.facts["changed"] < last_commit < card.facts["returned"]


def test_buffers_stay_where_they_are_for_the_whole_job(card: Card) -> None:
    for pid, notes in card.saw.items():
        assert len({note["address"] for note in notes}) == 1, f"worker {pid} moved its buffer"
    assert max(len(notes) for notes in card.saw.values()) > 20


def test_omp_num_threads_is_in_every_childs_environment_before_torch_is_imported(card: Card) -> None:
    notes = [note for worker in card.saw.values() for note in worker]
    assert {note["omp"] for note in notes} == {str(THREADS)}
    assert {note["torch_threads"] for note in notes} == {THREADS}
    assert {note["openmp_at_load"] for note in notes} == {THREADS}


def test_a_childs_first_lines_import_no_torch() -> None:
    code = "import sys, hogwild.workers.child.entry; print('torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False"


def test_an_idle_worker_is_killed_and_nobody_waits(card: Card) -> None:
    assert card.killed_idle != card.held
    (killed,) = [event for event in card.ended.events("exit") if event["pid"] == card.killed_idle]
    assert (killed["freed"], killed["indeterminate"], killed["quarantined"]) == (0, 0, [])
    assert card.facts["state"] == "succeeded"
    assert card.ended.leases == {**dict.fromkeys(card.ended.leases, 0), "total": BATCHES, "done": BATCHES}


def test_the_result_is_in_private_memory_and_nothing_is_left(card: Card) -> None:
    assert card.facts["private"]
    assert not card.ended.left_behind
