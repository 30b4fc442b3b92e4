"""State of a running job at one moment, as plain numbers. Every display of a job (terminal, record, scraper) reads it
here, so that they all agree. The supervisor makes one per `log.every_s`; `run_status.py` reads it back from
status.json."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hogwild.formatting import clock, counted, number, percent, short_number, size

LEAST_SILENT_S = 5.0  # a shorter silence of a worker is not worth showing
SILENT_SHARE = 0.15  # of its limit: a worker's slowest batch takes at most a twentieth of it
NOT_YET = "not yet"  # a worker that has not been started
DOING = {"empty": "restarting", "dying": "ending", "retired": "given up"}  # states in other words


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One worker. Rates and shares cover the time since the previous snapshot."""

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
    silent_s: float = 0.0  # since its last sign of life
    limit_s: float | None = None  # silence after which it is replaced; None while other clocks run

    @property
    def restarts(self) -> int:
        return max(0, self.incarnation - 1)

    @property
    def doing(self) -> str:
        """The state in one word, the same on all displays: training, evaluating, parked, compiling, restarting …"""
        if self.state == "starting" and self.phase == "compiling":
            return self.phase
        if self.state == "training" and self.phase in ("evaluating", "parked"):
            return self.phase
        if self.state == "empty" and not self.incarnation:
            return NOT_YET
        return DOING.get(self.state, self.state)

    @property
    def silence(self) -> str:
        """`silent 42 s, replaced at 60 s`; "" while it is not unusually silent."""
        if self.limit_s is None or self.silent_s < max(LEAST_SILENT_S, SILENT_SHARE * self.limit_s):
            return ""
        return f"silent {self.silent_s:.0f} s, replaced at {self.limit_s:.0f} s"


@dataclass(frozen=True, slots=True)
class ServerSnapshot:
    """The fork server, from which the job's processes are forked."""

    pid: int
    state: str  # importing, waiting, stopped, ended
    pss_bytes: int | None = None  # measured with the workers'

    @property
    def is_serving(self) -> bool:
        return self.state in ("importing", "waiting")

    def __str__(self) -> str:
        """`waiting  86 MiB  pid 812`."""
        memory = "" if self.pss_bytes is None else f"  {size(self.pss_bytes)}"
        return f"{self.state}{memory}  pid {self.pid}"


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation so far. `checkpoint`: its name, once it is on disk."""

    metric: str
    value: float
    updates: int
    epoch: int | None = None  # complete epochs before it; None: recorded by an older version
    checkpoint: str | None = None
    higher_is_better: bool = False

    @property
    def figure(self) -> str:
        """`auc 0.852`."""
        return f"{'val loss' if self.metric == 'loss' else self.metric} {self.value:.4g}"

    def __str__(self) -> str:
        words = self.figure + (f", epoch {self.epoch}" if self.epoch is not None else "")
        return words + (" → checkpoints/best" if self.checkpoint else "")


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """State of streamed data."""

    loaders: int  # alive
    wanted: int
    filled: int  # slots that hold a batch
    slots: int
    deaths: int = 0  # of loaders
    waits: str = ""  # who waits for whom


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """One node of a cluster, by its note in the last round; None: not in it."""

    node: int
    state: str = ""  # running, lost
    updates: int | None = None
    host: str | None = None
    samples_per_s: float | None = None
    drift: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The nodes of a cluster and their rounds, as this node knows them. `rounds` to `skipped`: of this attempt."""

    node: int = 0  # this one
    nodes: int = 0  # that are left
    generation: int = 0
    round: int = 0
    rounds: int = 0
    nbytes: int = 0  # exchanged
    seconds: float = 0.0  # of the last exchange
    cut_s: float = 0.0  # of the last cut: workers were parked
    drift: float = 0.0  # of the last cut: norm of the difference over that of the anchor
    lost: int = 0  # nodes
    skipped: int = 0  # differences that were not finite
    samples_per_s: float = 0.0  # of all nodes
    of_nodes: tuple[NodeSnapshot, ...] = ()

    @property
    def loss(self) -> str:
        """`node 1 lost`; "" while all are there."""
        gone = [str(one.node) for one in self.of_nodes if one.state == "lost"]
        return f"node{'s' * (len(gone) > 1)} {' and '.join(gone)} lost" if gone else ""

    @property
    def words(self) -> tuple[str, ...]:
        """`2 nodes`, `round 57`, `24,000 samples/s in all`, `0.31 s and 4.3 MiB a round`, `drift 0.2 %`: one line, the
        most important first."""
        cost = f"{two_digits(self.seconds)} s and {size(self.nbytes / max(1, self.rounds))} a round"
        found = [counted(self.nodes, "node"), self.loss, f"round {self.round}"]
        found += [f"{self.skipped} not finite"] if self.skipped else []
        found += [f"{short_number(self.samples_per_s)} samples/s in all"] if self.samples_per_s else []
        found += [cost, f"drift {two_digits(100 * self.drift)} %"] if self.rounds else []
        return tuple(word for word in found if word)


