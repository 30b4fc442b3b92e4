"""summary.json: the result of a job in one object, written at every end, good or bad."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from hogwild.errors import code_of
from hogwild.monitoring.stream_figures import about_waiting, waiting_of
from hogwild.shared_memory.scoreboard import Phase, idle_share
from hogwild.training import loss_scaler
from hogwild.workers.session.outcome import Clock, Outcome
from hogwild.workers.session.session import Session

SKIPPED_SHARE = 0.05


def summarise(session: Session, outcome: Outcome, now: float, warnings: Sequence[str]) -> dict[str, Any]:
    """Return the summary. After a resume, samples, updates and leases describe the surviving history; wall_s and
    restarts are sums over the attempts; startup_s, train_s, paused_s and samples_per_s are the last attempt's. In a
    cluster samples, updates and leases are all nodes'; times, restarts and samples_per_s are this node's."""
    queue, board, clock = session.queue, session.board, session.clock
    train_s = board.training_span_s()
    first_s = board.first_commit_s()
    active_s = train_s - clock.paused_s
    samples = session.samples_here
    written = session.rundir.latest
    spent = board.phase_s(time.monotonic_ns())
    summary = {
        "state": outcome.state,
        "reason": outcome.reason,
        "name": session.job.name,
        "run_dir": str(session.rundir.path),
        "wall_s": round(session.wall_s(now), 3),
        "train_s": round(train_s, 3),
        "paused_s": round(clock.paused_s, 3),
        "startup_s": round(first_s - clock.command_began_s, 3) if first_s is not None else None,
        "startup": _startup(clock, first_s),
        "compiling_s": round(float(spent[:, Phase.COMPILING].max()), 3),
        "idle": round(idle_share(spent), 4),
        "samples": queue.samples,
        "updates": queue.updates,
        "samples_per_s": round(samples / active_s, 1) if active_s > 0 else None,
        "procs": session.plan.procs,
        "threads": session.plan.threads,
        "device": ", ".join(dict.fromkeys(session.plan.devices)) or "cpu",
        "placement": session.plan.placement,
        "update": session.plan.update,
        "update_why": session.plan.why,
        "exchange": session.plan.exchange,
        "metrics": session.evaluating.values,
        "train_loss": session.train_loss,
        "best": None if session.best is None else asdict(session.best),
        "overflows": loss_scaler.overflows(board),
        "restarts": session.before.restarts + session.restarts,
        "rollbacks": session.divergence.rollbacks,
        "lane_restarts": session.lane_restarts,
        "loader_deaths": session.loader_deaths,
        "ring": None if session.streamed is None else session.streamed.ring.spec.record(),
        "cluster": _cluster(session, active_s),
        "leases": {"total": queue.total, **asdict(queue.ledger)},
        "staleness": asdict(board.staleness()),
        "peak_pss_bytes": session.peak_pss_bytes,
        "checkpoint": written.resolve().name if written.is_symlink() else None,
        "warnings": [*warnings],
        "advice": _advice(session),
    }
    if outcome.error is not None:
        summary["error"] = str(outcome.error)
        summary["error_code"] = code_of(outcome.error)
    if outcome.exit_status is not None:
        summary["exit_status"] = outcome.exit_status
    return summary


def _cluster(session: Session, active_s: float) -> dict[str, Any] | None:
    """Return the nodes and rounds, with mean speeds instead of those of the last, short round; None on one machine, or
    if the nodes never met."""
    node = session.node
    if node is None or not node.members:
        return None

    def speed(samples: int | None) -> float | None:
        return round(samples / active_s, 1) if samples is not None and active_s > 0 else None

    made = {number: note["counts"]["samples"] for number, note in node.notes.items()}
    rows = [{**row, "samples_per_s": speed(made.get(row["node"]))} for row in node.rows()]
    in_all = speed(session.queue.samples - session.before.samples)
    return {**node.record(), "of_nodes": rows, "samples_per_s": in_all}


def _startup(clock: Clock, first_s: float | None) -> dict[str, float] | None:
    """Return the seconds until torch was imported, until model and data were built, until they lay in shared memory,
    and until a worker, which imported torch meanwhile, made the first update. They add up to startup_s."""
    if first_s is None:
        return None
    marks = (clock.command_began_s, clock.imported_s, clock.built_s, clock.shared_s, first_s)
    names = ("import_s", "build_s", "share_s", "workers_s")
    return {name: round(end - start, 3) for name, (start, end) in zip(names, pairwise(marks), strict=True)}


def _advice(session: Session) -> str | None:
    """Return one line for a job that did less than it seems, or whose workers waited for batches."""
    if session.queue.ledger.skipped > SKIPPED_SHARE * session.queue.total:
        return session.about_skipped
    if session.streamed is None or not session.plan.procs:
        return None
    active_s = session.board.training_span_s() - session.clock.paused_s
    share, waited_s = waiting_of(session.board.phase_s(time.monotonic_ns()), active_s)
    cores, procs = session.plan.usable_cores, session.plan.procs
    return about_waiting(share, waited_s, session.streamed.loaders, cores=cores, workers=procs)
