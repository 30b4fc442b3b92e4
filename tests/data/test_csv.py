"""Tables in text files, good and bad: read in ranges, by a copy of the object, and every error with its place."""

import csv
import gzip
import io
import math
import os
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.config.load import job_from_mapping
from hogwild.data import Csv, cache, text_file
from hogwild.errors import DataError, HogwildError, UsageError
from hogwild.feeds.row_reader import divided
from hogwild.workers.loading import loading
from hogwild.workers.processes.group import ProcessGroup
from tests.helpers.reading import Said
from tests.helpers.run_status import no_start_up

HOUSES = b"""city,colour,area,rooms,price
Paris,red,50.5,2,300
Rome,green,70,3,250.5
Paris,blue,33,1,199
"""


def table(folder: Path, content: bytes, name: str = "t.csv") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def tensors(dataset: Csv) -> list[list[Any]]:
    return [field.tolist() for field in dataset.rows(0, len(dataset))]


# ---- what comes out


@pytest.mark.parametrize(
    ("content", "x"),
    [
        (b"1,2,3,4\n5,6,7,8\n", [[2, 3], [6, 7]]),  # as the file that was trained on
        (b"2,3\n6,7\n", [[2, 3], [6, 7]]),  # its inputs alone
    ],
)
def test_without_a_header_inputs_are_found_by_how_many_columns_there_are(
    tmp_path: Path, content: bytes, x: list[list[float]]
) -> None:
    arguments: dict[str, Any] = {"target": 0, "leave_out": [3], "header": False}
    trained_on = Csv(table(tmp_path, b"1,2,3,4\n"), **arguments).columns
    found = Csv(table(tmp_path, content, "new.csv"), **Csv.for_inputs(arguments, trained_on))
    assert [field.tolist() for field in found.rows(0, 2)] == [x, [[], []]]
    words = "has 3 columns and no header; it needs the 4 columns of the training data, or only the 2 inputs"
    with pytest.raises(UsageError, match=words):
        Csv(table(tmp_path, b"1,2,3\n", "new.csv"), **Csv.for_inputs(arguments, trained_on))


def test_a_file_to_predict_may_have_one_column_and_coded_ones_in_another_place(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"target": "y", "categorical": {"c": ["u", "v"], "y": ["no", "yes"]}}
    trained_on = Csv(table(tmp_path, b"c,y\nu,yes\n"), **arguments).columns
    found = Csv(table(tmp_path, b"c\nv\nu\n", "new.csv"), **Csv.for_inputs(arguments, trained_on))
    assert [field.tolist() for field in found.rows(0, 2)] == [[[1], [0]], [[], []]]


def test_numbers_are_one_tensor_categories_another_and_the_target_a_column(tmp_path: Path) -> None:
    houses = Csv(
        table(tmp_path, HOUSES), "price", categorical={"colour": ["red", "green", "blue"], "city": {"hash": 1000}}
    )
    x, codes, price = houses.rows(0, 3)
    assert (x.dtype, codes.dtype, price.dtype) == (torch.float32, torch.int64, torch.float32)
    assert x.tolist() == [[50.5, 2], [70, 3], [33, 1]] and price.tolist() == [[300], [250.5], [199]]
    assert codes[:, 1].tolist() == [0, 1, 2]
    # BLAKE2b of "Paris" and "Rome", 8 bytes, modulo 1000: the same in every process and on every machine.
    assert codes[:, 0].tolist() == [228, 24, 228]
    assert (houses.inputs, houses.categories) == (("area", "rooms"), {"city": 1000, "colour": 3})
    assert [field.tolist() for field in houses[-1]] == [[33, 1], [228, 2], [199]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"target": 4, "inputs": [3, "area"]}, [[[2, 50.5], [3, 70], [1, 33]], [[300], [250.5], [199]]]),
        ({"target": -1, "leave_out": ["city", 1]}, [[[50.5, 2], [70, 3], [33, 1]], [[300], [250.5], [199]]]),
        ({"target": ["price", "rooms"], "inputs": ["area"]}, [[[50.5], [70], [33]], [[300, 2], [250.5, 3], [199, 1]]]),
        ({"target": "rooms", "inputs": ["area"], "target_type": "class"}, [[[50.5], [70], [33]], [2, 3, 1]]),
        (
            {"target": "city", "inputs": ["rooms"], "categorical": {"city": {"values": ["Rome"], "other": True}}},
            [[[2], [3], [1]], [1, 0, 1]],
        ),
        ({"target": "rooms", "inputs": ["colour"], "categorical": {"colour": ["red", "green", "blue"]}},
         [[[0], [1], [2]], [[2], [3], [1]]]),
    ],
)  # fmt: skip
def test_columns_are_named_or_numbered(tmp_path: Path, arguments: dict[str, Any], expected: list[Any]) -> None:
    assert tensors(Csv(table(tmp_path, HOUSES), **arguments)) == expected


