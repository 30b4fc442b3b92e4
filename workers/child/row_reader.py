"""Rows of a data set, read by a process that waits for its set-up. It leases ranges and writes them straight into the
memory that training reads.

    parent                                    reader
    task: recipe, regions ── socket ──►       makes the data set from the recipe    ──► "reading"
    (task, range) ── lease pipe ──►           beat, item by item; check each; write the range    ──► ack pipe
                                              a row that cannot be used             ──► "bad-row"; the next range
    (task, 0) ── lease pipe ──►               forgets the task, waits for its set-up again

Only its reader writes a row of `beats` (reader, 8) int64; a row of the data is written by the holder of its range."""

import gc
import select
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, ClassVar

import cloudpickle
import torch
from torch import Tensor

from hogwild.errors import DataError
from hogwild.feeds.resident import FieldSpec, ResidentData
from hogwild.feeds.row_reader import BadRow, RowSource
from hogwild.scheduling.row_ranges import RowRanges
from hogwild.shared_memory.region import Region
from hogwild.training import torch_settings
from workers.child.adoption import adopt
from workers.child.worker_loop import WAIT_MS
from workers.messages import LOOK, ParentGone, ReadTask, Report, Start, read_records, write_record

BEATS = 8  # words per reader: a cache line


class ReaderBeat(IntEnum):
    COUNT = 0
    RANGE = 1  # range being read, 0: none
    ROW = 2


