"""Bad inputs, a part of the table: data files, which lie in `damaged` in the user's folder."""

import gzip
import io
import struct
from typing import Any

import numpy as np
from PIL import Image

from tests.bad_input.row import Row, job, reads

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
PICTURES, LABELS = bytes(2 * 784), bytes(2)
IMAGES, CLASSES = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"

# Below `damaged`.
DAMAGED: dict[str, bytes] = {
    f"mnist/{IMAGES}": idx(2051, 60_000, 28, 28, values=bytes(1000)),
    f"mnist/{CLASSES}": idx(2049, 60_000, values=bytes(60_000)),
    f"swapped/{IMAGES}": idx(2049, 2, values=LABELS),
    f"swapped/{CLASSES}": idx(2049, 2, values=LABELS),
    f"small/{IMAGES}": idx(2051, 2, 14, 14, values=bytes(2 * 196)),
    f"small/{CLASSES}": idx(2049, 2, values=LABELS),
    f"three/{IMAGES}": idx(2051, 2, 28, 28, values=PICTURES),
    f"three/{CLASSES}": idx(2049, 3, values=bytes(3)),
    f"eleven/{IMAGES}": idx(2051, 2, 28, 28, values=PICTURES),
    f"eleven/{CLASSES}": idx(2049, 2, values=b"\x00\x0b"),
    f"none/{IMAGES}": idx(2051, 0, 28, 28, values=b""),
    f"none/{CLASSES}": idx(2049, 0, values=b""),
    f"unzipped/{IMAGES}.gz": gzip.compress(idx(2051, 2, 28, 28, values=PICTURES), mtime=0)[:-8],
    f"unzipped/{CLASSES}": idx(2049, 2, values=LABELS),
    "text.npz": b"not a zip file",
    "other_names.npz": npz(images=X, labels=Y),
    "rows.npz": npz(x=X, y=Y[:2]),
    "no_rows.npz": npz(x=X[:0], y=Y[:0]),
    "objects.npz": npz(x=X, y=np.array([None, {}, "a"], dtype=object)),
    "words.npz": npz(x=X, y=np.array(["a", "b", "c"])),
    "one_number.npz": npz(x=X, y=np.int64(3)),
    "vast.npz": npz(x=X, y=np.full(3, 2**64 - 1, np.uint64)),
    "good.csv": b"a,b,price\n1,2,3\n4,5,6\n",
    "words.csv": b"a,b,price\n1,2,3\n4,five,6\n",
    "gaps.csv": b"a,b,price\n1,2,3\n4,,6\n",
    "short.csv": b"a,b,price\n1,2,3\n4,5\n",
    "semicolons.csv": b"a;b;price\n1;2;3\n",
    "twice.csv": b"a,a,price\n1,2,3\n",
    "header.csv": b"a,b,price\n",
    "nothing.csv": b"",
    "quote.csv": b'a,b,price\n1,2,3\n4,"5,6\n',
    "wide.csv": "a,b,price\n1,2,3\n".encode("utf-16"),
    "latin.csv": "größe,b,price\n1,2,3\n".encode("latin-1"),
    "old.csv": b"a,b,price\r1,2,3\r",
    "pictures/cat/one.png": picture(),
    "pictures/dog/torn.png": picture()[:40],
    "empty_class/cat/one.png": picture(),
    "empty_class/dog/notes.txt": b"no picture",
    "loose/one.png": picture(),
}


def mnist(folder: str) -> tuple[str, ...]:
    return reads("Mnist", split="train", root=f"damaged/{folder}")


def numbers(file: str, **arguments: str) -> tuple[str, ...]:
    return reads("Npz", path=f"damaged/{file}", **arguments)


def table(file: str, **arguments: str) -> tuple[str, ...]:
    return reads("Csv", **{"path": f"damaged/{file}", "target": "price", **arguments})


