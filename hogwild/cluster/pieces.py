"""Batches on their way between nodes, as plain lists: [epoch, start, stop, attempts], as in a checkpoint.

unit     what only one node may have at a time: a row block of an epoch's grid, a lane; ranges have no such borders
No piece crosses the border of a unit: the queue of a node, or of one machine, could not use it."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise

from hogwild.scheduling.batch_plan import EpochPlan
from hogwild.scheduling.lane_schedule import steps_of

Piece = list[int]


class Borders:
    """The first batches of an epoch's units."""

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


def updates_in(pieces: Iterable[Sequence[int]], accumulate: int) -> int:
    return sum(-(-(piece[2] - piece[1]) // accumulate) for piece in pieces)
