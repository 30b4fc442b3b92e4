"""Ids of users, items and entities, and categories, as people write them: 7, 7.0, "7" and " 7 " are one id, 007 is
another."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from hogwild.errors import UsageError, did_you_mean, shown_name

WHITE = " \t\r\n\v\f"  # around an id; other spaces of Unicode are characters of it
WHOLE = re.compile(r"(-?(?:0|[1-9][0-9]*))\.0+")  # as pandas writes whole numbers of a column with a missing value


def spelled(name: Any) -> str:
    """Return an id as text, without white space around it; a whole number without a decimal point."""
    plain = name.item() if hasattr(name, "item") else name
    if isinstance(plain, bytes):
        plain = plain.decode("utf-8", "replace")
    if isinstance(plain, float) and plain.is_integer():
        plain = int(plain)
    return str(plain).strip(WHITE)


def one_spelling(text: str) -> str:
    """Return the one spelling of a category, without white space around it: 7.0 is 7, and true and TRUE are True. A
    column of whole numbers or of bool has these in one program, and those in another, or once a value is missing."""
    if text.endswith("0") and (whole := WHOLE.fullmatch(text)):
        return whole[1]
    return text.title() if len(text) in (4, 5) and text.lower() in ("true", "false") else text


NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
MOST_KEY = 2**63 - 1


def digest_of(text: str) -> int:
    """Return a number in [0, 2^64) that is the same in every process, program and year (BLAKE2b)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def key_of(name: Any) -> int:
    """Return the int64 that stands for an id in `NamedEmbedding`: a whole number from 0 on for itself, for any other
    name a negative number from a stable 63-bit hash of its one spelling, in UTF-8."""
    return key_of_text(one_spelling(spelled(name)))


def key_of_text(text: str) -> int:
    """Return the key of a name that is spelled as `one_spelling` does."""
    if NUMBER.fullmatch(text) and (number := int(text)) <= MOST_KEY:
        return number
    return -2 - digest_of(text) % (MOST_KEY - 2)  # never -1, which stands for a missing one, nor the lowest


class IdRows:
    """The row of each name."""

    def __init__(self, names: Iterable[Any]) -> None:
        self._rows = {spelled(name): row for row, name in enumerate(names)}

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, name: Any) -> int:
        """Return the row of a name, -1 for an unknown one."""
        text = spelled(name)
        if text not in self._rows:
            whole = WHOLE.fullmatch(text)
            text = whole[1] if whole else f"{text}.0"
        return self._rows.get(text, -1)

    def number(self, name: Any, kind: str) -> int:
        """Return the row of a name. Raises UsageError with a similar one for an unknown one; `kind`: what they name."""
        if (found := self.row(name)) < 0:
            near = did_you_mean(name, self)
            words = f"{shown_name(name)} is not among the {len(self):,} {kind}{near}"
            raise UsageError(words, code="usage/unknown-name")
        return found

    def rows(self, names: Iterable[Any]) -> np.ndarray:
        """Return the row of each name (n,) int64, -1 for an unknown one."""
        return np.array([*map(self.row, names)], np.int64)
