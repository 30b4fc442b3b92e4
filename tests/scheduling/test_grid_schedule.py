"""Row blocks: nobody ever meets anybody in one, every batch is settled once, and whoever is left ends the job."""

import json
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.scheduling.grid_plan import Grid, GridPlan, Shape
from hogwild.scheduling.schedules import GridSchedule
from hogwild.scheduling.work_queue import MAX_ITEM_BATCHES, MOST_IN_HAND, LeaseProgress, Limits, WorkItem, WorkQueue
from hogwild.shared_memory.scoreboard import Phase, idle_share


def plan_of(shape: Shape, *, samples: int = 40_000, batch_size: int = 64) -> GridPlan:
    """Ids of a power law."""
    rng = np.random.default_rng(0)
    rows = np.sort((2000 * rng.random(samples) ** 2).astype(np.int32))
    columns = (900 * rng.random(samples) ** 3).astype(np.int32)
    return GridPlan.of(Grid.of(rows, columns, 2000, 900, shape), batch_size)


def even_plan(rows: int, batches: int = 3) -> GridPlan:
    """Every row block holds `batches` batches of 4 samples, each in a column of its own; two starts."""
    return GridPlan(4, (rows, batches, 2), tuple(range(0, rows * batches * 4 + 1, 4)))


def queue_of(plan: GridPlan, limits: Limits, *, seed: int = 0) -> WorkQueue:
    return WorkQueue(plan, limits, schedule=GridSchedule(plan, limits, seed=seed))


def must_lease(queue: WorkQueue, worker: int = 0) -> WorkItem:
    item = queue.lease(worker)
    assert item is not None
    return item


def row_of(queue: WorkQueue, item: WorkItem) -> int:
    plan = queue.plan
    assert isinstance(plan, GridPlan)
    rows = {plan.row_of(batch) for batch in range(item.start, item.stop)}
    assert len(rows) == 1, "an item crosses the border of a row block"
    return rows.pop()


def work_alone(queue: WorkQueue, worker: int = 0) -> list[tuple[int, int]]:
    """(Epoch, row block) of all that a worker is leased while the others do nothing."""
    seen = []
    while (item := queue.lease(worker)) is not None:
        seen.append((item.epoch, row_of(queue, item)))
        queue.ack(worker, item.id, 0)
    return seen


# ---- the rule ------------------------------------------------------------------------------------------------------


def test_an_item_is_a_whole_row_block() -> None:
    item = must_lease(queue_of(even_plan(8), Limits(2)))
    assert item.stop - item.start == 3
    assert item.start % 3 == 0


def test_an_item_of_a_large_row_block_is_as_long_as_the_commit_word_counts_and_the_rest_comes_next() -> None:
    plan = GridPlan(1, (2, 1, 2), (0, 100_000, 200_000))
    queue = queue_of(plan, Limits(1))
    first, second = must_lease(queue), must_lease(queue)
    assert first.stop - first.start == MAX_ITEM_BATCHES
    assert (second.start, second.stop - second.start) == (first.stop, 100_000 - MAX_ITEM_BATCHES)


def test_workers_at_the_same_pace_have_the_row_blocks_of_one_start_each() -> None:
    queue, seen = queue_of(even_plan(8), Limits(2, epochs=3)), []
    while not queue.is_finished:
        for worker in (0, 1):
            seen.append((worker, row_of(queue, item := must_lease(queue, worker)) % 2))
            queue.ack(worker, item.id, 0)
    assert Counter(seen) == {(0, 0): 12, (1, 1): 12}


def test_a_worker_that_would_be_idle_takes_any_row_block_that_nobody_holds() -> None:
    """No barrier; but nobody works two epochs ahead of a worker that is stalled."""
    queue = queue_of(even_plan(4), Limits(2, epochs=5))
    stalled = row_of(queue, must_lease(queue, 1))
    seen = work_alone(queue)
    assert Counter(seen) == Counter((epoch, row) for epoch in (0, 1) for row in range(4) if row != stalled)
    assert [row % 2 for _, row in seen] == [0, 0, 0, 0, 1, 1], "its own come first, those of the next epoch too"
    assert queue.epoch == 0


