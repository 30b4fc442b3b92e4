"""The roster: a state machine of all processes of one role that decides who starts, who is killed and who leaves. Pure:
time and readings come in as arguments, decisions go out as actions; `group.py` carries them out.

    EMPTY --spawn--> STARTING --ready--> READY --first batch--> TRAINING --resize--> LEAVING --> VACANT
      ^                  |                 |                        |                               |
      |  backoff         '----- Kill: could not start ------- Kill: stalled                         |
      '---- exited <-----------------------+------------------------'     <---------- resize -------'
                 '--> RETIRED   too many restarts in the window, three failed starts in a row, or still alive
                                UNDEAD_S after its kill (Abandon): its row must have no second writer

A process that had done a batch is replaced at once, any other after a backoff. `Setbacks` judges all deaths together:
an exception that would repeat anywhere, or workers that die, or live, without progress. `limits_of` has the limits of
each role:

    reader        reads rows of a data set before training, or predicts those of a file
    trial         tries the job's code before training
    worker        trains
    loader        fills slots of a stream
    owner         owns the parameters on a GPU
    communicator  exchanges parameters with the other nodes of a cluster
    predictor     answers calls with the model while it trains, on request

The circuit breaker: a batch may kill `max_item_attempts` workers before it is quarantined, and every worker may be at
such a batch. So `procs` x `max_item_attempts` deaths (at least 5) within `window_s`, with no batch committed or skipped
since the first of them, cannot be the fault of batches: the job fails.

Clocks add up the time between ticks, so a pause of the supervisor itself (a gap of more than GAP_S) counts for no
process and resets every deadline.
* *Start*: from spawn to the first commit. It stops while the worker is ready without a lease, and in a pause, where
  silence counts instead.
* *Silence*: since the last change of the beat. The limit is max(stall_timeout_s, 20 x its slowest batch).
* *Deadlock*: since any worker last committed or any loader last filled a batch. It stops in a pause, when all work is
  done, and, while no worker has a lease, while a process starts or a loader reads (they have clocks of their own).
* *Leaving*: from the request on, `leave_s`.

With `by_records` (loaders, readers) a beat is a record read, and a batch may take any time: only silence counts, from
the first batch on, and a deadlock means that no loader reads a record."""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

from hogwild.errors import (
    CrashLoop,
    Deadlocked,
    DeviceMemoryError,
    HogwildError,
    TrainingError,
    UserCodeError,
    WorkersLost,
)
from hogwild.workers.messages import Report

if TYPE_CHECKING:
    from hogwild.config.schema import Supervise  # with pydantic, which no process of a job needs

LONGEST_BACKOFF_S = 5.0
LOADER_LEAVE_S = 1.0  # time for user code to end in order
COMMUNICATOR_LEAVE_S = 2.0  # time to tell the others that this node leaves
COMMUNICATOR_STALL_S = 30.0  # its own waits end after 10 s: longer silence means that it is stopped


class Role(StrEnum):
    READER = "reader"
    TRIAL = "trial"
    WORKER = "worker"
    LOADER = "loader"
    OWNER = "owner"
    COMMUNICATOR = "communicator"
    PREDICTOR = "predictor"


@dataclass(frozen=True, slots=True)
class RoleLimits:
    """Limits of the processes of one role. `needed`: least number of them, by `rule`; `by_records`: a beat is a
    record read, and a batch may take any time; `leave_s`: time to leave in order."""

    needed: int
    rule: str
    start_timeout_s: float = math.inf
    stall_timeout_s: float = math.inf
    deadlock_timeout_s: float = math.inf
    max_restarts: float = math.inf  # within window_s
    window_s: float = math.inf
    max_item_attempts: float = math.inf
    failed_starts: float = math.inf  # in a row
    leave_s: float = 0.0
    by_records: bool = False


