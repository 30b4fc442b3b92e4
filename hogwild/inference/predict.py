"""A model at work on blocks of inputs, in this process or in any that gets a copy; what its outputs mean, by the job's
loss; and the files of the answers.

CrossEntropyLoss, NLLLoss                  softmax; the likeliest class
BCEWithLogitsLoss, LogisticLoss            sigmoid; 1 above one half
BCELoss                                    probabilities already; 1 above one half
HingeLoss                                  the margin; 1 above zero
any other                                  the output
an output of several tensors               each of them, by its name

    any process: encode(scores) ──► bytes ──► the one writer: append(bytes), in the order of the rows ──► finish()

A file is written beside its place, and gets its name at the end: it is complete, or absent."""

import contextlib
import csv
import io
import logging
import math
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hogwild.config.load import Job
from hogwild.data.input_rows import InputRows
from hogwild.data.locate import require
from hogwild.errors import HogwildError, ModelError, RunError, UsageError
from hogwild.formatting import brief
from hogwild.inference.inputs import Inputs
from hogwild.losses import BprLoss, CandidateLoss, HingeLoss, NegativeSampling, WarpLoss
from hogwild.metrics.loss_sums import BY_CLASS, BY_SIGN, as_module
from hogwild.storage.files import temporary
from hogwild.training.evaluator import evaluating
from hogwild.training.model_steps import forward_of
from hogwild.training.outputs import joined, leaves_of, mapped, of_rows
from hogwild.user_code import raised_text, resolve

log = logging.getLogger(__name__)
RANKING = {
    BprLoss: "it ranks items: use recommend",
    WarpLoss: "it ranks items: use recommend",
    CandidateLoss: "it ranks the answers of a knowledge graph",
    NegativeSampling: "it learns vectors of words: use similar",
}
Columns = list[tuple[str, np.ndarray]]  # name, (n,) values


@dataclass(frozen=True, slots=True)
class Scores:
    """Rows of the answer: their `names` by column; `predicted` (n, …), if anything is; `values` (n, …), probabilities
    or outputs as `kind` says, with a label for each of a row, "" for the only one."""

    __repr__ = brief

    names: Mapping[str, Any]
    predicted: np.ndarray | None
    values: np.ndarray
    kind: str  # probability, output
    labels: Sequence[str]

    @property
    def rows(self) -> int:
        return len(self.values)

    def columns(self) -> Columns:
        """Return flat columns, for tables, each of another name."""
        found: Columns = [(name, np.asarray(values)) for name, values in self.names.items()]
        if self.predicted is not None:
            predicted = self.predicted.reshape(len(self.predicted), -1)
            places = [""] if predicted.shape[1] == 1 else [str(place) for place in range(predicted.shape[1])]
            found += [(_joined("predicted", one), predicted[:, k]) for k, one in enumerate(places)]
        values = self.values.reshape(len(self.values), -1)
        return _distinct(found + [(_joined(self.kind, label), values[:, k]) for k, label in enumerate(self.labels)])

    def arrays(self, is_first: bool) -> Columns:
        """Return arrays, for .npz: `probabilities` or `outputs` keep their shape. The first ones have `classes`, the
        labels of the probabilities."""
        found: Columns = [(name, np.asarray(values)) for name, values in self.names.items()]
        if self.predicted is not None:
            found.append(("predicted", self.predicted))
        found.append(({"probability": "probabilities", "output": "outputs"}[self.kind], self.values))
        if is_first and self.kind == "probability" and len(self.labels) > 1:
            found.append(("classes", np.asarray(self.labels)))
        return _distinct(found)


