"""Ratings: MovieLens' own files, and any table with columns of users, items and ratings."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from hogwild.data.packed_cache import digest_of, file_digest
from hogwild.data.rating_table import DELIMITERS, Columns, Form, Holdout, Rated, Wishes, form_of, numbered
from hogwild.data.text_parsing.passes import (
    Count,
    Finds,
    PackedFile,
    Parsed,
    Parsing,
    Pass,
    Run,
    TextLines,
    begins_of,
    choice,
    counted,
    empty_file,
    find_text,
    found_in,
    moved_together,
)
from hogwild.data.text_parsing.vocabulary import numbered_columns
from hogwild.errors import UsageError
from hogwild.feeds.packed import Packed, PackedSpec
from hogwild.shared_memory.region import Region

VERSION = 1
LONGEST_HEADER = 1 << 16
ADVICE = "It is your own file, one line per rating: user, item, rating; for example MovieLens (grouplens.org/datasets)."
RULES: dict[int, str] = {
    3: "TOKEN: a rating must be a number",
    4: "TOKEN is NaN or infinite; clean the data first",
    7: "the line has too few columns",
    8: "a user or an item is empty",
    9: "a quotation mark is not closed, or something stands behind it",
}


class Ratings(PackedFile):
    """One rating per line: MovieLens' `u.data` (tabs), `ratings.dat` (`::`), `ratings.csv`, or any table with a column
    of users, one of items and perhaps one of ratings, plain or .gz; packed as `table`: `user` and `item` (N,) int32,
    `rating` (N,) float32, by user, then item. Without a column of ratings each is 1.

    `columns`: {user: …, item: …, rating: …}, names in the header or numbers from 0 on; by default they are recognised
    by name, or are the first three. `delimiter` and `header` are detected from the first line. `duplicates`, of one
    user and one item: fail, last (the later one counts), keep. `holdout`: {fraction, seed, part: train | test}: a hash
    of the pair and the seed decides its part, so the same file, given once for each part, is split; the default seed is
    0.

    Sizes and names: users, items, sorted by id: numerically if all are whole numbers, otherwise alphabetically.

    In validation data, ratings of users or items that are not in the training data are left out, counted and reported:
    nothing was learnt about them.

    A relative `path` is searched below `root`, below DIR, beside the job file and in the current folder. Needs numba
    (pip install 'hogwild[sparse]'). Raises NotFoundError, UsageError; `pack` raises DataError with file, line and
    rule."""

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
        self.path = find_text(who, str(path), None if root is None else str(root), ADVICE)
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
        raise UsageError(
            f"{who}: holdout must be {{fraction: between 0 and 1, seed: a whole number, part: train or test}}, got "
            f"{dict(given)!r}",
            code="config/bad-argument",
        )
    return Holdout(values["fraction"], values["seed"], values["part"] == "test")


def _check_columns(who: str, columns: Any) -> None:
    if columns is None:
        return
    is_right = isinstance(columns, Mapping) and {"user", "item"} <= columns.keys() <= {"user", "item", "rating"}
    if not is_right or any(type(column) not in (str, int) for column in columns.values()):
        raise UsageError(
            f"{who}: columns must be {{user: …, item: …, rating: …}}, names, or numbers from 0, got {columns!r}",
            code="config/bad-argument",
        )


@dataclass(frozen=True, slots=True)
class _RatingsParse:
    """Pass that parses rows into place: a piece's rows start at `rows[piece]`, with ids as written."""

    lines: TextLines
    spec: PackedSpec
    rows: np.ndarray
    form: Form

    def ready(self) -> None:
        Count(self.lines, "ratings").ready()

    def do(self, piece: int, regions: Mapping[str, Region]) -> None:
        from hogwild.kernels.parsing.columns import ratings
        from hogwild.kernels.parsing.libsvm import ITEMS

        found = found_in(regions, self.lines)[piece]
        found[ITEMS:] = 0
        out = self.spec.attach(regions["out"]).arrays()
        one, two = self.form.bytes
        ratings(
            self.lines.piece(piece, regions), one, two, np.array(self.form.columns, np.int64),
            out["user"], out["item"], out["rating"], int(self.rows[piece]), int(self.rows[piece + 1]), found,
        )  # fmt: skip


