"""The life of workers as tables: events at times of a fake clock go in, actions come out. No process, no waiting."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from hogwild.errors import CrashLoop, Deadlocked, HogwildError, TrainingError, UserCodeError, WorkersLost
from hogwild.workers.messages import Report
from hogwild.workers.processes.roster import (
    FIRST_BACKOFF_S,
    GAP_S,
    LONGEST_BACKOFF_S,
    UNDEAD_S,
    Abandon,
    Action,
    Death,
    End,
    Fail,
    Kill,
    Leave,
    Moment,
    Role,
    Roster,
    RowReading,
    Spawn,
    State,
    limits_of,
)

STEP_S = 0.25  # between two ticks; a binary fraction, so that sums of it are exact


@dataclass
class Supervise:
    """The section of a job, small enough to count along; nothing interferes unless a test says so."""

    max_restarts: int = 10
    window_s: float = 60.0
    start_timeout_s: float = 20.0
    stall_timeout_s: float = 5.0
    deadlock_timeout_s: float = 1000.0
    min_workers: int = 1
    max_item_attempts: int = 1000
    grace_s: float = 10.0


@dataclass
class FakeWorker:
    """The progress in a worker's row."""

    beat: int = 0
    batches: int = 0
    slowest_s: float = 0.0
    has_lease: bool = False
    idle: bool = False
    beats: bool = True
    alive: bool = False

    def commit(self) -> None:
        self.batches += 1
        self.beat += 1

    def reading(self) -> RowReading:
        self.beat += self.beats
        return RowReading(self.beat, self.batches, self.slowest_s, self.has_lease, self.idle)


@dataclass
class Stage:
    """A roster, its clock and its workers. `log` holds (time, action) of everything the roster asked for."""

    procs: int = 1
    policy: Supervise = field(default_factory=Supervise)
    now: float = 100.0
    paused: bool = False
    committed_before: bool = False
    by_records: bool = False
    needed: int = 1
    has_unfinished_work: bool = False
    filled: int = 0
    workers: list[FakeWorker] = field(default_factory=list)
    log: list[tuple[float, Action]] = field(default_factory=list)

    def __post_init__(self) -> None:
        limits = limits_of(Role.LOADER if self.by_records else Role.WORKER, self.policy, needed=self.needed)
        self.roster = Roster(Role.LOADER if self.by_records else Role.WORKER, limits, self.procs, self.committed_before)
        self.workers = [FakeWorker() for _ in range(self.procs)]

    def tick(self) -> list[Action]:
        readings = {k: worker.reading() for k, worker in enumerate(self.workers) if worker.alive}
        moment = Moment(paused=self.paused, has_unfinished_work=self.has_unfinished_work, filled=self.filled)
        actions = self.roster.tick(self.now, readings, moment)
        for action in actions:
            if isinstance(action, Spawn):
                self.workers[action.worker].alive = True
        self.log += [(self.now, action) for action in actions]
        return actions

    def run(self, seconds: float) -> list[Action]:
        """Ticks for so long; what was asked for meanwhile."""
        found: list[Action] = []
        for _ in range(round(seconds / STEP_S)):
            self.now += STEP_S
            found += self.tick()
        return found

    def run_until_kill(self, limit_s: float = 100.0) -> float:
        """Seconds until the one kill that must come."""
        began = self.now
        while self.now - began < limit_s:
            kills = [action for action in self.run(STEP_S) if isinstance(action, Kill)]
            if kills:
                assert len(kills) == 1
                return self.now - began
        raise AssertionError(f"nobody was killed in {limit_s:g} s")

    def die(
        self,
        worker: int = 0,
        report: Report | None = None,
        charged: tuple[int, int] | None = None,
        *,
        left: bool = False,
        is_excused: bool = False,
    ) -> list[Action]:
        """The process is gone and reaped, now."""
        fake = self.workers[worker]
        end = self.roster.ending(worker, left=left, fenced=False)
        death = Death("killed by SIGKILL", report, charged, fake.batches, end, is_excused)
        actions = self.roster.exited(worker, self.now, death)
        fake.alive, fake.has_lease, fake.idle, fake.beats = False, False, False, True
        return actions

    def seconds_until_spawn(self) -> float:
        """Ticks of 1/64 s, so that a backoff of 0.1 s shows."""
        began = self.now
        while not any(isinstance(action, Spawn) for action in self.tick()):
            self.now += 1 / 64
            assert self.now - began < 10
        return self.now - began

    @property
    def kill(self) -> Kill:
        """The one kill so far."""
        (kill,) = [action for _, action in self.log if isinstance(action, Kill)]
        return kill

    # stages on the way

    def starting(self) -> "Stage":
        assert self.tick() == [Spawn(worker, 1) for worker in range(self.procs)]
        return self

    def ready(self) -> "Stage":
        self.starting()
        for worker in range(self.procs):
            self.roster.ready(worker)
        assert self.tick() == []
        return self

    def training(self) -> "Stage":
        """Everybody has committed a batch and holds another lease."""
        self.ready()
        for worker in self.workers:
            worker.batches, worker.has_lease = 1, True
        assert self.run(STEP_S) == []
        assert {slot.state for slot in self.roster.slots} == {State.TRAINING}
        return self

    def state(self, worker: int = 0) -> State:
        return self.roster.slots[worker].state


def failure(actions: list[Action]) -> HogwildError:
    (fail,) = actions
    assert isinstance(fail, Fail)
    return fail.error


