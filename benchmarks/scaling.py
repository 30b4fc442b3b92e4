"""The gain of more workers on a machine with many cores: `make bench-scaling`. Needs the files of `HOGWILD_DATA`. Run
nothing else meanwhile.

    python -m benchmarks.scaling                                2, 4, 8, ... workers, up to the cores there are
    python -m benchmarks.scaling --procs 16 --only imdb         some; the other rows stay as they were

As `benchmarks.speedup`, but n workers train n times the epochs, so that every run takes as long. Beside the most
workers, as many jobs of one worker each at the same time, which share nothing: what the machine itself gives."""

import argparse
import math
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
        gains = [a / b for a, b in zip(rates, one, strict=True)]
        rows.append(Row(f"{case.name}, {procs} workers: training", "x", target, gains, median(one), note))
        say(f"{rows[-1].figure}: {rows[-1].value:.2f}, {note}")
    return rows


def draw(folder: Path = results.FOLDER) -> None:
    """The curves of all rows there are."""
    points: dict[str, list[Point]] = {}
    for figure, row in results.read_rows(SUITE, folder).items():
        name, _, rest = figure.partition(", ")
        procs = int(rest.partition(" ")[0])
        found = Point(procs, median(row.runs), min(row.runs), max(row.runs))
        points.setdefault(name, [Point(1, 1, 1, 1)]).append(found)
    lines = [Line(name, sorted(of_case, key=lambda point: point.x)) for name, of_case in points.items()]
    numbers = {point.x for line in lines for point in line.points}
    lines.append(Line("as many as workers", [Point(x, x, x, x) for x in sorted(numbers)], is_reference=True))
    title = "Samples per second over one worker's"
    file = folder / "scaling-procs.png"
    plot_lines(lines, file, title=title, x_label="workers", y_label="speed-up", is_log=True)


def main() -> None:
    doublings = int(math.log2(host.usable_cores().usable))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=CASES, metavar="CASE", choices=[*CONFIGS, *SIZES])
    parser.add_argument("--procs", nargs="+", type=int, default=[2**k for k in range(1, doublings + 1)])
    asked = parser.parse_args()
    described = results.begin()
    if not asked.procs:
        sys.exit("one core: nothing to measure")
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
