"""Schedule of faults from a seed: the fault, its target, time and duration. Pure; `inject.py` carries it out.

A fault's time is when it is *due*, in seconds since the job's first worker was started. It is injected then, or as soon
as its target can be hit: a worker that trains, or a supervisor with such a worker."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from hogwild.errors import UsageError, did_you_mean

KILL, STOP, TERMINATE, INTERRUPT = "kill", "stop", "terminate", "interrupt"
SUPERVISOR_KILL, SUPERVISOR_TERMINATE, SUPERVISOR_PAUSE = "supervisor-kill", "supervisor-terminate", "supervisor-pause"
LOADER_KILL, LOADER_STOP = "loader-kill", "loader-stop"
# The fork server is killed or stopped, and then a worker is killed: its replacement starts meanwhile.
SERVER_KILL, SERVER_STOP = OF_SERVER = "server-kill", "server-stop"
WORKER, LOADER, SUPERVISOR = "worker", "loader", "supervisor"
ROLE = {
    **dict.fromkeys((KILL, STOP, TERMINATE, INTERRUPT, *OF_SERVER), WORKER),
    **dict.fromkeys((LOADER_KILL, LOADER_STOP), LOADER),
    **dict.fromkeys((SUPERVISOR_KILL, SUPERVISOR_TERMINATE, SUPERVISOR_PAUSE), SUPERVISOR),
}  # kind of fault -> the role it hits
OF_SUPERVISOR = tuple(kind for kind in ROLE if ROLE[kind] == SUPERVISOR)
DEADLY = (KILL, TERMINATE, LOADER_KILL, *OF_SERVER)
LASTING = (STOP, LOADER_STOP, SUPERVISOR_PAUSE)
KINDS = tuple(ROLE)

# The default mix: mostly kills of workers, and every tenth fault hits the supervisor.
USUAL = {KILL: 8, STOP: 2, TERMINATE: 1, SERVER_KILL: 1, SERVER_STOP: 1}
USUAL_OF_STREAMS = {**USUAL, LOADER_KILL: 4, LOADER_STOP: 2}
SUPERVISOR_EVERY = 10
LONGEST_GAP = 4  # times the mean: an exponential gap has no upper limit, and a job does not wait for it
SHORTEST_STOP_S, LONGEST_STOP_S = 0.05, 1.0
SEEDS = 1_000_000_000
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


def seed_of(given: int | None) -> int:
    """Return --seed, or a random one."""
    return random.SystemRandom().randrange(SEEDS) if given is None else given


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


def longest_stop_s(stall_s: float, deadlock_s: float) -> float:
    """Return how long a stop may last below the job's limits: a stop past the stall limit would be a death, and of all
    for nearly the deadlock limit the end of the job."""
    return min(LONGEST_STOP_S, stall_s / 2, deadlock_s / 4)


def draw(
    seed: int, count: int, every_s: float, kinds: Sequence[str], procs: int, longest_s: float, loaders: int = 0
) -> list[Fault]:
    """Return the schedule: the same for the same arguments, on every machine. Empty `kinds` mean the default mix,
    including loader faults if `loaders` > 0. No stop lasts longer than `longest_s`."""
    chance = random.Random(seed)
    mix = USUAL_OF_STREAMS if loaders else USUAL
    shortest_s = min(SHORTEST_STOP_S, longest_s)
    faults, at_s = [], 0.0
    for number in range(1, count + 1):
        at_s += min(chance.expovariate(1 / every_s), LONGEST_GAP * every_s)
        if kinds:
            kind = chance.choice(kinds)
        elif number % SUPERVISOR_EVERY == 0:
            kind = chance.choice(OF_SUPERVISOR)
        else:
            kind = chance.choices(list(mix), list(mix.values()))[0]
        role = ROLE[kind]
        place, share = chance.randrange(loaders if role == LOADER else procs), chance.random()
        lasts_s = round(shortest_s + share * (longest_s - shortest_s), 3) if kind in LASTING else 0.0
        early = kind == KILL and share < EARLY
        faults.append(Fault(kind, 0 if role == SUPERVISOR else place, round(at_s, 3), lasts_s, early))
    return faults
