"""Figures of a stream, for records, the summary and its advice: live loaders, filled slots, and who waits for whom."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hogwild.monitoring.run_status import StreamSnapshot, WorkerSnapshot
from hogwild.scheduling.stream_schedule import StreamSchedule
from hogwild.shared_memory.scoreboard import Phase

ALIVE = ("starting", "ready", "training")
WAITED = 0.2  # of the workers' time since the last record: a smaller share is just the latency through the parent
MOST = 0.5  # of the workers' training time: above this share the stream was the bottleneck
LEAST_S = 5.0  # least waiting time of a worker worth a message


def stream_snapshot(
    schedule: StreamSchedule, rows: Sequence[Mapping[str, Any]], workers: Sequence[WorkerSnapshot], deaths: int
) -> StreamSnapshot:
    """Return the figures for a snapshot. `rows`: of the loaders, as in status.json; `deaths`: of all attempts."""
    waiting = [worker.phases.get("waiting", 0.0) for worker in workers if worker.phases]
    waits = "loaders wait for workers" if rows and schedule.is_full else ""
    if waiting and sum(waiting) / len(waiting) > WAITED:
        waits = "workers wait for loaders"
    return StreamSnapshot(
        loaders=sum(row["state"] in ALIVE for row in rows),
        wanted=len(rows),
        filled=schedule.filled_slots,
        slots=schedule.slots,
        deaths=deaths,
        waits=waits,
    )


def waiting_of(phase_s: np.ndarray, active_s: float) -> tuple[float, float]:
    """Return (share, seconds) that a worker waited on average between the first update and the last, without pauses
    (`active_s`). Waiting before the first update belongs to the start, not to the stream. `phase_s` (procs, phases)
    float64, from `Scoreboard.phase_s`."""
    waiting, working = (float(phase_s[:, phase].mean()) for phase in (Phase.WAITING, Phase.WORKING))
    waited_s = min(waiting, max(0.0, active_s - working))
    return (waited_s / active_s if active_s > 0 else 0.0), waited_s


def about_waiting(idle: float, waited_s: float, loaders: int, *, cores: float, workers: int) -> str | None:
    """Return a sentence for a job whose workers mostly waited for streamed data, or None. `idle`: share of the possible
    training time spent waiting; `waited_s`: average per worker."""
    if idle < MOST or waited_s < LEAST_S:
        return None
    now = "1 loader" if loaders == 1 else f"{loaders} loaders"
    more = f"more data.loaders ({now} now" + (f", {cores:g} usable cores)" if loaders + workers > cores else ")")
    return (
        f"workers waited {100 * idle:.0f} % of the time for streamed batches: use {more}, less work per record, or "
        "data.feed: resident if the data fits into memory"
    )
