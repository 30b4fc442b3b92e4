"""The positions and seeds of each batch (`sample_order.py` maps positions to samples). Pure functions of (seed, epoch,
position): every process computes the same answer without asking another one. No torch, no state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, Union

if TYPE_CHECKING:
    from hogwild.scheduling.grid_plan import GridPlan


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The division of one epoch of `samples` positions into batches.

    The last batch is dropped (`drop_last`) or shorter. With `merge_single` a last batch of one sample is merged into
    the batch before it, because the model cannot train on one sample (BatchNorm needs two values per channel).

    With `lanes` the epoch consists of that many sequences of batches. Each batch continues the one before it in its
    lane (`sample_order.LaneOrder`); `samples` is then a multiple of lanes x batch_size.
    """

    samples: int
    batch_size: int
    drop_last: bool = False
    merge_single: bool = False
    lanes: int | None = None
    grid: ClassVar[None] = None

    @property
    def merges(self) -> bool:
        """True if the last batch holds one extra sample."""
        leaves_one = 1 < self.batch_size < self.samples and self.samples % self.batch_size == 1
        return self.merge_single and not self.drop_last and leaves_one

    @property
    def batches(self) -> int:
        whole, rest = divmod(self.samples, self.batch_size)
        return whole if self.drop_last or self.merges or not rest else whole + 1

    @property
    def largest(self) -> int:
        """Number of samples in the largest batch: the size of a reused buffer."""
        return self.batch_size + 1 if self.merges else min(self.batch_size, self.samples)

    def positions(self, batch: int) -> tuple[int, int]:
        """Return the positions `[first, last)` of batch number `batch` of an epoch."""
        first = batch * self.batch_size
        last = first + self.batch_size
        # Fast path, called before every batch: only a batch that ends at samples - 1 or later can be the special last
        # one.
        if last >= self.samples - 1 and not self.drop_last and batch == self.batches - 1:
            return first, self.samples
        return first, last

    def samples_in(self, start: int, stop: int) -> int:
        """Return the number of samples in the batches `[start, stop)`."""
        return self.positions(stop - 1)[1] - self.positions(start)[0] if stop > start else 0


Bounds: TypeAlias = Sequence[int]  # of an epoch's batches: number b holds entries [bounds[b], bounds[b + 1])
OPEN = 1 << 40  # batches of an epoch whose end is not known yet: more than any stream has


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """An epoch of an iterable, read as `shards` sequences of batches. Batch number `shard + shards * place` is the one
    at `place` of its shard. `length`: samples of an epoch as the data set reports them; no code relies on it. With
    `drop_single` a last batch of one sample is left out (BatchNorm cannot train on it)."""

    batch_size: int
    shards: int
    length: int | None = None
    drop_last: bool = False
    drop_single: bool = False
    merge_single: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    grid: ClassVar[None] = None
    lanes: ClassVar[None] = None
    batches: ClassVar[int] = OPEN

    @property
    def samples(self) -> int:
        """Samples as reported by the data set; 0 if it reports none."""
        return self.length or 0

    @property
    def largest(self) -> int:
        return self.batch_size

    def positions(self, batch: int) -> tuple[int, int]:
        """Return the positions that seed this batch: no two batches share one."""
        return batch * self.batch_size, (batch + 1) * self.batch_size

    def samples_in(self, start: int, stop: int) -> int:
        """Return an upper bound; the slot knows the exact number."""
        return (stop - start) * self.batch_size


@dataclass(frozen=True, slots=True)
class SampledPlan:
    """An epoch as a sampler draws it (`data.sampler`): each has batches and samples of its own, which are known once it
    is drawn (`feeds/drawn_order.py`), and a position is a batch. `samples`, `batches` and `sizes`, the different sizes
    of batches, are those of the first epoch; `largest`: room for a batch of any epoch, as far as is known."""

    samples: int
    batches: int
    sizes: tuple[int, ...]
    largest: int
    batch_size: int
    drop_last: bool = False
    merge_single: bool = False  # but a sampler's own batches stay as they are
    merges: ClassVar[bool] = False
    grid: ClassVar[None] = None
    lanes: ClassVar[None] = None

    def positions(self, batch: int) -> tuple[int, int]:
        return batch, batch + 1

    def samples_in(self, start: int, stop: int) -> int:
        """Return an upper bound; the epoch, once drawn, has the exact number."""
        return (stop - start) * self.largest


EpochPlan: TypeAlias = Union[BatchPlan, StreamPlan, SampledPlan, "GridPlan"]


def how_cut(plan: EpochPlan) -> dict[str, Any]:
    """Return everything that decides which samples a batch holds. `batches` shows whether a single sample was merged.
    `grid`: number of row and column blocks, which a resume must take over, or None."""
    return {
        "samples": plan.samples,
        "batch_size": plan.batch_size,
        "drop_last": plan.drop_last,
        "batches": plan.batches,
        "grid": None if plan.grid is None else list(plan.grid),
        "lanes": plan.lanes,
    }


def check_cut(plan: EpochPlan, saved: Mapping[str, Any]) -> None:
    """Raise ValueError if `plan` differs from a saved `how_cut`; the message names both values."""
    before = {"grid": None, "lanes": None, **saved}  # missing in older checkpoints
    changed = [f"{name}: was {before[name]}, now {now}" for name, now in how_cut(plan).items() if now != before[name]]
    if changed:
        raise ValueError(f"an epoch of the training data was cut in another way: {'; '.join(changed)}")


def updates_planned(plan: EpochPlan, *, epochs: int, accumulate: int, max_updates: int | None) -> int:
    """Return the updates of the whole job if nothing is skipped: the length of its learning-rate schedule. 0 if neither
    the job nor a stream limits them."""
    batches = plan.batches
    if isinstance(plan, StreamPlan):
        if plan.length is None:
            return max_updates or 0
        batches = max(1, -(-plan.length // plan.batch_size))
    whole = epochs * -(-batches // accumulate)
    return whole if max_updates is None else min(whole, max_updates)


_MASK = (1 << 64) - 1


def mix(*values: int) -> int:
    """Return one well-spread 63-bit seed from several integers (splitmix64's finaliser, applied to each in turn;
    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)."""
    return _stirred(0, *values) >> 1


def _stirred(state: int, *values: int) -> int:
    for value in values:
        state = (state + 0x9E3779B97F4A7C15 + (value & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


_stirred_of_epoch = lru_cache(4)(_stirred)  # asked for before every update, which has an epoch in common with most


def permutation_seed(seed: int, epoch: int) -> int:
    """Return the seed of the generator that draws the permutation of one epoch."""
    return mix(seed, epoch, -1)


def item_seed(seed: int, index: int) -> int:
    """Return the seed of the default generator for reading one item of a data set: the same in every process."""
    return mix(seed, index, -3)


def transform_seed(seed: int, epoch: int, first_position: int) -> int:
    """Return the seed of the default generator for transforming a batch; differs from the seed of the layers' draws."""
    return mix(seed, epoch, first_position, -4)


def rollout_seed(seed: int, epoch: int, position: int) -> int:
    """Return the seed of the generator that a rollout draws from: a position that is played again draws the same."""
    return mix(seed, epoch, position, -5)


def batch_seed(seed: int, epoch: int, first_position: int) -> int:
    """Return the seed of the default generator for a batch, `mix` of these three: dropout does not depend on worker or
    incarnation."""
    return _stirred(_stirred_of_epoch(0, seed, epoch), first_position) >> 1
