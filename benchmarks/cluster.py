"""The figures of several machines: `make bench-cluster`. Needs the MNIST files (`HOGWILD_DATA`). Run nothing else
meanwhile.

    python -m benchmarks.cluster                          everything but the kills (about an hour)
    python -m benchmarks.cluster --only survivors         parts with such a figure; other rows stay as they were
    python -m benchmarks.cluster --kills 200 --seed 1     the kills, until there were so many; rows after every job

Two nodes, each with a worker on a core of its own: with `train --nodes 2`, or under torchrun where they are watched or
killed. The slow network is that of `tests/cluster/hosts.py`. Within a figure both sides take turns."""

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import psutil

from benchmarks import commands, results, sparse_data
from benchmarks.baselines import ddp_over_hosts
from benchmarks.baselines.many_digits import ManyDigits
from benchmarks.baselines.networks import NETWORKS
from benchmarks.baselines.race import RunnerDied
from benchmarks.bench import FULL as BENCH_FULL
from benchmarks.bench import NO_EVALUATION, Bench, in_turn, median, say
from benchmarks.bench import QUICK as BENCH_QUICK
from benchmarks.bystander import bystander
from benchmarks.commands import MNIST, ROOT, CommandFailed
from benchmarks.dense import on_cores
from benchmarks.figures import LENET, LIMIT, MLP, Figure, over
from benchmarks.row import Row
from benchmarks.sections import Sheet
from benchmarks.sparse_factorisation import FACTORS, ratings_settings
from benchmarks.sparse_factorisation import SHORT as MF_SETTINGS
from benchmarks.watched import ENDLESS, running
from hogwild import host as this_host
from hogwild.models import Mlp
from tests.cluster.hosts import LONG_MTU, USUAL_MTU, Hosts, HostsRefused, TorchRun, why_not
from tests.cluster.running import SAMPLES, Nodes, counting
from tests.helpers.jobs import read_events
from tests.helpers.processes import NeverHappened, wait_for

SUITE = "cluster"
OUTERS = ("nesterov", "average")

OVER_LIMIT = Figure("2 nodes x 1 worker over two processes that share nothing, LeNet, samples/s", 0.95)
ROUND_COST = Figure("samples/s with a round every second over none", 0.97)
SLOW_NETWORK = Figure("samples/s with 100 ms and 10 Mbit/s between the nodes over loopback", 0.95)
TUNED = Figure(
    "LeNet, equal samples, rate tuned for one node and for two: test accuracy lost with two", 0.3, "points", True
)
KEPT = {outer: f"the same, one node's rate kept, {outer}: test accuracy lost with two" for outer in OUTERS}
LOST, TWICE, HUNG = (
    Figure(f"seeded SIGKILLs of node, supervisor, communicator, store host, counting model: {what}", 0.0, "", True)
    for what in ("samples lost", "samples counted twice", "jobs hung")
)
FIRST_ROUND = Figure("survivors after a death: first round without the dead node", 5.0, "s", True)
COMMITS = Figure("survivors after a death: commits until that round over before", 0.95, "")
STORE_HOST = Figure("work lost with the store host", 1.0, "rounds", True)
BYTES = Figure("bytes of a round over 2(K-1)/K x trained parameters", 1.1, "", True)
MEMORY = {
    "average": Figure("extra memory of a node, in trained parameters, average", 3.0, "flats", True),
    "nesterov": Figure("extra memory of a node, in trained parameters, nesterov", 4.0, "flats", True),
}
LONGEST_TURN = Figure("supervisor's longest turn, rounds every second over none", 1.2, "", True)
FACTORISATION = "matrix factorisation, 2 nodes over 1, equal ratings: test RMSE"

