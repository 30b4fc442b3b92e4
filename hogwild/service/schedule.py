"""The queue: jobs that start now, and their cores, GPUs and memory. Pure: records in, decisions out.

Whole physical cores and GPUs, never two jobs on one; by priority, then by age. A job that does not fit yet blocks those
after it, except that smaller ones may pass it MOST_PASSED times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hogwild.formatting import counted, size
from hogwild.service.states import JobOrder, JobRecord

MOST_PASSED = 10
CoreCpus = tuple[int, ...]  # logical CPUs of one physical core


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources that jobs share. `memory_bytes`: free now, without what live jobs have reserved and do not use
    yet."""

    cores: Sequence[CoreCpus]
    gpus: Sequence[str] = ()
    memory_bytes: float = float("inf")


@dataclass(frozen=True, slots=True)
class Share:
    """The resources of one started job: logical CPUs, and GPUs as CUDA_VISIBLE_DEVICES names them."""

    cores: tuple[int, ...]
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of decisions. `starts`: job id -> its share; `passed`: jobs that others passed by these starts, once
    for each; `waits`: job id -> why it still waits."""

    starts: Mapping[str, Share] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)


def decide(jobs: Sequence[JobRecord], orders: Mapping[str, JobOrder], machine: Machine) -> Turn:
    """Return which queued jobs start; the resources of live jobs are in use."""
    live = [job for job in jobs if job.is_live]
    used = {cpu for job in live for cpu in job.cores}
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
    barred_by: str | None = None  # nobody may pass this job any more
    for job in queue:
        order = orders[job.id]
        needed = min(order.cpus, len(machine.cores))  # a smaller machine than the one it was submitted on
        if barred_by is not None:
            waits[job.id] = f"waits for job {orders[barred_by].number}, which {MOST_PASSED} jobs have passed"
        elif lacks := _lacks(order, needed, machine, len(free), len(gpus), memory):
            waits[job.id] = lacks
            passed[job.id] = 0
            if job.passed >= MOST_PASSED:
                barred_by = job.id
        else:
            taken, free = free[:needed], free[needed:]
            starts[job.id] = Share(tuple(cpu for core in taken for cpu in core), tuple(gpus[: order.gpus]))
            gpus, memory = gpus[order.gpus :], memory - order.memory
            for one in passed:
                passed[one] += 1
                if barred_by is None and before[one] + passed[one] >= MOST_PASSED:
                    barred_by = one
    return Turn(starts, tuple(one for one, count in passed.items() for _ in range(count)), waits)


def _lacks(order: JobOrder, cpus: int, machine: Machine, free: int, gpus: int, memory: float) -> str:
    """Return what a job waits for; "" if it fits."""
    if cpus > free:
        return f"needs {counted(cpus, 'core')}, {free} of {len(machine.cores)} are free"
    if order.gpus > gpus:
        return f"needs {counted(order.gpus, 'GPU')}, {gpus} of {len(machine.gpus)} are free"
    if order.memory and order.memory > memory:
        return f"needs {size(order.memory)} of memory, {size(max(0, memory))} are free and not reserved"
    return ""
