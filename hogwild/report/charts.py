"""The charts of a report as data. The page's script (page_files/charts.js) decides which columns make a panel, as on
the service's page.

    metrics.jsonl ─► RunView ─┬─► Table: train, evaluations, workers: the records of each run, thinned
    events.jsonl              └─► PhaseBars: a bar per worker, divided among its phases, with its deaths and stalls

The timeline has two sources: the records give a worker's main phase, once per 30 s; the events give the start,
readiness and end of its process to the millisecond. If they disagree, the events win."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hogwild.metrics.catalog import LOSS
from hogwild.monitoring.words import (
    CHECKPOINTS,
    EVALUATIONS,
    PAUSES,
    RESTARTS,
    TROUBLE,
    event_in_words,
    in_words,
    row_of,
)
from hogwild.report.run_view import CLUSTER, LOSSES, ColumnTable, Floats, RunView

AXES = ("time", "samples", "updates")
MOST_ROWS = 6000  # of training records, of all runs together; more are thinned
MOST_NUMBERS = 60_000  # of workers, likewise
MOST_METRICS = 12
POPULARITY = "popularity"  # before the name of a metric: its value for the most popular items
ROUNDS = (f"{CLUSTER}.seconds", f"{CLUSTER}.drift")
TRAIN = (LOSS, "samples_per_s", "lr", "pss_bytes", *ROUNDS)
WORKER = ("samples_per_s", "pss_bytes", "cpu")
GAP = 10.0  # times the usual interval, or the steps around it: nothing was recorded in between


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of records, by column (rows,) float64, among them AXES; `time` is running time in seconds. Before the rows
    `breaks` nothing was recorded for long, or another attempt began. `records`: number of them before thinning.
    `is_sparse`: a missing value interrupts a curve (a worker that is not there)."""

    columns: Mapping[str, Floats]
    breaks: tuple[int, ...]
    records: int
    is_sparse: bool = False


# ---- tables ---------------------------------------------------------------------------------------------------------


