"""Buffers: a copy per worker, merged in pauses."""

import copy
from itertools import zip_longest

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn, optim

from hogwild.parameters.buffers import MASTER, REGION, MergeRule, block_of, read_live
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


@pytest.mark.parametrize("procs", [4, 8])
def test_batchnorm_of_many_workers_settles_at_the_data(procs):
    merged, alone = batchnorm(procs=procs, rounds=10, batches=10)
    assert int(merged.num_batches_tracked) == int(alone.num_batches_tracked) == procs * 100
    assert float((merged.running_mean - 4.0).abs().max()) < 0.3
    assert float((merged.running_var - 9.0).abs().max()) < 1.5


MEAN, VARIANCE = 3.0, 6e-4  # of the data: far from the start, which is 0 and 1


def train_norm(
    momentum: float | None, rounds: list[list[int]], dtype: torch.dtype = torch.float32, norm=nn.BatchNorm1d
) -> tuple[nn.Module, nn.Module, list[torch.Tensor]]:
    """(merged, what one process has left, the batches). `rounds`: the updates of each worker before each pause."""
    random = torch.Generator().manual_seed(1)
    model = norm(2, momentum=momentum, affine=False, track_running_stats=True).to(dtype)
    model.unused = nn.Parameter(torch.zeros(1))
    alone, batches = copy.deepcopy(model), []
    shared = build(model, optim.SGD(model.parameters(), 0.1), procs=len(rounds[0]))
    workers = [attach(shared, k).model for k in range(len(rounds[0]))]
    for updates in rounds:
        for turn in zip_longest(*([worker] * count for worker, count in zip(workers, updates, strict=True))):
            for worker in filter(None, turn):
                batches.append((MEAN + VARIANCE**0.5 * torch.randn(4, 2, 3, generator=random)).to(dtype))
                worker(batches[-1])
                alone(batches[-1])
        shared.merge_buffers(updates)
    return model, alone, batches


UPDATES = st.one_of(st.integers(0, 3), st.integers(1, 60))


