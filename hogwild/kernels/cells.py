"""Samples of two-sided data counted by cell and put in the order of their cells: two passes over the ids, each at the
speed of memory. A sample's cell is row_block[its row] + column_block[its column], both uint16."""

from hogwild.kernels.compiling import kernel


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
