"""The schedule of streamed data: it assigns batches to slots and filled batches to workers. Pure: no process, no
memory, no clock.

    todo ──request──► loading ──filled──► filled ──choose, take──► leased ──settle──► (gone, its slot is free)
      ▲                  │ lost: again, into the same slot   ▲          │ put: the data is still there
      └──────────────────┘                                   └──────────┘

A batch has its slot from the request until it is settled. Requests are made in order of epoch and number: what is
needed first is requested first, and a ring that holds one exchange for every worker cannot deadlock.

The batches of a *shard* have places 0, 1, 2, …; batch number = shard + shards * place. Map-style data is one shard with
a known end, which any loader may read. For an iterable, loader k reads shard k in order of place, and its end is known
when a request comes back empty. Numbers beyond an end do not exist."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hogwild.scheduling.batch_plan import OPEN, Bounds, EpochPlan, StreamPlan
from hogwild.scheduling.work_queue import (
    EPOCHS_AHEAD,
    LEASES_IN_HAND,
    MAX_ITEM_BATCHES,
    Free,
    FreeRange,
    Lease,
    LeaseChoice,
    LeaseSchedule,
    Limits,
)


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """Batch number `batch` of `epoch`, the one at `place` of `shard`, goes into `slot`."""

    slot: int
    epoch: int
    batch: int
    shard: int
    place: int


@dataclass(slots=True)
class Shard:
    """The unrequested places of one shard in one epoch: ranges, in order. `end`: number of places; None if unknown."""

    todo: deque[tuple[int, int]]
    end: int | None = None
    last: int = -1  # the place requested last

    def pop(self) -> int:
        """Return the place after the last one, else the first. A cluster's grants come in any order: of many ranges
        that are half filled, none would be long enough to lease."""
        at = next((k for k, (start, _) in enumerate(self.todo) if start == self.last + 1), 0)
        start, stop = self.todo[at]
        del self.todo[at]
        if start + 1 < stop:
            self.todo.insert(at, (start + 1, stop))
        self.last = start
        return start

    def add(self, start: int, stop: int) -> None:
        """Add places to request. Call it in order of `start`."""
        if self.todo and start <= self.todo[-1][1]:
            start, last = self.todo.pop()
            stop = max(last, stop)
        if start < stop:
            self.todo.append((start, stop))

    def insert(self, start: int, stop: int) -> None:
        """Add places anywhere."""
        ranges = sorted([*self.todo, (start, stop)])
        self.todo.clear()
        for each in ranges:
            self.add(*each)

    def cut(self, first: int, end: int) -> None:
        """Request nothing outside [first, end)."""
        cut = ((max(start, first), min(stop, end)) for start, stop in self.todo)
        self.todo = deque((start, stop) for start, stop in cut if start < stop)

    def drop(self, first: int, end: int) -> None:
        """Do not request the places [first, end)."""
        below = [(start, min(stop, first)) for start, stop in self.todo]
        above = [(max(start, end), stop) for start, stop in self.todo]
        self.todo = deque((start, stop) for start, stop in (*below, *above) if start < stop)


class StreamEpoch(Free):
    """The batches of one epoch: a `Free`. `filled`: numbers of filled batches that are not leased."""

    def __init__(self, epoch: int, shards: int, pieces: Iterable[FreeRange], end: int | None) -> None:
        """`pieces`: the free batches, perhaps up to `OPEN`; `end`: the number of batches, if known (one shard)."""
        self.epoch = epoch
        self.shards = [Shard(deque(), end) for _ in range(shards)]
        self.slots: dict[int, int] = {}  # batch -> slot
        self.rows: dict[int, int] = {}  # filled batch -> rows, leased or not
        self.loading: dict[int, SlotRequest] = {}
        self.filled: set[int] = set()
        self.attempts: dict[int, int] = {}
        self.freed_slots: list[int] = []
        for piece in sorted(pieces, key=lambda piece: piece.start):
            if piece.attempts:
                self.attempts[piece.start] = piece.attempts
            for number, shard in enumerate(self.shards):
                if piece.step == 1 or piece.start % shards == number:
                    shard.add(*(-(-(at - number) // shards) for at in (piece.start, piece.stop)))

    # ---- as the queue sees it

    def __iter__(self) -> Iterator[FreeRange]:
        """Iterate over everything that is neither leased nor settled, in order; the first batch of a range carries its
        attempts. With several shards each has its own ranges: one may be far ahead of another."""
        across = len(self.shards)
        ranges = [(number, number + 1, 1) for number in (*self.filled, *self.loading)]
        for number, shard in enumerate(self.shards):
            for start, stop in shard.todo:
                places = (n // across for n in self.attempts if n % across == number)
                cuts = sorted(place for place in places if start < place < stop)
                pieces = zip((start, *cuts), (*cuts, stop), strict=True)
                ranges += [(number + across * a, number + across * (b - 1) + 1, across) for a, b in pieces]
        found: list[FreeRange] = []
        for start, stop, step in sorted(ranges):
            last = found[-1] if found else None
            if last is not None and (last.stop, last.step, step) == (start, 1, 1) and start not in self.attempts:
                last.stop = stop
            else:
                found.append(FreeRange(start, stop, self.attempts.get(start, 0), step))
        return iter(found)

    @property
    def has_free(self) -> bool:
        return bool(self.filled or self.loading or any(shard.todo for shard in self.shards))

    def updates(self, accumulate: int) -> int:
        left = sum(stop - start for shard in self.shards for start, stop in shard.todo)
        return -(-(left + len(self.filled) + len(self.loading)) // accumulate)

    def samples_in(self, start: int, stop: int) -> int:
        return sum(self.rows[number] for number in range(start, stop))

    def lease(self, piece: FreeRange, stop: int) -> None:
        for number in range(piece.start, stop):
            self.filled.discard(number)
            self.attempts.pop(number, None)

    def put(self, pieces: Iterable[FreeRange]) -> None:
        for piece in pieces:
            self.filled.update(range(piece.start, piece.stop))
            if piece.attempts:
                self.attempts[piece.start] = piece.attempts

    def mark_finished(self, start: int, stop: int) -> None:
        for number in range(start, stop):
            del self.rows[number]
            self.freed_slots.append(self.slots.pop(number))

    def freed(self) -> list[int]:
        """Return the slots of batches settled since the last call."""
        freed, self.freed_slots = self.freed_slots, []
        return freed

    # ---- grants of a cluster: one shard

    def grant(self, pieces: Iterable[FreeRange]) -> None:
        for piece in pieces:
            self.shards[0].insert(piece.start, piece.stop)
            if piece.attempts:
                self.attempts[piece.start] = piece.attempts

    def spare(self, accumulate: int) -> list[FreeRange]:
        """Return the batches not requested yet, without the rest of an update that was."""
        found = []
        for start, stop in self.shards[0].todo:
            first = -(-start // accumulate) * accumulate
            cuts = sorted({number for number in self.attempts if first <= number < stop} | {first, stop})
            found += [FreeRange(a, b, self.attempts.get(a, 0)) for a, b in pairwise(cuts) if first < stop]
        return found

    def withdraw(self, piece: FreeRange, start: int) -> None:
        self.shards[0].drop(start, piece.stop)
        self.attempts.pop(start, None)

    # ---- what may be leased

    def run(self, least: int, most: int, update: int, *, in_order: bool) -> FreeRange | None:
        """Return the first run of filled batches that a worker may have: whole updates, at least `least` batches unless
        no more will follow, at most `most`."""
        for start in sorted(self.filled):
            before = start - 1
            if before in self.filled and start not in self.attempts:
                continue  # belongs to the run that begins earlier
            if in_order:
                across = len(self.shards)
                firsts = [shard.todo[0][0] * across + k for k, shard in enumerate(self.shards) if shard.todo]
                if min((*firsts, *self.loading), default=start) < start:
                    return None
            if start % update and self.is_coming(before):
                continue  # its update is not complete yet
            stop = start + 1
            while stop in self.filled and stop not in self.attempts and stop - start < most:
                stop += 1
            rest = (stop - start) % update
            if stop - start >= least or not self.is_coming(stop):
                if rest and self.is_coming(stop) and stop - rest > start:
                    stop -= rest
                elif rest and (self.is_coming(stop) or stop in self.filled):
                    continue
                return FreeRange(start, stop, self.attempts.get(start, 0))
        return None

    def is_coming(self, number: int) -> bool:
        """Return whether batch `number` is requested or will be."""
        if number in self.loading:
            return True
        shard, place = number % len(self.shards), number // len(self.shards)
        return any(start <= place < stop for start, stop in self.shards[shard].todo)


__all__ = ["SlotRequest", "StreamEpoch", "StreamSchedule", "fewest_slots", "too_few_slots"]

REQUESTS_IN_HAND = 2  # per loader: the next request is there when one is done
# Or up to that part of the slots, if only this loader can read what is in them, and fills quickly; but few, as a loader
# that waits for data cannot begin anew before they are filled.
SHARE_IN_HAND, MOST_IN_HAND = 4, 16


def fewest_slots(procs: int, loaders: int, batches: int) -> int:
    """Return the slots that hold the leases of each worker, exchanges of `batches`, and what each loader fills."""
    return max(1, procs) * LEASES_IN_HAND * batches + loaders * REQUESTS_IN_HAND


def too_few_slots(slots: int, least: int, procs: int, loaders: int, batches: int) -> str:
    return (
        f"must be >= {least} for {max(1, procs)} workers, {loaders} loaders and exchanges of {batches} batches, got "
        f"{slots}"
    )


@dataclass(slots=True)
class StreamSchedule(LeaseSchedule):
    """The schedule of a streamed job. `slots`: slots of the ring; `update`: batches applied at once; `in_order`: the
    only worker gets batches in order of their numbers, so that the result does not depend on loader speed.

    `note_newest(shard, slot)` is called before the slot with the newest batch of a shard is reused: the slot holds the
    position of the shard's iterator. `bounds(epoch)`: of an epoch that a sampler draws; None until it is drawn."""

    plan: EpochPlan
    slots: int
    loaders: int
    update: int
    epochs: int
    in_order: bool = False
    note_newest: Callable[[int, int], None] = lambda shard, slot: None
    bounds: Callable[[int], Bounds | None] | None = None
    _free_slots: deque[int] = field(init=False)
    _epochs: dict[int, StreamEpoch] = field(default_factory=dict)
    _again: list[SlotRequest] = field(default_factory=list)  # requests of dead loaders, lowest first
    _in_hand: dict[int, list[SlotRequest]] = field(default_factory=dict)  # by loader
    _most_requests: dict[int, int] = field(default_factory=dict)  # by loader, once it has filled some
    _has_filled: set[int] = field(default_factory=set)  # loaders, since they were asked last
    _newest: dict[int, tuple[int, int, int]] = field(default_factory=dict)  # by shard: epoch, place, slot
    _void: set[tuple[int, int]] = field(default_factory=set)  # (loader, slot): the answer is no longer wanted
    _next_epoch: int = 0
    _least: int = 1  # batches of an item, as of the last `updates`
    _most: int = 1
    refused: dict[tuple[int, int], int] = field(default_factory=dict)  # (epoch, batch): attempts to read it
    empty_epoch: int | None = None  # an epoch without any batch
    _opens: bool = True  # False: a cluster's queue grants all batches

    def __post_init__(self) -> None:
        self._free_slots = deque(range(self.slots))

    @property
    def shards(self) -> int:
        return self.plan.shards if isinstance(self.plan, StreamPlan) else 1

    @property
    def is_sharded(self) -> bool:
        """True if each shard is read by one loader, in order."""
        return isinstance(self.plan, StreamPlan)

    # ---- called by the queue (`LeaseSchedule`)

    def free_of(self, epoch: int, pieces: Iterable[FreeRange] | None = None) -> StreamEpoch:
        if pieces is None and epoch in self._epochs:
            return self._epochs[epoch]
        if pieces is None:
            batches = self._batches_in(epoch)
            assert batches is not None, "opened before it was drawn"
            pieces = [FreeRange(0, batches)]
        made = StreamEpoch(epoch, self.shards, pieces, None if self.is_sharded else self._batches_in(epoch))
        self._epochs[epoch] = made
        self._next_epoch = max(self._next_epoch, epoch + 1)
        return made

    def may_open(self, epoch: int, earliest: int, end: int, limits: Limits) -> bool:
        return LeaseSchedule.may_open(self, epoch, earliest, end, limits) and self._batches_in(epoch) is not None

    def _batches_in(self, epoch: int) -> int | None:
        """Return the number of batches of an epoch; None if its sampler has yet to draw it."""
        if self.bounds is None:
            return self.plan.batches
        bounds = self.bounds(epoch)
        return None if bounds is None else len(bounds) - 1

    def wait_for_grants(self) -> None:
        """Open no epoch. Batches are then granted in any order, so a worker cannot insist on theirs."""
        self._opens = self.in_order = False

    def choose(self, worker: int, epochs: Mapping[int, Free], leases: Collection[Lease]) -> LeaseChoice | None:
        found = self._choose(epochs, self._least)
        if found is not None or leases or self._opens or self._free_slots or self._void:
            return found
        if any(epoch.loading or epoch.freed_slots for epoch in self._epochs.values()):
            return None
        return self._choose(epochs, self.update)  # no slot will become free or be filled before something is leased

    def _choose(self, epochs: Mapping[int, Free], least: int) -> LeaseChoice | None:
        for epoch in epochs:
            if self.in_order and any(other.has_free for number, other in self._epochs.items() if number < epoch):
                return None
            piece = self._epochs[epoch].run(least, self._most, self.update, in_order=self.in_order)
            if piece is not None:
                return LeaseChoice(epoch, piece)
        return None

    def updates(self, horizon: int, limits: Limits) -> int:
        room = (self.slots - REQUESTS_IN_HAND * self.loaders) // (LEASES_IN_HAND * limits.procs)
        # An exchange is never longer than the ring's share per worker.
        self._least = min(self.update * limits.sync_every, max(self.update, room // self.update * self.update))
        share = self.slots // (2 * LEASES_IN_HAND * limits.procs)
        self._most = min(MAX_ITEM_BATCHES, max(self._least, share // self.update * self.update))
        return max(1, self._most // self.update)

    def most_in_hand(self, horizon: int, limits: Limits) -> int:
        self.updates(horizon, limits)
        return LeaseSchedule.most_in_hand(self, horizon, limits)

    # ---- called for loaders

    def request(self, loader: int) -> SlotRequest | None:
        """Return the next request for `loader`; None if it has enough requests, no slot is free, or nothing is left."""
        for each in self._epochs.values():
            self._free_slots.extend(each.freed())
        if loader in self._has_filled:
            self._has_filled.discard(loader)
            self._adapt(loader)
        if len(self._in_hand.get(loader, ())) >= self._most_requests.get(loader, REQUESTS_IN_HAND):
            return None
        for request in self._again:
            if not self.is_sharded or request.shard == loader:
                self._again.remove(request)
                return self._hand(loader, request)
        if not self._free_slots:
            return None
        if (found := self._next(loader)) is None:
            return None
        epoch, shard = found
        place = epoch.shards[shard].pop()
        request = SlotRequest(self._free_slots.popleft(), epoch.epoch, shard + self.shards * place, shard, place)
        for of_shard, (_, _, newest) in self._newest.items():
            if newest == request.slot:
                self.note_newest(of_shard, newest)
                self._newest[of_shard] = (*self._newest[of_shard][:2], -1)
        epoch.slots[request.batch] = request.slot
        epoch.loading[request.batch] = request
        return self._hand(loader, request)

    def _hand(self, loader: int, request: SlotRequest) -> SlotRequest:
        self._in_hand.setdefault(loader, []).append(request)
        return request

    def _next(self, loader: int) -> tuple[StreamEpoch, int] | None:
        shard = loader if self.is_sharded else 0
        if self.is_sharded:
            # Each has a fixed share of the ring: otherwise a fast one could fill it while workers wait for another.
            held = sum(batch % self.shards == shard for epoch in self._epochs.values() for batch in epoch.slots)
            if shard >= self.shards or held >= self.slots // self.shards:
                return None
        midway = []  # epochs of which the place after the last one is to be requested
        for number, epoch in self._epochs.items() if not self._opens else ():
            of_shard = epoch.shards[shard]
            midway += [number] if any(start == of_shard.last + 1 for start, _ in of_shard.todo) else []
        for number in (*midway, *sorted(self._epochs)):
            if self._epochs[number].shards[shard].todo:
                return (self._epochs[number], shard) if self._batches_in(number) is not None else None
        following = self._next_epoch
        is_next = self._opens and following <= min(self._epochs, default=following) + EPOCHS_AHEAD
        if is_next and following < self.epochs and self._batches_in(following) is not None:
            return self.free_of(following), shard
        return None

    def drop_epoch(self, epoch: int) -> None:
        """Forget an epoch that the queue has settled completely."""
        self._free_slots.extend(self._epochs.pop(epoch).freed())

    def restart(self, next_epoch: int) -> None:
        """Go back to a checkpoint: every batch is requested anew, except epochs before `next_epoch` that the queue does
        not name. Pending requests are void; their slots become free when the loaders have answered."""
        held = {request.slot for requests in self._in_hand.values() for request in requests}
        self._void |= {(loader, r.slot) for loader, requests in self._in_hand.items() for r in requests}
        self._free_slots = deque(slot for slot in range(self.slots) if slot not in held | {s for _, s in self._void})
        self._in_hand, self._again, self._epochs, self._newest, self.refused = {}, [], {}, {}, {}
        self._next_epoch, self.empty_epoch = next_epoch, None

    # ---- answers of loaders

    def filled(self, loader: int, slot: int, rows: int) -> SlotRequest | None:
        """Mark the request in `slot` as filled with `rows` rows and return it; None if `loader` has none there."""
        request = self._answered(loader, slot)
        if request is None:
            return None
        epoch = self._epochs[request.epoch]
        del epoch.loading[request.batch]
        epoch.filled.add(request.batch)
        epoch.rows[request.batch] = rows
        self._newest[request.shard] = (request.epoch, request.place, slot)
        self.refused.pop((request.epoch, request.batch), None)
        if self.is_sharded:
            self._has_filled.add(loader)
        return request

    @property
    def most_requests(self) -> int:
        """The largest number of requests that a loader may have in hand."""
        many = min(MOST_IN_HAND, self.slots // self.shards // SHARE_IN_HAND) if self.is_sharded else 0
        return max(REQUESTS_IN_HAND, many)

    def _adapt(self, loader: int) -> None:
        """Have the loader hold twice what it fills from one turn to the next."""
        left, most = len(self._in_hand.get(loader, ())), self._most_requests.get(loader, REQUESTS_IN_HAND)
        if not left:
            most = min(2 * most, self.most_requests)
        elif 2 * left > most:
            most -= 1
        self._most_requests[loader] = max(REQUESTS_IN_HAND, most)

    def ended(self, loader: int, slot: int) -> SlotRequest | None:
        """Note that the shard ended before the requested place, and return the request; None if there is none."""
        request = self._answered(loader, slot)
        if request is None:
            return None
        self._drop(request)
        epoch = self._epochs[request.epoch]
        shard = epoch.shards[request.shard]
        shard.end = request.place
        shard.cut(0, shard.end)
        for other in list(epoch.loading.values()):
            if other.shard == request.shard and other.place > request.place:
                self._pop_slot(epoch, other.batch)
        if all(each.end == 0 for each in epoch.shards):
            self.empty_epoch = request.epoch
        return request

    def failed(self, loader: int, slot: int) -> tuple[SlotRequest, int] | None:
        """Queue an unreadable batch again, unless the caller calls `give_up`. Return the request and its failures."""
        request = self._answered(loader, slot)
        if request is None:
            return None
        self._queue_again([request])
        return request, self._charge(request)

    def lost(self, loader: int, slot: int | None) -> tuple[SlotRequest, int] | None:
        """Queue the requests of a dead `loader` again, into the same slots. `slot`: the one it was filling, whose batch
        is charged with the death. Return (request, how often it was charged)."""
        requests = self._in_hand.pop(loader, [])
        for void in [void for void in self._void if void[0] == loader]:
            self._give_back(*void)
        self._queue_again(requests)
        current = next((request for request in requests if request.slot == slot), None)
        return None if current is None else (current, self._charge(current))

    def _queue_again(self, requests: Iterable[SlotRequest]) -> None:
        self._again = sorted([*self._again, *requests], key=lambda each: (each.epoch, each.batch))

    def _charge(self, request: SlotRequest) -> int:
        key = (request.epoch, request.batch)
        self.refused[key] = self.refused.get(key, 0) + 1
        return self.refused[key]

    def give_up(self, request: SlotRequest) -> list[tuple[int, int]]:
        """Drop an unreadable batch with the whole update it belongs to. Return the ranges [start, stop) of the dropped
        batches, which the queue must book as quarantined."""
        epoch, step = self._epochs[request.epoch], self.update
        first = request.batch // step * step
        whole = range(first, min(first + step, self._batches_in(request.epoch) or OPEN))
        gone = [number for number in whole if number in epoch.filled or epoch.is_coming(number)]
        for number in gone:
            self.refused.pop((request.epoch, number), None)
            epoch.attempts.pop(number, None)
            self._pop_slot(epoch, number)
        return [(number, number + 1) for number in gone]

    def _pop_slot(self, epoch: StreamEpoch, number: int) -> None:
        request = epoch.loading.get(number)
        if number in epoch.filled:
            epoch.filled.discard(number)
            epoch.mark_finished(number, number + 1)
        elif request is not None:
            if request in self._again:
                self._again.remove(request)
                self._drop(request)
                return
            loader = next(one for one, requests in self._in_hand.items() if request in requests)
            self._in_hand[loader].remove(request)
            self._void.add((loader, request.slot))  # the slot is free once the loader has answered
            epoch.loading.pop(number)
            epoch.slots.pop(number)
        else:
            place = number // self.shards
            epoch.shards[number % self.shards].drop(place, place + 1)

    @property
    def filled_slots(self) -> int:
        """Slots that hold a batch, leased or not."""
        return sum(len(epoch.rows) for epoch in self._epochs.values())

    @property
    def is_full(self) -> bool:
        """True if nothing can be requested until a batch is settled, while some loader is idle."""
        busy = sum(bool(requests) for requests in self._in_hand.values())
        return not self._free_slots and not self._again and busy < (self.shards if self.is_sharded else self.loaders)

    def has_in_hand(self, loader: int) -> bool:
        """Return whether `loader` has a pending request, void or not."""
        return bool(self._in_hand.get(loader)) or any(void[0] == loader for void in self._void)

    def _answered(self, loader: int, slot: int) -> SlotRequest | None:
        if (loader, slot) in self._void:
            self._give_back(loader, slot)
            return None
        requests = self._in_hand.get(loader, [])
        request = next((each for each in requests if each.slot == slot), None)
        if request is not None:
            requests.remove(request)
        return request

    def _give_back(self, loader: int, slot: int) -> None:
        self._void.discard((loader, slot))
        self._free_slots.append(slot)

    def _drop(self, request: SlotRequest) -> None:
        epoch = self._epochs[request.epoch]
        epoch.loading.pop(request.batch, None)
        epoch.slots.pop(request.batch, None)
        self._free_slots.append(request.slot)

    # ---- positions of iterables

    @property
    def open_epochs(self) -> Collection[int]:
        return self._epochs.keys()

    def newest(self, shard: int) -> tuple[int, int, int] | None:
        """Return (epoch, place, slot) of the newest batch of `shard` filled in this attempt; slot -1: reused, and the
        position was noted."""
        return self._newest.get(shard)

    def positions(self) -> dict[int, list[dict[str, Any]]]:
        """Return, per epoch and shard: its end if known, its first unsettled place, and the slot that holds that place,
        if any. For a checkpoint, when every worker is parked. Empty without shards: the ledger says all."""
        found: dict[int, list[dict[str, Any]]] = {}
        for number, epoch in self._epochs.items() if self.is_sharded else ():
            rows = []
            for k, shard in enumerate(epoch.shards):
                held = [batch // self.shards for batch in epoch.slots if batch % self.shards == k]
                places = [*held, *([shard.todo[0][0]] if shard.todo else [])]
                first = min(places, default=shard.end or 0)
                batch = k + self.shards * first
                slot = epoch.slots.get(batch) if batch in epoch.rows else None
                rows.append({"end": shard.end, "place": first, "slot": slot})
            found[number] = rows
        return found

    def reopen(self, epoch: int, known: Iterable[tuple[int | None, int]]) -> None:
        """Restore the knowledge of an earlier attempt about an epoch: per shard its end, if known, and a place before
        which everything is settled. Does nothing for a settled epoch, nor without shards."""
        if not self.is_sharded or (epoch not in self._epochs and epoch < self._next_epoch):
            return
        for shard, (end, first) in zip(self.free_of(epoch).shards, known, strict=True):
            shard.cut(first, OPEN if end is None else end)
            shard.end = end
