"""The live display of a job: turns a snapshot into rich texts, one per line, never wider than the terminal. Pure except
for the memory of the trends; `terminal_writer.py` writes it to the terminal.

    mlp-digits  running  0:01:23  left about 0:04:10        runs/20260101-mlp-digits
    job    ━━━━━━━━━━━━━━━━━╸─────────────────────────────  33 %  update 12,345 of 37,000
    epoch  ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╸─────────────────  61 %  2 of 6
    loss 0.1234 ▇▆▅▄▃▃▂▂▁   accuracy 0.981 ▁▃▅▆▇
    …, a row per worker (troubled ones first where not all fit), the latest events
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import StringIO

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from hogwild.formatting import clock, in_one_line, percent, short_number, size
from hogwild.host.terminal import printable
from hogwild.monitoring.run_status import (
    NOT_YET,
    ONCE,
    ClusterSnapshot,
    JobSnapshot,
    StreamSnapshot,
    WorkerSnapshot,
)

TREND = 16  # values kept per trend
BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
NEWS = 4  # events at most
FEWEST_WORKER_ROWS = 3
STYLES = {
    **dict.fromkeys(("running", "training"), "green"),
    **dict.fromkeys(("starting", "compiling", "ready", "stopping", "stopped", "cancelled"), "yellow"),
    **dict.fromkeys(("evaluating", "saving"), "cyan"),
    **dict.fromkeys(("dying", "empty", "retired", "failed", "lost"), "bold red"),
    "succeeded": "bold green",
    NOT_YET: "dim",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the workers' table. `rank`: if space is short, the highest ranks are dropped first."""

    title: str
    width: int
    rank: int
    cell: Callable[[WorkerSnapshot], str]
    is_left: bool = False


def _part(name: str) -> Callable[[WorkerSnapshot], str]:
    return lambda w: percent(w.phases.get(name, 0.0)) if w.phases else "-"


COLUMNS = (
    Column("worker", 6, 0, lambda w: str(w.worker)),
    Column("state", 10, 0, lambda w: w.doing, is_left=True),
    Column("samples/s", 9, 1, lambda w: short_number(w.samples_per_s) if w.phases else "-"),
    Column("share", 5, 2, lambda w: percent(w.share) if w.phases else "-"),
    Column("work", 5, 3, _part("working")),
    Column("wait", 5, 4, _part("waiting")),
    Column("eval", 5, 9, _part("evaluating")),
    Column("pause", 5, 8, _part("parked")),
    Column("stale", 7, 6, lambda w: f"{w.stale_p50}/{w.stale_p99}" if w.updates else "-"),
    Column("restarts", 8, 5, lambda w: str(w.restarts) if w.restarts else "-"),
    Column("CPU", 6, 3, lambda w: "-" if w.cpu is None else percent(w.cpu)),
    Column("PSS", 7, 4, lambda w: "-" if w.pss_bytes is None else size(w.pss_bytes)),
    Column("updates", 11, 10, lambda w: f"{w.updates:,}"),
    Column("pid", 8, 11, lambda w: "-" if w.pid is None else str(w.pid)),
)
GAP = 2


