"""Activity of each worker over time, as pixels: a bar per worker, each column divided among the phases in proportion.
Numbers only; no matplotlib.

Two sources: the records give a worker's main phase, once per 30 s; the events give the start, readiness and end of its
process to the millisecond. If they disagree, the events win."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hogwild.report.run_data import Floats, Run

COLUMNS = 1000
HEIGHT = 20  # pixels of a bar: a share of 1/20 is visible
ABSENT, STARTING, ALIVE = "not there", "starting", "alive, phase not recorded"
BOOTING = "booting"  # the records' word for a process that is starting
GAP = 10.0  # a record covers the time since the previous one, unless that is so many times the usual interval


@dataclass(frozen=True, slots=True)
class Lanes:
    """Bars: `pixels` (workers, HEIGHT, COLUMNS) are indices into `words`; the columns divide 0 … `span_s` of
    running."""

    pixels: NDArray[np.int64]
    words: tuple[str, ...]
    span_s: float

    def used(self) -> list[str]:
        """Return the words that occur, without ABSENT."""
        words = dict.fromkeys(self.words[place] for place in np.unique(self.pixels))
        return [word for word in words if word != ABSENT]


def lanes(run: Run) -> Lanes:
    """Return the bars of every worker of the run: none without workers, only ABSENT without any time."""
    records, span_s = run.records, run.span_s
    words = (ABSENT, STARTING, ALIVE, *(STARTING if name == BOOTING else name for name in records.phase_names))
    edges = np.linspace(0.0, span_s, COLUMNS + 1)
    times = run.clock.elapsed(records.told["time"])
    pixels = np.zeros((run.workers, HEIGHT, COLUMNS), np.int64)
    for worker in range(run.workers):
        shares = _alive(run, worker, edges, len(words))
        phases = records.phases[worker]
        if any(lives(run, worker)):
            phases = _while_alive(phases, records.phase_names)
        _put_phases(shares, times, phases, edges)
        pixels[worker] = _stacked(shares)
    return Lanes(pixels, words, span_s)


def lives(run: Run, worker: int) -> Iterator[tuple[str, float, float]]:
    """Yield STARTING and ALIVE with begin and end, in seconds of running time."""
    begun, word = 0.0, ABSENT
    for event in run.events:
        kind, at = event["event"], float(run.clock.elapsed(event["time"]))
        # A killed supervisor's workers have no exit event: they died with it.
        over = kind in ("start", "end") or (event.get("worker") == worker and kind in ("exit", "spawn", "ready"))
        if not over:
            continue
        if word != ABSENT and at > begun:
            yield word, begun, at
        begun, word = at, {"spawn": STARTING, "ready": ALIVE}.get(kind, ABSENT)
    if word != ABSENT and run.span_s > begun:
        yield word, begun, run.span_s


def _alive(run: Run, worker: int, edges: Floats, words: int) -> Floats:
    """Return (words, COLUMNS): the share of each column's time in which the process was starting or alive. The rest is
    ABSENT. A worker without events counts as alive all the time."""
    shares = np.zeros((words, COLUMNS))
    width = edges[1] - edges[0]
    known = list(lives(run, worker)) or [(ALIVE, 0.0, float(edges[-1]))]
    if width > 0:
        for word, begin, end in known:
            overlap = np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0.0, None)
            shares[1 if word == STARTING else 2] += overlap / width
    shares[0] = np.clip(1.0 - shares.sum(0), 0.0, None)
    return shares


def _while_alive(phases: Floats, names: list[str]) -> Floats:
    """Drop 'starting' records of a process known from events: such a record was made after its predecessor's death, and
    would overwrite that process's last moments."""
    starting = [number for number, name in enumerate(names) if name == BOOTING]
    return np.where(np.isin(phases, starting), np.nan, phases)


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
