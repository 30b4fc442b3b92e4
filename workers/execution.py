"""A planned job, from its objects to its summary.

    build -> shared memory -> (resume) -> supervisor -> last checkpoint -> summary.json

A failed training has a summary, too."""

import os
import select
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import cloudpickle

from hogwild import host
from hogwild.cluster.launch import Launch
from hogwild.cluster.node_queue import NodeQueue
from hogwild.cluster.shares import Shares
from hogwild.config.load import Job
from hogwild.errors import CheckpointError, Diverged, HogwildError, UserCodeError
from hogwild.feeds.materialise import InTurn
from hogwild.host.background_thread import Background
from hogwild.job.build import arrange, planned_updates, state_of
from hogwild.job.checks import directions
from hogwild.job.parts import Parts
from hogwild.monitoring.profile_report import clear, report
from hogwild.monitoring.run_status import EXIT_STATUS
from hogwild.monitoring.tensorboard import check_wanted
from hogwild.optimizers import FTRL
from hogwild.parameters.anchor import Anchor
from hogwild.parameters.shared_model import SharedModel
from hogwild.planning.cpu_plan import Plan
from hogwild.planning.device_placement import on_cpu, with_devices
from hogwild.scheduling.work_queue import Limits, WorkQueue
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Scoreboard
from hogwild.storage.run_directory import LIBRARY, RunDir, checkpoints_beside
from hogwild.training.without_dynamo import sparing_the_compiler
from hogwild.user_code import raised_text
from workers.child.spec import WorkerSpec
from workers.loading.loading import Loading
from workers.messages import Setup
from workers.prepare import (
    check_cluster,
    check_lanes,
    check_memory,
    covered_items,
    grid_before,
    ring_state,
    share_data,
    training_queue,
)
from workers.processes.gpu_owner import holder_for
from workers.processes.group import ProcessGroup
from workers.request import Request
from workers.session.checkpointing import LAST_WRITE_S, Saving
from workers.session.evaluation import SLICE_BATCHES, Evaluating
from workers.session.journal import Journal, curves_for
from workers.session.node import Committed, Node
from workers.session.outcome import Clock, Outcome
from workers.session.resume import check_changes, record, restore
from workers.session.rollback import give_up
from workers.session.run_files import write_descriptions
from workers.session.session import Session
from workers.session.startup import StartUp
from workers.session.summary import summarise
from workers.supervision.inline import Inline
from workers.supervision.joining import join
from workers.supervision.supervisor import Supervisor

WRITE_LOOK_S = 0.1  # between two checks for a second signal while the last checkpoint is written
LET_GO_S = 30.0  # how long a cancelled call waits for a thread that uses the caller's model
DIVERGED = Diverged(
    "the job has diverged: parameters are NaN or infinite at its end. Lower the learning rate or set "
    "train.grad_clip; the checkpoints written before are finite"
)


@dataclass(frozen=True, slots=True)
class Result:
    summary: dict[str, Any]
    shared: SharedModel
    error: BaseException | None


def _checked(request: Request, planned: Plan) -> Plan:
    """Return the plan with its devices. Raises what can be known before anything is built."""
    planned = with_devices(planned, request.job)
    check_wanted(request.job.log.tensorboard)
    check_lanes(request.job, planned)
    return planned


@sparing_the_compiler()
def dry(request: Request, planned: Plan, startup: StartUp) -> dict[str, Any]:
    """Do everything up to starting workers (`--dry-run`); leave nothing behind. Return what would be done."""
    planned = _checked(request, planned)
    startup.phase("building model and data")
    with host.raising_on_signals():
        parts = request.make_parts(InTurn(request.job.seed))
    planned = on_cpu(planned, parts.keeps_to_cpu)
    needed = check_memory(request.job, parts, planned)
    answer = {
        "state": "dry-run",
        "plan": planned.reason,
        "warning": planned.warning,
        "procs": planned.procs,
        "threads": planned.threads,
        "samples": parts.train.plan.samples,
        "batches": parts.train.plan.batches,
        "planned_updates": planned_updates(request.job, parts.train.plan) or None,
        "shared_memory_bytes": needed,
        "notes": parts.notes,
    }
    return {key: value for key, value in answer.items() if value not in ("", [])}