def raised(
    place: str = "mymodel.py:7", kind: str = "ValueError", detail: str = "ValueError: no", code: str = ""
) -> Report:
    """An error with a code of ours comes again in every process."""
    traceback = "Traceback: the words\n"
    return Report("error", detail, kind, place, hopeless=bool(code), traceback=traceback, code=code)


# ---- being born -----------------------------------------------------------------------------------------------------


def test_the_first_tick_starts_everybody_and_the_next_nobody() -> None:
    stage = Stage(procs=3)
    assert stage.tick() == [Spawn(0, 1), Spawn(1, 1), Spawn(2, 1)]
    assert stage.run(1.0) == []


def test_only_workers_that_look_at_the_control_row_are_waited_for_in_a_pause() -> None:
    stage = Stage(procs=4).starting()
    for worker in (1, 2, 3):
        stage.roster.ready(worker)
    stage.workers[2].batches = 1
    stage.run(STEP_S)
    stage.die(3)
    states = [slot.state for slot in stage.roster.slots]
    assert states == [State.STARTING, State.READY, State.TRAINING, State.EMPTY]
    assert stage.roster.attached() == [1, 2]


def test_a_worker_that_is_killed_is_neither_attached_nor_revived_by_a_late_ready() -> None:
    stage = Stage(procs=2).training()
    stage.workers[0].beats = False
    stage.run_until_kill()
    assert stage.roster.is_anyone_dying
    assert stage.roster.attached() == [1]
    stage.roster.ready(0)
    assert stage.state() is State.DYING
    assert stage.run(UNDEAD_S) == []  # killed once, not once a tick
    stage.die(0)
    assert not stage.roster.is_anyone_dying


# ---- the start clock ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("paused", "by_records"), [(False, False), (True, False), (False, True)])
def test_who_does_not_get_ready_is_killed_at_the_start_timeout_in_a_pause_too(paused: bool, by_records: bool) -> None:
    stage = Stage(by_records=by_records).starting()
    stage.paused = paused
    assert stage.run_until_kill() == 20.0 + STEP_S
    assert stage.kill == Kill(0, "could not start: did not get ready in 20 s", 20.0 + STEP_S)


@pytest.mark.parametrize("idle", [True, False])  # False: between saying ready and beginning to wait
def test_the_start_clock_stands_still_while_a_worker_is_ready_without_a_lease(idle: bool) -> None:
    stage = Stage().starting()
    assert stage.run(12.0) == []
    stage.roster.ready(0)
    stage.workers[0].idle = idle
    assert stage.run(500.0) == []  # an evaluation may keep it waiting for long; it beats
    stage.workers[0].idle, stage.workers[0].has_lease = False, True
    assert stage.run_until_kill() == 8.0 + STEP_S  # 12 s were used up before
    assert stage.kill.why == "could not start: did not finish its first batch in 20 s"


def test_a_first_batch_may_take_longer_than_the_stall_limit() -> None:
    stage = Stage().ready()
    stage.workers[0].has_lease, stage.workers[0].beats = True, False  # compiling, say
    assert stage.run(19.0) == []
    stage.workers[0].commit()
    assert stage.run(STEP_S) == []
    assert stage.state() is State.TRAINING
    assert stage.run_until_kill() == 5.0 + STEP_S  # from now on the stall limit holds, counted from the commit


def test_a_first_batch_that_hangs_cannot_hang_a_pause() -> None:
    stage = Stage().ready()
    stage.workers[0].has_lease, stage.workers[0].beats = True, False
    stage.run(2.0)
    stage.paused = True
    assert stage.run_until_kill() == 20.0 + STEP_S  # the larger of the two limits: it may be compiling
    assert stage.kill.why.startswith("stalled: silent for 20.2")


# ---- the silence clock ----------------------------------------------------------------------------------------------


def test_time_in_which_everything_was_stopped_is_no_slow_batch() -> None:
    """It is longer than the limits allow: 20 times that would disarm the stall limit for hours."""
    stage = Stage().training()
    stage.workers[0].slowest_s = 600.0
    assert stage.run(STEP_S) == []
    stage.workers[0].beats = False
    assert stage.run_until_kill() == 5.0 + STEP_S


@pytest.mark.parametrize(
    ("slowest_s", "limit_s"),
    [
        (0.0, 5.0),
        (0.125, 5.0),  # 20 x 0.125 = 2.5: less than stall_timeout_s
        (0.25, 5.0),
        (0.5, 10.0),
        (2.0, 40.0),
    ],
)
def test_the_stall_limit_is_the_larger_of_the_setting_and_twenty_times_the_slowest_batch(
    slowest_s: float, limit_s: float
) -> None:
    stage = Stage().training()
    stage.workers[0].slowest_s, stage.workers[0].beats = slowest_s, False
    assert stage.run_until_kill() == limit_s + STEP_S
    assert stage.kill == Kill(
        0, f"stalled: silent for {limit_s + STEP_S:.1f} s (limit {limit_s:g} s)", limit_s + STEP_S
    )


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("has_trained", [False, True])
def test_a_waiting_or_parked_worker_that_stops_beating_is_killed(paused: bool, has_trained: bool) -> None:
    stage = Stage().training() if has_trained else Stage().ready()
    stage.workers[0].has_lease, stage.workers[0].idle = False, True
    stage.paused = paused
    assert stage.run(50.0) == []  # it beats
    stage.workers[0].beats = False
    assert stage.run_until_kill() == 5.0 + STEP_S


