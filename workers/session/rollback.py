"""Rollback: a run that has diverged (`divergence.py`) continues from the newest good checkpoint, at half the learning
rate. It is a resume without restarting the workers.

    everybody is parked -> begin -> [thread: find, verify, load, write into the flats, run directory] -> ledger -> go on

Items that a worker still holds are void: it drops them, and rebuilds its private state when the pause ends. Newer
checkpoints belong to a discarded history: they are set aside, and the last few of these are kept. From `start` until
the ledger fits the flats again, `is_going_back` says that the two must not be saved."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hogwild.errors import CheckpointError, RunDirError
from hogwild.parameters.shared_model import SharedModel
from hogwild.storage.checkpoint import Taken, load_newest
from hogwild.storage.checkpoint_format import newest_good, set_aside_after
from hogwild.storage.run_directory import Cut, RunDir
from hogwild.workers.session.session import Session

KEEP_REJECTED = 3  # most checkpoints set aside, in all


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint now in shared memory: parameters, buffers, optimizer state. `taken` has no path: none was found."""

    taken: Taken[str | None]
    cut: Cut | None = None  # of the metrics records; None after a disk error
    warning: str = ""


def start(session: Session) -> None:
    """Start a rollback, in the session's pause_task. All workers are parked, and nothing is being copied or written.
    Once it is settled, the run is back, or `due` says that there is no way back."""
    assert not session.is_waited_for
    divergence = session.divergence
    divergence.is_going_back = True
    work = partial(_restore, session.shared, session.rundir, divergence.older_than)
    session.pause_task.submit(work, partial(_go_back, session))


def give_up(session: Session) -> None:
    """Set aside what came after the last rollback, in the session's pause_task: the run has diverged again and the job
    fails, so a resume begins where that rollback went to."""
    older_than = session.divergence.older_than
    if older_than is not None and not session.pause_task.is_busy:
        session.pause_task.submit(
            partial(_set_aside_again, session.rundir, older_than), partial(_show_warning, session)
        )


def _set_aside_again(rundir: RunDir, went_to: int) -> str:
    """Set the later checkpoints aside, in a thread; return a warning, or "". If the checkpoint was pruned meanwhile,
    and none is older, the others are kept."""
    try:
        path, _ = newest_good(rundir.checkpoints, went_to + 1)
        if path is not None:
            _set_aside(rundir, path)
    except (OSError, CheckpointError, RunDirError) as error:
        return f"{error}; checkpoints after update {went_to} belong to a run that has diverged"
    return ""


def _show_warning(session: Session, warning: str) -> None:
    if warning:
        session.journal.show_message(f"warning: {warning}")


def _restore(shared: SharedModel, rundir: RunDir, older_than: int | None) -> LoadedCheckpoint:
    """Load a checkpoint, in a thread. If none is older than the one without progress, load that again. Change the run
    directory as a resume would; the loop, which appends records, cuts them itself. A disk error costs the records, not
    the run."""
    taken = load_newest(rundir.checkpoints, shared.restore, older_than)
    if taken.path is None and older_than is not None:
        taken = load_newest(rundir.checkpoints, shared.restore, older_than + 1)
    if taken.path is None:
        return LoadedCheckpoint(taken)
    try:
        _set_aside(rundir, taken.path)
        return LoadedCheckpoint(taken, cut=rundir.draft_cut(taken.state["ledger"]["updates"]))
    except (OSError, RunDirError) as error:
        later = f"records and checkpoints after {taken.path.name} belong to undone work"
        return LoadedCheckpoint(taken, warning=f"{error}; {later}")


def _set_aside(rundir: RunDir, good: Path) -> None:
    set_aside_after(rundir.checkpoints, good, KEEP_REJECTED)
    rundir.update_latest(good.name)


def _go_back(session: Session, found: LoadedCheckpoint) -> None:
    journal, divergence, path, state = session.journal, session.divergence, found.taken.path, found.taken.state
    journal.rejected(found.taken.rejected)
    if path is None:
        divergence.is_going_back = False  # nothing was changed
        divergence.no_way_back = "there is no good checkpoint to go back to"
        return
    why, before, samples = divergence.why, session.queue.updates, session.before.samples
    session.queue.restore(state["ledger"])
    session.restore_stream(state)
    session.restore(state)
    session.before.samples = min(samples, session.queue.samples)
    updates = session.queue.updates
    divergence.gone_back(before, updates)
    if session.owner is not None:
        session.owner.push()
    session.board.go_back(updates, divergence.rollbacks, first_item=next(session.ids))
    divergence.is_going_back = False
    session.saving.restore_best(session.evaluating.monitor.best)
    session.reopen(time.monotonic())
    if session.stop is not None and session.stop.state == "succeeded":
        session.stop = None  # the state that met the target is undone
    factor = 0.5**divergence.rollbacks
    journal.event(
        "rollback",
        checkpoint=path.name,
        from_updates=before,
        updates=updates,
        samples=session.queue.samples,
        reason=why,
        lr_factor=factor,
        records_cut=_cut_records(session, found.cut),
    )
    _show_warning(session, found.warning)
    journal.show_message(
        f"rollback: {why}; from update {before:,} back to {path.name}, then at {factor:g} of the learning rate"
    )


def _cut_records(session: Session, cut: Cut | None) -> int:
    """Cut the records; return how many are dropped. Not in the thread: the loop may append meanwhile. A thread then
    syncs them to disk, while all workers are still parked."""
    if cut is None:
        return 0
    try:
        session.rundir.metrics.cut(cut.size)
    except RunDirError as error:
        _show_warning(session, f"{error}; records of what was undone are left")
        return 0
    session.pause_task.submit(partial(_sync, session.rundir), partial(_show_warning, session))
    return cut.records


def _sync(rundir: RunDir) -> str:
    """Sync the records, in a thread; return a warning, or ""."""
    try:
        rundir.metrics.sync()
    except RunDirError as error:
        return f"{error}; after a power cut, records of undone work may be left"
    return ""
