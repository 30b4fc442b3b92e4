"""Strict YAML: every value with its place, all errors in one pass.

PyYAML only composes the nodes, with their marks. It follows YAML 1.1, where `1e-3` is text, `010` is 8, `1:30` is 90
and `no` is False; here an unquoted scalar has the meaning of YAML 1.2's core schema. A number that the two versions
read differently is an error with advice; the words (`no`, `on`) are text. Pure Python on purpose: libyaml recurses in
C, and a deeply nested file would end the process instead of raising.
"""

import codecs
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from hogwild.errors import ConfigError, Problem


class Trap(ValueError):
    """An ambiguous plain scalar; the message is complete and says what to write."""

    def __init__(self, message: str, *, code: str = "config/ambiguous-value") -> None:
        super().__init__(message)
        self.code = code


NULLS = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_OTHER_BASE = re.compile(r"[-+]?0(x_*[0-9a-fA-F][0-9a-fA-F_]*|o_*[0-7][0-7_]*|b_*[01][01_]*)")
_OTHERS = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])*(\.[0-9_]*)?([eE][-+]?[0-9]+)?")


def read_scalar(text: str) -> Any:
    """Return the value of an unquoted scalar in YAML 1.2's core schema: None, bool, int, float or str. Raises Trap."""
    if text in NULLS:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        if len(text) > 300:
            raise Trap(f"a number of {len(text)} digits is too large", code="config/out-of-range")
        return int(text)
    is_float = _FLOAT.fullmatch(text) is not None
    if _NOT_FINITE.fullmatch(text) or (is_float and math.isinf(float(text))):
        raise Trap(f'must be finite, got {text}; write a number, or "{text}" for text', code="config/not-finite")
    if (_OTHERS.fullmatch(text) and not is_float) or _OTHER_BASE.fullmatch(text):
        rule = "write it in decimal digits, without leading zeros, colons or underscores"
        raise Trap(f'{text} is another number for some YAML readers; {rule}, or "{text}" for text')
    return float(text) if is_float else text


MAX_BYTES = 1_000_000  # a job file has about a page; PyYAML needs seconds for a megabyte
MAX_NODES = 100_000  # counted after aliases are expanded: nine lines of aliases can expand to 10**9 values
MAX_DEPTH = 64  # below Python's recursion limit, for any caller

Path = tuple[str | int, ...]
IsText = Callable[[Path], bool]


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """The place of a key or value. Line and column start at 1; 0: not in a file (`source` says where)."""

    source: str
    line: int = 0
    column: int = 0

    def problem(self, path: Path, message: str, code: str) -> Problem:
        return Problem(self.source, self.line, self.column, dotted(path), message, code)


@dataclass(slots=True)
class YamlReading:
    """One reading of a document: plain values, and the place of each key and value. An unreadable value is left out, or
    null in a list: its path is in `broken`, its problem in `problems`."""

    values: Any
    keys: dict[Path, SourcePlace] = field(default_factory=dict)
    places: dict[Path, SourcePlace] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    broken: set[Path] = field(default_factory=set)


BROKEN = object()  # an unreadable value, which has been reported


