"""The YAML reader: what scalars mean, where things stand, and that no text gets more out of it than a
ConfigError."""

import math
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.config import strict_yaml
from hogwild.config.strict_yaml import MAX_BYTES, Trap, YamlReading, decode, dump, read_scalar
from hogwild.errors import ConfigError, Problem


def read(text: str) -> YamlReading:
    return strict_yaml.read(text, "job.yaml")


def problems_of(text: str) -> list[Problem]:
    """Return the reports of a reading of `text`, or the error that stopped it."""
    try:
        return read(text).problems
    except ConfigError as error:
        return list(error.problems)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1e5", 100000.0),
        ("1E5", 100000.0),
        ("-.5", -0.5),
        ("5.", 5.0),
        ("+3", 3),
        ("-0", 0),
        ("0.10", 0.1),
        ("0e0", 0.0),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("Off", "Off"),
        ("y", "y"),
        ("true", True),
        ("FALSE", False),
        ("", None),
        ("~", None),
        ("Null", None),
        ("nUll", "nUll"),
        ("2024-01-01", "2024-01-01"),
        ("1.2.3", "1.2.3"),
        ("1:75", "1:75"),
        (".", "."),
        ("-", "-"),
        ("e5", "e5"),
        ("=", "="),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    found = read_scalar(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "to_write"),
    [
        *(
            (text, f'or "{text}" for text')
            for text in ("010", "-007", "00.5", "0o7", "0x1F", "0b11", "1:30", "1_0.5e3")
        ),
        (".inf", "must be finite"),
        ("-.Inf", "must be finite"),
        (".NaN", "must be finite"),
        ("1e999", "must be finite"),
        ("9" * 5000, "5000 digits"),
    ],
)
def test_what_readers_of_yaml_disagree_about_is_an_error_that_says_what_to_write(text: str, to_write: str) -> None:
    with pytest.raises(Trap, match=to_write.replace(".", r"\.")):
        read_scalar(text)


PLACES = [
    ("a:\n  b: [1, 1:30]", 2, 10, "1:30 is another number for some"),
    ("a: {b: 1, b: 2}", 1, 11, "duplicate key"),
    ("a: &x [*x]", 1, 4, "an anchor that contains itself"),
    ("a: !!int '3'", 1, 4, "tag !!int is not allowed"),
    ("a: !mine 3", 1, 4, "tag !mine is not allowed"),
    ("? [1, 2]\n: 3", 1, 3, "a key must be plain text"),
    ("a: \x00", 1, 4, "U+0000 is not allowed"),
    ('a: "\\U00110000"', 1, 5, "beyond the last character of Unicode"),
    ("%YAML 3.0\n---\na: 1", 1, 1, "found incompatible YAML document"),
    ("m:\n  init_args: {x: {010: 1}}", 2, 19, "010 is another number for some"),
    ("m:\n  init_args: {x: {1.5: 1}}", 2, 19, "a key must be text or a whole number"),
]


@pytest.mark.parametrize(("text", "line", "column", "message"), PLACES)
def test_a_mistake_is_reported_at_its_place(text: str, line: int, column: int, message: str) -> None:
    found = problems_of(text)
    assert any((one.line, one.column) == (line, column) and message in one.message for one in found), found


def test_all_mistakes_are_reported_in_one_pass() -> None:
    text = "a: 010\nb: 1:30\nc: {d: 1, d: 2}\ne: !x 1\n"
    assert [(one.line, one.path) for one in problems_of(text)] == [(1, "a"), (2, "b"), (3, "c.d"), (4, "e")]


def test_each_further_copy_of_a_key_is_an_error_that_names_the_first() -> None:
    text = "a: {x: 1, x: 2}\na: {x: 3}\nb: 5\na: 6\n"
    shown = read(text)
    assert shown.values == {"a": {"x": 1}, "b": 5}
    assert [(one.line, one.path, one.message.rpartition(" at ")[2]) for one in shown.problems] == [
        (1, "a.x", "line 1, column 5"),
        (2, "a", "line 1, column 1"),
        (4, "a", "line 1, column 1"),
    ]


