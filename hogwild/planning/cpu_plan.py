"""The plan of procs x threads x cores for this machine, and its reason; and the memory of so many processes.
Torch-free: a child needs the environment before it imports torch.

The main rule: procs x threads must not exceed the cores. Two processes with two threads each on two cores took 182 s
for a task that takes 24 s with one thread each.

Other jobs of this user count, too: `threads: auto` is what they leave, by their leases (`host/core_leases.py`), now and
again every second while the job runs (`Session.share_cores`). LeNet, samples/s on two cores: one job of two threads
12,700; two such jobs together 6,000; of one thread each 21,300. The number of workers does not follow: it changes what
is learnt, threads change the last bits."""

import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

from hogwild import host
from hogwild.errors import UsageError
from hogwild.formatting import counted, size
from hogwild.host import Core, CoreLease, Cores

# Open files of the supervisor: its own regions (two each), records, pipes and temporary files; those of each worker;
# and files being passed to a worker during set-up, which for all but root count against the same limit.
FILES, FILES_PER_WORKER, FILES_ON_THEIR_WAY = 44, 7, 10

# Threads of the supervisor beside the first one, and those of its OpenMP pool: records, screen, memory, checkpoints.
THREADS = 7

OMP = "OMP_NUM_THREADS"
TORCHRUN = "TORCHELASTIC_RUN_ID"  # set by torchrun, which also sets OMP_NUM_THREADS=1

MOST_THREADS = 1024  # as train.threads

# Each library reads its own variable once, on loading, and prefers it to OMP_NUM_THREADS: so all are set.
VARIABLES = (
    OMP,
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)
# Environment of a child if the user's environment binds threads: otherwise every worker's first thread would be bound
# to the same first core. OMP_PROC_BIND=false overrides OMP_PLACES and GOMP_CPU_AFFINITY (libgomp, "Environment
# Variables"); Intel's runtime reads its own variable first.
UNBOUND = {"OMP_PROC_BIND": "false", "KMP_AFFINITY": "disabled"}
# Environment where threads that were asked for need more cores than other jobs leave: by default a waiting thread spins
# for milliseconds, on the core that the thread it waits for needs. Alone it would cost a third of the speed.
SLEEPING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}

# A parallel region ends when its last thread does, and a thread that is off its core waits a time slice for each thread
# before it: so the loss grows with threads per core beyond one. 182 s / 24 s at two of them gives the slope.
LOSS_PER_THREAD = 182 / 24 - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """`procs` trainers (0: the loop runs inside the parent) of `threads` threads; `environment`: variables that each
    child gets before it imports torch. `warning` is empty unless the plan exceeds the machine. `cores`: the logical
    CPUs of each worker, by number; empty if workers are not pinned."""

    procs: int
    threads: int
    reason: str
    warning: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    cores: tuple[tuple[int, ...], ...] = ()
    procs_max: int = 0  # most workers that the running job may be resized to, if more than `procs`
    usable_cores: float = 1.0  # of the machine
    follows: bool = False  # threads are what other jobs leave, also while the job runs

    @property
    def rows(self) -> int:
        """Rows of everything that has one per worker."""
        return max(1, self.procs, self.procs_max)


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """The part of this machine that plans depend on. A command asks for it once. `restored`: says that cores which an
    OpenMP runtime took from this process were given back to it; `others`: what this user's other jobs use."""

    cores: Cores
    environ: Mapping[str, str]
    restored: str = ""
    others: tuple[CoreLease, ...] = ()

    @classmethod
    def here(cls) -> "MachineFacts":
        restored = host.restore_affinity(os.environ)  # first: it changes the usable cores
        return cls(host.usable_cores(), dict(os.environ), restored, host.other_core_leases())

    def plan(self, procs: int | Literal["auto"], threads: int | Literal["auto"], *, pin: bool = False) -> Plan:
        """Make the plan for this machine. Raises UsageError as `make_plan` does."""
        plan = make_plan(procs, threads, cores=self.cores, environ=self.environ, pin=pin, others=self.others)
        return replace(plan, reason=f"{plan.reason}; {self.restored}") if self.restored else plan


def plan_here(procs: int | Literal["auto"], threads: int | Literal["auto"], *, pin: bool = False) -> Plan:
    """Make a plan for something that is no job, on this machine (a job's: `job_plan.py`)."""
    return MachineFacts.here().plan(procs, threads, pin=pin)


