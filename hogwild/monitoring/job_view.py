"""What a running job looks like at one moment, as plain numbers. Whatever shows a job (the terminal, a record, a
scraper) reads it here, so that no two of them can disagree. Made by the supervisor, once per `log.every_s`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerGlance:
    """One worker. Rates and shares are of the time since the glance before this one."""

    worker: int
    state: str  # of its place: empty, starting, ready, training, dying, retired
    phase: str = "booting"  # what it did most: booting, compiling, waiting, working, evaluating, parked, leaving
    pid: int | None = None
    incarnation: int = 1
    updates: int = 0  # in this attempt
    samples_per_s: float = 0.0
    share: float = 0.0  # of all samples, 0 to 1
    phases: Mapping[str, float] = field(default_factory=dict)  # the part of its time in each phase, 0 to 1
    stale_p50: int = 0  # updates of others, over this attempt
    stale_p99: int = 0
    cpu: float | None = None  # cores: 1.0 is one core all the time
    pss_bytes: int | None = None  # measured every ten seconds

    @property
    def restarts(self) -> int:
        return max(0, self.incarnation - 1)


@dataclass(frozen=True, slots=True)
class StreamGlance:
    """Of streamed data."""

    loaders: int  # alive
    wanted: int
    filled: int  # slots that hold a batch
    slots: int
    deaths: int = 0  # of loaders
    waits: str = ""  # who does, for whom


@dataclass(frozen=True, slots=True)
class Glance:
    """The whole job. Counts are of the run, with what earlier attempts did; rates of the time since the last one."""

    name: str
    run_dir: str
    state: str  # starting, running, evaluating, saving, paused; at the end succeeded, stopped, cancelled, failed
    wall_s: float
    left_s: float | None  # at the speed until now; None: not to be known yet
    epoch: int  # epochs that are complete
    epochs: int
    position: float  # in epochs: 1.5 is half of the second, also where two epochs are worked on at once
    updates: int
    planned_updates: int | None  # None: nobody knows, of a stream without a length
    samples: int
    progress: float | None  # of the job, 0 to 1
    samples_per_s: float
    loss: float | None  # mean per batch since the last glance
    lr: float | None
    losses: Mapping[str, float] = field(default_factory=dict)  # further ones of a training_step, likewise
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the last evaluation
    evaluated_at: int = -1  # the updates it was made after
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
    spares: int = 0  # processes that wait to replace one
    news: tuple[str, ...] = ()  # the latest events in words, the newest last
    is_between: bool = False  # two records: its rates are those of the last one


def workers_record(workers: Iterable[WorkerGlance]) -> dict[str, list[Any]]:
    """Columns of one entry per worker, as in metrics.jsonl."""
    names = ("updates", "samples_per_s", "phase", "cpu", "pss_bytes")
    rows = [
        (w.updates, round(w.samples_per_s, 1), w.phase, w.cpu if w.cpu is None else round(w.cpu, 2), w.pss_bytes)
        for w in workers
    ]
    return {name: [row[column] for row in rows] for column, name in enumerate(names)}
