"""The rows of a data set as leased ranges, the lowest first. Pure bookkeeping: no clock, no process, no lock.

    free ── lease ──► leased to a reader ── finish ──► read
      ▲                        │
      '──── release (it died) ─┤
                               '── condemn (it has an unusable row): ranges after that row no longer matter

Numbers begin with 1, because 0 has another meaning in a pipe. A range that is read twice, because its reader died,
holds the same rows."""

import heapq
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class RowRanges:
    """Rows `[begin, end)` in ranges of `size`."""

    begin: int
    end: int
    size: int
    rows_read: int = 0
    first_bad: int | None = None  # the lowest range with an unusable row
    _free: list[int] = field(default_factory=list)
    _hands: dict[int, set[int]] = field(default_factory=dict)
    _read: set[int] = field(default_factory=set)
    _attempts: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._free = list(range(1, -(-(self.end - self.begin) // self.size) + 1))  # sorted, so a heap

    def rows(self, number: int) -> tuple[int, int]:
        start = self.begin + (number - 1) * self.size
        return start, min(self.end, start + self.size)

    @property
    def is_finished(self) -> bool:
        """True if all ranges are read, or all before the lowest bad one."""
        held = set().union(*self._hands.values())
        return not any(self._matters(number) for number in (*self._free[:1], *held))

    @property
    def unread(self) -> list[int]:
        """Ranges not read yet, in order, leased or not."""
        last = -(-(self.end - self.begin) // self.size)
        return [number for number in range(1, last + 1) if number not in self._read]

    def hand(self, reader: int) -> int:
        """Return the number of ranges leased to `reader`."""
        return len(self._hands.get(reader, ()))

    def lease(self, reader: int) -> int | None:
        """Lease the lowest free range; return None if no free range matters."""
        if not self._free or not self._matters(self._free[0]):
            return None
        number = heapq.heappop(self._free)
        self._hands.setdefault(reader, set()).add(number)
        return number

    def finish(self, reader: int, number: int) -> None:
        self._hands[reader].remove(number)
        self._read.add(number)
        start, stop = self.rows(number)
        self.rows_read += stop - start

    def condemn(self, reader: int, number: int) -> None:
        """Mark range `number` as bad: one of its rows cannot be used."""
        self._hands[reader].remove(number)
        self.first_bad = number if self.first_bad is None else min(self.first_bad, number)

    def release(self, reader: int, charged: int | None = None) -> int:
        """Free the ranges of a dead reader. `charged`: the range it was reading. Return the deaths on that range."""
        hand = self._hands.pop(reader, set())
        for number in hand:
            heapq.heappush(self._free, number)
        if charged not in hand:
            return 0
        self._attempts[charged] += 1
        return self._attempts[charged]

    def _matters(self, number: int) -> bool:
        return self.first_bad is None or number < self.first_bad
