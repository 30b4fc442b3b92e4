"""A table of clicks as sparse rows: which features, what their names are, how other files are encoded by them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="tables are parsed by pyarrow: pip install 'hogwild[csv]'")

from hogwild.data import Clicks, text_file
from hogwild.errors import DataError, UsageError
from hogwild.feeds.packed import Packed
from hogwild.job.row_names import KnownNames
from tests.data.test_text import Here

TABLE = """clicked,site,price,user
1,news,1.5,ann
0,news,2.5,bob
0,shop,9,ann
1,,,cem
0,mail,3,ann
"""
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str, name: str = "clicks.csv") -> Path:
        path = tmp_path / name
        path.write_text(content)
        return path

    return write


def packed(path: Path, like: Packed | None = None, **arguments: Any) -> Packed:
    given: Any = {"target": "clicked"} | arguments
    return Clicks(path, **given).pack(Here(), "data.train", like)


def named(data: Packed) -> list[list[str]]:
    arrays, names = data.arrays(), data.names["features"]
    assert arrays["indptr"].tolist() == [row * data.spec.sizes["fields"] for row in range(data.samples + 1)]
    return [[names[k] for k in row] for row in arrays["indices"].reshape(data.samples, -1).tolist()]


def test_every_column_of_a_row_is_a_feature_with_a_name(write: Write) -> None:
    data = packed(write(TABLE), buckets={"price": [2, 3]}, hash={"user": 5})
    names = ["site", "site=news", "site=mail", "site=shop", "price", "price<2.0", "price<3.0>=2.0", "price<inf>=3.0"]
    assert data.names["features"] == names + [f"user#{each}/5" for each in range(5)]
    assert (data.spec.sizes, data.names["columns"]) == (
        {"features": 13, "fields": 3}, ("clicked", "site", "price", "user"),
    )  # fmt: skip
    rows = named(data)
    assert [row[:2] for row in rows] == [
        ["site=news", "price<2.0"], ["site=news", "price<3.0>=2.0"], ["site=shop", "price<inf>=3.0"], ["site", "price"],
        ["site=mail", "price<inf>=3.0"],
    ]  # fmt: skip
    assert rows[0][2] == rows[2][2] == rows[4][2] and all(row[2].startswith("user#") for row in rows)
    assert data.arrays()["target"].tolist() == [1, 0, 0, 1, 0] and set(data.arrays()["values"]) == {1.0}


def test_rare_and_unknown_values_share_their_columns_feature_and_notes_say_so(write: Write) -> None:
    here, path = Here(), write(TABLE)
    train = Clicks(path, "clicked", min_count=2, buckets={"price": 2}).pack(here)
    assert train.names["features"] == ["site", "site=news", "price", "price<2.5", "price<inf>=2.5", "user", "user=ann"]
    assert "7 features of 3 columns: site 1, price 2 (buckets), user 1" in here.parsed[0].notes[0]
    assert "6 values are missing or rarer than min_count 2" in here.parsed[0].notes[1]
    val = Clicks(
        write("user,clicked,price,site\nann,1,-9,press\ndan,0,77,news\n", "val.csv"), "clicked", buckets={"price": 2}
    )
    found = val.pack(here, "data.val", train)
    assert sorted(named(found)[0]) == ["price<2.5", "site", "user=ann"]
    assert sorted(named(found)[1]) == ["price<inf>=2.5", "site=news", "user"]
    assert "2 values are missing or unknown to the training data" in here.parsed[1].notes[0]


def test_buckets_hold_about_as_many_rows_each_and_few_values_one_each(write: Write) -> None:
    rng = np.random.default_rng(0)
    rows = "".join(f"{k % 2},{x},{k % 3}\n" for k, x in enumerate(rng.lognormal(size=1000)))
    data = packed(write("clicked,x,few\n" + rows), buckets={"x": 8, "few": 8})
    counts = np.bincount(data.arrays()["indices"].reshape(-1, 2)[:, 0])[1:]
    assert len(counts) == 8 and (abs(counts - 125) <= 1).all()
    assert [name for name in data.names["features"] if name.startswith("few")] == [
        "few",
        "few<1.0",
        "few<2.0>=1.0",
        "few<inf>=2.0",
    ]


def test_known_features_stay_however_rare_and_edges_as_they_were(write: Write) -> None:
    arguments: Any = {"min_count": 2, "buckets": {"price": 2}}
    old = packed(write(TABLE), **arguments)
    known = KnownNames({"features": old.names["features"]})
    grown = Clicks(write("clicked,site,price,user\n1,news,100,dan\n0,shop,200,dan\n"), "clicked", **arguments)
    grown.remember(known.names)
    new, unseen = known.extend(grown.pack(Here()))
    names = ["site", "site=news", "price", "price<2.5", "price<inf>=2.5", "user", "user=dan", "user=ann"]
    assert (new.names["features"], unseen) == (names, {"features": [1]})
    assert new.spec.sizes["features"] == len(names)
    assert named(new) == [["site=news", "price<inf>=2.5", "user=dan"], ["site", "price<inf>=2.5", "user=dan"]]


def test_kept_edges_of_earlier_data_encode_nothing_and_a_table_may_be_packed_again(write: Write) -> None:
    old = packed(write(TABLE), buckets={"price": [1, 2, 2.2, 2.4, 2.6, 2.8]})
    table = Clicks(write(TABLE), "clicked", buckets={"price": [3]})
    alone = table.pack(Here())
    new, unseen = KnownNames({"features": old.names["features"]}).extend(alone)
    assert new.names["features"][-1] == "price<inf>=2.799999952316284" and unseen == {"features": [1] * 7}
    assert named(table.pack(Here(), "data.val", new)) == named(alone)
    assert [row[1] for row in named(alone)] == ["price<3.0", "price<3.0", "price<inf>=3.0", "price", "price<inf>=3.0"]
    other = packed(write("clicked,site,price,user\n1,x,1,y\n", "other.csv"), buckets={"price": [3]})
    assert named(table.pack(Here(), "data.val", other))[0] == ["site", "price<3.0", "user"]
    assert named(table.pack(Here())) == named(alone)


def test_a_sign_of_comments_may_begin_a_value(write: Write) -> None:
    data = packed(write('name,clicked\n#1,1\n"# quoted",0\n'))
    assert data.names["features"] == ["name", "name=# quoted", "name=#1"]


def test_a_million_values_are_a_feature_each(write: Write) -> None:
    rows = "".join(f"{k % 2},{k * 7}\n" for k in range(1_000_000))
    data = packed(write("clicked,id\n" + rows))
    assert data.spec.sizes["features"] == 1_000_001
    assert len(np.unique(data.arrays()["indices"])) == 1_000_000


def test_values_of_many_pieces_are_features_as_those_of_one(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    sites = ["7", "7.0", " 7 ", "007.0", "true", "TRUE", "é", "\u2003é\xa0", "", "x", '"a, b"']
    rows = [f"{row % 2},{sites[row * row % 11]},{row % 3},{sites[row % 11]}\n" for row in range(200)]
    path = write("clicked,site,price,user\n" + "".join(rows))
    one = packed(path, hash={"user": 5})
    monkeypatch.setattr(text_file, "RECORDS", 64)
    many = packed(path, hash={"user": 5})
    assert many.names == one.names and named(many) == named(one)
    spelled = ["7" if site in ("7", "7.0", " 7 ") else site.strip(' "\u2003\xa0') for site in sites]
    spelled = ["True" if site in ("true", "TRUE") else site for site in spelled]
    assert [row[0] for row in named(many)] == [
        f"site={site}" if (site := spelled[row * row % 11]) else "site" for row in range(200)
    ]
    assert named(packed(path, many, hash={"user": 5})) == named(many)


def test_a_weight_is_no_feature_and_the_last_input_of_a_batch(write: Write) -> None:
    path = write(TABLE.replace("1,,,", "1,,0,"))
    data = packed(path, weight="price")
    assert data.has_sample_weights and data.spec.sizes["fields"] == 2
    assert data.weights().tolist() == [1.5, 2.5, 9.0, 0.0, 3.0]
    batch = data.pick(np.array([2, 0]))
    assert [tensor.tolist() for tensor in batch.inputs[2:]] == [[1.0] * 4, [9.0, 1.5]]
    assert batch.target.tolist() == [0.0, 1.0]
    assert [*data.copy_rows("part", np.array([4])).weights()] == [3.0]
    table = Clicks(path, "clicked", weight="price")
    table.number_by(data.names)
    assert len(table.inputs_of(0, 2).inputs) == 3 and table.rows(0, 2)[3].tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("content", "arguments", "says"),
    [
        (TABLE + "# 1,news,1.5,ann\n", {}, "line 7: begins as a comment: '# 1,news,1.5,ann'; remove it, or"),
        (TABLE.replace("1,news,1.5,ann", "# a,b,1,ann"), {"target": "price"}, "line 2: begins as a comment"),
        (TABLE, {"buckets": {"site": 3}}, "line 2: column 'site': 'news' must be a number"),
        (TABLE.replace("0,shop", ",shop"), {}, "line 4: column 'clicked': the value is missing"),
        (TABLE.replace("site", "si=te"), {}, "column 'si=te': the name of an input must not contain"),
        (TABLE, {"buckets": {"price": 1}}, "buckets of column 'price' must be"),
        (TABLE, {"buckets": {"price": [3, 2]}}, "buckets of column 'price' must be"),
        (TABLE, {"hash": {"user": 1}}, "hash of column 'user' must be"),
        (TABLE, {"hash": {"clicked": 8}}, "column 'clicked' is not an input"),
        (TABLE, {"hash": {"price": 8}, "buckets": {"price": 8}}, "column 'price' has both"),
        (TABLE, {"hash": {"usr": 8}}, "did you mean 'user'"),
        (TABLE, {"min_count": 0}, "min_count must be"),
        (TABLE, {"weight": "pricee"}, "weight: there is no column 'pricee'; did you mean 'price'"),
        (TABLE, {"weight": "price"}, "line 5: column 'price': '' must be a number from 0 on: the weight of a row"),
        (TABLE.replace("1,,,", "1,,-2,"), {"weight": "price"}, "line 5: column 'price': '-2' must be a number"),
        (TABLE, {"weight": "clicked"}, "column 'clicked' is the weight, and also an input or the target"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(write: Write, content: str, arguments: Any, says: str) -> None:
    with pytest.raises((DataError, UsageError), match=says):
        packed(write(content), **arguments)


@pytest.mark.parametrize(
    ("order", "target"),
    [((3, 2, 1, 0), "clicked"), ((1, 0, 3, 2), "clicked"), ((2, 3, 0, 1), "clicked"), ((1, 0, 3, 2), 0)],
)
def test_a_table_with_its_columns_in_another_order_has_the_same_rows(
    write: Write, order: tuple[int, ...], target: Any
) -> None:
    arguments: Any = {"target": target, "hash": {"user": 5}, "buckets": {"price": [2, 3]}}
    train = packed(write(TABLE), **arguments)
    moved = "\n".join(",".join(line.split(",")[place] for place in order) for line in TABLE.splitlines())
    # What the features are is in the training data; the arguments of this file do not count.
    val = packed(write(moved, "val.csv"), train, target=target, hash={"user": 7}, buckets={"price": 4})
    assert all(np.array_equal(val.arrays()[key], array) for key, array in train.arrays().items())
    assert val.names["fields"] == train.names["fields"] == ["site", "price", "user"]
    with pytest.raises(UsageError, match="column 'site' of the training data is missing, it has 'page', which"):
        packed(write(TABLE.replace("site", "page"), "odd.csv"), train)


def test_a_bucket_of_another_size_or_of_other_edges_is_another_feature(write: Write) -> None:
    old = packed(write(TABLE), hash={"user": 4000}, buckets={"price": [2, 3]})
    new = packed(write(TABLE), hash={"user": 5000}, buckets={"price": [2, 4]})
    both = {*old.names["features"]} & {*new.names["features"]}
    assert both == {"site", "site=news", "site=mail", "site=shop", "price", "price<2.0"}
    table = Clicks(write(TABLE), "clicked", hash={"price": 3})
    known = KnownNames({"features": old.names["features"]})
    table.remember(known.names)  # a column that was in buckets, and is a category now
    grown = known.extend(table.pack(Here()))[0]
    assert named(packed(write(TABLE), grown)) == named(packed(write(TABLE), hash={"price": 3}))