def test_a_file_without_a_header_has_numbered_columns(tmp_path: Path) -> None:
    assert tensors(Csv(table(tmp_path, b"1;2,5;3\n4;5;6"), 2, header=False, delimiter=";", decimal=",")) == [
        [[1, 2.5], [4, 5]],
        [[3], [6]],
    ]


ODD = {
    "a byte order mark": (b"\xef\xbb\xbfa,b\n1,2\n3,4\n", {}),
    "carriage returns": (b"a,b\r\n1,2\r\n3,4\r\n", {}),
    "doubled carriage returns": (b"a,b\r\r\n1,2\r\r\n3,4\r\r\n", {}),
    "no end of the last line": (b"a,b\n1,2\n3,4", {}),
    "empty lines everywhere": (b"\n\na,b\n\n1,2\n\n\n3,4\n\n\n", {}),
    "empty lines with carriage returns": (b"\r\na,b\r\n\r\n1,2\r\n\r\n3,4\r\n\r\n\r\n", {}),
    "quotes": (b'"a","b"\n"1","2"\n"3",4\n', {}),
    "a header of two lines": (b'a,"b\nc"\n1,2\n3,4\n', {"target": 1}),
    "spaces and signs": (b"a, b\n 1 ,+2\n3.,\t4e0\n", {}),
    "a header that is a comment": (b"# a,b\n1,2\n3,4\n", {"inputs": ["a"]}),
    "lines before the header": (b"# made today\n#\na,b\n1,2\n3,4\n", {"skip_lines": 2}),
    "tabs": (b"a\tb\n1\t2\n3\t4\n", {"delimiter": "\t"}),
    "latin-1 in the header": (b"\xe4,b\n1,2\n3,4\n", {"encoding": "latin-1", "inputs": ["ä"]}),
    "latin-1 in a column that is not read": (b"a,c,b\n1,\xe4,2\n3,x,4\n", {"leave_out": ["c"]}),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_file_may_be_written_in_many_ways(tmp_path: Path, kind: str) -> None:
    content, arguments = ODD[kind]
    assert tensors(Csv(table(tmp_path, content), **{"target": "b", **arguments})) == [[[1], [3]], [[2], [4]]]


def test_quoted_values_may_hold_delimiters_quotes_and_line_ends(tmp_path: Path) -> None:
    words = ["a,b", 'c"d', "e\nf", "\n\n", "ä"]
    out = io.StringIO(newline="")
    csv.writer(out).writerows([["word", "y"], *([word, i] for i, word in enumerate(words))])
    for encoding in ("utf-8", "latin-1"):
        file = table(tmp_path, out.getvalue().encode(encoding), f"{encoding}.csv")
        listed = Csv(file, "y", categorical={"word": ["ä", "e\nf", 'c"d', "a,b"]}, encoding=encoding, missing=0)
        assert [listed[i][0].tolist() for i in (0, 1, 2, 4)] == [[3], [2], [1], [0]]
        with pytest.raises(DataError, match=r"csv: line 6: column 'word': the value is missing"):  # spaces are nothing
            listed.rows(0, 5)


# ---- ranges, in any order, in other processes


@pytest.mark.parametrize("is_zipped", [False, True])
def test_ranges_in_any_order_by_a_copy_of_the_object_are_the_file(
    tmp_path: Path, is_zipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_file, "RECORDS", 64)
    values = np.random.default_rng(3).normal(size=(200, 3)).astype(np.float32)
    lines = [f'{a!s},"{b!s}",{c!s}' + "\n" * (1 + i % 3 // 2) for i, (a, b, c) in enumerate(values)]
    content = ("a,b,c\n" + "".join(lines)).encode()
    dataset = Csv(table(tmp_path, gzip.compress(content) if is_zipped else content), "c")
    copy = cloudpickle.loads(cloudpickle.dumps(dataset))
    for start, stop in ((150, 200), (0, 1), (1, 77), (77, 150), (30, 30)):
        assert np.array_equal(torch.cat(copy.rows(start, stop), dim=1).numpy(), values[start:stop])
    assert len(cloudpickle.dumps(copy)) < 20_000


def test_the_object_is_small_however_long_the_file_is(tmp_path: Path) -> None:
    dataset = Csv(table(tmp_path, b"a,b\n" + b"1.25,2\n" * 300_000), "b")
    dataset.rows(0, 2)
    assert len(dataset) == 300_000 and len(cloudpickle.dumps(dataset)) < 10_000


PARTS = st.lists(st.sampled_from(["a", '"', '""', " ", "#", ",", "\r", "é"]), max_size=6)


@settings(max_examples=150)
@given(lines=st.lists(PARTS, min_size=1, max_size=4), end=st.sampled_from(["\n", "\r\n"]))
def test_words_are_what_python_reads_or_there_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, lines: list[list[str]], end: str
) -> None:
    content = "c,y\n" + end.join("".join(line) + ",1" for line in lines)
    path = table(tmp_path_factory.mktemp("words"), content.encode())
    try:
        dataset = Csv(path, "y", categorical={"c": {"hash": 9}}, missing=0)
        dataset.identify("c")
        found = dataset.inputs_of(0, len(dataset)).names["c"]
    except DataError:
        return
    rows = [row for row in csv.reader(io.StringIO(content, newline=""), strict=True) if row]
    assert found == [row[0].strip() for row in rows[1:]]


FIELDS = st.lists(st.text(alphabet='ab,"\n\r ä', max_size=4), min_size=2, max_size=2)


@settings(max_examples=60)
@given(records=st.lists(FIELDS, min_size=1, max_size=12), block=st.integers(1, 40), cut=st.integers(0, 12))
def test_rows_are_where_python_finds_them(
    tmp_path_factory: pytest.TempPathFactory, records: list[list[str]], block: int, cut: int
) -> None:
    """Every field quoted, any character in it, blocks so small that each boundary falls everywhere."""
    out = io.StringIO(newline="")
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n\n").writerows(records)
    folder = tmp_path_factory.mktemp("rows")
    text = text_file.TextFile(table(folder, out.getvalue().encode()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_file, "RECORDS", block)
        index = text_file.find_records(text, 0, 1)
        assert index.rows == len(records)
        middle = min(cut, len(records))
        found: list[list[str]] = []
        read = b""
        for first, stop in ((0, middle), (middle, len(records))):
            if first < stop:
                content, line = index.read(text, first, stop)
                assert line == 1 + read.count(b"\n")
                read += content
                found += [row for row in csv.reader(io.StringIO(content.decode(), newline="")) if row]
        assert out.getvalue().encode().removeprefix(read).strip() == b""
        text.close()
    assert found == records


@pytest.mark.parametrize("arguments", [{}, {"missing": 0.0}, {"missing": "drop"}])
def test_parts_by_threads_are_all_rows_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
) -> None:
    """One value in a hundred has a form that only the careful parser reads."""
    monkeypatch.setattr(text_file, "RECORDS", 100)
    lines = "".join(f"{'+' if i % 100 == 0 else ''}{i},{i % 3}\n" for i in range(1000))
    dataset = Csv(table(tmp_path, b"a,b\n" + lines.encode()), "b", target_type="class", **arguments)
    parts = [*dataset.parts()]
    assert len(parts) > 5
    x, y = (torch.cat(field) for field in zip(*parts, strict=True))
    assert x[:, 0].tolist() == [*range(1000)] and y.tolist() == [i % 3 for i in range(1000)]


def test_the_first_wrong_line_is_named_whichever_thread_finds_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_file, "RECORDS", 100)
    lines = "".join(f"{'x' if i > 500 else i},1\n" for i in range(1000))
    dataset = Csv(table(tmp_path, b"a,b\n" + lines.encode()), "b")
    with pytest.raises(DataError, match="line 503: column 'a': 'x'"):
        [*dataset.parts()]


# ---- what is missing

GAPS = b"a,b,y\n1,NA,1\n,4,2\n3,8,\n5,6,3\n"


def test_rows_with_gaps_are_left_out_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert tensors(Csv(table(tmp_path, GAPS), "y", missing="drop")) == [[[5, 6]], [[3]]]
    assert "3 of 4 rows have a missing value and are left out" in caplog.text


def test_samples_keep_their_places_where_rows_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "RECORDS", 64)
    content = "a,y\n" + "".join(f"{'' if i % 7 in (0, 3) else i},{i}\n" for i in range(100))
    dataset = Csv(table(tmp_path, content.encode()), "y", missing="drop")
    kept = [i for i in range(100) if i % 7 not in (0, 3)]
    assert len(dataset) == len(kept)
    for start, stop in ((0, len(kept)), (1, 2), (10, 60), (len(kept) - 1, len(kept))):
        assert dataset.rows(start, stop)[1][:, 0].tolist() == kept[start:stop]