# ---- how much of it --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effort:
    """`times`: MNIST so many times over is one epoch, which lasts `times` x 3 s on two cores. `ddp_updates` over
    loopback, and over the slow network. `rates` and `tuning_seeds`: the grid. `share`: of the 25 M ratings.
    `parameters`: of the two hidden layers of the large model."""

    bench: Bench
    runs: int = 5
    epochs: int = 6
    times: int = 6
    ddp_updates: tuple[int, int] = (600, 40)
    accuracy_epochs: int = 2
    rates: tuple[float, ...] = (0.025, 0.05, 0.1, 0.2, 0.4)
    tuning_seeds: tuple[int, ...] = (11, 12)
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    share: float = 1.0
    hidden: tuple[int, int] = (4096, 3072)  # 15.8 M parameters, 63 MB
    rounds: int = 10
    cut: tuple[str, ...] = ()


def full() -> Effort:
    return Effort(Bench(BENCH_FULL))


def quick() -> Effort:
    return Effort(
        Bench(BENCH_QUICK), runs=1, epochs=1, times=2, ddp_updates=(5, 3), accuracy_epochs=1, rates=(0.05,),
        tuning_seeds=(11,), seeds=(1,), share=0.02, hidden=(512, 256), rounds=2, cut=("train.max_updates=400",),
    )  # fmt: skip


# ---- jobs ------------------------------------------------------------------------------------------------------------

ONE_EACH = ("train.procs=1", "train.threads=1")
NEVER_S = 1_000_000
SEEN_EVERY_S = 0.05  # between two records of a watched job, and so the resolution of its times
MOST_S = 900.0


def cluster_job(*arguments: str, run_dir: Path | None = None) -> dict[str, Any]:
    """Return the summary of a job of two nodes, as `train --nodes 2` answers it."""
    return commands.job("train", "--nodes", "2", *arguments, *ONE_EACH, run_dir=run_dir)[1]


def many_digits(times: int) -> str:
    name = f"{ManyDigits.__module__}.{ManyDigits.__qualname__}"
    return f"data.train={{class_path: {name}, init_args: {{times: {times}}}}}"


class Pinned(TorchRun):
    """Nodes with a core each, as `train --nodes` gives them."""

    def start(self, host: int, **options: Any) -> Any:
        before = this_host.affinity()
        cores = sorted(before)
        this_host.set_affinity([cores[host % len(cores)]])  # what is started meanwhile inherits it
        try:
            return super().start(host, **options)
        finally:
            this_host.set_affinity(before)


class Seen(NamedTuple):
    """A node as its status.json had it."""

    time: float
    made: int  # batches that its workers have committed
    nodes: int
    round: int


@dataclass
class Watched(Pinned, Nodes):
    """A job that is watched: `seen` holds what every node said, in the order of time."""

    seen: dict[int, list[Seen]] = field(default_factory=lambda: defaultdict(list))

    def look(self, *nodes: int) -> None:
        """Add what these nodes say now, if it is new."""
        for node in nodes:
            status, before = self.status(node), self.seen[node]
            if not status.get("cluster") or (before and before[-1].time >= status["time"]):
                continue
            made = sum(worker["updates"] for worker in status["workers"])
            if status["workers"]:  # those that have ended are not in it
                cluster = status["cluster"]
                before.append(Seen(status["time"], made, cluster["nodes"], cluster["round"]))


def torchrun_job(folder: Path, *fields: str, hosts: Hosts | None = None) -> Watched:
    """A job of MNIST's file on two nodes under torchrun, nothing evaluated."""
    argv = ["-m", "hogwild", "train", MNIST, "--no-progress", *NO_EVALUATION, *ONE_EACH, *fields]
    return Watched(2, [*argv, "cluster.engine=torchrun"], folder, hosts, {"PYTHONPATH": str(ROOT)})


@contextmanager
def new_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def speed_of(summary: dict[str, Any]) -> float:
    """Samples a second of all nodes."""
    return float(summary["cluster"]["samples_per_s"])


# ---- speed -----------------------------------------------------------------------------------------------------------


