"""The text of a table as columns, for every class that reads tables. pyarrow reads a piece as a whole, or refuses it if
anything is unusual; then it is read record by record, to name the one that cannot be used."""

import csv
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hogwild.data.file_kind import not_text
from hogwild.data.ids import WHITE
from hogwild.data.text_file import quotes_are_whole
from hogwild.data.text_parsing.parsing import Parsing, Piece, problem

VALUE, FINITE, FIELDS, EMPTY, QUOTE, COMMENTED = range(1, 7)  # rules that a line can break
UTF8 = "utf8"  # only with this name pyarrow knows that no recoding is needed
ONE = "\x1f"  # in the place of a delimiter of two characters, which neither pyarrow nor Python's csv knows
# Texts for "no number" in files from pandas, R, spreadsheets, databases and the UCI archive.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NAN", "-nan", "NULL", "null", "None", "none", "?")
COMMENT = re.compile(rb"[#%](?:[ \t\r\d#%]|$)", re.MULTILINE)  # begins a line; #name is a name
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
NOT_FINITE = re.compile(r"[+-]?(nan|inf)", re.IGNORECASE)
WHOLE = r"\A(0|[1-9][0-9]{0,17})(\.0+)?\z"  # 7.0: pandas writes it where a value is missing; 007 and 7 are two ids
ONE_POINT = r"\A(-?(?:0|[1-9][0-9]*))\.0+\z"
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Format:
    """The text format of a table. Without `has_quotes` quotation marks are ordinary characters."""

    delimiter: str
    decimal: str = "."
    encoding: str = "utf-8"
    has_quotes: bool = True

    def columns(self, content: bytes, count: int, width: int, kinds: Mapping[int, Any]) -> Any:
        """Return the columns `kinds`, arrow types by place, of the `count` records of `width` fields in `content` as an
        arrow table, which names columns by their places; None if anything is unusual."""
        import pyarrow
        from pyarrow import csv as arrow_csv

        has_quotes = self.has_quotes and b'"' in content
        if len(self.delimiter) > 1:
            if has_quotes or ONE.encode() in content:
                return None
            content = content.replace(self.delimiter.encode(), ONE.encode())
        if has_quotes and not quotes_are_whole(content, self.delimiter.encode()):
            return None
        places = [*map(str, kinds)]
        try:
            table = arrow_csv.read_csv(
                pyarrow.BufferReader(pyarrow.py_buffer(content)),
                read_options=arrow_csv.ReadOptions(
                    use_threads=False,  # each thread parses a separate piece
                    block_size=len(content) + 1,  # one chunk per column
                    column_names=[*map(str, range(width))],
                    encoding=UTF8 if self.encoding == "utf-8" else self.encoding,
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=self._sign,
                    quote_char='"' if has_quotes else False,  # without quotes it saves 10 %
                    newlines_in_values=has_quotes,
                ),
                convert_options=arrow_csv.ConvertOptions(
                    include_columns=places,
                    column_types=dict(zip(places, kinds.values(), strict=True)),
                    null_values=MISSING,
                    strings_can_be_null=False,
                    decimal_point=self.decimal,
                ),
            )
        except (pyarrow.ArrowInvalid, UnicodeDecodeError):
            return None
        return table if table.num_rows == count else None

    def records(self, content: bytes) -> Iterator[tuple[int, str, list[str] | str]]:
        """Yield the number of the first line, from 0 on, the text, and the fields, or why there are none, of each
        record that is not empty. A record that cannot be taken apart ends with its first line. Wrong bytes become
        surrogates: they matter only in a column that is read."""
        lines = io.StringIO(content.decode(self.encoding, "surrogateescape"), newline="").readlines()
        sign, at, number = self._sign, 0, 0
        read = partial(
            csv.reader, delimiter=sign, quoting=csv.QUOTE_MINIMAL if self.has_quotes else csv.QUOTE_NONE, strict=True
        )

        def taken() -> Iterator[str]:
            nonlocal at
            while at < len(lines):
                at += 1
                yield lines[at - 1].replace(self.delimiter, sign)

        rows: Any = None
        while at < len(lines):
            rows, begin = rows or read(taken()), at
            found: list[str] | str
            try:
                found = [field.replace(sign, self.delimiter) for field in next(rows)]
                while lines[at - 1].endswith("\r") and lines[at : at + 1] in (["\r"], ["\r\n"]):
                    at += 1
                if found and lines[at - 1].endswith("\r") and at < len(lines):
                    found = "a carriage return inside a line ends it"
                elif sign != self.delimiter and sign in lines[begin]:
                    found = f"the character {sign!r} is in it"
            except csv.Error as error:
                found, rows, at = str(error), None, begin + 1
            while isinstance(found, str) and at < len(lines) and not lines[at - 1].endswith("\n"):
                at += 1
            text = "".join(lines[begin:at])
            if found:
                yield number, text, found
            number += text.count("\n")

    @property
    def _sign(self) -> str:
        """The delimiter in the text that pyarrow and Python's csv read."""
        return ONE if len(self.delimiter) > 1 else self.delimiter


