"""The data of the sparse suite as plain arrays in files, made once: every peer gets the same rows, split and order as
we do, and no peer's clock runs while a text file is read (`load_s` of each says what it needs on top).

    bag_of_words   imdb: train.npz and test.npz with indptr, indices, values, target
    ratings        a table of users, items and ratings in two parts: npz for peers, `ratings.csv` for us
    words          imdb_text.txt, unpacked
    census         a9a as a table of categories: CSV, for peers and for us"""

import gzip
import io
import itertools
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.synthetic_ratings import Shape, tables

IMDB_FEATURES = 89_527
RATING_COLUMNS = ("user", "item", "rating")
# a9a's features belong to these many columns of the census, in this order: age, workclass, …, native country.
CENSUS = (5, 8, 5, 16, 5, 7, 14, 6, 5, 2, 2, 2, 5, 41)
PREPARATIONS = ("counts", "l2")
ROWS_AT_ONCE = 1 << 20
NO_RATING, HELD_OUT = 99.0, 0.1  # Jester's sign for none; the share of `liked`


def data_folder() -> Path:
    return Path(os.environ["HOGWILD_DATA"])


@dataclass(frozen=True, slots=True)
class Parts:
    """Two files with the same arrays."""

    train: Path
    test: Path


def bag_of_words(folder: Path) -> Parts:
    """imdb's term counts: indptr (N+1,) int32, indices (nnz,) int32, values (nnz,) float32, target (N,) of -1 and 1."""
    parts = Parts(folder / "imdb-train.npz", folder / "imdb-test.npz")
    for part, name in ((parts.train, "train"), (parts.test, "test")):
        if not part.exists():
            np.savez(part, **_libsvm(data_folder() / "imdb" / f"imdb_bow_{name}.svm.gz"))
    return parts


def census(folder: Path) -> Parts:
    """Return a9a as CSV: `income`, 1 for above 50,000 dollars, and for each column the number of its feature, or
    nothing where the row has none."""
    parts = Parts(folder / "a9a-train.csv", folder / "a9a-test.csv")
    ends = np.cumsum(CENSUS)
    for part, name in ((parts.train, "a9a"), (parts.test, "a9a.t")):
        with open(data_folder() / "a9a" / name) as rows, open(part, "w") as table:
            table.write(",".join(["income", *(f"c{number}" for number in range(len(CENSUS)))]) + "\n")
            for row in rows:
                label, *features = row.split()
                values = [""] * len(CENSUS)
                for feature in (int(one.partition(":")[0]) for one in features):
                    values[int(np.searchsorted(ends, feature))] = str(feature)
                table.write(",".join([str(int(int(label) > 0)), *values]) + "\n")
    return parts


def _libsvm(path: Path) -> dict[str, np.ndarray]:
    from sklearn.datasets import load_svmlight_file

    matrix, target = load_svmlight_file(str(path), n_features=IMDB_FEATURES, dtype=np.float32, zero_based=False)
    indices, indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    return {"indptr": indptr, "indices": indices, "values": matrix.data, "target": target.astype(np.int64)}


def prepared(values: np.ndarray, indptr: np.ndarray, preparation: str) -> np.ndarray:
    """The values of each row as PREPARATIONS says: the counts as they are, or scaled to rows of length one."""
    if preparation == "counts":
        return values
    starts = np.minimum(indptr[:-1], max(0, len(values) - 1))
    squares = np.add.reduceat(values.astype(np.float64) ** 2, starts) if len(values) else np.zeros(len(starts))
    lengths = np.sqrt(np.where(np.diff(indptr) > 0, squares, 1.0))
    scaled: np.ndarray = (values / np.repeat(lengths, np.diff(indptr))).astype(np.float32)
    return scaled


def words(folder: Path, reviews: int | None = None) -> Path:
    """100,000 reviews, one a line, or only the first ones."""
    file = folder / ("imdb_text.txt" if reviews is None else f"imdb_text-{reviews}.txt")
    if not file.exists():
        aside = file.with_suffix(".part")
        with gzip.open(data_folder() / "imdb" / "imdb_text.txt.gz", "rb") as packed, open(aside, "wb") as plain:
            plain.writelines(itertools.islice(packed, reviews))
        aside.rename(file)
    return file


