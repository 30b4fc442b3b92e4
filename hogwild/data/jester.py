"""The Jester jokes: ratings of 100 jokes, one line per person (Goldberg, Roeder, Gupta and Perkins, "Eigentaste: a
constant time collaborative filtering algorithm", 2001)."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hogwild.data.packed_cache import digest_of, file_digest
from hogwild.data.rating_table import Rated, Wishes, numbered
from hogwild.data.ratings import KINDS, RULES, holdout_of
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
    counted,
    empty_file,
    find_text,
    found_in,
)
from hogwild.feeds.packed import Packed, PackedSpec
from hogwild.shared_memory.region import Region

VERSION = 1
JOKES = 100
NOTHING = 99.0  # the value for no rating
ADVICE = "It is jester-data-1.zip (or -2, -3) of https://eigentaste.berkeley.edu/dataset, or the table in it as CSV."


class Jester(PackedFile):
    """The Jester ratings, a line per person: the number of rated jokes, then a rating from -10 to 10 for each of 100
    jokes, 99 for none; as CSV, zipped or not. Packed like `Ratings`, with the same `holdout`. Users are numbered by
    line from 1 on, jokes from 1 to 100. A person without ratings is no user."""

    def __init__(
        self,
        path: str | os.PathLike[str] = "jester/jester-data-1.zip",
        holdout: Mapping[str, Any] | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        who = f"Jester(path={str(path)!r})"
        self.holdout = holdout_of(who, holdout)
        self.path = find_text(who, str(path), None if root is None else str(root), ADVICE)

    def parsing(self, what: str, like: Packed | None, on_bad_line: str) -> Parsing:
        return _JesterParsing(self, what, like, on_bad_line)


@dataclass(frozen=True, slots=True)
class _JesterParse:
    """Pass that parses ratings into place: a piece's rows start at `rows[piece]`; users are numbered by line."""

    lines: TextLines
    spec: PackedSpec
    rows: np.ndarray

    def ready(self) -> None:
        Count(self.lines, "wide").ready()

    def do(self, piece: int, regions: Mapping[str, Region]) -> None:
        from hogwild.kernels.parsing.columns import wide
        from hogwild.kernels.parsing.libsvm import ITEMS, LINES

        found = found_in(regions, self.lines)
        found[piece, ITEMS:] = 0
        out = self.spec.attach(regions["out"]).arrays()
        wide(
            self.lines.piece(piece, regions), ord(","), JOKES, NOTHING, out["user"], out["item"], out["rating"],
            int(self.rows[piece]), int(self.rows[piece + 1]), int(found[:piece, LINES].sum()), found[piece],
        )  # fmt: skip


@dataclass(slots=True)
class _JesterParsing:
    source: Jester
    what: str
    like: Packed | None
    on_bad_line: str
    left_out: dict[str, int] = field(default_factory=dict)

    def key(self) -> str:
        options = (self.source.holdout, self.on_bad_line)
        return digest_of("jester", VERSION, options, file_digest(self.source.path), self.like)

    def parse(self, run: Run) -> Parsed:
        from hogwild.kernels.parsing.libsvm import ITEMS, LINES

        lines, regions = TextLines.of(self.source.path)
        found = counted(run, self.what, lines, regions, "wide", ord(","))
        finds = Finds(lines, found, regions, RULES | {7: _RULE})
        most = begins_of(finds.found[:, ITEMS] + finds.found[:, LINES])
        spec = PackedSpec.laid_out("table", int(most[-1]), {n: (k, (int(most[-1]),)) for n, k in KINDS.items()}, {})
        rated = self._rated(run, _JesterParse(lines, spec, most), finds, regions)
        notes = finds.settle(self.on_bad_line, self.left_out)
        if not len(rated.user):
            raise empty_file(self.source.path, self.left_out)
        wishes = Wishes(self.what, self.source.path, "keep", self.source.holdout, self.like)
        packed = numbered(rated, wishes, lambda user, item: [], notes, self.left_out)
        return Parsed(packed, self.left_out, tuple(f"{self.source.path}: {note}" for note in notes))

    def _rated(self, run: Run, step: _JesterParse, finds: Finds, regions: dict[str, Region]) -> Rated:
        """Parse the ratings; persons and jokes are numbered from 1 on."""
        from hogwild.kernels.parsing.libsvm import ROWS

        regions["out"] = Region.allocate("raw", step.spec.nbytes)
        run(Pass(self.what, finds.lines.pieces, step, regions))
        parts = [slice(begin, begin + many) for begin, many in zip(step.rows, finds.found[:, ROWS], strict=False)]
        raw = step.spec.attach(regions["out"]).arrays()
        user, item, rating = (np.concatenate([array[part] for part in parts]) for array in raw.values())
        return Rated(user + np.int32(1), item + np.int32(1), rating)


_RULE = f"a line must have {JOKES + 1} numbers: how many ratings there are, then each joke's, {NOTHING:g} for none"
