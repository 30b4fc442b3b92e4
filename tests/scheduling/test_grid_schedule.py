"""Conflict-aware leases: nobody ever meets anybody in a block, every batch is settled once, and a worker hardly ever
waits: the last by a simulation with a clock of its own."""

import heapq
import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from itertools import combinations, count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="needs numba: pip install 'hogwild[sparse]'")

from hogwild.scheduling.grid_plan import Grid, GridPlan
from hogwild.scheduling.grid_schedule import GridSchedule
from hogwild.scheduling.leases import MAX_ITEM_BATCHES, FreeRange, Lease, LeaseProgress, Limits, WorkItem
from hogwild.scheduling.range_schedule import Free, LeaseChoice
from hogwild.scheduling.work_queue import WorkQueue
from hogwild.shared_memory.scoreboard import Phase, idle_share


def grid_of(sides: tuple[int, int], *, samples: int = 40_000, heavy: float = 0.0) -> Grid:
    """Ids of a power law; the share `heavy` of the samples is of one column."""
    rng = np.random.default_rng(0)
    rows = np.sort((2000 * rng.random(samples) ** 2).astype(np.int32))
    columns = (900 * rng.random(samples) ** 3).astype(np.int32)
    columns[rng.random(samples) < heavy] = 7
    return Grid.of(rows, columns, 2000, 900, sides)


