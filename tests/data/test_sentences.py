"""Words of followed texts: as Python splits them, from any place on, also within a long line; and what is refused."""

import csv
import io
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="words are found by pyarrow: pip install 'hogwild[csv]'")

from hogwild.data import Follow, followed_file
from hogwild.data.ids import key_of_text
from hogwild.data.text_keys import names_of
from hogwild.errors import DataError, UsageError
from tests.data.test_follow import file_of

MILLION = 1_000_000
WORD = st.text(st.characters(exclude_categories=("Z", "C")), min_size=1, max_size=4)
LINES = st.lists(st.lists(st.one_of(WORD, st.sampled_from(["7", "007", "7.0", "true"])), max_size=9), max_size=9)


def jsonl_of(texts: list[str]) -> str:
    return "".join(json.dumps({"n": 1, "text": text}) + "\n" for text in texts)


def plain(records: Any) -> list[tuple[list[int], float]]:
    return [(words.tolist(), float(target)) for words, target in records]


def wanted(lines: list[list[str]], longest: int) -> list[tuple[list[int], float]]:
    found = []
    for line in lines:
        keys = [*map(key_of_text, line)]
        for begin in range(0, len(keys), longest):
            part = keys[begin : begin + longest]
            found.append(([*part, *[-1] * (longest - len(part))], 1.0))
    return found


def read_to_the_end(data: Follow) -> tuple[list[Any], list[Any]]:
    """Return (all records, the reader's states: before each record, and at the end)."""
    records, states, reader = [], [], iter(data)
    while True:
        states.append(reader.state_dict())
        if (record := next(reader, None)) is None:
            break
        records.append(record)
    return records, states


def resumed(data: Follow, state: Any) -> Any:
    reader = iter(data)
    reader.load_state_dict(state)
    assert reader.state_dict() == state
    return reader


