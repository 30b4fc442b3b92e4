"""The curves of a report as data: the records of each run as thinned tables. The page's script (page_files/charts.js)
decides which columns make a panel, as on the service's page, and draws them.

    metrics.jsonl ─► Run ─► Table: train, evaluations, workers ─► JSON of the page"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hogwild.metrics.catalog import LOSS
from hogwild.monitoring.words import in_words
from hogwild.report.run_data import CLUSTER, LOSSES, ColumnTable, Floats, Run

AXES = ("time", "samples", "updates")
MOST_ROWS = 6000  # of training records, of all runs together; more are thinned
MOST_NUMBERS = 60_000  # of workers, likewise
MOST_METRICS = 12
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


def _tables(run: Run, runs: int) -> Iterator[tuple[str, Table]]:
    records, most = run.records, MOST_ROWS // runs
    if records.train.rows:
        names = [name for name in records.train.names if name in TRAIN or name.startswith(f"{LOSSES}.")]
        yield "train", _table(run, records.train, {name: records.train[name] for name in names}, most)
    if records.evaluations.rows:
        metrics = [name for name in run.metric_names if name in records.evaluations][:MOST_METRICS]
        values = {name: records.evaluations[name] for name in metrics}
        yield "evaluations", _table(run, records.evaluations, values, most, is_broken=False)
    if records.told.rows and runs == 1:
        each = {f"{name}.{w}": records.workers[name][w] for name in WORKER for w in records.workers[name].names}
        yield "workers", _table(run, records.told, each, MOST_NUMBERS // max(10, len(each)), is_sparse=True)


def _axis(run: Run, table: ColumnTable, name: str) -> Floats:
    return run.clock.elapsed(table["time"]) if name == "time" else table[name]


def _table(
    run: Run,
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
    watched = list(_extremes(columns) if is_sparse else (columns[name] for name in values)) or [columns["time"]]
    kept = thinned(watched, most)
    breaks = gaps(columns["time"]) if is_broken else np.zeros(0, np.int64)
    begins = np.searchsorted(records["time"][there], run.clock.starts) if is_broken else breaks
    first = np.unique(np.concatenate([breaks, begins]).astype(np.int64))
    first = first[(first > 0) & (first < rows)]
    kept = np.union1d(kept, np.concatenate([first, first - 1])).astype(np.int64)
    short = {name: column[kept] for name, column in columns.items()}
    return Table(short, tuple(np.searchsorted(kept, first).tolist()), rows, is_sparse)


def _extremes(columns: Mapping[str, Floats]) -> Iterator[Floats]:
    for name in WORKER:
        each = [column for key, column in columns.items() if key.startswith(f"{name}.")]
        if each:
            yield np.fmin.reduce(each)
            yield np.fmax.reduce(each)


# ---- other data of the page -----------------------------------------------------------------------------------------


def staleness(run: Run) -> dict[str, Any] | None:
    """Return the histogram of a run, with its percentiles; None without one."""
    counts = np.array(run.records.staleness)
    if not counts.sum():
        return None
    end = int(np.flatnonzero(counts)[-1]) + 1
    sums = np.cumsum(counts)
    p50, p99 = (int(np.searchsorted(sums, share * sums[-1])) for share in (0.5, 0.99))
    return {"counts": counts[:end], "p50": p50, "p99": p99}


def marks(run: Run) -> list[dict[str, Any]]:
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


def page_data(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
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


def is_thinned(data: Mapping[str, Any]) -> bool:
    tables = [table for run in data["runs"] for table in run["tables"].values()]
    return any(table.records > table.columns["time"].size for table in tables)


def _best_place(run: Run) -> dict[str, float] | None:
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
