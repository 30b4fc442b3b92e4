"""One job from its description to its summary: the run directory, the objects, the shared memory, the supervisor, the
records. Called by the command line and by `hogwild.train`; there is no other path.

    plan -> run directory -> build -> shared memory -> (resume) -> supervisor -> last checkpoint -> summary.json
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import cloudpickle

from hogwild import host, registry
from hogwild.checkpoint import CheckpointWriter
from hogwild.config import Job
from hogwild.device import resolve
from hogwild.errors import (
    CheckpointError,
    Diverged,
    HogwildError,
    UserCodeError,
)
from hogwild.job import Parts, build, planned_updates
from hogwild.params import SharedModel
from hogwild.plan import Plan, make_plan
from hogwild.rundir import RunDir
from hogwild.scoreboard import Scoreboard
from hogwild.shm import Region
from hogwild.workqueue import WorkQueue
from workers.inline import Inline
from workers.journal import Journal
from workers.messages import Setup
from workers.outcome import Clock, Outcome
from workers.prepare import blob, check_memory, limits_of, share_data, write_descriptions
from workers.request import Request
from workers.resume import check_changes, record, restore
from workers.session import LAST_WRITE_S, Session
from workers.summary import summarise
from workers.supervisor import Supervisor
from workers.trainer import Kit

WRITE_LOOK_S = 0.1  # between two looks for a second signal while the last checkpoint is written
# Regions (two each), records, pipes of our own, files in passing; a worker costs six, and ten more while it is set up,
# which for all but root count against the same limit.
DESCRIPTORS, PER_WORKER, ON_THEIR_WAY = 44, 6, 10
DIVERGED = Diverged(
    "parameters are NaN or infinite at the end of the job: it has diverged. Lower the learning rate or set "
    "train.grad_clip; checkpoints written before are finite"
)


def run_job(
    job: Job,
    *,
    job_file: Path | None,
    job_text: str,
    run_dir: Path | None = None,
    data_dir: Path | None = None,
    resume: Path | None = None,
    dry_run: bool = False,
    progress: bool | None = None,
) -> dict[str, Any]:
    """The command line's way in; returns the summary. Raises HogwildError for what cannot be started; a job that
    failed while training returns its summary with state `failed` and the error's words."""
    host.require_linux()
    folders = tuple(registry.user_path(job_file))
    request = Request(
        job=job,
        make_parts=lambda: build(job, data_dir),
        job_text=job_text,
        run_dir=run_dir,
        resume=resume,
        data_dir=data_dir.absolute() if data_dir else None,
        user_folders=folders,
        progress=progress,
        began_s=host.process_start_s(),
    )
    return dry(request) if dry_run else run(request).summary


@dataclass(frozen=True, slots=True)
class Result:
    summary: dict[str, Any]
    shared: SharedModel
    error: BaseException | None


def dry(request: Request) -> dict[str, Any]:
    """Everything up to starting workers; leaves nothing behind. Returns what would be done."""
    planned = _plan(request.job)
    with host.raising_on_signals():
        parts = request.make_parts()
    needed = check_memory(request.job, parts, planned)
    answer = {
        "state": "dry-run",
        "plan": planned.reason,
        "warning": planned.warning,
        "procs": planned.procs,
        "threads": planned.threads,
        "samples": parts.train.plan.samples,
        "batches": parts.train.plan.batches,
        "planned_updates": planned_updates(request.job, parts.train.plan),
        "shared_memory_bytes": needed,
        "notes": parts.notes,
    }
    return {key: value for key, value in answer.items() if value not in ("", [])}


