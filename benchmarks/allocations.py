"""The allocations of our part of an update after warm-up, for LeNet, inside one worker: gathering the batch, checking
and applying the gradients, the exchange. Forward and backward are the model's; autograd makes their tensors anew.

    the CPU               torch's profiler counts what operations take from the allocator (a number that torch wraps in
                          a tensor of 8 bytes, a rate perhaps, is left out), and addresses of buffers that have moved
                          count too
    a simulated device    the code of a GPU: what is asked of the device's allocator, of registered host memory, and
                          addresses that have moved"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile

from benchmarks import commands
from benchmarks.figures import Figure
from benchmarks.row import Row
from hogwild.feeds.device_feed import SLOTS, DeviceFeed
from hogwild.feeds.resident import ResidentData, ResidentFeed
from hogwild.feeds.ring import Ring, RingFeed, RingSpec, SlotWord
from hogwild.feeds.stream_reader import Collator, Filler, Origin, Stream
from hogwild.models import LeNet
from hogwild.parameters.exchange import Replica
from hogwild.parameters.shared_model import SharedModel
from hogwild.parameters.worker_model import WorkerModel
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.training.autograd_update import AutogradUpdate, DeviceUpdate
from tests.helpers.simulated_gpu import Simulated

BATCH, BATCHES, WARM_UP, SYNC_EVERY = 64, 32, 8, 16
A_NUMBER = 16  # bytes
DEVICE = "device"
ON_CPU = Figure("allocations per update after warm-up (ours), CPU", 0.0, "", smaller_is_better=True)
ON_DEVICE = Figure("allocations per update after warm-up (ours), simulated device", 0.0, "", smaller_is_better=True)


class Counter:
    """Allocations of what is done in its context, by torch's allocator on the CPU."""

    def __init__(self) -> None:
        self.made = 0

    def of(self, action: Callable[[], Any]) -> Any:
        with profile(profile_memory=True, use_kineto=False) as recorded:
            answer = action()
        self.made += sum(event.self_cpu_memory_usage > A_NUMBER for event in recorded.function_events)
        return answer


@dataclass
class Images(torch.utils.data.Dataset):
    """Random ones, with labels: (1, 28, 28) float32."""

    x: Tensor
    y: Tensor

    @classmethod
    def make(cls) -> "Images":
        random = torch.Generator().manual_seed(0)
        count = BATCH * BATCHES
        return cls(torch.rand(count, 1, 28, 28, generator=random), torch.randint(10, (count,), generator=random))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self.x[number], self.y[number]


def worker_of(device: Simulated | None = None) -> WorkerModel:
    model = LeNet(classes=10)
    rule = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    shared = SharedModel.build(model, nn.CrossEntropyLoss(), rule, procs=2)
    return WorkerModel.attach(shared.structure, shared.regions, 0, replica=Replica.on(device))


def resident(images: Images) -> ResidentFeed:
    data = ResidentData.from_tensors("data", [images.x, images.y], channels_last=True)
    return ResidentFeed(data, BatchPlan(len(images), BATCH), seed=1, order="full")


class Streaming:
    """A ring whose slots are filled here, before the worker's part is looked at."""

    def __init__(self, images: Images) -> None:
        plan = BatchPlan(len(images), BATCH)
        stream = Stream(Origin(images), Collator(channels_last=True), plan, "full", seed=1)
        form, shapes = stream.collator.form([images[number] for number in range(BATCH)])
        self._ring = Ring.allocate("ring", RingSpec(form, SLOTS, 1, form.nbytes(shapes)))
        self._filler = Filler(stream, self._ring)
        self.feed = RingFeed(self._ring, BATCH)

    def fill(self, number: int) -> None:
        row = self._ring.table[number % SLOTS]
        row[SlotWord.EPOCH], row[SlotWord.BATCH], row[SlotWord.FILLED] = 0, number, 1
        self._filler.fill(number % SLOTS)


def on_cpu(*, streamed: bool, delta: bool) -> int:
    """After WARM_UP updates, of BATCHES - WARM_UP."""
    images, counter = Images.make(), Counter()
    streaming = Streaming(images)
    feed = streaming.feed if streamed else resident(images)
    worker = worker_of()
    worker.bind(delta=delta)
    update, where = AutogradUpdate(worker, grad_clip=None), []
    for number in range(BATCHES):
        if number == WARM_UP:
            counter.made = 0
        streaming.fill(number)
        batch = counter.of(lambda: feed.gather(0, number))  # noqa: B023
        update.backward(batch.inputs, batch.target)
        counter.of(lambda: update.is_finite() and update.apply(None))
        if delta and number % SYNC_EVERY == SYNC_EVERY - 1:
            counter.of(worker.exchange.flush)
        where.append((*feed.addresses(), *(param.data_ptr() for param in worker.params)))
    return counter.made + len(set(where[WARM_UP:])) - 1


def on_device() -> int:
    """After WARM_UP updates, of BATCHES - WARM_UP."""
    device = Simulated(0)
    worker = worker_of(device)
    assert worker.replica is not None
    pins, plain = worker.replica.pins, resident(Images.make())
    feed = DeviceFeed([plain.into(pins.empty(plain.slot_nbytes)) for _ in range(SLOTS)], device, pins)
    step, where, before = DeviceUpdate(worker, grad_clip=None), [], 0
    for number in range(BATCHES):
        if number == WARM_UP:
            before = device.calls["allocate"] + device.calls["register"]
        batch = feed.gather(0, number)
        step.backward(batch.inputs, batch.target)
        feed.prefetch(0, min(number + 1, BATCHES - 1))
        if step.is_finite():
            step.apply(None)
        if number % SYNC_EVERY == SYNC_EVERY - 1:
            worker.exchange.flush()
        where.append((*feed.addresses(), *(param.data_ptr() for param in worker.params)))
    made = device.calls["allocate"] + device.calls["register"] - before
    worker.close()
    return made + len(set(where[WARM_UP:])) - 1


WAYS: dict[str, Callable[[], int]] = {
    "resident, direct": lambda: on_cpu(streamed=False, delta=False),
    "resident, delta": lambda: on_cpu(streamed=False, delta=True),
    "streamed, direct": lambda: on_cpu(streamed=True, delta=False),
    "streamed, delta": lambda: on_cpu(streamed=True, delta=True),
    DEVICE: on_device,
}


def rows() -> list[Row]:
    """Raises CommandFailed. In a process of its own: torch's profiler says a lot on standard error."""
    found: dict[str, int] = json.loads(commands.answer("-m", "benchmarks.allocations"))
    over = BATCHES - WARM_UP
    on_device = found.pop(DEVICE)
    note = f"LeNet, batch {BATCH}, {over} updates each; counted: {', '.join(f'{way} {n}' for way, n in found.items())}"
    device = f"LeNet, batch {BATCH}, {over} updates, flushes among them; allocations and registrations: {on_device}"
    return [
        ON_CPU.row([sum(found.values()) / (over * len(found))], note=note),
        ON_DEVICE.row([on_device / over], note=device),
    ]


def main() -> None:
    torch.set_num_threads(1)
    print(json.dumps({way: count() for way, count in WAYS.items()}))


if __name__ == "__main__":
    main()
