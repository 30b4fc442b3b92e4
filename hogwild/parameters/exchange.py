"""A worker's parameters while it trains: in the shared flats (direct), or in a private copy whose changes it regularly
adds to the flats (delta).

    direct   every update writes the flats
    delta    updates write `local`;   flush: flats += local - snapshot, then local = snapshot = flats

The race: `flats += …` is a read and a write of every word, without a lock. A write by another worker to a word in
between is lost, once per flush; earlier and later writes are kept. In direct the same holds for every update.

Only parameters that the optimizer trains are copied; frozen ones stay in the flats, which nobody writes there.
`Replica` is the same on a GPU."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.devices.accelerator import Accelerator, Pins, typed_view
from hogwild.errors import DeviceSharingError
from hogwild.parameters import buffers
from hogwild.parameters.flat_layout import FlatLayout, Span, region_name
from hogwild.parameters.optimizer_state import REGION, SpanState, StateBlock, StateLayout, StateSlot
from hogwild.parameters.structure_file import SharedLayout
from hogwild.shared_memory.region import Region

COPIES = 3  # of the trained parameters, in delta: local, snapshot, and their difference


def trained_sizes(layout: FlatLayout) -> dict[torch.dtype, int]:
    """Return the number of trained elements, from the start of each flat; sparse spans follow the dense ones."""
    sizes = {dtype: size for dtype, size in layout.gradient_sizes.items() if size}
    for span in layout.spans:
        if span.sparse:
            sizes[span.dtype] = max(sizes.get(span.dtype, 0), span.offset + span.numel)
    return sizes


class Exchange:
    """Binds one worker's parameters to the flats or to its own copy; starts with the flats.

    `is_delta` says which. The tensor objects stay the same; their memory changes with `.data =`, so the optimizer and
    the modules see the change."""

    def __init__(self, layout: FlatLayout, params: Sequence[nn.Parameter], regions: Mapping[str, Region]) -> None:
        self.is_delta = False
        self._regions = regions
        self._shared = {dtype: self._flat(dtype, size) for dtype, size in trained_sizes(layout).items()}
        self._copies: dict[torch.dtype, tuple[Tensor, Tensor, Tensor]] = {}
        # (tensor, dtype, shape, strides, offset in elements) of everything that is rebound
        self._bound: list[tuple[Tensor, torch.dtype, Sequence[int], Sequence[int], int]] = [
            (param, slot.dtype, slot.shape, slot.strides, slot.offset)
            for param, slot in zip(params, layout.params, strict=True)
            if slot.group is not None
        ]

    def _flat(self, dtype: torch.dtype, size: int) -> Tensor:
        return self._regions[region_name(dtype)].tensor(dtype, (size,))

    def span(self, span: Span) -> Tensor:
        """Return the words of a span, (span.numel,); later `bind` calls rebind this tensor, too."""
        place = self._places()[span.dtype]
        tensor = torch.as_strided(place, (span.numel,), (1,), span.offset)
        self._bound.append((tensor, span.dtype, (span.numel,), (1,), span.offset))
        return tensor

    def bind(self, *, delta: bool) -> None:
        """Bind the parameters to the copy (fresh from the flats) or to the flats. Everything must be flushed before."""
        if delta == self.is_delta:
            return
        if delta and not self._copies:  # local, snapshot, difference
            self._copies = {
                dtype: (torch.empty_like(flat), torch.empty_like(flat), torch.empty_like(flat))
                for dtype, flat in self._shared.items()
            }
        self.is_delta = delta
        self.refresh()
        places = self._places()
        for tensor, dtype, shape, strides, offset in self._bound:
            tensor.data = torch.as_strided(places[dtype], tuple(shape), tuple(strides), offset)

    def _bind_everything(self, layout: FlatLayout, params: Sequence[nn.Parameter]) -> None:
        """Bind all parameters, also the frozen ones, to the flats of `_places`, once and for all."""
        places = self._places()
        for param, slot in zip(params, layout.params, strict=True):
            param.data = torch.as_strided(places[slot.dtype], slot.shape, slot.strides, slot.offset)

    def _places(self) -> dict[torch.dtype, Tensor]:
        return {dtype: copy[0] for dtype, copy in self._copies.items()} if self.is_delta else self._shared

    def flush(self) -> None:
        """Add the changes since the last `refresh` to the flats, and read back the changes of the others. Call it
        between intent and commit."""
        for dtype, (local, snapshot, difference) in self._copies.items() if self.is_delta else ():
            torch.sub(local, snapshot, out=difference)
            self._shared[dtype].add_(difference)
        self.refresh()

    def refresh(self) -> None:
        """Set the copy to the present flats; unflushed changes are dropped."""
        for dtype, (local, snapshot, _) in self._copies.items() if self.is_delta else ():
            snapshot.copy_(self._shared[dtype])
            local.copy_(snapshot)
        self._changed()

    def _changed(self) -> None:
        """Tell autograd that the parameters were written, as after an optimizer's step."""
        if self.is_delta:
            torch.autograd.graph.increment_version([bound[0] for bound in self._bound])