def over_limit(effort: Effort) -> list[Row]:
    rounds: list[int] = []

    def ours() -> float:
        summary = cluster_job(MNIST, *NO_EVALUATION, f"train.epochs={effort.epochs}")
        rounds.append(summary["cluster"]["rounds"])
        say(f"2 nodes: {speed_of(summary):,.0f} samples/s, {rounds[-1]} rounds")
        return speed_of(summary)

    found, limit = in_turn(effort.runs, ours, partial(effort.bench.limit, LENET, 2))
    note = f"{effort.bench.way(LENET)}; `sync_every_s: auto`, {median(rounds):.0f} rounds a run"
    return [over(OVER_LIMIT, found, limit, baseline=LIMIT, network=LENET, note=note)]


def round_cost(effort: Effort) -> list[Row]:
    """Both sides train one long epoch, which is shared out whole at the start, so that without rounds no node needs
    one before its end."""
    rounds: dict[str, list[int]] = {"1": [], str(NEVER_S): []}

    def speed(every_s: str) -> float:
        summary = cluster_job(MNIST, *_long_epoch(effort, every_s))
        rounds[every_s].append(summary["cluster"]["rounds"])
        say(f"sync_every_s {every_s}: {speed_of(summary):,.0f} samples/s, {rounds[every_s][-1]} rounds")
        return speed_of(summary)

    with_rounds, without = in_turn(effort.runs, *(partial(speed, every_s) for every_s in rounds))
    counts = [median(found) for found in rounds.values()]
    note = f"LeNet, {counts[0]:.0f} rounds a run; baseline: {counts[1]:.0f}, all at the end of the work, samples/s"
    ratios = [a / b for a, b in zip(with_rounds, without, strict=True)]
    return [ROUND_COST.row(ratios, median(without), note)]


def longest_turn(effort: Effort) -> list[Row]:
    beside: dict[str, list[float]] = {"1": [], str(NEVER_S): []}

    def longest_ms(every_s: str) -> float:
        with new_folder() as folder, bystander() as longest_beside:
            cluster_job(MNIST, *_long_epoch(effort, every_s), run_dir=folder / "run")
            beside[every_s].append(longest_beside())
            nodes = (folder / "run", folder / "run" / "node-1")
            longest = max(float(read_events(node, "end")[0]["loop_longest_ms"]) for node in nodes)
        say(f"sync_every_s {every_s}: longest turn {longest:.1f} ms, of a bystander {beside[every_s][-1]:.1f}")
        return longest

    with_rounds, without = in_turn(effort.runs, *(partial(longest_ms, every_s) for every_s in beside))
    others = [f"{median(found):.1f}" for found in beside.values()]
    note = (
        f"LeNet, the longer of two nodes, medians {median(with_rounds):.1f} and {median(without):.1f} ms; baseline in "
        f"ms; a bystander's longest 0.4 ms of work beside them: {others[0]} and {others[1]} ms"
    )
    ratios = [a / b for a, b in zip(with_rounds, without, strict=True)]
    return [LONGEST_TURN.row(ratios, median(without), note)]


def _long_epoch(effort: Effort, every_s: str) -> tuple[str, ...]:
    return (*NO_EVALUATION, many_digits(effort.times), "train.epochs=1", f"cluster.sync_every_s={every_s}")


# ---- the network -----------------------------------------------------------------------------------------------------


class Cable(NamedTuple):
    delay_s: float = 0.0  # one way
    rate_bytes_s: float | None = None  # in each direction


LOOPBACK, SLOW = Cable(), Cable(0.05, 1.25e6)  # 100 ms there and back, 10 Mbit/s


