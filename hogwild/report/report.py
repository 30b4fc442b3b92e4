"""A report, of one run or of several: its tables as rows of text, and their page. It takes no lock: the job has it.

The page is one HTML file that requests nothing, neither scripts nor fonts, so it can be mailed. It has the script, the
style and the chart library of page_files/ inside. All text from a run is escaped: a job may be called `<script>`. A
content security policy allows only the page's own script, by its hash, and no request at all. The page needs no package
beyond the core's."""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.config.load import CALL, DEFAULT, OVERRIDE, settings
from hogwild.errors import UsageError
from hogwild.formatting import beside, duration, exact, flat, format_value, moment, number, size
from hogwild.monitoring.run_status import LOST, Best, trained_by, two_digits
from hogwild.monitoring.words import TROUBLE, event_in_words, in_words, is_routine, row_of
from hogwild.report.charts import ABSENT, ALIVE, groups, page_data, page_timeline, phase_bars, to_json
from hogwild.report.run_view import CLUSTER, RunView, read_run
from hogwild.storage import files
from hogwild.storage.files import explained
from hogwild.storage.run_directory import LIBRARY

INDEX = "index.html"
LONGEST_NAME = 120  # of a comparison's folder: a file system allows 255 bytes
GROUPS = {
    "learning": "Learning",
    "throughput": "Speed",
    "workers": "Workers",
    "staleness": "Staleness",
    "resources": "Memory and processor",
    "rounds": "Rounds between nodes",
}
FILES = Path(__file__).parent / "page_files"
UPLOT = "vendor/uplot/uPlot"
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}; base-uri 'none'; form-action 'none'"
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
{scripts}
</body>
</html>
"""
CONTROLS = """<div id="controls"></div>
<noscript><p class="error">The curves need JavaScript; the tables are below.</p></noscript>"""
MANY_COLUMNS = 3  # more columns scroll on a phone
LONG_REMARK = 24  # letters; the tile of a longer one is twice as wide
MISSING = "What is not in this report"
THINNED = (
    "There are more records than a page needs: curves show the lowest and the highest of every short stretch. "
    "metrics.jsonl has every record."
)
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


def headline(run: RunView) -> Headline:
    state, ending = run.status.state, run.status.ending
    if run.is_over:
        state = str(run.summary.get("state") or state)
        ending = ": ".join(filter(None, (state, str(run.summary.get("reason") or ""))))
    elif run.status.is_alive and run.last_heard is not None:
        silent_s = max(0.0, run.read_at - run.last_heard)
        ending = f"{run.status.snapshot.state}: last record {duration(silent_s)} before this page"
    job, sentence = run.snapshot, "Nothing was recorded yet."
    if job.updates:
        planned = f" of {number(job.planned_updates)} planned" if job.planned_updates and not run.is_over else ""
        who = trained_by(run.summary.get("procs", run.workers), job.cluster)
        did = f"{number(job.updates)} updates{planned} and {number(job.samples)} samples"
        sentence = f"{did} {who} in {duration(job.wall_s or run.span_s)}"
    return Headline(
        ending,
        {"succeeded": "good", "failed": "bad", LOST: "bad"}.get(state, "neither"),
        sentence,
        list(_tiles(run)),
        str(run.summary.get("advice") or ""),
        str(run.summary.get("error") or ""),
    )


def _tiles(run: RunView) -> Iterator[tuple[str, str, str]]:
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


def _place_of_best(run: RunView, best: Best) -> str:
    """Return the epoch of the best evaluation, its other metrics and its checkpoint."""
    others = [name for name in run.metric_names if name != best.metric] if run.best_row is not None else []
    known = {name: float(run.records.evaluations[name][run.best_row]) for name in others}
    values = beside({in_words(name): value for name, value in known.items()}, {
        in_words(name): value for name, value in run.snapshot.popularity.items()
    })  # fmt: skip
    usual = run.snapshot.popularity.get(best.metric)
    values[:0] = [] if usual is None else [f"most popular items {usual:.4g}"]
    epoch = [] if best.epoch is None else [f"epoch {best.epoch}"]
    where = " \N{RIGHTWARDS ARROW} checkpoints/best" if best.checkpoint else ""
    return ", ".join([*epoch, *values]) + where


# ---- tables ---------------------------------------------------------------------------------------------------------


def tables(run: RunView) -> Iterator[TableRows]:
    """Yield the tables in the order of the page; those without rows are left out."""
    plan = TableRows("Plan and machine", (), _in_words(dict(flat(run.env))))
    every = (nodes(run), events(run), configuration(run), checkpoints(run), summary(run), plan)
    yield from (table for table in every if table.rows)


def workers(run: RunView) -> TableRows:
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


def nodes(run: RunView) -> TableRows:
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


def summary(run: RunView) -> TableRows:
    values = dict(
        flat(run.summary or {k: v for k, v in run.latest.items() if k not in ("workers", "spares", "loaders", "time")})
    )
    note = "" if run.summary else "From status.json: there is no summary before the end."
    return TableRows("Result" if run.summary else "Status", (), _in_words(values), note=note)


def _in_words(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        (in_words(key), " ".join(map(str, value)) if isinstance(value, list) else format_value(value, key))
        for key, value in values.items()
        if key not in ("error", "advice") and not key.startswith(f"{CLUSTER}.") and value not in (None, "", [], {})
    ]


def checkpoints(run: RunView) -> TableRows:
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


def configuration(run: RunView) -> TableRows:
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


def events(run: RunView) -> TableRows:
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


def missing(run: RunView) -> list[str]:
    """Return a line for each part that a reader might miss, with the reason if it is known."""
    records, percentiles = run.records, ""
    if isinstance(known := run.summary.get("staleness"), dict) and known:
        words = ", ".join(f"{name} {format_value(value)}" for name, value in known.items())
        percentiles = f" (summary.json: {words})"
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
        f"No histogram of staleness was recorded{percentiles}.": not sum(records.staleness),
        "No memory was recorded.": "pss_bytes" not in records.train,
        "No events: events.jsonl is empty or missing.": not run.events,
        "No env.json: the machine and the plan are unknown.": not run.env,
        f"{records.unreadable} line(s) could not be read: torn by a kill, or still being written.": records.unreadable
        > 0,
    }
    return [line for line, is_so in lines.items() if is_so]


# ---- several runs ----------------------------------------------------------------------------------------------------


def labels(runs: Sequence[RunView]) -> list[str]:
    """Return a name for each run: its folder's, with a number where two folders have the same name."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [f"{place} {name}" for place, name in enumerate(names, 1)]