def test_one_beat_starts_the_silence_anew() -> None:
    stage = Stage().training()
    for _ in range(10):
        stage.workers[0].beats = False
        assert stage.run(5.0) == []
        stage.workers[0].beats = True
        assert stage.run(STEP_S) == []


def test_only_the_silent_one_is_killed() -> None:
    stage = Stage(procs=3).training()
    stage.workers[1].beats = False
    stage.run_until_kill()
    assert stage.kill.worker == 1


def test_a_new_incarnation_does_not_inherit_the_silence_of_the_old_one() -> None:
    stage = Stage().training()
    stage.workers[0].beats = False
    stage.run_until_kill()
    stage.die()
    stage.seconds_until_spawn()
    assert stage.state() is State.STARTING
    stage.workers[0].beats = False  # an importing worker does not beat
    assert stage.run_until_kill() == 20.0 + STEP_S


# ---- nobody commits -------------------------------------------------------------------------------------------------


def deadlocked_after(stage: Stage, limit_s: float = 200.0) -> float:
    began = stage.now
    while stage.now - began < limit_s:
        actions = stage.run(STEP_S)
        if actions:
            error = failure(actions)
            assert isinstance(error, Deadlocked)
            assert "no worker committed a batch for 30 s (supervise.deadlock_timeout_s)" in str(error)
            return stage.now - began
    raise AssertionError(f"no deadlock was seen in {limit_s:g} s")


def test_workers_that_beat_and_hold_leases_but_commit_nothing_are_a_deadlock() -> None:
    stage = Stage(procs=2, policy=Supervise(deadlock_timeout_s=30.0)).training()
    assert deadlocked_after(stage) == 30.0 + STEP_S


def test_one_commit_of_anybody_starts_the_deadlock_clock_anew() -> None:
    stage = Stage(procs=2, policy=Supervise(deadlock_timeout_s=30.0)).training()
    for _ in range(4):
        assert stage.run(30.0) == []
        stage.workers[1].commit()
        assert stage.run(STEP_S) == []
    assert deadlocked_after(stage) == 30.0 + STEP_S


def waiting(**given: bool) -> Stage:
    """Nobody has a lease any more, and everybody beats."""
    stage = Stage(procs=2, policy=Supervise(deadlock_timeout_s=30.0)).training()
    for worker in stage.workers:
        worker.has_lease, worker.idle = False, True
    for name, value in given.items():
        setattr(stage, name, value)
    return stage


@pytest.mark.parametrize(
    ("has_lease", "has_unfinished_work", "paused"),
    [(False, False, False), (False, True, True), (True, False, True)],
    ids=["a loader reads, or all is done", "pause without a lease", "pause"],
)
def test_waiting_or_a_pause_however_long_is_no_deadlock(
    has_lease: bool, has_unfinished_work: bool, paused: bool
) -> None:
    stage = waiting(has_unfinished_work=has_unfinished_work, paused=paused)
    for worker in stage.workers:
        worker.has_lease, worker.idle = has_lease, not has_lease
    assert stage.run(300.0) == []


def test_waiting_for_what_nobody_does_is_a_deadlock() -> None:
    stage = waiting(has_unfinished_work=True)
    assert stage.run(30.0) == []
    error = failure(stage.run(STEP_S))
    assert isinstance(error, Deadlocked)
    assert "no batch was committed or filled for 30 s (supervise.deadlock_timeout_s): no worker has a batch" in str(
        error
    )


def test_workers_that_never_got_a_lease_are_a_deadlock_too() -> None:
    stage = Stage(procs=2, policy=Supervise(deadlock_timeout_s=30.0), has_unfinished_work=True).ready()
    for worker in stage.workers:
        worker.idle = True
    assert stage.run(30.0) == []
    assert isinstance(failure(stage.run(STEP_S)), Deadlocked)


def test_a_batch_that_was_filled_starts_the_deadlock_clock_anew() -> None:
    stage = waiting(has_unfinished_work=True)
    for _ in range(4):
        assert stage.run(30.0) == []
        stage.filled += 1
        assert stage.run(STEP_S) == []


def test_a_start_that_takes_long_is_no_deadlock_and_hides_none() -> None:
    policy = Supervise(deadlock_timeout_s=30.0, start_timeout_s=1000.0, max_restarts=100)
    stage = Stage(procs=2, policy=policy, has_unfinished_work=True).training()
    stage.workers[0].has_lease, stage.workers[0].idle = False, True
    assert stage.die(1) == []
    stage.seconds_until_spawn()
    assert stage.run(300.0) == [], "worker 1 starts, and its own clock has not rung"
    stage.roster.ready(1)
    stage.workers[1].idle = True
    assert stage.run(29.0) == []
    assert isinstance(failure(stage.run(2.0)), Deadlocked)


def test_pauses_for_checkpoints_do_not_hide_a_deadlock() -> None:
    """Checkpoints come once a minute by default, the limit is five minutes."""
    stage = Stage(procs=2, policy=Supervise(deadlock_timeout_s=30.0)).training()
    for _ in range(3):
        assert stage.run(10.0) == []
        stage.paused = True
        assert stage.run(2.0) == []
        stage.paused = False
    assert deadlocked_after(stage) == STEP_S


