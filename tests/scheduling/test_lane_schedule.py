"""Lanes: each batch continues the one before it, a lane is never in two hands, every batch is settled once whoever
dies, and a worker hardly ever waits: the last by a simulation with a clock of its own."""

import heapq
import json

import numpy as np
import pytest
import torch

from hogwild.feeds.resident import ResidentData, ResidentFeed
from hogwild.feeds.sample_order import LaneOrder
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.scheduling.schedules import LaneSchedule
from hogwild.scheduling.work_queue import LeaseProgress, Limits, WorkItem, WorkQueue


def plan_of(lanes: int, steps: int, columns: int = 4) -> BatchPlan:
    return BatchPlan(lanes * columns * steps, columns, lanes=lanes)


def queue_of(lanes: int, steps: int, procs: int, *, most: int = 64, **limits: int) -> WorkQueue:
    plan = plan_of(lanes, steps)
    chosen = Limits(procs, max_item_updates=most, **limits)
    return WorkQueue(plan, chosen, schedule=LaneSchedule(plan, chosen))


def must_lease(queue: WorkQueue, worker: int) -> WorkItem:
    item = queue.lease(worker)
    assert item is not None
    return item


def finish(queue: WorkQueue, worker: int, item: WorkItem) -> None:
    assert queue.ack(worker, item.id, 0) is item


# ---- the order -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lanes", "columns", "steps"), [(1, 1, 1), (1, 4, 7), (5, 3, 11), (16, 64, 15)])
def test_every_column_of_a_batch_continues_the_same_column_of_the_batch_before(
    lanes: int, columns: int, steps: int
) -> None:
    order, plan = LaneOrder(lanes, columns, steps), plan_of(lanes, steps, columns)
    rows = np.stack([order.indices(0, *plan.positions(batch)).copy() for batch in range(plan.batches)])
    assert sorted(rows.reshape(-1)) == [*range(lanes * columns * steps)], "every row once"
    for batch in range(plan.batches):
        if batch % steps:
            assert (rows[batch] == rows[batch - 1] + 1).all()
    assert (order.indices(3, *plan.positions(plan.batches - 1)) == rows[-1]).all(), "the same in every epoch"


def test_the_resident_feed_gathers_lanes_and_leaves_the_rest_out() -> None:
    x = torch.arange(50)
    data = ResidentData.from_tensors("lanes", [x, x + 1])
    feed = ResidentFeed(data, BatchPlan(48, 4, lanes=3), seed=1, order="auto")
    assert feed.gather(0, 0).inputs[0].tolist() == [0, 4, 8, 12]
    assert feed.gather(0, 1).target.tolist() == [2, 6, 10, 14]
    assert feed.gather(1, 11).inputs[0].tolist() == [35, 39, 43, 47]


# ---- the rule ------------------------------------------------------------------------------------------------------


def test_a_worker_goes_on_in_its_own_lane_and_another_gets_another() -> None:
    queue = queue_of(lanes=4, steps=10, procs=2, most=3)
    first, other = must_lease(queue, 0), must_lease(queue, 1)
    assert (first.start, first.stop) == (0, 3) and (other.start, other.stop) == (10, 13)
    second = must_lease(queue, 0)
    assert (second.start, second.stop) == (3, 6)
    assert queue.lease(0) is None, "two in hand"
    finish(queue, 0, first)
    assert must_lease(queue, 0).start == 6


def test_an_item_ends_where_its_lane_ends_and_the_worker_gets_the_lane_with_most_left() -> None:
    queue = queue_of(lanes=3, steps=10, procs=1)
    whole = must_lease(queue, 0)
    assert (whole.start, whole.stop) == (0, 10)
    queue.release(0, LeaseProgress(whole.id, committed=4, skipped=0, intended_item=0, intended=0))
    assert must_lease(queue, 1).start == 10, "lane 0 has 6 left, the others 10"