@dataclass(frozen=True, slots=True)
class Several:
    """Rows of an answer with several tensors: their `names` by column, `values` (n, …) by name."""

    names: Mapping[str, Any]
    values: Mapping[str, np.ndarray]

    @property
    def rows(self) -> int:
        return len(next(iter(self.values.values())))

    def columns(self) -> Columns:
        found: Columns = [(name, np.asarray(values)) for name, values in self.names.items()]
        for name, values in self.values.items():
            flat = values.reshape(len(values), math.prod(values.shape[1:]))
            is_one = flat.shape[1] == 1
            found += [(name if is_one else f"{name}_{place}", flat[:, place]) for place in range(flat.shape[1])]
        return _distinct(found)

    def arrays(self, is_first: bool) -> Columns:
        """Return arrays, for .npz."""
        return _distinct([(name, np.asarray(one)) for name, one in self.names.items()] + [*self.values.items()])


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of outputs. `loss`: its class; None for one that says nothing, or for raw outputs. `classes`: their
    names by number, if known."""

    loss: type | None
    classes: Sequence[Any] | None = None

    @classmethod
    def of(cls, job: Job, names: Mapping[str, Any], *, raw: bool = False) -> "Meaning":
        """Return the meaning in a job. Raises UsageError for a loss that has no outputs for a row."""
        found: Any = None
        with suppress(HogwildError):  # the module of a user's loss may be gone: it says nothing
            found = resolve(job.loss.class_path)
        kind = found if isinstance(found, type) else type(as_module(found))
        for loss, why in RANKING.items():
            if issubclass(kind, loss):
                raise UsageError(
                    f"the model was trained with {job.loss.class_path} and predicts nothing for a row: {why}",
                    code="usage/no-predictions",
                )
        return cls(None if raw or not issubclass(kind, (*BY_CLASS, *BY_SIGN)) else kind, names.get("classes"))

    def probabilities(self, output: Any) -> Any:
        """Return probabilities (n, …) for outputs (n, …), which are the answer where there are none, and where there
        are several tensors."""
        if not isinstance(output, Tensor):
            return output
        if self._is_by_class(output):
            return output.softmax(1)
        if self.loss is None or issubclass(self.loss, (*BY_CLASS, nn.BCELoss, HingeLoss)):
            return output
        return output.sigmoid()

    def scores(self, block: InputRows, output: Any) -> Scores | Several:
        """Return the answer for a block of rows, with the names of the rows."""
        if not isinstance(output, Tensor):
            return Several(block.names, {name: _array(one) for name, one in leaves_of(output).items()})
        values: Tensor = self.probabilities(output)
        width = values[0].numel()
        labels = [""] if width == 1 else [str(place) for place in range(width)]
        predicted: np.ndarray | None = None
        kind = "output"
        if self._is_by_class(output):
            kind, predicted = "probability", output.argmax(1).numpy()
            if output.dim() == 2:
                labels = [str(name) for name in self._named(np.arange(width))]
                predicted = self._named(predicted)
        elif self.loss is not None and issubclass(self.loss, BY_SIGN):
            kind = "output" if issubclass(self.loss, HingeLoss) else "probability"
            is_yes = values > (0.0 if issubclass(self.loss, HingeLoss) else 0.5)
            predicted = is_yes.to(torch.int64).numpy()
            if width == 1 and self.classes is not None and len(self.classes) == 2:
                predicted = self._named(predicted)
        return Scores(block.names, predicted, _array(values), kind, labels)

    def _is_by_class(self, output: Tensor) -> bool:
        return self.loss is not None and issubclass(self.loss, BY_CLASS) and output.dim() > 1

    def _named(self, numbers: np.ndarray) -> np.ndarray:
        if self.classes is None or (numbers.size and numbers.max() >= len(self.classes)):
            return numbers
        named: np.ndarray = np.asarray(self.classes)[numbers]
        return named


def _array(values: Tensor) -> np.ndarray:
    array: np.ndarray = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return array


def _distinct(columns: Columns) -> Columns:
    """Return the columns, with `_` behind a name that one before has: ids keep the name that their file gives them."""
    found: dict[str, np.ndarray] = {}
    for name, values in columns:
        while name in found:
            name += "_"
        found[name] = values
    return [*found.items()]


def _joined(kind: str, label: str) -> str:
    return f"{kind}_{label}" if label else kind


ENDINGS = (".csv", ".npz", ".parquet")
GROUP_ROWS = 1 << 17  # of a Parquet file


class InColumns(Protocol):
    def columns(self) -> Columns: ...


Encode = Callable[[Any, bool], bytes]  # (rows, whether they are the first): may be sent to another process


def encode_csv(rows: InColumns, is_first: bool) -> bytes:
    """Return lines; before the first ones the names of the columns. Numbers are as short as their type allows."""
    columns, text = rows.columns(), io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if is_first:
        lines.writerow([name for name, _ in columns])
    # Texts one by one: an array of texts would give each the width of the longest.
    texts = ([*map(str, one)] if one.dtype.kind == "O" else one.astype(str).tolist() for _, one in columns)
    lines.writerows(zip(*texts, strict=True))
    return text.getvalue().encode()


def encode_arrays(scores: Scores | Several, is_first: bool) -> bytes:
    """Return the arrays as an .npz file."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:  # not np.savez, which has parameters that a column's name may be
        for name, array in scores.arrays(is_first):
            with archive.open(f"{name}.npy", "w") as place:
                np.lib.format.write_array(place, array, allow_pickle=False)
    return content.getvalue()


