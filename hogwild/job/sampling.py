"""Epochs as a sampler draws them (`data.sampler`): any iterable of sample numbers, or of lists of them, which are whole
batches.

    seeds by (job, epoch) ──► iter(sampler) ──► entries: numbers of samples, each as often as it was drawn ──► batches

An epoch is drawn in the parent alone, and is the same whenever it is drawn: torch's, Python's and numpy's generators
and every `torch.Generator` in the sampler are seeded, and `set_epoch(epoch)` is called where there is one. A sampler of
one's own may change from epoch to epoch without that; so to go back, a fresh copy of it draws all epochs up to the one
that is wanted."""

import copy
import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import index
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from hogwild.config.load import Job
from hogwild.config.schema import Data
from hogwild.errors import DataError
from hogwild.feeds.drawn_order import DrawnEpoch
from hogwild.feeds.stream_reader import own_random_state, seed_all
from hogwild.formatting import counted
from hogwild.scheduling.batch_plan import BatchPlan, SampledPlan, mix
from hogwild.user_code import ComponentSpec, build, raised_text, target_of

CODE = "data/sampler"
SAMPLER_SEED = -8  # seeds for drawing an epoch
AT_ONCE = 1 << 16  # entries, or batches, taken from a sampler at once
# Entries of an epoch, and how many for each sample, at which a sampler without len() is taken for one without an end.
ENDLESS, ENDLESS_TIMES = 10_000_000, 20
FILLED_IN = ("data_source", "dataset")  # parameters of a sampler's class that get the training data


def build_sampler(spec: ComponentSpec, dataset: Any) -> Any:
    """Return the sampler that a class or function makes, which may be told the training data. Raises what `build`
    raises."""
    try:
        names = inspect.signature(target_of(spec)).parameters
    except ValueError:  # written in C
        names = {}  # type: ignore[assignment]
    given = {name: dataset for name in FILLED_IN if name in names and name not in spec.init_args}
    return build(spec, **given)


def generators_of(sampler: Any) -> list[torch.Generator]:
    """Return the generators that a sampler, and those inside it, draw from."""
    found = [one for part in _parts(sampler) for one in vars(part).values() if isinstance(one, torch.Generator)]
    return list({id(one): one for one in found}.values())


def _parts(sampler: Any) -> list[Any]:
    """Return the sampler and those in its attributes, of any class, outermost first."""
    found = [sampler] if hasattr(sampler, "__dict__") else []
    for part in found:
        inner = [one for name, one in vars(part).items() if isinstance(one, Sampler) or name.endswith("sampler")]
        found += [one for one in inner if hasattr(one, "__dict__") and all(one is not other for other in found)]
    return found


