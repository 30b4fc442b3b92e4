"""The place where a worker computes: the CPU, on the shared memory itself, or one GPU. It is chosen once, when the
trainer is built; trainer, feed, update and evaluator ask it for everything that differs.

               CpuPlace                               GpuPlace
    model      words of the shared regions            a replica, or mapped memory of the GPU's owner
    feed       the host feed, transformed             the same, copied into slots on the device
    update     `AutogradUpdate`                       `DeviceUpdate`, replayed as graphs where possible
    seed       torch's generator                      and the device's
    announce   nothing                                gather the next batch while the GPU computes
    losses     known after each backward              one download per update
    errors     as they are                            the driver's, translated; the context may be broken
"""

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import cast

import torch
from torch import nn

from hogwild.devices.accelerator import Accelerator
from hogwild.devices.discovery import open_accelerator
from hogwild.feeds.batch import Feed, Transform, TransformedFeed
from hogwild.feeds.device_feed import SLOTS, DeviceFeed
from hogwild.feeds.resident import ResidentFeed
from hogwild.feeds.ring import RingFeed
from hogwild.parameters.exchange import Replica
from hogwild.parameters.worker_model import WorkerModel
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Row, Word
from hogwild.training.autograd_update import AutogradUpdate, DeviceUpdate

# A GPU driver frees the memory of a killed worker some time after the process is gone (FAILURES 77).
MOST_DEATHS = 2  # of a worker, after which its replacements capture no graphs
WAITS_S = (0.1, 0.2, 0.4, 0.8, 1.6)


class CpuPlace:
    """Results are ready at once, memory needs no pinning, and errors need no translation."""

    update: Callable[..., AutogradUpdate] = AutogradUpdate
    seed: Callable[[int], object]
    """Seeds the generators that layers draw from: torch's, in 1.1 us (torch.manual_seed, which also looks for GPUs,
    takes 80 to 90), and the device's."""

    def __init__(self) -> None:
        self.seed = torch.default_generator.manual_seed

    def attach(
        self, structure: bytes | memoryview, regions: Mapping[str, Region], row: Row, updates: int
    ) -> WorkerModel:
        """Attach the model. `updates` of the whole job so far. Raises DeviceMemoryError if the device is full; a
        replacement retries for a while first."""
        return WorkerModel.attach(structure, regions, row.worker, updates)

    def feed(self, model: WorkerModel, host: Feed, transform: Transform | None = None, seed: int = 0) -> Feed:
        """Return the host feed with the transform applied and its batches where the model is."""
        return host if transform is None else TransformedFeed(host, transform, seed)

    def announce(self, feed: Feed, epoch: int, batch: int) -> None:
        """Prefetch the next batch of `feed` while this process would only wait for the device."""

    def losses(self, update: AutogradUpdate, told: float) -> float:
        """Return the sum of the losses of an update; `told` is the sum that its `backward` calls returned."""
        return told

    def explained(self) -> AbstractContextManager[None]:
        """Translate the device's errors into ours, where they are known."""
        return contextlib.nullcontext()

    def is_lost(self) -> bool:
        """Return True if the current error has also broken the device: nothing on it can be saved."""
        return False


class GpuPlace(CpuPlace):
    def __init__(
        self, accelerator: Accelerator, device_handles: Mapping[str, str] | None = None, *, graphs: bool = False
    ) -> None:
        """`device_handles`: IPC handles of flats that the GPU's owner holds, by region. `graphs`: replay updates."""
        super().__init__()
        self._graphs = graphs
        self._accelerator, self._device_handles = accelerator, device_handles
        seed_host = self.seed

        def seed_both(seed: int) -> None:
            seed_host(seed)
            accelerator.seed(seed)

        self.seed = seed_both

    def attach(
        self, structure: bytes | memoryview, regions: Mapping[str, Region], row: Row, updates: int
    ) -> WorkerModel:
        replica = Replica.on(self._accelerator, self._device_handles)
        # If a driver dies of captured graphs, the worker dies with it: this happens at most twice.
        graphs = self._graphs and row.words[Word.INCARNATION] <= MOST_DEATHS
        self.update = partial(DeviceUpdate, graphs=graphs)
        for wait_s in (*WAITS_S, None) if row.words[Word.INCARNATION] > 1 else (None,):
            try:
                model = WorkerModel.attach(structure, regions, row.worker, updates, replica)
                break
            except Exception as error:
                known = self._accelerator.explain(error)
                if known is None:
                    raise
                if wait_s is None:
                    raise known from error
                row.beat()
                time.sleep(wait_s)
        for sentence in keep_weights(model.model):
            print(f"{self._accelerator.name}: {sentence}", flush=True)
        return model

    def feed(self, model: WorkerModel, host: Feed, transform: Transform | None = None, seed: int = 0) -> Feed:
        assert model.replica is not None
        pins = model.replica.pins
        feeds: list[Feed] = [host]
        if isinstance(host, ResidentFeed):
            feeds = [host.into(pins.empty(host.slot_nbytes)) for _ in range(SLOTS)]
        elif isinstance(host, RingFeed) and host.is_refilled:  # copied directly from the slot of the ring
            rings = [host.twin() for _ in range(SLOTS)]
            for ring in rings:
                pins.region(ring.region)
            feeds = [*rings]
        whole = [super(GpuPlace, self).feed(model, one, transform, seed) for one in feeds]
        return DeviceFeed(whole, self._accelerator, pins, draws=transform is not None)

    def announce(self, feed: Feed, epoch: int, batch: int) -> None:
        cast(DeviceFeed, feed).prefetch(epoch, batch)

    def losses(self, update: AutogradUpdate, told: float) -> float:
        return update.late_losses

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            known = self._accelerator.explain(error)
            if known is None:
                raise
            raise known from error

    def is_lost(self) -> bool:
        error = sys.exception()
        if error is not None:
            self._accelerator.explain(error)  # also checks whether the context is alive
        return self._accelerator.is_broken()


def open_place(device: str, device_handles: Mapping[str, str] | None = None, *, graphs: bool = False) -> CpuPlace:
    """Open the place of a worker, in the process that computes there: on a GPU it gets a context."""
    accelerator = open_accelerator(device)
    return CpuPlace() if accelerator is None else GpuPlace(accelerator, device_handles, graphs=graphs)


WARNING = "RNN module weights are not part of single contiguous chunk of memory"


# cuDNN wants all weights of an nn.LSTM, GRU or RNN in one piece of memory, in its own order and without gaps: first all
# matrices, then all biases (torch/nn/modules/rnn.py, `flatten_parameters`; torch._cudnn_rnn_flatten_weight). In the
# flat of a device every parameter begins on a cache line, in the optimizer's order. `flatten_parameters()` would move
# the weights out of the flat, and their updates would be lost. So it is disabled here, and cuDNN gets the weights as
# they are. torch then copies them into one piece in every forward pass, and would warn of that each time.
def keep_weights(model: nn.Module) -> list[str]:
    """Disable flattening in every recurrent layer; return sentences for the log."""
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.RNNBase)]
    for _, layer in layers:
        layer.flatten_parameters = lambda: None  # type: ignore[method-assign]
    if not layers:
        return []
    warnings.filterwarnings("ignore", message=WARNING)
    names = ", ".join(name or "(the model itself)" for name, _ in layers)
    return [
        f"warning: the weights of {names} stay in the shared memory: flatten_parameters() does nothing, and cuDNN "
        "copies them in each forward pass"
    ]
