"""How far a running job has come, once per `log.every_s`: the training record, status.json and the progress line."""

import os
from collections.abc import Sequence
from typing import Any

from workers.session import Session


class Progress:
    """One per attempt; speeds are those since the record before. Whoever runs the session calls `record` every turn."""

    def __init__(self, session: Session, now: float) -> None:
        self._session = session
        self._loss_mark: tuple[float, int] = (0.0, 0)
        self._last: tuple[float, int] = (now, session.queue.samples)

    def record(self, now: float, workers: Sequence[dict[str, Any]], spares: Sequence[dict[str, Any]] = ()) -> None:
        """`workers`, `spares`: a row for each, for status.json."""
        session = self._session
        if not session.journal.is_status_due(now):
            return
        queue = session.queue
        loss, self._loss_mark = session.board.mean_loss_since(self._loss_mark)
        then, samples = self._last
        speed = max(0, queue.samples - samples) / (now - then) if now > then else 0.0  # a rollback takes some away
        self._last = (now, queue.samples)
        position = {"epoch": queue.epoch, "updates": queue.updates, "samples": queue.samples}
        if loss is not None:
            session.journal.metrics("train", **position, loss=loss, samples_per_s=speed)
        session.journal.status(
            state="running" if session.clock.paused_since_s is None else "paused",
            **position,
            planned_updates=queue.planned_updates,
            progress=session.progress,
            pid=os.getpid(),
            samples_per_s=speed,
            loss=loss,
            metrics=session.metrics,
            restarts=session.before.restarts + session.restarts,
            rollbacks=session.divergence.rollbacks,
            wall_s=session.wall_s(now),
            workers=list(workers),
            spares=list(spares),
        )
        session.journal.line(now, self._line(loss, speed))

    def _line(self, loss: float | None, speed: float) -> str:
        session, queue = self._session, self._session.queue
        shown = "" if loss is None else f"  loss {loss:.4f}"
        return (
            f"{100 * session.progress:3.0f} %  epoch {min(queue.epoch + 1, queue.limits.epochs)}/"
            f"{queue.limits.epochs}  update {queue.updates}{shown}  {speed:,.0f} samples/s"
            + (f"  restarts {session.restarts}" if session.restarts else "")
        )
