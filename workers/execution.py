"""A planned job, to its summary; here the steps follow each other.

    read -> the plan is completed -> share -> (resume) -> run: supervisor -> last checkpoint -> summary.json

A failed training has a summary, too."""

import json
import os
import select
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from hogwild import by_value, host, user_code
from hogwild.cluster.shares import NodeQueue, Shares
from hogwild.errors import CheckpointError, Diverged, HogwildError, UserCodeError
from hogwild.feeds.drawn_order import allocate_places
from hogwild.feeds.packed import Spec
from hogwild.feeds.resident import ResidentData
from hogwild.feeds.ring import Ring
from hogwild.feeds.row_reader import InTurn
from hogwild.host.background_thread import Background
from hogwild.job.build import schedule_of
from hogwild.job.facts import complete
from hogwild.job.initial_values import rows_known_to, texts_known_to
from hogwild.job.parts import Parts, directions
from hogwild.job.update_choice import ConflictEstimate, estimate_conflicts
from hogwild.monitoring.profile_report import Window, clear, report
from hogwild.monitoring.run_status import EXIT_STATUS
from hogwild.monitoring.tensorboard import check_wanted
from hogwild.nn import cut_to_use
from hogwild.optimizers import FTRL
from hogwild.parameters.anchor import Anchor
from hogwild.parameters.shared_model import SharedModel
from hogwild.planning.device_placement import Devices, placed
from hogwild.planning.job_plan import SHARED, JobPlan, grid_of
from hogwild.scheduling.batch_plan import EpochPlan
from hogwild.scheduling.grid_plan import GridPlan
from hogwild.scheduling.schedules import schedule_for
from hogwild.scheduling.work_queue import Limits, WorkQueue
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Scoreboard
from hogwild.storage.artifact_cache import new_scratch
from hogwild.storage.run_directory import ENV, KNOWN, LIBRARY, NAMES, TEXTS, RunDir, checkpoints_beside
from hogwild.training.torch_settings import sparing_the_compiler
from hogwild.user_code import raised_text
from hogwild.version import __version__
from hogwild.workers.child.spec import Compute, DataSide, DataSpec, Rules, WorkerSpec
from hogwild.workers.loading.loading import Loading
from hogwild.workers.messages import Setup
from hogwild.workers.processes.gpu_owner import GpuOwner
from hogwild.workers.processes.group import ProcessGroup
from hogwild.workers.session.checkpointing import LAST_WRITE_S, Saving
from hogwild.workers.session.epoch_draws import EpochDraws
from hogwild.workers.session.evaluation import SLICE_BATCHES, Evaluating
from hogwild.workers.session.journal import Journal, curves_for
from hogwild.workers.session.node import Committed, Node
from hogwild.workers.session.outcome import Clock, Outcome
from hogwild.workers.session.progress import summarise
from hogwild.workers.session.resume import check_changes, give_up, record, restore, restore_best
from hogwild.workers.session.ring_state import RingState
from hogwild.workers.session.session import Session
from hogwild.workers.session.startup import Description, StartUp
from hogwild.workers.supervision.rounds import join
from hogwild.workers.supervision.supervisor import Supervisor

WRITE_LOOK_S = 0.1  # between two checks for a second signal while the last checkpoint is written
LET_GO_S = 30.0  # how long a cancelled call waits for a thread that uses the caller's model
DIVERGED = Diverged(
    "the job has diverged: parameters are NaN or infinite at its end. Lower the learning rate or set "
    "train.grad_clip; the checkpoints written before are finite"
)
OF_OBJECTS = (
    f"# Written by a call of {LIBRARY}: class paths name its objects; their arguments are not recorded.\n"
    "# Only the same call can resume it, with resume=.\n"
)


