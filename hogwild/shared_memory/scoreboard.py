"""The shared table of progress: a row per worker that only this worker writes, a control row that only the supervisor
writes, the item table (supervisor) and the evaluation results (whoever holds the lease). One writer per word, always:
four processes doing `+= 1` on one shared word lose a fifth of the counts, so totals are sums over rows.

    row          incarnation  phase  beat_ns  intent  commit  parked  updates  …  phase_ns  …  staleness histogram
                                               |       '-- item id << 32 | skipped << 16 | batches
                                               '---------- item id << 32 | batches
    control row  command  pause  base_updates  sync_every  active  …  rollbacks  first_item

Aligned 8-byte words are read and written whole on every machine torch runs on. Decisions about a dead worker are
taken after it was reaped, when its last stores are all visible and no more can come; what is read of a live one is
only shown, or is believed once a record in a pipe says the same (docs/architecture.md, "Which word may be believed
when")."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, auto

import numpy as np

from hogwild.metrics.result_row import WORDS as RESULT_WORDS
from hogwild.scheduling.leases import Kind, LeaseProgress, WorkItem
from hogwild.scheduling.work_queue import ITEM_ROWS
from hogwild.shared_memory.region import Region

STALENESS_BINS = 128  # exact up to 126; the last bin holds everything older
ROW_WORDS = 184  # 1,472 bytes: whole cache lines, and neighbours never share one
FURTHER_LOSSES = 8  # at most, beside the loss


class Phase(IntEnum):
    """What a worker is doing. Only WORKING charges a death to the item in progress."""

    BOOTING = 0
    WAITING = auto()
    WORKING = auto()
    EVALUATING = auto()
    PARKED = auto()
    LEAVING = auto()
    COMPILING = auto()  # its kernels, or waiting for the worker that compiles them


class Command(IntEnum):
    """What the supervisor wants of all workers."""

    RUN = 0
    PAUSE = auto()
    LEAVE = auto()


class Word(IntEnum):
    """Places in a worker's row."""

    INCARNATION = 0  # the supervisor, while no process has the row
    PHASE = auto()
    BEAT_NS = auto()
    INTENT = auto()
    COMMIT = auto()
    PARKED = auto()  # number of the pause it is parked in; the record of it is what the supervisor believes
    UPDATES = auto()
    BATCHES = auto()
    SLOWEST_NS = auto()
    STALEST = auto()
    FIRST_NS = auto()  # monotonic time of the first commit
    LAST_NS = auto()
    BUSY_NS = auto()
    LOSS_SUM = auto()  # float64: sum of the batches' mean losses
    LOSSES = auto()
    NOT_FINITE = auto()  # updates whose loss or gradient was not
    PHASE_NS = (
        16  # first of seven: how long this row was in each phase, of all incarnations; the current one is not in it
    )
    PHASE_SINCE_NS = 23  # monotonic time at which it came into the phase it is in
    STALENESS = 24  # first word of the histogram
    COMPILED = STALENESS + STALENESS_BINS  # so many things this incarnation has compiled for all, and kept if it could
    LANE_RESTARTS = auto()  # batches in the middle of a lane that began from zero state
    NO_INFERENCE = auto()  # 1: evaluations must leave tensors that training can use; for the whole attempt
    SCALE = auto()  # float64: what this worker's losses are multiplied by in fp16 (`loss_scaler.py`); 0: none yet
    GOOD = auto()  # finite updates since it changed
    OVERFLOWS = auto()  # backward passes made again at half of it
    FURTHER = 160  # first of sixteen float64: sums of the further losses of a training_step, then how many each adds up


class Control(IntEnum):
    """Places in the control row."""

    COMMAND = 0
    PAUSE = auto()
    BASE_UPDATES = auto()  # updates of the attempts before this one (resume)
    SYNC_EVERY = auto()  # updates between two flushes of delta; 0: direct
    ACTIVE = auto()  # only so many train, the others stay parked; 0: all do
    FOR_NOW = auto()  # 1: another way to exchange is about to be tried, so that memory for it is worth keeping
    ROLLBACKS = auto()  # how often the run has gone back to a checkpoint: each halves the learning rate
    COMPILER = auto()  # the worker that compiles for all
    FIRST_ITEM = auto()  # items with a lower id were leased before the last rollback: nobody may work on them any more


__all__ = [
    "FURTHER_LOSSES",
    "ROW_WORDS",
    "STALENESS_BINS",
    "Command",
    "Control",
    "Phase",
    "Row",
    "Scoreboard",
    "Staleness",
    "Word",
    "pack_commit",
]

