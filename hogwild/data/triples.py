"""Knowledge graphs from text: one triple of head, relation and tail per line, as in FB15k-237, CoDEx and Wikidata5M."""

import os
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from hogwild.data.ids import IdRows
from hogwild.data.locate import choice, find_file, require
from hogwild.data.text_parsing.parsing import PackedFile, Parsed, Parsing, Tell
from hogwild.data.text_parsing.word_columns import WordColumns, in_order, numbered
from hogwild.errors import DataError
from hogwild.feeds.packed import Packed

ADVICE = "It is your own file, one triple per line: head, relation and tail, separated by tabs."


class Triples(PackedFile):
    """Lines `head<tab>relation<tab>tail`, packed as `table`: `triple` (N, 3) int32: head, relation, tail;
    `weight` (N,) float32, ones. Quotes are ordinary characters. Sizes and names: entities, relations, numbered in
    alphabetical order (in numerical order if all are whole numbers).

    In validation data, triples with an entity or a relation that is not in the training data are left out, counted and
    reported: nothing was learnt about them.

    Needs pyarrow (pip install 'hogwild[sparse]'). Raises NotFoundError, UsageError; `pack` raises DataError with file,
    line and rule.

    Arguments:
        path: file, plain or packed.
        delimiter: tab, comma, `;`, `|` or space."""

    def __init__(
        self, path: str | os.PathLike[str], delimiter: str = "\t", root: str | os.PathLike[str] | None = None
    ) -> None:
        who = f"Triples(path={str(path)!r})"
        choice(who, "delimiter", delimiter, ("\t", ",", ";", "|", " "))
        self.path = find_file(who, path, root, ADVICE)
        self.delimiter = delimiter

    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        return _TriplesParsing(self, what, like, on_bad_line)


class _TriplesParsing(Parsing):
    source: Triples
    kind, options = "triples", ("delimiter",)
    rules: ClassVar[Mapping[int, str]] = {
        7: "a line must be head, relation and tail, three fields",
        8: "a field is empty",
    }

    def parse(self, tell: Tell) -> Parsed:
        require("pyarrow.csv", "hogwild.data.Triples", "pyarrow", "sparse")
        columns = WordColumns(self.source.delimiter.encode(), (0, 1, 2), -1, 3, is_exact=True)
        pieces = self.pieces(partial(columns.parse, self), tell, self.begin())
        self.note_bad_lines(pieces)
        heads, relations, tails, _ = zip(*(piece.arrays for piece in pieces), strict=True)
        (head, tail), entities = numbered(self.source.path, [[*heads], [*tails]])
        (relation,), kinds = numbered(self.source.path, [[*relations]])
        triples, names = self._numbered((head, relation, tail), (entities, kinds))
        arrays = {"triple": triples, "weight": np.ones(len(triples), np.float32)}
        sizes = {name: len(values) for name, values in names.items()}
        return self.finished(Packed.of(self.region_name, "table", arrays, sizes, names))

    def _numbered(
        self, codes: tuple[np.ndarray, ...], known: tuple[list[bytes], ...]
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return ((n, 3) int32, names), with the training data's numbers if there is any."""
        kinds = ("entities", "relations")
        ordered = [in_order(words) for words in known]
        if self.like is not None and {*kinds} - {*self.like.names}:
            raise DataError(f"{self.source.path}: data.train has no triples", code="data/val-unlike-train")
        ranks = [numbers for numbers, _ in ordered]
        names = {kind: values for kind, (_, values) in zip(kinds, ordered, strict=True)}
        if self.like is not None:
            theirs = {kind: self.like.names[kind] for kind in kinds}
            tables = [IdRows(theirs[kind]).rows(names[kind]).astype(np.int32) for kind in kinds]
            ranks = [table[numbers] for table, numbers in zip(tables, ranks, strict=True)]
            names = theirs
        triples = np.stack([ranks[0][codes[0]], ranks[1][codes[1]], ranks[0][codes[2]]], axis=1)
        is_known = (triples >= 0).all(axis=1)
        if unknown := int(np.count_nonzero(~is_known)):
            self.left_out["unseen triples"] = unknown
            self.notes.append(
                f"{unknown:,} of {len(triples):,} triples are left out: the training data does not have one of their "
                "entities or relations"
            )
        return np.ascontiguousarray(triples[is_known]), names
