"""Bad inputs, a part of the table: files that are not YAML, each with the mistake of one slip of the hand. The error is
at the place where the parser noticed it, with a hint."""

from tests.bad_input.jobs import GOOD
from tests.bad_input.row import Row

_BLOCK = """\
model:
  class_path: guilty.Net
data:
  train: {class_path: guilty.blobs}
"""

TAB = "a tab; YAML takes only spaces here"
QUOTES = "wants single quotes"
LINES = "look at this line and the one above"

# crime -> the file, the place, the hint or the parser's words, of the error at this place
_SLIPS: dict[str, tuple[str, str, str]] = {
    "a tab that indents": (_BLOCK.replace("  class", "\tclass", 1), "2:1", TAB),
    "a tab after a colon": (GOOD + "seed:\t\t@\n", "5:6", TAB),
    "no space after a colon": (GOOD + "seed:3\n", "5:1", LINES),
    "no space after a colon, more below": (_BLOCK.replace("model:\n", "seed:3\nmodel:\n"), "2:6", LINES),
    "no space after a colon, in a section": (_BLOCK + "evaluate:\n  patience:3\n  mode: min\n", "7:7", LINES),
    "an equals sign": (GOOD + "seed = 3\n", "5:1", LINES),
    "an equals sign, more below": ("seed=3\n" + GOOD, "2:6", LINES),
    "a key without a colon": (GOOD + "seed\n", "5:1", LINES),
    "a double quote left open": (GOOD + 'name: "mine\n', "5:7", 'the " of line 5, column 7 is not closed'),
    "a single quote left open": ("name: 'mine\n" + GOOD, "1:7", "the ' of line 1, column 7 is not closed"),
    "a quote over two documents": ('name: "a\n---\nb"\n' + GOOD, "1:7", 'the " of line 1, column 7 is not closed'),
    "a map left open at the end": (GOOD + "log: {every_s: 1\n", "5:6", "the { of line 5, column 6 is not closed"),
    "a list left open": (
        _BLOCK + "evaluate:\n  metrics: [auc, accuracy\n  mode: min\n",
        "7:7",
        "the [ of line 6, column 12 is not closed",
    ),
    "a list closed as a map": (
        GOOD + "evaluate: {metrics: [auc}\n",
        "5:25",
        "the [ of line 5, column 21 is not closed",
    ),
    "a map closed as a list": (GOOD + "log: {every_s: 1]\n", "5:17", "the { of line 5, column 6 is not closed"),
    "a bracket too many": (GOOD + "log: {every_s: 1}}\n", "5:18", "found '}'"),
    "a comma forgotten": (GOOD + "log: {every_s: 1 jsonl: true}\n", "5:23", "expected ',' or '}'"),
    "a comma too many": (GOOD + "log: {, every_s: 1}\n", "5:7", "found ','"),
    "a key indented less": (_BLOCK + "optimizer:\n    state: private\n  groups: []\n", "7:3", LINES),
    "a key indented more": (_BLOCK.replace("guilty.Net\n", "guilty.Net\n    compile: none\n"), "3:12", LINES),
    "a first key that is indented": ("  seed: 1\n" + GOOD, "2:1", LINES),
    "a colon in a text": (GOOD + "name: a: b\n", "5:8", QUOTES),
    "a section in one line": (GOOD + "log: jsonl: true\n", "5:11", QUOTES),
    "a list among keys": (_BLOCK + "log:\n  jsonl: true\n  - 1\n", "7:3", LINES),
    "a key among entries": ("- model\ndata: 1\n", "2:1", LINES),
    "a list beside its key": (GOOD + "name: - a\n", "5:7", "sequence entries are not allowed here"),
    "no key": (": 1\n" + GOOD, "1:1", LINES),
    "a pattern without quotes": (GOOD + "name: *.bias\n", "5:8", QUOTES),
    "an alias of nothing": (GOOD + "name: *x\n", "5:7", QUOTES),
    "an anchor twice": ("name: &x a\nseed: &x 1\n" + GOOD, "2:7", "found duplicate anchor 'x'"),
    "an at sign": (GOOD + "name: @me\n", "5:7", QUOTES),
    "a percent sign": (GOOD + "name: %me\n", "5:7", QUOTES),
    "a directive": ("%note\n" + GOOD, "2:1", LINES),
    "a path of Windows": (GOOD + 'name: "C:\\data"\n', "5:11", QUOTES),
    "text after a quote": (GOOD + "name: 'a' b\n", "5:11", "expected <block end>, but found '<scalar>'"),
    "text after the end": (GOOD + "...\nseed: 1\n", "6:1", LINES),
    "a block scalar with its text": (GOOD + "name: |mine\n", "5:8", "found 'm'"),
    "a tag of nobody": (GOOD + "seed: !e!x 3\n", "5:7", QUOTES),
}


def _file(crime: str) -> str:
    return f"slip_{list(_SLIPS).index(crime)}.yaml"


def _excerpt(text: str, place: str) -> str:
    line, column = map(int, place.split(":"))
    return f" [config/bad-yaml]\n    {text.splitlines()[line - 1].replace(chr(9), '→')}\n    {' ' * (column - 1)}^"


SLIP_TEXTS: dict[str, str | bytes] = {_file(crime): text for crime, (text, _, _) in _SLIPS.items()} | {
    "zipped.yaml": b"PK\x03\x04\x14\x00rest of an archive",
    "gzipped.yaml": b"\x1f\x8b\x08rest",
    "nul.yaml": GOOD.encode() + b"name: \x00\n",
    "values.yaml": "model:\n  class_path:guilty.Net\ndata: {train: {class_path: guilty.blobs}}\n",
}
YAML: dict[str, Row] = {
    crime: Row(
        ("check", _file(crime)),
        2,
        "config/bad-yaml",
        (f"{_file(crime)}:{place}: ", said, _excerpt(text, place) + "\n1 error;"),
    )
    for crime, (text, place, said) in _SLIPS.items()
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
