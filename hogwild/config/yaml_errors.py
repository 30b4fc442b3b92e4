"""Errors of the YAML parser in one shape: the place, the parser's words, a hint, and the line with a caret."""

import re

import yaml

from hogwild.errors import ConfigError, Problem

WIDEST = 100  # of an excerpt
_TAB = "a tab; YAML takes only spaces here"
_QUOTES = r"""text that holds ": ", " #" or "\", or begins with one of @ % & * ! `, wants single quotes"""
_LINES = (
    "look at this line and the one above: keys of one section begin in the same column, with a space after each colon"
)
_WANT_QUOTES = re.compile("cannot start any token|an alias|an anchor|undefined alias|escape|hexadecimal|tag")
_OPENED = re.compile("while parsing a flow (sequence|mapping)|found unexpected (end of stream|document separator)")


def syntax_error(error: yaml.MarkedYAMLError, text: str, source: str) -> ConfigError:
    """Return the parser's error. The place is where a quote or bracket was opened, or a key began, if the parser came
    to the end of the file without its end."""
    mark, begin = error.problem_mark or error.context_mark, error.context_mark or error.problem_mark
    assert mark is not None and begin is not None
    line, column, lines = mark.line, mark.column, _lines(text)
    words = ": ".join(filter(None, (error.context, error.problem)))
    hint = _hint(words, lines[line], column)
    if _OPENED.search(words):
        opened = lines[begin.line][begin.column : begin.column + 1]
        hint = f"the {opened} of line {begin.line + 1}, column {begin.column + 1} is not closed"
    if not lines[line][column:].strip(" ") or ("while scanning" in words and begin.line < line):
        line, column = begin.line, begin.column
    return broken(text, source, line, column, f"{words}{f'; {hint}' if hint else ''}")


def _hint(words: str, here: str, column: int) -> str:
    if here[column : column + 1] == "\t":
        return _TAB
    is_second = "mapping values" in words and ": " in here[:column]
    if is_second or _WANT_QUOTES.search(words):
        return _QUOTES
    is_first = not here[:column].strip()
    return _LINES if is_first or "expected ':'" in words or "mapping values" in words else ""


def broken(text: str, source: str, line: int, column: int, message: str, code: str = "config/bad-yaml") -> ConfigError:
    """Return the error at a place, both counted from 0, or at the end of the last line above it that is not empty; with
    this line and a caret below the column."""
    lines = _lines(text)
    while line > 0 and not lines[line].strip(" "):
        line, column = line - 1, len(lines[line - 1])
    shown = "".join(letter if letter.isprintable() else "→" if letter == "\t" else "�" for letter in lines[line])
    first = max(0, column - WIDEST // 2)
    excerpt = f"    {shown[first : first + WIDEST]}\n    {' ' * (column - first)}^"
    return ConfigError([Problem(source, line + 1, column + 1, "", message, code, excerpt)])


def broken_at(position: int, text: str, source: str, message: str, code: str) -> ConfigError:
    """Return the error at a character of the text."""
    *above, before = _lines(text[:position])
    return broken(text, source, len(above), len(before), message, code)


def _lines(text: str) -> list[str]:
    """Return the lines as the parser counts them."""
    return re.split(r"\r\n|[\n\r\x85\u2028\u2029]", text)