def dotted(path: Path) -> str:
    """Return `('model', 'freeze', 0)` as `model.freeze[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


class _Composer(yaml.SafeLoader):
    """A SafeLoader that stops at nodes: no scalar is resolved, plain ones are only marked, and depth is limited."""

    PLAIN = "plain"

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self.text, self.source, self.depth = text, source, 0

    def resolve(self, kind: type[Node], value: Any, implicit: Any) -> str:
        if kind is ScalarNode and implicit[0]:
            return self.PLAIN
        return {ScalarNode: "str", SequenceNode: "seq", MappingNode: "map"}[kind]

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark, words = self.peek_event().start_mark, f"nested more than {MAX_DEPTH} levels deep"
            raise _broken(self.text, self.source, mark.line, mark.column, words, "config/too-large")
        node: Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


_KINDS = ("str", "seq", "map")
_TAGS = {f"tag:yaml.org,2002:{name}": name for name in _KINDS}


def compose(text: str, source: str) -> Node | None:
    """Return the node of the only document in `text`; None if it is empty. Raises ConfigError with the place."""
    try:
        node: Node | None = _Composer(text, source).get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, source) from None
    except yaml.reader.ReaderError as error:
        message = f"character U+{int(error.character):04X} is not allowed in YAML; remove it"
        raise _broken_at(error.position, text, source, message, "config/encoding") from None
    except ValueError:  # PyYAML builds chr(0x110000) from "\U00110000" without a check
        at = text.find("\\U")
        words = f"{text[at : at + 10]} is beyond the last character of Unicode, \\U0010FFFF"
        raise _broken_at(at, text, source, words, "config/bad-yaml") from None
    return node


@dataclass(slots=True)
class _NodeReader:
    """One walk over the nodes. The first copy of a duplicate key is read; each further one is an error."""

    source: str
    is_text: IsText
    reading: YamlReading = field(default_factory=lambda: YamlReading(None))
    nodes: int = 0
    open: set[int] = field(default_factory=set)

    def read(self, node: Node, path: Path) -> Any:
        """Return the value of a node, and note its place."""
        self.reading.places[path] = self._place(node)
        if (value := self._value(node, path)) is BROKEN:
            self.reading.broken.add(path)
        return value

    def _place(self, node: Node) -> SourcePlace:
        return SourcePlace(self.source, node.start_mark.line + 1, node.start_mark.column + 1)

    def _report(self, node: Node, path: Path, message: str, code: str = "config/bad-yaml") -> Any:
        self.reading.problems.append(self._place(node).problem(path, message, code))
        return BROKEN

    def _value(self, node: Node, path: Path) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            message = f"more than {MAX_NODES:,} values after expanding aliases"
            raise ConfigError([self._place(node).problem(path, message, code="config/too-large")])
        tag = _TAGS.get(node.tag, node.tag)
        if tag not in (*_KINDS, _Composer.PLAIN):
            tag = tag.replace("tag:yaml.org,2002:", "!!")
            return self._report(node, path, f"tag {tag} is not allowed; write a plain value")
        if isinstance(node, ScalarNode):
            return self._scalar(node, path, tag)
        if id(node) in self.open:
            return self._report(node, path, "an anchor that contains itself")
        self.open.add(id(node))
        if isinstance(node, MappingNode):
            value: Any = self._mapping(node, path)
        else:
            items = [self.read(child, (*path, index)) for index, child in enumerate(node.value)]
            value = [None if item is BROKEN else item for item in items]  # the others keep their numbers
        self.open.discard(id(node))
        return value

    def _scalar(self, node: ScalarNode, path: Path, tag: str) -> Any:
        text: str = node.value
        if tag != _Composer.PLAIN:
            return text
        if self.is_text(path):
            return None if text in NULLS else text
        try:
            return read_scalar(text)
        except Trap as trap:
            return self._report(node, path, str(trap), trap.code)

    def _mapping(self, node: MappingNode, path: Path) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node, path)
            if key is BROKEN:
                continue
            here = (*path, key)
            if here in self.reading.keys:
                first = self.reading.keys[here]
                message = f"duplicate key; it was already given at line {first.line}, column {first.column}"
                self._report(key_node, here, message, code="config/duplicate-key")
                continue
            self.reading.keys[here] = self._place(key_node)
            if (value := self.read(value_node, here)) is not BROKEN:
                values[key] = value
        return values

    def _key(self, node: Node, path: Path) -> Any:
        if not isinstance(node, ScalarNode) or node.tag.startswith(("!", "tag:")):
            return self._report(node, path, "a key must be plain text")
        if node.tag == _Composer.PLAIN and node.value == "<<":
            return self._report(node, (*path, "<<"), "merge keys are not supported; write the fields out")
        if node.tag != _Composer.PLAIN or "init_args" not in path[:-1]:
            return node.value  # keys of sections and of init_args are always names
        try:
            key = read_scalar(node.value)
        except Trap as trap:
            return self._report(node, path, str(trap), trap.code)
        if isinstance(key, str | int) and not isinstance(key, bool):
            return key
        return self._report(node, path, f"a key must be text or a whole number, got {node.value!r}; write it in quotes")


def read(text: str, source: str, is_text: IsText = lambda path: False, prefix: Path = ()) -> YamlReading:
    """Read a document. `is_text` decides where an unquoted scalar stays text. `prefix` is the document's path in the
    job. An empty document reads as None. Raises ConfigError for invalid YAML."""
    node = compose(text, source)
    reader = _NodeReader(source, is_text)
    if node is not None:
        value = reader.read(node, prefix)
        reader.reading.values = None if value is BROKEN else value
    return reader.reading


def decode(content: bytes, source: str) -> str:
    """Return a job file's text. Raises ConfigError with the place if it is too large or not UTF-8."""
    start, code, message = SourcePlace(source, 1, 1), "config/encoding", ""
    if len(content) > MAX_BYTES:
        code, message = "config/too-large", f"{len(content):,} bytes; a job file has at most {MAX_BYTES:,}"
    elif content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        message = "saved as UTF-16; save it as UTF-8"
    elif b"\0" in content or content.startswith((b"PK\x03\x04", b"\x1f\x8b")):
        message = "a binary file, such as a checkpoint or an archive; a job file is text in UTF-8"
    elif content.startswith(codecs.BOM_UTF8):
        message = "starts with a byte order mark; save it as UTF-8 without one"
    if message:
        raise ConfigError([start.problem((), message, code)])
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        position = len(content[: error.start].decode("utf-8"))
        message = f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise _broken_at(position, content.decode("utf-8", "replace"), source, message, code) from None


