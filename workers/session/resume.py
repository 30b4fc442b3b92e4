"""Going on from a checkpoint: a resume (permitted changes, the checkpoint, and what it restores), and a rollback, which
is a resume without restarting the workers: a run that has diverged (`outcome.py`) continues from the newest good
checkpoint, at half the learning rate.

    all are parked -> begin -> [thread: find, verify, load, write into the flats, run directory] -> ledger -> go on

Items that a worker still holds are void: it drops them, and rebuilds its private state when the pause ends. Newer
checkpoints belong to a discarded history: they are set aside, and the last few of these are kept. From `start_rollback`
until the ledger fits the flats again, `is_going_back` says that the two must not be saved."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hogwild.config.load import Job, load_job
from hogwild.config.of_run import is_of_library, new_run_command
from hogwild.config.schema import restores_best
from hogwild.errors import CheckpointError, RunDirError, UsageError
from hogwild.job.build import differences
from hogwild.job.identity import require_same
from hogwild.job.initial_values import load_initial
from hogwild.parameters.shared_model import SharedModel
from hogwild.parameters.state_dicts import check_groups, check_parts
from hogwild.storage.checkpoint import Taken, load, load_newest
from hogwild.storage.checkpoint_format import newest_good, refuse_link, set_aside_after
from hogwild.storage.files import explained, point
from hogwild.storage.published_folder import sweep
from hogwild.storage.run_directory import PLACES, Cut, RunDir, checkpoints_beside
from hogwild.training import loss_scaler
from hogwild.workers.session.outcome import Before
from hogwild.workers.session.session import Session, first_rates

# The settings that a resumed job may change; any other change would make it another job.
MAY_CHANGE: tuple[str, ...] = (
    "tags",
    "train.procs",
    "train.threads",
    "train.epochs",
    "train.max_updates",
    "train.max_time_s",
    "train.device",
    "train.device_per_worker",
    "train.placement",
    "data.loaders",
    "data.slots",
    "evaluate.target",
    "evaluate.patience",
    "evaluate.restore_best",
    "log.",
    "cluster.",
    "checkpoint.",
    "supervise.",
    "resources.",
    "queue.",
)
# Arguments of our streams that say how they are reached, and what is done about their faults.
OF_STREAMS: Mapping[str, tuple[str, ...]] = {
    "hogwild.data.Follow": ("on_gap", "on_bad_line"),
    "hogwild.data.Kafka": ("servers", "settings", "on_gap", "on_bad_message"),
}


def check_changes(rundir: RunDir, job: Job) -> None:
    before = load_job(rundir.resolved_file)
    moves = any(getattr(before.train, name) != getattr(job.train, name) for name in PLACES)
    free = (*MAY_CHANGE, "train.exchange") if moves else MAY_CHANGE  # elsewhere the exchange is decided anew
    free += tuple(f"data.train.init_args.{name}" for name in OF_STREAMS.get(job.data.train.class_path, ()))
    if is_of_library(rundir.path):  # a record of the caller's object, whose content is compared
        free = (*free, "data.train.init_args")
    changed = [
        f"{path}: was {old!r}, now {new!r}"
        for path, old, new in differences(before.model_dump(), job.model_dump())
        if not path.startswith(free)
    ]
    if changed:
        command = new_run_command(rundir.path, job)
        raise UsageError(
            f"a resumed job may only change {', '.join(name.rstrip('.') for name in free)}; not allowed:\n  "
            + "\n  ".join(changed)
            + (f"\nStart a new run with this change, from the weights of this one:\n  {command}" if command else ""),
            code="usage/resume-changes",
        )


def restore(session: Session) -> Taken[str | None]:
    """Restore, in memory, the newest checkpoint that is complete, loadable and of this job; return it with a sentence
    for the log, and without its state. Raises CheckpointError if
    some can be loaded but none is of this job: starting anew would not be what the user asked for. Everything that can
    refuse a resume happens here or before; in the run directory only leftovers of a killed writer are changed."""
    folder = session.rundir.checkpoints
    with explained(f"cannot clean up {folder}"):
        sweep(folder)
    sums: Mapping[str, Any] = session.rundir.read_json("status.json") or {}
    counts = ("restarts", "rollbacks", "lane_restarts", "loader_deaths")
    session.before = Before(float(sums.get("wall_s") or 0.0), **{name: int(sums.get(name) or 0) for name in counts})
    taken = load_newest(folder, partial(restore_state, session), beside=checkpoints_beside(session.rundir.path))
    if taken.path is None and taken.misfit is not None:
        raise taken.misfit
    if taken.path is None:  # start from the beginning, or from `model.init_from`
        parts, initial = session.parts, session.job.model.init_from
        if initial is not None:
            unseen = (parts.names or {}).get("unseen")
            values = load_initial(session.shared.model, initial, parts.names, parts.component, unseen)
            parts.notes.insert(0, values.give_state(session.shared.model, session.shared.optimizer))
            session.shared.restart_state()
        session.shared.restart_buffers()
    return replace(taken, state={})


def restore_state(session: Session, state: dict[str, Any]) -> str | None:
    """Restore a state, the model last, because it is the caller's: a refused state must not change it. Its traces in
    the session are overwritten. Changed data is a DataError: then no older checkpoint is tried."""
    shared = session.shared
    session.divergence.rollbacks = 0
    check_parts(state)
    parts = session.parts
    try:
        if not require_same(state, session.rundir.path, parts.names, parts.identity):
            parts.notes.append(
                "the checkpoint does not say what data it was made with; only names of rows were compared"
            )
        check_groups(shared.layout.state, shared.optimizer, first_rates(state["optimizer"]["param_groups"], state))
        if session.node is None:
            session.queue.restore(state["ledger"])  # raises ValueError for another batch plan
        else:
            session.node.restore(state["ledger"])  # that of all nodes
        session.restore(state)
        if session.draws is not None:
            session.draws.draw_all(session.queue.epoch, session.job.train.epochs)
        loss_scaler.restore(session.board, state.get("scales", []))
        if session.node is not None:
            session.node.anchor.restore_momentum(state.get("cluster", {}).get("momentum", {}))
        return shared.restore(state)
    except ValueError as error:
        raise CheckpointError(str(error), code="checkpoint/other-job") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"the checkpoint was not written by this version of hogwild: {error!r}", code="checkpoint/foreign"
        ) from error


def record(session: Session, taken: Taken[str | None]) -> None:
    """Bring the run directory to the checkpoint: cut or set aside everything later, and report it."""
    rundir, journal, path = session.rundir, session.journal, taken.path
    journal.rejected(taken.rejected)
    set_aside_after(rundir.checkpoints, path)
    session.saving.restore_best(session.evaluating.monitor.best)
    cut = rundir.cut_records_after(session.queue.updates)
    session.rows.forget_names(rundir)
    if path is None:
        journal.show_message("there is no checkpoint to resume from: the run starts from the beginning")
        journal.event("resume", checkpoint=None, records_cut=cut)
        return
    # its writer may have been killed before this, and a finished job writes no further checkpoint
    session.saving.is_elsewhere = path.parent != rundir.checkpoints
    if not session.saving.is_elsewhere:
        session.saving.point_latest(path.name)
    journal.event(
        "resume", checkpoint=path.name, updates=session.queue.updates, samples=session.queue.samples, records_cut=cut
    )
    journal.show_message(
        f"resuming from {path.name}: {session.queue.samples:,} samples done"
        + (f"; {taken.answer}" if taken.answer else "")
    )


def restore_best(session: Session) -> None:
    """End a job with the weights and the optimizer state of its best evaluation: in the model, and in
    `checkpoints/latest`, which points to that checkpoint. The newest checkpoint stays that of the last update, and a
    resume goes on from it, as it takes the newest and not the link: so a kill at any moment loses nothing."""
    best, saving, journal = session.best, session.saving, session.journal
    if best is None or best.updates == saving.queue.updates:
        session.weights = "last" if best is None else "best"
        return
    if not restores_best(session.job):
        return
    try:
        if best.checkpoint is None:
            raise CheckpointError("it has no checkpoint", code="checkpoint/not-written")
        refuse_link(path := session.rundir.checkpoints / best.checkpoint)
        session.shared.restore(load(path))
    except CheckpointError as error:
        words = f"the weights of the best evaluation cannot be restored: {error}; the model has the last ones"
        journal.rejected([words])
        return
    session.weights = "best"
    found = session.evaluating.monitor.best or {}
    session.evaluating.values = {name: found[name] for name in session.evaluating.panel.reported if name in found}
    saving.point_latest(path.name)
    journal.event("best-restored", checkpoint=path.name, updates=best.updates)
    journal.show_message(f"weights of the best evaluation: {best.figure}, update {best.updates:,}")


KEEP_REJECTED = 3  # most checkpoints set aside, in all


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint now in shared memory: parameters, buffers, optimizer state. `taken` has no path: none was found."""

    taken: Taken[str | None]
    cut: Cut | None = None  # of the metrics records; None after a disk error
    warning: str = ""


