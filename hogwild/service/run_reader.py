"""Files of one run directory as the service shows them: logs, stacks, a checkpoint's model, configuration, and the
records as they grow. Only a bounded part of a file is returned.

A growing file is read once, from where the last look ended, thinned, and shared by all readers of the run. A series
keeps at most MOST_POINTS points: when it is full, each two neighbours become their mean. So a run of a week costs as
much as one of an hour. Thinning depends on the records alone, so a *place* (file, offset, stride) means the same to
every reader, also after a restart of the service: a reader at a place gets what follows it or, if the file was cut or
thinned since, everything (`reset`)."""

import contextlib
import hashlib
import json
import os
import re
import threading
import zlib
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from itertools import pairwise
from math import isnan, nan
from pathlib import Path
from statistics import fmean
from typing import Any, BinaryIO
from weakref import WeakValueDictionary

from hogwild.config.load import JOB_FILE, OVERRIDE, ResolvedSetting, flat_values, load_job, settings
from hogwild.config.locate import read_job_file
from hogwild.errors import CheckpointError, NotFoundError
from hogwild.formatting import flat
from hogwild.metrics.catalog import RECORDED
from hogwild.monitoring.words import event_in_words, row_of
from hogwild.service.folders import JobFolder
from hogwild.service.states import JobOrder
from hogwild.storage.checkpoint_format import MANIFEST, MODEL
from hogwild.storage.files import object_of, to_json
from hogwild.storage.run_directory import RESOLVED, STATUS
from hogwild.storage.run_files import (
    CHECKPOINTS,
    MOST_ENTRIES,
    SMALL_BYTES,
    opened,
    opened_folder,
    read_json,
    read_small,
)

LOG_BYTES = 256 << 10  # of a log, in one answer
SEARCHED_BYTES = 256 << 20  # of the end of a log, by a search: 0.6 s
MOST_LINES = 2000  # that a search returns
LINE_BYTES = 64 << 10  # a longer line is cut into several
STACK_BYTES = 64 << 10  # of one process
LOG = re.compile(r"([a-z]+)(?:-([0-9]{1,4}))?\.log")


# ---- logs


def logs_in(run: Path) -> list[dict[str, Any]]:
    """Return name and size of each log, the supervisor's first."""
    found: list[tuple[str, int, int]] = []
    with contextlib.suppress(OSError), opened_folder(run, "logs") as folder, os.scandir(folder) as entries:
        for entry in entries:
            match = LOG.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False):
                found.append((match[1], int(match[2] or -1), entry.stat(follow_symlinks=False).st_size))
    ordered = sorted(found, key=lambda one: (one[0] != "supervisor", one))[:MOST_ENTRIES]
    return [{"name": noun if number < 0 else f"{noun}-{number}", "bytes": size} for noun, number, size in ordered]


def read_log(run: Path, name: str, search: str = "") -> str:
    """Return the end of a log; with `search` its newest lines that contain that, in any case. Raises NotFoundError."""
    try:
        with opened(run, "logs", f"{name}.log") as stream:
            return _matching(stream, search.casefold()) if search else _end_of(stream)
    except OSError:
        raise NotFoundError(f"there is no {name}.log of this job", code="run/no-log") from None


def _end_of(stream: BinaryIO) -> str:
    size = os.fstat(stream.fileno()).st_size
    stream.seek(max(0, size - LOG_BYTES))
    text = stream.read(LOG_BYTES).decode(errors="replace")
    return text if size <= LOG_BYTES else text.partition("\n")[2]


def _matching(stream: BinaryIO, wanted: str) -> str:
    """Return the newest matching lines, as many as LOG_BYTES hold. What is written meanwhile is not searched: it may
    never end."""
    end = os.fstat(stream.fileno()).st_size
    if end > SEARCHED_BYTES:
        stream.seek(end - SEARCHED_BYTES)
        stream.readline(LINE_BYTES)  # the rest of a line
    kept: deque[tuple[int, str]] = deque()  # (bytes, line)
    size = 0
    while stream.tell() < end and (raw := stream.readline(LINE_BYTES)):
        line = raw.decode(errors="replace")
        if wanted in line.casefold():
            kept.append((len(raw), line if line.endswith("\n") else f"{line}\n"))
            size += len(raw)
            while len(kept) > MOST_LINES or size > LOG_BYTES:
                size -= kept.popleft()[0]
    return "".join(line for _, line in kept)


