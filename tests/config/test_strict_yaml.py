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
    """What a reading of `text` reports, or what stopped it."""
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
        ("010", "write 10,"),
        ("-007", "write -7,"),
        ("00.5", "write 0.5,"),
        ("0o7", "write 7,"),
        ("0x1F", "write 31,"),
        ("0b11", "write 3,"),
        ("1:30", "is 90 "),
        ("190:20:30", "is 685230 "),
        ("1_000", "write 1000,"),
        ("1_0.5e3", "write 10.5e3,"),
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
    ("a: 010", 1, 4, "010 is 10 for some"),
    ("a:\n  b: [1, 1:30]", 2, 10, "1:30 is 90"),
    ("a: 1\nb: 2\na: 3", 3, 1, "duplicate key; it was already given at line 1, column 1"),
    ("a: {b: 1, b: 2}", 1, 11, "duplicate key"),
    ("a:\n\tb: 1", 2, 1, "a tab"),
    ("a: 1\n\t\nb: 2\n", 2, 1, "a tab"),
    ("a: [1, 2", 1, 4, "the [ of line 1, column 4 is not closed"),
    ("a: b: c", 1, 5, "mapping values are not allowed here; text that holds"),
    ("a: 'x", 1, 4, "the ' of line 1, column 4 is not closed"),
    ("a: *nobody", 1, 4, "found undefined alias 'nobody'; text that"),
    ("a: &x [*x]", 1, 4, "an anchor that contains itself"),
    ("a: !!python/object:os.system {}", 1, 4, "tag !!python/object:os.system is not allowed"),
    ("a: !!int '3'", 1, 4, "tag !!int is not allowed"),
    ("a: !mine 3", 1, 4, "tag !mine is not allowed"),
    ("? [1, 2]\n: 3", 1, 3, "a key must be plain text"),
    ("base: &b {x: 1}\nc: {<<: *b}", 2, 5, "merge keys are not supported"),
    ("--- 1\n--- 2", 2, 1, "expected a single document in the stream: but found another document"),
    ("a: \x00", 1, 4, "U+0000 is not allowed"),
    ("a: 1\nb: '\x07'", 2, 5, "U+0007 is not allowed"),
    ("a: " + "[" * 100 + "]" * 100, 1, 67, "nested more than 64 levels deep"),
    ('a: "\\U00110000"', 1, 5, "beyond the last character of Unicode"),
    ("%YAML 3.0\n---\na: 1", 1, 1, "found incompatible YAML document"),
    ("m:\n  init_args: {x: {010: 1}}", 2, 19, "010 is 10 for some"),
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


@pytest.mark.slow
def test_an_alias_bomb_is_an_error_and_not_a_wait() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert "100,000 values after expanding aliases" in problems_of("\n".join(lines))[0].message


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
