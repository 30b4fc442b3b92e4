"""Samples a second against the number of workers, ours beside the limit: so many jobs of one worker at once, which
share nothing. One row for each point, and a picture."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks import sparse_data
from benchmarks.bench import in_turn, say
from benchmarks.figures import Figure
from benchmarks.row import Row
from benchmarks.sparse_factorisation import FACTORS, ratings_settings
from benchmarks.sparse_suite import Suite
from benchmarks.synthetic_ratings import Shape
from hogwild import host

PICTURE = "sparse-procs.png"
OURS, LIMIT = "ours", "the limit"
LONG_S = 3.0  # a job of ours trains for so long
NAMES: Mapping[str, str] = {
    "imdb": "logistic regression, imdb",
    "ratings": "factorisation, 25 M ratings, k = 32",
    "jester": "factorisation, Jester, k = 16",
    "skipgram": "skip-gram, imdb text",
    "codex": "ComplEx, CoDEx-M",
}
TOO_MANY = {config: Figure(f"{name}, `--procs 4` on 2 cores over `--procs 2`", 0.95) for config, name in NAMES.items()}

Speeds = Mapping[tuple[str, str, int], Sequence[float]]  # (who, job, workers) -> samples/s of each run


def speed_up(suite: Suite, procs: Sequence[int]) -> tuple[list[Row], Speeds]:
    """About 2 minutes for each number of workers; all of a job in turn, as their ratios count. The limit is measured up
    to the cores: jobs that share nothing gain nothing from waiting for each other."""
    cores = max(1, int(host.usable_cores().usable))
    speeds: dict[tuple[str, str, int], Sequence[float]] = {}
    for config in NAMES:
        settings = settings_of(suite, config)
        ways: dict[tuple[str, str, int], Callable[[], float]] = {}
        for count in procs:
            ways[OURS, config, count] = partial(ours, suite, config, settings, count)
            if 1 < count <= cores:
                ways[LIMIT, config, count] = partial(limit, suite, config, settings, count)
        speeds |= zip(ways, in_turn(suite.effort.runs, *ways.values()), strict=True)
        for who, _, count in ways:
            found = ", ".join(f"{one:,.0f}" for one in speeds[who, config, count])
            say(f"{who}, {config}, {count} procs: {found} samples/s")
    return rows_of(speeds, procs, cores), speeds


def settings_of(suite: Suite, config: str) -> tuple[str, ...]:
    """The changes of the job file, for ours and the limit."""
    if config == "ratings":
        return ratings_settings(sparse_data.synthetic(suite.folder, Shape.part(suite.effort.share)), FACTORS)
    return ("model.init_args.factors=16",) if config == "jester" else ()


def ours(suite: Suite, config: str, settings: Sequence[str], procs: int) -> float:
    """A job that ends by the clock: the same seconds for every number of workers."""
    return suite.ours.speed(config, procs, *settings, "train.epochs=1000", f"train.max_time_s={LONG_S}")


def limit(suite: Suite, config: str, settings: Sequence[str], jobs: int) -> float:
    """Samples a second of so many jobs of one worker at once."""
    with ThreadPoolExecutor(jobs) as pool:
        return sum(pool.map(lambda _: ours(suite, config, settings, 1), range(jobs)))


def rows_of(speeds: Speeds, procs: Sequence[int], cores: int) -> list[Row]:
    """A row for each job and number of workers."""
    rows: list[Row] = []
    for config, name in NAMES.items():
        for count in (number for number in procs if (OURS, config, number) in speeds):
            found, first = speeds[OURS, config, count], speeds[OURS, config, min(procs)]
            limit = speeds.get((LIMIT, config, count), ())
            fewest = f"{min(procs)} worker{'s' * (min(procs) > 1)}"
            words = [f"{statistics.median(found) / statistics.median(first):.2f} x {fewest}"]
            if limit:
                words.append(f"{statistics.median(found) / statistics.median(limit):.2f} x the limit (baseline)")
            elif count > cores:
                words.append(f"more workers than the {cores} cores")
            baseline = statistics.median(limit) if limit else None
            rows.append(Row(f"{name}, `--procs {count}`", "samples/s", None, list(found), baseline, "; ".join(words)))
        four, two = speeds.get((OURS, config, 4), ()), speeds.get((OURS, config, 2), ())
        if four and two and cores == 2:
            ratios = [a / b for a, b in zip(four, two, strict=True)]
            rows.append(TOO_MANY[config].row(ratios, statistics.median(two), "baseline: `--procs 2`, samples/s"))
    return rows


def picture(speeds: Speeds, folder: Path) -> None:
    """Writes PICTURE: each job's speed over that of its fewest workers, which makes them comparable."""
    from benchmarks.plots import Line, Point, plot_lines

    lines = []
    for config, name in NAMES.items():
        counts = sorted({count for who, job, count in speeds if job == config})
        one = statistics.median(speeds.get((OURS, config, counts[0]), ()) or [1.0]) if counts else 1.0
        for who in (OURS, LIMIT):
            points = [
                Point(count, *(choose(runs) / one for choose in (statistics.median, min, max)))
                for count in counts
                if (runs := speeds.get((who, config, count)))
            ]
            lines.append(Line(f"{name}, {who}", points, is_reference=who == LIMIT))
    plot_lines(
        lines,
        folder / PICTURE,
        title="sparse: speed against workers, over the fewest (bars: lowest and highest run)",
        x_label="workers (the limit: so many jobs of one worker at once)",
        y_label="times the fewest workers",
    )
