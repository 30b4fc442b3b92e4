"""Buffers in the rounds between nodes, with all nodes in this process."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn, optim

from hogwild.parameters.anchor import BUFFER_SUMS, Anchor
from hogwild.parameters.shared_model import SharedModel
from tests.shared_model import (
    attach,
    build,
    one_thread,  # noqa: F401 (a fixture for every test here)
)

MEAN, VARIANCE = 3.0, 6e-4  # of the data: far from the start, which is 0 and 1


class Counted(nn.Module):
    def __init__(self, momentum: float | None) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(2, momentum=momentum), nn.Linear(2, 1)
        self.register_buffer("rows", torch.tensor(5))
        self.register_buffer("has_trained", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        self.has_trained.fill_(True)
        return self.out(self.norm(x))


class Node:
    """Two workers of one node, and its side of the rounds."""

    def __init__(self, model: Counted) -> None:
        self.shared: SharedModel = build(model, optim.SGD(model.parameters(), 0.1), procs=2)
        layout = self.shared.layout
        self.anchor = Anchor(layout.flats, self.shared.regions, "average", (), (layout.buffers, 2))
        self.anchor.restart()
        self.model, self.workers = model, [attach(self.shared, k).model for k in range(2)]
        self.since = [0, 0]

    def train(self, batches: list[Tensor]) -> None:
        for number, batch in enumerate(batches):
            self.workers[number % 2](batch)
            self.since[number % 2] += 1

    def merge(self) -> None:
        self.shared.merge_buffers(self.since)
        self.since = [0, 0]

    def cut(self) -> None:
        self.merge()
        self.anchor.cut()

    @property
    def sums(self) -> Tensor:
        region = self.anchor.regions[BUFFER_SUMS]
        return region.tensor(torch.float64, (region.nbytes // 8,))


class Cluster:
    """Nodes, and the plain model that sees every batch in turn."""

    def __init__(self, count: int, momentum: float | None) -> None:
        torch.manual_seed(0)
        model = Counted(momentum)
        self.alone, self.seen = copy.deepcopy(model), list[Tensor]()
        self.nodes = [Node(copy.deepcopy(model)) for _ in range(count)]

    def train(self, counts: list[int]) -> None:
        for node, count in zip(self.nodes, counts, strict=True):
            batches = [MEAN + VARIANCE**0.5 * torch.randn(8, 2) for _ in range(count)]
            node.train(batches)
            self.seen += batches
            for batch in batches:
                self.alone(batch)

    def exchange(self) -> None:
        """Offer, sum and settle what the nodes have cut."""
        for node in self.nodes:
            node.anchor.offer(1)
        total = sum(node.sums.clone() for node in self.nodes)
        for node in self.nodes:
            node.sums.copy_(total)
            node.anchor.settle(len(self.nodes), len(self.nodes))
            node.anchor.apply()

    def cut(self) -> None:
        for node in self.nodes:
            node.cut()

    def take(self) -> None:
        for node in self.nodes:
            node.anchor.take()

    def assert_as_one_process(self) -> None:
        first = self.nodes[0].model
        for node in self.nodes:
            assert all(map(torch.equal, node.model.buffers(), first.buffers()))
        assert first.norm.num_batches_tracked == self.alone.norm.num_batches_tracked == len(self.seen)
        assert first.rows == self.alone.rows
        assert first.has_trained == bool(self.seen)
        if not self.seen:
            return
        for name, own in (
            ("running_mean", torch.stack([batch.mean(0) for batch in self.seen])),
            ("running_var", torch.stack([batch.var(0) for batch in self.seen])),
        ):
            difference = (getattr(first.norm, name) - getattr(self.alone.norm, name)).abs()
            assert (difference <= own.amax(0) - own.amin(0) + 1e-5).all(), name


@given(
    momentum=st.sampled_from([None, 0.01, 0.1, 1.0]),
    rounds=st.integers(2, 4).flatmap(
        lambda nodes: st.lists(
            st.tuples(*(st.lists(st.integers(0, 30), min_size=nodes, max_size=nodes) for _ in range(2))),
            min_size=1,
            max_size=4,
        )
    ),
)
@settings(max_examples=25, deadline=None)
def test_statistics_of_all_nodes_are_those_of_one_process(momentum: float | None, rounds: list) -> None:
    """Workers train while a round is on its way; a round that is given up is in the next one."""
    cluster = Cluster(len(rounds[0][0]), momentum)
    for number, (before, meanwhile) in enumerate(rounds):
        cluster.train(before)
        cluster.cut()
        cluster.train(meanwhile)
        if number % 3 != 1:
            cluster.exchange()
    cluster.cut()
    cluster.exchange()
    cluster.take()
    cluster.assert_as_one_process()


def test_what_is_looked_at_is_the_committed_round_and_what_came_later_is_kept() -> None:
    cluster = Cluster(2, 0.1)
    cluster.train([20, 30])
    cluster.cut()
    cluster.exchange()
    committed = len(cluster.seen)
    cluster.train([10, 5])
    cluster.cut()
    first = cluster.nodes[0]
    first.anchor.hold()
    assert first.model.norm.num_batches_tracked == committed
    assert all(worker.norm.num_batches_tracked == committed for worker in first.workers)
    cluster.exchange()  # during the long look of the first node
    first.merge()
    first.anchor.release()
    assert first.model.norm.num_batches_tracked == len(cluster.seen)
    cluster.train([7, 3])
    cluster.cut()
    cluster.exchange()
    cluster.take()
    cluster.assert_as_one_process()


def test_a_look_between_two_rounds_changes_nothing() -> None:
    cluster = Cluster(2, 0.1)
    cluster.train([20, 30])
    cluster.cut()
    for node in cluster.nodes:
        node.anchor.hold()
        node.anchor.release()
    cluster.train([20, 30])
    cluster.cut()
    cluster.exchange()
    cluster.take()
    cluster.assert_as_one_process()


def test_a_node_with_statistics_that_are_not_finite_spoils_no_other() -> None:
    cluster = Cluster(2, 0.1)
    cluster.train([20, 30])
    cluster.nodes[0].merge()
    cluster.nodes[0].model.norm.running_mean.fill_(float("nan"))
    cluster.cut()
    cluster.exchange()
    cluster.take()
    assert all(torch.isfinite(node.model.norm.running_mean).all() for node in cluster.nodes)


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_node_takes_only_its_uncommitted_batches_with_it(lost: int) -> None:
    cluster = Cluster(2, 0.1)
    cluster.train([20, 30])
    cluster.cut()
    cluster.exchange()
    del cluster.nodes[lost]
    cluster.train([25])
    cluster.cut()
    cluster.exchange()
    cluster.take()
    cluster.assert_as_one_process()
