"""The cost of deaths in a cluster, and proof that nothing is lost: the figures of `cluster.py` in which processes
die."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psutil

from benchmarks.bench import say
from benchmarks.cluster_jobs import (
    MOST_S,
    SEEN_EVERY_S,
    Effort,
    Seen,
    Watched,
    many_digits,
    new_folder,
    torchrun_job,
    two_hosts,
)
from benchmarks.figures import Figure
from benchmarks.row import Row
from tests.cluster.hosts import Hosts, why_not
from tests.cluster.running import SAMPLES, Nodes, counting
from tests.helpers.processes import NeverHappened, wait_for

LOST, TWICE, HUNG = (
    Figure(f"seeded SIGKILLs of node, supervisor, communicator, store host, counting model: {what}", 0.0, "", True)
    for what in ("samples lost", "samples counted twice", "jobs hung")
)
FIRST_ROUND = Figure("survivors after a death: first round without the dead node", 5.0, "s", True)
COMMITS = Figure("survivors after a death: commits until that round over before", 0.95, "")
STORE_HOST = Figure("work lost with the store host", 1.0, "rounds", True)

# ---- deaths ----------------------------------------------------------------------------------------------------------

BEFORE_S = 3.0
LOOK_S = 0.02


def survivors(effort: Effort) -> list[Row]:
    found = [_after_a_death(effort, seed) for seed in range(1, effort.runs + 1)]
    took, commits = ([each[number] for each in found] for number in range(2))
    note = "2 nodes, LeNet, all processes of one killed; from SIGKILL"
    if not why_not():
        with two_hosts() as hosts:
            note += f"; a host without power, of which nothing is heard: {_after_a_death(effort, 0, hosts)[0]:.1f} s"
    words = f"of the other node's worker, over the {BEFORE_S:g} s before"
    return [FIRST_ROUND.row(took, note=note), COMMITS.row(commits, note=words)]


def _after_a_death(effort: Effort, seed: int, hosts: Hosts | None = None) -> tuple[float, float]:
    """(seconds from the death of a node to the first round without it, commits meanwhile over before)."""
    with new_folder() as folder, _watched(folder, effort, hosts) as job:
        killed = _wait_for_moment(job, seed)
        if hosts is None:
            job.kill(1)
        else:
            hosts.kill(1)

        def after() -> Seen | None:
            job.look(0)
            alone = [seen for seen in job.seen[0] if seen.nodes == 1]
            return next((seen for seen in alone if seen.round > alone[0].round), None)

        first = wait_for("a round without the dead node", after, MOST_S)
        assert first is not None
        before = _rate(job.seen[0], killed - BEFORE_S, killed)
        meanwhile = _rate(job.seen[0], killed, first.time)
    say(f"first round after {first.time - killed:.2f} s, commits {meanwhile:.1f} over {before:.1f} a second")
    return first.time - killed, meanwhile / before


def store_host(effort: Effort) -> list[Row]:
    """All that both workers had committed when the first node was killed, less what is in the newest checkpoint on any
    disk once the other node has ended, over what they commit from round to round."""
    found: list[float] = []
    ended: Counter[str] = Counter()
    for seed in range(1, effort.runs + 1):
        with new_folder() as folder, _watched(folder, effort) as job:
            killed = _wait_for_moment(job, seed)
            job.kill(0)
            summary = job.wait_for_end(1)
            made = sum(_made(job.seen[node], killed) for node in range(2))
            rate = sum(_rate(job.seen[node], killed - BEFORE_S, killed) for node in range(2))
            kept = max(_newest_checkpoint(job.dir_of(node)) for node in range(2))
        ended[f"{summary['reason'].partition(':')[0]}, exit status {summary['exit_status']}"] += 1
        found.append((made - kept) / rate)  # a round every second
        say(f"lost with the store host: {found[-1]:.2f} rounds, {made:.0f} batches less {kept}; {summary['reason']}")
    note = (
        "a round every second, LeNet; batches that both workers had committed at the kill and that no checkpoint has; "
        f"the other node ended: {'; '.join(f'{count} x {how}' for how, count in ended.items())}"
    )
    return [STORE_HOST.row(found, note=note)]


def _newest_checkpoint(run_dir: Path) -> int:
    """Return the updates of the newest checkpoint of a node; 0: it has none."""
    names = (folder.name for folder in (run_dir / "checkpoints").glob("update-*"))
    return max((int(name.removeprefix("update-")) for name in names), default=0)


def _watched(folder: Path, effort: Effort, hosts: Hosts | None = None) -> Watched:
    fields = (
        many_digits(effort.times),
        "train.epochs=1000000",
        "cluster.sync_every_s=1",
        f"log.every_s={SEEN_EVERY_S}",
    )
    return torchrun_job(folder, *fields, hosts=hosts)


def _wait_for_moment(job: Watched, seed: int) -> float:
    """Wait until both nodes have trained for some rounds, then for an arbitrary moment of a round; return the time."""
    job.wait_for_round(5, timeout_s=MOST_S)
    until = time.time() + BEFORE_S + 1 + Random(seed).random()
    while (now := time.time()) < until:
        job.look(0, 1)
        time.sleep(LOOK_S)
    return now


def _made(seen: Sequence[Seen], until: float) -> float:
    """Batches that the node's workers had committed by then; between two looks by interpolation."""
    before, after = [one for one in seen if one.time <= until], [one for one in seen if one.time > until]
    if not before or not after:
        return float(before[-1].made if before else after[0].made)
    (start, made, *_), (stop, more, *_) = before[-1], after[0]
    return made + (more - made) * (until - start) / (stop - start)