TABLE_ROWS = 2 * ITEM_ROWS  # training items, then evaluation items
ITEM_WORDS = 8


@dataclass(frozen=True, slots=True)
class Staleness:
    """Updates by other workers between reading the parameters and applying, over all updates."""

    p50: int
    p99: int
    max: int


def pack_commit(item: int, batches: int, skipped: int) -> int:
    return item << 32 | skipped << 16 | batches


def _item_row(item: int, kind: Kind) -> int:
    """Evaluation items have rows of their own: however many there are, they cannot overwrite what a parked worker has
    in hand. Within a kind the queue leases no two ids of the same row."""
    return item % ITEM_ROWS + (0 if kind is Kind.TRAIN else ITEM_ROWS)


class Scoreboard:
    """All rows, seen by anybody. Workers write through `row`, the supervisor through the methods that say so."""

    def __init__(self, region: Region, procs: int) -> None:
        self.region = region
        self.procs = procs
        self.words = region.array(np.int64, (procs + 1, ROW_WORDS))
        self.floats = region.array(np.float64, (procs + 1, ROW_WORDS))
        self.control = self.words[procs]
        offset = self.words.nbytes
        self.items = region.array(np.int64, (TABLE_ROWS, ITEM_WORDS), offset)
        self.results = region.array(np.float64, (ITEM_ROWS, RESULT_WORDS), offset + self.items.nbytes)
        # A memoryview reads a word in 0.05 us, a numpy view in 0.13: for what is looked at in every update.
        self.control_words = memoryview(self.control)
        self._update_words = [memoryview(self.words[k]) for k in range(procs)]

    @staticmethod
    def nbytes(procs: int) -> int:
        return 8 * ((procs + 1) * ROW_WORDS + TABLE_ROWS * ITEM_WORDS + ITEM_ROWS * RESULT_WORDS)

    @classmethod
    def allocate(cls, procs: int) -> "Scoreboard":
        return cls(Region.allocate("scoreboard", cls.nbytes(procs)), procs)

    # ---- items -------------------------------------------------------------------------------------------------

    def write_item(self, item: WorkItem) -> None:
        """Supervisor only, before the id is sent."""
        self.items[_item_row(item.id, item.kind), :5] = (item.id, item.kind, item.epoch, item.start, item.stop)

    def read_item(self, item_id: int) -> WorkItem:
        for row in (_item_row(item_id, kind) for kind in Kind):
            number, kind, epoch, start, stop = (int(word) for word in self.items[row, :5])
            if number == item_id:
                return WorkItem(number, Kind(kind), epoch, start, stop)
        raise AssertionError(f"item {item_id} is not in the item table: its row was used again while it was leased")

    def result(self, item_id: int) -> np.ndarray:
        """(RESULT_WORDS,) float64: what an evaluation or scoring item came to, written before it is acknowledged."""
        row: np.ndarray = self.results[item_id % ITEM_ROWS]
        return row

    # ---- totals ------------------------------------------------------------------------------------------------

    def updates(self) -> int:
        """Updates applied by everybody in the whole job, resumed attempts included."""
        return sum([row[_UPDATES] for row in self._update_words], self.control_words[_BASE_UPDATES])

    def not_finite(self) -> int:
        """Updates of this attempt that were skipped because a loss or gradient was not finite. Look at this before
        `updates`: a worker counts them after those it has applied, so none is seen without what came before it."""
        return sum([row[_NOT_FINITE] for row in self._update_words])

    def mean_loss_since(self, mark: tuple[float, int]) -> tuple[float | None, tuple[float, int]]:
        """Mean training loss per batch since `mark` (start with (0.0, 0)), and the mark for the next call."""
        total = float(self.floats[: self.procs, Word.LOSS_SUM].sum())
        losses = int(self.words[: self.procs, Word.LOSSES].sum())
        fresh = losses - mark[1]
        return ((total - mark[0]) / fresh if fresh > 0 else None), (total, losses)

    def further(self) -> np.ndarray:
        """(2, FURTHER_LOSSES) float64: sums over all workers of the further losses, and how many each adds up."""
        found: np.ndarray = self.floats[: self.procs, Word.FURTHER :][:, : 2 * FURTHER_LOSSES].sum(axis=0)
        return found.reshape(2, FURTHER_LOSSES)

    def forbids_inference(self) -> bool:
        return bool(self.words[: self.procs, Word.NO_INFERENCE].any())

    def staleness(self) -> Staleness:
        counts = self.staleness_counts().sum(axis=0)
        oldest = int(self.words[: self.procs, Word.STALEST].max(initial=0))
        if not counts.sum():
            return Staleness(0, 0, 0)
        share = np.cumsum(counts) / counts.sum()
        p50, p99 = (min(int(np.searchsorted(share, q)), oldest) for q in (0.5, 0.99))
        return Staleness(p50, p99, oldest)

    def staleness_counts(self) -> np.ndarray:
        """(procs, STALENESS_BINS) int64, a copy: updates of each worker by how many updates of others old they were."""
        counts: np.ndarray = self.words[: self.procs, Word.STALENESS : Word.STALENESS + STALENESS_BINS].copy()
        return counts

    def lane_restarts(self) -> int:
        """Batches in the middle of a lane that began from zero state."""
        return int(self.words[: self.procs, Word.LANE_RESTARTS].sum())

    def phase_s(self, now_ns: int) -> np.ndarray:
        """(procs, phases) float64: seconds of this attempt in each phase until `now_ns`, the one that is on included.
        Between two stores of a worker it is wrong by the length of one phase; it is only shown."""
        rows = self.words[: self.procs]
        spent = rows[:, Word.PHASE_NS : Word.PHASE_NS + len(Phase)].copy()
        since = rows[:, Word.PHASE_SINCE_NS]
        current = np.where(since > 0, np.maximum(now_ns - since, 0), 0)
        spent[np.arange(self.procs), rows[:, Word.PHASE]] += current
        seconds: np.ndarray = spent / 1e9
        return seconds

    def training_span_s(self) -> float:
        """From the first commit of anybody to the last, in seconds of the monotonic clock."""
        first = self.words[: self.procs, Word.FIRST_NS]
        last = self.words[: self.procs, Word.LAST_NS]
        return float(last.max() - first[first > 0].min()) / 1e9 if (first > 0).any() else 0.0

    def first_commit_s(self) -> float | None:
        first = self.words[: self.procs, Word.FIRST_NS]
        return float(first[first > 0].min()) / 1e9 if (first > 0).any() else None

    # ---- one worker's row, seen by the supervisor --------------------------------------------------------------

    def progress(self, worker: int, working: Phase = Phase.WORKING) -> LeaseProgress:
        """What the row says; `active` when it is in the phase `working`. Of a live worker it may be old the next
        moment; of a reaped one it is final."""
        phase, intent, commit = (int(self.words[worker, word]) for word in (Word.PHASE, Word.INTENT, Word.COMMIT))
        return LeaseProgress(
            item=commit >> 32,
            committed=commit & 0xFFFF,
            skipped=commit >> 16 & 0xFFFF,
            intended_item=intent >> 32,
            intended=intent & 0xFFFF,
            active=phase == working,
        )

    def renew(self, worker: int, incarnation: int) -> None:
        """Supervisor only, while no process has the row: stale words must not match a new incarnation's items."""
        self.words[worker, Word.INCARNATION] = incarnation
        for word in (Word.PHASE, Word.BEAT_NS, Word.INTENT, Word.COMMIT, Word.PARKED, Word.SLOWEST_NS, Word.COMPILED):
            self.words[worker, word] = 0
        self.words[worker, Word.PHASE_SINCE_NS] = time.monotonic_ns()  # it boots from now on

    def batches(self) -> list[int]:
        """Batches each worker has committed in this attempt."""
        return [int(word) for word in self.words[: self.procs, Word.BATCHES]]

    def set_exchange(self, sync_every: int, active: int = 0, *, for_now: bool = False) -> None:
        """Supervisor only, while everybody is parked: how workers exchange from now on (0: direct), how many of them
        train (0: all), and whether that is only being tried."""
        self.control[Control.SYNC_EVERY] = sync_every
        self.control[Control.ACTIVE] = active
        self.control[Control.FOR_NOW] = for_now

    def go_back(self, updates: int, rollbacks: int, first_item: int) -> None:
        """Supervisor only, while everybody is parked or before anybody trains: so many updates are in the flats, after
        so many rollbacks, and items below `first_item` are void."""
        self.control[Control.BASE_UPDATES] += updates - self.updates()
        self.control[Control.ROLLBACKS] = rollbacks
        self.control[Control.FIRST_ITEM] = first_item

    def say(self, command: Command, pause: int = 0) -> None:
        """Supervisor only. The pause number is written first, so that nobody parks under an old one."""
        self.control[Control.PAUSE] = pause
        self.control[Control.COMMAND] = command

    def parked(self, workers: Sequence[int], pause: int) -> bool:
        return all(int(self.words[worker, Word.PARKED]) == pause for worker in workers)


