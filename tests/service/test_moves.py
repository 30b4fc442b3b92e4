"""Cores move between jobs that train: asked for, answered, refused, and with a service that is killed on the way."""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hogwild import host
from hogwild.errors import ConflictError, ServiceError
from hogwild.service.attempts import JobProcess
from hogwild.service.moves import SILENT_S, Moves
from hogwild.service.routes_runs import LiveRequest, check_request
from hogwild.service.rows import row_of
from hogwild.service.schedule import REST_S, Machine, decide
from hogwild.service.states import Elastic
from hogwild.service.store import Store
from tests.helpers.processes import IS_THOROUGH, wait_for
from tests.helpers.service import Service, opened_store, order, require_two_cores, serving

ELASTIC = ("train.procs=auto", "train.epochs=100000")  # on all cores; others borrow them
MACHINE = Machine(((0,), (1,)))
OURSELVES = JobProcess(os.getpid(), 0, -1)
JOB, WAITING = order(1, elastic=Elastic(1, 2), cpus=2), order(2)

# ---- without a process: a run directory written by hand


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened_store(tmp_path) as made:
        for one in (JOB, WAITING):
            made.add(one, made.write_aside({"job.yaml": b""}, one))
        share = {"attempt": 1, "cores": [0, 1], "procs": 2, "boot_id": "", "at": time.time()}
        made.book(JOB.id, {"event": "starting", **share})
        made.book(JOB.id, {"event": "running"})
        made.state.job(JOB.id).run.mkdir()
        yield made


def ask(store: Store, moves: Moves | None = None) -> Moves:
    moves = moves or Moves(store.state, store, MACHINE)
    jobs = list(store.jobs.values())
    moves.ask(jobs, MACHINE, decide(jobs, store.orders, MACHINE))
    return moves


def requests(store: Store) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in (store.state.job(JOB.id).run / "requests").glob("*.json")]


def answer(store: Store, words: str) -> None:
    """Answer as the supervisor does."""
    run = store.state.job(JOB.id).run
    (file,) = (run / "requests").glob("*.json")
    with open(run / "events.jsonl", "a") as stream:
        stream.write(json.dumps({"event": "request", "id": file.stem, "answer": words}) + "\n")
    file.unlink()


def test_a_move_is_asked_for_once_and_takes_effect_when_it_is_answered(store: Store) -> None:
    moves = ask(store)
    assert requests(store) == [{"ask": "resize", "procs": 1, "cores": [0]}]
    ask(store)
    assert len(requests(store)) == 1
    moves.look(JOB.id, OURSELVES, {})
    assert store.jobs[JOB.id].in_use == {0, 1}
    answer(store, "done")
    moves.look(JOB.id, OURSELVES, {})
    job = store.jobs[JOB.id]
    assert (job.cores, job.move, job.moves, job.fixed) == ((0,), None, 1, None)


def test_a_job_that_refuses_is_not_asked_again(store: Store) -> None:
    moves = ask(store)
    answer(store, "a lane belongs to one worker (data.lanes)")
    moves.look(JOB.id, OURSELVES, {})
    job = store.jobs[JOB.id]
    assert (job.cores, job.move, job.fixed) == ((0, 1), None, "a lane belongs to one worker (data.lanes)")
    store.jobs[JOB.id] = replace(job, moved=job.moved and job.moved - 2 * REST_S)
    ask(store)
    assert requests(store) == []


def test_an_unread_request_is_taken_back_after_a_while(store: Store) -> None:
    moves = ask(store)
    job = store.jobs[JOB.id]
    store.jobs[JOB.id] = replace(job, moved=job.moved and job.moved - 2 * REST_S)
    moves.look(JOB.id, OURSELVES, {})
    assert requests(store) == [] and store.jobs[JOB.id].move is None and store.jobs[JOB.id].fixed is None


def test_a_request_that_was_not_written_is_written_by_the_next_service(store: Store) -> None:
    """Only once the job has shown, by a newer status, that it has not read one."""
    ask(store)
    (file,) = (store.state.job(JOB.id).run / "requests").glob("*.json")
    file.unlink()
    after = Moves(store.state, store, MACHINE)
    after.find(JOB.id)
    after.look(JOB.id, OURSELVES, {"time": time.time() - 1})
    assert requests(store) == []
    after.look(JOB.id, OURSELVES, {"time": time.time() + 1})
    assert requests(store) == [{"ask": "resize", "procs": 1, "cores": [0]}]


