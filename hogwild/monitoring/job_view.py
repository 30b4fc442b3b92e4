"""State of a running job at one moment, as plain numbers. Every display of a job (terminal, record, scraper) reads it
here, so that they all agree. The supervisor makes one per `log.every_s`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerGlance:
    """One worker. Rates and shares cover the time since the previous glance."""

    worker: int
    state: str  # of its place: empty, starting, ready, training, dying, retired
    phase: str = "booting"  # its main activity: booting, compiling, waiting, working, evaluating, parked, leaving
    pid: int | None = None
    incarnation: int = 1
    updates: int = 0  # in this attempt
    samples_per_s: float = 0.0
    share: float = 0.0  # of all samples, 0 to 1
    phases: Mapping[str, float] = field(default_factory=dict)  # share of its time in each phase, 0 to 1
    stale_p50: int = 0  # updates by others, over this attempt
    stale_p99: int = 0
    cpu: float | None = None  # cores: 1.0 is one core all the time
    pss_bytes: int | None = None  # measured every ten seconds

    @property
    def restarts(self) -> int:
        return max(0, self.incarnation - 1)


@dataclass(frozen=True, slots=True)
class StreamGlance:
    """State of streamed data."""

    loaders: int  # alive
    wanted: int
    filled: int  # slots that hold a batch
    slots: int
    deaths: int = 0  # of loaders
    waits: str = ""  # who waits for whom


@dataclass(frozen=True, slots=True)
class Glance:
    """The whole job. Counts cover the run with its earlier attempts, rates the time since the previous glance."""

    name: str
    run_dir: str
    state: str  # starting, running, evaluating, saving, paused; at the end succeeded, stopped, cancelled, failed
    wall_s: float
    left_s: float | None  # at the speed until now; None: unknown yet
    epoch: int  # complete epochs
    epochs: int
    position: float  # in epochs: 1.5 is half of the second, even while two epochs are in progress
    updates: int
    planned_updates: int | None  # None: unknown, for a stream without a length
    samples: int
    progress: float | None  # of the job, 0 to 1
    samples_per_s: float
    loss: float | None  # mean per batch since the last glance
    lr: float | None
    losses: Mapping[str, float] = field(default_factory=dict)  # further losses of a training_step, likewise
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the last evaluation
    evaluated_at: int = -1  # updates before that evaluation
    stale_p50: int = 0
    stale_p99: int = 0
    skipped: int = 0  # batches that were not applied
    quarantined: int = 0
    restarts: int = 0
    rollbacks: int = 0
    pss_bytes: int | None = None  # of all processes of the job; each shared page counted once
    pid: int = 0
    workers: tuple[WorkerGlance, ...] = ()
    stream: StreamGlance | None = None
    spares: int = 0  # processes that wait to replace a worker
    news: tuple[str, ...] = ()  # the latest events in words, newest last
    is_between: bool = False  # between two records: its rates are those of the last record


def workers_record(workers: Iterable[WorkerGlance]) -> dict[str, list[Any]]:
    """Return columns with one entry per worker, as in metrics.jsonl."""
    names = ("updates", "samples_per_s", "phase", "cpu", "pss_bytes")
    rows = [
        (w.updates, round(w.samples_per_s, 1), w.phase, w.cpu if w.cpu is None else round(w.cpu, 2), w.pss_bytes)
        for w in workers
    ]
    return {name: [row[column] for row in rows] for column, name in enumerate(names)}
