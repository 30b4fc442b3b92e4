"""Knowledge graphs from text: one triple of head, relation and tail per line, as in FB15k-237, CoDEx and Wikidata5M."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from hogwild.data.ids import IdRows
from hogwild.data.locate import choice, find_file, require
from hogwild.data.rating_form import comments_before, fields_in
from hogwild.data.text_parsing.parsing import ENCODINGS, PackedFile, Parsed, Parsing, Tell
from hogwild.data.text_parsing.table_text import Format, TableText, numbered
from hogwild.errors import DataError
from hogwild.feeds.packed import Packed

HEADERS = (  # names of the three columns
    ("head", "subject", "source", "from", "h", "s", "entity1", "node1", "subj"),
    ("relation", "predicate", "relationship", "rel", "edge", "label", "type", "r", "p", "pred"),
    ("tail", "object", "target", "to", "t", "o", "entity2", "node2", "obj"),
)
QUOTING = (",", ";", "|")  # delimiters whose fields may be in quotes
ADVICE = "It is your own file, one triple per line: head, relation and tail, separated by tabs."


class Triples(PackedFile):
    """Lines `head<tab>relation<tab>tail`, packed as `table`: `triple` (N, 3) int32: head, relation, tail;
    `weight` (N,) float32, ones. With tabs or spaces quotes are ordinary characters, as in published files.
    Sizes and names: entities, relations, numbered in
    alphabetical order (in numerical order if all are whole numbers).

    In validation data, triples with an entity or a relation that is not in the training data are left out, counted and
    reported: nothing was learnt about them.

    Needs pyarrow (pip install 'hogwild[sparse]'). Raises NotFoundError, UsageError; `pack` raises DataError with file,
    line and rule.

    Arguments:
        path: file, plain or packed.
        delimiter: tab, comma, `;`, `|` or space.
        encoding: utf-8, latin-1 or cp1252."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        delimiter: str = "\t",
        root: str | os.PathLike[str] | None = None,
        encoding: Literal["utf-8", "latin-1", "cp1252"] = "utf-8",
    ) -> None:
        who = f"Triples(path={str(path)!r})"
        choice(who, "delimiter", delimiter, ("\t", ",", ";", "|", " "))
        choice(who, "encoding", encoding, ENCODINGS)
        self.path = find_file(who, path, root, ADVICE)
        self.delimiter, self.encoding = delimiter, encoding

    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        return _TriplesParsing(self, what, like, on_bad_line)


class _TriplesParsing(Parsing):
    source: Triples
    kind, options = "triples", ("delimiter", "encoding")
    version = 2
    rules: ClassVar[Mapping[int, str]] = {
        7: "a line must be head, relation and tail, three fields",
        8: "a field is empty",
        9: "a quotation mark is not closed, or something stands behind it",
        11: "a line must not begin as a comment; remove it",
    }

    def parse(self, tell: Tell) -> Parsed:
        require("pyarrow.csv", "hogwild.data.Triples", "pyarrow", "sparse")
        sign = self.source.delimiter
        columns = TableText(Format(sign, ".", "utf-8", has_quotes=sign in QUOTING), 3, (0, 1, 2))
        begin, line = self._rows()
        pieces = self.pieces(partial(columns.parse, self), tell, begin, line)
        self.note_bad_lines(pieces)
        heads, relations, tails = zip(*(piece.arrays for piece in pieces), strict=True)
        (head, tail), entities = numbered(self, [heads, tails])
        (relation,), kinds = numbered(self, [relations])
        triples, names = self._as_in_training((head, relation, tail), {"entities": entities, "relations": kinds})
        arrays = {"triple": triples, "weight": np.ones(len(triples), np.float32)}
        sizes = {name: len(values) for name, values in names.items()}
        return self.finished(Packed.of(self.region_name, "table", arrays, sizes, names))

    def _rows(self) -> tuple[int, int]:
        """Return the byte and the line where the rows begin, behind comments and a header."""
        begin = self.begin()
        head = self.first_lines(begin)
        before = comments_before(head)
        first = b"".join(head[before : before + 1]).decode("utf-8", "replace")
        fields = fields_in(first.lower(), self.source.delimiter)
        is_header = len(fields) == 3 and all(name in names for name, names in zip(fields, HEADERS, strict=True))
        if before or is_header:
            what = " and ".join([f"{before:,} lines before the first row"] * bool(before) + ["the header"] * is_header)
            self.notes.append(f"{what} {'is' if is_header and not before else 'are'} left out")
        return begin + sum(map(len, head[: before + is_header])), 1 + before + is_header

    def _as_in_training(
        self, columns: Sequence[np.ndarray], names: dict[str, Any]
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return ((n, 3) int32, names), with the training data's numbers if there is any."""
        if self.like is not None:
            if {*names} - {*self.like.names}:
                raise DataError(f"{self.source.path}: data.train has no triples", code="data/val-unlike-train")
            theirs = {kind: self.like.names[kind] for kind in names}
            entities, relations = (IdRows(theirs[kind]).rows(names[kind]).astype(np.int32) for kind in names)
            head, relation, tail = columns
            columns, names = (entities[head], relations[relation], entities[tail]), theirs
        triples = np.stack(columns, axis=1)
        is_known = (triples >= 0).all(axis=1)
        if unknown := int(np.count_nonzero(~is_known)):
            self.left_out["unseen triples"] = unknown
            self.notes.append(
                f"{unknown:,} of {len(triples):,} triples are left out: the training data does not have one of their "
                "entities or relations"
            )
        return np.ascontiguousarray(triples[is_known]), names
