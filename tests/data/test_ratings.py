"""Ratings as packed tables: MovieLens' own formats, a user's own table, words as ids, Jester; what is divided, what is
left out, and what is said of lines that cannot be used."""

import csv
import gzip
import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hogwild.data import Jester, Ratings, Triples, text_file
from hogwild.data.ratings import read_features
from hogwild.errors import DataError, UsageError
from hogwild.feeds.packed import Packed
from hogwild.feeds.row_reader import InTurn
from hogwild.job.data import match_names
from hogwild.kernels.pair_order import pairs_of, places_in_order
from tests.data.test_triples import written

Row = tuple[Any, Any, float]
CSV = "userId,movieId,rating,timestamp\n"


def packed(path: Path, text: str | bytes, like: Packed | None = None, **options: Any) -> Packed:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return Ratings(path, **options).pack(InTurn(0), "data.train", like)


def rows(data: Packed) -> list[Row]:
    """(user, item, rating) as the user wrote them."""
    arrays, users, items = data.arrays(), data.names["users"], data.names["items"]
    assert [*arrays] == ["user", "item", "rating"]
    return [(users[u], items[i], float(r)) for u, i, r in zip(*arrays.values(), strict=True)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ratings"


@pytest.mark.parametrize(
    "text",
    [
        "7\t20\t3\t881250949\n196\t242\t4\t881250949\n7\t3\t1.5\t1\n",
        "7::20::3::978300760\n196::242::4::978302109\n7::3::1.5::978301968\n",
        f"{CSV}7,20,3.0,1147880044\n196,242,4,1\n7,3,1.5,1\n",
        "\ufeffuser_id,item_id,when,stars\r\n7,20,x,3\r\n\r\n196,242,,4\r\n7,3,y,1.5\r\n",
        '"item","rating","user"\n"20","3","7"\n242,"4",196\n"3",1.5,"7"',
        "7 20 3\n196 242 4.0\n7 3 15e-1",
    ],
)
def test_every_format_is_the_same_table_by_user_then_item(file: Path, text: str) -> None:
    data = packed(file, gzip.compress(text.encode()))
    assert rows(data) == [(7, 3, 1.5), (7, 20, 3.0), (196, 242, 4.0)]
    assert data.spec.sizes == {"users": 2, "items": 3} and data.arrays()["user"].dtype == np.int32


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("Person 0,Song 3\n", ("Person 0", "Song 3")),
        ("Person Nr 0\tSong, Title 3\nPerson Nr 1\tSong, Title 2\n", ("Person Nr 0", "Song, Title 3")),
        ("0 Person,3 Song\n", ("0 Person", "3 Song")),
        ('"Person, 0","Song, 3"\n', ("Person, 0", "Song, 3")),
        ("Big, Bad::x y::3\nb, c::y z::4\n", ("Big, Bad", "x y")),
        ("1 2\n3 4\n", (1, 2)),
    ],
)
def test_a_delimiter_is_what_is_seldom_part_of_a_name(text: str, pair: tuple[Any, Any], file: Path) -> None:
    assert rows(packed(file, text))[0][:2] == pair
    with pytest.raises(DataError, match="3,5"):  # a comma of numbers cuts no field
        packed(file, "1 2 3,5\n4 5 2\n")


def test_words_are_ids_too_and_so_are_numbers_of_any_length(file: Path) -> None:
    data = packed(file, "bo\tB002\t1\nal\t007\t2\nal\t7\t3\nzé\t7\t4\n")
    assert rows(data) == [("al", "007", 2.0), ("al", "7", 3.0), ("bo", "B002", 1.0), ("zé", "7", 4.0)]
    data = packed(file, f"5\t{10**17}\t1\n5\t9\t2\n{2**31}\t9\t3\n")
    assert rows(data) == [(5, 9, 2.0), (5, 10**17, 1.0), (2**31, 9, 3.0)]
    high = 3 << 26
    assert rows(packed(file, f"{high}\t1\t1\n2\t1\t2\n")) == [(2, 1, 2.0), (high, 1, 1.0)]


