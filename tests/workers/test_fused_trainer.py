"""The work of a worker on an item whose model brings a kernel: chunks, each an exchange of its own."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hogwild.feeds.sample_order import InMemory
from hogwild.kernels.fused import Chunk, GridPlace, Swept, Tally
from hogwild.scheduling.batch_plan import BatchPlan, batch_seed
from hogwild.scheduling.grid_plan import GridPlan
from hogwild.scheduling.work_queue import Kind, WorkItem
from hogwild.shared_memory.scoreboard import Row, Scoreboard, Word
from hogwild.workers.child import fused_trainer
from hogwild.workers.child.fused_trainer import Chunks
from hogwild.workers.child.profiler import make_profile
from hogwild.workers.child.spec import Fused

SEED, BATCH = 5, 10
GRID = GridPlan(BATCH, (1, 5, 1), (0, 20, 40, 60, 80, 95))  # five columns of two batches each


@dataclass
class Recorder:
    """Writes down what it is given; `spoilt` samples are not finite, and every batch takes `lasts_s` by the clock."""

    spoilt: set[int] = field(default_factory=set)
    given: list[Chunk] = field(default_factory=list)
    name: str = "recorder"

    def run(self, chunk: Chunk) -> Tally:
        self.given.append(Chunk(chunk.rows.copy(), chunk.seed, chunk.rate))
        bad = sum(int(row) in self.spoilt for row in chunk.rows)
        applied = len(chunk.rows) - bad
        return Tally(2.0 * applied, applied, bad)

    @property
    def rows(self) -> list[int]:
        return [int(row) for chunk in self.given for row in chunk.rows]


@dataclass
class Sweeper(Recorder):
    """Sweeps as a kernel does; `calls`: batches made in each call, and whether it insisted."""

    calls: list[tuple[int, bool]] = field(default_factory=list)
    leaves_at: int = -1  # the other worker leaves its column when this sample is trained
    look: Callable[[], None] = lambda: None  # called before each look at the words

    def sweep(
        self, borders: np.ndarray, rates: np.ndarray, columns: np.ndarray, place: GridPlace, insist: bool
    ) -> Swept:
        tallies: list[Tally] = []
        for batch, (column, rate) in enumerate(zip(columns, rates, strict=True)):
            place.words[place.own] = 0
            self.look()
            if (place.words == column + 1).any() and not insist:
                break
            place.words[place.own] = column + 1
            if borders[batch] == self.leaves_at:
                place.words[1] = 0
            tallies.append(self.run(Chunk(np.arange(borders[batch], borders[batch + 1]), 0, float(rate))))
        self.calls.append((len(tallies), insist))
        means = [tally.loss / tally.applied for tally in tallies if tally.applied]
        loss, applied = (sum(getattr(tally, name) for tally in tallies) for name in ("loss", "applied"))
        return Swept(sum(means), len(means), loss, applied, len(tallies))


class Hot:
    """A private copy that says when it is flushed."""

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def flush(self) -> None:
        self.notes.append("flush")

    def refresh(self) -> None:
        self.notes.append("refresh")


class Noting(Row):
    def __init__(self, board: Scoreboard, worker: int) -> None:
        super().__init__(board, worker)
        self.notes: list[Any] = []

    def intend(self, item: int, batches: int) -> None:
        self.notes.append(("intent", batches))
        super().intend(item, batches)

    def commit(self, item: int, batches: int, skipped: int) -> None:
        self.notes.append(("commit", batches, skipped))
        super().commit(item, batches, skipped)


class Clock:
    """Every batch takes so long."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, update: Recorder, batch_s: float) -> None:
        self.ns, run = 1, update.run

        def slow(chunk: Chunk) -> Tally:
            self.ns += int(1e9 * batch_s * len(chunk.rows) / BATCH)
            return run(chunk)

        monkeypatch.setattr(update, "run", slow)
        monkeypatch.setattr(fused_trainer.time, "monotonic_ns", lambda: self.ns)


def place(
    samples: int, *, sync_every: int = 16, hot: bool = False, plan: GridPlan | None = None, **update: Any
) -> tuple[Chunks, Any, Noting]:
    recorder, row = (Recorder if plan is None else Sweeper)(**update), Noting(Scoreboard.allocate(2), 0)
    cut = BatchPlan(samples, BATCH) if plan is None else plan
    fused = Fused(recorder, cut, InMemory(samples), [Hot(row.notes)] if hot else [])  # type: ignore[arg-type, list-item]
    return Chunks(fused, row, make_profile(None, 0), SEED, sync_every), recorder, row


