"""Draw docs/pictures/display.svg, an animation of the live display while a worker is killed:

    pip install pyte && python docs/pictures/draw_display.py

Runs a real job in a pseudo-terminal, kills a worker, and draws each picture that a terminal emulator (pyte) shows.
Equal lines are drawn once and used again: a display changes little from picture to picture."""

import json
import os
import pty
import select
import signal
import sys
import tempfile
import time
from pathlib import Path
from xml.sax.saxutils import escape

import pyte

HERE = Path(__file__).parent
COLUMNS, LINES = 92, 21
CHAR, LINE, EDGE = 8.0, 18, 14  # pixels
COMMAND = "hogwild train"
ARGUMENTS = ["train", "configs/digits.yaml", "--procs", "4", "train.epochs=1500", "train.exchange=direct"]
KILL_S, END_S = 5.0, 12.0  # after the first figures
PICTURE_S = 0.25  # at most one picture in so long
LAST_S = 4.0  # the last one stays
COLOURS = {"default": "#d0d7de", "green": "#3fb950", "red": "#ff7b72", "brown": "#d29922", "cyan": "#39c5cf"}
COLOURS |= {"blue": "#58a6ff", "magenta": "#bc8cff", "black": "#6e7681", "brightblack": "#6e7681"}
Picture = tuple[str, ...]  # a terminal's lines, as SVG


def filmed() -> list[tuple[float, Picture]]:
    """Run the job; return each picture with its time in seconds."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    screen.set_mode(pyte.modes.LNM)
    pictures: list[tuple[float, Picture]] = [(0.0, prompt())]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        pid, master = pty.fork()
        if pid == 0:
            os.environ |= {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm-256color"}
            os.chdir(HERE.parent.parent)
            os.execv(sys.executable, [sys.executable, "run.py", *ARGUMENTS, "--run-dir", str(run)])
        began = shown = time.monotonic()
        first, is_killed = None, False
        while True:
            ready, _, _ = select.select([master], [], [], PICTURE_S)
            try:
                data = os.read(master, 65536) if ready else b""
            except OSError:  # the job has ended
                break
            stream.feed(data.replace(b"\r\n", b"\n").replace(folder.encode(), b"..."))
            now = time.monotonic()
            if now - shown >= PICTURE_S:
                shown = now
                pictures.append((now - began + 1.0, tuple(drawn(screen, row) for row in range(LINES))))
            if first is None and b"samples/s" in data:
                first = now
            if first is not None and not is_killed and now - first > KILL_S:
                workers = json.loads((run / "status.json").read_text())["workers"]
                os.kill(workers[1]["pid"], signal.SIGKILL)
                is_killed = True
            if first is not None and now - first > END_S:
                os.kill(pid, signal.SIGINT)
                first = now + 3600
        os.waitpid(pid, 0)
        pictures.append((time.monotonic() - began + 1.0, tuple(drawn(screen, row) for row in range(LINES))))
    return [one for k, one in enumerate(pictures) if k == 0 or one[1] != pictures[k - 1][1]]


def prompt() -> Picture:
    return (f'<tspan fill="{COLOURS["green"]}">$</tspan> {COMMAND}', *[""] * (LINES - 1))


def drawn(screen: pyte.Screen, row: int) -> str:
    """Return a line of the screen as SVG: text in pieces of one colour."""
    pieces: list[tuple[str, str]] = []
    for column in range(COLUMNS):
        char = screen.buffer[row][column]
        colour = COLOURS.get(char.fg, f"#{char.fg}")
        if pieces and (pieces[-1][0] == colour or char.data == " "):
            pieces[-1] = (pieces[-1][0], pieces[-1][1] + char.data)
        else:
            pieces.append((colour, char.data))
    text = "".join(
        escape(words) if colour == COLOURS["default"] else f'<tspan fill="{colour}">{escape(words)}</tspan>'
        for colour, words in pieces
    )
    return text.rstrip() if "<" not in text else text


def svg(pictures: list[tuple[float, Picture]]) -> str:
    """Return the animation. With reduced motion only the last picture is shown."""
    ends = [at for at, _ in pictures[1:]] + [pictures[-1][0] + LAST_S]
    whole, names = ends[-1], dict[str, str]()
    for _, picture in pictures:
        for line in picture:
            names.setdefault(line, f"l{len(names)}")
    width, height = COLUMNS * CHAR + 2 * EDGE, LINES * LINE + 2 * EDGE
    css, frames = [], []
    for number, ((at, picture), end) in enumerate(zip(pictures, ends, strict=True)):
        begin, stop = (f"{100 * moment / whole:.2f}%" for moment in (at, end))
        css.append(f"@keyframes f{number}{{0%{{opacity:0}}{begin}{{opacity:1}}{stop}{{opacity:0}}}}")
        css.append(f"#f{number}{{animation-name:f{number}}}")
        uses = "".join(
            f'<use href="#{names[line]}" y="{EDGE + LINE * row}"/>' for row, line in enumerate(picture) if line
        )
        frames.append(f'<g class="f" id="f{number}">{uses}</g>')
    last = f"#f{len(pictures) - 1}"
    lines = "".join(f'<text id="{name}" x="{EDGE}" dy="13">{line}</text>' for line, name in names.items() if line)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">\n'
        "<title>The display of a running job: a worker is killed, and replaced</title>\n"
        "<style>text{font:13.3px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;"
        f"fill:{COLOURS['default']}}}.f{{opacity:0;animation:{whole:.1f}s step-end infinite}}\n"
        + "\n".join(css)
        + f"\n@media (prefers-reduced-motion:reduce){{.f{{animation:none}}{last}{{opacity:1}}}}</style>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n<defs>{lines}</defs>\n'
        + "\n".join(frames)
        + "</svg>\n"
    )


if __name__ == "__main__":
    file = HERE / "display.svg"
    file.write_text(svg(filmed()))
    print(f"{file}: {file.stat().st_size:,} bytes")
