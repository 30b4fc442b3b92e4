"""Seed -> faults in order. Pure: what is done to whom, when and for how long; `inject.py` does it.

A moment is when a fault is *due*, in seconds of the job since its first worker was started. It is carried out then, or
as soon as its target is fit to be hit: a worker that trains, a supervisor that has one."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hogwild.errors import UsageError, did_you_mean

KILL, STOP, TERMINATE, INTERRUPT = "kill", "stop", "terminate", "interrupt"
SUPERVISOR_KILL, SUPERVISOR_TERMINATE, SUPERVISOR_PAUSE = "supervisor-kill", "supervisor-terminate", "supervisor-pause"
LOADER_KILL, LOADER_STOP = "loader-kill", "loader-stop"
OF_WORKERS = (KILL, STOP, TERMINATE, INTERRUPT)
OF_LOADERS = (LOADER_KILL, LOADER_STOP)
OF_SUPERVISOR = (SUPERVISOR_KILL, SUPERVISOR_TERMINATE, SUPERVISOR_PAUSE)
DEADLY = (KILL, TERMINATE, LOADER_KILL)
LASTING = (STOP, LOADER_STOP, SUPERVISOR_PAUSE)
KINDS = OF_WORKERS + OF_LOADERS + OF_SUPERVISOR
WORDS = {
    KILL: "SIGKILL of a worker",
    STOP: "SIGSTOP of a worker, SIGCONT after a while",
    TERMINATE: "SIGTERM of a worker",
    INTERRUPT: "SIGINT of a worker",
    LOADER_KILL: "SIGKILL of a loader of streamed data",
    LOADER_STOP: "SIGSTOP of a loader, SIGCONT after a while",
    SUPERVISOR_KILL: "SIGKILL of the supervisor, then --resume",
    SUPERVISOR_TERMINATE: "SIGTERM of the supervisor, then --resume",
    SUPERVISOR_PAUSE: "SIGSTOP of the supervisor, SIGCONT after a while",
}

# The mix where none was asked for: mostly kills of workers, and every tenth fault one of the supervisor.
USUAL = {KILL: 6, STOP: 2, TERMINATE: 1}
USUAL_OF_STREAMS = {**USUAL, LOADER_KILL: 4, LOADER_STOP: 2}
SUPERVISOR_EVERY = 10
LONGEST_GAP = 4  # times the mean: an exponential gap may be any length, and a job does not wait for it
SHORT_STOP_S, LONG_STOP_S = (0.05, 1.0), 15.0
LONG_STOPS = 0.25  # of all stops, where the job's own limits allow it
EARLY = 1 / 6  # of all kills: at whatever its target is doing, its start included


@dataclass(frozen=True, slots=True)
class Fault:
    """`worker` and `loader` are None for the supervisor; of the loaders that are there it is the one at that place.
    `lasts_s`: of a stop or a pause. `early`: a worker may be hit while it starts."""

    kind: str
    worker: int | None
    at_s: float
    lasts_s: float = 0.0
    early: bool = False
    loader: int | None = None

    @property
    def is_of_supervisor(self) -> bool:
        return self.worker is None and self.loader is None

    def __str__(self) -> str:
        who = self.kind if self.worker is None else f"{self.kind} worker {self.worker}"
        who += "" if self.loader is None else f" {self.loader}"
        return who + (f" for {self.lasts_s:.2f} s" if self.lasts_s else "") + (" (also in its start)" * self.early)


@dataclass(frozen=True, slots=True)
class FaultLimits:
    """Of the job, `supervise`: a stop past the stall limit is a death, and a stop of all near the deadlock limit would
    be a fault of ours."""

    stall_s: float
    deadlock_s: float

    @property
    def longest_short_s(self) -> float:
        return min(SHORT_STOP_S[1], self.stall_s / 2, self.deadlock_s / 4)

    @property
    def stops_past_stall(self) -> bool:
        """Whether some stops last longer than the stall limit: not where that would hold the job up for minutes."""
        return self.stall_s <= LONG_STOP_S and 4 * self.stall_s <= self.deadlock_s


def checked_kinds(given: str | None) -> tuple[str, ...]:
    """The kinds of `--faults kill,stop`; none: the usual mix. Raises UsageError."""
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
    """Raises UsageError for what makes no schedule."""
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
    """The schedule: the same for the same arguments, on every machine. `kinds` empty: the usual mix, of a job with
    `loaders` if there are any."""
    chance = random.Random(seed)
    faults, at_s = [], 0.0
    for number in range(1, count + 1):
        at_s += min(chance.expovariate(1 / every_s), LONGEST_GAP * every_s)
        kind = chance.choice(kinds) if kinds else _usual(chance, number, USUAL_OF_STREAMS if loaders else USUAL)
        of = loaders if kind in OF_LOADERS else procs
        faults.append(_drawn(chance, Fault(kind, None, round(at_s, 3)), of, limits))
    return faults


def _usual(chance: random.Random, number: int, mix: Mapping[str, int]) -> str:
    if number % SUPERVISOR_EVERY == 0:
        return chance.choice(OF_SUPERVISOR)
    return chance.choices(list(mix), list(mix.values()))[0]


def _drawn(chance: random.Random, fault: Fault, count: int, limits: FaultLimits) -> Fault:
    """With a target, one of `count`, and a length."""
    who, how_long, is_long = chance.randrange(count), chance.random(), chance.random() < LONG_STOPS
    fault = replace(
        fault,
        worker=who if fault.kind in OF_WORKERS else None,
        loader=who if fault.kind in OF_LOADERS else None,
    )
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