def test_a_run_that_user_code_has_damaged_holds_up_nobody(store: Store) -> None:
    """A line with the request's id that is no JSON; a link to itself or a pipe in the place of a file."""
    run = store.state.job(JOB.id).run
    events = run / "events.jsonl"
    events.symlink_to(events)
    moves = ask(store)
    (file,) = (run / "requests").glob("*.json")
    events.unlink()
    os.mkfifo(events)
    moves.look(JOB.id, OURSELVES, {})
    events.unlink()
    events.write_text(f'{{"{file.stem}"\n["{file.stem}"]\n')
    answer(store, "done")
    moves.look(JOB.id, OURSELVES, {})
    assert store.jobs[JOB.id].cores == (0,)


@pytest.mark.parametrize(("runs_on", "cores"), [({0}, (0,)), ({0, 1}, (0, 1))], ids=["moved", "not moved"])
def test_where_the_answer_was_not_written_the_kernel_tells(
    store: Store, monkeypatch: pytest.MonkeyPatch, runs_on: set[int], cores: tuple[int, ...]
) -> None:
    """The job's disk is full: it has read the request, and its event is lost."""
    moves = ask(store)
    (file,) = (store.state.job(JOB.id).run / "requests").glob("*.json")
    file.unlink()
    monkeypatch.setattr(JobProcess, "cores", lambda _: runs_on)
    moves.look(JOB.id, OURSELVES, {})
    job = store.jobs[JOB.id]
    assert job.in_use == {0, 1} and job.move is not None
    later = time.time() + 2 * SILENT_S
    monkeypatch.setattr(time, "time", lambda: later)
    moves.look(JOB.id, OURSELVES, {})
    assert store.jobs[JOB.id].cores == cores and store.jobs[JOB.id].move is None


def be_silent(store: Store) -> None:
    """Let the job have read its request long ago."""
    for file in (store.state.job(JOB.id).run / "requests").glob("*.json"):
        file.unlink()
    job = store.jobs[JOB.id]
    store.jobs[JOB.id] = replace(job, moved=job.moved and job.moved - 2 * SILENT_S)


