"""Pairs of a user and an item, perhaps rated, as programs have them in memory:

sparse matrix (scipy's)                      a row per user, a column per item; what is not stored is no pair
data frame (pandas; polars, Arrow),          columns by name where they are known from well-known data sets,
structured array                             else by place
array, list of rows                          by place: user, item, rating"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hogwild.data.ids import WHITE, WHOLE, IdRows, spelled
from hogwild.data.locate import require
from hogwild.data.rating_form import recognised
from hogwild.errors import UsageError, shown_name
from hogwild.feeds.packed import Packed
from hogwild.formatting import brief, counted

MOST_UNUSED = 1 << 20  # rows of a model of unknown size that its ids may leave unused
RULE = "rows of a user, an item and perhaps a rating"


@dataclass(frozen=True, slots=True)
class PairTable:
    """Ids of `users` and `items` (N,); `rating` (N,) float32 or None. `note`: what was chosen for the user. `shape`: of
    a matrix, whose rows and columns are the ids. `is_plain`: no ratings, or a matrix whose values are all alike."""

    __repr__ = brief

    users: np.ndarray
    items: np.ndarray
    rating: np.ndarray | None
    note: str = ""
    shape: tuple[int, int] | None = None
    is_plain: bool = False

    @classmethod
    def of(cls, x: Any, y: Any = None) -> "PairTable":
        """Return the pairs in `x`, with the ratings `y` if it has none. Raises UsageError."""
        if is_matrix(x):
            return cls._of_matrix(x, y)
        names, columns = _columns(x)
        places = _places(names, columns, has_ratings=y is not None)
        if not places or not len(columns[0]) or (y is not None and len(y) != len(columns[0])):
            got = "no y" if y is None else f"y of shape {np.shape(y)}"
            shape = f"shape {(len(columns[0]), len(columns))}" if columns else f"{len(x):,} rows that are no table"
            raise _wrong(f"{RULE}, which may also be y, are needed; got X of {shape} and {got}")
        users, items = (_ids(columns[place], what) for place, what in zip(places, ("user", "item"), strict=False))
        given = columns[places[2]] if len(places) > 2 else y
        is_guess = bool(names) and min(recognised(names)[what] for what in ("user", "item")) < 0
        notes = [f"columns by place, user, item, rating: {', '.join(names)}"] if is_guess else []
        notes += [note for place in places[:2] if (note := _merged_note(columns[place]))]
        return cls(users, items, None if given is None else _ratings(given), "; ".join(notes), is_plain=given is None)

    @classmethod
    def _of_matrix(cls, x: Any, y: Any) -> "PairTable":
        """Return the values of a matrix that are not 0. If all are alike, they are pairs without ratings."""
        if y is not None or len(x.shape) != 2:
            raise _wrong(f"a sparse matrix of users and items has its ratings in it, got shape {x.shape} and y {y!r}")
        wide = x if x.dtype == np.bool_ else x.astype(np.float64)  # a sum of two 100 as int8 is -56
        stored = wide.tocsr().tocoo()  # a csr matrix adds up what is stored twice
        stored.sum_duplicates()
        rows = np.flatnonzero(stored.data)
        value = _ratings(stored.data[rows])
        if not len(rows):
            raise _wrong(f"a sparse matrix of shape {x.shape} without a value is given")
        is_plain = value[0] > 0 and bool((value == value[0]).all())
        notes = [] if is_plain else [f"values of the matrix are ratings, from {value.min():g} to {value.max():g}"]
        zeros = len(stored.data) - len(rows)
        notes += [f"{zeros:,} stored values of 0 are no pairs"] if zeros else []
        users, items = (one[rows].astype(np.int64) for one in (stored.row, stored.col))
        rating = None if is_plain and value[0] == 1 else value
        return cls(users, items, rating, "; ".join(notes), x.shape, is_plain)

    def packed(self, what: str, users: np.ndarray, items: np.ndarray, notes: list[str]) -> Packed:
        """Return the table in the order of users and items, with these names; pairs of others are left out. As in a
        file, repeats are counted; adds to `notes` what a person should know. Raises UsageError for repeats that have
        ratings."""
        user, item = rows_of(users, self.users), rows_of(items, self.items)
        order = np.lexsort((item, user))
        order = order[(user[order] >= 0) & (item[order] >= 0)]
        user, item = user[order].astype(np.int32), item[order].astype(np.int32)
        is_first = np.append(True, (user[1:] != user[:-1]) | (item[1:] != item[:-1]))[: len(order)]
        again = len(order) - int(is_first.sum())
        if again and self.rating is not None:
            row = int(order[is_first.argmin()])
            raise _wrong(
                f"user {self.users[row]} rated item {self.items[row]} twice, the second time in row {row:,}; there are "
                f"{again:,} such ratings: keep one of each, as frame.drop_duplicates([…], keep='last') does"
            )
        notes += [f"{again:,} rows repeat a user and an item: repeats are counted"] if again else []
        if not self.is_plain and self.rating is not None and len(self.users) > 1 and np.ptp(self.rating) == 0:
            notes.append(f"each rating is {self.rating[0]:g}: leave them out to rank items")
        first = np.flatnonzero(is_first)
        rating = np.diff(first, append=len(order)).astype(np.float32) if self.rating is None else self.rating[order]
        arrays = {"user": user[first], "item": item[first], "rating": rating}
        sizes, names = {"users": len(users), "items": len(items)}, {"users": users, "items": items}
        return Packed.of(what, "table", arrays, sizes, names)


def rows_of(names: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Return the row of each id (N,) int64 among the names, -1 for an unknown one."""
    different, places = np.unique(ids, return_inverse=True)
    return IdRows(names.tolist()).rows(different.tolist())[places]