def test_gaps_are_filled_with_a_number_or_the_mean_of_the_column(tmp_path: Path) -> None:
    file = table(tmp_path, b"a,b,y\n1,NA,1\n,4,2\n5,8,3\n")
    assert tensors(Csv(file, "y", missing=-1))[0] == [[1, -1], [-1, 4], [5, 8]]
    assert tensors(Csv(file, "y", missing="mean"))[0] == [[1, 6], [3, 4], [5, 8]]


def test_weights_are_the_field_before_the_target_and_follow_their_rows(tmp_path: Path) -> None:
    content = HOUSES.replace(b"50.5,2", b"50.5,+2").replace(b"green,70", b"green,")  # +2: read value by value
    path = table(tmp_path, content)
    arguments: dict[str, Any] = {"target": "price", "inputs": ["area"], "weight": "rooms", "missing": "drop"}
    houses = Csv(path, **arguments)
    assert houses.has_sample_weights and houses.columns == ("city", "colour", "area", "rooms", "price")
    assert tensors(houses) == [[[50.5], [33.0]], [2.0, 1.0], [[300.0], [199.0]]]
    assert [field.tolist() for field in houses.inputs_of(0, 2).inputs] == [[[50.5], [33.0]]]
    assert [len(field) for field in houses.rows(1, 1)] == [0, 0, 0]
    plain = Csv(path, **arguments | {"weight": None, "leave_out": ["rooms"]})
    assert not plain.has_sample_weights and plain.fingerprint() != houses.fingerprint()
    asked = Csv(table(tmp_path, b"area\n7\n", "ask.csv"), **Csv.for_inputs(arguments, houses.columns))
    assert [field.tolist() for field in asked.inputs_of(0, 1).inputs] == [[[7.0]]]


