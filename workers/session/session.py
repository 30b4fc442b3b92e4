"""The state of one running job: the queue, the model, the records, and the decisions about evaluation, checkpoints and
the end. `supervisor.py` drives it with worker processes, `inline.py` inside the parent (`procs: 0`).

    due(now) returns the purpose of the next pause -> all park -> merge_buffers() -> evaluate? -> checkpoint? -> go on,
    or finish

Long work in a pause (`merge_buffers`, the copy for a checkpoint) is done by a thread, the `pause_task`;
`finish_threads` processes what threads have finished, and the driver of the session calls it every turn.

The rates of the optimizer's groups are changed by ReduceLROnPlateau after an evaluation, or by the caller, who holds
the optimizer and assigns to its groups, for instance in a callback:

    group["lr"] = … ──► look, each turn ──► the control row ──► every worker, before its next update
"""

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import torch

from hogwild import host
from hogwild.config.load import Job
from hogwild.errors import Diverged, HogwildError, TooManyQuarantined, TrainingError, UserCodeError
from hogwild.formatting import beside
from hogwild.host.background_thread import Background
from hogwild.job.parts import Parts
from hogwild.monitoring.run_status import Best
from hogwild.parameters.shared_model import SharedModel
from hogwild.planning.cpu_plan import threads_beside, used_by
from hogwild.planning.job_plan import JobPlan
from hogwild.scheduling.batch_plan import StreamPlan
from hogwild.scheduling.work_queue import Release, WorkQueue
from hogwild.shared_memory.scoreboard import MOST_RATES, Control, Scoreboard
from hogwild.storage.run_directory import RunDir
from hogwild.training import loss_scaler
from hogwild.training.torch_schedule import OF_SCHEDULERS, SteppedScheduler
from hogwild.workers.processes.gpu_owner import GpuOwner
from hogwild.workers.session.checkpointing import LAST_WRITE_S, Saving
from hogwild.workers.session.epoch_draws import EpochDraws
from hogwild.workers.session.evaluation import Evaluating
from hogwild.workers.session.journal import Journal
from hogwild.workers.session.node import Node
from hogwild.workers.session.outcome import Before, Clock, Decision, Divergence, Due, Outcome
from hogwild.workers.session.ring_state import RingState
from hogwild.workers.session.row_tables import RowTables

ASIDE = {"params", "lr", *OF_SCHEDULERS}


class Rates:
    """The groups' rates of one job; workers never write the groups that the caller sees. `stepped`: the scheduler of
    torch that the job has, if any; `is_fused`: a compiled kernel trains."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, board: Scoreboard, stepped: SteppedScheduler | None, *, is_fused: bool
    ) -> None:
        self._optimizer, self._board, self._is_fused = optimizer, board, is_fused
        self._stepped = stepped
        self._plateau = stepped if stepped is not None and stepped.unit == "evaluation" else None
        self._first = self._known = self._now()
        self._others = self._settings()

    def look(self) -> HogwildError | None:
        """Publish rates that were assigned since the last call; return an error for a change without an effect."""
        if (now := self._now()) != self._known:
            self._known = now
            if why := self._why_not():
                words = f"optimizer.param_groups: lr was assigned while the job trains, but {why}"
                return UserCodeError(words, code="train/rates")
            self._board.publish_rates([rate for rate in now if rate is not None])
        if (others := self._settings()) != self._others:
            keys = sorted({key for group in (*self._others, *others) for key in group})
            changed = [key for key in keys if [g.get(key) for g in self._others] != [g.get(key) for g in others]]
            self._others = others
            return UserCodeError(
                f"optimizer.param_groups: {', '.join(changed) or 'a group'} was changed while the job trains; workers "
                "follow only lr: set everything else before the call",
                code="train/rates",
            )
        return None

    def evaluated(self, value: float) -> list[tuple[float, float]]:
        """Step ReduceLROnPlateau with the monitored value; return the (old, new) rates of groups that it changed."""
        if self._plateau is None:
            return []
        groups = self._optimizer.param_groups
        before = [float(group["lr"]) for group in groups]
        after = [own["lr"] for own in self._plateau.look(value, before)]
        for group, rate in zip(groups, after, strict=True):
            _assign(group, rate)
        self.look()
        return [(old, new) for old, new in zip(before, after, strict=True) if old != new]

    def shown(self, epoch: int) -> float | None:
        """Return the first group's rate for the display; None where only the workers count the steps."""
        if self._stepped is not None and self._stepped.unit != "evaluation":
            return float(self._stepped.after(epoch)[0]["lr"]) if self._stepped.unit == "epoch" else None
        return self._known[0]

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: the rates that the caller began with, and those of now."""
        scheduler = self._plateau.state() if self._plateau is not None else None
        return {"first": self._first, "now": self._known, "scheduler": scheduler}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore them, after the hyper-parameters were compared."""
        for group, rate in zip(self._optimizer.param_groups, state["now"], strict=True):
            if rate is not None:
                _assign(group, rate)
        if self._plateau is not None and state["scheduler"] is not None:
            self._plateau.restore(state["scheduler"])
        self.look()

    def _why_not(self) -> str:
        if self._is_fused:
            return "the model's compiled kernel has the rates of the start: set train.update to autograd"
        if self._stepped is not None and self._plateau is None:
            return f"lr_schedule ({self._stepped.name}) sets it: remove one of the two"
        if None in self._known or len(self._known) > MOST_RATES:
            return f"workers follow the rates of at most {MOST_RATES} groups, each with an lr"
        return ""

    def _now(self) -> list[float | None]:
        return [float(group["lr"]) if "lr" in group else None for group in self._optimizer.param_groups]

    def _settings(self) -> list[dict[str, Any]]:
        """Return the other settings, as far as they are plain values; counters of a rule change only in workers."""
        plain = (bool, int, float, str, tuple, type(None))
        return [
            {key: one for key, one in group.items() if key not in ASIDE and isinstance(one, plain)}
            for group in self._optimizer.param_groups
        ]


