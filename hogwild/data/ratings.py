"""Ratings: MovieLens' own files, any table with columns of users, items and ratings, and the Jester jokes."""

import contextlib
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from hogwild.data.cache import DatasetCache
from hogwild.data.ids import WHITE, IdRows
from hogwild.data.locate import bad_argument, choice, find_file, require
from hogwild.data.rating_form import DELIMITERS, LOOKED_AT, ORDER, Columns, Form, comments_before, form_of, recognised
from hogwild.data.text_file import TextFile, text_of
from hogwild.data.text_parsing import (
    COMMENT,
    COMMENTED,
    EMPTY,
    ENCODINGS,
    FIELDS,
    FINITE,
    INPUT,
    LARGEST,
    QUOTE,
    VALUE,
    Format,
    PackedFile,
    Parsed,
    Parsing,
    Piece,
    TableText,
    Tell,
    numbered,
    numpy_of,
    problem,
)  # fmt: skip
from hogwild.errors import DataError
from hogwild.feeds.packed import MEMBERSHIPS, Packed, held_out
from hogwild.formatting import counted as number_of
from hogwild.kernels.pair_order import pairs_of, places_in_order

# Numbers since 1970, from 1973 on; a time below is of another kind, or missing.
UNITS, SCALES = (
    ("below 1973", "in seconds", "in milliseconds", "in microseconds", "in nanoseconds"),
    (1e8, 1e11, 1e14, 1e17),
)
FEATURES = "It is your own file: lines of a user or an item, a feature and perhaps a weight, separated by tabs."
ADVICE = "It is your own file, one line per rating: user, item, rating; for example MovieLens (grouplens.org/datasets)."


class Ratings(PackedFile):
    """One rating per line: MovieLens' `u.data` (tabs), `ratings.dat` (`::`), `ratings.csv`, or any table with a column
    of users, one of items and perhaps one of ratings, plain or packed; packed as `table`: `user` and `item` (N,) int32,
    `rating` (N,) float32, by user, then item. Without a column of ratings each is 1, and repeats are counted.

    Sizes and names: users, items, sorted by id: numerically if all are whole numbers, otherwise alphabetically.

    In validation data, ratings of users or items that are not in the training data are left out, counted and reported:
    nothing was learnt about them.

    Needs pyarrow (pip install 'hogwild[sparse]'). Raises NotFoundError, UsageError;
    `pack` raises DataError with file, line and rule.

    Arguments:
        path: file, plain or packed.
        columns: {user: …, item: …, rating: …, time: …}, names in the header or numbers from 0 on; null: recognised by
            name, or the first four; in validation data as the training data's. Without user or item, as in {time: ts},
            the others are recognised likewise; with both and no rating, each rating is 1. Times, only for `holdout`,
            are numbers or dates.
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
        given: Any = {} if columns is None else columns
        is_map = isinstance(given, Mapping) and (columns is None or set() < given.keys() <= {*ORDER})
        if (
            not is_map
            or any(type(column) not in (str, int) for column in given.values())
            or len({*given.values()}) < len(given)
        ):
            raise bad_argument(
                f"{who}: columns must be {{user: …, item: …, rating: …, time: …}}, or some of these, different names "
                f"or numbers from 0, got {columns!r}"
            )
        self.encoding, self.holdout = encoding, holdout_of(who, holdout)
        self.path = find_file(who, path, root, ADVICE)
        self.columns, self.delimiter, self.header, self.duplicates = columns, delimiter, header, duplicates
        files = {"users": user_features, "items": item_features}
        self.feature_files = {kind: find_file(who, one, root, FEATURES) for kind, one in files.items() if one}

    @property
    def needs_time(self) -> bool:
        """True if the column of times is read."""
        return self.holdout is not None and self.holdout.needs_time

    def read_like(self, trained: "Ratings") -> None:
        """Read this file, to validate, by the columns of the training data, unless it has columns of its own. Raises
        DataError."""
        if self.columns is None:
            theirs = _RatingsParsing(trained, "data.train", None, "fail")
            ours = _RatingsParsing(self, "data.val", None, "fail").form_by({"user": 0, "item": 1}, needs_time=False)
            self.columns = theirs.form_by(trained.columns, needs_time=self.needs_time).columns_for(ours)

    @staticmethod
    def for_inputs(arguments: Mapping[str, Any], _: Sequence[str] | None) -> dict[str, Any]:
        """Return the arguments for a file to predict."""
        columns = arguments.get("columns") or {}
        given = {key: columns[key] for key in ("user", "item") if key in columns} or None
        arguments = {key: value for key, value in arguments.items() if key not in ("user_features", "item_features")}
        return {**arguments, "columns": given}

    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        return _RatingsParsing(self, what, like, on_bad_line)


@dataclass(frozen=True, slots=True)
class Holdout:
    """The wanted part of a file that is divided: by a hash of the pair; `by_time`, where the newest `fraction` is the
    test part; or by each user's `last` ratings."""

    is_test: bool
    fraction: float = 0.0
    seed: int = 0
    by_time: bool = False
    last: int = 0

    @property
    def needs_time(self) -> bool:
        return self.by_time or bool(self.last)


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


