"""Timeline of the workers as numbers: a bar per worker, divided among its phases, with its deaths and stalls; and the
events of the whole job.

There are two sources: the records give a worker's main phase, once per 30 s; the events give the start, readiness and
end of its process to the millisecond. If they disagree, the events win."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hogwild.monitoring.words import CHECKPOINTS, EVALUATIONS, PAUSES, RESTARTS, TROUBLE, event_in_words, row_of
from hogwild.report.curves import GAP
from hogwild.report.run_data import Floats, Run

COLUMNS = 1000
HEIGHT = 20  # parts of a bar's height: a share of 1/20 is visible
MOST_MARKS = 1000  # of a kind: more lie closer together than the columns
ABSENT, STARTING, ALIVE = "not there", "starting", "alive, phase not recorded"
BOOTING = "booting"  # the records' word for a process that is starting
WORKER_MARKS = {"exit": "death", "stall": "stall", "fence": "killed for safety"}


@dataclass(frozen=True, slots=True)
class PhaseBars:
    """Bars: `pixels` (workers, HEIGHT, COLUMNS) are indices into `words`; the columns divide 0 … `span_s` of
    running."""

    pixels: NDArray[np.int64]
    words: tuple[str, ...]
    span_s: float


def phase_bars(run: Run) -> PhaseBars:
    """Return the bars of every worker of the run: none without workers, only ABSENT without any time.

    A bar is asked for its word HEIGHT times in each column; the answers of a column are stacked."""
    records, span_s = run.records, run.span_s
    words = (ABSENT, STARTING, ALIVE, *(STARTING if name == BOOTING else name for name in records.phase_names))
    at = np.asarray((np.arange(COLUMNS * HEIGHT) + 0.5) * (span_s / (COLUMNS * HEIGHT)), np.float64)
    told_at = run.clock.elapsed(records.told["time"])
    pixels = np.zeros((run.workers, HEIGHT, COLUMNS), np.int64)
    for worker in range(run.workers if span_s else 0):
        known = list(lives(run, worker))
        phases = records.phases[worker]
        if known:
            # A 'starting' record was made after its predecessor's death, and would overwrite that process's last
            # moments; the events know the start.
            starting = [number for number, name in enumerate(records.phase_names) if name == BOOTING]
            phases = np.where(np.isin(phases, starting), np.nan, phases)
        found = np.zeros(at.size, np.int64)
        for word, begin, end in known or [(ALIVE, 0.0, span_s)]:  # without events it counts as alive all the time
            found[(at >= begin) & (at < end)] = words.index(word)
        _put_phases(found, at, told_at, phases)
        pixels[worker] = np.sort(found.reshape(COLUMNS, HEIGHT)).T
    return PhaseBars(pixels, words, span_s)


def lives(run: Run, worker: int) -> Iterator[tuple[str, float, float]]:
    """Yield STARTING and ALIVE with begin and end, in seconds of running time."""
    begun, word = 0.0, ABSENT
    for event in run.events:
        kind = event["event"]
        # A killed supervisor's workers have no exit event: they died with it.
        over = kind in ("start", "end") or (event.get("worker") == worker and kind in ("exit", "spawn", "ready"))
        if not over:
            continue
        at = float(run.clock.elapsed(event["time"]))
        if word != ABSENT and at > begun:
            yield word, begun, at
        begun, word = at, {"spawn": STARTING, "ready": ALIVE}.get(kind, ABSENT)
    if word != ABSENT and run.span_s > begun:
        yield word, begun, run.span_s


def _put_phases(found: NDArray[np.int64], at: Floats, times: Floats, phases: Floats) -> None:
    """Put the phases of the records where the process was alive. A record covers the time since the previous one."""
    known = np.isfinite(times) & np.isfinite(phases)
    times, phases = times[known], phases[known].astype(np.int64)
    if not times.size:
        return
    usual = float(np.median(np.diff(times))) if times.size > 1 else np.inf
    record = np.minimum(np.searchsorted(times, at), times.size - 1)  # after the last record: use that one
    is_told = (found == 2) & (np.abs(times[record] - at) <= GAP * usual)
    found[is_told] = 3 + phases[record[is_told]]


# ---- data of the page ------------------------------------------------------------------------------------------------


def page_timeline(run: Run) -> dict[str, Any] | None:
    """Return the timeline for the page's script; None if there are no workers, or no time has passed. `bars[worker]`:
    runs of equal columns, each with their number and pairs of a word's index and its part of HEIGHT. `rows`: events of
    the job; a pause has its length, since its event is written when it is over."""
    found = phase_bars(run)
    if not run.workers or not found.span_s:
        return None
    return {
        "words": found.words,
        "columns": COLUMNS,
        "height": HEIGHT,
        "bars": [[*_runs(found.pixels[worker])] for worker in range(run.workers)],
        "marks": [mark for kind in WORKER_MARKS for mark in page_marks(run, run.events_of(kind)) if "worker" in mark],
        "names": WORKER_MARKS,
        "rows": [
            {"name": row, "marks": marks}
            for row in (EVALUATIONS, CHECKPOINTS, PAUSES, RESTARTS, TROUBLE)
            if (marks := [*page_marks(run, [e for e in run.events if row_of(e) == row and "worker" not in e])])
        ],
    }


def _runs(pixels: NDArray[np.int64]) -> Iterator[list[int]]:
    """Yield runs of equal columns of a bar (HEIGHT, COLUMNS)."""
    columns = [tuple(column) for column in pixels.T.tolist()]
    for column, same in groupby(columns):
        parts = [part for word, those in groupby(column) for part in (word, len(list(those)))]
        yield [len(list(same)), *parts]


def page_marks(run: Run, events: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield events: `at` in seconds of running time, `text`, `length` in seconds, `worker` and `kind`."""
    events = [event for event in events if event.get("kind") != "left"]
    for event in events[:: 1 + len(events) // MOST_MARKS]:
        mark = {"at": float(run.clock.elapsed(event["time"])), "text": "; ".join(filter(None, event_in_words(event)))}
        mark |= {"length": event["seconds"]} if isinstance(event.get("seconds"), (int, float)) else {}
        worker = event.get("worker")
        yield mark | ({"worker": worker, "kind": event["event"]} if isinstance(worker, int) else {})
