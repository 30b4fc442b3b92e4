"""`hogwild chaos JOB.yaml`: runs the job, injects faults, resumes it, checks the invariants, writes the report."""

import json
import os
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hogwild import host
from hogwild.chaos import schedule
from hogwild.chaos.inject import PREFIX, SUMMARY, FaultRecord, FaultRun, Hit, events_of
from hogwild.chaos.schedule import Fault
from hogwild.chaos.verdict import COUNTED, ENDED_BY_SUPERVISOR, SETTLED, Baseline, Check, attempts_of, checks
from hogwild.config.load import Job
from hogwild.config.locate import reopenable
from hogwild.config.schema import cannot_stream, surely_streams
from hogwild.errors import HogwildError, UsageError
from hogwild.planning.cpu_plan import MachineFacts
from hogwild.planning.job_plan import plan_job
from hogwild.storage.files import explained, to_json
from hogwild.storage.run_directory import RESOLVED, RunDir
from hogwild.storage.run_files import read_json

MARK = "HOGWILD_CHAOS"  # in the environment of the job's processes, to find them; it changes nothing
PATIENCE_S = 60.0  # beyond grace_s, for the last checkpoint of a job when a signal has ended chaos itself
SAID_S = 0.2  # interval of the job's records: who trains (possible targets), how fast (plot)

# A kill is not the fault of the worker or of the batch, so the job's own limits must not end it.
PATIENT = {"supervise.max_restarts": 1_000_000, "supervise.max_item_attempts": 1_000}


@dataclass(frozen=True, slots=True)
class ChaosRequest:
    """The arguments of the command. `job` is the complete job config; `job_file` is None for the embedded job."""

    job: Job
    job_file: Path | None
    job_text: str
    overrides: Sequence[str]
    kills: int
    seed: int
    every_s: float
    kinds: tuple[str, ...]
    run_dir: Path | None
    data_dir: Path | None

    def check(self) -> None:
        """Check that the faults can hit something. Raises UsageError."""
        schedule.check(self.every_s)
        if self.job.train.procs == 0:
            raise UsageError(
                "train.procs: 0 trains in the parent process, so there is no worker to kill; use 1 or more",
                code="usage/bad-value",
            )
        asked = [kind for kind in self.kinds if schedule.ROLE[kind] == schedule.LOADER]
        if asked and not surely_streams(self.job):  # they would silently hit nothing
            why_not = cannot_stream(self.job)
            why = (
                f"this job has no loaders ({why_not})"
                if why_not
                else "with data.feed: auto the job may have no loaders"
            )
            raise UsageError(
                f"--faults: {asked[0]} hits loaders, which read streamed data, but {why}; set data.feed=stream",
                code="usage/bad-value",
            )

    def schedule(self) -> list[Fault]:
        plan = plan_job(self.job, MachineFacts.here())
        supervise = self.job.supervise
        longest_s = schedule.longest_stop_s(supervise.stall_timeout_s, supervise.deadlock_timeout_s)
        return schedule.draw(self.seed, self.kills, self.every_s, self.kinds, plan.procs, longest_s, plan.early_loaders)

    @property
    def changes(self) -> list[str]:
        """Overrides for this run, except fields that the command line sets itself."""
        given = {override.partition("=")[0] for override in self.overrides}
        wanted = {**PATIENT, "log.every_s": min(SAID_S, self.job.log.every_s)}
        return [f"{key}={value}" for key, value in wanted.items() if key not in given]

    def notes(self) -> list[str]:
        return (
            [f"changed for this run, because of the injected faults: {' '.join(self.changes)}"] if self.changes else []
        )

    def shortage(self, injected: int) -> list[str]:
        """Return a note if the job ended before all its faults came."""
        if injected == self.kills:
            return []
        few = f"{injected} of {self.kills} faults, one every {self.every_s:g} s"
        return [f"the job was too short: only {few}, were injected; raise train.epochs or lower --every"]

    def arguments(self, run_dir: Path, folder: Path) -> list[str]:
        """Return the arguments of the command that starts the job, whose files go to `folder`."""
        file = [] if self.job_file is None else [str(reopenable(self.job_file, self.job_text, folder))]
        data = ["--data-dir", str(self.data_dir)] if self.data_dir is not None else []
        where = ["--run-dir", str(run_dir), "--no-progress", "--json"]
        return ["train", *file, *self.overrides, *self.changes, *where, *data]


def dry_run_lines(order: ChaosRequest) -> list[str]:
    """Return the schedule as lines, one fault per line."""
    return [f"seed {order.seed}", *(f"{fault.at_s:8.1f} s  {fault}" for fault in order.schedule())]


