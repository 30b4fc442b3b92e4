"""Going on with a run: what may change, which checkpoint, what it brings back."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hogwild.config.load import Job, load_job
from hogwild.errors import CheckpointError, UsageError
from hogwild.job.build import differences, initial_note
from hogwild.job.identity import require_same
from hogwild.parameters.state_dicts import check_groups, check_parts
from hogwild.storage.checkpoint import set_aside_after, sweep, take_newest
from hogwild.storage.records import explained
from hogwild.storage.run_directory import PLACES, RunDir
from hogwild.training import loss_scaler
from workers.session.outcome import Before
from workers.session.session import Session

# What a resumed job may change; anything else would make it another job.
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
    "checkpoint.",
    "supervise.",
)


def with_measured(rundir: RunDir, job: Job) -> Job:
    """The job with what the run before decided by measuring, where it says `auto` and computes where that did."""
    before = load_job(rundir.resolved_file)
    if job.train.exchange != "auto" or _moves(before, job):
        return job
    return job.model_copy(update={"train": job.train.model_copy(update={"exchange": before.train.exchange})})


def _moves(before: Job, job: Job) -> bool:
    """Parameters lie elsewhere now: how they are exchanged is another question."""
    return any(getattr(before.train, name) != getattr(job.train, name) for name in PLACES)


def check_changes(rundir: RunDir, job: Job) -> None:
    before = load_job(rundir.resolved_file)
    free = (*MAY_CHANGE, "train.exchange") if _moves(before, job) else MAY_CHANGE
    changed = [
        f"{path}: was {old!r}, now {new!r}"
        for path, old, new in differences(before.model_dump(), job.model_dump())
        if not path.startswith(free)
    ]
    if changed:
        raise UsageError(
            f"a resumed job may change {', '.join(name.rstrip('.') for name in free)}; these would make it "
            "another job:\n  " + "\n  ".join(changed),
            code="usage/resume-changes",
        )


@dataclass(frozen=True, slots=True)
class Restored:
    """Where a resumed job goes on: `path` is the checkpoint, if there is one; `rejected` says why newer ones are not
    it, `words` is a sentence for the log."""

    path: Path | None
    rejected: list[str]
    words: str | None = None


def restore(session: Session) -> Restored:
    """Takes over, in memory, the newest checkpoint that proves to be whole, can be loaded and is of this job. Raises
    CheckpointError when some can be loaded and none of them is of this job: to begin again is not what was asked for
    then. All that can refuse a resume is here or before: of the run directory only what a killed writer left half done
    is changed."""
    folder = session.rundir.checkpoints
    with explained(f"cannot clean up {folder}"):
        sweep(folder)
    session.before = _sums_before(session.rundir)
    taken = take_newest(folder, partial(_take_over, session))
    if taken.path is None and taken.misfit is not None:
        raise taken.misfit
    if taken.path is None:  # from the beginning, which is where `model.init_from` says
        parts = session.parts
        parts.notes[:0] = initial_note(session.job, session.shared.model, parts.names, parts.component)
        session.shared.restart_buffers()
    return Restored(taken.path, taken.rejected, taken.answer)


def _take_over(session: Session, state: dict[str, Any]) -> str | None:
    """The model comes last, because it is the caller's: a state that is refused has not changed it. What one that was
    refused has left in the session is overwritten. Data that has changed is a DataError: no older checkpoint is asked,
    either."""
    shared = session.shared
    session.divergence.rollbacks = 0
    check_parts(state)
    parts = session.parts
    try:
        if not require_same(state, session.rundir.path, parts.names, parts.identity):
            parts.notes.append(
                "the checkpoint does not say what data it was made with; only names of rows were compared"
            )
        check_groups(shared.layout.state, shared.optimizer, state["optimizer"]["param_groups"])
        session.queue.restore(state["ledger"])
        session.take_over(state)
        loss_scaler.restore(session.board, state.get("scales", []))
        return shared.restore(state)
    except ValueError as error:
        raise CheckpointError(str(error), code="checkpoint/other-job") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"another version of hogwild wrote it, or none: {error!r}", code="checkpoint/foreign"
        ) from error


def record(session: Session, restored: Restored) -> None:
    """Brings the run directory to where the job goes on: what came after is cut, or set aside, and said."""
    rundir, journal, path = session.rundir, session.journal, restored.path
    journal.rejected(restored.rejected)
    set_aside_after(rundir.checkpoints, path)
    session.saving.take_over_best(session.best_updates)
    cut = rundir.cut_records_after(session.queue.updates)
    if path is None:
        journal.say("there is no checkpoint to resume from: the run starts from its beginning")
        journal.event("resume", checkpoint=None, records_cut=cut)
        return
    # who wrote it may have been killed before it did so, and a finished job writes no other
    session.saving.point_latest(path.name)
    journal.event(
        "resume", checkpoint=path.name, updates=session.queue.updates, samples=session.queue.samples, records_cut=cut
    )
    journal.say(
        f"resuming from {path.name}: {session.queue.samples:,} samples done"
        + (f"; {restored.words}" if restored.words else "")
    )


def _sums_before(rundir: RunDir) -> Before:
    sums: Mapping[str, Any] = rundir.read_json("status.json") or {}
    return Before(
        wall_s=float(sums.get("wall_s") or 0.0),
        restarts=int(sums.get("restarts") or 0),
        rollbacks=int(sums.get("rollbacks") or 0),
        lane_restarts=int(sums.get("lane_restarts") or 0),
        loader_deaths=int(sums.get("loader_deaths") or 0),
    )
