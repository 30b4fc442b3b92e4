"""A text as word numbers."""

import logging
import os
import string
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.data import text_file
from hogwild.data.locate import bad_argument, find_file, require
from hogwild.data.text_file import text_of
from hogwild.data.text_parsing import PackedFile, Parsed, Parsing, Tell, begins_of, in_threads, numpy_of
from hogwild.errors import DataError
from hogwild.feeds.packed import Packed

SEPARATORS = bytes(range(ord(" ") + 1))
LONGEST = 10_000  # words in a sentence: a text of one line, such as text8, is cut there
ADVICE = "It is your own text: words separated by spaces, one sentence per line or one long line, plain or packed."


class Text(PackedFile):
    """Words with white space between them, one line (text8) or one sentence a line, UTF-8, plain or packed; packed as
    `tokens` (T,) int32, word numbers, the most frequent word first; `starts` (S+1,) int64, the starts of sentences, and
    the end; `counts` (V,) int64, of each word. A sample is the place of a word.

    A sentence ends with its line, and after 10,000 words.

    Sizes: words, context. Names: words. Validation data uses the training data's words; other words are left out,
    counted and reported. A word that is not UTF-8 makes a bad line; with `on_bad_line: skip` it is left out.

    Needs pyarrow (pip install 'hogwild[sparse]'). Raises NotFoundError, UsageError; `pack` raises DataError.

    Arguments:
        path: file, plain or packed.
        min_count: words that occur less often are removed.
        context: words on each side that a sample includes; windows that skip dropped words reach no further."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        min_count: int = 5,
        context: int = 20,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        who = f"Text(path={str(path)!r})"
        for name, value in (("min_count", min_count), ("context", context)):
            if type(value) is not int or not 0 < value < 1 << 31:
                raise bad_argument(f"{who}: {name} must be a whole number >= 1, got {value!r}")
        self.path = find_file(who, path, root, ADVICE)
        self.min_count, self.context = min_count, context
        self.known: list[str] = []

    def remember(self, names: Mapping[str, Sequence[str]]) -> None:
        """Give the `words` of `names` a number however rarely they occur."""
        self.known = [*names.get("words", ())]

    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        return TextParsing(self, what, like, on_bad_line)


class TextParsing(Parsing):
    """The parsing of a text into packed arrays. By threads; unzipping 100 MB takes a second."""

    source: Text
    kind, version, options = "Text", 2, ("min_count", "context", "known")
    wanted = "text"

    def parse(self, tell: Tell) -> Parsed:
        """Parse the text. Raises DataError, MemoryShortError."""
        require("pyarrow", "hogwild.data.Text", "pyarrow", "sparse")
        places: dict[bytes, int] = defaultdict(count().__next__)  # in order of first appearance
        parts, line_ends = list[np.ndarray](), list[np.ndarray]()
        for words, ends in in_threads(words_in, self._parts()):
            numbers = np.array([places[word] for word in words.dictionary.to_pylist()], np.int32)
            parts.append(numbers[numpy_of(words.indices)])
            line_ends.append(ends)
            self.check_memory(sum(part.nbytes for part in parts))
            tell(*self.text.progress)
        many = np.zeros(len(places), np.int64)
        for part in parts:
            many += np.bincount(part, minlength=len(many))
        left_out, rank, words = self._vocabulary([*places], many)
        counts = np.bincount(rank[rank >= 0], many[rank >= 0], minlength=len(words)).astype(np.int64)
        tokens, starts = _encoded(parts, line_ends, rank, int(counts.sum()))
        if self.like is not None:
            counts = self.like.arrays()["counts"]
        arrays = {"tokens": tokens, "starts": starts, "counts": counts}
        sizes = {"words": len(words), "context": self.source.context}
        notes = tuple(f"{many:,} {why} are left out" for why, many in left_out.items())
        return Parsed(Packed.of(self.what, "tokens", arrays, sizes, {"words": words}), left_out, notes)

    def _parts(self) -> Iterator[bytes]:
        """Yield the text in parts, which end with a line or, in a long line, with a word."""
        for content in self.contents(self.begin()):
            begin = 0
            while begin < len(content):
                end = content.find(b" ", begin + text_file.LINES) + 1 or len(content)
                yield content[begin:end]
                begin = end

    def _vocabulary(
        self, words_as_bytes: list[bytes], counts: np.ndarray
    ) -> tuple[dict[str, int], np.ndarray, list[str]]:
        """Return (counts of words left out, by reason; rank (entries,) int32 of each word, -1: left out; the words)."""
        found = [_decoded(word) for word in words_as_bytes]
        broken = [entry for entry, word in enumerate(found) if word is None]
        if broken and self.on_bad_line != "skip":
            word = words_as_bytes[broken[0]]
            raise DataError(
                f"{self.place_of(word)}: not UTF-8: {word[:60]!r}; convert the file, or leave such words out with "
                "data.on_bad_line: skip",
                code="data/bad-line",
            )
        rank, good = np.full(len(counts), -1, np.int32), np.ones(len(counts), bool)
        good[broken] = False
        left_out = {"words that are not UTF-8": int(counts[broken].sum())} if broken else {}
        if self.like is not None:
            words = list(self.like.names["words"])
            place = {word: number for number, word in enumerate(words)}
            rank[:] = [place.get(word, -1) if word is not None else -1 for word in found]
            left_out["words unknown to the training data"] = int(counts[good & (rank < 0)].sum())
        else:
            known = set(self.source.known)
            is_known = np.array([word in known for word in found], bool) if known else False
            kept = np.flatnonzero(good & ((counts >= self.source.min_count) | is_known))
            kept = kept[np.argsort(-counts[kept], kind="stable")]
            rank[kept] = np.arange(len(kept), dtype=np.int32)
            words = [found[entry] or "" for entry in kept]
            known -= {*words}
            words += [word for word in self.source.known if word in known]
            left_out[f"words rarer than min_count {self.source.min_count}"] = int(counts[good & (rank < 0)].sum())
        if not (rank >= 0).any():
            rule = f"none of its words occurs {self.source.min_count} times (min_count)"
            if self.like is not None:
                rule = "none of its words is in the training data"
            most = (
                f"; the most frequent, {found[int(counts.argmax())]!r}, {counts.max():,} times" if len(counts) else ""
            )
            raise DataError(
                f"{self.source.path}: the vocabulary is empty: of {counts.sum():,} words, {len(counts):,} different "
                f"ones, {rule}{most}",
                code="data/no-words",
            )
        return {why: many for why, many in left_out.items() if many}, rank, words


def words_in(content: bytes) -> tuple[Any, np.ndarray]:
    """Return the words of a part of the text, runs of bytes above the space, as an arrow dictionary, and how many of
    them stand before each line end (L,)."""
    import pyarrow

    text = np.frombuffer(content, np.uint8)
    is_letter = text >= len(SEPARATORS)
    edges = np.flatnonzero(np.diff(is_letter, prepend=False, append=False))
    begins, ends = edges[::2], edges[1::2]
    buffers = begins_of(ends - begins).astype(np.int32), content.translate(None, SEPARATORS)
    words = pyarrow.Array.from_buffers(pyarrow.binary(), len(begins), [None, *map(pyarrow.py_buffer, buffers)])
    return words.dictionary_encode(), np.searchsorted(begins, np.flatnonzero(text == ord("\n")))


def _encoded(
    parts: list[np.ndarray], line_ends: list[np.ndarray], rank: np.ndarray, many: int
) -> tuple[np.ndarray, ...]:
    """Return (tokens (many,) int32, starts (S+1,) int64) of the parts of a text, without the words of rank -1. Frees
    each part after encoding it."""
    tokens, bounds, at = np.empty(many, np.int32), [np.zeros(1, np.int64)], 0
    while parts:
        numbers, ends = rank[parts.pop(0)], line_ends.pop(0)
        is_kept = numbers >= 0
        if len(ends):
            bounds.append(at + begins_of(is_kept)[ends])
        kept = numbers[is_kept]
        tokens[at : at + len(kept)] = kept
        at += len(kept)
    lines = np.unique(np.append(np.concatenate(bounds), at))
    pieces = -(-np.diff(lines) // LONGEST)  # of each line
    numbers = np.arange(pieces.sum()) - np.repeat(begins_of(pieces)[:-1], pieces)
    return tokens, np.append(np.repeat(lines[:-1], pieces) + LONGEST * numbers, at)


def _decoded(word: bytes) -> str | None:
    try:
        return word.decode()
    except UnicodeDecodeError:
        return None


# ---- pairs of words with human similarity scores, to evaluate word vectors ------------------------------------------

PAIRS_ADVICE = "It is your own file, like wordsim353.tsv: two words and a score per line, separated by tabs."
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
        self.path = find_file(f"WordPairs(path={str(path)!r})", path, root, PAIRS_ADVICE)
        self.left_out: Mapping[str, int] = {}

    def pack(
        self, reader: Any, what: str = "data.val", like: Packed | None = None, on_bad_line: str = "fail"
    ) -> Packed:
        """Read the few hundred pairs in this process. `like`: the training data, whose word numbers they use."""
        if like is None or "words" not in like.names:
            raise DataError(
                f"{what}: WordPairs can only be data.val, with hogwild.data.Text as data.train", code="data/fields"
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
