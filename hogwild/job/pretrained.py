"""`model.init_from` with vectors by name: a file of word vectors, or a run whose tensors the model does not have. They
go into the first `nn.Embedding` (or `EmbeddingBag`) whose rows stand for names of the data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.data.vector_file import VectorFile
from hogwild.errors import ModelError
from hogwild.job.row_names import CATEGORIES, CLASSES, FEATURES, FIELDS, Names, Rows


@dataclass(frozen=True, slots=True)
class NamedVectors:
    """Vectors (n, D) by name; `kind`: of the names, None if the file does not say; `total`: how many there are."""

    names: Sequence[str]
    matrix: Tensor
    total: int
    kind: str | None = None

    @classmethod
    def of_file(cls, path: Path, ours: Names) -> "NamedVectors":
        """Read those vectors of a file that the data has names for. Raises DataError."""
        wanted = {str(name) for kind in _kinds(ours) for name in ours[kind]}
        found = VectorFile.read(path, wanted)
        return cls(found.words, torch.from_numpy(found.matrix), found.total)

    @classmethod
    def of_run(cls, saved: Mapping[str, Any], theirs: Names, rows: Rows) -> "NamedVectors | None":
        """Return the first table of a run that has a row for each name of a kind; None if there is none. `rows`: of the
        run's model. Raises ModelError if two kinds have as many names and nothing says which it is."""
        for name, value in saved.items():
            is_table, known = isinstance(value, Tensor) and value.dim() == 2, rows.get(name, {}).get(0, {})
            kinds = [kind for kind in _kinds(theirs) if is_table and len(value) == len(theirs[kind])]
            kinds = [kind for kind in kinds if kind in known] if known else kinds
            if len(kinds) > 1:
                raise ModelError(
                    f"{name} has {len(value):,} rows there, and there are as many {' and '.join(kinds)}: nothing says "
                    "for which of them its rows stand",
                    code="model/init-names",
                )
            if kinds:
                return cls([*map(str, theirs[kinds[0]])], value, len(value), kinds[0])
        return None

    def put_into(self, model: nn.Module, skipped: set[str], ours: Names, rows: Rows) -> str:
        """Copy the vectors of known names into the model; return a note with the counts. Raises ModelError."""
        tables = [one for one in _tables(model, skipped, ours, rows) if self.kind in (None, one[1])]
        fitting = [one for one in tables if model.get_parameter(one[0]).shape[1] == self.matrix.shape[1]]
        name, kind = self._first_known(tables, fitting, ours)
        table, places = model.get_parameter(name), {each: row for row, each in enumerate(self.names)}
        if table.shape[1] != self.matrix.shape[1]:
            raise _mismatch(
                f"its vectors have {self.matrix.shape[1]:,} numbers, but {name} has rows of {table.shape[1]:,}; give "
                "the model that size"
            )
        pairs = [(places[str(each)], row) for row, each in enumerate(ours[kind]) if str(each) in places]
        there, here = torch.tensor(pairs).T
        values = self.matrix[there].to(table.dtype)
        if not values.isfinite().all():
            raise _mismatch("some of its vectors are NaN or infinite; training cannot start from them")
        with torch.no_grad():
            table[here] = values
        others = [other for other, its in tables if other != name and its == kind]
        return (
            f"{len(pairs):,} of {len(table):,} {kind} have their vector from there, in {name}; "
            f"{len(table) - len(pairs):,} begin as the constructor made them"
            + (f"; skip {name} to fill {others[0]} instead" if others else "")
        )

    def _first_known(
        self, tables: Sequence[tuple[str, str]], fitting: Sequence[tuple[str, str]], ours: Names
    ) -> tuple[str, str]:
        """Return the first table with a row whose name has a vector, if possible one of `fitting`, whose rows are as
        long. Raises ModelError, also if the names are those of several kinds."""
        if not tables:
            raise _mismatch(
                f"it has vectors by name, but no nn.Embedding of the model has a row for each of the data's "
                f"{self.kind or 'names'}; the data names: {', '.join(_kinds(ours)) or 'nothing'}"
            )
        known, kinds = {*self.names}, [kind for _, kind in tables]
        found = {kind: sum(str(each) in known for each in ours[kind]) for kind in kinds}
        chosen = [one for one in fitting if found[one[1]]] or [one for one in tables if found[one[1]]]
        if len({kind for _, kind in chosen}) > 1:
            of_kinds = " and ".join(f"{many:,} {kind}" for kind, many in found.items() if many)
            raise ModelError(
                f"its names are those of {of_kinds}: nothing says whose vectors they are; add the tables of the others "
                f"to skip, of {', '.join(table for table, _ in chosen)}",
                code="model/init-names",
            )
        if chosen:
            return chosen[0]
        own = f"{kinds[-1]}, as {str(ours[kinds[-1]][0])!r}" if len(ours[kinds[-1]]) else kinds[-1]
        raise _mismatch(f"none of its {self.total:,} names is one of the data's {len(ours[kinds[-1]]):,} {own}")


def _mismatch(why: str) -> ModelError:
    return ModelError(why, code="model/init-mismatch")


def _kinds(names: Names) -> list[str]:
    return [kind for kind in names if kind not in (FEATURES, CLASSES, FIELDS, CATEGORIES)]


def _tables(model: nn.Module, skipped: set[str], ours: Names, rows: Rows) -> Iterator[tuple[str, str]]:
    """Yield (parameter, kind) of each embedding that has a row for each name of a kind of the data. Raises ModelError
    if it may be either of two kinds."""
    for path, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            name = f"{path}.weight" if path else "weight"
            if name in skipped:
                continue
            known = rows.get(name, {}).get(0, {})
            kinds = [kind for kind in _kinds(ours) if module.num_embeddings == len(ours[kind])]
            yield from ((name, kind) for kind in kinds if kind in known)
            if not known and len(kinds) > 1:
                raise ModelError(
                    f"{name} has {module.num_embeddings:,} rows, and there are as many {' and '.join(kinds)}: nothing "
                    "says for which of them its rows stand; name the model's argument for their number after the kind, "
                    "or add it to skip",
                    code="model/init-names",
                )
            yield from ((name, kind) for kind in kinds if not known)
