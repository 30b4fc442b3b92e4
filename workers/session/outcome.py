"""Small words of a running job: how it ends, what a pause is for, where the time went."""

from dataclasses import dataclass, field

from hogwild import host


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ends: `state` is succeeded, stopped, cancelled or failed."""

    state: str
    reason: str
    error: BaseException | None = None
    exit_status: int | None = None

    @classmethod
    def cancelled_by(cls, second: int) -> "Outcome":
        """A second signal ended the job at once; the status is what a shell says of a program that a signal ended."""
        return cls("cancelled", f"second {host.signal_name(second)}", exit_status=128 + second)


@dataclass(slots=True)
class Due:
    """What a pause is for; with a rollback, `finish` comes after it."""

    evaluate: bool = False
    checkpoint: bool = False
    rollback: bool = False
    finish: Outcome | None = None

    def __bool__(self) -> bool:
        return self.evaluate or self.checkpoint or self.rollback or self.finish is not None


@dataclass(slots=True)
class Clock:
    """Where the time went, in seconds of the monotonic clock."""

    command_began_s: float
    imported_s: float = 0.0  # torch and ours are imported
    built_s: float = 0.0  # model and data are there
    shared_s: float = 0.0  # and lie in shared memory: workers may have them
    paused_s: float = 0.0  # between the first update and the last, as train_s: the pause at the end is in neither
    paused_since_s: float | None = None
    paused_for: list[str] = field(default_factory=list)  # evaluation, checkpoint
    longest_turn_s: float = 0.0  # of the supervisor's loop, from the end of a poll to the next one


@dataclass(slots=True)
class Before:
    """Sums of the attempts before this one (resume)."""

    wall_s: float = 0.0
    restarts: int = 0
    samples: int = 0
    rollbacks: int = 0
    lane_restarts: int = 0
    loader_deaths: int = 0