@dataclass(frozen=True, slots=True)
class TableText:
    """The columns of a packed table, by their places among `width` fields: `words`, `numbers`, which are finite, and
    `times`, whole numbers, or words in a piece where one is anything else."""

    form: Format
    width: int
    words: tuple[int, ...]
    numbers: tuple[int, ...] = ()
    times: tuple[int, ...] = ()

    def parse(self, parsing: Parsing, content: bytes) -> Piece:
        """Parse a piece: its arrays are the columns of words as arrow's dictionaries, of numbers float32, of times
        int64 or as words. Bad lines are left out, and counted."""
        return self._quick(content) or self._careful(parsing, content)

    def _quick(self, content: bytes) -> Piece | None:
        """Return the piece; None if anything is unusual."""
        import pyarrow

        if (b"#" in content or b"%" in content) and COMMENT.search(content):
            return None
        if content.count(b"\r") != content.count(b"\r\n"):
            return None
        words, number = pyarrow.dictionary(pyarrow.int32(), pyarrow.binary()), pyarrow.float64()
        kinds = dict.fromkeys(self.words, words) | dict.fromkeys(self.numbers, number)
        lines = content.count(b"\n") + (not content.endswith(b"\n"))
        for time in (pyarrow.int64(), words) if self.times else (words,):
            table = self.form.columns(content, lines, self.width, kinds | dict.fromkeys(self.times, time))
            if table is not None and all(map(_is_plain, columns := [column.chunk(0) for column in table.columns])):
                return Piece(tuple(map(_array, columns)), lines, lines, places=range(lines))
        return None

    def _careful(self, parsing: Parsing, content: bytes) -> Piece:
        """Return the piece, read record by record."""
        import pyarrow

        places, rows, broken = list[int](), list[list[str]](), list[tuple[int, str]]()
        for number, text, fields in self.form.records(content):
            line = text.partition("\n")[0].rstrip("\r")
            if not line.strip(WHITE):
                continue
            if found := self._broken(line, fields):
                rule, field = found
                said = "" if broken else problem(parsing.rules[rule], _bytes(line), _bytes(field))
                broken.append((number, said))
                continue
            places.append(number)
            rows.append([*fields])
        words, numbers, times = (
            [[row[place] for row in rows] for place in places] for places in (self.words, self.numbers, self.times)
        )
        ids = [pyarrow.array(map(_bytes, column), pyarrow.binary()).dictionary_encode() for column in (*words, *times)]
        ratings = [np.array([*map(float, column)], np.float32) for column in numbers]
        lines = content.count(b"\n") + (not content.endswith(b"\n"))
        arrays = (*ids[: len(words)], *ratings, *ids[len(words) :])
        return Piece(arrays, lines, len(rows), len(broken), broken[0] if broken else (0, ""), places=places)

    def _broken(self, line: str, fields: list[str] | str) -> tuple[int, str] | None:
        """Return the rule that a record breaks, if any, and the field that does."""
        if COMMENT.match(_bytes(line)):
            return COMMENTED, ""
        if isinstance(fields, str):
            return QUOTE if '"' in line else FIELDS, ""
        for place, field in enumerate(fields):
            text = field.strip(WHITE)
            if place in (*self.words, *self.times) and not text:
                return EMPTY, field
            if place in self.numbers and not (NUMBER.fullmatch(text) and abs(float(text)) <= LARGEST):
                return FINITE if NOT_FINITE.match(text) or NUMBER.fullmatch(text) else VALUE, field
        return None if len(fields) == self.width else (FIELDS, "")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _is_plain(column: Any) -> bool:
    """Return whether no word is blank, and no number missing or infinite."""
    import pyarrow
    from pyarrow import compute

    if column.null_count:
        return False
    if not pyarrow.types.is_dictionary(column.type):
        return bool(np.isfinite(_array(column)).all())
    try:
        texts = column.dictionary.cast(pyarrow.string())
    except pyarrow.ArrowInvalid:
        return False
    return not compute.any(compute.equal(compute.ascii_trim(texts, WHITE), "")).as_py()