def test_a_worker_that_is_replaced_again_and_again_does_not_hide_a_deadlock() -> None:
    stage = Stage(policy=Supervise(deadlock_timeout_s=30.0, max_restarts=100)).training()
    assert stage.run(10.0) == []
    for held_s in (10.0, 9.75):
        stage.die()
        stage.seconds_until_spawn()
        assert stage.run(1.0) == []  # starting: nobody has a lease
        stage.roster.ready(0)
        stage.workers[0].has_lease = True
        assert stage.run(held_s) == []
    assert deadlocked_after(stage) <= 2 * STEP_S


# ---- loaders: a beat is a record read -------------------------------------------------------------------------------


def loaders(procs: int = 1, *, first: bool = True, deadlock_s: float = 1000.0) -> Stage:
    """With something in hand to read: their first batch, or another."""
    stage = Stage(procs, Supervise(deadlock_timeout_s=deadlock_s), by_records=True)
    if not first:
        return stage.training()
    stage.ready()
    for worker in stage.workers:
        worker.has_lease = True
    return stage


@pytest.mark.parametrize("first", [True, False])
def test_a_loader_that_reads_records_may_take_as_long_as_it_likes_for_a_batch(first: bool) -> None:
    stage = loaders(first=first, deadlock_s=30.0)
    for _ in range(100):  # a record in 4 s: the stall limit is 5
        stage.workers[0].beats = False
        assert stage.run(4.0 - STEP_S) == []
        stage.workers[0].beats = True
        assert stage.run(STEP_S) == []
    assert stage.state() is (State.READY if first else State.TRAINING)


@pytest.mark.parametrize(("first", "limit_s"), [(True, 20.0), (False, 5.0)])
def test_a_loader_that_reads_no_record_is_killed_for_its_silence(first: bool, limit_s: float) -> None:
    stage = loaders(first=first)
    assert stage.run(100.0) == []
    stage.workers[0].beats = False
    assert stage.run_until_kill() == limit_s + STEP_S
    assert stage.kill.why.startswith("stalled: silent for")


def silent(stage: Stage, number: int, slowest_s: float = 1.0) -> None:
    """From now on it reads no record, and 20 x `slowest_s` may pass before that is a stall."""
    stage.workers[number].slowest_s = slowest_s
    stage.run(STEP_S)
    stage.workers[number].beats = False


def test_loaders_of_whom_none_reads_a_record_are_a_deadlock_that_names_them() -> None:
    stage = loaders(3, first=False, deadlock_s=10.0)
    stage.workers[2].has_lease, stage.workers[2].idle = False, True  # it has nothing to read, and beats while it waits
    silent(stage, 0)
    silent(stage, 1)
    began = stage.now
    while not (found := stage.run(STEP_S)):
        assert stage.now - began < 100.0
    error = failure(found)
    assert isinstance(error, Deadlocked)
    assert "no loader read a record for 10 s (supervise.deadlock_timeout_s); loader 0, loader 1 had" in str(error)
    assert stage.now - began == 10.0 + STEP_S


def test_one_loader_that_reads_is_no_deadlock_while_another_is_silent() -> None:
    stage = loaders(2, first=False, deadlock_s=10.0)
    silent(stage, 0)
    assert stage.run(19.0) == []


def test_a_loader_that_waits_for_what_it_has_been_sent_hides_no_deadlock() -> None:
    stage = loaders(deadlock_s=10.0)
    stage.workers[0].idle = True
    stage.run(STEP_S)
    assert stage.run(10.0) == []
    assert isinstance(failure(stage.run(STEP_S)), Deadlocked)


# ---- a supervisor that stood still ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["starting", "first batch", "stalled", "deadlocked"])
def test_a_pause_of_the_supervisor_itself_counts_for_nobody_and_arms_every_deadline_anew(kind: str) -> None:
    stage = Stage(policy=Supervise(deadlock_timeout_s=30.0))
    limits = {"starting": 20.0, "first batch": 20.0, "stalled": 5.0, "deadlocked": 30.0}
    begin = {"starting": stage.starting, "first batch": stage.ready, "stalled": stage.training}
    begin.get(kind, stage.training)()
    worker = stage.workers[0]
    worker.has_lease, worker.beats = kind != "starting", kind in ("starting", "deadlocked")
    assert stage.run(limits[kind]) == []  # one tick more would be too long
    stage.now += 3600.0  # the laptop was closed
    assert stage.tick() == []
    assert stage.run(limits[kind]) == []
    assert len(stage.run(STEP_S)) == 1


def test_ticks_that_are_slow_but_below_the_gap_do_count() -> None:
    stage = Stage().training()
    stage.workers[0].beats = False
    seconds = 0.0
    while not stage.tick():
        stage.now += GAP_S
        seconds += GAP_S
        assert seconds < 20
    assert seconds == 6.0


# ---- coming back ----------------------------------------------------------------------------------------------------


def test_the_backoff_doubles_from_a_tenth_of_a_second_to_five() -> None:
    stage = Stage(policy=Supervise(max_restarts=100)).ready()
    expected = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert (expected[0], expected[-1]) == (FIRST_BACKOFF_S, LONGEST_BACKOFF_S)
    for death, backoff_s in enumerate(expected):
        assert stage.die() == []
        waited = stage.seconds_until_spawn()
        assert backoff_s <= waited < backoff_s + 1 / 64 + 1e-9, f"death {death}"
        stage.roster.ready(0)


