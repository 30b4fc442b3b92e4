"""Which positions a batch holds, and seeds; which samples stand there says `sample_order.py`. Pure functions of (seed,
epoch, position), so every process computes the same answer by itself and nobody has to be asked. No torch, no state."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol


class EpochPlan(Protocol):
    """How one epoch is cut into batches: `BatchPlan`, or `grid.GridPlan` for data that lies in the cells of a grid."""

    @property
    def samples(self) -> int: ...

    @property
    def batch_size(self) -> int: ...

    @property
    def drop_last(self) -> bool: ...

    @property
    def merge_single(self) -> bool: ...

    @property
    def merges(self) -> bool: ...

    @property
    def grid(self) -> tuple[int, int] | None:
        """Blocks of rows and of columns; None: no grid."""
        ...

    @property
    def lanes(self) -> int | None:
        """Lanes of consecutive batches; None: no batch continues another."""
        ...

    @property
    def batches(self) -> int: ...

    @property
    def largest(self) -> int: ...

    def positions(self, batch: int) -> tuple[int, int]: ...

    def samples_in(self, start: int, stop: int) -> int: ...

    def planned_updates(self, *, epochs: int, accumulate: int, max_updates: int | None) -> int: ...


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How one epoch of `samples` positions is cut into batches.

    The last batch is dropped (`drop_last`) or shorter; a last batch of a single sample is merged into the one before it
    when `merge_single` says that the model cannot train on one (BatchNorm needs two values per channel).

    With `lanes` the epoch is that many rows of batches, each of which continues the one before it (`orders.LaneOrder`);
    `samples` are then those that fill them, a multiple of lanes x batch_size.
    """

    samples: int
    batch_size: int
    drop_last: bool = False
    merge_single: bool = False
    lanes: int | None = None
    grid: ClassVar[None] = None

    @property
    def merges(self) -> bool:
        """Whether the last batch really holds one sample too many."""
        return (
            self.merge_single
            and not self.drop_last
            and self.batch_size > 1
            and self.samples > self.batch_size
            and self.samples % self.batch_size == 1
        )

    @property
    def batches(self) -> int:
        whole, rest = divmod(self.samples, self.batch_size)
        return whole if self.drop_last or self.merges or not rest else whole + 1

    @property
    def largest(self) -> int:
        """Samples in the largest batch: what a reused buffer must hold."""
        return self.batch_size + 1 if self.merges else min(self.batch_size, self.samples)

    def positions(self, batch: int) -> tuple[int, int]:
        """The positions `[first, last)` of batch number `batch` of an epoch."""
        first = batch * self.batch_size
        last = first + self.batch_size
        # Asked before every batch; only where a batch ends one before the end, or later, need the rest be worked out.
        if last >= self.samples - 1 and not self.drop_last and batch == self.batches - 1:
            return first, self.samples
        return first, last

    def samples_in(self, start: int, stop: int) -> int:
        """Samples in the batches `[start, stop)`."""
        return self.positions(stop - 1)[1] - self.positions(start)[0] if stop > start else 0

    def planned_updates(self, *, epochs: int, accumulate: int, max_updates: int | None) -> int:
        """Updates of the whole job if nothing is skipped: the length of its learning-rate schedule."""
        whole = epochs * -(-self.batches // accumulate)
        return whole if max_updates is None else min(whole, max_updates)


def how_cut(plan: EpochPlan) -> dict[str, Any]:
    """What decides which samples a batch of an epoch holds; whether a single sample was merged shows in `batches`.
    `grid`: blocks of rows and of columns, which a resume must take over, or None."""
    return {
        "samples": plan.samples,
        "batch_size": plan.batch_size,
        "drop_last": plan.drop_last,
        "batches": plan.batches,
        "grid": None if plan.grid is None else list(plan.grid),
        "lanes": plan.lanes,
    }


OPEN = 1 << 40  # batches of an epoch whose end is not known yet: more than anybody reads


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """An epoch of an iterable, read as `shards` sequences of batches. Batch number `shard + shards * place` is the
    one at `place` of its shard. `length`: samples of an epoch, if the data set says so; a promise nobody relies on.
    With `drop_single` a last batch of one sample is left out (BatchNorm cannot train on it)."""

    batch_size: int
    shards: int
    length: int | None = None
    drop_last: bool = False
    drop_single: bool = False
    merge_single: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    grid: ClassVar[None] = None
    lanes: ClassVar[None] = None

    @property
    def samples(self) -> int:
        """As promised; 0 where nothing is."""
        return self.length or 0

    @property
    def batches(self) -> int:
        return OPEN

    @property
    def largest(self) -> int:
        return self.batch_size

    def positions(self, batch: int) -> tuple[int, int]:
        """Of its seeds: no two batches share one."""
        return batch * self.batch_size, (batch + 1) * self.batch_size

    def samples_in(self, start: int, stop: int) -> int:
        """At most; a slot knows how many it holds."""
        return (stop - start) * self.batch_size

    def planned_updates(self, *, epochs: int, accumulate: int, max_updates: int | None) -> int:
        """0 where neither the job nor the data set says how many."""
        if self.length is None:
            return max_updates or 0
        whole = epochs * -(-max(1, -(-self.length // self.batch_size)) // accumulate)
        return whole if max_updates is None else min(whole, max_updates)
