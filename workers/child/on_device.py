"""The device of a worker: the objects of `build.py`, made for the device that the job gives this worker, if any."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import torch

from hogwild.devices.accelerator import Accelerator
from hogwild.feeds.batch import Feed
from hogwild.feeds.device_feed import SLOTS, DeviceFeed
from hogwild.feeds.resident import ResidentFeed
from hogwild.feeds.ring import RingFeed
from hogwild.feeds.transform import Transform, TransformedFeed
from hogwild.parameters.shared_model import WorkerModel
from hogwild.shared_memory.region import Region
from hogwild.shared_memory.scoreboard import Row, Word
from hogwild.training.autograd_update import AutogradUpdate
from hogwild.training.cudnn_weights import keep_weights
from workers.child.spec import OnCpu

# A GPU driver frees the memory of a killed worker some time after the process is gone (FAILURES 77).
WAITS_S = (0.1, 0.2, 0.4, 0.8, 1.6)


class OnDevice(OnCpu):
    def __init__(self, accelerator: Accelerator, announce: Callable[[int, int], object]) -> None:
        self._accelerator, self._announce = accelerator, announce

    def announce(self, epoch: int, batch: int) -> None:
        self._announce(epoch, batch)

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


def attached(
    structure: bytes | memoryview,
    regions: Mapping[str, Region],
    row: Row,
    accelerator: Accelerator | None,
    device_handles: Mapping[str, str] | None = None,
    updates: int = 0,
) -> WorkerModel:
    """Attach the model. Raises DeviceMemoryError if the device is full; a replacement retries for a while first."""
    if accelerator is None:
        return WorkerModel.attach(structure, regions, row.worker, updates)
    for wait_s in (*WAITS_S, None) if row.words[Word.INCARNATION] > 1 else (None,):
        try:
            model = WorkerModel.attach(structure, regions, row.worker, updates, accelerator, device_handles)
            break
        except Exception as error:
            known = accelerator.explain(error)
            if known is None:
                raise
            if wait_s is None:
                raise known from error
            row.beat()
            time.sleep(wait_s)
    for sentence in keep_weights(model.model):
        print(f"{accelerator.name}: {sentence}", flush=True)
    return model


def seeding(accelerator: Accelerator | None) -> Callable[[int], object]:
    """Return a function that seeds the generators layers draw from: torch's, in 1.1 us (torch.manual_seed, which also
    looks for GPUs, takes 80 to 90), and the device's."""
    on_host = torch.default_generator.manual_seed
    if accelerator is None:
        return on_host
    on_device = accelerator.seed

    def seed_both(seed: int) -> None:
        on_host(seed)
        on_device(seed)

    return seed_both


def feeding(model: WorkerModel, feed: Feed, transform: Transform | None = None, seed: int = 0) -> Feed:
    """Return `feed` with the transform applied and its batches on the model's device."""

    def whole(host: Feed) -> Feed:
        return host if transform is None else TransformedFeed(host, transform, seed)

    if model.replica is None:
        return whole(feed)
    pins = model.replica.pins
    feeds: list[Feed] = [feed]
    if isinstance(feed, ResidentFeed):
        feeds = [feed.into(pins.empty(feed.slot_nbytes)) for _ in range(SLOTS)]
    elif isinstance(feed, RingFeed) and feed.is_refilled:  # copied directly from the slot of the ring
        rings = [feed.twin() for _ in range(SLOTS)]
        for ring in rings:
            pins.region(ring.region)
        feeds = [*rings]
    return DeviceFeed([whole(one) for one in feeds], model.replica.accelerator, pins, draws=transform is not None)
