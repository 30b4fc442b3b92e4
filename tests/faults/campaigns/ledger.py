"""The ledger without processes: queue, schedule and ring under events by dice, compared with a model that knows what
really happened to every batch. Loaders and workers that die anywhere, checkpoints, stops, rollbacks, resumes with other
numbers of processes, another feed, more epochs, ends of shards that are found late.

    fill, lease, work, die, refuse, park ──► check: each batch is free, leased or settled ──► drain ──► the end
    ^                                                                                                  |
    '── resume from a checkpoint: more epochs, other processes, resident instead of streamed ──────────'

`fuzz(seed)` is one run. `drain` lets everybody work undisturbed: a round in which nothing changes before the queue is
finished is a hang. A run is a fault that was survived when nothing is wrong at its end."""

import json
import pickle
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from hogwild.feeds.drawn_order import DrawnOrder, allocate_places
from hogwild.feeds.ring import BatchForm, Ring, RingSpec, SlotWord
from hogwild.feeds.stream_reader import read_state
from hogwild.job.sampling import Sampling
from hogwild.scheduling.batch_plan import BatchPlan, EpochPlan, StreamPlan
from hogwild.scheduling.grid_plan import GridPlan
from hogwild.scheduling.schedules import GridSchedule, LaneSchedule, schedule_for
from hogwild.scheduling.stream_schedule import REQUESTS_IN_HAND, SlotRequest, StreamSchedule
from hogwild.scheduling.work_queue import LeaseProgress, Limits, WorkItem, WorkQueue
from hogwild.shared_memory.region import Region
from hogwild.workers.session.epoch_draws import EpochDraws
from hogwild.workers.session.ring_state import RingState
from tests.faults.tally import Tally

Batch = tuple[int, int]  # epoch, number
KINDS = ("sharded", "sharded", "sharded", "map", "map", "ranges", "lanes", "grid", "drawn", "drawn map", "drawn map")
FEEDS = {"ranges": "map", "map": "ranges", "drawn": "drawn map", "drawn map": "drawn"}  # what a resume may change
SAMPLES = 50  # of the data from which a sampler draws
MOST_LOADERS = 4
ROUNDS = 3000  # of `drain`, far more than any run needs


class Broken(AssertionError):
    """The ledger does not say what happened, or nobody can get on."""


@cache
def ring() -> Ring:
    """The form of all runs: slots without data, only with a row, a head and two states."""
    return Ring.allocate("fuzz", RingSpec(BatchForm((), ()), 256, MOST_LOADERS, 64, 64))


class Dealt:
    """A sampler of batches: how many, and how large each is, differs from epoch to epoch; samples come again."""

    def __init__(self, seed: int, most: int) -> None:
        self.seed, self.most, self.epoch = seed, most, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        dice = Random(f"{self.seed}/{self.epoch}")
        for _ in range(dice.choice((1, self.most, self.most, 2 * self.most))):
            yield [dice.randrange(SAMPLES) for _ in range(dice.choice((1, 2, 7)))]


@dataclass(slots=True)
class Truth:
    """The true effects. `updates` that were committed and applied."""

    account: dict[Batch, str] = field(default_factory=dict)
    updates: int = 0
    samples: int = 0
    in_doubt: int = 0  # batches, each as often as its worker died between intent and commit

    def copy(self) -> "Truth":
        return Truth(dict(self.account), self.updates, self.samples, self.in_doubt)

    def settle(self, batches: list[Batch], account: str) -> None:
        for batch in batches:
            if batch in self.account:
                raise Broken(f"{batch} is {self.account[batch]}, and once more {account}")
            self.account[batch] = account


@cache
def places() -> dict[str, Region]:
    """Of all runs: each begins with its own first epoch."""
    return allocate_places()


