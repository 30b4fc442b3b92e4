"""Buffers (BatchNorm statistics and the like): a master, and a copy per worker, in one region.

    buffers   [ master | worker 0 | worker 1 | … ]      each block: a header, then every buffer, on separate cache lines

A worker writes only its own copy; the parent writes the master, all copies and headers, only while every worker is
parked. The master is the value from which all copies started after the last merge.

The merged value is the one that one process would have left after the same batches. A moving average with momentum m
that starts at s and sees the batches x_1 … x_k is

    copy = (1 - m)^k s + sum_i m (1 - m)^(k - i) x_i  =  s + taken(k) (own - s),      taken(k) = 1 - (1 - m)^k,

where `own`, a weighted mean of this worker's batches, is free of s. One process that sees the K = sum_j k_j batches of
all workers, in turn, forgets s by (1 - m)^K and not by the (1 - m)^k of one worker. Batches of worker j are k_j of K of
those that it sees, so the merged value is

    merged = s + taken(K) sum_j k_j / K (own_j - s)  =  s + sum_j w(k_j) / w(K) (copy_j - s),      w(k) = k / taken(k).

Only differences from s are scaled, by at most K / k_j, so rounding stays small. Further rules are the same formula with
another weight w: a cumulative average (BatchNorm with momentum null) of n batches before has taken(k) = k / (n + k), so
w(k) = n + k; a sum, such as a counter, is the limit m -> 0, w = 1: increments are added up; m = 1 is the mean of the
copies, weighted by batches, for buffers of which no rule is known. Merges in a row compose, because each starts from s.

Adding up the differences of moving averages, as for gradients, diverges from three workers on: after many batches each
worker has closed most of the gap, and N differences overshoot N times.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hogwild.shared_memory.region import ALIGNMENT, Region, aligned, own_strides

REGION = "buffers"
HEADER = ALIGNMENT  # bytes before a block, of which the first 8 are a word:
# of the master: the number of writes by the parent, odd during one; of a worker: its batches in all merges so far
READS, READ_AGAIN_S = 200, 0.001  # of a live reader that meets a merge


@dataclass(frozen=True, slots=True)
class MergeRule:
    """Rule by which batches move a buffer. `momentum` of a moving average; None: of a cumulative average; 0: a sum;
    1: unknown. `counter` names the buffer that counts the updates of this one; without one a worker's batches count.
    `is_variance`: no value is negative."""

    momentum: float | None
    counter: str = ""
    is_variance: bool = False

    def weight(self, updates: int, before: int) -> float:
        """Return w(updates), see above; `before`: what the counter was at the start."""
        momentum = self.momentum
        if momentum is None:
            return before + updates
        if momentum == 0:
            return 1.0
        if momentum < 1:
            return updates / -math.expm1(updates * math.log1p(-momentum))
        return updates / (1 - (1 - momentum) ** updates)


SUM, UNKNOWN = MergeRule(0.0), MergeRule(1.0)


@dataclass(frozen=True, slots=True)
class BufferSlot:
    """One buffer; `offset` is in bytes from the start of a block. `moves`: training may change it."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    rule: MergeRule
    moves: bool


@dataclass(frozen=True, slots=True)
class BufferLayout:
    """All buffers, in the order of `model.named_buffers()`; a block has `nbytes`, and there are workers + 1 blocks."""

    slots: tuple[BufferSlot, ...]
    nbytes: int

    def region_nbytes(self, workers: int) -> int:
        return (HEADER + self.nbytes) * (workers + 1) if self.nbytes else 0

    def view(self, region: Region, slot: BufferSlot, block: int) -> Tensor:
        return region.tensor(slot.dtype, slot.shape, self._start(block) + slot.offset, slot.strides)

    def block(self, region: Region, block: int) -> Tensor:
        """Return the bytes of one block, (nbytes,) uint8."""
        return region.tensor(torch.uint8, (self.nbytes,), self._start(block))

    def header(self, region: Region, block: int) -> Tensor:
        """Return the word before a block, () int64."""
        return region.tensor(torch.int64, (), self._start(block) - HEADER)

    def _start(self, block: int) -> int:
        return block * (HEADER + self.nbytes) + HEADER


