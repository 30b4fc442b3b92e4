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
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks import commands, results, sparse_data
from benchmarks.baselines import ddp_over_hosts
from benchmarks.baselines.networks import NETWORKS
from benchmarks.baselines.race import RunnerDied
from benchmarks.bench import NO_EVALUATION, in_turn, median, say
from benchmarks.bystander import bystander
from benchmarks.cluster_cost import MEASURED, cost
from benchmarks.cluster_deaths import COMMITS, FIRST_ROUND, STORE_HOST, kills, store_host, survivors
from benchmarks.cluster_jobs import (
    MOST_S,
    NEVER_S,
    ONE_EACH,
    SEEN_EVERY_S,
    Effort,
    Pinned,
    cluster_job,
    full,
    many_digits,
    new_folder,
    quick,
    speed_of,
    torchrun_job,
    two_hosts,
)
from benchmarks.commands import MNIST, ROOT, CommandFailed
from benchmarks.dense import on_cores
from benchmarks.figures import LENET, LIMIT, MLP, Figure, over
from benchmarks.row import Row
from benchmarks.sections import Sheet
from benchmarks.sparse_factorisation import FACTORS, ratings_settings
from benchmarks.sparse_factorisation import SHORT as MF_SETTINGS
from benchmarks.synthetic_ratings import Shape
from benchmarks.watched import ENDLESS, running
from hogwild.models import Mlp
from tests.cluster.hosts import USUAL_MTU, Hosts, HostsRefused, TorchRun
from tests.cluster.running import Nodes
from tests.helpers.jobs import read_events

SUITE = "cluster"
OUTERS = ("average", "nesterov")  # the default first

OVER_LIMIT = Figure("2 nodes x 1 worker over two processes that share nothing, LeNet, samples/s", 0.95)
ROUND_COST = Figure("samples/s with a round every second over none", 0.97)
SLOW_NETWORK = Figure("samples/s with 100 ms and 10 Mbit/s between the nodes over loopback", 0.95)
TUNED = Figure(
    "LeNet, equal samples, average (the default), rate tuned for one node and for two: test accuracy lost with two",
    0.3, "points", True,
)  # fmt: skip
TUNED_NESTEROV = "the same with `cluster.outer: nesterov`"
KEPT = {outer: f"the same, one node's rate kept, {outer}: test accuracy lost with two" for outer in OUTERS}
BYTES = Figure("bytes of a round over 2(K-1)/K x trained parameters", 1.1, "", True)
MEMORY = {
    "average": Figure("extra memory of a node, in trained parameters, average", 3.0, "flats", True),
    "nesterov": Figure("extra memory of a node, in trained parameters, nesterov", 4.0, "flats", True),
}
LONGEST_TURN = Figure("supervisor's longest turn, rounds every second over none", 1.2, "", True)
FACTORISATION = "matrix factorisation, 2 nodes over 1, equal ratings: test RMSE"


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
        with two_hosts(delay_s=cable.delay_s, rate_bytes_s=cable.rate_bytes_s) as hosts, new_folder() as folder:
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
            two_hosts(delay_s=cable.delay_s, rate_bytes_s=cable.rate_bytes_s) as hosts,
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
            two_hosts(mtu=USUAL_MTU) as hosts,
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
        f"{effort.accuracy_epochs} epochs of MNIST in all, mean of {len(effort.seeds)} seeds; baseline: one node, %; "
        f"rates of the grid {', '.join(f'{rate:g}' for rate in effort.rates)}, "
        f"seeds {', '.join(map(str, effort.tuning_seeds))}: "
        f"{'; '.join(grids)}"
    )
    whole = statistics.fmean(one)
    default, other = (lost(found[outer]) for outer in OUTERS)
    rows = [
        Row(TUNED.name, TUNED.unit, TUNED.target, default, whole, note, smaller_is_better=True, center="mean"),
        Row(TUNED_NESTEROV, "points", None, other, whole, "mean; baseline: one node, %", center="mean"),
    ]
    for outer, name in KEPT.items():
        words = f"mean; two nodes {statistics.fmean(kept[outer]):.2f} % at rate {one_rate:g}; baseline: one node, %"
        rows.append(Row(name, "points", None, lost(kept[outer]), whole, words, center="mean"))
    return rows


def _listed(accuracies: Sequence[float]) -> str:
    return ", ".join(f"{one:.2f}" for one in accuracies)


def factorisation(effort: Effort) -> list[Row]:
    with new_folder() as folder:
        parts = sparse_data.synthetic(folder, Shape.part(effort.share))
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
    note = (
        f"RMSE {two:.4f}; baseline: one node; {effort.share * 25:g} M ratings, k = {FACTORS}, equal rates, {OUTERS[0]}"
    )
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
    "cost": (cost, ()),
}
REPORTED = {"accuracy": (TUNED_NESTEROV, *KEPT.values()), "factorisation": (FACTORISATION,), "cost": tuple(MEASURED)}


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
