"""The HTML page of a report, self-contained: no script, font, file or network access.

All text from a run is escaped: a job may be called `<script>`."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from hogwild.report.tables import Headline, TableRows


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG. `name` is its file name without .png; `title` its heading, `alt` its description in words; `note`, if not
    empty, a line below it. Sizes in pixels."""

    name: str
    title: str
    alt: str
    png: bytes
    width: int
    height: int
    note: str = ""


STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1180px; padding: 1rem 1.25rem 3rem; background: #fff; color: #1c1c1c;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif; }
h1 { font-size: 1.6rem; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #ddd; padding-bottom: .2rem; }
p { margin: .4rem 0; overflow-wrap: anywhere; }
nav { margin: .8rem 0; } nav a { margin-right: 1rem; color: #00558c; white-space: nowrap; display: inline-block; }
.state { display: inline-block; padding: .1rem .6rem; border-radius: .3rem; background: #e8e8e8; font-weight: 600; }
.state.good { background: #d5efe3; color: #00513a; } .state.bad { background: #fbdccb; color: #7a2f00; }
.quiet, .note { color: #666; } .note { font-size: .9rem; }
.advice, .error { border-left: 4px solid #e69f00; background: #fdf6e7; padding: .5rem .8rem; margin: .8rem 0;
  white-space: pre-wrap; }
.error { border-color: #d55e00; background: #fdefe7; }
dl { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; }
dl div { border: 1px solid #ddd; border-radius: .4rem; padding: .35rem .9rem; min-width: 7rem; }
dt { color: #666; font-size: .85rem; overflow-wrap: anywhere; } dd { margin: 0; font-size: 1.35rem; font-weight: 600; }
.pictures { display: flex; flex-wrap: wrap; gap: 0 1.5rem; }
figure { margin: 0 0 1rem; flex: 1 1 100%; break-inside: avoid; } figure.half { flex: 1 1 22rem; }
figure img { display: block; width: 100%; height: auto; } figure.full img { max-width: 1000px; }
figcaption { font-size: .9rem; color: #666; }
.scroll, figure { overflow-x: auto; }
@media screen and (max-width: 700px) { figure.full img { min-width: 620px; } table.wide { min-width: 46rem; } }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th { text-align: left; font-weight: 600; border-bottom: 2px solid #ccc; }
td, th { padding: .22rem 1rem .22rem 0; vertical-align: top; overflow-wrap: anywhere; min-width: 4.5rem; }
td { border-bottom: 1px solid #eee; font-variant-numeric: tabular-nums; }
table.pairs td:first-child { width: 34%; }
tr.quiet td { color: #888; } tr.strong td { font-weight: 600; color: #7a2f00; }
@media print { body { max-width: none; padding: 0; font-size: 10pt; } nav { display: none; }
  h2 { break-after: avoid; } tr { break-inside: avoid; } figure.full img { max-width: 100%; } }
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
MANY_COLUMNS = 3  # more columns scroll on a phone
HALF_BELOW = 900  # pixels: a narrower picture shares its row


def page(title: str, parts: Iterable[str]) -> str:
    """Return the whole file. `parts` are HTML, made by the functions below."""
    return PAGE.format(title=escape(title), style=STYLE, body="\n".join(parts))


def header(title: str, lines: Sequence[str], found: Headline | None = None) -> str:
    parts = [f"<header>\n<h1>{escape(title)}</h1>"]
    if found is not None:
        parts.append(f'<p><span class="state {found.mood}">{escape(found.state)}</span></p>')
        parts.append(f"<p>{escape(found.sentence)}</p>")
    parts += [f'<p class="quiet">{escape(line)}</p>' for line in lines]
    if found is not None:
        pairs = [f"<div><dt>{escape(word)}</dt><dd>{escape(value)}</dd></div>" for word, value in found.figures]
        parts.append(f"<dl>{''.join(pairs)}</dl>" if pairs else "")
        parts += [
            f'<div class="{kind}">{escape(words)}</div>'
            for kind, words in (("error", found.error), ("advice", found.advice))
            if words
        ]
    return "\n".join([*parts, "</header>"])


def contents(titles: Iterable[str]) -> str:
    links = (f'<a href="#{_anchor(title)}">{escape(title)}</a>' for title in titles)
    return f"<nav>{''.join(links)}</nav>"


def notes(title: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'{_heading(title)}\n<ul class="note">{items}</ul>'


def gallery(title: str, pictures: Iterable[Picture]) -> str:
    return "\n".join([_heading(title), '<div class="pictures">', *map(_figure, pictures), "</div>"])


def table(rows: TableRows) -> str:
    parts = [_heading(rows.title)]
    if rows.note:
        parts.append(f'<p class="note">{escape(rows.note)}</p>')
    if rows.rows:
        head = _row(rows.head, "th")
        body = map(_row, rows.rows, ["td"] * len(rows.rows), rows.marks or [""] * len(rows.rows))
        top = f"<thead>{head}</thead>" if rows.head else ""
        look = "pairs" if not rows.head else "wide" if len(rows.head) > MANY_COLUMNS else "plain"
        parts += [f'<div class="scroll"><table class="{look}">{top}<tbody>', *body, "</tbody></table></div>"]
    return "\n".join(parts)


def _row(cells: Sequence[str], element: str = "td", mark: str = "") -> str:
    inner = "".join(f"<{element}>{_breakable(cell)}</{element}>" for cell in cells)
    return f'<tr class="{mark}">{inner}</tr>' if mark else f"<tr>{inner}</tr>"


def _breakable(text: str) -> str:
    """Escape the text; allow line breaks after the dots and underscores of a name."""
    return escape(text).replace("_", "_<wbr>").replace(".", ".<wbr>") if " " not in text else escape(text)


def _figure(picture: Picture) -> str:
    source = base64.b64encode(picture.png).decode()
    words = f"{picture.title}. {picture.note}".rstrip()
    return (
        f'<figure class="{"half" if picture.width < HALF_BELOW else "full"}">'
        f'<img alt="{escape(picture.alt)}" width="{picture.width}" height="{picture.height}" '
        f'src="data:image/png;base64,{source}"><figcaption>{escape(words)}</figcaption></figure>'
    )


def _heading(title: str) -> str:
    return f'<h2 id="{_anchor(title)}">{escape(title)}</h2>'


def _anchor(title: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower())
