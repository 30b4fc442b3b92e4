"""Rows of a data set, read by several processes before training: a team of readers, which end when all is read.

a reader dies                its ranges are leased to others; the range it was reading is charged
a range is charged too often DataError with the row and the last exit (`supervise.max_item_attempts`)
no beat for stall_timeout_s  SIGKILL, then as above
a row cannot be used         the rows before it are read first: the lowest bad row is the error
no reader is left            the caller reads the rest itself"""

import time
from collections.abc import Callable, Mapping

from hogwild.errors import DataError, HogwildError
from hogwild.scheduling.row_ranges import RowRanges
from hogwild.shared_memory.region import Region
from hogwild.workers.loading.loaders import LoaderLoss, Loaders
from hogwild.workers.messages import Report
from hogwild.workers.processes.group import ProcessGroup
from hogwild.workers.processes.handle import POLL_MS
from hogwild.workers.processes.roles import Role, limits_of
from hogwild.workers.processes.roster import Roster

IN_HAND = 2  # ranges per reader: the next one is there when one is done


class RangeWork:
    """Ranges of rows as work of readers."""

    again = "its rows are read again"

    def __init__(self, what: str, ranges: RowRanges, attempts: float) -> None:
        self._what, self._ranges, self._attempts = what, ranges, attempts
        self.bad: dict[int, Report] = {}  # range -> why it cannot be read

    def request(self, loader: int) -> int | None:
        return self._ranges.lease(loader) if self._ranges.hand(loader) < IN_HAND else None

    def answered(self, loader: int, answer: int, number: int) -> bool:
        self._ranges.finish(loader, number)
        return True

    def refused(self, loader: int, report: Report) -> None:
        self._ranges.condemn(loader, report.item)
        self.bad[report.item] = report

    def lost(self, loader: int, number: int | None, record: int, how: str) -> LoaderLoss:
        deaths = self._ranges.release(loader, number)
        charged = (0, number) if deaths and number else None
        if deaths < self._attempts:
            return LoaderLoss(charged)
        ended = f"{deaths} processes, the last one" if deaths > 1 else "its process"
        words = f"{self._what}: reading item {record} crashed {ended}: {how}. Read this item alone (dataset[{record}])"
        error = DataError(f"{words} to find the cause", code="data/item-kills")
        return LoaderLoss(charged, error=error)

    def has_in_hand(self, loader: int) -> bool:
        return self._ranges.hand(loader) > 0

    def waits(self) -> str:
        return "waits for rows to read"

    def check(self) -> None:
        return None


class Readers:
    """The readers of one data set. Main thread only."""

    def __init__(self, group: ProcessGroup, what: str, ranges: RowRanges) -> None:
        self._group, self._what, self._ranges = group, what, ranges
        self._limits = limits_of(Role.READER, group.supervise)
        self.work = RangeWork(what, ranges, self._limits.max_item_attempts)
        self.count, self.deaths = group.readers, 0
        self._errors: list[HogwildError] = []

    def run(self, recipe: bytes, regions: Mapping[str, Region], tell: Callable[[int], object]) -> bool:
        """Read, by processes that open the pickled `recipe`, which writes into `regions`. Return True if all is read,
        or all before a bad row, False if no reader is left that can. `tell` gets the number of rows read in every turn.
        Raises DataError for a range that kills every reader."""
        roster = Roster(Role.READER, self._limits, self.count)
        team = Loaders(self._group, roster, self.work, recipe, regions)
        self._group.teams.append(team)
        self._errors += self._group.step(time.monotonic(), [team])
        while not self._ranges.is_finished and not self._errors:
            self._group.wait(POLL_MS)
            self._errors += self._group.step(time.monotonic(), [team])
            tell(self._ranges.rows_read)
        self.deaths = team.deaths
        self._group.end(team)
        fatal = next((error for error in self._errors if error.code == "data/item-kills"), None)
        if fatal is not None:
            raise fatal
        return self._ranges.is_finished

    @property
    def why_unread(self) -> str:
        """A sentence for the log after a `run` that returned False."""
        return f"{self._what}: {self._errors[0]}; the parent process reads it"