def first_rates(groups: list[dict[str, Any]], state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return saved groups with the rates that the job began with, to compare them with those of a resumed one."""
    first = state.get("rates", {}).get("first") or [None] * len(groups)
    return [group if rate is None else {**group, "lr": rate} for group, rate in zip(groups, first, strict=False)]


def _assign(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], torch.Tensor):
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


SHARE_S = 1.0  # between two looks at what other jobs use
QUARANTINE_SHARE = 0.01  # the job fails if more of its batches are quarantined


@dataclass(slots=True)
class Session:
    """All state of the job that is not a process. Owned by the supervisor's one thread."""

    plan: JobPlan
    parts: Parts
    shared: SharedModel
    board: Scoreboard
    queue: WorkQueue
    rundir: RunDir
    journal: Journal
    saving: Saving
    evaluating: Evaluating
    pause_task: Background
    clock: Clock
    ids: "count[int]"
    before: Before = field(default_factory=Before)
    stop: Outcome | None = None
    peak_pss_bytes: int = 0
    restarts: int = 0  # of workers, in this attempt
    streamed: RingState | None = None  # streamed training data
    owner: GpuOwner | None = None  # of the parameters, if workers share them on a device
    node: Node | None = None  # of a cluster
    weights: str = "last"  # those that the model has: of the last update, or of the best evaluation
    draws: EpochDraws | None = None  # of the job's sampler
    divergence: Divergence = field(init=False)
    rates: Rates = field(init=False)
    rows: RowTables = field(init=False)
    _merged_batches: list[int] = field(default_factory=list)
    _threads: int = 0  # of each worker now
    _beside: tuple[Any, ...] = ()  # workers, cores and leases of other jobs that these were chosen for
    _next_share_s: float = 0.0

    def __post_init__(self) -> None:
        self.rates = Rates(self.parts.optimizer, self.board, self.parts.stepped, is_fused=self.plan.is_fused)
        self.rows = RowTables(self.shared, self.journal)
        limits = self.queue.limits  # not self: a reference cycle would keep the job's memory
        self.divergence = Divergence(self.job.supervise.on_nan, lambda: limits.procs)

    @property
    def job(self) -> Job:
        return self.plan.job

    @property
    def has_unfinished_work(self) -> bool:
        """True if some worker should have a lease. A node that has none left waits for the others."""
        return not self.queue.is_finished and not (self.node is not None and self.node.queue.is_dry)

    # ---- beginning ---------------------------------------------------------------------------------------------
    def start(self, now: float) -> None:
        """Prepare the session; workers may start now. If rollbacks are on, first write a checkpoint to go back to."""
        self._threads = self.plan.threads
        if self.plan.threads == max(1, int(self.plan.usable_cores / max(1, self.plan.procs))):
            self._beside = max(1, self.plan.procs), host.affinity(), ()  # as if it were alone
        self.pause_task.start()
        self.saving.writer.start()
        self.journal.start()
        if self.owner is not None:
            self.journal.event("owner", pid=self.owner.pid)
        self._merged_batches = [0] * self.plan.rows
        self.evaluating.schedule()
        self.saving.schedule(now)
        self.divergence.rollbacks = max(self.divergence.rollbacks, self.before.rollbacks)
        self.board.go_back(self.queue.updates, self.divergence.rollbacks, first_item=0)
        sync_every = self.job.train.sync_every if self.plan.exchange == "delta" else 0
        self.board.set_exchange(sync_every)
        self.queue.limits.sync_every = sync_every or 1
        if self.divergence.goes_back and self.saving.is_worth_it:
            self.copy_for_checkpoint(now)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint's `state`; the queue has restored its ledger already."""
        self.evaluating.restore(state)
        self.restore_stream(state)
        if self.draws is not None:
            self.draws.restore(state.get("drawn", ()))
        self.saving.note_saved()
        self.before.samples = self.queue.samples
        if "rates" in state:
            self.rates.restore(state["rates"])
        self.divergence.rollbacks = max(self.divergence.rollbacks, state.get("rollbacks", 0))

    def restore_stream(self, state: Mapping[str, Any]) -> None:
        """Restore the positions of the stream's iterators, after the queue restored its ledger. Raises ValueError."""
        if self.streamed is not None:
            self.streamed.restore(state.get("stream", {}))
            self.queue.find_ends()

    @property
    def lane_restarts(self) -> int | None:
        """Batches inside a lane that began from zero state, in all attempts; None without lanes."""
        if self.queue.plan.lanes is None:
            return None
        return self.before.lane_restarts + self.board.lane_restarts()

    @property
    def samples_here(self) -> int:
        """Samples of this attempt; in a cluster this node's alone."""
        return self.queue.samples - self.before.samples if self.node is None else self.node.queue.own.samples

    @property
    def loader_deaths(self) -> int | None:
        """Deaths of loaders in all attempts; None if nothing is streamed."""
        return None if self.streamed is None else self.before.loader_deaths + self.streamed.deaths

    # ---- what is due -------------------------------------------------------------------------------------------

    def due(self, now: float) -> Due:
        """Return the purpose of the next pause; usually empty."""
        divergence = self.divergence
        divergence.ruined = self.saving.is_refused
        divergence.written(self.saving.written_at)
        not_finite = self.board.not_finite()  # read before the applied ones
        divergence.look(not_finite, self.board.updates())
        decision = divergence.decide()
        finish, node = self._trained(self.stop or self._natural_end(now)), self.node
        evaluates, writes = node is None or node.is_first, node is None or node.writes
        if node is not None and node.anchor.is_held and finish is not None and finish.state == "succeeded":
            finish = None  # what is being looked at is not the last round
        if decision is Decision.ROLL_BACK:
            return Due(rollback=True, finish=finish if finish is not None and finish.state == "stopped" else None)
        if decision is Decision.FAIL:
            return Due(finish=Outcome.failed(Diverged(self.divergence.message)))
        if finish is not None:
            wants_checkpoint = (
                finish.state != "stopped"
                or self.job.checkpoint.on_signal
                or finish.reason in ("max_time_s", "callback")
            )
            return Due(
                evaluate=finish.state == "succeeded" and self.evaluating.is_due_at_the_end and evaluates,
                checkpoint=wants_checkpoint and self.saving.is_worth_it and writes,
                finish=finish,
            )
        if node is not None and node.is_in_round and not node.anchor.is_held:
            return Due()  # the parameters cannot be put back to the anchor now
        evaluate, checkpoint = self.evaluating.is_due, self.saving.is_due(now)
        rows = self.clock.paused_since_s is None and self.rows.is_pause_due(now)
        return Due(evaluate=evaluate and evaluates, checkpoint=checkpoint and writes, rows=rows)

    def note_signal(self, number: int) -> None:
        """Note the first signal: the job stops in order."""
        name = host.signal_name(number)
        if self.node is not None:
            self.node.look_for_first()
        # torchrun takes any other status than 0 for a failure, and starts the node again.
        self.stop = Outcome("stopped", name, exit_status=0 if self.node is not None else None)
        self.journal.event("signal", name=name)
        what = "writing a checkpoint and stopping" if self.job.checkpoint.on_signal else "stopping"
        again = "" if number in host.NOTICES else " (send it again to stop at once)"
        self.journal.show_message(f"{name}: {what}{again}")

    def _natural_end(self, now: float) -> Outcome | None:
        if self.queue.is_finished:
            if self.queue.updates == 0:
                error = TrainingError(
                    "no update was made: the loss or a gradient was NaN or infinite in each of "
                    f"{self.queue.ledger.skipped} batches; look at the model's first values, the loss and the learning "
                    "rate",
                    code="train/no-update",
                )
                return Outcome.failed(error)
            everything = self.queue.epoch >= self.queue.limits.epochs
            return Outcome("succeeded", "epochs" if everything else "max_updates")
        # From the first update on, so that every attempt, and so every resume, makes progress. Elapsed time, also while
        # the supervisor was stopped: this limit is a promise to the machine's next user, a deadline accuses a process.
        limit = self.job.train.max_time_s
        if limit is None or self.trained_s(now) < limit:
            return None
        outcome = Outcome("stopped", "max_time_s")
        if self.node is None:
            return outcome
        if self.node.is_first:
            self.node.wish = self.node.wish or outcome
        return None

    def _trained(self, finish: Outcome | None) -> Outcome | None:
        """Return the outcome; instead of success, failure for a job that lost most of its batches, or the last ones."""
        ledger = self.queue.ledger
        is_lost = ledger.skipped > ledger.done or self.divergence.is_in_a_row
        if finish is None or finish.state != "succeeded" or not is_lost:
            return finish
        words = f"the run has diverged: {self.about_skipped}; all kept checkpoints are finite"
        return Outcome.failed(Diverged(words))

    @property
    def about_skipped(self) -> str:
        """The number of batches that were not applied, and the reason, as a phrase."""
        skipped, total, oldest = self.queue.ledger.skipped, self.queue.total, self.job.train.max_staleness
        stale = (
            f"the update was more than {oldest} updates old (train.max_staleness), or " if oldest is not None else ""
        )
        last = f", the last {self.divergence.in_a_row} in a row" if self.divergence.is_in_a_row else ""
        return (
            f"{skipped:,} of {total:,} batches were not applied{last}, because {stale}the loss or a gradient was not "
            "finite: lower the learning rate or set train.grad_clip"
        )

    def check_quarantine(self, release: Release) -> TooManyQuarantined | None:
        """Return an error if too much of the job is quarantined."""
        plan = self.queue.plan
        planned = self.queue.total if isinstance(plan, StreamPlan) else self.queue.limits.epochs * plan.batches
        if not release.quarantined or self.queue.ledger.quarantined <= QUARANTINE_SHARE * planned:
            return None
        epoch, batch, _ = release.quarantined[0]
        return TooManyQuarantined(
            f"{self.queue.ledger.quarantined} of {planned} batches are quarantined, more than 1 %: each crashed "
            f"{self.job.supervise.max_item_attempts} workers. The latest: epoch {epoch}, batch {batch}; see "
            f"logs/worker-*.log and events.jsonl in {self.rundir.path}"
        )

    # ---- in a pause --------------------------------------------------------------------------------------------

    def acknowledge(self, worker: int, acks: Iterable[tuple[int, int]]) -> None:
        """Book the items (skipped, item id) that `worker` has finished, of training or of an evaluation."""
        for skipped, item_id in acks:
            if self.queue.ack(worker, item_id, skipped) is None:
                self.evaluating.acknowledge(worker, item_id)

    def observe(self, workers: Iterable[int]) -> None:
        """Book the commits of these workers so far."""
        for worker in workers:
            progress = self.board.progress(worker)
            self.queue.observe(progress.item, progress.committed, progress.skipped)

    def merge_buffers(self, now: float) -> None:
        """Merge per-worker buffers into the master, and give back rows of ids that have expired, by the pause_task. All
        workers are parked."""
        self.clock.paused_since_s = self.clock.paused_since_s or now
        merging = self.merging()
        self.rows.settle()
        if self.rows.is_expiry_due(now):
            self.clock.paused_for.append("expiry")
            self.pause_task.submit(partial(_merged_and_expired, merging, self.shared), self.rows.expired)
        elif merging is not None:
            self.pause_task.submit(merging)

    def merging(self) -> Callable[[], None] | None:
        """Return the work of a merge, for a thread; None if there is nothing to merge since the last one."""
        batches = self.board.applied_batches()
        since = [new - old for new, old in zip(batches, self._merged_batches, strict=True)]
        self._merged_batches = batches

        def fetch_and_merge() -> None:
            if self.owner is not None:
                self.owner.fetch()
            self.shared.merge_buffers(since)

        is_needed = any(since) and (self.shared.has_buffers or self.owner is not None)
        return fetch_and_merge if is_needed else None

    def finish_evaluation(self) -> None:
        """Record the metrics; keep the best, and end the job if the target is met or patience is over."""
        evaluating, queue = self.evaluating, self.evaluating.queue
        is_best = evaluating.finish()
        if is_best and self.job.checkpoint.keep_best:
            self.saving.want_best()
        values = evaluating.values
        for old, new in self.rates.evaluated(values.get(evaluating.monitor.name, math.nan)):
            self.journal.show_message(f"learning rate {old:g} -> {new:g}: {evaluating.monitor.name} has not improved")
        seconds = round(time.monotonic() - (self.clock.paused_since_s or time.monotonic()), 4)  # since all parked
        self.clock.paused_for.append("evaluation")
        position = {"epoch": queue.epoch, "updates": queue.updates, "samples": self.saving.queue.samples}
        train_loss = {} if self.train_loss is None else {"train_loss": self.train_loss}
        self.journal.metrics("evaluation", **position, seconds=seconds, best=is_best, **train_loss, **values)
        self.journal.event("evaluation", epoch=queue.epoch, updates=queue.updates, best=is_best, **values)
        evaluating.popularity = self.parts.popularity
        words = "  ".join(beside(values, evaluating.popularity))
        if values.keys() == {"loss"}:  # without a metric, a number alone says nothing
            loss = self.parts.loss
            words += f"  ({getattr(loss, '__name__', type(loss).__name__)}; first {evaluating.first_loss:.4g})"
        self.journal.show_message(f"epoch {queue.epoch}/{queue.limits.epochs}  update {queue.updates}  val {words}")
        if self.node is None:
            self.stop = self.stop or evaluating.enough()
        else:
            self.node.wish = self.node.wish or evaluating.enough()

    def start_checkpoint(self, now: float) -> None:
        """Start a checkpoint, see `Saving.start`. All workers are parked and booked, nothing is in flight."""
        self.clock.paused_for.append("checkpoint")
        ring = None if self.streamed is None else self.streamed.ring
        self.saving.start(now, self._rest(), self.rows.answering(self.rundir, ring))

    def _rest(self) -> dict[str, Any]:
        """Return the contents of a checkpoint besides model, optimizer and ledger."""
        rest: dict[str, Any] = {"seed": self.job.seed, "rollbacks": self.divergence.rollbacks}
        rest["rates"] = self.rates.state()
        rest["data"], rest["scales"] = self.parts.identity, loss_scaler.state(self.board)
        if self.node is not None:
            rest["cluster"] = self.node.state()
        if self.streamed is not None:
            rest["stream"] = self.streamed.state()
        if self.draws is not None:
            rest["drawn"] = self.draws.state()
        return rest | self.evaluating.state()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint would hold, before workers start."""
        return {**self.shared.snapshot(), **self._rest(), "ledger": self.saving.queue.state()}

    def copy_for_checkpoint(self, now: float) -> None:
        """Start a checkpoint, and wait until training may go on."""
        self.start_checkpoint(now)
        self.pause_task.wait()
        if self.saving.is_read_in_place:  # the memory we train on is being written
            self.saving.wait(LAST_WRITE_S)

    def finish_threads(self) -> None:
        """Process what threads have merged, copied or written, and stop if a callback asks for it or has raised."""
        self.share_cores(time.monotonic())
        self.pause_task.finish()
        self.saving.writer.finish()
        self.rows.look(time.monotonic(), is_paused=self.clock.paused_since_s is not None or self.saving.is_busy)
        if (error := self.rates.look()) is not None:
            self.journal.callbacks.fail(error)
        if self.draws is not None and not self.queue.is_finished:
            error = self.draws.advance(self.queue.epoch, self.queue.limits.epochs)
            self.stop = self.stop if error is None else Outcome.failed(error)
        if self.stop is None and self.journal.callbacks.wants_stop:
            self.stop = Outcome("stopped", "callback")

    def share_cores(self, now: float) -> None:
        """Renew the job's lease on cores, and follow those of other jobs, once a second."""
        if now < self._next_share_s:
            return
        self._next_share_s = now + SHARE_S
        procs = max(1, self.queue.limits.procs)
        host.lease_cores(procs, self.plan.leased_threads)
        now_beside = procs, host.affinity(), host.other_core_leases()
        if not self.plan.follows or now_beside == self._beside:
            return
        self._beside, others, cores = now_beside, now_beside[2], host.usable_cores()
        if (threads := threads_beside(procs, cores, others)) != self._threads:
            self.board.set_threads(threads)
            used = f"other jobs use {used_by(others, cores):.3g} of {cores.usable:g} usable cores"
            self.journal.show_message(f"threads per worker: {threads}, until now {self._threads} ({used})")
            self._threads = threads

    def wait(self, timeout_s: float) -> None:
        """Wait until the pause_task is done and nothing is being written, up to `timeout_s`; for callers with nothing
        else to do."""
        self.pause_task.wait(timeout_s)
        self.saving.wait(timeout_s)

    @property
    def is_waited_for(self) -> bool:
        """True while a thread merges, copies or writes."""
        return self.pause_task.is_busy or self.saving.is_busy

    def go_on(self, now: float) -> None:
        if self.clock.paused_since_s is not None:
            seconds = now - self.clock.paused_since_s
            self.clock.paused_s += seconds
            self.clock.paused_since_s = None
            if self.clock.paused_for:  # the short ones of a cluster's cuts are not logged
                self.journal.event("pause", seconds=round(seconds, 4), what=" and ".join(self.clock.paused_for))
                self.clock.paused_for.clear()

    # ---- records -----------------------------------------------------------------------------------------------

    @property
    def best(self) -> Best | None:
        """The best evaluation so far."""
        monitor = self.evaluating.monitor
        if (found := monitor.best) is None:
            return None
        value = found.get(monitor.name, math.nan)
        place = found["updates"], found.get("epoch"), self.saving.best_on_disk
        return Best(monitor.name, value, *place, monitor.higher_is_better)

    @property
    def train_loss(self) -> float | None:
        """Mean training loss per sample of the last complete epoch of this attempt; in its first one, until now. Where
        workers are in other epochs by now, of the one that most of them have trained."""
        for epoch in (self.queue.epoch - 1, self.queue.epoch, self.board.some_epoch()):
            if epoch is not None and epoch >= 0 and (found := self.board.epoch_loss(epoch)) is not None:
                return found
        return None

    def wall_s(self, now: float) -> float:
        return self.before.wall_s + now - self.clock.command_began_s

    @property
    def planned_updates(self) -> int | None:
        """Planned updates; None if unknown: for a stream without a length, until its end."""
        is_known = self.draws is None or not self.queue.is_finished  # of epochs that a sampler draws, at their end
        planned = self.queue.planned_updates if is_known else 0
        return planned or (self.queue.updates if self.queue.is_finished else None)

    @property
    def progress(self) -> float | None:
        """Share of the planned updates made so far, 0 to 1."""
        planned = self.planned_updates
        return None if planned is None else min(1.0, self.queue.updates / max(1, planned))

    @property
    def epochs_done(self) -> float:
        """Settled epochs, with the settled part of current ones; whole epochs only for a stream without a length."""
        queue = self.queue
        if self.draws is not None:
            return queue.epochs_done(self.draws.batches)
        if not isinstance(queue.plan, StreamPlan):
            return queue.total / queue.plan.batches
        return queue.samples / queue.plan.length if queue.plan.length else float(queue.epoch)

    def trained_s(self, now: float) -> float:
        """Return the time since this attempt's first update."""
        first_s = self.board.first_commit_s()
        return 0.0 if first_s is None else now - first_s

    def left_s(self, now: float) -> float:
        """Return the remaining time, at the speed since this attempt's first update, at most until `max_time_s`."""
        trained_s, limit = self.trained_s(now), self.job.train.max_time_s
        made = self.board.job_updates() - self.board.control_words[Control.BASE_UPDATES]
        if not made or not self.queue.planned_updates:
            return 0.0
        whole_s = (self.queue.planned_updates - self.queue.updates) * trained_s / made
        return whole_s if limit is None else min(whole_s, limit - trained_s)


def _merged_and_expired(merging: Callable[[], None] | None, shared: SharedModel) -> dict[str, int]:
    if merging is not None:
        merging()
    return shared.give_back()


def pss_bytes_of(pids: Iterable[int]) -> dict[int, int]:
    """Return the proportional set size of this process and of each of `pids`: their sum counts shared pages once. The
    kernel walks all page tables for it: a tenth of a second in a large job."""
    return {pid: host.pss_bytes(pid) for pid in [os.getpid(), *pids]}
