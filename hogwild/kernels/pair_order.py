"""The order of pairs of a user and an item, by torch's sort: several times as fast as NumPy's stable one."""

import numpy as np
import torch


def pairs_of(user: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Return pairs of numbers from 0 on as (N,) int64, which are in the order of user, then item."""
    pairs: np.ndarray = (user.astype(np.int64) << 32) | item
    return pairs


def places_in_order(values: np.ndarray) -> np.ndarray:
    """Return the places (N,) int64 of the values in ascending order, of equal ones in theirs."""
    places: np.ndarray = torch.sort(torch.from_numpy(values), stable=True).indices.numpy()
    return places


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