def test_a_large_table_is_what_numpy_makes_of_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of some hundred lines; as whole numbers, and as words."""
    monkeypatch.setattr(text_file, "LINES", 5000)
    random = np.random.default_rng(1)
    pairs = np.unique(random.integers(1, 300, (4000, 2)), axis=0)
    score = random.integers(1, 11, len(pairs)) / 2
    order = random.permutation(len(pairs))
    for prefix in ("", "u"):
        data = packed(
            file,
            CSV + "".join(f"{prefix}{u:d},{i},{s},9\n" for (u, i), s in zip(pairs[order], score[order], strict=True)),
        )
        found = rows(data)
        assert {(int(str(u).removeprefix("u")), i, s) for u, i, s in found} == {
            (u, i, s) for (u, i), s in zip(pairs.tolist(), score.tolist(), strict=True)
        }  # fmt: skip
        assert found == sorted(found) and len(found) == len(pairs)


@given(
    st.one_of(
        st.lists(st.integers(-3, 3)).map(lambda many: np.array(many, np.int32)),
        st.lists(st.integers(-(2**63), 2**63 - 1)).map(lambda many: np.array(many, np.int64)),
        st.lists(st.integers(0, 2**61 + 1)).map(lambda many: np.array(many, np.int64)),
        st.lists(st.sampled_from([-0.0, 0.0, 2.5, 1e300])).map(np.array),
    )
)
def test_numbers_are_sorted_with_equal_ones_in_their_order(values: np.ndarray) -> None:
    """Also if a number and its place do not fit into 64 bits together."""
    before = values.copy()
    assert places_in_order(values).tolist() == sorted(range(len(values)), key=lambda place: values[place])
    assert np.array_equal(values, before)
    users = np.array([2**31 - 1, 0, 2**31 - 1, 5], np.int32)
    pairs = pairs_of(users, np.array([2**31 - 1, 7, 0, 5], np.int32))
    assert places_in_order(pairs).tolist() == [1, 3, 2, 0]


def test_columns_are_named_by_hand_where_they_cannot_be_seen(file: Path) -> None:
    text = "who;when;what;how\n1;8;2;5\n"
    with pytest.raises(DataError, match="the header has no column for the users") as error:
        packed(file, text, header=True)
    assert error.value.code == "data/rating-columns"
    assert rows(packed(file, text, columns={"user": "who", "item": "what", "rating": 3})) == [(1, 2, 5.0)]
    assert rows(packed(file, text, columns={"user": "who", "item": "what"})) == [(1, 2, 1.0)]
    assert rows(packed(file, "3\t4\n1\t4\n")) == [(1, 4, 1.0), (3, 4, 1.0)]  # no ratings: each is 1
    with pytest.raises(DataError, match="there is no column 'whom' for the users; the file has who, when"):
        packed(file, text, columns={"user": "whom", "item": "what"})
    with pytest.raises(DataError, match="there is no column 7 for the items"):
        packed(file, text, columns={"user": 0, "item": 7})
    with pytest.raises(DataError, match="two of user, item are the same column"):
        packed(file, text, columns={"user": "what", "item": 2})
    with pytest.raises(DataError, match="the first line has only one column"):
        packed(file, "12345\n")


def test_a_line_that_has_all_columns_asked_for_is_the_header_of_words_alone(file: Path) -> None:
    data = packed(file, "user,film\nann,alien\nbob,brazil\n", columns={"user": "user", "item": "film"})
    assert {*data.names["users"]} == {"ann", "bob"} and {*data.names["items"]} == {"alien", "brazil"}


def test_a_pair_that_is_there_twice(file: Path) -> None:
    text = f"{CSV}3,4,1,0\n1,1,1,0\n3,4,5,0\n1,1,2,0\n2,2,2,0\n"
    with pytest.raises(
        DataError, match=r"line 3 and .*line 5: user 1 rated item 1 twice; there are 2 such ratings"
    ) as error:
        packed(file, text)
    assert error.value.code == "data/duplicate-rating"
    dataset = Ratings(file, duplicates="last")
    assert rows(dataset.pack(InTurn(0))) == [(1, 1, 2.0), (2, 2, 2.0), (3, 4, 5.0)]
    assert dataset.left_out == {"earlier ratings": 2}
    assert packed(file, text, duplicates="keep").samples == 5


def test_a_holdout_divides_a_file_by_its_pairs(file: Path) -> None:
    text = CSV + "".join(f"{u},{i},{u % 5},0\n" for u in range(1, 60) for i in range(1, 60))
    parts = {part: packed(file, text, holdout={"fraction": 0.2, "seed": 5, "part": part}) for part in ("train", "test")}
    train, test = ({row[:2] for row in rows(parts[part])} for part in ("train", "test"))
    assert not train & test and len(train | test) == 59 * 59 and 0.15 < len(test) / 59**2 < 0.25
    like = Ratings(file, holdout={"fraction": 0.2, "seed": 5, "part": "test"}).pack(
        InTurn(0), "data.val", parts["train"]
    )
    assert {row[:2] for row in rows(like)} == test
    other = packed(file, text, holdout={"fraction": 0.2, "seed": 6, "part": "test"})
    assert {row[:2] for row in rows(other)} != test
    shuffled = CSV + "".join(reversed(text.removeprefix(CSV).splitlines(keepends=True)))
    assert {
        row[:2] for row in rows(packed(file, shuffled, holdout={"fraction": 0.2, "seed": 5, "part": "test"}))
    } == test


def test_a_holdout_of_few_rows_that_leaves_a_part_empty_names_the_way_out(file: Path) -> None:
    text = f"{CSV}3,4,1,0\n1,1,1,0\n3,5,5,0\n1,2,2,0\n"
    for share, part, what in ((0.01, "test", "to evaluate"), (0.99, "train", "to train on")):
        words = (
            rf"`holdout` with fraction: {share} leaves none of 4 ratings {what}; choose another fraction.*data.val=null"
        )
        with pytest.raises(DataError, match=words) as error:
            packed(file, text, holdout={"fraction": share, "part": part})
        assert error.value.code == "data/split"


def test_names_that_white_space_alone_tells_apart_are_one_and_that_is_said_with_the_place(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = f'{CSV}7 b,4,1,0\nb,1,1,0\nb ,5,5,0\n\tb,6,5,0\n" 1",2,2,0\n'
    assert [*packed(file, text).names["users"]] == ["1", "7 b", "b"]
    (note,) = [one.getMessage() for one in caplog.records if "white space" in one.getMessage()]
    place = f"({file}: line 4)"
    assert note.endswith(f"white space around a name does not count, so 2 names less: 'b ' {place} counts as 'b'")
    caplog.clear()
    packed(file, f"{CSV} 1, 2,1,0\n 1, 3,1,0\n")  # all alike: none becomes another
    assert not [one for one in caplog.records if "white space" in one.getMessage()]


def parts_of(file: Path, text: str, holdout: dict[str, Any], **options: Any) -> tuple[list[Row], list[Row]]:
    train = packed(file, text, holdout={**holdout, "part": "train"}, **options)
    test = Ratings(file, holdout={**holdout, "part": "test"}, **options).pack(InTurn(0), "data.val", train)
    return rows(train), rows(test)


def test_each_users_newest_ratings_are_held_out(file: Path) -> None:
    order = [(1, 10, 5), (1, 20, 7), (1, 30, 7), (2, 20, 1), (2, 10, 9), (3, 30, 3), (2, 30, 4)]
    for stamp in ("{}", "2027-05-{:02d}", "2027-05-31 10:00:{:02d}"):
        text = CSV + "".join(f"{user},{item},1,{stamp.format(time)}\n" for user, item, time in order)
        train, test = parts_of(file, text, {"last": 1})
        assert [row[:2] for row in test] == [(1, 30), (2, 10)], "of the same time the lower line; user 3 has no other"
        assert [row[:2] for row in train] == [(1, 10), (1, 20), (2, 20), (2, 30), (3, 30)]
        _, test = parts_of(file, text, {"last": 2})
        assert [row[:2] for row in test] == [(1, 20), (1, 30), (2, 10), (2, 30)]
    dataset = Ratings(file, holdout={"last": 2, "part": "test"})
    with pytest.raises(DataError, match="`holdout` with last: 3 leaves none of 7 ratings to evaluate; choose another"):
        packed(file, text, holdout={"last": 3, "part": "test"})
    notes = dataset.parsing("data.val", None, "fail").parse(lambda *_: None).notes
    assert notes[1:] == (f"{file}: 1 user with no more than 2 ratings of all: they stay in the training part",)


def test_the_newest_ratings_of_all_are_held_out_and_none_of_the_same_time_is_trained_on(file: Path) -> None:
    random = np.random.default_rng(0)
    times = random.integers(0, 40, 500)
    lines = [f"u{n % 23},{n},{n % 5},{time}\n" for n, time in enumerate(times)]
    for user in ("u", ""):
        text = CSV + "".join(lines).replace("u", user)
        for fraction in (0.1, 0.5):
            train, _ = parts_of(file, text, {"fraction": fraction, "by": "time"})
            cut = np.sort(times)[-round(fraction * 500)]
            assert sorted(row[1] for row in train) == np.flatnonzero(times < cut).tolist()
            test = packed(file, text, holdout={"fraction": fraction, "by": "time", "part": "test"})
            assert sorted(row[1] for row in rows(test)) == np.flatnonzero(times >= cut).tolist()


def test_times_are_numbers_or_dates_in_a_column_of_that_name_or_the_fourth(file: Path) -> None:
    rated = [("1", "2027-01-01 00:00:01"), ("2", "2027-01-01T01:00:00+02:00"), ("3", "1798761602.5")]
    for text in (
        CSV + "".join(f"7,{i},1,{time}\n" for i, time in rated),
        "".join(f"7,{i},1,{time}\n" for i, time in rated),
    ):
        assert [row[1] for row in parts_of(file, text, {"last": 1})[1]] == [], "item 3 is not in the training data"
        assert [row[1] for row in rows(packed(file, text, holdout={"last": 2, "part": "train"}))] == [2]
    text = "who,what,when\n7,1,9\n7,2,8\n"
    columns = {"user": "who", "item": "what", "time": "when"}
    assert rows(packed(file, text, columns=columns, holdout={"last": 1, "part": "train"})) == [(7, 2, 1.0)]
    with pytest.raises(DataError, match="a holdout by time needs a column of times; set columns=") as error:
        packed(file, "user,item,rating\n7,1,9\n", holdout={"last": 1, "part": "test"})
    assert error.value.code == "data/rating-columns"
    with pytest.raises(DataError, match="the time 'yesterday' is neither a number nor a date") as error:
        packed(file, f"{CSV}7,1,9,yesterday\n7,2,9,1\n", holdout={"last": 1, "part": "test"})
    assert error.value.code == "data/bad-value"


def test_times_of_several_units_are_said_before_they_order_anything(file: Path) -> None:
    def notes(times: list[Any], holdout: dict[str, Any] | None) -> list[str]:
        file.write_text(CSV + "".join(f"{n % 3},{n},1,{time}\n" for n, time in enumerate(times)))
        found = Ratings(file, holdout=holdout).parsing("data.train", None, "fail").parse(lambda *_: None).notes
        return [note for note in found if "several units" in note]

    seconds, dates = [1_700_000_000 + n for n in range(9)], ["2024-01-31 10:00:00"] * 9
    mixed = seconds[:4] + [1000 * time for time in seconds[4:]]
    for holdout in ({"last": 1, "part": "train"}, {"fraction": 0.4, "by": "time", "part": "test"}):
        assert notes(mixed, holdout) == [
            f"{file}: times seem to have several units (4 in seconds, 5 in milliseconds) and are compared as they are: "
            "write all in one"
        ]
        assert len(notes([0, *seconds], holdout)) == len(notes([*dates, 1_700_000_000_000], holdout)) == 1
        for alike in (seconds, dates, [*dates, *seconds], [*range(9)], [1000 * time for time in seconds]):
            assert notes(alike, holdout) == []
    assert notes(mixed, None) == [], "nothing is ordered"


def test_repeats_without_ratings_are_counts_and_added_up_where_it_is_asked(file: Path) -> None:
    text = "user,item\n3,4\n1,1\n3,4\n1,1\n2,2\n3,4\n"
    for prefix in ("", "u"):
        file.write_text(text if not prefix else text.replace("\n3", "\nu3"))
        dataset = Ratings(file)
        parsed = dataset.parsing("data.train", None, "fail").parse(lambda *_: None)
        assert [row[2] for row in rows(parsed.packed)] == [2.0, 1.0, 3.0] and parsed.left_out == {"repeats": 3}
        assert parsed.notes[1:] == (
            f"{file}: 3 lines repeat a user and an item: their ratings are added up, as counts",
        )
    plays = "user,item,plays\n3,4,2\n1,1,7\n3,4,0.5\n"
    with pytest.raises(DataError, match=r"set duplicates: last \(use the later one\), sum \(add them up, as counts\)"):
        packed(file, plays)
    assert rows(packed(file, plays, duplicates="sum")) == [(1, 1, 7.0), (3, 4, 2.5)]
    assert rows(packed(file, text, duplicates="last")) == [(1, 1, 1.0), (2, 2, 1.0), (3, 4, 1.0)]
    # A pair may be in both parts if lines are divided by their times: its earlier lines are counted in training.
    bought = "user,item,date\n1,5,1\n1,5,2\n1,6,3\n1,5,4\n"
    assert parts_of(file, bought, {"last": 1}) == ([(1, 5, 2.0), (1, 6, 1.0)], [(1, 5, 1.0)])
    asked = Ratings(file).pack(InTurn(0), "input", packed(file, "user,item\n3,4\n1,1\n2,2\n3,4\n"))
    assert [row[:2] for row in rows(asked)] == [(3, 4), (1, 1), (2, 2), (3, 4)], (
        "of each line a prediction, in its order"
    )


def test_who_and_what_the_training_data_does_not_have_is_left_out(file: Path) -> None:
    train = packed(file, f"{CSV}1,10,1,0\n5,30,2,0\n")
    file.write_text(f"{CSV}1,30,3,0\n1,20,1,0\n2,10,1,0\n5,10,4,0\n")
    dataset = Ratings(file)
    val = dataset.pack(InTurn(0), "data.val", train)
    assert rows(val) == [(1, 30, 3.0), (5, 10, 4.0)] and dataset.left_out == {"unseen ratings": 2}
    assert val.spec.sizes == train.spec.sizes


@pytest.mark.parametrize("user", ["", "u"])
def test_bad_lines_are_counted_where_they_are_skipped(file: Path, monkeypatch: pytest.MonkeyPatch, user: str) -> None:
    monkeypatch.setattr(text_file, "LINES", 50)
    file.write_text(CSV + "".join(f"{user}{n},{n},{'?' if n % 5 == 0 else n},0\n" for n in range(1, 50)))
    dataset = Ratings(file)
    data = dataset.pack(InTurn(0), "data.train", None, "skip")
    assert [row[2] for row in sorted(rows(data), key=lambda row: row[2])] == [n for n in range(1, 50) if n % 5]
    assert dataset.left_out == {"bad lines": 9}
    file.write_text(CSV)
    with pytest.raises(DataError, match="contains no samples") as error:
        dataset.pack(InTurn(0))
    assert error.value.code == "data/empty"


def test_arguments_that_are_none(file: Path) -> None:
    file.write_text(CSV)
    wrong: tuple[dict[str, Any], ...] = (
        {"delimiter": "x"}, {"duplicates": "first"}, {"columns": {"users": 1}},
        {"columns": {}}, {"columns": {"user": 1, "item": 2.5}},
        {"columns": {"user": 1, "item": 1}},
        {"holdout": {"fraction": 1.0, "part": "test"}}, {"holdout": {"fraction": 0.1}}, {"holdout": {"part": "val"}},
        {"holdout": {"last": 0, "part": "test"}}, {"holdout": {"last": 1, "fraction": 0.1, "part": "test"}},
        {"holdout": {"fraction": 0.1, "by": "date", "part": "test"}}, {"holdout": {"last": 1}},
        {"holdout": {"fraction": 0.1, "by": "time", "seed": 1, "part": "test"}}, {"duplicates": "count"},
    )  # fmt: skip
    for options in wrong:
        with pytest.raises(UsageError, match=r"Ratings\(path="):
            Ratings(file, **options)


# ---- Jester ---------------------------------------------------------------------------------------------------------


def jokes(*rated: dict[int, float]) -> str:
    return "".join(
        ",".join([str(len(one)), *(str(one.get(joke, 99)) for joke in range(1, 101))]) + "\r\n" for one in rated
    )


def test_jester_is_read_from_its_zip_file(tmp_path: Path) -> None:
    path = tmp_path / "jester.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("jester-data-1.csv", jokes({1: -7.82, 100: 9.5}, {}, {50: 0.0}))
    data = Jester(path).pack(InTurn(0))
    assert rows(data) == [(1, 1, pytest.approx(-7.82)), (1, 100, 9.5), (3, 50, 0.0)]
    assert data.spec.sizes == {"users": 2, "items": 3}


def test_a_jester_file_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "jester.csv"
    for text, words in (
        (jokes({3: 1.0}).replace(",99\r", "\r"), "line 1: a line has 101 numbers"),
        (jokes({3: 1.0}, {4: 1.0}).replace("\n1,", "\n2,"), "line 2: a line has 101 numbers"),
        (jokes({3: 1.0}).replace("1.0", "x"), "line 1: 'x': a rating must be a number"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=words) as error:
            Jester(path).pack(InTurn(0))
        assert error.value.code == "data/bad-line"


def told(path: Path, what: str = "data.train", **options: Any) -> str:
    return Ratings(path, **options).parsing(what, None, "fail").parse(lambda *_: None).notes[0]


RIGHT: Mapping[str, tuple[str, list[Row]]] = {
    "a comment is the header": ("# user item rating\n101 205 4\n102 205 3\n", [(101, 205, 4), (102, 205, 3)]),
    "numpy.savetxt's header": ("# rating,user,item\n4,101,205\n3,102,205\n", [(101, 205, 4), (102, 205, 3)]),
    "a header begins with a sign": ("#userID\titemID\trating\n101\t205\t4\n", [(101, 205, 4)]),
    "comments before the rows": ("% bip weighted\n% 1 2 2\n101 205 4\n102 205 3\n", [(101, 205, 4), (102, 205, 3)]),
    "names begin with a sign": ("#cats\t5\t1\n#dogs\t5\t2\n", [("#cats", 5, 1), ("#dogs", 5, 2)]),
    "R's row names": (
        '"user" "item" "rating"\n"1" 101 205 4\n"2" 102 206 3\n', [(101, 205, 4), (102, 206, 3)]),
    "R's row names and words": (
        '"user","item","rating"\n"1","u1","i9",4\n"2","u2","i9",3\n', [("u1", "i9", 4), ("u2", "i9", 3)]),
    "row names with a header of their own": (
        '"","user","item","rating"\n"1",101,205,4\n"2",102,205,3\n', [(101, 205, 4), (102, 205, 3)]),
    "doubled quotation marks": (
        'user,item,rating\nu1,"""Heroes"", live",4\nu2,"a ""b""",3\n',
        [("u1", '"Heroes", live', 4), ("u2", 'a "b"', 3)]),
    "a quotation mark inside": ('user,item,rating\nu1,5" disc,4\n', [("u1", '5" disc', 4)]),
    "columns of text behind": ('user,item,rating,text\n1,2,3,"so, so"\n1,3,4,"5 ""stars"""\n', [(1, 2, 3), (1, 3, 4)]),
    "two columns of words": ("user,item\nu1,i1\nu2,i1\n", [("u1", "i1", 1), ("u2", "i1", 1)]),
    "the index of pandas": (",user,item,rating\n0,101,205,4\n1,102,205,3\n", [(101, 205, 4), (102, 205, 3)]),
    "only an index and pairs": (",user,item\n0,101,205\n1,102,205\n", [(101, 205, 1), (102, 205, 1)]),
    "two colons in quotation marks": ('u1::"a::b"::4\nu2::c:d::3\n', [("u1", "a::b", 4), ("u2", "c:d", 3)]),
    "windows": ("\ufeffuser;item;rating\r\n1;2;3\r\n\r\n2;2;4\r\n", [(1, 2, 3), (2, 2, 4)]),
    "doubled carriage returns": ("user,item,rating\r\r\n1,2,3\r\r\n2,2,4\r\r\n", [(1, 2, 3), (2, 2, 4)]),
    "empty lines at the beginning": ("\n\nuser|item|rating\n1|2|3\n", [(1, 2, 3)]),
    "a text without ratings": ("user,item,title\n1,2,So so\n1,3,Good\n", [(1, 2, 1), (1, 3, 1)]),
}  # fmt: skip


