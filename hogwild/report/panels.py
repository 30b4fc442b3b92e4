"""The curves of a report as data: thinned tables of each run, and panels that name the columns to draw. The page's
script (page_files/report.js) draws these.

    metrics.jsonl ─► Run ─► Table: train, smoothed, evaluations, workers ─┐
                                                                          ├─► Plot ─► lines, each a column of a table
                            names and units ──────────────────────────────┘"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hogwild.metrics.catalog import LOSS
from hogwild.monitoring.words import in_words
from hogwild.report.run_data import CLUSTER, LOSSES, ColumnTable, Floats, Run

AXES = ("time", "samples", "updates")
MOST_ROWS = 6000  # of training records, of all runs together; more are thinned
MOST_NUMBERS = 60_000  # of workers, likewise
MOST_METRICS = 12
RATE, BYTES, NUMBER, CORES = "rate", "bytes", "number", "cores"  # formats of a panel's values
TRAIN = (LOSS, "samples_per_s", "lr", "pss_bytes")
ROUNDS = {f"{CLUSTER}.seconds": "seconds of a round", f"{CLUSTER}.drift": "drift of this node in a round"}
SMOOTH = (LOSS, "samples_per_s")
WORKER = ("samples_per_s", "pss_bytes", "cpu")
GAP = 10.0  # times the steps around it: nothing was recorded in between
SMOOTH_FROM = 100  # rows; shorter curves are not smoothed
WINDOWS = 150  # a smooth line has at most so many points, each the mean of an equal stretch


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of records, by column (rows,) float64, among them AXES; `time` is running time in seconds. Before the rows
    `breaks` nothing was recorded for long, or another attempt began. `records`: number of them before thinning.
    `is_sparse`: a missing value interrupts a curve (a worker that is not there)."""

    columns: Mapping[str, Floats]
    breaks: tuple[int, ...]
    records: int
    is_sparse: bool = False


class Line(NamedTuple):
    """One curve: `column` of `table` of run number `run`. `look`: line, faint (behind its smoothed curve), smooth, or
    dots (a dot at each value). `colour`: its number among `colours`; without `label` it has no legend entry."""

    run: int
    table: str
    column: str
    label: str
    look: str
    colour: int
    colours: int


@dataclass(frozen=True, slots=True)
class Plot:
    """RunCurves that share a y axis. `group`: the part of the page, and the picture, that it belongs to."""

    name: str
    group: str
    title: str
    lines: tuple[Line, ...]
    form: str = NUMBER
    is_log: bool = False
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class RunCurves:
    """All curves of a report. `tables[run][name]`; `names`: of the runs."""

    names: tuple[str, ...]
    runs: Sequence[Run]
    tables: Sequence[Mapping[str, Table]]
    panels: tuple[Plot, ...]

    @property
    def is_thinned(self) -> bool:
        return any(table.records > table.columns["time"].size for tables in self.tables for table in tables.values())


def curves(runs: Sequence[Run], names: Sequence[str]) -> RunCurves:
    """Return the curves of one run, with every worker, or of several, without their workers."""
    tables = [dict(_tables(run, len(runs))) for run in runs]
    panels = [*_learning(runs, names, tables), *_resources(runs, names, tables)]
    return RunCurves(tuple(names), runs, tables, tuple(panel for panel in panels if panel.lines))


# ---- tables ---------------------------------------------------------------------------------------------------------


def _tables(run: Run, runs: int) -> Iterator[tuple[str, Table]]:
    records, most = run.records, MOST_ROWS // runs
    if records.train.rows:
        known = (*TRAIN, *ROUNDS)
        names = [name for name in records.train.names if name in known or name.startswith(f"{LOSSES}.")]
        yield "train", _table(run, records.train, {name: records.train[name] for name in names}, most)
        smooth = [name for name in SMOOTH if name in records.train]
        columns = [*(_axis(run, records.train, name) for name in AXES), *(records.train[name] for name in smooth)]
        if (means := smoothed(columns)) is not None:
            yield "smooth", Table(dict(zip((*AXES, *smooth), means, strict=True)), (), means[0].size)
    if records.evaluations.rows:
        values = {name: records.evaluations[name] for name in run.metric_names if name in records.evaluations}
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


# ---- panels ---------------------------------------------------------------------------------------------------------


def _learning(runs: Sequence[Run], names: Sequence[str], tables: Sequence[Mapping[str, Table]]) -> Iterator[Plot]:
    metrics = list(dict.fromkeys(name for run in runs for name in run.metric_names))[:MOST_METRICS]
    for metric in metrics:
        lines = tuple(line for run in range(len(runs)) for line in _of_metric(run, names, tables[run], metric))
        is_log = spans_decades(*(tables[line.run][line.table].columns[line.column] for line in lines))
        yield Plot(metric, "learning", in_words(metric), lines, is_log=is_log)
    parts = dict.fromkeys(name for run in tables for name in _columns(run, "train") if name.startswith(f"{LOSSES}."))
    for place, part in enumerate(parts):
        lines = tuple(_of_runs(names, tables, part, place, len(parts)))
        yield Plot(part, "learning", f"training loss: {part.partition('.')[2]}", lines)
    rates = [_columns(run, "train")["lr"] for run in tables if "lr" in _columns(run, "train")]
    if len({rate for column in rates for rate in column.tolist() if rate == rate}) > 1:
        yield Plot("lr", "learning", in_words("lr"), tuple(_of_runs(names, tables, "lr", 0, 1)))


