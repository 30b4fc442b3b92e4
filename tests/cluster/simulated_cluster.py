"""A cluster without processes: nodes with queues, workers and loaders that do anything at any time, rounds that are
committed or thrown away, and a model that knows what really happened to every batch.

    work ──► cut: notes ──► work ──► committed by all: what was settled at the cut counts
                               '───► or by nobody: all goes on, and the next round has it

A node that is lost takes along what it has done since its last committed cut. Every node has its own copy of the
shares, fed through JSON; the copies must agree."""

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from hogwild.cluster.shares import Borders, NodeQueue, Shares
from hogwild.scheduling.batch_plan import BatchPlan, EpochPlan
from hogwild.scheduling.grid_plan import GridPlan
from hogwild.scheduling.schedules import GridSchedule, LaneSchedule
from hogwild.scheduling.stream_schedule import REQUESTS_IN_HAND, SlotRequest, StreamSchedule
from hogwild.scheduling.work_queue import LeaseProgress, LeaseSchedule, Limits, WorkItem, WorkQueue

Batch = tuple[int, int]  # epoch, number
LOADERS = 2
LANES = 8
GRIDS = (
    ((3, 3, 2), (0, 7, 7, 12, 15, 20, 24, 26, 27, 33)),
    ((7, 2, 3), (0, 2, 4, 4, 4, 4, 4, 9, 12, 13, 20, 28, 31, 36, 41)),
)


@dataclass(frozen=True, slots=True)
class Case:
    """One job."""

    kind: str = "ranges"  # or grid, lanes, stream
    batches: int = 20  # of ranges and streams; steps of a lane
    epochs: int = 2
    accumulate: int = 1
    sync_every: int = 1
    max_updates: int | None = None
    procs: tuple[int, ...] = (2, 1)  # of each node
    redo: bool = True
    bad: frozenset[int] = frozenset()  # batches that kill each worker, or that no loader can read

    @property
    def plan(self) -> EpochPlan:
        if self.kind == "grid":
            return GridPlan(2, *GRIDS[self.batches % 2])
        if self.kind == "lanes":
            return BatchPlan(LANES * 2 * self.batches, 2, lanes=LANES)
        return BatchPlan(4 * self.batches - 1, 4)

    def limits(self, procs: int) -> Limits:
        group = 1 if self.kind in ("grid", "lanes") else self.accumulate
        most = (1, 3, 64)[self.batches % 3]
        return Limits(procs, self.epochs, group, self.max_updates, 3, most, self.redo, self.sync_every)

    def schedule(self, procs: int) -> LeaseSchedule | None:
        limits, plan = self.limits(procs), self.plan
        if self.kind == "stream":
            slots = 2 * procs * self.accumulate * self.sync_every + REQUESTS_IN_HAND * LOADERS
            return StreamSchedule(
                plan, slots, LOADERS, min(self.accumulate, plan.batches), self.epochs, in_order=procs < 2
            )
        if self.kind == "lanes":
            return LaneSchedule(plan, limits)
        return GridSchedule(plan, limits, seed=7) if isinstance(plan, GridPlan) else None


@dataclass(slots=True)
class Done:
    """Batches by their account, with the updates and samples of them."""

    account: dict[Batch, str] = field(default_factory=dict)
    updates: int = 0
    samples: int = 0

    def settle(self, batches: Iterable[Batch], account: str) -> None:
        for batch in batches:
            assert batch not in self.account, f"{batch} is {self.account[batch]}, and once more {account}"
            self.account[batch] = account

    def skip(self) -> None:
        self.account = {batch: "skipped" if how == "done" else how for batch, how in self.account.items()}
        self.updates = 0

    def add(self, other: "Done") -> None:
        for batch, account in other.account.items():
            self.settle([batch], account)
        self.updates += other.updates
        self.samples += other.samples

    def copy(self) -> "Done":
        return Done(dict(self.account), self.updates, self.samples)

    def remove(self, other: "Done") -> None:
        self.account = {batch: how for batch, how in self.account.items() if batch not in other.account}
        self.updates -= other.updates
        self.samples -= other.samples


