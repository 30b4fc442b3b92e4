"""Tables of a model whose rows have names, as files for other programs: a name, its vector and its bias in each row.

    parquet     columns name, vector, bias          any name; whole numbers stay numbers
    npz         arrays names, vectors, biases       likewise; names_utf8, names_offsets, where they take less
    word2vec    text, or binary                     names without white space, percent-encoded where they have some
    fasttext    fastText's .bin, with subwords      names without zero bytes, likewise

fastText's file, version 12 (its `saveModel`), little endian:

    magic, version         int32 each
    dim, window, epochs, least count, negatives, n-grams of words, loss, model, buckets, min_n, max_n, steps between
    two changes of the rate                         int32 each; then the sampling threshold, float64
    entries, words, labels int32 each; then tokens and pruned entries, int64 each
    each word              UTF-8, a zero byte, its count (int64), its kind (int8)
    input, then output     quantized (int8), rows and columns (int64 each), float32 numbers"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.config.schema import Component
from hogwild.data.locate import require
from hogwild.data.vector_file import encoded
from hogwild.errors import UsageError, shown_name
from hogwild.formatting import brief, size
from hogwild.inference.word_vectors import require_unique, write_word2vec
from hogwild.job.row_names import names_by_kind, rows_of
from hogwild.nn import NamedEmbedding

KINDS = ("words", "items", "entities", "users", "relations")  # of a model's method `vectors`
FORMATS = ("parquet", "npz", "word2vec", "fasttext")
SMALL = 1 << 24  # bytes of the names in an array, in which all are as wide as the longest
WASTE = 16  # times the bytes of their texts that a larger array may take
MAGIC, VERSION = 793712314, 12
CBOW, SKIPGRAM, NEGATIVE_SAMPLING = 1, 2, 2
EPOCHS, LEAST, WORD_NGRAMS, RATE_STEPS = 1, 1, 1, 100  # say nothing to who reads the file
NO_PRUNING = -1
ZERO_BYTE = re.compile("[\0\ud800-\udfff]")  # ends a word; and characters that UTF-8 does not have


def grown_tables(model: nn.Module) -> dict[str, NamedEmbedding]:
    """Return the tables that grew while they trained, by their names in the model."""
    return {name or "rows": one for name, one in model.named_modules() if isinstance(one, NamedEmbedding)}


@dataclass(frozen=True, slots=True)
class NamedTable:
    """The rows of a kind: `names`, as in the data, `matrix` (n, D) float32 and perhaps `bias` (n,) float32. `model`:
    where they come from."""

    __repr__ = brief

    kind: str
    names: Sequence[Any]
    matrix: np.ndarray
    bias: np.ndarray | None
    model: nn.Module

    @classmethod
    def of(
        cls,
        model: nn.Module,
        spec: Component,
        names: Mapping[str, Any],
        sizes: Mapping[str, Any],
        kind: str | None,
        texts: Mapping[int, str],
    ) -> "NamedTable":
        """Return a model's table: a `NamedEmbedding`, whose kind is its name in the model, the one that its method
        `vectors` returns, or the only tensor with as many rows as there are names of a kind; by default the first that
        it has. `texts`: of the ids of a `NamedEmbedding`, where they were hashed. Raises UsageError for a model without
        it, or with several tensors."""
        grown = grown_tables(model)
        if (first := kind or next(iter(grown), "")) in grown:
            ids, rows = grown[first].named()
            own, constants = grown[first].divided(rows.float().numpy())
            return cls(first, [texts.get(one, one) for one in ids.tolist()], own, constants, model)
        kinds = names_by_kind({"names": names, "sizes": sizes})
        tables = _tensors(model, spec, {"names": names, "sizes": sizes})
        known = [one for one in kinds if _vectors_of(model, one) is not None or one in tables]
        known = [*known, *grown]
        known.sort(key=lambda one: KINDS.index(one) if one in KINDS else len(KINDS))
        if kind not in (None, *known) or not known:
            there = f"; it has {', '.join(known)}" if known else ""
            words = f"its model has no vectors of {kind or ', '.join(KINDS)}{there}"
            raise UsageError(words, code="usage/no-vectors")
        chosen = kind or known[0]
        count = len(kinds[chosen])
        wide = {name: one for name, one in tables.get(chosen, {}).items() if one[0].numel() > 1}
        narrow = {name: one for name, one in tables.get(chosen, {}).items() if one[0].numel() == 1}
        matrix = _vectors_of(model, chosen)
        if matrix is None:
            if len(wide or narrow) > 1:
                several = ", ".join(sorted(wide or narrow))
                words = f"its model has several tables of {chosen}: {several}; use --format safetensors"
                raise UsageError(words, code="usage/no-vectors")
            (matrix,) = (wide or narrow).values()
            narrow = narrow if wide else {}
        biases = getattr(model, "biases", None)
        bias = biases(chosen) if callable(biases) else next(iter(narrow.values())) if len(narrow) == 1 else None
        numbers = None if bias is None else _plain(bias, count)
        return cls(chosen, kinds[chosen], _plain(matrix, count, -1), numbers, model)

    def writer(self, format_: str, *, binary: bool) -> tuple[Callable[[BinaryIO], object], str]:
        """Return what writes the table into an open file, and a note for the user or "". `binary`: of word2vec. Raises
        UsageError for a name that the format cannot have."""
        if format_ == "parquet":
            return self._parquet(), ""
        if format_ == "npz":
            return self._npz()
        forbidden = {} if format_ == "word2vec" else {"forbidden": ZERO_BYTE}
        names, changed = encoded(self.names, **forbidden)
        notes = []
        if changed:
            which = f"{len(changed):,} of {len(names):,} names, such as {shown_name(changed[0])}"
            notes.append(f"{which}, are percent-encoded, as the format cannot have them (urllib.parse.unquote)")
        notes += [] if self.bias is None else ["the format has no biases; parquet and npz have them"]
        require_unique(names, self.kind)
        if format_ == "word2vec":
            return lambda file: write_word2vec(file, names, self.matrix, binary), "; ".join(notes)
        return lambda file: self._write_fasttext(file, names), "; ".join(notes)

    @property
    def _are_numbers(self) -> bool:
        return all(type(name) is int and -(2**63) <= name < 2**63 for name in self.names)

    def _parquet(self) -> Callable[[BinaryIO], object]:
        require("pyarrow.parquet", "--format parquet", "pyarrow", "csv")
        import pyarrow
        from pyarrow import parquet

        width = self.matrix.shape[1]
        numbers = pyarrow.array(self.matrix.reshape(-1), pyarrow.float32())
        ids = [*self.names] if self._are_numbers else [*map(str, self.names)]
        columns = {
            "name": pyarrow.array(ids, pyarrow.int64() if self._are_numbers else pyarrow.large_string()),
            "vector": pyarrow.FixedSizeListArray.from_arrays(numbers, width),
        }
        if self.bias is not None:
            columns["bias"] = pyarrow.array(self.bias, pyarrow.float32())
        return lambda file: parquet.write_table(pyarrow.table(columns), file)

    def _npz(self) -> tuple[Callable[[BinaryIO], object], str]:
        names, note = self._name_arrays()
        arrays = names | {"vectors": self.matrix} | ({} if self.bias is None else {"biases": self.bias})
        return lambda file: np.savez(file, **arrays), note  # type: ignore[arg-type]

    def _name_arrays(self) -> tuple[dict[str, np.ndarray], str]:
        """Return the arrays of the names, and a note for the user or "". An array of texts gives all of them the width
        of the longest, and takes zeros at the end off: then their bytes and where each begins."""
        if self._are_numbers:
            return {"names": np.array([*self.names], np.int64)}, ""
        texts = [*map(str, self.names)]
        contents = [text.encode("utf-8", "surrogatepass") for text in texts]
        width, length = 4 * max(map(len, texts), default=0) * len(texts), sum(map(len, contents))
        if width <= max(SMALL, WASTE * length) and not any(text.endswith("\0") for text in texts):
            return {"names": np.array(texts, np.str_)}, ""
        found: dict[str, np.ndarray] = {
            "names_utf8": np.frombuffer(b"".join(contents), np.uint8),
            "names_offsets": np.cumsum([0, *map(len, contents)], dtype=np.int64),
        }
        why = f"would take {size(width)} for {size(length)} of text" if width > SMALL else "loses a zero at its end"
        return found, f"the names are in names_utf8 and names_offsets: an array of them {why}"

    def _write_fasttext(self, file: BinaryIO, names: Sequence[str]) -> None:
        """Write fastText's binary format, words by falling count, as gensim expects them. With subwords its vectors are
        sums over another number of n-grams than ours: they have the same directions."""
        model: Any = self.model if self.kind == "words" else None
        subwords: Tensor | None = getattr(model, "subwords", None) and model.subwords.weight
        buckets = 0 if subwords is None else len(subwords)
        lengths = (0, 0) if subwords is None else (model.min_n, model.max_n)
        counts = np.ones(len(names), np.int64)
        if isinstance(found := getattr(model, "counts", None), Tensor) and len(found) == len(names):
            counts = np.maximum(found.numpy().astype(np.int64), LEAST)
        order = np.argsort(-counts, kind="stable")
        own = self.matrix if subwords is None else model.input.weight.detach().numpy()
        rows, width = self.matrix.shape
        options = (getattr(model, "window", 5), EPOCHS, LEAST, getattr(model, "negatives", 5), WORD_NGRAMS)
        kind = CBOW if getattr(model, "cbow", False) else SKIPGRAM
        file.write(struct.pack("<2i", MAGIC, VERSION))
        file.write(struct.pack("<6i", width, *options))
        file.write(struct.pack("<6i", NEGATIVE_SAMPLING, kind, buckets, *lengths, RATE_STEPS))
        file.write(struct.pack("<d", getattr(model, "sample", 0.0)))
        file.write(struct.pack("<3i2q", rows, rows, 0, int(counts.sum()), NO_PRUNING))
        for row in order.tolist():
            file.write(names[row].encode() + b"\0" + struct.pack("<qb", int(counts[row]), 0))
        output = getattr(model, "output", None)
        last = np.zeros_like(self.matrix) if output is None else output.weight.detach().numpy()
        parts = [own[order], *([] if subwords is None else [subwords.detach().numpy()])]
        for matrix in (parts, [last[order]]):
            file.write(struct.pack("<b2q", 0, sum(map(len, matrix)), width))
            for part in matrix:
                file.write(np.ascontiguousarray(part, "<f4").tobytes())


def _vectors_of(model: Any, kind: str) -> Tensor | None:
    """Return what a model's method `vectors` returns; None if it has none of this kind."""
    found: Tensor | None = model.vectors(kind) if kind in KINDS and hasattr(model, "vectors") else None
    return found


def _tensors(model: nn.Module, spec: Component, names: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    """Return the tensors with one row for each name, by kind and by name."""
    found: dict[str, dict[str, Tensor]] = {}
    own = model.state_dict()
    counts = {kind: len(values) for kind, values in names_by_kind(names).items()}
    for name, places in rows_of(spec, names).items():
        kinds = places.get(0, {})
        for kind, (times, _) in kinds.items() if len(kinds) == 1 else ():
            value = own.get(name)
            if times == 1 and isinstance(value, Tensor) and value.is_floating_point() and len(value) >= counts[kind]:
                found.setdefault(kind, {})[name] = value
    return found


def _plain(tensor: Tensor, count: int, *shape: int) -> np.ndarray:
    """Return the first `count` rows (count, …) float32."""
    with torch.no_grad():
        found: np.ndarray = tensor[:count].reshape(count, *shape).float().cpu().numpy()
    return found
