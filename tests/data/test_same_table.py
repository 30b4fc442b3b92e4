"""One table is the same data in every form: text, zipped, with tabs, as Parquet and in memory."""

import datetime
import decimal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")
pytest.importorskip("pandas", reason="pandas writes the tables")

import pandas
import pyarrow
import torch

from hogwild.config.load import job_from_mapping
from hogwild.data import Clicks, Csv
from hogwild.errors import DataError
from hogwild.feeds.row_reader import InTurn
from hogwild.job.data import sources_of
from hogwild.job.parts import Functions
from hogwild.planning.device_placement import planned
from tests.data.test_text import Here

FIRST, DAY, ZONE = datetime.datetime(2024, 1, 1), datetime.datetime(2024, 3, 30, 22, 30), "Europe/Rome"
WORDS = st.text(alphabet="ab ,\";'é\t#1", max_size=4)
VALUES: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "whole numbers": (st.integers(-(2**31), 2**31), "int64"),
    "whole numbers with gaps": (st.none() | st.integers(0, 5), "Int64"),
    "long numbers": (st.integers(-(2**63), 2**63 - 1), "int64"),
    "small numbers": (st.integers(0, 9), "uint8"),
    "numbers": (st.none() | st.floats(-1e6, 1e6, width=32), "float64"),
    "short numbers": (st.floats(-1e9, 1e9, width=32), "float32"),
    "yes and no": (st.booleans(), "bool"),
    "yes and no with gaps": (st.none() | st.booleans(), "boolean"),
    "words": (WORDS.filter(lambda word: word.strip() and not word.startswith(("##", "# ", "#\t"))), "str"),  # comments
    "categories": (st.none() | st.sampled_from(["red", "blue, dark", 'the "best"']), "category"),
    "categories of numbers": (st.sampled_from([7, 70, 700]), "category"),
    "dates": (st.none() | st.dates(datetime.date(1900, 1, 1)), object),
    "prices": (st.none() | st.decimals(-99, 99, places=2), object),
    "days": (st.integers(0, 99).map(lambda k: FIRST + k * datetime.timedelta(1)), "datetime64[us]"),
    "hours": (st.integers(0, 99).map(lambda k: DAY + k * datetime.timedelta(minutes=30)), "datetime64[ns]"),
    "moments": (st.integers(1, 9**6).map(lambda k: DAY + datetime.timedelta(microseconds=k)), "datetime64[us]"),
    "moments with a zone": (
        st.integers(0, 99).map(lambda k: DAY + k * datetime.timedelta(minutes=30)), f"datetime64[ns, {ZONE}]"),
    "times of the day": (st.none() | st.times(), object),
}  # fmt: skip
NUMBERS = ["whole numbers", "long numbers", "small numbers", "numbers", "short numbers", "yes and no",
           "yes and no with gaps", "whole numbers with gaps", "prices"]  # fmt: skip


@st.composite
def tables(draw: st.DrawFn, kinds: list[str]) -> Any:
    rows = draw(st.integers(1, 12))
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5, unique=True))
    columns = {"y": pandas.Series(draw(st.lists(st.integers(0, 1), min_size=rows, max_size=rows)), dtype="int64")}
    for name in chosen:
        values, kind = VALUES[name]
        given = draw(st.lists(values, min_size=rows, max_size=rows))
        if "[ns, " in str(kind):
            columns[name] = pandas.Series(given, dtype="datetime64[ns]").dt.tz_localize("UTC").dt.tz_convert(ZONE)
        else:
            columns[name] = pandas.Series(given, dtype=kind)
    return pandas.DataFrame(columns)[draw(st.permutations([*columns]))]


def forms(folder: Path, table: Any) -> Iterator[tuple[Any, dict[str, str]]]:
    """The table in all forms, with the arguments that tell how to read each."""
    for name, sign in (("t.csv", ","), ("t.csv.gz", ","), ("t.tsv", "\t")):
        table.to_csv(folder / name, index=False, sep=sign)
        yield folder / name, {"delimiter": sign}
    table.to_parquet(folder / "t.parquet", index=False)
    yield folder / "t.parquet", {}
    yield table, {}