MASTER = 0


def block_of(worker: int) -> int:
    return worker + 1


def plan_buffers(model: nn.Module, measured: Mapping[str, MergeRule] | None = None) -> BufferLayout:
    """Lay out every buffer once, persistent or not. `measured`: rules of those that a training forward has changed, by
    name (`hogwild/job/changed_state.py`); None if that was not tried."""
    rules = {**(measured or {}), **norm_rules(model)}
    moving = {*rules, *(rule.counter for rule in rules.values())}
    slots, end = [], 0
    for name, buffer in model.named_buffers():
        rule = rules.get(name, UNKNOWN) if buffer.is_floating_point() or buffer.is_complex() else SUM
        moves = measured is None or name in moving
        slots.append(BufferSlot(name, buffer.dtype, tuple(buffer.shape), own_strides(buffer), end, rule, moves))
        end += aligned(buffer.numel() * buffer.element_size())
    return BufferLayout(tuple(slots), end)


def norm_rules(model: nn.Module) -> dict[str, MergeRule]:
    """Return the rules of running means and variances, of torch's norms and of modules that are like them: scripted
    ones, too, which are of another class."""
    found: dict[str, MergeRule] = {}
    for path, module in model.named_modules():
        table, prefix = module._buffers, f"{path}." if path else ""
        if not hasattr(module, "momentum") or not all(key in table for key in ("running_mean", "running_var")):
            continue
        counter = f"{prefix}num_batches_tracked" if "num_batches_tracked" in table else ""
        momentum = module.momentum
        if not (bool(counter) if momentum is None else isinstance(momentum, int | float) and 0 < momentum < 2):
            continue  # torch does not move them
        for key in ("running_mean", "running_var"):
            found[prefix + key] = MergeRule(momentum, counter, key == "running_var")
    return found


def merge(layout: BufferLayout, region: Region, batches: Sequence[int]) -> None:
    """Merge the workers' copies into the master and restart every copy from it. Only in a pause, by the parent.

    `batches[k]` are the batches that worker k has applied since the last merge."""
    values = merged(layout, region, batches)
    with _writing(layout, region):
        for slot, value in values:
            layout.view(region, slot, MASTER).copy_(value)
        for worker, count in enumerate(batches):
            layout.header(region, block_of(worker)).add_(count)
            layout.block(region, block_of(worker)).copy_(layout.block(region, MASTER))


def restart(layout: BufferLayout, region: Region, workers: int) -> None:
    """Copy the master into every worker's copy."""
    with _writing(layout, region):
        for worker in range(workers):
            layout.block(region, block_of(worker)).copy_(layout.block(region, MASTER))


@contextmanager
def _writing(layout: BufferLayout, region: Region) -> Iterator[None]:
    """Keep the header of the master odd, for processes that read without a pause (`read_live`)."""
    layout.header(region, MASTER).add_(1)
    yield
    layout.header(region, MASTER).add_(1)


def read_live(layout: BufferLayout, region: Region, batches: Sequence[int], to: Tensor) -> None:
    """Write into `to` (nbytes,) uint8 what a merge would give now; outside a pause, by a process that only reads.

    `batches[k]`: at least those of worker k in this attempt: of an average without a counter it may have stored one
    more than it has committed, and a count that is too low would overshoot. Values that a merge by the parent has
    mixed are read again; not for ever, because the parent may have died in it."""
    for _ in range(READS):
        writes = int(layout.header(region, MASTER))
        since = [count - int(layout.header(region, block_of(worker))) for worker, count in enumerate(batches)]
        values = merged(layout, region, since)
        to.copy_(layout.block(region, MASTER))
        if writes % 2 == 0 and writes == int(layout.header(region, MASTER)):
            break
        time.sleep(READ_AGAIN_S)
    for slot, value in values:
        place = to[slot.offset : slot.offset + value.nbytes].view(slot.dtype)
        torch.as_strided(place, slot.shape, slot.strides).copy_(value)


