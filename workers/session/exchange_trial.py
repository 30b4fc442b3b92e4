"""The choice of exchange (direct or delta), and the speed-up by the workers: measured in the job's first seconds, on
updates that count.

    warm -> pause -> direct | pause -> delta | pause -> one worker alone | pause -> …  several times in turn -> choice

Pauses separate the slices (`pauses.py`), because a pause flushes everything. A slice in which a worker died, or that
another pause cut short, is measured again. Nothing is measured in a job too short to benefit.
"""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from hogwild.config.load import Job
from hogwild.planning.device_placement import CPU, SHARED
from hogwild.shared_memory.scoreboard import Control, Scoreboard, Word

WARM_BATCHES = 10  # per worker before any measurement: the first batches import, compile and allocate
SLICE_UPDATES = 30  # least updates per worker
SLICE_FLUSHES = 3
SHORTEST_S, LONGEST_S = 0.1, 2.0  # a slice
SOLO_PART = 1 / 3  # of a slice: while one worker is measured, the others are idle
WORTH = 5.0  # a trial may take at most 1/WORTH of the remaining time
CLEARLY_FASTER = 1.05  # least speed-up of delta over direct, because its updates are older
ENOUGH = 0.7  # least part of a slice that must have run before another pause ends it
MOST_SLICES = 24  # including repeated ones: bounds the trial of a job whose workers keep dying


class Way(Enum):
    DIRECT = "direct"
    DELTA = "delta"
    SOLO = "one worker"