def test_an_epoch_that_is_not_open_is_not_entered() -> None:
    queue = queue_of(even_plan(2), Limits(1, epochs=3))
    queue.open_until = 1
    assert {epoch for epoch, _ in work_alone(queue)} == {0}
    assert queue.is_epoch_settled(0)
    assert not queue.is_begun(1)


def test_an_epoch_of_which_nothing_may_be_leased_is_not_begun() -> None:
    queue = queue_of(even_plan(1), Limits(2, epochs=2))
    must_lease(queue, 0)
    assert queue.lease(1) is None
    assert not queue.is_begun(1)


@pytest.mark.parametrize(
    ("hand", "earliest", "furthest"),
    [
        (0, 0, 1),
        (9, 0, 4),  # two workers train three epochs of six batches with what they should have in hand
        (9, 5, 7),
        (9, 8, 9),
    ],
)
def test_short_epochs_begin_as_far_ahead_as_a_hand_lasts_but_not_towards_the_end(
    hand: int, earliest: int, furthest: int
) -> None:
    limits = Limits(2, hands={0: hand, 1: hand})
    schedule = GridSchedule(even_plan(2), limits, seed=0)
    assert max(epoch for epoch in range(10) if schedule.may_open(epoch, earliest, 10, limits)) == furthest


def test_workers_beyond_the_row_blocks_wait_and_the_job_comes_to_its_end() -> None:
    job = Job(even_plan(4), Limits(9, epochs=3), seed=0)
    job.run_to_the_end()
    assert job.done.total() == 3 * job.plan.batches


def test_the_next_epoch_is_drawn_once_however_often_a_waiting_worker_asks_for_it() -> None:
    schedule = GridSchedule(even_plan(4), Limits(1), seed=0)
    assert schedule.free_of(1) is schedule.free_of(1)
    first = schedule.free_of(1)
    schedule.restart(0)
    assert schedule.free_of(1) is not first, "after a rollback nothing of it is leased"


def rows_of_job(epochs: int, seed: int, stop_after: int | None = None) -> list[tuple[int, int]]:
    """Row blocks in the order in which one worker works in them; the job is resumed once, in the middle of one."""
    plan = plan_of((6, 6, 2))
    queue = queue_of(plan, Limits(1, epochs=epochs), seed=seed)
    rows: list[tuple[int, int]] = []
    while not queue.is_finished:
        while queue.lease(0) is not None:
            pass
        item = queue.leases_of(0)[0].item
        rows.append((item.epoch, row_of(queue, item)))
        if len(rows) == stop_after:
            queue.observe(item.id, 1, 0)
            state = json.loads(json.dumps(queue.state()))
            queue = queue_of(plan, Limits(1, epochs=epochs), seed=seed)
            queue.restore(state)
        else:
            queue.ack(0, item.id, 0)
    return list(dict.fromkeys(rows))


def test_row_blocks_come_in_another_order_in_every_epoch_and_with_every_seed_but_always_in_the_same() -> None:
    first = rows_of_job(2, 0)
    assert first == rows_of_job(2, 0)
    assert first[:6] != rows_of_job(1, 1)
    epochs = [[row for epoch, row in first if epoch == number] for number in (0, 1)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])


@pytest.mark.parametrize("stop_after", [1, 5, 6, 7])
def test_a_resumed_job_of_one_worker_goes_on_in_the_same_order(stop_after: int) -> None:
    assert rows_of_job(2, 3, stop_after) == rows_of_job(2, 3)


def test_what_was_begun_comes_first_also_with_another_number_of_workers() -> None:
    queue, begun = queue_of(even_plan(8), Limits(2), seed=5), set()
    for worker in (0, 1):
        queue.observe((item := must_lease(queue, worker)).id, 1, 0)
        begun.add(row_of(queue, item))
    alone, resumed = queue_of(even_plan(8), Limits(1), seed=5), queue_of(even_plan(8), Limits(1), seed=5)
    resumed.restore(queue.state())
    assert {row for _, row in work_alone(resumed)[:2]} == begun
    assert {row for _, row in work_alone(alone)[:2]} != begun