class DeviceExchange(Exchange):
    """Delta exchange: the parameters are in this worker's copy on the device. Frozen ones are copied there once.

    `sole`: no other worker writes the flats, which become the copy."""

    def __init__(
        self,
        layout: FlatLayout,
        params: Sequence[nn.Parameter],
        regions: Mapping[str, Region],
        accelerator: Accelerator,
        pins: Pins,
        *,
        sole: bool,
    ) -> None:
        super().__init__(layout, params, regions)
        self._accelerator, self._sole = accelerator, sole
        self._come = accelerator.event()
        self._locals = {dtype: device_words(accelerator, dtype, size) for dtype, size in layout.sizes.items() if size}
        self._host: dict[torch.dtype, Tensor] = {}  # pinned memory for the downloaded differences
        for dtype, whole in self._locals.items():
            pins.region(regions[region_name(dtype)])
            accelerator.upload(whole, self._flat(dtype, whole.numel()), None)
        for dtype, flat in self._shared.items() if not sole else ():
            size = flat.numel()
            local = self._locals[dtype][:size]
            snapshot, difference = (device_words(accelerator, dtype, size) for _ in range(2))
            snapshot.copy_(local)
            self._copies[dtype] = (local, snapshot, difference)
            self._host[dtype] = pins.empty(size * dtype.itemsize).view(dtype)
        self.is_delta = True
        self._bind_everything(layout, params)
        self._synchronize()

    def _places(self) -> dict[torch.dtype, Tensor]:
        return self._locals

    def bind(self, *, delta: bool) -> None:
        assert delta, "the parameters of a replica lie on its device"

    def flush(self) -> None:
        for dtype, shared in self._shared.items():
            if self._sole:
                self._accelerator.download(shared, self._locals[dtype][: shared.numel()], None)
            else:
                local, snapshot, difference = self._copies[dtype]
                torch.sub(local, snapshot, out=difference)
                self._accelerator.download(self._host[dtype], difference, None)
        self._synchronize()  # wait until the differences are in host memory
        if self._sole:
            return
        for dtype, shared in self._shared.items():
            shared.add_(self._host[dtype])
        self.refresh()

    def refresh(self) -> None:
        for dtype, shared in self._shared.items():
            if self._sole:
                self._accelerator.upload(self._locals[dtype][: shared.numel()], shared, None)
            else:
                local, snapshot, _ = self._copies[dtype]
                self._accelerator.upload(snapshot, shared, None)
                local.copy_(snapshot)
        self._changed()

    def _synchronize(self) -> None:
        self._accelerator.record(self._come, None)
        self._accelerator.synchronize(self._come)


def device_words(accelerator: Accelerator, dtype: torch.dtype, count: int) -> Tensor:
    """Return (count,) new zero words on the device: the gaps between parameters count in sums."""
    return accelerator.empty(count * dtype.itemsize).zero_().view(dtype)


