"""A suite's figures in one picture: how many times better than asked each of them is, every run a dot."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.row import Row

MET, MISSED = "tab:green", "tab:red"
INCHES_A_ROW = 0.55


def plot(suite: str, rows: Sequence[Row], file: Path) -> None:
    """Replaces `file` (PNG). Rows without a target are left out; they are in the table."""
    asked = [row for row in rows if row.target]
    if not asked:
        return
    figure = Figure(figsize=(9, 1.2 + INCHES_A_ROW * len(asked)), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(reversed(asked)):
        _draw(axes, place, row)
    axes.set_yticks(range(len(asked)), [f"{row.figure}\n{_words(row)}" for row in reversed(asked)], fontsize=8)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(left=min(0.9, axes.get_xlim()[0]))
    for of_ticks in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        of_ticks("{x:g}")
    axes.set_xlabel("times better than asked (1: just as asked; dots: runs; bars: their median)")
    axes.set_title(suite, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150)


def _draw(axes: Axes, place: int, row: Row) -> None:
    times = [_times_better(row, run) for run in row.runs]
    color = MET if row.met else MISSED if row.met is False else "tab:gray"
    axes.barh(place, _times_better(row, row.value) - 1.0, left=1.0, height=0.5, color=color, alpha=0.5)
    axes.plot(times, [place] * len(times), "o", color=color, markersize=4)


def _times_better(row: Row, value: float) -> float:
    assert row.target
    return row.target / value if row.smaller_is_better else value / row.target


def _words(row: Row) -> str:
    bound = "at most" if row.smaller_is_better else "at least"
    return f"{row.value:.3g} {row.unit}, asked {bound} {row.target:g}".replace(" ,", ",")
