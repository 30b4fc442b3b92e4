"""The queue of one node: it leases what was granted, returns what is too much, and accounts for everything in notes."""

import socket
from importlib.util import find_spec

import pytest

from hogwild.cluster.launch import Launch
from hogwild.cluster.shares import NodeQueue, Shares
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.scheduling.grid_plan import GridPlan
from hogwild.scheduling.schedules import GridSchedule, LaneSchedule
from hogwild.scheduling.stream_schedule import StreamSchedule
from hogwild.scheduling.work_queue import Limits
from hogwild.workers.session.node import Committed, Node
from tests.cluster.simulated_cluster import finish, must_lease, queue_of

# ---- grants and returns ----------------------------------------------------------------------------------------------


def test_a_node_leases_nothing_but_what_was_granted() -> None:
    queue = queue_of(10, max_item_updates=64)
    assert queue.is_dry and queue.lease(0) is None
    queue.grant([[1, 4, 6, 0]])
    item = must_lease(queue)
    assert (item.epoch, item.start) == (1, 4)
    assert not queue.is_dry


def test_the_barrier_of_an_evaluation_does_not_hold_back_a_grant() -> None:
    queue = queue_of(10)
    queue.open_until = 0
    queue.grant([[2, 0, 10, 0]])
    assert must_lease(queue).epoch == 2


@pytest.mark.parametrize(
    ("accumulate", "keep", "returned", "free"),
    [
        (1, 7, [[1, 0, 10, 0], [0, 7, 10, 0]], [[0, 0, 7, 0]]),
        (4, 7, [[1, 0, 10, 0], [0, 8, 10, 0]], [[0, 0, 8, 0]]),  # the last update of an epoch is shorter
        (4, 9, [[1, 0, 10, 0]], [[0, 0, 10, 0]]),
        (4, 13, [[1, 4, 10, 0]], [[0, 0, 10, 0], [1, 0, 4, 0]]),
        (1, 20, [], [[0, 0, 10, 0], [1, 0, 10, 0]]),
    ],
)
def test_the_last_updates_are_withdrawn(accumulate: int, keep: int, returned: list, free: list) -> None:
    queue = queue_of(10, accumulate=accumulate)
    queue.grant([[0, 0, 10, 0], [1, 0, 10, 0]])
    assert queue.withdraw(keep) == returned
    note = queue.note()
    assert (note["returned"], note["free"]) == (returned, free)
    assert note["held"] == sum(stop - start for _, start, stop, _ in free)


def test_leased_batches_are_not_withdrawn() -> None:
    queue = queue_of(10)
    queue.grant([[0, 0, 10, 0]])
    item = must_lease(queue)
    assert queue.withdraw(1) == [[0, item.stop, 10, 0]]
    assert queue.lease(0) is None
    assert not queue.is_dry


def test_what_a_node_returns_is_its_own_until_the_note_is_committed() -> None:
    queue = queue_of(10)
    queue.grant([[0, 0, 10, 0]])
    queue.withdraw(6)
    first, second = queue.note(), queue.note()  # the first round was thrown away
    assert first["returned"] == second["returned"] == [[0, 6, 10, 0]]
    queue.committed()
    assert queue.note()["returned"] == []


def test_what_was_granted_after_a_note_stays_when_a_node_goes_back_to_it() -> None:
    queue = queue_of(10)
    queue.grant([[0, 0, 6, 0]])
    finish(queue, 1)
    note = queue.note()
    queue.committed()
    queue.grant([[1, 0, 4, 0]])
    item = must_lease(queue)
    queue.observe(item.id, 1, 0)
    queue.withdraw(2)
    queue.back_to(note)
    assert queue.ack(0, item.id, 0) is None
    again = queue.note()
    assert again["free"] == [*note["free"], [1, 0, 4, 0]]
    assert again["counts"] == note["counts"]
    assert again["returned"] == []


def test_what_a_node_throws_away_is_skipped() -> None:
    queue = queue_of(10)
    queue.grant([[0, 0, 10, 0]])
    finish(queue, 2)
    before = queue.note()
    finish(queue, 2)
    queue.skip_since(before)
    done = before["counts"]["done"]
    assert (queue.own.done, queue.own.updates, queue.own.skipped) == (done, done, queue.own.samples - done)


