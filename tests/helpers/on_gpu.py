"""The cases of `tests/whole_jobs/test_gpu.py` on a device, each in a process of its own: one that has opened a GPU
can start no workers any more. `python -m tests.helpers.on_gpu DEVICE FOLDER CASE ...` prints what was found, as JSON,
by case.

DEVICE: cuda, or simulated, to try these lines where there is no GPU."""

import copy
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.utils.data import TensorDataset

import hogwild
from hogwild.devices.accelerator import Accelerator, Pins
from hogwild.devices.discovery import open_accelerator
from hogwild.errors import HogwildError
from hogwild.feeds.device_feed import SLOTS, DeviceFeed
from hogwild.feeds.resident import ResidentData, ResidentFeed
from hogwild.parameters.exchange import Replica
from hogwild.parameters.worker_model import WorkerModel
from hogwild.scheduling.batch_plan import BatchPlan
from hogwild.training.autograd_update import DeviceUpdate
from tests.helpers import simulated_gpu as simulated
from tests.helpers.processes import in_worker
from tests.shared_model import ConvNet, build, images, train_plainly
from tests.training.test_update_graphs import RULES as REPLAYED
from tests.training.test_update_graphs import Counting, Small, Trained, Waiting
from tests.whole_jobs.test_device_jobs import train

Found = dict[str, Any]
RULES: dict[str, Callable[..., optim.Optimizer]] = {"SGD": optim.SGD, "Adam": optim.Adam, "Adagrad": optim.Adagrad}


def opened(device: str) -> Accelerator:
    accelerator = open_accelerator(f"{device}:0")
    assert accelerator is not None
    return accelerator


# ---- in the process itself ------------------------------------------------------------------------------------------


def batches(device: str, folder: Path) -> Found:
    """Batches that arrived changed, and how many sets of slots there were after the first epoch."""
    accelerator = opened(device)
    data = ResidentData.from_tensors("data", [torch.rand(60, 3, 8, 8), torch.arange(60)], channels_last=True)
    plain, pins = ResidentFeed(data, BatchPlan(60, 8), seed=1, order="full"), Pins(accelerator)
    feed = DeviceFeed([plain.into(pins.empty(plain.slot_nbytes)) for _ in range(SLOTS)], accelerator, pins)
    places: set[tuple[int, ...]] = set()
    changed = []
    for epoch in range(3):
        for number in range(8):
            found = feed.gather(epoch, number)
            feed.prefetch(epoch, (number + 1) % 8)
            expected = plain.gather(epoch, number)
            same = torch.equal(found.inputs[0].cpu(), expected.inputs[0])
            if not (same and torch.equal(found.target.cpu(), expected.target)):
                changed.append((epoch, number))
            places |= {feed.addresses()} if epoch else set()
    accelerator.drain()
    pins.close()
    return {"changed": changed, "places": len(places)}


