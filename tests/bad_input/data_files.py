"""Bad inputs, a part of the table: data files, which lie in `damaged` in the user's folder; one for each code. What
else can be wrong with a file of each kind is tested at its reader, in tests/data."""

import io
import struct
from typing import Any

import numpy as np
from PIL import Image

from tests.bad_input.row import Row, job, reads

IMAGES, CLASSES = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
MNIST = "data.train={class_path: hogwild.data.Mnist}"


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def idx(magic: int, *shape: int, values: bytes) -> bytes:
    return struct.pack(f">{1 + len(shape)}i", magic, *shape) + values


def picture() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (2, 2)).save(stream, "PNG")
    return stream.getvalue()


X, Y = np.zeros((3, 4), np.float32), np.zeros(3, np.int64)

# Below `damaged`.
DAMAGED: dict[str, bytes] = {
    f"mnist/{IMAGES}": idx(2051, 60_000, 28, 28, values=bytes(1000)),
    f"mnist/{CLASSES}": idx(2049, 60_000, values=bytes(60_000)),
    f"swapped/{IMAGES}": idx(2049, 2, values=bytes(2)),
    f"swapped/{CLASSES}": idx(2049, 2, values=bytes(2)),
    f"eleven/{IMAGES}": idx(2051, 2, 28, 28, values=bytes(2 * 784)),
    f"eleven/{CLASSES}": idx(2049, 2, values=b"\x00\x0b"),
    "rows.npz": npz(x=X, y=Y[:2]),
    "no_rows.npz": npz(x=X[:0], y=Y[:0]),
    "objects.npz": npz(x=X, y=np.array([None, {}, "a"], dtype=object)),
    "good.csv": b"a,b,price\n1,2,3\n4,5,6\n",
    "words.csv": b"a,b,price\n1,2,3\n4,five,6\n",
    "gaps.csv": b"a,b,price\n1,2,3\n4,,6\n",
    "short.csv": b"a,b,price\n1,2,3\n4,5\n",
    "semicolons.csv": b"a;b;price\n1;2;3\n",
    "quote.csv": b'a,b,price\n1,2,3\n4,"5,6\n',
    "latin.csv": "größe,b,price\n1,2,3\n".encode("latin-1"),
    "old.csv": b"a,b,price\r1,2,3\r",
    "pictures/cat/one.png": picture(),
    "pictures/dog/torn.png": picture()[:40],
    "loose/one.png": picture(),
    "pair.svm": b"1 1:1\n-1 2\n",
    "real.svm": b"1 1:1\n0.5 2:1\n",
    "torn.svm.gz": b"\x1f\x8b\x08rest",
    "twice.dat": b"1::2::3::0\n5::5::5::0\n1::2::4::0\n",
    "columns.csv": b"who,when,what,how\n1,2,3,4\n",
}


def table(file: str, **arguments: str) -> tuple[str, ...]:
    return reads("Csv", **{"path": f"damaged/{file}", "target": "price", **arguments})


def mnist(folder: str) -> tuple[str, ...]:
    return reads("Mnist", split="train", root=f"damaged/{folder}")


def reader(class_name: str, file: str, **arguments: str) -> tuple[str, ...]:
    return reads(class_name, path=f"damaged/{file}", **arguments)


DATA_FILES: dict[str, Row] = {
    "a truncated file": Row(job(MNIST, "--data-dir", "damaged"), 1, "data/truncated-file",
        ("train-images-idx3-ubyte: truncated", "47,040,000", "holds 1,000")),
    "missing data": Row(job(MNIST, "--data-dir", "."), 3, "data/not-found",
        ("train-images-idx3-ubyte", "Looked in", "published by", "HOGWILD_DATA")),
    "labels for images": Row(mnist("swapped"), 1, "data/wrong-format", (IMAGES, "wrong magic number")),
    "an eleventh digit": Row(mnist("eleven"), 1, "data/bad-value", (CLASSES, "label 11 of sample 1", "must be < 10")),
    "an unknown split": Row(reads("Mnist", split="tran", root="damaged"), 2, "config/bad-argument",
        ("split must be one of", "'tran'")),
    "fewer targets": Row(reader("Npz", "rows.npz"), 1, "data/fields",
        ("rows.npz: the arrays must have the same number of rows",)),
    "no rows": Row(reader("Npz", "no_rows.npz"), 1, "data/empty", ("no_rows.npz: contains no samples",)),
    "pickled objects": Row(reader("Npz", "objects.npz"), 1, "data/wrong-arrays",
        ("array 'y' holds Python objects", "never loaded")),
    "a word in a column of numbers": Row(table("words.csv"), 1, "data/csv-value", ("words.csv: line 3", "'b'", "five")),
    "a gap": Row(table("gaps.csv"), 1, "data/csv-missing", ("gaps.csv: line 3", "'b'", "missing")),
    "a row too short": Row(table("short.csv"), 1, "data/csv-ragged", ("short.csv: line 3",)),
    "another delimiter": Row(table("semicolons.csv"), 1, "data/csv-delimiter",
        ("semicolons.csv: line 1", "is it ';'?")),
    "a target that is no column": Row(table("good.csv", target="prize"), 2, "data/csv-columns", ("prize", "price")),
    "a quote left open": Row(table("quote.csv"), 1, "data/csv-quotes", ("quote.csv: line 3",)),
    "a table in Latin-1": Row(table("latin.csv"), 1, "data/csv-encoding",
        ("latin.csv: line 1", "is not utf-8 text", "latin-1")),
    "lines of an old Macintosh": Row(table("old.csv"), 1, "data/csv-line-ends", ("old.csv: line 1", "carriage return")),
    "a torn picture": Row(reader("ImageFolder", "pictures", size="4"), 1, "data/broken-image",
        ("torn.png: cannot be read as a picture",)),
    "pictures without classes": Row(reader("ImageFolder", "loose", size="4"), 1, "data/image-classes",
        ("it has no class folders",)),
    "an index without a value": Row(reader("LibSvm", "pair.svm"), 1, "data/bad-line",
        ("pair.svm: line 2", "pairs index:value", "'2'", "data.on_bad_line: skip")),
    "half a class": Row(reader("LibSvm", "real.svm", labels="classes"), 1, "data/bad-line",
        ("real.svm: line 2", "whole numbers", "not 0.5")),
    "rows cut off in gzip": Row(reader("LibSvm", "torn.svm.gz"), 1, "data/damaged-file",
        ("torn.svm.gz", "damaged or truncated gzip")),
    "a film rated twice": Row(reader("Ratings", "twice.dat"), 1, "data/duplicate-rating",
        ("twice.dat: line 1 and", "twice.dat: line 3", "user 1 rated item 2 twice", "duplicates: last")),
    "columns nobody knows": Row(reader("Ratings", "columns.csv"), 1, "data/rating-columns",
        ("columns.csv", "who, when, what, how", "columns=")),
}  # fmt: skip