def is_matrix(x: Any) -> bool:
    """Return whether it is a sparse matrix, or array, of scipy."""
    return hasattr(x, "tocsr")


def is_table(x: Any) -> bool:
    """Return whether it is a table in memory, not a data set."""
    return is_matrix(x) or isinstance(x, np.ndarray) or _is_frame(x)


def _is_frame(x: Any) -> bool:
    return any(hasattr(x, name) for name in ("iloc", "__arrow_c_stream__", "__dataframe__"))


def _columns(x: Any) -> tuple[list[str], list[np.ndarray]]:
    """Return the columns, and their names if they have any."""
    if hasattr(x, "iloc"):
        levels = [name for name in x.index.names if isinstance(name, str)]
        if max(recognised(levels).values()) >= 0:  # as groupby leaves them
            x = x.reset_index()
    if hasattr(x, "iloc") and len(x.shape) == 2:
        columns = [x.iloc[:, place].to_numpy() for place in range(x.shape[1])]
        return [*x.columns] if all(isinstance(name, str) for name in x.columns) else [], columns
    if _is_frame(x) and not hasattr(x, "iloc"):
        require("pyarrow", f"a {type(x).__name__}", "pyarrow", "csv")
        import pyarrow
        from pyarrow.interchange import from_dataframe

        table = pyarrow.table(x) if hasattr(x, "__arrow_c_stream__") else from_dataframe(x)
        columns = [  # only numbers by `to_numpy`, which may import pandas
            column.to_numpy()
            if pyarrow.types.is_primitive(column.type) and not column.null_count
            else np.array(column.to_pylist(), object)
            for column in table.columns
        ]
        return table.column_names, columns
    if isinstance(x, np.ndarray) and x.dtype.names is not None and x.ndim == 1:
        return [*x.dtype.names], [x[name] for name in x.dtype.names]
    if isinstance(x, Sequence) and len({len(row) if isinstance(row, Sequence) else -1 for row in x}) > 1:
        return [], []
    table = x if isinstance(x, np.ndarray) else np.array(x, object)
    return [], [*table.T] if table.ndim == 2 else []