class Rows(nn.Module):
    """Its gradients are sparse: compiled rules for rows are for the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(50, 3, sparse=True)

    def forward(self, row: Tensor) -> Tensor:
        found: Tensor = self.rows(row)
        return found


def some_rows() -> list[tuple[Tensor, Tensor]]:
    return [(torch.randint(50, (8,)), torch.randint(3, (8,))) for _ in range(10)]


def plain_loop(
    rule: str,
    device: str,
    folder: Path,
    kind: type[nn.Module] = ConvNet,
    some: Callable[[], list[tuple[Tensor, Tensor]]] = lambda: images(10),
) -> Found:
    """Parameters in which one worker and the plain loop on the same device differ."""
    torch.manual_seed(0)
    model, accelerator = kind(), opened(device)
    plain = copy.deepcopy(model).to(accelerator.torch_device)
    shared = build(model, RULES[rule](model.parameters(), lr=0.01))
    worker = WorkerModel.attach(shared.structure, shared.regions, 0, replica=Replica.on(accelerator))
    update = DeviceUpdate(worker, grad_clip=None)
    given = [(x.to(accelerator.torch_device), y.to(accelerator.torch_device)) for x, y in some()]
    finite = []
    for x, y in given:
        update.backward((x,), y)
        finite.append(update.is_finite())
        update.apply(None)
    worker.exchange.flush()
    worker.rest()
    train_plainly(plain, RULES[rule](plain.parameters(), lr=0.01), given)
    theirs = dict(plain.named_parameters())
    differ = [
        name
        for name, mine in model.named_parameters()
        if not torch.allclose(mine.detach(), theirs[name].detach().cpu(), rtol=1e-3, atol=1e-4)
    ]
    worker.close()
    return {"differ": differ, "finite": all(finite)}


def allocations(device: str, folder: Path) -> Found:
    """Per update, flushes included."""
    model, accelerator = ConvNet(), opened(device)
    shared = build(model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9), procs=2)
    worker = WorkerModel.attach(shared.structure, shared.regions, 0, replica=Replica.on(accelerator))
    update = DeviceUpdate(worker, grad_clip=1.0)
    taken = []
    for x, y in images(6):
        update.backward((x.to(accelerator.torch_device),), y.to(accelerator.torch_device))
        before = accelerator.allocations()
        assert update.is_finite()
        update.apply(None)
        worker.exchange.flush()
        taken.append(accelerator.allocations() - before)
    worker.close()
    return {"taken": taken}


def graphs(device: str, folder: Path, kind: type[nn.Module] = Small, rule: str = "momentum", **settings: Any) -> Found:
    """The same updates with graphs and without: how many parts were replayed, why not, and where the results differ."""
    settings |= {"kind": kind, "rule": REPLAYED[rule], "device": opened(device)}
    ours, plain = Trained(**settings), Trained(graphs=False, **settings)
    (mine, _), (theirs, _) = ours.snapshot, plain.snapshot
    differ = [key for key in mine if not torch.allclose(mine[key], theirs[key], rtol=1e-2, atol=1e-3)]
    return {"replays": ours.replays, "why": ours.why, "differ": differ, "plain": plain.replays}


GRAPHS: dict[str, dict[str, Any]] = {
    "graphs": {},
    "graphs-Adam": {"rule": "Adam"},
    "graphs-bf16": {"precision": "bf16"},
    "graphs-clipped": {"accumulate": 3, "clip": 0.5, "rate": lambda number: 1 - number / 200},
}
NO_GRAPHS: dict[str, dict[str, Any]] = {
    "no-graphs-waiting": {"kind": Waiting},
    "no-graphs-counting": {"kind": Counting},
}


def refused(device: str, folder: Path) -> Found:
    """A model that lies there already."""
    model = nn.Linear(2, 2).to("meta" if device == "simulated" else device)
    try:
        build(model, optim.SGD(model.parameters(), lr=0.1))
    except HogwildError as error:
        return {"code": error.code, "words": str(error)}
    return {}


# ---- jobs with workers: this process is the supervisor, and has no context -------------------------------------------


def job(device: str, folder: Path) -> Found:
    _, result = train(device, 2, run_dir=folder / "job")
    return {"leases": result.leases, "device": result.device, "procs": result.procs, **context()}


def context() -> Found:
    return {"has_context": torch.cuda.is_initialized()}


class Greedy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            torch.empty(1 << 50, dtype=torch.uint8, device=x.device)
        elif simulated.opened and in_worker():
            simulated.run_out_of_memory(1 << 50)
        return super().forward(x)


def memory(device: str, folder: Path) -> Found:
    """More than there is, asked for by the model."""
    data = TensorDataset(torch.rand(64, 4), torch.zeros(64, dtype=torch.int64))
    try:
        fit(Greedy(4, 2), data, device, folder / "memory", epochs=1)
    except HogwildError as error:
        return {"code": error.code, "words": str(error), **context()}
    return context()


def fit(model: nn.Module, data: TensorDataset, device: str, run_dir: Path, *, epochs: int) -> hogwild.TrainResult:
    return hogwild.train(
        model, data, nn.CrossEntropyLoss(), optim.SGD(model.parameters(), lr=0.1),
        procs=1, epochs=epochs, batch_size=8, device=device, run_dir=run_dir, log={"progress": False},
    )  # fmt: skip


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.LSTM(4, 8, num_layers=2, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.rnn.flatten_parameters()
        return self.out(self.rnn(x)[0][:, -1])


def recurrent(device: str, folder: Path) -> Found:
    model, x = Last(), torch.randn(64, 5, 4)
    before = copy.deepcopy(model)
    result = fit(model, TensorDataset(x, (x.sum((1, 2)) > 0).long()), device, folder / "recurrent", epochs=3)
    still = [name for name, value in model.named_parameters() if torch.equal(value, before.get_parameter(name))]
    return {"updates": result.updates, "still": still, **context()}


CASES: dict[str, Callable[[str, Path], Found]] = {
    "batches": batches,
    **{f"plain-{rule}": partial(plain_loop, rule) for rule in RULES},
    "plain-sparse": partial(plain_loop, "Adagrad", kind=Rows, some=some_rows),
    "allocations": allocations,
    **{case: partial(graphs, **settings) for case, settings in (GRAPHS | NO_GRAPHS).items()},
    "refused": refused,
    "job": job,
    "memory": memory,
    "recurrent": recurrent,
}

if __name__ == "__main__":
    device, folder, *chosen = sys.argv[1:]
    torch.set_num_threads(1)  # on the simulated device; as a worker has it
    print(json.dumps({case: CASES[case](device, Path(folder)) for case in chosen}))
