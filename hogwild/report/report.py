"""Writing of a report, of one run or of several, to disk. It takes no lock: the job has it.

The page is one HTML file that requests nothing, neither scripts nor fonts, so it can be mailed. It has the script, the
style and the chart library of page_files/ inside. All text from a run is escaped: a job may be called `<script>`. A
content security policy allows only the page's own script, by its hash, and no request at all. The page needs no package
beyond the core's."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from hogwild.errors import UsageError
from hogwild.formatting import moment
from hogwild.report.curves import groups, is_thinned, page_data, to_json
from hogwild.report.run_data import Run, read_run
from hogwild.report.tables import Bar, Headline, TableRows, differences, headline, labels, missing, tables, workers
from hogwild.report.timeline import page_timeline
from hogwild.storage.files import explained, replace

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


@dataclass(frozen=True, slots=True)
class _Page:
    """The content of a page, downwards: tables, charts (with the timeline the table of each worker), tables, notes."""

    title: str
    head: str
    above: Sequence[TableRows]
    data: Mapping[str, Any]
    timeline: dict[str, Any] | None
    each_worker: TableRows | None
    below: Sequence[TableRows]
    missing: Sequence[str]

    def html(self) -> str:
        data = {**self.data, "timeline": self.timeline}
        found = groups(data) | ({"workers"} if self.timeline is not None else set())
        shown = {name: words for name, words in GROUPS.items() if name in found}
        titles = [*(one.title for one in self.above), *shown.values(), *(one.title for one in self.below)]
        parts = [self.head, contents([*titles, *([MISSING] if self.missing else [])]), *map(table, self.above)]
        parts += [CONTROLS] if shown else []
        parts += [f'<p class="note">{escape(THINNED)}</p>'] if is_thinned(data) else []
        for name, words in shown.items():
            parts.append(charts(words, name))
            parts += [table(self.each_worker)] if name == "workers" and self.each_worker is not None else []
        parts += [*map(table, self.below), *([notes(MISSING, self.missing)] if self.missing else [])]
        return page(self.title, parts, data if shown else None)


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
    content = _of_one(runs[0]) if len(runs) == 1 else _of_several(runs)
    text = content.html()
    with explained(f"cannot write the report to {folder} (another folder: --out DIR)"):
        folder.mkdir(parents=True, exist_ok=True)
        replace(folder / INDEX, text.encode(errors="replace"), sync=False)
    return folder / INDEX, content.missing


def _of_one(run: Run) -> _Page:
    places = [str(run.path), f"Page made {moment(run.read_at)} from the files of the run directory."]
    timeline = page_timeline(run)
    return _Page(
        title=f"{run.name}: a run of hogwild",
        head=header(str(run.summary.get("name") or run.name), places, headline(run)),
        above=(),
        data=page_data([run], [run.name]),
        timeline=timeline,
        each_worker=workers(run) if timeline is not None else None,
        below=[*tables(run)],
        missing=missing(run),
    )


def _of_several(runs: Sequence[Run]) -> _Page:
    names = labels(runs)
    *above, machine = differences(runs)
    return _Page(
        title=f"{len(runs)} runs of hogwild",
        head=header(", ".join(names), [str(run.path) for run in runs]),
        above=above,
        data=page_data(runs, names),
        timeline=None,
        each_worker=None,
        below=[machine],
        missing=[f"{name}: {line}" for name, run in zip(names, runs, strict=True) for line in missing(run)],
    )


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
        parts.append(f"<dl>{''.join(_tile(*one) for one in found.tiles)}</dl>" if found.tiles else "")
        parts += [
            f'<div class="{kind}">{escape(words)}</div>'
            for kind, words in (("error", found.error), ("advice", found.advice))
            if words
        ]
    return "\n".join([*parts, "</header>"])


def _tile(word: str, value: str, more: str) -> str:
    long = " long" if len(more) > LONG_REMARK else ""
    remark = f'<dd class="more{long}">{escape(more)}</dd>' if more else ""
    return f"<div><dt>{escape(word)}</dt><dd>{escape(value)}</dd>{remark}</div>"


def contents(titles: Iterable[str]) -> str:
    links = (f'<a href="#{_anchor(title)}">{escape(title)}</a>' for title in titles)
    return f"<nav>{''.join(links)}</nav>"


def notes(title: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'{_heading(title)}\n<ul class="note">{items}</ul>'


def charts(title: str, group: str) -> str:
    """Return the place for the script's charts of a group of panels."""
    return f'{_heading(title)}\n<div class="charts" data-group="{group}"></div>'


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
