"""The figures that the README and the pages show, written from the committed results: `python -m benchmarks.published`.

`published.md` has a text per block, with `{{SUITE: FIGURE}}` where a value belongs; a page has the block between
`<!-- figures: NAME -->` and `<!-- end of figures -->`. A value whose row misses its target says so, whatever the text
around it claims. Behind a bar stands the form: `.2f` and the like, `baseline`, `gain` (two jobs that share nothing,
which stands in the note), `note` (its first part), or a field of the machine: `{{gpu: | torch}}`."""

import json
import re
from functools import cache
from pathlib import Path

from benchmarks.results import FOLDER, read_rows
from benchmarks.row import Row

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path(__file__).with_name("published.md")
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
VALUE = re.compile(r"\{\{(\w+):\s*(.*?)(?:\s*\|\s*([\w.,]+))?\}\}", re.DOTALL)
GAIN = re.compile(r"that share nothing gain ([\d.]+)")
DEFAULT_FORM = ".3g"


class UnknownFigure(KeyError):
    """A text names a row, or a block, that is not there."""


def blocks() -> dict[tuple[str, str], str]:
    """(Page, block) -> its text with placeholders."""
    parts = re.split(r"^## (\S+): ([\w-]+)\n\n", SOURCE.read_text(), flags=re.MULTILINE)[1:]
    return {(page, name): text.strip() for page, name, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True)}


def filled(text: str) -> str:
    """`text` with the value of a committed row in each placeholder."""
    return VALUE.sub(lambda found: shown(*found.groups()), text)


def shown(suite: str, figure: str, form: str | None) -> str:
    """One value as the page shows it."""
    if not figure:
        return str(_machine(suite)[form or ""])
    row = _rows(suite).get(" ".join(figure.split()))
    if row is None or row.value is None:
        raise UnknownFigure(f"{suite} has no value of {figure!r}")
    if form == "gain":
        found = GAIN.search(row.note)
        if found is None:
            raise UnknownFigure(f"{suite}, {figure!r}: the note has no gain: {row.note}")
        return found[1]
    if form == "note":
        return row.note.partition(";")[0]
    if form == "baseline":
        return f"{row.baseline:,.0f}"
    return f"{row.value:{form or DEFAULT_FORM}}{missed(row)}"


def missed(row: Row) -> str:
    """The words that stand behind a value that is not what was asked for."""
    return f" (missed: {row.target:.3g} asked)" if row.met is False else " (void)" if _is_void(row) else ""


def page_with_figures(page: str) -> str:
    """The page as it should be."""
    known = blocks()

    def block(found: re.Match[str]) -> str:
        if (page, found[2]) not in known:
            raise UnknownFigure(f"{page} has a block {found[2]!r}, which published.md has not")
        return f"{found[1]}\n{filled(known[page, found[2]])}\n\n{found[3]}"

    return BLOCK.sub(block, (ROOT / page).read_text())


def pages() -> dict[str, str]:
    """Every page with figures -> its text as it should be."""
    return {page: page_with_figures(page) for page in dict.fromkeys(page for page, _ in blocks())}


def _is_void(row: Row) -> bool:
    return row.target is not None and row.met is None


@cache
def _rows(suite: str) -> dict[str, Row]:
    return read_rows(suite)


@cache
def _machine(suite: str) -> dict[str, object]:
    found = json.loads((FOLDER / f"{suite}.json").read_text())
    return {**found["machine"], "date": found["date"]}


if __name__ == "__main__":
    for name, text in pages().items():
        (ROOT / name).write_text(text)
