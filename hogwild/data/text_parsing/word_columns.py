"""Words in columns of a text: ids of users, items or entities that are not whole numbers, numbered by pyarrow's
dictionaries. Pieces that pyarrow refuses are parsed line by line, to name the lines that cannot be used."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from hogwild.data.file_kind import not_text
from hogwild.data.rating_form import COMMENT
from hogwild.data.text_file import quotes_are_whole
from hogwild.data.text_parsing.line_by_line import BadLine, fields_of, number_in, parsed_lines
from hogwild.data.text_parsing.parsing import Parsing, Piece
from hogwild.errors import DataError
from hogwild.kernels.parsing.found import COMMENTED, EMPTY, FIELDS, FOUND, LINES, ROWS

MOST_WORDS = 2**31 - 2
WHOLE = re.compile(rb"(0|[1-9][0-9]{0,17})(?:\.0+)?")  # 7.0: pandas writes it where a value is missing
ONE_BYTE = b"\x1f"  # replaces a delimiter of two bytes, which pyarrow does not know


@dataclass(frozen=True, slots=True)
class WordColumns:
    """The `columns` of words in lines of `width` fields. `rating`: the column of numbers, -1 for none: each is 1.
    `has_quotes`: quotation marks around a field are not part of it; otherwise they are ordinary characters."""

    delimiter: bytes
    columns: tuple[int, ...]
    rating: int
    width: int
    has_quotes: bool

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
        has_quotes = self.has_quotes and b'"' in content
        if (has_quotes and not quotes_are_whole(text, delimiter)) or text.count(b"\r") != text.count(b"\r\n"):
            return None
        if (b"#" in text or b"%" in text) and COMMENT.search(text):
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
                    delimiter=delimiter.decode(), quote_char='"' if has_quotes else False, double_quote=True
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
        is_blank = b" " in text or (b"\t" in text and delimiter != b"\t")
        if is_blank and any(not word.strip() for column in words for word in column.dictionary.to_pylist()):
            return None
        rating = np.ones(lines, np.float32)
        if self.rating >= 0:
            with np.errstate(over="ignore"):  # the value becomes infinite
                rating = np.from_dlpack(table.column(str(self.rating)).chunk(0)).astype(np.float32)
        found = np.zeros(FOUND, np.int64)
        found[LINES] = found[ROWS] = lines
        return Piece((*words, rating), found) if np.isfinite(rating).all() else None

    def _careful(self, parsing: Parsing, content: bytes) -> Piece:
        import pyarrow

        rows, bad, found = parsed_lines(parsing, content, self._line)
        columns = [[words[k] for _, (words, _) in rows] for k in range(len(self.columns))]
        encoded = [pyarrow.array(column, pyarrow.binary()).dictionary_encode() for column in columns]
        return Piece((*encoded, np.array([rating for _, (_, rating) in rows], np.float32)), found, bad)

    def _line(self, line: bytes) -> tuple[list[bytes], float]:
        """Return the words and the rating of a line. Raises BadLine."""
        if COMMENT.match(line):
            raise BadLine(COMMENTED, 0)
        found: list[bytes] = []
        rating = 1.0
        for at, field in fields_of(line, self.delimiter, has_quotes=self.has_quotes):
            if len(found) in self.columns and not field.strip():
                raise BadLine(EMPTY, at)
            if len(found) == self.rating:
                rating = number_in(field, at)
            found.append(field)
        if len(found) != self.width:
            raise BadLine(FIELDS, 0)
        return [found[column] for column in self.columns], rating


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


def in_order(words: list[bytes], parsing: Parsing) -> tuple[np.ndarray, Any]:
    """Return (rank of each word (n,) int32, sorted names): numerically as int64 if all are whole numbers, else
    alphabetically. Words that are one id, as in `hogwild.data.ids`, have one rank. Raises DataError for what is no
    text."""
    words = [word.strip() for word in words]
    if (numbers := _whole_numbers(words)) is not None:
        kept, ranks = np.unique(numbers, return_inverse=True)
        return ranks.astype(np.int32), kept
    names = sorted({*words})
    places = {word: place for place, word in enumerate(names)}
    ranks = np.array([places[word] for word in words], np.int32)
    try:
        return ranks, [word.decode() for word in names]
    except UnicodeDecodeError as error:
        raise not_text(parsing.place_of(error.object), error.object, parsing.encoding) from None


def _whole_numbers(words: list[bytes]) -> np.ndarray | None:
    """Return the numbers; None if one has another spelling: 007 and 7 are two ids."""
    found = [one for word in words if (one := WHOLE.fullmatch(word))]
    return np.array([int(one[1]) for one in found], np.int64) if len(found) == len(words) else None
