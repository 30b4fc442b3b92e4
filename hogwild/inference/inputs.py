"""Inputs to predict, in blocks: from a file like the one a run was trained on, from standard input, or a data set.

    Csv         CSV, Parquet: columns by name     '── ranges of rows, read again by any process
    Npz         arrays by name, .npz              '
    LibSvm      lines, with or without labels     ─── pieces of text
    data sets   by index, by `rows`, tensors      ─── ranges of rows
    packed      ratings: parsed whole             ─── ranges of rows

A block is what the model gets at once, so the outputs do not depend on who reads it."""

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import TensorDataset

from hogwild.config.schema import Component
from hogwild.data.csv.clicks import Clicks
from hogwild.data.csv.dataset import Csv
from hogwild.data.input_rows import SAMPLE, InputRows
from hogwild.data.libsvm import LibSvm
from hogwild.data.npz import Npz, NpzRows
from hogwild.data.pair_tables import PairTable, is_table, rows_of
from hogwild.data.text_file import TextFile, TextStream
from hogwild.data.text_parsing import INPUT
from hogwild.errors import DataError, UsageError
from hogwild.feeds.packed import Packed
from hogwild.feeds.row_reader import Reader, RowSource, first_non_finite, not_finite, ready_tensors
from hogwild.feeds.stream_reader import BadBatch, Collator
from hogwild.job.data import packs, require_same_names
from hogwild.job.row_names import CLASSES
from hogwild.job.source import as_batch, has_nested
from hogwild.job.weights import is_weighted
from hogwild.user_code import build, resolve

STANDARD_INPUT = "-"
BLOCK_ROWS = 4096
BLOCK_BYTES = 32 << 20  # of inputs
STREAM = "standard input is read by one process"
# File name endings by the data sets that read them. Any other ending may be anything.
ENDINGS: Mapping[str, tuple[str, str]] = {
    ".csv": ("Csv Clicks Ratings Jester Triples", "a table as text"),
    ".tsv": ("Csv Clicks Ratings Triples", "a table as text"),
    ".parquet": ("Csv Clicks", "a Parquet table"),
    ".npz": ("Npz TensorDataset", "NumPy arrays"),
    ".svm": ("LibSvm", "libsvm rows"),
    ".libsvm": ("LibSvm", "libsvm rows"),
}
Cut = tuple[int, ...]  # the place of a block, for `read` in any process


class Inputs(Protocol):
    """Blocks of inputs. `cuts` in this process, in the order of the rows; `read` in any that has a copy; `blocks` is
    both. `why_alone`: the reason that no other process can read them; "" for none."""

    @property
    def why_alone(self) -> str: ...
    def cuts(self) -> Iterator[Cut]: ...
    def read(self, cut: Cut) -> InputRows: ...
    def blocks(self) -> Iterator[InputRows]: ...


