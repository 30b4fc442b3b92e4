"""The shared table of progress: a row per worker that only this worker writes, a control row that only the supervisor
writes, the item table (supervisor) and the evaluation results (the lease holder). Each word has exactly one writer:
four processes doing `+= 1` on one shared word lose a fifth of the counts, so totals are sums over rows.

    row          incarnation  phase  beat_ns  intent  commit  parked  updates  …  phase_ns  …  staleness histogram
                                               |       '-- item id << 32 | skipped << 16 | batches
                                               '---------- item id << 32 | batches
    control row  command  pause  base_updates  sync_every  …  rollbacks  first_item

Aligned 8-byte words are read and written atomically on every machine torch runs on. Decisions about a dead worker are
made after it was reaped: its last stores are then visible and no more can come. Values of a live worker are only
displayed, or are trusted after a record in a pipe confirms them.

On aarch64 another process may see two stores in the other order, and Python has no barrier. So no decision follows from
a word alone that was written after something else. One of these orders them: a record in a pipe or socket (the kernel's
lock releases and acquires; transitive), a death (after the reap all stores are visible), a branch (a store that depends
on a branch comes after the reads that decided it).

    word or region                                        reader            why this holds
    item table row; slot table row, slot                  worker, loader    read after the record with the id
    PARKED, COMMAND = RUN, ROLLBACKS, FIRST_ITEM,         both              the record (pause, 0) in a pipe, not the
      SYNC_EVERY                                                            word, is trusted
    COMMAND = PAUSE, LEAVE                                worker            not needed: who parks under an old number
                                                                            says so, and again
    intent, commit                                        supervisor        read after the death
    commit of a live worker                               supervisor        a branch: commit follows the finite check
    UPDATES, BATCHES, LOSS_SUM, PHASE_NS, histogram       supervisor        figures; exact in a pause
    NOT_FINITE before UPDATES                             supervisor        at worst a pause for nothing
    LOSSES, buffers and their headers                     supervisor,       in a pause; a header tells the predictor of
                                                          predictor         a merge in between
    THREADS                                               worker            not needed: a late look costs some speed
    private optimizer state, count odd during an update   late worker       not needed: one update apart at most
    present words of state, NO_INFERENCE, SCALE, GOOD     replacement       after a death, or in a pause
    BEAT_NS, PHASE, SLOWEST_NS, rows of loaders           supervisor        clocks, in seconds; leases after a death
    result row of an evaluation                           supervisor        read after the acknowledgement"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, auto

import numpy as np

from hogwild.metrics.result_row import WORDS as RESULT_WORDS
from hogwild.scheduling.work_queue import ITEM_ROWS, Kind, LeaseProgress, WorkItem
from hogwild.shared_memory.region import Region

STALENESS_BINS = 128  # exact up to 126; the last bin counts all older ones
ROW_WORDS = 184  # 1,472 bytes: whole cache lines; neighbours share none
FURTHER_LOSSES = 8  # most losses besides the main one


class Phase(IntEnum):
    """The activity of a worker. Only in WORKING is a death charged to the item in progress."""

    BOOTING = 0
    WAITING = auto()
    WORKING = auto()
    EVALUATING = auto()
    PARKED = auto()
    LEAVING = auto()
    COMPILING = auto()  # kernels or model, or waiting for the worker that compiles them


class Command(IntEnum):
    """The supervisor's command to all workers."""

    RUN = 0
    PAUSE = auto()
    LEAVE = auto()


