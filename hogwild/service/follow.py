"""The records of a run as they grow: `metrics.jsonl` read once, from where the last look ended, and thinned.

A series keeps at most MOST_POINTS points: when it is full, each two neighbours become their mean. So a run of a week
costs as much as one of an hour."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_POINTS = 2000
MOST_RUNS = 64  # whose points are kept
TRAIN = ("time", "updates", "samples", "loss", "samples_per_s", "lr")
NOT_METRICS = ("time", "kind", "epoch", "updates", "samples", "seconds", "best")


@dataclass(slots=True)
class Series:
    """Points, oldest first; each the mean of up to `stride` records."""

    names: tuple[str, ...]
    points: list[list[float | None]] = field(default_factory=list)
    stride: int = 1
    _open: list[list[float | None]] = field(default_factory=list)

    def add(self, point: list[float | None]) -> None:
        self._open.append(point)
        if len(self._open) >= self.stride:
            self.points.append(_mean(self._open))
            self._open.clear()
        if len(self.points) >= MOST_POINTS:
            self.points = [_mean(self.points[place : place + 2]) for place in range(0, len(self.points), 2)]
            self.stride *= 2

    def columns(self) -> dict[str, list[float | None]]:
        """Return name -> values, the newest record included."""
        rows = [*self.points, *([_mean(self._open)] if self._open else [])]
        return {name: [row[column] for row in rows] for column, name in enumerate(self.names)}


def _mean(rows: list[list[float | None]]) -> list[float | None]:
    columns = ([value for value in column if value is not None] for column in zip(*rows, strict=True))
    return [sum(values) / len(values) if values else None for values in columns]


class ThinnedCurves:
    """The curves of one run. `generation` changes when the file was cut or replaced (a resume drops the records after
    its checkpoint) and everything is read again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.generation = 0
        self._identity: int | None = None
        self._offset = 0
        self._last = b""  # of the bytes before the offset
        self._train = Series(TRAIN)
        self._evaluations: list[dict[str, Any]] = []

    def read(self) -> dict[str, Any]:
        """Return the curves with what was appended since the last call."""
        try:
            with open(self._file, "rb") as stream:
                found = self._file.stat()
                if found.st_ino != self._identity or not self._is_where_it_was(stream):
                    self._reset(found.st_ino)
                stream.seek(self._offset)
                whole, end, _ = stream.read().rpartition(b"\n")
        except OSError:
            return self._answer()
        if end:
            for record in _objects(whole):
                self._add(record)
            self._offset += len(whole) + 1
            self._last = (whole + end)[-64:]
        return self._answer()

    def _is_where_it_was(self, stream: Any) -> bool:
        stream.seek(self._offset - len(self._last))
        return bool(stream.read(len(self._last)) == self._last)

    def _reset(self, identity: int) -> None:
        self.generation += 1
        self._identity, self._offset, self._last = identity, 0, b""
        self._train, self._evaluations = Series(TRAIN), []

    def _add(self, record: dict[str, Any]) -> None:
        if record.get("kind") == "train":
            self._train.add([_number(record.get(name)) for name in TRAIN])
        elif record.get("kind") == "evaluation":
            metrics = {name: _number(value) for name, value in record.items() if name not in NOT_METRICS}
            self._evaluations.append({**{name: record.get(name) for name in TRAIN[:3]}, "metrics": metrics})
            del self._evaluations[:-MOST_POINTS]

    def _answer(self) -> dict[str, Any]:
        return {"generation": self.generation, "train": self._train.columns(), "evaluations": self._evaluations}


class Followed:
    """The curves of the runs that were asked for last. Thread-safe."""

    def __init__(self) -> None:
        self._curves: dict[Path, ThinnedCurves] = {}
        self._guard = threading.Lock()

    def read(self, run: Path) -> dict[str, Any]:
        with self._guard:
            curves = self._curves.pop(run, None) or ThinnedCurves(run / "metrics.jsonl")
            self._curves[run] = curves  # the last used one is the newest
            if len(self._curves) > MOST_RUNS:
                del self._curves[next(iter(self._curves))]
            return curves.read()


def _objects(lines: bytes) -> Iterator[dict[str, Any]]:
    for line in lines.split(b"\n"):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
