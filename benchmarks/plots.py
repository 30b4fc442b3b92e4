"""A suite's figures as pictures. matplotlib is of the `bench` extra: only who draws imports this module."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.row import Row

MET, MISSED, NEITHER = "tab:green", "tab:red", "tab:gray"
INCHES_A_ROW = 0.6
LABEL = 72  # characters of a figure's name in one line
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
MOST_TIMES = 100.0
TWO_COLUMNS = 4  # so many lines of a legend fit below each other
MANY_LINES = 8  # more of them would cover the picture


# ---- how many times better than asked each figure is, every run a dot ------------------------------------------------


def plot(suite: str, rows: Sequence[Row], file: Path) -> None:
    """Replaces `file` (PNG). Rows without a target, or without a run, are left out; they are in the table."""
    asked = [row for row in rows if row.target and row.runs]
    if not asked:
        return
    figure = Figure(figsize=(9, 1.2 + INCHES_A_ROW * len(asked)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(reversed(asked)):
        _draw(axes, place, row)
    names = [f"{textwrap.fill(row.figure, LABEL)}\n{_words(row)}" for row in reversed(asked)]
    axes.set_yticks(range(len(asked)), names, fontsize=8)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(left=min(0.9, axes.get_xlim()[0]))
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in TICKS if low <= tick <= high])
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("times better than asked\n(dots: runs; bars: median or mean; grey: void)")
    axes.set_title(suite, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)


def _draw(axes: Axes, place: int, row: Row) -> None:
    assert row.value is not None
    times = [_times_better(row, run) for run in row.runs]
    color = MET if row.met else MISSED if row.met is False else NEITHER
    axes.barh(place, _times_better(row, row.value) - 1.0, left=1.0, height=0.5, color=color, alpha=0.5)
    axes.plot(times, [place] * len(times), "o", color=color, markersize=4)


def _times_better(row: Row, value: float) -> float:
    assert row.target
    if row.smaller_is_better:
        return row.target / max(value, row.target / MOST_TIMES)  # what is 0 would be better without end
    return value / row.target


def _words(row: Row) -> str:
    bound = "at most" if row.smaller_is_better else "at least"
    return f"{row.value:.3g} {row.unit}, asked {bound} {row.target:g}".replace(" ,", ",")


# ---- something against a number, with its spread ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Point:
    """`y` at `x`, and what it lies between."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one thing. A reference is drawn thin and dashed, in the color of the line before it."""

    name: str
    points: Sequence[Point]
    is_reference: bool = False


def plot_lines(
    lines: Sequence[Line], file: Path, *, title: str, x_label: str, y_label: str, is_log: bool = False
) -> None:
    """Replaces `file` (PNG). The x axis is logarithmic, to base 2, with a tick at each x; `is_log`: y as well."""
    drawn = [line for line in lines if line.points]
    if not drawn:
        return
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    color = -1
    for line in drawn:
        color += not line.is_reference or color < 0
        _draw_line(axes, line, f"C{color}")
    axes.set_xscale("log", base=2)
    ticks = sorted({point.x for line in drawn for point in line.points})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    if is_log:
        axes.set_yscale("log")
        for of_ticks in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
            of_ticks("{x:,.0f}")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title, loc="left", fontsize=10)
    axes.grid(alpha=0.3)
    if len(drawn) > MANY_LINES:
        figure.legend(fontsize=8, ncols=2, loc="outside lower center")
    else:
        axes.legend(fontsize=8, ncols=1 + (len(drawn) > TWO_COLUMNS))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)


def _draw_line(axes: Axes, line: Line, color: str) -> None:
    x, y = [point.x for point in line.points], [point.y for point in line.points]
    below = [point.y - point.low for point in line.points]
    above = [point.high - point.y for point in line.points]
    style = "--" if line.is_reference else "-"
    axes.errorbar(
        x, y, yerr=[below, above], label=line.name, color=color, linestyle=style, marker="o", markersize=4, capsize=3,
        linewidth=1 if line.is_reference else 1.6,
    )  # fmt: skip