def test_an_update_of_several_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="over a grid an update holds one batch, not 4"):
        queue_of(even_plan(2), Limits(1, accumulate=4))


def test_a_checkpoint_names_its_grid_and_fits_no_other() -> None:
    state = json.loads(json.dumps(queue_of(even_plan(4, batches=6), Limits(2)).state()))
    assert state["plan"]["grid"] == [4, 6, 2]
    with pytest.raises(ValueError, match=r"cut in another way: grid: was \[4, 6, 2\], now \[8, 3, 2\]$"):
        queue_of(even_plan(8), Limits(4)).restore(state)
    queue_of(even_plan(4, batches=6), Limits(4)).restore(state)


# ---- any order of events -------------------------------------------------------------------------------------------

MOST = 5  # workers
EVENTS = st.tuples(
    st.sampled_from(["lease"] * 5 + ["finish"] * 3 + ["die", "resume", "resize", "hand"]), st.integers(0, MOST - 1)
)


class Job:
    """Workers that settle what they hold, and what became of every batch."""

    def __init__(self, plan: GridPlan, limits: Limits, seed: int) -> None:
        self.plan, self.limits, self.seed = plan, limits, seed
        self.done: Counter[tuple[int, int]] = Counter()
        self.queue = queue_of(plan, limits, seed=seed)

    def lease(self, worker: int) -> bool:
        """Lease; a worker with two leases gets another only for want of batches, with less than half its share."""
        queue, hand = self.queue, self.queue.leases_of(worker)
        left = self.limits.epochs * self.plan.batches - queue.total
        if (item := queue.lease(worker)) is None:
            return False
        if len(hand) >= 2:
            held = sum(lease.left for lease in hand)
            assert (
                held < self.limits.hands[worker] and 2 * held * self.limits.procs <= left and len(hand) < MOST_IN_HAND
            )
        row, (_, _, starts) = row_of(queue, item), self.plan.grid
        starts = max(starts, self.limits.procs)
        assert not hand or row % starts % self.limits.procs == worker % self.limits.procs, "only the idle take others'"
        rows = [{row_of(queue, lease.item) for lease in queue.leases_of(each)} for each in range(max(9, MOST))]
        assert not any(mine & yours for mine, yours in combinations(rows, 2)), "two workers in one row block"
        return True

    def finish(self, worker: int, batches: int | None = None) -> None:
        """Settle the first item in hand, or so many batches of it."""
        if not (leases := self.queue.leases_of(worker)):
            return
        lease = leases[0]
        before, item = lease.settled, lease.item
        until = item.stop - item.start if batches is None else min(item.stop - item.start, before + batches)
        self.done.update((item.epoch, n) for n in range(item.start + before, item.start + until))
        if batches is None:
            assert self.queue.ack(worker, item.id, 0) == item
        else:
            self.queue.observe(item.id, until, 0)

    def die(self, worker: int) -> None:
        """After a batch of its item, and while it writes a chunk of the next two."""
        self.finish(worker, 1)
        leases = self.queue.leases_of(worker)
        progress = None
        if leases:
            item, settled = leases[0].item, leases[0].settled
            intended = min(settled + 2, item.stop - item.start)
            progress = LeaseProgress(item.id, settled, 0, item.id, intended)
        self.queue.release(worker, progress, charged=False)
        assert self.queue.leases_of(worker) == []

    def resume(self) -> None:
        state = json.loads(json.dumps(self.queue.state()))
        self.queue = queue_of(self.plan, self.limits, seed=self.seed)
        self.queue.restore(state)
        assert self.queue.state() == state

    def happen(self, event: str, number: int) -> None:
        if event == "resume":
            self.resume()
        elif event == "resize":  # workers beyond it keep what they hold until they finish or die
            self.limits.procs = 1 + number
        elif event == "hand":
            self.limits.hands = dict.fromkeys(range(max(9, MOST)), (0, 1, 7, 50, 5000)[number])
        elif event != "lease" or number < self.limits.procs:
            {"lease": self.lease, "finish": self.finish, "die": self.die}[event](number)

    def run_to_the_end(self, gone: int = 0) -> None:
        """Let all but the first `gone` workers work: whoever waits, waits for work in another's hand."""
        crew = range(min(gone, self.limits.procs - 1), self.limits.procs)
        for worker in {*range(MOST)} - {*crew}:
            self.die(worker)
        while not self.queue.is_finished:
            leased = [self.lease(worker) for worker in crew]
            held = [worker for worker in crew if self.queue.leases_of(worker)]
            assert any(leased) or held, "nobody gets on"
            self.finish(held[0])