@pytest.mark.parametrize("value", ["-1", "", "NA", "inf", "much"])
@pytest.mark.parametrize("missing", ["fail", "drop", "mean", 0])
def test_a_wrong_weight_is_an_error_whatever_happens_to_missing_values(
    tmp_path: Path, value: str, missing: Any
) -> None:
    path = table(tmp_path, HOUSES.replace(b"70,3", f"70,{value}".encode()))
    with pytest.raises(DataError, match=rf"t.csv: line 3: column 'rooms': '{value}' must be"):
        Csv(path, target="price", inputs=["area"], weight="rooms", missing=missing).rows(0, 2)


def test_a_missing_category_is_one_of_the_others(tmp_path: Path) -> None:
    file = table(tmp_path, b"c,y\nred,1\n,2\nNA,3\n")
    known = {"c": {"values": ["red", "NA"], "other": True}}
    assert tensors(Csv(file, "y", categorical=known, missing=0)) == [[[0], [2], [1]], [[1], [2], [3]]]
    assert tensors(Csv(file, "y", categorical={"c": ["red", "", "NA"]})) == [[[0], [1], [2]], [[1], [2], [3]]]
    with pytest.raises(DataError, match=r"line 3: column 'c': the value is missing; say other: true"):
        tensors(Csv(file, "y", categorical={"c": ["red", "NA"]}, missing=0))


