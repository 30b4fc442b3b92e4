"""Ratings: MovieLens' own files, any table with columns of users, items and ratings, and the Jester jokes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from hogwild.data.locate import bad_argument, choice
from hogwild.data.rating_table import DELIMITERS, Columns, Form, Holdout, Rated, RatedParsing, form_of
from hogwild.data.text_parsing import passes
from hogwild.data.text_parsing.passes import Finds, LinesStep, Parsed, Parsing, Pass, Run, TextLines, begins_of
from hogwild.data.text_parsing.vocabulary import numbered_columns
from hogwild.feeds.packed import Packed, PackedSpec
from hogwild.shared_memory.region import Region

LONGEST_HEADER = 1 << 16
ADVICE = "It is your own file, one line per rating: user, item, rating; for example MovieLens (grouplens.org/datasets)."
KINDS = {"user": "int32", "item": "int32", "rating": "float32"}


class Ratings(passes.PackedFile):
    """One rating per line: MovieLens' `u.data` (tabs), `ratings.dat` (`::`), `ratings.csv`, or any table with a column
    of users, one of items and perhaps one of ratings, plain or .gz; packed as `table`: `user` and `item` (N,) int32,
    `rating` (N,) float32, by user, then item. Without a column of ratings each is 1.

    Sizes and names: users, items, sorted by id: numerically if all are whole numbers, otherwise alphabetically.

    In validation data, ratings of users or items that are not in the training data are left out, counted and reported:
    nothing was learnt about them.

    Needs numba (pip install 'hogwild[sparse]'). Raises NotFoundError, UsageError; `pack` raises DataError with file,
    line and rule.

    Arguments:
        path: file, plain or .gz.
        columns: {user: …, item: …, rating: …}, names in the header or numbers from 0 on; null: recognised by name, or
            the first three.
        delimiter: tab, comma, `;`, `|`, space or `::`; auto: detected from the first line.
        header: whether the first line has the names of the columns; auto: detected.
        duplicates: of one user and one item: fail, last (the later one counts), keep.
        holdout: {fraction, seed, part: train | test}: a hash of the pair and the seed (0) decides its part, so the same
            file, given once for each part, is split."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        columns: Columns | None = None,
        delimiter: str = "auto",
        header: bool | Literal["auto"] = "auto",
        duplicates: Literal["fail", "last", "keep"] = "fail",
        holdout: Mapping[str, Any] | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        who = f"{type(self).__name__}(path={str(path)!r})"
        choice(who, "delimiter", delimiter, ("auto", *DELIMITERS))
        choice(who, "header", header, ("auto", True, False))
        choice(who, "duplicates", duplicates, ("fail", "last", "keep"))
        _check_columns(who, columns)
        self.holdout = holdout_of(who, holdout)
        self.path = passes.find_text(who, path, root, ADVICE)
        self.columns, self.delimiter, self.header, self.duplicates = columns, delimiter, header, duplicates

    @staticmethod
    def for_inputs(arguments: Mapping[str, Any], _: Sequence[str] | None) -> dict[str, Any]:
        """Return the arguments for a file to predict."""
        columns = arguments.get("columns") or {}
        return {**arguments, "columns": {key: columns[key] for key in ("user", "item") if key in columns} or None}

    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        return _RatingsParsing(self, what, like, on_bad_line)


def holdout_of(who: str, given: Mapping[str, Any] | None) -> Holdout | None:
    """Return the holdout. Raises UsageError if it is invalid."""
    if given is None:
        return None
    values = {"seed": 0, **given}
    is_right = (
        values.keys() == {"fraction", "seed", "part"}
        and isinstance(values["fraction"], float)
        and 0 < values["fraction"] < 1
        and type(values["seed"]) is int
        and values["seed"] >= 0
        and values["part"] in ("train", "test")
    )
    if not is_right:
        raise bad_argument(
            f"{who}: holdout must be {{fraction: between 0 and 1, seed: a whole number, part: train or test}}, got "
            f"{dict(given)!r}"
        )
    return Holdout(values["fraction"], values["seed"], values["part"] == "test")