def test_an_alias_stands_for_its_value() -> None:
    assert read("a: &x {lr: 1e-3}\nb: *x").values == {"a": {"lr": 0.001}, "b": {"lr": 0.001}}


def test_quoted_text_stays_text_and_keys_of_sections_stay_as_written() -> None:
    assert read("010: '1e-3'\nno: \"no\"\n~: !!str 5").values == {"010": "1e-3", "no": "no", "~": "5"}


def test_deep_in_init_args_keys_may_be_whole_numbers() -> None:
    assert read("init_args: {1: {2: x, '3': y}}").values == {"init_args": {"1": {2: "x", "3": "y"}}}


@pytest.mark.parametrize(
    ("content", "line", "column", "message"),
    [
        (b"\xef\xbb\xbfa: 1", 1, 1, "byte order mark"),
        ("a: 1".encode("utf-16"), 1, 1, "UTF-16"),
        (b"a: 1\nb\xc3\xa4: \xff", 2, 5, "byte 0xff is not UTF-8"),
        (b"a" * (MAX_BYTES + 1), 1, 1, "at most 1,000,000"),
        (b"PK\x03\x04\x14\x00rest of an archive", 1, 1, "a binary file, such as a checkpoint or an archive"),
        (b"\x1f\x8b\x08rest", 1, 1, "a binary file"),
        (b"a: \x00", 1, 1, "a job file is text in UTF-8"),
    ],
)
def test_a_file_that_is_no_utf_8_text_says_where(content: bytes, line: int, column: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        decode(content, "job.yaml")
    assert (caught.value.problems[0].line, caught.value.problems[0].column) == (line, column)


FRAGMENTS = st.sampled_from(
    ["a", ": ", "- ", "\n", "  ", "\t", "[", "]", "{", "}", "&x", "*x", "!!str ", "!", "'", '"', "#", "|", ">", "%"]
) | st.sampled_from(["? ", "---", "...", "010", "1:30", "<<", "\\", ",", "~", "\u2028", "\ufeff", "\x85", "\U0001f417"])


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(FRAGMENTS, max_size=25).map("".join)))
def test_no_text_raises_anything_but_a_config_error(text: str) -> None:
    for problem in problems_of(text):
        assert problem.line >= 1 and problem.column >= 1


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30) | st.from_regex(r"[-+]?[0-9_.:exobnaif]{1,9}", fullmatch=True))
def test_a_scalar_is_finite_or_a_trap(text: str) -> None:
    try:
        value = read_scalar(text)
    except Trap:
        return
    assert not isinstance(value, float) or math.isfinite(value)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TRICKY = st.sampled_from(
    ["no", "010", "1e-3", "1:30", "~", "", "true", ".inf", "0x1F", "<<", "=", "a: b", "- a", "# a"]
)
VALUES = st.recursive(
    PLAIN | TEXT | TRICKY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | TRICKY | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.dictionaries(TEXT, VALUES, max_size=3))
def test_what_is_written_is_read_back_as_the_same_values(values: dict[str, object]) -> None:
    document = {"init_args": {"x": values}}
    reading = read(dump(document))
    assert reading.problems == []
    assert reading.values == document


def test_the_written_file_means_the_same_to_pyyaml() -> None:
    values = {"a": "no", "b": "010", "c": 0.001, "d": [1, None, True], "e": {"f": "1:30"}}
    assert yaml.safe_load(dump(values)) == values


# ---- errors of the parser --------------------------------------------------------------------------------------------