class Display:
    """Formatter of snapshots, with each trend's latest values. The terminal's `encoding` decides on blocks or ASCII."""

    def __init__(self, encoding: str = "utf-8", footer: Callable[[JobSnapshot], str] | None = None) -> None:
        """`footer`: returns the last line of a frame, while the job runs."""
        self._footer = footer
        try:
            self._is_ascii = not f"━{BLOCKS}".encode(encoding)
        except (LookupError, UnicodeEncodeError):
            self._is_ascii = True
        self._trends: dict[str, deque[float]] = {}
        self._evaluated_at = -1

    def frame(self, job: JobSnapshot, width: int, height: int, *, is_last: bool = False) -> list[tuple[str, int]]:
        """Return (text with escape sequences, columns) for each line: at most `width` - 1 columns, at most `height` - 1
        lines. `is_last`: the job has ended, and this frame stays."""
        self.update(job)
        console = Console(file=StringIO(), force_terminal=True, width=max(1, width), legacy_windows=False)
        drawn = []
        for line in self.lines(job, width - 1, height - 1, is_last=is_last):
            with console.capture() as capture:  # the escape sequences that this terminal supports (TERM, NO_COLOR)
                console.print(line, end="", soft_wrap=True, highlight=False)
            drawn.append((capture.get(), line.cell_len))
        return drawn

    def update(self, job: JobSnapshot) -> None:
        """Add new values to the trends: a snapshot between two intervals repeats their rates."""
        if job.evaluated_at != self._evaluated_at:
            self._evaluated_at = job.evaluated_at
            for name, value in job.metrics.items():
                self._remember(f"val {name}", value)
        if not job.is_between:
            self._remember("loss", job.loss)
            self._remember("samples/s", job.samples_per_s)

    def _remember(self, name: str, value: float | None) -> None:
        if value is not None:
            self._trends.setdefault(name, deque(maxlen=TREND)).append(value)

    # ---- lines -------------------------------------------------------------------------------------------------

    def lines(self, job: JobSnapshot, width: int, height: int, *, is_last: bool = False) -> list[Text]:
        """Return at most `height` lines of at most `width` columns, the most important first."""
        head = [self._header(job, width), *self._bars(job, width), *self._figures(job, width)]
        if is_last:
            return self._fitted(head, width, height)
        news = [Text(in_one_line(printable(line)), "dim") for line in job.news[-NEWS:]]
        foot = [Text(self._footer(job), "dim")] if self._footer is not None else []
        room = height - len(head) - len(news) - len(foot)
        while news and room < FEWEST_WORKER_ROWS + 1:
            news, room = news[1:], room + 1
        return self._fitted([*head, *self._workers(job, width, room), *news, *foot], width, height)

    def _fitted(self, lines: Iterable[Text], width: int, height: int) -> list[Text]:
        fitted = list(lines)[: max(0, height)]
        for line in fitted:
            line.truncate(max(0, width), overflow="crop" if self._is_ascii else "ellipsis")
        return fitted

    def _header(self, job: JobSnapshot, width: int) -> Text:
        left = Text()
        left.append(job.name, "bold").append("  ")
        left.append(job.state, STYLES.get(job.state, ""))
        left.append(f"  {clock(job.wall_s)}")
        if job.left_s is not None and job.progress != 1:
            left.append(f"  left {clock(job.left_s)}")
        room = width - left.cell_len - GAP
        place = job.run_dir
        if cell_len(place) > room:  # its end identifies the run
            place = f"…{place[-max(0, room - 1) :]}" if room > 12 and not self._is_ascii else ""
        if place:
            left.append(" " * max(GAP, width - left.cell_len - cell_len(place))).append(place, "dim")
        return left

    def _bars(self, job: JobSnapshot, width: int) -> list[Text]:
        updates = f"update {job.updates:,}" + (f" of {job.planned_updates:,}" if job.planned_updates else "")
        whole = min(int(job.position), job.epochs - 1)
        epochs = f"{whole + 1:,} of {job.epochs:,}"
        room = min(60, width - len("epoch  ") - len(" 100 %  ") - max(len(updates), len(epochs)))
        full, rest = ("#", "-") if self._is_ascii else ("━", "─")
        lines = []
        for title, part, words in (("job", job.progress, updates), ("epoch", job.position - whole, epochs)):
            line = Text(f"{title:<7}")
            if part is None:  # unknown
                lines.append(line.append(f" {words}"))
                continue
            done = min(1.0, max(0.0, part))
            if room >= 8:
                filled = int(done * room)
                line.append(full * filled, "green").append(rest * (room - filled), "dim")
            lines.append(line.append(f" {percent(done):>5}  {words}"))
        return lines

    def _figures(self, job: JobSnapshot, width: int) -> list[Text]:
        """Return loss, metrics, speed and counts, as many figures per line as fit; none is split."""
        found = [self._figure("loss", "-" if job.loss is None else f"{job.loss:.4g}", "loss")]
        found += [self._figure(f"val {name}", f"{value:.4g}", f"val {name}") for name, value in job.metrics.items()]
        found += [self._figure("best", str(job.best))] if job.best is not None else []
        speed = self._figure("samples/s", short_number(job.samples_per_s), "samples/s")
        counts = [
            ("lr", "" if job.lr is None else f"{job.lr:.3g}"),
            ("staleness", f"{job.stale_p50}/{job.stale_p99}"),
            ("memory", "" if job.pss_bytes is None else size(job.pss_bytes)),
            *((name, f"{count:,}") for name, count in job.trouble.items()),
        ]
        return [
            *_filled(found, width),
            *_filled([speed, *(self._figure(name, value) for name, value in counts if value)], width),
            *([_filled(self._stream(job.stream), width)[0]] if job.stream is not None else []),
            *([_filled(self._cluster(job.cluster), width)[0]] if job.cluster is not None else []),
        ]

    def _stream(self, stream: StreamSnapshot) -> list[Text]:
        found = [self._figure("loaders", str(stream.loaders) + f" of {stream.wanted}" * (stream.wanted > 1))]
        found.append(self._figure("slots filled", f"{stream.filled} of {stream.slots}"))
        found += [Text(stream.waits, "yellow")] if stream.waits else []
        return [*found, *([self._figure("loader deaths", f"{stream.deaths:,}")] if stream.deaths else [])]

    def _cluster(self, cluster: ClusterSnapshot) -> list[Text]:
        nodes, *rest = cluster.words
        loss = cluster.loss
        return [self._figure("cluster", nodes), *(Text(words, "yellow" if words == loss else "") for words in rest)]

    def _figure(self, name: str, value: str, trend: str | None = None) -> Text:
        text = Text(f"{name} ").append(value, "bold")
        values = self._trends.get(trend, ()) if trend else ()
        return text.append(f" {blocks(values, ASCII_BLOCKS if self._is_ascii else BLOCKS)}", "cyan") if values else text

    # ---- workers -----------------------------------------------------------------------------------------------

    def _workers(self, job: JobSnapshot, width: int, room: int) -> list[Text]:
        """Return a title, a row per worker and one of the fork server, in `room` lines; if not all fit, workers in
        trouble come first, and the server goes."""
        if room < 2 or not job.workers:
            return []
        columns = columns_for(width)
        title = Text(_row((column.title for column in columns), columns), "dim")
        shown = shown_workers(job.workers, room - 1)
        rows = [self._worker(worker, columns) for worker in shown]
        if left := len(job.workers) - len(shown):
            rows.append(Text(f"{'...' if self._is_ascii else '…'} and {left} more", "dim"))
        if job.server is not None and len(rows) + 1 < room:
            memory = "" if job.server.pss_bytes is None else size(job.server.pss_bytes)
            cells = {"worker": "server", "state": job.server.state, "PSS": memory, "pid": str(job.server.pid)}
            row = _row((cells.get(column.title, "") for column in columns), columns)
            rows.append(Text(row, "dim" if job.server.is_serving else "yellow"))
        return [title, *rows]

    def _worker(self, worker: WorkerSnapshot, columns: Sequence[Column]) -> Text:
        if note := worker.silence or ONCE.get(worker.doing, ""):
            shown = [column for column in columns if column.title in ("worker", "state")]
            row = Text(_row((column.cell(worker) for column in shown), shown))
            return row.append(f"{'':{GAP}}{note.strip()}", "yellow")
        row = Text(_row((column.cell(worker) for column in columns), columns))
        start = 0
        for column in columns:
            if column.title == "state":
                name = NOT_YET if worker.doing == NOT_YET else worker.state
                row.stylize(STYLES.get(name, ""), start, start + column.width)
            start += column.width + GAP
        return row


