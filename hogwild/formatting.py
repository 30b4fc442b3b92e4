"""Sizes, counts, durations and values as people read them: for messages, the display, the report and the doctor."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from pathlib import PurePath
from typing import Any

BINARY_UNITS = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
SIZES = ("_bytes", "size")


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {whole % 60:02d} s"


def clock(seconds: float) -> str:
    """`0:01:23`; with days where there are some: `2d 3:00:00`."""
    days, rest = divmod(int(seconds), 86400)
    return (f"{days}d " if days else "") + str(timedelta(seconds=rest))


def size(nbytes: float) -> str:
    """`812 B`, `28 MiB`, `1.5 GiB`: never more than three digits."""
    word, unit = next((one for one in BINARY_UNITS if nbytes * 1024 / 999.5 >= one[1]), BINARY_UNITS[-1])
    value = nbytes / unit
    return f"{value:.1f} {word}" if value < 9.95 and unit > 1 else f"{value:.0f} {word}"


def beside(values: Mapping[str, float], baseline: Mapping[str, float], digits: int = 4) -> list[str]:
    """Return each value with its name, and with that of the baseline if there is one."""
    words = {name: f" (popularity {value:.{digits}g})" for name, value in baseline.items()}
    return [f"{name} {value:.{digits}g}{words.get(name, '')}" for name, value in values.items()]


def counted(count: int, noun: str) -> str:
    """`1 worker`, `1,234 workers`, `2 batches`."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('ch') else 's'}"


def ranges(numbers: Iterable[int]) -> str:
    """`0-3,8`: for the numbers of CPUs."""
    found: list[list[int]] = []
    for one in sorted(numbers):
        if found and one == found[-1][-1] + 1:
            found[-1][1:] = [one]
        else:
            found.append([one])
    return ",".join("-".join(map(str, part)) for part in found)


def percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def short_number(value: float) -> str:
    """At most nine characters: `1,234`, `12.3 M`."""
    for unit, word in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= max(unit, 1e7):
            return f"{value / unit:.1f} {word}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def moment(at: float) -> str:
    """Return local time with its UTC offset: a run may come from another machine."""
    try:
        return datetime.fromtimestamp(at).astimezone().isoformat(sep=" ", timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return str(at)


def number(value: float) -> str:
    """Return four significant digits; whole numbers in full."""
    if isinstance(value, int) or (value == int(value) if abs(value) < 1e15 else False):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_value(value: Any, name: str = "") -> str:
    """Format a value of a record; `name` gives its unit: `…_s` are seconds, `…_bytes` a size."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        if not abs(value) < 1e300:  # NaN, infinite, or an integer that no float holds
            return str(value)
        if name.endswith(SIZES):
            return size(value)
        if name.endswith("_s") and not name.endswith("_per_s"):
            return duration(value)
        return number(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def exact(value: Any) -> str:
    """Format a value of a job file as YAML on one line."""
    return json.dumps(value, ensure_ascii=False, default=str) if not isinstance(value, str) else value


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested mappings as dotted names with values; empty mappings and all lists count as values."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def in_one_line(text: str) -> str:
    """Return lines as one, with a semicolon where one ends without a mark."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line if line[-1] in ".:;,!?" else f"{line};" for line in lines[:-1]]
    return " ".join([*marked, *lines[-1:]])


LINE = 200  # most characters of a repr


def one_line(text: str) -> str:
    """Return the text on one line, shortened in its middle."""
    words = " ".join(text[: 100 * LINE].split())
    return words if len(words) <= LINE else f"{words[: LINE * 2 // 3]} … {words[3 - LINE // 3 :]}"


def brief(thing: Any) -> str:
    """Return a repr on one line: the fields of a dataclass, or those of a section of a job file that were given.
    Tables and long lists are told by their sizes, other objects by their classes."""
    if is_dataclass(thing):
        names = [one.name for one in fields(thing) if one.repr and not one.name.startswith("_")]
    else:
        names = [name for name in type(thing).model_fields if name in thing.model_fields_set]
    shown = (f"{name}={_in_brief(getattr(thing, name, None))}" for name in names)
    return one_line(f"{type(thing).__name__}({', '.join(shown)})")


def _in_brief(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float):
        return f"{value:.6g}" if isinstance(value, float) else repr(value)
    if isinstance(value, str | PurePath):
        return repr(text if len(text := str(value)) <= LINE // 2 else f"{text[: LINE // 2]}…")
    if isinstance(value, Mapping | list | tuple):
        few = [*value.values()] if isinstance(value, Mapping) else value
        if len(few) > 3 or not all(isinstance(one, bool | int | float | str) for one in few):
            return f"{type(value).__name__} of {len(value):,}"
        found = [_in_brief(one) for one in few]
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{_in_brief(key)}: {one}' for key, one in zip(value, found, strict=True))}}}"
        return f"[{', '.join(found)}]"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return getattr(value, "__name__", type(value).__name__)