def test_the_lane_of_a_worker_that_is_gone_is_anybodys() -> None:
    queue = queue_of(lanes=2, steps=6, procs=2, most=2)
    items = [must_lease(queue, 0), must_lease(queue, 0)]
    mine = must_lease(queue, 1)
    queue.release(0, LeaseProgress(items[0].id, committed=1, skipped=0, intended_item=0, intended=0))
    assert mine.start == 6
    assert must_lease(queue, 1).start == 8, "it has a lane of its own"
    assert must_lease(queue, 2).start == 1, "the rest of the lane, from its first unsettled batch on"


def test_one_with_something_in_hand_leaves_the_last_lanes_to_those_without() -> None:
    queue = queue_of(lanes=3, steps=4, procs=2)
    last = must_lease(queue, 0)
    assert must_lease(queue, 0).start == 4, "two lanes are free, for two workers"
    assert queue.lease(0) is None
    finish(queue, 0, last)
    assert queue.lease(0) is None, "one lane is free, and it has one in hand"
    assert must_lease(queue, 1).start == 8


def test_there_is_no_barrier_between_epochs_but_nobody_runs_away() -> None:
    queue = queue_of(lanes=2, steps=4, procs=2, epochs=3)
    slow = must_lease(queue, 1)
    epochs = []
    while (item := queue.lease(0)) is not None:
        epochs.append(item.epoch)
        finish(queue, 0, item)
    assert epochs == [0, 1, 1] and slow.epoch == 0


def test_a_resumed_queue_has_no_holders_and_goes_on_in_the_middle_of_lanes() -> None:
    queue = queue_of(lanes=3, steps=10, procs=2, most=4)
    for worker in (0, 1):
        finish(queue, worker, must_lease(queue, worker))
    state = json.loads(json.dumps(queue.state()))
    again = queue_of(lanes=3, steps=10, procs=2, most=4)
    again.restore(state)
    assert {must_lease(again, 5).start, must_lease(again, 6).start, must_lease(again, 7).start} == {4, 14, 20}
    queue.restore(state)  # a rollback: the lanes that were held are nobody's
    assert {must_lease(queue, 5).start, must_lease(queue, 6).start, must_lease(queue, 7).start} == {4, 14, 20}


def test_a_resume_with_other_lanes_is_refused() -> None:
    state = queue_of(lanes=2, steps=6, procs=1).state()
    with pytest.raises(ValueError, match="lanes: was 2, now 3"):
        queue_of(lanes=3, steps=4, procs=1).restore(state)


def test_an_update_of_several_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="an update holds one batch, not 2"):
        queue_of(lanes=2, steps=6, procs=1, accumulate=2)


# ---- simulated -----------------------------------------------------------------------------------------------------


def simulated(procs: int, lanes: int, steps: int, epochs: int, *, barrier: bool) -> float:
    """Updates in the time of one update: `procs` if nobody ever waits. Workers are unequal by up to a tenth."""
    queue = queue_of(lanes, steps, procs, epochs=epochs)
    speed = [1 + 0.1 * k / procs for k in range(procs)]
    events, now, idle = [(0.0, worker, -1) for worker in range(procs)], 0.0, set[int]()
    while events:
        now, worker, item_id = heapq.heappop(events)
        if item_id >= 0:
            queue.ack(worker, item_id, 0)
        queue.open_until = queue.epoch + 1 if barrier else epochs
        for one in (worker, *idle):
            while queue.lease(one) is not None:
                pass
            if leases := queue.leases_of(one):
                idle.discard(one)
                first = leases[0]
                heapq.heappush(events, (now + first.left * speed[one], one, first.item.id))
            else:
                idle.add(one)
    assert queue.is_finished and queue.ledger.done == lanes * steps * epochs
    return lanes * steps * epochs / now


def test_nobody_starves() -> None:
    assert simulated(4, 16, 30, 6, barrier=False) > 0.97 * 4 / 1.0375
    assert simulated(2, 16, 30, 6, barrier=True) > 0.93 * 2 / 1.025
    assert simulated(3, 3, 30, 6, barrier=False) > 0.9 * 3 / 1.033