def limits_of(role: Role, supervise: "Supervise", *, needed: int = 1) -> RoleLimits:
    """Return the limits of a role. `needed`: of loaders, as no setting says how many."""
    if role is Role.TRIAL:  # `try_in_worker` judges it
        return RoleLimits(needed=0, rule="")
    if role is Role.OWNER:  # its death is the end of what it owns
        return RoleLimits(1, "it owns the parameters", start_timeout_s=supervise.start_timeout_s, max_restarts=0)
    least = RoleLimits(
        needed=0,
        rule="",
        start_timeout_s=supervise.start_timeout_s,
        stall_timeout_s=supervise.stall_timeout_s,
        max_restarts=supervise.max_restarts,
        window_s=supervise.window_s,
        failed_starts=3,
    )
    if role is Role.PREDICTOR:  # nobody needs it
        return least
    if role is Role.COMMUNICATOR:
        rule = "it exchanges with the other nodes"
        return replace(least, needed=1, rule=rule, stall_timeout_s=COMMUNICATOR_STALL_S, leave_s=COMMUNICATOR_LEAVE_S)
    rules = {
        Role.WORKER: f"supervise.min_workers is {supervise.min_workers}",
        Role.LOADER: "each reads its own part of the stream" if needed > 1 else "at least one must read the stream",
        Role.READER: "at least one must read",
    }
    return replace(
        least,
        needed=supervise.min_workers if role is Role.WORKER else needed,
        rule=rules[role],
        deadlock_timeout_s=math.inf if role is Role.READER else supervise.deadlock_timeout_s,
        max_item_attempts=supervise.max_item_attempts,
        leave_s={Role.WORKER: supervise.grace_s, Role.LOADER: LOADER_LEAVE_S}.get(role, 0.0),
        by_records=role is not Role.WORKER,
    )


GAP_S = 1.0
FIRST_BACKOFF_S = 0.1
SLOW_FACTOR = 20
FEWEST_DEATHS = 5  # of the circuit breaker
UNDEAD_S = 5.0  # only an uninterruptible system call takes longer; all others die in milliseconds


class End(StrEnum):
    """The way a worker's process ended; the `kind` of its exit event."""

    COULD_NOT_START = "could-not-start"  # died before it was ready, or its first batch took too long
    DIED = "died"
    STALLED = "stalled"  # killed after it was silent for too long
    LEFT = "left"  # left as asked


ENDED = {End.COULD_NOT_START: "could not start", End.DIED: "died", End.STALLED: "stalled", End.LEFT: "left"}


@dataclass(frozen=True, slots=True)
class Death:
    """A worker's process is reaped, and its leases were released. `charged`: (epoch, batch) the death was charged to;
    `batches`: its row's count, perhaps more than at the last tick; `is_excused`: a batch was quarantined for it, or it
    happened in a pause, when nobody could commit."""

    how: str
    report: Report | None = None
    charged: tuple[int, int] | None = None
    batches: int = 0
    end: End = End.DIED
    is_excused: bool = False

    @property
    def cause(self) -> str:
        """Cause of the death, with the traceback of an exception."""
        if self.report is None or self.report.kind != "error":
            return self.how
        return f"{self.how}\n\n{self.report.traceback.rstrip()}"

    @property
    def is_of_user(self) -> bool:
        """Return whether an exception of user code ended it."""
        return self.report is not None and self.report.kind == "error" and not self.report.code

    def blamed(self, kind: type[TrainingError], words: str, last: str = "Last") -> TrainingError:
        """Return the error of a job that ends with this death: an exception of user code comes first."""
        if self.report is None or not self.is_of_user:
            return kind(f"{words}. {last}: {self.cause}")
        return UserCodeError(f"{self.report.detail}\n{words}\n\n{self.report.traceback.rstrip()}")


