"""Word vectors: nearest words, analogies, agreement with human scores, word2vec's file formats."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from hogwild.data.ids import spelled as spelling
from hogwild.data.text import lines_of, read_pairs, words_of
from hogwild.data.vector_file import VectorFile, encoded
from hogwild.errors import DataError, UsageError, did_you_mean, shown_name
from hogwild.metrics.built_in import spearman

QUESTIONS_AT_ONCE = 512  # products with every word, (512, V), in memory at one time


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement with human scores: Spearman's rank correlation over `pairs` pairs of words; `left_out` pairs have an
    unknown word."""

    spearman: float
    pairs: int
    left_out: int


@dataclass(frozen=True, slots=True)
class AnalogySection:
    """Results of one kind of question, `a is to b as c is to d`: how many were answered correctly, asked, and left out
    because of an unknown word."""

    right: int = 0
    asked: int = 0
    left_out: int = 0

    @property
    def accuracy(self) -> float:
        """Share of correct answers; NaN if none was asked."""
        return self.right / self.asked if self.asked else float("nan")


class WordVectors:
    """Unique `names` and their vectors `matrix` (V, D), copied as float32; those of words by falling frequency, if
    known. `vectors[name]` is one of them, `len(vectors)` their number, `name in vectors` whether there is one.
    Similarity is the cosine. `kind`: what messages call them: words, items, users, entities. `spelled`: returns the
    vector (D,) of a word that is not among them, from its spelling, or zeros. Raises ValueError if the sizes do not
    match, and UsageError for a name that occurs twice."""

    def __init__(
        self,
        names: Sequence[str],
        matrix: np.ndarray,
        kind: str = "words",
        spelled: Callable[[str], Any] | None = None,
    ) -> None:
        self.names, self.kind = list(names), kind
        self.matrix = np.array(matrix, np.float32)
        self._spelled = spelled
        require_unique(self.names, kind)
        self._number = {word: number for number, word in enumerate(self.names)}
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.names):
            raise ValueError(f"{len(self.names)} words, and vectors of shape {self.matrix.shape}")
        # In doubles: the square of a large float32 overflows.
        lengths = np.sqrt(np.einsum("vd,vd->v", self.matrix, self.matrix, dtype=np.float64))[:, None]
        self._unit = (self.matrix / np.where(lengths > 0, lengths, 1)).astype(np.float32)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} {self.kind}, {self.matrix.shape[1]} numbers each)"

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, word: object) -> bool:
        return word in self._number or (not isinstance(word, str) and spelling(word) in self._number)

    def __getitem__(self, word: Any) -> np.ndarray:
        """Return the vector (D,) float32, a view; of a word that is not among `names`, as `spelled` makes it. 7 and "7"
        are one id. Raises UsageError for an unknown word."""
        if word not in self._number and self._spelled is not None:
            made = np.asarray(self._spelled(word), np.float32)
            if made.any():
                return made
        vector: np.ndarray = self.matrix[self.number(word)]
        return vector

    def number(self, word: Any) -> int:
        """Return the word's row. Raises UsageError with similar words if it is unknown."""
        found = self._number.get(word)
        if found is None and not isinstance(word, str):
            found = self._number.get(spelling(word))
        if found is None:
            raise self._unknown(str(word))
        return found

    def similarity(self, first: str, second: str) -> float:
        """Return the cosine of their vectors. Raises UsageError for an unknown word."""
        return float(self._unit_of(first) @ self._unit_of(second))

    def most_similar(
        self, positive: str | Sequence[str], negative: str | Sequence[str] = (), topn: int = 10
    ) -> list[tuple[str, float]]:
        """Return the `topn` words nearest to the sum of the unit vectors of `positive` minus those of `negative`, with
        their cosines, best first; the given words are excluded. Raises UsageError for an unknown word."""
        plus, minus = ([words] if isinstance(words, str) else list(words) for words in (positive, negative))
        if not plus and not minus:
            raise UsageError("most_similar needs a word", code="usage/bad-value")
        signs = np.array([1.0] * len(plus) + [-1.0] * len(minus), np.float32)
        query = signs @ np.stack([self._unit_of(word) for word in [*plus, *minus]])
        given = [self._number[word] for word in [*plus, *minus] if word in self._number]
        cosines = self._unit @ (query / max(float(np.linalg.norm(query)), 1e-30))
        cosines[given] = -np.inf
        count = min(max(topn, 0), len(self.names) - len(set(given)))
        best = np.argpartition(-cosines, count - 1)[:count] if count else np.empty(0, np.int64)
        best = best[np.argsort(-cosines[best], kind="stable")]
        return [(self.names[number], float(cosines[number])) for number in best]

    def _unit_of(self, word: str) -> np.ndarray:
        if word not in self._number:
            made = self[word].astype(np.float64)
            return (made / np.linalg.norm(made)).astype(np.float32)
        unit: np.ndarray = self._unit[self._number[word]]
        return unit

    def spearman(self, path: str | os.PathLike[str]) -> Agreement:
        """Compare similarities with a file of human scores: two words and a score per line, as in wordsim353.tsv and
        simlex999.txt. An unknown word is tried in lower case. Raises DataError."""
        known: list[tuple[int, int, float]] = []
        pairs = [*read_pairs(Path(path))]
        for first, second, score in pairs:
            numbers = self._found(first), self._found(second)
            if numbers[0] is not None and numbers[1] is not None:
                known.append((numbers[0], numbers[1], score))
        if len(known) < 2:  # one pair has no correlation
            return Agreement(float("nan"), len(known), len(pairs) - len(known))
        a, b, scores = zip(*known, strict=True)
        cosines = np.einsum("nd,nd->n", self._unit[list(a)], self._unit[list(b)])
        value = spearman(torch.from_numpy(cosines), torch.tensor(scores, dtype=torch.float64))
        return Agreement(value, len(known), len(pairs) - len(known))

    def analogies(self, path: str | os.PathLike[str], restrict: int | None = 30_000) -> dict[str, AnalogySection]:
        """Answer a file of questions in the format of questions-words.txt: `: section`, then `a b c d` per line. The
        word nearest to b - a + c among the first `restrict` words, except these three, should be d. Unknown words are
        tried in lower case. Raises DataError."""
        found: dict[str, AnalogySection] = {}
        for name, questions in _sections(Path(path)):
            numbers = [[self._found(word, restrict) for word in question] for question in questions]
            known = np.array([row for row in numbers if None not in row], np.int64).reshape(-1, 4)
            before = found.get(name, AnalogySection())
            right = sum(self._right(part, restrict) for part in _parts(known))
            found[name] = AnalogySection(
                before.right + right, before.asked + len(known), before.left_out + len(numbers) - len(known)
            )
        return found

    def _right(self, questions: np.ndarray, restrict: int | None) -> int:
        """Return how many of the questions (N, 4) are answered correctly."""
        a, b, c, d = questions.T
        scores = (self._unit[b] - self._unit[a] + self._unit[c]) @ self._unit[:restrict].T
        scores[np.arange(len(d))[:, None], questions[:, :3]] = -np.inf
        return int((scores.argmax(1) == d).sum())

    def _found(self, word: str, restrict: int | None = None) -> int | None:
        number = self._number.get(word, self._number.get(word.lower()))
        return None if number is None or (restrict is not None and number >= restrict) else number

    def _unknown(self, word: str) -> UsageError:
        near = did_you_mean(word, self.names, most=3)
        words = f"{shown_name(word)} is not among the {len(self.names):,} {self.kind}{near}"
        return UsageError(words, code="usage/unknown-name")

    # ---- files

    def save_word2vec(self, path: str | os.PathLike[str], binary: bool = False) -> None:
        """Write the format of word2vec.c, text or binary, which gensim and others load. Text keeps every digit of a
        float32. The format has no white space in a name: if one has some, it is percent-encoded, and so is % in all
        names. Raises UsageError for an empty name."""
        names, _ = encoded(self.names)  # raises before the file is there
        with open(path, "wb") as file:
            write_word2vec(file, names, self.matrix, binary)

    @classmethod
    def load_word2vec(cls, path: str | os.PathLike[str], binary: bool = False) -> "WordVectors":
        """Read word2vec's text or binary format, from word2vec.c, gensim or `save_word2vec`. Raises DataError."""
        found = VectorFile.read(Path(path), binary=binary)
        return cls(found.words, found.matrix)


