"""From a seed, who is struck and when: the same on every machine and in every year. Nothing here looks at a process."""

from dataclasses import dataclass
from random import Random

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
    """How long the workers of one job live. Every incarnation has its own death, whatever became of the others: so the
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
