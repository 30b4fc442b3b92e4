"""Choice of the rows that get a private copy, from how often the data names each. Pure, no numba.

If two workers write a cache line at random, the other worker was the last writer half of the time, however rare the
accesses are; so the number of accesses to shared lines is what matters. A private copy removes this cost and adds one
read and write of the row per flush. So a row is worth a copy if a worker uses it several times between two flushes, as
long as all copies fit into a core's cache together with the other data."""

from dataclasses import dataclass

import numpy as np

# Accesses between two flushes: one or two milliseconds of a linear kernel (imdb: 4,096 rows of 137 non-zeros).
ACCESSES_PER_FLUSH = 1 << 19
# With fewer expected accesses per interval, a flush costs as much as it saves.
LEAST_VISITS = 1.0
HOT_BYTES = 128 << 10  # of private copies: a quarter to an eighth of a core's second-level cache
# If all rows fit into this, all are private, and no kernel has to check which (imdb: 350 KB, 5 % per flush).
WHOLE_BYTES = 512 << 10
LEAST_SHARE = 0.1  # of all accesses; below that a second copy does not pay


@dataclass(frozen=True, slots=True)
class HotChoice:
    """The chosen rows, most frequent first, and their share of all accesses."""

    rows: np.ndarray  # (H,) int32
    of: int  # number of all rows
    share: float  # of all accesses that go to `rows`, 0 to 1

    @property
    def text(self) -> str:
        """The choice as text for the log."""
        if not len(self.rows):
            return f"none of {self.of:,} rows has a private copy: accesses are spread over too many rows"
        return f"{len(self.rows):,} of {self.of:,} rows have private copies: {self.share:.0%} of all accesses"


def choose_hot(counts: np.ndarray, samples: int, width_bytes: int) -> HotChoice:
    """Return the rows to copy, possibly none. `counts` (R,) int64: how often the samples name each row; `width_bytes`:
    size of one row. Raises ValueError for less than one byte."""
    if width_bytes < 1:
        raise ValueError(f"a row of {width_bytes} bytes")
    total = int(counts.sum())
    if not total or samples < 2:
        return HotChoice(np.empty(0, np.int32), len(counts), 0.0)
    order = np.argsort(-counts, kind="stable")
    if len(counts) * width_bytes <= WHOLE_BYTES:
        return HotChoice(order.astype(np.int32), len(counts), 1.0)
    visits = counts[order] * (ACCESSES_PER_FLUSH / total)
    most = min(int(np.count_nonzero(visits >= LEAST_VISITS)), HOT_BYTES // width_bytes)
    share = float(counts[order[:most]].sum()) / total
    if share < LEAST_SHARE:
        most, share = 0, 0.0
    return HotChoice(order[:most].astype(np.int32), len(counts), share)
