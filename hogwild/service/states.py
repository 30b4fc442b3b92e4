"""The life of a job in the service. Pure: an event and a record in, a record out; no clock, process or file.

              ┌───────────────────── resume, retry ──────────────────────┐
              ▼                                                          │
    queued ──► starting ──► running ──► stopping ──► paused | succeeded | failed | cancelled
      ▲ │         │            │            │           ▲                              ▲
      │ └─────────│────────────│────────────│───────────┴── pause ─────── cancel ──────┘
      └── lost ───┴────────────┴────────────┘           (at most MOST_LOST in a row without an end of its own)

The one thing to know: `apply` is the only place where a record changes. Applying a job's events again gives the same
record."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from hogwild.errors import ConflictError

Ask = Literal["cancel", "pause", "resume", "retry"]
JobEvent = Mapping[str, Any]

LIVE = ("starting", "running", "stopping")  # a process of it may exist
ENDED = ("succeeded", "failed", "cancelled")
STATES = ("queued", *LIVE, "paused", *ENDED)
KILLED = "its process was killed, or the machine stopped"
MOST_URGENT = 2
MOST_LOST = 3  # ends in a row without a word: killed, or the machine stopped


@dataclass(frozen=True, slots=True)
class Elastic:
    """The cores that a job may have while it runs, `least` to `most`; one worker on each `threads` of them."""

    least: int
    most: int
    threads: int = 1

    def procs(self, cores: int) -> int:
        """Return the number of workers on so many cores; never less than on the least, which a smaller machine may not
        have: the job may need them (supervise.min_workers)."""
        return max(1, max(cores, self.least) // self.threads)


@dataclass(frozen=True, slots=True)
class JobOrder:
    """A submission; never changes."""

    id: str
    number: int  # 1, 2, ...: order of submission
    name: str
    submitted: float  # seconds since 1970
    job_file: str  # as the user gave it, for people; the copy below `files/` is what runs
    copied: str  # name of the job file's copy below `files/`
    job_folder: str  # folder of the user's own job file: data files are looked for there, too
    overrides: tuple[str, ...]
    folder: str  # current folder of the job
    data_dir: str | None
    environment: Mapping[str, str]
    mark: str  # random; in the environment of every process of the job
    digest: str  # of the whole submission: a repeated request is the same job only if this is equal
    cpus: int  # physical cores
    memory: int = 0  # bytes to reserve
    gpus: int = 0
    priority: int = 0
    retries: int = 0  # of a failed job, by itself
    max_duration_s: float | None = None  # of all attempts together
    on_reboot: str = "resume"  # or pause
    elastic: Elastic | None = None  # None: it keeps the cores that it begins with
    tags: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()  # overrides of a run that it goes on from
    is_search: bool = False  # its process is `hogwild search`, whose trials are not jobs of the service


@dataclass(frozen=True, slots=True)
class Move:
    """A request to a running job: have these cores from now on."""

    request: str  # its id, in the run's requests and events
    cores: tuple[int, ...]  # logical CPUs
    procs: int
    begin: int  # size of the run's events before it
    borrower: str | None = None  # the waiting job that gets what is given up


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job now. Times are seconds since 1970, for people."""

    id: str
    state: str = "queued"
    reason: str | None = None
    error: str | None = None
    error_code: str | None = None
    exit_status: int | None = None
    attempt: int = 0  # starts of a process
    pid: int | None = None  # of the attempt's first process, with:
    start_ticks: int | None = None
    boot_id: str = ""
    cores: tuple[int, ...] = ()  # logical CPUs of the attempt
    gpus: tuple[str, ...] = ()
    procs: int | None = None  # of an elastic job: the workers that the attempt begins with
    move: "Move | None" = None  # to other cores, not answered yet; both the old and the new ones are in use
    moved: float | None = None  # when its last move was asked for
    moves: int = 0  # of this attempt
    fixed: str | None = None  # why this attempt cannot be moved
    asked: str | None = None  # cancel or pause: why the process was told to stop
    why: str | None = None  # who asked, if not the user
    urgency: int = 0  # 0: with a checkpoint; 1: at once; 2: SIGKILL
    signals: tuple[int, ...] = ()  # sent to the process, first to last
    lost: int = 0  # in a row
    retried: int = 0  # times that it failed and was queued again by itself
    ran_s: float = 0.0  # in ended attempts
    passed: int = 0  # jobs that were started before this one although it waited longer
    started: float | None = None  # last attempt
    ended: float | None = None
    code_at: float | None = None  # when its code was copied again, by `retry --new-code`
    booked: int = 0  # events until now: of two copies the one with more is newer

    @property
    def is_live(self) -> bool:
        return self.state in LIVE

    @property
    def in_use(self) -> frozenset[int]:
        """Return the logical CPUs that nobody else may get."""
        return frozenset(self.cores).union(self.move.cores if self.move else ())


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of a process. `state`: the run's last word (succeeded, failed, stopped, cancelled); None without one."""

    state: str | None = None
    reason: str | None = None
    error: str | None = None
    error_code: str | None = None
    exit_status: int | None = None
    is_begun: bool = False  # training began: the run can be resumed
    is_reboot: bool = False  # the machine was started again since
    how: str = KILLED  # if it had no last word


