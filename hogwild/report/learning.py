"""Loss, metrics and learning rate of one run, against time, samples and updates. Needs matplotlib."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from hogwild.formatting import time_unit
from hogwild.metrics.catalog import LOSS, known
from hogwild.report.columns import curve, smooth, spans_decades
from hogwild.report.config_origin import plain_values
from hogwild.report.page import Picture
from hogwild.report.run_data import ColumnTable, Floats, Run
from hogwild.report.style import COLOURS, GREY, from_zero, legend_above, new_figure, picture, plain, use_log

WIDE = 9.0  # inches: full width of the page
HALF = 6.4
ROW = 2.1
MOST_METRICS = 8
NOT_METRICS = {"time", "epoch", "updates", "samples", "seconds"}
MARGIN = 1.01  # of the axis' end, so that the last events are not cut in half
FEW = 60  # evaluations: each one gets a dot


@dataclass(frozen=True, slots=True)
class Axis:
    """The x axis of curves. `x` computes its column from a run's table; `end`: the end of the axis, if not that of the
    data."""

    name: str
    label: str
    x: Callable[[Run, ColumnTable], Floats]
    end: float | None = None

    def use(self, axes: Axes) -> None:
        axes.set_xlabel(self.label)
        if self.end is None:
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.set_xlim(0, None if self.end is None else MARGIN * self.end)


def three_axes(span_s: float) -> tuple[Axis, Axis, Axis]:
    """Return axes for time, in a unit that suits a span of so many seconds, for samples and for updates."""
    word, unit_s = time_unit(span_s)
    end = max(span_s, 1e-3) / unit_s
    return (
        Axis("time", f"time running ({word})", lambda run, table: run.clock.elapsed(table["time"]) / unit_s, end),
        Axis("samples", "samples", lambda _, table: table["samples"]),
        Axis("updates", "updates", lambda _, table: table["updates"]),
    )


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
        _rate(grid[-1], run, axis)
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


def _rate(axes: Axes, run: Run, axis: Axis) -> None:
    train = run.records.train
    line = curve(axis.x(run, train), train["lr"])
    axes.plot(line.x, line.y, color=GREY)
    axes.set_title("learning rate")
    from_zero(axes)


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
    known = np.isfinite(train["updates"]) & np.isfinite(train["samples"])
    if not known.any():
        return np.full(updates.shape, np.nan)
    by = np.argsort(train["updates"][known], kind="stable")
    return np.interp(updates, train["updates"][known][by], train["samples"][known][by])


def best_updates(run: Run) -> float:
    """Return the updates at the best evaluation; NaN without evaluations. Taken from the summary if there is one;
    otherwise from `evaluate.monitor` and `evaluate.mode`, as the job itself chooses."""
    said = run.summary.get("best")
    if isinstance(said, dict) and isinstance(said.get("updates"), int):
        return float(said["updates"])
    evaluations = run.records.evaluations
    name, highest = _rule(run)
    values = evaluations[name]
    if not np.isfinite(values).any():
        return float("nan")
    place = np.nanargmax(values) if highest else np.nanargmin(values)
    return float(evaluations["updates"][place])


def _rule(run: Run) -> tuple[str, bool]:
    section = plain_values(run.resolved_text).get("evaluate")
    evaluate: Mapping[str, Any] = section if isinstance(section, dict) else {}
    monitor, mode = evaluate.get("monitor"), evaluate.get("mode")
    name = monitor if isinstance(monitor, str) and monitor in run.records.evaluations else LOSS
    if mode in ("min", "max"):
        return name, mode == "max"
    ours = known(name)
    return name, ours is not None and ours.higher_is_better
