"""The result of `hogwild.train`: the summary of the job, and its history by evaluation."""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hogwild.errors import UsageError
from hogwild.formatting import counted, short_number
from hogwild.report.run_view import read_metrics

if TYPE_CHECKING:
    from pandas import DataFrame

COUNTS = ("epoch", "updates", "samples")


class History(Mapping[str, NDArray[Any]]):
    """Columns (rows,) of a run, by name: a row per evaluation, with its metrics, `loss` among them, and `train_loss`,
    the mean per sample of the last complete epoch. A run without validation data has a row per training record instead
    (one each `log.every_s`), where `train_loss` is the mean per batch since the row before. `epoch`, `updates` and
    `samples` are int64, all others float64, NaN where a row has no number; `time` is in seconds since 1970, `seconds`
    how long an evaluation took. A resumed run has the rows of all attempts."""

    def __init__(self, columns: Mapping[str, NDArray[Any]] | None = None) -> None:
        self._columns = dict(columns or {})

    @classmethod
    def of(cls, run_dir: Path) -> "History":
        """Read metrics.jsonl; empty without it (`log.jsonl: false`)."""
        records = read_metrics(run_dir)
        if records.evaluations.rows:
            table, kept = records.evaluations, records.evaluations.names
        else:
            table, kept = records.train, ["time", *COUNTS, "loss", "samples_per_s", "lr"]
        names = {"loss": "train_loss"} if table is records.train else {}
        columns = {names.get(name, name): table[name] for name in kept if name in table}
        whole = {name: columns[name].astype(np.int64) for name in COUNTS if name in columns}
        return cls({**columns, **whole})

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        """Return the number of columns, as of any mapping."""
        return len(self._columns)

    @property
    def rows(self) -> int:
        return min(map(len, self._columns.values()), default=0)

    def to_pandas(self) -> "DataFrame":
        """Return the columns as a pandas DataFrame. Raises UsageError if pandas is not installed."""
        try:
            import pandas
        except ImportError as error:
            raise UsageError(
                f"history.to_pandas() needs pandas ({error}): pip install pandas", code="usage/missing-extra"
            ) from error
        return pandas.DataFrame(self._columns)

    def __repr__(self) -> str:
        return f"History({counted(self.rows, 'row')}: {', '.join(self)})"


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of a job: the fields of summary.json. Seconds are wall-clock time; `leases` counts batches; `state` is
    succeeded, stopped (resumable) or cancelled. `train_loss` is the mean per sample of the last complete epoch; `best`
    has metric, value, updates, epoch and checkpoint of the best evaluation; `warnings` those of Python and torch in all
    processes, each text once, with its place."""

    state: str
    reason: str
    name: str
    run_dir: Path
    wall_s: float
    train_s: float
    paused_s: float
    startup_s: float | None
    startup: Mapping[str, float] | None
    compiling_s: float
    idle: float
    samples: int
    updates: int
    samples_per_s: float | None
    procs: int
    threads: int
    device: str
    placement: str
    update: str
    update_why: str
    exchange: str
    metrics: Mapping[str, float]
    train_loss: float | None
    best: Mapping[str, Any] | None
    restarts: int
    rollbacks: int
    lane_restarts: int | None
    loader_deaths: int | None
    ring: Mapping[str, int] | None
    leases: Mapping[str, int]
    staleness: Mapping[str, int]
    peak_pss_bytes: int
    checkpoint: str | None
    warnings: Sequence[str]
    advice: str | None

    history: History = field(default_factory=History, compare=False)

    def __repr__(self) -> str:
        return f"TrainResult({'; '.join(self._words().values())})"

    def _repr_html_(self) -> str:
        """Return a table for a notebook."""
        rows = (
            f"<tr><th style='text-align:left'>{name}</th><td style='text-align:left'>{html.escape(words)}</td></tr>"
            for name, words in self._words().items()
        )
        return f"<table>{''.join(rows)}</table>"

    def _words(self) -> dict[str, str]:
        speed = f", {short_number(self.samples_per_s)} samples/s" if self.samples_per_s else ""
        who = f" by {counted(self.procs, 'worker')}" if self.procs else ""
        shown = {"train_loss": self.train_loss, **self.metrics}
        metrics = (f"{name} {value:.4g}" for name, value in shown.items() if value is not None)
        found = {
            "state": f"{self.state} ({self.reason})",
            "work": f"{counted(self.updates, 'update')}{who}, {self.wall_s:.3g} s{speed}",
            "metrics": ", ".join(metrics),
            "run_dir": str(self.run_dir),
            "warnings": "\n".join(self.warnings),
            "advice": self.advice or "",
        }
        return {name: words for name, words in found.items() if words}


class TrainInterrupted(KeyboardInterrupt):
    """Ctrl-C during `hogwild.train`, raised after the job has written its checkpoint and ended. `result` is what the
    call would have returned; the model holds its weights."""

    def __init__(self, result: TrainResult) -> None:
        self.result = result
        goes_on = f"resume={str(result.run_dir)!r} continues" if result.state == "stopped" else "no checkpoint"
        super().__init__(f"{result.state} after {counted(result.updates, 'update')}; {goes_on}")
