"""The same on a GPU of NVIDIA's, short: what the simulated device cannot know of the driver. Skipped, and said so,
where there is none."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn, optim

import hogwild
from benchmarks import gpu as figures
from hogwild.batches import BatchPlan
from hogwild.device import open_accelerator
from hogwild.device_update import DeviceUpdate
from hogwild.errors import DeviceMemoryError
from hogwild.feeds import ResidentData, ResidentFeed
from hogwild.params import WorkerModel
from hogwild.pins import Pins
from hogwild.slots import SLOTS, DeviceFeed
from tests.shared_model import ConvNet, build, images, train_plainly
from tests.test_device_jobs import train

NO_GPU = "no GPU here: torch.cuda.device_count() is 0; tests/test_slots.py and others run the same code simulated"
on_gpu = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() == 0, reason=NO_GPU)]


def needs_gpu(test):  # type: ignore[no-untyped-def]
    for mark in on_gpu:
        test = mark(test)
    return test


@needs_gpu
def test_batches_arrive_whole_and_the_slots_stay() -> None:
    device = open_accelerator("cuda:0")
    assert device is not None
    data = ResidentData.from_tensors("data", [torch.rand(60, 3, 8, 8), torch.arange(60)], channels_last=True)
    plain, pins = ResidentFeed(data, BatchPlan(60, 8), seed=1, order="full"), Pins(device)
    feed = DeviceFeed([plain.into(pins.empty(plain.slot_nbytes)) for _ in range(SLOTS)], device, pins)
    places: set[tuple[int, ...]] = set()
    for epoch in range(3):
        for number in range(8):
            found = feed.gather(epoch, number)
            feed.prefetch(epoch, (number + 1) % 8)
            expected = plain.gather(epoch, number)
            assert torch.equal(found.inputs[0].cpu(), expected.inputs[0])
            assert torch.equal(found.target.cpu(), expected.target)
            places |= {feed.addresses()} if epoch else set()
    assert len(places) == 1
    device.drain()
    pins.close()


@needs_gpu
@pytest.mark.parametrize("rule", [optim.SGD, optim.Adam, optim.Adagrad])
def test_one_worker_trains_as_the_plain_loop_does(rule: type[optim.Optimizer]) -> None:
    torch.manual_seed(0)
    model = ConvNet()
    plain = copy.deepcopy(model).cuda()
    shared = build(model, rule(model.parameters(), lr=0.01))  # type: ignore[call-arg]
    worker = WorkerModel.attach(shared.structure, shared.regions, 0, accelerator=open_accelerator("cuda:0"))
    update = DeviceUpdate(worker, grad_clip=None)
    batches = [(x.cuda(), y.cuda()) for x, y in images(10)]
    for x, y in batches:
        update.backward((x,), y)
        assert update.is_finite()
        update.apply(None)
    worker.exchange.flush()
    worker.rest()
    train_plainly(plain, rule(plain.parameters(), lr=0.01), batches)  # type: ignore[call-arg]
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.detach(), theirs.detach().cpu(), rtol=1e-3, atol=1e-4)
    worker.close()


@needs_gpu
def test_checking_and_applying_an_update_allocates_nothing_on_the_device() -> None:
    model = ConvNet()
    shared = build(model, optim.SGD(model.parameters(), lr=0.1, momentum=0.9), procs=2)
    device = open_accelerator("cuda:0")
    worker = WorkerModel.attach(shared.structure, shared.regions, 0, accelerator=device)
    update = DeviceUpdate(worker, grad_clip=1.0)
    taken = []
    for x, y in images(6):
        update.backward((x.cuda(),), y.cuda())
        assert device is not None
        before = device.allocations()
        assert update.is_finite()
        update.apply(None)
        worker.exchange.flush()
        taken.append(device.allocations() - before)
    assert taken[3:] == [0, 0, 0]
    worker.close()


@needs_gpu
def test_a_job_of_two_workers_learns_and_the_supervisor_has_no_context(tmp_path: Path) -> None:
    _, result = train("cuda", 2, run_dir=tmp_path / "run")
    assert result.leases["done"] == result.leases["total"] and result.device.startswith("cuda:0")
    assert not torch.cuda.is_initialized() or result.procs == 2


@needs_gpu
def test_memory_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    class Greedy(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.is_cuda:
                torch.empty(1 << 50, dtype=torch.uint8, device=x.device)
            return super().forward(x)

    model = Greedy(4, 2)
    data = torch.utils.data.TensorDataset(torch.rand(64, 4), torch.zeros(64, dtype=torch.int64))
    with pytest.raises(DeviceMemoryError, match=r"GPU out of memory: cuda:0"):
        hogwild.train(
            model, data, nn.CrossEntropyLoss(), optim.SGD(model.parameters(), lr=0.1),
            procs=1, epochs=1, batch_size=8, device="cuda", run_dir=tmp_path / "run",
        )  # fmt: skip


@needs_gpu
def test_the_first_updates_of_a_recurrent_model_learn(tmp_path: Path) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.LSTM(4, 8, num_layers=2, batch_first=True), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.rnn.flatten_parameters()
            return self.out(self.rnn(x)[0][:, -1])

    model = Last()
    x = torch.randn(64, 5, 4)
    data = torch.utils.data.TensorDataset(x, (x.sum((1, 2)) > 0).long())
    result = hogwild.train(
        model, data, nn.CrossEntropyLoss(), optim.SGD(model.parameters(), lr=0.5),
        procs=1, epochs=3, batch_size=8, device="cuda", run_dir=tmp_path / "run",
    )  # fmt: skip
    assert result.updates == 24


@pytest.mark.skipif(torch.cuda.device_count() > 0, reason="there is a GPU here: the figures are measured")
def test_without_a_gpu_every_figure_says_that_it_was_not_measured() -> None:
    rows = figures.measure()
    assert len(rows) == 2 * (2 * len(figures.PLACEMENTS) + 2)
    assert {(row.value, row.met, row.note) for row in rows} == {(None, None, "not measured: no GPU")}
