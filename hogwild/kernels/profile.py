"""Which rows are worth a private copy, from how often the data names each. Pure, no numba.

A line of memory that two workers write at random was last written by the other one half of the time, however rarely
either comes by: what counts is how many accesses go to shared lines. A private copy makes a row's accesses free of that
and costs one read and write of the row per flush. So a row is worth a copy if a worker comes by several times between
two flushes, and as long as the copies of all fit into a core's cache beside what else is read."""

from dataclasses import dataclass

import numpy as np

# Accesses between two flushes: one or two milliseconds of a linear kernel (imdb: 4,096 rows of 137 non-zeros).
ACCESSES_PER_FLUSH = 1 << 19
# Below that many expected accesses in one interval the flush costs as much as it saves.
LEAST_VISITS = 1.0
HOT_BYTES = 128 << 10  # of private copies: a quarter to an eighth of a core's second-level cache
# With copies of so few rows everything is private, and no kernel has to ask which are (imdb: 350 KB, 5 % per flush).
WHOLE_BYTES = 512 << 10
LEAST_SHARE = 0.1  # of all accesses; what saves less is not worth a second copy of anything


@dataclass(frozen=True, slots=True)
class HotChoice:
    """The rows chosen, most frequent first, and what they are among all."""

    rows: np.ndarray  # (H,) int32
    of: int  # rows there are
    share: float  # of all accesses that go to `rows`, 0 to 1

    @property
    def words(self) -> str:
        """For the log."""
        if not len(self.rows):
            return f"none of {self.of:,} rows has a private copy: accesses are spread over too many rows"
        return f"{len(self.rows):,} of {self.of:,} rows have private copies: {self.share:.0%} of all accesses"


def choose_hot(counts: np.ndarray, samples: int, width_bytes: int) -> HotChoice:
    """The rows to be copied, perhaps none. `counts` (R,) int64: how many times the samples name each row; `width_bytes`
    of one row. Raises ValueError for fewer than one byte."""
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
