"""Bad inputs, a part of the table: texts of sparse rows, ratings and triples, below `damaged/sparse`."""

import gzip

from tests.bad_input.row import Row, reads

LINES: dict[str, bytes] = {
    "good.svm": b"1 1:1 3:2\n-1 2:1\n",
    "label.svm": b"1 1:1\nspam 2:1\n",
    "pair.svm": b"1 1:1\n-1 2\n",
    "value.svm": b"1 1:1\n-1 2:two\n",
    "nan.svm": b"1 1:1\n-1 2:nan\n",
    "zero.svm": b"1 1:1\n-1 0:1\n",
    "twice.svm": b"1 1:1\n-1 2:1 1:4 2:3\n",
    "real.svm": b"1 1:1\n0.5 2:1\n",
    "none.svm": b"",
    "comments.svm": b"# nothing\n\n",
    "torn.svm.gz": gzip.compress(b"1 1:1\n" * 999, mtime=0)[:-9],
    "u.data": b"1\t2\t3\t0\n1\t3\tgood\t0\n",
    "twice.dat": b"1::2::3::0\n5::5::5::0\n1::2::4::0\n",
    "columns.csv": b"who,when,what,how\n1,2,3,4\n",
    "short.csv": b"userId,movieId,rating\n1,2,3\n1,2\n",
    "header.csv": b"userId,movieId,rating\n",
    "jokes.csv": b"1,99,2\n",
    "pairs.txt": b"a\tlikes\tb\na\tlikes\n",
    "blank.txt": b"a\t\tb\n",
}
FILES_OF_LINES: dict[str, bytes] = {f"sparse/{name}": content for name, content in LINES.items()}


def sparse(file: str, class_name: str = "LibSvm", **arguments: str) -> tuple[str, ...]:
    return reads(class_name, path=f"damaged/sparse/{file}", **arguments)


def bad(command: tuple[str, ...], *words: str) -> Row:
    return Row(command, 1, "data/bad-line", (*words, "data.on_bad_line: skip"))


SPARSE: dict[str, Row] = {
    "a label that is a word": bad(sparse("label.svm"), "label.svm: line 2", "begins with its label", "'spam'"),
    "an index without a value": bad(sparse("pair.svm"), "pair.svm: line 2", "pairs index:value", "'2'"),
    "a value that is a word": bad(sparse("value.svm"), "value.svm: line 2", "'2:two'", "must be a number"),
    "a feature that is NaN": bad(sparse("nan.svm"), "nan.svm: line 2", "'2:nan'", "NaN or infinite"),
    "a feature number 0": bad(
        sparse("zero.svm", one_based="true"), "zero.svm: line 2", "'0:1'", "features are numbered from 1 on"
    ),
    "a feature past the last": bad(
        sparse("good.svm", features="2"), "good.svm: line 1", "'3:2'", "past the last feature"
    ),
    "a feature twice in a row": bad(sparse("twice.svm"), "twice.svm: line 2", "a feature occurs twice"),
    "half a class": Row(
        sparse("real.svm", labels="classes"), 1, "data/bad-line", ("real.svm: line 2", "whole numbers", "not 0.5")
    ),
    "an empty file of rows": Row(sparse("none.svm"), 1, "data/empty", ("none.svm: the file is empty",)),
    "comments alone": Row(sparse("comments.svm"), 1, "data/empty", ("comments.svm: contains no samples",)),
    "rows cut off in gzip": Row(
        sparse("torn.svm.gz"), 1, "data/damaged-file", ("torn.svm.gz", "damaged or truncated gzip")
    ),
    "no such rows": Row(sparse("nowhere.svm"), 3, "data/not-found", ("nowhere.svm", "Looked in")),
    "no feature at all": Row(
        sparse("good.svm", features="0"), 2, "config/bad-argument", ("features must be a whole number",)
    ),
    "a way to scale nobody has": Row(
        sparse("good.svm", normalise="l3"), 2, "config/bad-argument", ("normalise must be one of", "'l3'")
    ),
    "a rating that is a word": bad(sparse("u.data", "Ratings"), "u.data: line 2", "'good'", "must be a number"),
    "a film rated twice": Row(
        sparse("twice.dat", "Ratings"),
        1,
        "data/duplicate-rating",
        ("twice.dat: line 1 and", "twice.dat: line 3", "user 1 rated item 2 twice", "duplicates: last"),
    ),
    "columns nobody knows": Row(
        sparse("columns.csv", "Ratings"), 1, "data/rating-columns", ("columns.csv", "who, when, what, how", "columns=")
    ),
    "a row without a rating": bad(sparse("short.csv", "Ratings"), "short.csv: line 3", "as many fields as the first"),
    "a header and no rating": Row(
        sparse("header.csv", "Ratings"), 1, "data/empty", ("header.csv: contains no samples",)
    ),
    "a part of a table of nothing": Row(
        sparse("u.data", "Ratings", holdout="{fraction: 1.5, part: test}"),
        2,
        "config/bad-argument",
        ("holdout must be",),
    ),
    "two jokes for a hundred": bad(sparse("jokes.csv", "Jester"), "jokes.csv: line 1", "a line has 101 numbers"),
    "a triple of two": bad(sparse("pairs.txt", "Triples"), "pairs.txt: line 2", "three fields"),
    "a relation without a name": bad(sparse("blank.txt", "Triples"), "blank.txt: line 1", "a field is empty"),
}  # fmt: skip
