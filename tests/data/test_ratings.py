"""Ratings as packed tables: MovieLens' own formats, a user's own table, words as ids, Jester; what is divided, what is
left out, and what is said of lines that cannot be used."""

import gzip
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hogwild.data import Jester, Ratings, text_file
from hogwild.errors import DataError, UsageError
from hogwild.feeds.packed import Packed
from hogwild.feeds.row_reader import InTurn
from hogwild.kernels.pair_order import pairs_of, places_in_order

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
    with pytest.raises(DataError, match="holdout last 3 of 7 ratings leaves one part empty"):
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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{CSV}1,2,3,0\n1,3,good,0\n", "line 3: 'good': a rating must be a number: '1,3,good,0'"),
        (f"{CSV}1,2,nan,0\n", "line 2: 'nan' is NaN or infinite"),
        (
            f"{CSV}1,2,3,0\n\n1\n",
            "line 4: a line must have as many fields as the first; quote a value with a delimiter",
        ),
        (f"{CSV},2,3,0\n", "line 2: a user, an item or a time is empty"),
        (f'{CSV}1,"2,3,0\n', "line 2: a quotation mark is not closed"),
        ("a::2::3\na::3::\n", "line 2: '': a rating must be a number: 'a::3::'"),
    ],
)
def test_a_bad_line_is_named_with_its_rule(file: Path, text: str, words: str) -> None:
    with pytest.raises(DataError) as error:
        packed(file, text)
    assert words in str(error.value) and error.value.code == "data/bad-line"


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
        {"delimiter": "x"}, {"duplicates": "first"}, {"columns": {"user": 1}}, {"columns": {"user": 1, "item": 2.5}},
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
