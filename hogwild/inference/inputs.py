"""Inputs to predict, in blocks: from a file like the one a run was trained on, from standard input, or a data set.

    Csv         CSV, Parquet: columns by name     '── ranges of rows, read again by any process
    Npz         arrays by name, .npz              '
    LibSvm      lines, with or without labels     ─── pieces of text
    data sets   by index, by `rows`, tensors      ─── ranges of rows
    packed      ratings: parsed whole             ─── ranges of rows
    texts       a text per line, from a file or stream

A block is what the model gets at once, so the outputs do not depend on who reads it. Items that the job pads, or gives
to its `data.collate`, become a batch here as they do in its evaluations: by the same code, and as many at once, because
what the model gets of a sample may depend on the samples beside it."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.data import DataLoader, TensorDataset

from hogwild.config.schema import Data
from hogwild.data.characters import LabelledLines, texts_in
from hogwild.data.csv.clicks import Clicks
from hogwild.data.csv.dataset import Csv
from hogwild.data.input_rows import SAMPLE, InputRows
from hogwild.data.libsvm import LibSvm
from hogwild.data.npz import Npz, NpzRows
from hogwild.data.pair_tables import PairTable, is_table, rows_of
from hogwild.data.ratings import Ratings
from hogwild.data.text_file import TextFile, TextStream, not_text
from hogwild.data.text_parsing import INPUT, PackedFile
from hogwild.errors import DataError, HogwildError, UsageError, did_you_mean, shown_name
from hogwild.feeds.packed import Packed
from hogwild.feeds.row_reader import Reader, RowSource, first_non_finite, is_nested, not_finite, ready_tensors
from hogwild.feeds.stream_reader import BadBatch, Collator
from hogwild.job.data import evaluation_batch, packs, require_same_names
from hogwild.job.data_loader import LoaderParts
from hogwild.job.row_names import CLASSES
from hogwild.job.source import as_batch, collator_of, has_nested, is_iterable
from hogwild.job.weights import is_weighted
from hogwild.user_code import build, build_callable, raised_text, resolve

STANDARD_INPUT = "-"
BLOCK_ROWS = 4096
BLOCK_BYTES = 32 << 20  # of inputs
STREAM = "standard input is read by one process"
SYMBOLS = "symbols"  # the characters of texts, by number
# File name endings by the data sets that read them. Any other ending may be anything.
ENDINGS: Mapping[str, tuple[str, str]] = {
    ".csv": ("Csv Clicks Ratings Jester Triples", "a table as text"),
    ".tsv": ("Csv Clicks Ratings Triples", "a table as text"),
    ".parquet": ("Csv Clicks", "a Parquet table"),
    ".npz": ("Npz TensorDataset", "NumPy arrays"),
    ".svm": ("LibSvm", "libsvm rows"),
    ".libsvm": ("LibSvm", "libsvm rows"),
}
PARTS = ("split", "holdout")  # arguments of a data class that choose a part of the file
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
    """Ranges of rows of something that is read by number. `at_once`: rows of a block; 0: as many as are quick. Raises
    DataError for a number that is NaN or infinite, unless the job's own function made the batch (`is_checked`)."""

    rows: InRanges
    why_alone: str = ""
    at_once: int = 0
    is_checked: bool = True

    def cuts(self) -> Iterator[Cut]:
        count = len(self.rows)
        if not count:
            raise DataError(f"{INPUT}: it contains no samples", code="data/empty")
        size = self.at_once
        if not size:
            row_bytes = sum(tensor.nbytes for tensor in tree_leaves(self.rows.inputs_of(0, 1).inputs))
            self._close()
            size = min(BLOCK_ROWS, max(1, BLOCK_BYTES // max(1, row_bytes)))
        return ((start, min(count, start + size)) for start in range(0, count, size))

    def read(self, cut: Cut) -> InputRows:
        start, stop = cut
        block = self.rows.inputs_of(start, stop)
        leaves = tree_leaves(block.inputs)
        for position, tensor in enumerate(leaves if self.is_checked else ()):
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
    """Rows that are read once, from the first to the last, by `blocks`."""

    parts: Callable[[], Iterator[InputRows]]
    what: str = "standard input"
    why_alone: str = STREAM

    def cuts(self) -> Iterator[Cut]:
        raise AssertionError(self.why_alone)

    def read(self, cut: Cut) -> InputRows:
        raise AssertionError(self.why_alone)

    def blocks(self) -> Iterator[InputRows]:
        is_empty = True
        for block in self.parts():
            is_empty = False
            yield block
        if is_empty:
            raise DataError(f"{self.what}: contains no samples: there is no row", code="data/empty")


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
class Batching:
    """The job's own way from items to the inputs of a batch. `at_once`: items of a batch, where that may matter."""

    collator: Collator
    at_once: int = 0

    def inputs(self, items: Sequence[Any], first: int = 0) -> tuple[Any, ...]:
        """Return the inputs of the batch of `items`; `first`: the number of the first one. Items may lack their target,
        unless `data.collate` gets them: it gets what it gets in training. Raises DataError."""
        collator, last = self.collator, first + len(items) - 1
        given = [*items] if collator.collate is not None else [*map(self._with_target, items)]
        try:
            return tuple(as_batch(collator.with_padding_of(given), given)[:-1])
        except BadBatch as bad:
            which = f"the batch of items {first} to {last}:" if bad.record is None else f"item {first + bad.record}"
            raise DataError(f"{INPUT}: {which} {bad.words}", code=bad.code) from bad
        except HogwildError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(
                f"{INPUT}: data.collate on items {first} to {last} raised {raised_text(error)}; it is called with "
                "items like those of the training data: give a target too, of any value",
                code="data/item-raised",
            ) from error

    def rows(self, block: InputRows, first: int = 0) -> InputRows:
        """Return the same rows as the job's own batch of them; `block`: stacked."""
        items = [(*fields, torch.tensor(0)) for fields in zip(*block.inputs, strict=True)]
        return InputRows(block.names, self.inputs(items, first))

    def of(self, items: Iterator[Any]) -> Iterator[InputRows]:
        """Yield batches of items that are read once."""
        first = 0
        while some := [*islice(items, self.at_once or BLOCK_ROWS)]:
            yield InputRows({SAMPLE: range(first, first + len(some))}, self.inputs(some, first))
            first += len(some)

    def _with_target(self, item: Any) -> Any:
        is_field = not isinstance(item, tuple | list) or (isinstance(item, list) and not is_nested(item))
        fields = (item,) if is_field else tuple(item)
        if len(fields) != 1:
            return item
        padding = self.collator.padding
        return (*fields, torch.zeros(1) if padding is not None and 1 in padding.fields else torch.tensor(0))


@dataclass(frozen=True, slots=True)
class _Unbatched:
    """Items of any kind that the job makes batches of, by number."""

    dataset: Any
    batching: Batching

    def __len__(self) -> int:
        return len(self.dataset)

    def inputs_of(self, start: int, stop: int) -> InputRows:
        texts = self.dataset.texts[start:stop] if isinstance(self.dataset, LabelledLines) else None
        names = {SAMPLE: range(start, stop)} if texts is None else {"text": texts}
        return InputRows(names, self.batching.inputs([*map(self._item, range(start, stop))], start))

    def _item(self, number: int) -> Any:
        try:
            return self.dataset[number]
        except DataError as error:
            raise DataError(f"{INPUT}: item {number}: {error}", code=error.code) from error
        except (Exception, SystemExit) as error:
            words = f"{INPUT}: reading item {number} raised {raised_text(error)}"
            raise DataError(words, code="data/item-raised") from error


@dataclass(frozen=True, slots=True)
class _Batched:
    """Rows of tensors of which the job makes its own batches."""

    source: InRanges
    batching: Batching

    def __len__(self) -> int:
        return len(self.source)

    def inputs_of(self, start: int, stop: int) -> InputRows:
        return self.batching.rows(self.source.inputs_of(start, stop), start)

    def close(self) -> None:
        if (close := getattr(self.source, "close", None)) is not None:
            close()


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

    data: Data
    columns: Sequence[str] | None
    sizes: Mapping[str, int]
    names: Mapping[str, Any]
    reader: Reader
    seed: int
    padded: Sequence[int] = ()  # numbers of the fields of a sample
    collate: Callable[..., Any] | None = None  # given in the place of that of `data.collate`

    @property
    def batching(self) -> Batching:
        """The job's way to make a batch of items. Raises UsageError for a `data.collate` that cannot be imported."""
        data, collate = self.data, self.collate
        if collate is None and data.collate is not None:
            try:
                collate = build_callable(data.collate)
            except HogwildError as error:
                raise UsageError(
                    f"data.collate, which makes the batches of this run, is not there: {error}\nIf it was a function "
                    "given to hogwild.train, give it again: hogwild.load(RUN, collate=…)",
                    code=error.code,
                ) from error
        at_once = 0 if collate is None and data.padding is None else evaluation_batch(data)
        return Batching(collator_of(data, collate, padded=self.padded), at_once)

    def of_dataset(self, dataset: Any) -> Inputs:
        """Return the inputs in a data set, or in a table in memory; its targets are not used. Raises DataError,
        UsageError."""
        if isinstance(dataset, DataLoader):
            dataset = LoaderParts.of(dataset, INPUT).in_order(INPUT)
        if issubclass(self._kind, LabelledLines) and SYMBOLS in self.names:
            dataset = self._texts(dataset)
        if hasattr(dataset, "__arrow_c_stream__") and issubclass(self._kind, Csv):
            return self._ranges(self._encoding(self._built(dataset)))
        if isinstance(dataset, Clicks) and issubclass(self._kind, Clicks):
            return self._ranges(self._encoding(copy.copy(dataset)))
        if is_table(dataset) and {"users", "items"} <= self.names.keys():
            return Ranges(_Tensors(self._pairs_in(dataset)))
        if isinstance(dataset, Packed) or packs(dataset):
            packed = dataset if isinstance(dataset, Packed) else dataset.pack(
                self.reader, INPUT, nothing_like(self.sizes, self.names), self.data.on_bad_line
            )  # fmt: skip
            return Ranges(_PackedRows(packed), "its file is parsed as a whole, by one process")
        dataset = self._in_order(dataset)
        if hasattr(dataset, "inputs_of"):
            return self._ranges(dataset)
        batching = self.batching
        if is_iterable(dataset):
            parts = partial(_flowing, dataset, batching)
            return Arriving(parts, INPUT, f"{type(dataset).__name__} can only be read from start to end")
        if batching.at_once:
            if not hasattr(type(dataset), "__len__"):
                raise DataError(f"{INPUT}: {type(dataset).__name__} has no len()", code="data/no-length")
            return Ranges(_Unbatched(dataset, batching), "", batching.at_once, batching.collator.collate is None)
        if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 1:
            return Ranges(_Tensors(dataset.tensors))
        tensors = ready_tensors(dataset, INPUT)
        if tensors is not None:
            return Ranges(_Tensors(tensors[: -2 if is_weighted(dataset) else -1]))
        try:
            return Ranges(_Items(RowSource.of(dataset, INPUT, self.seed)))
        except DataError as error:
            if error.code != "data/bad-item" or not (has_nested(dataset) or isinstance(dataset[0], Mapping)):
                raise
            return Ranges(_Unbatched(dataset, batching))

    def _ranges(self, rows: InRanges) -> Ranges:
        batching = self.batching
        if not batching.at_once:
            return Ranges(rows)
        return Ranges(_Batched(rows, batching), "", batching.at_once, batching.collator.collate is None)

    def _texts(self, dataset: Any) -> Any:
        """Return texts numbered as the training data's: those of a list, or of a data set of its kind."""
        if isinstance(dataset, list | tuple) and all(isinstance(one, str) for one in dataset):
            return LabelledLines.of_texts(dataset, self.names)
        if isinstance(dataset, LabelledLines):
            dataset = copy.copy(dataset)
            dataset.number_by(self.names)
        return dataset

    def _in_order(self, dataset: Any) -> Any:
        """Return a data set with its inputs by the training data's names. Raises UsageError for a missing one, and
        DataError for names in another order that nothing can restore."""
        if self.columns and isinstance(dataset, Csv) and issubclass(self._kind, Csv):
            dataset = copy.copy(dataset)
            dataset.read_inputs_of(self.data.train.init_args, self.columns, self._means)
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
                    f"row {unknown} of the table: {shown_name(ids[unknown])} is not among the {kind} of the training "
                    f"data, of whom nothing was learnt; {int((rows < 0).sum()):,} rows are like this: leave them out"
                    f"{did_you_mean(ids[unknown], self.names[kind])}",
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
            raise UsageError(f"--id {ids}: {self.data.train.class_path} has no columns of ids", code="usage/no-ids")
        if path == STANDARD_INPUT:
            return self.of_stream(TextStream(Path("standard input"), 0), ids)
        place = str(Path(path).absolute())
        if issubclass(kind, LabelledLines) and SYMBOLS in self.names:
            return self.of_dataset(texts_in(Path(place)))
        if issubclass(kind, Npz):
            return self._ranges(_with_ids(NpzRows(place, self.data.train.init_args.get("inputs", "x")), ids))
        if issubclass(kind, TensorDataset) and path.endswith(".npz"):
            wanted = [name for name in inspect.signature(model.forward).parameters if name != "state"]
            return self._ranges(_with_ids(NpzRows(place, None, wanted=wanted), ids))
        dataset = self._built(place)
        if issubclass(kind, Csv):
            return self._ranges(_with_ids(self._encoding(dataset), ids))
        if issubclass(kind, LibSvm):
            return SparseLines(dataset, self.sizes, self.names, TextFile(dataset.path))
        return self.of_dataset(dataset)

    def pairs_of_file(self, path: str) -> Packed:
        """Return the users and items in a file like that of the training data, also those that it does not have; of
        data from memory, and of `Follow`, in any table of `hogwild.data.Ratings`. Raises NotFoundError, DataError,
        UsageError."""
        place = str(Path(path).absolute())
        is_ours = issubclass(self._kind, PackedFile) and hasattr(self._kind, "for_inputs")
        own = dict(zip(("user", "item"), self.data.train.init_args.get("ids", ()), strict=False))  # of `Follow`
        more: dict[str, Any] = {"columns": own, "duplicates": "last"} if own else {}  # a stream may rate twice
        source = self._built(place) if is_ours else Ratings(place, **more)
        packed: Packed = source.pack(self.reader, INPUT, None, self.data.on_bad_line)
        return packed

    def of_stream(self, stream: TextStream, ids: str | None) -> Inputs:
        """Return the inputs in text that is read once. Raises DataError, UsageError."""
        kind = self._kind
        if issubclass(kind, LabelledLines) and SYMBOLS in self.names:
            return Arriving(partial(self._lines_of, stream))
        if not issubclass(kind, Csv | LibSvm):
            raise UsageError(
                f"{stream.path}: {self.data.train.class_path} cannot be read from a stream, only tables, libsvm rows "
                "and lines of text can: give a file",
                code="usage/no-input",
            )
        dataset = self._built(stream)
        if issubclass(kind, LibSvm):
            return SparseLines(dataset, self.sizes, self.names, None, STREAM)
        table, batching = _with_ids(self._encoding(dataset), ids), self.batching
        return Arriving(partial(map, batching.rows, table.stream()) if batching.at_once else table.stream)

    def _lines_of(self, stream: TextStream) -> Iterator[InputRows]:
        """Yield the texts of a stream, a line each."""
        batching = self.batching
        for content in stream.lines():
            try:
                found = [line for one in content.decode().splitlines() if (line := one.strip())]
            except UnicodeDecodeError as error:
                raise not_text(str(stream.path), content[error.start : error.end], None) from None
            rows = _Unbatched(LabelledLines.of_texts(found, self.names), batching)
            for start in range(0, len(found), batching.at_once or BLOCK_ROWS):
                yield rows.inputs_of(start, min(len(found), start + (batching.at_once or BLOCK_ROWS)))

    @property
    def _kind(self) -> type:
        found = resolve(self.data.train.class_path)
        return found if isinstance(found, type) else object  # a function makes a data set of any class

    def _encoding(self, dataset: Csv) -> Csv:
        """Return the table; one that makes sparse rows numbers them as the training data's."""
        if isinstance(dataset, Clicks):
            dataset.number_by({**self.names, "columns": self.columns or dataset.columns})
        return dataset

    def _built(self, path: Any) -> Any:
        train = self.data.train
        kind = resolve(train.class_path)
        if (of_file := getattr(kind, "kind_of_file", None)) is not None:
            train = train.model_copy(update={"class_path": f"hogwild.data.{of_file.__name__}"})
        name = path_argument(train.class_path)
        if name is None:
            raise UsageError(
                f"{train.class_path} has no argument path; call it from Python with a data set instead of a file",
                code="usage/no-input",
            )
        arguments = {key: value for key, value in train.init_args.items() if key not in PARTS}
        if (for_inputs := getattr(kind, "for_inputs", None)) is not None:
            arguments = for_inputs(arguments, self.columns)
        if arguments.get("missing") == "mean" and self._means is not None:
            arguments["missing"] = self._means
        return build(train.model_copy(update={"init_args": arguments | {name: path}}))

    def _check_ending(self, path: str, kind: type) -> None:
        readers, what = ENDINGS.get(Path(path).suffix.lower(), ("", ""))
        ours = [one.__name__ for one in kind.__mro__ if one.__module__.startswith(("hogwild.data", "torch.utils.data"))]
        names = {name for one in ENDINGS.values() for name in one[0].split()}
        if readers and names.intersection(ours) and not set(readers.split()).intersection(ours):
            endings = ", ".join(ending for ending, one in ENDINGS.items() if set(one[0].split()).intersection(ours))
            raise UsageError(
                f"{path}: is {what}, by its name, but the run was trained on {self.data.train.class_path}, which reads "
                f"{endings} and files with other endings; rename the file if its name is wrong",
                code="usage/other-kind-of-file",
            )


def path_argument(class_path: str) -> str | None:
    """Return the name of the argument that names the file of a data class; None if it has none."""
    known = inspect.signature(resolve(class_path)).parameters
    return next((one for one in ("path", "file", "folder") if one in known), None)


def _flowing(dataset: Any, batching: Batching) -> Iterator[InputRows]:
    """Yield the rows of a data set that can only be read from start to end. Raises DataError."""
    try:
        yield from batching.of(iter(dataset))
    except HogwildError:
        raise
    except (Exception, SystemExit) as error:
        words = f"{INPUT}: reading the items of {type(dataset).__name__} raised {raised_text(error)}"
        raise DataError(words, code="data/item-raised") from error


def _with_ids(rows: Any, ids: str | None) -> Any:
    if ids is not None:
        rows.identify(ids)
    return rows


# ---- to trace a program ---------------------------------------------------------------------------------------------

LOOK_ROWS = 16  # whose batches of one are compared with each other


@dataclass(frozen=True, slots=True)
class Example:
    """A batch of inputs, and by tensor, in order, the dimensions that vary from batch to batch. `padded`: numbers of
    the tensors that the job pads, with `value`, and `longest`, their length at most, if it has a limit."""

    inputs: tuple[Any, ...]
    free: tuple[frozenset[int], ...]
    padded: tuple[int, ...] = ()
    value: float = 0
    longest: int | None = None

    @classmethod
    def of(cls, inputs: Inputs, batching: Batching) -> "Example":
        """Return the first block as an example. Raises UsageError if it has fewer than two rows."""
        block = next(iter(inputs.blocks()))
        if len(next(iter(block.names.values()))) < 2:
            raise UsageError("one row is not enough as an example: its number may be meant", code="export/no-example")
        leaves = tree_leaves(block.inputs)
        free = [{0} for _ in leaves]
        padding, collate = batching.collator.padding, batching.collator.collate
        if collate is not None and isinstance(inputs, Ranges):  # it may give any dimension any size
            looked = [inputs.read((row, row + 1)) for row in range(min(LOOK_ROWS, len(inputs.rows)))]
            for other in looked:
                pairs = zip(free, leaves, tree_leaves(other.inputs), strict=True)
                for dims, leaf, single in pairs:
                    dims |= {k for k, (one, two) in enumerate(zip(leaf.shape, single.shape, strict=True)) if one != two}
        fields = padding.fields if padding is not None and collate is None else ()
        padded = tuple(at for place, number in enumerate(fields) if (at := number + place) < len(leaves))
        for at in padded:
            free[at].add(1)
        sets = tuple(map(frozenset, free))
        return cls(block.inputs, sets, padded, *((padding.value, padding.longest) if padding is not None else ()))

    def of_one_length(self) -> "Example":
        """Return the same padded to the limit of the job, if it has one, with the number of rows as all that varies."""
        leaves, nesting = tree_flatten(self.inputs)
        for number in self.padded:
            leaf = leaves[number]
            more = max(0, (self.longest or 0) - leaf.shape[1])
            leaves[number] = F.pad(leaf, (0, 0) * (leaf.dim() - 2) + (0, more), value=self.value)
        return replace(self, inputs=tree_unflatten(leaves, nesting), free=tuple(frozenset({0}) for _ in leaves))