def apply(job: JobRecord, event: JobEvent) -> JobRecord:
    """Return the record after an event. Unknown fields of an event are ignored."""
    match event["event"]:
        case "starting":
            return replace(
                job,
                **{**_NO_END, "state": "starting", "attempt": event["attempt"]},
                cores=tuple(event["cores"]),
                gpus=tuple(event.get("gpus", ())),
                procs=event.get("procs"),
                **_NO_MOVE,
                pid=None,
                start_ticks=None,
                boot_id=event["boot_id"],
                started=event["at"],
                passed=0,
            )
        case "started":
            return replace(job, pid=event["pid"], start_ticks=event["start_ticks"])
        case "running":
            return replace(job, state="running", lost=0) if job.state == "starting" else job
        case "move":
            given = {name: event[name] for name in ("request", "procs", "begin", "borrower")}
            return replace(job, move=Move(cores=tuple(event["cores"]), **given), moved=event["at"])
        case "moved":
            return replace(job, cores=job.move.cores, move=None, moves=job.moves + 1) if job.move else job
        case "kept":
            return replace(job, move=None, fixed=event["fixed"])
        case "asked":
            return replace(job, state="stopping", asked=event["ask"], urgency=event["urgency"], why=event.get("why"))
        case "signalled":
            return replace(job, signals=(*job.signals, event["number"]))
        case "passed":
            return replace(job, passed=job.passed + 1)
        case "ended":
            given = {name: event.get(name) for name in ("reason", "error", "error_code", "exit_status")}
            moved = {"state": event["state"], "lost": event.get("lost", 0), "ended": event["at"]}
            ran_s = max(0.0, event["at"] - job.started) if job.is_live and job.started is not None else 0.0
            counts = {"ran_s": job.ran_s + ran_s, "retried": event.get("retried", job.retried)}
            return replace(job, **{**_NO_END, **given, **moved, **counts, **_NO_PROCESS})
        case "queued":
            code = {"code_at": event.get("code_at", job.code_at)}
            counts = {"lost": 0, "passed": 0, "retried": 0, "ran_s": 0.0}
            return replace(job, **{**_NO_END, "state": "queued", **counts, **code})
    raise ValueError(f"unknown event {event['event']!r} of job {job.id}")


_NO_END: dict[str, Any] = {
    **dict.fromkeys(("reason", "error", "error_code", "exit_status", "asked", "why", "ended")),
    "urgency": 0,
    "signals": (),
}
_NO_MOVE: dict[str, Any] = {"move": None, "moved": None, "moves": 0, "fixed": None}
_NO_PROCESS: dict[str, Any] = {"pid": None, "start_ticks": None, "cores": (), "gpus": (), "procs": None, **_NO_MOVE}


