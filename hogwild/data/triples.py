"""Knowledge graphs from text: one triple of head, relation and tail per line, as in FB15k-237, CoDEx and Wikidata5M."""

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hogwild.data.packed_cache import digest_of, file_digest
from hogwild.data.text_parsing.passes import (
    Finds,
    PackedFile,
    Parsed,
    Parsing,
    Run,
    TextLines,
    choice,
    counted,
    empty_file,
    find_text,
)
from hogwild.data.text_parsing.vocabulary import Vocabulary, in_order, numbered_columns
from hogwild.errors import DataError
from hogwild.feeds.packed import Packed

VERSION = 1
ADVICE = "It is your own file, one triple per line: head, relation and tail, separated by tabs."
RULES: dict[int, str] = {
    7: "a line must be head, relation and tail, three fields",
    8: "a field is empty",
}


class Triples(PackedFile):
    """Lines `head<tab>relation<tab>tail`, plain or .gz; packed as `table`: `triple` (N, 3) int32: head, relation, tail;
    `weight` (N,) float32, ones. Quotes are ordinary characters. `delimiter`: tab, or another character. Sizes and
    names: entities, relations, numbered in alphabetical order (in numerical order if all are whole numbers).

    In validation data, triples with an entity or a relation that is not in the training data are left out, counted and
    reported: nothing was learnt about them.

    A relative `path` is searched below `root`, below DIR, beside the job file and in the current folder. Needs numba
    (pip install 'hogwild[sparse]'). Raises NotFoundError, UsageError; `pack` raises DataError with file, line and
    rule."""

    def __init__(
        self, path: str | os.PathLike[str], delimiter: str = "\t", root: str | os.PathLike[str] | None = None
    ) -> None:
        who = f"Triples(path={str(path)!r})"
        choice(who, "delimiter", delimiter, ("\t", ",", ";", "|", " "))
        self.path = find_text(who, str(path), None if root is None else str(root), ADVICE)
        self.delimiter = delimiter

    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        return _TriplesParsing(self, what, like, on_bad_line)


@dataclass(slots=True)
class _TriplesParsing:
    source: Triples
    what: str
    like: Packed | None
    on_bad_line: str
    left_out: dict[str, int] = field(default_factory=dict)

    def key(self) -> str:
        options = (self.source.delimiter, self.on_bad_line)
        return digest_of("triples", VERSION, options, file_digest(self.source.path), self.like)

    def parse(self, run: Run) -> Parsed:
        lines, regions = TextLines.of(self.source.path)
        finds = Finds(lines, counted(run, self.what, lines, regions, "words"), regions, RULES)
        form = (ord(self.source.delimiter), 0, 3)
        columns = np.array([0, 1, 2, -1], np.int64)
        codes, _, known = numbered_columns(finds, form, columns, (0, 1, 0))
        notes = finds.settle(self.on_bad_line, self.left_out)
        if not len(codes[0]):
            raise empty_file(self.source.path, self.left_out)
        triples, names = self._numbered(codes, known, notes)
        arrays = {"triple": triples, "weight": np.ones(len(triples), np.float32)}
        sizes = {name: len(values) for name, values in names.items()}
        packed = Packed.of(self.what.replace(".", "-"), "table", arrays, sizes, names)
        return Parsed(packed, self.left_out, tuple(f"{self.source.path}: {note}" for note in notes))

    def _numbered(
        self, codes: list[np.ndarray], known: list[Vocabulary], notes: list[str]
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return ((n, 3) int32, names), with the training data's numbers if there is any."""
        kinds = ("entities", "relations")
        ordered = [in_order(vocabulary.words()) for vocabulary in known]
        if self.like is not None and {*kinds} - {*self.like.names}:
            raise DataError(f"{self.source.path}: data.train has no triples", code="data/val-unlike-train")
        ranks = [numbers for numbers, _ in ordered]
        names = {kind: values for kind, (_, values) in zip(kinds, ordered, strict=True)}
        if self.like is not None:
            theirs = {kind: self.like.names[kind] for kind in kinds}
            tables = [in_numbers_of(theirs[kind], names[kind]) for kind in kinds]
            ranks = [table[numbers] for table, numbers in zip(tables, ranks, strict=True)]
            names = theirs
        triples = np.stack([ranks[0][codes[0]], ranks[1][codes[1]], ranks[0][codes[2]]], axis=1)
        is_known = (triples >= 0).all(axis=1)
        if unknown := int(np.count_nonzero(~is_known)):
            self.left_out["unseen triples"] = unknown
            notes.append(
                f"{unknown:,} of {len(triples):,} triples are left out: the training data does not have one of their "
                "entities or relations"
            )
        return np.ascontiguousarray(triples[is_known]), names


def in_numbers_of(theirs: Any, ours: Any) -> np.ndarray:
    """Return each name's number in the training data, (n,) int32; -1 if it is not there."""
    places = {_plain(name): number for number, name in enumerate(theirs)}
    return np.array([places.get(_plain(name), -1) for name in ours], np.int32)


def _plain(name: Any) -> str:
    """Return the name as text: 12, from a file with only numbers, equals "12" in another."""
    return str(name)
