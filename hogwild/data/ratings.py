"""Ratings: MovieLens' own files, any table with columns of users, items and ratings, and the Jester jokes."""

import contextlib
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from hogwild.data.ids import IdRows
from hogwild.data.locate import bad_argument, choice, find_file, require
from hogwild.data.rating_form import DELIMITERS, ORDER, Columns, form_of
from hogwild.data.rating_table import Holdout, Rated, RatedParsing
from hogwild.data.text_file import TextFile
from hogwild.data.text_parsing.line_by_line import BadLine, fields_of, number_in, parsed_lines
from hogwild.data.text_parsing.parsing import ENCODINGS, INPUT, PackedFile, Parsed, Parsing, Piece, Tell, find_text
from hogwild.data.text_parsing.word_columns import WordColumns, numbered
from hogwild.errors import DataError
from hogwild.feeds.packed import Packed
from hogwild.kernels.parsing.found import COMMENTED, FIELDS, FOUND, LINES, ROWS, UNUSUAL

FEATURES = "It is your own file: lines of a user or an item, a feature and perhaps a weight, separated by tabs."
ADVICE = "It is your own file, one line per rating: user, item, rating; for example MovieLens (grouplens.org/datasets)."


class Ratings(PackedFile):
    """One rating per line: MovieLens' `u.data` (tabs), `ratings.dat` (`::`), `ratings.csv`, or any table with a column
    of users, one of items and perhaps one of ratings, plain or packed; packed as `table`: `user` and `item` (N,) int32,
    `rating` (N,) float32, by user, then item. Without a column of ratings each is 1, and repeats are counted.

    Sizes and names: users, items, sorted by id: numerically if all are whole numbers, otherwise alphabetically.

    In validation data, ratings of users or items that are not in the training data are left out, counted and reported:
    nothing was learnt about them.

    Needs numba, and pyarrow for ids that are words (pip install 'hogwild[sparse]'). Raises NotFoundError, UsageError;
    `pack` raises DataError with file, line and rule.

    Arguments:
        path: file, plain or packed.
        columns: {user: …, item: …, rating: …, time: …}, names in the header or numbers from 0 on; null: recognised by
            name, or the first four. Times, only for `holdout`, are numbers or dates.
        delimiter: tab, comma, `;`, `|`, space or `::`; auto: detected from the first line.
        header: whether the first line has the names of the columns; auto: detected.
        duplicates: of one user and one item: fail, last (the later line), sum (the ratings are added up), keep; auto:
            sum without a column of ratings, so that repeats of a purchase are a count, else fail.
        holdout: {fraction, seed, part: train | test}: a hash of the pair and the seed (0) decides its part, so the same
            file, given once for each part, is split. {fraction, by: time, part}: the newest are the test part.
            {last: 1, part}: each user's newest one is, or the newest N; a user without others is only trained on.
        user_features: file of lines `user<TAB>feature` or `user<TAB>feature<TAB>weight`, or with commas, for models
            that take features. A user without ratings, too, then has a row. Only read for training data.
        item_features: the same of items.
        encoding: utf-8, latin-1 or cp1252; of the features, too."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Columns | None = None,
        delimiter: str = "auto",
        header: bool | Literal["auto"] = "auto",
        duplicates: Literal["auto", "fail", "last", "sum", "keep"] = "auto",
        holdout: Mapping[str, Any] | None = None,
        root: str | os.PathLike[str] | None = None,
        user_features: str | os.PathLike[str] | None = None,
        item_features: str | os.PathLike[str] | None = None,
        encoding: Literal["utf-8", "latin-1", "cp1252"] = "utf-8",
    ) -> None:
        who = f"{type(self).__name__}(path={str(path)!r})"
        choice(who, "delimiter", delimiter, ("auto", *DELIMITERS))
        choice(who, "header", header, ("auto", True, False))
        choice(who, "duplicates", duplicates, ("auto", "fail", "last", "sum", "keep"))
        choice(who, "encoding", encoding, ENCODINGS)
        _check_columns(who, columns)
        self.encoding, self.holdout = encoding, holdout_of(who, holdout)
        self.path = find_text(who, path, root, ADVICE)
        self.columns, self.delimiter, self.header, self.duplicates = columns, delimiter, header, duplicates
        given = {"users": user_features, "items": item_features}
        self.feature_files = {kind: find_file(who, one, root, FEATURES) for kind, one in given.items() if one}

    @staticmethod
    def for_inputs(arguments: Mapping[str, Any], _: Sequence[str] | None) -> dict[str, Any]:
        """Return the arguments for a file to predict."""
        columns = arguments.get("columns") or {}
        given = {key: columns[key] for key in ("user", "item") if key in columns} or None
        arguments = {key: value for key, value in arguments.items() if key not in ("user_features", "item_features")}
        return {**arguments, "columns": given}

    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        return _RatingsParsing(self, what, like, on_bad_line)


def holdout_of(who: str, given: Mapping[str, Any] | None, *, has_times: bool = True) -> Holdout | None:
    """Return the holdout. Raises UsageError if it is invalid."""
    if given is None:
        return None
    fraction: Any = given.get("fraction")
    last, part, seed = given.get("last"), given.get("part"), given.get("seed", 0)
    is_part = part in ("train", "test")
    is_fraction = isinstance(fraction, float) and 0 < fraction < 1
    keys = given.keys() - {"part"}
    if is_part and is_fraction and type(seed) is int and seed >= 0 and keys - {"seed"} == {"fraction"}:
        return Holdout(part == "test", fraction, seed)
    if has_times and is_part and is_fraction and keys == {"fraction", "by"} and given["by"] == "time":
        return Holdout(part == "test", fraction, by_time=True)
    if has_times and is_part and type(last) is int and last > 0 and keys == {"last"}:
        return Holdout(part == "test", last=last)
    others = ", {fraction: …, by: time, part: …} or {last: 1 or more, part: …}" if has_times else ""
    raise bad_argument(
        f"{who}: holdout must be {{fraction: between 0 and 1, seed: a whole number, part: train or test}}{others}, got "
        f"{dict(given)!r}"
    )


def _check_columns(who: str, columns: Any) -> None:
    if columns is None:
        return
    is_right = isinstance(columns, Mapping) and {"user", "item"} <= columns.keys() <= {*ORDER}
    if (
        not is_right
        or any(type(column) not in (str, int) for column in columns.values())
        or len({*columns.values()}) < len(columns)
    ):
        raise bad_argument(
            f"{who}: columns must be {{user: …, item: …, rating: …, time: …}}, different names or numbers from 0, got "
            f"{columns!r}"
        )


class _IsUnusual(Exception):
    """A line has more than digits and delimiters."""


class _RatingsParsing(RatedParsing):
    source: Ratings
    has_quotes = True
    kind, options = "ratings", ("columns", "delimiter", "header", "duplicates", "holdout", "encoding")
    rules: ClassVar[Mapping[int, str]] = {
        3: "TOKEN: a rating must be a number",
        4: "TOKEN is NaN or infinite; clean the data first",
        FIELDS: "a line must have as many fields as the first; quote a value with a delimiter or decimal comma",
        8: "a user, an item or a time is empty",
        9: "a quotation mark is not closed, or something stands behind it",
        COMMENTED: "a line must not begin as a comment; remove it, or write the value in quotes if it is one",
    }

    def key(self) -> str:
        """Return the hash of the ratings and, for training data, of the files of features."""
        digest = hashlib.sha256(super().key().encode())
        for kind, path in self.source.feature_files.items() if self.like is None else ():
            digest.update(f"{kind} {len(kind)}".encode())
            TextFile(path).hash_into(digest)
        return digest.hexdigest() if self.like is None and self.source.feature_files else super().key()

    def parse(self, tell: Tell) -> Parsed:
        source, begin = self.source, self.begin()
        head = self.first_lines(begin)
        needs_time = source.holdout is not None and source.holdout.needs_time
        self.form = form = form_of(
            source.path, head, source.delimiter, source.header, source.columns, needs_time, self.what != INPUT,
            source.encoding,
        )  # fmt: skip
        if self.what != INPUT:
            self.notes.append(form.told)
        duplicates = source.duplicates
        if duplicates == "auto":
            duplicates = "sum" if form.columns[2] < 0 else "fail"
        line = 1 + form.skipped
        begin += sum(map(len, head[: form.skipped]))
        self.compile("ratings")
        try:
            pieces = self.pieces(self._whole_numbers, tell, begin, line)
        except _IsUnusual:
            return self.table(self._words(tell, begin, line), duplicates)
        self.note_bad_lines(pieces)
        user, item, rating, time = (np.concatenate([piece.arrays[k] for piece in pieces]) for k in range(4))
        pieces.clear()
        return self.table(Rated(user, item, rating, time=time if needs_time else None), duplicates)

    def _words(self, tell: Tell, begin: int, line: int) -> Rated:
        """Parse ids as words, from byte `begin` on, where line `line` starts."""
        require("pyarrow.csv", "hogwild.data.Ratings, for this file,", "pyarrow", "sparse")
        user_column, item_column, rating, time_column = self.form.columns
        words = (user_column, item_column, *([time_column] if time_column >= 0 else []))
        columns = WordColumns(self.form.delimiter.encode(), words, rating, self.form.width, has_quotes=True)
        pieces = self.pieces(partial(columns.parse, self), tell, begin, line)
        self.note_bad_lines(pieces)
        (user,), users = numbered(self.source.path, [[piece.arrays[0] for piece in pieces]])
        (item,), items = numbered(self.source.path, [[piece.arrays[1] for piece in pieces]])
        time = None
        if time_column >= 0:
            (place,), times = numbered(self.source.path, [[piece.arrays[2] for piece in pieces]])
            time = np.array([self._time(word) for word in times])[place]
        return Rated(user, item, np.concatenate([piece.arrays[-1] for piece in pieces]), (users, items), time)

    def _time(self, word: bytes) -> float:
        """Return the seconds of a date since 1970, in UTC where it names no zone, or the number itself."""
        text = word.decode("utf-8", "replace").strip()
        with contextlib.suppress(ValueError):
            if math.isfinite(number := float(text)):
                return number
        with contextlib.suppress(ValueError):
            moment = datetime.fromisoformat(text)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        raise DataError(
            f"{self.source.path}: the time {text!r} is neither a number nor a date such as 2027-05-31 or "
            "2027-05-31 12:30:00",
            code="data/bad-value",
        )

    def _whole_numbers(self, content: bytes) -> Piece:
        """Parse a piece of ordinary lines: users, items, ratings. Raises _IsUnusual."""
        from hogwild.kernels.parsing.lines import LF, count, ratings

        text, found = np.frombuffer(content, np.uint8), np.zeros(FOUND, np.int64)
        count(text, LF, found)
        most = int(found[LINES])
        user, item, rating = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.float32)
        time = np.empty(most if self.form.columns[3] >= 0 else 0, np.int64)
        ratings(text, *self.form.bytes, np.array(self.form.columns), self.form.width, user, item, rating, time, found)
        if found[UNUSUAL]:
            raise _IsUnusual
        rows = int(found[ROWS])
        return Piece((user[:rows], item[:rows], rating[:rows], time[:rows]), found)

    def places(self, user: str, item: str) -> list[str]:
        """Return the lines of one pair in the file, by reading it again."""
        found: list[str] = []
        wanted, (user_column, item_column, *_) = (IdRows([user]), IdRows([item])), self.form.columns
        before = 0
        for content in self.contents(self.begin()):
            lines = content.removesuffix(b"\n").split(b"\n")
            for number, line in enumerate(lines, before + 1):
                fields = [field.strip(b'\r"') for field in line.split(self.form.delimiter.encode())]
                if len(fields) <= max(user_column, item_column):
                    continue
                if wanted[0].row(fields[user_column]) == wanted[1].row(fields[item_column]) == 0:
                    found.append(self.place(number))
            before += len(lines)
        return found


# ---- Jester ---------------------------------------------------------------------------------------------------------

JOKES = 100
NOTHING = 99.0  # the value for no rating
JESTER = "It is jester-data-1.zip (or -2, -3) of https://eigentaste.berkeley.edu/dataset, or the table in it as CSV."


class Jester(PackedFile):
    """The Jester ratings (Goldberg, Roeder, Gupta and Perkins, "Eigentaste: a constant time collaborative filtering
    algorithm", 2001), a line per person: the number of rated jokes, then a rating from -10 to 10 for each of 100 jokes,
    99 for none; as CSV, zipped or not. Packed like `Ratings`. Users are numbered by line from 1 on, jokes from 1 to
    100. A person without ratings is no user.

    Arguments:
        path: file, .zip or the table in it.
        holdout: {fraction, seed, part: train | test}, as in Ratings."""

    def __init__(
        self,
        path: str | os.PathLike[str] = "jester/jester-data-1.zip",
        holdout: Mapping[str, Any] | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        who = f"Jester(path={str(path)!r})"
        self.holdout = holdout_of(who, holdout, has_times=False)
        self.path = find_text(who, path, root, JESTER)

    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        return _JesterParsing(self, what, like, on_bad_line)


class _JesterParsing(RatedParsing):
    source: Jester
    kind, options = "jester", ("holdout",)
    rules: ClassVar[Mapping[int, str]] = {
        **_RatingsParsing.rules,
        FIELDS: f"a line has {JOKES + 1} numbers: how many ratings there are, then each joke's, {NOTHING:g} for none",
    }

    def parse(self, tell: Tell) -> Parsed:
        """Parse the ratings; persons and jokes are numbered from 1 on."""
        require("pyarrow.csv", "hogwild.data.Jester", "pyarrow", "sparse")
        pieces = self.pieces(lambda content: self._quick(content) or self._careful(content), tell, self.begin())
        self.note_bad_lines(pieces)
        user = np.concatenate([piece.arrays[0] + np.int32(piece.line) for piece in pieces])
        item, rating = (np.concatenate([piece.arrays[k] for piece in pieces]) for k in (1, 2))
        return self.table(Rated(user, item + np.int32(1), rating), "keep")

    def _quick(self, content: bytes) -> Piece | None:
        """Parse a piece: persons, counted within it from 0 on, jokes, ratings. Return None if anything is unusual."""
        import pyarrow
        from pyarrow import csv

        names = [*map(str, range(JOKES + 1))]
        try:
            table = csv.read_csv(
                pyarrow.BufferReader(content),
                csv.ReadOptions(use_threads=False, block_size=len(content) + 1, column_names=names),
                csv.ParseOptions(quote_char=False),
                csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.float64()), null_values=[]),
            )
        except pyarrow.ArrowInvalid:
            return None
        lines = content.count(b"\n") + (not content.endswith(b"\n"))
        if table.num_rows != lines:
            return None
        promised, *columns = (np.from_dlpack(column.chunk(0)) for column in table.columns)
        found = np.zeros(FOUND, np.int64)
        piece = self._rated(np.stack(columns, axis=1), found)
        found[LINES], found[ROWS] = lines, len(piece.arrays[0])
        is_right = np.array_equal(np.bincount(piece.arrays[0], minlength=lines), promised)
        return piece if is_right and np.isfinite(piece.arrays[2]).all() else None

    def _careful(self, content: bytes) -> Piece:
        rows, bad, found = parsed_lines(self, content, self._line)
        table = np.full((int(found[LINES]), JOKES), NOTHING)
        for line, ratings in rows:
            table[line] = ratings
        piece = self._rated(table, found)
        piece.bad, found[ROWS] = bad, len(piece.arrays[0])
        return piece

    def _rated(self, table: np.ndarray, found: np.ndarray) -> Piece:
        """Return the ratings in a table of a line per person (n, JOKES) float64."""
        user, item = np.nonzero(table != NOTHING)
        with np.errstate(over="ignore"):  # the value becomes infinite
            return Piece((user.astype(np.int32), item.astype(np.int32), table[user, item].astype(np.float32)), found)

    def _line(self, line: bytes) -> list[float]:
        """Return the ratings of a line. Raises BadLine."""
        values: list[float] = []
        for at, field in fields_of(line, b",", has_quotes=True):
            if len(values) > JOKES:
                raise BadLine(FIELDS, 0)
            values.append(number_in(field, at))
        if len(values) != JOKES + 1 or values[0] != sum(value != NOTHING for value in values[1:]):
            raise BadLine(FIELDS, 0)
        return values[1:]