def columns_for(width: int) -> list[Column]:
    """Return the columns that fit, chosen by importance, in their usual order."""
    kept: list[Column] = []
    for column in sorted(COLUMNS, key=lambda column: column.rank):
        if sum(one.width + GAP for one in (*kept, column)) - GAP <= width or not column.rank:
            kept.append(column)
    return [column for column in COLUMNS if column in kept]


def shown_workers(workers: Sequence[WorkerSnapshot], room: int) -> list[WorkerSnapshot]:
    """Return at most `room` workers, or one less if not all fit: the extra line counts those left out. Ordered by
    number; workers in trouble, or restarted most, are kept."""
    if len(workers) <= room:
        return list(workers)
    chosen = sorted(
        workers, key=lambda worker: (worker.state == "training" and not worker.silence, -worker.restarts, worker.worker)
    )
    return sorted(chosen[: max(0, room - 1)], key=lambda worker: worker.worker)


def blocks(values: Iterable[float], levels: str = BLOCKS) -> str:
    """Return one character per finite value, scaled from their minimum to their maximum."""
    known = [value for value in values if abs(value) < float("inf")]
    low, high = min(known, default=0.0), max(known, default=0.0)
    span = high - low
    top = len(levels) - 1
    return "".join(levels[round((value - low) / span * top) if span > 0 else 0] for value in known)


def _row(cells: Iterable[str], columns: Sequence[Column]) -> str:
    shown = []
    for cell, column in zip(cells, columns, strict=True):
        cut = cell[: column.width]
        shown.append(cut.ljust(column.width) if column.is_left else cut.rjust(column.width))
    return (" " * GAP).join(shown).rstrip()


def _filled(figures: Sequence[Text], width: int) -> list[Text]:
    """Return lines of complete figures, with three blanks between them."""
    lines: list[Text] = []
    for figure in figures:
        if lines and lines[-1].cell_len + 3 + figure.cell_len <= width:
            lines[-1].append("   ").append_text(figure)
        else:
            lines.append(figure.copy())
    return lines