class InRanges(Protocol):
    def __len__(self) -> int: ...
    def inputs_of(self, start: int, stop: int) -> InputRows: ...


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of rows of something that is read by number. Raises DataError for a number that is NaN or infinite."""

    rows: InRanges
    why_alone: str = ""

    def cuts(self) -> Iterator[Cut]:
        count = len(self.rows)
        if not count:
            raise DataError(f"{INPUT}: it contains no samples", code="data/empty")
        row_bytes = sum(tensor.nbytes for tensor in tree_leaves(self.rows.inputs_of(0, 1).inputs))
        self._close()
        size = min(BLOCK_ROWS, max(1, BLOCK_BYTES // max(1, row_bytes)))
        return ((start, min(count, start + size)) for start in range(0, count, size))

    def read(self, cut: Cut) -> InputRows:
        start, stop = cut
        block = self.rows.inputs_of(start, stop)
        leaves = tree_leaves(block.inputs)
        for position, tensor in enumerate(leaves):
            if (row := first_non_finite(tensor)) is not None:
                raise not_finite(INPUT, start + row, position, len(leaves) + 1)
        return block

    def blocks(self) -> Iterator[InputRows]:
        try:
            yield from map(self.read, self.cuts())
        finally:
            self._close()

    def _close(self) -> None:
        """Close the file, if there is one that is open between two calls."""
        if (close := getattr(self.rows, "close", None)) is not None:
            close()


@dataclass(frozen=True, slots=True)
class SparseLines:
    """Pieces of a libsvm file or stream."""

    source: LibSvm
    sizes: Mapping[str, int]
    names: Mapping[str, Any]  # of the training data
    text: TextFile | None  # for `read`; None: a stream
    why_alone: str = ""

    def cuts(self) -> Iterator[Cut]:
        return ((begin, len(content), line, row) for begin, content, line, row in self.source.pieces())

    def read(self, cut: Cut) -> InputRows:
        begin, size, line, row = cut
        assert self.text is not None, "a stream"
        return self._rows(self.text.read_at(begin, size), line, row)

    def blocks(self) -> Iterator[InputRows]:
        for _, content, line, row in self.source.pieces():
            yield self._rows(content, line, row)

    def _rows(self, content: bytes, line: int, row: int) -> InputRows:
        packed = self.source.inputs_in(content, line, nothing_like(self.sizes, self.names))
        return InputRows({SAMPLE: range(row, row + packed.samples)}, packed.pick(np.arange(packed.samples)).inputs)


def nothing_like(sizes: Mapping[str, int], names: Mapping[str, Any]) -> Packed:
    """Return an empty data set with the training data's names and sizes: new data is encoded with these."""
    return Packed.of("nothing", "table", {"target": np.empty(0, np.float32)}, sizes, names)


@dataclass(frozen=True, slots=True)
class Arriving:
    """A table that comes through standard input: its rows are read once, by `blocks`."""

    source: Csv
    why_alone: str = STREAM

    def cuts(self) -> Iterator[Cut]:
        raise AssertionError(self.why_alone)

    def read(self, cut: Cut) -> InputRows:
        raise AssertionError(self.why_alone)

    def blocks(self) -> Iterator[InputRows]:
        is_empty = True
        for block in self.source.stream():
            is_empty = False
            yield block
        if is_empty:
            raise DataError("standard input: contains no samples: there is no row", code="data/empty")


@dataclass(frozen=True, slots=True)
class _Tensors:
    inputs: Sequence[Tensor]

    def __len__(self) -> int:
        return len(self.inputs[0])

    def inputs_of(self, start: int, stop: int) -> InputRows:
        return InputRows({SAMPLE: range(start, stop)}, tuple(tensor[start:stop] for tensor in self.inputs))


@dataclass(frozen=True, slots=True)
class _Items:
    source: RowSource

    def __len__(self) -> int:
        return self.source.count

    def inputs_of(self, start: int, stop: int) -> InputRows:
        fields = self.source.read_here(start, stop)
        return InputRows({SAMPLE: range(start, stop)}, fields[: -2 if is_weighted(self.source.dataset) else -1])


