"""Pairs of words with human similarity scores, to evaluate word vectors."""

import logging
import os
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.data.file_kind import text_of
from hogwild.data.locate import find_file
from hogwild.errors import DataError
from hogwild.feeds.packed import Packed

ADVICE = "It is your own file, like wordsim353.tsv: two words and a score per line, separated by tabs."
log = logging.getLogger(__name__)


class WordPairs:
    """Two words and a score per line, as in wordsim353.tsv and simlex999.txt; `#` begins a comment; packed as a table:
    `pair` (N, 2) int32, numbers of the training data's words, and `score` (N,) float32, divided by the largest. Only
    for data.val. A word that is not in the training data is tried in lower case; pairs with an unknown word are left
    out, counted and reported.

    Raises NotFoundError; `pack` raises DataError.

    Arguments:
        path: file, as in wordsim353.tsv."""

    def __init__(self, path: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> None:
        self.path = find_file(f"WordPairs(path={str(path)!r})", path, root, ADVICE)
        self.left_out: Mapping[str, int] = {}

    def pack(
        self, reader: Any, what: str = "data.val", like: Packed | None = None, on_bad_line: str = "fail"
    ) -> Packed:
        """Read the few hundred pairs in this process. `like`: the training data, whose word numbers they use."""
        if like is None or "words" not in like.names:
            raise DataError(
                f"{what}: WordPairs can only be data.val, with hogwild.data.Text as data.train",
                code="data/fields",
            )
        place = {word: number for number, word in enumerate(like.names["words"])}
        pairs = [*read_pairs(self.path)]
        known = [
            (a, b, score)
            for first, second, score in pairs
            if (a := _number(place, first)) is not None and (b := _number(place, second)) is not None
        ]
        if not known:
            raise DataError(
                f"{self.path}: none of {len(pairs):,} pairs has both words in the training data", code="data/empty"
            )
        self.left_out = {"pairs with an unknown word": len(pairs) - len(known)} if len(known) < len(pairs) else {}
        for why, many in self.left_out.items():
            log.info("%s: %d of %d %s are left out", what, many, len(pairs), why)
        table = np.array(known, np.float64)
        largest = max(float(np.abs(table[:, 2]).max()), 1e-30)
        arrays = {"pair": table[:, :2].astype(np.int32), "score": (table[:, 2] / largest).astype(np.float32)}
        return Packed.of(what, "table", arrays, {"words": len(place)}, {})


def _number(place: Mapping[str, int], word: str) -> int | None:
    return place.get(word, place.get(word.lower()))


def read_pairs(path: Path) -> Iterator[tuple[str, str, float]]:
    """Yield (word, word, score) of each line; tabs or spaces separate them, `#` begins a comment. Raises DataError."""
    for number, line in lines_of(path):
        parts = line.split("\t") if "\t" in line else words_of(line)
        try:
            first, second, score = (part.strip(" ") for part in parts[:3])
            yield first, second, float(score)
        except ValueError:
            raise DataError(
                f"{path}: line {number}: must have two words and a number, got {line[:60]!r}", code="data/bad-line"
            ) from None


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of each line that is neither empty nor a comment."""
    for number, line in enumerate(text_of(path, "table").split("\n"), 1):
        if (stripped := line.strip(string.whitespace)) and not stripped.startswith("#"):
            yield number, stripped


def words_of(line: str) -> list[str]:
    """Return the words of a line; ASCII's white space separates them, as in `hogwild.data.Text`."""
    return [word.decode() for word in line.encode().split()]
