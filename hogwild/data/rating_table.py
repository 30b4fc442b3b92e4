"""Tables of ratings: finds the columns, from the first line or from the job, and turns parsed ratings into final ones:
ids numbered, sorted, each pair once, and optionally only one part of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hogwild.data.text_parsing.parsing import Parsed, Parsing
from hogwild.data.text_parsing.word_columns import in_order
from hogwild.data.triples import in_numbers_of
from hogwild.errors import DataError
from hogwild.feeds.packed import Packed

DELIMITERS = ("::", "\t", ",", ";", "|", " ")  # tried in this order
# Column names, in lower case and letters only, from well-known data sets.
NAMES: Mapping[str, tuple[str, ...]] = {
    "user": ("userid", "user", "users", "uid", "reviewerid", "customerid", "profileid", "sessionid"),
    "item": (
        *("movieid", "itemid", "item", "items", "iid", "movie", "productid", "product", "asin", "parentasin", "isbn"),
        *("bookid", "songid", "trackid", "artistid", "animeid", "jokeid", "gameid", "businessid", "recipeid"),
    ),
    "rating": ("rating", "ratings", "score", "stars", "overall", "bookrating", "plays", "playcount", "count", "weight"),
}
Columns = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Form:
    """Format of the lines. `columns`: numbers of the user, item and rating columns; -1: no ratings, each is 1."""

    delimiter: str
    columns: tuple[int, int, int]
    has_header: bool
    width: int  # fields of the first line

    @property
    def bytes(self) -> tuple[int, int]:
        """The delimiter's bytes; the second is 0 if there is only one."""
        return ord(self.delimiter[0]), ord(self.delimiter[1]) if len(self.delimiter) > 1 else 0


def form_of(path: Path, first_line: str, delimiter: str, header: bool | str, columns: Columns | None) -> Form:
    """Return the form of a table. Raises DataError if its columns cannot be found."""
    if delimiter == "auto":
        delimiter = next((one for one in DELIMITERS if one in first_line), "\t")
    fields = [field.strip().strip('"') for field in first_line.rstrip("\r\n").split(delimiter)]
    if len(fields) < 2:
        raise _wrong(path, f"the first line has only one column: {first_line[:60]!r}; set delimiter")
    has_header = _looks_like_names(fields) if header == "auto" else bool(header)
    if columns is not None:
        return Form(delimiter, _chosen(path, fields, has_header, columns), has_header, len(fields))
    if not has_header:
        return Form(delimiter, (0, 1, 2 if len(fields) > 2 else -1), False, len(fields))
    return Form(delimiter, _named(path, fields), True, len(fields))


def _looks_like_names(fields: Sequence[str]) -> bool:
    """Return whether the first line is a header: it has two known names, or its third column is not a number."""
    known = {name for names in NAMES.values() for name in names}
    if sum(_letters(field) in known for field in fields) > 1:
        return True
    return len(fields) > 2 and not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", fields[2])


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


def _named(path: Path, fields: Sequence[str]) -> tuple[int, int, int]:
    places = {}
    for what, names in NAMES.items():
        found = [place for place, field in enumerate(fields) if _letters(field) in names]
        if not found and what != "rating":
            raise _wrong(path, f"the header has no column for the {what}s, only {', '.join(fields)}")
        places[what] = found[0] if found else -1
    return places["user"], places["item"], places["rating"]


def _chosen(path: Path, fields: Sequence[str], has_header: bool, columns: Columns) -> tuple[int, int, int]:
    places = {"rating": -1}
    for what, column in columns.items():
        if isinstance(column, str) and (not has_header or column not in fields):
            has = ", ".join(fields) if has_header else f"no header, only {len(fields)} columns, numbered from 0"
            raise _wrong(path, f"there is no column {column!r} for the {what}s; the file has {has}")
        places[what] = fields.index(column) if isinstance(column, str) else column
        if not 0 <= places[what] < len(fields):
            raise _wrong(path, f"there is no column {column} for the {what}s; the first line has {len(fields)}")
    return places["user"], places["item"], places["rating"]


def _wrong(path: Path, words: str) -> DataError:
    return DataError(
        f"{path}: {words}; set columns={{user: …, item: …, rating: …}} to names or numbers, counted from 0",
        code="data/rating-columns",
    )


TABLE_LIMIT = 1 << 26  # ids up to this, or four times the ratings, use a lookup table; others are sorted


@dataclass(slots=True)
class Rated:
    """Parsed ratings, (N,) each. `user` and `item` int32 are ids as written or, with `words`, indices into those."""

    user: np.ndarray
    item: np.ndarray
    rating: np.ndarray
    words: tuple[list[bytes], list[bytes]] | None = None


