"""Sorting of the features of each sparse row by their frequency."""

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