def slow_network(effort: Effort) -> list[Row]:
    """All runs are between two hosts of `tests/cluster`; on the fast side their cables have no delay and no rate."""

    def ours(cable: Cable) -> float:
        with _two_hosts(delay_s=cable.delay_s, rate_bytes_s=cable.rate_bytes_s) as hosts, new_folder() as folder:
            with torchrun_job(folder, f"train.epochs={effort.epochs}", hosts=hosts) as job:
                _expect_success(job)
            cluster = job.summary()["cluster"]
        say(f"{cable}: {cluster['samples_per_s']:,.0f} samples/s, {cluster['rounds']} rounds")
        return float(cluster["samples_per_s"])

    def ddp(cable: Cable) -> float:
        updates = effort.ddp_updates[int(cable == SLOW)]
        argv = ["-m", ddp_over_hosts.__name__, "--updates", str(updates)]
        extra = {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "eth0"}
        with (
            _two_hosts(delay_s=cable.delay_s, rate_bytes_s=cable.rate_bytes_s) as hosts,
            new_folder() as folder,
            Pinned(2, argv, folder, hosts, extra) as run,
        ):
            _expect_success(run)
            said = [run.text(host).rpartition(ddp_over_hosts.SAID)[2].split()[0] for host in range(2)]
        say(f"{cable}, DDP: {sum(map(float, said)):,.0f} samples/s")
        return sum(map(float, said))

    found = in_turn(effort.runs, *(partial(way, cable) for way in (ours, ddp) for cable in (SLOW, LOOPBACK)))
    slow, fast, ddp_slow, ddp_fast = found
    note = (
        f"LeNet, batch 64, ours {median(slow):,.0f} samples/s; baseline: ours over loopback; "
        f"DDP {median(ddp_slow):,.0f} over {median(ddp_fast):,.0f} samples/s: {median(ddp_slow) / median(ddp_fast):.3f}"
    )
    return [SLOW_NETWORK.row([a / b for a, b in zip(slow, fast, strict=True)], median(fast), note)]


def wire_bytes(effort: Effort) -> list[Row]:
    """The bytes of all IP packets that a node sends between two rounds, with packets as on a cable: headers,
    acknowledgements, ticks and notes included."""
    model = Mlp(features=784, hidden=[128], classes=10)
    least = 4 * sum(parameter.numel() for parameter in model.parameters())  # K = 2: once
    ratios, of_summary = [], []
    for _ in range(effort.runs):
        fields = (*NETWORKS[MLP].overrides, "train.epochs=1000000", f"log.every_s={SEEN_EVERY_S}")
        with (
            _two_hosts(mtu=USUAL_MTU) as hosts,
            new_folder() as folder,
            torchrun_job(folder, *fields, hosts=hosts) as job,
        ):
            job.wait_for_round(2, timeout_s=MOST_S)
            first, before = _at_next_round(job, hosts)
            job.wait_for_more_rounds(effort.rounds - 1)
            last, after = _at_next_round(job, hosts)
            cluster = job.status(0)["cluster"]
        sent = [(b - a) / (last - first) for a, b in zip(before, after, strict=True)]
        ratios.append(statistics.fmean(sent) / least)
        of_summary.append(cluster["nbytes"] / cluster["rounds"] / least)
        say(f"a round: {', '.join(f'{one:,.0f}' for one in sent)} bytes, {ratios[-1]:.3f} of the least")
    note = (
        f"MLP 784-128-10, K = 2, a round every second, on the wire ({USUAL_MTU} bytes a packet, with headers, "
        f"acknowledgements, ticks, notes), mean of both nodes; baseline: the least, bytes; as the summary counts them "
        f"{median(of_summary):.3f}"
    )
    return [BYTES.row(ratios, least, note)]


def _at_next_round(job: Nodes, hosts: Hosts) -> tuple[int, list[int]]:
    """(the number of a round, the bytes that each node had sent right after it)."""
    job.wait_for_more_rounds(1)
    return job.round(), [hosts.delivered_bytes(node) for node in range(2)]


def _two_hosts(*, mtu: int = LONG_MTU, delay_s: float = 0.0, rate_bytes_s: float | None = None) -> Hosts:
    if reason := why_not():
        raise HostsRefused(reason)
    return Hosts(2, delay_s, rate_bytes_s, mtu=mtu)