def _rate(seen: Sequence[Seen], start: float, stop: float) -> float:
    return (_made(seen, stop) - _made(seen, start)) / (stop - start)


# ---- kills -----------------------------------------------------------------------------------------------------------

PACE_S = 0.2  # of a batch: a job lasts long enough for several communicators
HUNG_S = 300.0
MOST_STARTS = 6  # of one job
ENDS = ("node", "supervisor", "store host")
COMMUNICATOR = "communicator"


@dataclass
class Tally:
    """The outcomes of the jobs so far. `excused`: samples that the ledger itself calls indeterminate."""

    kills: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    counted: int = 0  # jobs that have finished
    lost: int = 0
    twice: int = 0
    hung: int = 0
    excused: int = 0
    odd: list[str] = field(default_factory=list)

    def rows(self, seed: int) -> list[Row]:
        done = (
            f"{self.kills.total()} kills by seed {seed} in {self.jobs} jobs of 2 nodes, {self.counted} of them finished"
        )
        note = f"{done}: " + ", ".join(f"{count} x {what}" for what, count in sorted(self.kills.items()))
        note += f"; {self.excused} samples excused as indeterminate" if self.excused else ""
        note += "".join(f"; {words}" for words in self.odd)
        counts = ((LOST, self.lost), (TWICE, self.twice), (HUNG, self.hung))
        return [figure.row([count], note=note) for figure, count in counts]


def kills(count: int, seed: int, put: Callable[[list[Row]], None]) -> Tally:
    """Kill until there were so many, in one job after another; `put` gets the rows after each."""
    tally, dice = Tally(), Random(seed)
    while tally.kills.total() < count:
        with new_folder() as folder:
            _killed_job(folder, dice, tally, count)
        put(tally.rows(seed))
    return tally


def _killed_job(folder: Path, dice: Random, tally: Tally, count: int) -> None:
    """One counting job: several communicators are killed, then a node, a supervisor or the store host; the same command
    goes on when all have ended. Then some communicators more, and the job may finish."""
    tally.jobs += 1
    for start in range(MOST_STARTS):
        with counting(folder, pace_s=PACE_S) as job:
            try:
                _shoot(job, dice, tally, count, last=dice.choice(ENDS) if start == 0 else None)
                job.hurry()
                state = _end_of(job)
            except NeverHappened as error:
                tally.hung += 1
                say(f"hung: {error}\n{job.text()[-4000:]}")
                return
            if "succeeded" in state.values():
                _count(job, min(node for node, how in state.items() if how == "succeeded"), tally)
                return
            say(f"the nodes ended {state}; the same command again")
    tally.hung += 1
    tally.odd.append(f"job {tally.jobs} had not finished after {MOST_STARTS} starts")


