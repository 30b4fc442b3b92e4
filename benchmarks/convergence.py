"""The cost of asynchrony in accuracy: `make bench-convergence`. Needs the MNIST files (`HOGWILD_DATA`).

Every job sees the same samples, two epochs of MNIST over all its workers together, and differs in one thing only: how
many workers there are, whether their number changes, how often they exchange, in which order they read. A row is the
mean test accuracy over seeds; nothing here is timed, so a busy machine does not matter (much: who is slowed down is
staler)."""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from benchmarks import commands, results
from benchmarks.baselines.networks import NETWORKS
from benchmarks.bench import say
from benchmarks.dense import publish_quick
from benchmarks.figures import LENET
from benchmarks.row import Row
from benchmarks.watched import running
from tests.helpers.jobs import read_events, write_request

SUITE = "convergence"
WORKERS = (1, 2, 4, 8)
SYNC_EVERY = (1, 4, 16, 64)
EPOCHS = 2
MOST_PROCS, RESIZE_S = 4, 1.0
WORKERS_PICTURE, DELTA_PICTURE = "convergence-workers.png", "convergence-sync-every.png"


@dataclass
class Trial:
    """Runs jobs of every seed and keeps their accuracies, by network and by what was varied."""

    seeds: Sequence[int] = (1, 2, 3, 4, 5)
    procs: Sequence[int] = WORKERS
    sync_every: Sequence[int] = SYNC_EVERY
    max_updates: int | None = None
    workers: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    delta: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def job(self, network: str, procs: int, seed: int) -> list[str]:
        cut = [] if self.max_updates is None else [f"train.max_updates={self.max_updates}"]
        return [
            commands.MNIST, "--procs", str(procs), "train.threads=1", f"seed={seed}", *NETWORKS[network].overrides,
            f"train.epochs={EPOCHS}", f"evaluate.every_epochs={EPOCHS}", *cut,
        ]  # fmt: skip

    def accuracies(self, network: str, procs: int, *overrides: str) -> list[float]:
        """Test accuracy after the last epoch, one for each seed."""
        found = []
        for seed in self.seeds:
            _, summary = commands.job("train", *self.job(network, procs, seed), *overrides)
            found.append(float(summary["metrics"]["accuracy"]))
        say(f"{network}, {procs} procs {' '.join(overrides)}: {' '.join(f'{one:.4f}' for one in found)}")
        return found


def by_workers(trial: Trial) -> list[Row]:
    """Equal samples, direct exchange, 1 to 8 workers; then the largest distance from one worker."""
    rows: list[Row] = []
    for network in NETWORKS:
        for procs in trial.procs:
            found = trial.workers[network, procs] = trial.accuracies(network, procs, "train.exchange=direct")
            rows.append(_row(f"{network}, {procs} workers, {EPOCHS} epochs: test accuracy", found))
        rows.append(_distance(network, {procs: trial.workers[network, procs] for procs in trial.procs}))
    return rows


def by_sync_every(trial: Trial) -> list[Row]:
    """The price of delta: 2 workers, ever fewer exchanges; the baseline is direct."""
    rows: list[Row] = []
    for network in NETWORKS:
        direct = trial.workers.get((network, 2)) or trial.accuracies(network, 2, "train.exchange=direct")
        for every in trial.sync_every:
            overrides = ("train.exchange=delta", f"train.sync_every={every}")
            found = trial.delta[network, every] = trial.accuracies(network, 2, *overrides)
            row = _row(f"{network}, 2 workers, delta, `sync_every` {every}: test accuracy", found)
            row.baseline = statistics.fmean(direct)
            row.note += "; baseline: direct"
            rows.append(row)
    return rows


def by_resizes(trial: Trial) -> list[Row]:
    """The number of workers changes every second, by the seed."""
    settings = ("train.exchange=direct", f"train.procs_max={MOST_PROCS}")
    fixed = trial.accuracies(LENET, 2, *settings)
    found, resizes = zip(*(_resized(seed, *trial.job(LENET, 2, seed), *settings) for seed in trial.seeds), strict=True)
    row = _row(f"{LENET}, 1 to {MOST_PROCS} workers, another number every {RESIZE_S:g} s: test accuracy", [*found])
    row.baseline = statistics.fmean(fixed)
    row.note += f"; {sum(resizes)} resizes; baseline: 2 workers all the time, {min(fixed):.4f} to {max(fixed):.4f}"
    return [row]