class Defined(GridSchedule):
    """Every choice is compared with the definition, over all that is free."""

    def choose(self, worker: int, epochs: Mapping[int, Free], leases: Collection[Lease]) -> LeaseChoice | None:
        found = super().choose(worker, epochs, leases)
        taken = {
            divmod(self._plan.cell_of(lease.item.start), self._plan.grid[1])
            for lease in leases
            if lease.worker != worker
        }
        rows, columns = {row for row, _ in taken}, {column for _, column in taken}
        choices = (self.best(epoch, list(free), rows, columns) for epoch, free in epochs.items())
        assert found == next((choice for choice in choices if choice is not None), None)
        return found

    def best(self, epoch: int, pieces: list[FreeRange], rows: set[int], columns: set[int]) -> LeaseChoice | None:
        """One that was begun; or else the one whose row and column, and what was drawn for it, come to most."""
        plan, across = self._plan, self._plan.grid[1]
        left, first = np.zeros(plan.grid), {}
        for piece in pieces:
            cell = plan.cell_of(piece.start)
            left[divmod(cell, across)] += plan.samples_in(piece.start, piece.stop)
            first.setdefault(cell, piece)
        score = self._draw(epoch) + left.sum(axis=1)[:, None] + left.sum(axis=0)
        admissible = [cell for cell in first if cell // across not in rows and cell % across not in columns]
        begun = [cell for cell in admissible if left.flat[cell] < plan.bounds[cell + 1] - plan.bounds[cell]]
        split = [cell for cell in admissible if first[cell].stop < plan.first_batches[cell + 1]]
        if begun or split:
            return LeaseChoice(epoch, first[min(begun + split)])
        return (
            LeaseChoice(epoch, first[max(admissible, key=lambda cell: (score.flat[cell], -cell))])
            if admissible
            else None
        )


def queue_of(plan: GridPlan, limits: Limits, *, seed: int = 0) -> WorkQueue:
    return WorkQueue(plan, limits, schedule=Defined(plan, seed=seed))


def even_plan(blocks: int, batches: int = 3) -> GridPlan:
    """Every cell holds `batches` batches of 4 samples."""
    return GridPlan(4, (blocks, blocks), tuple(range(0, blocks * blocks * batches * 4 + 1, batches * 4)))


def must_lease(queue: WorkQueue, worker: int = 0) -> WorkItem:
    item = queue.lease(worker)
    assert item is not None
    return item


def cell_of(queue: WorkQueue, item: WorkItem) -> tuple[int, int]:
    plan = queue.plan
    assert isinstance(plan, GridPlan)
    cells = {plan.cell_of(batch) for batch in range(item.start, item.stop)}
    assert len(cells) == 1, "an item crosses the border of a cell"
    return divmod(cells.pop(), plan.grid[1])


def conflicts(queue: WorkQueue, procs: int) -> list[tuple[WorkItem, WorkItem]]:
    """Items in the hands of two workers that share a block of rows or of columns."""
    held = [(worker, lease.item) for worker in range(procs) for lease in queue.leases_of(worker)]
    return [
        (mine, yours)
        for (a, mine), (b, yours) in combinations(held, 2)
        if a != b and any(x == y for x, y in zip(cell_of(queue, mine), cell_of(queue, yours), strict=True))
    ]


# ---- the rule ------------------------------------------------------------------------------------------------------


def test_an_item_is_a_whole_cell() -> None:
    plan = even_plan(8)
    queue = queue_of(plan, Limits(2))
    item = must_lease(queue)
    assert item.stop - item.start == 3
    assert item.start % 3 == 0


def test_an_item_of_a_large_cell_is_as_long_as_the_commit_word_counts_and_the_rest_comes_next() -> None:
    plan = GridPlan(1, (1, 2), (0, 100_000, 200_000))
    queue = queue_of(plan, Limits(1))
    first, second = must_lease(queue), must_lease(queue)
    assert first.stop - first.start == MAX_ITEM_BATCHES
    assert (second.start, second.stop - second.start) == (first.stop, 100_000 - MAX_ITEM_BATCHES)


def test_leases_of_one_worker_may_conflict_with_each_other() -> None:
    queue = queue_of(GridPlan(4, (1, 4), (0, 4, 8, 12, 16)), Limits(1))
    items = []
    while (item := queue.lease(0)) is not None:
        items.append(cell_of(queue, item))
        queue.ack(0, item.id, 0)
    assert sorted(items) == [(0, 0), (0, 1), (0, 2), (0, 3)]


def test_a_worker_without_an_admissible_cell_waits_until_another_is_done() -> None:
    queue = queue_of(GridPlan(4, (1, 4), (0, 4, 8, 12, 16)), Limits(2))
    item = must_lease(queue, 0)
    assert queue.lease(1) is None
    queue.ack(0, item.id, 0)
    assert queue.lease(1) is not None
    assert queue.lease(0) is None


def test_the_fullest_rows_and_columns_come_first() -> None:
    sizes = np.ones((8, 8), np.int64)
    sizes[5] += 20
    sizes[:, 2] += 20
    plan = GridPlan(4, (8, 8), (0, *np.cumsum(4 * sizes).tolist()))
    queue = queue_of(plan, Limits(2))
    assert cell_of(queue, must_lease(queue, 0)) == (5, 2)
    row, column = cell_of(queue, must_lease(queue, 1))
    assert row != 5 and column != 2


def test_in_a_grid_with_too_few_blocks_a_worker_holds_one_cell_and_starves_nobody() -> None:
    queue = queue_of(even_plan(2), Limits(2, epochs=3))
    first = must_lease(queue, 0)
    assert queue.lease(0) is None
    must_lease(queue, 1)
    queue.ack(0, first.id, 0)
    assert conflicts(queue, 2) == []


def test_cells_of_the_next_epoch_are_leased_while_this_one_has_some_in_hand() -> None:
    """No barrier; but nobody works two epochs ahead of a worker that is stalled."""
    queue = queue_of(even_plan(4), Limits(2, epochs=5))
    stalled = cell_of(queue, must_lease(queue, 1))
    seen = []
    while (item := queue.lease(0)) is not None:
        seen.append((item.epoch, cell_of(queue, item)))
        queue.ack(0, item.id, 0)
    apart = {(row, column) for row in range(4) for column in range(4) if row != stalled[0] and column != stalled[1]}
    assert Counter(seen) == Counter((epoch, cell) for epoch in (0, 1) for cell in apart)
    assert queue.epoch == 0


def test_an_epoch_that_is_not_open_is_not_entered() -> None:
    queue = queue_of(even_plan(2), Limits(1, epochs=3))
    queue.open_until = 1
    while (item := queue.lease(0)) is not None:
        assert item.epoch == 0
        queue.ack(0, item.id, 0)
    assert queue.is_epoch_settled(0)
    assert not queue.is_begun(1)


def test_an_epoch_of_which_nothing_may_be_leased_is_not_begun() -> None:
    queue = queue_of(GridPlan(4, (1, 2), (0, 4, 8)), Limits(2, epochs=2))
    queue.ack(0, must_lease(queue, 0).id, 0)
    must_lease(queue, 0)
    assert queue.lease(1) is None
    assert not queue.is_begun(1)


def test_workers_beyond_the_blocks_wait_and_the_job_comes_to_its_end() -> None:
    job = Job(even_plan(4), Limits(9, epochs=3), seed=0)
    job.run_to_the_end()
    assert job.done.total() == 3 * job.plan.batches


def test_the_next_epoch_is_drawn_once_however_often_a_waiting_worker_asks_for_it() -> None:
    schedule = GridSchedule(even_plan(4), seed=0)
    assert schedule.free_of(1) is schedule.free_of(1)
    first = schedule.free_of(1)
    schedule.restart(0)
    assert schedule.free_of(1) is not first, "after a rollback nothing of it is leased"


def cells_of_job(epochs: int, seed: int, stop_after: int | None = None) -> list[tuple[int, tuple[int, int]]]:
    """Cells in the order in which one worker works in them; the job is resumed once, in the middle of a cell."""
    plan = GridPlan.of(grid_of((6, 6)), 64)
    queue = queue_of(plan, Limits(1, epochs=epochs), seed=seed)
    cells: list[tuple[int, tuple[int, int]]] = []
    while not queue.is_finished:
        while queue.lease(0) is not None:
            pass
        item = queue.leases_of(0)[0].item
        cells.append((item.epoch, cell_of(queue, item)))
        if len(cells) == stop_after:
            queue.observe(item.id, 1, 0)
            state = json.loads(json.dumps(queue.state()))
            queue = queue_of(plan, Limits(1, epochs=epochs), seed=seed)
            queue.restore(state)
        else:
            queue.ack(0, item.id, 0)
    return list(dict.fromkeys(cells))


def test_cells_come_in_another_order_in_every_epoch_and_with_every_seed_but_always_in_the_same() -> None:
    first = cells_of_job(2, 0)
    assert first == cells_of_job(2, 0)
    assert first[:36] != cells_of_job(1, 1)
    epochs = [[cell for epoch, cell in first if epoch == number] for number in (0, 1)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])