@dataclass(slots=True)
class Setbacks:
    """All failures of one role. `procs` returns the number of its processes now. `total`, everywhere: batches committed
    by all workers in this attempt."""

    procs: Callable[[], int]
    limits: RoleLimits
    committed_before: bool  # in an attempt before this one (resume)
    noun: str = "worker"
    _errors: dict[tuple[str, str], set[tuple[int, int]]] = field(default_factory=dict)  # (type, place) -> exchanges
    _errors_total: int = 0  # batches committed when they came
    _deaths: deque[tuple[float, Death]] = field(default_factory=deque)
    _deaths_total: int = 0
    _no_rooms: int = 0

    def hopeless(self, death: Death, total: int, *, in_set_up: bool) -> HogwildError | None:
        """Return an error if an exception would repeat: it came before any commit, or in two batches at the same place.
        An exception `in_set_up`, before any batch, counts even if an earlier attempt has committed."""
        report = death.report
        if report is None or report.kind != "error":
            return None
        if report.code == DeviceMemoryError.code:
            # A device was too small before the first commit, or twice during training. A worker that found no room at
            # its start while others train is not replaced (`Roster`).
            self._no_rooms += not in_set_up
            if total > 0 and self._no_rooms < 2:
                return None
            return TrainingError(report.detail, code=report.code)
        if report.hopeless:
            return TrainingError(report.detail, code=report.code)
        if total != self._errors_total:
            self._errors, self._errors_total = {}, total
        exchanges = self._errors.setdefault((report.error_type, report.place), set())
        if death.charged is not None:
            exchanges.add(death.charged)
        has_worked = total > 0 or (self.committed_before and not in_set_up)
        if has_worked and len(exchanges) < 2:
            return None
        return UserCodeError(f"{report.detail}\n\n{report.traceback.rstrip()}")

    def crash_loop(self, worker: int, death: Death, now: float, total: int) -> TrainingError | None:
        """Return the circuit breaker's error, if any. Call it at every death; a worker asked to leave is ignored."""
        if total != self._deaths_total or death.is_excused:
            self._deaths.clear()
            self._deaths_total = total
        if death.end is End.LEFT or math.isinf(self.limits.max_item_attempts):
            return None
        self._deaths.append((now, death))
        while now - self._deaths[0][0] > self.limits.window_s:
            self._deaths.popleft()
        if len(self._deaths) < max(FEWEST_DEATHS, self.procs() * self.limits.max_item_attempts):
            return None
        kinds = Counter(each.end for _, each in self._deaths)
        counted = ", ".join(f"{count} {kind.replace('-', ' ')}" for kind, count in kinds.items())
        return death.blamed(
            CrashLoop,
            f"{self.noun}s keep crashing: {len(self._deaths)} deaths in {now - self._deaths[0][0]:.1f} s ({counted}) "
            f"and no batch committed since the first (limit: procs x supervise.max_item_attempts, at least "
            f"{FEWEST_DEATHS}, within supervise.window_s)",
            last=f"Last: {self.noun} {worker}",
        )


@dataclass(slots=True)
class Standstill:
    """The common clock of all workers: the time without any progress. `by_records`: a record read is progress."""

    limit_s: float
    by_records: bool = False
    seconds: float = 0.0
    _done: tuple[int, Mapping[int, int]] = (0, {})

    def look(self, gap: float, total: int, beats: Mapping[int, int]) -> Deadlocked | None:
        """Advance the clock; return an error past the limit. `beats`: worker -> beat, of those with work; a constant
        for waiting ones, which beat anyway."""
        done = (total, beats if self.by_records else {})
        if done != self._done:
            self._done, self.seconds = done, 0.0
        else:
            # A pause or a death does not reset it: checkpoints come more often than this limit, and so may deaths.
            self.seconds += gap
        if self.seconds <= self.limit_s:
            return None
        self.seconds = 0.0
        still = f"for {self.limit_s:g} s (supervise.deadlock_timeout_s)"
        if self.by_records:
            whose = ", ".join(f"loader {loader}" for loader in sorted(beats))
            return Deadlocked(
                f"no loader read a record {still}; {whose} had records to read: see logs/ in the run directory"
            )
        if not beats:
            return Deadlocked(f"no batch was committed or filled {still}: no worker has a batch, but not all are done")
        return Deadlocked(
            f"no worker committed a batch {still}; the stacks of all workers are in stacks/ in the run directory"
        )


class State(Enum):
    EMPTY = "empty"
    STARTING = "starting"
    READY = "ready"
    TRAINING = "training"
    DYING = "dying"
    LEAVING = "leaving"
    VACANT = "vacant"
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
class Leave:
    """The process is asked to finish what it does and leave; nobody takes its place."""

    worker: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """A killed process does not die. Its slot is retired."""

    worker: int


@dataclass(frozen=True, slots=True)
class Fail:
    error: HogwildError


Action = Spawn | Kill | Leave | Abandon | Fail


@dataclass(frozen=True, slots=True)
class RowReading:
    """A worker's row at one moment. `idle`: waiting or parked, where it beats several times a second."""

    beat: int
    batches: int
    slowest_s: float
    has_lease: bool
    idle: bool


