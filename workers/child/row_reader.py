"""Rows of a data set, read by a process that waits for its set-up. It leases ranges and writes them straight into the
memory that training reads.

    parent                                    reader
    task: recipe, regions ── socket ──►       makes the data set from the recipe    ──► "reading"
    (task, range) ── lease pipe ──►           beat, item by item; check each; write the range    ──► ack pipe
                                              a row that cannot be used             ──► "bad-row"; the next range
    (task, 0) ── lease pipe ──►               forgets the task, waits for its set-up again

Only its reader writes a row of `beats` (reader, 8) int64; a row of the data is written by the holder of its range."""

import gc
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from hogwild.feeds.resident import FieldSpec, ResidentData
from hogwild.feeds.row_reader import BadRow, RowSource
from hogwild.scheduling.row_ranges import RowRanges
from hogwild.shared_memory.region import Region
from hogwild.training import torch_settings
from hogwild.user_code import raised_text
from workers.child.adoption import adopt, limit_threads
from workers.child.worker_loop import WAIT_MS
from workers.messages import LOOK, Leases, ReadTask, Report, Start, write_record

BEATS = 8  # words per reader: a cache line
Read = Callable[[int, int, Callable[[int], object]], None]  # (start, stop, beat): reads and writes rows [start, stop)


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

    def opened(self, regions: Mapping[str, Region]) -> tuple[RowRanges, Read]:
        """Return the ranges, and a function that writes rows `[start, stop)` into the mapped destination."""
        places = regions["places"].tensor(torch.int64, (self.rows.count,)) if self.has_places else None
        to = Destination([ResidentData(regions[name], fields) for name, fields in self.parts], places)

        def read(start: int, stop: int, beat: Callable[[int], object]) -> None:
            to.put(start, self.rows.read(start, stop, beat))

        return RowRanges(self.begin, self.rows.count, self.size), read


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


def read(start: Start, channel: socket.socket, task: ReadTask, descriptors: list[int]) -> None:
    """Read leased ranges until the task is over. Raises ParentGone; errors of user code are reported."""
    regions = adopt(start, task, descriptors)
    limit_threads(1)  # so that torch makes no pool: its threads would be created before training configures them
    words = regions["beats"].array("i8", (regions["beats"].nbytes // (8 * BEATS), BEATS))[task.reader]
    try:
        recipe: Recipe = cloudpickle.loads(regions["recipe"].read_bytes(task.recipe_nbytes))
        ranges, read_range = recipe.opened(regions)
        torch_settings.apply(task.torch_settings)  # again: importing the data set's module may have changed them
    except (Exception, SystemExit) as error:  # e.g. a class that cannot be imported, a file that cannot be reopened
        Report("unreadable", detail=raised_text(error), task=task.number).send(channel)
        return
    try:
        _RowReader(start, channel, task.number, ranges, read_range, words).run()
    finally:
        torch.default_generator.manual_seed(0)
    del recipe, read_range
    gc.collect()  # free reference cycles of user code: training needs the memory


class _RowReader:
    # The newest finished task, per process. A process that starts slowly may find several tasks in its socket, and read
    # the ends of all of them in the pipe at once.
    over: ClassVar[int] = 0

    def __init__(
        self, start: Start, channel: socket.socket, task: int, ranges: RowRanges, read: Read, words: np.ndarray
    ) -> None:
        self._start, self._channel, self._task = start, channel, task
        self._ranges, self._read_range, self._words = ranges, read, words
        self._leases = Leases(start)
        self._hand: deque[int] = deque()

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
        try:
            self._read_range(*self._ranges.rows(number), self._beat)
        except BadRow as bad:
            words, code = str(bad.error), bad.error.code
            Report("bad-row", detail=words, code=code, task=self._task, item=number).send(self._channel)
            return
        write_record(self._start.ack_write, 0, number)

    def _beat(self, row: int) -> None:
        self._words[ReaderBeat.ROW] = row
        self._words[ReaderBeat.COUNT] += 1

    def _pull(self, wait_ms: int) -> None:
        for task, item in self._leases.pull(wait_ms):
            if item == LOOK:
                _RowReader.over = max(_RowReader.over, task)
            elif task == self._task:
                self._hand.append(item)
        self._words[ReaderBeat.COUNT] += 1
