"""Samples of two-sided data counted by cell and put in the order of their cells: two passes over the ids, each at the
speed of memory. A sample's cell is row_block[its row] + column_block[its column], both uint16. And the search
for the cell that is leased next."""

import numpy as np

from hogwild.kernels.compiling import exact_kernel, kernel


@kernel
def count(ids, counts):  # type: ignore[no-untyped-def]
    """Adds to counts[id] for each of `ids` (N,); whether all are places of `counts`."""
    for n in range(len(ids)):
        k = ids[n]
        if k < 0 or k >= len(counts):
            return False
        counts[k] += 1
    return True


@kernel
def count_cells(rows, columns, row_block, column_block, counts):  # type: ignore[no-untyped-def]
    """Adds to counts[cell] for each sample."""
    for n in range(len(rows)):
        counts[row_block[rows[n]] + column_block[columns[n]]] += 1


@kernel
def by_cell(before, rows, columns, row_block, column_block, begins, order):  # type: ignore[no-untyped-def]
    """`order` (N,) is `before` (N,), or the samples as they are where that is empty, by cell, stably. `begins` of each
    cell becomes its end."""
    is_given = len(before) > 0
    for n in range(len(rows)):
        sample = before[n] if is_given else n
        cell = row_block[rows[sample]] + column_block[columns[sample]]
        order[begins[cell]] = sample
        begins[cell] += 1


@exact_kernel
def fullest(drawn, left, rows, columns, free_rows, free_columns):  # type: ignore[no-untyped-def]
    """The cell with the highest drawn + rows + columns, the first of equal ones, of those where something is `left` (B,
    C) and whose numbers of row and column, int64, are among the free ones; -1: there is none. `rows` (B,) and `columns`
    (C,): the sums of `left`."""
    found, most = np.int64(-1), 0.0
    for row in free_rows:
        if rows[row] > 0.0:
            for column in free_columns:
                score = drawn[row, column] + rows[row] + columns[column]
                if score > most and left[row, column] > 0.0:
                    found, most = row * len(columns) + column, score
    return found
