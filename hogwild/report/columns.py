"""Curves from long columns: fewer points, gaps, smoothing. Numbers only; no matplotlib."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hogwild.report.run_data import Floats

PIXEL_COLUMNS = 1200  # slightly more than the width of the plots: a curve has at most four points per pixel column
GAP = 10.0  # times the usual distance between records: nothing was recorded in between
SMOOTH_FROM = 100  # points; shorter curves are not smoothed
WINDOWS = 60  # a smooth line has so many points, each the mean of an equal stretch


class Curve(NamedTuple):
    """Points of a curve. `x` and `y` (n,) float64; a NaN in both breaks the line."""

    x: Floats
    y: Floats


def curve(x: Floats, y: Floats, *, columns: int = PIXEL_COLUMNS, breaks: bool = True) -> Curve:
    """Return the points (n,) and (n,) where both are finite, thinned out, with breaks at long gaps in the records."""
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    kept = _kept(x, y, columns)
    if not breaks or x.size < 3:
        return Curve(x[kept], y[kept])
    steps = np.diff(x)
    usual = float(np.median(steps[steps > 0])) if (steps > 0).any() else np.inf
    gaps = np.flatnonzero(steps > GAP * usual)
    kept = np.union1d(kept, np.concatenate([gaps, gaps + 1]))
    at = np.searchsorted(kept, gaps + 1)
    return Curve(np.insert(x[kept], at, np.nan), np.insert(y[kept], at, np.nan))


def _kept(x: Floats, y: Floats, columns: int) -> NDArray[np.int64]:
    """Return the places of the first, lowest, highest and last point in each pixel column: the picture is the same as
    with all points, which take seconds to draw, and a spike of one record stays visible."""
    if x.size <= 4 * columns:
        return np.arange(x.size)
    low, high = x.min(), x.max()
    column = np.zeros(x.size, np.int64) if high == low else ((x - low) / (high - low) * (columns - 1)).astype(np.int64)
    by_height = np.lexsort((y, column))
    starts = np.flatnonzero(np.diff(column[by_height], prepend=-1))
    ends = np.append(starts[1:], x.size) - 1
    by_place = np.argsort(column, kind="stable")  # after a rollback x goes back, and a column has two visits
    return np.unique(np.concatenate([by_height[starts], by_height[ends], by_place[starts], by_place[ends]]))


def smooth(x: Floats, y: Floats) -> Curve | None:
    """Return the means of equally long stretches of the points, at their middle; None if there are too few points. Same
    arguments as `curve`."""
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if x.size < SMOOTH_FROM:
        return None
    edges = np.linspace(0, x.size, WINDOWS + 1).astype(np.int64)[:-1]
    sizes = np.diff(np.append(edges, x.size))
    return Curve(np.add.reduceat(x, edges) / sizes, np.add.reduceat(y, edges) / sizes)


def spans_decades(*values: Floats) -> bool:
    """Return whether a logarithmic axis is worthwhile: all values positive, and the highest more than 30 times the
    lowest. Values that are not finite are left out."""
    every = np.concatenate([value[np.isfinite(value)] for value in values]) if values else np.empty(0)
    return bool(every.size and every.min() > 0 and every.max() > 30 * every.min())


def percentile(counts: Floats, share: float) -> int:
    """Return the lowest value that at least `share` of a histogram's entries do not exceed; counts (bins,), bin i
    counts value i. 0 for an empty histogram."""
    sums = np.cumsum(counts)
    return int(np.searchsorted(sums, share * sums[-1])) if sums.size and sums[-1] > 0 else 0
