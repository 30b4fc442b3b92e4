"""The curves, the timeline and the histogram of a report as PNGs, for papers. Needs matplotlib (`report` extra).

Figures are separate objects (no pyplot, so no list of open figures and no window system). The user's matplotlibrc is
ignored while drawing, so that a picture looks the same on every machine."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from hogwild.formatting import binary_unit, number, time_unit
from hogwild.report.panels import (
    AXES,
    BYTES,
    CORES,
    NUMBER,
    OLDEST,
    RATE,
    Line,
    Plot,
    RunCurves,
    Table,
    marks,
    staleness,
)
from hogwild.report.run_data import Floats
from hogwild.report.timeline import ABSENT, ALIVE, JOB_ROWS, STARTING, WORKER_MARKS, PhaseBars, page_marks, phase_bars

# Okabe and Ito's colours, which all kinds of colour vision can distinguish, without the yellow, which is invisible on
# white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
PHASE_COLOURS = {
    ABSENT: "#ffffff",
    STARTING: "#F0E442",
    ALIVE: "#bcd6e6",
    "working": "#0072B2",
    "waiting": "#E69F00",
    "evaluating": "#009E73",
    "parked": "#b8b8b8",
    "leaving": "#CC79A7",
    "compiling": "#8B6F47",
}
OTHER = "#56B4E9"  # a phase unknown to this version
MARKERS = {"exit": "X", "stall": "^", "fence": "v"}
ROW_COLOURS = {"evaluation": "#009E73", "checkpoint": "#0072B2", "pause": "#777777", "rollback": "#CC79A7"}
LOOKS: dict[str, dict[str, Any]] = {
    "faint": {"alpha": 0.35, "linewidth": 1.0},
    "smooth": {"linewidth": 1.8},
    "dots": {"marker": "o", "markersize": 3.5},
    "line": {},
}
DPI = 130
WIDE, HALF, ROW = 9.0, 6.4, 2.1  # inches
MOST_NAMED = len(COLOURS)
MOST_BARS = 64
MANY = 16  # with more workers, the bars get thinner


def pictures(found: RunCurves) -> dict[str, bytes]:
    """Return all pictures for which there are records, as PNGs by name. Only one thread at a time."""
    figures: dict[str, Figure] = {}
    with _drawing():
        for axis in AXES:
            if panels := _group(found, "learning"):
                figures[f"learning-{axis}"] = _curves(found, panels, axis, WIDE if axis == "time" else HALF)
        if panels := _group(found, "throughput"):
            figures["throughput"] = _curves(found, panels, "time", WIDE)
        if len(found.runs) == 1 and (bars := phase_bars(found.runs[0])).span_s and found.runs[0].workers:
            figures["timeline"] = _timeline(found, bars)
        if any(sum(run.records.staleness) for run in found.runs):
            figures["staleness"] = _staleness(found)
        if panels := _group(found, "resources"):
            figures["resources" if len(found.runs) == 1 else "memory"] = _curves(found, panels, "time", WIDE)
        if panels := _group(found, "rounds"):
            figures["rounds"] = _curves(found, panels, "time", WIDE)
        return {name: _png(figure) for name, figure in figures.items()}


@contextlib.contextmanager
def _drawing() -> Iterator[None]:
    """Set matplotlib's settings. Silences two harmless warnings: a font cache that is being built or cannot be stored
    (matplotlib's log), and a script that the font cannot show (boxes are drawn)."""
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with matplotlib.rc_context(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"Glyph \d+ .*missing from", category=UserWarning)
            matplotlib.rcdefaults()
            matplotlib.rc("axes", titlelocation="left", titlesize=11, grid=True, axisbelow=True)
            matplotlib.rc("axes.spines", top=False, right=False)
            matplotlib.rc("grid", color="#e6e6e6")
            matplotlib.rc("legend", frameon=False, fontsize=9)
            yield
    finally:
        log.setLevel(level)


def _figure(width: float, height: float) -> Figure:
    """Return a figure of this size in inches; without pyplot, its canvas draws into memory."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()


def _plain(text: object) -> str:
    """Return the text literally: a dollar sign starts no formula, and long lines are cut."""
    words = "".join(character if character.isprintable() else "?" for character in str(text))
    return (words if len(words) <= 40 else f"{words[:39]}…").replace("$", r"\$")


def _colour(place: int, count: int) -> str:
    if count <= MOST_NAMED:
        return COLOURS[place]
    return matplotlib.colors.to_hex(matplotlib.colormaps["viridis"](0.92 * place / (count - 1)))


def _use_time(axes: Axes, span_s: float) -> None:
    """Use running time in a unit that suits the span; the data are in seconds."""
    word, unit_s = time_unit(span_s)
    axes.set_xlabel(f"running time ({word})")
    axes.set_xticks([tick * unit_s for tick in MaxNLocator(8).tick_values(0.0, span_s / unit_s)])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit_s:g}"))
    axes.set_xlim(0, 1.01 * max(span_s, 1e-3))


def _legend_above(axes: Axes) -> None:
    """Put the legend above the plot, at the right: data may reach every corner of the plot."""
    handles, words = axes.get_legend_handles_labels()
    if 1 < len(handles) <= MOST_NAMED:
        axes.legend(
            handles, words, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=6, borderaxespad=0.2, handlelength=1.4
        )


# ---- curves ---------------------------------------------------------------------------------------------------------


def _group(found: RunCurves, group: str) -> list[Plot]:
    return [panel for panel in found.panels if panel.group == group]


def _curves(found: RunCurves, panels: Sequence[Plot], axis: str, width: float) -> Figure:
    """Draw one panel below the other."""
    figure = _figure(width, 0.7 + ROW * len(panels) + 0.3 * (len(found.runs) > 1))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(grid, panels, strict=True):
        for line in panel.lines:
            _line(axes, line, found.tables[line.run][line.table], axis)
            _star(axes, found, line, axis)
        _scale(axes, panel)
        axes.set_title(_plain(panel.title))
        if len(found.runs) == 1:
            _marks(axes, found, axis)
            _legend_above(axes)
    if len(found.runs) > 1:
        handles = [
            Line2D([], [], color=_colour(place, len(found.names)), label=_plain(name), linewidth=2)
            for place, name in enumerate(found.names)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    if axis == "time":
        _use_time(grid[-1], max(run.span_s for run in found.runs))
    else:
        grid[-1].set_xlabel(axis)
        grid[-1].xaxis.set_major_formatter(EngFormatter(sep=""))
        grid[-1].set_xlim(left=0)
    return figure


def _line(axes: Axes, line: Line, table: Table, axis: str) -> None:
    x, y = (np.insert(table.columns[name], table.breaks, np.nan) for name in (axis, line.column))
    is_break = np.insert(np.zeros(table.columns[axis].size, bool), table.breaks, True)
    shown = is_break | (np.isfinite(x) & (np.isfinite(y) | table.is_sparse))
    axes.plot(
        x[shown], y[shown], color=_colour(line.colour, line.colours), label=_plain(line.label), **LOOKS[line.look]
    )


def _star(axes: Axes, found: RunCurves, line: Line, axis: str) -> None:
    """Mark the best evaluation."""
    best = found.runs[line.run].best
    if line.table == "evaluations" and best is not None and best.row is not None:
        run, evaluations = found.runs[line.run], found.runs[line.run].records.evaluations
        x = run.clock.elapsed(evaluations["time"]) if axis == "time" else evaluations[axis]
        colour = "black" if len(found.runs) == 1 else _colour(line.colour, line.colours)
        point = (x[best.row], evaluations[line.column][best.row])
        axes.plot(*point, "*", color=colour, markersize=12, zorder=5, clip_on=False, label="best")


def _marks(axes: Axes, found: RunCurves, axis: str) -> None:
    """Mark rollbacks to a checkpoint, and resumes."""
    looks = {"rollback": ("--", COLOURS[3]), "resume": (":", "#555555")}
    seen: set[str] = set()
    for mark in marks(found.runs[0]):
        if np.isfinite(mark[axis]):
            style, colour = looks[mark["kind"]]
            label = None if mark["kind"] in seen else mark["kind"]
            axes.axvline(mark[axis], linestyle=style, color=colour, linewidth=1.2, label=label)
            seen.add(mark["kind"])


def _scale(axes: Axes, panel: Plot) -> None:
    highest = float(axes.dataLim.y1)
    if panel.is_log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        if high < 1000 * low:
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif panel.form != NUMBER:
        axes.set_ylim(0, 1.08 * highest if np.isfinite(highest) and highest > 0 else 1.0)
    if panel.form == RATE:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    elif panel.form == CORES:
        axes.set_ylabel("cores")
    elif panel.form == BYTES:
        word, size = binary_unit(highest)
        axes.set_ylabel(word)
        axes.set_yticks([tick * size for tick in MaxNLocator(5).tick_values(0.0, highest / size)])
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))
        axes.set_ylim(0, 1.08 * max(highest, 1.0))


# ---- staleness ------------------------------------------------------------------------------------------------------


def _staleness(found: RunCurves) -> Figure:
    """Draw the histogram of one run as bars; of several as shares, since they may have made different numbers of
    updates."""
    figure = _figure(WIDE, 3.1)
    axes = figure.subplots()
    for place, run in enumerate(found.runs):
        if (said := staleness(run)) is None:
            continue
        counts, colour = said["counts"], _colour(place, len(found.runs))
        if len(found.runs) > 1:
            edges = np.arange(counts.size + 1) - 0.5
            axes.stairs(counts / counts.sum(), edges, color=colour, linewidth=1.4, label=_plain(found.names[place]))
            continue
        width = -(-counts.size // MOST_BARS)
        bars = np.add.reduceat(counts, np.arange(0, counts.size, width))
        axes.bar(np.arange(bars.size) * width + (width - 1) / 2, bars, width=0.9 * width, color=colour)
        for name, style in (("p50", "-"), ("p99", "--")):
            axes.axvline(said[name], color=COLOURS[1], linestyle=style, label=f"{name}: {said[name]}")
        axes.set_ylim(bottom=0.7)
        over = f"; the last bar: {OLDEST} or more" if counts.size > OLDEST else ""
        axes.set_title(f"{number(counts.sum())} updates{over}")
    axes.set_yscale("log")
    axes.set_xlabel("updates by others between reading and applying")
    axes.set_ylabel("updates" if len(found.runs) == 1 else "part of all updates")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend_above(axes)
    return figure


# ---- timeline -------------------------------------------------------------------------------------------------------


def _timeline(found: RunCurves, bars: PhaseBars) -> Figure:
    """Draw the bars of the workers and, above them, a row for each kind of event of the job."""
    run = found.runs[0]
    rows = {kind: words for kind, words in JOB_ROWS.items() if run.events_of(kind)}
    heights = [max(0.28 * len(rows), 0.02), (0.36 if run.workers <= MANY else 0.17) * run.workers]
    figure = _figure(WIDE, 1.5 + sum(heights))
    top, axes = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    for place, kind in enumerate(rows):
        spans = [(mark["at"] - mark.get("length", 0.0), mark.get("length", 0.0)) for mark in page_marks(run, kind)]
        colour = ROW_COLOURS.get(kind, "#000000")
        top.broken_barh(spans, (place - 0.3, 0.6), facecolors=colour, edgecolors=colour, linewidth=1.2)
    top.set_yticks(range(len(rows)), rows.values())
    top.set_ylim(len(rows) - 0.4, -0.6)
    top.tick_params(bottom=False, left=False)
    top.grid(False)
    top.spines[["bottom", "left"]].set_visible(False)
    seen = _bars(axes, found, bars)
    _use_time(axes, bars.span_s)
    legend: list[Patch | Line2D] = [
        Patch(facecolor=PHASE_COLOURS.get(word, OTHER), label=_plain(word)) for word in bars.used()
    ]
    legend += [
        Line2D([], [], color="black", marker=MARKERS[kind], linestyle="none", label=WORKER_MARKS[kind], markersize=8)
        for kind in seen
    ]
    figure.legend(handles=legend, loc="outside lower center", ncols=5)
    return figure


def _bars(axes: Axes, found: RunCurves, bars: PhaseBars) -> list[str]:
    """Draw one image, its columns as wide as those of the bars, with white between them; return the kinds of marks."""
    run = found.runs[0]
    palette: Floats = np.array([to_rgb(PHASE_COLOURS.get(word, OTHER)) for word in bars.words])
    workers, height, columns = bars.pixels.shape
    between = np.ones((workers, height // 5, columns, 3))
    image = np.concatenate([palette[bars.pixels], between], 1).reshape(-1, columns, 3)
    extent = (0.0, bars.span_s, workers - 0.4, -0.4)
    axes.imshow(image, extent=extent, aspect="auto", interpolation="nearest")
    seen = []
    for kind, marker in MARKERS.items():
        points = [
            (mark["at"], mark["worker"]) for mark in page_marks(run, kind) if mark.get("worker", workers) < workers
        ]
        if points:  # an empty line that is not clipped would extend the layout to the picture's corner
            at, row = zip(*points, strict=True)
            axes.plot(at, row, marker, color="black", markersize=8, markeredgecolor="white", clip_on=False)
            seen.append(kind)
    step = 1 if workers <= 2 * MANY else 4
    axes.set_yticks(range(0, workers, step), [f"worker {worker}" for worker in range(0, workers, step)])
    axes.tick_params(left=False)
    axes.grid(False)
    axes.spines["left"].set_visible(False)
    return seen
