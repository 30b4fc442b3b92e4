"""The shared table of progress: words that survive packing, rows that nobody shares, sums that are exact."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.scheduling.work_queue import ITEM_ROWS, MAX_ITEM_BATCHES, Kind, LeaseProgress, WorkItem
from hogwild.shared_memory.region import ALIGNMENT
from hogwild.shared_memory.scoreboard import (
    ITEM_WORDS,
    ROW_WORDS,
    STALENESS_BINS,
    TABLE_ROWS,
    Command,
    Control,
    Phase,
    Row,
    Scoreboard,
    Staleness,
    Word,
)
from tests.helpers.processes import PATIENCE_S

HOME = Path(__file__).resolve().parents[2]
LARGEST_ID = (1 << 31) - 1  # an intent word is signed
EMPTY = LeaseProgress(0, 0, 0, 0, 0, active=False)


# ---- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [1, 2, ITEM_ROWS, 1 << 30, LARGEST_ID])
@pytest.mark.parametrize(
    ("batches", "skipped"),
    [(0, 0), (1, 0), (1, 1), (256, 255), (MAX_ITEM_BATCHES, 0), (MAX_ITEM_BATCHES, MAX_ITEM_BATCHES)],
)
def test_what_a_row_says_is_read_back_up_to_its_limits(item: int, batches: int, skipped: int) -> None:
    board = Scoreboard.allocate(2)
    row = Row(board, 1)
    row.enter(Phase.WORKING)
    row.intend(item, batches)
    row.commit(item, batches, skipped)
    assert board.progress(1) == LeaseProgress(item, batches, skipped, item, batches, active=True)
    assert board.progress(0) == EMPTY


@settings(deadline=None, max_examples=50)
@given(
    item=st.integers(1, LARGEST_ID),
    intended_item=st.integers(1, LARGEST_ID),
    counts=st.tuples(*[st.integers(0, MAX_ITEM_BATCHES)] * 3),
)
def test_no_part_of_a_word_reaches_into_another(item: int, intended_item: int, counts: tuple[int, int, int]) -> None:
    committed, skipped, intended = counts
    board = Scoreboard.allocate(1)
    row = Row(board, 0)
    row.intend(intended_item, intended)
    row.commit(item, committed, skipped)
    assert board.progress(0) == LeaseProgress(item, committed, skipped, intended_item, intended, active=False)


@pytest.mark.parametrize("phase", list(Phase))
def test_a_death_is_charged_only_in_the_phase_that_is_asked_about(phase: Phase) -> None:
    board = Scoreboard.allocate(1)
    Row(board, 0).enter(phase)
    assert board.progress(0).active == (phase is Phase.WORKING)
    assert board.progress(0, Phase.EVALUATING).active == (phase is Phase.EVALUATING)


def test_no_two_words_of_a_row_have_the_same_place() -> None:
    assert len({int(word) for word in Word.__members__.values()}) == len(Word.__members__)
    others = {int(word) for word in Word if word is not Word.STALENESS}
    others |= set(range(Word.PHASE_NS, Word.PHASE_NS + len(Phase)))
    histogram = set(range(Word.STALENESS, Word.STALENESS + STALENESS_BINS))
    assert len(others) == len(Word) - 1 + len(Phase) - 1, "each has a place of its own, each phase, too"
    assert not others & histogram and max(others | histogram) < ROW_WORDS
    assert len(WorkItem.__slots__) <= ITEM_WORDS


@pytest.mark.parametrize("procs", [1, 2, 3, 7])
def test_rows_lie_on_cache_lines_of_their_own(procs: int) -> None:
    board = Scoreboard.allocate(procs)
    rows = [board.words[k] for k in range(procs)] + [board.control]
    starts = [row.ctypes.data for row in rows]
    ends = [row.ctypes.data + row.nbytes - 1 for row in rows]
    assert all(start % ALIGNMENT == 0 for start in starts)
    assert all(end // ALIGNMENT < start // ALIGNMENT for end, start in zip(ends[:-1], starts[1:], strict=True))
    assert ends[-1] < board.items.ctypes.data < board.results.ctypes.data
    assert board.results.ctypes.data + board.results.nbytes <= board.words.ctypes.data + Scoreboard.nbytes(procs)
    assert Scoreboard.nbytes(procs) <= board.region.nbytes


# ---- a new incarnation ----------------------------------------------------------------------------------------------


def test_renewing_a_row_clears_what_would_be_taken_for_the_new_incarnations_words() -> None:
    board = Scoreboard.allocate(2)
    other, row = Row(board, 0), Row(board, 1)
    for each in (other, row):
        each.enter(Phase.WORKING)
        each.intend(7, 3)
        each.commit(7, 2, 1)
        each.words[Word.PARKED], each.words[Word.COLUMN] = 4, 9
        each.count_updates(1, 5)
        each.count_batches(2, 2, 1.5)
    totals = (board.updates(), board.staleness(), board.mean_loss_since((0.0, 0)), board.first_commit_s())
    untouched = board.words[0].copy()
    board.renew(1, incarnation=2)
    assert board.progress(1) == EMPTY
    stale = (Word.BEAT_NS, Word.PARKED, Word.SLOWEST_NS, Word.PHASE, Word.INTENT, Word.COMMIT, Word.COLUMN)
    assert [int(board.words[1, word]) for word in stale] == [0] * len(stale)
    assert board.words[1, Word.INCARNATION] == 2
    assert int(board.words[1, Word.BATCHES]) == 2  # totals of the job survive their worker
    assert totals == (board.updates(), board.staleness(), board.mean_loss_since((0.0, 0)), board.first_commit_s())
    assert np.array_equal(board.words[0], untouched)


def test_a_worker_is_parked_only_in_the_pause_it_has_seen() -> None:
    board = Scoreboard.allocate(3)
    board.send(Command.PAUSE, 5)
    assert (board.control[Control.COMMAND], board.control[Control.PAUSE]) == (Command.PAUSE, 5)
    board.words[:2, Word.PARKED] = 5
    board.words[2, Word.PARKED] = 4  # still parked since the last one
    assert board.parked([0, 1], 5)
    assert board.parked([], 5)
    assert not board.parked([0, 1, 2], 5)
    assert not board.parked([0, 1], 6)


# ---- items and results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "item",
    [
        WorkItem(1, Kind.TRAIN, 0, 0, 1),
        WorkItem(ITEM_ROWS, Kind.TRAIN, 3, 10, 74),
        WorkItem(LARGEST_ID, Kind.EVALUATE, 2**31, 2**40, 2**40 + 1),
    ],
)
def test_an_item_is_read_as_it_was_written(item: WorkItem) -> None:
    board = Scoreboard.allocate(1)
    board.write_item(item)
    assert board.read_item(item.id) == item
    assert isinstance(board.read_item(item.id).kind, Kind)


def test_a_row_of_the_item_table_is_used_again_by_the_id_one_table_later() -> None:
    board = Scoreboard.allocate(1)
    old, new = (WorkItem(number, Kind.TRAIN, 0, number, number + 1) for number in (5, 5 + ITEM_ROWS))
    board.write_item(old)
    board.write_item(new)
    assert board.read_item(new.id) == new
    with pytest.raises(AssertionError, match="item 5 is not in the item table: its row was used again"):
        board.read_item(old.id)


def test_a_whole_table_of_items_of_both_kinds_is_there_at_once() -> None:
    board = Scoreboard.allocate(1)
    items = [WorkItem(n, Kind.TRAIN, 0, n, n + 1) for n in range(1, ITEM_ROWS + 1)]
    items += [WorkItem(n, Kind.EVALUATE, 0, n, n + 2) for n in range(ITEM_ROWS + 1, 2 * ITEM_ROWS + 1)]
    assert len(items) == TABLE_ROWS
    for item in items:
        board.write_item(item)
    assert [board.read_item(item.id) for item in items] == items


def test_evaluation_results_of_a_table_of_items_do_not_touch_each_other() -> None:
    board = Scoreboard.allocate(1)
    for number in range(ITEM_ROWS):
        board.result(number)[:] = number
    assert all((board.result(number) == number).all() for number in range(ITEM_ROWS))
    assert not board.control.any()
    assert not board.items.any()


# ---- sums -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(0, STALENESS_BINS - 2), max_size=40), min_size=1, max_size=4))
def test_staleness_percentiles_are_those_of_numpy(delays: list[list[int]]) -> None:
    board = Scoreboard.allocate(len(delays))
    for worker, own in enumerate(delays):
        row = Row(board, worker)
        for delay in own:
            row.count_updates(1, delay)
    everything = [delay for own in delays for delay in own]
    expected = Staleness(0, 0, 0)
    if everything:
        p50, p99 = np.percentile(everything, [50, 99], method="inverted_cdf")
        expected = Staleness(int(p50), int(p99), max(everything))
    assert board.staleness() == expected
    assert board.updates() == len(everything)


@pytest.mark.parametrize(
    ("delays", "expected"),
    [
        ([0] * 99 + [5], Staleness(0, 0, 5)),
        ([0] * 98 + [5] * 2, Staleness(0, 5, 5)),
        ([1, 2], Staleness(1, 2, 2)),
        ([126, 126], Staleness(126, 126, 126)),
        ([500], Staleness(127, 127, 500)),  # what is older than the table falls into its last bin; the maximum is exact
    ],
)
def test_staleness_at_the_edges(delays: list[int], expected: Staleness) -> None:
    board = Scoreboard.allocate(1)
    for delay in delays:
        Row(board, 0).count_updates(1, delay)
    assert board.staleness() == expected


def test_updates_include_the_attempts_before_a_resume() -> None:
    board = Scoreboard.allocate(2)
    board.control[Control.BASE_UPDATES] = 1000
    Row(board, 1).count_updates(1, 0)
    assert board.updates() == 1001


def test_the_mean_loss_is_that_of_the_batches_since_the_mark() -> None:
    board = Scoreboard.allocate(2)
    first, second = Row(board, 0), Row(board, 1)
    assert board.mean_loss_since((0.0, 0)) == (None, (0.0, 0))
    first.count_batches(2, 2, 3.0)
    second.count_batches(1, 0, 0.0)  # skipped: it has no loss
    loss, mark = board.mean_loss_since((0.0, 0))
    assert (loss, mark) == (1.5, (3.0, 2))
    assert board.mean_loss_since(mark)[0] is None
    second.count_batches(4, 4, 2.0)
    assert board.mean_loss_since(mark) == (0.5, (5.0, 6))


def test_the_loss_of_an_epoch_is_the_mean_over_its_samples() -> None:
    """Sums are of all workers; of this epoch and the one before it; anew after a rollback, which trains it again."""
    board = Scoreboard.allocate(2)
    first, second = Row(board, 0), Row(board, 1)
    assert board.epoch_loss(0) is None
    first.count_epoch(0, 30, 60.0)
    second.count_epoch(0, 10, 40.0)
    second.count_epoch(1, 5, 2.5)
    assert (board.epoch_loss(0), board.epoch_loss(1), board.epoch_loss(2)) == (2.5, 0.5, None)
    second.count_epoch(2, 1, 9.0)  # in the place of epoch 0
    assert (board.epoch_loss(0), board.epoch_loss(1), board.epoch_loss(2)) == (2.0, 0.5, 9.0)
    second.count_epoch(0, 4, 70.0)  # left by a stalled worker
    assert (board.epoch_loss(0), board.epoch_loss(2)) == (2.0, 9.0)
    board.go_back(0, rollbacks=1, first_item=0)
    assert (board.epoch_loss(1), board.epoch_loss(2)) == (None, None)
    first.count_epoch(1, 2, 3.0)
    assert board.epoch_loss(1) == 1.5


def test_times_span_from_the_first_commit_of_anybody_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = iter([5_000_000_000, 7_000_000_000, 9_500_000_000])
    monkeypatch.setattr("hogwild.shared_memory.scoreboard.time.monotonic_ns", lambda: next(now_ns))
    board = Scoreboard.allocate(3)
    assert (board.training_span_s(), board.first_commit_s()) == (0.0, None)
    Row(board, 2).count_batches(1, 1, 0.0)
    row = Row(board, 0)
    row.count_batches(1, 1, 0.0)
    row.count_batches(1, 1, 0.0)
    assert (board.training_span_s(), board.first_commit_s()) == (4.5, 5.0)


def test_the_slowest_update_is_kept_and_every_update_is_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = iter([7_000_000_000, 9_500_000_000, 9_600_000_000])
    monkeypatch.setattr("hogwild.shared_memory.scoreboard.time.monotonic_ns", lambda: next(now_ns))
    row = Row(Scoreboard.allocate(1), 0)
    row.note_update(began_ns=6_500_000_000)
    row.note_update(began_ns=9_250_000_000)
    row.note_update(began_ns=9_500_000_000)
    assert int(row.words[Word.SLOWEST_NS]) == 250_000_000  # the first update is a warm-up, not a measure
    assert int(row.words[Word.BUSY_NS]) == 350_000_000
    assert int(row.words[Word.BEAT_NS]) == 9_600_000_000


# ---- two processes --------------------------------------------------------------------------------------------------

UPDATES_EACH = 20_000
COUNTER = f"""
import sys
from hogwild.shared_memory.scoreboard import Row, Scoreboard
from hogwild.shared_memory.region import Region
descriptor, nbytes, worker = map(int, sys.argv[1:])
board = Scoreboard(Region.attach(descriptor, nbytes), 2)
row = Row(board, worker)
print("ready", flush=True)
sys.stdin.readline()
for number in range({UPDATES_EACH}):
    row.count_updates(1, number % 3)
    row.count_batches(1, 1, 0.5)