@sparing_the_compiler()
def run(request: Request, planned: Plan, group: ProcessGroup, startup: StartUp) -> Result:
    """Train a job in the run directory that `startup` holds; it stays once a worker was told of it."""
    clock = Clock(request.began_s, imported_s=time.monotonic())
    planned = _checked(request, planned)
    rundir = startup.rundir
    shared: SharedModel | None = None
    startup.phase("building model and data")
    try:
        with host.raising_on_signals() as stops:
            if request.resume:
                check_changes(rundir, request.job)
            loading = Loading(group, request.job, rundir.path.parent, startup)
            parts = request.make_parts(loading)
            planned = on_cpu(planned, parts.keeps_to_cpu)
            check_memory(request.job, parts, planned)
            if request.launch is not None:
                check_cluster(parts, request.launch.world)
            group.raise_file_limit(planned)
            clock.built_s = time.monotonic()
            stops.look()
            startup.phase("sharing model and data")
            shared = SharedModel.build(
                parts.model,
                parts.loss,
                parts.optimizer,
                procs=planned.rows,
                state=state_of(request.job, parts, planned.placement),
                memory_format=parts.found.memory_format,
                late=parts.late,
                buffer_rules=parts.found.buffer_rules,
            )
            prepared = _Prepared.lay_out(shared, request, planned, parts, rundir, clock, startup)
            stops.hand_over()
            startup.begins()
            return prepared.train(stops, group)  # `train` watches signals itself
    except BaseException:
        if shared is not None:  # give the caller his model back
            shared.release()
        raise