# ---- the table ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Rated:
    """Parsed ratings, (N,) each. `user` and `item` int32 are numbers of names; `time` only if it is needed."""

    user: np.ndarray
    item: np.ndarray
    rating: np.ndarray
    time: np.ndarray | None = None

    def rows(self, chosen: np.ndarray) -> "Rated":
        """Return the ratings `chosen`, without times."""
        return Rated(self.user[chosen], self.item[chosen], self.rating[chosen])


class RatedParsing(Parsing):
    """Base class: turns parsed ratings into the packed table. Its sources have `holdout`."""

    version = 4  # lines that begin with a byte order mark

    def table(self, rated: Rated, names: dict[str, Any], duplicates: str) -> Parsed:
        """Return the table, sorted by user and item. Raises DataError for duplicate pairs, if they fail."""
        names = {kind: np.array(ids, getattr(ids, "dtype", object)) for kind, ids in names.items()}
        if self.source.holdout is not None:
            rated = self._part(rated, names)
        if self.what != INPUT:
            rated = self._in_order(rated, names, duplicates)
        if self.like is not None:
            rated, names = self._as_in(self.like, rated, names), {k: self.like.names[k] for k in names}
        elif self.source.holdout is not None:
            names = {"users": dense(rated.user, names["users"]), "items": dense(rated.item, names["items"])}
        entries = dict[str, list[str]]()  # which row has which feature
        for kind, path in getattr(self.source, "feature_files", {}).items() if self.like is None else ():
            side, before = kind.removesuffix("s"), len(names[kind])
            given = read_features(path, self.encoding)
            if not given:
                raise DataError(f"{path}: the file has no features", code="data/empty")
            names[kind], names[f"{side}_features"], entries[MEMBERSHIPS[side]] = with_features(names[kind], given)
            if more := len(names[kind]) - before:
                self.notes.append(
                    f"{number_of(more, side)} with features and without ratings: their features stand for them"
                )
        sizes = {kind: len(values) for kind, values in names.items()}
        names |= entries
        arrays = {"user": rated.user, "item": rated.item, "rating": rated.rating}
        return self.finished(Packed.of(self.region_name, "table", arrays, sizes, names))

    def places(self, user: str, item: str) -> list[str]:
        """Return the lines of one pair in the file, for an error."""
        return []

    def _in_order(self, rated: Rated, names: dict[str, np.ndarray], duplicates: str) -> Rated:
        """Return the ratings sorted by user and item, each pair once unless duplicates are kept."""
        pairs = pairs_of(rated.user, rated.item)
        if (pairs[1:] > pairs[:-1]).all():
            return rated
        rated = rated.rows(places_in_order(pairs))
        is_again = (rated.user[1:] == rated.user[:-1]) & (rated.item[1:] == rated.item[:-1])
        many = int(is_again.sum())
        if duplicates == "keep" or not many:
            return rated
        if duplicates == "last":
            self.left_out["earlier ratings"] = many
            self.notes.append(f"{many:,} ratings are left out: the same user rated the same item again further down")
            return rated.rows(np.flatnonzero(np.append(~is_again, True)))
        if duplicates == "sum":
            self.left_out["repeats"] = many
            self.notes.append(f"{many:,} lines repeat a user and an item: their ratings are added up, as counts")
            first = np.flatnonzero(np.append(True, ~is_again))
            total = np.add.reduceat(rated.rating, first, dtype=np.float64).astype(np.float32)
            return Rated(rated.user[first], rated.item[first], total)
        place = int(is_again.argmax())
        pair = str(names["users"][rated.user[place]]), str(names["items"][rated.item[place]])
        where = " and ".join(self.places(*pair)[:2]) or str(self.source.path)
        raise DataError(
            f"{where}: user {pair[0]} rated item {pair[1]} twice; there are {many:,} such ratings; set duplicates: "
            "last (use the later one), sum (add them up, as counts) or keep",
            code="data/duplicate-rating",
        )

    def _part(self, rated: Rated, names: dict[str, np.ndarray]) -> Rated:
        """Return the wanted part, in the same order."""
        holdout: Holdout = self.source.holdout
        if rated.time is not None:
            counts = np.bincount(np.searchsorted(SCALES, np.abs(rated.time), side="right"), minlength=len(UNITS))
            found = [f"{many:,} {unit}" for unit, many in zip(UNITS, counts.tolist(), strict=True) if many]
            if len(found) > 1:
                self.notes.append(
                    f"times seem to have several units ({', '.join(found)}) and are compared as they are: write all in "
                    "one"
                )
        is_held = np.zeros(len(rated.user), np.bool_)
        if holdout.last:
            self._hold_last(rated, len(names["users"]), is_held)
        elif holdout.by_time:
            assert rated.time is not None
            first = len(is_held) - max(1, round(holdout.fraction * len(is_held)))
            is_held[:] = rated.time >= np.partition(rated.time, first)[first]
        else:
            columns = (names["users"], rated.user), (names["items"], rated.item)
            is_held = held_out(columns, holdout.fraction, holdout.seed)
        rows = np.flatnonzero(is_held == holdout.is_test)
        if not len(rows):
            field, share = ("last", holdout.last) if holdout.last else ("fraction", holdout.fraction)
            what = "to evaluate" if holdout.is_test else "to train on"
            raise DataError(
                f"{self.what}: `holdout` with {field}: {share} leaves none of {number_of(len(rated.user), 'rating')} "
                f"{what}; choose another {field}, the same in data.train and data.val, or train without an evaluation: "
                "data.val=null, and no `holdout` in data.train",
                code="data/split",
            )
        return rated.rows(rows)

    def _hold_last(self, rated: Rated, users: int, is_held: np.ndarray) -> None:
        """Hold out each user's newest ratings; of the same time, those further down. Who has no others keeps them."""
        assert rated.time is not None
        last, order = self.source.holdout.last, places_in_order(rated.time)
        order = order[places_in_order(rated.user[order])]
        counts = np.bincount(rated.user, minlength=users)
        few = counts <= last
        behind = np.repeat(np.cumsum(counts), counts) - np.arange(len(order))  # 1 for a user's newest
        is_held[order[(behind <= last) & ~np.repeat(few, counts)]] = True
        if self.source.holdout.is_test and few.any():
            much = f"no more than {number_of(last, 'rating')}"
            self.notes.append(f"{number_of(int(few.sum()), 'user')} with {much} of all: they stay in the training part")

    def _as_in(self, like: Packed, rated: Rated, names: dict[str, np.ndarray]) -> Rated:
        """Return the ratings with the training data's numbers, without unknown users and items."""
        if {*names} - {*like.names}:
            raise DataError(f"{self.source.path}: data.train has no ratings", code="data/val-unlike-train")
        for ids, kind in ((rated.user, "users"), (rated.item, "items")):
            ids[:] = IdRows(like.names[kind]).rows(names[kind])[ids]
        is_known = (rated.user >= 0) & (rated.item >= 0)
        if not (unknown := int(np.count_nonzero(~is_known))):
            return rated
        self.left_out["unseen ratings"] = unknown
        self.notes.append(
            f"{unknown:,} of {len(is_known):,} ratings are left out: the training data does not have their user or item"
        )
        return Rated(rated.user[is_known], rated.item[is_known], rated.rating[is_known])


