"""Strict YAML: every value with its place, all errors in one pass.

PyYAML only composes the nodes, with their marks. It follows YAML 1.1, where `1e-3` is text, `010` is 8, `1:30` is 90
and `no` is False; here an unquoted scalar has the meaning of YAML 1.2's core schema. A number that the two versions
read differently is an error with advice; the words (`no`, `on`) are text. Pure Python on purpose: libyaml recurses in
C, and a deeply nested file would end the process instead of raising.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from hogwild.config.yaml_errors import excerpt, explained
from hogwild.errors import ConfigError, Problem


class Trap(ValueError):
    """An ambiguous plain scalar; the message is complete and says what to write."""

    def __init__(self, message: str, *, code: str = "config/ambiguous-value") -> None:
        super().__init__(message)
        self.code = code


NULLS = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+(\.[0-9_]*)?([eE][-+]?[0-9]+)?")
_OTHER_BASE = re.compile(r"[-+]?0[xob][0-9a-fA-F_]+")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_UNDERSCORES = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?")


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
    _refuse_traps(text)
    if not _FLOAT.fullmatch(text):
        return text
    if not math.isfinite(number := float(text)):
        raise Trap(f"must be finite, got {text}", code="config/not-finite")
    return number


def _refuse_traps(text: str) -> None:
    if _NOT_FINITE.fullmatch(text):
        raise Trap(f'must be finite, got {text}; write a number, or "{text}" for text', code="config/not-finite")
    if _LEADING_ZERO.fullmatch(text):
        number = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", text.replace("_", ""))
        raise Trap(f'{text} is 8-based for some YAML readers; write {number}, or "{text}" for text')
    if _OTHER_BASE.fullmatch(text):
        raise Trap(f'{text} is a number for some YAML readers; write {_in_tens(text)}or "{text}" for text')
    if _SEXAGESIMAL.fullmatch(text):
        raise Trap(f'{text} is {_in_sixties(text)} for some YAML readers; write "{text}" for text, or the number')
    if _UNDERSCORES.fullmatch(text) and "_" in text:
        number = text.replace("_", "")
        raise Trap(f'{text} is a number for some YAML readers; write {number}, or "{text}" for text')


def _in_tens(text: str) -> str:
    try:
        return f"{int(text.replace('_', ''), 0)}, "
    except ValueError:
        return ""


def _in_sixties(text: str) -> str:
    sign = -1.0 if text.startswith("-") else 1.0
    total = 0.0
    for part in text.lstrip("+-").replace("_", "").split(":")[:20]:
        total = total * 60 + float(part)
    return f"{sign * total:g}"


MAX_BYTES = 1_000_000  # a job file has about a page; PyYAML needs seconds for a megabyte
MAX_NODES = 100_000  # counted after aliases are expanded: nine lines of aliases can expand to 10**9 values
MAX_DEPTH = 64  # below Python's recursion limit, for any caller
_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"

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
    """One reading of a document: plain values, and the place of each key and value. An unreadable value is `BROKEN`;
    its problem is in `problems`."""

    values: Any
    keys: dict[Path, SourcePlace] = field(default_factory=dict)
    places: dict[Path, SourcePlace] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class Broken(Enum):
    """The mark of an unreadable value, so that it is reported only once. A copy is the same object."""

    VALUE = "unreadable"

    def __repr__(self) -> str:
        return "<unreadable>"


BROKEN = Broken.VALUE


def dotted(path: Path) -> str:
    """Return `('model', 'freeze', 0)` as `model.freeze[0]`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


class _Composer(yaml.SafeLoader):
    """A SafeLoader that stops at nodes: no scalar is resolved, plain ones are only marked, and depth is limited."""

    PLAIN = "plain"
    depth = 0

    def resolve(self, kind: type[Node], value: Any, implicit: Any) -> str:
        if kind is ScalarNode and implicit[0]:
            return self.PLAIN
        return {ScalarNode: "str", SequenceNode: "seq", MappingNode: "map"}[kind]

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=mark)
        node: Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


_KINDS = ("str", "seq", "map")
_TAGS = {f"tag:yaml.org,2002:{name}": name for name in _KINDS}


def compose(text: str, source: str) -> Node | None:
    """Return the node of the only document in `text`; None if it is empty. Raises ConfigError with the place."""
    try:
        loader = _Composer(text)
        try:
            node: Node | None = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, source) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - before.rfind("\n")
        message = f"character U+{int(error.character):04X} is not allowed in YAML; remove it"
        raise _unreadable(source, message, "config/encoding", line, column) from None
    except ValueError as error:  # PyYAML builds chr(0x110000) from "\U00110000" without a check
        at = text.find("\\U")
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        words = f"{text[at : at + 10]} is beyond the last character of Unicode, \\U0010FFFF ({error})"
        raise _unreadable(source, words, "config/bad-yaml", line, column) from None
    return node


def _unreadable(source: str, message: str, code: str, line: int = 1, column: int = 1) -> ConfigError:
    return ConfigError([Problem(source, line, column, "", message, code)])


def _syntax_error(error: yaml.MarkedYAMLError, text: str, source: str) -> ConfigError:
    if error.problem == _TOO_DEEP and error.problem_mark is not None:
        mark = error.problem_mark
        return _unreadable(source, _TOO_DEEP, "config/too-large", mark.line + 1, mark.column + 1)
    line, column, message = explained(error, text)
    shown = excerpt(text, line, column)
    return ConfigError([Problem(source, line + 1, column + 1, "", message, "config/bad-yaml", shown)])


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
        return self._value(node, path)

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
            value = [self.read(child, (*path, index)) for index, child in enumerate(node.value)]
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
            if key in values:
                first = self.reading.keys[here]
                message = f"duplicate key; it was already given at line {first.line}, column {first.column}"
                self._report(key_node, here, message, code="config/duplicate-key")
                continue
            self.reading.keys[here] = self._place(key_node)
            values[key] = self.read(value_node, here)
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
        reader.reading.values = reader.read(node, prefix)
    return reader.reading


def decode(content: bytes, source: str) -> str:
    """Return a job file's text. Raises ConfigError with the place if it is too large or not UTF-8."""
    if len(content) > MAX_BYTES:
        message = f"{len(content):,} bytes; a job file has at most {MAX_BYTES:,}"
        raise _unreadable(source, message, "config/too-large")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _unreadable(source, "saved as UTF-16; save it as UTF-8", "config/encoding")
    if b"\0" in content or content.startswith((b"PK\x03\x04", b"\x1f\x8b")):
        message = "a binary file, such as a checkpoint or an archive; a job file is text in UTF-8"
        raise _unreadable(source, message, "config/encoding")
    if content.startswith(b"\xef\xbb\xbf"):
        raise _unreadable(source, "starts with a byte order mark; save it as UTF-8 without one", "config/encoding")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8")) + 1
        message = f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise _unreadable(source, message, "config/encoding", line, column) from None


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