def test_a_lane_that_a_worker_has_begun_is_not_withdrawn() -> None:
    plan, limits = BatchPlan(3 * 4, 1, lanes=3), Limits(1, max_item_updates=2)
    queue = NodeQueue(plan, limits, schedule=LaneSchedule(plan, limits))
    queue.grant([[0, 0, 12, 0]])
    finish(queue, 1)  # half a lane; nothing is leased now
    assert queue.withdraw(0) == [[0, 8, 12, 0], [0, 4, 8, 0]]
    assert queue.note()["free"] == [[0, 2, 4, 0]]


@pytest.mark.skipif(find_spec("numba") is None, reason="needs numba: pip install 'hogwild[sparse]'")
def test_a_row_block_of_which_some_is_leased_is_not_withdrawn() -> None:
    plan, limits = GridPlan(1, (3, 2, 2), tuple(range(7))), Limits(1)
    queue = NodeQueue(plan, limits, schedule=GridSchedule(plan, limits, seed=1))
    queue.grant([[0, 0, 6, 0]])
    row = must_lease(queue).start // 2
    returned = queue.withdraw(0)
    assert {start // 2 for _, start, *_ in returned} == {0, 1, 2} - {row}
    assert queue.note()["free"] == [[0, 2 * row, 2 * row + 2, 0]]


# ---- streams ---------------------------------------------------------------------------------------------------------


def fill(schedule: StreamSchedule) -> int:
    """Let one loader fill all that it has been asked for at once."""
    slots = []
    while (request := schedule.request(0)) is not None:
        slots.append(request.slot)
    for slot in slots:
        schedule.filled(0, slot, 1)
    return len(slots)


def test_a_ring_full_of_beginnings_is_leased_all_the_same() -> None:
    """Each range was withdrawn when its first batches were read, and then granted again: none is an exchange long."""
    plan, limits = BatchPlan(1000, 1), Limits(1, sync_every=4)
    schedule = StreamSchedule(plan, 10, 1, 1, 1, in_order=True)
    queue = NodeQueue(plan, limits, schedule=schedule)
    for first in range(0, 500, 100):
        queue.grant([[0, first, first + 20, 0]])
        assert fill(schedule) == 2
        queue.withdraw(0)
    queue.grant([[0, first + 2, first + 20, 0] for first in range(0, 500, 100)])
    assert fill(schedule) == 0
    done = 0
    while (item := queue.lease(0)) is not None or fill(schedule):
        if item is not None:
            queue.ack(0, item.id, 0)
            done += item.stop - item.start
    assert done == 100
    assert queue.is_dry


def test_loaders_read_nothing_that_was_not_granted() -> None:
    schedule = StreamSchedule(BatchPlan(100, 1), 20, 1, 1, 3)
    queue = NodeQueue(BatchPlan(100, 1), Limits(1, epochs=3), schedule=schedule)
    assert schedule.request(0) is None
    queue.grant([[1, 5, 7, 0]])
    requests = [schedule.request(0), schedule.request(0)]
    assert [(each.epoch, each.batch) for each in requests if each is not None] == [(1, 5), (1, 6)]
    for each in requests:
        assert each is not None
        schedule.filled(0, each.slot, 1)
    assert schedule.request(0) is None


@pytest.mark.parametrize(
    "pieces",
    [
        [[0, first, first + 20, 0] for first in (400, 300, 200, 100, 0)],
        [[epoch, 0, 20, 0] for epoch in (4, 3, 2, 1, 0)],
    ],
)
def test_an_update_is_read_completely_before_an_earlier_grant(pieces: list[list[int]]) -> None:
    """Otherwise the ring would be full of halves of updates, which nobody can lease."""
    schedule = StreamSchedule(BatchPlan(1000, 1), 10, 1, 4, 5)
    queue = NodeQueue(BatchPlan(1000, 1), Limits(1, epochs=5, accumulate=4), schedule=schedule)
    for piece in pieces:
        queue.grant([piece])
        fill(schedule)
    assert queue.lease(0) is not None


def test_of_nodes_on_one_disk_another_writes_the_last_checkpoint_only_if_the_first_is_dead() -> None:
    plan, limits = BatchPlan(64, 4), Limits(procs=1)
    shares = Shares(plan, limits)
    launch = Launch(rank=1, world=2, run_id="job", address="localhost", port=1)
    node = Node(launch, None, shares, NodeQueue(plan, limits), Committed(shares), (0, 1))  # type: ignore[arg-type]
    node.shares_disk = True
    with socket.create_server(("127.0.0.1", 0)) as first:
        node.lives = f"127.0.0.1:{first.getsockname()[1]}", "127.0.0.1:1"
        node.look_for_first()
        assert not node.writes
    node.look_for_first()
    assert node.writes