@dataclass(frozen=True, slots=True)
class Result:
    summary: dict[str, Any]
    shared: SharedModel
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Shared:
    """A job in shared memory. `regions`: everything that a worker maps, by name."""

    model: SharedModel
    board: Scoreboard
    regions: Mapping[str, Region]
    worker_spec: WorkerSpec
    conflicts: ConflictEstimate

    @property
    def epoch(self) -> EpochPlan:
        """The division of the training data into batches, as they lie."""
        return self.worker_spec.data.train.plan

    @property
    def covered(self) -> np.ndarray:
        """Bytes (metrics, items) that mark the items which metrics of coverage count."""
        region, shape = self.regions.get("data-covered"), self.worker_spec.data.covered
        return np.zeros(shape, np.uint8) if region is None else region.array("u1", shape)


def _placed(plan: JobPlan) -> JobPlan:
    """Return the plan with its devices. Raises what can be known before anything is built."""
    plan = placed(plan, Devices.of(plan.job.train))
    check_wanted(plan.job.log.tensorboard)
    return plan


@sparing_the_compiler()
def dry(description: Description, plan: JobPlan, startup: StartUp) -> dict[str, Any]:
    """Do everything up to starting workers (`--dry-run`); leave nothing behind. Return what would be done."""
    plan = _placed(plan)
    startup.phase("building model and data")
    with host.raising_on_signals():
        parts = description.read(plan, InTurn(plan.seed))
    plan = complete(plan, parts, must_fit=True)
    size = {"samples": parts.train.plan.samples, "batches": parts.train.plan.batches}
    answer = {"state": "dry-run", "warning": plan.warning, **size, **plan.decisions(), "notes": parts.notes}
    return {key: value for key, value in answer.items() if value not in ("", [])}


@sparing_the_compiler()
def run(description: Description, plan: JobPlan, group: ProcessGroup, startup: StartUp) -> Result:
    """Train a job in the run directory that `startup` holds; it stays once a worker was told of it."""
    clock = Clock(description.began_s, imported_s=time.monotonic())
    plan, rundir = _placed(plan), startup.rundir
    shared: Shared | None = None
    startup.phase("building model and data")
    try:
        with host.raising_on_signals() as stops:
            if plan.is_resumed:
                check_changes(rundir, plan.job)
            parts = description.read(plan, Loading(group, plan.job, rundir.path.parent, startup))
            before = grid_of(rundir.read_json(ENV) or {}) if plan.is_resumed else None
            plan = complete(plan, parts, before, must_fit=True)
            group.raise_file_limit(plan)
            clock.built_s = time.monotonic()
            stops.look()
            startup.phase("sharing model and data")
            window = description.profile
            shared = share(plan, parts, None if window is None else (window, rundir.profile))
            session = _session(description, plan, parts, shared, clock, startup)
            stops.hand_over()
            startup.begins()
            return _Execution(description, session, shared, group).train(stops)  # it watches signals itself
    except BaseException:
        if shared is not None:  # give the caller his model back
            shared.model.release()
        raise


