"""The ledger over all nodes, and who gets which work. Every node has a copy, and advances it by the notes of each
committed round: the same input in the same order, so the copies are always equal. Pure: no clock, no dice.

    not opened ──► pool ──grant──► holdings of a node ──► settled     (a note says how much)
                    ^                    |
                    '── returned, or the node is lost

A node should have work for a few rounds, so that it is never idle, and at the end of the job only its share of the
rest, so that all finish together. Work beyond that comes back, and goes to whoever is faster.

    ranges    whole updates, contiguous if possible
    grids     all cells of a row block of an epoch: no two nodes ever write the same rows in it
    lanes     whole lanes: a lane's state is with one worker"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby, pairwise
from math import ceil
from typing import Any

from hogwild.errors import LedgerError
from hogwild.scheduling.batch_plan import EpochPlan, StreamPlan, check_cut, how_cut
from hogwild.scheduling.schedules import steps_of
from hogwild.scheduling.work_queue import (
    Choose,
    Counts,
    Free,
    FreeRange,
    LeaseChoice,
    Ledger,
    Limits,
    WorkQueue,
    _Epoch,
)

Piece = list[int]  # batches on their way between nodes: [epoch, start, stop, attempts], as in a checkpoint


class Borders:
    """The first batches of an epoch's units. A unit is what only one node may have at a time: a row block of an epoch's
    grid, a lane. No piece crosses its border: the queue of a node, or of one machine, could not use it."""

    def __init__(self, plan: EpochPlan) -> None:
        self.has_units = plan.grid is not None or plan.lanes is not None
        self._units = [0, plan.batches]
        if plan.lanes is not None:
            self._units = [*range(0, plan.batches + 1, steps_of(plan))]
        elif plan.grid is not None:
            self._units = sorted(set(plan.row_bounds.tolist()))
        self.unit_batches = max((stop - start for start, stop in pairwise(self._units)), default=0)

    @property
    def units(self) -> int:
        """Units of an epoch."""
        return len(self._units) - 1

    def unit_of(self, start: int) -> int:
        """Return the unit of the batch `start`."""
        return bisect_right(self._units, start) - 1

    def by_unit(self, pieces: Iterable[Sequence[int]]) -> list[Piece]:
        """Cut pieces at the borders of units."""
        found: list[Piece] = []
        for epoch, start, stop, attempts in pieces:
            while (border := self._units[bisect_right(self._units, start)]) < stop:
                found.append([epoch, start, border, attempts])
                start, attempts = border, 0
            found.append([epoch, start, stop, attempts])
        return found


def merged(pieces: Iterable[Sequence[int]]) -> list[Piece]:
    """Return the pieces in order, and neighbours as one. A piece with attempts stays apart: they are its own."""
    found: list[Piece] = []
    for epoch, start, stop, attempts in sorted(map(list, pieces)):
        last = found[-1] if found else None
        if last is not None and last[0] == epoch and last[2] == start and not last[3] and not attempts:
            last[2] = stop
        else:
            found.append([epoch, start, stop, attempts])
    return found


def batches_in(pieces: Iterable[Sequence[int]]) -> int:
    return sum(piece[2] - piece[1] for piece in pieces)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The job without one node, as of the last committed round. `epoch`: the earliest one that another node or nobody
    has batches of, or the next to be opened; `is_finished`: nothing is left in the whole job, that node included."""

    epoch: int = 0
    next_epoch: int = 0
    is_finished: bool = False
    counts: Counts = field(default_factory=Counts)