def test_a_worker_that_has_committed_since_its_start_is_replaced_at_once_and_its_backoff_begins_again() -> None:
    stage = Stage(policy=Supervise(max_restarts=100)).ready()
    for _ in range(5):
        stage.die()
        stage.seconds_until_spawn()
        stage.roster.ready(0)
    stage.workers[0].batches += 1  # seen by no tick: only its row said so when it was reaped
    stage.die()
    assert stage.seconds_until_spawn() == 0
    stage.die()
    assert FIRST_BACKOFF_S <= stage.seconds_until_spawn() < 2 * FIRST_BACKOFF_S


def test_deaths_past_the_largest_power_of_two_are_no_overflow() -> None:
    stage = Stage(policy=Supervise(max_restarts=10**6)).ready()
    stage.roster.slots[0].vain_starts = 1_100
    stage.die()
    assert stage.seconds_until_spawn() <= LONGEST_BACKOFF_S + 1 / 64


def test_every_start_is_a_new_incarnation_and_restarts_count_deaths() -> None:
    stage = Stage(procs=2).training()
    for incarnation in (2, 3, 4):
        stage.die(1)
        stage.seconds_until_spawn()
        assert stage.log[-1][1] == Spawn(1, incarnation)
        stage.roster.ready(1)
    assert stage.roster.restarts == 3
    assert stage.roster.slots[0].incarnation == 1


# ---- the restart budget ---------------------------------------------------------------------------------------------


def deaths(stage: Stage, worker: int, count: int, apart_s: float) -> list[Action]:
    """The answer to the last of them."""
    actions: list[Action] = []
    for _ in range(count):
        actions = stage.die(worker)
        began = stage.now
        if stage.state(worker) is State.RETIRED:
            break
        stage.seconds_until_spawn()
        stage.roster.ready(worker)
        stage.workers[worker].commit()
        stage.run(apart_s - (stage.now - began))
        stage.now = began + apart_s
    return actions


def test_one_death_more_than_the_budget_of_the_window_retires_a_worker() -> None:
    stage = Stage(procs=2, policy=Supervise(max_restarts=3, window_s=60.0)).training()
    assert deaths(stage, 0, 3, 5.0) == []
    assert stage.state() is State.TRAINING
    assert deaths(stage, 0, 1, 5.0) == []  # the other one is enough for min_workers
    assert stage.state() is State.RETIRED
    assert not [action for action in stage.run(200.0) if isinstance(action, Spawn)]
    assert stage.roster.restarts == 3


def test_deaths_that_are_older_than_the_window_are_forgiven() -> None:
    stage = Stage(policy=Supervise(max_restarts=3, window_s=60.0)).training()
    assert deaths(stage, 0, 20, 20.5) == []
    assert stage.state() is not State.RETIRED


def test_the_budget_is_each_workers_own() -> None:
    stage = Stage(procs=3, policy=Supervise(max_restarts=2, min_workers=3)).training()
    for worker in range(3):
        assert deaths(stage, worker, 2, 3.0) == []
    assert State.RETIRED not in {slot.state for slot in stage.roster.slots}


# ---- starts that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("procs", "needed", "by_records", "rule"),
    [
        (1, 1, False, "supervise.min_workers is 1"),
        (3, 1, False, "supervise.min_workers is 1"),
        (3, 2, False, "supervise.min_workers is 2"),
        (3, 3, False, "supervise.min_workers is 3"),
        (3, 1, True, "at least one must read the stream"),
        (3, 3, True, "each reads its own part of the stream"),
    ],
)
def test_without_restarts_the_job_fails_with_the_first_death_that_leaves_too_few(
    procs: int, needed: int, by_records: bool, rule: str
) -> None:
    """The number of loaders that are needed is no setting of workers."""
    policy = Supervise(max_restarts=0, min_workers=2 if by_records else needed)
    stage = Stage(procs, policy, by_records=by_records, needed=needed).training()
    can_lose, kind = procs - needed, "loader" if by_records else "worker"
    for worker in range(can_lose):
        assert stage.die(worker) == []
    error = failure(stage.die(can_lose))
    assert isinstance(error, WorkersLost)
    assert f"{kind} {can_lose} died more than 0 times in 60 s; {needed - 1} of {procs} {kind}s left, {rule}" in str(
        error
    )
    assert "Last: killed by SIGKILL" in str(error) and ("min_workers" in str(error)) != by_records


@pytest.mark.parametrize("crime", ["exits", "hangs", "exits, hangs, exits"])
def test_three_starts_that_failed_in_a_row_retire_a_worker(crime: str) -> None:
    stage = Stage(procs=2, policy=Supervise(min_workers=2)).starting()
    stage.roster.ready(1)
    stage.workers[1].idle = True
    how: Iterator[str] = iter(crime.split(", ") if "," in crime else [crime] * 3)
    for attempt in (1, 2, 3):
        if next(how) == "hangs":
            assert stage.run_until_kill() == 20.0 + STEP_S  # counted once, although it is killed and then exits
        actions = stage.die(0)
        if attempt < 3:
            assert actions == []
            assert stage.state() is not State.RETIRED
            while stage.state() is not State.STARTING:
                stage.now += 1 / 64
                stage.tick()
    error = failure(actions)
    assert isinstance(error, WorkersLost)
    assert "worker 0 could not start 3 times in a row; 1 of 2 workers left" in str(error)


