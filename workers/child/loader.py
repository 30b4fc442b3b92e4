"""A loader: fills what it is asked for, slots of a stream's ring or ranges of a data set that is read into memory. The
workers' counterpart is `trainer.py`; what is filled, and how, is the task's recipe: the
batches of a stream, the rows of a data set, or the answers for a file. It is made in the parent, sent by shared memory,
opened in the loader.

    parent                                       loader
    task: recipe, regions ── socket ──►          opens the recipe                       ──► "ready"
    (0, number) ── lease pipe ──►                beat, record by record; fill it        ──► ack pipe: FILLED or ENDED
                                                 a record that cannot be used           ──► "bad-batch"; the next number
    (0, 0) ── lease pipe ──►                     leaves

A row of the region `beats` (loader, BEATS) int64 has one writer, its loader."""

import contextlib
import mmap
import pickle
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from pickle import PickleBuffer
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hogwild import host
from hogwild.errors import HogwildError, RunError
from hogwild.feeds.drawn_order import ORDER_REGIONS, DrawnOrder
from hogwild.feeds.resident import FieldSpec, ResidentData
from hogwild.feeds.ring import Ring, RingSpec
from hogwild.feeds.row_reader import BadRow, RowSource
from hogwild.feeds.stream_reader import Filler, Stream, Unreadable
from hogwild.feeds.waiting import Abandoned, set_pause
from hogwild.scheduling.row_ranges import RowRanges
from hogwild.shared_memory.region import Region, aligned
from hogwild.training import torch_settings
from hogwild.user_code import raised_text
from hogwild.workers.child.trainer import WAIT_MS, Loop
from hogwild.workers.messages import LOOK, Leases, Leaving, LoadTask, ParentGone, Report, Start, write_record

if TYPE_CHECKING:
    from hogwild.inference.predict import Encode, Predictor


FILLED, ENDED = 0, 1
BEATS = 8  # words per loader: a cache line


class LoaderBeat(IntEnum):
    """Words of a loader's row."""

    COUNT = 0
    NUMBER = 1  # slot + 1 or range being filled; 0: none
    SLOWEST_NS = 2
    WAITING = 3  # 1: waits for a number
    RECORD = 4  # the position being read, to name it if it kills the loader
    PAUSED_NS = 5  # that the data set had nothing yet


def recipe_of(content: bytes, buffers: Sequence[PickleBuffer]) -> Region:
    """Return a recipe in shared memory, for `read_recipe`: its tensors and arrays are there once for all loaders. The
    arguments: of `by_value.dumps_apart`. Raises MemoryShortError."""
    parts = [np.frombuffer(one.raw(), np.uint8) for one in (PickleBuffer(content), *buffers)]
    head = np.array([len(parts), *map(len, parts)], np.int64)
    at = aligned(head.nbytes)
    region = Region.allocate("recipe", at + sum(aligned(len(part)) for part in parts))
    whole = region.array("u1", (region.nbytes,))
    whole[: head.nbytes] = head.view(np.uint8)
    for part in parts:
        whole[at : at + len(part)] = part
        at += aligned(len(part))
    return region