def answer(order: ChaosRequest, say: Callable[[str], None], *, as_json: bool) -> tuple[int, list[str]]:
    """Run the job under its faults. Return the exit status and the lines to print: 0 if every invariant holds, 1 if one
    does not, 128 + n if signal n ended us. Raises HogwildError for a job that did not even start."""
    faults = order.schedule()
    say(f"seed {order.seed}: {len(faults)} faults, one every {order.every_s:g} s")
    # For the job's output and its temporary files.
    with TemporaryDirectory(prefix="hogwild-chaos-", ignore_cleanup_errors=True) as folder, _run_dir(order) as run_dir:
        before, fault_run = _prepared(order, run_dir, Path(folder), say)
        record = FaultRecord()
        try:
            with host.raising_on_signals():
                fault_run.run(faults, record)
        except host.Interrupted as signal:
            record.interrupted = signal.number
        if not (run_dir / RESOLVED).exists():
            return _refused(fault_run, record)
        last = record.attempts[-1]
        is_ended = not record.interrupted or schedule.SUPERVISOR_KILL not in last.asked
        seen = checks(run_dir, before, status=last.status, hits=record.hits, is_ended=is_ended)
        found = [*seen, _end(record)]
        notes = [*order.notes(), *([] if record.interrupted else order.shortage(len(record.hits)))]
        report = ChaosReport(order, run_dir, record, outcomes_of(record, run_dir), found, notes)
        report.write()
        lines = [json.dumps(report.as_json())] if as_json else [*report.lines()]
        return 128 + record.interrupted if record.interrupted else int(not report.holds), lines


def _prepared(
    order: ChaosRequest, run_dir: Path, folder: Path, say: Callable[[str], None]
) -> tuple[Baseline, FaultRun]:
    value, temporary = uuid.uuid4().hex, folder / "tmp"
    temporary.mkdir()
    environment, mark = {**os.environ, MARK: value, "TMPDIR": str(temporary)}, f"{MARK}={value}"
    words, grace_s = folder / "words", order.job.supervise.grace_s + PATIENCE_S
    fault_run = FaultRun(order.arguments(run_dir, folder), run_dir, environment, mark, words, grace_s, say)
    return Baseline.now(mark=mark, temporary=temporary), fault_run


def _end(record: FaultRecord) -> Check:
    """Check that the job ended by itself, in order, and left no process behind in any attempt."""
    last = record.attempts[-1]
    left = [f"attempt {attempt.number}: {attempt.left}" for attempt in record.attempts if attempt.left]
    if left:
        return Check("attempts", False, f"processes that outlived the supervisor: {'; '.join(left)}")
    if record.interrupted:
        return Check("attempts", None, f"{host.signal_name(record.interrupted)} ended the job")
    words = f"{len(record.attempts)} in total, the last one ended with {host.describe_exit(last.status or 0)}"
    return Check("attempts", last.status in (0, 75), words)


def _refused(fault_run: FaultRun, record: FaultRecord) -> tuple[int, list[str]]:
    """Fail with the error message of a job that did not start."""
    if record.interrupted:
        return 128 + record.interrupted, []
    error = HogwildError(
        f"{fault_run.said()}\nchaos: the job did not start; nothing was injected", code="run/chaos-refused"
    )
    error.exit_status = record.attempts[-1].status or 1
    raise error


@contextmanager
def _run_dir(order: ChaosRequest) -> Iterator[Path]:
    """Create an empty run directory for the job to fill; remove it if the job did not start."""
    run = RunDir.create(order.run_dir, order.job.name)
    run.close()
    try:
        yield run.path
    finally:
        if not (run.path / RESOLVED).exists():
            run.discard()


