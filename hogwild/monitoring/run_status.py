"""status.json, the state of a run in one file: its fields, and how another process reads it. No torch, no numpy.

The supervisor replaces the file atomically from the first second of the run directory on, once per `log.every_s` and at
the end. The one thing to know: a killed supervisor cannot write its end. A run is alive while its process holds the
lock of RUN/.lock; a run without the lock and without an end is *lost*: killed by SIGKILL, or by a power cut.

    building ──► running ──► stopping ──► succeeded | stopped | cancelled | failed
        '───────────┴────────────┴──────► lost (read, never written)

Fields of status.json:

    format           1; it changes only if a field changes its meaning
    state            as above; `doing` is finer: the phase of building; starting, running, evaluating, saving, paused
    time             seconds since 1970: when this was written, every `every_s` while the job is well
    reason, error, error_code, exit_status      of the end; null before it
    attempt … began  see `RunAttempt`: which process runs it, on which machine
    name … news      see `JobSnapshot`: the job at this moment; `workers`, `server`, `best`: see `WorkerSnapshot`, with
                     its `doing` and `silence` in words, `ServerSnapshot`, with `is_serving`, `Best`
    loaders          list of processes; `ring`, `loader_deaths`, `lane_restarts` of streams and lanes
    cluster          see `ClusterSnapshot`, with a `NodeSnapshot` per node; null for a job on one machine

Unknown fields must be ignored, and any but the first three may be missing. NaN and infinity are null."""

import math
import os
import platform
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

from hogwild import host
from hogwild.errors import NotFoundError, RunError, did_you_mean
from hogwild.formatting import brief, clock, counted, number, percent, short_number, size
from hogwild.storage.run_directory import LIBRARY, LOCK, RESOLVED, SEARCH, STATUS, run_of_all
from hogwild.storage.run_files import is_begun, read_json, status_file
from hogwild.version import __version__

LEAST_SILENT_S = 5.0  # a shorter silence of a worker is not worth showing
SILENT_SHARE = 0.15  # of its limit: a worker's slowest batch takes at most a twentieth of it
NOT_YET = "not yet"  # a worker that has not been started
ONCE = {"compiling": " (once on this machine)"}  # what people should know of a worker's phase
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

    __repr__ = brief

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
    popularity: Mapping[str, float] = field(default_factory=dict)  # ranking metrics of the most popular items
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

    @property
    def trouble(self) -> dict[str, int]:
        """The counts of what went wrong, by its word; only what happened."""
        counts = {name: getattr(self, name) for name in ("restarts", "rollbacks", "skipped", "quarantined")}
        return {name: count for name, count in counts.items() if count}


def standing(job: JobSnapshot) -> JobSnapshot:
    """Return the snapshot of a job in which nothing moves."""
    cluster = job.cluster
    cluster = None if cluster is None else replace(cluster, samples_per_s=0.0)
    return replace(job, samples_per_s=0.0, cluster=cluster)


def workers_record(workers: Iterable[WorkerSnapshot]) -> dict[str, list[Any]]:
    """Return columns with one entry per worker, as in metrics.jsonl."""
    many = list(workers)
    return {
        "updates": [w.updates for w in many],
        "samples_per_s": [round(w.samples_per_s, 1) for w in many],
        "phase": [w.phase for w in many],
        "cpu": [w.cpu if w.cpu is None else round(w.cpu, 2) for w in many],
        "pss_bytes": [w.pss_bytes for w in many],
    }


