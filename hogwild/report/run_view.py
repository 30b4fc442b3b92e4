"""A run directory as data, for ended and running jobs. Reads only; does not import torch.

Records are read once, line by line, into columns of float64: a number takes 8 bytes there and 80 in a dict. Missing
values are NaN; incomplete lines and lines that are not JSON are counted.

    metrics.jsonl  train       time epoch updates samples loss samples_per_s lr pss_bytes
                               workers {updates samples_per_s phase cpu pss_bytes}: in one record of 30 s
                   evaluation  time epoch updates samples seconds best train_loss, and every metric by its name
                   staleness   time updates counts: the histogram so far, at each evaluation and at the end
    events.jsonl   start spawn ready exit restart stall fence pause evaluation checkpoint rollback … end"""

import time
from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hogwild.config.load import flat_values
from hogwild.config.of_run import require_run
from hogwild.errors import NotFoundError
from hogwild.formatting import brief
from hogwild.metrics.catalog import LOSS, RECORDED
from hogwild.monitoring.run_status import JobSnapshot, RunStatus, read_status, snapshot_of
from hogwild.storage.files import object_of
from hogwild.storage.run_directory import ENV
from hogwild.storage.run_files import checkpoints_in, read_json, read_small

Floats = NDArray[np.float64]
PHASE = "phase"
LOSSES = "losses"  # further losses of a training_step, in a record of training; their columns are losses.NAME
CLUSTER = "cluster"  # likewise; of the rounds between nodes
BEFORE_START = ("resume", "checkpoint-rejected", "data-read")  # events of an attempt before its `start`
WORKER_NUMBERS = ("updates", "samples_per_s", "cpu", "pss_bytes")


class ColumnTable:
    """Rows that arrive one by one, stored by column. A column is created with its first value."""

    def __init__(self) -> None:
        self.rows = 0
        self._columns: dict[Hashable, array[float]] = {}

    def add(self, values: Iterable[tuple[Hashable, Any]]) -> None:
        """Add one row. Values that are not numbers (also bools) are left out."""
        for name, value in values:
            if type(value) is float or type(value) is int:
                column = self._columns.get(name)
                if column is None:
                    column = self._columns[name] = array("d")
                if len(column) < self.rows:
                    _pad(column, self.rows)
                column.append(value)
        self.rows += 1

    def __getitem__(self, name: Hashable) -> Floats:
        """Return the column (rows,) float64; NaN for rows without the number, so all NaN for an unknown column."""
        column = self._columns.get(name)
        if column is None:
            return np.full(self.rows, np.nan)
        _pad(column, self.rows)
        return np.array(column, np.float64)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._columns

    @property
    def names(self) -> list[Any]:
        return list(self._columns)


@dataclass(slots=True)
class MetricRecords:
    """The content of metrics.jsonl. `workers[field]` has a column per worker, `phases` each worker's phase as an index
    into `phase_names`. Their rows are those of `told`, the records of `train` with details of each worker, one per 30
    s. `staleness`: the last histogram, a count per age in updates by others."""

    __repr__ = brief

    train: ColumnTable = field(default_factory=ColumnTable)
    evaluations: ColumnTable = field(default_factory=ColumnTable)
    told: ColumnTable = field(default_factory=ColumnTable)
    workers: dict[str, ColumnTable] = field(default_factory=lambda: {name: ColumnTable() for name in WORKER_NUMBERS})
    phases: ColumnTable = field(default_factory=ColumnTable)
    phase_names: list[str] = field(default_factory=list)
    staleness: tuple[float, ...] = ()
    unreadable: int = 0

    def add(self, record: Mapping[str, Any]) -> None:
        kind = record.get("kind")
        if kind == "train":
            parts = [(group, part) for group in (LOSSES, CLUSTER) if isinstance(part := record.get(group), dict)]
            further = [(f"{group}.{name}", value) for group, part in parts for name, value in part.items()]
            self.train.add([*record.items(), *further])
            if isinstance(workers := record.get("workers"), dict):
                self.told.add(record.items())
                for name, table in self.workers.items():
                    table.add(enumerate(_list(workers.get(name))))
                self.phases.add((worker, self._phase(word)) for worker, word in enumerate(_list(workers.get(PHASE))))
        elif kind == "evaluation":
            self.evaluations.add(record.items())
        elif kind == "staleness" and isinstance(counts := record.get("counts"), list):
            self.staleness = tuple(max(0.0, float(count)) if _is_number(count) else 0.0 for count in counts)

    def _phase(self, word: Any) -> int | None:
        if not isinstance(word, str):
            return None
        if word not in self.phase_names:
            self.phase_names.append(word)
        return self.phase_names.index(word)


