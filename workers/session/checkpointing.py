"""Checkpoints of a running job: when one is due, how it is made, and its result.

    all are parked -> begin -> [thread: finite? copy] -> training goes on -> [thread: write] -> settle
                                                           '- memory is short: written in the pause, without a copy

The supervisor's loop never waits: it only begins a checkpoint, and processes what a thread has finished."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from hogwild import host
from hogwild.config.schema import Checkpoint
from hogwild.errors import CheckpointError, RunDirError
from hogwild.host.background_thread import Background
from hogwild.parameters.optimizer_state import Copies
from hogwild.parameters.shared_model import SharedModel
from hogwild.storage.checkpoint import WriteResult, write_and_prune
from hogwild.storage.checkpoint_format import checkpoint_name, update_of
from hogwild.storage.files import point
from hogwild.storage.run_directory import RunDir
from hogwild.user_code import raised_text
from hogwild.workers.session.journal import Journal
from hogwild.workers.session.node import Ledger

MEMORY_MARGIN = 1.2
LAST_WRITE_S = 600.0  # most seconds that the end of a job waits for a checkpoint in flight


@dataclass(slots=True)
class Saving:
    """The checkpoints of one attempt. `writer` is the thread that writes them, `pause_task` the session's thread for
    work in a pause."""

    settings: Checkpoint
    shared: SharedModel
    queue: Ledger
    rundir: RunDir
    journal: Journal
    writer: Background
    pause_task: Background
    is_refused: bool = False  # the last time, the parameters were not finite
    written_at: int = -1  # updates of the latest checkpoint on disk
    _saved_at: int = -1  # updates
    is_elsewhere: bool = False  # the checkpoint it goes on from is not in its own directory, but in another node's
    _due_s: float = math.inf
    _due_updates: float = math.inf
    _is_begun: bool = False
    _is_in_place: bool = False
    attempts: int = 0  # at a checkpoint that ended, well or not
    unwritten: CheckpointError | None = None  # the error of the latest checkpoint, if it could not be written
    _best: str = ""  # the checkpoint of the best evaluation, on disk or being written
    _wants_best: bool = False
    best_on_disk: str | None = None  # the checkpoint that `checkpoints/best` points to

    # ---- when

    def schedule(self, now: float) -> None:
        """Set the time and the update at which the next checkpoint is due, counted from `now`."""
        settings = self.settings
        self._due_s = math.inf if settings.every_s is None else now + settings.every_s
        if settings.every_updates is not None:
            self._due_updates = (self.queue.updates // settings.every_updates + 1) * settings.every_updates

    def is_due(self, now: float) -> bool:
        if self._wants_best:  # even while one is being written: all workers stay parked until this one can begin
            return True
        is_time = now >= self._due_s or self.queue.updates >= self._due_updates
        return is_time and self.is_worth_it and not self.is_busy

    def hasten(self) -> None:
        """Make the next checkpoint as soon as possible, if there were updates since the last one."""
        self._due_s = -math.inf

    def want_best(self) -> None:
        """Ask for a checkpoint of the current parameters, the best so far. All workers are parked."""
        self._best = checkpoint_name(self.queue.updates)
        self._wants_best, self.best_on_disk = self.is_worth_it, None
        if not self._wants_best:
            self._point_best()

    def restore_best(self, best: Mapping[str, Any] | None) -> None:
        """Restore the best evaluation of the surviving history, after a resume or a rollback."""
        self._best = "" if best is None else checkpoint_name(int(best["updates"]))
        self._point_best()

    @property
    def has_saved(self) -> bool:
        """True if this attempt has written a checkpoint, or goes on from one."""
        return self._saved_at >= 0

    @property
    def is_worth_it(self) -> bool:
        """True if there were updates since the last checkpoint, or that one is another node's."""
        return self.is_elsewhere or self._saved_at != self.queue.updates

    def note_saved(self) -> None:
        """Note that the queue's state is in a checkpoint on disk."""
        self._saved_at = self.queue.updates
        self.is_refused = self.is_elsewhere = False

    # ---- how

    @property
    def is_copying(self) -> bool:
        """True while the copy is made: nobody may train."""
        return self._is_begun and self.pause_task.is_busy

    @property
    def is_read_in_place(self) -> bool:
        """True while the shared memory itself is being written: nobody may train."""
        return self._is_in_place and self.writer.is_busy

    @property
    def is_busy(self) -> bool:
        return self.is_copying or self.writer.is_busy

    def start(self, now: float, rest: Mapping[str, Any], then: Callable[[], None] = lambda: None) -> None:
        """Begin a checkpoint. All workers are parked and booked; `rest`: the contents besides model, optimizer and
        ledger; `then`: further work of the writer, once it is on disk. Training must stay paused while `is_copying`,
        and while `is_read_in_place`, if memory is too short for a second copy."""
        assert not self.is_busy
        self._wants_best = False
        self.schedule(now)
        queue = self.queue
        copied = sum(region.held_bytes for region in self.shared.regions.values())
        self._is_in_place = host.available_memory().bytes < MEMORY_MARGIN * copied
        if self._is_in_place:
            self.journal.show_message("too little free memory: training is paused while the checkpoint is written")
        state = {**rest, "ledger": queue.state()}
        meta = {"update": queue.updates, "epoch": queue.epoch, "samples": queue.samples, "metrics": rest["metrics"]}
        self._is_begun = True
        self.note_saved()
        name, copies = checkpoint_name(queue.updates), Copies(in_place=self._is_in_place)
        self.pause_task.submit(partial(self._copy, name, copies), partial(self._write, name, copies, state, meta, then))

    def _copy(self, name: str, copies: Copies) -> dict[str, Any] | CheckpointError | None:
        """Copy the parameters, in a thread. None if they are not finite."""
        try:
            return self.shared.snapshot(copies) if self.shared.finite() else None
        except Exception as error:  # out of memory after all, or an error in a model's get_extra_state
            words = f"cannot copy the parameters for checkpoint {name}: {raised_text(error)}"
            return CheckpointError(f"{words}; earlier checkpoints are kept", code="checkpoint/not-written")

    def _write(
        self,
        name: str,
        copies: Copies,
        state: dict[str, Any],
        meta: dict[str, Any],
        then: Callable[[], None],
        snapshot: dict[str, Any] | CheckpointError | None,
    ) -> None:
        self._is_begun = False
        if isinstance(snapshot, CheckpointError):
            self._record(WriteResult(name, snapshot))
        elif snapshot is None:
            self._saved_at, self.is_refused = -1, True
            self.attempts += 1
            self.journal.event("checkpoint-refused", updates=meta["update"], reason="parameters are not finite")
            self.journal.show_message("warning: parameters are NaN or infinite; no checkpoint is written")
        else:
            content, keep, folder = {**snapshot, **state}, self.settings.keep, self.rundir.checkpoints
            work = partial(write_and_prune, folder, name, content, snapshot["model"], meta, keep, copies.discard)
            self.writer.submit(partial(_both, work, then), self._record)

    def wait(self, timeout_s: float) -> None:
        """Wait until nothing is copied or written, up to `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.is_busy and (left_s := deadline - time.monotonic()) > 0:
            if self.is_copying:
                self.pause_task.wait(left_s)
            else:
                self.writer.wait(left_s)

    # ---- result

    def _record(self, result: WriteResult) -> None:
        """Record a result, written or failed; training goes on in both cases."""
        self.attempts += 1
        self.unwritten = result.error
        if result.error is not None:
            self._saved_at = -1
            self.journal.event("checkpoint-failed", name=result.name, error=str(result.error))
            self.journal.show_message(f"warning: {result.error}")
            return
        self.journal.event("checkpoint", name=result.name)
        self.written_at = update_of(result.name)
        self.point_latest(result.name)
        if result.name == self._best:
            self._point_best()
        if result.warning:
            self.journal.show_message(f"warning: {result.warning}")

    def point_latest(self, checkpoint: str) -> None:
        try:
            point(self.rundir.latest, checkpoint)
        except RunDirError as error:  # a resume uses the names, not the link
            self.journal.show_message(f"warning: {error}")

    def _point_best(self) -> None:
        """Point `checkpoints/best` to the best evaluation's checkpoint, or remove it."""
        if not self.settings.keep_best:
            return
        try:
            self.best_on_disk = self._best if self.rundir.update_best(self._best) else None
        except RunDirError as error:
            self.journal.show_message(f"warning: {error}")


def _both(write: Callable[[], WriteResult], then: Callable[[], None]) -> WriteResult:
    result = write()
    if result.error is None:
        then()
    return result