def encode_table(rows: InColumns, is_first: bool) -> bytes:
    """Return the columns as a stream of Arrow."""
    import pyarrow
    from pyarrow import ipc

    table = pyarrow.table(
        {name: pyarrow.array(one, pyarrow.string() if one.dtype.kind == "O" else None) for name, one in rows.columns()}
    )
    content = io.BytesIO()
    with ipc.new_stream(content, table.schema) as stream:
        stream.write_table(table)
    return content.getvalue()


def encoder_for(file: Path | None) -> Encode:
    """Return the encoder of a file by its ending; of CSV for standard output."""
    return {".npz": encode_arrays, ".parquet": encode_table}.get(file.suffix if file else "", encode_csv)


class _Csv:
    def __init__(self, aside: Path, opened: ExitStack) -> None:
        self._stream = opened.enter_context(aside.open("wb"))

    def append(self, content: bytes) -> None:
        self._stream.write(content)

    def finish(self) -> None:
        self._stream.flush()


class _Npz:
    """Arrays of unknown length and, for texts, of unknown width: kept apart until the end, without a name."""

    def __init__(self, aside: Path, opened: ExitStack) -> None:
        self._aside, self._opened = aside, opened
        self._kept: dict[str, BinaryIO] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, np.dtype] = {}

    def append(self, content: bytes) -> None:
        for name, array in np.load(io.BytesIO(content)).items():
            if name in self._kept and self._shapes[name][1:] != array.shape[1:]:
                raise _other_width(f"array {name}", str(self._shapes[name][1:]), str(array.shape[1:]))
            if name not in self._kept:
                self._kept[name] = self._opened.enter_context(tempfile.TemporaryFile(dir=self._aside.parent))  # noqa: SIM115
                self._shapes[name], self._dtypes[name] = (0, *array.shape[1:]), array.dtype
            rows, *rest = self._shapes[name]
            self._shapes[name] = (rows + len(array), *rest)
            self._dtypes[name] = np.promote_types(self._dtypes[name], array.dtype)
            np.save(self._kept[name], array)

    def finish(self) -> None:
        with zipfile.ZipFile(self._aside, "w") as archive:
            for name, kept in self._kept.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as target:
                    dtype, shape = self._dtypes[name], self._shapes[name]
                    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(target, described)
                    end = kept.tell()
                    kept.seek(0)
                    while kept.tell() < end:
                        target.write(np.load(kept).astype(dtype).tobytes())


class _Parquet:
    def __init__(self, aside: Path, opened: ExitStack) -> None:
        self._aside, self._opened = aside, opened
        self._writer: Any = None
        self._names: list[str] = []
        self._waiting: list[Any] = []

    def append(self, content: bytes) -> None:
        from pyarrow import ipc

        table = ipc.open_stream(content).read_all()
        self._names = self._names or table.column_names
        if table.column_names != self._names:
            raise _other_width("a row", f"{len(self._names)} columns", f"{len(table.column_names)}")
        self._waiting.append(table)
        if sum(len(table) for table in self._waiting) >= GROUP_ROWS:
            self._write()

    def finish(self) -> None:
        self._write()
        self._writer.close()

    def _write(self) -> None:
        import pyarrow
        from pyarrow import parquet

        if self._waiting:
            table = pyarrow.concat_tables(self._waiting)
            if self._writer is None:
                self._writer = self._opened.enter_context(parquet.ParquetWriter(self._aside, table.schema))
            self._writer.write_table(table)
            self._waiting.clear()


@contextlib.contextmanager
def made_whole(file: Path) -> Iterator[Path]:
    """Yield a place beside `file`, which becomes the file after the block, and not if the block raises. Raises
    RunError."""
    try:
        with temporary(file) as aside:
            yield aside
            aside.replace(file)
    except OSError as error:
        raise RunError(
            f"{file}: cannot be written: {error.strerror or error}", code="run/output-not-written"
        ) from error