class SharedDeviceExchange(Exchange):
    """Direct exchange on one GPU, in memory that a dedicated process owns (`workers/child/gpu_owner.py`): every update
    writes words of the flats there, without a lock. `device_handles`: region -> IPC handle.

    The race is that of direct exchange: kernels of several workers read and write the same words at the
    same time. Workers own no memory that others map, so killing one is harmless: its context ends, and the owner's
    memory stays. Host memory has the flats as of the last pause, when the owner copies them there."""

    def __init__(
        self,
        layout: FlatLayout,
        params: Sequence[nn.Parameter],
        regions: Mapping[str, Region],
        accelerator: Accelerator,
        device_handles: Mapping[str, str],
    ) -> None:
        """Map the owner's memory. Raises DeviceSharingError."""
        super().__init__(layout, params, regions)
        try:
            self._flats: dict[torch.dtype, Tensor] = {
                dtype: accelerator.borrow(device_handles[region_name(dtype)], size * dtype.itemsize).view(dtype)
                for dtype, size in layout.sizes.items()
                if size
            }
        except (OSError, RuntimeError) as error:
            if accelerator.explain(error) is not None:
                raise
            raise DeviceSharingError(
                f"{accelerator.name}: GPU memory of another process cannot be mapped: {error}. In a container, CUDA "
                "IPC needs the host's IPC and process namespaces (docker run --ipc=host --pid=host); or use "
                "train.placement: cuda-replica"
            ) from error
        self._bind_everything(layout, params)

    def _places(self) -> dict[torch.dtype, Tensor]:
        return self._flats

    def bind(self, *, delta: bool) -> None:
        assert not delta, "shared parameters are written where they lie"


