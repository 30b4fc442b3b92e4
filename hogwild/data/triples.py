"""Knowledge graphs from text: one triple of head, relation and tail per line, as in FB15k-237, CoDEx and Wikidata5M."""

import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from hogwild.data.ids import IdRows
from hogwild.data.locate import choice, find_file, require
from hogwild.data.rating_form import comments_before, fields_in
from hogwild.data.text_parsing import (
    COMMENTED,
    EMPTY,
    ENCODINGS,
    FIELDS,
    NUMBER,
    QUOTE,
    Format,
    PackedFile,
    Parsed,
    Parsing,
    TableText,
    Tell,
    numbered,
)  # fmt: skip
from hogwild.errors import DataError
from hogwild.feeds.packed import Packed

HEADERS = (  # names of the three columns
    ("head", "subject", "source", "from", "h", "s", "entity1", "node1", "subj"),
    ("relation", "predicate", "relationship", "rel", "edge", "label", "type", "r", "p", "pred"),
    ("tail", "object", "target", "to", "t", "o", "entity2", "node2", "obj"),
)
END = re.compile("(?<=.)(id|name|label)$")  # of a column's name
QUOTING = (",", ";", "|")  # delimiters whose fields may be in quotes
ADVICE = "It is your own file, one triple per line: head, relation and tail, separated by tabs."


class Triples(PackedFile):
    """Lines `head<tab>relation<tab>tail`, packed as `table`: `triple` (N, 3) int32: head, relation, tail;
    `weight` (N,) float32, ones. With tabs or spaces quotes are ordinary characters, as in published files. A header
    with names of the three columns, such as subject, predicate, object, says their order. Sizes and names: entities,
    relations, numbered in alphabetical order (in numerical order if all are whole numbers).

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
    version = 4  # values with line ends; lines that begin with a byte order mark
    rules: ClassVar[Mapping[int, str]] = {
        FIELDS: "a line must be head, relation and tail, three fields",
        EMPTY: "a field is empty",
        QUOTE: "a quotation mark is not closed, or something stands behind it",
        COMMENTED: "a line must not begin as a comment; remove it",
    }

    @property
    def has_quotes(self) -> bool:  # type: ignore[override]
        return self.source.delimiter in QUOTING

    def parse(self, tell: Tell) -> Parsed:
        require("pyarrow.csv", "hogwild.data.Triples", "pyarrow", "sparse")
        begin, line, places = self._rows()
        columns = TableText(Format(self.source.delimiter, has_quotes=self.has_quotes), 3, (*places,))
        pieces = self.pieces(partial(columns.parse, self), tell, begin, line)
        self.note_bad_lines(pieces)
        heads, relations, tails = zip(*(piece.arrays for piece in pieces), strict=True)
        (head, tail), entities = numbered(self, [heads, tails])
        (relation,), kinds = numbered(self, [relations])
        if self.like is None and len(head) > 1:
            ends = [np.count_nonzero(head == one) + np.count_nonzero(tail == one) for one in (head[0], tail[0])]
            if [*ends, np.count_nonzero(relation == relation[0])] == [1, 1, 1]:
                first = ", ".join(map(str, (entities[head[0]], kinds[relation[0]], entities[tail[0]])))
                self.notes.append(f"no header: the first row is {first}, which occur nowhere else")
        triples, names = self._as_in_training((head, relation, tail), {"entities": entities, "relations": kinds})
        arrays = {"triple": triples, "weight": np.ones(len(triples), np.float32)}
        sizes = {name: len(values) for name, values in names.items()}
        return self.finished(Packed.of(self.region_name, "table", arrays, sizes, names))

    def _rows(self) -> tuple[int, int, Sequence[int]]:
        """Return the byte and the line where the rows begin, behind comments and a header, and the places of head,
        relation and tail, by the header's names if it has these."""
        begin = self.begin()
        head = self.first_lines(begin)
        before = comments_before(head)
        lines = [line.decode("utf-8", "replace") for line in head]
        rows = [fields_in(line, self.source.delimiter) for line in lines[before:] if line.strip()]
        comments = [line for line in lines[:before] if line.strip()]
        commented = fields_in(comments[-1].lstrip("#% "), self.source.delimiter) if comments else []
        places, of_comment = (_places(names) for names in (rows[0] if rows else [], commented))
        # Or the head and the tail are numbers in all rows but the first.
        ends = [[bool(NUMBER.fullmatch(field)) for field in (row[0], row[-1])] for row in rows]
        is_header = places is not None or (len(rows) > 1 and all(map(all, ends[1:])) and not any(ends[0]))
        names, places = (rows[0], places) if places else (commented, of_comment)
        if before or is_header:
            what = " and ".join([f"{before:,} lines before the first row"] * bool(before) + ["the header"] * is_header)
            order = f"; columns by name: {', '.join(names)}" if places not in (None, [0, 1, 2]) else ""
            self.notes.append(f"{what} {'is' if is_header and not before else 'are'} left out{order}")
        skipped = before + is_header
        return begin + sum(map(len, head[:skipped])), 1 + skipped, places or (0, 1, 2)

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


def _places(names: Sequence[str]) -> list[int] | None:
    """Return the places of head, relation and tail among the names of three columns; None for other names."""
    plain = [END.sub("", re.sub(r"\W|_", "", name.lower())) for name in names]
    found = [next((place for place, name in enumerate(plain) if name in known), -1) for known in HEADERS]
    return found if len(names) == 3 and min(found) >= 0 else None