@dataclass(slots=True)
class RosterSlot:
    """One place for a worker, and the process that fills it."""

    state: State = State.EMPTY
    incarnation: int = 0
    start_s: float = 0.0  # the start clock
    silent_s: float = 0.0
    since_s: float = 0.0  # since its spawn, its kill, or since it was told to leave
    slowest_s: float = 0.0  # slowest batch of this incarnation
    beat: int = 0
    batches: int = 0
    vain_starts: int = 0  # since the last commit
    failed_starts: int = 0
    due_s: float = 0.0
    recent: deque[tuple[float, End]] = field(default_factory=deque)  # restarts within the window
    killed_as: End | None = None
    is_fenced: bool = False  # never replaced: the job ends
    may_live: bool = False  # its process survived SIGKILL


@dataclass(frozen=True, slots=True)
class Moment:
    """The job at a tick. `has_unfinished_work`: work is left and no loader reads, so some worker should have a lease;
    `filled`: batches that loaders have filled; `may_start`: False where nobody is needed any more."""

    paused: bool = False
    has_unfinished_work: bool = False
    filled: int = 0
    may_start: bool = True


UNDISTURBED = Moment()


@dataclass(slots=True)
class Roster:
    """All slots of one role. Call `tick` often, and the other methods as things happen."""

    role: Role
    limits: RoleLimits
    count: int  # slots that should be filled; those beyond are vacant
    committed_before: bool = False  # in an earlier attempt (resume)
    slots: list[RosterSlot] = field(init=False)
    restarts: int = 0
    _now: float | None = None
    _setbacks: Setbacks = field(init=False)
    _standstill: Standstill = field(init=False)

    def __post_init__(self) -> None:
        self.slots = [RosterSlot() for _ in range(self.count)]
        self._setbacks = Setbacks(lambda: self.count, self.limits, self.committed_before, self.role.value)
        self._standstill = Standstill(self.limits.deadlock_timeout_s, self.limits.by_records)

    # ---- questions ---------------------------------------------------------------------------------------------

    def attached(self) -> list[int]:
        """Return the workers that read the control row: a pause waits for them."""
        return [k for k, slot in enumerate(self.slots) if slot.state in (State.READY, State.TRAINING)]

    @property
    def is_anyone_missing(self) -> bool:
        """True if a worker is starting or to be replaced: that has its own clocks and limits."""
        return any(slot.state in (State.EMPTY, State.STARTING, State.DYING) for slot in self.slots)

    @property
    def is_anyone_dying(self) -> bool:
        """True if a worker is killed or told to leave, but not reaped: it may still be in the middle of a write."""
        return any(slot.state in (State.DYING, State.LEAVING) for slot in self.slots)

    def rows(self, pids: Mapping[int, int], counted: str, counts: Sequence[int]) -> list[dict[str, object]]:
        """Return a row per slot for status.json. `counts`: what each has done, called `counted`."""
        return [
            {
                self.role.value: number,
                "state": slot.state.value,
                "pid": pids.get(number),
                "incarnation": slot.incarnation,
                counted: counts[number],
                "silent_s": round(slot.silent_s, 1),  # since the last sign of life
                "limit_s": self._limit(slot) if slot.state is State.TRAINING else None,  # then it is replaced
            }
            for number, slot in enumerate(self.slots)
            if slot.state is not State.VACANT
        ]

    def ending(self, worker: int, *, left: bool, fenced: bool) -> End:
        """Return the kind of a worker's end. `left`: it left in order, as asked; `fenced`: killed by code outside the
        roster."""
        slot = self.slots[worker]
        if slot.killed_as is not None:
            return slot.killed_as
        if slot.state is State.LEAVING and (left or fenced):
            return End.LEFT
        if slot.state is State.STARTING:
            return End.COULD_NOT_START
        return End.LEFT if left else End.STALLED if fenced else End.DIED

    # ---- events ------------------------------------------------------------------------------------------------

    def ready(self, worker: int) -> None:
        """Note that a worker has mapped everything and waits for its first lease."""
        slot = self.slots[worker]
        if slot.state is State.STARTING:
            slot.state = State.READY
            slot.failed_starts = 0

    def resize(self, count: int) -> list[Action]:
        """Have `count` slots filled from now on: surplus processes, the highest numbers first, leave in order; vacant
        slots, and retired ones whose process is gone, are filled at the next tick."""
        actions: list[Action] = []
        self.slots += [RosterSlot(State.VACANT) for _ in range(count - len(self.slots))]
        self.count = count
        for number, slot in enumerate(self.slots):
            if number < count:
                if slot.state is State.VACANT or (slot.state is State.RETIRED and not slot.may_live):
                    self.slots[number] = RosterSlot(incarnation=slot.incarnation, batches=slot.batches)
            elif slot.state is State.EMPTY or (slot.state is State.RETIRED and not slot.may_live):
                slot.state = State.VACANT
            elif slot.state in (State.STARTING, State.READY, State.TRAINING):
                slot.state, slot.since_s = State.LEAVING, 0.0
                actions.append(Leave(number))
        left = sum(slot.state is not State.RETIRED for slot in self.slots[:count])
        if left < self.limits.needed:
            actions.append(Fail(WorkersLost(f"{left} of {count} {self.role}s left, {self.limits.rule}")))
        return actions

    def fence(self, worker: int) -> None:
        """Note that a worker is killed by the caller because it delays the end of the job. It is not replaced, and its
        death does not count."""
        slot = self.slots[worker]
        slot.state, slot.killed_as, slot.since_s, slot.is_fenced = State.DYING, End.STALLED, 0.0, True

    def exited(self, worker: int, now: float, death: Death) -> list[Action]:
        """Note that a process was reaped and its leases were released."""
        slot = self.slots[worker]
        is_starting = slot.state is State.STARTING
        self._see_commits(slot, death.batches)
        if slot.is_fenced:
            slot.state = State.RETIRED
            return []
        if worker >= self.count or slot.state is State.LEAVING:  # it was to leave, however it ended
            slot.state = State.VACANT if worker >= self.count else State.EMPTY
            return []
        slot.failed_starts, slot.state = slot.failed_starts + is_starting, State.EMPTY
        doublings = min(slot.vain_starts - 1, 10)  # far beyond the longest backoff; 2.0 ** 1024 overflows
        backoff_s = FIRST_BACKOFF_S * 2.0**doublings if slot.vain_starts else 0.0
        slot.due_s = now + min(LONGEST_BACKOFF_S, backoff_s)
        total = sum(slot.batches for slot in self.slots)
        hopeless = self._setbacks.hopeless(death, total, in_set_up=is_starting)
        if hopeless is not None:
            return [Fail(hopeless)]
        crash_loop = self._setbacks.crash_loop(worker, death, now, total)
        while slot.recent and now - slot.recent[0][0] > self.limits.window_s:
            slot.recent.popleft()
        # Where a device was full, a replacement would fail, too, while the others train.
        no_room = is_starting and death.report is not None and death.report.code == DeviceMemoryError.code
        # The budget is per worker: a job whose workers die in turn, and train in between, is no crash loop.
        if no_room or len(slot.recent) >= self.limits.max_restarts or slot.failed_starts >= self.limits.failed_starts:
            slot.state = State.RETIRED
            if no_room:
                why = "found no room on its device"
            elif slot.failed_starts >= self.limits.failed_starts:
                why = f"could not start {slot.failed_starts} times in a row"
            else:
                kinds = {*(end for _, end in slot.recent), death.end}
                done = " or ".join(verb for end, verb in ENDED.items() if end in kinds)
                why = f"{done} more than {self.limits.max_restarts} times in {self.limits.window_s:g} s"
            if lost := self._after_retirement(f"{self.role} {worker} {why}", death):
                return lost
        if crash_loop is not None:
            return [Fail(crash_loop)]
        if slot.state is not State.RETIRED:
            slot.recent.append((now, death.end))
            self.restarts += 1
        return []

    def abandoned(self, worker: int, death: Death) -> list[Action]:
        """Note that an abandoned worker's leases were released although its process exists; its code no longer runs."""
        slot = self.slots[worker]
        self._see_commits(slot, death.batches)
        if slot.is_fenced:
            return []
        return self._after_retirement(f"{self.role} {worker} is still alive after SIGKILL", death)

    def tick(self, now: float, readings: Mapping[int, RowReading], moment: Moment = UNDISTURBED) -> list[Action]:
        """Advance the clocks; return whom to spawn or kill, or that the job must fail."""
        gap = 0.0 if self._now is None else now - self._now
        self._now = now
        if gap > GAP_S:
            for slot in self.slots:
                slot.start_s = slot.silent_s = 0.0
            self._standstill.seconds = gap = 0.0
        actions: list[Action] = []
        for worker, slot in enumerate(self.slots):
            slot.since_s += gap
            if slot.state is State.EMPTY:
                if now >= slot.due_s and moment.may_start and worker < self.count:
                    actions.append(self._spawn(worker))
            elif slot.state is State.LEAVING:
                if slot.since_s > self.limits.leave_s:
                    why = f"did not leave within {self.limits.leave_s:g} s"
                    actions.append(self._kill(worker, End.STALLED, why, slot.since_s))
            elif slot.state is State.DYING:
                if slot.since_s > UNDEAD_S:
                    slot.state, slot.may_live = State.RETIRED, True
                    actions.append(Abandon(worker))
            elif worker in readings and slot.state is not State.RETIRED:
                actions.extend(self._judge(worker, readings[worker], gap, moment.paused))
        beats = {k: 0 if reading.idle else reading.beat for k, reading in readings.items() if reading.has_lease}
        total = sum(slot.batches for slot in self.slots) + moment.filled
        counts = bool(beats) or (moment.has_unfinished_work and not self.is_anyone_missing)
        deadlock = self._standstill.look(gap if counts and not moment.paused else 0.0, total, beats)
        return actions if deadlock is None else [*actions, Fail(deadlock)]

    # ---- decisions ---------------------------------------------------------------------------------------------

    def _spawn(self, worker: int) -> Spawn:
        slot = self.slots[worker]
        slot.state = State.STARTING
        slot.incarnation += 1
        slot.start_s = slot.silent_s = slot.since_s = slot.slowest_s = 0.0
        slot.beat, slot.vain_starts, slot.killed_as = 0, slot.vain_starts + 1, None
        return Spawn(worker, slot.incarnation)

    def _judge(self, worker: int, reading: RowReading, gap: float, paused: bool) -> list[Action]:
        slot = self.slots[worker]
        if self._see_commits(slot, reading.batches) and slot.state is State.READY:
            slot.state, slot.silent_s = State.TRAINING, 0.0
        by_silence = reading.idle or paused or self.limits.by_records
        if slot.state is State.TRAINING or (slot.state is State.READY and by_silence):
            slot.silent_s = 0.0 if reading.beat != slot.beat else slot.silent_s + gap
            slot.beat = reading.beat
            # A batch beyond every limit was not slow: the process was stopped meanwhile, and so were we.
            if reading.slowest_s <= max(self._limit(slot), self.limits.start_timeout_s):
                slot.slowest_s = reading.slowest_s
            limit = self._limit(slot)
            if slot.state is State.READY and not reading.idle:  # its first batch, in a pause or of a loader
                limit = max(limit, self.limits.start_timeout_s)
            if slot.silent_s <= limit:
                return []
            why = f"stalled: silent for {slot.silent_s:.1f} s (limit {limit:g} s)"
            return [self._kill(worker, End.STALLED, why, slot.silent_s)]
        slot.beat, slot.silent_s = reading.beat, 0.0
        if slot.state is State.STARTING or reading.has_lease:
            slot.start_s += gap
        if slot.start_s <= self.limits.start_timeout_s:
            return []
        what = "did not get ready" if slot.state is State.STARTING else "did not finish its first batch"
        why = f"could not start: {what} in {self.limits.start_timeout_s:g} s"
        return [self._kill(worker, End.COULD_NOT_START, why, slot.start_s)]

    @staticmethod
    def _see_commits(slot: RosterSlot, batches: int) -> bool:
        """Return whether there are commits since the last call."""
        if batches <= slot.batches:
            return False
        slot.batches, slot.vain_starts = batches, 0
        return True

    def _limit(self, slot: RosterSlot) -> float:
        return max(self.limits.stall_timeout_s, SLOW_FACTOR * slot.slowest_s)

    def _kill(self, worker: int, end: End, why: str, silent_s: float) -> Kill:
        slot = self.slots[worker]
        if slot.state is State.STARTING:
            slot.failed_starts += 1
        slot.state, slot.killed_as, slot.since_s = State.DYING, end, 0.0
        return Kill(worker, why, silent_s)

    def _after_retirement(self, why: str, death: Death) -> list[Action]:
        left = sum(slot.state is not State.RETIRED for slot in self.slots[: self.count])
        if left >= self.limits.needed:
            return []
        words = f"{why}; {left} of {self.count} {self.role}s left, {self.limits.rule}"
        return [Fail(death.blamed(WorkersLost, words))]
