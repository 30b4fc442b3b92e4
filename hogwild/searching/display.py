"""The display of a search on standard error: a live table on a terminal, else a line per trial that has ended."""

import time
from collections.abc import Callable

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hogwild.host import terminal
from hogwild.searching.loop import SearchDisplay, SearchLoop
from hogwild.searching.results import SearchRun, head_of, ranked, rows_of
from hogwild.searching.study import front, is_maximised

EVERY_S = 0.5  # between two pictures at nothing new
LEAST_ROWS = 3
OTHER_LINES = 7  # of a picture: the head, the title, the footer
STYLES = {"complete": "green", "pruned": "dim", "failed": "red", "running": "cyan"}


class TrialLines(SearchDisplay):
    """A line per trial that has ended. `say` prints one."""

    def __init__(self, search: SearchRun, say: Callable[[str], object]) -> None:
        self._search, self._say = search, say

    def told(self, loop: SearchLoop, number: int) -> None:
        trial = loop.study.get_trials(deepcopy=False)[number]
        title, row = rows_of(self._search, [trial])
        found = dict(zip(title, row, strict=True))
        words = ", ".join(f"{name} {cell}" for name, cell in found.items() if name not in ("trial", "state", "note"))
        note = f" ({found['note']})" if found["note"] else ""
        self._say(f"trial {number} {found['state']}{note}: {words}")


class LiveTable(SearchDisplay):
    """The best and the running trials in a table that is drawn again and again."""

    def __init__(self, search: SearchRun) -> None:
        self._search = search
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self._drawn_s = float("-inf")
        self._live.start()

    def show(self, loop: SearchLoop) -> None:
        if time.monotonic() - self._drawn_s >= EVERY_S:
            self._draw(loop)

    def told(self, loop: SearchLoop, number: int) -> None:
        self._draw(loop)

    def close(self) -> None:
        self._live.stop()

    def _draw(self, loop: SearchLoop) -> None:
        self._drawn_s = time.monotonic()
        is_max, trials, best = is_maximised(loop.job), loop.study.get_trials(deepcopy=False), front(loop.study)
        running = {one.number for one in loop.running}
        room = max(LEAST_ROWS, terminal.size(2)[1] - OTHER_LINES - len(running))
        ended = [one for one in ranked(trials, best, is_max=is_max) if one.number not in running][:room]
        title, *rows = rows_of(self._search, [*(trials[number] for number in sorted(running)), *ended], best)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in title:
            table.add_column(Text(name), no_wrap=True, overflow="ellipsis")
        for row in rows:
            table.add_row(*map(Text, row), style=STYLES.get(row[1], ""))
        footer = "pausing: trials write their checkpoints" if loop.is_stopping else "Ctrl-C: pause; it can be resumed"
        head = [Text(line, no_wrap=True, overflow="ellipsis") for line in head_of(self._search, loop.study)]
        self._live.update(Group(*head, table, Text(footer, style="dim")), refresh=True)


def display_for(search: SearchRun, say: Callable[[str], object], *, shows: bool) -> SearchDisplay:
    """Return the display that suits standard error."""
    if not shows:
        return SearchDisplay()
    return LiveTable(search) if terminal.can_move_cursor(2) else TrialLines(search, say)