@dataclass(slots=True)
class _Prepared:
    """A job with shared memory laid out, whose workers may start."""

    request: Request
    plan: Plan
    session: Session
    startup: StartUp
    worker_spec: WorkerSpec
    regions: dict[str, Region]
    structure: bytes

    @classmethod
    def lay_out(
        cls,
        shared: SharedModel,
        request: Request,
        planned: Plan,
        parts: Parts,
        rundir: RunDir,
        clock: Clock,
        startup: StartUp,
    ) -> "_Prepared":
        """Lay out a job around its model in shared memory. Raises what a resume raises."""
        job, rows = request.job, planned.rows
        # The order of the data that keeps workers apart.
        nodes = request.launch.world if request.launch is not None else 1
        arrange(job, parts, planned.procs and rows * nodes, grid_before(rundir) if request.resume else None)
        window = request.profile
        profile = None if window is None else (window.start, window.stop, str(rundir.profile))
        regions, worker_spec = share_data(
            job, parts, shared.uses_channels_last, planned.procs and rows, planned.devices, profile
        )
        ids = count(1)
        board = Scoreboard.allocate(rows)
        journal = Journal(rundir, job, startup, curves_for(job, rundir, shared), request.callbacks)
        streamed = ring_state(job, parts, rows, regions, worker_spec)
        kind = WorkQueue if request.launch is None else NodeQueue
        queue, pause_task = (
            training_queue(job, parts, max(1, planned.procs), ids, streamed, kind),
            Background("pause_task"),
        )
        node = None if request.launch is None else _node_of(request.launch, job, parts, shared, queue)
        ledger = queue if node is None else node.committed
        higher = directions(job.evaluate, parts.panel) if parts.val else {}
        session = Session(
            job=job,
            parts=parts,
            plan=planned,
            shared=shared,
            board=board,
            queue=queue,
            rundir=rundir,
            journal=journal,
            saving=Saving(job.checkpoint, shared, ledger, rundir, journal, Background("checkpoint"), pause_task),
            evaluating=Evaluating(
                settings=job.evaluate,
                plan=parts.val.plan if parts.val else None,
                panel=parts.panel,
                higher=higher,
                queue=ledger,
                board=board,
                limits=Limits(rows, max_attempts=job.supervise.max_item_attempts, max_item_updates=SLICE_BATCHES),
                ids=ids,
                covered=covered_items(parts, regions),
            ),
            pause_task=pause_task,
            clock=clock,
            ids=ids,
            streamed=streamed,
            node=node,
        )
        # A node of a cluster may be new here, beside nodes that have written checkpoints.
        goes_on = request.resume is not None or (node is not None and bool(checkpoints_beside(rundir.path)))
        if goes_on:
            startup.phase("loading the checkpoint")
        restored = restore(session) if goes_on else None  # before anything is written
        _ = parts.identity  # its errors come before the start, not at the first checkpoint
        write_descriptions(request, planned, parts, rundir)  # first: after it, a killed job can be resumed
        rundir.make_folders()
        if window is not None:
            clear(rundir.profile)
        if restored is not None:
            record(session, restored)
        regions = {**shared.regions, **regions, "scoreboard": board.region}
        return cls(request, planned, session, startup, worker_spec, regions, shared.structure)

    def train(self, stops: host.StopSignals, group: ProcessGroup) -> Result:
        session = self.session
        session.clock.shared_s = time.monotonic()
        self.startup.phase("starting workers")
        with host.SignalWatch(raises_second=self.plan.procs == 0, before=stops) as watch:
            session.journal.event("start", pid=os.getpid(), plan=self.plan.reason)
            session.journal.show_message(f"run directory {session.rundir.path}\nplan: {self.plan.reason}")
            for note in [self.plan.warning, *session.parts.notes]:
                if note:
                    session.journal.show_message(f"note: {note}")
            session.journal.update(session.parts.choice, session.parts.meetings)
            group.tell(session.journal)
            outcome = self._guard(partial(self._train, group, watch))
            if self.worker_spec.compute.compile_scratch is not None:  # left by killed workers
                shutil.rmtree(self.worker_spec.compute.compile_scratch, ignore_errors=True)
            watch.raises_second = False  # from here on we poll for the second signal
            outcome = self._heed_callbacks(self._finish(outcome, watch), watch)
            if outcome.state == "succeeded" and session.queue.ledger.skipped:
                group.warn(session.about_skipped, "supervise.on_nan")
            summary = summarise(session, outcome, time.monotonic(), [*group.warnings.values()])
            if not session.rundir.try_write_json("summary.json", summary):
                session.journal.show_message("warning: summary.json cannot be written (disk full?)")
            if self.request.profile is not None and outcome.state != "cancelled":
                session.journal.show_message(report(session.rundir.profile, self.plan.rows, self.request.profile))
            session.journal.staleness(session.queue.updates, session.board.staleness_counts().sum(axis=0))
            longest = {"loop_longest_ms": round(1e3 * session.clock.longest_turn_s, 1)} if self.plan.procs else {}
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
            session.saving.writer.close()
        return Result(summary, session.shared, outcome.error)

    def _train(self, group: ProcessGroup, watch: host.SignalWatch) -> Outcome:
        session = self.session
        if not self.plan.procs:
            return Inline(session, watch, self.worker_spec, self.structure, self.regions).run()
        session.holder = holder_for(group, self.plan, session.shared)
        try:
            compute = replace(self.worker_spec.compute, device_handles=session.holder.handles)
            self.worker_spec = replace(self.worker_spec, compute=compute)
            rounds = None
            if session.node is not None:
                joined = join(session, session.node, group, watch)
                if isinstance(joined, Outcome):
                    return joined
                rounds = joined
            return Supervisor(session, watch, self._set_up(), group, rounds).run()
        finally:
            session.holder.close()

    def _guard(self, train: Callable[[], Outcome]) -> Outcome:
        """Turn any exception (ours, the user's in `procs: 0`, a bug) into an outcome: there is always a summary."""
        try:
            return train()
        except HogwildError as error:
            return Outcome("failed", error.code, error=error)
        except host.Interrupted as signal:  # `procs: 0`: a second signal
            return Outcome.cancelled_by(signal.number)
        except (Exception, SystemExit) as error:  # `procs: 0`: user code may call sys.exit
            import traceback

            text = "".join(traceback.format_exception(error))
            wrapped = UserCodeError(f"{raised_text(error)}\n\n{text.rstrip()}")
            wrapped.__cause__ = error
            return Outcome("failed", wrapped.code, error=wrapped)

    def _finish(self, outcome: Outcome, watch: host.SignalWatch) -> Outcome:
        """Write the last checkpoint: the one in flight, or the state of a failed job. There is a summary whatever a
        thread raises here, including user code in a model's own state."""
        outcome = self._wait_for_threads(outcome, watch)
        outcome = self._after(outcome, partial(self._save_last, outcome))
        if isinstance(outcome.error, Diverged):
            outcome = self._after(outcome, partial(give_up, self.session))
            outcome = self._wait_for_threads(outcome, watch)
        if outcome.state == "cancelled" and self.request.caller == LIBRARY:
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
        return Outcome("failed", error.code, error=error)

    def _save_last(self, outcome: Outcome) -> Outcome:
        """Save the last checkpoint; none for a diverged run or inside a rollback, as the earlier ones are better."""
        session = self.session
        if outcome.state == "cancelled" or session.is_waited_for or session.divergence.is_going_back:
            return outcome
        if session.node is not None:  # what this node has done since the last round is in no ledger
            session.node.anchor.take()
            session.node.end()
        if not session.shared.finite():  # finite gradients can overflow a weight if the learning rate is far too high
            return outcome if outcome.state == "failed" else Outcome("failed", DIVERGED.code, error=DIVERGED)
        is_lost = isinstance(outcome.error, Diverged)
        if outcome.state == "failed" and not is_lost and session.queue.updates and session.saving.is_worth_it:
            session.merge_buffers(time.monotonic())
            session.pause_task.wait()
            session.start_checkpoint(time.monotonic())
            session.wait(LAST_WRITE_S)
        unwritten = session.saving.unwritten
        if unwritten is not None and outcome.state in ("succeeded", "stopped"):
            return Outcome("failed", unwritten.code, error=unwritten)
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
        callbacks = self.request.callbacks
        delivered = callbacks.delivered()
        while not delivered.wait(WRITE_LOOK_S) and len(watch.received) < 2:
            pass
        error = callbacks.error
        if error is None or outcome.state not in ("succeeded", "stopped"):
            return outcome
        return Outcome("failed", error.code, error=error)

    def _set_up(self) -> Callable[[int], tuple[Setup, Mapping[str, Region]]]:
        worker_spec = cloudpickle.dumps(self.worker_spec)
        regions = {
            **self.regions,
            "worker_spec": Region.of_bytes("worker_spec", worker_spec),
            "structure": Region.of_bytes("structure", self.structure),
        }

        def set_up(worker: int) -> tuple[Setup, Mapping[str, Region]]:
            setup = Setup(
                worker=worker,
                rows=self.plan.rows,
                threads=self.plan.threads,
                flush_denormal=self.request.job.train.flush_denormal,
                structure_nbytes=len(self.structure),
                spec_nbytes=len(worker_spec),
                cores=self.plan.cores[worker] if self.plan.cores else (),
            )
            return setup, regions

        return set_up


def _node_of(launch: Launch, job: Job, parts: Parts, shared: SharedModel, queue: WorkQueue) -> Node:
    """Return this node of a cluster, which has not yet heard of the others."""
    assert isinstance(queue, NodeQueue)
    update = parts.choice.update
    rows_of = {name for side in update.sides for name in side.params} if update is not None else set[str]()
    if type(parts.optimizer) is FTRL:  # momentum would move weights that every node holds at 0
        rows_of = {slot.name for slot in shared.layout.flats.params}
    buffered = shared.layout.buffers, shared.layout.workers
    anchor = Anchor(shared.layout.flats, shared.regions, job.cluster.outer, rows_of, buffered, shared.sums())
    shares = Shares(queue.plan, queue.limits)
    return Node(launch, anchor, shares, queue, Committed(shares))