DATA_FILES: dict[str, Row] = {
    "a truncated file": Row(
        job(MNIST, "--data-dir", "damaged"),
        1,
        "data/truncated-file",
        ("train-images-idx3-ubyte: truncated", "47,040,000", "holds 1,000"),
    ),
    "missing data": Row(
        job(MNIST, "--data-dir", "."),
        3,
        "data/not-found",
        ("train-images-idx3-ubyte", "Looked in", "published by", "HOGWILD_DATA"),
    ),
    "labels for images": Row(mnist("swapped"), 1, "data/wrong-format", (IMAGES, "wrong magic number")),
    "images of another size": Row(mnist("small"), 1, "data/wrong-format", (IMAGES, "must be 28 x 28")),
    "more labels than images": Row(mnist("three"), 1, "data/fields", ("holds 2 images", "3 labels")),
    "an eleventh digit": Row(mnist("eleven"), 1, "data/bad-value", (CLASSES, "label 11 of sample 1", "must be < 10")),
    "no images": Row(mnist("none"), 1, "data/empty", (IMAGES, "contains no items")),
    "a gzip file cut off": Row(mnist("unzipped"), 1, "data/damaged-file", (f"{IMAGES}.gz", "truncated gzip file")),
    "an unknown split": Row(
        reads("Mnist", split="tran", root="damaged"), 2, "config/bad-argument", ("split must be one of", "'tran'")
    ),
    "no such npz": Row(numbers("nowhere.npz"), 3, "data/not-found", ("nowhere.npz", "Looked in")),
    "no npz": Row(numbers("text.npz"), 1, "data/wrong-format", ("text.npz: not an .npz file",)),
    "other names": Row(numbers("other_names.npz"), 1, "data/wrong-arrays", ("no array named x, y", "images, labels")),
    "fewer targets": Row(
        numbers("rows.npz"), 1, "data/fields", ("rows.npz: the arrays must have the same number of rows",)
    ),
    "no rows": Row(numbers("no_rows.npz"), 1, "data/empty", ("no_rows.npz: contains no samples",)),
    "pickled objects": Row(
        numbers("objects.npz"), 1, "data/wrong-arrays", ("array 'y' holds Python objects", "never loaded")
    ),
    "an array of words": Row(numbers("words.npz"), 1, "data/wrong-arrays", ("array 'y' has type <U1",)),
    "a single number": Row(numbers("one_number.npz"), 1, "data/wrong-arrays", ("'y' is not an array of samples",)),
    "2^64 - 1": Row(numbers("vast.npz"), 1, "data/bad-value", ("18446744073709551615", "signed 64-bit")),
    "no such table": Row(table("nowhere.csv"), 3, "data/not-found", ("nowhere.csv",)),
    "a word in a column of numbers": Row(table("words.csv"), 1, "data/csv-value", ("words.csv: line 3", "'b'", "five")),
    "a gap": Row(table("gaps.csv"), 1, "data/csv-missing", ("gaps.csv: line 3", "'b'", "missing")),
    "a row too short": Row(table("short.csv"), 1, "data/csv-ragged", ("short.csv: line 3",)),
    "another delimiter": Row(
        table("semicolons.csv"), 1, "data/csv-delimiter", ("semicolons.csv: line 1", "is it ';'?")
    ),
    "two columns of one name": Row(
        table("twice.csv"), 1, "data/csv-columns", ("twice.csv: line 1", "'a' names the columns 0, 1")
    ),
    "a target that is no column": Row(table("good.csv", target="prize"), 2, "data/csv-columns", ("prize", "price")),
    "a header and no row": Row(table("header.csv"), 1, "data/empty", ("header.csv: contains no samples",)),
    "an empty table": Row(table("nothing.csv"), 1, "data/empty", ("nothing.csv",)),
    "a quote left open": Row(table("quote.csv"), 1, "data/csv-quotes", ("quote.csv: line 3",)),
    "a table in UTF-16": Row(table("wide.csv"), 1, "data/csv-encoding", ("wide.csv: is UTF-16",)),
    "a table in Latin-1": Row(
        table("latin.csv"), 1, "data/csv-encoding", ("latin.csv: line 1", "is not utf-8 text", "latin-1")
    ),
    "lines of an old Macintosh": Row(table("old.csv"), 1, "data/csv-line-ends", ("old.csv: line 1", "carriage return")),
    "a delimiter of two": Row(table("good.csv", delimiter="'::'"), 2, "config/bad-argument", ("delimiter",)),
    "a policy nobody has": Row(table("good.csv", missing="guess"), 2, "config/bad-argument", ("missing", "guess")),
    "no such pictures": Row(reads("ImageFolder", path="damaged/nowhere", size="4"), 3, "data/not-found", ("nowhere",)),
    "a torn picture": Row(
        reads("ImageFolder", path="damaged/pictures", size="4"),
        1,
        "data/broken-image",
        ("torn.png: cannot be read as a picture",),
    ),
    "a class without a picture": Row(
        reads("ImageFolder", path="damaged/empty_class", size="4"),
        1,
        "data/image-classes",
        ("dog: this class has no picture",),
    ),
    "pictures without classes": Row(
        reads("ImageFolder", path="damaged/loose", size="4"),
        1,
        "data/image-classes",
        ("it has no class folders",),
    ),
    "a size of nothing": Row(
        reads("ImageFolder", path="damaged/pictures", size="0"), 2, "config/bad-argument", ("size",)
    ),
    "five colours": Row(
        reads("ImageFolder", path="damaged/pictures", size="4", channels="5"), 2, "config/bad-argument", ("channels",)
    ),
}
