"""The processes that read a data set, as the parent sees them: they lease ranges, are judged by their beats, and are
replaced when they die. They are workers that started early; `loading.py` uses them.

Failures and their handling:

    a reader dies                its ranges are leased to others; the range it was reading is charged
    a range is charged too often DataError with the row and the last exit (`supervise.max_item_attempts`)
    no beat for stall_timeout_s  SIGKILL, then as above
    a row cannot be used         the rows before it are read first: the lowest bad row is the error
    no reader is left            the caller reads the rest itself"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain, count

from hogwild import host
from hogwild.errors import DataError
from hogwild.scheduling.row_ranges import RowRanges
from hogwild.shared_memory.region import Region
from workers.child.row_reader import BEATS, ReaderBeat
from workers.messages import LOOK, ReadTask, Report
from workers.processes.early_start import HeadStart
from workers.processes.handle import POLL_MS, REAP_S, Handle

IN_HAND = 2  # ranges per reader: the next one is there when one is done
TURN_S = 1.0  # most that one turn of the loop adds to a silence: a parent that was itself stopped must not kill readers
_TASKS = count(1)
DEATHS_AT_START = 3  # in a row, per reader, before anything is read
ITEM = ("item {row}", "Read this item alone (dataset[{row}]) to find the cause")  # the name of a row, and advice


@dataclass(frozen=True, slots=True)
class Patience:
    """The time limits of a reader, in seconds, and the attempts per range."""

    start_s: float
    stall_s: float
    attempts: int


@dataclass(slots=True)
class _ReaderProcess:
    """A reader. `number`: its row of the beats. `has_begun`: it has made the data set."""

    handle: Handle
    number: int
    has_begun: bool = False
    is_unable: bool = False
    beats: int = 0
    silent_s: float = 0.0
    killed_s: float | None = None


class Readers:
    """The readers of one data set, until `run` returns. Main thread only."""

    def __init__(
        self, early: HeadStart, what: str, ranges: RowRanges, patience: Patience, item: tuple[str, str] = ITEM
    ) -> None:
        """`item`: the name of a row, and advice to its owner, with the row's number as {row}."""
        self._early, self._what, self._ranges, self._patience, self._item = early, what, ranges, patience, item
        self._readers = [_ReaderProcess(handle, number) for number, handle in enumerate(early)]
        self.count = len(self._readers)
        self._regions = {"beats": Region.allocate("beats", max(1, self.count) * BEATS * 8)}
        self._words = self._regions["beats"].array("i8", (max(1, self.count), BEATS))
        self._recipe_nbytes = 0
        self._deaths_at_start = 0
        self._task = next(_TASKS)
        self.deaths = 0
        self.bad: dict[int, Report] = {}
        self.unable = ""  # reason why no process can read

    def start(self, recipe: bytes, regions: Mapping[str, Region]) -> None:
        """Send the task: the readers make the data set from the pickled `recipe`, which writes into `regions`, and
        import what it needs. Call `run` or `dismiss` next."""
        self._regions |= {"recipe": Region.of_bytes("recipe", recipe), **regions}
        self._recipe_nbytes = len(recipe)
        for reader in self._readers:
            self._ask(reader)

    def _ask(self, reader: _ReaderProcess) -> None:
        reader.handle.send(ReadTask(self._task, reader.number, self._recipe_nbytes), self._regions)

    def run(self, tell: Callable[[int], object]) -> bool:
        """Read; return True if all is read, or all before a bad row, False if no reader is left that can. `tell` gets
        the number of rows read in every turn. Raises DataError for a range that kills every reader."""
        try:
            self._watch(tell)
        except DataError:
            self.dismiss()
            raise
        self.dismiss()
        return self._ranges.is_finished

    @property
    def why_unread(self) -> str:
        """A sentence for the log after a `run` that returned False."""
        return f"{self._what}: {self.unable or 'no reader process can be started'}; the parent process reads it"

    def _watch(self, tell: Callable[[int], object]) -> None:
        last_s = time.monotonic()
        while not self._ranges.is_finished and any(not reader.is_unable for reader in self._readers):
            self._lease()
            host.wait_readable(chain.from_iterable(reader.handle.descriptors() for reader in self._readers), POLL_MS)
            now_s = time.monotonic()
            for reader in self._readers[:]:
                self._listen(reader)
                self._judge(reader, min(TURN_S, now_s - last_s))
                if reader in self._readers and (status := reader.handle.reap()) is not None:
                    self._handle_death(reader, status)
            last_s = now_s
            tell(self._ranges.rows_read)

    def _lease(self) -> None:
        """Lease one range to each reader, then another: near the end no reader holds two while another has none."""
        for most in range(1, IN_HAND + 1):
            for reader in self._readers:
                if not reader.has_begun or reader.killed_s is not None or self._ranges.hand(reader.number) >= most:
                    continue
                if (number := self._ranges.lease(reader.number)) is not None:
                    reader.handle.lease(self._task, number)

    def _listen(self, reader: _ReaderProcess) -> None:
        for _, number in reader.handle.acks():
            self._ranges.finish(reader.number, number)
            self._deaths_at_start = 0
        reader.handle.listen()
        said, reader.handle.said_as_reader = reader.handle.said_as_reader, []
        for report in said:
            if report.task != self._task:
                continue
            if report.kind == "reading":
                reader.has_begun = True
            elif report.kind == "unreadable":
                reader.is_unable, self.unable = True, report.detail
            else:
                self._ranges.condemn(reader.number, report.item)
                self.bad[report.item] = report

    def _judge(self, reader: _ReaderProcess, elapsed_s: float) -> None:
        """Kill a silent reader. Beats come with every item, and while a reader waits."""
        if reader.killed_s is not None:
            reader.killed_s += elapsed_s
            if reader.killed_s > REAP_S:
                self._leave_behind(reader)
            return
        beats = int(self._words[reader.number, ReaderBeat.COUNT])
        reader.silent_s = 0.0 if beats != reader.beats or reader.is_unable else reader.silent_s + elapsed_s
        reader.beats = beats
        limit_s = self._patience.stall_s if reader.has_begun else self._patience.start_s
        if reader.silent_s > limit_s:
            reader.handle.kill(f"no sign of life for {limit_s:g} s")
            reader.killed_s = 0.0

    def _handle_death(self, reader: _ReaderProcess, status: int) -> None:
        self._listen(reader)  # ranges finished before its death
        self.deaths += 1
        words = reader.handle.killed_for or host.describe_exit(status)
        said = reader.handle.error.detail if reader.handle.error else reader.handle.last_output()
        self._readers.remove(reader)
        handle = self._early.replace(reader.handle)
        self._charge(reader, f"{words}; it said: {said}" if said else words)
        self._words[reader.number] = 0
        if handle is not None and not reader.is_unable:
            self._readers.append(_ReaderProcess(handle, reader.number))
            self._ask(self._readers[-1])

    def _charge(self, reader: _ReaderProcess, how: str) -> None:
        number, row = int(self._words[reader.number, ReaderBeat.RANGE]), int(self._words[reader.number, ReaderBeat.ROW])
        deaths = self._ranges.release(reader.number, number or None)
        if deaths >= self._patience.attempts:
            ended = f"{deaths} processes, the last one" if deaths > 1 else "its process"
            item, advice = (words.format(row=row) for words in self._item)
            raise DataError(f"{self._what}: reading {item} crashed {ended}: {how}. {advice}", code="data/item-kills")
        if not deaths:
            self._deaths_at_start += 1
        if self._deaths_at_start >= DEATHS_AT_START * len(self._words):
            reader.is_unable, self.unable = True, f"reader processes died: {how}"
            for other in self._readers:
                other.is_unable = True

    def _leave_behind(self, reader: _ReaderProcess) -> None:
        """Abandon a process that survives SIGKILL; a late write of it would store the same values."""
        self._readers.remove(reader)
        self._early.abandon(reader.handle)
        self._charge(reader, f"{reader.handle.killed_for}; it {reader.handle.describe_undead()}")

    def dismiss(self) -> None:
        """Let the readers wait for their set-up again. Those that still hold a range are killed: its ack would be
        mistaken for one of training."""
        for reader in self._readers:
            if reader.killed_s is None and not self._ranges.hand(reader.number):
                reader.handle.lease(self._task, LOOK)
                continue
            reader.handle.kill("its data is read by somebody else")
            host.wait_readable([reader.handle.pidfd], REAP_S * 1000)
            if reader.handle.reap() is None:
                self._early.abandon(reader.handle)
            else:
                self._early.replace(reader.handle)