def _session(
    description: Description, plan: JobPlan, parts: Parts, shared: Shared, clock: Clock, startup: StartUp
) -> Session:
    """Return the state of the job, restored from a checkpoint if it goes on, once its run directory describes it.
    Raises what a resume raises."""
    job, rundir, launch = plan.job, startup.rundir, description.launch
    ids, pause_task, limits, streamed = count(1), Background("pause_task"), plan.limits(), None
    draws = EpochDraws.of(parts.train.sampling, shared.regions, in_thread=plan.procs > 0)
    bounds = None if draws is None else draws.bounds
    if parts.train.streamed is not None and plan.ring is not None:
        stream, region = parts.train.streamed.stream, shared.regions["data-train"]
        streamed = RingState.of(plan.ring, stream, region, job.train, in_order=plan.rows < 2, bounds=bounds)
    schedule = streamed.schedule if streamed is not None else schedule_for(shared.epoch, limits, plan.seed, bounds)
    kind = WorkQueue if launch is None else NodeQueue
    queue = kind(shared.epoch, limits, ids=ids, schedule=schedule)
    node: Node | None = None  # it has not yet heard of the others
    if launch is not None:
        assert isinstance(queue, NodeQueue)
        update, layout = parts.choice.update, shared.model.layout
        rows_of = {name for side in update.sides for name in side.params} if update is not None else set[str]()
        if type(parts.optimizer) is FTRL:  # momentum would move weights that every node holds at 0
            rows_of = {slot.name for slot in layout.flats.params}
        of_buffers = layout.buffers, layout.workers
        outer, sums = job.cluster.outer, shared.model.sums()
        anchor = Anchor(layout.flats, shared.model.regions, outer, rows_of, of_buffers, sums)
        shares = Shares(queue.plan, queue.limits)
        node = Node(launch, anchor, shares, queue, Committed(shares))
    ledger = queue if node is None else node.committed
    journal = Journal(rundir, job, startup, curves_for(job, rundir, shared.model), description.callbacks)
    session = Session(
        plan=plan,
        parts=parts,
        shared=shared.model,
        board=shared.board,
        queue=queue,
        rundir=rundir,
        journal=journal,
        saving=Saving(job.checkpoint, shared.model, ledger, rundir, journal, Background("checkpoint"), pause_task),
        evaluating=Evaluating(
            settings=job.evaluate,
            plan=parts.val.plan if parts.val else None,
            panel=parts.panel,
            higher=directions(job.evaluate, parts.panel) if parts.val else {},
            queue=ledger,
            board=shared.board,
            limits=Limits(plan.rows, max_attempts=limits.max_attempts, max_item_updates=SLICE_BATCHES),
            ids=ids,
            covered=shared.covered,
        ),
        pause_task=pause_task,
        clock=clock,
        ids=ids,
        streamed=streamed,
        node=node,
        draws=draws,
    )
    # A node of a cluster may be new here, beside nodes that have written checkpoints.
    goes_on = plan.is_resumed or (node is not None and bool(checkpoints_beside(rundir.path)))
    if goes_on:
        startup.phase("loading the checkpoint")
    restored = restore(session) if goes_on else None  # before anything is written
    _ = parts.identity  # its errors come before the start, not at the first checkpoint
    _write_descriptions(description, plan, parts, rundir)  # first: after it, a killed job can be resumed
    rundir.make_folders()
    if description.profile is not None:
        clear(rundir.profile)
    if restored is not None:
        record(session, restored)
    clock.shared_s = time.monotonic()
    startup.phase("starting workers")
    return session


def _write_descriptions(description: Description, plan: JobPlan, parts: Parts, rundir: RunDir) -> None:
    """Write env.json, resolved.yaml and job.yaml; for a resume, only once nothing can refuse it. resolved.yaml makes
    the folder a run, so everything else that a resume needs is written first: a job killed earlier leaves a folder that
    counts as new. All is durable before the first checkpoint, which would be useless without it."""
    resolved = (OF_OBJECTS if description.caller == LIBRARY else "") + plan.job.to_yaml()
    with cut_to_use(parts.model):
        parameters = sum(parameter.numel() for parameter in parts.model.parameters())
    environment = {
        "hogwild": __version__,
        "caller": description.caller,
        "torch": torch.__version__,
        "host": host.describe_host(),
        "plan": plan.record(),
        "data_dir": str(description.data_dir) if description.data_dir else None,
        "user_folders": list(description.user_folders),
        "data_folders": list(map(str, user_code.data_folders())),
        "job_file": str(description.job_file) if description.job_file else None,
        "argv": sys.argv,
        "pid": os.getpid(),
        "parameters": parameters,
    }
    rundir.write_json("env.json", environment, sync=True)
    if parts.names is not None:
        names = json.dumps(parts.names, allow_nan=False)  # perhaps millions: no indent
        rundir.write_text(NAMES, f"{names}\n", sync=True)
    else:  # left by a job that was killed before there was a run
        (rundir.path / NAMES).unlink(missing_ok=True)
    if not plan.is_resumed and parts.has_named_rows and (texts := texts_known_to(plan.job)):
        rundir.write_bytes(TEXTS, texts)  # before a loader opens it
    # A resume keeps the file: the run that was continued may be gone.
    if not (plan.is_resumed and (rundir.path / KNOWN).exists()):
        known = None if parts.known is None else parts.known.result()
        if known is not None:
            rundir.write_bytes(KNOWN, rows_known_to(plan.job, known, is_resumed=plan.is_resumed).content())
        else:
            (rundir.path / KNOWN).unlink(missing_ok=True)
    parts.known = None
    rundir.write_text("resolved.yaml", resolved, sync=True)
    if not plan.is_resumed or not rundir.job_file.exists():
        rundir.write_text("job.yaml", description.job_text or resolved, sync=True)