def packed(source: Any, **arguments: Any) -> tuple[Any, ...]:
    data = Clicks(source, "y", **arguments).pack(Here())
    return data.names["features"], data.names["columns"], *(array.tolist() for array in data.arrays().values())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=tables([*VALUES]))
def test_one_table_has_the_same_features_in_every_form(tmp_path: Path, table: Any) -> None:
    first, *others = [packed(source, **arguments) for source, arguments in forms(tmp_path, table)]
    for other in others:
        assert other == first


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=tables(NUMBERS))
def test_one_table_has_the_same_numbers_in_every_form(tmp_path: Path, table: Any) -> None:
    wanted: dict[str, Any] = {"target": "y", "missing": -1.5}
    tensors = [Csv(source, **arguments, **wanted).rows(0, len(table)) for source, arguments in forms(tmp_path, table)]
    for fields in tensors[1:]:
        assert [field.tolist() for field in fields] == [field.tolist() for field in tensors[0]]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pandas.Series([True, None, False], dtype="boolean"), ["True", "", "False"]),
        (pandas.Series([7, None, 10], dtype="Int64"), ["7", "", "10"]),
        (pandas.Series([7, None, 10], dtype="float64"), ["7", "", "10"]),
        (pandas.Series([0.1, 2, 3], dtype="float32"), ["0.1", "2", "3"]),
        (pandas.Series([datetime.date(2024, 1, 5), None, datetime.date(2024, 2, 5)]), ["2024-01-05", "", "2024-02-05"]),
        (pandas.Series([decimal.Decimal("1.50"), None, decimal.Decimal("0.00")]), ["1.50", "", "0"]),
        (pandas.Series(["a", None, " b "], dtype="category"), ["a", "", "b"]),
        (pandas.Series(pandas.to_datetime(["2024-01-05", None, "2024-01-06"])), ["2024-01-05", "", "2024-01-06"]),
        (pandas.Series(pandas.to_datetime(["2024-01-05", "2024-01-05 10:00:00.5", None], format="ISO8601")),
            ["2024-01-05 00:00:00.000", "2024-01-05 10:00:00.500", ""]),
        (pandas.Series(pandas.to_datetime(["2024-03-31 00", None, "2024-03-31 02"], utc=True)).dt.tz_convert(ZONE),
            ["2024-03-31 01:00:00+01:00", "", "2024-03-31 04:00:00+02:00"]),
        (pandas.Series([b"x", None, b"yz"]), ["x", "", "yz"]),
        (pandas.Series([b"xy", None, b"yz"], dtype=pandas.ArrowDtype(pyarrow.binary(2))), ["xy", "", "yz"]),
    ],
)  # fmt: skip
def test_words_are_spelled_as_their_types_say(values: Any, words: list[str], tmp_path: Path) -> None:
    pandas.DataFrame({"c": values, "y": [1, 0, 1]}).to_parquet(tmp_path / "t.parquet")
    data = Clicks(tmp_path / "t.parquet", "y").pack(Here())
    names = data.names["features"]
    found = [names[feature].partition("=")[2] for feature in data.arrays()["indices"].tolist()]
    assert found == words


