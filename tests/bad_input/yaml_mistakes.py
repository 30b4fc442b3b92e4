"""Bad inputs, a part of the table: files that are not YAML, each with the mistake of one slip of the hand. The error is
at the place to change and says what to write."""

from tests.bad_input.jobs import GOOD
from tests.bad_input.row import Row

_BLOCK = """\
model:
  class_path: guilty.Net
data:
  train: {class_path: guilty.blobs}
"""

# crime -> the file, the place, what is said, of the error at this place
_SLIPS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a tab that indents": (_BLOCK.replace("  class", "\tclass", 1), "2:1", ("a tab", "replace it by spaces", "→class")),
    "a tab after a colon": (GOOD + "seed:\t\t@\n", "5:6", ("a tab", "spaces")),
    "no space after a colon": (GOOD + "seed:3\n", "5:6", ("a space is missing after the colon", "write seed: 3")),
    "no space after a colon, more below": (
        _BLOCK.replace("model:\n", "seed:3\nmodel:\n"),
        "1:6",
        ("a space is missing after the colon", "write seed: 3", "    seed:3\n         ^"),
    ),
    "no space after a colon, in a section": (
        _BLOCK + "evaluate:\n  patience:3\n  mode: min\n",
        "6:12",
        ("a space is missing after the colon", "write patience: 3"),
    ),
    "an equals sign": (GOOD + "seed = 3\n", "5:5", ("a field is written with a colon: seed: 3",)),
    "an equals sign, more below": ("seed=3\n" + GOOD, "1:5", ("a field is written with a colon: seed: 3",)),
    "a key without a colon": (GOOD + "seed\n", "5:5", ("'seed' has no colon", "write key: value")),
    "a double quote left open": (
        GOOD + 'name: "mine\n',
        "5:7",
        ('the quote " that begins here is not closed', 'add "'),
    ),
    "a single quote left open": ("name: 'mine\n" + GOOD, "1:7", ("the quote ' that begins here is not closed",)),
    "a quote over two documents": ('name: "a\n---\nb"\n' + GOOD, "1:7", ("is not closed",)),
    "a map left open at the end": (
        GOOD + "log: {every_s: 1\n",
        "5:6",
        ("the { that begins here is not closed", "add }"),
    ),
    "a list left open": (
        _BLOCK + "evaluate:\n  metrics: [auc, accuracy\n  mode: min\n",
        "6:12",
        ("the [ that begins here is not closed", "before line 7: add ]"),
    ),
    "a list closed as a map": (
        GOOD + "evaluate: {metrics: [auc}\n",
        "5:25",
        ("got '}'", "the [ of line 5, column 21 is closed by ']'"),
    ),
    "a map closed as a list": (GOOD + "log: {every_s: 1]\n", "5:17", ("got ']'", "is closed by '}'")),
    "a bracket too many": (GOOD + "log: {every_s: 1}}\n", "5:18", ("'}' closes nothing", "remove it")),
    "a comma forgotten": (
        GOOD + "log: {every_s: 1 jsonl: true}\n",
        "5:23",
        ("a comma is missing between two entries",),
    ),
    "a comma too many": (GOOD + "log: {, every_s: 1}\n", "5:7", ("a value is missing before ','",)),
    "a key indented less": (
        _BLOCK + "optimizer:\n    state: private\n  groups: []\n",
        "7:3",
        ("indented by 2 spaces, line 6 by 4", "indent all keys of one section alike"),
    ),
    "a key indented more": (
        _BLOCK.replace("guilty.Net\n", "guilty.Net\n    compile: none\n"),
        "3:5",
        ("indented deeper than line 2", "which has a value already; indent it by 2 spaces too"),
    ),
    "a first key that is indented": (
        "  seed: 1\n" + GOOD,
        "1:1",
        ("the first key is indented", "in column 1"),
    ),
    "a colon in a text": (GOOD + "name: a: b\n", "5:8", ("a second colon", "name: 'a: b' for text")),
    "a section in one line": (GOOD + "log: jsonl: true\n", "5:11", ("write log: {jsonl: true} for a key below log",)),
    "a list among keys": (_BLOCK + "log:\n  jsonl: true\n  - 1\n", "7:3", ("a list entry among the keys of a map",)),
    "a key among entries": ("- model\ndata: 1\n", "2:1", ("a key among list entries", "begin it with '- '")),
    "a list beside its key": (GOOD + "name: - a\n", "5:7", ("cannot begin in the line of its key", "in the next line")),
    "no key": (": 1\n" + GOOD, "1:1", ("a key is missing before the colon",)),
    "a pattern without quotes": (GOOD + "name: *.bias\n", "5:7", ("cannot begin with * without quotes", "'*.bias'")),
    "an alias of nothing": (GOOD + "name: *x\n", "5:7", ("there is no anchor &x above", "write '*x' in quotes")),
    "an anchor twice": ("name: &x a\nseed: &x 1\n" + GOOD, "2:7", ("the anchor was given at line 1, column 7",)),
    "an at sign": (GOOD + "name: @me\n", "5:7", ("cannot begin with @ without quotes; write '@me'",)),
    "a percent sign": (GOOD + "name: %me\n", "5:7", ("cannot begin with % without quotes; write '%me'",)),
    "a directive": ("%note\n" + GOOD, "1:1", ("a line that begins with %", "remove it")),
    "a path of Windows": (
        GOOD + 'name: "C:\\data"\n',
        "5:10",
        ("\\d is not an escape in double quotes", "or use single quotes"),
    ),
    "text after a quote": (GOOD + "name: 'a' b\n", "5:11", ("text after a closing quote", "one pair of quotes")),
    "text after the end": (GOOD + "...\nseed: 1\n", "6:1", ("text after '...', which ends the file",)),
    "a block scalar with its text": (
        GOOD + "name: |mine\n",
        "5:8",
        ("may follow | or >; write the text in the next lines",),
    ),
    "a tag of nobody": (GOOD + "seed: !e!x 3\n", "5:7", ("tags, which begin with !, are not allowed",)),
}


def _file(crime: str) -> str:
    return f"slip_{list(_SLIPS).index(crime)}.yaml"


SLIP_TEXTS: dict[str, str | bytes] = {_file(crime): text for crime, (text, _, _) in _SLIPS.items()} | {
    "zipped.yaml": b"PK\x03\x04\x14\x00rest of an archive",
    "gzipped.yaml": b"\x1f\x8b\x08rest",
    "nul.yaml": GOOD.encode() + b"name: \x00\n",
    "values.yaml": "model:\n  class_path:guilty.Net\ndata: {train: {class_path: guilty.blobs}}\n",
}
YAML: dict[str, Row] = {
    crime: Row(("check", _file(crime)), 2, "config/bad-yaml", (f"{_file(crime)}:{place}: ", *words, "^\n1 error;"))
    for crime, (_, place, words) in _SLIPS.items()
} | {
    "an archive as job file": Row(
        ("check", "zipped.yaml"), 2, "config/encoding", ("zipped.yaml:1:1: a binary file, such as a checkpoint",)
    ),
    "a compressed job file": Row(("check", "gzipped.yaml"), 2, "config/encoding", ("gzipped.yaml:1:1: a binary file",)),
    "a NUL": Row(("check", "nul.yaml"), 2, "config/encoding", ("nul.yaml:1:1: a binary file", "is text in UTF-8")),
    "no space after the only colon of a section": Row(
        ("check", "values.yaml"),
        2,
        "config/wrong-type",
        ("values.yaml:2:3: model: must be a map", "a space is missing after the colon: class_path: guilty.Net"),
    ),
}