@pytest.mark.parametrize("stop_after", [1, 6, 35, 36, 37])
def test_a_resumed_job_of_one_worker_goes_on_in_the_same_order(stop_after: int) -> None:
    assert cells_of_job(2, 3, stop_after) == cells_of_job(2, 3)


def test_an_update_of_several_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="over a grid an update holds one batch, not 4"):
        queue_of(even_plan(2), Limits(1, accumulate=4))


def test_a_checkpoint_names_its_grid_and_fits_no_other() -> None:
    state = json.loads(json.dumps(queue_of(even_plan(4, batches=4), Limits(2)).state()))
    assert state["plan"]["grid"] == [4, 4]
    with pytest.raises(ValueError, match=r"cut in another way: grid: was \[4, 4\], now \[8, 8\]$"):
        queue_of(even_plan(8, batches=1), Limits(4)).restore(state)
    queue_of(even_plan(4, batches=4), Limits(4)).restore(state)


# ---- any order of events -------------------------------------------------------------------------------------------

EVENTS = st.tuples(st.sampled_from(["lease"] * 3 + ["finish"] * 3 + ["die", "resume"]), st.integers(0, 4))


class Job:
    """Workers that settle what they hold, and what became of every batch."""

    def __init__(self, plan: GridPlan, limits: Limits, seed: int) -> None:
        self.plan, self.limits, self.seed = plan, limits, seed
        self.done: Counter[tuple[int, int]] = Counter()
        self.queue = queue_of(plan, limits, seed=seed)

    def lease(self, worker: int) -> bool:
        found = self.queue.lease(worker) is not None
        assert conflicts(self.queue, self.limits.procs) == []
        return found

    def finish(self, worker: int, batches: int | None = None) -> None:
        """The first item in hand, or so many batches of it."""
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

    def run_to_the_end(self) -> None:
        """Somebody can always go on: whoever waits, waits for work in another's hand."""
        while not self.queue.is_finished:
            leased = [self.lease(worker) for worker in range(self.limits.procs)]
            held = [worker for worker in range(self.limits.procs) if self.queue.leases_of(worker)]
            assert leased.count(True) or held
            self.finish(held[0])


@settings(max_examples=120, deadline=None)
@given(
    blocks=st.sampled_from([(1, 1), (2, 5), (4, 4), (12, 12)]),
    procs=st.integers(1, 4),
    epochs=st.integers(1, 3),
    batch_size=st.sampled_from([1, 5, 1000]),
    events=st.lists(EVENTS, max_size=60),
    samples=st.sampled_from([1, 40, 300]),
)
def test_no_two_workers_conflict_and_every_batch_is_settled_once_whatever_happens(
    blocks: tuple[int, int],
    procs: int,
    epochs: int,
    batch_size: int,
    events: list[tuple[str, int]],
    samples: int,
) -> None:
    plan = GridPlan.of(grid_of(blocks, samples=samples), batch_size)
    job = Job(plan, Limits(procs, epochs), seed=samples)
    for event, number in events:
        worker = number % procs
        if event == "resume":
            job.resume()
        else:
            {"lease": job.lease, "finish": job.finish, "die": job.die}[event](worker)
    job.run_to_the_end()
    assert job.done == Counter((epoch, n) for epoch in range(epochs) for n in range(plan.batches))
    assert job.queue.ledger.done == job.queue.total == epochs * plan.batches
    assert job.queue.samples == epochs * samples
    assert job.queue.updates == job.queue.planned_updates