def overdue(job: JobRecord, order: JobOrder, age_s: float) -> JobEvent | None:
    """Return the event that stops a job which has run longer than it may; `age_s`: of its process."""
    if order.max_duration_s is None or job.asked is not None or job.ran_s + age_s <= order.max_duration_s:
        return None
    why = f"it ran longer than queue.max_duration_s: {order.max_duration_s:g}; retry goes on from its checkpoint"
    return {"event": "asked", "ask": "cancel", "urgency": 0, "why": why}


def asked(job: JobRecord, ask: Ask, *, now: bool, at: float, number: int = 0) -> JobEvent | None:
    """Return the event of a user's request; None if it holds already. Raises ConflictError, which names the job by its
    `number`, if it cannot be done in this state."""
    ended = {"event": "ended", "state": {"cancel": "cancelled", "pause": "paused"}.get(ask), "at": at}
    match ask, job.state:
        case ("cancel", "queued" | "paused") | ("pause", "queued"):
            return {**ended, "reason": _BY_USER[ask]}
        case ("cancel" | "pause", "starting" | "running"):
            return {"event": "asked", "ask": ask, "urgency": int(now)}
        case ("cancel" | "pause", "stopping") if ask == "cancel" or job.asked == "pause":
            urgency = min(job.urgency + 1, MOST_URGENT) if now else job.urgency
            is_new = (ask, urgency) != (job.asked, job.urgency)
            return {"event": "asked", "ask": ask, "urgency": urgency} if is_new else None
        case ("cancel", "cancelled") | ("pause", "paused"):
            return None
        case ("resume", "paused") | ("retry", "failed" | "cancelled" | "paused"):
            return {"event": "queued"}
        case ("resume" | "retry", "queued" | "starting" | "running"):
            return None
    raise ConflictError(
        f"job {number or job.id} is {job.state}: {ask} needs a job that is {_NEEDS[ask]}", code="service/wrong-state"
    )


_BY_USER = {"cancel": "cancelled by the user", "pause": "paused by the user"}
_NEEDS = {
    "cancel": "queued, starting, running, stopping or paused",
    "pause": "queued, starting or running",
    "resume": "paused",
    "retry": "failed, cancelled or paused",
}


def end_event(job: JobRecord, order: JobOrder, end: AttemptEnd, at: float) -> JobEvent:
    """Return the event for the end of a live job's process."""
    said = {"error": end.error, "error_code": end.error_code, "exit_status": end.exit_status}
    event = {"event": "ended", "at": at, "reason": end.reason, **said}
    if end.state == "failed" and job.asked is None and job.retried < order.retries:
        words = f"failed: {end.reason}; retry {job.retried + 1} of {order.retries}"
        return {**event, "state": "queued", "reason": words, "retried": job.retried + 1}
    if end.state in ("succeeded", "failed"):
        return {**event, "state": end.state}
    if job.asked is not None:
        state = "cancelled" if job.asked == "cancel" else "paused"
        return {**event, "state": state, "reason": job.why or _BY_USER[job.asked], "error": None, "error_code": None}
    if end.state == "stopped":  # max_time_s, or somebody sent the process a signal
        return {**event, "state": "paused"}
    if end.state == "cancelled":  # by a signal of somebody else; before training began nothing is lost
        if end.is_begun:
            return {**event, "state": "cancelled"}
        return {**event, "state": "queued", "reason": "a signal ended it before training began; queued again"}
    if job.pid is None:  # it was never started
        return {**event, "state": "queued", "lost": job.lost}
    if end.is_reboot:
        if order.on_reboot == "pause":
            return {**event, "state": "paused", "reason": "the machine was started again (queue.on_reboot: pause)"}
        return {**event, "state": "queued", "reason": "the machine was started again; it goes on", "lost": job.lost}
    lost = job.lost + 1
    if lost < MOST_LOST:
        return {**event, "state": "queued", "lost": lost, "reason": f"lost: {end.how}; it goes on"}
    words = f"lost {lost} times in a row, the last time: {end.how}"
    return {**event, "state": "failed", "lost": lost, "reason": words, "error": words, "error_code": "service/lost"}
