"""The HTML page of a report: one file that requests nothing, neither scripts nor fonts, so it can be mailed. It has the
script, the style and the chart library of page_files/ inside.

All text from a run is escaped: a job may be called `<script>`. A content security policy allows only the page's own
script, by its hash, and no request at all."""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from hogwild.report.panels import to_json
from hogwild.report.tables import Bar, Headline, TableRows

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
CONTROLS = """<div id="controls"><span class="axis" role="group" aria-label="x axis">
<button type="button" data-x="time">running time</button><button type="button" data-x="samples">samples</button><button
type="button" data-x="updates">updates</button></span>
<button type="button" id="reset" hidden>reset zoom</button>
<span class="hint">Drag over a curve to zoom in; double-click to reset.</span>
<button type="button" id="theme" title="colours">dark</button></div>
<noscript><p class="error">The curves need JavaScript; the tables are below.</p></noscript>"""
MANY_COLUMNS = 3  # more columns scroll on a phone
LONG_REMARK = 24  # letters; the tile of a longer one is twice as wide


def page(title: str, parts: Iterable[str], data: Mapping[str, Any] | None) -> str:
    """Return the whole file. `parts` are HTML, made by the functions below; `data` is what the script draws, or None
    if there is nothing to draw."""
    library, script = _file(f"{UPLOT}.iife.min.js"), _file("report.js")
    scripts = [] if data is None else [library, script]
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    elements = [f"<script>{one}</script>" for one in scripts]
    if data is not None:
        elements.insert(0, f'<script type="application/json" id="data">{to_json(data)}</script>')
    return PAGE.format(
        policy=POLICY.format(hashes=" ".join(f"'sha256-{one}'" for one in hashes) or "'none'"),
        title=escape(title),
        style=_file(f"{UPLOT}.min.css") + _file("report.css"),
        body="\n".join(parts),
        scripts="\n".join(elements),
    )


def _file(name: str) -> str:
    return (FILES / name).read_text()


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
