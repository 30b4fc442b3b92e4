"""Private copies of the rows that all workers write.

In sparse data a few rows (the word "the", the most rated film) are in almost every sample. If all workers wrote them
directly, their cache lines would move between the cores at every sample. So each worker reads and writes its own copy,
and adds its changes to the shared row at the end of a chunk: delta exchange, for these rows only.

    refresh    local = snapshot = flat[rows]
    flush      flat[rows] += local - snapshot;   local = snapshot = flat[rows]

The race is that of `exchange.py`: a write by another worker between our read and our write of a word is lost, once per
flush. Optimizer state of these rows (Adagrad's sums) has its own private copy.

    slot[row]  the row's place in `local`, or -1; a kernel checks this before it uses the row

For a row of one number (a linear model's weight) the lookup would cost more than the use. There `local` is as long as
the flat, a hot row keeps its place (slot[row] is row), and other rows are NaN: one array is read, not two."""

import numpy as np

from hogwild.kernels.compiling import kernel


class HotRows:
    """The hot rows of one array (R, …), float32, in shared memory. Belongs to one worker."""

    def __init__(self, flat: np.ndarray, rows: np.ndarray) -> None:
        """Copy `rows` (H,) int32, each once."""
        self.rows = rows
        self.in_place = flat.size == len(flat)
        self.slot = np.full(len(flat), -1, np.int32)
        self.slot[rows] = rows if self.in_place else np.arange(len(rows), dtype=np.int32)
        self.local = np.full(flat.shape if self.in_place else (len(rows), *flat.shape[1:]), np.nan, np.float32)
        self.local[self.slot[rows]] = flat[rows]
        self._snapshot = self.local.copy()
        self._is_whole = self.in_place and len(rows) == len(flat)
        self._flat = flat

    def refresh(self) -> None:
        """Copy the flat's current values; discard changes that were not flushed."""
        _read(_wide(self._flat), self.rows, self.slot, _wide(self.local), _wide(self._snapshot))

    def flush(self) -> None:
        """Add the changes since the last `refresh` or `flush` to the flat, and copy back the other workers' changes."""
        if self._is_whole:
            _flush_whole(self._flat.reshape(-1), self.local.reshape(-1), self._snapshot.reshape(-1))
        else:
            _flush(_wide(self._flat), self.rows, self.slot, _wide(self.local), _wide(self._snapshot))


def _wide(array: np.ndarray) -> np.ndarray:
    """Return a view (R, width)."""
    return array.reshape(len(array), -1)


@kernel
def _read(flat, rows, slot, local, snapshot):  # type: ignore[no-untyped-def]
    for row in rows:
        for k in range(flat.shape[1]):
            value = flat[row, k]
            local[slot[row], k] = value
            snapshot[slot[row], k] = value


@kernel
def _flush(flat, rows, slot, local, snapshot):  # type: ignore[no-untyped-def]
    for row in rows:
        for k in range(flat.shape[1]):
            value = flat[row, k] + (local[slot[row], k] - snapshot[slot[row], k])
            flat[row, k] = value
            local[slot[row], k] = value
            snapshot[slot[row], k] = value


@kernel
def _flush_whole(flat, local, snapshot):  # type: ignore[no-untyped-def]
    for n in range(len(flat)):
        value = flat[n] + (local[n] - snapshot[n])
        flat[n] = value
        local[n] = value
        snapshot[n] = value