def test_yes_and_no_are_the_numbers_1_and_0(tmp_path: Path) -> None:
    content = b"a,y\nTrue,false\nFALSE,true\n,True\n"
    assert tensors(Csv(table(tmp_path, content), "y", missing=7)) == [[[1], [0], [7]], [[0], [1], [1]]]
    assert tensors(Csv(table(tmp_path, content), "y", missing=7, target_type="class"))[1] == [0, 1, 1]


@pytest.mark.parametrize(
    ("content", "encoding", "rule"),
    [
        ("größe".encode(), "cp1252", "is 'größe' in UTF-8, not cp1252"),
        ("größe".encode(), "latin-1", "is 'größe' in UTF-8, not latin-1"),
        ("5 €".encode("cp1252"), "latin-1", "is '5 €' in cp1252"),
        (b"\x81", "cp1252", r"b'\\x81' is not cp1252 text"),
        ("größe".encode("latin-1"), "utf-8", "is not utf-8 text; say encoding: latin-1 or cp1252"),
    ],
)
def test_text_in_another_encoding_than_is_said_is_refused(
    content: bytes, encoding: str, rule: str, tmp_path: Path
) -> None:
    file = table(tmp_path, b"c,y\n" + content + b",1\n")
    with pytest.raises(DataError, match=f"line 2: column 'c': .*{rule}") as told:
        tensors(Csv(file, "y", categorical={"c": {"hash": 9}}, encoding=encoding))
    assert told.value.code == "data/csv-encoding"


@pytest.mark.parametrize(("encoding", "word"), [("latin-1", "größe"), ("cp1252", "größe 5 €"), ("utf-8", "Ã¶")])
def test_text_in_the_encoding_that_is_said_is_read(encoding: str, word: str, tmp_path: Path) -> None:
    file = table(tmp_path, f"c,y\n{word},1\n".encode(encoding))
    assert tensors(Csv(file, "y", categorical={"c": [word]}, encoding=encoding))[0] == [[0]]


def test_thousands_are_not_taken_for_a_decimal_comma(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="write it without ',' if that parts thousands"):
        tensors(Csv(table(tmp_path, b'a,y\n"1,234",1\n'), "y"))
    with pytest.raises(DataError, match="set decimal: ',' for the other"):
        tensors(Csv(table(tmp_path, b'a,y\n"1,23",1\n'), "y"))


def test_names_that_are_numbers_may_be_a_row_and_are_said(tmp_path: Path) -> None:
    path = table(tmp_path, b"5.1,3.5,0\n4.9,3,1\n")
    assert Csv(path, -1).notes == [
        "the first line has numbers, 5.1, 3.5, 0, where columns of numbers have their names: if it is a row of values, "
        "set header: false"
    ]
    flowers = table(tmp_path, b"5.1,3.5,setosa\n4.9,3,virginica\n")
    assert "the first line has numbers, 5.1, 3.5, where" in Csv(flowers, -1, categorical={-1: {"hash": 9}}).notes[0]
    assert not Csv(table(tmp_path, b"2019,2020,y\n4.9,3,1\n"), "y").notes, "years of a table"
    assert not Csv(path, -1, header=False).notes and not Csv(table(tmp_path, b"0,1\n2,3\n"), -1).notes


# ---- what is wrong: content, arguments, and what the error must say after the file's name

