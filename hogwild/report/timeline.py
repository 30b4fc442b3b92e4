"""Timeline of the workers: a bar per worker, coloured by phase, with its deaths and stalls; above, a row for each kind
of event of the whole job. Needs matplotlib."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hogwild.report.learning import WIDE, Axis
from hogwild.report.page import Picture
from hogwild.report.phase_bars import ABSENT, ALIVE, STARTING, Lanes, lanes
from hogwild.report.run_data import ColumnTable, Run
from hogwild.report.style import new_figure, picture, plain

COLOUR_OF = {
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
WORKER_MARKS = (
    ("exit", "X", "#000000", "death"),
    ("stall", "^", "#D55E00", "stall"),
    ("fence", "v", "#D55E00", "fence"),
)
JOB_ROWS = (
    ("evaluation", "|", "#009E73", "evaluations"),
    ("checkpoint", "|", "#0072B2", "checkpoints"),
    ("pause", "", "#777777", "pauses"),
    ("rollback", "D", "#CC79A7", "rollbacks"),
    ("loader-exit", "X", "#000000", "loader deaths"),
    ("resume", "D", "#000000", "resumes"),
)
MANY = 16  # with more workers, the bars get thinner


def timeline(run: Run, time: Axis) -> Picture | None:
    """Draw the timeline; None if there are no workers, or no time has passed."""
    found = lanes(run)
    if not run.workers or not found.span_s:
        return None
    rows = [row for row in JOB_ROWS if run.events_of(row[0])]
    bar = 0.36 if run.workers <= MANY else 0.17
    heights = [max(0.28 * len(rows), 0.02), bar * run.workers]
    figure = new_figure(WIDE, 1.5 + sum(heights))
    top, axes = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    _job(top, run, rows, time)
    _workers(axes, run, found, time)
    time.use(axes)
    figure.legend(handles=_legend(run, found), loc="outside lower center", ncols=5)
    alt = "a bar per worker over time, coloured by phase, with deaths and stalls; above, what happened to the job"
    return picture(figure, "timeline", "Workers over time", alt)


def _job(axes: Axes, run: Run, rows: list[tuple[str, str, str, str]], time: Axis) -> None:
    """Draw the job's events. A pause has its real length; its event is written when it is over."""
    for place, (kind, marker, colour, _) in enumerate(rows):
        table = run.numbers_of(kind)
        at = time.x(run, table)
        if not marker:
            lengths = np.nan_to_num(table["seconds"]) * float(time.end or 0.0) / run.span_s
            spans = list(zip(at - lengths, lengths, strict=True))
            axes.broken_barh(spans, (place - 0.2, 0.4), facecolors=colour, edgecolors=colour, linewidth=0.8)
        else:
            axes.plot(at, np.full(at.shape, place), marker, color=colour, linestyle="none", markersize=7)
    axes.set_yticks(range(len(rows)), [row[3] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(bottom=False, left=False)
    axes.grid(False)
    axes.spines[["bottom", "left"]].set_visible(False)


def _workers(axes: Axes, run: Run, found: Lanes, time: Axis) -> None:
    """Draw one image: 1,000 columns of 20 pixels per worker, and white between the bars."""
    palette = np.array([to_rgb(COLOUR_OF.get(word, OTHER)) for word in found.words])
    bars, height, columns = found.pixels.shape
    between = np.ones((bars, height // 5, columns, 3))
    image = np.concatenate([palette[found.pixels], between], 1).reshape(-1, columns, 3)
    extent = (0.0, float(time.end or 1.0), bars - 0.5 + 0.1, -0.5 + 0.1)
    axes.imshow(image, extent=extent, aspect="auto", interpolation="nearest")
    for kind, marker, colour, _ in WORKER_MARKS:
        for worker in range(bars):
            at = time.x(run, deaths(run, kind, worker))
            if not at.size:  # an empty line that is not clipped would extend the layout to the picture's corner
                continue
            row = np.full(at.shape, worker)
            axes.plot(at, row, marker, color=colour, markersize=8, markeredgecolor="white", clip_on=False)
    step = 1 if bars <= 2 * MANY else 4
    axes.set_yticks(range(0, bars, step), [f"worker {worker}" for worker in range(0, bars, step)])
    axes.tick_params(left=False)
    axes.grid(False)
    axes.spines["left"].set_visible(False)


def deaths(run: Run, kind: str, worker: int) -> ColumnTable:
    """Return the events of a worker by column, without workers that left on request: they did not die."""
    table = ColumnTable()
    for event in run.events_of(kind):
        if event.get("worker") == worker and event.get("kind") != "left":
            table.add(event.items())
    return table


def _legend(run: Run, found: Lanes) -> list[Patch | Line2D]:
    """Return legend entries only for what the picture contains."""
    phases: list[Patch | Line2D] = [
        Patch(facecolor=COLOUR_OF.get(word, OTHER), label=plain(word)) for word in found.used()
    ]
    marks: list[Patch | Line2D] = [
        Line2D([], [], color=colour, marker=marker, linestyle="none", label=word, markeredgecolor="white", markersize=8)
        for kind, marker, colour, word in WORKER_MARKS
        if any(event.get("kind") != "left" for event in run.events_of(kind))
    ]
    return phases + marks