def test_a_job_that_was_asked_to_grow_and_is_stopped_may_still_take_the_cores(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the request, and does it when it wakes up: nobody else gets the cores before it has shown, by a
    newer status, that it is done."""
    store.book(JOB.id, {"event": "ended", "state": "queued", "at": time.time()})
    share = {"attempt": 2, "cores": [0], "procs": 1, "boot_id": "", "at": time.time()}
    store.book(JOB.id, {"event": "starting", **share})
    store.book(JOB.id, {"event": "running"})
    store.book(WAITING.id, {"event": "ended", "state": "cancelled", "at": time.time()})
    moves = ask(store)
    assert requests(store) == [{"ask": "resize", "procs": 2, "cores": [0, 1]}]
    be_silent(store)
    monkeypatch.setattr(JobProcess, "cores", lambda _: {0})
    now = time.time()
    for later, status, in_use in ((0, {}, {0, 1}), (9, {"time": now - 1}, {0, 1}), (18, {"time": now + 17}, {0})):
        monkeypatch.setattr(time, "time", lambda at=now + later: at)
        moves.look(JOB.id, OURSELVES, status)
        assert store.jobs[JOB.id].in_use == in_use
    assert store.jobs[JOB.id].fixed == "it did not answer"


def test_a_stopped_lender_keeps_nobody_waiting_after_a_restart_of_the_service(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether its request was written is not known, and its status stays old."""
    ask(store)
    be_silent(store)
    moves, now = Moves(store.state, store, MACHINE), time.time()
    moves.find(JOB.id)
    monkeypatch.setattr(JobProcess, "cores", lambda _: {0, 1})
    moves.look(JOB.id, OURSELVES, {"time": now - 1})
    assert store.jobs[JOB.id].move is not None
    monkeypatch.setattr(time, "time", lambda: now + 2 * SILENT_S)
    moves.look(JOB.id, OURSELVES, {"time": now - 1})
    assert store.jobs[JOB.id].move is None and store.jobs[JOB.id].cores == (0, 1)


def test_a_request_that_the_next_service_writes_is_not_taken_back_at_once(store: Store) -> None:
    ask(store)
    be_silent(store)
    moves = Moves(store.state, store, MACHINE)
    moves.find(JOB.id)
    for _ in range(2):
        moves.look(JOB.id, OURSELVES, {"time": time.time() + 1})
        assert len(requests(store)) == 1


def test_a_move_whose_request_could_not_be_written_leaves_its_clock_to_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(store)
    be_silent(store)
    moves, folder = Moves(store.state, store, MACHINE), store.state.job(JOB.id).run / "requests"
    moves.find(JOB.id)
    folder.rmdir()
    folder.touch()
    moves.look(JOB.id, OURSELVES, {"time": time.time() + 1})
    assert store.jobs[JOB.id].move is None
    folder.unlink()
    later = time.time() + 2 * REST_S
    monkeypatch.setattr(time, "time", lambda: later)
    ask(store, moves)
    moves.look(JOB.id, OURSELVES, {})
    assert store.jobs[JOB.id].move is not None and len(requests(store)) == 1


def test_a_full_disk_moves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_commit", lambda: False)
    ask(store)
    assert store.jobs[JOB.id].move is None and requests(store) == []


@pytest.mark.parametrize("is_elastic", [True, False])
def test_cores_that_the_service_moves_are_not_moved_by_others(store: Store, is_elastic: bool) -> None:
    """The job may do both moves in any order, and its other core has a new owner after the first."""
    ask(store)
    job, made = store.jobs[JOB.id], store.orders[JOB.id]
    row = row_of(job, made if is_elastic else replace(made, elastic=None), store.state.job(JOB.id), {}, None)
    assert (row["cores"], row["moving_to"]) == ([0, 1], [0])
    with pytest.raises(ConflictError, match="by procs alone") if is_elastic else contextlib.nullcontext():
        check_request(LiveRequest(ask="resize", cores=[1]), row)
    check_request(LiveRequest(ask="resize", procs=1), row)


# ---- with jobs


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    require_two_cores()
    with serving(tmp_path) as made:
        yield made


def cores_of(service: Service, row: dict[str, Any]) -> set[int]:
    """Return the logical CPUs on which the job's processes may run, as the kernel has them."""
    pids = [row["pid"], *host.children(row["pid"], recursive=True)]
    return set().union(*(os.sched_getaffinity(pid) for pid in pids))


@pytest.mark.whole
@pytest.mark.processes
def test_a_job_borrows_a_core_of_one_that_trains_on_and_gets_it_back(service: Service) -> None:
    lender = service.start().running(*ELASTIC)
    all_cores = set(service.client.job(lender["id"])["cores"])
    borrower = service.submit("train.procs=1", "train.epochs=100000")
    borrowed = set(service.wait_for_state(borrower["id"], "running")["cores"])
    lender = service.client.job(lender["id"])
    assert (lender["state"], lender["attempt"], lender["moves"]) == ("running", 1, 1)
    assert borrowed and borrowed.isdisjoint(lender["cores"]) and borrowed | set(lender["cores"]) == all_cores
    assert cores_of(service, lender) == set(lender["cores"])
    assert cores_of(service, service.client.job(borrower["id"])) == borrowed
    before = lender["updates"]
    wait_for("it trains on", lambda: service.client.job(lender["id"])["updates"] > before)
    service.client.cancel(borrower["id"], now=True)
    wait_for("its core is back", lambda: set(service.client.job(lender["id"])["cores"]) == all_cores, 60)
    assert cores_of(service, lender) == all_cores
    events = service.events(lender["id"])
    first, second = (event["at"] for event in events if event["event"] == "move")
    assert second - first >= REST_S
    procs = [event["procs"] for event in events if event["event"] in ("starting", "move")]
    assert procs == [len(all_cores), len(all_cores) - 1, len(all_cores)]


@pytest.mark.processes
@pytest.mark.parametrize("point", ["before-move", "move-asked", "moved"] if IS_THOROUGH else ["before-move", "moved"])
def test_a_service_killed_beside_a_move_completes_it(service: Service, point: str) -> None:
    lender = service.start(failpoint=point).running(*ELASTIC)
    with contextlib.suppress(ServiceError):  # the service may die before it answers
        service.submit("train.procs=1", "train.epochs=1")
    wait_for("its failpoint", lambda: service.has_ended)
    service.start()
    (borrower,) = (row["id"] for row in service.client.jobs() if row["id"] != lender["id"])
    assert service.wait_for_state(borrower, "succeeded")["attempt"] == 1
    row = service.client.job(lender["id"])
    assert (row["state"], row["attempt"]) == ("running", 1)
    assert [event["event"] for event in service.events(lender["id"])].count("moved") >= 1


@pytest.mark.processes
def test_a_resumed_job_begins_on_what_is_free(service: Service) -> None:
    paused = service.start().training(*ELASTIC)
    service.client.pause(paused["id"])
    service.wait_for_state(paused["id"], "paused")
    other = service.submit("train.procs=1", "train.epochs=100000")
    taken = set(service.wait_for_state(other["id"], "running")["cores"])
    service.client.resume(paused["id"])
    row = service.wait_for_state(paused["id"], "running")
    assert row["cores"] and taken.isdisjoint(row["cores"])
    wait_for("its workers", lambda: (service.client.job(paused["id"])["workers"] or 0) == len(row["cores"]))