class NodeQueue(WorkQueue):
    """The work queue of one node of a cluster. It leases only what was granted to it (`Shares` says how much), and its
    counts are the whole job's: its own as they are now, the other nodes' as of the last committed round.

        granted ──► free ──► leased ──► settled ──► committed, with the note that says so
                     |  withdraw
                     '──► returned ──► another node's, once the note that says so is committed

    A *note* says what this node has settled since it joined, what it still holds and what it returns. It is complete,
    so a note that is thrown away with its round costs nothing. `own`: counts of this node since it joined."""

    def __init__(self, plan: EpochPlan, limits: Limits, **options: Any) -> None:
        super().__init__(plan, limits, **options)
        self._schedule.wait_for_grants()
        self._borders = Borders(plan)
        self._elsewhere = Elsewhere()
        self._returned: list[Piece] = []
        self._in_note = 0  # pieces of `_returned` in the last note
        self._granted: list[tuple[int, list[Piece]]] = []  # with the number of the note before
        self._noted = self._committed = 0  # numbers of notes

    # ---- the whole job

    def note_elsewhere(self, elsewhere: Elsewhere) -> None:
        """Note how far the other nodes are (`Shares.others_of`)."""
        self._elsewhere = elsewhere

    @property
    def ledger(self) -> Ledger:
        return (self._elsewhere.counts + self.own).ledger

    @property
    def updates(self) -> int:
        return self._elsewhere.counts.updates + self.own.updates

    @property
    def samples(self) -> int:
        return self._elsewhere.counts.samples + self.own.samples

    @property
    def total(self) -> int:
        return self._elsewhere.counts.finished + self.own.finished

    @property
    def epoch(self) -> int:
        return min([self._elsewhere.epoch, *self._epochs, *(piece[0] for piece in self._returned)])

    @property
    def is_finished(self) -> bool:
        """True if nothing is leased here, and nothing was left in the whole job at the last committed round."""
        return not self._leases and self._elsewhere.is_finished

    @property
    def is_dry(self) -> bool:
        """True if nothing is free or leased here."""
        return not self._epochs

    def is_begun(self, epoch: int) -> bool:
        return epoch < max(self._next_epoch, self._elsewhere.next_epoch)

    # ---- grants and returns

    def grant(self, pieces: Iterable[Sequence[int]]) -> None:
        """Make `pieces` free here. No other node has them."""
        granted = [list(piece) for piece in pieces]
        if granted:
            self._granted.append((self._noted, granted))
            self._put(granted)

    def _put(self, pieces: Iterable[Sequence[int]]) -> None:
        by_epoch: dict[int, list[FreeRange]] = {}
        for epoch, *piece in self._borders.by_unit(merged(pieces)):
            by_epoch.setdefault(epoch, []).append(FreeRange(*piece))
        for epoch, of_epoch in by_epoch.items():
            self._next_epoch = max(self._next_epoch, epoch + 1)
            if epoch in self._epochs:
                self._epochs[epoch].free.grant(of_epoch)
            else:
                self._epochs[epoch] = _Epoch(self._schedule.free_of(epoch, of_epoch))

    def withdraw(self, keep_batches: int) -> list[Piece]:
        """Return what this node holds beyond `keep_batches`: the last batches that are not leased, in whole updates,
        lanes or row blocks. The next committed note gives them to others."""
        free = sum(work.free.updates(1) for work in self._epochs.values())
        excess = free + sum(lease.left for lease in self._leases.values()) - keep_batches
        found: list[Piece] = []
        for epoch in sorted(self._epochs, reverse=True):
            for unit in reversed(self._spare(epoch)):
                found += self._remove(epoch, unit, excess - batches_in(found))
            self._finish(epoch)
        self._returned += found
        return found

    def _spare(self, epoch: int) -> list[list[FreeRange]]:
        """Return what may go to another node, in order: pieces, or all pieces of each unit of which none is leased."""
        pieces = self._epochs[epoch].free.spare(self.limits.accumulate)
        if not self._borders.has_units:
            return [[piece] for piece in pieces]
        unit_of = self._borders.unit_of
        leased = {unit_of(lease.item.start) for lease in self._leases.values() if lease.item.epoch == epoch}
        units = groupby(pieces, key=lambda piece: unit_of(piece.start))
        return [list(of_unit) for unit, of_unit in units if unit not in leased]

    def _remove(self, epoch: int, unit: Sequence[FreeRange], most: int) -> list[Piece]:
        """Remove at most so many batches of a spare unit: all of it, or whole updates from the end of a range."""
        free, step, found = self._epochs[epoch].free, self.limits.accumulate, []
        batches = sum(piece.stop - piece.start for piece in unit)
        if most <= 0 or (self._borders.has_units and batches > most):
            return []
        for piece in unit:
            start = max(piece.start, piece.start + -(-(batches - most) // step) * step)
            if start < piece.stop:
                free.withdraw(piece, start)
                found.append([epoch, start, piece.stop, piece.attempts if start == piece.start else 0])
        return found

    # ---- notes

    def note(self) -> dict[str, Any]:
        """Return the whole truth about this node, as plain numbers and lists. All workers are parked and booked."""
        self._noted += 1
        self._in_note = len(self._returned)
        rest = merged([epoch, *piece[:3]] for epoch, pieces in self._unsettled().items() for piece in pieces)
        return {
            "number": self._noted,
            "free": rest,
            "returned": [list(piece) for piece in self._returned],
            "counts": asdict(self.own),
            "held": batches_in(rest),
        }

    def committed(self) -> None:
        """Note that the last note is in a committed round: what it returned belongs to others."""
        self._committed = self._noted
        self._returned, self._in_note = self._returned[self._in_note :], 0
        self._granted = [(number, pieces) for number, pieces in self._granted if number >= self._committed]

    def back_to(self, note: Mapping[str, Any]) -> None:
        """Go back to a note, the last committed one or a later one; what was granted since stays here. All leases are
        void: their items are acknowledged in vain."""
        number, since = (
            note["number"],
            [piece for at, of_one in self._granted if at >= note["number"] for piece in of_one],
        )
        self.own = Counts(**note["counts"])
        self._returned = [] if number <= self._committed else [list(piece) for piece in note["returned"]]
        self._in_note = 0
        self._void([*note["free"], *since])

    def skip_since(self, note: Mapping[str, Any]) -> None:
        """Book all batches done since a note as skipped: their parameters are thrown away."""
        before, own = Counts(**note["counts"]), self.own
        own.skipped += own.done - before.done
        own.done, own.updates = before.done, before.updates

    def restore(self, state: Mapping[str, Any]) -> None:
        """Begin anew without any work: `Shares.restore` has the ledger of all nodes. Raises ValueError, and changes
        nothing, if the batch plan differs from the saved one."""
        check_cut(self.plan, state["plan"])
        self.own, self._returned, self._granted = Counts(), [], []
        self._in_note, self._next_epoch = 0, state["next_epoch"]
        self._void(())

    def _void(self, pieces: Iterable[Sequence[int]]) -> None:
        self._forget()
        self._put(pieces)

    # ---- leasing

    def _opened(self) -> dict[int, Free]:
        return {epoch: self._epochs[epoch].free for epoch in sorted(self._epochs)}

    def _choose_from_next(self, worker: int, choose: Choose) -> LeaseChoice | None:
        """Return None: epochs come with grants."""
        return None

    def _free_updates(self) -> int:
        return sum(work.free.updates(self.limits.accumulate) for work in self._epochs.values())

    def _updates_left(self) -> int | None:
        """Return None: what is granted is within the limit."""
        return None


HORIZON_PERIODS = 2.5  # a node gets work for so many rounds: it must last until the next one, also if that is late
KEEP = 1.5  # times its target is what a node keeps; otherwise work would go to and fro with every change of speed
DRY_GROWTH = 2  # a node without work was idle for an unknown time: it may be so many times as fast
PERIOD_FALL = 0.8  # least share of the last period: one hurried round does not make all nodes short of work
ROWS_PER_WORKER = 2  # row blocks: one in hand, one to choose from


@dataclass(slots=True)
class _Member:
    """One node as of its last note, and what was granted to it since. `consumed`: batches settled between the last two
    notes; `target`: batches that it should hold."""

    held: list[Piece] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    weight: float = 1.0
    speed: float | None = None
    consumed: int = 0
    is_dry: bool = True
    target: float = 0.0

    @property
    def batches(self) -> int:
        return batches_in(self.held)


class Shares:
    """The shares of all nodes in one job."""

    def __init__(self, plan: EpochPlan, limits: Limits) -> None:
        if isinstance(plan, StreamPlan):
            raise TypeError("an iterable has no batches that could be shared out")
        self.plan, self.limits = plan, limits
        self.next_epoch = 0
        self._borders = Borders(plan)
        self._base = Counts()  # of earlier attempts, and of nodes that are lost
        self._pool: list[Piece] = []  # in order, no piece across the border of a unit
        self._members: dict[int, _Member] = {}
        self._period_s = 0.0

    # ---- questions

    @property
    def holdings(self) -> dict[int, list[Piece]]:
        """The unsettled batches of each node."""
        return {node: self._members[node].held for node in sorted(self._members)}

    @property
    def counts(self) -> Counts:
        return sum((self._members[node].counts for node in sorted(self._members)), self._base)

    @property
    def updates(self) -> int:
        return self.counts.updates

    @property
    def samples(self) -> int:
        return self.counts.samples

    @property
    def epoch(self) -> int:
        """The earliest epoch with unsettled batches; `limits.epochs` when all are finished."""
        return min((piece[0] for piece in self._unsettled()), default=self.next_epoch)

    @property
    def is_finished(self) -> bool:
        """True if no node holds anything, and nothing more is to be granted."""
        return not any(member.held for member in self._members.values()) and not self._left

    def _unsettled(self) -> list[Piece]:
        return [*self._pool, *(piece for held in self.holdings.values() for piece in held)]

    @property
    def _open_pool(self) -> list[Piece]:
        """The pool without epochs that are no longer asked for."""
        return [piece for piece in self._pool if piece[0] < self.limits.epochs]

    @property
    def _left(self) -> int:
        """Batches that may still be settled in the whole job."""
        unopened = max(0, self.limits.epochs - self.next_epoch) * self.plan.batches
        held = sum(member.batches for member in self._members.values())
        left = held + batches_in(self._open_pool) + unopened
        budget = self._budget
        return left if budget is None else min(left, held + budget * self.limits.accumulate)

    @property
    def _budget(self) -> int | None:
        """Updates that may be granted within `max_updates`, besides those that nodes hold."""
        if self.limits.max_updates is None:
            return None
        step = self.limits.accumulate
        held = sum(-(-(piece[2] - piece[1]) // step) for member in self._members.values() for piece in member.held)
        return max(0, self.limits.max_updates - self.updates - held)

    def others_of(self, node: int) -> Elsewhere:
        """Return the job without `node`, for its queue."""
        others = [piece for number, held in self.holdings.items() if number != node for piece in held]
        counts = (self._members[number].counts for number in sorted(self._members) if number != node)
        epoch = min((piece[0] for piece in (*self._pool, *others)), default=self.next_epoch)
        return Elsewhere(epoch, self.next_epoch, self.is_finished, sum(counts, self._base))

    def keep_of(self, node: int) -> int:
        """Return how many batches `node` should keep; the rest goes back."""
        member = self._members[node]
        if all(each.speed is None for each in self._members.values()):
            return member.batches
        return max(ceil(KEEP * member.target), self._unit_batches)

    # ---- events

    def commit(self, notes: Mapping[int, Mapping[str, Any]]) -> dict[int, list[Piece]]:
        """Advance by the notes of a committed round, of all nodes; return what is granted to each. Raises LedgerError
        if a note does not account for everything its node had."""
        for node in sorted(notes):
            self._read(node, notes[node])
        longest_s = max((float(note["period_s"]) for note in notes.values()), default=0.0)
        self._period_s = max(longest_s, PERIOD_FALL * self._period_s)
        return self._deal()

    def lose(self, left: Collection[int]) -> None:
        """Give back what nodes outside `left` had; what they settled in committed rounds stays. Nothing is granted
        before the next committed round: a node may hear of two losses at once, another one of them one by one."""
        for node in sorted(self._members.keys() - set(left)):
            gone = self._members.pop(node)
            self._base += gone.counts
            self._give_back(gone.held)

    def _read(self, node: int, note: Mapping[str, Any]) -> None:
        member = self._members.setdefault(node, _Member())
        counts = Counts(**note["counts"])
        consumed = counts.finished - member.counts.finished
        had, returned, has = member.batches, batches_in(note["returned"]), batches_in(note["free"])
        if had != consumed + returned + has:
            raise LedgerError(
                f"node {node} had {had} batches; it has now settled {consumed}, returned {returned} and kept {has}, "
                f"which are {consumed + returned + has}. This is a bug in hogwild: batches would be lost or trained "
                "twice. Resume from the last checkpoint, and report it with events.jsonl of all nodes"
            )
        member.held, member.counts, member.consumed = [list(piece) for piece in note["free"]], counts, consumed
        member.weight, member.speed = max(1.0, float(note["weight"])), note["speed"]
        member.is_dry = bool(note["dry"])
        self._give_back(note["returned"])

    def _give_back(self, pieces: list[Piece]) -> None:
        self._pool = self._borders.by_unit(merged([*self._pool, *pieces]))

    # ---- shares

    def _deal(self) -> dict[int, list[Piece]]:
        """Grant to those who have too little, the neediest first."""
        if not self._members:
            return {}
        if not any(member.held for member in self._members.values()) and not self._speeds():
            return self._split()
        self._set_targets()
        members = self._members
        grants = {}
        for node in sorted(members, key=lambda node: (members[node].batches / (members[node].target or 1.0), node)):
            need = members[node].target - members[node].batches
            if found := self._grant(node, need):
                grants[node] = found
        return grants

    def _speeds(self) -> dict[int, float]:
        """Return the speed of each node in batches per second; unknown ones are as fast as others of their weight. {}
        if no speed is known."""
        members = [self._members[node] for node in sorted(self._members)]
        known = [(member.speed, member.weight) for member in members if member.speed]
        if not known:
            return {}
        per_weight = sum(speed for speed, _ in known) / sum(weight for _, weight in known)
        speeds = {}
        for node in sorted(self._members):
            member = self._members[node]
            speeds[node] = member.speed or per_weight * member.weight
            if member.is_dry and self._period_s > 0:
                speeds[node] = max(speeds[node], DRY_GROWTH * member.consumed / self._period_s)
        return speeds

    def _set_targets(self) -> None:
        speeds, left = self._speeds(), self._left
        for node in sorted(self._members):
            member = self._members[node]
            units = member.weight * (ROWS_PER_WORKER if self.plan.grid is not None else 1)
            # With so many batches all workers of the node have something to do.
            least = ceil(units * self.plan.batches / self._borders.units) if self._borders.has_units else 1.0
            if not speeds:  # nobody has settled anything since the start, or this is the first note
                wanted = max(least, DRY_GROWTH * member.consumed) if member.is_dry else 0.0
                member.target = max(float(member.batches), min(wanted, float(left)))
                continue
            wanted = max(speeds[node] * HORIZON_PERIODS * self._period_s, least)
            member.target = min(wanted, left * speeds[node] / sum(speeds.values()))

    def _split(self) -> dict[int, list[Piece]]:
        """Share out the first epoch whole, in proportion to weight: nobody's speed is known."""
        if self._left and not self._open_pool:
            self._open()
        pool = self._open_pool
        batches = batches_in(piece for piece in pool if piece[0] == pool[0][0])
        if self._budget is not None:
            batches = min(batches, self._budget * self.limits.accumulate)
        nodes, grants = sorted(self._members), {}
        weights = sum(self._members[node].weight for node in nodes)
        for node in nodes:
            weight = self._members[node].weight
            rounding = self._unit_batches / 2 if node != nodes[-1] else 0
            grants[node] = self._grant(node, batches * weight / weights - rounding)
            batches, weights = batches - batches_in(grants[node]), weights - weight
        return {node: pieces for node, pieces in grants.items() if pieces}

    # ---- taking from the pool

    @property
    def _unit_batches(self) -> int:
        """Return the batches of a (large) unit."""
        return self._borders.unit_batches if self._borders.has_units else self.limits.accumulate

    def _grant(self, node: int, need: float) -> list[Piece]:
        """Move at least `need` batches from the pool to `node`, in whole units, as far as there are any."""
        found: list[Piece] = []
        while (missing := ceil(need - batches_in(found))) > 0:
            budget = self._budget
            if budget == 0:
                break
            unit = self._next(node, missing)
            if not unit:
                if self._open():
                    continue
                break
            found += self._take(node, unit, missing, budget)
        return merged(found)

    def _open(self) -> bool:
        """Open the next epoch; return False if there is none."""
        if self.next_epoch >= self.limits.epochs:
            return False
        self._give_back([[self.next_epoch, 0, self.plan.batches, 0]])
        self.next_epoch += 1
        return True

    def _next(self, node: int, missing: int) -> list[Piece]:
        """Return what comes next from the earliest epoch: one piece, long enough if there is such a one; or all pieces
        of a unit of which no other node has any. [] if there is nothing for `node`."""
        pool = self._open_pool
        if not self._borders.has_units:
            of_epoch = [piece for piece in pool if piece[0] == pool[0][0]]
            return [next((piece for piece in of_epoch if piece[2] - piece[1] >= missing), of_epoch[0])] if pool else []
        held = (piece for number, pieces in self.holdings.items() if number != node for piece in pieces)
        others = {self._unit_of(piece) for piece in self._borders.by_unit(held)}
        first = next((unit for unit in map(self._unit_of, pool) if unit not in others), None)
        return [piece for piece in pool if self._unit_of(piece) == first]

    def _unit_of(self, piece: Piece) -> tuple[int, int]:
        return piece[0], self._borders.unit_of(piece[1])

    def _take(self, node: int, unit: list[Piece], missing: int, budget: int | None) -> list[Piece]:
        """Move a unit to `node`; of a range, and at the end of a limit, only whole updates from its start."""
        step, found = self.limits.accumulate, []
        most = batches_in(unit) if self._borders.has_units else ceil(missing / step) * step
        most = most if budget is None else min(most, budget * step)
        for piece in unit:
            epoch, start, stop, attempts = piece
            cut = min(stop, start + most)
            if cut == start:
                break
            self._pool.remove(piece)
            if cut < stop:
                self._give_back([[epoch, cut, stop, 0]])
            found.append([epoch, start, cut, attempts])
            most -= cut - start
        self._members[node].held += found
        return found

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        """Return the committed ledger of all nodes, in the form of `WorkQueue.state`."""
        free = self._borders.by_unit(merged(self._unsettled()))
        of_epoch = {epoch: 0 for epoch, *_ in free}
        for epoch, start, stop, _ in free:
            of_epoch[epoch] += stop - start
        return {
            "plan": how_cut(self.plan),
            "next_epoch": self.next_epoch,
            "free": free,
            "ledger": asdict(self.counts.ledger),
            "updates": self.updates,
            "samples": self.samples,
            "settled": [[epoch, self.plan.batches - batches] for epoch, batches in of_epoch.items()],
            "finished_batches": (self.next_epoch - len(of_epoch)) * self.plan.batches,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the ledger of all nodes, or of one machine; every node joins anew. Raises ValueError, and changes
        nothing, if the batch plan differs from the saved one."""
        check_cut(self.plan, state["plan"])
        self.next_epoch, self._members, self._period_s = state["next_epoch"], {}, 0.0
        self._base = Counts(**state["ledger"], updates=state["updates"], samples=state["samples"])
        self._pool = self._borders.by_unit(merged(piece[:4] for piece in state["free"]))
