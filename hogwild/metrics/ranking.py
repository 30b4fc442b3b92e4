"""Metrics of recommenders: all items are ranked for each user with held-out items, and the best k compared with those.

    precision@k   hits / k                           hits: held-out items among the best k
    recall@k      hits / held-out items
    ndcg@k        sum of 1 / log2(1 + rank) over the hits, over that of the best ranking
    map@k         sum of precision@rank over the hits, over min(k, held-out items)
    mrr@k         1 / rank of the first hit; 0 without one
    auc           share of pairs of a held-out and another item that are in the right order; ties count half
    coverage@k    share of all items that are among somebody's best k

All but the last are means over the users with at least one held-out item. Items that a user has in the training data
are left out, as in a recommendation: they are not ranked, and not among the held-out items either. A list that is
shorter than k because of that has no hits beyond its end.

Workers share the users out as they do the samples of the validation data: whoever holds the lease of samples
[first, stop) of N ranks for the users [n * first / N, n * stop / N) of n. So each user counts once, whatever is redone.
Coverage is marked in shared memory, a byte for each item; who does a lease again marks the same items.

Imports numba: only a job with such metrics imports this module."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hogwild.kernels.pair_order import items_by_user
from hogwild.kernels.ranking import keep_new, rank, scratch_of
from hogwild.metrics.catalog import AUC
from hogwild.metrics.popularity import FORMULAS, kind_of

Tables = Callable[[], tuple[Any, Any, Any]]  # a model's `score_tables`
NAME = "metrics of all items"  # of the compiled kernels
AT_ONCE = 1 << 26  # scores between two beats: a tenth of a second


@dataclass(slots=True)
class Ranking:
    """The metrics `names` of a model with `score_tables`. `train`, `val`: arrays user, item int32 (N,); in `val` also
    rating (N,), and those below `least` are not held out. `marks`: for each coverage@k of `names` a row of bytes, one
    per item, of which those among the best become 1; shared by all workers."""

    names: Sequence[str]
    tables: Tables
    train: Mapping[str, np.ndarray]
    val: Mapping[str, np.ndarray]
    least: float
    marks: np.ndarray
    _known: tuple[np.ndarray, np.ndarray] = field(init=False)
    _users: np.ndarray | None = None
    _held: tuple[np.ndarray, np.ndarray] = field(init=False)

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        model: Any,
        train: Mapping[str, np.ndarray],
        val: Mapping[str, np.ndarray],
        marks: np.ndarray,
    ) -> "Ranking":
        """Return the metrics of a model with `score_tables` and, if a rating may be too low to be relevant,
        `least_relevant`."""
        return cls(names, model.score_tables, train, val, getattr(model, "least_relevant", -math.inf), marks)

    def sums(self, first: int, stop: int, beat: Callable[[], None]) -> list[float]:
        """Return (sum, number of users) of each metric, one after the other, for the share of samples [first, stop) of
        the validation data; (0, 0) for coverage. `beat` is called several times a second."""
        users, items, offsets = (_plain(table) for table in self.tables())
        if self._users is None:
            self._index(len(users))
        assert self._users is not None
        many, samples = len(self._users), len(self.val["user"])
        begin, end = many * first // samples, many * stop // samples
        k = max(k for _, k in map(kind_of, self.names))
        found, step = np.zeros((len(self.names), 2)), max(1, AT_ONCE // max(len(items), 64 * k))
        for at in range(begin, end, step):
            found += self._part(users, items, offsets, at, min(at + step, end))
            beat()
        return [float(word) for word in found.ravel()]

    def warm_up(self) -> None:
        """Call every kernel on next to nothing, so that it is compiled or loaded."""
        tables = np.zeros((1, 1), np.float32), np.zeros((3, 1), np.float32), np.zeros(3, np.float32)
        train, val = (
            {"user": np.zeros(2, np.int32), "item": np.array(items, np.int32), "rating": np.zeros(2, np.float32)}
            for items in ((1, 0), (2, 0))
        )
        little = Ranking(self.names, lambda: tables, train, val, 0.0, np.zeros((len(self.marks), 3), np.uint8))
        little.sums(0, 2, lambda: None)

    def _index(self, users: int) -> None:
        """Sort the data by user: their known items, and the held-out ones that are new to them."""
        starts, known, _ = items_by_user(self.train["user"], self.train["item"], users)
        begins, held, order = items_by_user(self.val["user"], self.val["item"], users)
        is_held = (self.val["rating"] if order is None else self.val["rating"][order]) >= self.least
        keep_new(begins, held, starts, known, is_held)
        counts = np.diff(np.append(0, np.cumsum(is_held))[begins])
        self._known, self._users = (starts, known), np.flatnonzero(counts)
        self._held = np.append(0, np.cumsum(counts[self._users])), held[is_held]

    def _part(self, users: np.ndarray, items: np.ndarray, offsets: np.ndarray, begin: int, end: int) -> np.ndarray:
        """Return the words (names, 2) of the users with held-out items [begin, end), and mark what covers."""
        assert self._users is not None
        kinds = [kind_of(name) for name in self.names]
        k, has_areas = max(k for _, k in kinds), AUC in self.names
        starts, held = self._held[0][begin : end + 1], self._held[1]
        held, starts = held[starts[0] : starts[-1]], starts - starts[0]
        top, hits = np.empty((end - begin, k), np.int32), np.empty((end - begin, k), np.uint8)
        areas = np.empty(end - begin)
        scratch = scratch_of(users.shape[1], k, len(held))
        data = (self._users[begin:end], users, items, offsets, *self._known, starts, held)
        rank(*data, has_areas, scratch, top, hits, areas)
        counts, marks, words = np.diff(starts), iter(self.marks), []
        for kind, at in kinds:
            if kind == "coverage":
                row = next(marks)
                row[top[:, :at][top[:, :at] >= 0]] = 1
                words.append((0.0, 0.0))
            else:
                values = areas[~np.isnan(areas)] if kind == AUC else FORMULAS[kind](hits[:, :at], counts)
                words.append((float(np.sum(values)), float(len(values))))
        return np.array(words)


def _plain(table: Any) -> np.ndarray:
    """Return a model's table, on whatever device and of whatever precision, as a kernel reads it."""
    array = np.asarray(table.detach().float().cpu() if hasattr(table, "detach") else table)
    return np.ascontiguousarray(array)