def run(request: Request) -> Result:
    """Trains. The run directory is removed again when nothing was started."""
    host.require_main_thread()
    planned = _plan(request.job)
    rundir: RunDir | None = None
    prepared: _Prepared | None = None
    has_begun = False
    try:
        # Before signals raise: a folder that is made but not yet ours would stay.
        rundir = RunDir.open(request.resume) if request.resume else RunDir.create(request.run_dir, request.job.name)
        with host.raising_on_signals() as stops:
            if request.resume:
                check_changes(rundir, request.job)
            parts = request.make_parts()
            check_memory(request.job, parts, planned)
            needed = DESCRIPTORS + PER_WORKER * planned.procs
            host.raise_file_limit(needed, needed + ON_THEIR_WAY * planned.procs)
            stops.look()
            prepared = _Prepared.make(request, planned, parts, rundir)
            stops.hand_over()
            has_begun = True
            return prepared.train(stops)  # which watches signals in its own way
    except BaseException:
        if prepared is not None:
            prepared.session.shared.release()
        if rundir is not None and not has_begun and not request.resume:
            rundir.discard()
        raise
    finally:
        if rundir is not None:
            rundir.close()


@dataclass(slots=True)
class _Prepared:
    """A job whose shared memory is laid out and whose workers may start."""

    request: Request
    plan: Plan
    session: Session
    kit: Kit
    regions: dict[str, Region]
    structure: bytes
    tracker_was_known: bool

    @classmethod
    def make(cls, request: Request, planned: Plan, parts: Parts, rundir: RunDir) -> "_Prepared":
        """Raises what `SharedModel.build` and a resume raise; a library caller's model is his own again then."""
        job = request.job
        shared = SharedModel.build(
            parts.model,
            parts.loss,
            parts.optimizer,
            procs=max(1, planned.procs),
            state=job.optimizer.state,
            memory_format=job.model.memory_format,
        )
        try:
            return cls._around(shared, request, planned, parts, rundir)
        except BaseException:
            shared.release()
            raise

    @classmethod
    def _around(cls, shared: SharedModel, request: Request, planned: Plan, parts: Parts, rundir: RunDir) -> "_Prepared":
        job, rows = request.job, max(1, planned.procs)
        regions, kit = share_data(job, parts, shared.uses_channels_last)
        ids = count(1)
        board = Scoreboard.allocate(rows)
        journal = Journal(rundir, jsonl=job.log.jsonl, progress=_wants_progress(request), every_s=job.log.every_s)
        session = Session(
            job=job,
            parts=parts,
            plan=planned,
            shared=shared,
            board=board,
            queue=WorkQueue(parts.train.plan, limits_of(job, rows), ids=ids),
            rundir=rundir,
            journal=journal,
            writer=CheckpointWriter(rundir.checkpoints),
            clock=Clock(request.began_s),
            ids=ids,
        )
        restored = restore(session) if request.resume else None  # nothing is written before
        rundir.make_folders()
        write_descriptions(request, planned, parts, rundir)
        if restored is not None:
            record(session, restored)
        regions = {**shared.regions, **regions, "scoreboard": board.region}
        return cls(request, planned, session, kit, regions, shared.structure, host.is_tracker_known())

    def train(self, stops: host.StopSignals) -> Result:
        session = self.session
        with host.SignalWatch(raises_second=self.plan.procs == 0, before=stops) as watch:
            session.journal.event("start", pid=os.getpid(), plan=self.plan.reason)
            session.journal.say(f"run directory {session.rundir.path}\nplan: {self.plan.reason}")
            for note in [self.plan.warning, *session.parts.notes]:
                if note:
                    session.journal.say(f"note: {note}")
            outcome = self._guard(self._train_inline if self.plan.procs == 0 else self._train_with_workers, watch)
            watch.raises_second = False  # from here on, the second is looked for
            outcome = self._finish(outcome, watch)
            summary = summarise(session, outcome, time.monotonic())
            if not session.rundir.try_write_json("summary.json", summary):
                session.journal.say("warning: summary.json cannot be written (disk full?)")
            session.journal.event("end", state=outcome.state, reason=outcome.reason)
            session.journal.status(
                **{key: summary[key] for key in ("state", "reason", "updates", "samples", "wall_s")},
                epoch=session.queue.epoch,
                planned_updates=session.queue.planned_updates,
                progress=session.progress,
                restarts=summary["restarts"],
                pid=os.getpid(),
                metrics=summary["metrics"],
            )
            session.journal.close()
            if not session.writer.is_busy:  # else a second signal has left it to its thread
                session.writer.close()
        if not self.tracker_was_known:  # a notebook may have one of its own
            host.stop_resource_tracker()
        return Result(summary, session.shared, outcome.error)

    def _train_inline(self, watch: host.SignalWatch) -> Outcome:
        return Inline(self.session, watch, self.kit, self.structure, self.regions).run()

    def _train_with_workers(self, watch: host.SignalWatch) -> Outcome:
        return Supervisor(self.session, watch, self._set_up(), self.plan.environment).run()

    def _guard(self, train: Callable[[host.SignalWatch], Outcome], watch: host.SignalWatch) -> Outcome:
        """Whatever happens, there is a summary: our own errors, the user's in `procs: 0`, and our mistakes."""
        try:
            return train(watch)
        except HogwildError as error:
            return Outcome("failed", error.code, error=error)
        except host.Interrupted as signal:  # `procs: 0`, twice
            return Outcome.cancelled_by(signal.number)
        except (Exception, SystemExit) as error:  # of `procs: 0`: user code that calls sys.exit
            import traceback

            text = "".join(traceback.format_exception(error))
            wrapped = UserCodeError(f"{type(error).__name__}: {error}\n\n{text.rstrip()}")
            wrapped.__cause__ = error
            return Outcome("failed", wrapped.code, error=wrapped)

    def _finish(self, outcome: Outcome, watch: host.SignalWatch) -> Outcome:
        """The last checkpoint: the one in flight, and one of what a failed job had learnt."""
        session = self.session
        deadline = time.monotonic() + LAST_WRITE_S
        while session.writer.is_busy and len(watch.received) < 2 and time.monotonic() < deadline:
            session.take_written(session.writer.wait(WRITE_LOOK_S))
        if outcome.state == "cancelled":
            return outcome
        if session.writer.is_busy:
            if len(watch.received) > 1:
                return Outcome.cancelled_by(watch.received[1])
            error = CheckpointError(f"the last checkpoint was not written within {LAST_WRITE_S:g} s")
            return Outcome("failed", error.code, error=error)
        if not session.shared.finite():  # finite gradients can still overflow a weight, at a far too high rate
            return outcome if outcome.state == "failed" else Outcome("failed", DIVERGED.code, error=DIVERGED)
        if outcome.state == "failed" and session.queue.updates and session.is_worth_a_checkpoint:
            session.quieten(time.monotonic())
            session.checkpoint(time.monotonic())
            session.take_written(session.writer.wait(LAST_WRITE_S))
        if session.unwritten is not None and outcome.state in ("succeeded", "stopped"):
            return Outcome("failed", session.unwritten.code, error=session.unwritten)
        return outcome

    def _set_up(self) -> Callable[[int], tuple[Setup, list[int]]]:
        kit = cloudpickle.dumps(self.kit)
        regions = {**self.regions, "kit": blob("kit", kit), "structure": blob("structure", self.structure)}

        def set_up(worker: int) -> tuple[Setup, list[int]]:
            setup = Setup(
                worker=worker,
                procs=self.plan.procs,
                threads=self.plan.threads,
                regions=tuple((name, region.nbytes) for name, region in regions.items()),
                structure_nbytes=len(self.structure),
                kit_nbytes=len(kit),
                sys_path=self.request.user_folders,
            )
            return setup, [region.descriptor for region in regions.values()]

        return set_up


def _plan(job: Job) -> Plan:
    resolve(job.train.device)
    return make_plan(job.train.procs, job.train.threads, cores=host.usable_cores(), environ=os.environ)


def _wants_progress(request: Request) -> bool:
    if request.progress is not None:
        return request.progress
    setting = request.job.log.progress
    return sys.stderr is not None and sys.stderr.isatty() if setting == "auto" else bool(setting)
