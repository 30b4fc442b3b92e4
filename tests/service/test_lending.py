"""Which cores move between running jobs: examples, and random histories in which no core is ever in two hands."""

from dataclasses import asdict, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hogwild.service.schedule import REST_S, Machine, Speeds, Transfer, decide, lend, may_move
from hogwild.service.states import AttemptEnd, Elastic, JobEvent, JobOrder, JobRecord, apply, end_event
from tests.helpers.service import order

CORES = tuple((core, core + 8) for core in range(8))  # eight physical cores with two threads each
MACHINE = Machine(CORES)


def logical(*cores: int) -> tuple[int, ...]:
    return tuple(cpu for core in cores for cpu in CORES[core])


def elastic(number: int, least: int = 1, most: int = 8, threads: int = 1, cpus: int = 8) -> JobOrder:
    return order(number, cpus=cpus, elastic=Elastic(least, most, threads))


def running(one: JobOrder, *cores: int) -> JobRecord:
    return JobRecord(one.id, state="running", cores=logical(*cores))


def moves(
    jobs: list[JobRecord],
    orders: list[JobOrder],
    speeds: dict[str, Speeds] | None = None,
    *,
    machine: Machine = MACHINE,
) -> dict[int, Transfer]:
    by_id = {one.id: one for one in orders}
    turn = decide(jobs, by_id, machine)
    ready = [job.id for job in jobs if may_move(job, by_id[job.id], 0.0)]
    found = lend(jobs, by_id, machine, turn, ready=ready, speeds=speeds or {})
    return {by_id[name].number: transfer for name, transfer in found.items()}


def test_a_waiting_job_borrows_what_it_needs_and_the_lender_has_a_worker_a_core() -> None:
    orders = [elastic(1), order(2, cpus=3)]
    found = moves([running(orders[0], *range(8)), JobRecord(orders[1].id)], orders)
    assert found == {1: Transfer(logical(0, 1, 2, 3, 4), 5, orders[1].id)}