def _expect_success(run: TorchRun) -> None:
    statuses = run.wait(timeout_s=MOST_S)
    if any(statuses):
        raise CommandFailed(f"exit statuses {statuses}: {run.text()[-2000:]}")


# ---- accuracy --------------------------------------------------------------------------------------------------------


def accuracy(effort: Effort) -> list[Row]:
    """Percent of the test samples, LeNet after equal samples over all nodes together."""

    def trained(nodes: int, outer: str, rate: float, seed: int) -> float:
        arguments = (
            MNIST, f"seed={seed}", f"optimizer.init_args.lr={rate}", f"train.epochs={effort.accuracy_epochs}",
            f"evaluate.every_epochs={effort.accuracy_epochs}", f"cluster.outer={outer}", *effort.cut,
        )  # fmt: skip
        try:
            summary = cluster_job(*arguments) if nodes == 2 else commands.job("train", *arguments, *ONE_EACH)[1]
        except CommandFailed as error:  # a rate that is too large
            say(f"{nodes} nodes, rate {rate:g}: {error}")
            return 0.0
        return 100 * float(summary["metrics"].get("accuracy", 0.0))

    def tune(nodes: int, outer: str) -> tuple[float, list[float]]:
        """(the best rate of the grid, the accuracy of every rate)."""
        means = [
            statistics.fmean(trained(nodes, outer, rate, seed) for seed in effort.tuning_seeds) for rate in effort.rates
        ]
        best = effort.rates[means.index(max(means))]
        say(f"{nodes} nodes, {outer}: rate {best:g}; {' '.join(f'{mean:.2f}' for mean in means)}")
        return best, means

    def measured(nodes: int, outer: str, rate: float) -> list[float]:
        return [trained(nodes, outer, rate, seed) for seed in effort.seeds]

    one_rate, one_grid = tune(1, OUTERS[0])
    tuned = {outer: tune(2, outer) for outer in OUTERS}
    one = measured(1, OUTERS[0], one_rate)
    found = {outer: measured(2, outer, rate) for outer, (rate, _) in tuned.items()}
    kept = {
        outer: found[outer] if tuned[outer][0] == one_rate else measured(2, outer, one_rate) for outer in OUTERS
    }  # fmt: skip

    def lost(two: Sequence[float]) -> list[float]:
        return [a - b for a, b in zip(one, two, strict=True)]

    grids = [f"one node {one_rate:g} ({_listed(one_grid)})"]
    grids += [f"two, {outer} {rate:g} ({_listed(grid)})" for outer, (rate, grid) in tuned.items()]
    note = (
        f"{effort.accuracy_epochs} epochs of MNIST in all, mean of {len(effort.seeds)} seeds, nesterov; with average "
        f"{statistics.fmean(lost(found['average'])):.2f} points; baseline: one node, %; rates of the grid "
        f"{', '.join(f'{rate:g}' for rate in effort.rates)}, seeds {', '.join(map(str, effort.tuning_seeds))}: "
        f"{'; '.join(grids)}"
    )
    points, whole = lost(found["nesterov"]), statistics.fmean(one)
    rows = [Row(TUNED.name, TUNED.unit, TUNED.target, points, whole, note, smaller_is_better=True, center="mean")]
    for outer, name in KEPT.items():
        words = f"mean; two nodes {statistics.fmean(kept[outer]):.2f} % at rate {one_rate:g}; baseline: one node, %"
        rows.append(Row(name, "points", None, lost(kept[outer]), whole, words, center="mean"))
    return rows


def _listed(accuracies: Sequence[float]) -> str:
    return ", ".join(f"{one:.2f}" for one in accuracies)


