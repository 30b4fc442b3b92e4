"""Samples of two-sided data, counted by grid cell and sorted by it: two passes over the ids, each at the speed of
memory. A sample's cell is row_block[its row] + column_block[its column], both uint16. Also the search for the next cell
to lease."""

import numpy as np

from hogwild.kernels.compiling import exact_kernel, kernel


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


@exact_kernel
def fullest(drawn, left, rows, columns, free_rows, free_columns):  # type: ignore[no-untyped-def]
    """Return the cell with the highest drawn + rows + columns, the first among equals, among cells with something
    `left` (B, C) whose row and column, int64, are free; -1 if there is none. `rows` (B,) and `columns` (C,) are the
    sums of `left`."""
    found, most = np.int64(-1), 0.0
    for row in free_rows:
        if rows[row] > 0.0:
            for column in free_columns:
                score = drawn[row, column] + rows[row] + columns[column]
                if score > most and left[row, column] > 0.0:
                    found, most = row * len(columns) + column, score
    return found