LONG = b"a,b\n" + b"1,2\n" * 40_000  # several pieces
BAD_FILES: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "empty": (b"", {}, r"is empty"),
    "only empty lines": (b"\n\r\n\n", {}, r"holds only empty lines"),
    "skipped to the end": (b"a,b\n1,2\n", {"skip_lines": 5}, r"no line with text after the 5"),
    "only a header": (b"a,b\n\n", {}, r"contains no samples: there is no row after line 1"),
    "only a header without a line end": (b"a,b", {}, r"contains no samples: there is no row after line 1"),
    "another delimiter": (b"a;b\n1;2\n", {}, r"line 1: only one column is found with the delimiter ','; is it ';'\?"),
    "a name twice": (b"a,b,a\n1,2,3\n", {}, r"line 1: 'a' names the columns 0, 2"),
    "no names": (b"a,,,b\n1,2,3,4\n", {}, r"line 1: the columns 1, 2 have no name"),
    "not UTF-8": (b"\xe4,b\n1,2\n", {}, r"line 1: b'\\xe4' is not utf-8 text.*latin-1"),
    "a category that is not UTF-8": (
        b"a,b\nx,1\n\xe4,2\n", {"categorical": {"a": {"hash": 9}}}, r"line 3: column 'a': b'\\xe4' is not utf-8 text"),
    "a word behind doubled carriage returns": (b"a,b\r\r\n1,2\r\r\nx,4\r\r\n", {}, r"line 3: column 'a': 'x'"),
    "a line end of the old kind": (b"a,b\n1,2\r3,4\n", {}, r"line 2: .*carriage return inside a line"),
    "a word": (b"a,b\n1,2\nParis,3\n", {}, r"line 3: column 'a': 'Paris' must be a number; list a text column"),
    "a word far down": (
        LONG + b'"1\n2",2\n\nParis,3\n1,1\n', {"leave_out": []}, r"line 40002: column 'a': '1\\n2' must be a number"),
    "a word after empty lines": (LONG + b"\n\nParis,3\n1,1\n", {}, r"line 40004: column 'a': 'Paris' must be a number"),
    "a word behind a quoted line end": (
        b'a,b,c\n1,2,"\n\n"\nx,2,3\n', {"leave_out": ["c"]}, r"line 5: column 'a': 'x' must be a number"),
    "a decimal comma": (b"a;b\n1,5;2\n", {"delimiter": ";"}, r"line 2: column 'a': '1,5' must be .*set decimal"),
    "underscores": (b"a,b\n1_000,2\n", {}, r"line 2: column 'a': '1_000' must be a number"),
    "infinite": (b"a,b\n1,2\n-inf,2\n", {}, r"line 3: column 'a': '-inf' must be finite"),
    "too large": (b"a,b\n1e400,2\n", {}, r"line 2: column 'a': '1e400' must fit float32"),
    "too large for float32": (b"a,b\n1e39,2\n", {}, r"line 2: column 'a': '1e39' must fit float32"),
    "missing": (b"a,b\n1,2\n,2\n", {}, r"line 3: column 'a': the value is missing; say missing: drop"),
    "missing in words": (b"a,b\n1,2\n1,N/A\n", {}, r"line 3: column 'b': 'N/A' stands for a missing value"),
    "missing target": (b"a,b\n1,2\n1,\n", {"missing": 0}, r"line 3: column 'b': the value is missing; a target"),
    "no value at all": (b"a,c,b\n1,,2\n1,,2\n", {"missing": "mean"}, r"column 'c' has no values"),
    "gaps everywhere": (b"a,b\n1,\n,2\n", {"missing": "drop"}, r"all 2 rows have a missing value"),
    "ragged": (b"a,b\n1,2\n1,2,3\n", {}, r"line 3: has 3 values, 2 were expected: '1,2,3'; a value with a ','"),
    "too short": (b"a,b\n1,2\n\n1\n", {}, r"line 4: has 1 values, 2 were expected: '1'"),
    "a comment": (b"a,b\n1,2\n# made today\n", {}, r"line 3: has 1 values.*comments are not supported"),
    "spaces for a line": (b"a,b\n1,2\n  \n", {}, r"line 3: has 1 values.*only spaces"),
    "an open quote": (b'a,b\n1,2\n"1,2\n3,4\n', {}, r'line 3: a quote \("\) is not closed before the end of the file'),
    "an open quote in the header": (b'"a,b\n1,2\n', {}, r"line 1: does not end within"),
    "text behind a quote": (
        b'a,b\n",2\n"""x,12\n', {"categorical": {"a": {"hash": 9}}}, r"line 2: cannot be taken apart: ',' expected"),
    "row names without a name": (b'"a","b"\n"1",2,3\n', {}, r"line 2: has 3 values, 2 were.*row names \(R\) need"),
    "quotes inside values": (
        b'a,b\n1,2\n5" pipe,2\n6" pipe,4\n', {"categorical": {"a": {"hash": 9}}},
        r"line 3: from here on lines and quotes do not agree"),
    "a value not listed": (
        b"a,b\nred,1\nblue,2\n", {"categorical": {"a": ["red"]}}, r"line 3: column 'a': 'blue' must be one of red"),
    "a class that is none": (b"a,b\n1,2\n1,2.5\n", {"target_type": "class"}, r"line 3: column 'b': '2.5' must be a"),
    "a negative class": (b"a,b\n1,-1\n", {"target_type": "class"}, r"line 2: column 'b': '-1' must be a class"),
    "bytes flipped in gzip": (gzip.compress(LONG)[:40] + b"\0\1\2" * 50, {}, r"damaged or truncated gzip file"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("crime", BAD_FILES)
def test_what_is_wrong_in_a_file_is_said_with_its_place(tmp_path: Path, crime: str) -> None:
    content, arguments, message = BAD_FILES[crime]
    file = table(tmp_path, content)
    with pytest.raises(DataError, match=message) as caught:
        tensors(Csv(file, **{"target": "b", **arguments}))
    assert str(caught.value).startswith(str(file)) and caught.value.code.startswith("data/")


BAD_ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "no such column": ({"target": "prise"}, r"target: there is no column 'prise'; did you mean 'price'\?"),
    "no such number": ({"target": 5}, r"there is no column 5; the file has 5 columns: 0 to 4"),
    "a name without a header": ({"target": "price", "header": False}, r"columns are given by number"),
    "the target as input": ({"inputs": ["area", "price"]}, r"'price' is both the target and an input"),
    "an input twice": ({"inputs": ["area", "area"]}, r"inputs names column 'area' twice"),
    "no input": ({"leave_out": ["city", "colour", "area", "rooms"]}, r"no column is left as an input"),
    "a word for a list": ({"inputs": "area"}, r"inputs must be a list of columns, got 'area'"),
    "true as a column": ({"target": True}, r"a column is a name or a number, got True"),
    "a delimiter of two": ({"delimiter": ",,"}, r"delimiter must be one ASCII character"),
    "a decimal delimiter": ({"decimal": ","}, r"decimal must be"),
    "another encoding": ({"encoding": "utf-16"}, r"encoding must be one of utf-8, latin-1, cp1252"),
    "lines less than none": ({"skip_lines": -1}, r"skip_lines must be a whole number >= 0"),
    "another policy": ({"missing": "median"}, r"missing must be fail, drop, mean or a finite number, got 'median'"),
    "NaN for what is missing": ({"missing": math.nan}, r"missing must be fail, drop, mean or a finite number"),
    "another type": ({"target_type": "int"}, r"target_type must be float or class"),
    "two classes": ({"target": ["price", "rooms"], "target_type": "class"}, r"only a single target can be a class"),
    "one code": ({"categorical": {"city": {"hash": 1}}}, r"hash must be a whole number >= 2"),
    "a value twice": ({"categorical": {"city": ["a", "a "]}}, r"lists a value twice"),
    "yes for a word": ({"categorical": {"city": [True]}}, r"write this one in quotes"),
    "an unknown key": ({"categorical": {"city": {"vals": []}}}, r"must be a list of values"),
    "a category nobody reads": ({"inputs": ["area"], "categorical": {"city": {"hash": 9}}}, r"neither an input nor"),
}  # fmt: skip


