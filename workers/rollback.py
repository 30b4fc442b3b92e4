"""A run that has diverged (`divergence.py`) goes on from the newest good checkpoint, at half the learning rate: a
resume that the workers live through.

    everybody is parked -> begin -> [thread: find, verify, load, write into the flats] -> ledger and records -> go on

What a worker still has in hand was leased before and is void: it drops it, and makes everything it holds of its own
again, when the pause ends. Checkpoints that are newer belong to a history that is gone: they are set aside."""

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hogwild.checkpoint import load, newest_good, set_aside_after
from hogwild.checkpoint_files import update_of
from hogwild.errors import CheckpointError, RunDirError
from hogwild.params import SharedModel
from workers.session import Session


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint whose parameters, buffers and optimizer state are in shared memory by now; none without a `path`."""

    path: Path | None
    state: dict[str, Any]
    rejected: list[str]


def begin(session: Session) -> None:
    """Everybody is parked, and nothing is copied or written. The session's errand does it; when that is settled, the
    run is back, or there is no way back, and `due` says so."""
    assert not session.is_waited_for
    divergence = session.divergence
    work = partial(_restore, session.shared, session.rundir.checkpoints, divergence.older_than)
    session.errand.begin(work, partial(_go_back, session))


def _restore(shared: SharedModel, folder: Path, older_than: int | None) -> Found:
    """In a thread. Where nothing is older than the one that led nowhere, that one again: at a lower rate."""
    found = _restored(shared, folder, older_than)
    return found if found.path or older_than is None else _restored(shared, folder, older_than + 1)


def _restored(shared: SharedModel, folder: Path, older_than: int | None) -> Found:
    rejected: list[str] = []
    while True:
        path, reasons = newest_good(folder, older_than)
        rejected += reasons
        if path is None:
            return Found(None, {}, rejected)
        try:
            state = load(path)
            shared.restore(state)
        except CheckpointError as error:
            rejected.append(str(error))
            older_than = update_of(path.name)
        else:
            return Found(path, state, rejected)


def _go_back(session: Session, found: Found) -> None:
    journal, divergence = session.journal, session.divergence
    for reason in found.rejected:
        journal.say(f"warning: {reason}")
        journal.event("checkpoint-rejected", reason=reason)
    if found.path is None:
        divergence.no_way_back = "there is no good checkpoint to go back to"
        return
    why, before, samples = divergence.why, session.queue.updates, session.before.samples
    session.queue.restore(found.state["ledger"])
    session.take_over(found.state)
    session.before.samples = min(samples, session.queue.samples)
    updates = session.queue.updates
    divergence.gone_back(before, updates)
    session.board.go_back(updates, divergence.rollbacks, first_item=next(session.ids))
    session.reopen(time.monotonic())
    if session.stop is not None and session.stop.state == "succeeded":
        session.stop = None  # what met the target is undone
    factor = 0.5**divergence.rollbacks
    journal.event(
        "rollback",
        checkpoint=found.path.name,
        from_updates=before,
        updates=updates,
        samples=session.queue.samples,
        reason=why,
        lr_factor=factor,
        records_cut=_set_records_back(session, found.path),
    )
    journal.say(
        f"rollback: {why}; back from update {before:,} to {found.path.name}, and on at {factor:g} of the learning rate"
    )


def _set_records_back(session: Session, path: Path) -> int:
    """What a resume would do with the run directory; how many records were cut. A disk that refuses it costs the
    records, not the run."""
    rundir = session.rundir
    try:
        set_aside_after(rundir.checkpoints, path)
        rundir.update_latest(path.name)
        return rundir.cut_records_after(session.queue.updates)
    except (OSError, RunDirError) as error:
        session.journal.say(f"warning: {error}; records and checkpoints later than {path.name} are of what was undone")
        return 0