class Word(IntEnum):
    """Places in a worker's row."""

    INCARNATION = 0  # written by the supervisor while no process has the row
    PHASE = auto()
    BEAT_NS = auto()
    INTENT = auto()
    COMMIT = auto()
    PARKED = auto()  # number of the pause it is parked in; the supervisor trusts only the record in the pipe
    UPDATES = auto()
    BATCHES = auto()
    SLOWEST_NS = auto()
    STALEST = auto()
    FIRST_NS = auto()  # monotonic time of the first commit
    LAST_NS = auto()
    BUSY_NS = auto()
    LOSS_SUM = auto()  # float64: sum of the batches' mean losses
    LOSSES = auto()
    NOT_FINITE = auto()  # updates with a NaN or infinite loss or gradient
    PHASE_NS = 16  # first of seven: time in each phase, over all incarnations, without the current phase
    PHASE_SINCE_NS = 23  # monotonic time at which the current phase began
    STALENESS = 24  # first word of the histogram
    LANE_RESTARTS = STALENESS + STALENESS_BINS  # batches inside a lane that began from zero state
    NO_INFERENCE = auto()  # 1: evaluations must not use inference_mode, for the whole attempt
    SCALE = auto()  # float64: loss scale of this worker in fp16 (`loss_scaler.py`); 0: none yet
    GOOD = auto()  # finite updates since SCALE changed
    OVERFLOWS = auto()  # backward passes repeated at half the scale
    FURTHER = 160  # first of sixteen float64: sums of the further losses of a training_step, then their counts
    EPOCHS = 176  # for the even and the odd epoch: its tag, samples, and float64 sum of the samples' losses
    COLUMN = 182  # the column block of a grid that it is in (hogwild/kernels/matrix_factorization.py)


_OF_INCARNATION = (
    Word.PHASE, Word.BEAT_NS, Word.INTENT, Word.COMMIT, Word.PARKED, Word.SLOWEST_NS, Word.COLUMN,
)  # fmt: skip


class Control(IntEnum):
    """Places in the control row."""

    COMMAND = 0
    PAUSE = auto()
    BASE_UPDATES = auto()  # updates of the attempts before this one (resume)
    SYNC_EVERY = auto()  # updates between two flushes of delta; 0: direct
    ROLLBACKS = auto()  # times the run has gone back to a checkpoint: each halves the learning rate
    FIRST_ITEM = auto()  # items with a lower id were leased before the last rollback and are void
    ELSEWHERE = auto()  # updates of the other nodes of a cluster: for the schedule, not for the staleness
    STILL = auto()  # number of the pause in which nobody writes parameters now; 0: somebody may
    RATES = auto()  # number of groups whose rates were published; 0: none, those of the start hold
    THREADS = auto()  # of each worker from now on; 0: those of its set-up
    FIRST_RATE = 64  # first of the groups' rates, float64


MOST_RATES = ROW_WORDS - Control.FIRST_RATE
TABLE_ROWS = 2 * ITEM_ROWS  # training items, then evaluation items
ITEM_WORDS = 8


@dataclass(frozen=True, slots=True)
class Staleness:
    """Updates by other workers between reading the parameters and applying, over all updates."""

    p50: int
    p99: int
    max: int


def _item_row(item: int, kind: Kind) -> int:
    """Return the item's row of the item table. Evaluation items have separate rows, so they never overwrite an item
    that a parked worker holds. The queue never leases two ids of one kind and the same row."""
    return item % ITEM_ROWS + (0 if kind is Kind.TRAIN else ITEM_ROWS)