ONE_CATEGORY = [
    pandas.Series([7, 70, 7]), pandas.Series([7.0, 70.0, 7.0]), pandas.Series(["7", "70.0", " 7 "]),
    pandas.Series([7, 70, 7], dtype="category"), pandas.Series([decimal.Decimal("7.00"), decimal.Decimal(70), 7]),
]  # fmt: skip
ONE_BOOL = [
    pandas.Series([True, False, True]), pandas.Series(["true", "FALSE", "True"]),
    pandas.Series([True, False, True], dtype="boolean"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "names"), [(ONE_CATEGORY, ["7", "70", "7"]), (ONE_BOOL, ["True", "False", "True"])]
)
@pytest.mark.parametrize("hashed", [0, 1000])
def test_a_category_is_one_whatever_type_its_column_has(
    columns: list[Any], names: list[str], hashed: int, tmp_path: Path
) -> None:
    """A whole number gets a fraction in pandas once another value is missing; programs write bool in three ways."""
    arguments: Any = {"hash": {"c": hashed}} if hashed else {}
    train = Clicks(pandas.DataFrame({"c": columns[0], "y": [1, 0, 1]}), "y", **arguments).pack(Here())
    wanted = train.arrays()["indices"].tolist()
    assert hashed or [train.names["features"][row] for row in wanted] == [f"c={name}" for name in names]
    listed = [*dict.fromkeys(names)]
    for column in columns:
        table = pandas.DataFrame({"c": column, "y": [1, 0, 1]})
        for source, more in forms(tmp_path, table):
            other = Clicks(source, "y", **arguments, **more)
            other.number_by(train.names)
            assert other.rows(0, 3)[0].tolist() == wanted
            codes = Csv(source, "y", categorical={"c": {"hash": hashed} if hashed else listed}, **more).rows(0, 3)[0]
            assert codes[0] == codes[2] != codes[1] and (hashed or codes[:, 0].tolist() == [0, 1, 0])


def test_features_of_an_earlier_spelling_are_still_known() -> None:
    table = Clicks(pandas.DataFrame({"c": [7.0, 8.0], "y": [1, 0]}), "y")
    table.number_by({"features": ["c", "c=7.0"], "columns": ["c", "y"], "target": ["y"]})
    assert table.rows(0, 2)[0].tolist() == [1, 0]


