"""Words in columns of a text: ids of users, items or entities that are not whole numbers, numbered by pyarrow's
dictionaries. Pieces that pyarrow refuses are parsed line by line, to name the lines that cannot be used."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from hogwild.data.text_parsing.parsing import Parsing, Piece, problem
from hogwild.errors import DataError

MOST_WORDS = 2**31 - 2
LARGEST = float(np.finfo(np.float32).max)
ONE_BYTE = b"\x1f"  # replaces a delimiter of two bytes, which pyarrow does not know
NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
NOT_FINITE = re.compile(rb"[+-]?(nan|inf)", re.IGNORECASE)


class _BadLine(Exception):
    """A line breaks a rule of `kernels/parsing/lines.py`, at a byte."""

    def __init__(self, rule: int, at: int) -> None:
        self.rule, self.at = rule, at


@dataclass(frozen=True, slots=True)
class WordColumns:
    """The `columns` of words in lines of `width` fields. `rating`: the column of numbers, -1 for none: each is 1.
    `is_exact`: a line with another number of fields is bad, and quotes are ordinary characters."""

    delimiter: bytes
    columns: tuple[int, ...]
    rating: int
    width: int
    is_exact: bool

    def parse(self, parsing: Parsing, content: bytes) -> Piece:
        """Parse a piece: its arrays are a dictionary array for each column of words, and the ratings (n,) float32."""
        return self._quick(content) or self._careful(parsing, content)

    def _quick(self, content: bytes) -> Piece | None:
        """Return the piece; None if anything is unusual."""
        import pyarrow
        from pyarrow import csv

        text, delimiter = content, self.delimiter
        if len(delimiter) > 1:
            if ONE_BYTE in content:
                return None
            text, delimiter = content.replace(delimiter, ONE_BYTE), ONE_BYTE
        has_quotes = not self.is_exact and b'"' in content
        if (has_quotes and not _are_whole_fields(text, delimiter)) or text.count(b"\r") != text.count(b"\r\n"):
            return None
        kinds = {str(column): pyarrow.dictionary(pyarrow.int32(), pyarrow.binary()) for column in self.columns}
        if self.rating >= 0:
            kinds[str(self.rating)] = pyarrow.float64()
        try:
            table = csv.read_csv(
                pyarrow.BufferReader(text),
                read_options=csv.ReadOptions(
                    use_threads=False, block_size=len(text) + 1, column_names=[*map(str, range(self.width))]
                ),
                parse_options=csv.ParseOptions(
                    delimiter=delimiter.decode(), quote_char='"' if has_quotes else False, double_quote=False
                ),
                convert_options=csv.ConvertOptions(
                    include_columns=[*kinds], column_types=kinds, null_values=[""], strings_can_be_null=True
                ),
            )
        except pyarrow.ArrowInvalid:
            return None
        lines = text.count(b"\n") + (not text.endswith(b"\n"))
        if table.num_rows != lines or any(column.null_count for column in table.columns):
            return None
        words = [table.column(str(column)).chunk(0) for column in self.columns]
        rating = np.ones(lines, np.float32)
        if self.rating >= 0:
            with np.errstate(over="ignore"):  # the value becomes infinite
                rating = np.from_dlpack(table.column(str(self.rating)).chunk(0)).astype(np.float32)
        return _piece(words, rating, lines, bad=0) if np.isfinite(rating).all() else None

    def _careful(self, parsing: Parsing, content: bytes) -> Piece:
        import pyarrow

        words: list[list[bytes]] = [[] for _ in self.columns]
        ratings: list[float] = []
        bad, first, lines = 0, (0, ""), content.split(b"\n")
        for number, whole in enumerate(lines):
            line = whole.removesuffix(b"\r")
            if not line.strip(b" \t\r"):
                continue
            try:
                found, rating = self._line(line)
            except _BadLine as error:
                first = first if bad else (number, problem(parsing.rules[error.rule], line, error.at))
                bad += 1
                continue
            ratings.append(rating)
            for column, word in zip(words, found, strict=True):
                column.append(word)
        encoded = [pyarrow.array(column, pyarrow.binary()).dictionary_encode() for column in words]
        piece = _piece(encoded, np.array(ratings, np.float32), len(lines) - content.endswith(b"\n"), bad)
        piece.bad = first
        return piece

    def _line(self, line: bytes) -> tuple[list[bytes], float]:
        """Return the words and the rating of a line. Raises _BadLine."""
        from hogwild.kernels.parsing.lines import EMPTY, FIELDS, QUOTE

        found: dict[int, bytes] = {}
        number, at, rating = 0, 0, 1.0
        while True:
            begin, end, behind = at, line.find(self.delimiter, at), 0
            if not self.is_exact and line.startswith(b'"', at):
                begin, end = at + 1, line.find(b'"', at + 1)
                behind = end + 1
                if end < 0 or not (behind == len(line) or line.startswith(self.delimiter, behind)):
                    raise _BadLine(QUOTE, at)
            end = len(line) if end < 0 else end
            if number in self.columns and begin == end:
                raise _BadLine(EMPTY, begin)
            if number == self.rating:
                rating = _number(line[begin:end], begin)
            found[number] = line[begin:end]
            number, at = number + 1, behind or end
            if at >= len(line):
                break
            at += len(self.delimiter)
        if not found.keys() >= {*self.columns} or self.rating >= number or (self.is_exact and number != self.width):
            raise _BadLine(FIELDS, 0)
        return [found[column] for column in self.columns], rating


def _piece(words: list[Any], rating: np.ndarray, lines: int, bad: int) -> Piece:
    from hogwild.kernels.parsing.lines import BAD, FOUND, LINES, ROWS

    found = np.zeros(FOUND, np.int64)
    found[LINES], found[ROWS], found[BAD] = lines, len(rating), bad
    return Piece((*words, rating), found)


def _number(text: bytes, at: int) -> float:
    """Return the rating at byte `at` of a line. Raises _BadLine."""
    from hogwild.kernels.parsing.lines import FINITE, VALUE

    text = text.strip(b" \t\r")
    if NOT_FINITE.match(text):
        raise _BadLine(FINITE, at)
    if not NUMBER.fullmatch(text):
        raise _BadLine(VALUE, at)
    value = float(text)
    if abs(value) > LARGEST:
        raise _BadLine(FINITE, at)
    return value


def _are_whole_fields(text: bytes, delimiter: bytes) -> bool:
    """Return whether all quotes are around whole fields, without a quote inside: only those does pyarrow read alike."""
    sign = re.escape(delimiter)
    fields = re.findall(rb"(?:^|(?<=[\n" + sign + rb']))"[^"\n]*"(?=[\r\n' + sign + rb"]|\Z)", text)
    return 2 * len(fields) == text.count(b'"')


def numbered(path: Any, columns: list[list[Any]]) -> tuple[list[np.ndarray], list[bytes]]:
    """Return the words' numbers (n,) int32 of each of the columns, given as dictionary arrays by piece, and the words
    of all of them, by number."""
    import pyarrow

    unified = pyarrow.chunked_array([piece for column in columns for piece in column]).unify_dictionaries()
    words = unified.chunk(0).dictionary.to_pylist()
    if len(words) > MOST_WORDS:
        raise DataError(f"{path}: has more than {MOST_WORDS:,} different words", code="data/bad-value")
    # Not `to_numpy`, which imports pandas, if installed.
    chunks = iter([np.from_dlpack(chunk.indices) if len(chunk) else np.empty(0, np.int32) for chunk in unified.chunks])
    return [np.concatenate([next(chunks) for _ in column]) for column in columns], words


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
