"""Who is alive, who must die, who comes back: the state machine of all workers. Pure: time and readings come in as
arguments, decisions go out as actions; `supervisor.py` carries them out.

    EMPTY --spawn--> STARTING --ready--> READY --first commit--> TRAINING
      ^                  |                 |                        |
      |  backoff         '----- Kill: could not start ------- Kill: stalled
      '---- exited <-----------------------+------------------------'
                 '--> RETIRED   too many restarts in the window, or three starts that failed in a row

Clocks. They add up the time between ticks, so a pause of the supervisor itself (a gap of more than GAP_S) counts for
nobody and re-arms every deadline. *Start*: from spawn to the first commit, standing still while the worker is ready
without a lease, and in a pause, which judges it by its silence, so that a first batch that hangs cannot hang the
pause. *Silence*: since its beat last changed; the limit is max(stall_timeout_s, 20 x its slowest batch).
*Deadlock*: since anybody last committed a batch, standing still in a pause and while nobody has a lease."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from hogwild.errors import Deadlocked, HogwildError, TrainingError, UserCodeError, WorkersLost
from workers.messages import Report

GAP_S = 1.0
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 5.0
FAILED_STARTS = 3
SLOW_FACTOR = 20


class Policy(Protocol):
    """The `supervise` section of a job."""

    max_restarts: int
    window_s: float
    start_timeout_s: float
    stall_timeout_s: float
    deadlock_timeout_s: float
    min_workers: int


class State(Enum):
    EMPTY = "empty"
    STARTING = "starting"
    READY = "ready"
    TRAINING = "training"
    DYING = "dying"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class Spawn:
    worker: int
    incarnation: int


@dataclass(frozen=True, slots=True)
class Kill:
    worker: int
    why: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class Fail:
    error: HogwildError


Action = Spawn | Kill | Fail


@dataclass(frozen=True, slots=True)
class Reading:
    """What a worker's row says now. `idle`: waiting or parked, where it beats by itself several times a second."""

    beat: int
    batches: int
    slowest_s: float
    has_lease: bool
    idle: bool


@dataclass(slots=True)
class Slot:
    """One place for a worker, and the process that fills it."""

    state: State = State.EMPTY
    incarnation: int = 0
    start_s: float = 0.0  # the start clock
    silent_s: float = 0.0
    beat: int = 0
    batches: int = 0
    deaths_in_a_row: int = 0  # without a commit between
    failed_starts: int = 0
    due_s: float = 0.0
    recent: deque[float] = field(default_factory=deque)  # times of its restarts within the window
    why: str = ""


