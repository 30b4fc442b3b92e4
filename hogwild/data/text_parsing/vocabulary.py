"""Numbering of words in text columns: ids of users, items or entities that are not whole numbers. In this process, some
10 to 20 million words per second."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from hogwild.data.text_parsing.passes import Finds
from hogwild.errors import DataError

MOST_WORDS = 2**31 - 2
SPACIOUS = 4  # slots per word: a power of two


class Vocabulary:
    """Distinct words, numbered in order of appearance, with room for `words` of them, and for `nbytes`, at first. It
    grows. An iteration yields the words."""

    def __init__(self, words: int = 1 << 11, nbytes: int = 1 << 15) -> None:
        self._sizes = np.zeros(2, np.int64)
        self._keys, self._ends = np.empty(words, np.uint64), np.empty(words, np.int64)
        self._pool = np.empty(nbytes, np.uint8)
        self._slots = np.full(SPACIOUS * words, -1, np.int32)

    def __len__(self) -> int:
        return int(self._sizes[0])

    def __iter__(self) -> Iterator[bytes]:
        content = self._pool[: self._sizes[1]].tobytes()
        return (content[begin:end] for begin, end in pairwise([0, *self._ends[: len(self)].tolist()]))

    def number(self, text: np.ndarray, begins: np.ndarray, ends: np.ndarray, codes: np.ndarray) -> None:
        """Write the numbers of the words text[begins[i]:ends[i]] to codes (n,) int32."""
        from hogwild.kernels.parsing.tokens import intern

        done = 0
        while (done := intern(text, begins, ends, done, codes, *self._table())) < len(codes):
            self._grow(int(ends[done] - begins[done]))

    def _table(self) -> tuple[np.ndarray, ...]:
        """Return the arrays as `kernels/parsing/tokens.py` takes them."""
        return self._slots, self._keys, self._ends, self._pool, self._sizes

    def _grow(self, longest: int) -> None:
        """Make room for twice as many words, or for any next word, of at most `longest` bytes."""
        from hogwild.kernels.parsing.tokens import fill_slots

        entries, used = self._sizes.tolist()
        if entries == len(self._keys):
            self._keys, self._ends = (
                np.concatenate([array, np.empty_like(array)]) for array in (self._keys, self._ends)
            )
            self._slots = np.full(SPACIOUS * len(self._keys), -1, np.int32)
            fill_slots(self._keys, entries, self._slots)
        else:
            more = np.empty(max(len(self._pool), longest), np.uint8)
            self._pool = np.concatenate([self._pool[:used], more])


def in_order(words: list[bytes]) -> tuple[np.ndarray, Any]:
    """Return (rank of each word (n,) int32, sorted names): numerically as int64 if all are numbers, else
    alphabetically."""
    numbers = _whole_numbers(words)
    if numbers is not None:
        order = np.argsort(numbers, kind="stable")
    else:
        order = np.array(sorted(range(len(words)), key=words.__getitem__), np.int64)
    ranks = np.empty(len(words), np.int32)
    ranks[order] = np.arange(len(words), dtype=np.int32)
    if numbers is not None:
        return ranks, numbers[order]
    return ranks, [words[place].decode("utf-8", "backslashreplace") for place in order]


def _whole_numbers(words: list[bytes]) -> np.ndarray | None:
    """Return the numbers; None if one has another spelling: 007 and 7 are two ids."""
    if not all(word.isdigit() and len(word) < 19 and (word[:1] != b"0" or word == b"0") for word in words):
        return None
    return np.array([*map(int, words)], np.int64)


def numbered_columns(
    finds: Finds, form: tuple[int, int, int], columns: np.ndarray, groups: tuple[int, ...]
) -> tuple[list[np.ndarray], np.ndarray, list[Vocabulary]]:
    """Number every line's words in `columns`; the last column is the rating's, or -1. Return (numbers (n,) int32 per
    column, ratings (n,) float32, vocabularies). `groups`: the vocabulary of each column. `form`: the delimiter's bytes,
    and the number of fields if quotes are ordinary characters, or 0."""
    from hogwild.kernels.parsing.lines import ITEMS, LINES, OVERFLOW, ROWS, words

    one, two, exactly = form
    vocabularies = [Vocabulary() for _ in range(max(groups) + 1)]
    lines, most = finds.lines, finds.total(LINES)
    codes = [np.empty(most, np.int32) for _ in groups]
    ratings, row = np.empty(most, np.float32), 0
    for piece in range(lines.pieces):
        text, found = lines.piece(piece, finds.regions), finds.found[piece]
        found[ITEMS:] = 0
        begins, ends = np.empty((2, len(groups), int(found[LINES])), np.int64)
        words(text, one, two, columns, exactly, begins, ends, ratings[row : row + int(found[LINES])], found)
        if found[OVERFLOW]:
            raise lines.changed()
        rows = int(found[ROWS])
        for kind, group in enumerate(groups):
            vocabularies[group].number(text, begins[kind, :rows], ends[kind, :rows], codes[kind][row : row + rows])
        row += rows
    if any(len(vocabulary) > MOST_WORDS for vocabulary in vocabularies):
        raise DataError(f"{lines.path}: has more than {MOST_WORDS:,} different words", code="data/bad-value")
    return [column[:row] for column in codes], ratings[:row], vocabularies
