"""A table of clicks, purchases or other yes and no as sparse rows: one feature of every column in each row.

    site=news   a value of a category      site   all values of it that have no row of their own, and missing ones
    user#17/400   a hashed category, of 400 codes
    price<2.5, price<4.0>=2.5, price<inf>=4.0   numbers between edges;  price   missing ones

These names say how a value becomes a feature: a file to validate with, to predict, or to go on with is encoded by the
names of the training data, and by nothing else. Another size or other edges make other features."""

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Any

import numpy as np

from hogwild.data.csv.dataset import Csv
from hogwild.data.csv.parse import MISSING_CODE, ByPiece, Codes, Column, ColumnNames, CsvLayout, ParsedRecords, layout
from hogwild.data.ids import one_spelling
from hogwild.data.input_rows import InputRows, given_arguments, named
from hogwild.data.locate import bad_argument
from hogwild.data.text_parsing import Parsed, Parsing, Tell, numpy_of
from hogwild.errors import UsageError
from hogwild.feeds.packed import Packed

SIGNS = "=#<"  # between the name of a column and the rest of a feature's name
SIGN = re.compile("[=#<]")
MOST_SHOWN = 12  # columns of a note
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownRows(Codes):
    """Each value gets its feature; any other, and a missing one, the feature `size`. `unknown`: the first other one."""

    unknown: set[str] | None = None

    def code(self, text: str) -> int | None:
        found = self.places.get(text)
        if found is None and text and self.unknown is not None and not self.unknown:
            self.unknown.add(text)
        return self.size if found is None else found


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its place in the file that defines it; `hashed`: number of its codes; `buckets`: their number, or the
    edges between them. A category if it has neither."""

    name: str
    hashed: int = 0
    buckets: int | tuple[float, ...] = 0

    def edges(self, numbers: np.ndarray, known: Sequence[float]) -> np.ndarray:
        """Return the edges (E,) float32, ascending: those given, those `known`, or quantiles of `numbers` (N,)."""
        if isinstance(self.buckets, tuple):
            return np.array(self.buckets, np.float32)
        there = numbers[~np.isnan(numbers)]
        if known or not len(there):
            return np.array(known, np.float32)
        shares = np.arange(1, self.buckets) / self.buckets
        cuts: np.ndarray = np.unique(np.quantile(there, shares, method="lower"))
        return np.asarray(cuts[cuts > there.min()])


class Clicks(Csv):
    """A table as sparse rows: a feature for each column of a row, with value 1. The target is a number in one column:
    0 and 1 for `BCEWithLogitsLoss`; for `LogisticLoss` also -1 and 1.

    Packed as `csr`: `indptr` (N+1,) int64, `indices` (nnz,) int32 in the order of the columns, `values` (nnz,) float32,
    with `weight` also `weight` (N,) float32, and `target` (N,) float32. Sizes: features, fields (input columns). Names:
    features, `site=news`, `user#17/400` (hashed, 400 codes), `price<2.5` and `price<4.0>=2.5` (buckets);
    `site` or `price` alone is the feature of missing values, of values rarer than `min_count`, and of those that the
    training data does not have. So columns with =, # or < in their names are an error.

    Reads what `Csv` reads. Raises NotFoundError, UsageError; `pack` raises DataError with file, line, column, value and
    rule.

    Arguments:
        path: file, plain or packed; or a Parquet file, or a table of pandas, polars or arrow.
        target: column to predict.
        inputs: columns to predict from; null: all but the target and those in `leave_out`.
        buckets: for columns of numbers: how many buckets with about as many rows each, or a list of the edges. All
            other columns are categories, also if they hold numbers.
        hash: for categories of too many values: the number of features that they share by a stable hash.
        min_count: values of a category that occur less often share one feature.
        weight: column of the weights of rows: 2 counts as the row twice, 0 not at all.
        leave_out: columns that are no inputs.
        header: whether the first line has the names of the columns.
        delimiter: one character (tab: "\\t").
        encoding: utf-8, latin-1 or cp1252.
        skip_lines: lines to ignore before the header, or the first row.
        like: columns of the file that a model was trained on, to predict another file."""

    def __init__(
        self,
        path: Any,
        target: Column,
        inputs: Sequence[Column] | None = None,
        buckets: Mapping[Column, Any] | None = None,
        hash: Mapping[Column, int] | None = None,
        min_count: int = 1,
        leave_out: Sequence[Column] = (),
        header: bool = True,
        delimiter: str = ",",
        encoding: str = "utf-8",
        skip_lines: int = 0,
        root: str | os.PathLike[str] | None = None,
        like: Sequence[str] | None = None,
        weight: Column | None = None,
    ) -> None:
        self.init_args = given_arguments(self, locals())
        who = f"Clicks(path={named(path)!r})"
        buckets, hashes = dict(buckets or {}), dict(hash or {})
        if type(min_count) is not int or min_count < 1:
            raise bad_argument(f"{who}: min_count must be a whole number >= 1, got {min_count!r}")
        super().__init__(
            path, target, inputs, missing=0.0, leave_out=leave_out, header=header, delimiter=delimiter,
            encoding=encoding, skip_lines=skip_lines, root=root, like=like, weight=weight,
        )  # fmt: skip
        self.path = self._text.path
        self.min_count, self.known = min_count, dict[str, list[str]]()  # by column and sign
        self.arguments: tuple[Any, ...] = (
            target, inputs, buckets, hashes, leave_out, header, delimiter, encoding, skip_lines
        )  # fmt: skip
        self.arguments += () if weight is None else (weight,)  # caches of data without weights stay valid
        said = tuple(self.columns if like is None else like)
        look_up = ColumnNames(who, said, header)
        many, coded = dict[str, Any](), dict[str, int]()
        for one, given in buckets.items():
            is_list = isinstance(given, Sequence) and not isinstance(given, str) and len(given) > 0
            edges = [np.float32(edge) for edge in given if isinstance(edge, int | float)] if is_list else []
            if is_list and len(edges) == len(given) and np.isfinite(edges).all() and (np.diff(edges) > 0).all():
                given = tuple(float(edge) for edge in edges)
            elif type(given) is not int or given < 2:
                raise bad_argument(
                    f"{who}: buckets of column {one!r} must be a whole number >= 2, or a list of ascending edges, got "
                    f"{given!r}"
                )
            many[said[look_up.place("buckets", one)]] = given
        for one, given in hashes.items():
            if type(given) is not int or given < 2:
                raise bad_argument(f"{who}: hash of column {one!r} must be a whole number >= 2, got {given!r}")
            coded[said[look_up.place("hash", one)]] = given
        own = [
            said[place] for place in layout(who, said, header, target, inputs, leave_out, {}, "float", weight).numbers
        ]
        self.fields = self._own_fields = [Field(name, coded.get(name, 0), many.get(name, 0)) for name in own]
        for name in (*many, *coded):
            if name not in own or (name in many and name in coded):
                rule = "is not an input" if name not in own else "has both buckets and hash"
                raise UsageError(f"{who}: column {name!r} {rule}", code="data/csv-columns")
        for name in own:
            if any(sign in name for sign in SIGNS):
                raise UsageError(
                    f"{who}: column {name!r}: the name of an input must not contain =, # or <, which stand in the "
                    "names of features; rename it or put it into leave_out",
                    code="data/csv-columns",
                )
        self._own_layout = self._layout
        self._encoder: Encoder | None = None
        self._told = set[str]()  # columns whose unknown values are said
        self.number_anew()

    @property
    def _categories(self) -> list[Field]:
        return [field for field in self.fields if not field.buckets]

    def _read_as(self, plan: CsvLayout, codes: Mapping[str, Codes]) -> None:
        """Read the fields, in their order in `plan.numbers`, with these codes of categories from here on."""
        place = dict(zip([field.name for field in self.fields], plan.numbers, strict=True))
        numbers = tuple(place[field.name] for field in self.fields if field.buckets)
        coded = tuple(place[field.name] for field in self._categories)
        each = tuple(
            Codes(field.hashed, is_hashed=True) if field.hashed else codes[field.name] for field in self._categories
        )
        self._use(replace(plan, numbers=numbers, coded=coded, codes=each), self._table.format)

    # ---- packing

    def remember(self, names: Mapping[str, Sequence[str]]) -> None:
        """Give values whose feature is among the `features` of `names` a feature however rarely they occur, and keep
        the edges of buckets."""
        self.known = {}
        for column, sign, rest in map(_split, names.get("features", ())):
            self.known.setdefault(column + sign, []).append(rest)

    def pack(
        self, reader: Any, what: str = "data.train", like: Packed | None = None, on_bad_line: str = "fail"
    ) -> Packed:
        """Pack by a `feeds.row_reader.Reader`: from the cache, or parsed. `like`: the training data, for validation
        data. Raises DataError, also for a bad line if they should be skipped."""
        packed: Packed = reader.pack(_ClicksParsing(self, what, like, on_bad_line, text=self._text)).packed
        return packed

    def number_anew(self) -> None:
        """Give values numbers of their own, piece by piece, from here on."""
        self.fields, self._encoder = self._own_fields, None
        self._read_as(self._own_layout, {field.name: ByPiece(0) for field in self._categories})

    def number_by(self, names: Mapping[str, Sequence[str]]) -> None:
        """Encode rows by the training data's features from here on. `names`: `features`, `fields`, the file's `columns`
        and, to read it, the `target` and the weight among them. Raises UsageError for a missing column."""
        columns, targets = tuple(names["columns"]), [[*names["columns"]].index(one) for one in names.get("target", ())]
        signs = dict[str, tuple[str, str]]()  # kept ones of earlier data, perhaps of another sort, come last
        for column, sign, rest in map(_split, names["features"]):
            if sign:
                signs.setdefault(column, (sign, rest))
        self.fields = []
        for name in names.get("fields") or [field.name for field in self._own_fields]:
            sign, rest = signs.get(name, ("", ""))
            self.fields.append(Field(name, int(rest.rpartition("/")[2]) if sign == "#" else 0, int(sign == "<")))
        inputs = tuple(columns.index(field.name) for field in self.fields)
        weight = targets[1] if len(targets) > 1 else None
        trained = CsvLayout(columns, inputs, (), (), tuple(targets[:1]), None, False, weight=weight)
        plan = self._own_layout.like(self._who, trained, self._has_header, *self._columns_named)
        self._encoder = encoder = Encoder.of(self.fields, enumerate(names["features"]))
        known = {name: KnownRows(encoder.others[name], rows, unknown=set()) for name, rows in encoder.rows.items()}
        self._read_as(replace(plan, ids=self._layout.ids), known)

    def blocks(self) -> Iterator[ParsedRecords]:
        """Yield all rows, parsed; the codes are `ByPiece`. Raises DataError, also for a missing target."""
        plan = self._layout
        self._use(replace(plan, codes=(ByPiece(0),) * len(plan.codes)), self._table.format)
        try:
            for begin, records in self._all():
                self._refuse_missing_target(records.target, begin)
                yield records
        finally:
            self._use(plan, self._table.format)

    @property
    def encoder(self) -> "Encoder":
        """The encoder of `number_by`."""
        assert self._encoder is not None
        return self._encoder

    def _to_predict(self, begin: int, records: ParsedRecords) -> InputRows:
        for field, codes in zip(self._categories, self._layout.codes, strict=True):
            if isinstance(codes, KnownRows) and codes.unknown and field.name not in self._told:
                self._told.add(field.name)
                words = "%s: column %r: %r is not in the training data; such values share one feature of their column"
                log.warning(words, self.path, field.name, *codes.unknown)
        return super()._to_predict(begin, records)

    def _finished(self, begin: int, records: ParsedRecords) -> list[np.ndarray]:
        """Return the inputs of sparse rows, and the target."""
        if self._encoder is None:
            raise UsageError(
                f"{self._text.path}: Clicks has rows only once its features are known: pack it, or give number_by the "
                "names of features",
                code="usage/no-input",
            )
        indices = self._encoder.indices(records.numbers, records.codes)
        offsets = np.arange(0, indices.size, len(self.fields), dtype=np.int32)
        weights = [] if records.weight is None else [records.weight]
        return [indices.reshape(-1), offsets, np.ones(indices.size, np.float32), *weights, records.target]


@dataclass(frozen=True, slots=True)
class Encoder:
    """Features of parsed rows. `rows`: column -> value -> feature; `others`: column -> feature of all other values;
    `edges`: column -> (edges, feature of each bucket); `first`: hashed column -> its first feature."""

    fields: Sequence[Field]
    rows: Mapping[str, Mapping[str, int]]
    others: Mapping[str, int]
    edges: Mapping[str, tuple[np.ndarray, np.ndarray]]
    first: Mapping[str, int]

    @classmethod
    def of(cls, fields: Sequence[Field], features: Iterable[tuple[int, str]]) -> "Encoder":
        """Return the encoder by features and their names."""
        rows: dict[str, dict[str, int]] = {field.name: {} for field in fields if not field.buckets and not field.hashed}
        others, first = dict[str, int](), dict[str, int]()
        bounds: dict[str, list[tuple[float, int]]] = {field.name: [] for field in fields if field.buckets}
        hashed = {field.name: field.hashed for field in fields}
        for row, name in features:
            column, sign, rest = _split(name)
            if sign == "=" and column in rows:
                rows[column].setdefault(one_spelling(rest), row)
            elif sign == "<" and column in bounds:
                pairs = bounds[column]
                if not pairs or pairs[-1][0] < np.inf:  # behind it are kept ones of earlier data, of other edges
                    pairs.append((_edge(rest), row))
            elif sign == "#" and rest == f"0/{hashed.get(column)}":
                first[column] = row
            elif not sign:
                others[column] = row
        edges = {}
        for column, pairs in bounds.items():
            edges[column] = (
                np.array([edge for edge, _ in pairs[:-1]], np.float32), np.array([row for _, row in pairs], np.int32)
            )  # fmt: skip
        return cls(fields, rows, others, edges, first)

    def indices(self, numbers: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Return (n, fields) int32 of numbers (n, columns in buckets) and codes (n, other columns): a category's are
        features already."""
        out = np.empty((len(codes), len(self.fields)), np.int32)
        number = code = 0
        for place, field in enumerate(self.fields):
            if field.buckets:
                column, (edges, rows) = numbers[:, number], self.edges[field.name]
                found = rows[np.searchsorted(edges, column, side="right").clip(0, len(rows) - 1)]
                out[:, place] = np.where(np.isnan(column), self.others[field.name], found)
                number += 1
                continue
            column = codes[:, code]
            if field.hashed:
                missing = Codes(field.hashed, is_hashed=True).filled("") or 0
                column = np.where(column == MISSING_CODE, missing, column) + self.first[field.name]
            out[:, place] = column
            code += 1
        return out