class Scoreboard:
    """All rows, readable by every process. Workers write through `Row`, the supervisor through methods marked so."""

    def __init__(self, region: Region, procs: int) -> None:
        self.region = region
        self.procs = procs
        self.words = region.array(np.int64, (procs + 1, ROW_WORDS))
        self.floats = region.array(np.float64, (procs + 1, ROW_WORDS))
        self.control = self.words[procs]
        offset = self.words.nbytes
        self.items = region.array(np.int64, (TABLE_ROWS, ITEM_WORDS), offset)
        self.results = region.array(np.float64, (ITEM_ROWS, RESULT_WORDS), offset + self.items.nbytes)
        # A memoryview reads a word in 0.05 us, a numpy view in 0.13: used for words that every update reads.
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
        """Write an item to the item table. Supervisor only, before the id is sent."""
        self.items[_item_row(item.id, item.kind), :5] = (item.id, item.kind, item.epoch, item.start, item.stop)

    def read_item(self, item_id: int) -> WorkItem:
        for row in (_item_row(item_id, kind) for kind in Kind):
            number, kind, epoch, start, stop = (int(word) for word in self.items[row, :5])
            if number == item_id:
                return WorkItem(number, Kind(kind), epoch, start, stop)
        raise AssertionError(f"item {item_id} is not in the item table: its row was used again while it was leased")

    def result(self, item_id: int) -> np.ndarray:
        """Return (RESULT_WORDS,) float64: the result of an evaluation or scoring item, written before its ack."""
        row: np.ndarray = self.results[item_id % ITEM_ROWS]
        return row

    # ---- totals ------------------------------------------------------------------------------------------------

    def updates(self) -> int:
        """Return the updates applied by all workers in the whole job, including resumed attempts."""
        return sum([row[_UPDATES] for row in self._update_words], self.control_words[_BASE_UPDATES])

    def job_updates(self) -> int:
        """Return the updates of the whole job for its schedules: with those of the other nodes, as last heard."""
        return self.updates() + int(self.control_words[_ELSEWHERE])

    def not_finite(self) -> int:
        """Return the updates of this attempt skipped for a NaN or infinite loss or gradient. Read it before `updates`:
        a worker counts these after its applied ones, so none is seen without the updates before it."""
        return sum([row[_NOT_FINITE] for row in self._update_words])

    def mean_loss_since(self, mark: tuple[float, int]) -> tuple[float | None, tuple[float, int]]:
        """Return the mean training loss per batch since `mark` (start with (0.0, 0)), and the next mark."""
        total = float(self.floats[: self.procs, Word.LOSS_SUM].sum())
        losses = int(self.words[: self.procs, Word.LOSSES].sum())
        fresh = losses - mark[1]
        return ((total - mark[0]) / fresh if fresh > 0 else None), (total, losses)

    def epoch_loss(self, epoch: int) -> float | None:
        """Return the mean training loss per sample of an epoch, as far as this attempt has trained it; None if it has
        not, or if two later epochs have begun."""
        tag, rows = _epoch_tag(epoch, int(self.control_words[_ROLLBACKS])), self.words[: self.procs]
        first = _EPOCHS + 3 * (epoch & 1)
        of_it = rows[:, first] == tag
        samples = int(rows[of_it, first + 1].sum())
        return float(self.floats[: self.procs][of_it, first + 2].sum()) / samples if samples else None

    def some_epoch(self) -> int | None:
        """Return the epoch of which most samples are counted: workers in short epochs may be several apart."""
        tags = self.words[: self.procs, [_EPOCHS, _EPOCHS + 3]].ravel()
        samples = self.words[: self.procs, [_EPOCHS + 1, _EPOCHS + 4]].ravel()
        found, places = np.unique(tags, return_inverse=True)
        counts = np.bincount(places, samples, len(found))
        counts[found < _epoch_tag(0, int(self.control_words[_ROLLBACKS]))] = 0.0
        return int(found[counts.argmax()] & (1 << 40) - 1) - 1 if counts.any() else None

    def further(self) -> np.ndarray:
        """Return (2, FURTHER_LOSSES) float64: sums of the further losses over all workers, and their counts."""
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
        """Return a copy, (procs, STALENESS_BINS) int64: updates of each worker by their staleness."""
        counts: np.ndarray = self.words[: self.procs, Word.STALENESS : Word.STALENESS + STALENESS_BINS].copy()
        return counts

    def lane_restarts(self) -> int:
        """Return the number of batches inside a lane that began from zero state."""
        return int(self.words[: self.procs, Word.LANE_RESTARTS].sum())

    def phase_s(self, now_ns: int) -> np.ndarray:
        """Return (procs, phases) float64: seconds of this attempt in each phase until `now_ns`, with the current phase.
        Between two stores of a worker it may be wrong by one phase; it is only displayed."""
        rows = self.words[: self.procs]
        spent = rows[:, Word.PHASE_NS : Word.PHASE_NS + len(Phase)].copy()
        since = rows[:, Word.PHASE_SINCE_NS]
        current = np.where(since > 0, np.maximum(now_ns - since, 0), 0)
        spent[np.arange(self.procs), rows[:, Word.PHASE]] += current
        seconds: np.ndarray = spent / 1e9
        return seconds

    def training_span_s(self) -> float:
        """Return the seconds from the first commit of any worker to the last, by the monotonic clock."""
        first = self.words[: self.procs, Word.FIRST_NS]
        last = self.words[: self.procs, Word.LAST_NS]
        return float(last.max() - first[first > 0].min()) / 1e9 if (first > 0).any() else 0.0

    def first_commit_s(self) -> float | None:
        first = self.words[: self.procs, Word.FIRST_NS]
        return float(first[first > 0].min()) / 1e9 if (first > 0).any() else None

    # ---- one worker's row, seen by the supervisor --------------------------------------------------------------

    def progress(self, worker: int, working: Phase = Phase.WORKING) -> LeaseProgress:
        """Return the progress in the worker's row; `active` if its phase is `working`. For a live worker it may be
        outdated at once; for a reaped one it is final."""
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
        """Reset a row, so that old words cannot match a new incarnation's items. Supervisor only, without a process."""
        self.words[worker, Word.INCARNATION] = incarnation
        for word in _OF_INCARNATION:
            self.words[worker, word] = 0
        self.words[worker, Word.PHASE_SINCE_NS] = time.monotonic_ns()  # booting begins

    def batches(self) -> list[int]:
        """Return the number of batches that each worker has committed in this attempt."""
        return [int(word) for word in self.words[: self.procs, Word.BATCHES]]

    def applied_batches(self) -> list[int]:
        """Return the number of batches that each worker has committed and not skipped in this attempt."""
        return [int(word) for word in self.words[: self.procs, Word.LOSSES]]

    def set_exchange(self, sync_every: int) -> None:
        """Set `sync_every` (0: direct). Supervisor only, before workers start or while all are parked."""
        self.control[Control.SYNC_EVERY] = sync_every

    def set_threads(self, threads: int) -> None:
        """Set the threads of each worker from its next item on. Supervisor only."""
        self.control[Control.THREADS] = threads

    def publish_rates(self, rates: Sequence[float]) -> None:
        """Set the rate of each group, at most MOST_RATES. Supervisor only."""
        self.floats[self.procs, Control.FIRST_RATE : Control.FIRST_RATE + len(rates)] = rates
        self.control[Control.RATES] = len(rates)

    def rates(self) -> list[float]:
        """Return the published rates of the groups; empty if none were published."""
        count = self.control_words[Control.RATES]
        found: list[float] = self.floats[self.procs, Control.FIRST_RATE : Control.FIRST_RATE + count].tolist()
        return found

    def go_back(self, updates: int, rollbacks: int, first_item: int) -> None:
        """Set the total to `updates` after `rollbacks` rollbacks; items below `first_item` are void. Supervisor only,
        while all workers are parked or before any trains."""
        self.control[Control.BASE_UPDATES] += updates - self.updates()
        self.control[Control.ROLLBACKS] = rollbacks
        self.control[Control.FIRST_ITEM] = first_item

    def send(self, command: Command, pause: int = 0) -> None:
        """Send a command. Supervisor only. The pause number is written first, so that nobody parks under an old one."""
        self.control[Control.PAUSE] = pause
        self.control[Control.COMMAND] = command

    def parked(self, workers: Sequence[int], pause: int) -> bool:
        return all(int(self.words[worker, Word.PARKED]) == pause for worker in workers)