TAB = "a tab; YAML takes only spaces here"
QUOTES = "wants single quotes"
LINES = "look at this line and the one above"
SLIPS = {  # of the hand -> the file, the place where the parser noticed it, and the hint or the parser's words
    "a tab that indents": ("a:\n\tb: 1\n", "2:1", TAB),
    "a tab after a colon": ("a: 1\nb:\t\t@\n", "2:3", TAB),
    "a tab on a line of its own": ("a: 1\n\t\nb: 2\n", "2:1", TAB),
    "no space after a colon": ("a: 1\nb:3\n", "2:1", LINES),
    "no space after a colon, more below": ("a:3\nb:\n  c: 1\n", "2:2", LINES),
    "a key indented less": ("a: 1\nb:\n    c: 1\n  d: 2\n", "4:3", LINES),
    "a first key that is indented": ("  a: 1\nb: 2\n", "2:1", LINES),
    "no key": (": 1\nb: 2\n", "1:1", LINES),
    "a colon in a text": ("a: 1\nb: c: d\n", "2:5", QUOTES),
    "a pattern without quotes": ("a: *.bias\n", "1:5", QUOTES),
    "an at sign": ("a: @me\n", "1:4", QUOTES),
    "a path of Windows": ('a: "C:\\data"\n', "1:8", QUOTES),
    "a double quote left open": ('a: 1\nb: "mine\n', "2:4", 'the " of line 2, column 4 is not closed'),
    "a quote over two documents": ('a: "b\n---\nc"\n', "1:4", 'the " of line 1, column 4 is not closed'),
    "a map left open": ("a: {b: 1\nc: 2\n", "2:2", "the { of line 1, column 4 is not closed"),
    "a map left open at the end": ("a: 1\nb: {c: 1\n", "2:4", "the { of line 2, column 4 is not closed"),
    "a list closed as a map": ("a: {b: [c}\n", "1:10", "the [ of line 1, column 8 is not closed"),
    "a bracket too many": ("a: {b: 1}}\n", "1:10", "found '}'"),
    "an anchor twice": ("a: &x 1\nb: &x 2\n", "2:4", "found duplicate anchor 'x'"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_of_the_hand_is_shown_with_its_line_a_caret_and_a_hint(slip: str) -> None:
    text, place, words = SLIPS[slip]
    (one,) = problems_of(text)
    assert (f"{one.line}:{one.column}", one.code) == (place, "config/bad-yaml") and words in one.message, one
    line, column = map(int, place.split(":"))
    assert one.excerpt.splitlines() == [
        f"    {text.splitlines()[line - 1]}".replace("\t", "→"),
        f"    {' ' * (column - 1)}^",
    ]


WHOLE = """\
name: 'a job'  # with a comment
model: {class_path: mymodel.Net, freeze: ["body.*", &x head], init_args: {sizes: [1, 2]}}
data:
  train:
    class_path: "mymodel.Data"
  batch_size: 8
evaluate:
  metrics:
    - accuracy
    - *x
"""


@settings(max_examples=600, deadline=None)
@given(
    at=st.integers(0, len(WHOLE) - 1),
    taken=st.integers(0, 6),
    put=st.text(st.sampled_from("\t\n -:{}[],'\"#&*!|>%@`?=\\aU1.\x85\u2028"), max_size=4),
)
def test_every_broken_file_is_answered_with_code_file_line_column_and_excerpt(at: int, taken: int, put: str) -> None:
    text = WHOLE[:at] + put + WHOLE[at + taken :]
    lines = re.split(r"\r\n|[\n\r\x85\u2028\u2029]", text)
    try:
        read(text)
    except ConfigError as error:
        (one,) = error.problems
        assert (one.source, one.code) in {("job.yaml", "config/bad-yaml"), ("job.yaml", "config/encoding")}
        assert 1 <= one.line <= len(lines) and 1 <= one.column <= len(lines[one.line - 1]) + 1, one
        shown, _, caret = one.excerpt.partition("\n")
        assert shown.strip() and caret.endswith("^") and len(caret) <= len(shown) + 1, one
        assert shown[4:] in lines[one.line - 1].replace("\t", "→"), one
