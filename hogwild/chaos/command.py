"""`hogwild chaos JOB.yaml`: runs the job, injects faults, resumes it, checks the invariants, writes the report."""

import json
import math
import os
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hogwild import host
from hogwild.chaos import schedule
from hogwild.chaos.inject import PREFIX, SUMMARY, FaultRun, Hit, events_of
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
        """Check that there can be faults, and that they can hit something. Raises UsageError."""
        if not (self.every_s > 0 and math.isfinite(self.every_s)):
            raise UsageError(
                f"--every {self.every_s:g}: must be > 0, the mean seconds between two faults", code="usage/bad-value"
            )
        if self.job.train.procs == 0:
            raise UsageError(
                "train.procs: 0 trains in the parent process, so there is no worker to kill; use 1 or more",
                code="usage/bad-value",
            )
        asked = [kind for kind in self.kinds if schedule.ROLE[kind] == schedule.LOADER]
        if asked and not surely_streams(self.job):  # they would silently hit nothing
            why_not = cannot_stream(self.job)
            why = f"this job has no loaders ({why_not})" if why_not else ""
            raise UsageError(
                f"--faults: {asked[0]} hits loaders, which read streamed data, but "
                f"{why or 'with data.feed: auto the job may have no loaders'}; set data.feed=stream",
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

    def notes(self, injected: int) -> list[str]:
        """Return caveats for the reader of the report: what was changed, and whether the job was too short."""
        found = []
        if self.changes:
            found.append(f"changed for this run, because of the injected faults: {' '.join(self.changes)}")
        if injected < self.kills:
            few = f"{injected} of {self.kills} faults, one every {self.every_s:g} s"
            found.append(f"the job was too short: only {few}, were injected; raise train.epochs or lower --every")
        return found

    def fault_run(self, run_dir: Path, folder: Path, mark: str, say: Callable[[str], None]) -> FaultRun:
        """Return the job, ready to start, with its faults. Its files go to `folder`."""
        file = [] if self.job_file is None else [str(reopenable(self.job_file, self.job_text, folder))]
        data = ["--data-dir", str(self.data_dir)] if self.data_dir is not None else []
        where = ["--run-dir", str(run_dir), "--no-progress", "--json"]
        arguments = ["train", *file, *self.overrides, *self.changes, *where, *data]
        name, _, value = mark.partition("=")
        environment = {**os.environ, name: value, "TMPDIR": str(folder / "tmp")}
        grace_s = self.job.supervise.grace_s + PATIENCE_S
        return FaultRun(arguments, run_dir, environment, mark, folder / "words", grace_s, say, self.schedule())


def dry_run_lines(order: ChaosRequest) -> list[str]:
    """Return the schedule as lines, one fault per line."""
    return [f"seed {order.seed}", *(f"{fault.at_s:8.1f} s  {fault}" for fault in order.schedule())]


def answer(order: ChaosRequest, say: Callable[[str], None], *, as_json: bool) -> tuple[int, list[str]]:
    """Run the job under its faults. Return the exit status and the lines to print: 0 if every invariant holds, 1 if one
    does not, 128 + n if signal n ended us. Raises HogwildError for a job that did not even start."""
    # For the job's output and its temporary files.
    with TemporaryDirectory(prefix="hogwild-chaos-", ignore_cleanup_errors=True) as folder, _run_dir(order) as run_dir:
        mark, temporary = f"{MARK}={uuid.uuid4().hex}", Path(folder) / "tmp"
        temporary.mkdir()
        run = order.fault_run(run_dir, Path(folder), mark, say)
        say(f"seed {order.seed}: {len(run.pending)} faults, one every {order.every_s:g} s")
        before = Baseline.now(mark=mark, temporary=temporary)
        try:
            with host.raising_on_signals():
                run.run()
        except host.Interrupted as signal:
            run.interrupted = signal.number
        if not (run_dir / RESOLVED).exists():  # it did not start: fail with its error message
            if run.interrupted:
                return 128 + run.interrupted, []
            refused = HogwildError(
                f"{run.said()}\nchaos: the job did not start; nothing was injected", code="run/chaos-refused"
            )
            refused.exit_status = run.attempts[-1].status or 1
            raise refused
        last = run.attempts[-1]
        is_ended = not run.interrupted or schedule.SUPERVISOR_KILL not in last.asked
        found = checks(run_dir, before, status=last.status, hits=run.hits, is_ended=is_ended)
        notes = order.notes(order.kills if run.interrupted else len(run.hits))
        report = ChaosReport(order, run, outcomes_of(run), [*found, _end(run)], notes)
        report.write()
        lines = [json.dumps(report.as_json())] if as_json else [*report.lines()]
        return 128 + run.interrupted if run.interrupted else int(not report.holds), lines


def _end(run: FaultRun) -> Check:
    """Check that the job ended by itself, in order, and left no process behind in any attempt."""
    last = run.attempts[-1]
    left = [f"attempt {attempt.number}: {attempt.left}" for attempt in run.attempts if attempt.left]
    if left:
        return Check("attempts", False, f"processes that outlived the supervisor: {'; '.join(left)}")
    if run.interrupted:
        return Check("attempts", None, f"{host.signal_name(run.interrupted)} ended the job")
    words = f"{len(run.attempts)} in total, the last one ended with {host.describe_exit(last.status or 0)}"
    return Check("attempts", last.status in (0, 75), words)


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

    def as_json(self) -> dict[str, Any]:
        hit = asdict(self.hit)
        fault = {"role": self.hit.fault.role, **hit.pop("fault")}
        return {**fault, **hit, "survived": self.survived, "took_s": self.took_s}


@dataclass(frozen=True)
class ChaosReport:
    """The report of a run under faults: RUN/report/chaos.json, and lines for the terminal, with the verdict last.
    `notes`: caveats for the reader."""

    order: ChaosRequest
    run: FaultRun
    outcomes: Sequence[FaultOutcome]
    checks: Sequence[Check]
    notes: Sequence[str]

    @cached_property
    def summary(self) -> dict[str, Any]:
        return read_json(self.run.run_dir, SUMMARY)

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

    def as_json(self) -> dict[str, Any]:
        leases = self.summary.get("leases") or {}
        values = {
            "job": self.order.job.name,
            "run_dir": str(self.run.run_dir),
            "seed": self.order.seed,
            "every_s": self.order.every_s,
            "asked": self.order.kills,
            "injected": len(self.outcomes),
            "survived": self.survived,
            "lost": self.lost,
            "holds": self.holds,
            **{name: self.summary.get(name) for name in ("state", "reason", "restarts", "loader_deaths")},
            "leases": {name: leases[name] for name in ("total", *COUNTED) if name in leases},
            "faults": [outcome.as_json() for outcome in self.outcomes],
            "attempts": [asdict(attempt) for attempt in self.run.attempts],
            "checks": [asdict(check) for check in self.checks],
            "notes": list(self.notes),
        }
        return dict(to_json(values))

    def lines(self) -> Iterator[str]:
        """Return the lines for the terminal."""
        yield from (f"note: {note}" for note in self.notes)
        if summary := self.summary:
            leases = summary["leases"]
            others = ", ".join(f"{leases[name]} {name}" for name in COUNTED[1:])
            loaders = f", {summary['loader_deaths']} deaths of loaders" if summary.get("loader_deaths") else ""
            restarts = f"{summary['restarts']} restarts of workers{loaders}"
            yield f"{self.order.job.name}: {summary['state']}: {summary['reason']}; {restarts}"
            yield f"  batches: {leases['done']} of {leases['total']} done, {others}"
        counts = Counter(outcome.hit.fault.kind for outcome in self.outcomes)
        kinds = ", ".join(f"{counts[kind]} {kind}" for kind in schedule.KINDS if counts[kind])
        yield f"  faults: {kinds or 'none'}"
        if took := [outcome.took_s for outcome in self.outcomes if outcome.took_s is not None]:
            yield f"  back after {min(took):.1f} to {max(took):.1f} s"
        yield from (f"  {outcome}" for outcome in self.outcomes if not outcome.survived)
        for check in self.checks:
            if check.holds is not True:
                yield f"  {'BROKEN' if check.holds is False else 'not checked'}: {check.name}: {check.words}"
        yield f"  report: {self.run.run_dir / 'report' / 'chaos.json'}"
        broken = [check.name for check in self.checks if check.holds is False]
        looked_at = [check for check in self.checks if check.holds is not None]
        invariants = f"{', '.join(broken)} BROKEN" if broken else f"all {len(looked_at)} hold"
        lost = "no account of its batches" if self.lost is None else f"{self.lost} batches lost"
        yield f"survived {self.survived} of {len(self.outcomes)} faults; {lost}; invariants: {invariants}"

    def write(self) -> None:
        """Write chaos.json. Raises RunDirError on failure."""
        folder = self.run.run_dir / "report"
        with explained(f"cannot write the report to {folder}"):
            folder.mkdir(exist_ok=True)
            (folder / "chaos.json").write_text(json.dumps(self.as_json(), indent=2) + "\n", "utf-8")


def outcomes_of(run: FaultRun) -> list[FaultOutcome]:
    """Return the outcome of every hit, from the run's own records."""
    events = [
        {**event, "attempt": attempt} for attempt, event in attempts_of([event for _, event in events_of(run.run_dir)])
    ]
    return [_outcome(hit, run, events) for hit in run.hits]


def _outcome(hit: Hit, run: FaultRun, events: Sequence[Mapping[str, Any]]) -> FaultOutcome:
    """A hit worker or loader is survived, unless the job failed with nothing ready in its place; a hit supervisor, if
    the job was resumed, or had come to its end already."""
    role, attempt = hit.fault.role, run.attempts[hit.attempt - 1]
    if role == schedule.SUPERVISOR:
        if hit.fault.kind == schedule.SUPERVISOR_PAUSE:
            return FaultOutcome(hit, True)
        if attempt.left or not attempt.is_to_be_resumed:
            return FaultOutcome(hit, not attempt.left and attempt.status == 0)
        back = next((e for e in events if e["event"] == "start" and e["attempt"] > hit.attempt), None)
        survives = bool(run.interrupted)
    else:
        this = [event for event in events if event["attempt"] == hit.attempt]
        gone = next((e for e in this if e["event"] == f"{PREFIX[role]}exit" and e.get("pid") == hit.pid), None)
        if gone is None or not (hit.fault.kind in schedule.DEADLY or re.search(ENDED_BY_SUPERVISOR, gone["how"])):
            return FaultOutcome(hit, True)  # it went on, and perhaps died later of another cause
        ready = (e for e in this if e["event"] == f"{PREFIX[role]}ready" and e[role] == gone[role])
        back = next((event for event in ready if event["incarnation"] > hit.incarnation), None)
        survives = this[-1].get("state") != "failed"
    if back is None:
        return FaultOutcome(hit, survives)
    return FaultOutcome(hit, True, round(max(0.0, back["time"] - hit.time), 3))