def make_plan(
    procs: int | Literal["auto"],
    threads: int | Literal["auto"],
    *,
    cores: Cores,
    environ: Mapping[str, str],
    pin: bool = False,
    others: Sequence[CoreLease] = (),
) -> Plan:
    """Make a plan. Explicit values win; `auto` procs are the usable cores; `auto` threads are the user's
    OMP_NUM_THREADS, or else floor(usable cores / procs), at least 1, less what `others` use. `pin`: separate cores for
    every worker, if there are enough. Raises UsageError for an OMP_NUM_THREADS that is no number, if it is used."""
    chosen_procs, procs_reason = _procs(procs, cores)
    chosen_threads, threads_reason = _threads(threads, chosen_procs, cores, environ, others)
    pinned, pin_reason, pin_warning = _pinned(chosen_procs, chosen_threads, cores.physical) if pin else ((), "", "")
    return Plan(
        chosen_procs,
        chosen_threads,
        f"procs {chosen_procs} ({procs_reason}); threads {chosen_threads} ({threads_reason}); "
        f"usable cores: {cores.reason}{pin_reason}",
        "; ".join(filter(None, (_warning(chosen_procs, chosen_threads, cores), pin_warning))),
        environment_for(chosen_threads, environ) | _sleeping(chosen_procs, chosen_threads, cores, environ, others),
        pinned,
        usable_cores=cores.usable,
        follows=threads == "auto" and omp_threads(environ) is None and not pinned,
    )