def dense(ids: np.ndarray, names: np.ndarray) -> np.ndarray:
    """Return the names that are used, and replace `ids` by their numbers among those, in place."""
    is_used = np.zeros(len(names), np.bool_)
    is_used[ids] = True
    ids[:] = (np.cumsum(is_used, dtype=np.int32) - np.int32(1))[ids]
    return names[is_used]


# ---- from text ------------------------------------------------------------------------------------------------------


class _RatingsParsing(RatedParsing):
    source: Ratings
    has_quotes = True
    kind, options = "ratings", ("columns", "delimiter", "header", "duplicates", "holdout", "encoding")
    rules: ClassVar[Mapping[int, str]] = {
        VALUE: "TOKEN: a rating must be a number",
        FINITE: "TOKEN is NaN or infinite; clean the data first",
        FIELDS: "a line must have as many fields as the first; quote a value with a delimiter or decimal comma",
        EMPTY: "a user, an item or a time is empty",
        QUOTE: "a quotation mark is not closed, or something stands behind it",
        COMMENTED: "a line must not begin as a comment; remove it, or write the value in quotes if it is one",
    }

    def key(self, cache: DatasetCache | None = None) -> str:
        """Return the hash of the ratings and, for training data, of the files of features."""
        digest = hashlib.sha256(super().key(cache).encode())
        for kind, path in self.source.feature_files.items() if self.like is None else ():
            digest.update(f"{kind} {len(kind)}".encode())
            TextFile(path).hash_into(digest)
        return digest.hexdigest()

    def parse(self, tell: Tell) -> Parsed:
        require("pyarrow.csv", "hogwild.data.Ratings", "pyarrow", "sparse")
        source, begin = self.source, self.begin()
        head = self.first_lines(begin)
        needs_time = source.needs_time
        self.form = form = self.form_by(source.columns, needs_time=needs_time)
        if self.what != INPUT:
            self.notes.append(form.told)
        duplicates = source.duplicates
        if duplicates == "auto":
            duplicates = "sum" if form.columns[2] < 0 else "fail"
        line = 1 + form.skipped
        begin += sum(map(len, head[: form.skipped]))
        user_column, item_column, rating_column, time_column = form.columns
        columns = TableText(
            Format(form.delimiter), form.width, (user_column, item_column),
            numbers=(rating_column,) * (rating_column >= 0), times=(time_column,) * needs_time,
        )  # fmt: skip
        pieces = self.pieces(partial(columns.parse, self), tell, begin, line)
        self.note_bad_lines(pieces)
        users, items, *others = zip(*(piece.arrays for piece in pieces), strict=True)
        pieces.clear()
        (user,), of_users = numbered(self, [users])
        (item,), of_items = numbered(self, [items])
        rating = np.concatenate(others[0]) if rating_column >= 0 else np.ones(len(user), np.float32)
        time = None
        if needs_time:  # numbers, or words in a piece where one is anything else
            times = [
                one if isinstance(one, np.ndarray)
                else np.array([*map(self._time, one.dictionary.to_pylist())], np.float64)[numpy_of(one.indices)]
                for one in others[-1]
            ]  # fmt: skip
            time = np.concatenate(times)
        return self.table(Rated(user, item, rating, time), {"users": of_users, "items": of_items}, duplicates)

    def form_by(self, columns: Columns | None, *, needs_time: bool) -> Form:
        """Return the file's form. Raises DataError."""
        source, head = self.source, self.first_lines(self.begin())
        return form_of(
            source.path, head, source.delimiter, source.header, columns, needs_time, self.what != INPUT, source.encoding
        )

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

    def places(self, user: str, item: str) -> list[str]:
        """Return the lines of one pair in the file, by reading it again."""
        found: list[str] = []
        (user_column, item_column, *_), wanted = self.form.columns, (IdRows([user]), IdRows([item]))
        before = 1
        for content in self.contents(self.begin()):
            for number, _, fields in Format(self.form.delimiter).records(content):
                if isinstance(fields, str) or len(fields) != self.form.width:
                    continue
                if wanted[0].row(fields[user_column]) == wanted[1].row(fields[item_column]) == 0:
                    found.append(self.place(before + number))
            before += content.count(b"\n")
        return found


