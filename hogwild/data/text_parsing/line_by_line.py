"""Lines of a text parsed one by one, in pieces that the quick parsers refuse: to name the lines that cannot be used."""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from hogwild.data.text_parsing.parsing import Parsing, problem
from hogwild.kernels.parsing.found import BAD, FINITE, FOUND, LINES, QUOTE, ROWS, VALUE

BLANK = b" \t\r"
LARGEST = float(np.finfo(np.float32).max)
NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
NOT_FINITE = re.compile(rb"[+-]?(nan|inf)", re.IGNORECASE)
_Row = TypeVar("_Row")


class BadLine(Exception):
    """A line breaks a rule of `kernels/parsing/found.py`, at a byte."""

    def __init__(self, rule: int, at: int) -> None:
        self.rule, self.at = rule, at


def parsed_lines(
    parsing: Parsing, content: bytes, parse: Callable[[bytes], _Row]
) -> tuple[list[tuple[int, _Row]], tuple[int, str], np.ndarray]:
    """Return (line, from 0 on, and parse(line)) of each good line that is not blank; the first bad line and what is
    wrong with it; and the numbers of lines, rows and bad lines as `found`. `parse` raises BadLine. Where a quotation
    mark is not closed, a value has line ends: it is parsed with the lines up to the one that closes it."""
    rows: list[tuple[int, _Row]] = []
    first, lines = (0, ""), content.split(b"\n")
    found = np.zeros(FOUND, np.int64)
    behind = 0
    for number, whole in enumerate(lines):
        line = whole.removesuffix(b"\r")
        if number < behind or not line.strip(BLANK):
            continue
        try:
            rows.append((number, parse(line)))
        except BadLine as error:
            if error.rule == QUOTE and (stop := _closed(lines, number)):
                with contextlib.suppress(BadLine):
                    rows.append((number, parse(b"\n".join(lines[number:stop]).removesuffix(b"\r"))))
                    behind = stop
                    continue
            first = first if found[BAD] else (number, problem(parsing.rules[error.rule], line, error.at))
            found[BAD] += 1
    found[LINES], found[ROWS] = len(lines) - content.endswith(b"\n"), len(rows)
    return rows, first, found


def _closed(lines: list[bytes], number: int) -> int:
    """Return the number behind the line that closes the quotation mark of line `number`, 0 for none."""
    many = 0
    for stop in range(number, len(lines)):
        many += lines[stop].count(b'"')
        if many % 2 == 0:
            return stop + 1 if stop > number else 0
    return 0


def fields_of(line: bytes, delimiter: bytes, *, has_quotes: bool) -> Iterator[tuple[int, bytes]]:
    """Yield (place, text) of each field. With `has_quotes`, enclosing quotes are not part of a field, and one inside is
    written twice. Raises BadLine for a quote that is not closed."""
    at = 0
    while True:
        if has_quotes and line.startswith(b'"', at):
            end = line.find(b'"', at + 1)
            while end >= 0 and line.startswith(b'""', end):
                end = line.find(b'"', end + 2)
            behind = end + 1
            if end < 0 or not (behind == len(line) or line.startswith(delimiter, behind)):
                raise BadLine(QUOTE, at)
            yield at + 1, line[at + 1 : end].replace(b'""', b'"')
        else:
            end = line.find(delimiter, at)
            behind = end if end >= 0 else len(line)
            yield at, line[at:behind]
        if behind >= len(line):
            return
        at = behind + len(delimiter)


def number_in(text: bytes, at: int) -> float:
    """Return the rating in a field, which begins at byte `at` of its line. Raises BadLine."""
    text = text.strip(BLANK)
    if NOT_FINITE.match(text):
        raise BadLine(FINITE, at)
    if not NUMBER.fullmatch(text):
        raise BadLine(VALUE, at)
    value = float(text)
    if abs(value) > LARGEST:
        raise BadLine(FINITE, at)
    return value
