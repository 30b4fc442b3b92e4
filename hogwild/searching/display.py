"""The display of a search on standard error: a live table on a terminal, else a line per trial that has ended. The
lines are in its log in any case."""

import time
from collections.abc import Callable

import optuna
from optuna.trial import TrialState
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hogwild.host import terminal
from hogwild.searching.loop import SearchDisplay
from hogwild.searching.results import SearchRun, head_of, ranked, rows_of
from hogwild.searching.study import front, is_maximised

EVERY_S = 0.5  # between two pictures at nothing new
LEAST_ROWS = 3
PAUSE, STOPPING = "Ctrl-C: pause; it can be resumed", "pausing: trials write their checkpoints"
OTHER_LINES = 7  # of a picture: the head, the title, the footer
STYLES = {"complete": "green", "pruned": "dim", "failed": "red", "running": "cyan"}


class TrialLines(SearchDisplay):
    """A line per trial that has ended. `say` prints one."""

    def __init__(self, search: SearchRun, say: Callable[[str], object]) -> None:
        self._search, self._say = search, say

    def told(self, study: optuna.Study, number: int) -> None:
        trial = study.get_trials(deepcopy=False)[number]
        title, row = rows_of(self._search, [trial])
        found = dict(zip(title, row, strict=True))
        words = ", ".join(f"{name} {cell}" for name, cell in found.items() if name not in ("trial", "state", "note"))
        note = f" ({found['note']})" if found["note"] else ""
        self._say(f"trial {number} {found['state']}{note}: {words}")


class LiveTable(TrialLines):
    """The best and the running trials in a table that is drawn again and again. `footer`: its last line."""

    def __init__(self, search: SearchRun, log: Callable[[str], object], footer: str) -> None:
        super().__init__(search, log)
        self._footer = footer
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self._drawn_s = float("-inf")
        self._live.start()

    def show(self, study: optuna.Study, *, is_stopping: bool) -> None:
        if time.monotonic() - self._drawn_s >= EVERY_S:
            self._draw(study, STOPPING if is_stopping else self._footer)

    def told(self, study: optuna.Study, number: int) -> None:
        super().told(study, number)
        self._drawn_s = float("-inf")  # at the next look

    def close(self) -> None:
        self._live.stop()

    def _draw(self, study: optuna.Study, footer: str) -> None:
        self._drawn_s = time.monotonic()
        is_max, trials, best = is_maximised(self._search.job), study.get_trials(deepcopy=False), front(study)
        running = {one.number for one in trials if one.state == TrialState.RUNNING}
        room = max(LEAST_ROWS, terminal.size(2)[1] - OTHER_LINES - len(running))
        ended = [one for one in ranked(trials, best, is_max=is_max) if one.number not in running][:room]
        title, *rows = rows_of(self._search, [*(trials[number] for number in sorted(running)), *ended], best)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in title:
            table.add_column(Text(name), no_wrap=True, overflow="ellipsis")
        for row in rows:
            table.add_row(*map(Text, row), style=STYLES.get(row[1], ""))
        head = [Text(line, no_wrap=True, overflow="ellipsis") for line in head_of(self._search, study)]
        self._live.update(Group(*head, table, Text(footer, style="dim")), refresh=True)


def display_for(
    search: SearchRun, say: Callable[[str], object], log: Callable[[str], object], *, footer: str = PAUSE
) -> TrialLines:
    """Return the display that suits standard error. `say` prints a line and logs it, `log` does not print; `footer`:
    last line of a live table."""
    return LiveTable(search, log, footer) if terminal.can_move_cursor(2) else TrialLines(search, say)
