"""Recipes: the batches of a stream, the rows of a data set, or the answers for a file, that a loader fills, and from
where. Made in the parent, sent with cloudpickle, opened in the loader."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hogwild import host
from hogwild.errors import HogwildError, RunError
from hogwild.feeds.resident import FieldSpec, ResidentData
from hogwild.feeds.ring import Ring, RingSpec
from hogwild.feeds.row_reader import BadRow, RowSource
from hogwild.feeds.stream_reader import Filler, Stream, Unreadable
from hogwild.scheduling.row_ranges import RowRanges
from hogwild.shared_memory.region import Region

if TYPE_CHECKING:  # few jobs predict
    from hogwild.inference.answer_file import Encode
    from hogwild.inference.predict import Predictor

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
    """Batches of a stream, into the region `ring`; number: slot + 1."""

    stream: Stream
    ring: RingSpec

    def open(self, regions: Mapping[str, Region], beat: Beat, loader: int, again: Callable[[], Any]) -> Filling:
        filler = Filler(self.stream, Ring(regions["ring"], self.ring), beat, loader, lambda: again().stream)
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
                rows, content = predictor.part(self.encode, cut, number == 1)
                (folder / str(number)).write_bytes(rows.to_bytes(8, "little") + content)
            except HogwildError as error:
                raise Unreadable(error, type(error).__name__, "", "") from error
            except OSError as error:
                why = f"{folder}: cannot be written: {error.strerror or error}"
                raise Unreadable(RunError(why, code="run/output-not-written"), "RunError", "", "") from error
            return True

        return Filling(fill)


Recipe = StreamRecipe | RowsRecipe | PartsRecipe