def _places(names: Sequence[str], columns: Sequence[np.ndarray], *, has_ratings: bool) -> list[int]:
    """Return the places of users, items and, if there are any, of ratings; [] if they are not known. Raises UsageError
    for columns whose names leave it open."""
    known, said = recognised(names), f"the columns are {', '.join(names)}"
    if min(known["user"], known["item"]) < 0:
        if max(known["user"], known["item"]) >= 0:
            raise _wrong(f"{said}; one of user and item has no column of a known name")
        return [*range(len(columns))] if len(columns) in (2, 3 - has_ratings) else []
    if has_ratings and known["rating"] >= 0:
        unclear = f"{names[known['rating']]!r} may be ratings, and so may y: leave one of them out"
        raise _wrong(f"{said}; {unclear}")
    second = recognised(["" if place in known.values() else name for place, name in enumerate(names)])
    for what in ("user", "item", "rating"):
        if second[what] >= 0:
            both = f"{names[known[what]]!r} and {names[second[what]]!r}"
            raise _wrong(f"{said}; both {both} may be the {what}: leave one of them out")
    places = [known["user"], known["item"]]
    if has_ratings:
        return places
    if known["rating"] >= 0:
        return [*places, known["rating"]]
    others = [name for place, name in enumerate(names) if place not in known.values() and _is_number(columns[place])]
    if others:
        raise _wrong(f"{said}; {', '.join(others)} may be ratings: name them rating, give them as y, or leave them out")
    return places


def _is_number(column: np.ndarray) -> bool:
    try:
        return column.dtype.kind in "iufb" or bool(np.isfinite(column.astype(np.float64)).all())
    except (TypeError, ValueError):
        return False


def _ids(column: np.ndarray, what: str) -> np.ndarray:
    """Return the ids (N,): whole numbers as int64, others as text."""
    if column.dtype.kind in "iu":
        return column
    if column.dtype.kind == "f" and np.abs(column, where=np.isfinite(column), out=np.zeros_like(column)).max() >= (
        most := 2 ** (np.finfo(column.dtype).nmant + 1)
    ):
        raise _wrong(
            f"the {what}s are {column.dtype}, which has lost digits of whole numbers from {most:,} on: give ids as "
            "integers or text, in columns of a data frame or a structured array"
        )
    values = column.tolist()
    for row, value in enumerate(values):
        if not isinstance(value, str) and str(value) in ("None", "nan", "<NA>", "NaT"):
            raise _wrong(f"row {row} has no {what}: {value!r}")
    if all(isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1 for value in values):
        whole = np.array([*map(int, values)])
        return whole if whole.dtype.kind in "iu" else np.array([*map(str, map(int, values))])
    texts = [*map(spelled, values)]
    if all(text.isdecimal() or WHOLE.fullmatch(text) for text in texts):
        texts = [text.partition(".")[0] for text in texts]
    return np.array(texts)


def _merged_note(column: np.ndarray) -> str:
    """Return a note if ids become one, as they differ in white space around them only."""
    different = {one for one in column.tolist() if isinstance(one, str)} if column.dtype.kind in "OUT" else set[str]()
    known = dict[str, str]()
    again = [(one, first) for one in sorted(different) if (first := known.setdefault(one.strip(WHITE), one)) != one]
    if not again:
        return ""
    one, first = again[0]
    padded = one if one != one.strip(WHITE) else first
    return (
        f"white space around an id does not count, so {counted(len(again), 'id')} less: {shown_name(padded)} counts as "
        f"{shown_name(padded.strip(WHITE))}"
    )