def require_unique(names: Sequence[str], kind: str) -> None:
    """Raise UsageError for a name that occurs twice."""
    if len({*names}) != len(names):
        twice = next(name for name, many in Counter(names).items() if many > 1)
        raise UsageError(f"{shown_name(twice)} occurs twice among the {len(names):,} {kind}", code="usage/bad-value")


def write_word2vec(file: BinaryIO, names: Sequence[str], matrix: np.ndarray, binary: bool) -> None:
    """Write word2vec's format: `names` (V,) as it can have them (`vector_file.encoded`), matrix (V, D) float32."""
    file.write(f"{len(names)} {matrix.shape[1]}\n".encode())
    numbers = " ".join(["%.9g"] * matrix.shape[1])
    for name, row in zip(names, matrix, strict=True):
        tail = row.astype("<f4").tobytes() if binary else (numbers % tuple(row.tolist())).encode()
        file.write(name.encode() + b" " + tail + b"\n")


def _sections(path: Path) -> Iterator[tuple[str, list[list[str]]]]:
    name, questions = "", list[list[str]]()
    for number, line in lines_of(path):
        if line.startswith(":"):
            if questions:
                yield name, questions
            name, questions = line[1:].strip(), []
            continue
        if len(words := words_of(line)) != 4:
            raise DataError(f"{path}: line {number}: must have four words, got {line[:60]!r}", code="data/bad-line")
        questions.append(words)
    if questions:
        yield name, questions


def _parts(rows: np.ndarray) -> Iterator[np.ndarray]:
    return (rows[start : start + QUESTIONS_AT_ONCE] for start in range(0, len(rows), QUESTIONS_AT_ONCE))
