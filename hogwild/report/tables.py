"""The tables of a report as rows of text: results, machine, configuration and events of one run; the differences of
several."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hogwild.config.origins import CALL, DEFAULT, OVERRIDE, settings
from hogwild.formatting import duration, exact, flat, format_value, moment, number, size
from hogwild.monitoring.job_view import Best, trained_by, two_digits
from hogwild.monitoring.run_status import LOST
from hogwild.monitoring.words import TROUBLE, event_in_words, in_words, is_routine, row_of
from hogwild.report.run_data import CLUSTER, Run
from hogwild.report.timeline import ABSENT, ALIVE, phase_bars
from hogwild.storage.run_directory import LIBRARY

MOST_EVENTS = 200
MOST_WORKERS = 16  # shown at first
PHASE_COLOURS = {ALIVE: "alive", ABSENT: "absent"}  # the others are called as the phases
NOT_THERE = "\N{EN DASH}"
# They differ between any two runs and mean nothing.
OF_ITSELF = {
    *("run_dir", "pid", "argv", "checkpoint", "workers", "time", "host.available_memory_bytes"),
    *("cluster.of_nodes", "cluster.generation"),
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A cell: shares of a whole; each with its name and its colour in report.css."""

    parts: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table. `head` may be empty; `marks` set the look of each row ('quiet', 'strong', or ''). A cell is text, or the
    parts of a bar. Rows from number `folded` on are shown on request, under their number and `folded_words`."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str | Bar, ...]]
    marks: Sequence[str] = ()
    note: str = ""
    folded: int | None = None
    folded_words: str = ""


@dataclass(frozen=True, slots=True)
class Headline:
    """The main facts, shown first. `mood`: good, bad, or neither; `tiles`: a word, a value, and a remark or ""."""

    state: str
    mood: str
    sentence: str
    tiles: list[tuple[str, str, str]]
    advice: str
    error: str


def headline(run: Run) -> Headline:
    state, ending = run.status.state, run.status.ending
    if run.is_over:
        state = str(run.summary.get("state") or state)
        ending = ": ".join(filter(None, (state, str(run.summary.get("reason") or ""))))
    elif run.status.is_alive and run.last_heard is not None:
        silent_s = max(0.0, run.read_at - run.last_heard)
        ending = f"{run.status.snapshot.state}: last record {duration(silent_s)} before this page"
    return Headline(
        ending,
        {"succeeded": "good", "failed": "bad", LOST: "bad"}.get(state, "neither"),
        _sentence(run),
        list(_tiles(run)),
        str(run.summary.get("advice") or ""),
        str(run.summary.get("error") or ""),
    )


def _sentence(run: Run) -> str:
    job = run.snapshot
    if not job.updates:
        return "Nothing was recorded yet."
    planned = f" of {number(job.planned_updates)} planned" if job.planned_updates and not run.is_over else ""
    who = trained_by(run.summary.get("procs", run.workers), job.cluster)
    did = f"{number(job.updates)} updates{planned} and {number(job.samples)} samples"
    return f"{did} {who} in {duration(job.wall_s or run.span_s)}"


def _tiles(run: Run) -> Iterator[tuple[str, str, str]]:
    job, train = run.snapshot, run.records.train
    if job.best is not None:
        yield f"best {in_words(job.best.metric)}", f"{job.best.value:.4g}", _place_of_best(run, job.best)
    if wall_s := job.wall_s or run.span_s:
        yield "duration", duration(wall_s), ""
    if job.samples:
        yield "samples", number(job.samples), f"{number(job.updates)} updates"
    rate = job.samples_per_s if job.cluster is None else job.cluster.samples_per_s
    if rate:
        yield in_words("samples_per_s"), number(round(rate)), "" if job.cluster is None else "of all nodes"
    workers = run.summary.get("procs", run.workers)
    if workers or run.summary:
        yield "workers", format_value(workers), "" if workers else "trained in the parent process"
    for name in ("restarts", "rollbacks", "lane_restarts", "loader_deaths"):
        count = run.latest.get(name)
        if count or (name == "restarts" and workers):
            yield in_words(name), format_value(count or 0), ""
    peak = run.latest.get("peak_pss_bytes") or np.fmax.reduce(train["pss_bytes"], initial=0.0)
    if peak:
        yield "peak memory", size(peak), ""


def _place_of_best(run: Run, best: Best) -> str:
    """Return the epoch of the best evaluation, its other metrics and its checkpoint."""
    others = [name for name in run.metric_names if name != best.metric] if run.best_row is not None else []
    values = [f"{in_words(name)} {run.records.evaluations[name][run.best_row]:.4g}" for name in others]
    epoch = [] if best.epoch is None else [f"epoch {best.epoch}"]
    where = " \N{RIGHTWARDS ARROW} checkpoints/best" if best.checkpoint else ""
    return ", ".join([*epoch, *values]) + where


