"""The order in which an epoch visits the samples (`data.shuffle`): pure functions of (seed, epoch, position), so every
process, and a resumed run, computes the same order by itself. A large epoch's permutation is never computed or stored
as a whole.

    full      any order is possible. Up to DRAWN_UP_TO samples the epoch's permutation is drawn; beyond, it is computed,
              a block of positions at a time, by a keyed permutation (`Keyed`).
    chunked   chunks of neighbouring rows in any order, and any order inside a chunk: faster to read, but a batch
              holds neighbours, so not for data that is sorted by class.
    runs      chunks of neighbouring rows in any order, memory order inside a chunk: for kernels over data that
              is not sorted by the target.
    none      memory order.
    lanes     text order: each batch continues the one before it (`data.lanes`, `LaneOrder`).
"""

from abc import ABC, abstractmethod
from functools import lru_cache
from math import isqrt
from typing import Protocol, TypeAlias

import numpy as np
import torch

from hogwild.scheduling.batch_plan import mix, permutation_seed

Indices: TypeAlias = np.ndarray  # (n,) int64

BLOCK_POSITIONS = 4096  # per block: numpy's call overhead is negligible, and 32 KiB fit into the L1 cache
# Drawing 2^18 positions takes 2 ms and 2 MB, once per epoch and worker; 2^20 take 12 ms, 2^22 (larger than the caches)
# 170 ms, and 10^8 several seconds and 800 MB. Computing takes 1.5 us per 64 positions, whatever the size.
DRAWN_UP_TO = 1 << 18
# Rounds of a keyed permutation. After 2, a thousand of a million neighbours are adjacent again (2 are expected); after
# 4, up to twice the expected number; from 6 on no measure of tests/feeds/test_sample_order.py distinguishes it from
# a drawn permutation. An odd last round would move samples only within a row of the grid.
ROUNDS = 6
# Gathering rows of 64 to 3,136 bytes is equally fast with chunks of 64 KiB to 1 MiB, and slower outside that range:
# such a chunk fits into a core's own cache. A large one is chosen because it mixes more.
CHUNK_BYTES = 512 << 10
CHUNK_ROWS = 1024  # upper limit for tiny rows: a chunk is computed as a whole, even for one batch of it
RUN_ROWS = 4096  # run length for kernels: a compromise between hardware prefetching and mixing
KEPT_EPOCHS = 2  # a worker may hold a lease of the next epoch while it finishes this one

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Order(Protocol):
    """The order of every epoch of one data set."""

    def indices(self, epoch: int, first: int, last: int) -> Indices:
        """Return the samples at the positions `[first, last)` of `epoch`, (last - first,) int64; 0 <= first <= last <=
        samples. A view of a cached block: read-only, and valid until the next call."""


