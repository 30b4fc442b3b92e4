"""The schedule of streamed data by itself: ends that are found, checkpoints, what cannot be read. Any order of events,
with deaths and resumes: test_work_queue.py."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from hogwild.scheduling.batch_plan import OPEN, BatchPlan, StreamPlan
from hogwild.scheduling.stream_schedule import REQUESTS_IN_HAND, SlotRequest, StreamEpoch, StreamSchedule
from hogwild.scheduling.work_queue import FreeRange, Limits, WorkQueue

ATTEMPTS = 3


@dataclass
class World:
    """Loaders, workers and a queue, moved by dice. `ends`: batches of each shard of an iterable, by epoch."""

    seed: int
    procs: int = 3
    loaders: int = 2
    accumulate: int = 1
    sync_every: int = 1
    epochs: int = 2
    batches: int = 23
    ends: dict[int, list[int]] = field(default_factory=dict)
    bad: frozenset[tuple[int, int]] = frozenset()  # (epoch, batch) that nobody can read

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.trained: dict[tuple[int, int], int] = {}
        self.make(None)

    def make(self, state: tuple[dict, list] | None) -> None:
        plan = StreamPlan(4, self.loaders) if self.ends else BatchPlan(4 * self.batches, 4)
        group = self.accumulate * self.sync_every
        slots = 2 * self.procs * group + REQUESTS_IN_HAND * self.loaders
        self.schedule = StreamSchedule(
            plan, slots, self.loaders, self.accumulate, self.epochs, in_order=self.procs == 1
        )
        limits = Limits(self.procs, epochs=self.epochs, accumulate=self.accumulate, sync_every=self.sync_every)
        self.queue = WorkQueue(plan, limits, schedule=self.schedule)
        self.hands: dict[int, list[SlotRequest]] = {k: [] for k in range(self.loaders)}
        self.content: dict[int, tuple[int, int]] = {}
        self.working: dict[int, list] = {k: [] for k in range(self.procs)}
        if state is not None:
            self.queue.restore(state[0])
            for epoch, known in state[1]:
                self.schedule.reopen(epoch, known)

    def exists(self, epoch: int, batch: int) -> bool:
        if not self.ends:
            return batch < self.batches
        return batch // self.loaders < self.ends[epoch][batch % self.loaders]

    def run(self) -> None:
        steps = 0
        while not self.queue.is_finished:
            steps += 1
            assert steps < 100_000, "nobody gets on"
            self.ask()
            if self.dice.random() < 0.5:
                self.fill(self.dice.randrange(self.loaders))
            else:
                self.train(self.dice.randrange(self.procs))

    def ask(self) -> None:
        for loader in range(self.loaders):
            while (request := self.schedule.request(loader)) is not None:
                held = {r.slot for hand in self.hands.values() for r in hand}
                assert request.slot not in held
                self.content.pop(request.slot, None)
                self.hands[loader].append(request)

    def fill(self, loader: int) -> None:
        if not self.hands[loader]:
            return
        request = self.hands[loader].pop(0)
        if not self.exists(request.epoch, request.batch):
            if self.schedule.ended(loader, request.slot):
                self.queue.find_ends()
        elif (request.epoch, request.batch) in self.bad:
            self.refuse(loader, request)
        else:
            self.content[request.slot] = (request.epoch, request.batch)
            self.schedule.filled(loader, request.slot, 4)

    def refuse(self, loader: int, request: SlotRequest) -> None:
        found = self.schedule.failed(loader, request.slot)
        if found is not None and found[1] >= ATTEMPTS:
            self.queue.give_up(request.epoch, self.schedule.give_up(request))

    def train(self, worker: int) -> None:
        item = self.queue.lease(worker)
        if item is not None:
            numbers = range(item.start, item.stop)
            slots = self.schedule._epochs[item.epoch].slots
            assert [self.content.get(slots[number]) for number in numbers] == [(item.epoch, n) for n in numbers]
            self.working[worker].append(item)
        elif self.working[worker] and self.dice.random() < 0.7:
            done = self.working[worker].pop(0)
            for number in range(done.start, done.stop):
                self.trained[done.epoch, number] = self.trained.get((done.epoch, number), 0) + 1
            self.queue.ack(worker, done.id, 0)

    def work_off(self) -> None:
        """Everything that is filled and may be leased is trained."""
        while self.working[0] or self.schedule.free_of(0).filled:
            self.train(0)

    def expected(self) -> dict[tuple[int, int], int]:
        if self.ends:
            every = [
                (epoch, shard + self.loaders * place)
                for epoch, ends in self.ends.items()
                for shard, end in enumerate(ends)
                for place in range(end)
            ]
        else:
            every = [(epoch, batch) for epoch in range(self.epochs) for batch in range(self.batches)]
        return dict.fromkeys(every, 1)


def test_the_ring_is_what_holds_loaders_back() -> None:
    world = World(0, procs=1)
    for _ in range(200):
        world.ask()
        for loader in range(world.loaders):
            world.fill(loader)
    assert len(world.content) == world.schedule.slots
    assert all(world.schedule.request(loader) is None for loader in range(world.loaders))


def test_going_back_to_a_checkpoint_voids_what_loaders_have_in_hand() -> None:
    world = World(1)
    state = world.queue.state()
    world.ask()
    old = world.hands[0][0]
    world.queue.restore(state)
    fresh = {world.schedule.request(1).slot for _ in range(REQUESTS_IN_HAND)}  # type: ignore[union-attr]
    held = {request.slot for hand in world.hands.values() for request in hand}
    assert not fresh & held, "a slot that somebody still writes into was given away"
    assert world.schedule.filled(0, old.slot, 4) is None, "nobody wants the answer any more"


@pytest.mark.parametrize("plan", [StreamPlan(4, 2), BatchPlan(4000, 4)])
def test_a_loader_that_fills_quickly_has_more_in_hand_if_nobody_else_can_read_it(plan: Any) -> None:
    schedule = StreamSchedule(plan, 80, 2, 1, 1)
    queue = WorkQueue(plan, Limits(1, epochs=1), schedule=schedule)

    def turn(count: int) -> int:
        """Fill so many requests, train all, and return how many requests the loader has then."""
        for _ in range(count):
            assert schedule.filled(0, hand.pop(0).slot, 4) is not None
        while (item := queue.lease(0)) is not None:
            queue.ack(0, item.id, 0)
        while (request := schedule.request(0)) is not None:
            hand.append(request)
        return len(hand)

    hand = list[SlotRequest]()
    found = [turn(0), *(turn(len(hand)) for _ in range(4))]
    assert found == ([2, 4, 8, 10, 10] if isinstance(plan, StreamPlan) else [REQUESTS_IN_HAND] * 5)
    assert [turn(1) for _ in range(20)][-1] == REQUESTS_IN_HAND


def test_a_stream_without_an_end_is_free_up_to_the_horizon() -> None:
    world = World(0, ends={0: [5, 5], 1: [5, 5]})
    world.ask()
    pieces = list(world.schedule.free_of(0))
    assert pieces[-1].stop == OPEN
    assert pieces[0].start == 0


# ---- ledgers of streams ----------------------------------------------------------------------------------------------


def free_numbers(world: World, below: int = 100) -> list[tuple[int, int]]:
    """(epoch, number) of everything that a checkpoint would call free, as often as it says so."""
    pieces = world.queue.state()["free"]
    return [(epoch, n) for epoch, a, b, _, *step in pieces for n in range(a, min(b, below), *step)]


def resumed(world: World, **given: object) -> World:
    """The same job in another attempt, from a checkpoint made now."""
    for name, value in given.items():
        setattr(world, name, value)
    found = world.schedule.positions()
    rows = [(e, [(s["end"], s["place"]) for s in shards]) for e, shards in found.items()]
    world.make((json.loads(json.dumps(world.queue.state())), rows))
    return world


def one_shard_ahead() -> World:
    """Shard 0 has six batches, all of them trained, and its end is known; loader 1 has read two of its four."""
    world = World(0, procs=2, epochs=1, ends={0: [6, 4]})
    while world.schedule.positions().get(0, [{"end": None}])[0]["end"] is None:
        world.ask()
        world.fill(0)
        world.work_off()
    world.ask()
    world.fill(1)
    world.fill(1)
    world.work_off()
    return world


def test_what_is_free_beside_a_shard_that_has_ended_is_free_once_and_was_not_settled() -> None:
    world = one_shard_ahead()
    free = free_numbers(world)
    assert len(free) == len(set(free))
    assert {number for _, number in free if number < 8} == {5, 7}
    resumed(world).run()
    assert world.trained == world.expected()
    assert world.queue.ledger.done == world.queue.total == 10


def test_a_checkpoint_from_before_goes_on_although_it_calls_settled_batches_free() -> None:
    """As checkpoints were written at first: beyond the last place of open shards all was free."""
    world = one_shard_ahead()
    state = world.queue.state()
    state["free"] = [[0, 4, OPEN, 0], [0, 5, 6, 0]]
    world.make((state, [(0, [(6, 6), (None, 2)])]))
    world.run()
    assert world.trained == world.expected()
    assert world.queue.ledger.done == world.queue.total == 10


def test_a_run_that_was_resident_up_to_the_end_of_an_epoch_goes_on_as_a_stream() -> None:
    resident = WorkQueue(BatchPlan(4 * 23, 4), Limits(1, epochs=1))
    while (item := resident.lease(0)) is not None:
        resident.ack(0, item.id, 0)
    world = World(0, epochs=2)
    world.make((resident.state(), []))
    world.run()
    assert {epoch for epoch, _ in world.trained} == {1}
    assert world.queue.ledger.done == world.queue.total == 46


@pytest.mark.parametrize("ends", [{}, {0: [2, 1], 1: [2, 2]}], ids=["map", "iterable"])
def test_an_epoch_whose_last_batch_is_committed_and_not_acknowledged_is_not_read_again(
    ends: dict[int, list[int]],
) -> None:
    world = World(0, procs=1, batches=3, ends=ends)
    while world.schedule.positions().get(1) is None or world.queue.epoch == 0:
        world.ask()
        world.fill(0)
        world.fill(1)
        if (item := world.queue.lease(0)) is None or item.epoch > 0:
            break
        world.trained |= {(0, number): 1 for number in range(item.start, item.stop)}
        world.queue.observe(item.id, item.stop - item.start, 0)
        if world.queue.total < 3:
            world.queue.ack(0, item.id, 0)
    assert world.queue.total == 3 and 0 in world.schedule.open_epochs
    resumed(world).run()
    assert world.trained == world.expected()


def test_batches_that_cannot_be_read_are_given_up_ahead_of_those_who_lease() -> None:
    """Batches of the next epoch before anything of this one was leased, and those of an epoch's last update."""
    world = World(0, procs=1, loaders=1, accumulate=2, batches=4, bad=frozenset({(1, 0), (1, 3)}))
    for _ in range(40):
        world.ask()
        world.fill(0)
    assert world.queue.ledger.quarantined == 4
    assert world.queue.epoch == 0
    world.run()
    assert world.trained == {(0, number): 1 for number in range(4)}
    assert world.queue.total == 8


