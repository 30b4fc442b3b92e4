"""What was parsed, put in order: a row's features by frequency, ratings by user and item, words by number."""

import numpy as np

from hogwild.kernels.compiling import inlined, kernel

FREQUENT = np.int64(2**31 - 1)  # what is counted more often than that is as frequent
PLACE = np.int64(2**32)  # of a key: its count above, its index below
SHORT = 24  # a row that is sorted by insertion


@inlined
def _merge_runs(keys, values, other_keys, other_values, first, size, width):  # type: ignore[no-untyped-def]
    """Runs of `width`, sorted, of keys[first:first + size] become runs of twice that in `other_keys[:size]`."""
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
    """keys[:size] upwards, and `values` with them."""
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
    lengths,
    raw_indices,
    raw_values,
    labels,
    first,
    stop,
    place,
    base,
    counts,
    unit,
    indptr,
    indices,
    values,
    target,
    twice,
    to_row,
    to_place,
    keys,
    floats,
):
    """The rows [first, stop), whose values lie from `place` on, are written to row `to_row`, and place `to_place`, and
    behind: `base` is taken off each index, and the features stand most frequent first (`counts` (F,) int64, of the
    whole data), equally frequent ones by number. `unit`: each row is divided by its Euclidean length. `keys`, `floats`
    (2, longest row) are scratch. `twice` (N,) says which rows name a feature twice."""
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
def mark(ids, table):  # type: ignore[no-untyped-def]
    """table[id] = 1 for each that is there. False where one is outside the table."""
    size = len(table)
    for i in range(len(ids)):
        if ids[i] < 0 or ids[i] >= size:
            return False
        table[ids[i]] = 1
    return True


@kernel
def renumber(ids, table):  # type: ignore[no-untyped-def]
    """id -> table[id], in place; what is outside the table becomes -1. Returns how many are -1."""
    size, unknown = len(table), np.int64(0)
    for i in range(len(ids)):
        number = table[ids[i]] if 0 <= ids[i] < size else np.int32(-1)
        unknown += number < 0
        ids[i] = number
    return unknown


@kernel
def are_sorted(user, item):  # type: ignore[no-untyped-def]
    """(by user, then item; two neighbours are the same pair)"""
    is_sorted, is_twice = True, False
    for i in range(1, len(user)):
        if user[i] < user[i - 1] or (user[i] == user[i - 1] and item[i] < item[i - 1]):
            is_sorted = False
        is_twice = is_twice or (user[i] == user[i - 1] and item[i] == item[i - 1])
    return is_sorted, is_twice


@kernel
def counted(keys, order, begins, out):  # type: ignore[no-untyped-def]
    """`out` is `order` sorted by keys[order[i]], stably: a counting sort. `begins` (K + 1,) int64 zeros, K the number
    of keys, becomes where each key ends."""
    for i in range(len(keys)):
        begins[keys[i] + 1] += 1
    for key in range(1, len(begins)):
        begins[key] += begins[key - 1]
    for i in range(len(order)):
        key = keys[order[i]]
        out[begins[key]] = order[i]
        begins[key] += 1


@kernel
def held_out(user, item, seed, share, chosen):  # type: ignore[no-untyped-def]
    """chosen[i] = whether the pair is one of `share` of all, by a hash of it and `seed`: whatever else the file holds,
    a pair is on the same side. splitmix64's mixer, twice."""
    for i in range(len(user)):
        bits = _mixed(seed ^ (np.uint64(user[i]) << np.uint64(32)) ^ np.uint64(item[i]))
        bits = _mixed(bits + np.uint64(0x9E3779B97F4A7C15))
        chosen[i] = np.float64(bits >> np.uint64(11)) * (1.0 / 9007199254740992.0) < share


@inlined
def _mixed(z):  # type: ignore[no-untyped-def]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


# ---- words ----------------------------------------------------------------------------------------------------------

CODES, USED = 0, 1  # of `state`


@inlined
def _hash(text, begin, end):  # type: ignore[no-untyped-def]
    """FNV-1a, mixed: its low bits alone are weak."""
    value = np.uint64(0xCBF29CE484222325)
    for at in range(begin, end):
        value = (value ^ np.uint64(text[at])) * np.uint64(0x100000001B3)
    return _mixed(value)


@inlined
def _is_same(text, begin, end, letters, first, stop):  # type: ignore[no-untyped-def]
    if end - begin != stop - first:
        return False
    i = 0
    while i < end - begin and text[begin + i] == letters[first + i]:
        i += 1
    return i == end - begin


@kernel
def intern(text, begins, ends, first, codes, table, hashes, letters, bounds, state):  # type: ignore[no-untyped-def]
    """codes[i] = the number of the word text[begins[i]:ends[i]], in the order of their first appearance, from i = first
    on. Returns where it stopped: at the end, or where there is no room for a new word.

    `table` (2^k,) int32: number + 1, 0 is free; `hashes` and `bounds` (+ 1) one per word that there is room for;
    `letters`: all words; `state`: how many words there are, how many letters."""
    cells = np.uint64(len(table) - 1)
    for i in range(first, len(codes)):
        begin, end = begins[i], ends[i]
        hashed = _hash(text, begin, end)
        cell = hashed & cells
        number = np.int64(-1)
        while table[cell] != 0:
            known = np.int64(table[cell]) - 1
            if hashes[known] == hashed and _is_same(text, begin, end, letters, bounds[known], bounds[known + 1]):
                number = known
                break
            cell = (cell + np.uint64(1)) & cells
        if number < 0:
            number, used = state[CODES], state[USED]
            if number >= len(hashes) or used + (end - begin) > len(letters):
                return i
            for at in range(begin, end):
                letters[used + at - begin] = text[at]
            state[CODES], state[USED] = number + 1, used + end - begin
            bounds[number + 1], hashes[number], table[cell] = state[USED], hashed, number + 1
        codes[i] = number
    return len(codes)


@kernel
def fill_table(table, hashes, many):  # type: ignore[no-untyped-def]
    """A new, larger `table` of the words there are."""
    cells = np.uint64(len(table) - 1)
    for number in range(many):
        cell = hashes[number] & cells
        while table[cell] != 0:
            cell = (cell + np.uint64(1)) & cells
        table[cell] = number + 1
