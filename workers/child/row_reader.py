"""Rows of a data set, read by a process that waits for its set-up: ranges are leased to it, and written straight into
the memory that training reads them from.

    parent                                    reader
    task: recipe, regions ── socket ──►       makes the data set from the recipe    ──► "reading"
    (task, range) ── lease pipe ──►           beat, item by item; look at each; write the range  ──► ack pipe
                                              a row that cannot be used             ──► "bad-row"; the next range
    (task, 0) ── lease pipe ──►               forgets all of it, waits for its set-up again

A row of `beats` (reader, 8) int64 has one writer, its reader; a row of the data is written by whoever holds its
range."""

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

BEATS = 8  # words of a reader, a cache line


class ReaderBeat(IntEnum):
    COUNT = 0
    RANGE = 1  # which it reads, 0: none
    ROW = 2


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is read, and where it goes. `parts`: (region, fields) of the whole, or of what is trained on and what is
    held back; then `places` says where each row goes. Crosses a process by cloudpickle."""

    rows: RowSource
    begin: int
    size: int
    parts: tuple[tuple[str, tuple[FieldSpec, ...]], ...]
    has_places: bool

    def ranges(self) -> RowRanges:
        return RowRanges(self.begin, self.rows.count, self.size)

    def opened(self, regions: Mapping[str, Region]) -> "tuple[Recipe, Destination]":
        """With the memory it goes to."""
        places = regions["places"].tensor(torch.int64, (self.rows.count,)) if self.has_places else None
        return self, Destination([ResidentData(regions[name], fields) for name, fields in self.parts], places)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of a text (`hogwild.data.text_parsing.passes.Pass`), read as if they were rows: a range is one piece, and
    the step of the pass puts what it finds where it belongs."""

    what: str
    count: int
    step: Any
    regions: Mapping[str, Region] = field(default_factory=dict)

    def read(self, start: int, stop: int, beat: Callable[[int], object]) -> tuple[Tensor, ...]:
        """Raises BadRow for a piece whose file has gone, or changed."""
        for piece in range(start, stop):
            beat(piece)
            try:
                self.step.do(piece, self.regions)
            except DataError as error:
                raise BadRow(piece, error) from error
        return ()


@dataclass(frozen=True, slots=True)
class PassRecipe:
    """A pass over the pieces from `begin` on. Crosses a process by cloudpickle, without the regions."""

    rows: Pieces
    begin: int

    def ranges(self) -> RowRanges:
        return RowRanges(self.begin, self.rows.count, 1)

    def opened(self, regions: Mapping[str, Region]) -> "tuple[PassRecipe, Nowhere]":
        self.rows.step.ready()
        return replace(self, rows=replace(self.rows, regions=regions)), Nowhere()


class Nowhere:
    """The pieces are where they belong."""

    def put(self, start: int, fields: Sequence[Tensor]) -> None:
        """Nothing is left to do."""


class Destination:
    """The data in shared memory, written by row. `places` (N,) int64, of a data set in two parts: the row's place in
    the first, or, as ~place, in the second."""

    def __init__(self, parts: Sequence[ResidentData], places: Tensor | None) -> None:
        self._views = [part.views() for part in parts]
        self._places = places

    def put(self, start: int, fields: Sequence[Tensor]) -> None:
        """The rows from `start` on, (n, …) per field."""
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
    """Reads what is leased until there is nothing more. Raises ParentGone; what user code raises is reported."""
    adopt(start, task)
    # One thread, so that torch makes no pool: its threads would be there before training says how they should be.
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
        torch_settings.apply(task.torch_settings)  # once more: importing the data set's module may have changed some
    except (Exception, SystemExit) as error:  # the class cannot be imported here, an open file cannot be opened again
        Report("unreadable", detail=f"{type(error).__name__}: {error}", task=task.number).send(channel)
        return
    try:
        _RowReader(start, channel, task.number, recipe, to, words).run()
    finally:
        torch.default_generator.manual_seed(0)
    del recipe, to, written
    gc.collect()  # what user code has kept in circles is memory that training needs


class _RowReader:
    # Of this process: the newest task that is over. One that starts slowly may find several in its socket, and read the
    # ends of all of them in the pipe at once.
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
