"""The look of all pictures, their axes, and the conversion of a figure to PNG. Needs matplotlib (`report` extra).

Figures are separate objects (no pyplot, so no list of open figures and no window system). The user's matplotlibrc is
ignored while drawing, so that a report looks the same on every machine."""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from hogwild.formatting import binary_unit, time_unit
from hogwild.report.page import Picture
from hogwild.report.run_data import ColumnTable, Floats, Run

# Okabe and Ito's colours, which all kinds of colour vision can distinguish, without the yellow, which is invisible on
# white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#8a8a8a"
DPI = 130
WIDE = 9.0  # inches: full width of the page
HALF = 6.4
ROW = 2.1
MARGIN = 1.01  # of the axis' end, so that the last events are not cut in half
MOST_NAMED = 7  # up to so many lines have their own colours and names; more form a gradient


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Set matplotlib's settings while figures are made or drawn; only one thread at a time.

    Silences two harmless warnings: a font cache that is being built or cannot be stored (matplotlib's log), and a
    script that the font cannot show (boxes are drawn)."""
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with matplotlib.rc_context(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"Glyph \d+ .*missing from", category=UserWarning)
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(
                {
                    "axes.spines.top": False,
                    "axes.spines.right": False,
                    "axes.titlelocation": "left",
                    "axes.titlesize": 11,
                    "axes.grid": True,
                    "grid.color": "#e6e6e6",
                    "axes.axisbelow": True,
                    "legend.frameon": False,
                    "legend.fontsize": 9,
                    "font.size": 10,
                    "lines.linewidth": 1.4,
                }
            )
            yield
    finally:
        log.setLevel(level)


def new_figure(width: float, height: float) -> Figure:
    """Return a figure of this size in inches; without pyplot, its canvas draws into memory."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def picture(figure: Figure, name: str, title: str, alt: str, note: str = "") -> Picture:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    width, height = (round(inches * DPI) for inches in figure.get_size_inches())
    return Picture(name, title, alt, stream.getvalue(), width, height, note)


def plain(text: object) -> str:
    """Return the text literally: a dollar sign starts no formula, and long lines are cut."""
    words = "".join(character if character.isprintable() else "?" for character in str(text))
    return (words if len(words) <= 40 else f"{words[:39]}…").replace("$", r"\$")


def colour_of(place: int, count: int) -> str:
    """Return the colour of line `place` of `count`."""
    if count <= MOST_NAMED:
        return COLOURS[place]
    return matplotlib.colors.to_hex(matplotlib.colormaps["viridis"](0.92 * place / (count - 1)))


def legend_above(axes: Axes, columns: int = 6) -> None:
    """Put the legend above the plot, at the right: data may reach every corner of the plot."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=columns, borderaxespad=0.2, handlelength=1.4)


def use_log(axes: Axes) -> None:
    """Use a logarithmic y axis with plain numbers, also between powers of ten if there are few of them."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 1000 * low:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def from_zero(axes: Axes) -> None:
    """Let the y axis run from 0 to slightly above the data: otherwise a constant would lie on the edge."""
    highest = float(axes.dataLim.y1)
    axes.set_ylim(0, 1.08 * highest if np.isfinite(highest) and highest > 0 else 1.0)


def use_rate(axes: Axes, what: str) -> None:
    axes.set_ylabel(what)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    from_zero(axes)


def use_bytes(axes: Axes, columns: Iterable[Floats]) -> None:
    highest = max((float(np.nanmax(column)) for column in columns if np.isfinite(column).any()), default=0.0)
    word, size = binary_unit(highest)
    axes.set_ylabel(f"memory ({word})")
    axes.set_yticks([tick * size for tick in MaxNLocator(5).tick_values(0.0, highest / size)])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))
    axes.set_ylim(0, 1.05 * max(highest, 1.0))


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
