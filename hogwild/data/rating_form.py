"""The form of a table of ratings, found in its first lines or given by the job: delimiter, header, and the columns of
users, items, ratings and times. What is not certain is an error; what is chosen is said in `Form.told`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hogwild.data.text_parsing import COMMENT, NUMBER, Format
from hogwild.errors import DataError
from hogwild.formatting import counted as number_of

# By how seldom they are part of a name; of equally good ones in a group the first.
_GROUPS = (("::", "\t"), (",", ";", "|"), (" ",))
DELIMITERS = tuple(one for group in _GROUPS for one in group)
# Column names, in lower case and letters only, from well-known data sets.
NAMES: Mapping[str, tuple[str, ...]] = {
    "user": ("userid", "user", "users", "uid", "reviewerid", "customerid", "profileid", "sessionid"),
    "item": (
        *("movieid", "itemid", "item", "items", "iid", "movie", "productid", "product", "asin", "parentasin", "isbn"),
        *("bookid", "songid", "trackid", "artistid", "animeid", "jokeid", "gameid", "businessid", "recipeid"),
    ),
    "time": ("timestamp", "time", "datetime", "date", "unixreviewtime", "reviewdate", "createdat"),
    "rating": ("rating", "ratings", "score", "stars", "overall", "bookrating", "plays", "playcount", "count", "weight"),
}
ORDER = ("user", "item", "rating", "time")  # of the columns of a table without names
INDEX = re.compile(r"(unnamed: ?\d+|__index_level_\d+__|index)?", re.IGNORECASE)  # names of a column of row numbers
LOOKED_AT = 20  # lines
EARLIEST = 1e8  # seconds since 1970: 1973
Columns = Mapping[str, str | int]


@dataclass(frozen=True, slots=True)
class Form:
    """Format of the lines. `columns`: numbers of the user, item, rating and time columns; -1: no ratings, each is 1; no
    times, or none that are needed. `skipped`: lines before the first row, with the header; `names`: in it."""

    delimiter: str
    columns: tuple[int, int, int, int]
    skipped: int
    width: int  # fields of each line
    told: str
    names: tuple[str, ...]

    def columns_for(self, other: "Form") -> Columns | None:
        """Return the columns by which another file is read as this one: by the names in both headers, or, without a
        header there, at their places. None if it has other names, or another width."""
        places = {what: place for what, place in zip(ORDER, self.columns, strict=True) if place >= 0}
        if not other.names:
            return places if other.width == self.width else None
        names = {what: self.names[place] for what, place in places.items()} if self.names else {}
        return names if names and {*names.values()} <= {*other.names} else None


def comments_before(lines: Sequence[bytes]) -> int:
    """Return how many of the first lines are comments, `# …` or `% …`, or empty."""
    return next((n for n, line in enumerate(lines) if line.strip() and not COMMENT.match(line)), len(lines))


def form_of(
    path: Path,
    head: Sequence[bytes],
    delimiter: str,
    header: bool | str,
    columns: Columns | None,
    needs_time: bool = False,
    needs_rating: bool = True,
    encoding: str = "utf-8",
) -> Form:
    """Return the form of a table whose first lines are `head`. Raises DataError if its columns cannot be found."""
    before = comments_before(head)
    lines = [line.decode(encoding, "replace").rstrip("\r\n") for line in head]
    comments, lines = [line for line in lines[:before] if line.strip()], [one for one in lines[before:] if one.strip()]
    if not lines:
        raise DataError(f"{path}: contains no samples: there is no row", code="data/empty")
    lines = lines[:LOOKED_AT]
    if delimiter == "auto":
        delimiter = delimiter_of(lines)
    rows = [fields_in(line, delimiter) for line in lines]
    commented = fields_in(comments[-1].lstrip("#% "), delimiter) if comments else []
    if len(commented) == len(rows[0]) and looks_like_names(commented, rows) and header is not False:
        names, has_header, taken = commented, True, 0
    else:
        names, asked = rows[0], [column for column in (columns or {}).values() if isinstance(column, str)]
        has_asked = bool(asked) and all(column in names for column in asked)
        has_header = has_asked or looks_like_names(names, rows[1:]) if header == "auto" else bool(header)
        taken = int(has_header)
    rows = rows[taken:]
    if len(names) < 2:
        raise _wrong(path, f"the first line has only one column: {lines[0][:60]!r}; set delimiter")
    # R's write.table: each row begins with its name, which the header leaves out.
    has_row_names = taken == 1 and bool(rows) and len(rows[0]) == len(names) + 1 and lines[1].startswith('"1"')
    if has_row_names:
        names = ["", *names]
    given = _given(path, names, has_header, columns or {})
    if {"user", "item"} <= given.keys():
        places = {"rating": -1, "time": -1, **given}
    elif has_header:
        places = _named(path, names, rows if needs_rating else [], given)
    else:
        places = _placed(path, names, given)
        third = [row[2] for row in rows if len(row) > 2]
        are_times = all(NUMBER.fullmatch(text) and float(text) >= EARLIEST for text in third)
        if needs_rating and places["rating"] == 2 and are_times:
            raise _wrong(path, f"column 2 has numbers such as {rows[0][2]}, which seem to be times, not ratings")
    if needs_time and places["time"] < 0:
        raise _wrong(path, "a holdout by time needs a column of times")
    said = [
        f"{what}s in {names[place]!r}" if has_header else f"{what}s in column {place}"
        for what, place in places.items()
        if place >= 0 and what != "time"
    ]
    told = f"columns: {', '.join(said)}" + ("" if places["rating"] >= 0 else ", no ratings: each is 1")
    told += "" if has_header else f"; no header: the first row is {', '.join(names[:4])}"
    told += f"; {number_of(len(comments), 'line')} of comments before them" if comments and taken == has_header else ""
    told += "; the column of R's row names is left out" if has_row_names else ""
    user, item, rating, time = (places[what] for what in ORDER)
    columns_read = user, item, rating, time if needs_time else -1
    return Form(delimiter, columns_read, before + taken, len(names), told, tuple(names) if has_header else ())


def delimiter_of(lines: Sequence[str]) -> str:
    """Return the delimiter that gives all lines the same number of fields: the one that is most seldom part of a name,
    then the one with the most fields. A space only where no other does, or where commas are those of numbers."""
    cut = {one: [fields_in(line, one) for line in lines] for one in DELIMITERS if one in lines[0]}
    widths = {one: {*map(len, rows)} for one, rows in cut.items()}
    even = {one: min(found) for one, found in widths.items() if len(found) == 1 and min(found) > 1}
    if even.get(" ", 0) > 2 and all("," not in "".join(row[:2]) for row in cut[" "]):
        behind = [field for row in cut[" "] for field in row[2:] if "," in field]
        if behind and all(NUMBER.fullmatch(field.replace(",", ".")) for field in behind):
            even.pop(",", None)
    for group in _GROUPS:
        if found := [one for one in group if one in even]:
            return max(found, key=even.__getitem__)
    return max(widths, key=lambda one: (one != " ", min(widths[one])), default="\t")


def fields_in(line: str, delimiter: str) -> list[str]:
    """Return the fields of a line, without quotation marks around them."""
    found = next((fields for *_, fields in Format(delimiter).records(line.encode())), line)
    fields = line.split(delimiter) if isinstance(found, str) else found  # of a quotation mark that is none
    return [field.strip() for field in fields]


def looks_like_names(fields: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a line is a header: it has two known names, its third column is not a number, or user and item are
    numbers in all `rows` but not in it."""
    if sum(place >= 0 for place in recognised(fields).values()) > 1:
        return True
    if len(fields) > 2:
        return not NUMBER.fullmatch(fields[2])
    are_numbers = bool(rows) and all(NUMBER.fullmatch(field) for row in rows for field in row[:2])
    return are_numbers and not any(NUMBER.fullmatch(field) for field in fields[:2])