@pytest.mark.parametrize("what", RIGHT)
def test_a_table_is_read_as_it_is_meant(what: str, file: Path) -> None:
    text, wanted = RIGHT[what]
    assert rows(packed(file, text)) == [(user, item, float(rating)) for user, item, rating in wanted]


BAD: Mapping[str, tuple[str, str, str]] = {
    "a word for a rating": (
        f"{CSV}1,2,3,0\n1,3,good,0\n", "data/bad-line", "line 3: 'good': a rating must be a number: '1,3,good,0'"),
    "no rating": ("a::2::3\na::3::\n", "data/bad-line", "line 2: '': a rating must be a number: 'a::3::'"),
    "NaN": (f"{CSV}1,2,nan,0\n", "data/bad-line", "line 2: 'nan' is NaN or infinite"),
    "one field": (
        f"{CSV}1,2,3,0\n\n1\n", "data/bad-line",
        "line 4: a line must have as many fields as the first; quote a value with a delimiter"),
    "no user": (f"{CSV},2,3,0\n", "data/bad-line", "line 2: a user, an item or a time is empty"),
    "more fields than names": (
        "user,item,rating\n101,205,4,5\n102,205,3,0\n", "data/bad-line", "line 2: a line must have as many fields"),
    "a field too many far down": (
        "user,item,rating\n101,205,4\n102,205,3,0\n", "data/bad-line", "line 3: a line must have as many fields"),
    "a field too few behind the last that is read": (
        "user,item,rating,text\n1,2,3,x\n1,3,4\n", "data/bad-line", "line 3: a line must have as many fields"),
    "a delimiter at the end": (
        "user,item,rating\n1,2,3\n1,3,4,\n", "data/bad-line", "line 3: a line must have as many fields"),
    "a decimal comma": ("user;item;rating\n1;2;4,5\n", "data/bad-line", "line 2: '4': a rating must be a number"),
    "a decimal comma without a header": ("1;2;4,5\n2;2;3,5\n", "data/rating-columns", "no column for the users"),
    "a comment between": ("user,item,rating\n1,2,3\n# 1,3,4\n", "data/bad-line", "line 3: .*begin as a comment"),
    "a row that is commented out": (
        "user,item,rating\nu1,2,3\n#2,3,4\n", "data/bad-line", "line 3: .*begin as a comment"),
    "a quotation mark not closed": (
        'user,item,rating\n1,"2,3\n', "data/bad-line", "line 2: a quotation mark is not closed"),
    "behind a quotation mark": ('user,item,rating\n1,"2"x,3\n', "data/bad-line", "something stands behind it"),
    "a control character in the place of two colons": (
        "u1::a\x1fb::4\nu2::c::3\n", "data/bad-line", "line 1: a line must have as many fields"),
    "a carriage return in the middle": (
        "user,item,rating\n1,2,3\r1,3,4\n", "data/bad-line", "line 2: a line must .*: '1,2,3.*r1,3,4'"),
    "only a header": ("user,item,rating\n", "data/empty", "contains no samples"),
    "only comments": ("# nothing\n\n", "data/empty", "contains no samples"),
    "old line ends": ("user,item,rating\r1,2,3\r", "data/csv-line-ends", "carriage return only"),
    "Excel's first line": ("sep=;\nuser;item;rating\n1;2;3\n", "data/bad-line", "line 1: .* is empty: .sep=;"),
    "a rating of another name": ("user_id,item_id,star_rating\n1,2,5\n", "data/rating-columns", "'star_rating' may"),
    "two that may be": ("user,item,helpful,quantity\n1,2,0,5\n", "data/rating-columns", "'helpful', 'quantity' may"),
    "two that are known": ("user,item,plays,rating\n1,2,0,5\n", "data/rating-columns", "'plays', 'rating' may"),
    "a rating beside a text": ("user,item,user_rating,title\n1,2,5,x\n", "data/rating-columns", "'user_rating' may"),
    "a rating with a time": ("user,item,note,timestamp\n1,2,5,9\n", "data/rating-columns", "'note' may be it"),
    "a rating in another language": ("user,item,Bewertung\nu,v,4\n", "data/rating-columns", "'Bewertung' may be it"),
    "pairs in another language": ("Benutzer,Artikel\n1,2\n3,2\n", "data/rating-columns", "only Benutzer, Artikel"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_table_whose_meaning_is_not_certain_is_an_error(what: str, file: Path) -> None:
    text, code, words = BAD[what]
    with pytest.raises(DataError, match=words) as refused:
        packed(file, text)
    assert refused.value.code == code and str(refused.value).startswith(str(file))


def test_a_value_in_quotes_may_have_line_ends(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces that end inside of values, too; a line of a text that looks like a row is none."""
    texts = ["plain", "two\nlines", "5,6,1,x\n7,8,2,y", 'a ""quoted"" one\n\n', "end\r\n"]
    content = "user,item,rating,text\n" + "".join(f'{n},{n % 7},{n % 5},"{texts[n % 5]}"\n' for n in range(1, 60))
    wanted = [(n, n % 7, float(n % 5)) for n in range(1, 60)]
    for size in (4 << 20, 64, 200):
        monkeypatch.setattr(text_file, "LINES", size)
        assert rows(packed(file, content)) == wanted
        ids = [(f"u\n{user}", item, rating) for user, item, rating in wanted]
        named = "".join(f'"u\n{n}",{n % 7},{n % 5},"{texts[n % 5]}"\n' for n in range(1, 60))
        assert rows(packed(file, "user,item,rating,text\n" + named)) == sorted(ids)
    with pytest.raises(DataError, match="line 121: 'bad': a rating must be a number"):
        packed(file, content + "61,1,bad,x\n")


def test_columns_that_are_set_are_the_cure(file: Path) -> None:
    text = "user_id,item_id,star_rating\n1,2,5\n"
    columns = {"user": "user_id", "item": "item_id"}
    assert rows(packed(file, text, columns={**columns, "rating": "star_rating"})) == [(1, 2, 5.0)]
    assert rows(packed(file, text, columns=columns)) == [(1, 2, 1.0)]
    asked = Ratings(file).pack(InTurn(0), "input", packed(file, text, columns=columns))
    assert rows(asked) == [(1, 2, 1.0)], "a file to predict needs no ratings"


FOUND_BESIDE: Mapping[str, tuple[str, Any, list[tuple[Any, ...]]]] = {  # text, columns that are set, rows
    "a time of another name": ("userId,movieId,rating,ts\n1,2,5,9\n1,3,4,8\n", {"time": "ts"}, [(1, 3, 4.0)]),
    "a rating among two": ("user,item,plays,rating,time\n1,2,7,5,9\n1,3,6,4,8\n", {"rating": "plays"}, [(1, 3, 6.0)]),
    "an item with a known name beside": ("user,item,shop,time\n1,7,2,9\n1,7,3,8\n", {"item": "shop"}, [(1, 3, 1.0)]),
    "a name that another column would have": (
        "user,item,date,time\n1,2,9,1\n1,3,8,2\n",
        {"time": "date"},
        [(1, 3, 1.0)],
    ),
    "a time without a header": ("1,2,5,x,9\n1,3,4,x,8\n", {"time": 4}, [(1, 3, 4.0)]),
    "a time in the place of ratings": ("1,2,900000000\n1,3,800000000\n", {"time": 2}, [(1, 3, 1.0)]),
}


@pytest.mark.parametrize("what", FOUND_BESIDE)
def test_columns_that_are_not_set_are_found_beside_those_that_are(what: str, file: Path) -> None:
    text, columns, expected = FOUND_BESIDE[what]
    assert rows(packed(file, text, columns=columns, holdout={"last": 1, "part": "train"})) == expected


@pytest.mark.parametrize(
    ("text", "columns", "words"),
    [
        ("user,item,rating\n1,2,5\n", {"time": "ts"}, "no column 'ts' for the times; the file has user, item, rating"),
        ("user,item,rating\n1,2,5\n", {"time": "item"}, "the header has no column for the items"),
        ("1,2,5\n2,3,4\n", {"time": 1}, "without names the items would be in column 1, which is set"),
        ("1,2,5\n2,3,4\n", {"time": 3}, "there is no column 3 for the times; the first line has 3"),
    ],
)
def test_a_set_column_that_cannot_be_is_refused(text: str, columns: Any, words: str, file: Path) -> None:
    with pytest.raises(DataError, match=words):
        packed(file, text, columns=columns)


def test_the_columns_that_are_read_are_said(file: Path) -> None:
    file.write_text("rating,userId,movieId\n5,1,2\n")
    assert told(file) == f"{file}: columns: users in 'userId', items in 'movieId', ratings in 'rating'"
    file.write_text("1\t2\t5\t881250949\n")
    assert told(file) == (
        f"{file}: columns: users in column 0, items in column 1, ratings in column 2; no header: the first row is "
        "1, 2, 5, 881250949"
    )
    file.write_text("% made in May\nuser,item\nu1,i1\n")
    assert told(file) == (
        f"{file}: columns: users in 'user', items in 'item', no ratings: each is 1; 1 line of comments before them"
    )
    file.write_text('"user" "item" "rating"\n"1" 101 205 4\n')
    assert told(file).endswith("ratings in 'rating'; the column of R's row names is left out")


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
def test_names_are_text_in_the_encoding_that_is_set(encoding: str, file: Path) -> None:
    content = "user,item,rating\nZoë,Amélie,4\nBjörk,Amélie,5\n".encode(encoding)
    wanted = [("Björk", "Amélie", 5.0), ("Zoë", "Amélie", 4.0)]
    assert rows(packed(file, content, encoding=encoding)) == wanted
    with pytest.raises(DataError, match=r"line 2: b'Zo\\xeb' is not utf-8 text; save it as .* set encoding: latin-1"):
        packed(file, content)
    with pytest.raises(UsageError, match="encoding must be one of utf-8, latin-1, cp1252"):
        Ratings(file, encoding="utf-16")  # type: ignore[arg-type]
    file.write_bytes("a\tkennt\tZoë\n".encode(encoding))
    assert written(Triples(file, encoding=encoding).pack(InTurn(0))) == [("a", "kennt", "Zoë")]  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"line 1: .* is not utf-8 text; save it as UTF-8, or set encoding"):
        Triples(file).pack(InTurn(0))
    file.write_bytes(b"user,item,rating\n1,2,3\nx,\x81,3\n")
    with pytest.raises(DataError, match=r"line 3: b'\\x81' is not cp1252 text"):
        Ratings(file, encoding="cp1252").pack(InTurn(0))


def triples(path: Path, text: str, **options: Any) -> Packed:
    path.write_text(text)
    return Triples(path, **options).pack(InTurn(0))


VALIDATED: Mapping[str, tuple[str, str, Any]] = {  # training file, validation file, columns of the training data
    "columns of unusual names": ("who,what,given\n1,2,5\n2,1,3\n", "given,what,who\n5,2,1\n",
        {"user": "who", "item": "what", "rating": "given"}),
    "columns exchanged on purpose": ("user,item,rating\n2,1,5\n1,2,3\n", "user,item,rating\n2,1,5\n",
        {"user": "item", "item": "user", "rating": "rating"}),
    "the end of the same file": ("item,user,rating\n2,1,5\n1,2,3\n", "2,1,5\n", None),
    "no headers": ("2,1,5\n1,2,3\n", "2,1,5\n", {"user": 1, "item": 0, "rating": 2}),
    "a header here only": ("2,1,5\n1,2,3\n", "user,item,rating\n1,2,5\n", {"user": 1, "item": 0, "rating": 2}),
    "other names": ("item,user,rating\n2,1,5\n1,2,3\n", "userId,movieId,stars\n1,2,5\n", None),
}  # fmt: skip


@pytest.mark.parametrize("what", VALIDATED)
def test_validation_ratings_are_read_by_the_columns_of_the_training_data(what: str, file: Path, tmp_path: Path) -> None:
    """Ids that are users and items give no error where the two are exchanged."""
    trained, held, columns = VALIDATED[what]
    file.write_text(trained)
    (tmp_path / "val").write_text(held)
    train, val = Ratings(file, columns), Ratings(tmp_path / "val")
    match_names(train, val)
    assert rows(val.pack(InTurn(0), "data.val", train.pack(InTurn(0)))) == [(1, 2, 5.0)]
    own = Ratings(tmp_path / "val", columns := {"user": 0, "item": 1})
    match_names(train, own)
    assert own.columns == columns


def test_times_in_the_place_of_ratings_are_an_error(file: Path) -> None:
    file.write_text("1\t2\t881250949\n2\t1\t881250950\n")
    with pytest.raises(DataError, match="column 2 has numbers such as 881250949, which seem to be times") as error:
        Ratings(file).pack(InTurn(0))
    assert error.value.code == "data/rating-columns"


def test_triples_have_headers_comments_and_quotation_marks_too(file: Path) -> None:
    wanted = [("a", "likes", "b"), ("b", "likes", "c")]
    for before in ("", "head\trelation\ttail\n", "# FB15k\n# 2 triples\n", "Subject\tPredicate\tObject\n"):
        assert written(triples(file, before + "a\tlikes\tb\nb\tlikes\tc\n")) == wanted
    assert written(triples(file, '"Heroes, live",by,"""B"""\n', delimiter=",")) == [("Heroes, live", "by", '"B"')]
    assert written(triples(file, '"Weird_Al"_Yankovic\tsang\t"Fat"\n')) == [('"Weird_Al"_Yankovic', "sang", '"Fat"')]
    with pytest.raises(DataError, match="line 2: a line must not begin as a comment"):
        triples(file, "a\tb\tc\n# x\ty\tz\n")


FEATURES: Mapping[str, str] = {
    "plain": "i1\tso, so\ni2\told\t0.5\n",
    "a header": "item\tfeature\tweight\ni1\tso, so\ni2\told\t0.5\n",
    "a header without the word": "movieId\tgenre\ni1\tso, so\ni2\told\t0.5\n",
    "another order": 'weight,feature,user\n1,"so, so",i1\n.5,old,i2\n',
    "comments": "# of May\n\n# name feature\ni1\tso, so\ni2\told\t0.5\n",
    "quotation marks": '"i1"\t"so, so"\n"i2"\t"old"\t0.5\n',
    "commas": '\ufeffi1,"so, so"\r\ni2,old,0.5\r\n',
}


@pytest.mark.parametrize("what", FEATURES)
def test_files_of_features_follow_the_same_rules(what: str, file: Path) -> None:
    file.write_text(FEATURES[what])
    assert read_features(file) == {("i1", "so, so"): 1.0, ("i2", "old"): 0.5}


def test_a_table_with_a_column_for_each_feature_is_no_file_of_features(file: Path) -> None:
    """A zip code was the weight of an age."""
    file.write_text("user,age,zip\nu1,30,94110\nu2,40,94110\n")
    with pytest.raises(DataError, match=f"{file.name}:1: the columns are user, age, zip; .*such as u1, age:30"):
        read_features(file)


def test_features_are_text_in_the_encoding_of_the_ratings(file: Path, tmp_path: Path) -> None:
    (tmp_path / "kinds.tsv").write_bytes('1\tAmélie\n2\t"""Heroes"""\n'.encode("latin-1"))
    file.write_text("user,item,rating\n1,1,3\n1,2,4\n")
    data = Ratings(file, item_features=tmp_path / "kinds.tsv", encoding="latin-1").pack(InTurn(0))
    assert data.names["item_features"] == ['"Heroes"', "Amélie"]
    with pytest.raises(DataError, match=r"kinds.tsv: line 1: b'\\xe9' is not utf-8 text; .* set encoding: latin-1"):
        Ratings(file, item_features=tmp_path / "kinds.tsv").pack(InTurn(0))
    (tmp_path / "kinds.tsv").write_text("1\tgood\n# 2\tbad\n")
    with pytest.raises(DataError, match=r"kinds.tsv:2: .* must not begin as a comment"):
        Ratings(file, item_features=tmp_path / "kinds.tsv").pack(InTurn(0))


IDS = st.text(st.sampled_from("abz07 ,;\"'#%é."), min_size=1, max_size=5)


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(st.tuples(IDS, IDS), st.integers(1, 9), min_size=1, max_size=12), st.sampled_from(",;\t|"))
@example({("0", "0.0"): 1, ("7", "7.0"): 2}, ",")
@example({("0", "7.07"): 1}, ",")
def test_any_table_that_pandas_writes_is_read_with_its_names(
    tmp_path_factory: pytest.TempPathFactory, table: dict[tuple[str, str], int], delimiter: str
) -> None:
    frame = pandas.DataFrame(
        [(u.strip(), i.strip(), r) for (u, i), r in table.items()], columns=["user", "item", "rating"]
    )
    frame = frame[(frame.user != "") & (frame.item != "")]
    path = tmp_path_factory.mktemp("frames") / "ratings.csv"
    if frame.empty:
        return
    frame.to_csv(path, sep=delimiter, index=False, quoting=csv.QUOTE_NONNUMERIC)
    found = {
        (str(user), str(item)): rating for user, item, rating in rows(Ratings(path, duplicates="keep").pack(InTurn(0)))
    }
    plain = {(_plain(frame.user)(u), _plain(frame.item)(i)): float(r) for u, i, r in frame.itertuples(index=False)}
    assert found == plain


def _plain(column: Any) -> Any:
    """Ids that are all whole numbers have one spelling: 7.0 is 7."""
    numbers = all(re.fullmatch(r"(0|[1-9][0-9]*)(\.0+)?", one) for one in column)
    return (lambda text: str(int(float(text)))) if numbers else str


def test_a_table_and_its_lines_in_any_order_of_columns_are_the_same_ratings(file: Path) -> None:
    table = [("u1", "i,1", 3), ("u2", 'i"2', 4), ("u1", "i 3", 5)]
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)):
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow([("user", "item", "rating")[place] for place in order])
        writer.writerows([[row[place] for place in order] for row in table])
        assert sorted(rows(packed(file, out.getvalue()))) == sorted((u, i, float(r)) for u, i, r in table)