@settings(max_examples=200, deadline=None)
@given(
    shape=st.sampled_from([(1, 1, 1), (2, 5, 2), (4, 4, 3), (12, 12, 2), (40, 3, 5)]),
    procs=st.integers(1, MOST),
    epochs=st.integers(1, 3),
    batch_size=st.sampled_from([1, 5, 1000]),
    events=st.lists(EVENTS, max_size=80),
    samples=st.sampled_from([1, 40, 300]),
    gone=st.sampled_from([0, 0, 1, 2, 4]),
)
def test_no_two_workers_share_a_row_block_and_every_batch_is_settled_once_whatever_happens(
    shape: Shape,
    procs: int,
    epochs: int,
    batch_size: int,
    events: list[tuple[str, int]],
    samples: int,
    gone: int,
) -> None:
    plan = plan_of(shape, samples=samples, batch_size=batch_size)
    job = Job(plan, Limits(procs, epochs), seed=samples)
    for event in events:
        job.happen(*event)
    job.run_to_the_end(gone)
    assert job.done == Counter((epoch, n) for epoch in range(epochs) for n in range(plan.batches))
    assert job.queue.ledger.done == job.queue.total == epochs * plan.batches
    assert job.queue.samples == epochs * samples
    assert job.queue.updates == job.queue.planned_updates


@pytest.mark.parametrize("max_updates", [1, 14, 29, 30])
def test_a_limit_of_updates_is_leased_exactly(max_updates: int) -> None:
    job = Job(even_plan(5), Limits(3, epochs=2, max_updates=max_updates), seed=0)
    job.run_to_the_end()
    assert job.queue.updates == max_updates == job.done.total()


def test_an_exchange_that_breaks_workers_is_quarantined_and_the_rest_of_its_row_block_is_done() -> None:
    plan = even_plan(4, batches=6)
    queue = queue_of(plan, Limits(2, max_attempts=2))
    item = must_lease(queue)
    for committed, intended in ((1, 4), (0, 1)):  # a chunk of three batches, then each of them by itself
        held = queue.leases_of(0)[0].item
        release = queue.release(0, LeaseProgress(held.id, committed, 0, held.id, intended))
        again = must_lease(queue)
        assert row_of(queue, again) == row_of(queue, item)  # what was begun comes first
    assert release.quarantined == ((0, item.start + 1, item.start + 2),)
    queue.release(0, None)
    job = Job(plan, queue.limits, 0)
    job.queue = queue
    job.run_to_the_end()
    assert (queue.ledger.done, queue.ledger.quarantined) == (plan.batches - 1, 1)


def test_the_share_of_idle_time_counts_waiting_but_not_pauses() -> None:
    phase_s = np.zeros((2, len(Phase)))
    assert idle_share(phase_s) == 0
    phase_s[:, Phase.WORKING] = 9, 7
    phase_s[:, Phase.WAITING] = 1, 3
    phase_s[:, Phase.PARKED] = phase_s[:, Phase.BOOTING] = 50
    assert idle_share(phase_s) == pytest.approx(0.2)
