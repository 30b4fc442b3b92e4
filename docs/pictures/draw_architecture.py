"""Draw docs/pictures/architecture.svg: python docs/pictures/draw_architecture.py

Plain SVG text from the table of boxes and arrows below, so that a change of the house is a change of a line here."""

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 1000, 610
INK, QUIET = "#1f2933", "#52606d"
PROCESS, MEMORY, DISK = "#dbeafe", "#fef3c7", "#e5e7eb"  # what a box is: a process, shared memory, files

SUPERVISOR = [
    "scheduling/   cuts epochs into items,",
    "              leases them, keeps the ledger",
    "processes/    who should live, and the",
    "              children themselves",
    "supervision/  births, deaths, pauses",
    "session/      counters, evaluation,",
    "              checkpoints, records",
    "computes no model; waits 50 ms at most",
]
WORKER = [
    "gather a batch → forward → backward (private)",
    "intent → write the parameters → commit",
    "beat after every step; no lock anywhere",
]
LOADER = [
    "read records → collate into a slot",
    "half a slot of a killed one is filled again",
]
MEMORY_LINES = [
    "flats            one per dtype; parameters are views of them",
    "                 all workers write, without a lock",
    "optimizer state  one for all, or one per worker",
    "data             tensors, packed arrays, or a ring of slots",
    "scoreboard       a row per worker: intent, commit, beat",
    "item table       what an item's number means",
    "results          a row per evaluation item",
]
FILES = [
    "checkpoints/  written aside,",
    "              checksums, renamed",
    "metrics.jsonl events.jsonl",
    "status.json   summary.json",
    "logs/         stacks/",
    "resolved.yaml env.json",
]
# x, y, width, height, colour, title, lines
BOXES = [
    (20, 60, 340, 230, PROCESS, "supervisor (run.py train)", SUPERVISOR),
    (630, 60, 350, 110, PROCESS, "worker 0 … N-1", WORKER),
    (630, 190, 350, 100, PROCESS, "loader 0 … M-1 (streamed data)", LOADER),
    (20, 380, 260, 200, DISK, "run directory", FILES),
    (310, 380, 670, 200, MEMORY, "shared memory: regions without a name, so nothing can be left behind", MEMORY_LINES),
]
# x1, y1, x2, y2, label, where the label stands (x, y)
ARROWS = [
    (360, 85, 630, 85, "leases: 8-byte records in a pipe", (378, 79)),
    (630, 110, 360, 110, "acknowledgements, the same way", (378, 104)),
    (360, 135, 630, 135, "lifeline: it ends with the parent", (378, 129)),
    (630, 160, 360, 160, "pidfd: a death, within 0.2 ms", (378, 154)),
    (360, 225, 630, 225, "slots to fill", (378, 218)),
    (630, 255, 360, 255, "slots filled", (378, 248)),
    (120, 290, 120, 380, "writes", (130, 340)),
    (335, 290, 335, 380, "writes the item table, reads rows", (345, 340)),
    (800, 290, 800, 380, "read and write in place", (810, 340)),
]


def draw() -> str:
    """Return the picture as SVG text."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="monospace">',
        "<title>The processes of one job, what they share and what they write</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{QUIET}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#ffffff"/>',
        _text(20, 36, "One job: processes (blue), shared memory (yellow), files (grey)", size=16, bold=True),
    ]
    for x1, y1, x2, y2, label, (x, y) in ARROWS:
        line = f'x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"'
        parts.append(f'<line {line} stroke="{QUIET}" stroke-width="1.5" marker-end="url(#head)"/>')
        if label:
            parts.append(_text(x, y, label, colour=QUIET))
    for x, y, width, height, colour, title, lines in BOXES:
        place = f'x="{x}" y="{y}" width="{width}" height="{height}"'
        parts.append(f'<rect {place} rx="8" fill="{colour}" stroke="{QUIET}"/>')
        parts.append(_text(x + 12, y + 24, title, size=13, bold=True))
        parts += [_text(x + 12, y + 48 + 20 * row, line) for row, line in enumerate(lines)]
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, words: str, *, size: int = 12, bold: bool = False, colour: str = INK) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}"{weight} xml:space="preserve">{escape(words)}</text>'
    )


if __name__ == "__main__":
    Path(__file__).with_name("architecture.svg").write_text(draw())
