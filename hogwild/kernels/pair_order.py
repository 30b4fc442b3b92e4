"""The order of pairs of a user and an item."""

import numpy as np

AT_ONCE = 1 << 20  # places that are made in one go


def pairs_of(user: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Return pairs of numbers from 0 on as (N,) int64, which are in the order of user, then item. They are as small as
    they can be, so that `places_in_order` can sort them with their places."""
    pairs: np.ndarray = user.astype(np.int64) * (int(item.max(initial=0)) + 1) + item
    return pairs


def places_in_order(values: np.ndarray, *, may_overwrite: bool = False) -> np.ndarray:
    """Return the places (N,) int64 of the values in ascending order, of equal ones in theirs. `may_overwrite`: values
    of int64 are not needed any more, and their memory becomes that of the places.

    NumPy sorts numbers by vector instructions, but not their places: so a place is the lower bits of each number, if
    both fit into 63. 8 M pairs take 0.08 s on one core; torch's stable sort takes 0.44 s, NumPy's `argsort` 0.9 s."""
    bits = len(values).bit_length()
    least = int(values.min(initial=0)) if values.dtype.kind in "iu" else 0
    if values.dtype.kind not in "iu" or int(values.max(initial=0)) - least >= 1 << (63 - bits):
        return np.argsort(values, kind="stable")
    keys = values.astype(np.int64, copy=not may_overwrite)
    keys -= least
    keys <<= bits
    for start in range(0, len(keys), AT_ONCE):
        part = keys[start : start + AT_ONCE]
        part |= np.arange(start, start + len(part))
    keys.sort()
    keys &= (1 << bits) - 1
    return keys


def items_by_user(user: np.ndarray, item: np.ndarray, users: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return (starts (users + 1,) int64, items (N,) int32, order (N,)): each user's items, sorted, begin at `starts`;
    they are item[order], or for sorted data `item` itself and None."""
    starts = np.zeros(users + 1, np.int64)
    np.cumsum(np.bincount(user, minlength=users), out=starts[1:])
    pairs = pairs_of(user, item)
    if (pairs[1:] >= pairs[:-1]).all():
        return starts, item, None
    order = places_in_order(pairs)
    return starts, item[order], order
