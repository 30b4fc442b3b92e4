"""How every picture looks, and how a figure becomes a PNG. Needs matplotlib (`report` extra).

Figures are objects of their own (no pyplot, so no list of open figures and no window system); the user's matplotlibrc
is left out for the time of drawing, so that a report looks the same on every machine."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterable, Iterator

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from hogwild.formatting import binary_unit
from hogwild.report.page import Picture
from hogwild.report.run_data import Floats

# Okabe and Ito's colours, which every kind of colour vision tells apart, without the yellow that white swallows.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
GREY = "#8a8a8a"
DPI = 130
MOST_NAMED = 7  # so many lines have colours and names of their own; more are a gradient


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Around all that makes or draws a figure. Sets matplotlib's settings for that time, so for one thread at once.

    Silent about two things that are nobody's fault: a font cache that is being made or cannot be kept (a warning of
    matplotlib's log), and a name in a script that the font has no pictures for (a box is drawn)."""
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
    """Inches; `Figure` alone, whose canvas draws into memory."""
    figure = Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def picture(figure: Figure, name: str, title: str, alt: str, note: str = "") -> Picture:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    width, height = (round(inches * DPI) for inches in figure.get_size_inches())
    return Picture(name, title, alt, stream.getvalue(), width, height, note)


def plain(text: object) -> str:
    """As it is written: a dollar sign of the user's begins no formula, and no line is endless."""
    words = "".join(character if character.isprintable() else "?" for character in str(text))
    return (words if len(words) <= 40 else f"{words[:39]}…").replace("$", r"\$")


def colour_of(place: int, count: int) -> str:
    """Of one line of so many."""
    if count <= MOST_NAMED:
        return COLOURS[place]
    return matplotlib.colors.to_hex(matplotlib.colormaps["viridis"](0.92 * place / (count - 1)))


def legend_above(axes: Axes, columns: int = 6) -> None:
    """Above the plot, at its right: there is no corner of a curve that data can be trusted to leave free."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=columns, borderaxespad=0.2, handlelength=1.4)


def use_log(axes: Axes) -> None:
    """A logarithmic y axis with plain numbers on it, also between the powers of ten where there are few of them."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high < 1000 * low:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def from_zero(axes: Axes) -> None:
    """A y axis from 0 to a little above what was drawn: a constant would else lie on the edge."""
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