@dataclass(slots=True)
class Sampling:
    """The draws of one job: `draw(epoch)` is the same whenever it is called. `samples`: of the data set."""

    sampler: Any
    samples: int
    seed: int
    batch_size: int
    drop_last: bool = False
    merge_single: bool = False
    what: str = "data.sampler"
    makes_batches: bool | None = None  # None: not known before the first epoch is drawn
    first: DrawnEpoch = field(init=False)
    _begin: tuple[Any, Any] | None = field(init=False, default=None)  # the caller's sampler, and the data set
    _next: int = field(init=False, default=0)  # the epoch that comes next

    @classmethod
    def of(cls, job: Job, sampler: Any, dataset: Any, *, has_norm: bool) -> "Sampling":
        """Draw the first epoch. Raises DataError."""
        made = cls(sampler, len(dataset), job.seed, job.data.batch_size, job.data.drop_last, has_norm)
        made.begin(dataset)
        names = [name for name in ("batch_size", "drop_last") if made.makes_batches]
        if wrong := [name for name in names if getattr(job.data, name) != Data.model_fields[name].default]:
            raise DataError(
                f"{made.what}: {made.name} makes the batches; leave out {' and '.join(f'data.{one}' for one in wrong)}",
                code=CODE,
            )
        return made

    def begin(self, dataset: Any) -> None:
        """Draw the first epoch, with a copy of the caller's sampler, which shares the data set."""
        if not _is_same_in_any_order(self.sampler):
            self._begin = self.sampler, dataset
        self.sampler = _copied(self.sampler, dataset)
        self.first = self.draw(0)

    @property
    def name(self) -> str:
        return type(self.sampler).__name__

    @property
    def plan(self) -> SampledPlan:
        size = None if self.makes_batches else self.batch_size
        return self.first.plan(size, drop_last=self.drop_last, merge_single=self.merge_single)

    @property
    def note(self) -> str:
        """A sentence about the first epoch, for the user."""
        batches = counted(len(self.first.bounds) - 1, "batch")
        return (
            f"{self.what}: {self.name} draws {len(self.first.rows):,} entries of {self.samples:,} samples in {batches} "
            f"{'of its own ' if self.makes_batches else ''}for the first epoch"
        )

    def draw(self, epoch: int) -> DrawnEpoch:
        """Return what the sampler draws for an epoch. Raises DataError."""
        if self._begin is not None:
            if epoch < self._next:
                self.sampler, self._next = _copied(*self._begin), 0
            for earlier in range(self._next, epoch):
                self._drawn(earlier)
            self._next = epoch + 1
        return self._drawn(epoch)

    def _drawn(self, epoch: int) -> DrawnEpoch:
        with own_random_state():
            seed_all(mix(self.seed, epoch, SAMPLER_SEED))
            for number, generator in enumerate(generators_of(self.sampler)):
                generator.manual_seed(mix(self.seed, epoch, SAMPLER_SEED, number))
            try:
                for part in _parts(self.sampler):
                    if callable(set_epoch := getattr(part, "set_epoch", None)):
                        set_epoch(epoch)
                return self._entries(iter(self.sampler), epoch)
            except DataError:
                raise
            except (Exception, SystemExit) as error:
                words = f"{self.what}: {self.name} raised when it drew epoch {epoch}: {raised_text(error)}"
                raise DataError(words, code=CODE) from error

    def _entries(self, drawn: Iterator[Any], epoch: int) -> DrawnEpoch:
        parts, sizes, count = list[np.ndarray](), list[int](), 0
        most = math.inf if hasattr(self.sampler, "__len__") else max(ENDLESS, ENDLESS_TIMES * self.samples)
        while chunk := [*islice(drawn, AT_ONCE)]:
            if self.makes_batches is None:
                self.makes_batches = _is_batch(chunk[0])
            if self.makes_batches:
                batches = [self._batch(one, number, epoch) for number, one in enumerate(chunk, len(sizes))]
                sizes += map(len, batches)
                chunk = [*chain.from_iterable(batches)]
            parts.append(self._numbers(chunk, count, epoch))
            count += len(chunk)
            if count > most:
                words = (
                    f"has drawn {count:,} entries of {self.samples:,} samples, and goes on; an epoch must end: give "
                )
                raise self._wrong(epoch, f"{words}the sampler a __len__, or have it stop")
        if not count:
            again = ", but some for the first one: it can perhaps be read only once" if epoch else ""
            raise self._wrong(epoch, f"drew no entry{again}")
        return self._cut(np.concatenate(parts), sizes, epoch)

    def _cut(self, rows: np.ndarray, sizes: list[int], epoch: int) -> DrawnEpoch:
        """Divide the entries of an epoch into batches."""
        if self.makes_batches:
            return DrawnEpoch(rows, np.cumsum([0, *sizes]))
        plan = BatchPlan(len(rows), self.batch_size, self.drop_last, self.merge_single)
        if not plan.batches:
            raise self._wrong(
                epoch,
                f"drew {len(rows):,} entries, fewer than data.batch_size {self.batch_size}, and data.drop_last is "
                "true: there is no full batch to train on",
            )
        bounds = np.arange(plan.batches + 1) * self.batch_size
        bounds[-1] = plan.positions(plan.batches - 1)[1]
        return DrawnEpoch(rows[: bounds[-1]], bounds)

    def _batch(self, batch: Any, number: int, epoch: int) -> list[Any]:
        if not _is_batch(batch):
            raise self._wrong(epoch, f"drew a {type(batch).__name__} as batch {number}, but batch 0 is a list")
        found = batch.tolist() if hasattr(batch, "tolist") else [*batch]
        if not found:
            raise self._wrong(epoch, f"drew batch {number} without an entry")
        return found

    def _numbers(self, chunk: list[Any], before: int, epoch: int) -> np.ndarray:
        """Return the entries, of which `before` came earlier, as sample numbers (n,) int64."""
        for number, entry in enumerate(chunk) if set(map(type, chunk)) != {int} else ():
            try:
                if "bool" in str(getattr(entry, "dtype", type(entry))):
                    raise TypeError  # a mask
                chunk[number] = index(entry)
            except TypeError:
                words = f"drew {entry!r:.60}, a {type(entry).__name__}, as entry {before + number}"
                raise self._wrong(epoch, f"{words}; entries are numbers of samples") from None
        try:
            found = np.array(chunk, np.int64)
        except OverflowError:
            found = np.array([min(max(number, -1), self.samples) for number in chunk])
        outside = np.flatnonzero((found < 0) | (found >= self.samples))
        if len(outside):
            first = int(outside[0])
            raise self._wrong(
                epoch,
                f"drew {chunk[first]} as entry {before + first}; entries are numbers of samples, from 0 to "
                f"{self.samples - 1:,}",
            )
        return found

    def _wrong(self, epoch: int, words: str) -> DataError:
        return DataError(f"{self.what}: epoch {epoch}: {self.name} {words}", code=CODE)


def _is_batch(entry: Any) -> bool:
    return isinstance(entry, list | tuple | range) or getattr(entry, "ndim", 0) == 1


def _is_same_in_any_order(sampler: Any) -> bool:
    """Return whether an epoch follows from the seeds and its number alone: for torch's own samplers, those that are
    told their epoch, and plain sequences."""
    if isinstance(sampler, list | tuple | range | torch.Tensor | np.ndarray) or hasattr(sampler, "set_epoch"):
        return True
    return bool(parts := _parts(sampler)) and all(
        type(part).__module__.startswith("torch.utils.data.") for part in parts
    )


def _copied(sampler: Any, dataset: Any) -> Any:
    """Return a copy that shares the data set with the original; the original if it cannot be copied."""
    try:
        return copy.deepcopy(sampler, {id(dataset): dataset})
    except (Exception, SystemExit):
        return sampler
