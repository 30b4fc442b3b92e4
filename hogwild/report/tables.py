"""The tables of a report as rows of text: results, machine, configuration and events of one run; the differences of
several."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hogwild.errors import ConfigError
from hogwild.formatting import duration, exact, flat, moment, number, size, told
from hogwild.report.run_data import Run, flat_values
from hogwild.storage.run_directory import LIBRARY

MOST_EVENTS = 200
# Shown in the pictures, or routine events of a job; the count of all events includes them.
ORDINARY = (
    *("spawn", "ready", "restart", "evaluation", "checkpoint", "pause", "spare", "exchange"),
    *("loader-spawn", "loader-ready"),
)
QUIET_S = 60.0  # without a record for so long, and for longer than ten intervals, a "running" job may be dead
ENDS = ("succeeded", "stopped", "cancelled", "failed")
LOUD = (
    *("exit", "stall", "fence", "deadlock", "rollback", "checkpoint-failed", "checkpoint-refused", "spare-exit"),
    *("loader-exit", "loader-stall", "bad-batch", "quarantined"),
)
DEFAULT, JOB_FILE, OVERRIDE, CALL, UNKNOWN = "default", "job file", "override", "call", "not in the job file"
NOT_THERE = "\N{EN DASH}"
OF_ITSELF = {"run_dir", "pid", "argv", "checkpoint", "workers"}  # differ between any two runs and mean nothing
EVENT_OF = {"loader_deaths": "loader-exit"}  # counts whose event has another name


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table. `head` may be empty; `marks` set the look of each row ('quiet', 'strong', or '')."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    marks: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Headline:
    """The main facts, shown first. `mood`: good, bad, or neither; `figures`: pairs of a word and a number."""

    state: str
    mood: str
    sentence: str
    figures: list[tuple[str, str]]
    advice: str
    error: str


def headline(run: Run) -> Headline:
    state = str(run.summary.get("state") or run.status.get("state") or "unknown")
    reason = run.summary.get("reason")
    if not run.is_over:
        state, reason = _unfinished(run, state)
    mood = {"succeeded": "good", "failed": "bad"}.get(state, "neither")
    return Headline(
        f"{state}: {reason}" if reason else state,
        mood,
        _sentence(run),
        list(_figures(run)),
        str(run.summary.get("advice") or ""),
        str(run.summary.get("error") or ""),
    )


def _unfinished(run: Run, state: str) -> tuple[str, str]:
    heard = run.last_heard
    if heard is None:
        return "not started", "there are no records yet"
    if state in ENDS or state == "unknown":  # of the previous attempt; the current one has written no status yet
        state = "starting"
    silent_s = max(0.0, run.read_at - heard)
    every_s = run.resolved.get("log.every_s")
    if silent_s <= max(QUIET_S, 10 * every_s if isinstance(every_s, (int, float)) else 0.0):
        return state, f"last record {duration(silent_s)} before this page"
    return (
        "interrupted",
        f"no end was recorded; the last record is {duration(silent_s)} before this page: killed, or stuck",
    )


def _sentence(run: Run) -> str:
    """Return the result in one sentence, from the summary or, without one, from the last status or record."""
    latest = _latest(run)
    did = [f"{number(latest[name])} {name}" for name in ("updates", "samples") if name in latest]
    planned = run.status.get("planned_updates")
    if did and isinstance(planned, int) and not run.is_over:
        did[0] += f" of {number(planned)} planned"
    wall_s = run.summary.get("wall_s") or run.status.get("wall_s") or run.span_s
    workers = run.summary.get("procs", run.workers)
    who = "in the parent" if workers == 0 else f"by {workers} worker{'' if workers == 1 else 's'}"
    return f"{' and '.join(did)} {who} in {duration(wall_s)}" if did else "Nothing was recorded yet."


def _latest(run: Run) -> Mapping[str, Any]:
    train = run.records.train
    recorded = {
        name: float(train[name][-1])
        for name in ("updates", "samples")
        if name in train and train[name][-1] == train[name][-1]
    }
    return {**recorded, **{k: v for k, v in run.status.items() if v is not None}, **run.summary}


def _figures(run: Run) -> Iterator[tuple[str, str]]:
    latest = _latest(run)
    metrics = latest.get("metrics")
    for name, value in (metrics if isinstance(metrics, dict) else {}).items():
        yield name, told(value)
    rate = latest.get("samples_per_s")
    if rate is None and "samples_per_s" in run.records.train:
        rate = float(np.nanmean(run.records.train["samples_per_s"]))
    if rate is not None:
        yield "samples/s", number(float(rate))
    for name in ("restarts", "rollbacks", "lane_restarts", "loader_deaths"):
        count = latest.get(name, len(run.events_of(EVENT_OF.get(name, name[:-1]))))
        if name == "restarts" or count:
            yield name, told(count)
    peak = latest.get("peak_pss_bytes")
    if peak is None and "pss_bytes" in run.records.train:
        peak = float(np.nanmax(run.records.train["pss_bytes"]))
    if peak:
        yield "peak memory", size(peak)


# ---- tables ---------------------------------------------------------------------------------------------------------


def tables(run: Run) -> Iterator[TableRows]:
    """Yield the tables in the order of the page; those without rows are left out."""
    yield from (
        table for table in (summary(run), plan(run), checkpoints(run), configuration(run), *events(run)) if table.rows
    )


def summary(run: Run) -> TableRows:
    values = dict(
        flat(run.summary or {k: v for k, v in run.status.items() if k not in ("workers", "spares", "loaders", "time")})
    )
    rows = [(key, told(value, key)) for key, value in values.items() if key not in ("error", "advice")]
    note = "" if run.summary else "From status.json: there is no summary before the end."
    return TableRows("Summary" if run.summary else "Status", (), rows, note=note)


def plan(run: Run) -> TableRows:
    """Return the content of env.json: the machine, the versions, and the plan."""
    return TableRows("Plan and machine", (), [(key, told(value, key)) for key, value in flat(run.env)])


def checkpoints(run: Run) -> TableRows:
    rows = [
        (
            one.name,
            "" if one.update is None else number(one.update),
            one.at,
            size(one.size_bytes),
            ", ".join(f"{name} {told(value)}" for name, value in one.metrics.items()),
        )
        for one in run.checkpoints
    ]
    return TableRows("Checkpoints on the disk", ("name", "update", "written", "size", "metrics"), rows)


def configuration(run: Run) -> TableRows:
    """Return every field; overrides are strong, defaults are quiet."""
    found = settings(run)
    marks = [{DEFAULT: "quiet", OVERRIDE: "strong"}.get(one.origin, "") for one in found]
    rows = [(one.key, exact(one.value), one.origin) for one in found]
    return TableRows("Configuration", ("field", "value", "from"), rows, marks)


def events(run: Run) -> Iterator[TableRows]:
    """Yield the unusual events, at most MOST_EVENTS, and the counts of all events."""
    told_ones = [event for event in run.events if event["event"] not in ORDINARY and event.get("kind") != "left"]
    half = MOST_EVENTS // 2
    left_out = told_ones[half:-half] if len(told_ones) > MOST_EVENTS else []
    shown = [*told_ones[:half], *told_ones[-half:]] if left_out else told_ones
    rows = [_event_row(run, event) for event in shown]
    marks = ["strong" if event["event"] in LOUD else "" for event in shown]
    note = ""
    if left_out:
        kinds = Counter(str(event["event"]) for event in left_out).most_common()
        rest = f"{', '.join(f'{number(n)} x {kind}' for kind, n in kinds)} in between are left out"
        note = f"The first and the last {half}; {rest} (events.jsonl has them)."
    yield TableRows("Events", ("after", "at", "event", "what"), rows, marks, note)
    counts = Counter(str(event["event"]) for event in run.events)
    yield TableRows("All events by kind", ("event", "count"), [(kind, number(n)) for kind, n in counts.most_common()])


def _event_row(run: Run, event: Mapping[str, Any]) -> tuple[str, ...]:
    words = ", ".join(
        f"{key} {told(value, key)}"
        for key, value in event.items()
        if key not in ("time", "event") and value not in ("", None, [], {})
    )
    after = duration(float(run.clock.elapsed(event["time"])))
    return after, moment(event["time"]), str(event["event"]), words


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
    return f" (summary.json: {', '.join(f'{name} {told(value)}' for name, value in known.items())})"


# ---- origin of each setting ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResolvedSetting:
    """One value. `key` has dots, e.g. train.procs; `origin` is one of DEFAULT to UNKNOWN."""

    key: str
    value: Any
    origin: str


def settings(run: Run) -> list[ResolvedSetting]:
    """Return every field of resolved.yaml, in its order. `override` also covers changes by a resume, and the numbers
    that `procs auto` measured."""
    if run.env.get("caller") == LIBRARY:  # there is no file: job.yaml equals resolved.yaml
        return [ResolvedSetting(key, value, CALL) for key, value in run.resolved.items()]
    written = flat_values(run.job_text)
    meant = _meant(run.job_text)
    return [ResolvedSetting(key, value, _origin(key, value, written, meant)) for key, value in run.resolved.items()]


def _origin(key: str, value: Any, written: Mapping[str, Any], meant: Mapping[str, Any] | None) -> str:
    asked = written if meant is None else meant
    if key in asked and asked[key] != value:
        return OVERRIDE
    if key in written or any(name.startswith(f"{key}.") for name in written):
        return JOB_FILE
    if meant is None:
        return UNKNOWN
    return DEFAULT if key in meant else OVERRIDE


def _meant(text: str) -> dict[str, Any] | None:
    """Return every field of the job that the file alone describes; None if this version cannot read it."""
    from hogwild.config.load import load_job

    if not text:
        return None
    try:
        return dict(flat(load_job(None, source_text=text).model_dump()))
    except ConfigError:
        return None


# ---- several runs ----------------------------------------------------------------------------------------------------


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run: its folder's, with a number, since two folders may have the same name."""
    return [f"{place} {run.name}" for place, run in enumerate(runs, 1)]