def _tables(run: RunView, runs: int) -> Iterator[tuple[str, Table]]:
    records, most = run.records, MOST_ROWS // runs
    if records.train.rows:
        names = [name for name in records.train.names if name in TRAIN or name.startswith(f"{LOSSES}.")]
        yield "train", _table(run, records.train, {name: records.train[name] for name in names}, most)
    if records.evaluations.rows:
        metrics = [name for name in run.metric_names if name in records.evaluations][:MOST_METRICS]
        values = {name: records.evaluations[name] for name in metrics}
        usual = {name: value for name, value in run.snapshot.popularity.items() if name in metrics}
        values |= {f"{POPULARITY}.{name}": np.full(records.evaluations.rows, value) for name, value in usual.items()}
        yield "evaluations", _table(run, records.evaluations, values, most, is_broken=False)
    if records.told.rows and runs == 1:
        each = {f"{name}.{w}": records.workers[name][w] for name in WORKER for w in records.workers[name].names}
        yield "workers", _table(run, records.told, each, MOST_NUMBERS // max(10, len(each)), is_sparse=True)


def _axis(run: RunView, table: ColumnTable, name: str) -> Floats:
    return run.clock.elapsed(table["time"]) if name == "time" else table[name]


def _table(
    run: RunView,
    records: ColumnTable,
    values: Mapping[str, Floats],
    most: int,
    *,
    is_broken: bool = True,
    is_sparse: bool = False,
) -> Table:
    axes = {name: _axis(run, records, name) for name in AXES}
    there = np.isfinite(axes["time"])
    columns = {name: column[there] for name, column in {**axes, **values}.items()}
    rows = columns["time"].size
    # Workers are many: what matters is the lowest and the highest of all of them.
    watched = [columns[name] for name in values]
    if is_sparse:
        kinds = [[columns[key] for key in values if key.startswith(f"{name}.")] for name in WORKER]
        watched = [extreme.reduce(each) for each in kinds if each for extreme in (np.fmin, np.fmax)]
    watched = watched or [columns["time"]]
    kept = thinned(watched, most)
    breaks = gaps(columns["time"]) if is_broken else np.zeros(0, np.int64)
    begins = np.searchsorted(records["time"][there], run.clock.starts) if is_broken else breaks
    first = np.unique(np.concatenate([breaks, begins]).astype(np.int64))
    first = first[(first > 0) & (first < rows)]
    kept = np.union1d(kept, np.concatenate([first, first - 1])).astype(np.int64)
    short = {name: column[kept] for name, column in columns.items()}
    return Table(short, tuple(np.searchsorted(kept, first).tolist()), rows, is_sparse)


# ---- other data of the page -----------------------------------------------------------------------------------------


def staleness(run: RunView) -> dict[str, Any] | None:
    """Return the histogram of a run, with its percentiles; None without one."""
    counts = np.array(run.records.staleness)
    if not counts.sum():
        return None
    end = int(np.flatnonzero(counts)[-1]) + 1
    sums = np.cumsum(counts)
    p50, p99 = (int(np.searchsorted(sums, share * sums[-1])) for share in (0.5, 0.99))
    return {"counts": counts[:end], "p50": p50, "p99": p99}


def marks(run: RunView) -> list[dict[str, Any]]:
    """Return the rollbacks and resumes: their kind, and their place on each axis, NaN where unknown."""
    found: list[dict[str, Any]] = []
    train = run.records.train
    there = np.isfinite(train["updates"]) & np.isfinite(train["samples"])
    by = np.argsort(train["updates"][there], kind="stable")
    for kind in ("rollback", "resume"):
        table = ColumnTable()
        for event in run.events_of(kind):
            table.add(event.items())
        samples = table["samples"]
        if there.any():  # an older resume has no samples: they lie between those of the records around its updates
            between = np.interp(table["updates"], train["updates"][there][by], train["samples"][there][by])
            samples = np.where(np.isfinite(samples), samples, between)
        rows = zip(_axis(run, table, "time"), samples, table["updates"], strict=True)
        found += [{"kind": kind, **dict(zip(AXES, map(float, row), strict=True))} for row in rows]
    return found


def page_data(runs: Sequence[RunView], names: Sequence[str]) -> dict[str, Any]:
    """Return what the page's script draws, for `to_json`: every worker of one run, or several runs without their
    workers. `words`: the columns' names in words."""
    many = [dict(_tables(run, len(runs))) for run in runs]
    columns = {name for tables in many for table in tables.values() for name in table.columns}
    return {
        "runs": [
            {
                "name": name,
                "end": run.span_s,
                "tables": tables,
                "marks": marks(run) if len(runs) == 1 else [],
                "best": _best_place(run),
                "staleness": staleness(run),
            }
            for name, run, tables in zip(names, runs, many, strict=True)
        ],
        "words": {name: in_words(name) for name in sorted(columns)},
    }


def groups(data: Mapping[str, Any]) -> set[str]:
    """Return the parts of a page for which `page_data` has something to draw."""
    tables = [(name, table) for run in data["runs"] for name, table in run["tables"].items()]
    train = {column for name, table in tables if name == "train" for column in table.columns}
    known = {name for name, _ in tables}
    found = {
        "learning": "evaluations" in known or any(one in (LOSS, "lr") or one.startswith(LOSSES) for one in train),
        "throughput": "samples_per_s" in train,
        "resources": "pss_bytes" in train or "workers" in known,
        "rounds": not train.isdisjoint(ROUNDS),
        "staleness": any(run["staleness"] for run in data["runs"]),
    }
    return {name for name, is_there in found.items() if is_there}


def _best_place(run: RunView) -> dict[str, float] | None:
    if run.best_row is None:
        return None
    evaluations = run.records.evaluations
    place = {name: float(_axis(run, evaluations, name)[run.best_row]) for name in AXES}
    return {**place, **{name: float(evaluations[name][run.best_row]) for name in run.metric_names}}


def to_json(value: Any) -> str:
    """Return compact JSON for a page: numbers with six significant digits (whole ones in full; large ones with three
    decimals, since six digits would be seconds in a long job), null for what is not finite, and no `<`, which could end
    the script element."""
    return json.dumps(_plain(value), separators=(",", ":")).replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        if value == int(value) and abs(value) < 1e15:
            return int(value)
        return round(value, 3) if abs(value) >= 1000 else float(f"{value:.6g}")
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


# ---- long columns made short ----------------------------------------------------------------------------------------


def thinned(columns: Sequence[Floats], most: int) -> NDArray[np.int64]:
    """Return at most about `most` rows of columns (n,): in stretches of equally many rows the lowest and the highest of
    every column, so that a spike of one record stays visible; and the first and the last row."""
    (rows,) = columns[0].shape
    if rows <= most or not columns:
        return np.arange(rows)
    stretches = max(1, most // (2 * len(columns)))
    starts = np.linspace(0, rows, stretches + 1).astype(np.int64)[:-1]
    stretch = np.repeat(np.arange(stretches), np.diff(starts, append=rows))
    places = [np.lexsort((sign * column, stretch))[starts] for column in columns for sign in (1.0, -1.0)]  # NaN last
    return np.unique(np.concatenate([[0, rows - 1], *places]))


def gaps(times: Floats) -> NDArray[np.int64]:
    """Return the rows before which nothing was recorded for long: GAP times as long as usual and as the steps beside
    it, since records of workers become rarer in a long job."""
    steps = np.nan_to_num(np.diff(times))
    if steps.size < 2 or not (steps > 0).any():
        return np.zeros(0, np.int64)
    usual = max(float(np.median(steps[steps > 0])), 1e-9)
    beside = np.maximum(np.append(steps[1:], 0.0), np.insert(steps[:-1], 0, 0.0))
    return np.flatnonzero(steps > GAP * np.maximum(usual, beside)) + 1


# ---- timeline --------------------------------------------------------------------------------------------------------

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


def phase_bars(run: RunView) -> PhaseBars:
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


def lives(run: RunView, worker: int) -> Iterator[tuple[str, float, float]]:
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


def page_timeline(run: RunView) -> dict[str, Any] | None:
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
        "bars": [
            [
                [len(list(same)), *(part for word, those in groupby(column) for part in (word, len(list(those))))]
                for column, same in groupby(map(tuple, found.pixels[worker].T.tolist()))
            ]
            for worker in range(run.workers)
        ],
        "marks": [mark for kind in WORKER_MARKS for mark in page_marks(run, run.events_of(kind)) if "worker" in mark],
        "names": WORKER_MARKS,
        "rows": [
            {"name": row, "marks": marks}
            for row in (EVALUATIONS, CHECKPOINTS, PAUSES, RESTARTS, TROUBLE)
            if (marks := [*page_marks(run, [e for e in run.events if row_of(e) == row and "worker" not in e])])
        ],
    }


def page_marks(run: RunView, events: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield events: `at` in seconds of running time, `text`, `length` in seconds, `worker` and `kind`."""
    events = [event for event in events if event.get("kind") != "left"]
    for event in events[:: 1 + len(events) // MOST_MARKS]:
        mark = {"at": float(run.clock.elapsed(event["time"])), "text": "; ".join(filter(None, event_in_words(event)))}
        mark |= {"length": event["seconds"]} if isinstance(event.get("seconds"), (int, float)) else {}
        worker = event.get("worker")
        yield mark | ({"worker": worker, "kind": event["event"]} if isinstance(worker, int) else {})