@contextlib.contextmanager
def writing(file: Path) -> Iterator[_Csv | _Npz | _Parquet]:
    """Yield the writer of a file, which is there after the block, and not if the block raises. Raises RunError, and
    UsageError without pyarrow."""
    if file.suffix == ".parquet":
        require("pyarrow.parquet", f"--out {file}", "pyarrow", "csv")
    kinds: dict[str, type[_Csv | _Npz | _Parquet]] = {".npz": _Npz, ".parquet": _Parquet}
    with made_whole(file) as aside, ExitStack() as opened:
        writer = kinds.get(file.suffix, _Csv)(aside, opened)
        yield writer
        writer.finish()


def _other_width(what: str, first: str, now: str) -> ModelError:
    return ModelError(
        f"the model's answer has rows of other shapes from batch to batch: {what} has {first} at first, then {now}; "
        "one table needs one width. Answers for each step of a sequence are as many as the batch is padded to: call "
        "predict of hogwild.load(RUN) with a batch at a time",
        code="model/output-shape",
    )


Part = tuple[int, bytes]  # number of rows, and their encoded answer


def of_one_width(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield parts of CSV. Raises ModelError for one whose rows have more columns than the first, or fewer."""
    width = 0
    for part in parts:
        now = len(next(csv.reader(io.TextIOWrapper(io.BytesIO(part[1]), newline="")), ()))
        width = width or now
        if now != width:
            raise _other_width("a row", f"{width} columns", str(now))
        yield part


@dataclass(frozen=True, slots=True)
class Predictor:
    """A model, its inputs and the meaning of its outputs."""

    __repr__ = brief

    model: nn.Module
    inputs: Inputs
    meaning: Meaning

    def parts(self, encode: Encode) -> Iterator[Part]:
        """Yield the answers of all blocks, in the order of the rows."""
        for number, block in enumerate(self.inputs.blocks()):
            yield self.part(encode, block, number == 0)

    def scores(self) -> Iterator[Scores | Several]:
        """Yield the answers of all blocks as scores."""
        for number, block in enumerate(self.inputs.blocks()):
            yield self.meaning.scores(block, row_outputs(self.model, block, is_first=number == 0))

    def part(self, encode: Encode, block: InputRows, is_first: bool) -> Part:
        """Return the answer for one block."""
        scores = self.meaning.scores(block, row_outputs(self.model, block, is_first=is_first))
        return scores.rows, encode(scores, is_first)

    def answers(self) -> Any:
        """Return the answers of all blocks: a tensor (N, …), or what the model returns with such tensors in it."""
        blocks = enumerate(self.inputs.blocks())
        outputs = (row_outputs(self.model, block, is_first=number == 0) for number, block in blocks)
        return joined([*map(self.meaning.probabilities, outputs)])


def row_outputs(model: nn.Module, block: InputRows, *, is_first: bool = True) -> Any:
    """Return the model's outputs for a block, with None for each tensor of several that has no row for each, which the
    log tells for the first block. Raises as `outputs_of`, and UsageError if no tensor is left."""
    output = outputs_of(model, block.inputs)
    kept = of_rows(output, block.rows)
    there = leaves_of(kept)
    less = [f"{name} {tuple(one.shape)}".strip() for name, one in leaves_of(output).items() if name not in there]
    if not there:
        raise UsageError(
            f"{type(model).__name__} returns no tensor with a row for each of {block.rows} rows: {', '.join(less)}",
            code="usage/no-predictions",
        )
    if less and is_first:
        log.warning("%s: left out of the answers, without a row for each: %s", type(model).__name__, ", ".join(less))
    return kept


def outputs_of(model: nn.Module, inputs: tuple[Any, ...], forward: Callable[..., Any] | None = None) -> Any:
    """Return the model's outputs for a block: a tensor, or several in dicts, tuples or dataclasses. `forward`: what
    `forward_of` has found for the model. Raises ModelError for a model that cannot take the inputs, and UsageError for
    one that returns no tensor."""
    try:
        with evaluating(model):
            output: Any = (forward or forward_of(model))(*inputs)
    except HogwildError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{tuple(one.shape)} {str(one.dtype).removeprefix('torch.')}" for one in tree_leaves(inputs))
        raise ModelError(
            f"{type(model).__name__} cannot take the inputs ({shapes}): {raised_text(error)}",
            code="model/forward-failed",
        ) from error
    if (isinstance(output, Tensor) and not output.dim()) or not leaves_of(output):
        got = "one number" if isinstance(output, Tensor) else f"a {type(output).__name__} without a tensor"
        raise UsageError(f"{type(model).__name__} returns {got}, no answer for a row", code="usage/no-predictions")
    return mapped(output, lambda _, one: one.clone())  # a model may reuse its buffer
