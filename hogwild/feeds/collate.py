"""Collation of records into a slot: stacked, padded, or by the user's own `collate_fn`.

    no collate         a record is a tuple (input, …, target) of tensors, arrays and numbers, nested or not: equal
                       leaves are stacked, (B, …) each
    padding            the same, and fields whose first dimension varies are padded to the longest of the batch,
                       (B, T, …); lengths of inputs, (B,) int64, follow them as one more field
    a collate_fn       batch = collate_fn([record, …]), as in torch.utils.data.DataLoader

The result is (input, …, target), nested in any way; its leaves are tensors, arrays or numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from hogwild.feeds.ring import MOST_DIMENSIONS, BatchForm, Leaf, Ring, Shapes, TooLarge
from hogwild.feeds.row_reader import as_tensor, is_nested
from hogwild.metrics.labels import Labels

NUMBERS = (bool, int, float, np.number, np.bool_)


class BadBatch(Exception):
    """Records that cannot form a batch. `words` says why; `record` is the number within the batch, or None."""

    def __init__(self, words: str, code: str, record: int | None = None) -> None:
        super().__init__(words)
        self.words, self.code, self.record = words, code, record


@dataclass(frozen=True, slots=True)
class PaddingRule:
    """The settings of `data.padding`: `value` pads inputs, `target` pads the last field. `fields`: numbers of the
    fields that vary, once they are known."""

    value: float = 0
    longest: int | None = None
    target: float = -100
    fields: tuple[int, ...] = ()


@dataclass(slots=True)
class BatchLeaf:
    """One leaf of a batch before it is written: one tensor, or one piece per record. With `lengths` the pieces are
    padded with `filler`."""

    pieces: Any  # a Tensor, or a list of tensors, arrays or numbers
    dtype: torch.dtype
    shape: tuple[int, ...]
    lengths: list[int] | None = None
    filler: float = 0

    def write(self, view: Tensor) -> None:
        """Write into the slot's memory `view`, which has this shape."""
        if isinstance(self.pieces, Tensor):
            view.copy_(self.pieces)
        elif self.lengths is not None:
            view.fill_(self.filler)
            for row, (piece, length) in enumerate(zip(self.pieces, self.lengths, strict=True)):
                view[row, :length] = piece if isinstance(piece, Tensor) else torch.as_tensor(piece)
        elif isinstance(self.pieces[0], Tensor):
            if view.is_contiguous():
                torch.stack(self.pieces, out=view)
            else:
                view.copy_(torch.stack(self.pieces))
        elif isinstance(self.pieces[0], np.ndarray) and view.is_contiguous():
            np.stack(self.pieces, out=view.numpy())
        else:
            view.copy_(torch.from_numpy(np.stack(self.pieces)).reshape(view.shape))