@dataclass(slots=True)
class _RatingsParsing:
    """The parsing of one file."""

    source: Ratings
    what: str
    like: Packed | None
    on_bad_line: str
    left_out: dict[str, int] = field(default_factory=dict)

    def key(self) -> str:
        source = self.source
        options = (source.columns, source.delimiter, source.header, source.duplicates, source.holdout, self.on_bad_line)
        return digest_of("ratings", VERSION, options, file_digest(source.path), self.like)

    def parse(self, run: Run) -> Parsed:
        lines, regions = TextLines.of(self.source.path)
        begin = int(lines.cuts[0])
        head = lines.read(begin, begin + LONGEST_HEADER, regions).tobytes().split(b"\n", 1)[0]
        source = self.source
        form = form_of(
            source.path, head.decode("utf-8", "replace"), source.delimiter, source.header, source.columns
        )  # fmt: skip
        if form.has_header:
            lines = lines.cut(min(lines.size, begin + len(head) + 1), 2, regions)
        if not lines.pieces:
            raise empty_file(source.path, {})
        finds = Finds(lines, counted(run, self.what, lines, regions, "ratings"), regions, RULES)
        rated = self._whole_numbers(run, form, finds, regions) or self._words(form, finds, regions)
        notes = finds.settle(self.on_bad_line, self.left_out)
        if not len(rated.user):
            raise empty_file(source.path, self.left_out)
        wishes = Wishes(self.what, source.path, source.duplicates, source.holdout, self.like)
        packed = numbered(rated, wishes, lambda user, item: places_of(finds, form, user, item), notes, self.left_out)
        return Parsed(packed, self.left_out, tuple(f"{source.path}: {note}" for note in notes))

    def _whole_numbers(self, run: Run, form: Form, finds: Finds, regions: dict[str, Region]) -> Rated | None:
        """Parse ids that are whole numbers; return None if an id is a word."""
        from hogwild.kernels.parsing.libsvm import LINES, ROWS, WORDY

        rows = begins_of(finds.found[:, LINES])
        shapes = {name: (kind, (int(rows[-1]),)) for name, kind in KINDS.items()}
        spec = PackedSpec.laid_out("table", int(rows[-1]), shapes, {})
        packed = Packed.allocate(self.what.replace(".", "-"), spec)
        regions["out"] = packed.region
        run(Pass(self.what, finds.lines.pieces, _RatingsParse(finds.lines, spec, rows, form), regions))
        if finds.total(WORDY):
            return None
        counts, arrays = finds.found[:, ROWS], packed.arrays()
        for array in arrays.values():
            moved_together(array, rows, counts)
        samples = int(counts.sum())
        user, item, rating = (array[:samples] for array in arrays.values())
        return Rated(user, item, rating, region=packed.region, spec=spec)

    def _words(self, form: Form, finds: Finds, regions: dict[str, Region]) -> Rated:
        from hogwild.kernels.parsing import warm_up

        regions.pop("out", None)
        warm_up.ready("words")
        columns = np.array(form.columns, np.int64)
        (user, item), rating, known = numbered_columns(finds, (*form.bytes, 0), columns, (0, 1))
        return Rated(user, item, rating, words=(known[0].words(), known[1].words()))


KINDS = {"user": "int32", "item": "int32", "rating": "float32"}


def places_of(finds: Finds, form: Form, user: str, item: str) -> list[str]:
    """Return the lines of one pair in the file, by reading it again."""
    found: list[str] = []
    for piece in range(finds.lines.pieces):
        content, at = finds.lines.piece(piece, finds.regions).tobytes(), 0
        for line in content.split(b"\n"):
            fields = [field.strip(b'\r"') for field in line.split(form.delimiter.encode())]
            wanted = (user.encode(), item.encode())
            if len(fields) > max(form.columns[:2]) and (fields[form.columns[0]], fields[form.columns[1]]) == wanted:
                found.append(finds.place(piece, content, at))
            at += len(line) + 1
    return found
