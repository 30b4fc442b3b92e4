"""What more workers gain on a machine with many cores: `make bench-scaling`. Needs the files of `HOGWILD_DATA`. Run
nothing else meanwhile.

    python -m benchmarks.scaling                                2, 4, 8, ... workers, up to the cores there are
    python -m benchmarks.scaling --procs 16 --only imdb         some; the other rows stay as they were

As `benchmarks.speedup`, but n workers train n times the epochs, so that every run takes as long. Beside the most
workers, as many jobs of one worker each at the same time, which share nothing: what the machine itself gives."""

import argparse
import math
import os
import sys
import tempfile
from pathlib import Path

from benchmarks import results
from benchmarks.bench import in_turn, median, say
from benchmarks.commands import CommandFailed
from benchmarks.plots import Line, Point, plot_lines
from benchmarks.row import Row
from benchmarks.speedup import CONFIGS, OF_INDEPENDENT, SIZES, Case, cases
from hogwild import host

SUITE = "scaling"
RUNS, TRAINING_S = 3, 3.0
CASES = ("digits", "mnist", "a9a", "imdb", "a million ratings", "jester", "codex", "shakespeare")


def rows_of(case: Case, numbers: list[int]) -> list[Row]:
    epochs, most = case.epochs(TRAINING_S), max(numbers)
    idle: dict[int, list[float]] = {procs: [] for procs in numbers}

    def by(procs: int) -> float:
        rate, summary = case.trained(procs, epochs * procs)
        idle[procs].append(summary["idle"])
        return rate

    ways = [lambda procs=procs: by(procs) for procs in numbers]
    one, apart, *several = in_turn(
        RUNS, lambda: case.trained(1, epochs)[0], lambda: case.independent(epochs, most), *ways
    )
    limit = median([a / b for a, b in zip(apart, one, strict=True)])
    rows = []
    for procs, rates in zip(numbers, several, strict=True):
        note = f"idle {median(idle[procs]):.3f}; baseline: one worker, samples/s"
        if procs == most:
            note = f"{most} jobs that share nothing gain {limit:.2f}; {note}"
        target = OF_INDEPENDENT * limit if procs == most else None
        rows.append(Row(_figure(case.name, procs), "x", target, [a / b for a, b in zip(rates, one, strict=True)],
                        median(one), note))  # fmt: skip
        say(f"{rows[-1].figure}: {rows[-1].value:.2f}, {note}")
    return rows


def _figure(name: str, procs: int) -> str:
    return f"{name}, {procs} workers: training"


def draw(folder: Path = results.FOLDER) -> None:
    """The curves of all rows there are."""
    by_figure = results.rows(SUITE, folder)
    lines = [
        Line(name, [Point(1, 1, 1, 1), *points])
        for name in CASES
        if (points := [_point(row, procs) for procs in range(2, 1025) if (row := by_figure.get(_figure(name, procs)))])
    ]
    title = "Samples per second over one worker's"
    plot_lines(lines, folder / "scaling-procs.png", title=title, x_label="workers", y_label="speed-up")


def _point(row: Row, procs: int) -> Point:
    return Point(procs, median(row.runs), min(row.runs), max(row.runs))


def main() -> None:
    cores = int(host.usable_cores().usable)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=CASES, metavar="CASE", choices=[*CONFIGS, *SIZES])
    parser.add_argument("--procs", nargs="+", type=int, default=[2**k for k in range(1, int(math.log2(cores)) + 1)])
    asked = parser.parse_args()
    described = results.machine()
    os.environ["HOGWILD_DATA"]  # or the end
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(Path(folder), asked.only):
            try:
                rows = rows_of(case, asked.procs)
            except CommandFailed as error:
                sys.exit(f"{case.name}: {error}")
            results.update(SUITE, rows, described, is_quiet=True)
            draw()


if __name__ == "__main__":
    main()