@pytest.mark.parametrize("max_updates", [1, 50, 149, 150])
def test_a_limit_of_updates_is_leased_exactly(max_updates: int) -> None:
    plan = even_plan(5)
    job = Job(plan, Limits(3, epochs=2, max_updates=max_updates), seed=0)
    job.run_to_the_end()
    assert job.queue.updates == max_updates == job.done.total()


def test_an_exchange_that_breaks_workers_is_quarantined_and_the_rest_of_its_cell_is_done() -> None:
    plan = even_plan(4, batches=6)
    queue = queue_of(plan, Limits(2, max_attempts=2))
    item = must_lease(queue)
    for committed, intended in ((1, 4), (0, 1)):  # a chunk of three batches, then each of them by itself
        held = queue.leases_of(0)[0].item
        release = queue.release(0, LeaseProgress(held.id, committed, 0, held.id, intended))
        again = must_lease(queue)
        assert cell_of(queue, again) == cell_of(queue, item)  # what was begun comes first
    assert release.quarantined == ((0, item.start + 1, item.start + 2),)
    queue.release(0, None)
    job = Job(plan, queue.limits, 0)
    job.queue = queue
    job.run_to_the_end()
    assert (queue.ledger.done, queue.ledger.quarantined) == (plan.batches - 1, 1)


# ---- how long workers wait -----------------------------------------------------------------------------------------


class Four(GridSchedule):
    """Four cells in hand, whatever that does to the others."""

    def most_in_hand(self, horizon: int, limits: Limits) -> int:
        return 4


def efficiency(
    procs: int,
    blocks: int,
    epochs: int,
    *,
    heavy: float = 0.0,
    latency: float = 0.05,
    make: Callable[..., GridSchedule] = GridSchedule,
) -> float:
    """Work over time x workers. A worker needs a unit of time for a cell of average size, give or take 10 %; `latency`
    passes from the end of a cell to what the supervisor does about it."""
    plan = GridPlan.of(grid_of((blocks * procs, blocks * procs), heavy=heavy), 16)
    queue = WorkQueue(plan, Limits(procs, epochs), schedule=make(plan, seed=0))
    rng, unit = np.random.default_rng(1), (len(plan.bounds) - 1) / plan.samples
    hands: list[deque[WorkItem]] = [deque() for _ in range(procs)]
    busy = [False] * procs
    events: list[tuple[float, int, int, int, bool]] = []  # (time, tie, worker, item, is acknowledged)
    ties, now, work = count(), 0.0, 0.0

    def begin(worker: int) -> float:
        if busy[worker] or not hands[worker]:
            return 0.0
        busy[worker], item = True, hands[worker].popleft()
        taken = plan.samples_in(item.start, item.stop) * unit * rng.uniform(0.9, 1.1)
        heapq.heappush(events, (now + taken, next(ties), worker, item.id, False))
        return taken

    while not queue.is_finished:
        for worker in range(procs):
            hands[worker].extend(iter(lambda worker=worker: queue.lease(worker), None))  # type: ignore[misc]
            work += begin(worker)
        is_acknowledged = False
        while not is_acknowledged:
            now, _, worker, item, is_acknowledged = heapq.heappop(events)
            if is_acknowledged:
                queue.ack(worker, item, 0)
            else:
                busy[worker] = False
                heapq.heappush(events, (now + latency, next(ties), worker, item, True))
                work += begin(worker)
    return work / (procs * now)


@pytest.mark.parametrize(
    ("procs", "epochs", "heavy"),
    [(2, 4, 0.0), (4, 3, 0.0), (8, 2, 0.0), (2, 4, 0.4), (4, 3, 0.2), (2, 1, 0.0), (4, 1, 0.0)],
)
def test_with_four_blocks_a_side_for_each_worker_hardly_anybody_waits(procs: int, epochs: int, heavy: float) -> None:
    assert efficiency(procs, 4, epochs, heavy=heavy) > 0.95


def test_with_two_blocks_a_side_and_four_cells_in_hand_workers_wait() -> None:
    assert efficiency(2, 2, 4, make=Four) < 0.8 < 0.95 < efficiency(2, 4, 4)


def test_the_share_of_idle_time_counts_waiting_but_not_pauses() -> None:
    phase_s = np.zeros((2, len(Phase)))
    assert idle_share(phase_s) == 0
    phase_s[:, Phase.WORKING] = 9, 7
    phase_s[:, Phase.WAITING] = 1, 3
    phase_s[:, Phase.PARKED] = phase_s[:, Phase.BOOTING] = 50
    assert idle_share(phase_s) == pytest.approx(0.2)