def merged(layout: BufferLayout, region: Region, batches: Sequence[int]) -> list[tuple[BufferSlot, Tensor]]:
    """Return the merged value of every buffer that a worker has changed, as new tensors; nothing is written.

    Floating buffers: see above; integers: the sum of the increments; flags: the copy of the worker with most batches
    among those that changed it. A buffer that no worker changed keeps its bits; if only one worker trained, its copy is
    taken. With several workers, a copy that is not finite although the master is (an overflow, or a death in the middle
    of a batch with a NaN) is left out: one worker must not spoil the others. A single worker behaves like the plain
    loop, whenever it pauses."""
    trained = {worker: count for worker, count in enumerate(batches) if count > 0}
    found = []
    for slot in layout.slots:
        start = layout.view(region, slot, MASTER)
        copies = {worker: layout.view(region, slot, block_of(worker)) for worker in trained}
        if len(batches) > 1 and bool(torch.isfinite(start).all()):
            copies = {worker: copy for worker, copy in copies.items() if bool(torch.isfinite(copy).all())}
        changed = [worker for worker, copy in copies.items() if not _same_bits(copy, start)]
        if not changed:
            continue
        if len(copies) == 1:
            value = copies[changed[0]].clone()
        elif slot.dtype == torch.bool:
            value = copies[max(changed, key=lambda worker: trained[worker])].clone()
        elif not (start.is_floating_point() or start.is_complex()):
            value = sum((copies[worker] - start for worker in changed), start)
        else:
            before, updates = _updates(layout, region, slot, {worker: trained[worker] for worker in copies}, changed)
            value = _merged(slot.rule, start, {worker: copies[worker] for worker in updates}, updates, before)
        found.append((slot, value.to(slot.dtype)))
    return found


def _updates(
    layout: BufferLayout, region: Region, slot: BufferSlot, batches: Mapping[int, int], changed: Sequence[int]
) -> tuple[int, dict[int, int]]:
    """Return the counter of a buffer at the start, and each worker's updates of the buffer since. A layer may run
    several times for a batch, or not at all; torch's InstanceNorm has a counter, but never counts."""
    counter = next((other for other in layout.slots if other.name == slot.rule.counter), None)
    if counter is None:
        return 0, dict(batches)
    before = int(layout.view(region, counter, MASTER))
    counted = {worker: int(layout.view(region, counter, block_of(worker))) - before for worker in batches}
    if not any(count > 0 for count in counted.values()):
        return before, dict(batches)
    updates = {worker: count if count > 0 else batches[worker] for worker, count in counted.items()}
    return before, {worker: updates[worker] for worker in updates if counted[worker] > 0 or worker in changed}


def _merged(
    rule: MergeRule, start: Tensor, copies: Mapping[int, Tensor], updates: Mapping[int, int], before: int
) -> Tensor:
    wide = torch.complex128 if start.is_complex() else torch.float64
    start, total = start.to(wide), sum(updates.values())
    value, mean = start, torch.zeros_like(start)
    for worker, copy in copies.items():
        step, weight = copy.to(wide) - start, rule.weight(updates[worker], before)
        if rule.is_variance:  # rounding, of half precision above all, must not leave a negative `own`
            step = torch.maximum(step, -start * (updates[worker] / weight))
        value = value + step * (weight / rule.weight(total, before))
        mean = mean + copy.to(wide) * (updates[worker] / total)
    # A running minimum starts at infinity: there the difference is NaN, but the plain mean is defined.
    return torch.where(torch.isfinite(start), value, mean)


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Compare bits: NaN equals NaN, and 0.0 differs from -0.0."""
    if not one.numel():
        return True
    one, other = (torch.as_strided(each, (each.numel(),), (1,)).view(torch.uint8) for each in (one, other))
    return torch.equal(one, other)
