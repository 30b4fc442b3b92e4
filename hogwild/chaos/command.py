"""`hogwild chaos JOB.yaml`: runs the job, injects faults, resumes it, checks the invariants, writes the report."""

import json
import os
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hogwild import host
from hogwild.chaos import schedule
from hogwild.chaos.inject import FaultRecord, FaultRun
from hogwild.chaos.report import ChaosReport, outcomes_of
from hogwild.chaos.schedule import Fault
from hogwild.chaos.verdict import Baseline, Check, checks
from hogwild.config.load import Job
from hogwild.config.locate import reopenable
from hogwild.config.schema import cannot_stream, surely_streams
from hogwild.errors import HogwildError, UsageError
from hogwild.planning.cpu_plan import MachineFacts
from hogwild.planning.job_plan import plan_job
from hogwild.storage.run_directory import RESOLVED, RunDir

MARK = "HOGWILD_CHAOS"  # in the environment of the job's processes, to find them; it changes nothing
SEEDS = 1_000_000_000
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

    @classmethod
    def checked(
        cls,
        read: tuple[Job, Path | None, str, Sequence[str]],
        *,
        kills: int,
        seed: int | None,
        every_s: float,
        faults: str | None,
        folders: tuple[Path | None, Path | None],
    ) -> "ChaosRequest":
        """Check the arguments; draw a seed if none is given. `folders`: run folder, data folder. Raises UsageError."""
        seed = random.SystemRandom().randrange(SEEDS) if seed is None else seed
        schedule.check(every_s)
        if read[0].train.procs == 0:
            raise UsageError(
                "train.procs: 0 trains in the parent process, so there is no worker to kill; use 1 or more",
                code="usage/bad-value",
            )
        kinds = schedule.checked_kinds(faults)
        _check_loaders(read[0], kinds)
        return cls(*read, kills, seed, every_s, kinds, *folders)

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


def _check_loaders(job: Job, kinds: Sequence[str]) -> None:
    """Raise UsageError for loader faults in a job that may have no loaders: they would silently hit nothing."""
    asked = [kind for kind in kinds if schedule.ROLE[kind] == schedule.LOADER]
    if not asked or surely_streams(job):
        return
    why_not = cannot_stream(job)
    why = f"this job has no loaders ({why_not})" if why_not else "with data.feed: auto the job may have no loaders"
    raise UsageError(
        f"--faults: {asked[0]} hits loaders, which read streamed data, but {why}; set data.feed=stream",
        code="usage/bad-value",
    )


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
        outcomes = outcomes_of(record, run_dir)
        job = order.job.name
        report = ChaosReport(job, run_dir, order.seed, order.every_s, order.kills, record, outcomes, found, notes)
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