print(board.updates(), flush=True)
"""


@pytest.mark.processes
def test_two_processes_that_count_at_once_lose_nothing() -> None:
    """Each has its own row; on one shared word they would lose a fifth."""
    board = Scoreboard.allocate(2)
    region = board.region
    children = [
        subprocess.Popen(
            [sys.executable, "-c", COUNTER, str(region.descriptor), str(region.nbytes), str(worker)],
            pass_fds=[region.descriptor],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=HOME,
            text=True,
        )
        for worker in range(2)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        answers = []
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        for child in children:
            answers.append(int(child.communicate(timeout=PATIENCE_S)[0]))
            assert child.returncode == 0
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert UPDATES_EACH <= min(answers) <= max(answers) == 2 * UPDATES_EACH
    assert board.updates() == 2 * UPDATES_EACH
    assert board.words[:2, Word.BATCHES].tolist() == [UPDATES_EACH] * 2
    assert board.mean_loss_since((0.0, 0)) == (0.5, (UPDATES_EACH * 1.0, 2 * UPDATES_EACH))
    histogram = board.words[:2, Word.STALENESS : Word.STALENESS + 3].sum(axis=0)
    assert histogram.tolist() == [13_334, 13_334, 13_332]


def test_of_workers_in_several_epochs_the_one_that_most_samples_are_of_is_told() -> None:
    board = Scoreboard.allocate(3)
    assert board.some_epoch() is None
    for worker, epochs in ((0, (6, 7)), (1, (4, 5)), (2, (5, 4))):
        for epoch in epochs:
            Row(board, worker).count_epoch(epoch, 10 + epoch, 1.0)
    assert board.some_epoch() == 5
    Row(board, 0).count_epoch(7, 1000, 1.0)
    assert board.some_epoch() == 7
    board.go_back(0, 1, 1)
    assert board.some_epoch() is None, "what was discarded counts no more"
