"""Data sets as named arrays in one piece of memory, the parsed form of sparse data, ratings, triples and texts. Kernels
read the arrays; autograd and evaluations read batches of them.

    table    one value, or a row of a fixed length, per sample in each array; the last array is the target
    csr      sparse rows: `indptr` (N+1,), `indices` (nnz,), `values` (nnz,), and `target` (N,); before it perhaps
             `weight` (N,) float32
    tokens   a text: `tokens` (T,), and where its sentences begin, `starts` (S+1,); a sample is the place of a word

The parser has checked every index: none is out of range. The memory is a region or a memory-mapped cache file:
processes share its pages, and data larger than memory is read when needed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hogwild.feeds.batch import Batch, Feed
from hogwild.feeds.resident import FieldSpec, ResidentData
from hogwild.feeds.sample_order import GOLDEN, Order, make_order, mixed
from hogwild.formatting import brief
from hogwild.scheduling.batch_plan import BatchPlan, EpochPlan
from hogwild.shared_memory.region import Region, aligned

WEIGHT = "weight"  # of samples
Names = Mapping[str, Any]  # of users, items, words, …: a sequence by number, as the user wrote them
# Among the names, but not names of rows: which features a row has, as entries "row feature weight" of numbers.
MEMBERSHIPS = {"user": "features_of_users", "item": "features_of_items"}
Arrays = Mapping[str, np.ndarray]
Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array and its place in the region. `dtype` is numpy's name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class PackedSpec:
    """The layout of a packed data set, without the memory; sent to workers. `sizes`: number of features, classes,
    users, items, words, entities, relations; a job file may omit model arguments of these names."""

    form: str  # table, csr, tokens
    samples: int
    arrays: tuple[ArraySpec, ...]
    sizes: Sizes = field(default_factory=dict)

    @classmethod
    def laid_out(
        cls, form: str, samples: int, arrays: Mapping[str, tuple[str, tuple[int, ...]]], sizes: Sizes
    ) -> "PackedSpec":
        """Lay out arrays (type, shape) one after the other, each starting on a cache line."""
        specs: list[ArraySpec] = []
        offset = 0
        for name, (dtype, shape) in arrays.items():
            specs.append(ArraySpec(name, dtype, shape, offset))
            offset = aligned(offset + specs[-1].nbytes)
        return cls(form, samples, tuple(specs), dict(sizes))

    @property
    def nbytes(self) -> int:
        return max((aligned(spec.offset + spec.nbytes) for spec in self.arrays), default=0)

    def attach(self, region: Region) -> "Packed":
        """Return the data set in `region`, which already holds it."""
        return Packed(region, self)


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed data set in memory, read-only during training. `names` stay in the parent."""

    __repr__ = brief

    region: Region
    spec: PackedSpec
    names: Names = field(default_factory=dict)

    @classmethod
    def allocate(cls, name: str, spec: PackedSpec, names: Names | None = None) -> "Packed":
        """Allocate arrays of zeros. Raises MemoryShortError."""
        return cls(Region.allocate(name, spec.nbytes), spec, names or {})

    @classmethod
    def of(cls, name: str, form: str, arrays: Arrays, sizes: Sizes, names: Names | None = None) -> "Packed":
        """Copy `arrays` into a new region; the number of samples is the length of the last one."""
        samples = len(arrays["tokens"] if form == "tokens" else [*arrays.values()][-1])
        shapes = {key: (array.dtype.name, array.shape) for key, array in arrays.items()}
        packed = cls.allocate(name, PackedSpec.laid_out(form, samples, shapes, sizes), names)
        for key, view in packed.arrays().items():
            view[...] = arrays[key]
        return packed

    @property
    def samples(self) -> int:
        return self.spec.samples

    @property
    def nbytes(self) -> int:
        return self.spec.nbytes

    def arrays(self) -> dict[str, np.ndarray]:
        """Return views of the arrays by name."""
        return {spec.name: self.region.array(spec.dtype, spec.shape, spec.offset) for spec in self.spec.arrays}

    def targets(self) -> Tensor:
        """Return the targets (N,): the last array."""
        return torch.from_numpy([*self.arrays().values()][-1])

    def weights(self) -> Tensor:
        """Return the weights (N,) of weighted data."""
        return torch.from_numpy(self.arrays()[WEIGHT])

    @property
    def has_sample_weights(self) -> bool:
        """True if the last input of a batch is the weight of each sample."""
        is_csr = self.spec.form == "csr"  # in a table the target may have this name: a triple's weight
        return is_csr and any(spec.name == WEIGHT for spec in self.spec.arrays)

    def feed(self, plan: EpochPlan, *, seed: int, order: str) -> Feed:
        """Return a feed for autograd and evaluations. `order`: value of `data.shuffle`."""
        return FEEDS[self.spec.form](self, plan, self.order(order, seed))

    def order(self, shuffle: str, seed: int) -> Order:
        """Return the order of an epoch; auto is full, but a text stays in runs: its words are trained in sentences."""
        if shuffle == "chunked" or (shuffle == "auto" and self.spec.form == "tokens"):
            shuffle = "chunked" if self.spec.form == "csr" else "runs"
        return make_order(shuffle, self.samples, seed=seed, row_bytes=self.nbytes // max(1, self.samples))

    def pick(self, rows: np.ndarray) -> Batch:
        """Return the samples `rows` (n,) int64 as one batch."""
        return FEEDS[self.spec.form](self, BatchPlan(len(rows), max(1, len(rows))), Chosen(rows)).gather(0, 0)

    def copy_rows(self, name: str, rows: np.ndarray) -> "Packed":
        """Copy the samples `rows` (n,) int64, in that order, for instance as a validation part. Raises ValueError for a
        text: its sentences cannot be divided by word places."""
        arrays = self.arrays()
        if self.spec.form == "tokens":
            raise ValueError("a text is not divided by places")
        if self.spec.form == "csr":
            return Packed.of(name, self.spec.form, csr_rows(arrays, rows), self.spec.sizes, self.names)
        shapes = {key: (array.dtype.name, (len(rows), *array.shape[1:])) for key, array in arrays.items()}
        spec = PackedSpec.laid_out(self.spec.form, len(rows), shapes, self.spec.sizes)
        taken = Packed.allocate(name, spec, self.names)
        for key, view in taken.arrays().items():
            np.take(arrays[key], rows, axis=0, out=view, mode="clip")  # writes directly, without a temporary copy
        return taken


def csr_rows(arrays: Arrays, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the CSR arrays of these rows, and arrays with one value per row (`target`, weights) as well."""
    begins = arrays["indptr"][rows]
    lengths = arrays["indptr"][rows + 1] - begins
    indptr = np.zeros(len(rows) + 1, arrays["indptr"].dtype)
    np.cumsum(lengths, out=indptr[1:])
    places = np.arange(indptr[-1]) + np.repeat(begins - indptr[:-1], lengths)
    taken = {"indptr": indptr, "indices": arrays["indices"][places], "values": arrays["values"][places]}
    return taken | {key: array[rows] for key, array in arrays.items() if key not in taken}


class Chosen:
    """A fixed order: the given rows."""

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows

    def indices(self, epoch: int, first: int, last: int) -> np.ndarray:
        return self._rows[first:last]


class TableFeed:
    """Batches of a table: a tensor (B, …) per array, copied row by row into fixed buffers."""

    def __init__(self, packed: Packed, plan: EpochPlan, order: Order) -> None:
        self._plan, self._order = plan, order
        self._arrays = [*packed.arrays().values()]
        self._buffers = [np.empty((plan.largest, *array.shape[1:]), array.dtype) for array in self._arrays]
        self._tensors = [torch.from_numpy(buffer) for buffer in self._buffers]

    def gather(self, epoch: int, batch: int) -> Batch:
        """Fill the buffers with batch number `batch` of `epoch`."""
        first, last = self._plan.positions(batch)
        chosen = self._order.indices(epoch, first, last)
        for array, buffer in zip(self._arrays, self._buffers, strict=True):
            array.take(chosen, axis=0, out=buffer[: last - first], mode="clip")
        *inputs, target = (tensor[: last - first] for tensor in self._tensors)
        return Batch(tuple(inputs), target, first, last - first)


class CsrFeed:
    """Batches of sparse rows as `torch.nn.EmbeddingBag` takes them: (indices (nnz,), offsets (B,), values (nnz,)),
    then their weights (B,), if there are any; target (B,). Lengths vary, so each batch allocates new tensors."""

    def __init__(self, packed: Packed, plan: EpochPlan, order: Order) -> None:
        self._plan, self._order = plan, order
        self._arrays = packed.arrays()

    def gather(self, epoch: int, batch: int) -> Batch:
        """Copy the rows of batch number `batch` of `epoch`."""
        first, last = self._plan.positions(batch)
        taken = csr_rows(self._arrays, self._order.indices(epoch, first, last))
        offsets = taken["indptr"][:-1].astype(taken["indices"].dtype)
        inputs = (taken["indices"], offsets, taken["values"], *([taken[WEIGHT]] if WEIGHT in taken else []))
        return Batch(tuple(map(torch.from_numpy, inputs)), torch.from_numpy(taken["target"]), first, last - first)


NO_WORD = -1


class TokenFeed:
    """Windows (B, 2 c + 1) int32 of words with the sample's own word in the middle, -1 outside its sentence; c is the
    size `context`. The target (B,) int32 is the word itself. Views of fixed buffers."""

    def __init__(self, packed: Packed, plan: EpochPlan, order: Order) -> None:
        self._plan, self._order = plan, order
        arrays, context = packed.arrays(), packed.spec.sizes["context"]
        self._tokens, self._starts = arrays["tokens"], arrays["starts"]
        self._around = np.arange(-context, context + 1)
        self._windows = np.empty((plan.largest, 2 * context + 1), np.int32)
        self._targets = np.empty(plan.largest, np.int32)

    def gather(self, epoch: int, batch: int) -> Batch:
        """Fill the buffers with the windows of batch number `batch` of `epoch`."""
        first, last = self._plan.positions(batch)
        chosen = self._order.indices(epoch, first, last)
        windows, targets = self._windows[: last - first], self._targets[: last - first]
        sentence = np.searchsorted(self._starts, chosen, side="right")
        places = chosen[:, None] + self._around
        outside = (places < self._starts[sentence - 1, None]) | (places >= self._starts[sentence, None])
        # Places before or after the text are outside, too; the values that "clip" reads there are overwritten.
        self._tokens.take(places, out=windows, mode="clip")
        windows[outside] = NO_WORD
        self._tokens.take(chosen, out=targets, mode="clip")
        return Batch((torch.from_numpy(windows),), torch.from_numpy(targets), first, last - first)


FEEDS: dict[str, Callable[[Packed, EpochPlan, Order], Feed]] = {"table": TableFeed, "csr": CsrFeed, "tokens": TokenFeed}

# ---- either kind ----------------------------------------------------------------------------------------------------

Spec = PackedSpec | tuple[FieldSpec, ...]  # of a packed data set, or of one that is resident row by row


def attach(spec: Spec, region: Region) -> Packed | ResidentData:
    """Return the data set that lies in `region`."""
    return spec.attach(region) if isinstance(spec, PackedSpec) else ResidentData(region, spec)


# FNV-1a (Fowler, Noll and Vo) of a name's bytes, then the mixer of splitmix64.
BASIS, PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
AT_ONCE = 4096  # names: they are padded to the longest of them
Column = tuple[Any, np.ndarray]  # names by number, and the number of each row (N,)


def kinds_of(packed: Packed) -> tuple[str, ...]:
    """Return the kinds of the names that tell the rows, one for each column; () for data whose rows have no names."""
    arrays, names = {spec.name for spec in packed.spec.arrays}, packed.names
    if {"user", "item"} <= arrays and {"users", "items"} <= names.keys():
        return ("users", "items")
    return ("entities", "relations", "entities") if "triple" in arrays and "entities" in names else ()


def columns_of(packed: Packed) -> list[Column] | None:
    """Return the columns whose names tell the rows; None for data whose rows have no names."""
    if not (kinds := kinds_of(packed)):
        return None
    arrays = packed.arrays()
    rows = arrays["triple"].T if "triple" in arrays else (arrays["user"], arrays["item"])
    return [(packed.names[kind], column) for kind, column in zip(kinds, rows, strict=True)]


def held_out(columns: Sequence[Column], fraction: float, seed: int) -> np.ndarray:
    """Return whether each row (N,) belongs to the `fraction` that is held out, by a hash of its names and the seed."""
    bits = np.full(len(columns[0][1]), seed % 2**64, np.uint64)
    for names, rows in columns:
        bits = mixed(bits ^ _hashes(names)[rows])
    is_held: np.ndarray = (mixed(bits + GOLDEN) >> np.uint64(11)).astype(np.float64) * 2.0**-53 < fraction
    return is_held


def rows_in(train: Sequence[Column], val: Sequence[Column]) -> int:
    """Return how many rows of `val` are also in `train`, which has the same names."""
    sizes = [len(names) for names, _ in train]
    known, wanted = (np.ravel_multi_index([rows for _, rows in columns], sizes) for columns in (train, val))
    if (known[1:] < known[:-1]).any():
        known.sort()
    return int((known[np.searchsorted(known, wanted).clip(max=len(known) - 1)] == wanted).sum())


def _hashes(names: Any) -> np.ndarray:
    """Return the hash (n,) uint64 of each name's text: of 7 and "7" it is the same."""
    found = np.full(len(names), BASIS)
    for start in range(0, len(names), AT_ONCE):
        part = np.array([str(name).encode() for name in names[start : start + AT_ONCE]])
        own = found[start : start + AT_ONCE]
        for letter in part.view(np.uint8).reshape(len(part), -1).T:
            own[:] = np.where(letter, (own ^ letter) * PRIME, own)  # 0: behind its end
    return found
