"""Ranking metrics of the simplest recommender: everybody gets what most others have. A model that is not better has
learnt nothing about anybody. Also the formulas of the metrics, by hits.

NumPy alone, since the supervisor computes it: each user's list is the order of all items without those that the user
has, and the t-th that is left stands behind as many of these as `place - number before it <= t`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hogwild.metrics.catalog import AUC, RANKED

AT_ONCE = 1 << 21  # items in lists

Arrays = Mapping[str, np.ndarray]


def kind_of(name: str) -> tuple[str, int]:
    """Return the metric and k of `ndcg@10`; (auc, 1) for auc, which looks at no best items."""
    found = RANKED.match(name)
    return (found.group(1), int(found.group(2))) if found is not None else (AUC, 1)


def popularity(names: Sequence[str], items: int, train: Arrays, val: Arrays, least: float) -> dict[str, float]:
    """Return the values of the metrics `names` (`ranking.py`) for `items` ranked by their number of users in `train`,
    of equal ones the lower number first. A metric without any user is left out."""
    own = _once(train["user"].astype(np.int64) * items + train["item"])
    counts = np.bincount(own % items, minlength=items)
    order = np.argsort(-counts, kind="stable")
    place = np.empty(items, np.int64)
    place[order] = np.arange(items)
    known = np.sort(own // items * items + place[own % items])  # a user's, in the order of the list
    is_held = val["rating"] >= least
    held = _once(val["user"][is_held].astype(np.int64) * items + place[val["item"][is_held]])
    held = held[~_are_in(known, held)]
    who, first = np.unique(held // items, return_index=True)
    ends = np.append(first, len(held))
    k = max(at for _, at in map(kind_of, names))
    values: dict[str, list[np.ndarray]] = {name: [] for name in names}
    covered = {name: np.zeros(items, np.bool_) for name in names if name.startswith("coverage@")}
    size = max(1, AT_ONCE // k)
    for begin in range(0, len(who), size):
        users = who[begin : begin + size]
        mine = held[ends[begin] : ends[begin + len(users)]]
        theirs = known[np.searchsorted(known, users[0] * items) : np.searchsorted(known, (users[-1] + 1) * items)]
        lists = _lists(users, theirs, items, k)
        hits = _are_in(mine, users[:, None] * items + lists) & (lists < items)
        many = np.diff(ends[begin : begin + len(users) + 1])
        for name in names:
            kind, at = kind_of(name)
            if kind == "coverage":
                covered[name][order[(part := lists[:, :at])[part < items]]] = True
            elif kind == AUC:
                values[name].append(_areas(users, mine, theirs, many, counts[order]))
            else:
                values[name].append(FORMULAS[kind](hits[:, :at].astype(np.uint8), many))
    found = {name: np.concatenate(parts) for name, parts in values.items() if parts}
    means = {name: float(each.mean()) for name, each in found.items() if len(each)}
    means |= {name: float(marks.mean()) for name, marks in covered.items()}
    return {name: means[name] for name in names if name in means}


def _once(keys: np.ndarray) -> np.ndarray:
    """Return the different keys, sorted. Of ten million `np.unique` makes a hash table, in 17 s instead of 1."""
    keys.sort()
    found: np.ndarray = keys[np.diff(keys, prepend=-1) != 0]
    return found


def _are_in(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return whether each of `wanted` is among the sorted `known`."""
    if not len(known):
        return np.zeros(wanted.shape, np.bool_)
    found: np.ndarray = known[np.searchsorted(known, wanted).clip(max=len(known) - 1)] == wanted
    return found


def _lists(users: np.ndarray, known: np.ndarray, items: int, k: int) -> np.ndarray:
    """Return the places (B, k) in the order of all items that each user's list has; `items` and more: beyond its
    end."""
    starts = np.searchsorted(known, users * items)
    owner = np.searchsorted(users, known // items)
    is_theirs = users[owner.clip(max=len(users) - 1)] == known // items
    before = np.arange(len(known)) - starts[owner.clip(max=len(users) - 1)]
    width = items + k
    shifted = (owner * width + known % items - before)[is_theirs]
    base = np.arange(len(users))[:, None] * width
    wanted = np.arange(k)
    return wanted + np.searchsorted(shifted, base + wanted, "right") - np.searchsorted(shifted, base)


def _areas(users: np.ndarray, held: np.ndarray, known: np.ndarray, many: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the area of each user who has other items; `counts` (items,) by place."""
    items, most = len(counts), int(counts.max(initial=0)) + 1
    owner = np.repeat(np.arange(len(users)), many)
    count, above = counts[held % items], np.sort(counts)

    def below(rows: np.ndarray, side: Any) -> np.ndarray:
        """Return how many of a user's `rows` have less than the held-out item, or (side right) not more."""
        keys = np.sort(rows // items * most + counts[rows % items])
        base = users[owner] * most
        found: np.ndarray = np.searchsorted(keys, base + count, side) - np.searchsorted(keys, base)
        return found

    right = np.zeros(len(held))
    for side in ("left", "right"):
        right += np.searchsorted(above, count, side) - below(known, side) - below(held, side)
    own = np.searchsorted(known, (users + 1) * items) - np.searchsorted(known, users * items)
    others = items - own - many
    sums = np.bincount(owner, right / 2, len(users))
    is_there = others > 0
    found: np.ndarray = sums[is_there] / (others * many)[is_there]
    return found


# ---- of one user: hits (n, k) 0 or 1, held-out items (n,) ------------------------------------------------------------


def _ndcg(hits: np.ndarray, held: np.ndarray) -> Any:
    gains = 1.0 / np.log2(np.arange(2, hits.shape[1] + 2))
    return hits @ gains / np.cumsum(gains)[np.minimum(held, len(gains)) - 1]


def _map(hits: np.ndarray, held: np.ndarray) -> Any:
    precision = np.cumsum(hits, 1) / np.arange(1, hits.shape[1] + 1)
    return (precision * hits).sum(1) / np.minimum(held, hits.shape[1])


FORMULAS: Mapping[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "precision": lambda hits, held: hits.mean(1),
    "recall": lambda hits, held: hits.sum(1) / held,
    "ndcg": _ndcg,
    "map": _map,
    "mrr": lambda hits, held: hits.any(1) / (1.0 + hits.argmax(1)),
}
