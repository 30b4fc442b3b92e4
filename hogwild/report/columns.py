"""Long columns made short enough for a page: fewer rows, gaps, smoothing. Numbers only; no matplotlib."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hogwild.report.run_data import Floats

GAP = 10.0  # times the steps around it: nothing was recorded in between
SMOOTH_FROM = 100  # rows; shorter curves are not smoothed
WINDOWS = 150  # a smooth line has at most so many points, each the mean of an equal stretch


def thinned(columns: Sequence[Floats], most: int) -> NDArray[np.int64]:
    """Return at most about `most` rows of columns (n,): in stretches of equally many rows the lowest and the highest of
    every column, so that a spike of one record stays visible; and the first and the last row."""
    (rows,) = columns[0].shape
    if rows <= most or not columns:
        return np.arange(rows)
    stretches = max(1, most // (2 * len(columns)))
    starts = np.linspace(0, rows, stretches + 1).astype(np.int64)[:-1]
    stretch = np.repeat(np.arange(stretches), np.diff(starts, append=rows))
    places = [np.lexsort((sign * column, stretch))[starts] for column in columns for sign in (1.0, -1.0)]  # NaN last
    return np.unique(np.concatenate([[0, rows - 1], *places]))


def gaps(times: Floats) -> NDArray[np.int64]:
    """Return the rows before which nothing was recorded for long: GAP times as long as usual and as the steps beside
    it, since records of workers become rarer in a long job."""
    steps = np.nan_to_num(np.diff(times))
    if steps.size < 2 or not (steps > 0).any():
        return np.zeros(0, np.int64)
    usual = max(float(np.median(steps[steps > 0])), 1e-9)
    beside = np.maximum(np.append(steps[1:], 0.0), np.insert(steps[:-1], 0, 0.0))
    return np.flatnonzero(steps > GAP * np.maximum(usual, beside)) + 1


def smoothed(columns: Sequence[Floats]) -> list[Floats] | None:
    """Return the means of equal stretches of columns (n,), each without its missing values; None for few rows."""
    (rows,) = columns[0].shape
    if rows < SMOOTH_FROM:
        return None
    starts = np.linspace(0, rows, min(WINDOWS, rows // 10) + 1).astype(np.int64)[:-1]
    found = []
    for column in columns:
        is_there = np.isfinite(column)
        counts = np.add.reduceat(is_there.astype(np.float64), starts)
        sums = np.add.reduceat(np.where(is_there, column, 0.0), starts)
        found.append(np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan))
    return found


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