def _check_columns(who: str, columns: Any) -> None:
    if columns is None:
        return
    is_right = isinstance(columns, Mapping) and {"user", "item"} <= columns.keys() <= {"user", "item", "rating"}
    if not is_right or any(type(column) not in (str, int) for column in columns.values()):
        raise bad_argument(
            f"{who}: columns must be {{user: …, item: …, rating: …}}, names, or numbers from 0, got {columns!r}"
        )


def _spec_of(samples: int) -> PackedSpec:
    return PackedSpec.laid_out("table", samples, {name: (kind, (samples,)) for name, kind in KINDS.items()}, {})


@dataclass(frozen=True, slots=True)
class _RatingsParse(LinesStep):
    """Pass that parses rows into place: a piece's rows start at `rows[piece]`, with ids as written."""

    spec: PackedSpec
    rows: np.ndarray
    form: Form

    def do(self, piece: int, regions: Mapping[str, Region]) -> None:
        from hogwild.kernels.parsing.lines import ITEMS, ratings

        found = self.found(regions)[piece]
        found[ITEMS:] = 0
        out = self.spec.attach(regions["out"]).arrays()
        one, two = self.form.bytes
        ratings(
            self.lines.piece(piece, regions), one, two, np.array(self.form.columns, np.int64),
            out["user"], out["item"], out["rating"], int(self.rows[piece]), int(self.rows[piece + 1]), found,
        )  # fmt: skip


class _RatingsParsing(RatedParsing):
    source: Ratings
    kind, options = "ratings", ("columns", "delimiter", "header", "duplicates", "holdout")
    rules: ClassVar[Mapping[int, str]] = {
        3: "TOKEN: a rating must be a number",
        4: "TOKEN is NaN or infinite; clean the data first",
        7: "the line has too few columns",
        8: "a user or an item is empty",
        9: "a quotation mark is not closed, or something stands behind it",
    }

    def parse(self, run: Run) -> Parsed:
        source = self.source
        lines, regions = TextLines.of(source.path)
        begin = int(lines.cuts[0])
        head = lines.read(begin, begin + LONGEST_HEADER, regions).tobytes().split(b"\n", 1)[0]
        first_line = head.decode("utf-8", "replace")
        self.form = form_of(source.path, first_line, source.delimiter, source.header, source.columns)
        if self.form.has_header:
            lines = lines.cut(min(lines.size, begin + len(head) + 1), 2, regions)
        if not lines.pieces:
            raise self.no_rows()
        finds = passes.counted(run, self.what, lines, regions, "ratings")
        return self.table(self._whole_numbers(run, finds) or self._intern(finds), finds)

    def _whole_numbers(self, run: Run, finds: Finds) -> Rated | None:
        """Parse ids that are whole numbers; return None if an id is a word."""
        from hogwild.kernels.parsing.lines import LINES, ROWS, WORDY

        rows = begins_of(finds.found[:, LINES])
        spec = _spec_of(int(rows[-1]))
        packed = Packed.allocate(self.region_name, spec)
        finds.regions["out"] = packed.region
        step = _RatingsParse(finds.lines, "ratings", spec, rows, self.form)
        run(Pass(self.what, finds.lines.pieces, step, finds.regions))
        if finds.total(WORDY):
            return None
        counts, arrays = finds.found[:, ROWS], packed.arrays()
        for array in arrays.values():
            passes.moved_together(array, rows, counts)
        samples = int(counts.sum())
        user, item, rating = (array[:samples] for array in arrays.values())
        return Rated(user, item, rating, region=packed.region, spec=spec)

    def _intern(self, finds: Finds) -> Rated:
        from hogwild.kernels.parsing import warm_up

        finds.regions.pop("out", None)
        warm_up.ready("words")
        columns = np.array(self.form.columns, np.int64)
        (user, item), rating, known = numbered_columns(finds, (*self.form.bytes, 0), columns, (0, 1))
        return Rated(user, item, rating, words=([*known[0]], [*known[1]]))

    def places(self, finds: Finds, user: str, item: str) -> list[str]:
        """Return the lines of one pair in the file, by reading it again."""
        found: list[str] = []
        wanted, (user_column, item_column, _) = (user.encode(), item.encode()), self.form.columns
        for piece in range(finds.lines.pieces):
            content, at = finds.lines.piece(piece, finds.regions).tobytes(), 0
            for line in content.split(b"\n"):
                fields = [field.strip(b'\r"') for field in line.split(self.form.delimiter.encode())]
                if len(fields) > max(user_column, item_column) and (fields[user_column], fields[item_column]) == wanted:
                    found.append(finds.place(piece, content, at))
                at += len(line) + 1
        return found


