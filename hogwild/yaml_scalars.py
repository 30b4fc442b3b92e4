"""What an unquoted YAML scalar means: the core schema of YAML 1.2, and nothing that depends on who reads it.

PyYAML follows YAML 1.1, where `1e-3` is text, `010` is 8, `1:30` is 90 and `no` is False. What 1.1 and 1.2
read differently as a number is an error that says what to write; the words (`no`, `on`) are text.
"""

import math
import re
from typing import Any


class Trap(ValueError):
    """A plain scalar nobody can rely on; the message is complete and says what to write."""

    def __init__(self, message: str, *, code: str = "config/ambiguous-value") -> None:
        super().__init__(message)
        self.code = code


NULLS = {"", "~", "null", "Null", "NULL"}
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+(\.[0-9_]*)?([eE][-+]?[0-9]+)?")
_OTHER_BASE = re.compile(r"[-+]?0[xob][0-9a-fA-F_]+")
_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")
_UNDERSCORES = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?")


def read_scalar(text: str) -> Any:
    """What an unquoted scalar means in YAML 1.2's core schema: None, bool, int, float or str. Raises Trap."""
    if text in NULLS:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return _integer(text)
    _refuse_traps(text)
    if _FLOAT.fullmatch(text):
        return _finite(text)
    return text


def _integer(text: str) -> int:
    if len(text) > 300:
        raise Trap(f"a number of {len(text)} digits is too large", code="config/out-of-range")
    return int(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Trap(f"must be finite, got {text}", code="config/not-finite")
    return number


def _refuse_traps(text: str) -> None:
    if _NOT_FINITE.fullmatch(text):
        raise Trap(f'must be finite, got {text}; write a number, or "{text}" for text', code="config/not-finite")
    if _LEADING_ZERO.fullmatch(text):
        number = re.sub(r"^([-+]?)0+(?=[0-9])", r"\1", text.replace("_", ""))
        raise Trap(f'{text} is 8-based for some YAML readers; write {number}, or "{text}" for text')
    if _OTHER_BASE.fullmatch(text):
        raise Trap(f'{text} is a number for some YAML readers; write {_in_tens(text)}or "{text}" for text')
    if _SEXAGESIMAL.fullmatch(text):
        raise Trap(f'{text} is {_in_sixties(text)} for some YAML readers; write "{text}" for text, or the number')
    if _UNDERSCORES.fullmatch(text) and "_" in text:
        number = text.replace("_", "")
        raise Trap(f'{text} is a number for some YAML readers; write {number}, or "{text}" for text')


def _in_tens(text: str) -> str:
    try:
        return f"{int(text.replace('_', ''), 0)}, "
    except ValueError:
        return ""


def _in_sixties(text: str) -> str:
    sign = -1.0 if text.startswith("-") else 1.0
    total = 0.0
    for part in text.lstrip("+-").replace("_", "").split(":")[:20]:
        total = total * 60 + float(part)
    return f"{sign * total:g}"
