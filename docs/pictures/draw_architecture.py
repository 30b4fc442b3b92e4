"""Draw docs/pictures/architecture.svg: python docs/pictures/draw_architecture.py

Plain SVG text from the table of boxes and arrows below, so that a change of the house is a change of a line here."""

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 1000, 610
INK, QUIET = "#1f2933", "#52606d"
PROCESS, MEMORY, DISK = "#dbeafe", "#fef3c7", "#e5e7eb"  # what a box is: a process, shared memory, files

# x, y, width, height, colour, title, lines
BOXES = [
    (
        20,
        60,
        300,
        250,
        PROCESS,
        "supervisor (your `run.py train`)",
        [
            "scheduling/   cuts epochs into items, leases",
            "              them, keeps the ledger (pure)",
            "processes/    who should live (pure roster),",
            "              and the children themselves",
            "supervision/  the loop: births, deaths, pauses",
            "session/      counters, evaluation, checkpoints",
            "",
            "no model mathematics; waits at most 20 ms",
        ],
    ),
    (
        600,
        60,
        380,
        110,
        PROCESS,
        "worker 0 … N-1",
        [
            "gather a batch → forward → backward (private)",
            "intent → write the shared parameters → commit",
            "beat; no lock anywhere",
        ],
    ),
    (
        600,
        200,
        380,
        110,
        PROCESS,
        "loader 0 … M-1 (streamed data only)",
        [
            "read records → collate into a slot of the ring",
            "a killed one leaves a slot half filled: nobody",
            "was told of it, and it is filled again",
        ],
    ),
    (
        20,
        400,
        640,
        190,
        MEMORY,
        "shared memory: memfd regions without a name, nothing can be left behind",
        [
            "flats             one per dtype; every parameter is a view; all workers write, no lock",
            "optimizer state   one for all, or one per worker",
            "data              tensors or packed arrays; a stream: a ring of slots",
            "scoreboard        a row per worker: intent, commit, beat, counters; one writer each",
            "item table        what an item's number means; written by the supervisor alone",
            "results           one row per evaluation item",
        ],
    ),
    (
        700,
        400,
        280,
        190,
        DISK,
        "run directory",
        [
            "checkpoints/   written aside,",
            "               checksums, renamed",
            "metrics.jsonl  events.jsonl",
            "status.json    summary.json",
            "logs/          stacks/",
            "resolved.yaml  env.json",
        ],
    ),
]
# x1, y1, x2, y2, label, where the label stands (x, y)
ARROWS = [
    (320, 85, 600, 85, "lease pipe: 8-byte records →", (340, 78)),
    (600, 115, 320, 115, "← ack pipe: 8-byte records", (340, 108)),
    (320, 145, 600, 145, "lifeline: end of file = parent gone →", (340, 138)),
    (600, 225, 320, 225, "← pidfd: a death, in 0.2 ms", (340, 218)),
    (320, 255, 600, 255, "slot numbers both ways", (340, 248)),
    (170, 310, 170, 400, "reads rows, writes the item table", (180, 360)),
    (590, 310, 590, 400, "", (0, 0)),
    (640, 170, 580, 400, "workers read and write in place", (395, 385)),
    (310, 310, 760, 400, "checkpoints and records", (620, 345)),
]


def draw() -> str:
    """Return the picture as SVG text."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="monospace" font-size="12">',
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
