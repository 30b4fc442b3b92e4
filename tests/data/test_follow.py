"""Rows of a followed file: as from the readers of whole files, from any place on, whatever the lines hold; and the
names behind their keys."""

import csv
import io
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")

from hogwild.data import Csv, Follow, LibSvm, followed_file, key_of, sparse_rows
from hogwild.data import follow as module
from hogwild.data.text_keys import NAMES, NameFile, names_of
from hogwild.errors import DataError, NotFoundError, UsageError
from hogwild.feeds.waiting import set_pause
from tests.data.test_text import Here

ROWS: list[dict[str, Any]] = [
    {"user": "ann", "item": 7, "price": 1.5, "site": "news", "clicked": 1},
    {"user": 'b, "o"b', "item": 8, "price": None, "site": "shop", "clicked": 0},
    {"user": "ünal", "item": 7, "price": -2e3, "site": None, "clicked": 1},
    {"user": "42", "item": 10**18, "price": 3, "site": "news", "clicked": 0},
]
NAMED = {"target": "clicked", "inputs": ["price"], "ids": ["user", "item"], "features": ["site", "item"]}


def csv_of(rows: list[dict[str, Any]] = ROWS) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, [*rows[0]], lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def jsonl_of(rows: list[dict[str, Any]] = ROWS) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def file_of(folder: Path, content: str | bytes, name: str = "clicks") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path, **arguments: Any) -> list[tuple[Any, ...]]:
    return [*Follow(path, **{"until": "end", "missing": 0.0, **NAMED, **arguments})]


def plain(records: Any) -> list[Any]:
    return [tuple(np.asarray(field).tolist() for field in record) for record in records]


@pytest.fixture
def jobs_pause() -> Iterator[Callable[..., None]]:
    yield set_pause
    set_pause(None)


@pytest.mark.parametrize(
    "text", [csv_of(), jsonl_of(), csv_of().replace("\n", "\r\n"), "\ufeff" + csv_of(), csv_of()[:-1]]
)
def test_a_record_has_inputs_then_ids_then_features_then_the_target(text: str, tmp_path: Path) -> None:
    wanted = [
        ([row["price"] or 0.0], key_of(row["user"]), row["item"],
         [key_of(f"site={row['site']}" if row["site"] else "site"), key_of(f"item={row['item']}")], row["clicked"])
        for row in ROWS
    ]  # fmt: skip
    assert plain(read(file_of(tmp_path, text))) == wanted


@pytest.mark.parametrize("write", [csv_of, jsonl_of])
@pytest.mark.parametrize(
    "arguments",
    [
        {"target": "clicked", "inputs": ["price"]},
        {"target": "clicked", "inputs": ["price", "site"], "categorical": {"site": {"hash": 5}}},
        {"target": "site", "inputs": ["price"], "categorical": {"site": {"values": ["shop"], "other": True}}},
        {"target": "clicked", "inputs": ["price"], "target_type": "class", "weight": "item"},
        {"target": ["clicked", "item"], "inputs": ["price"]},
    ],
)
@pytest.mark.parametrize("missing", ["drop", 2.5])
def test_without_names_a_record_is_that_of_csv(write: Any, arguments: Any, missing: Any, tmp_path: Path) -> None:
    rows = [row | {"price": row["price"] if missing == "drop" else 1.0, "site": row["site"] or "shop"} for row in ROWS]
    table = Csv(file_of(tmp_path, csv_of(rows), "table"), missing=missing, **arguments)
    found = Follow(file_of(tmp_path, write(rows)), until="end", missing=missing, **arguments)
    assert plain(found) == plain(zip(*table.rows(0, len(table)), strict=True))


