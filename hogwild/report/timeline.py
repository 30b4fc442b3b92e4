"""Timeline of the workers: a bar per worker, coloured by phase, with its deaths and stalls; above, a row for each kind
of event of the whole job. Needs matplotlib.

A bar is pixels: each column is divided among the phases in proportion. There are two sources: the records give a
worker's main phase, once per 30 s; the events give the start, readiness and end of its process to the millisecond. If
they disagree, the events win."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from hogwild.report.page import Picture
from hogwild.report.run_data import Floats, Run
from hogwild.report.style import WIDE, Axis, new_figure, picture, plain

COLUMNS = 1000
HEIGHT = 20  # pixels of a bar: a share of 1/20 is visible
ABSENT, STARTING, ALIVE = "not there", "starting", "alive, phase not recorded"
BOOTING = "booting"  # the records' word for a process that is starting
GAP = 10.0  # a record covers the time since the previous one, unless that is so many times the usual interval
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


@dataclass(frozen=True, slots=True)
class PhaseBars:
    """Bars: `pixels` (workers, HEIGHT, COLUMNS) are indices into `words`; the columns divide 0 … `span_s` of
    running."""

    pixels: NDArray[np.int64]
    words: tuple[str, ...]
    span_s: float

    def used(self) -> list[str]:
        """Return the words that occur, without ABSENT."""
        words = dict.fromkeys(self.words[place] for place in np.unique(self.pixels))
        return [word for word in words if word != ABSENT]


def phase_bars(run: Run) -> PhaseBars:
    """Return the bars of every worker of the run: none without workers, only ABSENT without any time."""
    records, span_s = run.records, run.span_s
    words = (ABSENT, STARTING, ALIVE, *(STARTING if name == BOOTING else name for name in records.phase_names))
    edges = np.linspace(0.0, span_s, COLUMNS + 1)
    times = run.clock.elapsed(records.told["time"])
    pixels = np.zeros((run.workers, HEIGHT, COLUMNS), np.int64)
    for worker in range(run.workers):
        known = list(lives(run, worker))
        # A worker without events counts as alive all the time.
        shares = _alive(known or [(ALIVE, 0.0, span_s)], edges, len(words))
        phases = records.phases[worker]
        if known:
            # A 'starting' record was made after its predecessor's death, and would overwrite that process's last
            # moments; the events know the start.
            starting = [number for number, name in enumerate(records.phase_names) if name == BOOTING]
            phases = np.where(np.isin(phases, starting), np.nan, phases)
        _put_phases(shares, times, phases, edges)
        pixels[worker] = _stacked(shares)
    return PhaseBars(pixels, words, span_s)


def lives(run: Run, worker: int) -> Iterator[tuple[str, float, float]]:
    """Yield STARTING and ALIVE with begin and end, in seconds of running time."""
    begun, word = 0.0, ABSENT
    for event in run.events:
        kind = event["event"]
        # A killed supervisor's workers have no exit event: they died with it.
        over = kind in ("start", "end") or (event.get("worker") == worker and kind in ("exit", "spawn", "ready"))
        if not over:
            continue
        at = float(run.clock.elapsed(event["time"]))
        if word != ABSENT and at > begun:
            yield word, begun, at
        begun, word = at, {"spawn": STARTING, "ready": ALIVE}.get(kind, ABSENT)
    if word != ABSENT and run.span_s > begun:
        yield word, begun, run.span_s


def _alive(known: Sequence[tuple[str, float, float]], edges: Floats, words: int) -> Floats:
    """Return (words, COLUMNS): the share of each column's time in which the process was starting or alive. The rest is
    ABSENT. `known`: as `lives` yields them."""
    shares = np.zeros((words, COLUMNS))
    width = edges[1] - edges[0]
    if width > 0:
        for word, begin, end in known:
            overlap = np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0.0, None)
            shares[1 if word == STARTING else 2] += overlap / width
    shares[0] = np.clip(1.0 - shares.sum(0), 0.0, None)
    return shares


def _put_phases(shares: Floats, times: Floats, phases: Floats, edges: Floats) -> None:
    """Divide a process's lifetime among the phases in the records. A record covers the time since the previous one: if
    a column holds several records, each gets its share; a record that spans several columns is in each."""
    known = np.isfinite(times) & np.isfinite(phases)
    times, phases = times[known], phases[known].astype(np.int64)
    if not times.size:
        return
    usual = float(np.median(np.diff(times))) if times.size > 1 else np.inf
    first = np.minimum(np.searchsorted(times, edges[:-1]), times.size - 1)  # after the last record: use that one
    last = np.clip(np.searchsorted(times, edges[1:]), first + 1, times.size)
    there = np.maximum(times[first] - edges[1:], edges[:-1] - times[first]) <= GAP * usual
    is_phase = phases[None, :] == np.arange(len(shares) - 3)[:, None]
    sums = np.concatenate([np.zeros((len(shares) - 3, 1)), np.cumsum(is_phase, 1)], 1)
    counts = sums[:, last] - sums[:, first]
    parts = counts / np.maximum(counts.sum(0), 1.0)
    shares[3:] = np.where(there, shares[2] * parts, 0.0)
    shares[2] = np.where(there, 0.0, shares[2])


def _stacked(shares: Floats) -> NDArray[np.int64]:
    """Turn shares (words, COLUMNS) that sum to 1 into (HEIGHT, COLUMNS) indices of words, the first word at the top."""
    bounds = np.cumsum(shares, 0)[:-1]
    middles = (np.arange(HEIGHT) + 0.5) / HEIGHT
    places: NDArray[np.int64] = (middles[:, None, None] > bounds[None] + 1e-9).sum(1)
    return places


# ---- drawing ---------------------------------------------------------------------------------------------------------


def timeline(run: Run, time: Axis) -> Picture | None:
    """Draw the timeline; None if there are no workers, or no time has passed."""
    found = phase_bars(run)
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


def _workers(axes: Axes, run: Run, found: PhaseBars, time: Axis) -> None:
    """Draw one image: 1,000 columns of 20 pixels per worker, and white between the bars."""
    palette = np.array([to_rgb(COLOUR_OF.get(word, OTHER)) for word in found.words])
    bars, height, columns = found.pixels.shape
    between = np.ones((bars, height // 5, columns, 3))
    image = np.concatenate([palette[found.pixels], between], 1).reshape(-1, columns, 3)
    extent = (0.0, float(time.end or 1.0), bars - 0.5 + 0.1, -0.5 + 0.1)
    axes.imshow(image, extent=extent, aspect="auto", interpolation="nearest")
    for kind, marker, colour, _ in WORKER_MARKS:
        for worker in range(bars):
            at = time.x(run, run.numbers_of(kind, worker))
            if not at.size:  # an empty line that is not clipped would extend the layout to the picture's corner
                continue
            row = np.full(at.shape, worker)
            axes.plot(at, row, marker, color=colour, markersize=8, markeredgecolor="white", clip_on=False)
    step = 1 if bars <= 2 * MANY else 4
    axes.set_yticks(range(0, bars, step), [f"worker {worker}" for worker in range(0, bars, step)])
    axes.tick_params(left=False)
    axes.grid(False)
    axes.spines["left"].set_visible(False)


def _legend(run: Run, found: PhaseBars) -> list[Patch | Line2D]:
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