def _resized(seed: int, *arguments: str) -> tuple[float, int]:
    """The accuracy of one job, and how often its number of workers changed."""
    dice, asked, procs = Random(seed), 0, 2
    with running(*arguments) as now:
        now.until_all_train(2)
        while now.process.poll() is None:
            asked += 1
            procs = dice.choice([size for size in range(1, MOST_PROCS + 1) if size != procs])
            write_request(now.run_dir, str(asked), ask="resize", procs=procs)
            with contextlib.suppress(subprocess.TimeoutExpired):
                now.process.wait(RESIZE_S)
        summary = json.loads((now.run_dir / "summary.json").read_text())
        done = sum(event["answer"] == "done" for event in read_events(now.run_dir, "request"))
    say(f"{LENET}, seed {seed}: {summary['metrics']['accuracy']:.4f} with {done} resizes")
    return float(summary["metrics"]["accuracy"]), done


def _row(name: str, found: list[float]) -> Row:
    note = f"mean of {len(found)} seeds, {min(found):.4f} to {max(found):.4f}"
    if len(found) > 1:
        note += f", deviation {statistics.stdev(found):.4f}"
    return Row(name, "", None, found, note=note, center="mean")


def _distance(network: str, by_procs: Mapping[int, list[float]]) -> Row:
    """Return the distances of several workers' means from that of one, seed by seed beside it, and how far chance alone
    goes."""
    one = by_procs[1]
    distances = {procs: statistics.fmean(found) - statistics.fmean(one) for procs, found in by_procs.items()}
    farthest = max(distances, key=lambda procs: abs(distances[procs]))
    far = by_procs[farthest]
    note = f"the largest of {', '.join(map(str, by_procs))} workers: {farthest}"
    if len(one) > 1:
        error = (statistics.variance(far) / len(far) + statistics.variance(one) / len(one)) ** 0.5
        note += f"; standard error of the difference {error:.4f}"
    name = f"{network}: mean test accuracy of several workers minus that of one, at equal samples"
    return Row(
        name, "", None, [a - b for a, b in zip(far, one, strict=True)], statistics.fmean(one), note, center="mean"
    )


def pictures(trial: Trial, folder: Path) -> None:
    from benchmarks.plots import Line, Point, plot_lines

    for found, name, x_label in (
        (trial.workers, WORKERS_PICTURE, "workers, direct exchange"),
        (trial.delta, DELTA_PICTURE, "sync_every, delta exchange, 2 workers"),
    ):
        points: dict[str, list[Point]] = {network: [] for network in NETWORKS}
        for (network, x), runs in found.items():
            points[network].append(Point(x, statistics.fmean(runs), min(runs), max(runs)))
        lines = [Line(network, of_network) for network, of_network in points.items()]
        title = f"MNIST test accuracy after {EPOCHS} epochs: mean of seeds (bars: lowest and highest)"
        plot_lines(lines, folder / name, title=title, x_label=x_label, y_label="test accuracy")


def orders(trial: Trial) -> list[Row]:
    from benchmarks.orders import convergence_of_orders

    if trial.max_updates is not None:
        return convergence_of_orders(trial.seeds, f"train.max_updates={trial.max_updates}")
    return convergence_of_orders()


PARTS: dict[str, Callable[[Trial], list[Row]]] = {
    "workers": by_workers,
    "delta": by_sync_every,
    "resizes": by_resizes,
    "orders": orders,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Accuracy at equal samples; about 20 minutes on 2 cores.")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, metavar="NAME", help=f"prints only these: {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one seed, a few updates; proves that it runs, writes nothing"
    )
    asked = parser.parse_args(argv)
    if not os.environ.get("HOGWILD_DATA"):
        sys.exit("set HOGWILD_DATA to the folder that holds mnist/")
    described = results.machine() if asked.quick else results.begin()
    trial = Trial(seeds=(1,), procs=(1, 2), sync_every=(1, 16), max_updates=80) if asked.quick else Trial()
    rows = [row for name in asked.only or PARTS for row in PARTS[name](trial)]
    if asked.quick:
        publish_quick(SUITE, rows, lambda folder: pictures(trial, folder))
    elif asked.only:
        print(results.table(rows))
    else:
        results.write(SUITE, rows, described)
        pictures(trial, results.FOLDER)


if __name__ == "__main__":
    main()