@pytest.mark.parametrize("crime", BAD_ARGUMENTS)
def test_arguments_that_do_not_fit_the_file_are_said(tmp_path: Path, crime: str) -> None:
    arguments, message = BAD_ARGUMENTS[crime]
    with pytest.raises(UsageError, match=message) as caught:
        Csv(table(tmp_path, HOUSES), **{"target": "price", **arguments})
    assert caught.value.code in ("data/csv-columns", "config/bad-argument")


def test_a_first_line_of_numbers_is_a_hint_that_there_is_no_header(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no column 'y' \(the first line has numbers.*set header: false\)"):
        Csv(table(tmp_path, b"1,2\n3,4\n"), "y")


def test_a_file_that_changes_after_it_was_counted_is_no_longer_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_file, "RECORDS", 10_000)
    file = table(tmp_path, b"a,b\n1,2\n")
    dataset = Csv(file, "b")
    file.write_bytes(b"a,b\n1,2\n3,4\n")
    with pytest.raises(DataError, match=r"was changed after its rows were counted"):
        dataset.rows(0, 1)
    open_one = Csv(table(tmp_path, LONG), "b")
    open_one.rows(0, 1)
    os.truncate(file, 1000)
    with pytest.raises(DataError, match=r"was changed after its rows were counted"):
        open_one.rows(39_998, 39_999)