class RatedParsing(Parsing):
    """Base class: turns parsed ratings into the packed table. Its sources have `duplicates` and `holdout`."""

    def table(self, rated: Rated) -> Parsed:
        """Return the table, sorted by user and item. Raises DataError for duplicate pairs."""
        self.compile("ids")
        names = {"users": _dense(rated.user, rated.words and rated.words[0])}
        names["items"] = _dense(rated.item, rated.words and rated.words[1])
        chosen = self._in_order(rated, names)
        if self.source.holdout is not None:
            chosen = self._part(rated, chosen)
        if chosen is not None:
            rated = Rated(rated.user[chosen], rated.item[chosen], rated.rating[chosen])
        if self.like is not None:
            rated, names = self._as_in(self.like, rated, names), {k: self.like.names[k] for k in names}
        elif self.source.holdout is not None:
            names = {
                "users": names["users"][_dense(rated.user, None)],
                "items": names["items"][_dense(rated.item, None)],
            }
        sizes = {kind: len(values) for kind, values in names.items()}
        arrays = {"user": rated.user, "item": rated.item, "rating": rated.rating}
        return self.finished(Packed.of(self.region_name, "table", arrays, sizes, names))

    def places(self, user: str, item: str) -> list[str]:
        """Return the lines of one pair in the file, for an error."""
        return []

    def _in_order(self, rated: Rated, names: dict[str, np.ndarray]) -> np.ndarray | None:
        """Return the rows to keep, sorted; None: all rows, unchanged."""
        from hogwild.kernels.parsing.ordering import are_sorted, counted

        is_sorted, is_twice = are_sorted(rated.user, rated.item)
        if is_sorted and not is_twice:
            return None
        by_item = np.empty(len(rated.user), np.int32)
        order = np.arange(len(rated.user), dtype=np.int32)
        counted(rated.item, order, np.zeros(len(names["items"]) + 1, np.int64), by_item)
        counted(rated.user, by_item, np.zeros(len(names["users"]) + 1, np.int64), order)
        user, item = rated.user[order], rated.item[order]
        is_again = (user[1:] == user[:-1]) & (item[1:] == item[:-1])
        if self.source.duplicates == "keep" or not is_again.any():
            return order
        if self.source.duplicates == "fail":
            first = int(is_again.argmax())
            pair = str(names["users"][user[first]]), str(names["items"][item[first]])
            where = " and ".join(self.places(*pair)[:2]) or str(self.source.path)
            raise DataError(
                f"{where}: user {pair[0]} rated item {pair[1]} twice; there are {int(is_again.sum()):,} such ratings; "
                "set duplicates: last (use the later one) or keep",
                code="data/duplicate-rating",
            )
        many = self.left_out["earlier ratings"] = int(is_again.sum())
        self.notes.append(f"{many:,} ratings are left out: the same user rated the same item again further down")
        last: np.ndarray = order[np.append(~is_again, True)]
        return last

    def _part(self, rated: Rated, chosen: np.ndarray | None) -> np.ndarray:
        """Return the rows of the wanted part, in the same order."""
        from hogwild.kernels.parsing.ordering import held_out

        holdout: Holdout = self.source.holdout
        is_held = np.zeros(len(rated.user), np.bool_)
        held_out(rated.user, rated.item, np.uint64(holdout.seed), holdout.fraction, is_held)
        every: np.ndarray = np.arange(len(rated.user)) if chosen is None else chosen
        rows: np.ndarray = every[is_held[every] == holdout.is_test]
        if not len(rows):
            raise DataError(
                f"{self.what}: holdout {holdout.fraction} of {len(rated.user):,} ratings leaves one part empty",
                code="data/split",
            )
        return rows

    def _as_in(self, like: Packed, rated: Rated, names: dict[str, np.ndarray]) -> Rated:
        """Return the ratings with the training data's numbers, without unknown users and items."""
        if {*names} - {*like.names}:
            raise DataError(f"{self.source.path}: data.train has no ratings", code="data/val-unlike-train")
        for ids, kind in ((rated.user, "users"), (rated.item, "items")):
            ids[:] = in_numbers_of(like.names[kind], names[kind])[ids]
        is_known = (rated.user >= 0) & (rated.item >= 0)
        if not (unknown := int(np.count_nonzero(~is_known))):
            return rated
        self.left_out["unseen ratings"] = unknown
        self.notes.append(
            f"{unknown:,} of {len(is_known):,} ratings are left out: the training data does not have their user or item"
        )
        return Rated(rated.user[is_known], rated.item[is_known], rated.rating[is_known])


def _dense(ids: np.ndarray, words: list[bytes] | None) -> np.ndarray:
    """Replace `ids` by numbers from 0 on, in place, in the order of the returned names."""
    if words is not None:
        ranks, names = in_order(words)
        ids[:] = ranks[ids]
        return np.asarray(names) if isinstance(names, np.ndarray) else np.array(names, object)
    highest = int(ids.max(initial=0))
    if highest >= max(TABLE_LIMIT, 4 * len(ids)):
        names, numbers = np.unique(ids, return_inverse=True)
        ids[:] = numbers
        return names.astype(np.int64)
    is_there = np.zeros(highest + 1, np.bool_)
    is_there[ids] = True
    ids[:] = (np.cumsum(is_there, dtype=np.int32) - np.int32(1))[ids]
    return np.flatnonzero(is_there)


@dataclass(frozen=True, slots=True)
class Holdout:
    """The wanted part of a file that is split by hash."""

    fraction: float
    seed: int
    is_test: bool