def _ratings(given: Any) -> np.ndarray:
    try:
        rating = np.asarray(given, np.float32)
    except (TypeError, ValueError) as error:
        raise _wrong(f"the ratings are no numbers: {error}") from None
    if rating.ndim == 2 and rating.shape[1] == 1:
        rating = rating[:, 0]
    if rating.ndim != 1:
        raise _wrong(f"ratings of shape {rating.shape} are no number per row")
    if not np.isfinite(rating).all():
        row = int(np.argmin(np.isfinite(rating)))
        raise _wrong(f"rating {rating[row]} in row {row}: ratings must be finite")
    return rating


def _wrong(words: str) -> UsageError:
    return UsageError(words, code="usage/ratings")


# ---- as the data of a call ------------------------------------------------------------------------------------------


def as_data(model: Any, dataset: Any, val: Any) -> tuple[Any, Any, list[str]]:
    """Return the data set and the validation data of a call of `hogwild.train`, packed if they are tables of pairs, and
    notes for the user. Whole numbers that are rows of the model's tables keep their number; other ids are numbered in
    their order. Raises UsageError for a table of something else."""
    has_scores, notes = hasattr(model, "score_tables"), list[str]()
    for what, one in (("dataset", dataset), ("val", val)):
        if not is_table(one) or has_scores or is_matrix(one):
            continue
        known = recognised(_columns(one)[0])
        if min(known["user"], known["item"]) < 0:
            raise _no_data_set(what, one)
    if is_table(dataset):
        dataset = _numbered(model, PairTable.of(dataset), has_scores, notes)
    if is_table(val):
        if not isinstance(dataset, Packed) or {"users", "items"} - dataset.names.keys():
            raise _no_data_set("val", val)
        others = PairTable.of(val)
        said = [others.note] if others.note else []
        if others.is_plain and others.rating is None and np.ptp(dataset.arrays()["rating"]):
            said.append("it has no ratings: each is 1")
        users, items = (np.asarray(dataset.names[kind]) for kind in ("users", "items"))
        val = others.packed("data-val", users, items, said)
        notes += [f"val: {note}" for note in said]
        if less := len(others.users) - val.samples:
            notes.append(f"val: {less:,} of {len(others.users):,} pairs are left out: dataset lacks their user or item")
    return dataset, val, notes


def _numbered(model: Any, pairs: PairTable, has_scores: bool, notes: list[str]) -> Packed:
    """Return the pairs with the rows of the model; adds to `notes` which they are."""
    rows = [len(table) for table in model.score_tables()[:2]] if has_scores else [0, 0]
    sizes = [max(both) for both in zip(rows, pairs.shape or (0, 0), strict=True)]
    names = list[np.ndarray]()
    for ids, size in zip((pairs.users, pairs.items), sizes, strict=True):  # 0: of unknown size
        # All numbers below the size, if the ids are such and few are missing.
        are_rows = ids.dtype.kind in "iu" and ids.min() >= 0 and ids.max() < (size or max(MOST_UNUSED, 4 * len(ids)))
        names.append(np.arange(size or int(ids.max()) + 1) if are_rows else np.unique(ids))
    notes += [f"dataset: {pairs.note}"] if pairs.note else []
    for kind, known in zip(("users", "items"), names, strict=True):
        is_row = known.dtype.kind in "iu" and known[0] == 0 and known[-1] == len(known) - 1
        notes.append(f"dataset: {kind}: row {'n is id n' if is_row else f'0 is {known[0]}, and so on, sorted by id'}")
    said = list[str]()
    packed = pairs.packed("data-train", names[0], names[1], said)
    notes += [f"dataset: {note}" for note in said]
    return packed


def _no_data_set(what: str, table: Any) -> UsageError:
    return UsageError(
        f"{what} is a {type(table).__name__}: a table trains as it is only if it has pairs, in columns user, item and "
        "perhaps rating, or as a sparse matrix. For any other say what is input and what is target: "
        "TensorDataset(torch.tensor(frame[[…]].to_numpy(np.float32)), torch.tensor(frame[…].to_numpy())), or write it "
        "to a file for hogwild.data.Csv(file, target=…)",
        code="usage/objects",
    )