def test_an_elastic_borrower_gets_a_fair_share() -> None:
    orders = [elastic(1), elastic(2), elastic(3)]
    jobs = [running(orders[0], 0, 1, 2, 3, 4), running(orders[1], 5, 6, 7), JobRecord(orders[2].id)]
    found = moves(jobs, orders)
    assert {number: len(one.cores) // 2 for number, one in found.items()} == {1: 3}  # 3, 3 and 2


def test_nobody_gives_more_than_down_to_its_least_and_a_move_that_does_not_help_is_not_made() -> None:
    orders = [elastic(1, least=3), elastic(2, least=2), order(3, cpus=4)]
    jobs = [running(orders[0], 0, 1, 2, 3), running(orders[1], 4, 5, 6, 7), JobRecord(orders[2].id)]
    assert moves(jobs, orders) == {}
    orders[2] = order(3, cpus=3)
    assert {number: len(one.cores) // 2 for number, one in moves(jobs, orders).items()} == {1: 3, 2: 2}


def test_free_cores_go_to_whoever_gains_most_by_measured_speed() -> None:
    orders = [elastic(1), elastic(2)]
    jobs = [running(orders[0], 0, 1), running(orders[1], 2, 3)]
    flat, steep = {2: 100.0, 3: 101.0}, {2: 100.0, 3: 150.0, 4: 200.0}
    found = moves(jobs, orders, {orders[0].id: flat, orders[1].id: steep})
    assert found == {2: Transfer(logical(2, 3, 4, 5, 6, 7), 6)}


def test_free_cores_are_given_back_evenly_where_nothing_is_measured() -> None:
    orders = [elastic(1), elastic(2, most=3)]
    found = moves([running(orders[0], 0), running(orders[1], 1)], orders)
    assert {number: (len(one.cores) // 2, one.procs) for number, one in found.items()} == {1: (5, 5), 2: (3, 3)}


def test_a_job_with_threads_moves_by_whole_workers() -> None:
    orders = [elastic(1, least=2, threads=2), order(2, cpus=1)]
    found = moves([running(orders[0], *range(8)), JobRecord(orders[1].id)], orders)
    assert (len(found[1].cores) // 2, found[1].procs) == (6, 3)


@pytest.mark.parametrize(
    "change",
    [{"move": None, "moved": -5.0}, {"fixed": "lanes"}, {"asked": "pause", "state": "stopping"}, {"state": "starting"}],
    ids=["moved 5 s ago", "cannot be resized", "stops", "starts"],
)
def test_who_lends_nothing(change: dict[str, object]) -> None:
    orders = [elastic(1), order(2, cpus=1)]
    lender = replace(running(orders[0], *range(8)), **change)  # type: ignore[arg-type]
    assert moves([lender, JobRecord(orders[1].id)], orders) == {}


def test_while_cores_are_on_their_way_nobody_passes_their_borrower_and_no_second_move_is_asked() -> None:
    orders = [elastic(1), order(2, cpus=2), order(3, cpus=1)]
    by_id = {one.id: one for one in orders}
    lender = running(orders[0], *range(7))  # one is free
    jobs = [lender, JobRecord(orders[1].id), JobRecord(orders[2].id)]
    turn = decide(jobs, by_id, MACHINE)
    assert list(turn.starts) == [orders[2].id]
    jobs = [lender, JobRecord(orders[1].id)]
    (transfer,) = moves(jobs, orders).values()
    asked = {"event": "move", "request": "r", "begin": 0, "at": 0.0, **asdict(transfer)}
    jobs = [apply(lender, asked), JobRecord(orders[1].id), JobRecord(orders[2].id)]
    turn = decide(jobs, by_id, MACHINE)
    assert not turn.starts
    assert turn.waits == {
        orders[1].id: "waits for cores of job 1",
        orders[2].id: "waits for job 2, which gets cores of job 1",
    }
    jobs[0] = apply(jobs[0], {"event": "moved", "at": 1.0})
    assert set(decide(jobs, by_id, MACHINE).starts) == {orders[1].id}


def test_an_elastic_job_begins_on_what_is_free_and_leaves_the_next_ones_their_least() -> None:
    orders = [elastic(1), elastic(2), order(3, cpus=2)]
    turn = decide([JobRecord(one.id) for one in orders], {one.id: one for one in orders}, MACHINE)
    assert {name: (len(share.cores) // 2, share.procs) for name, share in turn.starts.items()} == {
        orders[0].id: (3, 3),
        orders[1].id: (3, 3),
        orders[2].id: (2, None),
    }


@given(st.randoms(use_true_random=False))
def test_in_any_history_no_core_is_in_two_hands_and_every_job_ends(dice: Random) -> None:
    """Jobs come, end, are lost and answer moves late, with refusals; time goes on in steps."""
    machine = Machine(CORES[: dice.randint(1, 8)])
    size = len(machine.cores)
    orders: dict[str, JobOrder] = {}
    jobs: dict[str, JobRecord] = {}
    now = 0.0

    def book(name: str, event: JobEvent) -> None:
        jobs[name] = apply(jobs[name], event)
        used = [cpu for job in jobs.values() for cpu in job.in_use]
        assert len(used) == len(set(used)), "a core is in two hands"

    for step in range(120):
        now += dice.choice([0.1, 0.5, 3.0])
        if step < 40 and dice.random() < 0.3:
            number = len(orders) + 1
            least = dice.randint(1, size)
            kind = Elastic(least, dice.randint(least, size), dice.choice([1, 1, 2])) if dice.random() < 0.7 else None
            cpus = dice.randint(least, kind.most) if kind else dice.randint(1, size + 1)
            one = order(number, cpus=cpus, elastic=kind, priority=dice.randint(0, 1))
            orders[one.id], jobs[one.id] = one, JobRecord(one.id)
        for name, job in list(jobs.items()):
            if job.move is not None and dice.random() < 0.6:
                is_done = dice.random() < 0.8
                book(name, {"event": "moved"} if is_done else {"event": "kept", "fixed": dice.choice([None, "pinned"])})
            elif job.state == "starting" and dice.random() < 0.5:
                book(name, {"event": "running"})
            elif job.is_live and dice.random() < 0.1:
                end = AttemptEnd("succeeded") if dice.random() < 0.8 else AttemptEnd()
                book(name, end_event(job, orders[name], end, now))
        known = list(jobs.values())
        turn = decide(known, orders, machine)
        ready = [job.id for job in known if may_move(job, orders[job.id], now)]
        speeds = {name: {cores: dice.random() * cores for cores in range(1, size + 1)} for name in ready}
        asked = lend(known, orders, machine, turn, ready=ready, speeds=speeds if dice.random() < 0.5 else {})
        for name in turn.passed:
            book(name, {"event": "passed"})
        for name, transfer in asked.items():
            limits, before, after = orders[name].elastic, set(jobs[name].cores), set(transfer.cores)
            assert limits is not None and (before < after or after < before)
            assert len(after) // 2 <= limits.most or after < before
            assert len(after) // 2 >= min(limits.least, len(before) // 2)
            assert transfer.procs == limits.procs(len(after) // 2)
            assert jobs[name].moved is None or now - (jobs[name].moved or 0.0) >= REST_S
            book(name, {"event": "move", "request": str(step), "begin": 0, "at": now, **asdict(transfer)})
        for name, share in turn.starts.items():
            book(name, {"event": "starting", "attempt": 1, "at": now, "boot_id": "", **asdict(share)})
    for _ in range(len(jobs) * 4):  # nobody comes any more, and whoever runs ends
        for name, job in list(jobs.items()):
            if job.is_live:
                book(name, end_event(job, orders[name], AttemptEnd("succeeded"), now))
        for name, share in decide(list(jobs.values()), orders, machine).starts.items():
            book(name, {"event": "starting", "attempt": 1, "at": now, "boot_id": "", **asdict(share)})
    assert {job.state for job in jobs.values()} <= {"succeeded", "failed"}