# ---- tables ---------------------------------------------------------------------------------------------------------


def tables(run: Run) -> Iterator[TableRows]:
    """Yield the tables in the order of the page; those without rows are left out."""
    every = (nodes(run), events(run), configuration(run), checkpoints(run), summary(run), plan(run))
    yield from (table for table in every if table.rows)


def workers(run: Run) -> TableRows:
    """Return a row per worker: its part of all samples, its time by phase, its starts and deaths, processor, memory."""
    table, told_at = run.records.workers, run.clock.elapsed(run.records.told["time"])
    lasted = np.diff(told_at, prepend=0.0)
    did = [float(np.nansum(table["samples_per_s"][worker] * lasted)) for worker in range(run.workers)]
    bars = phase_bars(run)
    rows: list[tuple[str | Bar, ...]] = []
    for worker in range(run.workers):
        share = Bar((("", did[worker] / sum(did), "--c0"),)) if sum(did) > 0 else ""
        words, counts = np.unique(np.array(bars.words)[bars.pixels[worker]], return_counts=True)
        shares = zip(words.tolist(), (counts / counts.sum()).tolist(), strict=True)
        phases = [(word, share, f"--p-{PHASE_COLOURS.get(word, word)}") for word, share in shares]
        kinds = Counter(
            event["event"] for event in run.events if event.get("worker") == worker and event.get("kind") != "left"
        )
        cpu, memory = (table[name][worker][np.isfinite(table[name][worker])] for name in ("cpu", "pss_bytes"))
        rows.append(
            (
                f"worker {worker}",
                share,
                Bar(tuple(sorted(phases, key=lambda one: -one[1]))),
                number(kinds["exit"]),
                number(kinds["restart"]),
                f"{np.median(cpu):.2f} cores" if cpu.size else "",
                size(float(memory.max())) if memory.size else "",
            )
        )
    head = ("", "part of all samples", "time by phase", "deaths", "restarts", "processor, median", "memory, highest")
    return TableRows("Each worker", head, rows, folded=MOST_WORKERS, folded_words="more workers")


def nodes(run: Run) -> TableRows:
    """Return a row per node of a cluster, as this node knows it; no rows on one machine."""
    if (cluster := run.snapshot.cluster) is None:
        return TableRows("Nodes", (), ())
    rows = [
        (
            f"node {one.node}",
            one.host or "",
            one.state,
            "" if one.updates is None else number(one.updates),
            "" if one.samples_per_s is None else number(round(one.samples_per_s)),
            "" if one.drift is None else f"{two_digits(100 * one.drift)} %",
        )
        for one in cluster.of_nodes
    ]
    marks = ["strong" if one.state == "lost" else "" for one in cluster.of_nodes]
    head = ("", "machine", "state", "updates", "samples/s", "drift")
    return TableRows("Nodes", head, rows, marks, f"{', '.join(cluster.words)}.")


def summary(run: Run) -> TableRows:
    values = dict(
        flat(run.summary or {k: v for k, v in run.latest.items() if k not in ("workers", "spares", "loaders", "time")})
    )
    note = "" if run.summary else "From status.json: there is no summary before the end."
    return TableRows("Result" if run.summary else "Status", (), _in_words(values), note=note)


def plan(run: Run) -> TableRows:
    """Return the content of env.json: the machine, the versions, and the plan."""
    return TableRows("Plan and machine", (), _in_words(dict(flat(run.env))))


def _in_words(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (in_words(key), " ".join(map(str, value)) if isinstance(value, list) else format_value(value, key))
        for key, value in values.items()
        if key not in ("error", "advice") and not key.startswith(f"{CLUSTER}.") and value not in (None, "", [], {})
    ]


def checkpoints(run: Run) -> TableRows:
    rows = [
        (
            one["name"] + (" (best)" if one["is_best"] else ""),
            number(one["updates"]),
            "" if one["at"] is None else moment(one["at"]),
            size(one["bytes"]),
            ", ".join(f"{in_words(name)} {format_value(value)}" for name, value in (one["metrics"] or {}).items()),
        )
        for one in reversed(run.checkpoints)
    ]
    return TableRows("Checkpoints on the disk", ("name", "update", "written", "size", "metrics"), rows)