@dataclass(frozen=True, slots=True)
class _NestedItems:
    """Items whose fields are tuples, lists or dicts: as the batches of a stream."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def inputs_of(self, start: int, stop: int) -> InputRows:
        try:
            batch = as_batch(Collator(), [self.dataset[row] for row in range(start, stop)])
        except BadBatch as bad:
            number = start + (bad.record or 0)
            raise DataError(f"{INPUT}: item {number} {bad.words}", code=bad.code) from bad
        return InputRows({SAMPLE: range(start, stop)}, tuple(batch[: -2 if is_weighted(self.dataset) else -1]))


@dataclass(frozen=True, slots=True)
class _PackedRows:
    packed: Packed

    def __len__(self) -> int:
        return self.packed.samples

    def inputs_of(self, start: int, stop: int) -> InputRows:
        rows = np.arange(start, stop)
        names: dict[str, Any] = {SAMPLE: rows}
        arrays = self.packed.arrays()
        if self.packed.spec.form == "table" and {"user", "item"} <= arrays.keys():
            kinds = {"user": self.packed.names["users"], "item": self.packed.names["items"]}
            names = {key: [known[number] for number in arrays[key][rows]] for key, known in kinds.items()}
        inputs = self.packed.pick(rows).inputs
        return InputRows(names, inputs[: len(inputs) - self.packed.has_sample_weights])


# ---- where they come from -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TrainedOn:
    """The training data, as far as the reading of further data depends on it."""

    data: Component
    columns: Sequence[str] | None
    sizes: Mapping[str, int]
    names: Mapping[str, Any]
    reader: Reader
    seed: int
    on_bad_line: str

    def of_dataset(self, dataset: Any) -> Inputs:
        """Return the inputs in a data set, or in a table in memory; its targets are not used. Raises DataError."""
        if hasattr(dataset, "__arrow_c_stream__") and issubclass(self._kind, Csv):
            return Ranges(self._encoding(self._built(dataset)))
        if isinstance(dataset, Clicks) and issubclass(self._kind, Clicks):
            return Ranges(self._encoding(copy.copy(dataset)))
        if is_table(dataset) and {"users", "items"} <= self.names.keys():
            return Ranges(_Tensors(self._pairs_in(dataset)))
        if isinstance(dataset, Packed) or packs(dataset):
            packed = dataset if isinstance(dataset, Packed) else dataset.pack(
                self.reader, INPUT, nothing_like(self.sizes, self.names), self.on_bad_line
            )  # fmt: skip
            return Ranges(_PackedRows(packed), "its file is parsed as a whole, by one process")
        dataset = self._in_order(dataset)
        if hasattr(dataset, "inputs_of"):
            return Ranges(dataset)
        if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 1:
            return Ranges(_Tensors(dataset.tensors))
        tensors = ready_tensors(dataset, INPUT)
        if tensors is not None:
            return Ranges(_Tensors(tensors[: -2 if is_weighted(dataset) else -1]))
        try:
            return Ranges(_Items(RowSource.of(dataset, INPUT, self.seed)))
        except DataError as error:
            if error.code != "data/bad-item" or not has_nested(dataset):
                raise
            return Ranges(_NestedItems(dataset))

    def _in_order(self, dataset: Any) -> Any:
        """Return a data set with its inputs by the training data's names. Raises UsageError for a missing one, and
        DataError for names in another order that nothing can restore."""
        if self.columns and isinstance(dataset, Csv) and issubclass(self._kind, Csv):
            dataset = copy.copy(dataset)
            dataset.read_inputs_of(self.data.init_args, self.columns, self._means)
        elif self.columns and isinstance(dataset, Npz):
            dataset = copy.copy(dataset)
            dataset.order_inputs(self.columns, INPUT)
        else:
            targets_too = (CLASSES, "means")
            require_same_names(
                {kind: one for kind, one in self.names.items() if kind not in targets_too}, dataset, INPUT
            )
        return dataset

    @property
    def _means(self) -> dict[str, float] | None:
        """The training data's means, by column, if missing values have these."""
        return dict(zip(self.names["features"], self.names["means"], strict=True)) if "means" in self.names else None

    def _pairs_in(self, table: Any) -> tuple[Tensor, ...]:
        """Return the rows (N,) of users and of items in a table in memory. Raises UsageError for an unknown one."""
        pairs, found = PairTable.of(table), list[Tensor]()
        for kind, ids in (("users", pairs.users), ("items", pairs.items)):
            rows = rows_of(np.asarray(self.names[kind]), ids)
            if (rows < 0).any():
                unknown = int((rows < 0).argmax())
                raise UsageError(
                    f"row {unknown} of the table: {ids[unknown]} is not among the {kind} of the training data, of whom "
                    f"nothing was learnt; {int((rows < 0).sum()):,} rows are like this: leave them out",
                    code="usage/unknown-name",
                )
            found.append(torch.from_numpy(rows))
        return (*found,)

    def of_file(self, path: str, ids: str | None, model: nn.Module) -> Inputs:
        """Return the inputs in a file like that of the training data, or in standard input ("-"). `ids`: its column of
        ids. Raises NotFoundError, DataError, UsageError."""
        kind = self._kind
        self._check_ending(path, kind)
        if ids is not None and not issubclass(kind, Csv | Npz | TensorDataset):
            raise UsageError(f"--id {ids}: {self.data.class_path} has no columns of ids", code="usage/no-ids")
        if path == STANDARD_INPUT:
            return self.of_stream(TextStream(Path("standard input"), 0), ids)
        place = str(Path(path).absolute())
        if issubclass(kind, Npz):
            return Ranges(_with_ids(NpzRows(place, self.data.init_args.get("inputs", "x")), ids))
        if issubclass(kind, TensorDataset) and path.endswith(".npz"):
            wanted = [name for name in inspect.signature(model.forward).parameters if name != "state"]
            return Ranges(_with_ids(NpzRows(place, None, wanted=wanted), ids))
        dataset = self._built(place)
        if issubclass(kind, Csv):
            return Ranges(_with_ids(self._encoding(dataset), ids))
        if issubclass(kind, LibSvm):
            return SparseLines(dataset, self.sizes, self.names, TextFile(dataset.path))
        return self.of_dataset(dataset)

    def of_stream(self, stream: TextStream, ids: str | None) -> Inputs:
        """Return the inputs in text that is read once. Raises DataError, UsageError."""
        kind = self._kind
        if not issubclass(kind, Csv | LibSvm):
            raise UsageError(
                f"{stream.path}: {self.data.class_path} cannot be read from a stream, only tables and libsvm rows "
                "can: give a file",
                code="usage/no-input",
            )
        dataset = self._built(stream)
        if issubclass(kind, LibSvm):
            return SparseLines(dataset, self.sizes, self.names, None, STREAM)
        return Arriving(_with_ids(self._encoding(dataset), ids))

    @property
    def _kind(self) -> type:
        found = resolve(self.data.class_path)
        return found if isinstance(found, type) else object  # a function makes a data set of any class

    def _encoding(self, dataset: Csv) -> Csv:
        """Return the table; one that makes sparse rows numbers them as the training data's."""
        if isinstance(dataset, Clicks):
            dataset.number_by({**self.names, "columns": self.columns or dataset.columns})
        return dataset

    def _built(self, path: Any) -> Any:
        kind = resolve(self.data.class_path)
        known = inspect.signature(kind).parameters
        name = next((one for one in ("path", "file", "folder") if one in known), None)
        if name is None:
            raise UsageError(
                f"{self.data.class_path} has no argument path; call it from Python with a data set instead of a file",
                code="usage/no-input",
            )
        arguments = {key: value for key, value in self.data.init_args.items() if key not in ("split", "holdout")}
        if (for_inputs := getattr(kind, "for_inputs", None)) is not None:
            arguments = for_inputs(arguments, self.columns)
        if arguments.get("missing") == "mean" and self._means is not None:
            arguments["missing"] = self._means
        return build(self.data.model_copy(update={"init_args": arguments | {name: path}}))

    def _check_ending(self, path: str, kind: type) -> None:
        readers, what = ENDINGS.get(Path(path).suffix.lower(), ("", ""))
        ours = [one.__name__ for one in kind.__mro__ if one.__module__.startswith(("hogwild.data", "torch.utils.data"))]
        names = {name for one in ENDINGS.values() for name in one[0].split()}
        if readers and names.intersection(ours) and not set(readers.split()).intersection(ours):
            endings = ", ".join(ending for ending, one in ENDINGS.items() if set(one[0].split()).intersection(ours))
            raise UsageError(
                f"{path}: is {what}, by its name, but the run was trained on {self.data.class_path}, which reads "
                f"{endings} and files with other endings; rename the file if its name is wrong",
                code="usage/other-kind-of-file",
            )


def _with_ids(rows: Any, ids: str | None) -> Any:
    if ids is not None:
        rows.identify(ids)
    return rows
