"""The work queue of one node of a cluster. It leases only what was granted to it (`shares.py` says how much), and its
counts are the whole job's: its own as they are now, the other nodes' as of the last committed round.

    granted ──► free ──► leased ──► settled ──► committed, with the note that says so
                 |  withdraw
                 '──► returned ──► another node's, once the note that says so is committed

A *note* says what this node has settled since it joined, what it still holds and what it returns. It is complete, so a
note that is thrown away with its round costs nothing. Pure bookkeeping."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from hogwild.cluster.pieces import Borders, Piece, batches_in, merged
from hogwild.scheduling.batch_plan import EpochPlan, check_cut
from hogwild.scheduling.leases import Counts, FreeRange, Kind, Ledger, Limits
from hogwild.scheduling.range_schedule import Free, LeaseChoice, LeaseSchedule
from hogwild.scheduling.work_queue import Choose, WorkQueue, _Epoch


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """The job without one node, as of the last committed round. `epoch`: the earliest one that another node or nobody
    has batches of, or the next to be opened; `is_finished`: nothing is left in the whole job, that node included."""

    epoch: int = 0
    next_epoch: int = 0
    is_finished: bool = False
    counts: Counts = field(default_factory=Counts)


class NodeQueue(WorkQueue):
    """Leases granted batches to this node's workers. `own`: counts of this node since it joined."""

    def __init__(
        self,
        plan: EpochPlan,
        limits: Limits,
        *,
        kind: Kind = Kind.TRAIN,
        ids: Iterator[int] | None = None,
        schedule: LeaseSchedule | None = None,
    ) -> None:
        super().__init__(plan, limits, kind=kind, ids=ids, schedule=schedule)
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
        excess = self._held_here - keep_batches
        found: list[Piece] = []
        for epoch in sorted(self._epochs, reverse=True):
            for unit in reversed(self._spare(epoch)):
                found += self._remove(epoch, unit, excess - batches_in(found))
            self._finish(epoch)
        self._returned += found
        return found

    @property
    def _held_here(self) -> int:
        free = sum(work.free.updates(1) for work in self._epochs.values())
        return free + sum(lease.left for lease in self._leases.values())

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
