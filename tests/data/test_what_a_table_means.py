"""What a table of ratings or triples means: the columns, the number of fields, quotation marks, encodings, comments and
headers. Each is either certain, or said in the first lines of the job, or an error; never a wrong number."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hogwild.data import Ratings, Triples, text_file
from hogwild.data.ratings import read_features
from hogwild.errors import DataError, UsageError
from hogwild.feeds.packed import Packed
from hogwild.feeds.row_reader import InTurn
from hogwild.job.data import match_names
from tests.data.test_ratings import Row, packed, rows
from tests.data.test_triples import written


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ratings.csv"


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
    for text, words in (("a\tb\tc\n# x\ty\tz\n", "line 2: a line must not begin as a comment"),):
        with pytest.raises(DataError, match=words):
            triples(file, text)


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
    with pytest.raises(
        DataError,
        match="features:1: the columns are user, age, zip; .*such as u1, age:30".replace("features", file.name),
    ):
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
    numbers = all(one.replace(".0", "").isdigit() and one[:1] != "0" for one in column)
    return (lambda text: str(int(float(text)))) if numbers else str


def test_a_table_and_its_lines_in_any_order_of_columns_are_the_same_ratings(file: Path) -> None:
    table = [("u1", "i,1", 3), ("u2", 'i"2', 4), ("u1", "i 3", 5)]
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)):
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow([("user", "item", "rating")[place] for place in order])
        writer.writerows([[row[place] for place in order] for row in table])
        assert sorted(rows(packed(file, out.getvalue()))) == sorted((u, i, float(r)) for u, i, r in table)
