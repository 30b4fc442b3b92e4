"""The figures of the dense path: `make bench-dense`. Needs the MNIST files (`HOGWILD_DATA`). Run nothing else
meanwhile.

Within a figure ours and its baselines take turns, so that a noisy minute hits all; every figure is the median of its
runs. The table is about two cores: on a larger machine it is measured on two of them, the curves on all.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks import commands, figures, results
from benchmarks.baselines import unguarded
from benchmarks.baselines.networks import NETWORKS
from benchmarks.baselines.race import RunnerDied
from benchmarks.bench import FULL, NO_EVALUATION, QUICK, Bench, in_turn, median, say
from benchmarks.curves import picture, speed_up
from benchmarks.figures import BARE, DDP, DIGITS, LENET, LIMIT, MLP, WELL_KNOWN, Figure
from benchmarks.row import Row
from hogwild import host
from hogwild.host.topology import physical_cores

SUITE = "dense"
SWEEP = tuple((procs, threads) for procs in (1, 2, 4) for threads in (1, 2))
MANY_EPOCHS = 1000  # the time ends the job
DIGITS_BATCHES = 90  # of an epoch
MOST_EPOCHS = 20  # of the race to an accuracy; it ends at the accuracy


# ---- the figures -----------------------------------------------------------------------------------------------------


def lenet(bench: Bench) -> list[Row]:
    ours, limit, ddp, well_known = in_turn(
        bench.effort.runs,
        partial(bench.ours, LENET, 2),
        partial(bench.limit, LENET, 2),
        partial(bench.ddp, LENET, 2),
        partial(bench.well_known, 2),
    )
    return [
        figures.over(figures.OVER_WELL_KNOWN, ours, well_known, baseline=WELL_KNOWN, network=LENET),
        figures.over(figures.OVER_LIMIT[LENET], ours, limit, baseline=LIMIT, network=LENET, note=str(bench.way(LENET))),
        figures.over(figures.OVER_DDP[LENET], ours, ddp, baseline=DDP, network=LENET),
    ]


def mlp(bench: Bench) -> list[Row]:
    ours, limit, ddp = in_turn(
        bench.effort.runs,
        partial(bench.ours, MLP, 2, "train.exchange=auto"),
        partial(bench.limit, MLP, 2),
        partial(bench.ddp, MLP, 2),
    )
    return [
        figures.over(figures.OVER_LIMIT[MLP], ours, limit, baseline=LIMIT, network=MLP, note=str(bench.way(MLP))),
        figures.over(figures.OVER_DDP[MLP], ours, ddp, baseline=DDP, network=MLP),
    ]


def bare(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    for network in (LENET, MLP):
        epochs = max(1, dict(bench.effort.epochs)[network] // 2)
        ours, loop = in_turn(
            bench.effort.few, partial(bench.ours, network, 1, epochs=epochs), partial(bench.limit, network, 1)
        )
        way = str(bench.way(network))
        rows.append(figures.over(figures.OVER_BARE_LOOP[network], ours, loop, baseline=BARE, network=network, note=way))
    return [*rows, digits(bench)]


def digits(bench: Bench) -> Row:
    """Batches of 16 and 9,610 parameters: what an update costs besides its arithmetic is the most that it can be."""
    settings = (*NO_EVALUATION, f"train.epochs={bench.effort.digits_epochs}", "train.threads=1", *bench.cut)
    ours, loop = in_turn(
        bench.effort.few,
        lambda: commands.speed("train", commands.DIGITS, "--procs", "1", *settings),
        lambda: unguarded.alone(commands.DIGITS, updates=bench.effort.digits_epochs * DIGITS_BATCHES),
    )
    ratios = [a / b for a, b in zip(ours, loop, strict=True)]
    note = f"batch 16; ours {median(ours):,.0f} samples/s; baseline: our loop without guards, samples/s"
    return figures.OVER_BARE_LOOP[DIGITS].row(ratios, median(loop), note)


def guards(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    for network in (LENET, MLP):
        ratios, without = unguarded.speeds(
            commands.MNIST,
            NETWORKS[network].overrides,
            runs=bench.effort.runs,
            pairs=bench.effort.guard_pairs,
            updates=dict(bench.effort.guard_updates)[network],
        )
        say(f"guards, {network}: {median(ratios):.4f} of {without:,.0f} samples/s")
        note = "baseline: our loop without guards, one process, samples a second of processor time"
        rows.append(figures.GUARDS[network].row(ratios, without, note))
    return rows


def overhead(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    for network in (LENET, MLP):
        window = dict(bench.effort.profile)[network]
        settings = ("--procs", "2", "train.exchange=direct", "--profile", window)
        arguments = ("train", commands.MNIST, *NO_EVALUATION, *NETWORKS[network].overrides, *settings)
        shares = [commands.overhead(*arguments, *bench.cut) for _ in range(bench.effort.few)]
        say(f"all but forward and backward, {network}: {', '.join(f'{share:.3f}' for share in shares)}")
        note = (
            "gathering, checking, applying and bookkeeping: medians over the updates of --profile, its clock included"
        )
        rows.append(figures.OVERHEAD[network].row(shares, note=note))
    return rows


def too_many(bench: Bench) -> list[Row]:
    four, two = in_turn(bench.effort.few, partial(bench.ours, LENET, 4), partial(bench.ours, LENET, 2))
    ratios = [a / b for a, b in zip(four, two, strict=True)]
    return [figures.TOO_MANY.row(ratios, median(two), "LeNet; baseline: `--procs 2`, samples/s")]


def accuracy(bench: Bench) -> list[Row]:
    """Seconds from the command to its end, which for the baseline is its evaluation and for ours a checkpoint more."""
    goal = bench.effort.accuracy
    ours: list[float] = []
    theirs: list[float] = []

    def we(seed: int) -> None:
        took, summary = commands.job(
            "train", commands.MNIST, "--procs", "2", f"seed={seed}", f"train.epochs={MOST_EPOCHS}",
            f"evaluate.target.accuracy={goal}",
        )  # fmt: skip
        if summary["reason"] != "target":
            raise commands.CommandFailed(f"accuracy {goal} was not reached: {summary['metrics']}")
        ours.append(took)

    def they(seed: int) -> None:
        module = ("-m", "benchmarks.baselines.well_known")
        theirs.append(commands.seconds(*module, "--accuracy", str(goal), "--procs", "2", "--seed", str(seed)))

    for seed in range(1, bench.effort.few + 1):
        for run in (we, they) if seed % 2 else (they, we):
            run(seed)
        say(f"to {goal:.0%}: ours {ours[-1]:.1f} s, the well-known way {theirs[-1]:.1f} s")
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    note = f"ours {median(ours):.1f} s; baseline: {WELL_KNOWN}, seconds; lr 0.05, momentum 0.5, batch 64 in both"
    return [figures.TIME_TO_98.row(ratios, median(theirs), note)]


def start(bench: Bench) -> list[Row]:
    def ours() -> float:
        return float(bench.job("--procs", "2", "train.epochs=1")[1]["startup_s"])

    starts, imports = in_turn(bench.effort.runs, ours, lambda: commands.seconds("-c", "import torch", at_once=2))
    ratios = [a / b for a, b in zip(starts, imports, strict=True)]
    note = f"ours {median(starts):.2f} s; baseline: both imports, seconds"
    return [figures.START.row(ratios, median(imports), note)]


def threads(bench: Bench) -> list[Row]:
    """LeNet, for a few seconds in every setting. The best is the one with the highest median: the highest of single
    runs would be the luckiest."""

    def speed(*arguments: str) -> float:
        limits = (f"train.epochs={MANY_EPOCHS}", f"train.max_time_s={bench.effort.max_time_s}")
        found = commands.speed("train", commands.MNIST, *NO_EVALUATION, *limits, *arguments)
        say(f"{' '.join(arguments) or 'auto'}: {found:,.0f} samples/s")
        return found

    settings = [(f"train.procs={procs}", f"train.threads={count}") for procs, count in SWEEP]
    auto, *swept = in_turn(bench.effort.few, speed, *(partial(speed, *setting) for setting in settings))
    best = max(swept, key=median)
    procs, count = SWEEP[swept.index(best)]
    note = f"LeNet; auto {median(auto):,.0f} samples/s; baseline: the best, {procs} procs x {count} threads; others: "
    note += ", ".join(f"{p} x {t} {median(runs):,.0f}" for (p, t), runs in zip(SWEEP, swept, strict=True))
    return [figures.THREADS.row([a / b for a, b in zip(auto, best, strict=True)], median(best), note)]


def orders(bench: Bench) -> list[Row]:
    from benchmarks.orders import memory_order

    return memory_order()


Measure = Callable[[Bench], list[Row]]
PARTS: dict[str, tuple[Measure, tuple[Figure, ...]]] = {
    "lenet": (lenet, (figures.OVER_WELL_KNOWN, figures.OVER_LIMIT[LENET], figures.OVER_DDP[LENET])),
    "mlp": (mlp, (figures.OVER_LIMIT[MLP], figures.OVER_DDP[MLP])),
    "bare": (bare, tuple(figures.OVER_BARE_LOOP.values())),
    "guards": (guards, tuple(figures.GUARDS.values())),
    "overhead": (overhead, tuple(figures.OVERHEAD.values())),
    "too-many": (too_many, (figures.TOO_MANY,)),
    "accuracy": (accuracy, (figures.TIME_TO_98,)),
    "start": (start, (figures.START,)),
    "threads": (threads, (figures.THREADS,)),
    "orders": (orders, ()),
    "curves": (speed_up, ()),
}
ON_ALL_CORES = {"curves"}


# ---- the suite -------------------------------------------------------------------------------------------------------


def measure(names: Sequence[str], bench: Bench) -> list[Row]:
    """The rows of these parts. What could not be measured is a row too, without a value, and says why."""
    rows: list[Row] = []
    for name in names:
        measured, asked = PARTS[name]
        say(f"---- {name}")
        with on_cores(None if name in ON_ALL_CORES else 2):
            try:
                rows += measured(bench)
            except (commands.CommandFailed, RunnerDied) as error:
                say(f"{name} failed: {error}")
                rows += [figure.row([], note=f"failed: {error}") for figure in asked]
    return rows


@contextmanager
def on_cores(count: int | None) -> Iterator[None]:
    """This process, and what it starts meanwhile, runs on so many cores, of different physical ones where possible."""
    allowed = host.affinity()
    if count is None or len(allowed) <= count:
        yield
        return
    host.set_affinity(apart(sorted(allowed))[:count])
    try:
        yield
    finally:
        host.set_affinity(allowed)


def apart(cores: Sequence[int], root: Path = Path("/")) -> list[int]:
    """One logical core of each physical one first, their siblings behind."""
    firsts = sorted(core.cpus[0] for core in physical_cores(cores, root))
    return firsts + [core for core in cores if core not in firsts]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Measures the dense path; about 25 minutes on 2 cores.")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, metavar="NAME", help=f"prints only these: {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few updates of each; proves that it runs, writes nothing"
    )
    asked = parser.parse_args(argv)
    if not os.environ.get("HOGWILD_DATA"):
        sys.exit("set HOGWILD_DATA to the folder that holds mnist/")
    described = results.machine() if asked.quick or asked.only else results.begin()
    bench = Bench(QUICK if asked.quick else FULL)
    rows = measure(asked.only or list(PARTS), bench)
    if asked.quick:
        publish_quick(SUITE, rows, lambda folder: picture(bench, folder))
    elif asked.only:
        print(results.table(rows))
    else:
        results.write(SUITE, rows, described)
        picture(bench, results.FOLDER)


def publish_quick(suite: str, rows: Sequence[Row], draw: Callable[[Path], None]) -> None:
    """Everything is written and drawn, in a folder that goes away."""
    with tempfile.TemporaryDirectory() as folder:
        results.write(f"{suite} (quick: no measurement)", rows, folder=Path(folder))
        draw(Path(folder))


if __name__ == "__main__":
    main()
