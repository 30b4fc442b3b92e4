"""How a stream is cut into batches: one whose end nobody knows before it is read. Pure; no torch."""

from dataclasses import dataclass
from typing import ClassVar

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