def test_a_libsvm_file_gives_the_rows_of_libsvm(tmp_path: Path) -> None:
    path = file_of(tmp_path, "1 3:1.5 9:2 # a comment\n# another\n0 1:1\n\n1\n-1 3:1e2")
    packed = LibSvm(path, one_based=False).pack(Here()).arrays()
    indices, offsets, values, target = sparse_rows([*Follow(path, until="end")])
    rows = [
        {*zip(indices[a:b], values[a:b], strict=True)}
        for a, b in zip(offsets, [*offsets[1:], len(indices)], strict=True)
    ]
    begins = packed["indptr"]
    assert rows == [
        {*zip(packed["indices"][a:b], packed["values"][a:b], strict=True)} for a, b in itertools.pairwise(begins)
    ]
    assert target.tolist() == packed["target"].tolist()


@pytest.mark.parametrize("text", [csv_of(ROWS * 5), jsonl_of(ROWS * 5), "1 2:3\n\n# no\n0 1:1\n1 5:1\n"])
@pytest.mark.parametrize("block", [1, 70, 1 << 18])
def test_reading_goes_on_behind_any_record(
    text: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed_file, "BLOCK", block)
    path = file_of(tmp_path, text)
    given: Any = {"target": None} if text.startswith("1 2") else {**NAMED, "missing": "drop"}
    data, states = Follow(path, until="end", **given), []
    reader = iter(data)
    states.append(reader.state_dict())
    for _ in (whole := plain(reader_with(reader, states))):
        pass
    for number, state in enumerate(states):
        again = iter(Follow(path, until="end", **given))
        again.load_state_dict(state)
        assert plain(again) == whole[number:]


def reader_with(reader: Any, states: list[Any]) -> Iterator[Any]:
    for record in reader:
        states.append(reader.state_dict())
        yield record