def factorisation(effort: Effort) -> list[Row]:
    with new_folder() as folder:
        parts = sparse_data.synthetic(folder, effort.share)
        job = (str(ROOT / "configs" / "ratings.yaml"), *ratings_settings(parts, FACTORS), *MF_SETTINGS, *ONE_EACH)

        def rmse(nodes: tuple[str, ...], seed: int) -> float:
            summary = commands.job("train", *nodes, *job, f"seed={seed}", run_dir=folder / f"run-{len(nodes)}-{seed}")[
                1
            ]
            found = float(summary["metrics"]["rmse"])
            say(f"ratings, {nodes or 'one node'}: RMSE {found:.4f} in {summary['train_s']:.1f} s")
            return found

        pairs = [(rmse(("--nodes", "2"), seed), rmse((), seed)) for seed in effort.seeds]
    two, one = (statistics.median(each) for each in zip(*pairs, strict=True))
    note = f"RMSE {two:.4f}; baseline: one node; {effort.share * 25:g} M ratings, k = {FACTORS}, equal rates, nesterov"
    return [Row(FACTORISATION, "x", None, [a / b for a, b in pairs], one, note, smaller_is_better=True)]


# ---- memory ----------------------------------------------------------------------------------------------------------

MEMORY_EVERY_S = 0.02


def memory(effort: Effort) -> list[Row]:
    """The highest sum of supervisor and communicator in rounds, less the highest of the supervisor on one machine. The
    same of a small model is the fixed cost of a process more, and is left out."""
    large, small = f"[{', '.join(map(str, effort.hidden))}]", "[128]"
    layers = (784, *effort.hidden, 10)
    flat = 4 * sum(width * after + after for width, after in itertools.pairwise(layers))
    rows = []
    for outer, figure in MEMORY.items():
        found, fixed = [], []
        for _ in range(effort.runs):
            grown = {hidden: _in_rounds(effort, hidden, outer) - _alone(hidden) for hidden in (large, small)}
            fixed.append(grown[small] / 1e6)
            found.append((grown[large] - grown[small]) / flat)
            say(f"{outer}: {found[-1]:.2f} flats, {fixed[-1]:.0f} MB besides")
        note = (
            f"{flat / 1e6:.0f} MB of parameters; highest sum over {effort.rounds} rounds of anonymous and shared "
            f"memory (PSS without files) of supervisor and communicator, less a job on one machine; besides, of any "
            f"model, {median(fixed):.0f} MB"
        )
        rows.append(figure.row(found, note=note))
    return rows


def _memory_settings(hidden: str) -> tuple[str, ...]:
    model = f"model.init_args={{features: 784, hidden: {hidden}, classes: 10}}"
    return ("model.class_path=hogwild.models.Mlp", model, f"checkpoint.every_s={NEVER_S}")


def _in_rounds(effort: Effort, hidden: str, outer: str) -> float:
    fields = ("train.epochs=1000000", "train.exchange=direct", f"cluster.outer={outer}", "cluster.sync_every_s=0.5")
    with new_folder() as folder, torchrun_job(folder, *_memory_settings(hidden), *fields) as job:
        job.wait_for_round(3, timeout_s=MOST_S)
        pids = [job.supervisor(0).pid, job.communicator(0).pid]
        last, highest = job.round() + effort.rounds, 0.0
        while job.round() < last:
            highest = max(highest, sum(map(_memory, pids)))
            time.sleep(MEMORY_EVERY_S)
        return highest


def _alone(hidden: str) -> float:
    with running(MNIST, *ENDLESS, *ONE_EACH, *_memory_settings(hidden)) as now:
        now.until_all_train(1)
        highest, until = 0.0, time.monotonic() + 3.0
        while time.monotonic() < until:
            highest = max(highest, _memory(now.process.pid))
            time.sleep(MEMORY_EVERY_S)
        return highest