@dataclass(frozen=True)
class RunView:
    """All records of a run. Times are seconds since the epoch, as recorded."""

    __repr__ = brief

    path: Path
    status: RunStatus
    summary: Mapping[str, Any]  # of the last ended attempt; empty while one is running, and after a kill
    env: Mapping[str, Any]
    job_text: str
    resolved_text: str
    records: MetricRecords
    events: list[dict[str, Any]]
    checkpoints: list[dict[str, Any]]  # as `checkpoints_in` returns them
    read_at: float

    @property
    def name(self) -> str:
        """The name of its folder: several runs may have the same job name."""
        return self.path.name

    @property
    def is_over(self) -> bool:
        """True if the run ended and recorded it. False while it runs, and if it was killed."""
        return bool(self.summary)

    @property
    def last_heard(self) -> float | None:
        times = [*(event["time"] for event in self.events[-1:]), *self.records.train["time"][-1:]]
        heard = [at for at in [*times, self.status.record.get("time")] if _is_number(at) and at == at]
        return max(heard, default=None)

    @cached_property
    def latest(self) -> Mapping[str, Any]:
        """The fields of status.json, and those of the summary in their place; without both, what the records tell."""
        counted = {name: self.records.train[name] for name in ("updates", "samples")}
        counts = {name: int(np.fmax.reduce(column, initial=0.0)) for name, column in counted.items()}
        return {**counts, **{k: v for k, v in self.status.record.items() if v is not None}, **self.summary}

    @cached_property
    def snapshot(self) -> JobSnapshot:
        """The job as it was last: at its end, or in the last record."""
        return snapshot_of({"name": self.name, "run_dir": str(self.path), **self.latest})

    @cached_property
    def span_s(self) -> float:
        """Running time from the first to the last record, in seconds."""
        last = self.last_heard
        return max(0.0, float(self.clock.elapsed(last))) if last is not None else 0.0

    @cached_property
    def workers(self) -> int:
        """The number of workers: one more than the highest worker number in any record or event."""
        named = [event["worker"] for event in self.events if isinstance(event.get("worker"), int)]
        recorded = [worker for table in (*self.records.workers.values(), self.records.phases) for worker in table.names]
        return 1 + max([*named, *recorded], default=-1)

    def events_of(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] in kinds]

    @cached_property
    def metric_names(self) -> list[str]:
        """`loss` first, then the metrics of the evaluations in their order: every name with a number somewhere."""
        measured = [name for name in self.records.evaluations.names if name not in RECORDED]
        has_loss = LOSS in self.records.train or LOSS in measured
        return [*([LOSS] if has_loss else []), *(name for name in measured if name != LOSS)]

    @cached_property
    def best_row(self) -> int | None:
        """The place of the best evaluation among the records; None if they do not have it."""
        best, updates = self.snapshot.best, self.records.evaluations["updates"]
        return None if best is None else max(np.flatnonzero(updates == best.updates).tolist(), default=None)

    @cached_property
    def resolved(self) -> Mapping[str, Any]:
        """Every field of resolved.yaml, by its name with dots."""
        return flat_values(self.resolved_text)

    @cached_property
    def clock(self) -> "RunClock":
        return RunClock.of(self)


@dataclass(frozen=True, slots=True)
class RunClock:
    """Running time of a job: the gaps between an attempt's end and the next one's beginning are left out. `ends[i]` and
    `starts[i]` are gap i; `zero` is the first record or event."""

    zero: float
    ends: Floats
    starts: Floats

    @classmethod
    def of(cls, run: RunView) -> "RunClock":
        records = run.records
        columns = [records.train["time"], records.evaluations["time"], np.array([e["time"] for e in run.events])]
        times = np.sort(np.concatenate(columns))
        times = times[np.isfinite(times)]
        zero = float(times[0]) if times.size else 0.0
        starts = np.unique([at for at in _beginnings(run.events) if at > zero]).astype(np.float64)
        return cls(zero, times[np.searchsorted(times, starts) - 1], starts)

    def elapsed(self, times: Floats | float) -> Floats:
        """Return the running time at these times (seconds since the epoch); in a gap, at its beginning. NaN stays
        NaN."""
        at = np.asarray(times, np.float64)
        result = at - self.zero
        for end, start in zip(self.ends, self.starts, strict=True):
            result -= np.clip(at, end, start) - end
        return result


def _beginnings(events: list[dict[str, Any]]) -> Iterator[float]:
    """Yield the time of the first event of each attempt. A job that resumes records that before its `start`; killed in
    between, it leaves a resume without one."""
    kinds = [event["event"] for event in events]
    for place, kind in enumerate(kinds):
        if kind == "start" or (kind == "resume" and kinds[place - 1] != "start"):
            has_resume = kind == "resume"
            while place and kinds[place - 1] in BEFORE_START and not (has_resume and kinds[place - 1] == "resume"):
                place -= 1
                has_resume = has_resume or kinds[place] == "resume"
            yield events[place]["time"]


def read_run(path: Path) -> RunView:
    """Read a run directory without its lock, since the job may be writing. Raises NotFoundError if there is no run,
    with the message of `train --resume`."""
    resolved = require_run(path)
    records = read_metrics(path)
    lines = _lines(path / "events.jsonl", records)
    events = [line for line in lines if isinstance(line.get("event"), str) and _is_number(line.get("time"))]
    marks = [event["event"] for event in events if event["event"] in ("start", "resume", "end")]
    return RunView(
        path=path.absolute(),
        status=read_status(path),
        # A resume keeps the previous attempt's summary, which is not its own.
        summary=read_json(path, "summary.json") if marks[-1:] in ([], ["end"]) else {},
        env=read_json(path, ENV),
        job_text=read_small(path, "job.yaml") or "",
        resolved_text=read_small(path, resolved.name) or "",
        records=records,
        events=events,
        checkpoints=checkpoints_in(path),
        read_at=time.time(),
    )


def read_metrics(path: Path) -> MetricRecords:
    """Read the metrics of a run directory; empty if it records none. Raises NotFoundError if they cannot be read."""
    records = MetricRecords()
    for record in _lines(path / "metrics.jsonl", records):
        records.add(record)
    return records


def _lines(file: Path, records: MetricRecords) -> Iterator[dict[str, Any]]:
    """Yield the records of a file that may be growing; its last line may be incomplete."""
    try:
        stream = file.open("rb")
    except FileNotFoundError:
        return
    except OSError as error:
        raise NotFoundError(f"{file}: {error.strerror}", code="run/unreadable") from error
    with stream:
        for line in stream:
            if (record := object_of(line)) is not None:
                yield record
            else:
                records.unreadable += 1


def _pad(column: "array[float]", rows: int) -> None:
    column.extend([np.nan] * (rows - len(column)))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