# Forwards and backwards, so that a machine that slows down meanwhile favours no way.
BOTH = (Way.DIRECT, Way.DELTA, Way.SOLO, Way.DELTA, Way.DIRECT, Way.SOLO, Way.DIRECT, Way.DELTA)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a trial. `rates`: median updates per second of each measured way, over all workers."""

    exchange: str
    rates: Mapping[str, float]
    why: str

    @property
    def is_measured(self) -> bool:
        """True if both direct and delta were measured."""
        return Way.DIRECT.value in self.rates and Way.DELTA.value in self.rates

    @property
    def speedup(self) -> float | None:
        """Speed of all workers relative to one worker alone; None if not measured."""
        solo, ours = self.rates.get(Way.SOLO.value), self.rates.get(self.exchange)
        return ours / solo if solo and ours else None


def ways_of(job: Job, procs: int, why: str, *, fused: bool = False, placement: str = CPU) -> tuple[Way, ...]:
    """Return the ways to measure: none with one worker, and none with kernels, whose jobs are often over before that;
    `why` as from `why_settled`."""
    if procs < 2 or fused:
        return ()
    if not why:
        return BOTH
    given = Way(exchange_of(job, procs, placement=placement))
    return (given, Way.SOLO, Way.SOLO, given)


def why_settled(
    job: Job, procs: int, *, sparse: bool, has_room: bool, shared: bool, fused: bool = False, placement: str = CPU
) -> str:
    """Return why the exchange is not chosen by measuring, for the log; "" if it is. `sparse`: some gradients are
    sparse; `has_room`: memory suffices for delta's copies; `shared`: the optimizer's state is shared."""
    if fused:
        return "the compiled kernel writes the shared parameters itself"
    if placement != CPU:
        return f"train.placement is {placement}"
    if job.train.exchange != "auto":
        return "as given"
    if procs < 2:
        return "only one worker"
    if job.data.feed == "stream":
        return "the loaders set the pace of streamed data"
    if sparse:  # each update touches few rows only
        return "weight copies do not pay with sparse gradients"
    if shared:
        return "a shared optimizer state needs shared parameters"
    return "" if has_room else "too little memory for the copies that delta needs"


def exchange_of(job: Job, procs: int, *, fused: bool = False, placement: str = CPU) -> str:
    """Return the exchange a job begins with. One worker has nobody to wait for and equals the plain loop bit by bit; a
    kernel writes the flats, with private copies of hot rows."""
    if placement != CPU:
        return "direct" if placement == SHARED else "delta"
    return "delta" if (job.train.exchange == "delta" and procs > 1 and not fused) else "direct"


def choose(rates: Mapping[Way, Sequence[float]], given: str | None, why: str) -> Verdict:
    """Return the verdict from the measured rates. `given`: the exchange if it is fixed, with reason `why`; None:
    choose."""
    medians = {way.value: statistics.median(measured) for way, measured in rates.items() if measured}
    if given is not None:
        return Verdict(given, medians, why)
    direct, delta = medians.get("direct"), medians.get("delta")
    if direct is None or delta is None:
        return Verdict("direct", medians, "not measured: too little time between pauses, or a worker died")
    if delta > CLEARLY_FASTER * direct:
        return Verdict("delta", medians, f"{delta / direct:.2f} times as fast as direct")
    return Verdict("direct", medians, f"delta is {delta / direct:.2f} times as fast, and its updates are older")


def words_of(verdict: Verdict, samples: int) -> str:
    """Return one line for a person: choice, reason and rates in samples per second; an update has `samples`."""
    figures = ", ".join(f"{way} {rate * samples:,.0f}" for way, rate in verdict.rates.items())
    return f"exchange {verdict.exchange}: {verdict.why}" + (f" (samples/s: {figures})" if figures else "")


class ExchangeTrial:
    """The trial of one job. `is_due` is called between updates, `end_slice` when all workers are parked, `start_slice`
    just before they continue. Times are monotonic, in seconds."""

    def __init__(
        self, board: Scoreboard, procs: int, ways: Sequence[Way], given: str | None, sync_every: int, why: str = ""
    ) -> None:
        self._board, self._procs = board, procs
        self._left = deque(ways)
        self._given = given
        self._why = why
        self._sync_every = sync_every
        self._rates: dict[Way, list[float]] = {way: [] for way in ways}
        self._current: Way | None = None
        self._began_s = 0.0
        self._before: list[int] = []
        self._incarnations: list[int] = []
        self._slice_s = self._length_s = 0.0  # of a normal slice, and of the current one
        self._begun = 0
        self.verdict: Verdict | None = None

    @property
    def is_over(self) -> bool:
        return self._current is None and not self._left

    def is_due(self, now: float, *, all_train: bool, left_s: float) -> bool:
        """Return whether a pause should begin or end a slice. `all_train`: every worker has committed something;
        `left_s`: the remaining time of the job."""
        if self._current is not None:
            return now - self._began_s >= self._length_s
        if not self._left or not all_train or min(self._each(Word.BATCHES)) < WARM_BATCHES:
            return False
        self._slice_s = self._slice_of(self._update_s())
        if left_s < WORTH * self._slice_s * len(self._left):
            self._left.clear()
            self.verdict = Verdict(self._given or "direct", {}, "not measured: the job is too short")
            return False
        return True

    def cancel(self) -> None:
        """Measure no more: the number of workers changes. A slice that is on ends at its time, for nothing."""
        self._left.clear()
        self._begun = MOST_SLICES
        if self._current is None and self.verdict is None:
            self.verdict = Verdict(self._given or "direct", {}, "not measured: the number of workers changed")

    def _update_s(self) -> float:
        """Return the time of one worker's update."""
        words = self._board.words[: self._procs]
        return float(words[:, Word.BUSY_NS].sum()) / 1e9 / max(1, int(words[:, Word.UPDATES].sum()))

    def _slice_of(self, update_s: float) -> float:
        flushes = SLICE_FLUSHES * self._sync_every if Way.DELTA in self._rates else 0
        return max(2 * update_s, min(LONGEST_S, max(SHORTEST_S, update_s * max(SLICE_UPDATES, flushes))))

    def end_slice(self, now: float) -> None:
        """Measure the slice by its commits; all workers are parked. Each worker's time ends with its own last commit,
        so that waiting for the slowest to park does not count."""
        way, self._current = self._current, None
        if way is None:
            return
        is_whole = now - self._began_s >= ENOUGH * self._length_s and self._is_complete()
        rate = self._rate() if is_whole else 0.0
        if rate > 0.0:
            self._rates[way].append(rate)
        elif self._begun < MOST_SLICES and way is not Way.SOLO:  # a SOLO slice without worker 0 trains nothing
            self._left.appendleft(way)
        if not self._left:
            self.verdict = choose(self._rates, self._given, self._why)

    def _is_complete(self) -> bool:
        """Return True if no worker died in the slice: each has the same incarnation as at its start, and has parked."""
        everybody = range(self._procs)
        is_here = self._board.parked(everybody, int(self._board.control[Control.PAUSE]))
        return is_here and self._incarnations == self._each(Word.INCARNATION)

    def _rate(self) -> float:
        last = self._board.words[: self._procs, Word.LAST_NS]
        total = 0.0
        for worker, (now, before) in enumerate(zip(self._each(Word.UPDATES), self._before, strict=True)):
            if now > before:
                total += (now - before) / (int(last[worker]) / 1e9 - self._began_s)
        return total

    def start_slice(self, now: float) -> int | None:
        """Set the exchange for the next slice. Return the updates between two flushes (1 in direct); None if there is
        nothing (more) to measure, or workers are not warm: there are other pauses, too."""
        if not self._left or not self._slice_s:
            return None
        self._current = way = self._left.popleft()
        self._begun += 1
        self._length_s = max(2 * self._update_s(), SOLO_PART * self._slice_s) if way is Way.SOLO else self._slice_s
        self._began_s, self._incarnations = now, self._each(Word.INCARNATION)
        self._before = self._each(Word.UPDATES)  # applied ones only: dropping one as too old is quick
        sync_every = self._sync_every if way is Way.DELTA else 0
        self._board.set_exchange(sync_every, active=1 if way is Way.SOLO else 0, for_now=True)
        return sync_every or 1

    def _each(self, word: Word) -> list[int]:
        return [int(value) for value in self._board.words[: self._procs, word]]
