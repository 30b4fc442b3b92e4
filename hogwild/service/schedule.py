"""The queue: jobs that start now, and their cores, GPUs and memory. Pure: records in, decisions out.

Whole physical cores and GPUs, never two jobs on one; by priority, then by age. A job that does not fit yet blocks those
after it, except that smaller ones may pass it MOST_PASSED times; one that waits for what no job of ours has (memory
that other programs use, a GPU that is gone) blocks nobody. An elastic job begins with what is free, if that is
its least; `lending.py` changes it later."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hogwild.formatting import counted, size
from hogwild.service.states import JobOrder, JobRecord

MOST_PASSED = 10
CoreCpus = tuple[int, ...]  # logical CPUs of one physical core


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources that jobs share. `memory_bytes`: free now, without what live jobs have reserved and do not use
    yet; `busy`: logical CPUs that nobody may get."""

    cores: Sequence[CoreCpus]
    gpus: Sequence[str] = ()
    memory_bytes: float = float("inf")
    busy: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Share:
    """The resources of one started job: logical CPUs, and GPUs as CUDA_VISIBLE_DEVICES names them. `procs`: workers of
    an elastic job."""

    cores: tuple[int, ...]
    gpus: tuple[str, ...] = ()
    procs: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of decisions. `starts`: job id -> its share; `passed`: jobs that others passed by these starts, once
    for each; `waits`: job id -> why it still waits; `short`: jobs that wait for nothing but cores, the first one
    first."""

    starts: Mapping[str, Share] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)
    short: tuple[str, ...] = ()


def needed_cores(order: JobOrder, machine: Machine) -> int:
    """Return the cores without which a job does not start; the machine may be smaller than at the submission."""
    return min(order.elastic.least if order.elastic else order.cpus, len(machine.cores))


def wished_cores(order: JobOrder, machine: Machine) -> int:
    """Return the cores that a job begins with, if they are free."""
    return min(order.cpus, len(machine.cores))


def decide(jobs: Sequence[JobRecord], orders: Mapping[str, JobOrder], machine: Machine) -> Turn:
    """Return which queued jobs start; the resources of live jobs are in use."""
    live = [job for job in jobs if job.is_live]
    used = machine.busy.union(*(job.in_use for job in live))
    lenders = {job.move.borrower: job.id for job in live if job.move is not None}
    free = [core for core in machine.cores if not used.intersection(core)]
    gpus = [gpu for gpu in machine.gpus if not any(gpu in job.gpus for job in live)]
    memory = machine.memory_bytes
    queue = sorted(
        (job for job in jobs if job.state == "queued"),
        key=lambda job: (-orders[job.id].priority, orders[job.id].number),
    )
    before = {job.id: job.passed for job in queue}
    starts: dict[str, Share] = {}
    passed: dict[str, int] = {}  # of the jobs that do not fit yet
    waits: dict[str, str] = {}
    short: list[str] = []
    barred_by: str | None = None  # nobody may pass this job any more
    for place, job in enumerate(queue):
        order = orders[job.id]
        needed = needed_cores(order, machine)
        if barred_by is not None:
            waits[job.id] = _barred(orders, barred_by, lenders)
        elif lacks := _lacks(order, needed, machine, len(free), len(gpus), memory):
            lender = lenders.get(job.id)
            waits[job.id] = f"waits for cores of job {orders[lender].number}" if lender else lacks
            passed[job.id] = 0
            if not _lacks(order, 0, machine, 0, len(gpus), memory):
                short.append(job.id)
            if lender or (job.passed >= MOST_PASSED and (live or starts) and _is_possible(order, machine)):
                barred_by = job.id
        else:
            later = [orders[one.id] for one in queue[place + 1 :]]
            cores = _share(order, later, machine, len(free))
            taken, free = free[:cores], free[cores:]
            starts[job.id] = Share(
                tuple(cpu for core in taken for cpu in core),
                tuple(gpus[: order.gpus]),
                order.elastic.procs(cores) if order.elastic else None,
            )
            gpus, memory = gpus[order.gpus :], memory - order.memory
            for one in passed:
                passed[one] += 1
                is_last = before[one] + passed[one] >= MOST_PASSED
                if barred_by is None and is_last and _is_possible(orders[one], machine):
                    barred_by = one
    return Turn(starts, tuple(one for one, count in passed.items() for _ in range(count)), waits, tuple(short))


def _share(order: JobOrder, later: Sequence[JobOrder], machine: Machine, free: int) -> int:
    """Return the cores that a job gets: what it wishes, if those after it that fit get their least and, if they are
    elastic, as much of the rest."""
    needed = needed_cores(order, machine)
    rest, sharers = free - needed, 1
    for other in later:
        if (least := needed_cores(other, machine)) <= rest:
            rest -= least
            sharers += other.elastic is not None
    step = order.elastic.threads if order.elastic else 1
    more = min(wished_cores(order, machine) - needed, -(-rest // sharers))
    return needed + max(0, more) // step * step


def _is_possible(order: JobOrder, machine: Machine) -> bool:
    """Return whether the machine has the GPUs of a job; it may be smaller than at the submission."""
    return order.gpus <= len(machine.gpus)


def _barred(orders: Mapping[str, JobOrder], name: str, lenders: Mapping[str | None, str]) -> str:
    number = orders[name].number
    if name in lenders:
        return f"waits for job {number}, which gets cores of job {orders[lenders[name]].number}"
    return f"waits for job {number}, which {MOST_PASSED} jobs have passed"


def _lacks(order: JobOrder, cpus: int, machine: Machine, free: int, gpus: int, memory: float) -> str:
    """Return what a job waits for; "" if it fits."""
    if cpus > free:
        return f"needs {counted(cpus, 'core')}, {free} of {len(machine.cores)} are free"
    if order.gpus > gpus:
        return f"needs {counted(order.gpus, 'GPU')}, {gpus} of {len(machine.gpus)} are free"
    if order.memory and order.memory > memory:
        return f"needs {size(order.memory)} of memory, {size(max(0, memory))} are free and not reserved"
    return ""