@dataclass(slots=True)
class Worker:
    """`done`, `skipped`: of the item it works on, committed, as its row says. `acks` lie in its pipe."""

    hand: deque[WorkItem] = field(default_factory=deque)
    item: WorkItem | None = None
    row: tuple[int, int, int] = (0, 0, 0)  # item, done, skipped
    acks: list[tuple[int, int]] = field(default_factory=list)

    @property
    def items(self) -> list[WorkItem]:
        return [*([self.item] if self.item is not None else []), *self.hand]


@dataclass(slots=True)
class Loader:
    """`hand` are requests in its pipe. `at`: (epoch, place) its iterator comes to next, by shard."""

    hand: deque[SlotRequest] = field(default_factory=deque)
    at: dict[int, Batch] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint."""

    state: str
    truth: Truth


class World:
    """One job and its attempts."""

    def __init__(self, seed: int) -> None:
        self.seed, self.dice = seed, (dice := Random(seed))
        self.kind = dice.choice(KINDS)
        self.epochs = dice.choice((1, 1, 2, 2, 3))
        self.accumulate = dice.choice((1, 1, 1, 2, 3)) if self.kind not in ("lanes", "grid") else 1
        self.batches = dice.choice((1, 2, 5, 8, 13, 20))
        self.shards = dice.choice((1, 2, 2, 3, 4))
        self.uneven = dice.choice((1.0, 1.0, 0.05, 0.0))  # how fast the first loader is, and the first shard's length
        self.lengths: dict[Batch, int] = {}  # of shards, by (epoch, shard)
        self.is_stateful = dice.random() < 0.3 and self.kind == "sharded"  # its iterators say where they are
        self.max_attempts = dice.choice((1, 2, 3))
        self.redo = dice.random() < 0.5
        self.max_updates = dice.choice((None, None, None, dice.randrange(1, 12)))
        self.every = dice.choice((None, None, 1, 2))
        may_be_bad = dice.random() < 0.3
        has_bad = may_be_bad and self.kind in ("map", "drawn map")
        self.bad = {dice.randrange(self.batches) for _ in range(2)} if has_bad else set()
        self.sizes: dict[int, list[int]] = {}  # of the batches that a sampler draws, by epoch
        self.poison = {dice.randrange(self.batches) for _ in range(2)} if dice.random() < 0.2 else set()
        self.truth = Truth()
        self.saved: Saved | None = None
        self.begin(None)

    # ---- attempts

    def begin(self, saved: Saved | None) -> None:
        """An attempt, from a checkpoint or from the beginning. What a resume may change is drawn anew."""
        dice = self.dice
        self.procs = dice.choice((1, 1, 2, 3, 4))
        self.sync_every = dice.choice((1, 1, 4))
        self.loaders = self.shards if self.kind == "sharded" else dice.choice((1, 2, 3))
        self.draws = self._draws() if self.kind.startswith("drawn") else None
        self.plan = self._plan()
        limits = Limits(
            self.procs,
            self.epochs,
            self.accumulate,
            self.max_updates,
            self.max_attempts,
            dice.choice((1, 3, 64)),
            self.redo,
            self.sync_every,
        )
        self.schedule: StreamSchedule | None = None
        self.state: RingState | None = None
        schedule: Any = None
        bounds = self.draws.bounds if self.draws is not None else None
        if self.is_streamed:
            exchange = self.accumulate * dice.choice((1, self.sync_every))
            least = 2 * self.procs * exchange + REQUESTS_IN_HAND * self.loaders
            slots = min(ring().spec.slots, dice.choice((1, 1, 2)) * least)
            update = min(self.accumulate, self.plan.batches)
            schedule = self.schedule = StreamSchedule(
                self.plan, slots, self.loaders, update, self.epochs, in_order=self.procs < 2, bounds=bounds
            )
            ring().table[:] = 0
            self.state = RingState(ring(), schedule, None)  # type: ignore[arg-type]
        elif self.kind == "lanes":
            schedule = LaneSchedule(self.plan, limits)
        elif self.kind == "grid":
            assert isinstance(self.plan, GridPlan)
            limits.hands = dict.fromkeys(range(self.procs), dice.choice((0, 0, 3, 40)))
            schedule = GridSchedule(self.plan, limits, seed=7)
        elif bounds is not None:
            schedule = schedule_for(self.plan, limits, 7, bounds)
        self.queue = WorkQueue(self.plan, limits, ids=count(1), schedule=schedule)
        self.crew = [Worker() for _ in range(self.procs)]
        self.retired: set[int] = set()
        self.readers = [Loader() for _ in range(self.loaders)]
        self.truth = Truth()
        if saved is not None:
            self._restore(saved)
        self._open()

    @property
    def is_streamed(self) -> bool:
        return self.kind in ("map", "sharded", "drawn map")

    def _draws(self) -> EpochDraws:
        sampling = Sampling(Dealt(self.seed, self.batches), SAMPLES, self.seed, 4)
        sampling.begin(None)
        made = EpochDraws.of(sampling, places(), in_thread=False)
        assert made is not None
        return made

    def draw(self) -> None:
        if self.draws is not None and (error := self.draws.advance(self.queue.epoch, self.epochs)) is not None:
            raise Broken(str(error))

    def _plan(self) -> EpochPlan:
        if self.draws is not None:
            return self.draws.sampling.plan
        if self.kind == "sharded":
            return StreamPlan(4, self.shards)
        if self.kind == "grid":
            return GridPlan(2, (3, 3, 2), (0, 7, 7, 12, 15, 20, 24, 26, 27, 33))
        if self.kind == "lanes":
            return BatchPlan(3 * 2 * self.batches, 2, lanes=3)
        return BatchPlan(4 * self.batches - 1, 4)

    def _restore(self, saved: Saved) -> None:
        state = json.loads(saved.state)
        self.queue.restore(state["ledger"])
        if self.draws is not None:
            self.draws.restore(state["drawn"])
        if self.state is not None:
            self.state.restore(state.get("stream", {}))
            self.queue.find_ends()
        self.truth = saved.truth.copy()
        for worker in self.crew:  # what they had in hand is void
            worker.hand.clear()
            worker.acks.clear()
            worker.item, worker.row = None, (0, 0, 0)
        self.check_slots()

    def _open(self) -> None:
        """As `Evaluating.schedule`: there is a barrier every so many epochs."""
        queue = self.queue
        if self.every is not None:
            queue.open_until = min(self.epochs, (queue.epoch // self.every + 1) * self.every)

    def resume(self) -> None:
        """The job ends here, in order or not, and goes on from its last checkpoint, perhaps with more epochs."""
        if self.dice.random() < 0.6:
            self.checkpoint()
        if self.dice.random() < 0.3:
            self.epochs = max(1, self.epochs + self.dice.choice((1, 1, 2, -1)))
        if self.dice.random() < 0.3:
            self.max_updates = None if self.max_updates is None else self.max_updates + self.dice.randrange(12)
        if self.kind in FEEDS and self.dice.random() < 0.3:
            self.kind = FEEDS[self.kind]
        self.begin(self.saved)

    def roll_back(self) -> None:
        """Workers and loaders live on."""
        if self.saved is not None:
            self.park()
            self._restore(self.saved)
            self._open()

    # ---- what there is

    def exists(self, epoch: int, number: int) -> bool:
        if self.kind != "sharded":
            return number < self._batches_in(epoch)
        return number // self.shards < self.length(epoch, number % self.shards)

    def _batches_in(self, epoch: int) -> int:
        return len(self.sizes_of(epoch)) if self.draws is not None else self.plan.batches

    def sizes_of(self, epoch: int) -> list[int]:
        """The sizes of the batches that the sampler draws for an epoch."""
        if epoch not in self.sizes:
            dealt = Dealt(self.seed, self.batches)
            dealt.set_epoch(epoch)
            self.sizes[epoch] = [*map(len, dealt)]
        return self.sizes[epoch]

    def length(self, epoch: int, shard: int) -> int:
        """Places of a shard. Not all shards of an epoch are empty."""
        if (epoch, shard) not in self.lengths:
            dice = Random(f"{self.batches}/{self.shards}/{self.uneven}/{epoch}/{shard}")
            most = self.batches * 3 if shard == 0 and self.uneven < 1 else self.batches
            self.lengths[epoch, shard] = max(int(shard == 0), dice.choice((most, most, most // 2, 0, 1)))
        return self.lengths[epoch, shard]

    def all_of(self, epoch: int) -> Iterator[Batch]:
        if self.kind != "sharded":
            yield from ((epoch, number) for number in range(self._batches_in(epoch)))
            return
        yield from sorted(
            (epoch, shard + self.shards * place)
            for shard in range(self.shards)
            for place in range(self.length(epoch, shard))
        )

    def rows(self, epoch: int, number: int) -> int:
        if self.draws is not None:
            return self.sizes_of(epoch)[number]
        return 1 + number % 4 if self.is_streamed else self.plan.samples_in(number, number + 1)

    # ---- loaders

    def ask(self) -> None:
        if self.schedule is None or self.state is None:
            return
        for loader, reader in enumerate(self.readers):
            while (request := self.schedule.request(loader)) is not None:
                if any(request.slot == other.slot for each in self.readers for other in each.hand):
                    raise Broken(f"slot {request.slot} is in two hands")
                self.state.write(request)
                reader.hand.append(request)

    def fill(self, loader: int) -> bool:
        """The loader answers its first request; whether it had one."""
        reader, schedule, state = self.readers[loader], self.schedule, self.state
        if schedule is None or state is None or not reader.hand:
            return False
        request = reader.hand.popleft()
        epoch, number, slot = request.epoch, request.batch, request.slot
        is_void = (loader, slot) in schedule._void
        if not is_void and tuple(state.ring.table[slot, [SlotWord.EPOCH, SlotWord.BATCH]]) != (epoch, number):
            raise Broken(f"the table says {state.ring.table[slot]} of {request}")
        if self.kind == "sharded" and not is_void:
            self._go_to(reader, request)
        if not self.exists(epoch, number):
            if schedule.ended(loader, slot) is not None:
                self.queue.find_ends()
        elif number in self.bad:
            found = schedule.failed(loader, slot)
            if found is not None and found[1] >= self.max_attempts:
                self.give_up(request)
        else:
            before, after = (pickle.dumps(f"{epoch}/{request.shard}/{request.place + k}") for k in (0, 1))
            if self.draws is not None and not is_void:
                self._read(epoch, number)
            state.ring.seal(slot, self.rows(epoch, number), (), *((before, after) if self.is_stateful else (b"", b"")))
            state.filled(loader, slot)
        return True

    def _read(self, epoch: int, number: int) -> None:
        """What a loader or a worker does with a batch that a sampler has drawn."""
        dealt = Dealt(self.seed, self.batches)
        dealt.set_epoch(epoch)
        assert self.draws is not None
        found = DrawnOrder([*self.draws.regions.values()]).indices(epoch, number, number + 1).tolist()
        if found != [*dealt][number]:
            raise Broken(f"batch {number} of epoch {epoch} is {found}, not what was drawn")

    def _go_to(self, reader: Loader, request: SlotRequest) -> None:
        """The iterator of a shard, as `stream.Filler` moves it."""
        epoch, place = reader.at.get(request.shard, (-1, 0))
        if epoch != request.epoch or place > request.place:
            begin, said = int(ring().table[request.slot, SlotWord.FROM]), ring().read_begin(request.slot)
            if said and (read_state(said) != f"{request.epoch}/{request.shard}/{begin}" or begin > request.place):
                raise Broken(f"{request} begins at {begin} with the state {said!r}")
        reader.at = {**reader.at, request.shard: (request.epoch, request.place + 1)}

    def give_up(self, request: SlotRequest) -> None:
        assert self.schedule is not None
        release = self.queue.give_up(request.epoch, self.schedule.give_up(request))
        for epoch, start, stop in release.quarantined:
            self.truth.settle([(epoch, number) for number in range(start, stop)], "quarantined")

    def loader_dies(self, loader: int) -> None:
        if self.schedule is None:
            return
        reader = self.readers[loader]
        current = reader.hand[0].slot if reader.hand and self.dice.random() < 0.7 else None
        found = self.schedule.lost(loader, current)
        self.readers[loader] = Loader()
        if found is not None and found[1] >= 3 and self.kind in ("map", "drawn map"):
            self.give_up(found[0])

    # ---- workers

    def lease(self, worker: int) -> bool:
        item = self.queue.lease(worker)
        if item is None:
            return False
        numbers = range(item.start, item.stop)
        if not numbers or any(not self.exists(item.epoch, number) for number in numbers):
            raise Broken(f"{item} has batches that do not exist")
        again = [number for number in numbers if (item.epoch, number) in self.truth.account]
        held = {(each.epoch, number) for other in self.crew for each in other.items for number in _numbers(each)}
        if again or any((item.epoch, number) in held for number in numbers):
            raise Broken(f"{item} was settled ({again}) or is in another hand")
        if isinstance(self.plan, GridPlan):
            others = (each for other, state in enumerate(self.crew) if other != worker for each in state.items)
            if self.plan.row_of(item.start) in {self.plan.row_of(each.start) for each in others}:
                raise Broken(f"{item} is of a row block that is in another hand")
        if self.kind == "lanes":
            lane = item.start // self.batches
            others = (each for other, state in enumerate(self.crew) if other != worker for each in state.items)
            if (item.epoch, lane) in {(each.epoch, each.start // self.batches) for each in others}:
                raise Broken(f"{item} is of a lane that is in another hand")
            ahead = ((item.epoch, number) for number in range(lane * self.batches, (lane + 1) * self.batches))
            if next(each for each in ahead if each not in self.truth.account and each not in held) != (
                item.epoch,
                item.start,
            ):
                raise Broken(f"{item} is not the next of its lane")
        if self.schedule is not None:
            for number in numbers:
                if ring().find(item.epoch, number) >= self.schedule.slots:
                    raise Broken(f"{item}: batch {number} lies in no slot")
            if self.procs < 2:
                ahead = (n for e in range(item.epoch + 1) for n in self.all_of(e) if n not in self.truth.account)
                if next(batch for batch in ahead if batch not in held) != (item.epoch, item.start):
                    raise Broken(f"{item} is not the next")
        self.crew[worker].hand.append(item)
        return True

    def work(self, worker: int) -> bool:
        """An exchange, or the acknowledgement after the last; whether there was anything to do."""
        state = self.crew[worker]
        if state.item is None:
            if not state.hand:
                return False
            state.item = state.hand.popleft()
            state.row = (state.item.id, 0, 0)
        item, (_, done, skipped) = state.item, state.row
        exchange = self.exchange(worker)
        if not exchange:
            state.acks.append((item.id, skipped))
            state.item = None
            return True
        if any(number in self.poison for _, number in exchange):
            self.die(worker, is_in_doubt=False)
            return True
        is_skipped = self.dice.random() < 0.1
        self.truth.settle(exchange, "skipped" if is_skipped else "done")
        self.truth.samples += sum(self.rows(epoch, number) for epoch, number in exchange)
        if self.kind == "drawn":
            self._read(*exchange[0])
        self.truth.updates += 0 if is_skipped else -(-len(exchange) // self.accumulate)
        state.row = (item.id, done + len(exchange), skipped + is_skipped * len(exchange))
        return True

    def exchange(self, worker: int) -> list[Batch]:
        """The batches it commits next."""
        item, (_, done, _) = self.crew[worker].item, self.crew[worker].row
        assert item is not None
        start = item.start + done
        length = self.accumulate * self.queue.limits.sync_every
        return [(item.epoch, number) for number in range(start, min(item.stop, start + length))]

    def book(self, worker: int) -> None:
        """As `Crew.book`: the acknowledgements first."""
        state = self.crew[worker]
        for item, skipped in state.acks:
            self.queue.ack(worker, item, skipped)
        state.acks.clear()
        self.queue.observe(*state.row)

    def die(self, worker: int, *, is_in_doubt: bool, is_charged: bool = True) -> None:
        state = self.crew[worker]
        self.book(worker)
        intended = state.row[1]
        if state.item is not None and is_in_doubt:
            in_doubt = self.exchange(worker)
            intended += len(in_doubt)
            self.truth.in_doubt += len(in_doubt)
            if not self.redo:
                self.truth.settle(in_doubt, "skipped")
        progress = LeaseProgress(*state.row, state.row[0], intended, active=state.item is not None)
        for epoch, start, stop in self.queue.release(worker, progress, charged=is_charged).quarantined:
            self.truth.settle([(epoch, number) for number in range(start, stop)], "quarantined")
        self.crew[worker] = Worker()

    # ---- pauses

    def park(self) -> None:
        for worker in range(self.procs):
            self.book(worker)

    def checkpoint(self) -> None:
        self.park()
        state = {"ledger": self.queue.state()}
        if self.draws is not None:
            state["drawn"] = self.draws.state()
        if self.state is not None:
            state["stream"] = self.state.state()
        self.saved = Saved(json.dumps(state), self.truth.copy())
        self.check(state["ledger"])

    def check(self, state: dict[str, Any]) -> None:
        """Everybody is booked: each batch is free, leased or settled, and one of them."""
        settled = self.truth.account
        free: Counter[Batch] = Counter()
        for epoch, start, stop, _, *step in state["free"]:
            most = 1 + max((number for _, number in self.all_of(epoch)), default=0)
            free.update((epoch, number) for number in range(start, min(stop, most), *step))
        if twice := [batch for batch, times in free.items() if times > 1]:
            raise Broken(f"free twice: {twice}")
        if again := [batch for batch in free if batch in settled]:
            raise Broken(f"free, and settled: {again}")
        for epoch in range(state["next_epoch"]):
            if lost := [batch for batch in self.all_of(epoch) if batch not in free and batch not in settled]:
                raise Broken(f"neither free nor settled: {lost}")
        accounts, ledger = Counter(settled.values()), self.queue.ledger
        for name in ("done", "skipped", "quarantined"):
            if accounts[name] != getattr(ledger, name):
                raise Broken(f"{accounts[name]} batches are {name}, and the ledger says {ledger}")
        if (self.queue.updates, self.queue.samples) != (self.truth.updates, self.truth.samples):
            raise Broken(f"{self.queue.updates} updates, {self.queue.samples} samples; really {self.truth}")
        if ledger.indeterminate != self.truth.in_doubt:
            raise Broken(f"{self.truth.in_doubt} batches were in doubt, and the ledger says {ledger}")
        if self.queue.total != ledger.finished:
            raise Broken(f"{self.queue.total} batches in all, {ledger.finished} in the ledger")
        self.check_slots()

    def check_slots(self) -> None:
        if self.schedule is None:
            return
        schedule = self.schedule
        slots = [*schedule._free_slots, *(slot for _, slot in schedule._void)]
        for epoch in schedule._epochs.values():
            slots += [*epoch.slots.values(), *epoch.freed_slots]
        if sorted(slots) != [*range(schedule.slots)]:
            raise Broken(f"of {schedule.slots} slots there are {sorted(slots)}")
        held = {(loader, request.slot) for loader, reader in enumerate(self.readers) for request in reader.hand}
        if lost := schedule._void - held:
            raise Broken(f"nobody fills {lost}, and nobody else may")
        if idle := [e for e in schedule.open_epochs if self.queue.is_begun(e) and e not in self.queue._epochs]:
            raise Broken(f"epochs {idle} are settled, and still read")

    # ---- runs

    def disturb(self, events: int) -> None:
        """So many events of any kind, most of them work."""
        dice = self.dice
        for _ in range(events):
            roll, worker, loader = dice.random(), dice.randrange(self.procs), dice.randrange(self.loaders)
            if self.uneven < 1 and dice.random() < 0.6:  # one loader is the faster, or the slower
                loader = 0 if dice.random() < self.uneven or self.uneven == 0 else self.loaders - 1
            if roll < 0.35:
                if roll < 0.2:
                    self.draw()
                self.ask()
                self.fill(loader)
            elif roll < 0.60:
                self.lease(worker)
            elif roll < 0.84:
                self.work(worker)
            elif roll < 0.88:
                self.book(worker)
            elif roll < 0.91:
                self.die(worker, is_in_doubt=dice.random() < 0.5, is_charged=dice.random() < 0.9)
            elif roll < 0.94:
                self.loader_dies(loader)
            elif roll < 0.96:
                self.checkpoint()
            elif roll < 0.97:
                self.roll_back()
            elif roll < 0.98:
                self.resume()
            elif roll < 0.99:
                self.park()
                self.queue.limits.sync_every = dice.choice((1, self.sync_every))
            if self.queue.is_epoch_settled(self.queue.open_until - 1):
                self._open()

    def drain(self) -> None:
        """Everybody who is left works in turn until the queue is finished."""
        for worker in range(self.dice.randrange(self.procs)):
            self.die(worker, is_in_doubt=False)
            self.retired.add(worker)
        for _ in range(ROUNDS):
            self.park()
            if self.queue.is_finished:
                return
            self.draw()
            self.ask()
            got_on = [self.fill(loader) for loader in range(self.loaders)]
            for worker in {*range(self.procs)} - self.retired:
                while self.lease(worker):
                    pass
                got_on.append(self.work(worker))
            if self.queue.is_epoch_settled(self.queue.open_until - 1) and not self.queue.is_finished:
                self._open()
                got_on.append(True)
            if not any(got_on):
                raise Broken(f"nobody gets on: {json.dumps(self.queue.state())}")
        raise Broken("no end")

    def check_the_end(self) -> None:
        self.checkpoint()
        assert self.saved is not None
        everything = {batch for epoch in range(self.epochs) for batch in self.all_of(epoch)}
        if self.max_updates is None or self.truth.updates < self.max_updates:
            settled = {
                batch for batch in self.truth.account if batch[0] < self.epochs
            }  # there were more before, perhaps
            if settled != everything:
                raise Broken(f"settled: {sorted(settled)}, and there are {sorted(everything)}")
        elif self.truth.updates != self.max_updates:
            raise Broken(f"{self.truth.updates} updates, {self.max_updates} were asked for")

    def words(self) -> str:
        names = ("kind", "epochs", "procs", "loaders", "accumulate", "sync_every", "max_updates", "every", "batches")
        return ", ".join(f"{name} {getattr(self, name)}" for name in names)


def _numbers(item: WorkItem) -> range:
    return range(item.start, item.stop)


def fuzz(seed: int) -> str | None:
    """One run; what is wrong, or None."""
    world = World(seed)
    try:
        world.disturb(world.dice.randrange(10, 90))
        world.drain()
        world.check_the_end()
        if world.dice.random() < 0.5:  # goes on after its end, perhaps for more epochs
            world.resume()
            world.disturb(world.dice.randrange(30))
            world.drain()
            world.check_the_end()
    except (AssertionError, LookupError, ValueError, TypeError, StopIteration) as wrong:
        return f"{type(wrong).__name__}: {wrong} ({world.words()})"
    return None


def run(seed: int, count: int, folder: Path) -> Tally:
    """`count` runs with seeds of their own, which no other seed of the campaign uses."""
    tally = Tally(injected=count)
    for number in range(seed * count, (seed + 1) * count):
        if (words := fuzz(number)) is None:
            tally.survived += 1
        else:
            tally.violations.append(f"tests.faults.campaigns.ledger.fuzz({number}): {words}")
    return tally