def configuration(run: Run) -> TableRows:
    """Return every field, those that were set first; overrides are strong, defaults quiet."""
    found = settings(run.resolved, run.job_text)
    if run.env.get("caller") == LIBRARY:  # there is no file: job.yaml equals resolved.yaml
        found = [replace(one, origin=CALL) for one in found]
    found.sort(key=lambda one: one.origin == DEFAULT)
    marks = [{DEFAULT: "quiet", OVERRIDE: "strong"}.get(one.origin, "") for one in found]
    rows = [(one.key, exact(one.value), one.origin) for one in found]
    folded = sum(one.origin != DEFAULT for one in found)
    note = "Overrides are set on the command line, by a resume or by a measurement."
    return TableRows(
        "Configuration", ("field", "value", "from"), rows, marks, note, folded, "fields with their defaults"
    )


def events(run: Run) -> TableRows:
    """Return the unusual events, at most MOST_EVENTS; the note counts all of them."""
    told_ones = [event for event in run.events if not is_routine(event)]
    half = MOST_EVENTS // 2
    left_out = told_ones[half:-half] if len(told_ones) > MOST_EVENTS else []
    shown = [*told_ones[:half], *told_ones[-half:]] if left_out else told_ones
    rows = [
        (duration(float(run.clock.elapsed(one["time"]))), *event_in_words(one), moment(one["time"])) for one in shown
    ]
    marks = ["strong" if row_of(event) == TROUBLE else "" for event in shown]
    note = f"All events: {_kinds(run.events)}."
    if left_out:
        note = f"The first and the last {half}; in between {_kinds(left_out)} are left out (events.jsonl). {note}"
    return TableRows("Events", ("running time", "event", "details", "at"), rows, marks, note)


def _kinds(events: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{number(n)} {kind}" for kind, n in Counter(str(one["event"]) for one in events).most_common())


# ---- missing parts --------------------------------------------------------------------------------------------------


def missing(run: Run) -> list[str]:
    """Return a line for each part that a reader might miss, with the reason if it is known."""
    records = run.records
    lines = {
        "No training records: metrics.jsonl is empty or missing (log.jsonl: false, or the job just started).": (
            not records.train.rows
        ),
        "No evaluation was recorded (no data.val, or none was due yet).": not records.evaluations.rows,
        "No figures per worker: the records have no workers.": (
            bool(records.train.rows) and not any(table.names for table in records.workers.values())
        ),
        "No phases of workers were recorded: the timeline shows only starts and exits.": (
            bool(run.workers) and not records.phases.names
        ),
        f"No histogram of staleness was recorded{_percentiles(run)}.": not sum(records.staleness),
        "No memory was recorded.": "pss_bytes" not in records.train,
        "No events: events.jsonl is empty or missing.": not run.events,
        "No env.json: the machine and the plan are unknown.": not run.env,
        f"{records.unreadable} line(s) could not be read: torn by a kill, or still being written.": records.unreadable
        > 0,
    }
    return [line for line, is_so in lines.items() if is_so]


def _percentiles(run: Run) -> str:
    known = run.summary.get("staleness")
    if not isinstance(known, dict) or not known:
        return ""
    return f" (summary.json: {', '.join(f'{name} {format_value(value)}' for name, value in known.items())})"


# ---- several runs ----------------------------------------------------------------------------------------------------


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run: its folder's, with a number where two folders have the same name."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [f"{place} {name}" for place, name in enumerate(names, 1)]


def differences(runs: Sequence[Run]) -> Iterator[TableRows]:
    """Yield tables of outcome, configuration, plan and machine. Without differences a table has only a note."""
    head = tuple(labels(runs))
    lines = [headline(run) for run in runs]
    tiles = [{word: f"{value} ({more})" if more else value for word, value, more in line.tiles} for line in lines]
    rows = [("state", *(line.state for line in lines))]
    rows += [
        (word, *(one.get(word, NOT_THERE) for one in tiles)) for word in dict.fromkeys(w for t in tiles for w in t)
    ]
    folded = len(rows)
    rows += _differing([dict(flat(run.latest)) for run in runs], format_value, in_words)
    yield TableRows("Results", ("", *head), rows, (), "", folded, "more differences")
    nothing = "Nothing differs."
    rows = _differing([run.resolved for run in runs], lambda value, _: exact(value), str)
    yield TableRows("Differences in configuration", ("field", *head), rows, note="" if rows else nothing)
    rows = _differing([dict(flat(run.env)) for run in runs], format_value, in_words)
    yield TableRows("Differences in plan and machine", ("", *head), rows, note="" if rows else nothing)


def _differing(
    many: Sequence[Mapping[str, Any]], word: Callable[[Any, str], str], name: Callable[[str], str]
) -> list[tuple[str, ...]]:
    keys = dict.fromkeys(key for values in many for key in values if not {key, key.split(".")[0]} & OF_ITSELF)
    rows = []
    for key in keys:
        found = [values.get(key, NOT_THERE) for values in many]
        if any(value != found[0] for value in found):
            rows.append((name(key), *(word(value, key) for value in found)))
    return rows
