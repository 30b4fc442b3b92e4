"""Which job starts next: examples, and what holds for any queue."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hogwild.service.schedule import MOST_PASSED, Machine, Share, Turn, decide
from hogwild.service.states import AttemptEnd, JobOrder, JobRecord, apply, end_event
from tests.helpers.service import order

CORES = ((0, 4), (1, 5), (2, 6), (3, 7))  # four physical cores with two threads each


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
    turn = decide(jobs, orders, Machine(CORES))
    assert numbers(turn, orders) == {1: (0, 4), 2: (1, 5, 2, 6)}
    assert turn.waits == {jobs[2].id: "needs 2 cores, 1 of 4 are free"}
    assert turn.passed == ()


def test_priority_comes_before_age() -> None:
    jobs, orders = queue(4, 4, priorities=(0, 1))
    assert list(numbers(decide(jobs, orders, Machine(CORES)), orders)) == [2]


def test_a_blocked_job_is_passed_ten_times_at_most() -> None:
    jobs, orders = queue(3, 4, *[1] * 30)
    live = apply(jobs[0], {"event": "starting", "attempt": 1, "cores": [0, 4, 1, 5, 2, 6], "at": 0.0, "boot_id": ""})
    known = {job.id: job for job in [live, *jobs[1:]]}
    started = 0
    while True:  # each small job ends at once
        turn = decide(list(known.values()), orders, Machine(CORES))
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
    assert numbers(decide(list(known.values()), orders, Machine(CORES)), orders) == {2: (0, 4, 1, 5, 2, 6, 3, 7)}


@pytest.mark.parametrize("more", [{"gpus": 1}, {"memory": 200}], ids=str)
def test_a_job_that_waits_for_what_no_job_has_blocks_nobody(more: dict[str, int]) -> None:
    """A GPU that was there at the submission; memory that other programs use."""
    orders = {one.id: one for one in (order(1, **more), order(2), order(3))}
    jobs = [JobRecord(name, passed=MOST_PASSED) for name in orders]
    turn = decide(jobs, orders, Machine(CORES[:1], memory_bytes=100.0))
    assert list(numbers(turn, orders)) == [2]
    assert turn.waits[jobs[0].id].startswith("needs ")


def test_gpus_and_memory_are_never_given_twice() -> None:
    gibibyte = 1 << 30
    orders = [order(1, gpus=1, memory=3 * gibibyte), order(2, gpus=1, memory=3 * gibibyte), order(3, gpus=1), order(4)]
    by_id = {one.id: one for one in orders}
    jobs = [JobRecord(one.id) for one in orders]
    turn = decide(jobs, by_id, Machine(CORES, ("0", "1"), 5 * gibibyte))
    assert turn.starts == {
        orders[0].id: Share((0, 4), ("0",)),
        orders[2].id: Share((1, 5), ("1",)),
        orders[3].id: Share((2, 6)),
    }
    assert turn.waits == {orders[1].id: "needs 3.0 GiB of memory, 2.0 GiB are free and not reserved"}
    assert turn.passed == (orders[1].id,) * 2
    live = [replace(jobs[0], state="running", cores=(0, 4), gpus=("0",)), jobs[1], jobs[2]]
    turn = decide(live, by_id, Machine(CORES, ("0",), 5 * gibibyte))
    assert not turn.starts and turn.waits[orders[2].id] == "needs 1 GPU, 0 of 1 are free"


def test_a_job_for_a_larger_machine_gets_all_of_this_one() -> None:
    jobs, orders = queue(64)
    assert numbers(decide(jobs, orders, Machine(CORES)), orders) == {1: (0, 4, 1, 5, 2, 6, 3, 7)}


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(-1, 1), st.booleans(), st.integers(0, 12)), max_size=25),
    st.integers(1, 4),
)
def test_no_core_is_given_twice_and_no_job_starves(queued: list[tuple[int, int, bool, int]], machine: int) -> None:
    cores = CORES[:machine]
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
