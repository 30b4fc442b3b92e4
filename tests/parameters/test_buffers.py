"""Buffers: a copy per worker, merged in pauses."""

import copy

import pytest
import torch
from torch import nn, optim

from hogwild.parameters.buffers import MASTER, REGION, block_of
from hogwild.parameters.shared_model import SharedModel
from tests.shared_model import (
    attach,
    build,
    one_thread,  # noqa: F401 (a fixture for every test here)
)


class Buffers(nn.Module):
    """One buffer of each kind, and something to train."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.register_buffer("mean", torch.tensor([1.0, 2.0]))
        self.register_buffer("count", torch.tensor(10))
        self.register_buffer("seen", torch.tensor([False, False]))
        self.register_buffer("constant", torch.tensor([float("nan"), -0.0, 3.0]))
        self.register_buffer("scratch", torch.zeros(1, dtype=torch.float64), persistent=False)
        self.register_buffer("lowest", torch.tensor([float("inf"), 5.0]))


def shared_buffers(procs: int) -> tuple[Buffers, SharedModel, list[Buffers]]:
    model = Buffers()
    shared = build(model, optim.SGD(model.parameters(), 0.1), procs=procs)
    return model, shared, [attach(shared, k).model for k in range(procs)]


def test_a_worker_writes_its_own_copy_only():
    model, _, (first, second) = shared_buffers(2)
    first.mean.add_(1.0)
    assert model.mean.tolist() == second.mean.tolist() == [1.0, 2.0]
    assert first.mean.is_shared()


def test_floats_become_the_weighted_mean_and_integers_the_sum():
    model, shared, (first, second) = shared_buffers(2)
    first.mean.copy_(torch.tensor([3.0, 2.0]))
    second.mean.copy_(torch.tensor([2.0, 6.0]))
    first.count.add_(3)
    second.count.add_(1)
    shared.merge_buffers([3, 1])
    assert model.mean.tolist() == [1 + (3 * 2 + 1 * 1) / 4, 2 + (3 * 0 + 1 * 4) / 4]
    assert model.count.item() == 14
    for worker in (first, second):
        assert torch.equal(worker.mean, model.mean)
        assert torch.equal(worker.count, model.count)


def test_what_nobody_changed_keeps_its_bits():
    model, shared, (first, _) = shared_buffers(2)
    before = model.constant.view(torch.int32).tolist()
    first.mean.add_(1.0)
    shared.merge_buffers([1, 1])
    assert model.constant.view(torch.int32).tolist() == before


def test_where_one_worker_trained_its_copy_is_taken():
    model, shared, (first, second) = shared_buffers(2)
    second.mean.copy_(torch.tensor([0.1, 0.7]))
    second.seen[1] = True
    first.mean.add_(100.0)
    shared.merge_buffers([0, 5])
    assert torch.equal(model.mean, torch.tensor([0.1, 0.7]))
    assert model.seen.tolist() == [False, True]
    assert torch.equal(first.mean, model.mean)


def test_without_a_batch_the_master_stays_and_copies_restart():
    model, shared, (first, _) = shared_buffers(2)
    first.mean.add_(1.0)
    shared.merge_buffers([0, 0])
    assert model.mean.tolist() == first.mean.tolist() == [1.0, 2.0]


def test_flags_come_from_the_worker_with_most_batches_among_those_that_changed_them():
    model, shared, workers = shared_buffers(3)
    workers[0].seen[0] = True
    workers[1].seen.fill_(True)
    shared.merge_buffers([4, 2, 9])
    assert model.seen.tolist() == [True, False]


def test_infinity_in_the_master_does_not_become_nan():
    model, shared, (first, second) = shared_buffers(2)
    first.lowest.copy_(torch.tensor([1.0, 5.0]))
    second.lowest.copy_(torch.tensor([3.0, 5.0]))
    shared.merge_buffers([1, 3])
    assert model.lowest.tolist() == [2.5, 5.0]


def test_buffers_that_are_not_saved_are_shared_as_well():
    model, shared, (only,) = shared_buffers(1)
    only.scratch.fill_(7.0)
    shared.merge_buffers([1])
    assert model.scratch.item() == 7.0


def batchnorm(procs: int, rounds: int, batches: int) -> tuple[nn.BatchNorm1d, nn.BatchNorm1d]:
    """(merged, what one process saw in turn) after `rounds` pauses with `batches` per worker between them."""
    random = torch.Generator().manual_seed(0)
    model = nn.BatchNorm1d(3)
    alone = copy.deepcopy(model)
    shared = build(model, optim.SGD(model.parameters(), 0.1), procs=procs)
    workers = [attach(shared, k).model for k in range(procs)]
    for _ in range(rounds):
        for _ in range(batches):
            for worker in workers:
                x = 4.0 + 3.0 * torch.randn(32, 3, generator=random)
                worker(x)
                alone(x)
        shared.merge_buffers([batches] * procs)
    return model, alone


def test_batchnorm_of_one_worker_equals_plain_torch_to_the_bit():
    merged, alone = batchnorm(procs=1, rounds=3, batches=7)
    assert torch.equal(merged.running_mean, alone.running_mean)
    assert torch.equal(merged.running_var, alone.running_var)
    assert torch.equal(merged.num_batches_tracked, alone.num_batches_tracked)


@pytest.mark.parametrize("procs", [4, 8])
def test_batchnorm_of_many_workers_settles_at_the_data(procs):
    merged, alone = batchnorm(procs=procs, rounds=10, batches=10)
    assert int(merged.num_batches_tracked) == int(alone.num_batches_tracked) == procs * 100
    assert float((merged.running_mean - 4.0).abs().max()) < 0.3
    assert float((merged.running_var - 9.0).abs().max()) < 1.5


def test_buffers_that_user_code_replaces_are_taken_back():
    class Replacing(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.register_buffer("average", torch.zeros(2))

        def forward(self, x):
            self.average = 0.5 * self.average + 0.5 * x.mean(0)
            return self.fc(x)

    model = Replacing()
    shared = build(model, optim.SGD(model.parameters(), 0.1))
    worker = attach(shared)
    worker.model(torch.ones(3, 2))
    worker.check_bound()
    shared.merge_buffers([1])
    assert model.average.tolist() == [0.5, 0.5]
    assert worker.model.average.is_shared()


def test_blocks_start_on_cache_lines_and_do_not_overlap():
    _, shared, _ = shared_buffers(3)
    region, layout = shared.regions[REGION], shared.layout.buffers
    places = [layout.view(region, s, b).data_ptr() for b in (MASTER, *map(block_of, range(3))) for s in layout.slots]
    assert len(set(places)) == len(places)
    assert all((place - places[0]) % 64 == 0 for place in places)


@pytest.mark.parametrize("batches", [[3, 0], [3, 1]], ids=["it trained alone", "another trained too"])
def test_a_running_average_poisoned_by_a_skipped_batch_is_left_out(batches):
    model, shared, (first, second) = shared_buffers(2)
    first.mean.copy_(torch.tensor([float("nan"), 2.0]))
    second.mean.copy_(torch.tensor([2.0, 2.0]))
    shared.merge_buffers(batches)
    assert model.mean.tolist() == [1 + batches[1] / sum(batches), 2.0]
    assert torch.equal(first.mean, model.mean)