# Plain integers: an IntEnum as an index costs as much again as the store.
_BEAT, _INTENT, _COMMIT, _UPDATES, _BATCHES = (
    int(word) for word in (Word.BEAT_NS, Word.INTENT, Word.COMMIT, Word.UPDATES, Word.BATCHES)
)
_SLOWEST, _STALEST, _FIRST, _LAST, _BUSY = (
    int(word) for word in (Word.SLOWEST_NS, Word.STALEST, Word.FIRST_NS, Word.LAST_NS, Word.BUSY_NS)
)
_LOSS_SUM, _LOSSES, _STALENESS = (int(word) for word in (Word.LOSS_SUM, Word.LOSSES, Word.STALENESS))
_NOT_FINITE = int(Word.NOT_FINITE)
_PHASE, _PHASE_NS, _SINCE = (int(word) for word in (Word.PHASE, Word.PHASE_NS, Word.PHASE_SINCE_NS))
_BASE_UPDATES = int(Control.BASE_UPDATES)


class Row:
    """A worker's own row: the only place it reports to. Every method is a few plain stores."""

    def __init__(self, board: Scoreboard, worker: int) -> None:
        self.board = board
        self.worker = worker
        self.words = board.words[worker]
        self.floats = board.floats[worker]
        self._hot = memoryview(self.words)
        self._is_warm = False  # the first update imports, compiles and allocates: no measure of a stall

    def beat(self) -> None:
        self._hot[_BEAT] = time.monotonic_ns()

    def enter(self, phase: Phase) -> None:
        """Also where it is in this phase already: the time until now is added up."""
        words, now = self._hot, time.monotonic_ns()
        if words[_SINCE]:
            words[_PHASE_NS + words[_PHASE]] += now - words[_SINCE]
        words[_PHASE] = phase
        words[_SINCE] = now
        words[_BEAT] = now

    def intend(self, item: int, batches: int) -> None:
        self._hot[_INTENT] = item << 32 | batches

    def commit(self, item: int, batches: int, skipped: int) -> None:
        self._hot[_COMMIT] = pack_commit(item, batches, skipped)

    def note_update(self, began_ns: int) -> None:
        """After every update, committed or not: a sign of life, and how long it took."""
        words, now = self._hot, time.monotonic_ns()
        words[_BEAT] = now
        if self._is_warm:
            taken = now - began_ns
            words[_BUSY] += taken
            if taken > words[_SLOWEST]:
                words[_SLOWEST] = taken
        self._is_warm = True

    def count_updates(self, updates: int, staleness: int) -> None:
        """After the commit: so many updates went into the flats, each `staleness` updates of others old."""
        words = self._hot
        words[_UPDATES] += updates
        words[_STALENESS + min(staleness, STALENESS_BINS - 1)] += updates
        if staleness > words[_STALEST]:
            words[_STALEST] = staleness

    def count_not_finite(self, updates: int) -> None:
        """After `count_updates` of the same exchange."""
        self._hot[_NOT_FINITE] += updates

    def count_lane_restarts(self, batches: int) -> None:
        """After the commit."""
        self.words[Word.LANE_RESTARTS] += batches

    def count_further(self, sums: Sequence[float], counts: Sequence[int]) -> None:
        """After the commit: the further losses of the exchange, in the order of their names."""
        for first, values in ((Word.FURTHER, sums), (Word.FURTHER + FURTHER_LOSSES, counts)):
            self.floats[first : first + len(values)] += values

    def forbid_inference(self) -> bool:
        """False where this worker has done so before."""
        before, self.words[Word.NO_INFERENCE] = self.words[Word.NO_INFERENCE], 1
        return not before

    def count_batches(self, batches: int, losses: int, loss_sum: float) -> None:
        """After the commit: how many batches the exchange held, how many losses `loss_sum` adds up."""
        words, now = self._hot, time.monotonic_ns()
        words[_BATCHES] += batches
        words[_LOSSES] += losses
        self.floats[_LOSS_SUM] += loss_sum
        if not words[_FIRST]:
            words[_FIRST] = now
        words[_LAST] = now


def idle_share(phase_s: np.ndarray) -> float:
    """Of the time that workers could have trained, the share they waited for a lease; 0 if there was no such time.
    `phase_s` (procs, phases) float64, seconds, from `Scoreboard.phase_s`. Pauses, evaluations and compiling do not
    count."""
    waiting, working = (float(phase_s[:, phase].sum()) for phase in (Phase.WAITING, Phase.WORKING))
    return waiting / (waiting + working) if waiting else 0.0