def trained_by(procs: int, cluster: ClusterSnapshot | None) -> str:
    """Return `by 2 workers`, `by 2 nodes`, `in the parent process`."""
    if cluster is not None:
        return f"by {counted(cluster.nodes + cluster.lost, 'node')}"
    return f"by {counted(procs, 'worker')}" if procs else "in the parent process"


def two_digits(value: float) -> str:
    """`0.31`, `12`, `0.0042`."""
    return number(float(f"{value:.2g}"))


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """The whole job. Counts cover the run with its earlier attempts, rates the time since the previous snapshot. Only
    the first three fields are known while it is being built. In a cluster updates, samples and batches are all nodes',
    rates and restarts this node's."""

    name: str
    run_dir: str
    state: str  # starting, running, evaluating, saving, paused, stopping; succeeded, stopped, cancelled, failed
    wall_s: float = 0.0
    left_s: float | None = None  # at the speed until now; None: unknown yet
    epoch: int = 0  # complete epochs
    epochs: int = 1
    position: float = 0.0  # in epochs: 1.5 is half of the second, even while two epochs are in progress
    updates: int = 0
    planned_updates: int | None = None  # None: unknown, for a stream without a length
    samples: int = 0
    progress: float | None = None  # of the job, 0 to 1
    samples_per_s: float = 0.0
    loss: float | None = None  # mean per batch since the last snapshot
    train_loss: float | None = None  # mean per sample of the last complete epoch; in the first, until now
    lr: float | None = None
    losses: Mapping[str, float] = field(default_factory=dict)  # further losses of a training_step, likewise
    metrics: Mapping[str, float] = field(default_factory=dict)  # of the last evaluation
    evaluated_at: int = -1  # updates before that evaluation
    best: Best | None = None
    stale_p50: int = 0
    stale_p99: int = 0
    skipped: int = 0  # batches that were not applied
    quarantined: int = 0
    restarts: int = 0
    rollbacks: int = 0
    pss_bytes: int | None = None  # of all processes of the job; each shared page counted once
    workers: tuple[WorkerSnapshot, ...] = ()
    server: ServerSnapshot | None = None  # None: processes are fresh interpreters, or there are none
    stream: StreamSnapshot | None = None
    cluster: ClusterSnapshot | None = None
    news: tuple[str, ...] = ()  # the latest events in words, newest last
    is_between: bool = False  # between two records: its rates are those of the last record


def standing(job: JobSnapshot) -> JobSnapshot:
    """Return the snapshot of a job in which nothing moves."""
    cluster = job.cluster
    cluster = None if cluster is None else replace(cluster, samples_per_s=0.0)
    return replace(job, samples_per_s=0.0, cluster=cluster)


def workers_record(workers: Iterable[WorkerSnapshot]) -> dict[str, list[Any]]:
    """Return columns with one entry per worker, as in metrics.jsonl."""
    names = ("updates", "samples_per_s", "phase", "cpu", "pss_bytes")
    rows = [
        (w.updates, round(w.samples_per_s, 1), w.phase, w.cpu if w.cpu is None else round(w.cpu, 2), w.pss_bytes)
        for w in workers
    ]
    return {name: [row[column] for row in rows] for column, name in enumerate(names)}


def progress_line(job: JobSnapshot) -> str:
    """Return the line that stands for a picture: where there is no terminal, and in one that a debugger may need."""
    if job.state == "starting":
        phases = [worker.phase if worker.state == "starting" else worker.state for worker in job.workers]
        return f"starting workers, {job.wall_s:.0f} s: " + ", ".join(
            f"{phases.count(phase)} {phase}" for phase in dict.fromkeys(phases)
        )
    parts = [
        "" if job.progress is None else f"{percent(job.progress):>5}",
        f"epoch {min(job.epoch + 1, job.epochs)}/{job.epochs}",
        f"{job.samples:,} samples",
        "" if job.loss is None else f"loss {job.loss:.4g}",
        f"{short_number(job.samples_per_s)} samples/s",
        "" if job.left_s is None or job.progress == 1 else f"left {clock(job.left_s)}",
        "" if job.best is None else f"best {job.best}",
        job.state if job.state != "running" else "",
        f"restarts {job.restarts}" if job.restarts else "",
        "" if job.cluster is None else f"round {job.cluster.round}",
        "" if job.cluster is None else job.cluster.loss,
        *(f"worker {worker.worker} {worker.silence}" for worker in job.workers if worker.silence),
    ]
    return "  ".join(part for part in parts if part)