def test_a_start_that_succeeds_forgives_those_before() -> None:
    stage = Stage(policy=Supervise(max_restarts=100)).starting()
    for _ in range(6):
        for _ in range(2):
            assert stage.die() == []
            stage.seconds_until_spawn()
        stage.roster.ready(0)
        assert stage.die() == []
        stage.seconds_until_spawn()
    assert stage.state() is State.STARTING


# ---- exceptions in user code ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ready", [True, False])
def test_an_exception_before_the_first_commit_of_anybody_fails_the_job_with_its_traceback(is_ready: bool) -> None:
    stage = Stage(procs=2).ready() if is_ready else Stage(procs=2).starting()
    error = failure(stage.die(1, raised(detail="ValueError: 3 classes, label 7"), (0, 0) if is_ready else None))
    assert isinstance(error, UserCodeError)
    assert str(error) == "ValueError: 3 classes, label 7\n\nTraceback: the words"


def test_a_commit_that_no_tick_has_seen_counts_as_the_first_commit() -> None:
    stage = Stage().ready()
    stage.workers[0].batches = 1
    assert stage.die(0, raised(), (0, 1)) == []


def test_a_death_without_words_is_not_hopeless_even_before_the_first_commit() -> None:
    stage = Stage().ready()
    assert stage.die(0, None, (0, 0)) == []
    assert stage.die(0, Report("ready"), (0, 0)) == []


@dataclass(frozen=True)
class Raised:
    """One exception after the first commit; `commits`: batches anybody commits before it."""

    batch: int
    place: str = "mymodel.py:7"
    kind: str = "ValueError"
    epoch: int = 0
    commits: int = 0
    worker: int = 0


@pytest.mark.parametrize(
    ("events", "is_hopeless"),
    [
        ([Raised(3)], False),
        ([Raised(3), Raised(3), Raised(3), Raised(3)], False),  # one poison batch: quarantine deals with it
        ([Raised(3), Raised(4)], True),  # two batches, the same type and place, no commit between
        ([Raised(3), Raised(9, worker=1)], True),
        ([Raised(3), Raised(3), Raised(4)], True),
        ([Raised(3, epoch=0), Raised(3, epoch=1)], True),  # another epoch's batch is another one
        ([Raised(3), Raised(4, place="mymodel.py:8")], False),
        ([Raised(3), Raised(4, kind="KeyError")], False),
        ([Raised(3), Raised(4, commits=1)], False),
        ([Raised(3), Raised(4, commits=1), Raised(5)], True),
        ([Raised(3), Raised(5, kind="KeyError"), Raised(4)], True),  # what came between them does not matter
        ([Raised(3), Raised(3, commits=1), Raised(3, commits=1)], False),
        ([Raised(3), Raised(4, commits=1), Raised(3, commits=1), Raised(4, commits=1)], False),
    ],
)
def test_an_exception_fails_the_job_from_the_second_batch_at_the_same_place(
    events: list[Raised], is_hopeless: bool
) -> None:
    stage = Stage(procs=2, policy=Supervise(max_restarts=100)).training()
    for number, event in enumerate(events):
        stage.workers[1].batches += event.commits
        stage.run(STEP_S)
        actions = stage.die(event.worker, raised(event.place, event.kind), (event.epoch, event.batch))
        if number < len(events) - 1:
            assert actions == [], f"event {number}"
            stage.seconds_until_spawn()
            stage.roster.ready(0)
    assert [type(action) for action in actions] == ([Fail] if is_hopeless else [])
    if is_hopeless:
        assert isinstance(failure(actions), UserCodeError)


def test_exceptions_that_were_charged_to_no_batch_are_not_two_batches() -> None:
    """A new incarnation that raises while it starts: three failed starts are the limit there."""
    stage = Stage(procs=2).training()
    for _ in range(2):
        assert stage.die(0, raised(), None) == []
        stage.seconds_until_spawn()
    assert stage.die(1, raised(), (0, 1)) == []
    assert isinstance(failure(stage.die(1, raised(), (0, 2))), UserCodeError)


@pytest.mark.parametrize("committed", [0, 5])
def test_a_gradient_that_is_not_finite_fails_the_job_when_it_says_so_and_is_no_error_in_user_code(
    committed: int,
) -> None:
    stage = Stage().ready()
    stage.workers[0].batches = committed
    not_finite = raised(kind="NonFiniteGradient", code="train/not-finite", detail="the loss of epoch 0, batch 3 is NaN")
    error = failure(stage.die(0, not_finite, (0, 3)))
    assert (type(error), error.code) == (TrainingError, "train/not-finite")
    assert str(error) == "the loss of epoch 0, batch 3 is NaN"


def test_a_worker_with_an_exception_that_is_not_hopeless_is_replaced_like_any_other() -> None:
    stage = Stage().training()
    assert stage.die(0, raised(), (0, 3)) == []
    assert stage.seconds_until_spawn() == 0
    assert stage.roster.restarts == 1


# ---- what an end is called ------------------------------------------------------------------------------------------


def test_could_not_start_died_stalled_and_left_are_told_apart() -> None:
    def ending(stage: Stage, *, left: bool = False, fenced: bool = False) -> End:
        return stage.roster.ending(0, left=left, fenced=fenced)

    assert ending(Stage().starting()) is End.COULD_NOT_START
    assert ending(Stage().training()) is End.DIED
    assert ending(Stage().training(), left=True) is End.LEFT
    assert ending(Stage().training(), fenced=True) is End.STALLED

    slow_start = Stage().ready()
    slow_start.workers[0].has_lease = True
    slow_start.run_until_kill()
    assert ending(slow_start) is End.COULD_NOT_START

    silent = Stage().training()
    silent.workers[0].beats = False
    silent.run_until_kill()
    assert ending(silent, left=True) is End.STALLED  # why it was killed counts, not how it went
    silent.die()
    silent.seconds_until_spawn()
    silent.roster.ready(0)
    assert ending(silent) is End.DIED  # the next incarnation has an end of its own


