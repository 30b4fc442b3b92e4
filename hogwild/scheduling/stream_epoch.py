"""The batches of one epoch of streamed data, by shard: requested, filled, leased (picture: `stream_schedule.py`).
Pure: no process, no memory, no clock."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from hogwild.scheduling.leases import FreeRange


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

    @property
    def is_midway(self) -> bool:
        """True if the place after the last one is to be requested."""
        return any(start == self.last + 1 for start, _ in self.todo)

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


class StreamEpoch:
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
        self._freed: list[int] = []  # slots
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
            self._freed.append(self.slots.pop(number))

    @property
    def has_freed(self) -> bool:
        return bool(self._freed)

    def freed(self) -> list[int]:
        """Return the slots of batches settled since the last call."""
        freed, self._freed = self._freed, []
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
            if in_order and self._is_coming_before(start):
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

    def _is_coming_before(self, number: int) -> bool:
        across = len(self.shards)
        firsts = [shard.todo[0][0] * across + k for k, shard in enumerate(self.shards) if shard.todo]
        return min((*firsts, *self.loading), default=number) < number