@given(
    momentum=st.sampled_from([None, 0.0, 0.001, 0.01, 0.1, 0.5, 1.0]),
    rounds=st.integers(2, 16).flatmap(
        lambda n: st.lists(st.lists(UPDATES, min_size=n, max_size=n), min_size=1, max_size=3)
    ),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@example(momentum=0.1, rounds=[[53, 54]], dtype=torch.float32)
@example(momentum=0.1, rounds=[[1] * 16], dtype=torch.float32)
@example(momentum=0.01, rounds=[[1000] * 16], dtype=torch.float32)
@example(momentum=0.1, rounds=[[500, 1, 0, 20], [500, 500, 0, 0]], dtype=torch.float32)  # one joins late, one dies
@settings(max_examples=40, deadline=None)
def test_merged_statistics_are_those_of_one_process_within_the_spread_of_batches(momentum, rounds, dtype):
    merged, alone, batches = train_norm(momentum, rounds, dtype)
    assert int(merged.num_batches_tracked) == int(alone.num_batches_tracked) == len(batches)
    for found, one_process, start, seen in (
        (merged.running_mean, alone.running_mean, 0.0, [batch.mean((0, 2)) for batch in batches]),
        (merged.running_var, alone.running_var, 1.0, [batch.var((0, 2)) for batch in batches]),
    ):
        assert found.dtype == dtype
        if not batches or momentum == 0.0:
            assert found.tolist() == [start] * 2
            continue
        own = torch.stack(seen).double()
        spread = own.amax(0) - own.amin(0)
        rounding = 2e-6 * max(1.0, float(own.abs().max()))
        assert ((found.double() - one_process.double()).abs() <= spread + rounding).all()
        left = 0.0 if momentum is None else (1 - momentum) ** len(batches)  # of the start
        part = (found.double() - left * start) / (1 - left)
        slack = rounding / (1 - left)
        assert ((part >= own.amin(0) - slack) & (part <= own.amax(0) + slack)).all()


def test_a_cumulative_average_of_many_workers_is_that_of_one_process():
    merged, alone, _ = train_norm(None, [[7, 1, 30], [2, 40, 0]], torch.float64)
    assert torch.allclose(merged.running_mean, alone.running_mean, rtol=1e-12)
    assert torch.allclose(merged.running_var, alone.running_var, rtol=1e-12)


def test_a_norm_that_never_counts_is_merged_by_batches():
    merged, alone, _ = train_norm(0.1, [[30, 40]], norm=nn.InstanceNorm1d)
    assert torch.allclose(merged.running_var, alone.running_var, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_variance_in_half_precision_is_never_negative(dtype):
    model = nn.BatchNorm1d(1, affine=False)
    model.unused = nn.Parameter(torch.zeros(1))
    shared = build(model.to(dtype), optim.SGD([model.unused], 0.1), procs=8)
    for worker in range(8):
        one = attach(shared, worker).model
        one.running_var.fill_(0.898)  # below 0.9, by rounding
        one.num_batches_tracked.add_(1)
    shared.merge_buffers([1] * 8)
    assert 0 <= float(model.running_var) <= 0.9**8 + 0.01


def test_a_layer_that_runs_twice_a_batch_or_for_one_worker_only_is_weighed_by_its_own_counter():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.norm, self.rare = nn.Linear(2, 2), nn.BatchNorm1d(2), nn.BatchNorm1d(2)

        def forward(self, x, rarely=False):
            return self.fc(self.rare(x) if rarely else self.norm(self.norm(x) + x))

    random = torch.Generator().manual_seed(1)
    model = Twice()
    alone = copy.deepcopy(model)
    shared = build(model, optim.SGD(model.parameters(), 0.1), procs=2)
    first, second = (attach(shared, k).model for k in range(2))
    for _ in range(20):
        for one in (first, second):
            x = 1 + 0.02 * torch.randn(8, 2, generator=random)
            one(x)
            alone(x)
        first(x, rarely=True)
        alone(x, rarely=True)
    shared.merge_buffers([40, 20])
    assert torch.allclose(model.norm.running_var, alone.norm.running_var, atol=0.01)
    assert torch.equal(model.rare.running_var, first.rare.running_var)
    assert torch.allclose(model.rare.running_var, alone.rare.running_var, atol=1e-6)


def test_a_death_between_a_counter_and_its_average_lets_the_start_weigh_a_little_more():
    model = nn.BatchNorm1d(1)
    shared = build(model, optim.SGD(model.parameters(), 0.1), procs=2)
    first, second = (attach(shared, k).model for k in range(2))
    first.num_batches_tracked.add_(1)  # killed here: the variance was not stored
    second(torch.tensor([[0.0], [0.1]]))
    shared.merge_buffers([1, 1])
    assert 0.9**2 <= float(model.running_var) <= 0.96


def test_a_live_reader_sees_what_a_merge_would_give():
    model = nn.BatchNorm1d(2)
    shared = build(model, optim.SGD(model.parameters(), 0.1), procs=2)
    workers = [attach(shared, k).model for k in range(2)]
    layout, region = shared.layout.buffers, shared.regions[REGION]
    batches = [0, 0]
    for merges in (False, True, False):
        for k, worker in enumerate(workers):
            for _ in range(20 * (k + 1)):
                worker(3 + 0.02 * torch.randn(8, 2))
                batches[k] += 1
        live = torch.empty(layout.nbytes, dtype=torch.uint8)
        read_live(layout, region, batches, live)
        shared.merge_buffers([20, 40]) if merges else None
        if merges:
            batches = [40, 80]
            shared.merge_buffers([0, 0])
    read_live(layout, region, batches, live)
    shared.merge_buffers([20, 40])
    assert torch.equal(live, layout.block(region, MASTER))
    assert float(model.running_var.max()) < 0.01


def test_a_sum_in_a_float_is_added_up_and_a_measured_average_merged_as_one_process_leaves_it():
    model = Buffers()
    rules = {"mean": MergeRule(0.5), "scratch": MergeRule(0.0)}
    shared = SharedModel.build(
        model, nn.CrossEntropyLoss(), optim.SGD(model.parameters(), 0.1), procs=2, buffer_rules=rules
    )
    first, second = (attach(shared, k).model for k in range(2))
    for worker, count in ((first, 1), (second, 2)):
        for _ in range(count):
            worker.mean.mul_(0.5).add_(0.5 * 9.0)
            worker.scratch.add_(1.0)
    shared.merge_buffers([1, 2])
    assert model.mean.tolist() == [1 / 8 + 9 * 7 / 8, 2 / 8 + 9 * 7 / 8]
    assert model.scratch.item() == 3.0


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
    assert model.mean.tolist() == [2.0 if batches[1] else 1.0, 2.0]  # the master's, or the other worker's alone
    assert torch.equal(first.mean, model.mean)