@dataclass(frozen=True, slots=True)
class Recipe:
    """The source and the destination of a read. `parts`: (region, fields) of the whole data set, or of the training and
    the validation part; then the region `places` holds the place of each row. Sent with cloudpickle."""

    rows: RowSource
    begin: int
    size: int
    parts: tuple[tuple[str, tuple[FieldSpec, ...]], ...]
    has_places: bool

    def ranges(self) -> RowRanges:
        return RowRanges(self.begin, self.rows.count, self.size)

    def opened(self, regions: Mapping[str, Region]) -> "tuple[Recipe, Destination]":
        """Return the recipe with its mapped destination."""
        places = regions["places"].tensor(torch.int64, (self.rows.count,)) if self.has_places else None
        return self, Destination([ResidentData(regions[name], fields) for name, fields in self.parts], places)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of a text (`hogwild.data.text_parsing.passes.Pass`), read as if they were rows: a range is one piece, and
    the step of the pass stores its results itself."""

    what: str
    count: int
    step: Any
    regions: Mapping[str, Region] = field(default_factory=dict)

    def read(self, start: int, stop: int, beat: Callable[[int], object]) -> tuple[Tensor, ...]:
        """Process the pieces. Raises BadRow for a piece whose file has gone, or changed."""
        for piece in range(start, stop):
            beat(piece)
            try:
                self.step.do(piece, self.regions)
            except DataError as error:
                raise BadRow(piece, error) from error
        return ()


@dataclass(frozen=True, slots=True)
class PassRecipe:
    """A pass over the pieces from `begin` on. Sent with cloudpickle, without the regions."""

    rows: Pieces
    begin: int

    def ranges(self) -> RowRanges:
        return RowRanges(self.begin, self.rows.count, 1)

    def opened(self, regions: Mapping[str, Region]) -> "tuple[PassRecipe, Nowhere]":
        self.rows.step.ready()
        return replace(self, rows=replace(self.rows, regions=regions)), Nowhere()


class Nowhere:
    """Do-nothing destination: the step has stored the pieces already."""

    def put(self, start: int, fields: Sequence[Tensor]) -> None:
        """No-op: nothing is left to write."""


class Destination:
    """The data in shared memory, written by row. `places` (N,) int64, for a data set in two parts: the row's place in
    the first part, or ~place in the second."""

    def __init__(self, parts: Sequence[ResidentData], places: Tensor | None) -> None:
        self._views = [part.views() for part in parts]
        self._places = places

    def put(self, start: int, fields: Sequence[Tensor]) -> None:
        """Write the rows from `start` on, (n, …) per field."""
        stop = start + len(fields[0])
        if self._places is None:
            for view, field in zip(self._views[0], fields, strict=True):
                view[start:stop] = field
            return
        places = self._places[start:stop]
        for views, here, there in ((self._views[0], places >= 0, places), (self._views[1], places < 0, ~places)):
            for view, field in zip(views, fields, strict=True):
                view[there[here]] = field[here]


_Recipe = Recipe | PassRecipe
_To = Destination | Nowhere


def read(start: Start, channel: socket.socket, task: ReadTask, descriptors: list[int]) -> None:
    """Read leased ranges until the task is over. Raises ParentGone; errors of user code are reported."""
    adopt(start, task)
    # One thread, so that torch makes no pool: its threads would be created before training configures them.
    torch.set_num_threads(1)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    regions = {
        name: Region.attach(descriptor, nbytes)
        for (name, nbytes), descriptor in zip(task.regions, descriptors, strict=True)
    }
    words = regions["beats"].array("i8", (regions["beats"].nbytes // (8 * BEATS), BEATS))[task.reader]
    try:
        written: Recipe | PassRecipe = cloudpickle.loads(regions["recipe"].read_bytes(task.recipe_nbytes))
        recipe, to = written.opened(regions)
        torch_settings.apply(task.torch_settings)  # again: importing the data set's module may have changed them
    except (Exception, SystemExit) as error:  # e.g. a class that cannot be imported, a file that cannot be reopened
        Report("unreadable", detail=f"{type(error).__name__}: {error}", task=task.number).send(channel)
        return
    try:
        _RowReader(start, channel, task.number, recipe, to, words).run()
    finally:
        torch.default_generator.manual_seed(0)
    del recipe, to, written
    gc.collect()  # free reference cycles of user code: training needs the memory


class _RowReader:
    # The newest finished task, per process. A process that starts slowly may find several tasks in its socket, and read
    # the ends of all of them in the pipe at once.
    over: ClassVar[int] = 0

    def __init__(self, start: Start, channel: socket.socket, task: int, recipe: _Recipe, to: _To, words) -> None:  # type: ignore[no-untyped-def]
        self._start, self._channel, self._task = start, channel, task
        self._rows, self._ranges, self._to, self._words = recipe.rows, recipe.ranges(), to, words
        self._hand: deque[int] = deque()
        self._poll = select.poll()
        self._poll.register(start.lease_read, select.POLLIN)
        self._poll.register(start.lifeline, select.POLLIN)

    def run(self) -> None:
        self._beat(0)
        Report("reading", task=self._task).send(self._channel)
        while self._hand or _RowReader.over < self._task:
            self._pull(0 if self._hand else WAIT_MS)
            if not self._hand:
                continue
            number = self._hand.popleft()
            self._words[ReaderBeat.RANGE] = number
            self._read(number)
            self._words[ReaderBeat.RANGE] = 0

    def _read(self, number: int) -> None:
        first, stop = self._ranges.rows(number)
        try:
            fields = self._rows.read(first, stop, self._beat)
        except BadRow as bad:
            words, code = str(bad.error), bad.error.code
            Report("bad-row", detail=words, code=code, task=self._task, item=number).send(self._channel)
            return
        self._to.put(first, fields)
        write_record(self._start.ack_write, 0, number)

    def _beat(self, row: int) -> None:
        self._words[ReaderBeat.ROW] = row
        self._words[ReaderBeat.COUNT] += 1

    def _pull(self, wait_ms: int) -> None:
        for descriptor, events in self._poll.poll(wait_ms):
            if descriptor == self._start.lifeline or events & (select.POLLHUP | select.POLLERR):
                raise ParentGone
            for task, item in read_records(descriptor):
                if item == LOOK:
                    _RowReader.over = max(_RowReader.over, task)
                elif task == self._task:
                    self._hand.append(item)
        self._words[ReaderBeat.COUNT] += 1
