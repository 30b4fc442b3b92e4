"""The figures of a GPU: `make bench-gpu`, five minutes. Needs one, and the MNIST files (`HOGWILD_DATA`).

Samples per second of a job with one worker, and with 4, on GPU 0 over one process that trains the same there alone, in
turns; workers replay their updates as CUDA graphs where that works (`train.graphs`). And
from inside one worker: how much of its copies is hidden behind computing, by events on both streams, and how often an
update takes memory of the device from the driver."""

import os
import sys
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks import commands
from benchmarks.baselines import one_gpu
from benchmarks.baselines.networks import NETWORKS, Settings, Shared
from benchmarks.bench import in_turn, median, say
from benchmarks.figures import LENET, MLP
from benchmarks.results import begin, update
from benchmarks.row import Row
from hogwild.data import Mnist
from hogwild.devices.discovery import Cuda
from hogwild.feeds.device_feed import SLOTS, DeviceFeed
from hogwild.feeds.resident import ResidentData, ResidentFeed
from hogwild.parameters.exchange import Replica
from hogwild.parameters.shared_model import SharedModel
from hogwild.parameters.worker_model import WorkerModel
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.training.autograd_update import DeviceUpdate

RUNS = 3
BATCH, WARM, MEASURED = 64, 50, 500  # updates
EPOCHS = "train.epochs=10"  # workers start in turn: most is to be trained by all of them
PLAIN, GRAPHS = "one plain process", "one process with CUDA graphs"
JOBS = ((1, "cuda-replica"), (4, "cuda-replica"), (4, "cuda-shared"))  # workers, placement
# The least that is asked for: workers, placement, network, and what they are compared with.
TARGETS = {
    **{(1, "cuda-replica", network, GRAPHS): 0.95 for network in (LENET, MLP)},
    **{(4, "cuda-replica", network, PLAIN): least for network, least in ((LENET, 4.0), (MLP, 6.0))},
    **{(4, "cuda-shared", network, PLAIN): 3.0 for network in (LENET, MLP)},
}
HIDDEN = 0.9


def measure() -> list[Row]:
    """All rows of the suite."""
    data = Shared.of(*Mnist(split="train").tensors)
    rows = [row for network in (LENET, MLP) for job in JOBS for row in over_one(network, *job, data)]
    rows += [row for network in (LENET, MLP) for row in inside(network, Timed(0))]
    for row in rows:  # often another build than the one that the package asks for
        row.note = "; ".join(filter(None, [f"torch {torch.__version__}", row.note]))
    return rows


def over_one(network: str, procs: int, placement: str, data: Shared) -> list[Row]:
    settings = Settings(updates=MEASURED, warm_up=WARM, batch_size=BATCH)

    def ours() -> float:
        chosen = [
            "train.device=cuda:0",
            "train.graphs=auto",
            f"train.placement={placement}",
            "data.val=null",
            "train.threads=1",
            EPOCHS,
        ]
        return commands.speed("train", commands.MNIST, "--procs", str(procs), *NETWORKS[network].overrides, *chosen)

    def alone(*, graph: bool) -> float:
        return one_gpu.samples_per_s(NETWORKS[network], data, settings, graph=graph)

    we, plain, graphs = in_turn(RUNS, ours, partial(alone, graph=False), partial(alone, graph=True))
    rows = []
    for what, baseline in ((PLAIN, plain), (GRAPHS, graphs)):
        ratios = [mine / theirs for mine, theirs in zip(we, baseline, strict=True)]
        figure = f"{network}, {procs} worker{'s' if procs > 1 else ''} {placement}: samples/s over {what}"
        rows.append(Row(figure, "x", TARGETS.get((procs, placement, network, what)), ratios, median(baseline)))
        say(f"{figure}: {rows[-1].value:.2f}")
    return rows


class Timed(Cuda):
    """Notes when copies begin and end, and how long the mathematics stands still for them."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.copies: list[tuple[Any, Any]] = []
        self.stalls: list[tuple[Any, Any]] = []

    def _around(self, stream: Any, kept: list[tuple[Any, Any]], action: Any) -> None:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record(self._or_current(stream))
        action()
        last.record(self._or_current(stream))
        kept.append((first, last))

    def upload(self, target: Any, source: Any, stream: Any) -> None:
        if stream is None:
            super().upload(target, source, stream)
        else:
            self._around(stream, self.copies, lambda: Cuda.upload(self, target, source, stream))

    def wait(self, event: Any, stream: Any) -> None:
        if stream is not None:
            super().wait(event, stream)
        else:
            self._around(stream, self.stalls, lambda: Cuda.wait(self, event, stream))

    def forget(self) -> None:
        """Forget what was noted so far."""
        self.copies.clear()
        self.stalls.clear()

    def hidden(self) -> float:
        """The share of the copies' time in which the mathematics went on."""
        torch.cuda.synchronize()
        copied, stalled = (sum(a.elapsed_time(b) for a, b in pairs) for pairs in (self.copies, self.stalls))
        return 1.0 - stalled / copied

    def taken(self) -> int:
        """Return the number of times that torch has asked the driver for memory of the device so far."""
        return int(torch.cuda.memory_stats(self.torch_device)["num_device_alloc"])


def inside(network: str, device: Any) -> list[Row]:
    """From inside one worker, on its own feed and model. `device`: a `Timed`, or what stands in for it."""
    x, y = Mnist(split="train").tensors
    model = NETWORKS[network].build()
    rule = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    shared = SharedModel.build(model, nn.CrossEntropyLoss(), rule, procs=2)
    worker = WorkerModel.attach(shared.structure, shared.regions, 0, replica=Replica.on(device))
    assert worker.replica is not None
    plan = BatchPlan(len(x), BATCH)
    images = x if network == LENET else x.flatten(1)
    data = ResidentData.from_tensors("data", [images, y], channels_last=network == LENET)
    plain, pins = ResidentFeed(data, plan, seed=1, order="full"), worker.replica.pins
    feed = DeviceFeed([plain.into(pins.empty(plain.slot_nbytes)) for _ in range(SLOTS)], device, pins)
    step = DeviceUpdate(worker, grad_clip=None)

    def updates(first: int, last: int) -> None:
        for number in range(first, last):
            batch = feed.gather(0, number)
            step.backward(batch.inputs, batch.target)
            feed.prefetch(0, number + 1)
            if step.is_finite():
                step.apply(None)

    updates(0, WARM)
    device.forget()
    blocks, taken = device.allocations(), device.taken()
    updates(WARM, WARM + MEASURED)
    blocks, taken = device.allocations() - blocks, device.taken() - taken
    hidden = device.hidden()
    worker.close()
    per_update = blocks / MEASURED
    what = f"asked of the driver; what autograd keeps is {per_update:.1f} blocks per update of what torch has reserved"
    return [
        Row(f"{network}: share of the copies hidden behind computing", "", HIDDEN, [hidden]),
        Row(f"{network}: device allocations per update", "", 0.0, [taken / MEASURED], None, what, True),
    ]


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("no GPU here: nothing was measured")
    if not os.environ.get("HOGWILD_DATA"):
        sys.exit("set HOGWILD_DATA to the folder that holds mnist/")
    described = begin()
    update("gpu", measure(), described)


if __name__ == "__main__":
    main()
