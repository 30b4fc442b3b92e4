"""Which job starts next, and which cores move between running jobs: examples, what holds for any queue, and random
histories in which a core never belongs to two jobs."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hogwild.service.schedule import MOST_PASSED, REST_S, Machine, Share, Speeds, Transfer, Turn, decide, lend, may_move
from hogwild.service.states import AttemptEnd, Elastic, JobEvent, JobOrder, JobRecord, apply, end_event
from tests.helpers.service import order

FOUR = ((0, 4), (1, 5), (2, 6), (3, 7))  # four physical cores with two threads each


def queue(*cpus: int, priorities: tuple[int, ...] = ()) -> tuple[list[JobRecord], dict[str, JobOrder]]:
    orders = [
        order(number, cpus=count, priority=priorities[number - 1] if priorities else 0)
        for number, count in enumerate(cpus, start=1)
    ]
    return [JobRecord(one.id) for one in orders], {one.id: one for one in orders}


def numbers(turn: Turn, orders: dict[str, JobOrder]) -> dict[int, tuple[int, ...]]:
    return {orders[name].number: share.cores for name, share in turn.starts.items()}


def test_jobs_get_whole_physical_cores_and_the_rest_say_what_they_wait_for() -> None:
    jobs, orders = queue(1, 2, 2)
    turn = decide(jobs, orders, Machine(FOUR))
    assert numbers(turn, orders) == {1: (0, 4), 2: (1, 5, 2, 6)}
    assert turn.waits == {jobs[2].id: "needs 2 cores, 1 of 4 are free"}
    assert turn.passed == ()


def test_priority_comes_before_age() -> None:
    jobs, orders = queue(4, 4, priorities=(0, 1))
    assert list(numbers(decide(jobs, orders, Machine(FOUR)), orders)) == [2]


def test_a_blocked_job_is_passed_ten_times_at_most() -> None:
    jobs, orders = queue(3, 4, *[1] * 30)
    live = apply(jobs[0], {"event": "starting", "attempt": 1, "cores": [0, 4, 1, 5, 2, 6], "at": 0.0, "boot_id": ""})
    known = {job.id: job for job in [live, *jobs[1:]]}
    started = 0
    while True:  # each small job ends at once
        turn = decide(list(known.values()), orders, Machine(FOUR))
        for name in turn.passed:
            known[name] = apply(known[name], {"event": "passed"})
        if not turn.starts:
            break
        for name in turn.starts:
            started += 1
            known[name] = replace(known[name], state="succeeded")
    assert started == MOST_PASSED == known[jobs[1].id].passed
    assert "10 jobs have passed" in turn.waits[jobs[12].id]
    known[live.id] = apply(live, end_event(live, orders[live.id], AttemptEnd("succeeded"), 1.0))
    assert numbers(decide(list(known.values()), orders, Machine(FOUR)), orders) == {2: (0, 4, 1, 5, 2, 6, 3, 7)}


@pytest.mark.parametrize("more", [{"gpus": 1}, {"memory": 200}], ids=str)
def test_a_job_that_waits_for_what_no_job_has_blocks_nobody(more: dict[str, int]) -> None:
    """A GPU that was there at the submission; memory that other programs use."""
    orders = {one.id: one for one in (order(1, **more), order(2), order(3))}
    jobs = [JobRecord(name, passed=MOST_PASSED) for name in orders]
    turn = decide(jobs, orders, Machine(FOUR[:1], memory_bytes=100.0))
    assert list(numbers(turn, orders)) == [2]
    assert turn.waits[jobs[0].id].startswith("needs ")


def test_gpus_and_memory_are_never_given_twice() -> None:
    gibibyte = 1 << 30
    orders = [order(1, gpus=1, memory=3 * gibibyte), order(2, gpus=1, memory=3 * gibibyte), order(3, gpus=1), order(4)]
    by_id = {one.id: one for one in orders}
    jobs = [JobRecord(one.id) for one in orders]
    turn = decide(jobs, by_id, Machine(FOUR, ("0", "1"), 5 * gibibyte))
    assert turn.starts == {
        orders[0].id: Share((0, 4), ("0",)),
        orders[2].id: Share((1, 5), ("1",)),
        orders[3].id: Share((2, 6)),
    }
    assert turn.waits == {orders[1].id: "needs 3.0 GiB of memory, 2.0 GiB are free and not reserved"}
    assert turn.passed == (orders[1].id,) * 2
    live = [replace(jobs[0], state="running", cores=(0, 4), gpus=("0",)), jobs[1], jobs[2]]
    turn = decide(live, by_id, Machine(FOUR, ("0",), 5 * gibibyte))
    assert not turn.starts and turn.waits[orders[2].id] == "needs 1 GPU, 0 of 1 are free"


def test_a_job_for_a_larger_machine_gets_all_of_this_one() -> None:
    jobs, orders = queue(64)
    assert numbers(decide(jobs, orders, Machine(FOUR)), orders) == {1: (0, 4, 1, 5, 2, 6, 3, 7)}


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(-1, 1), st.booleans(), st.integers(0, 12)), max_size=25),
    st.integers(1, 4),
)
def test_no_core_is_given_twice_and_no_job_starves(queued: list[tuple[int, int, bool, int]], machine: int) -> None:
    cores = FOUR[:machine]
    orders = [order(number, cpus=cpus, priority=high) for number, (cpus, high, _, _) in enumerate(queued, start=1)]
    jobs = []
    free = list(cores)
    for one, (cpus, _, is_live, passed) in zip(orders, queued, strict=True):
        job = JobRecord(one.id, passed=passed)
        if is_live and cpus <= len(free):
            taken, free = free[:cpus], free[cpus:]
            job = replace(job, state="running", cores=tuple(cpu for core in taken for cpu in core))
        jobs.append(job)
    by_id = {one.id: one for one in orders}
    turn = decide(jobs, by_id, Machine(cores))
    used = [cpu for job in jobs for cpu in job.cores] + [cpu for share in turn.starts.values() for cpu in share.cores]
    assert len(used) == len(set(used)) and set(used) <= {cpu for core in cores for cpu in core}
    for name, share in turn.starts.items():
        assert len(share.cores) == 2 * min(by_id[name].cpus, machine)
    waiting = {job.id for job in jobs if job.state == "queued"}
    assert turn.starts.keys() | turn.waits.keys() == waiting and not turn.starts.keys() & turn.waits.keys()
    if waiting and not any(job.is_live for job in jobs):
        assert turn.starts, "an empty machine starts somebody"
    left = {job.id: job.passed + turn.passed.count(job.id) for job in jobs}
    assert all(left[job.id] <= max(job.passed, MOST_PASSED) for job in jobs)


def test_a_job_keeps_its_least_workers_on_a_smaller_machine() -> None:
    """With fewer than supervise.min_workers it would be refused, and fail."""
    one = order(1, cpus=4, elastic=Elastic(4, 8, threads=2))
    turn = decide([JobRecord(one.id)], {one.id: one}, Machine(FOUR[:1]))
    assert turn.starts[one.id] == Share((0, 4), procs=2)


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


LEAST = [elastic(1, least=3), elastic(2, least=2)]
DIVISIONS = {  # orders, cores of those that run (the others wait), physical cores after the moves
    "an elastic borrower gets a fair share": ([elastic(1), elastic(2), elastic(3)], [range(5), range(5, 8)], {1: 3}),
    "a move that does not help is not made": ([*LEAST, order(3, cpus=4)], [range(4), range(4, 8)], {}),
    "a job gives no more than down to its least": ([*LEAST, order(3, cpus=3)], [range(4), range(4, 8)], {1: 3, 2: 2}),
    "unmeasured jobs get free cores evenly": ([elastic(1), elastic(2, most=3)], [[0], [1]], {1: 5, 2: 3}),
    "threads move by workers": ([elastic(1, least=2, threads=2), order(2, cpus=1)], [range(8)], {1: 6}),
}


@pytest.mark.parametrize(("orders", "cores", "after"), DIVISIONS.values(), ids=DIVISIONS)
def test_cores_are_divided(orders: list[JobOrder], cores: list[Iterable[int]], after: dict[int, int]) -> None:
    jobs = [running(one, *has) for one, has in zip(orders, cores, strict=False)]
    found = moves([*jobs, *(JobRecord(one.id) for one in orders[len(cores) :])], orders)
    assert {number: len(one.cores) // 2 for number, one in found.items()} == after
    threads = {one.number: one.elastic.threads for one in orders if one.elastic}
    assert {number: one.procs * threads[number] for number, one in found.items()} == after


def test_free_cores_go_to_whoever_gains_most_by_measured_speed() -> None:
    orders = [elastic(1), elastic(2)]
    jobs = [running(orders[0], 0, 1), running(orders[1], 2, 3)]
    flat, steep = {2: 100.0, 3: 101.0}, {2: 100.0, 3: 150.0, 4: 200.0}
    found = moves(jobs, orders, {orders[0].id: flat, orders[1].id: steep})
    assert found == {2: Transfer(logical(2, 3, 4, 5, 6, 7), 6)}


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