@dataclass(frozen=True, slots=True)
class Collator:
    """Makes batches of records. `channels_last`: memory format of images. `labels`: the valid targets. An invalid one
    would otherwise raise in the middle of an update on a CPU, and destroy the worker's CUDA context on a GPU."""

    collate: Callable[[list[Any]], Any] | None = None
    padding: PaddingRule | None = None
    channels_last: bool = False
    labels: Labels | None = None

    def with_padding_of(self, records: Sequence[Any]) -> "Collator":
        """Return a collator that knows which fields to pad: those of different length in `records`, else the first."""
        if self.padding is None or self.padding.fields:
            return self
        fields = [_as_tuple(record) for record in records]
        numbers = [
            number
            for number in range(len(fields[0]))
            if len({_length(record[number]) for record in fields if number < len(record)}) > 1
        ]
        return replace(self, padding=replace(self.padding, fields=tuple(numbers) or (0,)))

    def columns(self, records: list[Any]) -> tuple[TreeSpec, list[BatchLeaf]]:
        """Return the nesting and the leaves of the batch. Raises BadBatch, and what the user's collate_fn raises."""
        if self.collate is not None:
            return self._collated(self.collate(records))
        if self.padding is not None:
            return self._padded([_as_tuple(record) for record in records])
        first, tree = tree_flatten(_as_tuple(records[0]))
        if (fields := _plain_fields(records)) is not None:
            return tree, [_stacked(pieces, field) for field, pieces in enumerate(fields)]
        leaves: list[list[Any]] = [[leaf] for leaf in first]
        for number, record in enumerate(records[1:], 1):
            flat, other = tree_flatten(_as_tuple(record, number))
            if other != tree:
                words = f"is nested as {_describe(other)}, the first of its batch as {_describe(tree)}"
                raise BadBatch(words, "data/unlike-items", number)
            for column, leaf in zip(leaves, flat, strict=True):
                column.append(leaf)
        return tree, [_stacked(column, field) for field, column in enumerate(leaves)]

    def _padded(self, records: list[tuple[Any, ...]]) -> tuple[TreeSpec, list[BatchLeaf]]:
        assert self.padding is not None
        columns: list[BatchLeaf] = []
        width = len(records[0])
        for number, record in enumerate(records):
            if len(record) != width:
                raise BadBatch(f"has {len(record)} fields, the first {width}", "data/unlike-items", number)
        for field in range(width):
            pieces = [record[field] for record in records]
            if field in self.padding.fields:
                columns += self._pad(pieces, field, is_target=field == width - 1)
            else:
                columns.append(_stacked(pieces, field))
        return tree_flatten(tuple(range(len(columns))))[1], columns

    def _pad(self, pieces: list[Any], field: int, *, is_target: bool) -> list[BatchLeaf]:
        """Return the padded field; the lengths follow an input, but not a target, which stays last."""
        assert self.padding is not None
        tensors = [torch.as_tensor(piece) for piece in pieces]
        dtype, rest = tensors[0].dtype, tuple(tensors[0].shape[1:])
        for number, tensor in enumerate(tensors):
            if tensor.dim() == 0:
                raise BadBatch(f"has a single number as field {field}, which data.padding pads", "data/padding", number)
            if tuple(tensor.shape[1:]) != rest or tensor.dtype != dtype:
                words = f"field {field} is {_shape(tensor)}, in the first {_shape(tensors[0])}"
                raise BadBatch(f"{words}; only the first dimension may vary", "data/unlike-items", number)
            if self.padding.longest is not None and len(tensor) > self.padding.longest:
                words = f"has {len(tensor)} elements in field {field}, more than data.padding.longest"
                raise BadBatch(f"{words} {self.padding.longest}", "data/padding", number)
        lengths = [len(tensor) for tensor in tensors]
        if dtype == torch.float64 and not isinstance(pieces[0], Tensor | np.ndarray):
            dtype = torch.float32
        shape = (len(tensors), max(lengths), *rest)
        if is_target:
            return [BatchLeaf(tensors, dtype, shape, lengths, self.padding.target)]
        padded = BatchLeaf(tensors, dtype, shape, lengths, self.padding.value)
        return [padded, BatchLeaf(torch.tensor(lengths), torch.int64, (len(lengths),))]

    def _collated(self, batch: Any) -> tuple[TreeSpec, list[BatchLeaf]]:
        if not isinstance(batch, (tuple, list)) or len(batch) < 2:
            words = f"collate_fn returned a {type(batch).__name__}; a batch is a tuple (input, …, target)"
            raise BadBatch(words, "data/bad-batch")
        leaves, tree = tree_flatten(tuple(batch))
        columns = []
        for leaf in leaves:
            if not isinstance(leaf, (Tensor, np.ndarray, *NUMBERS)):
                words = f"collate_fn returned a {type(leaf).__name__} inside its batch"
                raise BadBatch(f"{words}; return only tensors, arrays and numbers", "data/bad-batch")
            is_float = type(leaf) is float
            tensor = torch.tensor(leaf, dtype=torch.float32) if is_float else torch.as_tensor(leaf)
            if tensor.layout != torch.strided:
                raise BadBatch(f"collate_fn returned a {tensor.layout} tensor; return dense ones", "data/bad-batch")
            columns.append(BatchLeaf(tensor.detach(), tensor.dtype, tuple(tensor.shape)))
        return tree, columns

    def form(self, records: list[Any]) -> tuple[BatchForm, Shapes]:
        """Return the form and the shapes of a stream's batches, from its first records."""
        tree, columns = self.columns(records)
        leaves = []
        for number, column in enumerate(columns):
            _check_dimensions(number, column)
            is_image = len(column.shape) == 4 and column.dtype.is_floating_point and number < len(columns) - 1
            leaves.append(Leaf(column.dtype, channels_last=is_image and self.channels_last))
        return BatchForm.of(tree, leaves), tuple(column.shape for column in columns)

    def put(self, records: list[Any], ring: Ring, slot: int) -> tuple[int, Shapes]:
        """Write the batch into the slot and return (rows, shapes). Raises BadBatch."""
        tree, columns = self.columns(records)
        form = ring.spec.form
        if tree != ring.tree:
            words = f"is nested as {_describe(tree)}, the first batch as {form.nesting}"
            raise BadBatch(words, "data/unlike-items")
        for number, (column, leaf) in enumerate(zip(columns, form.leaves, strict=True)):
            if column.dtype != leaf.dtype:
                words = f"tensor {number} is {_type(column.dtype)}, in the first batch {_type(leaf.dtype)}"
                raise BadBatch(words, "data/unlike-items")
            _check_dimensions(number, column)
        shapes = tuple(column.shape for column in columns)
        try:
            views = ring.reserve(slot, shapes)
        except TooLarge as error:
            raise BadBatch(
                f"takes {error.args[0]:,} bytes ({', '.join(map(str, shapes))}), but a slot has only "
                f"{ring.spec.data_bytes:,}: set data.slot_bytes, or data.padding.longest",
                "data/batch-too-large",
            ) from error
        for column, view in zip(columns, views, strict=True):
            column.write(view)
        if self.labels is not None and (wrong := self.labels.wrong(views[-1])) is not None:
            row, value = wrong
            words = f"has label {self.labels.describe(value)}"
            raise BadBatch(words, "data/labels", None if self.collate is not None else row)
        return len(records), shapes


