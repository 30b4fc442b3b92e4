"""Rows of a text that all have the same columns: what ratings and triples have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hogwild.data.parsing import Lines, Pass, Run, zeros
from hogwild.errors import DataError
from hogwild.shm import Region


@dataclass(frozen=True, slots=True)
class Count:
    """How many lines each piece has. `kind`: what will parse them (`kernels/parsers_cache.py`)."""

    lines: Lines
    kind: str
    mark: int = ord(":")  # counted, too: of libsvm's pairs there are as many

    def ready(self) -> None:
        from hogwild.kernels import parsers_cache

        parsers_cache.ready(self.kind)

    def do(self, piece: int, regions: Mapping[str, Region]) -> None:
        from hogwild.kernels.parsers import count

        count(self.lines.piece(piece, regions), self.mark, found_in(regions, self.lines)[piece])


def counted(
    run: Run, what: str, lines: Lines, regions: dict[str, Region], kind: str, mark: int = ord(":")
) -> np.ndarray:
    """The first pass over a text: (pieces, FOUND) int64 of what its pieces hold, in `regions`, for all processes."""
    from hogwild.kernels.parsers import FOUND

    regions["found"] = zeros("found", (lines.pieces, FOUND), "i8")
    run(Pass(what, lines.pieces, Count(lines, kind, mark), regions))
    return found_in(regions, lines)


def found_in(regions: Mapping[str, Region], lines: Lines) -> np.ndarray:
    """(pieces, FOUND) int64"""
    from hogwild.kernels.parsers import FOUND

    return regions["found"].array("i8", (lines.pieces, FOUND))


def empty_file(path: Path, left_out: Mapping[str, int]) -> DataError:
    skipped = f"; {left_out['bad lines']:,} lines do not parse" if "bad lines" in left_out else ""
    return DataError(f"{path}: holds no samples: there is no row{skipped}", code="data/empty")
