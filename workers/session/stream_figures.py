"""What is told of a stream: how many loaders are alive, how full the ring is, and who waits for whom. Read by the
supervisor for records, for the summary, and for what `advice` says at the end."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hogwild.monitoring.job_view import StreamGlance, WorkerGlance
from hogwild.shared_memory.scoreboard import Phase
from workers.session.ring_state import RingState

ALIVE = ("starting", "ready", "training")
WAITED = 0.2  # of the workers' time since the last record: less is no more than the way of a batch through the parent
MOST = 0.5  # of the time that workers could have trained: more, and the stream was what the job waited for
LEAST_S = 5.0  # of a worker's time: less is not worth a sentence


def stream_glance(
    state: RingState, rows: Sequence[Mapping[str, Any]], workers: Sequence[WorkerGlance], deaths: int
) -> StreamGlance:
    """`rows`: of the loaders, as in status.json; `deaths`: of all attempts."""
    schedule = state.schedule
    return StreamGlance(
        loaders=sum(row["state"] in ALIVE for row in rows),
        wanted=len(rows),
        filled=schedule.filled_slots,
        slots=schedule.slots,
        deaths=deaths,
        waits=_who_waits(state, rows, workers),
    )


def _who_waits(state: RingState, rows: Sequence[Mapping[str, Any]], workers: Sequence[WorkerGlance]) -> str:
    shares = [worker.phases.get("waiting", 0.0) for worker in workers if worker.phases]
    if shares and sum(shares) / len(shares) > WAITED:
        return "workers wait for loaders"
    is_full = rows and state.schedule.is_full
    return "loaders wait for workers" if is_full else ""


def ring_record(state: RingState) -> dict[str, int]:
    """Of a ring, for records: its batches, and what it takes of memory."""
    return {"slots": state.ring.spec.slots, "bytes": state.ring.spec.nbytes}


def waiting_of(phase_s: np.ndarray, active_s: float) -> tuple[float, float]:
    """(share, seconds) of the time between the first update and the last, pauses left out (`active_s`), that a worker
    waited, on average. What it waited before the first update is the start's, not the stream's. `phase_s` (procs,
    phases) float64, from `Scoreboard.phase_s`."""
    waiting, working = (float(phase_s[:, phase].mean()) for phase in (Phase.WAITING, Phase.WORKING))
    waited_s = min(waiting, max(0.0, active_s - working))
    return (waited_s / active_s if active_s > 0 else 0.0), waited_s


def about_waiting(idle: float, waited_s: float, loaders: int, *, cores: float, workers: int) -> str | None:
    """A sentence for a job whose workers waited for streamed data most of the time. `idle`: the share of the time that
    they could have trained; `waited_s`: by each of them, on average. None where there is nothing to say."""
    if idle < MOST or waited_s < LEAST_S:
        return None
    now = "1 loader" if loaders == 1 else f"{loaders} loaders"
    more = f"more data.loaders ({now} now" + (f", {cores:g} usable cores)" if loaders + workers > cores else ")")
    return (
        f"workers waited {100 * idle:.0f} % of the time for streamed batches: {more}, less work for each record, or "
        "data.feed: resident, where the data fits into memory"
    )
