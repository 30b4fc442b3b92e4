"""Errors of the YAML parser in plain words: what is wrong, what to write, at the place to change. PyYAML names tokens
("<block end>") and often the line after the mistake."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import yaml

_NO_SPACE = re.compile(r"(?P<indent>\s*)(?P<key>[\w.-]+):(?P<value>[^\s:/].*)")
_EQUALS = re.compile(r"(?P<indent>\s*)(?P<key>[\w.-]+) *= *(?P<value>\S.*)")
_WORD = re.compile(r"(?P<indent>\s*)(?P<word>[^\s:#][^:#]*?)\s*")


@dataclass(frozen=True, slots=True)
class Found:
    """Report of the parser: its words, the text's lines, the place where it stopped and the place where the broken part
    began (lines and columns from 0)."""

    problem: str
    context: str
    lines: list[str]
    line: int
    column: int
    begin_line: int
    begin_column: int

    @classmethod
    def of(cls, error: yaml.MarkedYAMLError, text: str) -> "Found":
        mark, begin = error.problem_mark or error.context_mark, error.context_mark or error.problem_mark
        assert mark is not None and begin is not None
        lines = re.split(r"\r\n|[\n\r\x85\u2028\u2029]", text)
        words = str(error.problem or ""), str(error.context or "")
        return cls(*words, lines, mark.line, mark.column, begin.line, begin.column)

    @property
    def here(self) -> str:
        return self.lines[self.line] if self.line < len(self.lines) else ""

    @property
    def above(self) -> int:
        """The nearest line above that is not empty; -1 if there is none."""
        lines = [k for k in range(min(self.line, len(self.lines))) if self.lines[k].split("#")[0].strip()]
        return lines[-1] if lines else -1

    def at(self, words: str, line: int | None = None, column: int | None = None) -> "Said":
        return self.line if line is None else line, self.column if column is None else column, words

    @property
    def begun(self) -> tuple[int, int]:
        return self.begin_line, self.begin_column


Said = tuple[int, int, str]
"""Line and column from 0, and the message."""


def explained(error: yaml.MarkedYAMLError, text: str) -> Said:
    """Return the place to change, and the message."""
    found = Found.of(error, text)
    if found.here[found.column : found.column + 1] == "\t":
        return found.at("a tab; YAML allows only spaces here: replace it by spaces")
    whole = f"{found.context}: {found.problem}"
    for words, explain in _KNOWN.items():
        if words in whole and (said := explain(found)) is not None:
            return said
    return found.at(_unexpected(found))


def excerpt(text: str, line: int, column: int, *, most: int = 100) -> str:
    """Return the line with a caret below the column, both from 0; "" for an empty line."""
    lines = re.split(r"\r\n|[\n\r\x85\u2028\u2029]", text)
    shown = "".join(letter if letter.isprintable() else "→" if letter == "\t" else "�" for letter in (*lines, "")[line])
    if not shown.strip():
        return ""
    first = max(0, column - most // 2)
    return f"    {shown[first : first + most]}\n    {' ' * (column - first)}^"


def _line_without_colon(found: Found, line: int) -> Said | None:
    """Explain a line of a map that has no `: ` in it, if it is one."""
    text = found.lines[line] if 0 <= line < len(found.lines) else ""
    if match := _NO_SPACE.fullmatch(text):
        words = f"a space is missing after the colon; write {match['key']}: {match['value']}"
        return line, match.end("key") + 1, words
    if match := _EQUALS.fullmatch(text):
        return line, match.end("key"), f"a field is written with a colon: {match['key']}: {match['value']}"
    if (match := _WORD.fullmatch(text)) and not match["word"].startswith(("-", "{", "[", '"', "'")):
        return line, match.end("word"), f"{match['word'][:60]!r} has no colon; write key: value"
    return None


def _missing_colon(found: Found) -> Said:
    return _line_without_colon(found, found.begin_line) or found.at(
        "a key has no colon; write key: value", *found.begun
    )


def _second_colon(found: Found) -> Said:
    """Explain `mapping values are not allowed here`: a colon after something that is a whole value."""
    head = found.here[: found.column]
    key, colon, value = head.partition(": ")
    if colon and value.strip() and not value.lstrip().startswith(("{", "[", '"', "'")):
        rest = found.here[len(key) + 2 :].strip()
        key = key.strip()
        words = (
            f"a second colon in one line; write {key}: {{{rest}}} for a key below {key}, or {key}: '{rest}' for text"
        )
        return found.at(words)
    deeper = _indent(found.here) - _indent(found.lines[found.above]) if found.above >= 0 else 0
    if (said := _line_without_colon(found, found.above)) is not None:
        return said
    if deeper > 0:
        above = _indent(found.lines[found.above])
        words = (
            f"indented deeper than line {found.above + 1}, which has a value already; indent it by {above} spaces too"
        )
        return found.at(words, column=_indent(found.here))
    return found.at("a colon after a value that is complete; put text with ': ' in quotes")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _unclosed_quote(found: Found) -> Said:
    quote = found.lines[found.begin_line][found.begin_column]
    return found.at(
        f"the quote {quote} that begins here is not closed; add {quote} at the end of the text", *found.begun
    )


def _in_brackets(found: Found) -> Said:
    """Explain a broken list [...] or map {...}."""
    opening = found.lines[found.begin_line][found.begin_column]
    closing = {"{": "}", "[": "]"}.get(opening, "]")
    rule = f"expected ',' or '{closing}'"
    here = found.here[found.column : found.column + 1]
    is_new_line = found.line > found.begin_line and _indent(found.here) <= _indent(found.lines[found.begin_line])
    if not here.strip() or is_new_line:
        end = "the end" if found.line == found.begin_line else f"line {found.line + 1}"
        words = f"the {opening} that begins here is not closed; {rule} before {end}: add {closing}"
        return found.at(words, *found.begun)
    if here in "}]":
        place = f"the {opening} of line {found.begin_line + 1}, column {found.begin_column + 1}"
        return found.at(f"{rule}, got '{here}': {place} is closed by '{closing}'")
    return found.at(f"{rule}, got {here!r}: a comma is missing between two entries, or a bracket before them")


def _block(found: Found) -> Said | None:
    """Explain what ends the lines of a map or a list too early."""
    here = found.here[found.column :]
    if here[:1] in "}]" and here:
        return found.at(f"'{here[0]}' closes nothing; remove it")
    if here.startswith("- "):
        return found.at("a list entry among the keys of a map; write it below its own key, or give it a key")
    if here.startswith(":"):
        return found.at("a key is missing before the colon; write key: value")
    if "block collection" in found.context:
        return found.at("a key among list entries; begin it with '- ', or indent it below its entry")
    if "'<scalar>'" in found.problem and found.here[: found.column].rstrip().endswith(("'", '"')):
        return found.at("text after a closing quote; put the whole value into one pair of quotes")
    if "'<block mapping start>'" in found.problem:
        above = f"line {found.above + 1} by {_indent(found.lines[found.above])}"
        return found.at(f"indented by {found.column} spaces, {above}; indent all keys of one section alike")
    return None


def _document_start(found: Found) -> Said:
    lines = found.lines[: found.line]
    if any(line.startswith("...") for line in lines):
        return found.at("text after '...', which ends the file; remove that line")
    if any(line.startswith("%") for line in lines):
        return _directive(found)
    first = next((k for k, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), 0)
    if _indent(found.lines[first]):
        return (
            first,
            0,
            f"the first key is indented, line {found.line + 1} is not; begin all top-level keys in column 1",
        )
    return found.at(_unexpected(found))


def _directive(found: Found) -> Said:
    line = next((k for k, line in enumerate(found.lines) if line.startswith("%")), found.line)
    return line, 0, "a line that begins with % is for the YAML reader; remove it, or put text in quotes"


def _in_quotes(found: Found) -> Said:
    text = re.split(r" #|[,\]}]", found.lines[found.begin_line][found.begin_column :])[0].strip()
    words = f"text cannot begin with {text[:1]} without quotes; write '{text}'"
    return found.at(words, *found.begun)


def _start(found: Found) -> Said:
    text = re.split(r" #|[,\]}]", found.here[found.column :])[0].strip()
    return found.at(f"text cannot begin with {text[:1]} without quotes; write '{text}'")


def _escape(found: Found) -> Said:
    before = found.here.rfind("\\", 0, found.column + 1)
    letter = found.here[before + 1 : before + 2]
    words = f"\\{letter} is not an escape in double quotes; write \\\\{letter}, or use single quotes: '...'"
    return found.at(words, column=max(before, 0))


def _twice(found: Found) -> Said:
    first = f"line {found.begin_line + 1}, column {found.begin_column + 1}"
    return found.at(f"the anchor was given at {first} already; give it another name, or write the value out")


def _alias(found: Found) -> Said:
    name = re.split(r"[\s,\]}]", found.here[found.column + 1 :])[0]
    return found.at(f"there is no anchor &{name} above; for text write '*{name}' in quotes")


def _missing_value(found: Found) -> Said:
    return found.at(f"a value is missing before {found.here[found.column : found.column + 1]!r}")


def _unexpected(found: Found) -> str:
    here = found.here[found.column :].split(" ")[0]
    return f"unexpected {here[:40]!r} here; see the line above, too" if here else "not valid YAML near here"


def _saying(words: str) -> Callable[[Found], Said]:
    return lambda found: found.at(words)


# Part of PyYAML's `context: problem` -> the explanation; the first that matches and knows it.
_KNOWN: dict[str, Callable[[Found], Said | None]] = {
    "could not find expected ':'": _missing_colon,
    "mapping values are not allowed": _second_colon,
    "sequence entries are not allowed": _saying(
        "a list cannot begin in the line of its key; write '- ' in the next line"
    ),
    "mapping keys are not allowed": _saying("a '?' cannot stand here; write key: value"),
    "found unexpected end of stream": _unclosed_quote,
    "found unexpected document separator": _unclosed_quote,
    "while parsing a flow sequence": _in_brackets,
    "while parsing a flow mapping": _in_brackets,
    "expected <block end>": _block,
    "another document": _saying("a second document begins here (---); a job file has one: remove it, or use two files"),
    "expected '<document start>'": _document_start,
    "found undefined alias": _alias,
    "found duplicate anchor": _twice,
    "while scanning an alias": _in_quotes,
    "while scanning an anchor": _in_quotes,
    "cannot start any token": _start,
    "unknown escape character": _escape,
    "hexadecimal numbers": _escape,
    "while scanning a block scalar": _saying(
        "only a number, + or - may follow | or >; write the text in the next lines"
    ),
    "tag": _saying("tags, which begin with !, are not allowed; write a plain value, or the text in quotes"),
    "directive": _directive,
    "incompatible YAML document": _directive,
    "expected the node content": _missing_value,
}
