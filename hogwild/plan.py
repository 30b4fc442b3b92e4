"""Procs x threads for this machine, and why. Torch-free: a child needs the environment before it imports
torch.

The rule that matters: procs x threads must not exceed the cores. Two processes with two threads each on two
cores took 182 s for what takes 24 s with one thread each."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hogwild.errors import UsageError
from hogwild.host import Cores

OMP = "OMP_NUM_THREADS"
TORCHRUN = "TORCHELASTIC_RUN_ID"  # set by torchrun, which also sets OMP_NUM_THREADS=1 by itself

MOST_THREADS = 1024  # as train.threads

# Each library reads its own variable, once, when it is loaded. One that is set would beat OMP_NUM_THREADS: so
# all are.
VARIABLES = (
    OMP,
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """`procs` trainers (0: the loop runs inside the parent) of `threads` threads; `environment` is what each
    child gets before it imports torch. `warning` is empty unless the machine is asked for more than it
    has."""

    procs: int
    threads: int
    reason: str
    warning: str = ""
    environment: dict[str, str] = field(default_factory=dict)


def make_plan(
    procs: int | Literal["auto"],
    threads: int | Literal["auto"],
    *,
    cores: Cores,
    environ: Mapping[str, str],
) -> Plan:
    """Explicit values win; `auto` procs are the usable cores; `auto` threads are the user's OMP_NUM_THREADS,
    or else floor(usable cores / procs), at least 1. Raises UsageError for an OMP_NUM_THREADS that is no
    number, where it counts."""
    chosen_procs, procs_reason = _procs(procs, cores)
    chosen_threads, threads_reason = _threads(threads, chosen_procs, cores, environ)
    return Plan(
        chosen_procs,
        chosen_threads,
        f"procs {chosen_procs} ({procs_reason}); threads {chosen_threads} ({threads_reason}); "
        f"usable cores: {cores.reason}",
        _warning(chosen_procs, chosen_threads, cores),
        dict.fromkeys(VARIABLES, str(chosen_threads)),
    )


def _procs(procs: int | Literal["auto"], cores: Cores) -> tuple[int, str]:
    if procs != "auto":
        return procs, "as given"
    return max(1, math.floor(cores.usable)), "one for each usable core"


def _threads(threads: int | Literal["auto"], procs: int, cores: Cores, environ: Mapping[str, str]) -> tuple[int, str]:
    if threads != "auto":
        return threads, "as given"
    computed = max(1, math.floor(cores.usable / max(procs, 1)))
    rule = f"{cores.usable:g} usable cores / {max(procs, 1)}"
    if not environ.get(OMP, "").strip():
        return computed, rule
    wanted = _omp_threads(environ[OMP])
    if wanted == 1 and TORCHRUN in environ:
        return computed, f"{rule}; {OMP}=1 was set by torchrun"
    return wanted, f"{OMP} is set"


def _omp_threads(value: str) -> int:
    """The first number of OpenMP's list, one for each nesting level: '4,2' is 4."""
    numbers = [part.strip() for part in value.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= MOST_THREADS for part in numbers):
        raise UsageError(
            f"{OMP}={value}: must be a whole number from 1 to {MOST_THREADS}; unset it, or give train.threads a number"
        )
    return int(numbers[0])


def _warning(procs: int, threads: int, cores: Cores) -> str:
    """A machine with less than one core still has to run one worker: no reason to warn."""
    room = max(1.0, cores.usable)
    if max(procs, 1) > room:
        return (
            f"{procs} workers share {cores.usable:g} usable cores ({cores.reason}): they will wait for each "
            f"other; train.procs: {math.floor(room)} is as fast or faster"
        )
    if max(procs, 1) * threads > room:
        return (
            f"{max(procs, 1)} workers x {threads} threads want more than the {cores.usable:g} usable cores "
            f"({cores.reason}): threads that wait for each other can be many times slower; "
            f"try train.threads: auto"
        )
    return ""