def train(
    worker: Chunks, batches: int, start: int = 0, epoch: int = 0, may: Callable[[], bool] = lambda: True,
    schedule: Callable[[int], float] | None = None,
) -> tuple[int, int] | None:  # fmt: skip
    return worker.train(WorkItem(7, Kind.TRAIN, epoch, start, batches), may, lambda: schedule)


def test_every_sample_of_the_item_is_given_to_the_kernel_once_and_counted() -> None:
    worker, recorder, row = place(95)
    assert train(worker, 10) == (0, 0)
    assert recorder.rows == list(range(95))
    assert row.words[Word.BATCHES] == row.words[Word.UPDATES] == row.words[Word.LOSSES] == 10
    assert row.floats[Word.LOSS_SUM] == pytest.approx(2.0 * 10), "the sum of the batches' means"


def test_an_intent_comes_before_and_a_commit_after_every_chunk() -> None:
    worker, _, row = place(100)
    train(worker, 10)
    done = 0
    for intent, commit in zip(row.notes[::2], row.notes[1::2], strict=True):
        assert intent[0] == "intent" and commit[0] == "commit" and intent[1] == commit[1] > done
        done = intent[1]
    assert done == 10


def test_chunks_grow_to_what_takes_20_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    worker, recorder, row = place(1000 * BATCH)
    Clock(monkeypatch, recorder, batch_s=0.001)
    train(worker, 1000)
    intents = [note[1] for note in row.notes if note[0] == "intent"]
    assert intents[0] == 1, "nothing is known yet"
    assert {after - before for before, after in pairwise(intents[1:-1])} <= {19, 20}


