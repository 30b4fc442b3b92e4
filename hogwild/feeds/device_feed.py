"""Batches on a GPU in reused memory: a slot is pinned host memory and its twin on the device.

    copies     | batch 1 -> slot 0 |  batch 2 -> slot 1 |  batch 3 -> slot 0  |
    compute                        |  batch 1           |  batch 2            |  batch 3
                                   ^ `copied` of slot 0: the batch may be read
                                             `used` of slot 0 ^: batch 3 may be copied in

    host     gather 1 | launch 1, gather 2 | launch 2, gather 3 | …        the next is gathered while the GPU computes

One copy per batch, on a separate stream, ordered by two events per slot: compute waits for `copied`, and the next copy
into the twin waits for `used`. This process waits for `copied` before it lets the host memory be written again.

`DeviceFeed` takes batches from host feeds. Tensors in one piece of pinned memory (a slot of the feed, a slot of a ring)
are copied from there; others are first copied into the slot's own pinned memory."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from hogwild.devices.accelerator import Accelerator, Pins, typed_view
from hogwild.feeds.batch import Batch, Feed
from hogwild.shared_memory.region import aligned, own_strides

SLOTS = 2  # the GPU computes on one while the other is filled
KEPT_VIEWS = 16  # cached sets of views per slot, if shapes vary
GROWTH = 1.5  # factor by which a slot that is too small grows, if batches differ in size

Place = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]
"""(dtype, shape, strides in elements, bytes into the slot) of one tensor."""


@dataclass(slots=True)
class DeviceSlot:
    """`holds`: (epoch, batch) in the slot, or being copied. `views`: cached tensors of the twin, by their places."""

    copied: Any
    used: Any
    twin: Tensor  # (bytes,) uint8 on the device
    staging: Tensor  # (bytes,) uint8, pinned
    holds: tuple[int, int] | None = None
    batch: Batch | None = None  # its tensors are views of the twin
    views: dict[tuple[Place, ...], tuple[Tensor, ...]] = field(default_factory=dict)


class DeviceSlots:
    """Copies host tensors to device tensors, through a fixed set of slots."""

    def __init__(self, accelerator: Accelerator, pins: Pins) -> None:
        self._accelerator, self._pins = accelerator, pins
        self._copies = accelerator.stream()
        nothing = torch.empty(0, dtype=torch.uint8)
        self.slots = [DeviceSlot(accelerator.event(), accelerator.event(), nothing, nothing) for _ in range(SLOTS)]

    def send(self, slot: DeviceSlot, fields: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Start the copy of `fields` and return their device tensors, which may be read only after `wait_for`. The host
        tensors must not change until `sent`."""
        source, places = self._one_piece(fields) or self._staged(slot, fields)
        if slot.twin.numel() < source.numel():  # once per slot if all batches have the same size
            self.sent(slot)
            self._accelerator.synchronize(slot.used)
            slot.views.clear()
            slot.twin = self._accelerator.empty(_with_room(source.numel(), slot.twin))
        self._accelerator.wait(slot.used, self._copies)
        self._accelerator.upload(slot.twin[: source.numel()], source, self._copies)
        self._accelerator.record(slot.copied, self._copies)
        views = slot.views.get(places)
        if views is None:
            if len(slot.views) >= KEPT_VIEWS:
                slot.views.clear()
            views = slot.views[places] = tuple(
                typed_view(slot.twin, dtype, shape, offset, strides) for dtype, shape, strides, offset in places
            )
        return views

    def sent(self, slot: DeviceSlot) -> None:
        """Wait in this process until the copy to the slot is complete: the host memory may be reused."""
        self._accelerator.synchronize(slot.copied)

    def wait_for(self, slot: DeviceSlot) -> None:
        """Let kernels launched from now on read the slot (they wait for its copy)."""
        self._accelerator.wait(slot.copied, None)

    def leave(self, slot: DeviceSlot) -> None:
        """Mark that all kernels that read the slot have been launched."""
        self._accelerator.record(slot.used, None)

    def _one_piece(self, fields: Sequence[Tensor]) -> tuple[Tensor, tuple[Place, ...]] | None:
        """Return the bytes that span `fields` if they are in one piece of pinned memory, else None."""
        storage = fields[0].untyped_storage()
        first = min(tensor.data_ptr() for tensor in fields)
        last = max(tensor.data_ptr() + tensor.numel() * tensor.element_size() for tensor in fields)
        if not self._pins.covers(first, last - first) or not all(
            tensor.untyped_storage().data_ptr() == storage.data_ptr()
            and own_strides(tensor) == tensor.stride()
            and (tensor.data_ptr() - first) % tensor.element_size() == 0
            for tensor in fields
        ):
            return None
        source = torch.empty(0, dtype=torch.uint8).set_(storage, first - storage.data_ptr(), (last - first,), (1,))
        return source, tuple(_place(tensor, tensor.data_ptr() - first) for tensor in fields)

    def _staged(self, slot: DeviceSlot, fields: Sequence[Tensor]) -> tuple[Tensor, tuple[Place, ...]]:
        """Copy `fields` into the slot's own host memory and return it as `_one_piece` does."""
        places, end = [], 0
        for tensor in fields:
            places.append(_place(tensor, end))
            end = aligned(end + tensor.numel() * tensor.element_size())
        self.sent(slot)
        if slot.staging.numel() < end:
            room = _with_room(end, slot.staging)
            if slot.staging.numel():
                self._pins.give_up(slot.staging)
            slot.staging = self._pins.empty(room)
        for tensor, (dtype, shape, strides, offset) in zip(fields, places, strict=True):
            typed_view(slot.staging, dtype, shape, offset, strides).copy_(tensor)
        return slot.staging[:end], tuple(places)