# ---- the report -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """The outcome of one injected fault. `took_s`: seconds until a worker was ready in that place again, or the job had
    started again; None if nothing had to be replaced or nothing was."""

    hit: Hit
    survived: bool
    took_s: float | None = None

    def __str__(self) -> str:
        back = "" if self.took_s is None else f"; back after {self.took_s:.1f} s"
        not_survived = "" if self.survived else "; NOT SURVIVED"
        return f"{self.hit.since_s:8.1f} s  {self.hit.fault} (pid {self.hit.pid}){back}{not_survived}"


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """The report of a run under faults: RUN/report/chaos.json, and lines for the terminal, with the verdict last.
    `notes`: caveats for the reader."""

    order: ChaosRequest
    run_dir: Path
    record: FaultRecord
    outcomes: Sequence[FaultOutcome]
    checks: Sequence[Check]
    notes: Sequence[str]

    @property
    def summary(self) -> dict[str, Any]:
        return read_json(self.run_dir, SUMMARY)

    @property
    def survived(self) -> int:
        return sum(outcome.survived for outcome in self.outcomes)

    @property
    def lost(self) -> int | None:
        """Batches in no account; None without a summary."""
        leases = self.summary.get("leases")
        return None if leases is None else leases["total"] - sum(leases[name] for name in SETTLED)

    @property
    def holds(self) -> bool:
        broken = any(check.holds is False for check in self.checks)
        return not broken and self.lost == 0 and self.survived == len(self.outcomes)

    @property
    def verdict(self) -> str:
        """The last line of the report."""
        broken = [check.name for check in self.checks if check.holds is False]
        looked_at = [check for check in self.checks if check.holds is not None]
        invariants = f"{', '.join(broken)} BROKEN" if broken else f"all {len(looked_at)} hold"
        lost = "no account of its batches" if self.lost is None else f"{self.lost} batches lost"
        return f"survived {self.survived} of {len(self.outcomes)} faults; {lost}; invariants: {invariants}"

    def as_json(self) -> dict[str, Any]:
        summary = self.summary
        leases = summary.get("leases") or {}
        values = {
            "job": self.order.job.name,
            "run_dir": str(self.run_dir),
            "seed": self.order.seed,
            "every_s": self.order.every_s,
            "asked": self.order.kills,
            "injected": len(self.outcomes),
            "survived": self.survived,
            "lost": self.lost,
            "holds": self.holds,
            **{name: summary.get(name) for name in ("state", "reason", "restarts", "loader_deaths")},
            "leases": {name: leases[name] for name in ("total", *COUNTED) if name in leases},
            "faults": [_as_json(outcome) for outcome in self.outcomes],
            "attempts": [asdict(attempt) for attempt in self.record.attempts],
            "checks": [asdict(check) for check in self.checks],
            "notes": list(self.notes),
        }
        return dict(to_json(values))

    def lines(self) -> Iterator[str]:
        """Return the lines for the terminal."""
        summary = self.summary
        yield from (f"note: {note}" for note in self.notes)
        if summary:
            leases = summary["leases"]
            others = ", ".join(f"{leases[name]} {name}" for name in COUNTED[1:])
            loaders = f", {summary['loader_deaths']} deaths of loaders" if summary.get("loader_deaths") else ""
            restarts = f"{summary['restarts']} restarts of workers{loaders}"
            yield f"{self.order.job.name}: {summary['state']}: {summary['reason']}; {restarts}"
            yield f"  batches: {leases['done']} of {leases['total']} done, {others}"
        counts = Counter(hit.fault.kind for hit in self.record.hits)
        kinds = ", ".join(f"{counts[kind]} {kind}" for kind in schedule.KINDS if counts[kind])
        yield f"  faults: {kinds or 'none'}"
        if took := [outcome.took_s for outcome in self.outcomes if outcome.took_s is not None]:
            yield f"  back after {min(took):.1f} to {max(took):.1f} s"
        yield from (f"  {outcome}" for outcome in self.outcomes if not outcome.survived)
        for check in self.checks:
            if check.holds is not True:
                yield f"  {'BROKEN' if check.holds is False else 'not checked'}: {check.name}: {check.words}"
        yield f"  report: {self.run_dir / 'report' / 'chaos.json'}"
        yield self.verdict

    def write(self) -> None:
        """Write chaos.json. Raises RunDirError on failure."""
        folder = self.run_dir / "report"
        with explained(f"cannot write the report to {folder}"):
            folder.mkdir(exist_ok=True)
            (folder / "chaos.json").write_text(json.dumps(self.as_json(), indent=2) + "\n", "utf-8")


def _as_json(outcome: FaultOutcome) -> dict[str, Any]:
    values = asdict(outcome)
    hit = values.pop("hit")
    fault = hit.pop("fault")
    return {"role": schedule.ROLE[fault["kind"]], **fault, **hit, **values}


def outcomes_of(record: FaultRecord, run_dir: Path) -> list[FaultOutcome]:
    """Return the outcome of every hit, from the run's own records."""
    events = [{**event, "attempt": attempt} for attempt, event in attempts_of([e for _, e in events_of(run_dir)])]
    return [
        _of_supervisor(hit, record, events) if hit.fault.role == schedule.SUPERVISOR else _of_child(hit, events)
        for hit in record.hits
    ]


def _of_child(hit: Hit, events: Sequence[Mapping[str, Any]]) -> FaultOutcome:
    """Return the outcome for a worker or loader: survived, unless the job failed with nothing ready in its place."""
    role, prefix = hit.fault.role, PREFIX[hit.fault.role]
    this = [event for event in events if event["attempt"] == hit.attempt]
    gone = next((e for e in this if e["event"] == f"{prefix}exit" and e.get("pid") == hit.pid), None)
    if gone is None or not (hit.fault.kind in schedule.DEADLY or re.search(ENDED_BY_SUPERVISOR, gone["how"])):
        return FaultOutcome(hit, True)  # it went on, and perhaps died later of another cause
    ready = (e for e in this if e["event"] == f"{prefix}ready" and e[role] == gone[role])
    back = next((event for event in ready if event["incarnation"] > hit.incarnation), None)
    return FaultOutcome(hit, this[-1].get("state") != "failed") if back is None else _back(hit, back)


def _of_supervisor(hit: Hit, record: FaultRecord, events: Sequence[Mapping[str, Any]]) -> FaultOutcome:
    attempt = record.attempts[hit.attempt - 1]
    if hit.fault.kind == schedule.SUPERVISOR_PAUSE:
        return FaultOutcome(hit, True)
    if attempt.left or not attempt.is_to_be_resumed:
        return FaultOutcome(hit, not attempt.left and attempt.status == 0)
    again = next((e for e in events if e["event"] == "start" and e["attempt"] > hit.attempt), None)
    return FaultOutcome(hit, bool(record.interrupted)) if again is None else _back(hit, again)


def _back(hit: Hit, event: Mapping[str, Any]) -> FaultOutcome:
    return FaultOutcome(hit, True, round(max(0.0, event["time"] - hit.time), 3))