def test_a_stream_that_is_shorter_in_its_next_attempt_comes_to_an_end() -> None:
    schedule = StreamSchedule(StreamPlan(4, 1), 8, 1, 1, 1)
    queue = WorkQueue(StreamPlan(4, 1), Limits(1), schedule=schedule)
    free = [[0, 2, 3, 0], [0, 5, OPEN, 0]]  # batches 3 and 4 were trained, and are not there any more
    queue.restore({**queue.state(), "next_epoch": 1, "free": free, "settled": [[0, 4]], "ledger": {"done": 4}})
    while (request := schedule.request(0)) is not None:
        schedule.ended(0, request.slot)
        queue.find_ends()
    assert queue.is_finished and queue.total == 4
    assert len(schedule._free_slots) + len(schedule._void) == 8


def test_what_was_asked_for_beyond_an_end_holds_up_nobody() -> None:
    """A loader that died with it would have to be replaced first, and to pass over its shard."""
    world = World(0, procs=1, loaders=1, epochs=1, ends={0: [2]})
    while world.schedule.free_of(0).shards[0].end is None:
        world.ask()
        world.fill(0)
    assert world.schedule.has_in_hand(0)
    world.work_off()
    assert world.queue.is_finished


def test_a_shard_that_is_far_ahead_makes_no_checkpoint_long_and_no_lease_slow() -> None:
    """Pieces, not seconds: what is iterated over at each lease and at each checkpoint."""
    world = World(0, procs=2, epochs=1, ends={0: [10**6, 10**6]})
    world.ask()
    world.fill(1)
    world.train(0)
    world.schedule.free_of(0).shards[0].cut(480_000, OPEN)
    assert 2 <= len(world.queue.state()["free"]) < 10
    resumed(world)
    assert 2 <= len(world.queue.state()["free"]) < 10
    assert all(len(shard.todo) <= 2 for shard in world.schedule.free_of(0).shards)


def test_pieces_by_the_number_become_ranges_again() -> None:
    """As a checkpoint was written before: one piece for each batch of a shard that is behind."""
    pieces = [FreeRange(number, number + 1) for number in range(1, 2001, 2)]
    epoch = StreamEpoch(0, 2, [*pieces, FreeRange(2000, OPEN)], None)
    assert [list(shard.todo) for shard in epoch.shards] == [[(1000, OPEN // 2)], [(0, OPEN // 2)]]