def _memory(pid: int) -> float:
    """Bytes of a process, those that it shares divided by their users; without files, such as torch's libraries, whose
    share falls with every process of the machine."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kinds = {line.split()[0]: 1024 * float(line.split()[1]) for line in lines[1:]}
    return kinds["Pss_Anon:"] + kinds["Pss_Shmem:"]


# ---- deaths ----------------------------------------------------------------------------------------------------------

BEFORE_S = 3.0
LOOK_S = 0.02


def survivors(effort: Effort) -> list[Row]:
    found = [_after_a_death(effort, seed) for seed in range(1, effort.runs + 1)]
    took, commits = ([each[number] for each in found] for number in range(2))
    note = "2 nodes, LeNet, all processes of one killed; from SIGKILL"
    if not why_not():
        with _two_hosts() as hosts:
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
    """What became of the jobs so far. `excused`: samples that the ledger itself calls indeterminate."""

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


# ---- the suite -------------------------------------------------------------------------------------------------------

Measure = Callable[[Effort], list[Row]]
PARTS: dict[str, tuple[Measure, tuple[Figure, ...]]] = {
    "limit": (over_limit, (OVER_LIMIT,)),
    "rounds": (round_cost, (ROUND_COST,)),
    "network": (slow_network, (SLOW_NETWORK,)),
    "accuracy": (accuracy, (TUNED,)),
    "survivors": (survivors, (FIRST_ROUND, COMMITS)),
    "store": (store_host, (STORE_HOST,)),
    "bytes": (wire_bytes, (BYTES,)),
    "memory": (memory, tuple(MEMORY.values())),
    "turn": (longest_turn, (LONGEST_TURN,)),
    "factorisation": (factorisation, ()),
}
REPORTED = {"accuracy": tuple(KEPT.values()), "factorisation": (FACTORISATION,)}


def parts_of(wanted: str | None) -> list[str]:
    """The parts whose name, or the name of one of whose figures, holds this text."""
    names = {
        part: (part, *(each.name for each in asked), *REPORTED.get(part, ())) for part, (_, asked) in PARTS.items()
    }
    return [part for part, of_part in names.items() if any((wanted or "").lower() in name.lower() for name in of_part)]


def measure(part: str, effort: Effort) -> list[Row]:
    """The rows of a part, on two cores. What could not be measured is a row too, without a value, and says why."""
    run, asked = PARTS[part]
    say(f"---- {part}")
    with on_cores(2):
        try:
            return run(effort)
        except HostsRefused as error:
            return [figure.row([]).void(str(error)) for figure in asked]
        except (CommandFailed, RunnerDied, RuntimeError, AssertionError) as error:
            say(f"{part} failed: {error}")
            return [figure.row([], note=f"failed: {str(error)[:500]}") for figure in asked]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster")
    parser.add_argument("--only", metavar="TEXT", help=f"of {', '.join(PARTS)}, or a part of a figure's name")
    parser.add_argument("--kills", type=int, metavar="N", help="only the kills, N of them")
    parser.add_argument("--seed", type=int, default=1, help="of the kills")
    parser.add_argument("--folder", type=Path, default=results.FOLDER, help="where the results are written")
    parser.add_argument("--quick", action="store_true", help="a little of each; proves that it runs, keeps nothing")
    asked = parser.parse_args(argv)
    if not asked.kills and not os.environ.get("HOGWILD_DATA"):
        sys.exit("set HOGWILD_DATA to the folder that holds mnist/")
    if not asked.kills and not parts_of(asked.only):
        parser.error(f"no figure has {asked.only} in its name")
    os.environ["PYTHONPATH"] = str(ROOT)  # nodes import ManyDigits
    with new_folder() as scratch:
        sheet = Sheet(SUITE, scratch if asked.quick else asked.folder)
        began = time.monotonic()
        if asked.kills or (asked.quick and not asked.only):
            kills(asked.kills or 2, asked.seed, lambda rows: sheet.put("kills", rows, time.monotonic() - began))
        for part in [] if asked.kills else parts_of(asked.only):
            began = time.monotonic()
            rows = measure(part, quick() if asked.quick else full())
            sheet.put(part, rows, time.monotonic() - began)


if __name__ == "__main__":
    main()