# ---- errors of the parser in one shape: the place, the parser's words, a hint, and the line with a caret -------------

WIDEST = 100  # of an excerpt
_TAB = "a tab; YAML takes only spaces here"
_QUOTES = r"""text that holds ": ", " #" or "\", or begins with one of @ % & * ! `, wants single quotes"""
_LINES = (
    "look at this line and the one above: keys of one section begin in the same column, with a space after each colon"
)
_WANT_QUOTES = re.compile("cannot start any token|an alias|an anchor|undefined alias|escape|hexadecimal|tag")
_OPENED = re.compile("while parsing a flow (sequence|mapping)|found unexpected (end of stream|document separator)")


def _syntax_error(error: yaml.MarkedYAMLError, text: str, source: str) -> ConfigError:
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
    return _broken(text, source, line, column, f"{words}{f'; {hint}' if hint else ''}")


def _hint(words: str, here: str, column: int) -> str:
    if here[column : column + 1] == "\t":
        return _TAB
    is_second = "mapping values" in words and ": " in here[:column]
    if is_second or _WANT_QUOTES.search(words):
        return _QUOTES
    is_first = not here[:column].strip()
    return _LINES if is_first or "expected ':'" in words or "mapping values" in words else ""


def _broken(text: str, source: str, line: int, column: int, message: str, code: str = "config/bad-yaml") -> ConfigError:
    """Return the error at a place, both counted from 0, or at the end of the last line above it that is not empty; with
    this line and a caret below the column."""
    lines = _lines(text)
    while line > 0 and not lines[line].strip(" "):
        line, column = line - 1, len(lines[line - 1])
    shown = "".join(letter if letter.isprintable() else "→" if letter == "\t" else "�" for letter in lines[line])
    first = max(0, column - WIDEST // 2)
    excerpt = f"    {shown[first : first + WIDEST]}\n    {' ' * (column - first)}^"
    return ConfigError([Problem(source, line + 1, column + 1, "", message, code, excerpt)])


def _broken_at(position: int, text: str, source: str, message: str, code: str) -> ConfigError:
    """Return the error at a character of the text."""
    *above, before = _lines(text[:position])
    return _broken(text, source, len(above), len(before), message, code)


def _lines(text: str) -> list[str]:
    """Return the lines as the parser counts them."""
    return re.split(r"\r\n|[\n\r\x85\u2028\u2029]", text)


# ---- writing ---------------------------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # a repeated value is written twice: the file is for people


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # PyYAML folds a U+0085 in single quotes into a space; in double quotes it escapes it.
    quoted = not text.isprintable() or _misread(text)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if quoted else None)


def _misread(text: str) -> bool:
    try:
        return bool(read_scalar(text) != text)
    except Trap:
        return True


_Dumper.add_representer(str, _text)


def flow(value: Any) -> str:
    """Return a value as YAML in one line, for `key=value`."""
    text: str = yaml.dump([value], Dumper=_Dumper, default_flow_style=True, allow_unicode=True, width=math.inf)
    return text.strip()[1:-1]


def dump(values: dict[str, Any]) -> str:
    """Return `values` as YAML in block style, in their own order."""
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text
