"""Samples a second against the number of workers, ours beside the limit: one row for each point, and a picture."""

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.bench import LIMIT, OURS, Bench
from benchmarks.figures import LENET, MLP
from benchmarks.row import Row
from hogwild import host

PROCS = (1, 2, 4, 8, 16)
PICTURE = "dense-procs.png"


def speed_up(bench: Bench) -> list[Row]:
    """Ours up to twice as many workers as there are cores, the limit up to the cores: processes that share nothing
    gain nothing from waiting for each other. Speeds that the bench has seen already are not measured again."""
    rows: list[Row] = []
    cores = max(1, int(host.usable_cores().usable))
    for network in (LENET, MLP):
        one = _seen(bench, OURS, network, 1)
        for procs in (number for number in PROCS if number <= 2 * cores):
            ours = _seen(bench, OURS, network, procs)
            limit = _seen(bench, LIMIT, network, procs) if procs <= cores else []
            rows.append(_row(network, procs, ours, one, limit, cores))
    return rows


def _seen(bench: Bench, who: str, network: str, procs: int) -> list[float]:
    measure: Callable[[], float] = partial(bench.ours if who == OURS else bench.limit, network, procs)
    return bench.seen(who, network, procs, measure, bench.effort.few)


def _row(network: str, procs: int, ours: list[float], one: list[float], limit: list[float], cores: int) -> Row:
    median = statistics.median(ours)
    words = [f"{median / statistics.median(one):.2f} x one worker"]
    if limit:
        words.append(f"{median / statistics.median(limit):.2f} x the limit (baseline)")
    else:
        words.append(f"more workers than the {cores} cores")
    baseline = statistics.median(limit) if limit else None
    return Row(f"{network}, `--procs {procs}`", "samples/s", None, list(ours), baseline, "; ".join(words))


def picture(bench: Bench, folder: Path) -> None:
    """Writes PICTURE from what the bench has seen."""
    from benchmarks.plots import Line, Point, plot_lines

    lines = [
        Line(
            f"{network}, {'ours' if who == OURS else 'the limit'}",
            [
                Point(procs, statistics.median(runs), min(runs), max(runs))
                for procs in PROCS
                if (runs := bench.speeds.get((who, network, procs)))
            ],
            is_reference=who == LIMIT,
        )
        for network in (LENET, MLP)
        for who in (OURS, LIMIT)
    ]
    plot_lines(
        lines,
        folder / PICTURE,
        title="dense: speed against workers, batch 64 (bars: lowest and highest run)",
        x_label="workers (the limit: processes that share nothing)",
        y_label="samples/s",
        is_log=True,
    )