def start_rollback(session: Session) -> None:
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
        work = partial(_set_aside_again, session.rundir, older_than)
        session.pause_task.submit(work, partial(_show_warning, session))


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
    point(rundir.latest, good.name)


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
    session.evaluating.schedule()
    session.saving.schedule(time.monotonic())
    if session.stop is not None and session.stop.state == "succeeded":
        session.stop = None  # the state that met the target is undone
    factor, records_cut = 0.5**divergence.rollbacks, 0
    if found.cut is not None:
        try:
            session.rundir.metrics.cut(found.cut.size)  # not in the thread: the loop may append meanwhile
            session.pause_task.submit(partial(_sync, session.rundir), partial(_show_warning, session))
            records_cut = found.cut.records
        except RunDirError as error:
            _show_warning(session, f"{error}; records of what was undone are left")
    journal.event(
        "rollback",
        checkpoint=path.name,
        from_updates=before,
        updates=updates,
        samples=session.queue.samples,
        reason=why,
        lr_factor=factor,
        records_cut=records_cut,
    )
    _show_warning(session, found.warning)
    journal.show_message(
        f"rollback: {why}; from update {before:,} back to {path.name}, then at {factor:g} of the learning rate"
    )


def _sync(rundir: RunDir) -> str:
    """Sync the records, in a thread, while all workers are still parked; return a warning, or ""."""
    try:
        rundir.metrics.sync()
    except RunDirError as error:
        return f"{error}; after a power cut, records of undone work may be left"
    return ""