def _columns(tables: Mapping[str, Table], name: str) -> Mapping[str, Floats]:
    return tables[name].columns if name in tables else {}


def _of_metric(run: int, names: Sequence[str], tables: Mapping[str, Table], metric: str) -> Iterator[Line]:
    """Yield the lines of one metric of one run: of one run alone in two colours, of several in the run's own."""
    alone = len(names) == 1
    place, colours = (0, 2) if alone else (run, len(names))
    word = "training" if alone else f"{names[run]}, training"
    if metric == LOSS and LOSS in _columns(tables, "train"):
        has_smooth = "smooth" in tables
        if alone or not has_smooth:
            yield Line(run, "train", LOSS, word, "faint" if has_smooth else "line", place, colours)
        if has_smooth:
            word = "training, smoothed" if alone else word
            yield Line(run, "smooth", LOSS, word, "smooth" if alone else "faint", place, colours)
    if metric in _columns(tables, "evaluations"):
        word = "validation" if alone else f"{names[run]}, validation" if metric == LOSS else names[run]
        yield Line(run, "evaluations", metric, word, "dots", 1 if alone else run, colours)


def _of_runs(
    names: Sequence[str], tables: Sequence[Mapping[str, Table]], column: str, place: int, colours: int
) -> Iterator[Line]:
    """Yield a line of training records per run, behind its smoothed curve where there is one."""
    alone = len(names) == 1
    for run, found in enumerate(tables):
        if column not in _columns(found, "train"):
            continue
        colour = (place, max(colours, 2)) if alone else (run, len(names))
        has_smooth = column in _columns(found, "smooth")
        label = "each record" if alone else names[run]
        if alone or not has_smooth:
            yield Line(run, "train", column, label, "faint" if has_smooth else "line", *colour)
        if has_smooth:
            yield Line(run, "smooth", column, "smoothed" if alone else label, "smooth", *colour)


def _resources(runs: Sequence[Run], names: Sequence[str], tables: Sequence[Mapping[str, Table]]) -> Iterator[Plot]:
    workers = tables[0].get("workers") if len(runs) == 1 else None
    for name, group, title, form in (
        ("samples_per_s", "throughput", in_words("samples_per_s"), RATE),
        ("worker_samples_per_s", "throughput", "samples per second of each worker", RATE),
        ("pss_bytes", "resources", "memory of all processes", BYTES),
        ("worker_pss_bytes", "resources", "memory of each worker", BYTES),
        ("worker_cpu", "resources", "processor time of each worker", CORES),
    ):
        column = name.removeprefix("worker_")
        if column == name:
            lines = tuple(_of_runs(names, tables, column, 0, 1))
        elif workers is not None and (runs[0].workers > 1 or column != "samples_per_s"):
            lines = _of_workers(workers, column)
        else:
            continue
        yield Plot(name, group, title, lines, form, is_wide=group == "throughput")
    for name, title in ROUNDS.items():
        yield Plot(name, "rounds", title, tuple(_of_runs(names, tables, name, 0, 1)))


def _of_workers(table: Table, name: str) -> tuple[Line, ...]:
    columns = [column for column in table.columns if column.startswith(f"{name}.")]
    return tuple(
        Line(0, "workers", column, f"worker {column.rpartition('.')[2]}", "line", place, len(columns))
        for place, column in enumerate(columns)
        if np.isfinite(table.columns[column]).any()
    )


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


def page_data(found: RunCurves) -> dict[str, Any]:
    """Return everything that the page's script draws, for `to_json`."""
    runs = zip(found.names, found.runs, found.tables, strict=True)
    return {
        "runs": [
            {
                "name": name,
                "end": run.span_s,
                "tables": tables,
                "marks": marks(run) if len(found.runs) == 1 else [],
                "best": _best_place(run),
                "staleness": staleness(run),
            }
            for name, run, tables in runs
        ],
        "panels": found.panels,
    }


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


def smoothed(columns: Sequence[Floats]) -> list[Floats] | None:
    """Return the means of equal stretches of columns (n,), each without its missing values; None for few rows."""
    (rows,) = columns[0].shape
    if rows < SMOOTH_FROM:
        return None
    starts = np.linspace(0, rows, min(WINDOWS, rows // 10) + 1).astype(np.int64)[:-1]
    found = []
    for column in columns:
        is_there = np.isfinite(column)
        counts = np.add.reduceat(is_there.astype(np.float64), starts)
        sums = np.add.reduceat(np.where(is_there, column, 0.0), starts)
        found.append(np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan))
    return found


def spans_decades(*values: Floats) -> bool:
    """Return whether a logarithmic axis is worthwhile: all values positive, and the highest more than 30 times the
    lowest. Values that are not finite are left out."""
    every = np.concatenate([value[np.isfinite(value)] for value in values]) if values else np.empty(0)
    return bool(every.size and every.min() > 0 and every.max() > 30 * every.min())