def environment_for(threads: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a child of so many threads."""
    return dict.fromkeys(VARIABLES, str(threads)) | (UNBOUND if host.binding_variables(environ) else {})


def omp_threads(environ: Mapping[str, str]) -> int | None:
    """Return the user's OMP_NUM_THREADS for `threads: auto`; None if it is not set, or torchrun set it. Raises
    UsageError for one that is no number."""
    if not environ.get(OMP, "").strip():
        return None
    wanted = _first_number(environ[OMP])
    return None if wanted == 1 and TORCHRUN in environ else wanted


def used_by(others: Sequence[CoreLease], cores: Cores) -> float:
    """Return how many of these cores the other jobs use at least."""
    own = {cpu for core in cores.physical for cpu in core.cpus}
    return sum(
        lease.procs * max(lease.threads, 1) * len(own.intersection(lease.cpus)) / len(lease.cpus) for lease in others
    )


def threads_beside(procs: int, cores: Cores, others: Sequence[CoreLease]) -> int:
    """Return the threads of each worker, at least 1: what no other job needs is shared with those whose threads follow,
    too. All jobs come to the same division, whichever began first."""
    own = {cpu for core in cores.physical for cpu in core.cpus}
    sharers = 1 + sum(lease.threads == 0 and not own.isdisjoint(lease.cpus) for lease in others)
    workers = max(procs, 1)
    spare = max(0.0, cores.usable - workers - used_by(others, cores))
    return max(1, math.floor((min(workers, cores.usable) + spare / sharers) / workers))


def _sleeping(
    procs: int, threads: int, cores: Cores, environ: Mapping[str, str], others: Sequence[CoreLease]
) -> dict[str, str]:
    """Return the variables by which waiting threads sleep, if there are more threads than cores for them."""
    used = used_by(others, cores)
    if threads == 1 or not used or max(procs, 1) * threads + used <= cores.usable:
        return {}
    return {name: environ.get(name, value) for name, value in SLEEPING.items()}


def _procs(procs: int | Literal["auto"], cores: Cores) -> tuple[int, str]:
    if procs != "auto":
        return procs, "as given"
    if cores.usable < 1:
        return 1, "one worker, as less than one core is usable"
    if cores.usable < 2:
        return 1, "one worker, as one whole core is usable"
    return math.floor(cores.usable), "one per usable core"


def _threads(
    threads: int | Literal["auto"], procs: int, cores: Cores, environ: Mapping[str, str], others: Sequence[CoreLease]
) -> tuple[int, str]:
    if threads != "auto":
        return threads, "as given"
    wanted = omp_threads(environ)
    if wanted is not None:
        return wanted, f"{OMP} is set"
    rule = f"{cores.usable:g} usable cores / {max(procs, 1)}"
    if environ.get(OMP, "").strip():
        rule += f"; {OMP}=1 was set by torchrun"
    if used := used_by(others, cores):
        rule += f"; other jobs use {used:.3g} of them"
    return threads_beside(procs, cores, others), rule


def _first_number(value: str) -> int:
    """Return the first number of OpenMP's list, one per nesting level: '4,2' is 4."""
    numbers = [part.strip() for part in value.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= MOST_THREADS for part in numbers):
        raise UsageError(
            f"{OMP}={value}: must be a whole number from 1 to {MOST_THREADS}; unset it, or set train.threads",
            code="usage/omp-threads",
        )
    return int(numbers[0])


# --- warnings for plans that exceed the machine --------------------------------------------------------------


def _warning(procs: int, threads: int, cores: Cores) -> str:
    """Return a warning with an estimate of the loss. A machine with less than one core still has to run one worker: no
    warning."""
    room, workers = max(1.0, cores.usable), max(procs, 1)
    has = f"{cores.usable:g} usable core{'' if cores.usable == 1 else 's'} ({cores.reason})"
    if threads > 1 and workers * threads > room:
        times = 1 + LOSS_PER_THREAD * (workers * threads / room - 1)
        return (
            f"{workers} worker{'' if workers == 1 else 's'} x {threads} threads need more than {has}: threads wait for "
            f"each other, about {times:.2g} x slower than train.threads: auto by estimate (measured: 182 s instead of "
            "24 s, 2 x 2 on 2 cores)"
        )
    if workers > room:
        return (
            f"{workers} workers share {has}: each update takes about {workers / room:.2g} x as long, so the samples/s "
            f"are at best about those of train.procs: {math.floor(room)}, from staler gradients"
        )
    return ""


# --- separate cores -----------------------------------------------------------------------------------------


def _pinned(procs: int, threads: int, physical: Sequence[Core]) -> tuple[tuple[tuple[int, ...], ...], str, str]:
    """Return (the logical CPUs of each worker, text for the reason, warning)."""
    if procs == 0:
        return (), "; not pinned, as there is no worker", ""
    needed = procs * threads
    logical = [Core((cpu,), core.node) for core in physical for cpu in core.cpus]
    cores = physical if needed <= len(physical) else logical
    if needed > len(cores):
        words = f"train.pin: workers are not pinned: {procs} x {threads} cores are needed, {len(cores)} are available"
        return (), "", words
    shared = "" if cores is physical else ", SMT siblings counted as cores"
    return _dealt(procs, threads, cores), f"; pinned: {threads} for each worker{shared}", ""


def _dealt(procs: int, threads: int, cores: Sequence[Core]) -> tuple[tuple[int, ...], ...]:
    """Return one set of `threads` cores per worker: first sets within one node, node by node, then sets of the
    remaining cores. A core includes its SMT siblings: the kernel spreads threads over idle cores."""
    nodes: dict[int, list[Core]] = defaultdict(list)
    for core in cores:
        nodes[core.node].append(core)
    whole = {node: len(inside) // threads * threads for node, inside in nodes.items()}
    order = [core for node, inside in nodes.items() for core in inside[: whole[node]]]
    order += [core for node, inside in nodes.items() for core in inside[whole[node] :]]
    sets = [order[start : start + threads] for start in range(0, procs * threads, threads)]
    return tuple(tuple(sorted(chain(*(core.cpus for core in chosen)))) for chosen in sets)


MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes. `import_private`, `import_shared`: of a process that has imported torch and what workers import, the
    latter being pages of files, which all processes share. `fork_private`: of a fork that waits for its task. Defaults:
    measured with torch 2.13 for CPUs; `hogwild doctor` and `check --deep` measure them here."""

    import_private: int = 150 * MIB
    import_shared: int = 76 * MIB
    fork_private: int = 10 * MIB

    @classmethod
    def measured(cls, trial: Mapping[str, Any]) -> "ProcessMemory":
        """`trial`: the answer of `workers/processes/fork_trial.py`; without figures in it these are the defaults."""
        names = ("import_private", "import_shared", "fork_private")
        return cls(*(int(trial[name]) for name in names)) if all(name in trial for name in names) else cls()

    def of(self, procs: int, *, is_forked: bool) -> int:
        """Return the bytes of the fork server with so many workers, or of these as fresh interpreters."""
        once = self.import_shared + self.import_private * is_forked if procs else 0
        return once + self.further(procs, is_forked=is_forked)

    def further(self, procs: int, *, is_forked: bool) -> int:
        """Return the bytes of so many workers beside what is there already: the fork server, and shared pages."""
        return procs * (self.fork_private if is_forked else self.import_private)

    def words(self, procs: int, *, is_forked: bool) -> str:
        """Return `246 MiB: the fork server 226 MiB, each of 2 workers 10 MiB`."""
        if not procs:
            return "none: it trains in the command's own process"
        workers = f"each of {counted(procs, 'worker')}"
        if is_forked:
            once = size(self.import_shared + self.import_private)
            parts = f"the fork server {once}, {workers} {size(self.fork_private)}"
        else:
            parts = f"shared {size(self.import_shared)}, {workers}, a fresh interpreter, {size(self.import_private)}"
        return f"{size(self.of(procs, is_forked=is_forked))}: {parts}"


def may_fork(device: str) -> bool:
    """Return whether processes that compute on `device` may be forks: until that was tried on one, not with a GPU, and
    not if OpenMP binds threads to cores, which it decides when it is loaded."""
    return (device == "cpu" or not host.has_gpu()) and not host.binding_variables(os.environ)