@pytest.mark.parametrize("text", [csv_of(ROWS * 5), jsonl_of(ROWS * 5), csv_of([*ROWS, *ROWS]) + "1,2\n"])
@pytest.mark.parametrize("block", [70, 1 << 18])
@given(counts=st.lists(st.integers(0, 7), max_size=8))
def test_many_rows_at_once_are_those_that_come_one_by_one(text: str, block: int, counts: list[int]) -> None:
    """In any mixture, from any place on."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(followed_file, "BLOCK", block)
        path = file_of(Path(folder), text)
        data = Follow(path, until="end", on_bad_line="skip", missing=0.0, **NAMED)
        one_by_one, mixed = iter(data), iter(data)
        for count in counts:
            try:
                found: Any = mixed.next_columns(count) if count else None
                records = [next(mixed)] if found is None else found.records()
            except StopIteration:
                assert next(one_by_one, None) is None
                break
            assert 1 <= len(records) <= max(1, count)
            assert plain(records) == plain(itertools.islice(one_by_one, len(records)))
            assert mixed.state_dict() == one_by_one.state_dict()
            again = iter(data)
            again.load_state_dict(mixed.state_dict())
            mixed = again


def test_it_waits_for_lines_and_follows_a_rotation(tmp_path: Path, jobs_pause: Callable[..., None]) -> None:
    path, text = tmp_path / "clicks", csv_of()
    head, *lines = text.splitlines(keepends=True)
    pauses = list[float]()

    def appear() -> Iterator[None]:
        yield
        path.write_text("\n" + head)
        yield
        for line in lines[:2]:
            with open(path, "a") as file:
                file.write(line[:3])
            yield
            with open(path, "a") as file:
                file.write(line[3:])
            yield
        path.rename(tmp_path / "clicks.1")
        columns = [line.split(",") for line in (head, lines[3])]  # others, and another order of them, by name
        path.write_text("".join(",".join(["new", *reversed([c.strip() for c in each])]) + "\n" for each in columns))
        yield

    steps = appear()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        next(steps)

    jobs_pause(pause)
    reader = iter(Follow(path, missing=0.0, **NAMED))
    assert plain(next(reader) for _ in range(3)) == plain(
        [*read(file_of(tmp_path, text, "whole"))][k] for k in (0, 1, 3)
    )
    assert max(pauses) <= module.LONGEST_S


BAD = {  # what stands in line 3: (CSV, words), or (JSONL, words)
    "ragged": ("1,2", "has 2 values, 5 were expected"),
    "word": ("ann,1,dear,news,1", "column 'price': 'dear' must be a number"),
    "no target": ("ann,1,1,news,", "the target or an id is missing"),
    "no id": (",1,1,news,1", "the target or an id is missing"),
    "quote": ('"ann,1,1,news,1', "cannot be taken apart"),
    "header": ("user,item,price,site,clicked", "is the header again"),
    "zero": ("ann,1,1,ne\0ws,1", "zero byte"),
    "not UTF-8": ("\udcffann,1,1,news,1", "is not utf-8 text"),
    "infinite": ("ann,1,inf,news,1", "must be finite"),
    "not JSON": ('{"user": "ann",', "is not JSON"),
    "a list": ("[1, 2]", "is not a JSON object"),
    "nested": ('{"user": ["ann"], "item": 1, "price": 1, "clicked": 1}', "column 'user': is a list"),
    "surrogate": ('{"user": "\\ud800", "item": 1, "price": 1, "clicked": 1}', "column 'user': is no text"),
    "JSON without target": ('{"user": "ann", "item": 1}', "the target or an id is missing"),
    "JSON word": (
        '{"user": "ann", "item": 1, "price": "dear", "clicked": 1}',
        "column 'price': 'dear' must be a number",
    ),
    "large": ('{"user": "ann", "item": 1, "price": 1e999, "clicked": 1}', "must be finite"),
    "JSON not UTF-8": ('{"user": "\udcff"}', "is not utf-8 text"),
    "value": ("1 2:x", "must be a number"),
    "twice": ("1 2:3 2:4", "a feature occurs twice"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_an_error_with_its_number_or_left_out(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    line, words = BAD[name]
    given: Any = {}
    good = jsonl_of(ROWS[:1]) if line.startswith(("{", "[")) else csv_of(ROWS[:1])
    if name in ("value", "twice"):
        good, given = "1 2:3\n", {"target": None, "inputs": (), "ids": (), "features": ()}
    lines = good.splitlines(keepends=True)
    lines = [*lines[:1], *(lines[:1] if len(lines) == 1 else lines[1:]), line + "\n", "\n", lines[-1]]
    path = file_of(tmp_path, "".join(lines).encode("utf-8", "surrogateescape"))
    with pytest.raises(DataError) as error:
        read(path, **given)
    assert words in str(error.value) and f"{path}: line 3: " in str(error.value)
    found = plain(read(path, on_bad_line="skip", **given))
    assert len(found) == len(lines) - 2 - (len(lines[0]) < 31 and name not in ("value", "twice"))
    assert {*map(str, found)} == {str(found[0])}
    assert words in caplog.text and "1 so far" in caplog.text


def test_a_row_without_a_value_is_filled_dropped_or_refused(tmp_path: Path) -> None:
    path = file_of(tmp_path, csv_of())
    with pytest.raises(DataError, match="line 3: column 'price': the value is missing"):
        read(path, missing="fail")
    assert len(read(path, missing="drop")) == len(ROWS) - 1


def test_a_header_that_lacks_a_column_is_refused_with_the_columns_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no column 'clicked'"):
        read(file_of(tmp_path, "user,item,price,site,click\nann,1,1,news,1\n"))


@pytest.mark.parametrize("write", [csv_of, jsonl_of])
def test_a_file_to_predict_needs_neither_target_nor_weights(
    write: Callable[[list[dict[str, Any]]], str], tmp_path: Path
) -> None:
    given = {**NAMED, "missing": 0.0, "weight": "item", "target_type": "class"}
    inputs = [{name: value for name, value in row.items() if name != "clicked"} for row in ROWS]
    found = plain(Follow(file_of(tmp_path, write(inputs)), **Follow.for_inputs(given, None)))
    whole = plain(read(file_of(tmp_path, csv_of())))
    assert [record[:-1] for record in found] == [record[:-1] for record in whole]


@pytest.mark.parametrize("write", [csv_of, jsonl_of])
def test_a_line_that_is_an_event_has_the_target_one(
    write: Callable[[list[dict[str, Any]]], str], tmp_path: Path
) -> None:
    events = {"target": [], "ids": ["user", "item"], "inputs": [], "features": []}
    file = file_of(tmp_path, write([{"user": "ann", "item": 7}, {"user": "bob", "item": 8}]))
    assert plain(read(file, **events)) == [(key_of("ann"), 7, 1.0), (key_of("bob"), 8, 1.0)]
    assert plain(Follow(file, **Follow.for_inputs(events, None)))[0] == (key_of("ann"), 7, 0.0)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "empty target": ({"target": [], "inputs": ["x"]}, "target names no column"),
    "empty target of a file with an end": ({"target": (), "inputs": ["x"], "until": "end"}, "target names no column"),
    "no input": ({"target": "y"}, "name the columns to predict from"),
    "no target": ({"inputs": ["x"]}, "no target"),
    "text as list": ({"target": "y", "inputs": "x"}, "must be a list"),
    "hash of nothing": ({"target": "y", "inputs": ["x"], "hash": 10}, "hash must be"),
    "until": ({"target": "y", "inputs": ["x"], "until": "now"}, "until must be one of"),
    "missing": ({"target": "y", "inputs": ["x"], "missing": "mean"}, "missing must be"),
    "delimiter": ({"target": "y", "inputs": ["x"], "delimiter": "::"}, "delimiter must be"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_told(name: str, tmp_path: Path) -> None:
    given, words = WRONG[name]
    with pytest.raises(UsageError, match=words):
        Follow(file_of(tmp_path, "x,y\n1,2\n"), **given)


def test_a_file_that_is_not_there_is_waited_for_unless_it_should_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(NotFoundError):
        Follow(tmp_path / "none", until="end")
    with pytest.raises(NotFoundError, match="nor its folder"):
        Follow(tmp_path / "no folder" / "none")
    Follow(tmp_path / "none")
    assert "is not there yet" in caplog.text


# ---- names and keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (7, 7), ("7", 7), (" 7 ", 7), (7.0, 7), ("7.0", 7), (2**63 - 1, 2**63 - 1), (0, 0),
        ("007", -5272167197256221119), (-7, -7251330064161976090), (2**63, -738759672502709447),
        ("ünal", -4412848567502273896), (" ünal\t", -4412848567502273896), (True, key_of("true")),
    ],
)  # fmt: skip
def test_a_key_is_the_same_for_ever(name: Any, key: int) -> None:
    assert key_of(name) == key


@given(st.text())
def test_a_text_has_a_negative_key_that_stands_for_nothing_else(text: str) -> None:
    key = key_of("x" + text)
    assert -(2**63) < key < -1


def test_names_are_kept_once_also_after_a_kill_in_the_middle_of_a_line(tmp_path: Path) -> None:
    def look(*names: str) -> None:
        kept = NameFile(tmp_path / NAMES)
        for name in names:
            kept.note(key_of(name), name)
            kept.note(key_of(name), name)
        kept.flush()

    look("ann", "bob")
    with open(tmp_path / NAMES, "a") as file:
        file.write('[-12, "ca')
    assert [*names_of(tmp_path).values()] == ["ann", "bob"]
    look("bob", 'c"\nü')
    look()
    assert names_of(tmp_path) == {key_of(name): name for name in ("ann", "bob", 'c"\nü')}
    assert len((tmp_path / NAMES).read_text().splitlines()) == 3


def test_two_names_of_one_key_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = NameFile(tmp_path / NAMES)
    kept.note(-5, "ann")
    kept.flush()
    again = NameFile(tmp_path / NAMES)
    again.note(-5, "bob")
    again.flush()
    assert "'bob' shares its key -5" in caplog.text


def test_the_names_of_a_row_are_there_before_the_row(tmp_path: Path) -> None:
    data = Follow(file_of(tmp_path, csv_of()), until="end", missing=0.0, **NAMED)
    data.run_dir_of_job = str(tmp_path)
    for record in data:
        names = names_of(tmp_path)
        assert all(key >= 0 or key in names for key in (record[1], record[2], *record[3]))
    assert {"ann", "ünal", "site=news", "site", "item=7"} < {*names.values()} and "42" not in names.values()
