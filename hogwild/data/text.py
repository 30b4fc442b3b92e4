"""A text as word numbers."""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from hogwild.data.locate import bad_argument
from hogwild.data.text_parsing.parsing import PackedFile, Parsed, Parsing, Tell, find_text
from hogwild.errors import DataError
from hogwild.feeds.packed import Packed

LONGEST = 10_000  # words in a sentence: a text of one line, such as text8, is cut there
AT_ONCE = 1 << 20  # numbers of words written in one go
FIRST_WORDS, FIRST_BYTES = 1 << 16, 1 << 20  # room for so many different words at first, and for their bytes
SPACIOUS = 4  # slots per word: a power of two
ADVICE = "It is your own text: words separated by spaces, one sentence per line or one long line, plain or packed."


class Text(PackedFile):
    """Words with white space between them, one line (text8) or one sentence a line, UTF-8, plain or packed; packed as
    `tokens` (T,) int32, word numbers, the most frequent word first; `starts` (S+1,) int64, the starts of sentences, and
    the end; `counts` (V,) int64, of each word. A sample is the place of a word.

    A sentence ends with its line, and after 10,000 words.

    Sizes: words, context. Names: words. Validation data uses the training data's words; other words are left out,
    counted and reported. A word that is not UTF-8 makes a bad line; with `on_bad_line: skip` it is left out.

    Needs numba (pip install 'hogwild[sparse]'). Raises NotFoundError, UsageError; `pack` raises DataError.

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
        self.path = find_text(who, path, root, ADVICE)
        self.min_count, self.context = min_count, context
        self.known: list[str] = []

    def remember(self, names: Mapping[str, Sequence[str]]) -> None:
        """Give the `words` of `names` a number however rarely they occur."""
        self.known = [*names.get("words", ())]

    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        return TextParsing(self, what, like, on_bad_line)


class TextParsing(Parsing):
    """The parsing of a text into packed arrays. In one process: 100 MB take a second, and unzipping as long."""

    source: Text
    kind, options = "Text", ("min_count", "context", "known")
    wanted = "text"

    def parse(self, tell: Tell) -> Parsed:
        """Parse the text. Raises DataError, MemoryShortError."""
        self.compile("text")
        table = WordTable()
        raw: list[np.ndarray] = []
        for content in self.contents(self.begin()):
            raw += table.read(np.frombuffer(content, np.uint8))
            self.check_memory(sum(numbers.nbytes for numbers in raw))
            tell(*self.text.progress)
        left_out, rank, words = self._vocabulary(table)
        counts = np.bincount(rank[rank >= 0], table.counts[rank >= 0], minlength=len(words)).astype(np.int64)
        tokens, starts = _encoded(raw, rank, int(counts.sum()))
        if self.like is not None:
            counts = self.like.arrays()["counts"]
        arrays = {"tokens": tokens, "starts": starts, "counts": counts}
        sizes = {"words": len(words), "context": self.source.context}
        notes = tuple(f"{many:,} {why} are left out" for why, many in left_out.items())
        return Parsed(Packed.of(self.what, "tokens", arrays, sizes, {"words": words}), left_out, notes)

    def _vocabulary(self, table: "WordTable") -> tuple[dict[str, int], np.ndarray, list[str]]:
        """Return (counts of words left out, by reason; rank (entries,) int32 of each word, -1: left out; the words)."""
        counts = table.counts
        found = [_decoded(word) for word in table]
        broken = [entry for entry, word in enumerate(found) if word is None]
        if broken and self.on_bad_line != "skip":
            raise self._not_text([*table][broken[0]])
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
            raise self._no_words(table, found)
        return {why: many for why, many in left_out.items() if many}, rank, words

    def _no_words(self, table: "WordTable", found: list[str | None]) -> DataError:
        counts = table.counts
        if self.like is not None:
            rule = "none of its words is in the training data"
        else:
            rule = f"none of its words occurs {self.source.min_count} times (min_count)"
        often = f"; the most frequent, {found[int(counts.argmax())]!r}, {counts.max():,} times" if len(counts) else ""
        return DataError(
            f"{self.source.path}: the vocabulary is empty: of {counts.sum():,} words, {len(counts):,} different ones, "
            f"{rule}{often}",
            code="data/no-words",
        )

    def _not_text(self, word: bytes) -> DataError:
        return DataError(
            f"{self.place_of(word)}: not UTF-8: {word[:60]!r}; convert the file, or leave such words out with "
            "data.on_bad_line: skip",
            code="data/bad-line",
        )


class WordTable:
    """The distinct words of a text with their counts, in order of first appearance. It grows. An iteration yields the
    words."""

    def __init__(self) -> None:
        self._sizes = np.zeros(2, np.int64)
        self._keys, self._ends = np.empty(FIRST_WORDS, np.uint64), np.empty(FIRST_WORDS, np.int64)
        self._pool = np.empty(FIRST_BYTES, np.uint8)
        self._slots = np.full(SPACIOUS * FIRST_WORDS, -1, np.int32)
        self._counts = np.zeros(FIRST_WORDS, np.int64)

    def __len__(self) -> int:
        return int(self._sizes[0])

    def __iter__(self) -> Iterator[bytes]:
        content = self._pool[: self._sizes[1]].tobytes()
        return (content[begin:end] for begin, end in pairwise([0, *self._ends[: len(self)].tolist()]))

    @property
    def counts(self) -> np.ndarray:
        """The counts (entries,) int64."""
        return self._counts[: len(self)]

    def read(self, content: np.ndarray) -> Iterator[np.ndarray]:
        """Add the words of complete lines; yield their numbers (n,) int32, -1 at line ends, in parts."""
        from hogwild.kernels.parsing.tokens import number

        at, raw = 0, np.empty(AT_ONCE, np.int32)
        while at < len(content):
            before = at
            known = self._slots, self._keys, self._ends, self._pool, self._sizes
            at, written = number(content, at, *known, self._counts, raw)
            yield raw[:written].copy()
            if at < len(content) and written < len(raw):
                self._grow(len(content) - before)

    def _grow(self, longest: int) -> None:
        """Make room for twice as many words, or for any next word, of at most `longest` bytes."""
        from hogwild.kernels.parsing.tokens import fill_slots

        entries, used = self._sizes.tolist()
        if entries == len(self._keys):
            self._keys, self._ends, self._counts = (
                np.concatenate([array, np.zeros_like(array)]) for array in (self._keys, self._ends, self._counts)
            )
            self._slots = np.full(SPACIOUS * len(self._keys), -1, np.int32)
            fill_slots(self._keys, entries, self._slots)
        else:
            more = np.empty(max(len(self._pool), longest), np.uint8)
            self._pool = np.concatenate([self._pool[:used], more])


def _encoded(raw: list[np.ndarray], rank: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (tokens (count,) int32, starts (S+1,) int64). Frees each part of `raw` after encoding it."""
    from hogwild.kernels.parsing.tokens import LINE_END, encode

    line_ends = sum(int((numbers == LINE_END).sum()) for numbers in raw)
    tokens, starts = np.empty(count, np.int32), np.zeros(line_ends + count // LONGEST + 2, np.int64)
    at = sentences = 0
    for place, numbers in enumerate(raw):
        at, sentences = encode(numbers, rank, LONGEST, tokens, at, starts, sentences)
        raw[place] = numbers[:0]
    if at > starts[sentences]:
        sentences += 1
        starts[sentences] = at
    return tokens, starts[: sentences + 1].copy()


def _decoded(word: bytes) -> str | None:
    try:
        return word.decode()
    except UnicodeDecodeError:
        return None