def sizes_of_stacks(run: Path) -> dict[str, int]:
    """Return file name -> size of the stacks that were written until now."""
    with contextlib.suppress(OSError), opened_folder(run, "stacks") as folder, os.scandir(folder) as entries:
        files = [one for one in entries if one.name.endswith(".txt") and one.is_file(follow_symlinks=False)]
        return {one.name: one.stat(follow_symlinks=False).st_size for one in sorted(files, key=lambda one: one.name)}
    return {}


def read_stacks(run: Path, before: Mapping[str, int]) -> str:
    """Return what was appended to the stacks since `before`."""
    parts = []
    for name in [*sizes_of_stacks(run)][:MOST_ENTRIES]:
        with contextlib.suppress(OSError), opened(run, "stacks", name) as stream:
            stream.seek(before.get(name, 0))
            if text := stream.read(STACK_BYTES).decode(errors="replace"):
                parts.append(f"{name.removesuffix('.txt')}\n{text}")
    return "\n".join(parts)


# ---- checkpoints


def opened_model(run: Path, name: str) -> tuple[BufferedReader, int]:
    """Open the model of a checkpoint, for `export`; return it with its size. Reads all of it, to compare it with the
    manifest. Raises NotFoundError, CheckpointError."""
    expected = read_json(run, CHECKPOINTS, name, MANIFEST).get("files", {})
    try:
        stream = opened(run, CHECKPOINTS, name, MODEL)
    except OSError:
        raise NotFoundError(f"this job has no checkpoint {name}", code="export/no-checkpoint") from None
    entry = expected.get(MODEL) if isinstance(expected, dict) else None
    size = os.fstat(stream.fileno()).st_size
    actual = {"sha256": hashlib.file_digest(stream, "sha256").hexdigest(), "size": size}
    if entry != actual:
        stream.close()
        raise CheckpointError(
            f"checkpoint {name}: {MODEL} is damaged: it has {actual}, the manifest says {entry}; use another one",
            code="checkpoint/damaged",
        )
    stream.seek(0)
    return stream, size


# ---- configuration


def config_of(order: JobOrder, folder: JobFolder) -> dict[str, Any]:
    """Return the job file as submitted, as resolved, and where each value came from. Raises NotFoundError,
    ConfigError."""
    text = read_job_file(folder.files / order.copied)
    resolved = read_small(folder.run, RESOLVED)
    values = flat_values(resolved or "")
    if not values:
        values = dict(flat(load_job(Path(order.job_file), order.overrides, source_text=text).model_dump()))
    changes = [change.partition("=") for change in order.overrides]
    return {
        "text": text,
        "resolved": resolved,
        "folder": "" if order.job_folder == str(folder.files) else order.job_folder,
        "overridden": [{"path": path, "value": value} for path, _, value in changes],
        "fields": [
            {"path": one.key, "value": to_json(one.value), "from": _source(one, [path for path, _, _ in changes])}
            for one in settings(values, text)
        ],
    }


def _source(one: ResolvedSetting, changed: list[str]) -> str:
    """Return the origin in the words of the API; workers that the service or a measurement chose are a default."""
    if one.origin != OVERRIDE:
        return "file" if one.origin == JOB_FILE else "default"
    key = f"{one.key}."
    is_given = any(key.startswith(f"{path}.") or path.startswith(key) for path in changed)
    return "command line" if is_given else "default"


