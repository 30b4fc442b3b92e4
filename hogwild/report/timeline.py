"""Timeline of the workers as numbers: a bar per worker, divided among its phases, with its deaths and stalls; and the
events of the whole job.

There are two sources: the records give a worker's main phase, once per 30 s; the events give the start, readiness and
end of its process to the millisecond. If they disagree, the events win."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hogwild.monitoring.words import event_in_words
from hogwild.report.run_data import Floats, Run

COLUMNS = 1000
HEIGHT = 20  # parts of a bar's height: a share of 1/20 is visible
MOST_MARKS = 1000  # of a kind: more lie closer together than the columns
ABSENT, STARTING, ALIVE = "not there", "starting", "alive, phase not recorded"
BOOTING = "booting"  # the records' word for a process that is starting
GAP = 10.0  # a record covers the time since the previous one, unless that is so many times the usual interval
WORKER_MARKS = {"exit": "death", "stall": "stall", "fence": "killed for safety"}
JOB_ROWS = {
    "evaluation": "evaluations",
    "checkpoint": "checkpoints",
    "pause": "pauses",
    "rollback": "rollbacks",
    "loader-exit": "loader deaths",
    "resume": "resumes",
    "node-lost": "lost nodes",
    "communicator-exit": "communicator deaths",
}


@dataclass(frozen=True, slots=True)
class PhaseBars:
    """Bars: `pixels` (workers, HEIGHT, COLUMNS) are indices into `words`; the columns divide 0 … `span_s` of
    running."""

    pixels: NDArray[np.int64]
    words: tuple[str, ...]
    span_s: float


def phase_bars(run: Run) -> PhaseBars:
    """Return the bars of every worker of the run: none without workers, only ABSENT without any time."""
    records, span_s = run.records, run.span_s
    words = (ABSENT, STARTING, ALIVE, *(STARTING if name == BOOTING else name for name in records.phase_names))
    edges = np.linspace(0.0, span_s, COLUMNS + 1)
    times = run.clock.elapsed(records.told["time"])
    pixels = np.zeros((run.workers, HEIGHT, COLUMNS), np.int64)
    for worker in range(run.workers):
        known = list(lives(run, worker))
        # A worker without events counts as alive all the time.
        shares = _alive(known or [(ALIVE, 0.0, span_s)], edges, len(words))
        phases = records.phases[worker]
        if known:
            # A 'starting' record was made after its predecessor's death, and would overwrite that process's last
            # moments; the events know the start.
            starting = [number for number, name in enumerate(records.phase_names) if name == BOOTING]
            phases = np.where(np.isin(phases, starting), np.nan, phases)
        _put_phases(shares, times, phases, edges)
        pixels[worker] = _stacked(shares)
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


def _alive(known: Sequence[tuple[str, float, float]], edges: Floats, words: int) -> Floats:
    """Return (words, COLUMNS): the share of each column's time in which the process was starting or alive. The rest is
    ABSENT. `known`: as `lives` yields them."""
    shares = np.zeros((words, COLUMNS))
    width = edges[1] - edges[0]
    if width > 0:
        for word, begin, end in known:
            overlap = np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0.0, None)
            shares[1 if word == STARTING else 2] += overlap / width
    shares[0] = np.clip(1.0 - shares.sum(0), 0.0, None)
    return shares


def _put_phases(shares: Floats, times: Floats, phases: Floats, edges: Floats) -> None:
    """Divide a process's lifetime among the phases in the records. A record covers the time since the previous one: if
    a column holds several records, each gets its share; a record that spans several columns is in each."""
    known = np.isfinite(times) & np.isfinite(phases)
    times, phases = times[known], phases[known].astype(np.int64)
    if not times.size:
        return
    usual = float(np.median(np.diff(times))) if times.size > 1 else np.inf
    first = np.minimum(np.searchsorted(times, edges[:-1]), times.size - 1)  # after the last record: use that one
    last = np.clip(np.searchsorted(times, edges[1:]), first + 1, times.size)
    there = np.maximum(times[first] - edges[1:], edges[:-1] - times[first]) <= GAP * usual
    is_phase = phases[None, :] == np.arange(len(shares) - 3)[:, None]
    sums = np.concatenate([np.zeros((len(shares) - 3, 1)), np.cumsum(is_phase, 1)], 1)
    counts = sums[:, last] - sums[:, first]
    parts = counts / np.maximum(counts.sum(0), 1.0)
    shares[3:] = np.where(there, shares[2] * parts, 0.0)
    shares[2] = np.where(there, 0.0, shares[2])


def _stacked(shares: Floats) -> NDArray[np.int64]:
    """Turn shares (words, COLUMNS) that sum to 1 into (HEIGHT, COLUMNS) indices of words, the first word at the top."""
    bounds = np.cumsum(shares, 0)[:-1]
    middles = (np.arange(HEIGHT) + 0.5) / HEIGHT
    places: NDArray[np.int64] = (middles[:, None, None] > bounds[None] + 1e-9).sum(1)
    return places


# ---- data of the page ------------------------------------------------------------------------------------------------


def page_timeline(run: Run) -> dict[str, Any] | None:
    """Return the timeline for the page's script; None if there are no workers, or no time has passed. `bars[worker]`:
    runs of equal columns, each with their number and pairs of a word's index and its part of HEIGHT. `rows`: events of
    the job by kind; a pause has its length, since its event is written when it is over."""
    found = phase_bars(run)
    if not run.workers or not found.span_s:
        return None
    return {
        "words": found.words,
        "columns": COLUMNS,
        "height": HEIGHT,
        "bars": [[*_runs(found.pixels[worker])] for worker in range(run.workers)],
        "marks": [mark for kind in WORKER_MARKS for mark in page_marks(run, kind) if "worker" in mark],
        "names": WORKER_MARKS,
        "rows": [
            {"kind": kind, "name": name, "marks": marks}
            for kind, name in JOB_ROWS.items()
            if (marks := [*page_marks(run, kind)])
        ],
    }


def _runs(pixels: NDArray[np.int64]) -> Iterator[list[int]]:
    """Yield runs of equal columns of a bar (HEIGHT, COLUMNS)."""
    columns = [tuple(column) for column in pixels.T.tolist()]
    for column, same in groupby(columns):
        parts = [part for word, those in groupby(column) for part in (word, len(list(those)))]
        yield [len(list(same)), *parts]


def page_marks(run: Run, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a kind: `at` in seconds of running time, `text`, `length` in seconds, `worker`."""
    events = [event for event in run.events_of(kind) if event.get("kind") != "left"]
    for event in events[:: 1 + len(events) // MOST_MARKS]:
        mark = {"at": float(run.clock.elapsed(event["time"])), "text": "; ".join(filter(None, event_in_words(event)))}
        mark |= {"length": event["seconds"]} if isinstance(event.get("seconds"), (int, float)) else {}
        yield mark | ({"worker": event["worker"], "kind": kind} if isinstance(event.get("worker"), int) else {})
