"""The faults of a campaign and their outcomes. Tallies of several seeds add up."""

from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any


@dataclass(slots=True)
class Tally:
    """Counts of one campaign. `injected` faults; `survived`: of those, the job (or the protocol) went on, or ended as
    it should. `lost`, `duplicated`: batches whose effects are fewer or more than their account in the ledger allows;
    `hangs`: what had to be ended from outside; `indeterminate`: exchanges in doubt, which the ledger counts.
    `measured`: whatever else a row of the table wants, seed by seed."""

    injected: int = 0
    survived: int = 0
    lost: int = 0
    duplicated: int = 0
    hangs: int = 0
    indeterminate: int = 0
    violations: list[str] = field(default_factory=list)
    measured: dict[str, list[float]] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return not (self.violations or self.lost or self.duplicated or self.hangs) and self.survived == self.injected

    def note(self, what: str, value: float) -> None:
        self.measured.setdefault(what, []).append(value)

    def __add__(self, other: "Tally") -> "Tally":
        names = {*self.measured, *other.measured}
        return Tally(
            self.injected + other.injected,
            self.survived + other.survived,
            self.lost + other.lost,
            self.duplicated + other.duplicated,
            self.hangs + other.hangs,
            self.indeterminate + other.indeterminate,
            self.violations + other.violations,
            {name: self.measured.get(name, []) + other.measured.get(name, []) for name in sorted(names)},
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


STARTING_SHARE = 0.2  # of the deaths of workers are aimed at a start, which is a smaller share of an undisturbed life


def chance(campaign: str, seed: int, *what: object) -> Random:
    """Random numbers of their own for each (campaign, seed, what). A text as seed is hashed by sha512, not by the
    interpreter's `hash`, which differs from process to process."""
    return Random("/".join(str(part) for part in (campaign, seed, *what)))


@dataclass(frozen=True, slots=True)
class Moment:
    """`after_s` the start of a process, or else `after_s` its first commit: how long a start takes is the machine's."""

    while_starting: bool
    after_s: float


@dataclass(frozen=True, slots=True)
class Lives:
    """The lives of one job's workers. Every incarnation has its own death, whatever became of the others: so the
    schedule is the seed's alone. Times are uniform in [0, start_s] and [0, life_s] seconds."""

    campaign: str
    seed: int
    start_s: float = 1.0
    life_s: float = 1.5

    def death_of(self, worker: int, incarnation: int) -> Moment:
        drawn = chance(self.campaign, self.seed, worker, incarnation)
        while_starting = drawn.random() < STARTING_SHARE
        return Moment(while_starting, drawn.uniform(0, self.start_s if while_starting else self.life_s))


def moments(campaign: str, seed: int, count: int, *, start_s: float, life_s: float) -> list[Moment]:
    """`count` moments of a job's life, every other one in its start."""
    drawn = chance(campaign, seed, "moments")
    return [Moment(bool(number % 2), drawn.uniform(0, start_s if number % 2 else life_s)) for number in range(count)]
