"""Samples of two-sided data, counted by grid cell and sorted by it: two passes over the ids, each at the speed of
memory. A sample's cell is row_block[its row] + column_block[its column], both uint16."""

import numpy as np

from hogwild.kernels.compiling import kernel


@kernel
def count(ids, counts):  # type: ignore[no-untyped-def]
    """Add 1 to counts[id] for each of `ids` (N,); return False at an id outside of `counts`."""
    for n in range(len(ids)):
        k = ids[n]
        if k < 0 or k >= len(counts):
            return False
        counts[k] += 1
    return True


@kernel
def count_cells(rows, columns, row_block, column_block, counts):  # type: ignore[no-untyped-def]
    """Add 1 to counts[cell] for each sample."""
    for n in range(len(rows)):
        counts[row_block[rows[n]] + column_block[columns[n]]] += 1


@kernel
def by_cell(before, rows, columns, row_block, column_block, begins, order):  # type: ignore[no-untyped-def]
    """Sort `before` (N,), or all samples if it is empty, by cell into `order` (N,), stably. Each cell's entry in
    `begins` becomes its end."""
    is_given = len(before) > 0
    for n in range(len(rows)):
        sample = before[n] if is_given else n
        cell = row_block[rows[sample]] + column_block[columns[sample]]
        order[begins[cell]] = sample
        begins[cell] += 1


@kernel
def in_lanes(order, bounds, lanes):  # type: ignore[no-untyped-def]
    """Return `order` (N,) with each cell, [bounds[c], bounds[c + 1]), divided into `lanes` equal parts (the last one
    may be shorter), of which the first samples come first, then the second ones, and so on."""
    found = np.empty_like(order)
    for cell in range(len(bounds) - 1):
        start, stop = bounds[cell], bounds[cell + 1]
        length, to = -((start - stop) // lanes), start
        for place in range(start, start + length):
            for sample in range(place, stop, length):
                found[to] = order[sample]
                to += 1
    return found
