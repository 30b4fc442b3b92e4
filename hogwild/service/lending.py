"""Cores that move between running jobs. Pure: records and measured speeds in, moves out.

    a job waits for cores:  running elastic jobs give up some, down to their least; the borrower starts on them
    cores are free:         elastic jobs get them, whoever gains most by one more

A job's gain by one more core is its measured speed with it over that without it; until both are known, n cores become
n + 1. Who asks for cores gets a fair share by the same rule, not the least. The one thing to know: a move is asked of a
job and takes effect when it answers; until then old and new cores are both in use, so no core is ever given twice."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hogwild.service.schedule import CoreCpus, Machine, Turn, needed_cores, wished_cores
from hogwild.service.states import JobOrder, JobRecord

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
    return _give(orders, machine, free, held, speeds)


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
    lenders = {name: _part(orders[name], len(cores), speeds.get(name, {})) for name, cores in held.items()}
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


def _part(order: JobOrder, has: int, speeds: Speeds) -> _Part:
    """Return a lender: it keeps its least for certain, and at most what it has."""
    assert order.elastic is not None
    return _Part(min(order.elastic.least, has), has, order.elastic.threads, speeds)


def _give(
    orders: Mapping[str, JobOrder],
    machine: Machine,
    free: Sequence[CoreCpus],
    held: Mapping[str, Sequence[CoreCpus]],
    speeds: Mapping[str, Speeds],
) -> dict[str, Transfer]:
    """Return the moves that give free cores to running jobs."""
    parts = {}
    for name, cores in held.items():
        elastic = orders[name].elastic
        assert elastic is not None
        parts[name] = _Part(len(cores), min(elastic.most, len(machine.cores)), elastic.threads, speeds.get(name, {}))
    _divide(list(parts.values()), len(free))
    moves, rest = {}, list(free)
    for name, part in parts.items():
        more = part.cores - len(held[name])
        if more > 0:
            moves[name] = _transfer(orders[name], [*held[name], *rest[:more]], None)
            rest = rest[more:]
    return moves


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


def _transfer(order: JobOrder, cores: Sequence[CoreCpus], borrower: str | None) -> Transfer:
    assert order.elastic is not None
    return Transfer(tuple(cpu for core in cores for cpu in core), order.elastic.procs(len(cores)), borrower)
