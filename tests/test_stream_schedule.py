"""The schedule of streamed data by itself: random loaders and workers that die, streams whose end is found, resumes.
Every batch is trained once, nobody waits for ever, and no slot holds two batches."""

import random
from dataclasses import dataclass, field

import pytest

from hogwild.batches import BatchPlan
from hogwild.leases import Limits, Progress
from hogwild.stream_epoch import Request
from hogwild.stream_plan import OPEN, StreamPlan
from hogwild.stream_schedule import REQUESTS_IN_HAND, StreamSchedule
from hogwild.workqueue import WorkQueue

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
        self.hands: dict[int, list[Request]] = {k: [] for k in range(self.loaders)}
        self.content: dict[int, tuple[int, int]] = {}
        self.working: dict[int, list] = {k: [] for k in range(self.procs)}
        if state is not None:
            self.queue.restore(state[0])
            for epoch, ends in state[1]:
                if epoch not in self.schedule.open_epochs:
                    self.schedule.free_of(epoch)
                self.schedule.close(epoch, ends)

    def exists(self, epoch: int, batch: int) -> bool:
        if not self.ends:
            return batch < self.batches
        return batch // self.loaders < self.ends[epoch][batch % self.loaders]

    def run(self, *, deaths: bool, resumes: bool = False) -> None:
        steps = 0
        while not self.queue.is_finished:
            steps += 1
            assert steps < 100_000, "nobody gets on"
            self.ask()
            roll = self.dice.random()
            if deaths and roll < 0.02:
                self.loader_dies(self.dice.randrange(self.loaders))
            elif deaths and roll < 0.04:
                self.worker_dies(self.dice.randrange(self.procs))
            elif resumes and roll < 0.05:
                rows = [(e, [s["end"] for s in shards]) for e, shards in self.schedule.positions().items()]
                self.make((self.queue.state(), rows))
            elif roll < 0.5:
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

    def refuse(self, loader: int, request: Request) -> None:
        found = self.schedule.failed(loader, request.slot)
        if found is not None and found[1] >= ATTEMPTS:
            for start, stop in self.schedule.give_up(request):
                self.queue.give_up(request.epoch, start, stop)

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

    def loader_dies(self, loader: int) -> None:
        current = self.hands[loader][0].slot if self.hands[loader] else None
        found = self.schedule.lost(loader, current)
        self.hands[loader] = []
        if found is not None and found[1] >= 1000:
            raise AssertionError("attempts without end")

    def worker_dies(self, worker: int) -> None:
        item = self.working[worker][0] if self.working[worker] else None
        self.working[worker] = []
        progress = None
        if item is not None:
            settled = self.dice.randrange(0, item.stop - item.start + 1)
            settled -= settled % (self.accumulate * self.sync_every)
            for number in range(item.start, item.start + settled):
                self.trained[item.epoch, number] = self.trained.get((item.epoch, number), 0) + 1
            progress = Progress(item.id, settled, 0, 0, 0, active=False)
        self.queue.release(worker, progress)

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


@pytest.mark.parametrize("deaths", [False, True], ids=["quiet", "deaths"])
@pytest.mark.parametrize(("accumulate", "sync_every"), [(1, 1), (3, 1), (1, 4), (2, 3)])
@pytest.mark.parametrize("procs", [1, 3])
def test_every_batch_of_a_map_style_data_set_is_trained_once(
    procs: int, accumulate: int, sync_every: int, deaths: bool
) -> None:
    for seed in range(12):
        world = World(seed, procs=procs, accumulate=accumulate, sync_every=sync_every)
        world.run(deaths=deaths)
        assert world.trained == world.expected()
        assert world.queue.ledger.done == world.queue.total == 46


@pytest.mark.parametrize("ends", [{0: [9, 4], 1: [3, 12]}, {0: [1, 0], 1: [0, 5]}, {0: [20, 20], 1: [20, 19]}], ids=str)
@pytest.mark.parametrize(("procs", "accumulate", "sync_every"), [(1, 1, 1), (3, 1, 1), (3, 2, 1), (2, 1, 4)])
def test_every_batch_of_an_iterable_is_trained_once_and_its_end_is_found(
    ends: dict[int, list[int]], procs: int, accumulate: int, sync_every: int
) -> None:
    for seed in range(8):
        world = World(seed, procs=procs, accumulate=accumulate, sync_every=sync_every, ends=ends)
        world.run(deaths=seed % 2 == 1)
        assert world.trained == world.expected()
        assert world.queue.total == sum(map(sum, ends.values()))


@pytest.mark.parametrize("ends", [{}, {0: [9, 4], 1: [3, 12]}], ids=["map", "iterable"])
def test_a_resume_trains_what_is_left_and_nothing_twice(ends: dict[int, list[int]]) -> None:
    for seed in range(30):
        world = World(seed, ends=ends)
        world.run(deaths=True, resumes=True)
        assert world.trained.keys() == world.expected().keys()
        assert world.queue.ledger.done == world.queue.total == len(world.expected())


@pytest.mark.parametrize("accumulate", [1, 3])
def test_what_nobody_can_read_is_quarantined_with_its_update_and_the_rest_is_trained(accumulate: int) -> None:
    bad = frozenset({(0, 7), (1, 22)})
    for seed in range(12):
        world = World(seed, accumulate=accumulate, bad=bad)
        world.run(deaths=True)
        gone = {
            (epoch, number)
            for epoch, batch in bad
            for number in range(
                batch // accumulate * accumulate, min(23, batch // accumulate * accumulate + accumulate)
            )
        }
        assert world.trained.keys() == world.expected().keys() - gone
        assert world.queue.ledger.quarantined == len(gone)


def test_one_worker_gets_the_batches_in_order_whoever_reads_faster() -> None:
    for seed in range(6):
        world, seen = World(seed, procs=1, loaders=3, ends={0: [7, 2, 5], 1: [1, 1, 1]}), []
        train = world.train

        def watched(worker: int, train=train, world=world, seen=seen) -> None:  # type: ignore[no-untyped-def]
            before = len(world.working[worker])
            train(worker)
            if len(world.working[worker]) > before:
                item = world.working[worker][-1]
                seen.extend((item.epoch, number) for number in range(item.start, item.stop))

        world.train = watched  # type: ignore[method-assign]
        world.run(deaths=False)
        assert seen == sorted(world.expected())


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


def test_a_stream_without_an_end_is_free_up_to_the_horizon() -> None:
    world = World(0, ends={0: [5, 5], 1: [5, 5]})
    world.ask()
    pieces = list(world.schedule.free_of(0))
    assert pieces[-1].stop == OPEN
    assert pieces[0].start == 0