def progress_line(job: JobSnapshot) -> str:
    """Return the line that stands for a picture: where there is no terminal, and in one that a debugger may need."""
    if job.state == "starting":
        phases = [worker.phase if worker.state == "starting" else worker.state for worker in job.workers]
        return f"starting workers, {job.wall_s:.0f} s: " + ", ".join(
            f"{phases.count(phase)} {phase}{ONCE.get(phase, '')}" for phase in dict.fromkeys(phases)
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


FORMAT = 1
EXIT_STATUS = {"succeeded": 0, "failed": 1, "stopped": 75, "cancelled": 130}  # a second signal: 128 + its number
ALIVE = ("building", "running", "stopping")
LOST = "lost"
LATEST = "latest"
LATE_S = 10.0
RUNS = Path("runs")
EMPTY: Mapping[Any, Any] = {str: "", int: 0, float: math.nan}  # for fields without a default


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """One start of a run's process. `start_ticks` and `boot_id` tell it from a later process with the same number."""

    attempt: int  # 1, and one more with every resume
    pid: int
    start_ticks: int  # when the process began, in clock ticks since the boot
    boot_id: str
    host: str
    hogwild: str  # version
    caller: str  # the command line, or hogwild.train
    every_s: float  # seconds between two replacements of the file
    began: float  # seconds since 1970
    tags: tuple[str, ...] = ()  # of the job

    @classmethod
    def here(cls, caller: str, every_s: float, tags: Sequence[str] = ()) -> "RunAttempt":
        """Return the attempt of this process, the run's first one."""
        pid = os.getpid()
        return cls(
            attempt=1,
            pid=pid,
            start_ticks=host.start_ticks(pid) or 0,
            boot_id=host.boot_id(),
            host=platform.node(),
            hogwild=__version__,
            caller=caller,
            every_s=every_s,
            began=time.time(),
            tags=tuple(tags),
        )

    def after(self, before: Mapping[str, Any]) -> "RunAttempt":
        """Return it as the attempt after the one with the record `before`; {}: the run's first one."""
        number = before.get("attempt")
        return replace(self, attempt=number + 1 if isinstance(number, int) else 2 if before else 1)


def record_of(attempt: RunAttempt, state: str, job: JobSnapshot, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of status.json. `more`: further fields, or other values for the snapshot's."""
    shown = asdict(job)
    del shown["is_between"]  # a matter of drawing
    for row, worker in zip(shown["workers"], job.workers, strict=True):  # words for readers in other languages
        row |= {"doing": worker.doing, "silence": worker.silence}
    if job.server is not None:
        shown["server"]["is_serving"] = job.server.is_serving
    end = dict.fromkeys(("reason", "error", "error_code", "exit_status"))
    return {
        "format": FORMAT,
        "state": state,
        "doing": shown.pop("state"),
        "time": time.time(),
        **end,
        **asdict(attempt),
        **shown,
        **more,
    }


def snapshot_of(record: Mapping[str, Any], state: str = "") -> JobSnapshot:
    """Return the job of a record, with defaults for what is missing or of another type; `state` replaces its own."""
    stream, best, news, server = (record.get(name) for name in ("stream", "best", "news", "server"))
    given = {
        **record,
        "state": state or record.get("doing") or record.get("state") or LOST,
        "workers": tuple(_made(WorkerSnapshot, one) for one in _list(record.get("workers")) if "worker" in one),
        "server": _made(ServerSnapshot, server) if isinstance(server, dict) and "pid" in server else None,
        "stream": _made(StreamSnapshot, stream) if isinstance(stream, dict) else None,
        "cluster": cluster_of(record.get("cluster")),
        "best": _made(Best, best) if isinstance(best, dict) and "metric" in best else None,
        "news": tuple(map(str, news)) if isinstance(news, list) else (),
    }
    job: JobSnapshot = _made(JobSnapshot, given)
    return job


def cluster_of(record: Any) -> ClusterSnapshot | None:
    """Return the cluster in the record that a node makes of it, also in status.json and summary.json; None without."""
    if not isinstance(record, Mapping):
        return None
    of_nodes = tuple(_made(NodeSnapshot, one) for one in _list(record.get("of_nodes")) if "node" in one)
    in_all = sum(one.samples_per_s or 0.0 for one in of_nodes if one.state != "lost")
    found: ClusterSnapshot = _made(ClusterSnapshot, {"samples_per_s": in_all, **record, "of_nodes": of_nodes})
    return found


def resume_words(run: Path, cluster: ClusterSnapshot | None) -> str:
    """Return how the run, perhaps one of several machines, is resumed."""
    if cluster is None:
        return f"resume with: hogwild train --resume {run}"
    if len({one.host for one in cluster.of_nodes}) > 1:
        return "resume with: the same command on every node"
    return f"resume with: hogwild train --resume {run_of_all(run)} --nodes {len(cluster.of_nodes)}"


def _made(kind: Any, values: Mapping[str, Any]) -> Any:
    found = {}
    for each in fields(kind):
        value = values.get(each.name)
        if isinstance(value, dict):  # figures: NaN was written as null
            value = {name: math.nan if figure is None else figure for name, figure in value.items()}
        if _fits(value, each.type):
            found[each.name] = value
        elif each.default is MISSING and each.default_factory is MISSING:
            found[each.name] = EMPTY[each.type]
    return kind(**found)


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, UnionType):
        return any(_fits(value, one) for one in get_args(wanted))
    if isinstance(value, Mapping):
        return get_origin(wanted) is Mapping and all(_fits(figure, get_args(wanted)[1]) for figure in value.values())
    return isinstance(value, (int, float) if wanted is float else get_origin(wanted) or wanted)


def _list(value: Any) -> list[Any]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run, or a search, as its directory tells it. `state` is one of status.json's, or lost; `record`: the content of
    status.json, or of a search's own record; {} if it is missing or unreadable."""

    __repr__ = brief

    path: Path
    state: str
    record: Mapping[str, Any]
    is_begun: bool  # everything that a resume needs is there

    @property
    def is_alive(self) -> bool:
        return self.state in ALIVE

    @property
    def is_search(self) -> bool:
        """True for the folder of a search."""
        return (self.path / SEARCH).is_file()

    @property
    def tags(self) -> list[str]:
        """The job's tags; none in runs of earlier versions."""
        found = self.record.get("tags")
        return list(map(str, found)) if isinstance(found, list) else []

    @property
    def snapshot(self) -> JobSnapshot:
        """The job at the time of the record; nothing moves in a lost one, nor where the record is late."""
        shown = "" if self.state in ("building", "running") else self.state
        shown = f"silent for {self.late_s:.0f} s" if self.late_s is not None else shown
        place = {"run_dir": str(self.path.absolute())}  # it may have been moved or copied since
        job = snapshot_of({"name": self.path.name, **self.record, **place}, shown)
        if self.state == LOST:
            job = replace(job, workers=(), server=None, left_s=None)
        return standing(job) if self.state == LOST or self.late_s is not None else job

    @property
    def late_s(self) -> float | None:
        """Seconds since the record was written, if the next one is late: the supervisor is stopped, or its disk does
        not answer. None: all is well, or the run has ended."""
        at, every_s = self.record.get("time"), self.record.get("every_s")
        if not self.is_alive or not isinstance(at, int | float) or not isinstance(every_s, int | float):
            return None
        age_s = time.time() - at
        return age_s if age_s > every_s + LATE_S else None

    @property
    def began(self) -> float:
        """Begin of the attempt, in seconds since 1970; without a record, the time of the folder; 0.0: it is gone."""
        at = self.record.get("began")
        if isinstance(at, int | float):
            return float(at)
        return self.path.stat().st_mtime if self.path.is_dir() else 0.0

    @property
    def ago_s(self) -> float:
        """Seconds since the attempt began."""
        return max(0.0, time.time() - self.began)

    @property
    def way_on(self) -> str:
        """Advice on continuing the run; "" if it cannot, or need not."""
        if self.is_alive or self.state == "succeeded":
            return ""
        if not self.is_begun:
            return "it ended before training began; start it again"
        if self.is_search:
            return f"resume with: hogwild search --resume {self.path}"
        if self.record.get("caller") == LIBRARY:
            return f"resume with the same call of {LIBRARY} and resume={str(self.path)!r}"
        return resume_words(self.path, cluster_of(self.record.get("cluster")))

    @property
    def ending(self) -> str:
        """`stopped: SIGTERM`, with the error of a failed run."""
        reason = self.record.get("reason") if self.state in EXIT_STATUS else None
        if self.state == LOST:
            reason = "its process was killed, or the machine stopped"
        return self.state + (f": {reason}" if reason else "")

    def find_process(self) -> int:
        """Return a pidfd of the supervisor, after its start time and boot were compared: a later process with the same
        number is never touched. Raises RunError if it is not a process of this machine that we can see."""
        record, pid = self.record, self.record.get("pid")
        where = f"{self.path} is run by process {pid} on {record.get('host')}"
        if record.get("boot_id") == host.boot_id() and isinstance(pid, int):
            try:
                pidfd = host.pidfd_open(pid)
            except OSError:
                pidfd = -1
            if pidfd >= 0 and host.start_ticks(pid) == record.get("start_ticks"):
                return pidfd
            if pidfd >= 0:
                os.close(pidfd)
        raise RunError(
            f"{where}, which cannot be found from here: it runs on another machine or in another container; stop it "
            "there, with kill -TERM",
            code="run/elsewhere",
        )


def read_status(run: Path) -> RunStatus:
    """Return the state of a run. Takes no lock: a job may start, run or end meanwhile."""
    before: Mapping[str, Any] | None = None
    while True:
        is_held = host.is_locked(run / LOCK)
        record = read_json(run, status_file(run).name)
        if is_held is None:
            is_held = is_running(record)
        state = str(record.get("state", ""))
        can_go_on = is_begun(run)
        if state in EXIT_STATUS:
            return RunStatus(run, state, record, can_go_on)
        if is_held:
            return RunStatus(run, state if state in ALIVE else "building", record, can_go_on)
        if before == record:  # looked twice: it did not end, or start, between the two questions
            return RunStatus(run, LOST, record, can_go_on)
        before = record


def is_running(record: Mapping[str, Any]) -> bool:
    """Return whether the process of a record exists and is the same one; False for another boot or machine."""
    pid = record.get("pid")
    if not isinstance(pid, int) or record.get("boot_id") != host.boot_id():
        return False
    return host.start_ticks(pid) == record.get("start_ticks") and host.process_status(pid) != "zombie"


def runs_in(folder: Path) -> list[RunStatus]:
    """Return the runs in a folder, the newest first. Raises NotFoundError if there is no such folder."""
    return sorted(map(read_status, _run_folders(folder)), key=lambda run: (run.began, run.path.name), reverse=True)


def find_run(given: str) -> Path:
    """Return the run directory that was meant: a path, a name in runs/, or `latest`. Raises NotFoundError."""
    path = Path(given)
    if os.path.isdir(path):  # unlike `is_dir`, False for a name of 256 characters
        if not _is_run(path):
            raise NotFoundError(
                f"{path} is not a run directory: it has no {STATUS} and no {RESOLVED} that you may read",
                code="run/not-a-run",
            )
        return path
    if (named := run_named(Path(given))) is not None:
        return named
    there = list(_run_folders(RUNS)) if RUNS.is_dir() else []
    known = f"{len(there)} runs are in {RUNS.absolute()}" if there else f"no runs are in {RUNS.absolute()}"
    near = did_you_mean(given, [path.name for path in there])
    raise NotFoundError(f"no run {given}: neither a folder nor a name in runs/{near} ({known})", code="run/not-found")


def run_named(given: Path) -> Path | None:
    """Return the run of that name in runs/, or the newest for `latest`, which is no search; None if there is none."""
    if _is_run(RUNS / given):
        return RUNS / given
    found = runs_in(RUNS) if given == Path(LATEST) and RUNS.is_dir() else []
    return next((run.path for run in found if not run.is_search), None)


def where_runs_are(folder: Path) -> str:
    """Return what a folder without runs is instead: a run, or the parent of a folder of runs; "" for neither."""
    if _is_run(folder):
        return f"it is a run itself: hogwild status {shlex.quote(str(folder))}"
    if os.path.isdir(inner := folder / RUNS) and (many := sum(1 for _ in _run_folders(inner))):
        return f"its folder {RUNS} has {many:,}: hogwild runs {shlex.quote(str(inner))}"
    return ""


def _run_folders(folder: Path) -> Iterator[Path]:
    try:
        names: Sequence[str] = os.listdir(folder)
    except OSError as error:
        raise NotFoundError(
            f"no runs in {folder}: {error.strerror} (looked for {folder.absolute()})", code="run/not-found"
        ) from None
    yield from (folder / name for name in names if _is_run(folder / name))


def _is_run(path: Path) -> bool:
    """Return whether it is a run, or a search, that we may read: of another, the live ones would look lost."""
    files = (path / STATUS, path / RESOLVED, path / SEARCH)
    return any(os.path.isfile(file) and os.access(file, os.R_OK, effective_ids=True) for file in files)
