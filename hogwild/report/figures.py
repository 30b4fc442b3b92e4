"""The pictures of one run. Needs matplotlib (`report` extra). A picture without records is left out; `tables.missing`
lists it."""

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.ticker import EngFormatter, MaxNLocator

from hogwild.formatting import number
from hogwild.report.columns import curve, percentile, smooth
from hogwild.report.learning import WIDE, Axis, learning, metric_names, three_axes
from hogwild.report.page import Picture
from hogwild.report.run_data import ColumnTable, Run
from hogwild.report.style import (
    COLOURS,
    GREY,
    MOST_NAMED,
    colour_of,
    from_zero,
    legend_above,
    new_figure,
    picture,
    use_bytes,
    use_rate,
)
from hogwild.report.timeline import timeline

OLDEST = 127  # the histogram's last bin holds all values from here on (scoreboard.py)
MOST_BARS = 64
NAMES = ("learning-time", "learning-samples", "learning-updates", "throughput", "timeline", "staleness", "resources")


def pictures(run: Run) -> Iterator[Picture]:
    """Yield all pictures for which this run has records. Call it inside `style.drawing()`."""
    axes = three_axes(run.span_s)
    if metric_names(run):
        yield from (learning(run, axis) for axis in axes)
    for draw in (throughput, timeline, staleness, resources):
        made = draw(run, axes[0])
        if made is not None:
            yield made


# ---- speed ----------------------------------------------------------------------------------------------------------


def throughput(run: Run, time: Axis) -> Picture | None:
    """Plot samples per second of all workers together, and of each if there are several."""
    train, each = run.records.train, run.records.workers["samples_per_s"]
    if "samples_per_s" not in train and not each.names:
        return None
    has_each = len(each.names) > 1
    figure = new_figure(WIDE, 2.9 + (2.4 if has_each else 0.0))
    grid = figure.subplots(1 + has_each, 1, sharex=True, squeeze=False)[:, 0]
    at, values = time.x(run, train), train["samples_per_s"]
    line, mean = curve(at, values), smooth(at, values)
    grid[0].plot(line.x, line.y, color=COLOURS[0], alpha=0.35 if mean else 1.0)
    if mean is not None:
        grid[0].plot(mean.x, mean.y, color=COLOURS[0], label="smoothed")
    use_rate(grid[0], "samples/s")
    grid[0].set_title("all workers")
    legend_above(grid[0])
    if has_each:
        _each_worker(grid[1], run, time, each)
        use_rate(grid[1], "samples/s")
        grid[1].set_title("each worker")
    time.use(grid[-1])
    return picture(figure, "throughput", "Throughput", "samples per second against time, in all and of each worker")


def _each_worker(axes: Axes, run: Run, time: Axis, table: ColumnTable, *, is_noisy: bool = True) -> None:
    """Plot a line per worker, with names as long as colours can distinguish them, otherwise as a gradient. Long noisy
    lines are smoothed: they overlap, and noise would hide all but the last."""
    at, workers = time.x(run, run.records.told), sorted(table.names)
    for place, worker in enumerate(workers):
        line = (smooth(at, table[worker]) if is_noisy else None) or curve(at, table[worker])
        width, name = (1.4, f"worker {worker}") if len(workers) <= MOST_NAMED else (0.7, None)
        axes.plot(line.x, line.y, color=colour_of(place, len(workers)), linewidth=width, label=name)
    if len(workers) <= MOST_NAMED:
        legend_above(axes, columns=MOST_NAMED)
        return
    gradient = ListedColormap([colour_of(place, len(workers)) for place in range(len(workers))])
    scale = ScalarMappable(Normalize(workers[0], workers[-1]), gradient)
    axes.figure.colorbar(scale, ax=axes, label="worker", pad=0.01, format="{x:.0f}")


# ---- staleness ------------------------------------------------------------------------------------------------------


def staleness(run: Run, time: Axis) -> Picture | None:
    """Plot the histogram of staleness: a bar per number of missed updates, or per range if there are many."""
    counts = np.array(run.records.staleness)
    if not counts.sum():
        return None
    end = int(np.flatnonzero(counts)[-1]) + 1
    width = -(-end // MOST_BARS)
    bars = np.add.reduceat(counts[:end], np.arange(0, end, width))
    figure = new_figure(WIDE, 3.0)
    axes = figure.subplots()
    axes.bar(np.arange(bars.size) * width + (width - 1) / 2, bars, width=0.9 * width, color=COLOURS[0])
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.7)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    for share, line in ((0.5, "-"), (0.99, "--")):
        at = percentile(counts, share)
        axes.axvline(at, color=COLOURS[1], linestyle=line, label=f"p{share * 100:g}: {at}")
    axes.set_xlabel("updates by others between reading and applying")
    axes.set_ylabel("updates")
    axes.set_xlim(-0.5 * width - 0.2, max(end, 8) + 0.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_above(axes)
    total = f"{number(counts.sum())} updates."
    note = f"{total} The last bar holds everything older than {OLDEST - 1}." if end > OLDEST else total
    return picture(
        figure, "staleness", "Staleness", "histogram of the staleness of updates, counts on a log scale", note
    )


# ---- memory and processor -------------------------------------------------------------------------------------------


def resources(run: Run, time: Axis) -> Picture | None:
    """Plot memory in total and of each worker, and the CPU use of each worker's process."""
    train, memory, cpu = run.records.train, run.records.workers["pss_bytes"], run.records.workers["cpu"]
    panels = [
        name
        for name, is_there in (
            ("memory of all processes", "pss_bytes" in train),
            ("memory of each worker", bool(memory.names)),
            ("processor time of each worker", bool(cpu.names)),
        )
        if is_there
    ]
    if not panels:
        return None
    figure = new_figure(WIDE, 0.7 + 2.1 * len(panels))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    at = time.x(run, train)
    for axes, name in zip(grid, panels, strict=True):
        axes.set_title(name)
        if name == "memory of all processes":
            line = curve(at, train["pss_bytes"])
            axes.plot(line.x, line.y, color=GREY)
            use_bytes(axes, [line.y])
        elif name == "memory of each worker":
            _each_worker(axes, run, time, memory, is_noisy=False)  # not smoothed: gaps without the worker
            use_bytes(axes, [memory[worker] for worker in memory.names])
        else:
            _each_worker(axes, run, time, cpu)
            axes.set_ylabel("cores")
            from_zero(axes)
    time.use(grid[-1])
    return picture(
        figure,
        "resources",
        "Memory and processor",
        "memory (PSS) and processor time of the job against time",
        "Memory is PSS: a page that several processes share is counted once, in parts.",
    )
