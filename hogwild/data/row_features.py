"""Features of users and items, in a file of their own: what a row of a hybrid model is the sum of."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.data.file_kind import text_of
from hogwild.data.ids import WHITE, IdRows
from hogwild.data.rating_form import LOOKED_AT, comments_before, recognised
from hogwild.data.text_parsing.table_text import COMMENT, Format
from hogwild.errors import DataError

RULE = "a line must be NAME, FEATURE and perhaps a WEIGHT, a number, separated by tabs, or by commas, ; or |"
HIGHEST = float(np.finfo(np.float32).max)


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
        pair = fields[0], fields[1]
        found[pair] = _weight(fields[2] if len(fields) > 2 else "1", found.get(pair, 0.0), where)
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


def _weight(text: str, before: float, where: str) -> float:
    """Return the sum of the weight and the one before, which float32 must hold."""
    try:
        weight = before + float(text)
    except ValueError:
        weight = math.nan
    if not abs(weight) <= HIGHEST:
        raise DataError(
            f"{where}: the weight {text!r} must be a finite number, up to {HIGHEST:.2g} with those of repeated lines",
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