@pytest.mark.parametrize(
    ("crimes", "words"),
    [
        (["dies", "dies"], "worker 0 died more than 1 times in 60 s"),
        (["stalls", "stalls"], "worker 0 stalled more than 1 times in 60 s"),
        (["stalls", "dies"], "worker 0 died or stalled more than 1 times in 60 s"),
    ],
)
def test_the_final_error_says_what_a_worker_did_too_often(crimes: list[str], words: str) -> None:
    stage = Stage(policy=Supervise(max_restarts=1)).training()
    for crime in crimes:
        if crime == "stalls":
            stage.workers[0].beats = False
            stage.run_until_kill()
        actions = stage.die()
        if not actions:
            stage.seconds_until_spawn()
            stage.roster.ready(0)
            stage.workers[0].commit()
            stage.run(STEP_S)
    assert str(failure(actions)).startswith(words)


# ---- who does not even die of SIGKILL -------------------------------------------------------------------------------


def test_a_process_that_survives_its_kill_is_left_and_its_place_is_never_given_away() -> None:
    stage = Stage(procs=2).training()
    stage.workers[0].beats = False
    stage.run_until_kill()
    assert stage.run(UNDEAD_S) == []
    assert stage.run(STEP_S) == [Abandon(0)]
    assert stage.state() is State.RETIRED
    assert not stage.roster.is_anyone_dying  # a pause does not wait for it
    assert stage.roster.abandoned(0, Death("it stays", end=End.STALLED)) == []
    assert stage.run(100.0) == []


def test_the_job_fails_when_those_that_do_not_die_leave_too_few() -> None:
    stage = Stage().training()
    stage.workers[0].beats = False
    stage.run_until_kill()
    stage.run(UNDEAD_S + STEP_S)
    error = failure(stage.roster.abandoned(0, Death("it stays", end=End.STALLED)))
    assert isinstance(error, WorkersLost)
    assert "worker 0 is still alive after SIGKILL; 0 of 1 workers left" in str(error)


# ---- the circuit breaker --------------------------------------------------------------------------------------------


def breaks_after(stage: Stage, most: int = 100, *, left: bool = False, aside_every: int = 0) -> tuple[int, str]:
    """Workers die in turn without a commit: (how many until the job fails, with what words); 0 when it does not."""
    for death in range(1, most + 1):
        worker = death % stage.procs
        actions = stage.die(worker, left=left, is_excused=aside_every > 0 and death % aside_every == 0)
        if actions:
            error = failure(actions)
            assert isinstance(error, CrashLoop)
            return death, str(error)
        while stage.state(worker) is not State.STARTING:
            stage.now += 1 / 16
            stage.tick()
        stage.roster.ready(worker)
    return 0, ""


@pytest.mark.parametrize(("procs", "attempts", "limit"), [(1, 3, 5), (2, 3, 6), (4, 3, 12), (8, 1, 8), (1, 1, 5)])
def test_deaths_of_all_together_without_a_commit_fail_the_job(procs: int, attempts: int, limit: int) -> None:
    stage = Stage(procs, Supervise(max_restarts=100, max_item_attempts=attempts)).training()
    count, words = breaks_after(stage)
    assert count == limit
    assert words.startswith(f"workers keep crashing: {limit} deaths in ")
    assert f"({limit} died)" in words and "Last: worker" in words and "killed by SIGKILL" in words


def test_any_commit_begins_the_count_of_deaths_anew() -> None:
    stage = Stage(2, Supervise(max_restarts=100, max_item_attempts=3)).training()
    for _ in range(4):
        assert breaks_after(stage, 5) == (0, "")
        stage.workers[0].commit()
        stage.run(STEP_S)
    assert breaks_after(stage)[0] == 6


@pytest.mark.parametrize(("left", "aside_every"), [(True, 0), (False, 5)])
def test_workers_that_were_asked_to_leave_are_no_crash_loop_and_poison_put_aside_is_progress(
    left: bool, aside_every: int
) -> None:
    stage = Stage(2, Supervise(max_restarts=100, max_item_attempts=3)).training()
    assert breaks_after(stage, 40, left=left, aside_every=aside_every) == (0, "")


def test_deaths_far_apart_are_no_crash_loop() -> None:
    stage = Stage(1, Supervise(max_restarts=100, max_item_attempts=3, window_s=60.0)).training()
    for _ in range(20):
        assert stage.die() == []
        stage.seconds_until_spawn()
        stage.roster.ready(0)
        stage.now += 15.5
        stage.tick()


# ---- hopeless, with words -------------------------------------------------------------------------------------------


def test_an_exception_in_the_set_up_fails_a_resumed_job_at_once_and_one_in_a_batch_does_not() -> None:
    """Batches that the attempt before this one has committed say that batches can be trained on, not that this process
    can be set up."""
    assert isinstance(failure(Stage(committed_before=True).starting().die(0, raised(), None)), UserCodeError)
    assert Stage(committed_before=True).ready().die(0, raised(), (0, 3)) == []