@dataclass(slots=True)
class Roster:
    """All slots of one job. Call `tick` often, and the other methods as things happen."""

    procs: int
    policy: Policy
    committed_before: bool = False  # in an attempt before this one (resume)
    slots: list[Slot] = field(default_factory=list)
    restarts: int = 0
    _now: float | None = None
    _total: int = 0
    _deadlock_s: float = 0.0
    _errors: dict[tuple[str, str], set[tuple[int, int]]] = field(default_factory=dict)  # type, place: exchanges
    _errors_total: int = 0  # batches committed when they came

    def __post_init__(self) -> None:
        self.slots = [Slot() for _ in range(self.procs)]

    # ---- questions ---------------------------------------------------------------------------------------------

    def attached(self) -> list[int]:
        """Workers that look at the control row: whom a pause waits for."""
        return [k for k, slot in enumerate(self.slots) if slot.state in (State.READY, State.TRAINING)]

    @property
    def all_train(self) -> bool:
        """Every worker of the plan has committed something since it started."""
        return all(slot.state is State.TRAINING for slot in self.slots)

    @property
    def is_anyone_dying(self) -> bool:
        """Killed but not reaped yet: it may still be in the middle of a write."""
        return any(slot.state is State.DYING for slot in self.slots)

    # ---- events ------------------------------------------------------------------------------------------------

    def ready(self, worker: int) -> None:
        """It has mapped everything and waits for its first lease."""
        slot = self.slots[worker]
        if slot.state is State.STARTING:
            slot.state = State.READY
            slot.failed_starts = 0

    def exited(
        self,
        worker: int,
        now: float,
        how: str,
        report: Report | None,
        charged: tuple[int, int] | None,
        batches: int = 0,
    ) -> list[Action]:
        """The process was reaped and its leases were released. `charged`: (epoch, batch) the death was charged to;
        `batches`: what its row counts now, perhaps more than the last tick saw."""
        slot = self.slots[worker]
        self._see_commits(slot, batches)
        if slot.state is State.STARTING:
            slot.failed_starts += 1
        slot.state = State.EMPTY
        slot.deaths_in_a_row += 1
        doublings = min(slot.deaths_in_a_row - 1, 10)  # long past the longest; 2.0 ** 1024 is an error
        slot.due_s = now + min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2.0**doublings)
        hopeless = self._hopeless(report, charged)
        if hopeless is not None:
            return [Fail(hopeless)]
        while slot.recent and now - slot.recent[0] > self.policy.window_s:
            slot.recent.popleft()
        if len(slot.recent) >= self.policy.max_restarts or slot.failed_starts >= FAILED_STARTS:
            slot.state = State.RETIRED
            return self._after_retirement(worker, how)
        slot.recent.append(now)
        self.restarts += 1
        return []

    def tick(self, now: float, readings: Mapping[int, Reading], *, paused: bool) -> list[Action]:
        """Advances the clocks; says who must be spawned or killed, or that the job must fail."""
        gap = 0.0 if self._now is None else now - self._now
        self._now = now
        if gap > GAP_S:
            self._rearm()
            gap = 0.0
        actions: list[Action] = []
        for worker, slot in enumerate(self.slots):
            if slot.state is State.EMPTY and now >= slot.due_s:
                actions.append(self._spawn(worker))
            elif worker in readings and slot.state is not State.DYING:
                actions.extend(self._judge(worker, readings[worker], gap, paused))
        return actions + self._judge_all(readings, gap, paused)

    # ---- decisions ---------------------------------------------------------------------------------------------

    def _spawn(self, worker: int) -> Spawn:
        slot = self.slots[worker]
        slot.state = State.STARTING
        slot.incarnation += 1
        slot.start_s, slot.silent_s, slot.beat, slot.why = 0.0, 0.0, 0, ""
        return Spawn(worker, slot.incarnation)

    def _judge(self, worker: int, reading: Reading, gap: float, paused: bool) -> list[Action]:
        slot = self.slots[worker]
        if self._see_commits(slot, reading.batches) and slot.state is State.READY:
            slot.state, slot.silent_s = State.TRAINING, 0.0
        if slot.state is State.TRAINING or (slot.state is State.READY and (reading.idle or paused)):
            return self._judge_silence(worker, reading, gap)
        slot.beat, slot.silent_s = reading.beat, 0.0
        if slot.state is State.STARTING or reading.has_lease:
            slot.start_s += gap
        if slot.start_s <= self.policy.start_timeout_s:
            return []
        what = "did not get ready" if slot.state is State.STARTING else "did not finish its first batch"
        return [self._kill(worker, f"could not start: {what} in {self.policy.start_timeout_s:g} s", slot.start_s)]

    @staticmethod
    def _see_commits(slot: Slot, batches: int) -> bool:
        """Whether there are any since the last look."""
        if batches <= slot.batches:
            return False
        slot.batches, slot.deaths_in_a_row = batches, 0
        return True

    def _judge_silence(self, worker: int, reading: Reading, gap: float) -> list[Action]:
        slot = self.slots[worker]
        slot.silent_s = 0.0 if reading.beat != slot.beat else slot.silent_s + gap
        slot.beat = reading.beat
        limit = max(self.policy.stall_timeout_s, SLOW_FACTOR * reading.slowest_s)
        if slot.state is State.READY and not reading.idle:  # its first batch, while a pause waits for it to park
            limit = max(limit, self.policy.start_timeout_s)
        if slot.silent_s <= limit:
            return []
        return [self._kill(worker, f"stalled: silent for {slot.silent_s:.1f} s (limit {limit:g} s)", slot.silent_s)]

    def _kill(self, worker: int, why: str, silent_s: float) -> Kill:
        slot = self.slots[worker]
        if slot.state is State.STARTING:
            slot.failed_starts += 1
        slot.state, slot.why = State.DYING, why
        return Kill(worker, why, silent_s)

    def _judge_all(self, readings: Mapping[int, Reading], gap: float, paused: bool) -> list[Action]:
        total = sum(slot.batches for slot in self.slots)
        if total != self._total:
            self._total, self._deadlock_s = total, 0.0
        elif not paused and any(reading.has_lease for reading in readings.values()):
            # Never back to 0 for a pause or a death: checkpoints come more often than this limit, and so may deaths.
            self._deadlock_s += gap
        if self._deadlock_s <= self.policy.deadlock_timeout_s:
            return []
        self._deadlock_s = 0.0
        message = (
            f"no worker committed a batch for {self.policy.deadlock_timeout_s:g} s (supervise.deadlock_timeout_s); "
            "the stacks of all workers are in the run's folder stacks/"
        )
        return [Fail(Deadlocked(message))]

    def _rearm(self) -> None:
        for slot in self.slots:
            slot.start_s = slot.silent_s = 0.0
        self._deadlock_s = 0.0

    def _hopeless(self, report: Report | None, charged: tuple[int, int] | None) -> HogwildError | None:
        """An exception that will come again: before anybody's first commit, or in another batch at the same place."""
        if report is None or report.kind != "error":
            return None
        if report.hopeless:
            return TrainingError(report.detail)
        total = sum(slot.batches for slot in self.slots)
        if total != self._errors_total:
            self._errors, self._errors_total = {}, total
        exchanges = self._errors.setdefault((report.error_type, report.place), set())
        if charged is not None:
            exchanges.add(charged)
        if (total or self.committed_before) and len(exchanges) < 2:
            return None
        return UserCodeError(f"{report.detail}\n\n{report.traceback.rstrip()}")

    def _after_retirement(self, worker: int, how: str) -> list[Action]:
        left = sum(slot.state is not State.RETIRED for slot in self.slots)
        if left >= self.policy.min_workers:
            return []
        slot = self.slots[worker]
        if slot.failed_starts >= FAILED_STARTS:
            reason = f"worker {worker} could not start {slot.failed_starts} times in a row"
        else:
            reason = f"worker {worker} died more than {self.policy.max_restarts} times in {self.policy.window_s:g} s"
        return [
            Fail(
                WorkersLost(
                    f"{reason}; {left} of {self.procs} workers left, supervise.min_workers is "
                    f"{self.policy.min_workers}. Last: {how}"
                )
            )
        ]