@dataclass(frozen=True, slots=True)
class _Execution:
    """The last step: a job in shared memory, from its first worker to its summary."""

    description: Description
    session: Session
    shared: Shared
    group: ProcessGroup

    def train(self, stops: host.StopSignals) -> Result:
        session, group, plan = self.session, self.group, self.session.plan
        with host.SignalWatch(raises_second=plan.procs == 0, before=stops) as watch:
            session.journal.event("start", pid=os.getpid(), plan=plan.reason)
            session.journal.show_message(f"run directory {session.rundir.path}\nplan: {plan.reason}")
            for note in [plan.warning, *session.parts.notes]:
                if note:
                    session.journal.show_message(f"note: {note}")
            session.journal.update(session.parts.choice, self.shared.conflicts)
            group.tell(session.journal)
            outcome = self._guard(partial(self._train, watch))
            scratch = self.shared.worker_spec.compute.compile_scratch
            if scratch is not None:  # left by killed workers
                shutil.rmtree(scratch, ignore_errors=True)
            watch.raises_second = False  # from here on we poll for the second signal
            outcome = self._heed_callbacks(self._finish(outcome, watch), watch)
            if outcome.state == "succeeded" and session.queue.ledger.skipped:
                group.warn(session.about_skipped, "supervise.on_nan")
            summary = summarise(session, outcome, time.monotonic(), [*group.warnings.values()])
            if not session.rundir.try_write_json("summary.json", summary):
                session.journal.show_message("warning: summary.json cannot be written (disk full?)")
            if self.description.profile is not None and outcome.state != "cancelled":
                session.journal.show_message(report(session.rundir.profile, plan.rows, self.description.profile))
            session.journal.staleness(session.queue.updates, session.board.staleness_counts().sum(axis=0))
            longest = {"loop_longest_ms": round(1e3 * session.clock.longest_turn_s, 1)} if plan.procs else {}
            session.journal.event("end", state=outcome.state, reason=outcome.reason, **longest)
            names = ("name", "updates", "samples", "wall_s", "restarts", "rollbacks", "metrics", "train_loss")
            known = {name: summary[name] for name in names}
            known |= {"epoch": session.queue.epoch, "epochs": session.queue.limits.epochs, "best": session.best}
            known |= {"planned_updates": session.planned_updates, "progress": session.progress}
            session.journal.last_status(
                outcome.state,
                summary["samples_per_s"],
                known | {"position": session.epochs_done},
                **{key: summary[key] for key in ("reason", "loader_deaths", "lane_restarts")},
                error=summary.get("error"),
                error_code=summary.get("error_code"),
                exit_status=summary.get("exit_status", EXIT_STATUS[outcome.state]),
            )
            session.journal.close()
            session.pause_task.close()
            session.rows.close()
            session.saving.writer.close()
            if session.draws is not None:
                session.draws.thread.close()
            if session.node is not None:
                session.node.keep_store()
        return Result(summary, session.shared, outcome.error)

    def _train(self, watch: host.SignalWatch) -> Outcome:
        session, plan, shared = self.session, self.session.plan, self.shared
        if not plan.procs:
            from hogwild.workers.supervision.inline import Inline  # with all that workers import

            return Inline(session, watch, shared.worker_spec, shared.model.structure, shared.regions).run()
        worker_spec, rounds = shared.worker_spec, None
        if plan.placement == SHARED:
            session.owner = GpuOwner(self.group, plan.devices[0], shared.model)
            compute = replace(worker_spec.compute, device_handles=session.owner.handles)
            worker_spec = replace(worker_spec, compute=compute)
        try:
            if session.node is not None:
                joined = join(session, session.node, self.group, watch)
                if isinstance(joined, Outcome):
                    return joined
                rounds = joined
            content, structure = by_value.dumps(worker_spec), shared.model.structure
            regions = {
                **shared.regions,
                "worker_spec": Region.of_bytes("worker_spec", content),
                "structure": Region.of_bytes("structure", structure),
            }

            def set_up(worker: int) -> tuple[Setup, Mapping[str, Region]]:
                """Return the set-up of a worker, and what it maps."""
                setup = Setup(
                    worker=worker,
                    rows=plan.rows,
                    threads=plan.threads,
                    flush_denormal=plan.job.train.flush_denormal,
                    structure_nbytes=len(structure),
                    cores=plan.cores[worker] if plan.cores else (),
                )
                return setup, regions

            return Supervisor(session, watch, set_up, self.group, rounds).run()
        finally:
            if session.owner is not None:
                session.owner.close()

    def _guard(self, train: Callable[[], Outcome]) -> Outcome:
        """Turn any exception (ours, the user's in `procs: 0`, a bug) into an outcome: there is always a summary."""
        try:
            return train()
        except HogwildError as error:
            return Outcome.failed(error)
        except host.Interrupted as signal:  # `procs: 0`: a second signal
            return Outcome.cancelled_by(signal.number)
        except (Exception, SystemExit) as error:  # `procs: 0`: user code may call sys.exit
            import traceback

            text = "".join(traceback.format_exception(error))
            wrapped = UserCodeError(f"{raised_text(error)}\n\n{text.rstrip()}")
            wrapped.__cause__ = error
            return Outcome.failed(wrapped)

    def _finish(self, outcome: Outcome, watch: host.SignalWatch) -> Outcome:
        """Write the last checkpoint: the one in flight, or the state of a failed job. There is a summary even if a
        thread raises here, including user code in a model's own state."""
        outcome = self._wait_for_threads(outcome, watch)
        outcome = self._after(outcome, partial(self._save_last, outcome))
        if isinstance(outcome.error, Diverged):
            outcome = self._after(outcome, partial(give_up, self.session))
            outcome = self._wait_for_threads(outcome, watch)
        if outcome.state == "succeeded":
            outcome = self._after(outcome, partial(restore_best, self.session))
        if outcome.state == "cancelled" and self.description.caller == LIBRARY:
            self._let_go(outcome, watch)
        return outcome

    def _after(self, outcome: Outcome, step: Callable[[], Outcome | None]) -> Outcome:
        """Run a last step and return the outcome. An error fails a job that went well; otherwise it is logged only."""
        after = self._guard(lambda: step() or outcome)
        if after is outcome or outcome.state in ("succeeded", "stopped"):
            return after
        self.session.journal.show_message(f"warning: at the end of the job: {after.error}")
        return outcome

    def _wait_for_threads(self, outcome: Outcome, watch: host.SignalWatch) -> Outcome:
        """Wait for threads that merge, copy and write, until a timeout or a second signal."""
        session, deadline = self.session, time.monotonic() + LAST_WRITE_S
        while session.is_waited_for and len(watch.received) < 2 and time.monotonic() < deadline:
            outcome = self._after(outcome, partial(session.wait, WRITE_LOOK_S))
        if outcome.state == "cancelled" or not session.is_waited_for:
            return outcome
        if len(watch.received) > 1:
            return Outcome.cancelled_by(watch.received[1])
        error = CheckpointError(
            f"the last checkpoint was not written within {LAST_WRITE_S:g} s", code="checkpoint/slow-disk"
        )
        return Outcome.failed(error)

    def _save_last(self, outcome: Outcome) -> Outcome:
        """Save the last checkpoint; none for a diverged run or inside a rollback, as the earlier ones are better."""
        session = self.session
        if outcome.state == "cancelled" or session.is_waited_for or session.divergence.is_going_back:
            return outcome
        if session.node is not None:  # what this node has done since the last round is in no ledger
            session.node.anchor.take()
            session.node.end()
        if not session.shared.finite():  # finite gradients can overflow a weight if the learning rate is far too high
            return outcome if outcome.state == "failed" else Outcome.failed(DIVERGED)
        is_lost = isinstance(outcome.error, Diverged)
        if outcome.state == "failed" and not is_lost and session.queue.updates and session.saving.is_worth_it:
            session.merge_buffers(time.monotonic())
            session.pause_task.wait()
            session.start_checkpoint(time.monotonic())
            session.wait(LAST_WRITE_S)
        unwritten = session.saving.unwritten
        if unwritten is not None and outcome.state in ("succeeded", "stopped"):
            return Outcome.failed(unwritten)
        return outcome

    def _let_go(self, outcome: Outcome, watch: host.SignalWatch) -> None:
        """Wait for a thread that still copies or rolls back the caller's model, so that he can use it again. Limited in
        time and by a third signal: user code in a model's own state may never end."""
        session, deadline = self.session, time.monotonic() + LET_GO_S
        is_done, poll = not session.pause_task.is_busy, select.poll()
        poll.register(session.pause_task.fileno(), select.POLLIN)
        while not is_done and len(watch.received) < 3 and time.monotonic() < deadline:
            is_done = bool(poll.poll(WRITE_LOOK_S * 1000))
        if is_done and session.divergence.is_going_back:  # but nothing may follow a copy
            self._after(outcome, session.finish_threads)

    def _heed_callbacks(self, outcome: Outcome, watch: host.SignalWatch) -> Outcome:
        """Wait until the callbacks have had all events, or for a second signal; an exception in one fails the job."""
        callbacks = self.description.callbacks
        delivered = callbacks.delivered()
        while not delivered.wait(WRITE_LOOK_S) and len(watch.received) < 2:
            pass
        error = callbacks.error
        if error is None or outcome.state not in ("succeeded", "stopped"):
            return outcome
        return Outcome.failed(error)