def synthetic(folder: Path, shape: Shape) -> Parts:
    """Synthetic ratings of this shape."""
    name = f"ratings-{shape.users}-{shape.items}-{shape.ratings}"
    parts = Parts(folder / f"{name}-train.npz", folder / f"{name}-test.npz")
    if parts.train.exists() and parts.test.with_suffix(".csv").exists():
        return parts
    return save_ratings(folder, name, *tables(shape))


def save_ratings(folder: Path, name: str, train: Mapping[str, np.ndarray], test: Mapping[str, np.ndarray]) -> Parts:
    """`user`, `item` (N,) int32 and `rating` (N,) float32 of each part, for peers; beside them, for us, the same as
    `NAME-train.csv` and `NAME-test.csv`."""
    parts = Parts(folder / f"{name}-train.npz", folder / f"{name}-test.npz")
    for path, table in ((parts.train, train), (parts.test, test)):
        np.savez(path, **{column: table[column] for column in RATING_COLUMNS})
        _write_csv(path.with_suffix(".csv"), table)
    return parts


def _write_csv(path: Path, table: Mapping[str, np.ndarray]) -> None:
    import pyarrow
    from pyarrow import csv

    names = ("userId", "movieId", "rating")
    named = dict(zip(names, (table[column] for column in RATING_COLUMNS), strict=True))
    with open(path, "wb") as file:
        file.write(f"{','.join(names)}\n".encode())  # pyarrow would put them in quotation marks
        csv.write_csv(pyarrow.table(named), file, csv.WriteOptions(include_header=False))


def rmse(
    users: np.ndarray, items: np.ndarray, table: Mapping[str, np.ndarray], offsets: np.ndarray | float = 0.0
) -> float:
    """Return the error of `users` (U, k) times `items` (I, k) plus `offsets` (N,), for the ratings of a table. A user
    or item that the training part does not have is counted with a product of 0, whoever trained."""
    known = (table["user"] < len(users)) & (table["item"] < len(items))
    errors = offsets - table["rating"].astype(np.float64)
    for first in range(0, len(known), ROWS_AT_ONCE):
        part = slice(first, first + ROWS_AT_ONCE)
        here = np.flatnonzero(known[part]) + first
        products = np.einsum("nk,nk->n", users[table["user"][here]], items[table["item"][here]])
        errors[here] += np.nan_to_num(products)
    return float(np.sqrt(np.mean(errors**2)))


def liked(folder: Path) -> Parts:
    """Pairs of Jester's people and jokes with a rating above 0, a tenth of them held out: user (N,) int32, item (N,)
    int32; the same as `.csv`. People without a pair to train on are left out."""
    parts = Parts(folder / "liked-train.npz", folder / "liked-test.npz")
    if parts.test.exists():
        return parts
    with zipfile.ZipFile(data_folder() / "jester" / "jester-data-1.zip") as packed:
        table = np.loadtxt(io.BytesIO(packed.read("jester-data-1.csv")), np.float32, delimiter=",")[:, 1:]
    is_held = np.random.default_rng(1).random(table.shape) < HELD_OUT
    is_liked = (table > 0) & (table != NO_RATING)
    is_known = (is_liked & ~is_held).any(1)
    is_liked, is_held = is_liked[is_known], is_held[is_known]
    for path, part in ((parts.train, is_liked & ~is_held), (parts.test, is_liked & is_held)):
        user, item = (index.astype(np.int32) for index in np.nonzero(part))
        np.savetxt(path.with_suffix(".csv"), np.stack([user, item], 1), "%d", ",", header="user,item", comments="")
        np.savez(path, user=user, item=item)
    return parts


def liked_matrix(path: str) -> Any:
    """Return a part of `liked` as scipy's matrix of ones, users x items."""
    from scipy.sparse import coo_matrix

    table = np.load(path)
    return coo_matrix((np.ones(len(table["user"]), np.float32), (table["user"], table["item"])))
