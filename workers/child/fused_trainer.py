"""Train an item with the model's compiled kernel: batch after batch, several of them in one exchange.

    intent -> the kernel, batch by batch, into the flats -> private copies of hot rows into the flats -> commit
                '-- over a grid: many batches in one call; a column that another worker is in comes later

The unit of commit is a chunk: as many batches as fit into TARGET_S at the recent pace, and at most `sync_every` if rows
are hot. The learning rate and the seed belong to a batch, so one worker computes the same result for any division into
chunks. A kill leaves one chunk in doubt."""

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from hogwild.kernels.fused import Chunk, GridPlace, Sweeping
from hogwild.scheduling.batch_plan import batch_seed
from hogwild.scheduling.work_queue import WorkItem
from hogwild.shared_memory.scoreboard import Row, Word
from hogwild.workers.child.profiler import Profile
from hogwild.workers.child.spec import Fused

if TYPE_CHECKING:
    from hogwild.scheduling.grid_plan import GridPlan


TARGET_S = 0.02
LONGEST_S = 0.05  # a longer batch is computed in pieces, with a beat in between
SMOOTHING = 0.2  # weight of the newest chunk in the pace


@dataclass(slots=True)
class Sums:
    """Totals of the batches of a chunk."""

    loss: float = 0.0  # sum of the batches' mean losses
    losses: int = 0  # batches with a loss: at least one sample was applied
    samples: int = 0  # applied
    sample_loss: float = 0.0  # sum of their losses
    not_finite: int = 0  # samples
    skipped: int = 0  # batches without any applied sample