def differences(runs: Sequence[RunView]) -> Iterator[TableRows]:
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


# ---- the page --------------------------------------------------------------------------------------------------------


def write_report(paths: Sequence[Path], out: Path | None = None) -> tuple[Path, Sequence[str]]:
    """Write the page of one run, or of several compared, to RUN/report, RUN/report/report-NAME1-NAME2 of the first, or
    `out`; return it, and what it does not contain and why. Raises NotFoundError if there is no run, UsageError for the
    same run twice, RunDirError if the page cannot be written."""
    resolved = [path.resolve() for path in paths]
    twice = next((path for place, path in enumerate(resolved) if path in resolved[:place]), None)
    if twice is not None:
        raise UsageError(f"{twice} is named twice; name different runs to compare", code="usage/contradiction")
    runs = [read_run(path) for path in paths]
    folder = runs[0].path / "report"
    if len(runs) > 1:
        names = "-".join(re.sub(r"[^\w.+-]+", "_", run.name) for run in runs)
        folder /= f"report-{names}"[:LONGEST_NAME]
    folder = folder if out is None else out
    found = [(name, line) for name, run in zip(labels(runs), runs, strict=True) for line in missing(run)]
    not_there = [line if len(runs) == 1 else f"{name}: {line}" for name, line in found]
    text = _page_of(runs, not_there)
    with explained(f"cannot write the report to {folder} (another folder: --out DIR)"):
        folder.mkdir(parents=True, exist_ok=True)
        files.replace(folder / INDEX, text.encode(errors="replace"), sync=False)
    return folder / INDEX, not_there


def _page_of(runs: Sequence[RunView], not_there: Sequence[str]) -> str:
    """Return a page, downwards: tables, charts (with the timeline the table of each worker), tables, notes."""
    names, above, below, timeline = labels(runs), list[TableRows](), list[TableRows](), None
    if len(runs) == 1:
        (run,) = runs
        places = [str(run.path), f"Page made {moment(run.read_at)} from the files of the run directory."]
        head = header(str(run.summary.get("name") or run.name), places, headline(run))
        title, below, timeline = f"{run.name}: a run of hogwild", [*tables(run)], page_timeline(run)
    else:
        title, head = f"{len(runs)} runs of hogwild", header(", ".join(names), [str(run.path) for run in runs])
        *above, machine = differences(runs)
        below = [machine]
    data = {**page_data(runs, names), "timeline": timeline}
    found = groups(data) | ({"workers"} if timeline is not None else set())
    shown = {name: words for name, words in GROUPS.items() if name in found}
    titles = [*(one.title for one in above), *shown.values(), *(one.title for one in below)]
    titles += [MISSING] if not_there else []
    links = "".join(f'<a href="#{_anchor(title)}">{escape(title)}</a>' for title in titles)
    parts = [head, f"<nav>{links}</nav>", *map(table, above), *([CONTROLS] if shown else [])]
    if any(one.records > one.columns["time"].size for run in data["runs"] for one in run["tables"].values()):
        parts.append(f'<p class="note">{escape(THINNED)}</p>')
    for name, words in shown.items():
        parts.append(f'{_heading(words)}\n<div class="charts" data-group="{name}"></div>')  # for the script
        parts += [table(workers(runs[0]))] if name == "workers" else []
    parts += map(table, below)
    if not_there:
        items = "".join(f"<li>{escape(line)}</li>" for line in not_there)
        parts.append(f'{_heading(MISSING)}\n<ul class="note">{items}</ul>')
    return page(title, parts, data if shown else None)