def _check_dimensions(number: int, column: BatchLeaf) -> None:
    if len(column.shape) > MOST_DIMENSIONS:
        words = f"tensor {number} has {len(column.shape)} dimensions; a streamed batch has at most {MOST_DIMENSIONS}"
        raise BadBatch(words, "data/bad-batch")


def _plain_fields(records: list[Any]) -> list[list[Any]] | None:
    """Return the pieces of each field if all records are tuples of the same number of tensors, arrays and numbers; None
    otherwise. Covers most data and is thirty times as fast as flattening every record."""
    if not _are(records, (tuple, list)) or len(set(map(len, records))) > 1:
        return None
    fields = [list(pieces) for pieces in zip(*records, strict=True)]
    return fields if all(_are(pieces, (Tensor, np.ndarray, *NUMBERS)) for pieces in fields) else None


def _are(things: list[Any], kinds: tuple[type, ...]) -> bool:
    """Return whether all things are of these kinds. Checks each distinct type once, not each thing."""
    return all(issubclass(kind, kinds) for kind in set(map(type, things)))


def _stacked(pieces: list[Any], field: int) -> BatchLeaf:
    """Stack equal leaves of all records. Like torch's default collation, but a Python float becomes float32."""
    first = pieces[0]
    if isinstance(first, Tensor):
        pieces = [piece.detach() for piece in pieces] if first.requires_grad else pieces
        shape, dtype = first.shape, first.dtype
        are_tensors = _are(pieces, (Tensor,))
        for number, piece in enumerate(pieces):
            if not (are_tensors or isinstance(piece, Tensor)) or piece.shape != shape or piece.dtype != dtype:
                raise _unlike(piece, first, field, number)
        if first.layout != torch.strided:
            raise BadBatch(f"field {field} is a {first.layout} tensor; use dense ones", "data/not-dense", 0)
        return BatchLeaf(pieces, dtype, (len(pieces), *shape))
    if isinstance(first, np.ndarray):
        for number, piece in enumerate(pieces):
            if not isinstance(piece, np.ndarray) or piece.shape != first.shape or piece.dtype != first.dtype:
                raise _unlike(piece, first, field, number)
        return BatchLeaf(pieces, torch.from_numpy(np.empty(0, first.dtype)).dtype, (len(pieces), *first.shape))
    for number, piece in enumerate(pieces) if not _are(pieces, NUMBERS) else ():
        if not isinstance(piece, NUMBERS):
            words = f"field {field} is a {type(piece).__name__}; use tensors, arrays or numbers, or set data.collate"
            raise BadBatch(words, "data/bad-item", number)
    is_float = any(issubclass(kind, float) and not issubclass(kind, np.floating) for kind in set(map(type, pieces)))
    whole = torch.tensor(pieces, dtype=torch.float32) if is_float else torch.from_numpy(np.array(pieces))
    return BatchLeaf(whole, whole.dtype, (len(pieces),))


def _unlike(piece: Any, first: Any, field: int, number: int) -> BadBatch:
    words = f"field {field} is {_shape(piece)}, in the first record of its batch {_shape(first)}"
    return BadBatch(f"{words}; set data.padding or data.collate for records that vary", "data/unlike-items", number)


def _as_tuple(record: Any, number: int = 0) -> tuple[Any, ...]:
    if not isinstance(record, (tuple, list)) or len(record) < 2:
        words = f"is a {type(record).__name__}; a record is a tuple (input, …, target), or set data.collate"
        raise BadBatch(words, "data/bad-item", number)
    return tuple(as_tensor(field) if isinstance(field, list) and not is_nested(field) else field for field in record)


def _length(field: Any) -> int:
    return len(field) if isinstance(field, (Tensor, np.ndarray, list)) and np.ndim(field) else -1


def _shape(piece: Any) -> str:
    if isinstance(piece, Tensor):
        return f"{tuple(piece.shape)} {_type(piece.dtype)}"
    return f"{piece.shape} {piece.dtype}" if isinstance(piece, np.ndarray) else f"a {type(piece).__name__}"


def _type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _describe(tree: TreeSpec) -> str:
    return str(tree_unflatten(range(tree.num_leaves), tree))