# ---- Jester ---------------------------------------------------------------------------------------------------------

JOKES = 100
NOTHING = 99.0  # the value for no rating
TABLE = TableText(Format(","), JOKES + 1, (), numbers=(*range(JOKES + 1),))
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
        self.path = find_file(who, path, root, JESTER)

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
        require("pyarrow.csv", "hogwild.data.Jester", "pyarrow", "sparse")
        pieces = self.pieces(self._piece, tell, self.begin())
        self.note_bad_lines(pieces)
        user = np.concatenate([piece.arrays[0] + np.int32(piece.line) for piece in pieces])
        item, rating = (np.concatenate([piece.arrays[k] for piece in pieces]) for k in (1, 2))
        names = {"users": dense(user, np.arange(user.max() + 1)), "items": dense(item, np.arange(1, JOKES + 1))}
        return self.table(Rated(user, item, rating), names, "keep")

    def _piece(self, content: bytes) -> Piece:
        """Parse a piece: lines, counted within it from 0 on, jokes, ratings."""
        piece = TABLE.parse(self, content)
        many, *columns = piece.arrays
        table, lines = np.stack(columns, axis=1), np.array(piece.places, np.int32)
        is_wrong = (table != NOTHING).sum(axis=1) != many
        if len(wrong := lines[is_wrong]):
            if not piece.bad_lines or wrong[0] < piece.bad[0]:
                line = content.split(b"\n", int(wrong[0]) + 1)[wrong[0]]
                piece.bad = int(wrong[0]), problem(self.rules[FIELDS], line, b"")
            table[is_wrong] = NOTHING
        user, item = np.nonzero(table != NOTHING)
        arrays = lines[user], item.astype(np.int32), table[user, item]
        return replace(piece, arrays=arrays, rows=len(user), bad_lines=piece.bad_lines + len(wrong))


