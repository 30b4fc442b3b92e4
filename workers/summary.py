"""summary.json: what a job did, in one object, written at every end, good or bad."""

from dataclasses import asdict
from typing import Any

from workers.outcome import Outcome
from workers.session import Session

SKIPPED_SHARE = 0.05


def summarise(session: Session, outcome: Outcome, now: float) -> dict[str, Any]:
    """After a resume, samples, updates and leases describe the surviving history; wall_s and restarts are sums over the
    attempts; startup_s, train_s, paused_s and samples_per_s are the last attempt's."""
    queue, board, clock = session.queue, session.board, session.clock
    train_s = board.training_span_s()
    first_s = board.first_commit_s()
    active_s = train_s - clock.paused_s
    samples = queue.samples - session.before.samples
    written = session.rundir.latest
    summary = {
        "state": outcome.state,
        "reason": outcome.reason,
        "name": session.job.name,
        "run_dir": str(session.rundir.path),
        "wall_s": round(session.wall_s(now), 3),
        "train_s": round(train_s, 3),
        "paused_s": round(clock.paused_s, 3),
        "startup_s": round(first_s - clock.command_began_s, 3) if first_s is not None else None,
        "samples": queue.samples,
        "updates": queue.updates,
        "samples_per_s": round(samples / active_s, 1) if active_s > 0 else None,
        "procs": session.plan.procs,
        "threads": session.plan.threads,
        "device": "cpu",
        "placement": "cpu",
        "update": "autograd",
        "exchange": "direct",
        "metrics": session.metrics,
        "best": session.best,
        "restarts": session.before.restarts + session.restarts,
        "leases": {"total": queue.total, **asdict(queue.ledger)},
        "staleness": asdict(board.staleness()),
        "peak_pss_bytes": session.peak_pss_bytes,
        "checkpoint": written.resolve().name if written.is_symlink() else None,
        "advice": _advice(session),
    }
    if outcome.error is not None:
        summary["error"] = str(outcome.error)
    if outcome.exit_status is not None:
        summary["exit_status"] = outcome.exit_status
    return summary


def _advice(session: Session) -> str | None:
    """One line for a job that did less than it seems."""
    skipped, total = session.queue.ledger.skipped, session.queue.total
    if skipped <= SKIPPED_SHARE * total:
        return None
    return (
        f"{skipped:,} of {total:,} batches were not applied, because the loss or a gradient was not finite: lower the "
        "learning rate or set train.grad_clip"
    )
