"""Evaluations of a running job: when one is due, its items, its result, and whether it is the best or ends the job.

    due -> begin -> slices are leased, their rows added up -> [one item that scores all outputs] -> finish

Owned by the session; the pauses drive it."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hogwild.config.schema import Evaluate
from hogwild.metrics.panel import Panel, meets
from hogwild.metrics.result_row import EvalSums
from hogwild.scheduling.batch_plan import BatchPlan, EpochPlan
from hogwild.scheduling.work_queue import Kind, Limits, WorkQueue
from hogwild.shared_memory.scoreboard import Scoreboard
from hogwild.workers.session.node import Ledger
from hogwild.workers.session.outcome import Outcome

SLICE_BATCHES = 16


@dataclass(slots=True)
class Monitor:
    """The best evaluation so far, and early stopping, by the metric `name`. `best` holds the values of the best
    evaluation and its `updates`; `since_best` counts the evaluations after it. Pure."""

    name: str
    higher_is_better: bool
    patience: int | None = None
    best: dict[str, Any] | None = None
    since_best: int = 0

    def look(self, updates: int, values: Mapping[str, float], epoch: int | None = None) -> bool:
        """Note an evaluation; return whether it is the best. NaN is best only if there is no other value."""
        value = values.get(self.name, math.nan)
        if self.best is not None:
            found = self.best.get(self.name)
            before = math.nan if found is None else found
            is_better = bool(value > before if self.higher_is_better else value < before)
            if not (is_better or (math.isnan(before) and not math.isnan(value))):
                self.since_best += 1
                return False
        place = {"updates": updates} if epoch is None else {"updates": updates, "epoch": epoch}
        self.best, self.since_best = {**place, **values}, 0
        return True

    @property
    def is_out_of_patience(self) -> bool:
        return self.patience is not None and self.since_best >= self.patience

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"best": self.best, "since_best": self.since_best}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.best, self.since_best = state["best"], state.get("since_best", 0)


@dataclass(slots=True)
class Evaluating:
    """The evaluations of one attempt. `plan`: of the validation data, or None; `queue`: of training, its `open_until`:
    epochs from this one on wait for an evaluation; `higher`: metric
    -> whether more is better. `current` holds the items that may be leased during an evaluation."""

    settings: Evaluate
    plan: EpochPlan | None
    panel: Panel
    higher: Mapping[str, bool]
    queue: Ledger
    board: Scoreboard
    limits: Limits
    ids: Iterator[int]
    covered: np.ndarray  # (metrics, items) bytes: the items that metrics of coverage count; marked by workers
    monitor: Monitor = field(init=False)
    values: dict[str, float] = field(default_factory=dict)
    popularity: dict[str, float] = field(default_factory=dict)  # its ranking metrics if the most popular items are best
    first_loss: float | None = None  # of the run's first evaluation, to compare later losses with
    current: WorkQueue | None = None
    is_scoring: bool = False  # all slices are done
    evaluated_at: int = -1  # updates
    _due_updates: float = math.inf
    _sums: EvalSums = field(default_factory=EvalSums)
    _scores: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        settings = self.settings
        self.monitor = Monitor(settings.monitor, self.higher.get(settings.monitor, False), settings.patience)

    # ---- when

    def schedule(self) -> None:
        """Set the next evaluation. Epochs before it flow into each other without a barrier."""
        if self.plan is None:
            return
        queue, every = self.queue, self.settings.every_epochs
        last = queue.limits.epochs
        queue.open_until = last if every is None else min(last, (queue.epoch // every + 1) * every)
        at_barrier = every is not None and queue.epoch > 0 and queue.epoch % every == 0
        if at_barrier and not queue.is_begun(queue.epoch) and self.evaluated_at != queue.updates:
            queue.open_until = queue.epoch  # the earlier attempt stopped between an epoch's last update and this
        if (every_updates := self.settings.every_updates) is not None:
            self._due_updates = (queue.updates // every_updates + 1) * every_updates

    @property
    def is_due(self) -> bool:
        if self.plan is None:
            return False
        return self.queue.updates >= self._due_updates or self.queue.is_epoch_settled(self.queue.open_until - 1)

    @property
    def is_due_at_the_end(self) -> bool:
        return self.plan is not None and self.evaluated_at != self.queue.updates

    # ---- how

    def start(self) -> None:
        assert self.plan is not None
        self._sums, self._scores, self.is_scoring = EvalSums(), (), False
        self.covered.fill(0)
        limits = replace(self.limits, procs=self.queue.limits.procs)
        self.current = WorkQueue(self.plan, limits, kind=Kind.EVALUATE, ids=self.ids)

    def acknowledge(self, worker: int, item_id: int) -> None:
        """Book a finished item, whose row holds the result. Does nothing if the item is not of this evaluation."""
        item = self.current.ack(worker, item_id, 0) if self.current is not None else None
        if item is None:
            return
        row = EvalSums.read(self.board.result(item.id))
        if item.kind is Kind.SCORE:
            self._scores = row.words[: len(self.panel.whole)]
        else:
            self._sums += row

    def advance(self) -> bool:
        """Return whether everything is done. After all slices, provide the item that scores the outputs, if needed."""
        if self.current is None or not self.current.is_finished:
            return False
        if self.is_scoring or not self.panel.whole:
            return True
        self.is_scoring = True
        self.current = WorkQueue(BatchPlan(1, 1), self.limits, kind=Kind.SCORE, ids=self.ids)
        return False

    def abandon(self) -> None:
        """End the evaluation, finished or not: a stop does not wait for a long evaluation."""
        self.current = None

    def finish(self) -> bool:
        """Compute the values; return whether they are the best so far."""
        self.values = self.panel.values(self._sums + self.panel.covered(self.covered), self._scores)
        self.evaluated_at = self.queue.updates
        self.first_loss = self.values.get("loss") if self.first_loss is None else self.first_loss
        is_best = self.monitor.look(self.queue.updates, self.values, self.queue.epoch)
        self.schedule()
        return is_best

    # ---- result

    def enough(self) -> Outcome | None:
        """Return the outcome if this evaluation ends the job."""
        if self.settings.target and meets(self.values, self.settings.target, self.higher):
            return Outcome("succeeded", "target")
        return Outcome("succeeded", "patience") if self.monitor.is_out_of_patience else None

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        mine = {"metrics": self.values, "evaluated_at": self.evaluated_at, "first_loss": self.first_loss}
        return {**mine, **self.monitor.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.values, self.evaluated_at = dict(state["metrics"]), state["evaluated_at"]
        self.first_loss = state.get("first_loss")
        self.monitor.restore(state)