# ---- features of users and items, in a file of their own ------------------------------------------------------------

RULE = "a line must be NAME, FEATURE and perhaps a WEIGHT, a number, separated by tabs, or by commas, ; or |"


def read_features(path: Path, encoding: str = "utf-8") -> dict[tuple[str, str], float]:
    """Return the weights of (name, feature) pairs, in the file's order; those of a repeated pair are added up. Comments
    before the first line, and a header, are left out: one of its fields is `feature`, or its first one is a name of a
    column of users or items. Raises DataError with file and line."""
    text = text_of(path, "table", encoding).split("\n")
    before = comments_before([line.encode() for line in text[:LOOKED_AT]])
    delimiter = next((sign for sign in "\t,;|" if sign in "".join(text[before : before + 1])), "\t")
    found: dict[tuple[str, str], float] = {}
    order: list[int] = []
    for number, _, fields in Format(delimiter).records(("\n" * before + "\n".join(text[before:])).encode()):
        where = f"{path}:{number + 1}"
        if isinstance(fields, str):
            raise DataError(f"{where}: {fields}", code="data/bad-value")
        if "\n" in "".join(fields):
            why = "a field has more than one line; is a quotation mark not closed?"
            raise DataError(f"{where}: {why}", code="data/bad-value")
        fields = [field.strip(WHITE) for field in fields]
        if number == before and (header := _header(fields)):
            if len(header) != len(fields):
                raise DataError(
                    f"{where}: the columns are {', '.join(fields)}; {RULE}: one for each feature of a name, such as "
                    "u1, age:30",
                    code="data/bad-value",
                )
            order = header
            continue
        if not any(fields):
            continue
        fields = [fields[place] for place in order] if len(order) == len(fields) else fields
        if COMMENT.match(fields[0].encode()):
            raise DataError(f"{where}: {fields}: a line must not begin as a comment", code="data/bad-value")
        if len(fields) not in (2, 3) or not (fields[0] and fields[1]):
            raise DataError(f"{where}: {fields}: {RULE}", code="data/bad-value")
        pair, text_of_weight = (fields[0], fields[1]), fields[2] if len(fields) > 2 else "1"
        try:
            weight = found.get(pair, 0.0) + float(text_of_weight)
        except ValueError:
            weight = math.nan
        if not abs(weight) <= LARGEST:  # what float32 holds
            raise DataError(
                f"{where}: the weight {text_of_weight!r} must be a finite number, up to {LARGEST:.2g} with those of "
                "repeated lines",
                code="data/bad-value",
            )
        found[pair] = weight
    return found


def _header(fields: list[str]) -> list[int]:
    """Return the places of the name, the feature and the weight, if they are known, in a header; [] if it is none."""
    lower = [field.lower() for field in fields]
    known = recognised(fields)
    named = max(known["user"], known["item"])
    feature = lower.index("feature") if "feature" in lower else 1 if named == 0 else -1
    if feature < 0 or len(fields) < 2:
        return []
    weight = known["rating"] if known["rating"] >= 0 else lower.index("value") if "value" in lower else -1
    rest = next(place for place in range(len(fields)) if place not in (feature, weight))
    return [named if named >= 0 else rest, feature, *([weight] if weight >= 0 else [])]


def with_features(names: Any, given: dict[tuple[str, str], float]) -> tuple[Any, list[str], list[str]]:
    """Return `names` with those that only the features know behind them; the features' names, in alphabetical order;
    and the entries "row feature weight", numbers, in order of row and feature."""
    known = IdRows(names)
    more = [name for name in dict.fromkeys(name for name, _ in given) if known.row(name) < 0]
    rows = IdRows([*names, *more])
    features = sorted({feature for _, feature in given})
    numbers = {feature: number for number, feature in enumerate(features)}
    entries = sorted((rows.row(name), numbers[feature], weight) for (name, feature), weight in given.items())
    if more:
        is_numbers = isinstance(names, np.ndarray) and names.dtype.kind == "i"
        for name in more if is_numbers else ():
            is_plain = name.isascii() and name.isdecimal() and str(int(name)) == name and int(name) < 1 << 63
            is_numbers = is_numbers and is_plain
        names = np.append(names, np.array(more, np.int64)) if is_numbers else [*map(str, names), *more]
    return names, features, [f"{row} {number} {weight!r}" for row, number, weight in entries]