@pytest.mark.parametrize("plan", [None, GridPlan(BATCH, (1, 2, 1), (0, 2 * BATCH, 4 * BATCH))], ids=["ranges", "grid"])
def test_a_batch_that_takes_long_is_made_in_pieces_with_a_beat_between(
    plan: GridPlan | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, recorder, row = place(4 * BATCH, plan=plan)
    Clock(monkeypatch, recorder, batch_s=0.2)
    beats: list[int] = []
    monkeypatch.setattr(row, "beat", lambda: beats.append(len(recorder.given)))
    train(worker, 4)
    sizes = [len(chunk.rows) for chunk in recorder.given]
    assert sizes[0] == BATCH and max(sizes[1:]) <= BATCH * fused_trainer.LONGEST_S / 0.2
    assert recorder.rows == list(range(4 * BATCH)) and beats
    assert len({chunk.seed for chunk in recorder.given}) == 4, "a seed belongs to a batch"


def test_rate_and_seed_belong_to_a_batch_however_time_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker computes the same, whatever the clock says."""
    given = []
    for batch_s in (1e-5, 0.004):
        worker, recorder, _ = place(100)
        with monkeypatch.context() as patched:
            Clock(patched, recorder, batch_s)
            train(worker, 10, epoch=3, schedule=lambda updates: 1 / (1 + updates))
        given.append([(chunk.seed, chunk.rate, chunk.rows.tolist()) for chunk in recorder.given])
    assert given[0] == given[1]
    assert [rate for _, rate, _ in given[0]] == [1 / (1 + k) for k in range(10)]
    assert given[0][4][0] == batch_seed(SEED, 3, 40)


def test_the_rate_follows_the_updates_of_everybody() -> None:
    worker, recorder, row = place(20)
    row.board.words[1, Word.UPDATES] = 100
    train(worker, 2, schedule=float)
    assert [chunk.rate for chunk in recorder.given] == [100.0, 101.0]


def test_hot_rows_are_flushed_before_the_commit_and_at_least_every_so_many_batches() -> None:
    worker, _, row = place(100, sync_every=4, hot=True)
    train(worker, 10)
    kinds = [note if isinstance(note, str) else note[0] for note in row.notes]
    assert kinds == ["intent", "flush", "commit"] * (len(kinds) // 3)
    intents = [0] + [note[1] for note in row.notes if note[0] == "intent"]
    assert max(after - before for before, after in pairwise(intents)) <= 4


def test_staleness_is_what_others_did_since_the_copies_were_read() -> None:
    worker, recorder, row = place(30, sync_every=1, hot=True)
    run = recorder.run

    def overtaken(chunk: Chunk) -> Tally:
        row.board.words[1, Word.UPDATES] += 5
        return run(chunk)

    recorder.run = overtaken  # type: ignore[method-assign]
    train(worker, 3)
    assert row.words[Word.STALENESS + 5] == 3


def test_what_is_not_finite_is_counted_and_a_batch_of_nothing_else_is_skipped() -> None:
    worker, _, row = place(40, spoilt={3, *range(20, 30)})
    assert train(worker, 4) == (1, 11)
    assert row.notes[-1] == ("commit", 4, 1)
    assert row.words[Word.UPDATES] == 3 and row.words[Word.LOSSES] == 3 and row.words[Word.NOT_FINITE] >= 1
    assert math.isfinite(row.floats[Word.LOSS_SUM])


def test_a_worker_that_may_not_go_on_stops_at_a_chunk_s_end() -> None:
    worker, recorder, row = place(100, sync_every=2, hot=True)
    answers = iter([True, True, False])
    assert train(worker, 10, may=lambda: next(answers)) is None
    assert row.notes[-1][0] == "commit" and row.notes[-1][1] * BATCH == len(recorder.rows)


def test_the_rows_come_in_the_order_of_the_epoch() -> None:
    class Backwards:
        def indices(self, epoch: int, first: int, last: int) -> np.ndarray:
            return np.arange(99 - first, 99 - last, -1)

    worker, recorder, _ = place(100)
    worker._fused.order = Backwards()
    train(worker, 10, start=2)
    assert recorder.rows == list(range(79, -1, -1))


# ---- over a grid ----------------------------------------------------------------------------------------------------


def test_over_a_grid_many_batches_in_one_call_are_what_they_are_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    for plan in (None, GRID):
        worker, recorder, row = place(95, plan=plan, spoilt={3, *range(20, 30)})
        row.board.words[1, Word.UPDATES] = 100
        with monkeypatch.context() as patched:
            Clock(patched, recorder, batch_s=0.001)
            assert train(worker, 10, schedule=lambda updates: 1 / (1 + updates)) == (1, 11)
        counts = [int(row.words[word]) for word in (Word.BATCHES, Word.UPDATES, Word.LOSSES, Word.NOT_FINITE)]
        sums = [float(row.floats[Word.LOSS_SUM]), row.board.epoch_loss(0), int(row.words[Word.EPOCHS + 1])]
        found.append((recorder.rows, [np.float32(chunk.rate) for chunk in recorder.given], row.notes, counts, sums))
    assert found[0] == found[1]
    assert recorder.calls == [(1, False), (9, False)]
    assert row.words[Word.COLUMN] == 0, "between two chunks it is in no column"


@pytest.mark.parametrize("stays", [True, False])
def test_a_column_of_another_worker_comes_last_and_is_entered_even_if_that_one_stays(
    monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    worker, recorder, row = place(95, plan=GRID)
    Clock(monkeypatch, recorder, 0.001)
    row.board.words[1, Word.COLUMN] = 3 + 1
    recorder.leaves_at = 99 if stays else 80
    assert train(worker, 10) == (0, 0)
    last = [(0, False), (2, True)] if stays else [(2, False)]
    assert recorder.calls == [(1, False), (5, False), (2, False), *last]
    assert recorder.rows == [*range(60), *range(80, 95), *range(60, 80)]
    assert row.words[Word.COLUMN] == 0 and row.notes[-1] == ("commit", 10, 0)


@given(st.data())
def test_wherever_others_are_every_batch_of_a_chunk_is_trained_once_at_its_own_rate(data: st.DataObject) -> None:
    worker, recorder, row = place(95, plan=GRID)
    words = row.board.words[1:2, Word.COLUMN]
    recorder.look = lambda: words.fill(data.draw(st.integers(0, 6), "where the other is"))
    rates = [float(batch) for batch in range(10)]
    sums = fused_trainer.Sums()
    worker._sweep(recorder, 0, rates, sums)
    assert sorted(recorder.rows) == list(range(95)) and sums.samples == 95 and sums.losses == 10
    assert all(chunk.rate == chunk.rows[0] // BATCH for chunk in recorder.given)
