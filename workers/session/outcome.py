"""Small values of a running job: its outcome, the purpose of a pause, and times; and the detection of divergence, with
the decision what to do. Pure: counts come in, a decision goes out; `resume.py` carries it out.

    updates of all workers    a a n a a n n n … n      a: applied     n: not finite, and so not applied
                                        '-- `limit` of them in a row: diverging
    parameters at a pause     one is NaN or infinite: ruined

    ruined, on_nan skip or fail           FAIL
    ruined or diverging, on_nan rollback  ROLL_BACK; FAIL after MOST_IN_VAIN rollbacks without progress
    diverging when the job ends, or most batches of the job were skipped: it fails, too (`Session.due`)

A checkpoint may be finite and yet belong to a run that cannot recover: parameters of 1e20 whose gradients overflow. So
a rollback after one without progress goes to an older checkpoint. A rollback made progress when a checkpoint is written
with more updates than the run had at any rollback. There are at most MOST_IN_VAIN rollbacks between two of those, so
the run ends."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from hogwild import host
from hogwild.errors import HogwildError, headline


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a job: `state` is succeeded, stopped, cancelled or failed; `reason`: one line."""

    state: str
    reason: str
    error: BaseException | None = None
    exit_status: int | None = None

    @classmethod
    def failed(cls, error: HogwildError) -> "Outcome":
        """Return the outcome of an error: its first line, which names an exception of user code, is the reason."""
        return cls("failed", headline(error), error)

    @classmethod
    def cancelled_by(cls, second: int) -> "Outcome":
        """Return the outcome of a second signal, which ends the job at once; exit status as a shell reports it."""
        return cls("cancelled", f"second {host.signal_name(second)}", exit_status=128 + second)


@dataclass(slots=True)
class Due:
    """The purpose of a pause; with a rollback, `finish` comes after it."""

    evaluate: bool = False
    checkpoint: bool = False
    rollback: bool = False
    rows: bool = False  # by id: they expire, or there are more
    finish: Outcome | None = None

    def __bool__(self) -> bool:
        return self.evaluate or self.checkpoint or self.rollback or self.rows or self.finish is not None


@dataclass(slots=True)
class Clock:
    """Times of a job, in seconds of the monotonic clock."""

    command_began_s: float
    imported_s: float = 0.0  # imports are done
    built_s: float = 0.0  # model and data are built
    shared_s: float = 0.0  # both lie in shared memory: workers may start
    paused_s: float = 0.0  # between the first update and the last, like train_s: without the final pause
    paused_since_s: float | None = None
    paused_for: list[str] = field(default_factory=list)  # evaluation, checkpoint
    longest_turn_s: float = 0.0  # of the supervisor's loop between two polls, without waiting for a core


@dataclass(slots=True)
class Before:
    """Sums over earlier attempts (resume)."""

    wall_s: float = 0.0
    restarts: int = 0
    samples: int = 0
    rollbacks: int = 0
    lane_restarts: int = 0
    loader_deaths: int = 0


# Not by chance: if every second batch is not finite, 32 in a row come once in four billion updates. A worker that began
# its update before the parameters were ruined may still apply it, hence more with more workers.
LEAST_IN_A_ROW = 32
IN_A_ROW_PER_WORKER = 16
MOST_IN_VAIN = 5  # the learning rate is 1/32 then


class Decision(Enum):
    GO_ON = "go on"
    ROLL_BACK = "roll back"
    FAIL = "fail"


@dataclass(slots=True)
class Divergence:
    """The divergence of one attempt. `rollbacks` counts those of the whole run; each halves the learning rate."""

    policy: str  # supervise.on_nan
    procs: Callable[[], int]  # workers there are now
    rollbacks: int = 0
    ruined: bool = False  # a parameter was NaN or infinite in a pause
    in_a_row: int = 0  # non-finite updates since the last applied one
    no_way_back: str = ""  # reason why no checkpoint can be restored
    is_going_back: bool = False  # parameters and ledger may be inconsistent
    _applied: int = 0
    _not_finite: int = 0
    _in_vain: int = 0
    _farthest: int = -1  # most updates the run had when it went back
    _older_than: int | None = None

    @property
    def goes_back(self) -> bool:
        return self.policy == "rollback"

    @property
    def limit(self) -> int:
        return max(LEAST_IN_A_ROW, IN_A_ROW_PER_WORKER * self.procs())

    @property
    def is_in_a_row(self) -> bool:
        """True if too many updates in a row were not finite."""
        return self.in_a_row >= self.limit

    @property
    def older_than(self) -> int | None:
        """Updates of the last rollback's checkpoint, if that made no progress: the next one must be older."""
        return self._older_than if self._in_vain else None

    def look(self, not_finite: int, applied: int) -> None:
        """Update the counts of this attempt; read `not_finite` first."""
        if applied != self._applied:
            self._applied, self._not_finite = applied, not_finite
        self.in_a_row = not_finite - self._not_finite

    def decide(self) -> Decision:
        if not self.ruined and not (self.goes_back and self.is_in_a_row):
            return Decision.GO_ON
        is_hopeless = bool(self.no_way_back) or self._in_vain >= MOST_IN_VAIN
        return Decision.ROLL_BACK if self.goes_back and not is_hopeless else Decision.FAIL

    def gone_back(self, before: int, after: int) -> None:
        """Note a rollback from `before` to `after` updates."""
        self.rollbacks += 1
        self._in_vain += 1
        self._farthest = max(self._farthest, before)
        self._older_than = after
        self.ruined = False
        self._not_finite += self.in_a_row
        self.in_a_row = 0

    def written(self, updates: int) -> None:
        """Note that a checkpoint of this many updates is on disk."""
        if updates > self._farthest:
            self._in_vain = 0

    @property
    def why(self) -> str:
        """The observation as a phrase."""
        return "parameters are NaN or infinite" if self.ruined else f"{self.in_a_row} updates in a row were not finite"

    @property
    def message(self) -> str:
        """The error message of the failed job."""
        tried = ""
        if self.no_way_back:
            tried = f", and {self.no_way_back}"
        elif self._in_vain:
            tried = (
                f" again, after {self._in_vain} rollbacks without progress, at {0.5**self.rollbacks:g} of the learning "
                "rate: if it always happens at the same batch, look at the samples there"
            )
        return (
            f"the run has diverged: {self.why}{tried}. Lower the learning rate or set train.grad_clip; all kept "
            "checkpoints are finite"
        )