@dataclass(slots=True)
class Worker:
    hand: deque[WorkItem] = field(default_factory=deque)
    item: WorkItem | None = None
    row: tuple[int, int, int] = (0, 0, 0)  # item, committed, skipped


class Machine:
    """The workers and loaders of one machine, and its queue. `fresh`: settled since the last committed cut."""

    def __init__(self, case: Case, procs: int, dice: Random, kind: type[WorkQueue] = NodeQueue) -> None:
        self.case, self.procs, self.dice = case, procs, dice
        schedule = case.schedule(procs)
        self.stream = schedule if isinstance(schedule, StreamSchedule) else None
        self.queue = kind(case.plan, case.limits(procs), ids=count(1), schedule=schedule)
        self.fresh = Done()
        self.workers = [Worker() for _ in range(procs)]
        self.hands: list[deque[SlotRequest]] = [deque() for _ in range(LOADERS)]
        self.may_have: set[Batch] | None = None  # None: everything

    def forget(self) -> None:
        """Everything that workers have in hand is void; loaders answer what they were asked."""
        self.workers = [Worker() for _ in range(self.procs)]
        self.fresh = Done()

    # ---- one step

    def step(self, *, deaths: bool = True) -> bool:
        """Let somebody do something; return whether anything was done."""
        worker, roll = self.dice.randrange(self.procs), self.dice.random()
        done = self.load()
        if deaths and roll < 0.03:
            self.die(worker, is_in_doubt=roll < 0.015)
        elif roll < 0.4:
            return self.lease(worker) or done
        else:
            return self.work(worker) or done
        return True

    def settle_all(self) -> bool:
        """Let everybody do what can be done now; return whether anything was."""
        turns = 0
        while self.load() + sum(self.lease(worker) + self.work(worker) for worker in range(self.procs)):
            turns += 1
            assert turns < 10_000
        return turns > 0

    def load(self) -> bool:
        if self.stream is None:
            return False
        for loader, hand in enumerate(self.hands):
            while (request := self.stream.request(loader)) is not None:
                assert not any(request.slot == each.slot for other in self.hands for each in other)
                assert self.may_have is None or (request.epoch, request.batch) in self.may_have
                hand.append(request)
        loader = self.dice.randrange(LOADERS)
        hand = self.hands[loader] or self.hands[1 - loader]
        if not hand:
            return False
        self._answer(self.hands.index(hand), hand.popleft())
        return True

    def _answer(self, loader: int, request: SlotRequest) -> None:
        assert self.stream is not None
        if request.batch not in self.case.bad:
            self.stream.filled(loader, request.slot, 1 + request.batch % 4)
            return
        found = self.stream.failed(loader, request.slot)
        if found is not None and found[1] >= 3:
            gone = self.queue.give_up(request.epoch, self.stream.give_up(request)).quarantined
            for epoch, start, stop in gone:
                self.fresh.settle([(epoch, number) for number in range(start, stop)], "quarantined")

    def lease(self, worker: int) -> bool:
        item = self.queue.lease(worker)
        if item is None:
            return False
        for batch in _batches(item):
            assert self.may_have is None or batch in self.may_have, f"{batch} is another node's"
            assert batch not in self.fresh.account, f"{batch} is settled"
        self.workers[worker].hand.append(item)
        return True

    def work(self, worker: int) -> bool:
        """Commit an exchange, or acknowledge an item."""
        state = self.workers[worker]
        if state.item is None:
            if not state.hand:
                return False
            state.item = state.hand.popleft()
            state.row = (state.item.id, 0, 0)
        exchange, (_, done, skipped) = self._exchange(state), state.row
        if not exchange:
            assert self.queue.ack(worker, state.item.id, skipped) is not None
            state.item = None
        elif self.stream is None and any(number in self.case.bad for _, number in exchange):
            self.die(worker, is_in_doubt=False)
        else:
            is_skipped = self.dice.random() < 0.05
            self.fresh.settle(exchange, "skipped" if is_skipped else "done")
            self.fresh.samples += sum(self.rows(number) for _, number in exchange)
            self.fresh.updates += 0 if is_skipped else -(-len(exchange) // self.queue.limits.accumulate)
            state.row = (state.item.id, done + len(exchange), skipped + is_skipped * len(exchange))
        return True

    def rows(self, number: int) -> int:
        return 1 + number % 4 if self.stream is not None else self.case.plan.samples_in(number, number + 1)

    def _exchange(self, state: Worker) -> list[Batch]:
        assert state.item is not None
        return _batches(state.item)[state.row[1] :][: self.queue.limits.accumulate * self.case.sync_every]

    def book(self) -> None:
        for worker in self.workers:
            self.queue.observe(*worker.row)

    def die(self, worker: int, *, is_in_doubt: bool) -> None:
        state = self.workers[worker]
        self.queue.observe(*state.row)
        intended = state.row[1]
        if state.item is not None and is_in_doubt:
            in_doubt = self._exchange(state)
            intended += len(in_doubt)
            if not self.case.redo:
                self.fresh.settle(in_doubt, "skipped")
        progress = LeaseProgress(*state.row, state.row[0], intended, active=state.item is not None)
        for epoch, start, stop in self.queue.release(worker, progress).quarantined:
            self.fresh.settle([(epoch, number) for number in range(start, stop)], "quarantined")
        self.workers[worker] = Worker()


def _batches(item: WorkItem) -> list[Batch]:
    return [(item.epoch, number) for number in range(item.start, item.stop)]


class Node(Machine):
    """A machine of the cluster. `before`: its note of the last committed cut; `cut`: what was settled at the last."""

    queue: NodeQueue

    def __init__(self, case: Case, procs: int, dice: Random) -> None:
        super().__init__(case, procs, dice)
        self.shares = Shares(case.plan, case.limits(procs))
        self.speed: float | None = None
        self.before: dict[str, Any] = {}
        self.cut = Done()

    def note(self, period_s: float) -> dict[str, Any]:
        self.book()
        note = self.queue.note()
        settled = sum(note["counts"][name] - self.before["counts"][name] for name in ("done", "skipped", "quarantined"))
        self.speed = settled / period_s if settled else self.speed
        self.cut = self.fresh.copy()
        return note | {"speed": self.speed, "weight": self.procs, "period_s": period_s, "dry": self.queue.is_dry}


class Cluster:
    """One job on several nodes. `truth`: what counts."""

    def __init__(self, case: Case, dice: Random) -> None:
        self.case, self.dice, self.truth = case, dice, Done()
        self.borders = Borders(case.plan)
        self.start(case.procs, None)

    def start(self, procs: tuple[int, ...], ledger: dict[str, Any] | None) -> None:
        """Start all nodes, from a ledger or from the beginning."""
        self.nodes = {number: Node(self.case, many, self.dice) for number, many in enumerate(procs)}
        notes: dict[int, dict[str, Any]] = {}
        for number, node in self.nodes.items():
            if ledger is not None:
                node.shares.restore(json.loads(json.dumps(ledger)))
            node.before = node.queue.note()
            notes[number] = node.note(1.0)
        self.agree(notes)

    # ---- rounds

    def park(self) -> dict[int, dict[str, Any]]:
        """Make the cut of a round; return the notes. A node whose parameters are not finite skips what it did."""
        period_s = self.dice.choice((0.1, 1.0, 5.0))
        notes = {}
        for number, node in self.nodes.items():
            if self.dice.random() < 0.05:
                node.book()
                node.queue.skip_since(node.before)
                node.fresh.skip()
            notes[number] = node.note(period_s)
        return notes

    def agree(self, notes: dict[int, dict[str, Any]]) -> None:
        """Commit the round: what was settled at the cuts counts."""
        text = json.dumps(notes)
        for number, node in self.nodes.items():
            self.truth.add(node.cut)
            node.fresh.remove(node.cut)
            node.before = notes[number]
            node.queue.committed()
        self.grant([node.shares.commit(_read(text)) for node in self.nodes.values()])
        for number, node in self.nodes.items():
            if self.dice.random() < 0.8:
                keep = node.shares.keep_of(number)
                node.queue.withdraw(self.dice.choice((keep, keep, self.dice.randrange(1, 20))))
        self.check()

    def lose(self, gone: Iterable[int]) -> None:
        for number in gone:
            del self.nodes[number]
        for node in self.nodes.values():
            node.shares.lose(self.nodes.keys())
        self.grant([{} for _ in self.nodes])
        self.check()

    def grant(self, of_all: list[dict[int, list[list[int]]]]) -> None:
        assert all(grants == of_all[0] for grants in of_all), "the copies of the shares differ"
        for number, node in self.nodes.items():
            node.queue.grant(of_all[0].get(number, []))
            node.queue.note_elsewhere(node.shares.others_of(number))
            node.may_have = set(_all_of(node.shares.holdings[number]))

    @property
    def shares(self) -> Shares:
        return next(iter(self.nodes.values())).shares

    # ---- what must always be true

    def check(self) -> None:
        """Each batch of an opened epoch is settled, a node's, or in the pool, and one of them."""
        states = [node.shares.state() for node in self.nodes.values()]
        assert all(state == states[0] for state in states)
        state, truth, shares = states[0], self.truth, self.shares
        free = Counter(_all_of(state["free"]))
        opened = {(epoch, number) for epoch in range(state["next_epoch"]) for number in range(self.case.plan.batches)}
        assert max(free.values(), default=1) == 1
        assert free.keys() | truth.account.keys() == opened
        assert not free.keys() & truth.account.keys()
        accounts = Counter(truth.account.values())
        assert {name: accounts[name] for name in ("done", "skipped", "quarantined")} == {
            name: state["ledger"][name] for name in ("done", "skipped", "quarantined")
        }
        assert (state["updates"], state["samples"]) == (truth.updates, truth.samples)
        assert shares.counts.finished == len(truth.account)
        units: dict[tuple[int, int], int] = {}
        for number, node in self.nodes.items():
            held = [*_all_of(shares.holdings[number])]
            assert sorted(held) == sorted(set(held))
            if self.borders.has_units:
                for epoch, batch in held:
                    assert units.setdefault((epoch, self.borders.unit_of(batch)), number) == number
            assert node.queue.total - node.queue.own.finished == len(truth.account) - node.before["counts"]["done"] - (
                node.before["counts"]["skipped"] + node.before["counts"]["quarantined"]
            )

    # ---- runs

    def disturb(self, events: int) -> None:
        for _ in range(events):
            for _ in range(self.dice.randrange(30)):
                self.dice.choice([*self.nodes.values()]).step()
            self.round()

    def round(self) -> None:
        """A round, or something that goes wrong with it."""
        dice, roll = self.dice, self.dice.random()
        victims = [number for number in self.nodes if dice.random() < 0.3][: len(self.nodes) - 1]
        if roll < 0.05:  # before the cut
            self.lose(victims)
        elif roll < 0.1:
            self.back_to(self.dice.choice([*self.nodes]))
        elif roll < 0.2:
            self.restart(through_one_machine=dice.random() < 0.5)
        notes = self.park()
        for _ in range(dice.randrange(10)):
            dice.choice([*self.nodes.values()]).step()
        if dice.random() < 0.2:
            dice.choice([*self.nodes.values()]).queue.withdraw(dice.randrange(1, 20))
        if dice.random() < 0.8:
            self.agree(notes)
        if dice.random() < 0.05:  # before or after the commit
            self.lose([number for number in victims if number in self.nodes][: len(self.nodes) - 1])

    def back_to(self, number: int) -> None:
        """A node takes the anchor again: the parameters of the last committed cut."""
        node = self.nodes[number]
        node.queue.back_to(node.before)
        node.forget()

    def restart(self, *, through_one_machine: bool) -> None:
        """All end; what is committed goes on with other nodes, perhaps after some work on one machine."""
        ledger = json.loads(json.dumps(self.shares.state()))
        if through_one_machine:
            machine = Machine(self.case, 2, self.dice, WorkQueue)
            machine.queue.restore(ledger)
            for _ in range(self.dice.randrange(60)):
                machine.step()
            machine.book()
            self.truth.add(machine.fresh)
            ledger = json.loads(json.dumps(machine.queue.state()))
        self.start(tuple(self.dice.choice((1, 2, 3)) for _ in range(self.dice.choice((1, 2, 3)))), ledger)

    def finish(self) -> None:
        """Let everybody work undisturbed until the job is finished."""
        for _ in range(2_000):
            if all(node.queue.is_finished for node in self.nodes.values()):
                break
            worked = [node.settle_all() for node in self.nodes.values()]
            before = json.dumps([self.shares.state(), self.shares.holdings])
            was_dry = [number for number, node in self.nodes.items() if node.queue.is_dry]
            for node in self.nodes.values():
                node.book()
            self.agree({number: node.note(1.0) for number, node in self.nodes.items()})
            is_left = bool(self.shares._open_pool) or self.shares.next_epoch < self.case.epochs
            if is_left and self.shares._budget != 0 and (self.case.max_updates is None or not self.borders.has_units):
                assert all(self.shares.holdings[number] for number in was_dry), "a dry node got nothing"
            after = json.dumps([self.shares.state(), self.shares.holdings])
            assert any(worked) or before != after, "nobody gets on"
        assert self.shares.is_finished
        self.check_the_end()

    def check_the_end(self) -> None:
        everything = {*_everything(self.case)}
        if self.case.max_updates is None or self.truth.updates < self.case.max_updates:
            assert self.truth.account.keys() == everything
        else:
            assert self.truth.updates == self.case.max_updates
        for node in self.nodes.values():
            queue = node.queue
            assert (queue.updates, queue.samples) == (self.truth.updates, self.truth.samples)
            assert queue.ledger.finished == queue.total == len(self.truth.account)
            assert queue.epoch == self.shares.epoch
            assert queue.is_dry


def _all_of(pieces: Iterable[list[int]]) -> Iterator[Batch]:
    return ((epoch, number) for epoch, start, stop, _ in pieces for number in range(start, stop))


def _everything(case: Case) -> Iterator[Batch]:
    return _all_of([[epoch, 0, case.plan.batches, 0] for epoch in range(case.epochs)])


def _read(text: str) -> dict[int, dict[str, Any]]:
    return {int(number): note for number, note in json.loads(text).items()}


# ---- single nodes, for tables


def queue_of(batches: int, **limits: Any) -> NodeQueue:
    return NodeQueue(BatchPlan(batches, 1), Limits(**{"procs": 1, "epochs": 3, "max_item_updates": 4, **limits}))


def must_lease(queue: WorkQueue, worker: int = 0) -> WorkItem:
    item = queue.lease(worker)
    assert item is not None
    return item


def finish(queue: WorkQueue, items: int) -> None:
    """Lease and finish so many items."""
    for _ in range(items):
        item = must_lease(queue)
        queue.ack(0, item.id, 0)


def note_of(queue: NodeQueue, *, speed: float | None = None, weight: int = 1, period_s: float = 1.0) -> dict[str, Any]:
    return queue.note() | {"speed": speed, "weight": weight, "period_s": period_s, "dry": queue.is_dry}