class DeviceState(StateBlock):
    """A worker's block in two parts: tensors shaped like parameters are on the device; counters, numbers and present
    words, which the optimizer reads as Python numbers, are in this process's memory. Shared memory has both as of the
    last `write_back`."""

    def __init__(
        self,
        layout: StateLayout,
        regions: Mapping[str, Region],
        block: int,
        accelerator: Accelerator,
        pins: Pins,
        *,
        counters_too: bool,
    ) -> None:
        """`counters_too`: the rule wants its counters on the device (fused, capturable)."""
        name = REGION
        super().__init__(layout, {name: Region.private(layout.nbytes)} if layout.nbytes else {}, 0)
        self._accelerator, self._counters_too = accelerator, counters_too
        self._come = accelerator.event()
        self._home = StateBlock(layout, regions, block)
        self._whole = accelerator.empty(layout.nbytes)
        if name in regions:
            pins.region(regions[name])
        arrays = [(a.dtype, a.numel, a.offset) for a in layout.arrays if self._is_moved(a.kind)]
        alone = [(s.dtype, math.prod(s.shape), s.offset) for s in layout.slots if s.kind == "tensor"]
        self._moved = [  # in host memory, and on the device
            (self._home.at(dtype, (count,), offset, (1,)), typed_view(self._whole, dtype, (count,), offset, (1,)))
            for dtype, count, offset in arrays + alone
        ]
        self._read()

    def _is_moved(self, kind: str) -> bool:
        return kind in ("like", "tensor") or (kind == "scalar" and self._counters_too)

    def _read(self) -> None:
        if not self.layout.nbytes:
            return
        whole = (torch.uint8, (self.layout.nbytes,), 0)
        self.at(*whole).copy_(self._home.at(*whole))
        for home, here in self._moved:
            self._accelerator.upload(here, home, None)

    def view(self, slot: StateSlot) -> Tensor:
        if self._is_moved(slot.kind) and slot.word not in self._views:
            self._views[slot.word] = typed_view(self._whole, slot.dtype, slot.shape, slot.offset, slot.strides)
        return super().view(slot)

    def array(self, state: SpanState) -> Tensor:
        if self._is_moved(state.kind):
            return typed_view(self._whole, state.dtype, (state.numel,), state.offset, (1,))
        return super().array(state)

    def write_back(self) -> None:
        """Copy this state to shared memory, present words last: a death before leaves the state of the last pause, or
        none."""
        if not self.layout.nbytes:
            return
        for home, here in self._moved:
            self._accelerator.download(home, here, None)
        self._accelerator.record(self._come, None)
        self._accelerator.synchronize(self._come)
        for array in self.layout.arrays:
            if not self._is_moved(array.kind):
                self._home.array(array).copy_(self.array(array))
        for slot in self.layout.slots:
            if slot.is_number and self._present[slot.word]:
                self._home.set_number(slot, float(self._numbers[slot.offset // 8]))
        self._home._present[: len(self.layout.slots)] = self._present[: len(self.layout.slots)]
        self._home._count[0] = self._count[0]

    def copy_from(self, optimizer: torch.optim.Optimizer) -> bool:
        """Take over another worker's state, as of its last pause."""
        if not self._home.copy_from(optimizer):
            return False
        self._read()
        self.load(optimizer)
        return True


class Replica:
    """The tensors of one worker on its GPU (parameters, optimizer state, buffers), and their exchange with the other
    workers through host memory, in the same flats and regions as a CPU job.

                        device of worker k                         host, shared by all
      parameters    local, snapshot, difference   -- flush -->   flats += difference      every `sync_every` updates
                    local = snapshot              <- refresh --  flats
      state         one block, torch's own names  - write_back > this worker's block      in every pause, and at the end
      buffers       one block                     - write_back > this worker's copy
                                                  <- read_back - merged, after the pause

    The race is that of delta on the CPU: `flats += difference` is a read and a write of every word by the CPU, without
    a lock; a write by another worker to a word in between is lost, once per flush. A single worker has no such race:
    the flats become a copy of its parameters, to the bit, as in the plain loop.

    A crash loses the updates since the last flush, as in delta on the CPU, and the changes of state and buffers since
    the last pause. A replacement inherits those of the last pause, or starts without, if there was none yet. The
    optimizer's state counts as created only once it is in host memory, so a partial state is never inherited."""

    state: DeviceState
    exchange: Exchange
    buffers: Tensor | None  # (bytes,) uint8; None without buffers

    def __init__(
        self,
        layout: SharedLayout,
        parts: tuple[nn.Module, Any, torch.optim.Optimizer],
        params: Sequence[nn.Parameter],
        regions: Mapping[str, Region],
        worker: int,
        accelerator: Accelerator,
        device_handles: Mapping[str, str] | None = None,
    ) -> None:
        """Bind parameters and buffers of the model to the device, and move the loss's tensors. `device_handles`:
        IPC handles of existing flats, by region (`SharedDeviceExchange`)."""
        model, loss, optimizer = parts
        self.accelerator, self.pins = accelerator, Pins(accelerator)
        self.device = accelerator.torch_device
        self._home: Tensor | None = None
        self.buffers = None
        try:
            if device_handles is not None:
                self.exchange = SharedDeviceExchange(layout.flats, params, regions, accelerator, device_handles)
            else:
                sole = layout.workers == 1
                self.exchange = DeviceExchange(layout.flats, params, regions, accelerator, self.pins, sole=sole)
            on_device = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
            self.state = DeviceState(layout.state, regions, worker, accelerator, self.pins, counters_too=on_device)
            self._come = accelerator.event()
            if buffers.REGION in regions:
                self.pins.region(regions[buffers.REGION])
                self._home = layout.buffers.block(regions[buffers.REGION], buffers.block_of(worker))
                self.buffers = accelerator.empty(layout.buffers.nbytes)
                self.read_back()
                for slot, buffer in zip(layout.buffers.slots, model.buffers(), strict=True):
                    buffer.data = typed_view(self.buffers, slot.dtype, slot.shape, slot.offset, slot.strides)
            if isinstance(loss, nn.Module):
                loss.to(accelerator.torch_device)  # constants, such as class weights
            self.synchronize()
        except BaseException:  # out of device memory, perhaps
            self.pins.close()
            raise

    @classmethod
    def on(cls, accelerator: Accelerator, device_handles: Mapping[str, str] | None = None) -> Callable[..., "Replica"]:
        """Return what `WorkerModel.attach` makes a replica with; arguments as of the constructor."""
        return partial(cls, accelerator=accelerator, device_handles=device_handles)

    def read_back(self) -> None:
        """Copy this worker's buffers from shared memory: after a pause, the merged ones."""
        if self.buffers is not None and self._home is not None:
            self.accelerator.upload(self.buffers, self._home, None)

    def write_back(self) -> None:
        """Copy this worker's state and buffers to shared memory. Everything must be flushed before."""
        self.state.write_back()
        if self.buffers is not None and self._home is not None:
            self.accelerator.download(self._home, self.buffers, None)
        self.synchronize()  # wait for all launched work, too

    def synchronize(self) -> None:
        """Wait until everything that was launched is done."""
        self.accelerator.record(self._come, None)
        self.accelerator.synchronize(self._come)

    def close(self) -> None:
        """Release device memory and pins; works with a broken context, too."""
        self.accelerator.drain()
        self.pins.close()