@given(LINES, st.integers(1, 4), st.sampled_from([1, 5, 1 << 20]), st.booleans())
def test_records_are_the_words_of_lines_from_any_place_on(
    lines: list[list[str]], longest: int, block: int, is_json: bool
) -> None:
    """Word by word as Python has them, one by one and many at once, in blocks of any size; a long line in parts."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(followed_file, "BLOCK", block)
        texts = [" \t".join(line) for line in lines]
        content = jsonl_of(texts) if is_json else "".join(f"{text}\r\n" for text in texts)
        path = file_of(Path(folder), content)
        data = Follow(path, text="text" if is_json else True, longest=longest, until="end")
        records, states = read_to_the_end(data)
        assert plain(records) == wanted(lines, longest)
        for count, state in enumerate(states):
            assert plain(resumed(data, state)) == plain(records)[count:]
            again = resumed(data, state)
            many: list[Any] = []
            while (part := next_of(again)) is not None:
                many += zip(*part, strict=True)
                if len(many) == len(part[0]):  # the state may be before or behind a line without a word
                    assert plain(resumed(data, again.state_dict())) == plain(records)[count + len(many) :]
            assert plain(many) == plain(records)[count:]


def next_of(reader: Any) -> Any:
    try:
        return reader.next_columns(2).fields
    except StopIteration:
        return None


def test_words_have_names_and_other_white_space_is_no_word(tmp_path: Path) -> None:
    data = Follow(file_of(tmp_path, "\ufeffÜber 7\n \u00a0 \n\n7.0 True\n".encode()), text=True, longest=2, until="end")
    data.run_dir_of_job = str(tmp_path)
    assert plain(data) == wanted([["Über", "7"], ["7.0", "True"]], 2)
    assert names_of(tmp_path) == {key_of_text(word): word for word in ("Über", "7.0", "True")}


def test_a_line_of_a_million_words_is_cut_and_read_on_from_its_middle(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a b\n" + " ".join(str(number) for number in range(MILLION)) + "\nc\n")
    data = Follow(path, text=True, until="end")
    reader, first = iter(data), list[Any]()
    while len(first) < 1001:
        first += zip(*reader.next_columns(1001 - len(first)).fields, strict=True)
    state = reader.state_dict()
    assert state["again"] == 1000 and state["line"] == 1
    rest = [*resumed(data, state)]
    words = np.concatenate([words for words, _ in [*first, *rest][1:-1]])
    assert np.array_equal(words, np.arange(MILLION))


BAD: dict[str, tuple[bytes, str, bool]] = {
    "no text": (b'{"other": "a b"}', "'text': the text is missing (missing: drop leaves such rows out)", True),
    "null": (b'{"text": null}', "'text': the text is missing", True),
    "a number": (b'{"text": 7}', "'text': is a int, not a text: '7'", True),
    "a list": (b'{"text": ["a"]}', "'text': is a list, not a text", True),
    "surrogate": (b'{"text": "\\ud800"}', "'text': is no text", True),
    "not JSON": (b"a b", "is not JSON", True),
    "zero in JSON": (b'{"text": "a\0b"}', "zero byte", True),
    "zero": (b"a\0b", "zero byte", False),
    "not UTF-8": (b"a \xffb", "is not utf-8 text", False),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_text_is_an_error_with_its_line_or_left_out(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line, words, is_json = BAD[name]
    good = (jsonl_of(["a b"]) if is_json else "a b\n").encode()
    path = file_of(tmp_path, good + b"\n" + line + b"\n" + good)
    given: Any = {"text": "text" if is_json else True, "until": "end"}
    with pytest.raises(DataError) as error:
        [*Follow(path, **given)]
    assert words in str(error.value) and f"{path}: line 3: " in str(error.value)
    assert plain(Follow(path, on_bad_line="skip", **given)) == wanted([["a", "b"]] * 2, 64)
    assert words in caplog.text
    if "missing" in words:
        assert len([*Follow(path, missing="drop", **given)]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"text": ""}, "text must be true, or a column or key"),
        ({"text": False}, "text must be true, or a column or key"),
        ({"text": True, "target": "clicked"}, "column 'clicked' is named, but"),
        ({"text": True, "ids": ["user"]}, "column 'user' is named, but"),
        ({"text": True, "weight": "w"}, "column 'w' is named, but"),
        ({"text": True, "longest": 0}, "longest must be a whole number >= 1, got 0"),
    ],
)
def test_wrong_arguments_are_told(arguments: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        Follow(file_of(tmp_path, "a b\n"), **arguments)


ROWS = [("1", "a b"), ("2", ""), ("3", 'say "a", b'), ("4", "  c\td  "), ("5", "a, ü"), ("6", "a b c a b")]


@pytest.mark.parametrize("sign", [",", "\t", ";"])
@pytest.mark.parametrize("head", [b"", b"\xef\xbb\xbf"])
def test_a_column_of_texts_has_the_words_of_texts_alone(tmp_path: Path, sign: str, head: bytes) -> None:
    written = io.StringIO()
    csv.writer(written, delimiter=sign).writerows([("number", "text"), *ROWS])
    path = file_of(tmp_path, head + written.getvalue().encode())
    data = Follow(path, text="text", longest=3, delimiter=sign, until="end")
    data.run_dir_of_job = str(tmp_path)
    records, states = read_to_the_end(data)
    assert plain(records) == wanted([text.split() for _, text in ROWS], 3)
    assert names_of(tmp_path)[key_of_text("ü")] == "ü"
    for count, state in enumerate(states):
        assert plain(resumed(data, state)) == plain(records)[count:]


BAD_COLUMNS: dict[str, tuple[bytes, str]] = {
    "no such column": (b"number,title\n1,a\n", "text: there is no column 'text'"),
    "too many values": (b"number,text\n1,a\n2,a, b\n", "line 3: has 3 values, 2 were expected"),
    "a quote is left open": (b'number,text\n1,"a\n2,b\n', "line 2: "),
    "not UTF-8": (b"number,text\n1,a\n2,\xff\n", "line 3: column 'text': "),
    "zero": (b"number,text\n1,a\0\n", "line 2: has a zero byte"),
}


@pytest.mark.parametrize("name", BAD_COLUMNS)
def test_a_bad_file_with_a_column_of_texts_is_an_error_with_file_and_line(name: str, tmp_path: Path) -> None:
    content, words = BAD_COLUMNS[name]
    path = file_of(tmp_path, content)
    with pytest.raises((DataError, UsageError)) as error:
        [*Follow(path, text="text", until="end")]
    assert words in str(error.value) and str(path) in str(error.value)