# ---- model and data in shared memory, and the settings that workers get --------------------------------------------


def share(plan: JobPlan, parts: Parts, profile: tuple[Window, Path] | None = None) -> Shared:
    """Put model and data into shared memory; there the job's objects are from now on. `profile`: see `Rules`. Raises
    MemoryShortError, ModelError, OptimizerError; then the caller has his model back."""
    model = SharedModel.build(
        parts.model,
        parts.loss,
        parts.optimizer,
        procs=plan.rows,
        state=plan.state,
        memory_format=parts.found.memory_format,
        late=parts.late,
        buffer_rules=parts.found.buffer_rules,
    )
    try:
        found, epoch = _arranged(plan, parts)
        typical = parts.typical if plan.compile_key or plan.is_fused else ()  # while their tensors are there
        regions, splits = _share_data(plan, parts, epoch, model.uses_channels_last, in_order=found.grid is not None)
        worker_spec = _worker_spec(plan, parts, splits, found, profile, typical)
        board = Scoreboard.allocate(plan.rows)
    except BaseException:
        model.release()
        raise
    return Shared(model, board, {**model.regions, **regions, "scoreboard": board.region}, worker_spec, found)


def _arranged(plan: JobPlan, parts: Parts) -> tuple[ConflictEstimate, EpochPlan]:
    """Keep workers apart whose kernel writes the same rows; lay packed data out as the grid that is planned, and return
    the division of that. Raises MemoryShortError."""
    update, packed = parts.choice.update, parts.train.packed
    if update is None or packed is None:
        return ConflictEstimate(), parts.train.plan
    found = estimate_conflicts(
        update,
        parts.model,
        packed,
        writers=plan.writers,
        grid=plan.grid,
        copied=plan.copied,
        may_copy=plan.may_copy,
    )
    if found.grid is None:
        return found, parts.train.plan
    parts.train.packed = packed.copy_rows("data-train", found.grid.order())
    return found, GridPlan.of(found.grid, plan.job.data.batch_size)