def _array(column: Any) -> Any:
    """Return words as they are, numbers as float32, whole ones as int64."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        return column
    with np.errstate(over="ignore"):  # the value becomes infinite
        return numpy_of(column).astype(np.float32 if pyarrow.types.is_floating(column.type) else np.int64)


def numpy_of(values: Any) -> np.ndarray:
    """Return an array without a copy. `to_numpy` would import pandas, if installed, in every process: 0.3 s."""
    return np.from_dlpack(values) if len(values) else np.empty(0, np.int64)


# ---- ids ------------------------------------------------------------------------------------------------------------


def numbered(parsing: Parsing, columns: Sequence[Sequence[Any]]) -> tuple[list[np.ndarray], Any]:
    """Return the numbers (n,) int32 of the ids in each of the columns, given as dictionaries by piece, and the ids by
    number: in numerical order, int64, if all are whole numbers, else as text in alphabetical order. What is one id, as
    in `hogwild.data.ids`, has one number. Raises DataError for what is no text."""
    import pyarrow

    unified = pyarrow.chunked_array([piece for column in columns for piece in column]).unify_dictionaries()
    numbers, names = _in_order(unified.chunk(0).dictionary, parsing)
    chunks = iter(unified.chunks)
    return [np.concatenate([numbers[numpy_of(next(chunks).indices)] for _ in column]) for column in columns], names


def _in_order(words: Any, parsing: Parsing) -> tuple[np.ndarray, Any]:
    """Return the number (n,) int32 of each of the words, and the ids by number."""
    import pyarrow
    from pyarrow import compute

    try:
        texts = compute.ascii_trim(words.cast(pyarrow.string()), WHITE)
    except pyarrow.ArrowInvalid:
        wrong = next(word for word in words.to_pylist() if word.decode("utf-8", "ignore").encode() != word)
        raise not_text(parsing.place_of(wrong), wrong, parsing.encoding) from None
    if compute.all(compute.match_substring_regex(texts, WHOLE)).as_py():
        whole = numpy_of(compute.replace_substring_regex(texts, r"\..*", "").cast(pyarrow.int64()))
        names, numbers = np.unique(whole, return_inverse=True)
        return numbers.astype(np.int32), names
    plain = compute.replace_substring_regex(texts, ONE_POINT, r"\1")  # 7 for 7.0, if both are there
    texts = compute.if_else(compute.is_in(plain, value_set=texts), plain, texts).dictionary_encode()
    order = numpy_of(compute.sort_indices(texts.dictionary))
    numbers = np.empty(len(order), np.int32)
    numbers[order] = np.arange(len(order), dtype=np.int32)
    return numbers[numpy_of(texts.indices)], texts.dictionary.take(order).to_pylist()