# ---- Jester ---------------------------------------------------------------------------------------------------------

JOKES = 100
NOTHING = 99.0  # the value for no rating
JESTER = "It is jester-data-1.zip (or -2, -3) of https://eigentaste.berkeley.edu/dataset, or the table in it as CSV."


class Jester(passes.PackedFile):
    """The Jester ratings (Goldberg, Roeder, Gupta and Perkins, "Eigentaste: a constant time collaborative filtering
    algorithm", 2001), a line per person: the number of rated jokes, then a rating from -10 to 10 for each of 100 jokes,
    99 for none; as CSV, zipped or not. Packed like `Ratings`. Users are numbered by line from 1 on, jokes from 1 to
    100. A person without ratings is no user.

    Arguments:
        path: file, .zip or the table in it.
        holdout: {fraction, seed, part: train | test}, as in Ratings."""

    duplicates = "keep"

    def __init__(
        self,
        path: str | os.PathLike[str] = "jester/jester-data-1.zip",
        holdout: Mapping[str, Any] | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        who = f"Jester(path={str(path)!r})"
        self.holdout = holdout_of(who, holdout)
        self.path = passes.find_text(who, path, root, JESTER)

    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        return _JesterParsing(self, what, like, on_bad_line)


@dataclass(frozen=True, slots=True)
class _JesterParse(LinesStep):
    """Pass that parses ratings into place: a piece's rows start at `rows[piece]`; users are numbered by line."""

    spec: PackedSpec
    rows: np.ndarray

    def do(self, piece: int, regions: Mapping[str, Region]) -> None:
        from hogwild.kernels.parsing.lines import ITEMS, LINES, wide

        found = self.found(regions)
        found[piece, ITEMS:] = 0
        out = self.spec.attach(regions["out"]).arrays()
        wide(
            self.lines.piece(piece, regions), ord(","), JOKES, NOTHING, out["user"], out["item"], out["rating"],
            int(self.rows[piece]), int(self.rows[piece + 1]), int(found[:piece, LINES].sum()), found[piece],
        )  # fmt: skip


class _JesterParsing(RatedParsing):
    source: Jester
    kind, options = "jester", ("holdout",)
    rules: ClassVar[Mapping[int, str]] = {
        **_RatingsParsing.rules,
        7: f"a line must have {JOKES + 1} numbers: how many ratings there are, then each joke's, {NOTHING:g} for none",
    }

    def parse(self, run: Run) -> Parsed:
        """Parse the ratings; persons and jokes are numbered from 1 on."""
        from hogwild.kernels.parsing.lines import ITEMS, LINES, ROWS

        finds = passes.counted(run, self.what, *TextLines.of(self.source.path), "wide", ord(","))
        most = begins_of(finds.found[:, ITEMS] + finds.found[:, LINES])
        step = _JesterParse(finds.lines, "wide", _spec_of(int(most[-1])), most)
        finds.regions["out"] = Region.allocate("raw", step.spec.nbytes)
        run(Pass(self.what, finds.lines.pieces, step, finds.regions))
        parts = [slice(begin, begin + many) for begin, many in zip(most, finds.found[:, ROWS], strict=False)]
        raw = step.spec.attach(finds.regions["out"]).arrays()
        user, item, rating = (np.concatenate([array[part] for part in parts]) for array in raw.values())
        return self.table(Rated(user + np.int32(1), item + np.int32(1), rating), finds)
