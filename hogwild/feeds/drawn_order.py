"""The entries of an epoch that a sampler has drawn, in shared memory: written by the parent, read by every process that
makes batches of them.

    parent    epoch e is drawn ──► place e % PLACES:  [ head | bounds | rows ]  ──► its batches are leased
    worker    batch b of e     ──► rows[bounds[b] : bounds[b + 1]]

    head      version (0: being written), epoch, batches, entries      the parent
    bounds    (batches + 1,) int64                                     the parent
    rows      (entries,) int64, numbers of samples                     the parent

A place is written again only when its epoch is settled: nobody reads it then. As epochs may differ in length, a place
grows, and a reader maps it anew when its version has changed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from hogwild.errors import DataError
from hogwild.feeds.sample_order import Indices
from hogwild.scheduling.batch_plan import SampledPlan
from hogwild.scheduling.work_queue import EPOCHS_AHEAD
from hogwild.shared_memory.region import ALIGNMENT, Region

PLACES = 1 + EPOCHS_AHEAD  # epochs that may be open at the same time
MARGIN = 1.5  # room over the largest batch of the first epoch, if the sampler makes batches of several sizes
ORDER_REGIONS = tuple(f"data-order-{place}" for place in range(PLACES))  # of the regions


class PlaceWord(IntEnum):
    """Words of a place's head."""

    VERSION = 0
    EPOCH = 1
    BATCHES = 2
    ENTRIES = 3


@dataclass(frozen=True, slots=True)
class DrawnEpoch:
    """One epoch: batch b holds the samples `rows[bounds[b] : bounds[b + 1]]`. `rows` (entries,) int64, a sample as
    often as it was drawn; `bounds` (batches + 1,) int64."""

    rows: np.ndarray
    bounds: np.ndarray

    @property
    def digest(self) -> str:
        """Short hash of both, to see whether the epoch is drawn again as it was."""
        return hashlib.sha256(self.rows.tobytes() + self.bounds.tobytes()).hexdigest()[:16]

    def plan(self, batch_size: int | None, *, drop_last: bool, merge_single: bool) -> SampledPlan:
        """Return the plan of a job whose first epoch this is. `batch_size`: None if the sampler makes the batches."""
        sizes = np.unique(np.diff(self.bounds))
        most = int(sizes[-1])
        room = most if len(sizes) == 1 else int(MARGIN * most)
        counts = int(self.bounds[-1]), len(self.bounds) - 1, tuple(sizes.tolist())
        if batch_size is None:
            return SampledPlan(*counts, room, most, merge_single=merge_single)
        return SampledPlan(*counts, batch_size + merge_single, batch_size, drop_last, merge_single)


def allocate_places() -> dict[str, Region]:
    """Allocate the places, without an epoch, by region name. Raises MemoryShortError."""
    return {name: Region.allocate(name, ALIGNMENT) for name in ORDER_REGIONS}


def write_epoch(regions: Sequence[Region], epoch: int, drawn: DrawnEpoch) -> None:
    """Put an epoch into its place. Raises MemoryShortError."""
    region = regions[epoch % PLACES]
    words, content = _head(region), np.concatenate([drawn.bounds, drawn.rows])
    region.grow(ALIGNMENT + content.nbytes)
    version, words[PlaceWord.VERSION] = int(words[PlaceWord.VERSION]), 0
    region.mapped(ALIGNMENT + content.nbytes, writable=True)[ALIGNMENT:] = content.view(np.uint8)
    words[PlaceWord.EPOCH], words[PlaceWord.BATCHES], words[PlaceWord.ENTRIES] = (
        epoch,
        len(drawn.bounds) - 1,
        len(drawn.rows),
    )
    words[PlaceWord.VERSION] = version + 1


def _head(region: Region) -> np.ndarray:
    return region.array(np.int64, (ALIGNMENT // 8,))


class DrawnOrder:
    """The order of drawn epochs (`sample_order.Order`); a position is a batch."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self._regions, self._heads = regions, [_head(region) for region in regions]
        self._seen = [(0, np.empty(0, np.int64), np.empty(0, np.int64))] * PLACES  # version, bounds, rows

    def indices(self, epoch: int, first: int, last: int) -> Indices:
        """Return the samples of the batches `[first, last)`. Raises DataError for an epoch that is settled."""
        place = epoch % PLACES
        version, bounds, rows = self._seen[place]
        head = self._heads[place]
        if head[PlaceWord.VERSION] != version or not version:
            version, count = int(head[PlaceWord.VERSION]), int(head[PlaceWord.BATCHES]) + 1
            words = self._regions[place].mapped(ALIGNMENT + 8 * (count + int(head[PlaceWord.ENTRIES]))).view(np.int64)
            bounds, rows = np.split(words[ALIGNMENT // 8 :], [count])
            self._seen[place] = version, bounds, rows
        if head[PlaceWord.EPOCH] != epoch or not version:
            raise DataError(f"data.sampler: the entries of epoch {epoch} are no longer there", code="data/sampler")
        return rows[bounds[first] : bounds[last]]