def test_an_exception_is_the_first_line_and_the_traceback_the_last_of_a_job_without_workers() -> None:
    """Not the count of restarts and an exit status, which say nothing about it."""
    stage = Stage(policy=Supervise(max_restarts=0)).training()
    error = failure(stage.die(0, raised(), (0, 3)))
    assert isinstance(error, UserCodeError)
    first, second, *_, last = str(error).splitlines()
    assert first == raised().detail and second.startswith("worker 0 died more than 0 times")
    assert last == "Traceback: the words"


# ---- fenced, because the job ends and it does not park --------------------------------------------------------------


def test_a_fenced_worker_is_waited_for_until_it_is_reaped_and_then_missed_by_nobody() -> None:
    stage = Stage(2, Supervise(max_restarts=0, min_workers=2)).training()
    stage.roster.fence(1)
    assert stage.roster.attached() == [0] and stage.roster.is_anyone_dying and stage.roster.slots[1].is_fenced
    stage.run(1.0)
    assert stage.die(1) == []  # neither a restart too many nor a worker too few
    assert not stage.roster.is_anyone_dying and stage.roster.restarts == 0
    assert stage.run(20.0) == [] and stage.roster.slots[1].state is State.RETIRED


def test_a_fenced_worker_that_does_not_die_is_left_behind_and_the_job_ends() -> None:
    stage = Stage(2, Supervise(min_workers=2)).training()
    stage.roster.fence(1)
    assert stage.run(UNDEAD_S + 1) == [Abandon(1)]
    assert stage.roster.abandoned(1, Death("does not die")) == [] and not stage.roster.is_anyone_dying


# ---- another number of workers --------------------------------------------------------------------------------------


def test_the_highest_leave_in_order_and_come_back_as_new_ones() -> None:
    stage = Stage(procs=3)
    stage.tick()
    for worker in range(3):
        stage.roster.ready(worker)
        stage.workers[worker].commit()
    stage.tick()
    assert stage.roster.resize(1) == [Leave(1), Leave(2)]
    assert stage.roster.attached() == [0] and stage.roster.is_anyone_dying
    for worker in (2, 1):
        assert stage.roster.ending(worker, left=True, fenced=False) is End.LEFT
        assert stage.roster.exited(worker, stage.now, Death("left", batches=1)) == []
    assert not stage.roster.is_anyone_dying and stage.roster.restarts == 0
    assert [row["worker"] for row in stage.roster.rows({}, "updates", [0, 0, 0])] == [0]
    assert not [action for action in stage.run(5.0) if isinstance(action, Spawn)]
    assert stage.roster.resize(3) == [] and stage.tick() == [Spawn(1, 2), Spawn(2, 2)]


def test_one_that_does_not_leave_is_killed_after_its_time() -> None:
    stage = Stage(procs=2)
    stage.tick()
    stage.roster.resize(1)
    stage.workers[1].beats = False
    (kill,) = [action for action in stage.run(11.0) if isinstance(action, Kill)]
    assert (kill.worker, kill.why) == (1, "did not leave within 10 s")
    stage.roster.exited(1, stage.now, Death("killed"))
    assert stage.roster.slots[1].state is State.VACANT


def test_one_that_dies_on_its_way_out_is_no_restart_and_one_that_is_wanted_again_is_replaced() -> None:
    stage = Stage(procs=2)
    stage.tick()
    stage.roster.resize(1)
    stage.roster.resize(2)
    assert stage.roster.exited(1, stage.now, Death("killed by SIGKILL")) == []
    assert stage.tick() == [Spawn(1, 2)] and stage.roster.restarts == 0
    stage.roster.resize(1)
    assert stage.roster.exited(1, stage.now, Death("killed by SIGKILL")) == []
    assert stage.roster.slots[1].state is State.VACANT


def test_a_row_that_may_have_a_writer_is_never_filled_again() -> None:
    stage = Stage(procs=2)
    stage.tick()
    stage.roster.slots[1].state, stage.roster.slots[1].may_live = State.RETIRED, True
    assert stage.roster.resize(1) == [] and stage.roster.resize(4) == []
    assert stage.roster.tick(stage.now, {}) == [Spawn(2, 1), Spawn(3, 1)]


def test_work_is_not_lost_by_fewer_than_needed_that_were_never_wanted() -> None:
    """Retirement counts against the workers wanted now."""
    stage = Stage(procs=3, policy=Supervise(max_restarts=0, min_workers=1))
    stage.tick()
    stage.roster.resize(1)
    for worker in (1, 2):
        assert stage.roster.exited(worker, stage.now, Death("left", end=End.LEFT)) == []
    (lost,) = stage.roster.exited(0, stage.now, Death("killed by SIGKILL"))
    assert isinstance(lost, Fail) and "0 of 1 workers left" in str(lost.error)


def test_a_new_number_is_a_new_chance_for_a_place_that_was_given_up() -> None:
    """Seen in the campaign: with the last place that lived no longer wanted, nobody was left, and nothing failed."""
    stage = Stage(procs=2)
    stage.tick()
    stage.roster.slots[0].state = State.RETIRED
    assert stage.roster.resize(1) == [Leave(1)]
    assert stage.tick() == [Spawn(0, 2)]
    stage.roster.slots[0].state, stage.roster.slots[0].may_live = State.RETIRED, True
    (fail,) = stage.roster.resize(1)
    assert isinstance(fail, Fail) and "0 of 1 workers left" in str(fail.error)
