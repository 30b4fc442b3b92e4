"""Resuming a run: permitted changes, the checkpoint, and what it restores."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from hogwild.config.load import Job, load_job
from hogwild.config.of_run import is_of_library, new_run_command
from hogwild.errors import CheckpointError, UsageError
from hogwild.job.build import differences
from hogwild.job.identity import require_same
from hogwild.job.initial_values import load_initial
from hogwild.parameters.state_dicts import check_groups, check_parts
from hogwild.storage.checkpoint import Taken, load_newest
from hogwild.storage.checkpoint_format import set_aside_after
from hogwild.storage.files import explained
from hogwild.storage.published_folder import sweep
from hogwild.storage.run_directory import PLACES, RunDir, checkpoints_beside
from hogwild.training import loss_scaler
from hogwild.workers.session.outcome import Before
from hogwild.workers.session.rates import first_rates
from hogwild.workers.session.session import Session

# The settings that a resumed job may change; any other change would make it another job.
MAY_CHANGE = (
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
    "log.",
    "cluster.",
    "checkpoint.",
    "supervise.",
    "resources.",
    "queue.",
)


def check_changes(rundir: RunDir, job: Job) -> None:
    before = load_job(rundir.resolved_file)
    moves = any(getattr(before.train, name) != getattr(job.train, name) for name in PLACES)
    free = (*MAY_CHANGE, "train.exchange") if moves else MAY_CHANGE  # elsewhere the exchange is decided anew
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
    session.before = _sums_before(session.rundir)
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
    """Restore a state, the model last, because it is the caller's: a refused state must not change it. What a refused
    state left in the session is overwritten. Changed data is a DataError: then no older checkpoint is tried."""
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
        session.restore_ledger(state["ledger"])
        session.restore(state)
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


def _sums_before(rundir: RunDir) -> Before:
    sums: Mapping[str, Any] = rundir.read_json("status.json") or {}
    counts = ("restarts", "rollbacks", "lane_restarts", "loader_deaths")
    return Before(float(sums.get("wall_s") or 0.0), **{name: int(sums.get(name) or 0) for name in counts})