def make_order(shuffle: str, samples: int, *, seed: int, row_bytes: int) -> Order:
    """Return the order for a value of `data.shuffle`; `row_bytes` of a sample (all fields) set the chunk length."""
    if shuffle == "none":
        return InMemory(samples)
    if shuffle == "runs":
        return Chunked(samples, seed, min(RUN_ROWS, max(1, samples // 2)), in_runs=True)
    if shuffle == "chunked":
        return Chunked(samples, seed, chunk_rows(row_bytes))
    if shuffle not in ("auto", "full"):
        raise ValueError(f"shuffle must be auto, full, chunked or none, not {shuffle!r}")
    return _full(samples, seed)


def _full(samples: int, seed: int) -> Order:
    return Drawn(samples, seed) if samples <= DRAWN_UP_TO else Keyed(samples, seed)


def chunk_rows(row_bytes: int) -> int:
    """Return the number of samples in a chunk."""
    return min(CHUNK_ROWS, max(1, CHUNK_BYTES // max(1, row_bytes)))


class Drawn:
    """A permutation drawn for each epoch: 8 bytes per sample and cached epoch."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples = samples
        self._seed = seed
        self._permutation = lru_cache(KEPT_EPOCHS)(self._draw)

    def indices(self, epoch: int, first: int, last: int) -> Indices:
        return self._permutation(epoch)[first:last]

    def _draw(self, epoch: int) -> Indices:
        generator = torch.Generator().manual_seed(permutation_seed(self._seed, epoch))
        return torch.randperm(self._samples, generator=generator).numpy()


class Blockwise(ABC):
    """Caches one computed block. A new one begins at the first position asked for, so it holds whole batches; as a
    worker's items are mostly 64 batches long, few computed positions remain unused."""

    def __init__(self, samples: int) -> None:
        self._samples = samples
        self._epoch = -1
        self._start = 0
        self._block: Indices = np.empty(0, dtype=np.int64)

    def indices(self, epoch: int, first: int, last: int) -> Indices:
        start = self._start
        if epoch != self._epoch or first < start or last > start + len(self._block):
            stop = min(self._samples, max(last, first + BLOCK_POSITIONS))
            self._start, self._block = self._compute(epoch, first, stop)
            self._epoch, start = epoch, self._start
        return self._block[first - start : last - start]

    @abstractmethod
    def _compute(self, epoch: int, first: int, stop: int) -> tuple[int, Indices]:
        """Return (start, block): a block that contains the positions `[first, stop)`."""


class InMemory(Blockwise):
    """Memory order."""

    def _compute(self, epoch: int, first: int, stop: int) -> tuple[int, Indices]:
        return first, np.arange(first, stop, dtype=np.int64)


class LaneOrder(Blockwise):
    """Rows that are consecutive windows of one sequence, so that each column of a batch continues the same column of
    the batch before it (truncated back-propagation through time).

            rows      0 1 2 3 4 5 …  R-1      lanes x columns strips of `steps` rows each; the remainder is left out
            lane 0    batch 0: rows 0, S, 2S, …      batch 1: rows 1, S+1, 2S+1, …      S = steps
            lane 1    batch S: the strips that follow

    Batch number b = lane * steps + t; its column c is row (lane * columns + c) * steps + t. Every epoch has the same
    order."""

    def __init__(self, lanes: int, columns: int, steps: int) -> None:
        """`columns` per batch, `steps` batches per lane."""
        super().__init__(lanes * columns * steps)
        self._columns, self._steps = columns, steps

    def _compute(self, epoch: int, first: int, stop: int) -> tuple[int, Indices]:
        batches, columns = np.divmod(np.arange(first, stop, dtype=np.int64), self._columns)
        lanes, t = np.divmod(batches, self._steps)
        return first, (lanes * self._columns + columns) * self._steps + t


class Keyed(Blockwise):
    """A keyed permutation of [0, N): a generalised Feistel network (Black and Rogaway, "Ciphers with arbitrary finite
    domains", CT-RSA 2002, method 3; Luby and Rackoff 1988 on how random it is).

    A position is a cell of a grid of `width` x `height`, both about sqrt(N). Each round adds a random function of one
    coordinate to the other, modulo its range: this is invertible, so it is a permutation of the grid. The few cells
    past N (fewer than 1 in sqrt(N)) are permuted again until they land inside: cycle walking. The random functions are
    tables, ROUNDS x sqrt(N) words: 480 KB and under a millisecond per epoch for N = 10^8.
    """

    def __init__(self, samples: int, seed: int, rounds: int = ROUNDS) -> None:
        super().__init__(samples)
        self._seed = seed
        self._rounds = rounds
        self._width = isqrt(max(0, samples - 1)) + 1
        self._height = -(-samples // self._width)
        self._tables = lru_cache(KEPT_EPOCHS)(self._draw)

    def _draw(self, epoch: int) -> list[Indices]:
        """Draw a table per round: the addend of one coordinate for each value of the other."""
        key = permutation_seed(self._seed, epoch)
        ranges = (self._width, self._height)
        return [_random_below(ranges[j % 2], mix(key, j), ranges[1 - j % 2]) for j in range(self._rounds)]

    def _compute(self, epoch: int, first: int, stop: int) -> tuple[int, Indices]:
        tables = self._tables(epoch)
        block = self._encipher(tables, np.arange(first, stop, dtype=np.int64))
        outside = np.flatnonzero(block >= self._samples)
        while outside.size:
            block[outside] = self._encipher(tables, block[outside])
            outside = outside[block[outside] >= self._samples]
        return first, block

    def _encipher(self, tables: list[Indices], places: Indices) -> Indices:
        """Apply all rounds once to cells of the grid, 0 <= place < width x height."""
        y = places // self._width
        x = places - y * self._width
        for j, table in enumerate(tables):
            if j % 2 == 0:
                _add(x, table.take(y), self._width)
            else:
                _add(y, table.take(x), self._height)
        y *= self._width
        y += x
        return y


class Chunked(Blockwise):
    """Chunks of `rows` neighbours in shuffled order, each shuffled inside. Before each epoch the data is rotated by a
    random amount, so chunk borders differ between epochs. The remaining rows (fewer than a chunk) come last; due to the
    rotation they are different ones in every epoch."""

    def __init__(self, samples: int, seed: int, rows: int, *, in_runs: bool = False) -> None:
        """`in_runs`: rows of a chunk keep their memory order, for the fastest reading."""
        super().__init__(samples)
        self._seed = seed
        self._rows = rows
        self._in_runs = in_runs
        self._whole = samples // rows
        self._chunks = _full(self._whole, seed)

    def _compute(self, epoch: int, first: int, stop: int) -> tuple[int, Indices]:
        key = permutation_seed(self._seed, epoch)
        begin, end = first // self._rows, -(-stop // self._rows)
        start = begin * self._rows
        chunks = self._chunks.indices(epoch, min(begin, self._whole), min(end, self._whole))
        inside = self._inside(mix(key, 0), start, len(chunks), self._rows)
        block = (chunks[:, None] * self._rows + inside).reshape(-1)
        if end > self._whole:
            used = self._whole * self._rows
            block = np.concatenate([block, used + self._inside(mix(key, 0), used, 1, self._samples - used)[0]])
        block += mix(key, 1) % self._samples
        block[block >= self._samples] -= self._samples
        return start, block

    def _inside(self, seed: int, start: int, count: int, rows: int) -> Indices:
        """Return the order inside each chunk, (count, rows) or (1, rows) int64."""
        return np.arange(rows, dtype=np.int64)[None] if self._in_runs else shuffled(seed, start, count, rows)


def _add(half: Indices, addend: Indices, modulus: int) -> None:
    """Compute half = (half + addend) % modulus in place, for both in [0, modulus). Division would be ten times as slow:
    a negative difference, read as unsigned, is the larger of the two."""
    half += addend
    unsigned = half.view(np.uint64)
    np.minimum(unsigned, (half - modulus).view(np.uint64), out=unsigned)


def shuffled(seed: int, start: int, count: int, rows: int) -> Indices:
    """Return `count` shuffles of [0, rows), (count, rows) int64, from the random words `start` and following: sorted by
    a random key with the row number in its lowest bits, so that keys are unique."""
    bits = np.uint64(max(1, rows - 1).bit_length())
    keys = random_words(seed, start, count * rows).reshape(count, rows)
    keys = (keys << bits) | np.arange(rows, dtype=np.uint64)
    keys.sort(axis=1)
    return (keys & ((np.uint64(1) << bits) - np.uint64(1))).view(np.int64)


def random_words(seed: int, start: int, count: int) -> np.ndarray:
    """Return outputs `start` and following, (count,) uint64, of splitmix64 seeded with `seed` (Steele, Lea and Flood
    2014). Implemented here because numpy does not promise that its generators keep giving the same numbers."""
    words: np.ndarray = np.arange(start + 1, start + 1 + count, dtype=np.uint64)
    words *= GOLDEN
    words += np.uint64(seed)
    return mixed(words)


def mixed(words: np.ndarray) -> np.ndarray:
    """Mix the bits of each word (…,) uint64 in place, as splitmix64 does for an output; return `words`."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _random_below(bound: int, seed: int, count: int) -> Indices:
    """Return (count,) int64 in [0, bound < 2^32): scaled upper half of a word; uniform up to bound / 2^32."""
    upper = random_words(seed, 0, count) >> np.uint64(32)
    return ((upper * np.uint64(bound)) >> np.uint64(32)).view(np.int64)