# ---- HTML -----------------------------------------------------------------------------------------------------------


def page(title: str, parts: Iterable[str], data: Mapping[str, Any] | None) -> str:
    """Return the whole file. `parts` are HTML, made by the functions below; `data` is what the script draws, or None
    if there is nothing to draw."""
    scripts = [] if data is None else _files(f"{UPLOT}.iife.min.js", "charts.js", "report.js")
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    elements = [f"<script>{one}</script>" for one in scripts]
    if data is not None:
        elements.insert(0, f'<script type="application/json" id="data">{to_json(data)}</script>')
    return PAGE.format(
        policy=POLICY.format(hashes=" ".join(f"'sha256-{one}'" for one in hashes) or "'none'"),
        title=escape(title),
        style="".join(_files(f"{UPLOT}.min.css", "charts.css", "report.css")),
        body="\n".join(parts),
        scripts="\n".join(elements),
    )


def _files(*names: str) -> list[str]:
    return [(FILES / name).read_text("utf-8") for name in names]


def header(title: str, lines: Sequence[str], found: Headline | None = None) -> str:
    parts = [f"<header>\n<h1>{escape(title)}</h1>"]
    if found is not None:
        parts.append(f'<p><span class="state {found.mood}">{escape(found.state)}</span></p>')
        parts += [f"<p>{escape(found.sentence)}</p>"] if not found.tiles else []
    parts += [f'<p class="quiet">{escape(line)}</p>' for line in lines]
    if found is not None:
        tiles = []
        for word, value, more in found.tiles:
            long = " long" if len(more) > LONG_REMARK else ""
            remark = f'<dd class="more{long}">{escape(more)}</dd>' if more else ""
            tiles.append(f"<div><dt>{escape(word)}</dt><dd>{escape(value)}</dd>{remark}</div>")
        parts.append(f"<dl>{''.join(tiles)}</dl>" if tiles else "")
        parts += [
            f'<div class="{kind}">{escape(words)}</div>'
            for kind, words in (("error", found.error), ("advice", found.advice))
            if words
        ]
    return "\n".join([*parts, "</header>"])


def table(rows: TableRows) -> str:
    parts = [_heading(rows.title)] if rows.title else []
    if rows.note:
        parts.append(f'<p class="note">{escape(rows.note)}</p>')
    shown = min(rows.folded or len(rows.rows), len(rows.rows))  # all of them, if it would be none
    if rows.rows:
        parts.append(_rows(rows, 0, shown))
    if len(rows.rows) > shown:
        words = f"{len(rows.rows) - shown} {rows.folded_words}"
        folded = _rows(rows, shown, len(rows.rows))
        parts.append(f'<details class="more"><summary>{escape(words)}</summary>{folded}</details>')
    return "\n".join(parts)


def _rows(rows: TableRows, begin: int, end: int) -> str:
    top = f"<thead>{_row(rows.head, 'th')}</thead>" if rows.head else ""
    marks = (rows.marks or [""] * len(rows.rows))[begin:end]
    body = map(_row, rows.rows[begin:end], ["td"] * len(marks), marks)
    look = "pairs" if not rows.head else "wide" if len(rows.head) > MANY_COLUMNS else "plain"
    return f'<div class="scroll"><table class="{look}">{top}<tbody>{"".join(body)}</tbody></table></div>'


def _row(cells: Sequence[str | Bar], element: str = "td", mark: str = "") -> str:
    inner = "".join(f"<{element}>{_cell(cell)}</{element}>" for cell in cells)
    return f'<tr class="{mark}">{inner}</tr>' if mark else f"<tr>{inner}</tr>"


def _cell(cell: str | Bar) -> str:
    """Escape a text, with line breaks allowed after the dots and underscores of a name; draw a bar."""
    if isinstance(cell, str):
        text = escape(cell)
        return text if " " in cell else text.replace("_", "_<wbr>").replace(".", ".<wbr>")
    blocks = "".join(
        f'<i style="width:{100 * share:.1f}%;background:var({shade}, var(--p-other))"></i>'
        for _, share, shade in cell.parts
    )
    words = ", ".join(
        f"{100 * share:.0f}\N{NO-BREAK SPACE}% {word}".strip() for word, share, _ in cell.parts if share >= 0.005
    )
    return f'<span class="bar">{blocks}</span><span>{escape(words)}</span>'


def _heading(title: str) -> str:
    return f'<h2 id="{_anchor(title)}">{escape(title)}</h2>'


def _anchor(title: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower())