class _ClicksParsing(Parsing):
    """The parsing of a table into sparse rows. A row needs 4 bytes a column meanwhile."""

    source: Clicks
    kind, version = "Clicks", 5
    options = ("min_count", "known", "arguments")
    values: Sequence[Any]  # of each column of categories: its different values, an arrow array

    def __init__(self, *arguments: Any, **named_arguments: Any) -> None:
        super().__init__(*arguments, **named_arguments)
        self.many = dict[str, int]()  # features of values of each category

    def parse(self, tell: Tell) -> Parsed:
        """Parse the table. Raises DataError, MemoryShortError."""
        if self.on_bad_line == "skip":
            raise UsageError(
                f"{self.what}: hogwild.data.Clicks leaves no lines out; remove data.on_bad_line",
                code="config/bad-argument",
            )
        if self.like is not None:
            features: Sequence[str] = self.like.names["features"]
            self.source.number_by(self.like.names)
        else:
            self.source.number_anew()
        self.notes += self.source.notes if self.like is None else []
        numbers, codes, target, *weight = self._read(tell)
        if self.like is None:
            features, encoder = self._features(numbers, codes)
        else:
            encoder = self.source.encoder
        for code, field in enumerate(self.source._categories):
            # Values are numbered as they came: replace that by their features, or by their hashes, in place.
            if field.hashed:
                hashed = Codes(field.hashed, is_hashed=True)
                table = [*map(hashed.filled, self.values[code].to_pylist()), MISSING_CODE]
            elif self.like is not None:
                rows, other = encoder.rows[field.name], encoder.others[field.name]
                table = [*(rows.get(value, other) for value in self.values[code].to_pylist()), other]
            else:
                continue
            codes[:, code] = np.array(table, np.int32)[codes[:, code]]  # the last for missing values
        indices = encoder.indices(numbers, codes)
        self._note(encoder, indices, features)
        arrays = {
            "indptr": np.arange(len(target) + 1, dtype=np.int64) * indices.shape[1],
            "indices": indices.reshape(-1),
            "values": np.ones(indices.size, np.float32),
            **({"weight": weight[0]} if weight else {}),
            "target": target,
        }
        plan, own = self.source._layout, self.source.columns
        told = [own[place] for place in (*plan.targets, *(() if plan.weight is None else (plan.weight,)))]
        kept: Mapping[str, Any] = {
            "fields": [field.name for field in self.source.fields], "columns": own, "target": told
        }  # fmt: skip
        if self.like is not None:  # of the training data's file
            kept = {key: self.like.names[key] for key in kept if key in self.like.names}
        names = {"features": features, **kept}
        sizes = {"features": len(features), "fields": indices.shape[1]}
        return self.finished(Packed.of(self.region_name, "csr", arrays, sizes, names))

    def _read(self, tell: Tell) -> tuple[np.ndarray, ...]:
        """Return numbers (N, columns in buckets) float32, codes (N, other columns) int32, target (N,) float32 and, if
        there is a column of them, weights (N,) float32. A code is a place in the `values` of its column."""
        parts, values = list[tuple[np.ndarray, ...]](), list[tuple[Any, ...]]()
        nbytes = 0
        for records in self.source.blocks():
            weight = () if records.weight is None else (records.weight,)
            parts.append((records.numbers, records.codes.astype(np.int32), records.target[:, 0], *weight))
            values.append(records.values)
            nbytes += sum(part.nbytes for part in (*parts[-1], *records.values))
            self.check_memory(nbytes)
            tell(*self.text.progress)
        numbers, codes, *others = (np.concatenate(column) for column in zip(*parts, strict=True))
        ends = np.cumsum([len(part[0]) for part in parts])
        self.values = [_united(pieces, codes[:, code], ends) for code, pieces in enumerate(zip(*values, strict=True))]
        return numbers, codes, *others

    def _features(self, numbers: np.ndarray, codes: np.ndarray) -> tuple[list[str], Encoder]:
        """Return the names of the features, column by column, a category's most frequent value first, and the encoder
        of all else. The codes of categories become features, in place."""
        names: list[str] = []
        rest: list[tuple[int, str]] = []  # features that are no values of categories
        number = code = 0
        for field in self.source.fields:
            own, words = [field.name], list[str]()
            if field.buckets:
                kept = map(_edge, self.source.known.get(f"{field.name}<", ()))
                edges = field.edges(numbers[:, number], [*takewhile(np.isfinite, kept)])  # then earlier ones
                bounds = [*map(float, edges), float("inf")]
                own += [f"{field.name}<{bounds[0]!r}"]
                own += [f"{field.name}<{high!r}>={low!r}" for low, high in pairwise(bounds)]
                number += 1
            elif field.hashed:
                own = [f"{field.name}#{each}/{field.hashed}" for each in range(field.hashed)]
                code += 1
            else:
                values = self.values[code]
                often = self._often(field, values, codes[:, code])
                table = np.full(len(values) + 1, len(names), np.int32)  # the last for missing values
                table[often] = np.arange(len(often), dtype=np.int32) + len(names) + 1
                codes[:, code] = table[codes[:, code]]
                words = [f"{field.name}={value}" for value in values.take(often).to_pylist()]
                self.many[field.name] = len(often)
                code += 1
            rest += enumerate(own, len(names))
            names += [*own, *words]
        return names, Encoder.of(self.source.fields, rest)

    def _often(self, field: Field, values: Any, codes: np.ndarray) -> np.ndarray:
        """Return the places (n,) of the values that get a feature, the most frequent one first."""
        import pyarrow
        from pyarrow import compute

        counts = np.bincount(codes[codes >= 0], minlength=len(values))
        order = numpy_of(compute.sort_indices(values)).astype(np.int64)  # as Python sorts them: by their UTF-8
        order = order[np.argsort(-counts[order], kind="stable")]
        gets = counts >= self.source.min_count
        if known := self.source.known.get(f"{field.name}="):
            is_known = compute.is_in(values, value_set=pyarrow.array(known, values.type))
            gets |= (counts > 0) & numpy_of(is_known.cast(pyarrow.uint8())).astype(bool)
        return order[gets[order]]

    def _note(self, encoder: Encoder, indices: np.ndarray, features: Sequence[str]) -> None:
        if self.like is None:
            kinds = [
                f"{field.name} {field.hashed:,} (hashed)" if field.hashed
                else f"{field.name} {len(encoder.edges[field.name][1]):,} (buckets)" if field.buckets
                else f"{field.name} {self.many[field.name]:,}"
                for field in self.source.fields
            ]  # fmt: skip
            more = ", …" if len(kinds) > MOST_SHOWN else ""
            shown = ", ".join(kinds[:MOST_SHOWN])
            self.notes.append(f"{len(features):,} features of {len(kinds)} columns: {shown}{more}")
        rare = np.isin(indices, [encoder.others[field.name] for field in self.source.fields if not field.hashed])
        if many := int(np.count_nonzero(rare)):
            least = self.source.min_count
            why = f"rarer than min_count {least}" if self.like is None else "unknown to the training data"
            self.notes.append(f"{many:,} values are missing or {why}: they share a feature of their column")


def _split(name: str) -> tuple[str, str, str]:
    """Return (column, sign, rest) of a feature's name."""
    found = SIGN.search(name)
    at = found.start() if found else len(name)
    return name[:at], name[at : at + 1], name[at + 1 :]


def _united(pieces: Sequence[Any], codes: np.ndarray, ends: np.ndarray) -> Any:
    """Return the different values of all pieces; `codes` (N,) of each piece, up to its end, become their places, in
    place."""
    import pyarrow

    united = pyarrow.chunked_array(pieces, pyarrow.large_string()).dictionary_encode()  # one for all
    chunks = [chunk for chunk in united.chunks if len(chunk)]
    places, begin = iter(chunks), 0
    for values, end in zip(pieces, ends.tolist(), strict=True):
        own = numpy_of(next(places).indices) if len(values) else np.empty(0, np.int32)
        codes[begin:end] = np.append(own, np.int32(MISSING_CODE))[codes[begin:end]]
        begin = end
    return chunks[0].dictionary if chunks else pyarrow.array([], pyarrow.large_string())


def _edge(rest: str) -> float:
    """Return the upper edge of a bucket."""
    return float(rest.partition(">=")[0])
