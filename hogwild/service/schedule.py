"""The queue: jobs that start now, and their cores. Pure: records in, decisions out.

Whole physical cores, never two jobs on one; by priority, then by age. A job that does not fit yet blocks those after
it, except that smaller ones may pass it MOST_PASSED times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hogwild.service.states import JobOrder, JobRecord

MOST_PASSED = 10
CoreCpus = tuple[int, ...]  # logical CPUs of one physical core


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of decisions. `starts`: job id -> logical CPUs; `passed`: jobs that others passed by these starts;
    `waits`: job id -> why it still waits."""

    starts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    passed: tuple[str, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)


def decide(jobs: Sequence[JobRecord], orders: Mapping[str, JobOrder], cores: Sequence[CoreCpus]) -> Turn:
    """Return which queued jobs start. `cores`: the physical cores of the machine; those of live jobs are in use."""
    used = {cpu for job in jobs if job.is_live for cpu in job.cores}
    free = [core for core in cores if not used.intersection(core)]
    queue = sorted(
        (job for job in jobs if job.state == "queued"),
        key=lambda job: (-orders[job.id].priority, orders[job.id].number),
    )
    before = {job.id: job.passed for job in queue}
    starts: dict[str, tuple[int, ...]] = {}
    passed: dict[str, int] = {}  # of the jobs that do not fit yet
    waits: dict[str, str] = {}
    barred_by: str | None = None  # nobody may pass this job any more
    for job in queue:
        needed = min(orders[job.id].cpus, len(cores))  # a smaller machine than the one it was submitted on
        if barred_by is not None:
            waits[job.id] = f"waits for job {orders[barred_by].number}, which {MOST_PASSED} jobs have passed"
        elif needed > len(free):
            waits[job.id] = f"needs {_cores(needed)}, {len(free)} of {len(cores)} are free"
            passed[job.id] = 0
            if job.passed >= MOST_PASSED:
                barred_by = job.id
        else:
            taken, free = free[:needed], free[needed:]
            starts[job.id] = tuple(cpu for core in taken for cpu in core)
            for one in passed:
                passed[one] += 1
                if barred_by is None and before[one] + passed[one] >= MOST_PASSED:
                    barred_by = one
    return Turn(starts, tuple(one for one, count in passed.items() for _ in range(count)), waits)


def _cores(count: int) -> str:
    return f"{count} core{'' if count == 1 else 's'}"
