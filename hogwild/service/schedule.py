"""The queue and the cores of running jobs. Pure: records and measured speeds in, decisions out.

`decide`: which jobs start now, with whole physical cores and GPUs, never two jobs on one; by priority, then by age. A
job that does not fit yet blocks those after it, except that smaller ones may pass it MOST_PASSED times; one that waits
for what no job of ours has (memory that other programs use, a GPU that is gone) blocks nobody. An elastic job begins
with what is free, if that is its least.

`lend`: which cores move between running jobs.

    a job waits for cores:  running elastic jobs give up some, down to their least; the borrower starts on them
    cores are free:         elastic jobs get them, the one first that gains most by one more

A job's gain by one more core is its measured speed with it over that without it; until both are known, n cores become
n + 1. A job that asks for cores gets a fair share by the same rule, not the least. The one thing to know: a move is
asked of a job and takes effect when it answers; until then old and new cores are both in use, so no core is ever given
twice."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hogwild.formatting import counted, size
from hogwild.service.states import Elastic, JobOrder, JobRecord

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
            number, lender = orders[barred_by].number, lenders.get(barred_by)
            why = f"gets cores of job {orders[lender].number}" if lender else f"{MOST_PASSED} jobs have passed"
            waits[job.id] = f"waits for job {number}, which {why}"
        elif lacks := _lacks(order, needed, machine, len(free), len(gpus), memory):
            lender = lenders.get(job.id)
            waits[job.id] = f"waits for cores of job {orders[lender].number}" if lender else lacks
            passed[job.id] = 0
            if not _lacks(order, 0, machine, 0, len(gpus), memory):
                short.append(job.id)
            if lender or (job.passed >= MOST_PASSED and (live or starts) and order.gpus <= len(machine.gpus)):
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
                if barred_by is None and is_last and orders[one].gpus <= len(machine.gpus):
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


def _lacks(order: JobOrder, cpus: int, machine: Machine, free: int, gpus: int, memory: float) -> str:
    """Return what a job waits for; "" if it fits."""
    if cpus > free:
        return f"needs {counted(cpus, 'core')}, {free} of {len(machine.cores)} are free"
    if order.gpus > gpus:
        return f"needs {counted(order.gpus, 'GPU')}, {gpus} of {len(machine.gpus)} are free"
    if order.memory and order.memory > memory:
        return f"needs {size(order.memory)} of memory, {size(max(0, memory))} are free and not reserved"
    return ""


REST_S = 10.0  # between two moves of one job
LEAST_GAIN = 0.02  # of a job's speed by one more core; less is not worth a move
Speeds = Mapping[int, float]  # physical cores -> samples/s


@dataclass(frozen=True, slots=True)
class Transfer:
    """New cores for a running job. `cores`: logical CPUs; `borrower`: the waiting job that gets what is given up."""

    cores: tuple[int, ...]
    procs: int
    borrower: str | None = None


@dataclass(slots=True)
class _Part:
    """One job in the division of cores: has `cores` of them, takes `step` at a time, up to `most`."""

    cores: int
    most: int
    step: int
    speeds: Speeds

    @property
    def gain(self) -> float:
        """Return the relative gain per core of one more step."""
        if self.cores + self.step > self.most:
            return 0.0
        before, after = self.speeds.get(self.cores), self.speeds.get(self.cores + self.step)
        grown = after / before - 1 if before and after is not None else self.step / self.cores
        return grown / self.step if grown > LEAST_GAIN * self.step else 0.0


def may_move(job: JobRecord, order: JobOrder, now: float) -> bool:
    """Return whether a job can be asked for a move at this time, in seconds since 1970."""
    is_rested = job.moved is None or not 0 <= now - job.moved < REST_S
    is_free = job.move is None and job.fixed is None and job.asked is None
    return order.elastic is not None and job.state == "running" and is_free and is_rested


def lend(
    jobs: Sequence[JobRecord],
    orders: Mapping[str, JobOrder],
    machine: Machine,
    turn: Turn,
    *,
    ready: Collection[str],
    speeds: Mapping[str, Speeds],
) -> dict[str, Transfer]:
    """Return the moves to ask for, after the decisions of `turn`; `ready`: jobs that may be moved. Each job that is
    moved either gives cores up or gets some."""
    live = [job for job in jobs if job.is_live]
    borrowers = {job.move.borrower for job in live if job.move is not None}
    if any(job.state == "queued" and job.id in borrowers for job in jobs):
        return {}  # its cores are on their way
    taken = (*(job.in_use for job in live), *(share.cores for share in turn.starts.values()))
    used = machine.busy.union(*taken)
    free = [core for core in machine.cores if used.isdisjoint(core)]
    held = {job.id: cores_of(job, machine) for job in live if job.id in ready}
    held = {name: cores for name, cores in held.items() if cores}
    for name in turn.short:
        if moves := _borrow(name, orders, machine, len(free), held, speeds):
            return moves
    # Nobody waits, or nobody can help: running jobs get what is free.
    parts = {}
    for name, cores in held.items():
        most = min(_limits(orders[name]).most, len(machine.cores))
        parts[name] = _Part(len(cores), most, _limits(orders[name]).threads, speeds.get(name, {}))
    _divide(list(parts.values()), len(free))
    moves = {}
    for name, part in parts.items():
        more = part.cores - len(held[name])
        if more > 0:
            moves[name] = _transfer(orders[name], [*held[name], *free[:more]], None)
            free = free[more:]
    return moves


def _borrow(
    borrower: str,
    orders: Mapping[str, JobOrder],
    machine: Machine,
    free: int,
    held: Mapping[str, Sequence[CoreCpus]],
    speeds: Mapping[str, Speeds],
) -> dict[str, Transfer]:
    """Return the moves that make room for a waiting job; none if that is not possible."""
    order = orders[borrower]
    lenders = {}  # each keeps its least for certain, and at most what it has
    for name, cores in held.items():
        limits, has = _limits(orders[name]), len(cores)
        lenders[name] = _Part(min(limits.least, has), has, limits.threads, speeds.get(name, {}))
    total = free + sum(len(held[name]) for name in lenders)
    step = order.elastic.threads if order.elastic else 1
    guest = _Part(needed_cores(order, machine), wished_cores(order, machine), step, {})
    left = total - guest.cores - sum(part.cores for part in lenders.values())
    if left < 0:
        return {}
    _divide([*lenders.values(), guest], left)
    return {
        name: _transfer(orders[name], held[name][: part.cores], borrower)
        for name, part in lenders.items()
        if part.cores < len(held[name])
    }


def _divide(parts: Sequence[_Part], cores: int) -> None:
    """Give cores, step by step, to whoever gains most by the next."""
    while fitting := [part for part in parts if part.step <= cores and part.gain > 0]:
        first = max(fitting, key=lambda part: part.gain)
        first.cores += first.step
        cores -= first.step


def cores_of(job: JobRecord, machine: Machine) -> list[CoreCpus]:
    """Return the physical cores of a job; [] if they are not whole ones of this machine."""
    cores = [core for core in machine.cores if set(core) <= set(job.cores)]
    return cores if {cpu for core in cores for cpu in core} == set(job.cores) else []


def _limits(order: JobOrder) -> Elastic:
    assert order.elastic is not None  # else it is never moved
    return order.elastic


def _transfer(order: JobOrder, cores: Sequence[CoreCpus], borrower: str | None) -> Transfer:
    return Transfer(tuple(cpu for core in cores for cpu in core), _limits(order).procs(len(cores)), borrower)
