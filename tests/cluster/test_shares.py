"""The ledger over all nodes: every batch is settled once in what counts, whoever dies and whenever; copies agree; and
nodes of unequal speed finish together: the last by a simulation with a clock of its own."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.cluster.launch import Launch
from hogwild.cluster.shares import HORIZON_PERIODS, NodeQueue, Shares
from hogwild.errors import LedgerError
from hogwild.scheduling.batch_plan import BatchPlan, EpochPlan, StreamPlan
from hogwild.scheduling.grid_plan import GridPlan
from hogwild.scheduling.schedules import GridSchedule, LaneSchedule
from hogwild.scheduling.stream_schedule import StreamSchedule
from hogwild.scheduling.work_queue import LeaseSchedule, Limits, WorkItem, WorkQueue
from hogwild.workers.session.node import Committed, Node
from tests.cluster.simulated_cluster import Case, Cluster, finish, must_lease, note_of, queue_of
from tests.helpers.processes import IS_THOROUGH, PATIENCE_S

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


@pytest.mark.parametrize(("first", "writes"), [("lives", False), ("is being killed", True), ("is gone", True)])
def test_of_nodes_on_one_disk_another_writes_the_last_checkpoint_only_if_the_first_is_dead(
    first: str, writes: bool
) -> None:
    plan, limits = BatchPlan(64, 4), Limits(procs=1)
    shares = Shares(plan, limits)
    launch = Launch(rank=1, world=2, run_id="job", address="localhost", port=1)
    node = Node(launch, None, shares, NodeQueue(plan, limits), Committed(shares), (0, 1))  # type: ignore[arg-type]
    node.shares_disk = True
    with socket.create_server(("127.0.0.1", 0)) as life, ThreadPoolExecutor(1) as others:
        node.lives = f"127.0.0.1:{life.getsockname()[1]}", "127.0.0.1:1"
        if first == "lives":
            others.submit(lambda: life.accept()[0].close())
        elif first == "is gone":
            life.close()
        node.look_for_first()  # of a process that is being killed the kernel answers, and nobody takes the call
    assert node.writes == writes


def test_the_first_node_serves_the_store_until_the_others_have_ended() -> None:
    plan, limits = BatchPlan(64, 4), Limits(procs=1)
    shares = Shares(plan, limits)
    launch = Launch(rank=0, world=2, run_id="job", address="localhost", port=1, store_of_agent=False)
    node = Node(launch, None, shares, NodeQueue(plan, limits), Committed(shares), (0, 1))  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as life, ThreadPoolExecutor(1) as others:
        node.lives, node.store = ("127.0.0.1:1", f"127.0.0.1:{life.getsockname()[1]}"), "served"
        ended = others.submit(node.keep_store)
        life.accept()[0].close()  # it has looked once, and serves on
        assert node.store == "served" and not ended.done()
        life.close()
        ended.result(PATIENCE_S)
    assert node.store is None


KINDS = ("ranges", "lanes", "stream", *(("grid",) if find_spec("numba") else ()))
DAY = Limits(procs=1, epochs=100)


@st.composite
def cases(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> Case:
    """Any job on up to four nodes."""
    kind = draw(st.sampled_from(kinds))
    is_flat = kind in ("ranges", "stream")
    return Case(
        kind,
        draw(st.sampled_from((1, 2, 5, 8, 13, 20, 80, 150) if is_flat else (1, 2, 5, 6))),
        draw(st.integers(1, 3)),
        draw(st.sampled_from((1, 1, 2, 3))) if is_flat else 1,
        draw(st.sampled_from((1, 4))),
        draw(st.none() | st.integers(1, 40)),
        tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))),
        draw(st.booleans()),
        draw(st.frozensets(st.integers(0, 20), max_size=2)),
    )


# ---- whole jobs ------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(case=cases(), seed=st.integers(0, 2**32 - 1), events=st.integers(0, 25))
def test_whatever_happens_each_batch_is_settled_once_in_committed_rounds(case: Case, seed: int, events: int) -> None:
    cluster = Cluster(case, Random(seed))
    cluster.disturb(events)
    cluster.finish()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=500 if IS_THOROUGH else 60)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_whatever_happens_to_many_jobs_of_a_kind(kind: str, data: st.DataObject, seed: int) -> None:
    cluster = Cluster(data.draw(cases((kind,))), Random(seed))
    cluster.disturb(25)
    cluster.finish()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("max_updates", [1, 7, 29])
def test_exactly_the_updates_asked_for_are_made_past_skipped_batches(kind: str, max_updates: int) -> None:
    for seed in range(10):
        group = 2 if kind in ("ranges", "stream") else 1
        cluster = Cluster(Case(kind, 20, 6, group, max_updates=max_updates, procs=(1, 2, 1)), Random(seed))
        cluster.disturb(5)
        cluster.finish()
        assert cluster.truth.updates == max_updates


# ---- all nodes -------------------------------------------------------------------------------------------------------


def test_the_counts_of_a_node_are_its_own_as_they_are_now_and_the_others_of_the_last_round() -> None:
    shares, queue = Shares(BatchPlan(10, 1), Limits(1, epochs=1)), queue_of(10, epochs=1)
    other = queue_of(10, epochs=1)
    grants = shares.commit({0: note_of(queue), 1: note_of(other)})
    queue.grant(grants[0])
    other.grant(grants[1])
    finish(other, 2)
    done = other.own.done
    for of_one, number in ((queue, 0), (other, 1)):
        of_one.committed()
        of_one.note_elsewhere(shares.others_of(number))
    assert (queue.updates, other.updates) == (0, done)
    shares.commit({0: note_of(queue), 1: note_of(other)})
    queue.note_elsewhere(shares.others_of(0))
    finish(queue, 1)
    assert queue.updates == queue.samples == queue.total == queue.ledger.done == queue.own.done + done
    assert not queue.is_finished
    assert queue.is_begun(0) and not queue.is_begun(1)


def test_the_first_epoch_is_shared_out_by_weight() -> None:
    shares = Shares(BatchPlan(103, 1), Limits(1, epochs=9, accumulate=10))
    notes = {node: note_of(queue_of(103), weight=weight) for node, weight in enumerate((1, 3, 2))}
    assert shares.commit(notes) == {0: [[0, 0, 20, 0]], 1: [[0, 20, 70, 0]], 2: [[0, 70, 103, 0]]}
    assert shares.next_epoch == 1


def test_the_first_share_flows_back_as_soon_as_speeds_are_known() -> None:
    shares, queues = Shares(BatchPlan(1000, 1), Limits(1, epochs=1)), [queue_of(1000) for _ in range(2)]

    def round_of(speeds: tuple[float | None, float | None]) -> None:
        notes = {node: note_of(queue, speed=speeds[node]) for node, queue in enumerate(queues)}
        grants = shares.commit(notes)
        for node, queue in enumerate(queues):
            queue.committed()
            queue.grant(grants.get(node, []))
            queue.withdraw(shares.keep_of(node))

    round_of((None, None))
    assert [queue.note()["held"] for queue in queues] == [500, 500]
    round_of((None, None))
    assert [queue.note()["held"] for queue in queues] == [500, 500]
    round_of((10.0, 40.0))
    round_of((10.0, 40.0))
    assert [queue.note()["held"] for queue in queues] == [38, 150]  # 1.5 times 2.5 rounds
    assert len(shares._pool) == 2


def test_no_row_block_and_no_lane_is_split() -> None:
    plan = BatchPlan(6 * 4, 1, lanes=6)
    shares = Shares(plan, Limits(1, epochs=1))
    notes = {node: note_of(queue_of(24)) for node in range(4)}
    grants = shares.commit(notes)
    lanes = [
        {start // 4 for _, start, _, _ in pieces} | {(stop - 1) // 4 for *_, stop, _ in pieces}
        for pieces in grants.values()
    ]
    assert sorted(lane for each in lanes for lane in each) == [*range(6)]


def test_at_the_end_of_the_job_each_node_gets_its_share_of_the_rest() -> None:
    shares, queues = Shares(BatchPlan(50, 1), Limits(1, epochs=1)), [queue_of(50) for _ in range(2)]
    grants = shares.commit({0: note_of(queues[0], speed=10.0), 1: note_of(queues[1], speed=40.0)})
    assert grants == {0: [[0, 0, 10, 0]], 1: [[0, 10, 50, 0]]}  # in 2.5 rounds they would make 125


def test_a_lost_node_gives_up_what_it_had_and_keeps_what_it_has_done() -> None:
    shares, queues = Shares(BatchPlan(40, 1), Limits(1, epochs=1)), [queue_of(40) for _ in range(2)]
    grants = shares.commit({node: note_of(queue) for node, queue in enumerate(queues)})
    for node, queue in enumerate(queues):
        queue.grant(grants[node])
        finish(queue, 2)
        queue.committed()
    shares.commit({node: note_of(queue, speed=100.0) for node, queue in enumerate(queues)})
    queues[0].committed()
    shares.lose([0])
    assert shares.updates == sum(queue.own.updates for queue in queues)
    held = queues[1].own.done
    assert shares.commit({0: note_of(queues[0], speed=100.0)}) == {0: [[0, 20 + held, 40, 0]]}


def test_two_losses_at_once_and_one_by_one_are_the_same_to_those_that_are_left() -> None:
    copies = [Shares(BatchPlan(40, 1), Limits(1, epochs=1)) for _ in range(2)]
    queues = [queue_of(40) for _ in range(3)]
    for shares in copies:
        shares.commit({node: note_of(queue) for node, queue in enumerate(queues)})
    copies[0].lose([0, 1])
    copies[0].lose([0])
    copies[1].lose([0])
    assert copies[0].holdings == copies[1].holdings and copies[0].state() == copies[1].state()


def test_a_note_that_does_not_add_up_ends_the_job() -> None:
    shares, queue = Shares(BatchPlan(40, 1), Limits(1, epochs=1)), queue_of(40)
    queue.grant(shares.commit({3: note_of(queue)})[3])
    note = note_of(queue)
    note["free"] = [[0, 0, 39, 0]]
    with pytest.raises(LedgerError, match=r"node 3 had 40 batches; it has now settled 0, returned 0 and kept 39"):
        shares.commit({3: note})


def test_a_ledger_of_other_batches_is_refused_and_changes_nothing() -> None:
    shares = Shares(BatchPlan(40, 1), DAY)
    with pytest.raises(ValueError, match="samples: was 41, now 40"):
        shares.restore(WorkQueue(BatchPlan(41, 1), DAY).state())
    with pytest.raises(ValueError, match="samples: was 41, now 40"):
        queue_of(40).restore(WorkQueue(BatchPlan(41, 1), DAY).state())
    assert shares.state() == WorkQueue(BatchPlan(40, 1), DAY).state()


def test_an_iterable_cannot_be_shared_out() -> None:
    with pytest.raises(TypeError, match="an iterable has no batches"):
        Shares(StreamPlan(4, 2), DAY)


# ---- speed -----------------------------------------------------------------------------------------------------------


class Paced:
    """One node whose only worker trains `speed` batches per second."""

    def __init__(self, plan: EpochPlan, limits: Limits, schedule: LeaseSchedule | None, speed: float) -> None:
        self.queue, self.shares = NodeQueue(plan, limits, schedule=schedule), Shares(plan, limits)
        self.speed, self.credit = speed, 0.0
        self.measured: float | None = None
        self.item: WorkItem | None = None
        self.made = self.before = 0
        self.idle_s = self.ended_s = 0.0

    def run(self, now: float, step_s: float) -> None:
        self.item = self.item or self.queue.lease(0)
        self.credit = self.credit + step_s * self.speed if self.item else 0.0
        self.idle_s += 0.0 if self.item else step_s
        while self.credit >= 1 and self.item is not None:
            self.credit, self.made, self.ended_s = self.credit - 1, self.made + 1, now
            self.queue.observe(self.item.id, self.made, 0)
            if self.made == self.item.stop - self.item.start:
                self.queue.ack(0, self.item.id, 0)
                self.item, self.made = self.queue.lease(0), 0

    def note(self, period_s: float) -> dict[str, Any]:
        done = self.queue.own.done - self.before
        if done:
            self.measured = done / period_s
        self.before = self.queue.own.done
        return note_of(self.queue, speed=self.measured, period_s=period_s)


def race(nodes: list[Paced], *, every_s: float = 1.0, takes_s: float = 0.2, step_s: float = 0.01) -> None:
    """Run the job: a round every second, or soon after a node has nothing to do."""

    def agree(notes: dict[int, dict[str, Any]]) -> None:
        for number, node in enumerate(nodes):
            node.queue.committed()
            node.queue.grant(node.shares.commit(json.loads(json.dumps(notes), object_hook=_numbered)).get(number, []))
            node.queue.note_elsewhere(node.shares.others_of(number))
            node.queue.withdraw(node.shares.keep_of(number))

    now, last_s, due_s, notes = 0.0, 0.0, 0.0, {number: node.note(1.0) for number, node in enumerate(nodes)}
    agree(notes)
    notes = {}
    while not all(node.queue.is_finished for node in nodes):
        now += step_s
        assert now < 1000, "no end"
        for node in nodes:
            node.run(now, step_s)
        hurries = any(node.queue.is_dry for node in nodes) and now >= last_s + 0.1
        if not notes and (now >= last_s + every_s or hurries):
            due_s, notes = now + takes_s, {number: node.note(now - last_s) for number, node in enumerate(nodes)}
        if notes and now >= due_s:
            agree(notes)
            last_s, notes = now, {}


def _numbered(found: dict[str, Any]) -> dict[Any, Any]:
    return {int(key) if key.isdigit() else key: value for key, value in found.items()}


@pytest.mark.parametrize(
    ("speeds", "batches", "epochs", "accumulate"),
    [
        ((10, 40), 1000, 1, 1),
        ((10, 40), 250, 4, 3),
        ((100, 400), 300, 20, 1),  # epochs shorter than a round
        ((10, 40, 40, 10), 500, 2, 1),
        ((2, 8), 60, 2, 2),
    ],
)
def test_nodes_of_unequal_speed_finish_together(
    speeds: tuple[int, ...], batches: int, epochs: int, accumulate: int
) -> None:
    plan, limits = BatchPlan(batches, 1), Limits(1, epochs, accumulate)
    nodes = [Paced(plan, limits, None, speed) for speed in speeds]
    race(nodes)
    ended = [node.ended_s for node in nodes]
    assert max(ended) - min(ended) < HORIZON_PERIODS
    assert max(ended) < batches * epochs / sum(speeds) + HORIZON_PERIODS
    assert sum(node.queue.own.done for node in nodes) == batches * epochs
    assert nodes[1].queue.own.done / nodes[0].queue.own.done == pytest.approx(4, rel=0.2)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind in ("grid", "lanes")])
def test_nodes_with_grids_and_lanes_are_hardly_ever_idle(kind: str) -> None:
    limits = Limits(1, epochs=4)
    plan: EpochPlan = BatchPlan(24 * 10, 1, lanes=24)
    if kind == "grid":
        plan = GridPlan(1, (16, 8, 2), tuple(range(0, 2 * 16 * 8 + 1, 2)))
    nodes = [
        Paced(
            plan,
            limits,
            GridSchedule(plan, limits, seed=1) if isinstance(plan, GridPlan) else LaneSchedule(plan, limits),
            speed,
        )
        for speed in (10, 40)
    ]
    race(nodes)
    ended = [node.ended_s for node in nodes]
    unit_s = 16 / 10
    assert max(ended) - min(ended) < HORIZON_PERIODS + unit_s
    assert max(node.idle_s for node in nodes) < HORIZON_PERIODS + unit_s
