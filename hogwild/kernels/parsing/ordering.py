"""Sorting of parsed data: a row's features by frequency, ratings by user and item."""

import numpy as np

from hogwild.kernels.compiling import inlined, kernel

FREQUENT = np.int64(2**31 - 1)  # higher counts are treated as this one
PLACE = np.int64(2**32)  # of a key: the count above, the index below
SHORT = 24  # rows up to this length use insertion sort


@inlined
def _merge_runs(keys, values, other_keys, other_values, first, size, width):  # type: ignore[no-untyped-def]
    """Merge sorted runs of `width` in keys[first:first + size] into runs of twice that in `other_keys[:size]`."""
    for begin in range(0, size, 2 * width):
        middle, end = min(begin + width, size), min(begin + 2 * width, size)
        left, right = begin, middle
        for to in range(begin, end):
            if left < middle and (right >= end or keys[first + left] <= keys[first + right]):
                other_keys[to], other_values[to] = keys[first + left], values[first + left]
                left += 1
            else:
                other_keys[to], other_values[to] = keys[first + right], values[first + right]
                right += 1


@inlined
def _sort(keys, values, spare_keys, spare_values, size):  # type: ignore[no-untyped-def]
    """Sort keys[:size] in ascending order, with their `values`."""
    if size <= SHORT:
        for i in range(1, size):
            key, value, j = keys[i], values[i], i
            while j > 0 and keys[j - 1] > key:
                keys[j], values[j] = keys[j - 1], values[j - 1]
                j -= 1
            keys[j], values[j] = key, value
        return
    width = 1
    while width < size:
        _merge_runs(keys, values, spare_keys, spare_values, 0, size, width)
        for i in range(size):
            keys[i], values[i] = spare_keys[i], spare_values[i]
        width *= 2


@kernel
def by_frequency(  # type: ignore[no-untyped-def]
    lengths, raw_indices, raw_values, labels, first, stop, place, base, counts, unit,
    indptr, indices, values, target, twice, to_row, to_place, keys, floats,
):  # fmt: skip
    """Write the rows [first, stop), whose values start at `place`, from row `to_row` and place `to_place` on. `base` is
    subtracted from each index. A row's features are sorted most frequent first (`counts` (F,) int64, of the whole
    data), equally frequent ones by number. `unit`: each row is divided by its Euclidean length. `keys`, `floats` (2,
    longest row) are scratch. `twice` (N,) marks rows that name a feature twice."""
    for row in range(first, stop):
        size, last, is_sorted, squares = lengths[row], np.int64(-1), True, 0.0
        for i in range(size):
            index = np.int64(raw_indices[place + i]) - base
            value = raw_values[place + i]
            key = (FREQUENT - min(counts[index], FREQUENT)) * PLACE + index
            is_sorted = is_sorted and key > last
            keys[0, i], floats[0, i], last = key, value, key
            squares += np.float64(value) * np.float64(value)
        if not is_sorted:
            _sort(keys[0], floats[0], keys[1], floats[1], size)
        scale = np.float32(1.0 / np.sqrt(squares)) if unit and squares > 0.0 else np.float32(1.0)
        twice[to_row] = 0
        for i in range(size):
            if i > 0 and keys[0, i] == keys[0, i - 1]:
                twice[to_row] = 1
            indices[to_place + i] = keys[0, i] % PLACE
            values[to_place + i] = floats[0, i] * scale
        place, to_place = place + size, to_place + size
        target[to_row] = labels[row]
        indptr[to_row + 1] = to_place
        to_row += 1


# ---- ids ------------------------------------------------------------------------------------------------------------


@kernel
def are_sorted(user, item):  # type: ignore[no-untyped-def]
    """Return (sorted by user, then item; two neighbours are the same pair)."""
    is_sorted, is_twice = True, False
    for i in range(1, len(user)):
        if user[i] < user[i - 1] or (user[i] == user[i - 1] and item[i] < item[i - 1]):
            is_sorted = False
        is_twice = is_twice or (user[i] == user[i - 1] and item[i] == item[i - 1])
    return is_sorted, is_twice


@kernel
def counted(keys, order, begins, out):  # type: ignore[no-untyped-def]
    """Write `order` to `out`, sorted by keys[order[i]], stably: a counting sort. `begins` (K + 1,) int64 zeros, where K
    is the number of keys, becomes the end of each key."""
    for i in range(len(keys)):
        begins[keys[i] + 1] += 1
    for key in range(1, len(begins)):
        begins[key] += begins[key - 1]
    for i in range(len(order)):
        key = keys[order[i]]
        out[begins[key]] = order[i]
        begins[key] += 1


def items_by_user(user: np.ndarray, item: np.ndarray, users: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return (starts (users + 1,) int64, items (N,) int32, order (N,)): each user's items, sorted, begin at `starts`;
    they are item[order], or for sorted data `item` itself and None."""
    starts = np.zeros(users + 1, np.int64)
    np.cumsum(np.bincount(user, minlength=users), out=starts[1:])
    if are_sorted(user, item)[0]:
        return starts, item, None
    by_item, order = np.empty(len(item), np.int32), np.empty(len(item), np.int32)
    counted(item, np.arange(len(item), dtype=np.int32), np.zeros(int(item.max()) + 2, np.int64), by_item)
    counted(user, by_item, np.zeros(users + 1, np.int64), order)
    return starts, item[order], order
