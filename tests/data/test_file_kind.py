"""A file is what its first bytes say: packed files are read by every class that reads files, and files of another kind
say what they are. Nothing goes by a file's name."""

import bz2
import gzip
import io
import lzma
import pickle
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import csv, parquet
from torch.utils.data import TensorDataset

from hogwild.data import Characters, Clicks, Csv, LibSvm, Npz, Ratings, Text, Triples, WordPairs, text_file
from hogwild.data.mnist import read_idx
from hogwild.data.npz import NpzRows
from hogwild.data.ratings import read_features
from hogwild.data.text import read_pairs
from hogwild.data.text_file import LINES, MARK, TextFile, TextStream
from hogwild.data.vector_file import VectorFile
from hogwild.errors import DataError, NotFoundError
from hogwild.feeds.row_reader import InTurn


def zipped(content: bytes, *names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names or ("folder/", "folder/table.csv", "__MACOSX/._table.csv"):
            archive.writestr(name, content if not name.endswith("/") else b"")
    return file.getvalue()


def zstandard(content: bytes) -> bytes:
    return pyarrow.compress(content, "zstd", asbytes=True)


PACKERS: Mapping[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "lzma": lambda content: lzma.compress(content, format=lzma.FORMAT_ALONE),
    "zst": zstandard,
    "zip": zipped,
    "doubled gz": lambda content: gzip.compress(gzip.compress(content)),
    "xz in bz2": lambda content: bz2.compress(lzma.compress(content)),
    "two members": lambda content: gzip.compress(content[:3]) + gzip.compress(content[3:]),
    "two frames": lambda content: zstandard(content[:3]) + zstandard(content[3:]),
}


def packed(dataset: Any) -> dict[str, Any]:
    found = dataset.pack(InTurn(0), "data.train")
    return {name: array.tolist() for name, array in found.arrays().items()}


def tensors(dataset: Any) -> Any:
    fields = dataset.tensors if isinstance(dataset, TensorDataset) else dataset.rows(0, len(dataset))
    return [field.tolist() for field in fields]


IDX = b"\0\0\x08\x01" + (3).to_bytes(4, "big") + b"\1\2\3"
TEXT = b"to be or not to be that is the question\n" * 3
# What each class reads, and the smallest content that it does.
READERS: Mapping[str, tuple[bytes, Callable[[Path], Any]]] = {
    "Csv": (b"a,b,y\n1,2,3\n4,5,6\n", lambda path: tensors(Csv(path, "y"))),
    "Clicks": (b"a,b,y\nx,u,1\ny,v,0\n", lambda path: packed(Clicks(path, "y"))),
    "Ratings": (b"user,item,rating\n1,2,3\n4,5,6\n", lambda path: packed(Ratings(path))),
    "Triples": (b"a\tlikes\tb\nb\tlikes\tc\n", lambda path: packed(Triples(path))),
    "features": (b"u1\ttall\nu2\told\t0.5\n", read_features),
    "LibSvm": (b"1 1:1 3:2\n0 2:1\n", lambda path: packed(LibSvm(path))),
    "Text": (TEXT, lambda path: packed(Text(path, min_count=1))),
    "Characters": (TEXT, lambda path: tensors(Characters(4, path=path))),
    "Mnist": (IDX, lambda path: read_idx(path, 1).tolist()),
    "vectors": (b"2 2\nthe 1 2\ncat 3 4\n", lambda path: VectorFile.read(path).matrix.tolist()),
    "WordPairs": (b"cat\tdog\t5\n", lambda path: [*read_pairs(path)]),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file.csv"


@pytest.mark.parametrize("reader", READERS)
def test_every_class_reads_a_packed_file_as_the_plain_one(reader: str, file: Path) -> None:
    content, read = READERS[reader]
    file.write_bytes(content)
    plain = read(file)
    for name, pack in PACKERS.items():
        file.write_bytes(pack(content))
        assert read(file) == plain, name


@pytest.mark.parametrize("reader", ["Csv", "Clicks", "Ratings", "Triples", "LibSvm", "Text", "features", "WordPairs"])
def test_files_with_byte_order_marks_that_were_put_together_are_read_as_one(
    reader: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark in front of a name made another name of it, and text of all ids that were whole numbers."""
    content, read = READERS[reader]
    file.write_bytes(content)
    plain = read(file)
    file.write_bytes(MARK + MARK.join(content.splitlines(keepends=True)))
    for size in (LINES, 20):
        monkeypatch.setattr(text_file, "LINES", size)
        assert read(file) == plain


def test_a_file_of_another_kind_is_refused_again_and_by_name_where_its_delimiter_is_looked_for(file: Path) -> None:
    for content, words in ((b'{"a": 1, "y": 2}\n', "is JSON"), ("a,y\n1,2\n".encode("utf-16"), "is UTF-16")):
        file.write_bytes(content)
        text = TextFile(file)
        for _ in range(2):
            with pytest.raises(DataError, match=words):
                text.read_at(0, 10)
        with pytest.raises(DataError, match=words):
            Csv(file, "y", like=["a", "y"])


def test_a_packed_file_is_read_from_any_place_on_in_any_order(file: Path) -> None:
    content = np.random.default_rng(0).integers(97, 123, LINES + 5000, np.uint8).tobytes()
    for name, pack in PACKERS.items():
        file.write_bytes(pack(content))
        text = TextFile(file)
        for offset, size in ((0, 10), (LINES + 100, 50), (7, 100), (50, 9000), (len(content) - 3, 10), (0, 0)):
            assert text.read_at(offset, size) == content[offset : offset + size], (name, offset)
        assert b"".join(TextFile(file).lines(5, 1 << 20)) == content[5:], name


def in_parquet(content: bytes) -> bytes:
    out = io.BytesIO()
    parquet.write_table(csv.read_csv(io.BytesIO(content)), out)
    return out.getvalue()


def tar(content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        info = tarfile.TarInfo("ratings.csv")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


TABLE = b"user,item,rating\n1,2,3\n"
TABLES = ("Csv", "Clicks", "Ratings", "Triples", "features", "LibSvm", "WordPairs")
TEXTS = (*TABLES, "Text", "Characters")
ALL = (*TEXTS, "Mnist", "vectors")
OTHERS: Mapping[str, tuple[bytes, tuple[str, ...], str]] = {
    "an error page": (b"\n<!DOCTYPE html>\n<html><body>404</body></html>", ALL, "is an HTML page"),
    "a page with a mark": (b"\xef\xbb\xbf<HTML>", ALL, "is an HTML page"),
    "a zipped page": (gzip.compress(b"<html>"), ALL, "is an HTML page"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", ALL, "git lfs pull"),
    "UTF-16": (TABLE.decode().encode("utf-16"), TEXTS, "is UTF-16; save it as UTF-8"),
    "UTF-16 without a mark": (TABLE.decode().encode("utf-16-le"), TEXTS, "is UTF-16; save it as UTF-8"),
    "zipped UTF-16": (bz2.compress(TABLE.decode().encode("utf-16")), TEXTS, "is UTF-16"),
    "many zeros": (b"<stata_dta>" + bytes(90), TEXTS[:-2], "is binary, not a text file"),
    "an Arrow stream": (b"\xff\xff\xff\xff\x98\0\0\0\x10" + bytes(20), TABLES, "is an Arrow stream"),
    "zeros": (TABLE + bytes(10), TABLES, "is binary, not a text file"),
    "JSON": (b'{"user": 1}\n', TABLES, "is JSON, not a table"),
    "JSON in a list": (b' [{"user": 1}]\n', TABLES, "is JSON, not a table"),
    "XML": (b'<?xml version="1.0"?><a/>\n', TABLES, "is an XML document"),
    "old line ends": (TABLE.replace(b"\n", b"\r"), TABLES, "line 1: lines end with a carriage return only"),
    "several files": (zipped(TABLE, "users.csv", "ratings.csv"), ALL, "has 2 .users.csv, ratings.csv.; unpack it"),
    "a workbook": (zipped(b"", "[Content_Types].xml", "xl/workbook.xml"), ALL, "is an Excel workbook"),
    "a tar": (tar(TABLE), ALL, "is a tar archive"),
    "arrays": (b"\x93NUMPY\1\0", ALL, r"is a NumPy array \(.npy\)"),
    "Parquet": (in_parquet(TABLE), tuple({*ALL} - {"Csv", "Clicks"}), "is a Parquet table"),
    "a cut gzip": (gzip.compress(np.random.default_rng(0).bytes(9000))[:-20], ALL, "damaged or truncated gzip file"),
    "a cut bz2": (bz2.compress(TABLE)[:-8], ALL, "damaged or truncated bzip2 file"),
    "a damaged xz": (lzma.compress(TABLE)[:-8], ALL, "damaged or truncated xz file"),
    "a torn zip": (b"PK\3\4 and no more", ALL, "damaged or truncated zip file"),
    "a cut zst": (zstandard(TABLE)[:-4], ALL, "damaged or truncated Zstandard file"),
    "packed too often": (bz2.compress(gzip.compress(lzma.compress(gzip.compress(TABLE)))), ALL, "packed more than 3"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_file_of_another_kind_says_what_it_is(kind: str, file: Path) -> None:
    content, readers, words = OTHERS[kind]
    file.write_bytes(content)
    for reader in readers:
        with pytest.raises(DataError, match=words) as refused:
            READERS[reader][1](file)
        assert str(refused.value).startswith(f"{file}: "), reader


def test_a_text_is_no_table_and_may_begin_as_any_other(file: Path) -> None:
    for begin in (b'{"a": ', b"PAR1 ", b"ORC ", b"BZ ", b"<?xml "):
        file.write_bytes(begin + TEXT)
        assert packed(Text(file, min_count=1))["tokens"]
    file.write_bytes(b"PAR1,b,y\n1,2,3\n")
    assert Csv(file, "y").columns == ("PAR1", "b", "y")


def test_a_folder_says_that_it_is_one(tmp_path: Path) -> None:
    folder = tmp_path / "ratings.csv"
    folder.mkdir()
    classes: tuple[Callable[[], Any], ...] = (
        lambda: Csv(folder, "y"), lambda: Ratings(folder), lambda: Triples(folder), lambda: LibSvm(folder),
        lambda: Text(folder), lambda: Characters(path=folder), lambda: Npz(folder), lambda: WordPairs(folder),
    )  # fmt: skip
    for build in classes:
        with pytest.raises(NotFoundError, match=r"ratings\.csv is a folder, not a file"):
            build()


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_parquet_and_text_are_told_apart_by_content(name: str, tmp_path: Path) -> None:
    content = READERS["Csv"][0]
    for each in (content, in_parquet(content)):
        (tmp_path / name).write_bytes(each)
        assert tensors(Csv(tmp_path / name, "y")) == [[[1, 2], [4, 5]], [[3], [6]]]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(b"x", mtime=0), "is packed by gzip; unpack it first"),
        (b"<html>", "is an HTML page"),
        (b"\x93NUMPY\1\0", "is a NumPy array"),
        (pickle.dumps([1, 2, 3]), "is a Python pickle, which is never loaded"),
        (b"", "not an .npz file"),
        (zipped(TABLE, "ratings.csv"), "it holds ratings.csv"),
    ],
)  # fmt: skip
def test_arrays_of_another_kind_say_what_they_are(content: bytes, words: str, tmp_path: Path) -> None:
    file = tmp_path / "arrays.npz"
    file.write_bytes(content)
    for read in (Npz, lambda path: NpzRows(path, "x")):
        with pytest.raises(DataError, match=words):
            read(file)


def test_a_stream_of_another_kind_says_what_it_is(tmp_path: Path) -> None:
    for content, words in ((gzip.compress(TABLE), "packed by gzip; unpack it first"), (b"<html>", "HTML page")):
        (tmp_path / "in").write_bytes(content)
        with open(tmp_path / "in", "rb") as source, pytest.raises(DataError, match=f"standard input: is .*{words}"):
            [*TextStream(Path("standard input"), source.fileno()).lines()]
