"""Schedule of faults from a seed: the fault, its target, time and duration. Pure; `inject.py` carries it out.

A fault's time is when it is *due*, in seconds since the job's first worker was started. It is injected then, or as soon
as its target can be hit: a worker that trains, or a supervisor with such a worker."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hogwild.errors import UsageError, did_you_mean

KILL, STOP, TERMINATE, INTERRUPT = "kill", "stop", "terminate", "interrupt"
SUPERVISOR_KILL, SUPERVISOR_TERMINATE, SUPERVISOR_PAUSE = "supervisor-kill", "supervisor-terminate", "supervisor-pause"
LOADER_KILL, LOADER_STOP = "loader-kill", "loader-stop"
WORKER, LOADER, SUPERVISOR = "worker", "loader", "supervisor"
ROLE = {
    **dict.fromkeys((KILL, STOP, TERMINATE, INTERRUPT), WORKER),
    **dict.fromkeys((LOADER_KILL, LOADER_STOP), LOADER),
    **dict.fromkeys((SUPERVISOR_KILL, SUPERVISOR_TERMINATE, SUPERVISOR_PAUSE), SUPERVISOR),
}  # kind of fault -> the role it hits
OF_SUPERVISOR = tuple(kind for kind in ROLE if ROLE[kind] == SUPERVISOR)
DEADLY = (KILL, TERMINATE, LOADER_KILL)
LASTING = (STOP, LOADER_STOP, SUPERVISOR_PAUSE)
KINDS = tuple(ROLE)

# The default mix: mostly kills of workers, and every tenth fault hits the supervisor.
USUAL = {KILL: 6, STOP: 2, TERMINATE: 1}
USUAL_OF_STREAMS = {**USUAL, LOADER_KILL: 4, LOADER_STOP: 2}
SUPERVISOR_EVERY = 10
LONGEST_GAP = 4  # times the mean: an exponential gap has no upper limit, and a job does not wait for it
SHORT_STOP_S, LONG_STOP_S = (0.05, 1.0), 15.0
LONG_STOPS = 0.25  # of all stops, if the job's own limits allow it
EARLY = 1 / 6  # of all kills: whatever the target is doing, even while it starts


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `number`: place among the processes of its role that exist. `lasts_s`: duration of a stop or a pause.
    `early`: the worker may be hit while it starts."""

    kind: str
    number: int
    at_s: float
    lasts_s: float = 0.0
    early: bool = False

    @property
    def role(self) -> str:
        return ROLE[self.kind]

    def __str__(self) -> str:
        who = self.kind
        if self.role != SUPERVISOR:
            who += f" {self.number}" if self.kind.startswith(self.role) else f" {self.role} {self.number}"
        return who + (f" for {self.lasts_s:.2f} s" if self.lasts_s else "") + (" (also in its start)" * self.early)


@dataclass(frozen=True, slots=True)
class FaultLimits:
    """The job's limits from `supervise`: a stop past the stall limit counts as a death, and stopping everything for
    nearly the deadlock limit would be our own fault."""

    stall_s: float
    deadlock_s: float

    @property
    def longest_short_s(self) -> float:
        return min(SHORT_STOP_S[1], self.stall_s / 2, self.deadlock_s / 4)

    @property
    def stops_past_stall(self) -> bool:
        """True if some stops last longer than the stall limit; False if that would delay the job by minutes."""
        return self.stall_s <= LONG_STOP_S and 4 * self.stall_s <= self.deadlock_s


def checked_kinds(given: str | None) -> tuple[str, ...]:
    """Return the kinds of `--faults kill,stop`; () means the default mix. Raises UsageError."""
    if given is None:
        return ()
    kinds = tuple(dict.fromkeys(name.strip() for name in given.split(",")))
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(
                f"--faults: unknown kind {kind!r}{did_you_mean(kind, KINDS)} (kinds: {', '.join(KINDS)})",
                code="usage/bad-value",
            )
    return kinds


def check(kills: int, seed: int, every_s: float) -> None:
    """Raise UsageError for arguments that make no schedule."""
    if kills < 1:
        raise UsageError(f"--kills {kills}: must be at least 1, the number of faults", code="usage/bad-value")
    if seed < 0:
        raise UsageError(f"--seed {seed}: must be at least 0", code="usage/bad-value")
    if not (every_s > 0 and math.isfinite(every_s)):
        raise UsageError(
            f"--every {every_s:g}: must be > 0, the mean seconds between two faults", code="usage/bad-value"
        )


def draw(
    seed: int, count: int, every_s: float, kinds: Sequence[str], procs: int, limits: FaultLimits, loaders: int = 0
) -> list[Fault]:
    """Return the schedule: the same for the same arguments, on every machine. Empty `kinds` mean the default mix,
    including loader faults if `loaders` > 0."""
    chance = random.Random(seed)
    faults, at_s = [], 0.0
    for number in range(1, count + 1):
        at_s += min(chance.expovariate(1 / every_s), LONGEST_GAP * every_s)
        kind = chance.choice(kinds) if kinds else _usual(chance, number, USUAL_OF_STREAMS if loaders else USUAL)
        of = loaders if ROLE[kind] == LOADER else procs
        faults.append(_drawn(chance, Fault(kind, 0, round(at_s, 3)), of, limits))
    return faults


def _usual(chance: random.Random, number: int, mix: Mapping[str, int]) -> str:
    if number % SUPERVISOR_EVERY == 0:
        return chance.choice(OF_SUPERVISOR)
    return chance.choices(list(mix), list(mix.values()))[0]


def _drawn(chance: random.Random, fault: Fault, count: int, limits: FaultLimits) -> Fault:
    """Return the fault with a random target, one of `count`, and a random duration."""
    who, how_long, is_long = chance.randrange(count), chance.random(), chance.random() < LONG_STOPS
    fault = replace(fault, number=who if fault.role != SUPERVISOR else 0)
    if fault.kind == KILL:
        return replace(fault, early=how_long < EARLY)
    if fault.kind not in LASTING:
        return fault
    if fault.kind != SUPERVISOR_PAUSE and is_long and limits.stops_past_stall:
        lasts_s = limits.stall_s * (1.0 + how_long)
    else:
        shortest = min(SHORT_STOP_S[0], limits.longest_short_s)
        lasts_s = shortest + how_long * (limits.longest_short_s - shortest)
    return replace(fault, lasts_s=round(lasts_s, 3))
