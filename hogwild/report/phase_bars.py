"""What each worker did when, as pixels: a bar per worker whose columns are filled with the phases in proportion.
Numbers only; no matplotlib.

Two sources: the records say in which phase a worker was most, once in 30 s; the events say to the millisecond when
its process was started, was ready and was gone. Where both speak, the events are believed."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hogwild.report.run_data import Floats, Run

COLUMNS = 1000
HEIGHT = 20  # pixels of a bar: a share of one twentieth is seen
ABSENT, STARTING, ALIVE = "not there", "starting", "alive, phase not recorded"
BOOTING = "booting"  # a record's word for a process that is starting
GAP = 10.0  # a record stands for the time since the one before, unless that is so many times the usual


@dataclass(frozen=True, slots=True)
class Lanes:
    """`pixels` (workers, HEIGHT, COLUMNS) are places in `words`; the columns divide 0 … `span_s` of running."""

    pixels: NDArray[np.int64]
    words: tuple[str, ...]
    span_s: float

    def used(self) -> list[str]:
        """The words that are somewhere in it, without ABSENT."""
        words = dict.fromkeys(self.words[place] for place in np.unique(self.pixels))
        return [word for word in words if word != ABSENT]


def lanes(run: Run) -> Lanes:
    """Of every worker of the run. Zero workers, or no time at all, is an array without lanes, or of ABSENT."""
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
    """STARTING and ALIVE with begin and end, in seconds of running."""
    begun, word = 0.0, ABSENT
    for event in run.events:
        kind, at = event["event"], float(run.clock.elapsed(event["time"]))
        # The workers of an attempt whose supervisor was killed have no exit: they went with it.
        over = kind in ("start", "end") or (event.get("worker") == worker and kind in ("exit", "spawn", "ready"))
        if not over:
            continue
        if word != ABSENT and at > begun:
            yield word, begun, at
        begun, word = at, {"spawn": STARTING, "ready": ALIVE}.get(kind, ABSENT)
    if word != ABSENT and run.span_s > begun:
        yield word, begun, run.span_s


def _alive(run: Run, worker: int, edges: Floats, words: int) -> Floats:
    """(words, COLUMNS): the share of each column's time in which the process was starting, or there. The rest is
    ABSENT. Where no event speaks of this worker, it was there all the time that is recorded."""
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
    """The records of a process that was there: one that says 'starting' was made after the death of the one before it,
    and would stand for the last moments of that one."""
    starting = [number for number, name in enumerate(names) if name == BOOTING]
    return np.where(np.isin(phases, starting), np.nan, phases)


def _put_phases(shares: Floats, times: Floats, phases: Floats, edges: Floats) -> None:
    """Divides the time in which the process was there among the phases that records name. A record stands for the time
    since the one before it: of a column that holds several, each has its part; one that spans several is in each."""
    known = np.isfinite(times) & np.isfinite(phases)
    times, phases = times[known], phases[known].astype(np.int64)
    if not times.size:
        return
    usual = float(np.median(np.diff(times))) if times.size > 1 else np.inf
    first = np.minimum(np.searchsorted(times, edges[:-1]), times.size - 1)  # after the last record: that one
    last = np.clip(np.searchsorted(times, edges[1:]), first + 1, times.size)
    there = np.maximum(times[first] - edges[1:], edges[:-1] - times[first]) <= GAP * usual
    is_phase = phases[None, :] == np.arange(len(shares) - 3)[:, None]
    sums = np.concatenate([np.zeros((len(shares) - 3, 1)), np.cumsum(is_phase, 1)], 1)
    counts = sums[:, last] - sums[:, first]
    parts = counts / np.maximum(counts.sum(0), 1.0)
    shares[3:] = np.where(there, shares[2] * parts, 0.0)
    shares[2] = np.where(there, 0.0, shares[2])


def _stacked(shares: Floats) -> NDArray[np.int64]:
    """(words, COLUMNS) shares that add up to 1 -> (HEIGHT, COLUMNS) places of words; the first word is at the top."""
    bounds = np.cumsum(shares, 0)[:-1]
    middles = (np.arange(HEIGHT) + 0.5) / HEIGHT
    places: NDArray[np.int64] = (middles[:, None, None] > bounds[None] + 1e-9).sum(1)
    return places
