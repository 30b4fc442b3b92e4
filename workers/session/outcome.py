"""Small values of a running job: its outcome, the purpose of a pause, and times."""

from dataclasses import dataclass, field

from hogwild import host


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a job: `state` is succeeded, stopped, cancelled or failed."""

    state: str
    reason: str
    error: BaseException | None = None
    exit_status: int | None = None

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
    finish: Outcome | None = None

    def __bool__(self) -> bool:
        return self.evaluate or self.checkpoint or self.rollback or self.finish is not None


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
    longest_turn_s: float = 0.0  # longest time of the supervisor's loop between two polls


@dataclass(slots=True)
class Before:
    """Sums over earlier attempts (resume)."""

    wall_s: float = 0.0
    restarts: int = 0
    samples: int = 0
    rollbacks: int = 0
    lane_restarts: int = 0
    loader_deaths: int = 0
