"""Features of users and items, in a file of their own: what a row of a hybrid model is the sum of."""

import csv
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.data.file_kind import text_of
from hogwild.data.ids import WHITE, IdRows
from hogwild.errors import DataError

RULE = "a line must be NAME, FEATURE and perhaps a WEIGHT, a number, separated by tabs, or by commas in all lines"
HIGHEST = float(np.finfo(np.float32).max)


def read_features(path: Path) -> dict[tuple[str, str], float]:
    """Return the weights of (name, feature) pairs, in the file's order; those of a repeated pair are added up. A first
    line whose second field is `feature` is a header. Raises DataError with file and line."""
    text = text_of(path, "table")
    found: dict[tuple[str, str], float] = {}
    has_tabs = "\t" in text.lstrip("\r\n").partition("\n")[0]
    file = io.StringIO(text)
    lines = csv.reader(file, strict=True)
    if has_tabs:
        lines = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    for fields in _parsed(lines, path):
        fields = [field.strip(WHITE) for field in fields]
        if not any(fields) or (lines.line_num == 1 and [field.lower() for field in fields[1:2]] == ["feature"]):
            continue
        if len(fields) not in (2, 3) or not (fields[0] and fields[1]):
            raise DataError(f"{path}:{lines.line_num}: {fields}: {RULE}", code="data/bad-value")
        pair = fields[0], fields[1]
        found[pair] = _weight(fields[2] if len(fields) > 2 else "1", found.get(pair, 0.0), path, lines.line_num)
    return found


def _parsed(lines: Any, path: Path) -> Iterator[list[str]]:
    """Yield the fields of each line. Raises DataError for a quotation mark that the line does not close."""
    begin = 1
    try:
        for fields in lines:
            if lines.line_num > begin:
                raise csv.Error("a field has more than one line; is a quotation mark not closed?")
            yield fields
            begin = lines.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}:{begin}: {error}", code="data/bad-value") from error


def _weight(text: str, before: float, path: Path, line: int) -> float:
    """Return the sum of the weight and the one before, which float32 must hold."""
    try:
        weight = before + float(text)
    except ValueError:
        weight = math.nan
    if not abs(weight) <= HIGHEST:
        raise DataError(
            f"{path}:{line}: the weight {text!r} must be a finite number, up to {HIGHEST:.2g} with those of repeated "
            "lines",
            code="data/bad-value",
        )
    return weight


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
        is_numbers = isinstance(names, np.ndarray) and names.dtype.kind == "i" and all(map(_is_number, more))
        names = np.append(names, np.array(more, np.int64)) if is_numbers else [*map(str, names), *more]
    return names, features, [f"{row} {number} {weight!r}" for row, number, weight in entries]


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name)) == name and int(name) < 1 << 63