MOST_POINTS = 2000
MOST_EVENTS = MOST_LINES
MOST_RUNS = 32  # that nobody follows and whose points are kept
MOST_SPARKLINES = 2000
SAMPLED_BYTES = 512 << 10  # of a file for a sparkline; a larger one is read at a few places only
TRAIN = ("time", "updates", "samples", "loss", "samples_per_s", "lr")
LOSS = TRAIN.index("loss")
METRICS, EVENTS = "metrics.jsonl", "events.jsonl"
PLACE = re.compile(r"[0-9a-f]{1,16}(\.[0-9a-f]{1,16}){2}")
TAIL = 64  # bytes before an offset that tell whether the file is the same


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a growing file: stays valid while the file has these bytes before `offset`."""

    offset: int
    checksum: int  # of the TAIL bytes before the offset
    stride: int = 1  # records per point

    def __str__(self) -> str:
        return f"{self.offset:x}.{self.checksum:x}.{self.stride:x}"

    @classmethod
    def of_text(cls, text: str) -> "Place | None":
        """Return the place of `str(place)`; None for anything else."""
        return cls(*(int(part, 16) for part in text.split("."))) if PLACE.fullmatch(text) else None


class GrowingFile:
    """The lines of a file below a run directory, each read once."""

    def __init__(self, run: Path, *names: str) -> None:
        self._run, self._names = run, names
        self._place: Place | None = None  # behind the last complete line

    def lines(self) -> Iterator[tuple[bool, int, bytes]]:
        """Yield (is_new, end, line) of the lines since the last call, `end`: offset behind it. `is_new`: the file was
        cut or replaced, and this is its first line; b"" if there is none yet. A half written line is left for later."""
        try:
            stream = opened(self._run, *self._names)
        except OSError:
            return
        with stream:
            if self._place is None or not _is_at(stream, self._place):
                self._place = Place(0, zlib.crc32(b""))
                yield True, 0, b""
            end = stream.seek(self._place.offset)
            while line := stream.readline(LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < LINE_BYTES:
                    break
                end += len(line)
                yield False, end, line
            self._place = Place(end, _checksum(stream, end))

    def rest(self) -> bytes:
        """Return what is behind the last complete line."""
        with contextlib.suppress(OSError), opened(self._run, *self._names) as stream:
            stream.seek(self._place.offset if self._place else 0)
            return stream.read(LINE_BYTES)
        return b""

    def is_at(self, place: Place) -> bool:
        """Return whether the file still has what was before the place."""
        with contextlib.suppress(OSError), opened(self._run, *self._names) as stream:
            return _is_at(stream, place)
        return False

    def place_at(self, offset: int, stride: int) -> Place | None:
        """Return the place at an offset that was read; None if the file is gone or was cut since."""
        with contextlib.suppress(OSError), opened(self._run, *self._names) as stream:
            if self._place is not None and _is_at(stream, self._place):
                return Place(offset, _checksum(stream, offset), stride)
        return None


def _checksum(stream: BinaryIO, offset: int) -> int:
    begin = max(0, offset - TAIL)
    stream.seek(begin)
    return zlib.crc32(stream.read(offset - begin))


def _is_at(stream: BinaryIO, place: Place) -> bool:
    is_long_enough = os.fstat(stream.fileno()).st_size >= place.offset
    return is_long_enough and _checksum(stream, place.offset) == place.checksum


@dataclass(slots=True)
class Series:
    """Points, oldest first; each the mean of `stride` records. `ends`: offset behind the last record of each point."""

    names: tuple[str, ...]
    columns: list["array[float]"] = field(init=False)  # NaN: no value
    ends: "array[int]" = field(default_factory=lambda: array("q"))
    stride: int = 1
    _open: list[list[float | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.columns = [array("d") for _ in self.names]

    def add(self, point: list[float | None], end: int = 0) -> None:
        self._open.append(point)
        if len(self._open) < self.stride:
            return
        for column, value in zip(self.columns, _mean(self._open), strict=True):
            column.append(nan if value is None else value)
        self.ends.append(end)
        self._open.clear()
        if len(self.ends) >= MOST_POINTS:
            self.columns = [array("d", map(_middle, column[::2], column[1::2])) for column in self.columns]
            self.ends = self.ends[1::2]
            self.stride *= 2

    def as_json(self, begin: int = 0) -> dict[str, list[float | None]]:
        """Return name -> values of the complete points, from point `begin` on."""
        return {
            name: [None if isnan(value) else value for value in column[begin:]]
            for name, column in zip(self.names, self.columns, strict=True)
        }

    def newest(self) -> list[float | None] | None:
        """Return the mean of the records that do not make a whole point yet."""
        return _mean(self._open) if self._open else None


def _mean(rows: list[list[float | None]]) -> list[float | None]:
    columns = ([value for value in column if value is not None] for column in zip(*rows, strict=True))
    return [sum(values) / len(values) if values else None for values in columns]


def _middle(one: float, other: float) -> float:
    return other if isnan(one) else one if isnan(other) else (one + other) / 2


@dataclass(frozen=True, slots=True)
class News:
    """Records that a reader at a place has not seen. `is_reset`: these are all of them; `text`: members of
    a JSON object."""

    is_reset: bool
    text: str
    place: Place


class ThinnedCurves:
    """The curves of one run. `generation` changes when the file was cut or replaced (a resume drops the records after
    its checkpoint) and everything is read again."""

    def __init__(self, run: Path) -> None:
        self._file = GrowingFile(run, METRICS)
        self.generation = 0
        self._train = Series(TRAIN)
        self._evaluations: deque[tuple[int, dict[str, Any]]] = deque(maxlen=MOST_POINTS)

    def read(self) -> dict[str, Any]:
        """Return the curves with what was appended since the last call, the newest record included."""
        self._refresh()
        train = self._train.as_json()
        if (newest := self._train.newest()) is not None:
            for values, value in zip(train.values(), newest, strict=True):
                values.append(value)
        evaluations = [one for _, one in self._evaluations]
        return {"generation": self.generation, "train": train, "evaluations": evaluations}

    def since(self, place: Place | None) -> News | None:
        """Return what a reader at `place` lacks; None: nothing."""
        self._refresh()
        stride, ends = self._train.stride, self._train.ends
        last = max(ends[-1] if ends else 0, self._evaluations[-1][0] if self._evaluations else 0)
        if place is None and not self.generation:
            return None  # no file yet
        is_reset = place is None or place.stride != stride or not self._file.is_at(place)
        after = 0 if is_reset or place is None else place.offset
        if not is_reset and last <= after:
            return None
        train = _dumped(self._train.as_json(bisect_right(ends, after)))
        evaluations = _dumped([one for end, one in self._evaluations if end > after])
        now = self._file.place_at(last, stride)
        return None if now is None else News(is_reset, f'"train":{train},"evaluations":{evaluations}', now)

    def _refresh(self) -> None:
        for is_new, end, line in self._file.lines():
            if is_new:
                self.generation += 1
                self._train = Series(TRAIN)
                self._evaluations.clear()
            elif (record := object_of(line)) is not None:
                self._add(record, end)

    def _add(self, record: dict[str, Any], end: int = 0) -> None:
        if record.get("kind") == "train":
            self._train.add([_number(record.get(name)) for name in TRAIN], end)
        elif record.get("kind") == "evaluation":
            metrics = {name: _number(value) for name, value in record.items() if name not in RECORDED}
            place = {name: _number(record.get(name)) for name in TRAIN[:3]}
            self._evaluations.append((end, {**place, "metrics": metrics}))


class Timeline:
    """The newest events of one run."""

    def __init__(self, run: Path) -> None:
        self._file = GrowingFile(run, EVENTS)
        self._is_there = False
        self._events: deque[tuple[int, str]] = deque(maxlen=MOST_EVENTS)

    def read(self) -> list[dict[str, Any]]:
        self._refresh()
        return [json.loads(text) for _, text in self._events]

    def since(self, place: Place | None) -> News | None:
        """As `ThinnedCurves.since`; a reader that lacks more than there is gets everything."""
        self._refresh()
        if place is None and not self._is_there:
            return None
        is_reset = place is None or not self._file.is_at(place)
        after = 0 if is_reset or place is None else place.offset
        last = self._events[-1][0] if self._events else 0
        if not is_reset and last <= after:
            return None
        if not is_reset and len(self._events) == MOST_EVENTS and self._events[0][0] > after:
            is_reset = True
        found = ",".join(text for end, text in self._events if end > after)
        now = self._file.place_at(last, 1)
        return None if now is None else News(is_reset, f'"events":[{found}]', now)

    def _refresh(self) -> None:
        for is_new, end, line in self._file.lines():
            if is_new:
                self._is_there = True
                self._events.clear()
            elif (event := object_of(line)) is not None:
                event = {"event": "", **event}
                title, detail = event_in_words(event)
                told = {**event, "title": title, "detail": detail, "row": row_of(event)}
                self._events.append((end, _dumped(to_json(told))))


class FollowedRun:
    """The files of one run, for any number of readers. Thread-safe."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._guard = threading.Lock()
        self._curves = ThinnedCurves(run)
        self._timeline = Timeline(run)
        self._status: tuple[tuple[int, ...], str] = ((), "")

    def curves(self) -> dict[str, Any]:
        with self._guard:
            return self._curves.read()

    def events(self) -> list[dict[str, Any]]:
        with self._guard:
            return self._timeline.read()

    def since(self, kind: str, place: Place | None) -> News | None:
        """Return the "curves" or "events" that a reader at `place` lacks; None: nothing."""
        with self._guard:
            return (self._curves if kind == "curves" else self._timeline).since(place)

    def status(self) -> tuple[tuple[int, ...], str]:
        """Return identity and content (JSON) of status.json, read again only if it was replaced; "" without one."""
        with self._guard:
            try:
                with opened(self._run, STATUS) as stream:
                    found = os.fstat(stream.fileno())
                    identity = (found.st_ino, found.st_mtime_ns, found.st_size)
                    if identity != self._status[0]:
                        record = object_of(stream.read(SMALL_BYTES))
                        text = "" if record is None else _dumped(to_json(record))
                        self._status = (identity, text)
            except OSError:
                self._status = ((), "")
            return self._status