class Chunks:
    """Trains items with one fused update. Reports to `row` as `trainer.py` does."""

    def __init__(self, fused: Fused, row: Row, profile: Profile, seed: int, sync_every: int) -> None:
        self._fused, self._row, self._profile, self._seed = fused, row, profile, seed
        self._most = 1 if fused.feed is not None else sync_every if fused.hot else 1 << 16
        self._batch_s = 0.0  # pace; 0: not known yet
        self._made = 0
        words = row.board.words[:, Word.COLUMN]  # and that of the control row, which is 0
        self._place = GridPlace(words, row.worker)
        self._rows = np.empty(0, np.int64)  # of the batch of a stream
        is_swept = isinstance(fused.update, Sweeping) and fused.plan.grid is not None and fused.feed is None
        self._sweeps = cast(Sweeping, fused.update) if is_swept else None

    def train(
        self, item: WorkItem, may_go_on: Callable[[], bool], schedule: Callable[[], Callable[[int], float] | None]
    ) -> tuple[int, int] | None:
        """Train the item; return (skipped batches, non-finite samples), or None if `may_go_on` stopped it after a
        chunk. `schedule()` returns the current schedule: total updates -> factor of the rate."""
        done = skipped = not_finite = 0
        read_at = self._row.board.updates()
        while done < item.stop - item.start:
            if not may_go_on():
                return None
            sums, count = self._chunk(item, done, skipped, schedule(), read_at)
            read_at = self._row.board.updates()
            done, skipped, not_finite = done + count, skipped + sums.skipped, not_finite + sums.not_finite
        return skipped, not_finite

    def _chunk(
        self, item: WorkItem, done: int, skipped: int, schedule: Callable[[int], float] | None, read_at: int
    ) -> tuple[Sums, int]:
        row, fused = self._row, self._fused
        began_ns = time.monotonic_ns()
        at_once = max(1, min(self._most, int(TARGET_S / self._batch_s))) if self._batch_s else 1
        count = min(item.stop - item.start - done, at_once)
        self._profile.start_update(self._made)
        sums, first = Sums(), item.start + done
        scores = self._open(item.epoch, first)  # before the intent: a batch that raises leaves nothing in doubt
        row.intend(item.id, done + count)
        self._profile.enter("apply")
        made = row.board.job_updates()
        rates = [1.0 if schedule is None else schedule(made + number) for number in range(count)]
        if self._sweeps is not None and self._batch_s <= LONGEST_S:
            self._sweep(self._sweeps, first, rates, sums)
        else:
            for number, rate in enumerate(rates, first):
                self._batch(item.epoch, number, rate, sums)
        # The copies of hot rows date from `read_at`; all other rows are read and written sample by sample.
        staleness = row.board.updates() - read_at if fused.hot else 0
        fused.flush()
        row.commit(item.id, done + count, skipped + sums.skipped)
        self._profile.enter("bookkeeping")
        applied = count - sums.skipped
        if applied:
            fused.count(applied)
            row.count_updates(applied, staleness)
        row.count_batches(count, sums.losses, sums.loss)
        row.count_epoch(item.epoch, sums.samples, sums.sample_loss)
        if scores and all(map(math.isfinite, scores)):
            row.count_further(scores[::2], scores[1::2])
        if sums.not_finite:
            row.count_not_finite(max(1, sums.skipped))
        self._made += applied
        row.note_update(began_ns)
        pace_s = (time.monotonic_ns() - began_ns) / 1e9 / count
        self._batch_s = pace_s if not self._batch_s else self._batch_s + SMOOTHING * (pace_s - self._batch_s)
        return sums, count

    def _open(self, epoch: int, number: int) -> list[float]:
        """Bind a batch of a stream, and return its scores before it is learnt, if they are asked for."""
        fused = self._fused
        if fused.feed is None:
            return []
        self._profile.enter("gather")
        batch = fused.feed.gather(epoch, number)
        if fused.bind is not None:
            self._rows = fused.bind(batch.inputs, batch.target)
        return fused.scorer.words(batch.inputs, batch.target) if fused.scorer is not None else []

    def _sweep(self, update: Sweeping, start: int, rates: list[float], sums: Sums) -> None:
        """Train all batches from `start` on, column by column. All are committed together, so their order is free: if
        another worker is in the next column, this one continues in the middle of its rest, far from the other, and
        comes back later. A single column that is still occupied then is entered in any case: no worker waits."""
        plan = cast("GridPlan", self._fused.plan)
        factors = np.array(rates, np.float32)
        pieces = deque([(start, start + len(rates), False)])  # and whether to insist
        while pieces:
            first, stop, insist = pieces.popleft()
            borders, columns = plan.borders(first, stop), plan.columns[first:stop]
            swept = update.sweep(borders, factors[first - start : stop - start], columns, self._place, insist)
            sums.loss += swept.mean_losses
            sums.losses += swept.batches
            sums.samples += swept.applied
            sums.sample_loss += swept.loss
            sums.not_finite += int(borders[swept.done] - borders[0]) - swept.applied
            sums.skipped += swept.done - swept.batches
            columns = columns[swept.done :]
            first += swept.done
            if first == stop:
                continue
            changes = np.flatnonzero(columns[1:] != columns[:-1])  # a column ends after these batches
            if len(changes):
                middle = first + 1 + int(changes[len(changes) // 2])
                pieces.extendleft(((first, middle, False), (middle, stop, False)))  # the second one comes first
            else:
                pieces.append((first, stop, True))
        self._place.words[self._place.own] = 0

    def _batch(self, epoch: int, number: int, rate: float, sums: Sums) -> None:
        fused = self._fused
        first, last = fused.plan.positions(number)
        rows = self._rows if fused.order is None else fused.order.indices(epoch, first, last)
        seed = batch_seed(self._seed, epoch, first)
        is_long = self._batch_s > LONGEST_S
        size = max(1, int(len(rows) * LONGEST_S / self._batch_s) if is_long else len(rows))
        loss, applied = 0.0, 0
        for start in range(0, len(rows), size):
            if start:
                self._row.beat()
            tally = fused.update.run(Chunk(rows[start : start + size], seed, rate))
            loss, applied = loss + tally.loss, applied + tally.applied
            sums.not_finite += tally.not_finite
        if applied:
            sums.loss += loss / applied
            sums.losses += 1
            sums.samples += applied
            sums.sample_loss += loss
        else:
            sums.skipped += 1