def _share_data(
    plan: JobPlan, parts: Parts, epoch: EpochPlan, channels_last: bool, *, in_order: bool
) -> tuple[dict[str, Region], dict[str, DataSpec]]:
    """Put the data into shared memory; return the regions, and each data set as a worker sees it."""
    regions: dict[str, Region] = {}
    splits: dict[str, DataSpec] = {}
    for name, source in (("train", parts.train), ("val", parts.val)):
        if source is None:
            continue
        divided = epoch if name == "train" else source.plan
        ring = source.held.ring if source.held is not None else None
        if source.streamed is not None and plan.ring is not None:
            ring = Ring.allocate("data-train", plan.ring)
        if ring is not None:
            regions[f"data-{name}"] = ring.region
            splits[name] = DataSpec(ring.spec, divided, "none")
        elif source.rollout is not None:
            splits[name] = DataSpec(source.rollout, divided, "none")
        else:
            if (packed := source.packed) is not None:
                region, spec = packed.region, cast(Spec, packed.spec)
            else:
                tensors = source.tensors
                data = source.resident or ResidentData.from_tensors(
                    f"data-{name}", tensors, channels_last=channels_last
                )
                region, spec = data.region, data.fields
            regions[f"data-{name}"] = region
            splits[name] = DataSpec(spec, divided, "none" if name == "val" or in_order else plan.job.data.shuffle)
            source.tensors, source.resident, source.packed = (), None, None  # the shared copy is the only one
    if (outputs := parts.outputs) is not None:
        regions["data-outputs"] = Region.allocate("data-outputs", outputs.nbytes)
    if parts.train.sampling is not None:
        regions |= allocate_places()
    if parts.panel.coverages and parts.val is not None:
        regions["data-covered"] = Region.allocate("data-covered", parts.covered[0] * parts.covered[1])
    return regions, splits