class Followed:
    """The runs that were asked for last, and those that somebody follows. Thread-safe."""

    def __init__(self) -> None:
        self._runs: WeakValueDictionary[Path, FollowedRun] = WeakValueDictionary()
        self._recent: dict[Path, FollowedRun] = {}  # the last used one is the newest
        self._sparklines: dict[Path, tuple[Any, list[float | None]]] = {}
        self._guard = threading.Lock()

    def run(self, path: Path) -> FollowedRun:
        """Return the followed run of a run directory: the same one for all who hold one."""
        with self._guard:
            self._runs[path] = found = self._runs.get(path) or FollowedRun(path)
            self._recent.pop(path, None)
            self._recent[path] = found
            if len(self._recent) > MOST_RUNS:
                del self._recent[next(iter(self._recent))]
            return found

    def sparkline(self, run: Path, points: int) -> list[float | None]:
        """Return `points` or fewer training losses over the whole run. A large file is read at so many places only."""
        try:
            with opened(run, METRICS) as stream:
                found = os.fstat(stream.fileno())
                identity = (found.st_ino, found.st_mtime_ns, found.st_size, points)
                if (known := self._sparklines.get(run)) is not None and known[0] == identity:
                    return known[1]
                losses = _sampled(stream, found.st_size, points)
        except OSError:
            return []
        with self._guard:
            self._sparklines[run] = (identity, losses)
            if len(self._sparklines) > MOST_SPARKLINES:
                del self._sparklines[next(iter(self._sparklines))]
        return losses


def _sampled(stream: BinaryIO, size: int, points: int) -> list[float | None]:
    if size <= SAMPLED_BYTES:
        known = _losses(stream.read(SAMPLED_BYTES).split(b"\n"))
        ends = [len(known) * number // points for number in range(points + 1)]
        return [fmean(known[begin:end]) for begin, end in pairwise(ends) if begin < end]
    part = SAMPLED_BYTES // points
    found: list[float | None] = []
    for number in range(points):
        stream.seek((size - part) * number // max(1, points - 1))
        known = _losses(stream.read(part).split(b"\n")[1:])
        found.append(fmean(known) if known else None)
    return found


def _losses(lines: Iterable[bytes]) -> list[float]:
    records = [record for line in lines if (record := object_of(line)) is not None and record.get("kind") == "train"]
    return [loss for record in records if (loss := _number(record.get("loss"))) is not None]


def _dumped(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _number(value: Any) -> float | None:
    """Return a finite number; None for anything else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return value if abs(value) < 1e300 else None  # also NaN
