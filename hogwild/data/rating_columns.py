"""Which columns of a table of ratings are which: from its first line, or as the job says."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hogwild.errors import DataError

DELIMITERS = ("::", "\t", ",", ";", "|", " ")  # tried in this order
# Names of columns, without case and what is no letter: those of the data sets that people have.
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
    """How the lines are to be read. `columns`: of user, item and rating, by number; -1: no ratings, each is 1."""

    delimiter: str
    columns: tuple[int, int, int]
    has_header: bool

    @property
    def bytes(self) -> tuple[int, int]:
        """The delimiter's, the second one 0 where there is none."""
        return ord(self.delimiter[0]), ord(self.delimiter[1]) if len(self.delimiter) > 1 else 0


def form_of(path: Path, first_line: str, delimiter: str, header: bool | str, columns: Columns | None) -> Form:
    """Raises DataError for a table in which the columns cannot be found."""
    if delimiter == "auto":
        delimiter = next((one for one in DELIMITERS if one in first_line), "\t")
    fields = [field.strip().strip('"') for field in first_line.rstrip("\r\n").split(delimiter)]
    if len(fields) < 2:
        raise _wrong(path, f"the first line has one column: {first_line[:60]!r}; say delimiter")
    has_header = _looks_like_names(fields) if header == "auto" else bool(header)
    if columns is not None:
        return Form(delimiter, _chosen(path, fields, has_header, columns), has_header)
    if not has_header:
        return Form(delimiter, (0, 1, 2 if len(fields) > 2 else -1), False)
    return Form(delimiter, _named(path, fields), True)


def _looks_like_names(fields: Sequence[str]) -> bool:
    """A first line in which two of the names that we know stand, or in which the third column is no number."""
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
            raise _wrong(path, f"no column of the header is that of the {what}s; it has {', '.join(fields)}")
        places[what] = found[0] if found else -1
    return places["user"], places["item"], places["rating"]


def _chosen(path: Path, fields: Sequence[str], has_header: bool, columns: Columns) -> tuple[int, int, int]:
    places = {"rating": -1}
    for what, column in columns.items():
        if isinstance(column, str) and (not has_header or column not in fields):
            has = ", ".join(fields) if has_header else f"no header, but {len(fields)} columns, the first is number 0"
            raise _wrong(path, f"there is no column {column!r} for the {what}s; it has {has}")
        places[what] = fields.index(column) if isinstance(column, str) else column
        if not 0 <= places[what] < len(fields):
            raise _wrong(path, f"there is no column {column} for the {what}s; the first line has {len(fields)}")
    return places["user"], places["item"], places["rating"]


def _wrong(path: Path, words: str) -> DataError:
    return DataError(
        f"{path}: {words}; say which columns are meant: columns={{user: …, item: …, rating: …}}, by name, or by number "
        "from 0 on",
        code="data/rating-columns",
    )