# Plain integers: indexing by an IntEnum doubles the cost of a store.
_BEAT, _INTENT, _COMMIT, _UPDATES = map(int, (Word.BEAT_NS, Word.INTENT, Word.COMMIT, Word.UPDATES))
_FIRST, _LAST, _BUSY, _SLOWEST = map(int, (Word.FIRST_NS, Word.LAST_NS, Word.BUSY_NS, Word.SLOWEST_NS))
_BATCHES, _LOSSES, _LOSS_SUM, _NOT_FINITE = map(int, (Word.BATCHES, Word.LOSSES, Word.LOSS_SUM, Word.NOT_FINITE))
_PHASE, _PHASE_NS, _SINCE = map(int, (Word.PHASE, Word.PHASE_NS, Word.PHASE_SINCE_NS))
_STALENESS, _STALEST = map(int, (Word.STALENESS, Word.STALEST))
_BASE_UPDATES, _ROLLBACKS, _EPOCHS = int(Control.BASE_UPDATES), int(Control.ROLLBACKS), int(Word.EPOCHS)
_ELSEWHERE = int(Control.ELSEWHERE)


def _epoch_tag(epoch: int, rollbacks: int) -> int:
    """Return a number for an epoch, another one after a rollback, which trains it again; never 0."""
    return rollbacks << 40 | epoch + 1


