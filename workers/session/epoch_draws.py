"""The epochs that a sampler draws, in the parent: those that may be leased now, drawn one after the other by a thread,
and put where workers and loaders read them.

    advance, each turn ──► the earliest unsettled epoch, and the next ──► [thread: draw, write] ──► bounds(epoch)

A checkpoint has a digest of each drawn epoch that is not settled. A resume or a rollback draws it again, and compares:
its ledger counts places in the epoch that was drawn then."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hogwild.errors import DataError, HogwildError
from hogwild.feeds.drawn_order import ORDER_REGIONS, PLACES, DrawnEpoch, write_epoch
from hogwild.host.background_thread import Background
from hogwild.job.sampling import Sampling
from hogwild.scheduling.batch_plan import Bounds
from hogwild.shared_memory.region import Region

Written = tuple[Bounds, str]  # of an epoch that is in its place: bounds of its batches, digest


@dataclass(slots=True)
class EpochDraws:
    """The drawn epochs of one job. Owned by the supervisor's one thread; `regions` are the places, by name."""

    sampling: Sampling
    regions: Mapping[str, Region]
    in_thread: bool  # False: the only process draws between two batches, as both use the random generators
    thread: Background = field(default_factory=lambda: Background("sampler"))
    _bounds: dict[int, Bounds] = field(default_factory=dict)  # by epoch
    _digests: dict[int, str] = field(default_factory=dict)
    _saved: dict[int, str] = field(default_factory=dict)  # digests of the checkpoint that the job went on from
    _error: tuple[int, HogwildError] | None = None  # the epoch that could not be drawn

    @classmethod
    def of(cls, sampling: Sampling | None, regions: Mapping[str, Region], *, in_thread: bool) -> "EpochDraws | None":
        """Return them with the first epoch, which is drawn already; None without a sampler. Raises MemoryShortError."""
        if sampling is None:
            return None
        made = cls(sampling, {name: regions[name] for name in ORDER_REGIONS}, in_thread)
        made._note(0, _written([*made.regions.values()], 0, sampling.first))
        return made

    def bounds(self, epoch: int) -> Bounds | None:
        """Return the bounds of an epoch's batches; None if it is not drawn (any more)."""
        return self._bounds.get(epoch)

    def batches(self, epoch: int) -> int:
        """Return the number of batches of an epoch; one that is not drawn counts as the first."""
        return len(self._bounds[epoch]) - 1 if epoch in self._bounds else self.sampling.plan.batches

    def advance(self, first: int, end: int) -> HogwildError | None:
        """Draw what may be leased of the epochs `[first, end)`, of which `first` is not settled; return the error of a
        draw, once nothing before that epoch is left to do."""
        self.thread.finish()
        wanted = range(first, min(first + PLACES, end))
        for gone in [epoch for epoch in self._bounds if epoch not in wanted]:
            del self._bounds[gone], self._digests[gone]
        missing = [epoch for epoch in wanted if epoch not in self._bounds]
        while missing and self._error is None and not self.thread.is_busy:
            epoch = missing.pop(0)
            work = partial(_draw, self.sampling, [*self.regions.values()], epoch)
            if self.in_thread:
                self.thread.submit(work, partial(self._note, epoch))
            else:
                self._note(epoch, work())
        return self._error[1] if self._error is not None and self._error[0] <= first else None

    def draw_all(self, first: int, end: int) -> None:
        """Draw the same, and wait for it. Raises DataError, MemoryShortError."""
        self.advance(first, end)
        while self.thread.wait():
            self.advance(first, end)
        if self._error is not None:
            raise self._error[1]

    @property
    def waits(self) -> str:
        """The epoch that idle workers may wait for, in words; "" if none is being drawn."""
        return f"{self.sampling.what}: {self.sampling.name} is drawing an epoch" if self.thread.is_busy else ""

    def state(self) -> list[list[Any]]:
        """Return the epochs and their digests, for a checkpoint."""
        return [[epoch, digest] for epoch, digest in sorted(self._digests.items())]

    def restore(self, saved: Iterable[Iterable[Any]]) -> None:
        """Forget all epochs: they are drawn again, and compared with those `saved`."""
        self._saved = {int(epoch): str(digest) for epoch, digest in saved}
        self._bounds.clear()
        self._digests.clear()
        self._error = None

    def _note(self, epoch: int, found: Written | HogwildError) -> None:
        if isinstance(found, HogwildError):
            self._error = epoch, found
            return
        bounds, digest = found
        if self._saved.get(epoch, digest) == digest:
            self._bounds[epoch], self._digests[epoch] = bounds, digest
            return
        self._error = (
            epoch,
            DataError(
                f"{self.sampling.what}: {self.sampling.name} draws other entries for epoch {epoch} than before the "
                "checkpoint, whose ledger counts those. It must draw the same for the same seeds of torch, Python and "
                "numpy: give it the same arguments, and no random numbers from elsewhere",
                code="data/sampler-changed",
            ),
        )


def _draw(sampling: Sampling, regions: list[Region], epoch: int) -> Written | HogwildError:
    try:
        return _written(regions, epoch, sampling.draw(epoch))
    except HogwildError as error:
        return error


def _written(regions: list[Region], epoch: int, drawn: DrawnEpoch) -> Written:
    write_epoch(regions, epoch, drawn)
    return drawn.bounds.tolist(), drawn.digest
