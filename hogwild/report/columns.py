"""Long columns as curves that a picture can show: fewer points, gaps, a smooth line. Numbers only; no matplotlib."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hogwild.report.run_data import Floats

PIXEL_COLUMNS = 1200  # what the plots are wide, a little more: a curve never has more than four points for each
GAP = 10.0  # times the usual distance between records: nobody recorded in between
SMOOTH_FROM = 100  # points; fewer are shown as they are
WINDOWS = 60  # a smooth line is the mean over this part of the points


@dataclass(frozen=True, slots=True)
class Curve:
    """`x` and `y` (n,) float64; a NaN in both breaks the line."""

    x: Floats
    y: Floats

    @property
    def is_empty(self) -> bool:
        return not self.x.size


def curve(x: Floats, y: Floats, *, columns: int = PIXEL_COLUMNS, breaks: bool = True) -> Curve:
    """(n,) and (n,): the points where both are finite, thinned out, broken where records are missing for long."""
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    kept = _kept(x, y, columns)
    if not breaks or x.size < 3:
        return Curve(x[kept], y[kept])
    gaps = _gaps(np.diff(x))
    kept = np.union1d(kept, np.concatenate([gaps, gaps + 1]))
    at = np.searchsorted(kept, gaps + 1)
    return Curve(np.insert(x[kept], at, np.nan), np.insert(y[kept], at, np.nan))


def _gaps(steps: Floats) -> NDArray[np.int64]:
    forward = steps[steps > 0]
    usual = float(np.median(forward)) if forward.size else np.inf
    return np.flatnonzero(steps > GAP * usual)


def _kept(x: Floats, y: Floats, columns: int) -> NDArray[np.int64]:
    """The places of the first, lowest, highest and last point in each pixel column. The picture is the same as that of
    all points (nothing between them would be another pixel), and a spike of one record is still seen; drawing a
    hundred thousand points takes seconds, and every n-th of them would lose the spikes."""
    if x.size <= 4 * columns:
        return np.arange(x.size)
    low, high = x.min(), x.max()
    column = np.zeros(x.size, np.int64) if high == low else ((x - low) / (high - low) * (columns - 1)).astype(np.int64)
    by_height = np.lexsort((y, column))
    starts = np.flatnonzero(np.diff(column[by_height], prepend=-1))
    ends = np.append(starts[1:], x.size) - 1
    by_place = np.argsort(column, kind="stable")  # where a rollback goes back in x, a column has two visits
    return np.unique(np.concatenate([by_height[starts], by_height[ends], by_place[starts], by_place[ends]]))


def smooth(x: Floats, y: Floats) -> Curve | None:
    """The mean of each of some equally long stretches of the points, at its middle; None where there are too few
    points for one. Same arguments as `curve`."""
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if x.size < SMOOTH_FROM:
        return None
    edges = np.linspace(0, x.size, WINDOWS + 1).astype(np.int64)[:-1]
    sizes = np.diff(np.append(edges, x.size))
    return Curve(np.add.reduceat(x, edges) / sizes, np.add.reduceat(y, edges) / sizes)


def spans_decades(*values: Floats) -> bool:
    """All positive, and the highest more than thirty times the lowest: worth a logarithmic axis. What is not finite is
    left out."""
    every = np.concatenate([value[np.isfinite(value)] for value in values]) if values else np.empty(0)
    return bool(every.size and every.min() > 0 and every.max() > 30 * every.min())


def percentile(counts: Floats, share: float) -> int:
    """Of a histogram (bins,) whose bin i counts what has the value i: the lowest value that `share` of all are not
    above. 0 for an empty one."""
    sums = np.cumsum(counts)
    return int(np.searchsorted(sums, share * sums[-1])) if sums.size and sums[-1] > 0 else 0