def _worker_spec(
    plan: JobPlan,
    parts: Parts,
    splits: Mapping[str, DataSpec],
    found: ConflictEstimate,
    profile: tuple[Window, Path] | None,
    typical: Sequence[list[Any]],
) -> WorkerSpec:
    job = plan.job
    compute = Compute(
        grad_clip=job.train.grad_clip,
        loss_names=parts.found.loss_names,
        precision=job.train.precision,
        panel=parts.panel,
        inference=parts.found.infers,
        progressive=job.evaluate.progressive,
        fused=dict(found.hot) if plan.is_fused else None,
        compile=job.model.compile,
        compile_key=plan.compile_key,
        compile_scratch=new_scratch() if plan.compile_key else None,
        devices=plan.devices,
        graphs=job.train.graphs == "auto",
    )
    data = DataSide(
        train=splits["train"],
        val=splits.get("val"),
        transform=parts.transform,
        copies_slots=parts.found.writes_inputs or parts.transform is not None,
        outputs=parts.outputs,
        covered=parts.covered,
        typical=typical,
    )
    rules = Rules(
        seed=plan.seed,
        accumulate=job.train.accumulate,
        schedule=schedule_of(job, splits["train"].plan, parts.curve),
        stepped=parts.stepped if parts.stepped is not None and parts.stepped.unit != "evaluation" else None,
        fail_on_nan=job.supervise.on_nan == "fail",
        max_staleness=job.train.max_staleness,
        sync_every=job.train.sync_every,
        profile=profile,
    )
    return WorkerSpec(compute, data, rules)