def differences(runs: Sequence[Run]) -> Iterator[TableRows]:
    """Yield tables of outcome, configuration, plan and machine. Without differences a table has only a note."""
    head = tuple(labels(runs))
    lines = [headline(run) for run in runs]
    rows = [("state", *(line.state for line in lines)), ("in short", *(line.sentence for line in lines))]
    summaries = [dict(flat(run.summary or run.status)) for run in runs]
    rows += _differing(summaries, lambda key, value: told(value, key))
    yield TableRows("What came of them", ("", *head), rows)
    rows = _differing([run.resolved for run in runs], lambda _, value: exact(value))
    yield TableRows("Configuration: what differs", ("field", *head), rows, note="" if rows else "Nothing differs.")
    machines = [dict(flat(run.env)) for run in runs]
    rows = _differing(machines, lambda key, value: told(value, key))
    yield TableRows("Plan and machine: what differs", ("", *head), rows, note="" if rows else "Nothing differs.")


def _differing(many: Sequence[Mapping[str, Any]], word: Callable[[str, Any], str]) -> list[tuple[str, ...]]:
    keys = dict.fromkeys(key for values in many for key in values if key.split(".")[0] not in OF_ITSELF)
    rows = []
    for key in keys:
        found = [values.get(key, NOT_THERE) for values in many]
        if any(value != found[0] for value in found):
            rows.append((key, *(word(key, value) for value in found)))
    return rows
