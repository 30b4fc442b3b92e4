"""Pictures that overlay the curves of several runs. Needs matplotlib (`report` extra)."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hogwild.report.columns import Curve, curve, smooth, spans_decades
from hogwild.report.figures import FEW, MOST_METRICS, metric_names
from hogwild.report.page import Picture
from hogwild.report.run_data import Floats, Run
from hogwild.report.style import (
    HALF,
    ROW,
    WIDE,
    Axis,
    colour_of,
    new_figure,
    picture,
    plain,
    three_axes,
    use_bytes,
    use_log,
    use_rate,
)
from hogwild.report.tables import labels

NAMES = ("learning-time", "learning-samples", "learning-updates", "throughput", "staleness", "memory")


def overlays(runs: Sequence[Run]) -> Iterator[Picture]:
    """Yield all pictures for which there are records; call it inside `style.drawing()`. A run without records for a
    picture is left out of it and of its legend."""
    axes = three_axes(max(run.span_s for run in runs))
    names = list(dict.fromkeys(name for run in runs for name in metric_names(run)))[:MOST_METRICS]
    if names:
        yield from (_learning(runs, axis, names) for axis in axes)
    for column, name, title, use in (
        ("samples_per_s", "throughput", "Throughput", lambda axes, _: use_rate(axes, "samples/s")),
        ("pss_bytes", "memory", "Memory of all processes", use_bytes),
    ):
        if any(column in run.records.train for run in runs):
            yield _column(runs, axes[0], column, name, title, use)
    if any(sum(run.records.staleness) for run in runs):
        yield _staleness(runs)


def _learning(runs: Sequence[Run], axis: Axis, names: Sequence[str]) -> Picture:
    figure = new_figure(WIDE if axis.name == "time" else HALF, 1.0 + ROW * len(names))
    grid = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for axes, name in zip(grid, names, strict=True):
        shown = [_metric(axes, run, axis, name, place, len(runs)) for place, run in enumerate(runs)]
        if spans_decades(*shown):
            use_log(axes)
        is_trained = name == "loss" and any("loss" in run.records.train for run in runs)
        axes.set_title(plain(name) + (" (thin: training; thick: validation)" if is_trained else ""))
    axis.use(grid[-1])
    _legend(figure, runs, [bool(metric_names(run)) for run in runs])
    alt = f"{', '.join(names)} of every run against {axis.label}"
    return picture(figure, f"learning-{axis.name}", f"Loss and metrics against {axis.name}", alt)


def _metric(axes: Axes, run: Run, axis: Axis, name: str, place: int, count: int) -> Floats:
    """Plot one metric of one run; return the values drawn."""
    train, evaluations, colour = run.records.train, run.records.evaluations, colour_of(place, count)
    line = curve(axis.x(run, evaluations), evaluations[name], breaks=False)
    axes.plot(line.x, line.y, "o-" if line.x.size <= FEW else "-", color=colour, markersize=3.5, linewidth=1.8)
    if name != "loss":
        return line.y
    at = axis.x(run, train)
    trained = smooth(at, train[name]) or curve(at, train[name])
    axes.plot(trained.x, trained.y, color=colour, linewidth=0.9, alpha=0.7)
    return np.concatenate([line.y, trained.y])


def _column(
    runs: Sequence[Run], time: Axis, column: str, name: str, title: str, use: Callable[[Axes, list[Floats]], None]
) -> Picture:
    figure = new_figure(WIDE, 3.1)
    axes = figure.subplots()
    lines: list[Curve] = []
    for place, run in enumerate(runs):
        at, values = time.x(run, run.records.train), run.records.train[column]
        lines.append(smooth(at, values) or curve(at, values))
        axes.plot(lines[-1].x, lines[-1].y, color=colour_of(place, len(runs)))
    use(axes, [line.y for line in lines])
    time.use(axes)
    _legend(figure, runs, [line.x.size > 0 for line in lines])
    return picture(figure, name, title, f"{title.lower()} of every run against time")


def _staleness(runs: Sequence[Run]) -> Picture:
    """Plot staleness as shares of all updates: the runs may have made different numbers of them."""
    figure = new_figure(WIDE, 3.1)
    axes = figure.subplots()
    for place, run in enumerate(runs):
        counts = np.array(run.records.staleness)
        if counts.sum():
            used = int(np.flatnonzero(counts)[-1]) + 1
            edges = np.arange(used + 1) - 0.5
            axes.stairs(counts[:used] / counts.sum(), edges, color=colour_of(place, len(runs)), linewidth=1.4)
    axes.set_yscale("log")
    axes.set_xlabel("updates by others between reading and applying")
    axes.set_ylabel("part of all updates")
    _legend(figure, runs, [sum(run.records.staleness) > 0 for run in runs])
    return picture(figure, "staleness", "Staleness", "histogram of the staleness of updates of every run")


def _legend(figure: Figure, runs: Sequence[Run], is_drawn: Sequence[bool]) -> None:
    handles = [
        Line2D([], [], color=colour_of(place, len(runs)), label=plain(label), linewidth=2)
        for place, label in enumerate(labels(runs))
        if is_drawn[place]
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
