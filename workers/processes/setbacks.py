"""The meaning of exceptions and deaths for the whole job: an exception that would repeat anywhere, or workers that die,
or live, without progress. Pure: times and counts come in as arguments, errors go out.

The circuit breaker: a batch may kill `max_item_attempts` workers before it is quarantined, and every worker may be at
such a batch. So `procs` x `max_item_attempts` deaths (at least 5) within `window_s`, with no batch committed or skipped
since the first of them, cannot be the fault of batches: the job fails."""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hogwild.errors import CrashLoop, Deadlocked, DeviceMemoryError, HogwildError, TrainingError, UserCodeError
from hogwild.workers.messages import Report
from hogwild.workers.processes.roles import RoleLimits

FEWEST_DEATHS = 5


class End(StrEnum):
    """The way a worker's process ended; the `kind` of its exit event."""

    COULD_NOT_START = "could-not-start"  # died before it was ready, or its first batch took too long
    DIED = "died"
    STALLED = "stalled"  # killed after it was silent for too long
    LEFT = "left"  # left as asked


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
    def found_no_room(self) -> bool:
        """True if its device was full. A replacement would fail, too, while the others train."""
        return self.report is not None and self.report.code == DeviceMemoryError.code

    @property
    def cause(self) -> str:
        """Cause of the death, with the traceback of an exception."""
        if self.report is None or self.report.kind != "error":
            return self.how
        return f"{self.how}\n\n{self.report.traceback.rstrip()}"


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
            return self._no_room(report, total, in_set_up)
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

    def _no_room(self, report: Report, total: int, in_set_up: bool) -> HogwildError | None:
        """Return an error if a device was too small before the first commit, or twice during training. A worker that
        found no room at its start while others train is not replaced (`Roster`)."""
        self._no_rooms += not in_set_up
        if total > 0 and self._no_rooms < 2:
            return None
        return TrainingError(report.detail, code=report.code)

    def crash_loop(self, worker: int, death: Death, now: float, total: int) -> CrashLoop | None:
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
        return CrashLoop(
            f"{self.noun}s keep crashing: {len(self._deaths)} deaths in {now - self._deaths[0][0]:.1f} s ({counted}) "
            f"and no batch committed since the first (limit: procs x supervise.max_item_attempts, at least "
            f"{FEWEST_DEATHS}, within supervise.window_s). Last: {self.noun} {worker}: {death.cause}"
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
