"""Ratings to measure with, of MovieLens-25M's shape, made from a seed: no large rating file may be passed on.

    score   = user's bias + item's bias + user . item + noise, the product of rank RANK
    rating  = 3.5 + score, rounded to halves, cut to 0.5 … 5.0
    users   have log-normally many ratings, LEAST or more; items are drawn by a power law, (rank + BEND)^-POWER

The noise is 0.75, about what the best models leave of MovieLens. A user's ratings are of different items: what is drawn
twice is dropped, so SPARE times as many are drawn, and what is too much is taken out at random."""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

USERS, ITEMS, RATINGS = 162_000, 59_000, 25_000_000
RANK, POWER, BEND = 12, 1.1, 30.0  # BEND: the first items are about equally popular, as the best known films are
BIAS, PRODUCT, NOISE = 0.4, 0.5, 0.75  # standard deviations
LEAST, SPARE = 20, 1.22
AT_ONCE = 1 << 19  # ratings

Table: TypeAlias = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of the data. `test`: the share that is held back."""

    users: int = USERS
    items: int = ITEMS
    ratings: int = RATINGS
    test: float = 0.1

    @classmethod
    def part(cls, share: float) -> "Shape":
        """A share of the users, items and ratings of MovieLens-25M."""
        return cls(*(max(200, int(share * whole)) for whole in (USERS, ITEMS, RATINGS)))


HUNDRED_THOUSAND, MILLION = Shape(943, 1682, 100_000), Shape(6_040, 3_706, 1_000_000)  # of MovieLens-100K and -1M


def tables(shape: Shape = Shape(), seed: int = 1) -> tuple[Table, Table]:
    """(train, test), each `user`, `item` (N,) int32 and `rating` (N,) float32, sorted by user and item. No user or item
    occurs in `test` alone."""
    rng = np.random.default_rng(seed)
    user, item = _pairs(shape, rng)
    rating = _ratings(user, item, shape, rng)
    held = rng.random(len(user), np.float32) < shape.test
    held[_first(user, shape.users)] = held[_first(item, shape.items)] = False
    whole = {"user": user, "item": item, "rating": rating}
    return {key: value[~held] for key, value in whole.items()}, {key: value[held] for key, value in whole.items()}


def _pairs(shape: Shape, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(user, item) (N,) int32, sorted, each pair once."""
    activity = rng.lognormal(0.0, 1.2, shape.users)
    popularity = (np.arange(shape.items) + BEND) ** -POWER
    popularity = popularity[rng.permutation(shape.items)]  # an item's number says nothing about it
    mean = SPARE * shape.ratings / shape.users
    counts = np.round(LEAST + activity * (max(0.0, mean - LEAST) / activity.mean())).astype(np.int64)
    counts = np.minimum(counts, shape.items // 4)
    user = np.repeat(np.arange(shape.users, dtype=np.int64), counts)
    drawn = _draw(popularity, len(user), rng)
    key = user * shape.items + drawn
    key.sort()
    key = key[np.concatenate(([True], key[1:] != key[:-1]))]
    if len(key) > shape.ratings:
        key = np.delete(key, rng.choice(len(key), len(key) - shape.ratings, replace=False, shuffle=False))
    return (key // shape.items).astype(np.int32), (key % shape.items).astype(np.int32)


def _draw(weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` numbers, each with its weight: by a table of guesses (Chen and Asau 1974), not by a binary search."""
    edges = np.cumsum(weights / weights.sum())
    edges[-1] = 1.0
    size = 1 << 22
    guess = np.searchsorted(edges, np.arange(size) / size, side="right").astype(np.int32)
    found = np.empty(count, np.int32)
    for first in range(0, count, AT_ONCE):
        part = rng.random(min(AT_ONCE, count - first))
        chosen = guess[(part * size).astype(np.int32)]
        while (short := np.flatnonzero(edges[chosen] <= part)).size:  # the cell of the table holds several
            chosen[short] += 1
        found[first : first + len(part)] = chosen
    return found


def _ratings(user: np.ndarray, item: np.ndarray, shape: Shape, rng: np.random.Generator) -> np.ndarray:
    """(N,) float32"""
    width = np.float32(np.sqrt(PRODUCT) / RANK**0.25)  # so that a product of two rows deviates by PRODUCT
    users, items = (width * rng.standard_normal((count, RANK), np.float32) for count in (shape.users, shape.items))
    user_bias, item_bias = (BIAS * rng.standard_normal(count, np.float32) for count in (shape.users, shape.items))
    found = np.empty(len(user), np.float32)
    for first in range(0, len(user), AT_ONCE):
        u, i = user[first : first + AT_ONCE], item[first : first + AT_ONCE]
        score = np.einsum("nk,nk->n", users[u], items[i]) + user_bias[u] + item_bias[i]
        score += NOISE * rng.standard_normal(len(u), np.float32)
        found[first : first + len(u)] = np.clip(np.round(2 * (3.5 + score)) / 2, 0.5, 5.0)
    return found


def _first(numbers: np.ndarray, count: int) -> np.ndarray:
    """Where each number occurs for the first time; only of those that occur."""
    where = np.full(count, -1, np.int64)
    where[numbers[::-1]] = np.arange(len(numbers))[::-1]  # the last assignment stays
    return where[where >= 0]