def test_without_pyarrow_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pyarrow.csv"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(HogwildError, match=r"pip install 'hogwild\[csv\]'"):
        Csv(table(tmp_path, HOUSES), "price")


# ---- the fingerprint


def test_the_fingerprint_is_that_of_content_and_arguments(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    here, there = table(tmp_path, b"a,c,b\n1,1,2\n"), table(tmp_path / "other", b"a,c,b\n1,1,2\n")
    same = Csv(here, "b").fingerprint()
    os.utime(there, ns=(0, 0))
    assert Csv(there, "b").fingerprint() == same
    others = [Csv(here, "a"), Csv(here, "b", inputs=["a"]), Csv(here, "b", missing=0.0), Csv(here, "b", missing="mean")]
    others.append(Csv(here, "b", categorical={"a": {"hash": 9}}))
    others.append(Csv(table(tmp_path, b"a,c,b\n1,1,3\n", "more.csv"), "b"))
    prints = {dataset.fingerprint() for dataset in others}
    assert len(prints) == len(others) and same not in prints


# ---- into shared memory, by a job


@pytest.mark.parametrize("fraction", [None, 0.25])
def test_a_job_reads_it_by_threads_and_the_next_one_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fraction: float | None
) -> None:
    monkeypatch.setattr(text_file, "RECORDS", 100)
    for name in ("SHORT_S", "PROBE_S"):
        monkeypatch.setattr(loading, name, 0.0)
    dataset = Csv(table(tmp_path, b"a,b\n" + b"".join(b"%d,%d\n" % (i, i + 1) for i in range(1000))), "b")
    expected = divided(dataset.rows(0, 1000), fraction, 3)
    job = job_from_mapping(
        {"version": 1, "seed": 3, "model": {"class_path": "x.Y"}, "data": {"train": {"class_path": "x.Y"}}}, "test"
    )
    monkeypatch.setattr(cache, "UNSURE_S", 0.0)  # the file may be as new as it is
    for is_cached in (False, True):
        if is_cached:  # nor is the file hashed again
            monkeypatch.setattr(text_file.TextFile, "hash_into", None)
        group = ProcessGroup(job.supervise)
        reader = loading.Loading(group, job, tmp_path / "runs", no_start_up())
        found = reader.read(dataset, "data.train", fraction=fraction, channels_last=False)
        (event,) = Said(group).events
        assert (event["samples"], event["readers"], event.get("cached", False)) == (1000, 0, is_cached)
        for mine, theirs in zip(found, expected, strict=True):
            assert mine.resident is not None
            assert all(map(torch.equal, mine.tensors, theirs.tensors))
    (data,) = tmp_path.glob("runs/.cache/*/data.bin")
    data.write_bytes(bytes(len(data.read_bytes())))  # a damaged entry: the file is read, from its first row on
    reader = loading.Loading(ProcessGroup(job.supervise), job, tmp_path / "runs", no_start_up())
    for mine, theirs in zip(
        reader.read(dataset, "data.train", fraction=fraction, channels_last=False), expected, strict=True
    ):
        assert all(map(torch.equal, mine.tensors, theirs.tensors))