def _shoot(job: Nodes, dice: Random, tally: Tally, count: int, last: str | None) -> None:
    _wait_for_rounds(job)
    shots = [COMMUNICATOR] * dice.randint(3, 7) + ([last] if last is not None else [])
    for what in shots:
        node = dice.randrange(2)
        if tally.kills.total() >= count or not (target := _living(job, what, node)):
            return
        time.sleep(dice.uniform(0.0, 0.6))  # anywhere in a round, which is made every 0.2 s
        say(f"SIGKILL: {what}, node {0 if what == 'store host' else 1 if what == 'node' else node}")
        for process in target:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        tally.kills[what] += 1


def _living(job: Nodes, what: str, node: int) -> list[psutil.Process]:
    """The processes of a victim, once they live and work; [] if the job ends before."""

    def look() -> list[psutil.Process] | bool:
        if not _lives(job, 0) or not _lives(job, 1):
            return True
        with suppress(psutil.NoSuchProcess, IndexError, StopIteration):
            if what == COMMUNICATOR:
                found = job.communicator(node)
                return [found] if found.ppid() in _supervisors(job) else []
            if what == "supervisor":
                return [job.supervisor(node)]
            return job.processes_of(0 if what == "store host" else 1)
        return []

    found = wait_for(f"a {what} to kill", look, HUNG_S)
    return found if isinstance(found, list) else []


def _wait_for_rounds(job: Nodes) -> None:
    """Wait until both nodes of this start, which is perhaps not the first one, have made a round, or one has ended."""

    def are_there() -> bool:
        makes_rounds = [(job.status(node).get("cluster") or {}).get("rounds", 0) > 0 for node in range(2)]
        return all(makes_rounds) and _lives(job, 0) and _lives(job, 1)

    wait_for("the first round", lambda: are_there() or _has_ended(job), HUNG_S)


def _lives(job: Nodes, node: int) -> bool:
    """Return whether the node's supervisor of this start lives."""
    return job.status(node).get("pid") in _supervisors(job)


def _supervisors(job: Nodes) -> set[int]:
    found: set[int] = set()
    for agent in job.agents.values():
        with suppress(psutil.NoSuchProcess):
            found |= {child.pid for child in psutil.Process(agent.pid).children()}
    return found


def _has_ended(job: Nodes) -> bool:
    return any(agent.poll() is not None for agent in job.agents.values())


def _end_of(job: Nodes) -> dict[int, str]:
    """Wait until no supervisor lives; return the last state that each node wrote. (An agent may wait minutes longer,
    for those of lost nodes.)"""
    wait_for("the end of all nodes", lambda: not any(_lives(job, node) for node in range(2)), HUNG_S)
    return {node: str(job.status(node).get("state")) for node in range(2)}


def _count(job: Nodes, node: int, tally: Tally) -> None:
    effects, leases = job.effects(node), job.summary(node)["leases"]
    excused = 4 * int(leases["indeterminate"])
    lost, twice = int((1 - effects).clamp(min=0).sum()), int((effects - 1).clamp(min=0).sum())
    settled = 4 * (leases["done"] + leases["skipped"] + leases["quarantined"])
    lost = max(lost, SAMPLES - settled)
    tally.counted += 1
    tally.excused += min(excused, lost + twice)
    tally.lost += max(0, lost - excused)
    tally.twice += max(0, twice - max(0, excused - lost))
    say(f"job {tally.jobs}: lost {lost}, twice {twice}, indeterminate {leases['indeterminate']}; {tally.kills.total()}")
