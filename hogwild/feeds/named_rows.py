"""Rows that are told by names: a rating by its user and item, a triple by its head, relation and tail.

names, columns of numbers ── hash of the names as text ──► the held-out part, the same whatever else the data hold
two data sets ── one number per row ──► the rows that both have"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hogwild.feeds.packed import Packed
from hogwild.feeds.sample_order import GOLDEN, mixed

# FNV-1a (Fowler, Noll and Vo) of a name's bytes, then the mixer of splitmix64.
BASIS, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
AT_ONCE = 4096  # names: they are padded to the longest of them
Column = tuple[Any, np.ndarray]  # names by number, and the number of each row (N,)


def columns_of(packed: Packed) -> list[Column] | None:
    """Return the columns whose names tell the rows; None for data whose rows have no names."""
    arrays, names = packed.arrays(), packed.names
    if {"user", "item"} <= arrays.keys() and {"users", "items"} <= names.keys():
        return [(names["users"], arrays["user"]), (names["items"], arrays["item"])]
    if "triple" in arrays and {"entities", "relations"} <= names.keys():
        kinds = ("entities", "relations", "entities")
        return [(names[kind], arrays["triple"][:, place]) for place, kind in enumerate(kinds)]
    return None


def held_out(columns: Sequence[Column], fraction: float, seed: int) -> np.ndarray:
    """Return whether each row (N,) belongs to the `fraction` that is held out, by a hash of its names and the seed."""
    bits = np.full(len(columns[0][1]), seed % 2**64, np.uint64)
    for names, rows in columns:
        bits = mixed(bits ^ _hashes(names)[rows])
    is_held: np.ndarray = (mixed(bits + GOLDEN) >> np.uint64(11)).astype(np.float64) * 2.0**-53 < fraction
    return is_held


def rows_in(train: Sequence[Column], val: Sequence[Column]) -> int:
    """Return how many rows of `val` are also in `train`, which has the same names."""
    sizes = [len(names) for names, _ in train]
    known, wanted = (np.ravel_multi_index([rows for _, rows in columns], sizes) for columns in (train, val))
    if (known[1:] < known[:-1]).any():
        known.sort()
    return int((known[np.searchsorted(known, wanted).clip(max=len(known) - 1)] == wanted).sum())


def _hashes(names: Any) -> np.ndarray:
    """Return the hash (n,) uint64 of each name's text: of 7 and "7" it is the same."""
    found = np.full(len(names), BASIS)
    for start in range(0, len(names), AT_ONCE):
        part = np.array([str(name).encode() for name in names[start : start + AT_ONCE]])
        own = found[start : start + AT_ONCE]
        for letter in part.view(np.uint8).reshape(len(part), -1).T:
            own[:] = np.where(letter, (own ^ letter) * PRIME, own)  # 0: behind its end
    return found
