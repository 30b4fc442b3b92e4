"""The pictures of one run. Needs matplotlib (`report` extra). A picture without records is left out; `tables.missing`
lists it."""

from collections.abc import Iterator

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.ticker import EngFormatter, MaxNLocator

from hogwild.formatting import number
from hogwild.metrics.catalog import LOSS, known
from hogwild.report.columns import curve, percentile, smooth, spans_decades
from hogwild.report.page import Picture
from hogwild.report.run_data import ColumnTable, Floats, Run
from hogwild.report.style import (
    COLOURS,
    GREY,
    HALF,
    MOST_NAMED,
    ROW,
    WIDE,
    Axis,
    colour_of,
    from_zero,
    legend_above,
    new_figure,
    picture,
    plain,
    three_axes,
    use_bytes,
    use_log,
    use_rate,
)
from hogwild.report.timeline import timeline

OLDEST = 127  # the histogram's last bin holds all values from here on (scoreboard.py)
MOST_BARS = 64
MOST_METRICS = 8
NOT_METRICS = {"time", "epoch", "updates", "samples", "seconds"}
FEW = 60  # evaluations: each one gets a dot
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


# ---- loss, metrics and learning rate --------------------------------------------------------------------------------


def metric_names(run: Run) -> list[str]:
    """Return `loss` first, then the metrics of the evaluations in their order: every name with a number somewhere."""
    measured = [name for name in run.records.evaluations.names if name not in NOT_METRICS]
    has_loss = "loss" in run.records.train or "loss" in measured
    return [*(["loss"] if has_loss else []), *(name for name in measured if name != "loss")]


def learning(run: Run, axis: Axis) -> Picture:
    """Draw one panel per metric, one below the other. The run must have a metric or a loss."""
    names = metric_names(run)[:MOST_METRICS]
    rates = run.records.train["lr"]
    rates = rates[np.isfinite(rates)]
    has_rate = bool(rates.size) and rates.min() != rates.max()
    figure = new_figure(WIDE if axis.name == "time" else HALF, 0.7 + ROW * (len(names) + has_rate))
    grid = figure.subplots(len(names) + has_rate, 1, sharex=True, squeeze=False)[:, 0]
    for axes, name in zip(grid, names, strict=False):
        _metric(axes, run, axis, name)
    if has_rate:
        line = curve(axis.x(run, run.records.train), run.records.train["lr"])
        grid[-1].plot(line.x, line.y, color=GREY)
        grid[-1].set_title("learning rate")
        from_zero(grid[-1])
    for axes in grid:
        _marks(axes, run, axis)
    axis.use(grid[-1])
    legend_above(grid[0], columns=6 if axis.name == "time" else 3)
    shown = [*names, *(["learning rate"] if has_rate else [])]
    alt = f"{', '.join(shown)} against {axis.label}"
    return picture(figure, f"learning-{axis.name}", f"Loss and metrics against {axis.name}", alt)


def _metric(axes: Axes, run: Run, axis: Axis, name: str) -> None:
    train, evaluations = run.records.train, run.records.evaluations
    shown = [evaluations[name]]
    if name == "loss" and name in train:
        at, values = axis.x(run, train), train[name]
        shown.append(values)
        line, mean = curve(at, values), smooth(at, values)
        axes.plot(line.x, line.y, color=COLOURS[0], alpha=0.3 if mean else 1.0, label="training")
        if mean is not None:
            axes.plot(mean.x, mean.y, color=COLOURS[0], label="training, smoothed")
    at, values = axis.x(run, evaluations), evaluations[name]
    line = curve(at, values, breaks=False)
    dots = "o-" if line.x.size <= FEW else "-"
    if line.x.size:
        axes.plot(line.x, line.y, dots, color=COLOURS[1], markersize=3.5, label="validation")
    best = evaluations["updates"] == best_updates(run)
    if best.any():
        place = np.flatnonzero(best)[-1]
        axes.plot(at[place], values[place], "*", color="black", markersize=12, zorder=5, clip_on=False, label="best")
    if spans_decades(*shown):
        use_log(axes)
    axes.set_title(plain(name))


def _marks(axes: Axes, run: Run, axis: Axis) -> None:
    """Mark rollbacks to a checkpoint, and resumes."""
    for kind, line, colour in (("rollback", "--", COLOURS[3]), ("resume", ":", "#555555")):
        for count, x in enumerate(places(run, axis, kind)):
            axes.axvline(x, linestyle=line, color=colour, linewidth=1.2, label=kind if not count else None)


def places(run: Run, axis: Axis, kind: str) -> Floats:
    """Return the places of these events on the axis: their time, or the samples or updates at which the job continued.
    A resume event has no samples: they are interpolated from the records around its updates."""
    table = run.numbers_of(kind)
    found = axis.x(run, table)
    if axis.name == "samples" and "samples" not in table and table.rows:
        found = _samples_at(run, table["updates"])
    return found[np.isfinite(found)]


def _samples_at(run: Run, updates: Floats) -> Floats:
    train = run.records.train
    there = np.isfinite(train["updates"]) & np.isfinite(train["samples"])
    if not there.any():
        return np.full(updates.shape, np.nan)
    by = np.argsort(train["updates"][there], kind="stable")
    return np.interp(updates, train["updates"][there][by], train["samples"][there][by])


def best_updates(run: Run) -> float:
    """Return the updates at the best evaluation; NaN without evaluations. Taken from the summary if there is one;
    otherwise from `evaluate.monitor` and `evaluate.mode`, as the job itself chooses."""
    said = run.summary.get("best")
    if isinstance(said, dict) and isinstance(said.get("updates"), int):
        return float(said["updates"])
    evaluations = run.records.evaluations
    monitor, mode = run.resolved.get("evaluate.monitor"), run.resolved.get("evaluate.mode")
    name = monitor if isinstance(monitor, str) and monitor in evaluations else LOSS
    values = evaluations[name]
    if not np.isfinite(values).any():
        return float("nan")
    ours = known(name)
    is_highest = mode == "max" or (mode != "min" and ours is not None and ours.higher_is_better)
    place = np.nanargmax(values) if is_highest else np.nanargmin(values)
    return float(evaluations["updates"][place])


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