def test_a_sign_of_comments_may_be_a_value_before_a_tab(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("c\ty\n#\t1\n#\t0\n")
    assert packed(tmp_path / "t.tsv", delimiter="\t")[0] == ["c", "c=#"]


def test_white_space_around_a_columns_name_is_no_part_of_it(tmp_path: Path) -> None:
    table = pandas.DataFrame({" a ": [1.5, 2], "a.b": [3.0, 4], "c ": ["x", "y"], "y ": [0, 1]})
    for source, more in forms(tmp_path, table):
        read = Csv(source, "y", categorical={"c": ["x", "y"]}, **more)
        assert read.columns == ("a", "a.b", "c", "y") and read.inputs == ("a", "a.b")
        assert [field.tolist() for field in read.rows(0, 2)] == [[[1.5, 3], [2, 4]], [[0], [1]], [[0], [1]]]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pandas.Series(pandas.to_timedelta([1, 2], unit="h")), "column 'c' is duration.*; exclude it with leave_out"),
        (pandas.Series([1j, 2]), "cannot be read as a table: Conversion failed for column c with type complex128"),
    ],
)
def test_a_column_whose_texts_would_differ_from_form_to_form_is_refused(values: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Clicks(pandas.DataFrame({"c": values, "y": [0, 1]}), "y").pack(Here())


@pytest.mark.parametrize("as_form", [lambda table, file: table, lambda table, file: table.to_parquet(file) or file])
def test_what_is_wrong_in_a_table_is_said_with_its_row(tmp_path: Path, as_form: Callable[..., Any]) -> None:
    table = pandas.DataFrame({"a": [1.0, np.inf, 2], "b": ["x", "y", "z"], "c": [[1], [2], [3]], "y": [0, -1, None]})
    source = as_form(table, tmp_path / "t.parquet")
    for arguments, words in (
        ({"target": "a", "inputs": ["y"], "missing": 0}, "row 2: column 'a': 'inf' must be finite"),
        ({"target": "a", "inputs": ["b"]}, "row 1: column 'b': 'x' must be a number; list a text column"),
        (
            {"target": "y", "inputs": ["b"], "categorical": {"b": {"hash": 9}}, "missing": 0},
            "row 3: column 'y': the value is missing; a target",
        ),
        ({"target": "y", "inputs": ["a"], "target_type": "class"}, "row 2: column 'a': 'inf' must be finite"),
        ({"target": "y", "inputs": ["c"]}, "column 'c' is list.*neither numbers nor words; exclude it with leave_out"),
    ):
        with pytest.raises(DataError, match=words):
            Csv(source, **arguments).rows(0, 3)


def test_columns_of_several_types_in_memory_are_named() -> None:
    with pytest.raises(DataError, match=r"Csv\(path='DataFrame'\): cannot be read as a table: .*column x"):
        Csv(pandas.DataFrame({"x": [1, "a"], "y": [0, 1]}), "y")


# ---- columns that are no inputs


def people(rows: int = 12) -> Any:
    rng = np.random.default_rng(1)
    return pandas.DataFrame(
        {"age": rng.integers(20, 25, rows), "height": rng.normal(1.7, 0.1, rows), "y": rng.normal(size=rows)}
    )


def test_an_index_that_pandas_has_written_is_no_input(tmp_path: Path) -> None:
    table = people()
    shuffled = table.sample(frac=1, random_state=1)  # its row numbers are a column of the Parquet file
    shuffled.to_parquet(tmp_path / "t.parquet")
    table.to_csv(tmp_path / "t.csv")
    pandas.read_csv(tmp_path / "t.csv").to_csv(tmp_path / "again.csv")
    for source, names in (
        (tmp_path / "t.parquet", ["'__index_level_0__'"]),
        (shuffled, ["'__index_level_0__'"]),
        (tmp_path / "t.csv", ["0, without a name,"]),
        (tmp_path / "again.csv", ["0, without a name,", "'Unnamed: 0'"]),
    ):
        read = Csv(source, "y")
        assert read.inputs == ("age", "height")
        assert read.notes == [f"column {name} is an index that was written with the table: no input" for name in names]
        here = Here()
        names_of_features = Clicks(source, "y", buckets={"height": 2}).pack(here).names["features"]
        assert {name.partition("=")[0].partition("<")[0] for name in names_of_features} == {"age", "height"}
        assert "is an index" in here.parsed[0].notes[0]
    chosen = Csv(tmp_path / "again.csv", "y", inputs=["Unnamed: 0", "age"])
    assert chosen.inputs == ("Unnamed: 0", "age") and not [note for note in chosen.notes if "is an index" in note]
    new = Csv(table, **Csv.for_inputs({"target": "y"}, Csv(tmp_path / "again.csv", "y").columns))
    assert new.inputs == ("age", "height")


def test_a_column_that_tells_rows_apart_is_said(tmp_path: Path) -> None:
    table = people().assign(id=range(100, 112), name=[f"p{k}" for k in range(12)])
    arguments: Any = {"target": "y", "categorical": {"name": {"hash": 50}}}
    for source, more in forms(tmp_path, table):
        first, second = Csv(source, **arguments, **more).notes
        assert first == (
            "column 'id' identifies rows, its 12 values are all different: it says nothing about other rows "
            "(leave_out: [id])"
        )
        assert second.startswith("column 'name' identifies rows")
    assert Csv(table.assign(y=range(12)), "y", leave_out=["name"]).notes == [], "a whole number may measure another"
    assert Csv(table.assign(y=[0, 1] * 6), "y", leave_out=["name"]).notes[0].startswith("column 'id' identifies rows")
    assert Csv(people(), "y").notes == []
    of_a_class = Csv(table.assign(y=[0, 1, 2] * 4), "y", leave_out=["name"], target_type="class").notes
    assert of_a_class[0].startswith("column 'id' identifies rows")


def test_notes_on_columns_are_told_before_the_start(tmp_path: Path) -> None:
    people().assign(id=range(12)).to_csv(tmp_path / "t.csv")
    job = job_from_mapping(
        {"version": 1, "model": {"class_path": "x.Y"}, "data": {"train": {"class_path": "x.Y"}}}, "test"
    )
    _, _, notes = sources_of(
        planned(job),
        torch.nn.Linear(3, 1),
        torch.nn.MSELoss(),
        Csv(tmp_path / "t.csv", "y"),
        None,
        Functions(),
        InTurn(0),
        None,
    )
    said = [note for note in notes if note.startswith("data.train: column")]
    assert [note.partition(" is ")[0].partition(" identifies ")[0] for note in said] == [
        "data.train: column 0, without a name,", "data.train: column 'id'",
    ]  # fmt: skip
