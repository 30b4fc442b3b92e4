"""Going on with a run: what may change, which checkpoint, what it brings back."""

from collections.abc import Mapping
from typing import Any

from hogwild.checkpoint import load, newest_good, set_aside_after, sweep
from hogwild.config import Job, load_job
from hogwild.errors import CheckpointError, UsageError
from hogwild.job import differences
from hogwild.rundir import RunDir
from workers.outcome import Before
from workers.session import Session

# What a resumed job may change; anything else would make it another job.
MAY_CHANGE = (
    "train.procs",
    "train.threads",
    "train.epochs",
    "train.max_updates",
    "train.max_time_s",
    "train.device",
    "evaluate.target",
    "log.",
    "checkpoint.",
    "supervise.",
)


def check_changes(rundir: RunDir, job: Job) -> None:
    before = load_job(rundir.resolved_file)
    changed = [
        f"{path}: was {old!r}, now {new!r}"
        for path, old, new in differences(before.model_dump(), job.model_dump())
        if not path.startswith(MAY_CHANGE)
    ]
    if changed:
        raise UsageError(
            f"a resumed job may change {', '.join(name.rstrip('.') for name in MAY_CHANGE)}; these would make it "
            "another job:\n  " + "\n  ".join(changed)
        )


def restore(session: Session) -> None:
    """Takes over the newest checkpoint that proves to be whole; without one the run starts from its beginning."""
    sweep(session.rundir.checkpoints)
    path, rejected = newest_good(session.rundir.checkpoints)
    for reason in rejected:
        session.journal.say(f"warning: {reason}")
        session.journal.event("checkpoint-rejected", reason=reason)
    set_aside_after(session.rundir.checkpoints, path)
    session.before = _sums_before(session.rundir)
    if path is None:
        cut = session.rundir.cut_records_after(0)
        session.journal.say("there is no checkpoint to resume from: the run starts from its beginning")
        session.journal.event("resume", checkpoint=None, records_cut=cut)
        return
    state = load(path)
    words = session.shared.restore(state)
    try:
        session.queue.restore(state["ledger"])
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{path} does not fit this job: {error}") from error
    session.take_over(state)
    cut = session.rundir.cut_records_after(session.queue.updates)
    session.journal.event("resume", checkpoint=path.name, updates=session.queue.updates, records_cut=cut)
    session.journal.say(
        f"resuming from {path.name}: {session.queue.samples:,} samples done" + (f"; {words}" if words else "")
    )


def _sums_before(rundir: RunDir) -> Before:
    sums: Mapping[str, Any] = rundir.read_json("status.json") or {}
    return Before(wall_s=float(sums.get("wall_s") or 0.0), restarts=int(sums.get("restarts") or 0))