def _letters(name: str) -> str:
    return re.sub(r"[^a-z]", "", name.lower())


def _named(
    path: Path, fields: Sequence[str], rows: Sequence[Sequence[str]], given: Mapping[str, int]
) -> dict[str, int]:
    """Return the columns that are given, and the others by their names."""
    places = {**recognised(["" if at in given.values() else name for at, name in enumerate(fields)]), **given}
    for what in ("user", "item"):
        if places[what] < 0:
            raise _wrong(path, f"the header has no column for the {what}s, only {', '.join(fields)}")
    known = [place for place, name in enumerate(fields) if _letters(name) in NAMES["rating"]]
    values = [[row[place] for row in rows if place < len(row) and row[place]] for place in range(len(fields))]
    numeric = [bool(one) and all(NUMBER.fullmatch(text.replace(",", ".")) for text in one) for one in values]
    times = [place for place, name in enumerate(fields) if _letters(name) in NAMES["time"]]
    taken = {*places.values(), *recognised(fields).values(), *times}
    others = [place for place in range(len(fields)) if place not in taken and numeric[place]]
    others = known if len(known) > 1 else [place for place in others if not INDEX.fullmatch(fields[place])]
    if rows and "rating" not in given and len(known) != 1 and others:
        found = ", ".join(repr(fields[place]) for place in others)
        raise _wrong(
            path,
            f"which column has the ratings is not known: {found} may be it, of {', '.join(fields)}; without one among "
            "the columns that are set, each rating is 1",
        )
    return places


def recognised(fields: Sequence[str]) -> dict[str, int]:
    """Return the place of the first column with a known name for each of `NAMES`, -1 for none."""
    letters = [*map(_letters, fields)]
    return {what: next((at for at, one in enumerate(letters) if one in names), -1) for what, names in NAMES.items()}


def _placed(path: Path, fields: Sequence[str], given: Mapping[str, int]) -> dict[str, int]:
    """Return the columns that are given, and the others at their usual places."""
    usual = {what: at if at < len(fields) and at not in given.values() else -1 for at, what in enumerate(ORDER)}
    places = {**usual, **given}
    if missing := [what for what in ("user", "item") if places[what] < 0]:
        raise _wrong(
            path, f"without names the {missing[0]}s would be in column {ORDER.index(missing[0])}, which is set"
        )
    return places


def _given(path: Path, fields: Sequence[str], has_header: bool, columns: Columns) -> dict[str, int]:
    places: dict[str, int] = {}
    for what, column in columns.items():
        if isinstance(column, str) and (not has_header or column not in fields):
            has = ", ".join(fields) if has_header else f"no header, only {len(fields)} columns, numbered from 0"
            raise _wrong(path, f"there is no column {column!r} for the {what}s; the file has {has}")
        places[what] = fields.index(column) if isinstance(column, str) else column
        if not 0 <= places[what] < len(fields):
            raise _wrong(path, f"there is no column {column} for the {what}s; the first line has {len(fields)}")
    if len({places[what] for what in columns}) < len(columns):
        raise _wrong(path, f"two of {', '.join(columns)} are the same column")
    return places


def _wrong(path: Path, words: str) -> DataError:
    return DataError(
        f"{path}: {words}; set columns={{user: …, item: …, rating: …, time: …}} to names or numbers, counted from 0",
        code="data/rating-columns",
    )