def _with_room(nbytes: int, before: Tensor) -> int:
    """Return the new size of `before`, which is too small: at first exactly `nbytes`, then with room to grow."""
    return aligned(int(GROWTH * nbytes)) if before.numel() else nbytes


def _place(tensor: Tensor, offset: int) -> Place:
    return tensor.dtype, tuple(tensor.shape), own_strides(tensor), offset


class DeviceFeed:
    """A feed whose batches are on the device. `feeds` (one, or one per slot) give the same batches; the tensors of each
    are valid until its next `gather`."""

    def __init__(self, feeds: Sequence[Feed], accelerator: Accelerator, pins: Pins, *, draws: bool = False) -> None:
        """`draws`: gathering draws random numbers from torch's generator, as a transform may."""
        self._feeds = feeds
        self._slots = DeviceSlots(accelerator, pins)
        self._draws = draws
        self._next = 0
        self._held: DeviceSlot | None = None  # the slot that the trainer computes on
        self._last: list[DeviceSlot | None] = [None] * len(feeds)  # the slot that each feed was copied to last

    def gather(self, epoch: int, batch: int) -> Batch:
        """Return the batch on the device; later kernels wait for its copy. Valid until the next `gather`."""
        if self._held is not None:
            self._slots.leave(self._held)
        wanted = (epoch, batch)
        slot = next((slot for slot in self._slots.slots if slot.holds == wanted and slot is not self._held), None)
        if slot is None:
            slot = self._fill(epoch, batch)
        self._slots.wait_for(slot)
        self._held, slot.holds = slot, None
        assert slot.batch is not None
        return slot.batch

    def prefetch(self, epoch: int, batch: int) -> None:
        """Gather the batch that will be asked for next and start its copy. Errors are ignored here: the batch's own
        `gather` raises them again."""
        if any(slot.holds == (epoch, batch) for slot in self._slots.slots):
            return
        # Prefetching must not change the numbers drawn later.
        with torch.random.fork_rng(devices=[], enabled=self._draws), contextlib.suppress(Exception):
            self._fill(epoch, batch)

    def _fill(self, epoch: int, batch: int) -> DeviceSlot:
        k = self._next
        if self._slots.slots[k] is self._held:
            k = (k + 1) % SLOTS
        slot = self._slots.slots[k]
        slot.holds = None
        source = k % len(self._feeds)
        if (last := self._last[source]) is not None:
            self._slots.sent(last)
        plain = self._feeds[source].gather(epoch, batch)
        fields = (*plain.inputs, plain.target)
        if all(isinstance(field, Tensor) for field in fields):
            *inputs, target = self._slots.send(slot, fields)
        else:  # nested, in streams: with the same nesting on the device
            leaves, tree = tree_flatten(fields)
            *inputs, target = tree_unflatten(self._slots.send(slot, leaves), tree)
        self._last[source], self._next = slot, (k + 1) % SLOTS
        slot.holds, slot.batch = (epoch, batch), Batch(tuple(inputs), target, plain.first_position, plain.size)
        return slot

    def addresses(self) -> tuple[int, ...]:
        """Return the addresses of the slots, host and device: constant from the first epoch on if all batches have the
        same size."""
        return tuple(memory.data_ptr() for slot in self._slots.slots for memory in (slot.twin, slot.staging))
