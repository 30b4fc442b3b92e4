"""How a job finds out which exchange is faster and what its workers are worth (helpers/trial_machine.py)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from hogwild.config.load import Job, load_job
from hogwild.shared_memory.scoreboard import Control, Scoreboard, Word
from tests.helpers.trial_machine import DELTA, DIRECT, PLENTY_S, SOLO, STEP_S, Machine
from workers.session.exchange_trial import (
    BOTH,
    ENOUGH,
    LONGEST_S,
    MOST_SLICES,
    SHORTEST_S,
    WARM_BATCHES,
    WORTH,
    Verdict,
    Way,
    choose,
    exchange_of,
    ways_of,
    why_settled,
    words_of,
)
from workers.session.session import Session

FASTER = {DIRECT: 512.0, DELTA: 1024.0, SOLO: 768.0}


def test_direct_delta_and_one_worker_alone_are_measured_in_turn() -> None:
    machine = Machine(FASTER).warm_up()
    verdict = machine.measure()
    assert machine.said == list(BOTH)
    assert verdict.exchange == "delta"
    assert verdict.rates == pytest.approx({"direct": 1024.0, "delta": 2048.0, "one worker": 768.0}, rel=1e-6)
    assert verdict.speedup == pytest.approx(2048 / 768, rel=1e-6)
    assert verdict.why == "2.00 times as fast as direct"


def test_what_is_given_is_measured_against_one_worker_alone_and_stays() -> None:
    machine = Machine(FASTER, (DIRECT, SOLO, SOLO, DIRECT), "direct").warm_up()
    verdict = machine.measure()
    assert machine.said == [DIRECT, SOLO, SOLO, DIRECT]
    assert (verdict.exchange, verdict.why) == ("direct", "as given")
    assert verdict.speedup == pytest.approx(1024 / 768, rel=1e-6) and "delta" not in verdict.rates


def test_the_answer_to_a_slice_is_how_many_updates_an_exchange_has_in_it() -> None:
    machine = Machine(FASTER, sync_every=8).warm_up()
    assert machine.is_due()
    answers = [machine.pause()]
    for _ in BOTH:
        machine.slice()
        answers.append(machine.pause())
    assert answers == [{DIRECT: 1, DELTA: 8, SOLO: 1}[way] for way in BOTH] + [None]


def test_nothing_is_measured_before_every_worker_is_warm() -> None:
    machine = Machine(FASTER)
    machine.board.words[0, Word.BATCHES] = 1000
    machine.board.words[1, Word.BATCHES] = WARM_BATCHES - 1
    assert not machine.is_due()
    machine.board.words[1, Word.BATCHES] = WARM_BATCHES
    assert not machine.trial.is_due(machine.now, all_train=False, left_s=PLENTY_S)
    assert machine.is_due()


def test_a_pause_for_something_else_begins_no_slice_while_nobody_is_warm() -> None:
    """A checkpoint or an evaluation in the first second: nobody knows yet how long a slice must be."""
    machine = Machine(FASTER)
    machine.work()
    assert machine.pause() is None and machine.said == []
    assert not machine.trial.is_over
    assert machine.warm_up().measure().exchange == "delta"
    assert machine.said == list(BOTH)


def test_a_job_that_is_soon_over_measures_nothing() -> None:
    machine = Machine(FASTER).warm_up()
    machine.left_s = WORTH * SHORTEST_S * len(BOTH) - 0.01
    assert not machine.is_due()
    assert machine.trial.is_over and machine.trial.verdict is not None
    assert (machine.trial.verdict.exchange, machine.trial.verdict.speedup) == ("direct", None)
    assert machine.trial.verdict.why == "not measured: the job is too short"
    assert machine.pause() is None


@pytest.mark.parametrize("given", ["direct", "delta"])
def test_a_short_job_does_what_it_was_given(given: str) -> None:
    machine = Machine(FASTER, ways=(Way(given), SOLO, SOLO, Way(given)), given=given).warm_up()
    machine.left_s = 0.0
    assert not machine.is_due()
    assert machine.trial.verdict == Verdict(given, {}, "not measured: the job is too short")


@pytest.mark.parametrize(
    ("updates_per_s", "sync_every", "slice_s"),
    [(10_000.0, 8, SHORTEST_S), (100.0, 8, 0.3), (100.0, 16, 0.48), (10_000.0, 2000, 0.6), (4.0, 8, LONGEST_S)],
)
def test_a_slice_holds_so_many_updates_and_flushes_and_is_neither_very_short_nor_long(
    updates_per_s: float, sync_every: int, slice_s: float
) -> None:
    machine = Machine(dict.fromkeys(Way, updates_per_s), sync_every=sync_every)
    for worker in range(machine.procs):
        machine.board.words[worker, Word.BATCHES] = machine.board.words[worker, Word.UPDATES] = 100
        machine.board.words[worker, Word.BUSY_NS] = round(100 / updates_per_s * 1e9)
    assert machine.is_due()
    machine.pause()
    machine.slice()
    assert slice_s <= machine.lengths_s[0] < slice_s + 2 * STEP_S


@pytest.mark.parametrize(("max_time_s", "left_s"), [(None, 90.0), (200.0, 90.0), (40.0, 30.0), (5.0, -5.0)])
def test_what_is_left_of_a_job_ends_with_its_time(max_time_s: float | None, left_s: float) -> None:
    """Nothing is measured in a job that stops before it pays, whatever it has planned."""
    board = Scoreboard.allocate(2)
    board.control[Control.BASE_UPDATES] = 50
    board.words[0, Word.FIRST_NS] = 7 * 10**9
    board.words[:2, Word.UPDATES] = 50
    session = SimpleNamespace(
        board=board,
        job=SimpleNamespace(train=SimpleNamespace(max_time_s=max_time_s)),
        queue=SimpleNamespace(planned_updates=1050, updates=150),
        trained_s=lambda now: now - 7.0,
    )
    assert Session.left_s(session, 17.0) == pytest.approx(left_s)  # type: ignore[arg-type]


# ---- slices that do not count ---------------------------------------------------------------------------------------


def begun(pace: Mapping[Way, float] = FASTER) -> Machine:
    machine = Machine(pace).warm_up()
    assert machine.is_due()
    machine.pause()
    return machine


def finish(machine: Machine) -> Verdict:
    while not machine.trial.is_over:
        machine.slice()
        machine.pause()
    assert machine.trial.verdict is not None
    return machine.trial.verdict


def test_a_slice_in_which_a_worker_was_replaced_is_measured_again() -> None:
    machine = begun()
    machine.slice()
    machine.board.renew(1, 2)
    machine.pause()
    assert machine.said == [DIRECT, DIRECT]
    assert finish(machine).rates["direct"] == pytest.approx(1024.0, rel=1e-6)
    assert machine.said == [DIRECT, *BOTH]


def test_a_slice_in_which_a_worker_died_and_is_not_back_yet_is_measured_again() -> None:
    machine = begun()
    machine.work()
    machine.dead = {1}
    machine.slice()
    machine.pause()
    machine.dead = set()
    assert finish(machine).rates["direct"] == pytest.approx(1024.0, rel=1e-6)
    assert machine.said == [DIRECT, *BOTH]


@pytest.mark.parametrize(("share", "counts"), [(ENOUGH - 0.05, False), (ENOUGH + 0.05, True)])
def test_a_slice_that_another_pause_cut_short_is_measured_again(share: float, counts: bool) -> None:
    machine = begun(dict.fromkeys(Way, 64.0))
    machine.slice()
    whole_s = machine.lengths_s[0]
    machine.pause()
    began = machine.now
    while machine.now - began < share * whole_s:
        machine.work(STEP_S / 8)
    machine.pause()
    assert machine.said == ([DIRECT, DELTA, SOLO] if counts else [DIRECT, DELTA, DELTA])


def test_a_slice_in_which_nothing_was_committed_is_measured_again() -> None:
    machine = begun()
    while not machine.is_due():
        machine.work(count=False)
    machine.pause()
    assert machine.said == [DIRECT, DIRECT]


def test_a_job_whose_workers_keep_dying_is_not_measured_for_ever() -> None:
    machine = begun()
    for incarnation in range(1, 200):
        machine.slice()
        machine.board.words[0, Word.INCARNATION] = incarnation
        if machine.pause() is None:
            break
    assert MOST_SLICES <= len(machine.said) < MOST_SLICES + len(BOTH)
    assert machine.trial.verdict == Verdict(
        "direct", {}, "not measured: too little time between pauses, or a worker died"
    )


def test_waiting_for_the_slowest_to_park_is_no_part_of_a_slice() -> None:
    machine = Machine(FASTER).warm_up()
    assert machine.is_due()
    machine.pause()
    while not machine.trial.is_over:
        machine.slice()
        machine.now += 100.0
        machine.pause()
    assert machine.trial.verdict is not None
    assert machine.trial.verdict.rates["delta"] == pytest.approx(2048.0, rel=1e-6)


# ---- the choice -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delta", "exchange", "why"),
    [
        (2.0, "delta", "2.00 times as fast as direct"),
        (1.06, "delta", "1.06 times as fast as direct"),
        (1.04, "direct", "delta is 1.04 times as fast, and its updates are older"),
        (0.5, "direct", "delta is 0.50 times as fast, and its updates are older"),
    ],
)
def test_delta_must_be_clearly_faster(delta: float, exchange: str, why: str) -> None:
    verdict = choose({DIRECT: [100.0, 90.0, 500.0], DELTA: [delta * 100.0], SOLO: [50.0]}, None, "")
    assert (verdict.exchange, verdict.why) == (exchange, why)
    assert verdict.speedup == pytest.approx((delta if exchange == "delta" else 1.0) * 2)


@pytest.mark.parametrize("rates", [{DIRECT: [1.0], DELTA: [], SOLO: [1.0]}, {DIRECT: [], DELTA: [9.0], SOLO: []}])
def test_without_both_measures_it_stays_direct(rates: Mapping[Way, Sequence[float]]) -> None:
    assert choose(rates, None, "").exchange == "direct"


def test_the_choice_is_one_line_with_the_figures_in_samples() -> None:
    verdict = choose({DIRECT: [1000.0], DELTA: [2000.0], SOLO: [900.0]}, None, "")
    assert words_of(verdict, 64) == (
        "exchange delta: 2.00 times as fast as direct (samples/s: direct 64,000, delta 128,000, one worker 57,600)"
    )
    assert words_of(Verdict("direct", {}, "not measured: the job is too short"), 64) == (
        "exchange direct: not measured: the job is too short"
    )


def job_with(train: str = "{}", optimizer: str = "{}") -> Job:
    text = f"model: {{class_path: a.B}}\ndata: {{train: {{class_path: a.C}}}}\ntrain: {train}\noptimizer: {optimizer}\n"
    return load_job(Path("job.yaml"), source_text=text)


ALONE = (DIRECT, SOLO, SOLO, DIRECT)
GIVEN_DELTA = (DELTA, SOLO, SOLO, DELTA)
SHARED = "{state: shared}"


@pytest.mark.parametrize(
    ("job", "procs", "sparse", "has_room", "ways", "begins", "why"),
    [
        (job_with(), 2, False, True, BOTH, "direct", ""),
        (job_with(), 1, False, True, (), "direct", "only one worker"),
        (job_with(), 0, False, True, (), "direct", "only one worker"),
        (job_with(), 2, True, True, ALONE, "direct", "sparse gradients"),
        (job_with(), 2, False, False, ALONE, "direct", "too little memory for the copies"),
        (job_with(optimizer=SHARED), 2, False, True, ALONE, "direct", "a shared optimizer state"),
        (job_with("{exchange: direct}"), 4, False, True, ALONE, "direct", "as given"),
        (job_with("{exchange: delta}"), 4, False, True, GIVEN_DELTA, "delta", "as given"),
        (job_with("{exchange: delta}"), 4, True, False, GIVEN_DELTA, "delta", "as given"),
        (job_with("{exchange: delta}"), 1, False, True, (), "direct", "as given"),
    ],
)
def test_only_what_is_open_is_measured_and_one_worker_measures_nothing(
    job: Job, procs: int, sparse: bool, has_room: bool, ways: Sequence[Way], begins: str, why: str
) -> None:
    said = why_settled(job, procs, sparse=sparse, has_room=has_room, shared=job.optimizer.state == "shared")
    assert why in said and bool(why) == bool(said)
    assert ways_of(job, procs, said) == ways
    assert exchange_of(job, procs) == begins


def test_updates_that_are_dropped_are_no_speed() -> None:
    """With max_staleness most of delta's updates may be too old; dropping them is quickly done."""
    machine = Machine({DIRECT: 640.0, DELTA: 6400.0, SOLO: 640.0}, applied={DELTA: 20}).warm_up()
    assert machine.measure().exchange == "direct"


def test_a_slice_is_never_shorter_than_two_updates() -> None:
    machine = Machine({DIRECT: 1 / 16, DELTA: 1 / 16, SOLO: 1 / 16}).warm_up()
    assert machine.is_due()
    machine.pause()
    machine.slice()
    assert machine.lengths_s[-1] >= 32.0