class Row:
    """A worker's own row: the only place it reports to. Every method is a few plain stores."""

    def __init__(self, board: Scoreboard, worker: int) -> None:
        self.board = board
        self.worker = worker
        self.words = board.words[worker]
        self.floats = board.floats[worker]
        self._hot = memoryview(self.words)
        self._hot_floats: memoryview[float] = memoryview(self.floats)
        self._is_warm = False  # the first update imports, compiles and allocates: its time says nothing about a stall

    def beat(self) -> None:
        self._hot[_BEAT] = time.monotonic_ns()

    def enter(self, phase: Phase) -> None:
        """Enter a phase, or book the time so far if it is the current one."""
        words, now = self._hot, time.monotonic_ns()
        if words[_SINCE]:
            words[_PHASE_NS + words[_PHASE]] += now - words[_SINCE]
        words[_PHASE] = phase
        words[_SINCE] = now
        words[_BEAT] = now

    def intend(self, item: int, batches: int) -> None:
        self._hot[_INTENT] = item << 32 | batches

    def commit(self, item: int, batches: int, skipped: int) -> None:
        self._hot[_COMMIT] = item << 32 | skipped << 16 | batches

    def note_update(self, began_ns: int) -> None:
        """Note a sign of life and the duration of an update. Call it after every update, committed or not."""
        words, now = self._hot, time.monotonic_ns()
        words[_BEAT] = now
        if self._is_warm:
            taken = now - began_ns
            words[_BUSY] += taken
            if taken > words[_SLOWEST]:
                words[_SLOWEST] = taken
        self._is_warm = True

    def count_updates(self, updates: int, staleness: int) -> None:
        """Count updates applied to the flats, each with the given staleness. Call it after the commit."""
        words = self._hot
        words[_UPDATES] += updates
        words[_STALENESS + (staleness if staleness < STALENESS_BINS else STALENESS_BINS - 1)] += updates
        if staleness > words[_STALEST]:
            words[_STALEST] = staleness

    def count_not_finite(self, updates: int) -> None:
        """Count skipped updates. Call it after `count_updates` of the same exchange."""
        self._hot[_NOT_FINITE] += updates

    def count_epoch(self, epoch: int, samples: int, loss_sum: float) -> None:
        """Add the applied samples of an epoch and the sum of their losses. Call it after the commit."""
        words, first = self._hot, _EPOCHS + 3 * (epoch & 1)
        tag = _epoch_tag(epoch, self.board.control_words[_ROLLBACKS])
        if words[first] != tag:
            if words[first] > tag:  # a stalled worker left it, and a later epoch has its place
                return
            words[first + 1], self._hot_floats[first + 2] = 0, 0.0
            words[first] = tag  # last: a kill may come in between
        words[first + 1] += samples
        self._hot_floats[first + 2] += loss_sum

    def count_lane_restarts(self, batches: int) -> None:
        """Count batches that began from zero state. Call it after the commit."""
        self.words[Word.LANE_RESTARTS] += batches

    def count_further(self, sums: Sequence[float], counts: Sequence[float]) -> None:
        """Add the further losses of the exchange, in the order of their names. Call it after the commit."""
        for first, values in ((Word.FURTHER, sums), (Word.FURTHER + FURTHER_LOSSES, counts)):
            self.floats[first : first + len(values)] += values

    def forbid_inference(self) -> bool:
        """Forbid inference_mode in evaluations; return False if this worker did so before."""
        before, self.words[Word.NO_INFERENCE] = self.words[Word.NO_INFERENCE], 1
        return not before

    def count_batches(self, batches: int, losses: int, loss_sum: float) -> None:
        """Count the batches of an exchange and the `losses` that `loss_sum` adds up. Call it after the commit."""
        words, now = self._hot, time.monotonic_ns()
        words[_BATCHES] += batches
        words[_LOSSES] += losses
        self._hot_floats[_LOSS_SUM] += loss_sum
        if not words[_FIRST]:
            words[_FIRST] = now
        words[_LAST] = now


def idle_share(phase_s: np.ndarray) -> float:
    """Return the share of the workers' training time that was spent waiting for a lease; 0 if there was none. `phase_s`
    (procs, phases) float64, seconds, from `Scoreboard.phase_s`. Pauses, evaluations and compiling do not count."""
    waiting, working = (float(phase_s[:, phase].sum()) for phase in (Phase.WAITING, Phase.WORKING))
    return waiting / (waiting + working) if waiting else 0.0