def read_recipe(region: Region) -> Any:
    """Return what `recipe_of` wrote. Tensors and arrays are views of a private map: what this process changes, only it
    sees, and only those pages are copied."""
    whole = mmap.mmap(region.descriptor, region.nbytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    count, view = int(np.frombuffer(whole, np.int64, 1)[0]), memoryview(whole)
    parts, at = [], aligned(8 * (1 + count))
    for length in np.frombuffer(whole, np.int64, count, 8).tolist():
        parts.append(view[at : at + length])
        at += aligned(length)
    return pickle.loads(parts[0], buffers=parts[1:])


class LoaderLoop(Loop):
    """Fills until told to leave. Every wait beats and watches the lifeline."""

    def __init__(
        self, start: Start, channel: socket.socket, leaving: Leaving, task: LoadTask, regions: dict[str, Region]
    ) -> None:
        """Open the recipe. Raises what the data set's constructor raises."""
        self._start, self._channel, self._leaving = start, channel, leaving
        beats = regions["beats"]
        self._words = beats.array("i8", (beats.nbytes // (8 * BEATS), BEATS))[task.loader]
        written = regions["recipe"]
        recipe: Recipe = read_recipe(written)
        torch_settings.apply(task.torch_settings)  # again: importing the data set's module may have changed them
        self._hand: deque[int] = deque()
        self._leases = Leases(start)
        self._waited_ns = 0  # by the data set, for its next record
        self._beat(0)
        set_pause(self._pause)
        self._filling = recipe.open(regions, self._beat, task.loader, lambda: read_recipe(written))

    def run(self) -> None:
        """Fill until told to leave, by a record or by SIGTERM."""
        while not self._leaving.asked:
            self._words[LoaderBeat.WAITING] = not self._hand
            self._pull(0 if self._hand else WAIT_MS)
            if self._hand:
                self._words[LoaderBeat.WAITING] = 0
                with contextlib.suppress(Abandoned):
                    self._fill(self._hand.popleft())

    def _pause(self, seconds: float) -> None:
        """Wait in the middle of a batch, for a data set that has nothing yet."""
        began_ns = time.monotonic_ns()
        try:
            self._pull(max(1, round(1000 * seconds)))
        except ParentGone:  # the next pull raises it outside of user code
            raise Abandoned from None
        paused_ns = time.monotonic_ns() - began_ns
        self._waited_ns += paused_ns
        self._words[LoaderBeat.PAUSED_NS] += paused_ns
        if self._leaving.asked:
            raise Abandoned

    def _fill(self, number: int) -> None:
        began_ns, self._waited_ns = time.monotonic_ns(), 0
        self._words[LoaderBeat.NUMBER] = number
        try:
            is_there = self._filling.fill(number)
        except Unreadable as bad:
            self._words[LoaderBeat.NUMBER] = 0
            Report(
                "bad-batch",
                detail=str(bad.error),
                error_type=bad.kind,
                place=bad.place,
                traceback=bad.trace,
                code=bad.error.code,
                item=number,
            ).send(self._channel)
            return
        if not self._filling.has_passed_over():  # else the time is no measure for the stall limit
            took_ns = time.monotonic_ns() - began_ns - self._waited_ns
            self._words[LoaderBeat.SLOWEST_NS] = max(int(self._words[LoaderBeat.SLOWEST_NS]), took_ns)
        self._words[LoaderBeat.NUMBER] = 0
        write_record(self._start.ack_write, FILLED if is_there else ENDED, number)

    def _beat(self, record: int) -> None:
        self._words[LoaderBeat.RECORD] = record
        self._words[LoaderBeat.COUNT] += 1

    def _pull(self, wait_ms: int) -> None:
        for _, item in self._leases.pull(wait_ms):
            if item == LOOK:
                self._leaving.ask()
            else:
                self._hand.append(item)
        self._words[LoaderBeat.COUNT] += 1


def load(
    start: Start, channel: socket.socket, leaving: Leaving, task: LoadTask, regions: dict[str, Region]
) -> LoaderLoop:
    """Return the loop of a loader, or of a reader, which has no log. If a reader's data set cannot be opened here, the
    parent reads it: then report that, and wait for the end."""
    try:
        return LoaderLoop(start, channel, leaving, task, regions)
    except (Exception, SystemExit) as error:  # e.g. a class that cannot be imported, a file that cannot be reopened
        if task.log:
            raise
        Report("unreadable", detail=raised_text(error)).send(channel)
        channel.recv(1)
        raise ParentGone from error


Beat = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Filling:
    """`fill(number)` fills a slot or range, and returns False where the data ends before it. Raises Unreadable.
    `has_passed_over()`: it read records of others on its way."""

    fill: Callable[[int], bool]
    has_passed_over: Callable[[], bool] = lambda: False


# ---- streams


@dataclass(frozen=True, slots=True)
class StreamRecipe:
    """Batches of a stream, into the region `ring`; number: slot + 1. `run_dir`: of the job."""

    stream: Stream
    ring: RingSpec
    run_dir: str

    def open(self, regions: Mapping[str, Region], beat: Beat, loader: int, again: Callable[[], Any]) -> Filling:
        places = [regions[name] for name in ORDER_REGIONS if name in regions]
        order = DrawnOrder(places) if places else None
        filler = Filler(
            self.stream, Ring(regions["ring"], self.ring), beat, loader, lambda: again().stream, order, self.run_dir
        )
        return Filling(lambda number: filler.fill(number - 1), lambda: filler.has_passed_over)


# ---- ranges


@dataclass(frozen=True, slots=True)
class RowsRecipe:
    """Rows of a data set, from `begin` on in ranges of `size`. `parts`: (region, fields) of the whole data set, or of
    the training and the validation part; then the region `places` holds the place of each row."""

    rows: RowSource
    begin: int
    size: int
    parts: tuple[tuple[str, tuple[FieldSpec, ...]], ...]
    has_places: bool

    def open(self, regions: Mapping[str, Region], beat: Beat, loader: int, again: Callable[[], Any]) -> Filling:
        places = regions["places"].tensor(torch.int64, (self.rows.count,)) if self.has_places else None
        to = Destination([ResidentData(regions[name], fields) for name, fields in self.parts], places)
        ranges = RowRanges(self.begin, self.rows.count, self.size)

        def fill(number: int) -> bool:
            start, stop = ranges.rows(number)
            try:
                to.put(start, self.rows.read(start, stop, beat))
            except BadRow as bad:
                raise Unreadable(bad.error, "BadRow", "", "") from bad
            return True

        return Filling(fill)


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


# ---- predictions

CUT_WORDS = 8  # of a row of the region `blocks`: the number of words of a block's place, and the words


@dataclass(frozen=True, slots=True)
class PartsRecipe:
    """Answers for blocks of inputs, by the `Predictor` in the region `predictor`, into files of `folder`; number: of
    the block, whose place is in row (number - 1) % slots of the region `blocks`."""

    encode: "Encode"
    folder: str
    slots: int

    def open(self, regions: Mapping[str, Region], beat: Beat, loader: int, again: Callable[[], Any]) -> Filling:
        # Mapped, not read: all predictors share the pages of its tensors.
        written = host.path_of(regions["predictor"].descriptor)
        predictor: Predictor = torch.load(written, weights_only=False, mmap=True)
        table, folder = regions["blocks"].array("i8", (self.slots, CUT_WORDS)), Path(self.folder)

        def fill(number: int) -> bool:
            words = table[(number - 1) % self.slots]
            cut = tuple(map(int, words[1 : 1 + words[0]]))
            try:
                rows, content = predictor.part(self.encode, predictor.inputs.read(cut), number == 1)
                (folder / str(number)).write_bytes(rows.to_bytes(8, "little") + content)
            except HogwildError as error:
                raise Unreadable(error, type(error).__name__, "", "") from error
            except OSError as error:
                why = f"{folder}: cannot be written: {error.strerror or error}"
                raise Unreadable(RunError(why, code="run/output-not-written"), "RunError", "", "") from error
            return True

        return Filling(fill)


Recipe = StreamRecipe | RowsRecipe | PartsRecipe
